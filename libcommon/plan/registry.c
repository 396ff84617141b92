/* registry.c - find a model in the registry that is linked into the library. */
#include "libcommon/plan/registry.h"

#include <stdio.h>
#include <string.h>

#include "libcommon/base/json.h"

/* The assembler includes the file as it is. */
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

const char *registry_size(double parameters)
{
    static const struct { double below; const char *name; } sizes[] = { { 1e9, "tiny" }, { 3e9, "small" },
        { 8e9, "medium" }, { 13e9, "large" }, { 34e9, "xlarge" } };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (parameters < sizes[i].below)
            return sizes[i].name;
    return "xxl";
}
