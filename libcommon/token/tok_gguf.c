/* tok_gguf.c - compile the vocabulary in a GGUF file's metadata to a tokenizer.
 *
 * GGUF has only the name of the pre-tokenizer.  The table here has the regular expressions for each
 * name, taken from the models' tokenizer.json files and written in their syntax.  Where a family's
 * tokenizer.json normalizes to NFC, so do we (llama.cpp does not). */
#include <math.h>
#include <string.h>

#include "libcommon/token/tok_spec.h"

enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

/* ---- pre-tokenizers ---- */

#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define LINES_AND_SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define LLAMA3_DIGITS(digits) \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" LINES_AND_SPACES
#define LLAMA3 LLAMA3_DIGITS("\\p{N}{1,3}")
#define QWEN2 LLAMA3_DIGITS("\\p{N}")
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(after) "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" after "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" after
#define GPT4O CASED(CONTRACTIONS "?") "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" LINES_AND_SPACES
#define KIMI_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define DEEPSEEK3_WORDS \
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+"
#define CJK "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+"
#define BLOOM " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})]+"

/* Cased letters in DeepSeek's own list. */
#define DEEPSEEK_LETTERS \
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-" \
    "\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}" \
    "\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-" \
    "\\x{1CBA}\\x{1CBD}-\\x{1CBF}\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}\\x{1F18}-" \
    "\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}" \
    "\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-" \
    "\\x{1FDB}\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}\\x{210A}-\\x{2113}\\x{2115}" \
    "\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}" \
    "\\x{2145}-\\x{2149}\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}\\x{2CF2}" \
    "\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-" \
    "\\x{ABBF}\\x{FB00}-\\x{FB06}\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}\\x{104B0}-" \
    "\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"

enum { IGNORE_MERGES = 1, ADD_BOS = 2, NFC = 4, ADD_SEP = 8, SPACES = 16 /* U+2581 for spaces, no byte characters */ };

static const char *const re_gpt2[] = { GPT2, NULL };
static const char *const re_digit_gpt2[] = { "\\p{N}", GPT2, NULL };
static const char *const re_llama3[] = { LLAMA3, NULL };
static const char *const re_qwen2[] = { QWEN2, NULL };
static const char *const re_qwen35[] = {
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" LINES_AND_SPACES,
        NULL };
static const char *const re_jais2[] = {
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s{512}(?!\\S)|\\s{256}(?!\\S)|"
    "\\s{128}(?!\\S)|\\s{64}(?!\\S)|\\s{32}(?!\\S)|\\s{16}(?!\\S)|\\s{8}(?!\\S)|\\s{4}(?!\\S)|\\s{1,2}(?!\\S)|\\s{1}",
    NULL };
static const char *const re_deepseek_llm[] = {
    "[\\r\\n]", "\\s?[" DEEPSEEK_LETTERS "]+",
    "\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+", "\\s+$",
    "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+", "\\p{N}+", NULL };
static const char *const re_deepseek_coder[] = {
    "[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+", "\\p{N}",
        NULL };
static const char *const re_deepseek3[] = { "\\p{N}{1,3}", CJK, DEEPSEEK3_WORDS "[\\r\\n]*|" LINES_AND_SPACES, NULL };
static const char *const re_spark[] = { "\\p{N}{1,3}", CJK, DEEPSEEK3_WORDS "|[\\r\\n]|\\s+(?!\\S)|\\s+", "\\p{N}",
                                        NULL };
static const char *const re_falcon[] = { "[\\p{P}\\$\\+<=>\\^~\\|`]+", GPT2, "[0-9][0-9][0-9]", NULL };
static const char *const re_bloom[] = { BLOOM, NULL };
static const char *const re_viking[] = { BLOOM, "\\p{N}", NULL };
static const char *const re_tekken[] = { CASED("") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" LINES_AND_SPACES, NULL };
static const char *const re_gpt4o[] = { GPT4O, NULL };
static const char *const re_aya[] = { "\\d{1,3}(?=(?:\\d{3})*\\b)", GPT4O, NULL };
static const char *const re_youtu[] = {
    "[\\x{AC00}-\\x{D7A3}\\x{3131}-\\x{318E}]+|[\\x{FF01}\\x{2026}\\x{201C}\\x{201D}\\x{2018}\\x{2019}\\x{2014}\\x{FF1A}\\x{FF1B}\\x{FF0C}\\x{3001}-\\x{303F}"
    "\\x{FE30}-\\x{FE4F}]+|[\\x{3105}-\\x{312F}]+|" CJK,
    CASED(CONTRACTIONS "?") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" LINES_AND_SPACES, NULL };
static const char *const re_chameleon[] = {
    "<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", "([\\t\\n]|    |  )", "\\p{N}",
        "[\\p{P}!-/:-@\\[-`{-~]", GPT2, NULL };
static const char *const re_kimi[] = {
    "\\p{Han}+|[^\\r\\n\\p{L}\\p{N}]?" KIMI_UPPER "*" KIMI_LOWER "+" CONTRACTIONS "?|[^\\r\\n\\p{L}\\p{N}]?"
        KIMI_UPPER "+" KIMI_LOWER "*"
    CONTRACTIONS "?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|" LINES_AND_SPACES, NULL };
static const char *const re_superbpe[] = { "\\p{N}+", "(?=(\\d{3})+(?!\\d))", NULL };
static const char *const re_bailing[] = {
    "'(?i:[sdmt]|ll|ve|re)|[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+", NULL };
static const char *const re_seed[] = {
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}| ?[^\\s\\p{L}\\p{N}\\r\\n]+|" LINES_AND_SPACES, NULL };
static const char *const re_exaone_moe[] = {
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?(?:\\p{L}\\p{M}*(?: \\p{L}\\p{M}*)*)+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]?|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+", NULL };
static const char *const re_minicpm5[] = { "\\p{N}{1,3}", LLAMA3_DIGITS("\\p{N}+"), NULL };
static const char *const re_laguna[] = { "[^\\n]+|[\\n]+", QWEN2, NULL };
static const char *const re_default[] = { "[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]", NULL };
static const char *const re_none[] = { NULL };

/* One row for each group of names, each name ended by a blank. */
static const struct pre { const char *names; const char *const *regex; int flags; } pres[] = {
    { "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano ", re_llama3,
      IGNORE_MERGES | ADD_BOS },
    { "dbrx smaug-bpe chatglm-bpe glm4 ", re_llama3, 0 },
    { "jais-2 ", re_jais2, 0 },
    { "qwen2 megrez ", re_qwen2, NFC },
    { "deepseek-r1-qwen kormo f2llmv2 stablelm2 hunyuan grok-2 solar-open ", re_qwen2, 0 },
    { "qwen35 ", re_qwen35, NFC },
    { "gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert exaone4 jais trillion granite-docling ", re_gpt2, 0 },
    { "olmo mpt ", re_gpt2, NFC },
    { "jina-v1-en jina-v2-code roberta-bpe ", re_gpt2, ADD_BOS | ADD_SEP },
    { "starcoder refact smollm codeshell exaone minerva-7b mellum2 ", re_digit_gpt2, 0 },
    { "command-r ", re_digit_gpt2, NFC },
    { "falcon ", re_falcon, 0 },
    { "deepseek-llm ", re_deepseek_llm, 0 },
    { "deepseek-coder ", re_deepseek_coder, 0 },
    { "deepseek-v3 hunyuan-dense joyai-llm hy_v4 ", re_deepseek3, 0 },
    { "spark2_5 ", re_spark, 0 },
    { "bloom poro-chat gpt3-finnish ", re_bloom, 0 },
    { "viking ", re_viking, 0 },
    { "tekken ", re_tekken, IGNORE_MERGES | ADD_BOS },
    { "gpt-4o llama4 kanana2 talkie minimax-m2 ", re_gpt4o, 0 },
    { "granite-embed-multi-97m ", re_gpt4o, IGNORE_MERGES },
    { "tiny_aya cohere2moe ", re_aya, 0 },
    { "youtu ", re_youtu, IGNORE_MERGES },
    { "chameleon ", re_chameleon, ADD_BOS },
    { "kimi-k2 ", re_kimi, 0 },
    { "superbpe ", re_superbpe, 0 },
    { "bailingmoe bailingmoe2 llada-moe ", re_bailing, 0 },
    { "seed-coder ", re_seed, 0 },
    { "exaone-moe ", re_exaone_moe, 0 },
    { "minicpm5 ", re_minicpm5, IGNORE_MERGES },
    { "laguna ", re_laguna, 0 },
    { "gemma4 granite-embed-multi-311m ", re_none, ADD_BOS | SPACES },
    { "sarvam-moe ", re_none, SPACES },
    { "default ", re_default, 0 },
};

static const struct pre *find_pre(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof pres / sizeof *pres && n; i++)
        for (const char *p = pres[i].names; *p; p = strchr(p, ' ') + 1)
            if (!strncmp(p, name, n) && p[n] == ' ')
                return &pres[i];
    return NULL;
}

/* ---- the vocabulary ---- */

/* The end-of-turn tokens of known families; GGUF names at most two of a model. */
static const char *const end_name[] = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>",
        "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<turn|>", "</s>" };
enum { N_END_NAMES = sizeof end_name / sizeof *end_name };

/* The type of token i.  A user-defined token counts as a control token if its name is one that ends
 * a turn, because files give "</s>" different types. */
static int type_of(const struct tokenizer_gguf *g, int i)
{
    int type = g->types ? g->types[i] : NORMAL;
    for (int k = 0; type == USER_DEFINED && k < N_END_NAMES; k++)
        if (g->token_size[i] == strlen(end_name[k]) && !memcmp(g->tokens[i], end_name[k], g->token_size[i]))
            return CONTROL;
    return type;
}

static int vocabulary(struct tok_spec *s, const struct tokenizer_gguf *g, struct err *e)
{
    int unigram = s->model == MODEL_UNIGRAM;
    /* Phi-3's special tokens take the white space after them; its GGUF files do not say so. */
    int phi3 = g->name && (strcasestr(g->name, "phi-3") || strcasestr(g->name, "phi3"));
    if (g->n_tokens < 1)
        return err_set(e, ERR_FORMAT, "tokenizer.ggml.tokens: no tokens");
    for (int i = 0; i < g->n_tokens; i++) {
        const char *p = g->tokens[i];
        size_t n = g->token_size[i];
        int type = type_of(g, i), special = type == CONTROL || type == UNKNOWN, added = special || type == USER_DEFINED;
        int in_vocab = n && (!unigram || type == NORMAL || type == USER_DEFINED || type == UNUSED);
        double score = g->scores ? g->scores[i] : 0;
        if (isnan(score))
            return err_set(e, ERR_FORMAT, "tokenizer.ggml.scores: element %d is not a number", i);
        if (tok_spec_token(s, i, p, n, score, (added ? TOKEN_ADDED | TOKEN_VERBATIM : 0) |
                           (special ? TOKEN_SPECIAL : 0) | (type == BYTE ? TOKEN_BYTE : 0),
                           in_vocab, e))
            return -1;
        static const char *const keep[] = { "<unk>", "<s>", "<|endoftext|>" };
        int rstrip = phi3;
        for (int k = 0; k < 3; k++)
            rstrip &= n != strlen(keep[k]) || memcmp(p, keep[k], n);
        if (added && tok_spec_added(s, p, n, i, (special ? ADDED_SPECIAL : 0u) | (rstrip ? ADDED_RSTRIP : 0u), 0, e))
            return -1;
    }
    return tok_spec_index(s, e);
}

static int merges(struct tok_spec *s, const struct tokenizer_gguf *g, struct err *e)
{
    for (int i = 0; i < g->n_merges; i++) {
        const char *p = g->merges[i];
        size_t n = g->merge_size[i];
        const char *space = n > 1 ? memchr(p + 1, ' ', n - 1) : NULL;
        if (!space)
            return err_set(e, ERR_FORMAT, "tokenizer.ggml.merges: element %d: '%.*s', expected two parts and a blank between", i, n > 100 ? 100 : (int)n, p);
        /* 1 is no error: vocabularies that were cut down keep merges whose result is no token, and
         * these never apply */
        if (tok_spec_merge(s, p, (size_t)(space - p), space + 1, n - (size_t)(space - p) - 1, 0, e) < 0)
            return -1;
    }
    return 0;
}

static int32_t valid(const struct tokenizer_gguf *g, int32_t id, int32_t otherwise)
{
    if (id >= 0 && id < g->n_tokens)
        return id;
    return otherwise < g->n_tokens ? otherwise : -1;
}

static int ends_answer(struct tok_spec *s, const struct tokenizer_gguf *g, struct err *e)
{
    /* in the format harmony, <|end|> ends only a message, not the answer */
    int harmony = tok_spec_find(s, "<|return|>", 10) >= 0 && tok_spec_find(s, "<|call|>", 8) >= 0;
    if (tok_spec_eos(s, g->eot < g->n_tokens ? g->eot : -1, e))
        return -1;
    for (int i = 0; i < N_END_NAMES; i++) {
        int32_t id = tok_spec_find(s, end_name[i], strlen(end_name[i]));
        if (id >= 0 && type_of(g, id) == CONTROL && !(harmony && !strcmp(end_name[i], "<|end|>")) &&
            tok_spec_eos(s, id, e))
            return -1;
    }
    return 0;
}

static int edges(struct tok_spec *s, const struct tokenizer_gguf *g, int bos_first, int32_t last, struct err *e)
{
    if (g->add_bos >= 0)
        bos_first = g->add_bos;
    if (bos_first && s->bos < 0)
        return err_set(e, ERR_FORMAT, "tokenizer.ggml.add_bos_token is true, but there is no bos_token_id");
    if (g->add_eos == 1 && last < 0 && (last = s->n_eos ? s->eos[0] : -1) < 0)
        return err_set(e, ERR_FORMAT, "tokenizer.ggml.add_eos_token is true, but there is no eos_token_id");
    if (bos_first && tok_spec_id(&s->prefix, &s->n_prefix, s->bos, 1, e))
        return -1;
    return last >= 0 && g->add_eos ? tok_spec_id(&s->suffix, &s->n_suffix, last, 0, e) : 0;
}

/* ---- one function a kind of model ---- */

static int op(struct tok_spec *s, int stage, enum tokb_op_type type, uint32_t number, struct err *e)
{
    return tok_spec_op(s, stage, type, number, NULL, 0, NULL, 0, e);
}

static int escape_spaces(struct tok_spec *s, struct err *e)
{
    return tok_spec_op(s, SPEC_NORM, NORM_REPLACE, 0, " ", 1, "\xE2\x96\x81", 3, e);
}

static int gpt2(struct tok_spec *s, const struct tokenizer_gguf *g, const char *pre_name, struct err *e)
{
    const struct pre *pre = find_pre(pre_name);
    if (!pre)
        return err_set(e, ERR_UNSUPPORTED, "tokenizer.ggml.pre: pre-tokenizer '%.100s' is not known", pre_name);
    s->model = MODEL_BPE;
    s->flags = pre->flags & IGNORE_MERGES ? MODEL_IGNORE_MERGES : 0;
    if (pre->flags & SPACES)
        s->flags |= MODEL_BYTE_FALLBACK | MODEL_FUSE_UNK;
    if (vocabulary(s, g, e) || merges(s, g, e))
        return -1;
    s->bos = valid(g, g->bos, -1);
    s->pad = valid(g, g->pad, -1);
    if (pre->flags & SPACES)
        s->unk = valid(g, g->unk, -1);
    int32_t sep = valid(g, g->sep, valid(g, g->eos, -1));
    if (tok_spec_eos(s, valid(g, g->eos, -1), e) || ends_answer(s, g, e) ||
        edges(s, g, pre->flags & ADD_BOS && s->bos >= 0, pre->flags & ADD_SEP ? sep : -1, e))
        return -1;
    if (pre->flags & NFC && op(s, SPEC_NORM, NORM_NFC, 0, e))
        return -1;
    for (int i = 0; pre->regex[i]; i++)
        if (tok_spec_split(s, pre->regex[i], SPLIT_ISOLATED, e))
            return -1;
    if (pre->flags & SPACES)
        return escape_spaces(s, e) ? -1 : tok_spec_spm_decoders(s, 0, 0, e);
    return op(s, SPEC_PRE, PRE_BYTES, 0, e) ? -1 : op(s, SPEC_DEC, DEC_BYTES, 0, e);
}

static int sentencepiece(struct tok_spec *s, const struct tokenizer_gguf *g, struct err *e)
{
    int prefix = g->add_space_prefix != 0;
    s->model = MODEL_BPE_SCORE;
    s->flags = MODEL_BYTE_FALLBACK | MODEL_FUSE_UNK;
    if (!g->scores)
        return err_set(e, ERR_FORMAT, "tokenizer.ggml.scores: missing, needed for the model 'llama'");
    if (vocabulary(s, g, e))
        return -1;
    s->bos = valid(g, g->bos, 1);
    s->unk = valid(g, g->unk, 0);
    s->pad = valid(g, g->pad, -1);
    if (tok_spec_eos(s, valid(g, g->eos, 2), e) || ends_answer(s, g, e) || edges(s, g, s->bos >= 0, -1, e))
        return -1;
    if (prefix && tok_spec_op(s, SPEC_NORM, NORM_PREPEND, 0, " ", 1, NULL, 0, e))
        return -1;
    return escape_spaces(s, e) ? -1 : tok_spec_spm_decoders(s, prefix, 1, e);
}

static int t5(struct tok_spec *s, const struct tokenizer_gguf *g, struct err *e)
{
    int prefix = g->add_space_prefix != 0;
    double least = INFINITY;
    s->model = MODEL_UNIGRAM;
    s->flags = MODEL_FUSE_UNK;
    if (!g->scores)
        return err_set(e, ERR_FORMAT, "tokenizer.ggml.scores: missing, needed for the model 't5'");
    if (vocabulary(s, g, e))
        return -1;
    for (int i = 0; i < g->n_tokens; i++) {
        if (type_of(g, i) == NORMAL && g->scores[i] < least)
            least = g->scores[i];
        if (type_of(g, i) == USER_DEFINED)
            s->token[i].score = 0;
    }
    s->unk_score = (isinf(least) ? 0 : least) - 10;
    s->bos = valid(g, g->bos, -1);
    s->unk = valid(g, g->unk, 2);
    s->pad = valid(g, g->pad, 0);
    int32_t eos = valid(g, g->eos, 1);
    if (tok_spec_eos(s, eos, e) || edges(s, g, 0, eos, e))
        return -1;
    if (g->precompiled_charsmap_size && tok_spec_op(s, SPEC_NORM, NORM_CHARSMAP, 0, g->precompiled_charsmap,
                                                    g->precompiled_charsmap_size, NULL, 0, e))
        return -1;
    if (op(s, SPEC_NORM, NORM_SPACES, (uint32_t)((g->remove_extra_whitespaces == 1) | prefix << 1), e))
        return -1;
    return escape_spaces(s, e) ? -1 : tok_spec_spm_decoders(s, prefix, 1, e);
}

/* The converter of llama.cpp writes "##ing" as "ing" and "the" as U+2581 "the".  Embeddings that
 * llama.cpp made must agree with ours, so texts are normalized as llama.cpp does it, not as the
 * Hugging Face library does: all marks are dropped, only the first letter of a Hangul syllable
 * stays, and the length of words is not limited. */
static int bert(struct tok_spec *s, const struct tokenizer_gguf *g, struct err *e)
{
    s->model = MODEL_WORDPIECE;
    s->word_prefix = tok_spec_str(s, "\xE2\x96\x81", 3);
    if (vocabulary(s, g, e))
        return -1;
    s->bos = valid(g, g->cls >= 0 ? g->cls : g->bos, 101);
    s->unk = valid(g, g->unk, 100);
    s->pad = valid(g, g->pad, 0);
    int32_t sep = valid(g, g->sep >= 0 ? g->sep : g->eos, 102);
    if (tok_spec_eos(s, g->eos < g->n_tokens ? g->eos : -1, e) || edges(s, g, s->bos >= 0, sep, e))
        return -1;
    static const enum tokb_op_type norm[] = { NORM_BERT_CLEAN, NORM_BERT_CHINESE, NORM_LEADING_JAMO, NORM_NFD,
                                              NORM_STRIP_ACCENTS, NORM_LOWERCASE };
    for (size_t i = 0; i < sizeof norm / sizeof *norm; i++)
        if (op(s, SPEC_NORM, norm[i], norm[i] == NORM_BERT_CLEAN, e))
            return -1;
    if (tok_spec_split(s, "\\s", SPLIT_REMOVED, e) || tok_spec_split(s, "[\\p{P}!-/:-@\\[-`{-~]", SPLIT_ISOLATED, e))
        return -1;
    return tok_spec_op(s, SPEC_DEC, DEC_REPLACE, 0, "\xE2\x96\x81", 3, " ", 1, e)
               ? -1 : op(s, SPEC_DEC, DEC_CLEAN_SPACES, 0, e);
}

int tok_gguf_compile(struct tok_spec *s, const struct tokenizer_gguf *g, struct err *e)
{
    if (!g->model)
        return err_set(e, ERR_FORMAT, "tokenizer.ggml.model: missing");
    if (!strcmp(g->model, "gpt2"))
        return gpt2(s, g, g->pre ? g->pre : "default", e);
    if (!strcmp(g->model, "gemma4"))
        return gpt2(s, g, "gemma4", e);
    if (!strcmp(g->model, "llama"))
        return sentencepiece(s, g, e);
    if (!strcmp(g->model, "t5"))
        return t5(s, g, e);
    if (!strcmp(g->model, "bert"))
        return bert(s, g, e);
    return err_set(e, ERR_UNSUPPORTED, "tokenizer.ggml.model: '%.100s' is not supported (gpt2, llama, t5, bert and gemma4 are)", g->model);
}
