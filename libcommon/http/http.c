/* http.c - parse request lines, header fields, bodies and chunks. */
#include "libcommon/http/http.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_CHUNK_LINE = 256, MAX_TRAILER = 4096 };

static enum http_answer refuse(struct http_parser *p, int status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static enum http_answer refuse(struct http_parser *p, int status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->why, sizeof p->why, fmt, ap);
    va_end(ap);
    p->status = status;
    return HTTP_REFUSED;
}

static int is_token_char(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static int is_token(const char *s)
{
    const char *at = s;
    while (is_token_char((unsigned char)*at))
        at++;
    return at > s && !*at;
}

static int has_control(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (((unsigned char)s[i] < ' ' && s[i] != '\t') || s[i] == 0x7f)
            return 1;
    return 0;
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' &&
           c <= 'F' ? c - 'A' + 10 : -1;
}

/* Percent-decode s [n] into out (which may be s), '\0'-terminated.  -1: a malformed escape, or
 * %00. */
static int decode(const char *s, size_t n, char *out, int plus)
{
    for (size_t i = 0; i < n; i++) {
        int c = (unsigned char)s[i];
        if (c == '%') {
            int hi = n - i > 2 ? hex_digit(s[i + 1]) : -1, lo = n - i > 2 ? hex_digit(s[i + 2]) : -1;
            if (hi < 0 || lo < 0 || (c = hi << 4 | lo) == 0)
                return -1;
            i += 2;
        } else if (c == '+' && plus) {
            c = ' ';
        }
        *out++ = (char)c;
    }
    *out = '\0';
    return 0;
}

const char *http_field(const struct http_request *r, const char *name)
{
    for (int i = 0; i < r->n_fields; i++)
        if (strcasecmp(r->field[i].name, name) == 0)
            return r->field[i].value;
    return NULL;
}

int http_has_token(const char *list, const char *token)
{
    size_t n = strlen(token);
    while (list && *list) {
        list += strspn(list, " \t,");
        size_t size = strcspn(list, " \t,;");
        if (size == n && strncasecmp(list, token, n) == 0)
            return 1;
        list += strcspn(list, ",");
    }
    return 0;
}

const char *http_query(const struct http_request *r, const char *key, char *out, size_t room)
{
    size_t n = strlen(key);
    for (const char *at = r->query; *at;) {
        size_t size = strcspn(at, "&");
        if (size > n && at[n] == '=' && strncmp(at, key, n) == 0)
            return size - n - 1 < room && decode(at + n + 1, size - n - 1, out, 1) == 0 ? out : NULL;
        at += size;
        at += *at == '&';
    }
    return NULL;
}

int http_query_has(const struct http_request *r, const char *key)
{
    const size_t n = strlen(key);
    for (const char *at = r->query; *at;) {
        const size_t size = strcspn(at, "&");
        if (size > n && at[n] == '=' && strncmp(at, key, n) == 0)
            return 1;
        at += size;
        at += *at == '&';
    }
    return 0;
}

/* method SP target SP HTTP/1.x */
static enum http_answer request_line(struct http_parser *p, struct http_request *r, char *line)
{
    char *target = strchr(line, ' '), *version = target ? strchr(target + 1, ' ') : NULL;
    if (!version)
        return refuse(p, 400, "the request line does not have the form METHOD TARGET VERSION");
    *target++ = '\0';
    *version++ = '\0';
    if (!is_token(line) || strlen(line) > 32)
        return refuse(p, 400, "the request line does not begin with a method");
    if (strncmp(version, "HTTP/1.", 7) != 0 || (strcmp(version + 7, "0") != 0 && strcmp(version + 7, "1") != 0))
        return refuse(p, strncmp(version, "HTTP/", 5) == 0 ? 505 : 400, "the version is not HTTP/1.0 or HTTP/1.1");
    r->minor = version[7] - '0';
    r->method = line;
    for (const char *c = target; *c; c++)
        if ((unsigned char)*c <= ' ' || *c == 0x7f)
            return refuse(p, 400, "the target has a control character");
    /* the form of requests to a proxy */
    if (strncasecmp(target, "http://", 7) == 0 || strncasecmp(target, "https://", 8) == 0) {
        char *host = strchr(target, ':') + 3;
        r->default_port = host - target == 7 ? ":80" : ":443";
        const size_t n = strcspn(host, "/?");
        /* move the host one byte to the left, over a slash, to make space for its '\0' */
        r->authority = memmove(host - 1, host, n);
        target = host + n;
        (host - 1)[n] = '\0';
    }
    char *query = strchr(target, '?');
    if (query)
        *query++ = '\0';
    r->query = query ? query : target + strlen(target);
    if (decode(target, strlen(target), target, 0) != 0)
        return refuse(p, 400, "the target has a bad %%-escape");
    r->path = *target ? target : "/";
    if (*r->path != '/' && strcmp(r->path, "*") != 0)
        return refuse(p, 400, "the target is not a path");
    return HTTP_MORE;
}

static enum http_answer field_line(struct http_parser *p, struct http_request *r, char *line)
{
    char *colon = strchr(line, ':');
    if (!colon)
        return refuse(p, 400, "a header line without a colon");
    *colon = '\0';
    if (!is_token(line))
        return refuse(p, 400, "a header name is not a token");
    char *value = colon + 1 + strspn(colon + 1, " \t"), *end = value + strlen(value);
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        *--end = '\0';
    if (has_control(value, strlen(value)))
        return refuse(p, 400, "header %.40s has a control character", line);
    if (r->n_fields == HTTP_MAX_FIELDS)
        return refuse(p, 431, "more than %d header fields", HTTP_MAX_FIELDS);
    r->field[r->n_fields++] = (struct http_field){ line, value };
    return HTTP_MORE;
}

/* The value of a field that may occur only once; NULL: there is none.  *twice is set to 1 if it
 * occurs more often. */
static const char *once(const struct http_request *r, const char *name, int *twice)
{
    const char *value = NULL;
    *twice = 0;
    for (int i = 0; i < r->n_fields; i++)
        if (strcasecmp(r->field[i].name, name) == 0) {
            *twice |= value != NULL;
            value = r->field[i].value;
        }
    return value;
}

/* Compare two hosts, without regard to the default port of the scheme. */
static int same_host(const char *a, const char *b, const char *port)
{
    size_t n[2] = { strlen(a), strlen(b) };
    const char *const text[2] = { a, b };
    const size_t k = strlen(port);
    for (int i = 0; i < 2; i++)
        if (n[i] > k && strcmp(text[i] + n[i] - k, port) == 0)
            n[i] -= k;
    return n[0] == n[1] && strncasecmp(a, b, n[0]) == 0;
}

static enum http_answer body_length(struct http_parser *p, struct http_request *r, const struct http_limits *l)
{
    int twice_cl, twice_te, twice_host;
    const char *length = once(r, "Content-Length", &twice_cl), *coding = once(r, "Transfer-Encoding", &twice_te);
    const char *host = once(r, "Host", &twice_host), *expect = http_field(r, "Expect"),
               *encoding = http_field(r, "Content-Encoding");
    if (twice_host || (!host && r->minor == 1))
        return refuse(p, 400, "expected exactly one Host header");
    if (r->authority && host && !same_host(r->authority, host, r->default_port))
        return refuse(p, 400, "the target names the host '%.80s', the Host header '%.80s'", r->authority, host);
    if (twice_cl || twice_te || (length && coding))
        return refuse(p, 400, "Content-Length and Transfer-Encoding: one of them, once");
    if (encoding && strcasecmp(encoding, "identity") != 0)
        return refuse(p, 415, "Content-Encoding '%.40s': expected a body without encoding", encoding);
    if (expect && strcasecmp(expect, "100-continue") != 0)
        return refuse(p, 417, "Expect: '%.40s', expected 100-continue", expect);
    const char *connection = http_field(r, "Connection");
    r->keep_alive = r->minor == 1 ? !http_has_token(connection, "close") : http_has_token(connection, "keep-alive");
    r->expects_continue = expect != NULL && r->minor == 1;
    if (coding) {
        if (strcasecmp(coding, "chunked") != 0 || r->minor == 0)
            return refuse(p, 501, "Transfer-Encoding '%.40s', expected chunked", coding);
        p->state = HTTP_CHUNK_SIZE;
        return HTTP_MORE;
    }
    p->left = 0;
    if (length) {
        size_t digits = strspn(length, "0123456789");
        if (!digits || length[digits])
            return refuse(p, 400, "Content-Length '%.40s' is not a number", length);
        if (digits > 18 || (size_t)strtoull(length, NULL, 10) > l->body_bytes)
            return refuse(p, 413, "a body of %.40s bytes, expected at most %zu", length, l->body_bytes);
        p->left = (size_t)strtoull(length, NULL, 10);
    }
    p->state = p->left ? HTTP_BODY : HTTP_COMPLETE;
    return HTTP_MORE;
}

/* Consume n bytes.  http_parse removes all consumed bytes from the buffer once, at its end, so that
 * many small chunks do not move the rest of the buffer each time. */
static void skip(struct buf *left, size_t n)
{
    left->data += n;
    left->size -= n;
}

static enum http_answer parse_head(struct http_parser *p, struct buf *in, size_t size, const struct http_limits *l)
{
    struct http_request *r = p->req = calloc(1, sizeof *r);
    if (!r || !(r->head = malloc(size + 1)))
        return refuse(p, 503, "out of memory");
    memcpy(r->head, in->data, size);
    r->head[size] = '\0';
    if (strlen(r->head) != size)
        return refuse(p, 400, "the head has a zero byte");
    skip(in, size);
    char *line = r->head, *end;
    int first = 1;
    while ((end = strstr(line, "\r\n")) && end != line) {
        *end = '\0';
        if (strpbrk(line, "\r\n"))
            return refuse(p, 400, "a line does not end with CR LF");
        enum http_answer a = first ? request_line(p, r, line) : field_line(p, r, line);
        if (a != HTTP_MORE)
            return a;
        first = 0;
        line = end + 2;
    }
    return body_length(p, r, l);
}

/* Bytes of the head with its blank line; 0: not complete yet. */
static size_t head_end(struct http_parser *p, const struct buf *in)
{
    size_t from = p->scanned > 3 ? p->scanned - 3 : 0;
    const char *end = in->size > from ? memmem(in->data + from, in->size - from, "\r\n\r\n", 4) : NULL;
    p->scanned = in->size;
    return end ? (size_t)(end - in->data) + 4 : 0;
}

static enum http_answer on_head(struct http_parser *p, struct buf *in, const struct http_limits *l)
{
    size_t blank = 0, n;
    /* RFC 9112, 2.2: some clients send an empty line after a body */
    while (in->size - blank >= 2 && memcmp(in->data + blank, "\r\n", 2) == 0)
        blank += 2;
    if (blank) {
        skip(in, blank);
        p->scanned = 0;
    }
    if ((n = head_end(p, in)) == 0 || n > l->head_bytes) {
        if (n || in->size > l->head_bytes)
            return refuse(p, 431, "the head has more than %zu bytes", l->head_bytes);
        const char *nl = in->size ? memchr(in->data, '\n', in->size) : NULL;
        if (nl && (nl == in->data || nl[-1] != '\r'))
            return refuse(p, 400, "a line does not end with CR LF");
        return HTTP_MORE;
    }
    return parse_head(p, in, n, l);
}

/* Move up to p->left bytes of the body. */
static enum http_answer take_body(struct http_parser *p, struct buf *in)
{
    struct buf *body = &p->req->body;
    size_t n = in->size < p->left ? in->size : p->left;
    if (n == 0)
        return HTTP_MORE;
    if (!p->drop_body) {
        if (!buf_reserve(body, n + 1))
            return refuse(p, 503, "out of memory");
        buf_add(body, in->data, n);
        body->data[body->size] = '\0';
    }
    skip(in, n);
    p->left -= n;
    p->body_bytes += n;
    return HTTP_MORE;
}

/* The length of the line at the front of in, without CR LF; -1: not complete yet; -2: more than max
 * bytes. */
static long line_at_front(const struct buf *in, size_t max)
{
    const char *end = in->size ? memmem(in->data, in->size, "\r\n", 2) : NULL;
    if (!end)
        return in->size > max ? -2 : -1;
    return (size_t)(end - in->data) > max ? -2 : (long)(end - in->data);
}

/* Is this empty or a chunk extension?  It must not contain a bare LF: a less strict proxy would
 * treat it as the end of the line and see other requests than this parser. */
static int is_extension(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && (s[i] == ' ' || s[i] == '\t'))
        i++;
    return i == n || (s[i] == ';' && !has_control(s + i, n - i));
}

static int is_trailer(const char *s, size_t n)
{
    size_t i = 0;
    while (i < n && is_token_char((unsigned char)s[i]))
        i++;
    return i > 0 && i < n && s[i] == ':' && !has_control(s + i, n - i);
}

static enum http_answer on_chunk_size(struct http_parser *p, struct buf *in, const struct http_limits *l)
{
    long n = line_at_front(in, MAX_CHUNK_LINE);
    uint64_t size = 0;
    int i = 0;
    if (n == -1)
        return HTTP_MORE;
    for (; i < n && hex_digit(in->data[i]) >= 0 && i < 16; i++)
        size = size << 4 | (uint64_t)hex_digit(in->data[i]);
    if (n < 0 || i == 0 || !is_extension(in->data + i, (size_t)(n - i)))
        return refuse(p, 400, "a chunk does not begin with its size");
    if (size > l->body_bytes || p->body_bytes + size > l->body_bytes)
        return refuse(p, 413, "a body of more than %zu bytes", l->body_bytes);
    skip(in, (size_t)n + 2);
    p->left = (size_t)size;
    p->state = size ? HTTP_CHUNK : HTTP_TRAILER;
    return HTTP_MORE;
}

static enum http_answer on_chunk_end(struct http_parser *p, struct buf *in)
{
    if (in->size < 2)
        return HTTP_MORE;
    if (memcmp(in->data, "\r\n", 2) != 0)
        return refuse(p, 400, "a chunk is longer than its size");
    skip(in, 2);
    p->state = HTTP_CHUNK_SIZE;
    return HTTP_MORE;
}

static enum http_answer on_trailer(struct http_parser *p, struct buf *in)
{
    long n = line_at_front(in, MAX_TRAILER);
    if (n == -1)
        return HTTP_MORE;
    if (n < 0 || (p->trailer += (size_t)n + 2) > MAX_TRAILER)
        return refuse(p, 431, "the trailers have more than %d bytes", MAX_TRAILER);
    if (n > 0 && !is_trailer(in->data, (size_t)n))
        return refuse(p, 400, "a trailer is no header line");
    skip(in, (size_t)n + 2);
    if (n == 0)
        p->state = HTTP_COMPLETE;
    return HTTP_MORE;
}

static enum http_answer parse(struct http_parser *p, struct buf *in, const struct http_limits *l)
{
    for (;;) {
        int before = p->state;
        size_t size = in->size;
        enum http_answer a = HTTP_MORE;
        switch (p->state) {
        case HTTP_HEAD: a = on_head(p, in, l); break;
        case HTTP_BODY: case HTTP_CHUNK:
            a = take_body(p, in);
            if (a == HTTP_MORE && p->left == 0)
                p->state = before == HTTP_BODY ? HTTP_COMPLETE : HTTP_CHUNK_END;
            break;
        case HTTP_CHUNK_SIZE: a = on_chunk_size(p, in, l); break;
        case HTTP_CHUNK_END: a = on_chunk_end(p, in); break;
        case HTTP_TRAILER: a = on_trailer(p, in); break;
        case HTTP_COMPLETE: return HTTP_DONE;
        }
        if (a != HTTP_MORE)
            return a;
        if (l->ask && !p->asked && p->req && p->state != HTTP_COMPLETE) {
            p->asked = 1;
            return HTTP_BODY_FOLLOWS;
        }
        if ((int)p->state == before && in->size == size)
            return HTTP_MORE;
    }
}

enum http_answer http_parse(struct http_parser *p, struct buf *in, const struct http_limits *l)
{
    struct buf left = *in;
    const enum http_answer a = parse(p, &left, l);
    buf_drop(in, in->size - left.size);
    return a;
}

void http_reset(struct http_parser *p)
{
    if (p->req) {
        buf_release(&p->req->body);
        free(p->req->head);
        free(p->req);
    }
    memset(p, 0, sizeof *p);
}

const char *http_reason(int status)
{
    static const struct { int status; const char *reason; } reasons[] = {
        { 101, "Switching Protocols" }, { 200, "OK" }, { 204, "No Content" }, { 302, "Found" }, { 304, "Not Modified" },
            { 400, "Bad Request" },
        { 401, "Unauthorized" }, { 403, "Forbidden" }, { 404, "Not Found" }, { 405, "Method Not Allowed" },
        { 408, "Request Timeout" },
        { 409, "Conflict" }, { 413, "Content Too Large" }, { 415, "Unsupported Media Type" },
        { 417, "Expectation Failed" },
        { 421, "Misdirected Request" }, { 426, "Upgrade Required" }, { 429, "Too Many Requests" },
        { 431, "Request Header Fields Too Large" },
        { 500, "Internal Server Error" }, { 501, "Not Implemented" }, { 503, "Service Unavailable" },
        { 504, "Gateway Timeout" },
        { 505, "HTTP Version Not Supported" },
    };
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status)
            return reasons[i].reason;
    return "Unknown";
}
