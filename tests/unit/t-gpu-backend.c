/* t-gpu-backend.c - guarantees of the GPU backend besides correct results: --strict gives the
 * same bits for every schedule, layers can be divided between the device and the processor, the
 * memory taken is that of the plan, lookahead steps give the same answers, and a lost device ends
 * requests, not the process. */
#include "tests/lib/gpu.h"

#include <sched.h>

#include "gpu/backend/internal.h"
#include "gpu/gpu.h"
#include "gpu/rt/emulated.h"
#include "libcommon/engine/engine.h"
#include "tests/unit/assemble.h"

#pragma weak emulated_fail              /* a GPU has no injected faults */
#pragma weak emulated_graphs            /* nor count */
#pragma weak emulated_refuse

enum { N_BLOCKS = 32, MAX_TOKENS = 64 };

static struct model *load(void)
{
    struct source *s = source_open("models/tiny", &why);
    struct model *m = s ? model_assemble(s, QT_F16, &why) : NULL;
    source_close(s);
    if (!m)
        fail_msg("%s", why.msg);
    return m;
}

static struct backend_options options(void)
{
    return (struct backend_options){ .n_threads = 2, .kv = kv_both(KV_F16), .n_blocks = N_BLOCKS,
                                     .max_tokens = MAX_TOKENS,
                                     .max_logits = MAX_TOKENS };
}

static void *open_with(const struct model *m, const struct backend_options *o)
{
    void *b = backend_gpu.open(m, o, &why);
    if (!b)
        fail_msg("%s", why.msg);
    return b;
}

/* ---- random schedules ---- */

enum { N = 2, LEN = 22 };         /* without strict, more than 16 tokens in a step use other kernels
                                   * than fewer */

struct run { const struct model *m; void *b; int32_t id[N][LEN],
             table[N][4]; int at[N]; size_t vocab; float *want[N]; };

static void run_open(struct run *r, const struct model *m, const struct backend_options *o, uint64_t seed)
{
    struct rng rng = { seed };
    memset(r, 0, sizeof *r);
    r->m = m;
    r->b = open_with(m, o);
    r->vocab = (size_t)m->config.vocab_size;
    for (int s = 0; s < N; s++) {
        r->want[s] = malloc(LEN * r->vocab * sizeof(float));
        for (int i = 0; i < LEN; i++)
            r->id[s][i] = below(&rng, (int)r->vocab);
        for (int i = 0; i < 4; i++)
            r->table[s][i] = 1 + s + i * N;
    }
}

static void run_close(struct run *r)
{
    backend_gpu.close(r->b);
    for (int s = 0; s < N; s++)
        free(r->want[s]);
}

static struct batch_item item_of(const struct run *r, int s, int pos, int n, int n_logits)
{
    return (struct batch_item){ .tokens = &r->id[s][pos], .n_tokens = n, .pos = pos, .table = r->table[s],
                                .n_logits = n_logits };
}

/* Compute the reference logits: each sequence alone, its whole text in one step. */
static void reference(struct run *r)
{
    for (int s = 0; s < N; s++) {
        const struct batch_item item = item_of(r, s, 0, LEN, LEN);
        OK(backend_gpu.forward(r->b, &(struct batch){ &item, 1 }, r->want[s], &why));
    }
}

/* Run the sequences with random chunks and batches.  Returns the number of rows of logits whose
 * bits differ from the reference. */
static int schedule(struct run *r, uint64_t seed)
{
    struct rng rng = { seed };
    float *got = malloc(MAX_TOKENS * r->vocab * sizeof *got);
    int different = 0, left = N;
    memset(r->at, 0, sizeof r->at);
    while (left) {
        struct batch_item item[N];
        int of[N], n = 0, room = MAX_TOKENS, row = 0;
        for (int s = 0; s < N; s++) {
            const int rest = LEN - r->at[s];
            if (rest == 0 || below(&rng, 4) == 0)
                continue;
            int take = below(&rng, 3) == 0 ? 1 : 1 + below(&rng, rest);
            take = take > room ? room : take;
            if (take == 0)
                continue;
            of[n] = s;
            item[n++] = item_of(r, s, r->at[s], take, 1);
            room -= take;
        }
        OK(backend_gpu.forward(r->b, &(struct batch){ item, n }, got, &why));
        for (int i = 0; i < n; i++, row++) {
            r->at[of[i]] += item[i].n_tokens;
            different += memcmp(got + (size_t)row * r->vocab, r->want[of[i]] + (size_t)(r->at[of[i]] - 1) * r->vocab,
                                r->vocab * sizeof *got) != 0;
        }
        left = 0;
        for (int s = 0; s < N; s++)
            left += r->at[s] < LEN;
    }
    free(got);
    return different;
}

static void strict(void **state)
{
    (void)state;
    struct model *m = load();
    struct backend_options o = options();
    struct run r;
    for (o.strict = 0; o.strict < 2; o.strict++) {
        run_open(&r, m, &o, 21);
        reference(&r);
        const int different = schedule(&r, 1);
        if (o.strict && different)
            fail_msg("strict: %d rows of logits depend on the schedule", different);
        if (!o.strict && !different)
            fail_msg("without strict no row differs: the schedules show nothing");
        run_close(&r);
    }
    o.strict = 1;                       /* the layers on the processor are always strict */
    o.device_layers = 1;
    run_open(&r, m, &o, 22);
    reference(&r);
    assert_int_equal(schedule(&r, 4), 0);
    run_close(&r);
    model_close(m);
}

/* ---- graphs ---- */

/* Open a backend and wait until its weights are loaded by their thread; graphs are used only from
 * then on. */
static void *loaded(const struct model *m, const struct backend_options *o)
{
    struct gpu_ranks *b = open_with(m, o);
    int complete;
    while ((complete = dweights_complete(b->rank[0]->w, &why)) == 0)
        sched_yield();
    if (complete < 0)
        fail_msg("%s", why.msg);
    return b;
}

/* Run the same step four times: first as it is (hidden states are not part of a graph, so nothing
 * is padded), then padded: launched, recorded, replayed.  The bits must be the same each time, and
 * the last two runs must launch a graph, if graphs are possible. */
static void four_times(void *b, const struct model *m, const struct batch *batch, int n_launches)
{
    const size_t n_floats = (size_t)batch->n_items * (size_t)m->config.vocab_size;
    float *first = malloc(n_floats * sizeof *first), *got = malloc(n_floats * sizeof *got),
          *hidden = malloc((size_t)m->config.hidden_size * sizeof *hidden);
    struct batch_item *plain = malloc((size_t)batch->n_items * sizeof *plain);
    const int before = emulated_graphs ? emulated_graphs() : 0;
    memcpy(plain, batch->items, (size_t)batch->n_items * sizeof *plain);
    plain[0].hidden = hidden;
    plain[0].n_hidden = 1;
    OK(backend_gpu.forward(b, &(struct batch){ plain, batch->n_items }, first, &why));
    for (int i = 0; i < 3; i++) {
        OK(backend_gpu.forward(b, batch, got, &why));
        assert_memory_equal(got, first, n_floats * sizeof *got);
    }
    if (emulated_graphs)
        assert_int_equal(emulated_graphs() - before, n_launches);
    free(first), free(got), free(hidden), free(plain);
}

/* A cache for half a million positions, for which the partial results of 64 tokens would not fit
 * into the buffer: only the present length of the context counts. */
static void graph_of_many(void **state)
{
    (void)state;
    enum { MANY = 64 };
    struct model *m = load();
    struct backend_options o = options();
    struct batch_item item[MANY];
    int32_t id[MANY], table[MANY];
    m->config.max_len = 1 << 19;
    o.n_blocks = 1 << 15;
    void *b = loaded(m, &o);
    for (int i = 0; i < MANY; i++) {
        id[i] = table[i] = i;
        item[i] = (struct batch_item){ .tokens = &id[i], .n_tokens = 1, .table = &table[i], .n_logits = 1 };
    }
    four_times(b, m, &(struct batch){ item, MANY }, 2);
    backend_gpu.close(b);
    model_close(m);
}

static struct backend_graphs graphs_of(const void *b)
{
    struct backend_device d;
    backend_gpu.device(b, &d);
    return d.graphs;
}

/* 3 tokens have the graph of 4. */
static void graph_of_three(void **state)
{
    (void)state;
    enum { MOST = 4 };
    struct model *m = load();
    const struct backend_options o = options();
    struct batch_item item[MOST];
    int32_t id[MOST];
    void *b = loaded(m, &o);
    for (int i = 0; i < MOST; i++) {
        id[i] = i;
        item[i] = (struct batch_item){ .tokens = &id[i], .n_tokens = 1, .table = &id[i], .n_logits = 1 };
    }
    four_times(b, m, &(struct batch){ item, MOST - 1 }, 2);
    struct backend_graphs graphs = graphs_of(b);
    assert_null(graphs.off);
    for (int i = 0; i < BACKEND_BUCKETS; i++) {
        assert_int_equal(graphs.captured[i], 1 << i == MOST);
        assert_int_equal(graphs.replays[i], 1 << i == MOST ? 2 : 0);
    }
    four_times(b, m, &(struct batch){ item, MOST }, 3);         /* the graph exists already, so the
                                                                 * first step is replayed, too */
    graphs = graphs_of(b);
    assert_int_equal(graphs.captured[2], 1);
    assert_int_equal(graphs.replays[2], 5);
    assert_int_equal(graphs.refused, 0);
    backend_gpu.close(b);
    model_close(m);
}

/* A step with at most 3 splits is padded to 3, not to 4.  Every entry of the block table is the
 * same block. */
static void graph_of_odd_splits(void **state)
{
    (void)state;
    enum { POS = 520 };
    struct model *m = load();
    struct backend_options o = options();
    static const int32_t id[KV_BLOCK], table[POS / KV_BLOCK + 1];
    float *prompt = malloc((size_t)m->config.vocab_size * sizeof *prompt);
    m->config.max_len = 700;
    o.n_blocks = 64;
    void *b = loaded(m, &o);
    struct batch_item item = { .tokens = id, .n_tokens = KV_BLOCK, .table = table, .n_logits = 1 };
    OK(backend_gpu.forward(b, &(struct batch){ &item, 1 }, prompt, &why));
    item.n_tokens = 1;
    item.pos = POS;
    four_times(b, m, &(struct batch){ &item, 1 }, 2);
    backend_gpu.close(b);
    free(prompt);
    model_close(m);
}

/* If there is no memory for graphs, or for launching them, or if graphs are off, steps are launched
 * kernel by kernel. */
static void no_graphs(void **state)
{
    (void)state;
    if (!emulated_refuse) {
        print_message("# skipped: only the emulated device refuses graphs when it is asked to\n");
        skip();
    }
    struct model *m = load();
    struct backend_options o = options();
    static const int32_t id = 7, table = 3;
    const struct batch_item item = { .tokens = &id, .n_tokens = 1, .table = &table, .n_logits = 1 };
    for (enum emulated_refusal what = EMULATED_GRAPH; what <= EMULATED_GRAPH_LAUNCH; what++) {
        void *b = loaded(m, &o);
        emulated_refuse(what);
        four_times(b, m, &(struct batch){ &item, 1 }, 0);
        emulated_refuse(EMULATED_NOTHING);
        four_times(b, m, &(struct batch){ &item, 1 }, 0);        /* not asked for again */
        assert_int_equal(graphs_of(b).refused, 1);
        assert_int_equal(graphs_of(b).replays[0], 0);
        backend_gpu.close(b);
    }
    for (int i = 0; i < 2; i++) {       /* and it says why */
        o.no_graphs = i == 0;
        o.debug_sync = i == 1;
        void *b = loaded(m, &o);
        if (o.no_graphs)
            four_times(b, m, &(struct batch){ &item, 1 }, 0);
        assert_non_null(strstr(graphs_of(b).off, i ? "ZSE_DEBUG_SYNC" : "--cuda-graphs off"));
        backend_gpu.close(b);
    }
    model_close(m);
}

/* ---- steps that begin before the previous step's tokens are read ---- */

enum { TALKS = 5, WORDS = 48 };
struct talk { int32_t id[WORDS]; int n, n_prompt, leaves; enum finish finish; struct engine *g; struct request *r; };

static void note(void *user, const struct token_event *ev)
{
    struct talk *t = user;
    if (ev->id >= 0)
        t->id[t->n++] = ev->id;
    t->finish = ev->finish;
    if (t->n == t->leaves)
        engine_cancel(t->g, t->r);
}

static void begin_talk(struct engine *g, struct talk *t, int i)
{
    struct request_params p = { .ids = t->id, .n_ids = t->n_prompt, .max_tokens = 5 + 2 * i, .n_logprobs = -1,
                                .on_token = note, .user = t };
    p.sampling = sampling_defaults();
    p.sampling.temperature = i % 2 ? 0.9f : 0;
    p.sampling.seed = (uint64_t)i;
    t->n = t->n_prompt;
    t->g = g;
    t->finish = FINISH_NONE;
    if (!(t->r = engine_submit(g, &p, &why)))
        fail_msg("%s", why.msg);
}

/* Run four requests in an engine with places for three, with answers of different lengths, greedy
 * and sampled, one of which is cancelled; then one that continues the last of these. */
static void talk(const struct model *m, const struct backend *d, enum kv_type kv, struct talk *t)
{
    const struct engine_options o = { .backend = d, .max_len = WORDS, .max_seqs = 3, .max_tokens = 32, .n_threads = 1,
                                      .strict = 1, .kv = kv_both(kv) };
    struct engine *g = engine_open(m, NULL, &o, &why);
    struct rng r = { 5 };
    int left;
    assert_non_null(g);
    for (int i = 0; i < TALKS - 1; i++) {
        t[i] = (struct talk){ .n_prompt = 3 + 3 * i, .leaves = i == 2 ? 11 : -1 };
        for (int k = 0; k < t[i].n_prompt; k++)
            t[i].id[k] = below(&r, m->config.vocab_size);
        begin_talk(g, &t[i], i);
    }
    while ((left = engine_step(g, &why)) > 0)
        ;
    assert_int_equal(left, 0);
    struct talk *last = &t[TALKS - 1];
    *last = t[3];
    last->n_prompt = t[3].n;
    last->leaves = -1;
    begin_talk(g, last, 0);
    while ((left = engine_step(g, &why)) > 0)
        ;
    assert_int_equal(left, 0);
    engine_close(g);
}

static int n_behind;
static int counting_begin(void *b, const struct batch *batch, struct err *e)
{
    const int rc = backend_gpu.begin(b, batch, e);
    n_behind += rc > 0 && !batch->items[0].tokens;
    return rc;
}

/* With i4 the same blocks are in the tail as well: window blocks are taken ahead, too. */
static void ahead_with(enum kv_type kv)
{
    struct model *m = load();
    static struct talk want[TALKS], got[TALKS];
    struct backend one_by_one = backend_gpu, counting = backend_gpu;
    one_by_one.begin = NULL;
    counting.begin = counting_begin;
    m->config.n_layers = 1;             /* enough for this */
    talk(m, &one_by_one, kv, want);
    assert_int_equal(want[0].finish, FINISH_LENGTH);
    /* from here on answers also end by EOS, which the engine cannot foresee */
    m->config.eos[0] = want[0].id[want[0].n_prompt + 2];
    m->config.n_eos = 1;
    talk(m, &one_by_one, kv, want);
    n_behind = 0;
    talk(m, &counting, kv, got);
    assert_true(n_behind > 6);
    for (int i = 0; i < TALKS; i++) {
        assert_int_equal(got[i].n, want[i].n);
        assert_int_equal(got[i].finish, want[i].finish);
        assert_memory_equal(got[i].id, want[i].id, (size_t)want[i].n * sizeof *want[i].id);
    }
    assert_int_equal(want[0].finish, FINISH_STOP);
    model_close(m);
}

static void ahead(void **state)
{
    (void)state;
    ahead_with(KV_F16);
    ahead_with(KV_I4);
}

/* Begin two steps and run forward() for another sequence before they end, so often that every slot
 * has been used for each of the three: all sequences get their own tokens. */
static void forward_beside_two(void **state)
{
    (void)state;
    enum { TURNS = 4 };
    struct model *m = load();
    const struct backend_options o = options();
    static const int32_t table[2][1] = { { 3 }, { 4 } };
    int32_t id[2][TURNS][3];
    float *logits = malloc((size_t)m->config.vocab_size * sizeof *logits);
    m->config.n_layers = 1;
    for (int between = 0; between < 2; between++) {
        void *b = open_with(m, &o);
        int32_t token = 5;
        const int32_t other = 6;
        for (int turn = 0; turn < TURNS; turn++) {
            struct draw draw[3];
            struct batch_item item[3] = { { .tokens = &token, .pos = 2 * turn, .table = table[0] },
                                          { .pos = 2 * turn + 1, .table = table[0] },
                                          { .tokens = &other, .pos = turn, .table = table[1] } };
            struct batch step[3];
            for (int i = 0; i < 3; i++) {
                draw[i] = (struct draw){ .temperature = 2, .top_p = 1, .seed = (uint64_t)(10 * turn + i), .id = -1 };
                item[i].n_tokens = item[i].n_logits = 1;
                item[i].draw = &draw[i];
                step[i] = (struct batch){ &item[i], 1 };
            }
            assert_int_equal(backend_gpu.begin(b, &step[0], &why), 1);
            assert_int_equal(backend_gpu.begin(b, &step[1], &why), 1);
            assert_int_equal(backend_gpu.begin(b, &step[0], &why), 0);
            if (between)
                OK(backend_gpu.forward(b, &step[2], logits, &why));
            OK(backend_gpu.end(b, &step[0], &why));
            OK(backend_gpu.end(b, &step[1], &why));
            if (!between)
                OK(backend_gpu.forward(b, &step[2], logits, &why));
            for (int i = 0; i < 3; i++)
                assert_true((id[between][turn][i] = draw[i].id) >= 0);
            token = draw[1].id;
        }
        backend_gpu.close(b);
    }
    assert_memory_equal(id[0], id[1], sizeof id[0]);
    free(logits);
    model_close(m);
}

/* If a step fails to begin or to end, its requests end with an error, and the next request is
 * answered correctly. */
static int n_calls, fails_at;
static int counted_begin(void *b, const struct batch *batch, struct err *e)
{
    return n_calls++ == fails_at ? err_set(e, ERR_DEVICE, "no step today") : backend_gpu.begin(b, batch, e);
}
static int counted_end(void *b, const struct batch *batch, struct err *e)
{
    const int rc = backend_gpu.end(b, batch, e);
    return n_calls++ == fails_at ? err_set(e, ERR_DEVICE, "no step today") : rc;
}

static void ahead_fails(void **state)
{
    (void)state;
    struct model *m = load();
    struct backend failing = backend_gpu;
    struct engine_options o = { .backend = &failing, .max_len = WORDS, .max_seqs = 2, .max_tokens = 32,
                                .n_threads = 1 };
    static struct talk want[2], t[2];
    failing.begin = counted_begin;
    failing.end = counted_end;
    m->config.n_layers = 1;
    m->config.n_eos = 0;
    for (int at = -1; at < 8; at++) {
        struct engine *g = engine_open(m, NULL, &o, &why);
        struct engine_stats s;
        int left, n_failed = 0;
        n_calls = 0;
        fails_at = at;
        assert_non_null(g);
        for (int again = 0; again < 2; again++) {
            for (int i = 0; i < 2; i++) {
                t[i] = (struct talk){ .id = { 1, 2 + i, 3 }, .n_prompt = 3, .leaves = -1 };
                begin_talk(g, &t[i], i);
            }
            while ((left = engine_step(g, &why)) != 0)
                n_failed += left < 0;
            assert_int_equal(n_failed, at >= 0);
            for (int i = 0; i < 2; i++)
                assert_int_equal(t[i].finish, at < 0 || again ? FINISH_LENGTH : FINISH_ERROR);
            engine_stats(g, &s);
            assert_int_equal(s.n_free_blocks + s.n_cached_blocks, s.n_blocks);
        }
        if (at < 0)
            memcpy(want, t, sizeof want);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(t[i].n, want[i].n);
            assert_memory_equal(t[i].id, want[i].id, (size_t)t[i].n * sizeof *t[i].id);
        }
        assert_true(n_calls > 8);
        engine_close(g);
    }
    model_close(m);
}

/* ---- layers divided between the device and the processor ---- */

/* Compare a prompt in two chunks, then tokens one by one (the second step is recorded, later ones
 * replayed), then the last token on copies of the blocks, and hidden states. */
static void some_layers(void **state)
{
    (void)state;
    enum { FIRST = 5, PROMPT = 19 };
    struct model *m = load();
    struct backend_options o = options();
    struct run r;
    o.exact = 1;
    o.kv = kv_both(KV_F32);
    o.n_threads = 1;
    run_open(&r, m, &o, 5);
    backend_gpu.close(r.b);
    const size_t hidden = (size_t)m->config.hidden_size;
    float *want_hidden = malloc(LEN * hidden * sizeof *want_hidden),
          *got_hidden = malloc(LEN * hidden * sizeof *got_hidden), *got = malloc(LEN * r.vocab * sizeof *got);
    void *cpu = backend_cpu.open(m, &o, &why);
    assert_non_null(cpu);
    struct batch_item all = item_of(&r, 0, 0, LEN, LEN);
    all.hidden = want_hidden;
    all.n_hidden = LEN;
    OK(backend_cpu.forward(cpu, &(struct batch){ &all, 1 }, r.want[0], &why));
    backend_cpu.close(cpu);
    for (o.device_layers = 0; o.device_layers < m->config.n_layers; o.device_layers += m->config.n_layers - 2 > 0
         ? m->config.n_layers - 2 : 1) {
        r.b = open_with(m, &o);
        struct backend_device d;
        backend_gpu.device(r.b, &d);
        assert_int_equal(d.n_layers, o.device_layers ? o.device_layers : m->config.n_layers);
        struct batch_item a = item_of(&r, 0, 0, FIRST, FIRST),
                          b = item_of(&r, 0, FIRST, PROMPT - FIRST, PROMPT - FIRST);
        a.hidden = got_hidden;
        a.n_hidden = FIRST;
        b.hidden = got_hidden + FIRST * hidden;
        b.n_hidden = PROMPT - FIRST;
        OK(backend_gpu.forward(r.b, &(struct batch){ &a, 1 }, got, &why));
        OK(backend_gpu.forward(r.b, &(struct batch){ &b, 1 }, got + FIRST * r.vocab, &why));
        for (int i = PROMPT; i < LEN; i++) {
            const struct batch_item one = item_of(&r, 0, i, 1, 1);
            OK(backend_gpu.forward(r.b, &(struct batch){ &one, 1 }, got + (size_t)i * r.vocab, &why));
        }
        const double e = error_of(got, r.want[0], LEN * r.vocab),
                     eh = error_of(got_hidden, want_hidden, PROMPT * hidden);
        if (!(e <= 1e-5 && eh <= 1e-5))
            fail_msg("%d layers on the device: logits differ by %.3g, hidden states by %.3g", d.n_layers, e, eh);
        const int32_t copies[4] = { 20, 21, 0, 0 };
        for (int i = 0; i < 2; i++)
            OK(backend_gpu.copy_block(r.b, r.table[0][i], copies[i], &why));
        struct batch_item again = item_of(&r, 0, LEN - 1, 1, 1);
        again.table = copies;
        OK(backend_gpu.forward(r.b, &(struct batch){ &again, 1 }, got, &why));
        if (memcmp(got, got + (LEN - 1) * r.vocab, r.vocab * sizeof *got) != 0)
            fail_msg("%d layers on the device: copies of the blocks give other bits", d.n_layers);
        backend_gpu.close(r.b);
    }
    for (int s = 0; s < N; s++)
        free(r.want[s]);
    free(got), free(got_hidden), free(want_hidden);
    model_close(m);
}

/* ---- the plan ---- */

/* The free memory falls by what the plan counts, except its reserve. */
static void taken(void **state)
{
    (void)state;
    struct model *m = load();
    struct backend_device d;
    for (int window = 0; window < 2; window++) {
        struct backend_options o = options();
        o.layer_stream = LAYER_STREAM_AUTO;
        o.stream_window = window;
        void *b = backend_gpu.open(m, &o, &why);
        assert_non_null(b);
        backend_gpu.device(b, &d);
        if (gpu_kind[0] == 'e')
            assert_int_equal(d.taken, d.weights + d.cached + d.kv + d.work);
        backend_gpu.close(b);
    }
    model_close(m);
}

static void plan(void **state)
{
    (void)state;
    struct model *m = load();
    struct backend_options o = options();
    struct gpu_plan whole, p;
    OK(gpu_plan(m, &o, &whole, &why));
    assert_int_equal(whole.needed, whole.weights + whole.kv + whole.work + whole.reserve);
    assert_int_equal(whole.cached, 0);
    o.cache_weights = CACHE_WEIGHTS_ON;         /* f16 already */
    assert_int_equal(gpu_plan(m, &o, &p, &why), -1);
    assert_non_null(strstr(why.msg, "no weights are packed"));
    o.cache_weights = CACHE_WEIGHTS_OFF;
    assert_int_equal(whole.most_layers, m->config.n_layers);
    assert_int_equal(whole.host_weights, 0);
    OK(gpu_plan_fits(&whole, &o, &why));
    const struct kv_types kv = kv_both(KV_F16);
    assert_true(whole.kv >= (size_t)N_BLOCKS * config_kv_bytes(&m->config, kv) && whole.kv < (size_t)N_BLOCKS *
                config_kv_bytes(&m->config, kv) + (2 << 20));
    o.n_blocks = 1 << 16;               /* with few blocks, rounding to pages would hide the size of a layer */
    OK(gpu_plan(m, &o, &whole, &why));
    o.device_layers = 1;
    OK(gpu_plan(m, &o, &p, &why));
    assert_true(p.kv < whole.kv && p.host_kv > 0 && p.needed < whole.needed);
    /* the processor also has the embedding, although the device has the same matrix as its head */
    assert_true(m->head.w.data == m->embed.w.data);
    assert_true(p.host_weights > m->embed.w.size + (size_t)(m->config.n_layers - 1) * m->layers[0].down.w.size);
    o.device_layers = 0;
    o.max_device = p.needed;            /* exactly enough for one */
    OK(gpu_plan(m, &o, &p, &why));
    assert_int_equal(p.most_layers, 1);
    assert_int_equal(gpu_plan_fits(&p, &o, &why), -1);
    assert_non_null(strstr(why.msg, "--gpu-layers 1 fits"));
    assert_non_null(strstr(why.msg, "--max-memory"));
    assert_null(backend_gpu.open(m, &o, &why));
    assert_non_null(strstr(why.msg, "weights"));
    o.max_device--;
    OK(gpu_plan(m, &o, &p, &why));
    assert_int_equal(p.most_layers, 0);
    model_close(m);
}

/* The plan counts the f16 copies of weights exactly; auto uses them only by its rule about free
 * memory. */
static void plan_copies(void **state)
{
    (void)state;
    struct model *m = load();
    struct backend_options o = options();
    struct gpu_plan off, on, p;
    size_t weights = 0;
    for (int i = 0; i < m->config.n_layers; i++) {
        struct layer *l = &m->layers[i];
        struct mat *mats[] = { &l->q.w, &l->k.w, &l->v.w, &l->o.w, &l->gate.w, &l->up.w, &l->down.w };
        for (int j = 0; j < 7; j++) {           /* a plan reads no weights */
            const uint8_t *data = mats[j]->data;
            OK(mat_init(mats[j], QT_NL4, 32, 64, mats[j]->rows, mats[j]->cols, &why));
            mats[j]->data = data;
            weights += (size_t)mats[j]->n_tiles * 32 * (size_t)mats[j]->cols_padded * 2;
        }
    }
    OK(gpu_plan(m, &o, &off, &why));
    assert_non_null(strstr(off.cache_off, "off"));
    o.cache_weights = CACHE_WEIGHTS_ON;
    OK(gpu_plan(m, &o, &on, &why));
    assert_null(on.cache_off);
    assert_true(on.cached >= weights && on.cached < weights + (3 << 20));
    assert_int_equal(on.needed, off.needed + on.cached);
    o.max_device = on.needed - 1;
    OK(gpu_plan(m, &o, &p, &why));
    assert_int_equal(gpu_plan_fits(&p, &o, &why), -1);
    assert_non_null(strstr(why.msg, "--cache-weights"));
    o.cache_weights = CACHE_WEIGHTS_AUTO;
    o.max_device = 3 * off.weights + 2000000000;
    OK(gpu_plan(m, &o, &p, &why));
    if (p.limit == o.max_device)                /* so much is free */
        assert_int_equal(p.cached, on.cached);
    o.max_device--;
    OK(gpu_plan(m, &o, &p, &why));
    assert_int_equal(p.cached, 0);
    assert_non_null(strstr(p.cache_off, "auto"));
    o.strict = 1;
    OK(gpu_plan(m, &o, &p, &why));
    assert_non_null(strstr(p.cache_off, "--strict"));
    model_close(m);
}

/* ---- a device that is lost ---- */

struct heard { enum finish finish; struct err error; };
static void hear(void *user, const struct token_event *ev)
{
    struct heard *h = user;
    if (ev->finish != FINISH_NONE)
        h->finish = ev->finish;
    if (ev->error)
        h->error = *ev->error;
}

static void ask(struct engine *g, struct heard *h)
{
    static const int32_t ids[5] = { 1, 2, 3, 4, 5 };
    struct request_params p = { .ids = ids, .n_ids = 5, .max_tokens = 3, .ignore_eos = 1, .n_logprobs = -1,
                                .on_token = hear, .user = h };
    p.sampling = sampling_defaults();
    *h = (struct heard){ FINISH_NONE, { .code = ERR_NONE } };
    if (!engine_submit(g, &p, &why))
        fail_msg("%s", why.msg);
}

static void lost(void **state)
{
    (void)state;
    if (!emulated_fail) {
        print_message("# skipped: only the emulated device fails when it is asked to\n");
        skip();
    }
    struct model *m = load();
    for (int sync = 0; sync < 2; sync++) {
        const struct engine_options o = { .backend = &backend_gpu, .max_len = 64, .max_seqs = 2, .max_tokens = 32,
                                          .n_threads = 1, .debug_sync = sync };
        struct engine *g = engine_open(m, NULL, &o, &why);
        struct heard h[2];
        struct engine_stats s;
        assert_non_null(g);
        ask(g, &h[0]);
        ask(g, &h[1]);
        OK(engine_step(g, &why));       /* both have a first token */
        emulated_fail("attn_split", 2);
        int n;
        for (n = 0; n < 8 && engine_step(g, &why) > 0; n++)
            ;
        for (int i = 0; i < 2; i++) {
            assert_int_equal(h[i].finish, FINISH_ERROR);
            if (sync && !strstr(h[i].error.msg, "attn_split"))
                fail_msg("'%s' does not name the kernel", h[i].error.msg);
            if (!sync && (!strstr(h[i].error.msg, "ZSE_DEBUG_SYNC=1") || strstr(h[i].error.msg, "attn_split")))
                fail_msg("'%s' does not say how to find the kernel", h[i].error.msg);
        }
        engine_stats(g, &s);
        assert_true(s.device.lost);
        ask(g, &h[0]);                  /* later requests fail at once with the same error */
        assert_int_equal(engine_step(g, &why), -1);
        assert_int_equal(h[0].finish, FINISH_ERROR);
        assert_string_equal(h[0].error.msg, why.msg);
        engine_close(g);
        if (!(g = engine_open(m, NULL, &o, &why)))
            fail_msg("%s", why.msg);    /* a device that is opened anew works again */
        ask(g, &h[0]);
        while ((n = engine_step(g, &why)) > 0)
            ;
        assert_int_equal(n, 0);
        assert_int_equal(h[0].finish, FINISH_LENGTH);
        engine_close(g);
    }
    model_close(m);
}

/* Another model on the same device is idle when the device is lost: its next step fails, the
 * process survives, and the device can be used again when both models are closed. */
static void lost_while_idle(void **state)
{
    (void)state;
    if (!emulated_fail) {
        print_message("# skipped: only the emulated device fails when it is asked to\n");
        skip();
    }
    struct model *m = load();
    const struct engine_options o = { .backend = &backend_gpu, .max_len = 64, .max_seqs = 2, .max_tokens = 32,
                                      .n_threads = 1 };
    struct engine *busy = engine_open(m, NULL, &o, &why), *idle = busy ? engine_open(m, NULL, &o, &why) : NULL;
    struct engine_stats s;
    struct heard h;
    int n;
    assert_non_null(idle);
    emulated_fail("norm", 3);
    ask(busy, &h);
    while ((n = engine_step(busy, &why)) > 0)
        ;
    assert_int_equal(n, -1);
    assert_int_equal(h.finish, FINISH_ERROR);
    engine_stats(idle, &s);
    assert_true(s.device.lost);
    engine_close(busy);
    assert_null(engine_open(m, NULL, &o, &why));        /* the error tells when the device was lost,
                                                         * and what to do */
    assert_non_null(strstr(why.msg, "unloaded"));
    assert_non_null(strstr(why.msg, "a fault that a test asked for"));
    ask(idle, &h);
    assert_int_equal(engine_step(idle, &why), -1);
    assert_int_equal(h.finish, FINISH_ERROR);
    engine_close(idle);
    if (!(idle = engine_open(m, NULL, &o, &why)))
        fail_msg("%s", why.msg);
    ask(idle, &h);
    while ((n = engine_step(idle, &why)) > 0)
        ;
    assert_int_equal(n, 0);
    assert_int_equal(h.finish, FINISH_LENGTH);
    engine_close(idle);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(strict), cmocka_unit_test(graph_of_many),
                                        cmocka_unit_test(graph_of_three), cmocka_unit_test(graph_of_odd_splits),
                                       cmocka_unit_test(no_graphs), cmocka_unit_test(ahead),
                                       cmocka_unit_test(forward_beside_two), cmocka_unit_test(ahead_fails),
                                       cmocka_unit_test(some_layers), cmocka_unit_test(plan), cmocka_unit_test(taken),
                                       cmocka_unit_test(plan_copies), cmocka_unit_test(lost),
                                       cmocka_unit_test(lost_while_idle) };
    if (gpu_kind[0] != 'e' && !device_usable())
        return 0;
    if (getenv("ZSE_SANITIZED"))        /* under a sanitizer only the tests of the backend's host
                                         * code run */
        return cmocka_run_group_tests(((const struct CMUnitTest[]){ cmocka_unit_test(plan),
                                                                    cmocka_unit_test(plan_copies),
                                                                    cmocka_unit_test(ahead),
                                                                    cmocka_unit_test(ahead_fails),
                                                                    cmocka_unit_test(lost),
                                                                    cmocka_unit_test(lost_while_idle) }), NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
