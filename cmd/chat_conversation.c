/* chat_conversation.c - run a conversation: read lines, run turns and commands, Ctrl-C. */
#include "cmd/chat_session.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"

static const char prog[] = "zse-chat";

volatile sig_atomic_t stop_answer;

static void on_interrupt(int number)
{
    (void)number;
    stop_answer = 1;
}

/* ---- input ---- */

int session_add_line(char **text, const char *line)
{
    size_t n = *text ? strlen(*text) + 1 : 0;
    char *p = realloc(*text, n + strlen(line) + 1);
    if (!p)
        return -1;
    if (n)
        p[n - 1] = '\n';
    strcpy(p + n, line);
    *text = p;
    return 0;
}

/* Read one input, which may have several lines; malloc'd.  NULL at the end of the input, or if
 * *interrupted is set. */
static char *read_input(struct chat_session *t, int *interrupted)
{
    char *text = NULL, *line;
    int quoted = 0, more = 1;
    while (more && (line = t->read_line(t->user, text || quoted ? ". " : "> ", interrupted))) {
        char *from = line;
        size_t n = strlen(line);
        if (!text && !quoted && n >= 3 && memcmp(line, "\"\"\"", 3) == 0 && !strchr(line, '\n')) {
            /* """ begins a text of several lines, except in pasted lines */
            quoted = 1;
            from += 3;
            n -= 3;
        }
        int closes = quoted && n >= 3 && strcmp(from + n - 3, "\"\"\"") == 0;
        int goes_on = !quoted && n >= 1 && from[n - 1] == '\\';
        if (closes)
            from[n - 3] = '\0';
        if (goes_on)
            from[n - 1] = '\0';
        more = quoted ? !closes : goes_on;
        int skip = quoted && (!*from && (from != line || closes));      /* """ alone on a line adds no line */
        if (!skip && session_add_line(&text, from) != 0)
            more = 0;
        free(line);
    }
    if (*interrupted || (more && !text)) {
        free(text);
        return NULL;
    }
    return text ? text : strdup("");
}

void session_ask(struct chat_session *t, const char *text, int is_new)
{
    struct err e;
    char *prompt = NULL;
    const int n = asprintf(&prompt, "%s%s", t->attached ? t->attached : "", text);
    size_t size = (size_t)n;
    if (n < 0) {
        cli_note(prog, "out of memory");
        return;
    }
    if (is_new && chat_template_apply(t->o, &prompt, &size, &e) != 0) {
        cli_note(prog, "%s", e.msg);
        free(prompt);
        return;
    }
    session_turn(t, prompt);
    free(prompt);
    if (t->failed)                      /* then the question is not kept, and can be asked again */
        return;
    free(t->attached);
    t->attached = NULL;
}

static void loop(struct chat_session *t)
{
    int interrupted = 0, leave = 0;
    while (!leave) {
        interrupted = stop_answer = 0;
        char *text = read_input(t, &interrupted);
        if (interrupted)
            continue;
        if (!text)
            break;
        if (may_be_command(text) && text[1] != '/')
            leave = session_command(t, text);
        else if (text[strspn(text, " \t\n")])
            session_ask(t, text + (text[0] == '/' && text[1] == '/' && may_be_command(text + 1)), 1);
        free(text);
    }
}

/* Go on with the conversation of --continue; on a terminal, show its last turn. */
static int reopen(struct chat_session *t, struct err *e)
{
    char *title;
    json_t *messages = chat_history_reopen(&t->history, t->o->reopen, &title, e);
    if (!messages)
        return -1;
    json_decref(t->messages);
    t->messages = messages;
    const size_t n = json_array_size(messages);
    if (t->read_line) {
        printf("%s  ", t->history.id);
        chat_write(title ? title : "", title ? strlen(title) : 0);
        printf(", %zu message%s\n", n, plural((int64_t)n));
        for (size_t i = n > 2 ? n - 2 : 0; i < n; i++)
            print_message(t, json_array_get(messages, i));
    }
    free(title);
    return 0;
}

void session_banner(const struct chat_session *t)
{
    char size[CLI_BYTES];
    if (t->remote)
        printf("%s at %s.  /help lists the commands.\n", remote_model(t->remote), remote_url(t->remote));
    else
        printf("%s: %s, %s of weights, context %d.  /help lists the commands.\n", t->m->name, t->m->model->config.arch,
               cli_bytes(size, t->m->model->weight_bytes), context_len(t->m, &t->o->run));
}

static void release(struct chat_session *t)
{
    session_leave_model(t);
    chat_history_close(&t->history);
    chat_tools_close(t->tools);
    json_decref(t->functions);
    json_decref(t->lenient);
    json_decref(t->messages);
    free(t->attached);
}

int chat_converse(const struct chat_options *o, struct chat_model **m, struct remote *r, read_line_fn read_line,
                  void *user)
{
    struct err e;
    struct chat_session t = { .base = *o, .o = o, .model = m ? *m : NULL, .slot = m, .remote = r,
                              .read_line = read_line, .user = user, .messages = json_array(),
                              .history.off = o->no_history || (!read_line && !o->reopen) };
    struct sigaction action = { .sa_handler = on_interrupt }, before;
    sigemptyset(&action.sa_mask);
    if ((o->reopen && reopen(&t, &e) != 0) ||
        (read_line && chat_attach_all(&t.attached, o, &e) != 0) ||
        ((o->tools || o->mcp_config) && !(t.tools = chat_tools_open(o, &e))) ||
        session_adopt(&t, &e) != 0) {
        release(&t);
        return cli_fail(prog, &e);
    }
    if (o->system)
        session_set_system(&t, o->system);
    if (read_line)
        session_banner(&t);
    cli_flush();
    sigaction(SIGINT, &action, &before);
    if (read_line)
        loop(&t);
    else
        session_turn(&t, o->text);
    sigaction(SIGINT, &before, NULL);
    release(&t);
    return !read_line && t.failed ? CLI_FAILED : 0;
}
