/* t-plan.c - the planner's figures are compared with published ones, and its sizes with those of
 * converted files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/json.h"
#include "libcommon/convert/convert.h"
#include "libcommon/engine/engine.h"
#include "libcommon/import/hf_config.h"
#include "libcommon/model/model.h"
#include "libcommon/plan/budget.h"
#include "libcommon/plan/plan.h"
#include "libcommon/plan/registry.h"

static const double MIB = 1048576, GB = 1e9;

static void near(const char *what, double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance * fabs(want)))
        fail_msg("%s: %.6g, expected %.6g", what, got, want);
}

static json_t *registry;
static int load(void **state)
{
    struct err e;
    (void)state;
    registry = registry_load(&e);
    return registry ? 0 : -1;
}
static const json_t *config_of(const char *name)
{
    struct err e;
    const json_t *m = registry_find(registry, name, &e);
    if (!m)
        fail_msg("%s", e.msg);
    return json_object_get(m, "config");
}

/* All shapes are kept until the end, so that a test that fails leaks nothing. */
static struct plan_shape *shapes[1000];
static int n_shapes;

static struct plan_shape *keep(struct plan_shape s)
{
    struct plan_shape *p = malloc(sizeof *p);
    assert_true(p && n_shapes < (int)(sizeof shapes / sizeof *shapes));
    *p = s;
    return shapes[n_shapes++] = p;
}

static struct plan_shape *shape_of_config(const char *name, const json_t *config)
{
    struct plan_shape s;
    struct config c;
    struct err e;
    json_t *normal = hf_config_normalize(config, &e);
    if (!normal || config_parse(&c, normal, &e) != 0)
        fail_msg("%s: %s", name, e.msg);
    assert_int_equal(plan_shape_of(&s, &c, &e), 0);
    config_release(&c);
    json_decref(normal);
    return keep(s);
}

static struct plan_shape *shape_of(const char *name) { return shape_of_config(name, config_of(name)); }

static struct plan_shape *guess_of(const json_t *config)
{
    struct plan_shape s;
    struct err e;
    if (plan_shape_guess(&s, config, &e) != 0)
        fail_msg("%s", e.msg);
    return keep(s);
}

static int unload(void **state)
{
    (void)state;
    while (n_shapes) {
        plan_shape_release(shapes[--n_shapes]);
        free(shapes[n_shapes]);
    }
    json_decref(registry);
    return 0;
}

/* Kimi K2's configuration, the sizes as published. */
static struct plan_shape *kimi(void)
{
    json_t *c = json_pack("{s:{s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:b}}",
                          "text_config", "model_type", "kimi_k2", "num_hidden_layers", 61,
                          "hidden_size", 7168, "intermediate_size", 18432, "moe_intermediate_size", 2048,
                          "n_routed_experts", 384, "n_shared_experts", 1, "num_experts_per_tok", 8,
                          "first_k_dense_replace", 1, "num_attention_heads", 64, "num_key_value_heads", 64,
                          "q_lora_rank", 1536, "kv_lora_rank", 512, "qk_nope_head_dim", 128, "qk_rope_head_dim", 64,
                          "v_head_dim", 128, "vocab_size", 163840, "max_position_embeddings", 262144,
                          "tie_word_embeddings", 0);
    assert_non_null(c);
    struct plan_shape *s = shape_of_config("kimi_k2", c);
    json_decref(c);
    return s;
}

/* Parameters as the model cards round them. */
static void parameter_counts_match_model_cards(void **state)
{
    static const struct { const char *name; double total, active; } all[] = {
        { "Qwen2.5-7B", 7.62e9, 0 },       { "Qwen2.5-72B", 72.7e9, 0 },   { "Llama-3.1-8B", 8.03e9, 0 },
        { "Llama-3.1-70B", 70.6e9, 0 },  { "Llama-3.2-1B", 1.24e9, 0 },
        { "Mistral-7B-v0.3", 7.25e9, 0 },  { "gemma-2-2b", 2.61e9, 0 },    { "gemma-2-9b", 9.24e9, 0 },
        { "Phi-3-mini-4k", 3.82e9, 0 },  { "TinyLlama-1.1B", 1.10e9, 0 },
        { "Qwen3-8B", 8.19e9, 0 },         { "Qwen3-32B", 32.8e9, 0 },     { "SmolLM3-3B", 3.08e9, 0 },
        { "phi-4", 14.7e9, 0 },          { "Mistral-Small-24B", 23.6e9, 0 },
        { "Mixtral-8x7B", 46.7e9, 12.9e9 },            { "Qwen3-30B-A3B-2507", 30.5e9, 3.3e9 },
        { "Qwen3-235B-A22B-2507", 235e9, 22e9 },
        { "DeepSeek-V3", 671e9, 37e9 },    { "DeepSeek-V2-Lite", 15.7e9, 2.4e9 },
        { "gpt-oss-20b", 20.9e9, 3.6e9 }, { "gpt-oss-120b", 116.8e9, 5.1e9 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct plan_params p;
        plan_count(shape_of(all[i].name), &p);
        near(all[i].name, (double)p.total, all[i].total, 0.01);
        if (all[i].active > 0)              /* model cards differ in whether embeddings count */
            near(all[i].name, (double)p.active, all[i].active, 0.16);
    }
}

/* Every entry of the registry has its fields and a configuration whose parameters can be counted.
 * 19 entries are those of ZSE 1.2, 5 of which are marked. */
static void registry_is_whole(void **state)
{
    static const char *const texts[] = { "id", "name", "description", "license", "provider" };
    json_t *m, *c;
    size_t i, k;
    int n12 = 0, n_optimized = 0;
    (void)state;
    json_array_foreach(registry, i, m) {
        struct err e;
        for (k = 0; k < sizeof texts / sizeof *texts; k++)
            assert_true(json_string_length(json_object_get(m, texts[k])) > 0);
        assert_non_null(strchr(json_string_value(json_object_get(m, "id")), '/'));
        assert_true(json_array_size(json_object_get(m, "categories")) > 0 && json_is_array(json_object_get(m, "tags")));
        json_array_foreach(json_object_get(m, "categories"), k, c) {
            const char *name = json_string_value(c);
            assert_true(strcmp(name, "chat") == 0 || strcmp(name, "instruct") == 0 || strcmp(name, "code") == 0 ||
                        strcmp(name, "reasoning") == 0);
        }
        n12 += json_is_true(json_object_get(m, "zse12"));
        n_optimized += json_is_true(json_object_get(m, "zse_optimized"));
        assert_ptr_equal(registry_find(registry, json_string_value(json_object_get(m, "id")), &e), m);
        assert_ptr_equal(registry_find(registry, json_string_value(json_object_get(m, "name")), &e), m);
    }
    assert_int_equal(n12, 19);
    assert_int_equal(n_optimized, 5);
    struct err e;
    assert_null(registry_find(registry, "Qwen2.5", &e));
    assert_non_null(strstr(e.msg, "several"));
    assert_null(registry_find(registry, "no-such", &e));
    assert_non_null(registry_find(registry, "smollm3", &e));
    assert_string_equal(registry_size(0.5e9), "tiny");
    assert_string_equal(registry_size(7.6e9), "medium");
    assert_string_equal(registry_size(70e9), "xxl");
}

/* The planner's sizes from a configuration alone are those of the converted weights. */
static uint64_t planned(const char *synthetic, const json_t *config, const char *type)
{
    struct convert_options o;
    struct convert_report r;
    struct err e;
    convert_defaults(&o);
    assert_int_equal(convert_parse_type(&o.type, type, &e), 0);
    o.synthetic = synthetic;
    o.config = config;
    o.n_threads = 1;
    if (convert_run(&o, &r, &e) != 0)
        fail_msg("%s: %s", synthetic, e.msg);
    const uint64_t bytes = r.weight_bytes;
    convert_report_release(&r);
    return bytes;
}

static void sizes_are_the_writers(void **state)
{
    static const char *const types[] = { "bf16", "int8", "int4", "nf4", "nl4", "f32" },
        *const names[] = { "SmolLM2-135M", "Qwen2.5-0.5B", "Qwen3-8B", "Llama-3.2-1B", "DeepSeek-V2-Lite",
                            "gpt-oss-20b" };
    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        /* models with experts, all of which are listed when a model is written, are compared for
         * one type only */
        for (size_t i = 0; i < sizeof names / sizeof *names - (strcmp(types[t], "nl4") ? 2 : 0); i++) {
            const uint64_t config_alone = planned(names[i], config_of(names[i]), types[t]),
                           known = planned(names[i], NULL, types[t]);
            if (config_alone != known)
                fail_msg("%s as %s: %llu, expected %llu", names[i], types[t], (unsigned long long)config_alone,
                         (unsigned long long)known);
        }
        struct convert_options o;           /* also convert a real model */
        struct convert_report r;
        struct err e;
        json_t *config = js_load("models/tiny/config.json", 1 << 20, &e);
        assert_non_null(config);
        convert_defaults(&o);
        assert_int_equal(convert_parse_type(&o.type, types[t], &e), 0);
        o.source = "models/tiny";
        char path[64];
        snprintf(path, sizeof path, "/tmp/zse-t-plan-%ld.zse", (long)getpid());
        o.output = path;
        o.effort = CONVERT_FAST;
        o.n_threads = 1;
        assert_int_equal(convert_run(&o, &r, &e), 0);
        assert_int_equal(planned("tiny", config, types[t]), r.weight_bytes);
        assert_true(r.file_bytes > r.weight_bytes);
        convert_report_release(&r);
        json_decref(config);
        remove(path);
    }
}

/* Bytes of a model by rough estimates: int8 layers with 16-bit embedding and head, and 4 bits in
 * groups of 128. */
static void rough_sizes_are_near_the_expected_ones(void **state)
{
    const struct plan_shape *s7 = shape_of("Qwen2.5-7B"), *s32 = shape_of("Qwen2.5-32B"),
                            *s72 = shape_of("Qwen2.5-72B");
    (void)state;
    near("7B int8", plan_rough_bytes(s7, 1, 2), 8.71 * GB, 0.002);
    near("32B int8", plan_rough_bytes(s32, 1, 2), 34.32 * GB, 0.002);
    near("72B int8", plan_rough_bytes(s72, 1, 2), 75.20 * GB, 0.002);
    near("7B fp16", plan_rough_bytes(s7, 2, 2), 15.24 * GB, 0.002);
    near("72B int4", plan_rough_bytes(s72, 0.5 + 2.0 / 128, 2), 41.2 * GB, 0.002);
}

static void key_and_value_bytes_are_the_expected_ones(void **state)
{
    const struct plan_shape *q = shape_of("Qwen2.5-7B"), *lite = shape_of("DeepSeek-V2-Lite"), *k = kimi(),
                            *g = shape_of("gemma-3-1b"), *small = shape_of("SmolLM2-135M");
    const struct plan_shape *v3 = shape_of("DeepSeek-V3");
    int n_windowed = 0;
    (void)state;
    assert_int_equal(plan_kv_token(q, KV_F16), 2 * 28 * 4 * 128 * 2);
    assert_int_equal(plan_kv_token(q, KV_F32), 2 * 28 * 4 * 128 * 4);
    assert_int_equal(plan_kv_token(q, KV_I8), 2 * 28 * 4 * (128 + 4));             /* a scale beside each row */
    assert_int_equal(plan_kv_bytes(small, KV_F16, 17, 1), 2 * plan_kv_bytes(small, KV_F16, 16, 1));     /* blocks */
    /* latent attention: 512 + 64 elements a token and layer */
    assert_int_equal(plan_kv_elements(&lite->layer[3]), 576);
    assert_int_equal(plan_kv_token(v3, KV_F16), 61 * 1152);
    near("fp8, 31 layers", 4032 * MIB / ((double)plan_kv_elements(k->layer) * 1 * 31.0), 236e3, 0.005);
    near("fp8, 30 layers", 4839 * MIB / ((double)plan_kv_elements(k->layer) * 1 * 30.0), 293e3, 0.005);
    near("bf16, 31 layers", 1811 * MIB / ((double)plan_kv_elements(k->layer) * 2 * 31.0), 53e3, 0.005);
    for (int i = 0; i < g->n_layers; i++)
        n_windowed += g->layer[i].window == 512;
    assert_int_equal(n_windowed, 26 - 26 / 6);
}

/* The planner counts the same keys, values and states as the engine, and the same parameters as the
 * weights have. */
static void compare(const char *name, const json_t *config)
{
    const struct plan_shape *s = shape_of_config(name, config);
    const struct weight_source all = { 0 };
    struct weight_spec *specs;
    struct plan_params p;
    struct config c;
    struct err e;
    int64_t sum = 0, used = 0;
    int n;
    json_t *normal = hf_config_normalize(config, &e);
    if (!normal || config_parse(&c, normal, &e) != 0 || weight_specs(&c, &all, &specs, &n, &e) != 0)
        fail_msg("%s: %s", name, e.msg);
    for (int kv = KV_F32; kv < KV_TYPES; kv++)
        assert_int_equal(plan_kv_bytes(s, (enum kv_type)kv, KV_BLOCK, 1),
                         config_kv_bytes(&c, kv_both((enum kv_type)kv)));
    assert_int_equal(plan_state_bytes(s), config_state_bytes(&c));
    for (int i = 0; i < n; i++) {
        sum += specs[i].rows * specs[i].cols;
        const int looked_up = strcmp(specs[i].name, "ple_embed.weight") == 0;
        if (specs[i].role != ROLE_POS && (specs[i].role != ROLE_EMBED || c.tied) && !looked_up)
            used += specs[i].rows * specs[i].cols * (specs[i].expert >= 0 ? c.moe.top_k : 1) /
                    (specs[i].expert >= 0 ? c.moe.n_experts : 1);
    }
    plan_count(s, &p);
    near(name, (double)p.total, (double)sum, 0.003);
    near(name, (double)p.active, (double)used, 0.003);
    free(specs);
    config_release(&c);
    json_decref(normal);
}

/* Layers with a window store it and the tokens of a step, not the whole context. */
static void windows_limit_the_planned_cache(void **state)
{
    json_t *normal;
    const struct plan_shape *s = shape_of("gemma-3-1b");
    struct config c;
    struct err e;
    (void)state;
    normal = hf_config_normalize(config_of("gemma-3-1b"), &e);
    assert_true(normal && config_parse(&c, normal, &e) == 0);
    for (int len = 512; len <= 32768; len *= 2)
        for (int n = 1; n <= 4; n += 3) {
            const struct engine_options o = { .kv = kv_both(KV_F16), .max_len = len, .max_tokens = 512, .max_seqs = n };
            assert_int_equal(plan_kv_bytes(s, KV_F16, len, n), engine_kv_needs(&c, &o, n));
            assert_int_equal(plan_kv_whole_bytes(s, KV_F16, len, n), (size_t)n * (size_t)len / KV_BLOCK *
                             config_kv_bytes(&c, kv_both(KV_F16)));
        }
    /* 22 of 26 layers see 512 tokens */
    assert_true(plan_kv_bytes(s, KV_F16, 32768, 1) < plan_kv_whole_bytes(s, KV_F16, 32768, 1) / 5);
    config_release(&c);
    json_decref(normal);
}

static int has_state(const struct plan_shape *s)
{
    for (int i = 0; i < s->n_layers; i++)
        if (s->layer[i].state_bytes)
            return 1;
    return 0;
}

static void same_as_the_engine(void **state)
{
    const char *arch;
    json_t *m;
    size_t i;
    (void)state;
    assert_true(json_array_size(registry) >= 19);
    json_array_foreach(registry, i, m) {
        const char *name = json_string_value(json_object_get(m, "name"));
        struct plan_params p, q;
        compare(name, json_object_get(m, "config"));
        plan_count(shape_of(name), &p);
        plan_count(guess_of(json_object_get(m, "config")), &q);        /* the guess for a model that
                                                                        * does not run */
        /* the guess counts a layer with a state as a layer of attention */
        const double by = has_state(shape_of(name)) ? 0.25 : 0.08;
        near(name, (double)q.total, (double)p.total, by);
        near(name, (double)q.active, (double)p.active, 2 * by);         /* the guess does not count
                                                                         * gates of attention
                                                                         * either */
    }
    /* every architecture with its own defaults, so that recurrences, convolutions, latents, experts
     * and windows all occur */
    for (int k = 0; (arch = config_architecture(k)); k++) {
        json_t *config = json_pack("{s:s}", "model_type", arch);
        if (strcmp(arch, "nemotron_h") == 0)
            json_object_set_new(config, "hybrid_override_pattern", json_string("M*-M-"));
        compare(arch, config);
        json_decref(config);
    }
}

/* A layer with a state adds nothing to the cache, at any length of the context.  Its bytes are read
 * once and written once per token. */
static void states_do_not_grow_with_the_context(void **state)
{
    json_t *mamba = json_pack("{s:s}", "model_type", "mamba2"), *next = json_pack("{s:s}", "model_type", "qwen3_next");
    const struct plan_shape *s = shape_of_config("mamba2", mamba), *h = shape_of_config("qwen3_next", next);
    struct plan_weights w = { .by_type[QT_NL4] = 1000000000, .ops[QT_NL4] = 2e9 };
    struct plan_rates r = { .n_threads = 2, .memory = 20e9, .attend = { 50e9, 60e9 }, .f32 = 200e9,
                            .read[QT_NL4] = 20e9, .multiply[QT_NL4] = 1e12 };
    int n = 0;
    (void)state;
    assert_int_equal(plan_kv_bytes(s, KV_F16, 4096, 1), 0);
    /* 64 layers, 128 heads of 64, 8 groups of 128: 3 inputs of 10240 channels, and 1048576 numbers
     * for the heads */
    assert_int_equal(plan_state_bytes(s), 64 * 4 * (3 * 10240 + 128 * 64 * 128));
    assert_true(plan_decode(s, &w, &r, kv_both(KV_F16), 10) > 0 &&
                plan_decode(s, &w, &r, kv_both(KV_F16), 10) == plan_decode(s, &w, &r, kv_both(KV_F16), 100000));
    for (int i = 0; i < h->n_layers; i++)
        n += h->layer[i].kv_rows > 0;
    assert_int_equal(n, h->n_layers / 4);       /* every fourth layer has attention */
    assert_int_equal(plan_kv_token(h, KV_F16), n * 2 * 2 * 256 * 2);
    assert_true(plan_state_bytes(h) > 0 &&
                plan_decode(h, &w, &r, kv_both(KV_F16), 65536) < plan_decode(h, &w, &r, kv_both(KV_F16), 10));
    json_decref(mamba);
    json_decref(next);
}

static void expert_buffers_have_the_expected_sizes(void **state)
{
    const struct plan_shape *s = shape_of("DeepSeek-V2-Lite");
    const double int4 = budget_expert_bytes(s, 4, 128), int8 = budget_expert_bytes(s, 8, 128);
    static const struct { int divisor; double mb, headroom; } all[] = { { 1, 7654, 2891 }, { 2, 3827, 6718 },
        { 3, 2551, 7994 }, { 0, 286, 10259 } };
    (void)state;
    assert_true(int4 == 4460544 && int8 == 8785920);
    near("int4 layer", budget_expert_buffer(s, int4, 0), 285.5e6, 0.0002);
    near("int8 layer", budget_expert_buffer(s, int8, 0), 562.3e6, 0.0002);
    for (size_t i = 0; i < 4; i++) {
        const double mb = budget_expert_buffer(s, int4, all[i].divisor) / 1e6;
        near("buffer", mb, all[i].mb, 0.002);
        near("headroom", 10545 - mb, all[i].headroom, 0.0005);
    }
    assert_true(2924 + 7654 <= 10746);      /* in a measured run, weights and all experts took 10746 MB */
}

static void each_rank_gets_the_expected_budget(void **state)
{
    static const struct { double weights, free, tokens; } want[3] = { { 5445, 10.4, 950e3 }, { 3018, 12.9, 1.115e6 },
                                                                      { 5114, 10.8, 980e3 } };
    const struct plan_shape *s = kimi();
    struct budget_options o = { .n_ranks = 3, .layers = { 20, 21, 20 }, .linear_bytes = 1, .kv_element_bytes = 1,
                                .rank_bytes = 16384 * MIB, .headroom_bytes = 500 * MIB };
    struct budget b;
    struct err e;
    int layers[3];
    (void)state;
    assert_int_equal(budget_make(&b, s, &o, &e), 0);
    for (int i = 0; i < 3; i++) {
        near("weights", b.rank[i].weights / MIB, want[i].weights, 0.0003);
        near("free", b.rank[i].free / MIB / 1e3, want[i].free, 0.005);
        near("tokens", b.rank[i].tokens, want[i].tokens, 0.002);
    }
    assert_true(b.bottleneck == 0 && b.context == 262144 && b.fraction < 1 && b.tokens == b.rank[0].tokens);
    budget_partition(61, 3, layers);
    assert_true(layers[0] == 21 && layers[1] == 20 && layers[2] == 20);
    o.layers[2] = 19;
    assert_int_equal(budget_make(&b, s, &o, &e), -1);
    assert_non_null(strstr(e.msg, "60 layers"));
    o.layers[2] = 30;
    assert_int_equal(budget_make(&b, s, &o, &e), -1);
    o.layers[2] = 20;
    o.rank_bytes = 4000 * MIB;                      /* the weights do not fit: the number of tokens
                                                     * is 0, not negative */
    assert_int_equal(budget_make(&b, s, &o, &e), 0);
    assert_true(b.rank[0].free < 0 && b.tokens == 0);
}

/* One choice for each type, with the figures of Qwen2.5-7B as zse-convert writes it. */
static void each_mode_chooses_the_expected_type(void **state)
{
    static const char *const types[] = { "bf16", "int8", "nl4" };
    struct plan_choice c[3] = { { 0 } };
    (void)state;
    for (int i = 0; i < 3; i++)
        c[i] = (struct plan_choice){ .type = types[i], .bytes = planned("7B", config_of("Qwen2.5-7B"), types[i]) };
    near("bf16", (double)c[0].bytes, 15.23 * GB, 0.001);
    /* int8 takes less than 8 GB, 4 bits less than 5 GB */
    assert_true(c[1].bytes < 8 * GB && c[2].bytes < 5.0 * GB);
    static const struct { double gb; enum plan_mode mode; const char *type; } all[] = {
        { 24, PLAN_AUTO, "bf16" },      { 6, PLAN_FOR_VRAM, "nl4" },       { 9, PLAN_FOR_VRAM, "int8" },
        { 17, PLAN_FOR_VRAM, "bf16" },
        { 8, PLAN_FOR_VRAM, "nl4" },    /* 8 GB card: int8 needs 7.9 GB */
        { 24, PLAN_MIN_MEMORY, "nl4" }, { 24, PLAN_BALANCED, "int8" },     { 24, PLAN_MAX_SPEED, "nl4" },
        { 4, PLAN_AUTO, NULL },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const int k = plan_choose(c, 3, all[i].mode, (uint64_t)(all[i].gb * GB));
        if (all[i].type ? k < 0 || strcmp(c[k].type, all[i].type) != 0 : k >= 0)
            fail_msg("%.0f GB, %s: %s, expected %s", all[i].gb, plan_mode_name(all[i].mode), k < 0 ? "none" : c[k].type,
                     all[i].type ? all[i].type : "none");
    }
    /* where speeds are known they decide */
    c[0].decode = 30, c[1].decode = 20, c[2].decode = 10;
    assert_int_equal(plan_choose(c, 3, PLAN_MAX_SPEED, (uint64_t)(24 * GB)), 0);
    c[0].prefill = 40, c[1].prefill = 60, c[2].prefill = 100;
    /* an exchange: 55.5, 31.4, 17.9 s */
    c[0].decode = 3, c[1].decode = 5.6, c[2].decode = 10;
    near("exchange", plan_exchange(&c[2]), 512 / 100.0 + 128 / 10.0, 1e-9);
    /* auto chooses the finest type that takes at most twice as long as the fastest */
    assert_int_equal(plan_choose(c, 3, PLAN_AUTO, (uint64_t)(24 * GB)), 1);
    assert_int_equal(plan_choose(c, 3, PLAN_MAX_SPEED, (uint64_t)(24 * GB)), 2);
    assert_int_equal(plan_choose(c, 3, PLAN_FOR_VRAM, (uint64_t)(24 * GB)), 0);
    /* if bf16 is nearly as fast, it is chosen */
    c[0].decode = 9;
    assert_int_equal(plan_choose(c, 3, PLAN_AUTO, (uint64_t)(24 * GB)), 0);
    c[0].decode = 1, c[1].decode = 1;
    assert_int_equal(plan_choose(c, 3, PLAN_AUTO, (uint64_t)(24 * GB)), 2);
    assert_int_equal(plan_choose(c, 3, PLAN_AUTO, (uint64_t)(9 * GB)), 2);
    assert_true(plan_mode_find("memory") == PLAN_MIN_MEMORY && plan_mode_find("min_memory") == PLAN_MIN_MEMORY &&
                plan_mode_find("speed") == PLAN_MAX_SPEED && plan_mode_find("fast") < 0);
}

static void plan_times_counts_whole_copies(void **state)
{
    (void)state;
    assert_int_equal(plan_times(80, 5.19), 15);
    assert_int_equal(plan_times(80, 19.25), 4);
    assert_true(plan_times(80 - 19.25, 5.19) >= 10);
    assert_int_equal(plan_times(-1, 1), 0);
    assert_int_equal(plan_times(1e18, 1), INT32_MAX);
}

static void preflight_refuses_what_does_not_fit(void **state)
{
    int tight;
    struct err e = { 0 };
    (void)state;
    assert_int_equal(plan_preflight("m", 80, 5, 3, 100, 100, &tight, &e), 0);
    assert_false(tight);
    assert_int_equal(plan_preflight("m", 85, 5, 3, 100, 100, &tight, &e), 0);
    assert_true(tight);
    assert_int_equal(plan_preflight("m", 90, 5, 3, 100, 100, &tight, &e), -1);      /* more than 95 % */
    assert_int_equal(e.code, ERR_LIMIT);
    /* more than is available */
    assert_int_equal(plan_preflight("m", 50, 5, 3, 100, 57, &tight, &e), -1);
    assert_int_equal(e.code, ERR_MEMORY);
    assert_int_equal(plan_preflight("model.zse", 2000000000, 500000000, 30000000, 2147483648, 2147483648, &tight, &e),
                     -1);
    assert_string_equal(e.msg, "model.zse: needs 2.53 GB (weights 2.00, keys and values 0.50, workspace 0.03), but there are 2.15 GB, 2.15 of them available");
}

/* The roofline: doubled rates double the speed, a longer context costs more, and a window limits
 * that cost. */
static void doubled_rates_double_the_speed(void **state)
{
    const struct plan_shape *s = shape_of("Qwen2.5-7B"), *g = shape_of("gemma-3-1b");
    struct plan_shape *all = shape_of("gemma-3-1b");
    struct plan_weights w = { .bytes = 5000000000, .step_bytes = 4000000000 };
    struct plan_rates r = { .n_threads = 2, .memory = 20e9, .attend = { 200e9, 60e9 }, .f32 = 200e9 }, twice;
    (void)state;
    w.by_type[QT_NL4] = 4000000000;
    w.ops[QT_NL4] = 13e9;
    /* no rate of this type */
    assert_true(plan_decode(s, &w, &r, kv_both(KV_F16), 0) == 0 && plan_prefill(s, &w, &r, 512) == 0);
    r.read[QT_NL4] = 20e9;
    r.multiply[QT_NL4] = 1e12;
    const double d = plan_decode(s, &w, &r, kv_both(KV_F16), 0), p = plan_prefill(s, &w, &r, 512);
    assert_true(d == 5 && p > 60 && p < 77);
    twice = r;
    twice.read[QT_NL4] *= 2, twice.multiply[QT_NL4] *= 2, twice.memory *= 2, twice.f32 *= 2, twice.attend[0] *= 2,
        twice.attend[1] *= 2;
    near("decode", plan_decode(s, &w, &twice, kv_both(KV_F16), 100), 2 * plan_decode(s, &w, &r, kv_both(KV_F16), 100),
         1e-9);
    near("prefill", plan_prefill(s, &w, &twice, 512), 2 * p, 1e-9);
    assert_true(plan_decode(s, &w, &r, kv_both(KV_F16), 8192) < 0.97 * d &&
                plan_decode(s, &w, &r, kv_both(KV_I8), 8192) > plan_decode(s, &w, &r, kv_both(KV_F16), 8192));
    const struct kv_types mixed = { KV_I8, KV_I4 };
    assert_true(plan_decode(s, &w, &r, mixed, 8192) > plan_decode(s, &w, &r, kv_both(KV_I8), 8192));
    /* 224 tokens are read as f16 beside i4 */
    struct plan_rates slow = r;
    slow.attend[0] = 1e18;
    near("tail", 1 / plan_decode(s, &w, &slow, mixed, 8192) - 1 / plan_decode(s, &w, &slow, mixed, 4096),
         4096.0 * 28 * 4 * (kv_block_bytes(KV_I8, 128) + kv_block_bytes(KV_I4, 128)) / KV_BLOCK / r.memory, 1e-6);
    near("short", plan_decode(s, &w, &slow, kv_both(KV_I4), 200), plan_decode(s, &w, &slow, kv_both(KV_F16), 200), 1e-9);
    assert_true(plan_prefill(s, &w, &r, 8192) < p);
    for (int i = 0; i < all->n_layers; i++)
        all->layer[i].window = 0;
    assert_true(plan_decode(g, &w, &r, kv_both(KV_F16), 32768) > plan_decode(all, &w, &r, kv_both(KV_F16), 32768));
    /* keys and values are read from memory while earlier ones are computed with, so the slower of
     * both counts */
    twice = r;
    twice.attend[0] = 1e15;
    assert_true(plan_decode(s, &w, &r, kv_both(KV_F16), 8192) == plan_decode(s, &w, &twice, kv_both(KV_F16), 8192));
    twice.attend[0] = 1e9;
    assert_true(plan_decode(s, &w, &r, kv_both(KV_F16), 8192) > plan_decode(s, &w, &twice, kv_both(KV_F16), 8192));
    /* work between the matrices: 28 layers of 3584 and 18944 floats; and the search in the
     * logits */
    twice = r;
    twice.sync_s = 1e-6, twice.norm_s = 2e-10, twice.round_s = 1e-9, twice.act_s = 5e-10, twice.pick_s = 1e-11;
    near("rows", 1 / plan_decode(s, &w, &twice, kv_both(KV_F16), 0) - 1 / d,
         28 * (5e-6 + 2 * 3584 * 2e-10 + (3 * 3584 + 18944) * 1e-9 + 18944 * 5e-10 / 2) + s->vocab_size * 1e-11, 1e-9);
}

/* Three shapes as nl4 on one machine (2 cores with AMX, which other programs also used): the rates
 * that zse-chat --plan measured, its prediction for a prompt of 512 tokens, and the speed that
 * zse-bench -p 512 measured next (scripts/plan-check prints such pairs).  From these rates the
 * roofline must give these predictions, and they must be within 15 % of the measured speeds. */
static void predictions_are_near_the_measured_speeds(void **state)
{
    static const struct {
        const char *name;
        double memory, f32, loop, attend[2], norm, round, act, read[3], multiply[3];         /* nl4, m5, m6 */
        double prefill, decode, measured_prefill, measured_decode;
    } all[] = {
        { "SmolLM2-135M", 24432127200, 256565413000, 5.1586e-7, { 46885189000, 53980700300 }, 3.92578125e-10,
          1.3545166e-9, 7.02270508e-10,
          { 14512807700, 10183463400, 11225209700 }, { 433446370000, 461063634000, 478681518000 }, 1526.60247,
          113.909795, 1412.13681, 104.374407 },
        { "SmolLM2-360M", 24714962400, 167945229000, 6.035e-7, { 43717625900, 50099753900 }, 4.62988281e-10,
          1.35878906e-9, 7.01025391e-10,
          { 15239311900, 10409718200, 11285020100 }, { 418405251000, 394216373000, 377473532000 }, 524.48878, 50.821549,
          522.350533, 49.801336 },
        { "Qwen2.5-0.5B", 25157165600, 261070132000, 5.13e-7, { 58924086200, 55594815600 }, 3.45507813e-10,
          1.29089355e-9, 6.93432617e-10,
          { 15610573000, 11032064100, 12991661600 }, { 433667211000, 420009677000, 446538539000 }, 514.63962,
          33.9518217, 569.5443, 34.1448324 },
    };
    static const enum qtype types[3] = { QT_NL4, QT_M5, QT_M6 };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const struct plan_shape *s = shape_of(all[i].name);
        struct plan_rates r = { .n_threads = 2, .memory = all[i].memory,
                                .attend = { all[i].attend[0], all[i].attend[1] }, .f32 = all[i].f32,
                                .sync_s = all[i].loop,
                                .norm_s = all[i].norm, .round_s = all[i].round, .act_s = all[i].act };
        struct plan_weights w = { 0 };
        struct convert_options o;
        struct convert_report report;
        struct err e;
        convert_defaults(&o);
        o.synthetic = all[i].name;
        o.n_threads = 1;
        if (convert_run(&o, &report, &e) != 0)
            fail_msg("%s", e.msg);
        for (int k = 0; k < report.n_tensors; k++) {
            const struct convert_tensor *t = &report.tensors[k];
            plan_add_tensor(&w, t->name, t->copies, t->type, (uint64_t)t->rows * (uint64_t)t->cols, t->bytes, 1,
                            s->tied, s->n_layers);
        }
        convert_report_release(&report);
        for (int k = 0; k < 3; k++) {
            r.read[types[k]] = all[i].read[k];
            r.multiply[types[k]] = all[i].multiply[k];
        }
        const double prefill = plan_prefill(s, &w, &r, 512), decode = plan_decode(s, &w, &r, kv_both(KV_F16), 512);
        near(all[i].name, prefill, all[i].prefill, 1e-3);
        near(all[i].name, decode, all[i].decode, 1e-3);
        near(all[i].name, prefill, all[i].measured_prefill, 0.15);
        near(all[i].name, decode, all[i].measured_decode, 0.15);
    }
}

static void bad_configs_are_refused_with_a_reason(void **state)
{
    static const char *const all[][2] = {
        { "{}", "num_hidden_layers is missing" },
        { "{\"num_hidden_layers\": 2, \"hidden_size\": \"x\"}", "hidden_size" },
        { "{\"num_hidden_layers\": 2, \"hidden_size\": 8, \"num_attention_heads\": 0, \"vocab_size\": 9}",
          "a size is 0" },
        { "[1]", "expected an object" },
        { "{\"num_hidden_layers\": 1e30}", "num_hidden_layers" },
        { "{\"num_hidden_layers\": 2, \"hidden_size\": 8, \"num_attention_heads\": 2, \"vocab_size\": 9, \"head_dim\": 0}", "a size is 0" },
        { "{\"num_hidden_layers\": 2, \"hidden_size\": 8, \"num_attention_heads\": 9, \"vocab_size\": 9}",
          "a size is 0" },
        { "{\"num_hidden_layers\": 65537, \"hidden_size\": 8, \"num_attention_heads\": 2, \"vocab_size\": 9}",
          "65537 layers" },
        { "{\"num_hidden_layers\": 2, \"hidden_size\": 8, \"num_attention_heads\": 2, \"vocab_size\": 9, \"num_experts\": 65537}", "65537 experts" },
        { "{\"num_hidden_layers\": 65536, \"hidden_size\": 268435456, \"num_attention_heads\": 2, \"vocab_size\": 9, \"num_experts\": 65536}", "its sizes make" },
        { "{\"num_hidden_layers\": 2, \"hidden_size\": 268435456, \"num_attention_heads\": 268435456, \"vocab_size\": 9, \"head_dim\": 268435456}", "its sizes make" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct plan_shape s;
        struct err e = { 0 };
        json_t *c = json_loads(all[i][0], 0, NULL);
        assert_non_null(c);
        assert_int_equal(plan_shape_guess(&s, c, &e), -1);
        plan_shape_release(&s);
        if (!strstr(e.msg, all[i][1]))
            fail_msg("'%s' does not say '%s'", e.msg, all[i][1]);
        json_decref(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameter_counts_match_model_cards), cmocka_unit_test(registry_is_whole),
        cmocka_unit_test(sizes_are_the_writers),
        cmocka_unit_test(rough_sizes_are_near_the_expected_ones),
        cmocka_unit_test(key_and_value_bytes_are_the_expected_ones), cmocka_unit_test(windows_limit_the_planned_cache),
        cmocka_unit_test(same_as_the_engine), cmocka_unit_test(states_do_not_grow_with_the_context),
        cmocka_unit_test(expert_buffers_have_the_expected_sizes),
        cmocka_unit_test(each_rank_gets_the_expected_budget),
        cmocka_unit_test(each_mode_chooses_the_expected_type), cmocka_unit_test(plan_times_counts_whole_copies),
        cmocka_unit_test(preflight_refuses_what_does_not_fit), cmocka_unit_test(doubled_rates_double_the_speed),
        cmocka_unit_test(predictions_are_near_the_measured_speeds),
        cmocka_unit_test(bad_configs_are_refused_with_a_reason),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
