/* arch_encoder.c - the encoders: models whose tokens also see later tokens, and which make vectors
 * of texts and scores of pairs instead of text.  Sources: the configuration and modeling files of
 * transformers 5, and config.json of the models on the hub. */
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/model/arch.h"

#define BERT_ENDS .embed = "embeddings.word_embeddings", .types = "embeddings.token_type_embeddings", .head = "lm_head"

static const struct weight_names
bert_names       = { BERT_ENDS, .pos = "embeddings.position_embeddings", .embed_norm = "embeddings.LayerNorm",
                     .layer = "encoder.layer.", .q = "attention.self.query", .k = "attention.self.key",
                     .v = "attention.self.value", .o = "attention.output.dense",
                     .attn_post_norm = "attention.output.LayerNorm", .up = "intermediate.dense", .down = "output.dense",
                     .mlp_post_norm = "output.LayerNorm" },
distilbert_names = { BERT_ENDS, .pos = "embeddings.position_embeddings", .embed_norm = "embeddings.LayerNorm",
                     .layer = "transformer.layer.", .q = "attention.q_lin", .k = "attention.k_lin",
                     .v = "attention.v_lin", .o = "attention.out_lin", .attn_post_norm = "sa_layer_norm",
                     .up = "ffn.lin1", .down = "ffn.lin2", .mlp_post_norm = "output_layer_norm" },
mpnet_names      = { .embed = "embeddings.word_embeddings", .pos = "embeddings.position_embeddings",
                     .embed_norm = "embeddings.LayerNorm", .distance_bias = "encoder.relative_attention_bias",
                     .head = "lm_head", .layer = "encoder.layer.", .q = "attention.attn.q", .k = "attention.attn.k",
                     .v = "attention.attn.v", .o = "attention.attn.o", .attn_post_norm = "attention.LayerNorm",
                     .up = "intermediate.dense", .down = "output.dense", .mlp_post_norm = "output.LayerNorm" },
nomic_names      = { BERT_ENDS, .embed_norm = "emb_ln", .layer = "encoder.layers.", .qkv = "attn.Wqkv",
                     .o = "attn.out_proj", .attn_post_norm = "norm1", .gate = "mlp.fc12", .up = "mlp.fc11",
                     .down = "mlp.fc2", .mlp_post_norm = "norm2" },
modernbert_names = { .embed = "embeddings.tok_embeddings", .embed_norm = "embeddings.norm", .final_norm = "final_norm",
                     .head = "lm_head", .layer = "layers.", .attn_norm = "attn_norm", .qkv = "attn.Wqkv",
                     .o = "attn.Wo", .mlp_norm = "mlp_norm", .gate_up = "mlp.Wi", .down = "mlp.Wo",
                     .dense_norm = "head.norm" };

enum { DISTANCE_BUCKETS = 32 };  /* mpnet: the code of transformers uses no other number */

/* ---- keys ---- */

/* Read the keys that all encoders have.  The head that predicts masked tokens is not used. */
static void encoder_parse(struct parse *p, struct config *c)
{
    c->both_ways = c->tied = 1;
    c->n_kv_heads = c->n_heads;
    parse_find(p, "type_vocab_size", NULL);
    c->embedding.pair_types = parse_bool(p, "zse_pair_types", 1);
    parse_must_be(p, "is_decoder", 0);
    parse_must_be(p, "add_cross_attention", 0);
    const char *kind = parse_string(p, "position_embedding_type", "absolute");
    if (strcmp(kind, "absolute") != 0 && strcmp(kind, "rope") != 0 && strcmp(kind, "rotary") != 0)
        parse_fail(p, ERR_UNSUPPORTED, "position_embedding_type \"%.40s\" is not supported", kind);
    parse_find(p, "directionality|pooler_fc_size|pooler_num_attention_heads|pooler_num_fc_layers|"
                  "pooler_size_per_head|pooler_type|output_past", NULL);
}

static void more_bert(struct parse *p, struct config *c)
{
    encoder_parse(p, c);
    c->norm_after_add = 1;
    c->n_types = (int)parse_int(p, "type_vocab_size", 0, 65536, 2);
}

/* Positions start after the number of the padding token. */
static void more_roberta(struct parse *p, struct config *c)
{
    more_bert(p, c);
    if (!json_object_get(p->json, "type_vocab_size"))
        c->n_types = 1;
    c->embedding.pair_twice = 1;
    c->pos_offset = (int)parse_int(p, "pad_token_id", 0, 1 << 20, 1) + 1;
    c->max_len -= c->pos_offset;
    if (c->max_len < 1)
        parse_fail(p, ERR_SHAPE, "max_position_embeddings %d, expected more than pad_token_id + 1 = %d",
                   c->max_len + c->pos_offset, c->pos_offset);
}

static void more_mpnet(struct parse *p, struct config *c)
{
    more_roberta(p, c);
    c->n_types = 0;
    c->distance_buckets = DISTANCE_BUCKETS;
    parse_must_equal(p, "relative_attention_num_buckets", DISTANCE_BUCKETS);
}

static void more_distilbert(struct parse *p, struct config *c)
{
    encoder_parse(p, c);
    c->norm_after_add = 1;
    /* the table of positions is stored in the file */
    parse_find(p, "sinusoidal_pos_embds|qa_dropout|seq_classif_dropout", NULL);
}

static void more_nomic(struct parse *p, struct config *c)
{
    encoder_parse(p, c);
    c->norm_after_add = 1;
    c->n_types = (int)parse_int(p, "type_vocab_size", 0, 65536, 2);
    if (parse_bool(p, "qkv_proj_bias|attention_bias", 0))
        c->biases |= BIAS_QKV | BIAS_O;
    if (parse_bool(p, "mlp_fc1_bias", 0))
        c->biases |= BIAS_GATE | BIAS_UP;
    if (parse_bool(p, "mlp_fc2_bias|mlp_bias", 0))
        c->biases |= BIAS_DOWN;
    parse_must_be(p, "prenorm", 0);
    parse_must_be(p, "use_rms_norm", 0);
    parse_must_be(p, "rotary_emb_interleaved", 0);
    parse_must_be(p, "causal", 0);
    parse_must_be(p, "parallel_block", 0);
    /* longer texts would need other frequencies */
    const int trained = (int)parse_int(p, "max_trained_positions", 1, 1 << 28, c->max_len);
    if (parse_real(p, "rotary_scaling_factor", 0) != 0 && trained < c->max_len)
        c->max_len = trained;
    parse_find(p, "fused_bias_fc|fused_dropout_add_ln|use_flash_attn|use_xentropy|dense_seq_output|pad_vocab_size_multiple|"
                  "last_layer_subset|reorder_and_upcast_attn|mlp_fc_bias|shift_tokens|rotary_emb_scale_base", NULL);
}

static void more_modernbert(struct parse *p, struct config *c)
{
    encoder_parse(p, c);
    c->bare_first = 1;
    if (parse_bool(p, "attention_bias", 0))
        c->biases |= BIAS_QKV | BIAS_O;
    if (parse_bool(p, "mlp_bias", 0))
        c->biases |= BIAS_MLP;
    if (parse_bool(p, "norm_bias", 0))
        c->biases |= BIAS_NORM | BIAS_DENSE_NORM;
    /* layers see local_attention / 2 tokens on each side; a window includes the token itself */
    const int window = (int)parse_int(p, "local_attention|sliding_window", 1, INT32_MAX / 2, 128) / 2 + 1,
              period = (int)parse_int(p, "global_attn_every_n_layers", 1, INT32_MAX, 3);
    for (int i = 0; i < c->n_layers; i++)
        c->window[i] = i % period ? window : 0;
    layer_types_parse(p, c, window);
    parse_find(p, "classifier_activation|classifier_bias|classifier_pooling|decoder_bias|deterministic_flash_attn|"
                  "mlp_dropout|initializer_cutoff_factor|reference_compile|repad_logits_with_grad|sparse_prediction|"
                  "sparse_pred_ignore_index|layer_norm_eps", NULL);
}

enum { POSTS = BIAS_QKV | BIAS_O | BIAS_MLP | BIAS_NORM };
#define POSITIONS .pos = POS_LEARNED
#define EPS_12(bits) .norm = NORM_LAYER, .eps = 1e-12, .biases = bits

const struct arch encoder_archs[] = {
    { ROW("bert",         bert_names,       30522, 768, 3072, 12, 12, 0, 512),  POSITIONS, EPS_12(POSTS),
      .act = "gelu", .tied = 1, .not_gated = 1, .more = more_bert },
    { ROW("roberta",      bert_names,       50265, 768, 3072, 12, 12, 0, 512),  POSITIONS, EPS_12(POSTS),
      .act = "gelu", .tied = 1, .not_gated = 1, .more = more_roberta },
    { ROW("camembert",    bert_names,       30522, 768, 3072, 12, 12, 0, 512),  POSITIONS, EPS_12(POSTS),
      .act = "gelu", .tied = 1, .not_gated = 1, .more = more_roberta },
    { ROW("xlm-roberta",  bert_names,       30522, 768, 3072, 12, 12, 0, 512),  POSITIONS, EPS_12(POSTS),
      .act = "gelu", .tied = 1, .not_gated = 1, .more = more_roberta },
    { ROW("mpnet",        mpnet_names,      30527, 768, 3072, 12, 12, 0, 512),  POSITIONS, EPS_12(POSTS),
      .act = "gelu", .tied = 1, .not_gated = 1, .more = more_mpnet },
    { ROW("distilbert",   distilbert_names, 30522, 768, 3072, 6,  12, 0, 512),  POSITIONS, EPS_12(POSTS),
      .act = "gelu", .tied = 1, .not_gated = 1, .more = more_distilbert },
    { ROW("nomic_bert",   nomic_names,      30528, 768, 3072, 12, 12, 0, 8192), ROPE(1000), EPS_12(BIAS_NORM),
      .act = "silu", .tied = 1, .more = more_nomic },
    { ROW("modernbert",   modernbert_names, 50368, 768, 1152, 22, 12, 0, 8192), ROPE(160000), .norm = NORM_LAYER,
      .eps = 1e-5, .act = "gelu", .tied = 1, .local_theta = 10000, .more = more_modernbert },
    { 0 }
};
