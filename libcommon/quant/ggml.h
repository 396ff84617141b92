/* ggml.h - the tensor types of GGUF files, and of safetensors files: sizes, names, decoding to f32.
 * Types that GGUF lacks have numbers of our own (SRC_).  The block layouts are those of the GGUF
 * specification and of ggml's public headers. */
#ifndef ZSE_QUANT_GGML_H
#define ZSE_QUANT_GGML_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/quant/tile.h"

/* The kinds of matrices that quantized checkpoints store as several tensors, each with its name for
 * messages.  import/packed.h decodes them; ggml_decode() does not. */
#define SRC_PACKED_TYPES(X) \
    X(GPTQ, "GPTQ") X(AWQ, "AWQ") X(CT_INT, "CT-INT") X(CT_F8, "CT-FP8") X(F8_BLOCK, "FP8") X(MXFP4_BLOCKS, "MXFP4") \
    X(BITNET, "BITNET") X(NVFP4_BLOCKS, "NVFP4") X(MXFP8_BLOCKS, "MXFP8")

enum ggml_type {
    GGML_F32 = 0, GGML_F16 = 1, GGML_Q4_0 = 2, GGML_Q4_1 = 3, GGML_Q5_0 = 6, GGML_Q5_1 = 7, GGML_Q8_0 = 8,
        GGML_Q8_1 = 9,
    GGML_Q2_K = 10, GGML_Q3_K = 11, GGML_Q4_K = 12, GGML_Q5_K = 13, GGML_Q6_K = 14, GGML_Q8_K = 15,
    GGML_IQ2_XXS = 16, GGML_IQ2_XS = 17, GGML_IQ3_XXS = 18, GGML_IQ1_S = 19, GGML_IQ4_NL = 20, GGML_IQ3_S = 21,
    GGML_IQ2_S = 22, GGML_IQ4_XS = 23, GGML_I8 = 24, GGML_I16 = 25, GGML_I32 = 26, GGML_I64 = 27, GGML_F64 = 28,
    GGML_IQ1_M = 29, GGML_BF16 = 30, GGML_TQ1_0 = 34, GGML_TQ2_0 = 35, GGML_MXFP4 = 39, GGML_NVFP4 = 40, GGML_Q1_0 = 41,
    /* safetensors only */
    SRC_F8_E4M3 = 1000, SRC_F8_E5M2 = 1001, SRC_BOOL = 1002, SRC_U8 = 1003, SRC_U16 = 1004, SRC_U32 = 1005,
        SRC_U64 = 1006, SRC_F8_E8M0 = 1007,
    SRC_PACKED = 1099,
#define SRC_ENUMERATOR(ID, name) SRC_##ID,
    SRC_PACKED_TYPES(SRC_ENUMERATOR)
#undef SRC_ENUMERATOR
};

struct ggml_type_info {
    int type;
    const char *name;               /* "Q4_K" */
    int block, block_bytes;         /* elements of a block, bytes of a block */
};
const struct ggml_type_info *ggml_type_info(int type);                  /* NULL: unknown */

/* Decode n elements, a multiple of the type's block, from src [n / block * block_bytes], which
 * may have any alignment.  The results have the same bits as those of the reference decoders,
 * because f32 operations are done in the same order. */
void ggml_decode(int type, const void *src, float *dst, int64_t n);

/* The .zse type that represents every value of this GGML type exactly, and its group size; -1:
 * there is none, because the type has a minimum or a product of scales that f16 cannot hold.
 *     F32, F16, BF16           the same types
 *     Q4_0, Q4_1               QT_I4, QT_I4M, groups of 32
 *     TQ1_0, TQ2_0             QT_T3, QT_T2, groups of 256
 *     MXFP4                    QT_MXFP4; the scale 255 (NaN) is not representable
 *     NVFP4                    QT_NVFP4, groups of 16; the scale 0xff, which no quantizer writes,
 *                              is not representable and becomes NAN in a qrow
 *     Q8_0, Q8_1, Q5_0, IQ4_NL QT_I8, groups of 32 (the last two take more bytes than in GGUF)
 * A Q8 file may have the code -128, which quantizers never write; kernels add 128 to codes, so they
 * support it. */
int ggml_exact_type(int type, int *group_size);
/* Whether QT_T3 can represent all of these blocks of TQ1_0 or TQ2_0.  TQ2_0 has a fourth code, for
 * the value 2, which only QT_T2 can represent. */
int ggml_fits_t3(int type, const void *src, size_t size);
/* Convert one row of blocks to codes and scales without rounding, for a type for which
 * ggml_exact_type() returns an integer type.  m has that type and group size; for TQ1_0 and
 * TQ2_0 it may also be QT_I4, QT_T2 or (see ggml_fits_t3) QT_T3 with groups that divide 256.
 * m->cols is a multiple of the block.  (For F32, F16 and BF16 ggml_decode() and tile_put_float()
 * are exact.) */
void ggml_to_qrow(int type, const void *src, const struct mat *m, struct qrow *q);

#endif
