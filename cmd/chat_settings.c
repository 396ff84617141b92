/* chat_settings.c - change options within a conversation (/set), and count tokens (/tokens). */
#include "cmd/chat_session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"

static const char prog[] = "zse-chat";

/* ---- /set ---- */

static void print_settings(const struct chat_session *t)
{
    const struct chat_options *o = t->o;
    for (int i = 0; i < N_SAMPLING_OPTIONS; i++)
        if (!t->remote || o->given & 1u << i)
            printf("%-20s %g\n", sampling_options[i].flag, sampling_get(&o->sampling, &sampling_options[i]));
    if (!t->remote)
        printf("%-20s %llu\n", "seed", (unsigned long long)o->sampling.seed);
    printf("%-20s %d\n", "max-tokens", o->max_tokens);
    if (t->remote)
        printf("the server chooses the others\n");
}

void session_set(struct chat_session *t, const char *arg)
{
    const size_t n = strcspn(arg, " \t");
    const struct chat_options base = t->base, own = t->own;
    const char *value = arg + n + strspn(arg + n, " \t");
    struct err e;
    char *name;
    if (!*arg) {
        print_settings(t);
        return;
    }
    if (!(name = strndup(arg, n))) {
        cli_note(prog, "out of memory");
        return;
    }
    if (chat_options_set(&t->base, name, value) == 0) {         /* for the models of later /model, too */
        chat_options_set(&t->own, name, value);
        const int rc = t->remote ? remote_set_options(t->remote, &t->own, &e)
                                 : sampling_check(&t->own.sampling, t->m->model->config.vocab_size, &e);
        if (rc != 0) {
            cli_note(prog, "/set: %s", e.msg);
            t->base = base;
            t->own = own;
        }
    }
    free(name);
}

/* ---- /tokens ---- */

static void print_pieces(const struct chat_session *t, const int32_t *ids, int n)
{
    for (int i = 0; i < n; i++) {
        struct err e;
        char *piece = NULL;
        size_t size = 0;
        chat_write("|", i > 0);
        if (tokenizer_decode(t->m->tokenizer, &ids[i], 1, 0, &piece, &size, &e) == 0)
            chat_write(piece, size);
        free(piece);
    }
    putchar('\n');
}

void session_tokens(const struct chat_session *t, const char *text)
{
    struct err e;
    char *rendered = NULL;
    size_t size = strlen(text);
    int32_t *ids = NULL;
    int n;
    if (t->remote) {
        cli_note(prog, "the server has the tokenizer: /stats shows the tokens that it counted");
        return;
    }
    if ((!*text && prompter_render(&t->prompter, t->messages, t->functions, &rendered, &size, &e) != 0) ||
        prompter_encode(&t->prompter, rendered ? rendered : text, size, 0, &ids, &n, &e) != 0) {
        cli_note(prog, "%s", e.msg);
    } else if (*text) {
        printf("%d token%s\n", n, plural(n));
        print_pieces(t, ids, n);
    } else {
        printf("%d of %d tokens\n", n, context_len(t->m, &t->o->run));
    }
    free(ids);
    free(rendered);
}
