/* all_reduce.c - sums over devices, in the order of the devices. */
#include "gpu/backend/all_reduce.h"

#include <stdlib.h>

#include "gpu/kernels/operations.h"
#include "gpu/rt/link.h"

/* Calculated, not measured: a message of 256 KiB takes about 10 us on a link of 25 GB/s, as long as
 * the two further hops of the other way; 1 MiB reaches the full speed of the link. */
const struct all_reduce_sizes all_reduce_sizes = { .message = 1 << 20, .small = 256 << 10 };

struct all_reduce {
    int n;
    struct all_reduce_sizes sizes;
    struct gpu *g[ALL_REDUCE_DEVICES];
    struct gpu_link *link[ALL_REDUCE_DEVICES][ALL_REDUCE_DEVICES];      /* [from][to] */
    float *room[ALL_REDUCE_DEVICES];    /* on each device: a message from each other device, in order */
};

size_t all_reduce_bytes(const struct all_reduce_sizes *s, int n) { return (size_t)(n - 1) * s->message; }

static int open_links(struct all_reduce *a, struct err *e)
{
    for (int i = 0; i < a->n; i++) {
        if (gpu_use(a->g[i], e) < 0 ||
            !(a->room[i] = gpu_alloc(a->g[i], all_reduce_bytes(&a->sizes, a->n), "sums over devices", e)))
            return -1;
        for (int k = 0; k < a->n; k++)
            if (k != i && !(a->link[i][k] = gpu_link_open(a->g[i], a->g[k], a->sizes.message, e)))
                return -1;
    }
    return 0;
}

struct all_reduce *all_reduce_open(struct gpu *const g[], int n, const struct all_reduce_sizes *s, struct err *e)
{
    struct all_reduce *a = calloc(1, sizeof *a);
    if (!a) {
        err_nomem(e, "sums over devices");
        return NULL;
    }
    a->n = n;
    a->sizes = *s;
    for (int i = 0; i < n; i++)
        a->g[i] = g[i];
    if (open_links(a, e) == 0)
        return a;
    all_reduce_close(a);
    return NULL;
}

void all_reduce_close(struct all_reduce *a)
{
    if (!a)
        return;
    for (int i = 0; i < a->n; i++) {
        gpu_free(a->g[i], a->room[i]);
        for (int k = 0; k < a->n; k++)
            gpu_link_close(a->link[i][k]);
    }
    free(a);
}

/* The room on a device for messages from another one. */
static float *room_of(const struct all_reduce *a, int device, int from)
{
    return a->room[device] + (size_t)(from - (from > device)) * (a->sizes.message / sizeof(float));
}

/* Elements [at, at + n) of a vector. */
struct run { size_t at, n; };

enum direction { SEND, COLLECT };
enum { OFFER, TAKE, RELEASE, N_PHASES };

/* One phase of the message of device i about its run, to or from device k. */
static int message(struct all_reduce *a, float *const x[], const struct run *run, enum direction d, int phase, int i,
                   int k, struct err *e)
{
    const int sender = d == SEND ? i : k, receiver = d == SEND ? k : i;
    struct gpu_link *l = a->link[sender][receiver];
    const float *from = x[sender] + run->at;
    float *to = d == SEND ? x[k] + run->at : room_of(a, i, k);
    const size_t bytes = run->n * sizeof *from;
    return phase == OFFER ? gpu_link_offer(l, from, bytes, e) : phase == TAKE ? gpu_link_take(l, to, from, bytes, e)
           : gpu_link_release(l, e);
}

/* SEND: let run r[i] of x[i] go from device i to all others.  COLLECT: let every device i collect
 * its run r[i] of all others in its room.  n 0: nothing is sent for device i. */
static int exchange(struct all_reduce *a, float *const x[], const struct run *r, enum direction d, struct err *e)
{
    for (int phase = 0; phase < N_PHASES; phase++)
        for (int i = 0; i < a->n; i++)
            for (int k = 0; r[i].n && k < a->n; k++)
                if (k != i && message(a, x, &r[i], d, phase, i, k, e) < 0)
                    return -1;
    return 0;
}

/* Add what was collected, on every device. */
static int add_each(struct all_reduce *a, float *const x[], const struct run *r, struct err *e)
{
    for (int i = 0; i < a->n; i++) {
        struct gpu_parts o = { .n_parts = a->n, .out = x[i] + r[i].at, .n = r[i].n };
        for (int k = 0; k < a->n; k++)
            o.part[k] = k == i ? o.out : room_of(a, i, k);
        if (gpu_use(a->g[i], e) < 0 || gpu_sum_parts(a->g[i], &o, e) < 0)
            return -1;
    }
    return 0;
}

/* Add a piece: every device adds all of it. */
static int add_whole(struct all_reduce *a, float *const x[], size_t at, size_t n, struct err *e)
{
    struct run r[ALL_REDUCE_DEVICES];
    for (int i = 0; i < a->n; i++)
        r[i] = (struct run){ at, n };
    return exchange(a, x, r, COLLECT, e) < 0 ? -1 : add_each(a, x, r, e);
}

/* Add a piece: every device adds a share of it, and sends the sum to the others. */
static int add_shares(struct all_reduce *a, float *const x[], size_t at, size_t n, struct err *e)
{
    enum { WHOLE = 64 };                /* floats in 256 bytes */
    const size_t share = ((n + (size_t)a->n - 1) / (size_t)a->n + WHOLE - 1) / WHOLE * WHOLE;
    struct run r[ALL_REDUCE_DEVICES];
    for (int i = 0; i < a->n; i++) {
        const size_t first = (size_t)i * share < n ? (size_t)i * share : n;
        r[i] = (struct run){ at + first, n - first < share ? n - first : share };
    }
    return exchange(a, x, r, COLLECT, e) < 0 || add_each(a, x, r, e) < 0 ? -1 : exchange(a, x, r, SEND, e);
}

/* Does every device add all n floats?  *piece: the number of floats to add at a time. */
static int adds_whole(const struct all_reduce_sizes *s, int n_devices, size_t n, size_t *piece)
{
    /* two devices move as many bytes in one hop as in two */
    const int whole = n_devices == 2 || n * sizeof(float) <= s->small;
    *piece = s->message / sizeof(float) * (whole ? 1 : (size_t)n_devices);
    return whole;
}

size_t all_reduce_nodes(const struct all_reduce_sizes *s, int n_devices, size_t n)
{
    enum { BOUNCED = 2 };               /* copies of a message through pinned memory */
    size_t piece;
    const size_t hops = adds_whole(s, n_devices, n, &piece) ? 1 : 2, devices = (size_t)n_devices;
    return (n + piece - 1) / piece * (hops * devices * (devices - 1) * BOUNCED + devices);
}

int all_reduce_sum(struct all_reduce *a, float *const x[], size_t n, struct err *e)
{
    size_t piece;
    const int whole = adds_whole(&a->sizes, a->n, n, &piece);
    for (size_t at = 0; at < n; at += piece)
        if ((whole ? add_whole : add_shares)(a, x, at, n - at < piece ? n - at : piece, e) < 0)
            return -1;
    return 0;
}

int all_reduce_spread(struct all_reduce *a, float *const x[], size_t n, struct err *e)
{
    const size_t most = a->sizes.message / sizeof **x;
    for (size_t at = 0; at < n; at += most) {
        const struct run r[ALL_REDUCE_DEVICES] = { { at, n - at < most ? n - at : most } };
        if (exchange(a, x, r, SEND, e) < 0)
            return -1;
    }
    return 0;
}

int all_reduce_is_direct(const struct all_reduce *a, int device)
{
    int n = 0;
    for (int i = 0; i < a->n; i++)
        n += i != device && gpu_link_is_direct(a->link[i][device]);
    return n == a->n - 1;
}

size_t all_reduce_pinned(const struct all_reduce *a)
{
    size_t n = 0;
    for (int i = 0; i < a->n; i++)
        for (int k = 0; k < a->n; k++)
            n += k == i ? 0 : gpu_link_pinned(a->link[i][k]);
    return n;
}
