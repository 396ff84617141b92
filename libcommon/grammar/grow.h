/* grow.h - arrays that grow. */
#ifndef ZSE_GRAMMAR_GROW_H
#define ZSE_GRAMMAR_GROW_H

#include <stdint.h>
#include <stdlib.h>

/* Grow *p, which has room for *room elements of `size` bytes, to at least `need` elements.  Returns
 * 0, or -1 if memory ran out; nothing has changed then. */
static inline int grow(void **p, uint32_t *room, uint32_t need, size_t size)
{
    if (need <= *room)
        return 0;
    const uint32_t twice = *room > UINT32_MAX / 2 ? UINT32_MAX : *room * 2;
    const uint32_t n = twice > need ? twice : need > UINT32_MAX - 64 ? need : need + 64;
    void *q = realloc(*p, n * size);
    if (!q)
        return -1;
    *p = q;
    *room = n;
    return 0;
}

#endif
