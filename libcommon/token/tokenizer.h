/* tokenizer.h - text to token ids and back, as the model's own tokenizer does it.
 *
 * A tokenizer is used from one flat block of bytes ("TOKB", layout in tokenizer_blob.h): hash
 * tables, merge ranks, added-token trie and pre-tokenizer description lie there as they are
 * used, so opening one from a .zse file parses nothing.  tokenizer_compile_* makes that block
 * from a source.  A tokenizer is read-only after opening: any number of threads may share it. */
#ifndef ZSE_TOKEN_TOKENIZER_H
#define ZSE_TOKEN_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

struct tokenizer;

/* ---- sources: each makes the block; the caller frees *blob with free() ---- */

/* tokenizer.json (Hugging Face) and, optional (NULL), tokenizer_config.json,
 * special_tokens_map.json and generation_config.json texts: they name BOS, EOS (several), and
 * whether to add them. */
struct tokenizer_files {
    const char *tokenizer_json;      size_t tokenizer_json_size;
    const char *tokenizer_config;    size_t tokenizer_config_size;      /* may be NULL */
    const char *special_tokens_map;  size_t special_tokens_map_size;    /* may be NULL */
    const char *generation_config;   size_t generation_config_size;     /* may be NULL */
    /* The model's config.json: last resort for bos/eos ids; may be NULL. */
    const char *config;              size_t config_size;
    /* tokenizer.model, used when tokenizer_json is NULL. */
    const void *sentencepiece;       size_t sentencepiece_size;
    /* GPT-2 style pair, used when both others are NULL. */
    const char *vocab_json, *merges_txt;
    size_t vocab_json_size, merges_txt_size;
};
int tokenizer_compile_files(const struct tokenizer_files *f, void **blob, size_t *size, struct err *e);

/* The tokenizer.ggml.* keys of a GGUF file. */
struct tokenizer_gguf {
    const char *model;                  /* "gpt2", "llama", "bert", "t5", ... */
    const char *pre;                    /* tokenizer.ggml.pre, may be NULL */
    /* general.name; may be NULL.  Only by this name do we know Phi-3, whose special tokens take the
     * blanks after them. */
    const char *name;
    int n_tokens;
    /* [n_tokens], UTF-8, with token_size bytes each (may hold '\0'). */
    const char *const *tokens;
    const size_t *token_size;
    const float *scores;                /* [n_tokens] or NULL */
    /* [n_tokens] or NULL: 1 normal 2 unknown 3 control 4 user-defined 5 unused 6 byte. */
    const int32_t *types;
    int n_merges;
    const char *const *merges;          /* [n_merges] "left right" */
    const size_t *merge_size;
    int32_t bos, eos, unk, pad, eot, sep, cls, mask;    /* -1: not there */
    int add_bos, add_eos, add_space_prefix;         /* -1: not there */
    int remove_extra_whitespaces;                   /* -1: not there */
    const void *precompiled_charsmap; size_t precompiled_charsmap_size;    /* may be NULL */
};
int tokenizer_compile_gguf(const struct tokenizer_gguf *g, void **blob, size_t *size, struct err *e);

/* ---- using one ---- */

/* blob is borrowed until tokenizer_close (usually it is part of a mapped file) and is checked
 * completely: no content of it can make later calls read outside it.  8-byte aligned. */
struct tokenizer *tokenizer_open(const void *blob, size_t size, struct err *e);
void tokenizer_close(struct tokenizer *t);

enum {
    TOKENIZE_ADD_SPECIAL = 1,           /* BOS/EOS or what the post-processor adds */
    /* "<|im_end|>" in the text becomes that token; else it is plain text. */
    TOKENIZE_PARSE_SPECIAL = 2,
};

/* Ids of text (any bytes; invalid UTF-8 is handled as the model's tokenizer would handle U+FFFD
 * or by bytes).  *ids is malloc'd (never NULL), the caller frees it.  Time near linear in size
 * for any input. */
int tokenizer_encode(const struct tokenizer *t, const char *text, size_t size, unsigned flags,
                     int32_t **ids, size_t *n_ids, struct err *e);

/* The text of ids as UTF-8; bytes that are not valid UTF-8 become U+FFFD.  skip_special leaves
 * special tokens out.  *text is malloc'd and '\0'-terminated.  Unknown ids are an error. */
int tokenizer_decode(const struct tokenizer *t, const int32_t *ids, size_t n_ids, int skip_special,
                     char **text, size_t *size, struct err *e);

int tokenizer_vocab_size(const struct tokenizer *t);                /* largest id + 1 */
int32_t tokenizer_bos(const struct tokenizer *t);                   /* -1: none */
/* All ids that end an answer (EOS, EOT, list of generation_config). */
const int32_t *tokenizer_eos(const struct tokenizer *t, int *n);
/* The ids that ADD_SPECIAL puts before a text, and after it; borrowed. */
const int32_t *tokenizer_prefix(const struct tokenizer *t, int *n);
const int32_t *tokenizer_suffix(const struct tokenizer *t, int *n);
int tokenizer_is_special(const struct tokenizer *t, int32_t id);
/* The id of the token with exactly this text, special tokens included; -1: none. */
int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t size);
/* The text of a token as the vocabulary file has it; NULL for an unused id.  Borrowed from the
 * blob. */
const char *tokenizer_token(const struct tokenizer *t, int32_t id, size_t *size);
/* "bpe", "bpe-fallback", "unigram", "wordpiece". */
const char *tokenizer_kind(const struct tokenizer *t);

/* ---- incremental detokenizer: never emits half a character ---- */
struct detok {
    const struct tokenizer *t;
    int skip_special;
    struct detok_state *state;          /* private, owned */
};
int detok_init(struct detok *d, const struct tokenizer *t, int skip_special, struct err *e);
/* The text that no later id can change any more: borrowed until the next call, may be empty (size
 * 0).  The concatenation over all ids plus detok_flush equals tokenizer_decode of all ids. */
int detok_push(struct detok *d, int32_t id, const char **text, size_t *size, struct err *e);
/* The rest of the text; an incomplete character becomes U+FFFD. */
int detok_flush(struct detok *d, const char **text, size_t *size, struct err *e);
void detok_release(struct detok *d);

#endif
