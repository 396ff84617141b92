/* reaper.c - a thread that frees large blocks. */
#include "libcommon/http/reaper.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct reaper_block { struct reaper_block *next; };                   /* at the beginning of the block itself */

struct reaper {
    pthread_t thread;
    int running;                        /* 1: the thread runs; -1: it could not be started */
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct reaper_block *first;
    int stop;
};

static void free_all(struct reaper_block *b)
{
    for (struct reaper_block *next; b; b = next) {
        next = b->next;
        free(b);
    }
}

static void *run(void *arg)
{
    struct reaper *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        struct reaper_block *b = r->first;
        if (!b) {
            pthread_cond_wait(&r->work, &r->lock);
            continue;
        }
        r->first = NULL;
        pthread_mutex_unlock(&r->lock);
        free_all(b);
        pthread_mutex_lock(&r->lock);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

struct reaper *reaper_open(void)
{
    struct reaper *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work, NULL);
    return r;
}

void reaper_close(struct reaper *r)
{
    if (!r)
        return;
    if (r->running == 1) {
        pthread_mutex_lock(&r->lock);
        r->stop = 1;
        pthread_cond_signal(&r->work);
        pthread_mutex_unlock(&r->lock);
        pthread_join(r->thread, NULL);
    }
    free_all(r->first);
    pthread_cond_destroy(&r->work);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

void reaper_take(struct reaper *r, struct buf *b)
{
    if (r && b->room >= REAPER_LARGE && r->running == 0)
        r->running = pthread_create(&r->thread, NULL, run, r) == 0 ? 1 : -1;
    if (!r || b->room < REAPER_LARGE || r->running != 1) {
        buf_release(b);
        return;
    }
    struct reaper_block *x = (struct reaper_block *)b->data;
    pthread_mutex_lock(&r->lock);
    x->next = r->first;
    r->first = x;
    pthread_cond_signal(&r->work);
    pthread_mutex_unlock(&r->lock);
    memset(b, 0, sizeof *b);
}
