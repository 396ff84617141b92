/* server_impl.h - what the parts of the server know of each other.  Everything here belongs to the loop's thread unless it says otherwise. */
#ifndef ZSE_SERVE_SERVER_IMPL_H
#define ZSE_SERVE_SERVER_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "libcommon/base/rng.h"
#include "libcommon/engine/device_show.h"
#include "libcommon/serve/watch.h"
#include "libcommon/serve/conn.h"
#include "libcommon/grammar/tools.h"
#include "libcommon/serve/fields.h"
#include "libcommon/serve/grammars.h"
#include "libcommon/serve/guard.h"
#include "libcommon/serve/metrics.h"
#include "libcommon/serve/problem.h"
#include "libcommon/serve/server.h"
#include "libcommon/serve/worker.h"
#include "libcommon/token/template.h"

struct call;

/* ---- models.c ---- */

enum hosted_state { HOSTED_LOADING, HOSTED_READY, HOSTED_LEAVING, HOSTED_CLOSING };

struct hosted {
    struct hosted *next;                /* by time of loading */
    struct server *s;
    char *id, *path;                    /* owned */
    enum hosted_state state;
    int64_t created;                    /* seconds since 1970 */
    uint64_t started_ns, used_ns, leave_by_ns;      /* load was asked for; last request; running requests end by then */
    double load_s;
    struct served_model m;
    int opened;                         /* m is there */
    int wanted;                         /* named when the server started: without it there is nothing to serve */
    int stalled;                        /* no step of its engine has ended for very long, as was said: stall_tick() */
    int comparing;                      /* its file's time of writing is another one, and the engine looks at what is in it */
    uint64_t touched;                   /* of engine_stats, as far as that was said */
    int recalled, changed;              /* it had left by nobody's word and is loaded again; because its file was written to */
    int failures;                       /* of loading it again, one after the other */
    struct err error;                   /* why it could not be opened */
    struct worker *worker;
    struct tmpl *tmpl;                  /* owned */
    char *bos, *eos;                    /* texts of the tokens; owned */
    int thinks;                         /* its template knows <think> */
    int knows_tools;                    /* its template writes tools */
    const struct tool_format *calls_form;       /* how it writes calls */
    struct grammars *grammars;          /* owned; NULL: it has no tokenizer */
    struct sampling sampling;           /* defaults of its requests */
    uint64_t memory_bytes, vram_bytes;  /* vram_bytes: of a GPU's memory */
    char device[32];                    /* "cpu", "cuda:0" */
    char about[DEVICE_LINE];            /* where it runs and what it takes there */
    struct engine_limits limits;        /* as wished, batching on */
    int most_running;                   /* as opened */
    int batching;                       /* off: one request at a time */
    int preparing;                      /* calls whose body is being parsed in another thread */
    struct call *calls; int n_calls;    /* open ones */
    struct hosted *replaces;            /* reload: leaves when this one is ready */
    struct conn *waiter;                /* POST /api/models/load waits for it; NULL: nobody */
    struct model_metrics metrics;
};

/* A ready model by id; NULL or "default": the first. NULL with *pr otherwise. */
struct hosted *models_find(struct server *s, const char *id, struct problem *pr);
/* The id of a model that was unloaded by nobody's word, because another one needed its memory or its file was written to; of any, where id is NULL or "default".
 * Borrowed until models_recall(); NULL: there is none. */
const char *models_left(const struct server *s, const char *id);
/* It is loaded again, and 1: *pr says to come back, or why not.  0: there is none of this id. */
int models_recall(struct server *s, const char *id, struct problem *pr);
/* How long to wait before it is loaded again for somebody who only asks whether all is well; 0: not at all.  After a failure the wait grows from 2 seconds to 64. */
int models_wait_s(const struct server *s, const char *id);
/* Begin to open; NULL with *pr: the id is taken, no memory. */
struct hosted *models_load(struct server *s, const char *path, const char *id, struct hosted *replaces, struct problem *pr);
struct hosted *models_successor(struct server *s, const struct hosted *h);      /* the one that is being loaded in h's place; NULL */
void models_unload(struct server *s, struct hosted *h);         /* no new requests; closes when the running ones have ended */
int models_forget(struct server *s, const char *id);            /* such a one does not come back; 0: there is none of this id */
void models_reload(struct server *s);                           /* SIGHUP */
void models_opened(struct server *s);                           /* on_wake: what the opening thread has done */
void models_tick(struct server *s);                             /* closes what has drained */
void models_check(struct server *s);                            /* unloads those whose files are not what was opened any more */
int models_start(struct server *s, struct err *e);
void models_stop(struct server *s);
/* Ends the threads of the engines.  -1: some are in a step that does not end; the calls of their models have their lines in the audit log, and nothing is freed. */
int models_halt(struct server *s);
void models_leave(struct server *s);                            /* after models_halt: end the calls of those that are open; what is being opened stays */
int models_n(const struct server *s, enum hosted_state state);
char *models_default_id(const char *path);                      /* "tiny" of "models/tiny.zse"; malloc'd */
void model_json(const struct hosted *h, struct buf *out);       /* an element of /v1/models */

/* A model that left because another one needed its memory, or because its file was written to. */
struct evicted {
    struct evicted *next;
    char *id, *path;                    /* owned */
    int changed;                        /* its file was written to */
    int failures; uint64_t failed_ns;   /* to load it again, one after the other; the last one */
};

/* ---- the server ---- */

struct server {
    struct server_options o;
    const char *admin_token;            /* borrowed; NULL: there is none */
    struct loop *loop;
    int port, draining, failed;
    atomic_int n_stuck;                 /* engines whose step has not ended when they were closed: they stay as they are */
    atomic_int audit_finished;
    uint64_t start_ns, drain_by_ns;
    int64_t started;
    struct rng ids;
    struct err error;                   /* of server_run */
    /* models */
    struct hosted *models;
    struct evicted *evicted;
    struct opening *opening;
    /* bodies on their way through the preparing thread */
    struct preparing *preparing;
    struct metrics metrics;
    struct guard guard;
    struct account *account;            /* memory of requests */
    unsigned long long cpu_total, cpu_idle;     /* of /proc/stat, when it was last read */
    struct nvml *nvml; char no_nvml[160];       /* NULL: nobody has asked yet, or why it is not there */
    uint64_t ws_stats_ns;
    struct watch watch;
    char *openapi;                      /* what /openapi.json answers, once it was asked for; NULL: not yet */
};

/* No new clients; calls that run get so many seconds. */
void server_stop(struct server *s, double drain_s);
void server_log(struct server *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void server_warn(struct server *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));       /* also where log is not wanted */
/* "PREFIX" and 24 hexadecimal digits. */
void server_id(struct server *s, const char *prefix, char out[48]);

/* Answers; each is counted for its route. */
void reply_json(struct server *s, struct conn *c, int status, const struct buf *json);
void reply_problem(struct server *s, struct conn *c, const struct problem *p);
void reply_object(struct server *s, struct conn *c, int status, json_t *json);     /* takes the reference */
void reply_refusal(struct server *s, struct conn *c, int status, const char *code, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* The body as an object, NULL after a 400 was sent. New reference. */
json_t *read_body(struct server *s, struct conn *c, enum body_kind kind, struct params *p);
/* Do requests of a listener (local: loopback or a Unix socket) come from other machines, directly or through a trusted proxy? */
int server_is_reachable(const struct server *s, int local_listener);
const char *client_address(const struct server *s, const struct conn *c, char out[64]);

/* ---- routes.c ---- */

/* What a key must be for where keys are required (ACCESS_KEY: any); administration always needs one, or the administrator's token. */
enum access { ACCESS_PUBLIC, ACCESS_KEY, ACCESS_CHAT, ACCESS_EMBED, ACCESS_READ, ACCESS_ADMIN };
enum route_kind { ROUTE_PLAIN, ROUTE_PREFIX, ROUTE_WEBSOCKET };         /* ROUTE_PREFIX: what follows the path is an id */

struct route {
    const char *method, *path;
    enum route_kind kind;
    enum access access;
    void (*handle)(struct server *s, struct conn *c, const char *rest);
    unsigned body;                      /* enum body_kind; 0: none */
    const char *about, *answer;         /* for /openapi.json: one line; media type and what it is */
};
extern const struct route routes[];
extern const int n_routes;
/* Will this request, of which there is only the head, need its body?  Not if it is going to be refused. */
int routes_wants_body(struct server *s, struct conn *c, uint64_t *owner);
void routes_request(struct server *s, struct conn *c);
int conn_route(const struct conn *c);           /* index in routes, -1 */
int route_of(void (*handle)(struct server *s, struct conn *c, const char *rest));

/* handlers */
void handle_chat(struct server *s, struct conn *c, const char *rest);
void handle_responses(struct server *s, struct conn *c, const char *rest);
void handle_messages(struct server *s, struct conn *c, const char *rest);
void handle_count_tokens(struct server *s, struct conn *c, const char *rest);
void handle_completions(struct server *s, struct conn *c, const char *rest);
void handle_embeddings(struct server *s, struct conn *c, const char *rest);
void handle_models(struct server *s, struct conn *c, const char *rest);
void handle_model(struct server *s, struct conn *c, const char *rest);
void handle_tokenize(struct server *s, struct conn *c, const char *rest);
void handle_detokenize(struct server *s, struct conn *c, const char *rest);
void handle_template(struct server *s, struct conn *c, const char *rest);
void handle_health(struct server *s, struct conn *c, const char *rest);
void handle_root(struct server *s, struct conn *c, const char *rest);
void handle_dashboard(struct server *s, struct conn *c, const char *rest);
void handle_load(struct server *s, struct conn *c, const char *rest);
void handle_unload(struct server *s, struct conn *c, const char *rest);
void handle_stats(struct server *s, struct conn *c, const char *rest);
void handle_stats_models(struct server *s, struct conn *c, const char *rest);
void handle_stats_gpu(struct server *s, struct conn *c, const char *rest);
void handle_analytics(struct server *s, struct conn *c, const char *rest);
void handle_timeseries(struct server *s, struct conn *c, const char *rest);
void handle_requests(struct server *s, struct conn *c, const char *rest);
void handle_batching(struct server *s, struct conn *c, const char *rest);
void handle_batching_set(struct server *s, struct conn *c, const char *rest);
void handle_batching_enable(struct server *s, struct conn *c, const char *rest);
void handle_batching_disable(struct server *s, struct conn *c, const char *rest);
void handle_metrics(struct server *s, struct conn *c, const char *rest);
void handle_openapi(struct server *s, struct conn *c, const char *rest);
void handle_ws_chat(struct server *s, struct conn *c, const char *rest);
void handle_ws_stats(struct server *s, struct conn *c, const char *rest);
void handle_keys(struct server *s, struct conn *c, const char *rest);
void handle_key_create(struct server *s, struct conn *c, const char *rest);
void handle_key_delete(struct server *s, struct conn *c, const char *rest);
void handle_keys_required(struct server *s, struct conn *c, const char *rest);
void handle_audit_summary(struct server *s, struct conn *c, const char *rest);
void handle_audit_recent(struct server *s, struct conn *c, const char *rest);
void handle_audit_query(struct server *s, struct conn *c, const char *rest);
void handle_audit_stats(struct server *s, struct conn *c, const char *rest);
void handle_audit_clear(struct server *s, struct conn *c, const char *rest);
json_t *stats_object(struct server *s);
json_t *analytics_object(struct server *s);
void ws_chat_message(struct server *s, struct conn *c, const char *text, size_t size);
void ws_stats_tick(struct server *s);
enum { WS_TAG_CHAT = 1, WS_TAG_STATS = 2 };
void page_reply(struct server *s, struct conn *c);

#endif
