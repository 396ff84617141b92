/* rope.c - frequencies of rotary positions (arXiv:2104.09864) and their variants for longer
 * contexts: linear (arXiv:2306.15595), YaRN (arXiv:2309.00071), LongRoPE (arXiv:2402.13753), Llama
 * 3.1's, and a larger base.  Computed in f32 in the order of transformers: at large positions the
 * last bit of a frequency affects several bits of the angle. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/model/arch.h"

/* mrope_: the pairs of dimensions that rotate by time, height and width in an image.  In text the
 * three positions are equal, so these keys have no effect. */
static const char *const rope_ignored[] = { "finetuned", "type", "mrope_section", "mrope_interleaved", NULL };

static void linear(struct parse *p, struct rope *r)
{
    float factor = (float)parse_real(p, "factor", 0);
    if (!(factor > 0))
        parse_fail(p, ERR_FORMAT, "rope_type \"linear\" without a positive factor");
    for (int i = 0; i < r->dim / 2; i++)
        r->inv_freq[i] /= factor;
}

/* A larger base for contexts longer than max_position_embeddings, which do not occur here. */
static void dynamic(struct parse *p, const struct config *c)
{
    parse_find(p, "factor", NULL);
    if (parse_int(p, "original_max_position_embeddings", 1, INT32_MAX, c->max_len) < c->max_len)
        parse_fail(p, ERR_UNSUPPORTED, "rope_type \"dynamic\" with original_max_position_embeddings below max_position_embeddings %d is not supported", c->max_len);
}

/* Llama 3.1: divide frequencies with wavelengths longer than the training context, with a smooth
 * transition. */
static void llama3(struct parse *p, struct rope *r, double original)
{
    const double pi = acos(-1);
    double factor = parse_real(p, "factor", 8), low = parse_real(p, "low_freq_factor", 1),
           high = parse_real(p, "high_freq_factor", 4);
    original = parse_real(p, "original_max_position_embeddings", original);
    if (!(factor > 0 && low > 0 && high >= low && original > 0))
        parse_fail(p, ERR_FORMAT, "rope_type \"llama3\": factor %g, low_freq_factor %g, high_freq_factor %g do not fit together", factor, low, high);
    for (int i = 0; i < r->dim / 2 && !p->bad; i++) {
        float f = r->inv_freq[i], wave = (float)(2 * pi) / f;
        if (wave < (float)(original / high))
            continue;
        float divided = f / (float)factor;
        float smooth = ((float)original / wave - (float)low) / (float)(high - low);
        r->inv_freq[i] = wave > (float)(original / low) ? divided : (1 - smooth) * divided + smooth * f;
    }
}

/* The dimension that makes `turns` rotations over the training context. */
static double yarn_dim(double turns, int dim, double theta, double original)
{
    return dim * log(original / (turns * 2 * acos(-1))) / (2 * log(theta));
}

static double mscale(double factor, double m) { return factor <= 1 ? 1 : 0.1 * m * log(factor) + 1; }

static void yarn(struct parse *p, struct config *c, struct rope *r, double theta, double original)
{
    const double max_len = c->max_len;
    original = parse_real(p, "original_max_position_embeddings", original);
    double factor = parse_real(p, "factor", original > 0 ? max_len / original : 0);
    double m = parse_real(p, "mscale", 0), m_all = parse_real(p, "mscale_all_dim", 0),
           given = parse_real(p, "attention_factor", 0);
    double fast = parse_real(p, "beta_fast", 32), slow = parse_real(p, "beta_slow", 1);
    int truncate = parse_bool(p, "truncate", 1);
    if (!(factor > 0 && original > 0 && theta > 1 && fast > 0 && slow > 0)) {
        parse_fail(p, ERR_FORMAT, "rope_type \"yarn\": factor %g, original_max_position_embeddings %g, beta_fast %g, beta_slow %g, expected positive numbers",
                   factor, original, fast, slow);
        return;
    }
    r->scale = (float)(given > 0 ? given : m != 0 && m_all != 0 ? mscale(factor, m) / mscale(factor, m_all)
                                                                : mscale(factor, 1));
    /* deepseek: scores are also multiplied by the square of this factor */
    if (c->mla.kv_rank && m_all != 0)
        c->attn_scale *= (float)(mscale(factor, m_all) * mscale(factor, m_all));
    double low = yarn_dim(fast, r->dim, theta, original), high = yarn_dim(slow, r->dim, theta, original);
    if (truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = low > 0 ? low : 0;
    high = high < r->dim - 1 ? high : r->dim - 1;
    if (low == high)
        high += 0.001;
    for (int i = 0; i < r->dim / 2; i++) {
        float ramp = ((float)i - (float)low) / (float)(high - low);
        float keep = 1 - (ramp < 0 ? 0 : ramp > 1 ? 1 : ramp);
        float wave = 1 / r->inv_freq[i];
        r->inv_freq[i] = 1 / ((float)factor * wave) * (1 - keep) + r->inv_freq[i] * keep;
    }
}

/* f[i] = 1 / (factors[i] * theta^(2i/dim)) */
static float *factored(struct parse *p, const struct rope *r, const char *key, double theta)
{
    const json_t *factors = parse_find(p, key, NULL);
    const size_t n = (size_t)r->dim / 2;
    if (!json_is_array(factors) || json_array_size(factors) != n) {
        parse_fail(p, ERR_FORMAT, "%s: expected an array of %zu factors, one for each pair of rotated dimensions", key,
                   n);
        return NULL;
    }
    float *f = malloc(n * sizeof *f);
    if (!f) {
        err_nomem(p->e, "RoPE frequencies");
        p->bad = 1;
        return NULL;
    }
    for (size_t i = 0; i < n; i++) {
        double factor = json_number_value(json_array_get(factors, i));
        if (!(factor > 0))
            parse_fail(p, ERR_FORMAT, "%s: element %zu is not a positive number", key, i);
        f[i] = 1 / ((float)factor * powf((float)theta, (float)(2 * i) / (float)r->dim));
    }
    return f;
}

/* ministral3: queries grow with their position. */
static void rope_tempers(struct parse *p, struct config *c)
{
    c->temperature_scale = (float)parse_real(p, "llama_4_scaling_beta", 0);
    c->temperature_floor = (int)parse_int(p, "original_max_position_embeddings", 1, 1 << 28, c->max_len);
    c->temperature_roped = 1;
    parse_find(p, "max_position_embeddings", NULL);         /* a copy of the top-level key */
    if (!isfinite(c->temperature_scale))
        parse_fail(p, ERR_FORMAT, "llama_4_scaling_beta is not a finite number");
}

/* Only a fraction of the pairs rotates, at frequencies computed as if all pairs of the head did. */
static void proportional(struct parse *p, struct rope *r, double theta)
{
    const double share = parse_real(p, "partial_rotary_factor", 1), factor = parse_real(p, "factor", 1);
    if (!(share >= 0 && share <= 1 && factor > 0))
        parse_fail(p, ERR_FORMAT, "rope_type \"proportional\": partial_rotary_factor %g, factor %g", share, factor);
    const int n = p->bad ? 0 : (int)floor(share * r->dim / 2);
    for (int i = 0; i < r->dim / 2; i++)
        r->inv_freq[i] = i < n ? 1 / powf((float)theta, (float)(2 * i) / (float)r->dim) / (float)factor : 0;
}

static void longrope(struct parse *p, struct rope *r, double theta, double original, double max_len)
{
    original = parse_real(p, "original_max_position_embeddings", original);
    double factor = parse_real(p, "factor", original > 0 ? max_len / original : 0),
           given = parse_real(p, "attention_factor", 0);
    float *small = factored(p, r, "short_factor", theta), *large = factored(p, r, "long_factor", theta);
    if (!p->bad && !(original > 1 && original < 0x1p30))
        parse_fail(p, ERR_FORMAT, "original_max_position_embeddings is %g, expected at least 2", original);
    if (p->bad) {
        free(small);
        free(large);
        return;
    }
    free(r->inv_freq);
    r->inv_freq = small;
    r->inv_freq_long = large;
    r->original_max = (int)original;
    r->scale = r->scale_long = (float)(given > 0 ? given : factor <= 1 ? 1 : sqrt(1 + log(factor) / log(original)));
    if (memcmp(small, large, (size_t)r->dim / 2 * sizeof *small) == 0) {
        free(large);
        r->inv_freq_long = NULL;
    }
}

/* Add a table, read from one object of the configuration (NULL: all defaults). */
static void rope_add(struct parse *up, const struct arch *a, struct config *c, const json_t *json, double theta,
                     int dim)
{
    struct rope *r = &c->ropes[c->n_ropes++];
    struct parse p = { .json = json ? json : up->json, .seen = json_object(), .where = "config.json: rope_parameters",
                       .e = up->e };
    r->dim = dim;
    r->pairs = a->rope_pairs;
    r->scale = r->scale_long = 1;
    r->inv_freq = malloc((size_t)dim / 2 * sizeof *r->inv_freq);
    if (!r->inv_freq || !p.seen) {
        err_nomem(up->e, "RoPE frequencies");
        up->bad = 1;
        goto done;
    }
    const char *type = "default";
    if (json) {
        theta = parse_real(&p, "rope_theta", theta);
        type = parse_string(&p, "rope_type", "default");
        parse_find(&p, "partial_rotary_factor", NULL);          /* a copy of the top-level key */
    }
    if (!p.bad && !(theta > 0))
        parse_fail(&p, ERR_FORMAT, "rope_theta is %g, expected a positive number", theta);
    if (strcmp(type, "dynamic") == 0 && a->ntk_alpha && parse_find(&p, "alpha", NULL)) {
        /* a fixed factor on the base */
        theta *= pow(parse_real(&p, "alpha", 1), (double)dim / (dim - 2));
        parse_find(&p, "factor|beta_fast|beta_slow|mscale|mscale_all_dim|original_max_position_embeddings", NULL);
        type = "default";
    }
    for (int i = 0; i < dim / 2; i++)
        r->inv_freq[i] = 1 / powf((float)theta, (float)(2 * i) / (float)dim);
    const double original = (double)parse_int(up, "original_max_position_embeddings", 1, 1 << 28,
                                              a->original_max ? a->original_max : c->max_len);
    if (p.bad)
        ;
    else if (strcmp(type, "linear") == 0)
        linear(&p, r);
    else if (strcmp(type, "llama3") == 0)
        llama3(&p, r, original);
    else if (strcmp(type, "yarn") == 0)
        yarn(&p, c, r, theta, original);
    else if (strcmp(type, "longrope") == 0)
        longrope(&p, r, theta, original, c->max_len);
    else if (strcmp(type, "dynamic") == 0)
        dynamic(&p, c);
    else if (strcmp(type, "proportional") == 0)
        proportional(&p, r, theta);
    else if (strcmp(type, "default") == 0 || strcmp(type, "mrope") == 0)
        parse_find(&p, "factor|original_max_position_embeddings", NULL);
    else
        parse_fail(&p, ERR_UNSUPPORTED, "rope_type \"%.40s\" is not supported; these are: default linear llama3 yarn longrope dynamic proportional", type);
    if (json && a->rope_tempers)
        rope_tempers(&p, c);
    if (json && a->rope_mscales && strcmp(type, "longrope") == 0) {
        r->scale = (float)parse_real(&p, "short_mscale", r->scale);
        r->scale_long = (float)parse_real(&p, "long_mscale", r->scale_long);
    }
    for (int i = 0; i < dim / 2 && a->rope_reversed; i++)
        r->inv_freq[i] = -r->inv_freq[i];
    if (json && !p.bad)
        parse_leftovers(&p, rope_ignored);
    up->bad |= p.bad;
done:
    json_decref(p.seen);
}

/* Make a table for each distinct base in "layer_rope_theta", which has one base for each layer; 0:
 * the layer does not rotate. */
static void layer_thetas(struct parse *p, const struct arch *a, struct config *c, const json_t *rope, int dim)
{
    const json_t *thetas = parse_find(p, "layer_rope_theta", NULL);
    double known[MAX_ROPES];
    if (!thetas) {
        rope_add(p, a, c, rope, a->rope_theta, dim);
        return;
    }
    if (!json_is_array(thetas) || json_array_size(thetas) != (size_t)c->n_layers)
        parse_fail(p, ERR_FORMAT, "layer_rope_theta: expected an array of num_hidden_layers = %d numbers", c->n_layers);
    for (int i = 0; i < c->n_layers && !p->bad; i++) {
        const json_t *v = json_array_get(thetas, (size_t)i);
        const double theta = json_number_value(v);
        int table = 0;
        while (table < c->n_ropes && known[table] != theta)
            table++;
        c->rope_of[i] = theta == 0 ? -1 : table;
        if (!json_is_number(v) || !(theta >= 0))
            parse_fail(p, ERR_FORMAT, "layer_rope_theta: element %d is not a number from 0 on", i);
        else if (theta != 0 && table == MAX_ROPES)
            parse_fail(p, ERR_UNSUPPORTED, "layer_rope_theta: more than %d different numbers", MAX_ROPES);
        else if (theta != 0 && table == c->n_ropes) {
            json_t *own = rope ? json_copy((json_t *)rope) : json_object();
            json_object_set_new(own, "rope_theta", json_real(theta));
            known[table] = theta;
            rope_add(p, a, c, own, theta, dim);
            json_decref(own);
        }
    }
}

/* deepseek_v4: make two tables, one for layers without compressed entries and one for layers with
 * them, of which only the second is scaled.  rope_parameters has both, or only the scaling of the
 * second. */
static void compress_ropes(struct parse *p, const struct arch *a, struct config *c, const json_t *rope, int dim)
{
    const json_t *plain = js_get(rope, "main"), *scaled = js_get(rope, "compress");
    const double theta = parse_real(p, "compress_rope_theta", 160000);
    const char *key;
    json_t *v, *own = scaled ? json_copy((json_t *)scaled) : rope ? json_copy((json_t *)rope) : json_object(),
           *other = plain ? json_copy((json_t *)plain) : json_object();
    json_object_foreach((json_t *)(plain || scaled ? rope : NULL), key, v)
        if (v != plain && v != scaled && !json_is_null(v))
            parse_fail(p, ERR_UNSUPPORTED, "rope_parameters: \"%.60s\" is not understood, expected main and compress",
                       key);
    if (!own || !other) {
        err_nomem(p->e, "rope_parameters");
        p->bad = 1;
    }
    if (!p->bad && !plain && js_get(rope, "rope_theta"))
        json_object_set(other, "rope_theta", js_get(rope, "rope_theta"));
    if (!p->bad && !scaled) {
        const char *type = json_string_value(js_get(own, "rope_type"));
        json_object_set_new(own, "rope_theta", json_real(theta));
        if (type && strcmp(type, "yarn") == 0 && !js_get(own, "attention_factor"))
            json_object_set_new(own, "attention_factor", json_real(1));
    }
    if (!p->bad)
        rope_add(p, a, c, other, a->rope_theta, dim);
    if (!p->bad)
        rope_add(p, a, c, own, theta, dim);
    for (int i = 0; i < c->n_layers; i++)
        c->rope_of[i] = c->rates && c->rates[i] > 0;
    json_decref(own);
    json_decref(other);
}

/* Size of the heads in layers with a window, or in those without. */
static int widest_head(const struct config *c, int windowed)
{
    for (int i = 0; i < c->n_layers && c->head_dims; i++)
        if ((c->window[i] > 0) == windowed)
            return c->head_dims[i];
    return c->key_dim ? c->key_dim : c->head_dim;
}

void rope_parse(struct parse *p, const struct arch *a, struct config *c)
{
    const json_t *rope = parse_find(p, "rope_parameters", NULL);
    const double partial = parse_real(p, "partial_rotary_factor|rope_pct", a->partial > 0 ? a->partial : 1);
    parse_find(p, "original_max_position_embeddings", NULL);
    if (c->pos != POS_ROPE) {
        for (int i = 0; i < c->n_layers; i++)
            c->rope_of[i] = -1;
        return;
    }
    if (rope && !json_is_object(rope)) {
        parse_fail(p, ERR_FORMAT, "rope_parameters: found %s, expected an object", js_kind(rope));
        return;
    }
    const int64_t rotary_dim = parse_int(p, "rotary_dim", 2, c->head_dim, a->rotary_dim);
    const int dim = c->mla.rope_dim ? c->mla.rope_dim : rotary_dim
                        ? (int)rotary_dim : (int)((c->key_dim ? c->key_dim : c->head_dim) * partial);
    if (p->bad || dim < 2 || dim % 2 || dim > c->head_dim) {
        parse_fail(p, ERR_SHAPE, "%d of head_dim %d dimensions rotate, expected an even number, at least 2", dim,
                   c->head_dim);
        return;
    }
    if (a->rope_compress) {
        compress_ropes(p, a, c, rope, dim);
        return;
    }
    const json_t *full = js_get(rope, "full_attention"), *local = js_get(rope, "sliding_attention");
    /* one table for layers without a window, one for those with one */
    if (full || local || a->local_theta > 0) {
        const char *key;
        json_t *v;
        json_object_foreach((json_t *)(full || local ? rope : NULL), key, v)
            if (v != full && v != local && !json_is_null(v))
                parse_fail(p, ERR_UNSUPPORTED, "rope_parameters: \"%.60s\" is not understood, expected full_attention and sliding_attention", key);
        const int dims[2] = { (int)(widest_head(c, 0) * partial), (int)(widest_head(c, 1) * partial) };
        rope_add(p, a, c, full || local ? full : rope, a->rope_theta, dims[0]);
        rope_add(p, a, c, local, a->local_theta > 0 ? a->local_theta : a->rope_theta, dims[1]);
        for (int i = 0; i < c->n_layers; i++)
            if (c->rope_of[i] == 0 && c->window[i])
                c->rope_of[i] = 1;
    } else if (a->layer_thetas) {
        layer_thetas(p, a, c, rope, dim);
    } else {
        rope_add(p, a, c, rope, a->rope_theta, dim);
        if (!a->local_plain || p->bad)
            return;
        const json_t *theta = js_get(rope, "rope_theta");
        rope_add(p, a, c, NULL, theta ? json_number_value(theta) : a->rope_theta, dim);
        for (int i = 0; i < c->n_layers; i++)
            if (c->rope_of[i] == 0 && c->window[i])
                c->rope_of[i] = 1;
    }
}
