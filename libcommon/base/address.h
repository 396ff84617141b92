/* address.h - the key under which per-client limits count an address: all of an IPv6 /64 is one
 * client. */
#ifndef ZSE_BASE_ADDRESS_H
#define ZSE_BASE_ADDRESS_H

#include <stdint.h>

/* The key of a client: of an IPv6 address, the address with its last 64 bits set to 0; of an IPv4
 * address mapped into IPv6, the plain IPv4 address; anything else unchanged.  Returns address or
 * out. */
const char *address_counted_as(const char *address, char out[48]);
/* A 64-bit hash of address_counted_as(address). */
uint64_t address_number(const char *address);

#endif
