/* hybrid.c - layers whose experts are partly on the host.  After the router, the device copies the
 * input of the experts and the choices to the host, once for each layer, and goes on with the
 * shared MLP and the experts that it has.  The host meanwhile divides the chosen experts that the
 * device lacks: a crew of threads uploads one part, the host computes the others from the mapped
 * file and uploads one row for each of its pairs of token and expert.  Then the device computes the
 * uploaded experts.
 *
 *     compute stream  router, to host | shared MLP, own experts | . . . . . . . .  | uploaded | sum
 *     copy stream                       . . . . | expert | expert | expert | . . . . . . .
 *     crew                              . . . . | to pinned memory | . . .
 *     host            . . . . . . . .  | divide | the CPU's experts . . . . | rows up |
 *
 * Events, each behind work of the first stream: `asked` (compute, to the host) the choices are on
 * the host; used[] (compute, to copy) no kernel reads the slots of the layer before any more;
 * filled[0] (copy, to compute) the uploaded experts are there, which the compute stream waits for
 * once the crew has queued all copies.
 * The two parts are in proportion to the speeds of the link and the CPU, which are measured
 * (plan/expert_share.h), or as the caller asks.
 *
 * With strict the device computes all experts with the kernels of those that it has, after an
 * upload of those that were chosen, so a result has the same bits wherever its expert is.
 *
 * expert_sum adds the results of a token in the order in which its experts were chosen, wherever
 * they come from, so the order of the sum does not depend on the placement or on time. */
#include "gpu/backend/internal.h"

#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/cpu/cpu.h"

/* The host computes a part of a step's tokens at a time, so that its results take at most
 * SEAM_BYTES of pinned memory, unless SEAM_LEAST tokens need more. */
enum { SEAM_BYTES = 16 << 20, SEAM_LEAST = 16, SEAM_TOKENS = 256 };

int hybrid_tokens(const struct gpu_backend *b)
{
    const struct config *c = &b->m->config;
    const size_t fit = SEAM_BYTES / ((size_t)c->moe.top_k * (size_t)c->hidden_size * sizeof(float)),
                 most = array_size(b) < SEAM_TOKENS ? array_size(b) : SEAM_TOKENS,
                 least = most < SEAM_LEAST ? most : SEAM_LEAST;
    return (int)(fit < least ? least : fit < most ? fit : most);
}

/* Bytes before the results in the memory of results: the row of each pair. */
static size_t rows_bytes(const struct gpu_backend *b, int n)
{
    return ((size_t)n * (size_t)b->m->config.moe.top_k * sizeof(int32_t) + 255) / 256 * 256;
}

size_t hybrid_results(const struct gpu_backend *b)
{
    const size_t pairs = (size_t)hybrid_tokens(b) * (size_t)b->m->config.moe.top_k;
    return rows_bytes(b, hybrid_tokens(b)) + pairs * (size_t)b->m->config.hidden_size * sizeof(float);
}

size_t hybrid_places(const struct gpu_backend *b)
{
    return (size_t)b->m->config.n_layers * (size_t)b->m->config.moe.n_experts * sizeof(int32_t);
}

int hybrid_open(struct gpu_backend *b, struct err *e)
{
    const struct config *c = &b->m->config;
    struct hybrid *h = &b->hybrid;
    const size_t pairs = array_size(b) * (size_t)c->moe.top_k,
                 input = (size_t)hybrid_tokens(b) * (size_t)c->hidden_size;
    if (!(h->input = gpu_pinned(b->g, input * sizeof *h->input, "the input of experts", e)) ||
        !(h->id = gpu_pinned(b->g, 2 * pairs * sizeof *h->id, "the choice of experts", e)) ||
        !(h->result = gpu_pinned(b->g, hybrid_results(b), "results of experts", e)) ||
        !(h->host_place = gpu_pinned(b->g, hybrid_places(b), "places of experts", e)) ||
        !(h->host_up = gpu_pinned(b->g, (size_t)c->moe.n_experts * sizeof *h->host_up, "uploaded experts", e)) ||
        !(h->asked = gpu_event_open(b->g, e)))
        return -1;
    h->weight = (float *)(h->id + pairs);
    b->pinned += (input + 2 * pairs) * sizeof(float) + hybrid_results(b) + hybrid_places(b) +
                 (size_t)c->moe.n_experts * sizeof *h->host_up;
    for (int i = 0; i < c->n_layers; i++)
        for (int x = 0; x < c->moe.n_experts; x++)
            places_of(b, h->host_place, i)[x] = x < b->n_experts ? x : b->n_experts - 1 - x;
    return gpu_upload(b->g, GPU_COMPUTE, h->place, h->host_place, hybrid_places(b), e) < 0 ? -1 : slots_open(b, e);
}

void hybrid_close(struct gpu_backend *b)
{
    struct hybrid *h = &b->hybrid;
    slots_close(b);
    gpu_pinned_free(b->g, h->input);
    gpu_pinned_free(b->g, h->id);
    gpu_pinned_free(b->g, h->result);
    gpu_pinned_free(b->g, h->host_place);
    gpu_pinned_free(b->g, h->host_up);
    if (h->asked)
        gpu_event_close(b->g, h->asked);
}

const int32_t *hybrid_place(const struct gpu_backend *b, int layer)
{
    return has_host_experts(b) ? places_of(b, b->hybrid.place, layer) : NULL;
}

/* Queue the copy of the input of tokens [first, first + n) to the host. */
static int ask_input(struct gpu_backend *b, int first, int n, struct err *e)
{
    const size_t hidden = (size_t)b->m->config.hidden_size;
    struct hybrid *h = &b->hybrid;
    return gpu_download(b->g, GPU_COMPUTE, h->input, h->from + (size_t)first * hidden,
                        (size_t)n * hidden * sizeof *h->input, e);
}

int hybrid_ask(struct gpu_backend *b, const float *x, struct err *e)
{
    const size_t pairs = (size_t)b->n * (size_t)b->m->config.moe.top_k;
    struct hybrid *h = &b->hybrid;
    h->from = x;
    if (gpu_download(b->g, GPU_COMPUTE, h->id, b->choice.id, pairs * sizeof *h->id, e) < 0)
        return -1;
    if (host_computes(b) &&
        (ask_input(b, 0, b->n < hybrid_tokens(b) ? b->n : hybrid_tokens(b), e) < 0 ||
         gpu_download(b->g, GPU_COMPUTE, h->weight, b->choice.weight, pairs * sizeof *h->weight, e) < 0))
        return -1;
    return gpu_event_record(b->g, GPU_COMPUTE, h->asked, e);
}

/* ---- the division of a layer's experts ---- */

/* List the experts that were chosen and are not on the device. */
static void list_missing(struct gpu_backend *b, int layer)
{
    struct hybrid *h = &b->hybrid;
    const int32_t *place = places_of(b, h->host_place, layer);
    memset(h->host_up, 0, (size_t)b->m->config.moe.n_experts * sizeof *h->host_up);
    h->n_missing = 0;
    for (int i = 0; i < b->n * b->m->config.moe.top_k; i++) {
        const int x = h->id[i];
        if (x >= 0 && place[x] < 0 && !h->host_up[x]) {
            h->host_up[x] = 1;
            h->missing[h->n_missing++] = x;
        }
    }
}

/* The number of missing experts that the device computes. */
static int share_of(struct gpu_backend *b)
{
    struct hybrid *h = &b->hybrid;
    const int percent = b->o.expert_uploads, most = 2 * h->stream_slots;
    if (uploads_all(b))
        return h->n_missing;
    if (!h->crew)
        return 0;
    const int n = percent == EXPERT_UPLOADS_AUTO ? shares_divide(&h->shares, h->n_missing, b->n)
                                                 : h->n_missing * percent / 100;
    return n < most ? n : most;
}

/* Learn the speed of the link from the uploads of an earlier layer, which have ended. */
static int learn_link(struct gpu_backend *b, struct err *e)
{
    struct hybrid *h = &b->hybrid;
    const double bytes = (double)h->timed_bytes;
    double seconds;
    h->timed_bytes = 0;
    if (bytes > 0 && gpu_event_elapsed(b->g, h->begun, h->filled[0], &seconds, e) < 0)
        return -1;
    if (bytes > 0)
        shares_learn_link(&h->shares, bytes, seconds);
    return 0;
}

int hybrid_divide(struct gpu_backend *b, int layer, struct gpu_route *r, struct err *e)
{
    struct hybrid *h = &b->hybrid;
    const int n_experts = b->m->config.moe.n_experts;
    if (gpu_event_sync(b->g, h->asked, e) < 0 || learn_link(b, e) < 0)
        return -1;
    slots_count(b, layer, h->id, b->n);
    list_missing(b, layer);
    h->passing = h->host_up;
    h->n_passing = share_of(b);
    experts_first(h->missing, h->n_missing, h->n_passing, h->moves.count + (size_t)layer * (size_t)n_experts);
    for (int i = 0; i < h->n_missing; i++)
        h->host_up[h->missing[i]] = i < h->n_passing ? -1 - i : 0;
    if (h->n_passing == 0)
        return 0;
    r->place = h->up;
    if (gpu_upload(b->g, GPU_COMPUTE, h->up, h->host_up, (size_t)n_experts * sizeof *h->up, e) < 0)
        return -1;
    return uploads_all(b) ? 0 : slots_post(b, layer, e);
}

/* Compute the host's pairs of tokens [first, first + n) of a layer, whose input is on the host.
 * Returns the number of bytes of h->result to upload; 0: there are none.  *n_pairs: the number of
 * these pairs. */
static size_t compute(struct gpu_backend *b, int layer, int first, int n, int *n_pairs)
{
    const struct config *c = &b->m->config;
    struct hybrid *h = &b->hybrid;
    const int32_t *place = places_of(b, h->host_place, layer);
    int32_t *id = h->id + (size_t)first * (size_t)c->moe.top_k, *row = (int32_t *)h->result;
    int count = 0;
    for (int i = 0; i < n * c->moe.top_k; i++) {
        const int here = id[i] >= 0 && place[id[i]] < 0 && h->host_up[id[i]] == 0;
        row[i] = here ? count++ : -1;
        id[i] = here ? id[i] : -1;
    }
    *n_pairs = count;
    if (count == 0)
        return 0;
    cpu_experts_run(b->host, layer, h->input, id, h->weight + (size_t)first * (size_t)c->moe.top_k, n,
                    (float *)(h->result + rows_bytes(b, n)));
    return rows_bytes(b, n) + (size_t)count * (size_t)c->hidden_size * sizeof(float);
}

void hybrid_compute(struct gpu_backend *b, int layer)
{
    struct hybrid *h = &b->hybrid;
    const int n = b->n < hybrid_tokens(b) ? b->n : hybrid_tokens(b), n_here = h->n_missing - h->n_passing;
    const uint64_t begun = clock_ns();
    int n_pairs = 0;
    h->result_bytes = host_computes(b) ? compute(b, layer, 0, n, &n_pairs) : 0;
    if (n < b->n || n_here <= 0)
        return;
    const double bytes = (double)slots_bytes(b, layer), seconds = (double)(clock_ns() - begun) * 1e-9;
    shares_learn_cpu(&h->shares, n, bytes * n_here, seconds);
    shares_learn_products(&h->shares, n, bytes * n_pairs, seconds);
}

/* The part of a sum for tokens [first, first + n). */
static struct gpu_expert_sum part_of(const struct gpu_expert_sum *all, int first, int n)
{
    struct gpu_expert_sum o = *all;
    const size_t pairs = (size_t)first * (size_t)o.top_k, at = (size_t)first * (size_t)o.cols;
    o.n = n;
    o.y += pairs * (size_t)o.cols;
    o.choice.id += pairs;
    o.choice.weight += pairs;
    o.shared = o.shared ? o.shared + at : NULL;
    o.shared_weight = o.shared_weight ? o.shared_weight + first : NULL;
    o.x = o.x ? o.x + at : NULL;
    o.out = o.out ? o.out + at : NULL;
    return o;
}

int hybrid_sum(struct gpu_backend *b, int layer, const struct gpu_expert_sum *all, struct err *e)
{
    struct hybrid *h = &b->hybrid;
    const int most = hybrid_tokens(b);
    int n_pairs;
    if (!host_computes(b))
        return gpu_expert_sum(b->g, all, e);
    for (int t = 0, n; t < all->n; t += n) {
        n = all->n - t < most ? all->n - t : most;
        struct gpu_expert_sum o = part_of(all, t, n);
        /* the next input, and the results of the part before are sent */
        if (t > 0 && (ask_input(b, t, n, e) < 0 || gpu_event_record(b->g, GPU_COMPUTE, h->asked, e) < 0 ||
                      gpu_event_sync(b->g, h->asked, e) < 0))
            return -1;
        const size_t bytes = t == 0 ? h->result_bytes : compute(b, layer, t, n, &n_pairs);
        if (bytes && gpu_upload(b->g, GPU_COMPUTE, h->host_result, h->result, bytes, e) < 0)
            return -1;
        if (bytes) {
            o.row = (const int32_t *)h->host_result;
            o.host = (const float *)(h->host_result + rows_bytes(b, n));
        }
        if (gpu_expert_sum(b->g, &o, e) < 0)
            return -1;
    }
    return 0;
}
