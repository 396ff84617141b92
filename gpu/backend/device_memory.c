/* device_memory.c - the memory of a model on the device: counted completely before the first
 * allocation, and refused with all numbers if it does not fit
 * (device_plan.c). */
#include "gpu/backend/internal.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/cpu/cpu.h"
#include "libcommon/hw/memory.h"
#include "libcommon/model/arch.h"
#include "libcommon/plan/budget.h"

enum {
    MAX_PARTS = 55 + 4 * MAX_ROPES,           /* pieces of device memory besides weights and cache */
    /* blocks of a launch in its second dimension: tokens of a step, or tiles of experts */
    MOST_IN_GRID = 65535,
    MOST_LATENT = 1024,         /* elements of a latent with its key */
    /* most memory and rows for partial results of split attention, unless one token needs more */
    PARTIAL_BYTES = 64 << 20, PARTIAL_ROWS = 256,
};

static int stride_of(const struct mat *const *m, int n, int cols)
{
    int stride = (cols + 31) / 32 * 32;
    for (int i = 0; i < n; i++)
        if (m[i]->data && m[i]->cols_padded > stride)
            stride = m[i]->cols_padded;
    return stride;
}

/* Set the widths of rows of activations, each the largest padded width among the matrices that read
 * them, and find out whether any matrix needs f32. */
static void measure(struct gpu_backend *b)
{
    const struct config *c = &b->m->config;
    b->stride_hidden = stride_of(&(const struct mat *){ &b->m->head.w }, 1,
                                 c->hidden_size > c->embed_size ? c->hidden_size : c->embed_size);
    b->stride_att = b->stride_mlp = b->stride_expert = b->mlp_size = b->shared_apart = b->att_size = 0;
    b->state_in_size = b->stride_low = 0;
    b->floats_att = b->exact;
    b->floats = b->exact || b->m->head.w.type == QT_F32;
    for (int i = b->layers.first; i < b->layers.end; i++) {
        const struct layer *l = &b->m->layers[i];
        const struct expert none = { 0 }, *x = l->experts ? l->experts : &none;
        const struct mat *reads_hidden[] = { &l->q.w, &l->k.w, &l->v.w, &l->gate.w, &l->up.w, &l->q_gate.w, &l->in.w,
                                             &l->in_ba.w, &l->in_z.w, &l->in_f.w, &l->gate_a.w, &l->q_a.w, &l->kv_a.w,
                                             &x->gate.w, &x->up.w },
                         *o = &l->o.w, *down = &l->down.w, *expert_down = &x->down.w;
        int s = stride_of(reads_hidden, (int)(sizeof reads_hidden / sizeof *reads_hidden), c->hidden_size);
        b->stride_hidden = s > b->stride_hidden ? s : b->stride_hidden;
        if (l->q_a.w.data && l->q.w.cols_padded > b->stride_low)
            b->stride_low = l->q.w.cols_padded;
        b->att_size = o->data && o->cols > b->att_size ? o->cols : b->att_size;
        s = stride_of(&o, 1, b->att_size);
        b->stride_att = s > b->stride_att ? s : b->stride_att;
        const int size = config_mlp_size(c, i);
        b->shared_apart |= size && b->mlp_size && size != b->mlp_size;
        b->mlp_size = size > b->mlp_size ? size : b->mlp_size;
        s = stride_of(&down, 1, size);
        b->stride_mlp = s > b->stride_mlp ? s : b->stride_mlp;
        s = l->experts ? stride_of(&expert_down, 1, c->moe.intermediate_size) : 0;
        b->stride_expert = s > b->stride_expert ? s : b->stride_expert;
        b->floats |= l->experts != NULL;        /* the router reads f32: rounding changes choices */
        for (int j = 0; j < 13; j++)
            b->floats |= reads_hidden[j]->data && reads_hidden[j]->type == QT_F32;
        b->floats |= o->type == QT_F32 || down->type == QT_F32;
        b->floats_att |= o->type == QT_F32 || l->attn_sub_norm.present;
        if (mixer_has_state(c->mixer[i])) {
            const int in = l->in.w.rows + (l->in_z.w.data ? l->in_z.w.rows : 0) + (l->in_f.w.data ? l->in_f.w.rows : 0);
            b->state_in_size = in > b->state_in_size ? in : b->state_in_size;
        }
    }
}

static int most_of(int x, int y, int z) { return x > y ? x > z ? x : z : y > z ? y : z; }

struct buffer_place { void *p; size_t bytes; };

static size_t up256(size_t n) { return (n + 255) / 256 * 256; }

/* The number of counters of blocks: one for the router, one for each 32 outputs of down, and one
 * for the norm of these. */
static size_t arrivals(const struct gpu_backend *b)
{
    return 2 + (size_t)(b->m->config.hidden_size + 31) / 32;
}

/* List the memory for experts with t tokens, except act_expert, which lies among the other rows of
 * activations, because memory_open fills those with zeros.  Returns the number of parts. */
static int plan_experts(struct gpu_backend *b, size_t t, struct buffer_place *part)
{
    const struct moe *m = &b->m->config.moe;
    const size_t f = sizeof(float), experts = (size_t)m->n_experts, pairs = t * (size_t)m->top_k,
                 tiles = experts + pairs / GPU_EXPERT_FEW, hidden = (size_t)b->m->config.hidden_size;
    const size_t few = GPU_SPLITS((hidden + 31) / 32) * MAX_GRAPH_TOKENS;
    int floats = !b->m->config.gated, n = 0;
    for (int i = b->layers.first; i < b->layers.end; i++)
        floats |= b->m->layers[i].experts && experts_in_floats(b, b->m->layers[i].experts);
    part[n++] = (struct buffer_place){ &b->route, (t > few ? t : few) * (experts + 1) * f };
    part[n++] = (struct buffer_place){ &b->choice.id, pairs * sizeof(int32_t) };
    part[n++] = (struct buffer_place){ &b->choice.weight, pairs * f };
    part[n++] = (struct buffer_place){ &b->choice.shared, t * f };
    part[n++] = (struct buffer_place){ &b->choice.order, pairs * sizeof(int32_t) };
    part[n++] = (struct buffer_place){ &b->choice.tiles, (pairs < tiles ? pairs : tiles) * sizeof *b->choice.tiles };
    part[n++] = (struct buffer_place){ &b->choice.n_tiles, sizeof(int32_t) };
    part[n++] = (struct buffer_place){ &b->arrived, sizeof(unsigned) * arrivals(b) };
    part[n++] = (struct buffer_place){ &b->mid_expert, floats ? pairs * (size_t)m->intermediate_size * f : 0 };
    part[n++] = (struct buffer_place){ &b->out_expert, pairs * hidden * f };
    part[n++] = (struct buffer_place){ &b->tp_place, b->tp ? experts * sizeof *b->tp_place : 0 };
    part[n++] = (struct buffer_place){ &b->hybrid.place, has_host_experts(b) ? hybrid_places(b) : 0 };
    part[n++] = (struct buffer_place){ &b->hybrid.up, has_host_experts(b) ? experts * sizeof *b->hybrid.up : 0 };
    part[n++] = (struct buffer_place){ &b->hybrid.stream, slots_plan(b) };
    part[n++] = (struct buffer_place){ &b->hybrid.host_result, has_host_experts(b) ? hybrid_results(b) : 0 };
    return n;
}

/* List the memory of layers with a state and of gated or latent attention for t tokens;
 * memory_open fills it with zeros, because tokens that only pad a step are read.  Returns the
 * number of parts. */
static int plan_states(struct gpu_backend *b, size_t t, struct buffer_place *part)
{
    const struct config *c = &b->m->config;
    const struct recurrent *r = &c->recurrent;
    const size_t f = sizeof(float), here = b->state_in_size > 0;
    size_t channels = 0, width = 0;
    for (int i = b->layers.first; i < b->layers.end; i++)
        if (mixer_has_state(c->mixer[i])) {
            const size_t n = (size_t)recurrent_channels(c, i), m = (size_t)recurrent_width(c, i);
            channels = n > channels ? n : channels;
            width = m > width ? m : width;
        }
    int n = 0;
    part[n++] = (struct buffer_place){ &b->state_in, t * (size_t)b->state_in_size * f };
    part[n++] = (struct buffer_place){ &b->state_ba, here * t * 2 * (size_t)r->n_heads * f };
    part[n++] = (struct buffer_place){ &b->state_low, here * t * 2 * (size_t)r->gate_rank * f };
    part[n++] = (struct buffer_place){ &b->state_conv, t * channels * f };
    part[n++] = (struct buffer_place){ &b->state_out, t * width * f };
    const struct mla *m = &c->mla;
    const size_t heads = config_has_mixer(c, MIXER_MLA) ? t * (size_t)c->n_heads : 0;
    const int dim = m->nope_dim + m->rope_dim > m->v_dim ? m->nope_dim + m->rope_dim : m->v_dim;
    part[n++] = (struct buffer_place){ &b->latent_heads, heads * (size_t)dim * f };
    part[n++] = (struct buffer_place){ &b->latent_sums, heads * (size_t)m->kv_rank * f };
    part[n++] = (struct buffer_place){ &b->latent_low, heads ? t * (size_t)m->q_rank * f : 0 };
    part[n++] = (struct buffer_place){ &b->act_low, t * (size_t)b->stride_low * sizeof *b->act_low };
    const size_t gates = (size_t)c->n_heads * (c->attn_gate == ATTN_GATE_HEAD ? 1 : (size_t)c->head_dim);
    part[n++] = (struct buffer_place){ &b->att_gate, c->attn_gate ? t * gates * f : 0 };
    return n;
}

/* The most blocks of a launch of gpu_matmul_split() that can be needed for these tiles, including
 * launches by wgmma, whose blocks count twice. */
static int blocks_for(int units, int cols_padded)
{
    const int stages = (cols_padded / 32 + GPU_SPLIT_STAGE - 1) / GPU_SPLIT_STAGE,
              parts = stages < GPU_SPLIT_PARTS ? stages : GPU_SPLIT_PARTS;
    return parts < 2 ? 0 : units > GPU_SPLIT_HOPPER_BLOCKS / parts ? GPU_SPLIT_BLOCKS : 2 * units * parts;
}

/* The most blocks that store sums of parts of k in one launch of gpu_matmul_split().  A launch
 * multiplies matrices of a layer that have equally many columns; all of these are counted, and not
 * embed_in and embed_out, which only gpu_matmul_f32() multiplies.
 *
 * The same room is enough for gpu_matvec(): it divides the same k into fewer parts, for at most two
 * blocks of each multiprocessor, and these have a quarter of the rows and of the tokens. */
static int split_blocks(const struct gpu_backend *b)
{
    const struct mat *head = &b->m->head.w;
    int most = head->data ? blocks_for(gpu_split_units(head->n_tiles), head->cols_padded) : 0;
    for (int i = b->layers.first; i < b->layers.end; i++)
        for (int p = 0; p < N_LAYER_PARTS; p++) {
            const struct linear *one = layer_matrix(&b->m->layers[i], (enum layer_part)p);
            int units = 0;
            for (int q = 0; one && q < N_LAYER_PARTS; q++) {
                const struct linear *other = layer_matrix(&b->m->layers[i], (enum layer_part)q);
                if (other && other->w.cols_padded == one->w.cols_padded)
                    units += gpu_split_units(other->w.n_tiles);
            }
            const int blocks = one ? blocks_for(units, one->w.cols_padded) : 0;
            most = blocks > most ? blocks : most;
        }
    return most;
}

static int plan_arena(struct gpu_backend *b, struct buffer_place *part)
{
    const struct config *c = &b->m->config;
    const size_t t = (size_t)(b->o.max_tokens > GPU_MATVEC_TOKENS ? b->o.max_tokens : GPU_MATVEC_TOKENS) +
                     MAX_GRAPH_TOKENS, hd = (size_t)c->head_dim;
    const size_t hidden = (size_t)c->hidden_size,
                 wide = hidden > (size_t)c->embed_size ? hidden : (size_t)c->embed_size;
    const size_t nq = (size_t)c->n_heads * hd, mlp = (size_t)b->mlp_size,
                 nk = (config_has_mixer(c, MIXER_MLA) ? 1 : (size_t)c->n_kv_heads) * hd;
    const size_t f = sizeof(float), h = sizeof(uint16_t),
                 per_row = (size_t)(c->n_heads > 0 ? c->n_heads : 1) * (size_t)b->max_splits * (hd + 2) * f;
    /* rows for the longest context; more rows fit with shorter ones */
    const size_t most_rows = t < PARTIAL_ROWS ? t : PARTIAL_ROWS,
                 rows = PARTIAL_BYTES / per_row < 1 ? 1
                        : PARTIAL_BYTES / per_row < most_rows ? PARTIAL_BYTES / per_row : most_rows;
    /* the same memory for the sums of parts of k: attention does not need it at that time */
    const size_t parts = GPU_SPLIT_BYTES(split_blocks(b), t < GPU_SPLIT_TOKENS ? (t + 63) / 64 * 64 : GPU_SPLIT_TOKENS),
                 partial = rows * per_row > parts ? rows * per_row : parts;
    b->partial_room = partial / f;
    b->logit_rows = b->o.max_logits < LOGIT_ROWS ? b->o.max_logits : LOGIT_ROWS;
    /* graphs pad the rows of logits to the next power of two */
    if (b->logit_rows < MAX_GRAPH_TOKENS && b->o.max_logits > 0) {
        int n = 1;
        while (n < b->logit_rows)
            n *= 2;
        b->logit_rows = n;
    }
    const size_t counters = (size_t)partial_rows(b, 1) * (size_t)c->n_heads;
    int n = 0;
    part[n++] = (struct buffer_place){ &b->x, t * hidden * f };
    part[n++] = (struct buffer_place){ &b->y, t * hidden * f };
    part[n++] = (struct buffer_place){ &b->hf, b->floats || b->m->embed_in.w.data || b->m->embed_out.w.data
        ? t * wide * f : 0 };
    part[n++] = (struct buffer_place){ &b->hf2, b->floats && c->block == BLOCK_PARALLEL2 ? t * hidden * f : 0 };
    part[n++] = (struct buffer_place){ &b->q, t * nq * f };
    part[n++] = (struct buffer_place){ &b->attf, b->floats_att ? t * (size_t)b->att_size * f : 0 };
    part[n++] = (struct buffer_place){ &b->k, t * nk * f };
    part[n++] = (struct buffer_place){ &b->v, t * nk * f };
    part[n++] = (struct buffer_place){ &b->gate, t * mlp * f };
    part[n++] = (struct buffer_place){ &b->up, t * mlp * f };
    part[n++] = (struct buffer_place){ &b->act, t * (size_t)b->stride_hidden * h };
    part[n++] = (struct buffer_place){ &b->act2, c->block == BLOCK_PARALLEL2 ? t * (size_t)b->stride_hidden * h : 0 };
    part[n++] = (struct buffer_place){ &b->act_att, t * (size_t)b->stride_att * h };
    part[n++] = (struct buffer_place){ &b->act_mlp, t * (size_t)b->stride_mlp * h };
    part[n++] = (struct buffer_place){ &b->act_shared, b->shared_apart ? t * (size_t)b->stride_mlp * h : 0 };
    part[n++] = (struct buffer_place){ &b->act_expert, t * (size_t)c->moe.top_k * (size_t)b->stride_expert * h };
    n += plan_states(b, t, part + n);
    static_assert((int)GPU_SAMPLE_BLOCKS <= (int)GPU_SPLIT_TICKETS, "gpu_sample.arrived fits");
    part[n++] = (struct buffer_place){ &b->tickets, sizeof *b->tickets *
                                       (counters > GPU_SPLIT_TICKETS ? counters : GPU_SPLIT_TICKETS) };
    part[n++] = (struct buffer_place){ &b->one.arrived, (GPU_GRID_WORDS + 1) * sizeof *b->one.arrived };
    part[n++] = (struct buffer_place){ &b->one.gate_parts, GPU_TOKEN_BLOCKS * 2 * 32 * f };
    part[n++] = (struct buffer_place){ &b->one.layers, one_token_layers_bytes(b) };
    part[n++] = (struct buffer_place){ &b->one.exchanged, one_token_exchanged(b) * f };
    part[n++] = (struct buffer_place){ &b->one.sums, one_token_sums(b) * f };
    part[n++] = (struct buffer_place){ &b->one.outputs, one_token_outputs(b) * sizeof *b->one.outputs };
    part[n++] = (struct buffer_place){ &b->act_code, b->o.act_codes ? t *
                               (size_t)GPU_CODE_STRIDE(most_of(b->stride_hidden, b->stride_att, b->stride_mlp)) : 0 };
    part[n++] = (struct buffer_place){ &b->act_scale, b->o.act_codes ? t * f : 0 };
    for (int i = 0; i < c->n_ropes; i++) {
        const size_t half = (size_t)c->ropes[i].dim / 2;
        part[n++] = (struct buffer_place){ &b->cosine[i], t * half * f };
        part[n++] = (struct buffer_place){ &b->sine[i], t * half * f };
        part[n++] = (struct buffer_place){ &b->freq[i], half * f };
        part[n++] = (struct buffer_place){ &b->freq_long[i], c->ropes[i].inv_freq_long ? half * f : 0 };
    }
    part[n++] = (struct buffer_place){ &b->alibi, c->pos == POS_ALIBI ? (size_t)c->n_heads * f : 0 };
    part[n++] = (struct buffer_place){ &b->partial, partial };
    part[n++] = (struct buffer_place){ &b->logits,
                                       has_head(b) ? (size_t)b->logit_rows * (size_t)c->vocab_size * f : 0 };
    part[n++] = (struct buffer_place){ &b->ids, MAX_DRAWS * sizeof *b->ids };
    part[n++] = (struct buffer_place){ &b->sample_part, GPU_SAMPLE_BLOCKS * sizeof *b->sample_part };
    if (b->stride_expert)
        n += plan_experts(b, t, part + n);
    assert(n <= MAX_PARTS);
    return n;
}

/* Upload a small table when the backend opens, through the step's pinned memory, which no step uses
 * yet. */
static int upload_table(struct gpu_backend *b, float *to, const float *from, int n, struct err *e)
{
    memcpy(b->hstep, from, (size_t)n * sizeof *from);
    return gpu_upload(b->g, GPU_COMPUTE, to, b->hstep, (size_t)n * sizeof *from, e) < 0
               ? -1 : gpu_sync(b->g, GPU_COMPUTE, e);
}

static int upload_tables(struct gpu_backend *b, struct err *e)
{
    const struct config *c = &b->m->config;
    for (int i = 0; i < c->n_ropes; i++) {
        const struct rope *r = &c->ropes[i];
        if (upload_table(b, b->freq[i], r->inv_freq, r->dim / 2, e) < 0 ||
            (r->inv_freq_long && upload_table(b, b->freq_long[i], r->inv_freq_long, r->dim / 2, e) < 0))
            return -1;
        if (!r->inv_freq_long)
            b->freq_long[i] = NULL;
    }
    if (c->pos != POS_ALIBI)
        return 0;
    const int n_heads = b->tp ? b->tp->whole->config.n_heads : c->n_heads, first = b->tp ? b->tp->first_head : 0;
    float *slope = malloc((size_t)n_heads * sizeof *slope);
    if (!slope)
        return err_nomem(e, "slopes");
    int n = 1;
    while (2 * n <= n_heads)
        n *= 2;
    for (int h = 0; h < n_heads; h++) {         /* arXiv:2108.12409 and its code */
        const double power = h < n ? (double)(h + 1) / n : (double)(2 * (h - n) + 1) / (2 * n);
        slope[h] = (float)(c->alibi_scale * exp2(-c->alibi_max_bias * power));
    }
    const int rc = upload_table(b, b->alibi, slope + first, c->n_heads, e);
    free(slope);
    return rc;
}

/* With tp, where each expert is. */
static int upload_places(struct gpu_backend *b, struct err *e)
{
    const int n = b->m->config.moe.n_experts;
    if (!b->tp || !b->tp_place)
        return 0;
    for (int i = 0; i < n; i++) {
        const int at = i - b->tp->first_expert;
        b->hstep[i] = at >= 0 && at < b->n_experts ? at : -1;
    }
    return gpu_upload(b->g, GPU_COMPUTE, b->tp_place, b->hstep, (size_t)n * sizeof *b->tp_place, e) < 0
               ? -1 : gpu_sync(b->g, GPU_COMPUTE, e);
}

/* The matrix of this part in a layer.  For a part of experts it is the first expert's, because all
 * have the same types and shapes. */
static const struct linear *device_part(const struct layer *l, enum layer_part p)
{
    return part_infos[p].kind != PART_EXPERT ? layer_matrix(l, p)
               : l->experts ? part_field((struct layer *)(uintptr_t)l, 0, p) : NULL;
}

/* The first matrix on the device for which is() is true, or NULL; with `experts` the matrices of
 * experts are searched, too. */
static const struct linear *device_matrix(const struct gpu_backend *b, int experts,
                                          int (*is)(const struct gpu_backend *b, const struct linear *l))
{
    const struct linear *l;
    for (enum end_part p = 0; p < N_END_PARTS; p++)
        if ((end_infos[p].is_first ? b->layers.first == 0 : has_head(b)) && (l = end_matrix(b->m, p)) && is(b, l))
            return l;
    for (int i = b->layers.first; i < b->layers.end; i++)
        for (enum layer_part p = 0; p < N_LAYER_PARTS; p++)
            if ((experts || part_infos[p].kind != PART_EXPERT) && (l = device_part(&b->m->layers[i], p)) && is(b, l))
                return l;
    return NULL;
}

static int lacks_kernel(const struct gpu_backend *b, const struct linear *l)
{
    (void)b;
    return qtype_info(l->w.type)->gpu == GPU_FORMAT_NONE;
}

/* Does l read activations of 8 bits?  The embedding does not: it is looked up, never multiplied. */
static int takes_codes(const struct gpu_backend *b, const struct linear *l)
{
    return l != &b->m->embed &&
           dweights_reads_codes(b->o.act_codes, &(struct gpu_mat){ .type = (int)l->w.type, .cols = l->w.cols });
}

/* Check that --act has an effect: some matrix on the device reads such activations.  Experts are
 * multiplied as f16. */
static int check_act(const struct gpu_backend *b, struct err *e)
{
    const int fp8 = b->o.act_codes == ACT_CODES_FP8;
    const char *name = act_codes_name(b->o.act_codes);
    if (!b->o.act_codes)
        return 0;
    if (b->exact)
        return err_set(e, ERR_UNSUPPORTED, "%s: activations are f32 (--exact) or %s (--act), not both", gpu_kind, name);
    if (fp8 && b->o.strict)
        return err_set(e, ERR_UNSUPPORTED, "--act fp8: --strict multiplies all tokens alike, and few tokens stay f16");
    return device_matrix(b, 0, takes_codes) ? 0 : err_set(e, ERR_UNSUPPORTED, "--act %s: none of the matrices on the %s device is %s (zse-convert -q %s makes them)",
                             name, gpu_kind, fp8 ? "fp8" : "int8 with one scale a row",
                             fp8 ? "fp8" : "int8 --group-size row");
}

static int alike(const struct linear *a, const struct linear *b)
{
    return a->w.type == b->w.type && a->w.rows == b->w.rows && a->w.cols == b->w.cols &&
           a->w.group_size == b->w.group_size && a->w.n_groups == b->w.n_groups &&
           a->w.cols_padded == b->w.cols_padded && a->w.tile_bytes == b->w.tile_bytes && a->w.size == b->w.size &&
           !a->bias == !b->bias;
}

/* Check that the kernels for experts support the experts of this model. */
static int check_experts(const struct gpu_backend *b, struct err *e)
{
    const struct moe *m = &b->m->config.moe;
    const int groups = m->n_groups > 1 ? m->n_groups : 1;
    const int64_t pairs = ((int64_t)b->o.max_tokens + MAX_GRAPH_TOKENS) * m->top_k;
    if (m->n_experts > GPU_MAX_EXPERTS || m->top_k > GPU_MAX_TOP_K || groups > GPU_MAX_GROUPS)
        return err_set(e, ERR_UNSUPPORTED, "%s: each token chooses %d of %d experts in %d groups, expected at most %d of %d experts in %d groups",
                       gpu_kind, m->top_k, m->n_experts, groups, GPU_MAX_TOP_K, GPU_MAX_EXPERTS, GPU_MAX_GROUPS);
    for (int i = b->layers.first; m->weigh_input && i < b->layers.end; i++)
        if (b->m->layers[i].experts && (b->m->layers[i].experts->gate.bias || b->m->layers[i].experts->up.bias))
            return err_set(e, ERR_UNSUPPORTED, "%s: experts with biases and weights on their inputs run on the CPU only", gpu_kind);
    if (pairs / GPU_EXPERT_FEW + m->n_experts > MOST_IN_GRID || (!b->m->config.gated && pairs > MOST_IN_GRID))
        return err_set(e, ERR_UNSUPPORTED, "%s: steps of %d tokens with %d experts each are too large",
                       gpu_kind, b->o.max_tokens, m->top_k);
    for (int i = b->layers.first; i < b->layers.end; i++) {
        const struct expert *x = b->m->layers[i].experts;
        for (int k = 1; x && k < m->n_experts; k++)
            if (!alike(&x->gate, &x[k].gate) || !alike(&x->up, &x[k].up) || !alike(&x->down, &x[k].down))
                return err_set(e, ERR_UNSUPPORTED, "%s: layer %d: experts of different types run on the CPU only",
                               gpu_kind, i);
    }
    return 0;
}

/* Checks that the device has kernels for its layers of this model. */
static int check_model(const struct gpu_backend *b, struct err *e)
{
    const struct model *m = b->m;
    const struct config *c = &m->config;
    const char *beyond = config_beyond(c, DEVICE_FEATURES);
    if (beyond)
        return err_set(e, ERR_UNSUPPORTED, "%s: %s (%s) runs on the CPU only", gpu_kind, c->arch, beyond);
    if (config_has_mixer(c, MIXER_MLA) && (c->head_dim % 8 || c->mla.kv_rank % 8 || c->head_dim > MOST_LATENT))
        return err_set(e, ERR_UNSUPPORTED, "%s: latents of %d elements with keys of %d, expected multiples of 8 up to %d together",
                       gpu_kind, c->mla.kv_rank, c->mla.rope_dim, MOST_LATENT);
    if (config_kv_layers(c) && !config_has_mixer(c, MIXER_MLA) && (c->head_dim % 8 || c->head_dim > GPU_ATTN_MAX_DIM))
        return err_set(e, ERR_UNSUPPORTED, "%s: heads of %d elements, expected a multiple of 8 up to %d", gpu_kind,
                       c->head_dim, GPU_ATTN_MAX_DIM);
    if (c->moe.n_experts && check_experts(b, e) < 0)
        return -1;
    if (b->o.n_states < 0 || (config_state_bytes(c) && (c->recurrent.conv_kernel > GPU_MAX_CONV ||
                                                        c->recurrent.state_size > GPU_MAX_STATE)))
        return err_set(e, ERR_UNSUPPORTED, "%s: %d states with convolutions over %d tokens and %d rows a head, expected at most %d tokens and %d rows",
                       gpu_kind, b->o.n_states, c->recurrent.conv_kernel, c->recurrent.state_size, GPU_MAX_CONV,
                       GPU_MAX_STATE);
    const struct linear *l = device_matrix(b, 1, lacks_kernel);
    return !l ? 0 : err_set(e, ERR_UNSUPPORTED, "%s: weights of type %s run on the CPU only", gpu_kind,
                            qtype_info(l->w.type)->name);
}

/* The number of experts of each layer on the device; with MOE_HYBRID and no number, or if none of
 * its layers is a mixture, all. */
static int settle_experts(struct gpu_backend *b, struct err *e)
{
    const int all = b->m->config.moe.n_experts;
    int any = 0;
    if (b->tp && (b->o.moe == MOE_CPU || b->o.moe == MOE_PASSING || b->o.gpu_experts))
        return err_set(e, ERR_UNSUPPORTED, "--tp divides all experts between the GPUs: %s does not apply",
                       b->o.moe == MOE_CPU ? "--moe cpu" : "--gpu-experts");
    if (b->tp) {
        b->n_experts = b->tp->n_experts;
        return 0;
    }
    if (all && b->o.gpu_experts > all)
        return err_set(e, ERR_SHAPE, "--gpu-experts %d: each layer has %d experts", b->o.gpu_experts, all);
    for (int i = b->layers.first; i < b->layers.end; i++)
        any |= b->m->layers[i].experts != NULL;
    const int none = b->o.moe == MOE_CPU || b->o.moe == MOE_PASSING;
    b->n_experts = any && none ? 0 : any && b->o.gpu_experts > 0 ? b->o.gpu_experts : all;
    return 0;
}

/* Choose the layers of this device: of those that GPUs compute, all or the part of its stage. */
static int settle_layers(struct gpu_backend *b, struct err *e)
{
    const int all = b->m->config.n_layers, most = b->o.device_layers, n = most > 0 && most < all ? most : all;
    const struct backend_gpus *gpus = &b->o.gpus;
    const int stages = n_stages(gpus), stage = gpus->rank / stage_ranks(gpus);
    int layers[BACKEND_MOST_GPUS], sum = 0;
    b->layers = (struct layer_range){ all - n, all };
    if (b->tp && n != all)
        return err_set(e, ERR_UNSUPPORTED, "--tp shares all layers between the GPUs: --gpu-layers %d of %d does not apply", n, all);
    b->host_layers = gpus->rank == 0 ? all - n : 0;
    if (stages < 2)
        return 0;
    if (n < stages)
        return err_set(e, ERR_SHAPE, "--gpus: %d %s for %d layer%s", stages, b->tp ? "stages" : "GPUs", n, n == 1 ? "" : "s");
    budget_partition(n, stages, layers);
    for (int i = 0; i < stages; i++)
        sum += gpus->layers[i];
    if (sum && sum != n)
        return err_set(e, ERR_SHAPE, "--pp-split: %d layers, but the GPUs compute %d", sum, n);
    for (int i = 0; i <= stage; i++) {
        b->layers.end = b->layers.first + (sum ? gpus->layers[i] : layers[i]);
        b->layers.first = i < stage ? b->layers.end : b->layers.first;
    }
    return 0;
}

/* Check the types of keys and values. */
static int check_kv(const struct gpu_backend *b, struct err *e)
{
    const struct config *c = &b->m->config;
    const enum kv_type type = b->o.kv.key;
    if (type != b->o.kv.value || !kv_on_gpu(type))
        return err_set(e, ERR_UNSUPPORTED, "%s: keys as %s and values as %s run on the CPU only", gpu_kind,
                       kv_type_name(type), kv_type_name(b->o.kv.value));
    if (kv_packed(type) && (c->head_dim % 16 || config_has_mixer(c, MIXER_MLA)))
        return err_set(e, ERR_UNSUPPORTED, "%s: --kv %s for %s runs on the CPU only", gpu_kind, kv_type_name(type),
                       c->head_dim % 16 ? "heads whose size is not a multiple of 16" : "latent attention");
    return 0;
}

/* Compute all sizes from b->m and b->o, and list the parts of the arena.  Returns their number; -1
 * with *e. */
static int size_up(struct gpu_backend *b, struct buffer_place *part, struct err *e)
{
    const struct config *c = &b->m->config;
    if (b->o.n_blocks < 1 || b->o.max_tokens < 1 || b->o.max_logits < 0 || b->o.max_logits > b->o.max_tokens)
        return err_set(e, ERR_SHAPE, "%s: %d KV blocks, %d tokens, %d logits: expected at least 1, 1, and no more logits than tokens", gpu_kind, b->o.n_blocks, b->o.max_tokens,
                       b->o.max_logits);
    if (b->o.max_tokens > MOST_IN_GRID)
        return err_set(e, ERR_UNSUPPORTED, "%s: steps of %d tokens, expected at most %d", gpu_kind, b->o.max_tokens,
                       MOST_IN_GRID);
    b->exact = b->o.exact;
    if (settle_layers(b, e) < 0 || check_model(b, e) < 0 || check_act(b, e) < 0 || settle_experts(b, e) < 0)
        return -1;
    if (check_kv(b, e) < 0)
        return -1;
    measure(b);
    b->kv_part = (uint32_t)kv_block_bytes(b->o.kv.key, c->head_dim);
    b->tail_part = (uint32_t)kv_block_bytes(KV_F16, c->head_dim);
    b->kv_stride = b->tail_stride = b->state_stride = 0;
    for (int i = b->layers.first; i < b->layers.end; i++) {
        b->kv_stride += layer_kv_bytes(b, i);
        b->tail_stride += layer_tail_bytes(b, i);
        b->state_stride += config_state_floats(c, i);
    }
    if (__builtin_mul_overflow(b->state_stride * sizeof(float), (size_t)b->o.n_states, &b->state_size))
        return err_set(e, ERR_SHAPE, "%d states are too many", b->o.n_states);
    size_t tail;
    if (__builtin_mul_overflow(b->kv_stride, (size_t)b->o.n_blocks, &b->kv_size) ||
        __builtin_mul_overflow(b->tail_stride, (size_t)b->o.n_window_blocks, &tail) ||
        __builtin_add_overflow(b->kv_size, tail, &b->kv_size))
        return err_set(e, ERR_SHAPE, "a KV cache of %d blocks is too large", b->o.n_blocks);
    int64_t most = (int64_t)b->o.n_blocks * KV_BLOCK;
    most = c->max_len > 0 && c->max_len < most ? c->max_len : most;
    b->max_splits = (int)((most + GPU_SPLIT - 1) / GPU_SPLIT);
    const int n = plan_arena(b, part);
    for (int i = 0; i < n; i++)
        b->arena_size += up256(part[i].bytes);
    b->step_room = tables_at(b) + (has_tail(b) ? 2 : 1) * (size_t)b->o.n_blocks + 4096;
    b->hlogits_room = has_head(b) ? (size_t)b->logit_rows * (size_t)c->vocab_size : 0;
    if (b->hlogits_room < (size_t)c->hidden_size)
        b->hlogits_room = (size_t)c->hidden_size;
    return n;
}

int memory_part(struct gpu_backend *b, struct err *e)
{
    const struct backend_gpus *g = &b->o.gpus;
    if (g->tp < 2 || g->n < 2)
        return 0;
    if (!(b->tp = tp_model_open(b->m, g->tp, g->rank % g->tp, e)))
        return -1;
    b->m = &b->tp->m;
    return 0;
}

int memory_sizes(struct gpu_backend *b, struct err *e)
{
    struct buffer_place part[MAX_PARTS];
    return size_up(b, part, e) < 0 ? -1 : 0;
}

/* Allocate device memory.  If there is too little, layers of the window are given back for it. */
static void *take(struct gpu_backend *b, size_t size, const char *what, struct err *e)
{
    struct err ignored;
    void *p;
    while (!(p = gpu_alloc(b->g, size, what, e)) && dweights_shrink(b->w, &ignored) > 0)
        ;
    return p;
}

int memory_relieve(struct gpu_backend *b, struct err *e)
{
    struct backend_stream s;
    struct gpu_info info;
    if (!b->plan.window)
        return 0;
    if (gpu_info(b->g, &info, e) < 0)
        return -1;
    const size_t used = info.memory - info.free;
    if (pressure_of(used, info.memory) == PRESSURE_OOM) {
        b->calm_steps = 0;
        return dweights_shrink(b->w, e) < 0 ? -1 : 0;
    }
    /* not at once, because the other program may be about to take the memory again */
    dweights_stream(b->w, &s);
    if (s.given_back == 0 || pressure_of(used + dweights_window_bytes(b->w), info.memory) >= PRESSURE_CRITICAL)
        b->calm_steps = 0;
    else if (++b->calm_steps >= CALM_STEPS) {
        b->calm_steps = 0;
        return dweights_grow(b->w, e) < 0 ? -1 : 0;
    }
    return 0;
}

int memory_grow_step(struct gpu_backend *b, size_t room, struct err *e)
{
    int32_t *step = take(b, room * 4, "the step", e), *words[N_SLOTS] = { NULL };
    /* wait, because the step may be using the old buffers */
    int rc = step && gpu_sync(b->g, GPU_COMPUTE, e) == 0 ? 0 : -1;
    for (int i = 0; rc == 0 && i < N_SLOTS; i++)
        if (!(words[i] = gpu_pinned(b->g, room * 4, "the step", e)))
            rc = -1;
    if (rc < 0) {
        gpu_free(b->g, step);
        for (int i = 0; i < N_SLOTS; i++)
            gpu_pinned_free(b->g, words[i]);
        return -1;
    }
    gpu_free(b->g, b->step);
    b->step = step;
    for (int i = 0; i < N_SLOTS; i++) {
        b->pinned += (room - (b->slot[i].words ? b->step_room : 0)) * 4;
        gpu_pinned_free(b->g, b->slot[i].words);
        b->slot[i].words = words[i];
    }
    b->step_room = room;
    b->hstep = b->slot[0].words;
    return 0;
}

static int open_slots(struct gpu_backend *b, struct err *e)
{
    for (int i = 0; i < N_SLOTS; i++)
        if (!(b->slot[i].ids = gpu_pinned(b->g, MAX_DRAWS * sizeof *b->ids, "tokens", e)) ||
            !(b->slot[i].done = gpu_event_open(b->g, e)))
            return -1;
    return 0;
}

/* Open the processor's part: the first layers, and experts. */
static int host_open(struct gpu_backend *b, struct err *e)
{
    struct backend_options o = b->o;
    if (!b->host_layers) {
        o.n_states = o.max_logits = 0;
        o.max_tokens = host_computes(b) ? hybrid_tokens(b) : o.max_tokens;
    }
    if (b->host_layers || host_computes(b))
        b->host = cpu_first_open(b->m, &o, b->host_layers, host_computes(b), e);
    return b->host || !(b->host_layers || host_computes(b)) ? 0 : -1;
}

int memory_open(struct gpu_backend *b, struct err *e)
{
    const struct config *c = &b->m->config;
    struct buffer_place part[MAX_PARTS];
    const int capability = gpu_capability(b->g);
    assert(2 * gpu_n_sms(b->g) <= GPU_SPLIT_BLOCKS * GPU_SPLIT_TILES * 64 / GPU_MATVEC_TOKENS);     /* split_blocks() */
    if (b->o.act_codes == ACT_CODES_FP8 && capability < GPU_FP8_CAPABILITY)
        return err_set(e, ERR_UNSUPPORTED, "--act fp8: this GPU has compute capability %d.%d, expected %d.%d or more",
                       capability / 10, capability % 10, GPU_FP8_CAPABILITY / 10, GPU_FP8_CAPABILITY % 10);
    if (size_up(b, part, e) < 0 || plan_rank(b->g, b->tp ? b->tp->whole : b->m, &b->o, &b->plan, e) < 0 ||
        gpu_plan_fits(&b->plan, &b->o, e) < 0)
        return -1;
    if (!b->tp)
        plan_fix_experts(&b->o, &b->plan);
    b->arena_size = 0;
    const int n = size_up(b, part, e);
    if (n < 0)
        return -1;
    const size_t hx = b->host_layers ? (size_t)b->o.max_tokens * (size_t)c->hidden_size : 0;
    const struct dweights_options wo = { .layers = b->layers, .n_experts = b->n_experts, .part = b->tp,
                                         .decoded = b->plan.cached > 0, .act_codes = b->o.act_codes,
                                         .window = { b->plan.kept, b->plan.slots, b->plan.prefetch } };
    /* the weights first: they are copied while the rest is allocated */
    if (!(b->w = dweights_open(b->g, b->m, &wo, e)) || !(b->arena = take(b, b->arena_size, "activations", e)) ||
        !(b->kv = take(b, b->kv_size ? b->kv_size : 1, "keys and values", e)) ||
        (b->state_size && !(b->states = take(b, b->state_size, "states", e))) ||
        memory_grow_step(b, b->step_room, e) < 0 || open_slots(b, e) < 0 ||
        !(b->hlogits = gpu_pinned(b->g, b->hlogits_room * sizeof(float), "logits", e)) ||
        (hx && !(b->hx = gpu_pinned(b->g, hx * sizeof(float), "hidden states", e))))
        return -1;
    if (watch_bytes(b) && !(b->watched = gpu_pinned(b->g, watch_bytes(b), "watched states", e)))
        return -1;
    b->pinned += N_SLOTS * MAX_DRAWS * sizeof *b->ids + (b->hlogits_room + hx) * sizeof(float) + watch_bytes(b);
    uint8_t *at = b->arena;
    for (int i = 0; i < n; i++) {
        memcpy(part[i].p, &at, sizeof at);
        at += up256(part[i].bytes);
    }
    /* the padding of activation rows and the counts of blocks stay 0 from here on, one_token begins
     * with words of phase 0 (all come after b->act), and tokens that only pad a step read finite
     * numbers */
    if (gpu_fill(b->g, GPU_COMPUTE, b->act, 0, (size_t)((uint8_t *)(c->n_ropes ? (void *)b->cosine[0]
                                                                               : (void *)b->alibi) - (uint8_t *)b->act),
                                                                               e) < 0 ||
        gpu_fill(b->g, GPU_COMPUTE, b->x, 0, (size_t)((uint8_t *)b->y - (uint8_t *)b->x), e) < 0 ||
        (b->arrived && gpu_fill(b->g, GPU_COMPUTE, b->arrived, 0, sizeof(unsigned) * arrivals(b), e) < 0) ||
        upload_tables(b, e) < 0 || upload_places(b, e) < 0 || one_token_open(b, e) < 0)
        return -1;
    return has_host_experts(b) && hybrid_open(b, e) < 0 ? -1 : host_open(b, e);
}

void memory_close(struct gpu_backend *b)
{
    hybrid_close(b);
    dweights_close(b->w);
    gpu_free(b->g, b->arena);
    gpu_free(b->g, b->kv);
    gpu_free(b->g, b->states);
    gpu_free(b->g, b->step);
    for (int i = 0; i < N_SLOTS; i++) {
        gpu_pinned_free(b->g, b->slot[i].words);
        gpu_pinned_free(b->g, b->slot[i].ids);
        if (b->slot[i].done)
            gpu_event_close(b->g, b->slot[i].done);
    }
    gpu_pinned_free(b->g, b->hlogits);
    gpu_pinned_free(b->g, b->hx);
    gpu_pinned_free(b->g, b->watched);
    if (b->host)
        backend_cpu.close(b->host);
}
