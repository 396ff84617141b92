/* text.c - /v1/models, /tokenize, /detokenize, /apply-template: endpoints that need no engine.
 * render.c has those that only vLLM has. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/api/calls.h"
#include "libcommon/serve/named.h"

/* ---- /v1/models ---- */

/* Whether a client of Anthropic's API sent the request: these send this header with every
 * request. */
static int is_anthropic(const struct conn *c) { return http_field(conn_request(c), "anthropic-version") != NULL; }

/* Write a model in Anthropic's form.  NULL without memory. */
static json_t *anthropic_model(const json_t *m)
{
    const char *id = json_string_value(json_object_get(m, "id"));
    return json_pack("{s:s, s:s, s:s, s:o}", "type", "model", "id", id, "display_name", id, "created_at",
                     js_time(1000 * json_integer_value(json_object_get(m, "created"))));
}

static json_t *anthropic_list(const json_t *list)
{
    const json_t *data = json_object_get(list, "data"), *m;
    const size_t n = json_array_size(data);
    json_t *out = json_array(), *none = json_null();
    size_t i;
    int bad = 0;
    json_array_foreach(data, i, m)
        bad |= json_array_append_new(out, anthropic_model(m)) != 0;
    json_t *first = n ? json_object_get(json_array_get(data, 0), "id") : none,
           *last = n ? json_object_get(json_array_get(data, n - 1), "id") : none;
    json_t *all = bad ? NULL : json_pack("{s:O, s:b, s:O, s:O}", "data", out, "has_more", 0, "first_id", first,
                                         "last_id", last);
    json_decref(out);
    return all;
}

/* Answer with a model, or a list, in the form that the client expects. */
static void reply_models(struct server *s, struct conn *c, const struct buf *out, json_t *(*other)(const json_t *m))
{
    if (out->failed || !is_anthropic(c)) {
        reply_json(s, c, 200, out);
        return;
    }
    json_t *own = json_loadb(out->data, out->size, 0, NULL);
    reply_object(s, c, 200, own ? other(own) : NULL);
    json_decref(own);
}

void handle_models(struct server *s, struct conn *c, const char *rest)
{
    struct buf out = { 0 };
    int n = 0;
    (void)rest;
    buf_str(&out, "{\"object\":\"list\",\"data\":[");
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next)
        if (lm->state == MODEL_READY && guard_lists_model(conn_record(c), lm->id)) {
            buf_str(&out, n++ ? "," : "");
            model_json(lm, 0, &out);
        }
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next)
        for (int i = 1; i <= lm->n_adapters; i++) {
            const struct adapter *a = adapters_ready(lm, i);
            if (a && guard_lists_model(conn_record(c), a->name)) {
                buf_str(&out, n++ ? "," : "");
                model_json(lm, i, &out);
            }
        }
    named_json(s, conn_record(c), &out, &n);
    buf_str(&out, "]}");
    reply_models(s, c, &out, anthropic_list);
    buf_release(&out);
}

void handle_model(struct server *s, struct conn *c, const char *rest)
{
    struct problem pr;
    struct buf out = { 0 };
    const struct loaded_model *lm = models_find(s, rest, &pr);
    const int lora = lm ? models_lora(lm, rest) : 0;
    if (lm && (lora || !guard_lists_model(conn_record(c), lm->id)) && !guard_lists_model(conn_record(c), rest)) {
        problem_set(&pr, 404, "model", "model_not_found", "model '%.80s' is not one that the key may use", rest);
        lm = NULL;
    }
    if (!lm && !named_json_one(s, conn_record(c), rest, &out)) {
        reply_problem(s, c, &pr);
        return;
    }
    if (lm)
        model_json(lm, lora, &out);
    reply_models(s, c, &out, anthropic_model);
    buf_release(&out);
}

/* ---- tokens ---- */

static void tokens_json(const struct tokenizer *t, const int32_t *ids, size_t n, int pieces, struct buf *out)
{
    buf_str(out, "\"tokens\":[");
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
        out->failed |= bytes.failed;
        buf_release(&bytes);
    }
    buf_str(out, "]");
}

/* Write the tokens as the vocabulary has them. */
static void vocabulary_json(const struct tokenizer *t, const int32_t *ids, size_t n, struct buf *out)
{
    buf_str(out, ",\"token_strs\":[");
    for (size_t i = 0; i < n; i++) {
        size_t size = 0;
        const char *text = tokenizer_token(t, ids[i], &size);
        buf_str(out, i ? "," : "");
        token_json(text ? text : "", size, out);
    }
    buf_str(out, "]");
}

/* Tokenize a text, and write the answer: in vLLM's form, or in our own. */
static int tokenize_text(struct call *c, const char *text, size_t size, unsigned flags, int vllm, const char *field,
                         struct problem *pr)
{
    const struct tokenizer *t = c->lm->m.tokenizer;
    const int texts = vllm ? c->params.token_strs : c->params.with_pieces;
    struct err e;
    int32_t *ids;
    size_t n;
    if (call_hold(c, TOKENIZE_BYTES * size, pr) != 0)
        return -1;
    if (tokenizer_encode(t, text, size, flags, &ids, &n, &e) != 0)
        return problem_err(pr, field, NULL, &e);
    /* a byte takes at most 6 bytes in JSON, and the pieces have no more bytes than the text; a byte
     * of a vocabulary's text stands for at least half a byte of the text */
    const int rc = call_hold(c, n * sizeof *ids + 3 * (n * (texts ? 48 : 8) + (texts ? 12 * size : 0)), pr);
    if (rc == 0) {
        buf_str(&c->line, "{");
        if (vllm)
            buf_printf(&c->line, "\"count\":%zu,\"max_model_len\":%d,", n, c->lm->m.max_len);
        tokens_json(t, ids, n, !vllm && texts, &c->line);
        if (vllm && texts)
            vocabulary_json(t, ids, n, &c->line);
        else if (vllm)
            buf_str(&c->line, ",\"token_strs\":null");
        else
            buf_printf(&c->line, ",\"count\":%zu", n);
        buf_str(&c->line, "}");
    }
    free(ids);
    return rc;
}

/* Tokenize the prompt that the chat template makes of messages. */
static int tokenize_messages(struct call *c, struct problem *pr)
{
    const unsigned flags = TOKENIZE_PARSE_SPECIAL | (c->params.add_special_tokens ? TOKENIZE_ADD_SPECIAL : 0);
    char *text;
    size_t size;
    if (chat_read(c->json, c->params.parallel_calls, &c->conversation, pr) != 0 ||
        conversation_render(c->lm, &c->conversation, c->params.add_generation_prompt, &text, &size, pr) != 0)
        return -1;
    const int rc = tokenize_text(c, text, size, flags, 1, "messages", pr);
    free(text);
    return rc;
}

static int tokenize(struct call *c, struct problem *pr)
{
    static const char *const names[] = { "content", "prompt", "messages" };
    const json_t *text = NULL;
    int n = 0, which = 0;
    for (int i = 0; i < 3; i++)
        if (js_get(c->json, names[i])) {
            which = i;
            text = js_get(c->json, names[i]);
            n++;
        }
    if (n != 1)
        return problem_set(pr, 400, "content", n ? "invalid_value" : "missing", "content: %s", n
                           ? "expected one of content, prompt and messages" : "missing, as are prompt and messages");
    if (which == 2)
        return tokenize_messages(c, pr);
    if (!json_is_string(text))
        return problem_set(pr, 400, names[which], "invalid_type", "%s: found %s, expected text", names[which], js_kind(text));
    const int vllm = which == 1, add = vllm ? c->params.add_special_tokens : c->params.add_special,
              parse = vllm || c->params.parse_special;
    return tokenize_text(c, json_string_value(text), json_string_length(text),
                         (add ? TOKENIZE_ADD_SPECIAL : 0) | (parse ? TOKENIZE_PARSE_SPECIAL : 0), vllm,
                         names[which], pr);
}

/* Bytes of memory to reserve for each byte of a text: for the text, its JSON (whose buffer
 * doubles as it grows), and the unsent answer; COPY_BYTES for a second copy in the answer. */
enum { TEXT_BYTES = 8, COPY_BYTES = 7 };

static int detokenize(struct call *c, struct problem *pr)
{
    const json_t *list = js_get(c->json, "tokens");
    size_t n = json_array_size(list), size;
    int vocab = tokenizer_vocab_size(c->lm->m.tokenizer);
    struct err e;
    char *text;
    if (!json_is_array(list))
        return problem_set(pr, 400, "tokens", list ? "invalid_type" : "missing",
                           list ? "tokens: found %s, expected a list of token ids" : "tokens: %s",
                           list ? js_kind(list) : "missing");
    if (call_hold(c, (n + 1) * sizeof(int32_t), pr) != 0)
        return -1;
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    if (!ids)
        return problem_nomem(pr);
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(list, i);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= vocab) {
            free(ids);
            return problem_set(pr, 400, "tokens", "out_of_range", "tokens: number %zu is no token id from 0 to %d", i,
                               vocab - 1);
        }
        ids[i] = (int32_t)json_integer_value(v);
        if (tokenizer_token(c->lm->m.tokenizer, ids[i], &size))
            bytes += size + 3;
    }
    int rc = call_hold(c, (n + 1) * sizeof *ids + (TEXT_BYTES + COPY_BYTES) * bytes, pr);
    if (rc == 0 && tokenizer_decode(c->lm->m.tokenizer, ids, n, 0, &text, &size, &e) != 0)
        rc = problem_err(pr, "tokens", NULL, &e);
    free(ids);
    if (rc != 0)
        return -1;
    buf_str(&c->line, "{\"content\":");
    buf_json(&c->line, text, size);
    buf_str(&c->line, ",\"prompt\":");          /* its name in vLLM */
    buf_json(&c->line, text, size);
    buf_str(&c->line, "}");
    free(text);
    return 0;
}

static int add_server_tools(struct call *c, struct problem *pr)
{
    json_t *wanted;
    const int n = rounds_add_tools(c, &wanted, pr);
    json_decref(wanted);
    return n < 0 ? -1 : 0;
}

static int apply_template(struct call *c, struct problem *pr)
{
    char *text;
    size_t size;
    if (chat_read(c->json, c->params.parallel_calls, &c->conversation, pr) != 0 || add_server_tools(c, pr) != 0 ||
        conversation_render(c->lm, &c->conversation, c->params.add_generation_prompt, &text, &size, pr) != 0)
        return -1;
    if (call_hold(c, 2 * c->scan.tree_bytes + TEXT_BYTES * size, pr) != 0) {
        free(text);
        return -1;
    }
    buf_str(&c->line, "{\"prompt\":");
    buf_json(&c->line, text, size);
    buf_str(&c->line, "}");
    free(text);
    return 0;
}

static void end(struct call *c) { reply_json(c->s, c->conn, 200, &c->line); }

static const struct call_form tokenize_form = { .body = BODY_TOKENIZE, .prefix = "tok-", .prepare = tokenize,
                                                .end = end, .fail = call_fail_answer };
static const struct call_form detokenize_form = { .body = BODY_DETOKENIZE, .prefix = "tok-", .prepare = detokenize,
                                                  .end = end, .fail = call_fail_answer };
static const struct call_form template_form = { .body = BODY_TEMPLATE, .prefix = "tok-", .prepare = apply_template,
                                                .end = end, .fail = call_fail_answer };

void handle_tokenize(struct server *s, struct conn *c, const char *rest)
{
    const struct http_request *r = conn_request(c);
    (void)rest;
    call_start(s, c, NULL, &tokenize_form, r->body.data, r->body.size);
}

void handle_detokenize(struct server *s, struct conn *c, const char *rest)
{
    const struct http_request *r = conn_request(c);
    (void)rest;
    call_start(s, c, NULL, &detokenize_form, r->body.data, r->body.size);
}

void handle_template(struct server *s, struct conn *c, const char *rest)
{
    const struct http_request *r = conn_request(c);
    (void)rest;
    call_start(s, c, NULL, &template_form, r->body.data, r->body.size);
}
