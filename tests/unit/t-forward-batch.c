/* t-forward-batch.c - the logits have the same bits for any batch, any division of prompts into
 * chunks, any KV blocks, any number of threads and any instruction set, also through hooks and in
 * runs of single layers; batches that break the rules are refused.
 *
 * Models: our tiny one, and the oracle folders (if present) that use other code: windows, ALiBi,
 * parallel blocks, learned positions, norms over q and k. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/rng.h"
#include "libcommon/cpu/cpu.h"
#include "libcommon/cpu/cpu_attn.h"
#include "libcommon/cpu/internal.h"
#include "tests/unit/tiny.h"

enum { N_SEQS = 4, LEN = 70, BLOCKS_EACH = (LEN + KV_BLOCK - 1) / KV_BLOCK, N_BLOCKS = N_SEQS * BLOCKS_EACH + 3 };

/* ---- schedules ---- */

struct sequences { int32_t ids[N_SEQS][LEN]; int n[N_SEQS]; };

static void make_sequences(struct sequences *s, int vocab)
{
    struct rng r = { 1 };
    for (int i = 0; i < N_SEQS; i++) {
        s->n[i] = LEN - 9 * i;
        for (int t = 0; t < LEN; t++)
            s->ids[i][t] = (int32_t)(rng_u64(&r) % (unsigned)vocab);
    }
}

static void *open_mixed(const struct model *m, int n_threads, struct kv_types kv, int exact, const char *kernels)
{
    struct err e;
    const struct backend_options o = { .n_threads = n_threads, .kv = kv, .n_blocks = N_BLOCKS,
                                       .max_tokens = N_SEQS * LEN, .max_logits = N_SEQS * LEN,
                                       .exact = exact, .kernels = kernels };
    void *b = backend_cpu.open(m, &o, &e);
    if (!b)
        fail_msg("%s", e.msg);
    return b;
}

static void *open_backend(const struct model *m, int n_threads, enum kv_type kv, int exact, const char *kernels)
{
    return open_mixed(m, n_threads, kv_both(kv), exact, kernels);
}

/* Run every sequence alone and whole, in blocks 0, 1, 2 and so on.  logits [N_SEQS][LEN][vocab]. */
static void run_alone(void *b, const struct sequences *s, float *logits, size_t vocab)
{
    int32_t table[BLOCKS_EACH];
    struct err e;
    for (int i = 0; i < BLOCKS_EACH; i++)
        table[i] = i;
    for (int i = 0; i < N_SEQS; i++) {
        const struct batch_item item = { .tokens = s->ids[i], .n_tokens = s->n[i], .table = table,
                                         .n_logits = s->n[i] };
        assert_int_equal(backend_cpu.forward(b, &(struct batch){ &item, 1 }, logits + (size_t)i * LEN * vocab, &e), 0);
    }
}

/* Run all sequences together, in chunks of random lengths and in random order, with shuffled
 * blocks.  Some logits are not requested; the others are compared. */
static int run_mixed(void *b, const struct sequences *s, const float *want, size_t vocab, struct rng *r)
{
    int32_t block[N_BLOCKS];
    int at[N_SEQS] = { 0 }, bad = 0;
    float *got = malloc((size_t)N_SEQS * LEN * vocab * sizeof *got);
    for (int i = 0; i < N_BLOCKS; i++)
        block[i] = i;
    for (int i = N_BLOCKS - 1; i > 0; i--) {
        int j = (int)(rng_u64(r) % (unsigned)(i + 1)), t = block[i];
        block[i] = block[j];
        block[j] = t;
    }
    for (;;) {
        struct batch_item items[N_SEQS];
        int of[N_SEQS], n = 0;
        for (int k = 0, first = (int)(rng_u64(r) % N_SEQS); k < N_SEQS; k++) {
            int i = (first + k) % N_SEQS, left = s->n[i] - at[i];
            if (left == 0 || rng_u64(r) % 4 == 0)
                continue;
            int most = rng_u64(r) % 3 ? left : 1, len = 1 + (int)(rng_u64(r) % (unsigned)most);
            items[n] = (struct batch_item){ .tokens = s->ids[i] + at[i], .n_tokens = len, .pos = at[i],
                                            .table = block + i * BLOCKS_EACH,
                                            .n_logits = (int)(rng_u64(r) % (unsigned)(len + 1)) };
            of[n++] = i;
        }
        int left = 0;
        for (int i = 0; i < N_SEQS; i++)
            left += s->n[i] - at[i];
        if (left == 0)
            break;
        struct err e;
        assert_int_equal(backend_cpu.forward(b, &(struct batch){ items, n }, got, &e), 0);
        const float *g = got;
        for (int k = 0; k < n; k++) {
            const int end = items[k].pos + items[k].n_tokens, from = end - items[k].n_logits;
            bad += memcmp(g, want + ((size_t)of[k] * LEN + (size_t)from) * vocab,
                          (size_t)items[k].n_logits * vocab * sizeof *g) != 0;
            g += (size_t)items[k].n_logits * vocab;
            at[of[k]] = end;
        }
    }
    free(got);
    return bad;
}

/* plain: also test the plain kernels, which take most of the time. */
static int check_mixed(const struct model *m, const char *name, struct kv_types kv, int exact, int rounds, int plain)
{
    const size_t vocab = (size_t)m->config.vocab_size, n = (size_t)N_SEQS * LEN * vocab;
    struct sequences s;
    struct rng r = { 99 };
    int bad = 0;
    float *want = calloc(n, sizeof *want), *other = calloc(n, sizeof *other);
    make_sequences(&s, m->config.vocab_size);
    void *b = open_mixed(m, 1, kv, exact, NULL);
    run_alone(b, &s, want, vocab);
    for (int i = 0; i < rounds; i++)
        bad += run_mixed(b, &s, want, vocab, &r);
    backend_cpu.close(b);
    for (int threads = 2; threads <= 5; threads += 3) {
        b = open_mixed(m, threads, kv, exact, NULL);
        run_alone(b, &s, other, vocab);
        bad += memcmp(want, other, n * sizeof *want) != 0;
        bad += run_mixed(b, &s, want, vocab, &r);
        backend_cpu.close(b);
    }
    const struct kernels *const *sets = kernels_all;
    for (int i = 0; sets[i]; i++) {
        if (!sets[i]->supported() || (sets[i] == &kernels_ref && !plain))
            continue;
        b = open_mixed(m, 2, kv, exact, sets[i]->name);
        run_alone(b, &s, other, vocab);
        if (memcmp(want, other, n * sizeof *want) != 0) {
            print_message("# %s: kernels %s differ\n", name, sets[i]->name);
            bad++;
        }
        backend_cpu.close(b);
    }
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += want[i] * want[i];
    assert_true(sum > 0 && sum < 1e30);         /* numbers, not zeros */
    free(want);
    free(other);
    if (bad)
        print_message("# %s, kv %d, %d, exact %d: %d differences\n", name, (int)kv.key, (int)kv.value, exact, bad);
    return bad;
}

static int check_schedules(const struct model *m, const char *name, enum kv_type kv, int exact, int rounds, int plain)
{
    return check_mixed(m, name, kv_both(kv), exact, rounds, plain);
}

static void batches_give_the_logits_of_single_runs(void **state)
{
    (void)state;
    static const char *const names[] = { "tiny", "mistral", "bloom", "gpt_neox", "falcon", "gpt2", "gemma3", "olmo2",
                                         "hunyuan", "cohere2", "opt" };
    int bad = 0, seen = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct model *m = load(names[i]);
        if (!m)
            continue;
        seen++;
        bad += check_schedules(m, names[i], KV_F32, 1, 3, i < 2);
        if (i < 2)
            bad += check_schedules(m, names[i], KV_F16, 1, 2, 0) +
                   check_mixed(m, names[i], (struct kv_types){ KV_I8, i ? KV_I4 : KV_T2 }, 1, 2, 0);
        uint8_t **owned = calloc(quantized_room(m), sizeof *owned);
        int n = quantize_model(m, owned);
        bad += check_schedules(m, names[i], KV_F16, 0, 3, 1);
        if (i < 2)
            bad += check_schedules(m, names[i], i ? KV_I4 : KV_I8, 0, 2, 0) +
                   check_schedules(m, names[i], KV_F32, 1, 1, 0);
        while (n-- > 0)
            free(owned[n]);
        free(owned);
        model_close(m);
    }
    print_message("# %d models\n", seen);
    if (!seen)
        skip();
    assert_int_equal(bad, 0);
}

/* Distances to earlier and later keys have the biases of their buckets: the expected ones are those
 * of transformers' code of MPNet. */
static void distances_have_the_biases_of_their_buckets(void **state)
{
    (void)state;
    enum { LEN_MOST = 601, HEADS = 2, BUCKETS = 32 };
    static const struct { int distance, bucket; } cases[] = {
        { -600, 15 }, { -91, 15 }, { -90, 14 }, { -64, 14 }, { -63, 13 }, { -46, 13 }, { -45, 12 }, { -32, 12 },
        { -31, 11 }, { -23, 11 }, { -22, 10 }, { -16, 10 }, { -15, 9 }, { -12, 9 }, { -11, 8 }, { -8, 8 }, { -7, 7 },
        { -1, 1 }, { 0, 0 }, { 1, 17 }, { 7, 23 }, { 8, 24 }, { 15, 25 }, { 16, 26 }, { 64, 30 }, { 128, 31 },
        { 500, 31 } };
    const struct config c = { .max_len = LEN_MOST, .n_heads = HEADS, .distance_buckets = BUCKETS };
    float table[BUCKETS * HEADS], *bias = calloc(HEADS * core_distances(&c), sizeof *bias);
    struct core k = { .c = &c, .bias = bias };
    for (int i = 0; i < BUCKETS * HEADS; i++)
        table[i] = (float)(i / HEADS + i % HEADS * 100);
    core_set_bias(&k, table);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int h = 0; h < HEADS; h++)
            assert_true(bias[(size_t)h * core_distances(&c) + (size_t)(LEN_MOST - 1 + cases[i].distance)] ==
                        (float)(cases[i].bucket + 100 * h));
    free(bias);
}

/* With 4-bit keys the tokens of a KV block share bytes, so two jobs must not write to one block.
 * However an item is cut into runs, each token belongs to exactly one job, and each block to at
 * most one. */
static void test_whole_blocks(void **state)
{
    (void)state;
    for (int pos = 0; pos < 2 * KV_BLOCK + 1; pos++)
        for (int n = 1; n < 5 * KV_BLOCK; n++)
            for (int run = 1; run < 3 * KV_BLOCK; run += 3) {
                const struct batch_item it = { .pos = pos, .n_tokens = n };
                assert_int_equal(attn_next_block(&it, 0), 0);
                int before = 0;
                for (int i = run; i < n; i += run) {
                    const int at = attn_next_block(&it, i);
                    assert_true(at >= before && at >= i && (at == n || (pos + at) % KV_BLOCK == 0));
                    before = at;
                }
                assert_int_equal(attn_next_block(&it, (n + run - 1) / run * run), n);
            }
}

/* Replace the weights of l by random ones with this many columns.  Returns their memory. */
static float *widen(struct linear *l, int64_t rows, int64_t cols, struct rng *r)
{
    struct err e;
    assert_int_equal(mat_init(&l->w, QT_F32, l->w.group_size, l->w.act_group, rows, cols, &e), 0);
    float *data = aligned_alloc(64, (l->w.size + 63) / 64 * 64);
    for (size_t i = 0; i < l->w.size / sizeof *data; i++)
        data[i] = (float)rng_double(r) / 32;
    l->w.data = (const uint8_t *)data;
    return data;
}

/* A model with multi-head latent attention in which the widest input is the compressed query. */
static void test_wide_latent(void **state)
{
    (void)state;
    enum { RANK = 8192, MOST_LAYERS = 8 };
    struct model *m = load("deepseek_v3");
    if (!m) {
        print_message("# no oracles (set ZSE_ORACLES)\n");
        skip();
    }
    struct rng r = { 5 };
    static float ones[RANK];
    void *owned[2 * MOST_LAYERS];
    for (int i = 0; i < RANK; i++)
        ones[i] = 1;
    assert_true(m->config.n_layers <= MOST_LAYERS);
    for (int i = 0; i < m->config.n_layers; i++) {
        struct layer *l = &m->layers[i];
        owned[2 * i] = widen(&l->q_a, RANK, l->q_a.w.cols, &r);
        float *wide = widen(&l->q, l->q.w.rows, RANK, &r);
        owned[2 * i + 1] = quantize(&l->q, QT_I8, 32, 32);
        free(wide);
        l->q_a_norm.w = ones;
    }
    m->config.mla.q_rank = RANK;
    const size_t vocab = (size_t)m->config.vocab_size;
    const int32_t block = 0;
    float *logits[2] = { malloc(vocab * sizeof **logits), malloc(vocab * sizeof **logits) };
    /* with one thread and one token there is little memory after the input's buffer, so that an
     * overrun is noticed */
    for (int i = 0; i < 2; i++) {
        struct err e;
        const struct backend_options o = { .n_threads = 1, .kv = { KV_F32, KV_F32 }, .n_blocks = 1, .max_tokens = 1,
                                           .max_logits = 1, .kernels = i ? "ref" : NULL };
        void *b = backend_cpu.open(m, &o, &e);
        assert_non_null(b);
        for (int t = 0; t < 3; t++) {
            const int32_t token = 5 + t;
            const struct batch_item item = { .tokens = &token, .n_tokens = 1, .pos = t, .table = &block,
                                             .n_logits = 1 };
            assert_int_equal(backend_cpu.forward(b, &(struct batch){ &item, 1 }, logits[i], &e), 0);
        }
        backend_cpu.close(b);
    }
    assert_memory_equal(logits[0], logits[1], vocab * sizeof **logits);
    free(logits[0]);
    free(logits[1]);
    for (int i = 0; i < 2 * m->config.n_layers; i++)
        free(owned[i]);
    model_close(m);
}

/* Latent attention computes a step in runs of 128 tokens: a long prompt between two short ones
 * gives the same bits as alone and in chunks. */
static void test_latent_runs(void **state)
{
    (void)state;
    enum { LONG = 300, SHORT = 7, N = LONG + 2 * SHORT, EACH = (LONG + KV_BLOCK - 1) / KV_BLOCK };
    struct model *m = load("deepseek_v2_lite");
    if (!m) {
        print_message("# no oracles (set ZSE_ORACLES)\n");
        skip();
    }
    const size_t vocab = (size_t)m->config.vocab_size;
    const int n[3] = { SHORT, LONG, SHORT };
    int32_t ids[N], table[3 * EACH];
    struct rng r = { 3 };
    struct err e;
    for (int i = 0; i < N; i++)
        ids[i] = (int32_t)(rng_u64(&r) % vocab);
    for (int i = 0; i < 3 * EACH; i++)
        table[i] = i;
    float *whole = malloc(3 * vocab * sizeof *whole), *part = malloc(vocab * sizeof *part);
    const struct backend_options o = { .n_threads = 2, .kv = { KV_F16, KV_F16 }, .n_blocks = 3 * EACH, .max_tokens = N,
                                       .max_logits = 3, .exact = 1 };
    void *b = backend_cpu.open(m, &o, &e);
    assert_non_null(b);
    struct batch_item items[3];
    for (int i = 0, at = 0; i < 3; at += n[i++])
        items[i] = (struct batch_item){ .tokens = ids + at, .n_tokens = n[i], .table = table + i * EACH,
                                        .n_logits = 1 };
    assert_int_equal(backend_cpu.forward(b, &(struct batch){ items, 3 }, whole, &e), 0);
    for (int i = 0; i < 3; i++) {
        for (int at = 0, len; at < n[i]; at += len) {
            len = n[i] - at < 47 ? n[i] - at : 47;
            const struct batch_item item = { .tokens = items[i].tokens + at, .n_tokens = len, .pos = at, .table = table,
                                             .n_logits = 1 };
            assert_int_equal(backend_cpu.forward(b, &(struct batch){ &item, 1 }, part, &e), 0);
        }
        assert_memory_equal(part, whole + (size_t)i * vocab, vocab * sizeof *part);
    }
    backend_cpu.close(b);
    free(whole);
    free(part);
    model_close(m);
}

/* ---- hooks and single layers ---- */

struct watch { int calls, roles, stop_at; double sum; };

static int watch_input(void *user, int layer, int role, const float *x, size_t ldx, int n_tokens, int cols)
{
    struct watch *w = user;
    w->calls++;
    w->roles |= 1 << role;
    for (int t = 0; t < n_tokens; t++)
        for (int i = 0; i < cols; i++)
            w->sum += (double)x[(size_t)t * ldx + (size_t)i] * (layer + 2) * (role + 1);
    return role == w->stop_at;
}

static void windows_run_layer_by_layer_give_the_same_logits(void **state)
{
    (void)state;
    static const char *const names[] = { "tiny", "llama", "gpt_neox", "opt", "gemma2" };
    enum { WINDOWS = 3, WINDOW = 40 };
    struct err e;
    int seen = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct model *m = load(names[i]);
        if (!m)
            continue;
        seen++;
        const struct config *c = &m->config;
        const size_t hidden = (size_t)c->hidden_size, vocab = (size_t)c->vocab_size;
        int32_t ids[WINDOWS * WINDOW], table[BLOCKS_EACH];
        struct rng r = { 5 };
        for (int t = 0; t < WINDOWS * WINDOW; t++)
            ids[t] = (int32_t)(rng_u64(&r) % (unsigned)vocab);
        for (int t = 0; t < BLOCKS_EACH; t++)
            table[t] = t;
        struct watch whole = { .stop_at = -1 }, single = { .stop_at = -1 };
        void *b = open_backend(m, 2, KV_F32, 1, NULL);
        float *logits = malloc(WINDOW * vocab * sizeof *logits), *x = malloc(WINDOWS * WINDOW * hidden * sizeof *x);
        ((struct cpu *)b)->core.hook = &(struct cpu_hook){ .input = watch_input, .user = &whole };
        for (int w = 0; w < WINDOWS; w++) {
            const struct batch_item item = { .tokens = ids + w * WINDOW, .n_tokens = WINDOW, .table = table };
            assert_int_equal(backend_cpu.forward(b, &(struct batch){ &item, 1 }, logits, &e), 0);
        }
        struct cpu_layers *l = cpu_layers_open(c, WINDOWS, WINDOW, 2, NULL, &e);
        assert_non_null(l);
        assert_int_equal(cpu_layers_embed(l, m, ids, x, &e), 0);
        struct watch parts[64];
        assert_true(c->n_layers <= 64);
        for (int k = 0; k < c->n_layers; k++) {
            parts[k] = (struct watch){ .stop_at = -1 };
            assert_int_equal(cpu_layers_run(l, k, &m->layers[k], 1, x,
                                            &(struct cpu_hook){ .input = watch_input, .user = &parts[k] }, &e), 0);
            single.calls += parts[k].calls;
            single.roles |= parts[k].roles;
            single.sum += parts[k].sum;
        }
        /* the same numbers, added in another order */
        assert_int_equal(whole.calls, single.calls);
        assert_int_equal(whole.calls, WINDOWS * c->n_layers * 4);
        assert_int_equal(whole.roles, single.roles);
        assert_int_equal(whole.roles, 1 << ROLE_Q | 1 << ROLE_O | 1 << (c->gated ? ROLE_GATE : ROLE_UP) |
                         1 << ROLE_DOWN);
        assert_true(whole.sum != 0 && (whole.sum - single.sum) < 1e-9 * 1e6 && (single.sum - whole.sum) < 1e-9 * 1e6);
        struct watch cut = { .stop_at = ROLE_O };
        assert_int_equal(cpu_layers_run(l, 0, &m->layers[0], 1, x,
                                        &(struct cpu_hook){ .input = watch_input, .user = &cut }, &e), 0);
        assert_int_equal(cut.calls, WINDOWS * 2);
        ids[7] = c->vocab_size;
        assert_int_equal(cpu_layers_embed(l, m, ids, x, &e), -1);
        cpu_layers_close(l);
        backend_cpu.close(b);
        free(logits);
        free(x);
        model_close(m);
    }
    if (!seen)
        skip();
}

/* A hook that copies the input of experts beside an MLP, and stops the layer there. */
static int stop_at_experts(void *user, int layer, int role, const float *x, size_t ldx, int n_tokens, int cols)
{
    float *to = user;
    (void)layer;
    if (role != ROLE_EXPERT_GATE)
        return 0;
    for (int t = 0; t < n_tokens; t++)
        memcpy(to + (size_t)t * (size_t)cols, x + (size_t)t * ldx, (size_t)cols * sizeof *x);
    return 1;
}

enum { KEPT_WINDOWS = 2, KEPT_WINDOW = 40 };

/* Run one layer for one window; experts beside an MLP run one by one, as in calibration. */
static void run_kept(struct cpu_layers *l, const struct model *m, int index, float *x)
{
    const struct config *c = &m->config;
    const struct layer *w = &m->layers[index];
    const size_t hidden = (size_t)c->hidden_size;
    struct err e;
    float h[KEPT_WINDOW * hidden], router[KEPT_WINDOW * hidden], sum[KEPT_WINDOW * hidden];
    const struct cpu_hook stop = { .input = stop_at_experts, .user = h };
    struct cpu_choice choice;
    assert_int_equal(cpu_layers_run(l, index, w, 1, x, c->moe.beside ? &stop : NULL, &e), 0);
    if (!c->moe.beside)
        return;
    memset(sum, 0, sizeof sum);
    cpu_layers_router(l, w, x, router, KEPT_WINDOW);
    assert_int_equal(cpu_layers_choose(l, index, w, router, hidden, sum, KEPT_WINDOW, &choice, NULL, &e), 0);
    for (int i = 0; i < c->moe.n_experts; i++)
        cpu_layers_expert(l, index, w, i, h, hidden, sum, &choice, NULL);
    cpu_layers_finish(l, index, w, sum, x);
    cpu_choice_release(&choice);
}

/* Models that keep other data than x between layers: running the windows in turn, layer by layer,
 * gives the logits of a whole run. */
static void windows_of_models_with_other_data_give_the_same_logits(void **state)
{
    (void)state;
    static const char *const names[] = { "gemma3n", "gemma4-e", "gemma4-moe" };
    struct err e;
    int seen = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct model *m = load(names[i]);
        if (!m)
            continue;
        seen++;
        const struct config *c = &m->config;
        const size_t vocab = (size_t)c->vocab_size, floats = KEPT_WINDOW * (size_t)c->hidden_size;
        int32_t ids[KEPT_WINDOWS][KEPT_WINDOW], table[BLOCKS_EACH];
        for (int t = 0; t < KEPT_WINDOWS * KEPT_WINDOW; t++)
            ids[t / KEPT_WINDOW][t % KEPT_WINDOW] = (int32_t)((unsigned)t * 31 % vocab);
        for (int t = 0; t < BLOCKS_EACH; t++)
            table[t] = t;
        float *want = malloc(2 * KEPT_WINDOW * vocab * sizeof *want), *got = want + KEPT_WINDOW * vocab,
              *x = malloc(KEPT_WINDOWS * floats * sizeof *x);
        struct cpu_layers *l = cpu_layers_open(c, 1, KEPT_WINDOW, 2, NULL, &e);
        assert_non_null(l);
        const size_t bytes = cpu_layers_kept(l);
        uint8_t *kept = aligned_alloc(64, KEPT_WINDOWS * bytes);
        assert_true(bytes > 0 && kept && want && x);
        memset(kept, 0, KEPT_WINDOWS * bytes);
        for (int k = -1; k < c->n_layers; k++)
            for (int w = 0; w < KEPT_WINDOWS; w++) {
                cpu_layers_keep(l, kept + (size_t)w * bytes);
                if (k < 0)
                    assert_int_equal(cpu_layers_embed(l, m, ids[w], x + (size_t)w * floats, &e), 0);
                else
                    run_kept(l, m, k, x + (size_t)w * floats);
            }
        void *b = open_backend(m, 2, KV_F32, 1, NULL);
        for (int w = 0; w < KEPT_WINDOWS; w++) {
            const struct batch_item item = { .tokens = ids[w], .n_tokens = KEPT_WINDOW, .table = table,
                                             .n_logits = KEPT_WINDOW };
            assert_int_equal(backend_cpu.forward(b, &(struct batch){ &item, 1 }, want, &e), 0);
            cpu_layers_keep(l, kept + (size_t)w * bytes);
            cpu_layers_merge(l, m, x + (size_t)w * floats);
            assert_int_equal(cpu_layers_logits(l, m, 1, x + (size_t)w * floats, KEPT_WINDOW, got, &e), 0);
            for (size_t v = 0; v < KEPT_WINDOW * vocab; v++)
                if (!(got[v] - want[v] < 1e-3f && want[v] - got[v] < 1e-3f))
                    fail_msg("%s, window %d, logit %zu: got %g, want %g", names[i], w, v, (double)got[v],
                             (double)want[v]);
        }
        assert_null(cpu_layers_open(c, 2, KEPT_WINDOW, 1, NULL, &e));
        assert_non_null(strstr(e.msg, "one window at a time"));
        backend_cpu.close(b);
        cpu_layers_close(l);
        free(kept);
        free(want);
        free(x);
        model_close(m);
    }
    if (!seen)
        skip();
}

/* ---- hidden states ---- */

static int copy_head_input(void *user, int layer, int role, const float *x, size_t ldx, int n_tokens, int cols)
{
    float *to = user;
    (void)layer;
    for (int t = 0; role == ROLE_HEAD && t < n_tokens; t++)
        memcpy(to + (size_t)t * (size_t)cols, x + (size_t)t * ldx, (size_t)cols * sizeof *x);
    return 0;
}

/* The final states are those that the head reads, whether logits are requested or not, in one chunk
 * or two. */
static void hidden_states_are_those_that_the_head_reads(void **state)
{
    (void)state;
    static const char *const names[] = { "tiny", "llama", "gpt_neox", "gemma2" };
    enum { N = 40, CUT = 23, LAST = 9 };
    struct err e;
    int seen = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct model *m = load(names[i]);
        if (!m)
            continue;
        seen++;
        const size_t hidden = (size_t)m->config.hidden_size, vocab = (size_t)m->config.vocab_size;
        int32_t ids[N], table[BLOCKS_EACH];
        for (int t = 0; t < N; t++)
            ids[t] = (int32_t)((unsigned)t * 31 % vocab);
        for (int t = 0; t < BLOCKS_EACH; t++)
            table[t] = t;
        float *head = malloc(N * hidden * sizeof *head), *got = calloc(N * hidden, sizeof *got),
              *logits = malloc(N * vocab * sizeof *logits);
        void *b = open_backend(m, 2, KV_F16, 0, NULL);
        assert_int_equal(m->config.embed_size, hidden);
        ((struct cpu *)b)->core.hook = &(struct cpu_hook){ .input = copy_head_input, .user = head };
        struct batch_item item = { .tokens = ids, .n_tokens = N, .table = table, .n_logits = N, .hidden = got,
                                   .n_hidden = N };
        assert_int_equal(backend_cpu.forward(b, &(struct batch){ &item, 1 }, logits, &e), 0);
        assert_memory_equal(got, head, N * hidden * sizeof *got);
        ((struct cpu *)b)->core.hook = NULL;
        memset(got, 0, N * hidden * sizeof *got);
        item = (struct batch_item){ .tokens = ids, .n_tokens = CUT, .table = table, .hidden = got, .n_hidden = CUT };
        assert_int_equal(backend_cpu.forward(b, &(struct batch){ &item, 1 }, logits, &e), 0);
        item = (struct batch_item){ .tokens = ids + CUT, .n_tokens = N - CUT, .pos = CUT, .table = table,
                                    .hidden = got + CUT * hidden, .n_hidden = LAST };
        assert_int_equal(backend_cpu.forward(b, &(struct batch){ &item, 1 }, logits, &e), 0);
        assert_memory_equal(got, head, CUT * hidden * sizeof *got);
        assert_memory_equal(got + CUT * hidden, head + (N - LAST) * hidden, LAST * hidden * sizeof *got);
        backend_cpu.close(b);
        free(head);
        free(got);
        free(logits);
        model_close(m);
    }
    if (!seen)
        skip();
}

static void test_bad_batches(void **state)
{
    (void)state;
    struct model *m = load("tiny");
    if (!m)
        skip();
    void *b = open_backend(m, 1, KV_F16, 0, NULL);
    const int32_t ids[] = { 1, 2, 3 }, out[] = { 1, m->config.vocab_size, 3 }, negative[] = { -1 }, table[] = { 0, 1 },
                  far[] = { N_BLOCKS };
    float *logits = malloc(3 * (size_t)m->config.vocab_size * sizeof *logits);
    const struct { struct batch_item item; const char *says; } bad[] = {
        { { .tokens = out, .n_tokens = 3, .table = table, .n_logits = 1 }, "outside the vocabulary" },
        { { .tokens = negative, .n_tokens = 1, .table = table, .n_logits = 1 }, "token -1" },
        { { .tokens = ids, .n_tokens = 3, .table = far, .n_logits = 1 }, "KV block" },
        { { .tokens = ids, .n_tokens = 0, .table = table }, "0 tokens" },
        { { .tokens = ids, .n_tokens = 1, .pos = -1, .table = table }, "tokens at -1" },
        { { .tokens = ids, .n_tokens = 1, .table = table, .n_logits = 2 }, "2 logits" },
        { { .tokens = ids, .n_tokens = 1, .table = table, .n_hidden = 2 }, "2 hidden" },
        { { .tokens = ids, .n_tokens = 1 << 20, .table = table }, "1048576 tokens" },
    };
    struct err e;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        e.msg[0] = 0;
        assert_int_equal(backend_cpu.forward(b, &(struct batch){ &bad[i].item, 1 }, logits, &e), -1);
        if (!strstr(e.msg, bad[i].says))
            fail_msg("said \"%s\", expected \"%s\"", e.msg, bad[i].says);
    }
    assert_int_equal(backend_cpu.copy_block(b, 0, N_BLOCKS, &e), -1);
    assert_int_equal(backend_cpu.forward(b, &(struct batch){ NULL, 0 }, logits, &e), 0);

    /* a copied block gives the same results as the original */
    const size_t vocab = (size_t)m->config.vocab_size;
    struct batch_item item = { .tokens = ids, .n_tokens = 2, .table = table };
    float *first = malloc(vocab * sizeof *first);
    assert_int_equal(backend_cpu.forward(b, &(struct batch){ &item, 1 }, logits, &e), 0);
    item = (struct batch_item){ .tokens = ids + 2, .n_tokens = 1, .pos = 2, .table = table, .n_logits = 1 };
    assert_int_equal(backend_cpu.copy_block(b, 0, 5, &e), 0);
    assert_int_equal(backend_cpu.forward(b, &(struct batch){ &item, 1 }, first, &e), 0);
    item.table = (const int32_t[]){ 5 };
    assert_int_equal(backend_cpu.forward(b, &(struct batch){ &item, 1 }, logits, &e), 0);
    assert_memory_equal(first, logits, vocab * sizeof *first);
    assert_true(backend_cpu.memory(b) > backend_cpu.kv_bytes(b) && strstr(backend_cpu.describe(b), "1 thread"));
    free(first);
    free(logits);
    backend_cpu.close(b);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_give_the_logits_of_single_runs), cmocka_unit_test(test_whole_blocks),
        cmocka_unit_test(test_wide_latent),
        cmocka_unit_test(distances_have_the_biases_of_their_buckets), cmocka_unit_test(test_latent_runs),
        cmocka_unit_test(windows_run_layer_by_layer_give_the_same_logits),
        cmocka_unit_test(windows_of_models_with_other_data_give_the_same_logits),
        cmocka_unit_test(hidden_states_are_those_that_the_head_reads), cmocka_unit_test(test_bad_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
