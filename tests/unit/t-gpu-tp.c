/* t-gpu-tp.c - several GPUs that share every layer: sums over devices have the same bits for every
 * length and link; answers are those of one device up to the order of sums, for each family and
 * number of ranks; each rank loads its part alone; a pipeline of such groups has the bits of one
 * group. */
#include "tests/lib/gpu_model.h"

#include "gpu/backend/internal.h"
#include "gpu/gpu.h"
#include "gpu/rt/emulated.h"

#pragma weak emulated_devices           /* GPUs are as they are */
#pragma weak emulated_peers
#pragma weak emulated_fail_on
#pragma weak emulated_device_memory
#pragma weak emulated_uploaded
#pragma weak emulated_graphs
#pragma weak emulated_graph_nodes
#pragma weak emulated_refuse

enum { N_BLOCKS = 8, MAX_TOKENS = 32, N_STATES = 3, LEN = 5, LONG = 18 };

/* On a machine with fewer GPUs some ranks share one. */
static struct backend_gpus gpus(int n)
{
    struct backend_gpus g = { .n = n, .tp = n };
    for (int i = 0; i < n; i++)
        g.index[i] = i % gpu_count(&why);
    return g;
}

static struct backend_options options(int n_gpus, int exact)
{
    return (struct backend_options){ .n_threads = 1, .kv = kv_both(exact ? KV_F32 : KV_F16), .n_blocks = N_BLOCKS,
                                     .n_states = N_STATES, .max_tokens = MAX_TOKENS, .max_logits = MAX_TOKENS,
                                     .exact = exact, .layer_stream = LAYER_STREAM_AUTO, .gpus = gpus(n_gpus) };
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
 * and state: the logits of all tokens, [len + 1]. */
static float *answer(const struct model *m, const struct backend_options *o, int len)
{
    const size_t vocab = (size_t)m->config.vocab_size;
    float *logits = calloc((size_t)len + 1, vocab * sizeof *logits);
    int32_t ids[LONG];
    struct rng r = { 7 };
    void *b = open_with(m, o);
    for (int i = 0; i < len; i++)
        ids[i] = below(&r, (int)vocab);
    OK(step(b, ids, 0, 3, 0, logits));
    OK(step(b, ids, 3, len - 4, 0, logits + 3 * vocab));
    for (int i = 0; i < 2; i++)
        OK(backend_gpu.copy_block(b, table[i], copies[i], &why));
    OK(backend_gpu.copy_state(b, 0, 1, &why));
    OK(step(b, ids, len - 1, 1, 0, logits + (size_t)(len - 1) * vocab));
    OK(step(b, ids, len - 1, 1, 1, logits + (size_t)len * vocab));
    backend_gpu.close(b);
    return logits;
}

/* Compare with one device: another order of f32 sums; unless exact, activations that lie between
 * two f16 numbers may round to the other one. */
static double compare(const struct model *m, int n, int exact, int len, const char *name)
{
    const struct backend_options one = options(1, exact), all = options(n, exact);
    const double limit = exact ? 2e-5 : 5e-3;
    float *want = answer(m, &one, len), *got = answer(m, &all, len);
    const double error = error_of(got, want, (size_t)(len + 1) * (size_t)m->config.vocab_size);
    if (!(error <= limit))
        fail_msg("%s, %d ranks: error %.3g of the largest logit, limit %.0e", name, n, error, limit);
    free(want), free(got);
    return error;
}

/* ---- sums over devices ---- */

enum { MOST = 1500 };

/* Copy to device memory through pinned memory, and from it. */
static void copy_to(struct gpu *g, float *to, const float *from, size_t bytes)
{
    float *p = gpu_pinned(g, bytes, "test", &why);
    assert_non_null(p);
    memcpy(p, from, bytes);
    OK(gpu_upload(g, GPU_COMPUTE, to, p, bytes, &why));
    OK(gpu_sync(g, GPU_COMPUTE, &why));
    gpu_pinned_free(g, p);
}

static void copy_from(struct gpu *g, float *to, const float *from, size_t bytes)
{
    float *p = gpu_pinned(g, bytes, "test", &why);
    assert_non_null(p);
    OK(gpu_download(g, GPU_COMPUTE, p, from, bytes, &why));
    OK(gpu_sync(g, GPU_COMPUTE, &why));
    memcpy(to, p, bytes);
    gpu_pinned_free(g, p);
}

static void sum_on(int n, size_t len, struct all_reduce *a, struct gpu *const *g, float *const x[])
{
    static float want[MOST], got[MOST], in[MOST];
    struct rng r = { 3 };
    for (int i = 0; i < n; i++) {
        for (size_t k = 0; k < len; k++) {
            in[k] = uniform(&r, -1, 1);
            want[k] = i ? want[k] + in[k] : in[k];
        }
        OK(gpu_use(g[i], &why));
        copy_to(g[i], x[i], in, len * sizeof *in);
    }
    OK(all_reduce_sum(a, x, len, &why));
    for (int spread = 0; spread < 2; spread++) {
        for (int i = 0; i < n; i++) {
            OK(gpu_use(g[i], &why));
            copy_from(g[i], got, x[i], len * sizeof *got);
            assert_memory_equal(got, want, len * sizeof *got);
            if (i > 0)
                OK(gpu_fill(g[i], GPU_COMPUTE, x[i], 0, len * sizeof *got, &why));
        }
        if (spread == 0)
            OK(all_reduce_spread(a, x, len, &why));
    }
    for (int i = 0; i < n; i++)
        OK(gpu_sync(g[i], GPU_COMPUTE, &why));
}

static void sums(void **state)
{
    (void)state;
    static const struct all_reduce_sizes sizes = { .message = 512, .small = 256 };
    static const size_t lengths[] = { 1, 63, 64, 65, 128, 500, MOST };
    for (int n = 2; n <= 4; n++)
        for (int mode = EMULATED_PEERS; mode <= (n == 2 ? EMULATED_ZERO_PEERS : EMULATED_NO_PEERS); mode++) {
            struct gpu *g[4];
            float *x[4];
            const struct backend_gpus use = gpus(n);
            if (emulated_peers)
                emulated_peers(mode);
            for (int i = 0; i < n; i++) {
                g[i] = gpu_open(use.index[i], 0, &why);
                x[i] = gpu_alloc(g[i], MOST * sizeof **x, "test", &why);
                assert_non_null(x[i]);
            }
            struct all_reduce *a = all_reduce_open(g, n, &sizes, &why);
            assert_non_null(a);
            assert_int_equal(all_reduce_pinned(a), all_reduce_is_direct(a, 0) ? 0 : n * (n - 1) * 512);
            for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
                sum_on(n, lengths[i], a, g, x);
            all_reduce_close(a);
            for (int i = 0; i < n; i++)
                gpu_close(g[i]);
        }
    if (emulated_peers)
        emulated_peers(EMULATED_PEERS);
}

/* ---- models ---- */

/* The families whose parts no other family has; ZSE_TEST_ALL=1: all, each with two and four
 * ranks. */
static void families(void **state)
{
    (void)state;
    enum { FEW = 4 };
    static const char *const names[] = {
        "gpt_oss", "bloom", "qwen3_next", "deepseek_v3", "cohere", "qwen2_moe", "lfm2", "granitemoehybrid",
        "granitemoe", "glm4_moe", "../hf-2026/phimoe", "../hf-2026/cohere2_moe", "llama-odd",
        "gemma2", "opt", "gptj", "gpt_neox", "olmo2", "hunyuan", "phi3-longrope", "nemotron",
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
        struct model *m = load(names[i], QT_F32);
        for (int n = all || i % 2 == 0 ? 2 : 4; n <= (all || i % 2 ? 4 : 2); n += 2) {
            struct tp_model *t = tp_model_open(m, n, 1, &why);
            int mixers = 0, ffs = 0;
            if (!t) {                   /* the reason is a sentence, and no device is opened */
                print_message("# %-24s | %d | %s\n", names[i], n, why.msg);
                assert_non_null(strstr(why.msg, "neither heads nor MLPs"));
                continue;
            }
            for (int k = 0; k < m->config.n_layers; k++) {
                mixers += (t->split[k] & TP_MIXER) != 0;
                ffs += (t->split[k] & TP_FF) != 0;
            }
            tp_model_close(t);
            print_message("# %-24s | %d | divided: %d mixers, %d MLPs of %d layers | %.1e\n", names[i], n, mixers, ffs,
                          m->config.n_layers, compare(m, n, 1, LEN, names[i]));
        }
        model_close(m);
    }
}

/* The error of the logits with keys and values of this type, beside f32 on one device. */
static double rounding_error(const struct model *m, int n, enum kv_type kv, const float *exact)
{
    struct backend_options o = options(n, 1);
    o.kv = kv_both(kv);
    float *got = answer(m, &o, LEN);
    const double error = error_of(got, exact, (size_t)(LEN + 1) * (size_t)m->config.vocab_size);
    free(got);
    return error;
}

/* Ranks store i4 as one device does.  Ternary has a scale for the heads of a rank, where one device
 * has a scale for all heads: other bits, with an error of the same size. */
static void rounded_keys_and_values(void **state)
{
    (void)state;
    struct model *m = load("tiny", QT_F32);
    const struct backend_options o = options(1, 1);
    float *exact = answer(m, &o, LEN);
    static const struct { enum kv_type type; double most; } cases[] = { { KV_I4, 1.02 }, { KV_T2, 1.25 } };
    for (size_t i = 0; i < 2; i++) {
        const double one = rounding_error(m, 1, cases[i].type, exact), two = rounding_error(m, 2, cases[i].type, exact);
        print_message("# %s: error on one device %.2e, on two ranks %.2e\n", kv_type_name(cases[i].type), one, two);
        assert_true(one > 1e-3 && two > 1e-3 && two <= cases[i].most * one);
    }
    free(exact);
    model_close(m);
}

/* ---- packed weights ---- */

/* Round the matrices of models/tiny: o can be cut at 64 columns, down at 128, so that the MLPs of
 * two ranks differ in width. */
static int pack(struct model *m, uint8_t *owned[MOST_EXPERT_MATS])
{
    int n = 0;
    for (int i = 0; i < m->config.n_layers; i++) {
        struct layer *l = &m->layers[i];
        owned[n++] = quantize(&l->q, QT_NL4, 32);
        owned[n++] = quantize(&l->k, QT_NL4, 32);
        owned[n++] = quantize(&l->v, QT_I8, 32);
        owned[n++] = quantize(&l->o, QT_I8, 32);
        owned[n++] = quantize(&l->gate, QT_NL4, 32);
        owned[n++] = quantize(&l->up, QT_NL4, 32);
        owned[n++] = quantize(&l->down, i % 2 ? QT_NL4 : QT_M5, 32);
    }
    return n;
}

static void packed(void **state)
{
    (void)state;
    uint8_t *owned[MOST_EXPERT_MATS];
    struct model *m = load("tiny", QT_F16);
    int n = pack(m, owned);
    compare(m, 2, 0, LONG, "packed");
    compare(m, 2, 1, LEN, "packed");
    struct tp_model *t = tp_model_open(m, 2, 0, &why);
    assert_int_equal(t->m.config.intermediate_size, 256);
    assert_int_equal(t->m.config.n_heads, 2);
    assert_int_equal(t->split[0], TP_MIXER | TP_FF);
    tp_model_close(t);
    while (n)
        free(owned[--n]);
    model_close(m);
}

/* Models/tiny with experts; four ranks share two KV heads, and have 2, 2, 1, 1 of 6 experts. */
static void mixtures(void **state)
{
    (void)state;
    uint8_t *owned[MOST_EXPERT_MATS];
    struct model *m = load("tiny", QT_F16);
    int n = make_mixture(m, QT_F16, 32, owned);
    struct backend_options o = options(4, 0);
    struct backend_device d;
    compare(m, 4, 0, LONG, "a mixture");
    void *b = open_with(m, &o);
    backend_gpu.device(b, &d);
    assert_true(d.tp);
    assert_int_equal(d.n_layers, m->config.n_layers);
    assert_int_equal(d.n_experts, N_EXPERTS);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(d.ranks[i].n_layers, m->config.n_layers);
        assert_int_equal(d.ranks[i].n_experts, i < 2 ? 2 : 1);
        assert_int_equal(d.ranks[i].n_heads, 1);
        assert_true(d.ranks[i].direct);
    }
    assert_non_null(strstr(backend_gpu.describe(b), "tensor parallel"));
    backend_gpu.close(b);
    o.gpu_experts = 3;
    assert_null(backend_gpu.open(m, &o, &why));
    assert_non_null(strstr(why.msg, "--gpu-experts does not apply"));
    o.gpu_experts = 0;
    o.device_layers = 2;
    assert_null(backend_gpu.open(m, &o, &why));
    assert_non_null(strstr(why.msg, "--gpu-layers 2 of 4 does not apply"));
    while (n)
        free(owned[--n]);
    model_close(m);
}

/* ---- what each device has ---- */

static void partial_loads(void **state)
{
    (void)state;
    uint8_t *owned[MOST_EXPERT_MATS];
    struct model *m = load("tiny", QT_F16);
    int n = pack(m, owned);
    const struct backend_options o = options(2, 0);
    const struct layer_range all = { 0, m->config.n_layers };
    size_t bytes[2], layers = 0;
    struct gpu_plan p;
    if (!emulated_uploaded)
        skip();
    for (int i = 0; i < 2; i++)
        bytes[i] = emulated_uploaded(i);
    free(answer(m, &o, LEN));
    OK(gpu_plan(m, &o, &p, &why));
    assert_int_equal(p.n_ranks, 2);
    assert_int_equal(p.n_layers, 4);
    for (int i = 0; i < 2; i++) {
        struct tp_model *t = tp_model_open(m, 2, i, &why);
        const size_t size = dweights_size(&t->m, all, 0);
        bytes[i] = emulated_uploaded(i) - bytes[i];
        /* pieces are aligned to 256 bytes on the device, so a little less is uploaded */
        assert_true(bytes[i] <= size && bytes[i] + 256 * 64 > size);
        for (int k = 0; k < m->config.n_layers; k++) {
            const struct layer *l = &t->m.layers[k];
            layers += l->q.w.size + l->k.w.size + l->v.w.size + l->gate.w.size + l->up.w.size;
        }
        tp_model_close(t);
        assert_true(p.ranks[i].weights >= size && p.ranks[i].weights < size + ((size_t)2 << 20));
    }
    for (int k = 0; k < m->config.n_layers; k++) {
        const struct layer *l = &m->layers[k];
        layers -= l->q.w.size + l->k.w.size + l->v.w.size + l->gate.w.size + l->up.w.size;
    }
    assert_int_equal(layers, 0);
    while (n)
        free(owned[--n]);
    model_close(m);
}

/* ---- links, lookahead steps, failures ---- */

enum { TOKENS = 5 };
/* Draw TOKENS tokens, each step begun before the one before it has ended. */
static void draw_ahead(const struct model *m, const struct backend_options *o, int32_t *ids)
{
    struct draw draw[2];
    struct batch_item item[2];
    const int32_t first = 5;
    void *b = open_with(m, o);
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
    backend_gpu.close(b);
}

/* The answer of a number of ranks has the same bits with every kind of link. */
static void links(void **state)
{
    (void)state;
    struct model *m = load("tiny", QT_F16);
    const struct backend_options one = options(1, 0), two = options(2, 0);
    float *want = answer(m, &two, LEN);
    int32_t ids[TOKENS], alone[TOKENS];
    draw_ahead(m, &one, alone);
    draw_ahead(m, &two, ids);
    assert_memory_equal(ids, alone, sizeof ids);
    for (int mode = EMULATED_NO_PEERS; mode <= EMULATED_ZERO_PEERS && emulated_peers; mode++) {
        emulated_peers(mode);
        float *got = answer(m, &two, LEN);
        assert_memory_equal(got, want, (size_t)(LEN + 1) * (size_t)m->config.vocab_size * sizeof *got);
        free(got);
    }
    if (emulated_peers)
        emulated_peers(EMULATED_PEERS);
    free(want);
    model_close(m);
}

/* ---- graphs ---- */

/* Steps are recorded once all weights are there. */
static void wait_loaded(struct gpu_ranks *p)
{
    for (int i = 0, complete; i < p->n; i++)
        while ((complete = dweights_complete(p->rank[i]->w, &why)) <= 0)
            assert_int_equal(complete, 0);
}

enum { N_SEQS = 3, STEPS = 3 };
/* Prompts of N_SEQS sequences, then STEPS tokens of each, together: their logits.  *g: the counts
 * of graphs. */
static float *decode(const struct model *m, const struct backend_options *o, struct backend_graphs *g)
{
    static const int32_t id[] = { 5, 9, 12, 40, 7, 3 }, tables[N_SEQS] = { 3, 1, 6 };
    const size_t size = N_SEQS * (size_t)m->config.vocab_size;
    float *logits = malloc(STEPS * size * sizeof *logits);
    struct batch_item item[N_SEQS];
    struct backend_device d;
    void *b = open_with(m, o);
    wait_loaded(b);
    for (int s = 0; s < N_SEQS; s++)
        item[s] = (struct batch_item){ .tokens = id + s, .n_tokens = 2 + s % 2, .table = &tables[s], .state = s };
    OK(backend_gpu.forward(b, &(struct batch){ item, N_SEQS }, NULL, &why));
    for (int i = 0; i < STEPS; i++) {
        for (int s = 0; s < N_SEQS; s++)
            item[s] = (struct batch_item){ .tokens = id + (s + i) % 6, .n_tokens = 1, .pos = 2 + s % 2 + i,
                                           .table = &tables[s], .n_logits = 1, .state = s };
        OK(backend_gpu.forward(b, &(struct batch){ item, N_SEQS }, logits + (size_t)i * size, &why));
    }
    backend_gpu.device(b, &d);
    *g = d.graphs;
    backend_gpu.close(b);
    return logits;
}

/* Without single launches: the bits and the counts of graphs, for one kind of link. */
static void check_graphs(const struct model *m, const struct backend_options *o, const float *want)
{
    struct backend_graphs g;
    const int before = emulated_graphs ? emulated_graphs() : 0;
    float *got = decode(m, o, &g);
    assert_memory_equal(got, want, STEPS * N_SEQS * (size_t)m->config.vocab_size * sizeof *got);
    assert_null(g.off);
    assert_int_equal(g.refused, 0);
    assert_int_equal(g.captured[2], 1);         /* for four sequences */
    assert_int_equal(g.replays[2], STEPS - 1);
    if (emulated_graphs)                        /* one launch for all ranks */
        assert_int_equal(emulated_graphs() - before, STEPS - 1);
    free(got);
}

/* One graph has the work of all ranks: the bits are those of single launches, for every link and
 * number of ranks, with experts and states, and if there is no memory for graphs. */
static void graphs(void **state)
{
    (void)state;
    static const struct { const char *name; int n_layers, n_ranks, n_links; } runs[] = {
        { "tiny", 1, 2, 3 }, { "tiny", 1, 4, 1 }, { "deepseek_v3", 2, 2, 1 }, { "qwen3_next", 2, 2, 1 },
    };
    for (size_t k = 0; k < (have_oracles() ? sizeof runs / sizeof *runs : 2); k++) {
        struct model *m = load(runs[k].name, QT_F16);
        const int all = m->config.n_layers;
        struct backend_options o = options(runs[k].n_ranks, 0);
        struct backend_graphs g;
        m->config.n_layers = runs[k].n_layers;
        o.no_graphs = 1;
        float *want = decode(m, &o, &g), *got = NULL;
        assert_string_equal(g.off, "--cuda-graphs off");
        o.no_graphs = 0;
        for (int mode = EMULATED_PEERS; mode < (emulated_peers ? runs[k].n_links : 1); mode++) {
            if (emulated_peers)
                emulated_peers(mode);
            check_graphs(m, &o, want);
        }
        if (emulated_peers)
            emulated_peers(EMULATED_PEERS);
        for (int what = EMULATED_GRAPH; what <= EMULATED_GRAPH_JOIN && k == 0 && emulated_refuse; what++, free(got)) {
            emulated_refuse(what);
            got = decode(m, &o, &g);
            emulated_refuse(EMULATED_NOTHING);
            assert_memory_equal(got, want, STEPS * N_SEQS * (size_t)m->config.vocab_size * sizeof *got);
            assert_true(g.refused > 0 && g.replays[2] == 0);
        }
        m->config.n_layers = all;
        free(want);
        model_close(m);
    }
}

/* The nodes that a device's reserve is calculated from, beside those of a recorded graph: no fewer,
 * and at most twice as many where messages are bounced through the host, as the plan assumes. */
static void check_nodes(const struct model *m, int n_ranks, const char *name)
{
    const struct backend_options o = options(n_ranks, 0);
    const int32_t ids[] = { 4, 5, 6, 7, 8 };
    float *logits = malloc((size_t)m->config.vocab_size * sizeof *logits);
    struct gpu_ranks *p = open_with(m, &o);
    const int before = emulated_graphs();
    wait_loaded(p);
    for (int i = 0; i < 3; i++)
        OK(step(p, ids, i, 1, 0, logits));
    assert_int_equal(emulated_graphs() - before, 2);
    for (int i = 0; i < n_ranks; i++) {
        const int planned = (int)graph_nodes(p->rank[i], 0), recorded = emulated_graph_nodes(i);
        if (recorded > planned || 2 * recorded < planned)
            fail_msg("%s, rank %d of %d: %d nodes, planned %d", name, i, n_ranks, recorded, planned);
    }
    backend_gpu.close(p);
    free(logits);
}

/* Each device has room for its nodes of all possible graphs. */
static void room_for_graphs(void **state)
{
    (void)state;
    static const struct { int n; size_t floats, nodes; } sum[] = {
        { 2, 1, 2 * 2 + 2 }, { 2, 1 << 20, 4 * (2 * 2 + 2) }, { 4, 1024, 12 * 2 + 4 }, { 4, 1 << 20, 2 * 12 * 2 + 4 },
    };
    static const char *const names[] = { "tiny", "deepseek_v3", "qwen3_next", "granitemoehybrid", "gpt_oss" };
    for (size_t i = 0; i < sizeof sum / sizeof *sum; i++)
        assert_int_equal(all_reduce_nodes(&all_reduce_sizes, sum[i].n, sum[i].floats), sum[i].nodes);
    if (!emulated_graph_nodes)
        skip();
    emulated_peers(EMULATED_NO_PEERS);
    for (size_t i = 0; i < (have_oracles() ? sizeof names / sizeof *names : 1); i++) {
        struct model *m = load(names[i], QT_F16);
        for (int n = 1; n <= (i ? 2 : 4); n *= 2)
            check_nodes(m, n, names[i]);
        model_close(m);
    }
    emulated_peers(EMULATED_PEERS);
}

/* The reserve counts the graphs that bucket_of() can choose, and each node once. */
static void few_graphs(void **state)
{
    (void)state;
    struct model *m = load("tiny", QT_F16);
    struct backend_options o = options(2, 0);
    struct gpu_plan with, without;
    size_t nodes = 0;
    o.n_blocks = 2 * GPU_SPLIT / KV_BLOCK;
    o.max_logits = 4;                   /* graphs for 1, 2 and 4 sequences, of 1 or 2 splits */
    OK(gpu_plan(m, &o, &with, &why));
    struct gpu_ranks *p = open_with(m, &o);
    assert_int_equal(p->rank[0]->max_splits, 2);
    for (int bucket = 0; bucket < 3; bucket++)
        nodes += 2 * graph_nodes(p->rank[1], bucket);
    backend_gpu.close(p);
    o.no_graphs = 1;
    OK(gpu_plan(m, &o, &without, &why));
    for (int i = 0; i < 2; i++)
        assert_int_equal(with.ranks[i].reserve - without.ranks[i].reserve, nodes << 10);
    model_close(m);
}

/* A rank that fails in a graph fails the step. */
static void lost_in_graph(void **state)
{
    (void)state;
    struct model *m = load("tiny", QT_F16);
    const struct backend_options o = options(2, 0);
    const int32_t ids[] = { 4, 5, 6, 7, 8 };
    float *logits = malloc(LEN * (size_t)m->config.vocab_size * sizeof *logits);
    if (!emulated_fail_on)
        skip();
    for (int lost_one = 0; lost_one < 2; lost_one++) {
        char name[32];
        void *b = open_with(m, &o);
        wait_loaded(b);
        for (int i = 0; i < 3; i++)
            OK(step(b, ids, i, 1, 0, logits));
        emulated_fail_on(lost_one, "norm", 1);
        assert_int_equal(step(b, ids, 3, 1, 0, logits), -1);
        snprintf(name, sizeof name, "emulated:%d", lost_one);
        if (!strstr(why.msg, name))
            fail_msg("'%s' does not name %s", why.msg, name);
        backend_gpu.close(b);
    }
    free(logits);
    model_close(m);
}

static void lost(void **state)
{
    (void)state;
    struct model *m = load("tiny", QT_F16);
    struct backend_options o = options(2, 0);
    const int32_t ids[] = { 4, 5, 6 };
    float *logits = malloc(LEN * (size_t)m->config.vocab_size * sizeof *logits);
    if (!emulated_fail_on)
        skip();
    for (int lost_one = 0; lost_one < 2; lost_one++) {
        char name[32];
        struct backend_device d;
        void *b = open_with(m, &o);
        OK(step(b, ids, 0, 2, 0, logits));
        emulated_fail_on(lost_one, "norm", 1);
        assert_int_equal(step(b, ids, 2, 1, 0, logits), -1);
        snprintf(name, sizeof name, "emulated:%d", lost_one);
        if (!strstr(why.msg, name))
            fail_msg("'%s' does not name %s", why.msg, name);
        assert_int_equal(step(b, ids, 2, 1, 0, logits), -1);
        backend_gpu.device(b, &d);
        assert_true(d.lost);
        backend_gpu.close(b);
        b = open_with(m, &o);
        OK(step(b, ids, 0, 3, 0, logits));
        backend_gpu.close(b);
    }
    emulated_device_memory(1, (size_t)20 << 20);
    assert_null(backend_gpu.open(m, &o, &why));
    assert_non_null(strstr(why.msg, "its part of 4 layers on GPU 1 (--tp)"));
    emulated_device_memory(1, 0);
    free(logits);
    model_close(m);
}

/* ---- a pipeline of groups ---- */

/* Four ranks are two stages of two; their options. */
static struct backend_options staged(int exact)
{
    struct backend_options o = options(4, exact);
    o.gpus.tp = 2;
    return o;
}

/* A stage runs the kernels that one group would run for its layers, so that every bit is the same,
 * with every kind of link and in steps that are begun early; the sums differ from one device's in
 * their order only. */
static void check_stages(const struct model *m, int n_links, const char *name)
{
    const struct backend_options one = options(1, 1), two = options(2, 1), four = staged(1);
    const size_t n = (size_t)(LEN + 1) * (size_t)m->config.vocab_size;
    float *want = answer(m, &two, LEN), *alone = answer(m, &one, LEN);
    int32_t ids[TOKENS], of_two[TOKENS];
    for (int mode = EMULATED_PEERS; mode < (emulated_peers ? n_links : 1); mode++) {
        if (emulated_peers)
            emulated_peers(mode);
        float *got = answer(m, &four, LEN);
        const double error = error_of(got, alone, n);
        if (memcmp(got, want, n * sizeof *got) != 0)
            fail_msg("%s: other bits than on one group", name);
        if (!(error <= 2e-5))
            fail_msg("%s: error %.3g of the largest logit", name, error);
        free(got);
    }
    if (emulated_peers)
        emulated_peers(EMULATED_PEERS);
    draw_ahead(m, &two, of_two);
    draw_ahead(m, &four, ids);
    assert_memory_equal(ids, of_two, sizeof ids);
    free(want), free(alone);
}

/* A dense model, mixtures, and layers with a state. */
static void stages(void **state)
{
    (void)state;
    uint8_t *owned[MOST_EXPERT_MATS];
    struct model *m = load("tiny", QT_F16);
    check_stages(m, 3, "tiny");
    int n = make_mixture(m, QT_F16, 32, owned);
    check_stages(m, 1, "a mixture");
    while (n)
        free(owned[--n]);
    model_close(m);
    static const char *const names[] = { "deepseek_v3", "qwen3_next", "nemotron_h", "granitemoehybrid" };
    for (size_t i = 0; have_oracles() && i < (getenv("ZSE_TEST_ALL") ? 4 : 2); i++) {
        m = load(names[i], QT_F32);
        check_stages(m, 1, names[i]);
        model_close(m);
    }
}

/* The layers, heads and experts of each rank, the plan, and graphs: one of each stage in a step. */
static void parts_of_stages(void **state)
{
    (void)state;
    uint8_t *owned[MOST_EXPERT_MATS];
    struct model *m = load("tiny", QT_F16);
    struct backend_options o = staged(0);
    struct backend_device d;
    struct backend_graphs g;
    struct gpu_plan p;
    int n = make_mixture(m, QT_F16, 32, owned);
    o.gpus.layers[0] = 3, o.gpus.layers[1] = 1;
    OK(gpu_plan(m, &o, &p, &why));
    void *b = open_with(m, &o);
    backend_gpu.device(b, &d);
    assert_non_null(strstr(backend_gpu.describe(b), "tensor parallel, 3+1 of 4 layers"));
    backend_gpu.close(b);
    assert_int_equal(d.tp, 2);
    assert_int_equal(p.tp, 2);
    assert_int_equal(d.n_ranks, 4);
    assert_int_equal(p.n_ranks, 4);
    assert_int_equal(d.n_layers, 4);
    assert_int_equal(p.n_layers, 4);
    assert_int_equal(d.n_experts, N_EXPERTS);
    assert_int_equal(p.n_experts, N_EXPERTS);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(d.ranks[i].n_layers, i < 2 ? 3 : 1);
        assert_int_equal(d.ranks[i].first_layer, i < 2 ? 0 : 3);
        assert_int_equal(p.ranks[i].first_layer, i < 2 ? 0 : 3);
        assert_int_equal(d.ranks[i].n_heads, 2);
        assert_int_equal(d.ranks[i].n_experts, N_EXPERTS / 2);
        assert_int_equal(d.ranks[i].weights, p.ranks[i].weights);
        assert_true(d.ranks[i].direct);
    }
    o.no_graphs = 1;
    float *want = decode(m, &o, &g);
    o.no_graphs = 0;
    const int before = emulated_graphs ? emulated_graphs() : 0;
    float *got = decode(m, &o, &g);
    assert_memory_equal(got, want, STEPS * N_SEQS * (size_t)m->config.vocab_size * sizeof *got);
    assert_int_equal(g.replays[2], STEPS - 1);
    if (emulated_graphs)
        assert_int_equal(emulated_graphs() - before, 2 * (STEPS - 1));
    free(want), free(got);
    o.gpus.layers[1] = 2;
    assert_null(backend_gpu.open(m, &o, &why));
    assert_non_null(strstr(why.msg, "--pp-split: 5 layers, but the GPUs compute 4"));
    while (n)
        free(owned[--n]);
    model_close(m);
}

/* Compare a plan with windows with what is opened, and the bits of the answer.  Returns the
 * window. */
static int same_in_windows(const struct model *m, const struct backend_options *o, const float *want)
{
    struct gpu_plan p;
    struct backend_device d;
    OK(gpu_plan(m, o, &p, &why));
    float *got = answer(m, o, LEN);
    if (memcmp(got, want, (size_t)(LEN + 1) * (size_t)m->config.vocab_size * sizeof *got) != 0)
        fail_msg("a window of %d layers: other bits than with all layers", p.window);
    free(got);
    void *b = open_with(m, o);
    backend_gpu.device(b, &d);
    backend_gpu.close(b);
    assert_int_equal(d.stream.window, p.window);
    assert_int_equal(d.stream.kept, p.kept);
    assert_int_equal(d.stream.slots, p.slots);
    assert_int_equal(p.kept + p.slots, p.window);
    assert_true(p.stream_bytes > 0 && p.graphs_off);
    return p.window;
}

/* Parts of layers pass through windows, in one group and in stages, chosen or because the second
 * rank lacks memory: the bits are those of ranks with all their layers. */
static void windows(void **state)
{
    (void)state;
    enum { FEW = 8, MANY = 40 };
    struct model *m = load("tiny", QT_F16);
    struct backend_options o = options(2, 0), four = staged(0);
    struct gpu_plan p;
    repeat_layers(m, FEW);
    float *want = answer(m, &o, LEN);
    o.stream_window = four.stream_window = 3;
    assert_int_equal(same_in_windows(m, &o, want), 3);
    assert_int_equal(same_in_windows(m, &four, want), 6);
    free(want);
    o.stream_window = 0;
    if (emulated_device_memory) {
        repeat_layers(m, MANY);
        want = answer(m, &o, LEN);
        OK(gpu_plan(m, &o, &p, &why));
        assert_int_equal(p.window, 0);
        emulated_device_memory(1, p.ranks[1].needed - ((size_t)2 << 20));
        const int window = same_in_windows(m, &o, want);
        assert_true(window > 0 && window < MANY);
        emulated_device_memory(1, 0);
        free(want);
    }
    model_close(m);
}

/* Any rank of any stage that is lost fails the step and is named. */
static void lost_in_stage(void **state)
{
    (void)state;
    struct model *m = load("tiny", QT_F16);
    struct backend_options o = staged(0);
    const int32_t ids[] = { 4, 5, 6 };
    float *logits = malloc(LEN * (size_t)m->config.vocab_size * sizeof *logits);
    if (!emulated_fail_on)
        skip();
    for (int lost_one = 0; lost_one < 4; lost_one++) {
        char name[32];
        void *b = open_with(m, &o);
        OK(step(b, ids, 0, 2, 0, logits));
        emulated_fail_on(lost_one, "norm", 1);
        assert_int_equal(step(b, ids, 2, 1, 0, logits), -1);
        snprintf(name, sizeof name, "emulated:%d", lost_one);
        if (!strstr(why.msg, name))
            fail_msg("'%s' does not name %s", why.msg, name);
        assert_int_equal(step(b, ids, 2, 1, 0, logits), -1);
        backend_gpu.close(b);
    }
    free(logits);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums), cmocka_unit_test(packed), cmocka_unit_test(mixtures), cmocka_unit_test(partial_loads),
        cmocka_unit_test(room_for_graphs), cmocka_unit_test(few_graphs),
        cmocka_unit_test(links), cmocka_unit_test(lost), cmocka_unit_test(families),
        cmocka_unit_test(graphs), cmocka_unit_test(lost_in_graph),
        cmocka_unit_test(stages), cmocka_unit_test(parts_of_stages), cmocka_unit_test(lost_in_stage),
        cmocka_unit_test(windows),
        cmocka_unit_test(rounded_keys_and_values),
    };
    if (gpu_kind[0] != 'e' && !device_usable())
        return 0;
    if (emulated_devices)
        emulated_devices(EMULATED_DEVICES);
    if (getenv("ZSE_ONLY"))
        cmocka_set_test_filter(getenv("ZSE_ONLY"));
    if (getenv("ZSE_SANITIZED"))        /* under a sanitizer only some tests of the backend's host
                                         * code run */
        return cmocka_run_group_tests(((const struct CMUnitTest[]){ cmocka_unit_test(sums),
                                                                    cmocka_unit_test(partial_loads),
                                                                    cmocka_unit_test(lost) }), NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
