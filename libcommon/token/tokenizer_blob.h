/* tokenizer_blob.h - the bytes of a compiled tokenizer, "TOKB", version 1.
 *
 * Little endian, 8-byte aligned.  One header, then sections; every section starts at a multiple of
 * 8 and lies inside the block.  tokenizer_open checks the header (magic, version, size, checksum
 * over header and the OPS and TEXT sections), that each section lies inside the block and that its
 * size fits the counts of the header.  The large tables (tokens, vocabulary, merges) are not read
 * at open: every index taken from them is compared with its limit where it is used, so a damaged
 * table gives wrong ids, never a read outside.
 *
 *   TEXT        bytes of operation arguments (patterns, contents) and of the added tokens' patterns
 *   TOKENS      bytes of all token texts, one after the other
 *   OFFSETS     u32 [n_tokens + 1]: token i is TOKENS[OFFSETS[i] .. OFFSETS[i + 1])
 *   FLAGS       u8 [n_tokens]: TOKEN_*
 *   VOCAB       struct tokb_slot [power of two]: open addressing, linear probing from
 *               tok_hash_end() & (n - 1)
 *   MERGES      struct tokb_merge [n]: open addressing, linear probing from tok_merge_slot()
 *   SCORES      f64 [n_tokens] (unigram, and BPE by score), else empty
 *   CHAR_IDS    i32 [512]: id of the one-character text with that code point, -1 none
 *   BYTES       i32 [256]: id of "<0x00>" ... "<0xFF>", -1 none
 *   ADDED       struct tokb_added [n_added[0] + n_added[1]]: sorted bytewise by pattern in each
 *               half, patterns of a half are distinct;
 *               the first half is looked for in the text as given, the second in the normalized
 *               text
 *   ADDED_FIRST u32 [2][257]: patterns of half h that begin with byte b are [ADDED_FIRST[h][b],
 *   ADDED_FIRST[h][b + 1])
 *   OPS         struct tokb_op [n_ops[0] + n_ops[1] + n_ops[2]]: normalizers, pre-tokenizers,
 *               decoders, in order of application
 *   PAIRS       u8 [8192]: bit b1 * 256 + b2 (lowest first) is set if some text of the vocabulary
 *               has these two bytes next to each other;
 *               else no token spans them, and a word may be cut between (if MODEL_CUTS is set)
 *   EDGES       i32 [n_prefix + n_suffix + n_eos]: ids put before and after a text, ids that end an
 *               answer
 */
#ifndef ZSE_TOKEN_TOKENIZER_BLOB_H
#define ZSE_TOKEN_TOKENIZER_BLOB_H

#include <stddef.h>
#include <stdint.h>

enum { TOKB_VERSION = 1, TOKB_CHARS = 512, TOKB_MAX_IDS = 1 << 24, TOKB_MAX_OPS = 256 };

enum tokb_section {
    TOKB_TEXT, TOKB_TOKENS, TOKB_OFFSETS, TOKB_FLAGS, TOKB_VOCAB, TOKB_MERGES, TOKB_SCORES, TOKB_CHAR_IDS, TOKB_BYTES,
    TOKB_ADDED, TOKB_ADDED_FIRST, TOKB_OPS, TOKB_PAIRS, TOKB_EDGES, TOKB_N_SECTIONS
};

enum tokb_model { MODEL_BPE = 1, MODEL_BPE_SCORE, MODEL_UNIGRAM, MODEL_WORDPIECE, MODEL_WORDLEVEL };

enum {      /* tokb_header.flags */
    MODEL_IGNORE_MERGES = 1,        /* a word that is in the vocabulary becomes that token, whatever the merges say */
    MODEL_BYTE_FALLBACK = 2,        /* a symbol without a token becomes <0x..> tokens */
    MODEL_FUSE_UNK = 4,             /* unknown characters next to each other become one token */
    MODEL_ADDS_BOS = 8,             /* the first prefix id is BOS */
    /* unigram: sums of scores are rounded to float, as SentencePiece has them. */
    MODEL_FLOAT_SCORES = 32,
    MODEL_CUTS = 16,                /* BPE whose symbols are never unknown: PAIRS may be used */
};

enum {      /* FLAGS */
    TOKEN_USED = 1,                 /* the id has a text */
    TOKEN_SPECIAL = 2,              /* left out by skip_special; plain text without PARSE_SPECIAL */
    TOKEN_ADDED = 4,                /* matched in the text before the model runs */
    TOKEN_VERBATIM = 8,             /* its text is not touched by the decoders */
    TOKEN_BYTE = 16,                /* stands for the byte <0x..> */
    /* Normalizing changes its text: it is decoded as its pattern in ADDED (the Hugging Face
     * library does so). */
    TOKEN_NORMALIZED = 32,
};

struct tokb_slot { uint32_t hash, id; };            /* id TOKB_EMPTY: free */
/* left TOKB_EMPTY: a free slot.  The pair left, right becomes id; pairs of lower rank are joined
 * first. */
struct tokb_merge { uint32_t left, right, rank, id; };
#define TOKB_EMPTY 0xFFFFFFFFu

enum { ADDED_SINGLE_WORD = 1, ADDED_LSTRIP = 2, ADDED_RSTRIP = 4, ADDED_SPECIAL = 8 };
/* text: offset in TEXT. */
struct tokb_added { uint32_t text, size; int32_t id; uint32_t flags; };

enum tokb_op_type {
    /* normalizers */
    NORM_NFC = 1, NORM_NFD, NORM_NFKC, NORM_NFKD, NORM_LOWERCASE, NORM_STRIP_ACCENTS,
    NORM_STRIP /* number: 1 left, 2 right */,
    NORM_REPLACE /* a: pattern, b: content */, NORM_REPLACE_REGEX, NORM_PREPEND /* a */, NORM_APPEND /* a */,
    NORM_BERT_CLEAN /* number 1: white space that is a control character stays a space */,
    NORM_BERT_CHINESE, NORM_REMOVE_MN, NORM_NMT, NORM_BYTES,
    NORM_LEADING_JAMO /* a Hangul syllable becomes its first letter */,
    NORM_CHARSMAP /* a: map; number 1: by grapheme, 0: longest match anywhere */,
    NORM_SPACES /* SentencePiece: number 1: remove extra white space, 2: prefix a space */,
    NORM_LAST,
    /* pre-tokenizers */
    PRE_SPLIT = 32 /* a: literal; number: enum split_behaviour | SPLIT_INVERT */,
    PRE_SPLIT_REGEX, PRE_PREFIX_SPACE, PRE_BYTES,
    PRE_METASPACE /* a: replacement; number: enum metaspace */, PRE_FIXED_LENGTH /* number */,
    PRE_LAST,
    /* decoders */
    DEC_BYTES = 64, DEC_BYTE_FALLBACK, DEC_FUSE,
    DEC_STRIP /* a: content; number: start | stop << 16 */, DEC_REPLACE, DEC_REPLACE_REGEX,
    DEC_METASPACE /* a; number 1: no space before the first token */, DEC_WORDPIECE /* a: prefix; number 1: clean up */,
    DEC_SUFFIX /* a */, DEC_CTC /* a: pad, b: word delimiter; number 1: clean up */, DEC_JOIN_SPACE, DEC_CLEAN_SPACES,
    DEC_LAST,
};
enum split_behaviour { SPLIT_REMOVED, SPLIT_ISOLATED, SPLIT_PREVIOUS, SPLIT_NEXT, SPLIT_CONTIGUOUS, SPLIT_INVERT = 16 };
enum metaspace { METASPACE_FIRST = 1, METASPACE_ALWAYS = 2, METASPACE_SPLIT = 4 };
/* DEC_STRIP with this bit: strip nothing if the first id was a special token that was skipped. */
enum { STRIP_UNLESS_SKIPPED = 1u << 31 };

struct tokb_op {
    uint32_t type, number;
    uint32_t a, a_size, b, b_size;                  /* in TEXT */
};

struct tokb_header {
    char magic[4];                  /* "TOKB" */
    uint32_t version;
    uint64_t size;                  /* size of the block */
    /* FNV-1a over this header with checksum 0, then OPS, then TEXT. */
    uint32_t checksum;
    uint32_t model, flags;
    uint32_t n_tokens;              /* largest id + 1 */
    uint32_t n_vocab_slots, vocab_probes;   /* no search needs more steps than vocab_probes */
    uint32_t n_merge_slots, merge_probes;
    uint32_t max_token_size;        /* bytes of the longest text in VOCAB */
    int32_t bos, unk, pad;
    uint32_t n_prefix, n_suffix, n_eos;
    uint32_t n_added[2], n_ops[3];
    /* in TEXT; WordPiece: the prefix of a word's first piece */
    uint32_t word_prefix, word_prefix_size;
    /* the prefix of a word's later pieces: WordPiece and BPE (continuing_subword_prefix) */
    uint32_t next_prefix, next_prefix_size;
    uint32_t end_suffix, end_suffix_size;           /* BPE: the suffix of a word's last character */
    uint32_t max_word_chars;        /* WordPiece: longer words are unknown; 0: no limit */
    uint32_t pad0;
    double unk_score;               /* unigram */
    struct { uint64_t offset, size; } section[TOKB_N_SECTIONS];
};

/* The running hash of a token text: h = TOK_HASH_START, then h = tok_hash_step(h, byte) for each
 * byte, then tok_hash_end(h). */
#define TOK_HASH_START 0xcbf29ce484222325u
static inline uint64_t tok_hash_step(uint64_t h, unsigned char c) { return (h ^ c) * 0x100000001b3u; }
static inline uint32_t tok_hash_end(uint64_t h) { return (uint32_t)((h ^ h >> 29) * 0x9e3779b97f4a7c15u >> 32); }
static inline uint32_t tok_merge_slot(uint32_t left, uint32_t right, uint32_t n_slots)
{
    uint64_t h = ((uint64_t)left << 32 | right) * 0x9e3779b97f4a7c15u;
    h = (h ^ h >> 32) * 0xd6e8feb86659fd93u;
    return (uint32_t)((h >> 32) * n_slots >> 32);
}


uint32_t tokb_checksum(const struct tokb_header *h, const void *ops, size_t n_ops, const void *text, size_t n_text);

#endif
