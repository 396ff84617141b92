/* zero_byte.c - refuse U+0000 in the strings of a body that are read as C strings, such as names,
 * roles and patterns of vLLM's fields: they would end at it. */
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/api/internal.h"

/* WORD: a string that must not have U+0000.  TEXT: a string, or a list of strings, that may have
 * it; objects have fields of their own.  VALUE: any JSON value, whose strings may have it. */
enum zero_kind { WORD, TEXT, VALUE };

static enum zero_kind kind_of(const char *key)
{
    static const char *const texts[] = { "content", "text", "prompt", "input", "output", "instructions", "system",
                                         "query", "documents", "queries", "text_1", "text_2", "reasoning",
                                         "reasoning_content", "thinking", "description", "title" };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (strcmp(key, texts[i]) == 0)
            return TEXT;
    return strcmp(key, "arguments") == 0 ? VALUE : WORD;
}

/* The key of a WORD in v, which stands at this key, that has U+0000; NULL: none. */
static const char *find(const json_t *v, const char *key, enum zero_kind kind)
{
    union { const json_t *in; json_t *out; } u = { .in = v };  /* jansson's iterators take no pointers to const */
    const char *name, *found = NULL;
    json_t *inside;
    size_t i;
    if (json_is_string(v))
        return kind == WORD && strlen(json_string_value(v)) != json_string_length(v) ? key : NULL;
    json_array_foreach(v, i, inside)
        if ((found = find(inside, key, kind == TEXT && json_is_object(inside) ? WORD : kind)))
            return found;
    /* an object as input has the arguments of a call, in Anthropic's form */
    const int any = kind == VALUE || (kind == TEXT && strcmp(key, "input") == 0);
    json_object_foreach(u.out, name, inside)
        if ((found = find(inside, name, any ? VALUE : kind_of(name))))
            return found;
    return NULL;
}

int zero_byte_check(const json_t *body, struct problem *pr)
{
    union { const json_t *in; json_t *out; } u = { .in = body };
    const char *name;
    json_t *v;
    json_object_foreach(u.out, name, v) {
        const char *found = find(v, name, kind_of(name));
        if (found)
            return problem_set(pr, 400, name, "invalid_type", "%.80s%s%.80s: found a zero byte, which only texts may have",
                               name, found == name ? "" : ": ", found == name ? "" : found);
    }
    return 0;
}
