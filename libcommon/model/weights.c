/* weights.c - where each tensor of ours comes from: the names of arch.c, put together and checked against what the source holds. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/model/arch.h"

/* GGUF has one set of names for all architectures; which of them a model has, its own row says. */
const struct weight_names gguf_names = {
    .embed = "token_embd", .pos = "position_embd", .embed_norm = "token_embd_norm", .final_norm = "output_norm", .head = "output", .layer = "blk.",
    .attn_norm = "attn_norm", .attn_post_norm = "post_attention_norm", .mlp_norm = "ffn_norm", .mlp_post_norm = "post_ffw_norm",
    .q_norm = "attn_q_norm", .k_norm = "attn_k_norm", .qkv = "attn_qkv", .q = "attn_q", .k = "attn_k", .v = "attn_v", .o = "attn_output",
    .gate_up = "ffn_up", .gate = "ffn_gate", .up = "ffn_up", .down = "ffn_down",
};

struct builder {
    const struct config *c;
    const struct weight_source *s;
    const struct weight_names *have;        /* the architecture's: what there is */
    struct weight_names n;                  /* the source's: how it is called */
    char prefix[48];                        /* of everything but the head */
    struct weight_spec *specs;
    int n_specs, room;
    struct err *e;
};

static int exists(const struct builder *b, const char *name)
{
    int n;
    int64_t dim[4];
    return !b->s->shape || b->s->shape(b->s->user, name, &n, dim) == 0;
}

static void dims_text(char *out, size_t room, const int64_t *dim, int n)
{
    snprintf(out, room, "[");
    for (int i = 0; i < n; i++)
        snprintf(out + strlen(out), room - strlen(out), "%s%" PRId64, i ? ", " : "", dim[i]);
    snprintf(out + strlen(out), room - strlen(out), "]");
}

/* The tensor is there with this shape; -1 with both shapes named. 1: missing and allowed to be. */
static int check_shape(const struct builder *b, const char *name, const int64_t *want, int n_want, int optional)
{
    int n;
    int64_t dim[4];
    if (!b->s->shape)
        return 0;
    if (b->s->shape(b->s->user, name, &n, dim) < 0)
        return optional ? 1 : err_set(b->e, ERR_FORMAT, "tensor '%s' is missing", name);
    if (n == n_want && memcmp(dim, want, (size_t)n * sizeof *dim) == 0)
        return 0;
    char found[100], expected[100];
    dims_text(found, sizeof found, dim, n);
    dims_text(expected, sizeof expected, want, n_want);
    return err_set(b->e, ERR_SHAPE, "tensor '%s': shape %s, expected %s by config.json", name, found, expected);
}

static struct weight_spec *push(struct builder *b)
{
    if (b->n_specs == b->room) {
        int room = b->room ? 2 * b->room : 64;
        struct weight_spec *grown = realloc(b->specs, (size_t)room * sizeof *grown);
        if (!grown) {
            err_nomem(b->e, "list of weights");
            return NULL;
        }
        b->specs = grown;
        b->room = room;
    }
    struct weight_spec *s = &b->specs[b->n_specs++];
    *s = (struct weight_spec){ .layer = -1 };
    return s;
}

/* One tensor: ours [rows, cols] (rows 1 for vectors) from `source` of src_rows rows. */
static int add(struct builder *b, int layer, const char *name, const char *suffix, const char *source, int64_t rows, int64_t cols, int vector, struct row_map map,
               int64_t src_rows, int role, int optional)
{
    char full[200], ours[96];
    snprintf(full, sizeof full, "%s%s", source, suffix);
    if (layer < 0)
        snprintf(ours, sizeof ours, "%s%s", name, suffix);
    else
        snprintf(ours, sizeof ours, "layers.%d.%s%s", layer, name, suffix);
    int64_t want[2] = { map.transposed ? cols : src_rows, map.transposed ? src_rows : cols };
    int missing;
    if (vector && rows == 1) {
        want[0] = src_rows;
        missing = check_shape(b, full, want, 1, optional);
    } else {
        missing = check_shape(b, full, want, 2, optional);
    }
    if (missing)
        return missing < 0 ? -1 : 0;
    struct weight_spec *s = push(b);
    if (!s)
        return -1;
    if (strlen(full) >= sizeof s->source)
        return err_set(b->e, ERR_SHAPE, "tensor '%s': a name of %zu characters, expected less than %zu", full, strlen(full), sizeof s->source);
    memcpy(s->name, ours, sizeof ours);
    memcpy(s->source, full, strlen(full) + 1);
    s->map = map;
    s->rows = rows;
    s->cols = cols;
    s->is_vector = vector;
    s->role = role;
    s->layer = layer;
    s->optional = optional;
    return 0;
}

static void path(const struct builder *b, char *out, size_t room, int layer, const char *stem)
{
    if (layer < 0)
        snprintf(out, room, "%s%s", b->prefix, stem);
    else
        snprintf(out, room, "%s%s%d.%s", b->prefix, b->n.layer, layer, stem);
}

static int add_norm(struct builder *b, int layer, const char *name, const char *have, const char *stem, int64_t n, int bias)
{
    if (!have || !*have)
        return 0;
    char source[160];
    path(b, source, sizeof source, layer, stem);
    const struct row_map identity = { 0 };
    if (add(b, layer, name, ".weight", source, 1, n, 1, identity, n, ROLE_NORM, 0) < 0)
        return -1;
    return b->c->biases & bias ? add(b, layer, name, ".bias", source, 1, n, 1, identity, n, ROLE_NORM, 0) : 0;
}

/* A linear layer and its bias: rows [0, rows) through map of a source of src_rows rows. */
static int add_linear(struct builder *b, int layer, const char *name, const char *source, int role, int bias, struct row_map map, int64_t src_rows)
{
    int64_t rows, cols;
    config_linear_shape(b->c, role, &rows, &cols);
    if (!src_rows)
        src_rows = rows;
    map.transposed = b->n.conv1d && layer >= 0;
    if (add(b, layer, name, ".weight", source, rows, cols, 0, map, src_rows, role, 0) < 0)
        return -1;
    map.transposed = 0;
    if (b->c->gguf ? 1 : b->c->biases & bias)
        return add(b, layer, name, ".bias", source, 1, rows, 1, map, src_rows, ROLE_BIAS, b->c->gguf);
    return 0;
}

static int add_qkv(struct builder *b, int layer)
{
    const struct config *c = b->c;
    const int64_t hd = c->head_dim, group = c->n_heads / c->n_kv_heads, q = (int64_t)c->n_heads * hd, kv = (int64_t)c->n_kv_heads * hd;
    char fused[160], probe[168], one[3][160];
    const char *stems[3] = { b->n.q, b->n.k, b->n.v };
    static const char *const names[3] = { "q_proj", "k_proj", "v_proj" };
    static const int biases[3] = { BIAS_Q, BIAS_K, BIAS_V };
    int is_fused = b->n.qkv != NULL;
    if (is_fused) {
        path(b, fused, sizeof fused, layer, b->n.qkv);
        snprintf(probe, sizeof probe, "%s.weight", fused);
        is_fused = !c->gguf || exists(b, probe);        /* GGUF: some converters fuse, some do not */
    }
    for (int i = 0; i < 3; i++) {
        struct row_map map = { 0 };
        int64_t src_rows = 0;
        if (is_fused) {
            const int64_t rows = i == 0 ? q : kv, offset = i == 0 ? 0 : i == 1 ? q : q + kv;
            src_rows = q + 2 * kv;
            map = b->n.qkv_grouped ? (struct row_map){ .offset = i == 0 ? 0 : (group + i - 1) * hd, .run = i == 0 ? group * hd : hd, .stride = (group + 2) * hd }
                                   : (struct row_map){ .offset = offset, .run = rows, .stride = rows };
            memcpy(one[i], fused, sizeof fused);
        } else {
            path(b, one[i], sizeof one[i], layer, stems[i]);
        }
        if (c->gguf && b->have->gguf_permuted && i < 2)
            map.pairs = (int)hd;
        if (add_linear(b, layer, names[i], one[i], ROLE_Q + i, biases[i], map, src_rows) < 0)
            return -1;
    }
    return 0;
}

static int add_mlp(struct builder *b, int layer)
{
    const struct config *c = b->c;
    const int64_t ff = c->intermediate_size;
    char source[160], probe[168];
    const struct row_map identity = { 0 };
    int is_fused = c->gated && b->n.gate_up != NULL;
    if (is_fused && c->gguf) {
        path(b, source, sizeof source, layer, b->n.gate);
        snprintf(probe, sizeof probe, "%s.weight", source);
        is_fused = !exists(b, probe);
    }
    if (is_fused) {
        path(b, source, sizeof source, layer, b->n.gate_up);
        if (add_linear(b, layer, "gate_proj", source, ROLE_GATE, BIAS_GATE, (struct row_map){ .run = ff, .stride = ff }, 2 * ff) < 0 ||
            add_linear(b, layer, "up_proj", source, ROLE_UP, BIAS_UP, (struct row_map){ .offset = ff, .run = ff, .stride = ff }, 2 * ff) < 0)
            return -1;
    } else {
        if (c->gated) {
            path(b, source, sizeof source, layer, b->n.gate);
            if (add_linear(b, layer, "gate_proj", source, ROLE_GATE, BIAS_GATE, identity, 0) < 0)
                return -1;
        }
        path(b, source, sizeof source, layer, b->n.up);
        if (add_linear(b, layer, "up_proj", source, ROLE_UP, BIAS_UP, identity, 0) < 0)
            return -1;
    }
    path(b, source, sizeof source, layer, b->n.down);
    return add_linear(b, layer, "down_proj", source, ROLE_DOWN, BIAS_DOWN, identity, 0);
}

/* q_norm or k_norm: one weight for all heads, one for each head ([heads, head_dim] in the source), or one for the whole row. */
static int add_qk_norm(struct builder *b, int layer, const char *name, const char *stem, int heads)
{
    const struct config *c = b->c;
    if (c->qk_norm == QK_NORM_NONE)
        return 0;
    const int64_t n = c->qk_norm == QK_NORM_HEAD ? c->head_dim : (int64_t)heads * c->head_dim;
    if (c->qk_norm != QK_NORM_EACH)
        return add_norm(b, layer, name, stem, stem, n, BIAS_QK_NORM);
    char source[150], full[160];
    path(b, source, sizeof source, layer, stem);
    snprintf(full, sizeof full, "%s.weight", source);
    const int64_t want[2] = { heads, c->head_dim };
    if (check_shape(b, full, want, 2, 0) < 0)
        return -1;
    struct weight_spec *s = push(b);
    if (!s)
        return -1;
    *s = (struct weight_spec){ .rows = 1, .cols = n, .is_vector = 1, .role = ROLE_NORM, .layer = layer };
    snprintf(s->name, sizeof s->name, "layers.%d.%s.weight", layer, name);
    snprintf(s->source, sizeof s->source, "%s", full);
    return 0;
}

static int add_layer(struct builder *b, int i)
{
    const struct weight_names *have = b->have, *n = &b->n;
    const int64_t hidden = b->c->hidden_size;
    const struct row_map identity = { 0 };
    char o[160];
    path(b, o, sizeof o, i, n->o);
    return add_norm(b, i, "attn_norm", have->attn_norm, n->attn_norm, hidden, BIAS_NORM) < 0 || add_qkv(b, i) < 0 ||
           add_qk_norm(b, i, "q_norm", n->q_norm, b->c->n_heads) < 0 || add_qk_norm(b, i, "k_norm", n->k_norm, b->c->n_kv_heads) < 0 ||
           add_linear(b, i, "o_proj", o, ROLE_O, BIAS_O, identity, 0) < 0 ||
           add_norm(b, i, "attn_post_norm", have->attn_post_norm, n->attn_post_norm, hidden, BIAS_NORM) < 0 ||
           add_norm(b, i, "mlp_norm", have->mlp_norm, n->mlp_norm, hidden, BIAS_NORM) < 0 || add_mlp(b, i) < 0 ||
           add_norm(b, i, "mlp_post_norm", have->mlp_post_norm, n->mlp_post_norm, hidden, BIAS_NORM) < 0 ? -1 : 0;
}

static int add_embed(struct builder *b)
{
    const struct config *c = b->c;
    const struct row_map identity = { 0 };
    const int64_t positions = (int64_t)c->max_len + c->pos_offset;
    char source[160];
    path(b, source, sizeof source, -1, b->n.embed);
    if (add(b, -1, "embed", ".weight", source, c->vocab_size, c->embed_size, 0, identity, c->vocab_size, ROLE_EMBED, 0) < 0 ||
        add_norm(b, -1, "embed_norm", b->have->embed_norm, b->n.embed_norm, c->hidden_size, BIAS_NORM) < 0)
        return -1;
    if (c->embed_size != c->hidden_size) {
        path(b, source, sizeof source, -1, b->n.embed_in ? b->n.embed_in : "project_in");
        if (add(b, -1, "embed_in", ".weight", source, c->hidden_size, c->embed_size, 0, identity, c->hidden_size, ROLE_EMBED, 0) < 0)
            return -1;
    }
    if (c->pos != POS_LEARNED)
        return 0;
    path(b, source, sizeof source, -1, b->n.pos);
    return add(b, -1, "pos_embed", ".weight", source, positions, c->hidden_size, 1, identity, positions, ROLE_POS, 0);
}

/* The head stands beside the model: without its prefix, or with that of the language model inside a larger one. */
static int find_head(const struct builder *b, char *source, size_t room)
{
    static const char *const prefixes[] = { "", "language_model.", "model." };
    char probe[168];
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        snprintf(source, room, "%s%s", prefixes[i], b->n.head);
        snprintf(probe, sizeof probe, "%s.weight", source);
        if (exists(b, probe))
            return 1;
    }
    snprintf(source, room, "%s", b->n.head);
    return 0;
}

static int add_head(struct builder *b)
{
    const struct config *c = b->c;
    const struct row_map identity = { 0 };
    char source[160];
    if (add_norm(b, -1, "final_norm", b->have->final_norm, b->n.final_norm, c->hidden_size, BIAS_NORM) < 0)
        return -1;
    if (c->embed_size != c->hidden_size) {
        path(b, source, sizeof source, -1, b->n.embed_out ? b->n.embed_out : "project_out");
        if (add(b, -1, "embed_out", ".weight", source, c->embed_size, c->hidden_size, 0, identity, c->embed_size, ROLE_HEAD, 0) < 0)
            return -1;
    }
    int found = find_head(b, source, sizeof source);
    if (c->gguf ? !found : c->tied || (!found && !c->tied_given))
        return 0;
    return add_linear(b, -1, "head", source, ROLE_HEAD, BIAS_HEAD, identity, 0);
}

/* What all names of a folder begin with: models alone or inside larger ones, with and without the head. */
static int find_prefix(struct builder *b)
{
    static const char *const prefixes[] = { "model.", "transformer.", "gpt_neox.", "", "language_model.model.", "model.language_model.", "language_model." };
    char probe[168];
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        snprintf(b->prefix, sizeof b->prefix, "%s", prefixes[i]);
        snprintf(probe, sizeof probe, "%s%s.weight", b->prefix, b->n.embed);
        if (exists(b, probe))
            return 0;
    }
    return err_set(b->e, ERR_FORMAT, "tensor '%s.weight' is missing (with and without 'model.' and the like before it)", b->n.embed);
}

int weight_specs(const struct config *c, const struct weight_source *s, struct weight_spec **specs, int *n, struct err *e)
{
    struct builder b = { .c = c, .s = s, .have = c->names, .n = c->gguf ? gguf_names : *c->names, .e = e };
    if (c->gguf && c->block == BLOCK_PARALLEL2 && strcmp(c->names->attn_norm, "ln_attn") == 0) {
        b.n.attn_norm = "attn_norm_2";          /* falcon: the norm that both older and newer models have is the MLP's in the newer */
        b.n.mlp_norm = "attn_norm";
    }
    if (c->gguf && c->names->mlp_norm && !c->names->attn_post_norm && exists(&b, "blk.0.post_attention_norm.weight"))
        b.n.mlp_norm = gguf_names.attn_post_norm;       /* seed_oss: called by its place, not by what reads it */
    if ((c->gguf ? 0 : find_prefix(&b)) < 0 || add_embed(&b) < 0)
        goto fail;
    for (int i = 0; i < c->n_layers; i++)
        if (add_layer(&b, i) < 0)
            goto fail;
    if (add_head(&b) < 0)
        goto fail;
    *specs = b.specs;
    *n = b.n_specs;
    return 0;
fail:
    free(b.specs);
    return -1;
}

static int ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

int weight_ignorable(const struct config *c, const char *name)
{
    /* Causal masks and tables that older versions saved with the model; factors that config_parse has got from the GGUF's configuration. */
    static const char *const ends[] = { "rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached", ".attn.bias", ".attn.masked_bias",
                                        ".attention.bias", ".attention.masked_bias", ".attention.rotary_emb.inv_freq" };
    static const char *const begins[] = { "vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.",
                                          "rope_freqs.", "rope_factors_long.", "rope_factors_short." };
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (ends_with(name, ends[i]))
            return 1;
    for (size_t i = 0; i < sizeof begins / sizeof *begins; i++)
        if (strncmp(name, begins[i], strlen(begins[i])) == 0)
            return 1;
    char head[64];
    snprintf(head, sizeof head, "%s.weight", c->gguf ? gguf_names.head : c->names->head);
    return c->tied && ends_with(name, head);    /* saved although it is the embedding */
}
