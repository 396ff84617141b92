/* web.h - HTTP exchanges over several connections at once, each tried again until it works or
 * cannot.
 *
 * Redirects are followed here, not in libcurl, so that one rule holds: the token goes to the
 * hub's own origin (scheme, host and port), and nowhere else.  Cuts, stalls, 408, 429 and 5xx
 * are tried again, later each time (429 and 503: when Retry-After says); an exchange that
 * advanced meanwhile begins to count anew.  The sentence of a failure never shows the query of a
 * URL, which may hold a signature. */
#ifndef ZSE_HUB_WEB_H
#define ZSE_HUB_WEB_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/hub/net.h"

/* What the last response said. Texts are empty where a header was absent. */
struct web_answer {
    long status;
    char etag[160], linked_etag[160], commit[80], content_range[80], error[256];
    int64_t linked_size, length, retry_after_s;     /* -1: not said */
    char *location;                                 /* owned; NULL: none */
};

struct web_job {
    char *url;                          /* owned; where it stands after redirects */
    const char *origin_url;             /* where it begins again; borrowed */
    const char *what;                   /* for messages: "config.json"; borrowed */
    int head;
    uint64_t from, to;                  /* bytes [from, to) of it; to 0: everything, however long.  from advances with what came */
    int whole;                          /* without Range: begins at 0 each time; a body may set it when it sees status 200 */
    /* n bytes at offset `from` (which moves after the call).  0; 1: enough, go to done; -1 with
     * *e: everything ends.  NULL: nothing wanted. */
    int (*body)(struct web_job *j, const void *data, size_t n, struct err *e);
    /* It worked (a HEAD also when it ended at a redirect to another origin that says
     * X-Linked-Etag).  -1 with *e: everything ends. */
    int (*done)(struct web_job *j, struct err *e);
    /* Before the request goes out, each time: may change url; 1: it is not needed any more.  May
     * be NULL. */
    int (*before)(struct web_job *j);
    void *user;
    struct web_answer answer;
    /* web.c's own */
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
    struct web_job *first, **last;      /* waiting or under way */
    int n_active, heard;                /* heard: somebody has answered */
    long refused;                       /* 401, 403 or 404 that ended it; 0: none */
    struct err error;                   /* of a body or done */
    int (*prefer)(void *user, const struct web_job *j);         /* may be NULL; jobs of which it says 1 begin before others */
    /* Some times a second; non-zero ends everything with ERR_CANCELLED. */
    int (*tick)(void *user);                        /* may be NULL */
    void *user;
    void (*note)(void *user, const char *text);     /* may be NULL */
    void *note_user;
};
int web_open(struct web *w, struct err *e);         /* after the borrowed fields are set */
void web_close(struct web *w);
/* Takes over j (calloc'd, url malloc'd), also when it fails. */
int web_add(struct web *w, struct web_job *j, struct err *e);
struct web_job *web_job(const char *url, struct err *e);        /* a new one that begins at url (borrowed) */
/* Until no job is left. */
int web_run(struct web *w, struct err *e);

/* One GET to memory: at most max bytes, '\0' appended. Caller frees. */
char *web_get(struct web *w, const char *url, const char *what, size_t max, size_t *size, struct err *e);

/* The value of header `name`, without blanks around it, if this line of n bytes is it: 1. */
int web_header(const char *line, size_t n, const char *name, char *out, size_t room);
/* Seconds that Retry-After says, also as a date (RFC 9110, section 10.2.3); -1: neither. */
int64_t web_retry_after(const char *text);
/* Is it an http:// address of this machine?  A proxy has no business there. */
int web_is_here(const char *url);
/* Are these URLs of one scheme, host and port? */
int web_same_origin(const char *a, const char *b);

#endif
