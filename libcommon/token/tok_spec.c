/* tok_spec.c - collect the parts of a tokenizer. */
#include "libcommon/token/tok_spec.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"
#include "libcommon/token/tok_regex.h"

const char tok_gpt2_regex[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

void tok_spec_init(struct tok_spec *s)
{
    memset(s, 0, sizeof *s);
    s->bos = s->unk = s->pad = -1;
    /* Allocate the text, so that it is not NULL.  A failure is reported when the first text is
     * added. */
    tbuf_reserve(&s->text, 1);
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

int tok_spec_token(struct tok_spec *s, int64_t id, const char *p, size_t n, double score, int flags, int in_vocab,
                   struct err *e)
{
    if (id < 0 || id >= TOKB_MAX_IDS)
        return err_set(e, ERR_FORMAT, "token '%.*s': id %lld, expected 0 to %d", n > 100 ? 100 : (int)n, p,
                       (long long)id, TOKB_MAX_IDS - 1);
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
                break;                  /* the same text occurs twice: the first id counts */
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
    for (uint32_t at = h & (s->n_slots - 1); s->n_slots &&
         s->slots[at].id != TOKB_EMPTY; at = (at + 1) & (s->n_slots - 1)) {
        const struct spec_token *t = &s->token[s->slots[at].id];
        if (s->slots[at].hash == h && t->str.size == n && !memcmp(s->text.p + t->str.at, p, n))
            return (int32_t)s->slots[at].id;
    }
    return -1;
}

int tok_spec_merge(struct tok_spec *s, const char *left, size_t n_left, const char *right, size_t n_right, size_t cut,
                   struct err *e)
{
    if (cut > n_right)
        cut = n_right;
    int32_t l = tok_spec_find(s, left, n_left), r = tok_spec_find(s, right, n_right), id = -1;
    struct tbuf both = { 0 };
    tbuf_add(&both, left, n_left);
    tbuf_add(&both, right + cut, n_right - cut);
    const int failed = both.failed;
    if (!failed)
        id = tok_spec_find(s, both.p ? both.p : "", both.n);
    tbuf_release(&both);
    if (failed)
        return err_nomem(e, "tokenizer merges");
    if (l < 0 || r < 0 || id < 0)
        return 1;
    if (s->n_merges >= INT32_MAX || grow((void **)&s->merge, &s->merge_room, s->n_merges + 1, sizeof *s->merge, e))
        return -1;
    s->merge[s->n_merges] = (struct tokb_merge){ (uint32_t)l, (uint32_t)r, s->n_merges, (uint32_t)id };
    s->n_merges++;
    return 0;
}

int tok_spec_added(struct tok_spec *s, const char *p, size_t n, int32_t id, uint32_t flags, int normalized,
                   struct err *e)
{
    if (n == 0 || utf8_valid(p, n) != n)    /* texts are UTF-8, so searches for other bytes find nothing */
        return 0;
    if (grow((void **)&s->added, &s->added_room, s->n_added + 1, sizeof *s->added, e))
        return -1;
    s->added[s->n_added++] = (struct spec_added){ tok_spec_str(s, p, n), id, flags, normalized };
    return s->text.failed ? err_nomem(e, "added tokens") : 0;
}

int tok_spec_op(struct tok_spec *s, int stage, enum tokb_op_type type, uint32_t number, const char *a, size_t na,
                const char *b, size_t nb, struct err *e)
{
    uint32_t n = s->n_ops[stage];
    if (n >= TOKB_MAX_OPS / 3)
        return err_set(e, ERR_UNSUPPORTED, "tokenizer: more than %d normalizers, pre-tokenizers or decoders",
                       TOKB_MAX_OPS / 3);
    struct tokb_op *op = realloc(s->op[stage], (n + 1) * sizeof *op);
    if (!op)
        return err_nomem(e, "tokenizer steps");
    struct spec_str sa = tok_spec_str(s, a, na), sb = tok_spec_str(s, b, nb);
    op[n] = (struct tokb_op){ type, number, sa.at, sa.size, sb.at, sb.size };
    s->op[stage] = op;
    s->n_ops[stage] = n + 1;
    return s->text.failed ? err_nomem(e, "tokenizer steps") : 0;
}

int tok_spec_op_regex(struct tok_spec *s, int stage, enum tokb_op_type type, uint32_t number, const char *a, size_t na,
                      const char *b, size_t nb, struct err *e)
{
    struct tbuf pattern = { 0 };
    int rc = regex_translate(&pattern, a, na, e);
    if (!rc) {
        /* Compile it once, so that a bad expression is refused now and not when it is first
         * used. */
        struct regex *r = regex_open(pattern.p ? pattern.p : "", pattern.n, e);
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
    if (tok_spec_op(s, SPEC_DEC, DEC_REPLACE, 0, "\xE2\x96\x81", 3, " ", 1, e) ||
        tok_spec_op(s, SPEC_DEC, DEC_BYTE_FALLBACK, 0, NULL, 0, NULL, 0, e) ||
        tok_spec_op(s, SPEC_DEC, DEC_FUSE, 0, NULL, 0, NULL, 0, e))
        return -1;
    return prefix ? tok_spec_op(s, SPEC_DEC, DEC_STRIP, 1u | (unless_skipped ? STRIP_UNLESS_SKIPPED : 0), " ", 1, NULL,
                                0, e) : 0;
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
