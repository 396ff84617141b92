/* tok_decode.c - ids to text, one id at a time.
 *
 * The decoders of tokenizer.json map a list of tokens to a list of tokens.  Here each is a stage
 * that receives one token after the other and passes on each byte as soon as no later token can
 * change it.  A token is passed on in chunks, the last of them marked END.  DEC_FUSE and DEC_BYTES
 * join all tokens: the stages after them receive the whole text as one token.  Decoding a whole
 * list runs the same stages, so that both ways give the same text. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"
#include "libcommon/token/internal.h"
#include "libcommon/token/tok_norm.h"

enum { END = 1, VERBATIM = 2 };
enum { FAILED_REGEX = 4 };            /* besides enum tbuf_failure */

struct stage {
    struct tbuf held;               /* text held of the current token (DEC_SUFFIX: of the token before) */
    struct tbuf last;               /* DEC_CTC: the token before */
    uint64_t index;                 /* tokens seen */
    /* DEC_BYTE_FALLBACK: in a run of bytes; DEC_STRIP: past the beginning of the token. */
    int inside;
    uint32_t stripped;
};

struct detok_state {
    const struct tokenizer *t;
    int skip_special, begun, first_skipped;
    uint32_t n_stages;
    size_t n_in;                    /* bytes of tokens so far */
    struct stage *stage;
    struct regex_scratch *regex;
    struct tbuf raw, out, tmp;      /* raw: bytes that have left the last stage, which may end inside a character */
    struct err *e;                  /* error of the running call */
    int failed;
};

static void emit(struct detok_state *d, uint32_t k, const char *s, size_t n, int how);

static void cleanup(struct tbuf *b)
{
    static const char *const rule[][2] = { { " .", "." }, { " ?", "?" }, { " !", "!" }, { " ,", "," }, { " ' ", "'" },
                                           { " n't", "n't" }, { " 'm", "'m" },
                                           { " do not", " don't" }, { " 's", "'s" }, { " 've", "'ve" },
                                           { " 're", "'re" } };
    struct tbuf to = { 0 };
    for (size_t i = 0; i < sizeof rule / sizeof *rule; i++) {
        to.n = 0;
        norm_replace(&to, b->p, b->n, rule[i][0], strlen(rule[i][0]), rule[i][1], strlen(rule[i][1]));
        to.failed |= b->failed;
        tbuf_swap(&to, b);
    }
    tbuf_release(&to);
}

/* llama.cpp's way of joining the words of a WordPiece vocabulary, in its order. */
static void clean_spaces(struct tbuf *b)
{
    char *p = b->p;
    size_t n = 0;
    for (size_t i = 0; i < b->n; i++)
        if (!(p[i] == ' ' && i + 1 < b->n && memchr("?!.,", p[i + 1], 4)))
            p[n++] = p[i];
    b->n = n;
    n = 0;
    for (size_t i = 0; i < b->n; i++) {
        if (p[i] == ' ' && i + 2 < b->n && p[i + 1] == '\'' && p[i + 2] == ' ') {
            p[n++] = '\'';
            i += 2;
        } else {
            p[n++] = p[i];
        }
    }
    b->n = n;
    n = 0;
    for (size_t i = 0; i < b->n; i++) {
        const char *s = p + i;
        size_t left = b->n - i;
        if (*s == ' ' && left > 2 && s[1] == '\'' &&
            (s[2] == 's' || s[2] == 'm' || (left > 3 && s[3] == 'e' && (s[2] == 'r' || s[2] == 'v'))))
            continue;
        p[n++] = p[i];
    }
    b->n = n;
}

static int byte_token(const char *s, size_t n)
{
    static const char hex[] = "0123456789ABCDEFabcdef";
    if (n != 6 || memcmp(s, "<0x", 3) || s[5] != '>')
        return -1;
    const char *a = s[3] ? strchr(hex, s[3]) : NULL, *b = s[4] ? strchr(hex, s[4]) : NULL;
    if (!a || !b)
        return -1;
    int hi = (int)(a - hex), lo = (int)(b - hex);
    return (hi > 15 ? hi - 6 : hi) << 4 | (lo > 15 ? lo - 6 : lo);
}

/* Convert printable stand-ins back to bytes; a token with any other character stays as it is. */
static void bytes_token(struct detok_state *d, uint32_t k, const char *s, size_t n)
{
    d->tmp.n = 0;
    for (size_t i = 0; i < n;) {
        int len = 1;
        int32_t c = utf8_decode(s + i, n - i, &len);
        int byte = c < 0 ? -1 : text_char_byte((uint32_t)c);
        if (byte < 0) {
            emit(d, k + 1, s, n, VERBATIM);
            return;
        }
        char ch = (char)byte;
        tbuf_add(&d->tmp, &ch, 1);
        i += (size_t)len;
    }
    d->failed |= d->tmp.failed;
    struct tbuf mine = d->tmp;          /* later stages may use tmp */
    memset(&d->tmp, 0, sizeof d->tmp);
    emit(d, k + 1, mine.p, mine.n, 0);
    tbuf_release(&d->tmp);
    d->tmp = mine;
}

static int starts_with(const struct tbuf *b, const char *p, size_t n) { return n && b->n >= n && !memcmp(b->p, p, n); }

static void drop(struct tbuf *b, size_t n)
{
    if (n)
        memmove(b->p, b->p + n, b->n - n);
    b->n -= n;
}

static void strip_stage(struct detok_state *d, uint32_t k, const struct tokb_op *op, const char *a, const char *s,
                        size_t n, int how)
{
    struct stage *st = &d->stage[k];
    const size_t na = op->a_size, start = op->number & 0xFFFF, stop = op->number >> 16 & 0x7FFF;
    tbuf_add(&st->held, s, n);
    int off = op->number & STRIP_UNLESS_SKIPPED && d->first_skipped;
    while (!st->inside) {
        if (na && !off && st->stripped < start && starts_with(&st->held, a, na)) {
            drop(&st->held, na);
            st->stripped++;
        } else if (na && !off && st->stripped < start && !(how & END) && st->held.n < na &&
                   !memcmp(st->held.p ? st->held.p : "", a, st->held.n)) {
            return;                     /* may still become another copy of the content to strip */
        } else {
            st->inside = 1;
        }
    }
    size_t keep = 0, copies = 0;
    /* Copies of the content at the end of the text may have to be stripped, so hold them back; the
     * last one may be incomplete. */
    if (na && stop && !(how & END)) {
        size_t part = 0;
        for (size_t p = 1; p < na && p <= st->held.n; p++)
            if (!memcmp(st->held.p + st->held.n - p, a, p))
                part = p;
        keep = part;
        while (copies < stop && st->held.n >= keep + na && !memcmp(st->held.p + st->held.n - keep - na, a, na))
            keep += na, copies++;
    } else if (na && stop) {
        while (copies < stop && st->held.n >= na && !memcmp(st->held.p + st->held.n - na, a, na))
            st->held.n -= na, copies++;
    }
    emit(d, k + 1, st->held.p, st->held.n - keep, how);
    drop(&st->held, st->held.n - keep);
    if (how & END) {
        st->inside = 0;
        st->stripped = 0;
    }
}

/* Run DEC_CTC on a token that differs from the one before it: remove the padding, and with bit 0 of
 * op->number also clean up and replace word delimiters by blanks.  to: scratch. */
static void ctc_token(struct detok_state *d, struct stage *st, const struct tokb_op *op, struct tbuf *b,
                      struct tbuf *to)
{
    const char *text = d->t->text;
    st->last.n = 0;
    tbuf_add(&st->last, b->p, b->n);
    norm_replace(to, b->p, b->n, text + op->a, op->a_size, "", 0);
    if (op->number & 1) {
        cleanup(to);
        b->n = 0;
        norm_replace(b, to->p, to->n, text + op->b, op->b_size, " ", 1);
    } else {
        tbuf_swap(to, b);
    }
    d->failed |= st->last.failed;
}

/* Run a stage that needs whole tokens on one token.  Consumes b. */
static void whole_token(struct detok_state *d, uint32_t k, const struct tokb_op *op, struct tbuf *b, int how)
{
    const struct tokenizer *t = d->t;
    struct stage *st = &d->stage[k];
    const char *a = t->text + op->a;
    struct tbuf to = { .limit = tbuf_growth(d->n_in) };
    int byte;
    uint64_t index = st->index++;
    switch (op->type) {
    case DEC_BYTES:
        bytes_token(d, k, b->p, b->n);
        return;
    case DEC_BYTE_FALLBACK:
        byte = how & VERBATIM ? -1 : byte_token(b->p, b->n);
        if (byte >= 0) {
            char c = (char)byte;
            st->inside = 1;
            emit(d, k + 1, &c, 1, 0);
            return;
        }
        if (st->inside)
            emit(d, k + 1, NULL, 0, END);
        st->inside = 0;
        break;
    case DEC_REPLACE:
        if (!(how & VERBATIM) && text_find(b->p, b->n, a, op->a_size) < b->n)
            norm_replace(&to, b->p, b->n, a, op->a_size, t->text + op->b, op->b_size);
        else
            tbuf_swap(&to, b);
        tbuf_swap(&to, b);
        break;
    case DEC_REPLACE_REGEX:
        if (b->n && norm_replace_regex(&to, t->regex[2][k], d->regex, b->p, b->n, t->text + op->b, op->b_size, d->e))
            d->failed |= FAILED_REGEX;
        tbuf_swap(&to, b);
        break;
    case DEC_METASPACE:
        norm_replace(&to, b->p, b->n, a, op->a_size, " ", index == 0 && op->number & 1 ? 0 : 1);
        tbuf_swap(&to, b);
        break;
    case DEC_WORDPIECE:
        if (index && starts_with(b, a, op->a_size)) {
            drop(b, op->a_size);
        } else if (index) {
            tbuf_add(&to, " ", 1);
            tbuf_add(&to, b->p, b->n);
            tbuf_swap(&to, b);
        }
        if (op->number & 1)
            cleanup(b);
        break;
    case DEC_CTC:
        if (index && st->last.n == b->n && (!b->n || !memcmp(st->last.p, b->p, b->n)))
            return;
        ctc_token(d, st, op, b, &to);
        if (!b->n) {
            tbuf_release(&to);
            return;
        }
        break;
    case DEC_JOIN_SPACE:
        if (index)
            emit(d, k + 1, " ", 1, 0);
        break;
    default:
        break;
    }
    d->failed |= to.failed | b->failed;
    tbuf_release(&to);
    emit(d, k + 1, b->p, b->n, how);
}

static void emit(struct detok_state *d, uint32_t k, const char *s, size_t n, int how)
{
    if (k == d->n_stages) {
        tbuf_add(&d->raw, s, n);
        return;
    }
    const struct tokb_op *op = &d->t->op[2][k];
    struct stage *st = &d->stage[k];
    switch (op->type) {
    case DEC_FUSE:
        emit(d, k + 1, s, n, 0);
        return;
    case DEC_STRIP:
        strip_stage(d, k, op, d->t->text + op->a, s, n, how);
        return;
    case DEC_CLEAN_SPACES:
        tbuf_add(&st->held, s, n);
        return;
    case DEC_SUFFIX:
        if (how & END) {                /* a whole token has come, so the token before it was not the last one */
            if (st->index++) {
                struct tbuf to = { 0 };
                norm_replace(&to, st->last.p, st->last.n, d->t->text + op->a, op->a_size, " ", 1);
                d->failed |= to.failed;
                emit(d, k + 1, to.p, to.n, END);
                tbuf_release(&to);
            }
            tbuf_add(&st->held, s, n);
            tbuf_swap(&st->held, &st->last);
            st->held.n = 0;
        } else {
            tbuf_add(&st->held, s, n);
        }
        return;
    default:
        tbuf_add(&st->held, s, n);
        /* After DEC_FUSE the whole text is one token, whose chunks come without END.  Its verbatim
         * chunks cannot be told from the rest: treat them as text. */
        if (op->type == DEC_BYTES && how & VERBATIM && how & END) {
            st->index++;
            emit(d, k + 1, st->held.p, st->held.n, VERBATIM);
            st->held.n = 0;
        } else if (how & END) {
            struct tbuf token = st->held;
            memset(&st->held, 0, sizeof st->held);
            whole_token(d, k, op, &token, how);
            token.n = token.limit = 0;
            tbuf_swap(&token, &st->held);
            tbuf_release(&token);
        }
    }
}

/* The text ends: pass on the bytes that the stages hold back, first to last. */
static void finish(struct detok_state *d)
{
    for (uint32_t k = 0; k < d->n_stages; k++) {
        const struct tokb_op *op = &d->t->op[2][k];
        struct stage *st = &d->stage[k];
        struct tbuf to = { 0 };
        switch (op->type) {
        case DEC_BYTES: case DEC_FUSE:
            emit(d, k + 1, NULL, 0, END);
            break;
        case DEC_BYTE_FALLBACK:
            if (st->inside)
                emit(d, k + 1, NULL, 0, END);
            break;
        case DEC_CLEAN_SPACES:
            clean_spaces(&st->held);
            emit(d, k + 1, st->held.p, st->held.n, END);
            break;
        case DEC_SUFFIX:
            if (st->index) {
                norm_replace(&to, st->last.p, st->last.n, d->t->text + op->a, op->a_size, "", 0);
                emit(d, k + 1, to.p, to.n, END);
            }
            break;
        default:
            break;
        }
        d->failed |= to.failed;
        tbuf_release(&to);
    }
    for (uint32_t k = 0; k < d->n_stages; k++) {        /* ready for another text */
        struct stage *st = &d->stage[k];
        d->failed |= st->held.failed;
        st->held.n = st->last.n = 0;
        st->index = 0;
        st->inside = 0;
        st->stripped = 0;
    }
    d->begun = d->first_skipped = 0;
}

static int push_id(struct detok_state *d, int32_t id)
{
    const struct tokenizer *t = d->t;
    size_t n;
    const char *s = tokenizer_token(t, id, &n);
    if (!s)
        return err_set(d->e, ERR_FORMAT, "token id %d: the vocabulary has no such token (%u ids)", id, t->h.n_tokens);
    for (uint32_t i = 0; t->flags[id] & TOKEN_NORMALIZED && i < t->h.n_added[1]; i++)
        if (t->added[1][i].id == id) {
            s = t->text + t->added[1][i].text;
            n = t->added[1][i].size;
            break;
        }
    int skip = d->skip_special && t->flags[id] & TOKEN_SPECIAL;
    if (!d->begun)
        d->first_skipped = skip;
    d->begun = 1;
    d->n_in += n;
    if (!skip)
        emit(d, 0, s, n, END | (t->flags[id] & TOKEN_VERBATIM ? VERBATIM : 0));
    return 0;
}

/* Move the whole characters of raw to out; with `end`, also the rest. */
static int settle(struct detok_state *d, int end)
{
    size_t used = text_sanitize(&d->out, d->raw.p, d->raw.n, !end);
    drop(&d->raw, used);
    if (d->failed & FAILED_REGEX)
        return -1;
    if (d->failed & TBUF_LIMIT)
        return err_set(d->e, ERR_LIMIT, "the tokenizer's decoder makes a text more than 256 times as long");
    return d->failed || d->raw.failed || d->out.failed ? err_nomem(d->e, "decoded text") : 0;
}

static void state_close(struct detok_state *d)
{
    if (!d)
        return;
    for (uint32_t k = 0; d->stage && k < d->n_stages; k++) {
        tbuf_release(&d->stage[k].held);
        tbuf_release(&d->stage[k].last);
    }
    free(d->stage);
    regex_scratch_close(d->regex);
    tbuf_release(&d->raw);
    tbuf_release(&d->out);
    tbuf_release(&d->tmp);
    free(d);
}

static struct detok_state *state_open(const struct tokenizer *t, int skip_special, struct err *e)
{
    struct detok_state *d = calloc(1, sizeof *d);
    if (d) {
        d->t = t;
        d->skip_special = skip_special;
        d->n_stages = t->h.n_ops[2];
        d->stage = calloc(d->n_stages + 1, sizeof *d->stage);
        if (d->stage && (!t->uses_regex || (d->regex = regex_scratch_open())) && tbuf_reserve(&d->out, 1) == 0)
            return d;
    }
    state_close(d);
    err_nomem(e, "a detokenizer");
    return NULL;
}

int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n_ids, int skip_special, char **text,
                     size_t *size, struct err *e)
{
    struct detok_state *d = state_open(t, skip_special, e);
    int rc = -1;
    if (!d)
        return -1;
    d->e = e;
    for (size_t i = 0; i < n_ids; i++)
        if (push_id(d, ids[i]) || settle(d, 0))
            goto done;
    finish(d);
    if (settle(d, 1))
        goto done;
    tbuf_add(&d->out, "", 1);
    if (d->out.failed) {
        err_nomem(e, "decoded text");
        goto done;
    }
    *text = d->out.p;
    *size = d->out.n - 1;
    d->out.p = NULL;
    rc = 0;
done:
    state_close(d);
    return rc;
}

int detok_init(struct detok *d, const struct tokenizer *t, int skip_special, struct err *e)
{
    d->t = t;
    d->skip_special = skip_special;
    d->state = state_open(t, skip_special, e);
    return d->state ? 0 : -1;
}

static int give(struct detok *d, int end, const char **text, size_t *size)
{
    int rc = settle(d->state, end);
    *text = d->state->out.p;
    *size = d->state->out.n;
    d->state->e = NULL;
    return rc;
}

int detok_push(struct detok *d, int32_t id, const char **text, size_t *size, struct err *e)
{
    d->state->e = e;
    d->state->out.n = 0;
    return push_id(d->state, id) ? -1 : give(d, 0, text, size);
}

int detok_flush(struct detok *d, const char **text, size_t *size, struct err *e)
{
    d->state->e = e;
    d->state->out.n = 0;
    finish(d->state);
    return give(d, 1, text, size);
}

void detok_release(struct detok *d)
{
    state_close(d->state);
    d->state = NULL;
}
