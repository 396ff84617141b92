/* tok_norm.c - run the normalizers of a tokenizer over a piece of text. */
#include "libcommon/token/tok_norm.h"

#include <string.h>

#include <utf8proc.h>

void norm_replace(struct tbuf *out, const char *s, size_t n, const char *what, size_t n_what, const char *content,
                  size_t n_content)
{
    size_t hit;
    for (; (hit = text_find(s, n, what, n_what)) < n; s += hit + n_what, n -= hit + n_what) {
        tbuf_add(out, s, hit);
        tbuf_add(out, content, n_content);
    }
    tbuf_add(out, s, n);
}

int norm_replace_regex(struct tbuf *out, const struct regex *r, struct regex_scratch *w, const char *s, size_t n,
                       const char *content, size_t n_content, struct err *e)
{
    size_t done = 0, from = 0, b, end;
    int rc = 0;
    while (from <= n && (rc = regex_find(r, w, s, n, from, &b, &end, e)) == 1) {
        tbuf_add(out, s + done, b - done);
        tbuf_add(out, content, n_content);
        done = from = end;
        if (b == end) {                 /* an empty match: continue after the next character */
            int len = 1;
            if (from < n)
                text_next(s + from, &len);
            from += (size_t)len;
        }
    }
    if (rc < 0)
        return -1;
    tbuf_add(out, s + done, n - done);
    return 0;
}

/* ---- SentencePiece's precompiled map: u32 size of a double array, the array, replacement
 * strings ended by '\0' ---- */

struct charsmap { const char *units, *strings; size_t n_units, n_strings; };

static int charsmap_open(struct charsmap *m, const char *p, size_t n)
{
    uint32_t size;
    if (n < 4)
        return -1;
    memcpy(&size, p, 4);
    if (size > n - 4)
        return -1;
    *m = (struct charsmap){ p + 4, p + 4 + size, size / 4, n - 4 - size };
    return 0;
}

static uint32_t unit(const struct charsmap *m, size_t i)
{
    uint32_t u = 0xFF;                  /* outside the array: a label that no byte of a key has */
    if (i < m->n_units)
        memcpy(&u, m->units + 4 * i, 4);
    return u;
}
static size_t unit_offset(uint32_t u) { return (size_t)(u >> 10) << ((u & 1u << 9) >> 6); }

/* The replacement of a prefix of s: the shortest that is in the map, or the longest.  Returns
 * the prefix's length, 0 none. */
static size_t charsmap_find(const struct charsmap *m, const char *s, size_t n, int longest, const char **to,
                            size_t *n_to)
{
    size_t at = unit_offset(unit(m, 0)), found = 0;
    for (size_t i = 0; i < n && s[i]; i++) {
        unsigned char c = (unsigned char)s[i];
        at ^= c;
        uint32_t u = unit(m, at);
        if (at >= m->n_units || (u & (1u << 31 | 0xFF)) != c)
            break;
        at ^= unit_offset(u);
        if (u >> 8 & 1) {
            size_t value = unit(m, at) & 0x7FFFFFFFu;
            const char *end = value < m->n_strings ? memchr(m->strings + value, 0, m->n_strings - value) : NULL;
            if (end) {
                *to = m->strings + value;
                *n_to = (size_t)(end - *to);
                found = i + 1;
                if (!longest)
                    break;
            }
        }
    }
    return found;
}

/* Apply the map as SentencePiece does: at each position, its longest entry. */
static void charsmap_longest(struct tbuf *out, const struct charsmap *m, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        const char *to;
        size_t n_to, used = charsmap_find(m, s + i, n - i, 1, &to, &n_to);
        int len;
        if (used) {
            tbuf_add(out, to, n_to);
            i += used;
        } else {
            text_next(s + i, &len);
            tbuf_add(out, s + i, (size_t)len);
            i += (size_t)len;
        }
    }
}

/* Apply the map as the Hugging Face library does: a short grapheme cluster is replaced as a whole
 * if possible, else each of its characters; the shortest entry counts. */
static void charsmap_graphemes(struct tbuf *out, const struct charsmap *m, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        int len, state = 0;
        utf8proc_int32_t before = (utf8proc_int32_t)text_next(s + i, &len);
        size_t end = i + (size_t)len, n_to;
        const char *to;
        while (end < n) {
            utf8proc_int32_t c = (utf8proc_int32_t)text_next(s + end, &len);
            if (utf8proc_grapheme_break_stateful(before, c, &state))
                break;
            before = c;
            end += (size_t)len;
        }
        if (end - i < 6 && charsmap_find(m, s + i, end - i, 0, &to, &n_to)) {
            tbuf_add(out, to, n_to);
            i = end;
        }
        while (i < end) {
            text_next(s + i, &len);
            if (charsmap_find(m, s + i, (size_t)len, 0, &to, &n_to))
                tbuf_add(out, to, n_to);
            else
                tbuf_add(out, s + i, (size_t)len);
            i += (size_t)len;
        }
    }
}

/* ---- others ---- */

static void strip(struct tbuf *out, const char *s, size_t n, uint32_t sides)
{
    int len;
    size_t b = 0;
    while (sides & 1 && b < n && text_is_space(text_next(s + b, &len)))
        b += (size_t)len;
    while (sides & 2 && n > b && text_is_space(text_prev(s, n, &len)))
        n -= (size_t)len;
    tbuf_add(out, s + b, n - b);
}

/* SentencePiece's handling of white space, once the map has made all of it U+0020. */
static void spaces(struct tbuf *out, const char *s, size_t n, uint32_t how)
{
    int squeeze = how & 1;
    /* SentencePiece does not distinguish its mark from the space */
    while (squeeze && n && (s[n - 1] == ' ' || (n >= 3 && !memcmp(s + n - 3, "\xE2\x96\x81", 3))))
        n -= s[n - 1] == ' ' ? 1 : 3;
    while (squeeze && n && *s == ' ')
        s++, n--;
    if (n && how & 2)
        tbuf_add(out, " ", 1);
    for (size_t i = 0; i < n; i++)
        if (!squeeze || s[i] != ' ' || s[i - 1] != ' ')
            tbuf_add(out, s + i, 1);
}

/* Normalizers that look at one character at a time. */
static void each_char(struct tbuf *out, uint32_t type, uint32_t number, const char *s, size_t n)
{
    for (size_t i = 0; i < n;) {
        int len;
        uint32_t c = text_next(s + i, &len);
        int keep = 1, space = 0;
        switch (type) {
        case NORM_STRIP_ACCENTS:
            keep = !text_is_mark(c);
            break;
        case NORM_REMOVE_MN:
            keep = !text_is_nonspacing(c);
            break;
        case NORM_BERT_CLEAN:
            space = text_is_space(c);
            keep = (space && number == 1) || (c != 0 && c != 0xFFFD && !text_is_control(c));
            break;
        case NORM_LEADING_JAMO:
            if (c >= 0xAC00 && c <= 0xD7A3) {
                tbuf_char(out, 0x1100 + (c - 0xAC00) / 588);
                keep = 0;
            }
            break;
        case NORM_NMT:
            keep = !((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F);
            space = c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                    c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
            break;
        default:                        /* NORM_BERT_CHINESE */
            if (text_is_chinese(c)) {
                tbuf_add(out, " ", 1);
                tbuf_add(out, s + i, (size_t)len);
                keep = 0;
                tbuf_add(out, " ", 1);
            }
        }
        if (keep && space)
            tbuf_add(out, " ", 1);
        else if (keep)
            tbuf_add(out, s + i, (size_t)len);
        i += (size_t)len;
    }
}

static int replace_regex(struct tbuf *out, const struct tokb_op *op, const char *text, const struct regex *r,
                         const struct tbuf *in, struct err *e)
{
    struct regex *own = NULL;
    struct regex_scratch *w = regex_scratch_open();
    int rc = -1;
    if (!w)
        err_nomem(e, "matching");
    else if (r || (r = own = regex_open(text + op->a, op->a_size, e)))
        rc = norm_replace_regex(out, r, w, in->p, in->n, text + op->b, op->b_size, e);
    regex_scratch_close(w);
    regex_close(own);
    return rc;
}

int norm_text(const struct tokb_op *op, uint32_t n, const char *text, struct regex *const *regex, struct tbuf *io,
              struct err *e)
{
    struct tbuf out = { .limit = tbuf_growth(io->n) };
    int rc = 0;
    io->limit = out.limit;
    for (uint32_t i = 0; i < n && !rc && io->n; i++) {
        const char *s = io->p, *a = text + op[i].a;
        struct charsmap map;
        out.n = 0;
        switch (op[i].type) {
        case NORM_NFC: case NORM_NFD: case NORM_NFKC: case NORM_NFKD:
            text_normalize(&out, s, io->n, (enum text_form)(op[i].type - NORM_NFC));
            break;
        case NORM_LOWERCASE: text_lower(&out, s, io->n); break;
        case NORM_STRIP: strip(&out, s, io->n, op[i].number); break;
        case NORM_REPLACE: norm_replace(&out, s, io->n, a, op[i].a_size, text + op[i].b, op[i].b_size); break;
        case NORM_REPLACE_REGEX: rc = replace_regex(&out, &op[i], text, regex ? regex[i] : NULL, io, e); break;
        case NORM_PREPEND:
            tbuf_add(&out, a, op[i].a_size);
            tbuf_add(&out, s, io->n);
            break;
        case NORM_APPEND:
            tbuf_add(&out, s, io->n);
            tbuf_add(&out, a, op[i].a_size);
            break;
        case NORM_BYTES: text_to_byte_chars(&out, s, io->n); break;
        case NORM_SPACES: spaces(&out, s, io->n, op[i].number); break;
        case NORM_CHARSMAP:
            if (charsmap_open(&map, a, op[i].a_size))
                rc = err_set(e, ERR_FORMAT, "tokenizer: precompiled map of %u bytes is cut short", op[i].a_size);
            else if (op[i].number)
                charsmap_graphemes(&out, &map, s, io->n);
            else
                charsmap_longest(&out, &map, s, io->n);
            break;
        default: each_char(&out, op[i].type, op[i].number, s, io->n); break;
        }
        out.failed |= io->failed;
        tbuf_swap(&out, io);
    }
    tbuf_release(&out);
    io->limit = 0;
    if (!rc && io->failed & TBUF_LIMIT)
        return err_set(e, ERR_LIMIT, "the tokenizer's normalizer makes a text more than 256 times as long");
    return rc ? rc : io->failed ? err_nomem(e, "normalized text") : 0;
}
