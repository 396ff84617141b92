/* chat_conversation.c - run a conversation: commands, turns, and Ctrl-C.
 *
 * A turn renders the whole conversation through the template and submits its ids; the engine does
 * not recompute the part that its prefix cache still holds.  Where the new text begins with the old
 * text (always, unless the template rewrites answers), the ids of the old text are kept: tokenizing
 * a generated answer again may split it differently. */
#include "cmd/zse-chat.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "libcommon/engine/device_show.h"
#include "libcommon/tools/round.h"

static const char prog[] = "zse-chat";

struct chat_session {
    const struct chat_options *o;
    const struct opened_model *m;       /* NULL: remote answers */
    struct remote *remote;              /* NULL: m answers */
    struct prompter prompter;
    struct engine *engine;
    json_t *messages;                   /* all messages, for /save */
    /* oldest messages after the system message that are no longer sent, because the context is
     * full */
    size_t n_dropped;
    int is_full_noted;                  /* the user was told that the context is full */
    struct chat_file file;
    struct chat_history history;
    struct chat_tools *tools;           /* owned; NULL: none */
    json_t *functions;                  /* owned: the tools of the last request; NULL: none */
    json_t *lenient;                    /* owned: their names, as keys */
    struct grammar_vocab *vocab;        /* owned; NULL: not needed yet */
    struct answer_tools answer_tools;   /* its grammar is owned: of these functions, for calls */
    int failed;                         /* the last turn */
    int32_t *ids; int n_ids;            /* ids of the last turn, prompt and answer; NULL: none */
    char *known; size_t known_size;     /* the text of the first n_known ids; NULL if they do not match */
    int n_known;
    struct request_stats last;
    read_line_fn read_line;
    void *user;
};

/* Set by Ctrl-C during an answer. */
static volatile sig_atomic_t stop_answer;

static void on_interrupt(int number)
{
    (void)number;
    stop_answer = 1;
}

static void forget(struct chat_session *t)
{
    free(t->ids);
    t->ids = NULL;
    t->n_ids = 0;
    free(t->known);
    t->known = NULL;
}

/* ---- a turn ---- */

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

/* Keep the ids of the turn's prompt (ids becomes owned) and answer, and their text if the answer
 * ended by itself. */
static void remember(struct chat_session *t, const char *text, size_t size, int32_t *ids, int n, const struct answer *a)
{
    forget(t);
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

static int is_role(const json_t *message, const char *wanted)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && strcmp(role, wanted) == 0;
}

static json_t *system_message(const struct chat_session *t)
{
    json_t *first = json_array_get(t->messages, 0);
    return is_role(first, "system") ? first : NULL;
}

/* Messages of the next request: the system message and those not dropped.  New reference; NULL
 * without memory. */
static json_t *sent_messages(const struct chat_session *t)
{
    json_t *all = json_array(), *m;
    const size_t first = system_message(t) != NULL;
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
    const size_t first = system_message(t) != NULL, n = json_array_size(t->messages);
    size_t i = first + t->n_dropped + 1;
    while (i < n && !is_role(json_array_get(t->messages, i), "user"))
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

/* Text and ids of the conversation, without its oldest turns where too little space is left for an
 * answer.  Then twice that space is freed, so that the next turns find the prompt cached.  A
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

/* The functions of the next request, if they have changed: the servers of --mcp-config may start
 * again with others. */
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

/* Make calls in the answer to this prompt well-formed. */
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

/* Record the conversation.  a: the answer that ends it; NULL: a question does. */
static void record(struct chat_session *t, const struct answer *a)
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
        cli_note(prog, "the model called tools in %d rounds: no more of them run in this turn", round - 1);
    return whole && round < ROUNDS_DEFAULT;
}

/* The answer in rounds: the model calls tools, they run, and it continues with their results.  With
 * calls, parts becomes the list of texts and calls of the message that is appended; a is the last
 * answer. */
static int run_rounds(struct chat_session *t, struct answer *a, json_t **parts, int *n_refused, struct err *e)
{
    for (int round = 1;; round++) {
        *a = (struct answer){ .stream = !t->o->json };
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

/* The text of a message with parts. */
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

static void turn(struct chat_session *t, const char *text)
{
    struct err e;
    struct answer a;
    json_t *parts = NULL;
    const size_t n_dropped = t->n_dropped, n_before = json_array_size(t->messages);
    int n_refused = 0;
    json_t *message = chat_message("user", text, strlen(text));
    if (!message) {
        cli_note(prog, "that is not UTF-8");
        return;
    }
    json_array_append_new(t->messages, message);
    record(t, NULL);
    t->failed = 0;
    if (run_rounds(t, &a, &parts, &n_refused, &e) != 0) {
        cli_note(prog, "%s", e.msg);
        while (json_array_size(t->messages) > n_before)
            json_array_remove(t->messages, json_array_size(t->messages) - 1);
        t->n_dropped = n_dropped;
        t->failed = 1;
        record(t, NULL);
    } else {
        if (parts)
            join_parts(json_array_get(t->messages, json_array_size(t->messages) - 1));
        else
            json_array_append_new(t->messages, chat_message("assistant", a.text ? a.text : "", a.size));
        record(t, &a);
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

/* ---- commands ---- */

static const char help[] =
    "/help          this list\n"
    "/clear         start a new conversation\n"
    "/retry         answer the last question again\n"
    "/undo          take back the last question and its answer\n"
    "/system TEXT   set the system message; without TEXT: remove it\n"
    "/stats         figures of the last answer and of memory\n"
    "/save FILE     write the conversation as JSON\n"
    "/load FILE     go on with a saved conversation\n"
    "/history TEXT  list recorded conversations; with TEXT: those with these words\n"
    "/tools         list the tools that the model may call\n"
    "/title TEXT    give the conversation another title in the history\n"
    "/exit          leave (also Ctrl-D)\n"
    "A line that ends in \\ goes on in the next; \"\"\" begins and ends a text of several lines; // is a / at the start of a line.\n";

static void set_system(struct chat_session *t, const char *text)
{
    if (system_message(t))
        json_array_remove(t->messages, 0);
    if (*text && json_array_insert_new(t->messages, 0, chat_message("system", text, strlen(text))) != 0)
        cli_note(prog, "that is not UTF-8");
}

static void clear(struct chat_session *t)
{
    json_t *system = json_incref(system_message(t));
    json_array_clear(t->messages);
    if (system)
        json_array_append_new(t->messages, system);
    t->n_dropped = 0;
    t->is_full_noted = t->file.known = 0;
    chat_history_new(&t->history);
    forget(t);
}

/* Remove the last turn, from the user's message on; returns the text of that, malloc'd.  NULL:
 * there is none, which was said. */
static char *undo(struct chat_session *t)
{
    const size_t first = system_message(t) != NULL;
    size_t i = json_array_size(t->messages);
    while (i > first && !is_role(json_array_get(t->messages, i - 1), "user"))
        i--;
    const char *text = i > first ? json_string_value(json_object_get(json_array_get(t->messages, i - 1), "content"))
                                 : NULL;
    char *copy = text ? strdup(text) : NULL;
    if (!copy) {
        cli_note(prog, text ? "out of memory" : "there is no question yet");
        return NULL;
    }
    while (json_array_size(t->messages) >= i)
        json_array_remove(t->messages, json_array_size(t->messages) - 1);
    if (t->n_dropped > i - 1 - first)
        t->n_dropped = i - 1 - first;
    forget(t);
    record(t, NULL);
    return copy;
}

/* Ask the last question again. */
static void retry(struct chat_session *t)
{
    char *text = undo(t);
    if (text)
        turn(t, text);
    free(text);
}

/* Whether the next line of input is a yes. */
static int confirmed(struct chat_session *t)
{
    int interrupted = 0;
    cli_flush();
    char *line = t->read_line(t->user, CHAT_QUESTION, &interrupted);
    const int yes = line && !interrupted && (line[0] == 'y' || line[0] == 'Y');
    free(line);
    return yes;
}

/* Whether /save may write path: another conversation is replaced after a yes, any other file
 * never. */
static int may_replace(struct chat_session *t, const char *path)
{
    size_t n;
    switch (chat_file_kind(&t->file, path, &n)) {
    case CHAT_FILE_FREE: case CHAT_FILE_OWN:
        return 1;
    case CHAT_FILE_CONVERSATION:
        printf("%s holds another conversation of %zu message%s.  Replace it? (y/N)\n", path, n, plural((int64_t)n));
        return confirmed(t);
    case CHAT_FILE_OTHER:
        break;
    }
    cli_note(prog, "%s: exists and is not a saved conversation: it is not replaced", path);
    return 0;
}

static void save(struct chat_session *t, const char *arg)
{
    struct err e;
    char *path = cli_expand_home(arg);
    if (!path)
        cli_note(prog, "out of memory");
    else if (may_replace(t, path)) {
        if (chat_file_save(&t->file, path, t->messages, &e) != 0)
            cli_note(prog, "%s", e.msg);
        else
            printf("saved %zu message%s to %s\n", json_array_size(t->messages),
                   plural((int64_t)json_array_size(t->messages)), path);
    }
    free(path);
}

static void print_message(const json_t *m)
{
    const json_t *role = json_object_get(m, "role"), *content = json_object_get(m, "content");
    chat_write(json_string_value(role), json_string_length(role));
    fputs(": ", stdout);
    chat_write(json_string_value(content), json_string_length(content));
    putchar('\n');
}

static void load(struct chat_session *t, const char *arg)
{
    struct err e;
    size_t i;
    char *path = cli_expand_home(arg);
    json_t *messages = path ? chat_file_load(&t->file, path, &e) : NULL, *m;
    if (!messages) {
        cli_note(prog, "%s", path ? e.msg : "out of memory");
        free(path);
        return;
    }
    json_decref(t->messages);
    t->messages = messages;
    t->n_dropped = 0;
    t->is_full_noted = 0;
    chat_history_new(&t->history);
    forget(t);
    json_array_foreach(t->messages, i, m)
        print_message(m);
    free(path);
}

static void print_stats(const struct chat_session *t)
{
    struct engine_stats s;
    const struct request_stats *r = &t->last;
    char kv[CLI_BYTES], private[CLI_BYTES], file[CLI_BYTES], line[DEVICE_LINE];
    int computed = r->n_prompt - r->n_cached;
    if (t->n_dropped)
        printf("left out the oldest %zu of %zu messages\n", t->n_dropped, json_array_size(t->messages));
    if (t->remote) {
        if (r->n_generated)
            printf("prompt   %d token%s, %d of them new\nanswer   %d token%s: %.2f s, %.1f tokens/s; first token after %.2f s\n", r->n_prompt, plural(r->n_prompt), computed, r->n_generated,
                   plural(r->n_generated),
                   r->decode_s, r->decode_s > 0 ? (r->n_generated - 1) / r->decode_s : 0, r->first_token_s);
        printf("server   %s, model %s\n", remote_url(t->remote), remote_model(t->remote));
        return;
    }
    engine_stats(t->engine, &s);
    if (r->n_generated) {
        printf("prompt   %d token%s, %d of them new: %.2f s, %.1f tokens/s\n", r->n_prompt, plural(r->n_prompt),
               computed, r->prefill_s, r->prefill_s > 0 ? computed / r->prefill_s : 0);
        printf("answer   %d token%s: %.2f s, %.1f tokens/s; first token after %.2f s\n", r->n_generated,
               plural(r->n_generated), r->decode_s, r->decode_s > 0 ? (r->n_generated - 1) / r->decode_s : 0,
               r->first_token_s);
    }
    if (r->n_drafted)
        printf("drafts   %d token%s, %d of them right\n", r->n_drafted, plural(r->n_drafted), r->n_accepted);
    printf("context  %d of %d tokens\n", t->n_ids, context_len(t->m, &t->o->run));
    printf("memory   %s keys and values, %s private in all, %s weights\n", cli_bytes(kv, s.kv_bytes),
           cli_bytes(private, s.private_bytes), cli_bytes(file, t->m->model->weight_bytes));
    device_line(line, &s, t->m->model->config.n_layers);
    printf("device   %s\n", line);
}

static const struct { const char *name; int needs_file; } commands[] = {
    { "/help", 0 }, { "/clear", 0 }, { "/system", 0 }, { "/stats", 0 }, { "/save", 1 }, { "/load", 1 }, { "/exit", 0 },
    { "/history", 0 }, { "/title", 1 }, { "/tools", 0 }, { "/retry", 0 }, { "/undo", 0 },
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static size_t first_word(const char *line) { return strcspn(line, " \t\n"); }

/* Index of the command that a line begins with, or N_COMMANDS. */
static size_t find_command(const char *line)
{
    const size_t n = first_word(line);
    size_t i = 0;
    while (i < N_COMMANDS && (strlen(commands[i].name) != n || strncmp(line, commands[i].name, n) != 0))
        i++;
    return i;
}

/* Whether text may be a command.  Text of several lines may have been pasted: there a slash begins
 * a command only if the command exists. */
static int may_be_command(const char *text)
{
    return text[0] == '/' && (!strchr(text, '\n') || find_command(text) < N_COMMANDS);
}

static void set_title(struct chat_session *t, const char *title)
{
    struct err e;
    if (chat_history_title(&t->history, title, &e) != 0)
        cli_note(prog, "%s", e.msg);
}

/* Run a command.  1: leave. */
static int command(struct chat_session *t, const char *line)
{
    const size_t n = first_word(line), i = find_command(line);
    const char *arg = line + n + strspn(line + n, " \t\n");
    if (i == N_COMMANDS) {
        cli_note(prog, "%.*s is not a command: /help lists them (// begins a line with /)", (int)n, line);
        return 0;
    }
    if (commands[i].needs_file && !*arg) {
        cli_note(prog, "usage: %s %s", commands[i].name, i == 8 ? "TEXT" : "FILE");
        return 0;
    }
    switch (i) {
    case 0: fputs(help, stdout); break;
    case 1: clear(t); break;
    case 2: set_system(t, arg); break;
    case 3: print_stats(t); break;
    case 4: save(t, arg); break;
    case 5: load(t, arg); break;
    case 6: return 1;
    case 7: chat_history_list(*arg ? arg : NULL, 20, 0); break;
    case 8: set_title(t, arg); break;
    case 9:
        if (t->tools)
            chat_tools_list(t->tools);
        else
            cli_note(prog, "no tools: --tools and --mcp-config name them");
        break;
    case 10: retry(t); break;
    case 11: free(undo(t)); break;
    }
    cli_flush();
    return 0;
}

/* ---- input ---- */

static int append(char **text, const char *line)
{
    size_t n = *text ? strlen(*text) + 1 : 0;
    char *p = realloc(*text, n + strlen(line) + 1);
    if (!p)
        return -1;
    if (n)
        p[n - 1] = '\n';
    strcpy(p + n, line);
    *text = p;
    return 0;
}

/* Read one input of one or several lines, malloc'd.  NULL: *interrupted, or the end. */
static char *read_input(struct chat_session *t, int *interrupted)
{
    char *text = NULL, *line;
    int quoted = 0, more = 1;
    while (more && (line = t->read_line(t->user, text || quoted ? ". " : "> ", interrupted))) {
        char *from = line;
        size_t n = strlen(line);
        if (!text && !quoted && n >= 3 && memcmp(line, "\"\"\"", 3) == 0 && !strchr(line, '\n')) {
            /* but not in pasted lines */
            quoted = 1;
            from += 3;
            n -= 3;
        }
        int closes = quoted && n >= 3 && strcmp(from + n - 3, "\"\"\"") == 0;
        int goes_on = !quoted && n >= 1 && from[n - 1] == '\\';
        if (closes)
            from[n - 3] = '\0';
        if (goes_on)
            from[n - 1] = '\0';
        more = quoted ? !closes : goes_on;
        int skip = quoted && (!*from && (from != line || closes));      /* """ alone on a line adds no line */
        if (!skip && append(&text, from) != 0)
            more = 0;
        free(line);
    }
    if (*interrupted || (more && !text)) {
        free(text);
        return NULL;
    }
    return text ? text : strdup("");
}

static void loop(struct chat_session *t)
{
    int interrupted = 0, leave = 0;
    while (!leave) {
        interrupted = stop_answer = 0;
        char *text = read_input(t, &interrupted);
        if (interrupted)
            continue;
        if (!text)
            break;
        if (may_be_command(text) && text[1] != '/')
            leave = command(t, text);
        else if (text[strspn(text, " \t\n")])
            turn(t, text + (text[0] == '/' && text[1] == '/' && may_be_command(text + 1)));
        free(text);
    }
}

/* Go on with the conversation of --continue; on a terminal, show its last turn. */
static int reopen(struct chat_session *t, struct err *e)
{
    char *title;
    json_t *messages = chat_history_reopen(&t->history, t->o->reopen, &title, e);
    if (!messages)
        return -1;
    json_decref(t->messages);
    t->messages = messages;
    const size_t n = json_array_size(messages);
    if (t->read_line) {
        printf("%s  ", t->history.id);
        chat_write(title ? title : "", title ? strlen(title) : 0);
        printf(", %zu message%s\n", n, plural((int64_t)n));
        for (size_t i = n > 2 ? n - 2 : 0; i < n; i++)
            print_message(json_array_get(messages, i));
    }
    free(title);
    return 0;
}

static void print_banner(const struct chat_options *o, const struct opened_model *m, const struct remote *r)
{
    char size[CLI_BYTES];
    if (r)
        printf("%s at %s.  /help lists the commands.\n", remote_model(r), remote_url(r));
    else
        printf("%s: %s, %s of weights, context %d.  /help lists the commands.\n", m->name, m->model->config.arch,
               cli_bytes(size, m->model->weight_bytes), context_len(m, &o->run));
}

static void release(struct chat_session *t)
{
    forget(t);
    chat_history_close(&t->history);
    if (t->engine)
        engine_close(t->engine);
    grammar_close(t->answer_tools.grammar);
    grammar_vocab_close(t->vocab);
    chat_tools_close(t->tools);
    prompter_close(&t->prompter);
    json_decref(t->functions);
    json_decref(t->lenient);
    json_decref(t->messages);
}

int chat_converse(const struct chat_options *o, const struct opened_model *m, struct remote *r, read_line_fn read_line,
              void *user)
{
    struct err e;
    struct chat_session t = { .o = o, .m = m, .remote = r, .read_line = read_line, .user = user,
                              .messages = json_array(),
                              .history.off = o->no_history || (!read_line && !o->reopen) };
    struct sigaction action = { .sa_handler = on_interrupt }, before;
    sigemptyset(&action.sa_mask);
    if ((o->reopen && reopen(&t, &e) != 0) ||
        ((o->tools || o->mcp_config) && !(t.tools = chat_tools_open(o, &e))) ||
        (!r && (prompter_open(&t.prompter, m, o, 1, &e) != 0 || !(t.engine = open_engine(m, &o->run, 1, 0, 0, &e))))) {
        release(&t);
        return cli_fail(prog, &e);
    }
    /* A model that was not trained on ChatML does not end its turn by a token: stop at the text. */
    struct chat_options own = *o;
    static const char *const turn_end[] = { "<|im_end|>" };
    if (t.prompter.fallback && !own.n_stop) {
        own.stop = (const char **)turn_end;
        own.n_stop = 1;
        t.o = &own;
    }
    if (o->system)
        set_system(&t, o->system);
    if (read_line)
        print_banner(o, m, r);
    cli_flush();
    sigaction(SIGINT, &action, &before);
    if (read_line)
        loop(&t);
    else
        turn(&t, o->text);
    sigaction(SIGINT, &before, NULL);
    release(&t);
    return !read_line && t.failed ? CLI_FAILED : 0;
}
