/* text.c - /v1/models, /tokenize, /detokenize, /apply-template: what needs a tokenizer but no engine. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/calls.h"

void handle_models(struct server *s, struct conn *c, const char *rest)
{
    struct buf out = { 0 };
    int n = 0;
    (void)rest;
    buf_str(&out, "{\"object\":\"list\",\"data\":[");
    for (const struct hosted *h = s->models; h; h = h->next)
        if (h->state == HOSTED_READY) {
            buf_str(&out, n++ ? "," : "");
            model_json(h, &out);
        }
    buf_str(&out, "]}");
    reply_json(s, c, 200, &out);
    buf_release(&out);
}

void handle_model(struct server *s, struct conn *c, const char *rest)
{
    struct problem pr;
    struct buf out = { 0 };
    const struct hosted *h = models_find(s, rest, &pr);
    if (!h) {
        reply_problem(s, c, &pr);
        return;
    }
    model_json(h, &out);
    reply_json(s, c, 200, &out);
    buf_release(&out);
}

/* The body and the model it names; NULL after an answer was sent. */
static struct hosted *body_and_model(struct server *s, struct conn *c, enum body_kind kind, struct params *p, json_t **body)
{
    struct problem pr;
    if (!(*body = read_body(s, c, kind, p)))
        return NULL;
    struct hosted *h = models_find(s, p->model, &pr);
    if (h && h->m.tokenizer)
        return h;
    if (h)
        problem_set(&pr, 400, "model", NULL, "model: %s has no tokenizer", h->id);
    reply_problem(s, c, &pr);
    json_decref(*body);
    return NULL;
}

static void tokens_json(const struct tokenizer *t, const int32_t *ids, size_t n, int pieces, struct buf *out)
{
    buf_str(out, "{\"tokens\":[");
    for (size_t i = 0; i < n; i++) {
        struct buf bytes = { 0 };
        if (!pieces) {
            buf_printf(out, i ? ",%d" : "%d", (int)ids[i]);
            continue;
        }
        token_bytes(t, ids[i], &bytes);
        buf_printf(out, "%s{\"id\":%d,\"piece\":", i ? "," : "", (int)ids[i]);
        token_json(bytes.data, bytes.size, out);
        buf_str(out, "}");
        buf_release(&bytes);
    }
    buf_printf(out, "],\"count\":%zu}", n);
}

void handle_tokenize(struct server *s, struct conn *c, const char *rest)
{
    struct params p = { .parse_special = 1 };
    struct buf out = { 0 };
    struct err e;
    json_t *body;
    int32_t *ids;
    size_t n;
    (void)rest;
    struct hosted *h = body_and_model(s, c, BODY_TOKENIZE, &p, &body);
    if (!h)
        return;
    const json_t *text = js_get(body, "content");
    unsigned flags = (p.add_special ? TOKENIZE_ADD_SPECIAL : 0) | (p.parse_special ? TOKENIZE_PARSE_SPECIAL : 0);
    if (!json_is_string(text)) {
        reply_refusal(s, c, 400, "invalid_type", "content: %s, expected text", text ? js_kind(text) : "missing");
    } else if (tokenizer_encode(h->m.tokenizer, json_string_value(text), json_string_length(text), flags, &ids, &n, &e) != 0) {
        reply_refusal(s, c, 400, NULL, "content: %s", e.msg);
    } else {
        tokens_json(h->m.tokenizer, ids, n, p.with_pieces, &out);
        reply_json(s, c, 200, &out);
        free(ids);
    }
    buf_release(&out);
    json_decref(body);
}

void handle_detokenize(struct server *s, struct conn *c, const char *rest)
{
    struct params p = { 0 };
    struct buf out = { 0 };
    struct err e;
    json_t *body;
    char *text;
    size_t size;
    (void)rest;
    struct hosted *h = body_and_model(s, c, BODY_DETOKENIZE, &p, &body);
    if (!h)
        return;
    const json_t *list = js_get(body, "tokens");
    size_t n = json_array_size(list), i = 0;
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    int vocab = tokenizer_vocab_size(h->m.tokenizer);
    for (; ids && i < n; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= vocab)
            break;
        ids[i] = (int32_t)json_integer_value(v);
    }
    if (!json_is_array(list))
        reply_refusal(s, c, 400, "invalid_type", "tokens: %s, expected a list of token ids", list ? js_kind(list) : "missing");
    else if (!ids)
        reply_refusal(s, c, 503, NULL, "out of memory");
    else if (i < n)
        reply_refusal(s, c, 400, "out_of_range", "tokens: number %zu is no token id from 0 to %d", i, vocab - 1);
    else if (tokenizer_decode(h->m.tokenizer, ids, n, 0, &text, &size, &e) != 0)
        reply_refusal(s, c, 400, NULL, "tokens: %s", e.msg);
    else {
        buf_str(&out, "{\"content\":");
        buf_json(&out, text, size);
        buf_str(&out, "}");
        reply_json(s, c, 200, &out);
        free(text);
    }
    buf_release(&out);
    free(ids);
    json_decref(body);
}

void handle_template(struct server *s, struct conn *c, const char *rest)
{
    struct params p = { .add_generation_prompt = 1 };
    struct problem pr;
    struct buf out = { 0 };
    json_t *body;
    char *text;
    size_t size;
    (void)rest;
    struct hosted *h = body_and_model(s, c, BODY_TEMPLATE, &p, &body);
    if (!h)
        return;
    if (call_render(h, body, p.add_generation_prompt, &text, &size, &pr) != 0) {
        reply_problem(s, c, &pr);
    } else {
        buf_str(&out, "{\"prompt\":");
        buf_json(&out, text, size);
        buf_str(&out, "}");
        reply_json(s, c, 200, &out);
        free(text);
    }
    buf_release(&out);
    json_decref(body);
}
