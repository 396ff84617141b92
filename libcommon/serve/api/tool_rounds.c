/* tool_rounds.c - run the tools that an answer calls, and start the next round with their
 * results. */
#include "libcommon/serve/api/tool_rounds.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/api/internal.h"
#include "libcommon/serve/tools/toolbox.h"
#include "libcommon/tools/round.h"

/* ---- the tools of a request ---- */

/* Read the patterns of server_tools, each of which must match a tool.  New reference; NULL with
 * *pr. */
static json_t *read_wanted(const struct call *c, const json_t *list, struct problem *pr)
{
    const json_t *v;
    size_t i;
    if (!json_is_array(list)) {
        problem_set(pr, 400, "server_tools", "invalid_type", "server_tools: found %s, expected a list of names",
                    js_kind(list));
        return NULL;
    }
    json_array_foreach(list, i, v) {
        json_t *one = json_is_string(v) ? json_pack("[O]", v) : NULL,
               *found = one ? toolbox_functions(c->s->toolbox, one) : NULL;
        const size_t n = json_array_size(found);
        json_decref(one);
        json_decref(found);
        if (n)
            continue;
        problem_set(pr, 400, "server_tools", "not_found", "server_tools: '%.80s' is no tool of /api/tools",
                    json_is_string(v) ? json_string_value(v) : js_kind(v));
        return NULL;
    }
    union { const json_t *in; json_t *out; } u = { .in = list };
    return json_incref(u.out);
}

/* Accept any schema of an MCP server's tool: the client cannot change it. */
static int add_lenient(struct call *c, const char *name)
{
    struct tool_facts facts;
    if (!toolbox_find(c->s->toolbox, name, &facts) || !facts.server)
        return 0;
    if (!c->conversation.lenient)
        c->conversation.lenient = json_object();
    return json_object_set_new(c->conversation.lenient, name, json_true());
}

int rounds_add_tools(struct call *c, json_t **wanted, struct problem *pr)
{
    const json_t *list = js_get(c->json, "server_tools"), *entry;
    json_t *functions;
    size_t i;
    int rc = 1;
    *wanted = NULL;
    if (!list && !c->conversation.all_tools)
        return 0;
    if (list && c->conversation.all_tools)
        return problem_set(pr, 400, "server_tools", NULL, "server_tools: found tools: \"server\", too, expected one of the two");
    if (list && !(*wanted = read_wanted(c, list, pr)))
        return -1;
    if (!(functions = toolbox_functions(c->s->toolbox, *wanted)))
        return problem_nomem(pr);
    if (json_array_size(functions) == 0)
        rc = problem_set(pr, 400, "server_tools", "not_found", "server_tools: no tools are named");
    json_array_foreach(functions, i, entry) {
        const json_t *f = json_object_get(entry, "function");
        if (rc == 1 && conversation_add_tool(&c->conversation, json_string_value(json_object_get(f, "name")),
                                             json_object_get(f, "description"), json_object_get(f, "parameters"),
                                             "server_tools", pr) != 0)
            rc = -1;
        if (rc == 1 && add_lenient(c, json_string_value(json_object_get(f, "name"))) != 0)
            rc = problem_nomem(pr);
    }
    json_decref(functions);
    return rc;
}

int rounds_open(struct call *c, struct problem *pr)
{
    const json_t *confirmed = js_get(c->json, "confirmed_tools");
    json_t *wanted;
    const int n = rounds_add_tools(c, &wanted, pr);
    if (n <= 0) {
        json_decref(wanted);
        return n;
    }
    struct tool_rounds *r = c->rounds = calloc(1, sizeof *r);
    if (!r || !(r->messages = json_array())) {
        json_decref(wanted);
        return problem_nomem(pr);
    }
    r->wanted = wanted;
    r->confirmed = confirmed;
    r->round = 1;
    r->max_tokens = c->max_tokens;
    if (confirmed && !json_is_array(confirmed))
        return problem_set(pr, 400, "confirmed_tools", "invalid_type", "confirmed_tools: found %s, expected a list of names",
                           js_kind(confirmed));
    if (c->params.n > 1)
        return problem_set(pr, 400, "n", "unsupported_parameter", "n: %d, but tools of the server work on one answer",
                           c->params.n);
    if (c->n_logprobs >= 0)
        return problem_set(pr, 400, "logprobs", "unsupported_parameter", "logprobs: not with tools of the server");
    /* the messages are kept until the last round, and each round's prompt needs copies of them */
    const size_t messages = c->scan.tree_bytes + c->scan.text_bytes;
    c->scan.text_bytes += c->scan.tree_bytes;
    return call_keep(c, messages, pr);
}

void rounds_close(struct call *c)
{
    struct tool_rounds *r = c->rounds;
    if (!r)
        return;
    batch_free(r->batch);
    json_decref(r->messages);
    json_decref(r->wanted);
    json_decref(r->stop_ids);
    buf_release(&r->text);
    buf_release(&r->reasoning);
    buf_release(&r->items);
    free(r);
    c->rounds = NULL;
}

/* ---- deciding about the calls of a round ---- */

int rounds_has(const struct call *c, const char *name)
{
    struct tool_facts facts;
    return c->rounds && (!c->rounds->wanted || mcp_named(c->rounds->wanted, name)) &&
           toolbox_find(c->s->toolbox, name, &facts);
}

static int needs_confirmation(const struct call *c, const char *name)
{
    struct tool_facts facts;
    return toolbox_find(c->s->toolbox, name, &facts) && facts.confirm && !mcp_named(c->rounds->confirmed, name);
}

/* Stop after this round because of call p, for the reason `why`. */
static void stop_for(struct tool_rounds *r, const char *why, const struct answer_part *p)
{
    if (r->stop != why) {
        json_decref(r->stop_ids);
        r->stop_ids = json_array();
        r->stop = why;
    }
    json_array_append_new(r->stop_ids, json_string(p->id));
}

void rounds_judge(struct call *c, struct choice *ch)
{
    static const char client[] = "client_function", confirm[] = "confirm", rounds[] = "max_rounds",
                      many[] = "too_many_calls", calls[] = "max_calls";
    struct tool_rounds *r = c->rounds;
    const int n = choice_calls(ch);
    const int most = c->params.max_tool_calls;
    const char *limit = r->round >= c->params.max_tool_rounds ? rounds : n > ROUND_CALLS_MAX ? many
                            : most && r->n_calls + n > most ? calls : NULL;
    if (ch->finish != FINISH_STOP || n == 0 || choice_cut(ch) || c->problem.status)
        return;
    for (int i = 0; i < ch->n_parts; i++) {
        const struct answer_part *p = &ch->part[i];
        if (p->kind != PART_CALL)
            continue;
        if (!rounds_has(c, p->name))
            stop_for(r, client, p);
        else if (r->stop != client && needs_confirmation(c, p->name))
            stop_for(r, confirm, p);
        else if (limit && (!r->stop || r->stop == limit))
            stop_for(r, limit, p);
    }
    r->runs_next = r->stop == NULL;
}

void call_id_json(const char *id, const char *prefix, struct buf *out)
{
    static const char ours[] = "call_";
    const size_t n = strncmp(id, ours, sizeof ours - 1) == 0 ? sizeof ours - 1 : 0;
    struct buf text = { 0 };
    buf_str(&text, n ? prefix : "");
    buf_str(&text, id + n);
    buf_json(out, text.data, text.size);
    out->failed |= text.failed;
    buf_release(&text);
}

void rounds_stop_json(const struct call *c, const char *prefix, struct buf *out)
{
    const struct tool_rounds *r = c->rounds;
    const json_t *id;
    size_t i;
    if (!r || !r->stop)
        return;
    buf_printf(out, ",\"tool_stop\":{\"reason\":\"%s\",\"ids\":[", r->stop);
    json_array_foreach(r->stop_ids, i, id) {
        buf_str(out, i ? "," : "");
        call_id_json(json_string_value(id), prefix, out);
    }
    buf_str(out, "]}");
    out->failed |= !r->stop_ids;
}

void rounds_messages_json(const struct call *c, struct buf *out)
{
    if (!c->rounds)
        return;
    char *list = json_dumps(c->rounds->messages, JSON_COMPACT);
    buf_str(out, ",\"tool_messages\":");
    buf_str(out, list ? list : "[]");
    out->failed |= !list;
    free(list);
}

/* ---- for the forms ---- */

const struct answer_part *choice_call(const struct choice *ch, int i)
{
    for (int k = 0; k < ch->n_parts; k++)
        if (ch->part[k].kind == PART_CALL && i-- == 0)
            return &ch->part[k];
    return NULL;
}

int choice_call_index(const struct choice *ch, const struct answer_part *p)
{
    int n = 0;
    for (int i = 0; i < p->index; i++)
        n += ch->part[i].kind == PART_CALL;
    return n;
}

const char *rounds_gap(const struct call *c, const struct choice *ch, const struct answer_part *p)
{
    if (!c->rounds || c->rounds->text.size == 0 || p->kind != PART_TEXT)
        return "";
    for (int i = 0; i < p->index; i++)
        if (ch->part[i].kind == PART_TEXT)
            return "";
    return "\n\n";
}

void rounds_text(const struct choice *ch, int kind, struct buf *out)
{
    const struct tool_rounds *r = ch->call->rounds;
    const struct buf *before = !r ? NULL : kind == PART_TEXT ? &r->text : &r->reasoning;
    if (before) {
        buf_add(out, before->data, before->size);
        out->failed |= before->failed;
    }
    for (int i = 0; i < ch->n_parts; i++)
        if ((int)ch->part[i].kind == kind) {
            buf_str(out, rounds_gap(ch->call, ch, &ch->part[i]));
            break;
        }
    choice_text(ch, (enum answer_part_kind)kind, out);
}

int rounds_number(const struct call *c, const struct choice *ch, const struct answer_part *p)
{
    const int before = choice_call_index(ch, p);
    if (!c->rounds)
        return p->index;
    return c->rounds->n_items + (p->kind == PART_CALL ? ch->n_parts - choice_calls(ch) + before : p->index - before);
}

const struct answer_part *rounds_streamed(const struct call *c, const struct choice *ch, int end)
{
    while (end > 0 && c->rounds && ch->part[end - 1].kind == PART_CALL)
        end--;
    return end > 0 ? &ch->part[end - 1] : NULL;
}

const char *rounds_server(const struct call *c, const char *name)
{
    struct tool_facts facts;
    return toolbox_find(c->s->toolbox, name, &facts) && facts.server ? facts.server : "zse";
}

static void event_head(const struct call *c, const char *type, const struct answer_part *p, struct buf *out)
{
    buf_printf(out, "{\"type\":\"%s\",\"round\":%d,\"id\":", type, c->rounds->round);
    buf_json(out, p->id, strlen(p->id));
    buf_str(out, ",\"name\":");
    buf_json(out, p->name, strlen(p->name));
}

void rounds_call_json(const struct call *c, const struct answer_part *p, struct buf *out)
{
    event_head(c, "call", p, out);
    buf_str(out, ",\"arguments\":");
    buf_json(out, p->text.data ? p->text.data : "{}", p->text.data ? p->text.size : 2);
    buf_str(out, "}");
}

void rounds_result_json(const struct call *c, const struct answer_part *p, const struct call_result *t, struct buf *out)
{
    event_head(c, "result", p, out);
    buf_str(out, ",\"content\":");
    buf_json(out, t->content, t->size);
    buf_printf(out, ",\"is_error\":%s,\"ms\":%.3f}", t->is_error ? "true" : "false", t->ms);
}

/* A WebSocket always streams. */
static int sends_events(const struct call *c) { return call_is_stream(c) || conn_is_websocket(c->conn); }

static void with_result(struct call *c, int i, result_fn *f)
{
    const struct tool_result t = batch_result(c->rounds->batch, i);
    size_t n = 0;
    char *content = round_content(t.text, t.size, t.is_error, &n);
    const struct call_result r = { content ? content : "", n, t.is_error, t.ms };
    f(c, choice_call(&c->choices[0], i), &r);
    free(content);
}

void rounds_each_result(struct call *c, result_fn *f)
{
    for (int i = 0; i < batch_size(c->rounds->batch); i++)
        with_result(c, i, f);
}

static void on_result(void *user, int i)
{
    struct call *c = user;
    if (c->conn && sends_events(c))
        with_result(c, i, c->form->tool_result);
    c->rounds->n_results++;
}

/* ---- from one round to the next ---- */

/* Make a list of the model's message of this round, in OpenAI's form, and the messages with the
 * results.  New reference; NULL without memory. */
static json_t *round_messages(const struct call *c)
{
    const struct choice *ch = &c->choices[0];
    struct buf text = { 0 }, reasoning = { 0 };
    struct round_call call[ROUND_CALLS_MAX];
    json_t *list = json_array();
    int n = 0;
    choice_text(ch, PART_TEXT, &text);
    choice_text(ch, PART_REASONING, &reasoning);
    for (int i = 0; i < ch->n_parts && n < ROUND_CALLS_MAX; i++) {
        const struct answer_part *p = &ch->part[i];
        if (p->kind == PART_CALL)
            call[n++] = (struct round_call){ p->id, p->name, p->text.data ? p->text.data : "", p->text.size };
    }
    json_t *m = text.failed ? NULL : round_message(text.data, text.size, call, n);
    int bad = !m || json_array_append_new(list, m) != 0 || reasoning.failed;
    if (!bad && reasoning.size)
        bad = json_object_set_new(m, "reasoning_content", conversation_string(&reasoning));
    for (int i = 0; i < batch_size(c->rounds->batch) && !bad; i++) {
        const struct tool_result t = batch_result(c->rounds->batch, i);
        bad = json_array_append_new(list, round_result(t.id, t.text, t.size, t.is_error));
    }
    buf_release(&text);
    buf_release(&reasoning);
    if (!bad)
        return list;
    json_decref(list);
    return NULL;
}

/* Number of bytes of these messages, text and trees, to reserve with call_keep. */
static size_t messages_bytes(const json_t *list)
{
    char *text = json_dumps(list, JSON_COMPACT);
    const size_t n = text ? strlen(text) : 0;
    free(text);
    return 3 * n + 4096 * json_array_size(list);
}

/* Append the messages of this round to the conversation and to the answer's list. */
static int add_messages(struct call *c, struct problem *pr)
{
    struct tool_rounds *r = c->rounds;
    json_t *list = round_messages(c), *plain = NULL;
    if (!list)
        return problem_nomem(pr);
    const size_t bytes = messages_bytes(list);
    int rc = call_keep(c, bytes, pr);
    c->scan.text_bytes += bytes;
    c->body_bytes += bytes;
    if (rc == 0 && !(plain = conversation_messages(list, pr)))
        rc = -1;
    if (rc == 0 && (json_array_extend(c->conversation.messages, plain) != 0 ||
                    json_array_extend(r->messages, list) != 0))
        rc = problem_nomem(pr);
    json_decref(plain);
    json_decref(list);
    return rc;
}

/* Add the text and the counts of the finished round to the totals. */
static void add_up(struct call *c)
{
    struct tool_rounds *r = c->rounds;
    const struct choice *ch = &c->choices[0];
    struct token_counts all;                    /* counts of all rounds so far */
    call_totals(c, &all);
    r->before = all;
    choice_text(ch, PART_TEXT, &r->text);
    choice_text(ch, PART_REASONING, &r->reasoning);
    r->said_role = ch->said_role;
    r->n_calls += choice_calls(ch);
}

/* Let the form keep its items of this round; their memory is reserved like that of messages. */
static int end_round(struct call *c, struct problem *pr)
{
    struct buf *items = &c->rounds->items;
    const size_t before = items->size;
    if (!c->form->round_end)
        return 0;
    c->form->round_end(c, &c->choices[0]);
    return items->failed ? problem_nomem(pr) : call_keep(c, ANSWER_COPIES * (items->size - before), pr);
}

static void next_round(struct call *c)
{
    struct tool_rounds *r = c->rounds;
    batch_free(r->batch);
    r->batch = NULL;
    r->runs_next = 0;
    r->round++;
    guard_settle(c->s, call_record(c), c->prompts[0].n_ids + c->choices[0].stats.n_generated);
    call_end_round(c);
    c->max_tokens = 0;
    if (r->max_tokens)
        c->max_tokens = r->max_tokens > r->before.completion ? r->max_tokens - r->before.completion : 1;
    c->conversation.choice = CALLS_AUTO;                /* a call that was required has been made */
    c->conversation.only = NULL;
    call_prepare_again(c);
}

static void on_done(void *user)
{
    struct call *c = user;
    struct tool_rounds *r = c->rounds;
    if (r->cancelled && !c->problem.status)
        problem_set(&c->problem, 503, NULL, "cancelled", "the model %s is being unloaded, or the server stops", c->lm->id);
    if (!c->problem.status && add_messages(c, &c->problem) == 0 && end_round(c, &c->problem) == 0) {
        add_up(c);
        next_round(c);
        return;
    }
    batch_free(r->batch);
    r->batch = NULL;
    r->runs_next = 0;
    call_conclude(c);
}

int rounds_continue(struct call *c)
{
    struct tool_rounds *r = c->rounds;
    struct tool_call calls[ROUND_CALLS_MAX];
    json_t *arguments[ROUND_CALLS_MAX];
    struct err e;
    int n = 0;
    if (!r || !r->runs_next || !c->conn || c->problem.status)
        return 0;
    for (int i = 0; i < c->choices[0].n_parts; i++) {
        const struct answer_part *p = &c->choices[0].part[i];
        if (p->kind != PART_CALL)
            continue;
        json_t *v = json_loadb(p->text.data ? p->text.data : "{}", p->text.data ? p->text.size : 2, 0, NULL);
        arguments[n] = v ? v : json_null();             /* the tool itself refuses arguments that are no object */
        calls[n] = (struct tool_call){ p->id, p->name, arguments[n] };
        n++;
        if (sends_events(c))
            c->form->tool_call(c, p);
    }
    r->n_results = 0;
    r->batch = toolbox_start(c->s, call_record(c), calls, n, on_result, on_done, c, &e);
    for (int i = 0; i < n; i++)
        json_decref(arguments[i]);
    if (!r->batch) {
        problem_set(&c->problem, 503, NULL, "overloaded", "%s", e.msg);
        return 0;
    }
    return 1;
}

int rounds_waiting(const struct call *c) { return c->rounds && c->rounds->batch; }
