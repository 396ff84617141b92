/* tool_rounds.h - an answer in several rounds: the model calls tools of the server, they run, and
 * the model continues with their results, until it answers without a call.
 *
 * A round passes through the stages of any call: prompt, grammar, submission, events.  When the
 * answer of a round has ended, rounds_judge() decides what happens to its calls.  If the server may
 * run all of them, they run in the threads of tools/toolbox.h, and their results become messages.
 * The prompt of the next round begins with the whole prompt of the last one, which is in the prefix
 * cache.  Otherwise the client gets the calls, like calls of its own functions.
 *
 * Limits: max_tool_rounds, and those of tools/round.h for the calls and results of a round; the
 * context, max_tokens and the request's time limit apply to all rounds together. */
#ifndef ZSE_SERVE_API_TOOL_ROUNDS_H
#define ZSE_SERVE_API_TOOL_ROUNDS_H

#include <jansson.h>

#include "libcommon/http/buf.h"
#include "libcommon/http/problem.h"

struct answer_part;
struct call;
struct choice;

/* Numbers of tokens: in prompts, and how many of them the prefix cache had; in answers, and how
 * many of them are reasoning; in drafts, as in request_stats. */
struct token_counts {
    int prompt, cached, completion, reasoning;
    int drafted, accepted, predicted_right, predicted_wrong;
};

/* The result of a call, for a form to write. */
struct call_result {
    const char *content; size_t size;   /* the text that the model reads; valid UTF-8 */
    int is_error;
    double ms;
};

struct tool_rounds {
    const json_t *confirmed;            /* borrowed from the body; NULL: none */
    json_t *messages;                   /* owned: messages of the finished rounds, in OpenAI's form */
    json_t *wanted;                     /* owned: the tools of the server that this request may use; NULL: all */
    int round;                          /* the current round, from 1 */
    int runs_next;                      /* set by rounds_judge: the server runs the calls of this round */
    /* set by rounds_judge if runs_next is 0: the reason ("confirm", ...); NULL: there are no
     * calls */
    const char *stop;
    json_t *stop_ids;                   /* owned: ids of the calls that caused the stop */
    struct tool_batch *batch;           /* the calls that are running; NULL: none */
    int said_role;                      /* choice.said_role, because every round makes new choices */
    int cancelled;                      /* the call was cancelled while tools ran */
    struct buf text, reasoning;         /* of the earlier rounds */
    struct buf items; int n_items;      /* items of the earlier rounds, from the form's round_end */
    int n_results, n_calls;             /* results in this round so far; calls in earlier rounds */
    int max_tokens;                     /* limit for all rounds together; 0: none */
    struct token_counts before;         /* sums over the earlier rounds */
};

/* Add the tools of the server that the body names to c->conversation.  Returns 1; 0 if it names
 * none; -1 with *pr.  Any thread. */
int rounds_add_tools(struct call *c, json_t **wanted, struct problem *pr);
/* Call rounds_add_tools, and open c->rounds if the body names any.  0, or -1 with *pr. */
int rounds_open(struct call *c, struct problem *pr);
void rounds_close(struct call *c);
/* Decide what happens to the calls of ch, whose answer has ended. */
void rounds_judge(struct call *c, struct choice *ch);
/* Called when every choice has ended.  Returns 1 if rounds_judge() decided to run the tools: they
 * have been started, and the call continues when they are done.  Returns 0 if the call ends. */
int rounds_continue(struct call *c);
int rounds_waiting(const struct call *c);               /* whether the call waits for tools */
/* Whether `name` is a tool of the server that this request may use. */
int rounds_has(const struct call *c, const char *name);
/* Append the members tool_stop and tool_messages, each after a comma, to a whole answer or to the
 * last event of a stream.  prefix: the prefix of the form's ids, used in place of "call_". */
void rounds_stop_json(const struct call *c, const char *prefix, struct buf *out);
void rounds_messages_json(const struct call *c, struct buf *out);

/* ---- for the forms ---- */
/* Write the id of a call as a JSON string, with `prefix` in place of "call_". */
void call_id_json(const char *id, const char *prefix, struct buf *out);
/* choice_call() returns the part with call number i; choice_call_index() returns the number of the
 * call in part p. */
const struct answer_part *choice_call(const struct choice *ch, int i);
int choice_call_index(const struct choice *ch, const struct answer_part *p);
/* Write a call that is about to run, or its result, as the JSON object of chat and the
 * WebSocket. */
void rounds_call_json(const struct call *c, const struct answer_part *p, struct buf *out);
void rounds_result_json(const struct call *c, const struct answer_part *p, const struct call_result *t,
                        struct buf *out);
/* The text to insert before part p so that it does not touch the text of earlier rounds; "" if
 * there is none. */
const char *rounds_gap(const struct call *c, const struct choice *ch, const struct answer_part *p);
/* Append the text of all rounds; kind PART_REASONING: the reasoning of all rounds. */
void rounds_text(const struct choice *ch, int kind, struct buf *out);
/* Returns the number of part p, for forms whose answer is a list of items, which are numbered over
 * all rounds.  With tools of the server the calls of a round are numbered after its other parts,
 * because whether the server runs them is decided only when all parts have ended. */
int rounds_number(const struct call *c, const struct choice *ch, const struct answer_part *p);
/* Of the first `end` parts, the last one that is streamed while it is generated; NULL: none. */
const struct answer_part *rounds_streamed(const struct call *c, const struct choice *ch, int end);
/* The name of the MCP server of a tool; "zse" if it is built in. */
const char *rounds_server(const struct call *c, const char *name);
/* In round_end: call f with each result of the round, in the order of the calls. */
typedef void result_fn(struct call *c, const struct answer_part *p, const struct call_result *t);
void rounds_each_result(struct call *c, result_fn *f);

#endif
