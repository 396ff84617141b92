/* t-gpu-time.c - the model of time: its list of launches is what the emulated backend launches,
 * kernel by kernel with grids, threads and shared memory; no prediction is below its roof. */
#include "tests/lib/gpu_model.h"

#include "gpu/gpu.h"
#include "gpu/rt/emulated.h"
#include "gpu/time/launch_time.h"
#include "libcommon/engine/backend.h"

#pragma weak emulated_watch             /* a GPU does not tell its launches */

enum { MAX_TOKENS = 320, N_BLOCKS = 64, MOST_SEEN = 256 };

static struct {
    int n;
    struct { char kernel[24]; unsigned blocks; int threads; size_t shared; } at[MOST_SEEN];
} launched;

static void note(void *user, const char *kernel, unsigned blocks, int threads, size_t shared)
{
    (void)user;
    assert_true(launched.n < MOST_SEEN);
    snprintf(launched.at[launched.n].kernel, sizeof launched.at[0].kernel, "%s", kernel);
    launched.at[launched.n].blocks = blocks;
    launched.at[launched.n].threads = threads;
    launched.at[launched.n++].shared = shared;
}

/* A step of n_seqs sequences, whose n tokens each end at position `end`. */
static void run_step(void *b, int n_seqs, int n, int end, int prompt)
{
    static int32_t ids[MAX_TOKENS], table[N_BLOCKS];
    static float logits[64 * 1024];
    struct batch_item items[64];
    struct draw draws[64];
    for (int i = 0; i < N_BLOCKS; i++)
        table[i] = i;
    for (int i = 0; i < n_seqs; i++) {
        draws[i] = (struct draw){ .temperature = 0, .top_p = 1 };
        items[i] = (struct batch_item){ .tokens = ids, .n_tokens = n, .pos = end - n, .table = table, .n_logits = 1,
                                        .draw = prompt ? NULL : &draws[i] };
    }
    launched.n = 0;
    emulated_watch(note, NULL);
    OK(backend_gpu.forward(b, &(struct batch){ items, n_seqs }, logits, &why));
    emulated_watch(NULL, NULL);
}

static struct timed_gpu emulated_gpu(void)
{
    struct gpu *g = gpu_open(0, 0, &why);
    assert_non_null(g);
    struct timed_gpu t = *timed_gpu_find("h200");
    t.n_sms = gpu_n_sms(g);
    gpu_close(g);
    return t;
}

static void same_launches(const struct model *m, void *b, const struct timed_step *s)
{
    const struct timed_gpu g = emulated_gpu();
    struct timed_launches l;
    run_step(b, s->n_tokens ? 1 : s->n_seqs, s->n_tokens ? s->n_tokens : 1, s->context, s->n_tokens > 0);
    OK(timed_launches(m, &g, s, &l, &why));
    int n = 0;
    for (int i = 0; i < l.n; i++)       /* later stages of a launch are no launches */
        if (l.launch[i].stage == 0)
            l.launch[n++] = l.launch[i];
    l.n = n;
    for (int i = 0; i < l.n && i < launched.n; i++) {
        const struct timed_launch *p = &l.launch[i];
        if (strcmp(p->kernel, launched.at[i].kernel) != 0 || p->blocks != launched.at[i].blocks ||
            p->threads != launched.at[i].threads || p->shared != launched.at[i].shared)
            fail_msg("%d sequences, %d tokens, launch %d: %s (%s) of %u blocks, %d threads, %zu bytes; launched: %s of %u, %d, %zu",
                     s->n_seqs, s->n_tokens, i, p->kernel, p->what, p->blocks, p->threads, p->shared,
                     launched.at[i].kernel, launched.at[i].blocks, launched.at[i].threads, launched.at[i].shared);
    }
    assert_int_equal(l.n, launched.n);
    timed_launches_release(&l);
}

/* Steps of one token whose layers are one launch, if the model has them. */
static void same_one_launch(const struct model *m, enum one_launch one, int has)
{
    const struct backend_options o = { .n_threads = 2, .kv = { KV_F16, KV_F16 }, .n_blocks = N_BLOCKS,
                                       .n_states = 1, .max_tokens = MAX_TOKENS, .max_logits = 64, .one_launch = one };
    void *b = backend_gpu.open(m, &o, &why);
    if (!b)
        fail_msg("%s", why.msg);
    same_launches(m, b, &(struct timed_step){ 1, 5, 0, 0, one });
    assert_int_equal(strcmp(launched.at[1].kernel, "one_token") == 0, has);
    same_launches(m, b, &(struct timed_step){ 1, 300, 0, 0, one });
    same_launches(m, b, &(struct timed_step){ 2, 5, 0, 0, one });
    backend_gpu.close(b);
}

static void same_steps(const struct model *m, int wgmma)
{
    const struct backend_options o = { .n_threads = 2, .kv = { KV_F16, KV_F16 }, .n_blocks = N_BLOCKS,
                                       .n_states = 1, .max_tokens = MAX_TOKENS, .max_logits = 64, .wgmma = wgmma };
    const struct timed_step steps[] = { { 1, 5, 0, wgmma, 0 }, { 1, 300, 0, wgmma, 0 }, { 3, 40, 0, wgmma, 0 },
                                        { 16, 7, 0, wgmma, 0 },
                                        { 17, 7, 0, wgmma, 0 }, { 1, 20, 20, wgmma, 0 }, { 1, 140, 140, wgmma, 0 },
                                        { 1, 60, 17, wgmma, 0 }, { 1, 60, 40, wgmma, 0 } };
    void *b = backend_gpu.open(m, &o, &why);
    if (!b)
        fail_msg("%s", why.msg);
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++)
        same_launches(m, b, &steps[i]);
    backend_gpu.close(b);
}

static void test_dense(void **state)
{
    (void)state;
    void *owned[2 * 7 * 8];
    struct model *m = load("tiny", QT_F16);
    int n = quantize_dense(m, QT_NL4, 32, owned);
    same_steps(m, 0);
    same_steps(m, 1);
    same_one_launch(m, ONE_LAUNCH_ON, 1);
    same_one_launch(m, ONE_LAUNCH_AUTO, 0);
    n += mix_types(m, owned + n);
    same_steps(m, 0);
    same_one_launch(m, ONE_LAUNCH_ON, 1);
    for (int i = 0; i < n; i++)
        free(owned[i]);
    model_close(m);
}

/* Keys and values of another type than queries need launches of their own. */
static void test_mixed_types(void **state)
{
    (void)state;
    uint8_t *owned[8];
    struct model *m = load("tiny", QT_F16);
    owned[0] = quantize(&m->layers[0].k, QT_I8, 32);
    owned[1] = quantize(&m->layers[1].up, QT_I8, 32);
    same_steps(m, 0);
    free(owned[0]);
    free(owned[1]);
    model_close(m);
}

static void test_experts(void **state)
{
    (void)state;
    uint8_t *owned[MOST_EXPERT_MATS];
    struct model *m = load("tiny", QT_F16);
    const int n = make_mixture(m, QT_NL4, 32, owned);
    same_steps(m, 0);
    for (int i = 0; i < n; i++)
        free(owned[i]);
    model_close(m);
}

static void test_roof(void **state)
{
    (void)state;
    const struct timed_gpu *g;
    struct model *m = load("tiny", QT_F16);
    for (int i = 0; (g = timed_gpu_at(i)) != NULL; i++)
        for (int n = 1; n <= 512; n *= 2) {
            struct timed_launches l;
            OK(timed_launches(m, g, &(struct timed_step){ n, 600, n > 64 ? n : 0, 1, 0 }, &l, &why));
            double seconds = 0, roof = 0;
            for (int k = 0; k < l.n; k++) {
                const struct timed_cost c = timed_launch_cost(g, NULL, &l.launch[k]),
                                        d = timed_launch_cost(g, k ? &l.launch[k - 1] : NULL, &l.launch[k]);
                seconds += d.seconds;
                roof += c.roof_s;
                if (!(seconds >= roof && d.seconds <= c.seconds && d.seconds >= timed_gap(g)))
                    fail_msg("%s, %d tokens, to %s %s: %g s, roof %g s", g->key, n, l.launch[k].kernel,
                             l.launch[k].what, seconds, roof);
                if (!(c.seconds >= c.roof_s + (k ? timed_gap(g) : g->launch_s) && c.seconds < 1))
                    fail_msg("%s, %d tokens, %s %s: %g s, roof %g s", g->key, n, l.launch[k].kernel, l.launch[k].what,
                             c.seconds, c.roof_s);
            }
            timed_launches_release(&l);
        }
    assert_null(timed_gpu_find("h900"));
    model_close(m);
}

/* The time of a launch of one round without waits is its launch and its longest part. */
static void test_cost(void **state)
{
    (void)state;
    struct timed_gpu g = { .n_sms = 10, .most_threads = 1024, .shared_bytes = 65536, .clock = 1e9, .memory = 1e12,
                           .memory_share = 0.5, .l2 = 2e12, .memory_cycles = 500, .l2_cycles = 200,
                           .launch_s = 1e-6, .tensor = 1e14, .mma_share = 0.5, .issue_share = 0.5 };
    struct timed_launch l = { .blocks = 10, .active = 10, .threads = 1024, .bytes = 1e6, .issue = 20000 };
    struct timed_cost c = timed_launch_cost(&g, NULL, &l);
    assert_float_equal(c.seconds, 1e-6 + 2e-6, 1e-12);
    assert_float_equal(c.roof_s, 1e-6, 1e-12);
    assert_string_equal(c.limit, "memory");
    l.issue = 80000;                    /* 8000 on a multiprocessor, 2 a cycle */
    c = timed_launch_cost(&g, NULL, &l);
    assert_float_equal(c.seconds, 1e-6 + 4e-6, 1e-12);
    assert_string_equal(c.limit, "issue");
    l.blocks = l.active = 11;           /* the last block needs a round of its own */
    l.issue = 88000;
    assert_float_equal(timed_launch_cost(&g, NULL, &l).seconds, 1e-6 + 8e-6, 1e-12);
    l.turns = 10;
    l.turn_memory = 2;                  /* 10 us in each of two rounds */
    c = timed_launch_cost(&g, NULL, &l);
    assert_float_equal(c.seconds, 1e-6 + 20e-6, 1e-12);
    assert_string_equal(c.limit, "loads");
    l.threads = 512;                    /* two blocks at a time */
    assert_float_equal(timed_launch_cost(&g, NULL, &l).seconds, 1e-6 + 10e-6, 1e-12);
    l.setup_memory = 4;
    assert_float_equal(timed_launch_cost(&g, NULL, &l).seconds, 1e-6 + 12e-6, 1e-12);
    /* only what follows a launch can be its dependent, and only where the GPU can do it */
    l.follows = 1;
    assert_float_equal(timed_launch_cost(&g, NULL, &l).seconds, 1e-6 + 12e-6, 1e-12);
    g.dependent_s = 0.25e-6;
    assert_float_equal(timed_launch_cost(&g, NULL, &l).seconds, 0.25e-6 + 12e-6, 1e-12);
    l.follows = 0;
    assert_float_equal(timed_launch_cost(&g, NULL, &l).seconds, 1e-6 + 12e-6, 1e-12);
}

/* First weights of a dependent launch arrive while memory has nothing to do, and no earlier. */
static void test_early(void **state)
{
    (void)state;
    struct timed_gpu g = { .n_sms = 10, .most_threads = 1024, .shared_bytes = 65536, .clock = 1e9, .memory = 1e12,
                           .memory_share = 0.5, .l2 = 2e12, .memory_cycles = 500, .l2_cycles = 200, .launch_s = 1e-6,
                           .dependent_s = 0.75e-6, .tensor = 1e14, .mma_share = 0.5, .issue_share = 0.5 };
    struct timed_launch before = { .blocks = 10, .active = 10, .threads = 1024, .bytes = 1e6 },
                        l = { .blocks = 10, .active = 10, .threads = 512, .follows = 1, .bytes = 1e6, .setup_memory = 1,
                              .early = 1e5 };
    const double apart = 0.75e-6 + 0.5e-6 + 2e-6;
    assert_float_equal(timed_launch_cost(&g, NULL, &l).seconds, apart, 1e-12);
    /* no room beside the launch before: what arrives in the gap after the latency; activations
     * come after the wait */
    assert_float_equal(timed_launch_cost(&g, &before, &l).seconds, apart - 0.25e-6 - 0.3e-6, 1e-12);
    before.alone_cycles = 1000;
    assert_float_equal(timed_launch_cost(&g, &before, &l).seconds, apart - 1.25e-6 - 0.3e-6, 1e-12);
    l.early = 5e4;                      /* no more than is loaded */
    assert_float_equal(timed_launch_cost(&g, &before, &l).seconds, apart - 1e-6 - 0.3e-6, 1e-12);
    before.alone_cycles = 0;
    before.threads = 512;               /* room, but memory is busy */
    assert_float_equal(timed_launch_cost(&g, &before, &l).seconds, apart - 0.25e-6 - 0.3e-6, 1e-12);
    before.setup_cycles = 900;          /* 0.4 us after the latency, and the gap */
    l.early = 1e5;
    assert_float_equal(timed_launch_cost(&g, &before, &l).seconds, apart - 1.15e-6 - 0.3e-6, 1e-12);
    before.blocks = before.active = 30; /* more than one round: the launch begins with the last */
    assert_float_equal(timed_launch_cost(&g, &before, &l).seconds, apart - 0.25e-6 - 0.3e-6, 1e-12);
    l.follows = 0;
    assert_float_equal(timed_launch_cost(&g, &before, &l).seconds, apart + 0.25e-6, 1e-12);
    l.follows = 1;
    g.dependent_s = 0;                  /* a GPU without dependent launches */
    assert_float_equal(timed_launch_cost(&g, &before, &l).seconds, apart + 0.25e-6, 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(test_cost), cmocka_unit_test(test_early),
                                        cmocka_unit_test(test_roof), cmocka_unit_test(test_dense),
                                        cmocka_unit_test(test_mixed_types), cmocka_unit_test(test_experts) };
    if (!device_usable())
        return 0;
    if (!emulated_watch) {
        printf("1..1\nok 1 - the model of time # SKIP only emulated devices tell their launches\n");
        return 0;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
