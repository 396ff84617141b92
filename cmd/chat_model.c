/* chat_model.c - choose a model before a conversation, and change it within one. */
#include "cmd/chat_session.h"

#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "cmd/home.h"
#include "libcommon/store/store.h"

extern char **environ;

static const char prog[] = "zse-chat";

/* ---- the model of a conversation ---- */

struct chat_model *chat_model_open(const struct chat_options *o, const char *name, struct err *e)
{
    struct chat_model *m = calloc(1, sizeof *m);
    if (!m || (name && !(m->name = strdup(name)))) {
        free(m);
        err_nomem(e, "model");
        return NULL;
    }
    if (open_model(prog, m->name, &o->run, &m->m, e) == 0)
        return m;
    free(m->name);
    free(m);
    return NULL;
}

void chat_model_close(struct chat_model *m)
{
    if (!m)
        return;
    close_model(&m->m);
    free(m->name);
    free(m);
}

/* ---- models here ---- */

static int models_here(struct store_model **list, struct err *e)
{
    char *folder = home_models(e);
    const int n = folder ? store_list(folder, list, e) : -1;
    free(folder);
    return n;
}

/* Print the models with their numbers; `current` is marked. */
static void print_models(const struct store_model *list, int n, const char *current)
{
    char size[CLI_BYTES];
    for (int i = 0; i < n; i++)
        printf("%3d %c %-32s %s%s\n", i + 1, current && strcmp(list[i].name, current) == 0 ? '*' : ' ', list[i].name,
               list[i].of[0] ? "= " : "", list[i].of[0] ? list[i].of : cli_bytes(size, list[i].bytes));
}

/* The model that a number of the printed list, or a name, stands for; borrowed from list or word.
 * NULL: there is no such number. */
static const char *chosen(const struct store_model *list, int n, const char *word)
{
    char *end;
    const long i = strtol(word, &end, 10);
    if (*end || end == word)
        return word;
    for (int k = 0; k < n; k++)                 /* a model may have a number as its name */
        if (strcmp(list[k].name, word) == 0)
            return word;
    return i >= 1 && i <= n ? list[i - 1].name : NULL;
}

/* Read a line from the terminal, which hands over one at a time.  0 at its end. */
static int read_choice(char *line, size_t room)
{
    ssize_t n = read(STDIN_FILENO, line, room - 1);
    if (n <= 0)
        return 0;
    line[n] = '\0';
    line[strcspn(line, "\r\n")] = '\0';
    memmove(line, line + strspn(line, " \t"), strlen(line + strspn(line, " \t")) + 1);
    for (size_t k = strlen(line); k && strchr(" \t", line[k - 1]); k--)
        line[k - 1] = '\0';
    return 1;
}

int chat_choose_model(struct chat_options *o)
{
    struct store_model *list = NULL;
    struct err e;
    char line[STORE_NAME_BYTES];
    const int n = models_here(&list, &e);
    int rc = -1;
    if (n <= 0)
        return n < 0 ? cli_fail(prog, &e) : open_model_unnamed(prog, NULL);
    printf("no model is named, and none is the default; these are here:\n");
    print_models(list, n, NULL);
    printf("number or name: ");
    cli_flush();
    if (!read_choice(line, sizeof line) || !*line) {
        putchar('\n');
        rc = cli_finish(prog);
    } else {
        const char *name = chosen(list, n, line);
        if (!name)
            rc = cli_wrong(prog, "'%s' is not a number from 1 to %d", line, n);
        else if (!(o->model = o->chosen = strdup(name)))
            rc = cli_fail(prog, (err_nomem(&e, "name"), &e));
    }
    free(list);
    return rc;
}

/* ---- /model ---- */

int session_adopt(struct chat_session *t, struct err *e)
{
    static const char *const turn_end[] = { "<|im_end|>" };
    t->own = t->base;
    t->o = &t->own;
    if (!t->model)
        return 0;
    t->m = &t->model->m;
    if (chat_options_complete(&t->own, t->m, e) != 0 || prompter_open(&t->prompter, t->m, &t->own, 1, e) != 0 ||
        !(t->engine = open_engine(t->m, &t->own.run, 1, 0, 0, e)))
        return -1;
    /* A model that was not trained on ChatML may write the end of a turn as text: stop there. */
    if (t->prompter.fallback && !t->own.n_stop) {
        t->own.stop = (const char **)turn_end;
        t->own.n_stop = 1;
    }
    return 0;
}

void session_leave_model(struct chat_session *t)
{
    session_forget(t);
    if (t->engine)
        engine_close(t->engine);
    t->engine = NULL;
    grammar_close(t->answer_tools.grammar);
    t->answer_tools.grammar = NULL;
    grammar_vocab_close(t->vocab);
    t->vocab = NULL;
    prompter_close(&t->prompter);
    t->prompter = (struct prompter){ 0 };
}

/* The option that belongs to the model of the command line; NULL: the model can be changed. */
static const char *tied(const struct chat_options *o)
{
    return o->grammar ? "--json-schema, --grammar and --regex" : o->run.n_loras ? "--lora" : o->template_file
           ? "--template" : o->run.spec >= SPEC_DRAFT ? "--spec" : NULL;
}

/* Answer with another model from now on.  Returns 1 if that failed and the old one could not be
 * opened again, so that the conversation ends. */
static int change_model(struct chat_session *t, const char *name)
{
    struct err e, why;
    const char *option = tied(&t->base);
    struct chat_model *old = t->model, *new;
    if (option) {
        cli_note(prog, "/model: %s: made for the model of the command line, which stays", option);
        return 0;
    }
    if (!(new = chat_model_open(&t->base, name, &e))) {
        cli_note(prog, "%s", e.msg);
        return 0;
    }
    session_leave_model(t);                     /* first, so that its memory can be used */
    t->model = new;
    if (session_adopt(t, &why) == 0) {
        *t->slot = new;
        chat_model_close(old);
        t->n_dropped = 0;
        t->is_full_noted = 0;
        session_banner(t);
        return 0;
    }
    cli_note(prog, "%s", why.msg);
    session_leave_model(t);
    t->model = old;
    if (session_adopt(t, &e) != 0) {
        cli_note(prog, "%s", e.msg);
        t->failed = 1;
    }
    chat_model_close(new);
    return t->failed;
}

int session_model(struct chat_session *t, const char *arg)
{
    struct store_model *list = NULL;
    struct err e;
    int rc = 0;
    if (t->remote) {
        if (*arg && remote_set_model(t->remote, arg) != 0)
            cli_note(prog, "/model: the name is not UTF-8");
        session_banner(t);
        return 0;
    }
    const int n = models_here(&list, &e);
    if (n < 0) {
        cli_note(prog, "%s", e.msg);
        return 0;
    }
    if (!*arg) {
        printf("%s: %s\n", t->m->name, t->m->path);
        print_models(list, n, t->m->name);
        if (n)
            puts("/model NUMBER or /model NAME changes it");
    } else {
        const char *name = chosen(list, n, arg);
        if (name)
            rc = change_model(t, name);
        else
            cli_note(prog, "/model: '%s' is not a number from 1 to %d", arg, n);
    }
    free(list);
    return rc;
}

/* ---- /info, /hardware ---- */

void session_run(const char *name, const char *arg)
{
    char self[4096];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    const char *argv[] = { NULL, "--", arg, NULL };
    char *path = NULL;
    pid_t child;
    int status = 0;
    self[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(self, '/');
    if (!slash || asprintf(&path, "%.*s/%s", (int)(slash - self), self, name) < 0) {
        cli_note(prog, "%s: not found", name);
        return;
    }
    argv[0] = path;
    if (!arg)
        argv[1] = NULL;
    cli_flush();
    const int rc = posix_spawn(&child, path, NULL, NULL, (char *const *)argv, environ);
    if (rc)
        cli_note(prog, "%s: %s", path, strerror(rc));
    else
        waitpid(child, &status, 0);             /* it has printed its own messages */
    free(path);
}
