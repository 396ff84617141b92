/* web.h - HTTP exchanges over several connections at once, with redirects and retries.
 *
 * Redirects are followed here, not in libcurl, to keep one rule: the token is sent to the hub's own
 * origin (scheme, host and port) and nowhere else.  Cut connections, stalls, 408, 429 and 5xx are
 * retried after growing delays (429 and 503: after the time in Retry-After).  When an exchange has
 * received data, its count of retries starts again.  Error messages never show the query of a URL,
 * which may contain a signature. */
#ifndef ZSE_HUB_WEB_H
#define ZSE_HUB_WEB_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/hub/net.h"

/* Headers of the last response.  Strings are empty if a header was absent. */
struct web_answer {
    long status;
    char etag[160], linked_etag[160], commit[80], content_range[80], error[256];
    int64_t linked_size, length, retry_after_s;     /* -1: absent */
    char *location;                                 /* owned; NULL: none */
};

struct web_job {
    char *url;                          /* owned; current address, after redirects */
    const char *origin_url;             /* address for a restart; borrowed */
    const char *what;                   /* for messages: "config.json"; borrowed */
    int head;
    uint64_t from, to;  /* request bytes [from, to); to 0: to the end.  from advances with received data */
    int whole;  /* request the whole file, without Range, each time; body() may set it when the status is 200 */
    /* Called with n bytes at offset `from` (which advances after the call).  Returns 0 to go on; 1
     * if no more bytes are needed (done is called); -1 with *e to end all jobs.  NULL: the body is
     * not needed. */
    int (*body)(struct web_job *j, const void *data, size_t n, struct err *e);
    /* Called on success (for a HEAD also at a redirect to another origin that has X-Linked-Etag).
     * -1 with *e: end all jobs. */
    int (*done)(struct web_job *j, struct err *e);
    /* Called before each attempt; may change url.  Returns 1 if the job is no longer needed, else
     * 0.  May be NULL. */
    int (*before)(struct web_job *j);
    void *user;
    struct web_answer answer;
    /* used by web.c only */
    CURL *easy;
    struct curl_slist *headers;
    struct web *web;
    struct web_job *next;
    int tries, n_redirects, enough, ranged, checked, failed;
    uint64_t due_ns;
    char head_text[512]; size_t head_size, error_size;         /* the beginning of an error's body */
    char curl_error[CURL_ERROR_SIZE];
};

struct web {
    struct net net;
    const char *endpoint, *token, *ca_file, *repo;  /* borrowed; token, ca_file: may be NULL; repo: for messages */
    int n_connections;
    CURLM *multi;
    struct web_job *first, **last;      /* waiting or running */
    int n_active, responded;            /* responded: some response has arrived */
    long refused;                       /* the final 401, 403 or 404; 0: none */
    struct err error;                   /* error of body() or done() */
    /* jobs for which prefer() returns 1 start before the others; may be NULL */
    int (*prefer)(void *user, const struct web_job *j);
    /* Called several times a second; non-zero ends everything with ERR_CANCELLED. */
    int (*tick)(void *user);                        /* may be NULL */
    void *user;
    void (*note)(void *user, const char *text);     /* may be NULL */
    void *note_user;
};
int web_open(struct web *w, struct err *e);         /* set the borrowed fields before */
void web_close(struct web *w);
/* Takes ownership of j (calloc'd, url malloc'd), also on failure. */
int web_add(struct web *w, struct web_job *j, struct err *e);
struct web_job *web_job(const char *url, struct err *e);        /* a new job for url (borrowed) */
/* Run until no job is left. */
int web_run(struct web *w, struct err *e);

/* GET a document of at most max bytes; '\0' is appended.  Caller frees. */
char *web_get(struct web *w, const char *url, const char *what, size_t max, size_t *size, struct err *e);

/* 1 if this line of n bytes is header `name`: out is its value without blanks around it. */
int web_header(const char *line, size_t n, const char *name, char *out, size_t room);
/* Seconds of a Retry-After header, a number or a date (RFC 9110, section 10.2.3); -1: invalid. */
int64_t web_retry_after(const char *text);
/* Is it an http:// address of this machine?  Proxies are not used for it. */
int web_is_here(const char *url);
/* Do these URLs have the same scheme, host and port? */
int web_same_origin(const char *a, const char *b);

#endif
