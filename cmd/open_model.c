/* open_model.c - open MODEL of the command line: fetch, convert, map, and read adapters and
 * drafts. */
#include "cmd/open_model.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "cmd/conv_cache.h"
#include "cmd/home.h"
#include "cmd/hub_cli.h"
#include "cmd/memory_note.h"
#include "cmd/preflight.h"
#include "cmd/sigbus.h"
#include "gpu/gpu.h"
#include "libcommon/base/clock.h"
#include "libcommon/convert/eagle_source.h"
#include "libcommon/convert/medusa_source.h"
#include "libcommon/cpu/cpu.h"
#include "libcommon/hw/machine.h"
#include "libcommon/import/source.h"
#include "libcommon/model/lora.h"
#include "libcommon/model/lora_plan.h"
#include "libcommon/store/store.h"

/* Most bytes of weights that are read into memory in advance; more would evict the first ones
 * before they are used. */
static uint64_t may_fill(void)
{
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (uint64_t)pages / 2 * (uint64_t)page : 0;
}

uint64_t lora_work_memory(int rank, const struct run_options *r)
{
    return cpu_lora_memory(rank, BACKEND_STEP_TOKENS, r->threads);
}

int plan_loras(struct lora_plan *p, const struct zfile *z, const struct run_options *r, struct err *e)
{
    const struct map_guard guard = { sigbus_guard, sigbus_unguard };
    *p = (struct lora_plan){ .scaled = !z || lora_scales(z) };
    for (int i = 0; i < r->n_loras; i++)
        if (lora_plan_add(p, r->loras[i].folder, &guard, e) != 0)
            return -1;
    return 0;
}

/* Check that bytes of adapters are available; `what` names them. */
static int check_available(const struct run_options *r, const char *what, uint64_t bytes, struct err *e)
{
    char size[CLI_BYTES], now[CLI_BYTES];
    struct memory m;
    struct err ignored;
    if (!r->force && memory_read(&m, preflight_root(), &ignored) == 0 && bytes > memory_now(&m))
        return err_set(e, ERR_MEMORY, "%s %s, but only %s are available; --force tries it", what,
                       cli_bytes(size, bytes), cli_bytes(now, memory_now(&m)));
    return 0;
}

struct lora_bound *open_lora(const struct model *m, const char *name, const char *folder, uint64_t most_bytes,
                             const struct run_options *r, struct err *e)
{
    const struct map_guard guard = { sigbus_guard, sigbus_unguard };
    struct lora_plan p = { .scaled = lora_scales(m->file) };
    char size[CLI_BYTES], most[CLI_BYTES];
    if (lora_plan_add(&p, folder, &guard, e) != 0)
        return NULL;
    const uint64_t bytes = p.bytes + lora_work_memory(p.rank, r);
    if (most_bytes && bytes > most_bytes) {
        err_set(e, ERR_LIMIT, "the adapter takes %s, --max-memory leaves %s", cli_bytes(size, bytes),
                cli_bytes(most, most_bytes));
        return NULL;
    }
    return check_available(r, "the adapter takes", bytes, e) == 0 ? lora_bind(m, name, folder, &guard, e) : NULL;
}

/* Check that the adapters of --lora fit, before they take memory. */
static int check_loras(const struct opened_model *o, const struct run_options *r, struct err *e)
{
    struct lora_plan p;
    char all[CLI_BYTES], most[CLI_BYTES];
    if (plan_loras(&p, o->model->file, r, e) != 0)
        return -1;
    const uint64_t bytes = p.bytes + lora_work_memory(p.rank, r);
    if (r->most_adapted && o->model->weight_bytes + bytes > r->most_adapted)
        return err_set(e, ERR_LIMIT, "--lora: the weights and the adapters take %s, --max-memory is %s",
                       cli_bytes(all, o->model->weight_bytes + bytes), cli_bytes(most, r->most_adapted));
    return check_available(r, "--lora: the adapters take", bytes, e);
}

/* Add the adapters of --lora to the model. */
static int load_loras(struct opened_model *o, const struct run_options *r, struct err *e)
{
    const struct map_guard guard = { sigbus_guard, sigbus_unguard };
    if (r->n_loras && check_loras(o, r, e) != 0)
        return -1;
    for (int i = 0; i < r->n_loras; i++) {
        char *name = strndup(r->loras[i].name, (size_t)r->loras[i].name_len);
        const int rc = name ? model_add_lora(o->model, name, r->loras[i].folder, &guard, e) : err_nomem(e, "--lora");
        free(name);
        if (rc != 0)
            return -1;
    }
    return 0;
}

/* Open the .zse at o->path. */
static int load(struct opened_model *o, struct err *e)
{
    size_t size;
    const struct map_guard guard = { sigbus_guard, sigbus_unguard };
    struct zfile *z = zfile_open_guarded(o->path, o->bounded ? 0 : may_fill(), &guard, e);
    o->mapped_ns = clock_ns();
    if (!z || !(o->model = model_bind(z, e)))
        return -1;
    const void *blob = zfile_tokenizer(o->model->file, &size);
    if (blob && !(o->tokenizer = tokenizer_open(blob, size, e)))
        return err_prefix(e, "%s", o->path);
    o->json = zfile_json(o->model->file);
    if (zfile_map(z)->lost && map_check(zfile_map(z), e) != 0)
        return -1;
    return model_verify_start(&o->check, z, o->verify, o->in_cache, !o->bounded && zfile_size(z) <= may_fill(), e);
}

static void unload(struct opened_model *o)
{
    model_verify_stop(o->check);
    o->check = NULL;
    if (o->tokenizer)
        tokenizer_close(o->tokenizer);
    if (o->model)
        model_close(o->model);
    o->tokenizer = NULL;
    o->model = NULL;
}

/* *bytes: the free memory of the device, or of all that --gpus names. */
static int free_memory(const struct run_options *r, uint64_t *bytes, struct err *e)
{
    struct machine_gpu gpu[MACHINE_GPUS];
    struct memory m;
    char why[160];
    if (!r->gpu || strcmp(gpu_kind, "cuda") != 0) {
        if (memory_read(&m, preflight_root(), e) != 0)
            return -1;
        *bytes = memory_now(&m);
        return 0;
    }
    const int n = machine_gpus(gpu, MACHINE_GPUS, why);
    *bytes = 0;
    for (int i = 0; i == 0 || i < r->gpus.n; i++) {
        const int index = r->gpus.n ? r->gpus.index[i] : r->gpu_index;
        if (index >= n)
            return err_set(e, ERR_DEVICE, "--mode: GPU %d does not say what memory it has%s%s", index, n ? "" : ": ",
                           n ? "" : why);
        *bytes += gpu[index].free;
    }
    return 0;
}

/* Choose the type for this source by --mode.  Static; NULL with *e. */
static const char *choose_type(const char *prog, const char *path, const struct run_options *r, const char *name,
                               struct err *e)
{
    enum { CONTEXT = 8192 };
    struct planned_choices s = { 0 };
    const char *type = NULL;
    char *title = NULL, size[CLI_BYTES];
    uint64_t available = 0;
    json_t *config = planned_config(path, &title, e);
    const struct planned_query ask = { .name = name, .path = path, .config = config,
                                       .context = r->ctx ? r->ctx : CONTEXT,
                                     .n_seqs = r->max_seqs, .kv_most = r->kv_most,
                                     .on_gpu = r->gpu != 0, .measure = !r->gpu &&
                                     (r->mode.mode == PLAN_AUTO || r->mode.mode == PLAN_MAX_SPEED),
                                     .n_threads = r->threads, .kernels = r->kernels };
    const int best = config && free_memory(r, &available, e) == 0 &&
                     planned_compare(&s, &ask, e) == 0 ? planned_choose(&s, name, &r->mode, available, e) : -1;
    if (best >= 0) {
        type = s.c[best].type;          /* static, as planned_type() and "keep" are */
        cli_note(prog, "--mode %s: %s as %s, %s to run", plan_mode_name(r->mode.mode), name, type,
                 cli_bytes(size, s.c[best].bytes));
    }
    planned_choices_close(&s);
    json_decref(config);
    free(title);
    return type;
}

const char *open_model_given_type(const struct run_options *r)
{
    const char *env = getenv("ZSE_QUANTIZATION");
    return r->type ? r->type : env && *env ? env : NULL;
}

const char *open_model_type(const char *prog, const char *path, const struct run_options *r, const char *name,
                            struct err *e)
{
    struct convert_type parsed;
    if (r->mode.given)
        return choose_type(prog, path, r, name, e);
    const char *type = open_model_given_type(r);
    if (type && convert_parse_type(&parsed, type, e) != 0) {
        if (!r->type)
            err_prefix(e, "ZSE_QUANTIZATION");
        return NULL;
    }
    return type ? type : "keep";
}

/* Open the file at o->path, unless it lacks something that is requested. */
static int load_cached(const struct conv_cache_request *ask, struct opened_model *o, struct err *e)
{
    if (load(o, e) != 0)
        return -1;
    return ask->adapted && lora_lacks_scales(o->model->file)
               ? err_set(e, ERR_UNSUPPORTED, "%s: has no channel scales", o->path) : 0;
}

/* Open the file at o->path; convert if it is missing or damaged. */
static int load_made(const struct conv_cache_request *ask, const char *source, struct opened_model *o, struct err *e)
{
    struct err why;
    if (load_cached(ask, o, &why) == 0)
        return 0;
    if (why.code == ERR_FORMAT)
        cli_note(ask->prog, "%s", why.msg);
    unload(o);
    return conv_cache_make(ask, source, o->path, e) == 0 ? load(o, e) : -1;
}

/* Open the cached conversion of a GGUF or folder. */
static int load_converted(const struct conv_cache_request *ask, const char *source, struct opened_model *o,
                          struct err *e)
{
    struct conv_cache_lock lock;
    struct err why;
    if (!ask->type || !(o->path = conv_cache_path(ask, source, e)))
        return -1;
    if (load_cached(ask, o, &why) == 0)
        return 0;
    /* if a check has just removed a damaged conversion, convert again */
    if (why.code == ERR_FORMAT && access(o->path, F_OK) != 0)
        cli_note(ask->prog, "%s", why.msg);
    unload(o);
    if (conv_cache_lock(&lock, ask, source, e) != 0)
        return -1;
    const int rc = load_made(ask, source, o, e);        /* another process may have converted it */
    conv_cache_unlock(&lock);
    return rc;
}

/* Open a folder whose shards are still downloading; the stream is closed. */
static int load_arriving(const struct conv_cache_request *ask, struct hub_stream *stream, char **source,
                         struct opened_model *o, struct err *e)
{
    struct conv_cache_lock lock;
    if (!ask->type || conv_cache_lock(&lock, ask, *source, e) != 0) {
        hub_stream_close(stream, -1, source, e);
        cli_die_of_interrupt();
        return -1;
    }
    int rc;
    if (!lock.waited)
        rc = conv_cache_arriving(ask, stream, source, &o->path, e) == 0 ? load(o, e) : -1;
    else                                                /* another process converted the same shards, or failed */
        rc = hub_stream_close(stream, 0, source, e) == 0 &&
             (o->path = conv_cache_path(ask, *source, e)) ? load_made(ask, *source, o, e) : -1;
    conv_cache_unlock(&lock);
    return rc;
}

static int refuse_without_weights(const char *path, struct err *e)
{
    return err_set(e, ERR_UNSUPPORTED, "%s has no weights, expected a .zse, a GGUF file or a Hugging Face folder", path);
}

static int find_and_load(const char *prog, char **found, struct hub_stream *stream, const struct run_options *r,
                         struct opened_model *o, struct err *e)
{
    const char *path = *found;
    switch (stream ? SOURCE_FOLDER : source_detect(path, e)) {
    case SOURCE_NONE: return -1;
    case SOURCE_ZSE:
        if (r->type)
            return err_set(e, ERR_UNSUPPORTED, "-q %s: %s is converted already; zse-convert makes another type from its source", r->type, path);
        if (r->mode.given && r->mode.mode != PLAN_FOR_VRAM)
            return err_set(e, ERR_UNSUPPORTED, "--mode %s: %s is converted already; zse-convert --mode makes another type from its source", plan_mode_name(r->mode.mode), path);
        if (!(o->path = strdup(path)))
            return err_nomem(e, "path");
        return load(o, e);
    case SOURCE_CONFIG: case SOURCE_TOKENIZER: return refuse_without_weights(path, e);
    case SOURCE_GGUF: case SOURCE_FOLDER:
        break;
    }
    const struct conv_cache_request ask = { .prog = prog, .asked = o->name,
                                       .type = open_model_type(prog, path, r, o->name, e), .n_threads = r->threads,
                                       .kernels = r->kernels, .adapted = r->n_loras > 0,
                                       .force = r->force };
    o->in_cache = 1;
    return stream ? load_arriving(&ask, stream, found, o, e) : load_converted(&ask, path, o, e);
}

static void *warm_up(void *r)
{
    const struct run_options *o = r;
    for (int i = 0; i < o->gpus.n; i++)
        gpu_warm_up(o->gpus.index[i]);
    if (o->gpus.n == 0)
        gpu_warm_up(o->gpu_index);
    return NULL;
}

static void end_warm_up(struct opened_model *o)
{
    if (o->warming)
        pthread_join(o->warmer, NULL);
    o->warming = 0;
}

int open_model_unnamed(const char *prog, const char *path)
{
    return home_model_named(path) ? 0 : cli_wrong(prog, "which MODEL? None is given, ZSE_MODEL is not set, and no model is the default (zse-info models default); zse-convert pull NAME makes models");
}

int open_model_check(const char *prog, const char *path, struct err *e)
{
    const struct map_guard guard = { sigbus_guard, sigbus_unguard };
    const struct source_options so = { .guard = &guard };
    struct source *s = NULL;
    struct zfile *z = NULL;
    sigbus_start(prog);
    switch (source_detect(path, e)) {
    case SOURCE_NONE: return -1;
    case SOURCE_ZSE: z = zfile_open_guarded(path, 0, &guard, e); break;
    case SOURCE_CONFIG: case SOURCE_TOKENIZER: return refuse_without_weights(path, e);
    case SOURCE_GGUF: case SOURCE_FOLDER: s = source_open_with(path, &so, e); break;
    }
    const int rc = s || z ? 0 : -1;
    source_close(s);
    zfile_close(z);
    return rc;
}

/* Record the use of a model that has a name. */
static void touch(const struct opened_model *o)
{
    struct err ignored;
    char *folder = home_models(&ignored);
    if (folder)
        store_touch(folder, o->path);
    free(folder);
}

/* Open the model of --spec draft:MODEL for o. */
static int open_draft(const struct run_options *r, struct opened_model *o, struct err *e)
{
    struct run_options own = *r;
    own.spec = SPEC_OFF;
    own.max_memory = 0;
    own.ctx = own.mode.given = own.n_loras = 0;
    if (!(o->draft = calloc(1, sizeof *o->draft)))
        return err_nomem(e, "draft model");
    if (open_model(o->prog, r->draft_model, &own, o->draft, e) != 0) {
        free(o->draft);
        o->draft = NULL;
        return -1;
    }
    if (engine_check_draft_model(o->draft->model, o->tokenizer, o->draft->tokenizer, e) != 0)
        return err_prefix(e, "--spec draft:%s", r->draft_model);
    if (o->draft->model->weight_bytes > o->model->weight_bytes)
        cli_note(o->prog, "--spec draft:%s: its weights are larger than those of %s, so answers come later", r->draft_model,
                 o->name);
    return 0;
}

/* Read the heads of --spec medusa:FILE or eagle:DIR for o. */
static int open_heads(const struct run_options *r, struct opened_model *o, struct err *e)
{
    const struct map_guard guard = { sigbus_guard, sigbus_unguard };
    struct medusa_options mo = { .n_threads = r->threads, .guard = &guard };
    struct memory m;
    struct err ignored;
    if (!r->force && memory_read(&m, preflight_root(), &ignored) == 0)
        mo.most_bytes = memory_now(&m);
    if (r->spec == SPEC_EAGLE) {
        if (!(o->eagle = eagle_read(r->heads, &o->model->config, &mo, e)))
            return err_prefix(e, "--spec eagle");
        eagle_attach(o->eagle, o->model);
        return 0;
    }
    o->heads = medusa_read(r->heads, &o->model->config, &mo, e);
    return o->heads ? 0 : err_prefix(e, "--spec medusa");
}

int open_model(const char *prog, const char *path, const struct run_options *r, struct opened_model *o, struct err *e)
{
    sigbus_start(prog);
    if (r->verbose)
        memory_note(prog, "start");
    memset(o, 0, sizeof *o);
    o->bounded = r->max_memory != 0 && !r->gpu;
    o->verify = r->verify;
    o->prog = prog;
    if (!(path = home_model_named(path)))
        return err_set(e, ERR_IO, "no MODEL given, and ZSE_MODEL is not set");
    o->name = path;
    char *found;
    struct hub_stream *stream = NULL;
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    struct preflight_convert pre = { .prog = prog, .name = path, .output = cache && *cache ? cache : home && *home
                                     ? home : "/", .type = r->type, .force = r->force,
                                     .runs = !r->gpu, .max_memory = r->max_memory };
    const struct hub_check check = { preflight_fetch, &pre };
    if (r->mode.given)
        pre.type = planned_type(PLANNED_TYPES - 1);     /* the smallest that it may choose */
    if (r->mode.given ? hub_model_path(prog, path, 0, &check, &found, e) != 0
                      : hub_stream_open(&stream, prog, path, 0, &check, &found, e) != 0)
        return -1;
    /* Start early: creating a context takes longer than mapping a file. */
    o->warming = r->gpu && pthread_create(&o->warmer, NULL, warm_up, (void *)r) == 0;
    int rc = find_and_load(prog, &found, stream, r, o, e);
    if (rc == 0 && !r->embeds && o->model->config.embedding.pooling) {
        const int scores = o->model->config.embedding.scores;
        err_set(e, ERR_UNSUPPORTED, "%s: %s: %s; zse-serve serves it at %s", path,
                scores ? "a reranker" : "an embedding model",
                scores ? "it scores pairs of texts" : "it makes vectors of texts",
                scores ? "/v1/rerank" : "/v1/embeddings");
        rc = -1;
    }
    free(found);
    end_warm_up(o);
    if (rc == 0 && r->ctx && !r->window && o->model->config.max_len > 0 && r->ctx > o->model->config.max_len)
        rc = err_set(e, ERR_LIMIT, "--ctx %d: %s was made for at most %d tokens", r->ctx, path,
                     o->model->config.max_len);
    if (rc == 0)
        rc = load_loras(o, r, e);
    if (rc == 0 && r->spec == SPEC_DRAFT)
        rc = open_draft(r, o, e);
    if (rc == 0 && (r->spec == SPEC_MEDUSA || r->spec == SPEC_EAGLE) && r->heads)
        rc = open_heads(r, o, e);
    if (rc != 0) {
        close_model(o);
        return rc;
    }
    touch(o);
    if (r->verbose)
        memory_note(prog, "model open");
    return 0;
}

int open_model_verified(struct opened_model *o, struct err *e) { return model_verify_finish(o->check, e); }

void close_model(struct opened_model *o)
{
    if (o->draft)
        close_model(o->draft);
    free(o->draft);
    medusa_close(o->heads);
    eagle_close(o->eagle);
    unload(o);
    free(o->path);
    memset(o, 0, sizeof *o);
}
