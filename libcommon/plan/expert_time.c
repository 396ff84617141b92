/* expert_time.c - the timeline of experts on a device, a link and a CPU. */
#include "libcommon/plan/expert_time.h"

#include <stdlib.h>

#include "libcommon/plan/expert_moves.h"
#include "libcommon/plan/expert_share.h"
#include "libcommon/plan/timeline.h"

struct expert_simulation {
    const struct router_trace *t;
    const struct expert_rates *rates;
    enum expert_policy policy;
    struct expert_moves moves;
    struct timeline link, cpu;
    double now;
    int32_t *place;                     /* [n_layers][n_experts] slot, below 0: none */
    int64_t *last;                      /* [n_layers][n_experts] the last step that used it */
    int *chosen;                        /* [n_experts] tokens of the step that chose it, in the current layer */
    int *missing;                       /* [n_experts] experts chosen that have no slot */
    struct expert_times counts;
};

const char *expert_policy_name(enum expert_policy p)
{
    static const char *const names[N_EXPERT_POLICIES] = { "first", "moves", "uploaded", "divided", "best" };
    return names[p];
}

/* The experts that have a slot at first: those with the n_slots largest counts of the whole trace,
 * or the first ones. */
static void place_experts(struct expert_simulation *s, int layer, int n_slots)
{
    const struct router_trace *t = s->t;
    int32_t *place = s->place + (size_t)layer * (size_t)t->n_experts;
    for (int x = 0; x < t->n_experts; x++) {
        place[x] = s->policy != EXPERTS_BEST && x < n_slots ? x : -1;
        s->chosen[x] = 0;
    }
    for (int i = 0; i < t->n_tokens; i++)
        for (int k = 0; k < t->top_k; k++)
            s->chosen[trace_choice(t, i, layer)[k]]++;
    for (int slot = 0; s->policy == EXPERTS_BEST && slot < n_slots; slot++) {
        int best = -1;
        for (int x = 0; x < t->n_experts; x++)
            if (place[x] < 0 && (best < 0 || s->chosen[x] > s->chosen[best]))
                best = x;
        place[best] = slot;
    }
}

/* Count the choices of tokens [from, to) in a layer.  Returns the number of missing experts. */
static int choose(struct expert_simulation *s, int layer, int from, int to, int64_t step)
{
    const struct router_trace *t = s->t;
    const size_t first = (size_t)layer * (size_t)t->n_experts;
    int n = 0;
    for (int x = 0; x < t->n_experts; x++)
        s->chosen[x] = 0;
    for (int i = from; i < to; i++) {
        const int32_t *id = trace_choice(t, i, layer);
        moves_count(&s->moves, layer, id, t->top_k, 1);
        for (int k = 0; k < t->top_k; k++) {
            s->chosen[id[k]]++;
            s->last[first + (size_t)id[k]] = step;
            s->counts.hits += s->place[first + (size_t)id[k]] >= 0;
        }
    }
    s->counts.choices += (uint64_t)(to - from) * (uint64_t)t->top_k;
    for (int x = 0; x < t->n_experts; x++)
        if (s->chosen[x] && s->place[first + (size_t)x] < 0)
            s->missing[n++] = x;
    return n;
}

/* Let an expert take the slot of the least recently used one that this step does not use.  It
 * passes through a buffer if there is none. */
static void take_slot(struct expert_simulation *s, int layer, int x)
{
    const size_t first = (size_t)layer * (size_t)s->t->n_experts;
    int32_t *place = s->place + first;
    const int64_t *last = s->last + first;
    int out = -1;
    for (int i = 0; i < s->t->n_experts; i++)
        if (place[i] >= 0 && !s->chosen[i] && (out < 0 || last[i] < last[out]))
            out = i;
    if (out < 0)
        return;
    place[x] = place[out];
    place[out] = -1;
}

static void run_layer(struct expert_simulation *s, int layer, int from, int to, int64_t step)
{
    const struct expert_rates *r = s->rates;
    const int n = choose(s, layer, from, to, step);
    const int up = s->policy == EXPERTS_UPLOADED ? n
                   : s->policy == EXPERTS_DIVIDED ? expert_share(n, r->link, r->cpu) : 0;
    double end = s->now += r->layer_s;
    if (up) {
        end = timeline_add(&s->link, s->now, up * r->expert_bytes / r->link);
        for (int i = 0; s->policy == EXPERTS_UPLOADED && i < n; i++)
            take_slot(s, layer, s->missing[i]);
    }
    if (n > up) {
        const double cpu = timeline_add(&s->cpu, s->now, (n - up) * r->expert_bytes / r->cpu);
        end = cpu > end ? cpu : end;
    }
    s->counts.uploads += (uint64_t)up;
    s->counts.computed += (uint64_t)(n - up);
    s->now = end;
}

/* The moves of expert_moves.h, whose uploads run beside the step. */
static void run_moves(struct expert_simulation *s)
{
    struct expert_move m;
    moves_step(&s->moves);
    const int moves = s->policy == EXPERTS_MOVES || s->policy == EXPERTS_DIVIDED;
    for (int i = 0; moves && i < MOVES_A_STEP && (m = moves_best(&s->moves, s->place)).gain > 0;
         i++) {
        int32_t *place = s->place + (size_t)m.layer * (size_t)s->t->n_experts;
        place[m.in] = place[m.out];
        place[m.out] = -1;
        timeline_add(&s->link, s->now, s->rates->expert_bytes / s->rates->link);
        s->counts.uploads++;
    }
}

static void run_steps(struct expert_simulation *s, int batch)
{
    const struct router_trace *t = s->t;
    for (int from = 0, step = 1; from < t->n_tokens; from += batch, step++) {
        const int to = t->n_tokens - from < batch ? t->n_tokens : from + batch;
        run_moves(s);
        for (int layer = 0; layer < t->n_layers; layer++)
            run_layer(s, layer, from, to, step);
    }
}

int expert_simulate(const struct router_trace *t, enum expert_policy policy, int n_slots, int batch,
                    const struct expert_rates *rates, struct expert_times *out)
{
    const size_t all = (size_t)t->n_layers * (size_t)t->n_experts;
    struct expert_simulation s = { .t = t, .rates = rates, .policy = policy };
    s.place = malloc(all * sizeof *s.place);
    s.last = calloc(all, sizeof *s.last);
    s.chosen = malloc((size_t)t->n_experts * sizeof *s.chosen);
    s.missing = malloc((size_t)t->n_experts * sizeof *s.missing);
    int rc = s.place && s.last && s.chosen && s.missing ? moves_open(&s.moves, 0, t->n_layers, t->n_experts) : -1;
    if (rc == 0) {
        for (int layer = 0; layer < t->n_layers; layer++)
            place_experts(&s, layer, n_slots);
        run_steps(&s, batch);
        s.counts.seconds = s.now;
        s.counts.link_s = timeline_until(&s.link, s.now);
        s.counts.cpu_s = s.cpu.total;
        s.counts.both_s = timeline_both(&s.link, &s.cpu);
        *out = s.counts;
        rc = s.link.failed || s.cpu.failed ? -1 : 0;
    }
    moves_close(&s.moves);
    timeline_release(&s.link);
    timeline_release(&s.cpu);
    free(s.place);
    free(s.last);
    free(s.chosen);
    free(s.missing);
    return rc;
}
