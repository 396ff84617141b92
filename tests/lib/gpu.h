/* gpu.h - shared by the tests of the device's kernels: one device, arrays on it, matrices of
 * random codes. */
#ifndef ZSE_TESTS_GPU_H
#define ZSE_TESTS_GPU_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu/kernels/operations.h"
#include "gpu/rt/rt.h"
#include "libcommon/base/rng.h"
#include "libcommon/kernels/kernels.h"
#include "libcommon/quant/half.h"
#include "libcommon/quant/quantize.h"
#include "tests/lib/encode.h"

static struct gpu *device;
static struct err why;

/* The largest error relative to the largest expected magnitude; infinite if a value is not a
 * number. */
static inline double error_of(const float *got, const float *want, size_t n)
{
    double max = 0, error = 0;
    for (size_t i = 0; i < n; i++) {
        max = fmax(max, fabs((double)want[i]));
        error = isfinite(got[i]) ? fmax(error, fabs((double)got[i] - want[i])) : INFINITY;
    }
    return error / max;
}

/* Every call that may fail goes through this macro: the device's error becomes the message of the
 * test. */
#define OK(call) do { if ((call) < 0) fail_msg("%s", why.msg); } while (0)

/* 1: there is a device; 0: this machine has none, or another build runs these tests, and the reason
 * is printed. */
static inline int device_usable(void)
{
    const char *reason = NULL;
    if (gpu_kind[0] == 'e' && getenv("ZSE_SANITIZED"))
        reason = "the emulated kernels have checks of their own, and are the same in every build";
    else if (gpu_count(&why) < 1)
        reason = why.msg;
    if (reason)
        printf("1..1\nok 1 - the device # SKIP %s\n", reason);
    return !reason;
}

static inline int device_open(void)
{
    if (!device_usable())
        return 0;
    if (getenv("ZSE_ONLY"))             /* run only one test of the program: tests/gpu/mutations */
        cmocka_set_test_filter(getenv("ZSE_ONLY"));
    device = gpu_open(0, 1, &why);
    if (!device)
        fail_msg("%s", why.msg);
    return 1;
}

static inline void *to_device(const void *from, size_t n)
{
    void *d = gpu_alloc(device, n, "test", &why), *p = gpu_pinned(device, n, "test", &why);
    if (!d || !p)
        fail_msg("%s", why.msg);
    memcpy(p, from, n);
    OK(gpu_upload(device, GPU_COMPUTE, d, p, n, &why));
    OK(gpu_sync(device, GPU_COMPUTE, &why));
    gpu_pinned_free(device, p);
    return d;
}

/* Allocate n bytes on the device and fill them with 0xff, which is NaN in every format, so that an
 * element that a kernel does not write is noticed. */
static inline void *on_device(size_t n)
{
    void *d = gpu_alloc(device, n, "test", &why);
    if (!d)
        fail_msg("%s", why.msg);
    OK(gpu_fill(device, GPU_COMPUTE, d, 0xff, n, &why));
    return d;
}

static inline void from_device(void *to, const void *d, size_t n)
{
    void *p = gpu_pinned(device, n, "test", &why);
    if (!p)
        fail_msg("%s", why.msg);
    OK(gpu_download(device, GPU_COMPUTE, p, d, n, &why));
    OK(gpu_sync(device, GPU_COMPUTE, &why));
    memcpy(to, p, n);
    gpu_pinned_free(device, p);
}

static inline float uniform(struct rng *r, float from, float to) { return from + (to - from) * (float)rng_double(r); }
static inline int below(struct rng *r, int n) { return (int)(rng_double(r) * n); }

/* Any code and any scale that the type has. */
static inline uint8_t *random_mat(struct mat *m, enum qtype type, int group_size, int rows, int cols, struct rng *r)
{
    const struct qtype_info *t = qtype_info(type);
    struct qrow q;
    OK(mat_init(m, type, group_size, t->acts == ACTS_I8_128 ? 128 : qtype_takes_floats(t) ? 0 : 32, rows, cols, &why));
    uint8_t *data = aligned_alloc(64, m->size);
    m->data = data;
    for (int tile = 0; tile < m->n_tiles; tile++)
        tile_clear(m, data + (size_t)tile * m->tile_bytes);
    if (t->is_float) {
        float *x = malloc((size_t)rows * (size_t)cols * sizeof *x);
        for (int i = 0; i < rows * cols; i++)
            x[i] = uniform(r, -1, 1);
        mat_encode_float(m, data, x, (size_t)cols);
        free(x);
        return data;
    }
    OK(qrow_init(&q, m, &why));
    for (int row = 0; row < rows; row++) {
        q.row_scale = t->row_scale ? uniform(r, 1e-4f, 1e-3f) : 1;
        for (int i = 0; i < m->cols_padded; i++)
            q.code[i] = (uint8_t)(i >= cols ? t->code_zero : t->codes == CODES_E4M3 ? below(r, 127) | below(r, 2) << 7
                                                : t->bits == 8 ? below(r, 255) - 127
                                                : below(r, qtype_is_ternary(t) ? 3 : 1 << t->bits));
        for (int g = 0; g < m->n_groups; g++) {
            q.scale[g] = t->scale == SCALE_NONE ? 1 : t->scale == SCALE_F16
                             ? f16_to_f32(f32_to_f16(uniform(r, -0.02f, 0.02f)))
                       : t->scale == SCALE_E4M3 ? f8e4m3_to_f32((f8e4m3)(below(r, 127) | below(r, 2) << 7))
                       : t->scale == SCALE_E8M0 ? ldexpf(1, below(r, 6) - (t->bits == 8 ? 16 : 9))
                       : t->scale == SCALE_F32 ? uniform(r, -1e-4f, 1e-4f)
                       : t->scale == SCALE_S8 ? (float)(below(r, 255) - 127) : (float)below(r, 256);
            if (q.extra)
                q.extra[g] = t->extra == EXTRA_MIN_F16 ? f16_to_f32(f32_to_f16(uniform(r, -0.2f, 0.2f)))
                                                       : (float)below(r, 16);
        }
        tile_put(m, data + (size_t)(row / TILE_ROWS) * m->tile_bytes, row % TILE_ROWS, &q);
    }
    qrow_release(&q);
    return data;
}

static inline struct gpu_mat gpu_mat_of(const struct mat *m, const void *data)
{
    int shift = 0;
    while (32 << shift < m->group_size)
        shift++;
    return (struct gpu_mat){ .data = data, .tile_bytes = m->tile_bytes, .type = m->type, .rows = m->rows,
                             .cols = m->cols, .n_steps = m->cols_padded / 32,
                             .n_tiles = m->n_tiles, .n_groups = m->n_groups, .group_shift = shift };
}

/* The index of k in activations of this order (gpu/prim/prim.cuh), computed in another way than in
 * the kernels. */
static inline int act_at(int k, enum gpu_act_order order)
{
    static const int in_eight[8] = { 0, 2, 4, 6, 1, 3, 5, 7 };
    const int at = in_eight[k % 8], eight = k / 8 % 4;
    return k / 32 * 32 + (order == GPU_ACT_LANES ? eight * 8 + at : at / 2 * 8 + eight * 2 + at % 2);
}

/* Pack x as f16 activations, as linear layers read them.  x is replaced by the values that these
 * represent. */
static inline uint16_t *pack_act(float *x, int n, int cols, int stride, enum gpu_act_order order)
{
    uint16_t *act = calloc((size_t)n * (size_t)stride, sizeof *act);
    for (int t = 0; t < n; t++)
        for (int k = 0; k < cols; k++) {
            float *v = &x[(size_t)t * (size_t)cols + (size_t)k];
            const f16 h = f32_to_f16(*v / 16);
            act[(size_t)t * (size_t)stride + (size_t)act_at(k, order)] = h;
            *v = f16_to_f32(h) * 16;
        }
    return act;
}

#endif
