/* call_guided.c - read vLLM's fields for structured output: guided_json, guided_regex,
 * guided_choice, guided_grammar, and structured_outputs with the same members.  They become the
 * fields response_format, regex or grammar of the body. */
#include "libcommon/serve/api/internal.h"

#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/grammar/grammar.h"

enum { SCHEMA_TEXT = 32 << 10,          /* largest schema written as a string, in bytes */
       TREE_FACTOR = 90 };              /* bytes of a JSON tree for each byte of its text: see prescan.h */

/* Set a field of the body.  It is an error if another constraint is set already.  Takes ownership
 * of value. */
static int set_field(struct call *c, const char *param, const char *field, json_t *value, struct problem *pr)
{
    static const char *const others[] = { "response_format", "regex", "grammar" };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        const json_t *v = js_get(c->json, others[i]);
        const char *type = json_string_value(js_get(v, "type"));
        if (!v || (type && strcmp(type, "text") == 0))
            continue;
        json_decref(value);
        return problem_set(pr, 400, param, NULL, "%s: the answer is constrained already, by %s or another field", param,
                           others[i]);
    }
    return json_object_set_new(c->json, field, value) == 0 ? 0 : problem_nomem(pr);
}

static int set_schema(struct call *c, const char *param, json_t *v, struct problem *pr)
{
    struct err e;
    const size_t size = json_string_length(v);
    json_t *schema = json_is_string(v) ? NULL : json_incref(v);
    if (size > SCHEMA_TEXT)
        return problem_set(pr, 400, param, "out_of_range", "%s: a text of %zu bytes, expected an object, or at most %d",
                           param, size, SCHEMA_TEXT);
    if (call_keep(c, TREE_FACTOR * size, pr) != 0)
        return -1;
    if (json_is_string(v) && !(schema = js_parse(param, json_string_value(v), size, &e)))
        return problem_set(pr, 400, param, "invalid_json", "%s", e.msg);
    if (json_is_object(schema))
        return set_field(c, param, "response_format",
                         json_pack("{s:s, s:o}", "type", "json_schema", "schema", schema), pr);
    json_decref(schema);
    return problem_set(pr, 400, param, "invalid_type", "%s: found %s, expected a JSON Schema", param, js_kind(v));
}

/* Translate a list of choices into a regular expression. */
static int set_choice(struct call *c, const char *param, json_t *v, struct problem *pr)
{
    struct buf b = { 0 };
    const json_t *text;
    size_t i, bytes = 1;                        /* size of "(a|b)" without backslashes */
    json_array_foreach(v, i, text)
        bytes += json_string_length(text) + 1;
    if (bytes == 1)
        return problem_set(pr, 400, param, "invalid_type", "%s: expected a list of texts", param);
    if (bytes > GRAMMAR_REGEX_BYTES)            /* refuse it before it is built, because this runs in the loop */
        return problem_set(pr, 400, param, "out_of_range",
                           "%s: a list of %zu bytes, with a byte more for each text, expected at most %d", param,
                           bytes - 1, GRAMMAR_REGEX_BYTES - 1);
    if (call_keep(c, 6 * bytes, pr) != 0)
        return -1;
    json_array_foreach(v, i, text) {
        const char *s = json_string_value(text);
        if (!s || !*s || strlen(s) != json_string_length(text)) {
            buf_release(&b);
            return problem_set(pr, 400, param, "invalid_type", "%s: number %zu is no text", param, i);
        }
        buf_str(&b, i ? "|" : "(");
        for (; *s; s++) {
            if (strchr("\\^$.|?*+()[]{}", *s))
                buf_str(&b, "\\");
            buf_add(&b, s, 1);
        }
    }
    buf_str(&b, ")");
    json_t *regex = conversation_string(&b);
    buf_release(&b);
    return set_field(c, param, "regex", regex, pr);
}

static int apply(struct call *c, const char *param, const char *kind, json_t *v, struct problem *pr)
{
    if (strcmp(kind, "json") == 0)
        return set_schema(c, param, v, pr);
    if (strcmp(kind, "choice") == 0)
        return set_choice(c, param, v, pr);
    if (strcmp(kind, "regex") == 0 || strcmp(kind, "grammar") == 0)
        return set_field(c, param, kind, json_incref(v), pr);
    if (strcmp(kind, "json_object") == 0 && json_is_true(v))
        return set_field(c, param, "response_format", json_pack("{s:s}", "type", "json_object"), pr);
    if (json_is_false(v))               /* accept an option that is off, even one that we do not support */
        return 0;
    return problem_set(pr, 400, param, "unsupported_parameter",
                       "%s: %.40s: expected json, regex, choice, grammar or json_object", param, kind);
}

int call_guided(struct call *c, struct problem *pr)
{
    static const char *const names[][2] = { { "guided_json", "json" }, { "guided_regex", "regex" },
                                            { "guided_choice", "choice" }, { "guided_grammar", "grammar" } };
    json_t *all = js_get(c->json, "structured_outputs"), *v;
    const char *key;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((v = js_get(c->json, names[i][0])) && apply(c, names[i][0], names[i][1], v, pr) != 0)
            return -1;
    if (all && !json_is_object(all))
        return problem_set(pr, 400, "structured_outputs", "invalid_type",
                           "structured_outputs: found %s, expected an object", js_kind(all));
    json_object_foreach(all, key, v)
        if (!json_is_null(v) && apply(c, "structured_outputs", key, v, pr) != 0)
            return -1;
    return 0;
}
