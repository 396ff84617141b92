/* expert_slots.c - experts that move to the device while it runs.
 *
 * Long prompts: a step of many tokens chooses nearly all experts, and the device computes a product
 * of many tokens much faster than the host.  So the experts that a layer lacks pass through two
 * groups of slots: while the device computes with one group, the ring fills the other.  Each expert
 * is uploaded once for each layer and step, whatever the tokens chose, and nothing waits for the
 * router.
 *
 * Short steps: the host counts how often each expert is chosen, and experts that are chosen often
 * move to the device (plan/expert_moves.h).  With strict nothing moves, so that no answer depends
 * on earlier ones. */
#include "gpu/backend/internal.h"

enum {
    GROUP_BYTES = 16 << 20,             /* most bytes of a group, unless one expert is larger */
    LEAST_GROUPS = 4,                   /* groups of a layer, so that uploads and kernels overlap */
    RING_BUFFERS = 4, RING_BYTES = 4 << 20,
};

static int n_missing(const struct gpu_backend *b) { return b->m->config.moe.n_experts - b->n_experts; }

static size_t slot_bytes(const struct expert *x)
{
    struct dweights_part part[EXPERT_PARTS];
    int n;
    return dweights_expert(x, part, &n);
}

/* Bytes of the largest slot of all layers on the device. */
static size_t largest_slot(const struct gpu_backend *b)
{
    size_t most = 0;
    for (int i = b->layers.first; i < b->layers.end; i++)
        if (b->m->layers[i].experts) {
            const size_t size = slot_bytes(b->m->layers[i].experts);
            most = size > most ? size : most;
        }
    return most;
}

size_t slots_plan(struct gpu_backend *b)
{
    const size_t slot = largest_slot(b);
    b->hybrid.stream_slots = 0;
    if (!has_host_experts(b) || slot == 0 || b->o.no_gpu_prefill || b->o.strict)
        return 0;
    const int fit = (int)(GROUP_BYTES / slot), part = (n_missing(b) + LEAST_GROUPS - 1) / LEAST_GROUPS;
    b->hybrid.stream_slots = fit < 1 ? 1 : fit < part ? fit : part;
    return 2 * (size_t)b->hybrid.stream_slots * slot;
}

int slots_open(struct gpu_backend *b, struct err *e)
{
    const struct config *c = &b->m->config;
    struct hybrid *h = &b->hybrid;
    h->swapped_at = NEVER;
    if (moves_open(&h->moves, b->layers.first, b->layers.end, c->moe.n_experts) < 0)
        return err_nomem(e, "counts of experts");
    if (b->o.strict)
        return 0;
    for (int i = 0; i < 2; i++)
        if (!(h->filled[i] = gpu_event_open(b->g, e)) || !(h->used[i] = gpu_event_open(b->g, e)))
            return -1;
    if (!(h->swapped = gpu_event_open(b->g, e)) || !(h->ring = gpu_ring_open(b->g, RING_BUFFERS, RING_BYTES, e)))
        return -1;
    b->pinned += RING_BUFFERS * (size_t)RING_BYTES;
    return 0;
}

void slots_close(struct gpu_backend *b)
{
    struct hybrid *h = &b->hybrid;
    struct gpu_event *events[] = { h->filled[0], h->filled[1], h->used[0], h->used[1], h->swapped };
    gpu_ring_close(h->ring);
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i])
            gpu_event_close(b->g, events[i]);
    moves_close(&h->moves);
}

/* Queue the upload of an expert to a slot; *bytes is increased by its size. */
static int upload(struct gpu_backend *b, const struct expert *x, uint8_t *slot, uint64_t *bytes, struct err *e)
{
    struct dweights_part part[EXPERT_PARTS];
    int n;
    dweights_expert(x, part, &n);
    for (int i = 0; i < n; i++) {
        if (gpu_ring_upload(b->hybrid.ring, slot + part[i].offset, part[i].from, part[i].size, e) < 0)
            return -1;
        *bytes += part[i].size;
    }
    return 0;
}

/* ---- long prompts ---- */

int slots_stream(const struct gpu_backend *b)
{
    const int least = b->o.prefill_threshold ? b->o.prefill_threshold : BACKEND_PREFILL_THRESHOLD;
    return b->hybrid.stream_slots > 0 && b->n >= least;
}

int slots_fill(struct gpu_backend *b, int layer, int first, struct dexperts *slots, struct err *e)
{
    struct hybrid *h = &b->hybrid;
    const struct expert *experts = b->m->layers[layer].experts;
    const int32_t *place = places_of(b, h->host_place, layer);
    const int left = n_missing(b) - first, n = left < h->stream_slots ? left : h->stream_slots, turn = h->turn;
    const size_t slot = slot_bytes(experts);
    uint8_t *to = h->stream + (size_t)turn * (size_t)h->stream_slots * largest_slot(b);
    if (n == 0)
        return 0;
    if (gpu_event_wait(b->g, GPU_COPY, h->used[turn], e) < 0)
        return -1;
    for (int x = 0; x < b->m->config.moe.n_experts; x++) {
        const int at = -1 - place[x] - first;
        if (place[x] < 0 && at >= 0 && at < n &&
            upload(b, &experts[x], to + (size_t)at * slot, &h->counts.streamed_bytes, e) < 0)
            return -1;
    }
    h->counts.streamed += (uint64_t)n;
    *slots = dweights_slots(experts, to);
    return gpu_event_record(b->g, GPU_COPY, h->filled[turn], e) < 0 ||
           gpu_event_wait(b->g, GPU_COMPUTE, h->filled[turn], e) < 0 ? -1 : n;
}

int slots_used(struct gpu_backend *b, struct err *e)
{
    struct hybrid *h = &b->hybrid;
    const int turn = h->turn;
    h->turn ^= 1;
    return gpu_event_record(b->g, GPU_COMPUTE, h->used[turn], e);
}

/* ---- experts that are chosen often ---- */

void slots_count(struct gpu_backend *b, int layer, const int32_t *id, int n)
{
    const struct config *c = &b->m->config;
    struct hybrid *h = &b->hybrid;
    const int32_t *place = places_of(b, h->host_place, layer);
    for (int i = 0; i < n * c->moe.top_k; i++)
        if (id[i] >= 0)
            *(place[id[i]] < 0 ? &h->counts.misses : &h->counts.hits) += 1;
    moves_count(&h->moves, layer, id, n * c->moe.top_k, n);
}

static int run_move(struct gpu_backend *b, const struct expert_move *m, struct err *e)
{
    struct hybrid *h = &b->hybrid;
    int32_t *place = places_of(b, h->host_place, m->layer);
    const struct gpu_expert_mat *first = &dweights_layer(b->w, m->layer)->experts.gate;
    const int slot = place[m->out];
    uint8_t *to = (uint8_t *)(uintptr_t)first->w.data + (size_t)slot * first->stride;
    if (upload(b, &b->m->layers[m->layer].experts[m->in], to, &h->counts.moved_bytes, e) < 0)
        return -1;
    place[m->out] = place[m->in];
    place[m->in] = slot;
    h->counts.moved++;
    h->swapped_at = h->swapped_at == NEVER || m->layer < h->swapped_at ? m->layer : h->swapped_at;
    return 0;
}

int slots_begin(struct gpu_backend *b, struct err *e)
{
    struct hybrid *h = &b->hybrid;
    struct expert_move m;
    int n = 0;
    if (b->o.strict || b->n_experts == 0)
        return 0;
    moves_step(&h->moves);
    for (; n < MOVES_A_STEP && (m = moves_best(&h->moves, h->host_place)).gain > 0; n++) {
        /* the device may still read the slot */
        if (n == 0 && (gpu_event_record(b->g, GPU_COMPUTE, h->swapped, e) < 0 ||
                       gpu_event_wait(b->g, GPU_COPY, h->swapped, e) < 0))
            return -1;
        if (run_move(b, &m, e) < 0)
            return -1;
    }
    if (n == 0)
        return 0;
    return gpu_event_record(b->g, GPU_COPY, h->swapped, e) < 0
               ? -1 : gpu_upload(b->g, GPU_COMPUTE, h->place, h->host_place, hybrid_places(b), e);
}

int slots_need(struct gpu_backend *b, int layer, struct err *e)
{
    struct hybrid *h = &b->hybrid;
    if (!has_host_experts(b) || h->swapped_at != layer)
        return 0;
    h->swapped_at = NEVER;
    return gpu_event_wait(b->g, GPU_COMPUTE, h->swapped, e);
}
