/* hadamard.h - rotate a vector by a Hadamard matrix, which spreads each of its channels over all: a
 * key with a few large channels, as most models have, keeps more of the others when it is rounded
 * with one scale (arXiv:2404.00456).  Query and key rotated alike have the same product as before,
 * and an output rotated back is the sum of the values that were rotated. */
#ifndef ZSE_CPU_HADAMARD_H
#define ZSE_CPU_HADAMARD_H

/* Rotate x [n] in place, in runs of the largest power of two that divides n.  Rotating twice gives
 * x again, but for rounding. */
void hadamard_rotate(float *x, int n);

#endif
