/* weights_predictor.c - the tensors of a layer that predicts a further token (multi-token
 * prediction, arXiv:2412.19437, section 2.2). */
#include <stdio.h>
#include <string.h>

#include "libcommon/model/arch.h"
#include "libcommon/model/builder.h"

/* How checkpoints name the layer that predicts further tokens.  It follows the model's last layer
 * and contains its own norms and head (DeepSeek-V3, GLM-4.5; every model in GGUF), or has a prefix
 * of its own (Qwen3-Next, Qwen3.5). */
struct predictor_names {
    int gguf;                       /* the names are those of a GGUF */
    const char *prefix;             /* NULL: it is named like the model's layers, with the next number */
    int part_of;                    /* the layer that `embed_norm` and so on belong to; -1: none */
    const char *embed_norm, *state_norm, *in, *final_norm;
};

static const struct predictor_names predictors[] = {
    { 0, NULL, 0, "enorm", "hnorm", "eh_proj", "shared_head.norm" },
    { 0, "mtp.", -1, "pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm" },
    { 1, NULL, 0, "nextn.enorm", "nextn.hnorm", "nextn.eh_proj", "nextn.shared_head_norm" },
};

static int has_matrix(const struct builder *b, int layer, const char *stem)
{
    char name[160], full[168];
    spec_path(b, name, sizeof name, layer, stem);
    snprintf(full, sizeof full, "%s.weight", name);
    return spec_exists(b, full);
}

/* Add a tensor of the predictor's own, of f.rows rows (0: a norm). */
static int add_own(struct builder *b, int part_of, enum layer_part part, const char *stem)
{
    const struct part_fact f = layer_part_fact(b->c, 0, part);
    const int norm = part_infos[part].kind == PART_NORM;
    const int64_t want[2] = { f.rows, f.cols };
    const struct weight_spec t = { .rows = f.rows, .cols = f.cols, .is_vector = norm,
                                   .role = norm ? ROLE_NORM : part_infos[part].role, .layer = 0, .expert = -1,
                                   .part = (int)part };
    char source[150], full[160], ours[40];
    spec_path(b, source, sizeof source, part_of, stem);
    snprintf(full, sizeof full, "%s.weight", source);
    snprintf(ours, sizeof ours, "%s.weight", part_infos[part].name);
    return spec_as(b, ours, full, norm ? want + 1 : want, norm ? 1 : 2, &t);
}

/* Rename all specs from index `first` on as tensors of the predictor, and set their layer. */
static void rename_specs(struct builder *b, int first, int layer)
{
    static const char ours[] = "layers.0.";
    for (int i = first; i < b->n_specs; i++) {
        struct weight_spec *s = &b->specs[i];
        char rest[sizeof s->name];
        snprintf(rest, sizeof rest, "%s", s->name + strlen(ours));
        snprintf(s->name, sizeof s->name, "mtp.%.*s", (int)(sizeof s->name - 5), rest);
        s->layer = layer;
    }
}

int spec_predictor(struct builder *b)
{
    struct config own;
    struct builder p = *b;
    const struct predictor_names *n = NULL;
    const int first = b->n_specs, layer = b->c->n_layers;
    if (!b->s->shape || b->s->no_predictor || config_predictor(b->c, &own) < 0)
        return 0;
    p.c = &own;
    p.n = b->c->gguf ? b->n : *b->have;
    for (size_t i = 0; i < sizeof predictors / sizeof *predictors && !n; i++) {
        p.first_layer = predictors[i].prefix ? 0 : layer;
        snprintf(p.prefix, sizeof p.prefix, "%s", predictors[i].prefix ? predictors[i].prefix : b->prefix);
        if (predictors[i].gguf == b->c->gguf && has_matrix(&p, predictors[i].part_of, predictors[i].in))
            n = &predictors[i];
    }
    if (!n)
        return 0;
    if (b->c->next_embeds) {
        if (b->s->left_out)
            err_set(b->s->left_out, ERR_UNSUPPORTED, "they have an embedding of their own (mtp_use_dedicated_embeddings)");
        return 0;
    }
    spec_find_experts(&p);
    const int rc = add_own(&p, n->part_of, LP_NEXT_EMBED_NORM, n->embed_norm) < 0 ||
                   add_own(&p, n->part_of, LP_NEXT_STATE_NORM, n->state_norm) < 0 ||
                   add_own(&p, n->part_of, LP_NEXT_IN, n->in) < 0 || spec_layer(&p, 0) < 0 ||
                   add_own(&p, n->part_of, LP_NEXT_FINAL_NORM, n->final_norm) < 0;
    b->specs = p.specs;
    b->n_specs = p.n_specs;
    b->room = p.room;
    if (rc && b->e->code == ERR_MEMORY)
        return -1;
    if (rc)                                 /* the layer has another form: leave it out */
        b->n_specs = first;
    if (rc && b->s->left_out)
        *b->s->left_out = *b->e;
    rename_specs(b, first, layer);
    return 0;
}
