/* t-tokenizer-steps.c - each normalizer, pre-tokenizer and decoder by itself, compared with results
 * of the Hugging Face library 0.23.3 (tokenizer-steps.jsonl); models with small vocabularies; a
 * SentencePiece file; config files; refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "libcommon/token/tok_norm.h"
#include "libcommon/token/tok_pretok.h"
#include "libcommon/token/tok_spec.h"

/* ---- one step ---- */

static int n_failed;

static void compare(const char *what, const json_t *row, const char *got, size_t n)
{
    const json_t *want = json_object_get(row, "want");
    if (n == json_string_length(want) && (n == 0 || !memcmp(got, json_string_value(want), n)))
        return;
    char *s = json_dumps(row, JSON_COMPACT);
    printf("# %s: got '%.*s' for %s\n", what, (int)n, got, s);
    free(s);
    n_failed++;
}

/* A tokenizer of single characters with this normalizer, pre-tokenizer or decoder. */
static json_t *with_step(const char *key, json_t *step)
{
    json_t *root = json_pack("{s:{s:s, s:{s:i}, s:s}, s:O}", "model", "type", "WordLevel", "vocab", "x", 0, "unk_token",
                             "x", key, step);
    assert_non_null(root);
    return root;
}

static void compile(struct tok_spec *s, const json_t *root)
{
    struct err e;
    char *text = json_dumps(root, JSON_COMPACT);
    struct tokenizer_files f = { .tokenizer_json = text, .tokenizer_json_size = strlen(text) };
    tok_spec_init(s);
    if (tok_json_compile(s, &f, &e))
        fail_msg("%s: %s", text, e.msg);
    free(text);
}

static void check_pre(const json_t *row)
{
    struct tok_spec s;
    struct err e;
    struct regex *regex[64] = { 0 };
    struct tbuf text = { 0 }, work = { 0 }, got = { 0 };
    struct pieces list = { 0 }, spare = { 0 };
    struct regex_scratch *w = regex_scratch_open();
    json_t *root = with_step("pre_tokenizer", json_object_get(row, "pre_tokenizer"));
    compile(&s, root);
    for (uint32_t i = 0; i < s.n_ops[SPEC_PRE]; i++)
        if (s.op[SPEC_PRE][i].type == PRE_SPLIT_REGEX)
            assert_non_null(regex[i] = regex_open(s.text.p + s.op[SPEC_PRE][i].a, s.op[SPEC_PRE][i].a_size, &e));
    tbuf_add(&text, json_string_value(json_object_get(row, "text")), json_string_length(json_object_get(row, "text")));
    assert_int_equal(pretok_run(s.op[SPEC_PRE], s.n_ops[SPEC_PRE], s.text.p, regex, w, &text, &work, 1, &list, &spare,
                                &e), 0);
    for (size_t i = 0; i < list.n; i++) {
        tbuf_add(&got, "|", i > 0);
        tbuf_add(&got, text.p + list.p[i].at, list.p[i].n);
    }
    compare("pre-tokenizer", row, got.p, got.n);
    for (uint32_t i = 0; i < s.n_ops[SPEC_PRE]; i++)
        regex_close(regex[i]);
    regex_scratch_close(w);
    pieces_release(&list);
    pieces_release(&spare);
    tbuf_release(&text);
    tbuf_release(&work);
    tbuf_release(&got);
    tok_spec_release(&s);
    json_decref(root);
}

static void check_norm(const json_t *row)
{
    struct tok_spec s;
    struct err e;
    struct tbuf text = { 0 };
    json_t *root = with_step("normalizer", json_object_get(row, "normalizer"));
    compile(&s, root);
    tbuf_add(&text, json_string_value(json_object_get(row, "text")), json_string_length(json_object_get(row, "text")));
    assert_int_equal(norm_text(s.op[SPEC_NORM], s.n_ops[SPEC_NORM], s.text.p, NULL, &text, &e), 0);
    compare("normalizer", row, text.p, text.n);
    tbuf_release(&text);
    tok_spec_release(&s);
    json_decref(root);
}

static struct tokenizer *open_json(const char *text, const char *config, void **blob)
{
    struct err e;
    size_t size;
    struct tokenizer_files f = { .tokenizer_json = text, .tokenizer_json_size = strlen(text),
                                 .tokenizer_config = config,
                                 .tokenizer_config_size = config ? strlen(config) : 0 };
    if (tokenizer_compile_files(&f, blob, &size, &e))
        fail_msg("%s", e.msg);
    struct tokenizer *t = tokenizer_open(*blob, size, &e);
    if (!t)
        fail_msg("%s", e.msg);
    return t;
}

/* Check a row for a decoder.  The vocabulary consists of the row's tokens, in their order. */
static void check_dec(const json_t *row)
{
    const json_t *tokens = json_object_get(row, "tokens"), *token;
    json_t *vocab = json_object(), *root = with_step("decoder", json_object_get(row, "decoder"));
    int32_t ids[32];
    size_t i, n, used = 0;
    struct err e;
    char *got;
    void *blob;
    json_array_foreach(tokens, i, token) {
        json_t *known = json_object_get(vocab, json_string_value(token));
        ids[i] = known ? (int32_t)json_integer_value(known) : (int32_t)used;
        if (!known)
            json_object_set_new(vocab, json_string_value(token), json_integer((json_int_t)used++));
    }
    json_object_set_new(json_object_get(root, "model"), "vocab", vocab);
    char *text = json_dumps(root, JSON_COMPACT);
    struct tokenizer *t = open_json(text, NULL, &blob);
    assert_int_equal(tokenizer_decode(t, ids, json_array_size(tokens), 0, &got, &n, &e), 0);
    compare("decoder", row, got, n);
    free(got);
    tokenizer_close(t);
    free(blob);
    free(text);
    json_decref(root);
}

static void each_step_gives_the_expected_result(void **state)
{
    (void)state;
    FILE *f = fopen("tests/unit/tokenizer-steps.jsonl", "r");
    char *line = NULL;
    size_t room = 0;
    int n = 0;
    assert_non_null(f);
    for (; getline(&line, &room, f) > 0; n++) {
        json_t *row = json_loads(line, JSON_ALLOW_NUL, NULL);
        assert_non_null(row);
        if (json_object_get(row, "pre_tokenizer"))
            check_pre(row);
        else if (json_object_get(row, "normalizer"))
            check_norm(row);
        else
            check_dec(row);
        json_decref(row);
    }
    printf("# %d steps\n", n);
    free(line);
    fclose(f);
    assert_true(n > 80);
    assert_int_equal(n_failed, 0);
}

/* ---- models ---- */

static void ids_are(const struct tokenizer *t, const char *text, unsigned flags, const char *want)
{
    struct err e;
    int32_t *ids;
    size_t n;
    char got[400] = "";
    assert_int_equal(tokenizer_encode(t, text, strlen(text), flags, &ids, &n, &e), 0);
    for (size_t i = 0; i < n; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), i ? " %d" : "%d", ids[i]);
    if (strcmp(got, want))
        fail_msg("'%s': got %s, want %s", text, got, want);
    free(ids);
}

static void bpe_merges_in_the_order_of_ranks(void **state)
{
    (void)state;
    void *blob;
    /* "ab" is merged before "bc", so abc becomes ab c; an unknown z becomes id 0, and several of
     * them together one id 0 */
    struct tokenizer *t = open_json("{\"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"fuse_unk\": true, \"vocab\": {\"?\": 0, \"a\": 1, \"b\": 2, \"c\": 3, "
                                    "\"ab\": 4, \"bc\": 5, \"abab\": 6}, \"merges\": [\"a b\", [\"b\", \"c\"], \"ab ab\"]}}", NULL, &blob);
    ids_are(t, "abc", 0, "4 3");
    ids_are(t, "bcab", 0, "5 4");
    ids_are(t, "ababab", 0, "6 4");
    ids_are(t, "zzabz", 0, "0 4 0");
    ids_are(t, "", 0, "");
    assert_int_equal(tokenizer_find(t, "bc", 2), 5);
    assert_int_equal(tokenizer_find(t, "bd", 2), -1);
    assert_string_equal(tokenizer_kind(t), "bpe");
    tokenizer_close(t);
    free(blob);
    /* with ignore_merges a whole word that is a token becomes that token, even if no merge produces
     * it */
    t = open_json("{\"model\": {\"type\": \"BPE\", \"ignore_merges\": true, \"vocab\": {\"a\": 0, \"b\": 1, \"ba\": 2}, \"merges\": []}}", NULL, &blob);
    ids_are(t, "ba", 0, "2");
    ids_are(t, "bab", 0, "1 0 1");
    tokenizer_close(t);
    free(blob);
}

static void wordpiece_takes_the_longest_pieces(void **state)
{
    (void)state;
    void *blob;
    struct tokenizer *t = open_json("{\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", \"max_input_chars_per_word\": 6, \"vocab\": "
                                    "{\"[UNK]\": 0, \"un\": 1, \"##do\": 2, \"##d\": 3, \"u\": 4, \"##o\": 5}}, \"pre_tokenizer\": {\"type\": \"Whitespace\"}}", NULL, &blob);
    ids_are(t, "undo uno und udx undoundo", 0, "1 2 1 5 1 3 0 0");
    tokenizer_close(t);
    free(blob);
}

static void unigram_takes_the_highest_score(void **state)
{
    (void)state;
    void *blob;
    /* abc as ab + c (-3) has a higher score than a + bc (-4) and a + b + c (-6); the score of the
     * unknown z is 10 below the least one */
    struct tokenizer *t = open_json("{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, \"vocab\": [[\"<unk>\", 0], [\"a\", -2], [\"b\", -2], [\"c\", -2], "
                                    "[\"ab\", -1], [\"bc\", -2]]}}", NULL, &blob);
    ids_are(t, "abc", 0, "4 3");
    ids_are(t, "bcab", 0, "5 4");
    ids_are(t, "azzb", 0, "1 0 2");
    tokenizer_close(t);
    free(blob);
}

#define BYTE_VOCAB "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"<s>\": 2, \"</s>\": 3, \"\\u0120\": 4, \"<x>\": 5, \"m\": 6}, \"merges\": []}, " \
    "\"added_tokens\": [{\"id\": 2, \"content\": \"<s>\", \"special\": true}, {\"id\": 3, \"content\": \"</s>\", \"special\": true, \"rstrip\": true}, " \
    "{\"id\": 5, \"content\": \"<x>\", \"lstrip\": true}, {\"id\": 6, \"content\": \"m\", \"single_word\": true}], " \
    "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"decoder\": {\"type\": \"ByteLevel\"}"

static void added_tokens_are_found_in_text(void **state)
{
    (void)state;
    void *blob;
    struct tokenizer *t = open_json(BYTE_VOCAB "}", NULL, &blob);
    ids_are(t, "a <s> b", TOKENIZE_PARSE_SPECIAL, "0 4 2 4 1");
    ids_are(t, "a</s>  b", TOKENIZE_PARSE_SPECIAL, "0 3 1");
    ids_are(t, "a  <x> b", TOKENIZE_PARSE_SPECIAL, "0 5 4 1");
    /* this vocabulary has no tokens for <, s and >; the token <x> is not special */
    ids_are(t, "a<s>b<x>", 0, "0 1 5");
    ids_are(t, "m am m", TOKENIZE_PARSE_SPECIAL, "6 4 0 6 4 6");
    assert_true(tokenizer_is_special(t, 2));
    assert_false(tokenizer_is_special(t, 5));
    tokenizer_close(t);
    free(blob);
}

static void special_tokens_are_added_at_the_ends(void **state)
{
    (void)state;
    void *blob;
    int n;
    static const char post[] = BYTE_VOCAB ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\"}}, "
        "{\"Sequence\": {\"id\": \"A\"}}, {\"SpecialToken\": {\"id\": \"</s>\"}}], \"special_tokens\": {\"<s>\": {\"ids\": [2]}, \"</s>\": {\"ids\": [3]}}}}";
    struct tokenizer *t = open_json(post, "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}}", &blob);
    ids_are(t, "ab", TOKENIZE_ADD_SPECIAL, "2 0 1 3");
    ids_are(t, "ab", 0, "0 1");
    ids_are(t, "", TOKENIZE_ADD_SPECIAL, "2 3");
    assert_int_equal(tokenizer_bos(t), 2);
    assert_int_equal(tokenizer_eos(t, &n)[0], 3);
    assert_int_equal(n, 1);
    tokenizer_close(t);
    free(blob);
    /* the config adds a BOS if the post-processor has none, and removes the one that it has; a huge
     * model_max_length means no limit */
    t = open_json(BYTE_VOCAB "}", "{\"bos_token\": \"<s>\", \"add_bos_token\": true, \"model_max_length\": 1000000000000000019884624838656}", &blob);
    ids_are(t, "a", TOKENIZE_ADD_SPECIAL, "2 0");
    tokenizer_close(t);
    free(blob);
    t = open_json(post, "{\"bos_token\": \"<s>\", \"add_bos_token\": false}", &blob);
    ids_are(t, "a", TOKENIZE_ADD_SPECIAL, "0 3");
    tokenizer_close(t);
    free(blob);
}

/* ---- tokenizer.model ---- */

static void pb_bytes(struct tbuf *b, int field, const void *p, size_t n)
{
    char head[2] = { (char)(field << 3 | 2), (char)n };
    assert_true(n < 128);
    tbuf_add(b, head, 2);
    tbuf_add(b, p, n);
}

static void pb_piece(struct tbuf *b, const char *text, float score, char type)
{
    struct tbuf p = { 0 };
    char t[2] = { 3 << 3, type };
    pb_bytes(&p, 1, text, strlen(text));
    tbuf_add(&p, "\x15", 1);
    tbuf_add(&p, &score, 4);
    tbuf_add(&p, t, 2);
    pb_bytes(b, 1, p.p, p.n);
    tbuf_release(&p);
}

static void sentencepiece_models_are_read_or_refused(void **state)
{
    (void)state;
    struct tbuf m = { 0 };
    struct err e;
    void *blob;
    size_t size;
    pb_piece(&m, "<unk>", 0, 2);
    pb_piece(&m, "<s>", 0, 3);
    pb_piece(&m, "</s>", 0, 3);
    pb_piece(&m, "<sep>", 0, 4);
    pb_piece(&m, "\xE2\x96\x81" "a", -1, 1);
    pb_piece(&m, "ab", -2, 1);
    pb_piece(&m, "\xE2\x96\x81", -3, 1);
    pb_piece(&m, "a", -4, 1);
    pb_piece(&m, "b", -5, 1);
    size_t pieces = m.n;
    pb_bytes(&m, 2, "\x18\x02", 2);                 /* field trainer_spec, with model_type BPE */
    struct tokenizer_files f = { .sentencepiece = m.p, .sentencepiece_size = m.n };
    assert_int_equal(tokenizer_compile_files(&f, &blob, &size, &e), 0);
    struct tokenizer *t = tokenizer_open(blob, size, &e);
    assert_non_null(t);
    ids_are(t, "ab", 0, "4 8");                     /* "_a" (-1) before "ab" (-2) */
    ids_are(t, " a  ab ", 0, "4 4 8");              /* blanks squeezed */
    ids_are(t, "ab<sep>ab", 0, "4 8 3 5");
    ids_are(t, "a</s>", TOKENIZE_ADD_SPECIAL | TOKENIZE_PARSE_SPECIAL, "1 4 2");
    ids_are(t, "axy", 0, "4 0");                    /* unknown characters are fused */
    char *text;
    int32_t ids[] = { 1, 4, 8, 6, 7 };
    assert_int_equal(tokenizer_decode(t, ids, 5, 1, &text, &size, &e), 0);
    assert_string_equal(text, "ab a");
    free(text);
    tokenizer_close(t);
    free(blob);
    /* A file that is cut is refused, or gives a smaller vocabulary. */
    for (size_t n = 0; n < pieces; n++) {
        f.sentencepiece_size = n;
        if (tokenizer_compile_files(&f, &blob, &size, &e) == 0)
            free(blob);
        else
            assert_non_null(strstr(e.msg, "tokenizer.model"));
    }
    tbuf_release(&m);
}

/* ---- GGUF: what the oracle files do not cover ---- */

static const char *gguf_tokens[] = { "<unk>", "<s>", "</s>", "a", "b", "1", "2", "\xC4\xA0", "ab", "\xE2\x96\x81",
                                     "\342\226\201a", "<0x0A>" };
enum { N_GGUF = sizeof gguf_tokens / sizeof *gguf_tokens };
static size_t gguf_sizes[N_GGUF];

static struct tokenizer_gguf gguf_of(const char *model, const char *pre)
{
    static const float scores[N_GGUF] = { 0, 0, 0, -2, -2, -3, -3, -9, -3, -2, -3, 0 };
    static const int32_t types[N_GGUF] = { 2, 3, 3, 1, 1, 1, 1, 1, 1, 1, 1, 6 };
    static const char *const merges[] = { "a b" };
    static const size_t merge_sizes[] = { 3 };
    for (int i = 0; i < N_GGUF; i++)
        gguf_sizes[i] = strlen(gguf_tokens[i]);
    return (struct tokenizer_gguf){ .model = model, .pre = pre, .n_tokens = N_GGUF, .tokens = gguf_tokens,
                                    .token_size = gguf_sizes, .scores = scores,
                                    .types = types, .n_merges = 1, .merges = merges, .merge_size = merge_sizes,
                                    .bos = 1, .eos = 2, .unk = 0, .pad = -1,
                                    .eot = -1, .sep = -1, .cls = -1, .mask = -1, .add_bos = -1, .add_eos = -1,
                                    .add_space_prefix = -1,
                                    .remove_extra_whitespaces = -1 };
}

static struct tokenizer *open_gguf(const struct tokenizer_gguf *g, void **blob)
{
    struct err e;
    size_t size;
    if (tokenizer_compile_gguf(g, blob, &size, &e))
        fail_msg("%s: %s", g->pre ? g->pre : g->model, e.msg);
    struct tokenizer *t = tokenizer_open(*blob, size, &e);
    if (!t)
        fail_msg("%s: %s", g->pre ? g->pre : g->model, e.msg);
    return t;
}

/* For every pre-tokenizer that has a name: its regular expressions are valid, letters stay
 * together, and a digit is separated from them. */
static void every_named_pre_tokenizer_works(void **state)
{
    (void)state;
    static const char names[] =
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano dbrx smaug-bpe chatglm-bpe glm4 jais-2 qwen2 megrez deepseek-r1-qwen "
        "kormo f2llmv2 stablelm2 hunyuan grok-2 solar-open qwen35 gpt-2 phi-2 jina-es jina-de jina-v2-es jina-v2-de gigachat a.x-4.0 mellum modern-bert "
        "exaone4 jais trillion granite-docling olmo mpt jina-v1-en jina-v2-code roberta-bpe starcoder refact smollm codeshell exaone minerva-7b mellum2 "
        "command-r falcon deepseek-llm deepseek-coder deepseek-v3 hunyuan-dense joyai-llm hy_v4 spark2_5 bloom poro-chat gpt3-finnish viking tekken gpt-4o "
        "llama4 kanana2 talkie minimax-m2 granite-embed-multi-97m tiny_aya cohere2moe youtu chameleon kimi-k2 superbpe bailingmoe bailingmoe2 llada-moe "
        "seed-coder exaone-moe minicpm5 laguna default ";
    char name[32];
    int n = 0, used;
    for (const char *p = names; sscanf(p, "%31s%n", name, &used) == 1; p += used, n++) {
        struct tokenizer_gguf g = gguf_of("gpt2", name);
        void *blob;
        struct tokenizer *t = open_gguf(&g, &blob);
        ids_are(t, "ab1 ab", 0, "8 5 7 8");
        tokenizer_close(t);
        free(blob);
    }
    assert_int_equal(n, 84);
}

static void gguf_models_give_the_expected_ids(void **state)
{
    (void)state;
    void *blob;
    struct tokenizer_gguf g = gguf_of("llama", NULL);
    struct tokenizer *t = open_gguf(&g, &blob);
    /* A blank (_) is added in front.  "_a" and "ab" have the same score, -3: the leftmost pair is
     * merged. */
    ids_are(t, "ab", TOKENIZE_ADD_SPECIAL, "1 10 4");
    ids_are(t, "\n", 0, "9 11");
    assert_string_equal(tokenizer_kind(t), "bpe-fallback");
    tokenizer_close(t);
    free(blob);
    g = gguf_of("llama", NULL);
    g.add_space_prefix = 0;
    g.add_eos = 1;
    g.add_bos = 0;
    t = open_gguf(&g, &blob);
    ids_are(t, "ab", TOKENIZE_ADD_SPECIAL, "8 2");
    tokenizer_close(t);
    free(blob);
    g = gguf_of("t5", NULL);
    g.remove_extra_whitespaces = 1;
    t = open_gguf(&g, &blob);
    /* "_ ab" and "_a b" both have a score of -5: the first one found is kept. */
    ids_are(t, "  ab  a ", TOKENIZE_ADD_SPECIAL, "9 8 10 2");
    ids_are(t, "ax?b", 0, "10 0 4");
    assert_string_equal(tokenizer_kind(t), "unigram");
    tokenizer_close(t);
    free(blob);
    g = gguf_of("gemma4", NULL);
    t = open_gguf(&g, &blob);
    ids_are(t, "ab a\n", TOKENIZE_ADD_SPECIAL, "1 8 9 3 11");
    tokenizer_close(t);
    free(blob);
}

/* ---- refused, with a sentence that names what ---- */

static void bad_tokenizers_are_refused(void **state)
{
    (void)state;
    static const char *const bad[][2] = {
        { "{", "line" },
        { "[]", "no model" },
        { "{\"model\": {\"type\": \"Oracle\"}}", "model 'Oracle'" },
        { "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": -1}, \"merges\": []}}", "id -1" },
        { "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 99999999}, \"merges\": []}}", "id 99999999" },
        { "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": \"b\"}, \"merges\": []}}", "token 'a'" },
        { "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [\"a a\"]}}", "merge 'a' + 'a'" },
        { "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": [\"aa\"]}}", "merge 0" },
        { "{\"model\": {\"type\": \"WordLevel\", \"vocab\": {}}}", "no tokens" },
        { "{\"model\": {\"type\": \"WordLevel\", \"vocab\": {\"a\": 0}}, \"normalizer\": {\"type\": \"Rot13\"}}",
          "normalizer 'Rot13'" },
        { "{\"model\": {\"type\": \"WordLevel\", \"vocab\": {\"a\": 0}}, \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}}}", "regular expression '('" },
        { "{\"model\": {\"type\": \"WordLevel\", \"vocab\": {\"a\": 0}}, \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a\"}}}", "set without ]" },
        { "{\"model\": {\"type\": \"WordLevel\", \"vocab\": {\"a\": 0}}, \"decoder\": {\"type\": \"Speak\"}}",
          "decoder 'Speak'" },
        { "{\"model\": {\"type\": \"WordLevel\", \"vocab\": {\"a\": 0}}, \"post_processor\": {\"type\": \"BertProcessing\", \"sep\": [\"x\", 7], \"cls\": [\"y\", 0]}}", "post_processor" },
        { "{\"model\": {\"type\": \"WordLevel\", \"vocab\": {\"a\": 0}}, \"added_tokens\": [{\"id\": 0, \"content\": \"b\"}]}", "added token 'b'" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct tokenizer_files f = { .tokenizer_json = bad[i][0], .tokenizer_json_size = strlen(bad[i][0]) };
        struct err e = { .msg = "" };
        void *blob;
        size_t size;
        assert_int_equal(tokenizer_compile_files(&f, &blob, &size, &e), -1);
        if (!strstr(e.msg, bad[i][1]))
            fail_msg("%s: '%s' does not say '%s'", bad[i][0], e.msg, bad[i][1]);
    }
    const char *tokens[] = { "a" };
    size_t sizes[] = { 1 };
    struct tokenizer_gguf g = { .model = "gpt2", .pre = "nobody-knows", .n_tokens = 1, .tokens = tokens,
                                .token_size = sizes, .bos = -1, .eos = -1, .unk = -1,
                                .pad = -1, .eot = -1, .sep = -1, .cls = -1, .mask = -1, .add_bos = -1, .add_eos = -1,
                                .add_space_prefix = -1 };
    struct err e;
    void *blob;
    size_t size;
    assert_int_equal(tokenizer_compile_gguf(&g, &blob, &size, &e), -1);
    assert_non_null(strstr(e.msg, "nobody-knows"));
    g.model = "abacus";
    assert_int_equal(tokenizer_compile_gguf(&g, &blob, &size, &e), -1);
    assert_non_null(strstr(e.msg, "abacus"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_step_gives_the_expected_result),
        cmocka_unit_test(bpe_merges_in_the_order_of_ranks), cmocka_unit_test(wordpiece_takes_the_longest_pieces),
        cmocka_unit_test(unigram_takes_the_highest_score),
        cmocka_unit_test(added_tokens_are_found_in_text),
        cmocka_unit_test(special_tokens_are_added_at_the_ends),
        cmocka_unit_test(sentencepiece_models_are_read_or_refused),
        cmocka_unit_test(every_named_pre_tokenizer_works), cmocka_unit_test(gguf_models_give_the_expected_ids),
        cmocka_unit_test(bad_tokenizers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
