/* ring.c - pinned buffers that are filled and sent in turn. */
#include "gpu/rt/ring.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"

enum state { FREE, TAKEN, SENT };
struct buffer { void *p; struct gpu_event *sent; enum state state; };
struct gpu_ring {
    struct gpu *g;
    size_t size;
    pthread_mutex_t lock;
    pthread_cond_t returned;            /* a buffer is no longer taken */
    int n, next;
    struct gpu_ring_counts counts;
    struct buffer buffers[];
};

struct gpu_ring *gpu_ring_open(struct gpu *g, int n_buffers, size_t size, struct err *e)
{
    struct gpu_ring *r = calloc(1, sizeof *r + (size_t)n_buffers * sizeof *r->buffers);
    if (!r) {
        err_nomem(e, "upload buffers");
        return NULL;
    }
    r->g = g;
    r->size = size;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->returned, NULL);
    for (; r->n < n_buffers; r->n++) {
        struct buffer *b = &r->buffers[r->n];
        if (!(b->p = gpu_pinned(g, size, "uploads", e)) || !(b->sent = gpu_event_open(g, e))) {
            gpu_pinned_free(g, b->p);
            gpu_ring_close(r);
            return NULL;
        }
    }
    return r;
}

void gpu_ring_close(struct gpu_ring *r)
{
    struct err ignored;
    if (!r)
        return;
    for (int i = 0; i < r->n; i++) {
        if (r->buffers[i].state == SENT)
            gpu_event_sync(r->g, r->buffers[i].sent, &ignored);
        gpu_event_close(r->g, r->buffers[i].sent);
        gpu_pinned_free(r->g, r->buffers[i].p);
    }
    pthread_cond_destroy(&r->returned);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

size_t gpu_ring_size(const struct gpu_ring *r) { return r->size; }

static void give_back(struct gpu_ring *r, struct buffer *b, enum state state)
{
    pthread_mutex_lock(&r->lock);
    b->state = state;
    pthread_cond_broadcast(&r->returned);
    pthread_mutex_unlock(&r->lock);
}

int gpu_ring_take(struct gpu_ring *r, void **p, struct err *e)
{
    pthread_mutex_lock(&r->lock);
    const int i = r->next;
    struct buffer *b = &r->buffers[i];
    r->next = (i + 1) % r->n;
    while (b->state == TAKEN)
        pthread_cond_wait(&r->returned, &r->lock);
    const int sent = b->state == SENT;
    b->state = TAKEN;
    pthread_mutex_unlock(&r->lock);
    const uint64_t begun = clock_ns();
    if (sent && gpu_event_sync(r->g, b->sent, e) < 0) {
        give_back(r, b, FREE);
        return -1;
    }
    pthread_mutex_lock(&r->lock);
    r->counts.waited_ns += sent ? clock_ns() - begun : 0;
    pthread_mutex_unlock(&r->lock);
    *p = b->p;
    return i;
}

int gpu_ring_send(struct gpu_ring *r, int buffer, void *to, size_t n, struct err *e)
{
    struct buffer *b = &r->buffers[buffer];
    if (n == 0) {
        give_back(r, b, FREE);
        return 0;
    }
    /* the event of a copy that failed may be recorded or not: it is not waited for */
    const int rc = gpu_upload(r->g, GPU_COPY, to, b->p, n, e) < 0 ? -1 : gpu_event_record(r->g, GPU_COPY, b->sent, e);
    pthread_mutex_lock(&r->lock);
    r->counts.bytes += rc == 0 ? n : 0;
    r->counts.copies += rc == 0;
    pthread_mutex_unlock(&r->lock);
    give_back(r, b, rc == 0 ? SENT : FREE);
    return rc;
}

int gpu_ring_upload(struct gpu_ring *r, void *to, const void *from, size_t n, struct err *e)
{
    for (size_t at = 0; at < n; at += r->size) {
        const size_t piece = n - at < r->size ? n - at : r->size;
        void *p;
        const int i = gpu_ring_take(r, &p, e);
        if (i < 0)
            return -1;
        memcpy(p, (const uint8_t *)from + at, piece);
        if (gpu_ring_send(r, i, (uint8_t *)to + at, piece, e) < 0)
            return -1;
    }
    return 0;
}

void gpu_ring_counts(struct gpu_ring *r, struct gpu_ring_counts *c)
{
    pthread_mutex_lock(&r->lock);
    *c = r->counts;
    pthread_mutex_unlock(&r->lock);
}
