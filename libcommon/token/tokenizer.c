/* tokenizer.c - open a block, encode texts, answer questions about ids. */
#include "libcommon/token/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"
#include "libcommon/token/internal.h"
#include "libcommon/token/tok_norm.h"
#include "libcommon/token/tok_spec.h"

/* ---- compiling ---- */

static int finish_spec(struct tok_spec *s, int rc, void **blob, size_t *size, struct err *e)
{
    if (!rc)
        rc = tok_spec_pack(s, blob, size, e);
    tok_spec_release(s);
    return rc;
}

int tokenizer_compile_files(const struct tokenizer_files *f, void **blob, size_t *size, struct err *e)
{
    struct tok_spec s;
    int rc;
    tok_spec_init(&s);
    if (f->tokenizer_json)
        rc = tok_json_compile(&s, f, e);
    else if (f->sentencepiece)
        rc = tok_sentencepiece_compile(&s, f->sentencepiece, f->sentencepiece_size, e);
    else if (f->vocab_json && f->merges_txt)
        rc = tok_gpt2_compile(&s, f, e);
    else
        rc = err_set(e, ERR_FORMAT, "no tokenizer: neither tokenizer.json nor tokenizer.model nor vocab.json with merges.txt");
    if (!rc)
        rc = tok_config_apply(&s, f, e);
    return finish_spec(&s, rc, blob, size, e);
}

int tokenizer_compile_gguf(const struct tokenizer_gguf *g, void **blob, size_t *size, struct err *e)
{
    struct tok_spec s;
    tok_spec_init(&s);
    return finish_spec(&s, tok_gguf_compile(&s, g, e), blob, size, e);
}

/* ---- opening ---- */

static int damaged(struct err *e, const char *what) { return err_set(e, ERR_FORMAT, "tokenizer block: %s", what); }

static int check_sections(const struct tokb_header *h, size_t size, struct err *e)
{
    const struct tokb_header *x = h;
    uint64_t need[TOKB_N_SECTIONS] = {
        [TOKB_OFFSETS] = ((uint64_t)x->n_tokens + 1) * 4,
        [TOKB_FLAGS] = x->n_tokens,
        [TOKB_VOCAB] = (uint64_t)x->n_vocab_slots * sizeof(struct tokb_slot),
        [TOKB_MERGES] = (uint64_t)x->n_merge_slots * sizeof(struct tokb_merge),
        [TOKB_SCORES] = x->model == MODEL_UNIGRAM || x->model == MODEL_BPE_SCORE ? (uint64_t)x->n_tokens * 8 : 0,
        [TOKB_CHAR_IDS] = TOKB_CHARS * 4,
        [TOKB_BYTES] = 256 * 4,
        [TOKB_PAIRS] = 8192,
        [TOKB_ADDED] = ((uint64_t)x->n_added[0] + x->n_added[1]) * sizeof(struct tokb_added),
        [TOKB_ADDED_FIRST] = 2 * 257 * 4,
        [TOKB_OPS] = ((uint64_t)x->n_ops[0] + x->n_ops[1] + x->n_ops[2]) * sizeof(struct tokb_op),
        [TOKB_EDGES] = ((uint64_t)x->n_prefix + x->n_suffix + x->n_eos) * 4,
    };
    for (int i = 0; i < TOKB_N_SECTIONS; i++) {
        uint64_t at = x->section[i].offset, n = x->section[i].size;
        if (at % 8 || at < sizeof *h || at > size || n > size - at)
            return err_set(e, ERR_FORMAT, "tokenizer block: section %d: bytes %llu + %llu, but the block has %zu", i,
                           (unsigned long long)at, (unsigned long long)n, size);
        if (i != TOKB_TEXT && i != TOKB_TOKENS && n != need[i])
            return err_set(e, ERR_FORMAT, "tokenizer block: section %d: %llu bytes, expected %llu", i,
                           (unsigned long long)n, (unsigned long long)need[i]);
    }
    return 0;
}

static int in_text(const struct tokb_header *h, uint64_t at, uint64_t n)
{
    return at + n <= h->section[TOKB_TEXT].size;
}

static int check_header(const struct tokb_header *h, size_t size, struct err *e)
{
    if (memcmp(h->magic, "TOKB", 4))
        return damaged(e, "does not begin with TOKB");
    if (h->version != TOKB_VERSION)
        return err_set(e, ERR_UNSUPPORTED, "tokenizer block: version %u, this program reads %d", h->version,
                       TOKB_VERSION);
    if (h->size > size)
        return err_set(e, ERR_FORMAT, "tokenizer block: cut short: %zu bytes of %llu", size,
                       (unsigned long long)h->size);
    if (h->model < MODEL_BPE || h->model > MODEL_WORDLEVEL)
        return err_set(e, ERR_UNSUPPORTED, "tokenizer block: model %u is not known", h->model);
    if (h->n_tokens < 1 || h->n_tokens > TOKB_MAX_IDS)
        return damaged(e, "number of tokens out of range");
    if (!h->n_vocab_slots || h->n_vocab_slots & (h->n_vocab_slots - 1) || h->vocab_probes > h->n_vocab_slots)
        return damaged(e, "size of the vocabulary's table");
    if (!h->n_merge_slots || h->merge_probes > h->n_merge_slots)
        return damaged(e, "size of the table of merges");
    if ((uint64_t)h->n_ops[0] + h->n_ops[1] + h->n_ops[2] > TOKB_MAX_OPS)
        return damaged(e, "too many steps");
    const int32_t id[] = { h->bos, h->unk, h->pad };
    for (int i = 0; i < 3; i++)
        if (id[i] < -1 || (id[i] >= 0 && (uint32_t)id[i] >= h->n_tokens))
            return damaged(e, "id of a special token out of range");
    return check_sections(h, (size_t)h->size, e);
}

static int utf8_ok(const char *p, size_t n) { return utf8_valid(p, n) == n; }

static int check_ops(const struct tokenizer *t, struct err *e)
{
    static const uint32_t range[3][2] = { { NORM_NFC, NORM_LAST }, { PRE_SPLIT, PRE_LAST }, { DEC_BYTES, DEC_LAST } };
    for (int s = 0; s < 3; s++)
        for (uint32_t i = 0; i < t->h.n_ops[s]; i++) {
            const struct tokb_op *op = &t->op[s][i];
            if (op->type < range[s][0] || op->type >= range[s][1])
                return err_set(e, ERR_UNSUPPORTED, "tokenizer block: step %u of kind %u is not known", op->type,
                               (unsigned)s);
            if (!in_text(&t->h, op->a, op->a_size) || !in_text(&t->h, op->b, op->b_size))
                return damaged(e, "argument of a step lies outside");
            if (op->type != NORM_CHARSMAP && (!utf8_ok(t->text + op->a, op->a_size) ||
                                              !utf8_ok(t->text + op->b, op->b_size)))
                return damaged(e, "argument of a step is not UTF-8");
        }
    if (!in_text(&t->h, t->h.word_prefix, t->h.word_prefix_size) ||
        !in_text(&t->h, t->h.next_prefix, t->h.next_prefix_size) ||
        !in_text(&t->h, t->h.end_suffix, t->h.end_suffix_size))
        return damaged(e, "a prefix lies outside");
    return 0;
}

static int check_added(const struct tokenizer *t, struct err *e)
{
    for (int half = 0; half < 2; half++) {
        uint32_t n = t->h.n_added[half];
        for (int b = 0; b < 257; b++)
            if (t->added_first[half][b] > n || (b && t->added_first[half][b] < t->added_first[half][b - 1]))
                return damaged(e, "index of added tokens");
        for (uint32_t i = 0; i < n; i++) {
            const struct tokb_added *a = &t->added[half][i];
            if (a->size == 0 || !in_text(&t->h, a->text, a->size) || a->id < 0 || (uint32_t)a->id >= t->h.n_tokens ||
                !utf8_ok(t->text + a->text, a->size))
                return damaged(e, "an added token is out of range");
        }
    }
    for (uint32_t i = 0; i < t->h.n_prefix + t->h.n_suffix + t->h.n_eos; i++)
        if (t->prefix[i] < 0 || (uint32_t)t->prefix[i] >= t->h.n_tokens)
            return damaged(e, "an id of the edges is out of range");
    return 0;
}

static int is_regex(uint32_t type)
{
    return type == NORM_REPLACE_REGEX || type == PRE_SPLIT_REGEX || type == DEC_REPLACE_REGEX;
}

static int open_regexes(struct tokenizer *t, struct err *e)
{
    for (int s = 0; s < 3; s++) {
        if (!(t->regex[s] = calloc(t->h.n_ops[s] + 1, sizeof *t->regex[s])))
            return err_nomem(e, "regular expressions");
        for (uint32_t i = 0; i < t->h.n_ops[s]; i++) {
            const struct tokb_op *op = &t->op[s][i];
            if (!is_regex(op->type))
                continue;
            t->uses_regex = 1;
            if (!(t->regex[s][i] = regex_open(t->text + op->a, op->a_size, e)))
                return -1;
        }
    }
    return 0;
}

struct tokenizer *tokenizer_open(const void *blob, size_t size, struct err *e)
{
    const char *b = blob;
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t) {
        err_nomem(e, "a tokenizer");
        return NULL;
    }
    if ((uintptr_t)blob % 8 || size < sizeof t->h) {
        damaged(e, size < sizeof t->h ? "cut short" : "not aligned");
        free(t);
        return NULL;
    }
    memcpy(&t->h, blob, sizeof t->h);
    const struct tokb_header *h = &t->h;
    if (check_header(h, size, e)) {
        free(t);
        return NULL;
    }
#define AT(i) ((const void *)(b + h->section[i].offset))
    t->text = AT(TOKB_TEXT);
    t->tokens = AT(TOKB_TOKENS);
    t->n_token_bytes = (size_t)h->section[TOKB_TOKENS].size;
    t->offsets = AT(TOKB_OFFSETS);
    t->flags = AT(TOKB_FLAGS);
    t->pairs = AT(TOKB_PAIRS);
    t->vocab = AT(TOKB_VOCAB);
    t->merges = AT(TOKB_MERGES);
    t->scores = AT(TOKB_SCORES);
    t->chars = AT(TOKB_CHAR_IDS);
    t->bytes = AT(TOKB_BYTES);
    t->added[0] = AT(TOKB_ADDED);
    t->added[1] = t->added[0] + h->n_added[0];
    t->added_first[0] = AT(TOKB_ADDED_FIRST);
    t->added_first[1] = t->added_first[0] + 257;
    t->op[0] = AT(TOKB_OPS);
    t->op[1] = t->op[0] + h->n_ops[0];
    t->op[2] = t->op[1] + h->n_ops[1];
    t->prefix = AT(TOKB_EDGES);
    t->suffix = t->prefix + h->n_prefix;
    t->eos = t->suffix + h->n_suffix;
#undef AT
    if (tokb_checksum(h, t->op[0], (size_t)h->section[TOKB_OPS].size, t->text, (size_t)h->section[TOKB_TEXT].size) !=
        h->checksum) {
        damaged(e, "checksum does not match");
        tokenizer_close(t);
        return NULL;
    }
    if (check_ops(t, e) || check_added(t, e) || open_regexes(t, e)) {
        tokenizer_close(t);
        return NULL;
    }
    return t;
}

void tokenizer_close(struct tokenizer *t)
{
    if (!t)
        return;
    for (int s = 0; s < 3; s++) {
        for (uint32_t i = 0; t->regex[s] && i < t->h.n_ops[s]; i++)
            regex_close(t->regex[s][i]);
        free(t->regex[s]);
    }
    free(t);
}

/* ---- encoding ---- */

/* A word that came before, and where its ids are in the output. */
struct seen_word { uint32_t hash, generation; int whole; size_t at, n, ids, n_ids; };
enum { SEEN = 4096, SEEN_FROM = 2048 /* bytes of text worth a table */, SEEN_LONGEST = 128 };

struct encoding {
    const struct tokenizer *t;
    unsigned flags;
    struct tok_ids ids;
    struct tbuf norm, word, work;
    struct pieces pieces, spare;
    struct regex_scratch *regex;
    struct model_work model;
    struct seen_word *seen;
    uint32_t generation;
    struct err *e;
};

/* whole: 0 if these n bytes are a part of a longer word that was cut. */
static int add_word(struct encoding *x, size_t at, size_t n, int whole)
{
    const char *s = x->word.p + at;
    struct seen_word *seen = NULL;
    if (x->seen && n <= SEEN_LONGEST) {
        uint64_t h = TOK_HASH_START;
        for (size_t k = 0; k < n; k++)
            h = tok_hash_step(h, (unsigned char)s[k]);
        uint32_t hash = tok_hash_end(h);
        seen = &x->seen[hash % SEEN];
        if (seen->generation == x->generation && seen->hash == hash && seen->whole == whole && seen->n == n &&
            !memcmp(x->word.p + seen->at, s, n)) {
            for (size_t k = 0; k < seen->n_ids; k++)
                tok_ids_add(&x->ids, x->ids.p[seen->ids + k]);
            return 0;
        }
        *seen = (struct seen_word){ hash, x->generation, whole, at, n, x->ids.n, 0 };
    }
    size_t before = x->ids.n;
    if (model_word(x->t, &x->model, s, n, whole, &x->ids, x->e))
        return -1;
    if (seen)
        seen->n_ids = x->ids.n - before;
    return 0;
}

static int add_words(struct encoding *x)
{
    const struct tokenizer *t = x->t;
    x->generation++;
    for (size_t i = 0; i < x->pieces.n; i++) {
        const struct pretok_piece *p = &x->pieces.p[i];
        const unsigned char *s = (const unsigned char *)x->word.p + p->at;
        size_t done = 0;
        /* Cut between two bytes that no token contains next to each other.  A word that is a token
         * has no such place. */
        for (size_t k = 1; t->h.flags & MODEL_CUTS && k < p->n; k++) {
            if ((s[k] & 0xC0) == 0x80 || t->pairs[s[k - 1] * 32 + s[k] / 8] >> s[k] % 8 & 1)
                continue;
            if (add_word(x, p->at + done, k - done, 0))
                return -1;
            done = k;
        }
        if (add_word(x, p->at + done, p->n - done, done == 0))
            return -1;
    }
    return 0;
}

/* Append the ids of normalized text that contains no added tokens. */
static int add_text(struct encoding *x, const char *s, size_t n, int at_start)
{
    const struct tokenizer *t = x->t;
    x->word.n = 0;
    tbuf_add(&x->word, s, n);
    if (x->word.failed)
        return err_nomem(x->e, "words of the text");
    if (pretok_run(t->op[1], t->h.n_ops[1], t->text, t->regex[1], x->regex, &x->word, &x->work, at_start, &x->pieces,
                   &x->spare, x->e))
        return -1;
    return add_words(x);
}

static int pattern_byte(const struct tokenizer *t, const struct tokb_added *a, size_t i)
{
    return i < a->size ? (unsigned char)t->text[a->text + i] : -1;
}

/* The longest added token that begins at s[0], NULL if none does. */
static const struct tokb_added *added_at(const struct tokenizer *t, int half, const char *s, size_t n)
{
    const struct tokb_added *a = t->added[half], *best = NULL;
    uint32_t lo = t->added_first[half][(unsigned char)*s], hi = t->added_first[half][(unsigned char)*s + 1];
    /* [lo, hi): the tokens that begin with s[0..depth). */
    for (size_t depth = 1; lo < hi; depth++) {
        if (a[lo].size == depth)
            best = &a[lo++];
        if (depth == n)
            break;
        int c = (unsigned char)s[depth];
        uint32_t l = lo, r = hi;
        while (l < r) {
            uint32_t m = l + (r - l) / 2;
            if (pattern_byte(t, &a[m], depth) < c)
                l = m + 1;
            else
                r = m;
        }
        lo = l;
        r = hi;
        while (l < r) {
            uint32_t m = l + (r - l) / 2;
            if (pattern_byte(t, &a[m], depth) <= c)
                l = m + 1;
            else
                r = m;
        }
        hi = l;
    }
    return best;
}

/* Calls `gap` for text between added tokens and appends the ids of the tokens, leftmost-longest. */
static int split_added(struct encoding *x, int half, const char *s, size_t n, int at_start,
                       int (*gap)(struct encoding *, const char *, size_t, int))
{
    const struct tokenizer *t = x->t;
    const uint32_t *first = t->added_first[half];
    size_t done = 0;
    int len;
    for (size_t i = 0; t->h.n_added[half] && i < n;) {
        unsigned char c = (unsigned char)s[i];
        const struct tokb_added *a = first[c] < first[c + 1] ? added_at(t, half, s + i, n - i) : NULL;
        if (!a) {
            i++;
            continue;
        }
        size_t begin = i, end = i + a->size;
        i = end;
        if (a->flags & ADDED_SPECIAL && !(x->flags & TOKENIZE_PARSE_SPECIAL))
            continue;
        if (a->flags & ADDED_SINGLE_WORD &&
            ((begin && text_is_word(text_prev(s, begin, &len))) || (end < n && text_is_word(text_next(s + end, &len)))))
            continue;
        while (a->flags & ADDED_LSTRIP && begin > done && text_is_space(text_prev(s, begin, &len)))
            begin -= (size_t)len;
        while (a->flags & ADDED_RSTRIP && end < n && text_is_space(text_next(s + end, &len)))
            end += (size_t)len;
        if (begin > done && gap(x, s + done, begin - done, at_start && done == 0))
            return -1;
        tok_ids_add(&x->ids, a->id);
        done = end;
    }
    return done < n ? gap(x, s + done, n - done, at_start && done == 0) : 0;
}

static int normalize_and_add(struct encoding *x, const char *s, size_t n, int at_start)
{
    const struct tokenizer *t = x->t;
    x->norm.n = 0;
    tbuf_add(&x->norm, s, n);
    if (norm_text(t->op[0], t->h.n_ops[0], t->text, t->regex[0], &x->norm, x->e))
        return -1;
    return split_added(x, 1, x->norm.p, x->norm.n, at_start, add_text);
}

int tokenizer_encode(const struct tokenizer *t, const char *text, size_t size, unsigned flags, int32_t **ids,
                     size_t *n_ids, struct err *e)
{
    struct encoding x = { .t = t, .flags = flags, .e = e };
    struct tbuf clean = { 0 };
    int rc = -1;
    if (utf8_valid(text, size) != size) {
        text_sanitize(&clean, text, size, 0);
        text = clean.p;
        size = clean.n;
    }
    if (clean.failed || (t->uses_regex && !(x.regex = regex_scratch_open()))) {
        err_nomem(e, "encoding a text");
        goto done;
    }
    if (size >= SEEN_FROM)
        x.seen = calloc(SEEN, sizeof *x.seen);      /* without it, slower */
    tok_ids_add(&x.ids, 0);             /* so that there is an array for no ids, too */
    x.ids.n = 0;
    for (uint32_t i = 0; flags & TOKENIZE_ADD_SPECIAL && i < t->h.n_prefix; i++)
        tok_ids_add(&x.ids, t->prefix[i]);
    if (split_added(&x, 0, text, size, 1, normalize_and_add))
        goto done;
    for (uint32_t i = 0; flags & TOKENIZE_ADD_SPECIAL && i < t->h.n_suffix; i++)
        tok_ids_add(&x.ids, t->suffix[i]);
    if (x.ids.failed) {
        err_nomem(e, "ids of a text");
        goto done;
    }
    *ids = x.ids.p;
    *n_ids = x.ids.n;
    x.ids.p = NULL;
    rc = 0;
done:
    free(x.ids.p);
    free(x.seen);
    regex_scratch_close(x.regex);
    model_work_release(&x.model);
    pieces_release(&x.pieces);
    pieces_release(&x.spare);
    tbuf_release(&x.norm);
    tbuf_release(&x.word);
    tbuf_release(&x.work);
    tbuf_release(&clean);
    return rc;
}

/* ---- questions ---- */

int tokenizer_vocab_size(const struct tokenizer *t) { return (int)t->h.n_tokens; }
int32_t tokenizer_bos(const struct tokenizer *t) { return t->h.bos; }

const int32_t *tokenizer_prefix(const struct tokenizer *t, int *n)
{
    *n = (int)t->h.n_prefix;
    return t->prefix;
}

const int32_t *tokenizer_suffix(const struct tokenizer *t, int *n)
{
    *n = (int)t->h.n_suffix;
    return t->suffix;
}

const int32_t *tokenizer_eos(const struct tokenizer *t, int *n)
{
    *n = (int)t->h.n_eos;
    return t->eos;
}

int tokenizer_is_special(const struct tokenizer *t, int32_t id)
{
    return id >= 0 && (uint32_t)id < t->h.n_tokens && t->flags[id] & TOKEN_SPECIAL;
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t size)
{
    const struct tokb_added *a = size ? added_at(t, 0, text, size) : NULL;
    if (a && a->size == size)
        return a->id;
    if (t->h.n_added[1] && size) {      /* these patterns are normalized */
        struct tbuf norm = { 0 };
        struct err ignored;
        int32_t id = -1;
        tbuf_add(&norm, text, size);
        if (!norm.failed && utf8_valid(text, size) == size &&
            !norm_text(t->op[0], t->h.n_ops[0], t->text, t->regex[0], &norm, &ignored) && norm.n &&
            (a = added_at(t, 1, norm.p, norm.n)) && a->size == norm.n)
            id = a->id;
        tbuf_release(&norm);
        if (id >= 0)
            return id;
    }
    return tok_lookup_text(t, text, size);
}

const char *tokenizer_token(const struct tokenizer *t, int32_t id, size_t *size)
{
    *size = 0;
    if (id < 0 || (uint32_t)id >= t->h.n_tokens || !(t->flags[id] & TOKEN_USED))
        return NULL;
    uint32_t b = t->offsets[id], end = t->offsets[id + 1];
    if (end < b || end > t->n_token_bytes)
        return NULL;
    *size = end - b;
    return t->tokens + b;
}

const char *tokenizer_kind(const struct tokenizer *t)
{
    switch (t->h.model) {
    case MODEL_UNIGRAM: return "unigram";
    case MODEL_WORDPIECE: return "wordpiece";
    case MODEL_WORDLEVEL: return "wordlevel";
    default: return t->h.flags & MODEL_BYTE_FALLBACK ? "bpe-fallback" : "bpe";
    }
}
