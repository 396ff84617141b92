/* t-gpu-ranks.c - several GPUs as a pipeline: every bit of an answer is that of one device, for
 * each family and number of ranks, with direct copies, without, and where direct copies deliver
 * zeros; each device has the weights, keys and values of its own layers only; a device that is lost
 * ends steps with its error. */
#include "tests/lib/gpu_model.h"

#include "gpu/backend/internal.h"
#include "gpu/gpu.h"
#include "gpu/rt/emulated.h"
#include "libcommon/engine/engine.h"

#pragma weak emulated_devices           /* GPUs are as they are */
#pragma weak emulated_peers
#pragma weak emulated_fail_on
#pragma weak emulated_device_memory
#pragma weak emulated_uploaded
#pragma weak emulated_graphs

enum { N_BLOCKS = 8, MAX_TOKENS = 32, N_STATES = 3, FIRST = 3, LEN = 5, LONG = 18 };

/* On a machine with fewer GPUs some ranks share one. */
static struct backend_gpus gpus(int n)
{
    struct backend_gpus g = { .n = n };
    for (int i = 0; i < n; i++)
        g.index[i] = i % gpu_count(&why);
    return g;
}

static struct backend_options options(int n_gpus)
{
    return (struct backend_options){ .n_threads = 1, .kv = kv_both(KV_F16), .n_blocks = N_BLOCKS,
                                     .n_states = N_STATES, .max_tokens = MAX_TOKENS, .max_logits = MAX_TOKENS,
                                     .layer_stream = LAYER_STREAM_AUTO, .gpus = gpus(n_gpus) };
}

static void *open_with(const struct model *m, const struct backend_options *o)
{
    void *b = backend_gpu.open(m, o, &why);
    if (!b)
        fail_msg("%s", why.msg);
    return b;
}

static const int32_t table[] = { 3, 1 }, copies[] = { 5, 6 };

static int step(void *b, const int32_t *ids, int pos, int n, int state, float *logits)
{
    const struct batch_item item = { .tokens = ids + pos, .n_tokens = n, .pos = pos, .table = state ? copies : table,
                                     .n_logits = n, .state = state };
    return backend_gpu.forward(b, &(struct batch){ &item, 1 }, logits, &why);
}

/* Compute a prompt in two chunks, one token behind it, and that token again behind copies of blocks
 * and state: the logits of all tokens, [LEN + 1] or [LONG + 1]. */
static float *answer(const struct model *m, const struct backend_options *o, int len)
{
    const size_t vocab = (size_t)m->config.vocab_size;
    float *logits = calloc((size_t)len + 1, vocab * sizeof *logits);
    int32_t ids[LONG];
    struct rng r = { 7 };
    void *b = open_with(m, o);
    for (int i = 0; i < len; i++)
        ids[i] = below(&r, (int)vocab);
    OK(step(b, ids, 0, FIRST, 0, logits));
    OK(step(b, ids, FIRST, len - FIRST - 1, 0, logits + FIRST * vocab));
    for (int i = 0; i < 2; i++)
        OK(backend_gpu.copy_block(b, table[i], copies[i], &why));
    OK(backend_gpu.copy_state(b, 0, 1, &why));
    OK(step(b, ids, len - 1, 1, 0, logits + (size_t)(len - 1) * vocab));
    OK(step(b, ids, len - 1, 1, 1, logits + (size_t)len * vocab));
    backend_gpu.close(b);
    return logits;
}

static void same_bits(const struct model *m, const struct backend_options *o, const float *want, int len,
                      const char *what, int n)
{
    float *got = answer(m, o, len);
    const size_t vocab = (size_t)m->config.vocab_size;
    if (memcmp(got, want, (size_t)(len + 1) * vocab * sizeof *got) != 0)
        fail_msg("%s, %d: other bits than on one device", what, n);
    free(got);
}

/* ---- every family ---- */

/* The families whose parts no other family has; ZSE_TEST_ALL=1: all, each with two and three
 * ranks. */

static void families(void **state)
{
    (void)state;
    enum { FEW = 6 };
    static const char *const names[] = {
        "gpt_oss", "bloom", "lfm2", "granitemoehybrid", "qwen3_next", "deepseek_v3",
        "qwen2_moe", "granitemoe", "glm4_moe", "../hf-2026/phimoe", "../hf-2026/cohere2_moe", "llama-odd",
        "gemma2", "opt", "gptj", "gpt_neox", "cohere", "olmo2", "hunyuan", "phi3-longrope", "nemotron",
        "../hf-2026/olmo3", "mamba2", "nemotron_h", "../hf-2026/qwen3_5",
        "../hf-2026/afmoe", "deepseek_v2_lite", "../hf-2026/kimi_linear", "llama4_text", "bitnet",
        "../hf-2026/mistral4", "../hf-2026/nanochat", "../hf-2026/minicpm3",
    };
    if (!have_oracles()) {
        print_message("# skipped: no oracles (set ZSE_ORACLES)\n");
        skip();
    }
    const int all = getenv("ZSE_TEST_ALL") != NULL;
    for (size_t i = 0; i < (all ? sizeof names / sizeof *names : FEW); i++) {
        struct model *m = load(names[i], QT_F16);
        struct backend_options o = options(0);
        float *want = answer(m, &o, LEN);
        const float *last = want + (LEN - 1) * m->config.vocab_size;
        assert_memory_equal(last, last + m->config.vocab_size, (size_t)m->config.vocab_size * sizeof *last);
        for (int n = all || i % 2 == 0 ? 2 : 3; n <= (all || i % 2 ? 3 : 2); n++) {
            o = options(n);
            same_bits(m, &o, want, LEN, names[i], n);
        }
        free(want);
        model_close(m);
    }
}

/* ---- links ---- */

static void links(void **state)
{
    (void)state;
    static const enum emulated_peers all[] = { EMULATED_PEERS, EMULATED_NO_PEERS, EMULATED_ZERO_PEERS };
    struct model *m = load("tiny", QT_F16);
    struct backend_options o = options(0);
    float *want = answer(m, &o, LONG);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (int n = 2; n <= (all[i] == EMULATED_PEERS ? 4 : 2); n += 2) {
            struct backend_device d;
            if (emulated_peers)
                emulated_peers(all[i]);
            o = options(n);
            same_bits(m, &o, want, LONG, "links", n);
            void *b = open_with(m, &o);
            backend_gpu.device(b, &d);
            assert_int_equal(d.n_ranks, n);
            assert_int_equal(d.ranks[0].direct, 0);
            if (emulated_peers)
                assert_int_equal(d.ranks[n - 1].direct, all[i] == EMULATED_PEERS);
            backend_gpu.close(b);
        }
    if (emulated_peers)
        emulated_peers(EMULATED_PEERS);
    free(want);
    model_close(m);
}

/* Messages of every size arrive in order, also if the sender overwrites them at once. */
static void messages(void **state)
{
    (void)state;
    enum { SIZE = 3000, TURNS = 4 };
    for (int mode = EMULATED_PEERS; mode <= EMULATED_ZERO_PEERS; mode++) {
        const struct backend_gpus two = gpus(2);
        struct gpu *from = gpu_open(two.index[0], 0, &why), *to = from ? gpu_open(two.index[1], 0, &why) : NULL;
        if (!to)
            fail_msg("%s", why.msg);
        if (emulated_peers)
            emulated_peers(mode);
        struct gpu_link *l = gpu_link_open(from, to, SIZE, &why);
        uint8_t *a = gpu_alloc(from, SIZE, "test", &why), *b = gpu_alloc(to, TURNS * SIZE, "test", &why),
                *host = gpu_pinned(to, TURNS * SIZE, "test", &why);
        assert_true(l && a && b && host);
        assert_int_equal(gpu_link_pinned(l), gpu_link_is_direct(l) ? 0 : SIZE);
        for (int i = 0; i < TURNS; i++) {
            OK(gpu_fill(from, GPU_COMPUTE, a, 10 + i, SIZE, &why));
            OK(gpu_link_send(l, b + i * SIZE, a, (size_t)(i + 1) * 700, &why));
        }
        assert_int_equal(gpu_link_send(l, b, a, SIZE + 1, &why), -1);
        OK(gpu_use(to, &why));
        OK(gpu_download(to, GPU_COMPUTE, host, b, TURNS * SIZE, &why));
        OK(gpu_sync(to, GPU_COMPUTE, &why));
        for (int i = 0; i < TURNS; i++)
            for (int k = 0; k < (i + 1) * 700; k++)
                assert_int_equal(host[i * SIZE + k], 10 + i);
        OK(gpu_use(from, &why));
        OK(gpu_sync(from, GPU_COMPUTE, &why));
        gpu_link_close(l);
        gpu_close(from);
        gpu_close(to);
    }
    if (emulated_peers)
        emulated_peers(EMULATED_PEERS);
}

/* ---- what each device has ---- */

/* The bytes that are uploaded as weights while a model is open. */
static void uploaded(const struct model *m, const struct backend_options *o, size_t bytes[3])
{
    size_t before[3];
    for (int i = 0; i < 3; i++)
        before[i] = emulated_uploaded(i);
    free(answer(m, o, LEN));
    for (int i = 0; i < 3; i++)
        bytes[i] = emulated_uploaded(i) - before[i];
}

static void partial_loads(void **state)
{
    (void)state;
    struct model *m = load("tiny", QT_F16);
    struct backend_options o = options(0);
    struct gpu_plan one, p;
    size_t whole[3], part[3];
    if (!emulated_uploaded)
        skip();
    uploaded(m, &o, whole);
    OK(gpu_plan(m, &o, &one, &why));
    assert_int_equal(one.n_ranks, 1);
    assert_int_equal(whole[1] + whole[2], 0);
    for (int n = 2; n <= 3; n++) {
        o = options(n);
        uploaded(m, &o, part);
        OK(gpu_plan(m, &o, &p, &why));
        assert_int_equal(p.n_ranks, n);
        /* the head is the embedding, which the first device has: the last one needs it, too */
        assert_int_equal(part[0] + part[1] + part[2], whole[0] + m->embed.w.size);
        size_t kv = 0, weights = 0;
        for (int i = 0, first = 0; i < n; first += p.ranks[i++].n_layers) {
            const struct layer_range layers = { first, first + p.ranks[i].n_layers };
            const size_t size = dweights_size(m, layers, 0);
            assert_int_equal(p.ranks[i].first_layer, first);
            assert_int_equal(p.ranks[i].n_layers, 4 / n + (i < 4 % n));
            /* pieces are aligned to 256 bytes on the device, so a little less is uploaded */
            assert_true(part[i] <= size && part[i] + 256 * 64 > size);
            kv += p.ranks[i].kv;
            weights += p.ranks[i].weights;
        }
        assert_int_equal(kv, p.kv);
        assert_int_equal(weights, p.weights);
        assert_int_equal(p.n_layers, 4);
    }
    /* with few blocks, rounding to pages would hide the size of a layer */
    o.n_blocks = 1 << 16;
    o.gpus.layers[0] = 1, o.gpus.layers[1] = 2, o.gpus.layers[2] = 1;
    OK(gpu_plan(m, &o, &p, &why));
    const size_t block = config_kv_bytes(&m->config, o.kv) / 4;
    for (int i = 0; i < 3; i++)
        assert_true(p.ranks[i].kv - block * (size_t)o.n_blocks * (size_t)(i == 1 ? 2 : 1) < 2 << 20);
    model_close(m);
}

static void partitions(void **state)
{
    (void)state;
    struct model *m = load("tiny", QT_F16);
    struct backend_options o = options(0);
    struct backend_device d;
    float *want = answer(m, &o, LEN);
    o = options(2);
    o.gpus.layers[0] = 1, o.gpus.layers[1] = 3;
    same_bits(m, &o, want, LEN, "layers on the first GPU", 1);
    void *b = open_with(m, &o);
    backend_gpu.device(b, &d);
    assert_int_equal(d.n_layers, 4);
    assert_int_equal(d.ranks[0].n_layers, 1);
    assert_int_equal(d.ranks[1].n_layers, 3);
    assert_int_equal(d.ranks[1].first_layer, 1);
    assert_non_null(strstr(backend_gpu.describe(b), "1+3 of 4 layers"));
    backend_gpu.close(b);
    o.gpus.layers[1] = 2;
    assert_null(backend_gpu.open(m, &o, &why));
    assert_non_null(strstr(why.msg, "--pp-split: 3 layers, but the GPUs compute 4"));
    o = options(5);
    assert_int_equal(gpu_plan(m, &o, &(struct gpu_plan){ .n_layers = 0 }, &why), -1);
    assert_non_null(strstr(why.msg, "5 GPUs for 4 layers"));
    free(want);
    /* the processor has the first layer */
    o = options(0);
    o.device_layers = 3;
    want = answer(m, &o, LEN);
    o.gpus = gpus(2);
    same_bits(m, &o, want, LEN, "layers on two GPUs", 3);
    free(want);
    model_close(m);
}

/* Experts on the host, and windows of layers, on each of two devices. */
static void with_parts_elsewhere(void **state)
{
    (void)state;
    uint8_t *owned[MOST_EXPERT_MATS];
    struct model *m = load("tiny", QT_F16);
    int n = make_mixture(m, QT_F16, 32, owned);
    struct backend_options o = options(0);
    struct backend_device d;
    o.strict = 1;                       /* no expert moves to the device */
    float *all = answer(m, &o, LEN);
    o.gpu_experts = 3;
    float *want = answer(m, &o, LEN);
    o.gpus = gpus(2);
    same_bits(m, &o, want, LEN, "experts on each GPU", 3);
    o = options(2);
    o.strict = 1;
    o.stream_window = 1;
    o.stream_sequential = 1;
    same_bits(m, &o, all, LEN, "window of", 1);
    void *b = open_with(m, &o);
    backend_gpu.device(b, &d);
    assert_int_equal(d.stream.window, 2);
    backend_gpu.close(b);
    while (n)
        free(owned[--n]);
    free(want), free(all);
    model_close(m);
}

/* ---- lookahead steps, and graphs ---- */

enum { TOKENS = 6 };
/* Draw TOKENS tokens, each step begun before the one before it has ended.  Returns the number of
 * graphs that were replayed. */
static int draw_ahead(const struct model *m, const struct backend_options *o, int32_t *ids)
{
    struct draw draw[2];
    const int32_t first = 5;
    int n_replayed = 0;
    void *b = open_with(m, o);
    struct gpu_ranks *p = b;
    for (int i = 0, complete; i < p->n; i++)
        while ((complete = dweights_complete(p->rank[i]->w, &why)) <= 0)
            assert_int_equal(complete, 0);
    struct batch_item item[2];
    for (int i = 0; i <= TOKENS; i++) {
        if (i < TOKENS) {
            draw[i % 2] = (struct draw){ .temperature = 2, .top_p = 1, .seed = (uint64_t)i, .id = -1 };
            item[i % 2] = (struct batch_item){ .tokens = i ? NULL : &first, .n_tokens = 1, .pos = i, .table = table,
                                               .n_logits = 1, .draw = &draw[i % 2] };
            assert_int_equal(backend_gpu.begin(b, &(struct batch){ &item[i % 2], 1 }, &why), 1);
        }
        if (i > 0) {
            OK(backend_gpu.end(b, &(struct batch){ &item[(i - 1) % 2], 1 }, &why));
            ids[i - 1] = draw[(i - 1) % 2].id;
            assert_true(ids[i - 1] >= 0);
        }
    }
    struct backend_device d;
    backend_gpu.device(b, &d);
    for (int i = 0; i < BACKEND_BUCKETS; i++)
        n_replayed += (int)d.graphs.replays[i];
    backend_gpu.close(b);
    return n_replayed;
}

static void ahead(void **state)
{
    (void)state;
    struct model *m = load("tiny", QT_F16);
    m->config.n_layers = 3;
    int32_t want[TOKENS], got[TOKENS];
    struct backend_options o = options(0);
    draw_ahead(m, &o, want);
    for (int n = 2; n <= 3; n++) {
        o = options(n);
        const int before = emulated_graphs ? emulated_graphs() : 0, replayed = draw_ahead(m, &o, got);
        assert_memory_equal(got, want, sizeof want);
        assert_int_equal(replayed, TOKENS - 1);
        if (emulated_graphs)            /* one for each rank */
            assert_int_equal(emulated_graphs() - before, n * (TOKENS - 1));
    }
    model_close(m);
}

/* ---- the engine ---- */

enum { TALKS = 2, WORDS = 48, SHARED = 17, OWN = 3, NEW = 16 };
struct talk { int32_t id[WORDS]; int n; enum finish finish; };

static void on_token(void *user, const struct token_event *ev)
{
    struct talk *t = user;
    if (ev->id >= 0)
        t->id[t->n++] = ev->id;
    t->finish = ev->finish;
}

/* Run requests with a common prefix in a cache that is too small for all of them, so that prefixes
 * are reused and requests are preempted. */
static void talk(const struct model *m, struct backend_gpus g, struct talk *t, struct engine_stats *s)
{
    const size_t block = config_kv_bytes(&m->config, kv_both(KV_F16));
    const struct engine_options o = { .backend = &backend_gpu, .max_len = WORDS, .max_seqs = 3, .max_tokens = 32,
                                      .n_threads = 1, .strict = 1, .kv = kv_both(KV_F16), .kv_bytes = 4 * block,
                                      .gpus = g };
    struct engine *e = engine_open(m, NULL, &o, &why);
    int32_t ids[SHARED + OWN];
    int left;
    if (!e)
        fail_msg("%s", why.msg);
    for (int k = 0; k < TALKS; k++) {
        for (int i = 0; i < SHARED + OWN; i++)
            ids[i] = i < SHARED ? 3 * i + 1 : 7 * k + i;
        struct request_params p = { .ids = ids, .n_ids = SHARED + OWN, .max_tokens = NEW, .ignore_eos = 1,
                                    .n_logprobs = -1,
                                    .on_token = on_token, .user = &t[k] };
        p.sampling = sampling_defaults();
        p.sampling.temperature = k % 2 ? 0.9f : 0;
        p.sampling.seed = (uint64_t)k;
        t[k] = (struct talk){ .finish = FINISH_NONE };
        if (!engine_submit(e, &p, &why))
            fail_msg("%s", why.msg);
        if (k == 0)
            OK(engine_step(e, &why));   /* its prefix is in the cache now */
    }
    while ((left = engine_step(e, &why)) > 0)
        ;
    assert_int_equal(left, 0);
    engine_stats(e, s);
    engine_close(e);
}

static void engine(void **state)
{
    (void)state;
    struct model *m = load("tiny", QT_F16);
    m->config.n_layers = 2;             /* enough for this */
    static struct talk want[TALKS], got[TALKS];
    struct engine_stats one, two;
    talk(m, (struct backend_gpus){ .n = 0 }, want, &one);
    talk(m, gpus(2), got, &two);
    assert_true(one.cached_tokens > 0 && one.preemptions > 0);
    assert_int_equal(two.cached_tokens, one.cached_tokens);
    assert_int_equal(two.preemptions, one.preemptions);
    for (int i = 0; i < TALKS; i++) {
        assert_int_equal(got[i].finish, FINISH_LENGTH);
        assert_int_equal(got[i].n, want[i].n);
        assert_memory_equal(got[i].id, want[i].id, sizeof want[i].id);
    }
    model_close(m);
}

/* ---- failures ---- */

/* A device is lost in the middle of a step: the step and every later one fail with its error,
 * although the other devices work, and nothing waits for ever.  Opened anew, all work again. */
static void lost(void **state)
{
    (void)state;
    if (!emulated_fail_on)
        skip();
    struct model *m = load("tiny", QT_F16);
    struct backend_options o = options(3);
    const int32_t ids[] = { 4, 5, 6 };
    float *logits = malloc(LEN * (size_t)m->config.vocab_size * sizeof *logits);
    for (int lost_one = 0; lost_one < 3; lost_one++)
        for (int begun = 0; begun < 2; begun++) {
            char name[32];
            struct backend_device d;
            struct draw draw = { .temperature = 0, .top_p = 1, .id = -1 };
            const struct batch_item item = { .tokens = ids + 2, .n_tokens = 1, .pos = 2, .table = table, .n_logits = 1,
                                             .draw = &draw };
            void *b = open_with(m, &o);
            OK(step(b, ids, 0, 2, 0, logits));
            emulated_fail_on(lost_one, "norm", 1);
            if (begun) {
                const int rc = backend_gpu.begin(b, &(struct batch){ &item, 1 }, &why);
                if (rc == 1)
                    assert_int_equal(backend_gpu.end(b, &(struct batch){ &item, 1 }, &why), -1);
                assert_int_equal(draw.id, -1);
            } else {
                assert_int_equal(step(b, ids, 2, 1, 0, logits), -1);
            }
            snprintf(name, sizeof name, "emulated:%d", lost_one);
            if (!strstr(why.msg, name))
                fail_msg("'%s' does not name %s", why.msg, name);
            assert_int_equal(step(b, ids, 2, 1, 0, logits), -1);
            assert_non_null(strstr(why.msg, name));
            backend_gpu.device(b, &d);
            assert_true(d.lost);
            backend_gpu.close(b);
            b = open_with(m, &o);
            OK(step(b, ids, 0, 3, 0, logits));
            backend_gpu.close(b);
        }
    free(logits);
    model_close(m);
}

/* One device is too small for its part: the refusal names it, with its sizes; with a window of
 * layers it may be smaller, but not smaller than everything else. */
static void too_small(void **state)
{
    (void)state;
    if (!emulated_device_memory)
        skip();
    struct model *m = load("tiny", QT_F16);
    struct backend_options o = options(2);
    struct gpu_plan p;
    o.layer_stream = LAYER_STREAM_OFF;
    OK(gpu_plan(m, &o, &p, &why));
    OK(gpu_plan_fits(&p, &o, &why));
    assert_int_equal(p.most_layers, 4);
    emulated_device_memory(1, p.ranks[1].needed - 1);
    OK(gpu_plan(m, &o, &p, &why));
    assert_int_equal(gpu_plan_fits(&p, &o, &why), -1);
    assert_non_null(strstr(why.msg, "for layers 2 to 3 on GPU 1 (--pp-split)"));
    assert_true(p.most_layers < 4);
    assert_null(backend_gpu.open(m, &o, &why));
    assert_non_null(strstr(why.msg, "GPU 1"));
    emulated_device_memory(1, (size_t)20 << 20);        /* less than the parts outside of layers */
    o.layer_stream = LAYER_STREAM_AUTO;
    assert_null(backend_gpu.open(m, &o, &why));
    assert_non_null(strstr(why.msg, "GPU 1"));
    emulated_device_memory(1, 0);
    o.gpus.index[1] = 99;
    assert_null(backend_gpu.open(m, &o, &why));
    assert_non_null(strstr(why.msg, "99"));
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages), cmocka_unit_test(links), cmocka_unit_test(partial_loads),
        cmocka_unit_test(partitions), cmocka_unit_test(with_parts_elsewhere), cmocka_unit_test(ahead),
        cmocka_unit_test(engine), cmocka_unit_test(lost), cmocka_unit_test(too_small), cmocka_unit_test(families),
    };
    if (gpu_kind[0] != 'e' && !device_usable())
        return 0;
    if (emulated_devices)
        emulated_devices(EMULATED_DEVICES);
    if (getenv("ZSE_ONLY"))
        cmocka_set_test_filter(getenv("ZSE_ONLY"));
    if (getenv("ZSE_SANITIZED"))        /* under a sanitizer only some tests of the backend's host
                                         * code run */
        return cmocka_run_group_tests(((const struct CMUnitTest[]){ cmocka_unit_test(messages),
                                                                    cmocka_unit_test(partitions),
                                                                    cmocka_unit_test(ahead),
                                                                    cmocka_unit_test(lost),
                                                                    cmocka_unit_test(too_small) }), NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
