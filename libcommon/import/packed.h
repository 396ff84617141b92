/* packed.h - quantized checkpoints: matrices whose codes, scales and zero points lie in several
 * tensors of a safetensors file.
 *
 * config.json's quantization_config names the kind: compressed-tensors (int4 packed, int8, fp8,
 * nvfp4), ModelOpt (nvfp4; older ones in hf_quant_config.json), fp8 with scales of blocks
 * (DeepSeek) or of a tensor, MXFP4 experts (gpt-oss), GPTQ, AWQ, BitNet.  packed_index() replaces
 * the parts by one tensor with the name and shape of the matrix before quantization; its values are
 * decoded row by row.  The tensors tell the quantized matrices; lists of modules to leave out only
 * repeat that.
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
    /* words of 32 / bits neighbouring k, low bits first: [cols * bits / 32][rows]; zero points
     * likewise along rows */
    PACKED_GPTQ,
    /* words of 8 rows of 4 bits, in the order 0 2 4 6 1 3 5 7: [cols][rows / 8]; zero points
     * likewise */
    PACKED_AWQ,
    /* compressed-tensors: words of 32 / bits neighbouring k: [rows][words]; zero points likewise,
     * but along rows */
    PACKED_WORDS,
    PACKED_I8,              /* [rows][cols] */
    PACKED_F8,              /* [rows][cols] */
    /* [experts][rows][cols / 32][16]: two a byte, low nibble first; seen as [experts][cols][rows],
     * as the plain checkpoint has it */
    PACKED_MXFP4,
    PACKED_NVFP4,           /* [rows][cols / 2]: two a byte, low nibble first; groups of 16 whose scales are e4m3 */
    /* four rows a byte, 2 bits each: rows r, r + rows/4, ...: [rows / 4][cols]; value code - 1, 3
     * stands for nothing */
    PACKED_TERNARY,
};

/* value(row, k) = (code - zero) * scale, or / scale where `divide` says so; NVFP4: tensor_scale *
 * scale is rounded to f32 first.  The scale of (row, k)
 * is element row / row_group * row_step + group * group_step, with group = order ? order[k] :
 * k / col_group; the zero point depends on row and group only. */
struct packed {
    enum packed_layout layout;
    int bits, divide;
    int64_t rows, cols;             /* outputs (of all experts), inputs */
    int64_t expert_rows;            /* MXFP4: outputs of one expert */
    int64_t row_group, col_group, row_step, group_step, n_groups;
    float tensor_scale;             /* NVFP4: times every scale; else 1 */
    int zero, zero_add;             /* the zero point if no tensor has them; added to those of the tensor */
    struct source_tensor code, scale, zeros, order;     /* data NULL: none */
};

/* Older checkpoints of ModelOpt say only in hf_quant_config.json how they are quantized: put that
 * into s->config, where the newer ones have it.  Before packed_index(). */
int packed_config(struct source *s, struct err *e);
/* The same for a config and the parsed file; NULL is fine. */
void packed_config_from(json_t *config, json_t *file);
/* Remove what a config says about its quantization if packed_index() knows the method, because
 * config_parse() refuses it.  1: removed. */
int packed_config_take(json_t *config);
/* Understand s->config's quantization_config, move it to s->quantization, and join the parts of
 * s->tensors.  Unknown methods are left to config_parse to refuse; unknown keys of a known method,
 * and parts that are missing or do not fit, are refused by name. */
int packed_index(struct source *s, struct err *e);
void packed_free(struct packed *p);             /* NULL is fine */

/* Rows [row, row + n) of the tensor as source.h sees it. */
void packed_read(const struct packed *p, int64_t row, int64_t n, float *out);
size_t packed_bytes(const struct packed *p);    /* bytes of all parts */

/* Our type that holds every value exactly, with its group size; -1: none.  Reads all scales. */
int packed_exact(const struct packed *p, int *group_size);
/* Row `row` (of rows, experts joined) as codes of that type; its values, if asked for, are
 * finite. */
void packed_row(const struct packed *p, const struct mat *m, int64_t row, struct qrow *q);

#endif
