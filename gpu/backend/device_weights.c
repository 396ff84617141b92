/* device_weights.c - load a model's weights into one device allocation, in the order in which they
 * are needed.  Threads take chunks of CHUNK bytes in that order, copy them from the mapping into
 * their own pinned buffers, and queue the transfer; the thread that queues the last chunk of a part
 * records the part's event. */
#include "gpu/backend/device_weights.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/rt/ring.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/pool.h"

/* 4 MB: transfers of this size reach the full speed of the link.  8 threads: a core copies about 10
 * GB/s, the link 25 to 55.  Two buffers each: one is filled while the other is sent. */
enum { CHUNK = 4 << 20, MAX_LOADERS = 8, ALIGN = 256 };

struct segment { const uint8_t *from; size_t offset, size; int part; };

struct dweights {
    struct gpu *g;
    int n_layers;
    struct dlayer *layers;
    struct dends ends;
    uint8_t *base, *decoded;        /* decoded NULL: no copies */
    size_t size;
    int act_int8;
    uint8_t *is_decoded;            /* [n_layers] */
    struct gpu_ring *ring;
    struct segment *segments; int n_segments, room;
    struct segment *chunks; int n_chunks;
    int *left;                      /* [n_layers + 2] chunks of each part that are not queued yet */
    struct gpu_event **event;       /* an event for each part */
    pthread_t thread[MAX_LOADERS]; int n_threads, n_loaders;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int next, failed, stop, done, complete;
    struct err error;
    uint64_t ended;
};

/* ---- the layout ---- */

/* n_experts: experts of each layer; tied: the head is the embedding, which is also on the device */
struct weight_layout { struct dweights *w; size_t at, decoded_at; int n_experts, part, tied, failed; };

static size_t aligned(size_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

/* Reserve the next n bytes.  If the device memory is allocated, list them as a segment of it. */
static const void *place(struct weight_layout *p, const void *from, size_t n)
{
    struct dweights *w = p->w;
    const size_t at = p->at;
    p->at += aligned(n);
    if (!w->base)
        return NULL;
    if (w->n_segments == w->room) {
        int room = w->room ? 2 * w->room : 256;
        struct segment *more = realloc(w->segments, (size_t)room * sizeof *more);
        if (!more) {
            p->failed = 1;
            return NULL;
        }
        w->segments = more;
        w->room = room;
    }
    w->segments[w->n_segments++] = (struct segment){ from, at, n, p->part };
    return w->base + at;
}

static const float *vector(struct weight_layout *p, const float *v, size_t n)
{
    return v ? place(p, v, n * sizeof *v) : NULL;
}

/* A matrix whose device memory is at `data`. */
static struct gpu_mat matrix_at(const struct mat *m, const uint8_t *data)
{
    int shift = 0;
    while (32 << shift < m->group_size)
        shift++;
    return (struct gpu_mat){ .data = data, .tile_bytes = m->tile_bytes, .type = (int)m->type,
                             .rows = m->rows, .cols = m->cols, .n_steps = m->cols_padded / 32,
                             .n_tiles = m->n_tiles, .n_groups = m->n_groups, .group_shift = shift };
}

static struct dlinear linear(struct weight_layout *p, const struct linear *l)
{
    struct dlinear d = { 0 };
    if (!l->w.data)
        return d;
    d.w = matrix_at(&l->w, place(p, l->w.data, l->w.size));
    d.bias = vector(p, l->bias, (size_t)l->w.rows);
    return d;
}

static size_t bias_bytes(const struct linear *l) { return l->bias ? (size_t)l->w.rows * sizeof *l->bias : 0; }

size_t dweights_expert(const struct expert *x, uint8_t *to)
{
    size_t at = 0;
#define NORM(...)
#define VECTOR(...)
#define MATRIX(...)
#define EXPERT(id, field, ...) \
    if (to) \
        memcpy(to + at, x->field.w.data, x->field.w.size); \
    at += aligned(x->field.w.size); \
    if (to && x->field.bias) \
        memcpy(to + at, x->field.bias, bias_bytes(&x->field)); \
    at += aligned(bias_bytes(&x->field));
#include "libcommon/model/parts.def"
    return at;
}

struct dexperts dweights_slots(const struct expert *x, const uint8_t *at)
{
    const size_t stride = dweights_expert(x, NULL);
    struct dexperts d = { 0 };
#define NORM(...)
#define VECTOR(...)
#define MATRIX(...)
#define EXPERT(id, field, ...) \
    d.field = (struct gpu_expert_mat){ .w = matrix_at(&x->field.w, at), .stride = stride, \
                                       .bias_stride = (int)(stride / sizeof(float)) }; \
    at += aligned(x->field.w.size); \
    d.field.bias = x->field.bias ? (const float *)at : NULL; \
    at += aligned(bias_bytes(&x->field));
#include "libcommon/model/parts.def"
    return d;
}

/* Place the first n experts of a layer one after the other, each in a slot, as the file has them.
 * They are equal in type and shape (device_memory.c has checked it), so their slots are of equal
 * size. */
static struct dexperts place_experts(struct weight_layout *p, const struct expert *experts, int n)
{
    const size_t from = p->at;
    for (int i = 0; i < n; i++) {
#define NORM(...)
#define VECTOR(...)
#define MATRIX(...)
#define EXPERT(id, field, ...) \
        place(p, experts[i].field.w.data, experts[i].field.w.size); \
        if (experts[i].field.bias) \
            place(p, experts[i].field.bias, bias_bytes(&experts[i].field));
#include "libcommon/model/parts.def"
    }
    return p->w->base ? dweights_slots(experts, p->w->base + from) : (struct dexperts){ 0 };
}

/* The matrices of a layer that prompts multiply often enough for copies: no routers, no experts. */
#define COPIED_DENSE(x) x
#define COPIED_EXTRA(x)
#define COPIED_BEYOND(x)
enum {
#define NORM(...)
#define VECTOR(...)
#define MATRIX(id, field, name, scope, ...) COPIED_##scope(+ 1)
#define EXPERT(...)
    LAYER_MATS = 0
#include "libcommon/model/parts.def"
};
static void mats_of(struct dlayer *d, struct dlinear *mats[LAYER_MATS])
{
    int n = 0;
#define NORM(...)
#define VECTOR(...)
#define MATRIX(id, field, name, scope, ...) COPIED_##scope(mats[n++] = &d->field;)
#define EXPERT(...)
#include "libcommon/model/parts.def"
}

/* Place the f16 copies of a layer. */
static void place_decoded(struct weight_layout *p, struct dlayer *d)
{
    struct dlinear *mats[LAYER_MATS];
    mats_of(d, mats);
    for (int i = 0; i < LAYER_MATS; i++) {
        const struct gpu_mat *m = &mats[i]->w;
        const size_t size = m->n_tiles && !(p->w->act_int8 && gpu_matmul_int8_takes(m))
                                ? gpu_decoded_size(m->type, m->n_tiles, m->n_steps) : 0;
        if (size && p->w->decoded)
            mats[i]->decoded = gpu_decoded(m, p->w->decoded + p->decoded_at);
        p->decoded_at += aligned(size);
    }
}

static struct dnorm norm(struct weight_layout *p, const struct norm *n, size_t size)
{
    struct dnorm d = { vector(p, n->w, size), vector(p, n->b, size), n->present };
    return d;
}

/* Place a matrix outside of the layers. */
static struct dlinear outer(struct weight_layout *p, const struct linear *l, enum end_part part)
{
    if (part != EP_HEAD || !p->tied)
        return linear(p, l);
    struct dlinear head = p->w->ends.embed;
    head.bias = vector(p, l->bias, (size_t)l->w.rows);
    return head;
}

/* Place the weights before the layers (first), or those after them. */
static void layout_ends(struct weight_layout *p, const struct model *m, int first)
{
    struct dends *d = &p->w->ends;
    for (enum end_part i = 0; i < N_END_PARTS; i++) {
        const struct part_fact f = end_part_fact(&m->config, i);
        if (end_infos[i].is_first != first)
            continue;
        switch (i) {
#define NORM(id, field, source, side, scope, ...) \
        case EP_##id: KEEP_##scope(d->field = norm(p, &m->field, (size_t)f.cols)); break;
#define VECTOR(id, field, source, side, scope, ...) \
        case EP_##id: KEEP_##scope(d->field = vector(p, m->field, (size_t)f.rows * (size_t)f.cols)); break;
#define MATRIX(id, field, source, side, scope, ...) \
        case EP_##id: KEEP_##scope(d->field = outer(p, &m->field, i)); break;
#include "libcommon/model/ends.def"
        case N_END_PARTS: break;
        }
    }
}

/* Number of elements of a vector of a layer. */
static size_t part_floats(const struct config *c, int layer, enum layer_part part)
{
    const struct part_fact f = layer_part_fact(c, layer, part);
    return (size_t)f.rows * (size_t)f.cols;
}

static struct dlayer layout_layer(struct weight_layout *p, const struct model *m, int i)
{
    const struct layer *l = &m->layers[i];
    struct dlayer d;
    p->part = i + 1;
#define NORM(id, field, name, scope, ...) \
    KEEP_##scope(d.field = norm(p, &l->field, (size_t)layer_part_fact(&m->config, i, LP_##id).cols);)
#define VECTOR(id, field, name, scope, ...) \
    KEEP_##scope(d.field = vector(p, l->field, part_floats(&m->config, i, LP_##id));)
#define MATRIX(id, field, name, scope, ...) KEEP_##scope(d.field = linear(p, &l->field);)
#define EXPERT(...)
#include "libcommon/model/parts.def"
    d.experts = l->experts ? place_experts(p, l->experts, p->n_experts) : (struct dexperts){ 0 };
    place_decoded(p, &d);
    return d;
}

/* Lay out all weights in order, and return their size in bytes.  If w has memory already, fill its
 * tables, too. */
static size_t layout_all(struct dweights *w, const struct model *m, int first_layer, int n_experts)
{
    const struct config *c = &m->config;
    struct weight_layout p = { .w = w, .n_experts = n_experts,
                               .tied = first_layer == 0 && m->head.w.data == m->embed.w.data };
    if (first_layer == 0)
        layout_ends(&p, m, 1);
    for (int i = first_layer; i < c->n_layers; i++) {
        const struct dlayer d = layout_layer(&p, m, i);
        if (w->layers)
            w->layers[i] = d;
    }
    p.part = c->n_layers + 1;
    layout_ends(&p, m, 0);
    return p.failed ? 0 : p.at;
}

size_t dweights_size(const struct model *m, int first_layer, int n_experts)
{
    struct dweights w = { 0 };
    return layout_all(&w, m, first_layer, n_experts);
}

size_t dweights_host_size(const struct model *m, int first_layer, int n_experts)
{
    struct dweights w = { 0 };
    struct weight_layout p = { .w = &w, .n_experts = m->config.moe.n_experts };
    if (first_layer > 0)
        layout_ends(&p, m, 1);
    for (int i = 0; i < first_layer; i++)
        layout_layer(&p, m, i);
    for (int i = first_layer; i < m->config.n_layers && n_experts < p.n_experts; i++)
        if (m->layers[i].experts)
            place_experts(&p, m->layers[i].experts + n_experts, p.n_experts - n_experts);
    return p.at;
}

size_t dweights_decoded_size(const struct model *m, int first_layer, int act_int8)
{
    struct dweights w = { .act_int8 = act_int8 };
    struct weight_layout p = { .w = &w };
    for (int i = first_layer; i < m->config.n_layers; i++)
        layout_layer(&p, m, i);
    return p.decoded_at;
}

/* Divide segments into chunks, merge adjacent ones, and count the chunks of each part in left. */
static int cut(struct dweights *w)
{
    int n = 0;
    for (int i = 0; i < w->n_segments; i++)
        n += (int)((w->segments[i].size + CHUNK - 1) / CHUNK);
    w->chunks = calloc((size_t)n + 1, sizeof *w->chunks);
    if (!w->chunks)
        return -1;
    for (int i = 0; i < w->n_segments; i++)
        for (size_t at = 0; at < w->segments[i].size; at += CHUNK) {
            const struct segment *p = &w->segments[i];
            const size_t size = p->size - at < CHUNK ? p->size - at : CHUNK;
            struct segment *last = w->n_chunks ? &w->chunks[w->n_chunks - 1] : NULL;
            if (last && last->part == p->part && last->offset + last->size == p->offset + at && last->from +
                last->size == p->from + at && last->size + size <= CHUNK) {
                last->size += size;     /* neighbours in the file and on the device */
                continue;
            }
            w->chunks[w->n_chunks++] = (struct segment){ p->from + at, p->offset + at, size, p->part };
            w->left[p->part]++;
        }
    return 0;
}

/* ---- loading ---- */

static void fail(struct dweights *w, const struct err *e)
{
    pthread_mutex_lock(&w->lock);
    if (!w->failed)
        w->error = *e;
    w->failed = 1;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
}

/* Queue the copy of a chunk that lies in this buffer of the ring.  The lock keeps the event of the
 * chunk's part behind the copies of all its chunks. */
static int send(struct dweights *w, const struct segment *c, int buffer, struct err *e)
{
    pthread_mutex_lock(&w->lock);
    int rc = gpu_ring_send(w->ring, buffer, w->base + c->offset, c->size, e);
    if (rc == 0 && --w->left[c->part] == 0) {
        rc = gpu_event_record(w->g, GPU_COPY, w->event[c->part], e);
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return rc;
}

static void *load(void *arg)
{
    struct dweights *w = arg;
    struct err e;
    int rc = gpu_use(w->g, &e);
    while (rc == 0) {
        void *p;
        pthread_mutex_lock(&w->lock);
        const int i = w->failed || w->stop || w->next == w->n_chunks ? -1 : w->next++;
        pthread_mutex_unlock(&w->lock);
        if (i < 0)
            break;
        const int buffer = gpu_ring_take(w->ring, &p, &e);
        if ((rc = buffer < 0 ? -1 : 0) == 0) {
            memcpy(p, w->chunks[i].from, w->chunks[i].size);
            rc = send(w, &w->chunks[i], buffer, &e);
        }
    }
    if (rc < 0)
        fail(w, &e);
    pthread_mutex_lock(&w->lock);
    if (++w->done == w->n_loaders)
        w->ended = clock_ns();
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

struct dweights *dweights_open(struct gpu *g, const struct model *m, int first_layer, int n_experts, int decoded,
                               int act_int8, struct err *e)
{
    struct dweights *w = calloc(1, sizeof *w);
    const int n_parts = m->config.n_layers + 2;
    if (!w) {
        err_nomem(e, "weights");
        return NULL;
    }
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    w->g = g;
    w->n_layers = m->config.n_layers;
    w->act_int8 = act_int8;
    w->size = dweights_size(m, first_layer, n_experts);
    w->layers = calloc((size_t)w->n_layers + 1, sizeof *w->layers);
    w->left = calloc((size_t)n_parts, sizeof *w->left);
    w->event = calloc((size_t)n_parts, sizeof *w->event);
    w->is_decoded = calloc((size_t)w->n_layers + 1, sizeof *w->is_decoded);
    if (!w->layers || !w->left || !w->event || !w->is_decoded) {
        err_nomem(e, "weights");
        goto fail;
    }
    if (!(w->base = gpu_alloc(g, w->size, "weights", e)) ||
        (decoded && !(w->decoded = gpu_alloc(g, dweights_decoded_size(m, first_layer, act_int8), "weights as f16", e))))
        goto fail;
    if (layout_all(w, m, first_layer, n_experts) == 0 || cut(w) < 0) {
        err_nomem(e, "weights");
        goto fail;
    }
    for (int i = 0; i < n_parts; i++)
        if (!(w->event[i] = gpu_event_open(g, e)))
            goto fail;
    int n = (w->n_chunks + 3) / 4;              /* a thread for fewer than 4 chunks costs more time
                                                 * than it saves */
    n = n > MAX_LOADERS ? MAX_LOADERS : n;
    n = n > pool_n_cpus() ? pool_n_cpus() : n < 1 ? 1 : n;
    w->n_loaders = n;
    if (!(w->ring = gpu_ring_open(g, 2 * n, CHUNK, e)))
        goto fail;
    for (; w->n_threads < n; w->n_threads++)
        if (pthread_create(&w->thread[w->n_threads], NULL, load, w) != 0) {
            err_set(e, ERR_MEMORY, "no thread to load weights with");
            goto fail;
        }
    return w;
fail:
    dweights_close(w);
    return NULL;
}

static void join(struct dweights *w)
{
    for (int i = 0; i < w->n_threads; i++)
        pthread_join(w->thread[i], NULL);
    w->n_threads = 0;
}

void dweights_close(struct dweights *w)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = 1;
    pthread_mutex_unlock(&w->lock);
    join(w);
    gpu_ring_close(w->ring);
    for (int i = 0; w->event && i < w->n_layers + 2; i++)
        if (w->event[i])
            gpu_event_close(w->g, w->event[i]);
    gpu_free(w->g, w->base);
    gpu_free(w->g, w->decoded);
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->changed);
    free(w->is_decoded);
    free(w->event);
    free(w->left);
    free(w->chunks);
    free(w->segments);
    free(w->layers);
    free(w);
}

/* Make the f16 copies of a part, once; the compute stream has waited for its weights. */
static int decode(struct dweights *w, int part, struct err *e)
{
    struct dlinear *mats[LAYER_MATS];
    if (!w->decoded || part < 0 || part >= w->n_layers || w->is_decoded[part])
        return 0;
    mats_of(&w->layers[part], mats);
    for (int i = 0; i < LAYER_MATS; i++)
        if (mats[i]->decoded.data && gpu_decode(w->g, &mats[i]->w, (uint8_t *)(uintptr_t)mats[i]->decoded.data, e) < 0)
            return -1;
    w->is_decoded[part] = 1;
    return 0;
}

int dweights_need(struct dweights *w, int part, struct err *e)
{
    if (w->complete)
        return 0;
    pthread_mutex_lock(&w->lock);
    while (!w->failed && w->left[part + 1] > 0)
        pthread_cond_wait(&w->changed, &w->lock);
    const int failed = w->failed;
    if (failed)
        *e = w->error;
    pthread_mutex_unlock(&w->lock);
    return failed || gpu_event_wait(w->g, GPU_COMPUTE, w->event[part + 1], e) < 0 ? -1 : decode(w, part, e);
}

int dweights_complete(struct dweights *w, struct err *e)
{
    if (w->complete)
        return 1;
    pthread_mutex_lock(&w->lock);
    const int done = w->done == w->n_loaders, failed = w->failed;
    if (failed)
        *e = w->error;
    pthread_mutex_unlock(&w->lock);
    if (failed)
        return -1;
    if (!done)
        return 0;
    join(w);
    gpu_ring_close(w->ring);
    w->ring = NULL;
    for (int i = 0; w->decoded && i < w->n_layers; i++)
        if (dweights_need(w, i, e) < 0)
            return -1;
    w->complete = 1;
    return 1;
}

const struct dlayer *dweights_layer(const struct dweights *w, int layer) { return &w->layers[layer]; }
const struct dends *dweights_ends(const struct dweights *w) { return &w->ends; }
uint64_t dweights_copied_ns(struct dweights *w)
{
    pthread_mutex_lock(&w->lock);
    const uint64_t at = w->done == w->n_loaders && !w->failed ? w->ended : 0;
    pthread_mutex_unlock(&w->lock);
    return at;
}
