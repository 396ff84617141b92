/* adapters.c - load and unload the LoRA adapters of a model that answers requests. */
#include "libcommon/serve/adapters.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/plural.h"
#include "libcommon/base/utf8.h"
#include "libcommon/model/lora.h"
#include "libcommon/serve/exchange.h"
#include "libcommon/serve/internal.h"
#include "libcommon/serve/model_tasks.h"

struct adapter_load {
    struct worker_job job;              /* its event says that the engine has the adapter */
    struct loaded_model *lm;
    struct served_model m;              /* of lm, for the thread that reads the files */
    int number, replaces; /* replaces: number of the adapter that this one replaces; 0: none */
    char *name, *folder;                /* copies of the adapter's, owned */
    uint64_t most_bytes;                /* memory left by --max-memory; 0: no limit */
    struct conn *waiter;                /* NULL: the client has disconnected */
    struct lora_bound *bound;           /* owned */
    struct err error;                   /* ERR_NONE: bound is set */
};

static struct adapter *at(const struct loaded_model *lm, int number) { return &lm->adapters[number - 1]; }

static void free_load(struct adapter_load *l)
{
    if (!l)
        return;
    lora_bound_free(l->bound);
    free(l->name);
    free(l->folder);
    free(l);
}

static void clear(struct adapter *a)
{
    free(a->name);
    free(a->folder);
    free_load(a->load);
    *a = (struct adapter){ .state = ADAPTER_UNUSED };
}

void adapters_free(struct loaded_model *lm)
{
    for (int i = 1; i <= lm->n_adapters; i++)
        clear(at(lm, i));
    free(lm->adapters);
    lm->adapters = NULL;
    lm->n_adapters = 0;
}

int adapters_list(struct loaded_model *lm, struct problem *pr)
{
    const struct model *m = lm->m.model;
    if (m->n_loras && !(lm->adapters = calloc((size_t)m->n_loras, sizeof *lm->adapters)))
        return problem_nomem(pr);
    for (int i = 0; i < m->n_loras; i++) {
        struct adapter *a = &lm->adapters[lm->n_adapters++];
        const struct lora *l = &m->loras[i];
        *a = (struct adapter){ ADAPTER_READY, strdup(l->name), strdup(l->folder), l->key, l->bytes, l->rank, 0, NULL };
        if (!a->name || !a->folder)
            return problem_nomem(pr);
    }
    return 0;
}

const struct adapter *adapters_ready(const struct loaded_model *lm, int number)
{
    return lm->state == MODEL_READY && at(lm, number)->state == ADAPTER_READY ? at(lm, number) : NULL;
}

int adapters_find(const struct loaded_model *lm, const char *name, int loading)
{
    for (int i = 1; i <= lm->n_adapters; i++) {
        const struct adapter *a = at(lm, i);
        if ((a->state == ADAPTER_READY || (loading && a->state == ADAPTER_LOADING)) && strcmp(a->name, name) == 0)
            return i;
    }
    return 0;
}

/* Whether an adapter of this name is being loaded, perhaps in the place of another one. */
static int is_loading(const struct loaded_model *lm, const char *name)
{
    for (int i = 1; i <= lm->n_adapters; i++)
        if (at(lm, i)->state == ADAPTER_LOADING && strcmp(at(lm, i)->name, name) == 0)
            return 1;
    return 0;
}

/* ---- unloading ---- */

/* Remove the adapter from the model if it is leaving and no call uses it.  Without memory it stays
 * until the next try. */
static void remove_unused(struct loaded_model *lm, int number)
{
    struct adapter *a = at(lm, number);
    if (a->state != ADAPTER_LEAVING || a->n_calls || !lm->worker ||
        worker_set_lora(lm->worker, lm->m.adapts, number, NULL, NULL) != 0)
        return;
    server_log(lm->s, "%s: LoRA adapter %s: unloaded", lm->id, a->name);
    lm->memory_bytes -= a->bytes;
    clear(a);
}

void adapters_unload(struct loaded_model *lm, int number)
{
    at(lm, number)->state = ADAPTER_LEAVING;
    remove_unused(lm, number);
}

void adapters_use(struct loaded_model *lm, int number)
{
    if (number)
        at(lm, number)->n_calls++;
}

void adapters_release(struct loaded_model *lm, int number)
{
    if (!number)
        return;
    at(lm, number)->n_calls--;
    remove_unused(lm, number);
}

void adapters_tick(struct server *s)
{
    for (struct loaded_model *lm = s->models; lm; lm = lm->next)
        for (int i = 1; i <= lm->n_adapters; i++)
            remove_unused(lm, i);
}

/* ---- loading ---- */

void adapters_gone(struct server *s, const struct conn *c)
{
    for (struct loaded_model *lm = s->models; lm; lm = lm->next)
        for (int i = 1; i <= lm->n_adapters; i++)
            if (at(lm, i)->load && at(lm, i)->load->waiter == c)
                at(lm, i)->load->waiter = NULL;
}

/* Answer the request that waits for the adapter, in vLLM's words; p NULL: it is loaded. */
static void tell_waiter(struct adapter_load *l, const struct problem *p)
{
    struct conn *c = l->waiter;
    struct server *s = l->lm->s;
    struct buf text = { 0 };
    if (!c)
        return;
    struct exchange *x = conn_exchange(c);
    l->waiter = NULL;
    buf_printf(&text, "Success: LoRA adapter '%s' added successfully.", l->name);
    if (p)
        reply_problem(s, c, p);
    else
        reply_text(s, c, &text);
    buf_release(&text);
    conn_set_exchange(c, NULL);
    free(x);
}

static void fail(struct adapter_load *l, const struct err *e)
{
    struct loaded_model *lm = l->lm;
    struct problem pr;
    problem_set(&pr, e->code == ERR_IO ? 404 : e->code == ERR_MEMORY || e->code == ERR_LIMIT ? 503 : 400, "lora_path",
                "load_failed", "%s", e->msg);
    server_log(lm->s, "%s: LoRA adapter %s: %s", lm->id, l->name, e->msg);
    tell_waiter(l, &pr);
    lm->preparing--;
    lm->memory_bytes -= at(lm, l->number)->bytes;
    clear(at(lm, l->number));
}

/* The memory that --max-memory leaves, in *bytes; 0: no limit.  -1 with *pr: none is left. */
static int memory_left(const struct server *s, uint64_t *bytes, struct problem *pr)
{
    uint64_t used = 0;
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next)
        used += lm->memory_bytes;
    *bytes = s->o.max_memory > used ? s->o.max_memory - used : 0;
    return s->o.max_memory && !*bytes
        ? problem_set(pr, 503, "lora_path", "out_of_memory", "the models take all memory of --max-memory") : 0;
}

/* Count the memory that the engine has taken to compute with a new adapter. */
static void count_engine(struct loaded_model *lm)
{
    struct engine_stats es;
    struct engine_limits ignored;
    worker_stats(lm->worker, &es, &ignored);
    lm->memory_bytes += es.private_bytes - lm->engine_bytes;
    lm->engine_bytes = es.private_bytes;
}

/* Handle the worker's event for a load; ev NULL: the event was lost. */
static void on_event(struct worker_job *job, const struct events *b, const struct event *ev)
{
    struct adapter_load *l = job->user;
    struct loaded_model *lm = l->lm;
    struct adapter *a = at(lm, l->number);
    struct err e;
    if (!ev) {
        worker_set_lora(lm->worker, lm->m.adapts, l->number, NULL, NULL);
        err_nomem(&e, "LoRA adapter");
    } else if (ev->error != ERR_NONE) {
        err_set(&e, ev->error, "%s", b->bytes.data + ev->why);
    }
    if (!ev || ev->error != ERR_NONE) {
        fail(l, &e);
        return;
    }
    a->state = ADAPTER_READY;
    a->load = NULL;
    lm->preparing--;
    count_engine(lm);
    server_log(lm->s, "%s: LoRA adapter %s, rank %d", lm->id, a->name, a->rank);
    if (l->replaces && adapters_ready(lm, l->replaces))
        adapters_unload(lm, l->replaces);
    tell_waiter(l, NULL);
    free_load(l);
}

void adapter_read(struct server *s, struct adapter_load *l)
{
    l->bound = s->o.opener.bind(s->o.opener.user, &l->m, l->name, l->folder, l->most_bytes, &l->error);
}

void adapter_put(struct adapter_load *l)
{
    struct loaded_model *lm = l->lm;
    struct adapter *a = at(lm, l->number);
    struct err e;
    if (!l->bound) {
        fail(l, &l->error);
        return;
    }
    const uint64_t bytes = lora_bound_bytes(l->bound);
    struct problem ignored;
    uint64_t left;
    if (memory_left(lm->s, &left, &ignored) != 0 || (left && bytes > left)) {     /* others were loaded meanwhile */
        err_set(&e, ERR_LIMIT, "%s: the adapter takes %.1f MB, which --max-memory does not leave", l->folder,
                (double)bytes * 1e-6);
        fail(l, &e);
        return;
    }
    a->rank = lora_bound_rank(l->bound);
    a->bytes = bytes;
    a->key = lora_bound_key(l->bound);
    lm->memory_bytes += bytes;
    l->job.user = l;
    l->job.on_event = on_event;
    if (worker_set_lora(lm->worker, lm->m.adapts, l->number, l->bound, &l->job) != 0) {
        err_nomem(&e, "LoRA adapter");
        fail(l, &e);
        return;
    }
    l->bound = NULL;
}

/* An unused number; 0 without memory or when all are in use, with *pr.  The last number is for an
 * adapter that replaces another one (replaces 1), which has its number until then. */
static int unused_number(struct loaded_model *lm, int replaces, struct problem *pr)
{
    const int most = replaces ? MOST_LORAS : MOST_LORAS - 1;
    int i = 1;
    while (i <= lm->n_adapters && at(lm, i)->state != ADAPTER_UNUSED)
        i++;
    if (i > most) {
        problem_set(pr, 400, "lora_name", "too_many", "more than %d adapters", MOST_LORAS - 1);
        return 0;
    }
    if (i <= lm->n_adapters)
        return i;
    struct adapter *list = realloc(lm->adapters, (size_t)i * sizeof *list);
    if (!list) {
        problem_nomem(pr);
        return 0;
    }
    lm->adapters = list;
    list[lm->n_adapters++] = (struct adapter){ .state = ADAPTER_UNUSED };
    return i;
}

int adapters_load(struct loaded_model *lm, struct conn *c, const char *name, const char *folder, int inplace,
                  struct problem *pr)
{
    const int old = adapters_find(lm, name, 0);
    uint64_t most;
    if (is_loading(lm, name))
        return problem_set(pr, 409, "lora_name", "adapter_loading", "lora_name: the adapter '%.80s' is being loaded", name);
    if (old && !inplace)
        return problem_set(pr, 400, "lora_name", "adapter_exists", "lora_name: the adapter '%.80s' is loaded already; "
                           "load_inplace replaces it", name);
    if (memory_left(lm->s, &most, pr) != 0)
        return -1;
    const int number = unused_number(lm, old != 0, pr);
    struct exchange *x = number ? calloc(1, sizeof *x) : NULL;
    struct adapter_load *l = x ? calloc(1, sizeof *l) : NULL;
    struct adapter *a = number ? at(lm, number) : NULL;
    if (!l) {
        free(x);
        return number ? problem_nomem(pr) : -1;
    }
    *a = (struct adapter){ .state = ADAPTER_LOADING, .name = strdup(name), .folder = strdup(folder), .load = l };
    *l = (struct adapter_load){ .lm = lm, .m = lm->m, .number = number, .replaces = old, .name = strdup(name),
                                .folder = strdup(folder), .most_bytes = most, .waiter = c };
    if (!a->name || !a->folder || !l->name || !l->folder || task_read_adapter(lm->s, lm, l) != 0) {
        clear(a);
        free(x);
        return problem_nomem(pr);
    }
    lm->preparing++;
    x->kind = EXCHANGE_LOAD;
    conn_set_exchange(c, x);
    return 0;
}

const char *adapter_name_fault(const char *name)
{
    static const char tag[] = ":latest";
    const size_t n = strlen(name);
    int size;
    if (utf8_valid(name, n) != n)
        return "is not UTF-8";
    for (size_t i = 0; i < n; i += (size_t)size)
        if (utf8_is_steering(utf8_next(name + i, n - i, &size)))
            return "has control characters or changes of direction";
    return n >= sizeof tag - 1 && strcmp(name + n - (sizeof tag - 1), tag) == 0
        ? "ends in :latest, which Ollama's API takes as no part of a name" : NULL;
}
