/* tmpl_filters.h - rows for the tables of filters, tests, methods and global functions. */
#ifndef ZSE_TEMPLATE_TMPL_FILTERS_H
#define ZSE_TEMPLATE_TMPL_FILTERS_H

#include "libcommon/template/tmpl_value.h"

/* The head of a function for a row of struct builtin.  Most functions use only some parameters. */
#define FILTER(name) struct val name(struct vm *vm __attribute__((unused)), struct val in __attribute__((unused)), \
    const struct val *a __attribute__((unused)), const struct args *args __attribute__((unused)), \
        int variant __attribute__((unused)))

const struct builtin *builtin_find(const struct builtin *table, size_t n, const char *name, size_t size);
/* The filters of tmpl_sequences.c; NULL: none has this name. */
const struct builtin *tmpl_sequence_filter(const char *name, size_t size);

#endif
