/* packed.c - quantization_config, and the parts of each matrix put together. */
#include "libcommon/import/packed.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "libcommon/base/json.h"
#include "libcommon/base/suffix.h"
#include "libcommon/quant/ggml.h"

/* The quantization of some of the matrices, as the configuration describes it. */
enum strategy { BY_TENSOR, BY_CHANNEL, BY_GROUP, BY_BLOCK, BY_TENSOR_GROUP };
struct scheme {
    enum strategy strategy;
    int bits, is_float, symmetric;
    int64_t group_size, block[2];       /* group_size -1: a row */
};
static const struct scheme mxfp8_scheme = { .bits = 8, .is_float = 1, .symmetric = 1, .strategy = BY_GROUP,
                                            .group_size = 32 };
enum { MAX_SCHEMES = 16 };

struct packed_indexer {
    struct source *s;
    struct err *e;
    struct scheme schemes[MAX_SCHEMES];
    int n_schemes;
    int zero_add, needs_order, divide;
    char **rename;                      /* [n_tensors] new names, NULL: as it is */
    char *drop;                         /* [n_tensors] 1: part of another tensor, or does not
                                         * describe weights */
};

void packed_free(struct packed *p) { free(p); }

static int64_t div_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/* ---- the configuration ---- */

static int config_fail(const struct packed_indexer *x, const char *key, const char *what)
{
    return err_set(x->e, ERR_UNSUPPORTED, "%s: quantization_config: %s: %s", x->s->path, key, what);
}

/* Refuse every key of o that is not in `known` (which ends with NULL), unless its value is null,
 * false or empty. */
static int check_keys(const struct packed_indexer *x, const json_t *o, const char *const *known)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)o, key, v) {
        int i = 0;
        while (known[i] && strcmp(known[i], key) != 0)
            i++;
        int empty = json_is_null(v) || json_is_false(v) || (json_is_object(v) && !json_object_size(v)) ||
                    (json_is_array(v) && !json_array_size(v));
        if (!known[i] && !empty) {
            char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
            err_set(x->e, ERR_UNSUPPORTED, "%s: quantization_config: %s: %.60s is not understood", x->s->path, key,
                    text ? text : "?");
            free(text);
            return -1;
        }
    }
    return 0;
}

/* The index in `allowed` of the string at key (0 if absent), or -1 with *e if it is not there. */
static int one_of(const struct packed_indexer *x, const json_t *o, const char *key, const char *const *allowed)
{
    const char *found;
    if (js_string_or(o, key, allowed[0], &found, x->e) < 0)
        return err_prefix(x->e, "%s: quantization_config", x->s->path);
    for (int i = 0; allowed[i]; i++)
        if (strcasecmp(found, allowed[i]) == 0)
            return i;
    return err_set(x->e, ERR_UNSUPPORTED, "%s: quantization_config: %s: \"%.60s\" is not supported, expected \"%s\"%s%s%s", x->s->path, key, found, allowed[0],
                   allowed[1] ? " or \"" : "", allowed[1] ? allowed[1] : "", allowed[1] ? "\"" : "");
}

static int group_size_at(const struct packed_indexer *x, const json_t *o, const char *key, int64_t otherwise,
                         int64_t *out)
{
    if (js_int_or(o, key, -1, INT32_MAX, otherwise, out, x->e) < 0)
        return err_prefix(x->e, "%s: quantization_config", x->s->path);
    return *out == 0 ? config_fail(x, key, "0 is no size") : 0;
}

static int gptq_config(struct packed_indexer *x, const json_t *q)
{
    static const char *const known[] = { "quant_method", "bits", "group_size", "desc_act", "sym", "checkpoint_format",
                                         "format", "pack_dtype", "lm_head",
        /* settings of the quantizer and of other programs: ignored */
        "damp_percent", "damp_auto_increment", "static_groups", "true_sequential", "model_name_or_path",
            "model_file_base_name", "quantizer", "meta", "tokenizer",
        "dataset", "exllama_config", "use_exllama", "disable_exllama", "max_input_length", "cache_block_outputs",
        "modules_in_block_to_quantize", "block_name_to_quantize", "module_name_preceding_first_block", "batch_size",
        "pad_token_id", "use_cuda_fp16", "model_seqlen", "version", "backend",
        "act_group_aware", "mse", "uri", NULL };
    static const char *const formats[] = { "gptq", "gptq_v2", NULL }, *const words[] = { "int32", NULL };
    struct scheme *c = &x->schemes[x->n_schemes++];
    int64_t bits, order;
    int v2 = one_of(x, q, js_get(q, "checkpoint_format") ? "checkpoint_format" : "format", formats), desc;
    if (v2 < 0 || one_of(x, q, "pack_dtype", words) < 0 || check_keys(x, q, known) < 0)
        return -1;
    if (js_int(q, "bits", 1, 32, &bits, x->e) < 0 || js_bool_or(q, "desc_act", 0, &desc, x->e) < 0)
        return err_prefix(x->e, "%s: quantization_config", x->s->path);
    if (bits != 2 && bits != 4 && bits != 8)
        return err_set(x->e, ERR_UNSUPPORTED, "%s: quantization_config: bits: %" PRId64 ", expected 2, 4 or 8",
                       x->s->path, bits);
    order = desc;
    x->needs_order = (int)order;
    x->zero_add = !v2;
    *c = (struct scheme){ .bits = (int)bits };
    return group_size_at(x, q, "group_size", -1, &c->group_size);
}

static int awq_config(struct packed_indexer *x, const json_t *q)
{
    static const char *const known[] = { "quant_method", "bits", "w_bit", "group_size", "q_group_size", "zero_point",
                                         "version", "modules_to_not_convert", "backend", "do_fuse", "fuse_max_seq_len",
                                         "modules_to_fuse", "exllama_config", NULL };
    static const char *const versions[] = { "gemm", NULL };
    struct scheme *c = &x->schemes[x->n_schemes++];
    int64_t bits;
    if (one_of(x, q, "version", versions) < 0 || check_keys(x, q, known) < 0)
        return -1;
    if (js_int(q, js_get(q, "bits") ? "bits" : "w_bit", 1, 32, &bits, x->e) < 0)
        return err_prefix(x->e, "%s: quantization_config", x->s->path);
    if (bits != 4)
        return err_set(x->e, ERR_UNSUPPORTED, "%s: quantization_config: bits: %" PRId64 ", expected 4", x->s->path,
                       bits);
    *c = (struct scheme){ .bits = 4 };
    return group_size_at(x, q, js_get(q, "group_size") ? "group_size" : "q_group_size", 128, &c->group_size);
}

/* Read a key with the [rows, columns] that share a scale. */
static int block_at(const struct packed_indexer *x, const json_t *o, const char *key, int64_t block[2])
{
    const json_t *v = js_get(o, key);
    for (int i = 0; i < 2; i++) {
        const json_t *n = json_array_get(v, (size_t)i);
        block[i] = json_integer_value(n);
        if (json_array_size(v) != 2 || !json_is_integer(n) || block[i] < 1 || block[i] > INT32_MAX)
            return config_fail(x, key, "expected [rows, columns]");
    }
    return 0;
}

static int fp8_config(struct packed_indexer *x, const json_t *q)
{
    static const char *const known[] = { "quant_method", "fmt", "activation_scheme", "weight_block_size",
                                         "modules_to_not_convert", "ignored_layers", "scale_fmt", "activation_scale_ub",
                                         NULL };
    static const char *const formats[] = { "e4m3", "float8_e4m3fn", NULL },
        *const schemes[] = { "dynamic", "static", NULL };
    struct scheme *c = &x->schemes[x->n_schemes++];
    if (one_of(x, q, "fmt", formats) < 0 || one_of(x, q, "activation_scheme", schemes) < 0 ||
        check_keys(x, q, known) < 0)
        return -1;
    *c = (struct scheme){ .bits = 8, .is_float = 1, .symmetric = 1, .strategy = BY_TENSOR };
    if (js_get(q, "weight_block_size")) {
        c->strategy = BY_BLOCK;
        return block_at(x, q, "weight_block_size", c->block);
    }
    x->schemes[x->n_schemes] = *c;
    x->schemes[x->n_schemes++].strategy = BY_CHANNEL;
    return 0;
}

/* Scales are those of compressed-tensors: one for 32 columns of a row. */
static int mxfp8_config(struct packed_indexer *x, const json_t *q)
{
    if (fp8_config(x, q) < 0)
        return -1;
    if (!js_get(q, "weight_block_size")) {
        x->schemes[0] = mxfp8_scheme;
        x->n_schemes = 1;
    }
    return 0;
}

static int mxfp4_config(struct packed_indexer *x, const json_t *q)
{
    static const char *const known[] = { "quant_method", "modules_to_not_convert", "dequantize", NULL };
    return check_keys(x, q, known);
}

static int bitnet_config(struct packed_indexer *x, const json_t *q)
{
    static const char *const known[] = { "quant_method", "modules_to_not_convert", "linear_class", "quantization_mode",
                                         "rms_norm_eps", NULL };
    static const char *const classes[] = { "bitlinear", "autobitlinear", NULL },
        *const modes[] = { "offline", "online", NULL };
    int c = one_of(x, q, "linear_class", classes);
    if (c < 0 || one_of(x, q, "quantization_mode", modes) < 0 || check_keys(x, q, known) < 0)
        return -1;
    x->divide = c == 0;
    return 0;
}

/* Refuse any group_size but this one: NVFP4 has 16, MXFP8 32. */
static int group_size_is(const struct packed_indexer *x, const json_t *o, int expected)
{
    int64_t size;
    if (group_size_at(x, o, "group_size", expected, &size) < 0)
        return -1;
    return size == expected ? 0 : err_set(x->e, ERR_UNSUPPORTED, "%s: quantization_config: group_size: %" PRId64
                                          ", expected %d", x->s->path, size, expected);
}

/* "weights" of one of compressed-tensors' config_groups. */
static int ct_weights(struct packed_indexer *x, const json_t *w)
{
    static const char *const known[] = { "num_bits", "type", "strategy", "group_size", "symmetric", "dynamic",
                                         "actorder", "block_structure", "observer", "observer_kwargs", "scale_dtype",
                                         "zp_dtype", NULL };
    static const char *const types[] = { "int", "float", NULL },
        *const strategies[] = { "tensor", "channel", "group", "block", "tensor_group", NULL };
    struct scheme *c = &x->schemes[x->n_schemes++];
    int64_t bits;
    *c = (struct scheme){ .group_size = -1 };
    int type = one_of(x, w, "type", types), strategy = one_of(x, w, "strategy", strategies);
    if (type < 0 || strategy < 0 || check_keys(x, w, known) < 0)
        return -1;
    if (js_int_or(w, "num_bits", 1, 32, 8, &bits, x->e) < 0 || js_bool_or(w, "symmetric", 1, &c->symmetric, x->e) < 0)
        return err_prefix(x->e, "%s: quantization_config: weights", x->s->path);
    if (json_is_true(js_get(w, "dynamic")))
        return config_fail(x, "weights.dynamic", "true makes no sense for weights");
    c->bits = (int)bits;
    c->is_float = type;
    c->strategy = (enum strategy)strategy;
    if (strategy == BY_TENSOR_GROUP)                    /* NVFP4 has no other parameters */
        return bits == 4 && type ? group_size_is(x, w, 16) : config_fail(x, "weights.strategy", "tensor_group is for float of 4 bits");
    if (bits != 8 && (bits != 4 || type))
        return err_set(x->e, ERR_UNSUPPORTED, "%s: quantization_config: weights.num_bits: %s of %" PRId64
                       " bits, expected int of 4 or 8, or float of 8", x->s->path, types[type], bits);
    if (strategy == BY_GROUP)
        return group_size_at(x, w, "group_size", 128, &c->group_size);
    return strategy == BY_BLOCK ? block_at(x, w, "block_structure", c->block) : 0;
}

static int ct_config(struct packed_indexer *x, const json_t *q)
{
    /* the quantization of activations and of the KV cache is ignored, as we compute with floats or
     * int8 */
    static const char *const known[] = { "quant_method", "format", "config_groups", "ignore", "quantization_status",
                                         "global_compression_ratio", "kv_cache_scheme", "sparsity_config", "version",
                                         NULL };
    static const char *const group_keys[] = { "weights", "targets", "input_activations", "output_activations", "format",
                                              NULL };
    static const char *const formats[] = { "pack-quantized", "int-quantized", "float-quantized", "naive-quantized",
                                           "mixed-precision", "nvfp4-pack-quantized", "mxfp8-quantized", NULL };
    static const char *const sparsities[] = { "dense", NULL };
    const json_t *groups = js_get(q, "config_groups");
    const char *name;
    json_t *g;
    if (one_of(x, q, "format", formats) < 0 || check_keys(x, q, known) < 0 ||
        (js_get(q, "sparsity_config") && one_of(x, js_get(q, "sparsity_config"), "format", sparsities) < 0))
        return -1;
    if (!json_is_object(groups) || !json_object_size(groups))
        return config_fail(x, "config_groups", "expected an object that is not empty");
    json_object_foreach((json_t *)groups, name, g) {
        const json_t *w = js_get(g, "weights");
        if (x->n_schemes == MAX_SCHEMES)
            return config_fail(x, "config_groups", "more than 16");
        if (!json_is_object(w))
            return config_fail(x, name, "weights is missing");
        if (check_keys(x, g, group_keys) < 0 || one_of(x, g, "format", formats) < 0 || ct_weights(x, w) < 0)
            return -1;
    }
    return 0;
}

/* ModelOpt: quantization_config in config.json, or "quantization" in hf_quant_config.json. */
static int modelopt_config(struct packed_indexer *x, const json_t *q)
{
    /* ignored: the quantization of activations and of the KV cache, and the list of matrices that
     * are not quantized, which follows from the tensors */
    static const char *const known[] = { "quant_method", "quant_algo", "config_groups", "ignore", "kv_cache_scheme",
                                         "producer", "group_size", "kv_cache_quant_algo", "exclude_modules",
                                         NULL };
    static const char *const algorithms[] = { "nvfp4", "mxfp8", NULL };
    const int mxfp8 = one_of(x, q, "quant_algo", algorithms);
    if (mxfp8 < 0 || check_keys(x, q, known) < 0)
        return -1;
    x->schemes[x->n_schemes++] = mxfp8_scheme;
    return group_size_is(x, q, mxfp8 ? 32 : 16);
}

/* ---- the parts of a matrix ---- */

static void shape_text(char *out, size_t room, const struct source_tensor *t)
{
    size_t at = (size_t)snprintf(out, room, "[");
    for (int i = 0; i < t->n_dims && at < room; i++)
        at += (size_t)snprintf(out + at, room - at, "%s%" PRId64, i ? ", " : "", t->dim[i]);
    if (at < room)
        snprintf(out + at, room - at, "]");
}

static int part_fail(const struct packed_indexer *x, const struct source_tensor *t, const char *expected)
{
    char shape[112];
    shape_text(shape, sizeof shape, t);
    return err_set(x->e, ERR_SHAPE, "%s: tensor %s: %s of %s, expected %s", x->s->path, t->name, shape,
                   ggml_type_info(t->type)->name, expected);
}

/* Returns the tensor that has the name of `main` with another ending, and removes it from the list.
 * NULL if there is none, with *e if it is required. */
static const struct source_tensor *beside(const struct packed_indexer *x, const struct source_tensor *main, size_t stem,
                                          const char *end, int required)
{
    char name[512];
    if (snprintf(name, sizeof name, "%.*s%s", (int)stem, main->name, end) >= (int)sizeof name) {
        err_set(x->e, ERR_SHAPE, "%s: tensor %s: its name is too long", x->s->path, main->name);
        return NULL;
    }
    const struct source_tensor *t = source_find(x->s, name);
    if (t)
        x->drop[t - x->s->tensors] = 1;
    else if (required)
        err_set(x->e, ERR_FORMAT, "%s: tensor %s: %s is missing", x->s->path, main->name, name);
    return t;
}

static int is_float(const struct source_tensor *t)
{
    return t->type == GGML_F32 || t->type == GGML_F16 || t->type == GGML_BF16;
}

static int has_dims(const struct source_tensor *t, int n, int64_t a, int64_t b, int64_t c)
{
    const int64_t want[] = { a, b, c };
    return t->n_dims == n && memcmp(t->dim, want, (size_t)n * sizeof *want) == 0;
}

static void part_set(struct source_tensor *part, const struct source_tensor *t)
{
    *part = *t;
    part->name = NULL;                  /* the name is freed with the list of tensors */
}

/* Take a part, which must have the shape [a, b] (n 1: [a]) and consist of 32-bit words, or of
 * floats. */
static int part_take(const struct packed_indexer *x, struct source_tensor *part, const struct source_tensor *t,
                     int words, int n, int64_t a, int64_t b)
{
    char want[96];
    if (n == 1)
        snprintf(want, sizeof want, "[%" PRId64 "] of %s", a, words ? "I32" : "F32, F16 or BF16");
    else
        snprintf(want, sizeof want, "[%" PRId64 ", %" PRId64 "] of %s", a, b, words ? "I32" : "F32, F16 or BF16");
    if (!has_dims(t, n, a, b, 0) || (words ? t->type != GGML_I32 && t->type != SRC_U32 : !is_float(t)))
        return part_fail(x, t, want);
    part_set(part, t);
    return 0;
}

/* Take g_idx, the group of each input.  It is dropped if the groups are consecutive runs of inputs,
 * which is the meaning of a missing g_idx. */
static int order_take(const struct packed_indexer *x, struct packed *p, const struct source_tensor *t)
{
    int plain = 1;
    if (part_take(x, &p->order, t, 1, 1, p->cols, 0) < 0)
        return -1;
    for (int64_t k = 0; k < p->cols; k++) {
        int32_t g;
        memcpy(&g, t->data + 4 * (size_t)k, 4);
        if (g < 0 || g >= p->n_groups)
            return err_set(x->e, ERR_FORMAT, "%s: tensor %s: element %" PRId64 " is %" PRId32 ", expected 0 to %"
                           PRId64, x->s->path, t->name, k, g, p->n_groups - 1);
        plain &= g == k / p->col_group;
    }
    if (plain)
        p->order = (struct source_tensor){ 0 };
    return 0;
}

/* Take a matrix of GPTQ or AWQ: codes in 32-bit words; scales, and zero points in words, for each
 * group and row. */
static int grouped_take(struct packed_indexer *x, struct packed *p, const struct source_tensor *main, size_t stem)
{
    const struct scheme *c = &x->schemes[0];
    const struct source_tensor *scales = beside(x, main, stem, ".scales", 1),
                               *zeros = scales ? beside(x, main, stem, ".qzeros", 1) : NULL;
    const int64_t per = 32 / c->bits;
    const int gptq = p->layout == PACKED_GPTQ;
    if (!zeros)
        return -1;
    if (main->n_dims != 2 || main->type != GGML_I32 || main->dim[0] < 1 || main->dim[1] < 1 ||
        main->dim[gptq ? 0 : 1] > INT32_MAX / per)
        return part_fail(x, main, "a matrix of I32");
    part_set(&p->code, main);
    p->bits = c->bits;
    p->cols = gptq ? main->dim[0] * per : main->dim[0];
    p->rows = gptq ? main->dim[1] : main->dim[1] * per;
    p->col_group = c->group_size < 0 || c->group_size > p->cols ? p->cols : c->group_size;
    p->n_groups = div_up(p->cols, p->col_group);
    p->row_group = 1;
    p->row_step = 1;
    p->group_step = p->rows;
    p->zero_add = x->zero_add;
    if (part_take(x, &p->scale, scales, 0, 2, p->n_groups, p->rows) < 0 ||
        part_take(x, &p->zeros, zeros, 1, 2, p->n_groups, div_up(p->rows, per)) < 0)
        return -1;
    const struct source_tensor *order = gptq ? beside(x, main, stem, ".g_idx", x->needs_order) : NULL;
    return order ? order_take(x, p, order) : gptq && x->needs_order ? -1 : 0;
}

/* Returns 1 if the shape of scales t fits a matrix of p's size under scheme c, and then sets the
 * fields of p that locate the scale of an element. */
static int scales_fit(struct packed *p, const struct source_tensor *t, const struct scheme *c)
{
    const int single = t->size == (size_t)ggml_type_info(t->type)->block_bytes;
    p->row_group = 1;
    p->col_group = p->cols;
    p->row_step = 1;
    p->group_step = 0;
    switch (c->strategy) {
    case BY_TENSOR_GROUP:               /* nvfp4_take() checks the scales itself */
        return 0;
    case BY_TENSOR:
        p->row_group = p->rows;
        p->row_step = 0;
        p->n_groups = 1;
        return single;
    case BY_CHANNEL:
        p->n_groups = 1;
        return has_dims(t, 1, p->rows, 0, 0) || has_dims(t, 2, p->rows, 1, 0);
    case BY_GROUP:
        p->col_group = c->group_size < 0 || c->group_size > p->cols ? p->cols : c->group_size;
        break;
    case BY_BLOCK:
        p->row_group = c->block[0];
        p->col_group = c->block[1];
    }
    p->n_groups = p->row_step = div_up(p->cols, p->col_group);
    p->group_step = 1;
    return has_dims(t, 2, div_up(p->rows, p->row_group), p->n_groups, 0);
}

/* 1 if scales may have the type of t: floats, or e8m0, which is also stored as U8 for MXFP8. */
static int scale_type_fits(const struct packed *p, const struct source_tensor *t)
{
    const int mxfp8 = p->layout == PACKED_F8 && p->row_group == 1 && p->col_group == 32;
    return is_float(t) || (p->layout == PACKED_F8 && t->type == SRC_F8_E8M0) || (mxfp8 && t->type == SRC_U8);
}

/* The first scheme whose bits and scales fit; p->rows and cols are set. */
static const struct scheme *scheme_of(const struct packed_indexer *x, struct packed *p,
                                      const struct source_tensor *main, const struct source_tensor *scale, int floats)
{
    for (int i = 0; i < x->n_schemes; i++) {
        const struct scheme *c = &x->schemes[i];
        if (c->is_float == floats && (p->layout != PACKED_WORDS || main->dim[1] == div_up(p->cols, 32 / c->bits)) &&
            scales_fit(p, scale, c) && scale_type_fits(p, scale))
            return c;
    }
    char a[112], b[112];
    shape_text(a, sizeof a, main);
    shape_text(b, sizeof b, scale);
    err_set(x->e, ERR_SHAPE, "%s: tensor %s: %s with scales %s of %s fits nothing that quantization_config says",
            x->s->path, main->name, a, b, ggml_type_info(scale->type)->name);
    return NULL;
}

/* Read compressed-tensors' weight_shape, the shape of the matrix before packing. */
static int shape_take(const struct packed_indexer *x, struct packed *p, const struct source_tensor *t)
{
    float size[2];
    if (!has_dims(t, 1, 2, 0, 0) || (t->type != GGML_I32 && t->type != GGML_I64))
        return part_fail(x, t, "[2] of I32 or I64");
    ggml_decode(t->type, t->data, size, 2);
    p->rows = (int64_t)size[0];
    p->cols = (int64_t)size[1];
    return p->rows < 1 || p->cols < 1 || p->rows > 1 << 24 || p->cols > 1 << 24
               ? err_set(x->e, ERR_FORMAT, "%s: tensor %s: %g x %g is no size of a matrix", x->s->path, t->name,
                         (double)size[0], (double)size[1]) : 0;
}

static int words_take(struct packed_indexer *x, struct packed *p, const struct source_tensor *main, size_t stem)
{
    const struct source_tensor *shape = beside(x, main, stem, ".weight_shape", 1),
                               *scale = shape ? beside(x, main, stem, ".weight_scale", 1) : NULL;
    const struct source_tensor *zeros = beside(x, main, stem, ".weight_zero_point", 0),
                               *order = beside(x, main, stem, ".weight_g_idx", 0);
    if (!scale || shape_take(x, p, shape) < 0)
        return -1;
    if (main->n_dims != 2 || main->type != GGML_I32 || main->dim[0] != p->rows)
        return part_fail(x, main, "a matrix of I32 with as many rows as weight_shape says");
    const struct scheme *c = scheme_of(x, p, main, scale, 0);
    if (!c)
        return -1;
    part_set(&p->code, main);
    part_set(&p->scale, scale);
    p->bits = c->bits;
    p->zero = 1 << (c->bits - 1);
    if (!c->symmetric && !zeros)
        return err_set(x->e, ERR_FORMAT, "%s: tensor %s: weight_zero_point is missing", x->s->path, main->name);
    if (zeros && part_take(x, &p->zeros, zeros, 1, 2, div_up(p->rows, 32 / c->bits), p->n_groups) < 0)
        return -1;
    return order ? order_take(x, p, order) : 0;
}

/* Take a plain matrix of 8-bit numbers with scales beside it. */
static int bytes_take(struct packed_indexer *x, struct packed *p, const struct source_tensor *main, size_t stem)
{
    const int floats = p->layout == PACKED_F8;
    const struct source_tensor *scale = floats ? beside(x, main, stem, ".weight_scale_inv", 0) : NULL,
                               *zeros = beside(x, main, stem, ".weight_zero_point", 0);
    if (floats && !scale)
        scale = beside(x, main, stem, ".scale", 0);                 /* DeepSeek V4 */
    if (!scale && !(scale = beside(x, main, stem, ".weight_scale", 1)))
        return -1;
    if (main->n_dims != 2 || main->dim[0] < 1 || main->dim[1] < 1)
        return part_fail(x, main, "a matrix");
    p->rows = main->dim[0];
    p->cols = main->dim[1];
    p->bits = 8;
    const struct scheme *c = scheme_of(x, p, main, scale, floats);
    if (!c)
        return -1;
    part_set(&p->code, main);
    part_set(&p->scale, scale);
    if (!is_float(scale)) {
        p->scale.type = SRC_F8_E8M0;
        p->layout = p->row_group == 1 && p->col_group == 32 ? PACKED_MXFP8 : PACKED_F8;
    }
    if (!c->symmetric && !zeros)
        return err_set(x->e, ERR_FORMAT, "%s: tensor %s: weight_zero_point is missing", x->s->path, main->name);
    if (zeros && !floats && (zeros->type != GGML_I8 || zeros->n_dims != scale->n_dims ||
                             memcmp(zeros->dim, scale->dim, sizeof zeros->dim) != 0))
        return part_fail(x, zeros, "I8 in the shape of the scales");
    if (zeros && !floats)
        part_set(&p->zeros, zeros);
    return 0;
}

/* Set the fields of p that locate the E8M0 scales of groups of 32. */
static void mxfp4_set(struct packed *p, const struct source_tensor *main, const struct source_tensor *scale)
{
    part_set(&p->code, main);
    part_set(&p->scale, scale);
    p->scale.type = SRC_F8_E8M0;
    p->bits = 4;
    p->row_group = 1;
    p->col_group = 32;
    p->row_step = p->n_groups = p->cols / 32;
    p->group_step = 1;
}

static int mxfp4_take(struct packed_indexer *x, struct packed *p, const struct source_tensor *main, size_t stem)
{
    const struct source_tensor *scale = beside(x, main, stem, "_scales", 1);
    if (!scale)
        return -1;
    if (main->n_dims != 4 || main->type != SRC_U8 || main->dim[3] != 16 || main->size == 0 ||
        main->dim[2] > INT32_MAX / 32)
        return part_fail(x, main, "[experts, rows, groups, 16] of U8");
    if (!has_dims(scale, 3, main->dim[0], main->dim[1], main->dim[2]) || scale->type != SRC_U8)
        return part_fail(x, scale, "U8 in the shape of the blocks, without their last dimension");
    p->expert_rows = main->dim[1];
    p->rows = main->dim[0] * main->dim[1];
    p->cols = main->dim[2] * 32;
    mxfp4_set(p, main, scale);
    return 0;
}

/* Take a matrix of MXFP4, which DeepSeek V4 stores as bytes with two codes. */
static int fp4_take(struct packed_indexer *x, struct packed *p, const struct source_tensor *main, size_t stem)
{
    const struct source_tensor *scale = beside(x, main, stem, ".scale", 1);
    if (!scale)
        return -1;
    if (main->n_dims != 2 || main->size == 0 || main->dim[1] > INT32_MAX / 2 || main->dim[1] % 16)
        return part_fail(x, main, "a matrix with 16 bytes for each group of 32");
    p->rows = main->dim[0];
    p->cols = main->dim[1] * 2;
    if (!has_dims(scale, 2, p->rows, p->cols / 32, 0) || (scale->type != SRC_F8_E8M0 && scale->type != SRC_U8))
        return part_fail(x, scale, "F8_E8M0 or U8 in the shape of the groups");
    mxfp4_set(p, main, scale);
    return 0;
}

/* Take the f32 scale of the whole matrix; compressed-tensors stores its reciprocal. */
static int tensor_scale_take(const struct packed_indexer *x, struct packed *p, const struct source_tensor *t,
                             int reciprocal)
{
    if (t->type != GGML_F32 || t->size != sizeof(float))
        return part_fail(x, t, "one number of F32");
    memcpy(&p->tensor_scale, t->data, sizeof(float));
    if (reciprocal)
        p->tensor_scale = 1 / p->tensor_scale;
    if (!(p->tensor_scale > 0 && p->tensor_scale < INFINITY))
        return err_set(x->e, ERR_FORMAT, "%s: tensor %s: its value is no scale", x->s->path, t->name);
    return 0;
}

static int nvfp4_take(struct packed_indexer *x, struct packed *p, const struct source_tensor *main, size_t stem)
{
    const int reciprocal = ends_with(main->name, "_packed");
    const struct source_tensor *scale = beside(x, main, stem, ".weight_scale", 1), *whole = !scale ? NULL
        : beside(x, main, stem, reciprocal ? ".weight_global_scale" : ".weight_scale_2", 1);
    if (!whole)
        return -1;
    if (main->n_dims != 2 || main->size == 0 || main->dim[1] > INT32_MAX / 2 || main->dim[1] % 8)
        return part_fail(x, main, "a matrix of U8 with 8 bytes for each group of 16");
    p->bits = 4;
    p->rows = main->dim[0];
    p->cols = main->dim[1] * 2;
    p->row_group = p->group_step = 1;
    p->col_group = 16;
    p->row_step = p->n_groups = p->cols / 16;
    if (!has_dims(scale, 2, p->rows, p->n_groups, 0) || scale->type != SRC_F8_E4M3)
        return part_fail(x, scale, "F8_E4M3 in the shape of the groups");
    part_set(&p->code, main);
    part_set(&p->scale, scale);
    return tensor_scale_take(x, p, whole, reciprocal);
}

static int ternary_take(struct packed_indexer *x, struct packed *p, const struct source_tensor *main, size_t stem)
{
    static const struct scheme whole = { .strategy = BY_TENSOR };
    const struct source_tensor *scale = beside(x, main, stem, ".weight_scale", 1);
    if (!scale)
        return -1;
    if (main->n_dims != 2 || main->size == 0 || main->dim[0] > INT32_MAX / 4)
        return part_fail(x, main, "a matrix");
    p->rows = main->dim[0] * 4;
    p->cols = main->dim[1];
    p->bits = 2;
    p->divide = x->divide;
    part_set(&p->code, main);
    part_set(&p->scale, scale);
    return is_float(scale) && scales_fit(p, scale, &whole) ? 0 : part_fail(x, scale, "one number");
}

/* ---- the checkpoint ---- */

struct packed_kind {
    const char *end;                    /* end of the name of the codes */
    int from[2];                        /* types that the codes may have */
    const char *name;                   /* takes the place of `end` */
    int type;
    enum packed_layout layout;
    int (*take)(struct packed_indexer *x, struct packed *p, const struct source_tensor *main, size_t stem);
};

static const struct packed_kind gptq_kinds[] = {
    { ".qweight", { GGML_I32, GGML_I32 }, ".weight", SRC_GPTQ, PACKED_GPTQ, grouped_take }, { 0 },
};
static const struct packed_kind awq_kinds[] = {
    { ".qweight", { GGML_I32, GGML_I32 }, ".weight", SRC_AWQ, PACKED_AWQ, grouped_take }, { 0 },
};
static const struct packed_kind fp8_kinds[] = {
    { ".weight", { SRC_F8_E4M3, SRC_F8_E5M2 }, ".weight", SRC_F8_BLOCK, PACKED_F8, bytes_take },
    { ".weight", { GGML_I8, SRC_U8 }, ".weight", SRC_MXFP4_BLOCKS, PACKED_MXFP4, fp4_take }, { 0 },
};
static const struct packed_kind mxfp4_kinds[] = {
    { "_blocks", { SRC_U8, SRC_U8 }, "", SRC_MXFP4_BLOCKS, PACKED_MXFP4, mxfp4_take }, { 0 },
};
static const struct packed_kind bitnet_kinds[] = {
    { ".weight", { SRC_U8, SRC_U8 }, ".weight", SRC_BITNET, PACKED_TERNARY, ternary_take }, { 0 },
};
static const struct packed_kind modelopt_kinds[] = {
    { ".weight", { SRC_U8, SRC_U8 }, ".weight", SRC_NVFP4_BLOCKS, PACKED_NVFP4, nvfp4_take },
    { ".weight", { SRC_F8_E4M3, SRC_F8_E4M3 }, ".weight", SRC_F8_BLOCK, PACKED_F8, bytes_take }, { 0 },
};
static const struct packed_kind ct_kinds[] = {
    { ".weight_packed", { GGML_I32, GGML_I32 }, ".weight", SRC_CT_INT, PACKED_WORDS, words_take },
    { ".weight_packed", { SRC_U8, SRC_U8 }, ".weight", SRC_NVFP4_BLOCKS, PACKED_NVFP4, nvfp4_take },
    { ".weight", { GGML_I8, GGML_I8 }, ".weight", SRC_CT_INT, PACKED_I8, bytes_take },
    { ".weight", { SRC_F8_E4M3, SRC_F8_E5M2 }, ".weight", SRC_CT_F8, PACKED_F8, bytes_take }, { 0 },
};

static const struct packed_method {
    const char *name;
    int (*config)(struct packed_indexer *x, const json_t *q);
    const struct packed_kind *kinds;
} methods[] = {
    { "compressed-tensors", ct_config, ct_kinds }, { "fp8", fp8_config, fp8_kinds },
    { "mxfp8", mxfp8_config, fp8_kinds }, { "mxfp4", mxfp4_config, mxfp4_kinds },
    { "gptq", gptq_config, gptq_kinds }, { "awq", awq_config, awq_kinds }, { "bitnet", bitnet_config, bitnet_kinds },
    { "modelopt", modelopt_config, modelopt_kinds },
};

/* Make one tensor of the codes at index i and the tensors with their scales, zero points and
 * order. */
static int join(struct packed_indexer *x, int i, const struct packed_kind *k)
{
    struct source_tensor *t = &x->s->tensors[i];
    const size_t stem = strlen(t->name) - strlen(k->end);
    struct packed *p = calloc(1, sizeof *p);
    if (!p)
        return err_nomem(x->e, t->name);
    p->layout = k->layout;
    p->tensor_scale = 1;
    if (k->take(x, p, t, stem) < 0) {
        packed_free(p);
        return -1;
    }
    t->packed = p;
    t->type = p->layout == PACKED_MXFP8 ? SRC_MXFP8_BLOCKS : k->type;
    t->n_dims = p->expert_rows ? 3 : 2;
    t->dim[0] = p->expert_rows ? p->rows / p->expert_rows : p->rows;
    t->dim[1] = p->cols;
    t->dim[2] = p->expert_rows;
    t->dim[3] = 0;
    return asprintf(&x->rename[i], "%.*s%s", (int)stem, t->name, k->name) < 0 ? err_nomem(x->e, t->name) : 0;
}

/* Returns 1 for scales of activations and of the KV cache, which only programs that compute in
 * these formats use. */
static int is_beside_weights(const char *name)
{
    static const char *const ends[] = { ".input_scale", ".output_scale", ".input_zero_point", ".output_zero_point",
                                        ".input_global_scale", ".k_scale", ".v_scale", ".q_scale",
                                        ".activation_scale" };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(name, ends[i]))
            return 1;
    return 0;
}

static int join_all(struct packed_indexer *x, const struct packed_method *m)
{
    for (int i = 0; i < x->s->n_tensors; i++) {
        const struct source_tensor *t = &x->s->tensors[i];
        if (x->drop[i])
            continue;
        x->drop[i] = (char)is_beside_weights(t->name);
        for (const struct packed_kind *k = m->kinds; k->end && !t->packed; k++)
            if (ends_with(t->name, k->end) && (t->type == k->from[0] || t->type == k->from[1]) && join(x, i, k) < 0)
                return -1;
    }
    return 0;
}

/* Remove the tensors that became parts of others from the list, and rename the joined ones. */
static void close_ranks(struct packed_indexer *x)
{
    int n = 0;
    for (int i = 0; i < x->s->n_tensors; i++) {
        struct source_tensor *t = &x->s->tensors[i];
        if (x->drop[i] || x->rename[i]) {
            free((char *)t->name);
            t->name = x->rename[i];
            x->rename[i] = NULL;
        }
        if (!x->drop[i])
            x->s->tensors[n++] = *t;
    }
    x->s->n_tensors = n;
}

void packed_config_from(json_t *config, json_t *file)
{
    json_t *q = js_get(file, "quantization");
    if (!json_is_string(js_get(q, "quant_algo")) || js_get(config, "quantization_config") ||
        js_get(config, "compression_config"))
        return;
    json_object_set_new(q, "quant_method", json_string("modelopt"));
    json_object_set(config, "quantization_config", q);
}

static const struct packed_method *method_of(const json_t *q)
{
    const char *name = json_string_value(js_get(q, "quant_method"));
    for (size_t i = 0; name && i < sizeof methods / sizeof *methods; i++)
        if (strcmp(methods[i].name, name) == 0)
            return &methods[i];
    return NULL;
}

int packed_config_take(json_t *config)
{
    const char *key = js_get(config, "quantization_config") ? "quantization_config" : "compression_config";
    return method_of(js_get(config, key)) && json_object_del(config, key) == 0;
}

int packed_config(struct source *s, struct err *e)
{
    char *path;
    if (js_get(s->config, "quantization_config") || js_get(s->config, "compression_config"))
        return 0;
    if (asprintf(&path, "%s/hf_quant_config.json", s->path) < 0)
        return err_nomem(e, "a path");
    json_t *file = access(path, R_OK) == 0 ? js_load(path, 1 << 20, e) : NULL;
    const int rc = access(path, R_OK) == 0 && !file ? -1 : 0;
    packed_config_from(s->config, file);
    json_decref(file);
    free(path);
    return rc;
}

int packed_index(struct source *s, struct err *e)
{
    const char *key = "quantization_config";
    json_t *q = js_get(s->config, key);
    if (!q && (q = js_get(s->config, "compression_config")))
        key = "compression_config";
    const struct packed_method *m = method_of(q);
    if (!m)
        return 0;
    struct packed_indexer x = { .s = s, .e = e };
    x.rename = calloc((size_t)s->n_tensors + 1, sizeof *x.rename);
    x.drop = calloc((size_t)s->n_tensors + 1, 1);
    int rc = x.rename && x.drop ? 0 : err_nomem(e, "tensor names");
    if (rc == 0 && (m->config(&x, q) < 0 || join_all(&x, m) < 0))
        rc = -1;
    if (rc == 0) {
        close_ranks(&x);
        s->quantization = json_incref(q);
        json_object_del(s->config, key);
    }
    for (int i = 0; x.rename && rc < 0 && i < s->n_tensors; i++)
        free(x.rename[i]);
    free(x.rename);
    free(x.drop);
    return rc;
}
