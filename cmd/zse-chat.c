/* zse-chat - talk with a model: a conversation on a terminal, a filter otherwise. */
#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/chat.h"
#include "cmd/cli.h"
#include "cmd/preflight.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/utf8.h"

/* ---- line editing ---- */

struct editor {
    EditLine *el;
    History *history;
    char *file;                 /* of the history; NULL: none */
    const char *prompt;
    int color;
    sigset_t outside;           /* signal mask with SIGINT let through */
};

/* Ctrl-C at the prompt.  SIGINT is blocked while libedit works and let in only around read(), which it then leaves by a jump: a terminal
 * forgets its input at Ctrl-C, so to wait until it is readable and then read could block for ever. */
static volatile sig_atomic_t interrupted, reading;
static sigjmp_buf leave_read;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
    if (reading)
        siglongjmp(leave_read, 1);
}

/* read(), or -1 after Ctrl-C. */
static ssize_t read_byte(const sigset_t *outside, char *c)
{
    if (sigsetjmp(leave_read, 1)) {
        reading = 0;
        return -1;
    }
    sigset_t inside;
    reading = 1;
    sigprocmask(SIG_SETMASK, outside, &inside);
    ssize_t n = read(STDIN_FILENO, c, 1);
    sigprocmask(SIG_SETMASK, &inside, NULL);
    reading = 0;
    return n;
}

static char *prompt_text(EditLine *el)
{
    static char text[32];       /* libedit's callback has no other way to hand out a string */
    struct editor *d;
    el_get(el, EL_CLIENTDATA, &d);
    snprintf(text, sizeof text, d->color ? "\1\33[1m\1%c\1\33[0m\1 " : "%c ", d->prompt[0]);   /* libedit drops what comes after the last character */
    return text;
}

/* One character from the terminal; 0 at its end, -1 after Ctrl-C. */
static int read_char(EditLine *el, wchar_t *c)
{
    struct editor *d;
    char b[4];
    el_get(el, EL_CLIENTDATA, &d);
    for (size_t n = 0; n < sizeof b;) {
        ssize_t got = read_byte(&d->outside, b + n);
        if (got < 0 && errno == EINTR && !interrupted)
            continue;
        if (got <= 0)
            return (int)got;
        if (utf8_incomplete(b, ++n) == 0) {
            int taken;
            *c = (wchar_t)utf8_next(b, n, &taken);
            return 1;
        }
    }
    *c = 0xFFFD;
    return 1;
}

/* STATE/zse/chat_history, its folder made.  NULL: no place for it, which is no error. */
static char *history_file(void)
{
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int in_home = !state || !*state;
    char *path;
    if (in_home && (!home || !*home))
        return NULL;
    if (asprintf(&path, "%s%s/zse/chat_history", in_home ? home : state, in_home ? "/.local/state" : "") < 0)
        return NULL;
    for (char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = '\0';
        mkdir(path, 0700);
        *p = '/';
    }
    return path;
}

static void editor_open(struct editor *d)
{
    HistEvent ev;
    memset(d, 0, sizeof *d);
    setlocale(LC_CTYPE, "");
    if (strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    d->color = isatty(STDOUT_FILENO) && !(no_color && *no_color) && term && strcmp(term, "dumb") != 0;
    d->el = el_init("zse-chat", stdin, isatty(STDOUT_FILENO) ? stdout : stderr, stderr);
    d->history = history_init();
    if (!d->el || !d->history)
        return;
    el_set(d->el, EL_CLIENTDATA, d);
    el_set(d->el, EL_GETCFN, read_char);
    el_set(d->el, EL_PROMPT_ESC, prompt_text, '\1');
    el_set(d->el, EL_EDITOR, "emacs");
    el_set(d->el, EL_HIST, history, d->history);
    el_set(d->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_source(d->el, NULL);
    history(d->history, &ev, H_SETSIZE, 1000);
    history(d->history, &ev, H_SETUNIQUE, 1);
    d->file = history_file();
    if (d->file)
        history(d->history, &ev, H_LOAD, d->file);
}

static void editor_close(struct editor *d)
{
    HistEvent ev;
    if (d->history && d->file) {
        mode_t before = umask(077);     /* conversations are private */
        history(d->history, &ev, H_SAVE, d->file);
        umask(before);
    }
    if (d->history)
        history_end(d->history);
    if (d->el)
        el_end(d->el);
    free(d->file);
}

static char *read_line(void *user, const char *prompt, int *was_interrupted)
{
    struct editor *d = user;
    struct sigaction action = { .sa_handler = on_interrupt }, before;
    sigset_t blocked;
    HistEvent ev;
    int n = 0;
    d->prompt = prompt;
    interrupted = 0;
    sigemptyset(&action.sa_mask);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGINT);
    sigaction(SIGINT, &action, &before);
    sigprocmask(SIG_BLOCK, &blocked, &d->outside);
    const char *line = el_gets(d->el, &n);
    char *copy = line && n > 0 ? strdup(line) : NULL;
    sigaction(SIGINT, &before, NULL);
    sigprocmask(SIG_SETMASK, &d->outside, NULL);
    *was_interrupted = interrupted;
    if (interrupted || !copy) {
        fputc('\n', isatty(STDOUT_FILENO) ? stdout : stderr);
        cli_flush();
        free(copy);
        return NULL;
    }
    copy[strcspn(copy, "\n")] = '\0';
    if (*copy)
        history(d->history, &ev, H_ENTER, copy);
    return copy;
}

static int talk(const struct chat_options *o, const struct opened_model *m, struct remote *r)
{
    struct editor d;
    editor_open(&d);
    if (!d.el || !d.history) {
        cli_note("zse-chat", "out of memory");
        return CLI_FAILED;
    }
    int rc = chat_talk(o, m, r, read_line, &d);
    editor_close(&d);
    return rc ? rc : cli_finish("zse-chat");
}

static int run_remote(struct chat_options *o, int interactive)
{
    struct err e;
    struct remote *r = remote_open(o, &e);
    if (!r)
        return cli_fail("zse-chat", &e);
    int rc = interactive ? talk(o, NULL, r) : remote_run(r, o);
    remote_close(r);
    return rc;
}

/* --plan: nothing is generated. */
static int plan(const struct chat_options *o)
{
    const int n = o->batch ? o->parallel : 1;
    struct engine_options eo;
    struct opened_model m;
    struct unopened u;
    struct err e;
    int rc = unopened_find(&u, "zse-chat", o->model, &o->run, &e);
    if (rc == 1) {
        eo = run_engine_options(&o->run, n, context_of(&u.config, &o->run));
        rc = preflight_plan_unopened("zse-chat", &u, &o->run, &eo, o->json);
        unopened_release(&u);
    } else if (rc < 0 || open_model("zse-chat", o->model, &o->run, &m, &e) != 0) {
        return cli_fail("zse-chat", &e);
    } else {
        eo = run_engine_options(&o->run, n, context_len(&m, &o->run));
        rc = preflight_plan("zse-chat", &m, &o->run, &eo, o->json);
        close_model(&m);
    }
    const int written = cli_finish("zse-chat");
    return written ? written : rc;
}

static int run(struct chat_options *o, uint64_t main_ns)
{
    struct opened_model m;
    struct err e;
    int interactive = !o->plan && !o->prompt && !o->batch && isatty(STDIN_FILENO), rc;
    if (interactive && (o->raw || o->json || o->ids))
        return cli_wrong("zse-chat", "--raw, --json and --ids need a prompt: -p, --batch or standard input");
    if (!interactive && !o->plan && !o->batch && (rc = chat_read_prompt(o)) != 0)
        return rc;
    if (o->url)
        return run_remote(o, interactive);
    if (o->plan)
        return plan(o);
    if (o->piped)
        main_ns = clock_ns();           /* waiting for standard input is not loading */
    if (open_model("zse-chat", o->model, &o->run, &m, &e) != 0)
        return cli_fail("zse-chat", &e);
    struct chat_marks marks = { .main = main_ns, .mapped = m.mapped_ns, .opened = clock_ns() };
    if (chat_options_complete(o, &m, &e) != 0 || chat_grammar_open(o, &m, &e) != 0)
        rc = cli_fail("zse-chat", &e);
    else if (interactive)
        rc = talk(o, &m, NULL);
    else
        rc = o->batch ? chat_batch(o, &m, &marks) : chat_once(o, &m, &marks);
    close_model(&m);
    return rc;
}

int main(int argc, char **argv)
{
    const uint64_t main_ns = clock_ns();
    struct chat_options o;
    int rc = chat_options_parse(&o, argc, argv);
    if (rc < 0)
        rc = run(&o, main_ns);
    chat_options_release(&o);
    return rc;
}
