/* timed_shape.c - the matrices of a model that has a configuration and no weights. */
#include <stdlib.h>

#include "gpu/time/launch_time.h"
#include "libcommon/model/parts.h"

static int shape(struct linear *l, enum qtype type, const struct part_fact *f, struct err *e)
{
    const struct qtype_info *t = qtype_info(type);
    const int act_group = qtype_takes_floats(t) || t->is_float ? 0 : t->acts == ACTS_I8_128 ? 128 : 32;
    return mat_init(&l->w, type, t->group_size, act_group, f->rows, f->cols, e);
}

/* Of experts the first stands for all. */
static int shape_layer(struct model *m, int index, enum qtype type, struct err *e)
{
    for (enum layer_part p = 0; p < N_LAYER_PARTS; p++) {
        const struct part_fact f = layer_part_fact(&m->config, index, p);
        const int router = p == LP_ROUTER || p == LP_SHARED_ROUTER;
        if (!f.present || (part_infos[p].kind != PART_MATRIX && part_infos[p].kind != PART_EXPERT))
            continue;
        if (shape(part_field(&m->layers[index], 0, p), router ? QT_F32 : type, &f, e) < 0)
            return -1;
    }
    return 0;
}

int timed_shape(struct model *m, const struct config *c, enum qtype type, struct err *e)
{
    const enum qtype ends = qtype_info(type)->bits < 8 ? QT_I8 : type;
    *m = (struct model){ .config = *c, .layers = calloc((size_t)c->n_layers + 1, sizeof *m->layers) };
    if (!m->layers)
        return err_nomem(e, "layers");
    model_norms(m);
    if (model_experts(m, e) < 0)
        return -1;
    for (enum end_part p = 0; p < N_END_PARTS; p++) {
        const struct part_fact f = end_part_fact(c, p);
        if (f.present && end_infos[p].kind == PART_MATRIX && shape(end_field(m, p), ends, &f, e) < 0)
            return -1;
    }
    for (int i = 0; i < c->n_layers; i++)
        if (shape_layer(m, i, type, e) < 0)
            return -1;
    return 0;
}

void timed_shape_release(struct model *m)
{
    for (int i = 0; m->layers && i < m->config.n_layers; i++)
        free(m->layers[i].experts);
    free(m->layers);
    config_release(&m->config);
    *m = (struct model){ 0 };
}
