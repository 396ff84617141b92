/* audit_post.c - batches of lines, and the thread that posts them. */
#include "libcommon/access/audit_post.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/thread.h"
#include "libcommon/hub/net.h"
#include "libcommon/hub/web.h"

enum { CONNECT_MS = 10000, TIMEOUT_MS = 30000, MAX_RETRY_AFTER_S = 600, HURRY_MS = 50 };

/* Lines of one chain, each with its line feed. */
struct audit_batch { char *text; size_t size, room; int n_lines; };

struct audit_post {
    struct net net;
    CURL *curl;
    char *url, *token, *ca_file;            /* token, ca_file NULL: none */
    char host[256];
    int64_t retry_after_s;                  /* of the last response; -1: absent */
    pthread_t thread;
    pthread_mutex_t mutex;                  /* protects everything below */
    pthread_cond_t wake, done;
    struct audit_batch waiting[AUDIT_CHAINS];
    size_t bytes;                           /* of all lines, including the batch that is being posted */
    uint64_t first_ns;                      /* when the oldest of the waiting lines was added */
    int stopping, ended;
    uint64_t until_ns;                      /* deadline once stopping */
    struct audit_remote_stats stats;
};

/* ---- lines ---- */

static int append(struct audit_batch *b, const char *line, size_t n)
{
    if (b->room < b->size + n + 1) {
        const size_t room = 2 * (b->size + n + 1);
        char *text = realloc(b->text, room);
        if (!text)
            return -1;
        b->text = text;
        b->room = room;
    }
    memcpy(b->text + b->size, line, n);
    b->text[b->size + n] = '\n';
    b->size += n + 1;
    b->n_lines++;
    return 0;
}

void audit_post_add(struct audit_post *p, enum audit_chain chain, const char *line, size_t n)
{
    pthread_mutex_lock(&p->mutex);
    if (!p->stopping && p->bytes + n + 1 <= POST_BYTES && append(&p->waiting[chain], line, n) == 0) {
        if (p->bytes == 0)
            p->first_ns = clock_ns();
        p->bytes += n + 1;
        p->stats.waiting++;
        pthread_cond_signal(&p->wake);
    } else {
        p->stats.dropped++;
    }
    pthread_mutex_unlock(&p->mutex);
}

void audit_post_stats(struct audit_post *p, struct audit_remote_stats *out)
{
    pthread_mutex_lock(&p->mutex);
    *out = p->stats;
    pthread_mutex_unlock(&p->mutex);
}

static void complain(struct audit_post *p, const char *text)
{
    pthread_mutex_lock(&p->mutex);
    snprintf(p->stats.last_error, sizeof p->stats.last_error, "%s", text);
    pthread_mutex_unlock(&p->mutex);
}

/* ---- one request, in the thread ---- */

static int is_late(struct audit_post *p)
{
    pthread_mutex_lock(&p->mutex);
    const int late = p->stopping && clock_ns() >= p->until_ns;
    pthread_mutex_unlock(&p->mutex);
    return late;
}

static size_t on_body(char *data, size_t one, size_t n, void *user)
{
    (void)data, (void)user;
    return one * n;
}

static size_t on_header(char *line, size_t one, size_t n, void *user)
{
    struct audit_post *p = user;
    char text[80];
    if (web_header(line, one * n, "retry-after", text, sizeof text))
        p->retry_after_s = web_retry_after(text);
    return one * n;
}

static int on_progress(void *user, curl_off_t a, curl_off_t b, curl_off_t c, curl_off_t d)
{
    (void)a, (void)b, (void)c, (void)d;
    return is_late(user);
}

static void add_header(struct audit_post *p, struct curl_slist **list, const char *name, const char *value)
{
    char *text;
    if (asprintf(&text, "%s:%s%s", name, *value ? " " : "", value) < 0)
        return;
    struct curl_slist *more = p->net.slist_append(*list, text);
    *list = more ? more : *list;
    free(text);
}

static struct curl_slist *headers_of(struct audit_post *p, enum audit_chain chain)
{
    struct curl_slist *list = NULL;
    char bearer[1100];
    add_header(p, &list, "Content-Type", "application/x-ndjson");
    add_header(p, &list, "Expect", "");
    add_header(p, &list, "X-Audit-Chain", audit_chain_name(chain));
    add_header(p, &list, "X-Audit-Host", p->host);
    if (p->token) {
        snprintf(bearer, sizeof bearer, "Bearer %s", p->token);
        add_header(p, &list, "Authorization", bearer);
    }
    return list;
}

/* The status of the response; 0: there is none, and the stats have the reason. */
static long post_once(struct audit_post *p, enum audit_chain chain, const struct audit_batch *b)
{
    long status = 0;
    char text[80];
    struct curl_slist *headers = headers_of(p, chain);
    CURL *c = p->curl;                      /* kept, so that its connection is used again */
    p->retry_after_s = -1;
    p->net.easy_reset(c);
    p->net.easy_setopt(c, CURLOPT_URL, p->url);
    p->net.easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
    if (p->ca_file)
        p->net.easy_setopt(c, CURLOPT_CAINFO, p->ca_file);
    if (web_is_here(p->url))
        p->net.easy_setopt(c, CURLOPT_NOPROXY, "*");
    p->net.easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    p->net.easy_setopt(c, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)b->size);
    p->net.easy_setopt(c, CURLOPT_POSTFIELDS, b->text);
    p->net.easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, (long)CONNECT_MS);
    p->net.easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)TIMEOUT_MS);
    p->net.easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    p->net.easy_setopt(c, CURLOPT_USERAGENT, "zse/" ZSE_VERSION);
    p->net.easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    p->net.easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    p->net.easy_setopt(c, CURLOPT_HEADERDATA, p);
    p->net.easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    p->net.easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    p->net.easy_setopt(c, CURLOPT_XFERINFODATA, p);
    const CURLcode rc = p->net.easy_perform(c);
    if (rc == CURLE_OK)
        p->net.easy_getinfo(c, CURLINFO_RESPONSE_CODE, &status);
    p->net.slist_free_all(headers);
    if (status / 100 == 2)
        return status;
    snprintf(text, sizeof text, "the collector answered with status %ld", status);
    complain(p, rc == CURLE_OK ? text : p->net.easy_strerror(rc));
    return status;
}

/* ---- the thread ---- */

/* Wait; during a shutdown only briefly. */
static void pause_for(struct audit_post *p, int64_t ms)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += (long)(ms % 1000) * 1000000;
    until.tv_sec += (time_t)(ms / 1000) + until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&p->mutex);
    while (!p->stopping && pthread_cond_timedwait(&p->wake, &p->mutex, &until) != ETIMEDOUT)
        ;
    const int hurries = p->stopping;
    pthread_mutex_unlock(&p->mutex);
    if (hurries)
        poll(NULL, 0, HURRY_MS);
}

/* Post a batch until the collector has it: 1; 0: it is lost. */
static int deliver(struct audit_post *p, enum audit_chain chain, const struct audit_batch *b)
{
    for (int64_t delay_ms = POST_AGAIN_MS; !is_late(p);) {
        const long status = post_once(p, chain, b);
        if (status / 100 == 2)
            return 1;
        if (status == 400 || status == 413 || status == 422)
            return 0;
        const int64_t asked_s = p->retry_after_s < MAX_RETRY_AFTER_S ? p->retry_after_s : MAX_RETRY_AFTER_S;
        pause_for(p, asked_s > 0 ? asked_s * 1000 : delay_ms);      /* never at once: "Retry-After: 0" */
        delay_ms = 2 * delay_ms < POST_AGAIN_MAX_MS ? 2 * delay_ms : POST_AGAIN_MAX_MS;
    }
    return 0;
}

/* Under the lock: wait for lines, and then for more of them, but not long.  0: there are none, and
 * the log is closed. */
static int wait_for_lines(struct audit_post *p)
{
    while (!p->bytes && !p->stopping)
        pthread_cond_wait(&p->wake, &p->mutex);
    while (!p->stopping && p->bytes < POST_BATCH_BYTES && clock_ns() - p->first_ns < POST_LINGER_MS * 1000000ull) {
        const uint64_t until_ns = p->first_ns + POST_LINGER_MS * 1000000ull;
        const struct timespec until = { .tv_sec = (time_t)(until_ns / 1000000000u),
                                        .tv_nsec = (long)(until_ns % 1000000000u) };
        if (pthread_cond_timedwait(&p->wake, &p->mutex, &until) == ETIMEDOUT)
            break;
    }
    return p->bytes != 0;
}

/* Take whole lines from the beginning of `from`: at most POST_BATCH_BYTES, or one longer line. */
static struct audit_batch take_lines(struct audit_batch *from)
{
    struct audit_batch b = *from;
    *from = (struct audit_batch){ 0 };
    if (b.size <= POST_BATCH_BYTES)
        return b;
    const char *end = memrchr(b.text, '\n', POST_BATCH_BYTES);
    end = end ? end : memchr(b.text, '\n', b.size);
    const size_t size = (size_t)(end - b.text) + 1;
    int n_lines = 0;
    for (const char *at = b.text; at < b.text + size; at = (const char *)memchr(at, '\n', b.size) + 1)
        n_lines++;
    char *rest = b.size > size ? malloc(b.size - size) : NULL;
    if (!rest)
        return b;                           /* post everything */
    memcpy(rest, b.text + size, b.size - size);
    *from = (struct audit_batch){ rest, b.size - size, b.size - size, b.n_lines - n_lines };
    b.size = size;
    b.n_lines = n_lines;
    return b;
}

/* Under the lock, which is released meanwhile: post waiting lines of a chain. */
static void post_chain(struct audit_post *p, enum audit_chain chain)
{
    struct audit_batch b = take_lines(&p->waiting[chain]);
    if (!b.n_lines)
        return;
    pthread_mutex_unlock(&p->mutex);
    const int sent = deliver(p, chain, &b);
    free(b.text);
    pthread_mutex_lock(&p->mutex);
    p->bytes -= b.size;
    p->stats.waiting -= b.n_lines;
    if (sent)
        p->stats.sent += (uint64_t)b.n_lines;
    else
        p->stats.dropped += (uint64_t)b.n_lines;
    p->first_ns = clock_ns();
}

static void *work(void *user)
{
    struct audit_post *p = user;
    pthread_mutex_lock(&p->mutex);
    while (wait_for_lines(p))
        for (int i = 0; i < AUDIT_CHAINS; i++)
            post_chain(p, (enum audit_chain)i);
    p->ended = 1;
    pthread_cond_signal(&p->done);
    pthread_mutex_unlock(&p->mutex);
    return NULL;
}

/* ---- open and close ---- */

static void release(struct audit_post *p)
{
    if (p->curl)
        p->net.easy_cleanup(p->curl);
    for (int i = 0; i < AUDIT_CHAINS; i++)
        free(p->waiting[i].text);
    if (p->token)
        explicit_bzero(p->token, strlen(p->token));
    free(p->token);
    free(p->ca_file);
    free(p->url);
    pthread_cond_destroy(&p->done);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->mutex);
    free(p);
}

static int prepare(struct audit_post *p, const char *url, const char *token, const char *ca_file, struct err *e)
{
    if (strncasecmp(url, "http://", 7) != 0 && strncasecmp(url, "https://", 8) != 0)
        return err_set(e, ERR_FORMAT, "--audit-url: the URL begins neither with https:// nor with http://");
    if (!(p->url = strdup(url)) || (token && !(p->token = strdup(token))) ||
        (ca_file && !(p->ca_file = strdup(ca_file))))
        return err_nomem(e, "--audit-url");
    if (gethostname(p->host, sizeof p->host - 1) || !*p->host)
        strcpy(p->host, "-");
    if (net_open(&p->net, e))
        return err_prefix(e, "--audit-url");
    return (p->curl = p->net.easy_init()) ? 0 : err_nomem(e, "--audit-url");
}

struct audit_post *audit_post_open(const char *url, const char *token, const char *ca_file, struct err *e)
{
    struct audit_post *p = calloc(1, sizeof *p);
    pthread_condattr_t monotonic;
    if (!p)
        return err_nomem(e, "the audit log"), NULL;
    pthread_mutex_init(&p->mutex, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&p->wake, &monotonic);
    pthread_cond_init(&p->done, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int rc = prepare(p, url, token, ca_file, e);
    if (rc == 0 && thread_start(&p->thread, work, p))
        rc = err_set(e, ERR_MEMORY, "no thread available for --audit-url");
    if (rc == 0)
        return p;
    release(p);
    return NULL;
}

int audit_post_close(struct audit_post *p, double patience_s, struct audit_remote_stats *last)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)patience_s + 1;
    pthread_mutex_lock(&p->mutex);
    p->stopping = 1;
    p->until_ns = clock_ns() + (uint64_t)(patience_s * 1e9);
    pthread_cond_signal(&p->wake);
    while (!p->ended && pthread_cond_timedwait(&p->done, &p->mutex, &until) != ETIMEDOUT)
        ;
    const int ended = p->ended;
    *last = p->stats;
    pthread_mutex_unlock(&p->mutex);
    if (!ended)
        return -1;
    pthread_join(p->thread, NULL);
    release(p);
    return 0;
}
