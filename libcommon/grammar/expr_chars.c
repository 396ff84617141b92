/* expr_chars.c - sets of texts and of characters as expressions over the bytes of UTF-8. */
#include "libcommon/grammar/expr_store.h"

#include <stdlib.h>
#include <string.h>

int text_compare(const void *a, const void *b)
{
    const struct byte_span *x = a, *y = b;
    const size_t n = x->n < y->n ? x->n : y->n;
    const int c = n ? memcmp(x->p, y->p, n) : 0;
    return c ? c : x->n < y->n ? -1 : x->n > y->n;
}

static uint32_t texts_from(struct exprs *s, const struct byte_span *t, size_t n, size_t depth)
{
    struct arm arms[256];
    uint32_t n_arms = 0, ends = 0;
    size_t i = 0;
    if (n == 1)
        return expr_text_then(s, (const unsigned char *)t->p + depth, t->n - depth, EXPR_EPSILON);
    if (n && t[0].n == depth)
        ends = 1, i = 1;
    while (i < n) {
        size_t j = i, common = depth + 1;
        unsigned char c = (unsigned char)t[i].p[depth];
        while (j < n && (unsigned char)t[j].p[depth] == c)
            j++;
        while (j > i + 1 && common < t[i].n && common < t[j - 1].n && t[i].p[common] == t[j - 1].p[common])
            common++;                   /* the first and the last text share this byte, so all between do */
        uint32_t to = texts_from(s, t + i, j - i, j == i + 1 ? depth + 1 : common);
        if (j > i + 1)
            to = expr_text_then(s, (const unsigned char *)t[i].p + depth + 1, common - depth - 1, to);
        arms[n_arms++] = (struct arm){ c, c, to };
        i = j;
    }
    uint32_t r = n_arms ? expr_arms(s, arms, n_arms) : EXPR_NONE;
    return ends ? expr_either(s, EXPR_EPSILON, r) : r;
}

uint32_t expr_texts(struct exprs *s, const struct byte_span *t, size_t n) { return texts_from(s, t, n, 0); }

/* ---- characters ---- */

/* How many of the characters lo to hi are in the ranges: 0 none, 1 all, 2 some. */
static int cover(const struct char_range *r, int n, uint32_t lo, uint32_t hi)
{
    int a = 0, b = n;                   /* the first range that ends at lo or later */
    while (a < b) {
        int m = (a + b) / 2;
        if (r[m].hi < lo)
            a = m + 1;
        else
            b = m;
    }
    if (a == n || r[a].lo > hi)
        return 0;
    return r[a].lo <= lo && r[a].hi >= hi ? 1 : 2;
}

/* Returns an expression for the last k bytes of those characters from base to base + 64^k - 1 that
 * are in the ranges.  The earlier bytes of all these characters are the same. */
static uint32_t continuation(struct exprs *s, const struct char_range *r, int n, uint32_t base, int k)
{
    uint32_t size = 1u << 6 * k, sub = size >> 6;
    int c = cover(r, n, base, base + size - 1);
    if (k == 0)
        return c ? EXPR_EPSILON : EXPR_NONE;
    if (c == 0)
        return EXPR_NONE;
    if (c == 1) {
        uint32_t e = EXPR_EPSILON;
        while (k--)
            e = expr_arms(s, &(struct arm){ 0x80, 0xBF, e }, 1);
        return e;
    }
    struct arm arms[64];
    for (int i = 0; i < 64; i++)
        arms[i] = (struct arm){ (uint8_t)(0x80 + i), (uint8_t)(0x80 + i),
                                continuation(s, r, n, base + (uint32_t)i * sub, k - 1) };
    return expr_arms(s, arms, 64);
}

static uint32_t chars(struct exprs *s, const struct char_range *given, int n, uint32_t escape)
{
    struct char_range few[64], *r = few;
    struct arm arms[256];
    uint32_t k = 0;
    int m = 0;
    if (n + 1 > 64 && !(r = malloc((size_t)(n + 1) * sizeof *r))) {
        exprs_fail(s, EXPR_NO_MEMORY);
        return EXPR_NONE;
    }
    for (int i = 0; i < n; i++) {       /* without surrogates */
        if (given[i].lo < 0xD800)
            r[m++] = (struct char_range){ given[i].lo, given[i].hi < 0xD7FF ? given[i].hi : 0xD7FF };
        if (given[i].hi > 0xDFFF)
            r[m++] = (struct char_range){ given[i].lo > 0xE000 ? given[i].lo : 0xE000,
                                     given[i].hi < 0x10FFFF ? given[i].hi : 0x10FFFF };
    }
    s->meter.work += 256;               /* this takes more steps than it makes expressions */
    for (int b = 0; b < 0x80; b++) {
        uint32_t to = cover(r, m, (uint32_t)b, (uint32_t)b) ? EXPR_EPSILON : EXPR_NONE;
        if (escape != EXPR_ALL && (b < 0x20 || b == '"' || b == '\\'))
            to = b == '\\' ? escape : (uint32_t)EXPR_NONE;
        arms[k++] = (struct arm){ (uint8_t)b, (uint8_t)b, to };
    }
    for (int b = 0xC2; b <= 0xF4; b++) {
        int len = b < 0xE0 ? 1 : b < 0xF0 ? 2 : 3;
        uint32_t base = (uint32_t)(b & (len == 1 ? 0x1F : len == 2 ? 0x0F : 0x07)) << 6 * len;
        uint32_t to;
        /* Exclude overlong forms.  After this first byte, continuations that would encode
         * characters below 0x800 or 0x10000 match nothing. */
        if (b == 0xE0 || b == 0xF0) {
            uint32_t low = b == 0xE0 ? 0x800 : 0x10000, part = 1u << 6 * (len - 1);
            struct arm sub[64];
            for (int i = 0; i < 64; i++) {
                uint32_t at = base + (uint32_t)i * part;
                sub[i] = (struct arm){ (uint8_t)(0x80 + i), (uint8_t)(0x80 + i),
                                       at < low ? (uint32_t)EXPR_NONE : continuation(s, r, m, at, len - 1) };
            }
            to = expr_arms(s, sub, 64);
        } else {
            to = continuation(s, r, m, base, len);
        }
        arms[k++] = (struct arm){ (uint8_t)b, (uint8_t)b, to };
    }
    if (r != few)
        free(r);
    return expr_arms(s, arms, k);
}

uint32_t expr_chars(struct exprs *s, const struct char_range *r, int n) { return chars(s, r, n, EXPR_ALL); }

uint32_t expr_json_chars(struct exprs *s, const struct char_range *r, int n)
{
    static const char name[] = "\"\\bfnrt", code[] = "\"\\\b\f\n\r\t";
    struct arm one[2][32], arms[8];
    uint32_t k[2] = { 0, 0 }, m = 0;
    for (int i = 0; i < 7; i++)         /* in the order of bytes: " \ b f n r t, then u */
        if (cover(r, n, (unsigned char)code[i], (unsigned char)code[i]))
            arms[m++] = (struct arm){ (uint8_t)name[i], (uint8_t)name[i], EXPR_EPSILON };
    for (uint32_t c = 1; c < 0x20; c++)
        if (cover(r, n, c, c) && !memchr("\b\f\n\r\t", (int)c, 5)) {
            uint32_t x = c & 15, h = c >> 4;
            uint8_t digit = (uint8_t)(x < 10 ? '0' + x : 'a' + x - 10);
            one[h][k[h]++] = (struct arm){ digit, digit, EXPR_EPSILON };
        }
    uint32_t hex = expr_arms(s, (struct arm[]){ { '0', '0', k[0] ? expr_arms(s, one[0], k[0]) : (uint32_t)EXPR_NONE },
                                                { '1', '1', k[1] ? expr_arms(s, one[1], k[1]) : (uint32_t)EXPR_NONE } },
                                                2);
    if (hex != EXPR_NONE)
        arms[m++] = (struct arm){ 'u', 'u', expr_text_then(s, (const unsigned char *)"00", 2, hex) };
    return chars(s, r, n, m ? expr_arms(s, arms, m) : (uint32_t)EXPR_NONE);
}
