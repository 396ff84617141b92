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

#include "libcommon/base/rng.h"
#include "libcommon/engine/engine.h"

enum { VOCAB = 12, MAX_LEN = 128, EOS = 8, END = 9, LONG = 1 << 16 };

/* ---- the backend ---- */

struct fake {
    struct backend_options o;
    int32_t *kv;                        /* [n_blocks][16] the token of each position, with LONG where it was rotated by the long factors */
    int long_from;
    int n_forwards, n_computed, fail_at, nan_at;        /* nan_at: the row of logits that is broken */
    int n_rows, largest_batch;
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
    f->fail_at = f->nan_at = -1;
    return last_fake = f;
}

static void fake_logits(const struct fake *f, const struct batch_item *item, int pos, float *logits)
{
    uint64_t hash = 0;
    for (int i = 0; i <= pos; i++) {
        struct rng r = { hash ^ (uint64_t)(uint32_t)f->kv[item->table[i / 16] * 16 + i % 16] };
        hash = rng_u64(&r);
    }
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
        n_tokens += item->n_tokens;
        for (int t = 0; t < item->n_tokens; t++) {
            int pos = item->pos + t;
            assert_in_range(item->table[pos / 16], 0, f->o.n_blocks - 1);
            f->kv[item->table[pos / 16] * 16 + pos % 16] = item->tokens[t] | (is_long ? LONG : 0);
        }
    }
    for (int i = 0; i < batch->n_items; i++) {          /* after all writes: two sequences in one block would show */
        const struct batch_item *item = &batch->items[i];
        for (int t = item->n_tokens - item->n_logits; t < item->n_tokens; t++, n_logits++) {
            fake_logits(f, item, item->pos + t, logits + (size_t)n_logits * VOCAB);
            if (f->n_rows++ == f->nan_at)
                logits[(size_t)n_logits * VOCAB + 5] = NAN;
        }
    }
    assert_in_range(n_tokens, 1, f->o.max_tokens);
    assert_true(n_logits <= f->o.max_logits);
    f->n_computed += n_tokens;
    f->largest_batch = batch->n_items > f->largest_batch ? batch->n_items : f->largest_batch;
    return 0;
}

static size_t fake_memory(const void *b) { return (size_t)((const struct fake *)b)->o.n_blocks * 64; }
static const char *fake_describe(const void *b) { (void)b; return "fake"; }
static void fake_close(void *b)
{
    free(((struct fake *)b)->kv);
    free(b);
}

static const struct backend backend_fake = { .name = "fake", .open = fake_open, .forward = fake_forward, .memory = fake_memory,
                                             .kv_bytes = fake_memory, .describe = fake_describe, .close = fake_close };

/* ---- a model and a tokenizer just large enough ---- */

static struct model model = { .config = { .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 8, .vocab_size = VOCAB, .max_len = MAX_LEN } };
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

static struct engine *open_engine(int max_seqs, int max_tokens, int n_blocks)
{
    struct err e;
    struct engine_options o = { .backend = &backend_fake, .max_len = MAX_LEN, .max_seqs = max_seqs, .max_tokens = max_tokens, .kv_type = KV_F32,
                                .kv_bytes = (size_t)n_blocks * 2 * kv_block_bytes(KV_F32, 8) };
    struct engine *g = engine_open(&model, tokenizer, &o, &e);
    if (!g)
        fail_msg("%s", e.msg);
    return g;
}

/* ---- what a request said ---- */

struct answer {
    int32_t ids[MAX_LEN]; int n;
    char text[8 * MAX_LEN]; size_t size;
    enum finish finish;
    int n_calls, n_after_end;
    char error[128];
};

static void hear(void *user, const struct token_event *ev)
{
    struct answer *a = user;
    a->n_calls++;
    a->n_after_end += a->finish != FINISH_NONE;
    if (ev->id >= 0)
        a->ids[a->n++] = ev->id;
    memcpy(a->text + a->size, ev->text, ev->size);
    a->size += ev->size;
    a->text[a->size] = '\0';
    a->finish = ev->finish;
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
    struct engine *g = open_engine(1, 512, MAX_LEN / 16);
    struct request_params own = *p;
    memset(a, 0, sizeof *a);
    own.user = a;
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
    assert_int_equal(s.n_free_blocks, s.n_blocks);
    assert_int_equal(s.n_running + s.n_waiting, 0);
}

/* Requests come at random times into engines of all sizes; each must answer as if it were alone. */
static void test_schedules(void **state)
{
    (void)state;
    static const struct { int max_seqs, max_tokens, n_blocks; } shapes[] = { { 1, 3, 8 }, { 4, 4, 8 }, { 5, 16, 11 }, { 8, 40, 9 }, { 16, 512, 128 } };
    enum { N = 40 };
    struct rng r = { 3 };
    int preempted = 0;
    for (size_t shape = 0; shape < sizeof shapes / sizeof *shapes; shape++) {
        struct engine *g = open_engine(shapes[shape].max_seqs, shapes[shape].max_tokens, shapes[shape].n_blocks);
        struct request_params p[N];
        static struct answer got[N], want;
        static int32_t ids[N][MAX_LEN];
        struct err e;
        int submitted = 0, needed = 0, left = 1;
        while (submitted < N || left > 0) {
            if (submitted < N && rng_u64(&r) % 3 == 0) {
                int i = submitted++, n = 1 + (int)(rng_u64(&r) % 90);
                for (int j = 0; j < n; j++)
                    ids[i][j] = (int32_t)(rng_u64(&r) % VOCAB);
                p[i] = params(ids[i], n, &got[i]);
                p[i].max_tokens = (int)(rng_u64(&r) % 60);
                p[i].sampling.temperature = rng_u64(&r) % 2 ? 0 : 0.9f;
                p[i].sampling.repetition_penalty = rng_u64(&r) % 2 ? 1 : 1.3f;
                p[i].sampling.seed = rng_u64(&r);
                p[i].ignore_eos = rng_u64(&r) % 2;
                assert_non_null(engine_submit(g, &p[i], &e));
            }
            assert_int_not_equal(left = engine_step(g, &e), -1);
        }
        int computed = last_fake->n_computed;
        if (shapes[shape].max_seqs > 1)
            assert_true(last_fake->largest_batch > 1);
        for (int i = 0; i < N; i++) {
            alone(&p[i], &want);
            assert_same(&got[i], &want);
            assert_int_equal(got[i].n_calls, got[i].n);
            needed += p[i].n_ids + got[i].n - 1;
        }
        assert_true(computed >= needed);
        preempted += computed > needed;
        assert_all_free(g);
        engine_close(g);
    }
    assert_true(preempted >= 2);        /* the small pools did run out */
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
    const char *stop = "<end>";
    memset(&b, 0, sizeof b);
    p.ignore_eos = 1;
    p.stop = &stop;
    p.n_stop = 1;
    assert_non_null(engine_submit(g, &p, &e));
    run_to_end(g);
    assert_int_equal(b.finish, FINISH_STOP);
    assert_int_equal(b.n, end + 1);
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

static void test_continue(void **state)
{
    (void)state;
    struct err e;
    static struct answer first, second, want;
    int32_t ids[MAX_LEN], n;
    struct request_stats s;
    for (int other_turn = 0; other_turn < 3; other_turn++) {
        struct engine *g = open_engine(1, 512, MAX_LEN / 16);
        struct request_params p = params((const int32_t[]){ 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2 }, 19, &first);
        p.keep = p.ignore_eos = 1;
        p.max_tokens = 25;
        struct request *r = engine_submit(g, &p, &e);
        assert_non_null(r);
        run_to_end(g);
        const int32_t *held = request_ids(r, &n);
        assert_int_equal(n, 19 + 25);
        assert_memory_equal(held + 19, first.ids, 25 * sizeof *held);
        memcpy(ids, held, (size_t)n * sizeof *ids);
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
        p.keep = 1;
        p.max_tokens = 10;
        p.ignore_eos = 1;
        p.max_tokens = 1000;
        assert_null(engine_continue(g, r, &(struct request_params){ .ids = ids, .n_ids = 0 }, &e));   /* refused: r is still there */
        p.max_tokens = 10;
        assert_non_null(r = engine_continue(g, r, &p, &e));
        run_to_end(g);
        assert_int_equal(last_fake->n_computed - before, n - same + 9);
        request_stats(r, &s);
        assert_int_equal(s.n_cached, same);
        assert_int_equal(s.n_prompt, n);
        assert_int_equal(s.n_generated, 10);
        assert_true(s.first_token_s >= s.prefill_s && s.prefill_s > 0);
        alone(&p, &want);
        assert_same(&second, &want);
        engine_forget(g, r);
        assert_all_free(g);
        engine_close(g);
    }
}

/* A kept conversation gives way when blocks are short, and is computed again when it goes on. */
static void test_evict_kept(void **state)
{
    (void)state;
    struct err e;
    static struct answer a, b, c, want;
    static int32_t ids[MAX_LEN];
    struct request_stats s;
    int n;
    struct engine *g = open_engine(2, 512, 8);
    struct request_params p = params(ids, 60, &a);
    p.keep = p.ignore_eos = 1;
    p.max_tokens = 20;
    struct request *kept = engine_submit(g, &p, &e);
    run_to_end(g);
    struct request_params q = params(ids, 100, &b);
    q.max_tokens = 20;
    q.ignore_eos = 1;
    assert_non_null(engine_submit(g, &q, &e));
    run_to_end(g);
    alone(&q, &want);
    assert_same(&b, &want);
    const int32_t *held = request_ids(kept, &n);
    struct request_params again = params(held, n, &c);
    again.max_tokens = 5;
    again.keep = 1;
    again.ignore_eos = 1;
    static int32_t copy[MAX_LEN];
    memcpy(copy, held, (size_t)n * sizeof *copy);
    again.ids = copy;
    assert_non_null(kept = engine_continue(g, kept, &again, &e));
    run_to_end(g);
    request_stats(kept, &s);
    assert_int_equal(s.n_cached, 0);
    alone(&again, &want);
    assert_same(&c, &want);
    engine_close(g);                    /* with a kept request: freed, as the leak checker of the ASan build sees */
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
    struct err e;
    struct request_stats s;
    struct rng r = { 23 };
    model.config.n_ropes = 1;
    model.config.ropes[0] = (struct rope){ .inv_freq_long = factors, .original_max = ORIGINAL };
    for (int i = 0; i < MAX_LEN; i++)
        ids[i] = (int32_t)(rng_u64(&r) % VOCAB);
    struct engine *g = open_engine(2, 7, 16);
    struct request_params p = params(ids, N, &a);
    p.max_tokens = MORE;
    p.ignore_eos = 1;
    p.keep = 1;
    struct request *kept = engine_submit(g, &p, &e);
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
    static const struct { int n, cached; } turns[] = { { 60, N + MORE - 1 }, { 41, 40 }, { 35, 0 }, { 38, 35 }, { 70, 0 } };
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        struct request_params q = params(ids, turns[i].n, &b);
        q.max_tokens = 1;
        q.keep = 1;
        assert_non_null(kept = engine_continue(g, kept, &q, &e));
        run_to_end(g);
        request_stats(kept, &s);
        assert_int_equal(s.n_cached, turns[i].cached);
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
        cmocka_unit_test(test_schedules), cmocka_unit_test(test_ends), cmocka_unit_test(test_stop_strings), cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_continue), cmocka_unit_test(test_evict_kept), cmocka_unit_test(test_refused), cmocka_unit_test(test_failures),
        cmocka_unit_test(test_logits), cmocka_unit_test(test_penalties), cmocka_unit_test(test_no_allocation),
        cmocka_unit_test(test_long_rope), cmocka_unit_test(test_step_size),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
