#!/usr/bin/env python3
"""protocol - HTTP and WebSocket against a zse-serve with models/tiny, byte by byte: mistakes and
malice of clients.

usage: protocol PORT
One line `ok NAME` or `not ok NAME: why` for each check; exit 1 if any failed."""
import json, random, re, socket, struct, sys, time, urllib.request

import wire
from wire import response

port = int(sys.argv[1])
failed = 0
CHAT = {'temperature': 0, 'messages': [{'role': 'user', 'content': 'What is 2+2?'}]}
LONG = {'prompt': 'Once', 'temperature': 0, 'max_tokens': 1500, 'ignore_eos': True, 'stream': True}


def connect():
    return wire.connect(port)


def get(path):
    return json.load(urllib.request.urlopen(f'http://127.0.0.1:{port}{path}', timeout=120))


def post(path, body, *fields):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f'POST {path} HTTP/1.1', 'Host: localhost', f'Content-Length: {len(data)}', *fields]
    return '\r\n'.join(head).encode() + b'\r\n\r\n' + data


def send(data, head=False):
    with connect() as s:
        s.sendall(data)
        return response(s.makefile('rb'), head)


def status(data):
    return send(data)[0]


def until(condition, seconds=120):
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, 'it did not come to pass'
        time.sleep(0.02)


def idle():
    return all(m['running'] + m['waiting'] + m['open_requests'] == 0 and m['kv_blocks_free'] + m['kv_blocks_prefix'] == m['kv_blocks']
               for m in get('/api/stats/models')['models'])


def ended(how):
    return sum(e[how] for e in get('/api/batching')['engines'].values())


def is_cut_off(leave):
    """Check that a client which leaves has its request cancelled, and that nothing of it is left.
    This is tried 20 times, because on a busy machine an answer may be complete before its client
    can leave."""
    for _ in range(20):
        before = ended('cancelled')
        leave()
        until(idle)
        if ended('cancelled') > before:
            return
    raise AssertionError('no request was cut off')


def check(test):
    global failed
    try:
        test()
        print('ok', test.__name__, flush=True)
    except Exception as e:
        failed = 1
        print(f'not ok {test.__name__}: {type(e).__name__}: {e}', flush=True)


# One connection never ends its head, the other never sends its body.  The end of this program
# checks that both got status 408.
began = time.monotonic()
slow_head, slow_body = connect(), connect()
slow_head.sendall(b'GET /health HTTP/1.1\r\nHost: loc')
slow_body.sendall(b'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{')


@check
def keep_alive_and_pipelining():
    with connect() as s:
        s.sendall(b'GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n' + post('/v1/chat/completions', CHAT) + b'GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n')
        f = s.makefile('rb')
        assert response(f)[0] == 200
        assert json.loads(response(f)[2])['choices'][0]['message']['content'] == '2 + 2 = 4'
        assert json.loads(response(f)[2])['object'] == 'list'
        s.sendall(b'GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n')
        code, fields, _ = response(f)
        assert code == 200 and fields['connection'] == 'close' and f.read() == b''


@check
def who_sends_much_ahead_holds_up_nobody():
    request, n = b'GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n', 1000

    def answered_before_another():
        with connect() as ahead, connect() as s:
            ahead.sendall(request * n)
            got = ahead.recv(100)               # it is being answered
            s.sendall(request)
            response(s.makefile('rb'))
            ahead.setblocking(False)
            try:
                while (more := ahead.recv(1 << 20)):
                    got += more
            except BlockingIOError:
                pass
            return got.count(b'HTTP/1.1 200')
    counts = []
    for _ in range(5):                          # a busy machine may run this program late
        counts.append(answered_before_another())
        if counts[-1] < n:
            return
    raise AssertionError(f'{counts} of {n} requests sent ahead were answered before that of another client')


@check
def http_1_0():
    with connect() as s:
        s.sendall(b'GET /health HTTP/1.0\r\n\r\n')
        f = s.makefile('rb')
        assert response(f)[0] == 200 and f.read() == b''
    with connect() as s:                # a stream ends with the connection
        s.sendall(post('/v1/chat/completions', {**CHAT, 'stream': True}).replace(b'HTTP/1.1', b'HTTP/1.0'))
        assert s.makefile('rb').read().endswith(b'data: [DONE]\n\n')


@check
def chunked_bodies():
    body = json.dumps(CHAT).encode()
    pieces = b''.join(b'%x;ext=1\r\n%s\r\n' % (len(body[i:i + 7]), body[i:i + 7]) for i in range(0, len(body), 7)) + b'0\r\nTrailer: x\r\n\r\n'
    head = b'POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n'
    with connect() as s:
        for i in range(0, len(head + pieces), 50):
            s.sendall((head + pieces)[i:i + 50])
        assert json.loads(response(s.makefile('rb'))[2])['choices'][0]['message']['content'] == '2 + 2 = 4'
    assert status(head + b'5\r\nabcdefg\r\n') == 400
    assert status(head + b'xyz\r\n') == 400
    assert status(head + b'fffffffffffff\r\n') == 413


@check
def expect_continue():
    with connect() as s:
        data = post('/tokenize', {'content': 'a'}, 'Expect: 100-continue')
        cut = data.index(b'\r\n\r\n') + 4
        s.sendall(data[:cut])
        f = s.makefile('rb')
        assert f.readline() == b'HTTP/1.1 100 Continue\r\n' and f.readline() == b'\r\n'
        s.sendall(data[cut:])
        assert response(f)[0] == 200
    assert status(post('/tokenize', {}, 'Expect: miracles')) == 417


@check
def methods():
    code, fields, body = send(b'HEAD /health HTTP/1.1\r\nHost: localhost\r\n\r\n', head=True)
    assert code == 200 and int(fields['content-length']) > 0 and body == b''
    code, fields, _ = send(b'OPTIONS /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n')
    assert code == 204 and fields['allow'] == 'GET, HEAD'
    code, fields, _ = send(b'DELETE /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n\r\n')
    assert code == 405 and fields['allow'] == 'POST'
    assert status(b'GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n') == 404
    assert send(b'GET /v1/models/%74iny?x=1 HTTP/1.1\r\nHost: localhost\r\n\r\n')[0] == 200


@check
def broken_heads():
    get = b'GET /health HTTP/1.1\r\n'
    for data, code in ((get + b'\r\n', 400), (get + b'Host: a\r\nHost: b\r\n\r\n', 400), (get + b'Host : a\r\n\r\n', 400), (get + b'Host: a\r\n b\r\n\r\n', 400),
                       (get + b'Host: a\r\nX: a\x01b\r\n\r\n', 400), (get + b'Host: a\r\nX: \x00\r\n\r\n', 400), (b'GET /health HTTP/1.1\nHost: a\n\n', 400),
                       (b'GET  /health HTTP/1.1\r\nHost: a\r\n\r\n', 400), (b'GET /%zz HTTP/1.1\r\nHost: a\r\n\r\n', 400), (b'GET /%00 HTTP/1.1\r\nHost: a\r\n\r\n', 400),
                       (b'GET /health HTTP/2.0\r\nHost: a\r\n\r\n', 505), (b'\x16\x03\x01\x02\x00\x01\r\n\r\n', 400), (b'G@T / HTTP/1.1\r\nHost: a\r\n\r\n', 400),
                       (get + b'Host: localhost\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n', 400), (get + b'Host: a\r\nContent-Length: -1\r\n\r\n', 400),
                       (get + b'Host: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n', 400), (get + b'Host: a\r\nTransfer-Encoding: gzip\r\n\r\n', 501),
                       (get + b'Host: a\r\nContent-Encoding: gzip\r\n\r\n', 415), (get + b'Host: a\r\nContent-Length: 99999999999999999999\r\n\r\n', 413),
                       (get + b'Host: a\r\nX: ' + b'a' * 20000 + b'\r\n\r\n', 431), (get + b'Host: a\r\n' + b'X: a\r\n' * 101 + b'\r\n', 431),
                       (b'GET /' + b'a' * 20000 + b' HTTP/1.1\r\nHost: a\r\n\r\n', 431)):
        got = status(data)
        assert got == code, (data[:60], got, code)


@check
def hosts_and_origins():
    assert status(b'GET /health HTTP/1.1\r\nHost: evil.example:80\r\n\r\n') == 421
    assert status(b'GET /health HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n') == 200
    assert status(post('/v1/chat/completions', CHAT, 'Origin: https://evil.example')) == 403
    assert status(post('/v1/chat/completions', CHAT, 'Origin: http://localhost')) == 200
    code, fields, _ = send(b'OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\nAccess-Control-Request-Method: POST\r\n\r\n')
    assert code == 403 and 'access-control-allow-origin' not in fields


@check
def request_ids():
    def id_of(data):
        return send(data)[1]['x-request-id']
    for good in ('mine-1', 'A.b_c:9-' * 16):
        assert id_of(f'GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {good}\r\n\r\n'.encode()) == good
    for bad in ('not <this>', 'a' * 129, 'a/1', 'zse-' + 'A' * 43):
        assert re.fullmatch('[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', id_of(f'GET /health HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {bad}\r\n\r\n'.encode()))
    assert id_of(b'GET /none HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: e-404\r\n\r\n') == 'e-404'
    assert id_of(b'GET / HTTP/9.9\r\nHost: localhost\r\n\r\n') != id_of(b'no request\r\n\r\n')


@check
def broken_bodies():
    for body in (b'', b'{', b'[]', b'"x"', b'{"prompt": "\xff\xfe"}', b'{"prompt": NaN}', b'{"prompt":"a","temperature":1e999}', b'{"prompt":"a","prompt":"b"}',
                 b'{"prompt":"a","temperature":"hot"}', b'{"prompt":["a",1]}', b'{"prompt":[1,"a"]}', b'{"prompt":[99999999]}', b'{"prompt":[-1]}', b'{"prompt":[]}',
                 b'{"prompt":"a","max_tokens":1.5}', b'{"prompt":"a","stop":[""]}', b'{"prompt":"a","logit_bias":{"x":1}}', b'{"prompt":"a","logit_bias":{"5":1000}}',
                 b'{"prompt":"a","model":5}', b'{"prompt":"a","seed":1e300}', b'[' * 100000, b'{"prompt":' + b'[' * 5000 + b']' * 5000 + b'}'):
        code, _, answer = send(post('/v1/completions', body))
        assert code == 400, (body[:60], code, answer)
        assert json.loads(answer)['error']['message'] == json.loads(answer)['detail']
    # the ids "5", "05" and "005" are the same token, so there are more members than tokens
    code, _, answer = send(post('/v1/completions', {'prompt': 'a', 'logit_bias': {'0' * (i // 500) + str(i % 500): 1 for i in range(5000)}}))
    assert code == 400 and 'members' in json.loads(answer)['detail'], answer
    assert status(post('/v1/completions', b'x' * 17_000_000)) == 413
    code, _, answer = send(post('/v1/completions', {'prompt': 'x' * 3_000_000}))        # large, but not too large: through the other thread
    assert code == 400 and json.loads(answer)['error']['code'] == 'context_length_exceeded', answer
    rnd = random.Random(1)
    good = json.dumps({**CHAT, 'max_tokens': 2}).encode()
    for _ in range(300):
        data = bytearray(good)
        for _ in range(rnd.randrange(1, 4)):
            data[rnd.randrange(len(data))] = rnd.randrange(256)
        assert status(post('/v1/chat/completions', bytes(data))) in (200, 400, 404), data


@check
def gone_in_mid_stream():
    def leave(how):
        with connect() as s:
            s.sendall(post('/v1/completions', LONG))
            got = b''
            while b'data: ' not in got:
                got += (piece := s.recv(4096))
                assert piece, got
            if how == 'half':
                s.shutdown(socket.SHUT_WR)
                while s.recv(65536):
                    pass
            if how == 'reset':
                s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack('ii', 1, 0))

    def leave_before_anything_was_written():
        before = ended('completed')
        with connect() as s:
            s.sendall(post('/v1/completions', {**LONG, 'stream': False}))
            until(lambda: get('/api/stats')['active_requests'] == 1 or ended('completed') > before)

    is_cut_off(lambda: leave('close'))
    is_cut_off(lambda: leave('reset'))
    leave('half')
    until(idle)
    is_cut_off(leave_before_anything_was_written)


@check
def a_client_that_does_not_read():
    before = get('/api/analytics')['total_requests']
    with connect() as s:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.sendall(post('/v1/completions', {**LONG, 'max_tokens': 500}))
        until(lambda: get('/api/analytics')['total_requests'] == before + 1)         # the answer was computed to its end although its reader was slow
        f = s.makefile('rb')
        code, _, body = response(f)
        assert code == 200 and body.endswith(b'data: [DONE]\n\n')


@check
def two_hundred_connections():
    all_of_them = [connect() for _ in range(200)]
    for s in all_of_them:
        s.sendall(post('/v1/chat/completions', CHAT))
    for s in all_of_them:
        code, _, body = response(s.makefile('rb'))
        assert code == 200 and json.loads(body)['choices'][0]['message']['content'] == '2 + 2 = 4', body
    for s in all_of_them:
        s.close()
    until(idle)


def WebSocket(path, *key):
    return wire.WebSocket(port, path, *key)


@check
def websocket_chat():
    w = WebSocket(b'/ws/chat')
    assert w.code == 101 and w.fields['sec-websocket-accept'] == 's3pPLMBiTxaQ9kYGzzhZRbK+xOo='     # the example of RFC 6455, 1.3
    for _ in range(2):
        data = json.dumps({**CHAT, 'model': 'default'}).encode()
        w.send(data[:10], fin=False)
        w.send(b'are you there', opcode=9)
        w.send(data[10:], opcode=0)
        assert w.receive() == (10, b'are you there')
        text = ''
        while (m := json.loads(w.receive()[1]))['type'] == 'token':
            text += m['content']
        assert m['type'] == 'done' and m['full_response'] == text == '2 + 2 = 4' and m['tokens'] == 8, m
    w.send(b'{"messages":[]}')
    m = json.loads(w.receive()[1])
    assert m['type'] == 'error' and m['status'] == 400
    w.send(struct.pack('>H', 1000), opcode=8)
    assert w.receive() == (8, struct.pack('>H', 1000)) and w.f.read() == b''


@check
def websocket_tools():
    w = WebSocket(b'/ws/chat')
    ask = {'temperature': 0, 'max_tokens': 200, 'tool_choice': 'required', 'parallel_tool_calls': False,
           'messages': [{'role': 'user', 'content': 'What time is it?'}]}

    def answer(**more):
        w.send(json.dumps({**ask, **more}).encode())
        messages = [json.loads(w.receive()[1])]
        while messages[-1]['type'] not in ('done', 'error'):
            messages.append(json.loads(w.receive()[1]))
        return messages

    m = answer(server_tools=['datetime'])
    events = [e['tool_event'] for e in m if e['type'] == 'tool_event']
    assert [(e['type'], e['name'], e['round']) for e in events] == [('call', 'datetime', 1), ('result', 'datetime', 1)], m
    assert events[0]['id'] == events[1]['id'] and not events[1]['is_error'] and events[1]['content'].startswith('20')
    assert m[-1]['full_response'] == ''.join(e['content'] for e in m if e['type'] == 'token') != '', m
    assert m[-1]['finish_reason'] == 'stop' and 'tool_calls' not in m[-1] and m[-1]['tokens'] == m[-1]['usage']['completion_tokens']
    m = answer(server_tools=['datetime'], max_tool_rounds=1)
    assert m[-1]['finish_reason'] == 'tool_calls' and m[-1]['tool_stop'] == {'reason': 'max_rounds', 'ids': [m[-1]['tool_calls'][0]['id']]}, m
    m = answer(tools=[{'type': 'function', 'function': {'name': 'mine', 'parameters': {'type': 'object', 'properties': {}, 'additionalProperties': False}}}])
    assert [c['function'] for c in m[-1]['tool_calls']] == [{'name': 'mine', 'arguments': '{}'}] and 'tool_stop' not in m[-1], m
    assert answer(server_tools=['eval'])[-1]['status'] == 400


@check
def websocket_completions():
    w = WebSocket(b'/ws/completions')

    def answer(**body):
        w.send(json.dumps(body).encode())
        messages = [w.receive()[1].decode()]
        while messages[-1] != '[DONE]' and not messages[-1].startswith('{"type":"error"'):
            messages.append(w.receive()[1].decode())
        return messages

    for _ in range(2):                  # the same objects as in the stream over HTTP
        m = answer(**CHAT, stream_options={'include_usage': True})
        events = [json.loads(x) for x in m[:-1]]
        assert m[-1] == '[DONE]' and {e['object'] for e in events} == {'chat.completion.chunk'}, m
        assert ''.join(e['choices'][0]['delta'].get('content', '') for e in events[:-1]) == '2 + 2 = 4', m
        assert events[-2]['choices'][0]['finish_reason'] == 'stop' and events[-1]['usage']['completion_tokens'] == 8, m
    m = answer(messages=[])
    assert json.loads(m[-1])['error']['param'] == 'messages', m
    m = answer(**{**CHAT, 'rag': {'collections': 'none'}})
    assert json.loads(m[-1])['error']['code'] == 'no_such_collection', m
    assert answer(**CHAT)[-1] == '[DONE]'


@check
def websocket_rules():
    for opcode, data, code in ((2, b'x', 1003), (3, b'', 1002), (0, b'x', 1002), (1, b'\xff', 1007)):
        w = WebSocket(b'/ws/chat')
        w.send(data, opcode=opcode)
        assert w.receive() == (8, struct.pack('>H', code)), opcode
    w = WebSocket(b'/ws/chat')
    w.s.sendall(b'\x81\x01x')           # not masked
    assert w.receive() == (8, struct.pack('>H', 1002))
    assert WebSocket(b'/ws/chat', b'short').code == 426
    assert status(b'GET /ws/chat HTTP/1.1\r\nHost: localhost\r\n\r\n') == 426

    def leave():
        w = WebSocket(b'/ws/chat')
        w.send(json.dumps({'messages': CHAT['messages'], 'max_tokens': 1500, 'ignore_eos': True}).encode())
        w.receive()
        w.s.close()
        w.f.close()
    is_cut_off(leave)


@check
def websocket_stats():
    w = WebSocket(b'/ws/stats')
    for _ in range(2):
        m = json.loads(w.receive()[1])
        assert m['type'] == 'stats' and m['system']['models_loaded'] and 'total_requests' in m['analytics']


@check
def slow_clients_are_told_and_dropped():
    slow_head.settimeout(120)
    assert response(slow_head.makefile('rb'))[0] == 408
    slow_body.settimeout(120)
    assert response(slow_body.makefile('rb'))[0] == 408
    assert time.monotonic() - began > 9


sys.exit(failed)
