/* expert_cache.c - read experts from the file in a thread and keep the most used in memory. */
#include "libcommon/cpu/expert_cache.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/thread.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    LARGE = 2 << 20,                    /* a large page */
    /* alignment of experts in a file; the system's pages may be larger */
    FILE_PAGE = 4096,
    HALF_LIFE = 4096,                   /* tokens after which a use counts half */
    /* While guesses are mostly wrong, only one of this many layers is guessed, as a trial. */
    TRY_EVERY = 16,
};
/* lowest fraction of right guesses: each wrong one delays an expert that is needed */
static const float GOOD_GUESS = 0.6f;

enum { OUT, COMING, IN };
struct expert_slot {
    uintptr_t from, to;                 /* whole pages of the mapped file */
    int frame;                          /* index of its frame, unless the state is OUT */
    /* log2 of the number of uses (a use counts half after HALF_LIFE) at the time of the last use,
     * plus that time in HALF_LIFEs, so that values of different times can be compared */
    float use;
    unsigned char state, wanted, used, guessed;        /* used: 1 if the current round uses it */
};

struct expert_cache {
    const struct model *m;
    int n_layers, n_experts;
    /* [n_layers][n_experts]; from 0: the layer has no experts */
    struct expert_slot *slot;
    size_t largest, total;
    uint8_t *frames; size_t frames_bytes;       /* n_frames experts of the largest size */
    int n_frames, n_free, *free_frame;
    int direct;                         /* zfile_direct */
    pthread_t thread; int has_thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int stop;
    /* the requested slots in order: those before `at` are released, the next n_used are in use */
    int *wanted, n_wanted, at, n_used;
    int *guess, n_guess;
    double time;                        /* tokens / HALF_LIFE */
    float right; int skipped;           /* right: running mean of the fraction of right guesses */
    struct cpu_streamed stats;
};

static size_t bytes(const struct expert_slot *s) { return s->to - s->from; }

/* ---- the thread ---- */

/* Returns the slot to evict: the least used one that is not requested.  If all are requested,
 * returns the last one in `wanted` with an index above `before`; -1 if there is none. */
static int victim(const struct expert_cache *c, int before)
{
    int best = -1;
    for (int i = 0; i < c->n_layers * c->n_experts; i++) {
        const struct expert_slot *s = &c->slot[i];
        if (s->state == IN && !s->wanted && !s->used && (best < 0 || s->use < c->slot[best].use))
            best = i;
    }
    for (int i = c->n_wanted - 1; best < 0 && before >= 0 && i > before; i--)
        if (c->slot[c->wanted[i]].state == IN && !c->slot[c->wanted[i]].used)
            best = c->wanted[i];
    return best;
}

/* The next slot to read, requested or guessed; *place: its index in wanted, -1: a guess. */
static int next_slot(struct expert_cache *c, int *place)
{
    for (*place = c->at + c->n_used; *place < c->n_wanted; ++*place)
        if (c->slot[c->wanted[*place]].state == OUT)
            return c->wanted[*place];
    *place = -1;
    while (c->n_guess > 0) {
        const int i = c->guess[c->n_guess - 1];
        if (c->slot[i].state == OUT)
            return i;
        c->n_guess--;
    }
    return -1;
}

static int make_room(struct expert_cache *c, int place)
{
    const int out = c->n_free ? -1 : victim(c, place);
    if (out >= 0) {
        c->slot[out].state = OUT;
        c->free_frame[c->n_free++] = c->slot[out].frame;
    }
    return c->n_free > 0;
}

static void *bring(void *arg)
{
    struct expert_cache *c = arg;
    pthread_mutex_lock(&c->lock);
    while (!c->stop) {
        int place;
        const int i = next_slot(c, &place);
        if (i < 0 || !make_room(c, place)) {
            c->n_guess = place < 0 ? 0 : c->n_guess;
            pthread_cond_wait(&c->changed, &c->lock);
            continue;
        }
        c->slot[i].state = COMING;
        c->slot[i].frame = c->free_frame[--c->n_free];
        c->n_guess -= place < 0;
        const struct expert_slot s = c->slot[i];
        uint8_t *to = c->frames + (size_t)s.frame * c->largest;
        pthread_mutex_unlock(&c->lock);
        const uint64_t start = clock_ns();
        if (zfile_pread_direct(c->m->file, c->direct, (const void *)s.from, bytes(&s), to) != 0)
            /* reading failed: copying from the mapping raises SIGBUS, as for other weights */
            memcpy(to, (const void *)s.from, bytes(&s));
        pthread_mutex_lock(&c->lock);
        c->stats.read_ns += clock_ns() - start;
        c->stats.bytes += s.to - s.from;
        c->slot[i].state = IN;
        pthread_cond_broadcast(&c->changed);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* ---- opening ---- */

static uintptr_t lowest(const struct expert *x)
{
    const uintptr_t g = (uintptr_t)x->gate.w.data, u = (uintptr_t)x->up.w.data, d = (uintptr_t)x->down.w.data;
    const uintptr_t ud = u < d ? u : d;
    return g && g < ud ? g : ud;
}

static int lies_in(const struct linear *l, const struct expert_slot *s)
{
    const uintptr_t w = (uintptr_t)l->w.data, bias = (uintptr_t)l->bias;
    return (!w || (w >= s->from && w + l->w.size <= s->to)) &&
           (!bias || (bias >= s->from && bias + (size_t)l->w.rows * sizeof *l->bias <= s->to));
}

/* Find the ranges of a layer's experts.  Returns 0 if the ranges are adjacent up to the end of the
 * layer's group and no two share a page; otherwise -1. */
static int find_ranges(struct expert_cache *c, int layer, uintptr_t begin, uintptr_t end)
{
    const uintptr_t page = FILE_PAGE;
    const struct expert *x = c->m->layers[layer].experts;
    struct expert_slot *s = c->slot + (size_t)layer * (size_t)c->n_experts;
    if (s->from || lowest(x) < begin)           /* a second group of this layer, or experts outside of it */
        return -1;
    for (int i = 0; i < c->n_experts; i++) {
        s[i].from = lowest(&x[i]) / page * page;
        s[i].to = i + 1 < c->n_experts ? lowest(&x[i + 1]) / page * page : (end + page - 1) / page * page;
        s[i].use = -INFINITY;
        if (s[i].from >= s[i].to || (i && s[i].from != lowest(&x[i])) || !lies_in(&x[i].gate, &s[i]) ||
            !lies_in(&x[i].up, &s[i]) || !lies_in(&x[i].down, &s[i]))
            return -1;
        c->largest = bytes(&s[i]) > c->largest ? bytes(&s[i]) : c->largest;
        c->total += bytes(&s[i]);
    }
    return 0;
}

/* Find the ranges of all layers with experts.  Returns 0; -1 if those of one layer cannot be found,
 * because files may order tensors and groups in any way: the cache is then not used. */
static int find_all(struct expert_cache *c)
{
    const struct zfile *z = c->m->file;
    for (int i = 0; i < zfile_n_groups(z); i++) {
        const struct zfile_group *g = zfile_group(z, i);
        const uintptr_t begin = (uintptr_t)zfile_data(z) + g->offset;
        if (g->layer >= 0 && g->layer < c->n_layers && c->m->layers[g->layer].experts &&
            find_ranges(c, g->layer, begin, begin + g->size) < 0)
            return -1;
    }
    for (int i = 0; i < c->n_layers; i++)
        if (c->m->layers[i].experts && !expert_cache_begin(c, i))
            return -1;
    return c->total ? 0 : -1;
}

struct expert_cache *expert_cache_open(const struct model *m, struct err *e)
{
    const int n_layers = m->config.n_layers, n_experts = m->config.moe.n_experts;
    e->code = ERR_NONE;
    if (!n_experts || !m->file)
        return NULL;
    struct expert_cache *c = calloc(1, sizeof *c);
    if (!c) {
        err_nomem(e, "expert cache");
        return NULL;
    }
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    c->m = m;
    c->direct = -1;
    c->n_layers = n_layers;
    c->n_experts = n_experts;
    c->slot = calloc((size_t)n_layers * (size_t)n_experts, sizeof *c->slot);
    c->wanted = calloc((size_t)n_experts, sizeof *c->wanted);
    c->guess = calloc((size_t)n_experts, sizeof *c->guess);
    if (!c->slot || !c->wanted || !c->guess) {
        err_nomem(e, "expert cache");
        goto fail;
    }
    if (find_all(c) == 0)
        return c;
fail:
    expert_cache_close(c);
    return NULL;
}

int expert_cache_start(struct expert_cache *c, size_t max_bytes, struct err *e)
{
    const size_t all = (size_t)c->n_layers * (size_t)c->n_experts, room = max_bytes / c->largest;
    c->n_frames = c->n_free = room < all ? (int)room : (int)all;
    c->frames_bytes = (size_t)c->n_frames * c->largest;
    c->free_frame = calloc((size_t)c->n_frames + 1, sizeof *c->free_frame);
    c->frames = mmap(NULL, c->frames_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!c->free_frame || c->frames == MAP_FAILED)
        return err_set(e, ERR_MEMORY, "out of memory: %zu bytes for experts", c->frames_bytes);
    if (c->frames_bytes > 8 * LARGE)
        madvise(c->frames, c->frames_bytes, MADV_HUGEPAGE);
    for (int i = 0; i < c->n_frames; i++)
        c->free_frame[i] = c->n_frames - 1 - i;
    c->direct = zfile_direct(c->m->file);
    c->right = 1;
    const int rc = thread_start(&c->thread, bring, c);
    c->has_thread = rc == 0;
    errno = rc;
    return rc ? err_sys(e, "starting the thread that brings experts in") : 0;
}

void expert_cache_close(struct expert_cache *c)
{
    if (!c)
        return;
    if (c->has_thread) {
        pthread_mutex_lock(&c->lock);
        c->stop = 1;
        pthread_cond_broadcast(&c->changed);
        pthread_mutex_unlock(&c->lock);
        pthread_join(c->thread, NULL);
    }
    pthread_cond_destroy(&c->changed);
    pthread_mutex_destroy(&c->lock);
    if (c->frames && c->frames != MAP_FAILED)
        munmap(c->frames, c->frames_bytes);
    if (c->direct >= 0)
        close(c->direct);
    free(c->free_frame);
    free(c->slot);
    free(c->wanted);
    free(c->guess);
    free(c);
}

size_t expert_cache_least(const struct expert_cache *c) { return 2 * c->largest; }
size_t expert_cache_all(const struct expert_cache *c) { return c->total; }

const uint8_t *expert_cache_begin(const struct expert_cache *c, int layer)
{
    return (const uint8_t *)c->slot[(size_t)layer * (size_t)c->n_experts].from;
}

/* ---- a step ---- */

void expert_cache_want(struct expert_cache *c, int layer, const int *expert, const int *tokens, int n)
{
    struct expert_slot *first = c->slot + (size_t)layer * (size_t)c->n_experts;
    int guessed = 0, right = 0, sum = 0;
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < n; i++) {
        struct expert_slot *s = first + expert[i];
        s->use = log2f(exp2f(s->use - (float)c->time) + (float)tokens[i]) + (float)c->time;
        s->wanted = 1;
        c->wanted[i] = layer * c->n_experts + expert[i];
        sum += tokens[i];
        c->stats.wanted++;
        c->stats.there += s->state == IN;
        right += s->guessed;
    }
    for (int i = 0; i < c->n_experts; i++) {
        guessed += first[i].guessed;
        first[i].guessed = 0;
    }
    if (guessed) {
        c->right += ((float)right / (float)guessed - c->right) / 32;
        c->stats.guessed += (uint64_t)guessed;
        c->stats.guessed_right += (uint64_t)right;
    }
    c->time += (double)sum / c->m->config.moe.top_k / c->n_layers / HALF_LIFE;
    c->n_wanted = n;
    c->at = c->n_used = c->n_guess = 0;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

int expert_cache_use(struct expert_cache *c, int may_wait)
{
    pthread_mutex_lock(&c->lock);
    while (may_wait && c->at < c->n_wanted && c->slot[c->wanted[c->at]].state != IN)
        pthread_cond_wait(&c->changed, &c->lock);
    int n = 0;
    while (c->at + n < c->n_wanted && c->slot[c->wanted[c->at + n]].state == IN)
        c->slot[c->wanted[c->at + n++]].used = 1;
    c->n_used = n;
    pthread_mutex_unlock(&c->lock);
    return n;
}

void expert_cache_release(struct expert_cache *c, int n)
{
    pthread_mutex_lock(&c->lock);
    for (int i = 0; i < c->n_used; i++) {
        struct expert_slot *s = &c->slot[c->wanted[c->at + i]];
        s->used = 0;
        s->wanted = i >= n;
    }
    c->at += n;
    c->n_used = 0;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static void move(struct linear *l, uintptr_t from, const uint8_t *to)
{
    l->w.data = l->w.data ? to + ((uintptr_t)l->w.data - from) : NULL;
    l->bias = l->bias ? (const float *)(const void *)(to + ((uintptr_t)l->bias - from)) : NULL;
}

struct expert expert_cache_at(const struct expert_cache *c, int layer, int expert)
{
    const struct expert_slot *s = &c->slot[(size_t)layer * (size_t)c->n_experts + (size_t)expert];
    const uint8_t *to = c->frames + (size_t)s->frame * c->largest;
    struct expert x = c->m->layers[layer].experts[expert];
    move(&x.gate, s->from, to);
    move(&x.up, s->from, to);
    move(&x.down, s->from, to);
    return x;
}

int expert_cache_guesses(struct expert_cache *c) { return c->right >= GOOD_GUESS || ++c->skipped % TRY_EVERY == 0; }

void expert_cache_guess(struct expert_cache *c, int layer, const int *expert, int n)
{
    pthread_mutex_lock(&c->lock);
    c->n_guess = 0;
    /* in reverse, because the guess that is stored last is read first */
    for (int i = n - 1; i >= 0; i--) {
        struct expert_slot *s = c->slot + (size_t)layer * (size_t)c->n_experts + expert[i];
        if (s->guessed)
            continue;
        s->guessed = 1;
        if (c->right >= GOOD_GUESS)
            c->guess[c->n_guess++] = layer * c->n_experts + expert[i];
    }
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

void expert_cache_stats(struct expert_cache *c, struct cpu_streamed *s)
{
    pthread_mutex_lock(&c->lock);
    *s = c->stats;
    s->max_bytes = c->frames_bytes;
    pthread_mutex_unlock(&c->lock);
}
