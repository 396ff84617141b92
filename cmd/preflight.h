/* preflight.h - check the memory a model needs, and predict its speed, before it is opened. */
#ifndef ZSE_CMD_PREFLIGHT_H
#define ZSE_CMD_PREFLIGHT_H

#include "cmd/open_model.h"
#include "cmd/preflight_convert.h"
#include "cmd/unopened.h"

/* Refuse an engine with these options (made from r by run_engine_options) whose weights, KV cache
 * and workspace do not fit in the memory of this process or of the GPU.  The message has all the
 * numbers and the options that help.  With --force, and where memory is only tight, print a note
 * instead; a GPU's memory is never overcommitted.  A mixture of experts is not refused:
 * eo->max_weights becomes the size that fits, with a note.
 * Also decides the GPU's part: with --gpu-layers auto as many layers as fit; with --device auto the
 * CPU takes what the GPU cannot.  kv_bytes 0 in *eo stays 0: then all sequences must fit. */
int preflight_check(const char *prog, const struct opened_model *o, const struct run_options *r,
                    struct engine_options *eo, struct err *e);
/* Bytes that the KV cache may take on the GPU beside everything else, for an engine with these
 * options; 0: unknown. */
uint64_t preflight_kv_room(const struct opened_model *o, const struct engine_options *eo);
/* After engine_open: compare the memory that the engine took with the plan.  With --verbose both
 * are printed; more than a tenth above the plan is a warning in any case. */
void preflight_compare(const char *prog, const struct opened_model *o, const struct run_options *r,
                       const struct engine_options *eo, const struct engine *g);
/* --plan: print the memory plan as a table or JSON, with predicted speeds (measured rates, about a
 * second).  Returns an exit code: 1 if it does not fit.  The caller flushes standard output
 * (cli_finish), so that several plans can be printed. */
int preflight_plan(const char *prog, const struct opened_model *o, const struct run_options *r,
                   struct engine_options *eo, int json);
/* The same for a model that is not open, on the CPU. */
int preflight_plan_unopened(const char *prog, const struct unopened *u, const struct run_options *r,
                            struct engine_options *eo, int json);

#endif
