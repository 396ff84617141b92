/* api_model.c - open a model file and describe it. */
#include "lib/internal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/file.h"
#include "libcommon/base/json.h"
#include "libcommon/format/zfile.h"

/* Bytes of weights that may be read into memory in advance: more would evict the first ones before
 * they are used. */
static uint64_t may_fill(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages / 2 * (uint64_t)page : 0;
}

static json_t *sampling_json(const struct sampling *s)
{
    json_t *j = json_object();
    for (int i = 0; i < N_SAMPLING_OPTIONS; i++) {
        const struct sampling_option *o = &sampling_options[i];
        const double v = sampling_get(s, o);
        json_object_set_new(j, o->name, o->is_whole ? json_integer((json_int_t)v) : json_real(v));
    }
    return j;
}

static json_t *eos_json(const struct tokenizer *t)
{
    int n = 0;
    const int32_t *eos = t ? tokenizer_eos(t, &n) : NULL;
    json_t *j = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(j, json_integer(eos[i]));
    return j;
}

static char *describe(const struct zse_model *m)
{
    const struct config *c = &m->model->config;
    const int32_t bos = m->tokenizer ? tokenizer_bos(m->tokenizer) : -1;
    const int max_len = c->embedding.pooling && c->embedding.max_len ? c->embedding.max_len : c->max_len;
    json_t *j = json_pack("{s:o, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:i, s:i, s:I, s:b, s:o, s:o, s:o, s:o}", "path",
                          js_text(zfile_path(m->model->file)), "architecture", c->arch, "makes",
                          !c->embedding.pooling ? "text" : c->embedding.scores ? "scores" : "vectors", "n_layers",
                          c->n_layers, "hidden_size", c->hidden_size, "n_heads", c->n_heads, "n_kv_heads",
                          c->n_kv_heads, "vocab_size", c->vocab_size, "max_len", max_len, "embedding_size",
                          config_embedding_size(c), "weight_bytes", (json_int_t)m->model->weight_bytes, "chat_template",
                          js_get(m->json, "chat_template") || js_get(m->json, "chat_templates"), "tokenizer",
                          m->tokenizer ? json_string(tokenizer_kind(m->tokenizer)) : json_null(), "bos",
                          bos >= 0 ? json_integer(bos) : json_null(), "eos", eos_json(m->tokenizer), "sampling",
                          sampling_json(&m->sampling));
    return api_json_text(j);
}

/* Fill in a zeroed model. */
static int open_file(struct zse_model *m, const char *path, const struct zse_model_options *o, struct err *e)
{
    const struct map_guard none = { NULL, NULL };
    size_t size;
    struct zfile *z = zfile_open_guarded(path, o->no_prefetch ? 0 : may_fill(), &none, e);
    if (z && o->verify && zfile_verify(z, e) != 0) {
        zfile_close(z);
        return -1;
    }
    if (!z || !(m->model = model_bind(z, e)))
        return -1;
    m->json = zfile_json(m->model->file);
    const void *blob = zfile_tokenizer(m->model->file, &size);
    if (blob && !(m->tokenizer = tokenizer_open(blob, size, e)))
        return err_prefix(e, "%s", path);
    m->sampling = sampling_defaults();
    if (sampling_config(&m->sampling, js_get(m->json, "generation_config"), e) != 0 ||
        sampling_check(&m->sampling, m->model->config.vocab_size, e) != 0)
        return err_prefix(e, "%s: generation_config", path);
    return (m->info = describe(m)) ? 0 : err_nomem(e, "model");
}

struct zse_model *zse_model_open(const char *path, const struct zse_model_options *o, struct zse_error *e)
{
    struct zse_model_options options;
    struct err why;
    if (!path) {
        api_wrong(e, "zse_model_open: path is NULL");
        return NULL;
    }
    if (api_options(&options, sizeof options, o, "zse_model_options", e) != 0)
        return NULL;
    struct zse_model *m = calloc(1, sizeof *m);
    if (!m) {
        err_nomem(&why, "model");
        api_fail(e, &why);
        return NULL;
    }
    pthread_mutex_init(&m->lock, NULL);
    if (open_file(m, path, &options, &why) == 0)
        return m;
    api_fail(e, &why);
    zse_model_close(m);
    return NULL;
}

void zse_model_close(struct zse_model *m)
{
    if (!m)
        return;
    grammar_vocab_close(m->vocab);
    if (m->tokenizer)
        tokenizer_close(m->tokenizer);
    if (m->model)
        model_close(m->model);
    pthread_mutex_destroy(&m->lock);
    free(m->info);
    free(m);
}

const char *zse_model_info(const struct zse_model *m) { return m ? m->info : NULL; }
