/* cpu_layers.c - run single layers over windows of text with the backend's code, one window at a
 * time, so that memory is needed for one window only. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/cpu/cpu_ops.h"

struct cpu_layers {
    struct config *c;               /* a copy; its RoPE tables are borrowed */
    struct core core;
    struct pool *pool;
    int n_windows, window_len, offset;
    int32_t *table, *tokens;
    uint8_t *kv;
    float *state;
    /* The bytes of a window that are kept between layers (cpu_layers_kept()).  kept: the buffer in
     * use, which is either `own`, allocated here, or the caller's. */
    uint8_t *own, *kept;
    size_t ple_bytes, stream_bytes, beside_bytes, mix_bytes, kv_bytes;
    const int32_t *ids;             /* tokens of the rows, borrowed; NULL: token 0 for all */
    /* [n_layers] the slot that keeps the layer's keys and values for later layers; -1: none */
    int *slot, n_slots;
};

size_t cpu_layers_kept(const struct cpu_layers *l)
{
    return l->ple_bytes + l->stream_bytes + l->beside_bytes + l->mix_bytes + (size_t)l->n_slots * l->kv_bytes;
}

void cpu_layers_keep(struct cpu_layers *l, void *kept)
{
    l->kept = kept ? kept : l->own;
    if (l->ple_bytes)
        l->core.ple = (float *)(void *)l->kept;
    if (l->stream_bytes)
        l->core.streams = (float *)(void *)(l->kept + l->ple_bytes);
    if (l->beside_bytes)
        l->core.beside[0] = (float *)(void *)(l->kept + l->ple_bytes + l->stream_bytes);
    if (l->mix_bytes)
        l->core.mix = (float *)(void *)(l->kept + l->ple_bytes + l->stream_bytes + l->beside_bytes);
}

void cpu_layers_tokens(struct cpu_layers *l, const int32_t *ids) { l->ids = ids; }

void *cpu_layers_streams(struct cpu_layers *l, size_t *bytes)
{
    *bytes = l->stream_bytes;
    return l->kept + l->ple_bytes;
}

static int open_kept(struct cpu_layers *l, size_t n_blocks, struct err *e)
{
    const struct config *c = l->c;
    const size_t row = (size_t)l->window_len * sizeof(float);
    l->ple_bytes = up64(row * (size_t)c->n_layers * (size_t)c->ple_dim);
    l->stream_bytes = up64(row * (size_t)(c->n_streams + c->hyper.n) * (size_t)c->hidden_size);
    l->beside_bytes = c->moe.beside ? up64(row * (size_t)c->hidden_size) : 0;
    l->mix_bytes = up64(row * (size_t)(c->hyper.n * (c->hyper.n + 1)));
    l->kv_bytes = up64(n_blocks * l->core.kv_stride);
    l->slot = malloc((size_t)c->n_layers * sizeof *l->slot);
    if (!l->slot)
        return err_nomem(e, "layer runs");
    memset(l->slot, -1, (size_t)c->n_layers * sizeof *l->slot);
    for (int i = 0; i < c->n_layers; i++)
        if (config_shares_kv(c, i) && l->slot[c->kv_from[i]] < 0)
            l->slot[c->kv_from[i]] = l->n_slots++;
    const size_t all = cpu_layers_kept(l);
    if (all && l->n_windows > 1)
        return err_set(e, ERR_UNSUPPORTED, "layers of this model run one window at a time, found %d windows",
                       l->n_windows);
    l->own = all ? aligned_alloc(64, all) : NULL;
    if (all && !l->own)
        return err_nomem(e, "layer runs");
    if (all)
        memset(l->own, 0, all);
    cpu_layers_keep(l, NULL);
    return 0;
}

struct cpu_layers *cpu_layers_open(const struct config *c, int n_windows, int window_len, int n_threads,
                                   const char *kernels, struct err *e)
{
    if (n_windows < 1 || window_len < 1 || (c->pos == POS_LEARNED && window_len > c->max_len)) {
        err_set(e, ERR_SHAPE, "%d windows of %d tokens, expected at least one of 1 to %d", n_windows, window_len,
                c->max_len);
        return NULL;
    }
    const struct kernels *k = kernels_pick(kernels, e);
    if (!k)
        return NULL;
    /* a conversion must give the same bytes on every machine */
    k = kernels_ordered(k);
    struct cpu_layers *l = calloc(1, sizeof *l);
    const int n_blocks = (window_len + KV_BLOCK - 1) / KV_BLOCK;
    if (!l)
        goto nomem;
    l->n_windows = n_windows;
    l->window_len = window_len;
    l->c = malloc(sizeof *l->c);
    l->table = calloc((size_t)n_blocks, sizeof *l->table);
    l->tokens = calloc((size_t)window_len, sizeof *l->tokens);
    if (!l->c || !l->table || !l->tokens)
        goto nomem;
    *l->c = *c;
    l->pool = pool_open(n_threads, e);
    if (!l->pool || core_open(&l->core, l->c, k, l->pool, window_len, window_len, 0,
                              kv_both(KV_F32), e) < 0)
        goto fail;
    for (int i = 0; i < c->n_layers; i++) {
        const size_t bytes = config_layer_kv_bytes(c, i, kv_both(KV_F32));
        l->core.kv_stride = bytes > l->core.kv_stride ? bytes : l->core.kv_stride;
    }
    l->kv = aligned_alloc(64, (size_t)n_blocks * l->core.kv_stride + 64);
    l->state = malloc(config_state_bytes(c) + sizeof *l->state);
    if (!l->kv || !l->state)
        goto nomem;
    l->core.states = l->state;
    /* slots that were never written are read with weight 0 */
    memset(l->kv, 0, (size_t)n_blocks * l->core.kv_stride);
    l->core.kv = l->kv;
    for (int i = 0; i < n_blocks; i++)
        l->table[i] = i;
    if (open_kept(l, (size_t)n_blocks, e) < 0)
        goto fail;
    return l;
nomem:
    err_nomem(e, "layer runs");
fail:
    cpu_layers_close(l);
    return NULL;
}

void cpu_layers_close(struct cpu_layers *l)
{
    if (!l)
        return;
    core_close(&l->core);
    pool_close(l->pool);
    free(l->c);
    free(l->table);
    free(l->tokens);
    free(l->kv);
    free(l->state);
    free(l->own);
    free(l->slot);
    free(l);
}

size_t cpu_layers_memory(const struct cpu_layers *l)
{
    const size_t n_blocks = ((size_t)l->window_len + KV_BLOCK - 1) / KV_BLOCK;
    return l->core.bytes + n_blocks * l->core.kv_stride + config_state_bytes(l->c) + cpu_layers_kept(l);
}

static void begin_window(struct cpu_layers *l, struct step *s, struct batch_item *item, const int32_t *ids)
{
    *item = (struct batch_item){ .tokens = ids ? ids : l->tokens, .n_tokens = l->window_len, .pos = 0,
                                 .table = l->table };
    core_step(&l->core, s, item, 1, &l->offset);
}

int cpu_layers_run(struct cpu_layers *l, int index, const struct layer *w, int exact, float *x,
                   const struct cpu_hook *hook, struct err *e)
{
    const int slot = l->slot[config_shares_kv(l->c, index) ? l->c->kv_from[index] : index];
    l->core.exact = exact;
    if (core_reserve(&l->core, w, 1, NULL, e) < 0)
        return -1;
    l->core.kv = slot < 0 ? l->kv : l->kept + cpu_layers_kept(l) - (size_t)(l->n_slots - slot) * l->kv_bytes;
    l->core.hook = hook;
    for (int i = 0; i < l->n_windows; i++) {
        struct step s;
        struct batch_item item;
        begin_window(l, &s, &item, l->ids ? l->ids + (size_t)i * (size_t)l->window_len : NULL);
        core_ropes(&l->core, &s);
        core_layer(&l->core, &s, w, index, x + (size_t)i * (size_t)l->window_len * (size_t)l->c->hidden_size);
    }
    l->core.hook = NULL;
    return 0;
}

int cpu_layers_choose(struct cpu_layers *l, int index, const struct layer *w, const float *h, size_t ldh, float *x,
                      int n, struct cpu_choice *c, const struct cpu_hook *hook, struct err *e)
{
    l->core.exact = 1;
    l->core.hook = hook;
    const int rc = moe_choose(&l->core, w, index, l->ids, h, ldh, x, n, c, e);
    l->core.hook = NULL;
    return rc;
}

void cpu_layers_add(struct cpu_layers *l, const struct layer *w, float *y, float *x, int n)
{
    core_add_normed(&l->core, &w->mlp_post_norm, y, x, n);
}

void cpu_layers_router(struct cpu_layers *l, const struct layer *w, const float *x, float *out, int n)
{
    core_beside_router(&l->core, w, x, out, n);
}

void cpu_layers_finish(struct cpu_layers *l, int index, const struct layer *w, float *experts, float *x)
{
    if (l->c->hyper.n) {
        hyper_leave(&l->core, x, l->window_len);
        return;
    }
    core_beside_end(&l->core, w, experts, x, l->window_len);
    ple_run(&l->core, w, index, x, l->window_len);
}

void cpu_layers_latents(struct cpu_layers *l, const struct layer *w, const float *h, size_t ldh, int n, float *out,
                        size_t ldo)
{
    l->core.exact = 1;
    for (int t = 0, count; t < n; t += count) {
        count = n - t < l->core.max_tokens ? n - t : l->core.max_tokens;
        const struct act_input in = { .x = h + (size_t)t * ldh, .ldx = ldh, .cols = l->c->hidden_size };
        moe_latents(&l->core, w, &in, count, out + (size_t)t * ldo, ldo);
    }
}

void cpu_layers_add_latents(struct cpu_layers *l, const struct linear *w, const float *sum, float *x, int n)
{
    l->core.exact = 1;
    for (int t = 0, count; t < n; t += count) {
        count = n - t < l->core.max_tokens ? n - t : l->core.max_tokens;
        moe_add_latents(&l->core, w, sum + (size_t)t * (size_t)l->c->moe.latent,
                        x + (size_t)t * (size_t)l->c->hidden_size, count);
    }
}

void cpu_choice_release(struct cpu_choice *c)
{
    free(c->first);
    free(c->share);
    *c = (struct cpu_choice){ 0 };
}

void cpu_layers_expert(struct cpu_layers *l, int index, const struct layer *w, int expert, const float *h, size_t ldh,
                       float *x, const struct cpu_choice *c, const struct cpu_hook *hook)
{
    l->core.exact = 1;
    l->core.hook = hook;
    moe_one(&l->core, w, index, expert, h, ldh, x, c);
    l->core.hook = NULL;
}

void cpu_layers_expert_mid(struct cpu_layers *l, const struct expert *x, const float *h, size_t ldh, int n, float *mid,
                           size_t ldm)
{
    l->core.exact = 1;
    for (int t = 0, count; t < n; t += count) {
        count = n - t < l->core.max_tokens ? n - t : l->core.max_tokens;
        moe_mid(&l->core, x, h + (size_t)t * ldh, ldh, count, mid + (size_t)t * ldm, ldm);
    }
}

int cpu_layers_embed(struct cpu_layers *l, const struct model *m, const int32_t *ids, float *x, struct err *e)
{
    core_set_bias(&l->core, m->distance_bias);
    for (size_t i = 0; i < (size_t)l->n_windows * (size_t)l->window_len; i++)
        if (ids[i] < 0 || ids[i] >= m->config.vocab_size)
            return err_set(e, ERR_SHAPE, "token %d is outside the vocabulary of %d", ids[i], m->config.vocab_size);
    for (int i = 0; i < l->n_windows; i++) {
        struct step s;
        struct batch_item item;
        begin_window(l, &s, &item, ids + (size_t)i * (size_t)l->window_len);
        core_embed(&l->core, m, s.n_tokens, x + (size_t)i * (size_t)l->window_len * (size_t)l->c->hidden_size);
    }
    return 0;
}

void cpu_layers_merge(struct cpu_layers *l, const struct model *m, float *x)
{
    if (l->c->n_streams)
        altup_end(&l->core, m, x, l->window_len);
    else if (l->c->hyper.n)
        hyper_end(&l->core, m, x, l->window_len);
}

int cpu_layers_logits(struct cpu_layers *l, const struct model *m, int exact, const float *x, int n, float *logits,
                      struct err *e)
{
    if (n < 1 || n > l->window_len)
        return err_set(e, ERR_SHAPE, "%d rows, expected 1 to %d", n, l->window_len);
    const float **rows = malloc((size_t)n * sizeof *rows);
    if (!rows)
        return err_nomem(e, "logits");
    for (int i = 0; i < n; i++)
        rows[i] = x + (size_t)i * (size_t)l->c->hidden_size;
    l->core.exact = exact;
    const int rc = core_reserve(&l->core, NULL, 0, &m->head, e);
    if (rc == 0)
        core_logits(&l->core, m, rows, n, logits);
    free(rows);
    return rc;
}

const struct kernels *cpu_layers_kernels(struct cpu_layers *l) { return l->core.k; }
