/* zse-apikey.c - make, limit, watch and revoke the keys of zse-serve. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cmd/cli.h"
#include "cmd/home.h"
#include "cmd/secret_url.h"
#include "libcommon/access/keys.h"
#include "libcommon/access/rate_limits.h"

static const char prog[] = "zse-apikey";
static const char usage[] =
    "usage: zse-apikey COMMAND [NAME] [OPTIONS]\n"
    "Make, limit, watch and revoke the keys of zse-serve.\n"
    "  create NAME                a new key, shown once, on standard output\n"
    "  list                       all keys, without their secrets\n"
    "  status [NAME]              current counters (without NAME: whether keys are required)\n"
    "  rotate NAME                a new secret; the old one stops working\n"
    "  reset NAME                 reset its counters\n"
    "  enable|disable [NAME]      this key; without NAME: require keys, or accept requests without\n"
    "  delete NAME                delete the key\n"
    "A running zse-serve sees every change within a second.\n"
    "      --rate-limit N         create: requests a minute\n"
    "      --token-limit N[/min|/day]   create: tokens a minute or a day; may be given for both\n"
    "      --expires WHEN         create: 2027-01-31, 2027-01-31T12:00:00Z, or from now: 90d, 12h, 30m\n"
    "      --scope LIST           create: chat, embeddings, models, admin (default: chat,embeddings)\n"
    "      --model GLOB           create: only models of this name; may be repeated\n"
    "      --home DIR             folder of the keys (default: $ZSE_HOME, else ~/.zse)\n"
    "      --keys URL             keys in PostgreSQL instead: postgresql://USER@HOST/DATABASE\n"
    "  -j, --json                 one JSON object\n"
    CLI_DEFAULTS_HELP
    "  -h, --help                 show this help\n"
    "  -V, --version              show the version\n";

enum { OPT_RATE = 256, OPT_TOKENS, OPT_EXPIRES, OPT_SCOPE, OPT_MODEL, OPT_HOME, OPT_KEYS };
static const struct option long_options[] = {
    { "rate-limit", required_argument, NULL, OPT_RATE }, { "token-limit", required_argument, NULL, OPT_TOKENS },
        { "expires", required_argument, NULL, OPT_EXPIRES },
    { "scope", required_argument, NULL, OPT_SCOPE }, { "model", required_argument, NULL, OPT_MODEL },
    { "home", required_argument, NULL, OPT_HOME }, { "keys", required_argument, NULL, OPT_KEYS },
    { "json", no_argument, NULL, 'j' }, CLI_DEFAULTS_OPTION, { "help", no_argument, NULL, 'h' }, { "version", no_argument, NULL, 'V' },
    { NULL, 0, NULL, 0 },
};

struct apikey_options {
    const char *command, *name, *home;
    char *keys;                             /* --keys; owned */
    struct key_info key;
    int json, for_create;
};

/* ---- the command line ---- */

static int parse_tokens(struct limit *l, const char *text)
{
    char number[32];
    long long n;
    const char *slash = strchr(text, '/');
    const int day = slash && strcmp(slash, "/day") == 0;
    if (slash && !day && strcmp(slash, "/min") != 0)
        return cli_wrong(prog, "--token-limit: '%s' ends neither in /min nor in /day", text);
    snprintf(number, sizeof number, "%.*s", slash ? (int)(slash - text) : 31, text);
    if (cli_parse_int(prog, "--token-limit", number, 1, UINT32_MAX, &n))
        return CLI_USAGE;
    *(day ? &l->tokens_day : &l->tokens_minute) = n;
    return 0;
}

static int parse_expires(const char *text, int64_t *out)
{
    if (cli_parse_time(prog, "--expires", text, 1, out))
        return CLI_USAGE;
    return *out > (int64_t)time(NULL) ? 0 : cli_wrong(prog, "--expires: '%s' is in the past", text);
}

static int add_model(struct key_info *k, const char *glob)
{
    const size_t n = strlen(k->models);
    if (!*glob || strchr(glob, ',') || n + strlen(glob) + 2 > sizeof k->models)
        return cli_wrong(prog, "--model: '%s' is empty, holds a comma, or is too much (%d bytes for all)", glob,
                         KEY_MODELS_MAX - 1);
    snprintf(k->models + n, sizeof k->models - n, "%s%s", n ? "," : "", glob);
    return 0;
}

static int take(struct apikey_options *o, int c, char *arg)
{
    struct err e;
    long long n;
    o->for_create |= c >= OPT_RATE && c <= OPT_MODEL;
    switch (c) {
    case OPT_RATE:
        if (cli_parse_int(prog, "--rate-limit", arg, 1, 1000000000, &n))
            return CLI_USAGE;
        o->key.limit.requests_minute = (int)n;
        return 0;
    case OPT_TOKENS:  return parse_tokens(&o->key.limit, arg);
    case OPT_EXPIRES: return parse_expires(arg, &o->key.expires_s);
    case OPT_SCOPE:   return key_scopes_parse(arg, &o->key.scopes, &e) ? cli_wrong(prog, "--scope: %s", e.msg) : 0;
    case OPT_MODEL:   return add_model(&o->key, arg);
    case OPT_HOME:    o->home = arg; return 0;
    case OPT_KEYS:    return keys_url_take(prog, arg, &o->keys);
    case 'j':         o->json = 1; return 0;
    default:          return cli_usage(usage);
    }
}

/* ---- printing keys ---- */

static void iso(char out[32], int64_t s)
{
    struct tm t;
    const time_t at = (time_t)s;
    gmtime_r(&at, &t);
    strftime(out, 32, "%Y-%m-%dT%H:%M:%SZ", &t);
}

static json_t *limit_json(int64_t n) { return n ? json_integer(n) : json_null(); }

static json_t *key_json(const struct key_info *k, const struct usage_stats *s)
{
    char created[32], expires[32], used[32], scopes[32];
    iso(created, k->created_s);
    iso(expires, k->expires_s);
    iso(used, s->last_used_ms / 1000);
    return json_pack("{s:s,s:s,s:o,s:s,s:s,s:b,s:o,s:o,s:o,s:o,s:I,s:I}", "name", k->name, "created_at", created,
                     "expires_at", k->expires_s ? json_string(expires) : json_null(), "scopes",
                     key_scopes_text(k->scopes, scopes), "models", k->models, "enabled", k->enabled,
                     "rate_limit", limit_json(k->limit.requests_minute), "token_limit_minute",
                     limit_json(k->limit.tokens_minute), "token_limit_day", limit_json(k->limit.tokens_day),
                     "last_used", s->last_used_ms ? json_string(used) : json_null(), "request_count",
                     (json_int_t)s->requests, "token_count", (json_int_t)s->tokens);
}

static void print_number(const char *what, int64_t n, const char *none)
{
    if (n)
        printf("  %-*" PRId64, (int)strlen(what), n);
    else
        printf("  %-*s", (int)strlen(what), none);
}

static int list(struct keys *k, struct usage *u, const struct apikey_options *o, struct err *e)
{
    struct key_info *all;
    struct usage_stats s;
    int n, required;
    if (keys_list(k, &all, &n, e))
        return -1;
    if (keys_required(k, &required, e) || keys_read_usage(k, u, all, n, e)) {
        free(all);
        return -1;
    }
    json_t *keys = json_array();
    if (!o->json && n)
        printf("%-24s  %-8s  req/min  tok/min  tok/day  %-10s  %-10s  requests  scopes\n", "name", "state", "expires",
               "last used");
    for (int i = 0; i < n; i++) {
        char expires[32], used[32], scopes[32];
        usage_read(u, all[i].id, &all[i].limit, &s);
        if (o->json) {
            json_array_append_new(keys, key_json(&all[i], &s));
            continue;
        }
        iso(expires, all[i].expires_s);
        iso(used, s.last_used_ms / 1000);
        const int past = all[i].expires_s && all[i].expires_s <= (int64_t)time(NULL);
        printf("%-24s  %-8s", all[i].name, !all[i].enabled ? "disabled" : past ? "expired" : "good");
        print_number("req/min", all[i].limit.requests_minute, "-");
        print_number("tok/min", all[i].limit.tokens_minute, "-");
        print_number("tok/day", all[i].limit.tokens_day, "-");
        printf("  %-10.10s  %-10.10s  %8" PRIu64 "  %s%s%s\n", all[i].expires_s ? expires : "never",
               s.last_used_ms ? used : "never", s.requests, key_scopes_text(all[i].scopes, scopes),
               all[i].models[0] ? "  models " : "", all[i].models);
    }
    if (o->json) {
        json_t *out = json_pack("{s:b,s:o}", "required", required, "keys", keys);
        cli_json(out);
        json_decref(out);
    } else {
        json_decref(keys);
        if (!n)
            cli_note(prog, "no keys yet (zse-apikey create NAME makes one)");
    }
    free(all);
    return 0;
}

static int status(struct keys *k, struct usage *u, const struct apikey_options *o, struct err *e)
{
    struct key_info key;
    struct usage_stats s;
    int required;
    if (keys_required(k, &required, e))
        return -1;
    if (!o->name) {
        if (o->json) {
            json_t *out = json_pack("{s:b}", "required", required);
            cli_json(out);
            json_decref(out);
        } else {
            printf("keys are %s\n", required ? "required" : "not required");
        }
        return 0;
    }
    if (keys_find(k, o->name, &key, e) || keys_read_usage(k, u, &key, 1, e))
        return -1;
    usage_read(u, key.id, &key.limit, &s);
    if (o->json) {
        json_t *out = key_json(&key, &s);
        json_object_set_new(out, "window_s", json_integer(60));
        json_object_set_new(out, "current", json_integer(s.requests_minute));
        json_object_set_new(out, "remaining", key.limit.requests_minute
                            ? json_integer(s.verdict.limit == key.limit.requests_minute ? s.verdict.remaining : 0)
                            : json_null());
        json_object_set_new(out, "tokens_minute", json_integer(s.tokens_minute));
        json_object_set_new(out, "tokens_day", json_integer(s.tokens_day));
        json_object_set_new(out, "retry_after_s", json_integer(s.verdict.retry_s));
        cli_json(out);
        json_decref(out);
        return 0;
    }
    printf("%s: %s\n", key.name, !key.enabled ? "disabled" : s.verdict.allowed ? "good" : "at its limit");
    printf("  requests in 60 s   %" PRId64, s.requests_minute);
    if (key.limit.requests_minute)
        printf(" of %d", key.limit.requests_minute);
    printf("\n  tokens in 60 s     %" PRId64, s.tokens_minute);
    if (key.limit.tokens_minute)
        printf(" of %" PRId64, key.limit.tokens_minute);
    printf("\n  tokens in 24 h     %" PRId64, s.tokens_day);
    if (key.limit.tokens_day)
        printf(" of %" PRId64, key.limit.tokens_day);
    printf("\n  ever               %" PRIu64 " request%s, %" PRIu64 " token%s\n", s.requests,
           plural((int64_t)s.requests), s.tokens, plural((int64_t)s.tokens));
    if (!s.verdict.allowed)
        printf("  again in           %d s\n", s.verdict.retry_s);
    return 0;
}

/* ---- changes ---- */

static int show_key(const struct apikey_options *o, const struct key_info *k, const char *text)
{
    if (o->json) {
        const struct usage_stats none = { 0 };
        json_t *out = key_json(k, &none);
        json_object_set_new(out, "key", json_string(text));
        cli_json(out);
        json_decref(out);
    } else {
        puts(text);
        cli_note(prog, "%s: the key is shown this once", k->name);
    }
    return 0;
}

static int create(struct keys *k, struct apikey_options *o, struct err *e)
{
    char text[KEY_TEXT + 1];
    int before, after;
    if (!o->key.scopes)
        o->key.scopes = SCOPE_CHAT | SCOPE_EMBEDDINGS;
    if (snprintf(o->key.name, sizeof o->key.name, "%s", o->name) >= (int)sizeof o->key.name)
        return err_set(e, ERR_FORMAT, "a key's name has %zu characters, expected 1 to %d", strlen(o->name),
                       KEY_NAME_MAX);
    if (keys_required(k, &before, e) || keys_create(k, &o->key, text, e) || keys_required(k, &after, e))
        return -1;
    if (!before && after)
        cli_note(prog, "keys are required from now on (zse-apikey disable makes them optional)");
    return show_key(o, &o->key, text);
}

static int rotate(struct keys *k, const struct apikey_options *o, struct err *e)
{
    char text[KEY_TEXT + 1];
    struct key_info key;
    if (keys_rotate(k, o->name, text, e) || keys_find(k, o->name, &key, e))
        return -1;
    return show_key(o, &key, text);
}

static int said(const struct apikey_options *o, const char *what)
{
    if (o->json) {
        json_t *out = o->name ? json_pack("{s:s,s:b,s:s}", "done", what, "success", 1, "name", o->name)
                              : json_pack("{s:s,s:b}", "done", what, "success", 1);
        cli_json(out);
        json_decref(out);
    } else {
        cli_note(prog, o->name ? "%s: %s" : "%s%s", o->name ? o->name : "", what);
    }
    return 0;
}

static int switch_on(struct keys *k, const struct apikey_options *o, int on, struct err *e)
{
    if (o->name)
        return keys_set_enabled(k, o->name, on, e) ? -1 : said(o, on ? "enabled" : "disabled");
    return keys_set_required(k, on, e) ? -1 : said(o, on ? "keys are required" : "keys are not required");
}

static int reset(struct keys *k, struct usage *u, const struct apikey_options *o, struct err *e)
{
    struct key_info key;
    if (keys_find(k, o->name, &key, e) || keys_reset_usage(k, key.id, e))
        return -1;
    usage_reset(u, key.id);
    return said(o, "counters set to zero");
}

static int delete(struct keys *k, struct usage *u, const struct apikey_options *o, struct err *e)
{
    struct key_info key;
    if (keys_find(k, o->name, &key, e) || keys_delete(k, o->name, e))
        return -1;
    if (u)                                  /* if it cannot be opened, the server drops the counters */
        usage_drop(u, key.id);
    return said(o, "deleted");
}

enum command { CREATE, LIST, STATUS, ROTATE, RESET, ENABLE, DISABLE, DELETE };
static const struct { const char *name; enum command command; int least, most; } commands[] = {
    /* least, most: number of names */
    { "create", CREATE, 1, 1 }, { "list", LIST, 0, 0 }, { "status", STATUS, 0, 1 }, { "rotate", ROTATE, 1, 1 },
        { "reset", RESET, 1, 1 },
    { "enable", ENABLE, 0, 1 }, { "disable", DISABLE, 0, 1 }, { "delete", DELETE, 1, 1 },
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

/* Run a command that only reads.  It works where nothing can be written, and makes no files. */
static int look(const struct apikey_options *o, enum command command, const char *home, struct err *e)
{
    struct keys *k = keys_open_read(o->keys ? o->keys : home, e);
    struct usage *u = !k ? NULL : o->keys ? usage_open_shared(e) : usage_open_here(home, e);
    const int rc = !u ? -1 : command == LIST ? list(k, u, o, e) : status(k, u, o, e);
    usage_close(u);
    keys_close(k);
    return rc;
}

static int change(struct apikey_options *o, enum command command, const char *home, struct err *e)
{
    struct err none;
    struct keys *k = keys_open(o->keys ? o->keys : home, e);
    struct usage *u = !k || (command != RESET && command != DELETE) ? NULL : o->keys ? usage_open_shared(e)
        : usage_open(home, command == RESET ? e : &none);
    int rc = -1;
    if (k)
        switch (command) {
        case CREATE:  rc = create(k, o, e); break;
        case ROTATE:  rc = rotate(k, o, e); break;
        case RESET:   rc = u ? reset(k, u, o, e) : -1; break;
        case ENABLE:  rc = switch_on(k, o, 1, e); break;
        case DISABLE: rc = switch_on(k, o, 0, e); break;
        default:      rc = delete(k, u, o, e); break;
        }
    usage_close(u);
    keys_close(k);
    return rc;
}

static int run(struct apikey_options *o, enum command command, const char *home, struct err *e)
{
    return command == LIST || command == STATUS ? look(o, command, home, e) : change(o, command, home, e);
}

static int parse_and_run(struct apikey_options *o, int argc, char **argv)
{
    struct err e;
    char *home;
    int c, i = 0, code;
    while ((c = cli_getopt(argc, argv, "jhV", long_options)) != -1) {
        if (c == 'h')
            return cli_help(usage);
        if (c == CLI_PRINT_DEFAULTS)
            return cli_defaults(usage);
        if (c == 'V')
            return cli_version(prog);
        if ((code = take(o, c, optarg)))
            return code;
    }
    if (optind >= argc)
        return cli_usage(usage);
    o->command = argv[optind++];
    while (i < N_COMMANDS && strcmp(commands[i].name, o->command) != 0)
        i++;
    if (i == N_COMMANDS)
        return cli_no_command(prog, o->command, &commands[0].name, sizeof *commands, N_COMMANDS);
    if (argc - optind < commands[i].least || argc - optind > commands[i].most)
        return cli_wrong(prog, "%s: %d name%s, expected %d%s", o->command, argc - optind, plural(argc - optind),
                         commands[i].most, commands[i].least < commands[i].most ? " or none" : "");
    if (o->for_create && commands[i].command != CREATE)
        return cli_wrong(prog, "%s: limits, scopes, models and an expiry date can only be set by create", o->command);
    o->name = argv[optind];
    if (o->keys && o->home)
        return cli_wrong(prog, "--keys and --home exclude each other");
    home = o->keys ? NULL : home_folder(o->home, &e);
    code = (o->keys || home) && run(o, commands[i].command, home, &e) == 0 ? cli_finish(prog) : cli_fail(prog, &e);
    free(home);
    return code;
}

int main(int argc, char **argv)
{
    struct apikey_options o = { 0 };
    cli_start();
    cli_hide_memory();
    const int code = parse_and_run(&o, argc, argv);
    free(o.keys);
    return code;
}
