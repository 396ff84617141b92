/* expert_moves.h - choose experts that move to a device because they are chosen often.
 *
 * The counts of an expert are the tokens that chose it, later ones with more weight.  Before a step
 * an expert without a slot that is chosen much more often than one of its layer that has a slot
 * takes that slot, at most MOVES_A_STEP in a step, so that uploads take little time.  The choice
 * depends on earlier tokens only, never on time. */
#ifndef ZSE_PLAN_EXPERT_MOVES_H
#define ZSE_PLAN_EXPERT_MOVES_H

#include <stdint.h>

enum { MOVES_A_STEP = 2 };

struct expert_moves {
    int first, end, n_experts;          /* of the layers [first, end) */
    int64_t n_counted;                  /* tokens of all layers since the counts were halved */
    float *count;                       /* [end][n_experts], owned */
};
/* 0; -1: no memory. */
int moves_open(struct expert_moves *m, int first, int end, int n_experts);
void moves_close(struct expert_moves *m);
/* Count that n tokens chose n_ids experts of a layer; ids below 0 are left out. */
void moves_count(struct expert_moves *m, int layer, const int32_t *id, int n_ids, int n);
/* A step begins: after many tokens all counts are halved. */
void moves_step(struct expert_moves *m);

/* An expert without a slot, and one of its layer that has one and is chosen less often. */
struct expert_move { int layer, in, out; float gain; };
/* Find the move with the largest gain.  place [end][n_experts]: the slot of each expert, below 0:
 * none.  gain 0: there is none. */
struct expert_move moves_best(const struct expert_moves *m, const int32_t *place);

#endif
