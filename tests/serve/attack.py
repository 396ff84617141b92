#!/usr/bin/env python3
"""attack - attacks on zse-serve: without a key, with the key of another client, with too many
requests, with malformed ones, with the files of other users.

usage: attack [NAME...]        (default: every attempt)
The programs are those in $B or build/, the model is made from models/tiny.  It starts servers of
its own on free ports, with a ZSE_HOME of their own.  One line for each attempt: `held NAME: the
attempt, the answer`, or `BROKEN NAME: ...`; then `N held, N broken`.  Exit 1 if any is broken."""
import concurrent.futures, contextlib, csv, glob, http.client, json, multiprocessing, os, pathlib, re, resource, shutil
import signal, socket, sqlite3, ssl, statistics, struct, subprocess, sys, tempfile, threading, time

import wire

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = ROOT / os.environ.get('B', 'build')
T = pathlib.Path(tempfile.mkdtemp(prefix='zse-attack-'))
TINY = T / 'models' / 'tiny.zse'
PROMPT = 'xyzzyplugh'                   # must appear in no log and no statistic
LONG = {'prompt': 'Once', 'temperature': 0, 'max_tokens': 1900, 'ignore_eos': True, 'stream': True}
SHORT = {'prompt': 'Once', 'temperature': 0, 'max_tokens': 2}
attempts, servers, secrets = [], [], []
counts = {'held': 0, 'BROKEN': 0}
# factors of the limits for time and for memory: a build with sanitizers needs more of both
SLOW, FAT = (10, 6) if os.environ.get('ZSE_SANITIZED') else (1, 1)


class Broken(Exception):
    pass


def expect(condition, what):
    if not condition:
        raise Broken(what)


def attempt(f):
    attempts.append(f)
    return f


def until(condition, seconds=60):
    limit = time.monotonic() + seconds * SLOW
    while not (x := condition()):
        if time.monotonic() > limit:
            return x
        time.sleep(.02)
    return x


def program(name, *args, home, code=0, text=None):
    p = subprocess.run([BUILD / name, *map(str, args)], env={**os.environ, 'ZSE_HOME': str(home)}, input=text,
            capture_output=True, text=True, timeout=60 * SLOW)
    expect(code is None or p.returncode == code, f'{name} {" ".join(map(str, args))}: exit {p.returncode}: {p.stderr[-300:]}')
    return p


def new_home():
    return pathlib.Path(tempfile.mkdtemp(prefix='home-', dir=T))


def make_key(home, name, *options):
    key = program('zse-apikey', 'create', name, *options, home=home).stdout.strip()
    secrets.append(key)
    return key


class Server:
    """A zse-serve.  home: a folder that already has its keys; None: an empty one."""

    def __init__(self, *args, home=None, model=True, cwd=None, core=None, env=None):
        self.home = home or new_home()
        self.drain = float(args[args.index('--drain') + 1]) if '--drain' in args else 30
        self.err = open(self.home.parent / (self.home.name + '.err'), 'a+')
        limit = (lambda: resource.setrlimit(resource.RLIMIT_CORE, (core, core))) if core is not None else None
        self.p = subprocess.Popen([BUILD / 'zse-serve', '--port', '0', '--threads', '2', *([TINY] if model else []), *map(str, args)],
                cwd=cwd, preexec_fn=limit,
                                  env={**os.environ, 'ZSE_HOME': str(self.home), **(env or {})}, stdout=subprocess.PIPE,
                                  stderr=self.err, text=True)
        line = self.p.stdout.readline()
        expect(line.startswith('listening on '), f'the server does not start: {self.said()[-300:]}')
        self.port = int(line.rsplit(':', 1)[1])
        servers.append(self)
        if model:
            expect(until(lambda: self.status('/health') == 200), f'the model is not there: {self.said()[-300:]}')
        self.token = (self.home / 'admin.token').read_text().strip() if (self.home / 'admin.token').is_file() else None
        if self.token:
            secrets.append(self.token)

    def said(self):
        self.err.seek(0)
        return self.err.read()

    def ask(self, path, body=None, key=None, method=None, fields=(), timeout=60, source=None):
        """Send a request; returns status, header fields and body (parsed if it is JSON).  source:
        an address of 127.0.0.0/8, so that the request is another client's."""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        c = http.client.HTTPConnection('127.0.0.1', self.port, timeout=timeout * SLOW, source_address=source and (source, 0))
        try:
            c.putrequest(method or ('GET' if data is None else 'POST'), path, skip_accept_encoding=True)
            for k, v in [*([('Authorization', 'Bearer ' + key)] if key else []),
                    *([('Content-Length', str(len(data)))] if data is not None else []), *fields]:
                c.putheader(k, v)
            c.endheaders(data)
            r = c.getresponse()
            text = r.read().decode(errors='replace')
            try:
                return r.status, r.headers, json.loads(text)
            except ValueError:
                return r.status, r.headers, text
        finally:
            c.close()

    def status(self, *args, **kw):
        return self.ask(*args, **kw)[0]

    def raw(self, data, timeout=20):
        """Send these bytes; returns the statuses of all answers until the connection ends, and a 0
        if it is not closed."""
        out = []
        with wire.connect(self.port) as s, contextlib.suppress(ConnectionError):
            s.settimeout(timeout)
            s.sendall(data)
            s.settimeout(1.5)
            f = s.makefile('rb')
            try:
                while (r := wire.response(f))[0]:
                    out.append(r[0])
            except TimeoutError:
                out.append(0)
        return out

    def open(self, data, receive=None, source=None):
        s = socket.socket()
        s.settimeout(60 * SLOW)
        if source:
            s.bind((source, 0))
        if receive:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        s.connect(('127.0.0.1', self.port))
        s.sendall(data)
        return s

    def lives(self, what=''):
        """Check that the server runs and answers /health soon."""
        began = time.monotonic()
        expect(self.p.poll() is None, f'{what}: the server has ended with {self.p.returncode}: {self.said()[-300:]}')
        expect(self.status('/health') == 200, f'{what}: it is not well')
        seconds = time.monotonic() - began
        expect(seconds < 3 * SLOW, f'{what}: /health took {seconds:.1f} s')
        return f'{seconds * 1000:.0f} ms'

    def rss(self, what='VmRSS'):
        text = pathlib.Path(f'/proc/{self.p.pid}/status').read_text()
        return int(re.search(what + r':\s+(\d+)', text)[1]) / 1024          # MB

    def log(self):
        """All lines of the current files of both audit logs, of requests and of anonymous
        requests."""
        return log_of(self.home, 'requests') + log_of(self.home, 'anonymous')

    def stop(self, how=signal.SIGTERM):
        """End the server.  After SIGTERM it must exit with 0, not much later than --drain allows.
        Returns the seconds that it took."""
        expect(self.p.poll() is None, f'the server has ended with {self.p.returncode}: {self.said()[-300:]}')
        began = time.monotonic()
        self.p.send_signal(how)
        try:
            code = self.p.wait(self.drain + 60 * SLOW)
        finally:
            servers.remove(self)
        seconds = time.monotonic() - began
        if how == signal.SIGTERM:
            expect(code == 0, f'SIGTERM ends the server with {code}: {self.said()[-300:]}')
            expect(seconds < self.drain + 5 * SLOW, f'SIGTERM ends the server after {seconds:.1f} s, --drain {self.drain}')
        return seconds


def log_of(home, chain):
    with contextlib.suppress(FileNotFoundError):
        return [json.loads(line) for line in (home / 'audit' / f'{chain}.jsonl').read_text().split('\n') if line.endswith('}')]
    return []


def request(path, body=None, key=None, method=None, fields=()):
    data = b'' if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    head = [f'{method or ("POST" if body is not None else "GET")} {path} HTTP/1.1', 'Host: localhost', *fields, *([f'Authorization: Bearer {key}'] if key else []),
            *([f'Content-Length: {len(data)}'] if body is not None else [])]
    return '\r\n'.join(head).encode('latin-1') + b'\r\n\r\n' + data


def many(n, f):
    with concurrent.futures.ThreadPoolExecutor(n) as pool:
        return list(pool.map(f, range(n)))


def refuses(home, *args):
    """Check that the server refuses to start: it exits at once, with status 1 and a message."""
    try:
        p = subprocess.run([BUILD / 'zse-serve', '--port', '0', *map(str, args)], env={**os.environ, 'ZSE_HOME': str(home)},
                capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired as e:
        raise Broken(f'{args}: it serves') from e
    expect(p.returncode == 1 and not p.stdout, f'{args}: exit {p.returncode}, {p.stdout}{p.stderr[-200:]}')
    return p.stderr.strip().splitlines()[-1][:160]


# ---- the server with keys that most of the following attempts use ----

class Guarded:
    """One server for many attempts, started for the first of them."""
    made = None

    @classmethod
    def get(cls):
        if not cls.made:
            home = new_home()
            keys = {name: make_key(home, name, *options) for name, options in (
                ('user', ()), ('second', ()), ('admin', ('--scope', 'admin')), ('chat', ('--scope', 'chat')), ('embed', ('--scope', 'embeddings')), ('models', ('--scope', 'models')),
                ('elsewhere', ('--scope', 'chat,embeddings,models', '--model', 'other*')), ('five', ('--rate-limit', '5')), ('tokens', ('--token-limit', '60')))}
            cls.made = Server('--model-dir', T / 'models', '--max-seqs', '4', '--max-connections', '2000', home=home)
            cls.made.keys = keys
            for key in keys.values():           # a key used once is exempt from the limit on wrong keys
                cls.made.status('/v1/models', key=key)
            program('zse-apikey', 'reset', 'five', home=home)
        return cls.made


# ---- the start ----

@attempt
def listens_beyond_without_keys():
    "--host 0.0.0.0, :: and --trust-proxy without keys, and with keys that are not required; keys switched off behind a proxy afterwards"
    home = new_home()
    said = [refuses(home, '--host', host) for host in ('0.0.0.0', '::', '127.0.0.1,0.0.0.0')[:2]]
    make_key(home, 'a')
    program('zse-apikey', 'disable', home=home)
    refuses(home, '--host', '0.0.0.0')
    refuses(home, '--trust-proxy')
    program('zse-apikey', 'enable', home=home)
    s = Server('--trust-proxy', home=home, model=False)
    program('zse-apikey', 'disable', home=home)
    time.sleep(.4)
    code = s.status('/v1/models', fields=[('X-Forwarded-For', '203.0.113.9')])
    s.stop()
    expect(code == 401, f'behind the proxy, keys switched off: {code}')
    return said[0]


@attempt
def a_file_of_keys_of_others():
    "keys.db with modes 644, 620 and 602, as a symbolic link, as a folder, as a FIFO"
    said = []
    for mode in (0o644, 0o620, 0o602):
        home = new_home()
        make_key(home, 'a')
        (home / 'keys.db').chmod(mode)
        said.append(refuses(home))
    (home / 'keys.db').chmod(0o600)
    (home / 'keys.db').rename(home / 'elsewhere.db')
    (home / 'keys.db').symlink_to(home / 'elsewhere.db')
    refuses(home)
    (home / 'keys.db').unlink()
    (home / 'keys.db').mkdir()
    refuses(home)
    (home / 'keys.db').rmdir()
    os.mkfifo(home / 'keys.db', 0o600)
    refuses(home)
    return said[0]


@attempt
def somebody_elses_file_of_keys():
    "keys.db that another user made and owns, with mode 600"
    if os.getuid() != 0:
        return 'only root can try this'
    home = new_home()
    make_key(home, 'a')
    os.chown(home / 'keys.db', 65534, 65534)
    return refuses(home)


@attempt
def an_administrators_token_of_others():
    "admin.token readable by others, of another user, empty, short, with a zero byte first, a link to a file of others"
    for what in ('readable', 'owned', 'empty', 'short', 'zero', 'link'):
        home = new_home()
        token = home / 'admin.token'
        target = T / 'target.token' if what == 'link' else token
        target.write_bytes(b'' if what == 'empty' else b'short\n' if what == 'short' else b'\0' + b'a' * 40 if what == 'zero' else b'0123456789abcdef0123456789abcdef\n')
        target.chmod(0o644 if what in ('readable', 'link') else 0o600)
        if what == 'link':
            token.symlink_to(target)
        if what == 'owned':
            if os.getuid() != 0:
                continue
            os.chown(token, 65534, 65534)
        s = Server(home=home, model=False)
        for given in (target.read_bytes().strip().split(b'\0')[0].decode(), '', 'short'):
            code = s.status('/api/keys', key=given or None, fields=[('X-API-Key', '')] if not given else [])
            expect(code == 401, f'{what}: the token "{given}" gives {code}')
        expect('no administration over HTTP' in s.said(), f'{what}: nothing was said: {s.said()}')
        s.stop()
    return '401 each time, and "no administration over HTTP"'


# ---- without a key ----

@attempt
def every_route_without_a_key():
    "each path and method of /openapi.json without a key, and with an empty one"
    s = Guarded.get()
    codes = {}
    for path, methods in s.ask('/openapi.json')[2]['paths'].items():
        for method in methods:
            for fields in ((), (('Authorization', 'Bearer '),), (('X-API-Key', ''),)):
                code = s.status(re.sub(r'\{.*?\}', 'tiny', path), b'{}' if method == 'post' else None, method=method.upper(),
                        fields=fields)
                codes.setdefault(code, set()).add(path)
    expect(codes.get(200, set()) <= {'/', '/chat', '/dashboard', '/models', '/keys', '/audit', '/docs', '/health', '/livez', '/openapi.json', '/api/whoami', '/api/version'} and set(codes) <= {200, 401, 429}, f'{ {k: sorted(v) for k, v in codes.items()} }')
    return f'200 for pages without figures, versions, /health and /openapi.json, else {sorted(set(codes) - {200})}'


def near(key):
    flipped = key[:20] + chr(ord(key[20]) ^ 1) + key[21:]
    return {'another case': key.swapcase(), 'without zse-': key[4:], 'cut': key[:-1], 'one bit': flipped, 'a byte more': key + 'A', 'blanks inside': key[:9] + ' ' + key[9:],
            'twice': key + key, 'twice with a comma': key + ',' + key, 'quoted': f'"{key}"', 'escaped': key.replace('-', '%2d', 1),
            'its hash': __import__('hashlib').sha256(key.encode()).hexdigest(),
            'a wildcard': 'zse-*', 'SQL': "' OR '1'='1", 'of another script': key.replace('a', '\xe0') + '\xe9', 'very long': key * 200}


@attempt
def keys_that_are_nearly_right():
    "15 forms of a key, by Bearer and X-API-Key; a zero byte inside; six other schemes; the key in Cookie, Proxy-Authorization, the user part of the target"
    home = new_home()
    key = make_key(home, 'a')
    s = Server('--trust-proxy', home=home)              # each from another address: no limit on guesses applies
    n = 0
    for what, text in near(key).items():
        for k, v in (('Authorization', 'Bearer ' + text), ('X-API-Key', text)):
            n += 1
            code = s.raw(request('/v1/models', fields=[f'{k}: {v}', f'X-Forwarded-For: 10.0.0.{n}', 'Connection: close']))[0]
            expect(code == 401, f'{what} in {k}: {code}')
    expect(s.raw(request('/v1/models', fields=[f'X-API-Key: {key}\0x'])) == [400], 'a zero byte is taken')
    for line in (f'Authorization: Basic {key}', f'Authorization: Token {key}', f'Authorization: {key}', f'Authorization: Bearer: {key}', f'Authorization: Digest {key}', f'Authorization: Bearer\t{key}x',
                 f'Cookie: api_key={key}', f'Proxy-Authorization: Bearer {key}', f'X-Api-Token: {key}', f'X_API_Key: {key}', f'Authorization: Bearer wrong\r\nAuthorization: Bearer {key}'):
        n += 1
        code = s.raw(request('/v1/models', fields=[line, f'X-Forwarded-For: 10.0.0.{n}', 'Connection: close']))[0]
        expect(code == 401, f'{line.split(":")[0]}: {code}')
    code = s.raw(request(f'http://{key}@localhost/v1/models', fields=['Connection: close']))
    expect(code == [400], f'a key in the target: {code}')
    expect(s.status('/v1/models', key=key, fields=[('X-Forwarded-For', '10.0.1.1')]) == 200, 'the key itself is refused')
    s.stop()
    return f'{n + 2} times 401 or 400'


@attempt
def keys_in_query_strings():
    "?api_key=KEY, escaped, in capitals, twice, behind other fields, on a WebSocket, on open paths"
    s, key = Guarded.get(), Guarded.get().keys['user']
    for path in (f'/v1/models?api_key={key}', f'/v1/models?a=b&api_key={key}', f'/v1/models?api%5fkey={key}', f'/v1/models?API_KEY={key}', f'/v1/models?api_key=x&api_key={key}', f'/v1/models?key={key}',
                 f'/v1/models?token={key}', f'/v1/models?access_token={key}', f'/v1/models?api_key={key}%00', f'/v1/models?api_key={key * 4}', f'/ws/chat?api_key={key}', f'/health?api_key={key}'):
        code = s.status(path)
        expect(code in (400, 401, 429), f'{path[:30]}: {code}')
    w = wire.WebSocket(s.port, f'/ws/chat?api_key={key}'.encode())
    expect(w.code in (400, 401, 429), f'a WebSocket: {w.code}')
    w.close()
    return '400 or 401'


ADMIN = ['//api/keys', '/./api/keys', '/v1/../api/keys', '/api//keys', '/api/keys/', '/api/keys/.', '/%2e/api/keys', '/v1/%2e%2e/api/keys', '/api%2fkeys', '/%61pi/keys', '/API/KEYS', '/api/keys.', '/api/keys;x=1',
         '/api/keys%20', '/api/keys%09', '/api/keys?x', '/api/keys#x', 'http://localhost/api/keys', 'HTTP://LOCALHOST/api/keys', '/api\\keys', '/api/keys/%2e%2e/keys', '/api/./keys', '*', '/health/../api/keys',
         '/health?/../api/keys', '/api/%6beys', '/v1/models/../../api/keys']


@attempt
def spellings_of_administration():
    "27 spellings of /api/keys, and its methods, without a key and with keys of other scopes"
    s = Guarded.get()
    for name in (None, 'chat', 'models', 'embed'):
        for path in ADMIN:
            for method in ('GET', 'POST', 'DELETE', 'HEAD', 'get', 'PUT', 'TRACE', 'CONNECT'):
                codes = s.raw(request(path, method=method, key=s.keys.get(name), fields=['Connection: close']))
                fine = path == '/health?/../api/keys' and codes == [200]
                expect(codes and (fine or codes[0] in (400, 401, 403, 404, 405, 429)), f'{method} {path} with {name}: {codes}')
    return '400, 401, 403, 404 or 405'


@attempt
def headers_that_name_another_path_or_method():
    "X-HTTP-Method-Override, X-Method-Override, _method=, X-Original-URL, X-Rewrite-URL, X-Forwarded-*, Forwarded, on /health and with a key for chats"
    s = Guarded.get()
    for k, v in (('X-HTTP-Method-Override', 'DELETE'), ('X-Method-Override', 'DELETE'), ('X-Original-URL', '/api/keys'), ('X-Rewrite-URL', '/api/keys'), ('X-Forwarded-Host', 'localhost'),
                 ('X-Forwarded-User', 'admin'), ('X-Remote-User', 'admin'), ('Forwarded', 'for=127.0.0.1'), ('X-Real-IP', '127.0.0.1'), ('X-Forwarded-Proto', 'https')):
        code, _, body = s.ask('/health?_method=DELETE', fields=[(k, v)])
        expect(code == 200 and body.get('status'), f'{k} on /health: {code} {body}')
        expect(s.status('/api/keys', key=s.keys['chat'], fields=[(k, v)]) == 403, f'{k} with a key for chats')
    return 'nothing of it changes anything'


# ---- with the key of another client ----

@attempt
def scopes_crossed():
    "keys of scope chat, embeddings, models and admin on paths of the others"
    s = Guarded.get()
    right = {'chat': [('/v1/completions', SHORT), ('/v1/chat/completions', {'messages': [{'role': 'user', 'content': 'a'}], 'max_tokens': 1}), ('/v1/responses', {'input': 'a', 'max_output_tokens': 1}),
                      ('/v1/messages', {'messages': [{'role': 'user', 'content': 'a'}], 'max_tokens': 1})],
             'embed': [('/v1/embeddings', {'input': 'a'})], 'models': [('/metrics', None), ('/api/stats', None), ('/api/analytics/requests', None), ('/api/batching', None)],
             'admin': [('/api/keys', None), ('/api/audit/stats', None), ('/api/audit/recent', None), ('/api/batching/enable', {}), ('/api/keys/auth', {'enabled': True})]}
    for owner, paths in right.items():
        for path, body in paths:
            for name in right:
                code = s.status(path, body, key=s.keys[name])
                may = name == owner or (owner == 'models' and name == 'admin')
                expect(code == 200 if may else code == 403, f'{name} on {path}: {code}')
    for path in (b'/ws/chat', b'/ws/stats'):
        c = s.open(b'GET ' + path + b' HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nX-API-Key: ' +
                   s.keys['embed'].encode() + b'\r\n\r\n')
        expect(wire.response(c.makefile('rb'))[0] == 403, f'{path.decode()} with a key for embeddings')
        c.close()
    expect(s.status('/api/keys/auth', {'enabled': False}, key=s.keys['chat']) == 403, 'keys are switched off with a key for chats')
    return '403'


@attempt
def models_crossed():
    "a key for models other* asks for tiny: by its name, as default, without a name, over all that take a model, also on a WebSocket"
    s = Guarded.get()
    key, said = s.keys['elsewhere'], {'messages': [{'role': 'user', 'content': 'a'}]}
    for path, body in (('/v1/completions', SHORT), ('/v1/chat/completions', said), ('/v1/responses', {'input': 'a'}), ('/v1/messages', {**said, 'max_tokens': 2}), ('/v1/embeddings', {'input': 'a'}),
                       ('/tokenize', {'content': 'a'}), ('/detokenize', {'tokens': [5]}), ('/apply-template', said), ('/v1/messages/count_tokens', said)):
        for model in ({}, {'model': 'tiny'}, {'model': 'default'}):
            code, _, body_of = s.ask(path, {**body, **model}, key=key)
            expect(code == 403, f'{path} {model}: {code} {body_of}')
    c = s.open(b'GET /ws/chat HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nX-API-Key: ' +
               key.encode() + b'\r\n\r\n')
    w = wire.WebSocket.__new__(wire.WebSocket)
    w.s, w.f = c, c.makefile('rb')
    expect(wire.response(w.f)[0] == 101, 'the WebSocket is refused')
    w.send(json.dumps(said).encode())
    m = json.loads(w.receive()[1])
    expect(m.get('status') == 403, f'the WebSocket: {m}')
    w.close()
    return '403, model_not_allowed'


# ---- HTTP ----

NEXT = b'GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n'


@attempt
def smuggled_requests():
    "two lengths, both lengths, lists, signs, hex, blanks, folded lines, bare LF and CR, zero bytes, chunks that are no chunks, each with another request behind"
    s, key = Guarded.get(), Guarded.get().keys['user'].encode()
    head = b'POST /tokenize HTTP/1.1\r\nHost: localhost\r\nX-API-Key: ' + key + b'\r\n'
    chunked = head + b'Transfer-Encoding: chunked\r\n\r\n'
    body = b'{"content":"a"}'
    forms = {
        'CL and TE': head + b'Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n', 'TE and CL': head + b'Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n',
        'CL twice': head + b'Content-Length: 15\r\nContent-Length: 16\r\n\r\n' + body, 'CL twice the same': head + b'Content-Length: 15\r\nContent-Length: 15\r\n\r\n' + body,
        'CL list': head + b'Content-Length: 15, 15\r\n\r\n' + body, 'CL +': head + b'Content-Length: +15\r\n\r\n' + body, 'CL -': head + b'Content-Length: -15\r\n\r\n' + body,
        'CL hex': head + b'Content-Length: 0xf\r\n\r\n' + body, 'CL empty': head + b'Content-Length: \r\n\r\n' + body, 'CL inner blank': head + b'Content-Length: 1 5\r\n\r\n' + body,
        'CL real': head + b'Content-Length: 15.0\r\n\r\n' + body, 'CL blank before colon': head + b'Content-Length : 15\r\n\r\n' + body, 'CL overflow': head + b'Content-Length: 18446744073709551631\r\n\r\n' + body,
        'TE twice': head + b'Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n', 'TE list': head + b'Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n',
        'TE identity': head + b'Transfer-Encoding: identity\r\n\r\n' + body, 'TE gzip': head + b'Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n', 'TE quoted': head + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
        'TE vertical tab': head + b'Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n', 'TE folded': head + b'Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n', 'TE blank before colon': head + b'Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n',
        'TE of 1.0': head.replace(b'HTTP/1.1', b'HTTP/1.0') + b'Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n', 'TE xchunked': head + b'Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n',
        'folded': head + b'X: a\r\n b: c\r\n\r\n', 'bare LF': head.replace(b'\r\n', b'\n') + b'\n', 'one bare LF': head + b'X: a\nContent-Length: 15\r\n\r\n' + body, 'bare CR': head + b'X: a\rContent-Length: 15\r\n\r\n' + body,
        'zero byte': head + b'X: a\0b\r\n\r\n', 'zero in the target': b'GET /he\0alth HTTP/1.1\r\nHost: localhost\r\n\r\n', 'blank line with CR': head + b'X: a\r\n\r\r\n\r\n',
        'blank first header': b'POST /tokenize HTTP/1.1\r\n Host: localhost\r\n\r\n', 'no colon': head + b'Garbage\r\n\r\n', 'empty name': head + b': a\r\n\r\n', 'HTTP/0.9': b'GET /health\r\n\r\n', 'two Hosts': head + b'Host: other\r\n\r\n',
        'chunk overflow': chunked + b'10000000000000000\r\na\r\n0\r\n\r\n', 'chunk near overflow': chunked + b'ffffffffffffffff\r\na\r\n0\r\n\r\n', 'chunk -1': chunked + b'-1\r\na\r\n0\r\n\r\n', 'chunk 0x': chunked + b'0xf\r\n' + body + b'\r\n0\r\n\r\n',
        'chunk +': chunked + b'+f\r\n' + body + b'\r\n0\r\n\r\n', 'chunk without size': chunked + b'\r\n' + body, 'chunk longer': chunked + b'1\r\n' + body + b'\r\n0\r\n\r\n',
        'chunk LF': chunked + b'f\n' + body + b'\n0\n\n',
        'chunk blank and more': chunked + b'f 5\r\n' + body + b'\r\n0\r\n\r\n', 'extension with LF': chunked + b'f;a\nb\r\n' + body + b'\r\n0\r\n\r\n', 'extension with CR': chunked + b'f;a\rb\r\n' + body + b'\r\n0\r\n\r\n',
        'extension with zero': chunked + b'f;a\0b\r\n' + body + b'\r\n0\r\n\r\n', 'huge extension': chunked + b'f;' + b'a' * 100000 + b'\r\n' + body + b'\r\n0\r\n\r\n',
        'trailer with LF': chunked + b'f\r\n' + body + b'\r\n0\r\nX: a\n\nGET /v1/models HTTP/1.1\r\n\r\n', 'trailer with CR': chunked + b'f\r\n' + body + b'\r\n0\r\nX: a\rb\r\n\r\n',
        'trailer without colon': chunked + b'f\r\n' + body + b'\r\n0\r\nGET /v1/models HTTP/1.1\r\n\r\n', 'trailer folded': chunked + b'f\r\n' + body + b'\r\n0\r\nX: a\r\n b\r\n\r\n',
        'huge trailers': chunked + b'f\r\n' + body + b'\r\n0\r\n' + b'X: a\r\n' * 2000 + b'\r\n', 'chunk end': chunked + b'f\r\n' + body + b'XX0\r\n\r\n', 'HTTP/2': b'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', 'TLS': b'\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03' + b'a' * 600 + b'\r\n\r\n',
        'absolute and Host': b'GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n', 'user in the target': b'GET http://localhost@evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n'}
    taken = {}
    for what, data in forms.items():
        codes = s.raw(data + NEXT)
        if len(codes) != 1 or codes[0] not in (400, 413, 431, 501, 505, 401, 429):
            taken[what] = codes
    expect(not taken, f'{taken}')
    fine = s.raw(chunked + b'f;name="a b"; x\r\n' + body + b'\r\n0\r\nX: a\r\n\r\n' + NEXT.replace(b'\r\n\r\n', b'\r\nConnection: close\r\n\r\n'))
    expect(fine in ([200, 401], [200, 429]), f'a chunked body as it should be: {fine}')
    return f'{len(forms)} forms refused, the connection ends each time'


@attempt
def a_request_without_a_key_behind_one_with():
    "pipelined: with a key, without, with a wrong one, with; and a body that is a request"
    s, key = Guarded.get(), Guarded.get().keys['user']
    inner = request('/api/keys', key=s.keys['admin'])
    codes = s.raw(request('/v1/models', key=key) + request('/v1/models') + request('/tokenize', b'{"content":"a"}', key=key) + request('/v1/models', key=key[:-1] + '_') +
                  request('/tokenize', inner, key=key, fields=['Connection: close']))
    expect(codes[:1] + codes[2:3] + codes[4:] == [200, 200, 400]
            and all(c in (401, 429) for c in (codes[1], codes[3])), f'{codes}')
    return f'{codes}'


@attempt
def large_heads_and_bodies():
    "a head of 17 kB and of 1 MB, 101 fields, a target of 1 MB, a body over the limit by its length and by its chunks, a million blank lines"
    s, key = Guarded.get(), Guarded.get().keys['user']
    got = [s.raw(x)[:1] for x in (
        request('/health', fields=['X: ' + 'a' * 17000]), request('/health', fields=['X: ' + 'a' * 1000000]),
        request('/health', fields=['X: a'] * 101), request('/' + 'a' * 1000000),
        request('/tokenize', key=key, method='POST', fields=['Content-Length: 17000000']), request('/tokenize', key=key, method='POST', fields=['Transfer-Encoding: chunked']) + b'fffff00\r\n' * 2)]
    expect(got == [[431]] * 4 + [[413]] * 2, f'{got}')
    before = s.rss()
    s.raw(b'\r\n' * 1000000)
    expect(s.rss() < before + 30 * FAT, 'blank lines take memory')
    s.lives()
    return '431, 413'


def endless_bodies(s, keys):
    """For each of the keys (None: without a key) a client sends 15 MB of a body of 16 MB.  Returns
    the server's memory in MB, before and with all of them waiting."""
    before, held = s.rss(), []
    for key in keys:
        c = s.open(request('/v1/completions', method='POST', key=key, fields=['Content-Length: 16000000']))
        c.settimeout(5)
        with contextlib.suppress(OSError):
            c.sendall(b'x' * 15_000_000)
        held.append(c)
    s.lives()
    after = s.rss()
    for c in held:
        c.close()
    return before, after


@attempt
def bodies_without_a_key():
    "60 clients without a key, and with a wrong one, send 15 MB each of a body that never ends"
    before, after = endless_bodies(Guarded.get(), [None, 'wrong'] * 30)
    expect(after < before + 100 * FAT, f'{before:.0f} MB before, {after:.0f} MB while they wait')
    return f'{after - before:+.0f} MB'


@attempt
def bodies_that_are_not_wanted():
    "15 MB each to public paths, unknown paths and methods, GET, HEAD, DELETE, WebSockets; chunked, with Expect, of HTTP/1.0, pipelined, at a key's limit; in pieces that never end"
    s = Guarded.get()
    user, five = s.keys['user'], s.keys['five']
    program('zse-apikey', 'reset', 'five', home=s.home)
    for _ in range(6):
        s.status('/v1/models', key=five)
    length, chunked = ['Content-Length: 15000000'], ['Transfer-Encoding: chunked']
    up = ['Upgrade: websocket', 'Connection: Upgrade', 'Sec-WebSocket-Version: 13', 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==']
    heads = [request(p, method=m, key=k, fields=f) for f in (length, chunked, [*length, 'Expect: 100-continue']) for m, p, k in (
        ('GET', '/health', None), ('POST', '/health', None), ('GET', '/v1/models', user), ('HEAD', '/v1/models', user), ('DELETE', '/api/keys/x', user), ('POST', '/nowhere', user), ('PUT', '/v1/completions', user),
        ('POST', '/api/batching/enable', None), ('POST', '/v1/completions', five), ('POST', '/v1/embeddings', s.keys['chat']), ('OPTIONS', '/v1/models', None), ('GET', '/', None))]
    heads += [request('/ws/chat', key=user, fields=[*up, *length]), request('/ws/chat', key=user, fields=[*up, *chunked]),
            request('/health', method='POST', fields=length).replace(b'HTTP/1.1', b'HTTP/1.0'),
            request('/v1/models', key=user) + request('/health', method='POST', fields=chunked),
              request('/v1/completions', method='POST', key=user, fields=[*length, 'Origin: https://evil.example']), request('/v1/completions?api_key=x', method='POST', key=user, fields=length)]
    before, held, codes = s.rss(), [], set()
    piece = b'f4240\r\n' + b'x' * 1000000 + b'\r\n'
    for head in heads:
        for _ in range(4):
            c = s.open(head)
            c.settimeout(2)
            with contextlib.suppress(OSError):
                c.sendall(piece * 15 if b'chunked' in head else b'x' * 14_999_999)
            held.append(c)
    peak = s.rss()
    # bodies whose requests are not refused yet, so they are buffered
    slow = [s.open(request('/health', method='POST', fields=chunked) + b'ffff\r\n' + b'x' * 60000, source='127.0.0.9') for _ in range(400)]
    s.lives('with bodies that nothing wants')
    after = s.rss()
    for c in held:
        with contextlib.suppress(OSError):
            codes.add(c.recv(12)[9:])
        c.close()
    for c in slow:
        c.close()
    expect(max(peak, after) < before + 30 * FAT, f'{before:.0f} MB before, {peak:.0f} MB with {len(held)} bodies of 15 MB, {after:.0f} MB with 400 of 60 kB')
    expect(b'100' not in codes, 'a body that is refused is asked for')
    return f'{peak - before:+.0f} MB for {len(held)} bodies in {len(heads)} forms, {after - peak:+.0f} MB for 400 that wait; {sorted(c.decode() for c in codes if c)}'


@attempt
def bodies_with_a_key():
    "100 clients with one key send 15 MB each of a body that never ends"
    s = Guarded.get()
    before, after = endless_bodies(s, [s.keys['user']] * 100)
    expect(after < before + 550 * FAT, f'{before:.0f} MB before, {after:.0f} MB while they wait')
    return f'{after - before:+.0f} MB: half of --work-memory, and no more'


@attempt
def many_connections():
    "3000 connections of one address, half a head or half a body; while they stay, others are answered, also of that address with a key"
    s = Guarded.get()
    held, refused = [], 0
    for i in range(3000):
        try:
            c = s.open(b'GET /health HTTP/1.1\r\nHost: loc' if i % 10 else request('/v1/completions', method='POST', fields=['Content-Length: 100']) + b'{', source='127.0.0.9')
            held.append(c)
        except ConnectionError:
            refused += 1
        if i == 1000:
            s.lives('with 1000 half-open connections')
    s.lives('with all of them')
    n = int(re.search(r'(?m)^zse_http_connections_without_key (\d+)', s.ask('/metrics', key=s.keys['models'])[2])[1])
    expect(n <= 520, f'{n} connections of one address')
    expect(until(lambda: s.raw(request('/health', fields=['Connection: close'])) == [200], 5), 'another address gets no answer')
    time.sleep(1.1)                         # connections can be evicted after a second without data
    code = s.status('/v1/models', key=s.keys['second'], source='127.0.0.9')
    for c in held:
        c.close()
    expect(code == 200, f'the same address with a key: {code}')
    return f'{n} are held; 200 for others at once, and for the same address'


@attempt
def idle_connections():
    "at a limit of 400: 1000 idle connections of one address, 1000 of 100 addresses, 400 that read no page, 400 of a good key; a stream of another key goes on meanwhile"
    home = new_home()
    key, busy, greedy = make_key(home, 'a', '--scope', 'chat,models'), make_key(home, 'busy'), make_key(home, 'greedy')
    s = Server('--max-connections', '400', '--max-per-address', '0', home=home)
    c = s.open(request('/v1/completions', LONG, key=busy, fields=['Connection: close']))
    stream = threading.Thread(target=lambda: read.append(c.makefile('rb').read()), daemon=True)
    read, worst, before = [], 0, s.rss()
    stream.start()

    def good(what):
        nonlocal worst
        for source in ('127.0.0.1', '127.0.0.9'):
            began = time.monotonic()
            code = s.status('/v1/models', key=key, source=source, timeout=10)
            worst = max(worst, time.monotonic() - began)
            expect(code == 200, f'{what}: {code} with a good key from {source}')
    page, head = request('/openapi.json') * 60, b'GET /health HTTP/1.1\r\n'
    for what, n, address, data in (('idle', 1000, lambda i: '127.0.0.9', b''), ('half a head', 1000, lambda i: f'127.0.1.{i % 100 + 1}', head),
            ('pages that are not read', 400, lambda i: f'127.0.2.{i % 40 + 1}', page),
                                   ('a good key', 400, lambda i: f'127.0.3.{i % 100 + 1}', request('/v1/models', key=greedy))):
        held = []
        for i in range(n):
            held.append(s.open(data, receive=1024 if data == page else None, source=address(i)))
            if i % 200 == 199:
                good(f'{what}, {i + 1} of them')
        expect(s.rss() < before + 100 * FAT, f'{what}: {before:.0f} MB before, {s.rss():.0f} MB')
        for x in held:
            x.close()
    stream.join(60 * SLOW)
    expect(read and read[0].count(b'data: ') > 1000 and b'[DONE]' in read[0], 'a stream that ran was broken off')
    text = s.ask('/metrics', key=key)[2]
    evicted = int(re.search(r'(?m)^zse_http_connections_evicted_total (\d+)', text)[1])
    expect(evicted > 1000, f'{evicted} were evicted')
    s.stop()
    return f'200 within {worst:.2f} s with a good key each time; {evicted} idle ones made room'


@attempt
def four_thousand_idle_connections():
    "with the limits as they come: 4096 connections of the address of a good key, idle, with half a head, and with half a body; the key meanwhile, over new connections and over an open one"
    home = new_home()
    key = make_key(home, 'a', '--scope', 'chat,models')
    s = Server(home=home)
    mine = wire.connect(s.port)
    read = mine.makefile('rb')
    times, before = [], s.rss()

    def served():
        with contextlib.suppress(OSError):      # refused before the request was sent
            r = s.ask('/v1/completions', SHORT, key=key, timeout=30)
            return r if r[0] == 200 else None

    def good(what):
        # connections of this address are evicted if no byte came for a second
        began = time.monotonic()
        answer = until(served, 10)
        times.append(time.monotonic() - began)
        expect(answer and answer[2]['choices'][0]['text'] == first, f'{what}: {answer}')
        mine.sendall(request('/v1/completions', SHORT, key=key))
        expect(wire.response(read)[0] == 200, f'{what}: the open connection')
    first = s.ask('/v1/completions', SHORT, key=key)[2]['choices'][0]['text']
    for what, data in (('idle', b''), ('half a head', b'GET /health HTTP/1.1\r\n'), ('half a body', request('/v1/completions', method='POST', fields=['Content-Length: 100']) + b'{')):
        held = []
        for i in range(4096):
            with contextlib.suppress(ConnectionError):          # refused at once
                held.append(s.open(data))
            if i % 256 == 255:
                good(f'{what}, {i + 1} of them')
        good(what)
        after = s.rss()
        expect(after < before + 100 * FAT, f'{what}: {before:.0f} MB before, {after:.0f} MB')
        for c in held:
            c.close()
    mine.close()
    s.stop()
    expect(max(times) < 2 * SLOW, f'a good key waited {max(times):.2f} s')
    return f'{len(times)} new connections of the key, each served after {statistics.median(times):.3f} s at the median and {max(times):.2f} s at most; {after - before:+.0f} MB'


@attempt
def heads_that_trickle():
    "700 half heads of the address of a good key, a byte more of each every 0.2 s; new connections of the key meanwhile"
    home = new_home()
    key = make_key(home, 'a', '--scope', 'models')
    s = Server(home=home)
    held, over = [], threading.Event()
    for _ in range(700):
        with contextlib.suppress(OSError):
            held.append(s.open(b'GET /health HTTP/1.1\r\nX: '))

    def trickle():
        while not over.wait(.2):
            for c in held:
                with contextlib.suppress(OSError):
                    c.send(b'x')

    def served():
        with contextlib.suppress(OSError):
            return s.status('/v1/models', key=key, timeout=20) == 200
        return False
    sender = threading.Thread(target=trickle, daemon=True)
    sender.start()
    try:
        # connections of an address may be evicted when they are older than a second
        expect(until(served, 10), 'the key is never served')
        failed = sum(not served() for _ in range(30))
        expect(not failed, f'{failed} of 30 new connections of the key were refused')
    finally:
        over.set()
        sender.join()
    seconds = s.stop()
    for c in held:
        c.close()
    return f'30 of 30 served; SIGTERM beside them: {seconds:.2f} s'


@attempt
def websockets_that_hoard():
    "with --work-memory 64MiB: 60 WebSockets with 4 MB of a message whose end never comes; 40 MB after a close frame whose answer is not read; 170000 messages at once: memory against what is announced, /health meanwhile"
    up = ['Upgrade: websocket', 'Connection: Upgrade', 'Sec-WebSocket-Version: 13', 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==']
    s = Server('--work-memory', '64MiB')
    before, peak, slowest = s.rss(), 0, 0

    def frame(opcode, size, sent):
        head = bytes([0x80 | opcode]) + (bytes([0x80 | size]) if size < 126 else b'\xff' + struct.pack('>Q', size))
        return head + bytes(4) + b'a' * sent

    def opened(receive=None):
        c = s.open(request('/ws/completions', fields=up), receive=receive)
        while b'\r\n\r\n' not in c.recv(4096):
            pass
        return c

    def looks():
        nonlocal peak, slowest
        began = time.monotonic()
        expect(s.status('/health', timeout=20) == 200, 'it is not well')
        slowest, peak = max(slowest, time.monotonic() - began), max(peak, s.rss())
    held = []
    for _ in range(60):
        held.append(opened())
        with contextlib.suppress(OSError):
            held[-1].settimeout(2)
            held[-1].sendall(frame(1, 4000000, 3999900))
        looks()
    messages = peak - before
    expect(messages < 94 * FAT, f'unfinished messages: {messages:.0f} MB more')
    for c in held:
        c.close()
    s.stop()
    s = Server('--work-memory', '64MiB')
    before, peak, read = s.rss(), 0, 0
    for batches in range(3, 12):            # with enough pongs, the last ones stay in the server
        deaf = opened(4096)
        deaf.settimeout(2)
        with contextlib.suppress(OSError):
            deaf.sendall(frame(9, 125, 125) * 100 * batches + frame(8, 0, 0))
            for _ in range(40):
                deaf.sendall(bytes(1 << 20))
                read += 1
        looks()
        deaf.close()
    after_close = peak - before
    expect(after_close < 24 * FAT, f'after a close frame: {after_close:.0f} MB more')
    many_at_once = opened()

    def flood():
        with contextlib.suppress(OSError):
            many_at_once.sendall(frame(1, 0, 0) * 170000)
    sender = threading.Thread(target=flood, daemon=True)
    sender.start()
    for _ in range(40):
        looks()
    many_at_once.close()
    sender.join(20)
    s.stop()
    expect(slowest < 1 * SLOW, f'/health took {slowest:.2f} s')
    return f'{messages:+.0f} MB, {after_close:+.0f} MB ({read} MB were taken), /health at most {slowest * 1000:.0f} ms'


@attempt
def a_stop_in_any_state():
    "SIGTERM with --drain 2 beside 1000 idle connections, half heads, half bodies, answers and pages that are not read, WebSockets, a queue of long answers, uploads of 16 MB, 5000 requests in one connection"
    up = ['Upgrade: websocket', 'Connection: Upgrade', 'Sec-WebSocket-Version: 13', 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==']
    big = json.dumps({**SHORT, 'metadata': {'a': [{}] * 3000000}}).encode()
    answer = {**LONG, 'n': 8}
    states = {'idle': (1000, b'', None), 'half heads': (400, b'GET /health HTTP/1.1\r\nX: ', None),
              'half bodies': (300, request('/v1/completions', method='POST', fields=['Content-Length: 100']) + b'{', None),
              'streams that are not read': (40, request('/v1/completions', answer), 1024), 'pages that are not read': (200, request('/openapi.json') * 60, 1024),
              'WebSockets': (100, request('/ws/chat', fields=up), None), 'a queue': (200, request('/v1/completions', LONG), None),
              'uploads': (12, request('/v1/completions', big), None), 'a pipeline': (4, request('/v1/models') * 5000, 1024)}
    took = {}
    for what, (n, data, receive) in states.items():
        s = Server('--drain', '2')
        held = [s.open(b'', receive=receive) for _ in range(n)]

        def send(i):
            # the server closes the connection, or stops reading
            with contextlib.suppress(OSError):
                held[i].settimeout(2)
                held[i].sendall(data)
        many(min(n, 16), lambda i: [send(k) for k in range(i, n, 16)])
        took[what] = s.stop()
        for c in held:
            c.close()
    return ', '.join(f'{what} {seconds:.2f} s' for what, seconds in took.items())


@attempt
def a_flood_of_handshakes():
    "8 threads of clients that only shake hands, against an RSA key of 4096 bits; an open connection, a new client and one that resumes its session meanwhile; 300 that say nothing, 50 that break off, hellos that announce 131 kB"
    cert, key = T / 'cert.pem', T / 'key.pem'
    subprocess.run(['openssl', 'req', '-x509', '-newkey', 'rsa:4096', '-nodes', '-keyout', key, '-out', cert, '-days', '2', '-subj', '/CN=localhost'], check=True, capture_output=True)
    s = Server('--tls-cert', cert, '--tls-key', key, model=False)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    def shake(source, session=None):
        return context.wrap_socket(s.open(b'', source=source), server_hostname='localhost', session=session)

    def latencies(c, seconds):
        f, times, end = c.makefile('rb'), [], time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.perf_counter()
            c.sendall(request('/health'))
            expect(wire.response(f)[0] in (200, 503), 'the open connection')
            times.append((time.perf_counter() - began) * 1000)
            time.sleep(.002)
        return statistics.median(times), sorted(times)[len(times) * 95 // 100]
    over, n = threading.Event(), [0]

    def flood(i):
        while not over.is_set():
            with contextlib.suppress(OSError):
                shake(f'127.0.0.{i + 10}').close()
                n[0] += 1
    silent = [s.open(b'', source='127.0.0.30') for _ in range(300)]
    mine = shake('127.0.0.1')
    quiet = latencies(mine, .5)
    threads = [threading.Thread(target=flood, args=(i,), daemon=True) for i in range(8)]
    for t in threads:
        t.start()
    time.sleep(.3)
    before = n[0]
    flooded = latencies(mine, 2.5)
    rate = (n[0] - before) / 2.5
    began = time.monotonic()
    other = shake('127.0.0.2')
    fresh = time.monotonic() - began
    resumed = shake('127.0.0.1', session=mine.session)
    expect(resumed.session_reused, 'the session is not resumed')
    for _ in range(50):                     # clients that leave while a thread works on their handshake
        c = s.open(b'', source='127.0.0.40')
        c.sendall(b'\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03' + b'a' * 600)
        c.close()
    over.set()
    for t in threads:
        t.join(20)
    before, liars = s.rss(), []
    for head in (b'\x16\x03\x01\0\x40\x01\x01\xff\xf0\x03\x03' + b'a' * 58, b'\x16\x03\x01\0\x02\x01\0\x16\x03\x01\0\x02\xff\xff', b'GET / HTTP/1.1\r\n\r\n'):
        for _ in range(150):
            c = s.open(head, source='127.0.0.41')
            liars.append(c)
    for c in liars:
        c.settimeout(5)
        # a TimeoutError fails the test: the server must close the connection
        with contextlib.suppress(ConnectionError):
            c.recv(1)
    expect(s.rss() < before + 10 * FAT, f'a hello that lies takes {(s.rss() - before) * 1024 / 450:.0f} kB')
    # a hello whose first byte arrives alone is valid
    split = s.open(b'', source='127.0.0.42')
    split.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    half = context.wrap_bio(incoming, outgoing, server_hostname='localhost')
    with contextlib.suppress(ssl.SSLWantReadError):
        half.do_handshake()
    hello = outgoing.read()
    split.sendall(hello[:1])
    time.sleep(.1)
    split.sendall(hello[1:])
    incoming.write(split.recv(100000))
    with contextlib.suppress(ssl.SSLWantReadError):
        half.do_handshake()
    expect(half.version(), 'a hello in two pieces is not taken')
    liars.append(split)
    for c in (*silent, *liars, mine, other, resumed):
        c.close()
    s.stop()
    what = f'median {quiet[0]:.2f} ms alone, {flooded[0]:.2f} ms with {rate:.0f} handshakes a second (95 %: {quiet[1]:.1f}, {flooded[1]:.1f}); a new client waited {fresh:.2f} s'
    expect(flooded[0] < quiet[0] + 10 * SLOW and fresh < 5 * SLOW, what)
    return what


@attempt
def readers_that_take_nothing():
    "30 streams whose readers take nothing, 100 that ask for pages without reading an answer; others are answered meanwhile"
    s, key = Guarded.get(), Guarded.get().keys['user']
    before, held = s.rss(), []
    for _ in range(30):
        held.append(s.open(request('/v1/completions', {**LONG, 'max_tokens': 1000}, key=key), receive=1024))
    page = request('/openapi.json') * 300
    for _ in range(100):
        c = s.open(b'', receive=1024)
        c.setblocking(False)
        with contextlib.suppress(BlockingIOError, ConnectionError):
            c.sendall(page)
        held.append(c)
    code = s.status('/v1/completions', SHORT, key=s.keys['second'])
    s.lives()
    after = s.rss()
    for c in held:
        c.close()
    expect(code == 200 and after < before + 300 * FAT, f'{code}, {before:.0f} MB before, {after:.0f} MB')
    return f'200 for another key, {after - before:+.0f} MB'


@attempt
def slow_heads():
    "200 heads, one byte a second, without a key; a body that comes with one byte a second"
    home = new_home()
    key = make_key(home, 'a')
    s = Server(home=home)
    held = [s.open(b'GET /health HTTP/1.1\r\n') for _ in range(200)]
    held.append(s.open(request('/v1/completions', method='POST', key=key, fields=['Content-Length: 10000']) + b'{'))
    began, gone = time.monotonic(), set()
    while time.monotonic() - began < 25 and len(gone) < len(held):
        for c in set(held) - gone:
            c.setblocking(False)
            try:
                c.send(b'X')
                if c.recv(10) is not None:
                    gone.add(c)
            except BlockingIOError:
                pass
            except OSError:
                gone.add(c)
        s.lives()
        time.sleep(1)
    seconds = time.monotonic() - began
    expect(len(gone) == len(held), f'{len(held) - len(gone)} are still there after {seconds:.0f} s')
    for c in held:
        c.close()
    s.stop()
    return f'all are gone after {seconds:.0f} s'


# ---- bodies ----

@attempt
def bodies_that_are_bombs():
    "a million brackets, a number of a million digits, NaN, 1e999, a million members, the same member twice, no UTF-8, lone surrogates, huge n, stop, logprobs, biases, batches"
    s, key = Guarded.get(), Guarded.get().keys['user']
    began = time.monotonic()
    raw = {'brackets': b'[' * 1000000, 'braces': b'{"a":' * 200000, 'digits': b'{"prompt":"a","seed":' + b'9' * 1000000 + b'}', 'NaN': b'{"prompt":"a","temperature":NaN}', '1e999': b'{"prompt":"a","temperature":1e999}',
           '-1e999': b'{"prompt":"a","temperature":-1e999}', 'twice': b'{"prompt":"a","prompt":"b"}', 'no UTF-8': b'{"prompt":"\xff\xfe\xc0\x80\xed\xa0\x80"}', 'surrogate': b'{"prompt":"\\ud800"}', 'zero': b'{"prompt":"a\\u0000b"}',
           'members': b'{' + b','.join(b'"k%d":1' % i for i in range(200000)) + b'}', 'BOM': b'\xef\xbb\xbf{"prompt":"a"}', 'empty': b'', 'text behind': b'{"prompt":"a"}x'}
    made = {'n': {'n': 10**9}, 'n -1': {'n': -1}, 'n 1e300': {'n': 1e300}, 'max_tokens': {'max_tokens': 2**63}, 'max_tokens -1': {'max_tokens': -1}, 'logprobs': {'logprobs': 10**9},
            'logprobs -1': {'logprobs': -1}, 'best_of': {'best_of': 10**6},
            'stop': {'stop': ['a' * 10] * 100000}, 'long stop': {'stop': 'a' * 1000000}, 'bias': {'logit_bias': {str(i): 1e38 for i in range(100000)}},
            'biases of few tokens': {'logit_bias': {'0' * (i // 500) + str(i % 500): 1 for i in range(50000)}},
            'bias of no token': {'logit_bias': {'-1': 1}}, 'top_k': {'top_k': 2**40}, 'top_p': {'top_p': -5},
            'priority': {'priority': 10**9}, 'ids': {'prompt': [2**31]}, 'ids -1': {'prompt': [-1]}, 'prompts': {'prompt': ['a'] * 100000}, 'long': {'prompt': 'a b ' * 1000000},
            'one letter': {'prompt': 'a' * 3000000},
            'penalty': {'repetition_penalty': 0}, 'repeat_last_n': {'repeat_last_n': 2**40}, 'seed': {'seed': 2**70}, 'typical': {'typical_p': 'x'}, 'stream': {'stream': 'yes'}, 'model': {'model': 'x' * 1000000},
            'user': {'user': 'x' * 1000000}}
    wrong = {}
    for what, body in {**raw, **{k: {**SHORT, **v} for k, v in made.items()}}.items():
        code = s.status('/v1/completions', body, key=key)
        if code not in (400, 404, 413) and what not in ('one letter', 'max_tokens', 'user', 'zero', 'penalty', 'top_k', 'repeat_last_n', 'long stop'):
            wrong[what] = code
        if code >= 500 or code in (401, 403):
            wrong[what] = code
        s.lives(what)
    code = s.status('/v1/embeddings', {'input': ['a' * 100] * 100000}, key=key)
    if code != 400:
        wrong['embeddings'] = code
    for body in (b'[' * 1000000, b'{"tokens":[' + b'5,' * 2000000 + b'5]}'):
        s.status('/detokenize', body, key=key)
    s.lives()
    expect(not wrong, f'{wrong}')
    return f'{len(raw) + len(made)} bodies, 400 or a right answer, in {time.monotonic() - began:.1f} s'


def choose(f):
    global CHOSEN
    CHOSEN = f


def chosen(x):
    return CHOSEN(x)


def processes(n, f):
    """A pool of processes in which chosen(x) calls f(x), for any function f.  Clients that send
    much run in processes of their own: threads would slow down the client that checks whether the
    server answers."""
    return multiprocessing.get_context('fork').Pool(n, choose, (f,))


@attempt
def memory_of_requests():
    "bodies of 16 MB whose JSON takes 90 times as much, in a field that is ignored and in others, long stop strings, biases, choices with logprobs, 48 requests with two keys at once: memory against what is announced"
    home = new_home()
    keys = [make_key(home, 'a'), make_key(home, 'b')]
    s = Server('--work-memory', '256MB', '--max-request-memory', '128MB', home=home)
    stats = lambda: s.ask('/api/stats', key=s.token)[2]['work_memory']          # noqa: E731
    said = {**SHORT, 'messages': [{'role': 'user', 'content': 'a'}]}
    del said['prompt']
    s.ask('/v1/chat/completions', said, key=keys[0])
    before, empty = s.rss(), b'{},' * 5_200_000
    chat = lambda inside: b'{"max_tokens":2,"messages":[{"role":"user","content":"a"}],' + inside + b'}'         # noqa: E731
    bombs = {'ignored': ('/v1/chat/completions', chat(b'"metadata":{"a":[' + empty + b'{}]}'), {200}), 'messages': ('/v1/chat/completions', b'{"messages":[' + empty + b'{}]}', {413}),
             'tools': ('/v1/chat/completions', chat(b'"tools":[' + empty[:900_000] + b'{}]'), {413}), 'kwargs': ('/v1/chat/completions', chat(b'"chat_template_kwargs":{"a":[' + empty[:900_000] + b'1]}'), {413, 429}),
             'ids': ('/v1/completions', b'{"prompt":[' + b'1,' * 1_000_000 + b'1]}', {400}), 'unknown': ('/v1/completions', b'{"x":[' + empty[:900_000] + b'1]}', {400, 429}),
             'spaces': ('/tokenize', {'content': ' ' * 15_000_000}, {413}),
             'text': ('/tokenize', {'content': 'word ' * 100_000, 'with_pieces': True}, {200}), 'tokens': ('/detokenize', {'tokens': [5] * 1_000_000}, {200}),
             'template': ('/apply-template', {'messages': [{'role': 'user', 'content': 'a' * 1_000_000}]}, {200}),
             'stop strings': ('/v1/completions', {**SHORT, 'n': 128, 'temperature': 1, 'stop': ['a' * 990_000] * 16}, {400}),
             'short stop strings': ('/v1/completions', {**SHORT, 'n': 128, 'temperature': 1, 'stop': ['a' * 1024] * 16}, {200}),
             'biases': ('/v1/completions', b'{"prompt":"a","max_tokens":2,"n":128,"temperature":1,"logit_bias":{' + b','.join(b'"%d":1' % i for i in range(512)) + b'}}', {200}),
             'logprobs': ('/v1/completions', {'prompt': 'a', 'max_tokens': 200, 'n': 16, 'temperature': 1, 'ignore_eos': True, 'logprobs': 20}, {200}),
             'nested': ('/v1/chat/completions', chat(b'"tools":' + b'[' * 1_000_000), {400}),
             'members': ('/v1/chat/completions', chat(b'"tools":[{' + b','.join(b'"k%d":1' % i for i in range(30_000)) + b'}]'), {400})}
    wrong, peak = {}, [0]
    for name, (path, body, codes) in bombs.items():
        code, _, answer = s.ask(path, body, key=keys[0])
        if code not in codes:
            wrong[name] = code, str(answer)[:200]
    hold = stats()
    alone = s.rss('VmHWM')
    items = list(bombs.values())

    def again(i):
        try:
            return s.ask(*items[i % len(items)][:2], key=keys[i // len(items) % 2], timeout=120)[0]
        # the server refused the body before all was sent, or ended the answer because of a lack of
        # memory
        except (ConnectionError, http.client.IncompleteRead):
            return 429
    with processes(16, again) as pool:
        running = pool.map_async(chosen, range(3 * len(items)), 1)
        while not running.ready():
            peak[0] = max(peak[0], stats()['used_bytes'])
            s.lives('while bombs run')
    codes = running.get()
    wrong.update({f'code {c}': codes.count(c) for c in set(codes) - {200, 400, 413, 429, 503}})
    most, limit = s.rss('VmHWM'), hold['limit_bytes'] / 1e6
    expect(not wrong, f'{wrong}')
    expect(most - before <= limit * FAT, f'{most - before:.0f} MB more than before, {limit:.0f} MB are announced; one after the other {alone - before:.0f} MB')
    expect(until(lambda: stats()['used_bytes'] < 1e6 and stats()['holds'] <= 1, 10), f'held at the end: {stats()}')
    expect(until(lambda: s.rss() < before + 60 * FAT * FAT, 10), f'{before:.0f} MB before, {s.rss():.0f} MB afterwards')
    after = s.rss()
    s.stop()
    return (f'{before:.0f} MB before, at most {most:.0f} MB (one after the other {alone:.0f} MB) with {limit:.0f} MB announced, of which {stats_peak(hold, peak[0]):.0f} MB were held; '
            f'{after:.0f} MB afterwards; 200: {codes.count(200)}, 413: {codes.count(413)}, 429: {codes.count(429)}, 503: {codes.count(503)}')


def growing(n, seed):
    """A grammar of n words that no other request uses; compiled, it takes many times the memory of
    its text."""
    return 'root ::= (' + ' | '.join(f'"{seed:x}{i:x}" [a-z]{{1,{i % 40 + 1}}} r{i % 7}' for i in range(n)) + ')\n' + ''.join(f'r{i} ::= [a-f0-9]+ ("{i}" | r{(i + 1) % 7}) "z"\n' for i in range(7))


@attempt
def memory_of_grammars():
    "300 grammars that no other request has, of 100 to 10000 words, with two keys, 16 at once, beside bodies of 15 MB whose JSON takes 90 times as much: memory against what is announced for requests and for compiled grammars together"
    home = new_home()
    keys = [make_key(home, 'a'), make_key(home, 'b')]
    s = Server('--work-memory', '128MB', home=home)
    s.ask('/v1/completions', {**SHORT, 'grammar': 'root ::= "a"'}, key=keys[0])
    before, announced = s.rss(), 128 + 256e6 / 2**20
    # with sanitizers all 300 would take ten minutes
    n, bomb_size = (300, 5_000_000) if SLOW == 1 else (60, 1_000_000)
    bomb = b'{"max_tokens":2,"messages":[{"role":"user","content":"a"}],"tools":[' + b'{},' * bomb_size + b'{}]}'

    def one(i):
        try:
            if i % 10 == 9:
                return s.status('/v1/chat/completions', bomb, key=keys[i % 2], timeout=120)
            return s.status('/v1/completions', {'prompt': 'Once', 'temperature': 0, 'max_tokens': 3, 'grammar': growing((100, 1000, 10000)[i % 3], i)}, key=keys[i % 2], timeout=120)
        except ConnectionError:                 # refused while it was being sent
            return 429
    with processes(16, one) as pool:
        running = pool.map_async(chosen, range(n), 1)
        while not running.ready():
            s.lives('while grammars are compiled')
            running.wait(.1)
    codes = running.get()
    most = s.rss('VmHWM')
    held = s.ask('/api/stats', key=s.token)[2]['work_memory']
    expect(set(codes) <= {200, 400, 413, 429, 503} and codes.count(200) > n // 10, f'{ {c: codes.count(c) for c in set(codes)} }')
    expect(most - before <= announced * FAT, f'{most - before:.0f} MB more than before, {announced:.0f} MB are announced')
    expect(until(lambda: s.ask('/api/stats', key=s.token)[2]['work_memory']['used_bytes'] < 1e6, 10), f'held at the end: {held}')
    after = s.rss()
    s.stop()
    return f'{before:.0f} MB before, at most {most:.0f} MB with {announced:.0f} MB announced, {after:.0f} MB afterwards; ' + ', '.join(f'{c}: {codes.count(c)}' for c in sorted(set(codes)))


def stats_peak(hold, seen):
    return max(hold['peak_bytes'], seen) / 1e6


def deep(n):
    x = {'type': 'integer'}
    for _ in range(n):
        x = {'type': 'object', 'properties': {'a': x}, 'required': ['a']}
    return x


@attempt
def schemas_that_are_bombs():
    "regular expressions, schemas and grammars that explode, with two keys; /health and another key's answer meanwhile"
    s, key = Guarded.get(), Guarded.get().keys['user']
    said = {'messages': [{'role': 'user', 'content': 'a'}], 'max_tokens': 2}

    def schema(x):
        return {'response_format': {'type': 'json_schema', 'json_schema': {'name': 'a', 'schema': x}}}
    bombs = [{'regex': '(a*)*b'}, {'regex': '((a{1,1000}){1,1000}){1,1000}'}, {'regex': '(' * 100000}, {'regex': 'a' * 1000000}, {'regex': '(.*)(.*)(.*)(.*)x{5000}'}, {'regex': '[' + 'a-z' * 100000 + ']'},
            {'regex': '(a|b|ab)*c{500}' * 50},
             {'regex': '.{0,100000}'}, {'grammar': 'root ::= root'}, {'grammar': 'root ::= root root | "a"'}, {'grammar': 'root ::= a\n' + ''.join(f'a{i} ::= a{i + 1} a{i + 1}\n' for i in range(60))},
             {'grammar': 'root ::= a0\n' + ''.join(f'a{i} ::= a{i + 1} a{i + 1}\n' for i in range(60)) + 'a60 ::= "x"\n'}, {'grammar': 'root ::= ' + '(' * 50000},
             {'grammar': 'root ::= ("a"{1,1000}){1,1000}'}, schema({'$ref': '#'}), schema({'$ref': '#/a', 'a': {'$ref': '#/a'}}), schema(deep(300)), schema({'type': 'string', 'pattern': '((a{1,500}){1,500}){1,500}'}),
             schema({'type': 'string', 'minLength': 10**9}), schema({'type': 'array', 'items': {'type': 'array', 'minItems': 100000}, 'minItems': 100000}),
             schema({'anyOf': [{'type': 'object', 'properties': {f'k{i}': {'type': 'integer'}}} for i in range(3000)]}),
             schema({'type': 'object', 'properties': {f'k{i}': {'type': 'integer'} for i in range(10000)}}),
             schema({'type': 'integer', 'minimum': -10**300, 'maximum': 10**300}), schema({'enum': ['a' * 1000] * 1000}),
             schema({'allOf': [{'anyOf': [{'properties': {f'a{i}{j}': {'type': 'integer'}}} for j in range(10)]} for i in range(10)]})]
    wrong, longest = {}, 0
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        running = [(b, pool.submit(s.ask, '/v1/chat/completions', {**said, **b}, key)) for b in bombs]
        while not all(f.done() for _, f in running):
            began = time.monotonic()
            s.lives('while schemas are compiled')
            if s.status('/v1/completions', SHORT, key=s.keys['second']) != 200:
                wrong['another key'] = 1
            longest = max(longest, time.monotonic() - began)
        for b, f in running:
            if f.result()[0] not in (200, 400):
                wrong[str(b)[:120]] = f.result()[0], str(f.result()[2])[:200]
    expect(not wrong, f'{wrong}')
    expect(longest < 5 * SLOW, f'another key waited {longest:.1f} s')
    return f'{len(bombs)} bombs, 200 or 400; another key waited {longest:.2f} s at most; {s.rss():.0f} MB'


def ambiguous(n):
    """A grammar of n rules, each with two alternatives that can match the same text, so that the
    work for a mask grows with n."""
    return 'root ::= r0\n' + ''.join(f'r{i} ::= [a-z]* r{i + 1} | [a-f]+ r{i * 7 % n} | ""\n' for i in range(n)) + f'r{n} ::= "z"\n'


@attempt
def grammars_that_take_all_the_time():
    "masks of 40 to 3000 ambiguous rules, forced text without an end, tools, long stop strings, clients that leave: plain requests and short grammars beside them, /health, the same end each time; SIGTERM while they run"
    s, plain, mild, wrong, over, ending = Server('--drain', '1', '--max-seqs', '16'), [], [], {}, threading.Event(), threading.Event()

    def timed(body):
        began = time.monotonic()
        code, _, got = s.ask('/v1/completions', body)
        expect(code == 200, f'beside hostile ones: {code} {got}')
        return time.monotonic() - began
    deep_tool = {'type': 'function', 'function': {'name': 'f', 'strict': True, 'parameters': {'type': 'object', 'required': ['a'], 'properties': {
        'a': {'anyOf': [{'type': 'array', 'items': {'type': 'string', 'pattern': f'^[a-{chr(98 + i % 24)}]*{i}?$'}} for i in range(300)]}}}}}
    talk = {'messages': [{'role': 'user', 'content': 'a'}], 'max_tokens': 40}
    hostile = [{'grammar': ambiguous(n)} for n in (500, 3000, 40, 60)] + [
        {'grammar': 'root ::= "' + 'lorem ipsum ' * 4000 + '"', 'max_tokens': 1900}, {'regex': '(a?|b?|[a-m]*){1,60}z', 'max_tokens': 60},
        {'grammar': 'root ::= "a"+', 'stop': ['a' * n + 'b' for n in range(1000, 1016)], 'max_tokens': 300}, {**talk, 'tools': [deep_tool], 'tool_choice': 'required'}]
    alone = statistics.median(timed(SHORT) for _ in range(10))
    short = {'prompt': 'Once', 'regex': '[a-z]+( [a-z]+)*', 'max_tokens': 8, 'temperature': 0}
    timed(short)

    def attack(body):
        first = None
        while not over.is_set():
            body = {'prompt': 'Once', 'temperature': 0, 'max_tokens': 40, **body} if 'messages' not in body else {'temperature': 0, **body}
            with contextlib.suppress(OSError, http.client.HTTPException):           # the server ends
                code, _, got = s.ask('/v1/chat/completions' if 'messages' in body else '/v1/completions', body)
                if ending.is_set() or over.is_set():
                    break
                now = code, got['error']['message'] if code != 200 else got['choices'][0]
                if code not in (200, 400) or (first and now != first):
                    wrong[str(body)[:100]] = str(first)[:200], str(now)[:200]
                first = now

    def leave():
        while not over.is_set():
            with contextlib.suppress(OSError):
                c = s.open(request('/v1/completions', {'prompt': 'Once', 'grammar': ambiguous(500), 'max_tokens': 40}))
                time.sleep(.05)
                c.close()
    runners = [threading.Thread(target=attack, args=(b,), daemon=True)
            for b in hostile] + [threading.Thread(target=leave, daemon=True)]
    for t in runners:
        t.start()
    time.sleep(.3)
    end = time.monotonic() + 3
    while time.monotonic() < end:
        plain.append(timed(SHORT))
        mild.append(timed(short))
        s.lives('beside hostile grammars')
    ending.set()                            # an answer that ends from now on may say that the server stops
    seconds = s.stop()
    over.set()
    for t in runners:
        t.join(20)
    expect(not wrong, f'{wrong}')
    expect(max(plain) < alone + 1 * SLOW, f'a plain request took {max(plain):.2f} s, {alone:.3f} s alone')
    expect(seconds < 1 + 5 * SLOW, f'SIGTERM with --drain 1: the end came after {seconds:.1f} s')
    return f'{alone * 1000:.0f} ms alone; beside them {max(plain):.2f} s at most, {max(mild):.2f} s with a grammar of its own; the end {seconds:.1f} s after SIGTERM'


# ---- browsers ----

@attempt
def pages_of_others():
    "Host and Origin of others, their spellings, null, preflights, on HTTP and WebSockets, at servers that need no key, on loopback and beyond"
    s = Server('--allow-host', 'mine.example')
    up = ['Upgrade: websocket', 'Connection: Upgrade', 'Sec-WebSocket-Version: 13', 'Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==']
    n = 0
    for host in ('evil.example', 'evil.example:80', 'localhost.evil.example', 'evil.localhost.example', '127.0.0.1.evil.example', 'LOCALHOST.EVIL', 'xlocalhost', 'localhost@evil.example', 'evil.example@localhost', 'mine.example.evil', '0x7f.1', 'localhost,evil'):
        for extra, path in ((), '/v1/models'), (tuple(up), '/ws/chat'), (tuple(up), '/ws/stats'):
            code = s.raw(request(path, fields=['Connection: close', *extra]).replace(b'Host: localhost', b'Host: ' + host.encode()))
            n += 1
            expect(code and code[0] in (421, 400), f'Host {host} {path}: {code}')
    for origin in ('https://evil.example', 'null', 'http://localhost.evil.example', 'http://evil.example#localhost', 'http://localhost:1', 'file://', '', 'http://evil@localhost', 'x', 'http://127.0.0.1', 'https://evil.example, http://localhost'):
        for extra, path in ((), '/v1/models'), (tuple(up), '/ws/chat'), (tuple(up), '/ws/stats'):
            code = s.raw(request(path, fields=['Connection: close', f'Origin: {origin}', *extra]))
            n += 1
            expect(code == [403], f'Origin {origin!r} {path}: {code}')
    for origin in ('https://evil.example', 'null'):
        c = s.open(request('/v1/chat/completions', method='OPTIONS', fields=[f'Origin: {origin}', 'Access-Control-Request-Method: POST', 'Access-Control-Request-Headers: authorization', 'Connection: close']))
        code, fields, _ = wire.response(c.makefile('rb'))
        c.close()
        expect(code == 403 and not any(k.startswith('access-control') for k in fields), f'preflight of {origin}: {code} {fields}')
    c = s.open(request('/v1/models', fields=['Connection: close']))
    expect(not any(k.startswith('access-control') for k in wire.response(c.makefile('rb'))[1]), 'CORS without being asked for')
    c.close()
    expect(s.raw(request('/v1/models', fields=['Connection: close']).replace(b'localhost', b'mine.example')) == [200], '--allow-host')
    s.stop()
    s = Server('--host', '0.0.0.0', '--no-auth', '--allow-host', 'mine.example', model=False)
    codes = {h: s.raw(request('/v1/models', fields=['Connection: close']).replace(b'localhost', h.encode()))[0] for h in ('evil.example', 'mine.example', '127.0.0.1', 'localhost')}
    expect(list(codes.values()) == [421, 200, 200, 200], f'--no-auth: {codes}')
    s.stop()
    s = Server('--host', '0.0.0.0', '--no-auth', '--allow-host', '*', model=False)
    expect(s.raw(request('/v1/models', fields=['Connection: close']).replace(b'localhost', b'evil.example')) == [200], '--allow-host *')
    s.stop()
    return f'{n + 4} times 421 or 403, nothing allowed to pages'


@attempt
def websockets_without_a_key():
    "without a key, with a wrong one, as a subprotocol, in the first message; and frames that lie"
    s = Guarded.get()
    for more in ('', 'X-API-Key: wrong\r\n', f'Sec-WebSocket-Protocol: bearer, {s.keys["user"]}\r\n', f'Cookie: {s.keys["user"]}\r\n'):
        c = s.open(b'GET /ws/chat HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n' + more.encode() + b'\r\n')
        c.sendall(b'\x81\x85abcd' + bytes(a ^ b for a, b in zip(b'hello', b'abcda')))
        code = wire.response(c.makefile('rb'))[0]
        c.close()
        expect(code in (401, 429), f'{more[:30]}: {code}')
    before = s.rss()
    frames = {'2^63 bytes': b'\x81\xff' + b'\x80' + b'\0' * 7 + b'abcd', '2^40 bytes': b'\x81\xff' + struct.pack('>Q', 1 << 40) + b'abcd', 'no mask': b'\x81\x05hello', 'reserved bits': b'\xf1\x80abcd', 'a long ping': b'\x89\xfe\x01\x00abcd' + b'a' * 256,
              'a cut ping': b'\x09\x80abcd', 'continues nothing': b'\x80\x80abcd', 'opcode 3': b'\x83\x80abcd', 'a close of one byte': b'\x88\x81abcda', 'no UTF-8': b'\x81\x81abcd' + bytes([0xff ^ 0x61]),
              'fragments without end': b'\x01\x80abcd' + (b'\x00\xfe\xff\xff\0\0\0\0' + b'a' * 65535) * 100}
    for what, data in frames.items():
        c = s.open(b'GET /ws/chat HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nX-API-Key: ' + s.keys['user'].encode() + b'\r\n\r\n')
        f = c.makefile('rb')
        expect(wire.response(f)[0] == 101, 'the right key is refused')
        c.settimeout(10)
        try:
            c.sendall(data)
            answer = f.read()
        except ConnectionError:
            answer = b'\x88'
        except TimeoutError:
            raise Broken(f'{what}: the connection stays') from None
        finally:
            c.close()
        expect(answer[:1] in (b'\x88', b''), f'{what}: {answer[:20]}')
    expect(s.rss() < before + 30 * FAT, 'frames take memory')
    s.lives()
    return f'401; {len(frames)} kinds of frames end the connection'


# ---- limits ----

@attempt
def forty_at_once_at_a_limit_of_five():
    "40 requests of one key at the same time at a limit of 5 a minute; over two connections kept alive; on a WebSocket"
    s, key = Guarded.get(), Guarded.get().keys['five']
    codes = many(40, lambda i: s.status('/v1/completions', SHORT, key=key))
    expect(codes.count(200) == 5 and codes.count(429) == 35, f'{codes.count(200)} times 200')
    code, fields, body = s.ask('/tokenize', {'content': 'a'}, key=key)
    expect(code == 429 and int(fields['Retry-After']) > 0 and fields['X-RateLimit-Limit'] == '5', f'{code} {dict(fields)}')
    return f'5 times 200, 35 times 429: {body["error"]["message"]}'


@attempt
def tokens_over_their_limit():
    "a key of 60 tokens a minute: an answer that cannot fit, several choices, embeddings, ten at once"
    s, key = Guarded.get(), Guarded.get().keys['tokens']
    code, _, body = s.ask('/v1/completions', {**LONG, 'stream': False, 'max_tokens': 400}, key=key)
    expect(code == 400 and body['error']['code'] == 'token_limit_exceeded' and '60 tokens/min' in body['error']['message'], f'{code} {body}')
    expect(s.status('/v1/completions', {**SHORT, 'n': 20, 'max_tokens': 5, 'temperature': 1}, key=key) == 400, 'choices are not counted')
    expect(s.status('/v1/embeddings', {'input': ['a b c d'] * 20}, key=key) == 400, 'texts to embed are not counted')
    sizes = many(10, lambda i: s.ask('/v1/messages' if i % 2 else '/v1/completions',
            {'max_tokens': 25, 'ignore_eos': True, **({'messages': [{'role': 'user', 'content': 'a'}]} if i % 2 else {'prompt': 'Once'})}, key=key))
    used = sum(sum(v for k, v in r[2]['usage'].items() if k in ('total_tokens', 'input_tokens', 'output_tokens')) for r in sizes if r[0] == 200)
    expect(0 < used <= 60 and {r[0] for r in sizes} == {200, 429}, f'{[r[0] for r in sizes]}: {used} tokens')
    message = [r[2]['error']['message'] for r in sizes if r[0] == 429][-1]
    return f'{used} tokens, the others 400 and 429: {message}'


def ask_on_a_socket(s, key, body):
    """Ask one question on a new WebSocket; returns the last message of the answer."""
    w = wire.WebSocket(s.port, b'/ws/chat', fields=f'Authorization: Bearer {key}\r\n'.encode())
    expect(w.code == 101, f'the WebSocket: {w.code}')
    w.send(json.dumps(body).encode())
    while (m := json.loads(w.receive()[1]))['type'] == 'token':
        pass
    w.close()
    return m


@attempt
def forty_at_once_at_a_token_limit():
    "40 requests of one key at the same time at a limit of 500 tokens a minute, with and without max_tokens; 20 on WebSockets; a stream that is closed"
    home = new_home()
    key, other = make_key(home, 'many', '--token-limit', '500'), make_key(home, 'open', '--token-limit', '500')
    large, socket_key = make_key(home, 'large', '--token-limit', '100000'), make_key(home, 'socket', '--token-limit', '500')
    s = Server('--max-seqs', '8', home=home)
    got = many(40, lambda i: s.ask('/v1/completions', {**LONG, 'stream': False, 'max_tokens': 90 + i}, key=key))
    used = sum(r[2]['usage']['total_tokens'] for r in got if r[0] == 200)
    refused = [r for r in got if r[0] == 429]
    expect(0 < used <= 500 and len(refused) + sum(r[0] == 200 for r in got) == 40, f'{used} tokens, {[r[0] for r in got]}')
    expect(all(int(r[1]['Retry-After']) > 0 and r[1]['X-RateLimit-Limit'] == '500' and len(r[1].get_all('X-RateLimit-Limit')) == 1 for r in refused), f'{dict(refused[0][1])}')
    chat = {'messages': [{'role': 'user', 'content': 'a'}], 'ignore_eos': True}
    answers = [r for r in many(40, lambda i: s.ask('/v1/chat/completions', chat, key=other)) if r[0] == 200]
    total = sum(r[2]['usage']['total_tokens'] for r in answers)
    expect(0 < total <= 500 and all(r[2]['choices'][0]['finish_reason'] == 'length' for r in answers), f'without max_tokens: {total} tokens in {len(answers)} answers')
    on_sockets = many(20, lambda i: ask_on_a_socket(s, socket_key, {**chat, 'max_tokens': 60 + i}))
    taken = sum(m['usage']['total_tokens'] for m in on_sockets if m['type'] == 'done')
    expect(0 < taken <= 500 and all(m['type'] == 'done' or m.get('status') == 429 for m in on_sockets), f'on WebSockets: {taken} tokens, {on_sockets[-1]}')
    expect(any(m['type'] == 'error' and 'tokens/min' in str(m) for m in on_sockets), f'no WebSocket is refused: {on_sockets[0]}')
    c = s.open(request('/v1/completions', {**LONG, 'n': 50}, key=large))
    c.recv(1000)
    few = {**SHORT, 'max_tokens': 1900, 'n': 4}
    code, _, body = s.ask('/v1/completions', few, key=large)
    expect(code == 429 and 'reserved by running requests' in body['error']['message'], f'a running stream reserves nothing: {code} {body}')
    c.close()
    expect(until(lambda: s.status('/v1/completions', few, key=large) == 200, 10), 'what a cancelled stream had reserved stays')
    s.stop()
    return f'{used} tokens in {40 - len(refused)} answers, {total} without max_tokens, {taken} on WebSockets; {refused[0][2]["error"]["message"]}'


@attempt
def forged_addresses():
    "X-Forwarded-For, X-Real-IP and Forwarded, without --trust-proxy and with it in front of what the proxy adds"
    s = Server('--anonymous-limit', '10')
    codes = [s.status('/v1/models', fields=[('X-Forwarded-For', f'10.1.{i}.1'), ('X-Real-IP', f'10.1.{i}.2'), ('Forwarded', f'for=10.1.{i}.3')]) for i in range(20)]
    expect(codes.count(200) == 10, f'{codes}')
    until(lambda: len(s.log()) > 20)
    expect({x['client_ip'] for x in s.log() if 'client_ip' in x} == {'127.0.0.1'}, 'the log believes the client')
    s.stop()
    s = Server('--anonymous-limit', '10', '--trust-proxy', '--no-auth')
    codes = [s.status('/v1/models', fields=[('X-Forwarded-For', f'10.1.{i}.1, 192.0.2.7')]) for i in range(20)]
    expect(codes.count(200) == 10, f'with --trust-proxy: {codes}')
    forms = ['2001:db8::1', '2001:DB8::1', '2001:db8:0:0::2', '[2001:db8::3]:80', '2001:0db8:0000:0000:ffff::1', '[2001:db8::ffff]', '2001:db8::1%eth0', ' 2001:db8::9']
    codes = [s.status('/v1/models', fields=[('X-Forwarded-For', f)]) for f in forms * 3]
    expect(codes.count(200) == 10, f'one network of IPv6 in {len(forms)} forms: {codes.count(200)} times 200')
    codes = [s.status('/v1/models', fields=[('X-Forwarded-For', f)]) for f in ['198.51.100.4', '::ffff:198.51.100.4', '::ffff:c633:6404', '198.51.100.4:99', '[::ffff:198.51.100.4]:1', '0:0:0:0:0:ffff:c633:6404'] * 4]
    expect(codes.count(200) == 10, f'one address of IPv4 in 6 forms: {codes.count(200)} times 200')
    s.stop()
    return '10 times 200 at a limit of 10, in whatever form'


@attempt
def guesses():
    "100 wrong keys from one address, then a right one; the token of the administrator behind them; the address of a neighbour"
    home = new_home()
    key, known = make_key(home, 'a'), make_key(home, 'b')
    s = Server('--trust-proxy', home=home)

    def at(address, key):
        return s.status('/v1/models', key=key, fields=[('X-Forwarded-For', address)])
    for last in (1, 2, 3, 5, 9, 11, 200):
        expect(at(f'192.0.2.{last}', known) == 200, 'a right key is refused')
    codes = [at('192.0.2.1', f'zse-{i:043d}') for i in range(100)]
    expect(codes == [401] * 60 + [429] * 40, f'{codes.count(401)} times 401')
    expect(at('192.0.2.1', key) == 429 and at('192.0.2.1', s.token) == 429, 'a right guess looks like one')
    expect(at('192.0.2.1', known) == 200 and at('192.0.2.2', key) == 200, 'others are locked out')
    codes = [s.status('/v1/models', key='wrong', fields=[('X-Forwarded-For', f'[2001:db8:1:2::{i:x}]:{i}')]) for i in range(100)]
    expect(codes.count(401) == 60, f'by addresses of one IPv6 network: {codes.count(401)} times 401')
    s.stop()
    return '60 times 401, then 429, also for a right key'


@attempt
def one_key_beside_fifty_requests():
    "50 long requests of priority 1000 of one key; another key asks for a short answer"
    s, greedy = Guarded.get(), Guarded.get().keys['user']
    with concurrent.futures.ThreadPoolExecutor(50) as pool:
        began = time.monotonic()
        running = [pool.submit(s.ask, '/v1/completions', {**LONG, 'stream': False, 'max_tokens': 300, 'priority': 1000, 'prompt': f'{i}'}, greedy) for i in range(50)]
        until(lambda: s.ask('/api/stats/models', key=s.keys['models'])[2]['models'][0]['waiting'] > 20)
        asked = time.monotonic()
        code = s.status('/v1/completions', {**SHORT, 'max_tokens': 20, 'ignore_eos': True}, key=s.keys['second'])
        waited = time.monotonic() - asked
        done = sum(f.done() for f in running)
        concurrent.futures.wait(running)
        all_of_them = time.monotonic() - began
    expect(code == 200 and done < 25, f'{code} after {waited:.2f} s, when {done} of the 50 were done')
    return f'200 after {waited:.2f} s, when {done} of the 50 were done ({all_of_them:.1f} s)'


@attempt
def a_queue_filled_by_one_key():
    "one key fills a queue of 20 and the places; another key's request comes"
    home = new_home()
    greedy, other = make_key(home, 'greedy'), make_key(home, 'other', '--scope', 'chat,models')
    s = Server('--max-queue', '20', '--max-seqs', '2', home=home)
    with concurrent.futures.ThreadPoolExecutor(40) as pool:
        running = [pool.submit(s.status, '/v1/completions', {**LONG, 'stream': False, 'max_tokens': 600, 'priority': 1000, 'prompt': f'{i}'}, greedy) for i in range(40)]
        until(lambda: s.ask('/api/stats/models', key=other)[2]['models'][0]['waiting'] >= 20, 10)
        codes = [s.status('/v1/completions', SHORT, key=other) for _ in range(3)]
        got = [f.result() for f in running]
    expect(codes == [200] * 3 and set(got) <= {200, 503}, f'{codes}, {got}')
    s.stop()
    return f'200; of the 40: {got.count(200)} times 200, {got.count(503)} times 503'


# ---- keys that end ----

@attempt
def keys_that_end_in_a_stream():
    "a key deleted, disabled, rotated, expired while it streams; its next request, also on the same connection, on a WebSocket, and pipelined behind the stream"
    s = Server('--max-seqs', '4', home=(home := new_home()))
    make_key(home, 'first')
    took = {}
    for how in ('delete', 'disable', 'rotate', 'expire'):
        ends = int(time.time()) + 3
        key = make_key(s.home, how, '--scope', 'chat,models', *(['--expires', time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime(ends))] if how == 'expire' else []))
        expect(until(lambda key=key: s.status('/v1/models', key=key) == 200, 3), f'{how}: a new key is not known')
        if how == 'expire':
            time.sleep(max(0, ends - .7 - time.time()))
        behind = request('/v1/models', key=key, fields=['Connection: close'])
        # four requests on one connection, so that one of them still runs when the key ends, even on
        # a fast machine; the next one is refused
        one = request('/v1/completions', {**LONG, 'n': 4, 'max_tokens': 950 if SLOW == 1 else 380}, key=key)
        stream = s.open(one if how == 'expire' else 4 * one + behind)
        w = s.open(b'GET /ws/chat HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nX-API-Key: ' + key.encode() + b'\r\n\r\n')
        socket_ = wire.WebSocket.__new__(wire.WebSocket)
        socket_.s, socket_.f = w, w.makefile('rb')
        expect(wire.response(socket_.f)[0] == 101, 'no WebSocket')
        stream.recv(100)
        if how == 'expire':
            until(lambda: s.status('/v1/models', key=key) != 200, 5)
            stream.sendall(behind)              # a fast machine's stream may have ended by now
            took[how] = 0
        else:
            program('zse-apikey', how, how, home=s.home)
            began = time.monotonic()
            expect(until(lambda key=key: s.status('/v1/models', key=key) in (401, 429), 5), f'{how}: still good')
            took[how] = time.monotonic() - began
            expect(took[how] < 1 * SLOW, f'{how}: it took {took[how]:.2f} s')
        socket_.send(json.dumps({'messages': [{'role': 'user', 'content': 'a'}]}).encode())
        m = json.loads(socket_.receive()[1])
        expect(m.get('status') == 401, f'{how}: the WebSocket goes on: {m}')
        socket_.close()
        f = stream.makefile('rb')
        rest = f.read()
        expect(b'[DONE]' in rest and re.search(rb'HTTP/1.1 (401|429)', rest), f'{how}: what was pipelined is answered: {rest[-200:]}')
        stream.close()
    s.stop()
    return 'gone for the next request within ' + ', '.join(f'{v:.2f} s ({k})' for k, v in took.items() if v)


@attempt
def a_file_of_keys_in_trouble():
    "keys.db locked, emptied, replaced by garbage, by another with no keys, readable by others, and removed, while the server runs"
    home = new_home()
    key = make_key(home, 'a')
    s = Server(home=home)
    db = home / 'keys.db'

    def check(what):
        time.sleep(.4)
        good, none = s.status('/v1/models', key=key), s.status('/v1/models')
        expect((good, none) == (200, 401), f'{what}: {good} with the key, {none} without')
        s.lives(what)
    whole = db.read_bytes()
    lock = sqlite3.connect(db, isolation_level=None)
    lock.execute('BEGIN EXCLUSIVE')
    check('locked')
    lock.execute('ROLLBACK')
    lock.close()
    for what, data in (('garbage', b'garbage' * 1000), ('cut', whole[:5000]), ('empty', b'')):
        db.write_bytes(data)
        check(what)
        (home / 'new').write_bytes(data)
        (home / 'new').chmod(0o600)
        (home / 'new').rename(db)
        check(f'{what}, as another file')
    db.write_bytes(whole)
    db.chmod(0o644)
    check('readable by others')
    db.unlink()
    check('removed')
    db.symlink_to('/dev/zero')
    check('a link')
    db.unlink()
    os.mkfifo(db, 0o600)
    check('a FIFO')
    db.unlink()
    s.stop()
    return 'the key stays good, 401 without'


# ---- paths ----

@attempt
def paths_of_models():
    ".., absolute, links out of --model-dir, /proc/self/exe, a FIFO, devices, zero bytes, the hub, with an admin key; without --model-dir from this machine"
    s, admin = Guarded.get(), Guarded.get().keys['admin']
    inside = T / 'models'
    outside = T / 'outside.zse'
    shutil.copy(TINY, outside)
    for name, target in (('link.zse', outside), ('up', T), ('dev.zse', '/dev/zero'), ('exe', '/proc/self/exe'), ('loop', 'loop')):
        (inside / name).symlink_to(target)
    os.mkfifo(inside / 'fifo')
    (inside / 'deep').mkdir()
    for path in ('../outside.zse', str(outside), 'deep/../../outside.zse', 'link.zse', 'up/outside.zse', './../outside.zse', str(inside) + '/../outside.zse', str(inside) + '-other/x', '/etc/passwd', '/proc/self/exe', 'exe', 'dev.zse', '/dev/zero', 'loop',
                 'org/name', '', '/', '..', 'file://' + str(outside), 'https://evil.example/m.zse', '~/x', 'x' * 5000):
        code, _, body = s.ask('/api/models/load', {'model_path': path}, key=admin)
        expect(code in (403, 400), f'{path[:60]}: {code} {body}')
        expect(str(T) not in str(body) or str(T) in path, f'{path[:60]}: the answer tells more: {body}')
    expect(s.status('/api/models/load', b'{"model_path":"tiny.zse\\u0000.txt"}', key=admin) == 400, 'a zero byte')
    for path in ('fifo', 'deep', '.'):
        code, _, body = s.ask('/api/models/load', {'model_path': path}, key=admin, timeout=20)
        expect(code in (400, 403, 409, 422, 500, 503) or not 200 <= code < 300, f'{path}: {code} {body}')
    s.lives()
    t = Server(model=False)
    for path in ('/proc/self/exe', '/dev/zero', '/dev/stdin', str(inside / 'fifo'), '/proc/self/mem', '/dev/tty', '/', '/proc/kmsg', '/etc/passwd'):
        try:
            code, _, body = t.ask('/api/models/load', {'model_path': path}, key=t.token, timeout=20)
        except TimeoutError as e:
            raise Broken(f'{path}: no answer within 20 s') from e
        expect(code >= 400, f'{path}: {code} {body}')
        expect('root:' not in str(body), f'{path}: contents are told: {body}')
    expect(t.status('/api/models/load', {'model_path': str(TINY)}, key=t.token) == 200, 'a model cannot be loaded after that')
    t.stop()
    return '403, the same for what is there and what is not; nothing hangs'


# ---- the log ----

HOSTILE = '"\x1b[2J\\u0000\u2028<script>=1+1\x85\x9b31m'


@attempt
def lines_put_into_the_log():
    "newlines, quotes, control bytes, escapes of terminals, formulas: in the path, the method, the User-Agent, the model, the X-Forwarded-For"
    home = new_home()
    make_key(home, 'a', '--scope', 'chat,admin')
    s = Server('--trust-proxy', home=home)
    key = secrets[-2]
    forged = '{"timestamp":"x","event":"begin","hash":"' + '0' * 64 + '"}'
    paths = ['/x%0a' + forged.replace('"', '%22'), '/x%0d%0aSet-Cookie:a', '/%22,%22status_code%22:200', '/%1b[2J%9b', '/%ff%fe%c0%80', '/=cmd|calc', '/%e2%80%ae', '/' + '%0a' * 3000, '/a\\', "/@SUM(1)", '/%7f%c2%9b31m']
    for p in paths:
        c = s.open(request(p, key=key, fields=['User-Agent: =1+1;\x9b31m"\\x', 'X-Forwarded-For: =1+1","a', 'Connection: close']))
        code, fields, _ = wire.response(c.makefile('rb'))
        c.close()
        expect(code in (400, 404) and 'set-cookie' not in fields, f'{p[:20]}: {code}')
    for model in (HOSTILE, forged + '\n' + forged, '=cmd', '\n', '\u202e\x9b'):
        s.ask('/v1/completions', {**SHORT, 'model': model}, key=key)
        s.ask('/v1/models/' + '%0a%1b', key=key)
    s.raw(b'+1\n\x1b[2J / HTTP/1.1\r\nHost: localhost\r\n\r\n')
    s.raw(request('/x', method='=1+1', fields=['Connection: close']))
    until(lambda: len(s.log()) >= len(paths) + 12, 5)
    text = (home / 'audit' / 'requests.jsonl').read_bytes() + (home / 'audit' / 'anonymous.jsonl').read_bytes()
    expect(not re.search(rb'[\x00-\x09\x0b-\x1f\x7f]', text), 'control bytes are in the log')
    expect(all(set(json.loads(line)) >= {'timestamp', 'hash'} for line in text.splitlines()), 'a line of the client')
    expect(program('zse-audit', 'verify', '--json', home=home).stdout.count('"intact": true') or json.loads(program('zse-audit', 'verify', '--json', home=home).stdout)['intact'], 'the chain is broken')
    n = json.loads(program('zse-audit', 'verify', '--json', home=home).stdout)
    expect(n['foreign_lines'] == 0, f'{n}')
    for command in ('summary', 'recent', 'query'):
        out = program('zse-audit', command, home=home).stdout
        steers = re.findall('[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202e]', out)
        expect(not steers, f'zse-audit {command} gives the terminal {set(steers)}')
    table = T / 'log.csv'
    program('zse-audit', 'export', '-f', 'csv', '-o', table, home=home)
    with open(table, newline='', encoding='utf-8') as f:
        cells = [c for row in csv.reader(f) for c in row]
    bad = [c for c in cells if re.match(r'[=+@\t\r-]', c) and not re.fullmatch(r'-?[0-9.]+', c)]
    expect(not bad, f'cells that a spreadsheet computes: {bad[:3]}')
    expect(not re.search('[\x1b\x9b]', s.said()), 'the messages have escapes')
    s.stop()
    return f'{text.count(10)} lines, each the server\'s own; {len(cells)} cells, none a formula'


@attempt
def a_log_that_was_changed():
    "a line changed, taken out, put in twice, moved, its tail cut, the whole written anew: zse-audit verify, with --expect"
    s = Server()
    for _ in range(10):
        s.status('/v1/models')
    until(lambda: len(log_of(s.home, 'anonymous')) >= 11)
    s.stop()
    file = s.home / 'audit' / 'anonymous.jsonl'
    lines = file.read_bytes().splitlines(keepends=True)
    head = re.search(r'([0-9a-f]{64}) anonymous', program('zse-audit', 'head', home=s.home).stdout)[1]

    def verify(what, changed, *args, code=1):
        file.write_bytes(b''.join(changed))
        p = program('zse-audit', 'verify', *args, home=s.home, code=None)
        expect(p.returncode == code, f'{what}: exit {p.returncode}: {p.stdout}')
    verify('as it is', lines, '--expect', head, code=0)
    verify('changed', [*lines[:4], lines[4].replace(b'200', b'201'), *lines[5:]])
    verify('taken out', lines[:4] + lines[5:])
    verify('twice', lines[:5] + lines[4:])
    verify('moved', [*lines[:4], lines[5], lines[4], *lines[6:]])
    verify('begins later', lines[2:])
    verify('a hash changed', [*lines[:4], lines[4].replace(b'"hash":"', b'"hash":"0', 1)[:-4] + b'"}\n', *lines[5:]])
    verify('cut', lines[:-2], '--expect', head)
    verify('cut, nothing kept elsewhere', lines[:-2])
    verify('empty', [], '--expect', head)
    file.unlink()
    t = Server(home=s.home)
    t.status('/v1/models')
    until(lambda: len(log_of(t.home, 'anonymous')) >= 2)
    t.stop()
    p = program('zse-audit', 'verify', '--expect', head, home=s.home, code=None)
    expect(p.returncode == 1, f'written anew: {p.stdout}')
    return 'exit 1 for each'


@attempt
def a_log_that_is_flooded():
    "one connection without a key: 404s of %01 paths for two seconds, then a deleted file: the lines of a key, zse-audit verify --since"
    home = new_home()
    key = make_key(home, 'a')
    s = Server('--audit-size', '20kB', home=home)
    s.ask('/v1/completions', {**SHORT, 'prompt': 'a'}, key=key)
    expect(until(lambda: any(x.get('total_tokens') for x in s.log())), 'the line of the key is not there')
    head = re.search(r'([0-9a-f]{64}) requests', program('zse-audit', 'head', home=home).stdout)[1]
    asked, path, end = 0, '/%01' * 400, time.monotonic() + 2
    with wire.connect(s.port) as c:
        f = c.makefile('rb')
        while time.monotonic() < end:
            c.sendall(b''.join(request(f'/{asked + i}{path}') for i in range(50)))
            expect(all(wire.response(f)[0] == 404 for _ in range(50)), 'another answer')
            asked += 50
    s.stop()
    files = [x for x in (home / 'audit').iterdir() if x.name.startswith('anonymous') and '.jsonl' in x.name]
    size = sum(x.stat().st_size for x in files)
    expect(size < 250_000, f'{size} bytes in {len(files)} files')
    lines = [json.loads(x) for x in program('zse-audit', 'query', '-l', 1000, '--json', home=home).stdout.splitlines()]
    expect(any(x['api_key_name'] == 'a' and x['total_tokens'] for x in lines), 'the line of the key is gone')
    counted = sum(x.get('count', 1) for x in lines if x['status_code'] == 404)
    expect(counted >= asked - 100, f'{counted} of {asked} requests are counted')          # of the first 60, lines may have been rotated away
    program('zse-audit', 'verify', '--since', head, home=home)
    (home / 'audit' / 'requests.jsonl').unlink()
    p = program('zse-audit', 'verify', '--since', head, home=home, code=None)
    expect(p.returncode == 1 and p.stderr, f'a file was deleted: {p.returncode} {p.stdout}')
    return f'{asked} requests: {size} bytes; {p.stderr.strip()[-100:]}'


@attempt
def prompts_in_the_log():
    "prompts in broken JSON, wrong types, stops, schemas, templates, unknown fields: what the error says, and the log"
    s, key = Guarded.get(), Guarded.get().keys['user']
    said = {'messages': [{'role': 'user', 'content': PROMPT}]}
    for path, body in (('/v1/completions', f'{{"prompt": {PROMPT}}}'.encode()), ('/v1/completions', f'{{"prompt": "{PROMPT}"x'.encode()), ('/v1/completions', f'"{PROMPT}"'.encode()), ('/v1/completions', f'{{"prompt": "a\n{PROMPT}"}}'.encode()),
                       ('/v1/completions', f'{{"{PROMPT}": 1, "{PROMPT}": 2}}'.encode()), ('/v1/completions', f'{PROMPT}'.encode()), ('/v1/completions', f'{{"prompt": "\\u12{PROMPT}"}}'.encode()), ('/v1/completions', f'{{"prompt": [{PROMPT}'.encode()),
                       ('/v1/chat/completions', {'messages': PROMPT}), ('/v1/chat/completions', {'messages': [PROMPT]}), ('/v1/chat/completions', {'messages': [{'role': PROMPT, 'content': 'a'}]}),
                       ('/v1/chat/completions', {'messages': [{'role': 'user', 'content': [{'type': PROMPT}]}]}),
                       ('/v1/chat/completions', {**said, 'stop': [PROMPT, 5]}), ('/v1/chat/completions', {**said, 'regex': PROMPT + '('}),
                       ('/v1/chat/completions', {**said, 'grammar': 'root ::= ' + PROMPT}), ('/v1/chat/completions', {**said, 'grammar': PROMPT}),
                       ('/v1/chat/completions', {**said, 'response_format': {'type': 'json_schema', 'json_schema': {'name': 'a', 'schema': {'type': PROMPT}}}}), ('/v1/chat/completions', {**said, 'response_format': {'type': PROMPT}}),
                       ('/v1/chat/completions', {**said, 'temperature': PROMPT}), ('/v1/chat/completions', {**said, 'logit_bias': {PROMPT: 1}}), 
                       ('/v1/chat/completions', {**said, 'tools': [{'type': 'function', 'function': {'name': PROMPT + ' x'}}]}), ('/v1/chat/completions', {**said, 'tool_choice': PROMPT}),
                       ('/v1/responses', {'input': [{'type': PROMPT}]}), ('/v1/responses', {'input': PROMPT}),
                       ('/v1/messages', {'messages': [{'role': 'user', 'content': [{'type': PROMPT}]}], 'max_tokens': 2}), ('/v1/embeddings', {'input': [PROMPT, 5]}),
                       ('/tokenize', {'content': [PROMPT]}), ('/v1/embeddings', {'input': 'a', 'encoding_format': PROMPT}),
                       ('/v1/chat/completions', {**said, PROMPT: 1}), ('/v1/chat/completions', {**said, 'max_tokens': 2, 'stream': True}),
                       ('/v1/completions', {**SHORT, 'prompt': PROMPT * 3000}), ('/v1/completions', {**SHORT, 'suffix': PROMPT})):
        s.status(path, body, key=key)
    w = s.open(b'GET /ws/chat HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nX-API-Key: ' + key.encode() + b'\r\n\r\n')
    x = wire.WebSocket.__new__(wire.WebSocket)
    x.s, x.f = w, w.makefile('rb')
    wire.response(x.f)
    for data in (PROMPT.encode(), f'{{"messages": {PROMPT}}}'.encode()):
        x.send(data)
        x.receive()
    x.close()
    expect(until(lambda: s.ask('/metrics', key=s.keys['models'])[2].count('zse_audit_waiting 0'), 5), 'the log is not written')
    found = [x for x in s.log() if PROMPT in json.dumps(x)]
    expect(not found, f'{len(found)} lines, as {sorted({x["error_message"] or x["path"] for x in found})}')
    return 'none of it is in the log'


@attempt
def keys_in_the_log():
    "the key where it does not belong: in the path, the User-Agent, Host, Origin, X-Request-Id, X-Forwarded-For, the model's name, other headers with a wrong value"
    s, key = Guarded.get(), Guarded.get().keys['user']
    for data in (request(f'/v1/models/{key}', key=key), request(f'/api/keys/{key}', key=s.keys['admin'], method='DELETE'), request(f'/{key}'),
            request('/v1/models', key=key, fields=[f'User-Agent: {key}']), request('/v1/models', fields=[f'Origin: {key}']),
                 request('/health').replace(b'localhost', key.encode()), request(f'http://{key}@localhost/health'), request('/health', fields=[f'Expect: {key}']),
                 request('/health', fields=[f'Content-Encoding: {key}']), request('/health', fields=[f'Transfer-Encoding: {key}']),
                 request('/health', fields=[f'Content-Length: {key}']), request('/v1/completions', {**SHORT, 'model': key}, key=key),
                 request('/v1/models', key=key, fields=[f'X-Request-Id: {key}']), request('/health', method=key[:30]),
                 request(f'/api/audit/query?limit={key}', key=s.keys['admin']), request('/api/models/unload', {'model_id': key}, key=s.keys['admin']),
                 request('/api/models/load', {'model_path': key}, key=s.keys['admin']), request('/tokenize', {'content': 'a', key: 1}, key=key)):
        s.raw(data.replace(b'\r\n', b'\r\nConnection: close\r\n', 1))
    expect(until(lambda: s.ask('/metrics', key=s.keys['models'])[2].count('zse_audit_waiting 0'), 5), 'the log is not written')
    found = [x for x in s.log() if key in json.dumps(x)]
    expect(not found, f'{len(found)} lines, as {[(x["path"], x["user_agent"], x["model_id"], x["error_message"]) for x in found]}'.replace(key, 'KEY'))
    return 'none of it is in the log'


@attempt
def secrets_beside_the_server():
    "keys, the token and prompts in messages, /metrics, statistics, the list of processes, the files of ZSE_HOME"
    s = Guarded.get()
    s.status('/v1/completions', {**SHORT, 'prompt': PROMPT}, key=s.keys['user'])
    texts = {path: json.dumps(s.ask(path, key=s.keys['admin'])[2]) for path in ('/metrics', '/api/stats', '/api/stats/models', '/api/analytics', '/api/analytics/requests', '/api/keys', '/api/audit/recent', '/api/audit/query', '/api/audit/summary')}
    texts['messages'] = s.said()
    texts['ps'] = pathlib.Path(f'/proc/{s.p.pid}/cmdline').read_text()
    for f in s.home.rglob('*'):
        if f.is_file() and f.name != 'admin.token':
            texts[str(f)] = f.read_bytes().decode('latin-1')
            expect(f.stat().st_mode & 0o77 == 0, f'{f}: others may read it')
    for where, text in texts.items():
        expect(PROMPT not in text, f'a prompt is in {where}')
        for secret in [*s.keys.values(), s.token]:
            expect(secret not in text, f'a key is in {where}')
    return f'none in {len(texts)} places'


@attempt
def a_core_file():
    "the server is ended by SIGSEGV where core files are allowed, after a key and a prompt came"
    if pathlib.Path('/proc/sys/kernel/core_pattern').read_text()[0] in '|/':
        return 'not tried: this system gives core files to a program, or into another folder'
    if SLOW > 1:
        return 'not tried: the sanitizer reports the signal'
    home, folder = new_home(), T / 'core'
    folder.mkdir()
    key = make_key(home, 'a')
    s = Server(home=home, cwd=folder, core=resource.RLIM_INFINITY)
    s.status('/v1/completions', {**SHORT, 'prompt': PROMPT}, key=key)
    s.stop(signal.SIGSEGV)
    for f in glob.glob(str(folder / '*')):
        data = pathlib.Path(f).read_bytes()
        what = [w for w, x in (('the key', key), ('the token', s.token), ('the prompt', PROMPT)) if x.encode() in data]
        expect(not what, f'{os.path.basename(f)} of {len(data) >> 20} MB has {", ".join(what)}')
    return 'no core file'


@attempt
def the_time_of_checks():
    "400 wrong keys that share 0, 20 and 46 characters with a right one, in turns (coarse: a thousandfold comparison byte by byte would not show either)"
    home = new_home()
    key = make_key(home, 'a')
    s = Server('--trust-proxy', home=home, model=False)
    forms = {n: key[:n] + ('B' if key[n] == 'A' else 'A') * (47 - n) for n in (0, 20, 46)}
    c = wire.connect(s.port)
    f = c.makefile('rb')
    times = {n: [] for n in forms}
    for i in range(400):
        for n, text in forms.items():
            data = request('/v1/models', key=text, fields=[f'X-Forwarded-For: 10.{n}.{i // 50}.1'])
            began = time.perf_counter()
            c.sendall(data)
            code = wire.response(f)[0]
            times[n].append(time.perf_counter() - began)
            expect(code == 401, f'{code}')
    c.close()
    m = {n: statistics.median(t) * 1e6 for n, t in times.items()}
    spread = statistics.median(abs(t * 1e6 - m[0]) for t in times[0])
    expect(max(m.values()) - min(m.values()) < max(3 * spread, 15), f'{m}')
    s.stop()
    return 'medians ' + ', '.join(f'{v:.0f} us' for v in m.values())


@attempt
def conversations_and_documents_of_others():
    "each path of a conversation and of a document with the key of another client; the tools and /mcp, too"
    home = new_home()
    owner, other = make_key(home, 'owner'), make_key(home, 'other')
    s = Server(home=home)
    chat = '/api/chat/conversations/' + s.ask('/api/chat/conversations', {'title': PROMPT}, owner)[2]['id']
    s.ask(chat + '/messages', {'role': 'user', 'content': PROMPT}, owner)
    document = s.ask('/api/rag/documents', {'name': 'a.md', 'content': PROMPT + ' is the word', 'collection': 'own'}, owner)[2]['id']
    call = {'name': 'rag_search', 'arguments': {'query': PROMPT}}
    tried = [(method, chat + rest, body, 404) for method, rest, body in (
        ('GET', '', None), ('PATCH', '', {'title': 'x'}), ('DELETE', '', None), ('GET', '/messages', None),
        ('POST', '/messages', {'role': 'user', 'content': 'x'}), ('DELETE', '/messages', None), ('GET', '/messages/1', None),
        ('PATCH', '/messages/1', {'content': 'x'}), ('DELETE', '/messages/1', None), ('GET', '/export?download=true', None))]
    tried += [('GET', '/api/chat/search?q=' + PROMPT, None, 200), ('DELETE', '/api/chat/conversations?all=true', None, 200),
        ('GET', f'/api/rag/documents/{document}?chunks=true', None, 404), ('DELETE', f'/api/rag/documents/{document}', None, 404),
        ('DELETE', '/api/rag/collections/own', None, 404), ('POST', '/api/rag/search', {'query': PROMPT}, 200),
        ('POST', '/api/rag/search', {'query': PROMPT, 'document_ids': [document]}, 404),
        ('POST', '/api/rag/context', {'query': PROMPT, 'collections': 'own'}, 404), ('POST', '/api/tools/execute', call, 200),
        ('POST', '/mcp', {'jsonrpc': '2.0', 'id': 1, 'method': 'tools/call', 'params': call}, 200)]
    for method, path, body, want in tried:
        code, _, answer = s.ask(path, body, other, method)
        said = json.dumps({k: v for k, v in answer.items() if k != 'query'})
        expect(code == want and PROMPT not in said, f'{method} {path}: {code} {said[:200]}')
    for path in ('/api/chat/conversations?tag=%00', '/api/chat/conversations?folder=' + 'a' * 5000, '/api/rag/documents?collection=%00'):
        expect(s.status(path, key=owner) == 400, f'{path[:40]}: the filter has no effect')
    expect(s.ask(chat + '/messages', key=owner)[2]['messages'][0]['content'] == PROMPT, 'the message has changed')
    expect(s.status('/api/rag/documents/' + document, key=owner) == 200, 'the document is gone')
    s.stop()
    return f'{len(tried)} requests'


@attempt
def documents_and_questions_that_are_bombs():
    "a line of 8 MB, a question of 60 kB without a blank, one of 1 MB, a text of brackets, a name cut within a character"
    s = Server()
    code = s.status('/api/rag/documents', {'name': 'a.txt', 'content': 'a ' * (4 << 20)}, timeout=120)
    expect(code == 200, f'the line: {code}')
    expect(SLOW > 1 or s.rss('VmHWM') < 200, f'the line took {s.rss("VmHWM"):.0f} MB')
    codes = [s.status('/api/rag/search', {'query': 'a-' * n}, timeout=60) for n in (30000, 500000)]
    expect(codes[0] in (200, 503) and codes[1] == 413, f'questions: {codes}')
    expect(s.status('/api/tools/parse', {'content': '[' * 30000}) == 200, 'brackets')
    call = {'jsonrpc': '2.0', 'id': 1, 'method': 'tools/call', 'params': {'name': 'a' + 'é' * 100}}
    expect(s.ask('/mcp', call)[2].get('error', {}).get('code') == -32602, 'a name in /mcp')
    lives = s.lives('afterwards')
    s.stop()
    return f'{codes}, {lives}'

# ---- downloads and conversions ----

class SilentHub:
    """A hub that accepts connections and never answers, so that a job that asks it runs until it is
    cancelled."""

    def __init__(self):
        self.s = socket.socket()
        self.s.bind(('127.0.0.1', 0))
        self.s.listen(64)
        self.env = {'HF_ENDPOINT': f'http://127.0.0.1:{self.s.getsockname()[1]}', 'HF_HOME': str(new_home()), 'HF_HUB_DISABLE_XET': '1'}


def children(s):
    return [int(x) for x in pathlib.Path(f'/proc/{s.p.pid}/task/{s.p.pid}/children').read_text().split()] + [
        int(x) for t in pathlib.Path(f'/proc/{s.p.pid}/task').iterdir() if t.name != str(s.p.pid)
        for x in (t / 'children').read_text().split()]


def files_below(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob('*'))


@attempt
def jobs_without_the_right():
    "each path of a job, also in other spellings, without a key, with a wrong one and with keys of every scope but admin"
    hub, home = SilentHub(), new_home()
    keys = {name: make_key(home, name, *options) for name, options in (
        ('any', ()), ('chat', ('--scope', 'chat')), ('models', ('--scope', 'models')), ('embed', ('--scope', 'embeddings')))}
    s = Server(home=home, model=False, env=hub.env)
    jobs, order = '/api/models/jobs', {'source': 'a/b', 'kind': 'download'}
    code, _, job = s.ask(jobs, order, key=s.token)
    expect(code == 202, f'the order of the administrator: {code} {job}')
    tried = [('GET', jobs, None), ('POST', jobs, order), ('POST', jobs, {'source': 'c/d'}), ('GET', jobs + '/events', None), ('GET', jobs + '/1', None),
             ('DELETE', jobs + '/1', None), ('POST', jobs + '/1/resume', None), ('HEAD', jobs, None), ('GET', '/api/models/files', None),
             ('DELETE', '/api/models/files/tiny.zse', None), ('DELETE', '/api//models/jobs/1', None), ('DELETE', jobs + '/%31', None),
             ('DELETE', '/v1/../api/models/jobs/1', None), ('DELETE', '/api/models/./jobs/1', None), ('DELETE', jobs + '/1/', None)]
    for name, key in ((None, None), ('wrong', 'zse-' + 'a' * 43), *keys.items()):
        for method, path, body in tried:
            codes = s.raw(request(path, body, key, method, ['Connection: close']))
            unknown = name in (None, 'wrong') and (method, path, body) in tried[:10]
            expect(codes and codes[0] in ((401, 429) if unknown else (400, 401, 403, 404, 405, 429)), f'{method} {path} with {name}: {codes}')
    left = s.ask(jobs, key=s.token)[2]['jobs']
    expect([(j['id'], j['state']) for j in left] == [(job['id'], 'running')], f'{left}')
    s.stop()
    return f'{len(tried)} requests with each of {len(keys) + 2}: 401, 403 or 404; the job runs'


@attempt
def names_of_jobs():
    "names and sources with ../, absolute ones, links and devices below the folder of models, options of the converter, control characters; huge fields, ids and numbers"
    hub, folder = SilentHub(), new_home()
    shutil.copytree(ROOT / 'models' / 'tiny', folder / 'source')
    (folder / 'link').symlink_to('/etc')
    (folder / 'loop').symlink_to('loop')
    os.mkfifo(folder / 'fifo')
    before, outside = files_below(folder), sorted(x for x in os.listdir(T) if not x.startswith('home-'))
    s = Server('--model-dir', folder, model=False, env=hub.env)
    jobs, wrong = '/api/models/jobs', {}
    names = ['../up', '/tmp/x', '.hidden', '..', '.', 'a/b', 'a\\b', 'a\0b', 'a\nb', '', 'a' * 161, 'a' * 1_000_000, 'é', '%2e%2e', 'a b', '~', '$HOME', '\u202egpj']
    sources = ['-o', '--threads', '--', '-', 'a/../../b', '/etc', '/etc/passwd', '/dev/zero', '/proc/self/mem', '../', './../' + folder.name, './link', './link/ssl', './loop',
               './fifo', '.', '..', './', '/', '', ' ', 'a b', 'a/b/c', 'a/b@../../c', 'a/b@-x y', 'a/b:../c', 'a/b\n', 'a/b\0', 'a/b?x', 'a/b#x', 'a/..', '../b', 'http://a/b',
               'file:///etc/passwd', 'é/b', 'a/' + 'b' * 100_000, './' + 'x' * 1_000_000, './' + 'a/' * 3000]
    bodies = [{'source': './source', 'name': n} for n in names] + [{'source': x} for x in sources] + [{'source': './source', **x} for x in (
        {'kind': 'x' * 1_000_000}, {'kind': ''}, {'quantization': 'q' * 1_000_000}, {'quantization': '-o'}, {'quantization': 'int8 -o x'}, {'quality': 'q' * 100_000}, {'quality': '--force'},
        {'target_gb': -1}, {'target_gb': 1e308}, {'target_gb': 10**400}, {'target_gb': 'many'}, {'name': {}}, {'name': 7}, {'source': ['a/b']}, {'source': None}, {'load': 'yes'}, {'force': True},
        {'output': '/tmp/x'}, {'command': ['sh']})] + [{}, [], 'a/b', b'{"source":"a/b","source":"c/d"}', b'{"source":"a/\xff"}', b'[' * 1_000_000, b'']
    for body in bodies:
        code, _, answer = s.ask(jobs, body, key=s.token)
        if not 400 <= code < 500 or not isinstance(answer, dict):
            wrong[str(body)[:80]] = code, str(answer)[:200]
    for x in ('0', '-1', '01', '1e0', '9' * 7000, '%00', '%ff', '%c3%a9' * 60, 'a' * 39 + '%c3%a9', '..%2f..', '%2e%2e', '%0a', "1'--", '1%00'):
        for method, rest in (('GET', ''), ('DELETE', ''), ('POST', '/resume'), ('GET', '/resume'), ('POST', '')):
            code, _, answer = s.ask(f'{jobs}/{x}{rest}', key=s.token, method=method)
            if code not in (400, 404, 405) or not (isinstance(answer, dict) and answer.get('error')):
                wrong[f'{method} {x[:40]}{rest}'] = code, str(answer)[:200]
    for x in ('..%2fadmin.token', '%2e%2e', 'source', 'link', 'link%2fpasswd', 'fifo', '.', '%00', 'a' * 5000, 'tiny.zse%00'):
        code = s.status('/api/models/files/' + x, key=s.token, method='DELETE')
        if code not in (400, 403, 404, 409):
            wrong[f'file {x[:40]}'] = code
    expect(not wrong, f'{wrong}')
    expect(s.ask(jobs, key=s.token)[2]['jobs'] == [], f'jobs began: {s.ask(jobs, key=s.token)[2]}')
    expect(files_below(folder) == before, f'files have come or gone: {set(files_below(folder)) ^ set(before)}')
    expect(sorted(x for x in os.listdir(T) if not x.startswith('home-')) == outside, f'{os.listdir(T)}')
    s.lives()
    s.stop()
    return f'{len(bodies)} orders refused with 4xx, nothing ran, no file came or went'


@attempt
def jobs_that_are_many():
    "300 orders at once, 2000 orders that are cancelled, 100 clients that watch and read nothing, ten threads that order, cancel, resume and remove the same jobs; SIGTERM meanwhile"
    hub = SilentHub()
    s = Server('--drain', '1', env=hub.env)
    jobs = '/api/models/jobs'
    codes = many(300, lambda i: s.status(jobs, {'source': f'a/b{i}', 'kind': 'download'}, key=s.token))
    expect(codes.count(202) == 16 and set(codes) == {202, 503}, f'{ {c: codes.count(c) for c in set(codes)} }')
    expect(len(children(s)) <= 1, f'{len(children(s))} children')
    watchers = [s.open(request(jobs + '/events', key=s.token), receive=4096) for _ in range(100)]
    for j in s.ask(jobs, key=s.token)[2]['jobs']:
        s.ask(f'{jobs}/{j["id"]}', key=s.token, method='DELETE')
    expect(until(lambda: all(j['state'] == 'cancelled' for j in s.ask(jobs, key=s.token)[2]['jobs'])), 'they are not cancelled')
    holder = s.ask(jobs, {'source': 'a/hold', 'kind': 'download'}, key=s.token)[2]['id']
    name, before, wrong, n_orders = 'b' * 60, s.rss('RssAnon'), {}, 2000 if SLOW == 1 else 500
    for i in range(n_orders):
        code, _, j = s.ask(jobs, {'source': f'a/{name}{i}', 'name': 'n' * 150 + str(i), 'quality': 'fast'}, key=s.token)
        expect(code == 202, f'order {i}: {code} {j}')
        s.ask(f'{jobs}/{j["id"]}', key=s.token, method='DELETE')
    n, after = len(s.ask(jobs, key=s.token)[2]['jobs']), s.rss('RssAnon')
    expect(n <= 65, f'{n} jobs in the list')
    expect(after < before + 60 * FAT, f'{before:.0f} MB, then {after:.0f} MB, beside watchers that read nothing')
    for w in watchers:
        w.close()
    s.ask(f'{jobs}/{holder}', key=s.token, method='DELETE')

    over, done, taken = threading.Event(), [0] * 10, [[] for _ in range(10)]

    def race(i):
        while not over.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException):       # the server ends
                for method, path, body in (('POST', '', {'source': f'r/{i % 3}', 'kind': 'download'}), ('GET', '', None)):
                    code, _, answer = s.ask(jobs + path, body, key=s.token, method=method)
                    if code not in (200, 202, 409, 503):
                        wrong[f'{method} {path}'] = code, str(answer)[:200]
                    taken[i] += [1] * (code == 202)
                if code != 200:
                    continue
                for j in answer['jobs'][-6:]:
                    for method, rest in (('DELETE', ''), ('POST', '/resume'), ('GET', ''), ('DELETE', '')):
                        code, _, said = s.ask(f'{jobs}/{j["id"]}{rest}', key=s.token, method=method)
                        if code not in (200, 202, 404, 409, 503):
                            wrong[f'{method} {rest}'] = code, str(said)[:200]
                        taken[i] += [1] * (code == 202)
                        done[i] += 1
    runners = [threading.Thread(target=race, args=(i,), daemon=True) for i in range(10)]
    for t in runners:
        t.start()
    most, end = 0, time.monotonic() + 4
    while time.monotonic() < end:
        most = max(most, len(children(s)))
        expect(s.status('/v1/completions', SHORT, key=s.token) == 200, 'a plain request beside them')
        s.lives('beside jobs that come and go')
    expect(most <= 1, f'{most} children at once')
    expect(until(lambda: s.status(jobs, {'source': 'a/last', 'kind': 'download'}, key=s.token) in (202, 503, 409)), 'no order is taken')
    left = children(s)
    seconds = s.stop()
    over.set()
    for t in runners:
        t.join(20)
    expect(not wrong, f'{wrong}')
    expect(seconds < 1 + 5 * SLOW, f'SIGTERM with --drain 1: the end came after {seconds:.1f} s')
    expect(until(lambda: not any(pathlib.Path(f'/proc/{p}').exists() for p in left), 5), 'a child is left')
    lines = sum(x.get('method') == 'JOB' for x in s.log())
    orders = 16 + 1 + n_orders + sum(map(len, taken)) + 1
    # jobs that were still waiting at the end have no line, and each of the ten threads may have
    # missed its last answer
    expect(orders - 18 <= lines <= orders + 10, f'{orders} orders, {lines} lines of jobs in the audit log')
    return f'16 wait; {before:.0f} MB, after the orders {after:.0f} MB; {sum(done)} requests of the race, {lines} lines in the audit log, one child at a time; the end {seconds:.1f} s after SIGTERM'


# ---- Ollama's API ----

def home_with_names():
    """A ZSE_HOME whose store has tiny:1m, small, which is an alias of it, and other."""
    home = new_home()
    (home / 'models').mkdir()
    for name in ('tiny:1m', 'other'):
        shutil.copy(TINY, home / 'models' / f'{name}.zse')
    (home / 'models' / 'small.zse').symlink_to('tiny:1m.zse')
    return home


def names_in(home):
    """The files of the store, except those that record when a model was last used."""
    return [x for x in files_below(home / 'models') if not x.startswith('.')]


@attempt
def models_of_others_by_ollamas_api():
    "every path with keys of every scope but admin and for models of others: to show, list, use, load, unload, copy, delete and pull them; keep_alive of a model that two clients use"
    home = home_with_names()
    keys = {name: make_key(home, name, *options) for name, options in (
        ('other', ('--scope', 'chat,embeddings', '--model', 'other')), ('second', ('--scope', 'chat')), ('embed', ('--scope', 'embeddings', '--model', 'small')),
        ('models', ('--scope', 'models', '--model', 'other*')), ('small', ('--scope', 'chat', '--model', 'small')))}
    s = Server(home=home, model=False)
    said, hello = {'messages': [{'role': 'user', 'content': 'hi'}], 'stream': False, 'options': {'num_predict': 2}}, {'prompt': 'hi', 'stream': False, 'options': {'num_predict': 2}}
    wrong = {}

    def check(codes, path, body, key, **kw):
        code, _, answer = s.ask('/api/' + path, body, key=keys.get(key, key), **kw)
        told = isinstance(answer.get('error'), str) if code >= 400 else 200 in codes
        if code not in codes or not told:
            wrong[f'{path} {str(body)[:80]} with {key and key[:8]}'] = code, str(answer)[:200]
        return answer

    for key in (None, 'zse-' + 'a' * 43):
        for method, path, body in (('GET', 'tags', None), ('GET', 'ps', None), *(('POST', p, {'model': 'small', 'name': 'small', 'source': 'small', 'destination': 'x'}) for p in (
                'show', 'chat', 'generate', 'embed', 'embeddings', 'pull', 'copy')), ('DELETE', 'delete', {'model': 'small'}), ('HEAD', 'tags', None)):
            code = s.status('/api/' + path, body, key=key, method=method)
            if code not in (401, 429) and not (code == 405 and method == 'HEAD'):
                wrong[f'{path} with {key}'] = code
    for key in keys:
        for path, body, method in (('copy', {'source': 'other', 'destination': 'mine'}, 'POST'), ('delete', {'model': 'small'}, 'DELETE'), ('delete', {'name': 'other'}, 'DELETE'),
                                   ('pull', {'model': 'a/b'}, 'POST'), ('pull', {'name': 'small', 'stream': False}, 'POST')):
            check({403}, path, body, key, method=method)
    for name in ('small', 'tiny:1m', 'small:latest', 'tiny:1m:latest'):
        for body in ({'model': name}, {'name': name}, {'model': name, 'verbose': True}, {'model': '', 'name': name}):
            for key in ('other', 'models'):
                check({403, 404}, 'show', body, key)
        for path, body in (('chat', said), ('generate', hello), ('chat', {}), ('generate', {}), ('generate', {'keep_alive': -1}), ('chat', {'messages': [], 'keep_alive': '99h'})):
            check({403, 404}, path, {**body, 'model': name}, 'other')
            check({403}, path, {**body, 'model': name}, 'embed')
        check({403, 404}, 'embed', {'model': name, 'input': 'a'}, 'other')
        check({403}, 'embed', {'model': name, 'input': 'a'}, 'second')
        check({403}, 'embeddings', {'model': name, 'prompt': 'a'}, 'second')
    check({200}, 'chat', {**said, 'model': 'small'}, 'small')
    check({200}, 'generate', {'model': 'small', 'keep_alive': 7200}, 'small')
    for key in ('other', 'models'):
        for path in ('tags', 'ps'):
            got = check({200, 403}, path, None, key)
            if key == 'other' and [m['name'] for m in got.get('models', [])] != (['other'] if path == 'tags' else []):
                wrong[f'{path} with {key}'] = got
    for key in ('other', 'embed', 'models', 'second'):
        for path in ('generate', 'chat'):
            for keep in (0, '0', '0s', 0.0, '-0h', '0h0m'):
                check({'other': {404}, 'second': {200, 403}}.get(key, {403}), path, {'model': 'small', 'keep_alive': keep}, key)
    loaded = lambda: {m['name']: m['expires_at'] for m in s.ask('/api/ps', key=s.token)[2]['models']}            # noqa: E731
    before = loaded()
    expect(len(before) == 1, f'loaded: {before}')
    # a second client uses it, so neither may set how long it stays
    check({200}, 'chat', {**said, 'model': 'small'}, 'second')
    for keep in (-1, '99h', 1e300, '1ms'):
        check({200}, 'chat', {**said, 'model': 'small', 'keep_alive': keep}, 'second')
    for key in ('small', 'second'):
        check({403}, 'generate', {'model': 'small', 'keep_alive': 0}, key)
    after = loaded()
    expect(list(after) == list(before) and not list(after.values())[0].startswith('9999'), f'{before}, then {after}')
    expect(not wrong, f'{wrong}')
    expect(names_in(home) == ['other.zse', 'small.zse', 'tiny:1m.zse'], f'{names_in(home)}')
    s.stop()
    return 'foreign models are 403 or 404, are not listed, stay loaded and stay in the store'


@attempt
def names_and_bodies_of_ollamas_api():
    "names with ../, of links, devices and folders, control characters and a million letters to show, copy, delete, pull, chat; durations, options and messages that are bombs; 60 clients that leave in a stream or a pull"
    hub, home = SilentHub(), home_with_names()
    models = home / 'models'
    (home / 'secret.zse').write_bytes(TINY.read_bytes())
    (models / 'up.zse').symlink_to('../secret.zse')
    (models / 'loop.zse').symlink_to('loop.zse')
    (models / 'folder.zse').mkdir()
    os.mkfifo(models / 'fifo.zse')
    (models / 'broken.zse').write_bytes(TINY.read_bytes()[:5000])
    s = Server(home=home, model=False, env=hub.env)
    here, wrong, began = names_in(home), {}, time.monotonic()
    names = ['../secret', '../models/other', '/etc/passwd', './other', 'a/../other', '..', '.', '', '.zse', 'other\0', 'other\n', '\0', 'a' * 1_000_000, 'é', '%2e%2e/secret', '~', '-o', '--threads',
             'loop', 'folder', 'fifo', 'broken', ':latest', ':', 'latest', 'nosuch', '../secret:latest', 'other/..', 'hf.co/../x', 'http://127.0.0.1/x', 'file:///etc/passwd', None, 7, [], {}, ['other']]
    for name in names:
        for path, body, method in (('show', {'model': name}, 'POST'), ('show', {'name': name, 'verbose': True}, 'POST'), ('copy', {'source': name, 'destination': 'copied'}, 'POST'),
                                   ('copy', {'source': 'other', 'destination': name}, 'POST'), ('chat', {'model': name, 'stream': False, 'messages': [{'role': 'user', 'content': 'a'}]}, 'POST'), ('generate', {'model': name}, 'POST'),
                                   ('embed', {'model': name, 'input': 'a'}, 'POST'), ('delete', {'model': name}, 'DELETE')):
            if path == 'delete' and name in ('loop', 'broken', 'fifo', 'folder', 'latest') or path == 'copy' and name in ('latest', 'loop', 'broken', 'fifo', 'folder', 'nosuch'):
                continue                        # names of the store
            code, _, answer = s.ask('/api/' + path, body, key=s.token, method=method)
            # success is right in two cases: no name means the default model, and a damaged file can
            # be shown
            fine = (name in (None, '') and path in ('chat', 'generate', 'embed')) or (name == 'broken' and path == 'show')
            if not (isinstance(answer.get('error'), str) if 400 <= code < 500 else fine and code == 200):
                wrong[f'{path} {str(body)[:60]}'] = code, str(answer)[:200]
            if 'secret' not in str(name) and str(home) in str(answer):
                wrong[f'{path} {str(body)[:60]} tells the folder'] = str(answer)[:200]
    for name in ('../secret', '/etc', '..', '', 'a/../../b', 'a/b/c', '-o', '\0', 'a b', 'a\n', 'x' * 1_000_000, '~', 7, [], None):
        code, _, answer = s.ask('/api/pull', {'model': name, 'stream': False}, key=s.token)
        if not 400 <= code < 500:
            wrong[f'pull {str(name)[:40]}'] = code, str(answer)[:200]
    expect(names_in(home) == here and (home / 'secret.zse').is_file(), f'files have come or gone: {set(names_in(home)) ^ set(here)}')
    said = {'model': 'other', 'stream': False, 'messages': [{'role': 'user', 'content': 'a'}], 'options': {'num_predict': 2}}
    bombs = [{**said, **x} for x in (
        {'keep_alive': '9' * 1_000_000}, {'keep_alive': '1h' * 51}, {'keep_alive': 10**400}, {'keep_alive': '1e9s'}, {'keep_alive': 'infs'}, {'keep_alive': '0x1p9s'}, {'keep_alive': '1.1.1s'}, {'keep_alive': {}},
        {'options': {'num_predict': 2**70}}, {'options': {'num_predict': 1e300}}, {'options': {'stop': ['a' * 10] * 100_000}}, {'options': {'stop': 'a' * 1_000_000}}, {'options': {'temperature': -1}}, {'options': {'seed': 2**80}},
        {'options': []}, {'options': 'x'}, {'options': {'repeat_penalty': 0}}, {'options': {'top_k': 2**40}}, {'messages': [{'role': 'user', 'content': 'a b ' * 1_000_000}]},
        {'messages': [{'role': 'user'}] * 300_000}, {'messages': [[]]}, {'messages': 'a'}, {'messages': [{'role': 'assistant', 'tool_calls': 7}]}, {'messages': [{'role': 'x' * 1_000_000, 'content': 'a'}]},
        {'tools': 'x'}, {'tools': [{}] * 1000}, {'format': 'xml'}, {'format': 7}, {'format': {'$ref': '#'}}, {'format': {'type': 'string', 'pattern': '(a*)*' * 10_000}}, {'format': deep(300)}, {'think': 'x' * 1_000_000}, {'think': 7},
        {'unknown': [{}] * 500_000}, {f'k{i}': 1 for i in range(300_000)}, {'options': {f'k{i}': 1 for i in range(300_000)}})]
    for path, bodies in (('chat', bombs), ('generate', [b'[' * 1_000_000, b'{"model":' * 200_000, b'{"model":"other","prompt":"\xff"}', b'', b'{}x', {'model': 'other', 'prompt': 'a' * 3_000_000, 'stream': False},
                                                        {'model': 'other', 'prompt': 'a', 'system': 'b ' * 1_000_000}, {'model': 'other', 'prompt': ['a']},
                                                        {'model': 'other', 'prompt': 'a', 'images': ['x'] * 100_000}]),
                         ('embed', [{'model': 'other', 'input': ['a' * 100] * 100_000}, {'model': 'other', 'input': [[[]]]}, {'model': 'other', 'input': 'a', 'dimensions': 2**31}])):
        for body in bodies:
            code, _, answer = s.ask('/api/' + path, body, key=s.token)
            fine = isinstance(body, dict) and ('top_k' in body.get('options', {}) or 'format' in body or 'unknown' in body)
            if not 400 <= code < 500 and not (fine and code == 200):
                wrong[f'{path} {str(body)[:150]}'] = code, str(answer)[:200]
            s.lives(path)
    fits = [s.ask('/api/chat', {**said, 'keep_alive': x}, key=s.token)[0] for x in (1e300, -1e300, '1h1m1s', '1h' * 50)]
    expect(fits == [200] * 4 and s.status('/api/ps', key=s.token) == 200, f'durations that are fine: {fits}')
    # clients that leave
    endless = {'model': 'other', 'prompt': 'Once', 'raw': True, 'options': {'num_predict': 1900, 'temperature': 5}}
    code, _, job = s.ask('/api/models/jobs', {'source': 'a/first', 'kind': 'download'}, key=s.token)
    for i in range(60):
        path, body = (('generate', endless), ('pull', {'model': f'a/b{i % 3}'}), ('pull', {'model': f'a/b{i % 3}', 'stream': False}))[i % 3]
        with s.open(request('/api/' + path, body, key=s.token)) as c:
            if body.get('stream', True):
                c.recv(200)
        s.lives('while clients leave')
    busy = lambda: sum(m['running'] + m['waiting'] for m in s.ask('/api/stats/models', key=s.token)[2]['models'])           # noqa: E731
    expect(until(lambda: busy() == 0, 20), f'requests run for clients that left: {busy()}')
    jobs = [j for j in s.ask('/api/models/jobs', key=s.token)[2]['jobs'] if j['state'] in ('running', 'waiting', 'queued')]
    expect(len(jobs) <= 17 and len(children(s)) <= 1, f'{len(jobs)} jobs, {len(children(s))} children')
    for j in jobs:
        s.ask(f'/api/models/jobs/{j["id"]}', key=s.token, method='DELETE')
    expect(not wrong, f'{len(wrong)}: {wrong}')
    s.stop()
    return f'{len(names)} names and {len(bombs)} bodies: 4xx, and no file came or went; {len(jobs)} jobs for 40 pulls; {time.monotonic() - began:.1f} s'


# ---- speculation ----

def processor_seconds(s):
    fields = pathlib.Path(f'/proc/{s.p.pid}/stat').read_text().rsplit(')', 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')


@attempt
def drafts_that_are_wrong():
    "--spec auto and ngram:15: prompts that hold every three of eight tokens, drawn from these with a high temperature, so that each guess is possible and nearly all are wrong; one token over and over; 128 choices: processor time and memory against --spec off, the same answers, another key's request beside them"
    draws, n_tokens = {'temperature': 5, 'ignore_eos': True, 'seed': 1}, 300 if SLOW == 1 else 60
    eight = list(range(300, 308))
    every = [t for a in eight for b in eight for c in eight for t in (a, b, c)][:1000]
    hostile = {'prompt': every, 'logit_bias': {str(t): 100 for t in eight}, 'max_tokens': n_tokens, **draws}
    repeats = {**hostile, 'prompt': [300] * 1000, 'logit_bias': {'300': 100}}
    choices = {'prompt': every[:200], 'logit_bias': hostile['logit_bias'], 'n': 128, 'max_tokens': 4, **draws}
    cost, answers, waits, memory = {}, {}, {}, {}
    for how in ('off', 'auto', 'ngram:15'):
        home = new_home()
        greedy, other = make_key(home, 'greedy'), make_key(home, 'other')
        s = Server('--spec', how, '--max-seqs', '8', '--threads', '1', home=home)
        got = []
        for body in (hostile, repeats):
            began = processor_seconds(s)
            code, _, answer = s.ask('/v1/completions', body, key=greedy)
            expect(code == 200, f'{how}: {code} {str(answer)[:200]}')
            got.append((answer['choices'][0]['text'], answer['usage']['completion_tokens']))
            cost.setdefault(how, []).append(processor_seconds(s) - began)
        code, _, answer = s.ask('/v1/completions', choices, key=greedy)
        expect(code == 200 and len(answer['choices']) == 128, f'{how}: 128 choices: {code} {str(answer)[:200]}')
        answers[how] = got, sorted(x['text'] for x in answer['choices'])
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            running = [pool.submit(s.status, '/v1/completions', {**hostile, 'seed': i}, key=greedy) for i in range(24)]
            until(lambda s=s: s.ask('/api/stats/models', key=s.token)[2]['models'][0]['running'] >= 8, 10)
            times = []
            while len(times) < 5:
                began = time.monotonic()
                expect(s.status('/v1/completions', SHORT, key=other) == 200, f'{how}: a plain request')
                times.append(time.monotonic() - began)
            s.lives(f'{how}: beside wrong guesses')
            codes = {f.result() for f in running}
        expect(codes == {200}, f'{how}: {codes}')
        waits[how], memory[how] = max(times), s.rss('VmHWM')
        s.stop()
    expect(answers['auto'] == answers['off'] and answers['ngram:15'] == answers['off'], 'the answers differ')
    # ngram:15 computes 16 tokens in each step where one would do; auto must stop drafting when its
    # drafts are wrong
    for how, most in (('auto', 2), ('ngram:15', 20)):
        for i, what in enumerate(('wrong guesses', 'repetition')):
            expect(cost[how][i] < most * cost['off'][i] + .2 * SLOW, f'{how}, {what}: {cost[how][i]:.2f} s of a processor, {cost["off"][i]:.2f} s without')
        expect(waits[how] < waits['off'] + 1 * SLOW, f'{how}: another key waited {waits[how]:.2f} s, {waits["off"]:.2f} s without')
        expect(memory[how] < memory['off'] + 40 * FAT, f'{how}: {memory[how]:.0f} MB, {memory["off"]:.0f} MB without')
    return '; '.join(f'{how}: {cost[how][0]:.2f} and {cost[how][1]:.2f} s of a processor, another key waited {waits[how]:.2f} s, {memory[how]:.0f} MB' for how in cost)


def run():
    TINY.parent.mkdir()
    subprocess.run([BUILD / 'zse-convert', ROOT / 'models' / 'tiny', '-o', TINY, '--quality', 'fast'], check=True, capture_output=True)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, resource.getrlimit(resource.RLIMIT_NOFILE)[1]),) * 2)
    for f in attempts:
        if len(sys.argv) > 1 and f.__name__ not in sys.argv[1:]:
            continue
        began = time.monotonic()
        try:
            outcome, what = 'held', f()
        except Broken as e:
            outcome, what = 'BROKEN', str(e)
        except (OSError, EOFError, http.client.HTTPException, ValueError, KeyError, TypeError,
                subprocess.SubprocessError) as e:
            outcome, what = 'BROKEN', f'{type(e).__name__}: {e}'
        counts[outcome] += 1
        print(f'{outcome} {f.__name__}: {f.__doc__ or ""}: {what}'.replace('\n', ' '), f'[{time.monotonic() - began:.1f} s]', flush=True)
        if Guarded.made and Guarded.made.p.poll() is not None:
            Guarded.made = None             # the next attempt starts a new server
    print(f'{counts["held"]} held, {counts["BROKEN"]} broken')
    return counts['BROKEN'] > 0


if __name__ == '__main__':
    try:
        bad = run()
    finally:
        for server in list(servers):
            server.p.kill()
            server.p.wait()
        shutil.rmtree(T, ignore_errors=True)
    sys.exit(bad)
