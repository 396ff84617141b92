/* expert_slots.c - experts that move to the device while it runs.
 *
 * Long prompts: a step of many tokens chooses nearly all experts, and the device computes a product
 * of many tokens much faster than the host.  So the experts that a layer lacks pass through two
 * groups of slots: while the device computes with one group, the ring fills the other.  Each expert
 * is uploaded once for each layer and step, whatever the tokens chose, and nothing waits for the
 * router.
 *
 * Short steps: some of the chosen experts that the device lacks pass through the slots of both
 * groups together (hybrid.c).
 *
 * The host counts how often each expert is chosen, and experts that are chosen often move to the
 * device (plan/expert_moves.h). */
#include "gpu/backend/internal.h"

#include <stdlib.h>

#include "libcommon/base/pool.h"

enum {
    GROUP_BYTES = 32 << 20,             /* most bytes of a group, unless one expert is larger */
    LEAST_GROUPS = 4,                   /* groups of a layer, so that uploads and kernels overlap */
    RING_BUFFERS = 4, RING_BYTES = 4 << 20,
    /* the crew has a thread for each CREW_SHARE processors, at most CREW_MOST: a thread fills the
     * ring at about 10 GB/s (assumed) */
    CREW_SHARE = 8, CREW_MOST = 4,
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

/* Do any experts pass through slots? */
static int lets_pass(const struct gpu_backend *b)
{
    const struct backend_options *o = &b->o;
    return o->moe == MOE_CPU ? !o->strict && !o->no_gpu_prefill
           : o->strict || !o->no_gpu_prefill || o->expert_uploads != 0;
}

size_t slots_plan(struct gpu_backend *b)
{
    const size_t slot = largest_slot(b);
    b->hybrid.stream_slots = 0;
    if (!has_host_experts(b) || slot == 0 || !lets_pass(b))
        return 0;
    const int fit = (int)(GROUP_BYTES / slot), part = (n_missing(b) + LEAST_GROUPS - 1) / LEAST_GROUPS;
    b->hybrid.stream_slots = fit < 1 ? 1 : fit < part ? fit : part;
    return 2 * (size_t)b->hybrid.stream_slots * slot;
}

size_t slots_bytes(const struct gpu_backend *b, int layer) { return slot_bytes(b->m->layers[layer].experts); }

int slots_open(struct gpu_backend *b, struct err *e)
{
    const struct config *c = &b->m->config;
    struct hybrid *h = &b->hybrid;
    h->swapped_at = NEVER;
    if (moves_open(&h->moves, b->layers.first, b->layers.end, c->moe.n_experts) < 0)
        return err_nomem(e, "counts of experts");
    if (!(h->missing = malloc((size_t)c->moe.n_experts * sizeof *h->missing)))
        return err_nomem(e, "missing experts");
    for (int i = 0; i < 2; i++)
        if (!(h->filled[i] = gpu_event_open(b->g, e)) || !(h->used[i] = gpu_event_open(b->g, e)))
            return -1;
    if (!(h->begun = gpu_event_open(b->g, e)) || !(h->sent = gpu_event_open(b->g, e)) ||
        !(h->swapped = gpu_event_open(b->g, e)) ||
        !(h->ring = gpu_ring_open(b->g, RING_BUFFERS, RING_BYTES, e)))
        return -1;
    b->pinned += RING_BUFFERS * (size_t)RING_BYTES;
    if (!host_computes(b) || b->o.moe == MOE_CPU || b->o.expert_uploads == 0)
        return 0;
    const int n = pool_n_cpus() / CREW_SHARE;
    h->crew = crew_open(b->g, h->ring, n < 1 ? 1 : n > CREW_MOST ? CREW_MOST : n, e);
    return h->crew ? 0 : -1;
}

void slots_close(struct gpu_backend *b)
{
    struct hybrid *h = &b->hybrid;
    struct gpu_event *events[] = { h->filled[0], h->filled[1], h->used[0], h->used[1], h->begun, h->sent,
                                   h->swapped };
    crew_close(h->crew);
    gpu_ring_close(h->ring);
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        if (events[i])
            gpu_event_close(b->g, events[i]);
    free(h->missing);
    moves_close(&h->moves);
}

/* ---- experts that pass through slots ---- */

static int may_stream(const struct gpu_backend *b) { return b->hybrid.stream_slots > 0 && !b->o.no_gpu_prefill; }

/* The average number of a token's choices that the device lacks; until any were counted, as if all
 * experts were chosen equally often. */
static double misses_of_token(const struct gpu_backend *b)
{
    const struct moe *m = &b->m->config.moe;
    const struct backend_experts *c = &b->hybrid.counts;
    const double all = (double)(c->hits + c->misses);
    return m->top_k * (all > 0 ? (double)c->misses / all : (double)n_missing(b) / m->n_experts);
}

int slots_threshold(const struct gpu_backend *b, const char **from)
{
    const struct expert_speeds s = shares_speeds(&b->hybrid.shares);
    *from = NULL;
    if (!may_stream(b))
        return 0;
    if (b->o.prefill_threshold) {
        *from = "given";
        return b->o.prefill_threshold;
    }
    if (b->o.strict || s.link <= 0 || s.read <= 0 || s.products <= 0) {
        *from = b->o.strict ? "fixed with --strict" : "until measured";
        return EXPERT_THRESHOLD;
    }
    *from = "measured";
    return expert_threshold(n_missing(b), misses_of_token(b), &s);
}

int slots_choose(struct gpu_backend *b, struct err *e)
{
    struct hybrid *h = &b->hybrid;
    const char *from;
    double seconds;
    if (h->sent_bytes && gpu_event_elapsed(b->g, h->begun, h->sent, &seconds, e) < 0)
        return -1;
    if (h->sent_bytes)
        shares_learn_link(&h->shares, (double)h->sent_bytes, seconds);
    h->sent_bytes = 0;
    h->threshold = slots_threshold(b, &from);
    /* A speed that was measured wrong could exclude the steps that would measure it again.  So some
     * of those that the speeds and EXPERT_THRESHOLD would compute differently follow the latter. */
    if (!b->o.prefill_threshold && (b->n >= h->threshold) != (b->n >= EXPERT_THRESHOLD) &&
        ++h->n_against >= SHARE_PROBE) {
        h->n_against = 0;
        h->threshold = EXPERT_THRESHOLD;
    }
    return 0;
}

int slots_stream(const struct gpu_backend *b) { return may_stream(b) && b->n >= b->hybrid.threshold; }

void slots_pass_all(struct gpu_backend *b, int layer)
{
    b->hybrid.passing = places_of(b, b->hybrid.host_place, layer);
    b->hybrid.n_passing = n_missing(b);
}

int slots_post(struct gpu_backend *b, int layer, struct err *e)
{
    struct hybrid *h = &b->hybrid;
    const struct expert *experts = b->m->layers[layer].experts;
    if (gpu_event_wait(b->g, GPU_COPY, h->used[0], e) < 0 || gpu_event_wait(b->g, GPU_COPY, h->used[1], e) < 0 ||
        gpu_event_record(b->g, GPU_COPY, h->begun, e) < 0)
        return -1;
    crew_post(h->crew, &(struct crew_work){ experts, h->missing, h->n_passing, h->stream, slot_bytes(experts),
                                            h->filled[0] });
    h->posted = 1;
    return 0;
}

/* Wait until the crew has queued all copies, and let the compute stream wait for them. */
static int take_posted(struct gpu_backend *b, const struct expert *experts, struct dexperts *slots, struct err *e)
{
    struct hybrid *h = &b->hybrid;
    uint64_t bytes;
    h->posted = 0;
    h->both = 1;
    if (crew_wait(h->crew, &bytes, e) < 0)
        return -1;
    h->timed_bytes = bytes;
    h->counts.uploaded += (uint64_t)h->n_passing;
    h->counts.uploaded_bytes += bytes;
    *slots = dweights_slots(experts, h->stream);
    return gpu_event_wait(b->g, GPU_COMPUTE, h->filled[0], e) < 0 ? -1 : h->n_passing;
}

/* Queue the upload of passing experts first .. first + n - 1 to the next group. */
static int fill_group(struct gpu_backend *b, const struct expert *experts, int first, int n, uint8_t *to, struct err *e)
{
    struct hybrid *h = &b->hybrid;
    const int turn = h->turn, chosen = h->passing == h->host_up;
    const size_t slot = slot_bytes(experts);
    uint64_t *bytes = chosen ? &h->counts.uploaded_bytes : &h->counts.streamed_bytes;
    h->timed_bytes = 0;                 /* the event `filled` becomes that of this group */
    const int times = !chosen && h->sent_bytes == 0;    /* the first group of a step */
    const uint64_t before = *bytes;
    if (gpu_event_wait(b->g, GPU_COPY, h->used[turn], e) < 0 ||
        (times && gpu_event_record(b->g, GPU_COPY, h->begun, e) < 0))
        return -1;
    for (int x = 0; x < b->m->config.moe.n_experts; x++) {
        const int at = -1 - h->passing[x] - first;
        if (h->passing[x] < 0 && at >= 0 && at < n &&
            upload_expert(h->ring, &experts[x], to + (size_t)at * slot, bytes, e) < 0)
            return -1;
    }
    *(chosen ? &h->counts.uploaded : &h->counts.streamed) += (uint64_t)n;
    if (times) {
        h->sent_bytes = *bytes - before;
        if (gpu_event_record(b->g, GPU_COPY, h->sent, e) < 0)
            return -1;
    }
    return gpu_event_record(b->g, GPU_COPY, h->filled[turn], e) < 0
               ? -1 : gpu_event_wait(b->g, GPU_COMPUTE, h->filled[turn], e);
}

int slots_fill(struct gpu_backend *b, int layer, int first, struct dexperts *slots, struct err *e)
{
    struct hybrid *h = &b->hybrid;
    const struct expert *experts = b->m->layers[layer].experts;
    const int left = h->n_passing - first, n = left < h->stream_slots ? left : h->stream_slots;
    uint8_t *to = h->stream + (size_t)h->turn * (size_t)h->stream_slots * largest_slot(b);
    if (n == 0)
        return 0;
    if (h->posted)
        return take_posted(b, experts, slots, e);
    *slots = dweights_slots(experts, to);
    return fill_group(b, experts, first, n, to, e) < 0 ? -1 : n;
}

int slots_used(struct gpu_backend *b, struct err *e)
{
    struct hybrid *h = &b->hybrid;
    const int turn = h->turn, both = h->both;
    h->turn ^= 1;
    h->both = 0;
    return (both && gpu_event_record(b->g, GPU_COMPUTE, h->used[turn ^ 1], e) < 0)
               ? -1 : gpu_event_record(b->g, GPU_COMPUTE, h->used[turn], e);
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
    if (upload_expert(h->ring, &b->m->layers[m->layer].experts[m->in], to, &h->counts.moved_bytes, e) < 0)
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
    if (b->n_experts == 0)
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
