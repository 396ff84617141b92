/* vocab.c - the bytes of every token of a tokenizer, as a trie and as sets of runs. */
#include "libcommon/grammar/vocab.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"
#include "libcommon/token/internal.h"

/* The decoders of the tokenizer, if they treat each token alone. */
struct decoding {
    int by_chars, byte_tokens;      /* bytes are written as GPT-2's characters; as tokens <0x..> */
    const char *space; size_t space_size;
};

static int decoding_of(const struct tokenizer *t, struct decoding *d, struct err *e)
{
    for (uint32_t i = 0; i < t->h.n_ops[2]; i++) {
        const struct tokb_op *op = &t->op[2][i];
        switch (op->type) {
        case DEC_BYTES: d->by_chars = 1; break;
        case DEC_BYTE_FALLBACK: d->byte_tokens = 1; break;
        case DEC_FUSE: break;
        case DEC_STRIP: break;      /* removes the blank of the first token, which JSON does not need */
        case DEC_METASPACE: case DEC_REPLACE:
            if (op->type == DEC_METASPACE || (op->b_size == 1 && t->text[op->b] == ' ')) {
                d->space = t->text + op->a;
                d->space_size = op->a_size;
                break;
            }
            /* fall through */
        default:
            return err_set(e, ERR_UNSUPPORTED, "grammars need tokens with bytes of their own; this tokenizer (%s) joins them by other rules", tokenizer_kind(t));
        }
    }
    return 0;
}

static int hex(int c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' &&
           c <= 'f' ? c - 'a' + 10 : -1;
}

/* Write the bytes of one token to out, never more than its entry in the vocabulary has. */
static size_t token_bytes(const struct decoding *d, const char *p, size_t n, char *out)
{
    size_t k = 0;
    if (d->byte_tokens && n == 6 && !memcmp(p, "<0x", 3) && p[5] == '>' && hex(p[3]) >= 0 && hex(p[4]) >= 0) {
        out[0] = (char)(hex(p[3]) << 4 | hex(p[4]));
        return 1;
    }
    if (d->by_chars) {
        for (size_t i = 0; i < n;) {
            int len = 1;
            int32_t c = utf8_decode(p + i, n - i, &len);
            int byte = c < 0 ? -1 : text_char_byte((uint32_t)c);
            if (byte < 0) {
                memcpy(out, p, n);
                return n;
            }
            out[k++] = (char)byte;
            i += (size_t)len;
        }
        return k;
    }
    for (size_t i = 0; i < n;) {
        if (d->space_size && n - i >= d->space_size && !memcmp(p + i, d->space, d->space_size)) {
            out[k++] = ' ';
            i += d->space_size;
        } else {
            out[k++] = p[i++];
        }
    }
    return k;
}

/* Whether these bytes can be a part of UTF-8; characters may be cut at both ends. */
static int may_be_text(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n && i < 3 && ((unsigned char)p[i] & 0xC0) == 0x80)
        i++;
    size_t end = n - utf8_incomplete(p + i, n - i);
    if (utf8_valid(p + i, end - i) != end - i)
        return 0;
    for (i = 0; i < n; i++)
        if ((unsigned char)p[i] >= 0xF5 || (unsigned char)p[i] == 0xC0 || (unsigned char)p[i] == 0xC1)
            return 0;
    return 1;
}

/* ---- trie ---- */

struct vocab_entry { const unsigned char *p; uint32_t n; int32_t id; };

static int by_bytes(const void *a, const void *b)
{
    const struct vocab_entry *x = a, *y = b;
    int c = memcmp(x->p, y->p, x->n < y->n ? x->n : y->n);
    return c ? c : x->n != y->n ? (x->n < y->n ? -1 : 1) : x->id < y->id ? -1 : x->id > y->id;
}

static void trie_release(struct trie *t)
{
    free(t->byte);
    free(t->depth);
    free(t->skip);
    free(t->token);
    free(t->order);
}

/* v is sorted. */
static int trie_make(struct trie *t, const struct vocab_entry *v, uint32_t n)
{
    size_t room = 1, longest = 0;
    for (uint32_t i = 0; i < n; i++) {
        room += v[i].n;
        longest = v[i].n > longest ? v[i].n : longest;
    }
    uint32_t *open = malloc((longest + 1) * sizeof *open), depth = 0;
    t->byte = malloc(room);
    t->depth = malloc(room * sizeof *t->depth);
    t->skip = malloc(room * sizeof *t->skip);
    t->token = malloc((room + 1) * sizeof *t->token);
    t->order = malloc(((size_t)n + 1) * sizeof *t->order);
    if (!open || !t->byte || !t->depth || !t->skip || !t->token || !t->order) {
        free(open);
        return -1;
    }
    t->n = 1;
    t->byte[0] = 0;
    t->depth[0] = 0;
    t->token[0] = 0;
    open[0] = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t common = 0;
        if (i)
            while (common < v[i - 1].n && common < v[i].n && v[i - 1].p[common] == v[i].p[common])
                common++;
        while (depth > common)
            t->skip[open[depth--]] = t->n;
        while (depth < v[i].n) {
            uint32_t k = t->n++;
            t->byte[k] = v[i].p[depth++];
            t->depth[k] = (uint16_t)depth;
            t->token[k] = i;
            open[depth] = k;
        }
        t->order[i] = v[i].id;
    }
    for (;; depth--) {
        t->skip[open[depth]] = t->n;
        if (depth == 0)
            break;
    }
    t->token[t->n] = n;
    free(open);
    /* shrink the arrays, which have space for tokens without common prefixes */
    void *p;
    if ((p = realloc(t->byte, t->n)))
        t->byte = p;
    if ((p = realloc(t->depth, t->n * sizeof *t->depth)))
        t->depth = p;
    if ((p = realloc(t->skip, t->n * sizeof *t->skip)))
        t->skip = p;
    if ((p = realloc(t->token, ((size_t)t->n + 1) * sizeof *t->token)))
        t->token = p;
    return 0;
}

/* The number of characters, if any JSON string may hold all of them; else 0. */
static size_t run_length(const char *p, size_t n)
{
    if (utf8_valid(p, n) != n)
        return 0;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)p[i] < 0x20 || p[i] == '"' || p[i] == '\\')
            return 0;
    return utf8_count(p, n);
}

static int fill(struct grammar_vocab *v, const struct decoding *d, struct err *e)
{
    const struct tokenizer *t = v->t;
    int n_ids = tokenizer_vocab_size(t);
    size_t total = 0;
    for (int i = 0; i < n_ids; i++) {
        size_t n;
        total += tokenizer_token(t, i, &n) ? n : 0;
    }
    if (total > UINT32_MAX / 2 || n_ids > 1 << 24)
        return err_set(e, ERR_LIMIT, "the vocabulary is too large for grammars");
    unsigned char (*names)[VOCAB_NAME] = malloc(((size_t)v->size + 1) * sizeof *names);
    struct vocab_entry *list = malloc(((size_t)v->size + 1) * sizeof *list),
                 *rest = malloc(((size_t)v->size + 1) * sizeof *rest);
    uint32_t n = 0, n_rest = 0, at = 0;
    int rc = -1;
    v->bytes = malloc(total + 1);
    v->at = calloc((size_t)v->size + 1, sizeof *v->at);
    v->named = calloc((size_t)v->size + 1, 1);
    if (!names || !list || !rest || !v->bytes || !v->at || !v->named)
        goto done;
    for (int k = 0; k < VOCAB_RUNS; k++)
        if (!(v->run[k] = calloc(v->n_words, sizeof **v->run)))
            goto done;
    for (int i = 0; i < v->size; i++) {
        size_t size = 0;
        const char *p = i < n_ids ? tokenizer_token(t, i, &size) : NULL;
        v->at[i] = at;
        if (!p) {
            v->named[i] = 2;
        } else if (t->flags[i] & (TOKEN_SPECIAL | TOKEN_ADDED) && !(t->flags[i] & TOKEN_BYTE)) {
            memcpy(v->bytes + at, p, size);
            at += (uint32_t)size;
            v->named[i] = 1;
            names[i][0] = VOCAB_TOKEN;
            names[i][1] = (unsigned char)(i >> 16);
            names[i][2] = (unsigned char)(i >> 8);
            names[i][3] = (unsigned char)i;
            list[n++] = rest[n_rest++] = (struct vocab_entry){ names[i], VOCAB_NAME, i };
        } else {
            struct decoding verbatim = { 0 };
            size = token_bytes(t->flags[i] & TOKEN_VERBATIM ? &verbatim : d, p, size, v->bytes + at);
            if (size == 0 || size > MAX_TOKEN || !may_be_text(v->bytes + at, size)) {
                v->named[i] = 2;
                continue;
            }
            struct vocab_entry x = { (const unsigned char *)v->bytes + at, (uint32_t)size, i };
            size_t run = run_length(v->bytes + at, size);
            list[n++] = x;
            if (run == 0 || run > VOCAB_RUNS)
                rest[n_rest++] = x;
            else
                for (size_t k = run - 1; k < VOCAB_RUNS; k++)
                    v->run[k][i >> 5] |= 1u << (i & 31);
            at += (uint32_t)size;
        }
    }
    v->at[v->size] = at;
    qsort(list, n, sizeof *list, by_bytes);
    qsort(rest, n_rest, sizeof *rest, by_bytes);
    if (trie_make(&v->all, list, n) == 0 && trie_make(&v->rest, rest, n_rest) == 0)
        rc = 0;
done:
    free(names);
    free(list);
    free(rest);
    return rc == 0 ? 0 : err_nomem(e, "the vocabulary of grammars");
}

struct grammar_vocab *grammar_vocab_open(const struct tokenizer *t, int vocab_size, struct err *e)
{
    struct decoding d = { 0 };
    if (decoding_of(t, &d, e) != 0)
        return NULL;
    struct grammar_vocab *v = calloc(1, sizeof *v);
    if (!v) {
        err_nomem(e, "the vocabulary of grammars");
        return NULL;
    }
    v->t = t;
    v->size = vocab_size > tokenizer_vocab_size(t) ? vocab_size : tokenizer_vocab_size(t);
    v->n_words = ((size_t)v->size + 31) / 32;
    v->eos = tokenizer_eos(t, &v->n_eos);
    if (fill(v, &d, e) != 0) {
        grammar_vocab_close(v);
        return NULL;
    }
    return v;
}

void grammar_vocab_close(struct grammar_vocab *v)
{
    if (!v)
        return;
    trie_release(&v->all);
    trie_release(&v->rest);
    for (int k = 0; k < VOCAB_RUNS; k++)
        free(v->run[k]);
    free(v->bytes);
    free(v->at);
    free(v->named);
    free(v);
}

const char *grammar_vocab_bytes(const struct grammar_vocab *v, int32_t id, size_t *size)
{
    if (id < 0 || id >= v->size || v->named[id])
        return NULL;
    *size = v->at[id + 1] - v->at[id];
    return v->bytes + v->at[id];
}

int vocab_name(const struct grammar_vocab *v, int32_t id, unsigned char name[VOCAB_NAME])
{
    if (id < 0 || id >= v->size || v->named[id] != 1)
        return -1;
    name[0] = VOCAB_TOKEN;
    name[1] = (unsigned char)(id >> 16);
    name[2] = (unsigned char)(id >> 8);
    name[3] = (unsigned char)id;
    return 0;
}
