/* zse-serve.c - serve models on the OpenAI API. */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cmd/catalog.h"
#include "cmd/cli.h"
#include "cmd/home.h"
#include "cmd/hub_cli.h"
#include "cmd/preflight.h"
#include "cmd/zse-serve.h"
#include "cmd/mcp_env.h"
#include "libcommon/access/audit_sign.h"
#include "libcommon/base/json.h"
#include "libcommon/hw/memory.h"
#include "libcommon/mcp/mcp_config.h"
#include "libcommon/serve/server.h"

static const char prog[] = "zse-serve";

/* A quarter of the memory that this process may have: the default limit of keys and values. */
static uint64_t quarter_of_memory(void)
{
    struct memory m;
    struct err ignored;
    return memory_read(&m, preflight_root(), &ignored) == 0 ? memory_most(&m) / 4 : (uint64_t)1 << 31;
}

/* Bytes of keys and values: as given by an option, otherwise enough for max_seqs whole
 * sequences, but at most a quarter of memory (on a GPU nine tenths of the memory that everything
 * else leaves), and at least enough for one sequence. */
static uint64_t kv_bytes(const struct serve_options *o, const struct config *c, const struct opened_model *m,
                         const struct engine_options *eo)
{
    const uint64_t one = engine_kv_needs(c, eo, 1), all = engine_kv_needs(c, eo, o->max_seqs);
    const uint64_t most = eo->backend ? preflight_kv_room(m, eo) / 10 * 9 : quarter_of_memory();
    if (o->kv_bytes)
        return o->kv_bytes;
    return all < most ? all : one > most ? one : most;
}

/* The engine options for a model with configuration c.  m: the open model; NULL: it is not open,
 * and is planned for the CPU. */
static struct engine_options serve_engine_options(const struct serve_options *o, const struct config *c,
                                                  const struct opened_model *m)
{
    struct engine_options eo = run_engine_options(&o->run, o->max_seqs, context_of(c, &o->run));
    if (c->embedding.pooling)                   /* the engine keeps f32 for these models: see ask_backend() */
        eo.kv = kv_both(KV_F32);
    eo.max_waiting = o->max_queue;
    eo.no_prefix_cache = o->no_prefix_cache;
    eo.kv_bytes = kv_bytes(o, c, m, &eo);
    return eo;
}

/* Refuse a .zse that is larger than target_vram_gb, because a .zse is not converted.  Closes the
 * model and sets *e. */
static int too_large(const struct model_choice *how, struct opened_model *m, struct err *e)
{
    const double gb = (double)m->model->weight_bytes * 1e-9;
    if (how->target_gb <= 0 || gb <= how->target_gb)
        return 0;
    close_model(m);
    return err_set(e, ERR_LIMIT, "its weights take %.2f GB, target_vram_gb is %g: convert its source to a smaller type", gb,
                   how->target_gb);
}

/* Whether two paths name the same file: a request may name it in another way than the command
 * line. */
static int is_same_file(const char *a, const char *b)
{
    struct stat s, t;
    return strcmp(a, b) == 0 || (stat(a, &s) == 0 && stat(b, &t) == 0 && s.st_ino == t.st_ino && s.st_dev == t.st_dev);
}

static int open_served(void *user, const char *path, const struct model_choice *how, struct served_model *m,
                       struct err *e)
{
    struct serve_options chosen = *(const struct serve_options *)user, *o = &chosen;
    if (serve_choose(how, &chosen.run, e) != 0)
        return -1;
    if (!how->adapters || !is_same_file(path, o->models[0]))
        chosen.run.n_loras = 0;         /* the adapters are those of the first MODEL */
    chosen.run.most_adapted = o->max_memory;
    struct opened_model *opened = calloc(1, sizeof *opened);
    if (!opened)
        return err_nomem(e, "model");
    if (open_model(prog, path, &o->run, opened, e) != 0 || too_large(how, opened, e)) {
        free(opened);
        return -1;
    }
    int max_len = context_len(opened, &o->run);
    struct engine_options eo = serve_engine_options(o, &opened->model->config, opened);
    const json_t *type = js_get(js_get(opened->json, "quantization"), "type");
    *m = (struct served_model){ .model = opened->model, .adapts = opened->model,
                                .tokenizer = opened->tokenizer, .json = opened->json,
                                .max_len = max_len,
                                .quantization = json_string_value(type), .file_bytes = opened->model->weight_bytes,
                                .counts_drafts = o->run.spec_given, .handle = opened };
    if (run_spec(&o->run, opened, &eo, e) == 0 && preflight_check(prog, opened, &o->run, &eo, e) == 0 &&
        (m->engine = engine_open(opened->model, opened->tokenizer, &eo, e))) {
        preflight_compare(prog, opened, &o->run, &eo, m->engine);
        return 0;
    }
    close_model(opened);
    free(opened);
    return -1;
}

static struct lora_bound *bind_served(void *user, const struct served_model *m, const char *name, const char *folder,
                                      uint64_t most_bytes, struct err *e)
{
    const struct serve_options *o = user;
    return open_lora(m->model, name, folder, most_bytes, &o->run, e);
}

/* Tune glibc's allocator for servers that run for months while models are loaded and unloaded.
 * There are two arenas instead of eight per processor.  Large blocks are mapped, so that they
 * return to the system when they are freed, and this threshold does not grow.  Free blocks are
 * joined at once instead of being kept in fast bins: a large body would leave a million there,
 * and joining them later would hold the arena's lock, for which the event loop would wait. */
static void tame_malloc(void)
{
#ifdef __GLIBC__
    mallopt(M_ARENA_MAX, 2);
    mallopt(M_MMAP_THRESHOLD, 256 << 10);
    mallopt(M_TRIM_THRESHOLD, 512 << 10);
    mallopt(M_MXFAST, 0);
#endif
}

static void give_memory_back(void)
{
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

static void close_served(void *user, struct served_model *m)
{
    (void)user;
    engine_close(m->engine);
    close_model(m->handle);
    free(m->handle);
    give_memory_back();
}

static void say(void *user, const char *text)
{
    const struct serve_options *o = user;
    if (!o->quiet)
        cli_note(prog, "%s", text);
}

static void warn(void *user, const char *text)
{
    (void)user;
    cli_note(prog, "%s", text);
}

static void tell_systemd(void *user, enum server_state state)
{
    systemd_state(((const struct serve_options *)user)->systemd, state);
}

static void raise_descriptors(void)
{
    struct rlimit l;
    if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < l.rlim_max) {
        l.rlim_cur = l.rlim_max;
        setrlimit(RLIMIT_NOFILE, &l);
    }
}

static void print_addresses(const struct serve_options *o, const struct server *s)
{
    const char *scheme = o->tls_cert ? "https" : "http";
    if (o->host)
        printf(strchr(o->host, ':') ? "listening on %s://[%s]:%d\n" : "listening on %s://%s:%d\n", scheme, o->host,
               server_port(s));
    if (o->socket_path)
        printf("listening on unix:%s\n", o->socket_path);
    for (int i = 0; i < o->systemd->n_sockets; i++)
        printf("listening on %s\n", o->systemd->sockets[i].address);
    fflush(stdout);
}

/* Whether the argument of --embedding-model or --rerank-model is a file, a folder or a name on
 * the hub, and not the id of a MODEL. */
static int is_file(const char *name)
{
    const char *dot = name ? strrchr(name, '.') : NULL;
    return name && (strchr(name, '/') || (dot && (strcmp(dot, ".zse") == 0 || strcmp(dot, ".gguf") == 0)));
}

/* *path: the file or folder of a MODEL, malloc'd; NULL: the model is on the hub. */
static int find_path(const char *model, char **path, struct err *e)
{
    struct hub_name name;
    *path = NULL;
    return hub_is_name(model, &name, path, e) < 0 ? -1 : 0;
}

static int find_model(const char *model, struct err *e)
{
    char *path;
    if (find_path(model, &path, e) != 0)
        return -1;
    const int rc = path && access(path, F_OK) != 0 ? err_sys(e, "%s", path) : 0;
    free(path);
    return rc;
}

static int check_model(const char *model, struct err *e)
{
    char *path;
    if (find_path(model, &path, e) != 0)
        return -1;
    const int rc = path ? open_model_check(prog, path, e) : 0;
    free(path);
    return rc;
}

/* Call f for each MODEL and for the files of --embedding-model and --rerank-model. */
static int each_model(const struct serve_options *o, int (*f)(const char *model, struct err *e), struct err *e)
{
    const char *env = getenv("ZSE_MODEL"), *const *models = o->n_models ? o->models : &env;
    const int n = o->n_models ? o->n_models : env && *env ? 1 : 0;
    for (int i = 0; i < n; i++)
        if (f(models[i], e) != 0)
            return -1;
    if (is_file(o->embedding_model) && f(o->embedding_model, e) != 0)
        return -1;
    return is_file(o->rerank_model) ? f(o->rerank_model, e) : 0;
}

/* Check, before listening, that each MODEL is a file, a folder or a name on the hub. */
static int find_models(const struct serve_options *o, struct err *e)
{
    if (o->model_dir && access(o->model_dir, F_OK) != 0)
        return err_sys(e, "--model-dir %s", o->model_dir);
    if (o->lora_dir && access(o->lora_dir, F_OK) != 0)
        return err_sys(e, "--lora-dir %s", o->lora_dir);
    return each_model(o, find_model, e);
}

static int load_models(const struct serve_options *o, struct server *s, struct err *e)
{
    const char *env = getenv("ZSE_MODEL");
    if (o->n_models == 0 && env && *env && server_load(s, env, NULL, e) != 0)
        return -1;
    for (int i = 0; i < o->n_models; i++)
        if (server_load(s, o->models[i], i < o->n_names ? o->names[i] : NULL, e) != 0)
            return err_prefix(e, "%s", o->models[i]);
    if (is_file(o->embedding_model) && server_load(s, o->embedding_model, NULL, e) != 0)
        return err_prefix(e, "%s", o->embedding_model);
    if (is_file(o->rerank_model) && server_load(s, o->rerank_model, NULL, e) != 0)
        return err_prefix(e, "%s", o->rerank_model);
    return 0;
}

static int plan_model(const struct serve_options *o, const char *name)
{
    struct opened_model m;
    struct unopened u;
    struct engine_options eo;
    struct err e;
    int rc = unopened_find(&u, prog, name, &o->run, &e);
    if (rc == 1) {
        eo = serve_engine_options(o, &u.config, NULL);
        rc = preflight_plan_unopened(prog, &u, &o->run, &eo, 0);
        unopened_release(&u);
        return rc;
    }
    if (rc < 0 || open_model(prog, name, &o->run, &m, &e) != 0)
        return cli_fail(prog, &e);
    eo = serve_engine_options(o, &m.model->config, &m);
    rc = preflight_plan(prog, &m, &o->run, &eo, 0);
    close_model(&m);
    return rc;
}

/* --plan: print the plan of each model in turn, and serve nothing.  With --user the plan is made
 * as that user. */
static int plan_models(const struct serve_options *o)
{
    struct serve_user user;
    struct err e;
    if (o->user && (serve_user_find(&user, o->user, &e) || serve_user_environment(&user, &e) ||
                    serve_user_become(&user, &e)))
        return cli_fail(prog, &e);
    if (o->user)
        serve_user_release(&user);
    const char *env = getenv("ZSE_MODEL"), *const *models = o->n_models ? o->models : &env;
    int n = o->n_models ? o->n_models : env && *env ? 1 : 0, rc = CLI_OK;
    if (n == 0)
        return cli_wrong(prog, "--plan: which MODEL?");
    for (int i = 0; i < n; i++) {
        struct serve_options own = *o;
        own.run.n_loras = i ? 0 : o->run.n_loras;               /* adapters of the first MODEL */
        const int one = plan_model(&own, models[i]);
        rc = one > rc ? one : rc;
    }
    const int written = cli_finish(prog);
    return written ? written : rc;
}

/* Folders and files of the server, which belong to the user that it runs as.  Strings are owned;
 * audit NULL: there is no log; signer NULL: the log is not signed. */
struct server_folders {
    char *home, *audit, *audit_token, *token, *models, *store;
    const char **env;
    struct audit_signer *signer;
};

/* Whether the server serves the models that have names, because no MODEL was given. */
static int serves_names(const struct serve_options *o)
{
    const char *env = getenv("ZSE_MODEL");
    return o->n_models == 0 && !(env && *env);
}

/* The first line of a file, for a header.  Caller frees; NULL with *e. */
static char *read_audit_token(const char *path, struct err *e)
{
    size_t size;
    char *text = file_read(path, 4096, &size, e);
    if (!text)
        return NULL;
    text[strcspn(text, "\r\n")] = '\0';
    const size_t n = strlen(text);
    int plain = n > 0 && n <= 1024;
    for (size_t i = 0; i < n; i++)
        plain &= text[i] > ' ' && text[i] < 127;
    if (plain)
        return text;
    err_set(e, ERR_FORMAT, "%s: a token has 1 to 1024 printable characters without blanks, found %zu bytes", path, n);
    free(text);
    return NULL;
}

static int find_places(const struct serve_options *o, struct server_folders *p, struct err *e)
{
    if (!(p->home = home_folder(NULL, e)))
        return -1;
    if (!(p->env = mcp_env()))
        return err_nomem(e, "environment");
    if (o->model_dir ? !(p->models = strdup(o->model_dir)) : asprintf(&p->models, "%s/models", p->home) < 0) {
        p->models = NULL;
        return err_nomem(e, "the name of a folder");
    }
    if (serves_names(o) && asprintf(&p->store, "%s/models", p->home) < 0) {
        p->store = NULL;
        return err_nomem(e, "the name of a folder");
    }
    const char *audit = o->audit_folder;
    if (!o->no_audit && (audit ? !(p->audit = strdup(audit)) : asprintf(&p->audit, "%s/audit", p->home) < 0)) {
        p->audit = NULL;
        return err_nomem(e, "the name of a folder");
    }
    /* read the key before root's privileges are dropped, so that the user need not be able to
     * read it */
    if (p->audit && o->audit_sign && !(p->signer = audit_signer_open(o->audit_sign, e)))
        return -1;
    return p->audit && o->audit_token && !(p->audit_token = read_audit_token(o->audit_token, e)) ? -1 : 0;
}

static void release_places(struct server_folders *p)
{
    audit_signer_close(p->signer);
    free(p->env);
    free(p->token);
    free(p->models);
    free(p->store);
    free(p->audit);
    free(p->audit_token);
    free(p->home);
}

/* Drop root's privileges, which are not needed any more. */
static int become_user(const struct serve_options *o, const struct serve_user *u, const struct server_folders *p,
                       struct err *e)
{
    if (serve_user_folder(u, p->home, e) || (o->audit_folder && p->audit && serve_user_folder(u, p->audit, e)) ||
        (o->socket_path && serve_user_socket(u, o->socket_path, e)))
        return -1;
    if (serve_user_become(u, e) != 0)
        return -1;
    cli_hide_memory();
    return 0;
}

/* ---- the last resort: a shutdown that does not finish ---- */

enum { END_PATIENCE_S = 8 };
/* n_syncing: counted by the server; a slow disk is waited for, since it finishes in the end. */
struct last_resort { struct server *s; pthread_t thread; pthread_mutex_t lock; pthread_cond_t over; int started,
                     ended; atomic_int n_syncing; };

__attribute__((noreturn)) static void end_at_once(const char *why)
{
    cli_note(prog, "%s", why);
    fflush(stdout);
    _exit(CLI_FAILED);
}

/* Whether the shutdown finishes within END_PATIENCE_S. */
static int ends_in_time(struct last_resort *l)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += END_PATIENCE_S;
    pthread_mutex_lock(&l->lock);
    while (!l->ended && pthread_cond_timedwait(&l->over, &l->lock, &until) != ETIMEDOUT)
        ;
    const int ended = l->ended;
    pthread_mutex_unlock(&l->lock);
    return ended;
}

static void *watch_the_end(void *arg)
{
    struct last_resort *l = arg;
    for (int told = 0; !ends_in_time(l); told = 1) {
        if (atomic_load(&l->n_syncing) == 0) {
            server_finish_audit(l->s);
            end_at_once("closing the models takes too long: exiting without waiting for it");
        }
        if (!told)
            cli_note(prog, "waiting for the disk, which writes the audit log and the databases");
    }
    return NULL;
}

static int start_last_resort(struct last_resort *l)
{
    pthread_condattr_t a;
    pthread_condattr_init(&a);
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->over, &a);
    pthread_condattr_destroy(&a);
    l->started = pthread_create(&l->thread, NULL, watch_the_end, l) == 0;
    return l->started ? 0 : -1;
}

static void stop_last_resort(struct last_resort *l)
{
    if (!l->started)
        return;
    pthread_mutex_lock(&l->lock);
    l->ended = 1;
    pthread_cond_signal(&l->over);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    pthread_cond_destroy(&l->over);
    pthread_mutex_destroy(&l->lock);
}

/* The id of the first MODEL if it has adapters (--lora), and if its events are sent (--kv-events);
 * the names of the adapters.  Owned. */
struct adapted { char *id, *first, *names[MOST_LORA_OPTIONS]; };

static void release_adapted(struct adapted *a)
{
    free(a->id);
    free(a->first);
    for (int i = 0; i < MOST_LORA_OPTIONS; i++)
        free(a->names[i]);
}

static int find_adapted(const struct serve_options *o, struct adapted *a, struct err *e)
{
    const struct lora_option *l = o->run.loras;
    *a = (struct adapted){ 0 };
    if (o->run.n_loras && !(a->id = o->n_names ? strdup(o->names[0]) : server_model_id(o->models[0])))
        return err_nomem(e, "--lora");
    if (o->kv_events && !(a->first = o->n_names ? strdup(o->names[0]) : server_model_id(o->models[0])))
        return err_nomem(e, "--kv-events");
    for (int i = 0; i < o->run.n_loras; i++)
        if (!(a->names[i] = strndup(l[i].name, (size_t)l[i].name_len)))
            return err_nomem(e, "--lora");
    return 0;
}

/* Run until stopped.  user: the user to become; NULL: stay. */
static int serve(struct serve_options *o, const struct serve_user *user, struct server_folders *p, struct err *e)
{
    char *embeds = is_file(o->embedding_model) ? server_model_id(o->embedding_model) : NULL,
         *reranks = is_file(o->rerank_model) ? server_model_id(o->rerank_model) : NULL;
    struct adapted adapted;
    struct last_resort last = { 0 };
    const int known = find_adapted(o, &adapted, e);
    const struct server_options so = {
        .opener = { open_served, close_served, bind_served, o },
        .catalog = { catalog_registry, catalog_search, catalog_check },
        .maker = { serve_job_command, p->models, (const char *const *)(uintptr_t)environ, serve_pull_resolve },
        .host = o->host, .port = o->port, .socket_path = o->socket_path,
            .inherited = o->systemd->sockets, .n_inherited = o->systemd->n_sockets,
            .tls_cert = o->tls_cert, .tls_key = o->tls_key,
        .home = p->home, .keys_url = o->keys_url, .keys_grace_s = o->keys_grace_s,
        .no_auth = o->no_auth, .query_keys = o->query_keys,
        .strict_api = o->strict_api, .no_batching = o->no_batching, .anonymous_limit = o->anonymous_limit,
        .audit_folder = p->audit, .audit_bytes = o->audit_bytes, .audit_anonymous_bytes = o->audit_anonymous_bytes,
        .audit_files = o->audit_files, .audit_syslog = o->audit_syslog,
        .audit_url = o->audit_url, .audit_token = p->audit_token, .audit_ca = cli_ca_file(),
        .audit_signer = p->signer,
        .audit_prompts = o->audit_prompts, .no_history = o->no_history, .history_days = o->history_days,
        .responses_bytes = (size_t)o->responses_bytes,
        .history_bytes = o->history_bytes, .history_conversations = o->history_conversations,
        .trust_proxy = o->trust_proxy, .origins = o->origins,
        .n_origins = o->n_origins, .hosts = o->hosts, .n_hosts = o->n_hosts,
        .model_dir = o->model_dir, .lora_dir = o->lora_dir,
        .kv_events = o->kv_events, .kv_replay = o->kv_replay, .kv_topic = o->kv_topic, .kv_model = adapted.first,
        .store = p->store, .keep_alive_s = o->keep_alive_s,
        .max_connections = o->max_connections, .max_per_address = o->max_per_address,
        .max_body = o->max_body, .max_request_memory = o->max_request_memory, .work_memory = o->work_memory,
        .embedding_model = embeds ? embeds : o->embedding_model,
        .rerank_model = reranks ? reranks : o->rerank_model, .rag_documents = o->rag_documents,
        .rag_bytes = o->rag_bytes, .adapted = adapted.id,
        .adapters = (const char *const *)adapted.names, .n_adapters = o->run.n_loras,
        .max_queue = o->max_queue, .timeout_s = o->timeout_s, .drain_s = o->drain_s, .stall_s = o->stall_s,
        .prefix_all = o->prefix_all, .mcp_config = o->mcp_config, .mcp_env = p->env,
        .max_memory = o->max_memory, .no_watch = o->no_watch, .sysroot = preflight_root(), .log = say, .warn = warn,
        .log_requests = o->log_requests,
        .state = tell_systemd, .n_syncing = &last.n_syncing, .user = o,
    };
    struct server *s = known == 0 ? server_bind(&so, e) : NULL;
    last.s = s;
    int rc = !s || (user && become_user(o, user, p, e)) ? -1 : 0;
    if (rc == 0)
        rc = each_model(o, check_model, e);     /* runs as that user: files are not parsed with root's privileges */
    if (rc == 0 && !(p->token = admin_token(p->home, e)))
        cli_note(prog, "%s: no administration over HTTP", e->msg);
    if (rc == 0)
        rc = server_start(s, p->token, e);
    if (rc == 0) {
        print_addresses(o, s);
        rc = load_models(o, s, e);
    }
    if (rc == 0)
        rc = server_run(s, e);
    if (rc != 0)
        cli_fail(prog, e);
    const int out_of_memory = s && server_memory_ran_out(s);
    if (s && server_is_loading(s)) {            /* a conversion may take minutes: do not wait */
        rc = server_leave(s) || rc;
        fflush(stdout);
        _exit(out_of_memory ? CLI_NO_MEMORY : rc ? CLI_FAILED : CLI_OK);
    }
    if (s && start_last_resort(&last) != 0)
        cli_note(prog, "no thread to watch the shutdown");
    const int closed = server_close(s);
    if (closed == SERVER_STUCK)
        end_at_once("a model's step takes too long: exiting without waiting for it");
    stop_last_resort(&last);
    release_adapted(&adapted);
    free(embeds);
    free(reranks);
    return out_of_memory ? CLI_NO_MEMORY : closed || rc ? CLI_FAILED : CLI_OK;
}

/* Check the file of --mcp-config before models are opened, which may take minutes, so that a
 * typo is reported at once. */
static int check_mcp_config(const char *path, struct err *e)
{
    struct mcp_config c = { 0 };
    const int rc = path ? mcp_config_load(&c, path, e) : 0;
    mcp_config_release(&c);
    return rc;
}

static int run(struct serve_options *o)
{
    struct err e;
    struct serve_user user = { 0 };
    struct server_folders places = { 0 };
    struct systemd systemd;
    int rc = systemd_open(&systemd, &e);
    o->systemd = &systemd;
    if (systemd.n_sockets && o->host_is_default)
        o->host = NULL;
    if (rc == 0 && o->user)
        rc = serve_user_find(&user, o->user, &e) || serve_user_environment(&user, &e);
    if (rc || check_mcp_config(o->mcp_config, &e) || find_models(o, &e) || find_places(o, &places, &e)) {
        rc = cli_fail(prog, &e);
    } else {
        tame_malloc();
        signal(SIGPIPE, SIG_IGN);
        server_block_signals();
        raise_descriptors();
        cli_hide_memory();
        rc = serve(o, o->user ? &user : NULL, &places, &e);
        rc = rc ? rc : cli_finish(prog);
    }
    release_places(&places);
    serve_user_release(&user);
    systemd_release(&systemd);
    return rc;
}

int main(int argc, char **argv)
{
    struct serve_options o;
    cli_start();
    int rc = serve_options_parse(&o, argc, argv);
    if (rc < 0 && o.mcp_stdio)
        rc = serve_mcp_stdio();
    o.run.max_seqs = o.max_seqs;
    o.run.embeds = o.run.shares_memory = 1;
    o.run.kv_most = o.kv_bytes ? o.kv_bytes : quarter_of_memory();
    if (rc < 0)
        rc = o.plan ? plan_models(&o) : run(&o);
    serve_options_release(&o);
    return rc;
}
