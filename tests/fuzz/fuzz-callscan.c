/* fuzz-callscan.c - any text as a model's answer, searched for tool calls.  build: scripts/fuzz
 * callscan */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include "libcommon/tools/call_scan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e = { .msg = "" };
    json_t *calls = call_scan((const char *)data, size, &e), *call;
    size_t i;
    if (!calls && !e.msg[0])
        abort();
    json_array_foreach(calls, i, call)
        if (!json_is_string(json_object_get(call, "name")) || !json_is_object(json_object_get(call, "arguments")))
            abort();
    json_decref(calls);
    return 0;
}
