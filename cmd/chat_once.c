/* chat_once.c - answer one prompt, or a file of them, on standard output. */
#include "cmd/zse-chat.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/json.h"

static const char prog[] = "zse-chat";

char *chat_read_all(FILE *f, const char *name, size_t *size, struct err *e)
{
    size_t room = 0, n = 0, got;
    char *text = NULL;
    do {
        if (n + 65536 > room) {
            char *p = realloc(text, room = 2 * room + 65536 + 1);
            if (!p) {
                free(text);
                err_nomem(e, "prompt");
                return NULL;
            }
            text = p;
        }
        got = fread(text + n, 1, room - n - 1, f);
        n += got;
    } while (got);
    if (ferror(f)) {
        free(text);
        err_sys(e, "%s", name);
        return NULL;
    }
    text[n] = '\0';
    *size = n;
    return text;
}

/* Whether standard input is part of the prompt of -p: a pipe, a file or a socket is; a terminal,
 * /dev/null and a closed descriptor are not. */
static int stdin_adds(void)
{
    struct stat st;
    return fstat(STDIN_FILENO, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISREG(st.st_mode) || S_ISSOCK(st.st_mode));
}

/* A pipe inherited from ssh or a CI runner may never end: tell the user what the program waits
 * for. */
static void note_silence(void)
{
    enum { SILENCE_MS = 2000 };
    struct pollfd p = { .fd = STDIN_FILENO, .events = POLLIN };
    if (!isatty(STDIN_FILENO) && poll(&p, 1, SILENCE_MS) == 0)
        cli_note(prog, "waiting for standard input, which is part of the prompt (</dev/null gives none)");
}

static char *read_stdin(struct chat_options *o, size_t *size, struct err *e)
{
    note_silence();
    o->piped = 1;
    char *text = chat_read_all(stdin, "standard input", size, e);
    if (text && *size && text[*size - 1] == '\n')
        text[--*size] = '\0';
    return text;
}

static int is_blank(const char *text, size_t size)
{
    size_t n = 0;
    while (n < size && strchr(" \t\r\n", text[n]) && text[n])
        n++;
    return n == size;
}

int chat_prompt_is_empty(const struct chat_options *o, const char *text, size_t size)
{
    return o->raw ? size == 0 : is_blank(text, size);
}

/* Append to the text of -p a blank line and the text of standard input. */
static int join_stdin(struct chat_options *o, struct err *e)
{
    size_t size;
    char *more = read_stdin(o, &size, e), *both;
    if (!more || is_blank(more, size)) {
        free(more);
        return more ? 0 : -1;
    }
    const size_t first = is_blank(o->text, o->text_size) ? 0 : o->text_size, gap = first ? 2 : 0;
    if (!(both = malloc(first + gap + size + 1))) {
        free(more);
        return err_nomem(e, "prompt");
    }
    memcpy(both, o->text, first);
    memcpy(both + first, "\n\n", gap);
    memcpy(both + first + gap, more, size + 1);
    free(more);
    free(o->text);
    o->text = both;
    o->text_size = first + gap + size;
    return 0;
}

/* Put the files before the text. */
static int join_files(struct chat_options *o, struct err *e)
{
    char *files = NULL, *both = NULL;
    if (!o->n_files)
        return 0;
    if (chat_attach_all(&files, o, e) == 0) {
        const size_t n = files ? strlen(files) : 0;
        if (!(both = malloc(n + o->text_size + 1)))
            err_nomem(e, "prompt");
        else {
            memcpy(both, files, n);
            memcpy(both + n, o->text, o->text_size + 1);
            free(o->text);
            o->text = both;
            o->text_size += n;
        }
    }
    free(files);
    return both ? 0 : -1;
}

int chat_read_prompt(struct chat_options *o)
{
    struct err e;
    const int given = o->prompt && strcmp(o->prompt, "-") != 0;
    if (!given)
        o->text = read_stdin(o, &o->text_size, &e);
    else if ((o->text = strdup(o->prompt)))
        o->text_size = strlen(o->prompt);
    else
        err_nomem(&e, "prompt");
    if (!o->text || (given && stdin_adds() && join_stdin(o, &e) != 0) || join_files(o, &e) != 0)
        return cli_fail(prog, &e);
    if (chat_template_needs_input(o) && chat_prompt_is_empty(o, o->text, o->text_size))
        return cli_wrong(prog, CHAT_EMPTY);
    if (chat_template_apply(o, &o->text, &o->text_size, &e) != 0)
        return cli_fail(prog, &e);
    return chat_prompt_is_empty(o, o->text, o->text_size) ? cli_wrong(prog, CHAT_EMPTY) : 0;
}

void chat_print_json(json_t *j)
{
    json_dumpf(j, stdout, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(j);
}

static void print_ids(const struct answer *a)
{
    putchar('[');
    for (int i = 0; i < a->n_ids; i++)
        printf("%s%d", i ? ", " : "", (int)a->ids[i]);
    fputs("]\n", stdout);
}

static int run_one(const struct chat_options *o, const struct opened_model *m, struct chat_marks *marks,
                   const int32_t *ids, int n, struct err *e)
{
    int context = context_len(m, &o->run), rc = -1;
    /* only as much memory as this answer needs */
    int len = o->max_tokens && o->max_tokens < context - n ? n + o->max_tokens : context;
    struct answer a = { .stream = !o->json && !o->ids, .wraps = !o->no_wrap };
    struct engine *g = open_engine(m, &o->run, 1, len, 0, e);
    if (!g || answer_start(&a, g, o, ids, n, e) != 0)
        goto done;
    marks->ready = clock_ns();
    while ((rc = engine_step(g, e)) > 0 && !ferror(stdout))
        answer_progress(&a, g);
    struct engine_stats s;
    engine_stats(g, &s);
    if (s.device.name) {
        marks->device = s.device.begun_ns;
        marks->context = s.device.context_ns;
        /* 0: the first token used all weights, but the loaders have not yet reported the end */
        marks->copied = s.device.copied_ns ? s.device.copied_ns : a.first_ns;
    }
    if (rc > 0)
        rc = 0;                         /* standard output is closed: cli_finish reports it */
    if (rc == 0 && a.finish == FINISH_ERROR) {
        *e = a.error;
        rc = -1;
    } else if (rc == 0 && a.nomem) {
        rc = err_nomem(e, "answer");
    }
    if (rc == 0 && o->json)
        chat_print_json(answer_json(&a, o, marks));
    else if (rc == 0 && o->ids)
        print_ids(&a);
    else if (a.size == 0 || a.text[a.size - 1] != '\n')
        putchar('\n');
    cli_flush();                     /* before memory is freed, which takes time; cli_finish reports errors */
    if (rc == 0 && o->run.verbose && o->run.spec != SPEC_OFF)
        cli_note(prog, "guesses: %d token%s, %d of them right; %d token%s of the answer", a.stats.n_drafted,
                 plural(a.stats.n_drafted), a.stats.n_accepted, a.stats.n_generated, plural(a.stats.n_generated));
    if (rc == 0 && o->grammar && a.finish == FINISH_LENGTH)
        rc = err_set(e, ERR_LIMIT, "the answer was cut off at %d token%s: it is not complete", a.stats.n_generated,
                     plural(a.stats.n_generated));
done:
    engine_close(g);
    answer_release(&a);
    return rc;
}

int chat_once(const struct chat_options *o, const struct opened_model *m, struct chat_marks *marks)
{
    struct err e;
    struct prompter p;
    int32_t *ids = NULL;
    int n, rc = prompter_open(&p, m, o, 0, &e);
    if (rc == 0 && (rc = prompter_question(&p, o->system, o->text, o->text_size, &ids, &n, &e)) == 0) {
        marks->tokenized = clock_ns();
        rc = run_one(o, m, marks, ids, n, &e);
    }
    free(ids);
    prompter_close(&p);
    if (rc != 0) {
        cli_flush();
        return cli_fail(prog, &e);
    }
    return cli_finish(prog);
}

/* ---- --batch ---- */

struct prompt_line {
    int32_t *ids; int n;
    struct answer answer;
    struct err refused;                 /* code ERR_NONE: not refused */
};

void chat_print_escaped(const char *text, size_t size)
{
    for (size_t i = 0, n; i < size; i += n + 1) {
        for (n = 0; i + n < size && text[i + n] != '\n' && text[i + n] != '\\'; n++)
            ;
        chat_write(text + i, n);
        if (i + n < size)
            fputs(text[i + n] == '\n' ? "\\n" : "\\\\", stdout);
    }
    putchar('\n');
}

/* Print an answer, or the reason why it is missing: one bad prompt must not spoil the others.  0:
 * there is no complete answer. */
static int print_line(struct prompt_line *l, const struct chat_options *o, int number, const struct chat_marks *marks)
{
    struct answer *a = &l->answer;
    if (a->finish == FINISH_ERROR)
        l->refused = a->error;
    else if (a->nomem)
        err_nomem(&l->refused, "answer");
    if (l->refused.code != ERR_NONE) {
        cli_note(prog, "%s: line %d: %s", o->batch, number, l->refused.msg);
        if (o->json || o->ids)
            chat_print_json(json_pack("{s:o}", "error", js_text(l->refused.msg)));
        else
            printf("error: %s\n", l->refused.msg);
    } else if (o->json)
        chat_print_json(answer_json(a, o, marks));
    else if (o->ids)
        print_ids(a);
    else
        chat_print_escaped(a->text, a->size);
    const int cut = o->grammar && l->refused.code == ERR_NONE && a->finish == FINISH_LENGTH;
    if (cut)
        cli_note(prog, "%s: line %d: the answer was cut off at %d token%s: it is not complete", o->batch, number,
                 a->stats.n_generated, plural(a->stats.n_generated));
    cli_flush();
    answer_release(a);
    return l->refused.code == ERR_NONE && !cut;
}

/* Tokenize each line of text. */
static struct prompt_line *read_lines(const struct chat_options *o, const struct prompter *p, char *text, size_t size,
                               int *n_lines, struct err *e)
{
    int n = 0;
    for (size_t i = 0; i < size; i++)
        n += text[i] == '\n' || i == size - 1;
    struct prompt_line *lines = calloc((size_t)n + 1, sizeof *lines);
    *n_lines = n;
    if (!lines) {
        err_nomem(e, "prompts");
        return NULL;
    }
    for (int i = 0; i < n; i++) {
        size_t len = strcspn(text, "\n");
        if (chat_prompt_is_empty(o, text, len))
            err_set(&lines[i].refused, ERR_FORMAT, CHAT_EMPTY);
        else
            prompter_question(p, o->system, text, len, &lines[i].ids, &lines[i].n, &lines[i].refused);
        text += len + 1;
    }
    return lines;
}

static int run_batch(const struct chat_options *o, const struct opened_model *m, const struct chat_marks *marks,
                     struct prompt_line *lines, int n, struct err *e)
{
    int context = context_len(m, &o->run), parallel = n < o->parallel ? n : o->parallel, len = 2, rc = 0, started = 0,
        printed = 0, n_failed = 0;
    for (int i = 0; i < n; i++) {
        if (lines[i].n >= context)
            err_set(&lines[i].refused, ERR_LIMIT,
                    "the prompt has %d token%s: with a context of %d no room is left for an answer", lines[i].n,
                    plural(lines[i].n), context);
        if (lines[i].refused.code != ERR_NONE)
            continue;
        int want = o->max_tokens && o->max_tokens < context - lines[i].n ? lines[i].n + o->max_tokens : context;
        len = want > len ? want : len;
    }
    struct engine *g = open_engine(m, &o->run, parallel, len, 0, e);
    if (!g)
        return -1;
    while (rc == 0 && printed < n && !ferror(stdout)) {
        struct engine_stats s;
        engine_stats(g, &s);
        for (int room = 2 * parallel - s.n_running - s.n_waiting; room > 0 && started < n; room--, started++) {
            struct prompt_line *l = &lines[started];
            if (l->refused.code == ERR_NONE)
                answer_start(&l->answer, g, o, l->ids, l->n, &l->refused);
        }
        if (engine_step(g, e) < 0)
            rc = -1;
        for (; rc == 0 && printed < started && (lines[printed].refused.code != ERR_NONE ||
                                                lines[printed].answer.finish != FINISH_NONE); printed++)
            n_failed += !print_line(&lines[printed], o, printed + 1, marks);
    }
    engine_close(g);
    if (rc == 0 && n_failed)
        rc = err_set(e, ERR_LIMIT, "%s: %d of %d prompts have no %sanswer", o->batch, n_failed, n,
                     o->grammar ? "complete " : "");
    return rc;
}

int chat_batch(const struct chat_options *o, const struct opened_model *m, const struct chat_marks *marks)
{
    struct err e;
    struct prompter p;
    struct prompt_line *lines = NULL;
    size_t size;
    char *text = NULL;
    int n = 0, rc = prompter_open(&p, m, o, 0, &e);
    int is_stdin = strcmp(o->batch, "-") == 0;
    FILE *f = rc != 0 ? NULL : is_stdin ? stdin : fopen(o->batch, "r");
    if (rc == 0 && !f)
        rc = err_sys(&e, "%s", o->batch);
    if (rc == 0 && !(text = chat_read_all(f, o->batch, &size, &e)))
        rc = -1;
    if (rc == 0 && size && !(lines = read_lines(o, &p, text, size, &n, &e)))
        rc = -1;
    if (rc == 0 && n)
        rc = run_batch(o, m, marks, lines, n, &e);
    for (int i = 0; lines && i < n; i++) {
        free(lines[i].ids);
        answer_release(&lines[i].answer);
    }
    free(lines);
    free(text);
    if (f && !is_stdin)
        fclose(f);
    prompter_close(&p);
    if (rc != 0) {
        cli_flush();
        return cli_fail(prog, &e);
    }
    return cli_finish(prog);
}
