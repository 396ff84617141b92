/* synthetic.c - make random weights in the shapes of known models. */
#include "libcommon/convert/synthetic.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/rng.h"
#include "libcommon/convert/spill.h"
#include "libcommon/import/hf_config.h"
#include "libcommon/quant/ggml.h"
#include "libcommon/quant/half.h"
#include "libcommon/quant/quantize.h"

QTYPE_SCALES_HERE(7);
QTYPE_EXTRAS_HERE(3);
QTYPE_CODES_HERE(9);

/* ---- the models, with values of their config.json on the hub ---- */

static const struct synthetic_shape {
    const char *name, *type;
    int n_layers, hidden, intermediate, n_heads, n_kv_heads, head_dim, vocab, max_len, tied;
    double theta, eps;
    double llama3_factor;       /* Llama 3.1 and later; 0: plain RoPE */
    const char *config;         /* replaces all columns but the vocabulary */
} shapes[] = {
    /* layers hidden inter heads kv dim vocab context tied theta eps factor */
    { "SmolLM2-135M",   "llama",      30,   576,  1536,   9,   3,  64,  49152,   8192, 1,  100000, 1e-5,  0, NULL },
    { "SmolLM2-360M",   "llama",      32,   960,  2560,  15,   5,  64,  49152,   8192, 1,  100000, 1e-5,  0, NULL },
    { "SmolLM2-1.7B",   "llama",      24,  2048,  8192,  32,  32,  64,  49152,   8192, 1,  130000, 1e-5,  0, NULL },
    { "Qwen2.5-0.5B",   "qwen2",      24,   896,  4864,  14,   2,  64, 151936,  32768, 1, 1000000, 1e-6,  0, NULL },
    { "Qwen2.5-1.5B",   "qwen2",      28,  1536,  8960,  12,   2, 128, 151936,  32768, 1, 1000000, 1e-6,  0, NULL },
    { "Qwen2.5-3B",     "qwen2",      36,  2048, 11008,  16,   2, 128, 151936,  32768, 1, 1000000, 1e-6,  0, NULL },
    { "Qwen2.5-7B",     "qwen2",      28,  3584, 18944,  28,   4, 128, 152064,  32768, 0, 1000000, 1e-6,  0, NULL },
    { "Qwen2.5-14B",    "qwen2",      48,  5120, 13824,  40,   8, 128, 152064,  32768, 0, 1000000, 1e-6,  0, NULL },
    { "Qwen2.5-32B",    "qwen2",      64,  5120, 27648,  40,   8, 128, 152064,  32768, 0, 1000000, 1e-6,  0, NULL },
    { "Qwen2.5-72B",    "qwen2",      80,  8192, 29568,  64,   8, 128, 152064,  32768, 0, 1000000, 1e-6,  0, NULL },
    { "Qwen3-0.6B",     "qwen3",      28,  1024,  3072,  16,   8, 128, 151936,  40960, 1, 1000000, 1e-6,  0, NULL },
    { "Qwen3-8B",       "qwen3",      36,  4096, 12288,  32,   8, 128, 151936,  40960, 0, 1000000, 1e-6,  0, NULL },
    { "TinyLlama-1.1B", "llama",      22,  2048,  5632,  32,   4,  64,  32000,   2048, 0,   10000, 1e-5,  0, NULL },
    { "Llama-3.2-1B",   "llama",      16,  2048,  8192,  32,   8,  64, 128256, 131072, 1,  500000, 1e-5, 32, NULL },
    { "Llama-3.2-3B",   "llama",      28,  3072,  8192,  24,   8, 128, 128256, 131072, 1,  500000, 1e-5, 32, NULL },
    { "Llama-3.1-8B",   "llama",      32,  4096, 14336,  32,   8, 128, 128256, 131072, 0,  500000, 1e-5,  8, NULL },
    { "Llama-3.1-70B",  "llama",      80,  8192, 28672,  64,   8, 128, 128256, 131072, 0,  500000, 1e-5,  8, NULL },
    { .name = "BitNet-2B-4T", .vocab = 128256, .config =
      "{\"architectures\":[\"BitNetForCausalLM\"],\"model_type\":\"bitnet\",\"num_hidden_layers\":30,\"hidden_size\":2560,\"intermediate_size\":6912,"
      "\"num_attention_heads\":20,\"num_key_value_heads\":5,\"vocab_size\":128256,\"max_position_embeddings\":4096,\"rope_theta\":500000.0,"
      "\"rms_norm_eps\":1e-5,\"hidden_act\":\"relu2\",\"tie_word_embeddings\":true}" },
    { .name = "Qwen3-30B-A3B", .vocab = 151936, .config =
      "{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":48,\"hidden_size\":2048,\"intermediate_size\":6144,"
      "\"num_attention_heads\":32,\"num_key_value_heads\":4,\"head_dim\":128,\"vocab_size\":151936,\"max_position_embeddings\":40960,\"rope_theta\":1000000.0,"
      "\"rms_norm_eps\":1e-6,\"tie_word_embeddings\":false,\"num_experts\":128,\"num_experts_per_tok\":8,\"moe_intermediate_size\":768,\"norm_topk_prob\":true}" },
    { .name = "DeepSeek-V2-Lite", .vocab = 102400, .config =
      "{\"architectures\":[\"DeepseekV2ForCausalLM\"],\"model_type\":\"deepseek_v2\",\"num_hidden_layers\":27,\"hidden_size\":2048,\"intermediate_size\":10944,"
      "\"num_attention_heads\":16,\"num_key_value_heads\":16,\"vocab_size\":102400,\"max_position_embeddings\":163840,\"rope_theta\":10000.0,\"rms_norm_eps\":1e-6,"
      "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40.0,\"beta_fast\":32,\"beta_slow\":1,\"mscale\":0.707,\"mscale_all_dim\":0.707,"
      "\"original_max_position_embeddings\":4096},\"tie_word_embeddings\":false,\"first_k_dense_replace\":1,\"n_routed_experts\":64,\"n_shared_experts\":2,"
      "\"num_experts_per_tok\":6,\"moe_intermediate_size\":1408,\"topk_method\":\"greedy\",\"routed_scaling_factor\":1.0,\"q_lora_rank\":null,\"kv_lora_rank\":512,"
      "\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":128}" },
    { .name = "gpt-oss-20b", .vocab = 201088, .config =
      "{\"architectures\":[\"GptOssForCausalLM\"],\"model_type\":\"gpt_oss\",\"num_hidden_layers\":24,\"hidden_size\":2880,\"intermediate_size\":2880,"
      "\"num_attention_heads\":64,\"num_key_value_heads\":8,\"head_dim\":64,\"vocab_size\":201088,\"max_position_embeddings\":131072,\"rope_theta\":150000.0,"
      "\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":32.0,\"beta_fast\":32.0,\"beta_slow\":1.0,\"truncate\":false,\"original_max_position_embeddings\":4096},"
      "\"rms_norm_eps\":1e-5,\"tie_word_embeddings\":false,\"num_local_experts\":32,\"num_experts_per_tok\":4,\"sliding_window\":128}" },
    { .name = "Qwen3.5-4B", .vocab = 248320, .config =
      "{\"architectures\":[\"Qwen3_5ForCausalLM\"],\"model_type\":\"qwen3_5_text\",\"num_hidden_layers\":32,\"hidden_size\":2560,\"intermediate_size\":9216,"
      "\"num_attention_heads\":16,\"num_key_value_heads\":4,\"vocab_size\":248320,\"tie_word_embeddings\":true,\"full_attention_interval\":4,"
      "\"attn_output_gate\":true,\"head_dim\":256,\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":128,\"linear_value_head_dim\":128,"
      "\"linear_num_key_heads\":16,\"linear_num_value_heads\":32,\"partial_rotary_factor\":0.25,\"rope_theta\":10000000.0,\"rms_norm_eps\":1e-06,"
      "\"max_position_embeddings\":262144}" },
    { .name = "Qwen3.5-35B-A3B", .vocab = 248320, .config =
      "{\"architectures\":[\"Qwen3_5MoeForCausalLM\"],\"model_type\":\"qwen3_5_moe_text\",\"num_hidden_layers\":40,\"hidden_size\":2048,"
      "\"num_attention_heads\":16,\"num_key_value_heads\":2,\"vocab_size\":248320,\"tie_word_embeddings\":false,\"full_attention_interval\":4,"
      "\"attn_output_gate\":true,\"num_experts\":256,\"num_experts_per_tok\":8,\"moe_intermediate_size\":512,\"shared_expert_intermediate_size\":512,"
      "\"head_dim\":256,\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":128,\"linear_value_head_dim\":128,\"linear_num_key_heads\":16,"
      "\"linear_num_value_heads\":32,\"partial_rotary_factor\":0.25,\"rope_theta\":10000000.0,\"rms_norm_eps\":1e-06,\"max_position_embeddings\":262144}" },
    { .name = "Qwen3-Coder-Next-80B-A3B", .vocab = 151936, .config =
      "{\"architectures\":[\"Qwen3NextForCausalLM\"],\"model_type\":\"qwen3_next\",\"num_hidden_layers\":48,\"hidden_size\":2048,\"intermediate_size\":5120,"
      "\"num_attention_heads\":16,\"num_key_value_heads\":2,\"vocab_size\":151936,\"tie_word_embeddings\":false,\"full_attention_interval\":4,"
      "\"num_experts\":512,\"num_experts_per_tok\":10,\"moe_intermediate_size\":512,\"shared_expert_intermediate_size\":512,\"norm_topk_prob\":true,"
      "\"decoder_sparse_step\":1,\"head_dim\":256,\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":128,\"linear_value_head_dim\":128,"
      "\"linear_num_key_heads\":16,\"linear_num_value_heads\":32,\"partial_rotary_factor\":0.25,\"rope_theta\":10000000.0,\"rms_norm_eps\":1e-06,"
      "\"max_position_embeddings\":262144}" },
    { .name = "GLM-4.7-Flash", .vocab = 154880, .config =
      "{\"architectures\":[\"Glm4MoeLiteForCausalLM\"],\"model_type\":\"glm4_moe_lite\",\"num_hidden_layers\":47,\"hidden_size\":2048,\"intermediate_size\":10240,"
      "\"num_attention_heads\":20,\"num_key_value_heads\":20,\"vocab_size\":154880,\"max_position_embeddings\":202752,\"rope_theta\":1000000.0,"
      "\"rms_norm_eps\":1e-05,\"tie_word_embeddings\":false,\"n_routed_experts\":64,\"n_shared_experts\":1,\"num_experts_per_tok\":4,"
      "\"moe_intermediate_size\":1536,\"first_k_dense_replace\":1,\"n_group\":1,\"topk_group\":1,\"norm_topk_prob\":true,\"routed_scaling_factor\":1.8,"
      "\"q_lora_rank\":768,\"kv_lora_rank\":512,\"qk_nope_head_dim\":192,\"qk_rope_head_dim\":64,\"v_head_dim\":256}" },
    { .name = "Gemma-4-E4B", .vocab = 262144, .config =
      "{\"architectures\":[\"Gemma4ForCausalLM\"],\"model_type\":\"gemma4_text\",\"num_hidden_layers\":42,\"hidden_size\":2560,\"intermediate_size\":10240,"
      "\"num_attention_heads\":8,\"num_key_value_heads\":2,\"head_dim\":256,\"global_head_dim\":512,\"vocab_size\":262144,\"vocab_size_per_layer_input\":262144,"
      "\"hidden_size_per_layer_input\":256,\"num_kv_shared_layers\":18,\"sliding_window\":512,\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-06,"
      "\"final_logit_softcapping\":30.0,\"attention_k_eq_v\":false,\"enable_moe_block\":false,\"use_double_wide_mlp\":false,"
      "\"hidden_activation\":\"gelu_pytorch_tanh\",\"tie_word_embeddings\":true,\"rope_parameters\":{\"full_attention\":{\"partial_rotary_factor\":0.25,"
      "\"rope_theta\":1000000.0,\"rope_type\":\"proportional\"},\"sliding_attention\":{\"rope_theta\":10000.0,\"rope_type\":\"default\"}},"
      "\"layer_types\":[\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"full_attention\","
      "\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"full_attention\",\"sliding_attention\","
      "\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"sliding_attention\","
      "\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\","
      "\"sliding_attention\",\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\","
      "\"sliding_attention\",\"full_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\",\"sliding_attention\","
      "\"full_attention\"]}" },
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes, MOST_SYNTHETIC_LAYERS = 1000 };

/* The shape of the name NAME or NAME:LAYERS.  *n_layers: 0 if NAME stands alone. */
static const struct synthetic_shape *find_shape(const char *name, int *n_layers, struct err *e)
{
    char all[600] = "";
    const size_t length = strcspn(name, ":");
    *n_layers = 0;
    for (int i = 0; i < N_SHAPES; i++) {
        if (strlen(shapes[i].name) == length && strncasecmp(shapes[i].name, name, length) == 0) {
            if (!name[length])
                return &shapes[i];
            char *end;
            const long n = strtol(name + length + 1, &end, 10);
            const int digit = name[length + 1] >= '0' && name[length + 1] <= '9';
            *n_layers = digit && n > 0 && n <= MOST_SYNTHETIC_LAYERS && !*end ? (int)n : 0;
            if (*n_layers)
                return &shapes[i];
            err_set(e, ERR_UNSUPPORTED, "'%s': found '%s', expected a number of layers, 1 to %d", name,
                    name + length + 1, MOST_SYNTHETIC_LAYERS);
            return NULL;
        }
        size_t n = strlen(all);
        snprintf(all + n, sizeof all - n, "%s%s", n ? ", " : "", shapes[i].name);
    }
    err_set(e, ERR_UNSUPPORTED, "'%s' is no model whose shape is known here: %s", name, all);
    return NULL;
}

/* Special tokens, which have the last three ids, so that the 256 bytes can have the first ones. */
enum { N_SPECIAL = 3, N_BYTES = 256 };
static const char *const special[N_SPECIAL] = { "<|endoftext|>", "<|im_start|>", "<|im_end|>" };

/* Does each of the last `shared` layers have an earlier layer of its type with keys and values? */
static int have_owners(const json_t *types, int n_layers, int shared)
{
    for (int i = n_layers - shared; i < n_layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        int found = 0;
        for (int j = 0; type && j < n_layers - shared; j++)
            found |= strcmp(type, json_string_value(json_array_get(types, (size_t)j))) == 0;
        if (type && !found)
            return 0;
    }
    return 1;
}

/* Keep only the first n_layers layers.  Of the last layers of the shape, which have no keys and
 * values of their own, the same share is kept, or less if types of layers would lack an owner. */
static int cut_layers(json_t *c, const char *name, int n_layers, struct err *e)
{
    const int all = (int)json_integer_value(json_object_get(c, "num_hidden_layers"));
    if (n_layers > all)
        return err_set(e, ERR_UNSUPPORTED, "%s: found %d layers, expected at most %d", name, n_layers, all);
    json_object_set_new(c, "num_hidden_layers", json_integer(n_layers));
    json_t *types = json_object_get(c, "layer_types"), *shared = json_object_get(c, "num_kv_shared_layers");
    while (json_array_size(types) > (size_t)n_layers)
        json_array_remove(types, json_array_size(types) - 1);
    if (shared) {
        int n = (int)json_integer_value(shared) * n_layers / all;
        while (n > 0 && !have_owners(types, n_layers, n))
            n--;
        json_integer_set(shared, n);
    }
    return 0;
}

static json_t *full_config(const struct synthetic_shape *s)
{
    if (s->config) {
        json_t *c = json_loads(s->config, 0, NULL);
        json_object_update_missing_new(c, json_pack("{s:s,s:s,s:i,s:i}", "hidden_act", "silu", "torch_dtype",
                                                    "bfloat16", "bos_token_id", s->vocab - 3, "eos_token_id",
                                                    s->vocab - 1));
        return c;
    }
    json_t *c = json_pack("{s:[s],s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:f,s:f,s:b,s:s,s:s,s:i,s:i}", "architectures",
                          strcmp(s->type, "llama") == 0 ? "LlamaForCausalLM" : strcmp(s->type, "qwen2") == 0
                          ? "Qwen2ForCausalLM" : "Qwen3ForCausalLM", "model_type", s->type, "num_hidden_layers",
                          s->n_layers, "hidden_size", s->hidden, "intermediate_size", s->intermediate,
                          "num_attention_heads", s->n_heads, "num_key_value_heads", s->n_kv_heads, "head_dim",
                          s->head_dim, "vocab_size", s->vocab, "max_position_embeddings", s->max_len, "rope_theta",
                          s->theta, "rms_norm_eps", s->eps, "tie_word_embeddings", s->tied,
                          "hidden_act", "silu", "torch_dtype", "bfloat16", "bos_token_id", s->vocab - 3, "eos_token_id",
                          s->vocab - 1);
    if (c && s->llama3_factor > 0)
        json_object_set_new(c, "rope_scaling", json_pack("{s:s,s:f,s:f,s:f,s:i}", "rope_type", "llama3", "factor",
                                                         s->llama3_factor, "low_freq_factor", 1.0, "high_freq_factor",
                                                         4.0, "original_max_position_embeddings", 8192));
    return c;
}

static json_t *config_of(const struct synthetic_shape *s, int n_layers, struct err *e)
{
    json_t *c = full_config(s);
    if (!c)
        return err_nomem(e, s->name), NULL;
    if (n_layers && cut_layers(c, s->name, n_layers, e)) {
        json_decref(c);
        return NULL;
    }
    return c;
}

/* ---- the tokenizer: a token for each byte; the rest of the vocabulary is only written, never
 * read ---- */

/* GPT-2's character for a byte: the byte itself if it is printable, otherwise the next character
 * from 256 on. */
static int byte_char(int byte)
{
    int printable[] = { '!', '~', 0xa1, 0xac, 0xae, 0xff }, others = 0;
    for (int b = 0; b <= byte; b++) {
        int own = 0;
        for (int i = 0; i < 6; i += 2)
            own |= b >= printable[i] && b <= printable[i + 1];
        if (b == byte)
            return own ? b : 256 + others;
        others += !own;
    }
    return 0;
}

static void put_char(FILE *f, int c)
{
    if (c == '"' || c == '\\')
        fprintf(f, "\\%c", c);
    else if (c < 0x80)
        putc(c, f);
    else
        fprintf(f, "%c%c", 0xc0 | c >> 6, 0x80 | (c & 0x3f));
}

/* Write word i of " aaaa" ... " zzzz", which are 456976 words. */
static void put_word(FILE *f, int i)
{
    char word[5] = "";
    for (int k = 3; k >= 0; k--, i /= 26)
        word[k] = (char)('a' + i % 26);
    put_char(f, byte_char(' '));
    fputs(word, f);
}

static char *tokenizer_json(int vocab, size_t *size)
{
    char *text = NULL;
    FILE *f = open_memstream(&text, size);
    if (!f)
        return NULL;
    fputs("{\"version\":\"1.0\",\"added_tokens\":[", f);
    for (int i = 0; i < N_SPECIAL; i++)
        fprintf(f, "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}",
                i ? "," : "", vocab - N_SPECIAL + i, special[i]);
    fputs("],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
          "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
          "\"model\":{\"type\":\"BPE\",\"vocab\":{", f);
    for (int i = 0; i < vocab - N_SPECIAL; i++) {
        fputs(i ? ",\"" : "\"", f);
        if (i < N_BYTES)
            put_char(f, byte_char(i));
        else
            put_word(f, i - N_BYTES);
        fprintf(f, "\":%d", i);
    }
    for (int i = 0; i < N_SPECIAL; i++)
        fprintf(f, ",\"%s\":%d", special[i], vocab - N_SPECIAL + i);
    fputs("},\"merges\":[]}}\n", f);
    int bad = ferror(f);
    if (fclose(f) || bad) {
        free(text);
        return NULL;
    }
    return text;
}

static const char tokenizer_config[] =
    "{\"tokenizer_class\": \"PreTrainedTokenizerFast\", \"bos_token\": \"<|endoftext|>\", \"eos_token\": \"<|im_end|>\", \"add_bos_token\": false,\n"
    " \"chat_template\": \"{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\\\n' + m['content'] + '<|im_end|>' + '\\\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\\\n' }}{% endif %}\"}\n";

/* ---- the source ---- */

static int add_file(struct source *s, const char *name, char *data, size_t size, struct err *e)
{
    if (!data)
        return err_nomem(e, name);
    s->files[s->n_files++] = (struct source_file){ name, data, size };
    return 0;
}

static int ends_in(const char *name, const char *end)
{
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* The shape that a source tensor of this name would have. */
static int shape_of(void *user, const char *name, int *n_dims, int64_t dim[WEIGHT_DIMS])
{
    const struct synthetic_shape *s = user;
    const int64_t q = (int64_t)s->n_heads * s->head_dim, kv = (int64_t)s->n_kv_heads * s->head_dim;
    const struct { const char *end; int64_t rows, cols; } shapes_by_end[] = {
        { "model.embed_tokens.weight", s->vocab, s->hidden }, { "model.norm.weight", s->hidden, 0 },
        { "layernorm.weight", s->hidden, 0 },
        { "q_proj.weight", q, s->hidden }, { "k_proj.weight", kv, s->hidden }, { "v_proj.weight", kv, s->hidden },
        { "o_proj.weight", s->hidden, q },
        { "q_proj.bias", q, 0 }, { "k_proj.bias", kv, 0 }, { "v_proj.bias", kv, 0 },
        { "q_norm.weight", s->head_dim, 0 }, { "k_norm.weight", s->head_dim, 0 },
        { "gate_proj.weight", s->intermediate, s->hidden }, { "up_proj.weight", s->intermediate, s->hidden },
        { "down_proj.weight", s->hidden, s->intermediate },
    };
    for (size_t i = 0; i < sizeof shapes_by_end / sizeof *shapes_by_end; i++)
        if (ends_in(name, shapes_by_end[i].end)) {
            dim[0] = shapes_by_end[i].rows;
            dim[1] = shapes_by_end[i].cols;
            *n_dims = dim[1] ? 2 : 1;
            return 0;
        }
    if (strcmp(name, "lm_head.weight") != 0 || s->tied)
        return -1;
    dim[0] = s->vocab;
    dim[1] = s->hidden;
    *n_dims = 2;
    return 0;
}

static int add_tensors(struct conversion *cv, const struct synthetic_shape *shape, int n, struct err *e)
{
    struct source *s = cv->source;
    s->tensors = calloc((size_t)n, sizeof *s->tensors);
    if (!s->tensors)
        return err_nomem(e, "the tensors");
    for (int i = 0; i < n; i++) {
        struct source_tensor *t = &s->tensors[s->n_tensors++];
        *t = (struct source_tensor){ .name = strdup(cv->specs[i].source), .type = GGML_BF16 };
        if (!t->name)
            return err_nomem(e, "the tensors");
        shape_of((void *)shape, t->name, &t->n_dims, t->dim);
        t->size = (size_t)t->dim[0] * (size_t)(t->n_dims > 1 ? t->dim[1] : 1) * 2;
    }
    return 0;
}

/* Make a source in the shape of one of the models above. */
static int add_own_tensors(struct conversion *cv, int n, struct err *e)
{
    struct source *s = cv->source;
    s->tensors = calloc((size_t)n, sizeof *s->tensors);
    if (!s->tensors)
        return err_nomem(e, "the tensors");
    for (int i = 0; i < n; i++) {
        const struct weight_spec *w = &cv->specs[i];
        struct source_tensor *t = &s->tensors[s->n_tensors++];
        *t = (struct source_tensor){ .name = strdup(w->source), .type = GGML_BF16, .n_dims = 2,
                                     .dim = { w->rows, w->cols },
                                     .size = (size_t)w->rows * (size_t)w->cols * 2 };
        if (!t->name)
            return err_nomem(e, "the tensors");
        cv->specs[i].map = (struct row_map){ 0 };
    }
    return 0;
}

/* Make a source from a configuration alone: every tensor that it implies, as bf16; one expert of a
 * layer stands for all. */
static int config_open(struct conversion *cv, int *n_specs, struct err *e)
{
    const struct weight_source all = { .one_expert = 1 };
    struct source *s = cv->source = calloc(1, sizeof *s);
    if (!s || !(s->path = strdup(cv->o->synthetic)))
        return err_nomem(e, cv->o->synthetic);
    s->kind = SOURCE_CONFIG;
    if (!(s->config = hf_config_normalize(cv->o->config, e)) || config_parse(&cv->config, s->config, e))
        return err_prefix(e, "%s", s->path);
    if (weight_specs(&cv->config, &all, &cv->specs, n_specs, e)) {
        cv->specs = NULL;
        return -1;
    }
    return add_own_tensors(cv, *n_specs, e);
}

json_t *synthetic_config(const char *name, struct err *e)
{
    int n_layers;
    const struct synthetic_shape *shape = find_shape(name, &n_layers, e);
    json_t *raw = shape ? config_of(shape, n_layers, e) : NULL, *config = raw ? hf_config_normalize(raw, e) : NULL;
    json_decref(raw);
    return config;
}

int synthetic_open(struct conversion *cv, int *n_specs, struct err *e)
{
    if (cv->o->config)
        return config_open(cv, n_specs, e);
    int n_layers;
    const struct synthetic_shape *shape = find_shape(cv->o->synthetic, &n_layers, e);
    json_t *config = shape ? config_of(shape, n_layers, e) : NULL;
    if (!config)
        return -1;
    char name[80];
    snprintf(name, sizeof name, n_layers ? "%s:%d" : "%s", shape->name, n_layers);
    struct source *s = cv->source = calloc(1, sizeof *s);
    size_t size;
    if (!s || !(s->path = strdup(name)) || !(s->files = calloc(3, sizeof *s->files))) {
        json_decref(config);
        return err_nomem(e, shape->name);
    }
    s->kind = SOURCE_FOLDER;
    char *text = json_dumps(config, JSON_INDENT(2));
    s->config = hf_config_normalize(config, e);
    json_decref(config);
    if (!s->config || add_file(s, "config.json", text, text ? strlen(text) : 0, e) ||
        add_file(s, "tokenizer_config.json", strdup(tokenizer_config), sizeof tokenizer_config - 1, e))
        return -1;
    text = tokenizer_json(shape->vocab, &size);
    if (add_file(s, "tokenizer.json", text, size, e) || config_parse(&cv->config, s->config, e))
        return -1;
    const struct weight_source w = { .shape = shape->config ? NULL : shape_of, .user = (void *)shape };
    if (weight_specs(&cv->config, &w, &cv->specs, n_specs, e)) {
        cv->specs = NULL;
        return -1;
    }
    return shape->config ? add_own_tensors(cv, *n_specs, e) : add_tensors(cv, shape, *n_specs, e);
}

void synthetic_close(struct source *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->n_files; i++)
        free((void *)s->files[i].data);
    for (int i = 0; i < s->n_tensors; i++)
        free((char *)s->tensors[i].name);
    json_decref(s->config);
    free(s->files);
    free(s->tensors);
    free(s->path);
    free(s);
}

/* ---- random weights ---- */

enum { BATCH_BYTES = 8 << 20 };

struct random_tensor {
    const struct mat *m;
    float size;                 /* root mean square of the weights */
    uint64_t seed;              /* seed of the tensor */
    int tile0;
    uint8_t *tiles;
    struct random_worker { struct qrow q; float *x; } *workers;
};

/* Root mean square of the values that random codes have. */
static float code_size(const struct qtype_info *t)
{
    double n = t->value ? 1 << t->bits : 128, sum = 0, sum2 = 0;
    if (qtype_is_ternary(t))                    /* random_row() makes half of the codes 0 */
        return 0.70710678f;
    /* random_row() makes magnitudes from .5 to below 2 */
    if (t->codes == CODES_E4M3)
        return 1.1588f;
    for (int i = 0; i < (int)n; i++) {
        double v = t->value ? (double)t->value[i] : 2 * i - 127;        /* int8: only odd codes */
        sum += v / n;
        sum2 += v * v / n;
    }
    return (float)sqrt(sum2 - (t->extra != EXTRA_NONE ? sum * sum : 0));
}

static float to_f16(float f) { return f16_to_f32(f32_to_f16(f)); }

static void random_row(const struct mat *m, float size, struct rng *r, struct qrow *q)
{
    const struct qtype_info *t = qtype_info(m->type);
    const uint64_t mask = 0x0101010101010101u * (t->bits == 8 ? 0xff : (1u << t->bits) - 1),
                   set = t->bits == 8 ? 0x0101010101010101u : 0;
    float unit = size / code_size(t);
    for (int k = 0; k < m->cols; k += 8) {              /* 8 bits: only odd codes, so never -128 */
        uint64_t v = (rng_u64(r) & mask) | set;
        if (qtype_is_ternary(t))                        /* replace 3, which is no code, by 1 */
            v ^= (v & v >> 1 & 0x0101010101010101u) << 1;
        if (t->codes == CODES_E4M3)
            v = (v & 0x8f8f8f8f8f8f8f8fu) | 0x3030303030303030u;
        memcpy(q->code + k, &v, 8);                     /* qrow_init() allocates whole words */
    }
    memset(q->code + m->cols, t->code_zero, (size_t)(m->cols_padded - m->cols));
    /* 97 is the root mean square of 64..127, the magnitudes of int8 scales */
    q->row_scale = t->scale == SCALE_NONE ? unit : t->row_scale ? unit / 97 : 1;
    for (int g = 0; g < m->n_groups; g++) {
        uint64_t v = rng_u64(r);
        float s = (float)(64 + v % 64);
        q->scale[g] = t->scale == SCALE_S8 && v >> 63 ? -s : t->row_scale ? s : t->scale == SCALE_E8M0
                          ? exp2f(rintf(log2f(unit))) : t->scale == SCALE_F32 ? unit : to_f16(unit);
        if (q->extra)
            q->extra[g] = t->extra == EXTRA_MIN_F16 ? to_f16(-7.5f * unit) : 8;
    }
}

static void make_tile(void *arg, int i, int thread)
{
    const struct random_tensor *c = arg;
    const struct mat *m = c->m;
    struct random_worker *w = &c->workers[thread];
    uint8_t *tile = c->tiles + (size_t)i * m->tile_bytes;
    int row = (c->tile0 + i) * TILE_ROWS;
    struct rng r = { c->seed + (uint64_t)(c->tile0 + i) * 0xd1342543de82ef95u };
    if (row + TILE_ROWS > m->rows)
        tile_clear(m, tile);
    else
        /* every code and scale is set below; the padding of the areas stays */
        memset(tile, 0, m->tile_bytes);
    for (int k = 0; k < TILE_ROWS && row + k < m->rows; k++) {
        if (!qtype_info(m->type)->is_float) {
            random_row(m, c->size, &r, &w->q);
            tile_put(m, tile, k, &w->q);
            continue;
        }
        for (int j = 0; j < m->cols; j++)               /* uniform up to sqrt(3) times the RMS */
            w->x[j] = (float)(int32_t)rng_u64(&r) * 0x1p-31f * 1.7320508f * c->size;
        tile_put_float(m, tile, k, w->x);
    }
}

static int advance(struct conversion *cv, size_t n, struct err *e)
{
    cv->done += n;
    if (progress_report(cv->o->progress, "Writing", cv->done, cv->total, "bytes"))
        return err_set(e, ERR_CANCELLED, "cancelled");
    return 0;
}

/* Make a vector: norms are 1, biases are small. */
static int vector(struct conversion *cv, struct recipe *p, struct rng *r,
                  int (*sink)(void *, const void *, size_t, struct err *), void *user, struct err *e)
{
    size_t n = (size_t)p->spec->rows * (size_t)p->spec->cols;
    float *x = malloc(n * sizeof *x);
    if (!x)
        return err_nomem(e, p->spec->name);
    for (size_t i = 0; i < n; i++)
        x[i] = p->spec->role == ROLE_NORM ? 1 - cv->config.norm_offset : (float)(int32_t)rng_u64(r) * 0x1p-36f;
    int rc = sink(user, x, n * sizeof *x, e);
    free(x);
    return rc ? rc : advance(cv, n * sizeof *x, e);
}

int synthetic_tensor(struct conversion *cv, struct recipe *p,
                     int (*sink)(void *user, const void *data, size_t n, struct err *e),
                     void *user, struct err *e)
{
    const struct mat *m = &p->m;
    struct rng names = { 0 };
    for (const char *s = p->spec->name; *s; s++) {
        names.state ^= (uint8_t)*s;
        names.state = rng_u64(&names);
    }
    p->report->exact = 1;
    if (p->make == MAKE_VECTOR)
        return vector(cv, p, &names, sink, user, e);
    int n_threads = pool_size(cv->pool), rc = 0;
    size_t fit = BATCH_BYTES / m->tile_bytes, batch = fit < (size_t)n_threads ? (size_t)n_threads : fit;
    if (batch > (size_t)m->n_tiles)
        batch = (size_t)m->n_tiles;
    /* With this size outputs, which are sums of cols products, are about as large as inputs. */
    struct random_tensor c = { .m = m, .size = 1 / sqrtf((float)m->cols), .seed = rng_u64(&names),
                       .tiles = spill_alloc(batch * m->tile_bytes),
                       .workers = calloc((size_t)n_threads, sizeof *c.workers) };
    if (!c.tiles || !c.workers)
        rc = err_nomem(e, p->spec->name);
    for (int i = 0; i < n_threads && rc == 0; i++) {
        rc = qtype_info(m->type)->is_float ? 0 : qrow_init(&c.workers[i].q, m, e);
        if (rc == 0 && !(c.workers[i].x = malloc((size_t)m->cols * sizeof(float))))
            rc = err_nomem(e, p->spec->name);
    }
    for (; c.tile0 < m->n_tiles && rc == 0; c.tile0 += (int)batch) {
        int n = m->n_tiles - c.tile0 < (int)batch ? m->n_tiles - c.tile0 : (int)batch;
        pool_run(cv->pool, n, make_tile, &c);
        rc = sink(user, c.tiles, (size_t)n * m->tile_bytes, e);
        if (rc == 0)
            rc = advance(cv, (size_t)n * m->tile_bytes, e);
    }
    for (int i = 0; c.workers && i < n_threads; i++) {
        qrow_release(&c.workers[i].q);
        free(c.workers[i].x);
    }
    free(c.workers);
    spill_free(c.tiles);
    return rc;
}
