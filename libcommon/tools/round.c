/* round.c - the messages of a round of calls. */
#include "libcommon/tools/round.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"

char *round_content(const char *text, size_t size, int is_error, size_t *n)
{
    const char *head = is_error ? "Error: " : "";
    const size_t kept = size <= ROUND_RESULT_MAX ? size : ROUND_RESULT_MAX - utf8_incomplete(text, ROUND_RESULT_MAX),
                 n_head = strlen(head);
    char *out = malloc(n_head + kept + 80);
    if (!out)
        return NULL;
    memcpy(out, head, n_head);
    memcpy(out + n_head, text, kept);
    *n = n_head + kept;
    out[*n] = '\0';
    if (kept < size)
        *n += (size_t)sprintf(out + *n, "\n[%zu more byte%s cut off]", size - kept,
                              size - kept == 1 ? " was" : "s were");
    return out;
}

json_t *round_message(const char *text, size_t size, const struct round_call *call, int n)
{
    json_t *calls = json_array(),
           *m = json_pack("{s:s, s:s%, s:o}", "role", "assistant", "content", text ? text : "", size, "tool_calls", calls);
    int bad = !m;
    for (int i = 0; i < n && !bad; i++)
        bad = json_array_append_new(calls, json_pack("{s:s, s:s, s:{s:s, s:s%}}", "id", call[i].id, "type", "function",
                                                     "function", "name", call[i].name, "arguments", call[i].arguments,
                                                     call[i].size)) != 0;
    if (!bad)
        return m;
    json_decref(m);
    return NULL;
}

json_t *round_result(const char *id, const char *text, size_t size, int is_error)
{
    size_t n = 0;
    char *content = round_content(text, size, is_error, &n);
    json_t *m = content ? json_pack("{s:s, s:s, s:s%}", "role", "tool", "tool_call_id", id, "content", content, n) : NULL;
    free(content);
    return m;
}
