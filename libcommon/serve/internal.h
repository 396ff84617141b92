/* internal.h - the server's own state.  Everything here belongs to the loop's thread unless it
 * says otherwise. */
#ifndef ZSE_SERVE_INTERNAL_H
#define ZSE_SERVE_INTERNAL_H

#include <stdatomic.h>

#include "libcommon/base/rng.h"
#include "libcommon/http/account.h"
#include "libcommon/http/conn.h"
#include "libcommon/serve/guard.h"
#include "libcommon/serve/metrics.h"
#include "libcommon/serve/models.h"
#include "libcommon/serve/reply.h"
#include "libcommon/serve/routes.h"
#include "libcommon/serve/server.h"
#include "libcommon/serve/watch.h"

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
    struct loaded_model *models;
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

#endif
