/* ollama_embed.c - POST /api/embed and /api/embeddings. */
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/ollama/ollama.h"

static void begin(struct call *c) { (void)c; }

static int prepare(struct call *c, struct problem *pr)
{
    return call_embedding_prompts(c, c->form->body == BODY_OLLAMA_EMBED ? "input" : "prompt", pr);
}

static void end(struct call *c)
{
    struct buf out = { 0 };
    struct token_counts t;
    call_totals(c, &t);
    buf_str(&out, "{\"model\":");
    buf_json(&out, ollama_model(c), strlen(ollama_model(c)));
    buf_str(&out, ",\"embeddings\":[");
    for (int i = 0; i < c->n_choices; i++) {
        struct choice *ch = &c->choices[i];
        buf_str(&out, i ? "," : "");
        call_vector_json(ch->embedding, call_cut_vector(c, ch), &out);
    }
    buf_str(&out, "]");
    ollama_durations(c, &out);
    buf_printf(&out, ",\"prompt_eval_count\":%d}", t.prompt);
    reply_json(c->s, c->conn, 200, &out);
    buf_release(&out);
}

static void end_one(struct call *c)
{
    struct buf out = { 0 };
    buf_str(&out, "{\"embedding\":");
    if (c->n_choices)
        call_vector_json(c->choices[0].embedding, c->choices[0].n_embedding, &out);
    else
        buf_str(&out, "[]");
    buf_str(&out, "}");
    reply_json(c->s, c->conn, 200, &out);
    buf_release(&out);
}

static const struct call_form embed = { .body = BODY_OLLAMA_EMBED, .prefix = "ollama-", .prepare = prepare,
                                        .params = ollama_params, .latest = 1, .begin = begin,
                                        .event = call_take_vector, .end = end, .fail = call_fail_answer };
static const struct call_form embeddings = { .body = BODY_OLLAMA_EMBEDDINGS, .prefix = "ollama-", .prepare = prepare,
                                             .params = ollama_params, .latest = 1, .begin = begin,
                                             .event = call_take_vector, .end = end_one, .fail = call_fail_answer };

/* ---- requests without a text, which only load the model ---- */

static int prepare_nothing(struct call *c, struct problem *pr)
{
    (void)c;
    (void)pr;
    return 0;
}

static const struct call_form load_embed = { .body = BODY_OLLAMA_EMBED, .prefix = "ollama-",
                                             .prepare = prepare_nothing, .params = ollama_params, .latest = 1,
                                             .end = end, .fail = call_fail_answer };
static const struct call_form load_embeddings = { .body = BODY_OLLAMA_EMBEDDINGS, .prefix = "ollama-",
                                                  .prepare = prepare_nothing, .params = ollama_params, .latest = 1,
                                                  .end = end_one, .fail = call_fail_answer };

/* Whether the body has no text in this field.  Ollama then answers without a vector. */
static int is_empty(const struct buf *b, const char *field)
{
    enum { SMALL = 4096 };                      /* larger bodies certainly have a text */
    struct err e;
    json_t *body = b->size && b->size <= SMALL ? js_parse("body", b->data, b->size, &e) : NULL;
    const json_t *v = js_get(body, field);
    const int empty = json_is_object(body) && (!v || (json_is_string(v) && json_string_length(v) == 0) ||
                                               (json_is_array(v) && json_array_size(v) == 0));
    json_decref(body);
    return empty;
}

void handle_ollama_embed(struct server *s, struct conn *c, const char *rest)
{
    const struct buf *b = &conn_request(c)->body;
    (void)rest;
    call_start(s, c, NULL, is_empty(b, "input") ? &load_embed : &embed, b->data, b->size);
}

void handle_ollama_embeddings(struct server *s, struct conn *c, const char *rest)
{
    const struct buf *b = &conn_request(c)->body;
    (void)rest;
    call_start(s, c, NULL, is_empty(b, "prompt") ? &load_embeddings : &embeddings, b->data, b->size);
}
