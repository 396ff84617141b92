#!/usr/bin/env python3
"""soak - mixed load on a zse-serve that has models/tiny: answers, streams, WebSockets, clients that go away, a second model that comes and goes, and who watches.

usage: soak PORT PID SECONDS TOKEN MODEL.zse [clients|loads]
clients, loads: only these. Every answer must be the one that comes alone, at the end no KV block may be lost, and memory must not grow: after a warm-up (a
quarter of the time, at most a minute) RssAnon is sampled four times a second, and its median in the last third may be above that of the second third by at
most BOUND_KB. Printed: kB in the first, second and last third, and the slope of a line through the samples. Exit 1 otherwise, also when the server ends."""
import http.client, json, os, random, statistics, sys, threading, time

import wire

port, pid, seconds, token, model = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], sys.argv[5]
only = sys.argv[6] if len(sys.argv) > 6 else None
BOUND_KB = 512 if seconds >= 300 else 2048 if seconds >= 20 else 16384      # a short run, on a busy machine, ends while buffers still find their sizes
ANSWERS = {'What is 2+2?': '2 + 2 = 4', 'What is the capital of France?': 'The capital of France is Paris.', 'What is the opposite of hot?': 'The opposite of hot is cold.'}
wrong, counts, lock = [], {}, threading.Lock()
stop = threading.Event()


def count(what):
    with lock:
        counts[what] = counts.get(what, 0) + 1


def ask(method, path, body=None, headers={}):
    c = http.client.HTTPConnection('127.0.0.1', port, timeout=600)
    c.request(method, path, json.dumps(body) if body is not None else None, headers)
    r = c.getresponse()
    text = r.read()
    c.close()
    return r.status, json.loads(text)


def talk(rnd):
    question = rnd.choice(list(ANSWERS))
    status, r = ask('POST', '/v1/chat/completions', {'temperature': 0, 'messages': [{'role': 'user', 'content': question}]})
    if status != 200 or r['choices'][0]['message']['content'] != ANSWERS[question]:
        wrong.append((question, r))
    count('answers')


def leave(rnd):
    c = http.client.HTTPConnection('127.0.0.1', port, timeout=600)
    c.request('POST', '/v1/completions', json.dumps({'prompt': 'Once', 'max_tokens': 1000, 'ignore_eos': True, 'stream': rnd.random() < .7, 'n': rnd.choice([1, 1, 3])}))
    c.sock.settimeout(rnd.random() * .05 + .001)
    try:
        c.sock.recv(rnd.randrange(1, 4000))
    except TimeoutError:
        pass
    c.close()
    count('left')


def converse(rnd):
    """Questions on a WebSocket; sometimes it is closed in the middle of an answer."""
    w = wire.WebSocket(port, b'/ws/chat')
    for _ in range(rnd.randrange(1, 4)):
        question, text = rnd.choice(list(ANSWERS)), ''
        w.send(json.dumps({'temperature': 0, 'messages': [{'role': 'user', 'content': question}]}).encode())
        while (m := json.loads(w.receive()[1]))['type'] == 'token' and rnd.random() > .02:
            text += m['content']
        if m['type'] == 'token':
            break
        if m['type'] != 'done' or not m['full_response'] == text == ANSWERS[question]:
            wrong.append((question, text, m))
        count('conversations')
    w.close()


def look(rnd):
    """What monitors ask for: all of it answers, also while models come and go."""
    for path in ('/metrics', '/health', '/v1/models', '/api/stats', '/api/stats/models', '/api/analytics', '/api/analytics/timeseries', '/api/analytics/requests?limit=5', '/api/batching', '/'):
        c = http.client.HTTPConnection('127.0.0.1', port, timeout=600)
        c.request('GET', path)
        r = c.getresponse()
        if r.status != 200 or not r.read():
            wrong.append((path, r.status))
        c.close()
    w = wire.WebSocket(port, b'/ws/stats')
    if json.loads(w.receive()[1])['type'] != 'stats':
        wrong.append('/ws/stats')
    w.close()
    count('looks')
    stop.wait(rnd.random() * .2)


def tune(rnd):
    """Batching is changed under the requests that run."""
    a = {'Authorization': 'Bearer ' + token}
    how = rnd.choice([('/api/batching', {'model': 'tiny', 'max_batch_size': rnd.choice([1, 2, 4])}), ('/api/batching/disable', {}), ('/api/batching/enable', {})])
    status, r = ask('POST', how[0], how[1], a)
    if status != 200:
        wrong.append((how, r))
    for path in ('/api/keys', '/api/audit/stats', '/api/audit/recent?limit=3'):
        if ask('GET', path, None, a)[0] not in (200, 503):              # 503: another such question is being answered
            wrong.append(path)
    count('changes')
    stop.wait(rnd.random())


def admin(rnd):
    a = {'Authorization': 'Bearer ' + token}
    if ask('POST', '/api/models/load', {'model_path': model, 'model_name': 'guest'}, a)[0] == 200:
        ask('POST', '/v1/completions', {'model': 'guest', 'prompt': 'Hello', 'max_tokens': 5})
        ask('POST', '/api/models/unload', {'model_id': 'guest'}, a)
        count('loads')


def repeat(what, seed):
    rnd = random.Random(seed)
    while not stop.is_set():
        try:
            what(rnd)
        except Exception as e:
            wrong.append(repr(e))
            return


def client(rnd):
    x = rnd.random()
    (talk if x < .55 else leave if x < .9 else converse)(rnd)


def anonymous():
    """kB; None: the process is gone."""
    try:
        with open(f'/proc/{pid}/status') as f:
            return next((int(line.split()[1]) for line in f if line.startswith('RssAnon')), None)
    except OSError:
        return None


def settled():
    m = ask('GET', '/api/stats/models')[1]['models']
    return len(m) == 1 and m[0]['running'] + m[0]['waiting'] + m[0]['open_requests'] == 0 and m[0]['kv_blocks_free'] + m[0]['kv_blocks_prefix'] == m[0]['kv_blocks']


def sample():
    """[(seconds since the start, kB)] until the time is over and all that takes memory has been there; None: the server ended."""
    begin, samples = time.monotonic(), []
    everything = ('answers', 'left', 'loads', 'looks') + (('conversations', 'changes') if seconds >= 10 else ())        # rarer: a short run would wait for them
    needed = {'clients': ('answers', 'left'), 'loads': ('loads',)}.get(only, everything)
    while True:
        now, kb = time.monotonic() - begin, anonymous()
        if kb is None:
            return None
        samples.append((now, kb))
        if wrong or (now >= seconds and all(counts.get(what, 0) >= 9 for what in needed)):
            return samples
        time.sleep(.25)


works = ([client] * 8 if only != 'loads' else []) + ([admin] if only != 'clients' else []) + ([look, tune] if not only else [])
threads = [threading.Thread(target=repeat, args=(what, i), daemon=True) for i, what in enumerate(works)]
for t in threads:
    t.start()
samples = sample()
stop.set()
if samples is None:
    sys.exit(f'the server has ended; {counts}; {wrong[:1]}')
if wrong:
    sys.exit(f'wrong: {wrong[:3]}; {counts}')
for t in threads:
    t.join()
limit = time.monotonic() + 120
while not settled():
    if time.monotonic() > limit or anonymous() is None:
        sys.exit(f'blocks or requests are left: {ask("GET", "/api/stats/models")[1]}')
    time.sleep(.05)
warm = [s for s in samples if s[0] >= min(60, samples[-1][0] / 4)]
third = len(warm) // 3
first, second, last = (statistics.median(kb for _, kb in part) for part in (warm[:third], warm[third:2 * third], warm[2 * third:]))
slope = statistics.linear_regression([t / 60 for t, _ in warm], [kb for _, kb in warm]).slope
print(f'{counts}; RssAnon: {first:.0f} kB, then {second:.0f}, then {last:.0f} ({slope:+.0f} kB a minute over {warm[-1][0] - warm[0][0]:.0f} s); bound: {BOUND_KB} kB more')
if wrong:
    sys.exit(f'wrong: {wrong[:3]}')
if last > second + BOUND_KB and not os.environ.get('ZSE_SANITIZED'):     # sanitizers keep what is freed
    sys.exit(f'memory has grown by {last - second:.0f} kB')
