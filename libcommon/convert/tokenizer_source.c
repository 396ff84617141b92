/* tokenizer_source.c - compile the tokenizer of a folder, a GGUF or a .zse file. */
#include "libcommon/convert/tokenizer_source.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/suffix.h"
#include "libcommon/format/zfile.h"
#include "libcommon/import/gguf.h"
#include "libcommon/token/tokenizer.h"

/* ---- GGUF ---- */

static const struct gguf_kv *array(const struct gguf *g, const char *key, int n, int strings, int *bad, struct err *e)
{
    const struct gguf_kv *kv = gguf_find(g, key);
    if (!kv)
        return NULL;
    if (kv->type != GGUF_ARR || (kv->elem == GGUF_STR) != strings || kv->n > INT32_MAX ||
        (n >= 0 && kv->n != (uint64_t)n)) {
        *bad = err_set(e, ERR_FORMAT, "%s: not a list of %s as long as the vocabulary", key,
                       strings ? "texts" : "numbers");
        return NULL;
    }
    return kv;
}

/* Make arrays of the pointers and of the lengths of a list of texts. */
static int texts(const struct gguf_kv *kv, const char *const **p, size_t **n, struct err *e)
{
    size_t count = (size_t)kv->n ? (size_t)kv->n : 1;
    const char **s = calloc(count, sizeof *s);
    *n = calloc(count, sizeof **n);
    *p = s;
    if (!s || !*n)
        return err_nomem(e, kv->key);
    for (size_t i = 0; i < kv->n; i++) {
        s[i] = kv->str[i].s;
        (*n)[i] = kv->str[i].n;
    }
    return 0;
}

/* *out: a copy of the text with this key; NULL if there is none. */
static int string(const struct gguf *g, const char *key, char **out, struct err *e)
{
    const struct gguf_str *s = gguf_str(g, key);
    *out = s ? strndup(s->s, s->n) : NULL;
    return s && !*out ? err_nomem(e, key) : 0;
}

static int32_t id(const struct gguf *g, const char *key)
{
    int64_t v = gguf_int(g, key, -1);
    return v < 0 || v > INT32_MAX ? -1 : (int32_t)v;
}

#define KEY(name) "tokenizer.ggml." name

static int from_gguf(const struct gguf *g, void **blob, size_t *size, struct err *e)
{
    int bad = 0, rc = -1;
    const struct gguf_kv *tokens = array(g, KEY("tokens"), -1, 1, &bad, e), *scores = NULL, *types = NULL,
                         *merges = NULL;
    if (bad || !tokens)
        return bad;
    scores = array(g, KEY("scores"), (int)tokens->n, 0, &bad, e);
    types = bad ? NULL : array(g, KEY("token_type"), (int)tokens->n, 0, &bad, e);
    merges = bad ? NULL : array(g, KEY("merges"), -1, 1, &bad, e);
    if (bad)
        return -1;
    char *model = NULL, *pre = NULL, *name = NULL;
    struct tokenizer_gguf t = {
        .n_tokens = (int)tokens->n,
        .bos = id(g, KEY("bos_token_id")), .eos = id(g, KEY("eos_token_id")), .unk = id(g, KEY("unknown_token_id")),
        .pad = id(g, KEY("padding_token_id")), .eot = id(g, KEY("eot_token_id")), .cls = id(g, KEY("cls_token_id")),
        .mask = id(g, KEY("mask_token_id")),
        .sep = gguf_find(g, KEY("seperator_token_id")) ? id(g, KEY("seperator_token_id"))
                                                       : id(g, KEY("separator_token_id")),
        .add_bos = (int)gguf_int(g, KEY("add_bos_token"), -1), .add_eos = (int)gguf_int(g, KEY("add_eos_token"), -1),
        .add_space_prefix = (int)gguf_int(g, KEY("add_space_prefix"), -1),
        .remove_extra_whitespaces = (int)gguf_int(g, KEY("remove_extra_whitespaces"), -1),
    };
    size_t *token_size = NULL, *merge_size = NULL;
    float *score = NULL;
    int32_t *type = NULL;
    const struct gguf_kv *map = gguf_find(g, KEY("precompiled_charsmap"));
    if (map && map->type == GGUF_ARR && (map->elem == GGUF_U8 || map->elem == GGUF_I8)) {
        t.precompiled_charsmap = map->data;
        t.precompiled_charsmap_size = (size_t)map->n;
    }
    if (string(g, KEY("model"), &model, e) || string(g, KEY("pre"), &pre, e) || string(g, "general.name", &name, e))
        goto done;
    t.model = model;
    t.pre = pre;
    t.name = name;
    if (texts(tokens, &t.tokens, &token_size, e) || (merges && texts(merges, &t.merges, &merge_size, e)))
        goto done;
    t.token_size = token_size;
    t.merge_size = merge_size;
    t.n_merges = merges ? (int)merges->n : 0;
    if ((scores && !(score = malloc((size_t)scores->n * sizeof *score + 1))) ||
        (types && !(type = malloc((size_t)types->n * sizeof *type + 1)))) {
        err_nomem(e, "the vocabulary");
        goto done;
    }
    for (uint64_t i = 0; scores && i < scores->n; i++)
        score[i] = (float)gguf_array_float(scores, i);
    for (uint64_t i = 0; types && i < types->n; i++)
        type[i] = (int32_t)gguf_array_int(types, i);
    t.scores = score;
    t.types = type;
    rc = tokenizer_compile_gguf(&t, blob, size, e) ? -1 : 1;
done:
    free((void *)t.tokens);
    free((void *)t.merges);
    free(token_size);
    free(merge_size);
    free(score);
    free(type);
    free(model);
    free(pre);
    free(name);
    return rc;
}

/* ---- folders ---- */

static void take(const struct source *s, const char *name, const char **p, size_t *n)
{
    const struct source_file *f = source_file(s, name);
    *p = f ? f->data : NULL;
    *n = f ? f->size : 0;
}

int tokenizer_from_source(const struct source *s, void **blob, size_t *size, struct err *e)
{
    struct tokenizer_files f = { 0 };
    const char *spm;
    if (s->gguf)
        return from_gguf(s->gguf, blob, size, e) < 0 ? err_prefix(e, "%s", s->path)
                                                     : gguf_find(s->gguf, KEY("tokens")) != NULL;
    take(s, "tokenizer.json", &f.tokenizer_json, &f.tokenizer_json_size);
    take(s, "tokenizer_config.json", &f.tokenizer_config, &f.tokenizer_config_size);
    take(s, "special_tokens_map.json", &f.special_tokens_map, &f.special_tokens_map_size);
    take(s, "generation_config.json", &f.generation_config, &f.generation_config_size);
    take(s, "config.json", &f.config, &f.config_size);
    take(s, "tokenizer.model", &spm, &f.sentencepiece_size);
    take(s, "vocab.json", &f.vocab_json, &f.vocab_json_size);
    take(s, "merges.txt", &f.merges_txt, &f.merges_txt_size);
    f.sentencepiece = spm;
    if (!f.tokenizer_json && !spm && !(f.vocab_json && f.merges_txt))
        return 0;
    return tokenizer_compile_files(&f, blob, size, e) ? err_prefix(e, "%s", s->path) : 1;
}

/* ---- any path ---- */

static int from_zse(const char *path, void **blob, size_t *size, struct err *e)
{
    struct zfile *z = zfile_open(path, e);
    if (!z)
        return -1;
    const void *p = zfile_tokenizer(z, size);
    int rc = 0;
    if (!p)
        rc = err_set(e, ERR_FORMAT, "%s: has no tokenizer", path);
    else if (!(*blob = malloc(*size + 1)))
        rc = err_nomem(e, "the tokenizer");
    else
        memcpy(*blob, p, *size);
    zfile_close(z);
    return rc;
}

/* Compile a file tokenizer.json or tokenizer.model, and use tokenizer_config.json if it is in
 * the same folder. */
static int from_file(const char *path, int json, void **blob, size_t *size, struct err *e)
{
    const char *slash = strrchr(path, '/');
    struct tokenizer_files f = { 0 };
    struct map m, config = { 0 };
    struct err none;
    char *beside = NULL;
    if (map_open(&m, path, e))
        return -1;
    if (asprintf(&beside, "%.*stokenizer_config.json", slash ? (int)(slash + 1 - path) : 0, path) >= 0 &&
        map_open(&config, beside, &none) == 0) {
        f.tokenizer_config = (const char *)config.data;
        f.tokenizer_config_size = config.size;
    }
    if (json) {
        f.tokenizer_json = (const char *)m.data;
        f.tokenizer_json_size = m.size;
    } else {
        f.sentencepiece = m.data;
        f.sentencepiece_size = m.size;
    }
    int rc = tokenizer_compile_files(&f, blob, size, e);
    if (rc)
        err_prefix(e, "%s", path);
    if (f.tokenizer_config)
        map_close(&config);
    map_close(&m);
    free(beside);
    return rc;
}

int tokenizer_from_path(const char *path, void **blob, size_t *size, struct err *e)
{
    struct stat st;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && (ends_with(path, "tokenizer.json") || ends_with(path, ".model")))
        return from_file(path, ends_with(path, ".json"), blob, size, e);
    switch (source_detect(path, e)) {
    case SOURCE_NONE: return -1;
    case SOURCE_ZSE: return from_zse(path, blob, size, e);
    default: break;
    }
    struct source *s = source_open(path, e);
    if (!s)
        return -1;
    int rc = tokenizer_from_source(s, blob, size, e);
    if (rc == 0)
        err_set(e, ERR_FORMAT, "%s: has no tokenizer", path);
    source_close(s);
    return rc == 1 ? 0 : -1;
}
