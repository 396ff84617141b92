/* source.c - open folders, GGUF files and config.json as a source, and read their tensors. */
#include "libcommon/import/source.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/json.h"
#include "libcommon/base/suffix.h"
#include "libcommon/import/gguf.h"
#include "libcommon/import/hf_config.h"
#include "libcommon/import/joined.h"
#include "libcommon/import/packed.h"
#include "libcommon/import/safetensors.h"
#include "libcommon/import/sentence.h"
#include "libcommon/quant/ggml.h"

enum { MAX_SMALL_FILE = 256 << 20, MAX_CONFIG = 16 << 20 };

/* A file of the source.  Its address is fixed, because a guard keeps a pointer to map. */
struct input_file {
    struct map map;             /* path NULL: not downloaded yet */
    char *path;                 /* owned */
    int arriving;   /* index into the files being downloaded; -1: it was in the folder from the beginning */
};

/* The private part of a source. */
struct inner {
    const struct source_options *o;         /* may be NULL */
    int n_shards;
    struct input_file **shards;
    const struct source_tensor **by_name;   /* sorted */
    struct joined *joined;
    int n_small;
    struct input_file **small;                    /* the mappings of files[] */
};

static char *join(const char *dir, const char *name, struct err *e)
{
    char *path;
    size_t n = strlen(dir);
    if (asprintf(&path, "%s%s%s", dir, n && dir[n - 1] == '/' ? "" : "/", name) < 0) {
        err_nomem(e, name);
        return NULL;
    }
    return path;
}

static int exists(const char *dir, const char *name)
{
    struct stat st;
    char path[PATH_MAX];                /* on the stack: lack of memory must not look like a missing file */
    const int n = snprintf(path, sizeof path, "%s/%s", dir, name);
    return n < (int)sizeof path && stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* ---- files ---- */

static const struct map_guard *guard_of(const struct source *s)
{
    const struct inner *in = s->private_;
    return in && in->o && in->o->guard && in->o->guard->add ? in->o->guard : NULL;
}

static int map_input(const struct source *s, struct input_file *p, struct err *e)
{
    const struct map_guard *guard = guard_of(s);
    if (map_open(&p->map, p->path, e) < 0)
        return -1;
    if (guard)
        guard->add(&p->map);
    return 0;
}

static void unmap(const struct source *s, struct map *m)
{
    const struct map_guard *guard = guard_of(s);
    if (guard && m->path)
        guard->remove(m);
    map_close(m);
}

/* Append a file to *list [*n] without mapping it. */
static struct input_file *add_input(const struct source *s, const char *name, struct input_file ***list, int *n,
                                    struct err *e)
{
    struct input_file **more = realloc(*list, (size_t)(*n + 1) * sizeof *more), *p = more ? calloc(1, sizeof *p) : NULL;
    if (more)
        *list = more;
    if (!p) {
        err_nomem(e, name);
        return NULL;
    }
    p->arriving = -1;
    if (!(p->path = join(s->path, name, e))) {
        free(p);
        return NULL;
    }
    return more[(*n)++] = p;
}

static void free_inputs(const struct source *s, struct input_file **list, int n)
{
    for (int i = 0; i < n; i++) {
        unmap(s, &list[i]->map);
        free(list[i]->path);
        free(list[i]);
    }
    free(list);
}

/* ---- detection ---- */

static int is_safetensors_name(const struct dirent *d) { return ends_with(d->d_name, ".safetensors"); }

static int count_files(const char *dir, int (*want)(const struct dirent *), struct err *e)
{
    struct dirent **list;
    int n = scandir(dir, &list, want, NULL);
    if (n < 0)
        return err_sys(e, "%s", dir);
    for (int i = 0; i < n; i++)
        free(list[i]);
    free(list);
    return n;
}

static int has_tokenizer(const char *dir)
{
    return exists(dir, "tokenizer.json") || exists(dir, "tokenizer.model") ||
           (exists(dir, "vocab.json") && exists(dir, "merges.txt"));
}

static enum source_kind detect_folder(const char *path, struct err *e)
{
    const int config = exists(path, "config.json"), n = count_files(path, is_safetensors_name, e);
    if (n < 0)
        return SOURCE_NONE;
    if (config)
        return n ? SOURCE_FOLDER : SOURCE_CONFIG;
    if (n)
        err_set(e, ERR_FORMAT, "%s: a folder with safetensors but without config.json", path);
    else if (has_tokenizer(path))
        return SOURCE_TOKENIZER;
    else
        err_set(e, ERR_FORMAT, "%s: a folder without config.json, safetensors or tokenizer files", path);
    return SOURCE_NONE;
}

static enum source_kind detect_file(const struct map *m, struct err *e)
{
    uint64_t header = 0;
    if (m->size >= 4 && memcmp(m->data, "GGUF", 4) == 0)
        return SOURCE_GGUF;
    if (m->size >= 4 && memcmp(m->data, "ZSE", 4) == 0)
        return SOURCE_ZSE;
    size_t i = 0;
    while (i < m->size && i < 64 && strchr(" \t\r\n", m->data[i]) && m->data[i])
        i++;
    if (i < m->size && m->data[i] == '{')
        return SOURCE_CONFIG;
    if (m->size > 9)
        memcpy(&header, m->data, 8);
    if (header && header <= m->size - 8 && m->data[8] == '{')
        err_set(e, ERR_FORMAT, "%s: a safetensors file alone does not say which model it is; name its folder, with config.json", m->path);
    else if (m->size == 0)
        err_set(e, ERR_FORMAT, "%s: the file is empty", m->path);
    else
        err_set(e, ERR_FORMAT, "%s: neither a .zse file, a GGUF file, a config.json nor a model folder", m->path);
    return SOURCE_NONE;
}

enum source_kind source_detect(const char *path, struct err *e)
{
    struct stat st;
    if (stat(path, &st) < 0) {
        err_sys(e, "%s", path);
        return SOURCE_NONE;
    }
    if (S_ISDIR(st.st_mode))
        return detect_folder(path, e);
    struct map m;
    if (map_open(&m, path, e) < 0)
        return SOURCE_NONE;
    enum source_kind kind = detect_file(&m, e);
    map_close(&m);
    return kind;
}

/* ---- the tensors of a folder ---- */

static int compare_names(const void *a, const void *b)
{
    return strcmp((*(const struct source_tensor *const *)a)->name, (*(const struct source_tensor *const *)b)->name);
}

static const char *shard_path(const struct source *s, const struct source_tensor *t)
{
    const struct inner *in = s->private_;
    const struct gguf *g = s->gguf;
    return s->kind == SOURCE_FOLDER ? in->shards[t->shard]->path : g && t->shard > 0 &&
           t->shard <= g->n_parts ? g->parts[t->shard - 1]->map.path : s->path;
}

static int sort_names(struct source *s, struct err *e)
{
    struct inner *in = s->private_;
    free(in->by_name);
    in->by_name = calloc((size_t)s->n_tensors + 1, sizeof *in->by_name);
    if (!in->by_name)
        return err_nomem(e, "tensor names");
    for (int i = 0; i < s->n_tensors; i++)
        in->by_name[i] = &s->tensors[i];
    qsort(in->by_name, (size_t)s->n_tensors, sizeof *in->by_name, compare_names);
    for (int i = 1; i < s->n_tensors; i++)
        if (strcmp(in->by_name[i - 1]->name, in->by_name[i]->name) == 0)
            return err_set(e, ERR_FORMAT, "%s: tensor %s is also in %s", shard_path(s, in->by_name[i]),
                           in->by_name[i]->name, shard_path(s, in->by_name[i - 1]));
    return 0;
}

/* The index of this name among the files being downloaded, or -1. */
static int find_arriving(const struct source *s, const char *name)
{
    const struct inner *in = s->private_;
    const struct source_arriving *a = in->o ? in->o->arriving : NULL;
    for (int i = 0; a && i < a->n; i++)
        if (a->shards[i].head && strcmp(a->shards[i].name, name) == 0)
            return i;
    return -1;
}

/* Is the file in the folder, or being downloaded? */
static int is_there(const struct source *s, const char *name)
{
    return find_arriving(s, name) >= 0 || exists(s->path, name);
}

/* Read the index of a file that is being downloaded from its head. */
static int index_head(struct source *s, const struct input_file *p, int shard, struct err *e)
{
    const struct inner *in = s->private_;
    const struct source_shard *h = &in->o->arriving->shards[p->arriving];
    const struct map head = { .data = h->head, .size = h->size, .fd = -1, .path = p->path };
    uint64_t size = 0;
    if (h->size >= 8 && h->head_size >= 8)
        memcpy(&size, h->head, 8);
    if (h->head_size < 8 ? h->size >= 8 : h->size >= 8 && size <= h->size - 8 && h->head_size - 8 < size)
        return err_set(e, ERR_FORMAT, "%s: %zu bytes of its head are known, expected the whole header of %" PRIu64,
                       p->path, h->head_size, size);
    return safetensors_index(&head, shard, &s->tensors, &s->n_tensors, e);
}

static int add_shard(struct source *s, const char *name, struct err *e)
{
    struct inner *in = s->private_;
    struct input_file *p = add_input(s, name, &in->shards, &in->n_shards, e);
    if (!p)
        return -1;
    p->arriving = find_arriving(s, name);
    if (p->arriving >= 0)
        return index_head(s, p, in->n_shards - 1, e);
    return map_input(s, p, e) < 0 ? -1 : safetensors_index(&p->map, in->n_shards - 1, &s->tensors, &s->n_tensors, e);
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

/* The distinct shards of a weight_map, sorted; borrowed from it.  Caller frees the array. */
static const char **shard_names(const json_t *map, size_t *n, const char *index, struct err *e)
{
    const char **names = calloc(json_object_size(map) + 1, sizeof *names), *key;
    json_t *v;
    size_t count = 0;
    if (!names) {
        err_nomem(e, index);
        return NULL;
    }
    json_object_foreach((json_t *)map, key, v) {
        const char *name = json_string_value(v);
        if (!name || !*name || strchr(name, '/')) {
            err_set(e, ERR_FORMAT, "%s: weight_map: tensor %s: expected the name of a file in the same folder", index,
                    key);
            free(names);
            return NULL;
        }
        names[count++] = name;
    }
    qsort(names, count, sizeof *names, by_text);
    *n = 0;
    for (size_t i = 0; i < count; i++)
        if (*n == 0 || strcmp(names[*n - 1], names[i]) != 0)
            names[(*n)++] = names[i];
    return names;
}

static int check_weight_map(struct source *s, const json_t *map, const char *index, const char *const *names,
                            struct err *e)
{
    const char *key;
    json_t *v;
    for (int i = 0; i < s->n_tensors; i++) {
        const struct source_tensor *t = &s->tensors[i];
        const char *said = json_string_value(json_object_get(map, t->name));
        if (!said || strcmp(said, names[t->shard]) != 0)
            return err_set(e, ERR_FORMAT, "%s: tensor %s: %s has it, weight_map says %s", index, t->name,
                           names[t->shard], said ? said : "nothing");
    }
    if (sort_names(s, e) < 0)
        return -1;
    json_object_foreach((json_t *)map, key, v)
        if (!source_find(s, key))
            return err_set(e, ERR_FORMAT, "%s: tensor %s: %s does not have it", index, key, json_string_value(v));
    return 0;
}

static int open_indexed(struct source *s, const char *name, struct err *e)
{
    char *path = join(s->path, name, e);
    const char **names = NULL;
    json_t *index = path ? js_load(path, MAX_SMALL_FILE, e) : NULL;
    int r = -1;
    if (!index)
        goto done;
    const json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map)) {
        err_set(e, ERR_FORMAT, "%s: weight_map: found %s, expected an object", path, js_kind(map));
        goto done;
    }
    size_t n;
    names = shard_names(map, &n, path, e);
    if (!names)
        goto done;
    for (size_t i = 0; i < n; i++)
        if (!is_there(s, names[i])) {
            err_set(e, ERR_FORMAT, "%s: %s is missing (shard %zu of %zu)", path, names[i], i + 1, n);
            goto done;
        }
    for (size_t i = 0; i < n; i++)
        if (add_shard(s, names[i], e) < 0)
            goto done;
    r = check_weight_map(s, map, path, names, e);
done:
    free(names);
    json_decref(index);
    free(path);
    return r;
}

/* Parse model-00002-of-00005.safetensors: *i = 2, *n = 5; returns the length of "model", or -1. */
static int shard_number(const char *name, int *i, int *n)
{
    size_t length = strlen(name);
    if (length < 27 || !ends_with(name, ".safetensors"))
        return -1;
    const char *p = name + length - 27;                 /* "-00002-of-00005.safetensors" */
    int used = 0;
    if (sscanf(p, "-%5d-of-%5d%n", i, n, &used) != 2 || used != 15 || *i < 1 || *n < 1)
        return -1;
    return (int)(p - name);
}

/* Open shards without an index, or a single file of another name. */
static int open_unindexed(struct source *s, struct err *e)
{
    struct dirent **list;
    int n = scandir(s->path, &list, is_safetensors_name, alphasort), r = -1, i, total;
    if (n < 0)
        return err_sys(e, "%s", s->path);
    int stem = n ? shard_number(list[0]->d_name, &i, &total) : -1;
    if (n == 1 && stem < 0) {
        r = add_shard(s, list[0]->d_name, e);
        goto done;
    }
    if (stem < 0) {
        err_set(e, ERR_FORMAT, "%s: %d safetensors files (%s ...), but neither model.safetensors nor model.safetensors.index.json", s->path, n, list[0]->d_name);
        goto done;
    }
    for (int k = 1; k <= total; k++) {
        char name[512];
        snprintf(name, sizeof name, "%.*s-%05d-of-%05d.safetensors", stem < 400 ? stem : 400, list[0]->d_name, k,
                 total);
        if (!exists(s->path, name)) {
            err_set(e, ERR_FORMAT, "%s: %s is missing (shard %d of %d)", s->path, name, k, total);
            goto done;
        }
        if (add_shard(s, name, e) < 0) {
            err_prefix(e, "shard %d of %d", k, total);
            goto done;
        }
    }
    if (n != total) {
        err_set(e, ERR_FORMAT, "%s: %d safetensors files, but %s says %d", s->path, n, list[0]->d_name, total);
        goto done;
    }
    r = 0;
done:
    for (int k = 0; k < n; k++)
        free(list[k]);
    free(list);
    return r;
}

static int open_tensors(struct source *s, struct err *e)
{
    if (exists(s->path, "model.safetensors"))
        return add_shard(s, "model.safetensors", e) < 0 ? -1 : sort_names(s, e);
    if (exists(s->path, "model.safetensors.index.json"))
        return open_indexed(s, "model.safetensors.index.json", e);
    return open_unindexed(s, e) < 0 ? -1 : sort_names(s, e);
}

/* ---- small files ---- */

static int add_file(struct source *s, const char *name, struct err *e)
{
    struct inner *in = s->private_;
    struct source_file *files = realloc(s->files, (size_t)(s->n_files + 1) * sizeof *files);
    if (!files)
        return err_nomem(e, name);
    s->files = files;
    struct input_file *p = add_input(s, name, &in->small, &in->n_small, e);
    if (!p || map_input(s, p, e) < 0)
        return -1;
    if (p->map.size > MAX_SMALL_FILE)
        return err_set(e, ERR_LIMIT, "%s: %zu bytes, expected at most %d", p->path, p->map.size, MAX_SMALL_FILE);
    struct source_file *f = &files[s->n_files];
    *f = (struct source_file){ .name = strdup(name), .data = p->map.data, .size = p->map.size };
    if (!f->name)
        return err_nomem(e, name);
    s->n_files++;
    return 0;
}

static int is_jinja(const struct dirent *d) { return ends_with(d->d_name, ".jinja"); }

static int add_small_files(struct source *s, struct err *e)
{
    static const char *const names[] = {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
            "added_tokens.json",
        "tokenizer.model", "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json", "LICENSE",
        "LICENSE.txt", "LICENSE.md", "NOTICE", "README.md",
        "modules.json", "sentence_bert_config.json", "config_sentence_transformers.json",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (exists(s->path, names[i]) && add_file(s, names[i], e) < 0)
            return -1;
    char *more = join(s->path, "additional_chat_templates", e);
    if (!more)
        return -1;
    struct dirent **list;
    int n = scandir(more, &list, is_jinja, alphasort), r = n >= 0 || errno == ENOENT ||
                                                           errno == ENOTDIR ? 0 : err_sys(e, "%s", more);
    free(more);
    for (int i = 0; i < n; i++) {
        char *name = r == 0 ? join("additional_chat_templates", list[i]->d_name, e) : NULL;
        if (r == 0)
            r = name ? add_file(s, name, e) : -1;
        free(name);
        free(list[i]);
    }
    if (n >= 0)
        free(list);
    return r;
}

static json_t *parse_small(const struct source *s, const char *name, struct err *e)
{
    const struct source_file *f = source_file(s, name);
    char *path = join(s->path, name, e);
    json_t *j = path && f ? js_parse_python(path, f->data, f->size, e) : NULL;
    if (j && !json_is_object(j)) {
        err_set(e, ERR_FORMAT, "%s: found %s, expected an object", path, js_kind(j));
        json_decref(j);
        j = NULL;
    }
    free(path);
    return j;
}

static int normalize(struct source *s, json_t *raw, const char *path, struct err *e)
{
    if (!raw)
        return -1;
    s->config = hf_config_normalize(raw, e);
    json_decref(raw);
    return s->config ? 0 : err_prefix(e, "%s", path);
}

/* Add the tensors of a dense layer under the name of its folder. */
static int add_dense_shard(struct source *s, const char *folder, struct err *e)
{
    const int before = s->n_tensors;
    char *file = join(folder, "model.safetensors", e);
    int rc = file ? add_shard(s, file, e) : -1;
    free(file);
    for (int i = before; rc == 0 && i < s->n_tensors; i++) {
        char *name;
        if (asprintf(&name, "%s.%s", folder, s->tensors[i].name) < 0)
            return err_nomem(e, folder);
        free((char *)s->tensors[i].name);
        s->tensors[i].name = name;
    }
    return rc;
}

/* Read the files of sentence-transformers, if there are some. */
static int add_modules(struct source *s, struct err *e)
{
    int found, rc = 0;
    json_t *modules = sentence_modules(s, &found, e), *described = NULL;
    if (!modules)
        return found ? -1 : 0;
    const char *folder;
    for (size_t i = 0; rc == 0 && (folder = sentence_folder(modules, i)); i++) {
        char *file = *folder ? join(folder, "config.json", e) : NULL;
        if (file && exists(s->path, file))
            rc = add_file(s, file, e);
        free(file);
        if (rc == 0 && *sentence_weights(modules, i) && s->kind == SOURCE_FOLDER)
            rc = add_dense_shard(s, folder, e);
    }
    if (rc == 0 && !(described = sentence_describe(s, modules, e)))
        rc = -1;
    if (rc == 0)
        json_object_set_new(s->config, "zse_embedding", described);
    json_decref(modules);
    return rc == 0 && s->kind == SOURCE_FOLDER ? sort_names(s, e) : rc;
}

static int open_folder(struct source *s, struct err *e)
{
    if (add_small_files(s, e) < 0)
        return -1;
    if (source_file(s, "config.json")) {
        char *path = join(s->path, "config.json", e);
        int r = path ? normalize(s, parse_small(s, "config.json", e), path, e) : -1;
        free(path);
        if (r < 0)
            return -1;
    }
    if (source_file(s, "generation_config.json") &&
        !(s->generation_config = parse_small(s, "generation_config.json", e)))
        return -1;
    if ((s->kind == SOURCE_FOLDER && open_tensors(s, e) < 0) || (s->config && add_modules(s, e) < 0))
        return -1;
    if (s->config && js_get(s->config, "type_vocab_size"))
        json_object_set_new(s->config, "zse_pair_types", json_boolean(sentence_pair_types(s)));
    if (s->kind != SOURCE_FOLDER)
        return 0;
    if (packed_config(s, e) < 0)
        return -1;
    /* its index reads data */
    if ((js_get(s->config, "quantization_config") || js_get(s->config, "compression_config")) && source_wait(s, NULL, e) < 0)
        return -1;
    if (packed_index(s, e) < 0)
        return -1;
    return s->quantization ? sort_names(s, e) : 0;      /* several tensors became one packed matrix */
}

static int open_gguf(struct source *s, struct err *e)
{
    s->gguf = gguf_open(s->path, e);
    if (!s->gguf)
        return -1;
    if (guard_of(s)) {
        guard_of(s)->add(&s->gguf->map);
        for (int i = 0; i < s->gguf->n_parts; i++)
            guard_of(s)->add(&s->gguf->parts[i]->map);
    }
    s->tensors = s->gguf->tensors;
    s->n_tensors = s->gguf->n_tensors;
    if (sort_names(s, e) < 0)
        return -1;
    const struct gguf_str *arch = gguf_str(s->gguf, "general.architecture");
    char key[256];
    snprintf(key, sizeof key, "%.*s.block_count", arch && arch->n < 200 ? (int)arch->n : 0, arch ? arch->s : "");
    if (s->n_tensors == 0 && !gguf_find(s->gguf, key))
        return 0;                                   /* a vocabulary without a model */
    s->config = gguf_config(s->gguf, e);
    return s->config ? 0 : -1;
}

struct source *source_open(const char *path, struct err *e) { return source_open_with(path, NULL, e); }

struct source *source_open_with(const char *path, const struct source_options *o, struct err *e)
{
    enum source_kind kind = o && o->arriving ? SOURCE_FOLDER : source_detect(path, e);
    if (kind == SOURCE_NONE)
        return NULL;
    if (kind == SOURCE_ZSE) {
        err_set(e, ERR_UNSUPPORTED, "%s: is a .zse file already", path);
        return NULL;
    }
    struct source *s = calloc(1, sizeof *s);
    struct inner *in = calloc(1, sizeof *in);
    struct stat st;
    int r;
    if (s)
        s->private_ = in;
    if (!s || !in || !(s->path = strdup(path))) {
        err_nomem(e, path);
        goto fail;
    }
    in->o = o;
    s->kind = kind;
    if (kind == SOURCE_GGUF)
        r = open_gguf(s, e);
    else if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        r = open_folder(s, e);
    else
        r = normalize(s, js_load(path, MAX_CONFIG, e), path, e);
    if (r == 0)
        return s;
fail:
    if (s)
        source_close(s);
    else
        free(in);
    return NULL;
}

void source_close(struct source *s)
{
    if (!s)
        return;
    struct inner *in = s->private_;
    for (int i = 0; i < s->n_files; i++)
        free((char *)s->files[i].name);
    free(s->files);
    if (!s->gguf) {
        for (int i = 0; i < s->n_tensors; i++) {
            free((char *)s->tensors[i].name);
            packed_free(s->tensors[i].packed);
        }
        free(s->tensors);
    }
    if (s->gguf && guard_of(s)) {
        guard_of(s)->remove(&s->gguf->map);
        for (int i = 0; i < s->gguf->n_parts; i++)
            guard_of(s)->remove(&s->gguf->parts[i]->map);
    }
    if (in) {
        free_inputs(s, in->shards, in->n_shards);
        free_inputs(s, in->small, in->n_small);
        free(in->by_name);
        joined_free(in->joined);
    }
    free(in);
    gguf_close(s->gguf);
    json_decref(s->config);
    json_decref(s->generation_config);
    json_decref(s->quantization);
    free(s->path);
    free(s);
}

const struct source_tensor *source_find(const struct source *s, const char *name)
{
    struct inner *in = s->private_;
    int lo = 0, hi = in->by_name ? s->n_tensors : 0;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2, c = strcmp(name, in->by_name[mid]->name);
        if (c == 0)
            return in->by_name[mid];
        if (c < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return strchr(name, '{') ? joined_find(s, &in->joined, name) : NULL;
}

const struct source_file *source_file(const struct source *s, const char *name)
{
    for (int i = 0; i < s->n_files; i++)
        if (strcmp(s->files[i].name, name) == 0)
            return &s->files[i];
    return NULL;
}

/* ---- data ---- */

/* Map a downloaded file, check that it matches its head, and set the data of its tensors. */
static int take_shard(const struct source *s, int shard, struct err *e)
{
    const struct inner *in = s->private_;
    struct input_file *p = in->shards[shard];
    const struct source_shard *h = &in->o->arriving->shards[p->arriving];
    if (in->o->arriving->wait(in->o->arriving->user, p->arriving, e) != 0 || map_input(s, p, e) != 0)
        return -1;
    if (p->map.size != h->size || memcmp(p->map.data, h->head, h->head_size) != 0)
        return err_set(e, ERR_FORMAT, "%s: its beginning or its size (%zu bytes) is not what was announced (%" PRIu64
                       " bytes)", p->path, p->map.size, h->size);
    for (int i = 0; i < s->n_tensors; i++)
        if (s->tensors[i].shard == shard)
            s->tensors[i].data = p->map.data + s->tensors[i].offset;
    return 0;
}

int source_wait(const struct source *s, const struct source_tensor *t, struct err *e)
{
    const struct inner *in = s->private_;
    for (int i = 0; t && i < t->n_parts; i++)
        if (source_wait(s, t->parts[i], e) != 0)
            return -1;
    for (int i = 0; in && i < in->n_shards; i++)
        if (in->shards[i]->arriving >= 0 && !in->shards[i]->map.path && (!t || t->shard == i) &&
            take_shard(s, i, e) != 0)
            return -1;
    return 0;
}

int source_check(const struct source *s, const struct source_tensor *t, struct err *e)
{
    const struct inner *in = s->private_;
    for (int i = 0; t && i < t->n_parts; i++)
        if (source_check(s, t->parts[i], e) != 0)
            return -1;
    for (int i = 0; in && i < in->n_shards; i++)
        if (in->shards[i]->map.path && (!t || t->shard == i) && map_check(&in->shards[i]->map, e) != 0)
            return -1;
    for (int i = 0; in && !t && i < in->n_small; i++)
        if (map_check(&in->small[i]->map, e) != 0)
            return -1;
    for (int i = 0; s->gguf && i <= s->gguf->n_parts; i++)
        if ((!t || t->shard == i) && map_check(i ? &s->gguf->parts[i - 1]->map : &s->gguf->map, e) != 0)
            return -1;
    return 0;
}

/* Rows of a tensor as source_read() sees it; joined vectors are one row. */
static int64_t rows_of(const struct source_tensor *t)
{
    int64_t rows = 1;
    for (int i = 0; i < t->n_dims - 1; i++)
        rows *= t->dim[i];
    return rows;
}

/* Read from the parts of a joined tensor. */
static int read_parts(const struct source *s, const struct source_tensor *t, int64_t row, int64_t n, float *out,
                      int check_finite, struct err *e)
{
    for (int i = 0; i < t->n_parts && n > 0; i++) {
        const struct source_tensor *p = t->parts[i];
        const int64_t cols = p->dim[p->n_dims - 1], rows = rows_of(p), here = n < rows - row ? n : rows - row;
        if (t->n_dims > 1 && row >= rows) {
            row -= rows;
            continue;
        }
        if (source_read(s, p, t->n_dims > 1 ? row : 0, t->n_dims > 1 ? here : 1, out, check_finite, e) != 0)
            return -1;
        out += (t->n_dims > 1 ? here : 1) * cols;
        row = 0;
        n -= t->n_dims > 1 ? here : 0;
    }
    return 0;
}

int source_read(const struct source *s, const struct source_tensor *t, int64_t row, int64_t n, float *out,
                int check_finite, struct err *e)
{
    const struct ggml_type_info *info = ggml_type_info(t->type);
    const int64_t cols = t->dim[t->n_dims - 1], rows = rows_of(t);
    if (row < 0 || n < 0 || row > rows || n > rows - row)
        return err_set(e, ERR_SHAPE, "%s: tensor %s: rows %" PRId64 " to %" PRId64 " of %" PRId64, shard_path(s, t),
                       t->name, row, row + n, rows);
    if (t->n_parts)
        return read_parts(s, t, row, n, out, check_finite, e);
    size_t row_bytes = (size_t)(cols / info->block) * (size_t)info->block_bytes;
    if (t->packed)
        packed_read(t->packed, row, n, out);
    else
        ggml_decode(t->type, t->data + (size_t)row * row_bytes, out, n * cols);
    if (!check_finite)
        return 0;
    for (int64_t i = 0; i < n * cols; i++)
        if (!isfinite(out[i]))
            return err_set(e, ERR_FORMAT, "%s: tensor %s: row %" PRId64 ", column %" PRId64 ": is %s", shard_path(s, t),
                           t->name, row + i / cols, i % cols, isnan(out[i]) ? "not a number" : "infinite");
    return 0;
}

static void drop(const struct source_tensor *t)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)t->data + page - 1) / page * page, end = ((uintptr_t)t->data + t->size) / page * page;
    if (t->data && end > begin)
        madvise((void *)begin, end - begin, MADV_DONTNEED);     /* a clean file page: it is read again if needed */
}

void source_drop(const struct source *s, const struct source_tensor *t)
{
    for (int i = 0; i < t->n_parts; i++)
        source_drop(s, t->parts[i]);
    drop(t);
    if (t->packed) {
        drop(&t->packed->scale);
        drop(&t->packed->zeros);
    }
}

size_t source_bytes(const struct source_tensor *t)
{
    return t->packed ? packed_bytes(t->packed) : t->size;
}

/* ---- the cache key of automatic conversions ---- */

/* Two 64-bit lanes; every word is xored in, multiplied by an odd constant and mixed by shifts (the
 * constants are those of SplitMix64, Steele et al. 2014). */
struct hash { uint64_t a, b; };

static void hash_word(struct hash *h, uint64_t w)
{
    h->a = (h->a ^ w) * 0xbf58476d1ce4e5b9u;
    h->a ^= h->a >> 29;
    h->b = (h->b + w) * 0x94d049bb133111ebu;
    h->b ^= h->b >> 32 ^ h->a;
}

static void hash_bytes(struct hash *h, const void *data, size_t n)
{
    const uint8_t *p = data;
    hash_word(h, n);
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        hash_word(h, w);
    }
    uint64_t w = 0;
    memcpy(&w, p, n);
    hash_word(h, w);
}

/* Hash up to 64 KiB completely, larger data by 16 pieces of 256 bytes, spread evenly, including the
 * first and the last bytes. */
static void hash_sampled(struct hash *h, const uint8_t *data, size_t n)
{
    enum { WHOLE = 65536, PIECE = 256, PIECES = 16 };
    if (n <= WHOLE) {
        hash_bytes(h, data, n);
        return;
    }
    hash_word(h, n);
    for (size_t i = 0; i < PIECES; i++)
        hash_bytes(h, data + (n - PIECE) / (PIECES - 1) * i, PIECE);
    hash_bytes(h, data + n - PIECE, PIECE);
}

int source_key(const struct source *s, char hex[33], struct err *e)
{
    struct hash h = { 0x5a5345, 1 };
    if (source_wait(s, NULL, e) != 0)
        return -1;
    hash_word(&h, s->kind);
    for (int i = 0; i < s->n_files; i++) {
        hash_bytes(&h, s->files[i].name, strlen(s->files[i].name));
        hash_bytes(&h, s->files[i].data, s->files[i].size);
    }
    if (s->gguf)
        hash_bytes(&h, s->gguf->map.data, (size_t)s->gguf->data_offset);
    for (int i = 0; i < s->n_tensors; i++) {
        const struct source_tensor *t = &s->tensors[i];
        hash_bytes(&h, t->name, strlen(t->name));
        hash_word(&h, (uint64_t)t->type);
        hash_bytes(&h, t->dim, sizeof t->dim);
        hash_sampled(&h, t->data, t->size);
        const struct packed *p = t->packed;
        const struct source_tensor *const parts[] = { p ? &p->scale : NULL, p ? &p->zeros : NULL,
                                                      p ? &p->order : NULL };
        for (int k = 0; p && k < 3; k++)
            if (parts[k]->data)
                hash_sampled(&h, parts[k]->data, parts[k]->size);
    }
    if (s->config && s->n_files == 0 && !s->gguf) {             /* a bare config.json */
        char *text = json_dumps(s->config, JSON_SORT_KEYS | JSON_COMPACT);
        if (!text)
            return err_nomem(e, "config");
        hash_bytes(&h, text, strlen(text));
        free(text);
    }
    snprintf(hex, 33, "%016" PRIx64 "%016" PRIx64, h.a, h.b);
    return 0;
}

uint64_t source_stamp(const struct source *s)
{
    const struct inner *in = s->private_;
    struct hash h = { 0x5a5345, 2 };
    for (int i = 0; in && i < in->n_shards; i++) {
        hash_word(&h, in->shards[i]->map.size);
        hash_word(&h, (uint64_t)in->shards[i]->map.changed_ns);
    }
    for (int i = 0; s->gguf && i <= s->gguf->n_parts; i++) {
        const struct map *m = i ? &s->gguf->parts[i - 1]->map : &s->gguf->map;
        hash_word(&h, m->size);
        hash_word(&h, (uint64_t)m->changed_ns);
    }
    return h.a ^ h.b;
}
