/* chat_commands.c - the commands of a conversation: lines that begin with a slash. */
#include "cmd/chat_session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "libcommon/engine/device_show.h"

static const char prog[] = "zse-chat";

static const char help[] =
    "/help          this list\n"
    "/clear         start a new conversation\n"
    "/retry         answer the last question again\n"
    "/undo          take back the last question and its answer\n"
    "/edit          write the last question, or a new one, in $EDITOR and ask it\n"
    "/paste         read a question up to a line with only a dot\n"
    "/file FILE     put a text file before the next question\n"
    "/model NAME    answer with another model from now on; without NAME: list those here\n"
    "/info          describe the model\n"
    "/hardware      describe this machine\n"
    "/system TEXT   set the system message; without TEXT: remove it\n"
    "/set NAME X    set an option of the answers, as /set temp 0.2; without NAME: show them\n"
    "/tokens TEXT   count and show the tokens of TEXT; without TEXT: count those of the conversation\n"
    "/stats         figures of the last answer and of memory\n"
    "/save FILE     write the conversation as JSON\n"
    "/load FILE     continue a saved conversation\n"
    "/history TEXT  list recorded conversations; with TEXT: those with these words\n"
    "/tools         list the tools that the model may call\n"
    "/title TEXT    give the conversation another title in the history\n"
    "/exit          leave (also Ctrl-D)\n"
    "A line that ends in \\ goes on in the next; \"\"\" begins and ends a text of several lines; // is a / at the start of a line.\n";

void session_set_system(struct chat_session *t, const char *text)
{
    if (session_system(t))
        json_array_remove(t->messages, 0);
    if (*text && json_array_insert_new(t->messages, 0, chat_message("system", text, strlen(text))) != 0)
        cli_note(prog, "that is not UTF-8");
}

static void clear(struct chat_session *t)
{
    json_t *system = json_incref(session_system(t));
    json_array_clear(t->messages);
    if (system)
        json_array_append_new(t->messages, system);
    t->n_dropped = 0;
    t->is_full_noted = t->file.known = 0;
    chat_history_new(&t->history);
    session_forget(t);
    free(t->attached);
    t->attached = NULL;
}

/* The number of messages up to the last question; 0: there is none. */
static size_t up_to_question(const struct chat_session *t)
{
    const size_t first = session_system(t) != NULL;
    size_t i = json_array_size(t->messages);
    while (i > first && !message_is(json_array_get(t->messages, i - 1), "user"))
        i--;
    return i > first ? i : 0;
}

const char *session_question(const struct chat_session *t)
{
    const size_t i = up_to_question(t);
    return i ? json_string_value(json_object_get(json_array_get(t->messages, i - 1), "content")) : NULL;
}

char *session_undo(struct chat_session *t)
{
    const size_t first = session_system(t) != NULL, i = up_to_question(t);
    const char *text = session_question(t);
    char *copy = text ? strdup(text) : NULL;
    if (!copy) {
        cli_note(prog, text ? "out of memory" : "there is no question yet");
        return NULL;
    }
    while (json_array_size(t->messages) >= i)
        json_array_remove(t->messages, json_array_size(t->messages) - 1);
    if (t->n_dropped > i - 1 - first)
        t->n_dropped = i - 1 - first;
    session_forget(t);
    session_record(t, NULL);
    return copy;
}

void session_ask_again(struct chat_session *t, const char *text)
{
    json_t *before = json_copy(t->messages);
    const size_t n_dropped = t->n_dropped;
    char *last = before ? session_undo(t) : NULL;
    const size_t n = json_array_size(t->messages);
    if (last && text)
        session_ask(t, text, 0);
    else if (last)
        session_turn(t, last);
    if (last && json_array_size(t->messages) == n) {
        json_array_clear(t->messages);
        json_array_extend(t->messages, before);
        t->n_dropped = n_dropped;
        session_record(t, NULL);
        cli_note(prog, "the last question and its answer stay as they were");
    }
    json_decref(before);
    free(last);
}

/* Whether the next line of input is a yes. */
static int confirmed(struct chat_session *t)
{
    int interrupted = 0;
    cli_flush();
    char *line = t->read_line(t->user, CHAT_QUESTION, &interrupted);
    const int yes = line && !interrupted && (line[0] == 'y' || line[0] == 'Y');
    free(line);
    return yes;
}

/* Whether /save may write path: it replaces another saved conversation if the user confirms, but
 * never any other file. */
static int may_replace(struct chat_session *t, const char *path)
{
    size_t n;
    switch (chat_file_kind(&t->file, path, &n)) {
    case CHAT_FILE_FREE: case CHAT_FILE_OWN:
        return 1;
    case CHAT_FILE_CONVERSATION:
        printf("%s holds another conversation of %zu message%s.  Replace it? (y/N)\n", path, n, plural((int64_t)n));
        return confirmed(t);
    case CHAT_FILE_OTHER:
        break;
    }
    cli_note(prog, "%s: exists and is not a saved conversation: it is not replaced", path);
    return 0;
}

static void save(struct chat_session *t, const char *arg)
{
    struct err e;
    char *path = cli_expand_home(arg);
    if (!path)
        cli_note(prog, "out of memory");
    else if (may_replace(t, path)) {
        if (chat_file_save(&t->file, path, t->messages, &e) != 0)
            cli_note(prog, "%s", e.msg);
        else
            printf("saved %zu message%s to %s\n", json_array_size(t->messages),
                   plural((int64_t)json_array_size(t->messages)), path);
    }
    free(path);
}

void print_message(const struct chat_session *t, const json_t *m)
{
    const json_t *role = json_object_get(m, "role"), *content = json_object_get(m, "content");
    const size_t n = json_string_length(content);
    chat_write(json_string_value(role), json_string_length(role));
    fputs(": ", stdout);
    if (!t->o->no_wrap && isatty(STDOUT_FILENO))
        chat_write_wrapped(json_string_value(content), n, (int)json_string_length(role) + 2);
    else
        chat_write(json_string_value(content), n);
    putchar('\n');
}

static void load(struct chat_session *t, const char *arg)
{
    struct err e;
    size_t i;
    char *path = cli_expand_home(arg);
    json_t *messages = path ? chat_file_load(&t->file, path, &e) : NULL, *m;
    if (!messages) {
        cli_note(prog, "%s", path ? e.msg : "out of memory");
        free(path);
        return;
    }
    json_decref(t->messages);
    t->messages = messages;
    t->n_dropped = 0;
    t->is_full_noted = 0;
    chat_history_new(&t->history);
    session_forget(t);
    json_array_foreach(t->messages, i, m)
        print_message(t, m);
    free(path);
}

static void print_stats(const struct chat_session *t)
{
    struct engine_stats s;
    const struct request_stats *r = &t->last;
    char kv[CLI_BYTES], private[CLI_BYTES], file[CLI_BYTES], line[DEVICE_LINE];
    int computed = r->n_prompt - r->n_cached;
    if (t->n_dropped)
        printf("left out the oldest %zu of %zu messages\n", t->n_dropped, json_array_size(t->messages));
    if (t->remote) {
        if (r->n_generated)
            printf("prompt   %d token%s, %d of them new\nanswer   %d token%s: %.2f s, %.1f tokens/s; first token after %.2f s\n", r->n_prompt, plural(r->n_prompt), computed, r->n_generated,
                   plural(r->n_generated),
                   r->decode_s, r->decode_s > 0 ? (r->n_generated - 1) / r->decode_s : 0, r->first_token_s);
        printf("server   %s, model %s\n", remote_url(t->remote), remote_model(t->remote));
        return;
    }
    engine_stats(t->engine, &s);
    if (r->n_generated) {
        printf("prompt   %d token%s, %d of them new: %.2f s, %.1f tokens/s\n", r->n_prompt, plural(r->n_prompt),
               computed, r->prefill_s, r->prefill_s > 0 ? computed / r->prefill_s : 0);
        printf("answer   %d token%s: %.2f s, %.1f tokens/s; first token after %.2f s\n", r->n_generated,
               plural(r->n_generated), r->decode_s, r->decode_s > 0 ? (r->n_generated - 1) / r->decode_s : 0,
               r->first_token_s);
    }
    if (r->n_drafted)
        printf("drafts   %d token%s, %d of them right\n", r->n_drafted, plural(r->n_drafted), r->n_accepted);
    printf("context  %d of %d tokens\n", t->n_ids, context_len(t->m, &t->o->run));
    printf("memory   %s keys and values, %s private in all, %s weights\n", cli_bytes(kv, s.kv_bytes),
           cli_bytes(private, s.private_bytes), cli_bytes(file, t->m->model->weight_bytes));
    device_line(line, &s, t->m->model->config.n_layers);
    printf("device   %s\n", line);
}

enum command {
    COMMAND_HELP, COMMAND_CLEAR, COMMAND_SYSTEM, COMMAND_STATS, COMMAND_SAVE, COMMAND_LOAD, COMMAND_EXIT,
    COMMAND_HISTORY, COMMAND_TITLE, COMMAND_TOOLS, COMMAND_RETRY, COMMAND_UNDO, COMMAND_MODEL,
    COMMAND_INFO, COMMAND_HARDWARE, COMMAND_EDIT, COMMAND_PASTE, COMMAND_FILE, COMMAND_SET, COMMAND_TOKENS,
    N_COMMANDS
};
/* argument: the name of the required argument; NULL: none is required. */
static const struct { const char *name, *argument; } commands[N_COMMANDS] = {
    [COMMAND_HELP] = { "/help", NULL },       [COMMAND_CLEAR] = { "/clear", NULL },
    [COMMAND_SYSTEM] = { "/system", NULL },   [COMMAND_STATS] = { "/stats", NULL },
    [COMMAND_SAVE] = { "/save", "FILE" },     [COMMAND_LOAD] = { "/load", "FILE" },
    [COMMAND_EXIT] = { "/exit", NULL },       [COMMAND_HISTORY] = { "/history", NULL },
    [COMMAND_TITLE] = { "/title", "TEXT" },   [COMMAND_TOOLS] = { "/tools", NULL },
    [COMMAND_RETRY] = { "/retry", NULL },     [COMMAND_UNDO] = { "/undo", NULL },
    [COMMAND_MODEL] = { "/model", NULL },     [COMMAND_INFO] = { "/info", NULL },
    [COMMAND_HARDWARE] = { "/hardware", NULL }, [COMMAND_EDIT] = { "/edit", NULL },
    [COMMAND_PASTE] = { "/paste", NULL },     [COMMAND_FILE] = { "/file", "FILE" },
    [COMMAND_SET] = { "/set", NULL },         [COMMAND_TOKENS] = { "/tokens", NULL },
};

static size_t first_word(const char *line) { return strcspn(line, " \t\n"); }

/* The command that a line begins with, or N_COMMANDS. */
static int find_command(const char *line)
{
    const size_t n = first_word(line);
    int i = 0;
    while (i < N_COMMANDS && (strlen(commands[i].name) != n || strncmp(line, commands[i].name, n) != 0))
        i++;
    return i;
}

int session_takes_file(const char *line, size_t size)
{
    const char *space = memchr(line, ' ', size);
    const int i = space ? find_command(line) : N_COMMANDS;
    return i < N_COMMANDS && commands[i].argument && strcmp(commands[i].argument, "FILE") == 0;
}

const char *session_command_name(int i) { return i < N_COMMANDS ? commands[i].name : NULL; }

int may_be_command(const char *text)
{
    return text[0] == '/' && (!strchr(text, '\n') || find_command(text) < N_COMMANDS);
}

static void set_title(struct chat_session *t, const char *title)
{
    struct err e;
    if (chat_history_title(&t->history, title, &e) != 0)
        cli_note(prog, "%s", e.msg);
}

static void info(const struct chat_session *t)
{
    if (t->remote)
        session_banner(t);
    else
        session_run("zse-info", t->m->path);
}

/* Run a line without blanks at its end.  1: the conversation ends. */
static int run_command(struct chat_session *t, const char *line)
{
    const size_t n = first_word(line);
    const int i = find_command(line);
    const char *arg = line + n + strspn(line + n, " \t\n");
    if (i == N_COMMANDS) {
        cli_note(prog, "%.*s is not a command: /help lists them (// begins a line with /)", (int)n, line);
        return 0;
    }
    if (commands[i].argument && !*arg) {
        cli_note(prog, "usage: %s %s", commands[i].name, commands[i].argument);
        return 0;
    }
    switch (i) {
    case COMMAND_HELP: fputs(help, stdout); break;
    case COMMAND_CLEAR: clear(t); break;
    case COMMAND_SYSTEM: session_set_system(t, arg); break;
    case COMMAND_STATS: print_stats(t); break;
    case COMMAND_SAVE: save(t, arg); break;
    case COMMAND_LOAD: load(t, arg); break;
    case COMMAND_EXIT: return 1;
    case COMMAND_HISTORY: chat_history_list(*arg ? arg : NULL, 20, 0); break;
    case COMMAND_TITLE: set_title(t, arg); break;
    case COMMAND_TOOLS:
        if (t->tools)
            chat_tools_list(t->tools);
        else
            cli_note(prog, "no tools: --tools and --mcp-config name them");
        break;
    case COMMAND_RETRY: session_ask_again(t, NULL); break;
    case COMMAND_UNDO: free(session_undo(t)); break;
    case COMMAND_EDIT: session_edit(t); break;
    case COMMAND_PASTE: session_paste(t); break;
    case COMMAND_FILE: session_attach(t, arg); break;
    case COMMAND_SET: session_set(t, arg); break;
    case COMMAND_TOKENS: session_tokens(t, arg); break;
    case COMMAND_MODEL:
        if (session_model(t, arg))
            return 1;
        break;
    case COMMAND_INFO: info(t); break;
    case COMMAND_HARDWARE: session_run("zse-hardware", NULL); break;
    }
    cli_flush();
    return 0;
}

int session_command(struct chat_session *t, const char *line)
{
    size_t n = strlen(line);            /* completion puts a blank after a word */
    while (n && strchr(" \t", line[n - 1]))
        n--;
    char *trimmed = strndup(line, n);
    const int ends = trimmed ? run_command(t, trimmed) : 0;
    if (!trimmed)
        cli_note(prog, "out of memory");
    free(trimmed);
    return ends;
}
