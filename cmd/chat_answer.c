/* chat_answer.c - collect the answer to one request, and print it as text or JSON. */
#include "cmd/zse-chat.h"
#include "cmd/chat_wrap.h"
#include "cmd/cli.h"
#include "libcommon/grammar/constrain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/tools/round.h"

const char *finish_name(enum finish f)
{
    static const char *const names[] = { [FINISH_NONE] = "none", [FINISH_STOP] = "stop", [FINISH_LENGTH] = "length",
                                         [FINISH_CANCELLED] = "cancelled", [FINISH_ERROR] = "error",
                                         [FINISH_DEADLINE] = "deadline", [FINISH_REFUSED] = "refused" };
    return names[f];
}

/* Write text to a terminal.  The model must not control it: control characters become '?', except
 * tab and newline. */
static void write_terminal(const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)text[i], next = i + 1 < size ? (unsigned char)text[i + 1] : 0;
        /* U+0080 to U+009F: U+009B starts a control sequence, as ESC [ does */
        int c1 = c == 0xC2 && next >= 0x80 && next < 0xA0;
        putchar((c < ' ' && c != '\n' && c != '\t') || c == 0x7f || c1 ? '?' : c);
        i += (size_t)c1;
    }
}

void chat_write(const char *text, size_t size)
{
    if (isatty(STDOUT_FILENO))
        write_terminal(text, size);
    else
        fwrite(text, 1, size, stdout);
}

/* Columns of the terminal now; 0: not known. */
static int terminal_width(void)
{
    struct winsize size;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

void chat_write_wrapped(const char *text, size_t size, int at)
{
    struct line_wrap w = { .write = write_terminal, .width = terminal_width };
    wrap_begin(&w, at);
    wrap_write(&w, text, size);
    wrap_end(&w);
}

/* Write a piece of the answer.  On a terminal the end of its last word waits for the next piece. */
static void write_piece(struct answer *a, const char *text, size_t n)
{
    if (a->wraps && !a->wrap && isatty(STDOUT_FILENO) && (a->wrap = calloc(1, sizeof *a->wrap))) {
        a->wrap->write = write_terminal;
        a->wrap->width = terminal_width;
    }
    if (a->wrap)
        wrap_write(a->wrap, text, n);
    else
        chat_write(text, n);
}

/* Append to a text that ends with '\0'.  Returns nonzero if memory runs out. */
static int grow(char **text, size_t *size, size_t *room, const char *more, size_t n)
{
    if (*size + n + 1 > *room) {
        const size_t want = 2 * *room + n + 256;
        char *p = realloc(*text, want);
        if (!p)
            return 1;
        *text = p;
        *room = want;
    }
    if (n)
        memcpy(*text + *size, more, n);
    *size += n;
    (*text)[*size] = '\0';
    return 0;
}

static int is_plain(void)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    return (no_color && *no_color) || !term || strcmp(term, "dumb") == 0;
}

/* Show reasoning apart from the answer, and only on a terminal. */
static void show_thinking(struct answer *a, int on)
{
    if (!a->stream || !isatty(STDOUT_FILENO) || a->thinking == on)
        return;
    a->thinking = on;
    if (a->wrap)
        wrap_end(a->wrap);
    if (is_plain())
        fputs(on ? "<think>\n" : "\n</think>\n", stdout);
    else
        fputs(on ? "\33[2m" : "\33[0m\n\n", stdout);
    if (a->wrap && (!on || is_plain()))
        wrap_begin(a->wrap, 0);
}

void answer_end(struct answer *a)
{
    show_thinking(a, 0);
    if (a->wrap)
        wrap_end(a->wrap);
}

void answer_add(struct answer *a, const char *text, size_t n, int thought)
{
    if (!n)
        return;
    a->nomem |= thought ? grow(&a->reasoning, &a->reasoning_size, &a->reasoning_room, text, n)
                        : grow(&a->text, &a->size, &a->room, text, n);
    show_thinking(a, thought);
    if (!a->stream || (thought && !isatty(STDOUT_FILENO)))
        return;
    write_piece(a, text, n);
    cli_flush();
}

struct answer_call *answer_call_at(struct answer *a, int i)
{
    if (i < a->n_calls)
        return i < 0 ? NULL : &a->call[i];
    struct answer_call *p = i > a->n_calls || i >= ROUND_CALLS_MAX
                                ? NULL : realloc(a->call, (size_t)(i + 1) * sizeof *p);
    if (!p)
        return NULL;
    a->call = p;
    a->n_calls = i + 1;
    a->call[i] = (struct answer_call){ .name = NULL };
    return &a->call[i];
}

void answer_call_add(struct answer *a, struct answer_call *c, const char *arguments, size_t size)
{
    a->nomem |= grow(&c->arguments, &c->size, &c->room, arguments, size);
}

static void on_part(void *user, const struct tool_event *ev)
{
    struct answer *a = user;
    struct answer_call *c = ev->kind == TOOL_CALL || ev->kind == TOOL_ARGUMENTS ? answer_call_at(a, ev->index) : NULL;
    if (ev->kind == TOOL_CONTENT || ev->kind == TOOL_REASONING) {
        answer_add(a, ev->text, ev->size, ev->kind == TOOL_REASONING);
    } else if (c && ev->kind == TOOL_CALL) {
        c->id = strdup(ev->id);
        c->name = strndup(ev->text, ev->size);
        a->nomem |= !c->id || !c->name;
    } else if (c) {
        answer_call_add(a, c, ev->text, ev->size);
    }
}

static void add_raw(struct answer *a, const struct token_event *ev)
{
    struct err e;
    a->nomem |= grow(&a->raw, &a->raw_size, &a->raw_room, ev->text, ev->size) ||
                tool_parser_push(a->parser, ev->text, ev->size, &e) != 0 ||
                (ev->finish != FINISH_NONE && tool_parser_finish(a->parser, &e) != 0);
}

/* Show a line about the prompt in place of the last one; "": remove it. */
static void show_progress(struct answer *a, const char *line)
{
    enum { WIDTH = 48 };
    if (a->progress)
        fprintf(stderr, "\r%*s\r", WIDTH, "");
    fputs(line, stderr);
    fflush(stderr);
    a->progress = *line != '\0';
}

void answer_progress(struct answer *a, struct engine *g)
{
    static const uint64_t quiet_ns = 300000000;
    struct engine_stats s;
    struct request_stats r;
    char line[48];
    if (a->finish != FINISH_NONE || a->n_ids || !a->stream || clock_ns() - a->start_ns < quiet_ns ||
        !isatty(STDOUT_FILENO) || !isatty(STDERR_FILENO))
        return;
    engine_stats(g, &s);
    request_stats(a->request, &r);
    const uint64_t done = s.tokens - a->tokens_before + (uint64_t)r.n_cached;
    snprintf(line, sizeof line, "%llu of %d tokens of the prompt", (unsigned long long)done, r.n_prompt);
    show_progress(a, line);
}

static void on_token(void *user, const struct token_event *ev)
{
    struct answer *a = user;
    int32_t id = ev->id;
    if (a->progress)
        show_progress(a, "");
    if (id >= 0 && a->n_ids == a->ids_room) {
        int room = 2 * a->ids_room + 64;
        int32_t *p = realloc(a->ids, (size_t)room * sizeof *p);
        a->nomem |= !p;
        if (!p)
            id = -1;
        else
            a->ids = p, a->ids_room = room;
    }
    if (id >= 0 && a->n_ids == 0)
        a->first_ns = clock_ns();
    if (id >= 0)
        a->ids[a->n_ids++] = id;
    if (a->parser)
        add_raw(a, ev);
    else
        answer_add(a, ev->text, ev->size, 0);
    a->finish = ev->finish;
    if (a->finish == FINISH_NONE)
        return;
    answer_end(a);
    request_stats(a->request, &a->stats);
    if (ev->error)
        a->error = *ev->error;
}

int answer_start(struct answer *a, struct engine *g, const struct chat_options *o, const int32_t *ids, int n,
                 struct err *e)
{
    struct constraint c = { .state = NULL };
    struct grammar *grammar = a->tools ? a->tools->grammar : o->grammar;
    if (a->tools) {
        const struct tool_parser_options po = { .tools = a->tools->functions, .reasoning = a->tools->thinking,
                                                .stream_arguments = 1, .seed = clock_ns(), .on_event = on_part,
                                                .user = a };
        if (!(a->parser = tool_parser_open(a->tools->format, &po, e)))
            return -1;
    }
    if (grammar && constrain(&c, grammar, e) != 0)
        return -1;
    const struct request_params p = { .ids = ids, .n_ids = n, .sampling = o->sampling, .max_tokens = o->max_tokens,
                                      .stop = o->stop, .n_stop = o->n_stop,
                                      .ignore_eos = o->ignore_eos, .n_logprobs = -1, .lora = o->run.n_loras,
                                      .keep_special = a->tools != NULL,
                                      .constraint = grammar ? &c : NULL, .on_token = on_token, .user = a };
    struct engine_stats s;
    engine_stats(g, &s);
    a->start_ns = clock_ns();
    a->tokens_before = s.tokens;
    if ((a->request = engine_submit(g, &p, e)))
        return 0;
    matcher_close(c.state);
    return -1;
}

void answer_release(struct answer *a)
{
    free(a->text);
    free(a->ids);
    free(a->reasoning);
    free(a->raw);
    free(a->wrap);
    for (int i = 0; i < a->n_calls; i++) {
        free(a->call[i].id);
        free(a->call[i].name);
        free(a->call[i].arguments);
    }
    free(a->call);
    tool_parser_close(a->parser);
    memset(a, 0, sizeof *a);
}

static double rate(int n, double s) { return s > 0 ? n / s : 0; }

/* Absolute times, so that the parent process can compute the time since it started this one. */
static json_t *marks_json(const struct chat_marks *m, uint64_t first_ns)
{
    json_t *j = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "main", (json_int_t)m->main, "mapped",
                          (json_int_t)m->mapped, "opened", (json_int_t)m->opened, "tokenized", (json_int_t)m->tokenized,
                          "ready", (json_int_t)m->ready, "first_token", (json_int_t)first_ns);
    if (m->device)
        json_object_update_new(j, json_pack("{s:I, s:I, s:I}", "device", (json_int_t)m->device, "context",
                                            (json_int_t)m->context, "copied", (json_int_t)m->copied));
    return j;
}

json_t *answer_json(const struct answer *a, const struct chat_options *o, const struct chat_marks *marks)
{
    const struct request_stats *s = &a->stats;
    json_t *j = json_pack("{s:s%, s:s, s:{s:i, s:i, s:i, s:i}, s:I}", "text", a->text ? a->text : "", a->size,
                          "finish_reason", finish_name(a->finish), "usage", "prompt_tokens", s->n_prompt,
                          "completion_tokens", s->n_generated, "total_tokens", s->n_prompt + s->n_generated,
                          "cached_tokens", s->n_cached, "seed", (json_int_t)o->sampling.seed);
    json_object_set_new(j, "timings", json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "load_s",
                                                (double)(marks->opened - marks->main) * 1e-9, "first_token_s",
                                                s->first_token_s, "prefill_s", s->prefill_s, "decode_s", s->decode_s,
                                                "prefill_tokens_per_s", rate(s->n_prompt - s->n_cached, s->prefill_s),
                                                "decode_tokens_per_s", rate(s->n_generated - 1, s->decode_s)));
    if (marks->ready)
        json_object_set_new(json_object_get(j, "timings"), "marks_ns", marks_json(marks, a->first_ns));
    if (o->run.spec != SPEC_OFF)
        json_object_set_new(j, "speculation", json_pack("{s:i, s:i}", "drafted_tokens", s->n_drafted, "accepted_tokens",
                                                        s->n_accepted));
    if (o->grammar)
        json_object_set_new(j, "complete", json_boolean(answer_complete(a, o)));
    if (o->ids) {
        json_t *ids = json_array();
        for (int i = 0; i < a->n_ids; i++)
            json_array_append_new(ids, json_integer(a->ids[i]));
        json_object_set_new(j, "ids", ids);
    }
    return j;
}
