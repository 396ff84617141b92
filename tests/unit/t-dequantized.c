/* t-dequantized.c - quantized models against f32 models of the same values.
 *
 * Folders with each kind of mixer are converted to nl4 and int8.  Every matrix is then decoded to
 * f32 by mat_decode_row(), the definition of the types, and the f32 model must give the same logits
 * as the quantized one in f32 activations: t-models.py compares the f32 path with transformers.
 *
 * The weights are random, so some of these models depend on their weights much more than others.
 * To tell that from a bad rounding, the same f32 model also gets random errors, in each row of a
 * matrix as large as those of the type, and the divergence must not be much above that model's. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "libcommon/base/json.h"
#include "libcommon/base/rng.h"
#include "libcommon/convert/convert.h"
#include "libcommon/engine/backend.h"
#include "libcommon/model/parts.h"
#include "tests/lib/encode.h"

/* Sums of f32 in another order. */
static const double LIMIT = 1e-4;
/* The divergences are means over some hundred tokens.  With int8 few choices of experts or of keys
 * change, so that a single one counts.  The widest ratios were 1.2 and 2.1 when these were set. */
static const double BEYOND_NOISE = 1.5, BEYOND_NOISE_INT8 = 3;
enum { MAX_TOKENS = 128, N_BLOCKS = 16, MOST = 1 << 17, DRAWS = 3 };

static const char *const folders[] = {
    "hf/qwen3", "hf/deepseek_v3", "hf-2026/kimi_linear", "hf-2026/bailing_hybrid", "hf-2026/deepseek_v32",
    "hf-2026/glm_moe_dsa-skip", "hf-2026/deepseek_v4", "hf-2026/qwen3_5", "hf-2026/qwen3_5_moe", "hf-2026/gemma4-moe",
    "hf-2026/gemma4-e", "hf-2026/gemma3n", "hf-2026/minimax", "hf-2026/jamba", "hf-2026/bamba", "hf-2026/falcon_h1",
    "hf-2026/lfm2_moe", "hf-2026/olmo_hybrid", "hf-2026/qwen4_exp",
};

static struct err e;

static const char *oracle(const char *name)
{
    static char path[1024];
    const char *root = getenv("ZSE_ORACLES");
    snprintf(path, sizeof path, "%s/models/%s", root ? root : "../shared/oracles", name);
    return path;
}

static struct model *converted(const char *folder, const char *type)
{
    static char made[] = "/tmp/t-dequantized-XXXXXX";
    struct convert_options o;
    strcpy(made + sizeof made - 7, "XXXXXX");
    const int fd = mkstemp(made);
    assert_true(fd >= 0);
    close(fd);
    convert_defaults(&o);
    o.source = oracle(folder);
    o.output = made;
    o.n_threads = 2;
    o.overwrite = o.no_resume = 1;
    o.effort = CONVERT_FAST;
    if (convert_parse_type(&o.type, type, &e) != 0 || convert_run(&o, NULL, &e) != 0)
        fail_msg("%s: %s", folder, e.msg);
    struct zfile *z = zfile_open(made, &e);
    struct model *m = z ? model_bind(z, &e) : NULL;
    unlink(made);
    if (!m)
        fail_msg("%s: %s", folder, e.msg);
    return m;
}

/* ---- the logits of all prompts, one after the other ---- */

struct prompts { int n, n_tokens[8]; int32_t id[8][MAX_TOKENS]; };

static struct prompts read_prompts(const char *folder)
{
    char path[1100];
    struct prompts p = { 0 };
    snprintf(path, sizeof path, "%s/expected.json", oracle(folder));
    json_t *expected = js_load(path, 1 << 24, &e);
    const json_t *prompt, *id;
    size_t i, t;
    assert_non_null(expected);
    json_array_foreach(json_object_get(expected, "prompts"), i, prompt) {
        assert_true(i < 8);
        json_array_foreach(json_object_get(prompt, "ids"), t, id)
            if (t < MAX_TOKENS)
                p.id[i][p.n_tokens[i]++] = (int32_t)json_integer_value(id);
        p.n++;
    }
    json_decref(expected);
    return p;
}

/* Returns the number of logits in out [MOST]. */
static size_t run(const struct model *m, const struct prompts *p, int exact, float *out)
{
    const int tail = config_tail(&m->config, kv_both(KV_F32), MAX_TOKENS) > 0;
    const struct backend_options o = { .n_threads = 2, .kv = { KV_F32, KV_F32 }, .n_blocks = N_BLOCKS,
                                       .n_window_blocks = tail ? N_BLOCKS : 0, .max_tokens = MAX_TOKENS,
                                       .max_logits = MAX_TOKENS, .n_states = 1, .exact = exact };
    int32_t table[N_BLOCKS];
    size_t at = 0;
    void *b = backend_cpu.open(m, &o, &e);
    if (!b)
        fail_msg("%s", e.msg);
    for (int i = 0; i < N_BLOCKS; i++)
        table[i] = i;
    for (int i = 0; i < p->n; i++) {
        const struct batch_item item = { .tokens = p->id[i], .n_tokens = p->n_tokens[i], .table = table,
                                         .window_table = tail ? table : NULL, .n_logits = p->n_tokens[i] };
        const size_t n = (size_t)item.n_tokens * (size_t)m->config.vocab_size;
        assert_true(at + n <= MOST);
        if (backend_cpu.forward(b, &(struct batch){ &item, 1 }, out + at, &e) < 0)
            fail_msg("%s", e.msg);
        at += n;
    }
    backend_cpu.close(b);
    return at;
}

static double largest(const float *x, size_t n)
{
    double most = 0;
    for (size_t i = 0; i < n; i++)
        most = isfinite(x[i]) ? fmax(most, fabs(x[i])) : INFINITY;
    return most;
}

static double log_sum(const float *x, int n)
{
    double most = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++)
        most = fmax(most, x[i]);
    for (int i = 0; i < n; i++)
        sum += exp(x[i] - most);
    return most + log(sum);
}

/* Mean Kullback-Leibler divergence of the distributions of b from those of a. */
static double divergence(const float *a, const float *b, size_t n, int vocab)
{
    double sum = 0;
    for (size_t at = 0; at < n; at += (size_t)vocab) {
        const double la = log_sum(a + at, vocab), lb = log_sum(b + at, vocab);
        for (int i = 0; i < vocab; i++)
            sum += exp(a[at + (size_t)i] - la) * (a[at + (size_t)i] - la - b[at + (size_t)i] + lb);
    }
    return sum / ((double)n / vocab);
}

/* ---- other weights in place of a model's ---- */

struct owned { int n; void *data[4096]; };

/* The matrices of two models, which were converted from the same folder, one after the other. */
static void each_matrix(struct model *a, struct model *b, void (*change)(void *user, struct mat *a, struct mat *b),
                        void *user)
{
    for (int p = 0; p < N_END_PARTS; p++)
        if (end_matrix(a, p))
            change(user, &((struct linear *)end_field(a, p))->w, &((struct linear *)end_field(b, p))->w);
    for (int i = 0; i < a->config.n_layers; i++)
        for (int p = 0; p < N_LAYER_PARTS; p++) {
            struct layer *l = &a->layers[i], *other = &b->layers[i];
            const int n = part_infos[p].kind == PART_EXPERT ? l->experts ? a->config.moe.n_experts : 0
                          : layer_matrix(l, p) != NULL;
            for (int k = 0; k < n; k++) {
                struct linear *x = part_field(l, k, p), *y = part_field(other, k, p);
                if (x->w.data)
                    change(user, &x->w, &y->w);
            }
        }
}

/* Replace a by f32 tiles of the values x. */
static void set_values(struct owned *own, struct mat *a, const float *x)
{
    struct mat f;
    assert_int_equal(mat_init(&f, QT_F32, 32, 0, a->rows, a->cols, &e), 0);
    uint8_t *data = aligned_alloc(64, (f.size + 63) / 64 * 64);
    assert_true(data && own->n < 4096);
    mat_encode_float(&f, data, x, (size_t)f.cols);
    f.data = own->data[own->n++] = data;
    *a = f;
}

static void decode(void *user, struct mat *a, struct mat *b)
{
    (void)b;
    float *x = malloc((size_t)a->rows * (size_t)a->cols * sizeof *x);
    assert_non_null(x);
    for (int r = 0; r < a->rows; r++)
        mat_decode_row(a, r, x + (size_t)r * (size_t)a->cols);
    set_values(user, a, x);
    free(x);
}

struct noise { struct owned own; struct rng r; };

/* b is a matrix of an f32 model; give it errors that are as large as those of a, row by row. */
static void disturb(void *user, struct mat *a, struct mat *b)
{
    struct noise *o = user;
    const size_t cols = (size_t)a->cols;
    float *x = malloc((size_t)a->rows * cols * sizeof *x), *rounded = malloc(cols * sizeof *rounded);
    assert_true(x && rounded);
    for (int r = 0; r < a->rows; r++) {
        float *row = x + (size_t)r * cols;
        double sum = 0;
        mat_decode_row(a, r, rounded);
        mat_decode_row(b, r, row);
        for (size_t i = 0; i < cols; i++)
            sum += (double)(rounded[i] - row[i]) * (rounded[i] - row[i]);
        for (size_t i = 0; i < cols; i++)
            row[i] += (float)(sqrt(12 * sum / (double)cols) * (rng_double(&o->r) - 0.5));
    }
    set_values(&o->own, b, x);
    free(rounded);
    free(x);
}

static void release(struct owned *own)
{
    for (int i = 0; i < own->n; i++)
        free(own->data[i]);
    own->n = 0;
}

/* ---- the tests ---- */

static int has_oracles(void)
{
    if (access(oracle("hf-2026"), F_OK) == 0)
        return 1;
    print_message("# skipped: no oracles (set ZSE_ORACLES)\n");
    return 0;
}

static float *logits_room(void)
{
    float *x = malloc(MOST * sizeof *x);
    assert_non_null(x);
    return x;
}

/* Returns whether a folder passes, and prints its line of the table. */
static int check_values(const char *folder, const char *type)
{
    const struct prompts p = read_prompts(folder);
    struct model *m = converted(folder, type);
    struct owned own = { 0 };
    float *quantized = logits_room(), *plain = logits_room();
    const size_t n = run(m, &p, 1, quantized);
    each_matrix(m, m, decode, &own);
    run(m, &p, 1, plain);
    const double most = largest(plain, n);
    for (size_t i = 0; i < n; i++)
        plain[i] -= quantized[i];
    const double error = largest(plain, n) / most;
    print_message("# %-26s | %-5s | %3d matrices | %.1e\n", folder, type, own.n, error);
    model_close(m);
    release(&own);
    free(plain);
    free(quantized);
    return error <= LIMIT;
}

static void same_logits_as_decoded_weights(void **state)
{
    (void)state;
    int bad = 0;
    for (size_t i = 0; has_oracles() && i < sizeof folders / sizeof *folders; i++)
        bad += !check_values(folders[i], "nl4") + !check_values(folders[i], "int8");
    assert_int_equal(bad, 0);
}

static int check_noise(const char *folder, const char *type)
{
    const struct prompts p = read_prompts(folder);
    struct model *coded = converted(folder, type);
    float *exact = logits_room(), *other = logits_room();
    struct noise noise = { .r = { 24 } };
    struct model *m = converted(folder, "f32");
    const size_t n = run(m, &p, 1, exact);
    const int vocab = m->config.vocab_size;
    run(coded, &p, 1, other);
    const double mine = divergence(exact, other, n, vocab);
    run(coded, &p, 0, other);
    const double both = divergence(exact, other, n, vocab);
    double sum = 0;
    for (int d = 0; d < DRAWS; d++) {
        model_close(m);
        m = converted(folder, "f32");
        each_matrix(coded, m, disturb, &noise);
        run(m, &p, 1, other);
        sum += divergence(exact, other, n, vocab) / DRAWS;
        release(&noise.own);
    }
    print_message("# %-26s | %-5s | %.4f | %.4f with int8 activations | random errors %.4f\n", folder, type, mine,
                  both, sum);
    model_close(m);
    model_close(coded);
    free(other);
    free(exact);
    return strcmp(type, "int8") == 0 ? mine <= BEYOND_NOISE_INT8 * sum : fmax(mine, both) <= BEYOND_NOISE * sum;
}

static void rounding_is_no_worse_than_random_errors(void **state)
{
    (void)state;
    int bad = 0;
    if (getenv("ZSE_SANITIZED"))            /* no code that the test above does not run */
        skip();
    for (size_t i = 0; has_oracles() && i < sizeof folders / sizeof *folders; i++)
        bad += !check_noise(folders[i], "nl4") + !check_noise(folders[i], "int8");
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_logits_as_decoded_weights),
        cmocka_unit_test(rounding_is_no_worse_than_random_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
