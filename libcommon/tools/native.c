/* native.c - the table of the built-in tools, and the check of their arguments. */
#include "libcommon/tools/native.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/tools/internal.h"

const struct native_tool native_tools[] = {
    { "calculator", "Compute an arithmetic expression: + - * / // % ** ( ), factorial with !, sqrt sin cos tan asin acos atan log (base 10) ln log2 exp abs min max round floor ceil, pi, e. Angles are radians.",
      "{\"type\":\"object\",\"properties\":{\"expression\":{\"type\":\"string\",\"description\":\"for example sqrt(16) + 2**10\"}},"
      "\"required\":[\"expression\"],\"additionalProperties\":false}", run_calculator },
    { "datetime", "Tell the current date and time in a time zone, or convert a Unix time.",
      "{\"type\":\"object\",\"properties\":{"
      "\"operation\":{\"type\":\"string\",\"enum\":[\"now\",\"date\",\"time\",\"timestamp\",\"weekday\"],\"description\":\"now: date, time and offset; timestamp: seconds since 1970 (default: now)\"},"
      "\"timezone\":{\"type\":\"string\",\"description\":\"a name such as America/New_York, an offset such as +02:00, or UTC (the default)\"},"
      "\"timestamp\":{\"type\":\"integer\",\"description\":\"a Unix time to use instead of the current time\"}},"
      "\"additionalProperties\":false}", run_datetime },
    { "parse_json", "Parse a JSON text and extract the value at a path.",
      "{\"type\":\"object\",\"properties\":{\"json\":{\"type\":\"string\",\"description\":\"the JSON text\"},"
      "\"path\":{\"type\":\"string\",\"description\":\"for example data.items[0].name; items[*].id gives a list; [-1] is the last element; without it the whole value\"}},"
      "\"required\":[\"json\"],\"additionalProperties\":false}", run_parse_json },
    { "string_ops", "Transform or examine a text, by Unicode characters.",
      "{\"type\":\"object\",\"properties\":{"
      "\"operation\":{\"type\":\"string\",\"enum\":[\"upper\",\"lower\",\"title\",\"capitalize\",\"trim\",\"reverse\",\"length\",\"words\",\"split\",\"join\",\"replace\",\"count\",\"find\",\"substring\",\"repeat\"]},"
      "\"text\":{\"type\":\"string\",\"description\":\"the text; every operation but join needs it\"},"
      "\"separator\":{\"type\":\"string\",\"description\":\"split: where to cut (default: white space); join: what to put between (default: nothing)\"},"
      "\"items\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"description\":\"join: the texts\"},"
      "\"old\":{\"type\":\"string\",\"description\":\"replace, count, find: the text to look for\"},"
      "\"new\":{\"type\":\"string\",\"description\":\"replace: the text to put in its place\"},"
      "\"start\":{\"type\":\"integer\",\"description\":\"substring: the first character, from 0; negative: from the end\"},"
      "\"end\":{\"type\":\"integer\",\"description\":\"substring: the character behind the last (default: the end)\"},"
      "\"times\":{\"type\":\"integer\",\"description\":\"repeat: how often\"}},"
      "\"required\":[\"operation\"],\"additionalProperties\":false}", run_string_ops },
};
const int n_native_tools = sizeof native_tools / sizeof *native_tools;

const struct native_tool *native_find(const char *name)
{
    for (int i = 0; i < n_native_tools; i++)
        if (strcmp(native_tools[i].name, name) == 0)
            return &native_tools[i];
    return NULL;
}

json_t *native_mcp_tool(const struct native_tool *t)
{
    json_t *schema = json_loads(t->parameters, 0, NULL),
           *hints = json_pack("{s:b, s:b, s:b}", "readOnlyHint", 1, "destructiveHint", 0, "openWorldHint", 0);
    return json_pack("{s:s, s:s, s:o, s:o}", "name", t->name, "description", t->description, "inputSchema", schema,
                     "annotations", hints);
}

json_t *native_function(const struct native_tool *t)
{
    return json_pack("{s:s, s:{s:s, s:s, s:o}}", "type", "function", "function", "name", t->name, "description",
                     t->description, "parameters", json_loads(t->parameters, 0, NULL));
}

json_t *native_mcp_tools(void)
{
    json_t *list = json_array();
    int bad = !list;
    for (int i = 0; i < n_native_tools; i++)
        bad |= json_array_append_new(list, native_mcp_tool(&native_tools[i]));
    if (!bad)
        return list;
    json_decref(list);
    return NULL;
}

/* ---- text ---- */

void text_add(struct tool_text *t, const char *s, size_t n)
{
    if (t->error)
        return;
    if (n > NATIVE_MAX_OUTPUT - t->size) {
        t->error = ERR_LIMIT;
        return;
    }
    if (t->size + n + 1 > t->room) {
        const size_t room = 2 * (t->size + n) + 64;
        char *data = realloc(t->data, room);
        if (!data) {
            t->error = ERR_MEMORY;
            return;
        }
        t->data = data;
        t->room = room;
    }
    memcpy(t->data + t->size, s, n);
    t->size += n;
    t->data[t->size] = '\0';
}

char *text_finish(struct tool_text *t, struct err *e)
{
    text_add(t, "", 0);                         /* an empty text has a '\0', too */
    if (t->error == ERR_LIMIT)
        err_set(e, ERR_LIMIT, "the result has more than %d bytes", NATIVE_MAX_OUTPUT);
    else if (t->error)
        err_nomem(e, "result");
    if (!t->error)
        return t->data;
    free(t->data);
    return NULL;
}

/* ---- arguments ---- */

static int has_type(const json_t *v, const char *type)
{
    return strcmp(type, "string") == 0 ? json_is_string(v) : strcmp(type, "integer") == 0 ? json_is_integer(v) :
           strcmp(type, "number") == 0 ? json_is_number(v) : strcmp(type, "boolean") == 0 ? json_is_boolean(v) :
           strcmp(type, "array") == 0 ? json_is_array(v) : strcmp(type, "object") == 0 ? json_is_object(v) : 1;
}

static int check_value(const char *name, const json_t *schema, const json_t *v, struct err *e)
{
    const char *type = json_string_value(json_object_get(schema, "type"));
    const json_t *choices = json_object_get(schema, "enum"), *item;
    const json_t *items = json_object_get(schema, "items");
    size_t i;
    int found = choices == NULL;
    if (type && !has_type(v, type))
        return err_set(e, ERR_FORMAT, "%.60s: found %s, expected a value of type %s", name, js_kind(v), type);
    json_array_foreach(choices, i, item)
        found |= json_equal(item, v);
    if (!found) {
        char *list = json_dumps(choices, 0);
        err_set(e, ERR_FORMAT, "%.60s: '%.60s', expected one of %s", name, json_is_string(v) ? json_string_value(v) : "?",
                list ? list : "");
        free(list);
        return -1;
    }
    if (items)
        json_array_foreach(v, i, item)
            if (check_value(name, items, item, e) != 0)
                return -1;
    return 0;
}

int native_check(const json_t *schema, const json_t *arguments, struct err *e)
{
    const json_t *properties = json_object_get(schema, "properties"), *name;
    union { const json_t *in; json_t *out; } u = { .in = arguments };
    const char *key;
    json_t *v;
    size_t i;
    if (!json_is_object(arguments))
        return err_set(e, ERR_FORMAT, "arguments: found %s, expected an object", js_kind(arguments));
    json_array_foreach(json_object_get(schema, "required"), i, name)
        if (!js_get(arguments, json_string_value(name)))
            return err_set(e, ERR_FORMAT, "%s: missing", json_string_value(name));
    json_object_foreach(u.out, key, v) {
        const json_t *form = json_object_get(properties, key);
        if (!form && json_is_false(json_object_get(schema, "additionalProperties")))
            return err_set(e, ERR_FORMAT, "%.60s: there is no such argument", key);
        if (form && !json_is_null(v) && check_value(key, form, v, e) != 0)
            return -1;
    }
    return 0;
}

char *native_run(const struct native_tool *t, const struct native_env *env, const json_t *arguments, struct err *e)
{
    json_t *schema = js_parse(t->name, t->parameters, strlen(t->parameters), e);
    const int rc = schema ? native_check(schema, arguments, e) : -1;
    json_decref(schema);
    return rc == 0 ? t->run(env, arguments, e) : NULL;
}
