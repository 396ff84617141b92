/* hub_cli.c - fetch models named on the command line; the environment variables are those of
 * Hugging Face's Python tools. */
#include "cmd/hub_cli.h"

#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "cmd/home.h"
#include "libcommon/base/file.h"
#include "libcommon/base/json.h"
#include "libcommon/import/hf_config.h"
#include "libcommon/import/packed.h"
#include "libcommon/model/model.h"
#include "libcommon/plan/registry.h"
#include "libcommon/store/store.h"

static const char *set(const char *name)
{
    const char *v = getenv(name);
    return v && *v ? v : NULL;
}

static int is_true(const char *name)
{
    static const char *const yes[] = { "1", "on", "yes", "true" };
    const char *v = set(name);
    for (size_t i = 0; v && i < sizeof yes / sizeof *yes; i++)
        if (strcasecmp(v, yes[i]) == 0)
            return 1;
    return 0;
}

/* $HF_HOME, else $XDG_CACHE_HOME/huggingface, else ~/.cache/huggingface. Caller frees. */
static char *hf_home(void)
{
    const char *home = set("HF_HOME"), *cache = set("XDG_CACHE_HOME"), *user = set("HOME");
    const struct passwd *p = user ? NULL : getpwuid(getuid());
    char *out;
    if (home)
        return cli_expand_home(home);
    user = user ? user : p ? p->pw_dir : "";
    return asprintf(&out, "%s%s/huggingface", cache ? cache : user, cache ? "" : "/.cache") < 0 ? NULL : out;
}

static char *cache_folder(const char *home)
{
    const char *v = set("HF_HUB_CACHE");
    char *out;
    if (!v)
        v = set("HUGGINGFACE_HUB_CACHE");
    if (v)
        return cli_expand_home(v);
    return asprintf(&out, "%s/hub", home) < 0 ? NULL : out;
}

/* The token from the environment, else from the file that `hf auth login` writes.  NULL: none. */
static char *find_token(const char *home)
{
    const char *v = set("HF_TOKEN") ? set("HF_TOKEN") : set("HUGGING_FACE_HUB_TOKEN"), *file = set("HF_TOKEN_PATH");
    struct err ignored;
    size_t size;
    char *text = NULL, *path = NULL;
    if (v)
        text = strdup(v);
    else if (!is_true("HF_HUB_DISABLE_IMPLICIT_TOKEN")) {
        path = file ? cli_expand_home(file) : asprintf(&path, "%s/token", home) < 0 ? NULL : path;
        text = path ? file_read(path, 4096, &size, &ignored) : NULL;
    }
    free(path);
    if (!text)
        return NULL;
    char *begin = text + strspn(text, " \t\r\n");
    begin[strcspn(begin, " \t\r\n")] = '\0';
    memmove(text, begin, strlen(begin) + 1);
    if (*text)
        return text;
    free(text);
    return NULL;
}

static void note(void *user, const char *text)
{
    struct hub_setup *s = user;
    cli_note(s->prog, "%s", text);
}

int hub_setup(struct hub_setup *s, const char *prog, struct err *e)
{
    const char *endpoint = set("HF_ENDPOINT");
    char *home = hf_home();
    memset(s, 0, sizeof *s);
    s->prog = prog;
    s->endpoint = strdup(endpoint ? endpoint : "https://huggingface.co");
    s->cache = home ? cache_folder(home) : NULL;
    s->token = home ? find_token(home) : NULL;
    free(home);
    if (!s->endpoint || !s->cache)
        return err_nomem(e, "settings of the hub");
    for (size_t n = strlen(s->endpoint); n && s->endpoint[n - 1] == '/'; n--)
        s->endpoint[n - 1] = '\0';
    if (strncasecmp(s->endpoint, "https://", 8) != 0 && strncasecmp(s->endpoint, "http://", 7) != 0)
        return err_set(e, ERR_FORMAT, "HF_ENDPOINT: '%.200s', expected a URL that begins with https:// or http://",
                       s->endpoint);
    cli_progress_init(&s->progress);
    s->o = (struct hub_options){ .endpoint = s->endpoint, .token = s->token, .cache = s->cache,
                                 .ca_file = cli_ca_file(),
                                 .offline = is_true("HF_HUB_OFFLINE") || is_true("TRANSFORMERS_OFFLINE"),
                                 .progress = &s->progress.progress, .note = note, .note_user = s };
    return 0;
}

void hub_setup_release(struct hub_setup *s)
{
    free(s->endpoint);
    free(s->token);
    free(s->cache);
}

/* Called before the weights are downloaded: check that the architecture runs here, then call the
 * caller's check. */
static int check_config(void *user, const char *folder, uint64_t bytes, struct err *e)
{
    const struct hub_before *b = user;
    struct config c;
    struct err why;
    char *path;
    if (asprintf(&path, "%s/config.json", folder) < 0)
        return err_nomem(e, "path");
    if (access(path, R_OK) != 0) {      /* a GGUF has its configuration in its first bytes */
        free(path);
        return 0;
    }
    json_t *raw = js_load(path, 16 << 20, &why), *config = raw ? hf_config_normalize(raw, &why) : NULL;
    free(path);
    int rc = config && config_parse(&c, config, &why) == 0 ? 0 : -1;
    if (rc == 0) {
        config_release(&c);
        rc = b->check ? b->check->run(b->check->user, b->name, raw, bytes, b->cache, &why) : 0;
    }
    if (rc != 0)
        err_set(e, why.code == ERR_LIMIT ? ERR_LIMIT : ERR_UNSUPPORTED, "nothing was downloaded: %s", why.msg);
    json_decref(config);
    json_decref(raw);
    return rc;
}

void hub_check_before(struct hub_options *o, struct hub_before *b)
{
    o->before_weights = check_config;
    o->before_user = b;
}

/* The name of a model here that was probably meant, malloc'd; NULL: none is near. */
static char *near_here(const char *arg)
{
    struct err ignored;
    struct store_model *list = NULL;
    char *folder = home_models(&ignored), *near = NULL;
    const int n = folder ? store_list(folder, &list, &ignored) : 0;
    const char **names = n > 0 ? calloc((size_t)n, sizeof *names) : NULL;
    for (int i = 0; names && i < n; i++)
        names[i] = list[i].name;
    const char *found = names ? cli_nearest(arg, names, sizeof *names, (size_t)n) : NULL;
    if (found)
        near = strdup(found);
    free(names);
    free(list);
    free(folder);
    return near;
}

/* There is no file or model called arg: say how to get it. */
static int no_such_model(const char *arg, struct err *e)
{
    struct err ignored;
    char name[REGISTRY_SHORT];
    json_t *registry = registry_load(&ignored);
    const json_t *exact = registry ? registry_exact(registry, arg) : NULL,
                 *known = exact || !registry ? exact : registry_family(registry, arg);
    char *near = exact ? NULL : near_here(arg);
    if (near) {
        err_set(e, ERR_IO, "%s: No such file or directory, and not among the models here; did you mean '%s'?", arg,
                near);
    } else if (known) {
        registry_short_name(known, name);
        err_set(e, ERR_IO, "%s: No such file or directory, and not among the models here; zse-convert pull %s downloads %s",
                arg, name, exact ? "it" : "one of this family (zse-info models list)");
    } else {
        err_set(e, ERR_IO, "%s: No such file or directory, and not among the models here (zse-info models local); those of the hub are named org/name",
                arg);
    }
    free(near);
    json_decref(registry);
    return -1;
}

int hub_is_name(const char *arg, struct hub_name *name, char **path, struct err *e)
{
    struct stat st;
    struct err not_a_name, several = { 0 };
    const size_t n = strlen(arg);
    const int there = stat(arg, &st) == 0, named = hub_parse_name(name, arg, &not_a_name) == 0;
    *path = NULL;
    if (!there && (*path = home_find_model(arg, &several)))
        return 0;
    if (several.code) {
        *e = several;
        return -1;
    }
    if (!there && !strchr(arg, '/') && (!named || !strchr(arg, '@')))
        return no_such_model(arg, e);
    if (there || !named || (n > 4 && !*name->pick && strcasecmp(arg + n - 4, ".zse") == 0))
        return (*path = strdup(arg)) ? 0 : err_nomem(e, "path");
    return 1;
}

static int lists(const json_t *info, const char *file)
{
    const json_t *v;
    size_t i;
    json_array_foreach(json_object_get(info, "siblings"), i, v) {
        const char *name = json_string_value(json_object_get(v, "rfilename"));
        if (name && strcmp(name, file) == 0)
            return 1;
    }
    return 0;
}

int hub_quant_config(const struct hub_options *o, const struct hub_name *name, const json_t *info, json_t *config,
                     struct err *e)
{
    static const char file[] = "hf_quant_config.json";
    struct err absent;
    size_t size;
    if (js_get(config, "quantization_config") || js_get(config, "compression_config") || (info && !lists(info, file)))
        return 0;
    char *text = hub_small_file(o, name, file, 1 << 20, &size, info ? e : &absent);
    json_t *said = text ? js_parse(file, text, size, e) : NULL;
    const int rc = said || (!info && !text) ? 0 : -1;
    packed_config_from(config, said);
    json_decref(said);
    free(text);
    return rc;
}

json_t *hub_config(const struct hub_name *name, struct err *e)
{
    enum { MOST = 16 << 20 };
    struct hub_setup s;
    struct sigaction pipe_before;
    size_t size;
    json_t *config = NULL, *info = NULL;
    cli_ignore_pipe(&pipe_before);
    char *text = hub_setup(&s, "", e) == 0 ? (s.o.note = NULL,
                                              hub_small_file(&s.o, name, "config.json", MOST, &size, e)) : NULL;
    if (text && !(config = js_parse_python("config.json", text, size, e)))
        err_prefix(e, "%s", name->repo);
    if (config && !json_is_object(config)) {
        err_set(e, ERR_FORMAT, "%s: config.json: found %s, expected an object", name->repo, js_kind(config));
        json_decref(config);
        config = NULL;
    }
    if (config && ((!s.o.offline && !(info = hub_model_info(&s.o, name, e))) ||
                   hub_quant_config(&s.o, name, info, config, e) < 0)) {
        json_decref(config);
        config = NULL;
    }
    cli_progress_clear();
    cli_restore_pipe(&pipe_before);
    json_decref(info);
    free(text);
    hub_setup_release(&s);
    return config;
}

int hub_has_safetensors(const struct hub_name *name, struct err *e)
{
    struct hub_setup s;
    struct sigaction pipe_before;
    json_t *info = NULL, *file;
    size_t i;
    cli_ignore_pipe(&pipe_before);
    int rc = hub_setup(&s, "", e);
    s.o.note = NULL;
    if (rc == 0 && s.o.offline)
        rc = 1;
    else if (rc == 0 && !(info = hub_model_info(&s.o, name, e)))
        rc = -1;
    cli_progress_clear();
    cli_restore_pipe(&pipe_before);
    json_array_foreach(json_object_get(info, "siblings"), i, file) {
        const char *path = json_string_value(json_object_get(file, "rfilename")),
                   *ending = path ? strrchr(path, '.') : NULL;
        rc |= ending && !strchr(path, '/') && strcmp(ending, ".safetensors") == 0;
    }
    json_decref(info);
    hub_setup_release(&s);
    return rc;
}

char *hub_cached(const struct hub_name *name)
{
    struct hub_setup s;
    struct err ignored;
    char *path = NULL;
    if (hub_setup(&s, "", &ignored) == 0) {
        s.o.offline = 1;
        if (hub_fetch(&s.o, name, &path, &ignored) != 0)
            path = NULL;
    }
    hub_setup_release(&s);
    return path;
}

int hub_model_path(const char *prog, const char *arg, int refresh, const struct hub_check *check, char **path,
                   struct err *e)
{
    struct hub_setup s;
    struct hub_name name;
    struct sigaction before[2], pipe_before;
    int rc = hub_is_name(arg, &name, path, e), known = 0;
    if (rc <= 0)
        return rc;
    rc = hub_setup(&s, prog, e);
    s.o.refresh = refresh;
    s.o.known = &known;
    struct hub_before check_first = { check, arg, s.o.cache };
    hub_check_before(&s.o, &check_first);
    sigaction(SIGINT, NULL, &before[0]);
    sigaction(SIGTERM, NULL, &before[1]);
    cli_ignore_pipe(&pipe_before);
    cli_catch_interrupt();              /* Ctrl-C saves the state of the download */
    if (rc == 0)
        rc = hub_fetch(&s.o, &name, path, e);
    cli_progress_clear();
    cli_die_of_interrupt();
    cli_restore_pipe(&pipe_before);
    sigaction(SIGINT, &before[0], NULL);
    sigaction(SIGTERM, &before[1], NULL);
    hub_setup_release(&s);
    return rc == 0 ? 0 : known ? -1 : err_prefix(e, "no such file or folder here; on the hub");
}
