/* t-gpu-int8.c - whole models with activations of 8 bits (backend_options.act_codes): the results
 * are near those of f16 activations; with int8 they have the same bits alone, in a batch and, with
 * --strict, in every schedule; the option is refused if it would have no effect. */
#include "tests/lib/gpu.h"

#include "gpu/gpu.h"
#include "gpu/rt/emulated.h"
#include "libcommon/engine/backend.h"
#include "tests/unit/tiny.h"

#pragma weak emulated_fail              /* a GPU has no injected faults, and does not tell its
                                         * launches */
#pragma weak emulated_watch

enum { N = 3, LEN = 22, N_BLOCKS = 32, MAX_TOKENS = 64 };

/* The first two layers of our own model in i8r, except two matrices of the second layer, which
 * share their input with matrices in i8r. */
static struct model *made(uint8_t **owned, int *n_owned)
{
    struct model *m = load("tiny");
    assert_non_null(m);
    int n = 0;
    m->config.n_layers = 2;
    for (int i = 0; i < m->config.n_layers; i++) {
        struct layer *l = &m->layers[i];
        struct linear *all[] = { &l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down };
        for (int k = 0; k < 7; k++)
            owned[n++] = quantize(all[k], i == 1 && (k == 1 || k == 5) ? QT_I8 : QT_I8R, 32, 32);
    }
    owned[n++] = quantize(&m->head, QT_I8R, 32, 32);
    *n_owned = n;
    return m;
}

static struct backend_options options(void)
{
    return (struct backend_options){ .n_threads = 2, .kv = kv_both(KV_F16), .n_blocks = N_BLOCKS,
                                     .max_tokens = MAX_TOKENS,
                                     .max_logits = MAX_TOKENS, .act_codes = ACT_CODES_INT8 };
}

static void *open_with(const struct backend *d, const struct model *m, const struct backend_options *o)
{
    void *b = d->open(m, o, &why);
    if (!b)
        fail_msg("%s", why.msg);
    return b;
}

static int32_t id[N][LEN], table[N][4];

static void begin(const struct model *m)
{
    struct rng r = { 8 };
    for (int s = 0; s < N; s++) {
        for (int i = 0; i < LEN; i++)
            id[s][i] = below(&r, m->config.vocab_size);
        for (int i = 0; i < 4; i++)
            table[s][i] = 1 + s + i * N;
    }
}

static struct batch_item item_of(int s, int pos, int n, int n_logits)
{
    return (struct batch_item){ .tokens = &id[s][pos], .n_tokens = n, .pos = pos, .table = table[s],
                                .n_logits = n_logits };
}

static void run(const struct backend *d, void *b, struct batch_item item, float *logits)
{
    OK(d->forward(b, &(struct batch){ &item, 1 }, logits, &why));
}

/* Compare a prompt of more than 16 tokens, fewer tokens after it, and then single tokens, with
 * exact results of the processor.  Rounding to 127 steps costs a few hundredths of the largest
 * logit, f16 a thousandth. */
static void near_f16(void **state)
{
    (void)state;
    enum { FIRST = 17, SECOND = 3 };
    uint8_t *owned[64 * 7 + 1];
    int n_owned;
    struct model *m = made(owned, &n_owned);
    const size_t vocab = (size_t)m->config.vocab_size;
    float *logits[3];
    begin(m);
    for (int way = 0; way < 3; way++) {                 /* 0: the processor; 1: f16; 2: int8 with
                                                         * every access checked */
        struct backend_options o = options();
        o.debug_sync = way == 2;
        o.act_codes = way == 2 ? ACT_CODES_INT8 : ACT_CODES_NONE;
        o.exact = way == 0;
        const struct backend *d = way ? &backend_gpu : &backend_cpu;
        void *b = open_with(d, m, &o);
        assert_int_equal(strstr(d->describe(b), "int8 activations") != NULL, way == 2);
        float *out = logits[way] = malloc(LEN * vocab * sizeof *out);
        run(d, b, item_of(0, 0, FIRST, FIRST), out);
        run(d, b, item_of(0, FIRST, SECOND, SECOND), out + FIRST * vocab);
        for (int i = FIRST + SECOND; i < LEN; i++)
            run(d, b, item_of(0, i, 1, 1), out + (size_t)i * vocab);
        d->close(b);
    }
    const double halves = error_of(logits[1], logits[0], LEN * vocab),
                 int8 = error_of(logits[2], logits[0], LEN * vocab);
    print_message("# of the largest logit: f16 %.1e, int8 %.1e\n", halves, int8);
    if (!(halves < 1e-2 && int8 < 4e-2 && int8 > halves))
        fail_msg("errors of the largest logit: f16 %.3g, int8 %.3g", halves, int8);
    for (int way = 0; way < 3; way++)
        free(logits[way]);
    while (n_owned)
        free(owned[--n_owned]);
    model_close(m);
}

/* Sequences that decode together, and later as a replayed graph, have the same bits as each of them
 * alone. */
static void alone_and_together(void **state)
{
    (void)state;
    enum { FIRST = 19 };
    uint8_t *owned[64 * 7 + 1];
    int n_owned;
    struct model *m = made(owned, &n_owned);
    const struct backend_options o = options();
    const size_t vocab = (size_t)m->config.vocab_size;
    float *alone[N], *got = malloc(N * vocab * sizeof *got);
    begin(m);
    void *b = open_with(&backend_gpu, m, &o);
    for (int s = 0; s < N; s++) {
        alone[s] = malloc(LEN * vocab * sizeof *got);
        run(&backend_gpu, b, item_of(s, 0, FIRST, 1), got);
        for (int i = FIRST; i < LEN; i++)
            run(&backend_gpu, b, item_of(s, i, 1, 1), alone[s] + (size_t)i * vocab);
    }
    for (int i = FIRST; i < LEN; i++) {
        struct batch_item item[N];
        for (int s = 0; s < N; s++)
            item[s] = item_of(s, i, 1, 1);
        OK(backend_gpu.forward(b, &(struct batch){ item, N }, got, &why));
        for (int s = 0; s < N; s++)
            if (memcmp(got + (size_t)s * vocab, alone[s] + (size_t)i * vocab, vocab * sizeof *got) != 0)
                fail_msg("sequence %d, position %d: other bits in a batch than alone", s, i);
    }
    backend_gpu.close(b);
    for (int s = 0; s < N; s++)
        free(alone[s]);
    free(got);
    while (n_owned)
        free(owned[--n_owned]);
    model_close(m);
}

/* With --strict prompts have the same bits at once and alone, and in random chunks and batches. */
static void strict(void **state)
{
    (void)state;
    uint8_t *owned[64 * 7 + 1];
    int n_owned, at[N] = { 0 };
    struct model *m = made(owned, &n_owned);
    struct backend_options o = options();
    struct rng r = { 2 };
    const size_t vocab = (size_t)m->config.vocab_size;
    float *want[N], *got = malloc(N * vocab * sizeof *got);
    o.strict = 1;
    begin(m);
    void *b = open_with(&backend_gpu, m, &o);
    for (int s = 0; s < N; s++)
        run(&backend_gpu, b, item_of(s, 0, LEN, LEN), want[s] = malloc(LEN * vocab * sizeof *got));
    for (int left = 1; left; ) {
        struct batch_item item[N];
        int of[N], n = 0;
        for (int s = 0; s < N; s++) {
            const int rest = LEN - at[s], n_tokens = rest && below(&r, 4) ? 1 + below(&r, rest < 20 ? rest : 20) : 0;
            if (n_tokens == 0)
                continue;
            of[n] = s;
            item[n++] = item_of(s, at[s], n_tokens, 1);
            at[s] += n_tokens;
        }
        OK(backend_gpu.forward(b, &(struct batch){ item, n }, got, &why));
        for (int i = 0; i < n; i++)
            if (memcmp(got + (size_t)i * vocab, want[of[i]] + (size_t)(at[of[i]] - 1) * vocab, vocab * sizeof *got) !=
                0)
                fail_msg("sequence %d, position %d: other bits in pieces than at once", of[i], at[of[i]] - 1);
        left = 0;
        for (int s = 0; s < N; s++)
            left += at[s] < LEN;
    }
    backend_gpu.close(b);
    for (int s = 0; s < N; s++)
        free(want[s]);
    free(got);
    while (n_owned)
        free(owned[--n_owned]);
    model_close(m);
}

static void count_fp8(void *user, const char *kernel, unsigned blocks, int threads, size_t shared)
{
    (void)blocks, (void)threads, (void)shared;
    *(int *)user += strcmp(kernel, "matmul_fp8_hopper") == 0;
}

/* A prompt of more than 128 tokens with fp8 activations, of a model with fp8 matrices, one of which
 * shares its input with one in i8: compared with exact results.  E4M3 rounds to 4 bits, which
 * costs several hundredths of the largest logit. */
static void fp8(void **state)
{
    (void)state;
    enum { FIRST = GPU_SPLIT_TOKENS + 6 };
    static int32_t prompt[FIRST + 1], blocks[16];
    uint8_t *owned[64 * 7 + 1];
    int n_owned = 0;
    struct model *m = load("tiny");
    const size_t vocab = (size_t)m->config.vocab_size;
    struct rng r = { 8 };
    float *logits[3];
    m->config.n_layers = 2;
    for (int i = 0; i < m->config.n_layers; i++) {
        struct layer *l = &m->layers[i];
        struct linear *all[] = { &l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down };
        for (int k = 0; k < 7; k++)
            owned[n_owned++] = i == 1 && k == 1 ? quantize(all[k], QT_I8, 32, 32) : quantize(all[k], QT_FP8, 128, 0);
    }
    for (int i = 0; i < FIRST + 1; i++)
        prompt[i] = below(&r, m->config.vocab_size);
    for (int i = 0; i < 16; i++)
        blocks[i] = 1 + i;
    for (int way = 0; way < 3; way++) {                 /* as in near_f16() */
        struct backend_options o = options();
        o.max_tokens = o.max_logits = FIRST;
        o.wgmma = 1;
        o.debug_sync = way == 2;
        o.act_codes = way == 2 ? ACT_CODES_FP8 : ACT_CODES_NONE;
        o.exact = way == 0;
        const struct backend *d = way ? &backend_gpu : &backend_cpu;
        void *b = open_with(d, m, &o);
        assert_int_equal(strstr(d->describe(b), "fp8 activations") != NULL, way == 2);
        logits[way] = malloc((FIRST + 1) * vocab * sizeof *logits[way]);
        int n_fp8 = 0;
        if (emulated_watch)
            emulated_watch(count_fp8, &n_fp8);
        run(d, b, (struct batch_item){ .tokens = prompt, .n_tokens = FIRST, .table = blocks, .n_logits = FIRST },
            logits[way]);
        if (emulated_watch) {           /* all matrices of both layers but one */
            emulated_watch(NULL, NULL);
            assert_int_equal(n_fp8, way == 2 ? 13 : 0);
        }
        run(d, b, (struct batch_item){ .tokens = prompt + FIRST, .n_tokens = 1, .pos = FIRST, .table = blocks,
                                       .n_logits = 1 }, logits[way] + FIRST * vocab);
        d->close(b);
    }
    const double halves = error_of(logits[1], logits[0], (FIRST + 1) * vocab),
                 codes = error_of(logits[2], logits[0], (FIRST + 1) * vocab);
    print_message("# of the largest logit: f16 %.1e, fp8 %.1e\n", halves, codes);
    if (!(halves < 1e-2 && codes < 8e-2 && codes > halves))
        fail_msg("errors of the largest logit: f16 %.3g, fp8 %.3g", halves, codes);
    struct backend_options o = options();
    o.act_codes = ACT_CODES_FP8;
    o.strict = 1;
    assert_null(backend_gpu.open(m, &o, &why));
    assert_non_null(strstr(why.msg, "--strict"));
    for (int way = 0; way < 3; way++)
        free(logits[way]);
    while (n_owned)
        free(owned[--n_owned]);
    model_close(m);
}

/* Models, or the device's layers of a model, without i8r matrices are refused, and f32 together
 * with int8; if a kernel fails, the error names it. */
static void refusals(void **state)
{
    (void)state;
    uint8_t *owned[64 * 7 + 1];
    int n_owned;
    struct model *m = load("tiny");
    struct backend_options o = options();
    struct gpu_plan plan;
    assert_null(backend_gpu.open(m, &o, &why));
    assert_int_equal(why.code, ERR_UNSUPPORTED);
    assert_non_null(strstr(why.msg, "--act int8: none of the matrices"));
    o.act_codes = ACT_CODES_FP8;
    assert_null(backend_gpu.open(m, &o, &why));
    assert_non_null(strstr(why.msg, "--act fp8: none of the matrices"));
    o.act_codes = ACT_CODES_INT8;
    const int last = m->config.n_layers - 1;
    owned[0] = quantize(&m->layers[0].up, QT_I8R, 32, 32);
    OK(gpu_plan(m, &o, &plan, &why));
    o.device_layers = last;             /* it is the processor's */
    assert_int_equal(gpu_plan(m, &o, &plan, &why), -1);
    o.device_layers = 0;
    o.exact = 1;
    assert_null(backend_gpu.open(m, &o, &why));
    assert_non_null(strstr(why.msg, "--exact"));
    free(owned[0]);
    model_close(m);
    if (!emulated_fail)
        return;
    static const char *const kernels[] = { "act_int8", "matvec_int8", "matmul_int8" };
    m = made(owned, &n_owned);
    begin(m);
    o = options();
    o.debug_sync = 1;
    float *logits = malloc((size_t)m->config.vocab_size * sizeof *logits);
    for (int i = 0; i < 3; i++) {
        void *b = open_with(&backend_gpu, m, &o);
        emulated_fail(kernels[i], 2);
        const struct batch_item item = item_of(0, 0, i == 1 ? 3 : 20, 1);
        assert_int_equal(backend_gpu.forward(b, &(struct batch){ &item, 1 }, logits, &why), -1);
        assert_non_null(strstr(why.msg, kernels[i]));
        emulated_fail(NULL, 0);
        backend_gpu.close(b);
    }
    free(logits);
    while (n_owned)
        free(owned[--n_owned]);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(near_f16), cmocka_unit_test(alone_and_together),
                                        cmocka_unit_test(strict), cmocka_unit_test(fp8), cmocka_unit_test(refusals) };
    if (gpu_kind[0] != 'e' && !device_usable())
        return 0;
    if (getenv("ZSE_SANITIZED"))        /* under a sanitizer only the tests of the backend's host
                                         * code run */
        return cmocka_run_group_tests(((const struct CMUnitTest[]){ cmocka_unit_test(alone_and_together) }), NULL,
                                      NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
