/* channel_scale.c - channel scaling: a scale s multiplies the columns that read a channel, and
 * divides the preceding weights that produce the channel, so the model's results stay the same.
 *
 * 1/s can be applied exactly to
 *   - weights (and biases) of the norm before q, k, v or before gate, up, if the norm has weights
 *     and no other matrix reads its output;
 *   - rows of v, for the columns of o, because attention is linear in v.  Heads that share a KV
 *     head have the same s.  Not with clip_qkv;
 *   - the gated norm of mamba2 and delta net, and the filters of a short convolution, for the
 *     columns of their o;
 *   - rows of up, for the columns of down, because down(act(gate) * up) is linear in up.  Without a
 *     gate only if the activation is relu, which is homogeneous, or relu^2, where up is divided by
 *     s^(1/2). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/convert/internal.h"
#include "libcommon/kernels/kernels.h"

static int ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

static int has(const struct conversion *cv, int layer, const char *end)
{
    for (int i = 0; i < cv->n_recipes; i++)
        if (cv->recipes[i].spec->layer == layer && ends_in(cv->recipes[i].spec->name, end))
            return 1;
    return 0;
}

/* 1 if all matrices of these roles in the layer are quantized (not copied, not floats). */
static int all_rounded(const struct conversion *cv, int layer, uint64_t roles)
{
    int n = 0;
    for (int i = 0; i < cv->n_recipes; i++) {
        const struct recipe *p = &cv->recipes[i];
        if (p->spec->layer != layer || p->spec->is_vector || !(roles >> p->spec->role & 1))
            continue;
        if (p->make != MAKE_QUANT)
            return 0;
        n++;
    }
    return n > 0;
}

void expert_strength(const float *sum, int n_tokens, const float *all, int n, float *out)
{
    enum { AVERAGE_TOKENS = 16 };
    for (int i = 0; i < n; i++)
        out[i] = ((sum ? sum[i] : 0) + AVERAGE_TOKENS * all[i]) / (float)(n_tokens + AVERAGE_TOKENS);
}

/* Compute scales s_j = (d_j / mean d)^(alpha / 2), clipped, and normalized to a geometric mean of
 * 1. */
static float *scales_from(const float *d, int n, float alpha)
{
    float *s = malloc((size_t)n * sizeof *s);
    double mean = 0, log_sum = 0;
    if (!s)
        return NULL;
    for (int i = 0; i < n; i++)
        mean += (double)d[i] / n;
    for (int i = 0; i < n; i++) {
        double r = mean > 0 ? pow(fmax((double)d[i], 1e-12) / mean, (double)alpha / 2) : 1;
        s[i] = (float)fmin(fmax(r, 1e-2), 1e2);
        log_sum += log((double)s[i]);
    }
    float norm = (float)exp(-log_sum / n);
    for (int i = 0; i < n; i++)
        s[i] *= norm;
    return s;
}

/* Strengths of o's inputs, averaged over the heads that share a KV head: [KV heads][value_dim], one
 * for each row of v. */
static float *shared_strength(const struct config *c, int layer, const float *d)
{
    int dim = config_value_dim(c, layer), share = c->n_heads / config_kv_heads(c, layer);
    float *out = calloc((size_t)config_kv_heads(c, layer) * (size_t)dim, sizeof *out);
    for (int h = 0; out && h < c->n_heads; h++)
        for (int i = 0; i < dim; i++)
            out[h / share * dim + i] += d[h * dim + i] / (float)share;
    return out;
}

static int scale_o(struct conversion *cv, struct layer_calib *l, int layer, float alpha, struct err *e)
{
    const struct config *c = &cv->config;
    int dim = config_value_dim(c, layer), n_kv = config_kv_heads(c, layer), share = c->n_heads / n_kv;
    float *d = shared_strength(c, layer, l->strength[INPUT_O]);
    l->v_scale = d ? scales_from(d, n_kv * dim, alpha) : NULL;
    l->scale[INPUT_O] = malloc((size_t)c->n_heads * (size_t)dim * sizeof(float));
    free(d);
    if (!l->v_scale || !l->scale[INPUT_O])
        return err_nomem(e, "channel scales");
    for (int h = 0; h < c->n_heads; h++)
        memcpy(l->scale[INPUT_O] + (size_t)h * (size_t)dim, l->v_scale + (size_t)(h / share) * (size_t)dim,
               (size_t)dim * sizeof(float));
    return 0;
}

/* Scale the columns of o in a layer with a state, with one scale per element of the norm before o
 * (common to all heads of the delta net) or per channel of the convolution. */
static int scale_state_o(struct conversion *cv, struct layer_calib *l, int layer, float alpha, struct err *e)
{
    const struct config *c = &cv->config;
    const int width = recurrent_width(c, layer), n = c->mixer[layer] == MIXER_DELTA ? c->recurrent.head_dim : width,
              share = width / n;
    float *d = calloc((size_t)n, sizeof *d);
    for (int i = 0; d && i < width; i++)
        d[i % n] += l->strength[INPUT_O][i] / (float)share;
    l->v_scale = d ? scales_from(d, n, alpha) : NULL;
    l->scale[INPUT_O] = malloc((size_t)width * sizeof(float));
    free(d);
    if (!l->v_scale || !l->scale[INPUT_O])
        return err_nomem(e, "channel scales");
    for (int i = 0; i < width; i++)
        l->scale[INPUT_O][i] = l->v_scale[i % n];
    return 0;
}

static int scale_input(struct layer_calib *l, int input, int n, float alpha, struct err *e)
{
    l->scale[input] = scales_from(l->strength[input], n, alpha);
    return l->scale[input] ? 0 : err_nomem(e, "channel scales");
}

/* Scale each expert by its own strengths; for experts with few tokens the strengths of all experts
 * count most. */
static int scale_experts(struct conversion *cv, struct layer_calib *l, float alpha, struct err *e)
{
    const int n = cv->config.moe.intermediate_size;
    float *d = l->experts ? malloc((size_t)n * sizeof *d) : NULL;
    if (!l->experts)
        return 0;
    for (int i = 0; i < cv->config.moe.n_experts && d; i++) {
        struct expert_calib *x = &l->experts[i];
        expert_strength(x->down, x->n_tokens, l->down_strength, n, d);
        free(x->scale);
        x->scale = scales_from(d, n, alpha);
        if (!x->scale)
            break;
    }
    const int ok = d && l->experts[cv->config.moe.n_experts - 1].scale;
    free(d);
    return ok ? 0 : err_nomem(e, "channel scales");
}

int channel_scale_layer(struct conversion *cv, int layer, float alpha, struct err *e)
{
    const struct config *c = &cv->config;
    struct layer_calib *l = &cv->calib[layer];
    const int mla = c->mixer[layer] == MIXER_MLA, q_a = mla && c->mla.q_rank, moe = c->ff[layer] == FF_MOE;
    const int both = c->mixer[layer] == MIXER_BOTH, state = mixer_has_state(c->mixer[layer]);
    /* Scales are not folded where it would change results: mamba1 has no norm after its gate; with
     * renorm and with LAuReL the residual stream also reads the norm's output, and in compressed
     * attention the matrices of entries do. */
    const int folds = c->renorm[0][0] == 0, compressed = c->mixer[layer] == MIXER_COMPRESSED;
    const int folds_o = state && !both && c->mixer[layer] != MIXER_MAMBA1;
    const uint64_t qkv = both ? 1ull << ROLE_IN | 1ull << ROLE_Q | 1ull << ROLE_K | 1ull << ROLE_V
        : state ? 1ull << ROLE_IN | 1ull << ROLE_IN_Z : q_a ? 1ull << ROLE_Q_A | 1ull << ROLE_KV_A : mla ? 1ull <<
        ROLE_Q | 1ull << ROLE_KV_A : 1ull << ROLE_Q | 1ull << ROLE_K | 1ull << ROLE_V | 1ull << ROLE_Q_GATE;
    const uint64_t mlp = 1ull << ROLE_GATE | 1ull << ROLE_UP |
                         (moe && c->moe.latent ? 1ull << ROLE_LATENT_IN
                          : moe && !c->moe.beside ? 1ull << ROLE_EXPERT_GATE | 1ull << ROLE_EXPERT_UP : 0);
    const int gate_scales = c->gated || c->act == ACT_RELU || c->act == ACT_RELU2;
    int parallel = c->block == BLOCK_PARALLEL;
    for (int i = 0; i < N_INPUTS; i++) {
        free(l->scale[i]);
        l->scale[i] = NULL;
    }
    free(l->v_scale);
    l->v_scale = NULL;
    if (folds && !c->laurel_rank && !compressed && l->strength[INPUT_QKV] && has(cv, layer, ".attn_norm.weight") &&
        all_rounded(cv, layer, parallel ? qkv | mlp : qkv)) {
        if (scale_input(l, INPUT_QKV, c->hidden_size, alpha, e))
            return -1;
        if (parallel) {
            l->scale[INPUT_MLP] = malloc((size_t)c->hidden_size * sizeof(float));
            if (!l->scale[INPUT_MLP])
                return err_nomem(e, "channel scales");
            memcpy(l->scale[INPUT_MLP], l->scale[INPUT_QKV], (size_t)c->hidden_size * sizeof(float));
        }
    }
    if (folds && !parallel && l->strength[INPUT_MLP] && has(cv, layer, ".mlp_norm.weight") && all_rounded(cv, layer, mlp))
        if (scale_input(l, INPUT_MLP, c->hidden_size, alpha, e))
            return -1;
    if (q_a && l->strength[INPUT_Q_A] && all_rounded(cv, layer, 1ull << ROLE_Q) &&
        scale_input(l, INPUT_Q_A, c->mla.q_rank, alpha, e))
        return -1;
    if (moe && gate_scales && c->moe.act_limit == 0 &&
        all_rounded(cv, layer, 1ull << ROLE_EXPERT_UP | 1ull << ROLE_EXPERT_DOWN) && scale_experts(cv, l, alpha, e))
        return -1;
    if (folds_o && l->strength[INPUT_O] && all_rounded(cv, layer, 1ull << ROLE_O) &&
        scale_state_o(cv, l, layer, alpha, e))
        return -1;
    if (!mla && !compressed && (!state || both) && l->strength[INPUT_O] && c->clip_qkv == 0 && !c->v_norm &&
        !config_key_is_value(c, layer) &&
        !has(cv, layer, ".attn_sub_norm.weight") &&
        all_rounded(cv, layer, 1ull << ROLE_V | 1ull << ROLE_O) && scale_o(cv, l, layer, alpha, e))
        return -1;
    int homogeneous = !has(cv, layer, ".mlp_sub_norm.weight") && gate_scales && !(moe && c->moe.act_limit > 0);
    if (l->strength[INPUT_DOWN] && homogeneous && all_rounded(cv, layer, 1ull << ROLE_UP | 1ull << ROLE_DOWN))
        return scale_input(l, INPUT_DOWN, config_mlp_size(c, layer), alpha, e);
    return 0;
}

/* Returns the channel scales of the input that p reads; NULL: the input has none.  Experts beside
 * an MLP and their router read norms of their own, which are not scaled; experts of latents read
 * those. */
const float *channel_scale_input(const struct conversion *cv, const struct recipe *p)
{
    const int apart = (cv->config.moe.beside || cv->config.moe.latent) && p->spec->expert >= 0;
    return p->input >= 0 && !apart && cv->calib ? cv->calib[p->spec->layer].scale[p->input] : NULL;
}

struct channel_scale channel_scale_of(const struct conversion *cv, const struct recipe *p)
{
    const struct weight_spec *s = p->spec;
    struct channel_scale f = { .row_power = 1 };
    if (!cv->calib || s->layer < 0 || s->layer == cv->config.n_layers)
        return f;
    const struct layer_calib *l = &cv->calib[s->layer];
    const float up_power = !cv->config.gated && cv->config.act == ACT_RELU2 ? 0.5f : 1;
    if (s->is_vector) {
        int weight = ends_in(s->name, ".weight");
        f.is_norm = 1;
        const int normed = !ends_in(s->name, ".q_a_norm.weight") && !ends_in(s->name, ".gate_norm.weight") &&
                           !ends_in(s->name, ".conv.weight");
        f.offset = weight && normed ? cv->config.norm_offset : 0;
        if (ends_in(s->name, ".attn_norm.weight") || ends_in(s->name, ".attn_norm.bias"))
            f.col = l->scale[INPUT_QKV];
        else if (ends_in(s->name, ".mlp_norm.weight") || ends_in(s->name, ".mlp_norm.bias"))
            f.col = cv->config.block == BLOCK_PARALLEL ? NULL : l->scale[INPUT_MLP];
        else if (ends_in(s->name, ".q_a_norm.weight"))
            f.col = l->scale[INPUT_Q_A];
        else if (s->expert >= 0 && ends_in(s->name, ".up_proj.bias") && l->experts) {
            f.col = l->experts[s->expert].scale;
            f.row_power = up_power;
        } else if (s->expert >= 0)
            f.col = NULL;
        else if (ends_in(s->name, ".v_proj.bias") ||
                 (ends_in(s->name, ".gate_norm.weight") && cv->config.mixer[s->layer] != MIXER_BOTH))
            f.col = l->v_scale;
        else if (cv->config.mixer[s->layer] == MIXER_CONV &&
                 (ends_in(s->name, ".conv.weight") || ends_in(s->name, ".conv.bias")))
            f.col = l->v_scale;
        else if (ends_in(s->name, ".up_proj.bias")) {
            f.col = l->scale[INPUT_DOWN];
            f.row_power = up_power;
        }
        return f;
    }
    f.col = channel_scale_input(cv, p);
    if (s->role == ROLE_IN_BA || s->role == ROLE_INDEX_W)
        f.col = l->scale[INPUT_QKV];
    if ((s->role == ROLE_ROUTER || s->role == ROLE_SHARED_ROUTER) && !cv->config.moe.beside)
        f.col = l->scale[INPUT_MLP];
    if (s->role == ROLE_EXPERT_UP && l->experts) {
        f.row = l->experts[s->expert].scale;
        f.row_power = up_power;
    }
    if (s->role == ROLE_EXPERT_DOWN && l->experts)
        f.col = l->experts[s->expert].scale;
    if (s->role == ROLE_V)
        f.row = l->v_scale;
    if (s->role == ROLE_UP) {
        f.row = l->scale[INPUT_DOWN];
        f.row_power = up_power;
    }
    return f;
}

int channel_scale_write(const struct conversion *cv, struct zwriter *w, int layer, int replay, struct err *e)
{
    /* layers that predict further tokens come after the others and are not calibrated */
    const int calibrated = cv->calib && layer >= 0 && layer < cv->config.n_layers;
    struct layer_calib *l = calibrated ? &cv->calib[layer] : NULL;
    for (int i = 0; l && i < N_INPUTS; i++) {
        char name[CHANNEL_SCALE_NAME];
        const int n = calibrate_width(&cv->config, layer, i);
        if (!n || !(replay ? l->stored >> i & 1 : l->scale[i] != NULL))
            continue;
        channel_scale_name(layer, (enum layer_input)i, name);
        const struct zfile_tensor t = { .name = name, .n_dims = 1, .dim = { n },
                                        .m = { .type = QT_F32, .rows = 1, .cols = n,
                                               .size = (size_t)n * sizeof(float) } };
        if (zwriter_tensor(w, &t, e) ||
            (replay ? zwriter_skip(w, t.m.size, e) : zwriter_data(w, l->scale[i], t.m.size, e)))
            return -1;
        l->stored |= 1u << i;
    }
    return 0;
}

void channel_scale_row(const struct channel_scale *f, int64_t row, float *x, int64_t cols)
{
    float by = !f->row ? 1 : f->row_power == 1 ? f->row[row] : powf(f->row[row], f->row_power);
    for (int64_t i = 0; i < cols && (f->col || f->row); i++)
        x[i] = x[i] * (f->col ? f->col[i] : 1) / by;
}

void channel_scale_vector(const struct channel_scale *f, float *x, int64_t n)
{
    for (int64_t i = 0; i < n && f->col; i++) {
        float by = f->row_power == 1 ? f->col[i] : powf(f->col[i], f->row_power);
        x[i] = (float)(((double)x[i] + (double)f->offset) / (double)by - (double)f->offset);
    }
}
