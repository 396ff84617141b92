/* bench_router.c - write the experts that a model's routers choose for a text, as
 * plan/router_trace.h reads them (zse-bench moe MODEL TEXTFILE -o FILE). */
#include "cmd/zse-bench.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "libcommon/base/file.h"
#include "libcommon/cache/kv.h"
#include "libcommon/engine/engine.h"
#include "libcommon/plan/router_trace.h"

static const char prog[] = "zse-bench";

/* The choices of a step. */
struct recorder {
    const struct config *c;
    FILE *f;
    int n_layers;                       /* layers that have chosen in this step */
    int n_tokens;
    int *layer;                         /* [config n_layers] their numbers */
    int32_t *id;                        /* [config n_layers][max_tokens][top_k] */
    size_t stride;                      /* max_tokens * top_k */
};

static void take_states(void *user, int layer, const float *x, int n_tokens, int cols)
{
    (void)user, (void)layer, (void)x, (void)n_tokens, (void)cols;
}

static void take_experts(void *user, int layer, const int *id, const float *weight, int n_tokens, int top_k)
{
    struct recorder *r = user;
    (void)weight;
    r->n_tokens = n_tokens;
    r->layer[r->n_layers] = layer;
    memcpy(r->id + (size_t)r->n_layers++ * r->stride, id, (size_t)n_tokens * (size_t)top_k * sizeof *id);
}

static void write_step(struct recorder *r)
{
    const int top_k = r->c->moe.top_k;
    for (int t = 0; t < r->n_tokens; t++)
        for (int l = 0; l < r->n_layers; l++) {
            fprintf(r->f, "%d", r->layer[l]);
            for (int k = 0; k < top_k; k++)
                fprintf(r->f, " %d", (int)r->id[(size_t)l * r->stride + (size_t)(t * top_k + k)]);
            putc('\n', r->f);
        }
    r->n_layers = 0;
}

/* Compute the tokens of a text as one sequence, and write the choices of each step. */
static int record(const struct bench_options *o, const struct opened_model *m, struct recorder *r, const int32_t *ids,
                  int n, struct err *e)
{
    const struct step_watch watch = { r, take_states, take_experts, NULL };
    const struct engine_options eo = run_engine_options(&o->run, 1, n + 1);
    const int n_blocks = (n + KV_BLOCK) / KV_BLOCK;
    struct backend_options bo;
    if (engine_backend_options(m->model, &eo, &bo, e) != 0)
        return -1;
    bo.n_blocks = n_blocks;
    bo.n_window_blocks = bo.n_window_blocks ? n_blocks : 0;
    bo.watch = &watch;
    r->stride = (size_t)bo.max_tokens * (size_t)r->c->moe.top_k;
    r->layer = malloc((size_t)r->c->n_layers * sizeof *r->layer);
    r->id = malloc((size_t)r->c->n_layers * r->stride * sizeof *r->id);
    int32_t *table = malloc((size_t)n_blocks * sizeof *table);
    void *b = r->layer && r->id && table ? backend_cpu.open(m->model, &bo, e) : (err_nomem(e, "trace"), NULL);
    int rc = b ? 0 : -1;
    for (int i = 0; rc == 0 && i < n_blocks; i++)
        table[i] = i;
    for (int at = 0; rc == 0 && at < n; at += bo.max_tokens) {
        const struct batch_item item = { .tokens = ids + at, .pos = at, .table = table, .window_table = table,
                                         .n_tokens = n - at < bo.max_tokens ? n - at : bo.max_tokens };
        rc = backend_cpu.forward(b, &(struct batch){ &item, 1 }, NULL, e) != 0 ||
             map_check(zfile_map(m->model->file), e) != 0 ? -1 : 0;
        write_step(r);
    }
    if (b)
        backend_cpu.close(b);
    free(table);
    free(r->layer);
    free(r->id);
    return rc;
}

/* Refuse models whose choices plan/router_trace.h does not read. */
static int check_routers(const char *name, const struct config *c, struct err *e)
{
    if (!c->moe.n_experts)
        return err_set(e, ERR_UNSUPPORTED, "%s: %s has no experts", name, c->arch);
    if (c->moe.n_experts > TRACE_EXPERTS || c->moe.top_k > TRACE_TOP_K || c->n_layers > TRACE_LAYERS)
        return err_set(e, ERR_LIMIT, "%s: %d of %d experts in %d layers, but a trace has at most %d of %d in %d", name,
                       c->moe.top_k, c->moe.n_experts, c->n_layers, TRACE_TOP_K, TRACE_EXPERTS, TRACE_LAYERS);
    return 0;
}

/* The first tokens of the text, as many as the context or -p allows. */
static int32_t *read_tokens(const struct bench_options *o, const struct opened_model *m, const char *path, int most,
                            int *n, struct err *e)
{
    size_t size, n_ids;
    int32_t *ids = NULL;
    if (!m->tokenizer) {
        err_set(e, ERR_FORMAT, "%s: has no tokenizer", m->path);
        return NULL;
    }
    char *text = file_read(path, (size_t)1 << 30, &size, e);
    if (text && tokenizer_encode(m->tokenizer, text, size, 0, &ids, &n_ids, e) != 0)
        err_prefix(e, "%s", path);
    free(text);
    if (ids && n_ids == 0) {
        err_set(e, ERR_FORMAT, "%s: has no tokens", path);
        free(ids);
        return NULL;
    }
    const int context = context_len(m, &o->run);
    most = most && most < context ? most : context;
    *n = ids && n_ids < (size_t)most ? (int)n_ids : most;
    return ids;
}

int bench_router(const struct bench_options *o, const char *model, const char *text)
{
    struct opened_model m;
    struct recorder r = { 0 };
    struct err e;
    int n = 0, rc = -1;
    if (open_model(prog, model, &o->run, &m, &e) != 0)
        return cli_fail(prog, &e);
    const struct config *c = r.c = &m.model->config;
    int32_t *ids = NULL;
    if (check_routers(m.name, c, &e) == 0 && (ids = read_tokens(o, &m, text, o->prompt, &n, &e)) &&
        !(r.f = fopen(o->output, "w")))
        err_sys(&e, "%s", o->output);
    if (r.f) {
        fprintf(r.f, "experts %d top_k %d\n", c->moe.n_experts, c->moe.top_k);
        rc = record(o, &m, &r, ids, n, &e);
        if ((ferror(r.f) | (fclose(r.f) != 0)) && rc == 0)
            rc = err_sys(&e, "%s", o->output);
    }
    free(ids);
    close_model(&m);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}
