/* usage_share.c - take this process's counts from its counters, and put in those of all servers. */
#include "libcommon/access/usage_share.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/access/usage_table.h"

enum { LOOKED_S = 60, N_WINDOWS = 3 };

/* A window of a slot, by usage_kind. */
struct usage_window { window_bucket *ring; int size; uint32_t unit_s, span; };

static struct usage_window window_of(struct usage_slot *s, enum usage_kind kind)
{
    const struct usage_window all[N_WINDOWS] = {
        [USAGE_REQUESTS_SECOND] = { s->second, WINDOW_MINUTE, 1, MINUTE_SPAN },
        [USAGE_TOKENS_SECOND] = { s->token_second, WINDOW_MINUTE, 1, MINUTE_SPAN },
        [USAGE_TOKENS_QUARTER] = { s->token_quarter, WINDOW_DAY, QUARTER_S, DAY_SPAN },
    };
    return all[kind];
}

/* ---- take ---- */

static int is_wanted(const struct usage *u, int i, uint32_t now)
{
    const uint64_t key = atomic_load(&u->t->slot[i].key);
    const struct usage_unsent *x = &u->unsent[i];
    return key && key != USAGE_TAKEN_AWAY &&
           ((x->looked_s && now - x->looked_s <= LOOKED_S) || atomic_load(&x->counts.requests) ||
            atomic_load(&x->counts.tokens) || x->told || atomic_load(&u->t->reserved[i][PLACE_OWN]));
}

static int count_buckets(const struct usage_unsent *x, uint32_t now)
{
    int n = 0;
    for (int kind = 0; kind < N_WINDOWS; kind++) {
        const struct usage_window w = window_of((struct usage_slot *)&x->counts, (enum usage_kind)kind);
        for (uint32_t age = 0; age <= w.span && age <= now / w.unit_s; age++) {
            const uint64_t b = atomic_load(&w.ring[(now / w.unit_s - age) % (uint32_t)w.size]);
            n += b >> 32 == now / w.unit_s - age && (b & UINT32_MAX);
        }
    }
    return n;
}

static void take_buckets(struct usage_unsent *x, int64_t key, uint32_t now, struct usage_part *p)
{
    for (int kind = 0; kind < N_WINDOWS; kind++) {
        const struct usage_window w = window_of(&x->counts, (enum usage_kind)kind);
        for (uint32_t age = 0; age <= w.span && age <= now / w.unit_s; age++) {
            const uint64_t b = atomic_load(&w.ring[(now / w.unit_s - age) % (uint32_t)w.size]);
            if (b >> 32 == now / w.unit_s - age && (b & UINT32_MAX))
                p->count[p->n_counts++] = (struct usage_count){ key, (enum usage_kind)kind, (int)age,
                                                                (int64_t)(b & UINT32_MAX) };
        }
    }
}

static void take_slot(struct usage *u, int i, uint32_t now, struct usage_part *p)
{
    struct usage_unsent *x = &u->unsent[i];
    const struct usage_unsent next = { .looked_s = x->looked_s,
                                       .told = (int64_t)atomic_load(&u->t->reserved[i][PLACE_OWN]) };
    const int64_t key = (int64_t)atomic_load(&u->t->slot[i].key);
    p->key[p->n_keys++] = (struct usage_key){ key, (int64_t)atomic_load(&x->counts.requests),
                                              (int64_t)atomic_load(&x->counts.tokens),
                                              (int64_t)atomic_load(&x->counts.last_used_ms),
                                              next.told, x->told };
    take_buckets(x, key, now, p);
    *x = next;
}

int usage_take(struct usage *u, struct usage_part *p, struct err *e)
{
    int n_keys = 0, n_counts = 0;
    *p = (struct usage_part){ 0 };
    usage_enter(u);
    const uint32_t now = usage_now_s();
    p->taken_s = now;
    for (int i = 0; i < USAGE_SLOTS; i++)
        if (is_wanted(u, i, now)) {
            n_keys++;
            n_counts += count_buckets(&u->unsent[i], now);
        }
    p->key = calloc((size_t)n_keys + 1, sizeof *p->key);
    p->count = calloc((size_t)n_counts + 1, sizeof *p->count);
    const int enough = p->key && p->count;
    for (int i = 0; enough && i < USAGE_SLOTS; i++)
        if (is_wanted(u, i, now))
            take_slot(u, i, now, p);
    usage_leave(u);
    if (enough)
        return 0;
    usage_part_release(p);
    return err_nomem(e, "usage counters");
}

void usage_part_release(struct usage_part *p)
{
    free(p->key);
    free(p->count);
    *p = (struct usage_part){ 0 };
}

/* ---- put ---- */

static int slot_of(const struct usage *u, int64_t key)
{
    for (uint64_t i = 0; i < USAGE_SLOTS; i++) {
        const int at = (int)(((uint64_t)key + i) % USAGE_SLOTS);
        const uint64_t k = atomic_load(&u->t->slot[at].key);
        if (k == (uint64_t)key)
            return at;
        if (k == 0)
            return -1;
    }
    return -1;
}

void usage_make(struct usage *u, int64_t key)
{
    for (uint64_t i = 0; i < USAGE_SLOTS && slot_of(u, key) < 0; i++) {
        struct usage_slot *s = &u->t->slot[((uint64_t)key + i) % USAGE_SLOTS];
        if (atomic_load(&s->key) == 0)
            atomic_store(&s->key, (uint64_t)key);
    }
}

/* Add to the bucket that had this age at second `then`, if it is still in the window. */
static void add_bucket(struct usage_slot *s, enum usage_kind kind, uint32_t then, int age, int64_t n)
{
    const struct usage_window w = window_of(s, kind);
    const uint32_t span = then / w.unit_s - (uint32_t)age;
    if (age >= 0 && (uint32_t)age <= then / w.unit_s && usage_now_s() / w.unit_s - span <= w.span)
        window_add(w.ring, w.size, span, n);
}

void usage_untake(struct usage *u, const struct usage_part *p)
{
    usage_enter(u);
    for (int i = 0; i < p->n_keys; i++) {
        const int at = slot_of(u, p->key[i].key);
        struct usage_slot *x = at < 0 ? NULL : &u->unsent[at].counts;
        if (!x)
            continue;
        atomic_fetch_add(&x->requests, (uint64_t)p->key[i].requests);
        atomic_fetch_add(&x->tokens, (uint64_t)p->key[i].tokens);
        if (atomic_load(&x->last_used_ms) < (uint64_t)p->key[i].last_ms)
            atomic_store(&x->last_used_ms, (uint64_t)p->key[i].last_ms);
    }
    for (int i = 0; i < p->n_counts; i++) {
        const int at = slot_of(u, p->count[i].key);
        if (at >= 0)
            add_bucket(&u->unsent[at].counts, p->count[i].kind, p->taken_s, p->count[i].age, p->count[i].n);
    }
    usage_leave(u);
}

/* Set the counters of a slot to what the database does not know yet. */
static void restart_slot(struct usage *u, int i)
{
    struct usage_slot *s = &u->t->slot[i];
    const struct usage_slot *x = &u->unsent[i].counts;
    memcpy(s->second, x->second, sizeof s->second);
    memcpy(s->token_second, x->token_second, sizeof s->token_second);
    memcpy(s->token_quarter, x->token_quarter, sizeof s->token_quarter);
    atomic_store(&s->requests, atomic_load(&x->requests));
    atomic_store(&s->tokens, atomic_load(&x->tokens));
    atomic_store(&u->t->reserved[i][PLACE_OTHERS], 0);
}

static void put(struct usage *u, int i, const struct usage_count *c, uint32_t now)
{
    struct usage_slot *s = &u->t->slot[i];
    switch (c->kind) {
    case USAGE_REQUESTS_SECOND: case USAGE_TOKENS_SECOND: case USAGE_TOKENS_QUARTER:
        add_bucket(s, c->kind, now, c->age, c->n);
        break;
    case USAGE_OTHERS:   atomic_store(&u->t->reserved[i][PLACE_OTHERS], (uint64_t)c->n); break;
    case USAGE_REQUESTS: atomic_fetch_add(&s->requests, (uint64_t)c->n); break;
    case USAGE_TOKENS:   atomic_fetch_add(&s->tokens, (uint64_t)c->n); break;
    case USAGE_LAST_MS:
        if (atomic_load(&s->last_used_ms) < (uint64_t)c->n)
            atomic_store(&s->last_used_ms, (uint64_t)c->n);
        break;
    }
}

void usage_replace(struct usage *u, const struct usage_part *p, const struct usage_count *total, int n)
{
    usage_enter(u);
    const uint32_t now = usage_now_s();
    atomic_store(&u->t->server[PLACE_OTHERS], (uint64_t)1 << 32 | now);
    for (int i = 0; i < p->n_keys; i++) {
        const int at = slot_of(u, p->key[i].key);
        if (at >= 0)
            restart_slot(u, at);
    }
    for (int i = 0; i < n; i++) {
        const int at = slot_of(u, total[i].key);
        if (at >= 0)
            put(u, at, &total[i], now);
    }
    usage_leave(u);
}
