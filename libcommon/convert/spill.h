/* spill.h - large buffers that are allocated and freed with every tensor, mapped from anonymous
 * memory or from a spill file.
 *
 * malloc would put such buffers into the heap (glibc raises its mmap threshold whenever a mapped
 * block is freed), and small allocations between them would keep the heap from shrinking: it
 * took 474 MB instead of 25 for a model of 1.5 billion weights. */
#ifndef ZSE_CONVERT_SPILL_H
#define ZSE_CONVERT_SPILL_H

#include <stddef.h>
#include <sys/mman.h>

#include "libcommon/base/err.h"

enum { SPILL_HEAD = 64 };         /* holds the size; the buffer after it is 64-byte aligned and zero */

static inline void *spill_alloc(size_t size)
{
    size_t all = size + SPILL_HEAD;
    void *p = all < size ? MAP_FAILED : mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    *(size_t *)p = all;
    return (char *)p + SPILL_HEAD;
}

/* Returns a buffer in a spill file: an unnamed file in the folder of the file `beside`, fully
 * allocated on disk.  Its pages are page cache, which the kernel writes back and drops when memory
 * is short.  NULL with *e. */
void *spill_file(const char *beside, size_t size, struct err *e);

/* Free either kind. */
static inline void spill_free(void *p)
{
    if (p)
        munmap((char *)p - SPILL_HEAD, *(size_t *)(void *)((char *)p - SPILL_HEAD));
}

#endif
