/* hub_stream.c - download a model's files in a thread while the main thread converts them. */
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/hub_cli.h"

enum stream_state { ASKING, COMING, ENDED };

struct hub_stream {
    struct hub_setup setup;
    struct hub_name name;
    struct hub_before before;
    struct progress shown, quiet;       /* progress of the download; of the conversion */
    struct sigaction signals[2];        /* previous actions of SIGINT and SIGTERM */
    const struct progress *to;          /* the caller's progress of the conversion */
    pthread_t thread;
    pthread_mutex_t lock;               /* protects all members below */
    pthread_cond_t moved;
    enum stream_state state;
    int stop, known, wanted;            /* wanted: index of the shard that the conversion waits for, or -1 */
    int rc; struct err e;               /* result of the download */
    char *path, *folder;                /* path: fetched; folder: where shards arrive */
    struct source_arriving arriving;
    struct source_shard *shards; int n_shards;          /* owned, with names and heads */
    char *here;
};

/* ---- in the download thread ---- */

static int report_download(void *user, const char *what, uint64_t done, uint64_t total, const char *unit)
{
    struct hub_stream *s = user;
    const int stop = progress_report(&s->setup.progress.progress, what, done, total, unit);
    pthread_mutex_lock(&s->lock);
    const int stopped = s->stop;
    pthread_mutex_unlock(&s->lock);
    return stop || stopped;
}

static int copy_shard(struct source_shard *to, const struct hub_shard *from)
{
    uint8_t *head = NULL;
    to->name = strdup(from->name);
    to->size = from->size;
    if (from->head && (head = malloc(from->head_size ? from->head_size : 1))) {
        memcpy(head, from->head, from->head_size);
        to->head = head;
        to->head_size = from->head_size;
    }
    return to->name && (head || !from->head);
}

static int announce(void *user, const char *folder, const struct hub_shard *shards, int n, struct err *e)
{
    struct hub_stream *s = user;
    pthread_mutex_lock(&s->lock);
    s->shards = calloc((size_t)n + 1, sizeof *s->shards);
    s->here = calloc((size_t)n + 1, 1);
    s->folder = strdup(folder);
    int ok = s->shards && s->here && s->folder;
    for (int i = 0; i < n && ok; i++) {
        s->here[i] = !shards[i].head;
        s->n_shards = i + 1;
        ok = copy_shard(&s->shards[i], &shards[i]);
    }
    s->arriving.shards = s->shards;
    s->arriving.n = n;
    s->state = ok ? COMING : ASKING;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
    return ok ? 0 : err_nomem(e, "shards");
}

static void arrived(void *user, int shard)
{
    struct hub_stream *s = user;
    pthread_mutex_lock(&s->lock);
    s->here[shard] = 1;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
}

static int wanted(void *user)
{
    struct hub_stream *s = user;
    pthread_mutex_lock(&s->lock);
    const int i = s->wanted;
    pthread_mutex_unlock(&s->lock);
    return i;
}

static void *run(void *user)
{
    struct hub_stream *s = user;
    struct err e = { 0 };
    char *path = NULL;
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    /* SIGPIPE is blocked in this thread only, so that a closed connection does not end the program;
     * a closed standard output still does */
    pthread_sigmask(SIG_BLOCK, &pipe, NULL);
    const int rc = hub_fetch(&s->setup.o, &s->name, &path, &e);
    cli_progress_clear();
    pthread_mutex_lock(&s->lock);
    s->rc = rc;
    s->e = e;
    s->path = path;
    s->state = ENDED;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

/* ---- in the conversion's thread ---- */

static int wait_for(void *user, int shard, struct err *e)
{
    struct hub_stream *s = user;
    pthread_mutex_lock(&s->lock);
    s->wanted = shard;
    while (!s->here[shard] && s->state != ENDED)
        pthread_cond_wait(&s->moved, &s->lock);
    s->wanted = -1;
    const int here = s->here[shard];
    if (!here && s->rc != 0)
        *e = s->e;
    pthread_mutex_unlock(&s->lock);
    return here ? 0 : s->rc != 0 ? -1 : err_set(e, ERR_IO, "%s: %s was not downloaded", s->name.repo,
                                                s->shards[shard].name);
}

static int report_conversion(void *user, const char *what, uint64_t done, uint64_t total, const char *unit)
{
    struct hub_stream *s = user;
    pthread_mutex_lock(&s->lock);
    const int coming = s->state == COMING, failed = s->state == ENDED && s->rc != 0;
    pthread_mutex_unlock(&s->lock);
    return failed ? 1 : coming ? cli_interrupted() != 0 : progress_report(s->to, what, done, total, unit);
}

const struct source_arriving *hub_stream_arriving(const struct hub_stream *s) { return &s->arriving; }

const struct progress *hub_stream_progress(struct hub_stream *s, const struct progress *to)
{
    s->to = to;
    return &s->quiet;
}

static void release(struct hub_stream *s)
{
    for (int i = 0; i < s->n_shards; i++) {
        free((char *)(uintptr_t)s->shards[i].name);
        free((uint8_t *)(uintptr_t)s->shards[i].head);
    }
    free(s->shards);
    free(s->here);
    free(s->folder);
    free(s->path);
    hub_setup_release(&s->setup);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->moved);
    free(s);
}

static int start(struct hub_stream *s, const char *prog, const char *arg, int refresh, const struct hub_check *check,
                 struct err *e)
{
    if (hub_setup(&s->setup, prog, e) != 0)
        return -1;
    s->wanted = -1;
    s->shown = (struct progress){ report_download, s };
    s->quiet = (struct progress){ report_conversion, s };
    s->arriving.wait = wait_for;
    s->arriving.user = s;
    s->before = (struct hub_before){ check, arg, s->setup.o.cache };
    hub_check_before(&s->setup.o, &s->before);
    s->setup.o.refresh = refresh;
    s->setup.o.known = &s->known;
    s->setup.o.progress = &s->shown;
    s->setup.o.announce = announce;
    s->setup.o.arrived = arrived;
    s->setup.o.wanted = wanted;
    s->setup.o.announce_user = s;
    sigaction(SIGINT, NULL, &s->signals[0]);
    sigaction(SIGTERM, NULL, &s->signals[1]);
    cli_catch_interrupt();
    return pthread_create(&s->thread, NULL, run, s) == 0 ? 0 : err_set(e, ERR_MEMORY, "no thread for the download");
}

/* Join the thread, which has ended or is about to, and report its result. */
static int finish(struct hub_stream *s, char **path, struct err *e)
{
    pthread_join(s->thread, NULL);
    sigaction(SIGINT, &s->signals[0], NULL);
    sigaction(SIGTERM, &s->signals[1], NULL);
    const int rc = s->rc;
    if (rc != 0)
        *e = s->e;
    else if (path && (!*path || strcmp(*path, s->path) != 0)) {
        free(*path);
        *path = s->path;
        s->path = NULL;
    }
    if (rc != 0 && !s->known)
        err_prefix(e, "no such file or folder here; on the hub");
    return rc;
}

int hub_stream_open(struct hub_stream **out, const char *prog, const char *arg, int refresh,
                    const struct hub_check *check, char **path, struct err *e)
{
    struct hub_stream *s = calloc(1, sizeof *s);
    *out = NULL;
    *path = NULL;
    if (!s)
        return err_nomem(e, "download");
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->moved, NULL);
    int rc = hub_is_name(arg, &s->name, path, e);
    if (rc == 1 && (rc = start(s, prog, arg, refresh, check, e)) == 0) {
        pthread_mutex_lock(&s->lock);
        while (s->state == ASKING)
            pthread_cond_wait(&s->moved, &s->lock);
        const int coming = s->state == COMING;
        pthread_mutex_unlock(&s->lock);
        if (coming && (*path = strdup(s->folder))) {
            *out = s;
            return 0;
        }
        if (coming)
            s->stop = 1;
        rc = finish(s, path, e);
        cli_die_of_interrupt();
    }
    release(s);
    return rc;
}

int hub_stream_close(struct hub_stream *s, int rc, char **path, struct err *e)
{
    struct err first = *e;
    pthread_mutex_lock(&s->lock);
    const int ended = s->state == ENDED;
    s->stop = rc != 0;
    pthread_mutex_unlock(&s->lock);
    char *before = strdup(*path);
    const int end = finish(s, path, e), other = end == 0 && before && strcmp(before, *path) != 0;
    /* the conversion's own failure: the download only stopped because of it */
    const int own = rc != 0 && !(ended && end != 0);
    if (own)
        *e = first;
    free(before);
    release(s);
    return rc != 0 && other ? 1 : rc != 0 ? rc : end;
}
