/* fuzz-tzif.c - any bytes as a time zone file and as a TZ string.  build: scripts/fuzz tzif */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "libcommon/tools/tzif.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(struct tz_moment m)
{
    if (m.offset_s < -200000 || m.offset_s > 200000)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const int64_t times[] = { -70000000000, -2147483649, -1, 0, 1795456331, 2147483648, 250000000000 };
    struct err e = { .msg = "" };
    struct tz_rule r;
    struct tz *z = tz_parse("fuzz", data, size, &e);
    for (size_t i = 0; z && i < sizeof times / sizeof *times; i++)
        check(tz_at(z, times[i]));
    if (!z && !e.msg[0])
        abort();
    tz_close(z);
    if (tz_rule_parse((const char *)data, size, &r, &e) == 0)
        for (size_t i = 0; i < sizeof times / sizeof *times; i++)
            check(tz_rule_at(&r, times[i]));
    return 0;
}
