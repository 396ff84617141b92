/* evicted.c - models that were unloaded automatically: remembered, and loaded again on request. */
#include "libcommon/serve/evicted.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/serve/internal.h"

static void free_evicted(struct evicted *v)
{
    free(v->id);
    free(v->path);
    free(v);
}

/* Remove the model of this id from the list, and return it.  NULL: not found. */
static struct evicted *take_evicted(struct server *s, const char *id)
{
    struct evicted **at = &s->evicted, *v;
    while (*at && strcmp((*at)->id, id) != 0)
        at = &(*at)->next;
    if ((v = *at))
        *at = v->next;
    return v;
}

/* Append v to the list. */
static void put_evicted(struct server *s, struct evicted *v)
{
    struct evicted **end = &s->evicted;
    while (*end)
        end = &(*end)->next;
    v->next = NULL;
    *end = v;
}

int models_forget(struct server *s, const char *id)
{
    struct evicted *v = take_evicted(s, id);
    if (v)
        free_evicted(v);
    return v != NULL;
}

void models_remember(struct server *s, const struct loaded_model *lm, int changed)
{
    struct evicted *v = calloc(1, sizeof *v);
    if (!v || !(v->id = strdup(lm->id)) || !(v->path = strdup(lm->path))) {
        if (v)
            free_evicted(v);
        return;
    }
    v->how = lm->how;
    v->changed = changed;
    v->failures = lm->failures;
    v->failed_ns = clock_ns();
    models_forget(s, lm->id);
    put_evicted(s, v);
}

const char *models_left(const struct server *s, const char *id)
{
    const int any = !id || strcmp(id, "default") == 0;
    const char *base = any ? NULL : models_adapted(s, id);
    const struct evicted *found = NULL;
    for (const struct evicted *v = s->draining ? NULL : s->evicted; v; v = v->next)
        if (any ? !found || (v->changed && !found->changed) : strcmp(v->id, base ? base : id) == 0)
            found = v;
    return found ? found->id : NULL;
}

int models_wait_s(const struct server *s, const char *id)
{
    const struct evicted *v = s->evicted;
    while (v && strcmp(v->id, id) != 0)
        v = v->next;
    if (!v || !v->failures)
        return 0;
    const uint64_t until = v->failed_ns + (UINT64_C(1000000000) << (v->failures < 6 ? v->failures : 6)),
                   now = clock_ns();
    return now < until ? (int)((until - now) / 1000000000u) + 1 : 0;
}

/* Reload v, which has been removed from the list; put it back if that fails. */
static void bring_back(struct server *s, struct evicted *v, struct problem *pr)
{
    struct loaded_model *lm = models_load(s, v->path, v->id, &v->how, NULL, pr);
    if (!lm) {
        put_evicted(s, v);
        return;
    }
    lm->recalled = 1;
    lm->changed = v->changed;
    lm->failures = v->failures;
    problem_set(pr, 503, "model", "model_loading", "the model %.80s was unloaded because another one needed its memory or its file changed, and is being loaded again", lm->id);
    free_evicted(v);
}

int models_recall(struct server *s, const char *id, struct problem *pr)
{
    struct evicted *v = s->draining ? NULL : take_evicted(s, id);
    if (!v)
        return 0;
    server_log(s, "%s: requested, loading %s again", v->id, v->path);
    bring_back(s, v, pr);
    return 1;
}

void models_recall_changed(struct server *s)
{
    struct problem pr;
    struct evicted *left = s->evicted, *v;
    s->evicted = NULL;
    while ((v = left)) {
        left = v->next;
        if (!v->changed) {
            put_evicted(s, v);
            continue;
        }
        server_log(s, "%s: loading %s again", v->id, v->path);
        bring_back(s, v, &pr);
    }
}

void models_forget_all(struct server *s)
{
    for (struct evicted *v; (v = s->evicted); free_evicted(v))
        s->evicted = v->next;
}
