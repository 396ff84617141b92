/* internal.h - functions that only the files of a call use; the forms use calls.h.
 *
 *   calls.c          stages, submission, the end        call_prepare.c   the preparing threads
 *   call_params.c    model and fields of the body       call_prompts.c   prompts to token ids
 *   call_memory.c    what a call holds of the account   call_events.c    events of the engine
 *   call_answer.c    usage, events and errors        tool_rounds.c    rounds with tools
 *   call_drafts.c    speculation and predictions    call_guided.c    vLLM's structured outputs */
#ifndef ZSE_SERVE_API_INTERNAL_H
#define ZSE_SERVE_API_INTERNAL_H

#include "libcommon/serve/api/calls.h"

/* The next stage of a call.  PARSE: the body to a tree.  DOCUMENTS: passages for it.  PROMPTS: the
 * tree to token ids and a grammar.  READY: submitted to the engine. */
enum { STAGE_PARSE, STAGE_DOCUMENTS, STAGE_PROMPTS, STAGE_READY };
enum { ANSWER_COPIES = 3 };             /* of an answer's text: its parts, the JSON, what waits for the client */

/* ---- calls.c ---- */
/* Run the current stage, PARSE or PROMPTS; errors go to c->problem.  Any thread. */
void call_work(struct call *c);
/* Give the engine as many prompts as may be under way together, after a part of them has ended. */
void call_submit_more(struct call *c);
int call_is_over(const struct call *c);         /* every answer has ended, and every cancellation is obeyed */
/* Nothing runs any more for this call: answer its client, write its record, free it. */
void call_conclude(struct call *c);
void call_free(struct call *c);
void call_destroy(struct call *c);              /* the memory alone; any thread */
/* Forget the prompt and the answer of a round that has ended. */
void call_end_round(struct call *c);
void call_prepare_again(struct call *c);        /* the prompt and the grammar of the next round */

/* ---- call_params.c ---- */
/* c->lm and c->params from c->json.  0; 1: c->awaited is loading, try again when it is ready; -1
 * with *pr. */
int call_bind(struct call *c, struct problem *pr);

/* ---- call_guided.c ---- */
/* Read vLLM's fields that constrain an answer into those of ours, in c->json.  0, or -1 with
 * *pr. */
int call_guided(struct call *c, struct problem *pr);

/* ---- call_drafts.c ---- */
/* Read the field "speculative" into c->draft.  0, or -1 with *pr. */
int call_speculative(struct call *c, struct problem *pr);
/* Tokenize the field "prediction" into c->draft, once.  0, or -1 with *pr.  Any thread. */
int call_prediction(struct call *c, struct problem *pr);
size_t call_draft_bytes(const struct call *c, size_t len);      /* of an answer of `len` tokens with its prompt */

/* ---- call_memory.c ---- */
/* Hold what the text of ch has grown by since the last time.  -1 with c->problem. */
int call_hold_answer(struct call *c, struct choice *ch);
/* Keep what the engine and the choices need for n answers to each prompt, but for keys and
 * values (the engine's own) and the text of answers.  0, or -1 with *pr. */
int call_keep_answers(struct call *c, int n, struct problem *pr);
void call_drop_answers(struct call *c, int n);  /* the reverse */
/* Hold what STAGE_PROMPTS needs besides the tree: of a conversation two copies of the tree, the
 * template's values and its output, whose limits follow from the size of the body and from what
 * one request may hold.  0, or -1 with *pr. */
int call_hold_prompts(struct call *c, struct problem *pr);
/* The prompt has its token ids: free what the body said of it.  Any thread. */
void call_drop_prompt(struct call *c);

/* ---- call_events.c ---- */
void call_events(struct loaded_model *lm);      /* all events of its engine so far */

/* ---- call_prepare.c ---- */
/* Queue the call's current stage for a preparing thread.  -1 with c->problem: --max-queue calls
 * wait already, and none of them is of a later round, which would be refused instead. */
int prepare_submit(struct call *c);
/* The client is gone: a call that no thread has begun moves from the queue to the done ones.
 * One that a thread works on becomes done in time. */
void prepare_withdraw(struct call *c);
struct call *prepare_take_done(struct server *s);       /* a list by next_preparing, oldest first */
/* Free a large call in a preparing thread: a tree of a million values takes most of a second.
 * -1: it is small, or the threads have ended. */
int prepare_free(struct call *c);

#endif
