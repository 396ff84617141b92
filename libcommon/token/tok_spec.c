/* tok_spec.c - collect the parts of a tokenizer and lay them out as one block (tokenizer_blob.h). */
#include "libcommon/token/tok_spec.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"
#include "libcommon/token/tok_norm.h"
#include "libcommon/token/tok_regex.h"

const char tok_gpt2_regex[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

void tok_spec_init(struct tok_spec *s)
{
    memset(s, 0, sizeof *s);
    s->bos = s->unk = s->pad = -1;
}

void tok_spec_release(struct tok_spec *s)
{
    tbuf_release(&s->text);
    free(s->token);
    free(s->merge);
    free(s->added);
    for (int i = 0; i < 3; i++)
        free(s->op[i]);
    free(s->prefix);
    free(s->suffix);
    free(s->eos);
    free(s->slots);
    memset(s, 0, sizeof *s);
}

struct spec_str tok_spec_str(struct tok_spec *s, const char *p, size_t n)
{
    struct spec_str r = { (uint32_t)s->text.n, (uint32_t)n };
    if (n > INT32_MAX || s->text.n > INT32_MAX - n)
        s->text.failed = 1;             /* offsets are 32 bits */
    tbuf_add(&s->text, p, n);
    return r;
}

static int grow(void **p, uint32_t *room, uint32_t need, size_t item, struct err *e)
{
    if (need <= *room)
        return 0;
    uint32_t more = *room ? *room : 256;
    while (more < need)
        more *= 2;
    void *q = realloc(*p, more * item);
    if (!q)
        return err_nomem(e, "tokenizer tables");
    memset((char *)q + *room * item, 0, (more - *room) * item);
    *p = q;
    *room = more;
    return 0;
}

int tok_spec_token(struct tok_spec *s, int64_t id, const char *p, size_t n, double score, int flags, int in_vocab, struct err *e)
{
    if (id < 0 || id >= TOKB_MAX_IDS)
        return err_set(e, ERR_FORMAT, "token '%.*s': id %lld, expected 0 to %d", n > 100 ? 100 : (int)n, p, (long long)id, TOKB_MAX_IDS - 1);
    if (grow((void **)&s->token, &s->token_room, (uint32_t)id + 1, sizeof *s->token, e))
        return -1;
    if ((uint32_t)id >= s->n_tokens)
        s->n_tokens = (uint32_t)id + 1;
    struct spec_token *t = &s->token[id];
    t->str = tok_spec_str(s, p, n);
    t->score = score;
    t->flags = (uint8_t)(flags | TOKEN_USED);
    t->in_vocab = (uint8_t)in_vocab;
    return s->text.failed ? err_nomem(e, "tokenizer texts") : 0;
}

static uint32_t hash_of(const char *p, size_t n)
{
    uint64_t h = TOK_HASH_START;
    for (size_t i = 0; i < n; i++)
        h = tok_hash_step(h, (unsigned char)p[i]);
    return tok_hash_end(h);
}

int tok_spec_index(struct tok_spec *s, struct err *e)
{
    uint32_t n = 16;
    while (n < s->n_tokens * 2u)
        n *= 2;
    free(s->slots);
    s->slots = malloc(n * sizeof *s->slots);
    if (!s->slots)
        return err_nomem(e, "the vocabulary's table");
    memset(s->slots, 0xFF, n * sizeof *s->slots);
    s->n_slots = n;
    s->probes = s->max_size = 0;
    for (uint32_t id = 0; id < s->n_tokens; id++) {
        const struct spec_token *t = &s->token[id];
        if (!t->in_vocab)
            continue;
        const char *p = s->text.p + t->str.at;
        uint32_t h = hash_of(p, t->str.size), at = h & (n - 1), steps = 1;
        while (s->slots[at].id != TOKB_EMPTY) {
            const struct spec_token *u = &s->token[s->slots[at].id];
            if (s->slots[at].hash == h && u->str.size == t->str.size && !memcmp(s->text.p + u->str.at, p, t->str.size))
                break;                  /* the same text twice: the first id counts */
            at = (at + 1) & (n - 1);
            steps++;
        }
        if (s->slots[at].id == TOKB_EMPTY)
            s->slots[at] = (struct tokb_slot){ h, id };
        if (steps > s->probes)
            s->probes = steps;
        if (t->str.size > s->max_size)
            s->max_size = t->str.size;
    }
    return 0;
}

int32_t tok_spec_find(const struct tok_spec *s, const char *p, size_t n)
{
    uint32_t h = hash_of(p, n);
    for (uint32_t at = h & (s->n_slots - 1); s->n_slots && s->slots[at].id != TOKB_EMPTY; at = (at + 1) & (s->n_slots - 1)) {
        const struct spec_token *t = &s->token[s->slots[at].id];
        if (s->slots[at].hash == h && t->str.size == n && !memcmp(s->text.p + t->str.at, p, n))
            return (int32_t)s->slots[at].id;
    }
    return -1;
}

int tok_spec_merge(struct tok_spec *s, const char *left, size_t n_left, const char *right, size_t n_right, size_t cut, struct err *e)
{
    if (cut > n_right)
        cut = n_right;
    int32_t l = tok_spec_find(s, left, n_left), r = tok_spec_find(s, right, n_right), id = -1;
    struct tbuf both = { 0 };
    tbuf_add(&both, left, n_left);
    tbuf_add(&both, right + cut, n_right - cut);
    if (!both.failed)
        id = tok_spec_find(s, both.p ? both.p : "", both.n);
    tbuf_release(&both);
    if (l < 0 || r < 0 || id < 0)
        return 1;
    if (s->n_merges >= INT32_MAX || grow((void **)&s->merge, &s->merge_room, s->n_merges + 1, sizeof *s->merge, e))
        return -1;
    s->merge[s->n_merges] = (struct tokb_merge){ (uint32_t)l, (uint32_t)r, s->n_merges, (uint32_t)id };
    s->n_merges++;
    return 0;
}

int tok_spec_added(struct tok_spec *s, const char *p, size_t n, int32_t id, uint32_t flags, int normalized, struct err *e)
{
    if (n == 0 || utf8_valid(p, n) != n)    /* texts are UTF-8: nothing else is found in them */
        return 0;
    if (grow((void **)&s->added, &s->added_room, s->n_added + 1, sizeof *s->added, e))
        return -1;
    s->added[s->n_added++] = (struct spec_added){ tok_spec_str(s, p, n), id, flags, normalized };
    return s->text.failed ? err_nomem(e, "added tokens") : 0;
}

int tok_spec_op(struct tok_spec *s, int stage, enum tokb_op_type type, uint32_t number, const char *a, size_t na, const char *b, size_t nb,
                struct err *e)
{
    uint32_t n = s->n_ops[stage];
    if (n >= TOKB_MAX_OPS / 3)
        return err_set(e, ERR_UNSUPPORTED, "tokenizer: more than %d normalizers, pre-tokenizers or decoders", TOKB_MAX_OPS / 3);
    struct tokb_op *op = realloc(s->op[stage], (n + 1) * sizeof *op);
    if (!op)
        return err_nomem(e, "tokenizer steps");
    struct spec_str sa = tok_spec_str(s, a, na), sb = tok_spec_str(s, b, nb);
    op[n] = (struct tokb_op){ type, number, sa.at, sa.size, sb.at, sb.size };
    s->op[stage] = op;
    s->n_ops[stage] = n + 1;
    return s->text.failed ? err_nomem(e, "tokenizer steps") : 0;
}

int tok_spec_op_regex(struct tok_spec *s, int stage, enum tokb_op_type type, uint32_t number, const char *a, size_t na, const char *b, size_t nb,
                      struct err *e)
{
    struct tbuf pattern = { 0 };
    int rc = regex_translate(&pattern, a, na, e);
    if (!rc) {
        struct regex *r = regex_open(pattern.p ? pattern.p : "", pattern.n, e);     /* refuse a bad one now */
        rc = r ? tok_spec_op(s, stage, type, number, pattern.p, pattern.n, b, nb, e) : -1;
        regex_close(r);
    }
    tbuf_release(&pattern);
    return rc;
}

int tok_spec_split(struct tok_spec *s, const char *regex, int behaviour, struct err *e)
{
    return tok_spec_op_regex(s, SPEC_PRE, PRE_SPLIT_REGEX, (uint32_t)behaviour, regex, strlen(regex), NULL, 0, e);
}

int tok_spec_spm_decoders(struct tok_spec *s, int prefix, int unless_skipped, struct err *e)
{
    if (tok_spec_op(s, SPEC_DEC, DEC_REPLACE, 0, "\xE2\x96\x81", 3, " ", 1, e) || tok_spec_op(s, SPEC_DEC, DEC_BYTE_FALLBACK, 0, NULL, 0, NULL, 0, e) ||
        tok_spec_op(s, SPEC_DEC, DEC_FUSE, 0, NULL, 0, NULL, 0, e))
        return -1;
    return prefix ? tok_spec_op(s, SPEC_DEC, DEC_STRIP, 1u | (unless_skipped ? STRIP_UNLESS_SKIPPED : 0), " ", 1, NULL, 0, e) : 0;
}

int tok_spec_id(int32_t **list, uint32_t *n, int32_t id, int first, struct err *e)
{
    if (*n && (*list)[first ? 0 : *n - 1] == id)
        return 0;
    int32_t *p = realloc(*list, (*n + 1) * sizeof *p);
    if (!p)
        return err_nomem(e, "tokenizer ids");
    if (first)
        memmove(p + 1, p, *n * sizeof *p);
    p[first ? 0 : *n] = id;
    *list = p;
    ++*n;
    return 0;
}

int tok_spec_eos(struct tok_spec *s, int32_t id, struct err *e)
{
    for (uint32_t i = 0; i < s->n_eos; i++)
        if (s->eos[i] == id)
            return 0;
    return id < 0 ? 0 : tok_spec_id(&s->eos, &s->n_eos, id, 0, e);
}

/* ---- the block ---- */

/* An added token on its way into the block: pattern bytes are kept apart, as normalizing makes new ones. */
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
    int special = (int)(b->a->flags & ADDED_SPECIAL) - (int)(a->a->flags & ADDED_SPECIAL);     /* of equal ones the special wins, then the first */
    return special ? special : a->order < b->order ? -1 : 1;
}

static int pack_added(struct tok_spec *s, struct tokb_header *h, struct tokb_added **out, uint32_t first[2][257], struct err *e)
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
        if (p[i].text.n == 0 || (i && p[i - 1].half == half && p[i - 1].text.n == p[i].text.n && !memcmp(p[i - 1].text.p, p[i].text.p, p[i].text.n)))
            continue;
        struct spec_str str = tok_spec_str(s, p[i].text.p, p[i].text.n);
        const struct spec_str *own = &s->token[p[i].a->id].str;
        if (p[i].a->normalized == ADDED_NORMALIZED && (own->size != str.size || memcmp(s->text.p + own->at, p[i].text.p, str.size)))
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
        m[at] = s->merge[i];            /* of equal pairs the last rank counts, as in the Hugging Face library */
        if (steps > h->merge_probes)
            h->merge_probes = steps;
    }
    return m;
}

static void accelerators(const struct tok_spec *s, int32_t chars[TOKB_CHARS], int32_t bytes[256])
{
    for (uint32_t c = 0; c < TOKB_CHARS; c++) {
        struct tbuf b = { 0 };
        tbuf_char(&b, c);
        chars[c] = b.failed ? -1 : tok_spec_find(s, b.p, b.n);
        tbuf_release(&b);
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

/* May a word be cut where no token spans?  Only if each character gives symbols of its own whatever stands beside it: all bytes have
 * tokens, and none of these takes part in a merge under a name that is not its text. */
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
    int byte_level = (n && s->op[SPEC_PRE][n - 1].type == PRE_BYTES) || (m && s->op[SPEC_NORM][m - 1].type == NORM_BYTES);
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
            return err_set(e, ERR_FORMAT, "tokenizer: %s id %d, but the vocabulary has %u ids", what, id[i], s->n_tokens);
    return 0;
}

int tok_spec_pack(struct tok_spec *s, void **blob, size_t *size, struct err *e)
{
    struct tokb_header h = { .magic = "TOKB", .version = TOKB_VERSION };
    struct tokb_added *added = NULL;
    struct tokb_merge *merges = NULL;
    uint32_t first[2][257] = { { 0 } };
    int32_t chars[TOKB_CHARS], bytes[256];
    uint8_t pairs[8192] = { 0 };
    char *out = NULL;
    int rc = -1;
    if (!s->n_tokens)
        return err_set(e, ERR_FORMAT, "tokenizer: no tokens");
    if (check_ids(s, s->prefix, s->n_prefix, "prefix", e) || check_ids(s, s->suffix, s->n_suffix, "suffix", e) || check_ids(s, s->eos, s->n_eos, "EOS", e))
        return -1;
    if ((!s->slots && tok_spec_index(s, e)) || pack_added(s, &h, &added, first, e) || !(merges = pack_merges(s, &h, e)))
        goto done;
    accelerators(s, chars, bytes);
    byte_pairs(s, pairs);
    h.model = s->model;
    h.flags = s->flags | (s->n_prefix && s->prefix[0] == s->bos ? MODEL_ADDS_BOS : 0u) | (may_cut(s, chars, bytes) ? MODEL_CUTS : 0u);
    h.n_tokens = s->n_tokens;
    h.n_vocab_slots = s->n_slots;
    h.vocab_probes = s->probes;
    h.max_token_size = s->max_size;
    h.bos = s->bos, h.unk = s->unk, h.pad = s->pad;
    h.n_prefix = s->n_prefix, h.n_suffix = s->n_suffix, h.n_eos = s->n_eos;
    h.word_prefix = s->word_prefix.at, h.word_prefix_size = s->word_prefix.size;
    h.next_prefix = s->next_prefix.at, h.next_prefix_size = s->next_prefix.size;
    h.end_suffix = s->end_suffix.at, h.end_suffix_size = s->end_suffix.size;
    h.max_word_chars = s->max_word_chars;
    h.unk_score = s->unk_score;
    size_t n_token_bytes = 0, n_ops = 0;
    for (uint32_t i = 0; i < s->n_tokens; i++)
        n_token_bytes += s->token[i].str.size;
    for (int i = 0; i < 3; i++)
        n_ops += h.n_ops[i] = s->n_ops[i];
    int scored = s->model == MODEL_UNIGRAM || s->model == MODEL_BPE_SCORE;
    /* Only what the steps and the added tokens name is kept of text; the tokens' texts go to their own section. */
    struct tbuf text = { 0 };
    struct tokb_op ops[TOKB_MAX_OPS];
    uint32_t k = 0;
#define KEEP(field) do { uint32_t keep_at = (uint32_t)text.n; tbuf_add(&text, s->text.p + h.field, h.field##_size); h.field = keep_at; } while (0)
    KEEP(word_prefix);
    KEEP(next_prefix);
    KEEP(end_suffix);
#undef KEEP
    for (int i = 0; i < 3; i++)
        for (uint32_t j = 0; j < s->n_ops[i]; j++) {
            ops[k] = s->op[i][j];
            ops[k].a = (uint32_t)text.n;
            tbuf_add(&text, s->text.p + s->op[i][j].a, ops[k].a_size);
            ops[k].b = (uint32_t)text.n;
            tbuf_add(&text, s->text.p + s->op[i][j].b, ops[k].b_size);
            k++;
        }
    for (uint32_t i = 0; i < h.n_added[0] + h.n_added[1]; i++) {
        uint32_t at = (uint32_t)text.n;
        tbuf_add(&text, s->text.p + added[i].text, added[i].size);
        added[i].text = at;
    }
    for (int pass = 0; pass < 2; pass++) {
        size_t at = (sizeof h + 7) & ~(size_t)7;
        section(out, &h, TOKB_TEXT, text.p, text.n, &at);
        section(out, &h, TOKB_OPS, ops, n_ops * sizeof *ops, &at);
        section(out, &h, TOKB_ADDED, added, (h.n_added[0] + h.n_added[1]) * sizeof *added, &at);
        section(out, &h, TOKB_ADDED_FIRST, first, sizeof first, &at);
        int32_t *edges = section(out, &h, TOKB_EDGES, NULL, (s->n_prefix + s->n_suffix + s->n_eos) * sizeof(int32_t), &at);
        section(out, &h, TOKB_CHAR_IDS, chars, sizeof chars, &at);
        section(out, &h, TOKB_BYTES, bytes, sizeof bytes, &at);
        section(out, &h, TOKB_PAIRS, pairs, sizeof pairs, &at);
        uint8_t *flags = section(out, &h, TOKB_FLAGS, NULL, s->n_tokens, &at);
        uint32_t *offsets = section(out, &h, TOKB_OFFSETS, NULL, (s->n_tokens + 1) * sizeof(uint32_t), &at);
        char *tokens = section(out, &h, TOKB_TOKENS, NULL, n_token_bytes, &at);
        section(out, &h, TOKB_VOCAB, s->slots, s->n_slots * sizeof *s->slots, &at);
        section(out, &h, TOKB_MERGES, merges, h.n_merge_slots * sizeof *merges, &at);
        double *scores = section(out, &h, TOKB_SCORES, NULL, scored ? s->n_tokens * sizeof(double) : 0, &at);
        h.size = at;
        if (!out) {
            if (text.failed || n_token_bytes > UINT32_MAX || !(out = calloc(1, at))) {
                err_nomem(e, "the tokenizer");
                break;
            }
            continue;
        }
        for (uint32_t i = 0; i < s->n_prefix + s->n_suffix + s->n_eos; i++)
            edges[i] = i < s->n_prefix ? s->prefix[i] : i < s->n_prefix + s->n_suffix ? s->suffix[i - s->n_prefix] : s->eos[i - s->n_prefix - s->n_suffix];
        size_t t = 0;
        for (uint32_t i = 0; i < s->n_tokens; i++) {
            offsets[i] = (uint32_t)t;
            flags[i] = s->token[i].flags;
            if (s->token[i].str.size)
                memcpy(tokens + t, s->text.p + s->token[i].str.at, s->token[i].str.size);
            t += s->token[i].str.size;
            if (scored)
                scores[i] = s->token[i].score;
        }
        offsets[s->n_tokens] = (uint32_t)t;
        h.checksum = tokb_checksum(&h, ops, n_ops * sizeof *ops, text.p, text.n);
        memcpy(out, &h, sizeof h);
        *blob = out;
        *size = at;
        rc = 0;
    }
    tbuf_release(&text);
done:
    free(added);
    free(merges);
    return rc;
}
