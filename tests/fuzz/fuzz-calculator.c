/* fuzz-calculator.c - any bytes as an expression.  build: scripts/fuzz calculator */
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "libcommon/tools/calculator.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = { .msg = "" };
    double v = NAN;
    const int rc = calculate((const char *)data, size, &v, &e);
    if (rc == 0 ? !isfinite(v) : !e.msg[0])
        abort();
    return 0;
}
