/* web.c - run HTTP exchanges with libcurl: redirects, retries, ranges. */
#include "libcommon/hub/web.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/json.h"

enum { MAX_REDIRECTS = 8, MAX_TRIES = 6, FIRST_TRIES = 4, MAX_WAIT_S = 120, STALL_S = 30, STALL_BYTES = 1000,
       CONNECT_S = 15, MAX_ERROR = 1 << 20 };

/* ---- URLs ---- */

/* Length of "https://host:port"; 0 if url is not an HTTP URL. */
static size_t origin_length(const char *url)
{
    size_t scheme = strncasecmp(url, "https://", 8) == 0 ? 8 : strncasecmp(url, "http://", 7) == 0 ? 7 : 0;
    return scheme ? scheme + strcspn(url + scheme, "/?#") : 0;
}

static int is_https(const char *url) { return strncasecmp(url, "https://", 8) == 0; }

/* Like origin_length(), but without a port that is the scheme's default. */
static size_t plain_origin(const char *url)
{
    size_t n = origin_length(url);
    const char *usual = is_https(url) ? ":443" : ":80";
    size_t m = strlen(usual);
    return n > m && memcmp(url + n - m, usual, m) == 0 ? n - m : n;
}

int web_same_origin(const char *a, const char *b)
{
    size_t n = plain_origin(a), m = plain_origin(b);
    return n && n == m && strncasecmp(a, b, n) == 0;
}

int web_is_here(const char *url)
{
    static const char *const here[] = { "http://127.0.0.1", "http://localhost", "http://[::1]" };
    for (size_t i = 0; i < sizeof here / sizeof *here; i++) {
        size_t n = strlen(here[i]);
        if (strncasecmp(url, here[i], n) == 0 && strchr(":/", url[n]))
            return 1;
    }
    return 0;
}

/* 1 if the token may be sent to this URL: it uses https, or leads to this machine. */
static int is_private(const char *url) { return is_https(url) || web_is_here(url); }

/* ---- one response ---- */

static void forget_answer(struct web_answer *a)
{
    free(a->location);
    *a = (struct web_answer){ .linked_size = -1, .length = -1, .retry_after_s = -1 };
}

int web_header(const char *line, size_t n, const char *name, char *out, size_t room)
{
    size_t m = strlen(name);
    if (n <= m || strncasecmp(line, name, m) != 0 || line[m] != ':')
        return 0;
    const char *p = line + m + 1, *end = line + n;
    while (p < end && isspace((unsigned char)*p))
        p++;
    while (end > p && isspace((unsigned char)end[-1]))
        end--;
    snprintf(out, room, "%.*s", (int)(end - p), p);
    return 1;
}

static void unquote(char *etag)
{
    char *p = strncmp(etag, "W/", 2) == 0 ? etag + 2 : etag;
    size_t n = strlen(p);
    if (n >= 2 && p[0] == '"' && p[n - 1] == '"')
        p++, n -= 2;
    memmove(etag, p, n);
    etag[n] = '\0';
}

int64_t web_retry_after(const char *text)
{
    struct tm tm = { 0 };
    char *end;
    long long s = strtoll(text, &end, 10);
    if (end != text && !*end)
        return s < 0 ? 0 : s;
    if (!strptime(text, "%a, %d %b %Y %H:%M:%S GMT", &tm))
        return -1;
    s = (long long)timegm(&tm) - (long long)time(NULL);
    return s < 0 ? 0 : s;
}

static size_t on_header(char *line, size_t size, size_t n, void *user)
{
    struct web_job *j = user;
    struct web_answer *a = &j->answer;
    char text[4096];
    n *= size;
    if (n > 5 && memcmp(line, "HTTP/", 5) == 0)
        forget_answer(a);               /* 100 Continue and proxies send headers of their own first */
    else if (web_header(line, n, "location", text, sizeof text) && strlen(text) < sizeof text - 1) {
        free(a->location);
        a->location = strdup(text);
    } else if (web_header(line, n, "etag", a->etag, sizeof a->etag))
        unquote(a->etag);
    else if (web_header(line, n, "x-linked-etag", a->linked_etag, sizeof a->linked_etag))
        unquote(a->linked_etag);
    else if (web_header(line, n, "x-linked-size", text, sizeof text))
        a->linked_size = strtoll(text, NULL, 10);
    else if (web_header(line, n, "content-length", text, sizeof text))
        a->length = strtoll(text, NULL, 10);
    else if (web_header(line, n, "retry-after", text, sizeof text))
        a->retry_after_s = web_retry_after(text);
    else if (!web_header(line, n, "x-repo-commit", a->commit, sizeof a->commit) &&
             !web_header(line, n, "content-range", a->content_range, sizeof a->content_range))
        web_header(line, n, "x-error-message", a->error, sizeof a->error);
    return n;
}

/* Is the body the requested range?  0, or -1 with the web's error. */
static int check_range(struct web_job *j)
{
    uint64_t from;
    if (!j->ranged || j->answer.status != 206 || j->checked)
        return 0;
    j->checked = 1;
    if (sscanf(j->answer.content_range, "bytes %" SCNu64 "-", &from) == 1 && from == j->from)
        return 0;
    return err_set(&j->web->error, ERR_FORMAT, "%s: asked for bytes from %" PRIu64 ", got '%s'", j->what, j->from,
                   j->answer.content_range);
}

static size_t on_body(char *data, size_t size, size_t n, void *user)
{
    struct web_job *j = user;
    n *= size;
    if (!j->answer.status)
        j->web->net.easy_getinfo(j->easy, CURLINFO_RESPONSE_CODE, &j->answer.status);
    if (j->answer.status / 100 != 2) {
        size_t take = sizeof j->head_text - 1 - j->head_size;
        take = take < n ? take : n;
        memcpy(j->head_text + j->head_size, data, take);
        j->head_size += take;
        j->head_text[j->head_size] = '\0';
        j->error_size += n;
        return j->error_size > MAX_ERROR ? 0 : n;
    }
    if (check_range(j) != 0) {
        j->failed = 1;
        return 0;
    }
    int rc = j->body ? j->body(j, data, n, &j->web->error) : 0;
    j->enough = rc > 0;
    j->failed = rc < 0;
    j->from += n;
    if (j->ranged)
        j->tries = 0;                   /* received data is kept, so this attempt does not count as a failure */
    return rc ? 0 : n;
}

/* ---- jobs ---- */

struct web_job *web_job(const char *url, struct err *e)
{
    struct web_job *j = calloc(1, sizeof *j);
    if (j && (j->url = strdup(url))) {
        j->origin_url = url;
        forget_answer(&j->answer);
        return j;
    }
    free(j);
    err_nomem(e, "request");
    return NULL;
}

static void free_job(struct web *w, struct web_job *j)
{
    if (j->easy) {
        w->net.multi_remove_handle(w->multi, j->easy);
        w->net.easy_cleanup(j->easy);
        w->n_active--;
    }
    w->net.slist_free_all(j->headers);
    free(j->answer.location);
    free(j->url);
    free(j);
}

static void remove_job(struct web *w, struct web_job *j)
{
    struct web_job **at = &w->first;
    while (*at != j)
        at = &(*at)->next;
    *at = j->next;
    if (w->last == &j->next)
        w->last = at;
    free_job(w, j);
}

int web_add(struct web *w, struct web_job *j, struct err *e)
{
    if (!origin_length(j->url)) {
        err_set(e, ERR_FORMAT, "'%.300s' is no URL that begins with https:// or http://", j->url);
        free_job(w, j);
        return -1;
    }
    j->web = w;
    *w->last = j;
    w->last = &j->next;
    return 0;
}

static int add_header(struct web_job *j, const char *fmt, const char *value, struct err *e)
{
    char *line;
    if (asprintf(&line, fmt, value) < 0)
        return err_nomem(e, "request");
    struct curl_slist *list = j->web->net.slist_append(j->headers, line);
    free(line);
    if (!list)
        return err_nomem(e, "request");
    j->headers = list;
    return 0;
}

static int start(struct web *w, struct web_job *j, struct err *e)
{
    struct net *n = &w->net;
    char range[64];
    CURL *h = n->easy_init();
    if (!h)
        return err_nomem(e, "connection");
    if (w->token && web_same_origin(j->url, w->endpoint) && is_private(j->url) &&
        add_header(j, "Authorization: Bearer %s", w->token, e) != 0) {
        n->easy_cleanup(h);
        return -1;
    }
    forget_answer(&j->answer);
    j->easy = h;
    j->checked = 0;
    j->head_size = j->error_size = 0;
    j->head_text[0] = j->curl_error[0] = '\0';
    j->ranged = j->to && !j->head && !j->whole;
    if (!j->ranged)
        j->from = 0;
    n->easy_setopt(h, CURLOPT_URL, j->url);
    n->easy_setopt(h, CURLOPT_PRIVATE, j);
    n->easy_setopt(h, CURLOPT_HTTPHEADER, j->headers);
    n->easy_setopt(h, CURLOPT_USERAGENT, "zse/" ZSE_VERSION);
    n->easy_setopt(h, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);     /* one connection for each exchange */
    /* ask for no compression, and decode a body that is compressed all the same: sizes and
     * checksums are those of the file */
    n->easy_setopt(h, CURLOPT_ACCEPT_ENCODING, "identity");
    n->easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    n->easy_setopt(h, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_S);
    n->easy_setopt(h, CURLOPT_LOW_SPEED_LIMIT, (long)STALL_BYTES);
    n->easy_setopt(h, CURLOPT_LOW_SPEED_TIME, (long)STALL_S);
    n->easy_setopt(h, CURLOPT_BUFFERSIZE, 256L * 1024);
    n->easy_setopt(h, CURLOPT_ERRORBUFFER, j->curl_error);
    n->easy_setopt(h, CURLOPT_HEADERFUNCTION, on_header);
    n->easy_setopt(h, CURLOPT_HEADERDATA, j);
    n->easy_setopt(h, CURLOPT_WRITEFUNCTION, on_body);
    n->easy_setopt(h, CURLOPT_WRITEDATA, j);
    n->easy_setopt(h, CURLOPT_NOBODY, (long)j->head);
    if (web_is_here(j->url))
        n->easy_setopt(h, CURLOPT_NOPROXY, "*");
    if (w->ca_file)
        n->easy_setopt(h, CURLOPT_CAINFO, w->ca_file);
    if (j->ranged) {
        snprintf(range, sizeof range, "%" PRIu64 "-%" PRIu64, j->from, j->to - 1);
        n->easy_setopt(h, CURLOPT_RANGE, range);
    }
    w->n_active++;
    return n->multi_add_handle(w->multi, h) == CURLM_OK ? 0 : err_nomem(e, "connection");
}

static void detach(struct web *w, struct web_job *j)
{
    w->net.multi_remove_handle(w->multi, j->easy);
    w->net.easy_cleanup(j->easy);
    w->net.slist_free_all(j->headers);
    j->headers = NULL;
    j->easy = NULL;
    w->n_active--;
}

/* ---- errors and retries ---- */

/* The error message of a response: the header X-Error-Message, else "error" or "error.message" of a
 * JSON body, else "". */
static void body_error(const struct web_job *j, char *out, size_t room)
{
    json_t *v = json_loadb(j->head_text, j->head_size, 0, NULL), *error = json_object_get(v, "error");
    const char *text = json_string_value(json_is_object(error) ? json_object_get(error, "message") : error);
    snprintf(out, room, "%.199s", *j->answer.error ? j->answer.error : text ? text : "");
    json_decref(v);
    for (char *p = out; *p; p++)
        if ((unsigned char)*p < ' ')
            *p = ' ';
}

static int explain(struct web *w, struct web_job *j, struct err *e)
{
    char said[200], more[220] = "";
    long status = j->answer.status;
    if (status == 401 || status == 403 || status == 404)
        w->refused = status;
    body_error(j, said, sizeof said);
    if (*said)
        snprintf(more, sizeof more, " (%s)", said);
    if ((status == 401 || status == 403) && w->token && !is_private(w->endpoint))
        return err_set(e, ERR_IO, "%s: %s: the hub says %ld%s; the token was not sent, as %s is not https", w->repo,
                       j->what, status, more, w->endpoint);
    if (status == 401)
        return err_set(e, ERR_IO, "%s: %s: the hub says 401%s: %s", w->repo, j->what, more,
                       w->token ? "there is no such repository, or the token (HF_TOKEN, or the file that the Python tools write) is not valid for it"
                                : "there is no such repository, or it is private or gated: HF_TOKEN takes a token");
    if (status == 403)
        return err_set(e, ERR_IO, "%s: %s: the hub says 403%s: access is not granted%s; its terms may have to be accepted first at %s/%s", w->repo, j->what, more,
                       w->token ? " to this token" : " without a token (HF_TOKEN)", w->endpoint, w->repo);
    if (status == 404)
        return err_set(e, ERR_IO, "%s: %s: the hub says 404%s: there is no such repository, revision or file", w->repo,
                       j->what, more);
    if (status == 429 && j->answer.retry_after_s >= 0)
        return err_set(e, ERR_LIMIT, "%s: %s: the hub says 429%s: too many requests, again in %" PRId64 " s", w->repo,
                       j->what, more, j->answer.retry_after_s);
    return err_set(e, ERR_IO, "%s: %s: %.*s answered with HTTP %ld%s", w->repo, j->what, (int)origin_length(j->url),
                   j->url, status, more);
}

static int explain_curl(struct web *w, const struct web_job *j, CURLcode rc, struct err *e)
{
    return err_set(e, ERR_IO, "%s: %s: %.*s: %s", w->repo, j->what, (int)origin_length(j->url), j->url,
                   *j->curl_error ? j->curl_error : w->net.easy_strerror(rc));
}

/* Schedule a retry.  0, or -1 after too many. */
static int again(struct web *w, struct web_job *j, int64_t wait_s)
{
    uint64_t wait = (uint64_t)250000000 << j->tries;
    char text[200];
    /* give up soon if the hub never answered */
    if (++j->tries >= (w->responded ? MAX_TRIES : FIRST_TRIES) || wait_s > MAX_WAIT_S)
        return -1;
    if (wait_s >= 0)
        wait = (uint64_t)wait_s * 1000000000u;
    if (wait_s > 0 && w->note) {
        snprintf(text, sizeof text, "%.100s: the hub asks to wait %lld s", w->repo, (long long)wait_s);
        w->note(w->note_user, text);
    }
    j->due_ns = clock_ns() + wait;
    return 0;
}

static int worth_another_try(const struct web *w, CURLcode rc)
{
    switch (rc) {
    case CURLE_PARTIAL_FILE: case CURLE_RECV_ERROR: case CURLE_SEND_ERROR: case CURLE_GOT_NOTHING:
    case CURLE_OPERATION_TIMEDOUT: return 1;
    case CURLE_COULDNT_CONNECT: case CURLE_COULDNT_RESOLVE_HOST: case CURLE_COULDNT_RESOLVE_PROXY:
    case CURLE_SSL_CONNECT_ERROR: return w->responded;
    default: return 0;
    }
}

/* Handle a redirect.  0: j->url is the new address, to be requested next; 1: the redirect itself is
 * the answer (a HEAD with the linked ETag); -1 with *e. */
static int redirect(struct web *w, struct web_job *j, struct err *e)
{
    char *target = NULL;
    const char *location = j->answer.location;
    size_t origin = origin_length(j->url);
    if (!location || j->n_redirects++ == MAX_REDIRECTS)
        return err_set(e, ERR_FORMAT, "%s: %s: HTTP %ld %s", w->repo, j->what, j->answer.status,
                       location ? "again and again" : "without a Location");
    if (origin_length(location))
        target = strdup(location);
    else if (location[0] == '/' && location[1] != '/' && asprintf(&target, "%.*s%s", (int)origin, j->url, location) < 0)
        target = NULL;
    else if (location[0] != '/' || location[1] == '/')
        return err_set(e, ERR_FORMAT, "%s: %s: a redirect to '%.100s', expected a URL or an absolute path", w->repo,
                       j->what, location);
    if (!target)
        return err_nomem(e, "URL");
    if (is_https(j->url) && !is_https(target)) {
        err_set(e, ERR_FORMAT, "%s: %s: a redirect from https to %.*s", w->repo, j->what, (int)origin_length(target),
                target);
        free(target);
        return -1;
    }
    if (j->head && *j->answer.linked_etag && !web_same_origin(j->url, target)) {
        free(target);
        return 1;
    }
    free(j->url);
    j->url = target;
    return 0;
}

/* A signed address may have expired: start again at the hub's address. */
static int start_over(struct web_job *j)
{
    if (strcmp(j->url, j->origin_url) == 0 || web_same_origin(j->url, j->web->endpoint))
        return -1;
    char *url = strdup(j->origin_url);
    if (!url)
        return -1;
    free(j->url);
    j->url = url;
    j->n_redirects = 0;
    return 0;
}

/* Handle the end of an exchange.  1: the job is done; 0: it is tried again or redirected; -1 with
 * *e. */
static int judge(struct web *w, struct web_job *j, CURLcode rc, struct err *e)
{
    long status = j->answer.status;
    if (j->failed) {
        *e = w->error;
        return err_prefix(e, "%s", w->repo);
    }
    if (j->enough)
        return 1;
    w->responded |= status != 0 && status < 500;
    if (rc != CURLE_OK && j->error_size <= MAX_ERROR)
        return worth_another_try(w, rc) && again(w, j, -1) == 0 ? 0 : explain_curl(w, j, rc, e);
    if (status / 100 == 3)
        return redirect(w, j, e);
    if (status / 100 == 2) {
        if (j->head || !j->to || j->from >= j->to)
            return 1;
        if (again(w, j, -1) == 0)
            return 0;
        return err_set(e, ERR_IO, "%s: %s: ends at byte %" PRIu64 ", expected %" PRIu64, w->repo, j->what, j->from,
                       j->to);
    }
    if (status == 408 || status == 429 || status >= 500) {
        int64_t wait = status == 429 || status == 503 ? j->answer.retry_after_s : -1;
        return again(w, j, wait) == 0 ? 0 : explain(w, j, e);
    }
    if (status / 100 == 4 && j->tries + 1 < MAX_TRIES && start_over(j) == 0)
        return again(w, j, -1) == 0 ? 0 : explain(w, j, e);
    return explain(w, j, e);
}

static int collect(struct web *w, struct err *e)
{
    CURLMsg *m;
    int left;
    while ((m = w->net.multi_info_read(w->multi, &left))) {
        if (m->msg != CURLMSG_DONE)
            continue;
        struct web_job *j;
        CURLcode result = m->data.result;
        w->net.easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &j);
        w->net.easy_getinfo(m->easy_handle, CURLINFO_RESPONSE_CODE, &j->answer.status);
        int rc = judge(w, j, result, e);
        detach(w, j);
        if (rc < 0)
            return -1;
        if (rc > 0) {
            if (j->done && j->done(j, e) != 0)
                return err_prefix(e, "%s", w->repo);
            remove_job(w, j);
        }
    }
    return 0;
}

/* Start jobs that are due, preferred ones or the others; *wait_ms: time until the next is due. */
static int start_some(struct web *w, int preferred, int *wait_ms, struct err *e)
{
    uint64_t now = clock_ns();
    for (struct web_job *j = w->first, *next; j && w->n_active < w->n_connections; j = next) {
        next = j->next;
        if (j->easy || (w->prefer && w->prefer(w->user, j)) != preferred)
            continue;
        if (j->due_ns > now) {
            int ms = (int)((j->due_ns - now) / 1000000) + 1;
            *wait_ms = ms < *wait_ms ? ms : *wait_ms;
        } else if (j->before && j->before(j)) {
            remove_job(w, j);
            *wait_ms = 0;
        } else if (start(w, j, e) != 0) {
            return -1;
        }
    }
    return 0;
}

static int start_due(struct web *w, int *wait_ms, struct err *e)
{
    *wait_ms = 200;
    if (w->prefer && start_some(w, 1, wait_ms, e) != 0)
        return -1;
    return start_some(w, 0, wait_ms, e);
}

int web_run(struct web *w, struct err *e)
{
    int running, wait_ms, rc = 0;
    while (rc == 0 && w->first) {
        if ((rc = start_due(w, &wait_ms, e)) != 0)
            break;
        if (w->net.multi_perform(w->multi, &running) != CURLM_OK) {
            rc = err_nomem(e, "connections");
            break;
        }
        rc = collect(w, e);
        if (rc == 0 && w->tick && w->tick(w->user) != 0)
            rc = err_set(e, ERR_CANCELLED, "%s: stopped", w->repo);
        if (rc == 0 && w->first)
            w->net.multi_poll(w->multi, NULL, 0, wait_ms, NULL);
    }
    while (w->first)
        remove_job(w, w->first);
    return rc;
}

int web_open(struct web *w, struct err *e)
{
    w->first = NULL;
    w->last = &w->first;
    w->n_active = w->responded = 0;
    w->refused = 0;
    w->multi = NULL;
    if (net_open(&w->net, e) != 0)
        return -1;
    w->multi = w->net.multi_init();
    return w->multi ? 0 : err_nomem(e, "connections");
}

void web_close(struct web *w)
{
    while (w->first)
        remove_job(w, w->first);
    if (w->multi)
        w->net.multi_cleanup(w->multi);
    w->multi = NULL;
}

/* ---- whole documents ---- */

struct document { char *text; size_t size, room, max; };

static int keep(struct web_job *j, const void *data, size_t n, struct err *e)
{
    struct document *d = j->user;
    if (j->from == 0)
        d->size = 0;                    /* restarted from the beginning */
    if (n > d->max - d->size)
        return err_set(e, ERR_LIMIT, "%s: more than %zu bytes", j->what, d->max);
    if (d->size + n >= d->room) {
        const size_t room = 2 * (d->size + n) + 1;
        char *p = realloc(d->text, room);
        if (!p)
            return err_nomem(e, "answer");
        d->text = p;
        d->room = room;
    }
    memcpy(d->text + d->size, data, n);
    d->size += n;
    d->text[d->size] = '\0';
    return 0;
}

char *web_get(struct web *w, const char *url, const char *what, size_t max, size_t *size, struct err *e)
{
    struct document d = { .max = max, .room = 1, .text = calloc(1, 1) };
    struct web_job *j = web_job(url, e);
    if (j) {
        j->what = what;
        j->body = keep;
        j->user = &d;
    }
    if (!d.text) {
        if (j)
            free_job(w, j);
        err_nomem(e, what);
        return NULL;
    }
    if (!j || web_add(w, j, e) != 0 || web_run(w, e) != 0) {
        free(d.text);
        return NULL;
    }
    *size = d.size;
    return d.text;
}
