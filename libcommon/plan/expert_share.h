/* expert_share.h - divide the experts that a step chose and a device lacks between the link, which
 * uploads them for the device, and the CPU, so that both end at about the same time.
 *
 * The speeds are learned from earlier layers.  That of the CPU depends on the number of tokens of a
 * step, since the weights of an expert are then read for more of them, so it is learned for each
 * power of two.  Every SHARE_PROBE-th layer in which one of the two would get nothing gives it an
 * expert, so that its speed stays known. */
#ifndef ZSE_PLAN_EXPERT_SHARE_H
#define ZSE_PLAN_EXPERT_SHARE_H

#include "libcommon/plan/expert_threshold.h"

/* SHARE_MANY: power of two of tokens from which the products take the time, not reading weights */
enum { SHARE_PROBE = 64, SHARE_SIZES = 16, SHARE_MANY = 4 };

/* Speeds in bytes of experts a second; 0: unknown.  products: an expert counts once for each of its
 * tokens. */
struct expert_shares {
    double link, cpu[SHARE_SIZES], products[SHARE_SIZES];
    int n_without;                      /* layers since the last probe in which one of the two got nothing */
};
/* The number of n experts to upload, so that link and CPU end at about the same time. */
int expert_share(int n, double link, double cpu);
/* The same by the learned speeds, for a step of n_tokens tokens; half of n while one of the two is
 * unknown. */
int shares_divide(struct expert_shares *s, int n, int n_tokens);
/* Learn that bytes of experts were uploaded, or computed by the CPU for a step of n_tokens tokens,
 * in this time. */
void shares_learn_link(struct expert_shares *s, double bytes, double seconds);
void shares_learn_cpu(struct expert_shares *s, int n_tokens, double bytes, double seconds);
/* Learn from the same work that the CPU multiplied these bytes, each expert counted once for each
 * of its tokens. */
void shares_learn_products(struct expert_shares *s, int n_tokens, double bytes, double seconds);
/* The speeds for expert_threshold(): the CPU's are those of the fastest sizes of steps, its
 * products those of at least 2^SHARE_MANY tokens.  0: unknown. */
struct expert_speeds shares_speeds(const struct expert_shares *s);
/* Move the n_first experts of id [n] with the largest counts to its front; equal ones keep their
 * order.  count: for every expert. */
void experts_first(int *id, int n, int n_first, const float *count);

#endif
