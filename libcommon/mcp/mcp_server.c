/* mcp_server.c - answer the messages of MCP clients. */
#include "libcommon/mcp/mcp_server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"

static const char *const legacy[] = { MCP_LEGACY, "2025-06-18", "2025-03-26", "2024-11-05" };
enum { N_LEGACY = sizeof legacy / sizeof *legacy, LIST_TTL_MS = 300000 };
static const char instructions[] = "Tools for arithmetic, dates and time zones, JSON and text.";

int mcp_is_legacy(const char *version)
{
    for (int i = 0; version && i < N_LEGACY; i++)
        if (strcmp(legacy[i], version) == 0)
            return 1;
    return 0;
}

json_t *mcp_implementation(void) { return json_pack("{s:s, s:s, s:s}", "name", "zse", "title", "ZSE", "version", ZSE_VERSION); }

/* One message while it is answered. */
struct asked {
    const struct mcp_host *h;
    const struct mcp_headers *headers;
    const json_t *params, *meta;
    json_t *id;                         /* borrowed; NULL: a notification */
    const char *method, *version;
    struct mcp_answer *a;
};

/* ---- messages ---- */

static json_t *error_json(json_t *id, int code, const char *text, json_t *data)
{
    /* js_text: the text may quote the client, and be cut inside a character */
    json_t *error = json_pack("{s:i, s:o}", "code", code, "message", js_text(text)),
           *m = json_pack("{s:s}", "jsonrpc", "2.0");
    int bad = !error || !m;
    if (data)
        bad |= json_object_set_new(error, "data", data);
    if (id)
        bad |= json_object_set(m, "id", id);
    bad |= json_object_set_new(m, "error", error);
    if (!bad)
        return m;
    json_decref(m);
    return NULL;
}

json_t *mcp_parse_error(const char *why) { return error_json(NULL, MCP_PARSE_ERROR, why, NULL); }

static void refuse(struct asked *q, int status, int code, const char *text)
{
    q->a->status = status;
    q->a->message = error_json(q->id, code, text, NULL);
}

static void refuse_version(struct asked *q, const char *version)
{
    json_t *supported = json_pack("[s, s, s, s]", MCP_MODERN, legacy[0], legacy[1], legacy[2]);
    q->a->status = 400;
    q->a->message = error_json(q->id, MCP_UNSUPPORTED_VERSION, "Unsupported protocol version",
                               json_pack("{s:o, s:s}", "supported", supported, "requested", version));
}

static json_t *complete(const struct mcp_answer *a, json_t *result)
{
    int bad = !result;
    if (a->modern)
        bad |= json_object_set_new(result, "resultType", json_string("complete")) ||
               json_object_set_new(result, "_meta", json_pack("{s:o}", MCP_META "serverInfo", mcp_implementation()));
    json_t *m = bad ? NULL : json_pack("{s:s, s:O, s:O}", "jsonrpc", "2.0", "id", a->id, "result", result);
    json_decref(result);
    return m;
}

static void reply(struct asked *q, json_t *result)
{
    q->a->message = complete(q->a, result);
    q->a->status = q->a->message ? 200 : 503;
}

/* Add to a result how long a client may cache it, and for whom, as revision 2026-07-28 requires.
 * NULL: out of memory. */
static json_t *cacheable(const struct mcp_answer *a, json_t *result, int ttl_ms, const char *scope)
{
    if (result && a->modern && (json_object_set_new(result, "ttlMs", json_integer(ttl_ms)) ||
                                json_object_set_new(result, "cacheScope", json_string(scope)))) {
        json_decref(result);
        result = NULL;
    }
    return result;
}

static void reply_cacheable(struct asked *q, json_t *result, int ttl_ms, const char *scope)
{
    reply(q, cacheable(q->a, result, ttl_ms, scope));
}

/* ---- methods ---- */

static json_t *capabilities(void) { return json_pack("{s:{}, s:{}, s:{}}", "tools", "resources", "prompts"); }

static void initialize(struct asked *q)
{
    const char *wanted = json_string_value(js_get(q->params, "protocolVersion"));
    if (!wanted) {
        refuse(q, 200, MCP_INVALID_PARAMS, "protocolVersion: missing");
        return;
    }
    reply(q, json_pack("{s:s, s:o, s:o, s:s}", "protocolVersion", mcp_is_legacy(wanted) ? wanted : MCP_LEGACY,
                       "capabilities", capabilities(), "serverInfo", mcp_implementation(), "instructions", instructions));
}

static void discover(struct asked *q)
{
    json_t *versions = json_pack("[s]", MCP_MODERN);
    for (int i = 0; i < N_LEGACY; i++)
        json_array_append_new(versions, json_string(legacy[i]));
    reply_cacheable(q, json_pack("{s:o, s:o, s:s}", "supportedVersions", versions, "capabilities", capabilities(),
                                 "instructions", instructions), LIST_TTL_MS, "public");
}

static void ping(struct asked *q) { reply(q, json_object()); }

/* Answer with a list in one page, without a cursor. */
static void list(struct asked *q, const char *key, json_t *items, int ttl_ms, const char *scope)
{
    if (js_get(q->params, "cursor")) {
        json_decref(items);
        refuse(q, 200, MCP_INVALID_PARAMS, "cursor: there is one page only");
        return;
    }
    reply_cacheable(q, items ? json_pack("{s:o}", key, items) : NULL, ttl_ms, scope);
}

static void tools_list(struct asked *q) { list(q, "tools", q->h->tools(q->h->user), LIST_TTL_MS, "public"); }
static void prompts_list(struct asked *q) { list(q, "prompts", mcp_prompts(), LIST_TTL_MS, "public"); }
/* Answer resources/list.  The cursor of a page is the number of documents before it. */
static void resources_list(struct asked *q)
{
    const json_t *cursor = js_get(q->params, "cursor");
    const char *text = json_string_value(cursor);
    char *end = NULL;
    long long from = 0;
    if (!q->h->documents) {
        list(q, "resources", q->h->resources(q->h->user), 0, "private");
        return;
    }
    if (text)
        from = strtoll(text, &end, 10);
    if (cursor && (!text || *text < '0' || *text > '9' || *end || from > INT32_MAX)) {
        refuse(q, 200, MCP_INVALID_PARAMS, "cursor: expected the nextCursor of a list");
        return;
    }
    q->a->resources = from ? json_array() : q->h->resources(q->h->user);
    q->a->from = from;
    q->a->is_list = q->a->resources != NULL;
}

static void templates_list(struct asked *q)
{
    json_t *document = json_pack("[{s:s, s:s, s:s, s:s}]", "uriTemplate", MCP_DOCUMENT_URI "{id}", "name", "document",
                                 "description", "the text of a document of the client", "mimeType", "text/plain");
    if (!q->h->documents) {
        json_decref(document);
        document = json_array();
    }
    list(q, "resourceTemplates", document, LIST_TTL_MS, "public");
}

static void tools_call(struct asked *q)
{
    const char *name = json_string_value(js_get(q->params, "name"));
    json_t *arguments = js_get(q->params, "arguments");
    char text[200];
    if (!name || (arguments && !json_is_object(arguments))) {
        refuse(q, 200, MCP_INVALID_PARAMS, name ? "arguments: expected an object" : "name: missing");
    } else if (!q->h->has_tool(q->h->user, name)) {
        snprintf(text, sizeof text, "Unknown tool: %.120s", name);
        refuse(q, 200, MCP_INVALID_PARAMS, text);
    } else {
        q->a->is_call = 1;
        q->a->name = name;
        q->a->arguments = arguments ? json_incref(arguments) : json_object();
        q->a->status = 200;
    }
}

static void resources_read(struct asked *q)
{
    const char *uri = json_string_value(js_get(q->params, "uri"));
    if (uri && q->h->documents && strncmp(uri, MCP_DOCUMENT_URI, strlen(MCP_DOCUMENT_URI)) == 0) {
        q->a->is_read = 1;
        q->a->name = uri + strlen(MCP_DOCUMENT_URI);
        return;
    }
    json_t *value = uri ? q->h->read(q->h->user, uri) : NULL;
    if (!value) {
        refuse(q, 200, uri && !q->a->modern ? MCP_NO_RESOURCE : MCP_INVALID_PARAMS, uri ? "Resource not found" : "uri: missing");
        return;
    }
    char *text = json_dumps(value, JSON_COMPACT);
    json_decref(value);
    reply_cacheable(q, text ? json_pack("{s:[{s:s, s:s, s:s}]}", "contents", "uri", uri, "mimeType", "application/json",
                                        "text", text) : NULL, 0, "private");
    free(text);
}

static void prompts_get(struct asked *q)
{
    const char *name = json_string_value(js_get(q->params, "name"));
    char why[160] = "name: missing";
    json_t *prompt = name ? mcp_prompt(name, js_get(q->params, "arguments"), why) : NULL;
    if (!prompt && *why)
        refuse(q, 200, MCP_INVALID_PARAMS, why);
    else
        reply(q, prompt);
}

enum era { LEGACY = 1, MODERN = 2, BOTH = 3 };
static const struct mcp_method {
    const char *name;
    enum era era;
    const char *named;                  /* the member of params that the header Mcp-Name must repeat; NULL: none */
    void (*answer)(struct asked *q);
} methods[] = {
    { "initialize", LEGACY, NULL, initialize }, { "ping", LEGACY, NULL, ping },
    { "server/discover", MODERN, NULL, discover }, { "tools/list", BOTH, NULL, tools_list },
    { "tools/call", BOTH, "name", tools_call }, { "resources/list", BOTH, NULL, resources_list },
    { "resources/read", BOTH, "uri", resources_read }, { "resources/templates/list", BOTH, NULL, templates_list },
    { "prompts/list", BOTH, NULL, prompts_list }, { "prompts/get", BOTH, "name", prompts_get },
};

static const struct mcp_method *find_method(const char *name, int modern)
{
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (strcmp(methods[i].name, name) == 0 && methods[i].era & (modern ? MODERN : LEGACY))
            return &methods[i];
    return NULL;
}

/* ---- the headers and the version of a request ---- */

static int digit_of(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *p = c ? strchr(digits, c) : NULL;
    return p ? (int)(p - digits) : -1;
}

/* Does the header, which may be =?base64?...?=, have this value? */
static int header_is(const char *header, const char *value)
{
    static const char open[] = "=?base64?";
    const size_t n = strlen(header);
    size_t at = 0;
    unsigned bits = 0, n_bits = 0;
    if (n < sizeof open + 1 || strncmp(header, open, sizeof open - 1) != 0 || strcmp(header + n - 2, "?=") != 0)
        return strcmp(header, value) == 0;
    for (const char *p = header + sizeof open - 1; p < header + n - 2 && *p != '='; p++) {
        const int d = digit_of(*p);
        if (d < 0)
            return 0;
        bits = bits << 6 | (unsigned)d;
        if ((n_bits += 6) >= 8) {
            n_bits -= 8;
            if (!value[at] || (unsigned char)value[at++] != (bits >> n_bits & 0xff))
                return 0;
        }
    }
    return value[at] == '\0';
}

static void mismatch(struct asked *q, const char *header, const char *found, const char *expected)
{
    char text[300];
    snprintf(text, sizeof text, found ? "Header mismatch: %s is '%.80s', expected '%.80s'" : "Header mismatch: %s is missing%.0s, expected '%.80s'",
             header, found ? found : "", expected);
    refuse(q, 400, MCP_HEADER_MISMATCH, text);
}

/* Check the headers that revision 2026-07-28 requires to repeat parts of the body.  0, or -1: the
 * request was refused. */
static int check_headers(struct asked *q, const struct mcp_method *m)
{
    const struct mcp_headers *h = q->headers;
    const char *named = m && m->named ? json_string_value(js_get(q->params, m->named)) : NULL;
    if (!h->version || strcmp(h->version, q->version) != 0)
        mismatch(q, "MCP-Protocol-Version", h->version, q->version);
    else if (!h->method || strcmp(h->method, q->method) != 0)
        mismatch(q, "Mcp-Method", h->method, q->method);
    else if (named && (!h->name || !header_is(h->name, named)))
        mismatch(q, "Mcp-Name", h->name, named);
    else
        return 0;
    return -1;
}

static void answer_modern(struct asked *q)
{
    const struct mcp_method *m = find_method(q->method, 1);
    if (strcmp(q->version, MCP_MODERN) != 0)
        refuse_version(q, q->version);
    else if (!json_is_object(js_get(q->meta, MCP_META "clientCapabilities")))
        refuse(q, 400, MCP_INVALID_PARAMS, "_meta: " MCP_META "clientCapabilities: missing");
    else if (q->headers && check_headers(q, m) != 0)
        return;
    else if (!m)
        refuse(q, 404, MCP_NO_METHOD, "Method not found");
    else
        m->answer(q);
}

static void answer_legacy(struct asked *q)
{
    const struct mcp_headers *h = q->headers;
    const struct mcp_method *m = find_method(q->method, 0);
    const int starts = m && m->answer == initialize;
    if (h && h->session && !starts)
        refuse(q, 404, MCP_INVALID_REQUEST, "Session not found: this server has no sessions");
    else if (h && h->version && strcmp(h->version, MCP_MODERN) == 0 && !starts)
        refuse(q, 400, MCP_INVALID_PARAMS, "_meta: " MCP_META "protocolVersion: missing");
    else if (h && h->version && !mcp_is_legacy(h->version) && !starts)
        refuse_version(q, h->version);
    else if (!m)
        refuse(q, strcmp(q->method, "server/discover") == 0 ? 400 : 200, MCP_NO_METHOD, "Method not found");
    else
        m->answer(q);
}

void mcp_answer(const struct mcp_host *h, const json_t *message, const struct mcp_headers *headers,
                struct mcp_answer *a)
{
    struct asked q = { .h = h, .headers = headers, .a = a, .params = js_get(message, "params") };
    json_t *id = json_object_get(message, "id");
    const char *version = json_string_value(js_get(message, "jsonrpc"));
    *a = (struct mcp_answer){ .status = 202 };
    q.meta = js_get(q.params, "_meta");
    q.method = json_string_value(js_get(message, "method"));
    q.version = json_string_value(js_get(q.meta, MCP_META "protocolVersion"));
    if (!json_is_object(message) || !version || strcmp(version, "2.0") != 0) {
        refuse(&q, 400, MCP_INVALID_REQUEST, json_is_array(message) ? "Batches are not supported" : "Not a JSON-RPC 2.0 message");
        return;
    }
    if (id && !json_is_string(id) && !json_is_integer(id)) {
        refuse(&q, 400, MCP_INVALID_REQUEST, "id: expected text or a whole number");
        return;
    }
    q.id = id;
    if (!q.method && (js_get(message, "result") || js_get(message, "error")))
        return;                                 /* a response: nothing was asked */
    if (!q.method || (q.params && !json_is_object(q.params))) {
        refuse(&q, 400, MCP_INVALID_REQUEST, q.method ? "params: expected an object" : "method: missing");
        return;
    }
    if (!id)
        return;                                 /* a notification: initialized, cancelled */
    a->id = json_incref(id);
    a->modern = q.version != NULL;
    if (a->modern)
        answer_modern(&q);
    else
        answer_legacy(&q);
    if (!a->message && !a->is_call && !a->is_list && !a->is_read)
        a->status = 503;
}

json_t *mcp_call_answer(const struct mcp_answer *a, const char *text, int is_error)
{
    return complete(a, json_pack("{s:[{s:s, s:s}], s:b}", "content", "type", "text", "text", text, "isError", is_error));
}

json_t *mcp_list_answer(struct mcp_answer *a, json_t *documents, int more)
{
    char next[32];
    json_t *result = NULL;
    snprintf(next, sizeof next, "%lld", (long long)a->from + (long long)json_array_size(documents));
    if (documents && json_array_extend(a->resources, documents) == 0)
        result = json_pack("{s:O}", "resources", a->resources);
    json_decref(documents);
    if (result && more && json_object_set_new(result, "nextCursor", json_string(next)) != 0) {
        json_decref(result);
        result = NULL;
    }
    return complete(a, cacheable(a, result, 0, "private"));
}

json_t *mcp_read_answer(const struct mcp_answer *a, const char *uri, const char *mime_type, const char *text)
{
    json_t *result = json_pack("{s:[{s:s, s:s, s:s}]}", "contents", "uri", uri, "mimeType", mime_type, "text", text);
    return complete(a, cacheable(a, result, 0, "private"));
}

json_t *mcp_no_resource(const struct mcp_answer *a, const char *why)
{
    return error_json(a->id, a->modern ? MCP_INVALID_PARAMS : MCP_NO_RESOURCE, why, NULL);
}

void mcp_answer_release(struct mcp_answer *a)
{
    json_decref(a->resources);
    json_decref(a->message);
    json_decref(a->arguments);
    json_decref(a->id);
    memset(a, 0, sizeof *a);
}
