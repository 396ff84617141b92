/* prompts.c - the prompts that the MCP server offers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/mcp/mcp_server.h"

enum { MAX_ARGUMENTS = 2 };

static const struct mcp_prompt {
    const char *name, *title, *description;
    struct { const char *name, *description; int required; const char *otherwise; } argument[MAX_ARGUMENTS];
    const char *text[MAX_ARGUMENTS];                    /* text[k] comes before the value of argument k */
} prompts[] = {
    { "summarize", "Summarize", "Summarize a text",
      { { "length", "for example: one paragraph", 0, "a few sentences" }, { "text", "the text", 1, NULL } },
      { "Summarize the following text in ", ". Keep names and numbers exact.\n\n" } },
    { "translate", "Translate", "Translate a text",
      { { "language", "the language to translate to", 1, NULL }, { "text", "the text", 1, NULL } },
      { "Translate the following text to ", ". Keep its formatting, and answer with the translation alone.\n\n" } },
    { "review", "Review code", "Look for faults in code",
      { { "language", "the programming language", 0, "its programming language" }, { "code", "the code", 1, NULL } },
      { "Review this code as an expert in ", ". List faults by severity, each with its line and a fix.\n\n" } },
};
enum { N_PROMPTS = sizeof prompts / sizeof *prompts };

json_t *mcp_prompts(void)
{
    json_t *list = json_array();
    int bad = !list;
    for (int i = 0; i < N_PROMPTS; i++) {
        const struct mcp_prompt *p = &prompts[i];
        json_t *arguments = json_array();
        for (int k = 0; k < MAX_ARGUMENTS; k++)
            bad |= json_array_append_new(arguments, json_pack("{s:s, s:s, s:b}", "name", p->argument[k].name, "description",
                                                              p->argument[k].description, "required",
                                                              p->argument[k].required));
        bad |= json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:o}", "name", p->name, "title", p->title,
                                                     "description", p->description, "arguments", arguments));
    }
    if (!bad)
        return list;
    json_decref(list);
    return NULL;
}

/* The value of argument k; NULL with *why. */
static const char *value_of(const struct mcp_prompt *p, int k, const json_t *arguments, char why[160])
{
    const json_t *v = json_object_get(arguments, p->argument[k].name);
    if (json_is_string(v))
        return json_string_value(v);
    if (!v && !p->argument[k].required)
        return p->argument[k].otherwise;
    snprintf(why, 160, "%s: %s, expected text", p->argument[k].name, v ? "not a text" : "missing");
    return NULL;
}

json_t *mcp_prompt(const char *name, const json_t *arguments, char why[160])
{
    const struct mcp_prompt *p = prompts;
    const char *value[MAX_ARGUMENTS];
    size_t size = 1;
    while (p < prompts + N_PROMPTS && strcmp(p->name, name) != 0)
        p++;
    if (p == prompts + N_PROMPTS) {
        snprintf(why, 160, "there is no prompt '%.80s'", name);
        return NULL;
    }
    for (int k = 0; k < MAX_ARGUMENTS; k++) {
        if (!(value[k] = value_of(p, k, arguments, why)))
            return NULL;
        size += strlen(value[k]) + strlen(p->text[k]);
    }
    char *text = malloc(size);
    json_t *out = NULL;
    *why = '\0';
    if (text) {
        snprintf(text, size, "%s%s%s%s", p->text[0], value[0], p->text[1], value[1]);
        out = json_pack("{s:s, s:[{s:s, s:{s:s, s:s}}]}", "description", p->description, "messages", "role", "user",
                        "content", "type", "text", "text", text);
    }
    free(text);
    return out;
}
