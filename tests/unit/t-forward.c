/* t-forward.c - whole models in f32 against the logits and greedy ids of transformers: every dense
 * folder of the oracles, and every GGUF file (its weights decoded).  Prints a table.
 *
 * LIMIT: f32 sums of some hundred terms in another order differ by about 1e-6 of the largest; a
 * wrong epsilon, scale or rotation by far more. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/json.h"
#include "libcommon/engine/backend.h"
#include "libcommon/kernels/kernels.h"
#include "libcommon/model/arch.h"
#include "tests/unit/assemble.h"

static const double LIMIT = 1e-4;
enum { MAX_TOKENS = 256, N_BLOCKS = 64, SHORT = 8 };

static const char *const dense[] = {
    "arcee", "bloom", "cohere", "cohere2", "ernie4_5", "exaone4", "falcon", "falcon-7b", "gemma", "gemma2", "gemma3",
    "glm4", "gpt2", "gpt_bigcode", "gpt_neox",
    "gptj", "granite", "hunyuan", "llama", "llama-linear-rope", "llama-odd", "llama-yarn", "llama3-rope", "mistral",
    "mpt", "nemotron", "olmo", "olmo2", "opt", "phi", "phi3", "phi3-longrope", "qwen2", "qwen2-window", "qwen3",
    "seed_oss", "smollm3", "stablelm", "starcoder2",
};

/* With the plain kernels (which are slow, and which other tests compare with the other kernels for
 * any length), with sanitizers and on emulated processors, only these folders run prompts longer
 * than SHORT.  Their attention and positions cover all kinds that matter for long contexts:
 * windows, long factors, distances instead of positions. */
static const char *const any_length[] = { "bloom", "cohere2", "gemma3", "llama", "phi3-longrope", "qwen2-window" };

static int longest(const char *name)
{
    if (strcmp(kernels_pick(NULL, NULL)->name, "ref") != 0 && !getenv("ZSE_SANITIZED") && !getenv("ZSE_EMULATED"))
        return MAX_TOKENS;
    for (size_t i = 0; i < sizeof any_length / sizeof *any_length; i++)
        if (strcmp(any_length[i], name) == 0)
            return MAX_TOKENS;
    return SHORT;
}

static void oracle_path(char *out, size_t room, const char *fmt, ...)
{
    const char *root = getenv("ZSE_ORACLES");
    va_list ap;
    int n = snprintf(out, room, "%s/models/", root ? root : "../shared/oracles");
    va_start(ap, fmt);
    vsnprintf(out + n, room - (size_t)n, fmt, ap);
    va_end(ap);
}

static int32_t argmax(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

struct result { double error; int greedy_ok, n_prompts; };

/* Compute all logits of ids, with the keys in blocks from 0 on. */
static void forward(void *b, const int32_t *ids, int pos, int n, float *logits)
{
    int32_t table[N_BLOCKS];
    struct err e;
    for (int i = 0; i < N_BLOCKS; i++)
        table[i] = i;
    const struct batch_item item = { .tokens = ids, .n_tokens = n, .pos = pos, .table = table, .n_logits = n };
    if (backend_cpu.forward(b, &(struct batch){ &item, 1 }, logits, &e) < 0)
        fail_msg("%s", e.msg);
}

/* Prompts of more than `most` tokens are left out. */
static struct result run_prompts(const struct model *m, const json_t *expected, const float *want, size_t n_want,
                                 int most)
{
    const struct backend_options o = { .n_threads = 2, .kv = { KV_F32, KV_F32 }, .n_blocks = N_BLOCKS,
                                       .max_tokens = MAX_TOKENS, .max_logits = MAX_TOKENS, .exact = 1 };
    struct err e;
    struct result r = { 0, 1, 0 };
    const size_t vocab = (size_t)m->config.vocab_size;
    void *b = backend_cpu.open(m, &o, &e);
    if (!b)
        fail_msg("%s", e.msg);
    float *got = malloc(MAX_TOKENS * vocab * sizeof *got);
    size_t i, at = 0;
    const json_t *prompt;
    json_array_foreach(json_object_get(expected, "prompts"), i, prompt) {
        const json_t *ids = json_object_get(prompt, "ids"), *greedy = json_object_get(prompt, "greedy"),
                     *gap = json_object_get(prompt, "greedy_gap");
        int32_t id[MAX_TOKENS];
        int n = (int)json_array_size(ids);
        assert_true(n > 0 && n + (int)json_array_size(greedy) <= MAX_TOKENS && (at + (size_t)n) * vocab <= n_want);
        if (n > most) {
            at += (size_t)n;
            continue;
        }
        r.n_prompts++;
        for (int t = 0; t < n; t++)
            id[t] = (int32_t)json_integer_value(json_array_get(ids, (size_t)t));
        forward(b, id, 0, n, got);
        double max = 0, error = 0;
        for (size_t j = 0; j < (size_t)n * vocab; j++) {
            max = fmax(max, fabs(want[at * vocab + j]));
            error = isfinite(got[j]) ? fmax(error, fabs((double)got[j] - want[at * vocab + j])) : INFINITY;
        }
        r.error = fmax(r.error, error / max);
        at += (size_t)n;
        const float *last = got + (size_t)(n - 1) * vocab;
        for (size_t g = 0; g < json_array_size(greedy); g++) {
            const int32_t next = argmax(last, (int)vocab);
            if (next != json_integer_value(json_array_get(greedy, g))) {
                r.greedy_ok &= json_number_value(json_array_get(gap, g)) <= error + 1e-6;
                break;
            }
            forward(b, &next, n + (int)g, 1, got);
            last = got;
        }
    }
    assert_int_equal(at * vocab, n_want);
    free(got);
    backend_cpu.close(b);
    return r;
}

static float *read_floats(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f) / sizeof(float);
    rewind(f);
    float *x = malloc(*n * sizeof *x + 1);
    assert_int_equal(fread(x, sizeof *x, *n, f), *n);
    fclose(f);
    return x;
}

/* 1 if the results agree; 0 if not, with a line in the table; -1 if there is no such oracle */
static int check(const char *name, const char *source_path, const char *json_path, const char *logits_path)
{
    struct err e;
    size_t n;
    float *want = read_floats(logits_path, &n);
    if (!want)
        return -1;
    json_t *expected = js_load(json_path, 1 << 24, &e);
    struct source *s = expected ? source_open(source_path, &e) : NULL;
    struct model *m = s ? model_assemble(s, QT_F32, &e) : NULL;
    source_close(s);
    int ok = 0;
    if (m) {
        struct result r = run_prompts(m, expected, want, n, longest(name));
        ok = r.error <= LIMIT && r.greedy_ok && r.n_prompts > 0;
        print_message("# %-18s | %-6s | %7d | %.1e | %s\n", name, kernels_pick(NULL, NULL)->name, r.n_prompts, r.error,
                      r.greedy_ok ? "ok" : "DIFFERENT");
    } else {
        print_message("# %-18s | %s\n", name, e.msg);
    }
    model_close(m);
    json_decref(expected);
    free(want);
    return ok;
}

static void logits_match_the_references(void **state)
{
    (void)state;
    const char *only = getenv("ZSE_TEST_FOLDER");       /* one of them alone */
    int bad = 0, seen = 0;
    print_message("# %-18s | %-6s | prompts | max error / max |logit| | greedy\n", "folder", "set");
    for (size_t i = 0; i < sizeof dense / sizeof *dense; i++) {
        char source[400], expected[400], logits[400];
        if (only && strcmp(only, dense[i]) != 0)
            continue;
        oracle_path(source, sizeof source, "hf/%s", dense[i]);
        oracle_path(expected, sizeof expected, "hf/%s/expected.json", dense[i]);
        oracle_path(logits, sizeof logits, "hf/%s/logits.f32", dense[i]);
        int ok = check(dense[i], source, expected, logits);
        seen += ok >= 0;
        bad += ok == 0;
    }
    if (!seen) {
        print_message("# skipped: no oracles (set ZSE_ORACLES)\n");
        skip();
    }
    assert_true(only || seen == sizeof dense / sizeof *dense);
    assert_int_equal(bad, 0);
}

static void logits_of_gguf_files_match_the_references(void **state)
{
    (void)state;
    char dir[400], source[800], expected[800], logits[800];
    if (getenv("ZSE_TEST_FOLDER"))
        skip();
    oracle_path(dir, sizeof dir, "gguf");
    DIR *d = opendir(dir);
    if (!d) {
        print_message("# skipped: no oracles (set ZSE_ORACLES)\n");
        skip();
    }
    int bad = 0, seen = 0;
    for (struct dirent *f; (f = readdir(d)); ) {
        const size_t n = strlen(f->d_name);
        if (n < 6 || strcmp(f->d_name + n - 5, ".gguf") != 0)
            continue;
        snprintf(source, sizeof source, "%s/%s", dir, f->d_name);
        snprintf(expected, sizeof expected, "%s/%.*s.json", dir, (int)n - 5, f->d_name);
        snprintf(logits, sizeof logits, "%s/%.*s.logits.f32", dir, (int)n - 5, f->d_name);
        seen++;
        bad += check(f->d_name, source, expected, logits) != 1;
    }
    closedir(d);
    assert_true(seen > 0);
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_match_the_references),
        cmocka_unit_test(logits_of_gguf_files_match_the_references),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
