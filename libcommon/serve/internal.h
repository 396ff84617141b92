/* internal.h - the state of the server.  It belongs to the loop's thread, except where a comment
 * says otherwise. */
#ifndef ZSE_SERVE_INTERNAL_H
#define ZSE_SERVE_INTERNAL_H

#include <stdatomic.h>

#include "libcommon/base/rng.h"
#include "libcommon/http/account.h"
#include "libcommon/http/conn.h"
#include "libcommon/serve/evicted.h"
#include "libcommon/serve/guard.h"
#include "libcommon/serve/metrics.h"
#include "libcommon/serve/models.h"
#include "libcommon/serve/named.h"
#include "libcommon/serve/reply.h"
#include "libcommon/serve/response_store.h"
#include "libcommon/serve/routes.h"
#include "libcommon/serve/server.h"
#include "libcommon/serve/watch.h"

struct server {
    struct server_options o;
    const char *admin_token;            /* borrowed; NULL: none */
    struct loop *loop;
    int port, draining, failed;
    int was_ready;                      /* the first SERVER_LOADING is over */
    /* engines that could not be closed because their step does not end; any thread */
    atomic_int n_stuck;
    atomic_int audit_finished;          /* any thread */
    uint64_t start_ns, drain_by_ns;
    int64_t started;
    struct rng ids;
    struct err error;                   /* result of server_run */
    /* models */
    struct loaded_model *models;
    struct evicted *evicted;
    struct load_cost load_costs[LOAD_TENANTS];  /* load_costs, uses and sizes belong to named.c */
    struct model_use uses[USES];
    struct model_size sizes[SIZES]; int next_size;
    struct opening *opening;            /* the thread of model_tasks.c */
    struct kv_events *kv_events;        /* NULL: none */
    struct kv_source *kv_source;        /* of the model that sends events now; NULL: none */
    struct toolbox *toolbox;            /* tools that the server runs: tools/toolbox.h */
    struct call *waiting;               /* calls whose model is loading, by next_preparing: api/calls.c */
    struct preparing *preparing;        /* the preparing threads: api/call_prepare.c */
    /* admin/sleep.c.  level 0: awake; changing: models are being closed or loaded; tags: those of
     * /wake_up so far; waiter: the client that waits for the change, NULL: none; models: ids and
     * files of those that were closed, owned */
    struct { int level, changing; unsigned tags; struct conn *waiter; json_t *models; } sleep;
    int no_batching;                    /* models that load begin with one request at a time */
    json_t *batching;                   /* settings of admin/batching.c by the ids of models, owned; NULL: none */
    struct response_store *responses;   /* response_store.h */
    struct chats *chats;                /* threads of the chat history; NULL: --no-history */
    struct metrics metrics;
    struct guard guard;
    struct catalog_question *questions; /* questions to the registry and the hub: admin/catalog.c */
    json_t *registry;                   /* models of the registry, owned; NULL: not computed yet */
    struct jobs *jobs;                  /* downloads and conversions; NULL: o.maker has no command */
    struct rag_service *rag;            /* documents: rag/service.c */
    struct account *account;            /* memory of requests */
    unsigned long long cpu_total, cpu_idle;     /* jiffies of /proc/stat, as last read */
    struct nvml *nvml; char no_nvml[160];       /* NULL: not loaded yet, or no_nvml gives the reason */
    uint64_t ws_stats_ns;               /* when /ws/stats was last sent */
    struct memory_watch watch;
    char *openapi;                      /* response of /openapi.json, owned; NULL: not made yet */
};

/* Accept no new clients; running calls may continue for drain_s. */
void server_stop(struct server *s, double drain_s);
void server_log(struct server *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* write a message to o.warn, which is never suppressed */
void server_warn(struct server *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Add n to the number of files that are being written to the disk and closed; any thread. */
void server_syncs(const struct server *s, int n);
/* Write "PREFIX" and 24 hexadecimal digits. */
void server_id(struct server *s, const char *prefix, char out[48]);

#endif
