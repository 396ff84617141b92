/* sleep.c - POST /sleep and /wake_up, GET /is_sleeping, as vLLM has them: give the memory of all
 * models back for a while.
 *
 * A sleeping model is closed: its private memory, its keys and values and its memory on a GPU are
 * free, and of the weights only the page cache of their file is left, which level 2 drops, too. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/serve/admin/statistics.h"
#include "libcommon/serve/exchange.h"
#include "libcommon/serve/internal.h"

void handle_is_sleeping(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    reply_object(s, c, 200, json_pack("{s:b}", "is_sleeping", s->sleep.level > 0));
}

/* Let the client wait for sleep_tick().  0, or -1 after a refusal. */
static int wait_here(struct server *s, struct conn *c)
{
    struct exchange *x = calloc(1, sizeof *x);
    if (!x) {
        reply_refusal(s, c, 503, NULL, "out of memory");
        return -1;
    }
    x->kind = EXCHANGE_LOAD;
    conn_set_exchange(c, x);
    s->sleep.waiter = c;
    s->sleep.changing = 1;
    return 0;
}

/* Whether the state may change now; otherwise the client is told why not. */
static int is_settled(struct server *s, struct conn *c)
{
    if (!s->sleep.changing && models_n(s, MODEL_LOADING) == 0)
        return 1;
    reply_refusal(s, c, 409, "busy", s->sleep.changing ? "the server is falling asleep or waking up already"
                                                     : "a model is being loaded: try again when it is ready");
    return 0;
}

void handle_sleep(struct server *s, struct conn *c, const char *rest)
{
    char text[8];
    const char *level = http_query(conn_request(c), "level", text, sizeof text);
    (void)rest;
    if (level ? strcmp(level, "1") != 0 && strcmp(level, "2") != 0 : http_query_has(conn_request(c), "level")) {
        reply_refusal(s, c, 400, "out_of_range", "level: expected 1 or 2");
        return;
    }
    if (!is_settled(s, c) || wait_here(s, c) != 0)
        return;
    if (!s->sleep.models)
        s->sleep.models = json_object();
    s->sleep.level = level && *level == '2' ? 2 : 1;
    s->sleep.tags = 0;
    for (struct loaded_model *lm = s->models; lm; lm = lm->next) {
        if (lm->state != MODEL_READY)
            continue;
        json_object_set_new(s->sleep.models, lm->id, json_string(models_file(lm)));
        if (!lm->named)
            models_remember(s, lm, 0);
        models_unload(s, lm);
    }
    server_log(s, "asleep, level %d: POST /wake_up loads the models again", s->sleep.level);
    sleep_tick(s);
}

enum { TAG_WEIGHTS = 1, TAG_KV_CACHE = 2, TAGS = 3 };

/* The tags of a query, ?tags=weights&tags=kv_cache; without any: both.  0: refused. */
static unsigned read_tags(struct server *s, struct conn *c)
{
    unsigned tags = 0;
    for (const char *at = conn_request(c)->query, *end; *at; at = *end ? end + 1 : end) {
        end = at + strcspn(at, "&");
        const int n = (int)(end - at);
        if (n == 12 && memcmp(at, "tags=weights", 12) == 0) {
            tags |= TAG_WEIGHTS;
        } else if (n == 13 && memcmp(at, "tags=kv_cache", 13) == 0) {
            tags |= TAG_KV_CACHE;
        } else if (n >= 5 && memcmp(at, "tags=", 5) == 0) {
            reply_refusal(s, c, 400, "out_of_range", "tags: '%.*s', expected weights or kv_cache", n - 5 < 40 ? n - 5 : 40,
                          at + 5);
            return 0;
        }
    }
    return tags ? tags : TAGS;
}

/* A model is loaded as a whole, when both tags have come: its weights are pages of its file, which
 * take no memory of their own before keys and values do. */
void handle_wake_up(struct server *s, struct conn *c, const char *rest)
{
    struct problem ignored;
    const char *id;
    json_t *path;
    (void)rest;
    const unsigned tags = read_tags(s, c);
    if (!tags || !is_settled(s, c))
        return;
    s->sleep.tags |= tags;
    if (s->sleep.level && s->sleep.tags != TAGS) {
        reply_object(s, c, 200, json_pack("{s:b, s:i}", "is_sleeping", 1, "level", s->sleep.level));
        return;
    }
    if (wait_here(s, c) != 0)
        return;
    s->sleep.level = 0;
    json_object_foreach(s->sleep.models, id, path)
        models_recall(s, id, &ignored);         /* a named model is loaded by the next request for it */
    sleep_tick(s);
}

/* Drop the page cache of the files of the closed models. */
static void drop_caches(const struct server *s)
{
    const char *id;
    json_t *path;
    json_object_foreach(s->sleep.models, id, path) {
        const int fd = open(json_string_value(path), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
        if (fd < 0)
            continue;
        posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
}

/* The id of a model that should be awake, but could not be loaded; NULL: none. */
static const char *missing(const struct server *s)
{
    const char *id;
    json_t *path;
    json_object_foreach(s->sleep.models, id, path)
        if (models_left(s, id))
            return id;
    return NULL;
}

static void tell(struct server *s, struct conn *c)
{
    const char *not_loaded = s->sleep.level ? NULL : missing(s);
    free(conn_exchange(c));
    conn_set_exchange(c, NULL);
    s->sleep.waiter = NULL;
    if (not_loaded)
        reply_refusal(s, c, 500, "model_unavailable", "%.200s could not be loaded again; the log has the reason", not_loaded);
    else
        reply_object(s, c, 200, json_pack("{s:b, s:i}", "is_sleeping", s->sleep.level > 0, "level", s->sleep.level));
}

void sleep_tick(struct server *s)
{
    if (!s->sleep.changing || (s->sleep.level ? s->models != NULL : models_n(s, MODEL_LOADING) > 0))
        return;
    s->sleep.changing = 0;
    if (s->sleep.level == 2)
        drop_caches(s);
    if (s->sleep.waiter)                        /* otherwise it has gone */
        tell(s, s->sleep.waiter);
    if (!s->sleep.level) {
        json_decref(s->sleep.models);
        s->sleep.models = NULL;
    }
}
