/* chat_history.c - record conversations in the chat history of this machine, which zse-serve shows,
 * too; reopen and list them. */
#include "cmd/zse-chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "cmd/home.h"
#include "libcommon/history/history.h"

static const char prog[] = "zse-chat";
#define OWNER ""                        /* owner of conversations of this machine */

static struct history *open_file(int read_only, struct history_problem *p)
{
    char *folder = home_folder(NULL, &p->e);
    if (!folder)
        return NULL;
    struct history *h = read_only ? history_open_read(folder, p) : history_open(folder, NULL, p);
    free(folder);
    return h;
}

/* Say once why nothing is recorded any more. */
static void give_up(struct chat_history *c, const struct history_problem *p)
{
    cli_note(prog, "the conversation is not recorded from here on: %s", p->e.msg);
    c->off = 1;
}

/* ---- recording ---- */

static const char *system_of(const json_t *messages)
{
    const json_t *first = json_array_get(messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    return role && strcmp(role, "system") == 0 ? json_string_value(json_object_get(first, "content")) : NULL;
}

static int same_text(const char *a, const char *b) { return a == b || (a && b && strcmp(a, b) == 0); }

/* The id that zse-serve gives a model by default: its file's name without the ending. */
static json_t *model_id(const char *model)
{
    const char *slash = strrchr(model, '/'), *base = slash && slash[1] ? slash + 1 : model;
    size_t n = strlen(base);
    if (n > 4 && strcmp(base + n - 4, ".zse") == 0)
        n -= 4;
    else if (n > 5 && strcmp(base + n - 5, ".gguf") == 0)
        n -= 5;
    return json_stringn(base, n);
}

/* Create the conversation, or bring its system prompt up to date. */
static int sync_conversation(struct chat_history *c, const char *system, const char *model, struct history_problem *p)
{
    if (c->id[0] && same_text(system, c->system))
        return 0;
    json_t *fields = c->id[0] ? json_pack("{s:s?}", "system_prompt", system)
                              : json_pack("{s:s?, s:o*}", "system_prompt", system, "model", model_id(model));
    json_t *out = c->id[0] ? history_update(c->h, OWNER, c->id, fields, p) : history_create(c->h, OWNER, fields, p);
    json_decref(fields);
    if (!out)
        return -1;
    snprintf(c->id, sizeof c->id, "%s", json_string_value(json_object_get(out, "id")));
    json_decref(out);
    free(c->system);
    c->system = system ? strdup(system) : NULL;
    return 0;
}

/* The metadata of a message: calls of tools and reasoning, which the web interface shows besides
 * the text.  NULL: there are none. */
static json_t *metadata_of(const json_t *message, const struct answer *a)
{
    json_t *m = json_object(), *parts = json_object_get(message, "parts");
    if (parts)
        json_object_set(m, "parts", parts);
    if (a && a->reasoning_size)
        json_object_set_new(m, "thinking", json_stringn(a->reasoning, a->reasoning_size));
    if (json_object_size(m))
        return m;
    json_decref(m);
    return NULL;
}

static int add_message(struct chat_history *c, const json_t *message, const struct answer *a, struct history_problem *p)
{
    json_t *fields = json_pack("{s:O, s:O}", "role", json_object_get(message, "role"), "content",
                               json_object_get(message, "content"));
    if (a) {
        json_object_set_new(fields, "tokens", json_integer(a->stats.n_generated));
        json_object_set_new(fields, "latency_ms", json_real((a->stats.first_token_s + a->stats.decode_s) * 1e3));
    }
    json_t *metadata = metadata_of(message, a);
    if (metadata)
        json_object_set_new(fields, "metadata", metadata);
    json_t *out = history_add(c->h, OWNER, c->id, fields, p);
    json_decref(fields);
    if (!out)
        return -1;
    c->last = json_integer_value(json_object_get(out, "id"));
    json_decref(out);
    return 0;
}

/* Delete the recorded messages from number i of the active branch on. */
static int remove_from(struct chat_history *c, size_t i, struct history_problem *p)
{
    struct history_page page = { .limit = 1000, .active = 1 };
    c->last = 0;
    for (size_t at = 0;;) {
        json_t *part = history_messages(c->h, OWNER, c->id, &page, p), *list = json_object_get(part, "messages"), *m;
        const int more = json_is_true(json_object_get(part, "more"));
        int64_t first = 0;
        size_t k;
        json_array_foreach(list, k, m) {
            const int64_t id = json_integer_value(json_object_get(m, "id"));
            if (at + k == i)
                first = id;
            else if (at + k < i)
                c->last = page.after = id;
        }
        at += json_array_size(list);
        json_decref(part);
        if (!part)
            return -1;
        if (first)
            return history_remove(c->h, OWNER, c->id, first, p) < 0 ? -1 : 0;
        if (!more)
            return 0;
    }
}

static int sync_messages(struct chat_history *c, const json_t *messages, const struct answer *a,
                         struct history_problem *p)
{
    const size_t n = json_array_size(messages), first = system_of(messages) != NULL;
    if (first + c->n_recorded > n) {            /* the last turn failed, or was taken back */
        if (remove_from(c, n - first, p) != 0)
            return -1;
        c->n_recorded = n - first;
    }
    for (; first + c->n_recorded < n; c->n_recorded++)
        if (add_message(c, json_array_get(messages, first + c->n_recorded),
                        first + c->n_recorded + 1 == n ? a : NULL, p))
            return -1;
    return 0;
}

void chat_history_sync(struct chat_history *c, const json_t *messages, const char *model, const struct answer *a)
{
    struct history_problem p = { 0 };
    const size_t first = system_of(messages) != NULL;
    if (c->off || (!c->id[0] && json_array_size(messages) == first))
        return;
    if (!c->h && !(c->h = open_file(0, &p))) {
        give_up(c, &p);
        return;
    }
    history_set_deadline(c->h, 10);
    if (sync_conversation(c, system_of(messages), model, &p) || sync_messages(c, messages, a, &p))
        give_up(c, &p);
    else if (json_array_size(messages) == first) {      /* its only turn failed: remove the conversation */
        history_delete(c->h, OWNER, c->id, &p);
        chat_history_new(c);
    }
}

void chat_history_new(struct chat_history *c)
{
    c->id[0] = '\0';
    c->n_recorded = 0;
    free(c->system);
    c->system = NULL;
}

void chat_history_close(struct chat_history *c)
{
    chat_history_new(c);
    history_close(c->h);
    c->h = NULL;
}

int chat_history_title(struct chat_history *c, const char *title, struct err *e)
{
    struct history_problem p = { 0 };
    if (c->off || !c->id[0])
        return err_set(e, ERR_UNSUPPORTED, "%s", c->off ? "the conversation is not recorded"
                                                        : "the conversation has not begun yet");
    json_t *fields = json_pack("{s:s}", "title", title);
    history_set_deadline(c->h, 10);
    json_t *out = fields ? history_update(c->h, OWNER, c->id, fields, &p) : NULL;
    json_decref(fields);
    if (!out)
        return err_set(e, ERR_FORMAT, "%s", fields ? p.e.msg : "that is not UTF-8");
    json_decref(out);
    return 0;
}

/* ---- reopening ---- */

/* Add the messages of the active branch to `all`. */
static int read_branch(struct chat_history *c, json_t *all, struct history_problem *p)
{
    for (struct history_page page = { .limit = 1000, .active = 1 };;) {
        json_t *part = history_messages(c->h, OWNER, c->id, &page, p), *list = json_object_get(part, "messages"), *m;
        const int more = json_is_true(json_object_get(part, "more"));
        size_t i;
        json_array_foreach(list, i, m) {
            page.after = c->last = json_integer_value(json_object_get(m, "id"));
            json_t *one = json_pack("{s:O, s:O}", "role", json_object_get(m, "role"), "content",
                                    json_object_get(m, "content")),
                   *parts = json_object_get(json_object_get(m, "metadata"), "parts");
            if (json_is_array(parts))
                json_object_set(one, "parts", parts);
            json_array_append_new(all, one);
            c->n_recorded++;
        }
        json_decref(part);
        if (!part)
            return -1;
        if (!more)
            return 0;
    }
}

json_t *chat_history_reopen(struct chat_history *c, const char *id, char **title, struct err *e)
{
    struct history_problem p = { 0 };
    json_t *all = json_array(), *conversation = NULL;
    *title = NULL;
    if ((c->h = open_file(0, &p)) && history_find(c->h, OWNER, id, c->id, &p) == 0)
        conversation = history_get(c->h, OWNER, c->id, &p);
    const char *system = json_string_value(json_object_get(conversation, "system_prompt"));
    if (system) {
        c->system = strdup(system);
        json_array_append_new(all, chat_message("system", system, strlen(system)));
    }
    if (conversation && read_branch(c, all, &p) == 0) {
        *title = strdup(json_string_value(json_object_get(conversation, "title")));
        json_decref(conversation);
        return all;
    }
    *e = p.e;
    json_decref(conversation);
    json_decref(all);
    return NULL;
}

/* ---- listing ---- */

static void print_text(const json_t *v)
{
    const char *text = json_string_value(v);
    for (; text && *text; text++) {
        const size_t n = strcspn(text, "\r\n\t");
        chat_write(text, n);
        text += n;
        if (!*text)
            break;
        putchar(' ');
    }
}

static void print_row(const json_t *c)
{
    const char *when = json_string_value(json_object_get(c, "updated_at"));
    printf("%-16s  %.10s %.5s  %5lld  ", json_string_value(json_object_get(c, "id")), when, when + 11,
           (long long)json_integer_value(json_object_get(c, "message_count")));
    print_text(json_object_get(c, "title"));
    putchar('\n');
}

static void print_results(const json_t *answer)
{
    json_t *r, *m;
    size_t i, k;
    json_array_foreach(json_object_get(answer, "results"), i, r) {
        print_row(json_object_get(r, "conversation"));
        json_array_foreach(json_object_get(r, "matches"), k, m) {
            printf("    %s: ", json_string_value(json_object_get(m, "role")));
            print_text(json_object_get(m, "snippet"));
            putchar('\n');
        }
    }
}

/* The list of all conversations, or of those that a search finds.  NULL with *p. */
static json_t *ask(struct history *h, const char *query, int most, struct history_problem *p)
{
    const struct history_filter f = { .limit = most };
    history_set_deadline(h, 10);
    return query ? history_search(h, OWNER, query, most < 100 ? most : 100, p) : history_list(h, OWNER, &f, p);
}

int chat_history_list(const char *query, int most, int json)
{
    struct history_problem p = { 0 };
    struct history *h = open_file(1, &p);
    json_t *out = h ? ask(h, query, most, &p) : NULL, *c;
    size_t i;
    if (!h && p.fault == HISTORY_NOT_FOUND)
        out = query ? json_pack("{s:s, s:[], s:b}", "query", query, "results", "more", 0)
                    : json_pack("{s:[], s:i}", "conversations", "total", 0);
    history_close(h);
    if (!out) {
        cli_note(prog, "%s", p.e.msg);
        return CLI_FAILED;
    }
    const int found = json_array_size(json_object_get(out, query ? "results" : "conversations")) > 0;
    if (json) {
        chat_print_json(out);
        return found || !query ? CLI_OK : CLI_FAILED;
    }
    if (!found)
        query ? cli_note(prog, "no conversation contains '%s'", query) : cli_note(prog, "no conversation is recorded yet; single prompts are not");
    else
        printf("%-16s  %-16s  %5s  %s\n", "ID", "CHANGED (UTC)", "MSGS", "TITLE");
    json_array_foreach(json_object_get(out, "conversations"), i, c)
        print_row(c);
    print_results(out);
    json_decref(out);
    return found || !query ? CLI_OK : CLI_FAILED;
}
