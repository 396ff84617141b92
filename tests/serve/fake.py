#!/usr/bin/env python3
"""fake.py - a server of OpenAI's API that answers, and fails, as other servers do; the model's name
selects how.

Prints its address.  Without the key "sesame" the model `locked` gets 401.  The models:
  plain   reasoning, words in pieces of a few bytes, CRLF, comments
  whole   no stream although one was requested
  cut     the connection ends in the middle
  busy    503 with Retry-After every second time
  error   an error inside the stream
  html    no JSON
  hang    one word, then nothing
  status  418 with a text
  full    refuses more than 3 messages, and a long one
  escape  a refusal that would control a terminal
  tools   calls what the question, a list of [name, arguments], says, then repeats the results
  loop    the same, again and again
  gap     a call whose number is not the next one
  echo    the body of the request as the answer"""
import json, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    busy = False

    def log_message(self, *_):
        pass

    def send(self, code, text, kind='application/json'):
        body = text.encode()
        self.send_response(code)
        self.send_header('Content-Type', kind)
        self.send_header('Content-Length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self, pieces):
        self.send_response(200)
        self.send_header('Content-Type', 'text/event-stream; charset=utf-8')
        self.send_header('Transfer-Encoding', 'chunked')
        self.end_headers()
        for p in pieces:
            self.wfile.write(b'%x\r\n%s\r\n' % (len(p), p))
            self.wfile.flush()

    def do_GET(self):
        self.send(200, '{"object":"list","data":[{"id":"plain","object":"model"}]}') if self.path == '/v1/models' else self.send(404, '<html>', 'text/html')

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        model = body['model']
        if model == 'locked' and self.headers.get('Authorization') != 'Bearer sesame':
            return self.send(401, '{"error":{"message":"wrong key","type":"authentication_error"}}')
        if model == 'busy':
            Handler.busy = not Handler.busy
            if Handler.busy:
                self.send_response(503)
                self.send_header('Retry-After', '0')
                self.send_header('Content-Length', '0')
                return self.end_headers()
        if model == 'status':
            return self.send(418, '{"error":"I am a teapot"}')
        if model == 'escape':
            return self.send(400, json.dumps({'error': 'a\x1b[2Jb\x9bc' + 'é' * 600}))
        if model == 'full' and (len(body['messages']) > 3 or 'long' in body['messages'][-1]['content']):
            return self.send(400, json.dumps({'error': {'message': "This model's maximum context length is 9 tokens.", 'code': 400}}))
        if model == 'html':
            return self.send(200, '<html>hello</html>', 'text/html')
        if model == 'whole':
            return self.send(200, json.dumps({'choices': [{'message': {'role': 'assistant', 'reasoning': 'So.', 'content': 'All at once.'}, 'finish_reason': 'stop'}]}))
        def event(delta, finish=None):
            return b'data: ' + json.dumps({'choices': [{'index': 0, 'delta': delta, 'finish_reason': finish}]}, ensure_ascii=False).encode() + b'\r\n\r\n'
        if model == 'hang':
            self.stream([event({'content': 'Well'})])
            return threading.Event().wait(60)
        if model == 'error':
            return self.stream([event({'content': 'Well'}), b'data: {"error":{"message":"out of memory"}}\n\n'])
        if model == 'cut':
            self.stream([event({'content': 'Well'})])
            self.close_connection = True
            return
        if model in ('tools', 'loop', 'gap'):
            last = max(i for i, m in enumerate(body['messages']) if m['role'] == 'user')
            results = [m['content'] for m in body['messages'][last:] if m['role'] == 'tool']
            if results and model == 'tools':
                return self.stream([event({'content': 'got ' + ' | '.join(results)}), event({}, 'stop'), b'data: [DONE]\n\n', b''])
            calls = json.loads(body['messages'][last]['content'])
            events = [event({'content': 'Let me look. '})]
            for i, (name, arguments) in enumerate(calls):
                i += 7 if model == 'gap' else 0
                text = arguments if isinstance(arguments, str) else json.dumps(arguments)
                events.append(event({'tool_calls': [{'index': i, 'id': f'c{i}', 'type': 'function', 'function': {'name': name, 'arguments': ''}}]}))
                events += [event({'tool_calls': [{'index': i, 'function': {'arguments': text[k:k + 5]}}]}) for k in range(0, len(text), 5)]
            return self.stream(events + [event({}, 'tool_calls'), b'data: [DONE]\n\n', b''])
        text = json.dumps(body) if model in ('echo', 'full') else 'Grüße, 世界!'
        all = b': a comment\r\n\r\n' + event({'role': 'assistant', 'content': ''}) + event({'reasoning_content': 'Let me '}) + event({'reasoning_content': 'see.'})
        all += b''.join(event({'content': c}) for c in text) + event({}, 'stop')
        all += b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3,"total_tokens":10,"prompt_tokens_details":{"cached_tokens":2}}}\r\n\r\ndata: [DONE]\r\n\r\n'
        self.stream([all[i:i + 11] for i in range(0, len(all), 11)] + [b''])

    def handle(self):
        try:
            super().handle()
        except OSError:
            pass                        # the client has gone


s = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
s.daemon_threads = True
print(f'http://127.0.0.1:{s.server_port}', flush=True)
s.serve_forever()
