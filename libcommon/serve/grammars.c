/* grammars.c - a least recently used cache of compiled grammars. */
#include "libcommon/serve/grammars.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_GRAMMARS = 128, MOST_BYTES = 256 << 20 };

struct shared_grammar {
    struct shared_grammar *next;        /* most recently used first */
    struct grammar *g;
    char *key; size_t key_size;         /* owned */
    atomic_int users;                   /* decremented without the lock, which must never delay the loop */
};

struct grammars {
    pthread_mutex_t lock;
    const struct tokenizer *t;
    struct grammar_vocab *vocab;
    struct shared_grammar *first;
    struct grammar_budget budget;
};

struct grammars *grammars_open(const struct tokenizer *t, struct err *e)
{
    struct grammars *all = calloc(1, sizeof *all);
    if (!all) {
        err_nomem(e, "grammars");
        return NULL;
    }
    all->t = t;
    all->budget.limit = MOST_BYTES;
    pthread_mutex_init(&all->lock, NULL);
    return all;
}

static void free_one(struct shared_grammar *g)
{
    grammar_close(g->g);
    free(g->key);
    free(g);
}

static void free_list(struct shared_grammar *g)
{
    while (g) {
        struct shared_grammar *next = g->next;
        free_one(g);
        g = next;
    }
}

void grammars_close(struct grammars *all)
{
    if (!all)
        return;
    free_list(all->first);
    grammar_vocab_close(all->vocab);
    pthread_mutex_destroy(&all->lock);
    free(all);
}

size_t grammars_bytes(const struct grammars *all)
{
    return atomic_load_explicit(&all->budget.used, memory_order_relaxed);
}

/* Find a grammar by key, count its use and move it to the front; NULL: none.  The caller holds the
 * lock. */
static struct shared_grammar *find(struct grammars *all, const char *key, size_t size)
{
    for (struct shared_grammar **at = &all->first; *at; at = &(*at)->next) {
        struct shared_grammar *g = *at;
        if (g->key_size != size || memcmp(g->key, key, size) != 0)
            continue;
        *at = g->next;
        g->next = all->first;
        all->first = g;
        g->users++;
        return g;
    }
    return NULL;
}

/* Move unused grammars from the cache to *out, until another one fits.  The caller holds the lock,
 * and frees the grammars after it has released the lock.  -1: all are in use. */
static int evict_unused(struct grammars *all, struct shared_grammar **out)
{
    size_t out_bytes = 0;
    for (;;) {
        struct shared_grammar **oldest = NULL;
        size_t keys = 0;
        int n = 0;
        for (struct shared_grammar **at = &all->first; *at; at = &(*at)->next) {
            keys += (*at)->key_size;
            n++;
            if ((*at)->users == 0)
                oldest = at;
        }
        if (n < MOST_GRAMMARS && grammars_bytes(all) - out_bytes + keys < MOST_BYTES)
            return 0;
        if (!oldest)
            return -1;
        struct shared_grammar *g = *oldest;
        *oldest = g->next;
        out_bytes += grammar_bytes(g->g);
        g->next = *out;
        *out = g;
    }
}

static struct shared_grammar *make_one(const struct grammar_vocab *v, struct grammar_budget *budget, const char *key,
                                       size_t size, grammar_maker *make, const void *what, struct err *e)
{
    struct shared_grammar *g = calloc(1, sizeof *g);
    if (!g || !(g->key = malloc(size + 1))) {
        free(g);
        err_nomem(e, "grammars");
        return NULL;
    }
    memcpy(g->key, key, size);
    g->key_size = size;
    g->users = 1;
    if ((g->g = make(v, what, e))) {
        grammar_share(g->g, budget);
        return g;
    }
    free(g->key);
    free(g);
    return NULL;
}

struct shared_grammar *grammars_get(struct grammars *all, const char *key, size_t size, grammar_maker *make,
                                    const void *what, struct err *e)
{
    struct shared_grammar *unused = NULL;
    pthread_mutex_lock(&all->lock);
    struct shared_grammar *g = find(all, key, size);
    int full = !g && evict_unused(all, &unused) != 0;
    if (!g && !full && !all->vocab)
        all->vocab = grammar_vocab_open(all->t, 0, e);
    const struct grammar_vocab *v = all->vocab;
    pthread_mutex_unlock(&all->lock);
    free_list(unused);
    if (full)
        err_set(e, ERR_MEMORY, "the grammars of running requests take too much memory");
    if (g || full || !v)
        return g;
    if (!(g = make_one(v, &all->budget, key, size, make, what, e)))
        return NULL;
    pthread_mutex_lock(&all->lock);
    struct shared_grammar *other = find(all, key, size); /* another thread may have compiled it at the same time */
    if (!other) {
        g->next = all->first;
        all->first = g;
    }
    pthread_mutex_unlock(&all->lock);
    if (!other)
        return g;
    free_one(g);
    return other;
}

struct grammar *shared_grammar(struct shared_grammar *g) { return g->g; }

void grammars_release(struct shared_grammar *g)
{
    if (g)
        g->users--;
}
