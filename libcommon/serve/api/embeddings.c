/* embeddings.c - POST /v1/embeddings: the vector of a text.  An embedding model pools as its files
 * say; for other models the vector is the mean of the final hidden states, scaled to length 1. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/evp.h>

#include "libcommon/serve/api/calls.h"

static void begin(struct call *c) { (void)c; }

void call_take_vector(struct call *c, struct choice *ch, const struct events *b, const struct event *ev)
{
    if (!ev->last || ev->n_embedding == 0)
        return;
    ch->n_embedding = ev->n_embedding;
    ch->embedding = malloc((size_t)ev->n_embedding * sizeof *ch->embedding);
    if (ch->embedding)
        memcpy(ch->embedding, event_embedding(b, ev), (size_t)ev->n_embedding * sizeof *ch->embedding);
    else
        problem_nomem(&c->problem);
}

int call_cut_vector(const struct call *c, struct choice *ch)
{
    const int n = c->params.dimensions;
    double sum = 0;
    if (n == 0 || n >= ch->n_embedding)
        return ch->n_embedding;
    for (int i = 0; i < n; i++)
        sum += (double)ch->embedding[i] * ch->embedding[i];
    for (int i = 0; i < n && sum > 0; i++)
        ch->embedding[i] = (float)(ch->embedding[i] / sqrt(sum));
    return n;
}

void call_vector_json(const float *x, int n, struct buf *out)
{
    buf_str(out, "[");
    for (int i = 0; i < n; i++)
        buf_printf(out, i ? ",%.9g" : "%.9g", (double)x[i]);
    buf_str(out, "]");
}

static void numbers(const float *x, int n, int base64, struct buf *out)
{
    if (base64) {                               /* little-endian floats; EncodeBlock ends with '\0' */
        size_t bytes = (size_t)n * sizeof *x, room = (bytes + 2) / 3 * 4 + 1;
        buf_str(out, "\"");
        char *to = buf_reserve(out, room);
        if (to)
            out->size += (size_t)EVP_EncodeBlock((unsigned char *)to, (const unsigned char *)x, (int)bytes);
        buf_str(out, "\"");
        return;
    }
    call_vector_json(x, n, out);
}

static void end(struct call *c)
{
    struct buf out = { 0 };
    int base64 = c->params.encoding_format && strcmp(c->params.encoding_format, "base64") == 0;
    buf_str(&out, "{\"object\":\"list\",\"data\":[");
    for (int i = 0; i < c->n_choices; i++) {
        struct choice *ch = &c->choices[i];
        int n = call_cut_vector(c, ch);
        buf_printf(&out, "%s{\"object\":\"embedding\",\"index\":%d,\"embedding\":", i ? "," : "", i);
        numbers(ch->embedding, n, base64, &out);
        buf_str(&out, "}");
    }
    buf_str(&out, "],\"model\":");
    buf_json(&out, call_model(c), strlen(call_model(c)));
    buf_str(&out, ",\"usage\":");
    call_usage(c, &out);
    buf_str(&out, "}");
    reply_json(c->s, c->conn, 200, &out);
    buf_release(&out);
}

/* Refuse a prompt name that the model does not have. */
static int no_prompt(const struct embedding *m, const char *name, struct problem *pr)
{
    char list[200] = "none";
    size_t at = 0;
    const char *key;
    json_t *v;
    json_object_foreach(m->prompts, key, v)
        if (at + strlen(key) + 3 < sizeof list)
            at += (size_t)snprintf(list + at, sizeof list - at, "%s%s", at ? ", " : "", key);
    return problem_set(pr, 400, "prompt_name", "out_of_range",
                       "prompt_name: '%.40s' is no prompt of this model, which has: %s", name, list);
}

/* Choose the text that goes before each input. */
static int choose_prompt(struct call *c, const struct embedding *m, struct problem *pr)
{
    const char *name = c->params.prompt_name, *type = c->params.input_type;
    if (type && strcmp(type, "query") != 0 && strcmp(type, "document") != 0)
        return problem_set(pr, 400, "input_type", "out_of_range", "input_type: '%.40s', expected query or document",
                           type);
    if (name && type)
        return problem_set(pr, 400, "prompt_name", NULL, "prompt_name: with input_type: one of the two");
    if (name && *name && !json_object_get(m->prompts, name))
        return no_prompt(m, name, pr);
    if (type)
        c->prefix = config_prompt(&c->lm->m.model->config, *type == 'd');
    else if (!name)
        name = m->default_prompt;
    if (name)
        c->prefix = json_string_value(json_object_get(m->prompts, name));
    return 0;
}

int call_embedding_prompts(struct call *c, const char *field, struct problem *pr)
{
    const struct config *config = &c->lm->m.model->config;
    const int size = config_embedding_size(config);
    if (config->embedding.scores)
        return problem_set(pr, 400, "model", "unsupported_model",
                           "model: %s scores pairs of texts and makes no vectors: use /v1/rerank or /v1/score",
                           c->lm->id);
    if (c->params.dimensions > size)
        return problem_set(pr, 400, "dimensions", "out_of_range", "dimensions: %d is not in the range 1 to %d",
                           c->params.dimensions, size);
    if (choose_prompt(c, &config->embedding, pr) != 0)
        return -1;
    return call_any_prompts(c, field, 0, pr);
}

static int prepare(struct call *c, struct problem *pr)
{
    const char *format = c->params.encoding_format;
    if (format && strcmp(format, "float") != 0 && strcmp(format, "base64") != 0)
        return problem_set(pr, 400, "encoding_format", "out_of_range",
                           "encoding_format: '%.40s', expected float or base64", format);
    return call_embedding_prompts(c, "input", pr);
}

static const struct call_form form = { .body = BODY_EMBEDDING, .prefix = "embd-", .prepare = prepare, .begin = begin,
                                       .event = call_take_vector, .end = end, .fail = call_fail_answer };

void handle_embeddings(struct server *s, struct conn *c, const char *rest)
{
    const struct http_request *r = conn_request(c);
    (void)rest;
    call_start(s, c, NULL, &form, r->body.data, r->body.size);
}
