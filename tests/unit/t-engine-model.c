/* t-engine-model.c - the scheduler on the CPU backend with the tiny model and one with recurrent
 * layers: shared prefixes, several answers to a prompt, preemption, chunks and cancellation leave
 * every answer the same as alone, to the last bit of its log probabilities.  Every type of stored
 * keys and values is tested. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/rng.h"
#include "libcommon/convert/medusa_source.h"
#include "libcommon/engine/draft_model.h"
#include "tests/unit/assemble.h"
#include "tests/unit/tiny.h"

enum { ROOM = 448, N = 12, MOST = 3 };

struct answer {
    int32_t ids[ROOM];
    float logprob[ROOM];
    int n;
    enum finish finish;
    float embedding[512];
    int n_embedding;
};

static void hear(void *user, const struct token_event *ev)
{
    struct answer *a = user;
    assert_int_equal(a->finish, FINISH_NONE);
    if (ev->id >= 0) {
        a->logprob[a->n] = ev->logprob;
        a->ids[a->n++] = ev->id;
    }
    if (ev->n_embedding)
        memcpy(a->embedding, ev->embedding, (size_t)(a->n_embedding = ev->n_embedding) * sizeof *a->embedding);
    a->finish = ev->finish;
}

struct job {
    int32_t ids[ROOM];
    struct request_params p;
    struct answer got[MOST];
    void *users[MOST];
    struct request *first;
    int leaves;
};

/* The step between comparisons: 1, but n under a sanitizer, because the comparisons left out access
 * the same addresses with other numbers. */
static int few(int n) { return getenv("ZSE_SANITIZED") ? n : 1; }

static int window, sinks;               /* window and sinks of the engine's options, with space for
                                         * steps beside them; 0: none */
static int len = 160;                   /* context of engines, at most ROOM */
/* 1: drafts are made by the model's predictor, or by `heads` if not NULL; 2: with a fixed length */
static int predicts, pages;
static struct sparse_pattern pattern;    /* unit 0: none */
static const struct medusa *heads;

static struct engine *open_engine(const struct model *m, struct kv_types kv, int max_seqs, int max_tokens,
                                  int extra_blocks, int no_prefix_cache)
{
    struct err e;
    const size_t block = config_kv_bytes(&m->config, kv) + (pages ? config_page_bytes(&m->config) : 0),
                 tail = config_tail(&m->config, kv, window) ? config_window_bytes(&m->config, kv, window) : 0;
    const struct engine_options o = { .kv = kv, .max_len = len, .max_seqs = max_seqs, .max_tokens = max_tokens,
                                      .no_prefix_cache = no_prefix_cache, .n_threads = 2,
                                      .snapshots = 1 + extra_blocks, .snapshot_every = 32,
                                      .window = window, .sinks = sinks, .pages = pages, .pattern = pattern,
                                      .predictor = predicts > 0 && !heads,
                                      .medusa = predicts > 0 ? heads : NULL,
                                      .draft = predicts > 1 ? predicts - 1 : 0,
                                      .drafter = predicts % 2 ? &drafter_ngram : NULL,
                                      .kv_bytes = (size_t)(len / KV_BLOCK + extra_blocks + (window ? 10 : 0)) * block +
                                                  (size_t)(20 + max_tokens / KV_BLOCK + extra_blocks) * tail };
    struct engine *g = engine_open(m, NULL, &o, &e);
    if (!g)
        fail_msg("%s", e.msg);
    return g;
}

static void run(struct engine *g)
{
    struct err e;
    int left;
    while ((left = engine_step(g, &e)) > 0)
        ;
    assert_int_equal(left, 0);
}

static void make_job(struct job *j, struct rng *r, const int32_t *shared, int vocab)
{
    const int n = 1 + (int)(rng_u64(r) % (uint64_t)(len - 50)), same = (int)(rng_u64(r) % (uint64_t)(n + 1));
    for (int i = 0; i < n; i++)
        j->ids[i] = i < same ? shared[i] : (int32_t)(rng_u64(r) % (uint64_t)vocab);
    memset(j->got, 0, sizeof j->got);
    for (int i = 0; i < MOST; i++)
        j->users[i] = &j->got[i];
    j->p = (struct request_params){ .ids = j->ids, .n_ids = n, .sampling = sampling_defaults(), .n_logprobs = 0,
                                    .ignore_eos = 1, .on_token = hear,
                                    .max_tokens = 1 + (int)(rng_u64(r) % 30), .users = j->users,
                                    .n = 1 + (int)(rng_u64(r) % MOST), .priority = (int)(rng_u64(r) % 3) };
    j->p.sampling.temperature = rng_u64(r) % 2 ? 0 : 1;
    j->p.sampling.seed = rng_u64(r);
    j->leaves = rng_u64(r) % 5 ? -1 : (int)(rng_u64(r) % 12);
    if (rng_u64(r) % 6 == 0) {
        j->p.n = 1;
        j->p.n_logprobs = -1;
        j->p.embed = EMBED_MEAN;
    }
}

static void check_job(const struct model *m, struct kv_types kv, const struct job *j)
{
    for (int i = 0; i < j->p.n; i++) {
        static struct answer want;
        struct err e;
        struct engine *g = open_engine(m, kv, 1, 200, 0, 1);
        struct request_params p = j->p;
        const struct answer *got = &j->got[i];
        memset(&want, 0, sizeof want);
        p.n = 0;
        p.users = NULL;
        p.user = &want;
        p.sampling.seed += (uint64_t)i;
        assert_non_null(engine_submit(g, &p, &e));
        run(g);
        if (got->finish == FINISH_CANCELLED)
            assert_true(got->n <= want.n);
        else
            assert_int_equal(got->n, want.n);
        assert_memory_equal(got->ids, want.ids, (size_t)got->n * sizeof *got->ids);
        assert_memory_equal(got->logprob, want.logprob, (size_t)got->n * sizeof *got->logprob);
        assert_memory_equal(got->embedding, want.embedding, (size_t)got->n_embedding * sizeof *got->embedding);
        engine_close(g);
    }
}

static void run_schedules(struct model *m, int rounds)
{
    static const struct kv_types kinds[] = { { KV_F32, KV_F32 }, { KV_I8, KV_I4 }, { KV_F16, KV_F16 },
                                             { KV_I8, KV_I8 }, { KV_I4, KV_I4 }, { KV_T2, KV_T2 } };
    static const int with_tail[] = { 4, 1, 5 };
    static struct job jobs[N];
    int32_t shared[ROOM];
    struct err e;
    uint64_t preemptions = 0, cached = 0, copies = 0, with_windows = 0, drafted = 0, accepted = 0;
    const int predicted = predicts;
    assert_true(m->config.hidden_size <= 512);
    rounds = getenv("ZSE_SANITIZED") && rounds > 3 ? 3 : rounds;
    for (int round = 0; round < rounds; round++) {
        struct rng r = { (uint64_t)round };
        struct kv_types kv = kinds[len == ROOM && !pages ? with_tail[round % 3] : round % 6];
        if (config_kv_problem(&m->config, kv))
            kv = kv_both(KV_F8);
        for (int i = 0; i < len; i++)
            shared[i] = (int32_t)(rng_u64(&r) % (uint64_t)m->config.vocab_size);
        const int max_seqs = 1 + (int)(rng_u64(&r) % 6);
        predicts = predicted ? 1 + round % 4 : 0;
        struct engine *g = open_engine(m, kv, max_seqs, 8 + (int)(rng_u64(&r) % 90), (int)(rng_u64(&r) % 12), 0);
        int n = 0, left = 0;
        struct engine_limits l;
        engine_limits(g, &l);
        l.chunk = INT32_MAX;            /* with a chunk size chosen by measured times, the counts
                                         * below would vary */
        assert_int_equal(engine_set_limits(g, &l, &e), 0);
        while (n < N || left > 0) {
            if (n < N && rng_u64(&r) % 2) {
                make_job(&jobs[n], &r, shared, m->config.vocab_size);
                assert_non_null(jobs[n].first = engine_submit(g, &jobs[n].p, &e));
                n++;
            }
            for (int i = 0; i < n; i++)
                if (jobs[i].leaves-- == 0 && jobs[i].got[0].finish == FINISH_NONE)
                    engine_cancel(g, jobs[i].first);
            assert_int_not_equal(left = engine_step(g, &e), -1);
        }
        struct engine_stats s;
        engine_stats(g, &s);
        assert_int_equal(s.n_free_blocks + s.n_cached_blocks, s.n_blocks);
        assert_int_equal(s.n_free_window_blocks + s.n_cached_window_blocks, s.n_window_blocks);
        if (config_tail(&m->config, kv, window))
            assert_true(s.n_window_blocks > 0);
        with_windows += s.n_window_blocks > 0 && config_window(&m->config, window) > 0;
        preemptions += s.preemptions;
        cached += s.cached_tokens;
        copies += s.copies;
        drafted += s.drafted;
        accepted += s.accepted;
        engine_close(g);
        predicts = 0;
        for (int i = 0; i < N; i += few(4))
            check_job(m, kv, &jobs[i]);
    }
    if (rounds > 2)
        assert_true(preemptions >= 10 && cached > 1000 && copies > 20);
    else
        assert_true(preemptions > 0 && cached > 0 && copies > 0);
    assert_int_equal(with_windows > 0, config_window(&m->config, window) > 0);
    if (predicted && rounds <= 2)
        assert_true(drafted > accepted && accepted > 0);
    else if (predicted)
        assert_true(drafted > accepted + 100 && accepted >= (strcmp(m->config.arch, "llama") == 0 ? 20 : 0));
    model_close(m);
}

static struct model *load_tiny(void)
{
    struct err e;
    struct source *source = source_open("models/tiny", &e);
    struct model *m = source ? model_assemble(source, QT_F32, &e) : NULL;
    source_close(source);
    if (!m)
        fail_msg("%s", e.msg);
    return m;
}

static void schedules_change_no_answer(void **state)
{
    (void)state;
    run_schedules(load_tiny(), 12);
}

/* Give a model a layer that predicts further tokens: a copy of its last layer, whose input is the
 * sum of the embedding and the state.  Returns the memory of the matrix that makes this sum. */
static float *give_predictor(struct model *m)
{
    struct err e;
    const int n = m->config.hidden_size;
    struct mat in;
    assert_int_equal(model_predictor(m, &e), 0);
    assert_int_equal(mat_init(&in, QT_F32, 32, 0, n, 2 * n, &e), 0);
    struct layer *l = m->predictor->layers;
    const struct norm norms[] = { l->next_embed_norm, l->next_state_norm, l->next_final_norm };
    float *sum = calloc((size_t)n * 2 * (size_t)n, sizeof *sum), *tiled = aligned_alloc(64, (in.size + 63) / 64 * 64);
    for (int i = 0; i < n; i++)
        sum[(size_t)i * 2 * (size_t)n + (size_t)i] = sum[(size_t)i * 2 * (size_t)n + (size_t)(n + i)] = 1;
    mat_encode_float(&in, (uint8_t *)tiled, sum, (size_t)n * 2);
    in.data = (const uint8_t *)tiled;
    free(sum);
    *l = m->layers[m->config.n_layers - 1];
    l->next_embed_norm = norms[0];
    l->next_state_norm = norms[1];
    l->next_final_norm = norms[2];
    l->next_embed_norm.w = l->next_state_norm.w = l->next_final_norm.w = m->final_norm.w;
    l->next_in.w = in;
    return tiled;
}

/* A layer that predicts further tokens changes no answer. */
static void a_predictor_changes_no_answer(void **state)
{
    (void)state;
    struct model *m = load_tiny();
    float *in = give_predictor(m);
    predicts = 1;
    run_schedules(m, 4);
    free(in);
}

/* Heads that predict further tokens change no answer. */
static void medusa_heads_change_no_answer(void **state)
{
    (void)state;
    const struct medusa_options o = { .n_threads = 1 };
    struct err e;
    struct model *m = load_tiny();
    struct medusa *own = medusa_read("models/tiny-medusa", &m->config, &o, &e);
    if (!own)
        fail_msg("%s", e.msg);
    heads = own;
    predicts = 1;
    run_schedules(m, 4);
    heads = NULL;
    medusa_close(own);
}

/* The CPU backend, which counts the tokens that a predictor computes. */
static struct { void *b; int n; } counted;

static void *open_counted(const struct model *m, const struct backend_options *o, struct err *e)
{
    void *b = backend_cpu.open(m, o, e);
    if (m->config.predicts)
        counted.b = b;
    return b;
}

static int forward_counted(void *b, const struct batch *batch, float *logits, struct err *e)
{
    for (int i = 0; b == counted.b && i < batch->n_items; i++)
        counted.n += batch->items[i].n_tokens;
    return backend_cpu.forward(b, batch, logits, e);
}

static struct request *submit(struct engine *g, const int32_t *ids, int n, struct answer *a)
{
    struct request_params p = { .ids = ids, .n_ids = n, .sampling = sampling_defaults(), .n_logprobs = -1,
                                .ignore_eos = 1, .on_token = hear, .max_tokens = 60, .user = a };
    struct err e;
    p.sampling.temperature = 0;
    memset(a, 0, sizeof *a);
    struct request *r = engine_submit(g, &p, &e);
    assert_non_null(r);
    return r;
}

static void steps(struct engine *g, int n)
{
    struct err e;
    while (n-- > 0)
        assert_true(engine_step(g, &e) > 0);
}

/* While a request has no drafts, or too many requests decode, the layer that predicts further
 * tokens computes nothing but prompts.  When drafts start again, it continues from the kept
 * states. */
static void test_predictor_waits(void **state)
{
    (void)state;
    enum { PROMPT = 40, MANY = 10 };
    static struct answer a, want, many[MANY];
    struct backend counting = backend_cpu;
    struct model *m = load_tiny();
    float *in = give_predictor(m);
    struct err e;
    int32_t ids[PROMPT + 8];
    struct request_stats s;
    counting.open = open_counted;
    counting.forward = forward_counted;
    counted.n = 0;
    for (int i = 0; i < PROMPT; i++)
        ids[i] = 5 + i * 7 % 900;
    const struct engine_options o = { .backend = &counting, .kv = kv_both(KV_F32), .max_len = 160, .max_seqs = MANY,
                                      .n_threads = 1, .predictor = 1 };
    struct engine *g = engine_open(m, NULL, &o, &e);
    assert_non_null(g);
    struct request *r = submit(g, ids, PROMPT, &a);
    steps(g, 1);
    r->draft.trust[GRADE_MODEL] = 0;
    r->draft.rest = 100;
    steps(g, 30);
    assert_int_equal(counted.n, PROMPT);
    assert_int_equal(engine_set_limits(g, &(struct engine_limits){ .max_running = MANY, .draft = 2 }, &e), 0);
    steps(g, 1);
    /* it has now computed the kept states, the state of the last step, and one for the draft's
     * second token */
    assert_int_equal(counted.n, PROMPT + ENGINE_KEPT_STATES + 2);
    assert_int_equal(r->draft.whole, PROMPT);
    request_stats(r, &s);
    assert_true(s.n_drafted > 0);
    run(g);
    /* a prompt that continues this one: the predictor's tree has all of its entries but the last */
    memcpy(ids + PROMPT, a.ids, 8 * sizeof *ids);
    counted.n = 0;
    submit(g, ids, PROMPT + 8, &want);
    steps(g, 2);
    assert_in_range(counted.n, 1, 8 + 2);
    run(g);
    assert_memory_equal(want.ids, a.ids + 8, 52 * sizeof *want.ids);
    assert_int_equal(engine_set_limits(g, &(struct engine_limits){ .max_running = MANY }, &e), 0);
    for (int i = 0; i < MANY; i++)
        submit(g, ids + i, 4, &many[i]);
    for (int i = 0; i < MANY; i++)
        while (many[i].n == 0)
            steps(g, 1);
    const int before = counted.n;
    steps(g, 10);
    assert_int_equal(counted.n, before);
    engine_close(g);
    g = engine_open(m, NULL, &(struct engine_options){ .kv = kv_both(KV_F32), .max_len = 160, .n_threads = 1 }, &e);
    assert_non_null(g);
    submit(g, ids, PROMPT, &want);
    run(g);
    assert_memory_equal(want.ids, a.ids, 60 * sizeof *want.ids);
    engine_close(g);
    model_close(m);
    free(in);
}

enum { TOKENS = 5, WIDE = 1024 };       /* of the computation below: tokens, most elements of a row */

static void multiply(const struct linear *l, const float *x, float *out)
{
    float row[WIDE];
    for (int r = 0; r < l->w.rows; r++) {
        double sum = 0;
        mat_decode_row(&l->w, r, row);
        for (int k = 0; k < l->w.cols; k++)
            sum += (double)row[k] * (double)x[k];
        out[r] = (float)sum;
    }
}

static void normalize(const struct config *c, const struct norm *norm, const float *x, float *out)
{
    double sum = 0;
    for (int i = 0; i < c->hidden_size; i++)
        sum += (double)x[i] * (double)x[i];
    const double by = 1 / sqrt(sum / c->hidden_size + (double)c->norm_eps);
    for (int i = 0; i < c->hidden_size; i++)
        out[i] = (float)((double)x[i] * by * (double)norm->w[i]);
}

static void rotate(float *x, int n_heads, int dim, int pos)
{
    for (int i = 0; i < n_heads * dim / 2; i++) {
        float *a = x + i / (dim / 2) * dim + i % (dim / 2), *b = a + dim / 2;
        const double by = pos * pow(10000, -2.0 * (i % (dim / 2)) / dim), u = (double)*a, v = (double)*b;
        *a = (float)(u * cos(by) - v * sin(by));
        *b = (float)(v * cos(by) + u * sin(by));
    }
}

static void attend(const struct config *c, const float *q, float (*keys)[WIDE], float (*values)[WIDE], int n,
                   float *out)
{
    const int dim = c->head_dim;
    for (int h = 0; h < c->n_heads; h++) {
        const int from = h / (c->n_heads / c->n_kv_heads) * dim;
        double weight[TOKENS], sum = 0;
        for (int t = 0; t < n; t++) {
            double score = 0;
            for (int i = 0; i < dim; i++)
                score += (double)q[h * dim + i] * (double)keys[t][from + i];
            sum += weight[t] = exp(score / sqrt(dim));
        }
        for (int i = 0; i < dim; i++) {
            double value = 0;
            for (int t = 0; t < n; t++)
                value += weight[t] / sum * (double)values[t][from + i];
            out[h * dim + i] = (float)value;
        }
    }
}

/* Compute the logits of a predictor that has a layer of the tiny model, by plain loops. */
static void predict_plainly(const struct model *p, const int32_t *ids, const float *states, float *logits)
{
    static float keys[TOKENS][WIDE], values[TOKENS][WIDE], x[WIDE], y[WIDE], q[WIDE], h[WIDE], up[WIDE];
    const struct config *c = &p->config;
    const struct layer *l = p->layers;
    const int n = c->hidden_size;
    assert_true(2 * n <= WIDE && c->intermediate_size <= WIDE);
    for (int t = 0; t < TOKENS; t++) {
        mat_decode_row(&p->embed.w, ids[t], x);
        normalize(c, &l->next_embed_norm, x, y);
        normalize(c, &l->next_state_norm, states + t * n, y + n);
        multiply(&l->next_in, y, x);
        normalize(c, &l->attn_norm, x, y);
        multiply(&l->q, y, q);
        multiply(&l->k, y, keys[t]);
        multiply(&l->v, y, values[t]);
        rotate(q, c->n_heads, c->head_dim, t);
        rotate(keys[t], c->n_kv_heads, c->head_dim, t);
        attend(c, q, keys, values, t + 1, h);
        multiply(&l->o, h, y);
        for (int i = 0; i < n; i++)
            x[i] += y[i];
        normalize(c, &l->mlp_norm, x, y);
        multiply(&l->gate, y, h);
        multiply(&l->up, y, up);
        for (int i = 0; i < c->intermediate_size; i++)
            h[i] *= up[i] / (1 + expf(-h[i]));
        multiply(&l->down, h, y);
        for (int i = 0; i < n; i++)
            x[i] += y[i];
        normalize(c, &l->next_final_norm, x, y);
        multiply(&p->head, y, logits + t * c->vocab_size);
    }
}

/* A predictor computes the right logits, with norms that differ from channel to channel, in one
 * step and in two.  The states that it reads and writes are those after the final norm. */
static void a_predictor_computes_the_right_logits(void **state)
{
    (void)state;
    struct model *m = load_tiny();
    float *in = give_predictor(m);
    const struct config *c = &m->config;
    const int n = c->hidden_size, v = c->vocab_size;
    struct layer *l = m->predictor->layers;
    struct norm *const norms[] = { &l->next_embed_norm, &l->next_state_norm, &l->next_final_norm };
    struct rng r = { 7 };
    struct err e;
    int32_t ids[TOKENS];
    const int32_t table[] = { 1 };
    float *weights = malloc((size_t)n * 2 * (size_t)n * sizeof *weights),
          *scales = malloc(3 * (size_t)n * sizeof *scales),
          *states = malloc(2 * TOKENS * (size_t)n * sizeof *states), *hidden = states + TOKENS * n,
          *want = malloc(2 * TOKENS * (size_t)v * sizeof *want), *got = want + TOKENS * v;
    for (int i = 0; i < 2 * n * n; i++)
        weights[i] = ((float)(rng_u64(&r) % 2001) - 1000) / 1000 / 8;
    mat_encode_float(&l->next_in.w, (uint8_t *)in, weights, (size_t)n * 2);
    for (int i = 0; i < 3 * n; i++)
        scales[i] = 0.25f + (float)(rng_u64(&r) % 1000) / 500;
    for (int i = 0; i < 3; i++)
        norms[i]->w = scales + i * n;
    for (int i = 0; i < TOKENS * n; i++)
        states[i] = ((float)(rng_u64(&r) % 2001) - 1000) / 300;
    for (int i = 0; i < TOKENS; i++)
        ids[i] = (int32_t)(rng_u64(&r) % (uint64_t)v);
    predict_plainly(m->predictor, ids, states, want);
    const struct backend_options o = { .n_threads = 1, .kv = kv_both(KV_F32), .n_blocks = 2, .max_tokens = TOKENS,
                                       .max_logits = TOKENS, .exact = 1 };
    void *b = backend_cpu.open(m->predictor, &o, &e);
    assert_non_null(b);
    for (int first = TOKENS - 2; first <= TOKENS; first += 2) {
        memset(got, 0, TOKENS * (size_t)v * sizeof *got);
        for (int at = 0, to = first; at < TOKENS; at = to, to = TOKENS) {
            const struct batch_item item = { .tokens = ids + at, .n_tokens = to - at, .pos = at, .table = table,
                                             .n_logits = to - at, .seq_len = TOKENS, .states = states + at * n,
                                             .hidden = hidden + at * n, .n_hidden = to - at };
            assert_int_equal(backend_cpu.forward(b, &(struct batch){ &item, 1 }, got + at * v, &e), 0);
        }
        for (int i = 0; i < TOKENS * v; i++)
            assert_float_equal(got[i], want[i], 2e-3f);
        for (int t = 0; t < TOKENS; t++) {
            multiply(&m->head, hidden + t * n, want + t * v);
            for (int i = 0; i < v; i++)
                assert_float_equal(got[t * v + i], want[t * v + i], 2e-3f);
        }
    }
    backend_cpu.close(b);
    model_close(m);
    free(weights);
    free(scales);
    free(states);
    free(want);
    free(in);
}

/* Run random schedules with draft layers (predictors) of random weights, whose drafts are mostly
 * wrong: for a model with latent attention and experts, and for one with recurrent layers. */
static void test_foreign_predictors(void **state)
{
    (void)state;
    static const char *const names[] = { "glm4_moe_lite", "qwen3_5" };
    int n = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct model *m = load(names[i]);
        if (!m)
            continue;
        assert_non_null(m->predictor);
        predicts = 1;
        run_schedules(m, 4);
        n++;
    }
    predicts = 0;
    if (!n) {
        print_message("# skipped: none of the models is here\n");
        skip();
    }
}

/* Layers with windows, whose blocks are freed during the answer.  The reference, one request alone,
 * uses steps as long as the context, in which no blocks are freed. */
static void freeing_blocks_before_windows_changes_no_answer(void **state)
{
    (void)state;
    struct model *m = load_tiny();
    assert_true(m->config.n_layers >= 3);
    m->config.window[0] = 20;
    m->config.chunk[2] = 32;
    run_schedules(m, 6);
}

/* Contexts that are longer than the tail, with keys and values of 4 bits. */
static void contexts_beyond_the_tail_change_no_answer(void **state)
{
    (void)state;
    len = ROOM;
    run_schedules(load_tiny(), 4);
    len = 160;
}

/* The same beside layers with windows, one narrower and one wider than the tail. */
static void test_tail_and_windows(void **state)
{
    (void)state;
    struct model *m = load_tiny();
    m->config.window[0] = 20;
    m->config.window[2] = 230;
    len = ROOM;
    run_schedules(m, 2);
    len = 160;
}

/* Drafts change no answer, whose tail moves on while some of their tokens are rejected. */
static void test_tail_and_drafts(void **state)
{
    (void)state;
    struct model *m = load_tiny();
    float *in = give_predictor(m);
    predicts = 1;
    len = ROOM;
    run_schedules(m, 2);
    len = 160;
    free(in);
}

/* Answer a prompt of 340 tokens with the current options. */
static void answer_long(const struct model *m, const int32_t *ids, struct answer *to)
{
    struct err e;
    struct engine *g = open_engine(m, kv_both(KV_F32), 1, 64, 0, 0);
    const struct request_params p = { .ids = ids, .n_ids = 340, .sampling = sampling_defaults(), .n_logprobs = 0,
                                      .ignore_eos = 1, .max_tokens = 20, .on_token = hear, .user = to };
    assert_non_null(engine_submit(g, &p, &e));
    run(g);
    engine_close(g);
}

/* Tokens of answers beyond 320 choose 4 pages each, beside drafts and layers with a window. */
static void pages_are_chosen_only_in_long_contexts(void **state)
{
    (void)state;
    enum { SAME = 320, FROM = 327 };
    struct err e;
    struct rng r = { 3 };
    int32_t ids[ROOM];
    struct model *m = load_tiny();
    const size_t vocab = (size_t)m->config.vocab_size;
    float *logits[2], *twice[2];
    for (int i = 0; i < ROOM; i++)
        ids[i] = (int32_t)(rng_u64(&r) % vocab);
    len = ROOM;
    for (int i = 0; i < 2; i++) {
        pages = 4 * i;
        struct engine *g = open_engine(m, kv_both(KV_F32), 1, 64, 0, 1);
        logits[i] = malloc(ROOM * vocab * sizeof(float));
        twice[i] = malloc((ROOM - FROM) * vocab * sizeof(float));
        assert_int_equal(engine_logits(g, ids, ROOM, 0, logits[i], &e), 0);
        engine_close(g);
    }
    assert_memory_equal(logits[0], logits[1], SAME * vocab * sizeof(float));
    assert_memory_not_equal(logits[0] + SAME * vocab, logits[1] + SAME * vocab, vocab * sizeof(float));
    /* both ways at once, after a prompt that attends to all tokens */
    for (int i = 0; i < 2; i++) {
        struct engine *g = open_engine(m, kv_both(KV_I4), 1, 64, 12, 1);
        float *alone = logits[1];
        if (i == 0)
            assert_int_equal(engine_logits_twice(g, ids, ROOM, FROM, twice[1], twice[0], &e), 0);
        assert_int_equal(engine_logits(g, ids, ROOM, FROM, alone, &e), 0);
        assert_memory_equal(twice[i], alone, (ROOM - FROM) * vocab * sizeof(float));
        engine_close(g);
        pages = 0;
    }
    for (int i = 0; i < 2; i++) {
        free(logits[i]);
        free(twice[i]);
    }
    static struct answer answers[2];
    for (int i = 0; i < 2; i++) {
        pages = 4 * i;
        answer_long(m, ids, &answers[i]);
    }
    /* the prompt attends to all tokens, the answer does not */
    assert_int_equal(answers[0].ids[0], answers[1].ids[0]);
    assert_memory_equal(&answers[0].logprob[0], &answers[1].logprob[0], sizeof(float));
    assert_memory_not_equal(&answers[0].logprob[1], &answers[1].logprob[1], 19 * sizeof(float));
    float *in = give_predictor(m);
    m->config.window[0] = 20;
    predicts = 1;
    run_schedules(m, 2);
    pages = 0;
    len = 160;
    free(in);
}

/* A pattern that leaves out no block changes nothing, and a token that no query sees does not
 * count. */
static void patterns_skip_blocks(void **state)
{
    (void)state;
    static const struct sparse_pattern all = { .unit = PATTERN_UNIT, .window = 100, .causal = 1 },
        every_third = { .unit = PATTERN_UNIT, .stride = 3, .causal = 1 },
        random = { .unit = PATTERN_UNIT, .window = 1, .globals = 1, .random = 1, .seed = 42, .causal = 1 };
    const struct { struct sparse_pattern p; struct kv_types kv; } cases[] = {
        { { 0 }, kv_both(KV_F16) }, { all, kv_both(KV_F16) }, { { 0 }, kv_both(KV_I4) }, { all, kv_both(KV_I4) },
        { every_third, kv_both(KV_F32) }, { every_third, kv_both(KV_F32) } };
    enum { LAST = 5 * PATTERN_UNIT, CASES = sizeof cases / sizeof *cases };
    struct err e;
    struct rng r = { 5 };
    int32_t ids[ROOM];
    struct model *m = load_tiny();
    const size_t vocab = (size_t)m->config.vocab_size, bytes = (ROOM - LAST) * vocab * sizeof(float);
    float *logits[CASES];
    for (int i = 0; i < ROOM; i++)
        ids[i] = (int32_t)(rng_u64(&r) % vocab);
    len = ROOM;
    for (int i = 0; i < CASES; i++) {
        /* block 4 is not seen by block 5, nor by those that block 5 sees */
        if (i == CASES - 1)
            ids[4 * PATTERN_UNIT + 9] ^= 1;
        pattern = cases[i].p;
        struct engine *g = open_engine(m, cases[i].kv, 1, 50 + 13 * i, 0, 1);
        logits[i] = malloc(bytes);
        assert_int_equal(engine_logits(g, ids, ROOM, LAST, logits[i], &e), 0);
        engine_close(g);
    }
    assert_memory_equal(logits[0], logits[1], bytes);
    assert_memory_equal(logits[2], logits[3], bytes);
    assert_memory_not_equal(logits[0], logits[4], bytes);
    assert_memory_equal(logits[4], logits[5], bytes);
    for (int i = 0; i < CASES; i++)
        free(logits[i]);
    pattern = random;
    m->config.window[0] = 20;
    run_schedules(m, 2);
    pattern.unit = 0;
    len = 160;
}

static void schedules_change_no_answer_of_recurrent_models(void **state)
{
    (void)state;
    struct model *m = load("granitemoehybrid");
    if (!m) {
        print_message("# skipped: granitemoehybrid is not here\n");
        skip();
    }
    run_schedules(m, 8);
}

/* Windows of any model, with sinks. */
static void windows_with_sinks_change_no_answer(void **state)
{
    (void)state;
    window = 40;
    sinks = 5;
    run_schedules(load_tiny(), 4);
    window = sinks = 0;
}

enum { WINDOW = 40, SINKS = 5, TEXT = 150 };

/* In a model of one layer keys depend on their own tokens only.  So a token beyond sinks and window
 * must have the logits of the last token of a text that consists of just these sinks and this
 * window.  Every step-th token is compared. */
static void check_positions(struct model *m, const char *name, int step)
{
    struct rng r = { 5 };
    struct err e;
    int32_t ids[TEXT], text[WINDOW + SINKS];
    const size_t vocab = (size_t)m->config.vocab_size;
    float *got = malloc(TEXT * vocab * sizeof *got), *want = malloc(vocab * sizeof *want);
    const int n_layers = m->config.n_layers;
    m->config.n_layers = 1;
    window = WINDOW;
    sinks = SINKS;
    struct engine *g = open_engine(m, kv_both(KV_F32), 1, 23, 0, 1);
    window = sinks = 0;
    struct engine *plain = open_engine(m, kv_both(KV_F32), 1, 200, 0, 1);
    for (int i = 0; i < TEXT; i++)
        ids[i] = (int32_t)(rng_u64(&r) % vocab);
    assert_int_equal(engine_logits(g, ids, TEXT, 0, got, &e), 0);
    for (int at = TEXT - 1; at >= 0; at -= step) {
        const int n = at < WINDOW + SINKS ? at + 1 : WINDOW + SINKS;
        memcpy(text, ids, (size_t)n * sizeof *ids);
        if (at >= n)
            memcpy(text + SINKS, ids + at - WINDOW + 1, WINDOW * sizeof *ids);
        assert_int_equal(engine_logits(plain, text, n, n - 1, want, &e), 0);
        for (size_t v = 0; v < vocab; v++) {
            const float d = got[(size_t)at * vocab + v] - want[v];
            if (!(d < 2e-4f && d > -2e-4f))
                fail_msg("%s, token %d, logit %zu: got %g, want %g", name, at, v,
                         (double)got[(size_t)at * vocab + v], (double)want[v]);
        }
    }
    engine_close(g);
    engine_close(plain);
    m->config.n_layers = n_layers;
    free(got);
    free(want);
}

static void windows_give_the_logits_of_the_text_in_them(void **state)
{
    (void)state;
    struct model *m = load_tiny();
    check_positions(m, "tiny", few(10));
    model_close(m);
}

/* check_positions() for all architectures that allow windows and whose first layer has
 * attention. */
static void windows_are_right_for_every_architecture(void **state)
{
    (void)state;
    static const char *const names[] = {
        "arcee", "bitnet", "bloom", "cohere", "cohere2", "deepseek_v2", "deepseek_v2_lite", "deepseek_v3", "dots1",
        "ernie4_5", "ernie4_5_moe", "exaone4", "falcon", "falcon-7b", "gemma", "gemma2", "gemma3", "glm4",
        "glm4_moe", "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "gptj", "granite", "granitemoe",
        "granitemoehybrid", "hunyuan", "hunyuan_moe", "kimi_k2", "lfm2", "llama", "llama-linear-rope", "llama-odd",
        "llama-yarn", "llama3-rope", "llama4_text", "mamba2", "minimax_m2", "mistral", "mixtral", "mpt", "nemotron",
        "nemotron_h", "olmo", "olmo2", "olmoe", "opt", "phi", "phi3", "phi3-longrope", "qwen2", "qwen2-window",
        "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next", "seed_oss", "smollm3", "stablelm", "starcoder2", "afmoe",
        "apertus", "bailing_hybrid", "bamba", "cohere2_moe", "deepseek_v32", "deepseek_v4", "deepseek_v4-hub",
        "exaone_moe", "falcon_h1", "gemma3-vl", "gemma3n", "gemma3n-vl", "gemma4", "gemma4-e", "gemma4-moe",
        "gemma4-vl", "gemma4_unified-vl", "glm4_moe_lite", "glm_moe_dsa", "glm_moe_dsa-skip", "granite_swa",
        "helium", "hy_v3", "internlm3", "jais2", "jamba", "kimi_k25-vl", "kimi_linear", "lfm2_moe", "lfm3",
        "llama4-dense-vl", "llama4-vl", "mimo_v2_flash", "minicpm3", "minimax", "ministral3", "mistral3-tied-vl",
        "mistral3-vl", "mistral4", "mistral4-vl", "nanochat", "olmo3", "olmo_hybrid", "phimoe", "qwen2_5_vl-vl",
        "qwen3_5", "qwen3_5-vl", "qwen3_5_moe", "qwen3_5_moe-vl", "qwen3_vl-vl", "qwen3_vl_moe-vl", "qwen4_exp",
        "solar_open" };
    int n = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct model *m = load(names[i]);
        if (!m)
            continue;
        /* a model with per-layer embeddings cannot be reduced to one layer, because they are laid
         * out for all layers */
        const int attends = m->config.mixer[0] == MIXER_ATTENTION && !m->config.ple_dim;
        if (attends && !config_stream_problem(&m->config)) {
            check_positions(m, names[i], few(4) * 13);
            n++;
        }
        model_close(m);
    }
    if (!n) {
        print_message("# skipped: no models of other architectures are here\n");
        skip();
    }
}

static void test_refused_windows(void **state)
{
    (void)state;
    static const struct { const char *name, *says; } refused[] = {
        { "hunyuan", "weights behind their rotation" }, { "hunyuan_moe", "weights behind their rotation" },
        { "llama4_text", "attends in chunks" }, { "gpt2", "no positions beyond" }, { "deepseek_v3", "latents" } };
    int n = 0;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct model *m = load(refused[i].name);
        struct err e;
        if (!m)
            continue;
        const struct engine_options o = { .window = WINDOW, .sinks = SINKS, .max_len = len };
        assert_null(engine_open(m, NULL, &o, &e));
        if (!strstr(e.msg, refused[i].says))
            fail_msg("%s: %s", refused[i].name, e.msg);
        model_close(m);
        n++;
    }
    if (!n) {
        print_message("# skipped: none of the models is here\n");
        skip();
    }
}

static uint64_t drafted(struct engine *g, const int32_t *ids, int n)
{
    struct answer a = { .n = 0 };
    struct err e;
    struct engine_stats before, after;
    struct request_params p = { .ids = ids, .n_ids = n, .sampling = sampling_defaults(), .n_logprobs = -1,
                                .on_token = hear, .user = &a, .max_tokens = 12, .ignore_eos = 1 };
    p.sampling.temperature = 0;
    engine_stats(g, &before);
    assert_non_null(engine_submit(g, &p, &e));
    run(g);
    assert_int_equal(a.n, 12);
    engine_stats(g, &after);
    return after.drafted - before.drafted;
}

/* A request with a token that the draft model does not know has no drafts; other requests continue
 * to have them. */
static void test_smaller_vocabulary(void **state)
{
    (void)state;
    struct err e;
    struct model *m = load_tiny(), *d = load_tiny();
    d->config.vocab_size = 1000;
    const struct engine_options o = { .kv = kv_both(KV_F32), .max_len = len, .max_seqs = 2, .n_threads = 2,
                                      .draft_model = d, .draft = 3 };
    struct engine *g = engine_open(m, NULL, &o, &e);
    if (!g)
        fail_msg("%s", e.msg);
    const int32_t ids[] = { 5, 6, 7, 8 }, other[] = { 5, 6, 1010, 8 }, next[] = { 5, 6, 7, 8, 1000 };
    assert_true(drafted(g, ids, 4) > 0);
    assert_int_equal(drafted(g, other, 4), 0);
    assert_true(drafted(g, ids, 4) > 0);
    assert_int_equal(drafted(g, next, 5), 0);
    assert_true(drafted(g, ids, 4) > 0);
    engine_close(g);
    model_close(m);
    model_close(d);
}

/* Windows that cannot be. */
static void test_wrong_windows(void **state)
{
    (void)state;
    static const struct { int window, sinks; const char *says; } wrong[] = {
        { 15, 0, "expected at least 16" }, { -1, 0, "expected at least 16" }, { 16, 17, "17 sinks" },
        { 16, -1, "-1 sinks" }, { 1000, 257, "257 sinks" }, { 0, 1, "1 sinks" }, { 2040, 9, "the model's context of 2048" },
        { INT32_MAX, 0, "expected at least 16" } };
    struct model *m = load_tiny();
    struct err e;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const struct engine_options o = { .window = wrong[i].window, .sinks = wrong[i].sinks, .max_len = 4096 };
        assert_null(engine_open(m, NULL, &o, &e));
        if (!strstr(e.msg, wrong[i].says))
            fail_msg("window %d, sinks %d: %s", wrong[i].window, wrong[i].sinks, e.msg);
    }
    const struct engine_options few = { .window = 1000, .sinks = 4, .max_len = 100000, .kv_bytes = 1 << 16 };
    assert_null(engine_open(m, NULL, &few, &e));
    assert_non_null(strstr(e.msg, "KV memory of 65536 bytes"));
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(schedules_change_no_answer),
        cmocka_unit_test(freeing_blocks_before_windows_changes_no_answer),
        cmocka_unit_test(a_predictor_changes_no_answer), cmocka_unit_test(medusa_heads_change_no_answer),
        cmocka_unit_test(test_predictor_waits), cmocka_unit_test(a_predictor_computes_the_right_logits),
        cmocka_unit_test(test_foreign_predictors),
        cmocka_unit_test(contexts_beyond_the_tail_change_no_answer),
        cmocka_unit_test(pages_are_chosen_only_in_long_contexts),
        cmocka_unit_test(patterns_skip_blocks), cmocka_unit_test(test_tail_and_windows),
        cmocka_unit_test(test_tail_and_drafts), cmocka_unit_test(windows_with_sinks_change_no_answer),
        cmocka_unit_test(windows_give_the_logits_of_the_text_in_them),
        cmocka_unit_test(windows_are_right_for_every_architecture), cmocka_unit_test(test_refused_windows),
        cmocka_unit_test(test_smaller_vocabulary), cmocka_unit_test(test_wrong_windows),
        cmocka_unit_test(schedules_change_no_answer_of_recurrent_models),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
