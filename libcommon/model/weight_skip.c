/* weight_skip.c - find out why a tensor of a source may be skipped. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/suffix.h"
#include "libcommon/model/arch.h"

enum weight_skip weight_skip(const struct config *c, const char *name)
{
    /* Causal masks and tables that older versions saved with the model; factors that the GGUF's
     * configuration contains as well. */
    static const char *const ends[] = { "rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached",
                                        ".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias",
                                        ".attention.rotary_emb.inv_freq", ".slope_rate", ".layer_multipliers",
                                        ".ngram_heads_offsets", ".ngram_heads_vocab_sizes", ".query_decay",
                                        ".key_decay", ".diagonal_decay", "embeddings.position_ids",
                                        "embeddings.token_type_ids" };
    static const struct { const char *begin; enum weight_skip why; } begins[] = {
        { "vision_tower.", WEIGHT_ENCODER }, { "multi_modal_projector.", WEIGHT_ENCODER },
        { "model.vision_tower.", WEIGHT_ENCODER }, { "model.multi_modal_projector.", WEIGHT_ENCODER },
        { "rope_freqs.", WEIGHT_BUFFER }, { "rope_factors_long.", WEIGHT_BUFFER },
        { "rope_factors_short.", WEIGHT_BUFFER }, { "model.mtp_", WEIGHT_PREDICTOR }, { "mtp.", WEIGHT_PREDICTOR },
        { "model.mtp.", WEIGHT_PREDICTOR },
    };
    static const char *const trained_with[] = { "pooler.", "cls.", "lm_head.", "vocab_", "head.", "decoder.",
                                                "mlm_head." };
    static const char *const prefixes[] = { "", "bert.", "roberta.", "mpnet.", "model." };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(name, ends[i]))
            return WEIGHT_BUFFER;
    if (wrapper_skips(c->wrapper, name))
        return WEIGHT_ENCODER;
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (strncmp(name, begins[i].begin, strlen(begins[i].begin)) == 0)
            return begins[i].why;
    /* GGUF files have none of these; their cls. scores pairs */
    for (size_t i = 0; c->both_ways && !c->gguf && i < sizeof prefixes / sizeof *prefixes; i++)
        for (size_t k = 0; k < sizeof trained_with / sizeof *trained_with; k++)
            if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0 &&
                strncmp(name + strlen(prefixes[i]), trained_with[k], strlen(trained_with[k])) == 0)
                return WEIGHT_TRAINING;
    const char *layer = strstr(name, c->gguf ? gguf_names.layer : c->names->layer);
    const int n = layer ? atoi(layer + strlen(c->gguf ? gguf_names.layer : c->names->layer)) : -1;
    /* layers that predict further tokens may repeat the embedding and the head */
    if (n >= c->n_layers && n < c->n_layers + c->n_extra_layers)
        return ends_with(name, ".embed_tokens.weight") || ends_with(name, ".shared_head.head.weight") ||
                       ends_with(name, ".shared_head_head.weight")
                   ? WEIGHT_BUFFER : WEIGHT_PREDICTOR;
    char head[64];
    snprintf(head, sizeof head, "%s.weight", c->gguf ? gguf_names.head : c->names->head);
    /* a tied head may be saved in addition to the embedding */
    return c->tied && ends_with(name, head) ? WEIGHT_BUFFER : WEIGHT_UNKNOWN;
}
