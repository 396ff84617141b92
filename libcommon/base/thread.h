/* thread.h - start a thread that hears no signals: they belong to the program's own thread,
 * whose handlers may jump.  But for those about what the thread itself does: a page that cannot
 * be read. */
#ifndef ZSE_BASE_THREAD_H
#define ZSE_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* As pthread_create. */
static inline int thread_start(pthread_t *t, void *(*run)(void *arg), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(t, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

#endif
