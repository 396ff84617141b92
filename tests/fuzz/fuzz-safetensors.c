/* fuzz-safetensors.c - any bytes as a safetensors file: its index is refused or it lies inside the file. */
#include "tests/fuzz/fuzz.h"

#include "libcommon/import/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e;
    struct map m;
    struct source_tensor *t = NULL;
    int n = 0;
    volatile uint8_t sum = 0;
    if (map_open(&m, fuzz_file(data, size), &e) < 0)
        return 0;
    if (safetensors_index(&m, 0, &t, &n, &e) == 0)
        for (int i = 0; i < n; i++)
            if (t[i].size)
                sum = (uint8_t)(sum + t[i].data[0] + t[i].data[t[i].size - 1]);
    for (int i = 0; i < n; i++)
        free((char *)t[i].name);
    free(t);
    map_close(&m);
    return 0;
}
