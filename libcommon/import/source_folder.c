/* source_folder.c - read a folder as a source: its shards, also those that are still being
 * downloaded, its small files, and the modules of sentence-transformers. */
#include "libcommon/import/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/base/plural.h"
#include "libcommon/base/suffix.h"
#include "libcommon/import/packed.h"
#include "libcommon/import/safetensors.h"
#include "libcommon/import/sentence.h"

enum { MAX_SMALL_FILE = 256 << 20 };

/* ---- shards ---- */

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
    if (!(p->path = source_join(s->path, name, e))) {
        free(p);
        return NULL;
    }
    return more[(*n)++] = p;
}

/* The index of this name among the files being downloaded, or -1. */
static int find_arriving(const struct source *s, const char *name)
{
    const struct source_inner *in = s->private_;
    const struct source_arriving *a = in->o ? in->o->arriving : NULL;
    for (int i = 0; a && i < a->n; i++)
        if (a->shards[i].head && strcmp(a->shards[i].name, name) == 0)
            return i;
    return -1;
}

/* Is the file in the folder, or being downloaded? */
static int is_there(const struct source *s, const char *name)
{
    return find_arriving(s, name) >= 0 || source_has(s->path, name);
}

/* Read the index of a file that is being downloaded from its head. */
static int index_head(struct source *s, const struct input_file *p, int shard, struct err *e)
{
    const struct source_inner *in = s->private_;
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
    struct source_inner *in = s->private_;
    struct input_file *p = add_input(s, name, &in->shards, &in->n_shards, e);
    if (!p)
        return -1;
    p->arriving = find_arriving(s, name);
    if (p->arriving >= 0)
        return index_head(s, p, in->n_shards - 1, e);
    return source_map(s, p, e) < 0 ? -1 : safetensors_index(&p->map, in->n_shards - 1, &s->tensors, &s->n_tensors, e);
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
    if (source_sort(s, e) < 0)
        return -1;
    json_object_foreach((json_t *)map, key, v)
        if (!source_find(s, key))
            return err_set(e, ERR_FORMAT, "%s: tensor %s: %s does not have it", index, key, json_string_value(v));
    return 0;
}

static int open_indexed(struct source *s, const char *name, struct err *e)
{
    char *path = source_join(s->path, name, e);
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
    int n = scandir(s->path, &list, source_is_shard, alphasort), r = -1, i, total;
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
        if (!source_has(s->path, name)) {
            err_set(e, ERR_FORMAT, "%s: %s is missing (shard %d of %d)", s->path, name, k, total);
            goto done;
        }
        if (add_shard(s, name, e) < 0) {
            err_prefix(e, "shard %d of %d", k, total);
            goto done;
        }
    }
    if (n != total) {
        err_set(e, ERR_FORMAT, "%s: %d safetensors file%s, but %s says %d", s->path, n, plural(n), list[0]->d_name, total);
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
    if (source_has(s->path, "model.safetensors"))
        return add_shard(s, "model.safetensors", e) < 0 ? -1 : source_sort(s, e);
    if (source_has(s->path, "model.safetensors.index.json"))
        return open_indexed(s, "model.safetensors.index.json", e);
    return open_unindexed(s, e) < 0 ? -1 : source_sort(s, e);
}

/* ---- small files ---- */

static int add_file(struct source *s, const char *name, struct err *e)
{
    struct source_inner *in = s->private_;
    struct source_file *files = realloc(s->files, (size_t)(s->n_files + 1) * sizeof *files);
    if (!files)
        return err_nomem(e, name);
    s->files = files;
    struct input_file *p = add_input(s, name, &in->small, &in->n_small, e);
    if (!p || source_map(s, p, e) < 0)
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
        if (source_has(s->path, names[i]) && add_file(s, names[i], e) < 0)
            return -1;
    char *more = source_join(s->path, "additional_chat_templates", e);
    if (!more)
        return -1;
    struct dirent **list;
    int n = scandir(more, &list, is_jinja, alphasort), r = n >= 0 || errno == ENOENT ||
                                                           errno == ENOTDIR ? 0 : err_sys(e, "%s", more);
    free(more);
    for (int i = 0; i < n; i++) {
        char *name = r == 0 ? source_join("additional_chat_templates", list[i]->d_name, e) : NULL;
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
    char *path = source_join(s->path, name, e);
    json_t *j = path && f ? js_parse_python(path, f->data, f->size, e) : NULL;
    if (j && !json_is_object(j)) {
        err_set(e, ERR_FORMAT, "%s: found %s, expected an object", path, js_kind(j));
        json_decref(j);
        j = NULL;
    }
    free(path);
    return j;
}

/* Add the tensors of a dense layer under the name of its folder. */
static int add_dense_shard(struct source *s, const char *folder, struct err *e)
{
    const int before = s->n_tensors;
    char *file = source_join(folder, "model.safetensors", e);
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
        char *file = *folder ? source_join(folder, "config.json", e) : NULL;
        if (file && source_has(s->path, file))
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
    return rc == 0 && s->kind == SOURCE_FOLDER ? source_sort(s, e) : rc;
}

int source_open_folder(struct source *s, struct err *e)
{
    if (add_small_files(s, e) < 0)
        return -1;
    if (source_file(s, "config.json")) {
        char *path = source_join(s->path, "config.json", e);
        int r = path ? source_normalize(s, parse_small(s, "config.json", e), path, e) : -1;
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
    /* packed_index() reads the data of tensors */
    if ((js_get(s->config, "quantization_config") || js_get(s->config, "compression_config")) && source_wait(s, NULL, e) < 0)
        return -1;
    if (packed_index(s, e) < 0)
        return -1;
    return s->quantization ? source_sort(s, e) : 0;      /* several tensors became one packed matrix */
}
