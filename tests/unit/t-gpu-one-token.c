/* t-gpu-one-token.c - the layers of a step of one token in one launch give the logits that a launch
 * for each product gives, except for rounding: dense models and mixtures of experts, with biases,
 * several formats, contexts of more than one split, blocks with parts of a tile, sums that blocks
 * send to each other; and which models have such steps. */
#include "tests/lib/gpu_model.h"

#include <sched.h>

#include "gpu/backend/internal.h"
#include "gpu/rt/emulated.h"
#include "libcommon/engine/backend.h"

#pragma weak emulated_watch             /* a GPU does not tell its launches */
#pragma weak emulated_graphs

enum { N_BLOCKS = 2101, MAX_TOKENS = 600, MORE = 4, MOST_OWNED = 11 * 8 + 4 * (3 * 128 + 1) };

static int n_launches, is_open;         /* is_open: the last backend has such steps */

/* All dimensions are multiples of the emulated device's 4 multiprocessors.  With 3, blocks have
 * parts of a tile. */
static int n_sms;                       /* 0: those of the device */
int __real_gpu_n_sms(const struct gpu *g);
int __wrap_gpu_n_sms(const struct gpu *g);
int __wrap_gpu_n_sms(const struct gpu *g) { return n_sms ? n_sms : __real_gpu_n_sms(g); }

static void count(void *user, const char *kernel, unsigned blocks, int threads, size_t shared)
{
    (void)user, (void)blocks, (void)threads, (void)shared;
    n_launches += strcmp(kernel, "one_token") == 0;
}

static void watch(int on)
{
    n_launches = 0;
    if (emulated_watch)
        emulated_watch(on ? count : NULL, NULL);
}

/* ---- models ---- */

static float *random_floats(int n, struct rng *r)
{
    float *x = malloc((size_t)n * sizeof *x);
    for (int i = 0; i < n; i++)
        x[i] = uniform(r, -0.3f, 0.3f);
    return x;
}

/* Give q, k, v and o biases. */
static int add_biases(struct model *m, void **owned)
{
    struct rng r = { 3 };
    int n = 0;
    m->config.biases |= BIAS_QKV | BIAS_O;
    for (int i = 0; i < m->config.n_layers; i++) {
        struct layer *l = &m->layers[i];
        struct linear *const all[] = { &l->q, &l->k, &l->v, &l->o };
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            all[k]->bias = owned[n++] = random_floats(all[k]->w.rows, &r);
    }
    return n;
}

/* Give all layers query heads of `dim` numbers that share n_kv keys. */
static int make_heads(struct model *m, enum qtype type, int group, int heads, int n_kv, int dim, void **owned)
{
    struct rng r = { 8 };
    const int hidden = m->config.hidden_size;
    int n = 0;
    m->config.n_heads = heads;
    m->config.n_kv_heads = n_kv;
    m->config.head_dim = dim;
    for (int i = 0; i < m->config.n_layers; i++) {
        struct layer *l = &m->layers[i];
        owned[n++] = random_linear(&l->q, type, group, heads * dim, hidden, 0.1f, &r);
        owned[n++] = random_linear(&l->k, type, group, n_kv * dim, hidden, 0.1f, &r);
        owned[n++] = random_linear(&l->v, type, group, n_kv * dim, hidden, 0.1f, &r);
        owned[n++] = random_linear(&l->o, type, group, hidden, heads * dim, 0.1f, &r);
    }
    return n;
}

/* Replace all weights by those of a model with rows of `hidden` numbers, and MLPs of `size`. */
static int widen(struct model *m, enum qtype type, int group, int hidden, int size, void **owned)
{
    struct rng r = { 17 };
    struct config *c = &m->config;
    const int q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    int n = 0;
    float *const norm = random_floats(hidden, &r);
    for (int i = 0; i < hidden; i++)
        norm[i] += 1;
    owned[n++] = norm;
    c->hidden_size = hidden;
    c->intermediate_size = size;
    owned[n++] = random_linear(&m->embed, QT_F16, 32, c->vocab_size, hidden, 1, &r);
    m->head = m->embed;
    m->final_norm.w = norm;
    for (int i = 0; i < c->n_layers; i++) {
        struct layer *l = &m->layers[i];
        l->attn_norm.w = l->mlp_norm.w = norm;
        owned[n++] = random_linear(&l->q, type, group, q, hidden, 0.1f, &r);
        owned[n++] = random_linear(&l->k, type, group, kv, hidden, 0.1f, &r);
        owned[n++] = random_linear(&l->v, type, group, kv, hidden, 0.1f, &r);
        owned[n++] = random_linear(&l->o, type, group, hidden, q, 0.1f, &r);
        owned[n++] = random_linear(&l->gate, type, group, size, hidden, 0.2f, &r);
        owned[n++] = random_linear(&l->up, type, group, size, hidden, 0.2f, &r);
        owned[n++] = random_linear(&l->down, type, group, hidden, size, 0.2f, &r);
    }
    return n;
}

/* Let all layers choose top_k of n_experts. */
static int make_experts(struct model *m, enum qtype type, int group, struct moe moe, void **owned)
{
    struct rng r = { 20 };
    struct config *c = &m->config;
    const int hidden = c->hidden_size, size = moe.intermediate_size;
    int n = 0;
    c->moe = moe;
    for (int i = 0; i < c->n_layers; i++)
        c->ff[i] = FF_MOE;
    OK(model_experts(m, &why));
    for (int i = 0; i < c->n_layers; i++) {
        struct layer *l = &m->layers[i];
        l->gate = l->up = l->down = (struct linear){ 0 };
        /* large weights, so that no choice between nearly equal experts depends on rounding */
        owned[n++] = random_linear(&l->router, QT_F32, 32, moe.n_experts, hidden, 2, &r);
        for (int k = 0; k < moe.n_experts; k++) {
            owned[n++] = random_linear(&l->experts[k].gate, type, group, size, hidden, 0.2f, &r);
            owned[n++] = random_linear(&l->experts[k].up, type, group, size, hidden, 0.2f, &r);
            owned[n++] = random_linear(&l->experts[k].down, type, group, hidden, size, 0.2f, &r);
        }
    }
    return n;
}

/* ---- steps ---- */

static struct backend_options options(int one, int checked)
{
    return (struct backend_options){ .n_threads = 2, .kv = { KV_F16, KV_F16 }, .n_blocks = N_BLOCKS, .n_states = 1,
                                     .max_tokens = MAX_TOKENS, .max_logits = MAX_TOKENS, .debug_sync = checked,
                                     .one_launch = one ? ONE_LAUNCH_ON : ONE_LAUNCH_OFF };
}

static void forward(void *b, const int32_t *ids, int pos, int n, int n_logits, float *logits)
{
    int32_t table[N_BLOCKS];
    for (int i = 0; i < N_BLOCKS; i++)
        table[i] = (i * 7 + 3) % N_BLOCKS;     /* no multiple of 7 */
    const struct batch_item item = { .tokens = ids, .n_tokens = n, .pos = pos, .table = table, .n_logits = n_logits };
    OK(backend_gpu.forward(b, &(struct batch){ &item, 1 }, logits, &why));
}

/* Give all keys and values up to a position random values, as if a prompt had been computed. */
static void fill_keys(struct gpu_backend *rank)
{
    struct rng r = { 5 };
    const size_t n = rank->kv_stride * N_BLOCKS / 2;
    uint16_t *const kv = gpu_pinned(rank->g, 2 * n, "test", &why);
    assert_non_null(kv);
    for (size_t i = 0; i < n; i++)
        kv[i] = f32_to_f16(uniform(&r, -1, 1));
    OK(gpu_upload(rank->g, GPU_COMPUTE, rank->kv, kv, 2 * n, &why));
    OK(gpu_sync(rank->g, GPU_COMPUTE, &why));
    gpu_pinned_free(rank->g, kv);
}

/* Compute a prompt of `before` tokens, and then MORE tokens one by one: logits [MORE][vocab].
 * Returns the number of launches of one_token. */
static int decode(const struct model *m, const struct backend_options *o, int before, float *logits)
{
    int32_t id[MAX_TOKENS];
    struct rng r = { 11 };
    void *b = backend_gpu.open(m, o, &why);
    if (!b)
        fail_msg("%s", why.msg);
    struct gpu_backend *const rank = ((struct gpu_ranks *)b)->rank[0];
    is_open = rank->one.open;
    if (is_open)                        /* large numbers of phase 0, but where the kernel stores */
        OK(gpu_fill(rank->g, GPU_COMPUTE, rank->one.exchanged, 0xfe, sizeof(float) * one_token_exchanged(rank), &why));
    OK(gpu_fill(rank->g, GPU_COMPUTE, rank->kv, 0xff, rank->kv_stride * N_BLOCKS, &why));
    for (int i = 0; i < MAX_TOKENS; i++)
        id[i] = below(&r, m->config.vocab_size);
    if (before > MAX_TOKENS)
        fill_keys(rank);
    else if (before)
        forward(b, id, 0, before, 1, logits);
    watch(1);
    for (int i = 0; i < MORE; i++)
        forward(b, id + (before + i) % MAX_TOKENS, before + i, 1, 1, logits + (size_t)i * (size_t)m->config.vocab_size);
    const int n = n_launches;
    watch(0);
    backend_gpu.close(b);
    return n;
}

/* Compare both kinds of steps.  takes: the model has steps of one launch, and if it is MAYBE, where
 * the kernel is compiled for its format. */
enum { MAYBE = 2 };
static void compare(const struct model *m, int before, int checked, int takes, const char *what)
{
    const size_t n = MORE * (size_t)m->config.vocab_size;
    float *want = malloc(n * sizeof *want), *got = malloc(n * sizeof *got);
    struct backend_options o = options(0, checked);
    assert_int_equal(decode(m, &o, before, want), 0);
    o = options(1, checked);
    const int launches = decode(m, &o, before, got);
    const double error = error_of(got, want, n);
    print_message("# %-28s | %3d tokens before | %.1e\n", what, before, error);
    /* a graph is recorded once, and replayed */
    if (takes != MAYBE)
        assert_int_equal(is_open, takes);
    if (emulated_watch)
        assert_true(is_open && takes ? launches > 0 : launches == 0 && !takes);
    if (!is_open)
        assert_memory_equal(got, want, n * sizeof *got);
    else if (!(error <= 5e-3))
        fail_msg("%s: error %.3g of the largest logit, expected up to 5e-3", what, error);
    free(want), free(got);
}

static void release(struct model *m, void **owned, int n)
{
    while (n)
        free(owned[--n]);
    model_close(m);
}

/* ---- tests ---- */

static void dense(void **state)
{
    (void)state;
    static const struct { enum qtype type; int group; } cases[] = { { QT_NL4, 32 }, { QT_I4, 64 }, { QT_I8, 32 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        void *owned[MOST_OWNED];
        struct model *m = load("tiny", QT_F16);
        int n = quantize_dense(m, cases[i].type, cases[i].group, owned);
        compare(m, 20, i == 0, i == 0 ? 1 : MAYBE, qtype_info(cases[i].type)->name);
        if (i == 0) {
            compare(m, 0, 0, 1, "the first tokens");
            n += add_biases(m, owned + n);
            n_sms = 3;
            compare(m, 20, 0, 1, "biases, 3 blocks");
            n_sms = 0;
            /* words have the other phase in the next step */
            const int n_layers = m->config.n_layers;
            m->config.n_layers = 3;
            compare(m, 20, 1, 1, "three layers");
            m->config.n_layers = n_layers;
        }
        release(m, owned, n);
    }
}

/* Splits that one warp merges, those of several warps, and more than these have at a time. */
static void long_contexts(void **state)
{
    (void)state;
    static const int before[] = { 16 * GPU_SPLIT - 2, 36 * GPU_SPLIT + 40, 257 * GPU_SPLIT + 3 };
    void *owned[MOST_OWNED];
    struct model *m = load("tiny", QT_F16);
    const int n = quantize_dense(m, QT_NL4, 32, owned);
    m->config.max_len = 0;
    n_sms = 3;
    for (size_t i = 0; i < sizeof before / sizeof *before; i++)
        compare(m, before[i], i == 1, 1, "keys of a long context");
    n_sms = 0;
    release(m, owned, n);
}

/* A window of 48 of 300 tokens begins in a later split. */
static void window(void **state)
{
    (void)state;
    void *owned[MOST_OWNED];
    struct model *m = load("tiny", QT_F16);
    const int n = quantize_dense(m, QT_NL4, 32, owned);
    for (int i = 0; i < m->config.n_layers; i += 2)
        m->config.window[i] = 48;
    compare(m, 300, 1, 1, "windows in every other layer");
    release(m, owned, n);
}

static void wide_heads(void **state)
{
    (void)state;
    void *owned[MOST_OWNED];
    struct model *m = load("tiny", QT_F16);
    int n = quantize_dense(m, QT_NL4, 32, owned);
    n += make_heads(m, QT_NL4, 32, 4, 1, 128, owned + n);
    n_sms = 3;
    compare(m, 150, 1, 1, "4 heads of 128, two splits");
    n_sms = 0;
    release(m, owned, n);
}

/* Norms, rotations and scores of other models; eight heads that share a key. */
static void heads(void **state)
{
    (void)state;
    enum { NORM_EACH = 1, NORM_HEAD = 2, AFTER = 4, BIASED = 8, PAIRS = 16, SOFTCAP = 32, SINKS = 64, CHUNK = 128,
           TEMPER = 256 };
    static const struct { int more, heads, dim, before; const char *what; } cases[] = {
        { NORM_HEAD, 8, 64, 540, "8 heads of 64, norms, 5 splits" },
        { NORM_EACH | AFTER, 4, 96, 20, "norms after rotation" },
        { NORM_EACH | BIASED | PAIRS, 8, 32, 20, "layer norms, pairs" },
        { SOFTCAP | SINKS | TEMPER, 4, 32, 140, "softcap, sinks, temperature" },
        { NORM_EACH | PAIRS | CHUNK, 4, 32, 140, "norms, pairs, chunks" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int more = cases[i].more, all = more & NORM_EACH ? cases[i].heads * cases[i].dim : cases[i].dim;
        void *owned[MOST_OWNED];
        struct rng r = { 12 };
        struct model *m = load("tiny", QT_F16);
        struct config *c = &m->config;
        int n = quantize_dense(m, QT_NL4, 32, owned);
        n += make_heads(m, QT_NL4, 32, cases[i].heads, 1, cases[i].dim, owned + n);
        c->qk_norm = more & NORM_EACH ? QK_NORM_EACH : more & NORM_HEAD ? QK_NORM_HEAD : QK_NORM_NONE;
        c->qk_norm_kind = more & BIASED ? NORM_LAYER : NORM_RMS;
        c->qk_norm_after_rope = (more & AFTER) != 0;
        c->qk_norm_eps = 1e-5f;
        c->qk_norm_offset = 1;
        c->ropes[0].pairs = (more & PAIRS) != 0;
        c->attn_softcap = more & SOFTCAP ? 0.5f : 0;
        c->sinks = more & SINKS ? SINKS_ALL : SINKS_NONE;
        if (more & TEMPER)
            c->temperature_scale = 0.5f, c->temperature_floor = 16, c->temperature_first = c->temperature_roped = 1;
        for (int k = 0; k < c->n_layers; k++) {
            struct layer *l = &m->layers[k];
            c->chunk[k] = more & CHUNK && k % 2 ? 50 : 0;
            if (more & SINKS)
                l->sinks = owned[n++] = random_floats(c->n_heads, &r);
            for (int q = 0; q < 2 && c->qk_norm; q++) {
                struct norm *const norm = q ? &l->q_norm : &l->k_norm;
                norm->present = 1;
                norm->w = owned[n++] = random_floats(all, &r);
                norm->b = more & BIASED ? (owned[n++] = random_floats(all, &r)) : NULL;
            }
        }
        compare(m, cases[i].before, 1, 1, cases[i].what);
        release(m, owned, n);
    }
}

/* By default mixtures have such steps, and dense models only where launches do not overlap, which
 * the emulated device says that they do. */
static void by_default(const struct model *m, int takes)
{
    float *logits = malloc(MORE * (size_t)m->config.vocab_size * sizeof *logits);
    struct backend_options o = options(1, 0);
    o.one_launch = ONE_LAUNCH_AUTO;
    const int launches = decode(m, &o, 0, logits);
    if (emulated_watch)
        assert_int_equal(launches > 0, takes);
    free(logits);
}

static void experts(void **state)
{
    (void)state;
    static const struct moe plain = { .n_experts = 6, .top_k = 2, .intermediate_size = 128, .router = ROUTER_SOFTMAX,
                                      .normalize = 1, .scale = 1 },
                            many = { .n_experts = 128, .top_k = 8, .intermediate_size = 128, .router = ROUTER_SIGMOID,
                                     .normalize = 1, .scale = 2.5f, .norm_add = 1e-20f };
    const struct { struct moe moe; enum qtype type; int group; const char *what; } cases[] = {
        { plain, QT_NL4, 32, "2 of 6 experts" }, { many, QT_NL4, 32, "8 of 128 experts, sigmoid" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        void *owned[MOST_OWNED];
        struct model *m = load("tiny", QT_F16);
        int n = quantize_dense(m, cases[i].type, cases[i].group, owned);
        if (i == 0)                     /* with three blocks, tiles of o are divided */
            n += make_heads(m, cases[i].type, cases[i].group, 4, 2, 128, owned + n);
        n += make_experts(m, cases[i].type, cases[i].group, cases[i].moe, owned + n);
        n_sms = 3;
        compare(m, 20, 1, 1, cases[i].what);
        /* the order of experts depends on the norm */
        float *const large = owned[n++] = random_floats(cases[i].moe.n_experts, &(struct rng){ 21 });
        m->config.moe.correction = i == 1;
        m->config.biases |= i == 0 ? BIAS_ROUTER : 0;
        for (int k = 0; k < m->config.n_layers; k++)
            *(i ? &m->layers[k].correction : &m->layers[k].router.bias) = large;
        compare(m, 20, 1, 1, i ? "corrected scores" : "a router with biases");
        n_sms = 0;
        if (i == 0)
            by_default(m, 1);
        release(m, owned, n);
    }
}

/* Several formats side by side, also with three blocks, whose units and parts end elsewhere. */
static void formats(void **state)
{
    (void)state;
    static const struct moe plain = { .n_experts = 6, .top_k = 2, .intermediate_size = 128, .router = ROUTER_SOFTMAX,
                                      .normalize = 1, .scale = 1 };
    for (int moe = 0; moe < 2; moe++) {
        void *owned[MOST_OWNED];
        struct model *m = load("tiny", QT_F16);
        int n = quantize_dense(m, QT_NL4, 32, owned);
        if (moe)
            n += make_experts(m, QT_NL4, 32, plain, owned + n);
        n += mix_types(m, owned + n);
        compare(m, 20, 1, 1, moe ? "experts, 3 formats" : "3 formats");
        n += add_biases(m, owned + n);
        n_sms = 3;
        compare(m, 20, 0, 1, moe ? "experts, 3 formats, 3 blocks" : "3 formats, 3 blocks");
        n_sms = 0;
        release(m, owned, n);
    }
    for (int i = 0; i < 2; i++) {
        void *owned[MOST_OWNED];
        struct model *m = load("tiny", QT_F16);
        const int n = quantize_dense(m, i ? QT_M6 : QT_M5, 32, owned);
        compare(m, 20, 0, 1, i ? "m6" : "m5");
        release(m, owned, n);
    }
}

/* Models and options without such steps keep the bits that they had. */
static void others(void **state)
{
    (void)state;
    void *owned[MOST_OWNED];
    struct model *m = load("tiny", QT_F16);
    compare(m, 20, 0, 0, "f16 weights");
    int n = quantize_dense(m, QT_NL4, 32, owned);
    by_default(m, 0);
    m->layers[1].attn_post_norm = m->layers[1].attn_norm;
    compare(m, 20, 0, 0, "a norm after attention");
    m->layers[1].attn_post_norm = (struct norm){ 0 };
    owned[n++] = quantize(&m->layers[2].down, QT_I8, 32);
    compare(m, 20, 0, 0, "a layer of two types");
    release(m, owned, n);
}

/* With three blocks: down of a dense layer has 12 turns, 4 a block; o of i8 has 8; down of experts
 * has more turns in a tile than a block has warps. */
static void divided(void **state)
{
    (void)state;
    static const struct moe wide = { .n_experts = 40, .top_k = 8, .intermediate_size = 384,
                                     .router = ROUTER_SOFTMAX, .normalize = 1, .scale = 1 };
    for (int i = 0; i < 3; i++) {
        void *owned[MOST_OWNED];
        struct model *m = load("tiny", QT_F16);
        const enum qtype type = i == 1 ? QT_I8 : QT_NL4;
        int n = quantize_dense(m, type, 32, owned);
        n += add_biases(m, owned + n);
        m->config.residual_scale = 0.5f;
        if (i == 2)
            n += make_experts(m, type, 32, wide, owned + n);
        n_sms = 3;
        compare(m, 20, i == 0, i == 1 ? MAYBE : 1, i == 2 ? "8 of 40 experts, divided" : "divided");
        n_sms = 0;
        release(m, owned, n);
    }
}

/* Tiles of gate and up have five turns.  Of 20 turns each of three blocks has up to 7: the second
 * one sends sums to the first one, and receives some of the third.  Of 40 turns of two experts each
 * has 14.  Of 10 turns each of four blocks has up to 3: the second one has a turn of a tile whose
 * others are those of the third and fourth. */
static void joined(void **state)
{
    (void)state;
    static const struct moe two = { .n_experts = 6, .top_k = 2, .intermediate_size = 128, .router = ROUTER_SOFTMAX,
                                    .normalize = 1, .scale = 1 };
    static const struct { enum qtype type; int hidden, size, n_sms, moe; const char *what; } cases[] = {
        { QT_NL4, 640, 128, 3, 0, "4 tiles on 3 blocks" }, { QT_NL4, 640, 128, 3, 1, "2 x 4 tiles on 3 blocks" },
        { QT_I8, 320, 64, 0, 0, "2 tiles on 4 blocks" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        void *owned[MOST_OWNED];
        struct model *m = load("tiny", QT_F16);
        int n = widen(m, cases[i].type, 32, cases[i].hidden, cases[i].size, owned);
        if (cases[i].moe)
            n += make_experts(m, cases[i].type, 32, two, owned + n);
        n_sms = cases[i].n_sms;
        for (int checked = 0; checked < 2; checked++)
            compare(m, 20, checked, cases[i].type == QT_I8 ? MAYBE : 1, cases[i].what);
        if (cases[i].type == QT_NL4) {
            n += mix_types(m, owned + n);
            compare(m, 20, 0, 1, "the same, 3 formats");
        }
        n_sms = 0;
        release(m, owned, n);
    }
}

/* Each turn is one block's, and the parts of a tile follow each other. */
static void turns(void **state)
{
    (void)state;
    for (int n_tiles = 1; n_tiles <= 200; n_tiles += 1 + n_tiles / 7)
        for (int per_tile = 1; per_tile <= 60; per_tile += 1 + per_tile / 5)
            for (int blocks = 1; blocks <= 132; blocks += 1 + blocks / 3) {
                const struct gpu_turns d = gpu_turns_divide(n_tiles, per_tile, blocks);
                int most = 0;
                assert_true((long)d.share * blocks >= (long)n_tiles * per_tile);
                for (int i = 0; i < n_tiles; i++) {
                    const int first = i * per_tile / d.share, last = ((i + 1) * per_tile - 1) / d.share;
                    most = last - first + 1 > most ? last - first + 1 : most;
                    assert_int_equal((uint64_t)(i * per_tile) * d.by_share >> 31, first);
                }
                assert_int_equal(most, d.parts);
                assert_in_range(d.parts, 1, GPU_TURN_PARTS);
            }
}

/* Drawn tokens come from a graph that is recorded once and replayed.  Blocks send sums in it.  With
 * 3 layers, and with 2, words have another phase in the next step. */
static void graph(void **state)
{
    (void)state;
    void *owned[MOST_OWNED];
    struct model *m = load("tiny", QT_F16);
    const int n = widen(m, QT_NL4, 32, 640, 128, owned), n_layers = m->config.n_layers;
    const size_t vocab = (size_t)m->config.vocab_size;
    float *all = malloc(MORE * vocab * sizeof *all);
    const struct backend_options o = options(1, 0);
    n_sms = 3;
    for (int k = 0; k < 3; k++) {
        const int before = emulated_graphs ? emulated_graphs() : 0;
        m->config.n_layers = k ? 4 - k : n_layers;
        void *b = backend_gpu.open(m, &o, &why);
        if (!b)
            fail_msg("%s", why.msg);
        while (dweights_complete(((struct gpu_ranks *)b)->rank[0]->w, &why) == 0)
            sched_yield();              /* graphs are used from then on */
        const int32_t id = 5;
        for (int i = 0; i < MORE; i++)  /* the same step */
            forward(b, &id, 0, 1, 1, all + (size_t)i * vocab);
        for (int i = 1; i < MORE; i++)
            assert_memory_equal(all, all + (size_t)i * vocab, vocab * sizeof *all);
        if (emulated_graphs)
            assert_true(emulated_graphs() - before >= MORE - 2);
        backend_gpu.close(b);
    }
    m->config.n_layers = n_layers;
    n_sms = 0;
    free(all);
    release(m, owned, n);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(dense), cmocka_unit_test(long_contexts),
                                        cmocka_unit_test(window), cmocka_unit_test(wide_heads),
                                        cmocka_unit_test(heads), cmocka_unit_test(experts), cmocka_unit_test(formats),
                                        cmocka_unit_test(divided), cmocka_unit_test(joined), cmocka_unit_test(turns),
                                        cmocka_unit_test(others), cmocka_unit_test(graph) };
    if (getenv("ZSE_ONLY"))
        cmocka_set_test_filter(getenv("ZSE_ONLY"));
    return device_usable() ? cmocka_run_group_tests(tests, NULL, NULL) : 0;
}
