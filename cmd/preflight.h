/* preflight.h - before a model takes its memory: does it fit, and how fast will it be? */
#ifndef ZSE_CMD_PREFLIGHT_H
#define ZSE_CMD_PREFLIGHT_H

#include "cmd/open_model.h"
#include "cmd/preflight_convert.h"

/* Refused (with all the numbers, and what helps) where weights, keys and values and workspace of max_seqs sequences of max_len tokens do not fit in what this
 * process may have; kv_bytes 0: enough for all of them.  With --force, and where memory is only tight, a note.  On a GPU nothing is asked.  */
int preflight_check(const char *prog, const struct opened_model *o, const struct run_options *r, int max_seqs, int max_len, uint64_t kv_bytes, struct err *e);
/* --plan: the same as a table or JSON, with predicted speeds (measured rates, about a second).  Returns an exit code: 1 if it does not fit. */
int preflight_plan(const char *prog, const struct opened_model *o, const struct run_options *r, int max_seqs, int max_len, uint64_t kv_bytes, int json);

#endif
