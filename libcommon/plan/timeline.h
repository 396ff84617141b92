/* timeline.h - the times at which a resource, such as a link or a processor, is busy: for
 * simulations in which several of them work side by side. */
#ifndef ZSE_PLAN_TIMELINE_H
#define ZSE_PLAN_TIMELINE_H

#include <stddef.h>

/* Work of one resource in the order in which it is done, one piece after the other.  All 0:
 * nothing yet. */
struct timeline {
    struct busy { double from, to; } *busy;     /* owned; ascending, and disjoint */
    size_t n, room;
    double end;                                 /* seconds; the resource is free from then on */
    double total;                               /* seconds in which it is busy */
    int failed;                                 /* there was no memory for a piece of work */
};

/* Add work that starts at `earliest` or when the resource is free, whichever is later.  Returns the
 * time at which it ends. */
double timeline_add(struct timeline *t, double earliest, double seconds);
/* Returns the seconds before `end` in which it is busy. */
double timeline_until(const struct timeline *t, double end);
/* Returns the seconds in which both are busy. */
double timeline_both(const struct timeline *a, const struct timeline *b);
void timeline_release(struct timeline *t);

#endif
