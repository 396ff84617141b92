/* generate.c - answer a question and print the answer as it is made.
 *
 *     cc generate.c $(pkg-config --cflags --libs zse) -o generate
 *     ./generate model.zse 'Why is the sky blue?' [SAMPLING]
 *
 * SAMPLING is a JSON object such as {"temperature": 0}.  Ctrl-C ends the answer. */
#define _POSIX_C_SOURCE 200809L
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zse.h>

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

static int print(void *user, const struct zse_event *ev)
{
    (void)user;
    fwrite(ev->text, 1, ev->text_size, stdout);
    fflush(stdout);
    return interrupted || ferror(stdout);       /* not 0: end the answer */
}

/* A string of JSON; the caller frees it. */
static char *quote(const char *text)
{
    char *out = malloc(6 * strlen(text) + 3), *p = out;
    if (!out)
        return NULL;
    *p++ = '"';
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            *p++ = '\\', *p++ = *text;
        else if ((unsigned char)*text < ' ')
            p += sprintf(p, "\\u%04x", (unsigned char)*text);
        else
            *p++ = *text;
    strcpy(p, "\"");
    return out;
}

/* The text that the model reads: the question in the form of the model's chat template, or
 * unchanged if the model has none.  NULL with *e. */
static char *prompt_of(const struct zse_model *m, const char *question, int *is_plain, struct zse_error *e)
{
    char *quoted = quote(question), *messages = NULL, *text = NULL;
    size_t size;
    if (quoted && (messages = malloc(strlen(quoted) + 64))) {
        sprintf(messages, "[{\"role\": \"user\", \"content\": %s}]", quoted);
        *is_plain = zse_render(m, messages, NULL, &text, &size, e) != 0 && e->code == ZSE_ERROR_UNSUPPORTED;
        if (*is_plain)
            text = strdup(question);
    }
    free(quoted);
    free(messages);
    return text;
}

int main(int argc, char **argv)
{
    struct zse_error e = { .message = "out of memory" };
    struct zse_request *r = NULL;
    struct zse_engine *g = NULL;
    char *prompt = NULL;
    int plain = 0, ok = 0;
    if (argc != 3 && argc != 4) {
        fprintf(stderr, "usage: generate MODEL QUESTION [SAMPLING]\n");
        return 2;
    }
    signal(SIGINT, on_interrupt);
    struct zse_model *m = zse_model_open(argv[1], NULL, &e);
    if (m && (prompt = prompt_of(m, argv[2], &plain, &e)) && (g = zse_engine_open(m, NULL, &e))) {
        struct zse_request_options o = { .size = sizeof o, .prompt = prompt, .add_special = plain,
                                         .sampling = argv[3], .on_event = print };
        r = zse_submit(g, &o, &e);
        ok = r && zse_wait(r, NULL, &e) == 0;
        putchar('\n');
    }
    if (!ok)
        fprintf(stderr, "generate: %s\n", e.message);
    zse_request_free(r);
    zse_engine_close(g);
    zse_model_close(m);
    free(prompt);
    return !ok || fflush(stdout) != 0;
}
