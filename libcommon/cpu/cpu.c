/* cpu.c - the CPU backend: checks a batch, runs it through the core layer by layer, and holds the
 * KV cache. */
#include "libcommon/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "libcommon/cpu/cpu_attn.h"
#include "libcommon/cpu/cpu_pages.h"
#include "libcommon/cpu/cpu_pattern.h"
#include "libcommon/cpu/cpu_ops.h"
#include "libcommon/model/eagle.h"

static void cpu_close(void *backend)
{
    struct cpu *b = backend;
    if (!b)
        return;
    if (b->core.kv)
        munmap(b->core.kv, b->kv_size);
    if (b->core.window_kv)
        munmap(b->core.window_kv, b->window_size);
    if (b->core.states)
        munmap(b->core.states, b->states_size);
    /* close the pool first: its threads may still read the core's memory */
    pool_close(b->pool);
    residency_close(b->core.residency);
    attn_close_stream(&b->core);
    pages_close(&b->core);
    pattern_close(&b->core);
    core_close(&b->core);
    free(b->offset);
    free(b->rows);
    free(b);
}

/* Map memory whose pages are allocated on first use; NULL for 0 bytes. */
static int map_lazily(void *to, size_t bytes, const char *what, struct err *e)
{
    void *p = bytes ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                    : NULL;
    if (p == MAP_FAILED)
        return err_set(e, ERR_MEMORY, "out of memory: %s of %zu bytes", what, bytes);
    memcpy(to, &p, sizeof p);
    return 0;
}

/* Whether the layer uses window blocks. */
static int in_windows(const struct cpu *b, int layer)
{
    return b->o.n_window_blocks && config_layer_window(&b->m->config, layer, b->o.window);
}

static int kv_open(struct cpu *b, struct err *e)
{
    const struct config *c = &b->m->config;
    struct core *k = &b->core;
    k->kv_stride = k->window_stride = 0;
    k->tail = b->o.n_window_blocks && config_tail(c, k->types, b->o.window);
    for (int i = 0; i < b->n_layers; i++) {
        if (k->tail)
            k->window_stride += config_layer_kv_bytes(c, i, kv_both(KV_F16));
        if (!in_windows(b, i) || !k->tail)
            *(in_windows(b, i) ? &k->window_stride : &k->kv_stride) += config_layer_kv_bytes(c, i, k->types);
    }
    k->kv_stride += b->o.pages ? config_page_bytes(c) : 0;
    if (__builtin_mul_overflow(k->kv_stride, (size_t)b->o.n_blocks, &b->kv_size) ||
        __builtin_mul_overflow(k->window_stride, (size_t)b->o.n_window_blocks, &b->window_size))
        return err_set(e, ERR_SHAPE, "a KV cache of %d blocks is too large", b->o.n_blocks);
    const size_t state = config_state_bytes(c);
    if (__builtin_mul_overflow(state, (size_t)b->o.n_states, &b->states_size))
        return err_set(e, ERR_SHAPE, "%d states of %zu bytes are too many", b->o.n_states, state);
    k->state_stride = state / sizeof(float);
    return map_lazily(&k->kv, b->kv_size, "KV cache", e) < 0 ||
           map_lazily(&k->window_kv, b->window_size, "KV cache", e) < 0
               ? -1 : map_lazily(&k->states, b->states_size, "states", e);
}

static int reserve_aux(struct cpu *b, struct err *e)
{
    const struct eagle *g = b->o.eagle;
    for (int i = 0; g && i < g->n_aux; i++)
        if (core_reserve(&b->core, NULL, 0, &g->aux[i], e) < 0)
            return -1;
    return 0;
}

/* The most tokens of a sequence: those of all KV blocks, or the model's context. */
static int64_t longest(const struct cpu *b)
{
    const int64_t room = (int64_t)b->o.n_blocks * KV_BLOCK, most = b->m->config.max_len;
    return most > 0 && most < room ? most : room;
}

/* Reserve memory for the experts of all layers from `from` on. */
static int reserve_experts(struct core *k, const struct model *m, int from, struct err *e)
{
    for (int i = from; i < m->config.n_layers; i++)
        if (m->layers[i].experts && moe_reserve(k, &m->layers[i], e) < 0)
            return -1;
    return 0;
}

/* experts: run also experts of the other layers. */
static void *open_layers(const struct model *m, const struct backend_options *o, int n_layers, int experts,
                         struct err *e)
{
    const int whole = n_layers == m->config.n_layers;
    if (o->n_blocks < 1 || o->n_window_blocks < 0 || o->max_tokens < 1 || o->max_logits < 0 ||
        o->max_logits > o->max_tokens) {
        err_set(e, ERR_SHAPE, "cpu: %d KV blocks, %d tokens, %d logits: expected at least 1, 1, and no more logits than tokens", o->n_blocks, o->max_tokens, o->max_logits);
        return NULL;
    }
    const char *problem = config_kv_problem(&m->config, o->kv);
    if (problem) {
        err_set(e, ERR_UNSUPPORTED, "keys as %s and values as %s: %s", kv_type_name(o->kv.key),
                kv_type_name(o->kv.value), problem);
        return NULL;
    }
    const struct kernels *picked = kernels_pick(o->kernels, e), *kernels = picked &&
        o->exact ? kernels_ordered(picked) : picked;
    struct cpu *b = kernels ? calloc(1, sizeof *b) : NULL;
    if (!b) {
        if (kernels)
            err_nomem(e, "cpu backend");
        return NULL;
    }
    b->m = m;
    b->o = *o;
    b->n_layers = n_layers;
    b->pool = pool_open(o->n_threads, e);
    if (!b->pool || core_open(&b->core, &m->config, kernels, b->pool, o->max_tokens, (int64_t)o->n_blocks * KV_BLOCK,
                              o->exact, o->kv, e) < 0 ||
        lora_open(&b->core, m, e) < 0 ||
        core_reserve(&b->core, m->layers, n_layers, whole ? &m->head : NULL, e) < 0 ||
        (m->config.predicts && core_reserve(&b->core, NULL, 0, &m->layers->next_in, e) < 0) ||
        (experts && reserve_experts(&b->core, m, n_layers, e) < 0) || reserve_aux(b, e) < 0 ||
        (whole && core_prefetch(&b->core, m, e) < 0) || kv_open(b, e) < 0 ||
        (o->window && attn_open_stream(&b->core, o->window, o->sinks, e) < 0) ||
        (o->pages && pages_open(&b->core, o->pages, MERGES * pool_size(b->pool), longest(b), e) < 0) ||
        (o->pattern.unit && pattern_open(&b->core, &o->pattern, o->n_blocks, e) < 0))
        goto fail;
    core_set_bias(&b->core, m->distance_bias);
    b->core.watch = o->watch;
    if (whole && o->max_weights && m->file && !(b->core.residency = residency_open(m, o->max_weights, e)))
        goto fail;
    b->offset = calloc((size_t)o->max_tokens, sizeof *b->offset);
    b->rows = calloc((size_t)o->max_logits + 1, sizeof *b->rows);
    if (!b->offset || !b->rows) {
        err_nomem(e, "cpu backend");
        goto fail;
    }
    snprintf(b->name, sizeof b->name, "cpu %s, %d thread%s%s", kernels->name, pool_size(b->pool),
             pool_size(b->pool) == 1 ? "" : "s", o->exact ? ", exact" : "");
    return b;
fail:
    cpu_close(b);
    return NULL;
}

static void *cpu_open(const struct model *m, const struct backend_options *o, struct err *e)
{
    return open_layers(m, o, m->config.n_layers, 0, e);
}

void *cpu_first_open(const struct model *m, const struct backend_options *o, int n_layers, int experts, struct err *e)
{
    return open_layers(m, o, n_layers, experts, e);
}

int cpu_experts_run(void *backend, int layer, const float *h, const int32_t *id, const float *weight, int n,
                    float *out)
{
    struct cpu *b = backend;
    return moe_pairs(&b->core, &b->m->layers[layer], layer, h, id, weight, n, out);
}

/* Refuse a batch that breaks the rules of backend.h. */
static int check_batch(const struct cpu *b, const struct batch *batch, struct err *e)
{
    const struct config *c = &b->m->config;
    int64_t n_tokens = 0, n_logits = 0;
    for (int i = 0; i < batch->n_items; i++) {
        const struct batch_item *it = &batch->items[i];
        if (it->n_tokens < 1 || it->pos < 0 || it->n_logits < 0 || it->n_logits > it->n_tokens || it->n_hidden < 0 ||
            it->n_hidden > it->n_tokens || it->n_tokens > b->o.max_tokens)
            return err_set(e, ERR_SHAPE, "batch item %d: %d tokens at %d, %d logits, %d hidden states", i, it->n_tokens,
                           it->pos, it->n_logits, it->n_hidden);
        if (c->pos == POS_LEARNED && (int64_t)it->pos + it->n_tokens > c->max_len)
            return err_set(e, ERR_LIMIT, "%lld tokens, but the model has positions for %d",
                           (long long)it->pos + it->n_tokens, c->max_len);
        if ((int64_t)it->pos + it->n_tokens > INT32_MAX - 64)
            return err_set(e, ERR_LIMIT, "batch item %d: position %d is too large", i, it->pos);
        for (int t = 0; t < it->n_tokens; t++)
            if (it->tokens[t] < 0 || it->tokens[t] >= c->vocab_size)
                return err_set(e, ERR_SHAPE, "token %d is outside the vocabulary of %d", it->tokens[t], c->vocab_size);
        if (c->predicts && !it->states)
            return err_set(e, ERR_SHAPE, "batch item %d: no states before the tokens", i);
        if (b->core.state_stride && (it->state < 0 || it->state >= b->o.n_states))
            return err_set(e, ERR_SHAPE, "batch item %d: state %d, expected 0 to %d", i, it->state, b->o.n_states - 1);
        const int end = (it->pos + it->n_tokens - 1) / KV_BLOCK;
        const int in_window = it->pos - config_window(c, b->o.window) + 1, in_tail = kv_tail_from(it->pos),
                  seen = b->core.tail && in_tail < in_window ? in_tail : in_window,
                  sinks = b->core.tail ? KV_SINKS : b->o.sinks;
        for (int p = 0; b->o.n_window_blocks && p <= end; p++)
            if ((p * KV_BLOCK < sinks || (p + 1) * KV_BLOCK > seen) &&
                (!it->window_table || it->window_table[p] < 0 || it->window_table[p] >= b->o.n_window_blocks))
                return err_set(e, ERR_SHAPE, "batch item %d: no window block for token %d", i, p * KV_BLOCK);
        for (int p = 0; p <= end; p++)
            if (it->table[p] < 0 || it->table[p] >= b->o.n_blocks)
                return err_set(e, ERR_SHAPE, "batch item %d: KV block %d, expected 0 to %d", i, it->table[p],
                               b->o.n_blocks - 1);
        if (it->lora < 0 || it->lora > b->m->n_loras)
            return err_set(e, ERR_SHAPE, "batch item %d: LoRA adapter %d, expected 0 to %d", i, it->lora,
                           b->m->n_loras);
        n_tokens += it->n_tokens;
        n_logits += it->n_logits;
    }
    if (n_tokens > b->o.max_tokens || n_logits > b->o.max_logits)
        return err_set(e, ERR_SHAPE, "a batch of %lld tokens and %lld logits, expected at most %d and %d",
                       (long long)n_tokens, (long long)n_logits, b->o.max_tokens, b->o.max_logits);
    return 0;
}

/* Returns the offset of the keys and values that this layer reads: in a block of the tail if
 * in_tail, otherwise in a window block or a KV block, whichever the layer uses. */
static size_t kv_offset(const struct cpu *b, int layer, int in_tail)
{
    const struct config *c = &b->m->config;
    const struct kv_types types = in_tail ? kv_both(KV_F16) : b->core.types;
    size_t at = 0;
    for (int i = 0; i < (config_shares_kv(c, layer) ? c->kv_from[layer] : layer); i++)
        if (in_tail || in_windows(b, i) == in_windows(b, layer))
            at += config_layer_kv_bytes(c, i, types);
    return at;
}

/* Returns the offset of the summaries of pages (cpu_pages.c) that this layer reads.  Those of all
 * layers are at the end of a KV block. */
static size_t pages_offset(const struct cpu *b, int layer)
{
    const struct config *c = &b->m->config;
    size_t at = b->core.kv_stride - config_page_bytes(c);
    for (int i = 0; i < (config_shares_kv(c, layer) ? c->kv_from[layer] : layer); i++)
        at += config_layer_page_bytes(c, i);
    return at;
}

/* Add the hidden states that enter this layer to the auxiliary states (batch_item.aux) of the
 * items. */
static void add_aux(struct cpu *b, const struct batch *batch, int layer)
{
    const struct eagle *g = b->o.eagle;
    const size_t hidden = (size_t)b->m->config.hidden_size;
    for (int k = 0; g && k < g->n_aux; k++)
        for (int i = 0; i < batch->n_items && g->aux_layer[k] == layer; i++) {
            const struct batch_item *it = &batch->items[i];
            const size_t first = (size_t)(b->offset[i] + it->n_tokens - it->n_hidden);
            if (it->aux && it->n_hidden)
                core_add_linear(&b->core, &g->aux[k], b->core.x + first * hidden, it->n_hidden, it->hidden);
        }
}

/* Clear the auxiliary states of the items. */
static void clear_aux(const struct cpu *b, const struct batch *batch)
{
    for (int i = 0; i < batch->n_items; i++)
        if (batch->items[i].aux)
            memset(batch->items[i].hidden, 0, (size_t)batch->items[i].n_hidden * (size_t)b->m->config.hidden_size *
                                              sizeof *batch->items[i].hidden);
}

static void watch_states(const struct core *k, int layer, int n_tokens)
{
    if (k->watch)
        k->watch->states(k->watch->user, layer, k->x, n_tokens, k->c->hidden_size);
}

/* Run the layers of this backend; the result is in core.x. */
static int run_layers(struct cpu *b, const struct batch *batch, struct err *e)
{
    struct core *k = &b->core;
    const struct config *c = &b->m->config;
    struct step s;
    if (check_batch(b, batch, e) < 0)
        return -1;
    if (batch->n_items == 0)
        return 0;
    core_step(k, &s, batch->items, batch->n_items, b->offset);
    core_ropes(k, &s);
    core_embed(k, b->m, s.n_tokens, k->x);
    if (c->predicts)
        core_predict(k, b->m, &s, k->x);
    clear_aux(b, batch);
    watch_states(k, -1, s.n_tokens);
    for (int i = 0; i < b->n_layers; i++) {
        residency_layer(k->residency, i);
        add_aux(b, batch, i);
        s.in_windows = in_windows(b, i);
        s.tail_at = k->tail ? kv_offset(b, i, 1) : 0;
        s.kv_at = k->tail && s.in_windows ? s.tail_at : kv_offset(b, i, 0);
        s.pages_at = k->pages ? pages_offset(b, i) : 0;
        core_layer(k, &s, &b->m->layers[i], i, k->x);
        watch_states(k, i, s.n_tokens);
        s.state_at += config_state_floats(c, i);
    }
    add_aux(b, batch, b->n_layers);
    if (c->n_streams)
        altup_end(k, b->m, k->x, s.n_tokens);
    if (c->hyper.n)
        hyper_end(k, b->m, k->x, s.n_tokens);
    return 0;
}

const float *cpu_first_forward(void *backend, const struct batch *batch, struct err *e)
{
    struct cpu *b = backend;
    return run_layers(b, batch, e) < 0 ? NULL : b->core.x;
}

static int cpu_forward(void *backend, const struct batch *batch, float *logits, struct err *e)
{
    struct cpu *b = backend;
    struct core *k = &b->core;
    const struct config *c = &b->m->config;
    int n_rows = 0;
    if (run_layers(b, batch, e) < 0)
        return -1;
    for (int i = 0; i < batch->n_items; i++) {
        const struct batch_item *it = &batch->items[i];
        for (int t = it->n_tokens - it->n_hidden, row = 0; t < it->n_tokens && !it->aux; t++, row++)
            core_final_norm(k, b->m, k->x + ((size_t)b->offset[i] + (size_t)t) * (size_t)c->hidden_size,
                            it->hidden + (size_t)row * (size_t)c->hidden_size);
        for (int t = it->n_tokens - it->n_logits; t < it->n_tokens; t++)
            b->rows[n_rows++] = k->x + ((size_t)b->offset[i] + (size_t)t) * (size_t)c->hidden_size;
    }
    if (n_rows > 0)
        core_logits(k, b->m, b->rows, n_rows, logits);
    if (n_rows > 0 && k->watch && k->watch->logits)
        k->watch->logits(k->watch->user, logits, n_rows, c->vocab_size);
    return 0;
}

/* Address and size of a block or window block (see backend_options). */
static uint8_t *find_block(const struct cpu *b, int32_t block, size_t *bytes)
{
    const struct core *k = &b->core;
    *bytes = block < b->o.n_blocks ? k->kv_stride : k->window_stride;
    if (*bytes == 0)
        return NULL;
    return block < b->o.n_blocks ? k->kv + (size_t)block * *bytes
                                 : k->window_kv + (size_t)(block - b->o.n_blocks) * *bytes;
}

static int cpu_copy_block(void *backend, int32_t from, int32_t to, struct err *e)
{
    struct cpu *b = backend;
    const int n = b->o.n_blocks + b->o.n_window_blocks;
    size_t bytes;
    if (from < 0 || from >= n || to < 0 || to >= n || (from < b->o.n_blocks) != (to < b->o.n_blocks))
        return err_set(e, ERR_SHAPE, "copy of KV block %d to %d, expected 0 to %d", from, to, n - 1);
    const uint8_t *source = find_block(b, from, &bytes);
    if (from != to && source)
        memcpy(find_block(b, to, &bytes), source, bytes);
    return 0;
}

/* Drop the contents of the pages that lie completely within this range. */
static void drop_pages(const void *data, size_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)data;
    const uintptr_t first = (from + page - 1) / page * page, end = (from + bytes) / page * page;
    if (first < end)
        madvise((void *)first, end - first, MADV_DONTNEED);
}

static void cpu_drop_block(void *backend, int32_t block)
{
    size_t bytes;
    const uint8_t *p = find_block(backend, block, &bytes);
    if (p)
        drop_pages(p, bytes);
}

static void cpu_drop_state(void *backend, int state)
{
    const struct core *k = &((const struct cpu *)backend)->core;
    drop_pages(k->states + (size_t)state * k->state_stride, k->state_stride * sizeof *k->states);
}

static int cpu_copy_state(void *backend, int from, int to, struct err *e)
{
    struct cpu *b = backend;
    const size_t n = b->core.state_stride;
    if (from < 0 || from >= b->o.n_states || to < 0 || to >= b->o.n_states)
        return err_set(e, ERR_SHAPE, "copy of state %d to %d, expected 0 to %d", from, to, b->o.n_states - 1);
    if (from != to && n)
        memcpy(b->core.states + (size_t)to * n, b->core.states + (size_t)from * n, n * sizeof *b->core.states);
    return 0;
}

static void cpu_save_block(const void *backend, int32_t block, void *to)
{
    size_t bytes;
    const uint8_t *p = find_block(backend, block, &bytes);
    if (p)
        memcpy(to, p, bytes);
}

static void cpu_load_block(void *backend, int32_t block, const void *from)
{
    size_t bytes;
    uint8_t *p = find_block(backend, block, &bytes);
    if (p)
        memcpy(p, from, bytes);
}

static void cpu_save_state(const void *backend, int state, void *to)
{
    const struct core *k = &((const struct cpu *)backend)->core;
    memcpy(to, k->states + (size_t)state * k->state_stride, k->state_stride * sizeof *k->states);
}

static void cpu_load_state(void *backend, int state, const void *from)
{
    struct core *k = &((struct cpu *)backend)->core;
    memcpy(k->states + (size_t)state * k->state_stride, from, k->state_stride * sizeof *k->states);
}

size_t cpu_step_memory(const struct config *c)
{
    enum { SHARE = 64, MOST = 256 << 20 };
    int64_t bytes = 0;
    for (int i = 0; i < c->n_layers && c->moe.n_experts; i++)
        bytes += config_layer_parameters(c, i, 0) / 2;
    return bytes / SHARE > MOST ? MOST : bytes / SHARE > CPU_STEP_LEAST ? (size_t)(bytes / SHARE) : CPU_STEP_LEAST;
}

int cpu_step_tokens(const struct config *c, int n_threads, int64_t max_len, const char *kernels)
{
    enum { MOST = 512 };
    struct err e;
    const struct kernels *k = kernels_pick(kernels, &e);
    const int n = core_tokens(c, k ? k : &kernels_ref, n_threads > 0 ? n_threads : pool_n_cpus(), max_len,
                              cpu_step_memory(c));
    return n < MOST ? n : MOST;
}

static size_t cpu_kv_bytes(const void *backend)
{
    const struct cpu *b = backend;
    return b->kv_size + b->window_size;
}

static size_t cpu_memory(const void *backend)
{
    const struct cpu *b = backend;
    return sizeof *b + b->core.bytes + cpu_kv_bytes(b) + b->states_size + (size_t)b->o.max_tokens * sizeof *b->offset +
           ((size_t)b->o.max_logits + 1) * sizeof *b->rows;
}

static const char *cpu_describe(const void *backend) { return ((const struct cpu *)backend)->name; }

static int cpu_loras(void *backend, struct err *e)
{
    struct cpu *b = backend;
    return lora_open(&b->core, b->m, e);
}

const struct backend backend_cpu = {
    .name = "cpu", .always_strict = 1, .windows = 1, .pages = 1, .loras = cpu_loras,
    .step_tokens = cpu_step_tokens, .open = cpu_open, .forward = cpu_forward, .begin = NULL, .end = NULL,
    .copy_block = cpu_copy_block, .memory = cpu_memory, .kv_bytes = cpu_kv_bytes,
    .describe = cpu_describe, .close = cpu_close, .drop_block = cpu_drop_block, .copy_state = cpu_copy_state,
    .drop_state = cpu_drop_state, .device = NULL, .save_block = cpu_save_block, .load_block = cpu_load_block,
    .save_state = cpu_save_state, .load_state = cpu_load_state,
};

const unsigned *cpu_count_experts(void *backend, struct err *e)
{
    struct core *k = &((struct cpu *)backend)->core;
    const size_t n = (size_t)k->c->n_layers * (size_t)k->c->moe.n_experts;
    if (n == 0) {
        err_set(e, ERR_UNSUPPORTED, "%s has no experts", k->c->arch);
        return NULL;
    }
    if (!k->moe.used && !(k->moe.used = calloc(n, sizeof *k->moe.used))) {
        err_nomem(e, "counts of experts");
        return NULL;
    }
    memset(k->moe.used, 0, n * sizeof *k->moe.used);
    return k->moe.used;
}

void cpu_streamed(void *backend, struct cpu_streamed *s)
{
    struct expert_cache *c = residency_experts(((struct cpu *)backend)->core.residency);
    *s = (struct cpu_streamed){ 0 };
    if (c)
        expert_cache_stats(c, s);
}

void cpu_passing(void *backend, struct cpu_passing *p)
{
    *p = residency_counts(((struct cpu *)backend)->core.residency);
}
