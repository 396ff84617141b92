/* account.h - the memory of requests, admitted before it is allocated: a limit for each request,
 * for each tenant and for all together.
 *
 * A hold is the memory reserved for one request.  It is raised before the request allocates memory,
 * which may be refused, and lowered as memory is freed.  The account counts the bytes of holds, not
 * those of malloc: holds are upper bounds (t-serve.c and tests/fuzz compare them with the allocated
 * bytes). */
#ifndef ZSE_HTTP_ACCOUNT_H
#define ZSE_HTTP_ACCOUNT_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/http/problem.h"

struct account;
struct tenant;

/* Limits in bytes.  A tenant may hold half of `total`, but at least `request`.  An eighth of
 * `total` is reserved for requests of at most total / 32, so that a few large requests cannot shut
 * out all others; `request` is therefore at most 7/8 of `total`.  All functions here may be called
 * by any thread. */
struct account *account_open(size_t request, size_t total, struct err *e);
/* NULL is fine; all holds must have been released */
void account_close(struct account *a);

struct hold {
    struct account *a;
    struct tenant *tenant;                      /* NULL: nothing is held yet */
    uint64_t id;                                /* id of the tenant */
    size_t bytes;
};
static inline struct hold hold_for(struct account *a, uint64_t id) { return (struct hold){ a, NULL, id, 0 }; }

enum hold_answer { HOLD_OK, HOLD_REQUEST, HOLD_TENANT, HOLD_TOTAL, HOLD_NOMEM };
/* Set the hold to `bytes`.  Returns HOLD_OK, or the limit that refuses it: of the request, of the
 * tenant, of all together; HOLD_NOMEM: out of memory.  Lowering a hold always succeeds; if raising
 * it is refused, the hold keeps its value. */
enum hold_answer hold_set(struct hold *h, size_t bytes);
void hold_release(struct hold *h);
/* The problem of a refusal: 413, 429 or 503, naming the limit and its option.  Returns -1. */
int hold_problem(const struct hold *h, enum hold_answer why, size_t bytes, struct problem *pr);

struct account_stats { size_t used, peak, total, request; int n_holds; uint64_t refused; };
void account_stats(struct account *a, struct account_stats *s);
size_t account_request_limit(const struct account *a);

#endif
