/* quantize.c - from f32 rows to codes. */
#include "libcommon/quant/quantize.h"

#include <stdlib.h>

int qrow_init(struct qrow *q, const struct mat *m, struct err *e)
{
    int extra = qtype_info(m->type)->extra != EXTRA_NONE;
    size_t codes = ((size_t)m->cols_padded + 63) / 64 * 64, scales = (size_t)m->n_groups * sizeof(float);
    q->code = calloc(1, codes + scales * (extra ? 2 : 1));
    if (!q->code)
        return err_nomem(e, "a quantized row");
    q->row_scale = 1;
    q->scale = (float *)(void *)(q->code + codes);
    q->extra = extra ? q->scale + m->n_groups : NULL;
    return 0;
}

void qrow_release(struct qrow *q)
{
    free(q->code);
    *q = (struct qrow){ 0 };
}

void qrow_decode(const struct mat *m, const struct qrow *q, float *out)
{
    int n = m->group_size;
    for (int g = 0, k = 0; k < m->cols; g++, k += n)
        codes_decode(m, q->code + k, m->cols - k < n ? m->cols - k : n, q->row_scale, q->scale[g],
                     q->extra ? q->extra[g] : 0, out + k);
}
