/* t-model-weights.c - the places of weights in a source: prefixes, fused matrices, the order of
 * rows in a GGUF.  Errors name missing tensors and wrong shapes. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/json.h"
#include "libcommon/model/arch.h"
#include "libcommon/model/parts.h"

struct shape { const char *name; int64_t rows, cols; };     /* cols 0: a vector */
struct fake { const struct shape *shapes; const char *prefix, *without; };

static int shape_of(void *user, const char *name, int *n, int64_t dim[WEIGHT_DIMS])
{
    const struct fake *f = user;
    char full[160];
    for (const struct shape *s = f->shapes; s->name; s++) {
        snprintf(full, sizeof full, "%s%s", strncmp(s->name, "lm_head", 7) == 0 ? "" : f->prefix, s->name);
        if (strcmp(full, name) != 0 || (f->without && strcmp(f->without, s->name) == 0))
            continue;
        *n = s->cols ? 2 : 1;
        dim[0] = s->rows;
        dim[1] = s->cols;
        return 0;
    }
    return -1;
}

static void parse(struct config *c, const char *text)
{
    struct err e;
    json_t *json = js_parse("config.json", text, strlen(text), &e);
    if (!json || config_parse(c, json, &e) < 0)
        fail_msg("%s", e.msg);
    json_decref(json);
}

static int specs_of(const struct config *c, const struct shape *shapes, const char *prefix, const char *without,
                    struct weight_spec **specs, int *n, struct err *e)
{
    struct fake f = { shapes, prefix, without };
    const struct weight_source s = { .shape = shape_of, .user = &f };
    return weight_specs(c, &s, specs, n, e);
}

static const struct weight_spec *find(const struct weight_spec *s, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(s[i].name, name) == 0)
            return &s[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

#define TINY "\"hidden_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"vocab_size\": 10, \"intermediate_size\": 6"

static const struct shape llama[] = {
    { "embed_tokens.weight", 10, 8 }, { "norm.weight", 8, 0 }, { "lm_head.weight", 10, 8 },
    { "layers.0.input_layernorm.weight", 8, 0 },
    { "layers.0.post_attention_layernorm.weight", 8, 0 }, { "layers.0.self_attn.q_proj.weight", 8, 8 },
    { "layers.0.self_attn.k_proj.weight", 4, 8 },
    { "layers.0.self_attn.v_proj.weight", 4, 8 }, { "layers.0.self_attn.o_proj.weight", 8, 8 },
    { "layers.0.mlp.gate_proj.weight", 6, 8 },
    { "layers.0.mlp.up_proj.weight", 6, 8 }, { "layers.0.mlp.down_proj.weight", 8, 6 }, { NULL, 0, 0 },
};

/* The weights outside of the layers come before and after the layers in the order of ends.def, each
 * with its own row. */
static void outer_weights_come_in_the_table_order(void **state)
{
    static const char *const texts[] = {
        "{\"model_type\": \"opt\", \"hidden_size\": 8, \"num_hidden_layers\": 1, \"num_attention_heads\": 4, "
        "\"vocab_size\": 10, \"ffn_dim\": 6, \"max_position_embeddings\": 16, \"word_embed_proj_dim\": 4, "
        "\"tie_word_embeddings\": false}",
        "{\"model_type\": \"bloom\", \"hidden_size\": 8, \"n_layer\": 1, \"n_head\": 4, \"vocab_size\": 10, "
        "\"tie_word_embeddings\": false}",
    };
    static const struct { const char *name, *source; int64_t rows, cols; } want[2][6] = {
        { { "embed.weight", "model.decoder.embed_tokens.weight", 10, 4 },
          { "embed_in.weight", "model.decoder.project_in.weight", 8, 4 },
          { "pos_embed.weight", "model.decoder.embed_positions.weight", 18, 8 },
          { "final_norm.weight", "model.decoder.final_layer_norm.weight", 1, 8 },
          { "embed_out.weight", "model.decoder.project_out.weight", 4, 8 },
          { "head.weight", "lm_head.weight", 10, 4 } },
        { { "embed.weight", "model.word_embeddings.weight", 10, 8 },
          { "embed_norm.weight", "model.word_embeddings_layernorm.weight", 1, 8 },
          { "embed_norm.bias", "model.word_embeddings_layernorm.bias", 1, 8 },
          { "final_norm.weight", "model.ln_f.weight", 1, 8 },
          { "final_norm.bias", "model.ln_f.bias", 1, 8 }, { "head.weight", "lm_head.weight", 10, 8 } },
    };
    (void)state;
    for (int k = 0; k < 2; k++) {
        const struct weight_source all = { 0 };
        struct weight_spec *specs;
        struct config c;
        struct err e;
        int n, seen = 0, last = -1;
        parse(&c, texts[k]);
        if (weight_specs(&c, &all, &specs, &n, &e) < 0)
            fail_msg("%s", e.msg);
        for (int i = 0; i < n; i++) {
            const struct weight_spec *s = &specs[i];
            if (s->layer >= 0 || (k == 0 && strcmp(s->name, "final_norm.bias") == 0))
                continue;
            assert_true(seen < 6);
            assert_string_equal(s->name, want[k][seen].name);
            assert_string_equal(s->source, want[k][seen].source);
            assert_int_equal(s->rows, want[k][seen].rows);
            assert_int_equal(s->cols, want[k][seen].cols);
            assert_true(s->part >= last);
            last = s->part;
            assert_int_equal(strncmp(s->name, end_infos[s->part].name, strlen(end_infos[s->part].name)), 0);
            assert_int_equal(end_infos[s->part].is_first, i < n / 2);
            seen++;
        }
        assert_int_equal(seen, 6);
        free(specs);
        config_release(&c);
    }
}

static void weights_are_found_behind_every_prefix(void **state)
{
    (void)state;
    static const char *const prefixes[] = { "model.", "", "transformer.", "language_model.model.",
                                            "model.language_model." };
    struct config c;
    struct weight_spec *specs;
    struct err e;
    int n;
    parse(&c, "{\"model_type\": \"llama\", \"num_key_value_heads\": 2, " TINY "}");
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if (specs_of(&c, llama, prefixes[i], NULL, &specs, &n, &e) < 0)
            fail_msg("%s", e.msg);
        assert_int_equal(n, 12);
        char want[80];
        snprintf(want, sizeof want, "%slayers.0.mlp.down_proj.weight", prefixes[i]);
        assert_string_equal(find(specs, n, "layers.0.down_proj.weight")->source, want);
        assert_string_equal(find(specs, n, "head.weight")->source, "lm_head.weight");
        free(specs);
    }
    config_release(&c);
}

static void test_missing_and_misshapen(void **state)
{
    (void)state;
    struct config c;
    struct weight_spec *specs = NULL;
    struct err e;
    int n;
    parse(&c, "{\"model_type\": \"llama\", \"num_key_value_heads\": 2, \"tie_word_embeddings\": false, " TINY "}");
    for (const struct shape *s = llama; s->name; s++) {
        assert_int_equal(specs_of(&c, llama, "model.", s->name, &specs, &n, &e), -1);
        if (!strstr(e.msg, s->name) || !strstr(e.msg, "missing"))
            fail_msg("without %s: %s", s->name, e.msg);
    }
    for (size_t i = 0; llama[i].name; i++) {
        struct shape other[sizeof llama / sizeof *llama];
        char want[100];
        memcpy(other, llama, sizeof llama);
        other[i].rows++;
        if (llama[i].cols)
            snprintf(want, sizeof want, "shape [%d, %d], expected [%d, %d]", (int)llama[i].rows + 1, (int)llama[i].cols,
                     (int)llama[i].rows, (int)llama[i].cols);
        else
            snprintf(want, sizeof want, "shape [%d], expected [%d]", (int)llama[i].rows + 1, (int)llama[i].rows);
        assert_int_equal(specs_of(&c, other, "model.", NULL, &specs, &n, &e), -1);
        if (e.code != ERR_SHAPE || !strstr(e.msg, llama[i].name) || !strstr(e.msg, want))
            fail_msg("%s: %s", llama[i].name, e.msg);
    }
    config_release(&c);

    /* config.json does not say whether the head is tied: it is if the file has no head */
    parse(&c, "{\"model_type\": \"llama\", \"num_key_value_heads\": 2, " TINY "}");
    assert_int_equal(specs_of(&c, llama, "model.", "lm_head.weight", &specs, &n, &e), 0);
    assert_int_equal(n, 11);
    free(specs);
    config_release(&c);
    parse(&c, "{\"model_type\": \"llama\", \"num_key_value_heads\": 2, \"tie_word_embeddings\": true, " TINY "}");
    assert_int_equal(specs_of(&c, llama, "model.", NULL, &specs, &n, &e), 0);
    assert_int_equal(n, 11);
    assert_true(weight_skip(&c, "lm_head.weight"));
    free(specs);
    config_release(&c);
}

/* The row of the source for our row i, as zfile.h defines it. */
static int64_t source_row(const struct row_map *m, int64_t i)
{
    if (m->pairs) {
        const int64_t head = i / m->pairs, r = i % m->pairs, half = m->pairs / 2;
        i = head * m->pairs + 2 * (r % half) + r / half;
    }
    return m->run ? m->offset + i / m->run * m->stride + i % m->run : i;
}

static void row_maps_find_the_rows_of_each_projection(void **state)
{
    (void)state;
    struct config c;
    struct weight_spec *specs;
    struct err e;
    int n;
    /* falcon stores groups of two query heads, a key and a value; here there are two groups
     * (head_dim 2) */
    static const struct shape falcon[] = {
        { "word_embeddings.weight", 10, 8 }, { "ln_f.weight", 8, 0 }, { "ln_f.bias", 8, 0 },
        { "h.0.ln_attn.weight", 8, 0 }, { "h.0.ln_attn.bias", 8, 0 },
        { "h.0.ln_mlp.weight", 8, 0 }, { "h.0.ln_mlp.bias", 8, 0 },
        { "h.0.self_attention.query_key_value.weight", 16, 8 },
        { "h.0.self_attention.dense.weight", 8, 8 }, { "h.0.mlp.dense_h_to_4h.weight", 6, 8 },
        { "h.0.mlp.dense_4h_to_h.weight", 8, 6 }, { NULL, 0, 0 },
    };
    static const int q[] = { 0, 1, 2, 3, 8, 9, 10, 11 }, k[] = { 4, 5, 12, 13 }, v[] = { 6, 7, 14, 15 };
    parse(&c, "{\"model_type\": \"falcon\", \"new_decoder_architecture\": true, \"num_kv_heads\": 2, " TINY "}");
    if (specs_of(&c, falcon, "transformer.", NULL, &specs, &n, &e) < 0)
        fail_msg("%s", e.msg);
    for (int i = 0; i < 8; i++)
        assert_int_equal(source_row(&find(specs, n, "layers.0.q_proj.weight")->map, i), q[i]);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(source_row(&find(specs, n, "layers.0.k_proj.weight")->map, i), k[i]);
        assert_int_equal(source_row(&find(specs, n, "layers.0.v_proj.weight")->map, i), v[i]);
    }
    free(specs);
    config_release(&c);

    /* GPT-2's Conv1D: matrices are [in, out], with q, k and v side by side, and so are their
     * biases */
    static const struct shape gpt2[] = {
        { "wte.weight", 10, 8 }, { "wpe.weight", 20, 8 }, { "ln_f.weight", 8, 0 }, { "ln_f.bias", 8, 0 },
        { "h.0.ln_1.weight", 8, 0 }, { "h.0.ln_1.bias", 8, 0 },
        { "h.0.ln_2.weight", 8, 0 }, { "h.0.ln_2.bias", 8, 0 }, { "h.0.attn.c_attn.weight", 8, 24 },
        { "h.0.attn.c_attn.bias", 24, 0 },
        { "h.0.attn.c_proj.weight", 8, 8 }, { "h.0.attn.c_proj.bias", 8, 0 }, { "h.0.mlp.c_fc.weight", 8, 32 },
        { "h.0.mlp.c_fc.bias", 32, 0 },
        { "h.0.mlp.c_proj.weight", 32, 8 }, { "h.0.mlp.c_proj.bias", 8, 0 }, { NULL, 0, 0 },
    };
    parse(&c, "{\"model_type\": \"gpt2\", \"n_embd\": 8, \"n_layer\": 1, \"n_head\": 4, \"vocab_size\": 10, \"n_positions\": 20}");
    if (specs_of(&c, gpt2, "", NULL, &specs, &n, &e) < 0)
        fail_msg("%s", e.msg);
    assert_int_equal(source_row(&find(specs, n, "layers.0.v_proj.bias")->map, 3), 19);
    assert_int_equal(source_row(&find(specs, n, "layers.0.k_proj.weight")->map, 0), 8);
    assert_true(find(specs, n, "layers.0.k_proj.weight")->map.transposed &&
                find(specs, n, "layers.0.down_proj.weight")->map.transposed);
    assert_true(!find(specs, n, "embed.weight")->map.transposed &&
                !find(specs, n, "layers.0.v_proj.bias")->map.transposed);
    assert_true(weight_skip(&c, "h.0.attn.bias") && !weight_skip(&c, "h.0.attn.c_attn.bias"));
    free(specs);
    config_release(&c);

    /* llama in a GGUF: the halves of each head are interleaved in q and k, but not in v */
    static const struct shape gguf[] = {
        { "token_embd.weight", 10, 16 }, { "output_norm.weight", 16, 0 }, { "blk.0.attn_norm.weight", 16, 0 },
        { "blk.0.ffn_norm.weight", 16, 0 },
        { "blk.0.attn_q.weight", 16, 16 }, { "blk.0.attn_k.weight", 16, 16 }, { "blk.0.attn_v.weight", 16, 16 },
        { "blk.0.attn_output.weight", 16, 16 },
        { "blk.0.ffn_gate.weight", 6, 16 }, { "blk.0.ffn_up.weight", 6, 16 }, { "blk.0.ffn_down.weight", 16, 6 },
        { NULL, 0, 0 },
    };
    static const int order[] = { 0, 2, 1, 3, 4, 6, 5, 7 };
    parse(&c, "{\"model_type\": \"llama\", \"zse_gguf\": true, \"hidden_size\": 16, \"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"vocab_size\": 10, \"intermediate_size\": 6}");
    if (specs_of(&c, gguf, "", NULL, &specs, &n, &e) < 0)
        fail_msg("%s", e.msg);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(source_row(&find(specs, n, "layers.0.q_proj.weight")->map, i), order[i]);
        assert_int_equal(source_row(&find(specs, n, "layers.0.v_proj.weight")->map, i), i);
    }
    assert_true(weight_skip(&c, "rope_freqs.weight") && !weight_skip(&c, "blk.0.ffn_gate_inp.weight"));
    free(specs);
    config_release(&c);
}

/* A source with a mixture of experts inside a larger model.  apart: one tensor for each expert;
 * otherwise they are stacked, with in_out as [in, out]. */
struct stacked { int in_out, apart; };

static int stacked_shape(void *user, const char *name, int *n, int64_t dim[WEIGHT_DIMS])
{
    static const struct shape shapes[] = {
        { "embed_tokens.weight", 10, 8 }, { "norm.weight", 8, 0 }, { "layers.0.input_layernorm.weight", 8, 0 },
        { "layers.0.post_attention_layernorm.weight", 8, 0 }, { "layers.0.self_attn.q_norm.weight", 2, 0 },
        { "layers.0.self_attn.k_norm.weight", 2, 0 }, { "layers.0.self_attn.q_proj.weight", 8, 8 },
        { "layers.0.self_attn.k_proj.weight", 8, 8 }, { "layers.0.self_attn.v_proj.weight", 8, 8 },
        { "layers.0.self_attn.o_proj.weight", 8, 8 }, { "layers.0.mlp.gate.weight", 2, 8 }, { NULL, 0, 0 },
    };
    const struct stacked *s = user;
    const struct fake f = { shapes, "model.language_model.", NULL };
    const char *experts = strstr(name, "mlp.experts.");
    if (!experts)
        return shape_of((void *)&f, name, n, dim);
    const int is_up = strcmp(experts, "mlp.experts.gate_up_proj") == 0;
    if (!s->apart && (is_up || strcmp(experts, "mlp.experts.down_proj") == 0)) {
        const int64_t out = 8, in = is_up ? 8 : 4;          /* 2 * 4 rows of 8; 8 rows of 4 */
        *n = 3;
        dim[0] = 2;
        dim[1] = s->in_out ? in : out;
        dim[2] = s->in_out ? out : in;
        return 0;
    }
    if (!s->apart)
        return -1;
    *n = 2;
    dim[0] = strstr(experts, "down") ? 8 : 4;
    dim[1] = strstr(experts, "down") ? 4 : 8;
    return 0;
}

/* The experts of one architecture in three layouts.  Gate and up together are a square matrix
 * (8 rows, 8 columns), so only the shape of down tells that a layout is [in, out]. */
static void experts_are_found_in_three_layouts(void **state)
{
    (void)state;
    struct config c;
    parse(&c, "{\"model_type\": \"qwen3_vl_moe_text\", \"zse_wrapper\": \"qwen3_vl_moe\", \"head_dim\": 2, \"num_key_value_heads\": 4,"
              "\"num_experts\": 2, \"num_experts_per_tok\": 1, \"moe_intermediate_size\": 4, \"tie_word_embeddings\": true, " TINY "}");
    for (int form = 0; form < 3; form++) {
        struct stacked at = { form == 1, form == 2 };
        const struct weight_source s = { .shape = stacked_shape, .user = &at };
        struct weight_spec *specs;
        struct err e;
        int n;
        if (weight_specs(&c, &s, &specs, &n, &e) < 0)
            fail_msg("form %d: %s", form, e.msg);
        const struct weight_spec *up = find(specs, n, "layers.0.experts.1.up_proj.weight");
        assert_string_equal(up->source, form == 2 ? "model.language_model.layers.0.mlp.experts.1.up_proj.weight"
                                                  : "model.language_model.layers.0.mlp.experts.gate_up_proj");
        assert_int_equal(up->map.transposed, form == 1);
        assert_int_equal(source_row(&up->map, 0), form == 0 ? 12 : form == 1 ? 4 : 0);
        free(specs);
    }
    assert_int_equal(weight_skip(&c, "model.visual.patch_embed.proj.weight"), WEIGHT_ENCODER);
    assert_int_equal(weight_skip(&c, "mtp.fc.weight"), WEIGHT_PREDICTOR);
    assert_int_equal(weight_skip(&c, "model.other.weight"), WEIGHT_UNKNOWN);
    config_release(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(outer_weights_come_in_the_table_order),
        cmocka_unit_test(weights_are_found_behind_every_prefix), cmocka_unit_test(test_missing_and_misshapen),
        cmocka_unit_test(experts_are_found_in_three_layouts),
        cmocka_unit_test(row_maps_find_the_rows_of_each_projection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
