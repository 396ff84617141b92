/* kv_events.c - publish events of the prefix cache: encoding, the kept batches, the thread that
 * owns the sockets. */
#include "libcommon/serve/kv_events.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/http/buf.h"

/* ---- libzmq: what zmq.h declares, of the stable interface of version 4 ---- */

enum { ZMQ_PUB = 1, ZMQ_ROUTER = 6, ZMQ_RCVMORE = 13, ZMQ_LINGER = 17, ZMQ_MAXMSGSIZE = 22, ZMQ_SNDHWM = 23,
       ZMQ_DONTWAIT = 1, ZMQ_SNDMORE = 2, ZMQ_POLLIN = 1 };
enum { MOST_MESSAGE = 1024 };       /* bytes of a subscription, or of a request for a replay */
struct zmq_item { void *socket; int fd; short events, revents; };
struct zmq {
    void *(*ctx_new)(void);
    int (*ctx_term)(void *context);
    void *(*socket)(void *context, int type);
    int (*close)(void *socket);
    int (*bind)(void *socket, const char *endpoint);
    int (*setsockopt)(void *socket, int option, const void *value, size_t size);
    int (*getsockopt)(void *socket, int option, void *value, size_t *size);
    int (*send)(void *socket, const void *data, size_t size, int flags);
    int (*recv)(void *socket, void *data, size_t size, int flags);
    int (*poll)(struct zmq_item *items, int n, long timeout_ms);
    int (*error)(void);
    const char *(*strerror)(int number);
};
static const struct { const char *name; size_t at; } symbols[] = {
    { "zmq_ctx_new", offsetof(struct zmq, ctx_new) }, { "zmq_ctx_term", offsetof(struct zmq, ctx_term) },
    { "zmq_socket", offsetof(struct zmq, socket) }, { "zmq_close", offsetof(struct zmq, close) },
    { "zmq_bind", offsetof(struct zmq, bind) }, { "zmq_setsockopt", offsetof(struct zmq, setsockopt) },
    { "zmq_getsockopt", offsetof(struct zmq, getsockopt) }, { "zmq_send", offsetof(struct zmq, send) },
    { "zmq_recv", offsetof(struct zmq, recv) }, { "zmq_poll", offsetof(struct zmq, poll) },
    { "zmq_errno", offsetof(struct zmq, error) }, { "zmq_strerror", offsetof(struct zmq, strerror) },
};

static int load_zmq(struct zmq *z, struct err *e)
{
    void *lib = dlopen("libzmq.so.5", RTLD_NOW | RTLD_LOCAL);
    if (!lib)
        return err_set(e, ERR_UNSUPPORTED, "--kv-events: libzmq.so.5 cannot be loaded (Debian: libzmq5): %s", dlerror());
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *f = dlsym(lib, symbols[i].name);
        if (!f)
            return err_set(e, ERR_UNSUPPORTED, "--kv-events: libzmq.so.5 has no %s", symbols[i].name);
        memcpy((char *)z + symbols[i].at, &f, sizeof f);
    }
    return 0;
}

struct kv_batch { struct kv_batch *next; uint64_t number; size_t size; char data[]; };

struct kv_events {
    struct zmq zmq;
    void *context, *pub, *router;       /* router NULL: none; the sockets belong to the thread */
    char *topic;
    int wake;                           /* an eventfd */
    pthread_t thread;
    pthread_mutex_t lock;
    /* protected by the lock: batches that were not sent, in order */
    struct kv_batch *first, **last;
    uint64_t number;                    /* of the next batch */
    int stop;
    /* for the thread: sent batches that are kept, oldest first */
    struct kv_batch *kept, **kept_last;
    int n_kept; size_t kept_bytes;
};

struct kv_source {
    struct kv_events *k;
    struct engine_watch watch;
    struct buf body; int n;             /* encoded events of this step, and their number */
    int muted;                          /* protected by the lock of k */
};

/* ---- msgpack ---- */

static void put_number(struct buf *b, unsigned char type, uint64_t value, int bytes)
{
    unsigned char out[9] = { type };
    for (int i = 0; i < bytes; i++)
        out[1 + i] = (unsigned char)(value >> (8 * (bytes - 1 - i)));
    buf_add(b, out, (size_t)bytes + 1);
}

static void put_uint(struct buf *b, uint64_t v) { put_number(b, 0xcf, v, 8); }
static void put_list(struct buf *b, size_t n) { put_number(b, 0xdd, n, 4); }
static void put_nil(struct buf *b) { buf_add(b, "\xc0", 1); }

static void put_text(struct buf *b, const char *text)
{
    put_number(b, 0xdb, strlen(text), 4);
    buf_str(b, text);
}

/* ---- events, in the engine's thread ---- */

static void stored(void *user, uint64_t hash, uint64_t parent, const int32_t *token, const char *lora)
{
    struct kv_source *s = user;
    struct buf *b = &s->body;
    put_list(b, 8);
    put_text(b, "BlockStored");
    put_list(b, 1);
    put_uint(b, hash);
    if (parent)
        put_uint(b, parent);
    else
        put_nil(b);
    put_list(b, KV_BLOCK);
    for (int i = 0; i < KV_BLOCK; i++)
        put_uint(b, (uint64_t)token[i]);
    put_uint(b, KV_BLOCK);
    put_nil(b);
    put_nil(b);
    if (lora)
        put_text(b, lora);
    else
        put_nil(b);
    s->n++;
}

static void removed(void *user, uint64_t hash)
{
    struct kv_source *s = user;
    put_list(&s->body, 3);
    put_text(&s->body, "BlockRemoved");
    put_list(&s->body, 1);
    put_uint(&s->body, hash);
    put_nil(&s->body);
    s->n++;
}

static void wake_thread(struct kv_events *k)
{
    const uint64_t one = 1;
    if (write(k->wake, &one, sizeof one) < 0)
        return;                         /* the counter is full, so the thread is about to wake */
}

/* Pass the events of this step to the thread as a batch.  Without memory they are lost: their
 * number is skipped, so that subscribers know. */
static void stepped(void *user)
{
    struct kv_source *s = user;
    struct kv_events *k = s->k;
    struct buf head = { 0 };
    struct timespec now;
    uint64_t bits;
    if (s->n == 0)
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    const double seconds = (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
    memcpy(&bits, &seconds, sizeof bits);
    put_list(&head, 2);
    put_number(&head, 0xcb, bits, 8);
    put_list(&head, (size_t)s->n);
    const int whole = !head.failed && !s->body.failed;
    struct kv_batch *batch = whole ? malloc(sizeof *batch + head.size + s->body.size) : NULL;
    if (batch) {
        batch->next = NULL;
        batch->size = head.size + s->body.size;
        memcpy(batch->data, head.data, head.size);
        memcpy(batch->data + head.size, s->body.data, s->body.size);
    }
    buf_release(&head);
    buf_release(&s->body);
    s->n = 0;
    pthread_mutex_lock(&k->lock);
    if (!s->muted) {
        const uint64_t number = k->number++;
        if (batch) {
            batch->number = number;
            *k->last = batch;
            k->last = &batch->next;
            batch = NULL;
        }
    }
    pthread_mutex_unlock(&k->lock);
    free(batch);
    wake_thread(k);
}

/* ---- the thread ---- */

static void big_endian(unsigned char out[8], uint64_t v)
{
    for (int i = 0; i < 8; i++)
        out[i] = (unsigned char)(v >> (56 - 8 * i));
}

/* Keep a batch that was sent, and free the oldest ones beyond the limits. */
static void keep(struct kv_events *k, struct kv_batch *b)
{
    b->next = NULL;
    *k->kept_last = b;
    k->kept_last = &b->next;
    k->n_kept++;
    k->kept_bytes += b->size;
    while (k->n_kept > 1 && (k->n_kept > KV_EVENTS_KEPT || k->kept_bytes > KV_EVENTS_BYTES)) {
        struct kv_batch *old = k->kept;
        k->kept = old->next;
        k->n_kept--;
        k->kept_bytes -= old->size;
        free(old);
    }
}

static void publish(struct kv_events *k)
{
    pthread_mutex_lock(&k->lock);
    struct kv_batch *list = k->first;
    k->first = NULL;
    k->last = &k->first;
    pthread_mutex_unlock(&k->lock);
    while (list) {
        struct kv_batch *next = list->next;
        unsigned char number[8];
        big_endian(number, list->number);
        k->zmq.send(k->pub, k->topic, strlen(k->topic), ZMQ_SNDMORE | ZMQ_DONTWAIT);
        k->zmq.send(k->pub, number, sizeof number, ZMQ_SNDMORE | ZMQ_DONTWAIT);
        k->zmq.send(k->pub, list->data, list->size, ZMQ_DONTWAIT);
        keep(k, list);
        list = next;
    }
}

static int has_more(struct kv_events *k)
{
    int more = 0;
    size_t size = sizeof more;
    return k->zmq.getsockopt(k->router, ZMQ_RCVMORE, &more, &size) == 0 && more;
}

/* Send a batch to a client of the ROUTER socket. */
static void send_kept(struct kv_events *k, const void *client, size_t client_size, int delimited, uint64_t number,
                      const void *data, size_t size)
{
    unsigned char text[8];
    big_endian(text, number);
    if (k->zmq.send(k->router, client, client_size, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
        return;
    if (delimited)
        k->zmq.send(k->router, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    k->zmq.send(k->router, text, sizeof text, ZMQ_SNDMORE | ZMQ_DONTWAIT);
    k->zmq.send(k->router, data, size, ZMQ_DONTWAIT);
}

/* Take a request of the ROUTER socket: the client, perhaps an empty frame, and the number of the
 * first batch to send.  Another message is dropped. */
static void replay(struct kv_events *k)
{
    unsigned char frame[3][256];
    int size[3] = { -1, -1, -1 }, n = 0, more = 1;
    uint64_t first = 0;
    while (more) {
        unsigned char rest[256];
        const int got = k->zmq.recv(k->router, n < 3 ? frame[n] : rest, sizeof rest, ZMQ_DONTWAIT);
        if (got < 0)
            return;
        if (n < 3)
            size[n] = got;
        n++;
        more = has_more(k);
    }
    const int delimited = n == 3 && size[1] == 0;
    if ((n != 2 && !delimited) || size[n - 1] != 8 || size[0] > (int)sizeof frame[0])
        return;
    for (int i = 0; i < 8; i++)
        first = first << 8 | frame[n - 1][i];
    for (const struct kv_batch *b = k->kept; b; b = b->next)
        if (b->number >= first)
            send_kept(k, frame[0], (size_t)size[0], delimited, b->number, b->data, b->size);
    send_kept(k, frame[0], (size_t)size[0], delimited, UINT64_MAX, "", 0);
}

static void *run(void *arg)
{
    struct kv_events *k = arg;
    struct zmq_item items[2] = { { NULL, k->wake, ZMQ_POLLIN, 0 }, { k->router, 0, ZMQ_POLLIN, 0 } };
    for (int stop = 0; !stop;) {
        uint64_t count;
        if (k->zmq.poll(items, k->router ? 2 : 1, -1) < 0)
            continue;                   /* interrupted by a signal */
        if ((items[0].revents & ZMQ_POLLIN) && read(k->wake, &count, sizeof count) < 0)
            continue;
        pthread_mutex_lock(&k->lock);
        stop = k->stop;
        pthread_mutex_unlock(&k->lock);
        publish(k);
        if (k->router && (items[1].revents & ZMQ_POLLIN))
            replay(k);
    }
    return NULL;
}

/* ---- open and close ---- */

static void *open_socket(struct kv_events *k, int type, const char *option, const char *endpoint, struct err *e)
{
    const int linger_ms = 500, most = KV_EVENTS_KEPT + 2;
    const int64_t longest = MOST_MESSAGE;
    void *socket = k->zmq.socket(k->context, type);
    if (socket && k->zmq.setsockopt(socket, ZMQ_LINGER, &linger_ms, sizeof linger_ms) == 0 &&
        k->zmq.setsockopt(socket, ZMQ_SNDHWM, &most, sizeof most) == 0 &&
        k->zmq.setsockopt(socket, ZMQ_MAXMSGSIZE, &longest, sizeof longest) == 0 && k->zmq.bind(socket, endpoint) == 0)
        return socket;
    err_set(e, ERR_IO, "%s %s: %s", option, endpoint, k->zmq.strerror(k->zmq.error()));
    if (socket)
        k->zmq.close(socket);
    return NULL;
}

static void free_list(struct kv_batch *b)
{
    while (b) {
        struct kv_batch *next = b->next;
        free(b);
        b = next;
    }
}

static void release(struct kv_events *k)
{
    if (k->router)
        k->zmq.close(k->router);
    if (k->pub)
        k->zmq.close(k->pub);
    if (k->context)
        k->zmq.ctx_term(k->context);
    if (k->wake >= 0)
        close(k->wake);
    free_list(k->first);
    free_list(k->kept);
    pthread_mutex_destroy(&k->lock);
    free(k->topic);
    free(k);
}

struct kv_events *kv_events_open(const char *endpoint, const char *replay_endpoint, const char *topic, struct err *e)
{
    struct kv_events *k = calloc(1, sizeof *k);
    if (!k) {
        err_nomem(e, "--kv-events");
        return NULL;
    }
    k->last = &k->first;
    k->kept_last = &k->kept;
    k->wake = -1;
    pthread_mutex_init(&k->lock, NULL);
    if (load_zmq(&k->zmq, e) < 0)
        goto fail;
    k->topic = strdup(topic);
    k->context = k->zmq.ctx_new();
    k->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (!k->topic || !k->context || k->wake < 0) {
        err_sys(e, "--kv-events");
        goto fail;
    }
    if (!(k->pub = open_socket(k, ZMQ_PUB, "--kv-events", endpoint, e)) ||
        (replay_endpoint && !(k->router = open_socket(k, ZMQ_ROUTER, "--kv-replay", replay_endpoint, e))))
        goto fail;
    const int rc = pthread_create(&k->thread, NULL, run, k);
    if (rc == 0)
        return k;
    err_set(e, ERR_IO, "--kv-events: thread: %s", strerror(rc));
fail:
    release(k);
    return NULL;
}

void kv_events_close(struct kv_events *k)
{
    if (!k)
        return;
    pthread_mutex_lock(&k->lock);
    k->stop = 1;
    pthread_mutex_unlock(&k->lock);
    wake_thread(k);
    pthread_join(k->thread, NULL);
    release(k);
}

struct kv_source *kv_source_open(struct kv_events *k)
{
    struct kv_source *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->k = k;
    s->watch = (struct engine_watch){ stored, removed, stepped, s };
    put_list(&s->body, 1);
    put_text(&s->body, "AllBlocksCleared");
    s->n = 1;
    stepped(s);
    return s;
}

const struct engine_watch *kv_source_watch(const struct kv_source *s) { return &s->watch; }

void kv_source_mute(struct kv_source *s)
{
    pthread_mutex_lock(&s->k->lock);
    s->muted = 1;
    pthread_mutex_unlock(&s->k->lock);
}

void kv_source_close(struct kv_source *s)
{
    if (!s)
        return;
    buf_release(&s->body);
    free(s);
}
