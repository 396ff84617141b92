/* mcp_documents.c - serve the documents of a key as MCP resources: resources/list and
 * resources/read.
 *
 * The threads of /api/rag find the documents, and the request waits like one that calls a tool. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/internal.h"
#include "libcommon/serve/tools/tool_request.h"

#define MIME "text/plain"                /* the extracted text, for every kind of file */

static json_t *resource(const json_t *document)
{
    const char *id = json_string_value(js_get(document, "id")), *name = json_string_value(js_get(document, "name")),
               *collection = json_string_value(js_get(document, "collection"));
    char about[128];
    snprintf(about, sizeof about, "a document of the collection %.70s", collection ? collection : "");
    return json_pack("{s:s+, s:s, s:o, s:s, s:I}", "uri", MCP_DOCUMENT_URI, id ? id : "", "name", name ? name : "",
                     "description", js_text(about), "mimeType", MIME, "size",
                     json_integer_value(js_get(document, "text_size")));
}

static json_t *list_answer(struct mcp_answer *a, const json_t *answer)
{
    const json_t *documents = js_get(answer, "documents"), *d;
    json_t *list = json_array();
    size_t i;
    int bad = !list;
    json_array_foreach(documents, i, d)
        bad |= json_array_append_new(list, resource(d));
    const int64_t end = a->from + (int64_t)json_array_size(documents);
    if (!bad)
        return mcp_list_answer(a, list, end < json_integer_value(js_get(answer, "total")));
    json_decref(list);
    return NULL;
}

static json_t *read_answer(const struct tool_request *r, const json_t *answer)
{
    char uri[64];
    const char *text = json_string_value(js_get(answer, "text"));
    snprintf(uri, sizeof uri, MCP_DOCUMENT_URI "%s", r->document);
    return mcp_read_answer(&r->mcp, uri, MIME, text ? text : "");
}

static void on_answer(void *user, json_t *answer, const struct problem *p)
{
    struct tool_request *r = user;
    json_t *message = NULL;
    const int missing = *r->document && p->status && p->status != 503;
    if (r->conn && !p->status && answer)
        message = *r->document ? read_answer(r, answer) : list_answer(&r->mcp, answer);
    else if (r->conn && missing)
        message = mcp_no_resource(&r->mcp, p->status == 404 ? "Resource not found" : p->message);
    if (r->conn) {
        conn_set_exchange(r->conn, NULL);
        if (message || !p->status)
            reply_object(r->s, r->conn, message ? 200 : 503, message);
        else
            reply_problem(r->s, r->conn, p);
    }
    mcp_answer_release(&r->mcp);
    free(r);
}

void mcp_documents_start(struct server *s, struct conn *c, struct mcp_answer *a)
{
    struct tool_request *r = calloc(1, sizeof *r);
    struct problem pr;
    int rc = r ? 0 : problem_nomem(&pr);
    if (r) {
        r->exchange.kind = EXCHANGE_TOOLS;
        r->s = s;
        r->conn = c;
        r->mcp = *a;
        if (a->is_read)                 /* a name longer than any id becomes "?", so that no document is found */
            snprintf(r->document, sizeof r->document, "%s",
                     *a->name && strlen(a->name) < sizeof r->document ? a->name : "?");
        r->mcp.name = NULL;
        rc = rag_ask_documents(s, conn_record(c), r->document, r->mcp.from, MCP_PAGE, on_answer, r, &pr);
    }
    if (rc == 0) {
        conn_set_exchange(c, r);
        return;
    }
    free(r);
    mcp_answer_release(a);
    conn_set_header(c, "Retry-After", "1");
    reply_problem(s, c, &pr);
}
