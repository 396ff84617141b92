/* weights_streams.c - list the tensors of compressed attention, of layers with several residual
 * streams, and of embeddings of runs of tokens. */
#include <stdio.h>
#include <string.h>

#include "libcommon/model/arch.h"
#include "libcommon/model/builder.h"
#include "libcommon/model/parts.h"

int spec_compressed(struct builder *b, int i)
{
    const struct weight_names *n = &b->n;
    if (spec_own_matrix(b, i, LP_Q_A, n->q_a) < 0 || spec_layer_norm(b, i, LP_Q_A_NORM, n->q_a_norm) < 0 ||
        spec_own_matrix(b, i, LP_Q, n->q_b) < 0 || spec_own_matrix(b, i, LP_K, n->k) < 0 ||
        spec_layer_norm(b, i, LP_K_NORM, n->k_norm) < 0 || spec_own_matrix(b, i, LP_O_A, n->o_a) < 0)
        return -1;
    if (config_entries(b->c, i) &&
        (spec_own_matrix(b, i, LP_COMP_VALUE, n->comp_value) < 0 ||
         spec_own_matrix(b, i, LP_COMP_SCORE, n->comp_score) < 0 ||
         spec_plain(b, i, LP_COMP_BIAS, n->comp_bias) < 0 || spec_layer_norm(b, i, LP_COMP_NORM, n->comp_norm) < 0))
        return -1;
    return config_indexes(b->c, i) && (spec_own_matrix(b, i, LP_INDEX_Q, n->index_q) < 0 ||
                                       spec_own_matrix(b, i, LP_INDEX_W, n->index_w) < 0 ||
                                       spec_own_matrix(b, i, LP_INDEX_VALUE, n->index_value) < 0 ||
                                       spec_own_matrix(b, i, LP_INDEX_SCORE, n->index_score) < 0 ||
                                       spec_plain(b, i, LP_INDEX_BIAS, n->index_bias) < 0 ||
                                       spec_layer_norm(b, i, LP_INDEX_NORM, n->index_norm) < 0) ? -1 : 0;
}

/* Add a small matrix that is stored as plain f32. */
int spec_plain(struct builder *b, int layer, enum layer_part part, const char *stem)
{
    const struct part_fact f = layer_part_fact(b->c, layer, part);
    const int64_t want[2] = { f.rows, f.cols };
    const struct weight_spec t = { .rows = f.rows, .cols = f.cols, .is_vector = 1, .role = ROLE_BIAS, .layer = layer,
                                   .expert = -1, .part = (int)part };
    char full[160];
    spec_path(b, full, sizeof full, layer, stem);
    return spec_as(b, part_infos[part].name, full, want, 2, &t);
}

int spec_altup(struct builder *b, int i)
{
    const struct weight_names *n = &b->n;
    return spec_plain(b, i, LP_ALTUP_ROUTER, n->altup_router) < 0 ||
           spec_plain(b, i, LP_ALTUP_PREDICT, n->altup_predict) < 0 ||
           spec_plain(b, i, LP_ALTUP_CORRECT, n->altup_correct) < 0 ||
           spec_vector(b, i, LP_ALTUP_SCALE, n->altup_scale) < 0 ||
           spec_layer_norm(b, i, LP_ALTUP_NORM, n->altup_norm) < 0 ||
           spec_own_matrix(b, i, LP_LAUREL_IN, n->laurel_in) < 0 ||
           spec_own_matrix(b, i, LP_LAUREL_OUT, n->laurel_out) < 0
               ? -1 : spec_layer_norm(b, i, LP_LAUREL_NORM, n->laurel_norm);
}

static int gated_streams(struct builder *b, int i)
{
    const struct weight_names *n = &b->n;
    return spec_vector(b, i, LP_HYPER_ATTN_NORM, n->hyper_attn_norm) < 0 ||
           spec_own_matrix(b, i, LP_HYPER_ATTN_DOWN, n->hyper_attn_down) < 0 ||
           spec_own_matrix(b, i, LP_HYPER_ATTN_UP, n->hyper_attn_up) < 0 ||
           spec_own_matrix(b, i, LP_HYPER_ATTN_INJECT, n->hyper_attn_inject) < 0 ||
           spec_vector(b, i, LP_HYPER_FF_NORM, n->hyper_ff_norm) < 0 ||
           spec_own_matrix(b, i, LP_HYPER_FF_DOWN, n->hyper_ff_down) < 0 ||
           spec_own_matrix(b, i, LP_HYPER_FF_UP, n->hyper_ff_up) < 0
               ? -1 : spec_own_matrix(b, i, LP_HYPER_FF_INJECT, n->hyper_ff_inject);
}

int spec_hyper(struct builder *b, int i)
{
    const struct weight_names *n = &b->n;
    if (b->c->hyper.rank)
        return gated_streams(b, i);
    if (b->c->mixer[i] != MIXER_NONE &&
        (spec_plain(b, i, LP_HYPER_ATTN, n->hyper_attn) < 0 ||
         spec_vector(b, i, LP_HYPER_ATTN_BIAS, n->hyper_attn_bias) < 0 ||
         spec_vector(b, i, LP_HYPER_ATTN_SCALE, n->hyper_attn_scale) < 0))
        return -1;
    return b->c->ff[i] != FF_NONE && (spec_plain(b, i, LP_HYPER_FF, n->hyper_ff) < 0 ||
                                      spec_vector(b, i, LP_HYPER_FF_BIAS, n->hyper_ff_bias) < 0 ||
                                      spec_vector(b, i, LP_HYPER_FF_SCALE, n->hyper_ff_scale) < 0) ? -1 : 0;
}

/* Add the table of n-gram embeddings.  A folder may divide it into several tensors; in a GGUF it is
 * no tensor of the layer. */
static int add_table(struct builder *b, int i)
{
    const char *stem = b->n.ngram_embed;
    char names[160];
    if (b->c->gguf)
        return spec_matrix(b, i, LP_NGRAM_EMBED, stem, (struct row_map){ 0 }, 0);
    snprintf(names, sizeof names, "%s.shard_{0..%d}|%s", stem, b->c->ngram.parts - 1, stem);
    return spec_own_matrix(b, i, LP_NGRAM_EMBED, names);
}

/* Add the n-gram embeddings.  The convolution is stored transposed, so that channels are adjacent;
 * GGUF leaves out the 1 of its shape. */
int spec_ngram(struct builder *b, int i)
{
    const struct weight_names *n = &b->n;
    const struct part_fact conv = layer_part_fact(b->c, i, LP_NGRAM_CONV);
    const int64_t want[3] = { conv.cols, 1, conv.rows }, flat[2] = { conv.cols, conv.rows };
    const struct weight_spec t = { .rows = conv.rows, .cols = conv.cols, .is_vector = 1, .role = ROLE_BIAS, .layer = i,
                                   .expert = -1, .part = LP_NGRAM_CONV, .map = { .transposed = 1 } };
    char source[160];
    if (add_table(b, i) < 0 || spec_own_matrix(b, i, LP_NGRAM_KEY, n->ngram_key) < 0 ||
        spec_own_matrix(b, i, LP_NGRAM_VALUE, n->ngram_value) < 0 ||
        spec_vector(b, i, LP_NGRAM_KEY_NORM, n->ngram_key_norm) < 0 ||
        spec_vector(b, i, LP_NGRAM_QUERY_NORM, n->ngram_query_norm) < 0 ||
        spec_vector(b, i, LP_NGRAM_CONV_NORM, n->ngram_conv_norm) < 0)
        return -1;
    spec_path(b, source, sizeof source, i, n->ngram_conv);
    const int is_flat = spec_has_dims(b, source, 2);
    return spec_as(b, part_infos[LP_NGRAM_CONV].name, source, is_flat ? flat : want, is_flat ? 2 : 3, &t) < 0 ? -1 : 0;
}

/* Add the indexer's queries and keys, which a GGUF stores apart and a folder in one matrix, and
 * their norms. */
int spec_blocks(struct builder *b, int i)
{
    const struct indexer *x = &b->c->indexer;
    const int64_t q = (int64_t)x->n_heads * x->head_dim, all = q + x->head_dim;
    const struct row_map queries = { .run = q, .stride = q }, keys = { .offset = q, .run = x->head_dim,
                                                                       .stride = x->head_dim };
    char source[160];
    spec_path(b, source, sizeof source, i, b->n.index_q);
    if (b->c->gguf ? spec_own_matrix(b, i, LP_INDEX_Q, "indexer.q_proj") < 0 ||
                         spec_own_matrix(b, i, LP_INDEX_K, "indexer.k_proj") < 0
                   : spec_matrix(b, i, LP_INDEX_Q, source, queries, all) < 0 ||
                         spec_matrix(b, i, LP_INDEX_K, source, keys, all) < 0)
        return -1;
    return spec_layer_norm(b, i, LP_INDEX_Q_NORM, b->n.index_q_norm) < 0
               ? -1 : spec_layer_norm(b, i, LP_INDEX_NORM, b->n.index_norm);
}
