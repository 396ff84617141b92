/* access_record.c - keep a record of each request and write its line of the audit log. */
#include "libcommon/serve/access_record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "libcommon/access/audit_line.h"
#include "libcommon/base/clock.h"
#include "libcommon/serve/internal.h"

static void uuid(char out[37])
{
    uint8_t b[16] = { 0 };
    ssize_t n = getrandom(b, sizeof b, 0);
    (void)n;
    b[6] = (uint8_t)((b[6] & 0x0f) | 0x40);             /* RFC 9562, version 4 */
    b[8] = (uint8_t)((b[8] & 0x3f) | 0x80);
    for (int i = 0, at = 0; i < 16; i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            out[at++] = '-';
        at += sprintf(out + at, "%02x", b[i]);
    }
}

/* Take the client's request id if it may stand in a header and in the log; otherwise make a new
 * one. */
static void choose_id(const struct http_request *r, char out[REQUEST_ID + 1])
{
    static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:-";
    const char *given = r && r->method ? http_field(r, "X-Request-Id") : NULL;
    const size_t n = given ? strlen(given) : 0;
    if (n && n <= REQUEST_ID_GIVEN && strspn(given, allowed) == n && !audit_has_key(given))
        memcpy(out, given, n + 1);
    else
        uuid(out);
}

static char *copy(const char *s) { return s ? strdup(s) : NULL; }

static struct access_record *record_new(struct server *s, struct conn *c)
{
    const struct http_request *r = conn_request(c);
    struct access_record *record = calloc(1, sizeof *record);
    struct timespec now;
    char address[64];
    if (!record)
        return NULL;
    clock_gettime(CLOCK_REALTIME, &now);
    record->at_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
    record->start_ns = clock_ns();
    choose_id(r, record->id);
    snprintf(record->client, sizeof record->client, "%s", client_address(s, c, address));
    if (r && r->method) {
        record->method = copy(r->method);
        record->path = copy(r->path);
        record->agent = copy(http_field(r, "User-Agent"));
    }
    return record;
}

struct access_record *record_message(struct server *s, struct conn *c, struct access_record *from)
{
    struct access_record *record = record_new(s, c);
    if (!record)
        return NULL;
    snprintf(record->id, sizeof record->id, "%.*s/%u", REQUEST_ID_GIVEN, from->id, ++from->n_messages);
    snprintf(record->client, sizeof record->client, "%s", from->client);
    record->of_message = 1;
    record->route = from->route;
    record->method = copy("WS");
    record->path = copy(from->path);
    record->agent = copy(from->agent);
    record->is_admin = from->is_admin;
    record->by_key = from->by_key;
    record->key = from->key;
    return record;
}

void record_begin(struct server *s, struct conn *c)
{
    struct access_record *record = record_new(s, c);
    char id[REQUEST_ID + 1];
    /* without memory there is no record, but the response still gets an id */
    if (!record)
        choose_id(conn_request(c), id);
    conn_add_header(c, "X-Request-Id", record ? record->id : id);
    conn_set_record(c, record);
}

static void record_free(struct access_record *record)
{
    free(record->method);
    free(record->path);
    free(record->agent);
    free(record->model);
    free(record->error);
    free(record->prompt);
    free(record);
}

void record_error(struct access_record *record, const struct problem *p)
{
    char text[sizeof p->code + sizeof p->param + 2];
    if (!record || record->error)
        return;
    /* the name of an unknown parameter is the client's text, which is not logged */
    const int named = p->param[0] && strcmp(p->code, "unknown_parameter") != 0;
    snprintf(text, sizeof text, "%s%s%s", p->code, p->code[0] && named ? ": " : "", named ? p->param : "");
    record->error = strdup(p->status == 400 && text[0] ? text : p->message);
}

void record_model(struct access_record *record, const char *model)
{
    if (record && !record->model)
        record->model = strdup(model);
}

void record_prompt(const struct server *s, struct access_record *record, const char *text, size_t size)
{
    if (!record || !text || record->prompt || !s->o.audit_prompts)
        return;
    if (size <= PROMPT_LOGGED)
        record->prompt = strndup(text, size);
    else if (asprintf(&record->prompt, "%.*s...[%zu bytes]", PROMPT_LOGGED, text, size) < 0)
        record->prompt = NULL;
}

/* Paths whose successes are not logged: they reveal nothing, and there are many of them. */
static int is_quiet(const char *path)
{
    return strcmp(path, "/health") == 0 || strcmp(path, "/livez") == 0 || strcmp(path, "/openapi.json") == 0 ||
           strncmp(path, "/web/", 5) == 0;
}

/* Copy text of a client without API keys, with '?' for characters other than `least` to '~'. */
static const char *plain(char *out, size_t size, const char *text, char least)
{
    audit_copy(out, size, text);
    for (char *c = out; *c; c++)
        *c = *c >= least && *c <= '~' ? *c : '?';
    return out;
}

/* --log-requests: report a request that has ended.  The path has no spaces, so that it cannot look
 * like the fields after it. */
static void report(struct server *s, const struct access_record *r, int status, int prompt_tokens,
                   int completion_tokens)
{
    char method[24], path[208], model[88], error[88], tokens[48] = "";
    if (prompt_tokens >= 0 && completion_tokens >= 0)
        snprintf(tokens, sizeof tokens, ", %d + %d tokens", prompt_tokens, completion_tokens);
    server_warn(s, "%s %s %s: %d, %.1f ms%s%s%s%s%s", r->client,
                plain(method, sizeof method, r->method ? r->method : "-", '!'),
                plain(path, sizeof path, r->path ? r->path : "-", '!'), status,
                (double)(clock_ns() - r->start_ns) * 1e-6, r->model ? ", " : "",
                plain(model, sizeof model, r->model, '!'), tokens, r->error ? ", " : "",
                plain(error, sizeof error, r->error, ' '));
}

void record_end(struct server *s, struct access_record *record, int status, int prompt_tokens, int completion_tokens)
{
    struct guard *g = &s->guard;
    if (!record)
        return;
    if (record->kept) {
        record_free(record);
        return;
    }
    if (record->of_message)
        metrics_count(&s->metrics, record->route, status);
    if (record->has_key && g->usage)
        usage_settle(g->usage, record->key.id, record->reserved,
                     (int64_t)prompt_tokens + completion_tokens - record->settled);
    const int quiet = record->path && status < 400 && is_quiet(record->path);
    if (s->o.log_requests && !quiet)
        report(s, record, status, prompt_tokens, completion_tokens);
    if (g->audit && !quiet) {
        const struct audit_entry x = { .time_ms = record->at_ms, .request_id = record->id, .method = record->method,
                                       .path = record->path,
                                       .status = status,
                                       .latency_ms = (double)(clock_ns() - record->start_ns) * 1e-6,
                                       .key_name = record->has_key
                                       ? record->key.name : record->is_admin ? "(admin.token)" : NULL,
                                       .client_ip = record->client,
                                       .user_agent = record->agent, .model = record->model,
                                       .prompt_tokens = prompt_tokens,
                                       .completion_tokens = completion_tokens,
                                       .error = record->error, .prompt = record->prompt };
        audit_log_add(g->audit, &x, record->is_admin || record->by_key, record->admitted);
    }
    if (status == 101)
        record->kept = 1;
    else
        record_free(record);
}
