/* fault.c - faults for the emulated programs: ZSE_TEST_FAULT=KERNEL:N makes the N-th launch of
 * KERNEL fail, ZSE_TEST_DEVICE_MEMORY=BYTES sets the size of device memory (gpu/rt/emulated.h). */
#include <stdio.h>
#include <stdlib.h>

#include "gpu/rt/emulated.h"

__attribute__((constructor)) static void ask_for_fault(void)
{
    const char *text = getenv("ZSE_TEST_FAULT"), *memory = getenv("ZSE_TEST_DEVICE_MEMORY");
    static char kernel[64];
    int n;
    if (text && sscanf(text, "%63[^:]:%d", kernel, &n) == 2)
        emulated_fail(kernel, n);
    if (memory)
        emulated_memory(strtoull(memory, NULL, 10));
}
