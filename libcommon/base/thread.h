/* thread.h - start a thread with signals blocked, so that they are handled by the program's main
 * thread: its handlers may longjmp.  SIGBUS stays unblocked, because the thread that touches an
 * unreadable page must handle it. */
#ifndef ZSE_BASE_THREAD_H
#define ZSE_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* pthread_create with signals blocked. */
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
