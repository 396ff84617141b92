/* address.h - client addresses as limits count them: an IPv6 network of 64 bits is one client. */
#ifndef ZSE_BASE_ADDRESS_H
#define ZSE_BASE_ADDRESS_H

#include <stdint.h>

/* The part of an address that counts, as text: IPv6 without its last 64 bits, IPv4 mapped into IPv6
 * as IPv4.  Returns address or out. */
const char *address_counted_as(const char *address, char out[48]);
/* A 64-bit hash of that text. */
uint64_t address_number(const char *address);

#endif
