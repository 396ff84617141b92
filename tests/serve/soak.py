#!/usr/bin/env python3
"""soak - mixed load on a zse-serve that has models/tiny: answers, streams, clients that go away, a second model that comes and goes.

usage: soak PORT PID SECONDS TOKEN MODEL.zse
Every answer must be the one that comes alone, at the end no KV block may be lost, and memory must not have grown. Exit 1 otherwise."""
import http.client, json, os, random, sys, threading, time

port, pid, seconds, token, model = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], sys.argv[5]
ANSWERS = {'What is 2+2?': '2 + 2 = 4', 'What is the capital of France?': 'The capital of France is Paris.', 'What is the opposite of hot?': 'The opposite of hot is cold.'}
wrong, counts, lock = [], {}, threading.Lock()
end = float('inf')


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


def client(seed):
    rnd = random.Random(seed)
    while time.monotonic() < end:
        try:
            (talk if rnd.random() < .6 else leave)(rnd)
        except Exception as e:
            wrong.append(repr(e))
            return


def admin():
    while time.monotonic() < end:
        a = {'Authorization': 'Bearer ' + token}
        if ask('POST', '/api/models/load', {'model_path': model, 'model_name': 'guest'}, a)[0] == 200:
            ask('POST', '/v1/completions', {'model': 'guest', 'prompt': 'Hello', 'max_tokens': 5})
            ask('POST', '/api/models/unload', {'model_id': 'guest'}, a)
            count('loads')


def anonymous():
    with open(f'/proc/{pid}/status') as f:
        return int(next(l for l in f if l.startswith('RssAnon')).split()[1])


def settled():
    m = ask('GET', '/api/stats/models')[1]['models']
    return len(m) == 1 and m[0]['running'] + m[0]['waiting'] + m[0]['open_requests'] == 0 and m[0]['kv_blocks_free'] + m[0]['kv_blocks_prefix'] == m[0]['kv_blocks']


threads = [threading.Thread(target=client, args=(i,)) for i in range(8)] + [threading.Thread(target=admin)]
for t in threads:
    t.start()
half = time.monotonic() + seconds / 2
while time.monotonic() < half or counts.get('loads', 0) < 3:        # on a slow machine, too, all that takes memory has been there
    time.sleep(.05)
middle = anonymous()
end = time.monotonic() + seconds / 2
for t in threads:
    t.join()
limit = time.monotonic() + 120
while not settled():
    if time.monotonic() > limit:
        sys.exit(f'blocks or requests are left: {ask("GET", "/api/stats/models")[1]}')
    time.sleep(.05)
grown = anonymous() - middle
print(counts, f'{middle} kB in the middle, {grown} kB more at the end')
if wrong or not counts.get('loads') or not counts.get('answers') or not counts.get('left'):
    sys.exit(f'wrong: {wrong[:3]}')
sys.exit(f'grown by {grown} kB' if grown > 16384 and not os.environ.get('ZSE_SANITIZED') else 0)       # sanitizers keep what is freed
