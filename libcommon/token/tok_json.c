/* tok_json.c - compile a tokenizer.json of the Hugging Face tokenizers library, or the pair
 * vocab.json and merges.txt, to a tokenizer.  An unknown type of step is an error that names the
 * type, because ignoring the step would change the ids. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/token/tok_spec.h"

struct ctx {
    struct tok_spec *s;
    struct err *e;
    int depth;
};
enum { MAX_DEPTH = 32 };

static const char *str_of(const json_t *o, const char *key, size_t *n)
{
    const json_t *v = json_object_get(o, key);
    *n = json_is_string(v) ? json_string_length(v) : 0;
    return json_is_string(v) ? json_string_value(v) : NULL;
}

/* Missing and null are the default. */
static int bool_of(const json_t *o, const char *key, int otherwise)
{
    const json_t *v = json_object_get(o, key);
    return json_is_boolean(v) ? json_is_true(v) : otherwise;
}

static int64_t int_of(const json_t *o, const char *key, int64_t otherwise)
{
    const json_t *v = json_object_get(o, key);
    return json_is_integer(v) ? json_integer_value(v) : otherwise;
}

static int no(struct ctx *c, const char *what, const char *name)
{
    return err_set(c->e, ERR_UNSUPPORTED, "tokenizer.json: %s '%.100s' is not supported", what, name);
}
static int wrong(struct ctx *c, const char *what) { return err_set(c->e, ERR_FORMAT, "tokenizer.json: %s", what); }

static int plain(struct ctx *c, int stage, enum tokb_op_type type, uint32_t number)
{
    return tok_spec_op(c->s, stage, type, number, NULL, 0, NULL, 0, c->e);
}

/* Calls one() for the step o, or for each member of a Sequence (its key differs by kind of
 * step). */
static int sequence(struct ctx *c, const json_t *o, const char *key,
                    int (*one)(struct ctx *, const json_t *, const char *))
{
    if (!o || json_is_null(o))
        return 0;
    const char *type = json_string_value(json_object_get(o, "type"));
    if (!type)
        return wrong(c, "a step without type");
    if (strcmp(type, "Sequence"))
        return one(c, o, type);
    const json_t *list = json_object_get(o, key), *item;
    size_t i;
    if (!json_is_array(list))
        return err_set(c->e, ERR_FORMAT, "tokenizer.json: Sequence without %s", key);
    if (++c->depth > MAX_DEPTH)
        return wrong(c, "steps nested too deeply");
    json_array_foreach(list, i, item)
        if (sequence(c, item, key, one))
            return -1;
    c->depth--;
    return 0;
}

/* "pattern": {"String": ...} or {"Regex": ...} */
static int pattern_op(struct ctx *c, int stage, const json_t *o, enum tokb_op_type literal, enum tokb_op_type regex,
                      uint32_t number, const char *b, size_t nb)
{
    const json_t *p = json_object_get(o, "pattern");
    size_t n;
    const char *s = json_is_string(p) ? json_string_value(p) : str_of(p, "String", &n);
    if (json_is_string(p))
        n = json_string_length(p);
    if (s)
        return tok_spec_op(c->s, stage, literal, number, s, n, b, nb, c->e);
    s = str_of(p, "Regex", &n);
    return s ? tok_spec_op_regex(c->s, stage, regex, number, s, n, b, nb, c->e)
             : wrong(c, "a pattern that is neither String nor Regex");
}

/* ---- normalizers ---- */

static int base64(struct ctx *c, const char *s, size_t n, struct tbuf *out)
{
    uint32_t bits = 0;
    int k = 0;
    for (size_t i = 0; i < n && s[i] != '='; i++) {
        static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        const char *p = s[i] ? strchr(digits, s[i]) : NULL;
        if (!p)
            return wrong(c, "precompiled_charsmap is not base64");
        bits = bits << 6 | (uint32_t)(p - digits);
        k++;
        if (k % 4 != 1) {
            char byte = (char)(bits >> (k % 4 == 2 ? 4 : k % 4 == 3 ? 2 : 0));
            tbuf_add(out, &byte, 1);
        }
    }
    return out->failed ? err_nomem(c->e, "precompiled_charsmap") : 0;
}

static int bert_normalizer(struct ctx *c, const json_t *o)
{
    int lower = bool_of(o, "lowercase", 1);
    if (bool_of(o, "clean_text", 1) && plain(c, SPEC_NORM, NORM_BERT_CLEAN, 0))
        return -1;
    if (bool_of(o, "handle_chinese_chars", 1) && plain(c, SPEC_NORM, NORM_BERT_CHINESE, 0))
        return -1;
    if (bool_of(o, "strip_accents", lower) && (plain(c, SPEC_NORM, NORM_NFD, 0) ||
                                               plain(c, SPEC_NORM, NORM_REMOVE_MN, 0)))
        return -1;
    return lower ? plain(c, SPEC_NORM, NORM_LOWERCASE, 0) : 0;
}

static int normalizer(struct ctx *c, const json_t *o, const char *type)
{
    static const struct { const char *name; enum tokb_op_type type; } simple[] = {
        { "NFC", NORM_NFC }, { "NFD", NORM_NFD }, { "NFKC", NORM_NFKC }, { "NFKD", NORM_NFKD },
            { "Lowercase", NORM_LOWERCASE },
        { "StripAccents", NORM_STRIP_ACCENTS }, { "Nmt", NORM_NMT }, { "ByteLevel", NORM_BYTES },
    };
    size_t n;
    const char *s;
    for (size_t i = 0; i < sizeof simple / sizeof *simple; i++)
        if (!strcmp(type, simple[i].name))
            return plain(c, SPEC_NORM, simple[i].type, 0);
    if (!strcmp(type, "BertNormalizer"))
        return bert_normalizer(c, o);
    if (!strcmp(type, "Strip") || !strcmp(type, "StripNormalizer"))
        return plain(c, SPEC_NORM, NORM_STRIP, (uint32_t)(bool_of(o, "strip_left", 1) |
                                                          bool_of(o, "strip_right", 1) << 1));
    if (!strcmp(type, "Prepend") || !strcmp(type, "Append")) {
        int prepend = *type == 'P';
        s = str_of(o, prepend ? "prepend" : "append", &n);
        return s ? tok_spec_op(c->s, SPEC_NORM, prepend ? NORM_PREPEND : NORM_APPEND, 0, s, n, NULL, 0, c->e)
                 : wrong(c, "Prepend without text");
    }
    if (!strcmp(type, "Replace")) {
        s = str_of(o, "content", &n);
        return s ? pattern_op(c, SPEC_NORM, o, NORM_REPLACE, NORM_REPLACE_REGEX, 0, s, n)
                 : wrong(c, "Replace without content");
    }
    if (!strcmp(type, "Precompiled")) {
        struct tbuf map = { 0 };
        s = str_of(o, "precompiled_charsmap", &n);
        if (!s || !n)
            return 0;
        int rc = base64(c, s, n, &map);
        if (!rc)
            rc = tok_spec_op(c->s, SPEC_NORM, NORM_CHARSMAP, 1, map.p, map.n, NULL, 0, c->e);
        tbuf_release(&map);
        return rc;
    }
    return no(c, "normalizer", type);
}

/* ---- pre-tokenizers ---- */

static int behaviour_of(struct ctx *c, const json_t *o, const char *otherwise, uint32_t *out)
{
    static const char *const name[] = { "Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous" };
    const char *s = json_string_value(json_object_get(o, "behavior"));
    for (uint32_t i = 0; i < 5; i++)
        if (!strcmp(s ? s : otherwise, name[i])) {
            *out = i | (bool_of(o, "invert", 0) ? SPLIT_INVERT : 0);
            return 0;
        }
    return no(c, "split behavior", s);
}

static int metaspace_scheme(struct ctx *c, const json_t *o, uint32_t *number)
{
    const char *scheme = json_string_value(json_object_get(o, "prepend_scheme"));
    if (!scheme)                        /* older files have no prepend_scheme, only this flag */
        scheme = bool_of(o, "add_prefix_space", 1) ? "always" : "never";
    if (!strcmp(scheme, "always"))
        *number = METASPACE_ALWAYS;
    else if (!strcmp(scheme, "first"))
        *number = METASPACE_FIRST;
    else if (!strcmp(scheme, "never"))
        *number = 0;
    else
        return no(c, "prepend_scheme", scheme);
    return 0;
}

static int byte_level(struct ctx *c, const json_t *o)
{
    if (bool_of(o, "add_prefix_space", 1) && plain(c, SPEC_PRE, PRE_PREFIX_SPACE, 0))
        return -1;
    if (bool_of(o, "use_regex", 1) && tok_spec_split(c->s, tok_gpt2_regex, SPLIT_ISOLATED, c->e))
        return -1;
    return plain(c, SPEC_PRE, PRE_BYTES, 0);
}

#define RUST_WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}"      /* \w of Rust's regular expressions, which Whitespace uses */
#define PUNCTUATION "[\\p{P}!-/:-@\\[-`{-~]"

static int pre_tokenizer(struct ctx *c, const json_t *o, const char *type)
{
    size_t n;
    uint32_t number;
    const char *s;
    if (!strcmp(type, "ByteLevel"))
        return byte_level(c, o);
    if (!strcmp(type, "Split"))
        return behaviour_of(c, o, "Isolated", &number)
                   ? -1 : pattern_op(c, SPEC_PRE, o, PRE_SPLIT, PRE_SPLIT_REGEX, number, NULL, 0);
    if (!strcmp(type, "Digits"))
        return tok_spec_split(c->s, "\\p{N}", bool_of(o, "individual_digits", 0) ? SPLIT_ISOLATED : SPLIT_CONTIGUOUS,
                              c->e);
    if (!strcmp(type, "Punctuation"))
        return behaviour_of(c, o, "Isolated", &number) ? -1 : tok_spec_split(c->s, PUNCTUATION, (int)number, c->e);
    if (!strcmp(type, "Whitespace"))
        return tok_spec_split(c->s, "[" RUST_WORD "]+|[^" RUST_WORD "\\s]+", SPLIT_REMOVED | SPLIT_INVERT, c->e);
    if (!strcmp(type, "WhitespaceSplit"))
        return tok_spec_split(c->s, "\\s", SPLIT_REMOVED, c->e);
    if (!strcmp(type, "BertPreTokenizer"))
        return tok_spec_split(c->s, "\\s", SPLIT_REMOVED, c->e)
                   ? -1 : tok_spec_split(c->s, PUNCTUATION, SPLIT_ISOLATED, c->e);
    if (!strcmp(type, "CharDelimiterSplit")) {
        s = str_of(o, "delimiter", &n);
        return s ? tok_spec_op(c->s, SPEC_PRE, PRE_SPLIT, SPLIT_REMOVED, s, n, NULL, 0, c->e)
                 : wrong(c, "CharDelimiterSplit without delimiter");
    }
    if (!strcmp(type, "Metaspace")) {
        s = str_of(o, "replacement", &n);
        if (metaspace_scheme(c, o, &number))
            return -1;
        number |= bool_of(o, "split", 1) ? METASPACE_SPLIT : 0;
        return s && n ? tok_spec_op(c->s, SPEC_PRE, PRE_METASPACE, number, s, n, NULL, 0, c->e)
                      : wrong(c, "Metaspace without replacement");
    }
    if (!strcmp(type, "FixedLength")) {
        int64_t length = int_of(o, "length", 0);
        return length >= 1 && length <= UINT32_MAX ? plain(c, SPEC_PRE, PRE_FIXED_LENGTH, (uint32_t)length)
                                                   : wrong(c, "FixedLength without length");
    }
    return no(c, "pre_tokenizer", type);
}

/* ---- decoders ---- */

static int decoder(struct ctx *c, const json_t *o, const char *type)
{
    size_t n, m;
    uint32_t number;
    const char *s, *b;
    if (!strcmp(type, "ByteLevel"))
        return plain(c, SPEC_DEC, DEC_BYTES, 0);
    if (!strcmp(type, "ByteFallback"))
        return plain(c, SPEC_DEC, DEC_BYTE_FALLBACK, 0);
    if (!strcmp(type, "Fuse"))
        return plain(c, SPEC_DEC, DEC_FUSE, 0);
    if (!strcmp(type, "Strip")) {
        int64_t start = int_of(o, "start", 0), stop = int_of(o, "stop", 0);
        s = str_of(o, "content", &n);
        if (!s || start < 0 || start > 0xFFFF || stop < 0 || stop > 0x7FFF)
            return wrong(c, "Strip decoder without content, start, stop");
        return tok_spec_op(c->s, SPEC_DEC, DEC_STRIP, (uint32_t)(start | stop << 16), s, n, NULL, 0, c->e);
    }
    if (!strcmp(type, "Replace")) {
        s = str_of(o, "content", &n);
        return s ? pattern_op(c, SPEC_DEC, o, DEC_REPLACE, DEC_REPLACE_REGEX, 0, s, n)
                 : wrong(c, "Replace without content");
    }
    if (!strcmp(type, "Metaspace")) {
        s = str_of(o, "replacement", &n);
        if (metaspace_scheme(c, o, &number))
            return -1;
        return s ? tok_spec_op(c->s, SPEC_DEC, DEC_METASPACE, number != 0, s, n, NULL, 0, c->e)
                 : wrong(c, "Metaspace without replacement");
    }
    if (!strcmp(type, "WordPiece")) {
        s = str_of(o, "prefix", &n);
        return tok_spec_op(c->s, SPEC_DEC, DEC_WORDPIECE, (uint32_t)bool_of(o, "cleanup", 1), s ? s : "##", s ? n : 2,
                           NULL, 0, c->e);
    }
    if (!strcmp(type, "BPEDecoder")) {
        s = str_of(o, "suffix", &n);
        return tok_spec_op(c->s, SPEC_DEC, DEC_SUFFIX, 0, s ? s : "</w>", s ? n : 4, NULL, 0, c->e);
    }
    if (!strcmp(type, "CTC")) {
        s = str_of(o, "pad_token", &n);
        b = str_of(o, "word_delimiter_token", &m);
        return tok_spec_op(c->s, SPEC_DEC, DEC_CTC, (uint32_t)bool_of(o, "cleanup", 1), s ? s : "<pad>", s ? n : 5,
                           b ? b : "|", b ? m : 1, c->e);
    }
    return no(c, "decoder", type);
}

/* ---- post-processors: what they put before and after one text ---- */

static int edge(struct ctx *c, int64_t id, int before)
{
    if (id < 0 || id >= c->s->n_tokens)
        return wrong(c, "the post_processor names an id that is not in the vocabulary");
    int32_t *list = before ? c->s->prefix : c->s->suffix;
    uint32_t n = before ? c->s->n_prefix : c->s->n_suffix;
    int32_t *p = realloc(list, (n + 1) * sizeof *p);
    if (!p)
        return err_nomem(c->e, "post_processor");
    p[n] = (int32_t)id;
    if (before)
        c->s->prefix = p, c->s->n_prefix = n + 1;
    else
        c->s->suffix = p, c->s->n_suffix = n + 1;
    return 0;
}

/* Read the ids that the post-processor TemplateProcessing puts around a text.  A later processor of
 * a Sequence puts its ids around those of the earlier ones. */
static int template_processing(struct ctx *c, const json_t *o)
{
    struct tok_spec inner = *c->s;
    const json_t *single = json_object_get(o, "single"), *specials = json_object_get(o, "special_tokens"), *item;
    size_t i, k;
    int seen = 0, rc = -1;
    c->s->prefix = c->s->suffix = NULL;
    c->s->n_prefix = c->s->n_suffix = 0;
    json_array_foreach(single, i, item) {
        const json_t *special = json_object_get(item, "SpecialToken"), *ids, *id;
        if (json_object_get(item, "Sequence")) {
            if (seen++) {
                wrong(c, "TemplateProcessing repeats the text");
                goto done;
            }
            continue;
        }
        const char *name = json_string_value(json_object_get(special, "id"));
        ids = name ? json_object_get(json_object_get(specials, name), "ids") : NULL;
        if (!json_is_array(ids)) {
            err_set(c->e, ERR_FORMAT, "tokenizer.json: TemplateProcessing: special token '%.100s' is not described",
                    name ? name : "");
            goto done;
        }
        json_array_foreach(ids, k, id)
            if (edge(c, json_is_integer(id) ? json_integer_value(id) : -1, !seen))
                goto done;
    }
    if (!seen) {
        wrong(c, "TemplateProcessing without the text");
        goto done;
    }
    for (i = 0; i < inner.n_prefix; i++)
        if (edge(c, inner.prefix[i], 1))
            goto done;
    rc = 0;
    if (inner.n_suffix) {               /* inner suffix comes first */
        int32_t *outer = c->s->suffix;
        uint32_t n = c->s->n_suffix;
        c->s->suffix = inner.suffix;
        c->s->n_suffix = inner.n_suffix;
        inner.suffix = NULL;
        for (i = 0; i < n && !rc; i++)
            rc = edge(c, outer[i], 0);
        free(outer);
    }
done:
    free(inner.prefix);
    free(inner.suffix);
    return rc;
}

/* ["[SEP]", 102] */
static int pair_edge(struct ctx *c, const json_t *o, const char *key, int before)
{
    const json_t *id = json_array_get(json_object_get(o, key), 1);
    return json_is_integer(id) ? edge(c, json_integer_value(id), before)
                               : wrong(c, "a post_processor without cls or sep");
}

static int post_processor(struct ctx *c, const json_t *o, const char *type)
{
    if (!strcmp(type, "ByteLevel"))
        return 0;                       /* changes offsets only */
    if (!strcmp(type, "TemplateProcessing"))
        return template_processing(c, o);
    if (!strcmp(type, "BertProcessing") || !strcmp(type, "RobertaProcessing"))
        return pair_edge(c, o, "cls", 1) ? -1 : pair_edge(c, o, "sep", 0);
    return no(c, "post_processor", type);
}

/* ---- models ---- */

static int vocab_object(struct ctx *c, json_t *vocab)
{
    const char *key;
    json_t *id;
    size_t n;
    if (!json_is_object(vocab))
        return wrong(c, "model.vocab is not an object");
    json_object_keylen_foreach(vocab, key, n, id) {
        if (!json_is_integer(id))
            return err_set(c->e, ERR_FORMAT, "tokenizer.json: token '%.100s': the id is no number", key);
        if (tok_spec_token(c->s, json_integer_value(id), key, n, 0, 0, 1, c->e))
            return -1;
    }
    return tok_spec_index(c->s, c->e);
}

static int one_merge(struct ctx *c, const char *l, size_t nl, const char *r, size_t nr, size_t cut)
{
    int rc = tok_spec_merge(c->s, l, nl, r, nr, cut, c->e);
    return rc <= 0 ? rc : err_set(c->e, ERR_FORMAT, "tokenizer.json: merge '%.100s' + '%.100s': a part or the whole is not in the vocabulary", l, r);
}

static int merges(struct ctx *c, const json_t *list, size_t cut)
{
    const json_t *m;
    size_t i;
    if (!json_is_array(list))
        return wrong(c, "model.merges is not a list");
    json_array_foreach(list, i, m) {
        int rc;
        if (json_is_string(m)) {
            const char *s = json_string_value(m), *space = strchr(s, ' ');
            size_t n = json_string_length(m);
            if (i == 0 && !strncmp(s, "#version", 8))
                continue;
            if (!space || memchr(space + 1, ' ', n - (size_t)(space - s) - 1))
                return err_set(c->e, ERR_FORMAT,
                               "tokenizer.json: merge %zu: '%.100s', expected two parts and a blank between", i, s);
            struct tbuf left = { 0 };
            tbuf_add(&left, s, (size_t)(space - s));
            tbuf_add(&left, "", 1);
            rc = left.failed ? err_nomem(c->e, "merges") : one_merge(c, left.p, left.n - 1, space + 1, n - left.n, cut);
            tbuf_release(&left);
        } else {
            const json_t *l = json_array_get(m, 0), *r = json_array_get(m, 1);
            if (!json_is_string(l) || !json_is_string(r) || json_array_size(m) != 2)
                return err_set(c->e, ERR_FORMAT, "tokenizer.json: merge %zu is no pair of texts", i);
            rc = one_merge(c, json_string_value(l), json_string_length(l), json_string_value(r), json_string_length(r),
                           cut);
        }
        if (rc)
            return -1;
    }
    return 0;
}

static struct spec_str option_str(struct ctx *c, const json_t *o, const char *key)
{
    size_t n;
    const char *s = str_of(o, key, &n);
    return tok_spec_str(c->s, s, n);
}

static int unk_token(struct ctx *c, const json_t *o, const char *otherwise)
{
    size_t n;
    const char *s = str_of(o, "unk_token", &n);
    if (!s && !(s = otherwise))
        return 0;
    c->s->unk = tok_spec_find(c->s, s, str_of(o, "unk_token", &n) ? n : strlen(s));
    return 0;
}

static int bpe_model(struct ctx *c, const json_t *o)
{
    struct tok_spec *s = c->s;
    s->model = MODEL_BPE;
    s->flags = (uint32_t)((bool_of(o, "ignore_merges", 0) ? MODEL_IGNORE_MERGES : 0) |
                          (bool_of(o, "byte_fallback", 0) ? MODEL_BYTE_FALLBACK : 0) |
                          (bool_of(o, "fuse_unk", 0) ? MODEL_FUSE_UNK : 0));
    s->next_prefix = option_str(c, o, "continuing_subword_prefix");
    s->end_suffix = option_str(c, o, "end_of_word_suffix");
    if (vocab_object(c, json_object_get(o, "vocab")) || unk_token(c, o, NULL))
        return -1;
    return merges(c, json_object_get(o, "merges"), s->next_prefix.size);
}

static int unigram_model(struct ctx *c, const json_t *o)
{
    const json_t *list = json_object_get(o, "vocab"), *item;
    double least = 0;
    size_t i;
    if (!json_is_array(list))
        return wrong(c, "model.vocab of Unigram is not a list");
    c->s->model = MODEL_UNIGRAM;
    c->s->flags = MODEL_FUSE_UNK | (bool_of(o, "byte_fallback", 0) ? MODEL_BYTE_FALLBACK : 0u);
    json_array_foreach(list, i, item) {
        const json_t *t = json_array_get(item, 0), *score = json_array_get(item, 1);
        if (!json_is_string(t) || !json_is_number(score))
            return err_set(c->e, ERR_FORMAT, "tokenizer.json: token %zu of Unigram is not [text, score]", i);
        double x = json_number_value(score);
        least = i == 0 || x < least ? x : least;
        if (tok_spec_token(c->s, (int64_t)i, json_string_value(t), json_string_length(t), x, 0, 1, c->e))
            return -1;
    }
    int64_t unk = int_of(o, "unk_id", -1);
    if (unk >= (int64_t)i)
        return wrong(c, "unk_id is not in the vocabulary");
    c->s->unk = unk < 0 ? -1 : (int32_t)unk;
    c->s->unk_score = least - 10;
    return tok_spec_index(c->s, c->e);
}

static int model(struct ctx *c, const json_t *o)
{
    const char *type = json_string_value(json_object_get(o, "type"));
    if (!json_is_object(o))
        return wrong(c, "no model");
    if (!type)                          /* old files do not name the type of the model */
        type = json_is_array(json_object_get(o, "vocab")) ? "Unigram" : json_object_get(o, "merges") ? "BPE" :
               json_object_get(o, "continuing_subword_prefix") ? "WordPiece" : "WordLevel";
    if (!strcmp(type, "BPE"))
        return bpe_model(c, o);
    if (!strcmp(type, "Unigram"))
        return unigram_model(c, o);
    if (!strcmp(type, "WordPiece")) {
        int64_t most = int_of(o, "max_input_chars_per_word", 100);
        size_t n;
        const char *p = str_of(o, "continuing_subword_prefix", &n);
        c->s->model = MODEL_WORDPIECE;
        c->s->next_prefix = tok_spec_str(c->s, p ? p : "##", p ? n : 2);
        c->s->max_word_chars = most > 0 && most < UINT32_MAX ? (uint32_t)most : 0;
        return vocab_object(c, json_object_get(o, "vocab")) ? -1 : unk_token(c, o, "[UNK]");
    }
    if (!strcmp(type, "WordLevel")) {
        c->s->model = MODEL_WORDLEVEL;
        return vocab_object(c, json_object_get(o, "vocab")) ? -1 : unk_token(c, o, "<unk>");
    }
    return no(c, "model", type);
}

static int added_token(struct ctx *c, const json_t *o)
{
    size_t n;
    const char *s = str_of(o, "content", &n);
    int64_t id = int_of(o, "id", -1);
    int special = bool_of(o, "special", 0);
    if (!s)
        return wrong(c, "an added token without content");
    int32_t known = tok_spec_find(c->s, s, n);
    if (known >= 0)
        id = known;
    uint32_t flags = (uint32_t)((bool_of(o, "single_word", 0) ? ADDED_SINGLE_WORD : 0) |
                                (bool_of(o, "lstrip", 0) ? ADDED_LSTRIP : 0) |
                                (bool_of(o, "rstrip", 0) ? ADDED_RSTRIP : 0) | (special ? ADDED_SPECIAL : 0));
    int old = id >= 0 && id < c->s->n_tokens ? c->s->token[id].in_vocab : 0;
    double score = old ? c->s->token[id].score : 0;
    if (old && known < 0)
        return err_set(c->e, ERR_FORMAT, "tokenizer.json: added token '%.100s': id %lld is another token of the vocabulary", s, (long long)id);
    if (tok_spec_token(c->s, id, s, n, score, TOKEN_ADDED | (special ? TOKEN_SPECIAL : 0), old, c->e))
        return -1;
    return tok_spec_added(c->s, s, n, (int32_t)id, flags, bool_of(o, "normalized", !special), c->e);
}

static json_t *parse(const char *name, const char *text, size_t n, struct err *e)
{
    json_error_t je;
    json_t *root = json_loadb(text, n, JSON_ALLOW_NUL, &je);
    if (!root)
        err_set(e, ERR_FORMAT, "%s: line %d, column %d: %s", name, je.line, je.column, je.text);
    return root;
}

int tok_json_compile(struct tok_spec *s, const struct tokenizer_files *f, struct err *e)
{
    struct ctx c = { s, e, 0 };
    json_t *root = parse("tokenizer.json", f->tokenizer_json, f->tokenizer_json_size, e), *item;
    const json_t *dec;
    size_t i;
    int rc = -1;
    if (!root)
        return -1;
    if (model(&c, json_object_get(root, "model")) ||
        sequence(&c, json_object_get(root, "normalizer"), "normalizers", normalizer) ||
        sequence(&c, json_object_get(root, "pre_tokenizer"), "pretokenizers", pre_tokenizer))
        goto done;
    json_array_foreach(json_object_get(root, "added_tokens"), i, item)
        if (added_token(&c, item))
            goto done;
    dec = json_object_get(root, "decoder");
    if (!dec || json_is_null(dec) ? plain(&c, SPEC_DEC, DEC_JOIN_SPACE, 0) : sequence(&c, dec, "decoders", decoder))
        goto done;
    rc = sequence(&c, json_object_get(root, "post_processor"), "processors", post_processor);
done:
    json_decref(root);
    return rc;
}

/* ---- vocab.json and merges.txt ---- */

int tok_gpt2_compile(struct tok_spec *s, const struct tokenizer_files *f, struct err *e)
{
    struct ctx c = { s, e, 0 };
    json_t *vocab = parse("vocab.json", f->vocab_json, f->vocab_json_size, e);
    if (!vocab)
        return -1;
    s->model = MODEL_BPE;
    int rc = vocab_object(&c, vocab);
    json_decref(vocab);
    const char *p = f->merges_txt, *end = p + f->merges_txt_size;
    for (size_t line = 1; !rc && p < end; line++) {
        const char *nl = memchr(p, '\n', (size_t)(end - p)), *stop = nl ? nl : end;
        const char *space = memchr(p, ' ', (size_t)(stop - p));
        size_t n = (size_t)(stop - p);
        if (n && p[n - 1] == '\r')
            n--;
        if (n && !(line == 1 && n > 8 && !memcmp(p, "#version", 8))) {
            if (!space)
                return err_set(e, ERR_FORMAT, "merges.txt: line %zu: no blank between two parts", line);
            rc = tok_spec_merge(s, p, (size_t)(space - p), space + 1, (size_t)(p + n - space) - 1, 0, e);
            if (rc > 0)
                return err_set(e, ERR_FORMAT, "merges.txt: line %zu: a part or the whole is not in vocab.json", line);
        }
        p = nl ? nl + 1 : end;
    }
    /* the only special token of GPT-2 files */
    static const char end_of_text[] = "<|endoftext|>";
    int32_t id = rc ? -1 : tok_spec_find(s, end_of_text, sizeof end_of_text - 1);
    if (id >= 0) {
        s->token[id].flags |= TOKEN_ADDED | TOKEN_SPECIAL;
        rc = tok_spec_added(s, end_of_text, sizeof end_of_text - 1, id, ADDED_SPECIAL, 0, e);
    }
    return rc || tok_spec_split(s, tok_gpt2_regex, SPLIT_ISOLATED, e) || plain(&c, SPEC_PRE, PRE_BYTES, 0) ||
           plain(&c, SPEC_DEC, DEC_BYTES, 0) ? -1 : 0;
}
