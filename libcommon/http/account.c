/* account.c - limits on the memory of requests: totals, and tenants in a hash table. */
#include "libcommon/http/account.h"

#include <stdlib.h>

#include "libcommon/http/internal.h"

enum { KEPT_PART = 8, SMALL_PART = 32 };

struct account *account_open(size_t request, size_t total, struct err *e)
{
    struct account *a = calloc(1, sizeof *a);
    if (!a) {
        err_nomem(e, "account");
        return NULL;
    }
    pthread_mutex_init(&a->lock, NULL);
    a->total = total;
    a->request = request < total - total / KEPT_PART ? request : total - total / KEPT_PART;
    a->tenant = total / 2 > a->request ? total / 2 : a->request;
    return a;
}

void account_close(struct account *a)
{
    if (!a)
        return;
    pthread_mutex_destroy(&a->lock);
    free(a);
}

/* Returns the link to this tenant in its chain; *link is NULL if the tenant has no hold. */
static struct tenant **find(struct account *a, uint64_t id)
{
    struct tenant **at = &a->chain[(id ^ id >> 32) % ACCOUNT_CHAINS];
    while (*at && (*at)->id != id)
        at = &(*at)->next;
    return at;
}

static enum hold_answer may_grow(const struct account *a, const struct hold *h, size_t bytes)
{
    const size_t more = bytes - h->bytes, has = h->tenant ? h->tenant->bytes : 0;
    if (bytes > a->request)
        return HOLD_REQUEST;
    if (more > a->tenant || has > a->tenant - more)
        return HOLD_TENANT;
    const size_t kept = bytes > a->total / SMALL_PART ? a->total / KEPT_PART : 0;
    return more > a->total - kept || a->used > a->total - kept - more ? HOLD_TOTAL : HOLD_OK;
}

/* Add h to its tenant, creating the tenant if it is new.  The caller holds the lock. */
static enum hold_answer join(struct account *a, struct hold *h)
{
    struct tenant **at = find(a, h->id);
    if (!*at && !(*at = calloc(1, sizeof **at)))
        return HOLD_NOMEM;
    (*at)->id = h->id;
    (*at)->n_holds++;
    a->n_holds++;
    h->tenant = *at;
    return HOLD_OK;
}

/* Remove h from its tenant, which is freed with its last hold.  h->bytes must be 0; the caller
 * holds the lock. */
static void leave(struct account *a, struct hold *h)
{
    struct tenant **at = find(a, h->id), *t = *at;
    h->tenant = NULL;
    a->n_holds--;
    if (--t->n_holds > 0)
        return;
    *at = t->next;
    free(t);
}

enum hold_answer hold_set(struct hold *h, size_t bytes)
{
    struct account *a = h->a;
    enum hold_answer why = HOLD_OK;
    if (!a || bytes == h->bytes)
        return HOLD_OK;
    pthread_mutex_lock(&a->lock);
    if (!h->tenant)
        why = join(a, h);
    if (why == HOLD_OK && bytes > h->bytes)
        why = may_grow(a, h, bytes);
    if (why == HOLD_OK) {
        h->tenant->bytes += bytes - h->bytes;           /* modulo 2^64: the difference may be negative */
        a->used += bytes - h->bytes;
        h->bytes = bytes;
        a->peak = a->used > a->peak ? a->used : a->peak;
    } else {
        a->refused++;
    }
    if (h->bytes == 0 && h->tenant)
        leave(a, h);
    pthread_mutex_unlock(&a->lock);
    return why;
}

void hold_release(struct hold *h) { hold_set(h, 0); }

int hold_problem(const struct hold *h, enum hold_answer why, size_t bytes, struct problem *pr)
{
    const struct account *a = h->a;
    const double mb = 1e-6;
    switch (why) {
    case HOLD_REQUEST:
        return problem_set(pr, 413, NULL, "request_memory", "the request would take up to %.1f MB of memory, expected at most %.1f MB (--max-request-memory)", (double)bytes * mb, (double)a->request * mb);
    case HOLD_TENANT:
        return problem_set(pr, 429, NULL, "tenant_memory", "the requests of one key or address may take at most %.1f MB of memory together (half of --work-memory); this one would take up to %.1f MB more",
                           (double)a->tenant * mb, (double)(bytes - h->bytes) * mb);
    case HOLD_TOTAL:
        return problem_set(pr, 503, NULL, "work_memory", "running requests use the memory for requests, %.1f MB (--work-memory); this one would take up to %.1f MB more", (double)a->total * mb, (double)(bytes - h->bytes) * mb);
    default:
        return problem_nomem(pr);
    }
}

void account_stats(struct account *a, struct account_stats *s)
{
    pthread_mutex_lock(&a->lock);
    *s = (struct account_stats){ .used = a->used, .peak = a->peak, .total = a->total, .request = a->request,
                                 .n_holds = a->n_holds, .refused = a->refused };
    pthread_mutex_unlock(&a->lock);
}

size_t account_request_limit(const struct account *a) { return a->request; }
