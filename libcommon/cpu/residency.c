/* residency.c - bound the resident pages of the weights: a thread reads the next span, and spans
 * are dropped after use. */
#include "libcommon/cpu/residency.h"
#include "libcommon/base/thread.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    /* MADV_POPULATE_READ, Linux 5.14; older kernels read pages on first access */
    POPULATE_READ = 22,
    /* A fault may map a whole 2 MiB page of the page cache, and so the end of the previous span and
     * the start of the next one. */
    LARGE = 2 << 20,
    SLACK = 4 * LARGE + (1 << 20),
};

struct page_span { uintptr_t from, to; int kept; };        /* whole pages; kept: never dropped */

struct residency {
    struct page_span *span; int n_spans;  /* in order of use: the layers, then slices of the head */
    int n_layers, slice_tiles;
    const struct zfile *z;              /* borrowed */
    uint8_t *tile;                      /* buffer of residency_row */
    /* groups without a layer: the embedding, the head, the last norm */
    struct page_span *other; int n_others;
    struct expert_cache *experts;       /* NULL: experts are part of the layers */
    pthread_t thread; int has_thread;   /* has_thread 0: everything fits, so nothing is dropped */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int now;                            /* span in use; -1: none yet */
    /* span that the thread has read or is reading; -1: none */
    int incoming;
    int todo, stop;                     /* todo: the thread has not finished reading it */
    struct cpu_passing counts;
};

static struct page_span span_of(const void *data, size_t size)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), from = (uintptr_t)data;
    return (struct page_span){ from / page * page, (from + size + page - 1) / page * page, 0 };
}

static void advise(const struct page_span *p, int how)
{
    madvise((void *)p->from, p->to - p->from, how);     /* a failure only costs memory or time */
}

/* ---- the thread ---- */

static void *bring(void *arg)
{
    struct residency *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        if (!r->todo) {
            pthread_cond_wait(&r->changed, &r->lock);
            continue;
        }
        const struct page_span p = r->span[r->incoming];
        pthread_mutex_unlock(&r->lock);
        advise(&p, POPULATE_READ);
        pthread_mutex_lock(&r->lock);
        r->todo = 0;                    /* incoming does not change while todo is 1 */
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

/* Returns the next span, in order of use, that is dropped after use; `from` itself if it is the
 * only one, -1 if all are kept. */
static int next_passing(const struct residency *r, int from)
{
    for (int i = 1; i <= r->n_spans; i++)
        if (!r->span[(from + i) % r->n_spans].kept)
            return (from + i) % r->n_spans;
    return -1;
}

/* Drop a span, and the end of the previous one, which a fault on its first page may have mapped. */
static void leave(const struct residency *r, int i)
{
    struct page_span p = r->span[i];
    if (i > 0 && !r->span[i - 1].kept && r->span[i - 1].to >= p.from && r->span[i - 1].from < p.from)
        p.from = p.from - LARGE > r->span[i - 1].from ? p.from - LARGE : r->span[i - 1].from;
    advise(&p, MADV_DONTNEED);
}

static void count_use(struct residency *r, int now)
{
    const struct page_span *p = &r->span[now];
    if (p->kept || r->now == now)
        return;
    r->counts.uses++;
    r->counts.hits += r->incoming == now;
    r->counts.ready += r->incoming == now && !r->todo;
    r->counts.bytes += p->to - p->from;
}

static void come_to(struct residency *r, int now)
{
    pthread_mutex_lock(&r->lock);
    const int next = next_passing(r, now);
    count_use(r, now);
    if (r->now != now && r->now >= 0 && !r->span[r->now].kept) {
        leave(r, r->now);
        r->counts.evictions++;
    }
    r->now = now;
    if (r->incoming != next) {
        while (r->todo)
            pthread_cond_wait(&r->changed, &r->lock);
        /* The thread has read a slice of the head in advance, but this step has no logits and does
         * not use it. */
        if (r->incoming >= 0 && r->incoming != now)
            leave(r, r->incoming);
        r->incoming = next;
        r->todo = next >= 0 && next != now;
        pthread_cond_broadcast(&r->changed);
    }
    pthread_mutex_unlock(&r->lock);
}

/* ---- opening ---- */

static size_t bytes(const struct page_span *p) { return p->to - p->from; }

/* Make spans of the model's groups, and of its head in slices no larger than the largest layer. */
static int cut(struct residency *r, const struct model *m, size_t *largest, struct err *e)
{
    const struct zfile *z = m->file;
    const struct mat *head = &m->head.w;
    const int n_groups = zfile_n_groups(z);
    r->n_layers = m->config.n_layers;
    r->z = z;
    r->tile = malloc(m->embed.w.tile_bytes);
    r->other = calloc((size_t)n_groups + 1, sizeof *r->other);
    r->span = calloc((size_t)r->n_layers + (size_t)head->n_tiles + 1, sizeof *r->span);
    if (!r->other || !r->span || !r->tile)
        return err_nomem(e, "residency");
    for (int i = 0; i < n_groups; i++) {
        const struct zfile_group *g = zfile_group(z, i);
        if (strcmp(g->kind, "mtp") == 0)        /* read only by the layer that predicts further tokens */
            continue;
        const struct page_span p = span_of((const uint8_t *)zfile_data(z) + g->offset, g->size);
        if (g->layer < 0 || g->layer >= r->n_layers) {
            r->other[r->n_others++] = p;
            continue;
        }
        r->span[g->layer] = p;
        if (r->experts && expert_cache_begin(r->experts, g->layer))
            r->span[g->layer].to = (uintptr_t)expert_cache_begin(r->experts, g->layer);
        *largest = bytes(&r->span[g->layer]) > *largest ? bytes(&r->span[g->layer]) : *largest;
    }
    r->slice_tiles = (int)(*largest / head->tile_bytes);
    r->slice_tiles = r->slice_tiles < 1 ? 1 : r->slice_tiles;
    r->n_spans = r->n_layers;
    for (int t = 0; t < head->n_tiles; t += r->slice_tiles) {
        const int n = head->n_tiles - t < r->slice_tiles ? head->n_tiles - t : r->slice_tiles;
        const struct page_span p = span_of(head->data + (size_t)t * head->tile_bytes, (size_t)n * head->tile_bytes);
        *largest = bytes(&p) > *largest ? bytes(&p) : *largest;
        r->span[r->n_spans++] = p;
    }
    return 0;
}

struct residency *residency_open(const struct model *m, size_t max_bytes, struct err *e)
{
    struct residency *r = calloc(1, sizeof *r);
    size_t largest = 0, total = 0, kept = 0;
    if (!r) {
        err_nomem(e, "residency");
        return NULL;
    }
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->changed, NULL);
    r->now = r->incoming = -1;
    if (!(r->experts = expert_cache_open(m, e)) && e->code != ERR_NONE)
        goto fail;
    if (cut(r, m, &largest, e) < 0)
        goto fail;
    const size_t least = SLACK + 2 * largest + (r->experts ? expert_cache_least(r->experts) : 0);
    if (least > max_bytes) {
        err_set(e, ERR_LIMIT, "weights in at most %zu bytes of memory: expected at least %zu, room for two layers of this model%s",
                max_bytes, least, r->experts ? " without their experts, and two of these" : "");
        goto fail;
    }
    size_t all = SLACK + (r->experts ? expert_cache_all(r->experts) : 0);
    for (int i = 0; i < r->n_layers; i++)
        all += bytes(&r->span[i]);
    for (int i = 0; i < r->n_others; i++)
        all += bytes(&r->other[i]);
    if (all <= max_bytes)               /* everything fits */
        return r;
    for (int i = 0; i < r->n_spans; i++) {
        total += bytes(&r->span[i]);
        r->span[i].kept = total + least <= max_bytes;
        r->counts.kept += r->span[i].kept;
        kept += r->span[i].kept ? bytes(&r->span[i]) : 0;
    }
    if (r->experts && expert_cache_start(r->experts, max_bytes - SLACK - kept - (kept < total ? 2 * largest : 0),
                                         e) < 0)
        goto fail;
    r->counts.parts = r->n_spans;
    const int rc = thread_start(&r->thread, bring, r);
    r->has_thread = rc == 0;
    if (rc == 0)
        return r;
    errno = rc;
    err_sys(e, "starting the thread that brings weights in");
fail:
    residency_close(r);
    return NULL;
}

void residency_close(struct residency *r)
{
    if (!r)
        return;
    if (r->has_thread) {
        pthread_mutex_lock(&r->lock);
        r->stop = 1;
        pthread_cond_broadcast(&r->changed);
        pthread_mutex_unlock(&r->lock);
        pthread_join(r->thread, NULL);
    }
    expert_cache_close(r->experts);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r->span);
    free(r->other);
    free(r->tile);
    free(r);
}

/* ---- a step ---- */

struct expert_cache *residency_experts(const struct residency *r) { return r && r->has_thread ? r->experts : NULL; }

struct cpu_passing residency_counts(struct residency *r)
{
    struct cpu_passing counts = { 0 };
    if (!r || !r->has_thread)
        return counts;
    pthread_mutex_lock(&r->lock);
    counts = r->counts;
    pthread_mutex_unlock(&r->lock);
    return counts;
}

void residency_row(struct residency *r, const struct mat *m, int64_t row, float *out)
{
    struct mat one = *m;
    const size_t tile = (size_t)(row / TILE_ROWS);
    if (zfile_pread(r->z, m->data + tile * m->tile_bytes, m->tile_bytes, r->tile) != 0) {
        /* reading failed: decoding from the mapping raises SIGBUS, as for other weights */
        mat_decode_row(m, row, out);
        return;
    }
    one.data = r->tile;
    one.rows = TILE_ROWS;
    one.n_tiles = 1;
    mat_decode_row(&one, row % TILE_ROWS, out);
}

void residency_layer(struct residency *r, int layer)
{
    if (r && r->has_thread)
        come_to(r, layer);
}

/* Drop the embedding.  If it is also the head, its slices are mapped again when they are used. */
void residency_looked_up(struct residency *r)
{
    if (r && r->has_thread)
        for (int i = 0; i < r->n_others; i++)
            advise(&r->other[i], MADV_DONTNEED);
}

int residency_head_slices(const struct residency *r) { return r && r->has_thread ? r->n_spans - r->n_layers : 1; }

void residency_head(struct residency *r, int i, const struct mat *head, int *tile0, int *tile1)
{
    *tile0 = 0;
    *tile1 = head->n_tiles;
    if (!r || !r->has_thread)
        return;
    *tile0 = i * r->slice_tiles;
    if (*tile1 > *tile0 + r->slice_tiles)
        *tile1 = *tile0 + r->slice_tiles;
    come_to(r, r->n_layers + i);
}
