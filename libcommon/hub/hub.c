/* hub.c - fetch models from a hub into the cache, or find them there. */
#include "libcommon/hub/hub.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/file.h"
#include "libcommon/base/json.h"
#include "libcommon/hub/choose.h"
#include "libcommon/hub/download.h"

enum { MAX_LISTING = 64 << 20, MAX_INDEX = 64 << 20, MAX_UNSIZED = 1 << 30, CONNECTIONS = 8 };

/* ---- names ---- */

static int word(const char *s, size_t n)
{
    if (n == 0 || n > 96 || !isalnum((unsigned char)s[0]))
        return 0;
    for (size_t i = 0; i < n; i++)
        if (!isalnum((unsigned char)s[i]) && !strchr("-_.", s[i]))
            return 0;
    return !memmem(s, n, "--", 2) && !memmem(s, n, "..", 2) && s[n - 1] != '.';
}

int hub_parse_name(struct hub_name *name, const char *text, struct err *e)
{
    size_t n = strcspn(text, "@:");
    const char *slash = memchr(text, '/', n), *at = text[n] == '@' ? text + n + 1 : NULL;
    size_t revision = at ? strcspn(at, ":") : 0;
    const char *colon = strchr(at ? at + revision : text + n, ':');
    if (slash ? !word(text, (size_t)(slash - text)) || !word(slash + 1, (size_t)(text + n - slash - 1))
              : !word(text, n))
        return err_set(e, ERR_FORMAT, "'%.200s' is not a name on the hub, which looks like org/name, org/name@revision or org/name:file", text);
    snprintf(name->repo, sizeof name->repo, "%.*s", (int)n, text);
    snprintf(name->revision, sizeof name->revision, "%.*s", (int)(at ? revision : 4), at ? at : "main");
    snprintf(name->pick, sizeof name->pick, "%s", colon ? colon + 1 : "");
    if ((at && (revision >= sizeof name->revision || !hub_cache_name_ok(name->revision) ||
                strpbrk(name->revision, "?#% "))) ||
        (colon && (strlen(colon + 1) >= sizeof name->pick || !hub_cache_name_ok(name->pick))))
        return err_set(e, ERR_FORMAT, "'%.200s': expected org/name@revision or org/name:file", text);
    return 0;
}

/* ---- the cache ---- */

static int exists(const char *folder, const char *name)
{
    char path[PATH_MAX];                /* longer paths are invalid */
    const int n = snprintf(path, sizeof path, "%s/%s", folder, name);
    return n < (int)sizeof path && access(path, R_OK) == 0;
}

static void free_names(char **names, int n)
{
    for (int i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

/* Files in folder and one level below, with names relative to it. */
static int list_folder(const char *folder, const char *sub, char ***names, int *n)
{
    char *path = *sub ? hub_cache_path(folder, "%s", sub) : strdup(folder);
    DIR *dir = path ? opendir(path) : NULL;
    int rc = 0;
    for (struct dirent *x; dir && rc == 0 && (x = readdir(dir));) {
        struct stat st;
        char *name = NULL, **more;
        if (x->d_name[0] == '.' || fstatat(dirfd(dir), x->d_name, &st, 0) != 0 ||
            asprintf(&name, "%s%s%s", sub, *sub ? "/" : "", x->d_name) < 0)
            continue;
        if (S_ISDIR(st.st_mode)) {
            if (!*sub)
                rc = list_folder(folder, name, names, n);
            free(name);
            continue;
        }
        more = realloc(*names, (size_t)(*n + 1) * sizeof *more);
        if (!more) {
            free(name);
            rc = -1;
            break;
        }
        *names = more;
        more[(*n)++] = name;
    }
    if (dir)
        closedir(dir);
    free(path);
    return rc;
}

/* Does a snapshot have all shards of its index? */
static int has_shards(const char *snapshot)
{
    struct err ignored;
    char *path = hub_cache_path(snapshot, CHOOSE_INDEX);
    json_t *j = path ? js_load(path, MAX_INDEX, &ignored) : NULL, *v;
    const char *tensor, *before = "";
    int all = json_is_object(json_object_get(j, "weight_map"));
    json_object_foreach(json_object_get(j, "weight_map"), tensor, v) {
        const char *shard = json_is_string(v) ? json_string_value(v) : "";
        all = all && hub_cache_name_ok(shard) && (strcmp(shard, before) == 0 || exists(snapshot, shard));
        before = shard;
    }
    json_decref(j);
    free(path);
    return all;
}

/* 1 if all files of the numbered set that includes `first`, such as
 * model-00001-of-00003.safetensors, are there; also 1 if the name has no such numbers. */
static int numbered_complete(const char *snapshot, const char *first)
{
    int i, n, used;
    const char *dash = first ? strstr(first, "-of-") : NULL;
    if (!dash || dash - first < 6 || sscanf(dash - 6, "-%5d-of-%5d%n", &i, &n, &used) != 2 || used != 15)
        return first != NULL;
    for (int k = 1; k <= n; k++) {
        char name[500];
        snprintf(name, sizeof name, "%.*s-%05d-of-%05d.safetensors", (int)(dash - 6 - first), first, k, n);
        if (!exists(snapshot, name))
            return 0;
    }
    return 1;
}

/* Look for the model in the cache.  *path (malloc'd): the usable file or folder; NULL if there is
 * none.  Returns 1 if the hub need not be asked, 0 if files or a better choice may be missing. */
static int look_in_cache(const struct hub_name *name, const char *folder, const char *commit, char **path)
{
    struct err ignored;
    struct file_choice c = { .file = NULL };
    char **names = NULL, *snapshot = hub_cache_path(folder, "snapshots/%s", commit);
    int n = 0, sure = 0;
    *path = NULL;
    if (!snapshot || list_folder(snapshot, "", &names, &n) != 0 || !n ||
        choose(&c, name->repo, name->pick, (const char *const *)names, n, &ignored) != 0)
        goto done;
    if (c.file) {
        *path = hub_cache_path(snapshot, "%s", c.file);
        /* Without a pick, safetensors of the repository would be preferred; an earlier call may
         * have noted in the cache that it has none. */
        sure = *name->pick || hub_cache_has(folder, commit, "model.safetensors") < 0;
    } else if (c.indexed ? has_shards(snapshot) : numbered_complete(snapshot, c.weights[0])) {
        /* a single model.safetensors needs no index beside it */
        int one = !c.indexed && strcmp(c.weights[0], "model.safetensors") == 0;
        *path = strdup(snapshot);
        sure = 1;
        for (int i = 0; i < CHOOSE_N_OPTIONAL; i++)
            sure &= hub_cache_has(folder, commit, choose_optional[i]) != 0 ||
                    (one && strcmp(choose_optional[i], CHOOSE_INDEX) == 0);
    }
done:
    choose_release(&c);
    free_names(names, n);
    free(snapshot);
    return sure;
}

/* ---- requests to the hub ---- */

/* Called between requests: non-zero to cancel. */
static int waiting(void *user)
{
    const struct hub_options *o = user;
    return progress_report(o->progress, "asking the hub", 0, 0, "bytes");
}

static int open_web(struct web *w, const struct hub_options *o, const char *repo, struct err *e)
{
    *w = (struct web){ .endpoint = o->endpoint, .token = o->token, .ca_file = o->ca_file, .repo = repo,
                       .n_connections = o->n_connections ? o->n_connections : CONNECTIONS, .note = o->note,
                       .note_user = o->note_user,
                       .tick = waiting, .user = (void *)(uintptr_t)o };
    if (o->offline)
        return err_set(e, ERR_IO, "%s: not asked for: HF_HUB_OFFLINE is set", repo);
    if (web_open(w, e) == 0)
        return 0;
    web_close(w);
    return -1;
}

/* Get a JSON document of the API. */
static json_t *get_json(struct web *w, const char *url, const char *what, struct err *e)
{
    size_t size;
    char *text = web_get(w, url, what, MAX_LISTING, &size, e);
    json_t *j = text ? js_parse(what, text, size, e) : NULL;
    if (text && !j)
        err_prefix(e, "%s: %s", w->repo, w->endpoint);
    free(text);
    return j;
}

static json_t *model_info(struct web *w, const struct hub_options *o, const struct hub_name *name, struct err *e)
{
    char *revision = url_encode(name->revision, ""), *url = NULL;
    json_t *j = NULL;
    if (!revision || asprintf(&url, "%s/api/models/%s/revision/%s?blobs=true", o->endpoint, name->repo, revision) < 0)
        err_nomem(e, "URL");
    else
        j = get_json(w, url, "the list of its files", e);
    free(url);
    free(revision);
    if (j && (!json_is_object(j) || !json_is_array(json_object_get(j, "siblings")) ||
              !json_is_string(json_object_get(j, "sha")))) {
        err_set(e, ERR_FORMAT, "%s: %s does not answer as a hub does: sha or siblings are missing", name->repo,
                o->endpoint);
        json_decref(j);
        return NULL;
    }
    return j;
}

/* The names of the repository's files, borrowed from j.  Caller frees the array. */
static const char **sibling_names(const json_t *j, const char *repo, int *n, struct err *e)
{
    const json_t *list = json_object_get(j, "siblings"), *v;
    const char **names = calloc(json_array_size(list) + 1, sizeof *names);
    size_t i;
    *n = 0;
    if (!names) {
        err_nomem(e, repo);
        return NULL;
    }
    json_array_foreach(list, i, v) {
        const char *s = json_string_value(json_object_get(v, "rfilename"));
        if (s && hub_cache_name_ok(s))
            names[(*n)++] = s;
    }
    return names;
}

json_t *hub_model_info(const struct hub_options *o, const struct hub_name *name, struct err *e)
{
    struct web w;
    if (open_web(&w, o, name->repo, e) != 0)
        return NULL;
    json_t *j = model_info(&w, o, name, e);
    web_close(&w);
    return j;
}

char *hub_small_file(const struct hub_options *o, const struct hub_name *name, const char *file, size_t max,
                     size_t *size, struct err *e)
{
    struct web w;
    char commit[80], *text = NULL, *folder = hub_cache_folder(o, name, e), *path = NULL;
    if (!folder)
        return NULL;
    if (hub_cache_commit(folder, name->revision, commit, sizeof commit) == 0 &&
        hub_cache_has(folder, commit, file) == 1 && (path = hub_cache_path(folder, "snapshots/%s/%s", commit, file)))
        text = file_read(path, max, size, e);
    free(path);
    free(folder);
    if (text || open_web(&w, o, name->repo, e) != 0)
        return text;
    char *url = download_url(o->endpoint, name->repo, name->revision, file, e);
    text = url ? web_get(&w, url, file, max, size, e) : NULL;
    free(url);
    web_close(&w);
    return text;
}

json_t *hub_search(const struct hub_options *o, const char *words, int limit, struct err *e)
{
    struct web w;
    char *query = url_encode(words, ""), *url = NULL;
    json_t *j = NULL;
    if (open_web(&w, o, "the hub", e) != 0) {
        free(query);
        return NULL;
    }
    if (!query || asprintf(&url, "%s/api/models?search=%s&sort=downloads&direction=-1&limit=%d&full=true&config=true",
                           o->endpoint, query, limit) < 0)
        err_nomem(e, "URL");
    else if ((j = get_json(&w, url, "search", e)) && !json_is_array(j)) {
        err_set(e, ERR_FORMAT, "%s: the answer to a search is %s, expected an array", o->endpoint, js_kind(j));
        json_decref(j);
        j = NULL;
    }
    free(url);
    free(query);
    web_close(&w);
    return j;
}

/* ---- fetching ---- */

struct fetch {
    const struct hub_options *o;
    const struct hub_name *name;
    const char *folder, *commit;
    struct web *web;
};

enum what { SMALL_FILES, WEIGHTS, SHARDS };     /* WEIGHTS: call before_weights; SHARDS: also announce */

/* Fetch some files of the commit into the cache. */
static int get_files(struct fetch *f, const char *const *names, int n, enum what weights, struct err *e)
{
    struct download d = { .web = f->web, .o = f->o, .name = f->name, .commit = f->commit,
                          .most_unsized = weights ? MAX_UNSIZED : MAX_INDEX };
    struct hub_shard *shards = NULL;
    char text[300], *snapshot = NULL;
    int rc = download_plan(&d, names, n, e);
    for (int i = 0; rc == 0 && weights && i < n; i++)
        if (!d.files[i].have && d.files[i].size == 0)
            rc = err_set(e, ERR_FORMAT, "%s: %s: the hub says it has 0 bytes, expected weights", f->name->repo,
                         names[i]);
    if (rc == 0 && weights && d.left && !(snapshot = hub_cache_path(d.folder, "snapshots/%s", f->commit)))
        rc = err_nomem(e, "path");
    if (rc == 0 && snapshot && f->o->before_weights)
        rc = f->o->before_weights(f->o->before_user, snapshot, d.left, e);
    if (rc == 0 && weights && d.left && f->o->note) {
        snprintf(text, sizeof text, "downloading %.150s: %.*f %s to %.100s", f->name->repo, d.left < 1000000000 ? 1 : 2,
                 (double)d.left / (d.left < 1000000000 ? 1e6 : 1e9), d.left < 1000000000 ? "MB" : "GB", f->o->cache);
        f->o->note(f->o->note_user, text);
    }
    if (rc == 0 && snapshot && weights == SHARDS && f->o->announce)
        rc = download_announce(&d, snapshot, &shards, e);
    if (rc == 0)
        rc = download_run(&d, e);
    download_release_shards(shards, d.n_files);
    download_release(&d);
    free(snapshot);
    return rc;
}

/* Read the names of the shards from the index, which is in the cache by now. */
static int read_index(struct fetch *f, struct file_choice *c, struct err *e)
{
    size_t size;
    char *path = hub_cache_path(f->folder, "snapshots/%s/" CHOOSE_INDEX, f->commit),
         *text = path ? file_read(path, MAX_INDEX, &size, e) : NULL;
    int rc = text ? choose_indexed(c, f->name->repo, text, size, e) : path ? -1 : err_nomem(e, "path");
    free(text);
    free(path);
    return rc;
}

static int is_listed(const char *const *names, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], name) == 0)
            return 1;
    return 0;
}

static int by_text(const void *a, const void *b) { return strcmp(*(const char *const *)a, *(const char *const *)b); }

static int get_commit(struct fetch *f, const json_t *info, char **path, struct err *e)
{
    int n, rc;
    const char **names = sibling_names(info, f->name->repo, &n, e);
    struct file_choice c = { .file = NULL };
    rc = names ? choose(&c, f->name->repo, f->name->pick, names, n, e) : -1;
    if (rc == 0 && c.n_small)
        rc = get_files(f, c.small, c.n_small, SMALL_FILES, e);
    if (rc == 0 && c.indexed)
        rc = read_index(f, &c, e);
    if (rc == 0 && c.indexed)
        /* shards are numbered in the order of the layers, in which the conversion needs them */
        qsort(c.weights, (size_t)c.n_weights, sizeof *c.weights, by_text);
    if (rc == 0)
        rc = get_files(f, c.weights, c.n_weights, c.indexed && c.n_weights > 1 ? SHARDS : WEIGHTS, e);
    for (int i = 0; rc == 0 && !c.file && i < CHOOSE_N_OPTIONAL; i++)
        if (hub_cache_has(f->folder, f->commit, choose_optional[i]) == 0 && !is_listed(names, n, choose_optional[i]))
            hub_cache_set_absent(f->folder, f->commit, choose_optional[i]);
    if (rc == 0 && c.file && !*f->name->pick)
        hub_cache_set_absent(f->folder, f->commit, "model.safetensors");
    if (rc == 0)
        rc = hub_cache_set_commit(f->folder, f->name->revision, f->commit, e);
    if (rc == 0 && !(*path = c.file ? hub_cache_path(f->folder, "snapshots/%s/%s", f->commit, c.file)
                                    : hub_cache_path(f->folder, "snapshots/%s", f->commit)))
        rc = err_nomem(e, "path");
    choose_release(&c);
    free(names);
    return rc;
}

/* Whether the error must be returned even if the cache has the model: the hub refused the request,
 * or the call was cancelled. */
static int is_final(const struct web *w, const struct err *e)
{
    return w->refused || e->code == ERR_CANCELLED || e->code == ERR_MEMORY;
}

/* Fetch from the hub.  If it cannot be reached or answers incorrectly, use the snapshot of the
 * cache (NULL: none). */
static int fetch(const struct hub_options *o, const struct hub_name *name, const char *folder, char **path,
                 struct err *e)
{
    struct web w;
    char *cached = *path, text[700];
    int rc = -1;
    *path = NULL;
    int is_open = open_web(&w, o, name->repo, e) == 0;
    json_t *info = is_open ? model_info(&w, o, name, e) : NULL;
    const char *commit = json_string_value(json_object_get(info, "sha"));
    if (info && o->known)
        *o->known = 1;
    if (info && !hub_cache_commit_ok(commit))
        err_set(e, ERR_FORMAT, "%s: the hub names the commit '%.60s'", name->repo, commit);
    else if (info)
        rc = get_commit(&(struct fetch){ o, name, folder, commit, &w }, info, path, e);
    json_decref(info);
    if (is_open)
        web_close(&w);
    if (rc != 0 && cached && !is_final(&w, e)) {
        snprintf(text, sizeof text, "%.450s; using the cached copy", e->msg);
        if (o->note)
            o->note(o->note_user, text);
        *path = cached;
        return 0;
    }
    free(cached);
    return rc;
}

int hub_fetch(const struct hub_options *o, const struct hub_name *name, char **path, struct err *e)
{
    char commit[80], *folder = hub_cache_folder(o, name, e);
    int sure = 0, rc = folder ? 0 : -1;
    *path = NULL;
    if (rc == 0 && hub_cache_commit(folder, name->revision, commit, sizeof commit) == 0)
        sure = look_in_cache(name, folder, commit, path);
    int fixed = sure && strcmp(commit, name->revision) == 0;         /* a commit never changes */
    if (rc == 0 && !(*path && (o->offline || fixed || (sure && !o->refresh)))) {
        if (o->offline)
            rc = err_set(e, ERR_IO, "%s%s%s: not in %s, and HF_HUB_OFFLINE forbids asking the hub", name->repo,
                         *name->pick ? ":" : "", name->pick, o->cache);
        else
            rc = fetch(o, name, folder, path, e);
    }
    free(folder);
    return rc;
}
