/* plan.h - estimate which models fit in memory and how fast they run, by arithmetic only: no file
 * is opened and nothing is measured. */
#ifndef ZSE_PLAN_PLAN_H
#define ZSE_PLAN_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/plan/shape.h"
#include "libcommon/quant/kvtype.h"
#include "libcommon/quant/qtype.h"

/* ---- sizes ---- */

enum { PLAN_QTYPES = QTYPE_NUMBERS };

/* Weights by number format. */
struct plan_weights {
    uint64_t bytes;                             /* bytes of all weights in the file */
    /* bytes that are read for one token: an embedding that is only looked up is left out, and of
     * the experts only the chosen ones count */
    uint64_t step_bytes;
    uint64_t by_type[PLAN_QTYPES];              /* parts of step_bytes */
    /* multiplications and additions of a token in the linear layers of a prompt, without the
     * head */
    double ops[PLAN_QTYPES];
    uint64_t layer_bytes;                       /* mean bytes of a layer */
};
/* Add `copies` equal tensors: our name ("layers.3.q_proj.weight"), the type, and n elements and
 * `bytes` of each.  active: the fraction of them that a token uses (1; top_k / n_experts for
 * experts). */
void plan_add_tensor(struct plan_weights *w, const char *name, int copies, enum qtype type, uint64_t n, uint64_t bytes,
                     double active, int tied, int n_layers);

/* Bytes of one token's keys and values in our cache, all layers. */
uint64_t plan_kv_token(const struct plan_shape *s, enum kv_type type);
/* Bytes of the keys and values of n_seqs sequences of n_tokens tokens in our cache, in whole
 * blocks, all layers.  Layers with a window store, as in engine_kv_needs(), at most their window
 * of each sequence, as much again of ended conversations, and the tokens of a step. */
uint64_t plan_kv_bytes(const struct plan_shape *s, enum kv_type type, int64_t n_tokens, int n_seqs);
/* plan_kv_bytes() if all layers store all tokens, as on a GPU. */
uint64_t plan_kv_whole_bytes(const struct plan_shape *s, enum kv_type type, int64_t n_tokens, int n_seqs);

/* ---- fitting ---- */

enum plan_mode { PLAN_AUTO, PLAN_MIN_MEMORY, PLAN_BALANCED, PLAN_MAX_SPEED, PLAN_FOR_VRAM };
/* "auto" "min_memory" "memory" "balanced" "max_speed" "speed"; -1: none (for_vram needs a size,
 * which the caller reads). */
int plan_mode_find(const char *name);
const char *plan_mode_name(enum plan_mode m);

struct plan_choice {                            /* one way to run a model, finest type first in an array */
    const char *type;                           /* "bf16", "int8", "nl4" */
    uint64_t bytes;                             /* weights, keys and values, workspace */
    double prefill, decode;                     /* tokens a second; 0: unknown */
};
/* Seconds of a typical exchange: a prompt of 512 tokens and an answer of 128; only the answer if
 * the rate of prefill is unknown; 0 if that of decode is. */
double plan_exchange(const struct plan_choice *c);
/* Index of the choice, or -1: nothing fits.
 *   auto             the finest type that fits with a tenth of the memory left free and takes,
 *                    where speeds are known, at most twice as long for an exchange as
 *                    the fastest of those that fit
 *   for_vram         the finest that fits
 *   min_memory       the smallest;  balanced: the one called int8
 *   max_speed        of those that fit, the fastest where speeds are known, else the smallest:
 *                    fewer bytes are read sooner */
int plan_choose(const struct plan_choice *c, int n, enum plan_mode mode, uint64_t memory);
/* The part of the memory that plans may use. */
static inline uint64_t plan_usable(uint64_t memory) { return memory / 10 * 9 + memory % 10 * 9 / 10; }

/* Check whether weights + kv + workspace fit.  0 if they do; -1 with all the numbers in *e:
 * ERR_LIMIT if they exceed 95 % of `most`, else ERR_MEMORY if they exceed `now`.  *tight is 1 if
 * they exceed 90 % of `most`, else 0. */
int plan_preflight(const char *what, uint64_t weights, uint64_t kv, uint64_t workspace, uint64_t most, uint64_t now,
                   int *tight, struct err *e);

/* The number of times that `bytes` fit into `memory`. */
int plan_times(double memory, double bytes);
/* ---- speed: a roofline from measured rates ---- */

struct plan_rates {
    int n_threads;
    int64_t measured;       /* Unix time of the oldest rate that an earlier run measured; 0: none was */
    double read[PLAN_QTYPES];                   /* product of weights of a type and one token:
                                                 * bytes/s of weights; 0: not measured */
    /* product of weights of a type and many tokens, including the quantization of activations:
     * op/s */
    double multiply[PLAN_QTYPES];
    double memory;                              /* bytes/s of reading memory: keys and values, states */
    /* multiply-adds a second of attention with keys and values in cache: [0] for one token, [1] for
     * many */
    double attend[2];
    double f32;                                 /* flop/s: recurrences */
    double sync_s;                              /* time to synchronize one parallel loop */
    /* seconds that one thread takes for a float: to norm it and add it to the residual; to quantize
     * it; to apply the activation of an MLP */
    double norm_s, round_s, act_s;
    double pick_s;                              /* seconds for a logit in the search for the most likely token */
};
/* Tokens a second.  0: a rate is missing. */
double plan_decode(const struct plan_shape *s, const struct plan_weights *w, const struct plan_rates *r,
                   struct kv_types kv, int context);
double plan_prefill(const struct plan_shape *s, const struct plan_weights *w, const struct plan_rates *r, int n_tokens);

#endif
