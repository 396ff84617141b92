/* walk.h - shared by the lists of launches of a step: step_launches.c (a launch for each product)
 * and one_token_stages.c (one launch for all layers). */
#ifndef ZSE_GPU_TIME_WALK_H
#define ZSE_GPU_TIME_WALK_H

#include "gpu/backend/internal.h"
#include "gpu/kernels/operations.h"
#include "gpu/time/launch_time.h"

enum {
    TABLE_SIZE = 32768,         /* bytes of a codebook in shared memory */
    TABLE_TURN = 70,            /* cycles of a turn of the loop that fills it (calculated) */
    STEP_UNIT = 16 * 32,        /* bytes of a step that the lanes of a warp load at a time */
    STEP_WORDS = TILE_ROWS * 32,        /* weights of a tile in a step */
    PAD = 36,                   /* floats of a row of sums */
};

struct walk {
    const struct model *m;
    const struct timed_gpu *g;
    const struct timed_step *s;
    struct timed_launches *out;
    int n;                      /* tokens of the step, with padding */
    int n_seqs, splits, n_tiles, wgmma;
    int normed;                 /* the launch before has computed the next layer's norm */
    int parts;                  /* parts of sums that the launch before leaves to the next norm */
    int qkv_parts;              /* the same of q, k and v */
};

/* Append a launch, or a stage of one. */
void walk_add(struct walk *w, struct timed_launch l);
/* The instructions of 16 bytes of weights of a lane; 0 if they are not counted. */
double walk_instructions(struct walk *w, const char *kernel, enum qtype type, const char *end, const char *sm,
                         int *registers);
/* Cycles to choose the experts of the only token by their ranks (choose_ids(), prim/choose.cuh).
 * warps: the number of warps that choose. */
double walk_ids_cycles(const struct moe *m, int warps);
/* If the layers of the step are one launch, append its stages.  Returns 0 if they are not. */
int walk_one_token(struct walk *w);

/* Loads of 16 bytes for a step of a lane (gpu/prim/weights.cuh). */
static inline int loads_of(const struct mat *m)
{
    const struct qtype_info *t = qtype_info(m->type);
    return t->bits == 16 ? 4 : t->bits <= 4 && t->bits != 3 ? 1 : 2;
}
static inline int n_steps(const struct mat *m) { return m->cols_padded / 32; }
/* Whether codes are multiplied as they are (gpu/prim/code_sums.cuh). */
static inline int by_codes(const struct mat *m) { return m->type == QT_I4 || m->type == QT_I8; }
static inline int has_table(const struct mat *m) { return qtype_info(m->type)->gpu == GPU_FORMAT_TABLE; }
static inline double product(const struct mat *m, int n) { return 2.0 * m->rows * m->cols * n; }
static inline unsigned ceil_of(int a, int b) { return (unsigned)((a + b - 1) / b); }
/* Positions that the newest token sees in this layer. */
static inline int walk_seen(const struct walk *w, int index)
{
    const int window = w->m->config.window[index];
    return window && window < w->s->context ? window : w->s->context;
}

#endif
