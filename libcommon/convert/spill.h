/* big.h - memory for large buffers that come and go with every tensor, straight from the system and
 * straight back.
 *
 * From malloc they would end up in the heap (glibc raises its threshold for mapping whenever a
 * mapped block is freed), and the small allocations that stay between them keep it from
 * shrinking: 474 MB instead of 25 for a model of 1.5 billion weights. */
#ifndef ZSE_CONVERT_SPILL_H
#define ZSE_CONVERT_SPILL_H

#include <stddef.h>
#include <sys/mman.h>

#include "libcommon/base/err.h"

enum { SPILL_HEAD = 64 };         /* holds the size; what follows is 64-byte aligned and zero */

static inline void *spill_alloc(size_t size)
{
    size_t all = size + SPILL_HEAD;
    void *p = all < size ? MAP_FAILED : mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    *(size_t *)p = all;
    return (char *)p + SPILL_HEAD;
}

/* The same in a file without a name in the folder of the file `beside`, whose disk has room for
 * all of it from then on: its pages belong to the page cache, which the system writes out and
 * drops when memory is short.  NULL with *e. */
void *spill_file(const char *beside, size_t size, struct err *e);

/* Either kind. */
static inline void spill_free(void *p)
{
    if (p)
        munmap((char *)p - SPILL_HEAD, *(size_t *)(void *)((char *)p - SPILL_HEAD));
}

#endif
