/* chat_embed.c - --embed: the vector of each line of standard input, as lines of JSON. */
#include "cmd/zse-chat.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "libcommon/base/json.h"

static const char prog[] = "zse-chat";

struct embed_line {
    int n_ids, size;
    float *vector;                      /* [size], owned; NULL: there is none */
    int ended;
    struct err refused;                 /* code ERR_NONE: not refused */
};

/* The text that the model expects before texts of this kind; borrowed. */
static const char *prefix_of(const struct config *c, const char *kind)
{
    const char *name = c->embedding.default_prompt;
    const char *text = *kind ? config_prompt(c, strcmp(kind, "document") == 0)
                       : name ? json_string_value(json_object_get(c->embedding.prompts, name)) : NULL;
    return text ? text : "";
}

static void on_vector(void *user, const struct token_event *ev)
{
    struct embed_line *l = user;
    if (ev->embedding && (l->vector = malloc((size_t)ev->n_embedding * sizeof *l->vector))) {
        memcpy(l->vector, ev->embedding, (size_t)ev->n_embedding * sizeof *l->vector);
        l->size = ev->n_embedding;
    }
    l->ended = ev->finish != FINISH_NONE;
    if (ev->error)
        l->refused = *ev->error;
}

/* Submit a line; the reason for a refusal goes to l->refused. */
static void submit(struct embed_line *l, struct engine *g, const struct opened_model *m, const char *prefix,
                   const char *text)
{
    const struct config *c = &m->model->config;
    char *both = NULL;
    int32_t *ids = NULL;
    size_t n;
    if (asprintf(&both, "%s%s", prefix, text) < 0)
        err_nomem(&l->refused, "text");
    else if (tokenizer_encode(m->tokenizer, both, strlen(both), TOKENIZE_ADD_SPECIAL, &ids, &n, &l->refused) == 0) {
        if (c->embedding.max_len && n > (size_t)c->embedding.max_len)
            err_set(&l->refused, ERR_LIMIT, "it has %zu tokens, expected at most %d", n, c->embedding.max_len);
        else {
            const struct request_params p = { .ids = ids, .n_ids = l->n_ids = (int)n, .n_logprobs = -1,
                                              .sampling = sampling_defaults(), .embed = config_pooling(c),
                                              .on_token = on_vector, .user = l };
            engine_submit(g, &p, &l->refused);
        }
    }
    l->ended |= l->refused.code != ERR_NONE;
    free(ids);
    free(both);
}

/* Print a line's vector or the reason why it has none.  0: it has one. */
static int print_line(struct embed_line *l, long long index)
{
    if (l->refused.code == ERR_NONE && !l->vector)
        err_nomem(&l->refused, "vector");
    if (l->refused.code != ERR_NONE) {
        cli_note(prog, "standard input: line %lld: %s", index + 1, l->refused.msg);
        chat_print_json(json_pack("{s:I, s:o}", "index", (json_int_t)index, "error", js_text(l->refused.msg)));
        return -1;
    }
    printf("{\"index\":%lld,\"tokens\":%d,\"embedding\":[", index, l->n_ids);
    for (int i = 0; i < l->size; i++)
        printf("%s%.9g", i ? "," : "", (double)l->vector[i]);
    printf("]}\n");
    return 0;
}

/* ---- lines of standard input ---- */

struct embed_input {
    char *data;                         /* [size], owned: what was read; lines before `taken` are done */
    size_t size, room, taken, searched; /* there is no newline from taken to searched */
    int ended, failed;                  /* failed: the value of errno */
};

/* Read more from standard input. */
static void read_more(struct embed_input *in)
{
    enum { PART = 1 << 16 };
    if (in->taken) {
        memmove(in->data, in->data + in->taken, in->size -= in->taken);
        in->searched -= in->taken;
        in->taken = 0;
    }
    if (in->room - in->size < PART) {
        char *p = realloc(in->data, 2 * in->room + PART);
        if (!p) {
            in->failed = ENOMEM;
            return;
        }
        in->data = p;
        in->room = 2 * in->room + PART;
    }
    const ssize_t n = read(STDIN_FILENO, in->data + in->size, in->room - in->size - 1);
    in->ended = n == 0;
    in->failed = n < 0 && errno != EINTR ? errno : 0;
    in->size += n > 0 ? (size_t)n : 0;
}

/* The next line, with a zero instead of its newline, valid until the next call.  NULL: the input
 * has ended or failed; without `wait` also: no whole line is there yet. */
static char *next_line(struct embed_input *in, int wait, size_t *size)
{
    struct pollfd ready = { .fd = STDIN_FILENO, .events = POLLIN };
    char *end = NULL;
    while (!in->failed && !in->ended &&
           !(end = in->data ? memchr(in->data + in->searched, '\n', in->size - in->searched) : NULL)) {
        in->searched = in->size;
        if (!wait && poll(&ready, 1, 0) == 0)
            return NULL;
        read_more(in);
    }
    if (in->failed || !in->data || (!end && in->taken == in->size))
        return NULL;
    end = end ? end : in->data + in->size;      /* read_more() leaves room for the zero */
    *end = '\0';
    char *line = in->data + in->taken;
    *size = (size_t)(end - line);
    in->taken = in->searched = end < in->data + in->size ? (size_t)(end + 1 - in->data) : in->size;
    return line;
}

/* Embed together the lines that are there, at least one and up to o->parallel.  Returns the number
 * of lines, 0 at the end of the input; -1 with *e. */
static int embed_some(const struct chat_options *o, const struct opened_model *m, struct engine *g,
                      struct embed_input *in, struct embed_line *lines, long long first, int *n_failed, struct err *e)
{
    const char *prefix = prefix_of(&m->model->config, o->embed), *text;
    size_t size;
    int n = 0, rc = 0;
    memset(lines, 0, (size_t)o->parallel * sizeof *lines);
    for (; n < o->parallel && (text = next_line(in, n == 0, &size)); n++) {
        if (strlen(text) == size) {
            submit(&lines[n], g, m, prefix, text);
        } else {
            err_set(&lines[n].refused, ERR_FORMAT, "it has a zero byte");
            lines[n].ended = 1;
        }
    }
    for (int i = 0; rc == 0 && i < n; i++)
        while (rc == 0 && !lines[i].ended)
            rc = engine_step(g, e) < 0 ? -1 : 0;
    for (int i = 0; i < n; i++) {
        *n_failed += rc == 0 && print_line(&lines[i], first + i) != 0;
        free(lines[i].vector);
    }
    cli_flush();
    return rc ? rc : n;
}

int chat_embed(const struct chat_options *o, const struct opened_model *m)
{
    struct err e;
    struct embed_line *lines = calloc((size_t)o->parallel, sizeof *lines);
    struct engine *g = NULL;
    struct embed_input in = { 0 };
    long long done = 0;
    int n = 0, n_failed = 0;
    if (m->model->config.embedding.scores)
        n = err_set(&e, ERR_UNSUPPORTED, "%s: the model scores pairs of texts and makes no vectors", m->path);
    else if (!lines || !(g = open_engine(m, &o->run, o->parallel, 0, 0, &e)))
        n = lines ? -1 : err_nomem(&e, "lines");
    while (g && !ferror(stdout) && (n = embed_some(o, m, g, &in, lines, done, &n_failed, &e)) > 0)
        done += n;
    engine_close(g);
    free(lines);
    free(in.data);
    errno = in.failed;
    if (n == 0 && in.failed)
        n = err_sys(&e, "standard input");
    if (n < 0)
        return cli_fail(prog, &e);
    const int rc = cli_finish(prog);
    return rc ? rc : n_failed ? CLI_FAILED : 0;
}
