/* chat_tools.c - the tools of --tools and --mcp-config: their list, the permission to run them, and
 * a round of calls.
 *
 * An answer with calls is one message of the conversation.  Its "parts" are texts and calls with
 * their results, in the form in which the web interface stores them; chat_expand() turns it into
 * the messages of a request. */
#include "cmd/zse-chat.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cmd/cli.h"
#include "cmd/mcp_env.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/json.h"
#include "libcommon/base/thread.h"
#include "libcommon/base/utf8.h"
#include "libcommon/mcp/toolset.h"
#include "libcommon/tools/round.h"

static const char prog[] = "zse-chat";
#define START_S 30.0                    /* longest wait for MCP servers to start */
enum { SHOWN_BYTES = 200 };             /* most bytes shown of arguments and results */

struct chat_tools {
    struct toolset *set;
    const char **env;                   /* owned list */
    json_t *wanted;                     /* patterns of the tools that are offered */
    json_t *allowed;                    /* patterns of the tools that need no question; the answer "always" adds one */
    int yes;
};

/* ---- opening ---- */

/* The names of a list with commas; "all" is "*". */
static json_t *read_names(const char *text)
{
    json_t *list = json_array();
    while (text && *text) {
        const size_t n = strcspn(text, ",");
        if (n)
            json_array_append_new(list, n == 3 && strncmp(text, "all", 3) == 0 ? json_string("*") : json_stringn(text, n));
        text += n + (text[n] == ',');
    }
    return list;
}

/* Say which servers do not work. */
static void note_failed(struct chat_tools *c)
{
    json_t *servers = toolset_servers(c->set), *s;
    size_t i;
    json_array_foreach(servers, i, s) {
        const char *why = json_string_value(json_object_get(s, "error"));
        if (strcmp(json_string_value(json_object_get(s, "state")), "ready") != 0)
            cli_note(prog, "MCP server %s: %s", json_string_value(json_object_get(s, "name")), why ? why : "still starting");
    }
    json_decref(servers);
}

/* Without --tools: the tools of all MCP servers. */
static int want_servers(struct chat_tools *c)
{
    json_t *servers = toolset_servers(c->set), *s;
    size_t i;
    int bad = !servers;
    json_array_foreach(servers, i, s)
        bad |= json_array_append_new(c->wanted, json_sprintf("%s__*", json_string_value(json_object_get(s, "name"))));
    json_decref(servers);
    return bad;
}

/* Refuse names that are not those of tools. */
static int check_names(struct chat_tools *c, const char *option, const json_t *names, struct err *e)
{
    const json_t *v;
    size_t i;
    json_array_foreach(names, i, v) {
        json_t *one = json_pack("[O]", v), *found = one ? toolset_functions(c->set, one) : NULL;
        const size_t n = json_array_size(found);
        const int server = toolset_server_of(c->set, json_string_value(v));
        json_decref(one);
        json_decref(found);
        /* a server that has failed may come back with its tools */
        if (n == 0 && server < 0)
            return err_set(e, ERR_FORMAT, "%s: '%.80s' is no tool: expected calculator, datetime, parse_json, string_ops, all, or SERVER__TOOL of --mcp-config", option, json_string_value(v));
    }
    return 0;
}

struct chat_tools *chat_tools_open(const struct chat_options *o, struct err *e)
{
    struct chat_tools *c = calloc(1, sizeof *c);
    int rc = c && (c->env = mcp_env()) ? 0 : err_nomem(e, "tools");
    if (rc == 0 && !(c->set = toolset_open(o->mcp_config, c->env, NULL, NULL, e)))
        rc = -1;
    if (rc == 0) {
        c->wanted = read_names(o->tools);
        c->allowed = read_names(o->allow_tools);
        c->yes = o->yes;
        toolset_await(c->set, START_S, NULL);
        note_failed(c);
        if (!o->tools && want_servers(c))
            rc = err_nomem(e, "tools");
        else if (check_names(c, "--tools", c->wanted, e) != 0 || check_names(c, "--allow-tools", c->allowed, e) != 0)
            rc = -1;
    }
    if (rc == 0)
        return c;
    chat_tools_close(c);
    return NULL;
}

void chat_tools_close(struct chat_tools *c)
{
    if (!c)
        return;
    toolset_close(c->set);
    json_decref(c->wanted);
    json_decref(c->allowed);
    free(c->env);
    free(c);
}

json_t *chat_tools_functions(struct chat_tools *c) { return toolset_functions(c->set, c->wanted); }

/* ---- what the user sees ---- */

/* Print one line with the beginning of a text. */
static void print_short(FILE *f, const char *text, size_t size)
{
    char line[SHOWN_BYTES + 1], plain[SHOWN_BYTES + 1];
    size_t n = size < SHOWN_BYTES ? size : SHOWN_BYTES;
    if (n < size)
        n -= utf8_incomplete(text, n);
    for (size_t i = 0; i < n; i++)
        line[i] = text[i] == '\n' || text[i] == '\r' || text[i] == '\t' || !text[i] ? ' ' : text[i];
    line[n] = '\0';
    fprintf(f, "%s%s", cli_plain(plain, sizeof plain, line), n < size ? " ..." : "");
}

static void print_call(FILE *f, const struct answer_call *call)
{
    print_short(f, call->name, strlen(call->name));
    putc(' ', f);
    print_short(f, call->arguments ? call->arguments : "{}", call->arguments ? call->size : 2);
}

void chat_tools_list(struct chat_tools *c)
{
    json_t *functions = chat_tools_functions(c), *v;
    size_t i;
    json_array_foreach(functions, i, v) {
        const json_t *f = json_object_get(v, "function");
        const char *name = json_string_value(json_object_get(f, "name")),
                   *about = json_string_value(json_object_get(f, "description"));
        struct tool_facts facts;
        const int known = toolset_find(c->set, name, &facts);
        printf("%-24s  %-12s  ", name, !known || facts.read_only ? "" : facts.destructive ? "destructive" : "asks");
        print_short(stdout, about ? about : "", about ? strlen(about) : 0);
        putchar('\n');
    }
    note_failed(c);
    json_decref(functions);
}

/* ---- permission ---- */

static int is_allowed(const struct chat_tools *c, const char *name)
{
    struct tool_facts facts;
    return c->yes || mcp_named(c->allowed, name) ||
           (toolset_find(c->set, name, &facts) && (facts.approved || (facts.read_only && !facts.confirm)));
}

/* Ask the user whether the call may run.  1: it may. */
static int ask(struct chat_tools *c, const struct answer_call *call, read_line_fn read_line, void *user)
{
    int interrupted = 0;
    print_call(stdout, call);
    fputs("\nRun it? (y)es, (N)o, (a)lways\n", stdout);
    cli_flush();
    char *line = read_line(user, CHAT_QUESTION, &interrupted);
    const char first = line && !interrupted ? line[0] : 'n';
    free(line);
    if (first == 'a' || first == 'A')
        json_array_append_new(c->allowed, json_string(call->name));
    return first == 'y' || first == 'Y' || first == 'a' || first == 'A';
}

/* ---- running ---- */

struct tool_jobs {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int n_running;
    atomic_int cancelled;
};
struct tool_job {
    struct tool_jobs *all;
    struct toolset *set;
    const struct answer_call *call;
    pthread_t thread;
    int is_started, is_error;
    char *text;                         /* owned; NULL: e */
    struct err e;
};

static void run_job(struct tool_job *j)
{
    const struct answer_call *c = j->call;
    json_t *arguments = js_parse("arguments", c->arguments ? c->arguments : "{}", c->arguments ? c->size : 2, &j->e);
    if (json_is_object(arguments))
        j->text = toolset_run(j->set, c->name, arguments, &j->all->cancelled, &j->is_error, &j->e);
    else if (arguments)
        err_set(&j->e, ERR_FORMAT, "arguments: found %s, expected an object", js_kind(arguments));
    json_decref(arguments);
}

static void *run_thread(void *arg)
{
    struct tool_job *j = arg;
    run_job(j);
    pthread_mutex_lock(&j->all->lock);
    j->all->n_running--;
    pthread_cond_signal(&j->all->ended);
    pthread_mutex_unlock(&j->all->lock);
    return NULL;
}

/* Wait for all jobs; *stop ends them. */
static void wait_jobs(struct tool_jobs *all, const volatile sig_atomic_t *stop)
{
    pthread_mutex_lock(&all->lock);
    while (all->n_running) {
        struct timespec t;
        clock_gettime(CLOCK_REALTIME, &t);
        t.tv_nsec += 50000000;
        t.tv_sec += t.tv_nsec / 1000000000;
        t.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&all->ended, &all->lock, &t);
        if (*stop)
            atomic_store(&all->cancelled, 1);
    }
    pthread_mutex_unlock(&all->lock);
}

/* Append the call and its result to the parts, and show the result. */
static int add_part(json_t *parts, const struct tool_job *j, int round)
{
    const struct answer_call *c = j->call;
    const char *text = j->text ? j->text : j->e.msg;
    const int is_error = !j->text || j->is_error;
    size_t n = 0;
    char *content = round_content(text, strlen(text), is_error, &n);
    json_t *part = content ? json_pack("{s:s, s:s, s:s, s:s%, s:s%, s:s, s:i}", "type", "call", "id", c->id, "name", c->name,
                                       "arguments", c->arguments ? c->arguments : "{}", c->arguments ? c->size : 2,
                                       "result", content, n, "state", is_error ? "failed" : "done", "round", round) : NULL;
    fflush(stdout);
    fprintf(stderr, "%s: ", prog);
    print_call(stderr, c);
    fputs(": ", stderr);
    print_short(stderr, content ? content : "", n);
    putc('\n', stderr);
    free(content);
    return json_array_append_new(parts, part);
}

int chat_tools_run(struct chat_tools *c, const struct answer *a, int round, json_t *parts, read_line_fn read_line,
                   void *user, const volatile sig_atomic_t *stop, int *n_refused, struct err *e)
{
    struct tool_jobs all = { .n_running = 0 };
    struct tool_job job[ROUND_CALLS_MAX];
    const int n = a->n_calls < ROUND_CALLS_MAX ? a->n_calls : ROUND_CALLS_MAX;
    int bad = 0;
    pthread_mutex_init(&all.lock, NULL);
    pthread_cond_init(&all.ended, NULL);
    for (int i = 0; i < n; i++) {               /* every question comes before the first run */
        const struct answer_call *call = &a->call[i];
        job[i] = (struct tool_job){ .all = &all, .set = c->set, .call = call };
        job[i].is_started = is_allowed(c, call->name) || (read_line && ask(c, call, read_line, user));
        if (job[i].is_started)
            continue;
        ++*n_refused;
        err_set(&job[i].e, ERR_UNSUPPORTED, "the user did not allow this call");
        if (!read_line)
            cli_note(prog, "%s was not run: without a terminal it needs --allow-tools or --yes", call->name);
    }
    for (int i = 0; i < n; i++) {
        if (!job[i].is_started)
            continue;
        pthread_mutex_lock(&all.lock);
        all.n_running++;
        pthread_mutex_unlock(&all.lock);
        if (thread_start(&job[i].thread, run_thread, &job[i]) == 0)
            continue;
        job[i].is_started = 0;
        run_job(&job[i]);
        pthread_mutex_lock(&all.lock);
        all.n_running--;
        pthread_mutex_unlock(&all.lock);
    }
    wait_jobs(&all, stop);
    for (int i = 0; i < n; i++) {
        if (job[i].is_started)
            pthread_join(job[i].thread, NULL);
        bad |= add_part(parts, &job[i], round);
        free(job[i].text);
    }
    pthread_cond_destroy(&all.ended);
    pthread_mutex_destroy(&all.lock);
    return bad ? err_nomem(e, "results of tools") : 0;
}

/* ---- parts and messages ---- */

int chat_add_text(json_t *parts, const char *text, size_t size)
{
    return size ? json_array_append_new(parts, json_pack("{s:s, s:s%}", "type", "text", "text", text, size)) : 0;
}

/* Append to out a message with the collected text and calls, and the messages with their
 * results. */
static int flush(json_t *out, char **text, size_t *size, FILE **f, const json_t *parts, size_t from, size_t to)
{
    struct round_call call[ROUND_CALLS_MAX];
    int n = 0, bad = *f ? fclose(*f) : 0;
    *f = NULL;
    for (size_t i = from; i < to && n < ROUND_CALLS_MAX; i++) {
        const json_t *p = json_array_get(parts, i), *arguments = json_object_get(p, "arguments");
        const char *id = json_string_value(json_object_get(p, "id")), *name = json_string_value(json_object_get(p, "name"));
        if (id && name)
            call[n++] = (struct round_call){ id, name, json_is_string(arguments) ? json_string_value(arguments) : "{}",
                                             json_is_string(arguments) ? json_string_length(arguments) : 2 };
    }
    json_t *m = n ? round_message(*text ? *text : "", *text ? *size : 0, call, n)
                  : chat_message("assistant", *text ? *text : "", *text ? *size : 0);
    bad |= json_array_append_new(out, m);
    for (size_t i = from; i < to; i++) {
        const json_t *p = json_array_get(parts, i), *result = json_object_get(p, "result"), *id = json_object_get(p, "id");
        if (!json_is_string(id) || !json_is_string(json_object_get(p, "name")))
            continue;
        bad |= json_array_append_new(out, json_is_string(result)
                                     ? json_pack("{s:s, s:O, s:O}", "role", "tool", "tool_call_id", id, "content", result)
                                     : json_pack("{s:s, s:O, s:s}", "role", "tool", "tool_call_id", id, "content",
                                                 "This call was not run."));
    }
    free(*text);
    *text = NULL;
    return bad;
}

int chat_expand(json_t *out, json_t *message)
{
    const json_t *parts = json_object_get(message, "parts"), *p;
    size_t i, size = 0, first_call = 0, n = json_array_size(parts);
    char *text = NULL;
    FILE *f = NULL;
    int calls = 0, bad = 0, round = 0;
    if (!json_is_array(parts)) {
        json_t *plain = json_copy(message);
        return json_array_append_new(out, plain);
    }
    json_array_foreach(parts, i, p) {
        const char *type = json_string_value(json_object_get(p, "type"));
        const int is_call = type && strcmp(type, "call") == 0, is_text = type && strcmp(type, "text") == 0,
                  of = (int)json_integer_value(json_object_get(p, "round"));
        if (calls && (is_text || (is_call && of != round))) {
            bad |= flush(out, &text, &size, &f, parts, first_call, i);
            calls = 0;
        }
        if (is_call && !calls++) {
            first_call = i;
            round = of;
        }
        const json_t *t = json_object_get(p, "text");
        if (!is_text || !json_is_string(t))
            continue;
        if (!f && !(f = open_memstream(&text, &size)))
            return -1;
        fwrite(json_string_value(t), 1, json_string_length(t), f);
    }
    if (calls || f)
        bad |= flush(out, &text, &size, &f, parts, calls ? first_call : n, n);
    return bad;
}
