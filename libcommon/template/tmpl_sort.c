/* tmpl_sort.c - a stable merge sort. */
#include "libcommon/template/tmpl_sort.h"

#include <string.h>

static int less(struct vm *vm, struct val a, struct val b, int by_type)
{
    int comparable = (is_num(a) && is_num(b)) || (a.kind == K_STR && b.kind == K_STR);
    if (by_type && !comparable)
        return strcmp(val_type(a), val_type(b)) < 0;
    return val_compare(vm, a, b, "<") == -1;
}

/* Merge sort: n log n comparisons whatever the input, and stable. */
void val_sort(struct vm *vm, const struct val *keys, size_t n, int reverse, int by_type, size_t *order)
{
    size_t *from = order, *to = vm_array(vm, n + 1, sizeof *to);
    for (size_t i = 0; i < n; i++)
        order[i] = i;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t lo = 0; lo < n; lo += 2 * width) {
            size_t mid = lo + width < n ? lo + width : n, hi = lo + 2 * width < n ? lo + 2 * width : n;
            size_t i = lo, j = mid;
            for (size_t k = lo; k < hi; k++) {
                int take_right = j < hi && (i >= mid || (reverse ? less(vm, keys[from[i]], keys[from[j]], by_type)
                                                                 : less(vm, keys[from[j]], keys[from[i]], by_type)));
                to[k] = take_right ? from[j++] : from[i++];
            }
        }
        size_t *t = from;
        from = to;
        to = t;
    }
    if (from != order)
        memcpy(order, from, n * sizeof *order);
}
