/* api_embed.c - vectors of texts. */
#include "lib/internal.h"

#include <stdlib.h>
#include <string.h>

/* The text that the model expects before texts of this kind, never NULL; borrowed. */
static const char *prefix_of(const struct config *c, enum zse_embed_kind kind)
{
    const char *name = c->embedding.default_prompt;
    const char *text = kind != ZSE_EMBED_PLAIN ? config_prompt(c, kind == ZSE_EMBED_DOCUMENT)
                       : name ? json_string_value(json_object_get(c->embedding.prompts, name)) : NULL;
    return text ? text : "";
}

/* Queue the request for one text; NULL with *e. */
static struct zse_request *submit(struct zse_engine *g, const char *prefix, const char *text, struct err *e)
{
    const struct config *c = &g->model->model->config;
    const size_t n = strlen(prefix), size = strlen(text);
    struct zse_request *r = api_request_new(g);
    char *both = r ? malloc(n + size + 1) : NULL;
    if (!both) {
        err_nomem(e, "text");
        goto fail;
    }
    memcpy(both, prefix, n);
    memcpy(both + n, text, size + 1);
    if (api_prompt(g->model, both, n + size, TOKENIZE_ADD_SPECIAL, &r->prompt, &r->params.n_ids, e) != 0)
        goto fail;
    if (c->embedding.max_len && r->params.n_ids > c->embedding.max_len) {
        err_set(e, ERR_LIMIT, "it has %d tokens, expected at most %d", r->params.n_ids, c->embedding.max_len);
        goto fail;
    }
    r->params.embed = config_pooling(c);
    if (api_request_queue(g, r, e) != 0)
        goto fail;
    free(both);
    return r;
fail:
    free(both);
    if (r)
        api_request_unref(r);
    return NULL;
}

int zse_embed(struct zse_engine *g, const char *const *texts, size_t n_texts, enum zse_embed_kind kind, float **vectors,
              int *dim, struct zse_error *e)
{
    struct err why = { .code = ERR_NONE };
    if (!g || (!texts && n_texts) || !vectors || !dim)
        return api_wrong(e, "zse_embed: an argument is NULL");
    if ((int)kind < ZSE_EMBED_PLAIN || kind > ZSE_EMBED_DOCUMENT)
        return api_wrong(e, "zse_embed: there is no kind %d", (int)kind);
    if (pthread_equal(pthread_self(), g->thread))
        return api_wrong(e, "zse_embed: called by a callback of the same engine");
    for (size_t i = 0; i < n_texts; i++)
        if (!texts[i])
            return api_wrong(e, "zse_embed: text %zu is NULL", i);
    const struct config *c = &g->model->model->config;
    const size_t width = (size_t)config_embedding_size(c);
    if (c->embedding.scores) {
        err_set(&why, ERR_UNSUPPORTED, "the model scores pairs of texts and makes no vectors");
        return api_fail(e, &why);
    }
    struct zse_request **requests = calloc(n_texts + 1, sizeof(struct zse_request *));
    float *out = n_texts < SIZE_MAX / sizeof *out / width ? malloc((n_texts * width + 1) * sizeof *out) : NULL;
    if (!requests || !out)
        err_nomem(&why, "vectors");
    for (size_t i = 0; i < n_texts && why.code == ERR_NONE; i++)
        if (!(requests[i] = submit(g, prefix_of(c, kind), texts[i], &why)))
            err_prefix(&why, "text %zu", i);
    for (size_t i = 0; requests && i < n_texts && requests[i]; i++) {
        struct zse_request *r = requests[i];
        if (why.code != ERR_NONE)
            zse_cancel(r);
        if (zse_wait(r, NULL, NULL) != 0 || !r->vector) {
            if (why.code == ERR_NONE && r->error.code == ERR_NONE)
                err_set(&why, ERR_CANCELLED, "the engine was closed");
            else if (why.code == ERR_NONE)
                why = r->error, err_prefix(&why, "text %zu", i);
        } else {
            memcpy(out + i * width, r->vector, width * sizeof *out);
        }
        zse_request_free(r);
    }
    free(requests);
    if (why.code != ERR_NONE) {
        free(out);
        return api_fail(e, &why);
    }
    *vectors = out;
    *dim = (int)width;
    return 0;
}
