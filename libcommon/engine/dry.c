/* dry.c - lengths of repetitions by the Z algorithm, and sequence breakers in tokens.
 *
 * A breaker is a text and need not start or end with a token: it may lie within one token, or start
 * in one and continue in the next.  A token that ends with the first bytes of a breaker is called a
 * head.  Its tail is the list of tokens of the breaker's other bytes, tokenized by themselves, as
 * in llama.cpp. */
#include "libcommon/engine/dry.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Kinds of tokens, two bits each. */
enum { UNKNOWN, PLAIN, HEAD, BREAKER };

struct tail { int32_t *id; int n; };    /* owned */
struct breaker {
    char text[DRY_BREAKER_BYTES + 1]; size_t size;
    struct tail tail[DRY_BREAKER_BYTES];        /* element i >= 1: the tail after i bytes of text */
};

struct dry {
    float multiplier, base;
    int allowed_length, last_n, max_exponent;
    const struct tokenizer *t;          /* borrowed; NULL: no breakers */
    struct breaker *breaker; int n_breakers, longest_tail;
    uint8_t *kind;                      /* [vocab_size / 4 + 1] */
    /* The result of earlier searches.  head: of the positions below `checked`, the last one that is
     * the head of a complete breaker (-1: none is); end: the position after that breaker. */
    int checked, head, end;
};

static int add_breaker(struct dry *d, const char *text, struct err *e)
{
    struct breaker *b = &d->breaker[d->n_breakers];
    b->size = strlen(text);
    if (b->size < 1 || b->size > DRY_BREAKER_BYTES)
        return err_set(e, ERR_LIMIT, "dry_sequence_breakers: text %d has %zu bytes, expected 1 to %d",
                       d->n_breakers + 1, b->size, DRY_BREAKER_BYTES);
    d->n_breakers++;
    memcpy(b->text, text, b->size + 1);
    for (size_t i = 1; i < b->size; i++) {
        size_t n;
        if (tokenizer_encode(d->t, text + i, b->size - i, 0, &b->tail[i].id, &n, e) != 0)
            return -1;
        b->tail[i].n = (int)n;
        d->longest_tail = (int)n > d->longest_tail ? (int)n : d->longest_tail;
    }
    return 0;
}

struct dry *dry_open(const struct sampling *s, const struct tokenizer *t, int vocab_size, struct err *e)
{
    static const float FLOAT_MAX_LOG = 88.7228391f;
    static const char *const usual[] = { "\n", ":", "\"", "*" };
    const char *const *text = s->dry_sequence_breakers ? s->dry_sequence_breakers : usual;
    const int n = s->dry_sequence_breakers ? s->n_dry_sequence_breakers : (int)(sizeof usual / sizeof *usual);
    if (n > DRY_MAX_BREAKERS) {
        err_set(e, ERR_LIMIT, "dry_sequence_breakers: %d texts, expected at most %d", n, DRY_MAX_BREAKERS);
        return NULL;
    }
    struct dry *d = calloc(1, sizeof *d);
    if (!d)
        goto nomem;
    d->multiplier = s->dry_multiplier;
    d->base = s->dry_base;
    d->allowed_length = s->dry_allowed_length;
    d->last_n = s->dry_penalty_last_n;
    d->max_exponent = d->base > 1.000001f ? (int)(FLOAT_MAX_LOG / logf(d->base)) : 0;
    d->head = -1;
    d->t = t;
    if (!t)
        return d;
    d->kind = calloc((size_t)vocab_size / 4 + 1, 1);
    d->breaker = calloc((size_t)n + 1, sizeof *d->breaker);
    if (!d->kind || !d->breaker)
        goto nomem;
    for (int i = 0; i < n; i++)
        if (add_breaker(d, text[i], e) != 0) {
            dry_close(d);
            return NULL;
        }
    return d;
nomem:
    dry_close(d);
    err_nomem(e, "DRY");
    return NULL;
}

void dry_close(struct dry *d)
{
    if (!d)
        return;
    for (int i = 0; i < d->n_breakers; i++)
        for (size_t k = 0; k < d->breaker[i].size; k++)
            free(d->breaker[i].tail[k].id);
    free(d->breaker);
    free(d->kind);
    free(d);
}

/* ---- breakers ---- */

/* Call found(user, tail) for every tail that would complete a breaker after this word.  Returns 1
 * if the word contains a whole breaker. */
static int match_word(const struct dry *d, const char *word, size_t size,
                      void (*found)(void *user, const struct tail *t), void *user)
{
    int whole = 0;
    for (int k = 0; k < d->n_breakers; k++) {
        const struct breaker *b = &d->breaker[k];
        if (memmem(word, size, b->text, b->size)) {
            whole = 1;
            continue;
        }
        for (size_t n = 1; n < b->size && n <= size; n++)
            if (memcmp(word + size - n, b->text, n) == 0)
                found(user, &b->tail[n]);
    }
    return whole;
}

/* The tokens after a head, and the length of the longest tail that they start with; -1: none. */
struct dry_match { const int32_t *next; int n_next, length; };

static void longest_tail(void *user, const struct tail *t)
{
    struct dry_match *m = user;
    if (t->n > m->length && t->n <= m->n_next && memcmp(t->id, m->next, (size_t)t->n * sizeof *t->id) == 0)
        m->length = t->n;
}

static void note_head(void *user, const struct tail *t)
{
    (void)t;
    *(int *)user = 1;
}

static int kind_of(struct dry *d, int32_t id)
{
    uint8_t *at = &d->kind[id / 4];
    const int shift = id % 4 * 2;
    if (!(*at >> shift & 3)) {
        char *word;
        size_t size;
        struct err ignored;
        int is_head = 0;
        if (tokenizer_decode(d->t, &id, 1, 0, &word, &size, &ignored) != 0)
            /* out of memory: leave the kind unknown, so that the next call tries again */
            return PLAIN;
        const int kind = match_word(d, word, size, note_head, &is_head) ? BREAKER : is_head ? HEAD : PLAIN;
        free(word);
        *at |= (uint8_t)(kind << shift);
    }
    return *at >> shift & 3;
}

/* Returns the number of tokens after the head at this position that belong to its breaker; -1 if no
 * complete breaker starts there. */
static int breaker_at(struct dry *d, const int32_t *history, int n, int at)
{
    const int kind = kind_of(d, history[at]);
    if (kind == PLAIN)
        return -1;
    struct dry_match m = { history + at + 1, n - at - 1, kind == BREAKER ? 0 : -1 };
    char *word;
    size_t size;
    struct err ignored;
    if (d->longest_tail > 0 && tokenizer_decode(d->t, &history[at], 1, 0, &word, &size, &ignored) == 0) {
        match_word(d, word, size, longest_tail, &m);
        free(word);
    }
    return m.length;
}

/* The position after the last breaker whose head is at `from` or later; `from` if there is none. */
static int last_breaker(struct dry *d, const int32_t *history, int n, int from)
{
    /* A later call need not check heads before `settled`: all tokens of their tails are known
     * now. */
    const int settled = n - d->longest_tail;
    if (!d->n_breakers)
        return from;
    for (int i = n - 1; i >= d->checked; i--) {
        const int length = breaker_at(d, history, n, i);
        if (length >= 0) {
            d->head = i;
            d->end = i + 1 + length;
            break;
        }
    }
    const int head = d->head, checked = settled > head ? settled : head;
    d->checked = checked > d->checked ? checked : d->checked;
    return head >= from ? d->end : from;
}

/* ---- repetitions ---- */

int dry_repeats(struct dry *d, const int32_t *history, int n, int *repeat)
{
    const int n_window = d->last_n < 0 || d->last_n > n ? n : d->last_n, from = n - n_window, last = n - 1;
    if (n_window <= d->allowed_length)
        return n;
    const int limit = n - last_breaker(d, history, n, from);
    if (limit < d->allowed_length)
        return n;
    /* The Z algorithm (Gusfield 1997, section 1.4) on the reversed history: z(k) = repeat[n - k] is
     * the length of its match with itself shifted by k.  [left, right) is the match that reaches
     * furthest; inside it z(k) is z(k - left), up to its end. */
    for (int k = 1, left = 0, right = 0; k < n_window; k++) {
        int z = 0;
        if (k < right) {
            const int known = repeat[n - (k - left)];
            z = known < right - k ? known : right - k;
        }
        while (k + z < n_window && history[last - z] == history[last - k - z])
            z++;
        if (k + z > right) {
            left = k;
            right = k + z;
        }
        repeat[n - k] = z;
    }
    for (int i = from + 1; i < n; i++)
        repeat[i] = repeat[i] < limit ? repeat[i] : limit;
    return from + 1;
}

float dry_penalty(struct dry *d, int32_t id, int repeat)
{
    /* finite, so that a grammar that allows only penalised tokens can still choose one */
    static const float MOST = 1e37f;
    int exponent = repeat - d->allowed_length;
    if (exponent < 0 || (d->n_breakers && kind_of(d, id) == BREAKER))
        return 0;
    if (d->max_exponent > 0 && exponent > d->max_exponent)
        exponent = d->max_exponent;
    return fminf(d->multiplier * powf(d->base, (float)exponent), MOST);
}
