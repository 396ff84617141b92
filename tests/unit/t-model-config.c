/* t-model-config.c - config.json: defaults as in transformers, refusals and the fields that their
 * messages name, RoPE frequencies compared with their formulas. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>

#include "libcommon/base/json.h"
#include "libcommon/model/arch.h"

static int parse(struct config *c, const char *text, struct err *e)
{
    json_t *json = js_parse("config.json", text, strlen(text), e);
    int rc = json ? config_parse(c, json, e) : -1;
    json_decref(json);
    return rc;
}

static void must_parse(struct config *c, const char *text)
{
    struct err e;
    if (parse(c, text, &e) < 0)
        fail_msg("%s: %s", text, e.msg);
}

/* Every architecture can be parsed from its name alone, and config_architecture() lists all of the
 * table. */
static void every_architecture_parses_from_its_name(void **state)
{
    (void)state;
    static const struct { const char *name; int hidden, layers, heads, kv, head_dim, ff, vocab, tied; } want[] = {
        { "llama", 4096, 32, 32, 32, 128, 11008, 32000, 0 },    { "mistral", 4096, 32, 32, 8, 128, 14336, 32000, 0 },
        { "qwen3", 4096, 32, 32, 32, 128, 22016, 151936, 0 },   { "gemma3_text", 2304, 26, 8, 4, 256, 9216, 262208, 1 },
        { "gpt2", 768, 12, 12, 12, 64, 3072, 50257, 1 },        { "falcon", 4544, 32, 71, 1, 64, 18176, 65024, 1 },
        { "bloom", 64, 2, 8, 8, 8, 256, 250880, 1 },            { "opt", 768, 12, 12, 12, 64, 3072, 50272, 1 },
        { "glm4", 4096, 40, 32, 2, 128, 13696, 151552, 0 },     { "arcee", 2560, 32, 32, 32, 80, 18432, 32000, 0 },
    };
    const char *arch;
    struct config c;
    char text[80];
    for (int i = 0; (arch = config_architecture(i)); i++) {
        /* nemotron_h has no default for the kinds of its layers */
        snprintf(text, sizeof text, "{\"model_type\": \"%s\"%s}", arch,
                 strcmp(arch, "nemotron_h") == 0 ? ", \"hybrid_override_pattern\": \"M*-E\"" : "");
        must_parse(&c, text);
        assert_string_equal(c.arch, arch);
        config_release(&c);
    }
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        snprintf(text, sizeof text, "{\"model_type\": \"%s\"}", want[i].name);
        must_parse(&c, text);
        assert_int_equal(c.hidden_size, want[i].hidden);
        assert_int_equal(c.n_layers, want[i].layers);
        assert_int_equal(c.n_heads, want[i].heads);
        assert_int_equal(c.n_kv_heads, want[i].kv);
        assert_int_equal(c.head_dim, want[i].head_dim);
        assert_int_equal(c.intermediate_size, want[i].ff);
        assert_int_equal(c.vocab_size, want[i].vocab);
        assert_int_equal(c.tied, want[i].tied);
        config_release(&c);
    }
}

static void each_layer_gets_its_window(void **state)
{
    (void)state;
    struct config c;
    must_parse(&c, "{\"model_type\": \"mistral\", \"num_hidden_layers\": 2}");          /* left out: 4096 */
    assert_true(c.window[0] == 4096 && c.window[1] == 4096);
    config_release(&c);
    must_parse(&c, "{\"model_type\": \"mistral\", \"num_hidden_layers\": 2, \"sliding_window\": null}");
    assert_true(c.window[0] == 0 && c.window[1] == 0);
    config_release(&c);
    must_parse(&c, "{\"model_type\": \"gemma2\", \"num_hidden_layers\": 4}");
    assert_true(c.window[0] == 4096 && c.window[1] == 0 && c.window[2] == 4096 && c.window[3] == 0);
    assert_true(c.attn_softcap == 50 && c.final_softcap == 30);
    config_release(&c);
    must_parse(&c, "{\"model_type\": \"gemma3_text\", \"num_hidden_layers\": 7, \"sliding_window\": 512}");
    for (int i = 0; i < 7; i++)
        assert_int_equal(c.window[i], i == 5 ? 0 : 512);
    assert_true(c.n_ropes == 2 && c.rope_of[5] == 0 && c.rope_of[4] == 1 && c.attn_softcap == 0);
    config_release(&c);
    must_parse(&c, "{\"model_type\": \"qwen2\", \"num_hidden_layers\": 3, \"use_sliding_window\": false, \"sliding_window\": 64, \"max_window_layers\": 1}");
    assert_true(c.window[0] == 0 && c.window[2] == 0);
    config_release(&c);
    must_parse(&c, "{\"model_type\": \"exaone4\", \"num_hidden_layers\": 4, \"sliding_window\": 16, \"sliding_window_pattern\": \"LLLG\"}");
    assert_true(c.window[0] == 16 && c.window[3] == 0 && c.rope_of[0] == 0 && c.rope_of[3] == -1);
    config_release(&c);
    must_parse(&c, "{\"model_type\": \"granite_swa\", \"num_hidden_layers\": 5, \"layer_rope_theta\": [0, 1e4, 1e6, 1e4, 1e6]}");
    assert_true(c.window[0] == 0 && c.window[1] == 128 && c.window[4] == 0 && c.n_ropes == 2);
    assert_true(c.rope_of[0] == -1 && c.rope_of[1] == 0 && c.rope_of[2] == 1 && c.rope_of[3] == 0 && c.rope_of[4] == 1);
    config_release(&c);
    must_parse(&c, "{\"model_type\": \"olmo3\", \"num_hidden_layers\": 4, \"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 4, \"rope_theta\": 500}}");
    assert_true(c.n_ropes == 2 && c.rope_of[0] == 1 && c.rope_of[3] == 0);
    assert_true(c.ropes[0].inv_freq[0] == 0.25f && c.ropes[1].inv_freq[0] == 1 && c.ropes[1].inv_freq[1] < 1);
    config_release(&c);
    must_parse(&c, "{\"model_type\": \"ministral3\", \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 16, \"llama_4_scaling_beta\": 0.1, \"original_max_position_embeddings\": 16384}}");
    assert_true(c.temperature_scale == 0.1f && c.temperature_floor == 16384 && c.temperature_roped &&
                !c.temperature_first);
    config_release(&c);
    must_parse(&c, "{\"model_type\": \"nanochat\"}");
    assert_true(c.ropes[0].inv_freq[0] == -1 && c.qk_norm_after_rope);
    config_release(&c);
    must_parse(&c, "{\"model_type\": \"cohere2_moe\", \"num_hidden_layers\": 6, \"first_k_dense_replace\": 2, \"num_shared_experts\": 1}");
    /* the first two, dense layers have no window; of the later layers three in four have one, and
     * the fourth does not rotate */
    for (int i = 0; i < 6; i++) {
        assert_int_equal(c.window[i], i < 2 || i == 5 ? 0 : 4096);
        assert_int_equal(c.rope_of[i], i == 5 ? -1 : 0);
    }
    assert_true(c.moe.scale == 0.5f && c.moe.shared_scale == 0.5f && c.norm == NORM_LAYER);
    config_release(&c);
    must_parse(&c, "{\"model_type\": \"mimo_v2_flash\", \"num_hidden_layers\": 3, \"hybrid_layer_pattern\": [0, 1, 1], \"moe_layer_freq\": [0, 1, 1], \"swa_num_key_value_heads\": 8, \"sliding_window_size\": 128, \"layernorm_epsilon\": 1e-6}");
    assert_true(c.window[0] == 0 && c.window[1] == 129 && c.ff[0] == FF_DENSE && c.ff[1] == FF_MOE &&
                c.n_kv_heads == 8);
    assert_true(config_kv_heads(&c, 0) == 4 && config_kv_heads(&c, 2) == 8 && c.head_dim == 192);
    assert_true(config_key_dim(&c, 0) == 192 && config_value_dim(&c, 0) == 128 && c.norm_eps == 1e-6f);
    config_release(&c);
    must_parse(&c, "{\"model_type\": \"deepseek_v3\", \"kv_lora_rank\": 500, \"v_head_dim\": 20}");
    config_release(&c);
    must_parse(&c, "{\"model_type\": \"glm4_moe_lite\", \"num_hidden_layers\": 3, \"mlp_layer_types\": [\"sparse\", \"dense\", \"sparse\"]}");
    assert_true(c.ff[0] == FF_MOE && c.ff[1] == FF_DENSE && c.ff[2] == FF_MOE && c.head_dim == 512 + 64);
    config_release(&c);
    must_parse(&c, "{\"model_type\": \"smollm3\", \"num_hidden_layers\": 4}");
    assert_true(c.rope_of[0] == 0 && c.rope_of[2] == 0 && c.rope_of[3] == -1);
    config_release(&c);
}

/* The reason why a backend with these features refuses a family of models; NULL: it runs them. */
static void features_that_a_backend_lacks_are_named(void **state)
{
    (void)state;
    enum { BOTH = FEATURE_EXPERTS | FEATURE_SINKS, ALL = BOTH | FEATURE_STATES | FEATURE_GATES | FEATURE_LATENTS,
           MOST = ALL | FEATURE_VARIANTS };
    static const struct { const char *keys, *says; unsigned features; } cases[] = {
        { "\"model_type\": \"mixtral\"", NULL, BOTH }, { "\"model_type\": \"qwen3_moe\"", NULL, BOTH },
        { "\"model_type\": \"mixtral\"", "a mixture of experts", FEATURE_SINKS },
        { "\"model_type\": \"gpt_oss\"", NULL, BOTH },
        { "\"model_type\": \"gpt_oss\"", "attention sinks", FEATURE_EXPERTS },
        { "\"model_type\": \"afmoe\"", "gated attention", BOTH },
        { "\"model_type\": \"granite_swa\"", NULL, FEATURE_SINKS },
        { "\"model_type\": \"deepseek_v3\"", "multi-head latent attention", BOTH },
        { "\"model_type\": \"olmo3\"", NULL, 0 }, { "\"model_type\": \"helium\"", NULL, 0 },
        { "\"model_type\": \"internlm3\"", NULL, 0 }, { "\"model_type\": \"jais2\"", NULL, 0 },
        { "\"model_type\": \"qwen2_5_vl\", \"zse_wrapper\": \"qwen2_5_vl\"", NULL, 0 },
        { "\"model_type\": \"ministral3\"", NULL, 0 },
        { "\"model_type\": \"ministral3\", \"rope_parameters\": {\"llama_4_scaling_beta\": 0.1}",
          "queries scaled by their position", 0 },
        { "\"model_type\": \"granite_swa\"", "attention sinks", 0 },
        { "\"model_type\": \"bitnet\"", "norms inside of attention and MLP", ALL },
        { "\"model_type\": \"bitnet\"", NULL, MOST }, { "\"model_type\": \"nanochat\"", NULL, MOST },
        { "\"model_type\": \"nanochat\"", "norms of q and k without weights", 0 },
        { "\"model_type\": \"apertus\"", "an activation with parameters", 0 },
        { "\"model_type\": \"minicpm3\"", "multi-head latent attention", 0 },
        { "\"model_type\": \"afmoe\"", "a mixture of experts", 0 },
        { "\"model_type\": \"lfm2_moe\"", "recurrent layers", 0 }, { "\"model_type\": \"lfm2_moe\"", NULL, ALL },
        { "\"model_type\": \"qwen3_next\"", NULL, ALL }, { "\"model_type\": \"mamba2\"", NULL, ALL },
        { "\"model_type\": \"afmoe\"", NULL, ALL }, { "\"model_type\": \"deepseek_v3\"", NULL, ALL },
        { "\"model_type\": \"glm_moe_dsa\"", "attention to few chosen tokens", ALL },
        { "\"model_type\": \"jamba\"", "Mamba1", ALL },
        { "\"model_type\": \"minimax\"", "lightning attention", ALL },
        { "\"model_type\": \"falcon_h1\"", "attention and a state in parallel", ALL },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config c;
        char text[256];
        const char *extra = strstr(cases[i].keys, "lfm2_moe")
                                ? ", \"num_hidden_layers\": 2, \"layer_types\": [\"conv\", \"full_attention\"]" : "";
        snprintf(text, sizeof text, "{%s%s}", cases[i].keys, extra);
        must_parse(&c, text);
        const char *says = config_beyond(&c, cases[i].features);
        if (!says != !cases[i].says || (says && strcmp(says, cases[i].says) != 0))
            fail_msg("%s: %s", text, says ? says : "runs");
        config_release(&c);
    }
}

/* Keys and values that are not understood are refused, and the message names them. */
static const struct { const char *json, *says; } refused[] = {
    { "[]", "expected an object" },
    { "{}", "model_type is missing" },
    { "{\"model_type\": 3}", "model_type: found a whole number, expected a string" },
    { "{\"model_type\": \"t5gemma\"}", "\"t5gemma\" is not supported; these are: llama mistral" },
    { "{\"model_type\": \"llama\", \"frobnicate\": 3}", "frobnicate: 3 is not understood" },
    { "{\"model_type\": \"llama\", \"num_local_experts\": 8}", "num_local_experts: 8 is not understood" },
    { "{\"model_type\": \"llama\", \"quantization_config\": {\"quant_method\": \"gptq\"}}",
      "quantization_config: weights quantized by \"gptq\" are not supported" },
    { "{\"model_type\": \"llama\", \"sliding_window\": 512}", "sliding_window: 512 is not understood" },
    { "{\"model_type\": \"llama\", \"hidden_act\": \"snake\"}", "hidden_act \"snake\"" },
    { "{\"model_type\": \"llama\", \"hidden_size\": \"big\"}",
      "hidden_size: found a string, expected a whole number" },
    { "{\"model_type\": \"llama\", \"hidden_size\": 0}", "hidden_size is 0, expected 1 to" },
    { "{\"model_type\": \"llama\", \"hidden_size\": 1e300}",
      "hidden_size: found a number, expected a whole number" },
    { "{\"model_type\": \"llama\", \"num_hidden_layers\": -1}", "num_hidden_layers is -1" },
    { "{\"model_type\": \"llama\", \"num_hidden_layers\": 9223372036854775807}",
      "num_hidden_layers is 9223372036854775807" },
    { "{\"model_type\": \"llama\", \"num_attention_heads\": 7}",
      "hidden_size 4096 is not a multiple of num_attention_heads 7" },
    { "{\"model_type\": \"llama\", \"num_key_value_heads\": 5}",
      "num_attention_heads 32 is not a multiple of num_key_value_heads 5" },
    { "{\"model_type\": \"llama\", \"head_dim\": 16777216}", "product of at most" },
    { "{\"model_type\": \"llama\", \"head_dim\": 3}",
      "3 of head_dim 3 dimensions rotate, expected an even number" },
    { "{\"model_type\": \"llama\", \"rope_interleaved\": true}", "rope_interleaved: true is not supported" },
    { "{\"model_type\": \"llama\", \"rope_parameters\": 7}", "rope_parameters: found a whole number" },
    { "{\"model_type\": \"apertus\", \"hidden_act\": \"silu\"}", "hidden_act other than" },
    { "{\"model_type\": \"llama\", \"hidden_act\": \"xielu\"}", "hidden_act \"xielu\" is not supported" },
    { "{\"model_type\": \"cohere2_moe\", \"expert_selection_fn\": \"max\"}", "expert_selection_fn \"max\"" },
    { "{\"model_type\": \"mimo_v2_flash\", \"hybrid_layer_pattern\": [1]}", "hybrid_layer_pattern: expected an array" },
    { "{\"model_type\": \"mimo_v2_flash\", \"swa_head_dim\": 64}", "swa_head_dim: expected 192" },
    { "{\"model_type\": \"mimo_v2_flash\", \"swa_num_key_value_heads\": 5}", "not a multiple of 4 and 5" },
    { "{\"model_type\": \"deepseek_v4\", \"num_hidden_layers\": 1, \"layer_types\": [\"full_attention\"]}",
      "layer 0 is \"full_attention\", expected one of" },
    { "{\"model_type\": \"deepseek_v4\", \"num_hidden_layers\": 2, \"layer_types\": [\"sliding_attention\"]}",
      "layer_types: expected an array of num_hidden_layers = 2" },
    { "{\"model_type\": \"deepseek_v4\", \"num_hidden_layers\": 1, \"layer_types\": 7}",
      "layer_types: expected an array" },
    { "{\"model_type\": \"deepseek_v4\", \"num_hidden_layers\": 1, \"compress_ratios\": [5]}",
      "element 0 is not 0, 4 or 128" },
    { "{\"model_type\": \"deepseek_v4\", \"num_hidden_layers\": 1, \"compress_ratios\": [\"4\"]}",
      "element 0 is not 0, 4 or 128" },
    { "{\"model_type\": \"deepseek_v4\", \"compress_ratios\": [4]}",
      "compress_ratios: expected an array of num_hidden_layers = 43" },
    { "{\"model_type\": \"deepseek_v4\", \"compress_rates\": [4]}", "compress_rates: found an array" },
    { "{\"model_type\": \"deepseek_v4\", \"compress_rates\": {\"other\": 4}}", "\"other\" is not the kind of a layer" },
    { "{\"model_type\": \"deepseek_v4\", \"compress_rates\": {\"compressed_sparse_attention\": 0}}",
      "with a number from 1" },
    { "{\"model_type\": \"deepseek_v4\", \"compress_rates\": {\"compressed_sparse_attention\": 9999999}}",
      "with a number from 1" },
    { "{\"model_type\": \"deepseek_v4\", \"compress_rate_hca\": -3}", "compress_rate_hca is -3" },
    { "{\"model_type\": \"deepseek_v4\", \"num_hidden_layers\": 1, \"mlp_layer_types\": [\"dense\"]}",
      "layer 0 is \"dense\", expected \"hash_moe\" or \"moe\"" },
    { "{\"model_type\": \"deepseek_v4\", \"mlp_layer_types\": []}", "mlp_layer_types: expected an array" },
    { "{\"model_type\": \"deepseek_v4\", \"num_hash_layers\": -1}", "num_hash_layers is -1" },
    { "{\"model_type\": \"deepseek_v4\", \"hc_mult\": 0}", "hc_mult is 0, expected 1 to 16" },
    { "{\"model_type\": \"deepseek_v4\", \"hc_mult\": 17}", "hc_mult is 17" },
    { "{\"model_type\": \"deepseek_v4\", \"hc_mult\": \"4\"}", "hc_mult: found" },
    { "{\"model_type\": \"deepseek_v4\", \"hc_sinkhorn_iters\": 0}", "hc_sinkhorn_iters is 0" },
    { "{\"model_type\": \"deepseek_v4\", \"hc_sinkhorn_iters\": 1000000}", "hc_sinkhorn_iters is 1000000" },
    { "{\"model_type\": \"deepseek_v4\", \"hc_eps\": -1}", "hc_eps is -1" },
    { "{\"model_type\": \"deepseek_v4\", \"o_groups\": 3}", "o_groups 3 of o_lora_rank 1024: does not fit" },
    { "{\"model_type\": \"deepseek_v4\", \"o_groups\": 0}", "o_groups is 0" },
    { "{\"model_type\": \"deepseek_v4\", \"o_lora_rank\": 0}", "o_lora_rank is 0" },
    { "{\"model_type\": \"deepseek_v4\", \"o_lora_rank\": 16777216}", "does not fit" },
    { "{\"model_type\": \"deepseek_v4\", \"q_lora_rank\": 0}", "q_lora_rank is 0" },
    { "{\"model_type\": \"deepseek_v4\", \"index_head_dim\": 32}",
      "index_head_dim 32, qk_rope_head_dim 64: does not fit" },
    { "{\"model_type\": \"deepseek_v4\", \"index_n_heads\": 0}", "index_n_heads is 0" },
    { "{\"model_type\": \"deepseek_v4\", \"index_topk\": 0}", "index_topk is 0" },
    { "{\"model_type\": \"deepseek_v4\", \"qk_rope_head_dim\": 3}", "qk_rope_head_dim 3: does not fit" },
    { "{\"model_type\": \"deepseek_v4\", \"qk_rope_head_dim\": 513}", "qk_rope_head_dim is 513" },
    { "{\"model_type\": \"deepseek_v4\", \"sliding_window\": 0}", "sliding_window is 0" },
    { "{\"model_type\": \"deepseek_v4\", \"num_key_value_heads\": 2}", "num_key_value_heads is 2, expected 1" },
    { "{\"model_type\": \"deepseek_v4\", \"scoring_func\": \"tanh\"}", "scoring_func \"tanh\" is not supported" },
    { "{\"model_type\": \"deepseek_v4\", \"topk_method\": \"greedy\"}", "topk_method \"greedy\" is not supported" },
    { "{\"model_type\": \"deepseek_v4\", \"swiglu_limit\": 0}", "swiglu_limit is 0" },
    { "{\"model_type\": \"deepseek_v4\", \"norm_topk_prob\": false}", "norm_topk_prob: false is not supported" },
    { "{\"model_type\": \"deepseek_v4\", \"rope_parameters\": {\"main\": {}, \"other\": {}}}",
      "expected main and compress" },
    { "{\"model_type\": \"deepseek_v4\", \"hc_other\": 1}", "hc_other: 1 is not understood" },
    { "{\"model_type\": \"qwen4_exp_text\", \"hc_count\": 1}", "hc_count is 1, expected 2 to 16" },
    { "{\"model_type\": \"qwen4_exp_text\", \"hc_count\": 17}", "hc_count is 17" },
    { "{\"model_type\": \"qwen4_exp_text\", \"hc_lowrank\": 0}", "hc_lowrank is 0" },
    { "{\"model_type\": \"qwen4_exp_text\", \"hidden_size\": 8388608}", "hc_count 4 of hidden_size 8388608" },
    { "{\"model_type\": \"qwen4_exp_text\", \"output_gate_type\": \"tanh\"}",
      "output_gate_type \"tanh\" is not supported" },
    { "{\"model_type\": \"qwen4_exp_text\", \"num_hidden_layers\": 1, \"layer_types\": [\"mamba\"]}",
      "layer 0 is \"mamba\"" },
    { "{\"model_type\": \"qwen4_exp_text\", \"ple_layer_ids\": 3}", "ple_layer_ids: found" },
    { "{\"model_type\": \"qwen4_exp_text\", \"ple_layer_ids\": [0]}",
      "ple_layer_ids: element 0 is no layer of linear attention" },
    { "{\"model_type\": \"qwen4_exp_text\", \"ple_layer_ids\": [4]}",
      "ple_layer_ids: element 0 is no layer of linear attention" },
    { "{\"model_type\": \"qwen4_exp_text\", \"ple_layer_ids\": [\"1\"]}", "ple_layer_ids: element 0 is no layer" },
    { "{\"model_type\": \"qwen4_exp_text\", \"ple_layer_ids\": [1]}", "an eos_token_id is missing" },
    { "{\"model_type\": \"qwen4_exp_text\", \"eos_token_id\": 2, \"ple_layer_ids\": [1], \"ple_embed_dim\": 7}",
      "ple_embed_dim 7 is not a multiple" },
    { "{\"model_type\": \"qwen4_exp_text\", \"eos_token_id\": 2, \"ple_layer_ids\": [1], \"heads_per_ngram\": 64, \"ngram_vocab_size_base\": 268435456}", "too many rows" },
    { "{\"model_type\": \"qwen4_exp_text\", \"ngram_size\": 1}", "ngram_size is 1" },
    { "{\"model_type\": \"qwen4_exp_text\", \"ngram_size\": 9}", "ngram_size is 9" },
    { "{\"model_type\": \"qwen4_exp_text\", \"heads_per_ngram\": 0}", "heads_per_ngram is 0" },
    { "{\"model_type\": \"qwen4_exp_text\", \"ngram_vocab_size_base\": 0}", "ngram_vocab_size_base is 0" },
    { "{\"model_type\": \"qwen4_exp_text\", \"split_ngram_parts\": 0}", "split_ngram_parts is 0" },
    { "{\"model_type\": \"qwen4_exp_text\", \"split_ngram_parts\": 513}", "split_ngram_parts is 513" },
    { "{\"model_type\": \"qwen4_exp_text\", \"make_ngram_vocab_size_divisible_by\": 0}", "divisible_by is 0" },
    { "{\"model_type\": \"qwen4_exp_text\", \"ple_conv_kernel_size\": 1}", "ple_conv_kernel_size is 1" },
    { "{\"model_type\": \"qwen4_exp_text\", \"seed\": -1}", "seed is -1" },
    { "{\"model_type\": \"qwen4_exp_text\", \"ple_layer_ids\": [1], \"ngram_size\": 2, \"heads_per_ngram\": 1, \"zse_ngram_end\": 248320}",
      "zse_ngram_end is 248320" },
    { "{\"model_type\": \"qwen4_exp_text\", \"ple_layer_ids\": [1], \"ngram_size\": 2, \"heads_per_ngram\": 1, \"zse_ngram_end\": 7, \"zse_ngram_factors\": [1, 2, 3]}",
      "zse_ngram_factors: expected an array of 2 numbers from 1 to 9223372036854775807" },
    { "{\"model_type\": \"qwen4_exp_text\", \"ple_layer_ids\": [1], \"ngram_size\": 2, \"heads_per_ngram\": 1, \"zse_ngram_end\": 7, \"zse_ngram_factors\": [1, -5]}",
      "zse_ngram_factors: expected an array of 2 numbers" },
    { "{\"model_type\": \"qwen4_exp_text\", \"ple_layer_ids\": [1], \"ngram_size\": 2, \"heads_per_ngram\": 1, \"zse_ngram_end\": 7, \"zse_ngram_factors\": [1, 3], \"zse_ngram_rows\": [2147483648]}",
      "zse_ngram_rows: expected an array of 1 numbers from 1 to 2147483647" },
    { "{\"model_type\": \"qwen4_exp_text\", \"ple_layer_ids\": [1], \"ngram_size\": 2, \"heads_per_ngram\": 1, \"zse_ngram_end\": 7, \"zse_ngram_factors\": [1, 3], \"zse_ngram_rows\": [11]}",
      "zse_ngram_all_rows: expected an array of 1 numbers" },
    { "{\"model_type\": \"qwen4_exp_text\", \"ple_layer_ids\": [1], \"ngram_size\": 2, \"heads_per_ngram\": 1, \"zse_ngram_end\": 7, \"zse_ngram_factors\": [1, 3], \"zse_ngram_rows\": [11], \"zse_ngram_all_rows\": [10]}",
      "10 rows, but zse_ngram_rows adds up to 11" },
    { "{\"model_type\": \"qwen4_exp_text\", \"indexer_n_heads\": 4}", "does not fit" },
    { "{\"model_type\": \"qwen4_exp_text\", \"indexer_n_heads\": 0}", "indexer_n_heads is 0" },
    { "{\"model_type\": \"qwen4_exp_text\", \"indexer_kv_heads\": 2}", "indexer_kv_heads: 2 is not supported, expected 1" },
    { "{\"model_type\": \"qwen4_exp_text\", \"indexer_n_heads\": 4, \"indexer_head_dim\": 64, \"indexer_compress_ratio\": 4, \"indexer_budget\": 25}", "indexer_budget 25 in runs of indexer_compress_ratio 4: does not fit" },
    { "{\"model_type\": \"qwen4_exp_text\", \"indexer_n_heads\": 4, \"indexer_head_dim\": 32, \"indexer_compress_ratio\": 4, \"indexer_budget\": 24}", "indexer_head_dim 32, indexer_budget" },
    { "{\"model_type\": \"qwen4_exp_text\", \"attn_output_gate\": false}", "attn_output_gate: false is not supported" },
    { "{\"model_type\": \"granite_swa\", \"layer_rope_theta\": [1]}",
      "layer_rope_theta: expected an array of num_hidden_layers = 24" },
    { "{\"model_type\": \"granite_swa\", \"num_hidden_layers\": 1, \"layer_rope_theta\": [-1]}",
      "element 0 is not a number from 0 on" },
    { "{\"model_type\": \"granite_swa\", \"num_hidden_layers\": 9, \"layer_rope_theta\": [1,2,3,4,5,6,7,8,9]}",
      "more than 8 different" },
    { "{\"model_type\": \"phimoe\", \"num_experts_per_tok\": 3}", "num_experts_per_tok 3, expected 2" },
    { "{\"model_type\": \"hy_v3\", \"num_hidden_layers\": 1, \"mlp_layer_types\": [\"odd\"]}", "layer 0 is \"odd\"" },
    { "{\"model_type\": \"exaone_moe\", \"mlp_layer_types\": [\"dense\"]}", "mlp_layer_types: expected an array" },
    { "{\"model_type\": \"llama\", \"rope_parameters\": {\"llama_4_scaling_beta\": 0.1}}", "llama_4_scaling_beta" },
    { "{\"model_type\": \"qwen3\", \"vision_start_token_id\": 7}", "vision_start_token_id: 7 is not understood" },
    { "{\"model_type\": \"nemotron_h\"}", "layers_block_type is missing" },
    { "{\"model_type\": \"nemotron_h\", \"hybrid_override_pattern\": \"MF\"}",
      "layer 1 is 'F', expected M, *, - or E" },
    { "{\"model_type\": \"nemotron_h\", \"layers_block_type\": [\"conv\"]}",
      "layer 0 is \"conv\", which is not supported" },
    { "{\"model_type\": \"mpnet\", \"relative_attention_num_buckets\": 64}",
      "relative_attention_num_buckets: 64 is not supported, expected 32" },
    { "{\"model_type\": \"nemotron_h\", \"layers_block_type\": [\"moe\"], \"moe_latent_size\": -1}",
      "moe_latent_size" },
    { "{\"model_type\": \"bailing_hybrid\", \"group_norm_size\": 4}", "group_norm_size: 4 is not supported, expected 1" },
    { "{\"model_type\": \"bailing_hybrid\", \"num_kv_heads_for_linear_attn\": 4}", "linear_attn: 4 is not supported, expected 0" },
    { "{\"model_type\": \"bailing_hybrid\", \"moe_shared_expert_intermediate_size\": 64}",
      "64 is not supported, expected 768" },
    { "{\"model_type\": \"bailing_hybrid\", \"gated_attention_proj_granularity_type\": \"element_wise\"}",
      "\"element_wise\" is not supported by this architecture, expected \"head_wise\"" },
    { "{\"model_type\": \"bailing_hybrid\", \"no_kda_lora\": false}", "no_kda_lora: false is not supported" },
    { "{\"model_type\": \"bailing_hybrid\", \"expert_swiglu_limit_list\": [0, 4]}",
      "expert_swiglu_limit_list: [0,4] is not understood" },
    { "{\"model_type\": \"minimax_m1\", \"attn_type_list\": [0, 1]}", "found 2 elements, expected an array of 80" },
    { "{\"model_type\": \"minimax_m1\", \"num_hidden_layers\": 2, \"attn_type_list\": [0, 2]}",
      "attn_type_list: layer 1 is not 0 or 1" },
    { "{\"model_type\": \"minimax_m1\", \"num_hidden_layers\": 2, \"attn_type_list\": [0, 1], \"layer_types\": "
      "[\"linear_attention\", \"linear_attention\"]}", "layer 1 is 1, which is not what layer_types says" },
    { "{\"model_type\": \"bailing_hybrid\", \"kda_lower_bound\": 0}", "kda_lower_bound is 0, expected a negative" },
    { "{\"model_type\": \"bailing_hybrid\", \"use_qk_norm\": false}", "use_qk_norm: false is not supported" },
    { "{\"model_type\": \"minimax_m1\", \"shared_intermediate_size\": 8}", "shared_intermediate_size: 8 is not supported, expected 0" },
    { "{\"model_type\": \"falcon_h1\", \"mamba_use_mlp\": false}", "mamba_use_mlp: false is not supported" },
    { "{\"model_type\": \"minimax_m1\", \"postnorm\": false}", "postnorm: false is not supported" },
    { "{\"model_type\": \"mamba2\", \"num_heads\": 96}",
      "96 heads of 64 in Mamba2's layers, expected a product of 8192" },
    { "{\"model_type\": \"mamba2\", \"time_step_limit\": [1]}", "time_step_limit: expected two numbers" },
    { "{\"model_type\": \"mamba2\", \"time_step_limit\": [1, 0.5]}", "from 1 to 0.5" },
    { "{\"model_type\": \"mamba2\", \"delta_rule\": 1}", "delta_rule: 1 is not understood" },
    { "{\"model_type\": \"lfm2\", \"num_hidden_layers\": 2, \"layer_types\": [\"conv\", \"mamba\"]}",
      "layer 1 is \"mamba\"" },
    { "{\"model_type\": \"lfm2\", \"full_attn_idxs\": [32]}", "full_attn_idxs: element 0 is no layer of 32" },
    { "{\"model_type\": \"lfm2\", \"conv_L_cache\": 1}", "conv_L_cache is 1, expected 2 to" },
    { "{\"model_type\": \"qwen3_next\", \"linear_num_key_heads\": 5}",
      "linear_num_key_heads 5 of 128: does not fit" },
    { "{\"model_type\": \"granitemoehybrid\", \"hidden_act\": \"gelu\"}", "hidden_act other than \"silu\"" },
    { "{\"model_type\": \"llama\", \"rope_parameters\": {\"rope_type\": \"foo\"}}",
      "rope_type \"foo\" is not supported; these are: default linear" },
    { "{\"model_type\": \"llama\", \"rope_parameters\": {\"rope_type\": \"dynamic\", \"factor\": 2.0, \"original_max_position_embeddings\": 1024}}",
      "rope_type \"dynamic\"" },
    { "{\"model_type\": \"llama\", \"rope_parameters\": {\"rope_type\": \"linear\"}}",
      "without a positive factor" },
    { "{\"model_type\": \"llama\", \"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2.0, \"twist\": 1}}",
      "rope_parameters: twist: 1 is not understood" },
    { "{\"model_type\": \"llama\", \"rope_parameters\": {\"rope_theta\": 0}}", "rope_theta is 0" },
    { "{\"model_type\": \"phi3\", \"rope_parameters\": {\"rope_type\": \"longrope\", \"short_factor\": [1], \"long_factor\": [1]}}",
      "short_factor: expected an array of 48 factors" },
    { "{\"model_type\": \"qwen2\", \"num_hidden_layers\": 2, \"layer_types\": [\"full_attention\"]}",
      "layer_types: expected an array of num_hidden_layers = 2" },
    { "{\"model_type\": \"qwen2\", \"num_hidden_layers\": 1, \"layer_types\": [\"linear_attention\"]}",
      "layer 0 is \"linear_attention\"" },
    { "{\"model_type\": \"llama\", \"num_hidden_layers\": 1, \"layer_types\": [\"sliding_attention\"]}",
      "there is no sliding_window" },
    { "{\"model_type\": \"gpt2\", \"scale_attn_by_inverse_layer_idx\": true}",
      "scale_attn_by_inverse_layer_idx: true is not supported" },
    { "{\"model_type\": \"mpt\", \"attn_config\": {\"alibi\": false}}",
      "attn_config: alibi: false is not supported" },
    { "{\"model_type\": \"mpt\", \"attn_config\": {\"rope\": true}}", "attn_config: rope: true is not understood" },
    { "{\"model_type\": \"mixtral\", \"num_local_experts\": 4, \"num_experts_per_tok\": 5}",
      "num_experts_per_tok 5 of 4 experts" },
    { "{\"model_type\": \"mixtral\", \"num_local_experts\": 0}", "num_local_experts is 0, expected 1 to" },
    { "{\"model_type\": \"deepseek_v3\", \"n_routed_experts\": 256, \"n_group\": 7}",
      "256 experts in n_group 7 groups" },
    { "{\"model_type\": \"mixtral\", \"num_hidden_layers\": 65536, \"num_local_experts\": 65536}",
      "65536 experts in each of 65536 layers" },
    { "{\"model_type\": \"mixtral\", \"num_local_experts\": 4, \"num_experts_per_token\": 5}",
      "num_experts_per_tok 5 of 4 experts" },
    { "{\"model_type\": \"deepseek_v3\", \"n_shared_experts\": 128, \"moe_intermediate_size\": 16777216}",
      "128 shared experts of width 16777216" },
    { "{\"model_type\": \"deepseek_v3\", \"num_nextn_predict_layers\": 65537}",
      "num_nextn_predict_layers is 65537" },
    { "{\"model_type\": \"mamba2\", \"n_groups\": 1, \"state_size\": 16777216}",
      "states of 16777216 in Mamba2's layers: does not fit" },
    { "{\"model_type\": \"mamba2\", \"expand\": 0}", "expand 0 makes layers of width 0" },
    { "{\"model_type\": \"mamba2\", \"expand\": -2}", "expand -2 makes layers" },
    { "{\"model_type\": \"granitemoehybrid\", \"mamba_expand\": 1e300}", "mamba_expand 1e+300 makes layers" },
    { "{\"model_type\": \"granitemoehybrid\", \"mamba_expand\": 0.001}", "128 heads of 0 in" },
    { "{\"model_type\": \"deepseek_v3\", \"topk_group\": 9}", "does not fit" },
    { "{\"model_type\": \"deepseek_v3\", \"v_head_dim\": 16777216}",
      "v_head_dim 16777216, expected a width of at most" },
    { "{\"model_type\": \"deepseek_v3\", \"qk_nope_head_dim\": 16777216}", "qk_nope_head_dim 16777216, " },
    { "{\"model_type\": \"deepseek_v3\", \"scoring_func\": \"softmax\"}",
      "scoring_func \"softmax\" is not supported" },
    { "{\"model_type\": \"deepseek_v3\", \"index_topk\": 2048}", "index_topk: 2048 is not understood" },
    { "{\"model_type\": \"hunyuan_v1_moe\", \"num_experts\": 16, \"moe_topk\": [2, 3]}",
      "moe_topk: element 1 differs" },
    { "{\"model_type\": \"qwen3_moe\", \"num_hidden_layers\": 2, \"mlp_only_layers\": [2]}",
      "mlp_only_layers: element 0 is no layer of 2" },
    { "{\"model_type\": \"bloom\", \"apply_residual_connection_post_layernorm\": true}",
      "apply_residual_connection_post_layernorm: true" },
    { "{\"model_type\": \"stablelm\", \"qk_layernorm\": true}", "qk_layernorm: true is not supported" },
    { "{\"model_type\": \"llama\", \"eos_token_id\": [1,2,3,4,5,6,7,8,9]}",
      "eos_token_id: 9 ids, expected at most 8" },
};

static void bad_configs_are_refused_with_a_reason(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct config c;
        struct err e = { 0 };
        if (parse(&c, refused[i].json, &e) == 0)
            fail_msg("accepted: %s", refused[i].json);
        if (!strstr(e.msg, refused[i].says))
            fail_msg("%s: said \"%s\", expected \"%s\"", refused[i].json, e.msg, refused[i].says);
        config_release(&c);         /* a released config may be released again */
    }
}

static void unknown_keys_are_ignored(void **state)
{
    (void)state;
    struct config c;
    must_parse(&c, "{\"model_type\": \"llama\", \"dtype\": \"bfloat16\", \"auto_map\": {\"x\": \"y\"}, \"use_cache\": true, \"something_new\": null, \"use_frob\": false,"
                   " \"eos_token_id\": [2, 7], \"bos_token_id\": 1, \"hidden_size\": 4096.0}");
    assert_true(c.n_eos == 2 && c.eos[1] == 7 && c.bos == 1);
    config_release(&c);
}

static void close_to(double got, double want, double bound, const char *what)
{
    if (!(fabs(got - want) <= bound * fabs(want)))
        fail_msg("%s: got %.9g, want %.9g", what, got, want);
}

/* The sums behind a scale of i4 fit in 32 bits only up to KV_I4_MOST elements. */
static void heads_that_are_too_large_for_i4_are_refused(void **state)
{
    (void)state;
    static const struct { const char *json; int fits; } cases[] = {
        { "{\"model_type\": \"llama\", \"num_attention_heads\": 2, \"head_dim\": 4096}", 1 },
        { "{\"model_type\": \"llama\", \"num_attention_heads\": 2, \"head_dim\": 4098}", 0 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct config c;
        struct err e = { 0 };
        json_t *j = json_loads(cases[i].json, 0, NULL);
        assert_non_null(j);
        if (config_parse(&c, j, &e))
            fail_msg("%s", e.msg);
        assert_null(config_kv_problem(&c, kv_both(KV_I8)));
        assert_int_equal(!config_kv_problem(&c, kv_both(KV_I4)), cases[i].fits);
        assert_int_equal(!config_kv_problem(&c, (struct kv_types){ KV_F16, KV_I4 }), cases[i].fits);
        config_release(&c);
        json_decref(j);
    }
}

/* Models of the hub name what transformers takes for granted. */
static void published_keys_are_known(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{\"model_type\": \"bailing_hybrid\", \"gated_attention_proj_granularity_type\": \"head_wise\", \"group_norm_size\": 1,"
        "\"linear_silu\": true, \"moe_router_enable_expert_bias\": true, \"moe_shared_expert_intermediate_size\": 768,"
        "\"mtp_use_kda\": false, \"no_kda_lora\": true, \"num_kv_heads_for_linear_attn\": 0, \"partial_rotary_factor\": 0.5,"
        "\"rotary_dim\": 64, \"rope_interleave\": true, \"router_dtype\": \"fp32\", \"score_function\": \"sigmoid\","
        "\"scoring_func\": \"sigmoid\", \"seq_aux\": true, \"topk_method\": \"noaux_tc\", \"use_qk_norm\": true,"
        "\"expert_swiglu_limit_list\": null, \"max_window_layers\": 20, \"q_lora_rank\": 256}",
        "{\"model_type\": \"minimax_text_01\", \"num_hidden_layers\": 3, \"attn_type_list\": [1, 0, 1], \"postnorm\": true,"
        "\"layernorm_mlp_alpha\": 3.5, \"rotary_dim\": 64, \"shared_intermediate_size\": 0, \"shared_moe_mode\": \"sigmoid\"}",
        "{\"model_type\": \"falcon_h1\", \"mamba_use_mlp\": true, \"mlp_expansion_factor\": 8, \"head_dim\": 64}",
        "{\"model_type\": \"minimax_m2\", \"attn_type_list\": [1, 1], \"shared_intermediate_size\": 0, \"rotary_dim\": 64,"
        "\"shared_moe_mode\": \"sigmoid\", \"use_routing_bias\": true, \"num_mtp_modules\": 3, \"use_mtp\": true}",
        "{\"model_type\": \"gemma4_text\", \"zse_wrapper\": \"gemma4\", \"audio_token_id\": 258881,"
        "\"vision_soft_tokens_per_image\": 280, \"head_dim\": 64, \"global_head_dim\": 64, \"num_hidden_layers\": 1,"
        "\"layer_types\": [\"full_attention\"]}" };
    struct err e = { 0 };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct config c;
        json_t *j = json_loads(texts[i], 0, NULL);
        assert_non_null(j);
        if (config_parse(&c, j, &e))
            fail_msg("%s", e.msg);
        assert_int_equal(c.ropes[0].dim, 64);
        if (i == 0) {
            assert_int_equal(c.mla.q_rank, 256);
        } else if (i == 1) {
            static const unsigned char kinds[] = { MIXER_ATTENTION, MIXER_LIGHTNING, MIXER_ATTENTION };
            assert_memory_equal(c.mixer, kinds, sizeof kinds);
            assert_true(c.renorm[2][0] == 3.5f);
        }
        config_release(&c);
        json_decref(j);
    }
}

/* The hashes of n-grams are derived from a seed, or taken from the keys that the GGUF reader
 * writes. */
static void hashes_are_derived_or_listed(void **state)
{
    (void)state;
    struct config c;
    must_parse(&c, "{\"model_type\": \"qwen4_exp_text\", \"ple_layer_ids\": [2], \"ngram_size\": 2, \"heads_per_ngram\": 2, \"ngram_vocab_size_base\": 100, \"make_ngram_vocab_size_divisible_by\": 16, \"eos_token_id\": 2}");
    assert_true(c.ngram.rows[0] == 101 && c.ngram.rows[1] == 103 && c.ngram.all_rows[0] == 208 && c.ngram.end == 2);
    config_release(&c);
    must_parse(&c, "{\"model_type\": \"qwen4_exp_text\", \"ple_layer_ids\": [2], \"ngram_size\": 2, \"heads_per_ngram\": 2, \"eos_token_id\": 2, \"zse_ngram_end\": 9, \"zse_ngram_factors\": [4611686018427387905, 7], \"zse_ngram_rows\": [11, 12], \"zse_ngram_all_rows\": [24]}");
    assert_true(c.ngram.factor[0] == 4611686018427387905 && c.ngram.factor[1] == 7);
    assert_true(c.ngram.rows[0] == 11 && c.ngram.rows[1] == 12 && c.ngram.all_rows[0] == 24 && c.ngram.end == 9);
    config_release(&c);
    /* Qwen3.8-Flash-Next, whose checkpoint has 128 parts of 2500012 rows */
    must_parse(&c, "{\"model_type\": \"qwen4_exp_text\", \"ple_layer_ids\": [2], \"ngram_size\": 3, \"heads_per_ngram\": 8, \"ngram_vocab_size_base\": 20000000, \"make_ngram_vocab_size_divisible_by\": 128, \"split_ngram_parts\": 128, \"hidden_size\": 2560, \"eos_token_id\": 248044}");
    assert_int_equal(c.ngram.all_rows[0], 128 * 2500012);
    config_release(&c);
}

static void rope_frequencies_follow_their_formulas(void **state)
{
    (void)state;
    const double eps = 4e-7;        /* three f32 roundings */
    struct config c;
    must_parse(&c, "{\"model_type\": \"llama\", \"num_hidden_layers\": 1}");
    const struct rope *r = &c.ropes[0];
    for (int i = 0; i < 64; i++)
        close_to(r->inv_freq[i], pow(10000, -2.0 * i / 128), eps, "default");
    config_release(&c);

    must_parse(&c, "{\"model_type\": \"llama\", \"num_hidden_layers\": 1, \"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 4.0, \"rope_theta\": 5000}}");
    for (int i = 0; i < 64; i++)
        close_to(r->inv_freq[i], pow(5000, -2.0 * i / 128) / 4, eps, "linear");
    config_release(&c);

    /* llama3: short wavelengths are kept, long ones are divided, with a smooth transition */
    must_parse(&c, "{\"model_type\": \"llama\", \"num_hidden_layers\": 1, \"max_position_embeddings\": 131072, \"rope_parameters\": {\"rope_type\": \"llama3\", \"factor\": 8.0,"
                   " \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192, \"rope_theta\": 500000.0}}");
    for (int i = 0; i < 64; i++) {
        const double f = pow(500000, -2.0 * i / 128), wave = 2 * acos(-1) / f;
        if (wave < 8192 / 4.0)
            close_to(r->inv_freq[i], f, eps, "llama3, short wave");
        else if (wave > 8192)
            close_to(r->inv_freq[i], f / 8, eps, "llama3, long wave");
        assert_true(i == 0 || r->inv_freq[i] < r->inv_freq[i - 1]);
    }
    config_release(&c);

    /* YaRN (arXiv:2309.00071): dimensions with many rotations are kept, those with less than one
     * are interpolated; the attention factor is 0.1 ln(64) + 1 */
    must_parse(&c, "{\"model_type\": \"llama\", \"num_hidden_layers\": 1, \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 64.0,"
                   " \"original_max_position_embeddings\": 4096, \"beta_fast\": 32, \"beta_slow\": 1}}");
    close_to(r->inv_freq[0], 1, eps, "yarn, first");
    close_to(r->inv_freq[1], pow(10000, -2.0 / 128), eps, "yarn, second");
    close_to(r->inv_freq[63], pow(10000, -126.0 / 128) / 64, eps, "yarn, last");
    close_to(r->scale, 1.41589, 1e-5, "yarn, attention factor");
    config_release(&c);
    must_parse(&c, "{\"model_type\": \"llama\", \"num_hidden_layers\": 1, \"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 64.0,"
                   " \"original_max_position_embeddings\": 4096, \"mscale\": 1.0, \"mscale_all_dim\": 1.0}}");
    close_to(r->scale, 1, eps, "yarn, mscale over mscale_all_dim");
    config_release(&c);

    /* LongRoPE (arXiv:2402.13753): sqrt(1 + ln(s) / ln(original)) */
    must_parse(&c, "{\"model_type\": \"phi3\", \"num_hidden_layers\": 1, \"hidden_size\": 32, \"num_attention_heads\": 4, \"num_key_value_heads\": 4,"
                   " \"max_position_embeddings\": 4096, \"rope_parameters\": {\"rope_type\": \"longrope\", \"original_max_position_embeddings\": 1024,"
                   " \"short_factor\": [1, 2, 3, 4], \"long_factor\": [5, 6, 7, 8]}}");
    for (int i = 0; i < 4; i++) {
        close_to(r->inv_freq[i], pow(10000, -2.0 * i / 8) / (1 + i), eps, "longrope, short");
        close_to(r->inv_freq_long[i], pow(10000, -2.0 * i / 8) / (5 + i), eps, "longrope, long");
    }
    close_to(r->scale, sqrt(1 + log(4) / log(1024)), eps, "longrope, attention factor");
    assert_int_equal(config_long_from(&c), 1025);
    config_release(&c);
}

/* Encoders: attention in both directions, positions after the padding token's, pooling, dense
 * layers, heads. */
static void encoder_configs_are_parsed_or_refused(void **state)
{
    (void)state;
    struct config c;
    must_parse(&c, "{\"model_type\": \"bert\", \"num_hidden_layers\": 2}");
    assert_true(c.both_ways && c.norm_after_add && c.n_types == 2 && c.embedding.pooling == EMBED_MEAN);
    assert_true(c.embedding.normalize && config_embedding_size(&c) == 768);
    config_release(&c);
    must_parse(&c, "{\"model_type\": \"xlm-roberta\", \"num_hidden_layers\": 1, \"max_position_embeddings\": 514, \"pad_token_id\": 1,"
                   " \"architectures\": [\"XLMRobertaForSequenceClassification\"], \"id2label\": {\"0\": \"a\"},"
                   " \"sentence_transformers\": {\"activation_fn\": \"torch.nn.modules.linear.Identity\"}}");
    assert_int_equal(c.max_len, 512);
    assert_true(c.embedding.scores && c.embedding.raw_scores && c.embedding.n_dense == 2 && c.embedding.pair_twice);
    assert_int_equal(config_embedding_size(&c), 1);
    config_release(&c);
    /* a window of 8 tokens on each side and the token itself; every third layer has no window */
    must_parse(&c, "{\"model_type\": \"modernbert\", \"num_hidden_layers\": 4, \"local_attention\": 16}");
    assert_true(c.window[0] == 0 && c.window[1] == 9 && c.window[2] == 9 && c.window[3] == 0 && c.bare_first);
    config_release(&c);
    must_parse(&c, "{\"model_type\": \"gemma3_text\", \"num_hidden_layers\": 6, \"sliding_window\": 16, \"use_bidirectional_attention\": true}");
    assert_true(c.both_ways && c.window[0] == 9 && c.window[5] == 0);
    config_release(&c);
#define BERT "{\"model_type\": \"bert\", \"num_hidden_layers\": 1, \"zse_embedding\": "
    must_parse(&c, BERT "{\"pooling\": \"cls\", \"max_seq_length\": 9999, \"prompts\": {\"search_query\": \"q: \"}}}");
    assert_true(c.embedding.pooling == EMBED_FIRST && !c.embedding.normalize && c.embedding.max_len == 512);
    assert_string_equal(config_prompt(&c, 0), "q: ");
    assert_null(config_prompt(&c, 1));
    config_release(&c);
    static const char *const bad[][2] = {
        { BERT "{\"pooling\": \"max\"}}", "pooling \"max\" is not supported" },
        { BERT "{\"pooling\": \"mean\", \"max_seq_length\": -1}}", "max_seq_length: expected a number" },
        { BERT "{\"pooling\": \"mean\", \"prompts\": [1]}}", "prompts: found an array" },
        { BERT "{\"pooling\": \"mean\", \"default_prompt_name\": \"x\"}}", "default_prompt_name \"x\" is not in prompts" },
        { BERT "{\"pooling\": \"mean\", \"dense\": [{\"name\": \"a\", \"in\": 5, \"out\": 5, \"activation\": \"tanh\"}]}}",
          "dense layer 0 reads 5 elements of 768" },
        { BERT "{\"pooling\": \"mean\", \"dense\": [{\"name\": \"a\", \"in\": 768, \"out\": 5, \"activation\": \"elu\"}]}}",
          "activation \"elu\" is not supported" },
        { "{\"model_type\": \"bert\", \"position_embedding_type\": \"relative_key\"}", "position_embedding_type" },
        { "{\"model_type\": \"bert\", \"architectures\": [\"BertForSequenceClassification\"]}", "2 labels" },
        { "{\"model_type\": \"gemma\", \"architectures\": [\"GemmaForSequenceClassification\"]}", "classifiers of architecture gemma" },
        { "{\"model_type\": \"nomic_bert\", \"prenorm\": true}", "prenorm" },
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e;
        if (parse(&c, bad[i][0], &e) == 0 || !strstr(e.msg, bad[i][1]))
            fail_msg("%s: '%s'", bad[i][0], e.msg);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_architecture_parses_from_its_name),
        cmocka_unit_test(each_layer_gets_its_window), cmocka_unit_test(features_that_a_backend_lacks_are_named),
        cmocka_unit_test(bad_configs_are_refused_with_a_reason),
        cmocka_unit_test(unknown_keys_are_ignored), cmocka_unit_test(published_keys_are_known),
        cmocka_unit_test(hashes_are_derived_or_listed),
        cmocka_unit_test(heads_that_are_too_large_for_i4_are_refused),
        cmocka_unit_test(rope_frequencies_follow_their_formulas),
        cmocka_unit_test(encoder_configs_are_parsed_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
