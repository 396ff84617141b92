/* mcp_endpoint.c - POST /mcp: the Model Context Protocol over streamable HTTP.
 *
 * Every answer is one JSON object, so there are no streams and no sessions; GET and DELETE are
 * refused with 405, as the protocol requires of such a server.  Host, Origin and key are checked as
 * for any other path. */
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/internal.h"
#include "libcommon/serve/tools/tool_request.h"

#define MODEL_URI "zse://models/"

struct mcp_caller { struct server *s; const struct access_record *record; };

/* ---- the offer ---- */

static json_t *tools(void *user)
{
    const struct mcp_caller *k = user;
    return toolbox_mcp_tools(k->s->toolbox);
}

static int has_tool(void *user, const char *name)
{
    const struct mcp_caller *k = user;
    struct tool_facts facts;
    return toolbox_find(k->s->toolbox, name, &facts) && !facts.server;
}

static int may_see(const struct mcp_caller *k, const struct loaded_model *lm)
{
    return lm->state == MODEL_READY && (!k->record || !k->record->has_key || key_allows_model(&k->record->key, lm->id));
}

static json_t *resources(void *user)
{
    const struct mcp_caller *k = user;
    json_t *list = json_array();
    int bad = !list;
    for (const struct loaded_model *lm = k->s->models; lm; lm = lm->next)
        if (may_see(k, lm))
            bad |= json_array_append_new(list, json_pack("{s:s+, s:s, s:s, s:s}", "uri", MODEL_URI, lm->id, "name", lm->id,
                                                         "description", "a loaded model", "mimeType",
                                                         "application/json"));
    if (!bad)
        return list;
    json_decref(list);
    return NULL;
}

static json_t *read_resource(void *user, const char *uri)
{
    const struct mcp_caller *k = user;
    struct buf out = { 0 };
    struct err ignored;
    json_t *json = NULL;
    if (strncmp(uri, MODEL_URI, strlen(MODEL_URI)) != 0)
        return NULL;
    for (const struct loaded_model *lm = k->s->models; lm && !json; lm = lm->next)
        if (may_see(k, lm) && strcmp(lm->id, uri + strlen(MODEL_URI)) == 0) {
            model_json(lm, 0, &out);
            json = out.failed ? NULL : js_parse("model", out.data, out.size, &ignored);
        }
    buf_release(&out);
    return json;
}

/* ---- the endpoint ---- */

static void answer_call(struct tool_request *r)
{
    const struct tool_result t = batch_result(r->batch, 0);
    reply_object(r->s, r->conn, 200, mcp_call_answer(&r->mcp, t.text, t.is_error));
}

static void reply_message(struct server *s, struct conn *c, const struct mcp_answer *a)
{
    const struct buf none = { .data = "", .size = 0 };
    if (a->message || a->status == 503)
        reply_object(s, c, a->status, json_incref(a->message));
    else
        reply_json(s, c, a->status, &none);
}

void handle_mcp(struct server *s, struct conn *c, const char *rest)
{
    const struct http_request *r = conn_request(c);
    struct mcp_caller k = { s, conn_record(c) };
    const struct mcp_host host = { .tools = tools, .has_tool = has_tool, .resources = resources, .read = read_resource,
                                   .documents = s->rag && s->o.home, .user = &k };
    const struct mcp_headers headers = { http_field(r, "MCP-Protocol-Version"), http_field(r, "Mcp-Method"),
                                         http_field(r, "Mcp-Name"), http_field(r, "Mcp-Session-Id") };
    struct mcp_answer a;
    struct err e;
    char id[48];
    (void)rest;
    if (r->body.size > TOOL_BODY) {
        reply_refusal(s, c, 413, "body_too_large", "a body of %zu bytes, expected at most %d", r->body.size, TOOL_BODY);
        return;
    }
    json_t *message = js_parse("body", r->body.size ? r->body.data : "", r->body.size, &e);
    if (!message) {
        reply_object(s, c, e.code == ERR_MEMORY ? 503 : 400, mcp_parse_error(e.msg));
        return;
    }
    mcp_answer(&host, message, &headers, &a);
    if (a.is_call) {
        server_id(s, "call_", id);
        const struct tool_call call = { id, a.name, a.arguments };
        tool_request_start(s, c, &call, 1, (struct tool_request){ .answer = answer_call, .mcp = a });
    } else if (a.is_list || a.is_read) {
        mcp_documents_start(s, c, &a);
    } else {
        reply_message(s, c, &a);
        mcp_answer_release(&a);
    }
    json_decref(message);
}
