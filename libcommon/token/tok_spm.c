/* tok_spm.c - compile a SentencePiece model (tokenizer.model) to a tokenizer.  Of the protocol
 * buffer of sentencepiece_model.proto the fields that affect ids are read:
 *   ModelProto      1 pieces {1 text, 2 score, 3 type}, 2 trainer_spec, 3 normalizer_spec
 *   TrainerSpec     3 model_type (1 unigram, 2 BPE, 3 word, 4 char), 24 treat_whitespace_as_suffix,
 *                   35 byte_fallback, 40 unk_id, 41 bos_id, 42 eos_id, 43 pad_id
 *   NormalizerSpec  2 precompiled_charsmap, 3 add_dummy_prefix, 4 remove_extra_whitespaces,
 *                   5 escape_whitespaces */
#include <string.h>

#include "libcommon/token/tok_spec.h"

struct pb { const unsigned char *p, *end, *start; };
struct pb_field { uint32_t number, wire; uint64_t value; struct pb bytes; };

static int varint(struct pb *b, uint64_t *v)
{
    *v = 0;
    for (int shift = 0; shift < 64 && b->p < b->end; shift += 7) {
        unsigned char c = *b->p++;
        *v |= (uint64_t)(c & 0x7F) << shift;
        if (!(c & 0x80))
            return 0;
    }
    return -1;
}

/* 1: a field, 0: the end, -1: damaged. */
static int next_field(struct pb *b, struct pb_field *f)
{
    uint64_t tag, n;
    if (b->p == b->end)
        return 0;
    if (varint(b, &tag) || tag >> 3 == 0 || tag >> 3 > UINT32_MAX)
        return -1;
    f->number = (uint32_t)(tag >> 3);
    f->wire = tag & 7;
    switch (f->wire) {
    case 0:
        return varint(b, &f->value) ? -1 : 1;
    case 1: case 5:
        n = f->wire == 1 ? 8 : 4;
        break;
    case 2:
        if (varint(b, &n))
            return -1;
        break;
    default:
        return -1;
    }
    if (n > (uint64_t)(b->end - b->p))
        return -1;
    f->bytes = (struct pb){ b->p, b->p + n, b->start };
    f->value = 0;
    if (f->wire != 2)
        memcpy(&f->value, b->p, n);
    b->p += n;
    return 1;
}

static int bad(const struct pb *b, const char *what, struct err *e)
{
    return err_set(e, ERR_FORMAT, "tokenizer.model: offset %zu: %s is damaged", (size_t)(b->p - b->start), what);
}

enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

static int piece(struct tok_spec *s, struct pb b, int64_t id, struct err *e)
{
    struct pb_field f;
    const char *text = "";
    size_t n = 0;
    float score = 0;
    uint64_t type = NORMAL;
    int rc;
    while ((rc = next_field(&b, &f)) == 1) {
        if (f.number == 1 && f.wire == 2)
            text = (const char *)f.bytes.p, n = (size_t)(f.bytes.end - f.bytes.p);
        else if (f.number == 2 && f.wire == 5)
            memcpy(&score, &f.value, 4);
        else if (f.number == 3 && f.wire == 0)
            type = f.value;
    }
    if (rc)
        return bad(&b, "a piece", e);
    if (type < NORMAL || type > BYTE)
        return err_set(e, ERR_FORMAT, "tokenizer.model: piece %lld: type %llu, expected 1 to 6", (long long)id,
                       (unsigned long long)type);
    int special = type == CONTROL || type == UNKNOWN, added = special || type == USER_DEFINED;
    /* unknown, control and byte pieces never come from merging; <0x..> is looked for by name, so
     * it stays in the table */
    if (tok_spec_token(s, id, text, n, score, (added ? TOKEN_ADDED : 0) |
                       (special ? TOKEN_SPECIAL | TOKEN_VERBATIM : 0) | (type == BYTE ? TOKEN_BYTE : 0),
                       type == NORMAL || type == USER_DEFINED || type == BYTE, e))
        return -1;
    return added ? tok_spec_added(s, text, n, (int32_t)id, special ? ADDED_SPECIAL : 0, special ? 0 : ADDED_ESCAPED, e)
                 : 0;
}

struct spm_options {
    uint64_t model_type, byte_fallback, suffix;
    int64_t unk, bos, eos, pad;
    uint64_t dummy_prefix, remove_extra, escape;
    struct pb charsmap;
};

static int read_options(struct pb b, int normalizer, struct spm_options *o, struct err *e)
{
    struct pb_field f;
    int rc;
    while ((rc = next_field(&b, &f)) == 1) {
        if (normalizer && f.wire == 2 && f.number == 2)
            o->charsmap = f.bytes;
        if (f.wire != 0)
            continue;
        int32_t v = (int32_t)f.value;
        if (normalizer)
            switch (f.number) {
            case 3: o->dummy_prefix = f.value; break;
            case 4: o->remove_extra = f.value; break;
            case 5: o->escape = f.value; break;
            }
        else
            switch (f.number) {
            case 3: o->model_type = f.value; break;
            case 24: o->suffix = f.value; break;
            case 35: o->byte_fallback = f.value; break;
            case 40: o->unk = v; break;
            case 41: o->bos = v; break;
            case 42: o->eos = v; break;
            case 43: o->pad = v; break;
            }
    }
    return rc ? bad(&b, normalizer ? "normalizer_spec" : "trainer_spec", e) : 0;
}

/* Set the scores of Unigram: the unknown token is far below the lowest score, and a user-defined
 * piece beats every way of splitting it. */
static void unigram_scores(struct tok_spec *s)
{
    double least = 0, most = 0;
    int any = 0;
    for (uint32_t i = 0; i < s->n_tokens; i++) {
        double x = s->token[i].score;
        if (!s->token[i].in_vocab || s->token[i].flags & (TOKEN_ADDED | TOKEN_BYTE))
            continue;
        least = !any || x < least ? x : least;
        most = !any || x > most ? x : most;
        any = 1;
    }
    s->unk_score = least - 10;
    for (uint32_t i = 0; i < s->n_tokens; i++) {
        if (s->token[i].in_vocab && s->token[i].flags & TOKEN_ADDED)
            s->token[i].score = most * s->token[i].str.size - 0.1;
        if (s->token[i].flags & TOKEN_BYTE)
            /* Byte tokens stand for unknown characters; the text "<0x00>" must not become one. */
            s->token[i].score = -1e30;
    }
}

static int normalizers(struct tok_spec *s, const struct spm_options *o, struct err *e)
{
    size_t n = (size_t)(o->charsmap.end - o->charsmap.p);
    if (o->suffix && o->dummy_prefix)
        return err_set(e, ERR_UNSUPPORTED, "tokenizer.model: treat_whitespace_as_suffix is not supported");
    if (n && tok_spec_op(s, SPEC_NORM, NORM_CHARSMAP, 0, (const char *)o->charsmap.p, n, NULL, 0, e))
        return -1;
    if ((o->remove_extra || o->dummy_prefix) &&
        tok_spec_op(s, SPEC_NORM, NORM_SPACES, (uint32_t)((o->remove_extra != 0) | (o->dummy_prefix != 0) << 1), NULL,
                    0, NULL, 0, e))
        return -1;
    return o->escape ? tok_spec_op(s, SPEC_NORM, NORM_REPLACE, 0, " ", 1, "\xE2\x96\x81", 3, e) : 0;
}

int tok_sentencepiece_compile(struct tok_spec *s, const void *model, size_t size, struct err *e)
{
    struct pb b = { model, (const unsigned char *)model + size, model };
    struct spm_options o = { .model_type = 1, .bos = 1, .eos = 2, .pad = -1, .dummy_prefix = 1, .remove_extra = 1,
                         .escape = 1 };
    struct pb_field f;
    int64_t n = 0;
    int rc;
    while ((rc = next_field(&b, &f)) == 1) {
        if (f.wire != 2)
            continue;
        if ((f.number == 1 && piece(s, f.bytes, n++, e)) || (f.number == 2 && read_options(f.bytes, 0, &o, e)) ||
            (f.number == 3 && read_options(f.bytes, 1, &o, e)))
            return -1;
    }
    if (rc)
        return bad(&b, "a field", e);
    if (!n)
        return err_set(e, ERR_FORMAT, "tokenizer.model: no pieces");
    if (o.model_type != 1 && o.model_type != 2)
        return err_set(e, ERR_UNSUPPORTED, "tokenizer.model: model_type %llu, only 1 (unigram) and 2 (BPE) are supported", (unsigned long long)o.model_type);
    s->model = o.model_type == 1 ? MODEL_UNIGRAM : MODEL_BPE_SCORE;
    s->flags = MODEL_FUSE_UNK | MODEL_FLOAT_SCORES | (o.byte_fallback ? MODEL_BYTE_FALLBACK : 0u);
#define ID(x) ((x) >= 0 && (x) < n ? (int32_t)(x) : -1)
    s->unk = ID(o.unk), s->bos = ID(o.bos), s->pad = ID(o.pad);
    if (s->model == MODEL_UNIGRAM)
        unigram_scores(s);
    if (tok_spec_index(s, e) || normalizers(s, &o, e) || tok_spec_eos(s, ID(o.eos), e))
        return -1;
#undef ID
    /* the file does not say what is added: Llama's and Gemma's put BOS first, T5's has none and
     * ends in EOS */
    if (s->bos >= 0 ? tok_spec_id(&s->prefix, &s->n_prefix, s->bos, 1, e) : s->n_eos
        ? tok_spec_id(&s->suffix, &s->n_suffix, s->eos[0], 0, e) : 0)
        return -1;
    return tok_spec_spm_decoders(s, o.dummy_prefix != 0, 0, e);
}
