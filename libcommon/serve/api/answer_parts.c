/* answer_parts.c - split the answers of a conversation into parts: text, reasoning, calls. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/serve/api/calls.h"

void choice_release(struct choice *ch)
{
    for (int i = 0; i < ch->n_parts; i++) {
        free(ch->part[i].id);
        free(ch->part[i].name);
        buf_release(&ch->part[i].text);
    }
    free(ch->part);
    tool_parser_close(ch->parser);
}

int choice_calls(const struct choice *ch)
{
    int n = 0;
    for (int i = 0; i < ch->n_parts; i++)
        n += ch->part[i].kind == PART_CALL;
    return n;
}

int choice_cut(const struct choice *ch)
{
    const struct answer_part *p = ch->n_parts ? &ch->part[ch->n_parts - 1] : NULL;
    if (!ch->stop || !p || p->kind != PART_CALL)
        return 0;
    json_t *arguments = json_loadb(p->text.data ? p->text.data : "", p->text.size, 0, NULL);
    json_decref(arguments);
    return !arguments;
}

void choice_text(const struct choice *ch, enum answer_part_kind kind, struct buf *out)
{
    for (int i = 0; i < ch->n_parts; i++)
        if (ch->part[i].kind == kind) {
            buf_add(out, ch->part[i].text.data, ch->part[i].text.size);
            out->failed |= ch->part[i].text.failed;
        }
}

static struct answer_part *new_part(struct choice *ch, enum answer_part_kind kind)
{
    if ((ch->n_parts & (ch->n_parts - 1)) == 0) {               /* the array grows to the next power of 2 */
        struct answer_part *p = realloc(ch->part, (ch->n_parts ? 2 * (size_t)ch->n_parts : 1) * sizeof *p);
        if (!p)
            return NULL;
        ch->part = p;
    }
    ch->part[ch->n_parts] = (struct answer_part){ .kind = kind, .index = ch->n_parts };
    return &ch->part[ch->n_parts++];
}

static void no_memory(struct choice *ch)
{
    if (!ch->call->problem.status)
        problem_nomem(&ch->call->problem);
    call_cancel(ch->call);
}

/* Append text to the last part if it is of this kind, else begin a new part. */
static void add_delta(struct choice *ch, enum answer_part_kind kind, const char *text, size_t size)
{
    struct answer_part *p = ch->n_parts ? &ch->part[ch->n_parts - 1] : NULL;
    int begins = !p || p->kind != kind;
    if (size == 0 || ch->call->problem.status)
        return;
    if (begins && !(p = new_part(ch, kind))) {
        no_memory(ch);
        return;
    }
    buf_add(&p->text, text, size);
    ch->call->form->delta(ch->call, ch, p, begins, text, size);
}

static void on_part(void *user, const struct tool_event *ev)
{
    struct choice *ch = user;
    struct answer_part *p;
    if (ch->call->problem.status)       /* memory ran out, and the last part may be incomplete */
        return;
    switch (ev->kind) {
    case TOOL_CONTENT:
        add_delta(ch, PART_TEXT, ev->text, ev->size);
        break;
    case TOOL_REASONING:
        add_delta(ch, PART_REASONING, ev->text, ev->size);
        break;
    case TOOL_ARGUMENTS:
        add_delta(ch, PART_CALL, ev->text, ev->size);
        break;
    case TOOL_CALL:
        if (!(p = new_part(ch, PART_CALL)) || !(p->id = strdup(ev->id)) || !(p->name = strndup(ev->text, ev->size)))
            no_memory(ch);
        else
            ch->call->form->delta(ch->call, ch, p, 1, "", 0);
        break;
    }
}

int conversation_open_parser(struct choice *ch)
{
    const struct call *c = ch->call;
    struct err e;
    const struct tool_parser_options o = { .tools = c->conversation.tools, .reasoning = c->starts_thinking,
                                           .no_calls = !c->conversation.tools || c->conversation.choice == CALLS_NONE,
                                           .stream_arguments = 1, .seed = rng_u64(&c->s->ids), .on_event = on_part,
                                           .user = ch };
    if (!c->raw_text)
        return 0;
    ch->parser = tool_parser_open(c->lm->calls_form, &o, &e);
    return ch->parser ? 0 : -1;
}

void conversation_event(struct call *c, struct choice *ch, const struct events *b, const struct event *ev)
{
    struct buf reasoning = { 0 }, text = { 0 };
    const char *new_text = ev->text_size ? b->bytes.data + ev->text : "";
    struct err e;
    if (ch->parser) {
        ch->n_reasoning += ev->id >= 0 && tool_parser_thinking(ch->parser);
        if (tool_parser_push(ch->parser, new_text, ev->text_size, &e) != 0 ||
            (ev->last && tool_parser_finish(ch->parser, &e) != 0))
            no_memory(ch);
        return;
    }
    int thinking = ch->split.state != SPLIT_ANSWER;
    splitter_push(&ch->split, new_text, ev->text_size, ev->last, &reasoning, &text);
    if (c->lm->thinks && ev->id >= 0 && thinking && (ch->split.state == SPLIT_REASONING || ch->n_reasoning))
        ch->n_reasoning++;
    add_delta(ch, PART_REASONING, reasoning.data, reasoning.size);
    add_delta(ch, PART_TEXT, text.data, text.size);
    if (reasoning.failed || text.failed)
        no_memory(ch);
    buf_release(&reasoning);
    buf_release(&text);
}
