/* http.h - a parser of HTTP/1.1 requests (RFC 9112): bytes in, complete requests out.  It uses no
 * sockets, so that it can be fuzzed.
 *
 * The parser is strict wherever leniency would help request smuggling: lines end with CR LF, no
 * blank before a colon, no folded lines, one Host, one length of the body.  A refusal has an HTTP
 * status and a sentence. */
#ifndef ZSE_HTTP_HTTP_H
#define ZSE_HTTP_HTTP_H

#include <stddef.h>

#include "libcommon/http/buf.h"

enum { HTTP_MAX_FIELDS = 100 };

struct http_limits {
    size_t head_bytes;          /* request line and header fields, together */
    size_t body_bytes;
    /* http_parse returns HTTP_BODY_FOLLOWS before the first byte of a body, so that the caller can
     * set drop_body */
    int ask;
};

struct http_request {
    char *head;                 /* owned: method, target and fields point into it */
    const char *method, *path;  /* path: percent-decoded, without the query, always begins with '/' (or is "*") */
    const char *query;          /* the query as sent; "": none */
    const char *authority;      /* authority of a target http://authority/path, equal to the Host header; else NULL */
    const char *default_port;   /* default port of that scheme: ":80" or ":443" */
    int minor;                  /* HTTP/1.minor: 0 or 1 */
    struct http_field { const char *name, *value; } field[HTTP_MAX_FIELDS];
    int n_fields;
    struct buf body;            /* if size > 0, a '\0' follows, not counted */
    int keep_alive, expects_continue;
};

struct http_parser {
    enum { HTTP_HEAD, HTTP_BODY, HTTP_CHUNK_SIZE, HTTP_CHUNK, HTTP_CHUNK_END, HTTP_TRAILER, HTTP_COMPLETE } state;
    size_t scanned;             /* bytes of the input searched so far without finding the end of the head */
    size_t left;                /* bytes still to come of the body or of the chunk */
    size_t body_bytes;          /* bytes of the body so far, kept or dropped */
    /* asked: HTTP_BODY_FOLLOWS was returned; drop_body: count and check the body, but do not keep
     * it */
    int asked, drop_body;
    size_t trailer;             /* size of the trailers so far */
    struct http_request *req;   /* owned; NULL until a head is complete */
    int status;                 /* status of a refusal */
    char why[200];
};

enum http_answer { HTTP_MORE, HTTP_DONE, HTTP_REFUSED, HTTP_BODY_FOLLOWS };

/* Take the bytes of this request from the front of `in`.
 *   HTTP_MORE          more bytes are needed
 *   HTTP_DONE          p->req is whole; the rest of `in` belongs to the next request
 *   HTTP_REFUSED       see p->status and p->why; the connection cannot continue
 *   HTTP_BODY_FOLLOWS  with l->ask, once for each request with a body: p->req has its head; call
 *   again */
enum http_answer http_parse(struct http_parser *p, struct buf *in, const struct http_limits *l);
/* Forget the request, ready for the next. */
void http_reset(struct http_parser *p);
/* The value of a header field; NULL: none.  The case of name does not matter. */
const char *http_field(const struct http_request *r, const char *name);
/* Is `token` (lower case) an element of the comma-separated list? */
int http_has_token(const char *list, const char *token);
/* The value of a key in the query, percent-decoded, in out; NULL: it is missing or does not fit. */
const char *http_query(const struct http_request *r, const char *key, char *out, size_t room);
int http_query_has(const struct http_request *r, const char *key); /* whether the query has the key, with any value */
const char *http_reason(int status);            /* "Not Found" */

#endif
