/* fuzz-http.c - any bytes as HTTP requests; results must not depend on the pieces in which they
 * arrive.  Their bodies are parsed as requests of the API and as conversations; any bytes are also
 * parsed as WebSocket frames. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/fields.h"
#include "libcommon/http/http.h"
#include "libcommon/serve/api/conversation.h"
#include "libcommon/http/websocket.h"

enum bodies { KEPT, UNSEEN, DROPPED };          /* bodies: kept, and part of the hash; kept, but not
                                                 * in the hash; discarded */

/* Parse all requests of data, given in pieces of `step` bytes.  Returns a hash of the results. */
static uint64_t requests(const uint8_t *data, size_t size, size_t step, enum bodies bodies_are)
{
    const struct http_limits limits = { .head_bytes = 4096, .body_bytes = 16384, .ask = bodies_are == DROPPED };
    struct http_parser p = { 0 };
    struct buf in = { 0 };
    uint64_t h = 14695981039346656037u;
    for (size_t at = 0; at < size; at += step) {
        buf_add(&in, data + at, size - at < step ? size - at : step);
        enum http_answer a;
        while ((a = http_parse(&p, &in, &limits)) == HTTP_DONE || a == HTTP_BODY_FOLLOWS) {
            if (a == HTTP_BODY_FOLLOWS) {
                p.drop_body = 1;
                continue;
            }
            if (p.req->body.size && bodies_are == DROPPED)
                abort();
            for (size_t i = 0; i < p.req->body.size && bodies_are == KEPT; i++)
                h = (h ^ (uint8_t)p.req->body.data[i]) * 1099511628211u;
            h = (h ^ (uint64_t)p.req->n_fields ^ strlen(p.req->path) << 8 ^ strlen(p.req->query) << 32) *
                1099511628211u;
            http_has_token(http_field(p.req, "Connection"), "close");
            http_reset(&p);
        }
        if (a == HTTP_REFUSED) {
            h = (h ^ (uint64_t)p.status) * 1099511628211u;
            break;
        }
    }
    http_reset(&p);
    buf_release(&in);
    return h;
}

static void bodies(const uint8_t *data, size_t size)
{
    struct err e;
    json_t *j = js_parse_nul("body", data, size, &e);
    for (body_set kind = BODY_CHAT; j && kind <= BODY_LAST; kind *= 2) {
        struct params p = { 0 };
        struct problem pr;
        struct buf out = { 0 };
        if (fields_parse(j, kind, &p, &pr) != 0)
            problem_json(&pr, &out);
        json_t *said = out.size ? json_loadb(out.data, out.size, 0, NULL) : NULL;
        if (out.size && !said)
            abort();                    /* an error that is not JSON */
        json_decref(said);
        buf_release(&out);
    }
    json_decref(j);
}

/* Read a body as a conversation, in each of the API's three forms. */
static void conversations(const uint8_t *data, size_t size)
{
    struct err e;
    json_t *j = js_parse_nul("body", data, size, &e);
    for (int form = 0; j && form < 3; form++) {
        struct conversation t = { 0 };
        struct problem pr = { 0 };
        int rc = form == 0 ? chat_read(j, 1, &t, &pr) : form == 1 ? responses_read(j, 1, &t, &pr)
                                                                  : messages_read(j, &t, &pr);
        if (rc == 0 && (!json_is_array(t.messages) || conversation_check_tools(&t, &pr) > 0))
            abort();
        if (rc != 0 && !pr.status)
            abort();                    /* a refusal that says nothing */
        if (rc == 0 && t.format)
            json_decref(format_schema(t.format, t.format_param, NULL, &pr));
        conversation_release(&t);
    }
    json_decref(j);
}

static void frames(const uint8_t *data, size_t size)
{
    struct ws_parser p = { 0 };
    struct buf in = { 0 };
    char pong[125];
    size_t n, at = 0;
    int status;
    buf_add(&in, data, size);
    for (;;) {
        enum ws_event e = ws_parse(&p, &in, &at, 4096, pong, &n, &status);
        if (e == WS_MESSAGE)
            ws_next(&p);
        else if (e == WS_MORE || e == WS_BAD || e == WS_GOT_CLOSE)
            break;
    }
    ws_next(&p);
    buf_release(&in);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const size_t whole = size ? size : 1;
    if (requests(data, size, whole, KEPT) != requests(data, size, 1, KEPT) && size < 4096)
        abort();
    /* discarding bodies must neither hide a request nor turn part of a body into one */
    if (requests(data, size, whole, UNSEEN) != requests(data, size, 7, DROPPED) && size < 4096)
        abort();
    bodies(data, size);
    conversations(data, size);
    frames(data, size);
    return 0;
}
