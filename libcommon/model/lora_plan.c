/* lora_plan.c - add up the matrices of LoRA adapters without reading their values. */
#include "libcommon/model/lora_plan.h"

#include "libcommon/import/peft.h"
#include "libcommon/model/lora.h"
#include "libcommon/quant/ggml.h"
#include "libcommon/quant/tile.h"

/* Add the bytes of t in the type and the number of parts in which lora.c keeps it. */
static int add_matrix(struct lora_plan *p, const struct source_tensor *t, int parts, struct err *e)
{
    const enum qtype type = p->scaled ? QT_F32 : t->type == GGML_F16 ? QT_F16 : t->type == GGML_BF16 ? QT_BF16
                                                                                                      : QT_F32;
    struct mat m;
    if (mat_init(&m, type, 32, 0, parts > 1 ? TILE_ROWS : t->dim[0], t->dim[1] / parts, e) < 0)
        return -1;
    p->bytes += m.size;
    return 0;
}

int lora_plan_add(struct lora_plan *p, const char *folder, const struct map_guard *guard, struct err *e)
{
    struct peft *peft = peft_open(folder, guard, e);
    int rc = peft ? 0 : -1;
    for (int i = 0; rc == 0 && i < peft->n_modules; i++) {
        const struct peft_module *module = &peft->modules[i];
        if (!module->a || !module->b)
            continue;                   /* refused when the adapter is added */
        p->rank = module->rank > p->rank ? module->rank : p->rank;
        if (add_matrix(p, module->a, lora_parts(module->rank, module->a->dim[1]), e) != 0 ||
            add_matrix(p, module->b, 1, e) != 0)
            rc = -1;
    }
    peft_close(peft, guard);
    return rc;
}
