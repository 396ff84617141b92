/* tok_pack.c - lay the parts of a tokenizer out as one block (tokenizer_blob.h). */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"
#include "libcommon/token/tok_norm.h"
#include "libcommon/token/tok_spec.h"

/* The lists of the block that struct tok_spec lacks or has in another form. */
struct tables {
    struct tokb_op ops[TOKB_MAX_OPS];
    struct tokb_added *added;
    struct tokb_merge *merges;
    uint32_t first[2][257];
    int32_t chars[TOKB_CHARS], bytes[256];
    uint8_t pairs[8192];
    struct tbuf text;
};

/* An added token while the block is made: its pattern is a copy, because it may be normalized. */
struct pattern { struct tbuf text; const struct spec_added *a; uint32_t order; int half; };

static int by_pattern(const void *pa, const void *pb)
{
    const struct pattern *a = pa, *b = pb;
    if (a->half != b->half)
        return a->half - b->half;
    size_t n = a->text.n < b->text.n ? a->text.n : b->text.n;
    int c = n ? memcmp(a->text.p, b->text.p, n) : 0;
    if (c)
        return c;
    if (a->text.n != b->text.n)
        return a->text.n < b->text.n ? -1 : 1;
    /* of equal texts the special token wins, then the first */
    int special = (int)(b->a->flags & ADDED_SPECIAL) - (int)(a->a->flags & ADDED_SPECIAL);
    return special ? special : a->order < b->order ? -1 : 1;
}

static int pack_added(struct tok_spec *s, struct tokb_header *h, struct tokb_added **out, uint32_t first[2][257],
                      struct err *e)
{
    uint32_t n = s->n_added, kept = 0;
    struct pattern *p = calloc(n ? n : 1, sizeof *p);
    struct tokb_added *added = calloc(n ? n : 1, sizeof *added);
    struct tokb_op *norm = s->op[SPEC_NORM];
    int rc = -1;
    if (!p || !added) {
        err_nomem(e, "added tokens");
        goto done;
    }
    for (uint32_t i = 0; i < n; i++) {
        const struct spec_added *a = &s->added[i];
        p[i].a = a;
        p[i].order = i;
        p[i].half = a->normalized != 0;
        if (a->normalized == ADDED_ESCAPED)
            norm_replace(&p[i].text, s->text.p + a->str.at, a->str.size, " ", 1, "\xE2\x96\x81", 3);
        else
            tbuf_add(&p[i].text, s->text.p + a->str.at, a->str.size);
        if (a->normalized == ADDED_NORMALIZED && norm_text(norm, s->n_ops[SPEC_NORM], s->text.p, NULL, &p[i].text, e))
            goto done;
        if (p[i].text.failed) {
            err_nomem(e, "added tokens");
            goto done;
        }
    }
    qsort(p, n, sizeof *p, by_pattern);
    h->n_added[0] = h->n_added[1] = 0;
    uint32_t at[2] = { 0, 0 };
    for (uint32_t i = 0; i < n; i++) {
        int half = p[i].half;
        if (p[i].text.n == 0 || (i && p[i - 1].half == half && p[i - 1].text.n == p[i].text.n &&
                                 !memcmp(p[i - 1].text.p, p[i].text.p, p[i].text.n)))
            continue;
        struct spec_str str = tok_spec_str(s, p[i].text.p, p[i].text.n);
        const struct spec_str *own = &s->token[p[i].a->id].str;
        if (p[i].a->normalized == ADDED_NORMALIZED &&
            (own->size != str.size || memcmp(s->text.p + own->at, p[i].text.p, str.size)))
            s->token[p[i].a->id].flags |= TOKEN_NORMALIZED;
        added[kept++] = (struct tokb_added){ str.at, str.size, p[i].a->id, p[i].a->flags };
        for (unsigned b = (unsigned char)p[i].text.p[0] + 1u; b < 257; b++)
            first[half][b]++;
        at[half]++;
    }
    h->n_added[0] = at[0];
    h->n_added[1] = at[1];
    *out = added;
    added = NULL;
    rc = s->text.failed ? err_nomem(e, "added tokens") : 0;
done:
    for (uint32_t i = 0; p && i < n; i++)
        tbuf_release(&p[i].text);
    free(p);
    free(added);
    return rc;
}

static struct tokb_merge *pack_merges(const struct tok_spec *s, struct tokb_header *h, struct err *e)
{
    uint32_t n = s->n_merges + s->n_merges / 2 + 1;
    struct tokb_merge *m = malloc(n * sizeof *m);
    if (!m) {
        err_nomem(e, "the table of merges");
        return NULL;
    }
    memset(m, 0xFF, n * sizeof *m);
    h->n_merge_slots = n;
    for (uint32_t i = 0; i < s->n_merges; i++) {
        uint32_t at = tok_merge_slot(s->merge[i].left, s->merge[i].right, n), steps = 1;
        while (m[at].left != TOKB_EMPTY && (m[at].left != s->merge[i].left || m[at].right != s->merge[i].right)) {
            at = at + 1 == n ? 0 : at + 1;
            steps++;
        }
        /* of equal pairs the last rank counts, as in the Hugging Face library */
        m[at] = s->merge[i];
        if (steps > h->merge_probes)
            h->merge_probes = steps;
    }
    return m;
}

static void accelerators(const struct tok_spec *s, int32_t chars[TOKB_CHARS], int32_t bytes[256])
{
    for (uint32_t c = 0; c < TOKB_CHARS; c++) {
        char b[4];
        chars[c] = tok_spec_find(s, b, (size_t)utf8_encode(c, b));
    }
    for (unsigned i = 0; i < 256; i++) {
        char name[7];
        static const char hex[] = "0123456789ABCDEF";
        memcpy(name, "<0x00>", 7);
        name[3] = hex[i >> 4];
        name[4] = hex[i & 15];
        bytes[i] = tok_spec_find(s, name, 6);
    }
}

/* 1 if a word may be cut between two bytes that no token contains next to each other.  This needs
 * each character to give the same symbols whatever is next to it: all bytes have tokens, and no
 * merge uses such a byte token by its name "<0x..>". */
static int may_cut(const struct tok_spec *s, const int32_t chars[TOKB_CHARS], const int32_t bytes[256])
{
    if ((s->model != MODEL_BPE && s->model != MODEL_BPE_SCORE) || s->next_prefix.size || s->end_suffix.size)
        return 0;
    int all_bytes = (s->flags & MODEL_BYTE_FALLBACK) != 0, all_chars = 1;
    for (unsigned i = 0; i < 256; i++) {
        all_bytes &= bytes[i] >= 0;
        all_chars &= chars[text_byte_char((unsigned char)i)] >= 0;
    }
    for (uint32_t i = 0; all_bytes && i < s->n_merges; i++)
        for (int side = 0; side < 2; side++) {
            const struct spec_token *t = &s->token[side ? s->merge[i].right : s->merge[i].left];
            all_bytes &= t->str.size != 6 || memcmp(s->text.p + t->str.at, "<0x", 3);
        }
    uint32_t n = s->n_ops[SPEC_PRE], m = s->n_ops[SPEC_NORM];
    int byte_level = (n && s->op[SPEC_PRE][n - 1].type == PRE_BYTES) ||
                     (m && s->op[SPEC_NORM][m - 1].type == NORM_BYTES);
    return all_bytes || (all_chars && byte_level);
}

static void byte_pairs(const struct tok_spec *s, uint8_t pairs[8192])
{
    for (uint32_t i = 0; i < s->n_tokens; i++) {
        const unsigned char *p = (const unsigned char *)s->text.p + s->token[i].str.at;
        for (uint32_t k = 1; s->token[i].in_vocab && k < s->token[i].str.size; k++)
            pairs[p[k - 1] * 32 + p[k] / 8] |= (uint8_t)(1 << p[k] % 8);
    }
}

static void *section(char *blob, struct tokb_header *h, enum tokb_section i, const void *data, size_t n, size_t *at)
{
    h->section[i].offset = *at;
    h->section[i].size = n;
    if (blob && n && data)
        memcpy(blob + *at, data, n);
    void *where = blob ? blob + *at : NULL;
    *at += (n + 7) & ~(size_t)7;
    return where;
}

static uint32_t fnv32(uint32_t h, const void *p, size_t n)
{
    const unsigned char *c = p;
    for (size_t i = 0; i < n; i++)
        h = (h ^ c[i]) * 0x01000193u;
    return h;
}

uint32_t tokb_checksum(const struct tokb_header *h, const void *ops, size_t n_ops, const void *text, size_t n_text)
{
    struct tokb_header copy = *h;
    copy.checksum = 0;
    return fnv32(fnv32(fnv32(0x811c9dc5u, &copy, sizeof copy), ops, n_ops), text, n_text);
}

static int check_ids(const struct tok_spec *s, const int32_t *id, uint32_t n, const char *what, struct err *e)
{
    for (uint32_t i = 0; i < n; i++)
        if (id[i] < 0 || (uint32_t)id[i] >= s->n_tokens)
            return err_set(e, ERR_FORMAT, "tokenizer: %s id %d, but the vocabulary has %u ids", what, id[i],
                           s->n_tokens);
    return 0;
}

/* Keep only the texts of the steps, the prefixes and the added tokens; those of the tokens have
 * a section of their own. */
static void collect_text(const struct tok_spec *s, struct tokb_header *h, struct tokb_op *ops, struct tokb_added *added,
                         struct tbuf *text)
{
#define KEEP(at, size) do { uint32_t kept = (uint32_t)text->n; tbuf_add(text, s->text.p + (at), (size)); (at) = kept; \
                       } while (0)
    KEEP(h->word_prefix, h->word_prefix_size);
    KEEP(h->next_prefix, h->next_prefix_size);
    KEEP(h->end_suffix, h->end_suffix_size);
    for (int i = 0, k = 0; i < 3; i++)
        for (uint32_t j = 0; j < s->n_ops[i]; j++, k++) {
            ops[k] = s->op[i][j];
            KEEP(ops[k].a, ops[k].a_size);
            KEEP(ops[k].b, ops[k].b_size);
        }
    for (uint32_t i = 0; i < h->n_added[0] + h->n_added[1]; i++)
        KEEP(added[i].text, added[i].size);
#undef KEEP
}

static void fill_header(const struct tok_spec *s, struct tokb_header *h, const struct tables *t)
{
    h->model = s->model;
    h->flags = s->flags | (s->n_prefix && s->prefix[0] == s->bos ? MODEL_ADDS_BOS : 0u) |
               (may_cut(s, t->chars, t->bytes) ? MODEL_CUTS : 0u);
    h->n_tokens = s->n_tokens;
    h->n_vocab_slots = s->n_slots;
    h->vocab_probes = s->probes;
    h->max_token_size = s->max_size;
    h->bos = s->bos, h->unk = s->unk, h->pad = s->pad;
    h->n_prefix = s->n_prefix, h->n_suffix = s->n_suffix, h->n_eos = s->n_eos;
    h->word_prefix = s->word_prefix.at, h->word_prefix_size = s->word_prefix.size;
    h->next_prefix = s->next_prefix.at, h->next_prefix_size = s->next_prefix.size;
    h->end_suffix = s->end_suffix.at, h->end_suffix_size = s->end_suffix.size;
    h->max_word_chars = s->max_word_chars;
    h->unk_score = s->unk_score;
    for (int i = 0; i < 3; i++)
        h->n_ops[i] = s->n_ops[i];
}

/* Places the sections and, if out is not NULL, writes them.  Returns the size of the block. */
static size_t lay_out(const struct tok_spec *s, struct tokb_header *h, const struct tables *t, size_t n_token_bytes,
                      char *out)
{
    size_t at = (sizeof *h + 7) & ~(size_t)7, n_edges = (size_t)s->n_prefix + s->n_suffix + s->n_eos;
    int scored = s->model == MODEL_UNIGRAM || s->model == MODEL_BPE_SCORE;
    section(out, h, TOKB_TEXT, t->text.p, t->text.n, &at);
    section(out, h, TOKB_OPS, t->ops, (h->n_ops[0] + h->n_ops[1] + h->n_ops[2]) * sizeof *t->ops, &at);
    section(out, h, TOKB_ADDED, t->added, (h->n_added[0] + h->n_added[1]) * sizeof *t->added, &at);
    section(out, h, TOKB_ADDED_FIRST, t->first, sizeof t->first, &at);
    int32_t *edges = section(out, h, TOKB_EDGES, NULL, n_edges * sizeof *edges, &at);
    section(out, h, TOKB_CHAR_IDS, t->chars, sizeof t->chars, &at);
    section(out, h, TOKB_BYTES, t->bytes, sizeof t->bytes, &at);
    section(out, h, TOKB_PAIRS, t->pairs, sizeof t->pairs, &at);
    uint8_t *flags = section(out, h, TOKB_FLAGS, NULL, s->n_tokens, &at);
    uint32_t *offsets = section(out, h, TOKB_OFFSETS, NULL, (s->n_tokens + 1) * sizeof *offsets, &at);
    char *tokens = section(out, h, TOKB_TOKENS, NULL, n_token_bytes, &at);
    section(out, h, TOKB_VOCAB, s->slots, s->n_slots * sizeof *s->slots, &at);
    section(out, h, TOKB_MERGES, t->merges, h->n_merge_slots * sizeof *t->merges, &at);
    double *scores = section(out, h, TOKB_SCORES, NULL, scored ? s->n_tokens * sizeof *scores : 0, &at);
    h->size = at;
    if (!out)
        return at;
    for (uint32_t i = 0; i < n_edges; i++)
        edges[i] = i < s->n_prefix ? s->prefix[i] : i < s->n_prefix + s->n_suffix
                       ? s->suffix[i - s->n_prefix] : s->eos[i - s->n_prefix - s->n_suffix];
    size_t n = 0;
    for (uint32_t i = 0; i < s->n_tokens; i++) {
        offsets[i] = (uint32_t)n;
        flags[i] = s->token[i].flags;
        if (s->token[i].str.size)
            memcpy(tokens + n, s->text.p + s->token[i].str.at, s->token[i].str.size);
        n += s->token[i].str.size;
        if (scored)
            scores[i] = s->token[i].score;
    }
    offsets[s->n_tokens] = (uint32_t)n;
    h->checksum = tokb_checksum(h, t->ops, (size_t)h->section[TOKB_OPS].size, t->text.p, t->text.n);
    memcpy(out, h, sizeof *h);
    return at;
}

int tok_spec_pack(struct tok_spec *s, void **blob, size_t *size, struct err *e)
{
    struct tokb_header h = { .magic = "TOKB", .version = TOKB_VERSION };
    struct tables *t = calloc(1, sizeof *t);
    size_t n_token_bytes = 0;
    int rc = -1;
    if (!t)
        return err_nomem(e, "the tokenizer");
    if (!s->n_tokens) {
        err_set(e, ERR_FORMAT, "tokenizer: no tokens");
        goto done;
    }
    if (check_ids(s, s->prefix, s->n_prefix, "prefix", e) || check_ids(s, s->suffix, s->n_suffix, "suffix", e) ||
        check_ids(s, s->eos, s->n_eos, "EOS", e) || (!s->slots && tok_spec_index(s, e)) ||
        pack_added(s, &h, &t->added, t->first, e) || !(t->merges = pack_merges(s, &h, e)))
        goto done;
    accelerators(s, t->chars, t->bytes);
    byte_pairs(s, t->pairs);
    fill_header(s, &h, t);
    collect_text(s, &h, t->ops, t->added, &t->text);
    for (uint32_t i = 0; i < s->n_tokens; i++)
        n_token_bytes += s->token[i].str.size;
    *size = lay_out(s, &h, t, n_token_bytes, NULL);
    if (t->text.failed || n_token_bytes > UINT32_MAX || !(*blob = calloc(1, *size))) {
        err_nomem(e, "the tokenizer");
        goto done;
    }
    lay_out(s, &h, t, n_token_bytes, *blob);
    rc = 0;
done:
    tbuf_release(&t->text);
    free(t->added);
    free(t->merges);
    free(t);
    return rc;
}
