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

struct call;
struct choice;

/* Tokens: of prompts, and of these from the prefix cache; of answers, and of these reasoning; of
 * drafts, as in request_stats. */
struct token_counts {
    int prompt, cached, completion, reasoning;
    int drafted, accepted, predicted_right, predicted_wrong;
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
    int said_role;                      /* of the choice, which every round makes anew */
    int cancelled;                      /* while tools ran */
    struct buf text, reasoning;         /* of the rounds before */
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
/* Every choice has ended: if the round was judged so, run its tools and return 1; the call goes on
 * when they are done. */
int rounds_continue(struct call *c);
int rounds_waiting(const struct call *c);               /* for tools */
/* Is this a call of a tool of the server, in a request that has any? */
int rounds_has(const struct call *c, const char *name);
/* Append to a whole answer, or to the last event of a stream, the members tool_stop and
 * tool_messages, each with a comma before it. */
void rounds_stop_json(const struct call *c, struct buf *out);
void rounds_messages_json(const struct call *c, struct buf *out);

#endif
