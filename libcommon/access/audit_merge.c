/* audit_merge.c - count requests by group. */
#include "libcommon/access/audit_merge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/access/audit_line.h"
#include "libcommon/base/address.h"

/* The last groups are reserved: RESERVED_PATHS to collect all further paths of one address,
 * RESERVED_ADDRESSES to collect all further addresses. */
enum { RESERVED_PATHS = 32, RESERVED_ADDRESSES = 32, PREFIX_MAX = 64 };

struct merge_group {
    uint64_t hash, client_hash;
    struct audit_entry x;                   /* its strings point to the arrays below */
    char path[192], client[64], agent[96], method[24], key[72], model[96], error[128], first_id[160], last_id[160];
    int has_path, has_agent, has_method, has_key, has_model, has_error;
    int path_is_cut;                        /* paths differ: path is their common beginning */
    double latency_sum;
};
struct audit_merge { int n; int own[AUDIT_KINDS]; struct merge_group group[MERGE_GROUPS]; };

struct audit_merge *audit_merge_open(struct err *e)
{
    struct audit_merge *m = calloc(1, sizeof *m);
    if (!m)
        err_nomem(e, "the audit log");
    return m;
}

void audit_merge_close(struct audit_merge *m) { free(m); }

/* ---- which group ---- */

static uint64_t mix(uint64_t h, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)text[i]) * 1099511628211u;      /* FNV-1a */
    return (h ^ 0xff) * 1099511628211u;
}

static uint64_t mix_text(uint64_t h, const char *text) { return text ? mix(h, text, strlen(text)) : mix(h, "\1", 1); }

/* Length of the first two segments of a path: "/v1/chat" of "/v1/chat/completions". */
static size_t prefix(const char *path)
{
    size_t n = 0;
    for (int slashes = 0; path[n] && n < PREFIX_MAX; n++)
        if (path[n] == '/' && ++slashes == 3)
            break;
    return n;
}

/* The hash of a request's group.  paths 0: all paths of the client count together. */
static uint64_t hash_of(const struct audit_entry *x, uint64_t client, int paths)
{
    uint64_t h = 1469598103934665603u ^ client;
    h = paths && x->path ? mix(h, x->path, prefix(x->path)) : mix(h, "\2", 1);
    h = (h ^ (uint64_t)x->status) * 1099511628211u;
    return paths ? mix_text(mix_text(mix_text(h, x->method), x->key_name), x->model) : h;
}

static struct merge_group *find(struct audit_merge *m, uint64_t hash)
{
    for (int i = 0; i < m->n; i++)
        if (m->group[i].hash == hash)
            return &m->group[i];
    return NULL;
}

static int paths_of(const struct audit_merge *m, uint64_t client)
{
    int n = 0;
    for (int i = 0; i < m->n; i++)
        n += m->group[i].client_hash == client;
    return n;
}

/* ---- a group ---- */

static int keep(char *out, size_t size, const char *text)
{
    audit_copy(out, size, text);
    return text != NULL;
}

static struct merge_group *new_group(struct audit_merge *m, uint64_t hash, uint64_t client_hash,
                                     const struct audit_entry *x,
                               const char *client)
{
    struct merge_group *g = &m->group[m->n++];
    *g = (struct merge_group){ .hash = hash, .client_hash = client_hash,
                         .x = { .time_ms = x->time_ms, .status = x->status, .prompt_tokens = -1,
                                .completion_tokens = -1 } };
    g->has_path = keep(g->path, sizeof g->path - 4, x->path);
    g->has_agent = keep(g->agent, sizeof g->agent, x->user_agent);
    g->has_method = keep(g->method, sizeof g->method, x->method);
    g->has_key = keep(g->key, sizeof g->key, x->key_name);
    g->has_model = keep(g->model, sizeof g->model, x->model);
    g->has_error = keep(g->error, sizeof g->error, x->error);
    snprintf(g->client, sizeof g->client, strchr(client, ':') ? "%.48s/64" : "%.48s", client);
    keep(g->first_id, sizeof g->first_id, x->request_id);
    g->path_is_cut = x->path && strlen(x->path) != strlen(g->path);
    return g;
}

/* Drop a field that is not equal in all requests of the group. */
static void keep_same(int *has, const char *kept, size_t size, const char *text)
{
    char now[192];
    audit_copy(now, size < sizeof now ? size : sizeof now, text);
    *has = *has && text && strcmp(kept, now) == 0;
}

/* Reduce the path to the common beginning. */
static void narrow(struct merge_group *g, const char *path)
{
    char now[sizeof g->path];
    size_t n = 0;
    if (!g->has_path || !path) {
        g->has_path = 0;
        return;
    }
    audit_copy(now, sizeof now - 4, path);
    while (g->path[n] && g->path[n] == now[n])
        n++;
    g->path_is_cut |= g->path[n] || now[n] || strlen(now) != strlen(path);
    g->path[n] = '\0';
}

static void count(struct merge_group *g, const struct audit_entry *x)
{
    struct audit_entry *sum = &g->x;
    if (sum->count > 0) {
        narrow(g, x->path);
        keep_same(&g->has_agent, g->agent, sizeof g->agent, x->user_agent);
        keep_same(&g->has_method, g->method, sizeof g->method, x->method);
        keep_same(&g->has_key, g->key, sizeof g->key, x->key_name);
        keep_same(&g->has_model, g->model, sizeof g->model, x->model);
        keep_same(&g->has_error, g->error, sizeof g->error, x->error);
    }
    sum->count++;
    sum->time_ms = x->time_ms < sum->time_ms ? x->time_ms : sum->time_ms;
    sum->last_ms = x->time_ms > sum->last_ms ? x->time_ms : sum->last_ms;
    keep(g->last_id, sizeof g->last_id, x->request_id);
    g->latency_sum += x->latency_ms;
    if (x->prompt_tokens >= 0)
        sum->prompt_tokens = (sum->prompt_tokens < 0 ? 0 : sum->prompt_tokens) + x->prompt_tokens;
    if (x->completion_tokens >= 0)
        sum->completion_tokens = (sum->completion_tokens < 0 ? 0 : sum->completion_tokens) + x->completion_tokens;
}

static void merge(struct audit_merge *m, const struct audit_entry *x)
{
    char network[48];
    const char *client = x->client_ip ? address_counted_as(x->client_ip, network) : "";
    const uint64_t client_hash = mix_text(1469598103934665603u, client);
    const uint64_t exact = hash_of(x, client_hash, 1), of_address = hash_of(x, client_hash, 0),
                   of_all = hash_of(x, 0, 0);
    struct merge_group *g = find(m, exact);
    if (!g && m->n < MERGE_GROUPS - RESERVED_PATHS - RESERVED_ADDRESSES && paths_of(m, client_hash) < MERGE_PATHS)
        g = new_group(m, exact, client_hash, x, client);
    if (!g)
        g = find(m, of_address);
    if (!g && m->n < MERGE_GROUPS - RESERVED_ADDRESSES)
        g = new_group(m, of_address, client_hash, x, client);
    if (!g)
        g = find(m, of_all);
    if (!g && m->n < MERGE_GROUPS)
        g = new_group(m, of_all, 0, x, "(other)");
    count(g ? g : &m->group[MERGE_GROUPS - 1], x);
}

int audit_merge_add(struct audit_merge *m, const struct audit_entry *x, enum audit_kind kind, int own_lines)
{
    if (m->own[kind] < own_lines) {
        m->own[kind]++;
        return 1;
    }
    merge(m, x);
    return 0;
}

void audit_merge_flush(struct audit_merge *m, void (*fn)(void *user, const struct audit_entry *x), void *user)
{
    for (int i = 0; i < m->n; i++) {
        struct merge_group *g = &m->group[i];
        struct audit_entry x = g->x;
        if (g->path_is_cut && g->has_path)
            strcat(g->path, "*");
        x.path = g->has_path ? g->path : NULL;
        x.user_agent = g->has_agent ? g->agent : NULL;
        x.method = g->has_method ? g->method : NULL;
        x.key_name = g->has_key ? g->key : NULL;
        x.model = g->has_model ? g->model : NULL;
        x.error = g->has_error ? g->error : NULL;
        x.client_ip = *g->client ? g->client : NULL;
        x.request_id = *g->first_id ? g->first_id : NULL;
        x.last_id = *g->last_id ? g->last_id : NULL;
        x.latency_ms = g->latency_sum / (double)x.count;
        fn(user, &x);
    }
    m->n = 0;
    memset(m->own, 0, sizeof m->own);
}
