/* layer_window.c - choose which layers stay in a device's memory, and slots for the others. */
#include "libcommon/plan/layer_window.h"

#include <limits.h>
#include <stdlib.h>

enum { EMPTY, AHEAD, IN_USE, USED };

int window_size(double memory, double beside, double layer, int least)
{
    const double n = layer > 0 ? (memory - beside) / layer : 0;
    return n < least ? least : n < INT_MAX ? (int)n : INT_MAX;
}

const char *window_strategy_name(enum window_strategy s) { return s == WINDOW_SEQUENTIAL ? "sequential" : "adaptive"; }

struct window_shape window_shape_of(int n, int prefetch, enum window_strategy s)
{
    const int most = n < WINDOW_SLOTS ? n : WINDOW_SLOTS, ahead = prefetch < most ? prefetch : most - 1;
    const int n_slots = s == WINDOW_SEQUENTIAL ? most : ahead + 1;
    return (struct window_shape){ .n_kept = s == WINDOW_SEQUENTIAL ? 0 : n - n_slots, .n_slots = n_slots,
                                  .prefetch = ahead };
}

static int is_streamed(const struct layer_window *w, int layer) { return w->place[layer] != WINDOW_KEPT; }

/* The first streamed layer from `layer` on, after the last again from the first one; -1: none. */
static int streamed_from(const struct layer_window *w, int layer)
{
    const int n = w->n_layers - w->first;
    for (int i = 0; i < n; i++) {
        const int at = w->first + (layer - w->first + i) % n;
        if (is_streamed(w, at))
            return at;
    }
    return -1;
}

int window_open(struct layer_window *w, int first, int n_layers, struct window_shape shape)
{
    const int n = n_layers - first;
    *w = (struct layer_window){ .first = first, .n_layers = n_layers, .shape = shape, .whole = shape };
    w->place = calloc((size_t)n_layers + 1, sizeof *w->place);
    w->stays = calloc((size_t)n_layers + 1, 1);
    if (!w->place || !w->stays) {
        window_close(w);
        return -1;
    }
    for (int i = 0; i < n; i++)         /* evenly: the link is busy while layers that stay are computed */
        w->place[first + i] = (int64_t)(i + 1) * shape.n_kept / n > (int64_t)i * shape.n_kept / n ? WINDOW_KEPT
                                                                                               : WINDOW_ABSENT;
    for (int i = first; i < n_layers; i++)
        w->stays[i] = w->place[i] == WINDOW_KEPT;
    window_restart(w);
    return 0;
}

void window_close(struct layer_window *w)
{
    free(w->place);
    free(w->stays);
    w->place = NULL;
    w->stays = NULL;
}

void window_restart(struct layer_window *w)
{
    for (int i = w->first; i < w->n_layers; i++)
        w->place[i] = is_streamed(w, i) ? WINDOW_ABSENT : WINDOW_KEPT;
    for (int i = 0; i < w->shape.n_slots; i++) {
        struct window_slot *s = &w->slot[i];
        s->replaces = s->layer >= 0 && s->state != EMPTY && (s->state != AHEAD || s->replaces);
        s->state = s->replaces ? USED : EMPTY;
        s->layer = -1;
    }
    w->next = streamed_from(w, w->first);
}

/* A slot for another upload: an empty one, or else the one whose layer was uploaded first of those
 * that the step has used. */
static int free_slot(const struct layer_window *w)
{
    int best = -1;
    for (int i = 0; i < w->shape.n_slots; i++) {
        const struct window_slot *s = &w->slot[i];
        if (s->state == EMPTY)
            return i;
        if (s->state == USED && (best < 0 || s->order < w->slot[best].order))
            best = i;
    }
    return best;
}

static void put(struct layer_window *w, int layer, int slot, int *used)
{
    struct window_slot *s = &w->slot[slot];
    *used = s->state == USED;
    if (s->layer >= 0)
        w->place[s->layer] = WINDOW_ABSENT;
    *s = (struct window_slot){ .layer = layer, .state = AHEAD, .replaces = *used, .order = ++w->order };
    w->place[layer] = slot;
    w->next = streamed_from(w, layer + 1 < w->n_layers ? layer + 1 : w->first);
}

int window_ahead(struct layer_window *w, int *slot, int *used)
{
    int n_ahead = 0, layer = w->next;
    for (int i = 0; i < w->shape.n_slots; i++)
        n_ahead += w->slot[i].state == AHEAD;
    /* a slot may still hold the layer, if there are as many slots as layers */
    if (layer < 0 || n_ahead >= w->shape.prefetch || w->place[layer] != WINDOW_ABSENT || (*slot = free_slot(w)) < 0)
        return -1;
    put(w, layer, *slot, used);
    return layer;
}

int window_take(struct layer_window *w, int layer, int *used)
{
    const int slot = free_slot(w);
    if (slot < 0)
        return -1;
    put(w, layer, slot, used);
    w->slot[slot].state = IN_USE;
    w->counts.uses++;
    w->counts.evictions += (uint64_t)w->slot[slot].replaces;
    return slot;
}

int window_need(struct layer_window *w, int layer)
{
    const int place = w->place[layer];
    if (place < 0)
        return place;
    struct window_slot *s = &w->slot[place];
    if (s->state == AHEAD) {
        w->counts.uses++;
        w->counts.hits++;
        w->counts.evictions += (uint64_t)s->replaces;
    }
    s->state = IN_USE;
    return place;
}

void window_done(struct layer_window *w, int layer)
{
    if (w->place[layer] >= 0)
        w->slot[w->place[layer]].state = USED;
}

int window_shrink(struct layer_window *w, int *kept)
{
    *kept = -1;
    for (int i = w->n_layers - 1; w->shape.n_kept && i >= w->first; i--)
        if (!is_streamed(w, i)) {
            w->place[i] = WINDOW_ABSENT;
            w->shape.n_kept--;
            w->next = streamed_from(w, w->first);
            *kept = i;
            return 0;
        }
    if (w->shape.n_slots < 2)
        return -1;
    w->shape.n_slots--;
    if (w->shape.prefetch >= w->shape.n_slots)
        w->shape.prefetch = w->shape.n_slots - 1;
    return 0;
}

int window_is_whole(const struct layer_window *w)
{
    return w->shape.n_slots == w->whole.n_slots && w->shape.n_kept == w->whole.n_kept;
}

int window_grow(struct layer_window *w, int *kept)
{
    *kept = -1;
    if (w->shape.n_slots < w->whole.n_slots) {
        w->slot[w->shape.n_slots++] = (struct window_slot){ .layer = -1, .state = EMPTY };
        w->shape.prefetch = w->whole.prefetch < w->shape.n_slots ? w->whole.prefetch : w->shape.n_slots - 1;
        return 0;
    }
    for (int i = w->first; i < w->n_layers; i++)
        if (w->stays[i] && is_streamed(w, i)) {
            w->place[i] = WINDOW_KEPT;
            w->shape.n_kept++;
            w->next = streamed_from(w, w->first);
            *kept = i;
            return 0;
        }
    return -1;
}
