/* t-gpu-sample.c - tokens drawn on the device: the generator gives its published numbers; greedy
 * choices are those of the host's sampler, including ties and refusals; draws are exactly those of
 * a plain program that computes with the same integers; frequencies are those of the host's
 * sampler. */
#include "tests/lib/gpu.h"

#include "libcommon/base/philox.h"
#include "libcommon/engine/sampler.h"

static void generator(void **state)
{
    (void)state;
    /* kat_vectors of the authors' Random123, philox4x32 with 10 rounds */
    static const uint32_t kat[][10] = {
        { 0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 },
        { ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd },
        { 0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420,
          0x24126ea1 },
    };
    for (size_t i = 0; i < sizeof kat / sizeof *kat; i++) {
        uint32_t c[4];
        memcpy(c, kat[i], sizeof c);
        philox(c, kat[i][4], kat[i][5]);
        assert_memory_equal(c, kat[i] + 6, sizeof c);
    }
}

/* Draw one token from each of n rows of v logits; rows 1: from the same row n times. */
static void sample(const float *x, int rows, int n, int v, const struct gpu_draw *draw, int32_t *id)
{
    float *all = malloc((size_t)n * (size_t)v * sizeof *all);
    for (int i = 0; i < n; i++)
        memcpy(all + (size_t)i * (size_t)v, x + (size_t)(rows == 1 ? 0 : i) * (size_t)v, (size_t)v * sizeof *x);
    void *logits = to_device(all, (size_t)n * (size_t)v * sizeof *all),
         *draws = to_device(draw, (size_t)n * sizeof *draw), *ids = on_device((size_t)n * sizeof *id);
    static const unsigned none[GPU_SAMPLE_BLOCKS];
    unsigned left[GPU_SAMPLE_BLOCKS];
    const struct gpu_sample o = { .logits = logits, .draws = draws, .n = n, .vocab = v, .id = ids,
                                  .part = on_device(GPU_SAMPLE_BLOCKS * sizeof *o.part),
                                  .arrived = to_device(none, sizeof none) };
    OK(gpu_sample(device, &o, &why));
    from_device(id, ids, (size_t)n * sizeof *id);
    from_device(left, o.arrived, sizeof left);
    assert_memory_equal(left, none, sizeof left);
    gpu_free(device, logits), gpu_free(device, draws), gpu_free(device, ids);
    gpu_free(device, o.part), gpu_free(device, o.arrived);
    free(all);
}

static void largest(void **state)
{
    (void)state;
    enum { N = 7 };
    static const int sizes[] = { 1, 33, 1000, 9001, 38001 };    /* up to 18 blocks a row */
    struct rng r = { 9 };
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const int v = sizes[s];
        float *x = malloc((size_t)(N * v) * sizeof *x);
        struct gpu_draw draw[N] = { 0 };
        int32_t id[N];
        for (int i = 0; i < N * v; i++)
            x[i] = uniform(&r, -9, 9);
        x[0 * v + v - 1] = 10;
        x[1 * v + v * 7 / 10] = x[1 * v + v / 20] = 10;         /* the lower id */
        x[2 * v + v / 2] = NAN;
        for (int i = 0; i < v; i++)
            x[3 * v + i] = -INFINITY;
        x[4 * v] = INFINITY;
        for (int i = 0; i < v; i++)
            x[5 * v + i] = 0.25f;                               /* all equal */
        draw[6].top_k = -1;
        sample(x, N, N, v, draw, id);
        const int32_t want[N] = { v - 1, v / 20, -1, -1, -1, 0, -1 };
        assert_memory_equal(id, want, sizeof id);
        free(x);
    }
}

/* ---- the same integer arithmetic in a plain program ---- */

struct token { uint32_t key; int id; };
static int by_key(const void *a, const void *b)
{
    const struct token *x = a, *y = b;
    return x->key != y->key ? (x->key < y->key ? -1 : 1) : x->id - y->id;
}
static int by_id(const void *a, const void *b) { return ((const struct token *)a)->id - ((const struct token *)b)->id; }
static float weight_of(uint32_t key) { return expf((float)key * (-1 / 67108864.0f)); }
static uint64_t mass_of(uint32_t key)
{
    return weight_of(key) * 0x1p40f < 0.5f ? 1 : (uint64_t)rintf(weight_of(key) * 0x1p40f);
}

static int32_t plain_draw(const float *x, int v, const struct gpu_draw *d)
{
    struct token *t = malloc((size_t)v * sizeof *t);
    float most = -INFINITY;
    int n = 0, kept = 0;
    uint64_t sum = 0, all = 0;
    for (int i = 0; i < v; i++)
        most = fmaxf(most, x[i]);
    for (int i = 0; i < v; i++)
        if ((most - x[i]) / d->temperature < 28.4f)
            t[n++] = (struct token){ (uint32_t)((most - x[i]) / d->temperature * 67108864.0f), i };
    qsort(t, (size_t)n, sizeof *t, by_key);
    n = d->top_k && d->top_k < n ? d->top_k : n;
    if (d->top_p < 1) {
        for (int i = 0; i < n; i++)
            all += mass_of(t[i].key);
        const uint64_t want = (uint64_t)ceil((double)d->top_p * (double)all);
        for (int i = 0; i < n && sum < want; i++)
            sum += mass_of(t[kept++].key);
        n = kept;
    }
    qsort(t, (size_t)n, sizeof *t, by_id);
    all = 0;
    for (int i = 0; i < n; i++)
        all += weight_of(t[i].key) >= d->min_p ? mass_of(t[i].key) : 0;
    uint64_t target = (uint64_t)((unsigned __int128)philox_u64((uint64_t)d->seed[1] << 32 | d->seed[0],
                                                               (uint64_t)d->n[1] << 32 | d->n[0]) * all >> 64);
    int i = 0;
    for (;; i++) {
        const uint64_t m = weight_of(t[i].key) >= d->min_p ? mass_of(t[i].key) : 0;
        if (target < m)
            break;
        target -= m;
    }
    const int32_t id = t[i].id;
    free(t);
    return id;
}

static void draws(void **state)
{
    (void)state;
    enum { N = 24 };
    static const struct { int v; float spread; int ties; } shapes[] = { { 1, 1, 0 }, { 50, 4, 0 }, { 700, 8, 1 },
        { 700, 0, 0 }, { 9001, 12, 0 }, { 9001, 3, 1 } };
    static const struct gpu_draw options[] = {
        { 1, 1, 0, 0, { 0, 0 }, { 0, 0 } }, { 0.7f, 1, 0, 40, { 0, 0 }, { 0, 0 } },
            { 1.3f, 0.9f, 0, 0, { 0, 0 }, { 0, 0 } }, { 0.8f, 0.95f, 0.05f, 40, { 0, 0 }, { 0, 0 } },
        { 100, 1, 0, 3, { 0, 0 }, { 0, 0 } }, { 2, 0.5f, 0.2f, 600, { 0, 0 }, { 0, 0 } },
        { 1, 1, 0.1f, 0, { 0, 0 }, { 0, 0 } }, { 1e-3f, 0.3f, 0, 5, { 0, 0 }, { 0, 0 } },
    };
    struct rng r = { 77 };
    if (gpu_kind[0] != 'e')             /* a GPU's exp may differ in its last bit, and so may a draw in a million */
        return;
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        const int v = shapes[s].v;
        float *x = malloc((size_t)v * sizeof *x);
        struct gpu_draw draw[N];
        int32_t id[N];
        for (int i = 0; i < v; i++) {
            x[i] = uniform(&r, -shapes[s].spread, shapes[s].spread);
            x[i] = shapes[s].ties ? rintf(x[i]) : x[i];
        }
        if (v > 600)
            x[17] = -INFINITY;
        for (int i = 0; i < N; i++) {
            draw[i] = options[i % (int)(sizeof options / sizeof *options)];
            draw[i].seed[0] = 5, draw[i].seed[1] = (uint32_t)s, draw[i].n[0] = (uint32_t)i;
        }
        sample(x, 1, v > 8192 ? 8 : N, v, draw, id);
        for (int i = 0; i < (v > 8192 ? 8 : N); i++)
            if (id[i] != plain_draw(x, v, &draw[i]))
                fail_msg("%d logits within %g, temperature %g, top_k %d, top_p %g, min_p %g: token %d, not %d", v,
                         (double)shapes[s].spread, (double)draw[i].temperature, draw[i].top_k, (double)draw[i].top_p,
                         (double)draw[i].min_p, id[i], plain_draw(x, v, &draw[i]));
        free(x);
    }
}

/* Test whether two samples have the same distribution, by Pearson's test of homogeneity.  The level
 * is 1e-4: the share of correct programs that the test would refuse if the seeds were not fixed. */
static void frequencies(void **state)
{
    (void)state;
    enum { V = 12, N = 600, HOST = 20000 };
    /* with ties */
    static const float p[V] = { 0.2f, 0.04f, 0.16f, 0.08f, 0.16f, 0.08f, 0.06f, 0.02f, 0.1f, 0.05f, 0.03f, 0.02f };
    static const struct { float temperature; int top_k; float top_p, min_p; } options[] = { { 1, 0, 1, 0 },
        { 0.8f, 40, 0.9f, 0.1f }, { 1.5f, 2, 1, 0 }, { 1, 0, 0.61f, 0 }, { 1, 6, 0.8f, 0 } };
    struct sampler_scratch *scratch = sampler_scratch_open(NULL, &why);
    struct gpu_draw *draw = malloc(N * sizeof *draw);
    float x[V];
    int32_t id[N];
    for (int i = 0; i < V; i++)
        x[i] = logf(p[i]) + 2;
    for (size_t o = 0; o < sizeof options / sizeof *options; o++) {
        struct sampling s = sampling_defaults();
        s.temperature = options[o].temperature, s.top_k = options[o].top_k, s.top_p = options[o].top_p,
            s.min_p = options[o].min_p, s.seed = 3;
        struct sampler *sampler = sampler_open(&s, V, 4, scratch, &why);
        int host[V] = { 0 }, mine[V] = { 0 }, n_bins = 0;
        double chi2 = 0;
        for (int i = 0; i < HOST; i++) {
            float logits[V];
            int32_t one;
            memcpy(logits, x, sizeof x);
            OK(sampler_pick(sampler, logits, NULL, &one, NULL, &why));
            host[one]++;
        }
        for (int i = 0; i < N; i++) {
            struct draw d;
            assert_int_equal(sampler_draw(sampler, i, &d), 1);
            draw[i] = (struct gpu_draw){ d.temperature, d.top_p, d.min_p, d.top_k,
                                         { (uint32_t)d.seed, (uint32_t)(d.seed >> 32) },
                                         { (uint32_t)d.n, (uint32_t)(d.n >> 32) } };
        }
        sample(x, 1, N, V, draw, id);
        for (int i = 0; i < N; i++)
            mine[id[i]]++;
        for (int i = 0; i < V; i++) {
            if (!host[i] && mine[i])
                fail_msg("options %zu: token %d is drawn here, never on the host", o, i);
            if (!host[i])
                continue;
            n_bins++;
            const double each = (double)(host[i] + mine[i]) / (HOST + N), a = each * HOST, b = each * N;
            chi2 += (host[i] - a) * (host[i] - a) / a + (mine[i] - b) * (mine[i] - b) / b;
        }
        /* Wilson and Hilferty 1931 */
        const double k = n_bins - 1, limit = k * pow(1 - 2 / (9 * k) + 3.719 * sqrt(2 / (9 * k)), 3);
        if (!(chi2 <= limit))
            fail_msg("options %zu: chi-square %g of %g degrees, at most %g", o, chi2, k, limit);
        sampler_close(sampler);
    }
    free(draw);
    sampler_scratch_close(scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(generator), cmocka_unit_test(largest), cmocka_unit_test(draws),
                                        cmocka_unit_test(frequencies) };
    return device_open() ? cmocka_run_group_tests(tests, NULL, NULL) : 0;
}
