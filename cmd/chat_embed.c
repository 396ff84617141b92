/* chat_embed.c - --embed: the vector of each line of standard input, as lines of JSON. */
#include "cmd/zse-chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* Embed up to o->parallel lines together.  Returns the number of lines, 0 at the end of the input;
 * -1 with *e. */
static int embed_some(const struct chat_options *o, const struct opened_model *m, struct engine *g,
                      struct embed_line *lines, long long first, int *n_failed, struct err *e)
{
    const char *prefix = prefix_of(&m->model->config, o->embed);
    char *text = NULL;
    size_t room = 0;
    ssize_t size;
    int n = 0, rc = 0;
    memset(lines, 0, (size_t)o->parallel * sizeof *lines);
    for (; n < o->parallel && (size = getline(&text, &room, stdin)) > 0; n++) {
        if (text[size - 1] == '\n')
            text[--size] = '\0';
        if (strlen(text) == (size_t)size) {
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
    free(text);
    cli_flush();
    return rc ? rc : n;
}

int chat_embed(const struct chat_options *o, const struct opened_model *m)
{
    struct err e;
    struct embed_line *lines = calloc((size_t)o->parallel, sizeof *lines);
    struct engine *g = NULL;
    long long done = 0;
    int n = 0, n_failed = 0;
    if (m->model->config.embedding.scores)
        n = err_set(&e, ERR_UNSUPPORTED, "%s: the model scores pairs of texts and makes no vectors", m->path);
    else if (!lines || !(g = open_engine(m, &o->run, o->parallel, 0, 0, &e)))
        n = lines ? -1 : err_nomem(&e, "lines");
    while (g && !ferror(stdout) && (n = embed_some(o, m, g, lines, done, &n_failed, &e)) > 0)
        done += n;
    engine_close(g);
    free(lines);
    if (n == 0 && ferror(stdin))
        n = err_sys(&e, "standard input");
    if (n < 0)
        return cli_fail(prog, &e);
    const int rc = cli_finish(prog);
    return rc ? rc : n_failed ? CLI_FAILED : 0;
}
