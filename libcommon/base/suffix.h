/* suffix.h - compare the end of a string. */
#ifndef ZSE_BASE_SUFFIX_H
#define ZSE_BASE_SUFFIX_H

#include <string.h>
#include <strings.h>

static inline int ends_with(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

/* Like ends_with(), without regard to the case of ASCII letters. */
static inline int ends_with_any_case(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);
    return n >= m && strcasecmp(s + n - m, end) == 0;
}

#endif
