"""mcp_servers.py - MCP servers for the tests of the client: one of the official package, and ones
that misbehave.

usage: mcp_servers.py badhttp            prints its port
       mcp_servers.py good|http PORT          with the package mcp
       mcp_servers.py oldhttp      without it: prints its port; has sessions, streams that stay open
       mcp_servers.py plain|old|dies|half|flood|rubbish|silent|deaf|escape|bombs
                      |nul|hostile|many N|env
                                          without it"""
import json
import os
import sys
import time


def good(port=None):
    from mcp.server.mcpserver import MCPServer
    from mcp_types import ToolAnnotations
    server = MCPServer("good")

    @server.tool()
    def add(a: int, b: int) -> str:
        """Add two numbers"""
        return str(a + b)

    @server.tool(annotations=ToolAnnotations(destructive_hint=True, read_only_hint=False))
    def delete(name: str) -> str:
        """Delete something"""
        return f"deleted {name}"

    @server.tool()
    def fail() -> str:
        """Always fails"""
        raise ValueError("it is broken")

    @server.tool(name="a name/with other letters that is far too long for the functions of a chat request")
    def odd() -> str:
        """Oddly named"""
        return "odd"

    if port:
        server.run(transport="streamable-http", port=port)
    else:
        server.run()


def bombs():
    """Tools whose names, descriptions and schemas are wrong or too large, and a good one."""
    def a(**schema):
        return {"type": "object", "properties": {"a": schema}}
    deep = {"type": "string"}
    for _ in range(300):
        deep = {"type": "object", "properties": {"a": deep}}
    schemas = {"type": a(type=5), "ref": a(**{"$ref": "#/nowhere"}), "loop": {"type": "object", "$ref": "#"}, "deep": deep,
               "enum": a(enum=[f"{i:09d}" for i in range(20000)]), "large": a(description="x" * 200000), "items": a(type="array", minItems=10**9, items={"type": "string"}),
               "pattern": a(type="string", pattern="((a{1,500}b{1,500}){1,500}c){1,500}"), "broken": a(type="string", pattern="(["), "bounds": a(type="integer", minimum=5, maximum=1),
               "properties": {"type": "object", "properties": [1]}, "odd\n\x1b[2J name": a(type="string"), "n" * 1000: a(type="string")}
    tools = [{"name": k, "description": "the capital of France " * (1 << 16) if k == "type" else "a\x01b", "inputSchema": v} for k, v in schemas.items()]
    return tools + [tool("call"), tool("call")]


def noise(i):
    """Messages that no server should send; they come before the answer to request i."""
    out = b""
    for v in ([{"jsonrpc": "2.0", "id": k, "result": {"tools": "none", "content": []}} for k in (i + 1000, i - 1, str(i), i + 0.5, None, [i], -(2**62))] +
              [{"jsonrpc": "2.0", "id": k, "method": "ping"} for k in ("x" * 10000, "\x1b", None, {"a": 1}, 2**60)] +
              [{"jsonrpc": "2.0", "id": k, "method": "sampling/createMessage", "params": {}} for k in range(300)] +
              [{"jsonrpc": "2.0", "method": m, "params": p} for m in ("notifications/tools/list_changed", "notifications/progress", "", "x" * 9000) for p in ({}, [], None, {"progress": 1e308}) for _ in range(100)] +
              [[], 5, None, {}, {"method": 5, "id": i + 999}]):
        out += json.dumps(v).encode() + b"\n"
    return out + b"\xff\xfe{\n\n\r\n \n" + b"[" * 5000 + b"\n"


def hostile(i, m, state):
    """Answers of a server that wants to do harm."""
    if m["method"] == "tools/list":
        state["lists"] += 1
        answer = {"tools": [tool(n) for n in ("lists", "wrong", "cut", "twice", "call")]}
    else:
        name = m["params"]["name"]
        answer = {"lists": {"content": [{"type": "text", "text": str(state["lists"])}]}, "twice": {"content": [{"type": "text", "text": "first"}]},
                  "wrong": {"content": [1, None, {"type": 5}, {"type": "text", "text": 5}, {"type": "resource", "resource": []}, "text"], "isError": "no", "structuredContent": 5}}.get(name, {"content": "text"})
    data = noise(i) + json.dumps({"jsonrpc": "2.0", "id": i, "result": answer}).encode() + b"\n"
    if m["method"] == "tools/call" and name == "cut":
        data = data[:-3]
    if m["method"] == "tools/call" and name == "twice":
        data += json.dumps({"jsonrpc": "2.0", "id": i, "result": {"content": [{"type": "text", "text": "second"}]}}).encode() + b"\n"
    for k in range(0, 60):
        os.write(1, data[k:k + 1])
    rest = data[60:]
    while rest:
        rest = rest[os.write(1, rest):]
    os.write(2, b"\x1b[2J\x1b]0;mine\x07\n")
    if m["method"] == "tools/call" and name == "cut":
        os._exit(9)


def send(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def tool(name, **more):
    return {"name": name, "description": "x" * 200, "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}}, **more}


def plain(mode, n):
    """A server of revision 2025-06-18 without the package; `mode` selects how it misbehaves when
    its tool is called."""
    if mode == "half":
        sys.stdout.write('{"jsonrpc": "2.0", "id": 1, "resu')
        sys.stdout.flush()
        os._exit(3)
    if mode == "rubbish":
        while True:
            print("this is not a message")
    if mode == "silent":
        time.sleep(3600)
    state = {"lists": 0}
    for line in sys.stdin:
        m = json.loads(line)
        method, i = m.get("method"), m.get("id")
        if i is None or method is None:
            continue
        if mode == "old" and method not in ("initialize", "tools/list", "tools/call"):
            sys.exit(4)                 # a server that ends at an unknown message
        if method == "initialize":
            send({"jsonrpc": "2.0", "id": i, "result": {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "plain", "version": "1"}}})
        elif mode == "hostile" and method in ("tools/list", "tools/call"):
            hostile(i, m, state)
        elif method == "tools/list":
            names = [f"tool_{k}" for k in range(n)] if mode == "many" else ["call", "pid"]
            if mode == "nul":
                send({"jsonrpc": "2.0", "id": i, "result": {"tools": [tool("a\x00b")]}})
                continue
            if mode == "bombs":
                send({"jsonrpc": "2.0", "id": i, "result": {"tools": bombs()}})
                continue
            send({"jsonrpc": "2.0", "id": i, "result": {"tools": [tool(x) for x in names]}})
        elif method == "tools/call" and m["params"]["name"] == "pid":
            send({"jsonrpc": "2.0", "id": i, "result": {"content": [{"type": "text", "text": str(os.getpid())}]}})
        elif method == "tools/call" and mode == "dies":
            print("the disk is on fire", file=sys.stderr)
            os._exit(5)
        elif method == "tools/call" and mode == "flood":
            while True:
                os.write(1, b"x" * 65536)
        elif method == "tools/call" and mode == "deaf":
            if "HEARD" in os.environ:
                with open(os.environ["HEARD"], "w") as f:
                    f.write(method)
            time.sleep(3600)
        elif method == "tools/call" and mode == "escape":
            send({"jsonrpc": "2.0", "id": i, "result": {"content": [{"type": "text", "text": "\x1b[31mred\x9b31m\x07"}]}})
        elif method == "tools/call" and mode == "env":
            send({"jsonrpc": "2.0", "id": i, "result": {"content": [{"type": "text", "text": json.dumps(dict(os.environ))}]}})
        elif method == "tools/call":
            send({"jsonrpc": "2.0", "id": i, "result": {"content": [{"type": "text", "text": "done"}, {"type": "image", "mimeType": "image/png", "data": ""}]}})
        else:
            send({"jsonrpc": "2.0", "id": i, "error": {"code": -32601, "message": "Method not found"}})


def oldhttp():
    """A server of revision 2025-06-18 over HTTP, without the package.  It requires its session id,
    and once forgets the second session."""
    import http.server
    sessions, forgotten = [], []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *a):
            pass

        def reply(self, status, body, **headers):
            data = json.dumps(body).encode()
            self.send_response(status)
            for k, v in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
                self.send_header(k, v)
            self.end_headers()
            self.wfile.write(data)

        def do_POST(self):
            m = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            i, session = m.get("id"), self.headers["Mcp-Session-Id"]
            if m["method"] == "initialize":
                sessions.append(f"s{len(sessions)}")
                return self.reply(200, {"jsonrpc": "2.0", "id": i, "result": {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "o", "version": "1"}}}, **{"Mcp-Session-Id": sessions[-1]})
            if session not in sessions or self.headers["MCP-Protocol-Version"] != "2025-06-18":
                return self.reply(400 if not session else 404, {"jsonrpc": "2.0", "id": "server-error", "error": {"code": -32600, "message": "no session"}})
            if i is None:
                return self.reply(202, None)
            if m["method"] == "tools/list":
                return self.reply(200, {"jsonrpc": "2.0", "id": i, "result": {"tools": [tool("call"), tool("forget")]}})
            if m["params"]["name"] == "forget":
                sessions.clear()
                sessions.append("other")
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            answer = {"jsonrpc": "2.0", "id": i, "result": {"content": [{"type": "text", "text": session}]}}
            note = {"jsonrpc": "2.0", "method": "notifications/progress", "params": {}}
            self.wfile.write(f": hello\n\nevent: message\ndata: {json.dumps(note)}\n\nevent: message\ndata: {json.dumps(answer)}\n\n".encode())
            self.wfile.flush()
            time.sleep(30)
            self.close_connection = True

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_port, flush=True)
    server.serve_forever()


def badhttp():
    """A server over HTTP that misbehaves by path: /redirect to a secret, /endless events, /html,
    /gzip of a large body."""
    import gzip
    import http.server
    secrets = []

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *a):
            pass

        def reply(self, status, kind, data, **headers):
            self.send_response(status)
            for k, v in {"Content-Type": kind, "Content-Length": str(len(data)), **headers}.items():
                self.send_header(k, v)
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self):
            if self.path == "/secret":
                secrets.append(1)
            self.reply(200, "text/plain", str(len(secrets)).encode())

        def do_POST(self):
            m = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path == "/redirect":
                return self.reply(307 if len(secrets) % 2 else 302, "text/plain", b"", Location="/secret")
            if self.path == "/secret":
                secrets.append(1)
            if self.path == "/html":
                return self.reply(200, "text/html", b"<html>")
            if self.path == "/gzip":
                body = b" " * (64 << 20) + json.dumps({"jsonrpc": "2.0", "id": m.get("id"), "result": {}}).encode()
                return self.reply(200, "application/json", gzip.compress(body), **{"Content-Encoding": "gzip"})
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            while True:
                self.wfile.write(b": nothing\n\n" * 5000)

        def handle(self):
            try:
                super().handle()
            except OSError:
                pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    print(server.server_port, flush=True)
    server.serve_forever()


mode = sys.argv[1]
if mode == "oldhttp":
    oldhttp()
elif mode == "badhttp":
    badhttp()
elif mode == "good":
    good()
elif mode == "http":
    good(int(sys.argv[2]))
else:
    plain(mode, int(sys.argv[2]) if len(sys.argv) > 2 else 0)
