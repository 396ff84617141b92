/* address.c - reduce a client's address to the key under which per-client limits count it. */
#include "libcommon/base/address.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

const char *address_counted_as(const char *address, char out[48])
{
    uint8_t b[16];
    static const uint8_t mapped[12] = { 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff };
    char text[48];
    snprintf(text, sizeof text, "%.*s", (int)strcspn(address, "%"), address);   /* without the interface: "fe80::1%eth0" */
    if (!strchr(text, ':') || inet_pton(AF_INET6, text, b) != 1)
        return address;
    if (memcmp(b, mapped, sizeof mapped) == 0)
        return inet_ntop(AF_INET, b + 12, out, 48);
    memset(b + 8, 0, 8);
    return inet_ntop(AF_INET6, b, out, 48);
}

static uint64_t hash_text(const char *text)
{
    uint64_t h = 1469598103934665603u;      /* FNV-1a */
    for (const char *p = text; *p; p++)
        h = (h ^ (unsigned char)*p) * 1099511628211u;
    return h;
}

uint64_t address_number(const char *address)
{
    char text[48];
    return hash_text(address_counted_as(address, text));
}
