/* plural.h - the plural "s" of a counted noun: err_set(e, code, "%d file%s", n, plural(n)). */
#ifndef ZSE_BASE_PLURAL_H
#define ZSE_BASE_PLURAL_H

#include <stdint.h>

static inline const char *plural(int64_t n) { return n == 1 ? "" : "s"; }
static inline const char *plural_are(int64_t n) { return n == 1 ? "is" : "are"; }

#endif
