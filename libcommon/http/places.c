/* places.c - the limit on connections: owners in a hash table, connections in lists by activity. */
#include "libcommon/http/places.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { LEAST_AGE_MS = 1000, KEPT_PART = 8 };

struct place_list { struct place *oldest, *newest; };

struct place_owner {
    struct place_owner *next;           /* in its bucket */
    uint64_t id;
    int n, n_unknown;
    struct place_list spare[2];               /* unknown, known */
};

struct places {
    int max, per_address, n, n_unknown;
    struct place_list spare[2];
    uint64_t seed;                      /* random: clients that choose their addresses cannot choose buckets */
    unsigned mask;
    struct place_owner *bucket[];
};

struct places *places_open(int max, int per_address, struct err *e)
{
    unsigned n = 64;
    while (n < (unsigned)max && n < 1 << 16)
        n *= 2;
    struct places *p = calloc(1, sizeof *p + n * sizeof *p->bucket);
    if (!p) {
        err_nomem(e, "places of connections");
        return NULL;
    }
    if (getrandom(&p->seed, sizeof p->seed, 0) != (ssize_t)sizeof p->seed) {
        err_sys(e, "random numbers");
        free(p);
        return NULL;
    }
    p->max = max;
    p->per_address = per_address;
    p->mask = n - 1;
    return p;
}

void places_close(struct places *p) { free(p); }

int places_n(const struct places *p) { return p->n; }
int places_n_unknown(const struct places *p) { return p->n_unknown; }

/* ---- owners ---- */

static struct place_owner **bucket_of(struct places *p, uint64_t id)
{
    const uint64_t h = (id ^ p->seed) * 0x9e3779b97f4a7c15u;
    return &p->bucket[(h ^ h >> 32) >> 8 & p->mask];
}

static struct place_owner *find(struct places *p, uint64_t id)
{
    struct place_owner *o = *bucket_of(p, id);
    while (o && o->id != id)
        o = o->next;
    return o;
}

static struct place_owner *find_or_add(struct places *p, uint64_t id)
{
    struct place_owner *o = find(p, id), **at = bucket_of(p, id);
    if (o || !(o = calloc(1, sizeof *o)))
        return o;
    o->id = id;
    o->next = *at;
    return *at = o;
}

static void drop_if_empty(struct places *p, struct place_owner *o)
{
    struct place_owner **at = bucket_of(p, o->id);
    if (o->n)
        return;
    while (*at != o)
        at = &(*at)->next;
    *at = o->next;
    free(o);
}

/* ---- lists by activity ---- */

#define LINK(list, x, link) do { \
        (x)->link.older = (list)->newest; \
        (x)->link.newer = NULL; \
        *((list)->newest ? &(list)->newest->link.newer : &(list)->oldest) = (x); \
        (list)->newest = (x); \
    } while (0)
#define UNLINK(list, x, link) do { \
        *((x)->link.older ? &(x)->link.older->link.newer : &(list)->oldest) = (x)->link.newer; \
        *((x)->link.newer ? &(x)->link.newer->link.older : &(list)->newest) = (x)->link.older; \
    } while (0)

static void list_add(struct places *p, struct place *x)
{
    LINK(&p->spare[x->known], x, all);
    LINK(&x->owner->spare[x->known], x, own);
    x->spare = 1;
}

static void list_remove(struct places *p, struct place *x)
{
    if (!x->spare)
        return;
    UNLINK(&p->spare[x->known], x, all);
    UNLINK(&x->owner->spare[x->known], x, own);
    x->spare = 0;
}

void places_update(struct places *p, struct place *x, int spare, int active, uint64_t now_ns)
{
    if (active)
        x->active_ns = now_ns;
    if (spare == x->spare && !(spare && active))
        return;
    list_remove(p, x);
    if (spare)
        list_add(p, x);
}

/* ---- in and out ---- */

static void join(struct places *p, struct place *x, struct place_owner *o)
{
    x->owner = o;
    o->n++;
    o->n_unknown += !x->known;
    p->n++;
    p->n_unknown += !x->known;
}

static void part(struct places *p, struct place *x)
{
    x->owner->n--;
    x->owner->n_unknown -= !x->known;
    p->n--;
    p->n_unknown -= !x->known;
    drop_if_empty(p, x->owner);
    x->owner = NULL;
}

int places_enter(struct places *p, struct place *x, uint64_t address, uint64_t now_ns)
{
    struct place_owner *o = find_or_add(p, address);
    if (!o)
        return -1;
    *x = (struct place){ .active_ns = now_ns };
    join(p, x, o);
    list_add(p, x);
    return 0;
}

void places_leave(struct places *p, struct place *x)
{
    if (!x->owner)
        return;
    list_remove(p, x);
    part(p, x);
}

void places_own(struct places *p, struct place *x, uint64_t owner)
{
    if (x->known && x->owner->id == owner)
        return;
    struct place_owner *o = find_or_add(p, owner);
    const int spare = x->spare;
    if (!o)
        return;
    list_remove(p, x);
    /* count x first: part() frees its old owner when that has no connection left, and the old owner
     * may be o */
    o->n++;
    part(p, x);
    o->n--;
    x->known = 1;
    join(p, x, o);
    if (spare)
        list_add(p, x);
}

/* ---- admission ---- */

static struct place *largest_of_quietest(const struct place_list *list)
{
    struct place *x = list->oldest, *best = x;
    for (int i = 0; x && i < PLACES_LOOK; i++, x = x->all.newer)
        if (x->owner->n > best->owner->n)
            best = x;
    return best;
}

int places_room(struct places *p, uint64_t address, int limited, uint64_t now_ns, struct place **evict)
{
    const struct place_owner *o = find(p, address);
    *evict = NULL;
    if (limited && p->per_address && o && o->n_unknown >= p->per_address) {
        struct place *x = o->spare[0].oldest;
        if (!x || now_ns - x->active_ns < LEAST_AGE_MS * (uint64_t)1000000)
            return 0;
        *evict = x;
        return 1;
    }
    if (p->n < p->max && p->n_unknown < p->max - p->max / KEPT_PART)
        return 1;
    *evict = largest_of_quietest(&p->spare[0]);
    if (!*evict && p->n_unknown < p->max - p->max / KEPT_PART)
        *evict = largest_of_quietest(&p->spare[1]);
    return *evict != NULL;
}
