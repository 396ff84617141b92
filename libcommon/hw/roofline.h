/* roofline.h - what this machine can do at most, measured: the figures that every speed is a share
 * of.
 *
 * Rates are the best of several short passes, so that a neighbour's slice of the machine does
 * not lower a limit.  Operations count a multiplication and an addition as two. */
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
    int n_threads;                      /* "all threads"; 0: one for each processor */
    unsigned what;                      /* ROOFLINE_ bits; 0: ROOFLINE_ALL */
    int only_all;                       /* 1: leave out the figures of one thread */
    const char *file;                   /* ROOFLINE_FILE reads this one, its pages dropped first for the disk's figure; NULL: a temporary in tmp_dir */
    const char *tmp_dir;                /* NULL: /tmp.  The temporary has no name and no blocks on disk */
};

struct roofline {
    int n_threads;
    double read[2];                     /* bytes/s from memory, far more than caches hold: one thread, all threads; the best of 1, 2 and 4 streams a thread.  0 here and below: not measured */
    double int8[2]; const char *int8_name;      /* op/s of int8 dot products in vectors; "avx512vnni", "avxvnni", "avx2", "generic" */
    double amx[2];                      /* op/s of int8 tiles; 0 where there is no AMX */
    double f32[2]; const char *f32_name;        /* flop/s of f32 multiply-adds in vectors */
    double page_cache[2];               /* bytes/s of a file in the page cache, mapped anew, page faults included */
    double disk;                        /* bytes/s of reading the file from its disk; 0: not measured */
    const char *no_disk;                /* why disk is 0; NULL where it is not */
};

int roofline_measure(struct roofline *l, const struct roofline_options *o, struct err *e);

/* ---- the loops, once per instruction set ---- */
struct roofline_loops {
    const char *name;
    int (*supported)(void);
    /* All of p [n] in this many interleaved runs, n a multiple of 1024 * streams; the answer
     * only keeps the compiler from leaving it out. */
    uint64_t (*read)(const uint8_t *p, size_t n, int streams);
    double (*int8_dot)(int rounds);                     /* op done; NULL: none */
    double (*f32_fma)(int rounds);                      /* flop done; NULL: none */
};
extern const struct roofline_loops roofline_generic;
extern const struct roofline_loops roofline_avx2, roofline_avxvnni, roofline_avx512, roofline_amx;        /* only where ZSE_X86 is */

#ifdef __cplusplus
}
#endif
#endif
