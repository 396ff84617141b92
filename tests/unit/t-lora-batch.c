/* t-lora-batch.c - LoRA adapters beside a model: five kinds of adapters give the logits that PEFT
 * computes; a sequence has the same bits alone and in a batch with sequences of other adapters,
 * however prompts are cut and for any number of threads; adapters do not share prefixes; some
 * adapters are refused. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "libcommon/base/file.h"
#include "libcommon/base/json.h"
#include "libcommon/convert/convert.h"
#include "libcommon/engine/engine.h"
#include "libcommon/model/lora.h"

enum { ROOM = 4096, BLOCKS = 64, SEQS = 4, ANSWER = 12 };
static const char *const kinds[] = { "gemma3", "llama", "mixtral", "phi3", "qwen2" };
static char root[3072], made[64];
static struct err e;

static const char *lora_folder(const char *kind)
{
    static char path[ROOM];
    snprintf(path, sizeof path, "%s/lora/%s", root, kind);
    return path;
}

/* A text to calibrate with: short, so that it takes little time. */
static const char *calibration(void)
{
    static char path[sizeof made + 8];
    snprintf(path, sizeof path, "%s.txt", made);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < 60; i++)
        fprintf(f, "%d is %s, and word %c%c%c is not. ", i * 7919 % 1000, i % 3 ? "odd" : "even", 'a' + i % 26,
                'a' + i / 3 % 26, 'a' + i / 7 % 26);
    fclose(f);
    return path;
}

/* Convert an oracle's base, and open it.  merged: with its adapter merged. */
static struct model *open_base_as(const char *kind, enum qtype type, enum convert_effort effort, int merged)
{
    char path[ROOM];
    const char *const adapters[] = { lora_folder(kind) };
    struct convert_options o;
    snprintf(path, sizeof path, "%s/hf/%s", root, kind);
    convert_defaults(&o);
    o.source = path;
    o.output = made;
    o.type = (struct convert_type){ CONVERT_TYPE, type };
    o.n_threads = 2;
    o.overwrite = o.no_resume = 1;
    o.effort = effort;
    o.calibration = calibration();
    o.lora = adapters;
    o.n_lora = merged;
    const int rc = convert_run(&o, NULL, &e);
    unlink(o.calibration);
    if (rc != 0)
        fail_msg("%s", e.msg);
    struct zfile *z = zfile_open(made, &e);
    struct model *m = z ? model_bind(z, &e) : NULL;
    if (!m)
        fail_msg("%s", e.msg);
    return m;
}

static struct model *open_base(const char *kind, enum qtype type) { return open_base_as(kind, type, CONVERT_GOOD, 0); }

static void *open_backend(const struct model *m, int n_threads)
{
    const struct backend_options o = { .n_threads = n_threads, .kv = kv_both(KV_F32), .n_blocks = BLOCKS,
                                       .max_tokens = 256, .max_logits = 256 };
    void *b = backend_cpu.open(m, &o, &e);
    if (!b)
        fail_msg("%s", e.msg);
    return b;
}

/* An item of a batch: n tokens of a sequence, from position pos on. */
static struct batch_item item_of(const int32_t *ids, int n, int pos, const int32_t *table, int lora)
{
    return (struct batch_item){ .tokens = ids, .n_tokens = n, .pos = pos, .table = table, .n_logits = n, .lora = lora };
}

static void forward(void *b, const struct batch_item *items, int n, float *logits)
{
    if (backend_cpu.forward(b, &(struct batch){ items, n }, logits, &e) != 0)
        fail_msg("%s", e.msg);
}

static int has_oracles(void)
{
    if (access(lora_folder("llama"), R_OK) == 0)
        return 1;
    print_message("# skipped: no oracles (set ZSE_ORACLES)\n");
    return 0;
}

/* ---- logits ---- */

/* Compute the logits of all prompts of an oracle; *n: their number.  Caller frees. */
static float *logits_of(const char *kind, void *b, int lora, size_t *n)
{
    char path[ROOM + 32];
    int32_t ids[128], table[8] = { 0, 1, 2, 3, 4, 5, 6, 7 };
    snprintf(path, sizeof path, "%s/expected.json", lora_folder(kind));
    json_t *expected = js_load(path, 1 << 20, &e), *prompt, *id;
    assert_non_null(expected);
    const size_t vocab = (size_t)json_integer_value(json_object_get(expected, "vocab"));
    float *got = NULL;
    size_t i, k;
    *n = 0;
    json_array_foreach(json_object_get(expected, "prompts"), i, prompt) {
        const json_t *list = json_object_get(prompt, "ids");
        const size_t len = json_array_size(list);
        got = realloc(got, (*n + len * vocab) * sizeof *got);
        assert_non_null(got);
        json_array_foreach(list, k, id)
            ids[k] = (int32_t)json_integer_value(id);
        const struct batch_item item = item_of(ids, (int)len, 0, table, lora);
        forward(b, &item, 1, got + *n);
        *n += len * vocab;
    }
    json_decref(expected);
    return got;
}

/* The logits that PEFT computed.  Caller frees. */
static float *logits_of_peft(const char *kind, size_t n)
{
    char path[ROOM + 32];
    float *want = malloc(n * sizeof *want);
    snprintf(path, sizeof path, "%s/logits.f32", lora_folder(kind));
    FILE *f = fopen(path, "rb");
    assert_non_null(want);
    assert_non_null(f);
    assert_int_equal(fread(want, sizeof *want, n, f), n);
    fclose(f);
    return want;
}

/* The largest difference over the largest |want|. */
static float distance(const float *got, const float *want, size_t n)
{
    float largest = 0, error = 0;
    for (size_t k = 0; k < n; k++) {
        largest = fmaxf(largest, fabsf(want[k]));
        error = fmaxf(error, fabsf(want[k] - got[k]));
    }
    return error / largest;
}

/* Compare the logits with those of PEFT. */
static float compare(const char *kind, void *b, int lora)
{
    size_t n;
    float *got = logits_of(kind, b, lora, &n), *want = logits_of_peft(kind, n);
    const float d = distance(got, want, n);
    free(got);
    free(want);
    return d;
}

/* The number of the adapter of this name; 0: there is none. */
static int number_of(const struct model *m, const char *name)
{
    for (int i = 0; i < m->n_loras; i++)
        if (m->loras[i].name && strcmp(m->loras[i].name, name) == 0)
            return i + 1;
    return 0;
}

static void logits_are_those_of_peft(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && has_oracles(); i++) {
        struct model *m = open_base(kinds[i], QT_F32);
        assert_int_equal(model_add_lora(m, "a", lora_folder(kinds[i]), NULL, &e), 0);
        assert_int_equal(number_of(m, "a"), 1);
        assert_int_equal(number_of(m, "b"), 0);
        void *b = open_backend(m, 2);
        const float with = compare(kinds[i], b, 1), without = compare(kinds[i], b, 0);
        print_message("# %s: %.2e, without the adapter %.2f\n", kinds[i], (double)with, (double)without);
        assert_true(with <= 1e-4f && without > 1e-2f);
        backend_cpu.close(b);
        model_close(m);
    }
}

/* The root of the mean square of the differences. */
static double spread(const float *a, const float *b, size_t n)
{
    double sum = 0;
    for (size_t k = 0; k < n; k++)
        sum += ((double)a[k] - (double)b[k]) * ((double)a[k] - (double)b[k]);
    return sqrt(sum / (double)n);
}

/* The spread of a conversion's logits around those of PEFT, with the adapter merged or beside.
 * without: that without the adapter. */
static double spread_of(const char *kind, enum qtype type, enum convert_effort effort, int merged, double *without)
{
    struct model *m = open_base_as(kind, type, effort, merged);
    assert_true(lora_scales(m->file));
    if (!merged)
        assert_int_equal(model_add_lora(m, "a", lora_folder(kind), NULL, &e), 0);
    void *b = open_backend(m, 2);
    size_t n;
    float *got = logits_of(kind, b, !merged, &n), *base = logits_of(kind, b, 0, &n), *peft = logits_of_peft(kind, n);
    const double d = spread(got, peft, n);
    *without = spread(base, peft, n);
    free(got);
    free(base);
    free(peft);
    backend_cpu.close(b);
    model_close(m);
    return d;
}

/* A conversion that scales channels rounds weights.  Beside it the adapter is not rounded; merged
 * before, the sums are.  Either way each rounded weight has an error of about the same size, so the
 * logits are about equally far from those of PEFT: less than 1.5 times. */
static void scaled_channels_do_not_matter(void **state)
{
    static const struct { enum qtype type; enum convert_effort effort; } of[] = {
        { QT_I8, CONVERT_GOOD }, { QT_NL4, CONVERT_BEST },
    };
    (void)state;
    /* a sanitizer sees the same code with one model */
    const size_t n_kinds = getenv("ZSE_SANITIZED") ? 1 : sizeof kinds / sizeof *kinds;
    for (size_t i = 0; i < n_kinds && has_oracles(); i++)
        for (int k = 0; k < 1 + (i == 1); k++) {
            double without, ignored;
            const double beside = spread_of(kinds[i], of[k].type, of[k].effort, 0, &without),
                         merged = spread_of(kinds[i], of[k].type, of[k].effort, 1, &ignored);
            print_message("# %s as %s: beside %.3f, merged %.3f, without the adapter %.3f\n", kinds[i],
                          qtype_info(of[k].type)->name, beside, merged, without);
            assert_true(beside < 1.5 * merged && beside < without / 2);
        }
}

/* ---- batches ---- */

enum { LEN = 40 };
static void make_ids(int32_t ids[SEQS][LEN])
{
    for (int s = 0; s < SEQS; s++)
        for (int t = 0; t < LEN; t++)
            ids[s][t] = (s * 71 + t * 37 + t * t * 5) % 300 + 3;
}

/* Sequence s has adapter s % 3 (0: none).  The two adapters are copies of one folder under two
 * names.  Together and in chunks, every sequence has the bits that it has alone. */
static void batches_do_not_matter(void **state)
{
    (void)state;
    if (!has_oracles())
        return;
    struct model *m = open_base("llama", QT_NL4);
    for (int i = 0; i < 2; i++)
        assert_int_equal(model_add_lora(m, i ? "b" : "a", lora_folder("llama"), NULL, &e), 0);
    const size_t vocab = (size_t)m->config.vocab_size;
    static int32_t ids[SEQS][LEN];
    int32_t table[SEQS][4];
    float *alone = malloc(SEQS * LEN * vocab * sizeof *alone), *row = malloc(SEQS * LEN * vocab * sizeof *row);
    make_ids(ids);
    memcpy(ids[1], ids[0], sizeof ids[0]);              /* the same text with and without an adapter */
    for (int s = 0; s < SEQS; s++)
        for (int i = 0; i < 4; i++)
            table[s][i] = s * 4 + i;
    void *b = open_backend(m, 1);
    for (int s = 0; s < SEQS; s++) {
        const struct batch_item item = item_of(ids[s], LEN, 0, table[s], s % 3);
        forward(b, &item, 1, alone + (size_t)s * LEN * vocab);
    }
    assert_memory_not_equal(alone, alone + LEN * vocab, LEN * vocab * sizeof *alone);
    backend_cpu.close(b);
    b = open_backend(m, 2);
    for (int at = 0, n = 1; at < LEN; at += n, n = n * 3 % 29 + 1) {
        struct batch_item items[SEQS];
        n = n < LEN - at ? n : LEN - at;
        for (int s = 0; s < SEQS; s++)
            items[s] = item_of(ids[s] + at, n, at, table[s], s % 3);
        forward(b, items, SEQS, row);
        for (int s = 0; s < SEQS; s++)
            assert_memory_equal(row + (size_t)(s * n) * vocab, alone + ((size_t)s * LEN + (size_t)at) * vocab,
                                (size_t)n * vocab * sizeof *row);
    }
    backend_cpu.close(b);
    free(alone);
    free(row);
    model_close(m);
}

/* ---- the engine ---- */

struct answer { int32_t ids[ANSWER]; int n; };

static void hear(void *user, const struct token_event *ev)
{
    struct answer *a = user;
    if (ev->id >= 0)
        a->ids[a->n++] = ev->id;
}

static struct sampling greedy(void)
{
    struct sampling s = sampling_defaults();
    s.temperature = 0;
    return s;
}

/* Answer a prompt with an adapter; returns the number of tokens taken from the prefix cache. */
static int ask(struct engine *g, const int32_t *ids, int lora, struct answer *a)
{
    struct engine_stats before, after;
    *a = (struct answer){ .n = 0 };
    const struct request_params p = { .ids = ids, .n_ids = LEN, .sampling = greedy(), .max_tokens = ANSWER,
                                      .ignore_eos = 1, .n_logprobs = -1, .lora = lora, .on_token = hear, .user = a };
    engine_stats(g, &before);
    if (!engine_submit(g, &p, &e))
        fail_msg("%s", e.msg);
    while (engine_step(g, &e) > 0)
        ;
    engine_stats(g, &after);
    assert_int_equal(a->n, ANSWER);
    return (int)(after.cached_tokens - before.cached_tokens);
}

static void prefixes_are_apart(void **state)
{
    static int32_t ids[SEQS][LEN];
    struct answer plain, adapted, again;
    (void)state;
    if (!has_oracles())
        return;
    struct model *m = open_base("qwen2", QT_F32);
    assert_int_equal(model_add_lora(m, "a", lora_folder("qwen2"), NULL, &e), 0);
    const struct engine_options o = { .n_threads = 1, .kv = kv_both(KV_F32), .max_len = 128, .max_seqs = 2 };
    struct engine *g = engine_open(m, NULL, &o, &e);
    assert_non_null(g);
    make_ids(ids);
    assert_int_equal(ask(g, ids[0], 0, &plain), 0);
    assert_int_equal(ask(g, ids[0], 1, &adapted), 0);           /* reuses no prefix of the base */
    assert_memory_not_equal(plain.ids, adapted.ids, sizeof plain.ids);
    assert_true(ask(g, ids[0], 1, &again) > 0);
    assert_memory_equal(again.ids, adapted.ids, sizeof again.ids);
    assert_true(ask(g, ids[0], 0, &again) > 0);
    assert_memory_equal(again.ids, plain.ids, sizeof again.ids);
    const struct request_params p = { .ids = ids[0], .n_ids = LEN, .sampling = greedy(), .n_logprobs = -1, .lora = 2,
                                      .on_token = hear };
    assert_null(engine_submit(g, &p, &e));
    assert_non_null(strstr(e.msg, "LoRA adapter is 2, expected 0 to 1"));
    engine_close(g);
    struct backend gpu = backend_cpu;
    struct engine_options other = o;
    gpu.loras = NULL;
    other.backend = &gpu;
    assert_null(engine_open(m, NULL, &other, &e));
    assert_non_null(strstr(e.msg, "LoRA adapters are computed on the CPU alone"));
    model_close(m);
}

/* An adapter that is added to an open engine answers as one that it was opened with; numbers of
 * removed adapters are refused until another adapter gets them. */
static void adapters_come_and_go(void **state)
{
    static int32_t ids[SEQS][LEN];
    struct answer want, plain, got;
    (void)state;
    if (!has_oracles())
        return;
    const char *folder = lora_folder("qwen2");
    struct model *m = open_base("qwen2", QT_F32), *other = open_base("qwen2", QT_F32);
    assert_int_equal(model_add_lora(other, "a", folder, NULL, &e), 0);
    const struct engine_options o = { .n_threads = 1, .kv = kv_both(KV_F32), .max_len = 128, .max_seqs = 2 };
    struct engine *g = engine_open(other, NULL, &o, &e);
    assert_non_null(g);
    make_ids(ids);
    ask(g, ids[0], 1, &want);
    engine_close(g);
    model_close(other);
    g = engine_open(m, NULL, &o, &e);
    assert_non_null(g);
    ask(g, ids[0], 0, &plain);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(engine_set_lora(g, m, 1, lora_bind(m, "a", folder, NULL, &e), &e), 0);
        assert_int_equal(engine_set_lora(g, m, 2, lora_bind(m, "b", folder, NULL, &e), &e), 0);
        assert_int_equal(number_of(m, "b"), 2);
        for (int number = 1; number <= 2; number++) {
            ask(g, ids[0], number, &got);
            assert_memory_equal(got.ids, want.ids, sizeof got.ids);
        }
        assert_int_equal(engine_set_lora(g, m, 1, NULL, &e), 0);
        assert_int_equal(engine_set_lora(g, m, 1, NULL, &e), 0);
        assert_int_equal(number_of(m, "a"), 0);
        const struct request_params p = { .ids = ids[0], .n_ids = LEN, .sampling = greedy(), .n_logprobs = -1,
                                          .lora = 1, .on_token = hear };
        assert_null(engine_submit(g, &p, &e));
        assert_non_null(strstr(e.msg, "LoRA adapter 1 was removed"));
        ask(g, ids[0], 2, &got);
        assert_memory_equal(got.ids, want.ids, sizeof got.ids);
        ask(g, ids[0], 0, &got);
        assert_memory_equal(got.ids, plain.ids, sizeof got.ids);
        assert_int_equal(engine_set_lora(g, m, 2, NULL, &e), 0);
    }
    assert_int_equal(m->n_loras, 2);
    engine_close(g);
    model_close(m);
}

/* ---- what an answer must not depend on ---- */

static struct engine *open_engine(const struct model *m, const struct engine_options *o)
{
    struct engine *g = engine_open(m, NULL, o, &e);
    if (!g)
        fail_msg("%s", e.msg);
    return g;
}

/* With few blocks, preempted answers are the same as alone. */
static void push_each_other_out(const struct model *m, const struct engine_options *few,
                                const struct request_params *p, int32_t ids[SEQS][LEN], const struct answer *alone)
{
    struct answer all[SEQS];
    struct engine_stats s;
    struct engine *g = open_engine(m, few);
    for (int i = 0; i < SEQS; i++) {
        struct request_params q = *p;
        q.ids = ids[i];
        q.user = &all[i];
        q.draft = (struct draft_params){ 0 };
        all[i].n = 0;
        assert_non_null(engine_submit(g, &q, &e));
    }
    while (engine_step(g, &e) > 0)
        ;
    engine_stats(g, &s);
    assert_true(s.preemptions > 0 && s.resumed_computed > 0);
    for (int i = 0; i < SEQS; i++)
        assert_memory_equal(all[i].ids, alone[i].ids, sizeof all[i].ids);
    engine_close(g);
}

static void disk_drafts_and_preemption(void **state)
{
    static int32_t ids[SEQS][LEN];
    struct answer want[2], got, alone[SEQS];
    struct engine_stats s;
    (void)state;
    if (!has_oracles())
        return;
    struct model *m = open_base("qwen2", QT_NL4);
    assert_int_equal(model_add_lora(m, "a", lora_folder("qwen2"), NULL, &e), 0);
    struct engine_options o = { .n_threads = 1, .kv = kv_both(KV_F32), .max_len = 128, .max_seqs = SEQS };
    make_ids(ids);
    struct engine *g = open_engine(m, &o);
    for (int lora = 0; lora < 2; lora++)
        ask(g, ids[0], lora, &want[lora]);
    for (int i = 0; i < SEQS; i++)
        ask(g, ids[i], 1, &alone[i]);
    /* the answer itself is the draft: all of its tokens are right */
    const struct request_params p = { .ids = ids[0], .n_ids = LEN, .sampling = greedy(), .max_tokens = ANSWER,
                                      .ignore_eos = 1, .n_logprobs = -1, .lora = 1, .on_token = hear, .user = &got,
                                      .draft = { .use = DRAFT_NGRAM, .predicted = want[1].ids,
                                                 .n_predicted = ANSWER } };
    got.n = 0;
    assert_non_null(engine_submit(g, &p, &e));
    while (engine_step(g, &e) > 0)
        ;
    engine_stats(g, &s);
    assert_true(s.accepted > 0);
    assert_memory_equal(got.ids, want[1].ids, sizeof got.ids);
    engine_close(g);
    /* with blocks for the prompts and little more, answers push each other out */
    struct engine_options few = o;
    few.no_prefix_cache = 1;
    few.kv_bytes = 14 * config_kv_bytes(&m->config, o.kv);
    push_each_other_out(m, &few, &p, ids, alone);
    /* prefixes on disk: the adapter's are not the model's */
    char folder[] = "/tmp/t-lora-disk-XXXXXX", command[64];
    assert_non_null(mkdtemp(folder));
    o.prefix_folder = folder;
    o.prefix_bytes = 64 << 20;
    for (int turn = 0; turn < 4; turn++) {
        g = open_engine(m, &o);
        const int cached = ask(g, ids[0], turn % 2, &got);
        assert_int_equal(cached > 0, turn >= 2);
        assert_memory_equal(got.ids, want[turn % 2].ids, sizeof got.ids);
        engine_close(g);
    }
    /* a preempted answer goes on with what the folder has of it */
    few.no_prefix_cache = 0;
    few.prefix_folder = folder;
    few.prefix_bytes = 64 << 20;
    push_each_other_out(m, &few, &p, ids, alone);
    snprintf(command, sizeof command, "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    model_close(m);
}

static void refuses(struct model *m, const char *folder, const char *message)
{
    assert_int_equal(model_add_lora(m, "x", folder, NULL, &e), -1);
    if (!strstr(e.msg, message))
        fail_msg("'%s' does not have '%s'", e.msg, message);
    assert_int_equal(m->n_loras, 0);
}

static void adapters_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    if (!has_oracles())
        return;
    struct model *m = open_base("phi3", QT_F32);
    refuses(m, lora_folder("qwen2"), "expected projections of attention and of dense MLPs of this model");
    refuses(m, "/nonexistent", "no adapter_config.json");
    model_close(m);
}

static int prepare(void **state)
{
    const char *oracles = getenv("ZSE_ORACLES");
    (void)state;
    snprintf(root, sizeof root, "%s/models", oracles ? oracles : "../shared/oracles");
    strcpy(made, "/tmp/t-lora-batch-XXXXXX");
    const int fd = mkstemp(made);
    return fd < 0 ? -1 : close(fd);
}

static int finish(void **state)
{
    (void)state;
    return unlink(made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_peft), cmocka_unit_test(scaled_channels_do_not_matter),
        cmocka_unit_test(batches_do_not_matter),
        cmocka_unit_test(prefixes_are_apart), cmocka_unit_test(adapters_come_and_go),
        cmocka_unit_test(disk_drafts_and_preemption),
        cmocka_unit_test(adapters_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, prepare, finish);
}
