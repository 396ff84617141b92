/* state.c - a pool of states of recurrent layers, with snapshots of them. */
#include "libcommon/cache/state.h"

#include <assert.h>
#include <stdlib.h>

enum { FREE, HELD, KEPT };

struct state_pool {
    int n, n_aside, n_spare;    /* n_aside: reserved as spare states; n_spare: spare states that are held */
    uint64_t clock;
    struct slot { int is; int32_t block; uint64_t serial, used; } slot[];
};

struct state_pool *state_pool_open(int n, struct err *e)
{
    struct state_pool *s = n > 0 ? calloc(1, sizeof *s + (size_t)n * sizeof *s->slot) : NULL;
    if (!s) {
        if (n > 0)
            err_nomem(e, "states");
        else
            err_set(e, ERR_LIMIT, "%d states, expected at least 1", n);
        return NULL;
    }
    s->n = n;
    return s;
}

void state_pool_close(struct state_pool *s) { free(s); }
size_t state_pool_bytes(const struct state_pool *s) { return sizeof *s + (size_t)s->n * sizeof *s->slot; }

/* Whether its node was evicted. */
static int is_lost(const struct slot *x, const struct kv_pool *p)
{
    return x->is == KEPT && prefix_serial(p, x->block) != x->serial;
}

static int hold(struct state_pool *s, int state)
{
    if (state >= 0)
        s->slot[state] = (struct slot){ .is = HELD };
    return state;
}

int state_take(struct state_pool *s, const struct kv_pool *p)
{
    int unused = -1, n_unused = 0, oldest = -1;
    for (int i = 0; i < s->n; i++) {
        if (s->slot[i].is == FREE || is_lost(&s->slot[i], p)) {
            unused = unused < 0 ? i : unused;
            n_unused++;
        } else if (s->slot[i].is == KEPT && (oldest < 0 || s->slot[i].used < s->slot[oldest].used)) {
            oldest = i;
        }
    }
    return hold(s, n_unused > s->n_aside - s->n_spare ? unused : oldest);
}

void state_set_aside(struct state_pool *s, int n) { s->n_aside = n; }

int state_take_spare(struct state_pool *s, const struct kv_pool *p)
{
    int state = s->n_spare < s->n_aside ? s->n - 1 : -1;
    while (state >= 0 && s->slot[state].is != FREE && !is_lost(&s->slot[state], p))
        state--;
    s->n_spare += state >= 0;
    return hold(s, state);
}

void state_drop_spare(struct state_pool *s, int state)
{
    assert(s->n_spare > 0);
    s->n_spare--;
    state_drop(s, state);
}

void state_drop(struct state_pool *s, int state)
{
    assert(s->slot[state].is == HELD);
    s->slot[state].is = FREE;
}

int state_find(const struct state_pool *s, const struct kv_pool *p, int32_t block)
{
    const uint64_t serial = prefix_serial(p, block);
    for (int i = 0; i < s->n; i++)
        if (s->slot[i].is == KEPT && s->slot[i].block == block && s->slot[i].serial == serial)
            return i;
    return -1;
}

void state_used(struct state_pool *s, int state) { s->slot[state].used = ++s->clock; }

void state_keep(struct state_pool *s, const struct kv_pool *p, int32_t block, int state)
{
    const int known = state_find(s, p, block);
    assert(s->slot[state].is == HELD && prefix_serial(p, block));
    s->slot[state] = (struct slot){ .is = known < 0 ? KEPT : FREE, .block = block, .serial = prefix_serial(p, block) };
    state_used(s, known < 0 ? state : known);
}

void state_trim(struct state_pool *s, const struct kv_pool *p, void (*drop)(void *user, int state), void *user)
{
    for (int i = 0; i < s->n; i++) {
        if (is_lost(&s->slot[i], p))
            s->slot[i].is = FREE;
        if (s->slot[i].is == FREE)
            drop(user, i);
    }
}

struct state_search { const struct state_pool *s; const struct kv_pool *p; int best, snapshot; };

static void look(void *user, int32_t block, int n_tokens)
{
    struct state_search *x = user;
    const int found = n_tokens > x->best ? state_find(x->s, x->p, block) : -1;
    if (found < 0)
        return;
    x->best = n_tokens;
    x->snapshot = found;
}

int state_prefix(const struct state_pool *s, const struct kv_pool *p, const struct kv_table *t, const int32_t *ids,
                 int n, int *snapshot)
{
    struct state_search x = { s, p, t->n_tokens, -1 };
    prefix_visit(t, p, ids, n, look, &x);
    *snapshot = x.snapshot;
    return x.best;
}
