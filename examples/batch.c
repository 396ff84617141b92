/* batch.c - answer the lines of standard input, all at the same time, with objects that follow a
 * JSON schema; then print how similar in meaning each line is to the first.
 *
 *     cc batch.c $(pkg-config --cflags --libs zse) -lm -o batch
 *     printf '%s\n' one two three | ./batch model.zse */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <zse.h>

enum { MOST = 64, LINE = 4096 };
static const char schema[] = "{\"type\": \"object\", \"properties\": {\"yes\": {\"type\": \"boolean\"}}, "
                             "\"required\": [\"yes\"]}";

static int answer_all(struct zse_engine *g, struct zse_grammar *schema_grammar, char *const *line, int n,
                      struct zse_error *e)
{
    struct zse_request *request[MOST] = { NULL };
    int rc = 0;
    for (int i = 0; rc == 0 && i < n; i++) {
        struct zse_request_options o = { .size = sizeof o, .prompt = line[i], .add_special = 1, .max_tokens = 40,
                                         .sampling = "{\"temperature\": 0}", .grammar = schema_grammar };
        rc = (request[i] = zse_submit(g, &o, e)) ? 0 : -1;
    }
    for (int i = 0; i < n; i++) {
        struct zse_result result = { .size = sizeof result };
        if (rc == 0 && (rc = zse_wait(request[i], &result, e)) == 0)
            printf("%s\n", result.text);
        zse_request_free(request[i]);           /* also ends requests that still run after a failure */
    }
    return rc;
}

static int compare_all(struct zse_engine *g, char *const *line, int n, struct zse_error *e)
{
    float *v;
    int dim;
    if (zse_embed(g, (const char *const *)line, (size_t)n, ZSE_EMBED_PLAIN, &v, &dim, e) != 0)
        return -1;
    for (int i = 0; i < n; i++) {
        double cosine = 0;                      /* the vectors have length 1 */
        for (int j = 0; j < dim; j++)
            cosine += (double)v[j] * v[i * dim + j];
        printf("%.3f %s\n", cosine, line[i]);
    }
    zse_free(v);
    return 0;
}

int main(int argc, char **argv)
{
    static char text[MOST][LINE];
    char *line[MOST];
    struct zse_error e;
    struct zse_engine *g = NULL;
    struct zse_grammar *grammar = NULL;
    int n = 0, rc = -1;
    if (argc != 2) {
        fprintf(stderr, "usage: batch MODEL <LINES\n");
        return 2;
    }
    for (; n < MOST && fgets(text[n], LINE, stdin); n++) {
        text[n][strcspn(text[n], "\n")] = '\0';
        line[n] = text[n];
    }
    const struct zse_engine_options o = { .size = sizeof o, .max_len = 256, .max_requests = MOST };
    struct zse_model *m = zse_model_open(argv[1], NULL, &e);
    if (m && (grammar = zse_grammar_open(m, ZSE_JSON_SCHEMA, schema, strlen(schema), &e)) &&
        (g = zse_engine_open(m, &o, &e)) && answer_all(g, grammar, line, n, &e) == 0)
        rc = compare_all(g, line, n, &e);
    if (rc != 0)
        fprintf(stderr, "batch: %s\n", e.message);
    zse_engine_close(g);
    zse_grammar_close(grammar);
    zse_model_close(m);
    return rc != 0 || fflush(stdout) != 0;
}
