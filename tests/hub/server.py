#!/usr/bin/env python3
"""server.py - a local hub for tests: the protocol of huggingface.co, with faults on request.

usage: server.py [--tls CERT KEY] ORG/NAME=FOLDER...
Prints the address of the hub and of the second host that large files are redirected to, then
serves until it is killed.  Requests:
  GET /api/models/ID/revision/REV             also without /revision/REV
  GET /api/models/ID/tree/REV
  GET /api/models?search=TEXT
  HEAD and GET /ID/resolve/REV/FILE           with Range
  GET /_log                                   one line a request: method, path, range, whether a
                                              token came, the host asked
POST /_fault {"file": NAME, "kind": KIND, "times": N, ...} breaks the next N answers about a file:
  status  {"code": 503, "headers": {...}}     this status instead of an answer; "error": its text
  cut     {"after": BYTES}                    the connection ends after so many bytes of the body
  wrong                                       the first byte differs
  whole                                       Range is ignored
  short   {"bytes": N}                        Content-Length and body are N bytes less
  unsized {"after": BYTES, "endless": BOOL}   no Content-Length; after: foreign bytes follow the
                                              file's, and the body is cut there
  hold                                        stop after half of the body until POST /_release
  siblings {"names": [...]}, endless          file "api": the list of files has these names, too;
                                              the answer has no end
  elsewhere {"to": URL}                       redirect to another origin, also small files
  range   {"says": TEXT}                      the Content-Range of an otherwise right answer
  packed                                      the body is compressed with gzip without being asked
With any kind:
  "at": PART           break only answers of this part: "api", "resolve" or "cdn"
  "method": METHOD     break only answers to this method
  "if_range": TEXT     break only answers to requests whose Range contains TEXT
  "whole": true        cut and wrong ignore Range as well
  "size": N            the value of X-Linked-Size"""
import gzip, hashlib, json, os, signal, ssl, sys, threading, urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = 'a1b2c3d4e5f60718293a4b5c6d7e8f9001122334'
repos, faults, log, lock = {}, [], [], threading.Lock()
release = threading.Event()
secret = {'private/model': 'hf_secret', 'gated/model': None}


def is_lfs(name, data):
    return name.endswith(('.safetensors', '.gguf', '.zse')) or len(data) > 50000


def files(folder):
    return sorted(os.path.relpath(os.path.join(d, f), folder) for d, _, names in os.walk(folder) for f in names)


def content(folder, name):
    with open(os.path.join(folder, name), 'rb') as f:
        return f.read()


def git_hash(data):
    return hashlib.sha1(b'blob %d\0' % len(data) + data).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def log_message(self, *_):
        pass

    def handle(self):
        try:
            super().handle()
        except OSError:
            pass                        # the client has gone

    def fault(self, name, at):
        with lock:
            for f in faults:
                if (f['file'] == name and f['times'] > 0
                        and f.get('if_range', '') in self.headers.get('Range', '')
                        and f.get('at', at) == at and f.get('method', self.command) == self.command):
                    f['times'] -= 1
                    return f
        return {'kind': ''}

    def answer(self, code, headers, body=b''):
        self.send_response(code)
        for k, v in headers.items():
            self.send_header(k, str(v))
        if 'Content-Length' not in headers:
            self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        if self.command != 'HEAD':
            self.wfile.write(body)

    def status_fault(self, f):
        if f['kind'] != 'status':
            return False
        self.answer(f['code'], f.get('headers', {}), json.dumps({'error': f.get('error', '')}).encode())
        return True

    def file_body(self, data, headers, f):
        """Send data, or the byte range of it that the request asks for."""
        code, begin, end = 200, 0, len(data)
        wanted = self.headers.get('Range', '')
        if wanted.startswith('bytes=') and f['kind'] != 'whole' and not f.get('whole'):
            a, _, b = wanted[6:].partition('-')
            begin, end, code = int(a), min(int(b) + 1 if b else len(data), len(data)), 206
            headers['Content-Range'] = f'bytes {begin}-{end - 1}/{len(data)}'
        body = data[begin:end]
        if f['kind'] == 'short':
            body = body[:-f['bytes']]
        if f['kind'] == 'wrong':
            body = bytes([body[0] ^ 1]) + body[1:]
        if f['kind'] == 'unsized':
            return self.unsized(data, headers, f)
        if f['kind'] == 'range' and code == 206:
            headers['Content-Range'] = f['says']
        if f['kind'] == 'packed':
            headers['Content-Encoding'] = 'gzip'
            body = gzip.compress(body)
        headers['Content-Length'] = len(body)
        if f['kind'] == 'cut' and self.command != 'HEAD':
            self.answer(code, headers, body[:f['after']])
            self.close_connection = True
        elif f['kind'] == 'hold' and self.command != 'HEAD':
            self.answer(code, headers, body[:len(body) // 2])
            self.wfile.flush()
            release.wait(30)
            self.wfile.write(body[len(body) // 2:])
        else:
            self.answer(code, headers, body)

    def unsized(self, data, headers, f):
        self.send_response(200)
        for k, v in (headers | {'Transfer-Encoding': 'chunked'}).items():
            self.send_header(k, v)
        self.end_headers()
        if self.command == 'HEAD':
            return
        if 'after' in f:
            data = (data + b' ' * f['after'])[:f['after']]
        self.wfile.write(b'%x\r\n%s\r\n' % (len(data), data))
        while f.get('endless'):
            self.wfile.write(b'%x\r\n%s\r\n' % (1 << 20, b' ' * (1 << 20)))
        if 'after' in f:
            self.close_connection = True
        else:
            self.wfile.write(b'0\r\n\r\n')

    def authorized(self, repo):
        """None if the request may go on, else the status to answer with."""
        token = self.headers.get('Authorization', '').removeprefix('Bearer ')
        if repo in secret and secret[repo] is None:
            return 403
        return 401 if repo in secret and token != secret[repo] else 404 if repo not in repos and repo != 'old/name' else None

    def api(self, path, query):
        if path == '/api/models':
            words = query.get('search', [''])[0].lower()
            found = [self.info(r, False) for r in repos if words in r.lower()][:int(query.get('limit', ['10'])[0])]
            return self.answer(200, {'Content-Type': 'application/json'}, json.dumps(found).encode())
        if '/tree/' in path:
            return self.tree(path.removeprefix('/api/models/').partition('/tree/')[0])
        repo, _, revision = path.removeprefix('/api/models/').partition('/revision/')
        if repo == 'old/name':
            return self.answer(307, {'Location': f'/api/models/test/tiny/revision/{revision}?blobs=true'})
        bad = self.authorized(repo)
        if bad:
            return self.answer(bad, {'X-Error-Message': {401: 'Invalid username or password.', 403: 'Access to model is restricted', 404: 'Repository not found'}[bad]})
        if urllib.parse.unquote(revision or 'main') not in ('main', 'v1', COMMIT, 'refs/pr/1'):
            return self.answer(404, {'X-Error-Code': 'RevisionNotFound', 'X-Error-Message': f'Invalid rev id: {revision}'})
        self.answer(200, {'Content-Type': 'application/json'}, json.dumps(self.info(repo, True)).encode())

    def tree(self, repo):
        out = []
        for entry in self.info(repo, True)['siblings']:
            out.append({'type': 'file', 'path': entry['rfilename'], 'size': entry['size'], 'oid': entry['blobId']})
            if 'lfs' in entry:
                out[-1]['lfs'] = {'oid': entry['lfs']['sha256'], 'size': entry['size'], 'pointerSize': 130}
        self.answer(200, {'Content-Type': 'application/json'}, json.dumps(out).encode())

    def info(self, repo, blobs):
        out = []
        for name in files(repos[repo]):
            data = content(repos[repo], name)
            entry = {'rfilename': name}
            if blobs:
                entry |= {'size': len(data), 'blobId': git_hash(data)}
                if is_lfs(name, data):
                    entry['lfs'] = {'sha256': hashlib.sha256(data).hexdigest(), 'size': len(data), 'pointerSize': 130}
            out.append(entry)
        out += [{'rfilename': n} for n in getattr(self, 'more', [])]
        config = json.loads(content(repos[repo], 'config.json')) if 'config.json' in files(repos[repo]) else {}
        return {'id': repo, 'config': {k: config[k] for k in ('model_type', 'architectures') if k in config},
                'modelId': repo, 'sha': COMMIT, 'private': False, 'gated': False, 'downloads': 1234, 'likes': 5,
                'lastModified': '2025-01-02T03:04:05.000Z',
                'pipeline_tag': 'text-generation', 'library_name': 'transformers', 'tags': ['safetensors', 'license:apache-2.0'], 'siblings': out}

    def resolve(self, path):
        repo, _, rest = path[1:].partition('/resolve/')
        revision, _, name = rest.partition('/')
        name = urllib.parse.unquote(name)
        if repo == 'old/name':
            return self.answer(307, {'Location': f'/test/tiny/resolve/{rest}'})
        bad = self.authorized(repo)
        if bad:
            return self.answer(bad, {})
        f = self.fault(name, 'resolve')
        if self.status_fault(f):
            return
        if name not in files(repos[repo]):
            return self.answer(404, {'X-Error-Code': 'EntryNotFound', 'X-Error-Message': 'Entry not found', 'X-Repo-Commit': COMMIT})
        data = content(repos[repo], name)
        headers = {'X-Repo-Commit': COMMIT, 'ETag': f'"{git_hash(data)}"', 'Accept-Ranges': 'bytes'}
        if f['kind'] == 'elsewhere':
            return self.answer(302, headers | {'Location': f['to']})
        if is_lfs(name, data):
            sha = hashlib.sha256(data).hexdigest()
            where = f'{self.server.cdn}/{repo}/{name}?signature=secret'
            return self.answer(302, {'X-Repo-Commit': COMMIT, 'X-Linked-Etag': f'"{sha}"', 'X-Linked-Size': f.get('size', len(data)), 'Location': where})
        self.file_body(data, headers, f)

    def cdn(self, path):
        repo = next(r for r in repos if path.startswith(f'/{r}/'))
        name = urllib.parse.unquote(path[len(repo) + 2:])
        f = self.fault(name, 'cdn')
        if self.status_fault(f):
            return
        data = content(repos[repo], name)
        self.file_body(data, {'ETag': '"of-the-second-host"', 'Accept-Ranges': 'bytes'}, f)

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        if url.path == '/_log':
            return self.answer(200, {}, '\n'.join(log).encode() + b'\n')
        with lock:
            log.append(f"{self.command} {url.path} {self.headers.get('Range', '-')} {'token' if self.headers.get('Authorization') else 'no-token'} {self.server.name}")
        if self.server.name == 'cdn':
            return self.cdn(url.path)
        if url.path.startswith('/api/'):
            f = self.fault('api', 'api')
            if f['kind'] == 'endless':
                return self.unsized(b'{"a": [', {}, {'endless': True})
            self.more = f.get('names', []) if f['kind'] == 'siblings' else []
            return None if self.status_fault(f) else self.api(url.path, urllib.parse.parse_qs(url.query))
        self.resolve(url.path)

    do_HEAD = do_GET

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get('Content-Length', 0)))
        with lock:
            if self.path == '/_fault':
                faults.append({'times': 1} | json.loads(body))
            elif self.path == '/_reset':
                faults.clear()
                log.clear()
                release.clear()
            elif self.path == '/_release':
                release.set()
        self.answer(200, {})


def serve(name, tls):
    s = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    s.daemon_threads = True
    s.name = name
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(*tls)
        s.socket = context.wrap_socket(s.socket, server_side=True)
    threading.Thread(target=s.serve_forever, daemon=True).start()
    return s, f"{'https' if tls else 'http'}://127.0.0.1:{s.server_port}"


args, tls = sys.argv[1:], None
if args[:1] == ['--tls']:
    tls, args = args[1:3], args[3:]
for a in args:
    repo, _, folder = a.partition('=')
    repos[repo] = folder
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
hub, url = serve('hub', tls)
cdn, hub.cdn = serve('cdn', tls)
print(url, hub.cdn, flush=True)
threading.Event().wait()
