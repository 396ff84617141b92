/* pull.c - resolve the name of a model that is to be downloaded or converted. */
#include "cmd/pull.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "cmd/home.h"
#include "libcommon/base/json.h"
#include "libcommon/convert/convert.h"
#include "libcommon/hub/hub.h"
#include "libcommon/plan/registry.h"

/* Resolve a name of the registry, which may end in "-TYPE".  0: it is not one. */
static int from_registry(struct pulled *p, const json_t *registry, const char *word)
{
    struct convert_type type;
    struct err ignored;
    char short_name[REGISTRY_SHORT], head[STORE_NAME_BYTES];
    const json_t *m = registry_exact(registry, word);
    const char *dash = strrchr(word, '-');
    if (!m && dash && strlen(dash + 1) < sizeof p->type && strlen(word) < sizeof head &&
        convert_parse_type(&type, dash + 1, &ignored) == 0) {
        snprintf(head, sizeof head, "%.*s", (int)(dash - word), word);
        if ((m = registry_exact(registry, head)))
            snprintf(p->type, sizeof p->type, "%s", dash + 1);
    }
    if (!m)
        return 0;
    registry_short_name(m, short_name);
    snprintf(p->name, sizeof p->name, "%s%s%s", short_name, *p->type ? "-" : "", p->type);
    p->source = strdup(json_string_value(json_object_get(m, "id")));
    return 1;
}

/* Make the name of a model from the last part of its path, without .zse or .gguf. */
static void name_of_path(struct pulled *p, const char *path)
{
    static const char *const ends[] = { ".zse", ".gguf" };
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    const char *slash = memrchr(path, '/', n), *name = slash && slash + 1 < path + n ? slash + 1 : path;
    n -= (size_t)(name - path);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t k = strlen(ends[i]);
        if (n > k && strncmp(name + n - k, ends[i], k) == 0)
            n -= k;
    }
    char part[STORE_NAME_BYTES];
    snprintf(part, sizeof part, "%.*s", (int)n, name);
    store_make_name(p->name, part);
}

/* Write the name of the registry that is most like the word to out; "": none is. */
static void nearest_name(const json_t *registry, const char *word, char out[REGISTRY_SHORT])
{
    const size_t n = json_array_size(registry);
    char (*all)[REGISTRY_SHORT] = calloc(n + 1, sizeof *all);
    const char **names = calloc(n + 1, sizeof *names), *near = NULL;
    for (size_t i = 0; all && names && i < n; i++) {
        registry_short_name(json_array_get(registry, i), all[i]);
        names[i] = all[i];
    }
    if (all && names)
        near = cli_nearest(word, names, sizeof *names, n);
    snprintf(out, REGISTRY_SHORT, "%s", near ? near : "");
    free(names);
    free(all);
}

static int no_source(const json_t *registry, const char *word, struct err *e)
{
    char name[REGISTRY_SHORT];
    const json_t *m = registry_family(registry, word);
    if (!m) {
        nearest_name(registry, word, name);
        return err_set(e, ERR_FORMAT, "'%.140s' is neither a model of zse-info models list, nor org/name on the hub, nor a file here%s%s%s",
                       word, *name ? "; did you mean '" : "", name, *name ? "'?" : "");
    }
    registry_short_name(m, name);
    return err_set(e, ERR_FORMAT, "'%.140s' is a family of models: name one of zse-info models list, such as %s", word, name);
}

/* Resolve a local file or folder, or a name on the hub; the last part becomes the model's name. */
static int from_source(struct pulled *p, const json_t *registry, const char *word, struct err *e)
{
    struct hub_name hub;
    struct err bad;
    const int there = access(word, F_OK) == 0;
    if (!there && (!strchr(word, '/') || hub_parse_name(&hub, word, &bad) != 0))
        return no_source(registry, word, e);
    p->source = strdup(word);
    name_of_path(p, there ? word : *hub.pick ? hub.pick : hub.repo);
    return p->source ? 0 : err_nomem(e, "name");
}

/* Make HOME/models.  HOME, which also contains keys, is accessible to its owner only, as when
 * zse-apikey makes it. */
static int make_folder(const char *path, struct err *e)
{
    char *copy = strdup(path);
    int rc = copy ? 0 : err_nomem(e, "path");
    for (char *s = copy ? strchr(copy + 1, '/') : NULL; s && rc == 0; s = strchr(s + 1, '/')) {
        const int is_home = !strchr(s + strspn(s + 1, "/") + 1, '/');
        *s = '\0';
        if (mkdir(copy, is_home ? 0700 : 0777) != 0 && errno != EEXIST)
            rc = err_sys(e, "%s", copy);
        *s = '/';
    }
    free(copy);
    return rc == 0 && mkdir(path, 0777) != 0 && errno != EEXIST ? err_sys(e, "%s", path) : rc;
}

int pull_resolve(struct pulled *p, const char *word, const char *as, struct err *e)
{
    json_t *registry = registry_load(e);
    char *folder = NULL;
    *p = (struct pulled){ 0 };
    int rc = registry ? 0 : -1;
    if (rc == 0 && !from_registry(p, registry, word))
        rc = from_source(p, registry, word, e);
    json_decref(registry);
    if (rc == 0 && !p->source)
        rc = err_nomem(e, "name");
    if (rc == 0 && as)
        snprintf(p->name, sizeof p->name, "%s", as);
    if (rc == 0 && as && strcmp(p->name, as) != 0)
        rc = err_set(e, ERR_FORMAT, "--as: a name has at most %d bytes", STORE_NAME_BYTES - 1);
    if (rc == 0 && !as && !*p->name)
        rc = err_set(e, ERR_FORMAT, "'%.140s' has no name that a model could have: --as NAME gives it one", word);
    if (rc == 0 && (!(folder = home_models(e)) || !(p->path = store_path(folder, p->name, e)) ||
                    make_folder(folder, e) != 0))
        rc = -1;
    free(folder);
    return rc;
}

void pull_release(struct pulled *p)
{
    free(p->source);
    free(p->path);
}
