/* tmpl_sort.h - the stable sort behind sort, dictsort, groupby and sort_keys. */
#ifndef ZSE_TEMPLATE_TMPL_SORT_H
#define ZSE_TEMPLATE_TMPL_SORT_H

#include "libcommon/template/tmpl_value.h"

/* Fill order[n] so that keys[order[0]] <= keys[order[1]] <= ...; equal keys keep their order,
 * also when reversed.  Fails on keys that cannot be compared, unless by_type sorts those by the
 * names of their types. */
void val_sort(struct vm *vm, const struct val *keys, size_t n, int reverse, int by_type, size_t *order);

#endif
