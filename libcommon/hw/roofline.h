/* roofline.h - measure the peak rates of this machine, to which all other speeds are compared.
 *
 * Rates are the best of several short passes, so that other users of the machine do not lower them.
 * A multiplication and an addition count as two operations. */
#ifndef ZSE_HW_ROOFLINE_H
#define ZSE_HW_ROOFLINE_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { ROOFLINE_READ = 1, ROOFLINE_INT8 = 2, ROOFLINE_F32 = 4, ROOFLINE_FILE = 8, ROOFLINE_ALL = 15 };

struct roofline_options {
    int n_threads;                      /* size of "all threads"; 0: one for each processor */
    unsigned what;                      /* ROOFLINE_ bits; 0: ROOFLINE_ALL */
    int only_all;                       /* 1: omit the figures of one thread */
    /* file for ROOFLINE_FILE; its pages are dropped from the page cache before the disk is
     * measured.  NULL: a temporary in tmp_dir */
    const char *file;
    const char *tmp_dir;                /* NULL: /tmp.  The temporary is unlinked and has no blocks on disk */
    const char *root;                   /* folder that contains proc/ and sys/, for memory_read();
                                         * at most half of that memory is read */
};

struct roofline {
    int n_threads;
    /* bytes/s from memory, far beyond the caches: one thread, all threads; best of 1, 2 and 4
     * streams a thread, with and without prefetches.  0 here and below: not measured */
    double read[2];
    /* op/s of int8 dot products in vectors; "avx512vnni", "avxvnni", "avx2", "i8mm",
     * "dotprod", "neon", "generic" */
    double int8[2]; const char *int8_name;
    double amx[2];                      /* op/s of int8 tiles; 0: no AMX */
    double f32[2]; const char *f32_name;        /* flop/s of f32 multiply-adds in vectors */
    /* bytes/s of a file in the page cache, through a new mapping, page faults included */
    double page_cache[2];
    double disk;                        /* bytes/s of reading the file from its disk; 0: not measured */
    const char *no_disk;                /* the reason why disk is 0, else NULL */
};

int roofline_measure(struct roofline *l, const struct roofline_options *o, struct err *e);

/* ---- the loops, one set for each instruction set ---- */
struct roofline_loops {
    const char *name;
    int (*supported)(void);
    /* Read all of p [n] as interleaved streams; n is a multiple of 1024 * streams.  ahead: bytes
     * from a load to the line that is prefetched with it; 0: no prefetches.  The result only
     * prevents the compiler from removing the loop. */
    uint64_t (*read)(const uint8_t *p, size_t n, int streams, size_t ahead);
    double (*int8_dot)(int rounds);                     /* number of operations; NULL: none */
    double (*f32_fma)(int rounds);                      /* number of operations; NULL: none */
};
extern const struct roofline_loops roofline_generic;
/* only if ZSE_X86 is defined */
extern const struct roofline_loops roofline_avx2, roofline_avxvnni, roofline_avx512, roofline_amx;
/* only if ZSE_ARM64 is defined */
extern const struct roofline_loops roofline_neon, roofline_dotprod, roofline_i8mm;

#ifdef __cplusplus
}
#endif
#endif
