/* t-gpu-stream.c - models with more layers than the device has memory for: every bit is that of the
 * same model on a device that has room for all, with every strategy and window, in prompts and
 * decoding steps, behind steps that failed, and while another program takes memory; uploads,
 * evictions and prefetches have the counts that the order of the layers gives. */
#include "tests/lib/gpu.h"

#include "gpu/backend/internal.h"
#include "gpu/gpu.h"
#include "gpu/rt/emulated.h"
#include "tests/unit/assemble.h"

#pragma weak emulated_fail              /* a GPU has no injected faults */
#pragma weak emulated_memory            /* and a fixed memory */

enum { N_BLOCKS = 8, MAX_TOKENS = 32, PROMPT = 3, MOST = 17 };

/* models/tiny with its layers repeated until there are n. */
static struct model *load(int n)
{
    struct source *s = source_open("models/tiny", &why);
    struct model *m = s ? model_assemble(s, QT_F16, &why) : NULL;
    source_close(s);
    if (!m)
        fail_msg("%s", why.msg);
    repeat_layers(m, n);
    return m;
}

static struct backend_options options(int window, int prefetch, int sequential)
{
    return (struct backend_options){ .n_threads = 1, .kv = kv_both(KV_F16), .n_blocks = N_BLOCKS,
                                     .max_tokens = MAX_TOKENS, .max_logits = 4, .layer_stream = LAYER_STREAM_AUTO,
                                     .stream_window = window, .stream_prefetch = prefetch,
                                     .stream_sequential = sequential };
}

static void *open_with(const struct model *m, const struct backend_options *o)
{
    void *b = backend_gpu.open(m, o, &why);
    if (!b)
        fail_msg("%s", why.msg);
    return b;
}

static struct backend_stream stream_of(void *b)
{
    struct backend_device d;
    backend_gpu.device(b, &d);
    return d.stream;
}

static const int32_t table[] = { 3, 1, 2, 0 };
static int32_t ids[MOST + 1];

static int forward(void *b, int pos, int n, float *logits)
{
    const struct batch_item item = { .tokens = ids + pos, .n_tokens = n, .pos = pos, .table = table, .n_logits = 1 };
    return backend_gpu.forward(b, &(struct batch){ &item, 1 }, logits, &why);
}

/* Compute a prompt of n tokens and one token behind it, with a row of logits of each step. */
enum { ROWS = 2 };
static void answer_to(const struct model *m, void *b, int n, float *logits)
{
    struct rng r = { 11 };
    for (int i = 0; i <= n; i++)
        ids[i] = below(&r, m->config.vocab_size);
    OK(forward(b, 0, n, logits));
    OK(forward(b, n, 1, logits + m->config.vocab_size));
}
static void answer(const struct model *m, void *b, float *logits) { answer_to(m, b, PROMPT, logits); }

static float *row_memory(const struct model *m)
{
    return calloc(ROWS * (size_t)m->config.vocab_size, sizeof(float));
}

static float *resident(const struct model *m, int n)
{
    const struct backend_options o = options(m->config.n_layers, 0, 0);
    float *want = row_memory(m);
    void *b = open_with(m, &o);
    assert_int_equal(stream_of(b).window, 0);
    answer_to(m, b, n, want);
    backend_gpu.close(b);
    return want;
}

static void compare(const struct model *m, const float *got, const float *want, const char *what, int i)
{
    if (memcmp(got, want, ROWS * (size_t)m->config.vocab_size * sizeof *got) != 0)
        fail_msg("%s %d: other bits than on a device with memory for all layers", what, i);
}

static void same_bits(void **state)
{
    (void)state;
    static const struct { int window, prefetch, sequential; } all[] = { { 1, 0, 0 }, { 2, 1, 0 }, { 2, 0, 1 },
                                                                      { 3, 2, 1 }, { 4, 2, 0 } };
    struct model *m = load(12);         /* more than there are buffers for uploads */
    float *want = resident(m, PROMPT), *got = row_memory(m);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const int window = all[i].window;
        const struct backend_options o = options(window, all[i].prefetch, all[i].sequential);
        void *b = open_with(m, &o);
        answer(m, b, got);
        compare(m, got, want, "window of", window);
        const struct backend_stream s = stream_of(b);
        assert_int_equal(s.window, window);
        assert_int_equal(s.kept + s.slots, window);
        assert_string_equal(s.strategy, all[i].sequential ? "sequential" : "adaptive");
        assert_int_equal(s.uses, (12 - s.kept) * ROWS);         /* once a step, the prompt's step too */
        assert_int_equal(s.evictions, s.uses - (uint64_t)s.slots);
        assert_int_equal(s.hits, s.prefetch ? s.uses : 0);
        backend_gpu.close(b);
    }
    /* some layers on the processor, the others through a window */
    struct backend_options o = options(0, 0, 0);
    o.device_layers = 3;
    void *b = open_with(m, &o);
    answer(m, b, want);
    backend_gpu.close(b);
    o.stream_window = 2;
    o.stream_prefetch = 1;
    b = open_with(m, &o);
    answer(m, b, got);
    compare(m, got, want, "layers on the device:", 3);
    assert_int_equal(stream_of(b).uses, 3 * ROWS);
    backend_gpu.close(b);
    free(want);
    /* enough tokens for other kernels */
    want = resident(m, MOST);
    o = options(3, 1, 0);
    b = open_with(m, &o);
    answer_to(m, b, MOST, got);
    compare(m, got, want, "tokens in the prompt:", MOST);
    backend_gpu.close(b);
    free(want), free(got);
    model_close(m);
}

/* 64 layers through 4 slots: 60 evictions in the first pass, 64 in every later one; each pass
 * uploads the layers once, whatever the number of tokens. */
static void counts(void **state)
{
    (void)state;
    struct model *m = load(64);
    const struct backend_options o = options(4, 3, 1);
    struct gpu_plan p;
    float *logits = row_memory(m);
    OK(gpu_plan(m, &o, &p, &why));
    assert_int_equal(p.window, 4);
    assert_int_equal(p.slots, 4);
    void *b = open_with(m, &o);
    const int n_tokens[] = { 2, 1 };
    uint64_t bytes[3] = { 0 };
    for (int i = 0, pos = 0; i < 2; pos += n_tokens[i++]) {
        OK(forward(b, pos, n_tokens[i], logits));
        const struct backend_stream s = stream_of(b);
        assert_int_equal(s.evictions, 64 * (i + 1) - 4);
        assert_int_equal(s.uses, 64 * (i + 1));
        assert_true((double)s.hits >= 0.95 * (double)s.uses);
        bytes[i + 1] = s.bytes;
    }
    /* uploads ahead of the next step may be on their way at both counts */
    assert_true(bytes[2] - bytes[1] >= p.stream_bytes / 64 * 61 && bytes[2] - bytes[1] <= p.stream_bytes / 64 * 67);
    backend_gpu.close(b);
    free(logits);
    model_close(m);
}

static int only_emulated(const void *hook)
{
    if (!hook)
        print_message("# skipped: only the emulated device can do it\n");
    return hook != NULL;
}

/* A window is chosen if the device has too little memory for all layers. */
static void too_large(void **state)
{
    (void)state;
    if (!only_emulated((const void *)emulated_memory))
        skip();
    struct model *m = load(24);
    struct backend_options o = options(0, 2, 0);
    struct gpu_plan p;
    OK(gpu_plan(m, &o, &p, &why));
    assert_int_equal(p.window, 0);
    assert_int_equal(p.stream_bytes, 0);
    emulated_memory(p.needed - 1);
    o.layer_stream = LAYER_STREAM_OFF;
    OK(gpu_plan(m, &o, &p, &why));
    assert_int_equal(p.window, 0);
    assert_int_equal(gpu_plan_fits(&p, &o, &why), -1);
    o.layer_stream = LAYER_STREAM_AUTO;
    OK(gpu_plan(m, &o, &p, &why));
    OK(gpu_plan_fits(&p, &o, &why));
    assert_in_range(p.window, 1, 23);
    assert_int_equal(p.window, p.kept + p.slots);
    /* a tenth is left */
    assert_true(p.needed <= p.limit - p.limit / 10 && p.needed + (4 << 20) > p.limit - p.limit / 10);
    assert_non_null(strstr(p.graphs_off, "uploaded"));
    assert_true(p.stream_bytes > 0);
    o.cache_weights = CACHE_WEIGHTS_ON;         /* copies of layers that come and go are of no use */
    assert_int_equal(gpu_plan(m, &o, &p, &why) == 0 && gpu_plan_fits(&p, &o, &why) == 0, 0);
    o.cache_weights = CACHE_WEIGHTS_OFF;
    o.max_device = 30 << 20;                    /* not even for the rest */
    OK(gpu_plan(m, &o, &p, &why));
    assert_int_equal(p.window, 0);
    assert_null(backend_gpu.open(m, &o, &why));
    assert_non_null(strstr(why.msg, "keys, values and states"));
    emulated_memory(0);
    model_close(m);
}

/* A window that the caller chose is not made smaller: the message says which one fits, and that one
 * does. */
static void window_too_large(void **state)
{
    (void)state;
    struct model *m = load(24);
    struct backend_options o = options(7, 2, 0);
    struct gpu_plan p, larger;
    char text[32];
    OK(gpu_plan(m, &o, &p, &why));
    assert_int_equal(p.window, 7);
    o.stream_window = 20;
    o.max_device = p.needed + p.needed / 1000;
    OK(gpu_plan(m, &o, &larger, &why));
    assert_int_equal(larger.window, 20);
    assert_int_equal(larger.most_window, 7);
    assert_null(backend_gpu.open(m, &o, &why));
    assert_non_null(strstr(why.msg, "for a window of 20 of 24 layers (--layer-window)"));
    snprintf(text, sizeof text, "--layer-window %d fits", larger.most_window);
    assert_non_null(strstr(why.msg, text));
    o.stream_window = larger.most_window;
    OK(gpu_plan(m, &o, &p, &why));
    OK(gpu_plan_fits(&p, &o, &why));
    o.max_device = 30 << 20;                    /* none fits */
    assert_null(backend_gpu.open(m, &o, &why));
    assert_null(strstr(why.msg, " fits"));
    model_close(m);
}

/* While more than 97 % of the memory are taken, each step gives a layer back: first those that
 * stay, then slots, but not the last slot.  Afterwards they come back. */
static void pressure(void **state)
{
    (void)state;
    if (!only_emulated((const void *)emulated_memory))
        skip();
    struct model *m = load(5);
    const struct backend_options o = options(4, 1, 0);
    float *want = resident(m, PROMPT), *got = row_memory(m);
    struct gpu_info info;
    struct gpu *any = gpu_open(0, 0, &why);
    void *b = open_with(m, &o);
    assert_non_null(any);
    OK(gpu_info(any, &info, &why));
    emulated_memory((info.memory - info.free) / 98 * 100);
    OK(forward(b, 0, 1, got));
    struct backend_stream s = stream_of(b);
    assert_int_equal(s.given_back, 1);
    assert_int_equal(s.kept, 1);
    answer(m, b, got);                  /* below 97 % now */
    assert_int_equal(stream_of(b).given_back, 1);
    compare(m, got, want, "given back", 1);
    emulated_memory(1);
    answer(m, b, got);
    compare(m, got, want, "given back", 3);
    s = stream_of(b);
    assert_int_equal(s.given_back, 3);
    assert_int_equal(s.kept, 0);
    assert_int_equal(s.slots, 1);
    assert_int_equal(s.prefetch, 0);
    /* there is room again: after CALM_STEPS steps for each layer the window has its first size */
    emulated_memory(0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(stream_of(b).given_back, 3 - i);
        for (int k = 0; k < CALM_STEPS; k++)
            OK(forward(b, PROMPT + 1, 1, got));
    }
    s = stream_of(b);
    assert_int_equal(s.given_back, 0);
    assert_int_equal(s.kept, 2);
    assert_int_equal(s.slots, 2);
    assert_int_equal(s.prefetch, 1);
    answer(m, b, got);
    compare(m, got, want, "taken again", 3);
    assert_int_equal(stream_of(b).window, 4);
    backend_gpu.close(b);
    gpu_close(any);
    free(want), free(got);
    model_close(m);
}

/* Memory that the plan counted is gone when it is taken: the window is smaller from the start. */
static void taken_meanwhile(void **state)
{
    (void)state;
    if (!only_emulated((const void *)emulated_memory))
        skip();
    struct model *m = load(5);
    const struct dweights_options o = { .layers = { 0, 5 }, .window = { 2, 2, 1 } };
    struct backend_stream s;
    struct gpu *g = gpu_open(0, 0, &why);
    assert_non_null(g);
    for (int n = 1; n < 6; n++) {               /* pieces of 2 MB: one for the ends, the others for layers */
        emulated_memory((size_t)n << 21);
        struct dweights *w = dweights_open(g, m, &o, &why);
        assert_int_equal(w != NULL, n > 1);
        if (!w)
            continue;
        dweights_stream(w, &s);
        assert_int_equal(s.window, n - 1);
        assert_int_equal(s.given_back, 5 - n);
        assert_int_equal(s.kept, n > 3 ? n - 3 : 0);
        dweights_close(w);
    }
    gpu_close(g);
    emulated_memory(0);
    model_close(m);
}

/* A window that opened without some of its slots takes them later, before layers that stay; trying
 * without memory changes nothing. */
static void missing_slots(void **state)
{
    (void)state;
    if (!only_emulated((const void *)emulated_memory))
        skip();
    struct model *m = load(5);
    const struct dweights_options o = { .layers = { 0, 5 }, .window = { 1, 3, 2 } };
    struct backend_stream s;
    struct gpu *g = gpu_open(0, 0, &why);
    assert_non_null(g);
    emulated_memory((size_t)3 << 21);           /* the ends and two slots */
    struct dweights *w = dweights_open(g, m, &o, &why);
    assert_non_null(w);
    for (int n = 0; n < 4; n++) {
        dweights_stream(w, &s);
        const int grown = n < 2 ? n : 2;
        assert_int_equal(s.window, 2 + grown);
        assert_int_equal(s.given_back, 2 - grown);
        assert_int_equal(s.slots, grown ? 3 : 2);
        assert_int_equal(s.prefetch, grown ? 2 : 1);
        assert_int_equal(s.kept, grown == 2);
        assert_int_equal(dweights_grow(w, &why), 0);    /* no memory, or it is whole */
        emulated_memory((size_t)(4 + n) << 21);
        assert_int_equal(dweights_grow(w, &why), n < 2);
    }
    for (int i = DWEIGHTS_FIRST; i <= 5; i++)
        OK(dweights_need(w, i, &why));
    dweights_close(w);
    gpu_close(g);
    emulated_memory(0);
    model_close(m);
}

/* A device that is lost in the middle of a step ends the step and every later one; nothing waits
 * for uploads that will not come. */
static void lost(void **state)
{
    (void)state;
    if (!only_emulated((const void *)emulated_fail))
        skip();
    struct model *m = load(5);
    const struct backend_options o = options(3, 1, 0);
    float *want = resident(m, PROMPT), *got = row_memory(m);
    void *b = open_with(m, &o);
    OK(forward(b, 0, PROMPT, got));
    emulated_fail("norm", 5);
    assert_int_equal(forward(b, PROMPT, 1, got), -1);
    assert_int_equal(forward(b, PROMPT, 1, got), -1);
    backend_gpu.close(b);
    b = open_with(m, &o);
    answer(m, b, got);
    compare(m, got, want, "window of", 3);
    backend_gpu.close(b);
    free(want), free(got);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits),
        cmocka_unit_test(counts),
        cmocka_unit_test(too_large),
        cmocka_unit_test(window_too_large),
        cmocka_unit_test(pressure),
        cmocka_unit_test(taken_meanwhile),
        cmocka_unit_test(missing_slots),
        cmocka_unit_test(lost),
    };
    return device_usable() ? cmocka_run_group_tests(tests, NULL, NULL) : 0;
}
