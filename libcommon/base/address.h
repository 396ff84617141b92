/* address.h - client addresses as limits count them: an IPv6 network of 64 bits is one client. */
#ifndef ZSE_BASE_ADDRESS_H
#define ZSE_BASE_ADDRESS_H

#include <stdint.h>

/* The text that stands for a client in limits: an IPv6 address with its last 64 bits set to 0, an
 * IPv4 address that is mapped into IPv6 as plain IPv4, anything else unchanged.  Returns address or
 * out. */
const char *address_counted_as(const char *address, char out[48]);
/* A 64-bit hash of address_counted_as(address). */
uint64_t address_number(const char *address);

#endif
