/* peer_result.c - the contents of a tool's result as text for a model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/base/utf8.h"
#include "libcommon/mcp/internal.h"

struct result_body { char *data; size_t size, left; };         /* left: bytes beyond MCP_RESULT_MAX */

static void add(struct result_body *t, const char *s, size_t n)
{
    const size_t room = MCP_RESULT_MAX - t->size;
    size_t part = n < room ? n : room;
    if (t->left)
        part = 0;
    if (part < n && part)
        part -= utf8_incomplete(s, part);
    memcpy(t->data + t->size, s, part);
    t->size += part;
    t->left += n - part;
}

static void add_text(struct result_body *t, const json_t *v)
{
    if (t->size)
        add(t, "\n", 1);
    add(t, json_string_value(v), json_string_length(v));
}

/* An element of content. */
static void add_item(struct result_body *t, const json_t *item)
{
    const char *type = json_string_value(js_get(item, "type")), *mime = json_string_value(js_get(item, "mimeType")),
               *uri = json_string_value(js_get(item, "uri"));
    const json_t *resource = js_get(item, "resource"), *words = js_get(resource ? resource : item, "text");
    char line[400];
    if (json_is_string(words)) {
        add_text(t, words);
        return;
    }
    const int n = snprintf(line, sizeof line, "%s[%.20s%s%.80s%s%.200s]", t->size ? "\n" : "", type ? type : "?",
                           mime ? " " : "", mime ? mime : "", uri ? " " : "", uri ? uri : "");
    const size_t whole = n > 0 && (size_t)n < sizeof line ? (size_t)n : 0;
    add(t, line, whole);
}

char *result_text(const json_t *result, int *is_error, struct err *e)
{
    const char *type = json_string_value(js_get(result, "resultType"));
    const json_t *content = js_get(result, "content"), *structured = js_get(result, "structuredContent"), *item;
    struct result_body t = { .data = malloc(MCP_RESULT_MAX + 80) };
    size_t i;
    if (!t.data) {
        err_nomem(e, "result");
        return NULL;
    }
    *is_error = json_is_true(js_get(result, "isError"));
    if (type && strcmp(type, "complete") != 0) {
        err_set(e, ERR_UNSUPPORTED, "the server answers with '%.40s' (it asks for more input), which is not supported", type);
        free(t.data);
        return NULL;
    }
    json_array_foreach(content, i, item)
        add_item(&t, item);
    char *dump = json_array_size(content) == 0 && structured
                     ? json_dumps(structured, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    if (dump)
        add(&t, dump, strlen(dump));
    free(dump);
    if (t.left)
        t.size += (size_t)sprintf(t.data + t.size, "\n[%zu more byte%s cut off]", t.left,
                                 t.left == 1 ? " was" : "s were");
    t.data[t.size] = '\0';
    return t.data;
}
