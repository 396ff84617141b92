/* handshake.c - threads for TLS handshakes, and their queue. */
#include "libcommon/http/handshake.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <openssl/err.h>

enum { MAX_THREADS = 8, NICE = 5 };

struct handshakes {
    pthread_t thread[MAX_THREADS]; int n_threads;
    pthread_mutex_t lock;
    pthread_cond_t work;
    /* the queue, by round: the first of each address, then the second of each, and so on */
    struct handshake *first; int n;
    struct handshake *back;
    uint64_t round;                     /* round of the last one taken */
    int stop;
    void (*wake)(void *user);
    void *user;
};

static void step(struct handshake *x)
{
    ERR_clear_error();                  /* SSL_get_error(3) takes older entries of the queue for this call's */
    const int rc = SSL_accept(x->ssl);
    const int why = rc == 1 ? SSL_ERROR_NONE : SSL_get_error(x->ssl, rc);
    x->result = rc == 1 ? HANDSHAKE_DONE : why == SSL_ERROR_WANT_READ ? HANDSHAKE_READ : why == SSL_ERROR_WANT_WRITE
                    ? HANDSHAKE_WRITE : HANDSHAKE_FAILED;
    ERR_clear_error();
}

static void *run(void *arg)
{
    struct handshakes *h = arg;
    /* on Linux this affects only this thread: responses of open connections take precedence */
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE);
    pthread_mutex_lock(&h->lock);
    while (!h->stop) {
        struct handshake *x = h->first;
        if (!x) {
            pthread_cond_wait(&h->work, &h->lock);
            continue;
        }
        h->first = x->next;
        h->n--;
        h->round = x->round;
        pthread_mutex_unlock(&h->lock);
        step(x);
        pthread_mutex_lock(&h->lock);
        x->next = h->back;
        h->back = x;
        h->wake(h->user);
    }
    pthread_mutex_unlock(&h->lock);
    return NULL;
}

struct handshakes *handshakes_open(int n_threads, void (*wake)(void *user), void *user, struct err *e)
{
    struct handshakes *h = calloc(1, sizeof *h);
    if (!h) {
        err_nomem(e, "TLS");
        return NULL;
    }
    h->wake = wake;
    h->user = user;
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->work, NULL);
    for (int rc; h->n_threads < n_threads && h->n_threads < MAX_THREADS; h->n_threads++)
        if ((rc = pthread_create(&h->thread[h->n_threads], NULL, run, h)) != 0) {
            err_set(e, ERR_IO, "thread: %s", strerror(rc));
            handshakes_close(h);
            return NULL;
        }
    return h;
}

static void all_back(struct handshake *x)
{
    for (; x; x = x->next)
        x->away = 0;
}

void handshakes_close(struct handshakes *h)
{
    if (!h)
        return;
    pthread_mutex_lock(&h->lock);
    h->stop = 1;
    pthread_cond_broadcast(&h->work);
    pthread_mutex_unlock(&h->lock);
    while (h->n_threads > 0)
        pthread_join(h->thread[--h->n_threads], NULL);
    all_back(h->first);
    all_back(h->back);
    pthread_cond_destroy(&h->work);
    pthread_mutex_destroy(&h->lock);
    free(h);
}

/* Set x->round and return the link where x is to be queued; NULL: its address has too many. */
static struct handshake **place_of(struct handshakes *h, struct handshake *x, int limited)
{
    int n = 0;
    x->round = h->round;
    for (const struct handshake *w = h->first; w; w = w->next)
        if (w->owner == x->owner) {
            x->round = w->round + 1;
            n++;
        }
    if (limited && n >= HANDSHAKES_PER_OWNER)
        return NULL;
    struct handshake **at = &h->first;
    while (*at && (*at)->round <= x->round)
        at = &(*at)->next;
    return at;
}

static struct handshake *take_last(struct handshakes *h)
{
    struct handshake **at = &h->first, *x;
    while ((*at)->next)
        at = &(*at)->next;
    x = *at;
    *at = NULL;
    h->n--;
    x->away = 0;
    return x;
}

int handshakes_submit(struct handshakes *h, struct handshake *x, int limited, struct handshake **dropped)
{
    int rc = -1;
    *dropped = NULL;
    pthread_mutex_lock(&h->lock);
    struct handshake **at = place_of(h, x, limited);
    if (at && (h->n < HANDSHAKES_WAITING || *at)) {
        x->next = *at;
        *at = x;
        x->away = 1;
        if (h->n++ == HANDSHAKES_WAITING)
            *dropped = take_last(h);
        pthread_cond_signal(&h->work);
        rc = 0;
    }
    pthread_mutex_unlock(&h->lock);
    return rc;
}

int handshakes_withdraw(struct handshakes *h, struct handshake *x)
{
    pthread_mutex_lock(&h->lock);
    struct handshake **at = &h->first;
    while (*at && *at != x)
        at = &(*at)->next;
    if (*at) {
        *at = x->next;
        h->n--;
        x->away = 0;
    }
    pthread_mutex_unlock(&h->lock);
    return !x->away;
}

struct handshake *handshakes_back(struct handshakes *h)
{
    pthread_mutex_lock(&h->lock);
    struct handshake *x = h->back;
    h->back = NULL;
    all_back(x);
    pthread_mutex_unlock(&h->lock);
    return x;
}
