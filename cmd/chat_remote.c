/* chat_remote.c - answer prompts through a server with OpenAI's API (zse-chat --url): libcurl,
 * streamed as server-sent events. */
#include "cmd/zse-chat.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/file.h"
#include "libcommon/base/json.h"
#include "libcommon/hub/net.h"
#include "libcommon/hub/web.h"

static const char prog[] = "zse-chat";
enum { MAX_TRIES = 20, MAX_WAIT_S = 60, LIST_S = 30 };

struct remote {
    const struct chat_options *o;
    struct net net;
    char *base;                 /* "http://host:8000/v1" */
    char *model;
    json_t *fields;             /* fields of every request: model, sampling, stream ... */
};

/* A request to the server. */
struct remote_request {
    struct remote *r;
    struct answer *a;
    CURL *easy;
    struct curl_slist *headers;
    char *body;
    /* the incomplete last line of a stream; all of an answer that is no stream */
    char *line; size_t n_line, line_room;
    int is_stream, is_open, asked_stop;
    int tries;
    int64_t retry_after_s;      /* -1: no such header */
    uint64_t start_ns, due_ns;  /* due_ns: time of the next try; 0: running */
    struct err error;           /* code ERR_NONE: none */
    char curl_error[CURL_ERROR_SIZE];
};

static int grow(char **text, size_t *size, size_t *room, const char *more, size_t n)
{
    if (*size + n + 1 > *room) {
        size_t want = 2 * *room + n + 256;
        char *p = realloc(*text, want);
        if (!p)
            return -1;
        *text = p;
        *room = want;
    }
    memcpy(*text + *size, more, n);
    *size += n;
    (*text)[*size] = '\0';
    return 0;
}

/* ---- answers ---- */

static void take_text(struct remote_request *x, const char *text, size_t n, int thought)
{
    if (n && !x->a->first_ns)
        x->a->first_ns = clock_ns();
    answer_add(x->a, text, n, thought);
}

/* Take one member of a list of calls.  The first member for a call has its id and its name, and
 * each has a piece of the arguments. */
static void take_call(struct remote_request *x, const json_t *v, int i)
{
    const json_t *index = json_object_get(v, "index"), *f = json_object_get(v, "function"),
                 *id = json_object_get(v, "id"), *name = json_object_get(f, "name"),
                 *arguments = json_object_get(f, "arguments");
    struct answer_call *c = answer_call_at(x->a, json_is_integer(index) ? (int)json_integer_value(index) : i);
    if (!c) {
        err_set(&x->error, ERR_LIMIT, "%s: the server's tool calls are out of order or too many", x->r->base);
        return;
    }
    if (!c->id && json_is_string(id))
        c->id = strdup(json_string_value(id));
    if (!c->name && json_is_string(name))
        c->name = strdup(json_string_value(name));
    if (json_is_string(arguments))
        answer_call_add(x->a, c, json_string_value(arguments), json_string_length(arguments));
}

static void take_string(struct remote_request *x, const json_t *o, const char *key, int thought)
{
    const json_t *v = json_object_get(o, key);
    if (json_is_string(v))
        take_text(x, json_string_value(v), json_string_length(v), thought);
}

static void take_usage(struct remote_request *x, const json_t *usage)
{
    struct request_stats *s = &x->a->stats;
    if (!json_is_object(usage))
        return;
    x->a->has_usage = 1;
    s->n_prompt = (int)json_integer_value(json_object_get(usage, "prompt_tokens"));
    s->n_generated = (int)json_integer_value(json_object_get(usage, "completion_tokens"));
    s->n_cached = (int)json_integer_value(json_object_get(json_object_get(usage, "prompt_tokens_details"),
                                                          "cached_tokens"));
}

/* The text of {"error": {"message": ...}}, {"error": "..."}, {"message": ...} or {"detail": "..."}.
 * NULL: none. */
static const char *error_text(const json_t *j)
{
    const json_t *error = json_object_get(j, "error");
    const char *text = json_string_value(json_is_object(error) ? json_object_get(error, "message") : error);
    if (!text)
        text = json_string_value(json_object_get(j, "message"));
    return text ? text : json_string_value(json_object_get(j, "detail"));
}

/* Whether an error means that the prompt is too long for the context.  Servers have no common code
 * for it. */
static int is_context_full(const json_t *j)
{
    static const char *const words[] = { "context_length_exceeded", "exceed_context_size", "context length",
                                         "context size", "context window", "the context of" };
    const json_t *error = json_object_get(j, "error");
    const char *const texts[] = { json_string_value(json_object_get(error, "code")),
                                  json_string_value(json_object_get(error, "type")), error_text(j) };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (size_t k = 0; texts[i] && k < sizeof words / sizeof *words; k++)
            if (strcasestr(texts[i], words[k]))
                return 1;
    return 0;
}

/* Show on standard error which passages of documents the answer may cite. */
static void show_citations(const json_t *citations, const json_t *reason)
{
    const json_t *c;
    size_t i;
    json_array_foreach(citations, i, c) {
        const char *name = json_string_value(json_object_get(c, "document_name")),
                   *heading = json_string_value(json_object_get(c, "heading"));
        const json_t *page = json_object_get(c, "page");
        char place[32] = "";
        if (json_is_integer(page))
            snprintf(place, sizeof place, ", page %lld", (long long)json_integer_value(page));
        cli_note(prog, "[%zu] %s%s%s%s", i + 1, name ? name : "?", place, heading && *heading ? ", " : "",
                 heading ? heading : "");
    }
    if (json_array_size(citations) == 0 && json_is_string(reason))
        cli_note(prog, "no passage found: %s", json_string_value(reason));
}

/* Handle one object of the stream, or a whole answer. */
static void take_object(struct remote_request *x, const json_t *j)
{
    const json_t *choice = json_array_get(json_object_get(j, "choices"), 0), *delta = json_object_get(choice, "delta");
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    if (json_object_get(j, "error") && !json_is_null(json_object_get(j, "error"))) {
        const char *text = error_text(j);
        err_set(&x->error, is_context_full(j) ? ERR_LIMIT : ERR_IO, "%s: %s", x->r->base,
                text ? text : "an error without a message");
        return;
    }
    if (json_is_array(json_object_get(j, "citations")))
        show_citations(json_object_get(j, "citations"), json_object_get(json_object_get(j, "rag"), "reason"));
    if (!delta)
        delta = json_object_get(choice, "message");
    take_string(x, delta, json_object_get(delta, "reasoning_content") ? "reasoning_content" : "reasoning", 1);
    take_string(x, delta, "content", 0);
    take_string(x, choice, "text", 0);                              /* --raw */
    size_t i;
    const json_t *call;
    json_array_foreach(json_object_get(delta, "tool_calls"), i, call)
        take_call(x, call, (int)i);
    take_usage(x, json_object_get(j, "usage"));
    if (!finish)
        return;
    snprintf(x->a->reason, sizeof x->a->reason, "%s", finish);
    x->a->finish = strcmp(finish, "length") == 0 ? FINISH_LENGTH : FINISH_STOP;
}

/* Handle one line: "data: {...}" or "data: [DONE]"; comments and other fields of the protocol are
 * ignored. */
static void take_line(struct remote_request *x, char *line, size_t n)
{
    while (n && (line[n - 1] == '\r' || line[n - 1] == '\n'))
        line[--n] = '\0';
    if (n < 5 || memcmp(line, "data:", 5) != 0)
        return;
    line += 5 + (line[5] == ' ');
    if (strcmp(line, "[DONE]") == 0)
        return;
    json_t *j = json_loads(line, 0, NULL);
    if (j)
        take_object(x, j);
    else
        err_set(&x->error, ERR_FORMAT, "%s: a line of the stream is not JSON: %.100s", x->r->base, line);
    json_decref(j);
}

static size_t on_header(char *line, size_t size, size_t n, void *user)
{
    struct remote_request *x = user;
    char text[100];
    n *= size;
    if (web_header(line, n, "content-type", text, sizeof text))
        x->is_stream = strstr(text, "text/event-stream") != NULL;
    else if (web_header(line, n, "retry-after", text, sizeof text))
        x->retry_after_s = web_retry_after(text);
    return n;
}

static size_t on_body(char *data, size_t size, size_t n, void *user)
{
    struct remote_request *x = user;
    size_t begin = 0;
    n *= size;
    if (x->n_line + n > 64u << 20 || grow(&x->line, &x->n_line, &x->line_room, data, n) != 0) {
        err_set(&x->error, ERR_MEMORY, "%s: a line of the answer is too long", x->r->base);
        return 0;
    }
    if (!x->is_stream)
        return n;
    for (char *end; x->error.code == ERR_NONE && (end = memchr(x->line + begin, '\n', x->n_line - begin));) {
        *end = '\0';
        take_line(x, x->line + begin, (size_t)(end - x->line) - begin);
        begin = (size_t)(end - x->line) + 1;
    }
    memmove(x->line, x->line + begin, x->n_line - begin);
    x->n_line -= begin;
    return x->error.code == ERR_NONE && !ferror(stdout) ? n : 0;
}

/* ---- one request ---- */

static int set_common(struct remote *r, CURL *h, struct curl_slist **headers, const char *url, char *curl_error,
                      struct err *e)
{
    const struct net *n = &r->net;
    char *key = NULL;
    if (r->o->key && asprintf(&key, "Authorization: Bearer %s", r->o->key) < 0)
        return err_nomem(e, "request");
    *headers = n->slist_append(NULL, "Content-Type: application/json");
    struct curl_slist *all = key && *headers ? n->slist_append(*headers, key) : *headers;
    free(key);
    if (!all)
        return err_nomem(e, "request");
    *headers = all;
    n->easy_setopt(h, CURLOPT_URL, url);
    n->easy_setopt(h, CURLOPT_HTTPHEADER, *headers);
    n->easy_setopt(h, CURLOPT_USERAGENT, "zse-chat/" ZSE_VERSION);
    n->easy_setopt(h, CURLOPT_NOSIGNAL, 1L);
    n->easy_setopt(h, CURLOPT_CONNECTTIMEOUT, 15L);
    n->easy_setopt(h, CURLOPT_TCP_KEEPALIVE, 1L);       /* nothing is sent while a long prompt is computed */
    n->easy_setopt(h, CURLOPT_ERRORBUFFER, curl_error);
    if (web_is_here(url))
        n->easy_setopt(h, CURLOPT_NOPROXY, "*");
    if (r->o->ca_file)
        n->easy_setopt(h, CURLOPT_CAINFO, r->o->ca_file);
    return 0;
}

static void remote_request_close(struct remote_request *x, CURLM *multi)
{
    const struct net *n = &x->r->net;
    if (x->easy && multi)
        n->multi_remove_handle(multi, x->easy);
    if (x->easy)
        n->easy_cleanup(x->easy);
    n->slist_free_all(x->headers);
    free(x->body);
    free(x->line);
    x->easy = NULL;
    x->headers = NULL;
    x->body = x->line = NULL;
    x->is_open = 0;
}

/* Start a request.  prompt: an array of messages, or with --raw a string. */
static int remote_request_start(struct remote_request *x, struct remote *r, CURLM *multi, struct answer *a,
                                json_t *prompt,
                          struct err *e)
{
    const struct net *n = &r->net;
    json_t *body = json_copy(r->fields);
    char *url = NULL;
    int rc = -1;
    *x = (struct remote_request){ .r = r, .a = a, .retry_after_s = -1, .start_ns = clock_ns() };
    json_object_set(body, r->o->raw ? "prompt" : "messages", prompt);
    x->body = json_dumps(body, JSON_COMPACT);
    json_decref(body);
    x->easy = n->easy_init();
    if (!x->body || !x->easy || asprintf(&url, "%s/%s", r->base, r->o->raw ? "completions" : "chat/completions") < 0)
        err_nomem(e, "request");
    else if ((rc = set_common(r, x->easy, &x->headers, url, x->curl_error, e)) == 0) {
        n->easy_setopt(x->easy, CURLOPT_POSTFIELDS, x->body);
        n->easy_setopt(x->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(x->body));
        n->easy_setopt(x->easy, CURLOPT_HEADERFUNCTION, on_header);
        n->easy_setopt(x->easy, CURLOPT_HEADERDATA, x);
        n->easy_setopt(x->easy, CURLOPT_WRITEFUNCTION, on_body);
        n->easy_setopt(x->easy, CURLOPT_WRITEDATA, x);
        n->easy_setopt(x->easy, CURLOPT_PRIVATE, x);
        rc = n->multi_add_handle(multi, x->easy) == CURLM_OK ? 0 : err_nomem(e, "request");
    }
    free(url);
    x->is_open = rc == 0;
    if (rc != 0)
        remote_request_close(x, NULL);
    return rc;
}

static int explain_status(const char *base, long status, const char *body, size_t size, struct err *e)
{
    json_t *j = json_loadb(body ? body : "", size, 0, NULL);
    const char *text = error_text(j);
    if (text)
        err_set(e, is_context_full(j) ? ERR_LIMIT : ERR_IO, "%s: %s (HTTP %ld)", base, text, status);
    else if (status / 100 == 3)
        err_set(e, ERR_IO, "%s: HTTP %ld: a redirect; give the address it leads to", base, status);
    else
        err_set(e, ERR_IO, "%s: HTTP %ld%s", base, status,
                status == 404 ? ": no OpenAI API at this address (it may end in /v1)" : status == 401
                ? ": a key is needed (--key or ZSE_API_KEY)" : "");
    json_decref(j);
    return -1;
}

/* Finish a request that has ended: set its error, if there is one. */
static void remote_request_end(struct remote_request *x, CURLcode rc)
{
    struct answer *a = x->a;
    long status = 0;
    x->r->net.easy_getinfo(x->easy, CURLINFO_RESPONSE_CODE, &status);
    answer_end(a);
    a->stats.decode_s = a->first_ns ? (double)(clock_ns() - a->first_ns) * 1e-9 : 0;
    a->stats.first_token_s = a->first_ns ? (double)(a->first_ns - x->start_ns) * 1e-9 : 0;
    if (x->error.code != ERR_NONE || x->asked_stop || ferror(stdout))
        ;
    else if (rc != CURLE_OK)
        err_set(&x->error, ERR_IO, "%s: %s", x->r->base, *x->curl_error ? x->curl_error : x->r->net.easy_strerror(rc));
    else if (status != 200)
        explain_status(x->r->base, status, x->line, x->n_line, &x->error);
    else if (!x->is_stream) {
        json_t *j = js_parse("answer", x->line ? x->line : "", x->n_line, &x->error);
        if (j)
            take_object(x, j);
        else
            err_prefix(&x->error, "%s", x->r->base);
        json_decref(j);
    }
    if (x->error.code == ERR_NONE && !x->asked_stop && !ferror(stdout) && a->finish == FINISH_NONE)
        err_set(&x->error, ERR_IO, "%s: the stream ended before the answer did", x->r->base);
    if (x->asked_stop)
        a->finish = FINISH_CANCELLED;
}

/* Whether to retry: the server is full or still loads its model, and sent Retry-After. */
static int may_ask_again(struct remote_request *x, long status)
{
    if ((status != 429 && status != 503) || x->retry_after_s < 0 || x->retry_after_s > MAX_WAIT_S ||
        x->tries == MAX_TRIES || x->asked_stop)
        return 0;
    if (x->tries++ == 0)
        cli_note(prog, "%s: HTTP %ld: trying again in %d s", x->r->base, status, (int)x->retry_after_s);
    return 1;
}

static int wait_for_server(struct remote_request *x, CURLM *multi)
{
    long status = 0;
    x->r->net.easy_getinfo(x->easy, CURLINFO_RESPONSE_CODE, &status);
    if (!may_ask_again(x, status))
        return 0;
    x->r->net.multi_remove_handle(multi, x->easy);
    x->due_ns = clock_ns() + (uint64_t)x->retry_after_s * 1000000000u + 1;
    x->n_line = 0;
    x->is_stream = 0;
    x->retry_after_s = -1;
    return 1;
}

static void start_due(struct remote_request *x, CURLM *multi)
{
    if (!x->is_open || !x->due_ns || clock_ns() < x->due_ns)
        return;
    x->due_ns = 0;
    x->r->net.multi_add_handle(multi, x->easy);
}

/* Finish requests that have ended.  A started one has is_open set until then. */
static void collect(struct remote *r, CURLM *multi)
{
    CURLMsg *m;
    int left;
    while ((m = r->net.multi_info_read(multi, &left))) {
        struct remote_request *x;
        CURLcode rc = m->data.result;
        if (m->msg != CURLMSG_DONE)
            continue;
        r->net.easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, &x);
        if (rc == CURLE_OK && wait_for_server(x, multi))
            continue;
        remote_request_end(x, rc);
        remote_request_close(x, multi);
    }
}

int remote_answer(struct remote *r, json_t *prompt, struct answer *a, const volatile sig_atomic_t *stop, struct err *e)
{
    struct remote_request x;
    struct sigaction before;
    CURLM *multi = r->net.multi_init();
    cli_ignore_pipe(&before);
    int running, rc = multi ? remote_request_start(&x, r, multi, a, prompt, e) : err_nomem(e, "request");
    while (rc == 0 && x.is_open) {
        start_due(&x, multi);
        r->net.multi_perform(multi, &running);
        collect(r, multi);
        if (x.is_open && stop && *stop) {
            x.asked_stop = 1;
            remote_request_end(&x, CURLE_OK);
            remote_request_close(&x, multi);
        } else if (x.is_open) {
            r->net.multi_poll(multi, NULL, 0, 100, NULL);
        }
    }
    if (multi)
        r->net.multi_cleanup(multi);
    cli_restore_pipe(&before);
    if (rc == 0 && x.error.code != ERR_NONE) {
        *e = x.error;
        rc = -1;
    }
    if (rc == 0 && a->nomem)
        rc = err_nomem(e, "answer");
    return rc;
}

/* ---- the server ---- */

static size_t on_list(char *data, size_t size, size_t n, void *user)
{
    struct remote_request *x = user;
    n *= size;
    return x->n_line + n > 16u << 20 || grow(&x->line, &x->n_line, &x->line_room, data, n) != 0 ? 0 : n;
}

/* Sleep if the server still loads its model.  1: ask again; 0: it sent no Retry-After. */
static int wait_for_list(struct remote_request *x, long status)
{
    if (!may_ask_again(x, status))
        return 0;
    struct timespec t = { (time_t)x->retry_after_s, 0 };
    while (nanosleep(&t, &t) != 0 && errno == EINTR)
        ;
    x->n_line = 0;
    x->retry_after_s = -1;
    return 1;
}

/* Use the first model of /v1/models. */
static int ask_model(struct remote *r, struct err *e)
{
    struct remote_request x = { .r = r, .retry_after_s = -1 };
    const struct net *n = &r->net;
    struct sigaction before;
    char *url = NULL;
    long status = 0;
    int rc = -1;
    cli_ignore_pipe(&before);
    x.easy = n->easy_init();
    if (!x.easy || asprintf(&url, "%s/models", r->base) < 0) {
        err_nomem(e, "request");
    } else if ((rc = set_common(r, x.easy, &x.headers, url, x.curl_error, e)) == 0) {
        n->easy_setopt(x.easy, CURLOPT_WRITEFUNCTION, on_list);
        n->easy_setopt(x.easy, CURLOPT_WRITEDATA, &x);
        n->easy_setopt(x.easy, CURLOPT_HEADERFUNCTION, on_header);
        n->easy_setopt(x.easy, CURLOPT_HEADERDATA, &x);
        n->easy_setopt(x.easy, CURLOPT_TIMEOUT, (long)LIST_S);
        CURLcode c;
        do {
            c = n->easy_perform(x.easy);
            n->easy_getinfo(x.easy, CURLINFO_RESPONSE_CODE, &status);
        } while (c == CURLE_OK && wait_for_list(&x, status));
        if (c != CURLE_OK)
            rc = err_set(e, ERR_IO, "%s: %s", r->base, *x.curl_error ? x.curl_error : n->easy_strerror(c));
        else if (status != 200)
            rc = explain_status(r->base, status, x.line, x.n_line, e);
    }
    cli_restore_pipe(&before);
    json_t *j = rc == 0 ? json_loadb(x.line ? x.line : "", x.n_line, 0, NULL) : NULL;
    const char *id = json_string_value(json_object_get(json_array_get(json_object_get(j, "data"), 0), "id"));
    if (rc == 0 && !id)
        rc = err_set(e, ERR_FORMAT, "%s: it lists no model: name one with -m", r->base);
    else if (rc == 0 && !(r->model = strdup(id)))
        rc = err_nomem(e, "model");
    json_decref(j);
    free(url);
    remote_request_close(&x, NULL);
    return rc;
}

/* Add --json-schema, --grammar or --regex, by the names that servers use. */
static int add_shape(struct remote *r, struct err *e)
{
    const struct chat_options *o = r->o;
    size_t size;
    if (o->regex) {
        json_t *v = json_string(o->regex);
        if (!v)
            return err_set(e, ERR_FORMAT, "--regex: not UTF-8");
        json_object_set_new(r->fields, "regex", v);
    }
    if (o->grammar_file) {
        char *text = file_read(o->grammar_file, 16 << 20, &size, e);
        if (!text)
            return -1;
        json_t *v = json_stringn(text, size);
        free(text);
        if (!v)
            return err_set(e, ERR_FORMAT, "%s: not UTF-8", o->grammar_file);
        json_object_set_new(r->fields, "grammar", v);
    }
    if (o->schema_file) {
        json_t *schema = js_load(o->schema_file, 16 << 20, e);
        if (!schema)
            return -1;
        json_object_set_new(r->fields, "response_format",
                            json_pack("{s:s, s:{s:s, s:b, s:o}}", "type", "json_schema", "json_schema", "name",
                                      "answer", "strict", 1, "schema", schema));
    }
    return 0;
}

void remote_close(struct remote *r)
{
    if (!r)
        return;
    json_decref(r->fields);
    free(r->base);
    free(r->model);
    free(r);
}

/* Add the field "rag" of a request: collections of documents, or all of them. */
static int add_documents(const struct chat_options *o, json_t *fields, struct err *e)
{
    json_t *names = json_array();
    int all = 0, rc = 0;
    for (int i = 0; i < o->n_rag; i++) {
        all |= strcmp(o->rag[i], "*") == 0;
        rc |= json_array_append_new(names, json_string(o->rag[i]));
    }
    json_t *rag = all ? json_true() : json_pack("{s:O}", "collections", names);
    json_decref(names);
    return rc == 0 && json_object_set_new(fields, "rag", rag) == 0 ? 0
               : err_set(e, ERR_FORMAT, "--rag: a name is not UTF-8, or memory ran out");
}

struct remote *remote_open(const struct chat_options *o, struct err *e)
{
    struct remote *r = calloc(1, sizeof *r);
    size_t n = strlen(o->url), scheme = strncasecmp(o->url, "https://", 8) == 0 ? 8 : 7;
    if (!r) {
        err_nomem(e, "connection");
        return NULL;
    }
    r->o = o;
    while (n && o->url[n - 1] == '/')
        n--;
    int bare = n > scheme && !memchr(o->url + scheme, '/', n - scheme);
    int rc = asprintf(&r->base, "%.*s%s", (int)n, o->url, bare ? "/v1" : "") < 0 ? err_nomem(e, "URL")
                                                                                 : net_open(&r->net, e);
    if (rc == 0 && o->model)
        rc = (r->model = strdup(o->model)) ? 0 : err_nomem(e, "model");
    else if (rc == 0)
        rc = ask_model(r, e);
    if (rc == 0 && !(r->fields = json_pack("{s:s, s:b, s:{s:b}}", "model", r->model, "stream", 1, "stream_options",
                                           "include_usage", 1)))
        rc = err_set(e, ERR_FORMAT, "-m: the name is not UTF-8");
    if (rc == 0)
        rc = chat_options_fields(o, r->fields, e);
    if (rc == 0 && o->n_rag)
        rc = add_documents(o, r->fields, e);
    if (rc == 0)
        rc = add_shape(r, e);
    if (rc == 0)
        return r;
    remote_close(r);
    return NULL;
}

void remote_set_tools(struct remote *r, json_t *functions)
{
    if (json_array_size(functions))
        json_object_set(r->fields, "tools", functions);
    else
        json_object_del(r->fields, "tools");
}

int remote_set_options(struct remote *r, const struct chat_options *o, struct err *e)
{
    json_object_del(r->fields, "max_tokens");           /* 0 is sent as no field */
    return chat_options_fields(o, r->fields, e);
}

int remote_set_model(struct remote *r, const char *name)
{
    char *copy = strdup(name);
    if (!copy || json_object_set_new(r->fields, "model", json_string(name)) != 0) {
        free(copy);
        return -1;
    }
    free(r->model);
    r->model = copy;
    return 0;
}

const char *remote_model(const struct remote *r) { return r->model; }
const char *remote_url(const struct remote *r) { return r->base; }

/* ---- one prompt, or a file of them ---- */

/* The prompt as messages, or with --raw as a string. */
static json_t *question(const struct chat_options *o, const char *text, size_t size, struct err *e)
{
    json_t *message = chat_message("user", text, size),
           *system = o->system ? chat_message("system", o->system, strlen(o->system)) : NULL, *list;
    if (!message || (o->system && !system)) {
        json_decref(message);
        json_decref(system);
        err_set(e, ERR_FORMAT, "the prompt is not UTF-8");
        return NULL;
    }
    if (o->raw) {
        json_decref(message);
        return json_stringn(text, size);
    }
    list = json_array();
    if (system)
        json_array_append_new(list, system);
    json_array_append_new(list, message);
    return list;
}

static json_t *reply_json(const struct remote *r, const struct answer *a)
{
    const struct request_stats *s = &a->stats;
    json_t *j = json_pack("{s:s%, s:o, s:s, s:{s:f, s:f}}", "text", a->text ? a->text : "", a->size, "finish_reason",
                          js_text(a->reason), "model", r->model, "timings", "first_token_s", s->first_token_s,
                          "decode_s", s->decode_s);
    if (a->reasoning)
        json_object_set_new(j, "reasoning", json_stringn(a->reasoning, a->reasoning_size));
    if (a->has_usage)
        json_object_set_new(j, "usage", json_pack("{s:i, s:i, s:i, s:i}", "prompt_tokens", s->n_prompt,
                                                  "completion_tokens", s->n_generated, "total_tokens",
                                                  s->n_prompt + s->n_generated, "cached_tokens", s->n_cached));
    return j;
}

static int has_form(const struct chat_options *o) { return o->schema_file || o->grammar_file || o->regex; }

static int once(struct remote *r, const struct chat_options *o, struct err *e)
{
    struct answer a = { .stream = !o->json, .wraps = !o->no_wrap };
    json_t *prompt = question(o, o->text, o->text_size, e);
    int rc = prompt ? remote_answer(r, prompt, &a, NULL, e) : -1;
    if (rc == 0 && o->json)
        chat_print_json(reply_json(r, &a));
    else if (!o->json && prompt && (rc == 0 || a.size) && (a.size == 0 || a.text[a.size - 1] != '\n'))
        putchar('\n');
    if (rc == 0 && has_form(o) && a.finish == FINISH_LENGTH)
        rc = err_set(e, ERR_LIMIT, "the answer was cut off: it is not complete");
    answer_release(&a);
    json_decref(prompt);
    return rc;
}

struct remote_line { struct remote_request x; struct answer answer; json_t *prompt; struct err refused; int started; };

/* Print the answer to a line, or the reason why it is missing.  0: there is no complete answer. */
static int print_line(const struct remote *r, const struct chat_options *o, struct remote_line *l, int number)
{
    if (l->refused.code == ERR_NONE && l->x.error.code != ERR_NONE)
        l->refused = l->x.error;
    else if (l->refused.code == ERR_NONE && l->answer.nomem)
        err_nomem(&l->refused, "answer");
    if (l->refused.code != ERR_NONE) {
        cli_note(prog, "%s: line %d: %s", o->batch, number, l->refused.msg);
        if (o->json)
            chat_print_json(json_pack("{s:o}", "error", js_text(l->refused.msg)));
        else
            printf("error: %s\n", cli_plain(l->refused.msg, sizeof l->refused.msg, l->refused.msg));
    } else if (o->json) {
        chat_print_json(reply_json(r, &l->answer));
    } else {
        chat_print_escaped(l->answer.text ? l->answer.text : "", l->answer.size);
    }
    const int cut = has_form(o) && l->refused.code == ERR_NONE && l->answer.finish == FINISH_LENGTH;
    if (cut)
        cli_note(prog, "%s: line %d: the answer was cut off: it is not complete", o->batch, number);
    cli_flush();
    answer_release(&l->answer);
    return l->refused.code == ERR_NONE && !cut;
}

/* Run the requests of all lines, --parallel at once, and print the answers in the order of the
 * lines. */
static int run_lines(struct remote *r, const struct chat_options *o, struct remote_line *lines, int n, struct err *e)
{
    CURLM *multi = r->net.multi_init();
    int started = 0, printed = 0, active = 0, n_failed = 0, running;
    struct sigaction before;
    if (!multi)
        return err_nomem(e, "connections");
    cli_ignore_pipe(&before);
    while (printed < n && !ferror(stdout)) {
        for (; started < n && active < o->parallel; started++) {
            struct remote_line *l = &lines[started];
            if (l->refused.code == ERR_NONE && remote_request_start(&l->x, r, multi, &l->answer, l->prompt,
                                                                    &l->refused) == 0)
                active++;
        }
        for (int i = printed; i < started; i++)
            start_due(&lines[i].x, multi);
        r->net.multi_perform(multi, &running);
        collect(r, multi);
        active = 0;
        for (int i = printed; i < started; i++)
            active += lines[i].x.is_open;
        for (; printed < started && !lines[printed].x.is_open; printed++)
            n_failed += !print_line(r, o, &lines[printed], printed + 1);
        if (active)
            r->net.multi_poll(multi, NULL, 0, 200, NULL);
    }
    for (int i = 0; i < n; i++)
        if (lines[i].x.is_open)
            remote_request_close(&lines[i].x, multi);
    r->net.multi_cleanup(multi);
    cli_restore_pipe(&before);
    return n_failed ? err_set(e, ERR_LIMIT, "%s: %d of %d prompts have no %sanswer", o->batch, n_failed, n,
                              has_form(o) ? "complete " : "") : 0;
}

static int batch(struct remote *r, const struct chat_options *o, struct err *e)
{
    int is_stdin = strcmp(o->batch, "-") == 0, n = 0, rc = -1;
    size_t size;
    FILE *f = is_stdin ? stdin : fopen(o->batch, "r");
    if (!f)
        return err_sys(e, "%s", o->batch);
    char *text = chat_read_all(f, o->batch, &size, e), *p = text;
    for (size_t i = 0; text && i < size; i++)
        n += text[i] == '\n' || i == size - 1;
    struct remote_line *lines = calloc((size_t)n + 1, sizeof *lines);
    if (!lines)
        err_nomem(e, "prompts");
    for (int i = 0; lines && text && i < n; i++) {
        const char *end = memchr(p, '\n', (size_t)(text + size - p));
        size_t length = (size_t)((end ? end : text + size) - p);      /* the line may contain zero bytes */
        if (chat_prompt_is_empty(o, p, length))
            err_set(&lines[i].refused, ERR_FORMAT, CHAT_EMPTY);
        else
            lines[i].prompt = question(o, p, length, &lines[i].refused);
        p += length + 1;
    }
    if (lines && text)
        rc = run_lines(r, o, lines, n, e);
    for (int i = 0; lines && i < n; i++) {
        json_decref(lines[i].prompt);
        answer_release(&lines[i].answer);
    }
    free(lines);
    free(text);
    if (!is_stdin)
        fclose(f);
    return rc;
}

int remote_run(struct remote *r, const struct chat_options *o)
{
    struct err e;
    if ((o->batch ? batch(r, o, &e) : once(r, o, &e)) == 0)
        return cli_finish(prog);
    cli_flush();
    return cli_fail(prog, &e);
}
