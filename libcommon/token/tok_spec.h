/* tok_spec.h - a tokenizer while it is being compiled: each source (JSON, GGUF, SentencePiece)
 * fills in a struct tok_spec, and tok_spec_pack() makes the block from it. */
#ifndef ZSE_TOKEN_TOK_SPEC_H
#define ZSE_TOKEN_TOK_SPEC_H

#include <jansson.h>

#include "libcommon/token/tok_text.h"
#include "libcommon/token/tokenizer.h"
#include "libcommon/token/tokenizer_blob.h"

struct spec_str { uint32_t at, size; };             /* in text */

struct spec_token {
    struct spec_str str;
    double score;
    uint8_t flags;                                  /* TOKEN_* */
    uint8_t in_vocab;                               /* the model may produce it from text */
};

/* Search for an added token in the normalized text: ADDED_NORMALIZED with its pattern normalized
 * too, ADDED_ESCAPED with U+2581 for the pattern's spaces (SentencePiece's user-defined pieces). */
enum { ADDED_NORMALIZED = 1, ADDED_ESCAPED = 2 };

struct spec_added {
    struct spec_str str;
    int32_t id;
    uint32_t flags;                                 /* ADDED_* */
    /* ADDED_NORMALIZED, ADDED_ESCAPED, or 0: search for it in the text as given. */
    int normalized;
};

struct tok_spec {
    struct tbuf text;
    enum tokb_model model;
    uint32_t flags;                                 /* MODEL_* */
    struct spec_token *token;   uint32_t n_tokens, token_room;      /* indexed by id */
    struct tokb_merge *merge;   uint32_t n_merges, merge_room;
    struct spec_added *added;   uint32_t n_added, added_room;
    /* normalizers, pre-tokenizers and decoders; their a and b are offsets in `text` */
    struct tokb_op *op[3];      uint32_t n_ops[3];
    int32_t *prefix, *suffix, *eos;     uint32_t n_prefix, n_suffix, n_eos;
    int32_t bos, unk, pad;
    struct spec_str word_prefix, next_prefix, end_suffix;
    uint32_t max_word_chars;
    double unk_score;
    struct tokb_slot *slots;    uint32_t n_slots, probes, max_size; /* made by tok_spec_index */
};

void tok_spec_init(struct tok_spec *s);
void tok_spec_release(struct tok_spec *s);

struct spec_str tok_spec_str(struct tok_spec *s, const char *p, size_t n);

/* 0 or -1.  An id that is set twice keeps its last text; ids above TOKB_MAX_IDS are refused. */
int tok_spec_token(struct tok_spec *s, int64_t id, const char *p, size_t n, double score, int flags, int in_vocab,
                   struct err *e);
/* Build the search table of the vocabulary; call it after the last token. */
int tok_spec_index(struct tok_spec *s, struct err *e);
/* -1: not in the vocabulary. */
int32_t tok_spec_find(const struct tok_spec *s, const char *p, size_t n);
/* Append a merge; its rank is the number of merges before it.  The two parts and the text of both
 * together (without the first `cut` bytes of right) must be in the vocabulary: if one is not,
 * nothing is added and 1 is returned. */
int tok_spec_merge(struct tok_spec *s, const char *left, size_t n_left, const char *right, size_t n_right, size_t cut,
                   struct err *e);
int tok_spec_added(struct tok_spec *s, const char *p, size_t n, int32_t id, uint32_t flags, int normalized,
                   struct err *e);

enum { SPEC_NORM, SPEC_PRE, SPEC_DEC };
int tok_spec_op(struct tok_spec *s, int stage, enum tokb_op_type type, uint32_t number, const char *a, size_t na,
                const char *b, size_t nb, struct err *e);
/* Like tok_spec_op(), but a is a regular expression in Oniguruma's syntax. */
int tok_spec_op_regex(struct tok_spec *s, int stage, enum tokb_op_type type, uint32_t number, const char *a, size_t na,
                      const char *b, size_t nb, struct err *e);
int tok_spec_split(struct tok_spec *s, const char *regex, int behaviour, struct err *e);
/* The regular expression by which GPT-2 splits a text into words. */
extern const char tok_gpt2_regex[];

/* Append id to the list, or put it `first`, unless it is already at that end. */
int tok_spec_id(int32_t **list, uint32_t *n, int32_t id, int first, struct err *e);
/* Append id to the ids that end an answer, unless it is one already. */
int tok_spec_eos(struct tok_spec *s, int32_t id, struct err *e);

int tok_spec_pack(struct tok_spec *s, void **blob, size_t *size, struct err *e);

/* the sources */
/* tok_json.c. */
int tok_json_compile(struct tok_spec *s, const struct tokenizer_files *f, struct err *e);
/* tok_config.c: BOS, EOS and their like. */
int tok_config_apply(struct tok_spec *s, const struct tokenizer_files *f, struct err *e);
/* tok_spm.c. */
int tok_sentencepiece_compile(struct tok_spec *s, const void *model, size_t size, struct err *e);
/* vocab.json and merges.txt: byte-level BPE as GPT-2 had it. */
int tok_gpt2_compile(struct tok_spec *s, const struct tokenizer_files *f, struct err *e);
/* tok_gguf.c. */
int tok_gguf_compile(struct tok_spec *s, const struct tokenizer_gguf *g, struct err *e);
/* Add the decoders that all SentencePiece sources share: U+2581 to spaces, byte tokens to bytes,
 * and (prefix) the removal of the space that was put in front. */
int tok_spec_spm_decoders(struct tok_spec *s, int prefix, int unless_skipped, struct err *e);

#endif
