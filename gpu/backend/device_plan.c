/* device_plan.c - the memory that a model takes of each device, and how much of it fits: layers,
 * experts, f16 copies of weights, a window of layers. */
#include "gpu/backend/internal.h"

#include <stdio.h>
#include <string.h>

enum { RESERVE = 32 << 20 };           /* for the driver, besides its copies of graphs */

static const char *megabytes(char out[32], size_t n)
{
    snprintf(out, 32, "%.1f MB", (double)n * 1e-6);
    return out;
}

/* The driver gives memory in pages of 2 MiB. */
static size_t pages(size_t n) { return (n + ((size_t)2 << 20) - 1) >> 21 << 21; }

/* Why decode steps are not replayed as graphs; NULL: they are.  Layers on the CPU are outside of
 * the graph. */
static const char *graphs_off(const struct gpu_backend *b)
{
    const struct backend_options *o = &b->o;
    return has_host_experts(b) ? "the GPU lacks some experts" : o->no_graphs ? "--cuda-graphs off" : o->watch ? "ZSE_DIAG waits after every layer" : o->debug_sync ? "ZSE_DEBUG_SYNC waits after every kernel" : NULL;
}

/* A device of a group also has its part of the sums, those of halves of a layer that leave partial
 * ones, and sends or receives the embedding. */
size_t graph_nodes(const struct gpu_backend *b, int bucket)
{
    /* with many tokens, the pairs of a mixture are sorted and their results added by launches of
     * their own */
    enum { A_LAYER = 11, CODES = 4, FEW_EXPERTS = 4, EXPERTS = 6, ENDS = 6, AFTER_SUM = 1 };
    const int experts = !b->stride_expert ? 0 : 1 << bucket <= GPU_MATVEC_TOKENS ? FEW_EXPERTS : EXPERTS;
    const size_t a_layer = (size_t)(A_LAYER + CODES * (b->o.act_codes != 0) + experts);
    size_t n = ENDS;
    for (int i = b->layers.first; i < b->layers.end; i++) {
        const int split = b->tp ? b->tp->split[i] : 0;
        const size_t sums = (size_t)((split & TP_MIXER) != 0) + ((split & TP_FF) != 0);
        n += a_layer;
        if (sums)
            n += sums * (AFTER_SUM + all_reduce_nodes(&all_reduce_sizes, b->tp->n_ranks,
                                                      (size_t)b->m->config.hidden_size << bucket) /
                                         (size_t)b->tp->n_ranks);
    }
    return n + (b->tp ? (size_t)b->tp->n_ranks : 0);
}

/* An allowance for the driver's own copies of graphs and kernels, not measured: 32 MiB, and 1 KiB
 * for each node of each possible graph, on the device that runs it. */
static size_t reserve_of(const struct gpu_backend *b)
{
    enum { NODE = 1 << 10 };
    size_t nodes = 0;
    if (graphs_off(b))
        return RESERVE;
    for (int bits = 0; bits == 0 || (bits < MAX_SPLIT_BITS && 1 << (bits - 1) < b->max_splits); bits++)
        for (int i = 0; i < N_BUCKETS; i++)
            nodes += graph_fits(b, i, bits) ? graph_nodes(b, i) : 0;
    return RESERVE + nodes * NODE;
}

/* The reason why there are no f16 copies of weights; NULL: there are copies.  With
 * CACHE_WEIGHTS_AUTO it is the reason to report if plan_cache() finds too little memory. */
static const char *cache_off(const struct gpu_backend *b)
{
    if (b->o.cache_weights == CACHE_WEIGHTS_OFF)
        return "--cache-weights off";
    if (b->exact || b->o.strict)
        return b->exact ? "--exact reads the weights as stored" : "--strict multiplies all tokens alike";
    if (dweights_decoded_size(b->m, b->layers, b->o.act_codes) == 0)
        return b->o.act_codes ? "--act reads what is packed as it is" : "no weights are packed";
    return b->o.cache_weights == CACHE_WEIGHTS_AUTO
               ? "auto: 3 times the weights and 2 GB are not free, or there is no room beside the rest" : NULL;
}

static void fill_plan(const struct gpu_backend *b, struct gpu_plan *p)
{
    const struct config *c = &b->m->config;
    p->n_layers = b->layers.end - b->layers.first;
    p->ranks[0].first_layer = b->layers.first;
    p->n_experts = b->n_experts;
    p->prefill_threshold = slots_threshold(b, &p->threshold_from);
    p->tp = b->tp ? b->tp->n_ranks : 0;
    p->weights = pages(dweights_size(b->m, b->layers, b->n_experts));
    p->kv = pages(b->kv_size) + pages(b->state_size);
    p->work = pages(b->arena_size) + pages(b->step_room * 4) +
              (b->tp ? pages(all_reduce_bytes(&all_reduce_sizes, b->tp->n_ranks)) : 0);
    p->reserve = reserve_of(b);
    p->cache_off = cache_off(b);
    p->cached = p->cache_off ? 0 : pages(dweights_decoded_size(b->m, b->layers, b->o.act_codes));
    p->needed = p->weights + p->cached + p->kv + p->work + p->reserve;
    p->graphs_off = graphs_off(b);
    p->host_weights = b->tp ? 0 : dweights_host_size(b->m, b->host_layers, b->layers, b->n_experts);
    p->host_kv = 0;
    if (b->host_layers) {
        for (int i = 0; i < b->host_layers; i++)
            p->host_kv += layer_kv_bytes(b, i) * (size_t)b->o.n_blocks +
                          layer_tail_bytes(b, i) * (size_t)b->o.n_window_blocks;
        p->host_kv += (config_state_bytes(c)) * (size_t)b->o.n_states;          /* cpu.c has room for all layers */
    }
}

/* Plan a window of layers instead of all of them, if they do not fit or if the caller chose its
 * size.  A tenth of the limit stays free, so that others may take memory later.  Layers whose
 * experts are partly on the processor stay. */
static void plan_window(const struct model *m, const struct backend_options *o, struct gpu_plan *p)
{
    struct gpu_backend b = { .m = m, .o = *o };
    struct err ignored;
    size_t layer;
    const struct layer_range layers = { p->ranks[0].first_layer, p->ranks[0].first_layer + p->n_layers };
    const int wanted = o->stream_window ? o->stream_window < p->n_layers : p->needed > p->limit;
    if (!wanted || o->layer_stream == LAYER_STREAM_OFF || o->cache_weights == CACHE_WEIGHTS_ON ||
        (!p->tp && p->n_experts < m->config.moe.n_experts) || memory_part(&b, &ignored) < 0)
        return;
    const size_t ends = pages(dweights_ends_size(b.m, layers, p->n_experts, &layer)),
                 beside = ends + p->kv + p->work + RESERVE;
    tp_model_close(b.tp);
    int n = o->stream_window ? o->stream_window
                             : window_size((double)p->limit * 0.9, (double)beside, (double)pages(layer), 0);
    n = n < p->n_layers ? n : p->n_layers;
    p->most_window = window_size((double)p->limit, (double)beside, (double)pages(layer), 0);
    if (n < 1 || (!o->stream_window && n > p->most_window))
        return;
    const struct window_shape s = window_shape_of(n, o->stream_prefetch, o->stream_sequential ? WINDOW_SEQUENTIAL
                                                                                              : WINDOW_ADAPTIVE);
    p->window = s.n_kept + s.n_slots;
    p->kept = s.n_kept;
    p->slots = s.n_slots;
    p->prefetch = s.prefetch;
    p->stream_bytes = n < p->n_layers ? (size_t)(p->n_layers - s.n_kept) * layer : 0;
    p->weights = ends + (size_t)p->window * pages(layer);
    p->cached = 0;
    p->reserve = RESERVE;
    p->needed = beside + (size_t)p->window * pages(layer);
    p->cache_off = p->graphs_off = "layers are uploaded at every step";
}

static size_t limit_of(const struct backend_options *o, const struct gpu_plan *p)
{
    return o->max_device && o->max_device < p->free ? o->max_device : p->free;
}

static int plan_for(const struct model *m, const struct backend_options *o, int device_layers, struct gpu_plan *p,
                    struct err *e)
{
    struct gpu_backend b = { .m = m, .o = *o };
    b.o.device_layers = device_layers;
    const int rc = memory_part(&b, e) < 0 || memory_sizes(&b, e) < 0 ? -1 : 0;
    if (rc == 0)
        fill_plan(&b, p);
    tp_model_close(b.tp);
    if (rc < 0)
        return -1;
    return o->cache_weights == CACHE_WEIGHTS_ON &&
           p->cache_off ? err_set(e, ERR_SHAPE, "--cache-weights on: %s", p->cache_off) : 0;
}

void plan_fix_experts(struct backend_options *o, const struct gpu_plan *p)
{
    o->moe = p->n_experts || o->moe != MOE_HYBRID ? o->moe : MOE_PASSING;
    o->gpu_experts = p->n_experts;
}

/* MOE_HYBRID: the plan with as many experts on the device as fit into the limit of p.  p: the plan
 * with all, which stays if it fits or if even a plan without experts does not. */
static void plan_experts_that_fit(const struct model *m, const struct backend_options *o, struct gpu_plan *p)
{
    struct backend_options with = *o;
    struct gpu_plan best = *p;
    struct err ignored;
    int low = 0, high = m->config.moe.n_experts;        /* fewer than `high` may fit, `low` - 1 fit */
    if (p->tp || o->moe != MOE_HYBRID || o->gpu_experts || p->needed <= p->limit)
        return;
    while (low < high) {
        struct gpu_plan one = *p;
        const int n = low + (high - low) / 2;
        with.moe = n ? MOE_HYBRID : MOE_PASSING;
        with.gpu_experts = n;
        const int fits = plan_for(m, &with, o->device_layers, &one, &ignored) == 0 && one.needed <= one.limit;
        best = fits ? one : best;
        low = fits ? n + 1 : low;
        high = fits ? high : n;
    }
    *p = best;
}

/* --cache-weights auto: decide whether to keep f16 copies.  p: the plan without copies, replaced by
 * the plan with them if there is enough memory. */
static void plan_cache(const struct model *m, const struct backend_options *o, struct gpu_plan *p)
{
    static const size_t BESIDE = 2000000000;
    struct backend_options with = *o;
    struct gpu_plan q = *p;
    struct err ignored;
    if (!p->tp)
        plan_fix_experts(&with, p);
    with.cache_weights = CACHE_WEIGHTS_ON;
    if (p->limit >= 3 * p->weights + BESIDE && plan_for(m, &with, o->device_layers, &q, &ignored) == 0 &&
        q.needed <= p->limit)
        *p = q;
}

struct backend_options rank_options(const struct backend_options *o, int rank)
{
    struct backend_options own = *o;
    own.gpus.rank = rank;
    if (o->gpus.n > 1)
        own.device = o->gpus.index[rank];
    return own;
}

/* The largest number of layers that fit into the limits of the ranks of p, with MOE_HYBRID without
 * experts; 0: none. */
static int most_layers(const struct model *m, const struct backend_options *o, const struct gpu_plan *p)
{
    struct err ignored;
    for (int n = m->config.n_layers; n > 0; n--) {
        int fit = 0;
        for (int i = 0; i < p->n_ranks; i++) {
            struct backend_options with = rank_options(o, i);
            struct gpu_plan one = { .n_layers = 0 };
            if (o->moe == MOE_HYBRID && !o->gpu_experts)
                with.moe = MOE_PASSING;
            fit += plan_for(m, &with, n, &one, &ignored) == 0 && one.needed <= p->ranks[i].limit;
        }
        if (fit == p->n_ranks)
            return n;
    }
    return 0;
}

/* Copy the sizes of a plan to those of its only rank. */
static void fill_rank(const struct backend_options *o, struct gpu_plan *p)
{
    struct gpu_plan_rank *r = &p->ranks[0];
    const int first = r->first_layer;
    p->n_ranks = 1;
    *r = (struct gpu_plan_rank){ .index = o->device, .first_layer = first, .n_layers = p->n_layers,
                                 .weights = p->weights, .cached = p->cached, .kv = p->kv, .work = p->work,
                                 .reserve = p->reserve, .needed = p->needed, .limit = p->limit, .total = p->total };
    memcpy(r->name, p->name, sizeof r->name);
}

int plan_rank(struct gpu *g, const struct model *m, const struct backend_options *o, struct gpu_plan *p,
                   struct err *e)
{
    struct gpu_info info;
    if (gpu_info(g, &info, e) < 0)
        return -1;
    *p = (struct gpu_plan){ .total = info.memory, .free = info.free };
    snprintf(p->name, sizeof p->name, "%s", info.name);
    if (plan_for(m, o, o->device_layers, p, e) < 0)
        return -1;
    p->limit = limit_of(o, p);
    if (!o->stream_window)              /* a window that the caller chose holds layers with all experts */
        plan_experts_that_fit(m, o, p);
    if (o->cache_weights == CACHE_WEIGHTS_AUTO)
        plan_cache(m, o, p);
    plan_window(m, o, p);
    fill_rank(o, p);
    p->most_layers = p->needed <= p->limit ? p->n_layers : o->gpus.n > 1 ? 0 : most_layers(m, o, p);
    return 0;
}

/* ---- all devices ---- */

/* Add the plan of a rank that shares the layers of p, or of further stages. */
static void add_plan(struct gpu_plan *p, const struct gpu_plan *r, int shares)
{
    const int windows = p->window || r->window, mine = p->window ? p->window : p->n_layers,
              other = r->window ? r->window : r->n_layers;
    for (int i = 0; i < r->n_ranks; i++)
        p->ranks[p->n_ranks++] = r->ranks[i];
    p->window = !windows ? 0 : !shares ? mine + other : mine < other ? mine : other;
    if (shares) {
        p->n_experts += r->n_experts;
        p->kept = mine < other ? p->kept : r->kept;
        p->slots = mine < other ? p->slots : r->slots;
    } else {
        p->n_layers += r->n_layers;
        p->kept += r->kept;
        p->slots += r->slots;
        p->n_experts = r->n_experts < p->n_experts ? r->n_experts : p->n_experts;
    }
    p->weights += r->weights;
    p->cached += r->cached;
    p->kv += r->kv;
    p->work += r->work;
    p->reserve += r->reserve;
    p->needed += r->needed;
    p->limit += r->limit;
    p->total += r->total;
    p->free += r->free;
    p->host_weights += r->host_weights;
    p->host_kv += r->host_kv;
    p->prefetch = r->prefetch > p->prefetch ? r->prefetch : p->prefetch;
    p->stream_bytes += r->stream_bytes;
    if (!p->prefill_threshold) {        /* before any measurement all are equal */
        p->prefill_threshold = r->prefill_threshold;
        p->threshold_from = r->threshold_from;
    }
    p->cache_off = p->cache_off ? p->cache_off : r->cache_off;
    p->graphs_off = p->graphs_off ? p->graphs_off : r->graphs_off;
}

static int all_fit(const struct gpu_plan *p)
{
    int n = 0;
    for (int i = 0; i < p->n_ranks; i++)
        n += p->ranks[i].needed <= p->ranks[i].limit;
    return n == p->n_ranks;
}

int gpu_plan(const struct model *m, const struct backend_options *o, struct gpu_plan *p, struct err *e)
{
    const int n = o->gpus.n > 1 ? o->gpus.n : 1, shared = stage_ranks(&o->gpus);
    struct gpu_plan stage;
    for (int i = 0; i < n; i++) {
        const struct backend_options own = rank_options(o, i);
        struct gpu_plan one;
        /* refuse a model that no device can run before a device is opened */
        if (plan_for(m, &own, o->device_layers, &one, e) < 0)
            return -1;
        struct gpu *g = gpu_open(own.device, 0, e);
        const int rc = g ? plan_rank(g, m, &own, &one, e) : -1;
        gpu_close(g);
        if (rc < 0)
            return -1;
        if (i % shared == 0)
            stage = one;
        else
            add_plan(&stage, &one, 1);
        if (i + 1 == shared)
            *p = stage;
        else if ((i + 1) % shared == 0)
            add_plan(p, &stage, 0);
    }
    if (n > 1)
        p->most_layers = all_fit(p) ? p->n_layers : p->tp ? 0 : most_layers(m, o, p);
    return 0;
}

int gpu_plan_fits(const struct gpu_plan *p, const struct backend_options *o, struct err *e)
{
    char s[7][32], fewer[80] = "", cached[80] = "", layers[96];
    const struct gpu_plan_rank *r = p->ranks, *end = r + p->n_ranks;
    while (r < end && r->needed <= r->limit)
        r++;
    if (r == end)
        return 0;
    if (p->window && p->most_window > 0)
        snprintf(fewer, sizeof fewer, "; --layer-window %d fits", p->most_window);
    else if (p->most_layers > 0)
        snprintf(fewer, sizeof fewer, "; --gpu-layers %d fits", p->most_layers);
    if (r->cached)
        snprintf(cached, sizeof cached, ", f16 copies %s (--cache-weights)", megabytes(s[6], r->cached));
    if (p->tp)
        snprintf(layers, sizeof layers, "its part of %d layers on GPU %d (--tp)", r->n_layers, r->index);
    else if (o->gpus.n > 1)
        snprintf(layers, sizeof layers, "layers %d to %d on GPU %d (--pp-split)", r->first_layer,
                 r->first_layer + r->n_layers - 1, r->index);
    else if (p->window)
        snprintf(layers, sizeof layers, "a window of %d of %d layers (--layer-window)", p->window, r->n_layers);
    else
        snprintf(layers, sizeof layers, "%d layers", r->n_layers);
    return err_set(e, ERR_MEMORY, "%.100s needs %s of device memory for %s (weights %s%s, keys, values and states %s, work %s, reserve %s), but %s %s: fewer bits a weight (-q), a shorter "
                   "--ctx or --kv i8 need less%s", r->name, megabytes(s[0], r->needed), layers,
                   megabytes(s[1], r->weights), cached, megabytes(s[2], r->kv), megabytes(s[3], r->work),
                   megabytes(s[4], r->reserve), megabytes(s[5], r->limit), o->max_device &&
                   o->max_device <= r->limit ? "may be taken (--max-device, --max-memory)" : "are free", fewer);
}
