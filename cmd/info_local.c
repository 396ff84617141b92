/* info_local.c - zse-info models local, show, rm, alias and default: the models that have names. */
#include "cmd/info_models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "cmd/home.h"
#include "libcommon/base/json.h"
#include "libcommon/format/zfile.h"
#include "libcommon/store/store.h"

static const char prog[] = "zse-info";
static const char local_usage[] =
    "usage: zse-info models local [OPTIONS]\n"
    "List the models of $ZSE_HOME/models (default: ~/.zse/models), which have names.\n"
    "\n"
    "      --names    only the names, one a line\n"
    "  -j, --json     a JSON array instead of text\n"
    "  -h, --help     show this help\n";
static const char show_usage[] =
    "usage: zse-info models show [OPTIONS] NAME\n"
    "Print path, size, type and aliases of a model here.\n"
    "\n"
    "  -j, --json     a JSON object instead of text\n"
    "  -h, --help     show this help\n";
static const char rm_usage[] =
    "usage: zse-info models rm [OPTIONS] NAME...\n"
    "Delete models here with their aliases, or aliases alone.\n"
    "\n"
    "  -h, --help     show this help\n";
static const char alias_usage[] =
    "usage: zse-info models alias [OPTIONS] ALIAS NAME\n"
    "Let ALIAS stand for the model NAME; an alias can be moved.\n"
    "\n"
    "  -h, --help     show this help\n";
static const char default_usage[] =
    "usage: zse-info models default [OPTIONS] [NAME]\n"
    "Use NAME where no model is named; without NAME: print which one that is.\n"
    "zse-info models rm default takes it back.\n"
    "\n"
    "  -h, --help     show this help\n";

enum { OPT_NAMES = 300 };
static const struct option list_options[] = {
    { "names", no_argument, NULL, OPT_NAMES }, { "json", no_argument, NULL, 'j' }, { "help", no_argument, NULL, 'h' },
    { NULL, 0, NULL, 0 },
};
static const struct option show_options[] = {
    { "json", no_argument, NULL, 'j' }, { "help", no_argument, NULL, 'h' }, { NULL, 0, NULL, 0 },
};
static const struct option plain_options[] = { { "help", no_argument, NULL, 'h' }, { NULL, 0, NULL, 0 } };

/* Parse the options of a subcommand, which takes from `least` to `most` arguments; these begin at
 * optind.  -1: continue; otherwise the exit code. */
static int parse(int argc, char **argv, const struct option *options, const char *usage, int least, int most, int *json,
                 int *names)
{
    int c;
    optind = 0;
    while ((c = cli_getopt(argc, argv, options == plain_options ? "h" : "jh", options)) != -1) {
        switch (c) {
        case 'j': *json = 1; break;
        case OPT_NAMES: *names = 1; break;
        case 'h': return cli_help(usage);
        default: return cli_usage(usage);
        }
    }
    return argc - optind < least || argc - optind > most ? cli_usage(usage) : -1;
}

/* ---- the description of a model ---- */

/* Write the time since then_s as text: "3 days ago"; "never" for 0. */
static const char *since(char out[CLI_BYTES], int64_t then_s)
{
    static const struct { int64_t s; const char *name; } units[] = {
        { 86400 * 30, "month" }, { 86400 * 7, "week" }, { 86400, "day" }, { 3600, "hour" }, { 60, "minute" } };
    const int64_t passed = (int64_t)time(NULL) - then_s;
    if (!then_s)
        return "never";
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (passed >= units[i].s) {
            const long long n = passed / units[i].s;
            snprintf(out, CLI_BYTES, "%lld %s%s ago", n, units[i].name, plural(n));
            return out;
        }
    return "now";
}

static json_t *utc(int64_t at_s)
{
    const time_t t = (time_t)at_s;
    struct tm tm;
    char text[32];
    if (!at_s || !gmtime_r(&t, &tm))
        return json_null();
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &tm);
    return json_string(text);
}

/* Add fields of a .zse's header or, if it cannot be read, the reason. */
static void add_header(json_t *d, const char *path)
{
    struct err e;
    struct zfile *z = zfile_open(path, &e);
    const json_t *head = z ? zfile_json(z) : NULL, *config = js_get(head, "config");
    if (!z)
        json_object_set_new(d, "error", js_text(e.msg));
    json_object_set(d, "type", js_get(js_get(head, "quantization"), "type"));
    json_object_set(d, "architecture", js_get(config, "model_type"));
    json_object_set(d, "context", js_get(config, "max_position_embeddings"));
    zfile_close(z);
}

static json_t *describe(const char *folder, const struct store_model *m, const struct store_model *all, int n)
{
    struct err e;
    char *path = store_path(folder, *m->of ? m->of : m->name, &e);
    json_t *d = path ? json_pack("{s:s, s:o, s:I, s:o, s:o, s:[]}", "name", m->name, "path", js_text(path), "bytes",
                                 (json_int_t)m->bytes, "modified", utc(m->modified_s), "used", utc(m->used_s),
                                 "aliases") : NULL;
    if (d) {
        for (int i = 0; i < n; i++)
            if (*all[i].of && all[i].ino == m->ino && all[i].dev == m->dev && strcmp(all[i].name, m->name) != 0)
                json_array_append_new(json_object_get(d, "aliases"), json_string(all[i].name));
        if (*m->of)
            json_object_set_new(d, "of", json_string(m->of));
        add_header(d, path);
    }
    free(path);
    return d;
}

static const char *text(const json_t *d, const char *key)
{
    const char *s = json_string_value(json_object_get(d, key));
    return s ? s : "-";
}

/* ---- list and show ---- */

static void print_row(const struct store_model *m, const json_t *d)
{
    char size[CLI_BYTES], when[CLI_BYTES];
    if (*m->of)
        printf("%-32s -> %s\n", m->name, m->of);
    else
        printf("%-32s %10s  %-8s %-16s %s\n", m->name, cli_bytes(size, m->bytes), text(d, "type"),
               text(d, "architecture"), since(when, m->used_s));
}

static int list(const char *folder, int json, int names)
{
    struct err e;
    struct store_model *all;
    const int n = store_list(folder, &all, &e);
    json_t *array = json_array();
    if (n < 0) {
        json_decref(array);
        return cli_fail(prog, &e);
    }
    if (n && !json && !names)
        printf("%-32s %10s  %-8s %-16s %s\n", "name", "size", "type", "architecture", "last used");
    for (int i = 0; i < n; i++) {
        json_t *d = names ? NULL : describe(folder, &all[i], all, n);
        if (names)
            printf("%s\n", all[i].name);
        else if (json)
            json_array_append(array, d);
        else
            print_row(&all[i], d);
        json_decref(d);
    }
    if (json)
        cli_json(array);
    else if (!n && !names)
        cli_note(prog, "%s: no models yet; zse-convert pull NAME makes one", folder);
    json_decref(array);
    free(all);
    return cli_finish(prog);
}

int info_models_local(int argc, char **argv)
{
    struct err e;
    int json = 0, names = 0, rc = parse(argc, argv, list_options, local_usage, 0, 0, &json, &names);
    if (rc >= 0)
        return rc;
    char *folder = home_models(&e);
    rc = folder ? list(folder, json, names) : cli_fail(prog, &e);
    free(folder);
    return rc;
}

static void print_model(const json_t *d)
{
    static const struct { const char *key, *label; } rows[] = { { "name", "name" }, { "of", "alias of" },
        { "path", "path" }, { "type", "type" }, { "architecture", "architecture" }, { "modified", "modified" },
        { "used", "last used" }, { "error", "error" } };
    char size[CLI_BYTES], line[5000];
    const json_t *v;
    size_t i;
    for (i = 0; i < sizeof rows / sizeof *rows; i++)
        if (json_is_string(v = json_object_get(d, rows[i].key)))
            printf("%-14s %s\n", rows[i].label, cli_plain(line, sizeof line, json_string_value(v)));
    if (json_is_integer(v = json_object_get(d, "context")))
        printf("%-14s %lld tokens\n", "context", (long long)json_integer_value(v));
    printf("%-14s %s\n", "size", cli_bytes(size, (uint64_t)json_integer_value(json_object_get(d, "bytes"))));
    json_array_foreach(json_object_get(d, "aliases"), i, v)
        printf("%-14s %s\n", i ? "" : "aliases", json_string_value(v));
}

/* The description of the model that a word names.  NULL with *e. */
static json_t *find(const char *folder, const char *word, struct err *e)
{
    char name[STORE_NAME_BYTES];
    struct store_model *all = NULL;
    const int rc = store_find(folder, word, name, e), n = rc == 0 ? store_list(folder, &all, e) : 0;
    json_t *d = NULL;
    if (rc > 0)
        err_set(e, ERR_IO, "'%.140s' is no model of %s", word, folder);
    for (int i = 0; i < n; i++)
        if (strcmp(all[i].name, name) == 0 && !(d = describe(folder, &all[i], all, n)))
            err_nomem(e, "model");
    free(all);
    return d;
}

int info_models_show(int argc, char **argv)
{
    struct err e;
    int json = 0, names = 0, rc = parse(argc, argv, show_options, show_usage, 1, 1, &json, &names);
    if (rc >= 0)
        return rc;
    char *folder = home_models(&e);
    json_t *d = folder ? find(folder, argv[optind], &e) : NULL;
    free(folder);
    if (!d)
        return cli_fail(prog, &e);
    if (json)
        cli_json(d);
    else
        print_model(d);
    json_decref(d);
    return cli_finish(prog);
}

/* ---- changing ---- */

int info_models_rm(int argc, char **argv)
{
    struct err e;
    int json = 0, names = 0, rc = parse(argc, argv, plain_options, rm_usage, 1, 1 << 20, &json, &names);
    if (rc >= 0)
        return rc;
    char *folder = home_models(&e);
    rc = folder ? 0 : cli_fail(prog, &e);
    for (int i = optind; i < argc && folder; i++)
        if (store_remove(folder, argv[i], &e) != 0)
            rc = cli_fail(prog, &e);
    free(folder);
    return rc ? rc : cli_finish(prog);
}

int info_models_alias(int argc, char **argv)
{
    struct err e;
    int json = 0, names = 0, rc = parse(argc, argv, plain_options, alias_usage, 2, 2, &json, &names);
    if (rc >= 0)
        return rc;
    char *folder = home_models(&e);
    rc = folder && store_alias(folder, argv[optind], argv[optind + 1], &e) == 0 ? cli_finish(prog) : cli_fail(prog, &e);
    free(folder);
    return rc;
}

/* Print the name of the default model. */
static int print_default(const char *folder, struct err *e)
{
    char name[STORE_NAME_BYTES];
    int rc = store_find_default(folder, name, e);
    json_t *d = rc == 0 ? find(folder, name, e) : NULL;
    if (rc > 0)
        err_set(e, ERR_IO, "%s: no model is the default; zse-info models default NAME makes one", folder);
    if (!d)
        return -1;
    printf("%s\n", json_object_get(d, "of") ? text(d, "of") : name);
    json_decref(d);
    return 0;
}

int info_models_default(int argc, char **argv)
{
    struct err e;
    int json = 0, names = 0, rc = parse(argc, argv, plain_options, default_usage, 0, 1, &json, &names);
    if (rc >= 0)
        return rc;
    char *folder = home_models(&e);
    if (folder)
        rc = optind < argc ? store_alias(folder, STORE_DEFAULT, argv[optind], &e) : print_default(folder, &e);
    free(folder);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}
