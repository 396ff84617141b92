/* chat_input.c - questions that are not typed at the prompt: /edit, /paste, /file. */
#include "cmd/chat_session.h"

#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmd/cli.h"

extern char **environ;

static const char prog[] = "zse-chat";

static int is_blank(const char *text) { return !text[strspn(text, " \t\n")]; }

void session_attach(struct chat_session *t, const char *name)
{
    struct err e;
    if (chat_attach(&t->attached, name, 0, &e) != 0)
        cli_note(prog, "%s", e.msg);
    else
        printf("the next question comes after %zu bytes of files\n", strlen(t->attached));
}

void session_paste(struct chat_session *t)
{
    char *text = NULL, *line;
    int interrupted = 0, rc = 0;
    printf("a line with only a dot, or Ctrl-D, ends the question\n");
    cli_flush();
    while (rc == 0 && (line = t->read_line(t->user, ". ", &interrupted))) {
        const int ends = strcmp(line, ".") == 0;
        rc = ends ? 1 : session_add_line(&text, line);
        free(line);
    }
    if (rc < 0)
        cli_note(prog, "out of memory");
    else if (!interrupted && text && !is_blank(text))
        session_ask(t, text, 1);
    free(text);
}

/* ---- /edit ---- */

/* Run the user's editor on a file.  0: it ended well. */
static int run_editor(const char *path)
{
    const char *editor = getenv("VISUAL");
    editor = editor && *editor ? editor : getenv("EDITOR");
    editor = editor && *editor ? editor : "vi";
    char *command;                      /* of a shell, because the variable may have options */
    if (asprintf(&command, "%s \"$1\"", editor) < 0)
        return -1;
    const char *argv[] = { "sh", "-c", command, "sh", path, NULL };
    pid_t child;
    int status = -1;
    cli_flush();
    if (posix_spawn(&child, "/bin/sh", NULL, NULL, (char *const *)argv, environ) == 0)
        while (waitpid(child, &status, 0) < 0 && errno == EINTR)
            ;
    if (status != 0)
        cli_note(prog, "%s: it failed, and the text is not used", editor);
    free(command);
    return status == 0 ? 0 : -1;
}

/* Write a new file of the user's own.  Returns its name, malloc'd; NULL with *e. */
static char *write_draft(const char *text, struct err *e)
{
    const char *folder = getenv("TMPDIR");
    char *path;
    if (asprintf(&path, "%s/zse-chat-XXXXXX.md", folder && *folder ? folder : "/tmp") < 0) {
        err_nomem(e, "draft");
        return NULL;
    }
    const int fd = mkstemps(path, 3);
    FILE *f = fd >= 0 ? fdopen(fd, "w") : NULL;
    const int written = f && fprintf(f, "%s%s", text, *text ? "\n" : "") >= 0;
    if (f && fclose(f) == 0 && written)
        return path;
    err_sys(e, "%s", path);
    if (fd >= 0 && !f)
        close(fd);
    if (fd >= 0)
        unlink(path);
    free(path);
    return NULL;
}

/* The text as the user has edited it, without newlines at its end; malloc'd.  NULL: a note was
 * printed. */
static char *edited(const char *text)
{
    struct err e;
    char *path = write_draft(text, &e), *new = NULL;
    if (!path || (run_editor(path) == 0 && !(new = chat_read_text(path, &e))))
        cli_note(prog, "%s", e.msg);
    if (path)
        unlink(path);
    for (size_t n = new ? strlen(new) : 0; n && new[n - 1] == '\n'; n--)
        new[n - 1] = '\0';
    free(path);
    return new;
}

void session_edit(struct chat_session *t)
{
    const char *last = session_question(t);
    char *text = edited(last ? last : "");
    stop_answer = 0;                    /* Ctrl-C was for the editor */
    if (!text)
        return;
    if (is_blank(text) || (last && strcmp(text, last) == 0)) {
        cli_note(prog, "the question is %s", is_blank(text) ? "empty, and not asked" : "the same as before");
    } else if (last) {
        session_ask_again(t, text);
    } else {
        session_ask(t, text, 1);
    }
    free(text);
}
