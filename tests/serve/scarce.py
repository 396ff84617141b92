#!/usr/bin/env python3
"""scarce - load on a zse-serve with models/tiny that runs with tests/lib/nomem.c preloaded: some of
its allocations fail.

usage: scarce PORT PID SECONDS
For each request the answer is either the right one or none: a status of 5xx, an error in the
stream, or a connection that ends early.  Afterwards everything is answered again, and no KV block
is lost.  Exit 1 otherwise."""
import http.client, json, os, random, signal, sys, threading, time

import wire

port, pid, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
QUESTION, ANSWER = 'What is 2+2?', '2 + 2 = 4'
TOOLS = [{'type': 'function', 'function': {'name': 'add', 'description': 'Adds.', 'parameters': {'type': 'object', 'properties': {'a': {'type': 'integer'}}, 'required': ['a']}}}]
wrong, counts, refusal, lock = [], {}, [''], threading.Lock()
BROKEN = (http.client.HTTPException, OSError, EOFError)


def count(what):
    with lock:
        counts[what] = counts.get(what, 0) + 1


def ask(path, body=None):
    """Send a request; returns the status, the part of the body that came, and whether that is all
    of it."""
    c = http.client.HTTPConnection('127.0.0.1', port, timeout=120)
    try:
        c.request('GET' if body is None else 'POST', path, None if body is None else json.dumps(body), {'Authorization': 'Bearer none'})
        r = c.getresponse()
        try:
            return r.status, r.read(), True
        except http.client.IncompleteRead as e:
            return r.status, e.partial, False
    finally:
        c.close()


def refused(path, status, text):
    refusal[0] = f'{path}: {text[:300]}'
    if status >= 500:
        json.loads(text)
        count('refused')
        return True
    if status != 200:
        wrong.append((path, status, text[:300]))
        return True
    return False


def whole(path, body, text_of, expected):
    status, text, complete = ask(path, body)
    if not complete:
        count('broken')
    elif not refused(path, status, text):
        if expected is None or text_of(json.loads(text)) == expected:
            count('right')
        else:
            wrong.append((path, text[:600]))


def streamed(path, body, delta_of, ends, expected):
    status, text, complete = ask(path, {**body, 'stream': True})
    if refused(path, status, text) if complete else status != 200:
        return
    events = [json.loads(line[6:]) for line in text.decode(errors='replace').split('\n') if line.startswith('data: {')
            and line.endswith('}')]
    got = ''.join(delta_of(e) for e in events)
    if complete and ends(text):
        if got == expected:
            count('right')
        else:
            wrong.append((path, 'stream', got, text[-600:]))
    else:
        count('broken')
        if expected.startswith(got) and (not complete
                or any('error' in str(e.get('type', '')) or e.get('error') or 'failed' in e.get('type', '') for e in events)):
            return
        wrong.append((path, 'a stream without end or error, or with another text', got, text[-600:]))


def socket_chat():
    w = wire.WebSocket(port, b'/ws/chat')
    try:
        if w.code != 101:
            count('refused' if w.code else 'broken')
            return
        w.send(json.dumps(CHAT).encode())
        text, m = '', {'type': 'token', 'content': ''}
        while m['type'] == 'token':
            text += m['content']
            if not ANSWER.startswith(text):
                wrong.append(('/ws/chat', text, m))
            opcode, data = w.receive()
            if opcode == 8:
                count('broken')
                return
            m = json.loads(data)
        if m['type'] == 'done' and not m['full_response'] == text == ANSWER:
            wrong.append(('/ws/chat', text, m))
        count('right' if m['type'] == 'done' else 'refused')
    finally:
        w.close()


CHAT = {'temperature': 0, 'messages': [{'role': 'user', 'content': QUESTION}]}
RESPONSE, MESSAGE = {'temperature': 0, 'input': QUESTION}, {**CHAT, 'max_tokens': 50, 'model': 'default'}
PROMPT = {'temperature': 0, 'prompt': 'The capital of France', 'max_tokens': 8, 'logprobs': 2}
chat_text = lambda r: r['choices'][0]['message']['content']
chat_delta = lambda e: e['choices'][0]['delta'].get('content') or '' if e.get('choices') else ''


def works(completion):
    return [lambda: whole('/v1/chat/completions', CHAT, chat_text, ANSWER),
            lambda: streamed('/v1/chat/completions', CHAT, chat_delta, lambda t: t.endswith(b'data: [DONE]\n\n'), ANSWER),
            lambda: whole('/v1/chat/completions', {**CHAT, 'logprobs': True, 'top_logprobs': 2, 'n': 2}, chat_text, ANSWER),
            lambda: whole('/v1/chat/completions', {**CHAT, 'tools': TOOLS, 'max_tokens': 20}, None, None),
            lambda: whole('/v1/chat/completions', {**CHAT, 'response_format': {'type': 'json_object'}, 'max_tokens': 20}, None, None),
            lambda: whole('/v1/completions', PROMPT, lambda r: r['choices'][0], completion),
            lambda: whole('/v1/responses', RESPONSE, lambda r: r['output'][0]['content'][0]['text'], ANSWER),
            lambda: streamed('/v1/responses', RESPONSE, lambda e: e['delta'] if e['type'] == 'response.output_text.delta' else '', lambda t: b'event: response.completed' in t, ANSWER),
            lambda: whole('/v1/messages', MESSAGE, lambda r: r['content'][0]['text'], ANSWER),
            lambda: streamed('/v1/messages', MESSAGE, lambda e: e['delta'].get('text', '') if e['type'] == 'content_block_delta' else '', lambda t: b'event: message_stop' in t,
            ANSWER),
            lambda: whole('/v1/embeddings', {'input': ['one', 'two']}, lambda r: len(r['data']), 2),
            lambda: whole('/apply-template', {'messages': CHAT['messages']}, lambda r: QUESTION in r['prompt'], True),
            lambda: whole('/tokenize', {'content': QUESTION}, lambda r: r['count'] > 1, True),
            lambda: [whole(p, None, None, None) for p in ('/metrics', '/health', '/api/stats', '/api/stats/models', '/api/analytics/timeseries', '/api/batching', '/openapi.json', '/')],
            lambda: [whole('/api/chat/conversations', {'title': 'words'}, lambda r: r['title'], 'words'), whole('/api/chat/search?q=words', None, None, None)],
            lambda: [whole(p, None, None, None) for p in ('/api/chat/conversations', '/api/chat/stats')],
            socket_chat]


def repeat(seed, all_of_them):
    rnd = random.Random(seed)
    while not stop.is_set() and not wrong:
        try:
            rnd.choice(all_of_them)()
        except TimeoutError:                # an OSError, too: first
            wrong.append('no answer in time')
        except BROKEN:
            count('broken')
        except Exception as e:
            wrong.append(repr(e))


def settled():
    m = json.loads(ask('/api/stats/models')[1])['models']
    return len(m) == 1 and m[0]['running'] + m[0]['waiting'] + m[0]['open_requests'] == 0 and m[0]['kv_blocks_free'] + m[0]['kv_blocks_prefix'] == m[0]['kv_blocks']


stop = threading.Event()
all_of_them = works(json.loads(ask('/v1/completions', PROMPT)[1])['choices'][0])
os.kill(pid, signal.SIGUSR2)
threads = [threading.Thread(target=repeat, args=(i, all_of_them), daemon=True) for i in range(6)]
for t in threads:
    t.start()
limit = time.monotonic() + seconds
while not wrong and os.path.exists(f"/proc/{pid}") and (time.monotonic() < limit
        or any(counts.get(what, 0) < 20 for what in ('right', 'refused', 'broken'))):
    time.sleep(.05)
stop.set()
for t in threads:
    t.join()
os.kill(pid, signal.SIGUSR2)
print(counts)
if wrong:
    sys.exit(f'wrong: {wrong[:3]}')
limit = time.monotonic() + 120
while not settled():
    if time.monotonic() > limit:
        sys.exit(f'blocks or requests are left: {ask("/api/stats/models")[1]}')
    time.sleep(.05)
for work in all_of_them:
    before = counts.get('right', 0)
    work()
    if wrong or counts.get('right', 0) == before:
        sys.exit(f'afterwards: {wrong[:1]} {refusal[0]} {counts}')
