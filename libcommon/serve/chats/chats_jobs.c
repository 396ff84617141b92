/* chats_jobs.c - run the jobs of the chat history: parse the body, use the database, write the
 * response. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/api/prescan.h"
#include "libcommon/serve/chats/chats.h"

enum { READ_S = 5, WRITE_S = 20, IMPORT_S = 60, EXPIRED_AT_ONCE = 20, JOB_BYTES = 16 << 10 };

/* ---- problems ---- */

int chats_problem(const struct history_problem *p, struct problem *pr)
{
    static const struct { int status; const char *code; } answers[] = {
        [HISTORY_NOT_FOUND] = { 404, "not_found" }, [HISTORY_BAD_VALUE] = { 422, "invalid_value" },
        [HISTORY_EXISTS] = { 409, "conversation_exists" }, [HISTORY_TOO_LARGE] = { 413, "too_large" },
        [HISTORY_QUOTA] = { 413, "quota_exceeded" }, [HISTORY_NO_MEMORY] = { 503, NULL },
        [HISTORY_BUSY] = { 503, "history_busy" }, [HISTORY_DAMAGED] = { 503, "history_damaged" },
        [HISTORY_READ_ONLY] = { 503, "history_read_only" }, [HISTORY_FULL] = { 503, "history_full" },
        [HISTORY_UNAVAILABLE] = { 503, "history_unavailable" },
    };
    if (!answers[p->fault].status)
        return problem_nomem(pr);
    return problem_set(pr, answers[p->fault].status, p->field, answers[p->fault].code, "%s", p->e.msg);
}

/* ---- memory ---- */

static int hold_more(void *user, size_t bytes)
{
    struct chat_job *j = user;
    return hold_set(&j->hold, JOB_BYTES + j->body_bytes + bytes) == HOLD_OK ? 0 : -1;
}

/* ---- bodies ---- */

static body_set kind_of(enum chat_work work)
{
    switch (work) {
    case CHATS_CREATE: return BODY_CONVERSATION;
    case CHATS_UPDATE: return BODY_CONVERSATION_EDIT;
    case CHATS_ADD:    return BODY_CHAT_MESSAGE;
    case CHATS_EDIT:   return BODY_CHAT_MESSAGE_EDIT;
    default:           return BODY_CHAT_IMPORT;
    }
}

/* Parse JSON text into an object whose memory is reserved.  NULL with *pr. */
static json_t *parse_held(struct chat_job *j, char *text, size_t size, struct problem *pr)
{
    struct prescan scan;
    struct err e;
    if (prescan_body(text, size, kind_of(j->work), &scan, pr))
        return NULL;
    /* the tree, and the texts that are made from it for the database */
    j->body_bytes += size + scan.tree_bytes + 2 * scan.text_bytes;
    const size_t bytes = JOB_BYTES + j->body_bytes;
    const enum hold_answer why = hold_set(&j->hold, bytes);
    if (why != HOLD_OK) {
        hold_problem(&j->hold, why, bytes, pr);
        return NULL;
    }
    json_t *out = js_parse("body", text, size, &e);
    if (!out)
        problem_err(pr, NULL, "invalid_json", &e);
    return out;
}

/* Parse the body as an object with known fields; an empty body is an empty object.  NULL with
 * *pr. */
static json_t *parse_body(struct chat_job *j, struct problem *pr)
{
    struct params ignored = { 0 };
    json_t *body = j->body.size ? parse_held(j, j->body.data, j->body.size, pr) : json_object();
    if (!body && !pr->status)
        problem_nomem(pr);
    if (body && fields_parse(body, kind_of(j->work), &ignored, pr) == 0)
        return body;
    json_decref(body);
    return NULL;
}

/* If the body is a complete response of the export endpoint, return the exported JSON inside it.
 * Takes over the reference. */
static json_t *unwrap(struct chat_job *j, json_t *body, struct problem *pr)
{
    const char *content = json_string_value(json_object_get(body, "content")),
               *format = json_string_value(json_object_get(body, "format"));
    if (!content || (format && strcmp(format, "markdown") == 0))
        return body;
    char *copy = strdup(content);
    json_t *doc = copy ? parse_held(j, copy, strlen(copy), pr) : NULL;
    if (!copy)
        problem_nomem(pr);
    free(copy);
    json_decref(body);
    return doc;
}

/* ---- answers ---- */

/* Store an object as the job's text; takes over its reference.  NULL: the problem is in p. */
static void put_json(struct chat_job *j, json_t *out, const struct history_problem *p)
{
    if (!out) {
        chats_problem(p, &j->problem);
        return;
    }
    j->text = json_dumps(out, JSON_COMPACT | JSON_REAL_PRECISION(15));
    j->text_size = j->text ? strlen(j->text) : 0;
    if (!j->text)
        problem_nomem(&j->problem);
    json_decref(out);
}

static void export(struct chat_job *j, struct history *h)
{
    struct history_problem p = { 0 };
    char *text = j->markdown ? history_export_markdown(h, j->owner, j->id, &j->name, &p)
                             : history_export_json(h, j->owner, j->id, &j->name, &p);
    if (!text) {
        chats_problem(&p, &j->problem);
        return;
    }
    if (j->download) {
        j->text = text;
        j->text_size = strlen(text);
        return;
    }
    struct history_problem nomem = { .fault = HISTORY_NO_MEMORY, .e.msg = "out of memory" };
    put_json(j, json_pack("{s:s, s:s, s:s}", "format", j->markdown ? "markdown" : "json", "content", text, "filename",
                          j->name), &nomem);
    free(text);
}

static void delete_all(struct chat_job *j, struct history *h)
{
    struct history_problem p = { 0 };
    int n, total = 0;
    while ((n = history_delete_many(h, j->owner, 0, 64, &p)) > 0)
        total += n;
    put_json(j, n < 0 ? NULL : json_pack("{s:s, s:i}", "status", "deleted", "count", total), &p);
}

static void stats(struct chat_job *j, struct history *h)
{
    struct history_problem p = { 0 };
    const int days = j->s->o.history_days;
    json_t *out = history_stats(h, j->owner, &p);
    json_object_set_new(out, "enabled", json_true());
    json_object_set_new(json_object_get(out, "limits"), "days", days ? json_integer(days) : json_null());
    put_json(j, out, &p);
}

static void remove_messages(struct chat_job *j, struct history *h)
{
    struct history_problem p = { 0 };
    const int64_t n = history_remove(h, j->owner, j->id, j->number, &p);
    put_json(j, n < 0 ? NULL : json_pack("{s:s, s:o, s:I}", "status", "deleted", "id",
                                         j->number ? json_integer((json_int_t)j->number) : json_string(j->id),
                                         "deleted", (json_int_t)n), &p);
}

static void expire(struct chat_job *j, struct history *h)
{
    struct history_problem p = { 0 };
    const int64_t before = ((int64_t)time(NULL) - (int64_t)j->s->o.history_days * 86400) * 1000;
    const int n = history_delete_many(h, NULL, before, EXPIRED_AT_ONCE, &p);
    j->number = n == EXPIRED_AT_ONCE;
    if (n < 0)
        chats_problem(&p, &j->problem);
}

/* Run a job that has a body. */
static void run_body(struct chat_job *j, struct history *h)
{
    struct history_problem p = { 0 };
    json_t *body = parse_body(j, &j->problem), *out = NULL;
    if (body && j->work == CHATS_IMPORT)
        body = unwrap(j, body, &j->problem);
    if (!body)
        return;
    switch (j->work) {
    case CHATS_CREATE: out = history_create(h, j->owner, body, &p); break;
    case CHATS_UPDATE: out = history_update(h, j->owner, j->id, body, &p); break;
    case CHATS_ADD:    out = history_add(h, j->owner, j->id, body, &p); break;
    case CHATS_EDIT:   out = history_edit(h, j->owner, j->id, j->number, body, &p); break;
    default:           out = history_import(h, j->owner, body, j->copy, &p); break;
    }
    json_decref(body);
    put_json(j, out, &p);
}

int chats_reads(const struct chat_job *j)
{
    const enum chat_work w = j->work;
    return w == CHATS_LIST || w == CHATS_GET || w == CHATS_MESSAGES || w == CHATS_MESSAGE || w == CHATS_SEARCH ||
           w == CHATS_EXPORT || w == CHATS_STATS;
}

void chats_run(struct chat_job *j, struct history *h)
{
    struct history_problem p = { 0 };
    history_set_deadline(h, j->work == CHATS_IMPORT || j->work == CHATS_DELETE_ALL
                         ? IMPORT_S : j->body.size || j->work == CHATS_DELETE ||
                         j->work == CHATS_REMOVE ? WRITE_S : READ_S);
    history_set_budget(h, hold_more, j);
    history_set_cancel(h, chats_reads(j) ? &j->gone : NULL);    /* changes continue without the client */
    switch (j->work) {
    case CHATS_LIST:     put_json(j, history_list(h, j->owner, &j->filter, &p), &p); break;
    case CHATS_GET:      put_json(j, history_get(h, j->owner, j->id, &p), &p); break;
    case CHATS_MESSAGES: put_json(j, history_messages(h, j->owner, j->id, &j->page, &p), &p); break;
    case CHATS_MESSAGE:  put_json(j, history_message(h, j->owner, j->id, j->number, &p), &p); break;
    case CHATS_SEARCH:   put_json(j, history_search(h, j->owner, j->query, j->filter.limit, &p), &p); break;
    case CHATS_DELETE:
        put_json(j, history_delete(h, j->owner, j->id, &p) ? NULL : json_pack("{s:s, s:s}", "status", "deleted", "id",
                                                                             j->id), &p);
        break;
    case CHATS_REMOVE:     remove_messages(j, h); break;
    case CHATS_DELETE_ALL: delete_all(j, h); break;
    case CHATS_EXPORT:     export(j, h); break;
    case CHATS_STATS:      stats(j, h); break;
    case CHATS_EXPIRE:     expire(j, h); break;
    default:               run_body(j, h);
    }
    history_set_budget(h, NULL, NULL);
    history_set_cancel(h, NULL);
}
