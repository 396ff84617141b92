/* engine_fake.h - for tests of the scheduler: a backend whose only computation is a hash of the
 * whole prefix, which it reads back through the block table.  A key or value in a wrong block, at a
 * wrong position or left over from another sequence changes every later token. */
#ifndef ZSE_TESTS_ENGINE_FAKE_H
#define ZSE_TESTS_ENGINE_FAKE_H

#include <stdarg.h>
#include <stddef.h>
#include <sched.h>
#include <setjmp.h>
#include <stdatomic.h>
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

enum { FAKE_ITEMS = 16, FAKE_TOKENS = 64 };
/* The calls of the backend, in the order in which a step makes them.  Each kind can fail once, at
 * call number call[].at (from 0 on), or at that call and all later ones. */
enum fake_call { FAKE_FORWARD, FAKE_BEGIN, FAKE_END, FAKE_CALLS };
/* A step that was begun.  It has copies of the whole batch, which the caller may free before the
 * step runs. */
struct fake_step {
    struct batch_item item[FAKE_ITEMS];
    struct draw draw[FAKE_ITEMS];
    int32_t token[FAKE_ITEMS][FAKE_TOKENS], table[FAKE_ITEMS][MAX_LEN / 16 + 1];
    int n, has_run;
};

struct fake {
    struct backend_options o;
    struct fake_step begun[2]; int n_begun;
    int32_t drawn[FAKE_ITEMS]; int n_drawn;             /* tokens drawn by the last step that ran;
                                                         * n_drawn 0: it drew none */
    int n_lookahead, n_undrawn;                             /* steps begun while another one ran;
                                                             * rows for which no token was drawn */
    uint64_t *state;                    /* [n_states] the hash of the prefix after which the state was saved */
    /* [n_blocks][16] the token of each position, with LONG where it was rotated by the long
     * factors */
    int32_t *kv;
    int32_t *window_kv; int window;     /* window_kv: the same for window blocks; window: number of
                                         * tokens that a token attends to */
    int long_from;
    int n_computed, nan_at;             /* nan_at: number of the row of logits that is NaN */
    int is_draft;                       /* a draft model, whose logits differ from the model's for
                                         * some tokens */
    uint64_t nan_hash;                  /* the row of logits after the prefix with this hash is NaN; 0: none */
    /* for each kind of call: the number of calls so far; the number of the call that fails, -1:
     * none; 1: all later calls fail, too */
    struct { int n, at, for_good; } call[FAKE_CALLS];
    int n_rows, largest_batch, largest_step, n_dropped_blocks, n_dropped_states;
};
static struct fake *last_fake __attribute__((unused));          /* the one opened last, for the tests to look into */

/* a draft model that agrees with the model except for some tokens, and one that always agrees */
static struct model fake_draft, fake_twin __attribute__((unused));

static inline void *fake_open(const struct model *m, const struct backend_options *o, struct err *e)
{
    (void)e;
    struct fake *f = calloc(1, sizeof *f);
    f->o = *o;
    f->is_draft = m == &fake_draft;
    f->long_from = config_long_from(&m->config);
    f->kv = malloc((size_t)o->n_blocks * 16 * sizeof *f->kv);
    memset(f->kv, 0xff, (size_t)o->n_blocks * 16 * sizeof *f->kv);
    f->window = o->n_window_blocks ? config_window(&m->config, o->window) : 0;
    f->window_kv = malloc(((size_t)o->n_window_blocks + 1) * 16 * sizeof *f->kv);
    memset(f->window_kv, 0xff, ((size_t)o->n_window_blocks + 1) * 16 * sizeof *f->kv);
    f->state = calloc((size_t)o->n_states + 1, sizeof *f->state);
    f->nan_at = -1;
    for (int i = 0; i < FAKE_CALLS; i++)
        f->call[i].at = -1;
    return last_fake = f;
}

/* Whether this call fails: it is the chosen one, or a later one of a device that is lost. */
static inline int fake_fails(struct fake *f, enum fake_call what, struct err *e)
{
    int fails = f->call[what].n++ == f->call[what].at;
    for (int i = 0; i < FAKE_CALLS; i++)
        fails |= f->call[i].for_good && f->call[i].at >= 0 && f->call[i].n > f->call[i].at;
    return fails ? err_set(e, ERR_DEVICE, "the device fell off the bus") : 0;
}

static inline uint64_t hash_next(uint64_t hash, int32_t token)
{
    struct rng r = { hash ^ (uint64_t)(uint32_t)token };
    return rng_u64(&r);
}

static inline uint64_t fake_hash(const struct fake *f, const struct batch_item *item, int pos)
{
    uint64_t hash = 0;
    for (int i = 0; i <= pos; i++)
        hash = hash_next(hash, f->kv[item->table[i / 16] * 16 + i % 16]);
    return hash;
}

static inline void logits_of(uint64_t hash, float *logits)
{
    struct rng r = { hash };
    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)(6 * rng_double(&r));
    logits[EOS] -= 0.3f;                   /* answers of some length */
    logits[END] -= 0.3f;
}

static inline void fake_compute(struct fake *f, const struct batch *batch, float *logits)
{
    int n_tokens = 0, n_logits = 0;
    for (int i = 0; i < batch->n_items; i++) {
        const struct batch_item *item = &batch->items[i];
        const int is_long = f->long_from && (item->seq_len ? item->seq_len : item->pos + item->n_tokens) >=
            f->long_from;
        assert_true(item->n_tokens >= 1);
        if (f->o.n_states) {                            /* check that the state belongs to exactly
                                                         * this prefix */
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
            if (f->window)
                assert_in_range(item->window_table[pos / 16], 0, f->o.n_window_blocks - 1);
            if (f->window)
                f->window_kv[item->window_table[pos / 16] * 16 + pos % 16] = item->tokens[t] | (is_long ? LONG : 0);
        }
    }
    for (int i = 0; f->window && i < batch->n_items; i++) {     /* a window block must hold the same
                                                                 * tokens as the block itself */
        const struct batch_item *item = &batch->items[i];
        const int first = item->pos - f->window + 1;
        for (int pos = 0; pos < item->pos + item->n_tokens; pos++)
            if (pos >= first || pos < f->o.sinks)
                assert_int_equal(f->window_kv[item->window_table[pos / 16] * 16 + pos % 16],
                             f->kv[item->table[pos / 16] * 16 + pos % 16]);
    }
    for (int i = 0; i < batch->n_items; i++) {          /* after all writes, so that a block shared
                                                         * by two sequences is noticed */
        const struct batch_item *item = &batch->items[i];
        if (f->o.n_states)
            f->state[item->state] = fake_hash(f, item, item->pos + item->n_tokens - 1);
        for (int t = item->n_tokens - item->n_logits; t < item->n_tokens; t++, n_logits++) {
            const uint64_t hash = fake_hash(f, item, item->pos + t);
            logits_of(f->is_draft && hash % 4 == 0 ? hash + 1 : hash, logits + (size_t)n_logits * VOCAB);
            if (f->n_rows++ == f->nan_at || (f->nan_hash && hash == f->nan_hash))
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
}

/* ---- the fake backend as a device: steps are begun, and run as late as possible ---- */

/* The token with the largest logit.  With a temperature, or if a logit is NaN, no token is drawn
 * (-1), so that the engine requests the logits. */
static inline int32_t fake_draw(const struct draw *d, const float *logits)
{
    int best = d->temperature > 0 || isnan(logits[0]) ? -1 : 0;
    for (int i = 1; i < VOCAB && best >= 0; i++)
        best = isnan(logits[i]) ? -1 : logits[i] > logits[best] ? i : best;
    return best;
}

static inline void fake_run(struct fake *f, struct fake_step *s)
{
    static float logits[FAKE_ITEMS * VOCAB];
    if (s->has_run)
        return;
    s->has_run = 1;
    for (int i = 0; i < s->n; i++) {
        struct batch_item *it = &s->item[i];
        it->table = s->table[i];
        if (!it->tokens) {
            assert_in_range(it->follows, 0, f->n_drawn - 1);
            s->token[i][0] = f->drawn[it->follows] < 0 ? 0 : f->drawn[it->follows];
        }
        it->tokens = s->token[i];
    }
    fake_compute(f, &(struct batch){ s->item, s->n }, logits);
    for (int i = 0; i < s->n; i++)
        f->n_undrawn += (f->drawn[i] = s->draw[i].id = fake_draw(&s->draw[i], logits + i * VOCAB)) < 0;
    f->n_drawn = s->n;
}

static inline void fake_run_begun(struct fake *f)
{
    for (int i = 0; i < f->n_begun; i++)
        fake_run(f, &f->begun[i]);
}

static inline int fake_begin(void *b, const struct batch *batch, struct err *e)
{
    struct fake *f = b;
    struct fake_step *s = &f->begun[f->n_begun];
    if (fake_fails(f, FAKE_BEGIN, e) < 0)
        return -1;
    assert_true(f->n_begun < 2 && batch->n_items <= FAKE_ITEMS && f->o.n_states == 0);
    if (f->n_begun == 1 && f->n_lookahead % 16 == 15) {     /* not every time */
        f->n_lookahead++;
        return 0;
    }
    s->n = batch->n_items;
    s->has_run = 0;
    for (int i = 0; i < s->n; i++) {
        const struct batch_item *it = &batch->items[i];
        assert_true(it->draw && it->n_logits == 1 && it->n_hidden == 0 && it->n_tokens <= FAKE_TOKENS);
        s->item[i] = *it;
        s->draw[i] = *it->draw;
        if (it->tokens)
            memcpy(s->token[i], it->tokens, (size_t)it->n_tokens * sizeof *it->tokens);
        else
            f->n_lookahead += i == 0;
        memcpy(s->table[i], it->table, (size_t)((it->pos + it->n_tokens - 1) / 16 + 1) * sizeof *it->table);
    }
    f->n_begun++;
    return 1;
}

static inline int fake_end(void *b, const struct batch *batch, struct err *e)
{
    struct fake *f = b;
    assert_true(f->n_begun > 0);
    const int rc = fake_fails(f, FAKE_END, e);
    fake_run(f, &f->begun[0]);
    for (int i = 0; rc == 0 && batch && i < batch->n_items; i++)
        batch->items[i].draw->id = f->begun[0].draw[i].id;
    f->begun[0] = f->begun[1];
    f->n_begun--;
    return rc;
}

static inline int fake_forward(void *b, const struct batch *batch, float *logits, struct err *e)
{
    struct fake *f = b;
    fake_run_begun(f);
    f->n_drawn = 0;
    for (int i = 0; i < batch->n_items; i++)
        assert_non_null(batch->items[i].tokens);
    if (fake_fails(f, FAKE_FORWARD, e) < 0)
        return -1;
    fake_compute(f, batch, logits);
    return 0;
}

/* The tokens of a block or window block. */
static inline int32_t *fake_block(const struct fake *f, int32_t block)
{
    assert_in_range(block, 0, f->o.n_blocks + f->o.n_window_blocks - 1);
    return block < f->o.n_blocks ? f->kv + block * 16 : f->window_kv + (block - f->o.n_blocks) * 16;
}

static inline int fake_copy(void *b, int32_t from, int32_t to, struct err *e)
{
    struct fake *f = b;
    (void)e;
    fake_run_begun(f);
    assert_int_not_equal(from, to);
    assert_int_equal(from < f->o.n_blocks, to < f->o.n_blocks);
    memcpy(fake_block(f, to), fake_block(f, from), 16 * sizeof *f->kv);
    return 0;
}

static inline int fake_copy_state(void *b, int from, int to, struct err *e)
{
    struct fake *f = b;
    (void)e;
    assert_in_range(from, 0, f->o.n_states - 1);
    assert_in_range(to, 0, f->o.n_states - 1);
    assert_int_not_equal(from, to);
    f->state[to] = f->state[from];
    return 0;
}

static inline void fake_drop_block(void *b, int32_t block)
{
    struct fake *f = b;
    fake_run_begun(f);
    memset(fake_block(f, block), 0, 16 * sizeof *f->kv);
    f->n_dropped_blocks++;
}

static inline void fake_drop_state(void *b, int state)
{
    struct fake *f = b;
    assert_in_range(state, 0, f->o.n_states - 1);
    f->state[state] = 0;
    f->n_dropped_states++;
}

static inline size_t fake_memory(const void *b) { return (size_t)((const struct fake *)b)->o.n_blocks * 64; }
static const char *fake_describe(const void *b) { (void)b; return "fake"; }
static inline void fake_close(void *b)
{
    free(((struct fake *)b)->kv);
    free(((struct fake *)b)->window_kv);
    free(((struct fake *)b)->state);
    free(b);
}

static const struct backend backend_fake = { .name = "fake", .always_strict = 1,
                                             .open = fake_open, .forward = fake_forward,
                                             .copy_block = fake_copy, .memory = fake_memory,
                                             .kv_bytes = fake_memory, .describe = fake_describe, .close = fake_close,
                                             .copy_state = fake_copy_state, .drop_block = fake_drop_block,
                                             .drop_state = fake_drop_state };
/* The same with window blocks. */
static const struct backend backend_fake_windows __attribute__((unused)) = {
    .name = "fake", .always_strict = 1, .windows = 1, .open = fake_open, .forward = fake_forward,
    .copy_block = fake_copy, .memory = fake_memory, .kv_bytes = fake_memory, .describe = fake_describe,
    .close = fake_close, .copy_state = fake_copy_state, .drop_block = fake_drop_block, .drop_state = fake_drop_state };
/* The same with begin and end. */
static const struct backend backend_fake_device = { .name = "fake", .open = fake_open, .forward = fake_forward,
                                                    .begin = fake_begin, .end = fake_end, .copy_block = fake_copy,
                                                    .memory = fake_memory, .kv_bytes = fake_memory,
                                                    .describe = fake_describe, .close = fake_close,
                                                    .copy_state = fake_copy_state, .drop_block = fake_drop_block,
                                                    .drop_state = fake_drop_state };
static const struct backend *backend_under_test = &backend_fake;

/* ---- a model and a tokenizer just large enough ---- */

static unsigned char kinds[64];       /* attention, dense */
static unsigned char hybrid[] = { MIXER_ATTENTION, MIXER_CONV, MIXER_ATTENTION };
static int windows[64], chunks[64];     /* of the layers; all zero but in tests of windows */
static struct model model = { .config = { .window = windows, .chunk = chunks,
                                          .recurrent.conv_kernel = 2, .mixer = kinds, .ff = kinds, .n_layers = 1,
                                          .n_heads = 1, .n_kv_heads = 1, .head_dim = 8, .hidden_size = HIDDEN,
                                          .vocab_size = VOCAB, .max_len = MAX_LEN } };
static struct tokenizer *tokenizer;
static void *blob;

/* ids 0..9: a b c, the two bytes of U+00E9, "ab", "cab", " b", two special tokens; 10 and 11 are
 * padding without a token */
static const char tokenizer_json[] =
    "{\"version\":\"1.0\",\"added_tokens\":["
    "{\"id\":8,\"content\":\"<eos>\",\"special\":true,\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false},"
    "{\"id\":9,\"content\":\"<end>\",\"special\":true,\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false}],"
    "\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false},"
    "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
    "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
    "\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"\u00c3\":3,\"\u00a9\":4,\"ab\":5,\"cab\":6,\"\u0120b\":7},"
    "\"merges\":[\"a b\",\"c ab\"]}}";

static inline int setup(void **state)
{
    (void)state;
    struct err e = { 0 };
    size_t size;
    fake_draft = fake_twin = model;
    static const char generation[] = "{\"eos_token_id\":[8]}";
    struct tokenizer_files f = { .tokenizer_json = tokenizer_json, .tokenizer_json_size = sizeof tokenizer_json - 1,
                                 .generation_config = generation, .generation_config_size = sizeof generation - 1 };
    if (tokenizer_compile_files(&f, &blob, &size, &e) != 0 || !(tokenizer = tokenizer_open(blob, size, &e))) {
        fprintf(stderr, "%s\n", e.msg);
        return -1;
    }
    return 0;
}

static inline int teardown(void **state)
{
    (void)state;
    tokenizer_close(tokenizer);
    free(blob);
    return 0;
}

/* ---- a drafter that is often right: it knows how the fake backend computes ---- */

/* Guess the most likely tokens, with some mistakes: other tokens, ends of the answer, unknown
 * ids. */
static inline void fake_guess(void *state, const int32_t *ids, int n_ids, int n, struct draft *d)
{
    struct rng *r = state;
    uint64_t hash = 0;
    for (int i = 0; i < n_ids; i++)
        hash = hash_next(hash, ids[i]);
    for (int i = 0; i < n; i++) {
        float logits[VOCAB];
        int best = 0;
        logits_of(hash, logits);
        for (int j = 1; j < VOCAB; j++)
            best = logits[j] > logits[best] ? j : best;
        const uint64_t dice = rng_u64(r) % 32;
        d->token[i] = dice == 0 ? EOS : dice == 1 ? VOCAB + 3 : dice == 2 ? -1
                 : dice < 5 ? (int32_t)(rng_u64(r) % VOCAB) : best;
        hash = hash_next(hash, d->token[i]);
    }
    d->grade = (int)(rng_u64(r) % DRAFT_GRADES);
    d->n = (int)(rng_u64(r) % (uint64_t)(n + 1));
}
static void *fake_drafter_open(const int32_t *predicted, int n)
{
    (void)predicted, (void)n;
    return calloc(1, sizeof(struct rng));
}
static const struct drafter drafter_fake __attribute__((unused)) = { "fake", fake_drafter_open, fake_guess, free };
static const struct drafter *drafter_under_test;
static const struct model *draft_model_under_test;
static int distribution_under_test;
static int window_under_test, sinks_under_test;         /* options of all engines except those that
                                                         * compute the expected answers */

static inline struct engine *open_with(int max_seqs, int max_tokens, int n_blocks, int no_prefix_cache)
{
    struct err e;
    struct engine_options o = { .backend = backend_under_test, .max_len = MAX_LEN, .max_seqs = max_seqs,
                                .max_tokens = max_tokens, .kv = { KV_F32, KV_F32 }, .drafter = drafter_under_test,
                                .draft_model = draft_model_under_test, .draft_distribution = distribution_under_test,
                                .window = window_under_test, .sinks = window_under_test ? sinks_under_test : 0,
                                .no_prefix_cache = no_prefix_cache, .snapshots = n_blocks % 5 + 1,
                                .snapshot_every = 16 << n_blocks % 3,
                                .kv_bytes = (size_t)(n_blocks + (window_under_test ? 8 : 0)) *
                                            config_kv_bytes(&model.config, kv_both(KV_F32)) };
    struct engine *g = engine_open(&model, tokenizer, &o, &e);
    if (!g)
        fail_msg("%s", e.msg);
    return g;
}

/* Give models a recurrent layer from now on (1), or none (0). */
static inline void set_hybrid(int on)
{
    model.config.n_layers = on ? 2 : 1;
    model.config.mixer = on ? hybrid : kinds;
}

/* Add a layer with a window of this number of tokens; 0: remove it. */
static inline void set_window(int tokens)
{
    windows[model.config.n_layers] = tokens;
    if (tokens)
        model.config.n_layers++;
    else
        windows[--model.config.n_layers] = 0;
    backend_under_test = tokens ? &backend_fake_windows : &backend_fake;
}

static inline struct engine *open_engine(int max_seqs, int max_tokens, int n_blocks)
{
    return open_with(max_seqs, max_tokens, n_blocks, 0);
}

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
    struct request *request;                            /* set by the test if it reads statistics */
};

static inline void hear(void *user, const struct token_event *ev)
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

static inline struct request_params params(const int32_t *ids, int n, struct answer *a)
{
    struct request_params p = { .ids = ids, .n_ids = n, .sampling = sampling_defaults(), .n_logprobs = -1,
                                .on_token = hear, .user = a };
    p.sampling.temperature = 0;
    memset(a, 0, sizeof *a);
    return p;
}

static inline void run_to_end(struct engine *g)
{
    struct err e;
    int left;
    for (int i = 0; (left = engine_step(g, &e)) > 0; i++)
        assert_true(i < 100000);
    assert_int_equal(left, 0);
}

static inline void alone(const struct request_params *p, struct answer *a)
{
    struct err e;
    const struct backend *tested = backend_under_test;
    backend_under_test = &backend_fake;
    const struct drafter *drafter = drafter_under_test;
    const struct model *draft_model = draft_model_under_test;
    const int window = window_under_test;
    drafter_under_test = NULL;
    draft_model_under_test = NULL;
    window_under_test = 0;
    struct engine *g = open_with(1, 512, MAX_LEN / 16, 1);
    window_under_test = window;
    drafter_under_test = drafter;
    draft_model_under_test = draft_model;
    backend_under_test = tested;
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

static inline void assert_same(const struct answer *a, const struct answer *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, (size_t)a->n * sizeof *a->ids);
    assert_string_equal(a->text, b->text);
    assert_int_equal(a->finish, b->finish);
    assert_int_equal(a->n_after_end, 0);
}

static inline void assert_all_free(struct engine *g)
{
    struct engine_stats s;
    engine_stats(g, &s);
    assert_int_equal(s.n_free_blocks + s.n_cached_blocks, s.n_blocks);
    assert_int_equal(s.n_free_window_blocks + s.n_cached_window_blocks, s.n_window_blocks);
    assert_int_equal(s.n_running + s.n_waiting, 0);
}

static inline struct request *submit(struct engine *g, struct request_params *p, struct answer *a)
{
    struct err e;
    memset(a, 0, sizeof *a);
    p->user = a;
    if (!(a->request = engine_submit(g, p, &e)))
        fail_msg("%s", e.msg);
    return a->request;
}

/* ---- a constraint: the tokens that may come next depend on all earlier ones ---- */

struct rules {
    uint64_t hash;
    uint32_t bits;
    int n, least, fails_at;             /* fails_at: number of tokens after which it reports that
                                         * memory ran out; 0: never */
    int slow;                           /* every other call needs more steps than the first turns have */
    /* while it is not 0, a turn of very many steps does not end unless it is cancelled; NULL: all
     * turns end */
    atomic_int *stuck;
    uint64_t steps;                     /* of hurry */
    int busy;
    atomic_int cancelled;
};
static int n_rules;                     /* open ones */

static inline void rules_hurry(void *state, uint64_t steps) { ((struct rules *)state)->steps = steps; }
static inline int rules_busy(void *state) { return ((struct rules *)state)->busy; }
static inline void rules_cancel(void *state) { atomic_store(&((struct rules *)state)->cancelled, 1); }

/* 1: this call, of the kind numbered `what`, gives up. */
static inline int gives_up(struct rules *c, uint64_t what)
{
    static const uint64_t needs[] = { 0, 0, 0, 200000, 700000, 9000000 };       /* steps that a call
                                                                                 * needs; some
                                                                                 * exceed the first
                                                                                 * turn */
    struct rng r = { c->hash ^ what };
    c->busy = c->slow && c->steps && c->steps < needs[rng_u64(&r) % 6];
    if (c->stuck && atomic_load(c->stuck) && c->steps)
        c->busy = c->steps < 1000000;
    while (!c->busy && c->stuck && c->steps && atomic_load(c->stuck) && !atomic_load(&c->cancelled))
        sched_yield();
    return c->busy;
}

/* Allow one to three of the tokens 0 to 7.  After `least` tokens EOS is allowed as well, and
 * sometimes nothing else. */
static inline void allow(struct rules *c)
{
    struct rng r = { c->hash };
    const int n = 1 + (int)(rng_u64(&r) % 3);
    c->bits = 0;
    for (int i = 0; i < n; i++)
        c->bits |= 1u << rng_u64(&r) % 8;
    if (c->n >= c->least)
        c->bits = 1u << EOS | (rng_u64(&r) % 2 ? c->bits : 0);
}

static const uint32_t *rules_mask(void *state)
{
    static const uint32_t none;
    return gives_up(state, 1) ? &none : &((struct rules *)state)->bits;
}
static inline int rules_complete(void *state) { return (int)(((struct rules *)state)->bits >> EOS & 1); }

static inline int follow_rules(struct rules *c, int32_t id)
{
    if (!(c->bits >> id & 1))
        return -1;
    c->hash = hash_next(c->hash, id);
    c->n++;
    allow(c);
    return 0;
}

static inline int rules_accept(void *state, int32_t id) { return gives_up(state, 2) ? -1 : follow_rules(state, id); }

static inline int rules_forced(void *state, int32_t *ids, int room)
{
    int n = 0;
    if (gives_up(state, 3))
        return 0;
    const struct rules *own = state;
    struct rules c = { .hash = own->hash, .bits = own->bits, .n = own->n, .least = own->least };
    /* Force a token if it is the only one, and sometimes if there are more, because a real text can
     * be split into tokens in several ways. */
    for (; n < room && n < 7 && ((c.bits & (c.bits - 1)) == 0 || c.hash % 3 == 0) && !(c.bits >> EOS & 1); n++) {
        ids[n] = __builtin_ctz(c.bits);
        follow_rules(&c, ids[n]);
    }
    return n;
}

static inline void *rules_new(uint64_t seed, int least)
{
    struct rules *c = malloc(sizeof *c);
    *c = (struct rules){ .hash = seed, .least = least };
    allow(c);
    n_rules++;
    return c;
}

static inline void *rules_fork(void *state)
{
    struct rules *c = malloc(sizeof *c);
    *c = *(struct rules *)state;
    n_rules++;
    return c;
}

static inline void rules_close(void *state)
{
    free(state);
    n_rules--;
}

static inline int rules_error(void *state, struct err *e)
{
    const struct rules *c = state;
    if (atomic_load(&c->cancelled))
        return err_set(e, ERR_LIMIT, "rules: cancelled");
    return c->fails_at && c->n >= c->fails_at ? err_nomem(e, "rules") : 0;
}

static inline struct constraint rules_of(uint64_t seed, int least)
{
    return (struct constraint){ rules_new(seed, least), rules_mask, rules_accept, rules_forced, rules_fork, rules_close,
                                rules_complete, rules_error, rules_hurry, rules_busy, rules_cancel };
}

#endif
