/* named.c - load models when requests name them, and unload idle ones. */
#include "libcommon/serve/named.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/siphash.h"
#include "libcommon/serve/internal.h"
#include "libcommon/serve/model_tasks.h"

int named_find(const struct server *s, const char *id, char out[STORE_NAME_BYTES], struct problem *pr)
{
    struct err e;
    if (!s->o.store)
        return 1;
    const int any = !id || strcmp(id, STORE_DEFAULT) == 0;
    for (const struct loaded_model *lm = any ? NULL : s->models; lm; lm = lm->next)
        if ((lm->state == MODEL_READY || lm->state == MODEL_LOADING) && !lm->named && strcmp(lm->id, id) == 0)
            return 1;                           /* loaded otherwise than by a name; it takes precedence */
    int rc = store_find(s->o.store, any ? STORE_DEFAULT : id, out, &e);
    if (rc == 1 && any && models_n(s, MODEL_READY) == 0)
        rc = store_find_default(s->o.store, out, &e);
    if (rc < 0)
        return problem_set(pr, 404, "model", "model_not_found", "model: %s",
                           e.code == ERR_FORMAT ? "several models have this name and a tag: expected one with its tag"
                                                : "the folder of models cannot be read");
    if (rc == 0)
        store_follow(s->o.store, out);
    return rc;
}

const char *named_plain(const struct server *s, const char *id, char out[STORE_NAME_BYTES])
{
    static const char end[] = ":latest";
    const size_t n = id ? strlen(id) : 0, n_end = sizeof end - 1;
    struct problem ignored;
    if (n <= n_end || n - n_end >= STORE_NAME_BYTES || strcmp(id + n - n_end, end) != 0)
        return id;
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next)
        if (strcmp(lm->id, id) == 0)
            return id;
    if (named_find(s, id, out, &ignored) == 0)
        return id;
    snprintf(out, STORE_NAME_BYTES, "%.*s", (int)(n - n_end), id);
    return out;
}

double named_keep(const struct server *s, const struct loaded_model *lm)
{
    return !lm->named ? -1 : lm->keep_given ? lm->keep_s : s->o.keep_alive_s;
}

void named_set_keep(struct loaded_model *lm, double seconds, int is_admin)
{
    const double most = KEEP_TIMES * lm->s->o.keep_alive_s;
    if (!lm->named || lm->shared)
        return;
    lm->keep_given = 1;
    lm->keep_s = !is_admin && most >= 0 && (seconds < 0 || seconds > most) ? most : seconds;
}

/* ---- models in use by tenants ---- */

static uint64_t hash_of(const char *id)
{
    static const uint64_t key[2] = { 0x7a73652d6e616d65u, 0x642d6d6f64656c73u };
    return siphash(key, id, strlen(id));
}

static int is_recent(const struct model_use *u, uint64_t now)
{
    return u->at_ns && now - u->at_ns < (uint64_t)USED_RECENTLY_S * 1000000000u;
}

/* Find the tenant's entry for the model; NULL: not used recently. */
static struct model_use *find_use(struct server *s, uint64_t model, uint64_t tenant)
{
    const uint64_t now = clock_ns();
    for (int i = 0; i < USES; i++)
        if (s->uses[i].model == model && s->uses[i].tenant == tenant && is_recent(&s->uses[i], now))
            return &s->uses[i];
    return NULL;
}

void named_used(struct server *s, const struct loaded_model *lm, uint64_t tenant)
{
    const uint64_t model = hash_of(lm->id);
    struct model_use *oldest = s->uses, *own = NULL, *u = find_use(s, model, tenant);
    int n = 0;
    for (int i = 0; i < USES && !u; i++) {
        struct model_use *x = &s->uses[i];
        if (x->at_ns < oldest->at_ns)
            oldest = x;
        if (x->at_ns && x->tenant == tenant && (n++ == 0 || x->at_ns < own->at_ns))
            own = x;
    }
    if (!u)
        u = n < USES_OF_TENANT ? oldest : own;  /* so that no tenant displaces all other entries */
    *u = (struct model_use){ model, tenant, clock_ns(), 0 };
}

void named_note_size(struct server *s, const struct loaded_model *lm, uint64_t bytes)
{
    const uint64_t model = hash_of(lm->id);
    int i = 0;
    if (!lm->named)
        return;
    while (i < SIZES && s->sizes[i].model != model)
        i++;
    if (i == SIZES) {
        i = s->next_size;
        s->next_size = (i + 1) % SIZES;
    }
    s->sizes[i] = (struct model_size){ model, bytes };
}

uint64_t named_size(const struct server *s, const struct loaded_model *lm)
{
    const uint64_t model = hash_of(lm->id);
    for (int i = 0; i < SIZES && lm->named; i++)
        if (s->sizes[i].model == model)
            return s->sizes[i].bytes;
    return 0;
}

/* ---- the cost of loads ---- */

static double cost_now(const struct load_cost *c, uint64_t now)
{
    const double left = c->loads - (double)(now - c->at_ns) * 1e-9 / LOAD_EVERY_S;
    return left > 0 ? left : 0;
}

/* The tenant's entry; for a new tenant the entry with the lowest cost is reused.  All entries are
 * updated to the current time. */
static struct load_cost *cost_of(struct server *s, uint64_t tenant)
{
    const uint64_t now = clock_ns();
    struct load_cost *c = NULL;
    for (int i = 0; i < LOAD_TENANTS && !(c && c->tenant == tenant); i++) {
        struct load_cost *x = &s->load_costs[i];
        x->loads = cost_now(x, now);
        x->at_ns = now;
        if (!c || x->tenant == tenant || x->loads < c->loads)
            c = x;
    }
    if (c->tenant != tenant)
        *c = (struct load_cost){ tenant, now, 0 };
    return c;
}

void named_charge(struct server *s, const struct loaded_model *lm, const struct loaded_model *other)
{
    const uint64_t model = hash_of(other->id), now = clock_ns();
    int others = 0;
    if (!lm->named || !lm->loaded_by || lm->owed)
        return;
    for (int i = 0; i < USES; i++) {
        struct model_use *u = &s->uses[i];
        if (u->model == model && u->tenant != lm->loaded_by && is_recent(u, now))
            others = u->owed = 1;
    }
    cost_of(s, lm->loaded_by)->loads += others ? 1 : 0.25;
}

void named_failed(struct server *s, const struct loaded_model *lm, const struct problem *pr)
{
    if (strcmp(pr->code, BUSY_CODE) != 0)
        named_note_size(s, lm, 0);
    if (!lm->named || !lm->loaded_by)
        return;
    struct model_use *u = lm->owed ? find_use(s, hash_of(lm->id), lm->loaded_by) : NULL;
    if (strcmp(pr->code, BUSY_CODE) != 0)
        cost_of(s, lm->loaded_by)->loads++;
    else if (u)
        u->owed = 1;
}

/* Whether the tenant may load another model.  Each unfinished load counts 1, because it may
 * still fail or evict a model. */
static int may_load(struct server *s, uint64_t tenant, struct problem *pr)
{
    double loads = cost_of(s, tenant)->loads;
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next)
        loads += lm->state == MODEL_LOADING && lm->loaded_by == tenant;
    if (loads <= LOADS_AT_ONCE - 1)
        return 0;
    return problem_set(pr, 429, "model", LOADS_CODE,
                       "too many models loaded for this key or address failed or evicted those of others: try again in %d s", LOAD_EVERY_S);
}

struct loaded_model *named_load(struct server *s, const char *name, uint64_t tenant, struct problem *pr)
{
    struct err e;
    for (struct loaded_model *lm = s->models; lm; lm = lm->next)
        if (lm->state == MODEL_LOADING && strcmp(lm->id, name) == 0)
            return lm;
    struct model_use *u = find_use(s, hash_of(name), tenant);
    if (!(u && u->owed) && may_load(s, tenant, pr) != 0)
        return NULL;
    char *path = store_path(s->o.store, name, &e);
    struct loaded_model *lm = path ? models_load(s, path, name, NULL, NULL, pr) : NULL;
    if (!path)
        problem_nomem(pr);
    free(path);
    if (lm) {
        lm->named = 1;
        lm->loaded_by = tenant;
        lm->owed = u && u->owed;
        if (u)
            u->owed = 0;
        server_log(s, "%s: requested, loading", lm->id);
    }
    return lm;
}

/* The least recently used of the idle models with names.  NULL: none. */
static struct loaded_model *find_idle(const struct server *s)
{
    struct loaded_model *oldest = NULL;
    for (struct loaded_model *lm = s->models; lm; lm = lm->next)
        if (lm->named && lm->state == MODEL_READY && lm->n_calls == 0 && lm->preparing == 0 &&
            (!oldest || lm->used_ns < oldest->used_ns))
            oldest = lm;
    return oldest;
}

int named_retry(struct server *s, struct loaded_model *lm)
{
    struct loaded_model *idle;
    if (!lm->named || lm->opened || lm->error.code != ERR_MEMORY || !(idle = find_idle(s)))
        return 0;
    server_log(s, "%s: unloading, because %s needs its memory", idle->id, lm->id);
    named_charge(s, lm, idle);
    models_unload(s, idle);                     /* the thread closes it before it opens lm again */
    lm->error = (struct err){ 0 };
    return task_give(s, TASK_OPEN, lm) == 0;
}

struct problem named_problem(const struct server *s, const struct problem *p)
{
    struct problem out = *p;
    const size_t n = s->o.store ? strlen(s->o.store) : 0;
    for (char *at = n ? strstr(out.message, s->o.store) : NULL; at; at = strstr(at, s->o.store)) {
        const size_t cut = n + (at[n] == '/');
        memmove(at, at + cut, strlen(at + cut) + 1);
    }
    snprintf(out.param, sizeof out.param, "model");
    return out;
}

void named_tick(struct server *s)
{
    const uint64_t now = clock_ns();
    struct loaded_model *idle = s->watch.state == WATCH_TRIM ? find_idle(s) : NULL;
    if (idle) {
        server_log(s, "%s: unloading, because memory is short", idle->id);
        models_unload(s, idle);
    }
    for (struct loaded_model *lm = s->models; lm; lm = lm->next) {
        const double keep = named_keep(s, lm);
        if (keep >= 0 && lm->state == MODEL_READY && lm->n_calls == 0 && lm->preparing == 0 &&
            now > lm->used_ns && (double)(now - lm->used_ns) * 1e-9 > keep) {
            server_log(s, "%s: not used for %g s", lm->id, keep);
            models_unload(s, lm);
        }
    }
}

static int is_loaded(const struct server *s, const char *name)
{
    const struct loaded_model *lm = s->models;
    while (lm && !(lm->state == MODEL_READY && strcmp(lm->id, name) == 0))
        lm = lm->next;
    return lm != NULL;
}

static void element(const struct store_model *m, struct buf *out)
{
    buf_str(out, "{\"id\":");
    buf_json(out, m->name, strlen(m->name));
    buf_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"zse\"}", (long long)m->modified_s);
}

static int is_listed(const struct access_record *record, const struct store_model *m)
{
    return guard_lists_model(record, m->name) || (*m->of && guard_lists_model(record, m->of));
}

void named_json(const struct server *s, const struct access_record *record, struct buf *out, int *n)
{
    struct err ignored;
    struct store_model *all = NULL;
    const int many = s->o.store ? store_list(s->o.store, &all, &ignored) : 0;
    for (int i = 0; i < many; i++)
        if (!is_loaded(s, all[i].name) && is_listed(record, &all[i])) {
            buf_str(out, (*n)++ ? "," : "");
            element(&all[i], out);
        }
    free(all);
}

int named_json_one(const struct server *s, const struct access_record *record, const char *id, struct buf *out)
{
    struct err ignored;
    struct store_model *all = NULL;
    const int many = s->o.store ? store_list(s->o.store, &all, &ignored) : 0;
    int found = 0;
    for (int i = 0; i < many && !found; i++)
        if (strcmp(all[i].name, id) == 0 && is_listed(record, &all[i])) {
            element(&all[i], out);
            found = 1;
        }
    free(all);
    return found;
}
