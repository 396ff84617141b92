/* name_pattern.c - compile and match the regular expressions of an adapter's configuration. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "libcommon/import/name_pattern.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pcre2.h>

enum {
    MOST_PATTERNS = 65536,
    MOST_GROUPS = 64,                   /* each step of a match copies the ends of all groups */
    MOST_CODE = 64 << 20,               /* bytes of all compiled patterns */
    HEAP_KB = 32 << 10,                 /* of one match */
    FIRST_STEPS = 300, MATCH_STEPS = 300000, ALL_STEPS = 60000000,
};

static int is_plain(const char *text)
{
    for (; *text; text++)
        if (!isalnum((unsigned char)*text) && *text != '_' && *text != '.')
            return 0;
    return 1;
}

const char *name_patterns_add(struct name_patterns *list, const char *text, enum name_form form,
                              struct name_costs *costs, int *nomem)
{
    static const struct { const char *before, *after; uint32_t options; } forms[] = {
        [NAME_WHOLE] = { "", "", PCRE2_ANCHORED | PCRE2_ENDANCHORED },
        [NAME_END] = { "(?:.*\\.)?(?:", ")", PCRE2_ANCHORED | PCRE2_ENDANCHORED },
        [NAME_LAYER] = { ".*\\.", "\\.(\\d+)\\.", 0 },
    };
    char *regex;
    int code;
    uint32_t groups = 0;
    size_t bytes = 0;
    PCRE2_SIZE at;
    *nomem = 0;
    if (list->n == MOST_PATTERNS)
        return "too many entries";
    struct name_pattern *grown = realloc(list->p, (size_t)(list->n + 1) * sizeof *grown);
    if (grown)
        list->p = grown;
    if (!grown || asprintf(&regex, "%s%s%s", forms[form].before, text, forms[form].after) < 0) {
        *nomem = 1;
        return "out of memory";
    }
    struct name_pattern *p = &list->p[list->n];
    *p = (struct name_pattern){ .code = pcre2_compile((PCRE2_SPTR)regex, PCRE2_ZERO_TERMINATED,
                                                      PCRE2_UTF | forms[form].options, &code, &at, NULL) };
    free(regex);
    if (!p->code)
        return "is no regular expression";
    list->n++;
    pcre2_pattern_info(p->code, PCRE2_INFO_CAPTURECOUNT, &groups);
    pcre2_pattern_info(p->code, PCRE2_INFO_SIZE, &bytes);
    if (groups > MOST_GROUPS)
        return "has too many groups";
    if ((costs->bytes += bytes) > MOST_CODE)
        return "all patterns together are too large";
    if (form == NAME_END && is_plain(text) && !(p->plain = strdup(text))) {
        *nomem = 1;
        return "out of memory";
    }
    return NULL;
}

void name_patterns_free(struct name_patterns *list)
{
    for (int i = 0; i < list->n; i++) {
        pcre2_code_free(list->p[i].code);
        free(list->p[i].plain);
    }
    free(list->p);
}

/* Match a plain text against the end of a name, as its regular expression would.  Returns 1 if it
 * matches, 0 if not; -1 if the expression has to decide, because a dot met a byte of a multi-byte
 * character. */
static int match_plain(const char *plain, const char *name)
{
    const size_t n = strlen(name), m = strlen(plain);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] >= 0x80 || name[i] == '\n' || name[i] == '\r')
            return -1;
    if (n < m || (n > m && name[n - m - 1] != '.'))
        return 0;
    for (size_t i = 0; i < m; i++)
        if (plain[i] != '.' && plain[i] != name[n - m + i])
            return 0;
    return 1;
}

/* Each try has ten times as many steps as the one before.  The first has few, so that a large
 * configuration whose patterns match quickly stays below the bound on the steps of all matches. */
int name_pattern_match(const struct name_pattern *p, const char *name, struct name_costs *costs, long *number,
                       const char **why)
{
    costs->steps++;
    int rc = p->plain ? match_plain(p->plain, name) : -1;
    if (rc >= 0 && costs->steps <= ALL_STEPS)
        return rc;
    pcre2_match_data *found = pcre2_match_data_create_from_pattern(p->code, NULL);
    pcre2_match_context *limit = pcre2_match_context_create(NULL);
    rc = found && limit ? PCRE2_ERROR_MATCHLIMIT : PCRE2_ERROR_NOMEMORY;
    for (uint32_t steps = FIRST_STEPS; rc == PCRE2_ERROR_MATCHLIMIT && steps <= MATCH_STEPS; steps *= 10) {
        if ((costs->steps += steps) > ALL_STEPS)
            break;
        pcre2_set_match_limit(limit, steps);
        pcre2_set_heap_limit(limit, HEAP_KB);
        rc = pcre2_match(p->code, (PCRE2_SPTR)name, strlen(name), 0, 0, found, limit);
    }
    const PCRE2_SIZE *at = found ? pcre2_get_ovector_pointer(found) : NULL;
    if (rc > 1 && number && at[2] != PCRE2_UNSET)
        *number = strtol(name + at[2], NULL, 10);
    pcre2_match_context_free(limit);
    pcre2_match_data_free(found);
    if (rc >= 0 || rc == PCRE2_ERROR_NOMATCH)
        return rc >= 0;
    *why = rc == PCRE2_ERROR_NOMEMORY ? "out of memory"
         : rc != PCRE2_ERROR_MATCHLIMIT ? "a regular expression cannot be matched with this name"
         : costs->steps > ALL_STEPS ? "its regular expressions take too long"
                                    : "a regular expression takes too long on this name";
    return -1;
}
