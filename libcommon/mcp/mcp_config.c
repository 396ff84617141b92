/* mcp_config.c - read the configuration of MCP servers. */
#include "libcommon/mcp/mcp_config.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/file.h"
#include "libcommon/base/json.h"

enum { MAX_FILE = 1 << 20 };
#define DEFAULT_TIMEOUT_S 30

int mcp_named(const json_t *patterns, const char *name)
{
    const json_t *v;
    size_t i;
    json_array_foreach(patterns, i, v) {
        const char *p = json_string_value(v);
        const size_t n = p ? strlen(p) : 0;
        if (p && (strcmp(p, name) == 0 || (n && p[n - 1] == '*' && strncmp(p, name, n - 1) == 0)))
            return 1;
    }
    return 0;
}

static int is_texts(const json_t *v)
{
    union { const json_t *in; json_t *out; } u = { .in = v };
    const char *key;
    json_t *x;
    size_t i;
    json_array_foreach(v, i, x)
        if (!json_is_string(x))
            return 0;
    json_object_foreach(u.out, key, x)
        if (!json_is_string(x))
            return 0;
    return 1;
}

/* A list (or an object) of texts; NULL: it is missing. */
static int read_texts(const json_t *o, const char *name, const char *key, int object, const json_t **out, struct err *e)
{
    *out = js_get(o, key);
    if (!*out || ((object ? json_is_object(*out) : json_is_array(*out)) && is_texts(*out)))
        return 0;
    return err_set(e, ERR_FORMAT, "%s: %s: expected %s of texts", name, key, object ? "an object" : "a list");
}

static int check_keys(const json_t *o, const char *name, struct err *e)
{
    static const char *const known[] = { "type", "command", "args", "env", "cwd", "url", "headers", "tools", "confirm",
                                         "autoApprove", "timeout", "disabled", "description" };
    union { const json_t *in; json_t *out; } u = { .in = o };
    const char *key;
    json_t *v;
    json_object_foreach(u.out, key, v) {
        size_t i = 0;
        while (i < sizeof known / sizeof *known && strcmp(known[i], key) != 0)
            i++;
        if (i == sizeof known / sizeof *known)
            return err_set(e, ERR_FORMAT, "%s: %.60s: there is no such field", name, key);
    }
    return 0;
}

static int read_args(struct mcp_server_config *s, const json_t *o, struct err *e)
{
    const json_t *args, *v;
    size_t i;
    if (read_texts(o, s->name, "args", 0, &args, e) != 0)
        return -1;
    if (!(s->args = calloc(json_array_size(args) + 1, sizeof *s->args)))
        return err_nomem(e, "arguments");
    json_array_foreach(args, i, v)
        s->args[s->n_args++] = json_string_value(v);
    return 0;
}

static int read_server(struct mcp_server_config *s, const json_t *o, struct err *e)
{
    const char *type;
    if (check_keys(o, s->name, e) != 0 || js_string_or(o, "command", NULL, &s->command, e) != 0 ||
        js_string_or(o, "cwd", NULL, &s->cwd, e) != 0 || js_string_or(o, "url", NULL, &s->url, e) != 0 ||
        js_string_or(o, "type", NULL, &type, e) != 0 ||
        js_real_or(o, "timeout", DEFAULT_TIMEOUT_S, &s->timeout_s, e) != 0)
        return err_prefix(e, "%s", s->name);
    if (!s->command == !s->url)
        return err_set(e, ERR_FORMAT, "%s: expected either command or url", s->name);
    if (s->url && strncmp(s->url, "http://", 7) != 0 && strncmp(s->url, "https://", 8) != 0)
        return err_set(e, ERR_FORMAT, "%s: url: '%.80s', expected http:// or https://", s->name, s->url);
    if (type && strcmp(type, s->url ? "http" : "stdio") != 0 && !(s->url && strcmp(type, "streamable-http") == 0))
        return err_set(e, ERR_UNSUPPORTED, "%s: type: '%.40s', expected stdio (command) or http (url)", s->name, type);
    if (!(s->timeout_s > 0 && s->timeout_s <= 3600))
        return err_set(e, ERR_FORMAT, "%s: timeout: %g, expected seconds up to 3600", s->name, s->timeout_s);
    return read_args(s, o, e) || read_texts(o, s->name, "env", 1, &s->env, e) ||
           read_texts(o, s->name, "headers", 1, &s->headers, e) || read_texts(o, s->name, "tools", 0, &s->tools, e) ||
           read_texts(o, s->name, "confirm", 0, &s->confirm, e) ||
           read_texts(o, s->name, "autoApprove", 0, &s->auto_approve, e) ? -1 : 0;
}

static int read_servers(struct mcp_config *c, struct err *e)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-";
    json_t *servers = js_get(c->json, "mcpServers"), *o;
    const char *name;
    int disabled;
    if (!json_is_object(servers))
        return err_set(e, ERR_FORMAT, "mcpServers: %s, expected an object", servers ? js_kind(servers) : "missing");
    json_object_foreach(servers, name, o) {
        const size_t n = strlen(name);
        if (n == 0 || n > MCP_NAME_MAX || strspn(name, letters) != n || strstr(name, "__"))
            return err_set(e, ERR_FORMAT, "'%.60s': expected a name of 1 to %d letters, digits, _ and -, without __", name,
                           MCP_NAME_MAX);
        if (!json_is_object(o))
            return err_set(e, ERR_FORMAT, "%s: %s, expected an object", name, js_kind(o));
        if (js_bool_or(o, "disabled", 0, &disabled, e) != 0)
            return err_prefix(e, "%s", name);
        if (disabled)
            continue;
        if (c->n == MCP_MAX_SERVERS)
            return err_set(e, ERR_LIMIT, "more than %d servers", MCP_MAX_SERVERS);
        c->server[c->n++].name = name;
        if (read_server(&c->server[c->n - 1], o, e) != 0)
            return -1;
    }
    return 0;
}

int mcp_config_parse(struct mcp_config *c, const char *path, const char *text, size_t size, struct err *e)
{
    memset(c, 0, sizeof *c);
    if (!(c->json = js_parse_python(path, text, size, e)))
        return -1;
    return read_servers(c, e) == 0 ? 0 : err_prefix(e, "%s", path);
}

int mcp_config_load(struct mcp_config *c, const char *path, struct err *e)
{
    size_t size;
    memset(c, 0, sizeof *c);
    char *text = file_read(path, MAX_FILE, &size, e);
    if (!text)
        return -1;
    const int rc = mcp_config_parse(c, path, text, size, e);
    free(text);
    return rc;
}

void mcp_config_release(struct mcp_config *c)
{
    for (int i = 0; i < c->n; i++)
        free(c->server[i].args);
    json_decref(c->json);
    memset(c, 0, sizeof *c);
}
