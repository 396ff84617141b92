/* call_answer.c - write the common parts of all answers: usage, server-sent events, errors. */
#include "libcommon/serve/api/internal.h"

#include <stdio.h>
#include <string.h>

void call_totals(const struct call *c, struct token_counts *t)
{
    *t = c->rounds ? c->rounds->before : (struct token_counts){ .prompt = 0 };
    for (int i = 0; i < c->n_prompts; i++)
        t->prompt += c->prompts[i].n_ids;
    for (int i = 0; i < c->n_choices; i++) {
        const struct choice *ch = &c->choices[i];
        t->completion += ch->stats.n_generated;
        t->reasoning += ch->n_reasoning;
        t->drafted += ch->stats.n_drafted;
        t->accepted += ch->stats.n_accepted;
        t->predicted_right += ch->stats.n_predicted_right;
        t->predicted_wrong += ch->stats.n_predicted_wrong;
        /* count the cached tokens of a prompt once, though all its answers share the prefix */
        if (i == 0 || ch->prompt != c->choices[i - 1].prompt)
            t->cached += ch->stats.n_cached;
    }
}

void call_speculation(const struct call *c, struct buf *out)
{
    struct token_counts t;
    if (!call_has_drafts(c) || !(c->lm->m.counts_drafts || c->draft.use != DRAFT_DEFAULT || c->draft.n_predicted))
        return;
    call_totals(c, &t);
    buf_printf(out, ",\"speculation\":{\"drafted_tokens\":%d,\"accepted_tokens\":%d}", t.drafted, t.accepted);
}

void call_usage(const struct call *c, struct buf *out)
{
    struct token_counts t;
    call_totals(c, &t);
    if (call_embeds(c)) {
        buf_printf(out, "{\"prompt_tokens\":%d,\"total_tokens\":%d}", t.prompt, t.prompt);
        return;
    }
    buf_printf(out, "{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d,\"prompt_tokens_details\":{\"cached_tokens\":%d}",
               t.prompt, t.completion, t.prompt + t.completion, t.cached);
    const int thinks = c->lm->thinks || tool_format_has_channels(c->lm->calls_form);
    if (thinks || c->predicts) {
        buf_str(out, ",\"completion_tokens_details\":{");
        if (thinks)
            buf_printf(out, "\"reasoning_tokens\":%d", t.reasoning);
        if (c->predicts)
            buf_printf(out, "%s\"accepted_prediction_tokens\":%d,\"rejected_prediction_tokens\":%d",
                       thinks ? "," : "", t.predicted_right, t.predicted_wrong);
        buf_str(out, "}");
    }
    call_speculation(c, out);
    buf_str(out, "}");
}

const char *call_finish_name(enum finish f) { return f == FINISH_LENGTH ? "length" : "stop"; }

void call_send_event(struct call *c)
{
    if (c->conn && (c->line.failed || c->head.failed)) {
        conn_break(c->conn);
        buf_release(&c->line);
    }
    if (c->conn && c->form->on_socket)
        conn_send_text(c->conn, c->line.data, c->line.size);
    else if (c->conn)
        conn_write(c->conn, c->line.data, c->line.size);
    c->line.size = 0;
}

const char *call_event_begin(const struct call *c) { return c->form->on_socket ? "" : "data: "; }
const char *call_event_end(const struct call *c) { return c->form->on_socket ? "" : "\n\n"; }

void call_begin_stream(struct call *c) { call_begin_lines(c, "text/event-stream; charset=utf-8"); }

void call_begin_lines(struct call *c, const char *type)
{
    if (c->form->on_socket)                     /* status and headers were sent in the handshake */
        return;
    conn_add_header(c->conn, "Cache-Control", "no-cache");
    conn_add_header(c->conn, "X-Accel-Buffering", "no");        /* nginx would buffer the events */
    conn_begin(c->conn, 200, type);
    metrics_count(&c->s->metrics, c->route, 200);
}

void call_head(const struct call *c, const char *object, struct buf *out)
{
    buf_printf(out, "{\"id\":\"%s\",\"object\":\"%s\",\"created\":%lld,\"model\":", c->id, object,
               (long long)c->created);
    buf_json(out, call_model(c), strlen(call_model(c)));
    buf_str(out, ",\"system_fingerprint\":\"zse-" ZSE_VERSION "\",\"choices\":[");
}

void call_end_event(struct call *c, const char *finish)
{
    if (finish)
        buf_printf(&c->line, ",\"finish_reason\":\"%s\"}]", finish);
    else
        buf_str(&c->line, ",\"finish_reason\":null}]");
    buf_add(&c->line, c->more.data, c->more.size);
    c->line.failed |= c->more.failed;
    c->more.size = 0;
    if (c->running_usage) {
        buf_str(&c->line, ",\"usage\":");
        call_usage(c, &c->line);
    } else if (c->include_usage) {
        buf_str(&c->line, ",\"usage\":null");
    }
    buf_printf(&c->line, "}%s", call_event_end(c));
    call_send_event(c);
}

void call_close_stream(struct call *c)
{
    if (!c->form->on_socket)
        conn_end(c->conn);
    else if (c->s->draining)
        conn_websocket_close(c->conn, 1001);
}

void call_end_stream(struct call *c)
{
    if (c->include_usage) {
        buf_add(&c->line, c->head.data, c->head.size);
        buf_str(&c->line, "],\"usage\":");
        call_usage(c, &c->line);
        buf_printf(&c->line, "}%s", call_event_end(c));
        call_send_event(c);
    }
    buf_printf(&c->line, "%s[DONE]%s", call_event_begin(c), call_event_end(c));
    call_send_event(c);
    call_close_stream(c);
}

void call_end_answer(struct call *c, struct buf *out)
{
    buf_str(out, "],\"usage\":");
    call_usage(c, out);
    rounds_stop_json(c, "call_", out);
    rounds_messages_json(c, out);
    documents_json(c, out);
    buf_str(out, "}");
    reply_json(c->s, c->conn, 200, out);
    buf_release(out);
}

void call_fail_answer(struct call *c, const struct problem *p)
{
    if (!c->conn)
        return;
    if (!c->form->on_socket && conn_status(c->conn) == 0) {
        const int loads = strcmp(p->code, LOADS_CODE) == 0;
        char wait[16];
        snprintf(wait, sizeof wait, "%d", loads ? LOAD_EVERY_S : 1);
        if (loads || p->status == 503 || (p->status == 429 && strcmp(p->code, "tenant_memory") == 0))
            conn_set_header(c->conn, "Retry-After", wait);
        reply_problem(c->s, c->conn, p);
        return;
    }
    record_error(call_record(c), p);
    buf_str(&c->line, call_event_begin(c));     /* the status was sent when the stream began */
    problem_json(p, &c->line);
    buf_str(&c->line, call_event_end(c));
    call_send_event(c);
    call_close_stream(c);
}
