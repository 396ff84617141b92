/* serve_jobs.c - apply a client's choice of type and device to a model, and make the commands that
 * download and convert models. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "cmd/hub_cli.h"
#include "cmd/pull.h"
#include "cmd/zse-serve.h"
#include "libcommon/convert/convert.h"
#include "libcommon/hub/hub.h"
#include "libcommon/serve/server.h"

int serve_choose(const struct model_choice *how, struct run_options *run, struct err *e)
{
    static const char prog[] = "zse-serve";
    struct convert_type type;
    char text[48];
    if (*how->quantization) {
        if (convert_parse_type(&type, how->quantization, e) != 0)
            return err_prefix(e, "quantization");
        run->type = how->quantization;
        run->mode.given = 0;
    }
    if (how->target_gb > 0) {
        snprintf(text, sizeof text, "for_vram=%.0f", how->target_gb * 1e9);
        run->type = NULL;
        if (planned_mode_parse(prog, text, &run->mode) != 0)
            return err_set(e, ERR_LIMIT, "target_vram_gb: %g GB is too small", how->target_gb);
    }
    if (!*how->device)
        return 0;
    run->device = how->device;
    run->gpu = run->gpu_auto = run->gpus.n = 0;
    run->gpus_text = run->split_text = NULL;
    return run_options_check(prog, run) == 0
               ? 0 : err_set(e, ERR_UNSUPPORTED, "device: '%s', expected auto, cpu, cuda or cuda:N of this machine",
                             how->device);
}

/* ---- commands ---- */

/* The path of another of our programs, in the folder of this program.  NULL with *e. */
static char *beside(const char *name, struct err *e)
{
    char self[4096], *path;
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) {
        err_sys(e, "/proc/self/exe");
        return NULL;
    }
    self[n] = '\0';
    char *slash = strrchr(self, '/');
    if (!slash || asprintf(&path, "%.*s/%s", (int)(slash - self), self, name) < 0) {
        err_nomem(e, "path");
        return NULL;
    }
    if (access(path, X_OK) == 0)
        return path;
    err_sys(e, "%s", path);
    free(path);
    return NULL;
}

static void release(char **words)
{
    for (char **w = words; w && *w; w++)
        free(*w);
    free(words);
}

/* Copy a list of words.  NULL with *e. */
static char **copy(const char *const *words, int n, struct err *e)
{
    char **out = calloc((size_t)n + 1, sizeof *out);
    int i = 0;
    while (out && i < n && (out[i] = strdup(words[i])))
        i++;
    if (out && i == n)
        return out;
    release(out);
    err_nomem(e, "command");
    return NULL;
}

/* Check the order.  -1 with *e (ERR_FORMAT). */
static int check(const struct model_order *o, struct err *e)
{
    struct hub_name name;
    struct convert_type type = { .kind = CONVERT_TYPE };
    if (!o->is_path && hub_parse_name(&name, o->source, e) != 0)
        return err_prefix(e, "source");
    if (o->quantization && convert_parse_type(&type, o->quantization, e) != 0)
        return err_prefix(e, "quantization");
    if (o->quality && strcmp(o->quality, "fast") != 0 && strcmp(o->quality, "good") != 0 &&
        strcmp(o->quality, "best") != 0)
        return err_set(e, ERR_FORMAT, "quality: '%.40s', expected fast, good or best", o->quality);
    if (type.kind == CONVERT_MIXED && o->target_gb <= 0)
        return err_set(e, ERR_FORMAT, "quantization: mixed needs target_gb");
    return 0;
}

/* Find the revision of a source in the cache of downloads.  out: the name of its folder there,
 * which conversions record as their source; "": it is not in the cache. */
static void find_revision(const struct hub_name *name, char out[64])
{
    struct stat st;
    char *path = hub_cached(name);
    const char *slash = path && stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? strrchr(path, '/') : NULL;
    if (slash && strlen(slash + 1) < 64)
        strcpy(out, slash + 1);
    free(path);
}

int serve_pull_resolve(const char *word, struct model_pulled *out, struct err *e)
{
    struct pulled p;
    struct hub_name name;
    if (*word == '/' || *word == '.')           /* clients must not name files of the server */
        return err_set(e, ERR_FORMAT, "'%.140s' is not a valid model name", word);
    if (pull_resolve(&p, word, NULL, e) != 0 || hub_parse_name(&name, p.source, e) != 0) {
        pull_release(&p);
        return -1;
    }
    snprintf(out->name, sizeof out->name, "%s", p.name);
    snprintf(out->type, sizeof out->type, "%s", p.type);
    out->source = strdup(p.source);
    find_revision(&name, out->revision);
    pull_release(&p);
    return out->source ? 0 : err_nomem(e, "name");
}

char **serve_job_command(const struct model_order *o, struct err *e)
{
    enum { MOST_WORDS = 20 };
    const long n_processors = sysconf(_SC_NPROCESSORS_ONLN);
    const char *words[MOST_WORDS];
    char size[32], threads[24], *program;
    int n = 0;
    if (check(o, e) != 0) {
        e->code = ERR_FORMAT;
        return NULL;
    }
    if (!(program = beside(o->output ? "zse-convert" : "zse-info", e)))
        return NULL;
    words[n++] = program;
    if (!o->output) {
        words[n++] = "models";
        words[n++] = "fetch";
    } else {
        snprintf(threads, sizeof threads, "%ld", n_processors > 1 ? (n_processors + 1) / 2 : 1);
        words[n++] = "--threads";               /* half of the processors: the others answer requests */
        words[n++] = threads;
        words[n++] = "-o";
        words[n++] = o->output;
    }
    words[n++] = "--progress";
    words[n++] = "json";
    if (o->quantization) {
        words[n++] = "-q";
        words[n++] = o->quantization;
    }
    if (o->quality) {
        words[n++] = "--quality";
        words[n++] = o->quality;
    }
    if (o->target_gb > 0) {
        snprintf(size, sizeof size, "%.0f", o->target_gb * 1e9);
        words[n++] = "--target-memory";
        words[n++] = size;
    }
    words[n++] = "--";
    words[n++] = o->source;
    char **out = copy(words, n, e);
    free(program);
    return out;
}
