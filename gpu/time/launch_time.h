/* launch_time.h - a model of time: the launches of a step, and how long a GPU would take for each.
 * It predicts; nothing is measured, and no device is needed.
 *
 * A launch takes the time between two kernels of a graph, the waits before and after its main loop,
 * and the longest of seven times: bytes from memory, bytes from L2, instructions, products of the
 * tensor cores, cycles of shared memory, exponentials, and the dependent loads of the loop.  Blocks
 * run in rounds of as many as fit on the device.  First weights that a dependent launch loads while
 * memory would be idle take no time.  A launch whose blocks wait for each other's words is
 * listed as its stages, with the time of a word between them.  The
 * list follows layers.c, one_token.c and step.c of gpu/backend; tests/unit/t-gpu-time.c compares it
 * with what the backend launches. */
#ifndef ZSE_GPU_TIME_LAUNCH_TIME_H
#define ZSE_GPU_TIME_LAUNCH_TIME_H

#include <stddef.h>

#include "libcommon/model/model.h"

/* The constants of a GPU (timed_gpus.c).  key: "h200"; sm: as tests/gpu/code-budgets names it.
 * Latencies are in cycles of the multiprocessors' clock. */
struct timed_gpu {
    const char *key, *name, *sm;
    int capability;                     /* 90 for 9.0 */
    int n_sms;
    int most_threads, shared_bytes;     /* of a multiprocessor */
    double clock;                       /* Hz */
    double memory;                      /* bytes/s, by the data sheet: the roof */
    double memory_share;                /* the share of it that a copy reaches */
    double l2;                          /* bytes/s */
    double memory_cycles, l2_cycles;    /* latency of a dependent load from memory, and from L2 */
    double launch_s;                    /* from the end of a kernel to the start of the next, in a graph */
    double dependent_s;                 /* the same for dependent launches (gpu/rt/launch.cuh); 0: none */
    double tensor;                      /* dense f16 operations/s with f32 sums, by the data sheet */
    double mma_share, wgmma_share;      /* the shares of it that mma.sync and wgmma reach; 0: no wgmma */
    double issue_share;                 /* of one instruction per cycle and scheduler */
};
/* The row of this key; NULL: there is none.  timed_gpu_at: i = 0, 1 ..; NULL after the last. */
const struct timed_gpu *timed_gpu_find(const char *key);
const struct timed_gpu *timed_gpu_at(int i);

/* The cost of a kernel's machine code: a row of tests/gpu/code-budgets.  instructions: of 16 bytes
 * of weights of a lane, or of a turn of the loop.  code_cost_find() returns 0 if there is no such
 * row. */
struct code_cost { int registers; double instructions; };
int code_cost_find(const char *kernel, const char *sm, struct code_cost *out);

/* A step.  Decoding (n_tokens 0): n_seqs sequences, the newest token of each is its number
 * `context`, padded as the backend pads it for graphs.  A prompt: n_tokens tokens of one sequence,
 * which end with its token number `context`.  Keys and values are f16. */
struct timed_step { int n_seqs, context, n_tokens, wgmma, one_launch /* enum one_launch */; };

/* The parts of a step; times of launches are summed for each. */
enum timed_part { TIMED_OTHER, TIMED_LINEAR, TIMED_ATTENTION, N_TIMED_PARTS };

struct timed_launch {
    const char *kernel, *what;          /* "matvec", "qkv"; static */
    enum timed_part part;
    unsigned blocks; int threads; size_t shared;        /* as launched */
    unsigned active;                    /* the blocks that have work */
    int registers;                      /* of a thread; 0: unknown */
    /* bytes: from and to memory, each once; l2_bytes: of all blocks; flop: useful operations of the
     * tensor cores; done: with those of padding; issue: warp instructions of all blocks.  Of
     * matmul_split and attention only: shared_bytes, that all blocks read and write in shared
     * memory; exps: exponentials, of attention with many tokens */
    double bytes, l2_bytes, flop, done, issue, shared_bytes, exps;
    int wgmma;
    int follows;                        /* another launch of the step comes before it */
    /* all blocks run at the same time (launch.cuh), and the launch does not overlap with others.
     * stage above 0: no launch, but the work of its blocks after they have collected words
     * (gpu/prim/grid.cuh).  words: bytes that all blocks together collect */
    int together, stage;
    double words;
    /* of a block: waits outside of its loop (for memory, for L2, and other cycles); turns of the
     * loop, waits and own cycles of a turn; ahead: a turn's loads start one turn earlier */
    double setup_memory, setup_l2, setup_cycles, turns, turn_memory, turn_l2, turn_cycles;
    int ahead;
    /* waits of the block that ends last, after all others have ended */
    double alone_memory, alone_l2, alone_cycles;
    /* bytes from memory that a block loads before it waits for the launch before, and waits for L2
     * before these loads */
    double early, early_l2;
    /* of a stage: cycles before these loads, in which they are prepared; cycles of its waits in
     * which they go on arriving, while blocks collect activations and norm them; cycles before it
     * sends words in which all warps but the first one have begun the next stage */
    double early_cycles, arriving, frees;
};

struct timed_launches {
    struct timed_launch *launch;        /* owned */
    int n, room;
    int n_tokens;                       /* with padding */
    double bytes;                       /* from memory, of all launches */
    /* a number format for which instructions are not counted: predictions leave them out; NULL:
     * none */
    const char *uncounted;
    int failed;                         /* there was no memory */
};
/* List the launches of a step.  -1 with *e: a layer of a kind that the model of time does not have.
 * The caller releases the list in any case. */
int timed_launches(const struct model *m, const struct timed_gpu *g, const struct timed_step *s,
                   struct timed_launches *out, struct err *e);
void timed_launches_release(struct timed_launches *l);

/* Seconds by cause; `limit` names the largest: "launch", "waits", "memory", "L2", "issue",
 * "tensor", "shared", "exp" or "loads". */
struct timed_cost { double seconds, roof_s; const char *limit; };
/* before: the launch before l in the same step, during which a dependent launch loads its first
 * weights; NULL: none.  The launch itself may then take less than its roof, but a step does not. */
struct timed_cost timed_launch_cost(const struct timed_gpu *g, const struct timed_launch *before,
                                    const struct timed_launch *l);
/* The time from the end of a kernel of a step to the start of the next. */
double timed_gap(const struct timed_gpu *g);

/* Fill m with the configuration c, which becomes m's, and with matrices of this type in the shapes
 * that c implies, without data: embedding and head have 8 bits if the type has fewer, routers are
 * f32.  -1 with *e; release it with timed_shape_release() in any case. */
int timed_shape(struct model *m, const struct config *c, enum qtype type, struct err *e);
void timed_shape_release(struct model *m);

#endif
