/* catalog.c - GET /api/models/registry, search and check: well-known models, and models on the hub.
 *
 * The program provides the answers (struct model_catalog), each in a thread, because the hub may be
 * slow.  The hub gets one request at a time.  The registry never changes: it is computed once. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/serve/exchange.h"
#include "libcommon/serve/internal.h"
#include "libcommon/serve/model_files.h"
#include "libcommon/serve/model_paths.h"

enum question_kind { ASK_REGISTRY, ASK_SEARCH, ASK_CHECK, ASK_FILES, REMOVE_FILE, REMOVE_NAME, ASK_OTHER };
enum { LIMIT_DEFAULT = 20, LIMIT_MOST = 50, WAITING_MOST = 8 };

struct registry_filter { char category[32], size[16], id[200]; double max_vram_gb; int recommended; };

struct catalog_question {
    struct exchange exchange;           /* must be the first member: see exchange.h */
    struct catalog_question *next;
    struct server *s;
    struct conn *conn;                  /* NULL: the client has disconnected */
    struct model_catalog catalog;
    pthread_t thread;
    /* Set to 1 by the thread when it has finished, and by catalog_close().  The second of the two
     * to set it frees the question. */
    atomic_int over;
    enum question_kind kind;
    char words[200];
    int limit;
    const char *folder;                 /* folder of models; borrowed from the options */
    struct registry_filter filter;
    catalog_work *work;                 /* for ASK_OTHER and REMOVE_NAME */
    catalog_reply *reply;
    json_t *answer;                     /* NULL: the error is in e */
    struct err e;
};

/* ---- in the thread ---- */

static void *answer_question(void *user)
{
    struct catalog_question *q = user;
    const struct model_catalog *c = &q->catalog;
    struct loop *loop = q->s->loop;
    if (q->kind == ASK_OTHER || q->kind == REMOVE_NAME)
        q->answer = q->work(q->folder, q->words, &q->e);
    else if (q->kind == ASK_FILES || q->kind == REMOVE_FILE)
        q->answer = q->kind == ASK_FILES ? model_files(q->folder, &q->e)
                                         : model_file_remove(q->folder, q->words, &q->e);
    else
        q->answer = q->kind == ASK_REGISTRY ? c->registry(&q->e) : q->kind == ASK_SEARCH
                    ? c->search(q->words, q->limit, &q->e) : c->check(q->words, &q->e);
    if (atomic_exchange(&q->over, 1)) {         /* the server and its loop are closed */
        json_decref(q->answer);
        free(q);
    } else {
        loop_wake(loop);
    }
    return NULL;
}

/* ---- the registry ---- */

static int is_listed(const json_t *list, const char *word)
{
    size_t i = 0;
    while (i < json_array_size(list) && strcmp(json_string_value(json_array_get(list, i)), word) != 0)
        i++;
    return i < json_array_size(list);
}

static int passes(const struct registry_filter *f, json_t *m)
{
    const json_t *least = json_object_get(json_object_get(m, "vram"), "int4_gb");
    return (!*f->category || is_listed(json_object_get(m, "categories"), f->category)) &&
           (!*f->size || strcmp(f->size, json_string_value(json_object_get(m, "size"))) == 0) &&
           (!f->recommended || json_is_true(json_object_get(m, "recommended"))) &&
           (f->max_vram_gb <= 0 || json_number_value(least) <= f->max_vram_gb);
}

static void reply_registry(struct server *s, struct conn *c, const struct registry_filter *f)
{
    json_t *list = json_array(), *m;
    size_t i;
    json_array_foreach(s->registry, i, m) {
        if (*f->id && strcmp(json_string_value(json_object_get(m, "model_id")), f->id) == 0) {
            json_decref(list);
            reply_object(s, c, 200, json_incref(m));
            return;
        }
        if (!*f->id && passes(f, m))
            json_array_append(list, m);
    }
    if (*f->id) {
        json_decref(list);
        reply_refusal(s, c, 404, "no_such_model", "the registry has no model '%.200s'", f->id);
    } else {
        reply_object(s, c, 200, json_pack("{s:i, s:o}", "count", (int)json_array_size(list), "models", list));
    }
}

/* ---- in the loop ---- */

static void reply_question(struct server *s, struct catalog_question *q)
{
    if (q->kind == ASK_REGISTRY && q->answer && !s->registry)
        s->registry = json_incref(q->answer);
    if (!q->conn && q->kind != REMOVE_NAME)
        return;
    if (q->kind == ASK_OTHER || q->kind == REMOVE_NAME)
        q->reply(s, q->conn, q->words, q->answer, &q->e);
    else if (q->answer && q->kind == ASK_REGISTRY)
        reply_registry(s, q->conn, &q->filter);
    else if (q->answer)
        reply_object(s, q->conn, 200, json_incref(q->answer));
    else if (q->kind == ASK_FILES || q->kind == REMOVE_FILE)
        reply_refusal(s, q->conn, q->e.code == ERR_FORMAT ? 404 : 503, "no_such_file", "%s", q->e.msg);
    else if (q->kind == ASK_CHECK && q->e.code == ERR_FORMAT)
        reply_refusal(s, q->conn, 400, "invalid_value", "%s", q->e.msg);
    else
        reply_refusal(s, q->conn, q->kind == ASK_REGISTRY ? 503 : 502, "hub_failed", "%s", q->e.msg);
}

void catalog_done(struct server *s)
{
    for (struct catalog_question **at = &s->questions, *q; (q = *at);) {
        if (!atomic_load(&q->over)) {
            at = &q->next;
            continue;
        }
        *at = q->next;
        pthread_join(q->thread, NULL);
        reply_question(s, q);
        json_decref(q->answer);
        free(q);
    }
}

void catalog_gone(struct conn *c) { ((struct catalog_question *)conn_exchange(c))->conn = NULL; }

void catalog_close(struct server *s)
{
    for (struct catalog_question *q; (q = s->questions);) {
        s->questions = q->next;
        const pthread_t thread = q->thread;
        if (!atomic_exchange(&q->over, 1)) {
            pthread_detach(thread);             /* detach it, since the hub may take a minute; the thread frees q */
            continue;
        }
        pthread_join(thread, NULL);
        json_decref(q->answer);
        free(q);
    }
    json_decref(s->registry);
    s->registry = NULL;
}

/* Make a question; NULL: refused, and the client has the answer. */
static struct catalog_question *new_question(struct server *s, struct conn *c, enum question_kind kind)
{
    int n = 0, same = 0;
    for (const struct catalog_question *q = s->questions; q; q = q->next, n++)
        same += q->kind == ASK_SEARCH || q->kind == ASK_CHECK;
    const int named = kind == ASK_OTHER || kind == REMOVE_NAME, in_folder = kind == ASK_FILES || kind == REMOVE_FILE;
    const int there = named || (in_folder ? model_folder(s) != NULL : s->o.catalog.registry != NULL);
    struct catalog_question *q = there ? calloc(1, sizeof *q) : NULL;
    if (!there)
        reply_refusal(s, c, 404, "no_catalog", "this program has no registry of models");
    else if (!q)
        reply_refusal(s, c, 503, NULL, "out of memory");
    else if (n >= WAITING_MOST || ((kind == ASK_SEARCH || kind == ASK_CHECK) && same))
        reply_refusal(s, c, 503, "busy", "%s", kind == ASK_SEARCH || kind == ASK_CHECK
                      ? "another question to the hub is being answered" : "many other questions are being answered");
    else {
        q->exchange.kind = EXCHANGE_CATALOG;
        q->s = s;
        q->conn = c;
        q->catalog = s->o.catalog;
        q->kind = kind;
        q->folder = model_folder(s);
        return q;
    }
    free(q);
    return NULL;
}

static void start_question(struct server *s, struct conn *c, struct catalog_question *q)
{
    if (pthread_create(&q->thread, NULL, answer_question, q) != 0) {
        reply_refusal(s, c, 503, NULL, "no thread available");
        free(q);
        return;
    }
    q->next = s->questions;
    s->questions = q;
    conn_set_exchange(c, q);
}

static void ask_other(struct server *s, struct conn *c, enum question_kind kind, const char *folder, const char *word,
                      catalog_work *work, catalog_reply *reply)
{
    struct catalog_question *q = new_question(s, c, kind);
    if (!q)
        return;
    snprintf(q->words, sizeof q->words, "%s", word);
    q->folder = folder;
    q->work = work;
    q->reply = reply;
    start_question(s, c, q);
}

void catalog_ask(struct server *s, struct conn *c, const char *folder, const char *word, catalog_work *work,
                 catalog_reply *reply)
{
    ask_other(s, c, ASK_OTHER, folder, word, work, reply);
}

void catalog_remove(struct server *s, struct conn *c, const char *folder, const char *name, catalog_work *work,
                    catalog_reply *reply)
{
    ask_other(s, c, REMOVE_NAME, folder, name, work, reply);
}

int catalog_removes(const struct server *s, const char *name)
{
    const struct catalog_question *q = s->questions;
    while (q && !(q->kind == REMOVE_NAME && strcmp(q->words, name) == 0))
        q = q->next;
    return q != NULL;
}

/* ---- the routes ---- */

/* Copy a parameter of the query string, which must be one of `words` if it is present.  0: refused,
 * and the client has the answer. */
static int query_word(struct server *s, struct conn *c, const char *name, const char *const *words, char *out,
                      size_t room)
{
    *out = '\0';
    char text[32] = "", all[160] = "";
    if (!http_query(conn_request(c), name, text, sizeof text))
        return 1;
    for (int i = 0; words[i]; i++) {
        if (strcmp(words[i], text) == 0) {
            snprintf(out, room, "%s", text);
            return 1;
        }
        snprintf(all + strlen(all), sizeof all - strlen(all), "%s%s", i ? ", " : "", words[i]);
    }
    reply_refusal(s, c, 400, "invalid_value", "%s: '%.40s', expected one of %s", name, text, all);
    return 0;
}

static void ask_registry(struct server *s, struct conn *c, const struct registry_filter *f)
{
    if (s->registry) {
        reply_registry(s, c, f);
        return;
    }
    struct catalog_question *q = new_question(s, c, ASK_REGISTRY);
    if (q) {
        q->filter = *f;
        start_question(s, c, q);
    }
}

void handle_registry(struct server *s, struct conn *c, const char *rest)
{
    static const char *const categories[] = { "chat", "instruct", "code", "reasoning", NULL },
        *const sizes[] = { "tiny", "small", "medium", "large", "xlarge", "xxl", NULL },
        *const truth[] = { "true", "false", "1", "0", NULL };
    struct registry_filter f = { 0 };
    char text[32], recommended[8], *end;
    (void)rest;
    if (!query_word(s, c, "category", categories, f.category, sizeof f.category) ||
        !query_word(s, c, "size", sizes, f.size, sizeof f.size) ||
        !query_word(s, c, "recommended", truth, recommended, sizeof recommended))
        return;
    f.recommended = strcmp(recommended, "true") == 0 || strcmp(recommended, "1") == 0;
    if (http_query(conn_request(c), "max_vram", text, sizeof text)) {
        f.max_vram_gb = strtod(text, &end);
        if (end == text || *end || !(f.max_vram_gb > 0)) {
            reply_refusal(s, c, 400, "invalid_value", "max_vram: '%.40s', expected GB above 0", text);
            return;
        }
    }
    ask_registry(s, c, &f);
}

void handle_registry_model(struct server *s, struct conn *c, const char *rest)
{
    struct registry_filter f = { 0 };
    snprintf(f.id, sizeof f.id, "%s", rest);
    ask_registry(s, c, &f);
}

void handle_hub_search(struct server *s, struct conn *c, const char *rest)
{
    char text[16], *end, words[200];
    long limit = LIMIT_DEFAULT;
    (void)rest;
    if (http_query(conn_request(c), "limit", text, sizeof text)) {
        limit = strtol(text, &end, 10);
        if (end == text || *end || limit < 1 || limit > LIMIT_MOST) {
            reply_refusal(s, c, 400, "out_of_range", "limit: '%s', expected 1 to %d", text, LIMIT_MOST);
            return;
        }
    }
    if (!http_query(conn_request(c), "q", words, sizeof words) || !*words) {
        reply_refusal(s, c, 400, "missing", "q: expected words of 1 to %zu bytes", sizeof words - 1);
        return;
    }
    struct catalog_question *q = new_question(s, c, ASK_SEARCH);
    if (!q)
        return;
    strcpy(q->words, words);
    q->limit = (int)limit;
    start_question(s, c, q);
}

void handle_hub_check(struct server *s, struct conn *c, const char *rest)
{
    if (strlen(rest) >= sizeof ((struct catalog_question *)0)->words) {
        reply_refusal(s, c, 400, "invalid_value", "'%.80s...' is not a valid model name", rest);
        return;
    }
    struct catalog_question *q = new_question(s, c, ASK_CHECK);
    if (!q)
        return;
    strcpy(q->words, rest);
    start_question(s, c, q);
}

void handle_model_files(struct server *s, struct conn *c, const char *rest)
{
    struct catalog_question *q = new_question(s, c, ASK_FILES);
    (void)rest;
    if (q)
        start_question(s, c, q);
}

void handle_model_remove(struct server *s, struct conn *c, const char *rest)
{
    const char *name = strrchr(rest, '/');
    char *id = server_model_id(rest);
    const int may = id && guard_lists_model(conn_record(c), id);
    free(id);
    for (const struct loaded_model *lm = s->models; lm; lm = lm->next) {
        const char *slash = strrchr(lm->path, '/');
        if (may && strcmp(slash ? slash + 1 : lm->path, name ? name + 1 : rest) == 0) {
            reply_refusal(s, c, 409, "model_loaded", "the model %.80s is loaded from it: unload it first", lm->id);
            return;
        }
    }
    const int fits = may && strlen(rest) < sizeof ((struct catalog_question *)0)->words;
    struct catalog_question *q = fits ? new_question(s, c, REMOVE_FILE) : NULL;
    if (!fits)
        reply_refusal(s, c, 404, "no_such_file", "there is no such file");
    if (!q)
        return;
    strcpy(q->words, rest);
    start_question(s, c, q);
}
