/* engine_queue.c - binary heaps of requests.  A request stores its index in the heap, so any
 * request can be removed in O(log n). */
#include <stdlib.h>

#include "libcommon/engine/internal.h"

int goes_before(const struct request *a, const struct request *b, enum which which)
{
    return a->key[which] != b->key[which] ? a->key[which] < b->key[which] : a->order < b->order;
}

int queue_reserve(struct queue *q, int n)
{
    if (n <= q->room)
        return 0;
    int room = n + n / 2 + 16;
    struct request **r = realloc(q->r, (size_t)room * sizeof *r);
    if (!r)
        return -1;
    q->r = r;
    q->room = room;
    return 0;
}

static void put(struct queue *q, int i, struct request *r)
{
    q->r[i] = r;
    r->at[q->which] = i;
}

static void rise(struct queue *q, int i, struct request *r)
{
    for (; i > 0 && goes_before(r, q->r[(i - 1) / 2], q->which); i = (i - 1) / 2)
        put(q, i, q->r[(i - 1) / 2]);
    put(q, i, r);
}

void queue_add(struct queue *q, struct request *r) { rise(q, q->n++, r); }

void queue_remove(struct queue *q, struct request *r)
{
    int i = r->at[q->which];
    struct request *last = q->r[--q->n];
    r->at[q->which] = -1;
    if (last == r)
        return;
    for (int child; (child = 2 * i + 1) < q->n; i = child) {
        child += child + 1 < q->n && goes_before(q->r[child + 1], q->r[child], q->which);
        if (!goes_before(q->r[child], last, q->which))
            break;
        put(q, i, q->r[child]);
    }
    rise(q, i, last);
}
