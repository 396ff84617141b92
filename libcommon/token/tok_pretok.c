/* tok_pretok.c - cut a text into the words that the model sees one by one. */
#include "libcommon/token/tok_pretok.h"

#include <stdlib.h>
#include <string.h>

void pieces_release(struct pieces *l)
{
    free(l->p);
    memset(l, 0, sizeof *l);
}

static void push(struct pieces *l, size_t at, size_t n, int first)
{
    if (l->n == l->room) {
        size_t room = l->room ? 2 * l->room : 64;
        struct pretok_piece *p = l->failed ? NULL : realloc(l->p, room * sizeof *p);
        if (!p) {
            l->failed = 1;
            return;
        }
        l->p = p;
        l->room = room;
    }
    l->p[l->n++] = (struct pretok_piece){ at, n, first };
}

/* Collects the matches and gaps of one piece, in order, and joins them as the behaviour says. */
struct pretok_split {
    struct pieces *out;
    size_t base;                    /* pieces in out that belong to earlier words */
    size_t at, n;                   /* the word */
    int first, behaviour, invert;
    int before;                     /* was the last part a match? */
    size_t held_at, held_n;         /* SPLIT_NEXT: a match that waits for what follows */
    int held;
};

static void part(struct pretok_split *s, size_t begin, size_t end, int match)
{
    size_t at = s->at + begin, n = end - begin;
    int first = s->first && begin == 0;
    struct pretok_piece *last = s->out->n > s->base ? &s->out->p[s->out->n - 1] : NULL;
    match ^= s->invert;
    switch (s->behaviour) {
    case SPLIT_REMOVED:
        if (!match)
            push(s->out, at, n, first);
        break;
    case SPLIT_ISOLATED:
        push(s->out, at, n, first);
        break;
    case SPLIT_PREVIOUS:
        if (match && !s->before && last)
            last->n = at + n - last->at;
        else
            push(s->out, at, n, first);
        break;
    case SPLIT_NEXT:
        if (s->held && !match) {
            push(s->out, s->held_at, at + n - s->held_at, s->first && s->held_at == s->at);
            s->held = 0;
        } else {
            if (s->held)
                push(s->out, s->held_at, s->held_n, s->first && s->held_at == s->at);
            s->held = match;
            s->held_at = at;
            s->held_n = n;
            if (!match)
                push(s->out, at, n, first);
        }
        break;
    default:                        /* SPLIT_CONTIGUOUS */
        if (match == s->before && last)
            last->n = at + n - last->at;
        else
            push(s->out, at, n, first);
    }
    s->before = match;
}

static void finish(struct pretok_split *s)
{
    if (s->held)
        push(s->out, s->held_at, s->held_n, s->first && s->held_at == s->at);
    size_t k = s->base;
    for (size_t i = s->base; i < s->out->n; i++)
        if (s->out->p[i].n)
            s->out->p[k++] = s->out->p[i];
    s->out->n = k;
}

static int split_word(const struct tokb_op *op, const char *arg, const struct regex *r, struct regex_scratch *w,
                      const char *s, struct pretok_piece word, struct pieces *out, struct err *e)
{
    struct pretok_split sp = { .out = out, .base = out->n, .at = word.at, .n = word.n, .first = word.first,
                           .behaviour = (int)(op->number & 15), .invert = (op->number & SPLIT_INVERT) != 0 };
    size_t done = 0, from = 0, b, end;
    s += word.at;
    for (;;) {
        int hit;
        if (r) {
            hit = from <= word.n ? regex_find(r, w, s, word.n, from, &b, &end, e) : 0;
            if (hit < 0)
                return -1;
        } else {
            b = from + text_find(s + from, word.n - from, arg, op->a_size);
            hit = b < word.n;
            end = b + op->a_size;
        }
        if (!hit)
            break;
        if (b > done)
            part(&sp, done, b, 0);
        part(&sp, b, end, 1);
        done = from = end;
        if (b == end) {
            int len = 1;
            if (from < word.n)
                text_next(s + from, &len);
            from += (size_t)len;
        }
    }
    if (done < word.n)
        part(&sp, done, word.n, 0);
    finish(&sp);
    return 0;
}

static void fixed_length(const char *s, struct pretok_piece word, uint32_t chars, struct pieces *out)
{
    size_t i = 0;
    while (i < word.n) {
        size_t b = i;
        int len;
        for (uint32_t k = 0; k < chars && i < word.n; k++) {
            text_next(s + word.at + i, &len);
            i += (size_t)len;
        }
        push(out, word.at + b, i - b, word.first && b == 0);
    }
}

/* Run a step that rewrites text on one word; the result is appended to `to` and added to out. */
static int rewrite(const struct tokb_op *op, const char *arg, const char *s, struct pretok_piece word, struct tbuf *to,
                   struct pieces *out, struct err *e)
{
    size_t at = to->n;
    const char *p = s + word.at;
    if (op->type == PRE_PREFIX_SPACE) {
        if (*p != ' ')
            tbuf_add(to, " ", 1);
        tbuf_add(to, p, word.n);
    } else if (op->type == PRE_BYTES) {
        text_to_byte_chars(to, p, word.n);
    } else {                            /* PRE_METASPACE */
        int begins = *p == ' ' || (word.n >= op->a_size && !memcmp(p, arg, op->a_size));
        if (!begins && (op->number & METASPACE_ALWAYS || (op->number & METASPACE_FIRST && word.first)))
            tbuf_add(to, arg, op->a_size);
        for (size_t i = 0; i < word.n;) {
            const char *space = memchr(p + i, ' ', word.n - i);
            size_t plain = space ? (size_t)(space - p) - i : word.n - i;
            tbuf_add(to, p + i, plain);
            if (space)
                tbuf_add(to, arg, op->a_size);
            i += plain + (space != NULL);
        }
    }
    if (to->failed & TBUF_LIMIT)
        return err_set(e, ERR_LIMIT, "the tokenizer's pre-tokenizer makes a text more than 256 times as long");
    if (to->failed)
        return err_nomem(e, "words of the text");
    struct pretok_piece made = { at, to->n - at, word.first };
    if (op->type == PRE_METASPACE && op->number & METASPACE_SPLIT) {
        struct tokb_op split = *op;
        split.number = SPLIT_NEXT;
        return split_word(&split, arg, NULL, NULL, to->p, made, out, e);
    }
    push(out, made.at, made.n, made.first);
    return 0;
}

int pretok_run(const struct tokb_op *op, uint32_t n, const char *text, struct regex *const *regex,
               struct regex_scratch *w, struct tbuf *io, struct tbuf *work, int at_start, struct pieces *out,
               struct pieces *spare, struct err *e)
{
    int rc = 0;
    out->n = 0;
    if (io->n)
        push(out, 0, io->n, at_start);
    io->limit = work->limit = tbuf_growth(io->n);
    for (uint32_t i = 0; i < n && !rc; i++) {
        int rewrites = op[i].type == PRE_PREFIX_SPACE || op[i].type == PRE_BYTES || op[i].type == PRE_METASPACE;
        spare->n = work->n = 0;
        for (size_t k = 0; k < out->n && !rc; k++) {
            if (rewrites)
                rc = rewrite(&op[i], text + op[i].a, io->p, out->p[k], work, spare, e);
            else if (op[i].type == PRE_FIXED_LENGTH)
                fixed_length(io->p, out->p[k], op[i].number ? op[i].number : 1, spare);
            else
                rc = split_word(&op[i], text + op[i].a, regex[i], w, io->p, out->p[k], spare, e);
        }
        if (rewrites)
            tbuf_swap(io, work);
        struct pieces t = *out;
        *out = *spare;
        *spare = t;
        if (out->failed || spare->failed || io->failed)
            break;
    }
    io->limit = work->limit = 0;
    return rc ? -1 : out->failed || spare->failed || io->failed ? err_nomem(e, "words of the text") : 0;
}
