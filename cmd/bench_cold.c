/* bench_cold.c - measure the time from exec to the first token in fresh processes of zse-chat and,
 * with --peer, of llama.cpp's program.
 *
 * zse-chat --json reports the time at which it passed each mark, by a clock that all processes
 * share; the remaining time is spent in the system.  The two programs start alternately.  "Dropped"
 * means that the model's pages, and only they, were evicted from the page cache before. */
#include "cmd/zse-bench.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cmd/zse-chat.h"
#include "cmd/cli.h"
#include "cmd/home.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/json.h"
#include "libcommon/base/pool.h"

static const char prog[] = "zse-bench";

extern char **environ;

/* Phases between two marks of zse-chat.  The first begins before exec, the last ends when the first
 * byte of the answer arrives here. */
enum { EXEC, MAP, OPEN, TOKENIZE, ENGINE, PREFILL, FIRST_TOKEN, N_PHASES };
static const struct { const char *name, *mark, *what; } phases[N_PHASES] = {
    [EXEC] = { "exec", "main", "the program is loaded and linked" },
    [MAP] = { "map", "mapped", "the file is mapped and checked" },
    [OPEN] = { "open", "opened", "weights and tokenizer are bound" },
    [TOKENIZE] = { "tokenize", "tokenized", "the prompt becomes ids" },
    [ENGINE] = { "engine", "ready", "threads and memory" },
    [PREFILL] = { "prefill", "first_token", "the prompt is computed" },
    [FIRST_TOKEN] = { "first_token", NULL, "the token becomes text and arrives" },
};

/* On a GPU: phases between marks of its own, in addition to those above. */
enum { CONTEXT, COPY, OVERLAP, AFTER_CONTEXT, N_DEVICE };
static const struct { const char *name, *what; } device_phases[N_DEVICE] = {
    [CONTEXT] = { "context_s", "the rest of creating the context, which began with the opening" },
    [COPY] = { "copy_s", "the weights go to the GPU" },
    [OVERLAP] = { "overlap_s", "of that, while the prompt is computed" },
    [AFTER_CONTEXT] = { "after_context_s", "from the context to the first token" },
};

/* [repeats] each; phase and device are NULL for the peer */
struct starts { double *total, *phase[N_PHASES], *device[N_DEVICE]; };

/* Run argv with standard output in a pipe.  Returns the output, and the time when its first byte
 * (or its end) came in *first_s.  Caller frees. */
static char *run_child(const char *const *argv, int quiet, double *first_s, struct err *e)
{
    int fd[2], status;
    pid_t child;
    posix_spawn_file_actions_t actions;
    size_t size = 0, room = 65536;
    ssize_t got = 1;
    char *text = malloc(room + 1);
    if (!text || pipe2(fd, O_CLOEXEC) != 0) {
        free(text);
        err_sys(e, "pipe");
        return NULL;
    }
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&actions, fd[1], STDOUT_FILENO);
    if (quiet)
        posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    const int rc = posix_spawnp(&child, argv[0], &actions, NULL, (char *const *)argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(fd[1]);
    *first_s = 0;
    while (rc == 0 && got > 0) {
        char rest[4096];                /* output beyond `room` is discarded */
        got = size < room ? read(fd[0], text + size, room - size) : read(fd[0], rest, sizeof rest);
        if (got < 0 && errno == EINTR) {
            got = 1;
            continue;
        }
        if (*first_s == 0)
            *first_s = clock_s();
        size += got > 0 && size < room ? (size_t)got : 0;
    }
    close(fd[0]);
    text[size] = '\0';
    if (rc != 0)
        err_set(e, ERR_IO, "%s: %s", argv[0], strerror(rc));
    else if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        err_set(e, ERR_IO, "%s: %s %d", argv[0], WIFEXITED(status) ? "exit" : "signal",
                WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    else
        return text;
    free(text);
    return NULL;
}

/* Evict the file's pages from the page cache: NULL, or the reason why they stay. */
static const char *drop_pages(const char *path)
{
    const char *why = NULL;
    unsigned char in_core = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
        why = "its pages cannot be dropped";
    void *p = why ? MAP_FAILED : mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    if (p != MAP_FAILED && mincore(p, 4096, &in_core) == 0 && in_core & 1)
        why = "its pages stay in memory: another program maps it, or the file system keeps them";
    if (p != MAP_FAILED)
        munmap(p, 4096);
    if (fd >= 0)
        close(fd);
    return why;
}

static void device_times(struct starts *s, int i, const json_t *marks)
{
    const double asked = (double)json_integer_value(js_get(marks, "device")),
                 context = (double)json_integer_value(js_get(marks, "context")),
                 copied = (double)json_integer_value(js_get(marks, "copied")),
                 ready = (double)json_integer_value(js_get(marks, "ready")),
                 first = (double)json_integer_value(js_get(marks, "first_token"));
    s->device[CONTEXT][i] = (context - asked) * 1e-9;
    s->device[COPY][i] = (copied - context) * 1e-9;
    s->device[OVERLAP][i] = copied > ready ? (copied - ready) * 1e-9 : 0;
    s->device[AFTER_CONTEXT][i] = (first - context) * 1e-9;
}

/* Measure one start of zse-chat. */
static int start_ours(const char *const *argv, struct starts *s, int i, int *n_tokens, struct err *e)
{
    double first;
    const double begin = clock_s();
    char *text = run_child(argv, 0, &first, e);
    json_t *j = text ? json_loads(text, 0, NULL) : NULL;
    const json_t *marks = js_get(js_get(j, "timings"), "marks_ns");
    double before = begin;
    int rc = text ? 0 : -1;
    if (rc == 0 && !marks)
        rc = err_set(e, ERR_FORMAT, "%s: its answer has no marks_ns: is it another version?", argv[0]);
    for (int k = 0; rc == 0 && k < N_PHASES; k++) {
        const double at = phases[k].mark ? (double)json_integer_value(js_get(marks, phases[k].mark)) * 1e-9 : first;
        s->phase[k][i] = at - before;
        before = at;
    }
    if (rc == 0 && js_get(marks, "context"))
        device_times(s, i, marks);
    s->total[i] = first - begin;
    *n_tokens = (int)json_integer_value(js_get(js_get(j, "usage"), "prompt_tokens"));
    json_decref(j);
    free(text);
    return rc;
}

static int start_peer(const char *const *argv, struct starts *s, int i, struct err *e)
{
    double first;
    const double begin = clock_s();
    char *text = run_child(argv, 1, &first, e);
    s->total[i] = first - begin;
    free(text);
    return text ? 0 : -1;
}

static int starts_open(struct starts *s, int repeats, int with_phases)
{
    *s = (struct starts){ .total = calloc((size_t)repeats, sizeof(double)) };
    for (int k = 0; k < N_PHASES && with_phases; k++)
        if (!(s->phase[k] = calloc((size_t)repeats, sizeof(double))))
            return -1;
    for (int k = 0; k < N_DEVICE && with_phases; k++)
        if (!(s->device[k] = calloc((size_t)repeats, sizeof(double))))
            return -1;
    return s->total ? 0 : -1;
}

static void starts_release(struct starts *s)
{
    for (int k = 0; k < N_PHASES; k++)
        free(s->phase[k]);
    for (int k = 0; k < N_DEVICE; k++)
        free(s->device[k]);
    free(s->total);
}

/* ---- all starts ---- */

enum { WARM, DROPPED };
static const char *const states[2] = { "warm", "dropped" };

struct cold {
    const struct bench_options *o;
    char *path, *chat, *prompt;         /* path of the .zse; path of zse-chat; text of the prompt */
    char threads[16], context[16], tp[16], layers[16], experts[16], threshold[16], uploads[16];
    char window[32], prefetch[16], max_device[32];
    struct gpu_speeds gpu; size_t gpu_bytes;        /* on a GPU: its speeds, and the bytes that are copied to it */
    int n_tokens;
    double alone;                       /* seconds of the same prefill in a process that has warmed up */
    struct starts ours[2], peer[2];
    const char *kept[2];                /* why the pages of our model, or of the peer's, could not be evicted */
};

/* Append words until the prompt has n tokens, counted as zse-chat counts them. */
static char *make_prompt(const struct opened_model *m, int n, struct err *e)
{
    static const char *const words[] = { "the ", "river ", "runs ", "to ", "a ", "sea ", "of ", "stone, " };
    struct chat_options raw = { .raw = 1 };
    struct prompter p;
    char *text = calloc((size_t)n + 2, 8);          /* a byte is at most one token: n words are enough */
    int have = 0, rc = prompter_open(&p, m, &raw, 0, e);
    for (int i = 0; rc == 0 && text && have < n && i <= n; i++) {
        int32_t *ids = NULL;
        const size_t before = strlen(text);
        strcat(text, words[i % 8]);
        rc = prompter_encode(&p, text, strlen(text), 1, &ids, &have, e);
        free(ids);
        if (rc == 0 && have > n && before > 0) {    /* a byte-level vocabulary: cut the word */
            text[strlen(text) - (size_t)(have - n < (int)(strlen(text) - before) ? have - n : 0)] = '\0';
            have = n;
        }
    }
    prompter_close(&p);
    if (rc == 0 && text)
        return text;
    if (rc == 0)
        err_nomem(e, "prompt");
    free(text);
    return NULL;
}

/* The path of zse-chat: beside this program, else to be found by PATH. */
static char *find_chat(void)
{
    char self[4096], *slash, *path = NULL;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    self[n > 0 ? n : 0] = '\0';
    slash = strrchr(self, '/');
    if (slash && asprintf(&path, "%.*s/zse-chat", (int)(slash - self), self) >= 0 && access(path, X_OK) == 0)
        return path;
    free(slash ? path : NULL);
    return strdup("zse-chat");
}

static int prepare(struct cold *c, const char *model, struct err *e)
{
    struct opened_model m;
    struct prefill_cost alone = { 0 };
    if (open_model(prog, model, &c->o->run, &m, e) != 0)
        return -1;
    int rc = m.tokenizer ? 0 : err_set(e, ERR_FORMAT, "%s: has no tokenizer", m.path);
    if (rc == 0 && !(c->prompt = make_prompt(&m, c->o->prompt, e)))
        rc = -1;
    c->path = strdup(m.path);
    c->chat = find_chat();
    if (rc == 0 && (!c->path || !c->chat))
        rc = err_nomem(e, "path");
    if (rc == 0)
        rc = bench_prefill_alone(c->o, &m, c->o->prompt, &alone, e);
    c->alone = alone.seconds;
    c->gpu_bytes = alone.gpu_bytes;
    if (rc == 0 && c->gpu_bytes)
        rc = gpu_measure(c->o->run.gpu_index, &c->gpu, e);
    close_model(&m);
    return rc;
}

static int measure(struct cold *c, int state, struct err *e)
{
    const struct bench_options *o = c->o;
    char kv[KV_TEXT];
    const char *ours[48] = { c->chat, c->path, "--raw", "-p", c->prompt, "-n", "1", "--temp", "0", "--ignore-eos",
                             "--json", "--threads", c->threads };
    int n = 13;
    if (o->run.exact)
        ours[n++] = "--exact";
    else
        ours[n++] = "--kv", ours[n++] = kv_text(o->run.kv, kv);
    if (o->run.kernels)
        ours[n++] = "--kernels", ours[n++] = o->run.kernels;
    if (o->run.device)
        ours[n++] = "--device", ours[n++] = o->run.device;
    if (o->run.gpus_text)
        ours[n++] = "--gpus", ours[n++] = o->run.gpus_text;
    if (o->run.split_text)
        ours[n++] = "--pp-split", ours[n++] = o->run.split_text;
    if (o->run.tp)
        ours[n++] = "--tp", ours[n++] = c->tp;
    if (o->run.gpu_layers_given)
        ours[n++] = "--gpu-layers", ours[n++] = c->layers;
    if (o->run.moe_given)
        ours[n++] = "--moe", ours[n++] = run_moe_name(o->run.moe);
    if (o->run.experts_given)
        ours[n++] = "--gpu-experts", ours[n++] = c->experts;
    if (o->run.threshold_given)
        ours[n++] = "--gpu-prefill-threshold", ours[n++] = c->threshold;
    if (o->run.no_gpu_prefill)
        ours[n++] = "--no-gpu-prefill";
    if (o->run.uploads_given)
        ours[n++] = "--expert-uploads", ours[n++] = c->uploads;
    if (o->run.stream_given)
        ours[n++] = "--layer-window", ours[n++] = c->window;
    if (o->run.prefetch_given)
        ours[n++] = "--prefetch", ours[n++] = c->prefetch;
    if (o->run.max_device)
        ours[n++] = "--max-device", ours[n++] = c->max_device;
    if (o->run.strict)
        ours[n++] = "--strict";
    if (o->run.act_codes)
        ours[n++] = "--act", ours[n++] = act_codes_name(o->run.act_codes);
    if (o->run.no_graphs)
        ours[n++] = "--cuda-graphs", ours[n++] = "off";
    if (o->run.cache_given)
        ours[n++] = "--cache-weights", ours[n++] = run_cache_name(o->run.cache_weights);
    const char *peer[] = { o->peer, "-m", o->peer_model, "-p", c->prompt, "-n", "1", "--temp", "0", "--ignore-eos",
                           "-t", c->threads, "-c", c->context, "-no-cnv", "--no-display-prompt", "--simple-io", NULL };
    struct starts ignored = { 0 };
    int rc = 0;
    if (starts_open(&c->ours[state], o->repeats, 1) != 0 || starts_open(&c->peer[state], o->repeats, 0) != 0 ||
        starts_open(&ignored, 1, 1) != 0)
        rc = err_nomem(e, "benchmark");
    if (rc == 0 && state == WARM) {
        /* a run that does not count brings programs and models into the page cache */
        rc = start_ours(ours, &ignored, 0, &c->n_tokens, e);
        rc = rc == 0 && o->peer ? start_peer(peer, &ignored, 0, e) : rc;
    }
    for (int i = 0; rc == 0 && i < o->repeats; i++) {
        if (state == DROPPED)
            c->kept[0] = drop_pages(c->path);
        if (state == WARM || !c->kept[0])
            rc = start_ours(ours, &c->ours[state], i, &c->n_tokens, e);
        if (state == DROPPED && o->peer)
            c->kept[1] = drop_pages(o->peer_model);
        if (rc == 0 && o->peer && (state == WARM || !c->kept[1]))
            rc = start_peer(peer, &c->peer[state], i, e);
    }
    starts_release(&ignored);
    return rc;
}

/* Report the GPU's phases, and a ratio: the time from the creation of the CUDA context to the first
 * token, over the time that copying alone takes at the link's speed. */
static json_t *report_device(struct cold *c, int state)
{
    const struct bench_options *o = c->o;
    const double least = (double)c->gpu_bytes / c->gpu.upload;
    json_t *j = json_pack("{s:I, s:f, s:f}", "bytes", (json_int_t)c->gpu_bytes, "upload_bytes_per_s", c->gpu.upload,
                          "least_s", least);
    for (int k = 0; k < N_DEVICE; k++) {
        const double t = summarise(c->ours[state].device[k], o->repeats).median;
        json_object_set_new(j, device_phases[k].name, json_real(t));
        if (k == AFTER_CONTEXT)
            json_object_set_new(j, "over_least", json_real(t / least));
        if (!o->json)
            printf("  %-15s %6.2f ms   %s\n", device_phases[k].name, t * 1e3, device_phases[k].what);
    }
    if (!o->json)
        printf("  %-15s %6.2f ms   the bytes at the link's measured speed\n", "least_s", least * 1e3);
    return j;
}

static json_t *report(struct cold *c)
{
    const struct bench_options *o = c->o;
    json_t *j = json_pack("{s:s, s:i, s:i, s:f}", "model", c->path, "prompt_tokens", c->n_tokens, "repeats", o->repeats,
                          "prefill_alone_s", c->alone);
    if (!o->json)
        printf("%s: a prompt of %d token%s, median of %d start%s; its prefill alone takes %.1f ms\n", c->path,
               c->n_tokens, plural(c->n_tokens), o->repeats, plural(o->repeats), c->alone * 1e3);
    for (int state = WARM; state <= DROPPED; state++) {
        if (state == DROPPED && c->kept[0]) {
            json_object_set_new(j, states[state], json_null());
            json_object_set_new(j, "not_dropped", json_string(c->kept[0]));
            if (!o->json)
                printf("page cache dropped: not measured, %s\n", c->kept[0]);
            continue;
        }
        const struct summary total = summarise(c->ours[state].total, o->repeats);
        json_t *parts = json_object(), *all = json_pack("{s:o, s:f, s:o}", "total_s", summary_json(&total),
                                                        "overhead_s", total.median - c->alone, "phases_s", parts);
        json_object_set_new(j, states[state], all);
        if (!o->json)
            printf("page cache %s: first token after %.1f ms (%.1f to %.1f), %.1f ms more than the prefill alone\n",
                   states[state], total.median * 1e3, total.min * 1e3, total.max * 1e3,
                   (total.median - c->alone) * 1e3);
        for (int k = 0; k < N_PHASES; k++) {
            const double t = summarise(c->ours[state].phase[k], o->repeats).median;
            json_object_set_new(parts, phases[k].name, json_real(t));
            if (!o->json)
                printf("  %-12s %9.2f ms   %s\n", phases[k].name, t * 1e3, phases[k].what);
        }
        if (c->gpu_bytes)
            json_object_set_new(all, "gpu", report_device(c, state));
        if (!o->peer || (state == DROPPED && c->kept[1]))
            continue;
        const struct summary theirs = summarise(c->peer[state].total, o->repeats);
        json_object_set_new(all, "peer_total_s", summary_json(&theirs));
        json_object_set_new(all, "ratio", json_real(theirs.median / total.median));
        if (!o->json)
            printf("  peer         %9.1f ms (%.1f to %.1f): %.1f times as long\n", theirs.median * 1e3,
                   theirs.min * 1e3, theirs.max * 1e3, theirs.median / total.median);
    }
    return j;
}

int bench_coldstart(const struct bench_options *options, const char *model)
{
    struct bench_options o = *options;
    struct cold c = { .o = &o };
    struct err e;
    json_t *j = NULL;
    model = home_model_named(model);
    if (o.peer && !o.peer_model) {
        const size_t n = model ? strlen(model) : 0;
        if (n < 5 || strcmp(model + n - 5, ".gguf") != 0)
            return cli_wrong(prog, "--peer: MODEL is not a GGUF file: name one with --peer-model");
        o.peer_model = model;
    }
    if (o.peer_model && !o.peer)
        return cli_wrong(prog, "--peer-model needs --peer");
    snprintf(c.threads, sizeof c.threads, "%d", o.run.threads ? o.run.threads : pool_n_cpus());
    if (o.run.gpu_layers == GPU_LAYERS_AUTO)
        snprintf(c.layers, sizeof c.layers, "auto");
    else
        snprintf(c.layers, sizeof c.layers, "%d", o.run.gpu_layers);
    if (o.run.prefill_threshold)
        snprintf(c.threshold, sizeof c.threshold, "%d", o.run.prefill_threshold);
    else
        snprintf(c.threshold, sizeof c.threshold, "auto");
    if (o.run.expert_uploads == EXPERT_UPLOADS_AUTO)
        snprintf(c.uploads, sizeof c.uploads, "auto");
    else
        snprintf(c.uploads, sizeof c.uploads, "%d", o.run.expert_uploads);
    snprintf(c.tp, sizeof c.tp, "%d", o.run.tp);
    snprintf(c.experts, sizeof c.experts, "%d", o.run.gpu_experts);
    if (o.run.stream_window)
        snprintf(c.window, sizeof c.window, "%s%d", o.run.stream_sequential ? "sequential:" : "", o.run.stream_window);
    else
        snprintf(c.window, sizeof c.window, "%s", o.run.layer_stream ? "auto" : "off");
    snprintf(c.prefetch, sizeof c.prefetch, "%d", o.run.prefetch);
    snprintf(c.max_device, sizeof c.max_device, "%llu", (unsigned long long)o.run.max_device);
    snprintf(c.context, sizeof c.context, "%d", o.prompt + 64);
    int rc = prepare(&c, model, &e);
    for (int state = WARM; rc == 0 && state <= DROPPED; state++)
        rc = measure(&c, state, &e);
    if (rc == 0) {
        j = report(&c);
        if (o.json)
            cli_json(j);
    }
    json_decref(j);
    for (int state = WARM; state <= DROPPED; state++) {
        starts_release(&c.ours[state]);
        starts_release(&c.peer[state]);
    }
    free(c.path);
    free(c.chat);
    free(c.prompt);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}
