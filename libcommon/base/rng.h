/* rng.h - small sequential random numbers: SplitMix64 (Steele, Lea, Flood 2014).  Equal on every
 * machine. */
#ifndef ZSE_BASE_RNG_H
#define ZSE_BASE_RNG_H

#include <stdint.h>

struct rng { uint64_t state; };

static inline uint64_t rng_u64(struct rng *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* uniform in [0, 1) with 53 bits */
static inline double rng_double(struct rng *r) { return (double)(rng_u64(r) >> 11) * 0x1p-53; }

#endif
