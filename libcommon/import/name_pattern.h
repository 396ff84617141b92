/* name_pattern.h - regular expressions of an adapter's configuration, matched against names of
 * modules.  They come with the adapter, so memory and time of all matches together are bounded. */
#ifndef ZSE_IMPORT_NAME_PATTERN_H
#define ZSE_IMPORT_NAME_PATTERN_H

#include <stddef.h>
#include <stdint.h>

struct pcre2_real_code_8;

struct name_pattern {
    struct pcre2_real_code_8 *code;
    char *plain;                        /* the text, if it has only letters, digits, '_' and '.'; else NULL */
    double value;                       /* of the caller */
};
struct name_patterns { struct name_pattern *p; int n; };

/* The bytes of compiled code and the steps of matches of all patterns of one configuration.  Begins
 * as zeros. */
struct name_costs { size_t bytes; int64_t steps; };

/* NAME_WHOLE: the pattern matches a whole name; NAME_END: a whole name, or what follows a dot in
 * it; NAME_LAYER: the name of a list of layers, in ".NAME.NUMBER." inside a longer name. */
enum name_form { NAME_WHOLE, NAME_END, NAME_LAYER };

/* Append a pattern.  NULL, or why it is refused; "out of memory" with *nomem 1. */
const char *name_patterns_add(struct name_patterns *list, const char *text, enum name_form form,
                              struct name_costs *costs, int *nomem);
void name_patterns_free(struct name_patterns *list);
/* Whether a pattern matches: 1, and the number of the layer if number is not NULL; 0; -1 with
 * *why. */
int name_pattern_match(const struct name_pattern *p, const char *name, struct name_costs *costs, long *number,
                       const char **why);

#endif
