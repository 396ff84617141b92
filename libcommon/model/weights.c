/* weights.c - list the tensors of a source that make ours: join the names of arch.c and check
 * them against the source.  The weights outside of the layers are listed here. */
#include "libcommon/model/builder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Find the head's full name, which has no prefix or a prefix of its own.  Returns 1; 0 if the
 * source has no head. */
static int find_head(const struct builder *b, char *source, size_t room)
{
    static const char *const prefixes[] = { "", "language_model.", "model." };
    char probe[168];
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        snprintf(source, room, "%s%s", prefixes[i], b->n.head);
        snprintf(probe, sizeof probe, "%s.weight", source);
        if (spec_exists(b, probe))
            return 1;
    }
    snprintf(source, room, "%s", b->n.head);
    return 0;
}

/* The name in the source of a weight outside of the layers. */
static const char *end_stem(const struct weight_names *n, enum end_part part)
{
    switch (part) {
#define NORM(id, field, source, ...) case EP_##id: return n->source;
#define VECTOR(id, field, source, ...) case EP_##id: return n->source;
#define MATRIX(id, field, source, ...) case EP_##id: return n->source;
#include "libcommon/model/ends.def"
    case N_END_PARTS: break;
    }
    return NULL;
}

/* Write the joined name "STEM{0,1,...}" of the projections of all streams but the first.  In the
 * source each is a tensor; in our file they are one matrix. */
static void stream_names(const struct builder *b, char *out, size_t room, const char *stem)
{
    size_t n = (size_t)snprintf(out, room, "%s{", stem);
    for (int i = 0; i < b->c->n_streams - 1 && n < room; i++)
        n += (size_t)snprintf(out + n, room - n, "%s%d", i ? "," : "", i);
    if (n < room)
        snprintf(out + n, room - n, "}");
}

/* Add the projections of all streams but the first from a GGUF, which has them in one tensor. */
static int add_stacked_streams(struct builder *b, const char *name, const char *stem, const struct weight_spec *t)
{
    const int64_t n = b->c->n_streams - 1, want[3] = { n, t->rows / n, t->cols };
    char source[160], full[168], ours[40];
    spec_path(b, source, sizeof source, -1, stem);
    snprintf(full, sizeof full, "%s.weight", source);
    snprintf(ours, sizeof ours, "%s.weight", name);
    return spec_as(b, ours, full, want, 3, t) < 0 ? -1 : 0;
}

/* The name of a dense layer: with the model's prefix if that exists, else without it. */
static void dense_name(const struct builder *b, char *source, size_t room, int i)
{
    const char *stem = b->c->embedding.dense[i].stem;
    char probe[168];
    spec_path(b, source, room, -1, stem);
    snprintf(probe, sizeof probe, "%s.weight", source);
    if (!spec_exists(b, probe))
        snprintf(source, room, "%s", stem);
}

/* Add a weight outside of the layers, if the model has it. */
static int add_end(struct builder *b, enum end_part part)
{
    const struct config *c = b->c;
    const struct part_fact f = end_part_fact(c, part);
    const struct end_info *p = &end_infos[part];
    const char *stem = end_stem(&b->n, part);
    if (!f.stored)
        return 0;
    if (!stem && p->role != ROLE_DENSE)
        return err_set(b->e, ERR_UNSUPPORTED, "architecture %s: no name for %s in %s", c->arch, p->name,
                       c->gguf ? "a GGUF" : "its checkpoints");
    if (p->kind == PART_NORM)
        return spec_norm(b, -1, (int)part, p->name, stem, f.cols, c->biases & f.bias);
    const struct weight_spec t = { .rows = f.rows, .cols = f.cols, .is_vector = p->kind == PART_VECTOR,
                                   .role = p->role, .layer = -1, .expert = -1, .part = (int)part };
    const int streams = part == EP_ALTUP_IN || part == EP_ALTUP_OUT;
    if (streams && c->gguf)
        return add_stacked_streams(b, p->name, stem, &t);
    char source[160];
    if (part == EP_HEAD) {
        const int found = find_head(b, source, sizeof source);
        if (c->gguf ? !found : c->tied || (!found && !c->tied_given))
            return 0;
    } else if (part == EP_DENSE_1 || part == EP_DENSE_2) {
        dense_name(b, source, sizeof source, part == EP_DENSE_2);
    } else {
        char names[160];
        if (streams) {
            stream_names(b, names, sizeof names, stem);
            stem = names;
        }
        spec_path(b, source, sizeof source, -1, stem);
    }
    if (part >= EP_HYPER && part <= EP_HYPER_NORM) {           /* a whole name */
        const int64_t want[2] = { f.rows, f.cols };
        char ours[40];
        snprintf(ours, sizeof ours, "%s.weight", p->name);
        return spec_as(b, ours, source, f.rows == 1 ? want + 1 : want, f.rows == 1 ? 1 : 2, &t) < 0 ? -1 : 0;
    }
    return f.bias ? spec_linear(b, p->name, source, 0, c->biases & f.bias, t)
                  : spec_tensor(b, p->name, ".weight", source, 0, t);
}

/* Add the weights before or after the layers. */
static int add_ends(struct builder *b, int first)
{
    for (int p = 0; p < N_END_PARTS; p++)
        if (end_infos[p].is_first == first && add_end(b, (enum end_part)p) < 0)
            return -1;
    return 0;
}

/* Find the prefix of all names of a folder: models alone or inside larger ones, with and without
 * the head. */
static int find_prefix(struct builder *b)
{
    static const char *const prefixes[] = { "model.", "transformer.", "gpt_neox.", "", "backbone.",
                                            "bert.", "roberta.", "distilbert.", "mpnet.", "new.",
                                            "language_model.model.", "model.language_model.", "language_model." };
    char probe[168];
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        char name[160];
        snprintf(b->prefix, sizeof b->prefix, "%s", prefixes[i]);
        spec_path(b, name, sizeof name, -1, b->n.embed);
        snprintf(probe, sizeof probe, "%s.weight", name);
        if (spec_exists(b, probe))
            return 0;
    }
    return err_set(b->e, ERR_FORMAT, "tensor '%.*s.weight' is missing (with and without 'model.' and the like before it)",
                   (int)strcspn(b->n.embed, "|"), b->n.embed);
}

/* Set the names that a GGUF uses only in models with recurrent layers. */
static void state_names(struct builder *b)
{
    const struct weight_names *have = b->have;
    if (config_has_mixer(b->c, MIXER_CONV)) {
        b->n.in = "shortconv.in_proj";
        b->n.conv = "shortconv.conv";
        b->n.state_o = "shortconv.out_proj";
        if (!spec_exists(b, "output_norm.weight"))
            b->n.final_norm = gguf_names.embed_norm;    /* lfm2's name for it */
    }
    if (b->c->recurrent.per_row) {                      /* Kimi delta attention */
        b->n.in = "attn_{q,k,v}";
        b->n.conv = "ssm_conv1d_{q,k,v}";
        b->n.in_ba = "ssm_beta";
        const int ranks = b->c->recurrent.gate_rank > 0;
        b->n.gate_a = ranks ? "ssm_{f,g}_a" : NULL;
        b->n.in_f = ranks ? "ssm_f_b" : "ssm_f_a|ssm_f";
        b->n.in_z = ranks ? "ssm_g_b" : "ssm_g_a|ssm_g";
        b->n.state_o = NULL;
    } else if (config_has_mixer(b->c, MIXER_LIGHTNING)) {
        b->n.in = gguf_names.qkv;
        b->n.in_z = "attn_gate";
        b->n.gate_norm = "attn_norm_2";
        b->n.state_o = NULL;
    } else if (b->c->recurrent.z_apart) {
        b->n.in = gguf_names.qkv;
        b->n.in_z = "attn_gate";
        if (b->c->recurrent.ba_flat)
            b->n.in_ba = "ssm_{beta,alpha}";
    }
    if (have->mlp_norm && have->attn_norm && strcmp(have->mlp_norm, have->attn_norm) == 0)
        b->n.mlp_norm = gguf_names.attn_norm;           /* nemotron_h: the one norm of a layer has this name */
}

/* The names of DeepSeek V4's tensors in GGUF files. */
static void compressed_names(struct builder *b)
{
    struct weight_names *n = &b->n;
    n->k = "attn_kv";
    n->k_norm = "attn_kv_a_norm";
    n->o_a = "attn_output_a";
    n->o = "attn_output_b";
    n->comp_value = "attn_compressor_kv";
    n->comp_score = "attn_compressor_gate";
    n->comp_bias = "attn_compressor_ape.weight";
    n->comp_norm = "attn_compressor_norm";
    n->index_value = "indexer_compressor_kv";
    n->index_score = "indexer_compressor_gate";
    n->index_bias = "indexer_compressor_ape.weight";
    n->index_norm = "indexer_compressor_norm";
    n->token_experts = "ffn_gate_tid2eid.weight";
    n->hyper = "output_hc_fn.weight";
    n->hyper_bias = "output_hc_base.weight";
    n->hyper_scale = "output_hc_scale.weight";
    n->hyper_attn = "hc_attn_fn.weight";
    n->hyper_attn_bias = "hc_attn_base.weight";
    n->hyper_attn_scale = "hc_attn_scale.weight";
    n->hyper_ff = "hc_ffn_fn.weight";
    n->hyper_ff_bias = "hc_ffn_base.weight";
    n->hyper_ff_scale = "hc_ffn_scale.weight";
}

int weight_specs(const struct config *c, const struct weight_source *s, struct weight_spec **specs, int *n,
                 struct err *e)
{
    struct builder b = { .c = c, .s = s, .have = c->names, .n = c->gguf ? gguf_names : *c->names, .e = e };
    if (c->gguf && c->block == BLOCK_PARALLEL2 && strcmp(c->names->attn_norm, "ln_attn") == 0) {
        /* falcon: older models have one norm, attn_norm, for both halves; in newer models the
         * tensor of that name is the norm of the MLP */
        b.n.attn_norm = "attn_norm_2";
        b.n.mlp_norm = "attn_norm";
    }
    if (c->gguf && c->names->mlp_norm && !c->names->attn_post_norm &&
        spec_exists(&b, "blk.0.post_attention_norm.weight"))
        b.n.mlp_norm = gguf_names.attn_post_norm;       /* seed_oss: named by its place after attention */
    if (c->gguf && c->norm_after_add) {                 /* encoders */
        b.n.attn_post_norm = "attn_output_norm";
        b.n.mlp_post_norm = "layer_output_norm";
    }
    if (c->gguf)
        state_names(&b);
    if (c->gguf && config_has_mixer(c, MIXER_COMPRESSED))
        compressed_names(&b);
    if ((c->gguf ? 0 : find_prefix(&b)) < 0 || add_ends(&b, 1) < 0)
        goto fail;
    spec_find_experts(&b);
    for (int i = 0; i < c->n_layers; i++)
        if (spec_layer(&b, i) < 0)
            goto fail;
    if (add_ends(&b, 0) < 0 || spec_predictor(&b) < 0)
        goto fail;
    *specs = b.specs;
    *n = b.n_specs;
    return 0;
fail:
    free(b.specs);
    return -1;
}
