/* fuzz.h - pass the bytes of a fuzzer to a function that takes a file name: a file in memory, under
 * /proc/self/fd. */
#ifndef ZSE_TESTS_FUZZ_H
#define ZSE_TESTS_FUZZ_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int fuzz_fd = -1;

/* Returns the same name each time, with data as the file's contents. */
static inline const char *fuzz_file(const void *data, size_t size)
{
    static char path[64];
    if (fuzz_fd < 0) {
        fuzz_fd = memfd_create("fuzz", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fuzz_fd);
    }
    if (ftruncate(fuzz_fd, 0) < 0 || pwrite(fuzz_fd, data, size, 0) != (ssize_t)size)
        abort();
    return path;
}

#endif
