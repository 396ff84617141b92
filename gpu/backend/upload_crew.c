/* upload_crew.c - threads that upload experts. */
#include "gpu/backend/upload_crew.h"

#include <pthread.h>
#include <stdlib.h>

#include "gpu/backend/device_weights.h"
#include "libcommon/base/thread.h"

struct upload_crew {
    struct gpu *g;
    struct gpu_ring *ring;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct crew_work work;
    int next, left;                     /* the next expert to take; experts that are not queued yet */
    uint64_t bytes;
    int failed, stop;
    struct err error;
    int n_threads;
    pthread_t thread[];
};

int upload_expert(struct gpu_ring *ring, const struct expert *x, uint8_t *slot, uint64_t *bytes, struct err *e)
{
    struct dweights_part part[EXPERT_PARTS];
    int n;
    dweights_expert(x, part, &n);
    for (int i = 0; i < n; i++) {
        if (gpu_ring_upload(ring, slot + part[i].offset, part[i].from, part[i].size, e) < 0)
            return -1;
        *bytes += part[i].size;
    }
    return 0;
}

/* Wait for an expert to upload.  Returns its index; -1: the crew stops. */
static int next_expert(struct upload_crew *c, struct crew_work *w)
{
    pthread_mutex_lock(&c->lock);
    while (!c->stop && c->next >= c->work.n)
        pthread_cond_wait(&c->changed, &c->lock);
    const int i = c->stop ? -1 : c->next++;
    *w = c->work;
    pthread_mutex_unlock(&c->lock);
    return i;
}

/* An expert is queued, or could not be.  The thread that queued the last one records the event. */
static void finish_expert(struct upload_crew *c, const struct crew_work *w, uint64_t bytes, int rc, struct err *e)
{
    pthread_mutex_lock(&c->lock);
    c->bytes += bytes;
    if (rc == 0 && c->left == 1 && !c->failed)
        rc = gpu_event_record(c->g, GPU_COPY, w->filled, e);
    if (rc < 0 && !c->failed) {
        c->failed = 1;
        c->error = *e;
    }
    if (--c->left == 0)
        pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static void *upload(void *arg)
{
    struct upload_crew *c = arg;
    struct crew_work w;
    struct err e;
    for (int i; (i = next_expert(c, &w)) >= 0; ) {
        uint64_t bytes = 0;
        const int rc = gpu_use(c->g, &e) < 0 ||
                       upload_expert(c->ring, &w.experts[w.id[i]], w.to + (size_t)i * w.slot, &bytes, &e) < 0 ? -1 : 0;
        finish_expert(c, &w, bytes, rc, &e);
    }
    return NULL;
}

struct upload_crew *crew_open(struct gpu *g, struct gpu_ring *ring, int n_threads, struct err *e)
{
    struct upload_crew *c = calloc(1, sizeof *c + (size_t)n_threads * sizeof *c->thread);
    if (!c) {
        err_nomem(e, "threads for uploads");
        return NULL;
    }
    c->g = g;
    c->ring = ring;
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    for (; c->n_threads < n_threads; c->n_threads++)
        if (thread_start(&c->thread[c->n_threads], upload, c) != 0) {
            err_set(e, ERR_MEMORY, "no thread to upload experts with");
            crew_close(c);
            return NULL;
        }
    return c;
}

void crew_close(struct upload_crew *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&c->lock);
    c->stop = 1;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    for (int i = 0; i < c->n_threads; i++)
        pthread_join(c->thread[i], NULL);
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

void crew_post(struct upload_crew *c, const struct crew_work *w)
{
    pthread_mutex_lock(&c->lock);
    while (c->left)                     /* of a step that failed */
        pthread_cond_wait(&c->changed, &c->lock);
    c->work = *w;
    c->next = c->failed = 0;
    c->left = w->n;
    c->bytes = 0;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

int crew_wait(struct upload_crew *c, uint64_t *bytes, struct err *e)
{
    pthread_mutex_lock(&c->lock);
    while (c->left)
        pthread_cond_wait(&c->changed, &c->lock);
    const int failed = c->failed;
    *bytes = c->bytes;
    if (failed)
        *e = c->error;
    pthread_mutex_unlock(&c->lock);
    return failed ? -1 : 0;
}
