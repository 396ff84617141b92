/* thread.h - start a thread with signals blocked, so that they are handled by the program's main
 * thread: its handlers may longjmp.  SIGBUS stays unblocked, because the thread that touches an
 * unreadable page must handle it. */
#ifndef ZSE_BASE_THREAD_H
#define ZSE_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* pthread_create with signals blocked; attributes NULL: the default ones. */
static inline int thread_start_with(pthread_t *t, const pthread_attr_t *attributes, void *(*run)(void *arg), void *arg)
{
    sigset_t all, before;
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(t, attributes, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

static inline int thread_start(pthread_t *t, void *(*run)(void *arg), void *arg)
{
    return thread_start_with(t, NULL, run, arg);
}

#endif
