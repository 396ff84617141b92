/* device_weights.c - load a model's weights into one device allocation, or with a window of layers
 * into one for each of them.  Threads take the parts that are to be loaded in the order in which
 * they are needed, copy chunks of CHUNK bytes from the mapping into the pinned buffers of a ring,
 * and queue the transfer; the thread that queues the last chunk of a part records the part's
 * event. */
#include "gpu/backend/device_weights.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/rt/ring.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/pool.h"
#include "libcommon/base/thread.h"

/* 4 MB: transfers of this size reach the full speed of the link.  8 threads: a core copies about 10
 * GB/s, the link 25 to 55.  Two buffers each: one is filled while the other is sent. */
enum { CHUNK = 4 << 20, MAX_LOADERS = 8, ALIGN = 256 };

/* offset: from the beginning of the part */
struct segment { const uint8_t *from; size_t offset, size; int part; };
/* The unit of a transfer: pieces [first, first + n), which are adjacent on the device. */
struct weight_chunk { size_t offset, size; int part, first, n; };
/* Part p of the weights is layer p - 1; the first and the last part are those outside of the
 * layers. */
struct part {
    uint8_t *base;                  /* its device memory; in a slot: of the current copy */
    void *block;                    /* a layer that stays in a window: its own device memory */
    int first_chunk, n_chunks, left;        /* left: number of chunks that are not queued yet */
    struct gpu_event *loaded;
    struct gpu_event *behind;       /* its copies wait for this event; NULL: for none */
};

struct dweights {
    struct gpu *g;
    const struct model *m;
    const struct tp_model *tp;      /* m is its part; NULL: m is whole */
    struct layer_range range;
    int n_layers, n_experts;        /* n_layers: of the model; n_experts: of each layer */
    struct dlayer *layers;
    struct dends ends;
    uint8_t *base, *decoded;        /* decoded NULL: no copies */
    int act_codes, tied;            /* tied: the head is the embedding, which is also on the device */
    uint8_t *is_decoded;            /* [n_layers] */
    struct gpu_ring *ring;
    struct segment *segments; int n_segments, room;
    struct segment *pieces; int n_pieces;
    struct weight_chunk *chunks; int n_chunks;
    struct part *parts;             /* [n_layers + 2] */
    pthread_t thread[MAX_LOADERS]; int n_threads, n_loaders;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* the parts to load, first in, first out, and the number of chunks of the first one that are
     * taken; protected by lock */
    int *jobs, n_jobs, taken;
    int n_left;                     /* number of parts of which chunks are not queued yet */
    int failed, stop, done, complete;
    struct err error;
    uint64_t ended;
    /* only the thread that launches steps uses the window */
    int has_window;
    struct layer_window window;
    struct { uint8_t *p; struct gpu_event *used; } slot[WINDOW_SLOTS];
    int given_back;
    size_t largest;                 /* bytes of the largest layer */
    uint64_t step_wait_ns;
};

/* ---- the layout ---- */

/* A part is laid out at base, which is NULL if only its size is wanted.  list: append its segments
 * to those of w. */
struct weight_layout { struct dweights *w; uint8_t *base; size_t at, decoded_at; int part, list, failed; };

static size_t aligned(size_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

/* Append n bytes of the file, for this place in the part, to the segments. */
static void list(struct weight_layout *p, const void *from, size_t at, size_t n)
{
    struct dweights *w = p->w;
    if (!p->list || p->failed)
        return;
    if (w->n_segments == w->room) {
        int room = w->room ? 2 * w->room : 256;
        struct segment *more = realloc(w->segments, (size_t)room * sizeof *more);
        if (!more) {
            p->failed = 1;
            return;
        }
        w->segments = more;
        w->room = room;
    }
    w->segments[w->n_segments++] = (struct segment){ from, at, n, p->part };
}

/* Reserve the next n bytes. */
static const void *reserve(struct weight_layout *p, size_t n)
{
    const size_t at = p->at;
    p->at += aligned(n);
    return p->base ? p->base + at : NULL;
}

static const void *place(struct weight_layout *p, const void *from, size_t n)
{
    list(p, from, p->at, n);
    return reserve(p, n);
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

/* A matrix of which a rank has some columns: of each tile the row scales and its units. */
static struct dlinear columns(struct weight_layout *p, const struct linear *l, const struct tp_columns *c)
{
    const struct mat *all = c->whole;
    if (!all)
        return linear(p, l);
    const size_t scales = all->row_scale_bytes, from = mat_unit_offset(all, c->first);
    for (int i = 0; i < l->w.n_tiles; i++) {
        const uint8_t *tile = all->data + (size_t)i * all->tile_bytes;
        const size_t to = p->at + (size_t)i * l->w.tile_bytes;
        if (scales)
            list(p, tile, to, scales);
        list(p, tile + from, to + scales, l->w.tile_bytes - scales);
    }
    struct dlinear d = { .w = matrix_at(&l->w, reserve(p, l->w.size)) };
    d.bias = vector(p, l->bias, (size_t)l->w.rows);
    return d;
}

/* Matrix `part` of a layer. */
static struct dlinear layer_linear(struct weight_layout *p, const struct linear *l, int layer, enum layer_part part)
{
    const struct tp_model *t = p->w->tp;
    return t && part == LP_O ? columns(p, l, &t->o[layer]) : t && part == LP_DOWN ? columns(p, l, &t->down[layer])
           : linear(p, l);
}

static size_t bias_bytes(const struct linear *l) { return l->bias ? (size_t)l->w.rows * sizeof *l->bias : 0; }

static void add_part(struct dweights_part *part, int *n, size_t *at, const void *from, size_t size)
{
    if (!from)
        return;
    part[(*n)++] = (struct dweights_part){ from, *at, size };
    *at += aligned(size);
}

size_t dweights_expert(const struct expert *x, struct dweights_part part[EXPERT_PARTS], int *n)
{
    size_t at = 0;
    *n = 0;
#define NORM(...)
#define VECTOR(...)
#define MATRIX(...)
#define EXPERT(id, field, ...) \
    add_part(part, n, &at, x->field.w.data, x->field.w.size); \
    add_part(part, n, &at, x->field.bias, bias_bytes(&x->field));
#include "libcommon/model/parts.def"
    return at;
}

struct dexperts dweights_slots(const struct expert *x, const uint8_t *at)
{
    struct dweights_part ignored[EXPERT_PARTS];
    int n;
    const size_t stride = dweights_expert(x, ignored, &n);
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
    for (int i = 0, n_parts; i < n; i++) {
        struct dweights_part part[EXPERT_PARTS];
        dweights_expert(&experts[i], part, &n_parts);
        for (int k = 0; k < n_parts; k++)
            place(p, part[k].from, part[k].size);
    }
    return p->base ? dweights_slots(experts, p->base + from) : (struct dexperts){ 0 };
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

int dweights_reads_codes(int act_codes, const struct gpu_mat *m)
{
    return act_codes == ACT_CODES_INT8 ? gpu_matmul_int8_takes(m) : act_codes == ACT_CODES_FP8 && m->type == QT_FP8;
}

/* Place the f16 copies of a layer. */
static void place_decoded(struct weight_layout *p, struct dlayer *d)
{
    struct dlinear *mats[LAYER_MATS];
    mats_of(d, mats);
    for (int i = 0; i < LAYER_MATS; i++) {
        const struct gpu_mat *m = &mats[i]->w;
        const size_t size = m->n_tiles && !dweights_reads_codes(p->w->act_codes, m)
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
    if (part != EP_HEAD || !p->w->tied)
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
#define NORM(id, field, name, scope, ...) \
    KEEP_##scope(d.field = norm(p, &l->field, (size_t)layer_part_fact(&m->config, i, LP_##id).cols);)
#define VECTOR(id, field, name, scope, ...) \
    KEEP_##scope(d.field = vector(p, l->field, part_floats(&m->config, i, LP_##id));)
#define MATRIX(id, field, name, scope, ...) KEEP_##scope(d.field = layer_linear(p, &l->field, i, LP_##id);)
#define EXPERT(...)
#include "libcommon/model/parts.def"
    const int first = p->w->tp ? p->w->tp->first_expert : 0;
    d.experts = l->experts ? place_experts(p, l->experts + first, p->w->n_experts) : (struct dexperts){ 0 };
    place_decoded(p, &d);
    return d;
}

/* Lay out a part from p->base on, fill its tables unless only its size is wanted, and return its
 * size. */
static size_t layout_part(struct weight_layout *p, int part)
{
    struct dweights *w = p->w;
    p->part = part;
    p->at = 0;
    if (part > 0 && part <= w->n_layers) {
        const struct dlayer d = layout_layer(p, w->m, part - 1);
        if (p->base)
            w->layers[part - 1] = d;
    } else {
        layout_ends(p, w->m, part == 0);
    }
    return p->at;
}

static struct dweights sized(const struct model *m, struct layer_range range, int n_experts)
{
    const int n_layers = m->config.n_layers;
    return (struct dweights){ .m = m, .n_layers = n_layers, .range = range, .n_experts = n_experts,
                              .tied = range.first == 0 && range.end == n_layers &&
                                      m->head.w.data == m->embed.w.data };
}

/* Is this part of the weights on the device? */
static int has_part(const struct dweights *w, int part)
{
    return part == 0 ? w->range.first == 0 : part == w->n_layers + 1 ? w->range.end == w->n_layers
           : part > w->range.first && part <= w->range.end;
}

size_t dweights_size(const struct model *m, struct layer_range layers, int n_experts)
{
    struct dweights w = sized(m, layers, n_experts);
    struct weight_layout p = { .w = &w };
    size_t n = 0;
    for (int i = 0; i < w.n_layers + 2; i++)
        n += has_part(&w, i) ? layout_part(&p, i) : 0;
    return n;
}

size_t dweights_ends_size(const struct model *m, struct layer_range layers, int n_experts, size_t *largest)
{
    struct dweights w = sized(m, layers, n_experts);
    struct weight_layout p = { .w = &w };
    *largest = 0;
    for (int i = layers.first; i < layers.end; i++) {
        const size_t n = layout_part(&p, i + 1);
        *largest = n > *largest ? n : *largest;
    }
    const size_t n = has_part(&w, 0) ? layout_part(&p, 0) : 0;
    return n + (has_part(&w, w.n_layers + 1) ? layout_part(&p, w.n_layers + 1) : 0);
}

size_t dweights_host_size(const struct model *m, int host_layers, struct layer_range layers, int n_experts)
{
    const int all = m->config.moe.n_experts;
    struct dweights w = sized(m, layers, all);
    struct weight_layout p = { .w = &w };
    size_t n = 0;
    for (int i = 0; host_layers && i <= host_layers; i++)
        n += layout_part(&p, i);
    p.at = 0;
    for (int i = layers.first; i < layers.end && n_experts < all; i++)
        if (m->layers[i].experts)
            place_experts(&p, m->layers[i].experts + n_experts, all - n_experts);
    return n + p.at;
}

size_t dweights_decoded_size(const struct model *m, struct layer_range layers, int act_codes)
{
    struct dweights w = sized(m, layers, 0);
    struct weight_layout p = { .w = &w };
    w.act_codes = act_codes;
    for (int i = layers.first; i < layers.end; i++)
        layout_part(&p, i + 1);
    return p.decoded_at;
}

/* Cut segments into pieces of at most CHUNK bytes, and merge those that are adjacent in the file
 * and on the device.  0, or -1 if there is no memory. */
static int cut_segments(struct dweights *w)
{
    int n = 0;
    for (int i = 0; i < w->n_segments; i++)
        n += (int)((w->segments[i].size + CHUNK - 1) / CHUNK);
    if (!(w->pieces = calloc((size_t)n + 1, sizeof *w->pieces)))
        return -1;
    for (int i = 0; i < w->n_segments; i++)
        for (size_t at = 0; at < w->segments[i].size; at += CHUNK) {
            const struct segment *p = &w->segments[i];
            const size_t size = p->size - at < CHUNK ? p->size - at : CHUNK;
            struct segment *last = w->n_pieces ? &w->pieces[w->n_pieces - 1] : NULL;
            if (last && last->part == p->part && last->offset + last->size == p->offset + at && last->from +
                last->size == p->from + at && last->size + size <= CHUNK)
                last->size += size;
            else
                w->pieces[w->n_pieces++] = (struct segment){ p->from + at, p->offset + at, size, p->part };
        }
    return 0;
}

/* Group pieces that are adjacent on the device into chunks, and count the chunks of each part. */
static int cut(struct dweights *w)
{
    if (cut_segments(w) < 0 || !(w->chunks = calloc((size_t)w->n_pieces + 1, sizeof *w->chunks)))
        return -1;
    for (int i = 0; i < w->n_pieces; i++) {
        const struct segment *p = &w->pieces[i];
        struct weight_chunk *last = w->n_chunks ? &w->chunks[w->n_chunks - 1] : NULL;
        if (last && last->part == p->part && last->offset + last->size == p->offset && last->size + p->size <= CHUNK) {
            last->size += p->size;
            last->n++;
            continue;
        }
        w->chunks[w->n_chunks++] = (struct weight_chunk){ p->offset, p->size, p->part, i, 1 };
        if (w->parts[p->part].n_chunks++ == 0)
            w->parts[p->part].first_chunk = w->n_chunks - 1;
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
static int send(struct dweights *w, const struct weight_chunk *c, int buffer, struct err *e)
{
    struct part *p = &w->parts[c->part];
    pthread_mutex_lock(&w->lock);
    int rc = p->behind ? gpu_event_wait(w->g, GPU_COPY, p->behind, e) : 0;
    p->behind = NULL;
    if (gpu_ring_send(w->ring, buffer, p->base + c->offset, rc < 0 ? 0 : c->size, e) < 0)
        rc = -1;
    if (rc == 0 && --p->left == 0) {
        rc = gpu_event_record(w->g, GPU_COPY, p->loaded, e);
        w->n_left--;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
    return rc;
}

/* Take the next chunk to load.  -1: there is none, and there will be none. */
static int next_chunk(struct dweights *w)
{
    int chunk = -1;
    pthread_mutex_lock(&w->lock);
    while (!w->failed && !w->stop && w->n_jobs == 0 && w->has_window)
        pthread_cond_wait(&w->changed, &w->lock);
    if (!w->failed && !w->stop && w->n_jobs) {
        const struct part *p = &w->parts[w->jobs[0]];
        chunk = p->first_chunk + w->taken++;
        if (w->taken == p->n_chunks) {
            memmove(w->jobs, w->jobs + 1, (size_t)--w->n_jobs * sizeof *w->jobs);
            w->taken = 0;
        }
    }
    pthread_mutex_unlock(&w->lock);
    return chunk;
}

/* Copy the pieces of a chunk into a buffer. */
static void fill(const struct dweights *w, const struct weight_chunk *c, uint8_t *to)
{
    for (int i = c->first; i < c->first + c->n; i++) {
        memcpy(to, w->pieces[i].from, w->pieces[i].size);
        to += w->pieces[i].size;
    }
}

static void *load(void *arg)
{
    struct dweights *w = arg;
    struct err e;
    int rc = gpu_use(w->g, &e);
    for (int i; rc == 0 && (i = next_chunk(w)) >= 0; ) {
        void *p;
        const int buffer = gpu_ring_take(w->ring, &p, &e);
        if ((rc = buffer < 0 ? -1 : 0) == 0) {
            fill(w, &w->chunks[i], p);
            rc = send(w, &w->chunks[i], buffer, &e);
        }
    }
    if (rc < 0 || (!w->has_window && gpu_sync(w->g, GPU_COPY, &e) < 0))
        fail(w, &e);
    pthread_mutex_lock(&w->lock);
    if (++w->done == w->n_loaders)
        w->ended = clock_ns();
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* Give a part to the loading threads.  No thread works on it, so it is not among the jobs. */
static void push(struct dweights *w, int part)
{
    pthread_mutex_lock(&w->lock);
    if ((w->parts[part].left = w->parts[part].n_chunks) > 0) {
        w->jobs[w->n_jobs++] = part;
        w->n_left++;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->lock);
}

/* ---- the window ---- */

/* Let a layer pass into a slot.  used: kernels that read the slot are launched. */
static void assign(struct dweights *w, int layer, int slot, int used)
{
    struct part *p = &w->parts[layer + 1];
    struct weight_layout place_of = { .w = w, .base = w->slot[slot].p };
    p->base = w->slot[slot].p;
    p->behind = used ? w->slot[slot].used : NULL;
    layout_part(&place_of, layer + 1);
}

/* Start the uploads that may go ahead of the step. */
static void prefetch(struct dweights *w)
{
    int slot, used;
    for (int layer; (layer = window_ahead(&w->window, &slot, &used)) >= 0; ) {
        assign(w, layer, slot, used);
        push(w, layer + 1);
    }
}

/* Wait until the copies of all parts are queued, and forget what the slots hold. */
static int restart(struct dweights *w, struct err *e)
{
    pthread_mutex_lock(&w->lock);
    while (!w->failed && w->n_left)
        pthread_cond_wait(&w->changed, &w->lock);
    const int failed = w->failed;
    if (failed)
        *e = w->error;
    pthread_mutex_unlock(&w->lock);
    for (int i = 0; !failed && i < w->window.shape.n_slots; i++)
        if (gpu_event_record(w->g, GPU_COMPUTE, w->slot[i].used, e) < 0)
            return -1;
    window_restart(&w->window);
    return failed ? -1 : 0;
}

/* Upload a layer that a step needs now. */
static int upload_now(struct dweights *w, int layer, struct err *e)
{
    int used, slot = window_take(&w->window, layer, &used);
    if (slot < 0) {
        if (restart(w, e) < 0)
            return -1;
        slot = window_take(&w->window, layer, &used);
    }
    assign(w, layer, slot, used);
    push(w, layer + 1);
    return 0;
}

int dweights_done(struct dweights *w, int layer, struct err *e)
{
    const int slot = w->has_window ? w->window.place[layer] : WINDOW_KEPT;
    if (slot < 0)
        return 0;
    if (gpu_event_record(w->g, GPU_COMPUTE, w->slot[slot].used, e) < 0)
        return -1;
    window_done(&w->window, layer);
    prefetch(w);
    return 0;
}

int dweights_shrink(struct dweights *w, struct err *e)
{
    int kept;
    if (!w->has_window)
        return 0;
    if (restart(w, e) < 0 || gpu_sync(w->g, GPU_COMPUTE, e) < 0 || gpu_sync(w->g, GPU_COPY, e) < 0)
        return -1;
    const int rc = window_shrink(&w->window, &kept);
    if (rc == 0 && kept >= 0) {
        gpu_free(w->g, w->parts[kept + 1].block);
        w->parts[kept + 1].block = NULL;
    } else if (rc == 0) {
        gpu_free(w->g, w->slot[w->window.shape.n_slots].p);
        w->slot[w->window.shape.n_slots].p = NULL;
    }
    w->given_back += rc == 0;
    prefetch(w);
    return rc == 0;
}

size_t dweights_window_bytes(const struct dweights *w) { return w->largest; }

/* Take memory for a slot, the last one of the window. */
static int take_slot(struct dweights *w, struct err *e)
{
    struct err ignored;
    const int slot = w->window.shape.n_slots - 1;
    if (!(w->slot[slot].p = gpu_alloc(w->g, w->largest, "a layer", &ignored)))
        return 0;
    return gpu_event_record(w->g, GPU_COMPUTE, w->slot[slot].used, e) < 0 ? -1 : 1;
}

/* Take memory for a layer that stays, and load it. */
static int take_kept(struct dweights *w, int layer)
{
    struct err ignored;
    struct part *part = &w->parts[layer + 1];
    struct weight_layout size = { .w = w }, here = { .w = w };
    if (!(part->block = gpu_alloc(w->g, layout_part(&size, layer + 1), "a layer", &ignored)))
        return 0;
    here.base = part->base = part->block;
    part->behind = NULL;
    layout_part(&here, layer + 1);
    push(w, layer + 1);
    return 1;
}

int dweights_grow(struct dweights *w, struct err *e)
{
    int kept, undone;
    if (!w->has_window || window_is_whole(&w->window))
        return 0;
    if (restart(w, e) < 0)
        return -1;
    window_grow(&w->window, &kept);
    const int rc = kept >= 0 ? take_kept(w, kept) : take_slot(w, e);
    if (rc <= 0)
        window_shrink(&w->window, &undone);
    w->given_back -= rc > 0;
    prefetch(w);
    return rc;
}

void dweights_stream(struct dweights *w, struct backend_stream *s)
{
    struct gpu_ring_counts sent;
    *s = (struct backend_stream){ .window = 0 };
    if (!w->has_window)
        return;
    const struct window_shape *shape = &w->window.shape;
    const struct window_counts *c = &w->window.counts;
    gpu_ring_counts(w->ring, &sent);
    *s = (struct backend_stream){ .window = shape->n_kept + shape->n_slots, .kept = shape->n_kept,
                                  .slots = shape->n_slots, .prefetch = shape->prefetch, .given_back = w->given_back,
                                  .uses = c->uses, .hits = c->hits, .evictions = c->evictions, .bytes = sent.bytes,
                                  .step_wait_ns = w->step_wait_ns, .link_wait_ns = sent.waited_ns };
}

/* ---- open and close ---- */

/* Allocate one piece of memory for all parts. */
static int take_whole(struct dweights *w, const struct dweights_options *o, struct err *e)
{
    struct weight_layout p = { .w = w };
    uint8_t *at;
    if (!(w->base = gpu_alloc(w->g, dweights_size(w->m, w->range, w->n_experts), "weights", e)) ||
        (o->decoded && !(w->decoded = gpu_alloc(w->g, dweights_decoded_size(w->m, w->range, w->act_codes),
                                                "weights as f16", e))))
        return -1;
    at = w->base;
    p.list = 1;
    for (int i = 0; i < w->n_layers + 2; i++)
        if (has_part(w, i)) {
            p.base = w->parts[i].base = at;
            at += layout_part(&p, i);
        }
    return p.failed ? err_nomem(e, "weights") : 0;
}

/* Allocate n_slots slots for layers of at most `size` bytes.  Returns the number for which there is
 * memory, at least one; -1 with *e. */
static int take_slots(struct dweights *w, int n_slots, size_t size, struct err *e)
{
    struct err none;
    int n = 0;
    for (int i = 0; i < n_slots; i++)
        if (!(w->slot[i].used = gpu_event_open(w->g, e)))
            return -1;
    while (n < n_slots && (w->slot[n].p = gpu_alloc(w->g, size, "a layer", &none)))
        n++;
    if (n == 0)
        *e = none;
    return n ? n : -1;
}

/* Allocate memory for the parts outside of the layers, and a piece for each layer of the window. */
static int take_window(struct dweights *w, const struct dweights_options *o, struct err *e)
{
    struct weight_layout p = { .w = w };
    struct err ignored;
    int kept;
    const size_t ends = dweights_ends_size(w->m, w->range, w->n_experts, &w->largest);
    if (!(w->base = gpu_alloc(w->g, ends ? ends : 1, "weights", e)))
        return -1;
    const int n_slots = take_slots(w, o->window.n_slots, w->largest, e);
    if (n_slots < 0)
        return -1;
    if (window_open(&w->window, w->range.first, w->range.end, o->window) < 0)
        return err_nomem(e, "weights");
    /* they come back like those that are given back later (dweights_grow) */
    while (w->window.shape.n_slots > n_slots && window_shrink(&w->window, &kept) == 0)
        w->given_back++;
    p.list = 1;
    p.base = w->parts[0].base = w->base;
    const size_t first = has_part(w, 0) ? layout_part(&p, 0) : 0;
    for (int i = w->range.first; i < w->range.end; i++) {
        struct part *part = &w->parts[i + 1];
        p.base = NULL;
        const size_t size = layout_part(&p, i + 1);
        if (w->window.place[i] == WINDOW_KEPT && !(part->block = gpu_alloc(w->g, size, "a layer", &ignored)))
            while (w->window.place[i] == WINDOW_KEPT && window_shrink(&w->window, &kept) == 0)
                w->given_back++;
        if (w->window.place[i] == WINDOW_KEPT) {
            struct weight_layout here = { .w = w, .base = part->base = part->block };
            layout_part(&here, i + 1);
        }
    }
    p.base = w->base + first;
    if (has_part(w, w->n_layers + 1)) {
        w->parts[w->n_layers + 1].base = p.base;
        layout_part(&p, w->n_layers + 1);
    }
    return p.failed ? err_nomem(e, "weights") : 0;
}

static int start_threads(struct dweights *w, struct err *e)
{
    int n = (w->n_chunks + 3) / 4;              /* a thread for fewer than 4 chunks costs more time
                                                 * than it saves */
    n = n > MAX_LOADERS ? MAX_LOADERS : n;
    n = n > pool_n_cpus() ? pool_n_cpus() : n < 1 ? 1 : n;
    w->n_loaders = n;
    if (!(w->ring = gpu_ring_open(w->g, 2 * n, CHUNK, e)))
        return -1;
    for (; w->n_threads < n; w->n_threads++)
        if (thread_start(&w->thread[w->n_threads], load, w) != 0)
            return err_set(e, ERR_MEMORY, "no thread to load weights with");
    return 0;
}

/* List all parts that have memory, in order. */
static void push_first(struct dweights *w)
{
    int slot, used;
    for (int layer; w->has_window && (layer = window_ahead(&w->window, &slot, &used)) >= 0; )
        assign(w, layer, slot, used);
    for (int i = 0; i < w->n_layers + 2; i++)
        if (has_part(w, i) && w->parts[i].base)
            push(w, i);
}

struct dweights *dweights_open(struct gpu *g, const struct model *m, const struct dweights_options *o, struct err *e)
{
    struct dweights *w = calloc(1, sizeof *w);
    const int n_parts = m->config.n_layers + 2;
    if (!w) {
        err_nomem(e, "weights");
        return NULL;
    }
    *w = sized(m, o->layers, o->n_experts);
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->changed, NULL);
    w->g = g;
    w->tp = o->part;
    w->act_codes = o->act_codes;
    w->has_window = o->window.n_slots > 0;
    w->layers = calloc((size_t)w->n_layers + 1, sizeof *w->layers);
    w->parts = calloc((size_t)n_parts, sizeof *w->parts);
    w->jobs = calloc((size_t)n_parts, sizeof *w->jobs);
    w->is_decoded = calloc((size_t)w->n_layers + 1, sizeof *w->is_decoded);
    if (!w->layers || !w->parts || !w->jobs || !w->is_decoded) {
        err_nomem(e, "weights");
        goto fail;
    }
    for (int i = 0; i < n_parts; i++)
        if (!(w->parts[i].loaded = gpu_event_open(g, e)))
            goto fail;
    if ((w->has_window ? take_window(w, o, e) : take_whole(w, o, e)) < 0)
        goto fail;
    if (cut(w) < 0) {
        err_nomem(e, "weights");
        goto fail;
    }
    push_first(w);
    if (start_threads(w, e) < 0)
        goto fail;
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
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->lock);
    join(w);
    gpu_ring_close(w->ring);
    for (int i = 0; w->parts && i < w->n_layers + 2; i++) {
        if (w->parts[i].loaded)
            gpu_event_close(w->g, w->parts[i].loaded);
        gpu_free(w->g, w->parts[i].block);
    }
    for (int i = 0; i < WINDOW_SLOTS; i++) {
        if (w->slot[i].used)
            gpu_event_close(w->g, w->slot[i].used);
        gpu_free(w->g, w->slot[i].p);
    }
    window_close(&w->window);
    gpu_free(w->g, w->base);
    gpu_free(w->g, w->decoded);
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->lock);
    free(w->is_decoded);
    free(w->jobs);
    free(w->parts);
    free(w->chunks);
    free(w->pieces);
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
    gpu_end_dependence(w->g);           /* the copies are weights from now on */
    w->is_decoded[part] = 1;
    return 0;
}

int dweights_need(struct dweights *w, int part, struct err *e)
{
    const int is_layer = part >= 0 && part < w->n_layers, window = w->has_window && is_layer;
    if (w->complete)
        return 0;
    if (window && window_need(&w->window, part) == WINDOW_ABSENT && upload_now(w, part, e) < 0)
        return -1;
    const uint64_t begun = clock_ns();
    pthread_mutex_lock(&w->lock);
    while (!w->failed && w->parts[part + 1].left > 0)
        pthread_cond_wait(&w->changed, &w->lock);
    const int failed = w->failed;
    if (failed)
        *e = w->error;
    pthread_mutex_unlock(&w->lock);
    w->step_wait_ns += clock_ns() - begun;
    if (failed || gpu_event_wait(w->g, GPU_COMPUTE, w->parts[part + 1].loaded, e) < 0)
        return -1;
    if (window)
        prefetch(w);
    return decode(w, part, e);
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
    for (int i = w->range.first; w->decoded && i < w->range.end; i++)
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
