/* t-packed.c - quantized checkpoints: words that are written by hand, awkward shapes packed by the
 * test's own code, codes that are kept exactly; parts that are missing, have the wrong size or are
 * not understood are refused by name. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/import/packed.h"
#include "libcommon/quant/ggml.h"
#include "libcommon/quant/half.h"
#include "libcommon/quant/quantize.h"

static char dir[] = "/tmp/t-packed-XXXXXX";

static char *in_dir(const char *name)
{
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* ---- a checkpoint in the making ---- */

static char header[8192];
static _Alignas(8) uint8_t data[1 << 16];
static size_t n_data;

static void begin(void)
{
    snprintf(header, sizeof header, "{");
    n_data = 0;
}

static void *tensor(const char *name, const char *dtype, const char *shape, size_t size)
{
    size_t at = strlen(header);
    snprintf(header + at, sizeof header - at, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
             at > 1 ? "," : "", name, dtype, shape, n_data, n_data + size);
    void *p = data + n_data;
    n_data += size;
    assert_true(n_data <= sizeof data && strlen(header) + 2 < sizeof header);
    return p;
}

static struct source *opened(const char *quantization, struct err *e)
{
    FILE *f = fopen(in_dir("config.json"), "w");
    fprintf(f, "{\"model_type\": \"llama\", \"text_config\": {\"quantization_config\": %s}}", quantization);
    assert_int_equal(fclose(f), 0);
    uint64_t n = strlen(header) + 1;
    f = fopen(in_dir("model.safetensors"), "wb");
    fwrite(&n, 8, 1, f);
    fprintf(f, "%s}", header);
    fwrite(data, 1, n_data, f);
    assert_int_equal(fclose(f), 0);
    memset(e, 0, sizeof *e);
    return source_open(dir, e);
}

static struct source *opens(const char *quantization)
{
    struct err e;
    struct source *s = opened(quantization, &e);
    if (!s)
        fail_msg("%s", e.msg);
    assert_non_null(s->quantization);
    assert_null(json_object_get(s->config, "quantization_config"));
    return s;
}

static void refuses(const char *quantization, const char *words)
{
    struct err e;
    struct source *s = opened(quantization, &e);
    if (s || !strstr(e.msg, words) || !strstr(e.msg, dir))
        fail_msg("expected '%s', got '%s'", words, e.msg);
    source_close(s);
}

/* Check the values of a matrix, read row by row and at once. */
static void holds(const struct source *s, const char *name, const float *want, int rows, int cols)
{
    struct err e;
    const struct source_tensor *t = source_find(s, name);
    float *got = calloc((size_t)rows * (size_t)cols, sizeof *got);
    assert_non_null(t);
    assert_int_equal(t->dim[t->n_dims - 1], cols);
    for (int whole = 0; whole < 2; whole++) {
        for (int r = 0; r < rows; r += whole ? rows : 1)
            assert_int_equal(source_read(s, t, r, whole ? rows : 1, got + r * cols, 1, &e), 0);
        for (int i = 0; i < rows * cols; i++)
            if (got[i] != want[i])
                fail_msg("%s row %d column %d: got %.9g, want %.9g", name, i / cols, i % cols, (double)got[i],
                         (double)want[i]);
    }
    free(got);
}

/* Check that our codes decode to exactly the values of the source. */
static void keeps(const struct source *s, const char *name, enum qtype type, int group)
{
    struct err e;
    struct mat m;
    struct qrow q;
    int found_group = 0;
    const struct source_tensor *t = source_find(s, name);
    const int found = packed_exact(t->packed, &found_group), cols = (int)t->dim[1];
    assert_int_equal(found, type);
    assert_int_equal(found_group, group);
    assert_int_equal(mat_init(&m, type, group, qtype_takes_floats(qtype_info(type)) ? 0 : 32, t->dim[0], cols, &e), 0);
    assert_int_equal(qrow_init(&q, &m, &e), 0);
    float *want = calloc(2 * (size_t)m.cols_padded, sizeof *want), *got = want + m.cols_padded;
    uint8_t *tile = calloc(1, m.tile_bytes);
    for (int r = 0; r < m.rows; r++) {
        packed_row(t->packed, &m, r, &q);
        tile_clear(&m, tile);
        tile_put(&m, tile, 0, &q);
        memset(q.code, 77, (size_t)m.cols_padded);
        tile_get(&m, tile, 0, &q);
        qrow_decode(&m, &q, got);
        assert_int_equal(source_read(s, t, r, 1, want, 1, &e), 0);
        for (int k = 0; k < cols; k++)
            if (got[k] != want[k])
                fail_msg("%s row %d column %d: kept %.9g, want %.9g", name, r, k, (double)got[k], (double)want[k]);
    }
    free(tile);
    free(want);
    qrow_release(&q);
}

static void not_kept(const struct source *s, const char *name)
{
    int group;
    assert_int_equal(packed_exact(source_find(s, name)->packed, &group), -1);
}

/* ---- words by hand ---- */

#define GPTQ(more) "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 4, \"sym\": false, \"checkpoint_format\": \"gptq\"" more "}"
#define AWQ "{\"quant_method\": \"awq\", \"bits\": 4, \"group_size\": 2, \"zero_point\": true, \"version\": \"GEMM\"}"

/* Write a GPTQ matrix of 8 inputs and 2 outputs, with groups of 4.  The scales are 1 and 2 in the
 * first group, 4 and 8 in the second; the zero points are 3, 5 and 7, 0 (each is stored less
 * one). */
static void put_gptq(int order)
{
    static const uint32_t words[2] = { 0x76543210, 0xfedcba98 }, zeros[2] = { 0x42, 0xf6 };
    static const f16 scales[4] = { 0x3c00, 0x4000, 0x4400, 0x4800 };
    begin();
    memcpy(tensor("w.qweight", "I32", "1,2", 8), words, 8);
    memcpy(tensor("w.qzeros", "I32", "2,1", 8), zeros, 8);
    memcpy(tensor("w.scales", "F16", "2,2", 8), scales, 8);
    if (order) {
        static const int32_t groups[8] = { 1, 0, 1, 0, 0, 1, 0, 1 };
        memcpy(tensor("w.g_idx", "I32", "8", 32), groups, 32);
    }
    *(float *)tensor("norm.weight", "F32", "1", 4) = 5;
}

static void gptq_written_by_hand_unpacks_exactly(void **state)
{
    (void)state;
    static const float plain[16] = { -3, -2, -1, 0, -12, -8, -4, 0, 6, 8, 10, 12, 96, 104, 112, 120 };
    static const float ordered[16] = { -28, -2, -20, 0, 1, -8, 3, 0, 64, 8, 80, 12, 14, 104, 18, 120 };
    put_gptq(0);
    struct source *s = opens(GPTQ());
    assert_int_equal(s->n_tensors, 2);
    assert_int_equal(source_bytes(source_find(s, "w.weight")), 24);
    holds(s, "w.weight", plain, 2, 8);
    not_kept(s, "w.weight");                    /* groups of 4 */
    source_close(s);
    put_gptq(1);
    s = opens(GPTQ(", \"desc_act\": true"));
    holds(s, "w.weight", ordered, 2, 8);
    source_close(s);
    put_gptq(0);                                /* version 2 stores zero points as they are */
    s = opens("{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 4, \"checkpoint_format\": \"gptq_v2\"}");
    holds(s, "w.weight", (const float[]){ -2, -1, 0, 1, -8, -4, 0, 4, 8, 10, 12, 14, -24, -16, -8, 0 }, 2, 8);
    source_close(s);
}

/* A word holds rows 0 2 4 6 1 3 5 7, from the low bits up. */
static void awq_written_by_hand_unpacks_exactly(void **state)
{
    (void)state;
    static const uint32_t words[2] = { 0x75316420, 0xfffffff0 }, zeros[1] = { 0x00000001 };
    float want[16];
    begin();
    memcpy(tensor("w.qweight", "I32", "2,1", 8), words, 8);
    memcpy(tensor("w.qzeros", "I32", "1,1", 4), zeros, 4);
    f16 *scales = tensor("w.scales", "F16", "1,8", 16);
    for (int r = 0; r < 8; r++) {
        scales[r] = f32_to_f16((float)(r + 1));
        want[2 * r] = (float)((r - (r == 0)) * (r + 1));
        want[2 * r + 1] = (float)((r == 0 ? -1 : 15) * (r + 1));
    }
    struct source *s = opens(AWQ);
    holds(s, "w.weight", want, 8, 2);
    source_close(s);
}

#define CT(weights) "{\"quant_method\": \"compressed-tensors\", \"format\": \"pack-quantized\", \"ignore\": [\"re:.*\"], \"config_groups\": {\"group_0\": " \
                    "{\"targets\": [\"Linear\"], \"input_activations\": null, \"weights\": " weights "}}}"
#define CT_INT4 CT("{\"num_bits\": 4, \"type\": \"int\", \"strategy\": \"group\", \"group_size\": 32, \"symmetric\": true}")

/* Two rows of nine: the second word of each holds one code. */
static void compressed_written_by_hand_unpacks_exactly(void **state)
{
    (void)state;
    static const uint32_t words[4] = { 0x76543210, 0x8, 0xfedcba98, 0xf };
    static const int64_t shape[2] = { 2, 9 };
    static const float want[18] = { -4, -3.5, -3, -2.5, -2, -1.5, -1, -.5, 0, 0, 3, 6, 9, 12, 15, 18, 21, 21 };
    begin();
    memcpy(tensor("w.weight_packed", "I32", "2,2", 16), words, 16);
    memcpy(tensor("w.weight_shape", "I64", "2", 16), shape, 16);
    bf16 *scales = tensor("w.weight_scale", "BF16", "2,1", 4);
    scales[0] = f32_to_bf16(0.5f);
    scales[1] = f32_to_bf16(3);
    struct source *s = opens(CT_INT4);
    holds(s, "w.weight", want, 2, 9);
    keeps(s, "w.weight", QT_I4, 128);
    source_close(s);
    scales[1] = f32_to_bf16(0x1p20f);           /* no f16 */
    s = opens(CT_INT4);
    not_kept(s, "w.weight");
    source_close(s);
}

/* Check that experts keep their codes: row r of expert e must have the values of column r of the
 * e-th matrix of the plain tensor. */
static void keeps_rows(const struct source *s, const char *name)
{
    const struct source_tensor *t = source_find(s, name);
    const int rows = (int)t->dim[2], cols = (int)t->dim[1];
    struct mat m;
    struct qrow q;
    struct err e;
    int group = 0;
    assert_int_equal(packed_exact(t->packed, &group), QT_MXFP4);
    assert_int_equal(group, 32);
    assert_int_equal(mat_init(&m, QT_MXFP4, 32, 32, rows, cols, &e), 0);
    assert_int_equal(qrow_init(&q, &m, &e), 0);
    float *got = malloc((size_t)cols * sizeof *got), *want = malloc((size_t)(cols * rows) * sizeof *want);
    for (int x = 0; x < t->dim[0]; x++) {
        assert_int_equal(source_read(s, t, (int64_t)x * cols, cols, want, 1, &e), 0);
        for (int r = 0; r < rows; r++) {
            packed_row(t->packed, &m, (int64_t)x * rows + r, &q);
            qrow_decode(&m, &q, got);
            for (int k = 0; k < cols; k++)
                assert_true(got[k] == want[k * rows + r]);
        }
    }
    free(got);
    free(want);
    qrow_release(&q);
}

/* Two experts with two outputs each: the low nibble of a byte is the first code; a scale is a power
 * of two whose exponent is stored plus 127. */
static void mxfp4_written_by_hand_unpacks_exactly(void **state)
{
    (void)state;
    static const float value[16] = { 0, .5, 1, 1.5, 2, 3, 4, 6, 0, -.5, -1, -1.5, -2, -3, -4, -6 };
    float want[2 * 32 * 2];
    begin();
    uint8_t *blocks = tensor("mlp.down_proj_blocks", "U8", "2,2,1,16", 64),
            *scales = tensor("mlp.down_proj_scales", "U8", "2,2,1", 4);
    for (int i = 0; i < 64; i++)
        blocks[i] = (uint8_t)(i % 16 * 17 + (i / 16) * 3);
    memcpy(scales, (const uint8_t[]){ 127, 125, 128, 120 }, 4);
    for (int e = 0; e < 2; e++)
        for (int k = 0; k < 32; k++)
            for (int r = 0; r < 2; r++) {
                uint8_t b = blocks[(e * 2 + r) * 16 + k / 2];
                want[(e * 32 + k) * 2 + r] = value[k % 2 ? b >> 4 : b & 15] * ldexpf(1, scales[e * 2 + r] - 127);
            }
    struct source *s = opens("{\"quant_method\": \"mxfp4\", \"modules_to_not_convert\": [\"lm_head\"]}");
    const struct source_tensor *t = source_find(s, "mlp.down_proj");
    assert_int_equal(t->n_dims, 3);
    assert_int_equal(t->dim[1], 32);
    holds(s, "mlp.down_proj", want, 64, 2);
    float part[6];
    struct err e;
    assert_int_equal(source_read(s, t, 31, 3, part, 1, &e), 0);         /* reads across the border
                                                                         * of two experts */
    assert_memory_equal(part, want + 62, sizeof part);
    keeps_rows(s, "mlp.down_proj");
    source_close(s);
    scales[3] = 255;
    s = opens("{\"quant_method\": \"mxfp4\"}");
    assert_int_equal(source_read(s, source_find(s, "mlp.down_proj"), 33, 1, part, 1, &e), -1);
    assert_non_null(strstr(e.msg, "mlp.down_proj: row 33, column 1: is not a number"));
    source_close(s);
}

/* The example of transformers' unpack_weights. */
static void bitnet_written_by_hand_unpacks_exactly(void **state)
{
    (void)state;
    static const uint8_t packed[4] = { 0xa1, 0x18, 0x90, 0x0a };
    static const float codes[16] = { 0, -1, -1, 1, -1, 1, -1, 1, 1, 0, 0, -1, 1, -1, 1, -1 };
    float want[16];
    begin();
    memcpy(tensor("w.weight", "U8", "2,2", 4), packed, 4);
    bf16 *scale = tensor("w.weight_scale", "BF16", "1", 2);
    *scale = f32_to_bf16(1.25f);
    struct source *s = opens("{\"quant_method\": \"bitnet\", \"linear_class\": \"autobitlinear\", \"quantization_mode\": \"offline\"}");
    for (int i = 0; i < 16; i++)
        want[i] = codes[i] * 1.25f;
    holds(s, "w.weight", want, 8, 2);
    keeps(s, "w.weight", QT_T2, 128);
    source_close(s);
    s = opens("{\"quant_method\": \"bitnet\"}");           /* BitLinear divides */
    for (int i = 0; i < 16; i++)
        want[i] = codes[i] / 1.25f;
    holds(s, "w.weight", want, 8, 2);
    source_close(s);
    data[3] = 0xc0;
    s = opens("{\"quant_method\": \"bitnet\"}");
    float row[2];
    struct err e;
    assert_int_equal(source_read(s, source_find(s, "w.weight"), 7, 1, row, 1, &e), -1);
    source_close(s);
}

/* ---- awkward shapes ---- */

static uint32_t seed;
static int next(int n) { return (int)((seed = seed * 1664525u + 1013904223u) >> 8) % n; }

/* Put code number i of `bits` bits into words. */
static void put_bits(uint32_t *words, int64_t i, int bits, uint32_t code)
{
    words[i / (32 / bits)] |= code << bits * (int)(i % (32 / bits));
}

static void gptq_shape(int rows, int cols, int group, int bits, int symmetric)
{
    char shape[64], config[256];
    const int per = 32 / bits, groups = group < 0 ? 1 : (cols + group - 1) / group, width = (rows + per - 1) / per,
              top = 1 << bits;
    float *want = calloc((size_t)(rows * cols), sizeof *want);
    uint32_t *column = calloc((size_t)(cols / per), 4), *zeros;
    begin();
    snprintf(shape, sizeof shape, "%d,%d", cols / per, rows);
    uint32_t *words = tensor("w.qweight", "I32", shape, (size_t)(cols / per * rows) * 4);
    snprintf(shape, sizeof shape, "%d,%d", groups, width);
    zeros = tensor("w.qzeros", "I32", shape, (size_t)(groups * width) * 4);
    memset(zeros, 0, (size_t)(groups * width) * 4);
    snprintf(shape, sizeof shape, "%d,%d", groups, rows);
    f16 *scales = tensor("w.scales", "F16", shape, (size_t)(groups * rows) * 2);
    for (int r = 0; r < rows; r++) {
        memset(column, 0, (size_t)(cols / per) * 4);
        int zero = 0;
        for (int k = 0; k < cols; k++) {
            int g = group < 0 ? 0 : k / group, code = next(top);
            if (k == 0 || (group > 0 && k % group == 0)) {
                zero = symmetric ? top / 2 : next(top);
                put_bits(zeros + g * width, r, bits, (uint32_t)(zero - 1) & (uint32_t)(top - 1));
                scales[g * rows + r] = f32_to_f16((float)(next(1000) + 1) / 999);
            }
            put_bits(column, k, bits, (uint32_t)code);
            want[r * cols + k] = f16_to_f32(scales[g * rows + r]) * (float)(code - zero);
        }
        for (int i = 0; i < cols / per; i++)
            words[i * rows + r] = column[i];
    }
    snprintf(config, sizeof config, "{\"quant_method\": \"gptq\", \"bits\": %d, \"group_size\": %d, \"sym\": %s}", bits,
             group, symmetric ? "true" : "false");
    struct source *s = opens(config);
    holds(s, "w.weight", want, rows, cols);
    if (symmetric)
        keeps(s, "w.weight", bits < 8 ? QT_I4 : group < 0 ? QT_I8R : QT_I8,
              bits == 8 && group < 0 ? 32 : group < 0 || group == 128 ? 128 : group);
    else if (bits < 8)
        keeps(s, "w.weight", QT_I4Z, group < 0 || group == 128 ? 128 : group);
    else
        not_kept(s, "w.weight");
    source_close(s);
    free(column);
    free(want);
}

static void gptq_of_every_shape_unpacks_exactly(void **state)
{
    (void)state;
    for (int symmetric = 0; symmetric < 2; symmetric++) {
        seed = 7;
        gptq_shape(33, 72, 32, 4, symmetric);       /* the last group has 8 columns, and the last
                                                     * word of zero points is not full */
        gptq_shape(5, 128, 64, 8, symmetric);
        gptq_shape(7, 200, 128, 4, symmetric);
        gptq_shape(3, 48, 32, 2, symmetric);
        gptq_shape(9, 40, -1, 4, symmetric);
        gptq_shape(4, 36, -1, 8, symmetric);
    }
}

/* 8-bit codes with zero points, and scales for a row, for a group, and for the whole matrix. */
static void compressed_int8_unpacks_exactly(void **state)
{
    (void)state;
    enum { ROWS = 5, COLS = 70 };
    static const struct { const char *strategy, *shape; int n, per_row, group; } cases[] = {
        { "\"tensor\"", "1", 1, 0, COLS }, { "\"channel\"", "5,1", 5, 1, COLS },
            { "\"group\", \"group_size\": 32", "5,3", 15, 3, 32 },
    };
    seed = 3;
    for (int zeros = 0; zeros < 2; zeros++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            float want[ROWS * COLS];
            char config[512];
            begin();
            float *scales = tensor("w.weight_scale", "F32", cases[i].shape, (size_t)cases[i].n * 4);
            int8_t *codes = tensor("w.weight", "I8", "5,70", ROWS * COLS), *zero = NULL;
            if (zeros)
                zero = tensor("w.weight_zero_point", "I8", cases[i].shape, (size_t)cases[i].n);
            for (int k = 0; k < cases[i].n; k++) {
                scales[k] = f16_to_f32(f32_to_f16((float)(next(500) + 1) / 1000));
                if (zero)
                    zero[k] = (int8_t)(next(256) - 128);
            }
            for (int r = 0; r < ROWS; r++)
                for (int k = 0; k < COLS; k++) {
                    int g = r * cases[i].per_row + k / cases[i].group;
                    codes[r * COLS + k] = (int8_t)(next(256) - 128);
                    want[r * COLS + k] = (float)(codes[r * COLS + k] - (zero ? zero[g] : 0)) * scales[g];
                }
            snprintf(config, sizeof config, "{\"quant_method\": \"compressed-tensors\", \"format\": \"int-quantized\", \"config_groups\": {\"g\": {\"targets\": [\"Linear\"], "
                     "\"weights\": {\"num_bits\": 8, \"type\": \"int\", \"strategy\": %s, \"symmetric\": %s}}}}",
                     cases[i].strategy, zeros ? "false" : "true");
            struct source *s = opens(config);
            holds(s, "w.weight", want, ROWS, COLS);
            if (zeros)
                not_kept(s, "w.weight");
            else
                keeps(s, "w.weight", i < 2 ? QT_I8R : QT_I8, 32);
            source_close(s);
        }
}

/* Blocks of 128 with scales that f16 cannot represent: codes and scales are kept, unless scales are
 * so small that products would lose bits. */
static void fp8_kept(void)
{
    enum { ROWS = 130, COLS = 300 };
    for (int tiny = 0; tiny < 2; tiny++) {
        begin();
        uint8_t *codes = tensor("w.weight", "F8_E4M3", "130,300", ROWS * COLS);
        float *scales = tensor("w.weight_scale_inv", "F32", "2,3", 24);
        seed = 5;
        for (int i = 0; i < ROWS * COLS; i++)
            codes[i] = (uint8_t)(next(127) | next(2) << 7);
        for (int i = 0; i < 6; i++)
            scales[i] = (float)(next(1000) + 1) / 7777;
        scales[4] = tiny ? 1e-40f : scales[4];
        struct source *s = opens("{\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", \"weight_block_size\": [128, 128]}");
        if (tiny)
            not_kept(s, "w.weight");
        else
            keeps(s, "w.weight", QT_FP8, 128);
        source_close(s);
    }
}

/* Two groups of 16 in each of two rows, written down: compressed-tensors stores the reciprocal of
 * ModelOpt's tensor scale. */
static void nvfp4_unpacks_exactly(void **state)
{
    (void)state;
    static const char *const configs[] = {
        "{\"quant_method\": \"compressed-tensors\", \"format\": \"nvfp4-pack-quantized\", \"config_groups\": {\"a\": {\"weights\":"
        " {\"num_bits\": 4, \"type\": \"float\", \"strategy\": \"tensor_group\", \"group_size\": 16}}}}",
        "{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\"}",
    };
    static const float value[16] = { 0, .5f, 1, 1.5f, 2, 3, 4, 6, 0, -.5f, -1, -1.5f, -2, -3, -4, -6 };
    static const uint8_t scales[4] = { 0x38, 0x7e, 0x01, 0x40 };        /* 1, 448, 2^-9, 2 */
    static const float scale[4] = { 1, 448, 0x1p-9f, 2 };
    float want[64];
    for (int i = 0; i < 64; i++)
        want[i] = 0.125f * scale[i / 16] * value[i % 16];
    for (int modelopt = 0; modelopt < 2; modelopt++) {
        begin();
        uint8_t *codes = tensor(modelopt ? "w.weight" : "w.weight_packed", "U8", "2,16", 32);
        memcpy(tensor("w.weight_scale", "F8_E4M3", "2,2", 4), scales, 4);
        float *whole = tensor(modelopt ? "w.weight_scale_2" : "w.weight_global_scale", "F32", modelopt ? "" : "1", 4);
        tensor(modelopt ? "w.input_scale" : "w.input_global_scale", "F32", modelopt ? "" : "1", 4);
        *whole = modelopt ? 0.125f : 8;
        for (int i = 0; i < 32; i++)
            codes[i] = (uint8_t)(2 * i % 16 | (2 * i + 1) % 16 << 4);
        struct source *s = opens(configs[modelopt]);
        assert_int_equal(s->n_tensors, 1);
        holds(s, "w.weight", want, 2, 32);
        keeps(s, "w.weight", QT_NVFP4, 16);
        source_close(s);
        *whole = 0;
        refuses(configs[modelopt], "its value is no scale");
    }
    begin();
    tensor("w.weight", "U8", "2,12", 24);
    tensor("w.weight_scale", "F8_E4M3", "2,2", 4);
    tensor("w.weight_scale_2", "F32", "", 4);
    refuses(configs[1], "tensor w.weight: [2, 12] of U8, expected a matrix of U8 with 8 bytes for each group of 16");
    begin();
    tensor("w.weight", "U8", "2,16", 32);
    tensor("w.weight_scale", "F8_E4M3", "2,1", 2);
    tensor("w.weight_scale_2", "F32", "", 4);
    refuses(configs[1], "expected F8_E4M3 in the shape of the groups");
    begin();
    tensor("w.weight", "U8", "2,16", 32);
    tensor("w.weight_scale", "F8_E4M3", "2,2", 4);
    refuses(configs[1], "w.weight_scale_2 is missing");
    refuses("{\"quant_method\": \"modelopt\", \"quant_algo\": \"W4A8_AWQ\"}", "quant_algo: \"W4A8_AWQ\" is not supported");
    refuses("{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\", \"group_size\": 32}", "group_size: 32, expected 16");
}

/* Three rows of two groups of 32, with every code that is a number, described in each of the four
 * ways that checkpoints use, and with both types of scales. */
static void mxfp8_unpacks_exactly(void **state)
{
    (void)state;
    static const struct { const char *scale, *config; } cases[] = {
        { "w.weight_scale", "{\"quant_method\": \"compressed-tensors\", \"format\": \"mxfp8-quantized\", \"config_groups\": {\"a\":"
          " {\"format\": \"mxfp8-quantized\", \"weights\": {\"num_bits\": 8, \"type\": \"float\", \"strategy\": \"group\","
          " \"group_size\": 32, \"scale_dtype\": \"torch.uint8\"}}}}" },
        { "w.weight_scale", "{\"quant_method\": \"modelopt\", \"quant_algo\": \"MXFP8\"}" },
        { "w.weight_scale_inv", "{\"quant_method\": \"mxfp8\", \"weight_block_size\": [1, 32], \"scale_fmt\": \"ue8m0\"}" },
        { "w.weight_scale_inv", "{\"quant_method\": \"mxfp8\", \"ignored_layers\": [\"lm_head\"]}" },
    };
    enum { ROWS = 3, COLS = 64, N = ROWS * COLS };
    static const uint8_t scales[6] = { 127, 120, 0, 1, 227, 115 };
    float want[N];
    for (int i = 0; i < N; i++) {
        const int code = i * 4 / 3 % 127, exponent = scales[i / 32] - 127;
        want[i] = code < 8 ? ldexpf((float)code, exponent - 9)
                           : ldexpf((float)(8 + code % 8), code / 8 - 10 + exponent);
        want[i] = i % 2 ? -want[i] : want[i];
    }
    for (size_t c = 0; c < 2 * sizeof cases / sizeof *cases; c++) {
        begin();
        uint8_t *codes = tensor("w.weight", "F8_E4M3", "3,64", N);
        uint8_t *scale = memcpy(tensor(cases[c / 2].scale, c % 2 ? "F8_E8M0" : "U8", "3,2", 6), scales, 6);
        for (int i = 0; i < N; i++)
            codes[i] = (uint8_t)(i * 4 / 3 % 127 | i % 2 << 7);
        struct source *s = opens(cases[c / 2].config);
        assert_int_equal(s->n_tensors, 1);
        assert_string_equal(ggml_type_info(s->tensors[0].type)->name, "MXFP8");
        holds(s, "w.weight", want, ROWS, COLS);
        keeps(s, "w.weight", QT_MXFP8, 32);
        source_close(s);
        for (int large = 0; large < 2; large++) {
            scale[5] = large ? 228 : 255;
            s = opens(cases[c / 2].config);
            not_kept(s, "w.weight");
            source_close(s);
        }
    }
    begin();
    tensor("w.weight", "F8_E4M3", "3,32", N / 2);           /* one group a row */
    memset(tensor("w.weight_scale", "U8", "3,1", 3), 127, 3);
    struct source *narrow = opens(cases[0].config);
    keeps(narrow, "w.weight", QT_MXFP8, 32);
    source_close(narrow);
    begin();
    tensor("w.weight", "F8_E5M2", "3,64", N);
    tensor("w.weight_scale", "U8", "3,2", 6);
    struct source *s = opens(cases[0].config);
    not_kept(s, "w.weight");
    source_close(s);
    begin();
    tensor("w.weight", "F8_E4M3", "3,64", N);
    tensor("w.weight_scale", "U8", "3,1", 3);
    for (int c = 0; c < 2; c++)
        refuses(cases[c].config, "tensor w.weight: [3, 64] with scales [3, 1] of U8 fits nothing");
    refuses("{\"quant_method\": \"fp8\", \"weight_block_size\": [1, 64]}", "with scales [3, 1] of U8 fits nothing");
    refuses("{\"quant_method\": \"modelopt\", \"quant_algo\": \"MXFP8\", \"group_size\": 16}", "group_size: 16, expected 32");
    begin();
    tensor("w.weight", "F8_E4M3", "3,64", N);
    refuses(cases[1].config, "w.weight_scale is missing");
    begin();                            /* blocks with such scales: those of fp8 */
    memset(tensor("w.weight", "F8_E4M3", "2,256", 512), 0x42, 512);
    memset(tensor("w.weight_scale_inv", "F8_E8M0", "1,2", 2), 120, 2);
    s = opens("{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}");
    keeps(s, "w.weight", QT_FP8, 128);
    source_close(s);
}

/* The last blocks of rows and columns are not full. */
static void partial_fp8_blocks_unpack_exactly(void **state)
{
    (void)state;
    enum { ROWS = 5, COLS = 7 };
    static const float scales[6] = { 1, 2, 4, 8, 16, 32 };
    float want[ROWS * COLS];
    begin();
    uint8_t *codes = tensor("w.weight", "F8_E4M3", "5,7", ROWS * COLS);
    memcpy(tensor("w.weight_scale_inv", "F32", "3,2", 24), scales, 24);
    tensor("w.input_scale", "F32", "1", 4);
    for (int i = 0; i < ROWS * COLS; i++) {
        codes[i] = (uint8_t)(0x38 + i % 8);             /* 1 to 1.875 */
        want[i] = (1 + (float)(i % 8) / 8) * scales[i / COLS / 2 * 2 + i % COLS / 4];
    }
    struct source *s = opens("{\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", \"activation_scheme\": \"dynamic\", \"weight_block_size\": [2, 4]}");
    assert_int_equal(s->n_tensors, 1);
    holds(s, "w.weight", want, ROWS, COLS);
    not_kept(s, "w.weight");
    source_close(s);
    fp8_kept();
    begin();
    tensor("w.weight", "F8_E4M3", "5,7", ROWS * COLS);
    tensor("w.weight_scale_inv", "F32", "3,2", 24);
    refuses("{\"quant_method\": \"fp8\", \"weight_block_size\": [2, 3]}",
            "tensor w.weight: [5, 7] with scales [3, 2] of F32 fits nothing");
    refuses("{\"quant_method\": \"fp8\", \"weight_block_size\": [0, 4]}",
            "weight_block_size: expected [rows, columns]");
    refuses("{\"quant_method\": \"fp8\"}", "tensor w.weight: [5, 7] with scales [3, 2] of F32 fits nothing");
}

#define V4 "{\"quant_method\": \"fp8\", \"fmt\": \"e4m3\", \"scale_fmt\": \"ue8m0\", \"activation_scheme\": \"dynamic\", " \
           "\"weight_block_size\": [128, 128]}"

/* DeepSeek V4: E8M0 scales beside FP8, and beside bytes with two codes of MXFP4. */
static void deepseek_v4_unpacks_exactly(void **state)
{
    (void)state;
    enum { ROWS = 130, COLS = 160 };
    static const float value[16] = { 0, .5f, 1, 1.5f, 2, 3, 4, 6, 0, -.5f, -1, -1.5f, -2, -3, -4, -6 };
    static float wide[ROWS * COLS];
    float narrow[3 * 64];
    begin();
    uint8_t *codes = tensor("a.weight", "F8_E4M3", "130,160", ROWS * COLS);
    memcpy(tensor("a.scale", "F8_E8M0", "2,2", 4), (const uint8_t[]){ 127, 126, 130, 120 }, 4);
    uint8_t *pairs = tensor("e.weight", "I8", "3,32", 96), *scales = tensor("e.scale", "F8_E8M0", "3,2", 6);
    for (int i = 0; i < ROWS * COLS; i++) {
        const int block = i / COLS / 128 * 2 + i % COLS / 128;
        codes[i] = (uint8_t)(0x38 + i % 8);             /* 1 to 1.875 */
        wide[i] = (1 + (float)(i % 8) / 8) * ldexpf(1, (const int[]){ 0, -1, 3, -7 }[block]);
    }
    for (int i = 0; i < 96; i++)
        pairs[i] = (uint8_t)(i * 37 + 5);
    memcpy(scales, (const uint8_t[]){ 127, 125, 128, 120, 0, 250 }, 6);
    for (int i = 0; i < 3 * 64; i++)
        narrow[i] = value[pairs[i / 2] >> i % 2 * 4 & 15] * ldexpf(1, scales[i / 32] - 127);
    struct source *s = opens(V4);
    assert_int_equal(s->n_tensors, 2);
    holds(s, "a.weight", wide, ROWS, COLS);
    keeps(s, "a.weight", QT_FP8, 128);
    holds(s, "e.weight", narrow, 3, 64);
    keeps(s, "e.weight", QT_MXFP4, 32);
    source_close(s);
    scales[1] = 255;
    struct err e;
    float row[64];
    s = opens(V4);
    assert_int_equal(source_read(s, source_find(s, "e.weight"), 0, 1, row, 1, &e), -1);
    assert_non_null(strstr(e.msg, "e.weight: row 0, column 32: is not a number"));
    source_close(s);
    begin();
    tensor("e.weight", "I8", "3,32", 96);
    refuses(V4, "tensor e.weight: e.scale is missing");
    tensor("e.scale", "F8_E8M0", "3,1", 3);
    refuses(V4, "tensor e.scale: [3, 1] of F8_E8M0, expected F8_E8M0 or U8 in the shape of the groups");
    begin();
    tensor("e.weight", "I8", "3,24", 72);
    tensor("e.scale", "F8_E8M0", "3,1", 3);
    refuses(V4, "tensor e.weight: [3, 24] of I8, expected a matrix with 16 bytes for each group of 32");
    begin();
    tensor("a.weight", "F8_E4M3", "130,160", ROWS * COLS);
    tensor("a.scale", "F8_E8M0", "2,1", 2);
    refuses(V4, "tensor a.weight: [130, 160] with scales [2, 1] of F8_E8M0 fits nothing");
}

/* ---- damage ---- */

static void settings_not_understood_are_refused(void **state)
{
    (void)state;
    static const struct { const char *config, *words; } cases[] = {
        { "{\"quant_method\": \"gptq\", \"bits\": 3}", "bits: 3, expected 2, 4 or 8" },
        { "{\"quant_method\": \"gptq\"}", "bits" },
        { "{\"quant_method\": \"gptq\", \"bits\": 4, \"checkpoint_format\": \"marlin\"}",
          "checkpoint_format: \"marlin\" is not supported" },
        { "{\"quant_method\": \"gptq\", \"bits\": 4, \"dynamic\": {\"a\": 1}}",
          "dynamic: {\"a\":1} is not understood" },
        { "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 0}", "group_size: 0 is no size" },
        { "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 4, \"desc_act\": true}",
          "tensor w.qweight: w.g_idx is missing" },
        { "{\"quant_method\": \"gptq\", \"bits\": 4, \"group_size\": 8}",
          "tensor w.scales: [2, 2] of F16, expected [1, 2]" },
        { "{\"quant_method\": \"awq\", \"bits\": 4, \"version\": \"gemv\"}", "version: \"gemv\" is not supported" },
        { "{\"quant_method\": \"awq\", \"bits\": 3}", "bits: 3, expected 4" },
        { "{\"quant_method\": \"fp8\", \"fmt\": \"e5m2\"}", "fmt: \"e5m2\" is not supported" },
        { "{\"quant_method\": \"mxfp4\", \"block\": 16}", "block: 16 is not understood" },
        { "{\"quant_method\": \"bitnet\", \"use_rms_norm\": true}", "use_rms_norm: true is not understood" },
        { "{\"quant_method\": \"bitnet\", \"quantization_mode\": \"both\"}",
          "quantization_mode: \"both\" is not supported" },
        { "{\"quant_method\": \"compressed-tensors\"}", "config_groups: expected an object" },
        { "{\"quant_method\": \"compressed-tensors\", \"format\": \"marlin-24\"}",
          "format: \"marlin-24\" is not supported" },
        { "{\"quant_method\": \"compressed-tensors\", \"config_groups\": {\"g\": {}}}", "g: weights is missing" },
        { CT("{\"num_bits\": 3}"), "weights.num_bits: int of 3 bits" },
        { CT("{\"num_bits\": 4, \"type\": \"float\"}"), "weights.num_bits: float of 4 bits" },
        { CT("{\"strategy\": \"tensor_group\"}"), "weights.strategy: tensor_group is for float of 4 bits" },
    };
    put_gptq(0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuses(cases[i].config, cases[i].words);
    struct err e;
    /* an unknown method is left to config_parse(), which refuses it */
    struct source *s = opened("{\"quant_method\": \"hqq\"}", &e);
    assert_non_null(s);
    assert_null(s->quantization);
    assert_int_equal(s->n_tensors, 4);
    source_close(s);
}

/* Each part is missing, or has another shape; a group index is out of range. */
static void damaged_tensors_are_refused(void **state)
{
    (void)state;
    begin();
    tensor("w.qweight", "I32", "1,2", 8);
    tensor("w.scales", "F16", "2,2", 8);
    refuses(GPTQ(), "tensor w.qweight: w.qzeros is missing");
    begin();
    tensor("w.qweight", "I32", "1,2", 8);
    refuses(GPTQ(), "tensor w.qweight: w.scales is missing");
    begin();
    tensor("w.qweight", "I32", "2", 8);
    tensor("w.qzeros", "I32", "2,1", 8);
    tensor("w.scales", "F16", "2,2", 8);
    refuses(GPTQ(), "tensor w.qweight: [2] of I32, expected a matrix");
    put_gptq(1);
    memset(data + 24, 0, 32);
    data[24 + 12] = 2;
    refuses(GPTQ(), "tensor w.g_idx: element 3 is 2, expected 0 to 1");
    data[24 + 15] = 0xff;
    refuses(GPTQ(), "tensor w.g_idx: element 3 is -");
    begin();
    tensor("w.qweight", "I32", "2,1", 8);
    tensor("w.scales", "F16", "1,8", 16);
    tensor("w.qzeros", "I32", "1,2", 8);
    refuses(AWQ, "tensor w.qzeros: [1, 2] of I32, expected [1, 1]");
    begin();
    tensor("w.weight_packed", "I32", "2,1", 8);
    tensor("w.weight_scale", "BF16", "2,1", 4);
    refuses(CT_INT4, "tensor w.weight_packed: w.weight_shape is missing");
    int32_t *shape = tensor("w.weight_shape", "I32", "2", 8);
    shape[0] = 2;
    shape[1] = 9;
    refuses(CT_INT4, "fits nothing");
    shape[1] = -8;
    refuses(CT_INT4, "tensor w.weight_shape: 2 x -8 is no size");
    shape[0] = 3;
    shape[1] = 8;
    refuses(CT_INT4, "tensor w.weight_packed: [2, 1] of I32, expected a matrix of I32 with as many rows");
    shape[0] = 2;
    refuses(CT("{\"num_bits\": 4, \"strategy\": \"group\", \"group_size\": 32, \"symmetric\": false}"),
            "tensor w.weight_packed: weight_zero_point is missing");
    begin();
    tensor("w.weight", "F8_E4M3", "2,2", 4);
    refuses("{\"quant_method\": \"fp8\"}", "tensor w.weight: w.weight_scale is missing");
    begin();
    tensor("a_blocks", "U8", "1,2,1,16", 32);
    refuses("{\"quant_method\": \"mxfp4\"}", "tensor a_blocks: a_scales is missing");
    tensor("a_scales", "U8", "1,1,2", 2);
    refuses("{\"quant_method\": \"mxfp4\"}", "tensor a_scales: [1, 1, 2] of U8");
    begin();
    tensor("w.weight", "U8", "2,2", 4);
    tensor("w.weight_scale", "BF16", "2", 4);
    refuses("{\"quant_method\": \"bitnet\"}", "tensor w.weight_scale: [2] of BF16, expected one number");
    put_gptq(0);
    tensor("w.weight", "F16", "1,1", 2);
    refuses(GPTQ(), "tensor w.weight is also in");
}

static int setup(void **state) { (void)state; return mkdtemp(dir) ? 0 : -1; }

static int teardown(void **state)
{
    (void)state;
    unlink(in_dir("config.json"));
    unlink(in_dir("model.safetensors"));
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gptq_written_by_hand_unpacks_exactly), cmocka_unit_test(awq_written_by_hand_unpacks_exactly),
        cmocka_unit_test(compressed_written_by_hand_unpacks_exactly),
        cmocka_unit_test(mxfp4_written_by_hand_unpacks_exactly),
        cmocka_unit_test(bitnet_written_by_hand_unpacks_exactly), cmocka_unit_test(gptq_of_every_shape_unpacks_exactly),
        cmocka_unit_test(compressed_int8_unpacks_exactly),
        cmocka_unit_test(partial_fp8_blocks_unpack_exactly), cmocka_unit_test(deepseek_v4_unpacks_exactly),
        cmocka_unit_test(nvfp4_unpacks_exactly), cmocka_unit_test(mxfp8_unpacks_exactly),
        cmocka_unit_test(settings_not_understood_are_refused),
        cmocka_unit_test(damaged_tensors_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
