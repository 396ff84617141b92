#!/usr/bin/env python3
"""soak - mixed load on a zse-serve with models/tiny: answers, streams, WebSockets, clients that
leave, a second model that is loaded and unloaded, and monitoring.

usage: soak PORT PID SECONDS TOKEN MODEL.zse [clients|loads|attacked]
clients, loads: only these; attacked: with hostile clients beside them, which have no key, or
the one in ZSE_HOSTILE_KEY. ZSE_API_KEY: the key of the others. Every answer must be the same as
without load, at the end no KV block may be lost, and memory must not grow: after a warm-up (a
quarter of the time, at most a minute) RssAnon is sampled four times a second, and its median in
the last third may be above that of the second third by at most BOUND_KB. Printed: kB in the first,
second and last third, and the slope of a line through the samples. Exit 1 otherwise, also when the
server ends.

attacked: attackers take and free memory, so all clients pause after each third of the time, and
RssAnon at rest counts, less the compiled grammars, which the server keeps up to a bound of their
own (zse_grammar_memory_bytes of /metrics)."""
import contextlib, http.client, json, os, random, socket, statistics, sys, threading, time

import wire

port, pid, seconds, token, model = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), sys.argv[4], sys.argv[5]
only = sys.argv[6] if len(sys.argv) > 6 else None
# the shorter the run, the more memory may grow: buffers still reach their sizes while it is
# measured
BOUND_KB = 512 if seconds >= 300 else 2048 if seconds >= 20 else 16384
ANSWERS = {'What is 2+2?': '2 + 2 = 4', 'What is the capital of France?': 'The capital of France is Paris.', 'What is the opposite of hot?': 'The opposite of hot is cold.'}
wrong, counts, lock = [], {}, threading.Lock()
stop, work = threading.Event(), threading.Event()
working = [0]                                # threads between two pauses
KEY, HOSTILE = ({'Authorization': f'Bearer {os.environ[name]}'} if os.environ.get(name) else {} for name in ('ZSE_API_KEY', 'ZSE_HOSTILE_KEY'))
KEY_LINE = ''.join(f'{k}: {v}\r\n' for k, v in KEY.items()).encode()


def count(what):
    with lock:
        counts[what] = counts.get(what, 0) + 1


def ask(method, path, body=None, headers=KEY):
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
    c.request('POST', '/v1/completions', json.dumps({'prompt': 'Once', 'max_tokens': 1000, 'ignore_eos': True, 'stream': rnd.random() < .7, 'n': rnd.choice([1, 1, 3])}), KEY)
    c.sock.settimeout(rnd.random() * .05 + .001)
    try:
        c.sock.recv(rnd.randrange(1, 4000))
    except TimeoutError:
        pass
    c.close()
    count('left')


def converse(rnd):
    """Ask questions on a WebSocket; sometimes it is closed in the middle of an answer."""
    w = wire.WebSocket(port, b'/ws/chat', fields=KEY_LINE)
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
    """Send the requests of a monitoring system.  All must be answered, also while models are loaded
    and unloaded."""
    for path in ('/metrics', '/health', '/v1/models', '/api/stats', '/api/stats/models', '/api/analytics', '/api/analytics/timeseries', '/api/analytics/requests?limit=5', '/api/batching', '/'):
        c = http.client.HTTPConnection('127.0.0.1', port, timeout=600)
        c.request('GET', path, headers=KEY)
        r = c.getresponse()
        if r.status != 200 or not r.read():
            wrong.append((path, r.status))
        c.close()
    w = wire.WebSocket(port, b'/ws/stats', fields=KEY_LINE)
    if json.loads(w.receive()[1])['type'] != 'stats':
        wrong.append('/ws/stats')
    w.close()
    count('looks')
    stop.wait(rnd.random() * .2)


def tune(rnd):
    """Change the batching options while requests run."""
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


# ---- hostile clients: the answers that they get are not checked ----

def ambiguous(n):
    """A grammar whose rules each have two alternatives that can match the same text, so that the
    work for a mask grows with n."""
    return 'root ::= r0\n' + ''.join(f'r{i} ::= [a-z]* r{i + 1} | [a-f]+ r{i * 7 % n} | ""\n' for i in range(n)) + f'r{n} ::= "z"\n'


def hostile_ask(rnd, path, body, seconds):
    c = http.client.HTTPConnection('127.0.0.1', port, timeout=seconds, source_address=(f'127.0.0.{rnd.randrange(2, 250)}', 0))
    with contextlib.suppress(OSError, http.client.HTTPException):
        c.request('POST', path, body if isinstance(body, bytes) else json.dumps(body), HOSTILE)
        c.getresponse().read()
    c.close()
    count('attacks')


def hold(rnd):
    "Connections that are idle, or send half a head, half a body, a page of requests whose answers are not read."
    data = rnd.choice([b'', b'GET /health HTTP/1.1\r\nHost: loc', b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16000000\r\n\r\n' + b'x' * 60000,
                       b'GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n' * 60])
    held, address = [], f'127.0.0.{rnd.randrange(2, 250)}'
    for _ in range(rnd.choice([300, 700])):
        s = socket.socket()
        held.append(s)
        with contextlib.suppress(OSError):
            s.bind((address, 0))
            s.settimeout(.2)
            s.connect(('127.0.0.1', port))
            s.sendall(data)
    stop.wait(rnd.random() * 3)
    for s in held:
        s.close()
    count('attacks')


def compile_bombs(rnd):
    hostile_ask(rnd, '/v1/completions', {'prompt': 'Once', 'temperature': 0, 'max_tokens': 40, 'grammar': ambiguous(rnd.choice([40, 60, 500, 3000]))},
            rnd.choice([.1, 5, 60]))
    hostile_ask(rnd, '/v1/completions', {'prompt': 'Once', 'max_tokens': 5, 'regex': rnd.choice(['(a*)*b', '((a{1,1000}){1,1000}){1,1000}', '(a?|b?|[a-m]*){1,60}z'])}, 60)


def fill_memory(rnd):
    empty = b'{},' * rnd.choice([1000, 100_000, 3_000_000])
    hostile_ask(rnd, rnd.choice(['/v1/chat/completions', '/health', '/tokenize', '/nowhere']), b'{"max_tokens":2,"messages":[{"role":"user","content":"a"}],"metadata":{"a":[' + empty + b'{}]}}', 60)
    hostile_ask(rnd, '/v1/completions', {'prompt': 'Once', 'max_tokens': 200, 'n': 16, 'ignore_eos': True, 'logprobs': 5, 'stop': ['a' * 1000] * 16}, rnd.choice([.05, 60]))


def fill_log(rnd):
    with contextlib.suppress(OSError):
        with wire.connect(port) as s:
            f = s.makefile('rb')
            for i in range(20):
                s.sendall(b'GET /%d' % rnd.randrange(10**9) + b'/%01' * 400 + b' HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer wrong\r\n\r\n')
                wire.response(f)
    count('attacks')
    stop.wait(.05)


def repeat(what, seed):
    rnd = random.Random(seed)
    while not stop.is_set():
        with lock:
            goes_on = work.is_set()
            working[0] += goes_on
        if not goes_on:
            stop.wait(.1)
            continue
        try:
            what(rnd)
        except Exception as e:
            wrong.append(f'{what.__name__}: {e!r}')
            return
        finally:
            with lock:
                working[0] -= 1


def client(rnd):
    x = rnd.random()
    (talk if x < .55 else leave if x < .9 else converse)(rnd)


def anonymous():
    """RssAnon of the server in kB; None if the process has ended."""
    try:
        with open(f'/proc/{pid}/status') as f:
            return next((int(line.split()[1]) for line in f if line.startswith('RssAnon')), None)
    except OSError:
        return None


def settled():
    m = ask('GET', '/api/stats/models')[1]['models']
    return len(m) == 1 and m[0]['running'] + m[0]['waiting'] + m[0]['open_requests'] == 0 and m[0]['kv_blocks_free'] + m[0]['kv_blocks_prefix'] == m[0]['kv_blocks']


def at_rest():
    """Let all clients pause, and then go on.  Returns the RssAnon of the idle server in kB, without
    its compiled grammars; None if the server has ended."""
    with lock:
        work.clear()
    limit = time.monotonic() + 300
    while working[0] or not settled():
        if time.monotonic() > limit or wrong or anonymous() is None:
            return None
        time.sleep(.05)
    time.sleep(2)                       # the server gives memory back after a second
    c = http.client.HTTPConnection('127.0.0.1', port, timeout=600)
    c.request('GET', '/metrics', headers=KEY)
    text, kb = c.getresponse().read().decode(), anonymous()
    c.close()
    work.set()
    grammars = [float(line.split()[1]) for line in text.splitlines() if line.startswith('zse_grammar_memory_bytes{')]
    return kb and kb - sum(grammars) / 1024


def sample(rests):
    """Sample the memory until the time is over and each kind of load has run; returns [(seconds
    since the start, kB)], or None if the server has ended.  `rests` gets the memory of the idle
    server after each third of the time but the last."""
    begin, samples = time.monotonic(), []
    # conversations and changes are rare, so a short run does not wait for them
    everything = ('answers', 'left', 'loads', 'looks') + (('attacks',) if only == 'attacked' else ()) + (('conversations', 'changes') if seconds >= 10 else ())
    needed = {'clients': ('answers', 'left'), 'loads': ('loads',)}.get(only, everything)
    while True:
        now, kb = time.monotonic() - begin, anonymous()
        if kb is None:
            return None
        samples.append((now, kb))
        if only == 'attacked' and len(rests) < 2 and now > seconds * (len(rests) + 1) / 3:
            rests.append(at_rest())
            if rests[-1] is None:
                return None
        if wrong or (now >= seconds and all(counts.get(what, 0) >= 9 for what in needed)):
            return samples
        time.sleep(.25)


works = ([client] * 8 if only != 'loads' else []) + ([admin] if only != 'clients' else []) + ([look, tune]
        if only in (None, 'attacked') else [])
works += [hold, compile_bombs, fill_memory, fill_log] if only == 'attacked' else []
for headers in (KEY, {'Authorization': 'Bearer ' + token}):         # a key used once is exempt from the limit on wrong keys
    ask('GET', '/v1/models', None, headers)
threads = [threading.Thread(target=repeat, args=(what, i), daemon=True) for i, what in enumerate(works)]
for t in threads:
    t.start()
work.set()
rests = []
samples = sample(rests)
if only == 'attacked' and samples and not wrong:
    rests.append(at_rest())
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
first, second, last = (statistics.median(kb for _, kb in part)
        for part in (warm[:third], warm[third:2 * third], warm[2 * third:]))
slope = statistics.linear_regression([t / 60 for t, _ in warm], [kb for _, kb in warm]).slope
print(f'{counts}; RssAnon: {first:.0f} kB, then {second:.0f}, then {last:.0f}',
      f'({slope:+.0f} kB a minute over {warm[-1][0] - warm[0][0]:.0f} s); bound: {BOUND_KB} kB more')
if rests:
    print('at rest, without grammars:', ', '.join(f'{r or 0:.0f} kB' for r in rests))
if wrong:
    sys.exit(f'wrong: {wrong[:3]}')
if rests:
    second, last = rests[1], rests[2] or 0
if last > second + BOUND_KB and not os.environ.get('ZSE_SANITIZED'):     # sanitizers keep what is freed
    sys.exit(f'memory has grown by {last - second:.0f} kB')
