/* expert_threshold.h - the number of tokens of a step from which a device uploads all experts that
 * it lacks, instead of leaving those that were chosen to the CPU. */
#ifndef ZSE_PLAN_EXPERT_THRESHOLD_H
#define ZSE_PLAN_EXPERT_THRESHOLD_H

enum {
    EXPERT_THRESHOLD = 300,             /* tokens, while a speed is unknown */
    EXPERT_THRESHOLD_MOST = 1 << 20     /* stands for: never */
};

/* Bytes a second.  link: of experts that are uploaded; read: of experts that the CPU computes for
 * few tokens; products: the CPU's fastest products, where an expert counts once for each of its
 * tokens. */
struct expert_speeds { double link, read, products; };

/* The break-even of a layer that lacks m experts of B bytes each, of which a token chooses `misses`
 * on average.  n tokens choose
 *
 *     chosen(n) = m * (1 - (1 - misses / m)^n)
 *
 * of them if choices are independent.  The CPU has to read these once and to multiply each by its
 * tokens; the link uploads all m.  The device computes meanwhile, which is neglected.  The result
 * is the least n with
 *
 *     max(B * chosen(n) / read, B * n * misses / products) >= B * m / link
 *
 * B cancels out.  The result is never below the least n with chosen(n) >= m / 2: fewer tokens
 * choose less than half of the experts, so uploading only those takes less than half the time.
 * It is at most EXPERT_THRESHOLD_MOST.
 * EXPERT_THRESHOLD if nothing is missing (m <= 0), or if a speed or `misses` is not a finite number
 * above 0. */
int expert_threshold(int n_missing, double misses, const struct expert_speeds *s);

#endif
