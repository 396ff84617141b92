/* chat_turn.c - one turn of a conversation: a question, the rounds of its answer, what is kept.
 *
 * A turn renders the whole conversation through the template and submits its ids; the engine does
 * not recompute the part that its prefix cache still holds.  If the new text starts with the old
 * text (always, unless the template rewrites answers), the ids of the old text are kept: tokenizing
 * a generated answer again may split it differently. */
#include "cmd/chat_session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "libcommon/tools/round.h"

static const char prog[] = "zse-chat";

void session_forget(struct chat_session *t)
{
    free(t->ids);
    t->ids = NULL;
    t->n_ids = 0;
    free(t->known);
    t->known = NULL;
}

/* ---- ids that are kept ---- */

/* Token ids of the rendered conversation. */
static int conversation_ids(struct chat_session *t, const char *text, size_t size, int32_t **ids, int *n, struct err *e)
{
    if (t->known && size > t->known_size && memcmp(text, t->known, t->known_size) == 0) {
        int32_t *rest;
        int n_rest;
        if (prompter_encode(&t->prompter, text + t->known_size, size - t->known_size, 0, &rest, &n_rest, e) != 0)
            return -1;
        /* No merge crosses a special token, so the two parts may be joined there. */
        if (n_rest > 0 && tokenizer_is_special(t->m->tokenizer, rest[0])) {
            *n = t->n_known + n_rest;
            *ids = malloc((size_t)*n * sizeof **ids);
            if (*ids) {
                memcpy(*ids, t->ids, (size_t)t->n_known * sizeof **ids);
                memcpy(*ids + t->n_known, rest, (size_t)n_rest * sizeof **ids);
            }
            free(rest);
            return *ids ? 0 : err_nomem(e, "prompt");
        }
        free(rest);
    }
    return prompter_encode(&t->prompter, text, size, 0, ids, n, e);
}

/* Keep the ids of the turn's prompt and answer, and also their text if the answer ended by itself.
 * Takes ownership of ids. */
static void remember(struct chat_session *t, const char *text, size_t size, int32_t *ids, int n, const struct answer *a)
{
    session_forget(t);
    int32_t *all = realloc(ids, ((size_t)n + (size_t)a->n_ids) * sizeof *ids);
    if (!all) {
        free(ids);
        return;
    }
    if (a->n_ids)
        memcpy(all + n, a->ids, (size_t)a->n_ids * sizeof *ids);
    t->ids = all;
    t->n_ids = n + a->n_ids;
    if (a->nomem || a->finish != FINISH_STOP || t->o->n_stop || a->n_ids == 0)
        return;
    const char *said = a->parser ? a->raw : a->text;
    const size_t said_size = a->parser ? a->raw_size : a->size;
    t->known_size = size + said_size;
    t->n_known = t->n_ids - 1;          /* without the EOS, which the template writes */
    if ((t->known = malloc(t->known_size + 1))) {
        memcpy(t->known, text, size);
        if (said_size)
            memcpy(t->known + size, said, said_size);
    }
}

/* ---- a full context ---- */

int message_is(const json_t *message, const char *role)
{
    const char *own = json_string_value(json_object_get(message, "role"));
    return own && strcmp(own, role) == 0;
}

json_t *session_system(const struct chat_session *t)
{
    json_t *first = json_array_get(t->messages, 0);
    return message_is(first, "system") ? first : NULL;
}

/* Messages of the next request: the system message and those not dropped.  New reference; NULL
 * without memory. */
static json_t *sent_messages(const struct chat_session *t)
{
    json_t *all = json_array(), *m;
    const size_t first = session_system(t) != NULL;
    size_t i;
    json_array_foreach(t->messages, i, m)
        if ((i < first || i >= first + t->n_dropped) && chat_expand(all, m) != 0) {
            json_decref(all);
            return NULL;
        }
    return all;
}

/* Drop the oldest turn, from one message of the user to the next.  0: only the current turn is
 * left. */
static int drop_turn(struct chat_session *t)
{
    const size_t first = session_system(t) != NULL, n = json_array_size(t->messages);
    size_t i = first + t->n_dropped + 1;
    while (i < n && !message_is(json_array_get(t->messages, i), "user"))
        i++;
    if (i >= n)
        return 0;
    t->n_dropped = i - first;
    return 1;
}

static void say_full(struct chat_session *t)
{
    if (!t->is_full_noted)
        cli_note(prog, "the context is full: the oldest turns are left out from here on (/save still writes them)");
    t->is_full_noted = 1;
}

/* Number of tokens that a turn should leave for its answer. */
static int room_for_answer(const struct chat_session *t, int context)
{
    const int most = context / 4;
    return t->o->max_tokens && t->o->max_tokens < most ? t->o->max_tokens : most;
}

/* Render the conversation and tokenize it.  If too little space is left for an answer, drop the
 * oldest turns until twice that space is free, so that the next turns find the prompt cached.  A
 * conversation that cannot be shortened is accepted as long as one token is left. */
static int fit_context(struct chat_session *t, char **text, size_t *size, int32_t **ids, int *n, struct err *e)
{
    const int context = context_len(t->m, &t->o->run), want = room_for_answer(t, context);
    for (int room = want;; room = 2 * want) {
        json_t *messages = sent_messages(t);
        const int rc = messages ? prompter_render(&t->prompter, messages, t->functions, text, size, e)
                                : err_nomem(e, "conversation");
        json_decref(messages);
        if (rc != 0 || conversation_ids(t, *text, *size, ids, n, e) != 0)
            return -1;
        if (*n + room <= context || t->o->stop_when_full || !drop_turn(t))
            break;
        say_full(t);
        free(*text);
        free(*ids);
        *text = NULL;
        *ids = NULL;
    }
    if (*n < context)
        return 0;
    if (t->o->stop_when_full)
        return err_set(e, ERR_LIMIT, "the conversation has %d tokens, which leaves no room for an answer in a context of %d: the turn is not kept (/clear starts a new one)", *n, context);
    return err_set(e, ERR_LIMIT, "this turn alone has %d tokens, which leaves no room for an answer in a context of %d: it is not kept", *n, context);
}

/* ---- a turn ---- */

/* Answer through the server.  If it finds the conversation too long, retry without the oldest turn,
 * then drop twice as many turns each time. */
static int run_remote(struct chat_session *t, struct answer *a, struct err *e)
{
    for (int drop = 1;; drop *= 2) {
        json_t *messages = sent_messages(t);
        const int rc = messages ? remote_answer(t->remote, messages, a, &stop_answer, e)
                                : err_nomem(e, "conversation");
        json_decref(messages);
        t->last = a->stats;
        int dropped = 0;
        while (rc != 0 && e->code == ERR_LIMIT && !a->size && !t->o->stop_when_full && dropped < drop && drop_turn(t))
            dropped++;
        if (!dropped)
            return rc;
        say_full(t);
    }
}

/* Update the functions of the next request if they have changed: the servers of --mcp-config may
 * have restarted with others. */
static int update_tools(struct chat_session *t, struct err *e)
{
    json_t *functions = t->tools ? chat_tools_functions(t->tools) : NULL, *f;
    size_t i;
    if (t->tools && !functions)
        return err_nomem(e, "tools");
    if (json_array_size(functions) == 0 || (t->functions && json_equal(functions, t->functions))) {
        const int none = json_array_size(functions) == 0;
        json_decref(functions);
        if (none && t->functions) {
            json_decref(t->functions);
            t->functions = NULL;
        }
        if (none && t->remote)
            remote_set_tools(t->remote, NULL);
        return 0;
    }
    json_decref(t->functions);
    t->functions = functions;
    json_decref(t->lenient);
    t->lenient = json_object();
    json_array_foreach(functions, i, f)
        json_object_set_new(t->lenient, json_string_value(json_object_get(json_object_get(f, "function"), "name")),
                            json_true());
    grammar_close(t->answer_tools.grammar);
    t->answer_tools.grammar = NULL;
    if (t->remote)
        remote_set_tools(t->remote, functions);
    return 0;
}

/* Prepare the grammar that makes calls in the answer to this prompt well-formed. */
static int prepare_tools(struct chat_session *t, struct answer *a, const char *text, size_t size, struct err *e)
{
    struct answer_tools *x = &t->answer_tools;
    const int thinking = t->prompter.thinks && tool_format_begun(t->prompter.format, text, size);
    if (!t->functions)
        return 0;
    if (x->grammar && x->thinking != thinking) {
        grammar_close(x->grammar);
        x->grammar = NULL;
    }
    x->functions = t->functions;
    x->format = t->prompter.format;
    x->thinking = thinking;
    const struct tool_grammar_options o = { .tools = t->functions, .lenient = t->lenient, .choice = TOOL_AUTO,
                                            .parallel = 1, .reasoning = thinking, .no_reasoning = !t->prompter.thinks };
    if (!t->vocab && !(t->vocab = grammar_vocab_open(t->m->tokenizer, 0, e)))
        return -1;
    if (!x->grammar && !(x->grammar = tool_grammar_compile(t->vocab, x->format, &o, e)))
        return err_prefix(e, "tools");
    a->tools = x;
    return 0;
}

static int run_local(struct chat_session *t, struct answer *a, struct err *e)
{
    char *text = NULL;
    size_t size;
    int32_t *ids = NULL;
    int n, rc = fit_context(t, &text, &size, &ids, &n, e);
    if (rc == 0 && (rc = prepare_tools(t, a, text, size, e)) == 0 &&
        (rc = answer_start(a, t->engine, t->o, ids, n, e)) == 0) {
        while ((rc = engine_step(t->engine, e)) > 0) {
            answer_progress(a, t->engine);
            if (stop_answer)
                engine_cancel(t->engine, a->request);
        }
        t->last = a->stats;
        if (rc == 0 && a->finish == FINISH_ERROR) {
            *e = a->error;
            rc = -1;
        }
        if (rc == 0) {
            remember(t, text, size, ids, n, a);
            ids = NULL;
        }
    }
    free(ids);
    free(text);
    return rc;
}

static void say_cut(const struct chat_session *t, int n)
{
    const int by_option = t->o->max_tokens && n >= t->o->max_tokens;
    if (n)
        cli_note(prog, "the answer was cut after %d token%s: %s", n, n == 1 ? "" : "s",
                 by_option ? "that is all -n allows" : "the context is full");
    else
        cli_note(prog, "the answer was cut");
}

void session_record(struct chat_session *t, const struct answer *a)
{
    chat_history_sync(&t->history, t->messages, t->remote ? remote_model(t->remote) : t->m->name, a);
}

static void end_line(const struct answer *a)
{
    if (a->stream && a->size && a->text[a->size - 1] != '\n')
        putchar('\n');
}

/* Whether tools can run the calls of an answer. */
static int may_run(const struct chat_session *t, const struct answer *a, int round)
{
    int whole = a->n_calls > 0 && a->finish == FINISH_STOP && t->tools != NULL;
    for (int i = 0; i < a->n_calls; i++)
        whole = whole && a->call[i].id && a->call[i].name;
    if (whole && round >= ROUNDS_DEFAULT)
        cli_note(prog, "the model called tools in %d round%s: no more of them run in this turn", round - 1,
                 plural(round - 1));
    return whole && round < ROUNDS_DEFAULT;
}

/* Get the answer, in rounds: the model calls tools, they run, and it continues with their results.
 * If there were calls, *parts becomes the list of texts and calls of the message that is appended;
 * a is the last answer. */
static int run_rounds(struct chat_session *t, struct answer *a, json_t **parts, int *n_refused, struct err *e)
{
    for (int round = 1;; round++) {
        *a = (struct answer){ .stream = !t->o->json, .wraps = !t->o->no_wrap };
        if (update_tools(t, e) != 0 || (t->remote ? run_remote : run_local)(t, a, e) != 0)
            return -1;
        const int more = may_run(t, a, round);
        if (more && !*parts) {
            json_t *m = json_pack("{s:s, s:s, s:[]}", "role", "assistant", "content", "", "parts");
            *parts = json_object_get(m, "parts");
            if (json_array_append_new(t->messages, m) != 0)
                return err_nomem(e, "conversation");
        }
        if (*parts && chat_add_text(*parts, a->text, a->size) != 0)
            return err_nomem(e, "conversation");
        if (!more)
            return 0;
        end_line(a);
        if (chat_tools_run(t->tools, a, round, *parts, t->read_line, t->user, &stop_answer, n_refused, e) != 0)
            return -1;
        if (stop_answer) {
            a->finish = FINISH_CANCELLED;
            a->size = 0;
            return 0;
        }
        answer_release(a);
    }
}

/* Set "content" of a message that has parts to their texts, one after the other. */
static void join_parts(json_t *message)
{
    const json_t *p, *text;
    char *all;
    size_t size, i;
    FILE *f = open_memstream(&all, &size);
    if (!f)
        return;
    json_array_foreach(json_object_get(message, "parts"), i, p)
        if (json_is_string(text = json_object_get(p, "text")))
            fwrite(json_string_value(text), 1, json_string_length(text), f);
    if (fclose(f) == 0)
        json_object_set_new(message, "content", json_stringn(all, size));
    free(all);
}

static void print_turn_json(const struct chat_session *t, const struct answer *a, const json_t *parts)
{
    const struct request_stats *s = &a->stats;
    const json_t *m = json_array_get(t->messages, json_array_size(t->messages) - 1), *p;
    json_t *calls = json_array();
    size_t i;
    json_array_foreach(parts, i, p) {
        json_t *call = json_object_get(p, "name") ? json_copy((json_t *)(uintptr_t)p) : NULL;
        if (call && json_object_del(call, "type") == 0)
            json_array_append_new(calls, call);
    }
    chat_print_json(json_pack("{s:O, s:s, s:o, s:{s:i, s:i, s:i}}", "text", json_object_get(m, "content"), "finish_reason",
                              finish_name(a->finish), "tool_calls", calls, "usage", "prompt_tokens", s->n_prompt,
                              "completion_tokens", s->n_generated, "cached_tokens", s->n_cached));
}

void session_turn(struct chat_session *t, const char *text)
{
    struct err e;
    struct answer a;
    json_t *parts = NULL;
    const size_t n_dropped = t->n_dropped, n_before = json_array_size(t->messages);
    int n_refused = 0;
    json_t *message = chat_message("user", text, strlen(text));
    if (!message) {
        cli_note(prog, "that is not UTF-8");
        t->failed = 1;
        return;
    }
    json_array_append_new(t->messages, message);
    session_record(t, NULL);
    t->failed = 0;
    if (run_rounds(t, &a, &parts, &n_refused, &e) != 0) {
        cli_note(prog, "%s", e.msg);
        while (json_array_size(t->messages) > n_before)
            json_array_remove(t->messages, json_array_size(t->messages) - 1);
        t->n_dropped = n_dropped;
        t->failed = 1;
        session_record(t, NULL);
    } else {
        if (parts)
            join_parts(json_array_get(t->messages, json_array_size(t->messages) - 1));
        else
            json_array_append_new(t->messages, chat_message("assistant", a.text ? a.text : "", a.size));
        session_record(t, &a);
        if (t->o->json)
            print_turn_json(t, &a, parts);
        else if (a.size == 0 || a.text[a.size - 1] != '\n')
            putchar('\n');
        if (a.finish == FINISH_CANCELLED)
            cli_note(prog, "stopped");
        else if (a.finish == FINISH_LENGTH)
            say_cut(t, a.stats.n_generated);
        t->failed = n_refused && !t->read_line;
    }
    cli_flush();
    answer_release(&a);
}
