/* backend.c - the devices of a model.
 *
 * Several GPUs form a pipeline of stages: each runs its own layers, whose weights, keys, values and
 * states are on its device alone; the embedding is on the first, the head on the last.  Hidden
 * states go from one device to the next by a link (rt/link.h), once per step.  One thread queues
 * the work of all ranks, each in the compute stream of its device, and only the events of the links
 * order them, so a step that is begun needs no wait on the host.  The last stage draws the tokens;
 * another link returns them to the first, where the next step may read them.
 *
 * With tensor parallelism the ranks of a stage share its layers (tp_model.h): the first one looks
 * up the embedding and sends it to the others, each computes its heads, its part of the MLP and its
 * experts, and after each half of a layer all add their partial sums (all_reduce.h).  The first one
 * computes the head.  The order of the sum is fixed, so an answer depends on the number of ranks,
 * but not on links or time.  A graph of a decoding step has the work of all devices of a stage, and
 * the first one launches it.  All of them then have the hidden states, and each sends its own to
 * the rank with the same place in the next stage.
 *
 * A rank of a pipeline runs the kernels that one device would run for its layers, with the same
 * shapes, so every bit of an answer is that of one device.  If a device is lost, every step fails:
 * after a step the host waits for the ranks in order, because a rank behind a lost one computes
 * with any bytes that arrived. */
#include "gpu/backend/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/cpu/cpu.h"

static struct gpu_backend *first_of(const struct gpu_ranks *p) { return p->rank[0]; }
static int has_tp(const struct gpu_ranks *p) { return first_of(p)->tp != NULL; }
/* The rank with the head. */
static struct gpu_backend *last_of(const struct gpu_ranks *p) { return p->rank[p->n - p->a_stage]; }

/* ---- open and close ---- */

/* Wait until the devices do nothing more, whether they work or not. */
static void settle(struct gpu_ranks *p)
{
    struct err ignored;
    for (int i = 0; i < p->n; i++) {
        gpu_use(p->rank[i]->g, &ignored);
        gpu_sync(p->rank[i]->g, GPU_COMPUTE, &ignored);
    }
}

static void backend_close(void *backend)
{
    struct gpu_ranks *p = backend;
    if (!p)
        return;
    settle(p);
    for (int s = 0; s < BACKEND_MOST_GPUS / 2; s++) {
        struct tp_group *t = &p->group[s];
        all_reduce_close(t->sums);
        for (int i = 0; i < t->n; i++)
            if (t->order[i])
                gpu_event_close(t->rank[i]->g, t->order[i]);
    }
    gpu_link_close(p->drawn);
    for (int i = 0; i < p->n; i++)
        gpu_link_close(p->rank[i]->link);
    for (int i = 0; i < p->n; i++)
        rank_close(p->rank[i]);
    free(p);
}

/* Let the first rank of a stage lead the others. */
static int join_tp(struct gpu_ranks *p, int stage, struct err *e)
{
    struct gpu *g[BACKEND_MOST_GPUS];
    struct gpu_backend *const *rank = p->rank + stage * p->a_stage;
    struct tp_group *t = &p->group[stage];
    for (; t->n < p->a_stage; t->n++) {
        t->rank[t->n] = rank[t->n];
        g[t->n] = rank[t->n]->g;
        if (gpu_use(g[t->n], e) < 0 || !(t->order[t->n] = gpu_event_open(g[t->n], e)))
            return -1;
    }
    if (!(t->sums = all_reduce_open(g, t->n, &all_reduce_sizes, e)))
        return -1;
    rank[0]->group = t;
    rank[0]->pinned += all_reduce_pinned(t->sums);
    return 0;
}

/* Open the links between the ranks. */
static int join(struct gpu_ranks *p, struct err *e)
{
    for (int s = 0; has_tp(p) && s < p->n / p->a_stage; s++)
        if (join_tp(p, s, e) < 0)
            return -1;
    for (int i = p->a_stage; i < p->n; i++) {
        struct gpu_backend *b = p->rank[i], *before = p->rank[i - p->a_stage];
        const size_t size = array_size(b) * (size_t)b->m->config.hidden_size * sizeof *b->x;
        b->before = before;
        if (!(b->link = gpu_link_open(before->g, b->g, size, e)))
            return -1;
        b->pinned += gpu_link_pinned(b->link);
    }
    if (p->n == p->a_stage)
        return 0;
    p->drawn = gpu_link_open(last_of(p)->g, first_of(p)->g, MAX_DRAWS * sizeof(int32_t), e);
    return p->drawn ? 0 : -1;
}

/* Name the device, or the devices with the numbers of their layers. */
static void describe(struct gpu_ranks *p)
{
    const int all = first_of(p)->m->config.n_layers, stages = p->n / p->a_stage;
    char layers[64] = "";
    snprintf(p->name, sizeof p->name, "%s", first_of(p)->name);
    if (p->n == 1)
        return;
    if (has_tp(p))
        snprintf(layers, sizeof layers, "tensor parallel%s", stages > 1 ? ", " : "");
    for (int i = 0; stages > 1 && i < stages; i++) {
        const size_t n = strlen(layers);
        snprintf(layers + n, sizeof layers - n, "%s%d", i ? "+" : "", p->rank[i * p->a_stage]->plan.n_layers);
    }
    const char *options = strchr(p->name, ',');
    char rest[128];
    snprintf(rest, sizeof rest, "%s", options ? options : "");
    char of[32] = "";
    if (stages > 1)
        snprintf(of, sizeof of, " of %d layers", all);
    snprintf(p->name, sizeof p->name, "%s %d x %.60s, %s%s%.90s", gpu_kind, p->n, first_of(p)->plan.name, layers, of,
             rest);
}

/* Measure the memory that opening has taken of each device. */
static void measure_taken(struct gpu_ranks *p)
{
    struct gpu_info info;
    struct err ignored;
    for (int i = 0; i < p->n; i++) {
        struct gpu_backend *b = p->rank[i];
        if (gpu_info(b->g, &info, &ignored) == 0 && info.free < b->plan.free)
            b->taken = b->plan.free - info.free;
    }
}

static void *backend_open(const struct model *m, const struct backend_options *o, struct err *e)
{
    const int n = o->gpus.n > 1 ? o->gpus.n : 1;
    struct gpu_ranks *p = calloc(1, sizeof *p);
    if (!p) {
        err_nomem(e, "gpu backend");
        return NULL;
    }
    p->a_stage = stage_ranks(&o->gpus);
    for (; p->n < n; p->n++) {
        const struct backend_options own = rank_options(o, p->n);
        if (!(p->rank[p->n] = rank_open(m, &own, e))) {
            backend_close(p);
            return NULL;
        }
    }
    if (join(p, e) < 0) {
        backend_close(p);
        return NULL;
    }
    measure_taken(p);
    describe(p);
    return p;
}

/* ---- steps ---- */

static int prepare(struct gpu_ranks *p, size_t n_tables, struct err *e)
{
    for (int i = 0; i < p->n; i++)
        if (rank_prepare(p->rank[i], n_tables, e) < 0)
            return -1;
    return 0;
}

/* Run the ranks in order, and wait for them, so that the next step may overwrite their pinned
 * memory. */
static int run_ranks(struct gpu_ranks *p, const struct batch *batch, float *logits, struct err *e)
{
    for (int i = 0; i < p->n; i++)
        if (rank_forward(p->rank[i], batch, logits, e) < 0)
            return -1;
    for (int i = 0; i < p->n; i++)
        if (p->rank[i] != last_of(p) && (gpu_use(p->rank[i]->g, e) < 0 || gpu_sync(p->rank[i]->g, GPU_COMPUTE, e) < 0))
            return -1;
    return 0;
}

static int backend_forward(void *backend, const struct batch *batch, float *logits, struct err *e)
{
    struct gpu_ranks *p = backend;
    size_t n_tables;
    if (rank_check(first_of(p), batch, 0, &n_tables, e) < 0 || gpu_use(first_of(p)->g, e) < 0)
        return -1;
    if (batch->n_items == 0)
        return 0;
    if (prepare(p, n_tables, e) < 0)
        return -1;
    if (run_ranks(p, batch, logits, e) == 0)
        return 0;
    settle(p);                          /* a device may still read the pinned memory of the step */
    return -1;
}

/* Launch the step on all ranks, and return its tokens to the first. */
static int begin_ranks(struct gpu_ranks *p, const struct batch *batch, struct err *e)
{
    for (int i = 0; i < p->n; i++)
        if (rank_begin(p->rank[i], batch, e) < 0)
            return -1;
    if (p->drawn && gpu_link_send(p->drawn, first_of(p)->ids, last_of(p)->ids,
                                  (size_t)batch->n_items * sizeof(int32_t), e) < 0)
        return -1;
    for (int i = 0; i < p->n; i++) {
        p->rank[i]->n_follow = batch->n_items;
        p->rank[i]->n_begun++;
    }
    return 0;
}

static int backend_begin(void *backend, const struct batch *batch, struct err *e)
{
    struct gpu_ranks *p = backend;
    size_t n_tables;
    for (int i = 0; i < p->n; i++)
        if (!rank_can_begin(p->rank[i], batch))
            return 0;
    if (rank_check(first_of(p), batch, first_of(p)->n_follow, &n_tables, e) < 0 || prepare(p, n_tables, e) < 0)
        return -1;
    if (begin_ranks(p, batch, e) == 0)
        return 1;
    settle(p);
    return -1;
}

static int backend_end(void *backend, const struct batch *batch, struct err *e)
{
    struct gpu_ranks *p = backend;
    const int32_t *ids = NULL;
    struct err why;
    int rc = 0;
    for (int i = 0; i < p->n; i++)
        if (rank_end(p->rank[i], &ids, &why) < 0 && rc == 0) {
            *e = why;
            rc = -1;
        }
    for (int i = 0; rc == 0 && batch && i < batch->n_items; i++)
        batch->items[i].draw->id = ids[i];
    return rc;
}

/* ---- blocks and states: those of each rank's layers ---- */

static int backend_copy_block(void *backend, int32_t from, int32_t to, struct err *e)
{
    struct gpu_ranks *p = backend;
    const struct backend_options *o = &first_of(p)->o;
    const int n = o->n_blocks + o->n_window_blocks;
    if (from < 0 || from >= n || to < 0 || to >= n || (from < o->n_blocks) != (to < o->n_blocks))
        return err_set(e, ERR_SHAPE, "copy of KV block %d to %d, expected 0 to %d", from, to, n - 1);
    for (int i = 0; from != to && i < p->n; i++)
        if (rank_copy_block(p->rank[i], from, to, e) < 0)
            return -1;
    return 0;
}

static int backend_copy_state(void *backend, int from, int to, struct err *e)
{
    struct gpu_ranks *p = backend;
    const int n = first_of(p)->o.n_states;
    if (from < 0 || from >= n || to < 0 || to >= n)
        return err_set(e, ERR_SHAPE, "copy of state %d to %d, expected 0 to %d", from, to, n - 1);
    for (int i = 0; from != to && i < p->n; i++)
        if (rank_copy_state(p->rank[i], from, to, e) < 0)
            return -1;
    return 0;
}

/* Only the host's memory can be returned: the device's stays taken. */
static void backend_drop_state(void *backend, int state)
{
    const struct gpu_backend *b = first_of(backend);
    if (b->host_layers)
        backend_cpu.drop_state(b->host, state);
}
static void backend_drop_block(void *backend, int32_t block)
{
    const struct gpu_backend *b = first_of(backend);
    if (b->host_layers)
        backend_cpu.drop_block(b->host, block);
}

/* ---- sizes ---- */

static size_t backend_kv_bytes(const void *backend)
{
    const struct gpu_ranks *p = backend;
    size_t n = 0;
    for (int i = 0; i < p->n; i++)
        n += p->rank[i]->kv_size + (p->rank[i]->host ? backend_cpu.kv_bytes(p->rank[i]->host) : 0);
    return n;
}

/* Bytes of pinned memory, of keys, values and states on the devices, and of the host's layers with
 * their keys and values. */
static size_t backend_memory(const void *backend)
{
    const struct gpu_ranks *p = backend;
    size_t n = sizeof *p;
    for (int i = 0; i < p->n; i++) {
        const struct gpu_backend *b = p->rank[i];
        n += sizeof *b + b->pinned + b->kv_size + b->state_size + (b->host ? backend_cpu.memory(b->host) : 0);
    }
    return n;
}

static const char *backend_describe(const void *backend) { return ((const struct gpu_ranks *)backend)->name; }

static void add_stream(struct backend_stream *s, const struct backend_stream *r, int n_layers, int r_layers, int shares)
{
    const int mine = s->window ? s->window : n_layers, other = r->window ? r->window : r_layers;
    if (!s->window && !r->window)
        return;
    s->window = !shares ? mine + other : mine < other ? mine : other;
    s->kept = !shares ? s->kept + r->kept : mine < other ? s->kept : r->kept;
    s->slots = !shares ? s->slots + r->slots : mine < other ? s->slots : r->slots;
    s->prefetch = r->prefetch > s->prefetch ? r->prefetch : s->prefetch;
    s->given_back += r->given_back;
    s->uses += r->uses;
    s->hits += r->hits;
    s->evictions += r->evictions;
    s->bytes += r->bytes;
    s->step_wait_ns += r->step_wait_ns;
    s->link_wait_ns += r->link_wait_ns;
}

static void add_experts(struct backend_experts *x, const struct backend_experts *r)
{
    x->hits += r->hits;
    x->misses += r->misses;
    x->moved += r->moved;
    x->moved_bytes += r->moved_bytes;
    x->streamed += r->streamed;
    x->streamed_bytes += r->streamed_bytes;
    x->uploaded += r->uploaded;
    x->uploaded_bytes += r->uploaded_bytes;
}

/* Add a rank that shares the layers of d, or further stages.  Graphs are those of the first stage,
 * since each step replays one of each stage; refused ones count on all. */
static void add_device(struct backend_device *d, const struct backend_device *r, int shares)
{
    add_stream(&d->stream, &r->stream, d->n_layers, r->n_layers, shares);
    add_experts(&d->experts, &r->experts);
    if (r->prefill_threshold && (!d->prefill_threshold || r->prefill_threshold < d->prefill_threshold)) {
        d->prefill_threshold = r->prefill_threshold;
        d->threshold_from = r->threshold_from;
    }
    for (int i = 0; i < r->n_ranks; i++)
        d->ranks[d->n_ranks++] = r->ranks[i];
    if (shares) {
        d->n_experts += r->n_experts;
    } else {
        d->n_layers += r->n_layers;
        d->n_experts = r->n_experts < d->n_experts ? r->n_experts : d->n_experts;
    }
    d->weights += r->weights;
    d->cached += r->cached;
    d->kv += r->kv;
    d->work += r->work;
    d->reserve += r->reserve;
    d->taken += r->taken;
    d->total += r->total;
    d->lost |= r->lost;
    d->cache_off = d->cache_off ? d->cache_off : r->cache_off;
    d->graphs.off = d->graphs.off ? d->graphs.off : r->graphs.off;
    d->graphs.refused += r->graphs.refused;
    d->context_ns = r->context_ns > d->context_ns ? r->context_ns : d->context_ns;
    d->copied_ns = !d->copied_ns || !r->copied_ns ? 0 : r->copied_ns > d->copied_ns ? r->copied_ns : d->copied_ns;
}

static void backend_device(const void *backend, struct backend_device *d)
{
    const struct gpu_ranks *p = backend;
    for (int first = 0; first < p->n; first += p->a_stage) {
        struct backend_device stage, r;
        rank_device(p->rank[first], &stage);
        for (int i = 1; i < p->a_stage; i++) {
            rank_device(p->rank[first + i], &r);
            add_device(&stage, &r, 1);
        }
        if (first == 0)
            *d = stage;
        else
            add_device(d, &stage, 0);
    }
    for (int i = 0; d->tp && i < p->n; i++)
        d->ranks[i].direct = all_reduce_is_direct(p->group[i / p->a_stage].sums, i % p->a_stage) &&
                             (!p->rank[i]->link || d->ranks[i].direct);
}

const struct backend backend_gpu = {
    .name = "gpu", .tails = 1, .step_tokens = cpu_step_tokens, .open = backend_open, .forward = backend_forward,
    .begin = backend_begin, .end = backend_end, .copy_block = backend_copy_block, .memory = backend_memory,
    .kv_bytes = backend_kv_bytes, .describe = backend_describe, .close = backend_close,
    .drop_block = backend_drop_block, .copy_state = backend_copy_state, .drop_state = backend_drop_state,
    .device = backend_device,
};
