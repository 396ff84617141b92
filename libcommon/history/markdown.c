/* markdown.c - a conversation as Markdown, and Markdown in that form as a conversation.
 *
 * A line of a text that looks like one of our headings gets a backslash, which Markdown does not
 * show and reading removes, so the texts that are read are those that were written. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/history/internal.h"

#define SYSTEM_PROMPT "## System Prompt"
#define CONVERSATION "## Conversation"
enum { MESSAGE_TREE = 800 };            /* bytes of the object of a short message */

/* ---- lines ---- */

static size_t line_length(const char *line) { return strcspn(line, "\n"); }

static const char *next_line(const char *line)
{
    line += line_length(line);
    return *line ? line + 1 : line;
}

static int is_line(const char *line, const char *expected)
{
    size_t n = line_length(line);
    while (n && (line[n - 1] == '\r' || line[n - 1] == ' '))
        n--;
    return n == strlen(expected) && memcmp(line, expected, n) == 0;
}

/* The role if the line is the heading of a message, else -1. */
static int role_of(const char *line)
{
    char heading[32];
    if (strncmp(line, "### ", 4) != 0)
        return -1;
    for (int role = 0;; role++) {
        const char *name = message_role_name(role);
        snprintf(heading, sizeof heading, "### %c%s", *name & ~32, name + 1);
        if (is_line(line, heading))
            return role;
        if (message_role(name) != role)         /* numbers without a role have the name of another */
            return -1;
    }
}

static int is_heading(const char *line)
{
    return role_of(line) >= 0 || is_line(line, SYSTEM_PROMPT) || is_line(line, CONVERSATION);
}

/* Number of backslashes before a heading; -1: the line is none. */
static int escapes(const char *line)
{
    const size_t n = strspn(line, "\\");
    return is_heading(line + n) ? (int)n : -1;
}

/* ---- writing ---- */

static const char *text_in(const json_t *o, const char *key, const char *otherwise)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : otherwise;
}

static void put_line(FILE *f, const char *text)
{
    for (; *text; text++)
        fputc((unsigned char)*text < ' ' ? ' ' : *text, f);
}

static void put_text(FILE *f, const char *text)
{
    for (const char *line = text, *next; *line; line = next) {
        next = next_line(line);
        if (escapes(line) >= 0)
            fputc('\\', f);
        fwrite(line, 1, (size_t)(next - line), f);
    }
}

static void put_conversation(FILE *f, const json_t *c, const json_t *messages)
{
    size_t i;
    json_t *m;
    fputs("# ", f);
    put_line(f, text_in(c, "title", ""));
    fputs("\n\n**Model:** ", f);
    put_line(f, text_in(c, "model", "-"));
    fprintf(f, "  \n**Created:** %s  \n**Messages:** %" PRId64 "\n", text_in(c, "created_at", ""),
            (int64_t)json_array_size(messages));
    if (*text_in(c, "system_prompt", "")) {
        fputs("\n" SYSTEM_PROMPT "\n\n", f);
        put_text(f, text_in(c, "system_prompt", ""));
        fputc('\n', f);
    }
    fputs("\n" CONVERSATION "\n", f);
    json_array_foreach(messages, i, m) {
        const char *role = text_in(m, "role", "user");
        fprintf(f, "\n### %c%s\n\n", *role & ~32, role + 1);
        put_text(f, text_in(m, "content", ""));
        fputc('\n', f);
    }
}

char *markdown_write(const json_t *c, const json_t *messages, struct history_problem *p)
{
    char *out = NULL;
    size_t size;
    FILE *f = open_memstream(&out, &size);
    if (!f) {
        fault_nomem(p);
        return NULL;
    }
    put_conversation(f, c, messages);
    const int bad = ferror(f);
    if (fclose(f) == 0 && !bad)
        return out;
    free(out);
    fault_nomem(p);
    return NULL;
}

/* ---- reading ---- */

/* The text from after a heading to the next heading, without the blank lines around it that are
 * written.  New reference; NULL: out of memory. */
static json_t *read_text(const char *from, const char *end)
{
    if (from < end && is_line(from, ""))
        from = next_line(from);
    for (int i = *end ? 2 : 1; i && end > from && end[-1] == '\n'; i--)
        end--;
    char *text = malloc((size_t)(end - from) + 1), *to = text;
    if (!text)
        return NULL;
    for (const char *line = from, *next; line < end; line = next) {
        next = next_line(line);
        if (next > end)
            next = end;
        const int escaped = *line == '\\' && escapes(line) > 0;
        memcpy(to, line + escaped, (size_t)(next - line - escaped));
        to += next - line - escaped;
    }
    json_t *out = json_stringn(text, (size_t)(to - text));
    free(text);
    return out;
}

/* Set a member to the rest of a line such as "**Model:** tiny" if it has this label. */
static void read_label(json_t *out, const char *name, const char *line, const char *label)
{
    const size_t n = strlen(label);
    if (strncmp(line, label, n) != 0)
        return;
    const char *text = line + n + strspn(line + n, " ");
    size_t size = line_length(text);
    while (size && strchr(" \r", text[size - 1]))
        size--;
    if (size && !(size == 1 && *text == '-'))
        json_object_set_new(out, name, json_stringn(text, size));
}

/* Read everything before the messages into the fields of the conversation; returns the line after
 * its last heading, NULL if that is missing. */
static const char *read_head(const char *line, json_t *fields)
{
    int64_t ms;
    for (; *line && !is_line(line, SYSTEM_PROMPT) && !is_line(line, CONVERSATION); line = next_line(line)) {
        if (!json_object_get(fields, "title"))
            read_label(fields, "title", line, "# ");
        read_label(fields, "model", line, "**Model:**");
        read_label(fields, "created_at", line, "**Created:**");
    }
    if (time_parse(text_in(fields, "created_at", ""), &ms))
        json_object_del(fields, "created_at");
    if (is_line(line, SYSTEM_PROMPT)) {
        const char *from = line = next_line(line);
        while (*line && !is_line(line, CONVERSATION))
            line = next_line(line);
        json_object_set_new(fields, "system_prompt", read_text(from, line));
    }
    return *line ? next_line(line) : NULL;
}

/* Number of messages that begin at or after a line. */
static size_t count_messages(const char *line)
{
    size_t n = 0;
    for (; *line; line = next_line(line))
        n += role_of(line) >= 0;
    return n;
}

static json_t *read_messages(const char *line)
{
    json_t *out = json_array();
    while (*line && role_of(line) < 0)
        line = next_line(line);
    for (json_int_t id = 1; *line; id++) {
        const int role = role_of(line);
        const char *from = line = next_line(line);
        while (*line && role_of(line) < 0)
            line = next_line(line);
        json_t *m = json_pack("{s:I, s:o?, s:s, s:o}", "id", id, "parent_id", id > 1 ? json_integer(id - 1) : NULL,
                              "role", message_role_name(role), "content", read_text(from, line));
        if (!m || json_array_append_new(out, m)) {
            json_decref(out);
            return NULL;
        }
    }
    return out;
}

json_t *markdown_read(struct history *h, const char *text, struct history_problem *p)
{
    json_t *fields = json_object();
    const char *from = read_head(text, fields);
    const size_t n = from ? count_messages(from) : 0;
    json_t *out = NULL;
    if (!from)
        fault_set(p, HISTORY_BAD_VALUE, "content", "content: expected a line '" CONVERSATION
                  "', as an exported file has it");
    else if (n > HISTORY_MESSAGES)
        fault_set(p, HISTORY_QUOTA, "content", "content: %zu messages, expected at most %d", n, HISTORY_MESSAGES);
    else if (ask_memory(h, n * MESSAGE_TREE, p) == 0 &&
             !(out = json_pack("{s:s, s:i, s:O, s:o}", "format", HISTORY_FORMAT, "version", HISTORY_VERSION,
                               "conversation", fields, "messages", read_messages(from))))
        fault_nomem(p);
    json_decref(fields);
    return out;
}
