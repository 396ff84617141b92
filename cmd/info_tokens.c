/* info_tokens.c - zse-info tokenize and detokenize: convert between text and token ids. */
#include "cmd/info_tokens.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "cmd/cli.h"
#include "cmd/home.h"
#include "libcommon/convert/tokenizer_source.h"
#include "libcommon/token/tokenizer.h"

static const char tokenize_usage[] =
    "usage: zse-info tokenize [OPTIONS] MODEL\n"
    "Reads text, writes a JSON array of token ids.  MODEL is a .zse, a GGUF file, a folder with tokenizer.json (and tokenizer_config.json)\n"
    "or tokenizer.model, or one of these two files.\n"
    "      --add-special         add BOS and EOS, or what else the tokenizer puts around a text\n"
    "      --no-parse-special    take special tokens in the text, such as <|im_end|>, as plain text\n"
    "      --jsonl               one JSON string a line in, one array a line out\n"
    "  -h, --help                show this help\n"
    "  -V, --version             show the version\n";

static const char detokenize_usage[] =
    "usage: zse-info detokenize [OPTIONS] MODEL\n"
    "Reads JSON arrays of token ids, writes the text of each as a JSON string on a line.  MODEL as for zse-info tokenize.\n"
    "      --skip-special        leave special tokens out\n"
    "      --jsonl               one array a line\n"
    "  -h, --help                show this help\n"
    "  -V, --version             show the version\n";

enum { OPT_ADD = 256, OPT_NO_PARSE, OPT_SKIP, OPT_JSONL };

static const struct option tokenize_options[] = {
    { "add-special", no_argument, NULL, OPT_ADD }, { "no-parse-special", no_argument, NULL, OPT_NO_PARSE },
        { "jsonl", no_argument, NULL, OPT_JSONL },
    { "help", no_argument, NULL, 'h' }, { "version", no_argument, NULL, 'V' }, { NULL, 0, NULL, 0 },
};
static const struct option detokenize_options[] = {
    { "skip-special", no_argument, NULL, OPT_SKIP }, { "jsonl", no_argument, NULL, OPT_JSONL },
    { "help", no_argument, NULL, 'h' }, { "version", no_argument, NULL, 'V' }, { NULL, 0, NULL, 0 },
};

struct token_run {
    const char *prog;
    unsigned flags;                     /* TOKENIZE_* */
    int skip_special, jsonl;
    void *blob;
    struct tokenizer *t;
};

/* Parse the options.  -1: continue; else the exit code. */
static int parse_options(struct token_run *r, int argc, char **argv, const struct option *options, const char *usage,
                         const char **model)
{
    int c;
    r->flags = TOKENIZE_PARSE_SPECIAL;
    optind = 0;                         /* restart: the caller may have used getopt */
    while ((c = cli_getopt(argc, argv, "hV", options)) != -1) {
        switch (c) {
        case OPT_ADD: r->flags |= TOKENIZE_ADD_SPECIAL; break;
        case OPT_NO_PARSE: r->flags &= ~(unsigned)TOKENIZE_PARSE_SPECIAL; break;
        case OPT_SKIP: r->skip_special = 1; break;
        case OPT_JSONL: r->jsonl = 1; break;
        case 'h': return cli_help(usage);
        case 'V': return cli_version("zse-info");
        default: return cli_usage(usage);
        }
    }
    if (argc - optind != 1)
        return cli_usage(usage);
    *model = argv[optind];
    return -1;
}

static int open_tokenizer(struct token_run *r, const char *model, struct err *e)
{
    size_t size;
    if (tokenizer_from_path(model, &r->blob, &size, e))
        return -1;
    r->t = tokenizer_open(r->blob, size, e);
    return r->t ? 0 : err_prefix(e, "%s", model);
}

static int put_ids(const struct token_run *r, const char *text, size_t n, struct err *e)
{
    int32_t *ids;
    size_t n_ids;
    if (tokenizer_encode(r->t, text, n, r->flags, &ids, &n_ids, e))
        return -1;
    putchar('[');
    for (size_t i = 0; i < n_ids; i++)
        printf(i ? ", %d" : "%d", ids[i]);
    puts("]");
    free(ids);
    return 0;
}

static int put_text(const struct token_run *r, const json_t *list, struct err *e)
{
    const json_t *item;
    size_t i, size, n = json_array_size(list);
    char *text = NULL;
    int rc = -1;
    if (!json_is_array(list))
        return err_set(e, ERR_FORMAT, "expected a JSON array of token ids");
    int32_t *ids = malloc((n + 1) * sizeof *ids);
    if (!ids)
        return err_nomem(e, "token ids");
    json_array_foreach(list, i, item) {
        json_int_t v = json_integer_value(item);
        if (!json_is_integer(item) || v < 0 || v > INT32_MAX) {
            err_set(e, ERR_FORMAT, "element %zu of the array is no token id", i);
            goto done;
        }
        ids[i] = (int32_t)v;
    }
    if (tokenizer_decode(r->t, ids, n, r->skip_special, &text, &size, e))
        goto done;
    json_t *s = json_stringn(text, size);
    if (s) {
        json_dumpf(s, stdout, JSON_ENCODE_ANY);
        putchar('\n');
        rc = 0;
    } else {
        err_nomem(e, "a text");
    }
    json_decref(s);
    free(text);
done:
    free(ids);
    return rc;
}

/* Handle one line of --jsonl. */
static int one_line(const struct token_run *r, int (*array)(const struct token_run *, const json_t *, struct err *),
                    const char *line, size_t n, struct err *e)
{
    json_error_t why;
    json_t *v = json_loadb(line, n, JSON_ALLOW_NUL | JSON_DECODE_ANY, &why);
    int rc;
    if (!v)
        return err_set(e, ERR_FORMAT, "%s", why.text);
    if (array)
        rc = array(r, v, e);
    else if (json_is_string(v))
        rc = put_ids(r, json_string_value(v), json_string_length(v), e);
    else
        rc = err_set(e, ERR_FORMAT, "expected a JSON string");
    json_decref(v);
    return rc;
}

static int lines(const struct token_run *r, int (*array)(const struct token_run *, const json_t *, struct err *),
                 struct err *e)
{
    char *line = NULL;
    size_t room = 0, count = 0;
    ssize_t n;
    int rc = 0;
    while (!rc && (n = getline(&line, &room, stdin)) >= 0) {
        count++;
        while (n && (line[n - 1] == '\n' || line[n - 1] == '\r'))
            n--;
        if (!n)
            continue;
        rc = one_line(r, array, line, (size_t)n, e);
        if (rc)
            err_prefix(e, "line %zu", count);
        fflush(stdout);                 /* the program that wrote the line may wait for the answer */
    }
    if (!rc && ferror(stdin))
        rc = err_sys(e, "stdin");
    free(line);
    return rc;
}

static char *read_all(size_t *n, struct err *e)
{
    size_t room = 1 << 16, k;
    char *p = malloc(room);
    for (*n = 0; p && (k = fread(p + *n, 1, room - *n, stdin)) > 0;) {
        *n += k;
        if (*n == room) {
            char *more = realloc(p, room *= 2);
            if (!more)
                free(p);
            p = more;
        }
    }
    if (!p)
        err_nomem(e, "the input");
    else if (ferror(stdin)) {
        err_sys(e, "stdin");
        free(p);
        p = NULL;
    }
    return p;
}

static int arrays(const struct token_run *r, const char *s, size_t n, struct err *e)
{
    size_t at = 0;
    for (;;) {
        while (at < n && strchr(" \t\r\n", s[at]) && s[at])
            at++;
        if (at == n)
            return 0;
        json_error_t why;
        json_t *v = json_loadb(s + at, n - at, JSON_DISABLE_EOF_CHECK, &why);
        if (!v)
            return err_set(e, ERR_FORMAT, "stdin: byte %zu: %s", at + (size_t)why.position, why.text);
        at += (size_t)why.position;
        int rc = put_text(r, v, e);
        json_decref(v);
        if (rc)
            return -1;
    }
}

static int finish(struct token_run *r, int rc, const struct err *e)
{
    tokenizer_close(r->t);
    free(r->blob);
    if (rc) {
        fflush(stdout);
        return cli_fail(r->prog, e);
    }
    return cli_finish(r->prog);
}

static int open_named(struct token_run *r, const char *model, struct err *e)
{
    char *path = home_model_path(model, e);
    const int rc = path ? open_tokenizer(r, path, e) : -1;
    free(path);
    return rc;
}

int info_tokenize(int argc, char **argv)
{
    struct token_run r = { .prog = "zse-info tokenize" };
    struct err e;
    const char *model;
    size_t n;
    char *text;
    int rc = parse_options(&r, argc, argv, tokenize_options, tokenize_usage, &model);
    if (rc >= 0)
        return rc;
    rc = open_named(&r, model, &e);
    if (!rc && r.jsonl) {
        rc = lines(&r, NULL, &e);
    } else if (!rc) {
        rc = (text = read_all(&n, &e)) ? put_ids(&r, text, n, &e) : -1;
        free(text);
    }
    return finish(&r, rc, &e);
}

int info_detokenize(int argc, char **argv)
{
    struct token_run r = { .prog = "zse-info detokenize" };
    struct err e;
    const char *model;
    size_t n;
    char *text;
    int rc = parse_options(&r, argc, argv, detokenize_options, detokenize_usage, &model);
    if (rc >= 0)
        return rc;
    rc = open_named(&r, model, &e);
    if (!rc && r.jsonl) {
        rc = lines(&r, put_text, &e);
    } else if (!rc) {
        rc = (text = read_all(&n, &e)) ? arrays(&r, text, n, &e) : -1;
        free(text);
    }
    return finish(&r, rc, &e);
}
