/* gguf_arch_encoder.c - the fields of GGUF files of models that make vectors of texts. */
#include "libcommon/import/gguf_arch.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Add the dense layer of this name after the pooling, if the file has it. */
static void add_dense(const struct gguf_translator *t, json_t *list, const char *name)
{
    char full[40];
    snprintf(full, sizeof full, "%s.weight", name);
    const struct source_tensor *w = gguf_find_tensor(t, full);
    if (w && w->n_dims == 2)
        json_array_append_new(list, json_pack("{s:s, s:I, s:I, s:s, s:b}", "name", name, "in", (json_int_t)w->dim[1],
                                              "out", (json_int_t)w->dim[0], "activation", "identity", "bias", 0));
}

/* pooling_type: 1 is the mean, 2 the first token, 3 the last. */
void gguf_add_pooling(struct gguf_translator *t)
{
    static const char *const names[] = { NULL, "mean", "cls", "last" };
    int64_t kind = 0;
    if (!gguf_has_key(t, "pooling_type") || gguf_key_int(t, "pooling_type", 0, &kind, NULL) < 0)
        return;
    if (kind < 1 || kind > 3) {
        gguf_fail(t, ERR_UNSUPPORTED,
                  "key %s.pooling_type: %" PRId64 "%s is not supported, expected 1 (mean), 2 (cls) or 3 (last)",
                  t->arch, kind, kind == 0 ? " (none: a vector for each token)" : kind == 4 ? " (rank: a reranker)"
                                                                                            : "");
        return;
    }
    json_t *dense = json_array();
    add_dense(t, dense, "dense_2");
    add_dense(t, dense, "dense_3");
    json_object_set_new(t->out, "zse_embedding", json_pack("{s:s, s:b, s:o}", "pooling", names[kind], "normalize", 1,
                                                           "dense", dense));
}

void gguf_check_direction(const struct gguf_translator *t)
{
    static const char *const encoders[] = { "bert", "nomic-bert", "modern-bert", "gemma-embedding" };
    int causal = 1;
    for (size_t i = 0; i < sizeof encoders / sizeof *encoders; i++)
        causal &= strcmp(t->arch, encoders[i]) != 0;
    if ((gguf_key_float(t, "attention.causal", causal) != 0) != causal)
        gguf_fail(t, ERR_UNSUPPORTED, "key %s.attention.causal: %s is not supported for this architecture", t->arch,
                  causal ? "false" : "true");
}

/* The number of rows of a table; 0 if the file does not have it. */
static int64_t rows_of(const struct gguf_translator *t, const char *name)
{
    const struct source_tensor *table = gguf_find_tensor(t, name);
    return table ? table->n_dims == 1 ? 1 : table->dim[0] : 0;
}

/* DistilBERT has no token types.  In RoBERTa's table of positions, the first row belongs to the
 * first position that is used: the converter drops the rows before it. */
void gguf_add_bert(struct gguf_translator *t)
{
    const int64_t positions = rows_of(t, "position_embd.weight");
    gguf_set_int(t, "type_vocab_size", rows_of(t, "token_types.weight"));
    if (positions)
        gguf_set_int(t, "max_position_embeddings", positions);
}

void gguf_add_nomic_bert(struct gguf_translator *t)
{
    gguf_set_int(t, "type_vocab_size", rows_of(t, "token_types.weight"));
}

void gguf_add_modern_bert(struct gguf_translator *t)
{
    char k[160];
    const struct gguf_str *act = gguf_str(t->g, gguf_full_key(t, "hidden_act", k, sizeof k));
    gguf_copy_int(t, "attention.sliding_window", "local_attention");
    const struct gguf_kv *pattern = gguf_find(t->g, gguf_full_key(t, "attention.sliding_window_pattern", k, sizeof k));
    if (pattern && pattern->type == GGUF_ARR)
        gguf_fail(t, ERR_UNSUPPORTED, "key %s: a list of layers is not supported, expected a number", k);
    gguf_copy_int(t, "attention.sliding_window_pattern", "global_attn_every_n_layers");
    if (act && act->n == 4 && memcmp(act->s, "silu", 4) == 0)
        gguf_set_string(t, "hidden_activation", "silu");
    else if (act && !(act->n == 4 && memcmp(act->s, "gelu", 4) == 0))
        gguf_fail(t, ERR_UNSUPPORTED, "key %s.hidden_act: only \"gelu\" and \"silu\" are supported", t->arch);
}

void gguf_add_gemma_embedding(struct gguf_translator *t)
{
    gguf_add_gemma3(t);
    gguf_set_bool(t, "use_bidirectional_attention", 1);
}
