/* peft.c - read the configuration of an adapter, and pair its tensors to modules. */
#include "libcommon/import/peft.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/base/suffix.h"
#include "libcommon/import/internal.h"
#include "libcommon/import/name_pattern.h"
#include "libcommon/import/safetensors.h"
#include "libcommon/quant/ggml.h"

/* The largest change of a weight that is accepted: no trained weight changes by more, and sums with
 * larger values may overflow. */
static const double largest_change = 1e30;
enum { MOST_LISTED = 8192, STRIP = 256, MAX_ADAPTER_CONFIG = 1 << 20, MAX_RANK = 65536 };
static const char config_name[] = "adapter_config.json", tensors_name[] = "adapter_model.safetensors";

/* Rules of a configuration, compiled. */
struct rules {
    struct peft *peft;
    struct err *e;
    double rank, alpha;
    int rank_stable;                    /* use_rslora */
    struct name_patterns ranks, alphas, targets, excluded, layers;
    const json_t *saved;                /* modules_to_save; NULL: none */
    const json_t *indexes;              /* layers_to_transform; NULL: all */
    int all;                            /* target_modules "all-linear" */
    struct name_costs *costs;           /* of all patterns */
};

static int config_fails(const struct rules *r, const char *key, const char *why)
{
    return err_set(r->e, ERR_UNSUPPORTED, "%s/%s: %s: %s", r->peft->path, config_name, key, why);
}

static int add_pattern(const struct rules *r, struct name_patterns *list, const char *key, const char *text,
                       enum name_form form)
{
    int nomem;
    const char *why = name_patterns_add(list, text, form, r->costs, &nomem);
    if (nomem)
        return err_nomem(r->e, key);
    return why ? err_set(r->e, ERR_FORMAT, "%s/%s: %s: '%.100s' %s", r->peft->path, config_name, key, text, why) : 0;
}

/* Match a pattern: returns 1 or 0; -1 with the error.  number, which may be NULL, receives the
 * number of the layer. */
static int match(const struct rules *r, const struct name_pattern *p, const char *name, long *number)
{
    const char *why;
    const int rc = name_pattern_match(p, name, r->costs, number, &why);
    return rc < 0 ? config_fails(r, name, why) : rc;
}

/* The value of the first pattern that matches, else `otherwise`; NAN with the error. */
static double pattern_value(const struct rules *r, const struct name_patterns *list, const char *name,
                            double otherwise)
{
    for (int i = 0; i < list->n; i++) {
        const int rc = match(r, &list->p[i], name, NULL);
        if (rc)
            return rc < 0 ? NAN : list->p[i].value;
    }
    return otherwise;
}

/* ---- the configuration ---- */

/* Keys that do not change the result of an adapter after its training. */
static const char *const without_effect[] = {
    "auto_mapping", "base_model_name_or_path", "revision", "inference_mode", "lora_dropout", "task_type",
    "peft_version", "megatron_core", "qalora_group_size", "ensure_weight_tying", "runtime_config",
    "loftq_config", "eva_config", "corda_config", "lora_ga_config",
};
static const char *const understood[] = {
    "peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules",
    "exclude_modules", "modules_to_save", "layers_to_transform", "layers_pattern", "fan_in_fan_out", "bias", "init_lora_weights",
};

static int is_listed(const char *key, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(key, list[i]) == 0)
            return 1;
    return 0;
}

/* Refuse every other key that is set: use_dora, layer_replication, target_parameters ... */
static int check_keys(const struct rules *r)
{
    const char *key;
    json_t *v;
    json_object_foreach(r->peft->config, key, v) {
        const int unset = json_is_null(v) || json_is_false(v) || (json_is_array(v) && json_array_size(v) == 0) ||
                          (json_is_object(v) && json_object_size(v) == 0);
        if (!unset && !is_listed(key, without_effect, sizeof without_effect / sizeof *without_effect) &&
            !is_listed(key, understood, sizeof understood / sizeof *understood))
            return config_fails(r, key, "adapters with it are not supported");
    }
    const char *type, *bias;
    if (js_string(r->peft->config, "peft_type", &type, r->e) || js_string_or(r->peft->config, "bias", "none", &bias, r->e))
        return err_prefix(r->e, "%s/%s", r->peft->path, config_name);
    if (strcmp(type, "LORA") != 0)
        return err_set(r->e, ERR_UNSUPPORTED, "%s/%s: peft_type: '%.40s', expected LORA", r->peft->path, config_name,
                       type);
    if (strcmp(bias, "none") != 0)
        return config_fails(r, "bias", "adapters with trained biases are not supported");
    /* other ways of initialization also change the weights of the base */
    const json_t *init = js_get(r->peft->config, "init_lora_weights");
    static const char *const plain[] = { "gaussian", "eva", "orthogonal" };
    if (init && !json_is_boolean(init) && !json_is_string(init))
        return config_fails(r, "init_lora_weights", "expected a string or a boolean");
    if (init && !json_is_boolean(init) &&
        !(json_is_string(init) && is_listed(json_string_value(init), plain, sizeof plain / sizeof *plain)))
        return config_fails(r, "init_lora_weights", "this initialization changes the base, which is not supported");
    return 0;
}

/* rank_pattern, alpha_pattern: {"name or regular expression": number}. */
static int read_values(const struct rules *r, const char *key, struct name_patterns *list)
{
    const json_t *o = js_get(r->peft->config, key);
    const char *name;
    json_t *v;
    if (o && !json_is_object(o))
        return config_fails(r, key, "expected an object");
    json_object_foreach((json_t *)o, name, v) {
        if (!json_is_number(v) || !(json_number_value(v) > 0))
            return config_fails(r, key, "expected numbers above 0");
        if (add_pattern(r, list, key, name, NAME_END))
            return -1;
        list->p[list->n - 1].value = json_number_value(v);
    }
    return 0;
}

/* modules_to_save, and lists of layers: an array, one element, or null. */
static int read_list(const struct rules *r, const char *key, int strings, const json_t **out)
{
    const json_t *list = js_get(r->peft->config, key), *v;
    size_t i;
    int wrong = list && !json_is_array(list);
    if (!list)
        return 0;
    if (json_array_size(list) > MOST_LISTED)
        return config_fails(r, key, "too many entries");
    json_array_foreach(list, i, v)
        wrong |= strings ? !json_is_string(v) : !json_is_integer(v);
    *out = json_array_size(list) ? list : NULL;
    return wrong ? config_fails(r, key, strings ? "expected an array of strings" : "expected an array of integers") : 0;
}

/* target_modules and exclude_modules: an expression for whole names, or an array of names. */
static int read_names(const struct rules *r, const char *key, struct name_patterns *list)
{
    const json_t *t = js_get(r->peft->config, key), *ignored;
    if (json_is_string(t))
        return add_pattern(r, list, key, json_string_value(t), NAME_WHOLE);
    if (t && !json_is_array(t))
        return config_fails(r, key, "expected a string or an array of strings");
    return read_list(r, key, 1, &ignored);
}

static int read_targets(struct rules *r)
{
    const char *text = json_string_value(js_get(r->peft->config, "target_modules"));
    r->all = text && strcmp(text, "all-linear") == 0;
    if (read_names(r, "exclude_modules", &r->excluded))
        return -1;
    return r->all ? 0 : read_names(r, "target_modules", &r->targets);
}

/* layers_to_transform is one integer or several, layers_pattern the name of the list of layers. */
static int read_layers(struct rules *r)
{
    const json_t *one = js_get(r->peft->config, "layers_to_transform"), *names = js_get(r->peft->config, "layers_pattern");
    r->indexes = json_is_integer(one) ? one : NULL;
    if (!r->indexes && read_list(r, "layers_to_transform", 0, &r->indexes))
        return -1;
    if (!r->indexes)
        return 0;
    if (json_is_string(names))
        return add_pattern(r, &r->layers, "layers_pattern", json_string_value(names), NAME_LAYER);
    const json_t *list = NULL, *v;
    size_t i;
    if (read_list(r, "layers_pattern", 1, &list))
        return -1;
    json_array_foreach(list, i, v)
        if (add_pattern(r, &r->layers, "layers_pattern", json_string_value(v), NAME_LAYER))
            return -1;
    return r->layers.n ? 0 : add_pattern(r, &r->layers, "layers_pattern", "[^.]*", NAME_LAYER);
}

static int read_rules(struct rules *r)
{
    int64_t rank;
    int ignored;                        /* fan_in_fan_out; the layout of matrices is taken from the
                                         * base instead */
    if (check_keys(r))
        return -1;
    if (js_int(r->peft->config, "r", 1, MAX_RANK, &rank, r->e) ||
        js_real_or(r->peft->config, "lora_alpha", 8, &r->alpha, r->e) ||
        js_bool_or(r->peft->config, "use_rslora", 0, &r->rank_stable, r->e) ||
        js_bool_or(r->peft->config, "fan_in_fan_out", 0, &ignored, r->e))
        return err_prefix(r->e, "%s/%s", r->peft->path, config_name);
    r->rank = (double)rank;
    return read_values(r, "rank_pattern", &r->ranks) || read_values(r, "alpha_pattern", &r->alphas) ||
                   read_list(r, "modules_to_save", 1, &r->saved) || read_targets(r) || read_layers(r)
               ? -1 : 0;
}

/* Whether `name` is the module `part`, or ends in a dot and it. */
static int is_module(const char *name, const char *part)
{
    const size_t n = strlen(name), m = strlen(part);
    return n >= m && strcmp(name + n - m, part) == 0 && (n == m || name[n - m - 1] == '.');
}

static int is_in(const json_t *list, const char *name)
{
    const json_t *v;
    size_t i;
    json_array_foreach(list, i, v)
        if (is_module(name, json_string_value(v)))
            return 1;
    return 0;
}

/* Whether exclude_modules has a module: 1, 0; -1 with the error. */
static int is_excluded(const struct rules *r, const char *name)
{
    return r->excluded.n ? match(r, &r->excluded.p[0], name, NULL) : is_in(js_get(r->peft->config, "exclude_modules"), name);
}

/* Whether the configuration selects a module: 1, 0; -1 with the error. */
static int is_target(const struct rules *r, const char *name)
{
    const int chosen = r->all ? 1 : r->targets.n ? match(r, &r->targets.p[0], name, NULL)
                                                 : is_in(js_get(r->peft->config, "target_modules"), name);
    if (chosen <= 0 || !r->indexes)
        return chosen;
    long layer = -1;
    for (int i = 0; i < r->layers.n && layer < 0; i++)
        if (match(r, &r->layers.p[i], name, &layer) < 0)
            return -1;
    if (json_is_integer(r->indexes))
        return json_integer_value(r->indexes) == layer;
    const json_t *v;
    size_t i;
    json_array_foreach(r->indexes, i, v)
        if (json_integer_value(v) == layer)
            return 1;
    return 0;
}

/* ---- tensors ---- */

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct source_tensor *)a)->name, ((const struct source_tensor *)b)->name);
}

static int tensor_fails(const struct rules *r, const struct source_tensor *t, const char *why)
{
    return err_set(r->e, ERR_FORMAT, "%s/%s: tensor '%s': %s", r->peft->path, tensors_name, t->name, why);
}

/* Refuse names that no module of a model has.  Braces have a meaning of their own in
 * source_find(). */
static int check_names(const struct rules *r)
{
    for (int i = 0; i < r->peft->n_tensors; i++) {
        const char *name = r->peft->tensors[i].name;
        if (strlen(name) > PEFT_NAME)
            return err_set(r->e, ERR_FORMAT, "%s/%s: tensor '%.60s...': a name of %zu bytes, expected at most %d",
                           r->peft->path, tensors_name, name, strlen(name), PEFT_NAME);
        if (strpbrk(name, "{}"))
            return tensor_fails(r, &r->peft->tensors[i], "a name with braces is no module of a model");
    }
    return 0;
}

static int is_float(const struct source_tensor *t)
{
    return t->type == GGML_F32 || t->type == GGML_F16 || t->type == GGML_BF16;
}

/* The tensor of the same module whose name ends in `end` instead of the last `cut` characters. */
static const struct source_tensor *sibling(const struct peft *p, const struct source_tensor *t, size_t cut,
                                           const char *end)
{
    char name[2 * PEFT_NAME];
    snprintf(name, sizeof name, "%.*s%s", (int)(strlen(t->name) - cut), t->name, end);
    const struct source_tensor key = { .name = name };
    return bsearch(&key, p->tensors, (size_t)p->n_tensors, sizeof key, by_name);
}

/* Endings of the names of a module's two tensors A and B. */
static const struct { const char *a, *b; int table; } halves[] = {
    { ".lora_A.weight", ".lora_B.weight", 0 }, { ".lora_embedding_A", ".lora_embedding_B", 1 },
};

/* Refuse numbers that are not finite.  most, if not NULL: most[k] becomes the largest magnitude of
 * row (by_row 1) or column k. */
static int check_numbers(const struct rules *r, const struct source_tensor *t, int by_row, float *most)
{
    const size_t width = (size_t)ggml_type_info(t->type)->block_bytes;
    const int64_t cols = t->dim[t->n_dims - 1];
    const uint8_t *data = t->data;
    float x[STRIP];
    for (int64_t row = 0; cols && row < (int64_t)(t->size / width) / cols; row++)
        for (int64_t c0 = 0; c0 < cols; c0 += STRIP) {
            const int64_t n = cols - c0 < STRIP ? cols - c0 : STRIP;
            ggml_decode(t->type, data, x, n);
            data += (size_t)n * width;
            for (int64_t c = 0; c < n; c++) {
                if (!isfinite(x[c]))
                    return tensor_fails(r, t, "has values that are not finite");
                float *to = most ? &most[by_row ? row : c0 + c] : NULL;
                if (to && fabsf(x[c]) > *to)
                    *to = fabsf(x[c]);
            }
        }
    return 0;
}

/* Refuse a change that may overflow.  The bound is the sum over the rank of the largest magnitude
 * in A times the largest in B. */
static int check_change(const struct rules *r, const struct peft_module *m)
{
    float *most = calloc(2 * (size_t)m->rank, sizeof *most);
    double sum = 0;
    if (!most)
        return err_nomem(r->e, tensors_name);
    int rc = check_numbers(r, m->a, 1, most) || check_numbers(r, m->b, 0, most + m->rank) ? -1 : 0;
    for (int k = 0; k < m->rank; k++)
        sum += (double)most[k] * (double)most[m->rank + k];
    free(most);
    if (rc == 0 && !(sum * fabs((double)m->scale) <= largest_change))
        rc = tensor_fails(r, m->b, "its product with lora_A is too large for a change of a weight");
    return rc;
}

/* Check the ranks of a module's two tensors and compute its scale. */
static int fit_module(const struct rules *r, struct peft_module *m)
{
    const double rank = pattern_value(r, &r->ranks, m->name, r->rank),
                 alpha = pattern_value(r, &r->alphas, m->name, r->alpha);
    if (isnan(rank) || isnan(alpha))
        return -1;
    if (rank > MAX_RANK)
        return config_fails(r, "rank_pattern", "the rank is too large");
    if (!is_float(m->a) || !is_float(m->b))
        return tensor_fails(r, is_float(m->a) ? m->b : m->a, "expected F32, F16 or BF16");
    if (m->a->n_dims != 2 || m->b->n_dims != 2)
        return tensor_fails(r, m->a->n_dims != 2 ? m->a : m->b, "expected a matrix");
    if ((double)m->a->dim[0] != rank || (double)m->b->dim[1] != rank)
        return err_set(r->e, ERR_SHAPE, "%s/%s: tensor '%s': rank %" PRId64 ", expected %g by %s", r->peft->path,
                       tensors_name, (double)m->a->dim[0] != rank ? m->a->name : m->b->name,
                       (double)m->a->dim[0] != rank ? m->a->dim[0] : m->b->dim[1], rank, config_name);
    m->rank = (int)m->a->dim[0];
    m->scale = (float)(alpha / (r->rank_stable ? sqrt(rank) : rank));
    return isfinite(m->scale) ? check_change(r, m) : config_fails(r, "lora_alpha", "expected a finite number");
}

/* 1 for the embedding and the head: if an adapter changes one of the two, PEFT saves a copy of the
 * weights of both. */
static int is_embedding(const char *name) { return is_module(name, "embed_tokens") || is_module(name, "lm_head"); }

/* Add the module of tensor t: 0, also if t is the second half of one; -1 with the error. */
static int add_module(const struct rules *r, struct peft *p, const struct source_tensor *t)
{
    static const char prefix[] = "base_model.model.";
    if (strncmp(t->name, prefix, sizeof prefix - 1) != 0)
        return tensor_fails(r, t, "expected a name that begins with base_model.model.");
    struct peft_module m = { 0 };
    size_t cut = 0;
    for (size_t i = 0; i < sizeof halves / sizeof *halves && !cut; i++) {
        const int is_a = ends_with(t->name, halves[i].a), is_b = ends_with(t->name, halves[i].b);
        if (!is_a && !is_b)
            continue;
        cut = strlen(is_a ? halves[i].a : halves[i].b);
        const struct source_tensor *other = sibling(p, t, cut, is_a ? halves[i].b : halves[i].a);
        if (!other)
            return tensor_fails(r, t, is_a ? "its lora_B is missing" : "its lora_A is missing");
        if (is_b)
            return 0;
        m = (struct peft_module){ .a = t, .b = other, .table = halves[i].table };
    }
    static const char kept[] = ".base_layer.weight";
    int is_copy = !cut && ends_with(t->name, kept);
    if (is_copy)
        cut = strlen(kept);
    if (!cut && ends_with(t->name, ".weight")) {
        cut = strlen(".weight");
        m.saved = t;
    }
    const char *path = t->name + sizeof prefix - 1;
    if (!(m.name = strndup(path, strlen(path) > cut ? strlen(path) - cut : 0)))
        return err_nomem(r->e, t->name);
    if (is_copy || (m.saved && !is_in(r->saved, m.name) && is_embedding(m.name))) {
        p->copies[p->n_copies++] = (struct peft_copy){ .name = m.name, .tensor = t };
        return is_float(t) ? 0 : tensor_fails(r, t, "expected F32, F16 or BF16");
    }
    p->modules[p->n_modules++] = m;
    const int excluded = m.a ? is_excluded(r, m.name) : 0;
    if (excluded)
        return excluded < 0 ? -1 : tensor_fails(r, t, "exclude_modules has its module");
    const int chosen = m.saved ? is_in(r->saved, m.name) : !cut ? 0 : is_target(r, m.name);
    if (chosen > 0 && m.saved)
        return is_float(t) ? check_numbers(r, t, 0, NULL) : tensor_fails(r, t, "expected F32, F16 or BF16");
    if (chosen > 0)
        return fit_module(r, &p->modules[p->n_modules - 1]);
    return chosen < 0 ? -1 : tensor_fails(r, t, m.a ? "target_modules does not select its module"
                                                    : "is no part of a LoRA adapter that is supported");
}

static int by_module(const void *a, const void *b)
{
    return strcmp(((const struct peft_module *)a)->name, ((const struct peft_module *)b)->name);
}

/* Sort the modules.  Refuse a module that is changed twice, and a missing module of
 * modules_to_save, except the two that PEFT lists for every classifier. */
static int order_modules(const struct rules *r, struct peft *p)
{
    const json_t *v;
    size_t i;
    qsort(p->modules, (size_t)p->n_modules, sizeof *p->modules, by_module);
    for (int k = 1; k < p->n_modules; k++)
        if (strcmp(p->modules[k - 1].name, p->modules[k].name) == 0)
            return err_set(r->e, ERR_UNSUPPORTED, "%s/%s: changes '%s' in two ways", p->path, tensors_name,
                           p->modules[k].name);
    json_array_foreach(r->saved, i, v) {
        const char *name = json_string_value(v);
        int found = strcmp(name, "classifier") == 0 || strcmp(name, "score") == 0;
        for (int k = 0; k < p->n_modules && !found; k++)
            found = p->modules[k].saved && is_module(p->modules[k].name, name);
        if (!found)
            return err_set(r->e, ERR_FORMAT, "%s/%s: modules_to_save: %s has no tensor of '%.100s'", p->path,
                           config_name, tensors_name, name);
    }
    return 0;
}

static int read_modules(struct peft *p, struct err *e)
{
    struct name_costs costs = { 0 };
    struct rules r = { .peft = p, .e = e, .costs = &costs };
    int rc = check_names(&r) || read_rules(&r) ? -1 : 0;
    if (rc == 0 && (!(p->modules = calloc((size_t)p->n_tensors + 1, sizeof *p->modules)) ||
                    !(p->copies = calloc((size_t)p->n_tensors + 1, sizeof *p->copies))))
        rc = err_nomem(e, tensors_name);
    for (int i = 0; i < p->n_tensors && rc == 0; i++)
        rc = add_module(&r, p, &p->tensors[i]);
    if (rc == 0 && !p->n_modules)
        rc = err_set(e, ERR_FORMAT, "%s/%s: has no tensors", p->path, tensors_name);
    if (rc == 0)
        rc = order_modules(&r, p);
    name_patterns_free(&r.ranks);
    name_patterns_free(&r.alphas);
    name_patterns_free(&r.targets);
    name_patterns_free(&r.excluded);
    name_patterns_free(&r.layers);
    return rc;
}

/* ---- files ---- */

int peft_is_folder(const char *path) { return source_has(path, config_name); }

static int map_guarded(struct map *m, const char *folder, const char *name, const struct map_guard *guard,
                       struct err *e)
{
    char *path = source_join(folder, name, e);
    const int rc = path ? map_open(m, path, e) : -1;
    free(path);
    if (rc == 0 && guard && guard->add)
        guard->add(m);
    return rc;
}

static int open_files(struct peft *p, const struct map_guard *guard, struct err *e)
{
    if (!source_has(p->path, config_name))
        return err_set(e, ERR_IO, "%s: has no %s, so it is no folder of a LoRA adapter", p->path, config_name);
    if (!source_has(p->path, tensors_name) && source_has(p->path, "adapter_model.bin"))
        return err_set(e, ERR_UNSUPPORTED, "%s: has adapter_model.bin, which can contain programs; save it as %s",
                       p->path, tensors_name);
    if (map_guarded(&p->config_map, p->path, config_name, guard, e) ||
        map_guarded(&p->map, p->path, tensors_name, guard, e))
        return -1;
    if (p->config_map.size > MAX_ADAPTER_CONFIG)
        return err_set(e, ERR_FORMAT, "%s: %zu bytes, expected at most %d", p->config_map.path, p->config_map.size,
                       MAX_ADAPTER_CONFIG);
    if (!(p->config = js_parse_python(p->config_map.path, p->config_map.data, p->config_map.size, e)))
        return -1;
    if (!json_is_object(p->config))
        return err_set(e, ERR_FORMAT, "%s: found %s, expected an object", p->config_map.path, js_kind(p->config));
    if (safetensors_index(&p->map, 0, &p->tensors, &p->n_tensors, e))
        return -1;
    qsort(p->tensors, (size_t)p->n_tensors, sizeof *p->tensors, by_name);
    return read_modules(p, e);
}

struct peft *peft_open(const char *folder, const struct map_guard *guard, struct err *e)
{
    struct peft *p = calloc(1, sizeof *p);
    if (p && (p->path = strdup(folder))) {
        if (open_files(p, guard, e) == 0)
            return p;
    } else {
        err_nomem(e, folder);
    }
    peft_close(p, guard);
    return NULL;
}

void peft_close(struct peft *p, const struct map_guard *guard)
{
    if (!p)
        return;
    struct map *const maps[] = { &p->config_map, &p->map };
    for (int i = 0; i < 2; i++) {
        if (guard && guard->remove && maps[i]->path)
            guard->remove(maps[i]);
        map_close(maps[i]);
    }
    for (int i = 0; i < p->n_modules; i++)
        free(p->modules[i].name);
    for (int i = 0; i < p->n_tensors; i++)
        free((char *)p->tensors[i].name);
    for (int i = 0; i < p->n_copies; i++)
        free(p->copies[i].name);
    free(p->copies);
    free(p->modules);
    free(p->tensors);
    json_decref(p->config);
    free(p->path);
    free(p);
}

int peft_check(const struct peft *p, struct err *e)
{
    return map_check(&p->config_map, e) || map_check(&p->map, e) ? -1 : 0;
}
