/* hadamard.h - rotate a vector by a Hadamard matrix, which spreads each of its channels over all.
 *
 * Most models have keys with a few large channels.  Rounded with one scale after a rotation, such a
 * key keeps more of its other channels (arXiv:2404.00456).  If query and key are rotated alike,
 * their product is the same as before; if values are rotated, rotating the output back gives the
 * output for the original values. */
#ifndef ZSE_CPU_HADAMARD_H
#define ZSE_CPU_HADAMARD_H

/* Rotate x [n] in place, in runs of the largest power of two that divides n.  Rotating twice gives
 * x again, but for rounding. */
void hadamard_rotate(float *x, int n);

#endif
