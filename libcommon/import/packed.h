/* packed.h - quantized checkpoints: matrices whose codes, scales and zero points lie in several
 * tensors of a safetensors file.
 *
 * config.json's quantization_config names the kind: compressed-tensors (int4 packed, int8, fp8,
 * mxfp8, nvfp4), ModelOpt (mxfp8, nvfp4; older ones in hf_quant_config.json), fp8 with scales of
 * blocks (DeepSeek, whose V4 has experts in MXFP4 beside it) or of a tensor, mxfp8 (MiniMax), MXFP4
 * experts (gpt-oss), GPTQ, AWQ, BitNet.  packed_index() replaces the parts by one tensor with the
 * name and shape of the matrix before quantization; its values are decoded row by row.  The tensors
 * show which matrices are quantized, so the configuration's lists of modules that are not quantized
 * are ignored.
 *
 * Source of the layouts and the meaning of codes: the libraries that write them (AutoGPTQ, AutoAWQ,
 * compressed-tensors, ModelOpt, transformers). */
#ifndef ZSE_IMPORT_PACKED_H
#define ZSE_IMPORT_PACKED_H

#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/import/source.h"
#include "libcommon/quant/tile.h"

enum packed_layout {
    /* [cols * bits / 32][rows]: each 32-bit word has the codes of 32 / bits neighbouring k, the
     * first in the lowest bits; zero points are packed in the same way, but along rows */
    PACKED_GPTQ,
    /* [cols][rows / 8]: each 32-bit word has the 4-bit codes of 8 neighbouring rows in the order 0
     * 2 4 6 1 3 5 7; zero points are packed in the same way */
    PACKED_AWQ,
    /* compressed-tensors, [rows][words]: each 32-bit word has the codes of 32 / bits neighbouring
     * k, the first in the lowest bits; zero points are packed in the same way, but along rows */
    PACKED_WORDS,
    PACKED_I8,              /* [rows][cols] */
    PACKED_F8,              /* [rows][cols] */
    PACKED_MXFP8,           /* [rows][cols], groups of 32 with e8m0 scales */
    /* [experts][rows][cols / 32][16]: two codes a byte, the first in the low nibble; the tensor is
     * seen as [experts][cols][rows], as it is in a checkpoint that is not quantized.  Without
     * expert_rows, a matrix [rows][cols / 2]. */
    PACKED_MXFP4,
    /* [rows][cols / 2]: two codes a byte, the first in the low nibble; groups of 16 with e4m3
     * scales */
    PACKED_NVFP4,
    /* [rows / 4][cols]: 2-bit codes of four rows a byte: rows r, r + rows/4 and so on; the value is
     * code - 1, and code 3 is invalid (read as NaN) */
    PACKED_TERNARY,
};

/* value(row, k) = (code - zero) * scale, or (code - zero) / scale if `divide` is set; NVFP4:
 * tensor_scale * scale is rounded to f32 first.  The scale of (row, k) is element
 *     (row / row_group) * row_step + group * group_step
 * with group = order ? order[k] : k / col_group; divisions round down.  The zero point depends on
 * row and group only. */
struct packed {
    enum packed_layout layout;
    int bits, divide;
    int64_t rows, cols;             /* outputs (of all experts), inputs */
    int64_t expert_rows;            /* MXFP4: outputs of one expert; 0: one matrix */
    int64_t row_group, col_group, row_step, group_step, n_groups;
    float tensor_scale;             /* NVFP4: a factor on every scale; otherwise 1 */
    /* zero: the zero point if no tensor has any; zero_add: added to those of the tensor */
    int zero, zero_add;
    struct source_tensor code, scale, zeros, order;     /* data NULL: none */
};

/* Older checkpoints of ModelOpt describe their quantization only in hf_quant_config.json: move that
 * description into s->config, where newer ones have it.  Call it before packed_index().  Returns 0;
 * -1 with *e. */
int packed_config(struct source *s, struct err *e);
/* Like packed_config(), for a config and the parsed hf_quant_config.json; either may be NULL. */
void packed_config_from(json_t *config, json_t *file);
/* Remove a config's description of its quantization if packed_index() knows the method, because
 * config_parse() would refuse it.  Returns 1 if it was removed, else 0. */
int packed_config_take(json_t *config);
/* Interpret quantization_config in s->config, move it to s->quantization, and join the parts of
 * s->tensors.  Returns 0; -1 with *e.  Unknown methods are left to config_parse() to refuse.
 * Unknown keys of a known method, and parts that are missing or do not fit, are refused by name. */
int packed_index(struct source *s, struct err *e);
void packed_free(struct packed *p);             /* NULL is fine */

/* Rows [row, row + n) of the tensor as source.h sees it. */
void packed_read(const struct packed *p, int64_t row, int64_t n, float *out);
size_t packed_bytes(const struct packed *p);    /* bytes of all parts */

/* Our type that holds every value exactly, with its group size; -1: none.  Reads all scales. */
int packed_exact(const struct packed *p, int *group_size);
/* Fill *q with the codes, scales and zero points of row `row`, in the type that packed_exact()
 * returned.  Rows of all experts are counted in sequence. */
void packed_row(const struct packed *p, const struct mat *m, int64_t row, struct qrow *q);

#endif
