/* registry.c - find a model in the registry that is linked into the library. */
#include "libcommon/plan/registry.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "libcommon/base/json.h"

/* Let the assembler include the bytes of the registry's file in the program. */
__asm__(".section .rodata\n"
        ".global zse_registry_begin\n.global zse_registry_end\n"
        "zse_registry_begin:\n.incbin \"libcommon/plan/models.json\"\nzse_registry_end:\n"
        ".byte 0\n.previous\n");
extern const char zse_registry_begin[], zse_registry_end[];

json_t *registry_load(struct err *e)
{
    return js_parse("models.json", zse_registry_begin, (size_t)(zse_registry_end - zse_registry_begin), e);
}

static const char *string(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

/* "7B", "0.5b": the first name that ends in -7B; NULL for anything else. */
static const json_t *of_size(const json_t *registry, const char *size)
{
    const size_t digits = strspn(size, "0123456789."), n = strlen(size);
    const json_t *m;
    size_t i;
    if (digits == 0 || n != digits + 1 || (size[digits] != 'B' && size[digits] != 'b'))
        return NULL;
    json_array_foreach((json_t *)registry, i, m) {
        const char *name = string(m, "name");
        const size_t length = strlen(name);
        if (length > n && name[length - n - 1] == '-' && strcasecmp(name + length - n, size) == 0)
            return m;
    }
    return NULL;
}

const json_t *registry_find(const json_t *registry, const char *name, struct err *e)
{
    const json_t *part = NULL, *m;
    char several[300] = "";
    size_t i;
    int n = 0;
    if ((m = of_size(registry, name)))
        return m;
    json_array_foreach((json_t *)registry, i, m) {
        if (strcasecmp(string(m, "id"), name) == 0 || strcasecmp(string(m, "name"), name) == 0)
            return m;
        if (strlen(name) < 3 || !strcasestr(string(m, "id"), name))        /* "x" is part of Mixtral-8x7B */
            continue;
        part = m;
        const size_t at = strlen(several);
        snprintf(several + at, sizeof several - at, "%s%s", n++ ? ", " : "", string(m, "name"));
    }
    if (n == 1)
        return part;
    err_set(e, ERR_FORMAT, n ? "'%s' is part of several names: %s"
                             : "'%s' is no model of the registry%s; zse-info models list shows them", name, several);
    return NULL;
}

/* 1 if s begins with a size ("7B", "1.5b", "8x7B", "270m", "E4B") that is followed by the end or by
 * '-'. */
static int is_size(const char *s)
{
    s += *s == 'E' || *s == 'e';
    const size_t n = strspn(s, "0123456789.x");
    return n && isdigit((unsigned char)*s) && strchr("bBmM", s[n]) && s[n] && (!s[n + 1] || s[n + 1] == '-');
}

void registry_short_name(const json_t *m, char out[REGISTRY_SHORT])
{
    const char *name = string(m, "name");
    size_t n = 0;
    int sized = 0;
    for (const char *s = name; *s && n < REGISTRY_SHORT - 1; s++) {
        if (*s == '-' && !sized && is_size(s + 1)) {
            out[n++] = ':';
            sized = 1;
        } else if (*s != '-' || sized || n == 0 || !isalpha((unsigned char)s[-1]) || !isdigit((unsigned char)s[1])) {
            out[n++] = (char)tolower((unsigned char)*s);
        }
    }
    out[n] = '\0';
}

/* 1 if the names are equal, ignoring the case of letters, and '-', '_' and ':'. */
static int is_same_name(const char *a, const char *b)
{
    for (;; a++, b++) {
        a += strspn(a, "-_:");
        b += strspn(b, "-_:");
        if (tolower((unsigned char)*a) != tolower((unsigned char)*b))
            return 0;
        if (!*a)
            return 1;
    }
}

const json_t *registry_exact(const json_t *registry, const char *name)
{
    const json_t *m;
    size_t i;
    json_array_foreach((json_t *)registry, i, m)
        if (strcasecmp(string(m, "id"), name) == 0 || is_same_name(string(m, "name"), name))
            return m;
    return NULL;
}

const json_t *registry_family(const json_t *registry, const char *word)
{
    const size_t n = strlen(word);
    char short_name[REGISTRY_SHORT];
    const json_t *m;
    size_t i;
    json_array_foreach((json_t *)registry, i, m) {
        registry_short_name(m, short_name);
        if (strncasecmp(short_name, word, n) == 0 && short_name[n] == ':')
            return m;
    }
    return NULL;
}

const char *registry_size(double parameters)
{
    static const struct { double below; const char *name; } sizes[] = { { 1e9, "tiny" }, { 3e9, "small" },
        { 8e9, "medium" }, { 13e9, "large" }, { 34e9, "xlarge" } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (parameters < sizes[i].below)
            return sizes[i].name;
    return "xxl";
}
