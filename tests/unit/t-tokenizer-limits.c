/* t-tokenizer-limits.c - long texts take nearly linear time; a damaged tokenizer block is refused
 * or harmless; any bytes can be encoded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/rng.h"
#include "libcommon/convert/tokenizer_source.h"
#include "libcommon/token/tokenizer.h"
#include "libcommon/token/tokenizer_blob.h"
#include "tests/lib/cpu.h"

static const char *oracles;

/* ---- near linear ---- */

static const char *const kind_name[] = { "one letter", "blanks", "line feeds", "random bytes", "random letters",
                                         "digits", "marks out of order", "emoji", "blanks and line feeds" };
enum { N_KINDS = sizeof kind_name / sizeof *kind_name };

static void fill(char *s, size_t n, int kind)
{
    struct rng r = { 7 };
    for (size_t i = 0; i < n; i++) {
        unsigned x = (unsigned)(rng_u64(&r) >> 40);
        switch (kind) {
        case 0: s[i] = 'a'; break;
        case 1: s[i] = ' '; break;
        case 2: s[i] = '\n'; break;
        case 3: s[i] = (char)x; break;
        case 4: s[i] = (char)('a' + x % 26); break;
        case 5: s[i] = (char)('0' + x % 10); break;
        case 6: s[i] = "\xCC\x81\xCC\x96"[i % 4]; break;
        case 7: s[i] = "\xF0\x9F\x98\x80"[i % 4]; break;
        default: s[i] = " \n\t "[x % 4];
        }
    }
}

static double seconds(const struct tokenizer *t, const char *s, size_t n)
{
    struct err e;
    int32_t *ids;
    size_t n_ids;
    double start = cpu_s();
    if (tokenizer_encode(t, s, n, TOKENIZE_PARSE_SPECIAL, &ids, &n_ids, &e))
        fail_msg("%s", e.msg);
    free(ids);
    return cpu_s() - start;
}

/* A text 16 times as long may take 96 times as long.  n log n would be 20 to 25 times, which caches
 * and page faults of a busy machine have doubled; quadratic growth would be 256.  Times under 20 ms
 * say nothing about growth. */
static void near_linear(const char *path)
{
    struct err e;
    size_t size, small = getenv("ZSE_SANITIZED") ? 8 << 10 : 16 << 10, big = 16 * small;
    void *blob;
    if (tokenizer_from_path(path, &blob, &size, &e))
        fail_msg("%s", e.msg);
    struct tokenizer *t = tokenizer_open(blob, size, &e);
    assert_non_null(t);
    char *s = malloc(big);
    assert_non_null(s);
    for (int kind = 0; kind < N_KINDS; kind++) {
        fill(s, big, kind);
        double a = fmin(seconds(t, s, small), seconds(t, s, small)), b = seconds(t, s, big);
        /* Other programs also use the caches: take the least of several measurements. */
        for (int again = 0; again < 8 && b > 0.02 && b > 96 * a; again++) {
            a = fmin(a, seconds(t, s, small));
            b = fmin(b, seconds(t, s, big));
        }
        printf("# %s: %s: %zu KB %.0f ms, %zu KB %.0f ms\n", strrchr(path, '/') + 1, kind_name[kind], small >> 10,
               a * 1e3, big >> 10, b * 1e3);
        if (b > 0.02 && b > 96 * a)
            fail_msg("%s: %s: %zu KB took %.4f s, %zu KB %.4f s", path, kind_name[kind], small >> 10, a, big >> 10, b);
    }
    free(s);
    tokenizer_close(t);
    free(blob);
}

static void tiny_takes_near_linear_time(void **state) { (void)state; near_linear("models/tiny"); }

static void oracles_take_near_linear_time(void **state)
{
    (void)state;
    static const char *const name[] = { "vocab-gguf/ggml-vocab-llama-spm.gguf", "vocab-gguf/ggml-vocab-bert-bge.gguf",
                                        "hf-tokenizers/qwen3" };
    char path[512];
    if (!oracles)
        skip();
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        snprintf(path, sizeof path, "%s/%s", oracles, name[i]);
        near_linear(path);
    }
}

static void unigram_takes_near_linear_time(void **state)
{
    (void)state;
    static const char json[] = "{\"model\": {\"type\": \"Unigram\", \"unk_id\": 0, \"vocab\": [[\"<unk>\", 0], [\"a\", -2], [\"aaaaaaaa\", -3], [\"\\u2581\", -2], "
                               "[\"\\u2581\\u2581\\u2581\\u2581\", -3], [\"ab\", -4]]}, \"normalizer\": {\"type\": \"NFKC\"}, \"pre_tokenizer\": {\"type\": \"Metaspace\", "
                               "\"replacement\": \"\\u2581\", \"split\": false}}";
    char path[] = "/tmp/t-tokenizer-XXXXXX", file[64];
    assert_non_null(mkdtemp(path));
    snprintf(file, sizeof file, "%s/tokenizer.json", path);
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    fputs(json, f);
    fclose(f);
    near_linear(path);
    unlink(file);
    rmdir(path);
}

/* ---- damage ---- */

static const char text[] = "Hello <|im_end|> w\xC3\xB6rld 12345  \n\t \xE2\x96\x81 \xF0\x9F\x98\x80 aaaaaaaaaaaa [MASK] <s>x</s> don't \xFF.";

static uint32_t checksum(char *b)
{
    struct tokb_header h;
    memcpy(&h, b, sizeof h);
    return tokb_checksum(&h, b + h.section[TOKB_OPS].offset, (size_t)h.section[TOKB_OPS].size,
                         b + h.section[TOKB_TEXT].offset, (size_t)h.section[TOKB_TEXT].size);
}

/* Open the block and use it.  It may be refused, but nothing may crash, and ids must be in the
 * vocabulary.  Returns 1 if it could be opened. */
static int use(const char *blob, size_t size)
{
    struct err e = { .msg = "" };
    struct tokenizer *t = tokenizer_open(blob, size, &e);
    int32_t *ids, all[64];
    size_t n;
    char *s;
    if (!t) {
        assert_true(e.msg[0] != '\0');
        return 0;
    }
    if (tokenizer_encode(t, text, sizeof text - 1, TOKENIZE_PARSE_SPECIAL | TOKENIZE_ADD_SPECIAL, &ids, &n, &e) == 0) {
        for (size_t i = 0; i < n; i++)
            assert_true(ids[i] >= 0 && ids[i] < tokenizer_vocab_size(t));
        if (tokenizer_decode(t, ids, n, 1, &s, &n, &e) == 0)
            free(s);
        free(ids);
    }
    for (int i = 0; i < 64; i++)
        all[i] = (int32_t)((int64_t)i * tokenizer_vocab_size(t) / 64);
    if (tokenizer_decode(t, all, 64, 0, &s, &n, &e) == 0)
        free(s);
    tokenizer_find(t, "ab", 2);
    tokenizer_close(t);
    return 1;
}

static void damage(const char *path)
{
    struct err e;
    size_t size;
    void *blob;
    if (tokenizer_from_path(path, &blob, &size, &e))
        fail_msg("%s", e.msg);
    char *b = malloc(size), *cut;
    assert_non_null(b);
    memcpy(b, blob, size);
    assert_int_equal(use(b, size), 1);
    struct tokb_header h;
    memcpy(&h, b, sizeof h);
    /* a block that is cut at any byte is refused, because its header has its size */
    for (size_t n = 0; n < size; n += n < sizeof h + 64 ? 1 : size / 200) {
        /* An allocation of exactly this size, so that a sanitizer detects reads behind its end. */
        cut = malloc(n + 1);
        memcpy(cut, b, n);
        assert_int_equal(use(cut, n), 0);
        free(cut);
    }
    /* damage bytes that the checksum covers: once with the old checksum, once with a corrected
     * one */
    size_t covered = (size_t)(h.section[TOKB_TEXT].offset + h.section[TOKB_TEXT].size + h.section[TOKB_OPS].size);
    size_t step = covered / 1500 + 1;
    int opened = 0;
    for (size_t i = 0; i < covered; i += i < sizeof h ? 1 : step) {
        static const unsigned char flip[] = { 1, 0x80, 0xFF };
        for (size_t k = 0; k < 3; k++) {
            b[i] = (char)(b[i] ^ flip[k]);
            uint32_t own;
            memcpy(&own, b + offsetof(struct tokb_header, checksum), 4);
            memcpy(&h, b, sizeof h);
            int sane = h.section[TOKB_OPS].offset + h.section[TOKB_OPS].size <= size &&
                       h.section[TOKB_TEXT].offset + h.section[TOKB_TEXT].size <= size &&
                       h.section[TOKB_OPS].offset <= size && h.section[TOKB_TEXT].offset <= size;
            int in_padding = i >= sizeof h && use(b, size);
            if (!in_padding)
                assert_int_equal(use(b, size), 0);
            if (sane && i >= sizeof h.magic) {
                uint32_t fits = checksum(b);
                memcpy(b + offsetof(struct tokb_header, checksum), &fits, 4);
                opened += use(b, size);
                memcpy(b + offsetof(struct tokb_header, checksum), &own, 4);
            }
            b[i] = (char)(b[i] ^ flip[k]);
        }
    }
    /* damage in the tables may lead to wrong ids, but not to a crash */
    step = (size - covered) / 3000 + 1;
    for (size_t i = covered; i < size; i += step) {
        char was = b[i];
        b[i] = (char)(was ^ (i % 2 ? 0xFF : 0x41));
        use(b, size);
        b[i] = was;
    }
    for (int s = 0; s < TOKB_N_SECTIONS; s++) {         /* a whole table of ones, then of zeros */
        memcpy(&h, blob, sizeof h);
        for (int v = 0; v < 2; v++) {
            memset(b + h.section[s].offset, v ? 0xFF : 0, (size_t)h.section[s].size);
            uint32_t fits = checksum(b);
            memcpy(b + offsetof(struct tokb_header, checksum), &fits, 4);
            use(b, size);
            memcpy(b, blob, size);
        }
    }
    assert_memory_equal(b, blob, size);
    printf("# %s: %zu bytes, %d broken headers opened\n", strrchr(path, '/') + 1, size, opened);
    free(b);
    free(blob);
}

static void damage_to_tiny_never_crashes(void **state) { (void)state; damage("models/tiny"); }

static void damage_to_oracles_never_crashes(void **state)
{
    (void)state;
    char path[512];
    static const char *const name[] = { "vocab-gguf/ggml-vocab-bert-bge.gguf", "vocab-gguf/ggml-vocab-llama-spm.gguf" };
    if (!oracles)
        skip();
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        snprintf(path, sizeof path, "%s/%s", oracles, name[i]);
        damage(path);
    }
}

/* ---- any bytes ---- */

static void any_bytes_encode_to_stable_ids(void **state)
{
    (void)state;
    struct err e;
    struct rng r = { 11 };
    size_t size, n, n_text;
    void *blob;
    assert_int_equal(tokenizer_from_path("models/tiny", &blob, &size, &e), 0);
    struct tokenizer *t = tokenizer_open(blob, size, &e);
    for (int i = 0; i < 2000; i++) {
        char s[64], *back;
        int32_t *ids;
        size_t len = rng_u64(&r) % sizeof s;
        for (size_t k = 0; k < len; k++)
            s[k] = (char)rng_u64(&r);
        assert_int_equal(tokenizer_encode(t, s, len, 0, &ids, &n, &e), 0);
        assert_int_equal(tokenizer_decode(t, ids, n, 0, &back, &n_text, &e), 0);
        /* valid bytes come back, others become U+FFFD; the resulting text encodes to the same
         * ids */
        int32_t *again;
        size_t n_again;
        assert_int_equal(tokenizer_encode(t, back, n_text, 0, &again, &n_again, &e), 0);
        assert_int_equal(n, n_again);
        assert_memory_equal(ids, again, n * sizeof *ids);
        free(ids);
        free(again);
        free(back);
    }
    int32_t wrong[] = { -1, 1 << 30 };
    char *s;
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tokenizer_decode(t, &wrong[i], 1, 0, &s, &n, &e), -1);
        assert_non_null(strstr(e.msg, "token id"));
    }
    tokenizer_close(t);
    free(blob);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_bytes_encode_to_stable_ids),
        cmocka_unit_test(damage_to_tiny_never_crashes), cmocka_unit_test(damage_to_oracles_never_crashes),
        cmocka_unit_test(tiny_takes_near_linear_time),
        cmocka_unit_test(unigram_takes_near_linear_time), cmocka_unit_test(oracles_take_near_linear_time),
    };
    oracles = getenv("ZSE_ORACLES") ? getenv("ZSE_ORACLES") : "../shared/oracles";
    if (access(oracles, R_OK)) {
        printf("# no oracles at %s (ZSE_ORACLES): skipped\n", oracles);
        oracles = NULL;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
