/* draft_ngram.c - find an earlier occurrence of the last tokens, and guess that the tokens after it
 * follow again; a copied text is also followed across edits.
 *
 * The corpus is the predicted tokens, then the sequence itself.  Every trigram that ends before the
 * last token is in a hash table of chains, the latest first.  A guess starts at the place in the
 * chain of the last trigram that has the longest common context with the end of the sequence.
 *
 * From then on that place (the source) is followed: it advances with every token that is guessed
 * right.  If the answer differs from the source after a run of copied tokens, an edit begins.  The
 * edit ends when the last two tokens match the source again, not far after the point where it
 * began.  The replaced and the new tokens are recorded, so that the same change is guessed when the
 * same source tokens come again (as for a name that is changed throughout).
 *
 * A guess that reaches the end of the corpus continues with its own first tokens, so that
 * repetitions of any period are guessed to any length. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/engine/draft.h"

enum { GRAM = 3, HEADS = 1 << 14, MOST_TRIES = 32, MOST_COMPARED = 64 };
/* COPY: number of copied tokens in a row that make a run a copy; LONGEST_EDIT: most tokens of an
 * edit, old or new; RESYNC: number of matching tokens that end an edit; MOST_CHANGES: number of
 * changes that are remembered */
enum { COPY = 6, LONGEST_EDIT = 24, RESYNC = 2, MOST_CHANGES = 16 };

/* Tokens [from, from + n_from) of the corpus were replaced by [to, to + n_to).  The change is
 * guessed while score > 0, that is, while it was made more often than not. */
struct change { int from, n_from, to, n_to, score; };

struct ngram_index {
    const int32_t *predicted; int n_predicted;          /* borrowed */
    const int32_t *ids;     /* argument of the current call */
    int n;                  /* tokens of the corpus */
    /* end of the latest trigram with this hash (the index after its last token); 0: none */
    int32_t head[HEADS];
    int32_t *before;        /* [room] by end of a trigram: end of the previous one in its chain */
    int room, n_entered;    /* trigrams that end at n_entered or earlier are in the chains */
    /* place: index in the corpus of the source token that is expected next, or -1; run: number of
     * tokens guessed right since the last edit; copied: the same for the time before that edit */
    int place, run, copied;
    /* whether an edit is in progress; the indexes where it began in the source and in the answer */
    int editing, edit_from, edit_to;
    struct change change[MOST_CHANGES]; int n_changes, next_change;
    int n_seen;             /* number of tokens processed by advance() */
};

static void *ngram_open(const int32_t *predicted, int n)
{
    struct ngram_index *s = calloc(1, sizeof *s);
    if (s) {
        s->predicted = predicted;
        s->n_predicted = n;
        s->place = n ? 0 : -1;          /* expect the answer to start like the predicted tokens */
    }
    return s;
}

static void ngram_close(void *state)
{
    struct ngram_index *s = state;
    if (s)
        free(s->before);
    free(s);
}

/* Token i of the corpus. */
static int32_t at(const struct ngram_index *s, int i)
{
    return i < s->n_predicted ? s->predicted[i] : s->ids[i - s->n_predicted];
}

static int equal(const struct ngram_index *s, int a, int b, int n)
{
    int i = 0;
    while (i < n && at(s, a + i) == at(s, b + i))
        i++;
    return i == n;
}

/* Begin and end of the part of the corpus (predicted tokens, sequence) that contains token i. */
static int part_begin(const struct ngram_index *s, int i) { return i < s->n_predicted ? 0 : s->n_predicted; }
static int part_end(const struct ngram_index *s, int i) { return i < s->n_predicted ? s->n_predicted : s->n; }

/* ---- chains ---- */

static uint32_t hash(const struct ngram_index *s, int end)
{
    const uint32_t h = ((uint32_t)at(s, end - 3) * 0x9e3779b1u + (uint32_t)at(s, end - 2)) * 0x85ebca77u +
                       (uint32_t)at(s, end - 1);
    return (h * 0xc2b2ae3du) >> 18;
}

static int reserve(struct ngram_index *s, int n)
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

/* Add every trigram that ends before the last token to the chains. */
static void enter(struct ngram_index *s)
{
    for (int end = s->n_entered + 1; end < s->n; end++) {
        s->n_entered = end;
        if (end - part_begin(s, end - 1) < GRAM)
            continue;
        int32_t *head = &s->head[hash(s, end)];
        s->before[end] = *head;
        *head = end;
    }
}

/* Number of tokens before `end` that equal the tokens before the end of the corpus, at most
 * MOST_COMPARED. */
static int common(const struct ngram_index *s, int end)
{
    const int part = end - part_begin(s, end - 1), ids = s->n - s->n_predicted;
    int n = 0, most = part < ids ? part : ids;
    most = most < MOST_COMPARED ? most : MOST_COMPARED;
    while (n < most && at(s, end - 1 - n) == at(s, s->n - 1 - n))
        n++;
    return n;
}

/* Returns the place whose preceding tokens have the longest match with the end of the sequence,
 * with *n_common the length of the match; -1 if no match has GRAM tokens. */
static int find(const struct ngram_index *s, int *n_common)
{
    int best = -1, end = s->n - s->n_predicted > GRAM ? s->head[hash(s, s->n)] : 0;
    *n_common = GRAM - 1;
    for (int tries = 0; end && tries < MOST_TRIES && *n_common < MOST_COMPARED; tries++, end = s->before[end]) {
        const int same = common(s, end);
        if (same > *n_common) {
            *n_common = same;
            best = end;
        }
    }
    return best;
}

/* ---- following a place ---- */

/* Whether the tokens at `place` are those that this change replaces. */
static int applies(const struct ngram_index *s, const struct change *c, int place)
{
    return c->n_from <= part_end(s, place) - place && equal(s, c->from, place, c->n_from);
}

static void keep_change(struct ngram_index *s, const struct change *new)
{
    for (int i = 0; i < s->n_changes; i++) {
        struct change *c = &s->change[i];
        if (c->n_from == new->n_from && c->n_to == new->n_to && equal(s, c->from, new->from, c->n_from) &&
            equal(s, c->to, new->to, c->n_to)) {
            c->score += c->score < 4;
            return;
        }
    }
    s->change[s->next_change] = *new;
    s->next_change = (s->next_change + 1) % MOST_CHANGES;
    s->n_changes += s->n_changes < MOST_CHANGES;
}

/* Follow the source at `place` again; its last n_right tokens were guessed right. */
static void resume(struct ngram_index *s, int place, int n_right)
{
    s->place = place;
    s->copied += s->run;
    s->run = n_right;
    s->editing = 0;
}

/* If the edit up to token i equals an earlier change, resume and return 1; otherwise return 0. */
static int ends_as_before(struct ngram_index *s, int i)
{
    const int n = i + 1 - s->edit_to;
    for (int k = 0; k < s->n_changes; k++) {
        struct change *c = &s->change[k];
        if (c->score > 0 && c->n_to == n && applies(s, c, s->edit_from) && equal(s, c->to, s->edit_to, n)) {
            c->score += c->score < 4;
            resume(s, s->edit_from + c->n_from, 0);
            return 1;
        }
    }
    return 0;
}

/* If the last tokens up to i match the source again, resume and return 1; otherwise return 0. */
static int ends_in_source(struct ngram_index *s, int i)
{
    const int n = i + 1 - s->edit_to - RESYNC, end = part_end(s, s->edit_from);
    int best = -1;
    for (int p = s->edit_from; n >= 0 && p + RESYNC <= end && p + RESYNC <= s->edit_to &&
         p <= s->edit_from + n + LONGEST_EDIT; p++)
        if (equal(s, p, i + 1 - RESYNC, RESYNC) &&
            (best < 0 || abs(p - s->edit_from - n) < abs(best - s->edit_from - n)))
            best = p;
    if (best < 0)
        return 0;
    if (best > s->edit_from)
        keep_change(s, &(struct change){ s->edit_from, best - s->edit_from, s->edit_to, n, 1 });
    resume(s, best + RESYNC, RESYNC);
    return 1;
}

static void go_on_editing(struct ngram_index *s, int i)
{
    if (!ends_as_before(s, i) && !ends_in_source(s, i) && i + 1 - s->edit_to >= LONGEST_EDIT) {
        s->place = -1;
        s->editing = 0;
    }
}

/* Process token i of the answer. */
static void advance(struct ngram_index *s, int i)
{
    if (s->editing) {
        go_on_editing(s, i);
    } else if (s->place >= 0 && s->place < part_end(s, s->place) && at(s, s->place) == at(s, i)) {
        for (int k = 0; k < s->n_changes; k++)
            s->change[k].score -= s->change[k].score > 0 && applies(s, &s->change[k], s->place);
        s->place++;
        s->run++;
        if (s->place == s->n_predicted)
            s->place = -1;
    } else if (s->place >= 0 && s->run + s->copied >= COPY) {
        s->editing = 1;
        s->edit_from = s->place;
        s->edit_to = i;
        go_on_editing(s, i);
    } else {
        s->place = -1;
    }
}

/* ---- making a guess ---- */

/* Append the tokens from `place` on, with earlier changes applied. */
static void fill(const struct ngram_index *s, int place, int most, struct draft *d)
{
    const int from_predicted = place < s->n_predicted;
    while (d->n < most && !(from_predicted && place >= s->n_predicted)) {
        const struct change *c = NULL;
        for (int k = 0; k < s->n_changes && place < s->n; k++)
            if (s->change[k].score > 0 && applies(s, &s->change[k], place))
                c = &s->change[k];
        if (!c && place - s->n >= d->n)         /* the change deletes the rest: nothing follows */
            break;
        if (!c) {
            const int32_t id = place < s->n ? at(s, place) : d->token[place - s->n];
            d->token[d->n++] = id;
            place++;
            continue;
        }
        for (int k = 0; k < c->n_to && d->n < most; k++)
            d->token[d->n++] = at(s, c->to + k);
        place += c->n_from;
    }
    d->predicted = from_predicted;
}

/* During an edit: append the rest of an earlier change that starts like it.  0: there is none. */
static int guess_change(const struct ngram_index *s, int most, struct draft *d)
{
    const int n = s->n - s->edit_to;
    for (int k = 0; k < s->n_changes; k++) {
        const struct change *c = &s->change[k];
        if (c->score <= 0 || c->n_to <= n || !applies(s, c, s->edit_from) || !equal(s, c->to, s->edit_to, n))
            continue;
        for (int i = n; i < c->n_to && d->n < most; i++)
            d->token[d->n++] = at(s, c->to + i);
        fill(s, s->edit_from + c->n_from, most, d);
        d->grade = GRADE_EDIT;
        return 1;
    }
    return 0;
}

/* During an edit: guess that the edit is over.  The source then continues after its first token
 * that equals the answer's last one.  If there is none and the edit has one token, the source
 * continues after one replaced token. */
static void guess_end(const struct ngram_index *s, int most, struct draft *d)
{
    const int n = s->n - s->edit_to, end = part_end(s, s->edit_from);
    int p = s->edit_from;
    while (p < end && p <= s->edit_from + n + 2 && p < s->edit_to && at(s, p) != at(s, s->n - 1))
        p++;
    d->grade = GRADE_EDIT;
    if (p < end && p <= s->edit_from + n + 2 && p < s->edit_to)
        fill(s, p + 1, most, d);
    else if (n == 1 && s->edit_from + 1 < end)
        fill(s, s->edit_from + 1, most, d);
}

static int grade_of(int n_common) { return n_common >= 16 ? 3 : n_common >= 8 ? 2 : n_common >= 5 ? 1 : 0; }

static void ngram_guess(void *state, const int32_t *ids, int n_ids, int most, struct draft *d)
{
    struct ngram_index *s = state;
    int n_common;
    d->n = 0;
    if (reserve(s, s->n_predicted + n_ids) != 0)
        return;
    s->ids = ids;
    s->n = s->n_predicted + n_ids;
    enter(s);
    for (int i = s->n_seen ? s->n_seen : s->n - 1; i < s->n; i++)
        advance(s, i);
    s->n_seen = s->n;
    const int found = find(s, &n_common), copied = s->copied < 32 ? s->copied : 32,
              sure = s->place < 0 ? 0 : s->editing ? COPY + copied / 4 : s->run + copied / 2;
    if (found >= 0 && n_common > sure) {
        s->place = found;
        s->run = n_common;
        s->copied = s->editing = 0;
    }
    if (s->place < 0 || (s->editing && guess_change(s, most, d)))
        return;
    if (s->editing && found >= 0) {
        d->grade = grade_of(n_common);
        fill(s, found, most, d);
        return;
    }
    if (s->editing) {
        guess_end(s, most, d);
        return;
    }
    d->grade = s->copied && s->run < 4 ? GRADE_RESUMED : s->run < GRAM ? GRADE_PREDICTED : grade_of(s->run);
    fill(s, s->place, most, d);
}

const struct drafter drafter_ngram = { "ngram", ngram_open, ngram_guess, ngram_close };
