/* t-engine.c - the scheduler against a backend that computes nothing but a hash of the whole prefix, read back through the block
 * table: one key or value in a wrong block, at a wrong position or left over from somebody else changes every later token. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <malloc.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/rng.h"
#include "libcommon/engine/engine.h"

enum { VOCAB = 12, MAX_LEN = 128, EOS = 8, END = 9, LONG = 1 << 16, HIDDEN = 4 };

/* ---- the backend ---- */

struct fake {
    struct backend_options o;
    uint64_t *state;                    /* [n_states] the hash of the prefix that left it behind */
    int32_t *kv;                        /* [n_blocks][16] the token of each position, with LONG where it was rotated by the long factors */
    int long_from;
    int n_forwards, n_computed, fail_at, nan_at;        /* nan_at: the row of logits that is broken */
    int n_rows, largest_batch, largest_step;
};
static struct fake *last_fake;          /* the one opened last, for the tests to look into */

static void *fake_open(const struct model *m, const struct backend_options *o, struct err *e)
{
    (void)e;
    struct fake *f = calloc(1, sizeof *f);
    f->o = *o;
    f->long_from = config_long_from(&m->config);
    f->kv = malloc((size_t)o->n_blocks * 16 * sizeof *f->kv);
    memset(f->kv, 0xff, (size_t)o->n_blocks * 16 * sizeof *f->kv);
    f->state = calloc((size_t)o->n_states + 1, sizeof *f->state);
    f->fail_at = f->nan_at = -1;
    return last_fake = f;
}

static uint64_t hash_next(uint64_t hash, int32_t token)
{
    struct rng r = { hash ^ (uint64_t)(uint32_t)token };
    return rng_u64(&r);
}

static uint64_t fake_hash(const struct fake *f, const struct batch_item *item, int pos)
{
    uint64_t hash = 0;
    for (int i = 0; i <= pos; i++)
        hash = hash_next(hash, f->kv[item->table[i / 16] * 16 + i % 16]);
    return hash;
}

static void logits_of(uint64_t hash, float *logits)
{
    struct rng r = { hash };
    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)(6 * rng_double(&r));
    logits[EOS] -= 0.3f;                   /* answers of some length */
    logits[END] -= 0.3f;
}

static int fake_forward(void *b, const struct batch *batch, float *logits, struct err *e)
{
    struct fake *f = b;
    int n_tokens = 0, n_logits = 0;
    if (f->n_forwards++ == f->fail_at)
        return err_set(e, ERR_DEVICE, "the device fell off the bus");
    for (int i = 0; i < batch->n_items; i++) {
        const struct batch_item *item = &batch->items[i];
        const int is_long = f->long_from && (item->seq_len ? item->seq_len : item->pos + item->n_tokens) >= f->long_from;
        assert_true(item->n_tokens >= 1);
        if (f->o.n_states) {                            /* the state is that of this prefix, and nobody else's */
            assert_in_range(item->state, 0, f->o.n_states - 1);
            if (item->pos)
                assert_true(f->state[item->state] == fake_hash(f, item, item->pos - 1));
            for (int k = 0; k < i; k++)
                assert_int_not_equal(batch->items[k].state, item->state);
        }
        n_tokens += item->n_tokens;
        for (int t = 0; t < item->n_tokens; t++) {
            int pos = item->pos + t;
            assert_in_range(item->table[pos / 16], 0, f->o.n_blocks - 1);
            f->kv[item->table[pos / 16] * 16 + pos % 16] = item->tokens[t] | (is_long ? LONG : 0);
        }
    }
    for (int i = 0; i < batch->n_items; i++) {          /* after all writes: two sequences in one block would show */
        const struct batch_item *item = &batch->items[i];
        if (f->o.n_states)
            f->state[item->state] = fake_hash(f, item, item->pos + item->n_tokens - 1);
        for (int t = item->n_tokens - item->n_logits; t < item->n_tokens; t++, n_logits++) {
            logits_of(fake_hash(f, item, item->pos + t), logits + (size_t)n_logits * VOCAB);
            if (f->n_rows++ == f->nan_at)
                logits[(size_t)n_logits * VOCAB + 5] = NAN;
        }
    }
    for (int i = 0; i < batch->n_items; i++) {
        const struct batch_item *item = &batch->items[i];
        for (int t = 0; t < item->n_hidden; t++) {
            struct rng r = { fake_hash(f, item, item->pos + item->n_tokens - item->n_hidden + t) };
            for (int j = 0; j < HIDDEN; j++)
                item->hidden[t * HIDDEN + j] = (float)(rng_double(&r) - 0.4);
        }
    }
    assert_in_range(n_tokens, 1, f->o.max_tokens);
    f->largest_step = n_tokens > f->largest_step ? n_tokens : f->largest_step;
    assert_true(n_logits <= f->o.max_logits);
    f->n_computed += n_tokens;
    f->largest_batch = batch->n_items > f->largest_batch ? batch->n_items : f->largest_batch;
    return 0;
}

static int fake_copy(void *b, int32_t from, int32_t to, struct err *e)
{
    struct fake *f = b;
    (void)e;
    assert_in_range(from, 0, f->o.n_blocks - 1);
    assert_in_range(to, 0, f->o.n_blocks - 1);
    assert_int_not_equal(from, to);
    memcpy(f->kv + to * 16, f->kv + from * 16, 16 * sizeof *f->kv);
    return 0;
}

static int fake_copy_state(void *b, int from, int to, struct err *e)
{
    struct fake *f = b;
    (void)e;
    assert_in_range(from, 0, f->o.n_states - 1);
    assert_in_range(to, 0, f->o.n_states - 1);
    assert_int_not_equal(from, to);
    f->state[to] = f->state[from];
    return 0;
}

static size_t fake_memory(const void *b) { return (size_t)((const struct fake *)b)->o.n_blocks * 64; }
static const char *fake_describe(const void *b) { (void)b; return "fake"; }
static void fake_close(void *b)
{
    free(((struct fake *)b)->kv);
    free(((struct fake *)b)->state);
    free(b);
}

static const struct backend backend_fake = { .name = "fake", .open = fake_open, .forward = fake_forward, .copy_block = fake_copy, .memory = fake_memory,
                                             .kv_bytes = fake_memory, .describe = fake_describe, .close = fake_close,
                                             .copy_state = fake_copy_state };

/* ---- a model and a tokenizer just large enough ---- */

static unsigned char kinds[64];       /* attention, dense */
static unsigned char hybrid[] = { MIXER_ATTENTION, MIXER_CONV };
static struct model model = { .config = { .recurrent.conv_kernel = 2, .mixer = kinds, .ff = kinds, .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 8, .hidden_size = HIDDEN, .vocab_size = VOCAB, .max_len = MAX_LEN } };
static struct tokenizer *tokenizer;
static void *blob;

/* ids 0..9: a b c, the two bytes of U+00E9, "ab", "cab", " b", two special tokens; 10 and 11 are padding without a token */
static const char tokenizer_json[] =
    "{\"version\":\"1.0\",\"added_tokens\":["
    "{\"id\":8,\"content\":\"<eos>\",\"special\":true,\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false},"
    "{\"id\":9,\"content\":\"<end>\",\"special\":true,\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false}],"
    "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false},"
    "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
    "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
    "\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"\u00c3\":3,\"\u00a9\":4,\"ab\":5,\"cab\":6,\"\u0120b\":7},"
    "\"merges\":[\"a b\",\"c ab\"]}}";

static int setup(void **state)
{
    (void)state;
    struct err e = { 0 };
    size_t size;
    static const char generation[] = "{\"eos_token_id\":[8]}";
    struct tokenizer_files f = { .tokenizer_json = tokenizer_json, .tokenizer_json_size = sizeof tokenizer_json - 1,
                                 .generation_config = generation, .generation_config_size = sizeof generation - 1 };
    if (tokenizer_compile_files(&f, &blob, &size, &e) != 0 || !(tokenizer = tokenizer_open(blob, size, &e))) {
        fprintf(stderr, "%s\n", e.msg);
        return -1;
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tokenizer_close(tokenizer);
    free(blob);
    return 0;
}

static struct engine *open_with(int max_seqs, int max_tokens, int n_blocks, int no_prefix_cache)
{
    struct err e;
    struct engine_options o = { .backend = &backend_fake, .max_len = MAX_LEN, .max_seqs = max_seqs, .max_tokens = max_tokens, .kv_type = KV_F32,
                                .no_prefix_cache = no_prefix_cache, .snapshots = n_blocks % 5 + 1, .snapshot_every = 16 << n_blocks % 3,
                                .kv_bytes = (size_t)n_blocks * 2 * kv_block_bytes(KV_F32, 8) };
    struct engine *g = engine_open(&model, tokenizer, &o, &e);
    if (!g)
        fail_msg("%s", e.msg);
    return g;
}

/* From now on models have a recurrent layer, or not. */
static void set_hybrid(int on)
{
    model.config.n_layers = on ? 2 : 1;
    model.config.mixer = on ? hybrid : kinds;
}

static struct engine *open_engine(int max_seqs, int max_tokens, int n_blocks) { return open_with(max_seqs, max_tokens, n_blocks, 0); }

/* ---- what a request said ---- */

struct answer {
    int32_t ids[MAX_LEN]; int n;
    char text[8 * MAX_LEN]; size_t size;
    enum finish finish;
    int n_calls, n_after_end, stop;
    char error[128];
    int32_t prompt[MAX_LEN]; int n_prompt;              /* prompt_logprobs */
    float prompt_logprob[MAX_LEN], logprob[MAX_LEN];
    struct top_logprob prompt_top[MAX_LEN][4], top[MAX_LEN][4];
    float embedding[HIDDEN]; int n_embedding;
    struct request_stats stats;
    struct request *request;                            /* set by the test, if it wants stats */
};

static void hear(void *user, const struct token_event *ev)
{
    struct answer *a = user;
    a->n_calls++;
    a->n_after_end += a->finish != FINISH_NONE;
    a->stop = ev->stop;
    if (ev->is_prompt) {
        assert_int_equal(a->n, 0);
        assert_int_equal(ev->size, 0);
        if (ev->n_top)
            memcpy(a->prompt_top[a->n_prompt], ev->top, (size_t)ev->n_top * sizeof *ev->top);
        a->prompt_logprob[a->n_prompt] = ev->logprob;
        a->prompt[a->n_prompt++] = ev->id;
        return;
    }
    if (ev->n_top)
        memcpy(a->top[a->n], ev->top, (size_t)ev->n_top * sizeof *ev->top);
    if (ev->id >= 0) {
        a->logprob[a->n] = ev->logprob;
        a->ids[a->n++] = ev->id;
    }
    if (ev->embedding)
        memcpy(a->embedding, ev->embedding, (size_t)(a->n_embedding = ev->n_embedding) * sizeof *a->embedding);
    memcpy(a->text + a->size, ev->text, ev->size);
    a->size += ev->size;
    a->text[a->size] = '\0';
    a->finish = ev->finish;
    if (ev->finish && a->request)
        request_stats(a->request, &a->stats);
    if (ev->error)
        snprintf(a->error, sizeof a->error, "%.100s", ev->error->msg);
}

static struct request_params params(const int32_t *ids, int n, struct answer *a)
{
    struct request_params p = { .ids = ids, .n_ids = n, .sampling = sampling_defaults(), .n_logprobs = -1, .on_token = hear, .user = a };
    p.sampling.temperature = 0;
    memset(a, 0, sizeof *a);
    return p;
}

static void run_to_end(struct engine *g)
{
    struct err e;
    int left;
    for (int i = 0; (left = engine_step(g, &e)) > 0; i++)
        assert_true(i < 100000);
    assert_int_equal(left, 0);
}

static void alone(const struct request_params *p, struct answer *a)
{
    struct err e;
    struct engine *g = open_with(1, 512, MAX_LEN / 16, 1);
    struct request_params own = *p;
    memset(a, 0, sizeof *a);
    own.user = a;
    own.n = 0;
    own.users = NULL;
    own.requests = NULL;
    own.deadline_ns = 0;
    assert_non_null(engine_submit(g, &own, &e));
    run_to_end(g);
    engine_close(g);
}

static void assert_same(const struct answer *a, const struct answer *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, (size_t)a->n * sizeof *a->ids);
    assert_string_equal(a->text, b->text);
    assert_int_equal(a->finish, b->finish);
    assert_int_equal(a->n_after_end, 0);
}

/* ---- tests ---- */

static void assert_all_free(struct engine *g)
{
    struct engine_stats s;
    engine_stats(g, &s);
    assert_int_equal(s.n_free_blocks + s.n_cached_blocks, s.n_blocks);
    assert_int_equal(s.n_running + s.n_waiting, 0);
}

/* ---- a constraint: which tokens may come next depends on all that came ---- */

struct rules { uint64_t hash; uint32_t bits; int n, least; };
static int n_rules;                     /* open ones */

/* One to three of the tokens 0 to 7; after `least` tokens EOS may come, now and then nothing else. */
static void allow(struct rules *c)
{
    struct rng r = { c->hash };
    const int n = 1 + (int)(rng_u64(&r) % 3);
    c->bits = 0;
    for (int i = 0; i < n; i++)
        c->bits |= 1u << rng_u64(&r) % 8;
    if (c->n >= c->least)
        c->bits = 1u << EOS | (rng_u64(&r) % 2 ? c->bits : 0);
}

static const uint32_t *rules_mask(void *state) { return &((struct rules *)state)->bits; }
static int rules_complete(void *state) { return (int)(((struct rules *)state)->bits >> EOS & 1); }

static int rules_accept(void *state, int32_t id)
{
    struct rules *c = state;
    if (!(c->bits >> id & 1))
        return -1;
    c->hash = hash_next(c->hash, id);
    c->n++;
    allow(c);
    return 0;
}

static int rules_forced(void *state, int32_t *ids, int room)
{
    struct rules c = *(struct rules *)state;
    int n = 0;
    /* where there is one token, and sometimes where there are more: text may be cut into tokens in other ways too */
    for (; n < room && n < 7 && ((c.bits & (c.bits - 1)) == 0 || c.hash % 3 == 0) && !(c.bits >> EOS & 1); n++) {
        ids[n] = __builtin_ctz(c.bits);
        rules_accept(&c, ids[n]);
    }
    return n;
}

static void *rules_new(uint64_t seed, int least)
{
    struct rules *c = malloc(sizeof *c);
    *c = (struct rules){ .hash = seed, .least = least };
    allow(c);
    n_rules++;
    return c;
}

static void *rules_fork(void *state)
{
    struct rules *c = malloc(sizeof *c);
    *c = *(struct rules *)state;
    n_rules++;
    return c;
}

static void rules_close(void *state)
{
    free(state);
    n_rules--;
}

static struct constraint rules_of(uint64_t seed, int least)
{
    return (struct constraint){ rules_new(seed, least), rules_mask, rules_accept, rules_forced, rules_fork, rules_close, rules_complete };
}

/* ---- random schedules ---- */

enum { MOST = 3 };                      /* answers to one prompt */

struct job {
    struct request_params p;
    int32_t ids[MAX_LEN];
    struct answer got[MOST];
    void *users[MOST];
    struct request *requests[MOST];
    uint64_t rules; int least;          /* least > 0: constrained */
    int leaves;                         /* steps after which the first is cancelled; -1: never */
};

static void random_job(struct job *j, struct rng *r, int32_t shared[3][MAX_LEN])
{
    int n = 1 + (int)(rng_u64(r) % 90), from = rng_u64(r) % 4 ? (int)(rng_u64(r) % (uint64_t)(n + 1)) : 0;
    memcpy(j->ids, shared[rng_u64(r) % 3], sizeof j->ids);
    for (int i = from; i < n; i++)
        j->ids[i] = (int32_t)(rng_u64(r) % VOCAB);
    if (rng_u64(r) % 3 == 0)
        memcpy(j->ids, shared[0], sizeof j->ids);
    j->p = params(j->ids, n, &j->got[0]);
    memset(j->got, 0, sizeof j->got);
    j->p.max_tokens = (int)(rng_u64(r) % 60);
    j->p.sampling.temperature = rng_u64(r) % 2 ? 0 : 0.9f;
    j->p.sampling.repetition_penalty = rng_u64(r) % 2 ? 1 : 1.3f;
    j->p.sampling.frequency_penalty = rng_u64(r) % 4 ? 0 : 0.5f;
    j->p.sampling.seed = rng_u64(r);
    j->p.ignore_eos = rng_u64(r) % 2;
    j->p.priority = (int)(rng_u64(r) % 7) - 3;
    j->p.n_logprobs = rng_u64(r) % 4 ? -1 : (int)(rng_u64(r) % 5);
    j->p.prompt_logprobs = j->p.n_logprobs >= 0 && rng_u64(r) % 2;
    j->least = rng_u64(r) % 4 ? 0 : 1 + (int)(rng_u64(r) % 40);
    j->rules = rng_u64(r);
    j->leaves = rng_u64(r) % 5 ? -1 : (int)(rng_u64(r) % 30);
    if (rng_u64(r) % 8 == 0) {
        j->p.embed = rng_u64(r) % 2 ? EMBED_MEAN : EMBED_LAST;
        j->p.n_logprobs = -1;
        j->p.prompt_logprobs = j->least = 0;
    } else if (rng_u64(r) % 3 == 0) {
        j->p.n = 2 + (int)(rng_u64(r) % (MOST - 1));
    }
    if (rng_u64(r) % 6 == 0)
        j->p.deadline_ns = clock_ns() + rng_u64(r) % 2000000;
    for (int i = 0; i < MOST; i++)
        j->users[i] = &j->got[i];
    j->p.users = j->users;
    j->p.requests = j->requests;
}

static void submit_job(struct engine *g, struct job *j)
{
    struct err e;
    struct constraint c;
    if (j->least) {
        c = rules_of(j->rules, j->least);
        j->p.constraint = &c;
    }
    if (!engine_submit(g, &j->p, &e))
        fail_msg("%s", e.msg);
    j->p.constraint = NULL;
}

/* Each answer is the one it would have been alone, or the beginning of it where it was cancelled or came to its deadline. */
static void check_job(struct job *j)
{
    static struct answer want;
    for (int i = 0; i < (j->p.n ? j->p.n : 1); i++) {
        struct request_params p = j->p;
        const struct answer *got = &j->got[i];
        struct constraint c;
        p.sampling.seed += (uint64_t)i;
        if (j->least) {
            c = rules_of(j->rules, j->least);
            p.constraint = &c;
            if (p.n_logprobs < 0)
                p.n_logprobs = 0;       /* forced tokens one by one */
        }
        alone(&p, &want);
        assert_int_equal(got->n_after_end, 0);
        assert_int_not_equal(got->finish, FINISH_NONE);
        if (got->finish == FINISH_CANCELLED || got->finish == FINISH_DEADLINE) {
            assert_true(j->leaves >= 0 || p.deadline_ns || j->p.deadline_ns);
            assert_true(got->n <= want.n && got->n_prompt <= want.n_prompt);
            assert_memory_equal(got->ids, want.ids, (size_t)got->n * sizeof *got->ids);
        } else {
            assert_same(got, &want);
            assert_int_equal(got->n_prompt, p.prompt_logprobs ? p.n_ids : 0);
            assert_int_equal(got->n_embedding, p.embed ? HIDDEN : 0);
        }
        assert_memory_equal(got->prompt, p.ids, (size_t)got->n_prompt * sizeof *got->prompt);
        assert_memory_equal(got->prompt_logprob, want.prompt_logprob, (size_t)got->n_prompt * sizeof *got->prompt_logprob);
        if (j->p.n_logprobs >= 0)
            assert_memory_equal(got->logprob, want.logprob, (size_t)got->n * sizeof *got->logprob);
        assert_memory_equal(got->prompt_top, want.prompt_top, (size_t)got->n_prompt * sizeof *got->prompt_top);
        assert_memory_equal(got->top, want.top, (size_t)got->n * sizeof *got->top);
        assert_memory_equal(got->embedding, want.embedding, sizeof *got->embedding * (size_t)got->n_embedding);
    }
}

/* Requests of all kinds come at random times into engines of all sizes. */
static void random_schedules(void)
{
    enum { ROUNDS = 400, N = 14 };
    static struct job jobs[N];
    static int32_t shared[3][MAX_LEN];
    uint64_t preempted = 0, cached = 0, copies = 0, evicted = 0, cut = 0;
    float factors[4] = { 0 };
    for (int round = 0; round < ROUNDS; round++) {
        struct rng r = { (uint64_t)round };
        struct err e;
        struct engine_stats s;
        int n = 0, left = 0, steps[N] = { 0 };
        const int max_seqs = 1 + (int)(rng_u64(&r) % 9), max_tokens = 1 + (int)(rng_u64(&r) % 64), n_blocks = MAX_LEN / 16 + (int)(rng_u64(&r) % 12);
        if (round % 4 == 3) {
            model.config.n_ropes = 1;
            model.config.ropes[0] = (struct rope){ .inv_freq_long = factors, .original_max = 40 };
        }
        for (int i = 0; i < 3 * MAX_LEN; i++)
            shared[i / MAX_LEN][i % MAX_LEN] = (int32_t)(rng_u64(&r) % VOCAB);
        struct engine *g = open_with(max_seqs, max_tokens, n_blocks, round % 5 == 4);
        if (round % 3 == 0)
            assert_int_equal(engine_set_limits(g, &(struct engine_limits){ .max_running = 1 + max_seqs / 2, .chunk = 1 + max_tokens / 3 }, &e), 0);
        while (n < N || left > 0) {
            if (n < N && rng_u64(&r) % 3 == 0) {
                random_job(&jobs[n], &r, shared);
                submit_job(g, &jobs[n++]);
            }
            for (int i = 0; i < n; i++)
                if (steps[i]++ == jobs[i].leaves && jobs[i].got[0].finish == FINISH_NONE)
                    engine_cancel(g, jobs[i].requests[0]);
            assert_int_not_equal(left = engine_step(g, &e), -1);
        }
        assert_all_free(g);
        engine_stats(g, &s);
        preempted += s.preemptions;
        cached += s.cached_tokens;
        copies += s.copies;
        evicted += s.evictions;
        cut += s.cancelled;
        assert_int_equal(s.requests, s.finished + s.cancelled + s.failed);
        assert_int_equal(s.failed, 0);
        engine_close(g);
        for (int i = 0; i < N; i++)
            check_job(&jobs[i]);
        assert_int_equal(n_rules, 0);
        model.config.n_ropes = 0;
    }
    assert_true(preempted > 100 && cached > 1000 && copies > 100 && evicted > 1000 && cut > 50);        /* all of it did happen */
}

static void test_schedules(void **state)
{
    (void)state;
    random_schedules();
}

static void test_hybrid_schedules(void **state)
{
    (void)state;
    set_hybrid(1);
    random_schedules();
    set_hybrid(0);
}

/* What is reused of a recurrent model's prompt: up to the last snapshot. */
static void test_snapshots(void **state)
{
    (void)state;
    enum { N = 100 };
    static int32_t ids[N + 20];
    static struct answer a[4];
    struct err e;
    for (int i = 0; i < N + 20; i++)
        ids[i] = i % 7;
    set_hybrid(1);
    const struct engine_options o = { .backend = &backend_fake, .max_len = MAX_LEN, .max_seqs = 1, .max_tokens = 64, .kv_type = KV_F32, .snapshots = 4, .snapshot_every = 48 };
    struct engine *g = engine_open(&model, tokenizer, &o, &e);
    assert_non_null(g);
    static const struct { int n, first, cached; } cases[] = {
        { N, 0, 0 },
        { N, 0, 96 },           /* its end would be of use, but the last token is computed in any case */
        { N + 10, 0, N },       /* goes on where the first ended */
        { 60, 0, 48 },          /* 59 tokens are known, 48 have a snapshot */
        { 40, 0, 0 },
        { 50, 1, 0 },           /* other tokens */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct request *r;
        struct request_params p = params(ids + cases[i].first, cases[i].n, &a[0]), q = p;
        p.max_tokens = 1;
        p.requests = &r;
        assert_non_null(engine_submit(g, &p, &e));
        a[0].request = r;
        run_to_end(g);
        assert_int_equal(a[0].stats.n_cached, cases[i].cached);
        q.max_tokens = 1;
        alone(&q, &a[1]);
        assert_same(&a[0], &a[1]);
    }
    engine_close(g);
    const struct engine_options bad = { .backend = &backend_fake, .max_len = MAX_LEN, .snapshot_every = 40 };
    assert_null(engine_open(&model, tokenizer, &bad, &e));
    assert_non_null(strstr(e.msg, "every 40 tokens: expected 0 or more, and a multiple of 16"));
    set_hybrid(0);
}

static void test_ends(void **state)
{
    (void)state;
    struct err e;
    static struct answer a, b;
    static const int32_t prompt[] = { 0, 1, 2, 6 };
    struct engine *g = open_engine(2, 64, 16);
    struct request_params p = params(prompt, 4, &a);
    p.ignore_eos = 1;                                   /* runs into the context limit */
    assert_non_null(engine_submit(g, &p, &e));
    run_to_end(g);
    assert_int_equal(a.finish, FINISH_LENGTH);
    assert_int_equal(a.n, MAX_LEN - 4);
    assert_null(strstr(a.text, "<eos>"));               /* special tokens are not shown */
    p.user = &b;                                        /* max_tokens */
    p.max_tokens = 3;
    memset(&b, 0, sizeof b);
    assert_non_null(engine_submit(g, &p, &e));
    run_to_end(g);
    assert_int_equal(b.finish, FINISH_LENGTH);
    assert_int_equal(b.n, 3);
    assert_memory_equal(b.ids, a.ids, 3 * sizeof *a.ids);
    int eos = 0;                                        /* EOS: the first one in the long answer ends this one */
    while (a.ids[eos] != EOS)
        assert_true(++eos < a.n);
    memset(&b, 0, sizeof b);
    p.max_tokens = 0;
    p.ignore_eos = 0;
    assert_non_null(engine_submit(g, &p, &e));
    run_to_end(g);
    assert_int_equal(b.finish, FINISH_STOP);
    assert_int_equal(b.n, eos + 1);
    assert_memory_equal(b.ids, a.ids, (size_t)b.n * sizeof *a.ids);
    int end = 0;                                        /* a stop string that is one special token */
    while (a.ids[end] != END)
        assert_true(++end < a.n);
    const char *stop[] = { "never so", "<end>" };
    memset(&b, 0, sizeof b);
    p.ignore_eos = 1;
    p.stop = stop;
    p.n_stop = 2;
    assert_non_null(engine_submit(g, &p, &e));
    run_to_end(g);
    assert_int_equal(b.finish, FINISH_STOP);
    assert_int_equal(b.n, end + 1);
    assert_int_equal(b.stop, 2);
    assert_all_free(g);
    engine_close(g);
}

/* Stop strings of every kind against the text without one. */
static void test_stop_strings(void **state)
{
    (void)state;
    static const char *const stops[] = { "a", "b", "ab", "abc", "ba", "cabc", "abab", "bcab", "\xc3\xa9", ("\xc3\xa9" "a"), "b\xc3\xa9", " b", "a b", "cab b", "aa", "aab", "never so" };
    struct err e;
    struct rng r = { 11 };
    static struct answer whole, cut;
    int n_found = 0;
    for (int round = 0; round < 60; round++) {
        int32_t prompt[4];
        for (int i = 0; i < 4; i++)
            prompt[i] = (int32_t)(rng_u64(&r) % VOCAB);
        struct request_params p = params(prompt, 4, &whole);
        p.ignore_eos = 1;
        p.max_tokens = 1 + (int)(rng_u64(&r) % 100);
        alone(&p, &whole);
        for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
            struct engine *g = open_engine(1, 512, MAX_LEN / 16);
            p = params(prompt, 4, &cut);
            p.ignore_eos = 1;
            p.max_tokens = whole.n;
            p.stop = &stops[i];
            p.n_stop = 1;
            assert_non_null(engine_submit(g, &p, &e));
            run_to_end(g);
            const char *at = strstr(whole.text, stops[i]);
            size_t size = at ? (size_t)(at - whole.text) : whole.size;
            n_found += at != NULL;
            assert_int_equal(cut.size, size);
            assert_memory_equal(cut.text, whole.text, size);
            assert_int_equal(cut.finish, at ? FINISH_STOP : FINISH_LENGTH);
            assert_true(at ? cut.n <= whole.n : cut.n == whole.n);
            engine_close(g);
        }
    }
    assert_true(n_found > 300);
    /* two at once: the one that begins first ends the answer */
    const char *both[] = { "never so", stops[0] };
    struct request_params p = params((const int32_t[]){ 2 }, 1, &whole);
    p.ignore_eos = 1;
    alone(&p, &whole);
    const char *at = strstr(whole.text, "a");
    assert_non_null(at);
    p.stop = both;
    p.n_stop = 2;
    alone(&p, &cut);
    assert_int_equal(cut.size, at - whole.text);
}

static void test_cancel(void **state)
{
    (void)state;
    struct err e;
    static struct answer a[4], want;
    static const int32_t prompt[] = { 3, 4, 3, 4, 5 };
    struct engine *g = open_engine(2, 64, 16);
    struct request *r[4];
    struct request_params p[4];
    for (int i = 0; i < 4; i++) {
        p[i] = params(prompt, 5 - i, &a[i]);
        p[i].ignore_eos = 1;
        p[i].max_tokens = 20;
        assert_non_null(r[i] = engine_submit(g, &p[i], &e));
    }
    for (int i = 0; i < 5; i++)
        assert_int_equal(engine_step(g, &e), 4);
    engine_cancel(g, r[0]);                             /* one that runs, one that waits */
    engine_cancel(g, r[3]);
    assert_int_equal(a[0].finish, FINISH_NONE);
    assert_int_equal(engine_step(g, &e), 2);
    assert_int_equal(a[0].finish, FINISH_CANCELLED);
    assert_int_equal(a[0].n, 5);
    assert_int_equal(a[3].finish, FINISH_CANCELLED);
    assert_int_equal(a[3].n, 0);
    run_to_end(g);
    for (int i = 1; i < 3; i++) {
        alone(&p[i], &want);
        assert_same(&a[i], &want);
    }
    assert_all_free(g);
    engine_close(g);
}

static struct request *submit(struct engine *g, struct request_params *p, struct answer *a)
{
    struct err e;
    memset(a, 0, sizeof *a);
    p->user = a;
    if (!(a->request = engine_submit(g, p, &e)))
        fail_msg("%s", e.msg);
    return a->request;
}

/* A conversation goes on, is edited, is cut short: what is known of it to the token is not computed again. */
static void test_turns(void **state)
{
    (void)state;
    static struct answer first, second, want;
    int32_t ids[MAX_LEN];
    for (int other_turn = 0; other_turn < 3; other_turn++) {
        struct engine *g = open_engine(1, 512, 2 * MAX_LEN / 16);
        struct request_params p = params((const int32_t[]){ 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2 }, 19, &first);
        int n = 19 + 25;
        p.ignore_eos = 1;
        p.max_tokens = 25;
        submit(g, &p, &first);
        run_to_end(g);
        memcpy(ids, p.ids, 19 * sizeof *ids);
        memcpy(ids + 19, first.ids, 25 * sizeof *ids);
        int same = n - 1;                               /* the last token was never computed */
        if (other_turn == 1)
            ids[same = 21] ^= 1;                        /* the conversation was edited */
        if (other_turn == 2)
            n = 30, same = 29;                          /* cut short: its last token is computed again */
        else
            for (int i = 0; i < 7; i++)
                ids[n++] = i;
        int before = last_fake->n_computed;
        p = params(ids, n, &second);
        p.max_tokens = 10;
        p.ignore_eos = 1;
        submit(g, &p, &second);
        run_to_end(g);
        assert_int_equal(last_fake->n_computed - before, n - same + 9);
        assert_int_equal(second.stats.n_cached, same);
        assert_int_equal(second.stats.n_prompt, n);
        assert_int_equal(second.stats.n_generated, 10);
        assert_true(second.stats.first_token_s >= second.stats.prefill_s && second.stats.prefill_s > 0);
        alone(&p, &want);
        assert_same(&second, &want);
        assert_all_free(g);
        engine_close(g);
    }
}

/* 100 requests with the same 100 tokens before 10 of their own, one after the other and all at once: the shared ones are computed once. */
static void test_shared_prefix(void **state)
{
    (void)state;
    enum { N = 100, SYSTEM = 100, USER = 10 };
    static struct answer a[N], want;
    static int32_t ids[N][SYSTEM + USER];
    struct rng r = { 5 };
    for (int i = 0; i < N; i++)
        for (int j = 0; j < SYSTEM + USER; j++)
            ids[i][j] = j < SYSTEM ? j % 7 : j == SYSTEM ? i % VOCAB : j == SYSTEM + 1 ? i / VOCAB : (int32_t)(rng_u64(&r) % VOCAB);
    for (int at_once = 0; at_once < 2; at_once++) {
        struct engine *g = open_engine(at_once ? N : 1, at_once ? 4096 : 64, 400);
        for (int i = 0; i < N; i++) {
            struct request_params p = params(ids[i], SYSTEM + USER, &a[i]);
            p.max_tokens = 1;
            submit(g, &p, &a[i]);
            if (!at_once)
                run_to_end(g);
        }
        run_to_end(g);
        /* One after the other: the first 100 once, then what differs; users that begin alike share that too.  At once: they share whole blocks. */
        assert_true(last_fake->n_computed <= (at_once ? SYSTEM + USER + (N - 1) * (SYSTEM % 16 + USER) : SYSTEM + N * USER));
        assert_true(last_fake->n_computed >= SYSTEM + N * (USER - 2));
        for (int i = 0; i < N; i++) {
            struct request_params p = params(ids[i], SYSTEM + USER, &want);
            p.max_tokens = 1;
            alone(&p, &want);
            assert_same(&a[i], &want);
        }
        assert_all_free(g);
        engine_close(g);
    }
}

/* Prefixes give way to requests when blocks are short, least recently used first; without a cache there are none. */
static void test_evict(void **state)
{
    (void)state;
    static struct answer a, b, want;
    static int32_t ids[3][MAX_LEN];
    static const struct { int which, cached; } turns[] = { { 0, 0 }, { 0, 63 }, { 1, 0 }, { 0, 63 }, { 2, 0 }, { 1, 0 }, { 2, 63 } };
    for (int i = 0; i < 3 * MAX_LEN; i++)
        ids[i / MAX_LEN][i % MAX_LEN] = i / MAX_LEN + i % 5;
    struct engine *g = open_engine(1, 512, 10);         /* two prompts of 4 blocks and what is needed to go on */
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        struct request_params p = params(ids[turns[i].which], 64, &a);
        p.max_tokens = 2;
        p.ignore_eos = 1;
        submit(g, &p, &a);
        run_to_end(g);
        assert_int_equal(a.stats.n_cached, turns[i].cached);
        alone(&p, &want);
        assert_same(&a, &want);
    }
    assert_all_free(g);
    engine_close(g);
    g = open_with(1, 512, 20, 1);
    for (int i = 0; i < 2; i++) {
        struct request_params p = params(ids[0], 64, &b);
        submit(g, &p, &b);
        run_to_end(g);
        assert_int_equal(b.stats.n_cached, 0);
    }
    engine_close(g);
}

/* Three answers from one prompt: it is computed once, whole blocks exist once, the begun one is copied when somebody writes on. */
static void test_siblings(void **state)
{
    (void)state;
    enum { N = 3, PROMPT = 40 };
    static struct answer a[N], want;
    struct request *requests[N];
    void *users[N] = { &a[0], &a[1], &a[2] };
    int32_t ids[PROMPT];
    struct err e;
    struct engine_stats s;
    for (int i = 0; i < PROMPT; i++)
        ids[i] = i % VOCAB;
    struct engine *g = open_engine(N, 64, 30);
    struct request_params p = params(ids, PROMPT, &a[0]);
    memset(a, 0, sizeof a);
    p.n = N;
    p.users = users;
    p.requests = requests;
    p.sampling.temperature = 1;
    p.sampling.seed = 77;
    p.max_tokens = 12;
    p.ignore_eos = 1;
    const struct request *returned = engine_submit(g, &p, &e);
    assert_ptr_equal(returned, requests[0]);
    for (int i = 0; i < 2; i++)
        assert_int_equal(engine_step(g, &e), N);
    engine_stats(g, &s);
    assert_int_equal(s.n_blocks - s.n_free_blocks, 2 + N);              /* 32 tokens shared, 8 and what follows for each */
    assert_int_equal(s.copies, N - 1);
    run_to_end(g);
    assert_int_equal(last_fake->n_computed, PROMPT + N * 11);
    for (int i = 0; i < N; i++) {
        struct request_params one = p;
        one.sampling.seed += (uint64_t)i;
        alone(&one, &want);
        assert_same(&a[i], &want);
    }
    assert_memory_not_equal(a[0].ids, a[1].ids, sizeof *a[0].ids * 12);
    assert_all_free(g);
    /* the first leaves before the prompt is done: the next one takes it on */
    engine_close(g);
    g = open_engine(N, 7, 30);
    memset(a, 0, sizeof a);
    assert_non_null(engine_submit(g, &p, &e));
    engine_step(g, &e);
    engine_cancel(g, requests[0]);
    run_to_end(g);
    assert_int_equal(a[0].finish, FINISH_CANCELLED);
    assert_int_equal(a[0].n, 0);
    for (int i = 1; i < N; i++) {
        struct request_params one = p;
        one.sampling.seed += (uint64_t)i;
        alone(&one, &want);
        assert_same(&a[i], &want);
    }
    assert_all_free(g);
    engine_close(g);
}

/* Higher priorities first, first come first among equals; and the last in turn gives way when blocks are short. */
static void test_priority(void **state)
{
    (void)state;
    static struct answer a[4];
    static const int priority[4] = { 0, 0, 1, 0 };
    struct err e;
    struct engine_stats s;
    int32_t ids[100];
    struct engine *g = open_engine(1, 512, 16);
    for (int i = 0; i < 4; i++) {
        struct request_params p = params((const int32_t[]){ i, 1, 2 }, 3, &a[i]);
        p.priority = priority[i];
        p.max_tokens = 3;
        p.ignore_eos = 1;
        submit(g, &p, &a[i]);
    }
    static const int order[4] = { 2, 0, 1, 3 };
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 3; j++)
            engine_step(g, &e);
        for (int j = 0; j < 4; j++)
            assert_int_equal(a[order[j]].finish != FINISH_NONE, j <= i);
    }
    engine_close(g);
    for (int i = 0; i < 100; i++)
        ids[i] = i % 5;
    g = open_engine(2, 512, 9);
    struct request_params p = params(ids, 60, &a[0]);
    p.max_tokens = 60;
    p.ignore_eos = 1;
    submit(g, &p, &a[0]);
    for (int i = 0; i < 5; i++)
        engine_step(g, &e);
    ids[0] = 3;
    struct request_params q = params(ids, 100, &a[1]);
    q.priority = 1;
    q.max_tokens = 10;
    q.ignore_eos = 1;
    submit(g, &q, &a[1]);
    engine_step(g, &e);
    engine_stats(g, &s);
    assert_int_equal(s.preemptions, 1);
    assert_int_equal(s.n_waiting, 1);
    assert_int_equal(a[0].n, 5);
    assert_int_equal(a[1].n, 1);
    run_to_end(g);
    ids[0] = 0;
    alone(&p, &a[2]);
    assert_same(&a[0], &a[2]);
    ids[0] = 3;
    alone(&q, &a[2]);
    assert_same(&a[1], &a[2]);
    assert_all_free(g);
    engine_close(g);
}

static void test_deadline(void **state)
{
    (void)state;
    static struct answer a[3], want;
    struct err e;
    struct engine *g = open_engine(1, 64, 8);
    struct request_params p = params((const int32_t[]){ 1, 2, 3 }, 3, &a[0]);
    p.ignore_eos = 1;
    p.max_tokens = 20;
    submit(g, &p, &a[0]);
    p.deadline_ns = 1;                                  /* long ago: ends though another one runs */
    submit(g, &p, &a[1]);
    p.deadline_ns = clock_ns() + (uint64_t)3600 * 1000000000;
    submit(g, &p, &a[2]);
    assert_int_equal(engine_step(g, &e), 2);
    assert_int_equal(a[1].finish, FINISH_DEADLINE);
    assert_int_equal(a[1].n, 0);
    run_to_end(g);
    alone(&p, &want);
    assert_same(&a[0], &want);
    assert_same(&a[2], &want);
    p.deadline_ns = clock_ns() + 2000000;               /* in the middle of its answer */
    p.max_tokens = 0;
    submit(g, &p, &a[0]);
    engine_step(g, &e);
    while (clock_ns() < p.deadline_ns)
        ;
    assert_int_equal(engine_step(g, &e), 0);
    assert_int_equal(a[0].finish, FINISH_DEADLINE);
    assert_int_equal(a[0].n, 1);
    assert_all_free(g);
    engine_close(g);
}

/* Thousands wait; the queue has an end; what is refused leaves no trace. */
static void test_queue(void **state)
{
    (void)state;
    enum { N = 5000 };
    static struct answer a;
    static struct request *r[N];
    struct err e;
    struct engine_stats s;
    struct engine_limits l;
    struct engine *g = open_engine(2, 64, 16);
    struct request_params p = params((const int32_t[]){ 1, 2, 3 }, 3, &a);
    p.on_token = NULL;
    p.max_tokens = 4;
    engine_limits(g, &l);
    l.max_waiting = 3;
    assert_int_equal(engine_set_limits(g, &l, &e), 0);
    for (int i = 0; i < 5; i++)                         /* two run, three wait */
        assert_non_null(engine_submit(g, &p, &e));
    assert_null(engine_submit(g, &p, &e));
    assert_int_equal(e.code, ERR_LIMIT);
    assert_non_null(strstr(e.msg, "at most 3"));
    engine_step(g, &e);
    assert_null(engine_submit(g, &p, &e));
    p.n = 2;
    run_to_end(g);
    p.constraint = &(struct constraint){ rules_new(1, 1), rules_mask, rules_accept, rules_forced, NULL, rules_close, rules_complete };
    assert_null(engine_submit(g, &p, &e));              /* n = 2 needs fork; the state is still ours */
    assert_int_equal(n_rules, 1);
    rules_close(p.constraint->state);
    p.constraint = NULL;
    p.n = 0;
    l.max_waiting = 0;
    assert_int_equal(engine_set_limits(g, &l, &e), 0);
    for (int i = 0; i < N; i++)
        assert_non_null(r[i] = engine_submit(g, &p, &e));
    for (int i = 0; i < N; i += 2)
        engine_cancel(g, r[i]);
    run_to_end(g);
    engine_stats(g, &s);
    assert_int_equal(s.cancelled, N / 2);
    assert_int_equal(s.finished, N / 2 + 5);
    assert_all_free(g);
    static const struct engine_limits wrong[] = { { 0, 0, 0 }, { 3, 0, 0 }, { 1, -1, 0 }, { 1, 0, -1 } };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(engine_set_limits(g, &wrong[i], &e), -1);
    engine_close(g);
}

/* Prompts do not take more of a step than they are given while answers run, and all of it while none does. */
static void test_chunk(void **state)
{
    (void)state;
    static struct answer a, b;
    static int32_t ids[MAX_LEN];
    struct err e;
    struct engine *g = open_engine(2, 64, 16);
    assert_int_equal(engine_set_limits(g, &(struct engine_limits){ .max_running = 2, .chunk = 5 }, &e), 0);
    struct request_params p = params(ids, 100, &a);
    p.ignore_eos = 1;
    submit(g, &p, &a);
    engine_step(g, &e);
    assert_int_equal(last_fake->largest_step, 64);
    engine_step(g, &e);
    assert_int_equal(a.n, 1);
    last_fake->largest_step = 0;
    ids[0] = 1;
    submit(g, &p, &b);
    for (int i = 0; i < 20; i++) {
        assert_int_equal(b.n, 0);
        engine_step(g, &e);
    }
    assert_int_equal(b.n, 1);
    assert_int_equal(a.n, 21);
    assert_int_equal(last_fake->largest_step, 6);
    engine_close(g);
}

/* Against a softmax of the backend's own logits, for the prompt and the answer. */
static void test_logprobs(void **state)
{
    (void)state;
    enum { N = 70 };
    static struct answer a;
    int32_t ids[MAX_LEN];
    struct rng r = { 9 };
    for (int i = 0; i < N; i++)
        ids[i] = (int32_t)(rng_u64(&r) % VOCAB);
    for (int round = 0; round < 2; round++) {           /* the second finds the prefix in the tree, and computes it all the same */
        struct engine *g = open_engine(1, 50, 16);
        for (int i = 0; i <= round; i++) {
            struct request_params p = params(ids, N, &a);
            p.n_logprobs = 3;
            p.prompt_logprobs = 1;
            p.max_tokens = 20;
            p.sampling.temperature = 1.5f;
            p.sampling.presence_penalty = 1;
            submit(g, &p, &a);
            run_to_end(g);
        }
        assert_int_equal(a.n_prompt, N);
        assert_true(isnan(a.prompt_logprob[0]));
        memcpy(ids + N, a.ids, (size_t)a.n * sizeof *ids);
        uint64_t hash = 0;
        for (int i = 0; i + 1 < N + a.n; i++) {
            float x[VOCAB];
            double sum = 0;
            logits_of(hash = hash_next(hash, ids[i]), x);
            for (int j = 0; j < VOCAB; j++)
                sum += exp(x[j]);
            const int next = i + 1;
            const float got = next < N ? a.prompt_logprob[next] : a.logprob[next - N];
            const struct top_logprob *top = next < N ? a.prompt_top[next] : a.top[next - N];
            assert_true(fabs(got - log(exp(x[ids[next]]) / sum)) < 1e-5);
            for (int k = 0; k < 3; k++) {
                int larger = 0;
                for (int j = 0; j < VOCAB; j++)
                    larger += x[j] > x[top[k].id];
                assert_int_equal(larger, k);
                assert_true(fabs(top[k].logprob - log(exp(x[top[k].id]) / sum)) < 1e-5);
            }
        }
        engine_close(g);
    }
}

/* Mean and last state of the prompt, of length 1, whatever the chunks. */
static void test_embed(void **state)
{
    (void)state;
    enum { N = 37 };
    static struct answer a;
    int32_t ids[N];
    double mean[HIDDEN] = { 0 }, last[HIDDEN], length[2] = { 0 };
    uint64_t hash = 0;
    for (int i = 0; i < N; i++) {
        ids[i] = i % VOCAB;
        struct rng r = { hash = hash_next(hash, ids[i]) };
        for (int j = 0; j < HIDDEN; j++)
            mean[j] += last[j] = (float)(rng_double(&r) - 0.4);
    }
    for (int j = 0; j < HIDDEN; j++) {
        length[0] += mean[j] * mean[j];
        length[1] += last[j] * last[j];
    }
    for (int chunk = 5; chunk < 50; chunk += 4) {
        struct engine *g = open_engine(2, chunk, 16);
        for (int which = 0; which < 2; which++) {
            struct request_params p = params(ids, N, &a);
            p.embed = which ? EMBED_LAST : EMBED_MEAN;
            submit(g, &p, &a);
            run_to_end(g);
            assert_int_equal(a.finish, FINISH_STOP);
            assert_int_equal(a.n, 0);
            assert_int_equal(a.n_calls, 1);
            assert_int_equal(a.n_embedding, HIDDEN);
            for (int j = 0; j < HIDDEN; j++)
                assert_true(fabs(a.embedding[j] - (which ? last[j] : mean[j]) / sqrt(length[which])) < 1e-5);
        }
        assert_all_free(g);
        engine_close(g);
    }
}

/* One string and nothing else is allowed; what is not allowed but comes is an error. */
static void test_constraint(void **state)
{
    (void)state;
    static struct answer a, b;
    for (uint64_t seed = 0; seed < 20; seed++) {
        struct engine *g = open_engine(1, 9, 16);
        struct request_params p = params((const int32_t[]){ 1, 2, 3 }, 3, &a);
        struct constraint c = rules_of(seed, 10 + (int)seed), d = c;
        d.state = rules_fork(c.state);
        p.ignore_eos = 1;                               /* a constraint ends the answer all the same */
        p.constraint = &c;
        submit(g, &p, &a);
        run_to_end(g);
        const int with = last_fake->n_forwards;
        p.constraint = &d;
        p.n_logprobs = 0;
        submit(g, &p, &b);
        run_to_end(g);
        assert_same(&a, &b);
        assert_int_equal(a.finish, FINISH_STOP);
        assert_int_equal(a.ids[a.n - 1], EOS);
        assert_true(a.n > 10 + (int)seed);
        assert_true(with < last_fake->n_forwards - with);       /* forced tokens took fewer steps */
        assert_int_equal(n_rules, 0);
        engine_close(g);
    }
}

static void test_refused(void **state)
{
    (void)state;
    struct err e;
    static struct answer a;
    static int32_t ids[MAX_LEN + 1];
    static const char *const empty[] = { "" }, *const broken[] = { "\xc3" };
    struct engine *g = open_engine(1, 64, 8);
    const struct { int n_ids, first, max_tokens; const char *const *stop; float temp; const char *word; } cases[] = {
        { 0, 0, 0, NULL, 0, "empty" }, { MAX_LEN, 0, 0, NULL, 0, "128" }, { MAX_LEN + 1, 0, 0, NULL, 0, "129" }, { 3, VOCAB, 0, NULL, 0, "12" },
        { 3, -1, 0, NULL, 0, "-1" }, { 3, 0, -1, NULL, 0, "max_tokens" }, { 3, 0, 0, empty, 0, "empty" }, { 3, 0, 0, broken, 0, "UTF-8" }, { 3, 0, 0, NULL, -1, "temperature" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct request_params p = params(ids, cases[i].n_ids, &a);
        ids[0] = cases[i].first;
        p.max_tokens = cases[i].max_tokens;
        p.stop = cases[i].stop;
        p.n_stop = cases[i].stop != NULL;
        p.sampling.temperature = cases[i].temp;
        assert_null(engine_submit(g, &p, &e));
        assert_non_null(strstr(e.msg, cases[i].word));
    }
    ids[0] = 0;
    assert_int_equal(engine_step(g, &e), 0);
    assert_int_equal(a.n_calls, 0);
    engine_close(g);
    struct engine_options o = { .backend = &backend_fake, .max_len = MAX_LEN, .kv_bytes = 100 };
    assert_null(engine_open(&model, tokenizer, &o, &e));
    assert_non_null(strstr(e.msg, "KV memory"));
    o = (struct engine_options){ .backend = &backend_fake, .max_len = MAX_LEN + 1 };
    assert_null(engine_open(&model, tokenizer, &o, &e));
    assert_non_null(strstr(e.msg, "at most the model's 128"));
}

/* NaN ends one request, a dead device all that run. */
static void test_failures(void **state)
{
    (void)state;
    struct err e;
    static struct answer a[3], want;
    static const int32_t prompt[] = { 3, 4, 3 };
    struct request_params p[3];
    struct engine *g = open_engine(2, 64, 16);
    for (int i = 0; i < 3; i++) {
        p[i] = params(prompt, 3 - i, &a[i]);
        p[i].max_tokens = 20;
        p[i].ignore_eos = 1;
        assert_non_null(engine_submit(g, &p[i], &e));
    }
    last_fake->nan_at = 7;              /* step 3, second request */
    for (int i = 0; i < 5; i++)
        assert_true(engine_step(g, &e) > 0);
    assert_int_equal(a[1].finish, FINISH_ERROR);
    assert_int_equal(a[1].n, 3);
    assert_non_null(strstr(a[1].error, "NaN"));
    assert_int_equal(a[0].finish, FINISH_NONE);
    last_fake->fail_at = last_fake->n_forwards;
    assert_int_equal(engine_step(g, &e), -1);
    assert_int_equal(e.code, ERR_DEVICE);
    assert_int_equal(a[0].finish, FINISH_ERROR);
    assert_int_equal(a[2].finish, FINISH_ERROR);
    assert_non_null(strstr(a[0].error, "bus"));
    assert_all_free(g);
    memset(&a[0], 0, sizeof a[0]);      /* and the engine goes on */
    assert_non_null(engine_submit(g, &p[0], &e));
    run_to_end(g);
    alone(&p[0], &want);
    assert_same(&a[0], &want);
    engine_close(g);
}

static void test_logits(void **state)
{
    (void)state;
    struct err e;
    static int32_t ids[100];
    static float whole[100 * VOCAB], part[100 * VOCAB];
    for (int i = 0; i < 100; i++)
        ids[i] = i * 7 % VOCAB;
    struct engine *g = open_engine(1, 512, 8), *small = open_engine(1, 13, 8);
    assert_int_equal(engine_logits(g, ids, 100, 0, whole, &e), 0);
    assert_int_equal(engine_logits(small, ids, 100, 0, part, &e), 0);
    assert_memory_equal(whole, part, sizeof whole);
    for (int from = 0; from < 100; from += 9) {
        assert_int_equal(engine_logits(small, ids, 100, from, part, &e), 0);
        assert_memory_equal(whole + from * VOCAB, part, (size_t)(100 - from) * VOCAB * sizeof *part);
    }
    ids[99] = VOCAB;
    assert_int_equal(engine_logits(g, ids, 100, 0, part, &e), -1);
    assert_all_free(g);
    engine_close(g);
    engine_close(small);
}

/* The sampler hears of every token of the prompt and of the answer. */
static void test_penalties(void **state)
{
    (void)state;
    static struct answer a;
    const struct logit_bias bias[] = { { 0, 9 }, { 1, 8 } };            /* more than the backend's logits differ */
    struct request_params p = params((const int32_t[]){ 0, 2, 2 }, 3, &a);
    p.max_tokens = 6;
    p.ignore_eos = 1;
    p.sampling.bias = bias;
    p.sampling.n_bias = 1;
    alone(&p, &a);
    for (int i = 0; i < 6; i++)
        assert_int_equal(a.ids[i], 0);
    p.sampling.presence_penalty = 2;
    p.sampling.frequency_penalty = 2;                                   /* 0 is down by 4, 6, 8, 10 ... */
    p.sampling.n_bias = 2;
    alone(&p, &a);
    int n[2] = { 0 };
    for (int i = 0; i < 6; i++)
        n[0] += a.ids[i] == 0, n[1] += a.ids[i] == 1;
    assert_in_range(n[0], 1, 5);
    assert_in_range(n[1], 1, 5);
    p.sampling.presence_penalty = p.sampling.frequency_penalty = 0;
    p.sampling.repetition_penalty = 20;                                 /* 0 stands in the prompt: 15 / 20 */
    p.sampling.n_bias = 1;
    p.max_tokens = 1;
    alone(&p, &a);
    assert_int_not_equal(a.ids[0], 0);
}

static void test_no_allocation(void **state)
{
    (void)state;
    struct err e;
    static struct answer a;
    struct engine *g = open_engine(1, 64, 8);
    struct request_params p = params((const int32_t[]){ 1, 2 }, 2, &a);
    const char *stop = "never so";
    p.ignore_eos = 1;
    p.stop = &stop;
    p.n_stop = 1;
    p.sampling.temperature = 1;
    p.sampling.repetition_penalty = 1.1f;
    assert_non_null(engine_submit(g, &p, &e));
    for (int i = 0; i < 20; i++)
        assert_int_equal(engine_step(g, &e), 1);
    size_t before = mallinfo2().uordblks;
    for (int i = 0; i < 80; i++)
        assert_int_equal(engine_step(g, &e), 1);
    assert_int_equal(mallinfo2().uordblks, before);
    engine_close(g);
}

/* LongRoPE: the answer is that of sequences computed with one kind of factors from their first token on, also where it grows over the
 * limit, where a prompt comes in pieces, and where a conversation goes on beyond it. */
static void test_long_rope(void **state)
{
    (void)state;
    enum { ORIGINAL = 40, N = 30, MORE = 25 };
    static struct answer a, b, want;
    static int32_t ids[MAX_LEN];
    float factors[4] = { 0 };
    struct rng r = { 23 };
    model.config.n_ropes = 1;
    model.config.ropes[0] = (struct rope){ .inv_freq_long = factors, .original_max = ORIGINAL };
    for (int i = 0; i < MAX_LEN; i++)
        ids[i] = (int32_t)(rng_u64(&r) % VOCAB);
    struct engine *g = open_engine(2, 7, 64);
    struct request_params p = params(ids, N, &a);
    p.max_tokens = MORE;
    p.ignore_eos = 1;
    submit(g, &p, &a);
    run_to_end(g);
    assert_int_equal(a.n, MORE);
    assert_int_equal(last_fake->n_computed, N + MORE - 1 + ORIGINAL);   /* at 41 tokens the 40 before are computed again */
    memcpy(ids + N, a.ids, sizeof *ids * MORE);
    for (int i = 0; i < MORE; i++) {                                    /* each token as the first of an answer of its own */
        struct request_params one = params(ids, N + i, &want);
        one.max_tokens = 1;
        alone(&one, &want);
        assert_int_equal(want.ids[0], a.ids[i]);
    }
    /* up to 40 tokens there are short rotations, of N + MORE tokens long ones */
    static const struct { int n, cached; } turns[] = { { 60, N + MORE - 1 }, { 41, 40 }, { 35, 34 }, { 40, 39 }, { 70, 60 } };
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        struct request_params q = params(ids, turns[i].n, &b);
        q.max_tokens = 1;
        submit(g, &q, &b);
        run_to_end(g);
        assert_int_equal(b.stats.n_cached, turns[i].cached);
        alone(&q, &want);
        assert_same(&b, &want);
    }
    engine_close(g);
    model.config.n_ropes = 0;
}

/* Activations of a step stay within 24 MB or so: a large model gets smaller steps, down to 32 tokens; what the caller wants counts. */
static void test_step_size(void **state)
{
    (void)state;
    static const struct { int hidden, heads, kv_heads, mlp, asked, least, most; } cases[] = {
        { 576, 9, 3, 1536, 0, 512, 512 }, { 1536, 12, 2, 8960, 0, 256, 384 }, { 8192, 64, 8, 28672, 0, 32, 96 }, { 1 << 20, 64, 8, 1 << 22, 0, 32, 32 },
        { 8192, 64, 8, 28672, 512, 512, 512 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e;
        struct model large = model;
        struct engine_options o = { .backend = &backend_fake, .n_threads = 2, .max_len = 64, .max_tokens = cases[i].asked };
        large.config.hidden_size = cases[i].hidden;
        large.config.n_heads = cases[i].heads;
        large.config.n_kv_heads = cases[i].kv_heads;
        large.config.head_dim = 128;
        large.config.intermediate_size = cases[i].mlp;
        struct engine *g = engine_open(&large, tokenizer, &o, &e);
        assert_non_null(g);
        assert_in_range(last_fake->o.max_tokens, cases[i].least, cases[i].most);
        size_t floats = 2 * (size_t)cases[i].hidden + 256 * (size_t)(cases[i].heads + cases[i].kv_heads) + (size_t)cases[i].mlp;
        if (!cases[i].asked && last_fake->o.max_tokens > 32)
            assert_true((size_t)last_fake->o.max_tokens * floats * sizeof(float) <= 24 << 20);
        engine_close(g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schedules), cmocka_unit_test(test_hybrid_schedules), cmocka_unit_test(test_snapshots), cmocka_unit_test(test_ends), cmocka_unit_test(test_stop_strings), cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_turns), cmocka_unit_test(test_shared_prefix), cmocka_unit_test(test_evict), cmocka_unit_test(test_siblings),
        cmocka_unit_test(test_priority), cmocka_unit_test(test_deadline), cmocka_unit_test(test_queue), cmocka_unit_test(test_chunk),
        cmocka_unit_test(test_embed), cmocka_unit_test(test_constraint), cmocka_unit_test(test_refused), cmocka_unit_test(test_failures),
        cmocka_unit_test(test_logits), cmocka_unit_test(test_logprobs), cmocka_unit_test(test_penalties), cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_long_rope), cmocka_unit_test(test_step_size),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
