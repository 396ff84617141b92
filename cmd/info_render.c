/* info_render.c - zse-info render: apply a chat template to conversations. */
#include "cmd/info_render.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cmd/cli.h"
#include "cmd/home.h"
#include "libcommon/base/file.h"
#include "libcommon/convert/template_source.h"
#include "libcommon/template/chat.h"
#include "libcommon/template/template.h"

static const char prog[] = "zse-info render";
static const char usage[] =
    "usage: zse-info render [OPTIONS] [MODEL]\n"
    "Reads one JSON object a line; its keys are the variables (messages, tools, ...).  Writes {\"text\": ...} or {\"error\": ...} a line.\n"
    "The chat template is MODEL's (a .zse, a GGUF file, a folder) or FILE's; without both, each object carries its own as \"template\".\n"
    "      --template FILE   the template\n"
    "      --name NAME       which of MODEL's templates (default: the one named default)\n"
    "      --now EPOCH       the clock for strftime_now, seconds since 1970 (default: now)\n"
    "  -h, --help            show this help\n"
    "  -V, --version         show the version\n";

enum { OPT_TEMPLATE = 256, OPT_NAME, OPT_NOW, MAX_TEMPLATE = 16 << 20 };
static const struct option long_options[] = {
    { "template", required_argument, NULL, OPT_TEMPLATE }, { "name", required_argument, NULL, OPT_NAME },
        { "now", required_argument, NULL, OPT_NOW },
    { "help", no_argument, NULL, 'h' }, { "version", no_argument, NULL, 'V' }, { NULL, 0, NULL, 0 },
};

struct render {
    const char *file, *name, *model;    /* NULL: not given */
    int64_t now;
    struct tmpl *t;                     /* NULL: each object has its own template */
    char *bos, *eos;                    /* texts of MODEL's tokens; may be NULL */
};

/* Parse the options.  -1: continue; else the exit code. */
static int parse_options(struct render *r, int argc, char **argv)
{
    int c;
    long long now = (long long)time(NULL);
    optind = 0;                         /* restart: the caller may have used getopt */
    while ((c = cli_getopt(argc, argv, "hV", long_options)) != -1) {
        switch (c) {
        case OPT_TEMPLATE: r->file = optarg; break;
        case OPT_NAME: r->name = optarg; break;
        case OPT_NOW:
            /* the years 1 to 9999 */
            if (cli_parse_int(prog, "--now", optarg, -62135596800LL, 253402300799LL, &now) != 0)
                return CLI_USAGE;
            break;
        case 'h': return cli_help(usage);
        case 'V': return cli_version("zse-info");
        default: return cli_usage(usage);
        }
    }
    r->now = now;
    if (argc - optind > 1)
        return cli_usage(usage);
    r->model = argv[optind];
    if (r->model && r->file)
        return cli_wrong(prog, "MODEL and --template FILE exclude each other");
    if (r->name && !r->model)
        return cli_wrong(prog, "--name needs MODEL");
    return -1;
}

static int open_template(struct render *r, struct err *e)
{
    size_t size;
    char *text = NULL;
    if (!r->file && !r->model)
        return 0;
    if (r->file) {
        if (!(text = file_read(r->file, MAX_TEMPLATE, &size, e)))
            return -1;
    } else {
        char *path = home_model_path(r->model, e);
        const int rc = path ? template_from_path(path, r->name, &text, &r->bos, &r->eos, e) : -1;
        free(path);
        if (rc < 0)
            return -1;
        if (!text)
            return err_set(e, ERR_FORMAT, "%s: has no chat template", r->model);
        size = strlen(text);
    }
    r->t = tmpl_parse(text, size, r->file ? r->file : "chat template", e);
    free(text);
    return r->t ? 0 : r->model ? err_prefix(e, "%s", r->model) : -1;
}

/* Set variables that the object lacks to their defaults: BOS and EOS of the model, and no
 * generation prompt. */
static void add_defaults(const struct render *r, json_t *vars)
{
    if (r->bos && !json_object_get(vars, "bos_token"))
        json_object_set_new(vars, "bos_token", json_string(r->bos));
    if (r->eos && !json_object_get(vars, "eos_token"))
        json_object_set_new(vars, "eos_token", json_string(r->eos));
    if (!json_object_get(vars, "add_generation_prompt"))
        json_object_set_new(vars, "add_generation_prompt", json_false());
}

/* Render one line.  malloc'd; NULL with *e. */
static char *render_line(const struct render *r, const char *line, size_t n, size_t *size, struct err *e)
{
    json_error_t why;
    struct tmpl *own = NULL;
    char *text = NULL;
    json_t *vars = json_loadb(line, n, JSON_ALLOW_NUL, &why);
    if (!json_is_object(vars)) {
        err_set(e, ERR_FORMAT, vars ? "expected a JSON object" : "%s", why.text);
        goto done;
    }
    if (!r->t) {
        const json_t *source = json_object_get(vars, "template");
        if (!json_is_string(source)) {
            err_set(e, ERR_FORMAT, "the object has no \"template\", and neither MODEL nor --template is given");
            goto done;
        }
        if (!(own = tmpl_parse(json_string_value(source), json_string_length(source), NULL, e)))
            goto done;
        json_object_del(vars, "template");
    }
    add_defaults(r, vars);
    if (tmpl_render(own ? own : r->t, vars, r->now, NULL, &text, size, e) < 0)
        text = NULL;
done:
    tmpl_free(own);
    json_decref(vars);
    return text;
}

static int render_lines(const struct render *r)
{
    char *line = NULL;
    size_t room = 0, size, lines = 0;
    ssize_t n;
    while ((n = getline(&line, &room, stdin)) >= 0) {
        struct err e = { .msg = "" };
        lines++;
        if (n && line[n - 1] == '\n')
            n--;
        if (!n)
            continue;
        char *text = render_line(r, line, (size_t)n, &size, &e);
        json_t *said = text ? json_pack("{s:o?}", "text", json_stringn(text, size))
                            : json_pack("{s:s}", "error", e.msg);
        if (!said || !json_object_size(said)) {
            json_decref(said);
            said = json_pack("{s:s}", "error", "the text is not UTF-8");
        }
        json_dumpf(said, stdout, JSON_COMPACT);
        putchar('\n');
        json_decref(said);
        free(text);
    }
    free(line);
    if (ferror(stdin)) {
        struct err e;
        err_sys(&e, "standard input: line %zu", lines + 1);
        return cli_fail(prog, &e);
    }
    return cli_finish(prog);
}

int info_render(int argc, char **argv)
{
    struct render r = { 0 };
    struct err e;
    int code = parse_options(&r, argc, argv);
    if (code >= 0)
        return code;
    code = open_template(&r, &e) < 0 ? cli_fail(prog, &e) : render_lines(&r);
    tmpl_free(r.t);
    free(r.bos);
    free(r.eos);
    return code;
}
