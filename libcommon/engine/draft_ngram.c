/* draft_ngram.c - guess that what followed the last tokens earlier follows again.
 *
 * The corpus is the predicted tokens, then the sequence itself.  Every three tokens of it that end
 * before the last one are in a hash table of chains, the latest first.  A guess follows the chain
 * of the last three tokens and takes the place before which most tokens are the same; the grade is
 * their number.  A guess that reaches the end of the corpus goes on with its own beginning, so that
 * a repetition of any period is guessed as far as wanted. */
#include <stdlib.h>

#include "libcommon/engine/draft.h"

enum { GRAM = 3, HEADS = 1 << 14, MOST_TRIES = 32, MOST_COMPARED = 64 };

struct ngram {
    const int32_t *predicted; int n_predicted;          /* borrowed */
    const int32_t *ids;     /* of the call */
    int32_t head[HEADS];    /* end of the latest gram of this hash (the index after its last token); 0: none */
    int32_t *before;        /* [room] by end: that of the gram before it in its chain */
    int room, n;            /* grams that end at n or earlier are in the chains */
};

static void *ngram_open(const int32_t *predicted, int n)
{
    struct ngram *s = calloc(1, sizeof *s);
    if (s) {
        s->predicted = predicted;
        s->n_predicted = n;
    }
    return s;
}

static void ngram_close(void *state)
{
    struct ngram *s = state;
    if (s)
        free(s->before);
    free(s);
}

/* Token i of the corpus. */
static int32_t at(const struct ngram *s, int i)
{
    return i < s->n_predicted ? s->predicted[i] : s->ids[i - s->n_predicted];
}

static uint32_t hash(const struct ngram *s, int end)
{
    const uint32_t h = ((uint32_t)at(s, end - 3) * 0x9e3779b1u + (uint32_t)at(s, end - 2)) * 0x85ebca77u +
                       (uint32_t)at(s, end - 1);
    return (h * 0xc2b2ae3du) >> 18;
}

static int reserve(struct ngram *s, int n)
{
    if (n <= s->room)
        return 0;
    const int room = n + n / 2 + 256;
    int32_t *more = realloc(s->before, (size_t)room * sizeof *more);
    if (!more)
        return -1;
    s->before = more;
    s->room = room;
    return 0;
}

/* First token of the part that token end - 1 is in: the predicted tokens or the sequence. */
static int part_begin(const struct ngram *s, int end) { return end <= s->n_predicted ? 0 : s->n_predicted; }

/* Number of equal tokens before two ends, at most MOST_COMPARED; a is the smaller one. */
static int common(const struct ngram *s, int a, int b)
{
    const int most = a - part_begin(s, a) < MOST_COMPARED ? a - part_begin(s, a) : MOST_COMPARED;
    int n = 0;
    while (n < most && b - 1 - n >= s->n_predicted && at(s, a - 1 - n) == at(s, b - 1 - n))
        n++;
    return n;
}

static int grade_of(int n_common) { return n_common >= 16 ? 3 : n_common >= 8 ? 2 : n_common >= 5 ? 1 : 0; }

/* Every gram that ends before n goes into the chains. */
static void enter(struct ngram *s, int n)
{
    for (int end = s->n + 1; end < n; end++) {
        s->n = end;
        if (end - part_begin(s, end) < GRAM)
            continue;
        int32_t *head = &s->head[hash(s, end)];
        s->before[end] = *head;
        *head = end;
    }
}

static void ngram_guess(void *state, const int32_t *ids, int n_ids, int most, struct draft *d)
{
    struct ngram *s = state;
    const int n = s->n_predicted + n_ids;
    int best = 0, longest = GRAM - 1;
    d->n = 0;
    if (n_ids <= GRAM || reserve(s, n) != 0)
        return;
    s->ids = ids;
    enter(s, n);
    int end = s->head[hash(s, n)];
    for (int tries = 0; end && tries < MOST_TRIES && longest < MOST_COMPARED; tries++, end = s->before[end]) {
        const int same = common(s, end, n);
        if (same > longest) {
            longest = same;
            best = end;
        }
    }
    if (!best)
        return;
    d->grade = grade_of(longest);
    d->predicted = best < s->n_predicted;
    for (int i = 0; i < most; i++)
        d->token[i] = best + i < n ? at(s, best + i) : d->token[best + i - n];
    d->n = most;
    if (d->predicted && best + most > s->n_predicted)   /* behind it comes the prompt */
        d->n = s->n_predicted - best;
}

const struct drafter drafter_ngram = { "ngram", ngram_open, ngram_guess, ngram_close };
