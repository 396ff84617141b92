/* t-gpu-hybrid.c - mixtures whose experts are partly on the processor: with 0, 1, half and all
 * experts on the device, and with experts uploaded for prompts, oracle folders of every kind of
 * router give the logits of transformers (f32, 1e-4 of the largest) and our own model those of the
 * CPU.  The order in which tokens are
 * added to a batch, threads and repetition do not change a bit. */
#include "tests/lib/gpu_model.h"

#include <dirent.h>
#include <unistd.h>

#include "gpu/backend/internal.h"
#include "gpu/gpu.h"
#include "gpu/rt/emulated.h"
#include "libcommon/base/json.h"
#include "libcommon/engine/backend.h"

#pragma weak emulated_fail              /* a GPU has no injected faults */
#pragma weak emulated_idle
#pragma weak emulated_link

enum { MAX_TOKENS = 320, N_BLOCKS = 64 };

static struct backend_options options(int exact, int n_experts)
{
    return (struct backend_options){ .n_threads = 2, .kv = kv_both(exact ? KV_F32 : KV_F16), .n_blocks = N_BLOCKS,
                                     .n_states = 1, .max_tokens = MAX_TOKENS, .max_logits = MAX_TOKENS,
                                     .exact = exact, .moe = n_experts ? MOE_HYBRID : MOE_CPU,
                                     .gpu_experts = n_experts };
}

static void *open_backend(const struct backend *d, const struct model *m, const struct backend_options *o)
{
    void *b = d->open(m, o, &why);
    if (!b)
        fail_msg("%s", why.msg);
    return b;
}

static void forward(const struct backend *d, void *b, const int32_t *ids, int pos, int n, int n_logits, float *logits)
{
    int32_t table[N_BLOCKS];
    for (int i = 0; i < N_BLOCKS; i++)
        table[i] = (i * 5 + 3) % N_BLOCKS;
    const struct batch_item item = { .tokens = ids, .n_tokens = n, .pos = pos, .table = table, .n_logits = n_logits };
    OK(d->forward(b, &(struct batch){ &item, 1 }, logits, &why));
}

/* ---- against transformers ---- */

enum { FIRST = 7 };             /* tokens of the prompt that is compared */

/* Read ids and expected logits of a folder's prompt of FIRST tokens. */
static float *expected_logits(const char *name, size_t vocab, int32_t id[FIRST])
{
    char path[400];
    snprintf(path, sizeof path, "%s/models/hf/%s/expected.json", root(), name);
    json_t *expected = js_load(path, 1 << 24, &why);
    snprintf(path, sizeof path, "%s/models/hf/%s/logits.f32", root(), name);
    FILE *f = fopen(path, "rb");
    float *want = NULL;
    size_t i;
    const json_t *prompt;
    assert_true(expected && f);
    json_array_foreach(json_object_get(expected, "prompts"), i, prompt) {
        const json_t *ids = json_object_get(prompt, "ids");
        const size_t n = json_array_size(ids), size = n * vocab;
        if (n != FIRST || want) {
            fseek(f, (long)(size * sizeof *want), SEEK_CUR);
            continue;
        }
        for (size_t t = 0; t < n; t++)
            id[t] = (int32_t)json_integer_value(json_array_get(ids, t));
        want = malloc(size * sizeof *want);
        assert_int_equal(fread(want, sizeof *want, size, f), size);
    }
    fclose(f);
    json_decref(expected);
    if (!want)
        fail_msg("%s: no prompt of %d tokens", name, FIRST);
    return want;
}

/* Close a model whose experts' matrices were replaced by n allocated ones. */
static void close_with(struct model *m, uint8_t *owned[], int n)
{
    while (n)
        free(owned[--n]);
    model_close(m);
}

/* The placements of experts that are compared.  The device holds n of them, or HALF, or ALL.  The
 * CPU computes the others, or experts are uploaded once for each layer and step: those that the
 * device lacks (persistent prefill), or every one (streamed). */
enum { HALF = -1, ALL = -2 };
static const struct placement { const char *name; int n, streams; } placements[] = {
    { "none", 0, 0 }, { "half", HALF, 0 }, { "one", 1, 0 }, { "streamed", 0, 1 }, { "persistent", HALF, 1 },
    { "all", ALL, 0 },
};
enum { N_PLACEMENTS = sizeof placements / sizeof *placements };

static struct backend_options placed(const struct model *m, const struct placement *p)
{
    const int all = m->config.moe.n_experts, n = p->n == HALF ? all / 2 : p->n == ALL ? all : p->n;
    struct backend_options o = options(1, n);
    o.n_states = 2;
    if (p->streams) {
        o.moe = n ? MOE_HYBRID : MOE_PASSING;
        o.prefill_threshold = 1;
    }
    return o;
}

static int n_mixtures(const struct config *c)
{
    int n = 0;
    for (int i = 0; i < c->n_layers; i++)
        n += c->ff[i] == FF_MOE;
    return n;
}

/* The whole prompt, and its first tokens before the others, with each `every`-th placement from
 * `first` on.  NULL, or why the device does not compute this model. */
static const char *check_folder(const char *name, int first, int every)
{
    struct model *m = load(name, QT_F32);
    const size_t vocab = (size_t)m->config.vocab_size;
    int32_t id[FIRST];
    float *want = expected_logits(name, vocab, id), *got = malloc(FIRST * vocab * sizeof *got);
    const char *beyond = NULL;
    double worst = 0;
    for (int i = first; i < N_PLACEMENTS; i += every) {
        const struct placement *p = &placements[i];
        const struct backend_options o = placed(m, p);
        struct backend_device d;
        void *b = backend_gpu.open(m, &o, &why);
        if (!b && why.code == ERR_UNSUPPORTED && i == first) {
            beyond = why.msg;
            break;
        }
        if (!b)
            fail_msg("%s, %s: %s", name, p->name, why.msg);
        forward(&backend_gpu, b, id, 0, FIRST - 1, FIRST - 1, got);
        forward(&backend_gpu, b, id + FIRST - 1, FIRST - 1, 1, 1, got + (FIRST - 1) * vocab);
        const double error = error_of(got, want, FIRST * vocab);
        worst = fmax(worst, error);
        if (!(error <= 1e-4))
            fail_msg("%s, %s: error %.3g of the largest logit, limit 1e-4", name, p->name, error);
        backend_gpu.device(b, &d);
        assert_int_equal(d.n_experts, p->n == HALF ? m->config.moe.n_experts / 2 : p->n == ALL
                                                     ? m->config.moe.n_experts : p->n);
        /* both steps upload what the device lacks, and nothing is left to the CPU */
        if (p->streams) {
            assert_int_equal(d.experts.streamed, 2 * n_mixtures(&m->config) * (m->config.moe.n_experts - d.n_experts));
            assert_int_equal(d.experts.misses, 0);
        }
        backend_gpu.close(b);
    }
    if (!beyond)
        print_message("# %-26s | %d of %d layers, %d experts | %.1e\n", name, n_mixtures(&m->config),
                      m->config.n_layers, m->config.moe.n_experts, worst);
    model_close(m);
    free(want), free(got);
    return beyond;
}

/* Is this folder of the oracles a mixture of experts? */
static int is_mixture(const char *name)
{
    char path[400];
    struct config c = { 0 };
    snprintf(path, sizeof path, "%s/models/hf/%s", root(), name);
    struct source *s = source_open(path, &why);
    if (!s)
        fail_msg("%s: %s", name, why.msg);
    OK(config_parse(&c, s->config, &why));
    const int is = n_mixtures(&c) > 0;
    config_release(&c);
    source_close(s);
    return is;
}

/* Check all mixtures below models/hf/`under`: one third of the placements each, in turn, or with
 * ZSE_TEST_ALL all.  Returns their number. */
static int check_all(const char *under)
{
    char path[400], name[300];
    struct dirent **entry;
    int n_checked = 0, every = getenv("ZSE_TEST_ALL") ? 1 : 3;
    snprintf(path, sizeof path, "%s/models/hf/%s", root(), under);
    const int n = scandir(path, &entry, NULL, alphasort);
    assert_true(n > 0);
    for (int i = 0; i < n; free(entry[i++])) {
        snprintf(name, sizeof name, "%s%.250s", under, entry[i]->d_name);
        snprintf(path, sizeof path, "%s/models/hf/%s/logits.f32", root(), name);
        if (access(path, R_OK) != 0 || !is_mixture(name))
            continue;
        const char *beyond = check_folder(name, n_checked % every, every);
        if (beyond)
            print_message("# %-26s | left out: %s\n", name, beyond);
        n_checked += !beyond;
    }
    free(entry);
    return n_checked;
}

static void folders(void **state)
{
    (void)state;
    if (!have_oracles()) {
        print_message("# skipped: no oracles (set ZSE_ORACLES)\n");
        skip();
    }
    const int n = check_all("") + check_all("../hf-2026/");
    print_message("# %d folders\n", n);
    assert_true(n >= 35);
}

/* ---- our own model ---- */

static void random_ids(int32_t *id, int n, int vocab)
{
    struct rng r = { 11 };
    for (int i = 0; i < n; i++)
        id[i] = below(&r, vocab);
}

/* Packed experts, f16 activations on the device and int8 ones on the CPU. */
static void check_packed(int gated)
{
    enum { N = 20, MORE = 2 };
    uint8_t *owned[MOST_EXPERT_MATS];
    struct model *m = load("tiny", QT_F16);
    int n_owned = make_mixture(m, QT_NL4, 32, owned);
    if (!gated)
        remove_gates(m);
    const size_t vocab = (size_t)m->config.vocab_size;
    int32_t id[N + MORE];
    float *want = malloc((N + MORE) * vocab * sizeof *want), *got = malloc((N + MORE) * vocab * sizeof *got);
    random_ids(id, N + MORE, (int)vocab);
    for (int k = -1; k <= 3; k += k < 0 ? 1 : 3) {
        const struct backend_options o = options(k < 0, k < 0 ? 0 : k);
        const struct backend *d = k < 0 ? &backend_cpu : &backend_gpu;
        float *out = k < 0 ? want : got;
        void *b = open_backend(d, m, &o);
        forward(d, b, id, 0, N, N, out);
        for (int i = N; i < N + MORE; i++)
            forward(d, b, id + i, i, 1, 1, out + (size_t)i * vocab);
        d->close(b);
        if (k >= 0 && !(error_of(got, want, (N + MORE) * vocab) <= 2e-2))
            fail_msg("%d experts%s on the device: error %.3g of the largest logit, limit 2e-2", k,
                     gated ? "" : " without gate",
                     error_of(got, want, (N + MORE) * vocab));
    }
    close_with(m, owned, n_owned);
    free(want), free(got);
}

static void packed(void **state) { (void)state; check_packed(1); }
static void ungated(void **state) { (void)state; check_packed(0); }

/* A mixture through a window of layers: all experts are on the device, and every bit is that of a
 * device with memory for all layers. */
static void windows(void **state)
{
    (void)state;
    enum { N = 18 };
    uint8_t *owned[MOST_EXPERT_MATS];
    struct model *m = load("tiny", QT_F16);
    int n_owned = make_mixture(m, QT_NL4, 32, owned);
    const size_t vocab = (size_t)m->config.vocab_size;
    int32_t id[N + 1];
    float *want = malloc(2 * vocab * sizeof *want), *got = malloc(2 * vocab * sizeof *got);
    random_ids(id, N + 1, (int)vocab);
    for (int window = 0; window <= 2; window++) {
        struct backend_options o = options(0, 0);
        struct backend_device d;
        float *out = window ? got : want;
        o.moe = window == 2 ? MOE_HYBRID : MOE_GPU;
        o.layer_stream = LAYER_STREAM_AUTO;
        o.stream_window = window;
        o.stream_prefetch = window - 1;
        void *b = open_backend(&backend_gpu, m, &o);
        forward(&backend_gpu, b, id, 0, N, 1, out);
        forward(&backend_gpu, b, id + N, N, 1, 1, out + vocab);
        backend_gpu.device(b, &d);
        assert_int_equal(d.n_experts, m->config.moe.n_experts);
        assert_int_equal(d.stream.window, window);
        assert_int_equal(d.stream.uses, window ? 2 * m->config.n_layers : 0);
        backend_gpu.close(b);
        if (window)
            assert_memory_equal(got, want, 2 * vocab * sizeof *got);
    }
    close_with(m, owned, n_owned);
    free(want), free(got);
}

/* With --strict a prompt that the host takes in two parts has the bits of several prompts and of
 * single tokens, for any number of threads. */
static void same_bits(void **state)
{
    (void)state;
    enum { N = 260, CUT = 200, LOGITS = 2 };
    uint8_t *owned[MOST_EXPERT_MATS];
    struct model *m = load("tiny", QT_F16);
    int n_owned = make_mixture(m, QT_I4Z, 128, owned);
    const size_t vocab = (size_t)m->config.vocab_size, size = LOGITS * vocab;
    int32_t id[N];
    float *want = malloc(size * sizeof *want), *got = malloc(size * sizeof *got);
    random_ids(id, N, (int)vocab);
    struct backend_options o = options(0, 2);
    o.strict = 1;
    m->config.n_layers = 2;
    o.device_layers = 1;
    void *b = open_backend(&backend_gpu, m, &o);
    forward(&backend_gpu, b, id, 0, N, LOGITS, want);
    backend_gpu.close(b);
    o.n_threads = 1;
    b = open_backend(&backend_gpu, m, &o);
    forward(&backend_gpu, b, id, 0, CUT, 0, NULL);
    forward(&backend_gpu, b, id + CUT, CUT, N - CUT - LOGITS, 0, NULL);
    for (int i = 0; i < LOGITS; i++)
        forward(&backend_gpu, b, id + N - LOGITS + i, N - LOGITS + i, 1, 1, got + (size_t)i * vocab);
    assert_memory_equal(got, want, size * sizeof *got);
    backend_gpu.close(b);
    m->config.n_layers = 4;
    close_with(m, owned, n_owned);
    free(want), free(got);
}

/* Three sequences, padded to four tokens, with the first layers on the CPU, too. */
static void batches(void **state)
{
    (void)state;
    enum { N = 3, PROMPT = 5 };
    uint8_t *owned[MOST_EXPERT_MATS];
    struct model *m = load("tiny", QT_F32);
    int n_owned = make_mixture(m, QT_F32, 32, owned);
    const size_t vocab = (size_t)m->config.vocab_size;
    int32_t id[N][PROMPT + 1], table[N] = { 4, 2, 7 };
    struct batch_item prompt[N], next[N];
    float *want = malloc(N * vocab * sizeof *want), *got = malloc(N * vocab * sizeof *got);
    for (int s = 0; s < N; s++) {
        random_ids(id[s], PROMPT + 1, (int)vocab - s);
        prompt[s] = (struct batch_item){ .tokens = id[s], .n_tokens = PROMPT, .table = &table[s] };
        next[s] = (struct batch_item){ .tokens = id[s] + PROMPT, .n_tokens = 1, .pos = PROMPT, .table = &table[s],
                                       .n_logits = 1 };
    }
    for (int layers = -1; layers <= 3; layers += layers < 0 ? 1 : 3) {
        struct backend_options o = options(1, layers < 0 ? 0 : 2);
        const struct backend *d = layers < 0 ? &backend_cpu : &backend_gpu;
        o.device_layers = layers > 0 ? layers : 0;
        void *b = open_backend(d, m, &o);
        OK(d->forward(b, &(struct batch){ prompt, N }, NULL, &why));
        OK(d->forward(b, &(struct batch){ next, N }, layers < 0 ? want : got, &why));
        if (layers >= 0 && !(error_of(got, want, N * vocab) <= 1e-4))
            fail_msg("%d layers: error %.3g", layers, error_of(got, want, N * vocab));
        d->close(b);
    }
    close_with(m, owned, n_owned);
    free(want), free(got);
}

/* ---- experts that move ---- */

/* Bytes of the matrices of an expert. */
static uint64_t expert_bytes(const struct expert *x) { return x->gate.w.size + x->up.w.size + x->down.w.size; }

static struct backend_experts counts_of(const void *b)
{
    struct backend_device d;
    backend_gpu.device(b, &d);
    return d.experts;
}

/* In a long step the device computes all experts, with the bits that it gives with all of them in
 * its memory; the bytes uploaded are those of the experts that it lacks, once for each layer and
 * step.  A shorter step uploads nothing. */
static void streamed(void **state)
{
    (void)state;
    enum { N = 22, LEAST = 20, LOGITS = 3 };
    uint8_t *owned[MOST_EXPERT_MATS];
    struct model *m = load("tiny", QT_F16);
    int n_owned = make_mixture(m, QT_NL4, 32, owned);
    const size_t size = LOGITS * (size_t)m->config.vocab_size;
    const uint64_t all = 2 * expert_bytes(m->layers[1].experts);        /* of one expert in both layers */
    int32_t id[2 * N];
    float *want = malloc(size * sizeof *want), *got = malloc(size * sizeof *got);
    random_ids(id, 2 * N, m->config.vocab_size);
    for (int k = N_EXPERTS; k >= 0; k -= k == N_EXPERTS ? 5 : 1) {
        struct backend_options o = options(0, k);
        o.prefill_threshold = LEAST;
        void *b = open_backend(&backend_gpu, m, &o);
        forward(&backend_gpu, b, id, 0, N, 0, NULL);
        forward(&backend_gpu, b, id + N, N, N, LOGITS, k == N_EXPERTS ? want : got);
        const struct backend_experts c = counts_of(b);
        if (k < N_EXPERTS)
            assert_memory_equal(got, want, size * sizeof *got);
        assert_int_equal(c.streamed, 2 * 2 * (N_EXPERTS - k));
        assert_int_equal(c.streamed_bytes, 2 * (uint64_t)(N_EXPERTS - k) * all);
        assert_int_equal(c.misses, 0);
        if (k == 0) {
            forward(&backend_gpu, b, id, 0, LEAST - 1, 1, got);
            assert_int_equal(counts_of(b).streamed_bytes, c.streamed_bytes);
            assert_int_equal(counts_of(b).misses, 2 * 2 * (LEAST - 1));
        }
        backend_gpu.close(b);
    }
    for (int way = 0; way < 2; way++) {         /* never */
        struct backend_options o = options(0, way ? 0 : 1);
        o.prefill_threshold = LEAST;
        *(way ? &o.strict : &o.no_gpu_prefill) = 1;
        void *b = open_backend(&backend_gpu, m, &o);
        forward(&backend_gpu, b, id, 0, LEAST, 1, got);
        assert_int_equal(counts_of(b).streamed, 0);
        assert_true(counts_of(b).misses > 0);
        backend_gpu.close(b);
    }
    close_with(m, owned, n_owned);
    free(want), free(got);
}

/* ---- the shape of DeepSeek-V2-Lite ---- */

enum { LITE_LAYERS = 27, LITE_EXPERTS = 64, LITE_TOP_K = 6 };

/* Its layers and experts with small matrices: the first layer is dense, the others have a shared
 * MLP and 64 experts, six for each token.  All layers have the same weights, and every sixth expert
 * is the same, which changes no count. */
static struct model *open_lite(enum qtype type, uint8_t *owned[MOST_EXPERT_MATS], int *n_owned)
{
    struct model *m = load("tiny", QT_F16);
    struct config *c = &m->config;
    struct rng r = { 21 };
    const int n = make_mixture(m, type, 32, owned);
    struct expert *const some[2] = { m->layers[1].experts, m->layers[2].experts };
    repeat_layers(m, LITE_LAYERS);
    owned[n] = random_linear(&m->layers[1].router, QT_F32, 32, LITE_EXPERTS, c->hidden_size, 2, &r);
    *n_owned = n + 1;
    c->max_len = 1 << 14;
    c->moe.n_experts = LITE_EXPERTS;
    c->moe.top_k = LITE_TOP_K;
    for (int i = 1; i < LITE_LAYERS; i++) {
        m->layers[i] = m->layers[1];
        c->ff[i] = FF_MOE;
        m->layers[i].experts = malloc(LITE_EXPERTS * sizeof *some[0]);
        for (int k = 0; k < LITE_EXPERTS; k++)
            m->layers[i].experts[k] = some[0][k % N_EXPERTS];
    }
    free(some[0]), free(some[1]);
    return m;
}

/* Compute n_seqs prompts of n tokens in steps of up to `step` tokens of each. */
static void prompts(void *b, int n_seqs, int n, int step, const int32_t *table)
{
    static const int32_t ids[BACKEND_STEP_TOKENS];
    for (int at = 0; at < n; at += step) {
        struct batch_item item[8] = { { .tokens = NULL } };
        for (int i = 0; i < n_seqs; i++)
            item[i] = (struct batch_item){ .tokens = ids, .n_tokens = n - at < step ? n - at : step, .pos = at,
                                           .table = table };
        OK(backend_gpu.forward(b, &(struct batch){ item, n_seqs }, NULL, &why));
    }
}

/* Prompts of 2 to 10,000 tokens move the experts that the device lacks once for each chunk, and not
 * a byte more, also if several prompts share it.  The kernels do nothing: in these steps no upload
 * depends on a result. */
static void lite_bytes(void **state)
{
    (void)state;
    enum { MOST = 10000, STEP = BACKEND_STEP_TOKENS };
    static const int lengths[] = { 2, 5, 299, STEP, STEP + 1, 3 * STEP - 1, 4096, MOST }, here[] = { 0, 1, 32, 63 };
    uint8_t *owned[MOST_EXPERT_MATS];
    int32_t table[MOST / KV_BLOCK];
    int n_owned;
    if (!emulated_idle)
        skip();
    struct model *m = open_lite(QT_NL4, owned, &n_owned);
    const uint64_t one = expert_bytes(m->layers[1].experts), moe = LITE_LAYERS - 1;
    for (int i = 0; i < MOST / KV_BLOCK; i++)
        table[i] = i;
    emulated_idle(1);
    for (size_t k = 0; k < sizeof here / sizeof *here; k++) {
        struct backend_options o = options(0, here[k]);
        o.moe = here[k] ? MOE_HYBRID : MOE_PASSING;
        o.n_blocks = MOST / KV_BLOCK;
        o.max_tokens = STEP;
        o.prefill_threshold = 1;
        void *b = open_backend(&backend_gpu, m, &o);
        uint64_t chunks = 0;
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            prompts(b, 1, lengths[i], STEP, table);
            chunks += (uint64_t)(lengths[i] + STEP - 1) / STEP;
        }
        prompts(b, 8, STEP / 8, STEP / 8, table);
        const struct backend_experts c = counts_of(b);
        const uint64_t passed = (chunks + 1) * moe * (uint64_t)(LITE_EXPERTS - here[k]);
        assert_int_equal(c.streamed, passed);
        assert_int_equal(c.streamed_bytes, passed * one);
        assert_int_equal(c.moved_bytes + c.uploaded_bytes, 0);
        print_message("# V2-Lite's shape, %2d of 64 experts stay: %llu chunks, %llu uploads, %llu bytes\n", here[k],
                      (unsigned long long)chunks + 1, (unsigned long long)c.streamed,
                      (unsigned long long)c.streamed_bytes);
        backend_gpu.close(b);
    }
    emulated_idle(0);
    close_with(m, owned, n_owned);
}

/* Resident private memory of this process. */
static size_t private_bytes(void)
{
    char line[200];
    size_t kb = 0;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %zu kB", &kb) == 1)
            break;
    fclose(f);
    assert_true(kb > 0);
    return kb << 10;
}

/* Host memory beside the weights, which are pages of the file, and the pinned memory: less than 64
 * MB, though the experts of the host take more.  The device's memory is the process's, too. */
static void host_memory(void **state)
{
    (void)state;
    enum { HERE = 8, LIMIT = 64 << 20 };
    uint8_t *owned[MOST_EXPERT_MATS];
    int n_owned;
    if (!emulated_idle || getenv("ZSE_SANITIZED"))
        skip();
    struct model *m = open_lite(QT_F16, owned, &n_owned);
    struct backend_options o = options(0, HERE);
    struct backend_device d;
    int32_t id[4];
    float *logits = malloc((size_t)m->config.vocab_size * sizeof *logits);
    random_ids(id, 4, m->config.vocab_size);
    o.prefill_threshold = 3;
    o.max_tokens = o.max_logits = 16;
    const size_t before = private_bytes();
    void *b = open_backend(&backend_gpu, m, &o);
    forward(&backend_gpu, b, id, 0, 3, 1, logits);              /* streamed */
    forward(&backend_gpu, b, id + 3, 3, 1, 1, logits);          /* the CPU has a part */
    const size_t grown = private_bytes() - before;
    backend_gpu.device(b, &d);
    const size_t on_device = d.weights + d.kv + d.work, pinned = ((struct gpu_ranks *)b)->rank[0]->pinned,
                 host = (size_t)(LITE_LAYERS - 1) * (LITE_EXPERTS - HERE) * expert_bytes(m->layers[1].experts);
    print_message("# experts of the host %zu MB, grown by %zu MB, device %zu MB, pinned %zu MB\n", host >> 20,
                  grown >> 20, on_device >> 20, pinned >> 20);
    assert_true(d.experts.streamed > 0 && d.experts.misses > 0);
    assert_true(host > LIMIT);
    assert_true(grown <= on_device + pinned + LIMIT);
    backend_gpu.close(b);
    free(logits);
    close_with(m, owned, n_owned);
}

/* Experts with biases, in f32, of gpt_oss. */
static void streamed_biases(void **state)
{
    (void)state;
    if (!have_oracles())
        skip();
    struct model *m = load("gpt_oss", QT_F32);
    const size_t vocab = (size_t)m->config.vocab_size;
    int32_t id[FIRST];
    float *want = expected_logits("gpt_oss", vocab, id), *got = malloc(FIRST * vocab * sizeof *got);
    struct backend_options o = options(1, 1);
    o.prefill_threshold = 2;
    void *b = open_backend(&backend_gpu, m, &o);
    forward(&backend_gpu, b, id, 0, FIRST, FIRST, got);
    assert_true(counts_of(b).streamed > 0);
    assert_int_equal(counts_of(b).misses, 0);
    assert_true(error_of(got, want, FIRST * vocab) <= 1e-4);
    backend_gpu.close(b);
    model_close(m);
    free(want), free(got);
}

/* Some of the chosen experts are uploaded while the CPU computes the others: the logits stay those
 * of the CPU, and with all or none uploaded the same steps give the same bits for any number of
 * threads.  The bytes uploaded are those of the experts. */
static void divided(void **state)
{
    (void)state;
    enum { PROMPT = 9, N = PROMPT + 2 };
    static const struct { int percent, n_experts, n_threads; } ways[] = {
        { 0, 1, 1 }, { 50, 1, 1 }, { 50, 1, 2 }, { 100, 0, 2 }, { EXPERT_UPLOADS_AUTO, 2, 2 },
    };
    uint8_t *owned[MOST_EXPERT_MATS];
    struct model *m = load("tiny", QT_F16);
    int n_owned = make_mixture(m, QT_NL4, 32, owned);
    const size_t vocab = (size_t)m->config.vocab_size, size = (N - PROMPT + 1) * vocab;
    const uint64_t each = expert_bytes(m->layers[1].experts);
    int32_t id[N];
    float *want = malloc(size * sizeof *want), *got = malloc(size * sizeof *got), *before = malloc(size * sizeof *got);
    random_ids(id, N, (int)vocab);
    for (int i = -1; i < (int)(sizeof ways / sizeof *ways); i++) {
        struct backend_options o = options(1, i < 0 ? 0 : ways[i].n_experts);
        const struct backend *d = i < 0 ? &backend_cpu : &backend_gpu;
        float *out = i < 0 ? want : got;
        if (i >= 0) {
            o.moe = ways[i].n_experts ? MOE_HYBRID : MOE_PASSING;
            o.expert_uploads = ways[i].percent;
            o.n_threads = ways[i].n_threads;
            o.no_gpu_prefill = i == 1;
        }
        void *b = open_backend(d, m, &o);
        forward(d, b, id, 0, PROMPT, 1, out);
        for (int t = PROMPT; t < N; t++)
            forward(d, b, id + t, t, 1, 1, out + (size_t)(t - PROMPT + 1) * vocab);
        const struct backend_experts c = i < 0 ? (struct backend_experts){ 0 } : counts_of(b);
        d->close(b);
        if (i < 0)
            continue;
        assert_int_equal(c.streamed, 0);
        assert_int_equal(c.uploaded_bytes, c.uploaded * each);
        assert_int_equal(c.uploaded > 0, ways[i].percent != 0);
        if (!(error_of(got, want, size) <= 1e-4))
            fail_msg("%d %% of the missing experts uploaded: error %.3g of the largest logit, limit 1e-4",
                     ways[i].percent, error_of(got, want, size));
        if (i == 2)
            assert_memory_equal(got, before, size * sizeof *got);
        memcpy(before, got, size * sizeof *got);
    }
    close_with(m, owned, n_owned);
    free(want), free(got), free(before);
}

/* The steps of a prompt of N tokens after one of FIRST_STEP tokens that lets the backend measure:
 * with a slow link the CPU computes some of the experts, with a fast one all are uploaded.  Returns
 * the threshold of the last step. */
enum { FIRST_STEP = 20, BREAK_N = 60 };
static int run_break_even(struct model *m, struct backend_options o, double link, float *logits, uint64_t *n_streamed,
                          const char **from)
{
    int32_t id[FIRST_STEP + BREAK_N];
    struct backend_device d;
    random_ids(id, FIRST_STEP + BREAK_N, m->config.vocab_size);
    emulated_link(link);
    void *b = open_backend(&backend_gpu, m, &o);
    backend_gpu.device(b, &d);
    assert_int_equal(d.prefill_threshold, EXPERT_THRESHOLD);
    forward(&backend_gpu, b, id, 0, FIRST_STEP, 0, NULL);
    assert_int_equal(counts_of(b).streamed, 0);
    forward(&backend_gpu, b, id + FIRST_STEP, FIRST_STEP, BREAK_N, 2, logits);
    backend_gpu.device(b, &d);
    backend_gpu.close(b);
    emulated_link(0);
    *n_streamed = d.experts.streamed;
    *from = d.threshold_from;
    return d.prefill_threshold;
}

/* Without a number the measured break-even decides whether all experts are uploaded; the answer
 * stays that of the CPU. */
static void break_even(void **state)
{
    (void)state;
    static const double links[2] = { 1, 1e12 };
    uint8_t *owned[MOST_EXPERT_MATS];
    if (!emulated_link)
        skip();
    struct model *m = load("tiny", QT_F16);
    int n_owned = make_mixture(m, QT_NL4, 32, owned);
    const size_t size = 2 * (size_t)m->config.vocab_size;
    float *want = malloc(size * sizeof *want), *got = malloc(size * sizeof *got);
    int32_t id[FIRST_STEP + BREAK_N];
    random_ids(id, FIRST_STEP + BREAK_N, m->config.vocab_size);
    const struct backend_options cpu = options(1, 0);
    void *b = open_backend(&backend_cpu, m, &cpu);
    forward(&backend_cpu, b, id, 0, FIRST_STEP + BREAK_N, 2, want);
    backend_cpu.close(b);
    for (int fast = 0; fast < 2; fast++) {
        struct backend_options o = options(1, 1);
        uint64_t n;
        const char *from;
        o.expert_uploads = 50;          /* both speeds are measured */
        const int threshold = run_break_even(m, o, links[fast], got, &n, &from);
        assert_string_equal(from, "measured");
        if (fast)
            assert_in_range(threshold, 1, FIRST_STEP);
        else
            assert_true(threshold > BREAK_N);
        assert_int_equal(n, fast ? 2 * (N_EXPERTS - 1) : 0);
        if (!(error_of(got, want, size) <= 1e-4))
            fail_msg("link %g: error %.3g of the largest logit, limit 1e-4", links[fast], error_of(got, want, size));
    }
    close_with(m, owned, n_owned);
    free(want), free(got);
}

/* With strict nothing that was measured counts, and every bit is the same. */
static void strict_break_even(void **state)
{
    (void)state;
    uint8_t *owned[MOST_EXPERT_MATS];
    if (!emulated_link)
        skip();
    struct model *m = load("tiny", QT_F16);
    int n_owned = make_mixture(m, QT_NL4, 32, owned);
    const size_t size = 2 * (size_t)m->config.vocab_size;
    float *want = malloc(size * sizeof *want), *got = malloc(size * sizeof *got);
    for (int fast = 0; fast < 2; fast++) {
        struct backend_options o = options(0, 1);
        uint64_t n;
        const char *from;
        o.strict = 1;
        assert_int_equal(run_break_even(m, o, fast ? 1e12 : 1, fast ? got : want, &n, &from), EXPERT_THRESHOLD);
        assert_string_equal(from, "fixed with --strict");
        assert_int_equal(n, 0);
    }
    assert_memory_equal(got, want, size * sizeof *got);
    close_with(m, owned, n_owned);
    free(want), free(got);
}

/* With strict every bit is that of a device with all experts, whatever the number of those that it
 * has, for prompts, single tokens and prompts whose experts all pass through, also after experts
 * have moved. */
static void strict_anywhere(void **state)
{
    (void)state;
    enum { PROMPT = 5, N = PROMPT + 8 };
    static const struct { int exact, n_experts; } ways[] = {
        { 0, N_EXPERTS }, { 0, 3 }, { 0, 2 }, { 0, 0 }, { 1, N_EXPERTS }, { 1, 2 },
    };
    uint8_t *owned[MOST_EXPERT_MATS];
    struct model *m = load("tiny", QT_F16);
    int n_owned = make_mixture(m, QT_NL4, 32, owned);
    const size_t vocab = (size_t)m->config.vocab_size, size = (N - PROMPT + 1) * vocab;
    int32_t id[N];
    float *want = malloc(size * sizeof *want), *got = malloc(size * sizeof *got);
    random_ids(id, PROMPT, (int)vocab);
    for (int t = PROMPT; t < N; t++)
        id[t] = 7;                      /* chosen often: experts move */
    m->config.n_layers = 2;             /* with one mixture */
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const int k = ways[i].n_experts;
        struct backend_options o = options(ways[i].exact, k);
        float *out = k == N_EXPERTS ? want : got;
        o.moe = k ? MOE_HYBRID : MOE_PASSING;
        o.strict = 1;
        o.prefill_threshold = k == 2 ? PROMPT : 0;
        void *b = open_backend(&backend_gpu, m, &o);
        forward(&backend_gpu, b, id, 0, PROMPT, 1, out);
        for (int t = PROMPT; t < N; t++)
            forward(&backend_gpu, b, id + t, t, 1, 1, out + (size_t)(t - PROMPT + 1) * vocab);
        const struct backend_experts c = counts_of(b);
        backend_gpu.close(b);
        assert_int_equal(c.uploaded > 0, k < N_EXPERTS);
        assert_int_equal(c.streamed, k == 2 ? N_EXPERTS - k : 0);
        assert_int_equal(c.moved > 0, k > 0 && k < N_EXPERTS);
        if (k < N_EXPERTS && memcmp(got, want, size * sizeof *got) != 0)
            fail_msg("%d of %d experts on the device, %s: other bits", k, N_EXPERTS, ways[i].exact ? "f32" : "f16");
    }
    m->config.n_layers = 4;
    close_with(m, owned, n_owned);
    free(want), free(got);
}

/* The same token again and again: the experts that it chooses move to the device, at most two in a
 * step, and the logits stay those of the CPU.  The same steps give the same bits for any number of
 * threads. */
static void moved(void **state)
{
    (void)state;
    enum { N = 10 };
    uint8_t *owned[MOST_EXPERT_MATS];
    struct model *m = load("tiny", QT_F16);
    int n_owned = make_mixture(m, QT_NL4, 32, owned);
    const size_t vocab = (size_t)m->config.vocab_size;
    float *got[2], *want = malloc(vocab * sizeof *want);
    int32_t id[N];
    for (int i = 0; i < N; i++)
        id[i] = 7;
    for (int run = 0; run < 2; run++) {
        struct backend_options o = options(1, 2);
        o.n_threads = 1 + run;
        got[run] = malloc(vocab * sizeof **got);
        void *b = open_backend(&backend_gpu, m, &o);
        uint64_t before = 0, misses = 0;
        for (int i = 0; i < N; i++) {
            misses = counts_of(b).misses;
            forward(&backend_gpu, b, id + i, i, 1, 1, got[run]);
            assert_true(counts_of(b).moved - before <= 2);
            before = counts_of(b).moved;
        }
        const struct backend_experts c = counts_of(b);
        assert_int_equal(c.hits + c.misses, N * 2 * 2);
        assert_int_equal(c.moved_bytes, c.moved * expert_bytes(m->layers[1].experts));
        if (c.moved == 0 || c.misses - misses > 1)
            fail_msg("%llu experts moved; the last token needed %llu of the CPU", (unsigned long long)c.moved,
                     (unsigned long long)(c.misses - misses));
        backend_gpu.close(b);
    }
    assert_memory_equal(got[0], got[1], vocab * sizeof **got);
    const struct backend_options o = options(1, 0);
    void *b = open_backend(&backend_cpu, m, &o);
    forward(&backend_cpu, b, id, 0, N, 1, want);
    for (int run = 0; run < 2; run++) {
        assert_true(error_of(got[run], want, vocab) <= 1e-4);
        free(got[run]);
    }
    backend_cpu.close(b);
    close_with(m, owned, n_owned);
    free(want);
}

/* ---- placement ---- */

/* With less memory, fewer experts are on the device; layers go to the CPU only when no expert
 * fits; a number of experts that is asked for is kept or refused. */
static void placement(void **state)
{
    (void)state;
    uint8_t *owned[MOST_EXPERT_MATS];
    struct model *m = load("tiny", QT_F16);
    int n_owned = make_mixture(m, QT_NL4, 32, owned);
    struct backend_options o = options(0, 0);
    struct gpu_plan none, all, p;
    o.max_tokens = o.max_logits = 16;
    OK(gpu_plan(m, &o, &none, &why));
    assert_int_equal(none.n_experts, 0);
    assert_true(none.host_weights > 0);
    assert_non_null(none.graphs_off);
    o.moe = MOE_GPU;
    OK(gpu_plan(m, &o, &all, &why));
    assert_int_equal(all.n_experts, N_EXPERTS);
    assert_int_equal(all.host_weights, 0);
    assert_null(all.graphs_off);
    o.moe = MOE_HYBRID;
    OK(gpu_plan(m, &o, &p, &why));
    assert_int_equal(p.n_experts, N_EXPERTS);
    o.gpu_experts = N_EXPERTS + 1;
    assert_int_equal(gpu_plan(m, &o, &p, &why), -1);
    assert_string_equal(why.msg, "--gpu-experts 7: each layer has 6 experts");
    close_with(m, owned, n_owned);
}

/* An expert that fails on the device fails the step; the backend can be closed. */
static void lost(void **state)
{
    (void)state;
    if (!emulated_fail)
        skip();
    uint8_t *owned[MOST_EXPERT_MATS];
    struct model *m = load("tiny", QT_F16);
    int n_owned = make_mixture(m, QT_NL4, 32, owned);
    struct backend_options o = options(0, 3);
    const int32_t id[2] = { 1, 2 };
    float *logits = malloc((size_t)m->config.vocab_size * sizeof *logits);
    int32_t table[1] = { 0 };
    const struct batch_item item = { .tokens = id, .n_tokens = 2, .table = table, .n_logits = 1 };
    void *b = open_backend(&backend_gpu, m, &o);
    emulated_fail("expert_matvec", 2);
    assert_int_equal(backend_gpu.forward(b, &(struct batch){ &item, 1 }, logits, &why), -1);
    emulated_fail(NULL, 0);
    backend_gpu.close(b);
    o.moe = MOE_PASSING;                /* an uploaded expert */
    o.expert_uploads = 100;
    b = open_backend(&backend_gpu, m, &o);
    emulated_fail("expert_matvec", 1);
    assert_int_equal(backend_gpu.forward(b, &(struct batch){ &item, 1 }, logits, &why), -1);
    emulated_fail(NULL, 0);
    backend_gpu.close(b);
    close_with(m, owned, n_owned);
    free(logits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders), cmocka_unit_test(packed), cmocka_unit_test(ungated), cmocka_unit_test(windows),
        cmocka_unit_test(same_bits), cmocka_unit_test(batches),
        cmocka_unit_test(streamed), cmocka_unit_test(streamed_biases), cmocka_unit_test(lite_bytes),
        cmocka_unit_test(host_memory), cmocka_unit_test(moved),
        cmocka_unit_test(divided), cmocka_unit_test(break_even), cmocka_unit_test(strict_break_even),
        cmocka_unit_test(strict_anywhere), cmocka_unit_test(placement), cmocka_unit_test(lost),
    };
    if (gpu_kind[0] != 'e' && !device_usable())
        return 0;
    if (getenv("ZSE_ONLY"))
        cmocka_set_test_filter(getenv("ZSE_ONLY"));
    if (getenv("ZSE_SANITIZED"))        /* under a sanitizer only the tests of host code run */
        return cmocka_run_group_tests(((const struct CMUnitTest[]){ cmocka_unit_test(batches),
                                                                    cmocka_unit_test(divided),
                                                                    cmocka_unit_test(placement) }), NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
