/* audit_line.c - write an entry of the audit log as JSON: escaped, bounded, without API keys. */
#include "libcommon/access/audit_line.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/access/audit_files.h"
#include "libcommon/base/utf8.h"

/* Longest text of each field, in bytes as written. */
enum { ID_MAX = 160, METHOD_MAX = 32, PATH_MAX_BYTES = 512, NAME_MAX_BYTES = 256, ADDRESS_MAX = 64, AGENT_MAX = 256,
       ERROR_MAX = 512, PROMPT_MAX = 8192, MARK = 40 };

void line_put(struct audit_text_line *l, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const int n = vsnprintf(l->p + l->n, l->room - l->n, fmt, ap);
    va_end(ap);
    l->n += (size_t)n;
}

/* Length of an API key, or of most of one, at text; 0: there is none.  Clients send keys in paths
 * and other wrong places. */
static size_t key_at(const char *text)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    const size_t n = strncmp(text, "zse-", 4) == 0 ? strspn(text + 4, digits) : 0;
    return n >= 32 ? 4 + n : 0;
}

int audit_has_key(const char *text)
{
    for (const char *p = text; (p = strstr(p, "zse-")); p++)
        if (key_at(p))
            return 1;
    return 0;
}

void audit_copy(char *out, size_t size, const char *text)
{
    static const char hidden[] = "zse-...";
    size_t n = 0;
    for (const char *p = text ? text : ""; *p && n + sizeof hidden < size;) {
        const size_t secret = key_at(p);
        if (secret) {
            memcpy(out + n, hidden, sizeof hidden - 1);
            n += sizeof hidden - 1;
        } else {
            out[n++] = *p;
        }
        p += secret ? secret : 1;
    }
    out[n] = '\0';
}

/* Write the character at text [size] to out, escaped as in the log; returns the number of bytes
 * written. */
static size_t write_character(const char *text, size_t size, int *read, char out[8])
{
    const uint32_t u = utf8_next(text, size, read);
    if (u == '"' || u == '\\')
        return (size_t)sprintf(out, "\\%c", (int)u);
    if (utf8_is_steering(u))
        return (size_t)sprintf(out, "\\u%04x", (unsigned)u & 0xffff);
    return (size_t)utf8_encode(u, out);
}

/* Add "key":"text" with invalid UTF-8 replaced, API keys removed, and at most max bytes of text. */
static void put_text(struct audit_text_line *l, const char *key, const char *text, size_t max)
{
    line_put(l, ",\"%s\":", key);
    if (!text) {
        line_put(l, "null");
        return;
    }
    line_put(l, "\"");
    const size_t begin = l->n, size = strlen(text);
    for (size_t i = 0; i < size;) {
        int read;
        char out[8] = "zse-...";
        const size_t secret = key_at(text + i), n = secret ? 7 : write_character(text + i, size - i, &read, out);
        if (l->n - begin + n > max) {
            line_put(l, "...[%zu bytes]", size);
            break;
        }
        memcpy(l->p + l->n, out, n);
        l->n += n;
        i += secret ? secret : (size_t)read;
    }
    line_put(l, "\"");
}

/* Add "2026-11-21T15:08:46.003Z" and, as a second field, 1795273726.003. */
static void put_time(struct audit_text_line *l, const char *prefix, int64_t ms)
{
    struct tm t;
    char text[32];
    const time_t s = (time_t)(ms / 1000);
    gmtime_r(&s, &t);
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &t);
    line_put(l, "\"%stimestamp\":\"%s.%03dZ\",\"%stimestamp_unix\":%" PRId64 ".%03d", prefix, text, (int)(ms % 1000),
             prefix, ms / 1000, (int)(ms % 1000));
}

void line_time(struct audit_text_line *l, int64_t ms)
{
    line_put(l, "{");
    put_time(l, "", ms);
}

static void put_count(struct audit_text_line *l, const char *key, int64_t n)
{
    if (n < 0)
        line_put(l, ",\"%s\":null", key);
    else
        line_put(l, ",\"%s\":%" PRId64, key, n);
}

static void line_entry(struct audit_text_line *l, const struct audit_entry *x)
{
    const int tokens = x->prompt_tokens >= 0 || x->completion_tokens >= 0;
    line_time(l, x->time_ms);
    put_text(l, "request_id", x->request_id, ID_MAX);
    put_text(l, "method", x->method, METHOD_MAX);
    put_text(l, "path", x->path, PATH_MAX_BYTES);
    line_put(l, ",\"status_code\":%d,\"latency_ms\":%.3f", x->status, x->latency_ms);
    put_text(l, "api_key_name", x->key_name, NAME_MAX_BYTES);
    put_text(l, "client_ip", x->client_ip, ADDRESS_MAX);
    put_text(l, "user_agent", x->user_agent, AGENT_MAX);
    put_text(l, "model_id", x->model, NAME_MAX_BYTES);
    put_count(l, "prompt_tokens", x->prompt_tokens);
    put_count(l, "completion_tokens", x->completion_tokens);
    put_count(l, "total_tokens", tokens ? (x->prompt_tokens > 0 ? x->prompt_tokens : 0) +
              (x->completion_tokens > 0 ? x->completion_tokens : 0) : -1);
    put_text(l, "error_message", x->error, ERROR_MAX);
    if (x->prompt)
        put_text(l, "prompt", x->prompt, PROMPT_MAX);
    if (x->count > 1) {
        line_put(l, ",\"count\":%" PRIu64 ",", x->count);
        put_time(l, "last_", x->last_ms);
        put_text(l, "last_request_id", x->last_id, ID_MAX);
    }
}
_Static_assert(AUDIT_LINE_ROOM > 2 * ID_MAX + METHOD_MAX + PATH_MAX_BYTES + 2 * NAME_MAX_BYTES + ADDRESS_MAX +
               AGENT_MAX + ERROR_MAX + PROMPT_MAX + 10 * MARK + 1024, "a line has room for its fields");

char *audit_line(const struct audit_entry *x, size_t *n)
{
    struct audit_text_line l = { malloc(AUDIT_LINE_ROOM), 0, AUDIT_LINE_ROOM };
    if (!l.p)
        return NULL;
    line_entry(&l, x);
    *n = l.n;
    char *small = realloc(l.p, l.n + AUDIT_CHAIN_TAIL);
    return small ? small : l.p;
}
