/* internal.h - functions that only the files of a call use; the forms use calls.h.
 *
 *   calls.c          stages, submission, the end        call_prepare.c   the preparing threads
 *   call_params.c    model and fields of the body       call_prompts.c   prompts to token ids
 *   call_memory.c    memory that a call reserves     call_events.c    events of the engine
 *   call_answer.c    usage, events and errors        tool_rounds.c    rounds with tools
 *   call_drafts.c    speculation and predictions     call_guided.c    vLLM's structured outputs
 *   zero_byte.c      U+0000 in names */
#ifndef ZSE_SERVE_API_INTERNAL_H
#define ZSE_SERVE_API_INTERNAL_H

#include "libcommon/serve/api/calls.h"

/* The next stage of a call.  PARSE: parse the body into a JSON tree.  DOCUMENTS: search passages of
 * documents for it.  PROMPTS: make token ids and a grammar.  READY: submit it to the engine. */
enum { STAGE_PARSE, STAGE_DOCUMENTS, STAGE_PROMPTS, STAGE_READY };
enum { ANSWER_COPIES = 3 };             /* copies of an answer's text: its parts, the JSON, unsent output */

/* ---- calls.c ---- */
/* Run the current stage, PARSE or PROMPTS; errors go to c->problem.  Any thread. */
void call_work(struct call *c);
/* Submit further prompts to the engine in place of those that have ended, up to the number that may
 * run together. */
void call_submit_more(struct call *c);
int call_is_over(const struct call *c);         /* every answer has ended, and every cancellation was confirmed */
/* Answer the client, write the record and free the call.  No other thread may use the call any
 * more. */
void call_conclude(struct call *c);
void call_free(struct call *c);
void call_destroy(struct call *c);              /* free only its memory; any thread */
/* Drop the prompt and the answer of a finished round. */
void call_end_round(struct call *c);
void call_prepare_again(struct call *c);        /* make the prompt and the grammar of the next round */

/* ---- call_params.c ---- */
/* Set c->lm and c->params from c->json.  Returns 0; 1 if the model c->awaited is loading, and the
 * caller must try again when it is ready; -1 with *pr. */
int call_bind(struct call *c, struct problem *pr);

/* ---- call_guided.c ---- */
/* Translate vLLM's fields for structured output to our fields, in c->json.  0, or -1 with *pr. */
int call_guided(struct call *c, struct problem *pr);

/* ---- zero_byte.c ---- */
/* Refuse U+0000 where it would end a string early.  0, or -1 with *pr. */
int zero_byte_check(const json_t *body, struct problem *pr);

/* ---- call_drafts.c ---- */
/* Read the field "speculative" into c->draft.  0, or -1 with *pr. */
int call_speculative(struct call *c, struct problem *pr);
/* Tokenize the field "prediction" into c->draft, once.  0, or -1 with *pr.  Any thread. */
int call_prediction(struct call *c, struct problem *pr);
/* Bytes that the drafts of an answer take; len: number of tokens of the answer and its prompt. */
size_t call_draft_bytes(const struct call *c, size_t len);

/* ---- call_memory.c ---- */
/* Reserve memory for the text added to ch since the last call.  -1 with c->problem. */
int call_hold_answer(struct call *c, struct choice *ch);
/* Reserve the memory of the engine and of choices for n answers to each prompt, without keys and
 * values (which the engine owns) and without the text of answers.  0, or -1 with *pr. */
int call_keep_answers(struct call *c, int n, struct problem *pr);
void call_drop_answers(struct call *c, int n);  /* undo call_keep_answers */
/* Free the fields of the body from which the prompt was made.  Any thread. */
void call_drop_prompt(struct call *c);

/* ---- call_events.c ---- */
void call_events(struct loaded_model *lm);      /* handle all events that its engine has queued */

/* ---- call_prepare.c ---- */
/* Queue the call's current stage for a preparing thread.  If --max-queue calls wait already, a call
 * of a later round is dropped to free a place.  Returns 0; -1 with c->problem if no call can be
 * dropped. */
int prepare_submit(struct call *c);
/* Move a call whose client has disconnected from the queue to the done list.  If a thread works on
 * the call, the thread moves it there when it has finished. */
void prepare_withdraw(struct call *c);
struct call *prepare_take_done(struct server *s);       /* list linked by next_preparing, oldest first */
/* Let a preparing thread free a large call, because freeing a tree of a million values takes most
 * of a second.  Returns 0; -1 if the call is small or the threads have ended, so that the caller
 * must free it. */
int prepare_free(struct call *c);

#endif
