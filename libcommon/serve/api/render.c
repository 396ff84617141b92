/* render.c - endpoints of vLLM's that need no engine: /tokenizer_info, and the prompts of a request
 * without an answer to it: /v1/chat/completions/render and /v1/completions/render. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/api/calls.h"

/* ---- /tokenizer_info ---- */

/* The text of a token; null if there is no such token. */
static json_t *token_or_null(const struct tokenizer *t, int64_t id)
{
    size_t size = 0;
    const int known = id >= 0 && id < tokenizer_vocab_size(t);
    const char *text = known ? tokenizer_token(t, (int32_t)id, &size) : NULL;
    return text ? json_stringn(text, size) : json_null();
}

/* The special tokens, as tokenizer_config.json lists them.  *bad is set to 1 without memory. */
static json_t *special_tokens(const struct tokenizer *t, int *bad)
{
    json_t *all = json_object();
    const int n = tokenizer_vocab_size(t);
    for (int32_t id = 0; id < n; id++) {
        char key[16];
        if (!tokenizer_is_special(t, id))
            continue;
        snprintf(key, sizeof key, "%d", (int)id);
        *bad |= json_object_set_new(all, key, json_pack("{s:o, s:b}", "content", token_or_null(t, id), "special", 1));
    }
    return all;
}

static json_t *describe_tokenizer(const struct loaded_model *lm)
{
    const struct tokenizer *t = lm->m.tokenizer;
    const json_t *own = js_get(lm->m.json, "chat_template"), *named = js_get(lm->m.json, "chat_templates"),
                 *pad = js_get(js_get(lm->m.json, "config"), "pad_token_id");
    int n_eos = 0, n_prefix = 0, bad = 0;
    const int32_t *eos = tokenizer_eos(t, &n_eos);
    tokenizer_prefix(t, &n_prefix);
    if (!own)
        own = js_get(named, "default");
    union { const json_t *in; json_t *out; } shown = { .in = own };
    json_t *special = special_tokens(t, &bad);
    json_t *j = json_pack("{s:s, s:s, s:o, s:o, s:o, s:b, s:b, s:i, s:i, s:O?, s:O}", "tokenizer_class",
                          "PreTrainedTokenizerFast", "model_type", tokenizer_kind(t), "bos_token",
                          token_or_null(t, tokenizer_bos(t)), "eos_token", token_or_null(t, n_eos ? eos[0] : -1),
                          "pad_token", token_or_null(t, json_is_integer(pad) ? json_integer_value(pad) : -1),
                          "add_bos_token", n_prefix > 0, "clean_up_tokenization_spaces", 0, "model_max_length",
                          lm->m.max_len, "vocab_size", tokenizer_vocab_size(t), "chat_template", shown.out,
                          "added_tokens_decoder", special);
    json_decref(special);
    if (!bad)
        return j;
    json_decref(j);
    return NULL;
}

void handle_tokenizer_info(struct server *s, struct conn *c, const char *rest)
{
    char name[256];
    struct problem pr;
    const char *asked = http_query(conn_request(c), "model", name, sizeof name);
    const struct loaded_model *lm = NULL;
    (void)rest;
    if (!asked && http_query_has(conn_request(c), "model"))
        problem_set(&pr, 400, "model", "invalid_value", "model: expected an id of at most %zu bytes", sizeof name - 1);
    else
        lm = models_find(s, asked, &pr);
    if (lm && !guard_lists_model(conn_record(c), lm->id)) {
        problem_set(&pr, 404, "model", "model_not_found", "model '%.80s' is not one that the key may use", lm->id);
        lm = NULL;
    } else if (lm && !lm->m.tokenizer) {
        problem_set(&pr, 400, "model", NULL, "model: %s has no tokenizer", lm->id);
        lm = NULL;
    }
    if (lm)
        reply_object(s, c, 200, describe_tokenizer(lm));
    else
        reply_problem(s, c, &pr);
}

/* ---- the prompts of a request ---- */

/* Write the values of the sampling options that would be used. */
static void sampling_json(const struct call *c, struct buf *out)
{
    const size_t from = offsetof(struct params, sampling), to = from + sizeof c->params.sampling;
    buf_str(out, "{");
    for (int i = 0; i < n_fields; i++) {
        const struct field *f = &fields[i];
        const char *at = (const char *)&c->params + f->at;
        if (!(f->bodies & BODY_CHAT) || f->at < from || f->at >= to)
            continue;
        if (f->type == FIELD_REAL)
            buf_printf(out, "\"%s\":%.9g,", f->name, (double)*(const float *)at);
        else if (f->type == FIELD_INT)
            buf_printf(out, "\"%s\":%d,", f->name, *(const int *)at);
    }
    if (c->max_tokens)
        buf_printf(out, "\"max_tokens\":%d}", c->max_tokens);
    else
        buf_str(out, "\"max_tokens\":null}");
}

/* Write a prompt as vLLM does, and its text. */
static void prompt_json(const struct call *c, const struct prompt *p, struct buf *out)
{
    buf_printf(out, "{\"request_id\":\"%s\",\"model\":", c->id);
    buf_json(out, call_model(c), strlen(call_model(c)));
    buf_str(out, ",\"token_ids\":[");
    for (int i = 0; i < p->n_ids; i++)
        buf_printf(out, i ? ",%d" : "%d", (int)p->ids[i]);
    buf_str(out, "],\"prompt\":");
    buf_json(out, p->text, p->text_size);
    buf_str(out, ",\"features\":null,\"sampling_params\":");
    sampling_json(c, out);
    buf_printf(out, ",\"stream\":%s,\"priority\":%d}", call_is_stream(c) ? "true" : "false", c->params.priority);
}

/* Write all prompts; list: in a list. */
static int write_prompts(struct call *c, int list, struct problem *pr)
{
    enum { ID_BYTES = 8, TEXT_BYTES = 6, COPIES = 3, REST = 4096 };
    size_t bytes = REST;
    for (int i = 0; i < c->n_prompts; i++)
        bytes += (size_t)c->prompts[i].n_ids * ID_BYTES + c->prompts[i].text_size * TEXT_BYTES + REST;
    if (call_hold(c, COPIES * bytes, pr) != 0)
        return -1;
    buf_str(&c->line, list ? "[" : "");
    for (int i = 0; i < c->n_prompts; i++) {
        buf_str(&c->line, i ? "," : "");
        prompt_json(c, &c->prompts[i], &c->line);
    }
    buf_str(&c->line, list ? "]" : "");
    return 0;
}

static int render_chat(struct call *c, struct problem *pr)
{
    json_t *wanted = NULL;
    const int bad = chat_read(c->json, c->params.parallel_calls, &c->conversation, pr) != 0 ||
                    documents_insert(c, pr) != 0 || rounds_add_tools(c, &wanted, pr) < 0;
    json_decref(wanted);
    if (bad || conversation_check_tools(&c->conversation, pr) != 0 || call_prompts(c, 1, pr) != 0)
        return -1;
    struct prompt *p = &c->prompts[0];
    if (conversation_render(c->lm, &c->conversation, c->params.add_generation_prompt, &p->text, &p->text_size,
                            pr) != 0 ||
        call_keep(c, p->text_size, pr) != 0 ||
        call_tokenize(c, 0, p->text, p->text_size, 1, c->params.add_special_tokens, pr, "messages") != 0)
        return -1;
    return write_prompts(c, 0, pr);
}

static int render_completion(struct call *c, struct problem *pr)
{
    c->params.echo = 1;                 /* keep the texts */
    return call_any_prompts(c, "prompt", 1, pr) == 0 ? write_prompts(c, 1, pr) : -1;
}

static void end(struct call *c) { reply_json(c->s, c->conn, 200, &c->line); }

static const struct call_form chat_form = { .body = BODY_CHAT, .prefix = "chatcmpl-", .prepare = render_chat,
                                            .end = end, .fail = call_fail_answer };
static const struct call_form completion_form = { .body = BODY_COMPLETION, .prefix = "cmpl-",
                                                  .prepare = render_completion, .end = end, .fail = call_fail_answer };

void handle_render_chat(struct server *s, struct conn *c, const char *rest)
{
    const struct http_request *r = conn_request(c);
    (void)rest;
    call_start(s, c, NULL, &chat_form, r->body.data, r->body.size);
}

void handle_render_completion(struct server *s, struct conn *c, const char *rest)
{
    const struct http_request *r = conn_request(c);
    (void)rest;
    call_start(s, c, NULL, &completion_form, r->body.data, r->body.size);
}
