/* planning.c - compute the size and speed of a model from its configuration. */
#include "cmd/planning.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "cmd/home.h"
#include "cmd/hub_cli.h"
#include "libcommon/base/json.h"
#include "libcommon/cpu/cpu.h"
#include "libcommon/engine/engine.h"
#include "libcommon/import/hf_config.h"
#include "libcommon/import/packed.h"
#include "libcommon/import/source.h"
#include "libcommon/model/model.h"

const char *planned_type(int i)
{
    const struct qtype_info *info;
    for (int k = 0; (info = qtype_chosen(k)); k++)
        if (info->chosen == CHOSEN_COMPARED && i-- == 0)
            return info->option;
    return NULL;
}

int planned_open(struct planned *p, const char *name, const json_t *config, struct err *e)
{
    struct config c;
    struct err why;
    *p = (struct planned){ 0 };
    json_t *normal = hf_config_normalize(config, &why);
    p->supported = normal && config_parse(&c, normal, &why) == 0;
    json_decref(normal);
    int rc = p->supported ? plan_shape_of(&p->shape, &c, e) : plan_shape_guess(&p->shape, config, e);
    p->step_bytes = p->supported ? cpu_step_memory(&c) : CPU_STEP_LEAST;
    if (p->supported)
        config_release(&c);
    else
        snprintf(p->why_not, sizeof p->why_not, "%s", why.msg);
    if (rc != 0)
        return err_prefix(e, "%s", name);
    plan_count(&p->shape, &p->params);
    return 0;
}

int planned_of(struct planned *p, const struct config *c, struct err *e)
{
    *p = (struct planned){ .supported = 1, .step_bytes = cpu_step_memory(c) };
    if (plan_shape_of(&p->shape, c, e) != 0)
        return -1;
    plan_count(&p->shape, &p->params);
    return 0;
}

void planned_close(struct planned *p) { plan_shape_release(&p->shape); }

/* Bytes of keys and values of n_seqs sequences of `context` tokens, or as many as the model can
 * have. */
static uint64_t kv_bytes(const struct planned *p, int context, int n_seqs, int on_gpu)
{
    const int len = context < p->shape.max_len ? context : p->shape.max_len;
    return on_gpu ? plan_kv_whole_bytes(&p->shape, KV_F16, len, n_seqs)
                  : plan_kv_bytes(&p->shape, KV_F16, len, n_seqs);
}

uint64_t planned_bytes(const struct planned *p, const struct plan_weights *w, int context, int on_gpu)
{
    return w->bytes + kv_bytes(p, context, 1, on_gpu) +
           (1 + 1 + ENGINE_SNAPSHOTS) * plan_state_bytes(&p->shape) +      /* one of them for drafts */
           planned_workspace(p);
}

json_t *planned_config(const char *name, char **title, struct err *e)
{
    struct err no_file, ignored;
    struct hub_name on_hub;
    char *path = NULL;
    json_t *config = NULL, *registry = registry_load(e);
    /* a local model comes before a model of the registry whose name has `name` as a part */
    char *here = registry ? home_find_model(name, &ignored) : NULL;
    const json_t *m = registry && !here ? registry_find(registry, name, e) : NULL;
    const char *asked = name;
    *title = NULL;
    if (here)
        name = here;
    if (m) {
        config = json_incref(json_object_get(m, "config"));
        *title = strdup(json_string_value(json_object_get(m, "name")));
    } else if (registry && access(name, F_OK) == 0) {
        const enum source_kind kind = source_detect(name, e);
        struct source *s = kind == SOURCE_NONE || kind == SOURCE_ZSE ? NULL : source_open(name, e);
        struct zfile *z = kind == SOURCE_ZSE ? zfile_open(name, e) : NULL;
        const json_t *found = s ? s->config : z ? js_get(zfile_json(z), "config") : NULL;
        if (found)
            config = json_deep_copy(found);
        else if (s || z)
            err_set(e, ERR_FORMAT, "%s: has no configuration", name);
        source_close(s);
        zfile_close(z);
        *title = strdup(asked);
    } else if (registry && strchr(name, '/') && hub_is_name(name, &on_hub, &path, &ignored) == 1) {
        config = hub_config(&on_hub, e);
        packed_config_take(config);             /* the plan is for .zse types, not for the source's */
        *title = strdup(asked);
    } else if (registry && source_detect(name, &no_file) == SOURCE_NONE && strchr(name, '.')) {
        *e = no_file;
    }
    free(path);
    free(here);
    json_decref(registry);
    if (config && !*title) {
        err_nomem(e, asked);
        json_decref(config);
        config = NULL;
    }
    if (!config) {
        free(*title);
        *title = NULL;
    }
    return config;
}

/* The fraction of the tokens that use a tensor: 1, or less for the tensors of experts. */
static double active_share(const struct planned *p, const char *name)
{
    return p->shape.n_experts && strstr(name, ".experts.") ? (double)p->shape.top_k / p->shape.n_experts : 1;
}

/* Bytes per weight of a matrix of this type, scales included. */
static double weight_bytes(enum qtype type)
{
    enum { COLS = 4096 };
    const struct qtype_info *t = qtype_info(type);
    struct mat m;
    struct err ignored;
    return mat_init(&m, type, t->group_size, qtype_takes_floats(t) ? 0 : 128, TILE_ROWS, COLS, &ignored) == 0
               ? (double)m.tile_bytes / (TILE_ROWS * COLS) : t->bits / 8.0;
}

/* Bytes per weight as zse-convert writes them: *linear for linear layers, *ends for embedding and
 * head.  Embedding and head get 6 bits with nl4 and ternary types, and 8 bits with other types of
 * fewer bits. */
static void rough_bytes(enum qtype type, double *linear, double *ends)
{
    const struct qtype_info *t = qtype_info(type);
    const int finer = type == QT_NL4 || qtype_is_ternary(t);
    *linear = weight_bytes(type) * (type == QT_NL4 ? 1.04 : 1);     /* some matrices get 5 or 6 bits */
    *ends = weight_bytes(t->bits >= 8 ? type : finer ? QT_M6 : QT_I8);
}

static void rough_weights(const struct planned *p, enum qtype type, struct plan_weights *w)
{
    const struct plan_params *a = &p->params;
    double linear, ends;
    rough_bytes(type, &linear, &ends);
    const double embed = (double)a->embedding, active = (double)a->active - embed;
    *w = (struct plan_weights){ .bytes = (uint64_t)plan_rough_bytes(&p->shape, linear, ends),
                                .step_bytes = (uint64_t)(active * linear + embed * ends) };
    w->layer_bytes = (uint64_t)(((double)w->bytes - (embed + (double)a->head) * ends) / p->shape.n_layers);
    w->by_type[type] = w->step_bytes;
    w->ops[type] = 2 * active;
}

static void add_report(const struct planned *p, const struct convert_report *r, struct plan_weights *w)
{
    *w = (struct plan_weights){ 0 };
    for (int i = 0; i < r->n_tensors; i++)
        plan_add_tensor(w, r->tensors[i].name, r->tensors[i].copies, r->tensors[i].type,
                        (uint64_t)r->tensors[i].rows * (uint64_t)r->tensors[i].cols, r->tensors[i].bytes,
                        active_share(p, r->tensors[i].name), p->shape.tied, p->shape.n_layers);
}

int planned_weights(const struct planned *p, const char *name, const json_t *config, const char *type,
                    struct plan_weights *w, int *exact, struct err *e)
{
    struct convert_options o;
    struct convert_report r;
    struct err ignored;
    *exact = 0;
    convert_defaults(&o);
    if (convert_parse_type(&o.type, type, e) != 0)
        return -1;
    if (o.type.kind != CONVERT_TYPE)
        return err_set(e, ERR_UNSUPPORTED, "'%s' is no single type: its size depends on the weights", type);
    o.synthetic = name;
    o.config = config;
    o.n_threads = 1;
    if (!p->supported || convert_run(&o, &r, &ignored) != 0) {
        if (p->supported)
            convert_report_release(&r);
        rough_weights(p, o.type.qtype, w);
        return 0;
    }
    add_report(p, &r, w);
    convert_report_release(&r);
    *exact = 1;
    return 0;
}

int planned_source(const struct planned *p, const char *path, const char *type, struct plan_weights *w, struct err *e)
{
    struct convert_options o;
    struct convert_report r;
    convert_defaults(&o);
    if (convert_parse_type(&o.type, type, e) != 0)
        return -1;
    o.keep_grid = 0;
    o.source = path;
    o.n_threads = 1;
    o.effort = CONVERT_FAST;
    const int rc = convert_run(&o, &r, e);
    if (rc == 0)
        add_report(p, &r, w);
    convert_report_release(&r);
    return rc;
}

void planned_file(const struct planned *p, const struct zfile *z, struct plan_weights *w)
{
    const int tied = zfile_find(z, "head.weight") == NULL;
    *w = (struct plan_weights){ 0 };
    for (int i = 0; i < zfile_n_tensors(z); i++) {
        const struct zfile_tensor *t = zfile_tensor(z, i);
        const uint64_t n = (uint64_t)t->dim[0] * (uint64_t)(t->n_dims > 1 ? t->dim[1] : 1);
        plan_add_tensor(w, t->name, 1, t->m.type, n, t->m.size, active_share(p, t->name), tied, p->shape.n_layers);
    }
}

uint64_t planned_workspace(const struct planned *p)
{
    enum { OTHERS = 8 << 20 };          /* programs, tables, logits */
    return p->step_bytes + OTHERS + (uint64_t)p->shape.vocab_size * 8;
}

/* ---- modes ---- */

int planned_mode_parse(const char *prog, const char *arg, struct planned_mode *m)
{
    static const char vram[] = "for_vram=";
    const int mode = plan_mode_find(arg);
    *m = (struct planned_mode){ .given = 1, .mode = mode < 0 ? PLAN_FOR_VRAM : (enum plan_mode)mode };
    if (mode >= 0)
        return 0;
    if (strncmp(arg, vram, sizeof vram - 1) != 0)
        return cli_wrong(prog, "--mode: '%s', expected " PLANNED_MODES, arg);
    arg += sizeof vram - 1;
    char text[64];
    /* "6" and "6.5" mean gigabytes */
    snprintf(text, sizeof text, strspn(arg, "0123456789.") == strlen(arg) && *arg ? "%sGB" : "%s", arg);
    if (cli_parse_size(prog, "--mode for_vram", text, &m->memory) != 0)
        return CLI_USAGE;
    return m->memory ? 0 : cli_wrong(prog, "--mode for_vram: expected a memory larger than 0");
}

static uint64_t bytes_of(const struct planned_choices *s, const struct plan_weights *w, const struct planned_query *a)
{
    const uint64_t n = a->n_seqs ? (uint64_t)a->n_seqs : 1;
    const uint64_t one = kv_bytes(&s->p, a->context, 1, a->on_gpu),
                   all = kv_bytes(&s->p, a->context, (int)n, a->on_gpu);
    const uint64_t kv = a->kv_most && all > a->kv_most ? (one > a->kv_most ? one : a->kv_most) : all;
    const uint64_t n_states = n + (n < ENGINE_DRAFT_STATES ? n : ENGINE_DRAFT_STATES) + ENGINE_SNAPSHOTS;
    return w->bytes + kv + n_states * plan_state_bytes(&s->p.shape) + planned_workspace(&s->p);
}

static void add_choice(struct planned_choices *s, const char *type, const struct plan_weights *w,
                       const struct planned_query *a)
{
    s->w[s->n] = *w;
    s->c[s->n++] = (struct plan_choice){ .type = type, .bytes = bytes_of(s, w, a) };
}

/* Predict the speed of each choice from measured rates of its number formats, at the model's own
 * width and with its number of weights. */
static int predict(struct planned_choices *s, const struct planned_query *a, struct err *e)
{
    enum { PROMPT = 512 };
    struct plan_rates rates = { 0 };
    for (int i = 0; i < s->n; i++) {
        if (planned_rates(&rates, &s->w[i], &s->p.shape, a->n_threads, a->kernels, e) != 0)
            return -1;
        s->c[i].prefill = plan_prefill(&s->p.shape, &s->w[i], &rates, PROMPT);
        s->c[i].decode = plan_decode(&s->p.shape, &s->w[i], &rates, kv_both(KV_F16), PROMPT);
    }
    return 0;
}

/* Add the choices for a source with weights; if it is quantized, `keep` is the finest choice. */
static int compare_source(struct planned_choices *s, const struct planned_query *a, struct err *e)
{
    struct plan_weights keep, w;
    if (planned_source(&s->p, a->path, "keep", &keep, e) != 0)
        return -1;
    for (int i = 0; i < PLANNED_TYPES; i++) {
        if (planned_source(&s->p, a->path, planned_type(i), &w, e) != 0)
            return -1;
        if (i == 0 && keep.bytes < w.bytes / 10 * 9)
            add_choice(s, "keep", &keep, a);
        if (s->n == 0 || strcmp(s->c[0].type, "keep") != 0 || w.bytes < keep.bytes)
            add_choice(s, planned_type(i), &w, a);
    }
    return 0;
}

int planned_compare(struct planned_choices *s, const struct planned_query *a, struct err *e)
{
    struct plan_weights w;
    *s = (struct planned_choices){ .exact = 1 };
    if (planned_open(&s->p, a->name, a->config, e) != 0)
        return -1;
    if (a->path ? compare_source(s, a, e) != 0 : 0)
        return -1;
    for (int i = 0; i < PLANNED_TYPES && !a->path; i++) {
        if (planned_weights(&s->p, a->name, a->config, planned_type(i), &w, &s->exact, e) != 0)
            return -1;
        add_choice(s, planned_type(i), &w, a);
    }
    return a->measure ? predict(s, a, e) : 0;
}

void planned_choices_close(struct planned_choices *s) { planned_close(&s->p); }

int planned_choose(const struct planned_choices *s, const char *name, const struct planned_mode *m, uint64_t available,
                   struct err *e)
{
    const uint64_t memory = m->memory ? m->memory : available;
    const int best = plan_choose(s->c, s->n, m->mode, memory);
    if (best < 0)
        err_set(e, ERR_LIMIT, "%s: --mode %s: needs %.2f GB as %s, but of %.2f GB %s %.2f may be used (a tenth stays free)", name, plan_mode_name(m->mode),
                (double)s->c[s->n - 1].bytes * 1e-9, s->c[s->n - 1].type, (double)memory * 1e-9,
                m->memory ? "given" : "available", (double)plan_usable(memory) * 1e-9);
    return best;
}
