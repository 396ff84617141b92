/* serve_config.c - turn the JSON file of zse-serve --config into arguments. */
#include "cmd/serve_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"

enum { FILE_MOST = 1 << 20 };

static int add(struct serve_config *c, const char *key, const char *value, struct err *e)
{
    char **strings = realloc(c->strings, ((size_t)c->n_strings + 1) * sizeof *strings), *text = NULL;
    if (strings)
        c->strings = strings;
    if (!strings || (key ? asprintf(&text, value ? "--%s=%s" : "--%s", key, value) : asprintf(&text, "%s", value)) < 0)
        return err_nomem(e, "configuration");
    c->strings[c->n_strings++] = text;
    return 0;
}

/* Add one value of an option that takes an argument; key NULL: a model. */
static int add_value(struct serve_config *c, const char *path, const char *name, const char *key, const json_t *v,
                     struct err *e)
{
    char number[40];
    if (!key && json_string_value(v) && json_string_value(v)[0] == '-')
        return err_set(e, ERR_FORMAT, "%s: %s: '%s' begins with -, expected a model", path, name, json_string_value(v));
    if (json_is_string(v))
        return add(c, key, json_string_value(v), e);
    if (key && json_is_integer(v))
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(v));
    else if (key && json_is_real(v))
        snprintf(number, sizeof number, "%.15g", json_real_value(v));
    else
        return err_set(e, ERR_FORMAT, "%s: %s: found %s, expected %s", path, name, js_kind(v),
                       key ? "a string or a number" : "a string");
    return add(c, key, number, e);
}

/* Add one value, or an array of values. */
static int add_values(struct serve_config *c, const char *path, const char *name, const char *key, const json_t *v,
                      struct err *e)
{
    const json_t *one;
    size_t i;
    if (!json_is_array(v))
        return add_value(c, path, name, key, v, e);
    json_array_foreach((json_t *)v, i, one)
        if (add_value(c, path, name, key, one, e) != 0)
            return -1;
    return 0;
}

static int add_option(struct serve_config *c, const char *path, const struct option *options, const char *key,
                      const json_t *v, struct err *e)
{
    static const char *const only_typed[] = { "config", "help", "version", "plan", "print-defaults" };
    int known = 1;
    const struct option *o = options;
    while (o->name && strcmp(o->name, key) != 0)
        o++;
    for (size_t i = 0; i < sizeof only_typed / sizeof *only_typed; i++)
        known &= strcmp(only_typed[i], key) != 0;
    if (!o->name || !known)
        return err_set(e, ERR_FORMAT, "%s: '%s' is not an option that a file can set: those are models, and the options of zse-serve --help without the dashes", path, key);
    if (o->has_arg != no_argument)
        return add_values(c, path, key, key, v, e);
    if (!json_is_boolean(v))
        return err_set(e, ERR_FORMAT, "%s: %s: found %s, expected true or false", path, key, js_kind(v));
    return json_is_true(v) ? add(c, key, NULL, e) : 0;
}

static int read_file(struct serve_config *c, const char *path, const struct option *options, int n_models, int n_names,
                     struct err *e)
{
    json_t *file = js_load(path, FILE_MOST, e), *v;
    const char *key;
    int rc = file ? 0 : -1;
    if (file && !json_is_object(file))
        rc = err_set(e, ERR_FORMAT, "%s: found %s, expected an object", path, js_kind(file));
    json_object_foreach(file, key, v)
        /* if the command line has models or names, those of the file are ignored */
        if (rc == 0 && strcmp(key, "models") != 0 && !(strcmp(key, "name") == 0 && (n_models || n_names)))
            rc = add_option(c, path, options, key, v, e);
    c->n_options = c->n_strings;
    const json_t *models = rc == 0 ? json_object_get(file, "models") : NULL;
    if (models && n_models == 0)
        rc = add_values(c, path, "models", NULL, models, e);
    json_decref(file);
    return rc;
}

int serve_config_open(struct serve_config *c, const char *path, const struct option *options, int argc, char **argv,
                      int n_models, int n_names, struct err *e)
{
    *c = (struct serve_config){ 0 };
    if (path && read_file(c, path, options, n_models, n_names, e) != 0)
        return -1;
    c->argv = calloc((size_t)(argc + c->n_strings) + 1, sizeof *c->argv);
    if (!c->argv)
        return err_nomem(e, "configuration");
    c->argv[c->argc++] = argv[0];
    for (int i = 0; i < c->n_options; i++)
        c->argv[c->argc++] = c->strings[i];
    for (int i = 1; i < argc; i++)
        c->argv[c->argc++] = argv[i];
    for (int i = c->n_options; i < c->n_strings; i++)
        c->argv[c->argc++] = c->strings[i];
    return 0;
}

void serve_config_close(struct serve_config *c)
{
    for (int i = 0; i < c->n_strings; i++)
        free(c->strings[i]);
    free(c->strings);
    free(c->argv);
    *c = (struct serve_config){ 0 };
}
