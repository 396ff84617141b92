/* tool_rounds.h - an answer in several rounds: the model calls tools of the server, they run, and
 * the model continues with their results, until it answers without a call.
 *
 * A round is the way of any call through the engine: prompt, grammar, submission, events.  When
 * the answer of a round has ended, its calls are judged (rounds_judge).  If the server may run all
 * of them, they run in the threads of tools/toolbox.h, their results become messages, and the next
 * round's prompt begins with all of the last one, which the prefix cache holds.  Otherwise the
 * calls go to the client, as those of its own functions do.
 *
 * Bounds: max_tool_rounds and those of tools/round.h for the calls and results of a round; the
 * context, max_tokens and the request's time limit for all rounds together. */
#ifndef ZSE_SERVE_API_TOOL_ROUNDS_H
#define ZSE_SERVE_API_TOOL_ROUNDS_H

#include <jansson.h>

#include "libcommon/http/buf.h"
#include "libcommon/http/problem.h"

struct answer_part;
struct call;
struct choice;

/* Tokens: of prompts, and of these from the prefix cache; of answers, and of these reasoning; of
 * drafts, as in request_stats. */
struct token_counts {
    int prompt, cached, completion, reasoning;
    int drafted, accepted, predicted_right, predicted_wrong;
};

/* The result of a call, as a form writes it. */
struct call_result {
    const char *content; size_t size;   /* as the model reads it; valid UTF-8 */
    int is_error;
    double ms;
};

struct tool_rounds {
    const json_t *confirmed;            /* borrowed from the body; NULL: none */
    json_t *messages;                   /* owned: of the finished rounds, as OpenAI writes them */
    json_t *wanted;                     /* owned: the tools of the server in this request; NULL: all */
    int round;                          /* the running one, from 1 */
    int runs_next;                      /* judged: the calls of this round run */
    const char *stop;                   /* judged: why they do not ("confirm", ...); NULL: there are none */
    json_t *stop_ids;                   /* owned: the calls that stop is about */
    struct tool_batch *batch;           /* running; NULL: none */
    int said_role;                      /* of the choice, which every round makes again */
    int cancelled;                      /* while tools ran */
    struct buf text, reasoning;         /* of the rounds before */
    struct buf items; int n_items;      /* of the rounds before, as the form's round_end wrote them */
    int n_results, n_calls;             /* results of this round so far; calls of the rounds before */
    int max_tokens;                     /* of all rounds; 0: no limit */
    struct token_counts before;         /* of the rounds before */
};

/* Add the tools of the server that the body names to c->conversation.  1; 0 if it names none; -1
 * with *pr.  Any thread. */
int rounds_add_tools(struct call *c, json_t **wanted, struct problem *pr);
/* The same, and open c->rounds if the body names any.  0, or -1 with *pr. */
int rounds_open(struct call *c, struct problem *pr);
void rounds_close(struct call *c);
/* The answer of ch has ended: decide what happens to its calls. */
void rounds_judge(struct call *c, struct choice *ch);
/* Every choice has ended: if the round was judged so, run its tools and return 1; when they are
 * done, the call continues. */
int rounds_continue(struct call *c);
int rounds_waiting(const struct call *c);               /* for tools */
/* Is this a call of a tool of the server, in a request that has any? */
int rounds_has(const struct call *c, const char *name);
/* Append to a whole answer, or to the last event of a stream, the members tool_stop and
 * tool_messages, each with a comma before it.  prefix: of the form's ids, in place of "call_". */
void rounds_stop_json(const struct call *c, const char *prefix, struct buf *out);
void rounds_messages_json(const struct call *c, struct buf *out);

/* ---- for the forms ---- */
/* The id of a call, as a JSON string; prefix in place of "call_". */
void call_id_json(const char *id, const char *prefix, struct buf *out);
/* The part with call i, and the index of a part among the calls. */
const struct answer_part *choice_call(const struct choice *ch, int i);
int choice_call_index(const struct choice *ch, const struct answer_part *p);
/* A call that is about to run, or its result, as the JSON object of chat and the WebSocket. */
void rounds_call_json(const struct call *c, const struct answer_part *p, struct buf *out);
void rounds_result_json(const struct call *c, const struct answer_part *p, const struct call_result *t,
                        struct buf *out);
/* The characters between the text of the rounds before and part p: "" if there are none. */
const char *rounds_gap(const struct call *c, const struct choice *ch, const struct answer_part *p);
/* Append all text of all rounds; kind PART_REASONING: all reasoning. */
void rounds_text(const struct choice *ch, int kind, struct buf *out);
/* Forms whose answer is a list of items number them over all rounds.  With tools of the server the
 * calls of a round come after its other parts, because what happens to them is known only when all
 * have ended.  The number of part p: */
int rounds_number(const struct call *c, const struct choice *ch, const struct answer_part *p);
/* The last of the first `end` parts that is streamed as it is generated; NULL: none. */
const struct answer_part *rounds_streamed(const struct call *c, const struct choice *ch, int end);
/* The name of the MCP server of a tool; "zse" if it is built in. */
const char *rounds_server(const struct call *c, const char *name);
/* In round_end: call f with each result of the round, in the order of the calls. */
typedef void result_fn(struct call *c, const struct answer_part *p, const struct call_result *t);
void rounds_each_result(struct call *c, result_fn *f);

#endif
