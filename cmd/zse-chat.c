/* zse-chat.c - talk with a model: a conversation on a terminal, a filter otherwise. */
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
#include <wchar.h>

#include "cmd/zse-chat.h"
#include "cmd/cli.h"
#include "cmd/home.h"
#include "cmd/memory_watch.h"
#include "cmd/preflight.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/utf8.h"

/* ---- line editing ---- */

struct editor {
    EditLine *el;
    History *history;
    char *file;                 /* file of the history; NULL: none */
    const char *prompt;
    FILE *out;                  /* stream for the prompt */
    int color, marks_paste;
    sigset_t outside;           /* signal mask with SIGINT unblocked */
};

/* Ctrl-C at the prompt.  SIGINT is blocked while libedit works and unblocked only around read(),
 * which the handler leaves by a jump.  Waiting until the terminal is readable and then reading
 * could block forever, because a terminal discards its input at Ctrl-C. */
static volatile sig_atomic_t interrupted, reading;
static sigjmp_buf leave_read;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
    if (reading)
        siglongjmp(leave_read, 1);
}

/* Read a byte from the terminal.  Returns the result of read(), or -1 after Ctrl-C. */
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
    static char text[32];       /* static, because libedit's callback returns a pointer */
    struct editor *d;
    el_get(el, EL_CLIENTDATA, &d);
    /* the blank comes last because libedit drops escape sequences at the end */
    snprintf(text, sizeof text, d->color ? "\1\33[1m\1%c\1\33[0m\1 " : "%c ", d->prompt[0]);
    return text;
}

/* Read one character from the terminal and return 1; 0 at the end of input, -1 after Ctrl-C. */
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

/* ---- bracketed paste: on request, a terminal marks pasted text with ESC[200~ and ESC[201~ ---- */

#define PASTE_ON "\33[?2004h"
#define PASTE_OFF "\33[?2004l"

/* Read pasted characters up to the end mark.  Every line ends with a newline character; other
 * control characters are dropped.  Caller frees; NULL: out of memory, or Ctrl-C. */
static wchar_t *read_paste(EditLine *el)
{
    static const wchar_t end[] = L"\33[201~";
    const size_t n_end = wcslen(end);
    size_t n = 0, room = 0;
    wchar_t *text = NULL, c, before = 0;
    for (;; before = c) {
        const int got = el_wgetc(el, &c);
        if (n + 2 > room) {
            wchar_t *p = realloc(text, (room = 2 * room + 256) * sizeof *p);
            if (!p)
                break;
            text = p;
        }
        if (got < 0 || interrupted)
            break;
        if (got == 0)
            goto done;
        if (c == L'\n' && before == L'\r')
            continue;
        text[n++] = c == L'\r' ? L'\n' : c;
        if (n >= n_end && wmemcmp(text + n - n_end, end, n_end) == 0) {
            n -= n_end;
            goto done;
        }
    }
    free(text);
    return NULL;
done:;
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if ((text[i] >= L' ' && text[i] != 0x7f) || text[i] == L'\n' || text[i] == L'\t')
            text[kept++] = text[i];
    while (kept && text[kept - 1] == L'\n')
        kept--;
    text[kept] = L'\0';
    return text;
}

/* libedit's handler of ESC[200~: the pasted lines are inserted into the edited line, and Enter
 * sends them as one turn. */
static unsigned char on_paste(EditLine *el, wint_t c)
{
    (void)c;
    wchar_t *text = read_paste(el);
    const int bad = !text || (*text && el_winsertstr(el, text) != 0);
    free(text);
    return bad ? CC_ERROR : CC_REFRESH;
}

/* ---- completion ---- */

static void print_completions(const struct editor *d, const struct completions *c)
{
    fputc('\n', d->out);
    for (int i = 0; i < c->n; i++)
        fprintf(d->out, "%s%s", c->word[i], i + 1 < c->n ? "  " : "\n");
    fflush(d->out);
}

/* libedit's handler of Tab: continue a command, a setting, a model or the name of a file. */
static unsigned char on_tab(EditLine *el, int c)
{
    struct editor *d;
    struct completions found;
    const LineInfo *line = el_line(el);
    const size_t n = (size_t)(line->cursor - line->buffer);
    int rc = CC_ERROR;
    char more[256];
    el_get(el, EL_CLIENTDATA, &d);
    if (n && line->buffer[0] == '/' && (session_takes_file(line->buffer, n)))
        return _el_fn_complete(el, c);
    chat_complete(&found, line->buffer, n);
    const size_t common = completions_common(&found), size = common > found.begun ? common - found.begun : 0;
    if (found.n && (size || found.n == 1) && size + 2 <= sizeof more) {
        snprintf(more, sizeof more, "%.*s%s", (int)size, found.word[0] + found.begun, found.n == 1 ? " " : "");
        rc = el_insertstr(el, more) == 0 ? CC_REFRESH : CC_ERROR;
    } else if (found.n > 1) {
        print_completions(d, &found);
        rc = CC_REDISPLAY;
    }
    completions_release(&found);
    return (unsigned char)rc;
}

/* Tell the terminal to mark pasted text (PASTE_ON), or to stop (PASTE_OFF). */
static void mark_paste(const struct editor *d, const char *what)
{
    if (!d->marks_paste)
        return;
    fputs(what, d->out);
    fflush(d->out);
}

/* The path STATE/zse/chat_history; its folder is made.  NULL: there is no place for the history,
 * which is not an error. */
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
    const int smart = term && strcmp(term, "dumb") != 0;
    d->color = isatty(STDOUT_FILENO) && !(no_color && *no_color) && smart;
    d->out = isatty(STDOUT_FILENO) ? stdout : stderr;
    d->marks_paste = smart && isatty(fileno(d->out));
    d->el = el_init("zse-chat", stdin, d->out, stderr);
    d->history = history_init();
    if (!d->el || !d->history)
        return;
    el_set(d->el, EL_CLIENTDATA, d);
    el_set(d->el, EL_GETCFN, read_char);
    el_set(d->el, EL_PROMPT_ESC, prompt_text, '\1');
    el_set(d->el, EL_EDITOR, "emacs");
    el_set(d->el, EL_HIST, history, d->history);
    el_set(d->el, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_wset(d->el, EL_ADDFN, L"zse-paste", L"Insert pasted text", on_paste);
    el_set(d->el, EL_BIND, "\\e[200~", "zse-paste", NULL);
    el_wset(d->el, EL_ADDFN, L"zse-complete", L"Continue a command or a name", on_tab);
    el_set(d->el, EL_BIND, "^I", "zse-complete", NULL);
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
    mark_paste(d, PASTE_ON);
    const char *line = el_gets(d->el, &n);
    mark_paste(d, PASTE_OFF);
    char *copy = line && n > 0 ? strdup(line) : NULL;
    sigaction(SIGINT, &before, NULL);
    sigprocmask(SIG_SETMASK, &d->outside, NULL);
    *was_interrupted = interrupted;
    if (interrupted || !copy) {
        fputc('\n', d->out);
        cli_flush();
        free(copy);
        return NULL;
    }
    if (copy[n - 1] == '\n')
        copy[n - 1] = '\0';
    if (*copy && strcmp(prompt, CHAT_QUESTION) != 0)
        history(d->history, &ev, H_ENTER, copy);
    return copy;
}

static int talk(const struct chat_options *o, struct chat_model **m, struct remote *r, int interactive)
{
    struct editor d;
    if (!interactive) {
        const int answered = chat_converse(o, m, r, NULL, NULL);
        return answered ? answered : cli_finish("zse-chat");
    }
    editor_open(&d);
    if (!d.el || !d.history) {
        cli_note("zse-chat", "out of memory");
        return CLI_FAILED;
    }
    int rc = chat_converse(o, m, r, read_line, &d);
    editor_close(&d);
    return rc ? rc : cli_finish("zse-chat");
}

static int run_remote(struct chat_options *o, int interactive)
{
    struct err e;
    struct remote *r = remote_open(o, &e);
    if (!r)
        return cli_fail("zse-chat", &e);
    int rc = interactive || o->reopen || o->tools || o->mcp_config ? talk(o, NULL, r, interactive) : remote_run(r, o);
    remote_close(r);
    return rc;
}

/* --plan: print the plan, generate nothing. */
static int plan(const struct chat_options *o)
{
    const int n = o->batch ? o->parallel : 1;
    struct engine_options eo;
    struct opened_model m;
    struct unopened u;
    struct err e;
    struct run_options r = o->run;
    r.verify = VERIFY_NEVER;            /* a plan reads no weights */
    int rc = unopened_find(&u, "zse-chat", o->model, &r, &e);
    if (rc == 1) {
        eo = run_engine_options(&r, n, context_of(&u.config, &r));
        rc = preflight_plan_unopened("zse-chat", &u, &r, &eo, o->json);
        unopened_release(&u);
    } else if (rc < 0 || open_model("zse-chat", o->model, &r, &m, &e) != 0) {
        return cli_fail("zse-chat", &e);
    } else {
        eo = run_engine_options(&r, n, context_len(&m, &r));
        rc = preflight_plan("zse-chat", &m, &r, &eo, o->json);
        close_model(&m);
    }
    const int written = cli_finish("zse-chat");
    return written ? written : rc;
}

static int run(struct chat_options *o, uint64_t main_ns)
{
    struct chat_model *cm;
    struct err e;
    int interactive = !o->plan && !o->prompt && !o->batch && !o->embed && isatty(STDIN_FILENO), rc;
    if (interactive && (o->raw || o->json || o->ids))
        return cli_wrong("zse-chat", "--raw, --json and --ids need a prompt: -p, --batch or standard input");
    if (!interactive && !o->plan && !o->batch && !o->embed && (rc = chat_read_prompt(o)) != 0)
        return rc;
    if (o->url)
        return run_remote(o, interactive);
    if (o->plan)
        return plan(o);
    if (!o->run.force)
        memory_watch_start("zse-chat");
    if (o->piped)
        main_ns = clock_ns();           /* waiting for standard input does not count as loading */
    if (interactive && !home_model_named(o->model) && (rc = chat_choose_model(o)) >= 0)
        return rc;
    if (!(cm = chat_model_open(o, o->model, &e)))
        return cli_fail("zse-chat", &e);
    struct opened_model *m = &cm->m;
    struct chat_marks marks = { .main = main_ns, .mapped = m->mapped_ns, .opened = clock_ns() };
    if (o->embed)
        rc = chat_embed(o, m);
    else if (chat_options_complete(o, m, &e) != 0 || chat_grammar_open(o, m, &e) != 0)
        rc = cli_fail("zse-chat", &e);
    else if (interactive || o->reopen || o->tools || o->mcp_config)
        rc = talk(o, &cm, NULL, interactive);
    else
        rc = o->batch ? chat_batch(o, m, &marks) : chat_once(o, m, &marks);
    if (rc == 0 && !interactive && open_model_verified(&cm->m, &e) != 0)
        rc = cli_fail("zse-chat", &e);
    chat_model_close(cm);
    return rc;
}

int main(int argc, char **argv)
{
    const uint64_t main_ns = clock_ns();
    struct chat_options o;
    cli_start();
    int rc = chat_options_parse(&o, argc, argv);
    if (rc < 0 && o.list_history)
        rc = (rc = chat_history_list(o.query, 200, o.json)) ? rc : cli_finish("zse-chat");
    else if (rc < 0)
        rc = run(&o, main_ns);
    chat_options_release(&o);
    return rc;
}
