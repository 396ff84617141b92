"""mcp_client.py - the official mcp package as a client of /mcp or of zse-serve --mcp-stdio, and raw
messages that no client sends.

usage: mcp_client.py http URL [KEY] | mcp_client.py stdio COMMAND..."""
import asyncio
import json
import sys
import urllib.error
import urllib.request

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

TOOLS = ["calculator", "datetime", "parse_json", "string_ops"] + ["rag_search"] * (sys.argv[1] == "http")
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}


def ok(name, condition, found=None):
    print("ok" if condition else "not ok", "-", name, "" if condition else repr(found))
    if not condition:
        sys.exit(1)


# the text of a document comes back with one empty line between chunks, and without the # of
# headings
DOCUMENTS = {"mcp-zoo.txt": "The zebra of the city zoo is called Marty.", "mcp-guide.md": "# Guide\n\n" + "\n\n".join(
    f"Paragraph {i} tells what number {i} is for, and why it is where it is; " + "more of that " * 30 + "ends." for i in range(30))}


async def session(make, mode):
    async with make(mode) as c:
        tools = await c.list_tools()
        ok(f"{mode}: tools", [t.name for t in tools.tools] == TOOLS, tools)
        ok(f"{mode}: hints", all(t.annotations.read_only_hint for t in tools.tools), tools)
        r = await c.call_tool("calculator", {"expression": "2+2*3"})
        ok(f"{mode}: a call", not r.is_error and r.content[0].text == "8", r)
        r = await c.call_tool("calculator", {"expression": "1/0"})
        ok(f"{mode}: an error of a tool", r.is_error and "division by zero" in r.content[0].text, r)
        try:
            await c.call_tool("eval", {})
            ok(f"{mode}: an unknown tool", False)
        except Exception as e:
            ok(f"{mode}: an unknown tool", "Unknown tool: eval" in str(e), e)
        resources = (await c.list_resources()).resources
        documents = [x for x in resources if str(x.uri).startswith("zse://documents/")]
        for x in [x for x in documents if x.name in DOCUMENTS]:         # those that main() added
            r = await c.read_resource(x.uri)
            ok(f"{mode}: document {x.name}", r.contents[0].text == DOCUMENTS[x.name].removeprefix("# ") and r.contents[0].mime_type == x.mime_type, r)
        ok(f"{mode}: documents", sys.argv[1] != "http" or {x.name for x in documents} >= set(DOCUMENTS), resources)
        templates = (await c.list_resource_templates()).resource_templates
        ok(f"{mode}: templates", [x.uri_template for x in templates] == ["zse://documents/{id}"] * (sys.argv[1] == "http"), templates)
        for x in [x for x in resources if x not in documents]:
            r = await c.read_resource(x.uri)
            ok(f"{mode}: resource {x.name}", json.loads(r.contents[0].text)["id"] == x.name, r)
        try:
            await c.read_resource("zse://models/none")
            ok(f"{mode}: a missing resource", False)
        except Exception as e:
            ok(f"{mode}: a missing resource", "not found" in str(e), e)
        try:
            await c.read_resource("zse://documents/doc-0000000000000000")
            ok(f"{mode}: a missing document", False)
        except Exception as e:
            ok(f"{mode}: a missing document", "not found" in str(e), e)
        prompts = (await c.list_prompts()).prompts
        ok(f"{mode}: prompts", [p.name for p in prompts] == ["summarize", "translate", "review"], prompts)
        r = await c.get_prompt("translate", {"language": "French", "text": "Hello"})
        ok(f"{mode}: a prompt", "French" in r.messages[0].content.text and "Hello" in r.messages[0].content.text, r)
        many = await asyncio.gather(*[c.call_tool("calculator", {"expression": f"{i}**2"}) for i in range(40)])
        ok(f"{mode}: 40 calls at once", [m.content[0].text for m in many] == [str(i * i) for i in range(40)])


def post(url, body, headers=None):
    h = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream", **(headers or {})}
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(urllib.request.Request(url, data, h)) as r:
            text = r.read()
            return r.status, json.loads(text) if text else None
    except urllib.error.HTTPError as e:
        text = e.read()
        return e.code, json.loads(text) if text else None


def request(method, params=None, meta=META, **more):
    p = dict(params or {})
    if meta:
        p["_meta"] = meta
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": p, **more}


def headers(method, version="2026-07-28", **more):
    return {"MCP-Protocol-Version": version, "Mcp-Method": method, **more}


def raw(url):
    """Check HTTP statuses and error codes in both revisions of the protocol, which the package's
    own client does not show."""
    def code(name, got, status, number):
        ok(name, got[0] == status and got[1]["error"]["code"] == number, got)

    s, r = post(url, request("server/discover"), headers("server/discover"))
    ok("discover", s == 200 and r["result"]["resultType"] == "complete" and "2026-07-28" in r["result"]["supportedVersions"] and r["result"]["ttlMs"] >= 0, r)
    s, r = post(url, request("tools/list"), headers("tools/list"))
    ok("ttlMs and cacheScope of a list", r["result"]["ttlMs"] > 0 and r["result"]["cacheScope"] == "public" and r["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "zse", r)
    call = {"name": "calculator", "arguments": {"expression": "6*7"}}
    s, r = post(url, request("tools/call", call), headers("tools/call", **{"Mcp-Name": "=?base64?Y2FsY3VsYXRvcg==?="}))
    ok("a name in base64", s == 200 and r["result"]["content"][0]["text"] == "42", r)
    code("another name in the header", post(url, request("tools/call", call), headers("tools/call", **{"Mcp-Name": "datetime"})), 400, -32020)
    code("no name in the headers", post(url, request("tools/call", call), headers("tools/call")), 400, -32020)
    code("no method in the headers", post(url, request("tools/list"), {"MCP-Protocol-Version": "2026-07-28"}), 400, -32020)
    code("another version in the header", post(url, request("tools/list"), headers("tools/list", "2025-11-25")), 400, -32020)
    code("an unknown version", post(url, request("tools/list", meta={**META, "io.modelcontextprotocol/protocolVersion": "1900-01-01"}), headers("tools/list", "1900-01-01")), 400, -32022)
    code("no capabilities", post(url, request("tools/list", meta={"io.modelcontextprotocol/protocolVersion": "2026-07-28"}), headers("tools/list")), 400, -32602)
    code("no _meta", post(url, request("tools/list", meta=None), headers("tools/list")), 400, -32602)
    code("an unknown method", post(url, request("tools/none"), headers("tools/none")), 404, -32601)
    code("ping is gone", post(url, request("ping"), headers("ping")), 404, -32601)

    s, r = post(url, request("initialize", {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}, meta=None))
    ok("initialize, an older revision", s == 200 and r["result"]["protocolVersion"] == "2025-06-18" and "resultType" not in r["result"], r)
    s, r = post(url, request("initialize", {"protocolVersion": "2031-01-01", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}, meta=None))
    ok("initialize, an unknown revision", r["result"]["protocolVersion"] == "2025-11-25", r)
    ok("initialized", post(url, {"jsonrpc": "2.0", "method": "notifications/initialized"}) == (202, None))
    s, r = post(url, request("ping", meta=None), {"MCP-Protocol-Version": "2025-11-25"})
    ok("ping", r["result"] == {}, r)
    code("a legacy version that does not exist", post(url, request("ping", meta=None), {"MCP-Protocol-Version": "2020-01-01"}), 400, -32022)
    ok("a session", post(url, request("ping", meta=None), {"Mcp-Session-Id": "abc"})[0] == 404)
    code("not JSON", post(url, b'{"jsonrpc":'), 400, -32700)
    code("a batch", post(url, [request("ping", meta=None)]), 400, -32600)
    code("id null", post(url, {"jsonrpc": "2.0", "id": None, "method": "ping"}), 400, -32600)
    code("params a list", post(url, {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}), 400, -32600)
    code("no method", post(url, {"jsonrpc": "2.0", "id": 1}), 400, -32600)
    code("a cursor", post(url, request("tools/list", {"cursor": "x"}, meta=None)), 200, -32602)
    code("arguments a list", post(url, request("tools/call", {"name": "calculator", "arguments": []}, meta=None)), 200, -32602)
    ok("a page of another site", post(url, request("ping", meta=None), {"Origin": "http://evil.example"})[0] == 403)
    for method in ("GET", "DELETE"):
        try:
            urllib.request.urlopen(urllib.request.Request(url, method=method))
            ok(method, False)
        except urllib.error.HTTPError as e:
            ok(method, e.code == 405, e.code)


def documents(url):
    """List and read documents; check the pages and cursors of the list."""
    for name, text in DOCUMENTS.items():
        post(url.removesuffix("/mcp") + "/api/rag/documents", {"name": name, "content": text})
    s, r = post(url, request("resources/list"), headers("resources/list"))
    ok("a list for this key alone", s == 200 and r["result"]["cacheScope"] == "private" and "nextCursor" not in r["result"], r)
    s, r = post(url, request("resources/list", {"cursor": "1"}), headers("resources/list"))
    ok("a later page has documents only", {x["uri"][:16] for x in r["result"]["resources"]} == {"zse://documents/"}, r)
    for cursor in ("x", "-1", "1x", "", 1, "99999999999999999999"):
        s, r = post(url, request("resources/list", {"cursor": cursor}), headers("resources/list"))
        ok(f"cursor {cursor!r}", s == 200 and r["error"]["code"] == -32602, r)
    for uri in ("zse://documents/", "zse://documents/../../etc/passwd", "zse://documents/" + "d" * 5000):
        s, r = post(url, request("resources/read", {"uri": uri}), headers("resources/read", **{"Mcp-Name": uri}))
        ok(f"no document {uri[16:40]}", s == 200 and r["error"]["code"] == -32602, r)


def main():
    if sys.argv[1] == "http":
        make = lambda mode: Client(sys.argv[2], mode=mode)
        raw(sys.argv[2])
        documents(sys.argv[2])
    else:
        server = StdioServerParameters(command=sys.argv[2], args=sys.argv[3:])
        make = lambda mode: Client(stdio_client(server), mode=mode)
    for mode in ("auto", "legacy", "2026-07-28"):
        asyncio.run(asyncio.wait_for(session(make, mode), 60))


main()
