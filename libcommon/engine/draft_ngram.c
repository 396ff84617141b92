/* draft_ngram.c - guess that what followed the last tokens earlier in the sequence follows again.
 *
 * Every three tokens that end before the last one are in a hash table of chains, the latest first.
 * A guess follows the chain of the last three tokens and takes the place before which most tokens
 * are the same; the grade is their number.  A guess that reaches the end of the sequence goes on
 * with its own beginning, so that a repetition of any period is guessed as far as wanted. */
#include <stdlib.h>

#include "libcommon/engine/draft.h"

enum { GRAM = 3, HEADS = 1 << 14, MOST_TRIES = 32, MOST_COMPARED = 64 };

struct ngram {
    int32_t head[HEADS];    /* end of the latest gram of this hash (the index after its last token); 0: none */
    int32_t *before;        /* [room] by end: that of the gram before it in its chain */
    int room, n;            /* grams that end at n or earlier are in the chains */
};

static void *ngram_open(void) { return calloc(1, sizeof(struct ngram)); }

static void ngram_close(void *state)
{
    struct ngram *s = state;
    if (s)
        free(s->before);
    free(s);
}

static uint32_t hash(const int32_t *end)
{
    const uint32_t h = ((uint32_t)end[-3] * 0x9e3779b1u + (uint32_t)end[-2]) * 0x85ebca77u + (uint32_t)end[-1];
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

/* Number of equal tokens before two ends, at most MOST_COMPARED. */
static int common(const int32_t *ids, int a, int b)
{
    int n = 0;
    while (n < MOST_COMPARED && n < a && ids[a - 1 - n] == ids[b - 1 - n])
        n++;
    return n;
}

static int grade_of(int n_common) { return n_common >= 16 ? 3 : n_common >= 8 ? 2 : n_common >= 5 ? 1 : 0; }

static int ngram_guess(void *state, const int32_t *ids, int n_ids, int32_t *out, int n, int *grade)
{
    struct ngram *s = state;
    int best = 0, most = GRAM - 1;
    if (n_ids <= GRAM || reserve(s, n_ids) != 0)
        return 0;
    for (int end = s->n < GRAM ? GRAM : s->n + 1; end < n_ids; end++) {
        int32_t *head = &s->head[hash(ids + end)];
        s->before[end] = *head;
        s->n = *head = end;
    }
    int end = s->head[hash(ids + n_ids)];
    for (int tries = 0; end && tries < MOST_TRIES && most < MOST_COMPARED; tries++, end = s->before[end]) {
        const int same = common(ids, end, n_ids);
        if (same > most) {
            most = same;
            best = end;
        }
    }
    if (!best)
        return 0;
    *grade = grade_of(most);
    for (int i = 0; i < n; i++)
        out[i] = best + i < n_ids ? ids[best + i] : out[best + i - n_ids];
    return n;
}

const struct drafter drafter_ngram = { "ngram", ngram_open, ngram_guess, ngram_close };
