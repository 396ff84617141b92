/* siphash.h - SipHash-2-4 (Aumasson, Bernstein: SipHash: a fast short-input PRF, 2012): a 64-bit
 * hash of any bytes under a key of 128 bits.
 *
 * For hash tables of names from files: without the key, an author of a file cannot choose names
 * that collide. */
#ifndef ZSE_BASE_SIPHASH_H
#define ZSE_BASE_SIPHASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t sip_turn(uint64_t x, int by) { return x << by | x >> (64 - by); }

static inline void sip_rounds(uint64_t v[4], int n)
{
    for (; n > 0; n--) {
        v[0] += v[1], v[2] += v[3];
        v[1] = sip_turn(v[1], 13) ^ v[0], v[3] = sip_turn(v[3], 16) ^ v[2];
        v[0] = sip_turn(v[0], 32);
        v[2] += v[1], v[0] += v[3];
        v[1] = sip_turn(v[1], 17) ^ v[2], v[3] = sip_turn(v[3], 21) ^ v[0];
        v[2] = sip_turn(v[2], 32);
    }
}

static inline void sip_word(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    sip_rounds(v, 2);
    v[0] ^= word;
}

/* Words are read in the machine's byte order: little-endian machines agree with the paper. */
static inline uint64_t siphash(const uint64_t key[2], const void *data, size_t n)
{
    const char *p = data;
    uint64_t word, v[4] = { key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du, key[0] ^ 0x6c7967656e657261u,
                            key[1] ^ 0x7465646279746573u };
    for (size_t left = n; left >= sizeof word; left -= sizeof word, p += sizeof word) {
        memcpy(&word, p, sizeof word);
        sip_word(v, word);
    }
    word = 0;
    memcpy(&word, p, n % sizeof word);
    sip_word(v, word | (uint64_t)n << 56);
    v[2] ^= 0xff;
    sip_rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
