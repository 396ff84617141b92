/* fault.c - faults for the emulated programs: ZSE_TEST_FAULT=KERNEL:N[@DEVICE] makes the N-th
 * launch of KERNEL fail, ZSE_TEST_DEVICES=N sets the number of devices,
 * ZSE_TEST_DEVICE_MEMORY=BYTES the size of their memory (gpu/rt/emulated.h). */
#include <stdio.h>
#include <stdlib.h>

#include "gpu/rt/emulated.h"

__attribute__((constructor)) static void ask_for_fault(void)
{
    const char *text = getenv("ZSE_TEST_FAULT"), *memory = getenv("ZSE_TEST_DEVICE_MEMORY"),
               *devices = getenv("ZSE_TEST_DEVICES");
    static char kernel[64];
    int n, device = 0;
    if (text && sscanf(text, "%63[^:]:%d@%d", kernel, &n, &device) >= 2)
        emulated_fail_on(device, kernel, n);
    if (devices)
        emulated_devices(atoi(devices));
    if (memory)
        emulated_memory(strtoull(memory, NULL, 10));
}
