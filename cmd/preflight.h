/* preflight.h - check the memory a model needs, and predict its speed, before it is opened. */
#ifndef ZSE_CMD_PREFLIGHT_H
#define ZSE_CMD_PREFLIGHT_H

#include "cmd/open_model.h"
#include "cmd/preflight_convert.h"
#include "cmd/unopened.h"

/* Check that the weights, the KV cache and the workspace of an engine with these options (made
 * from r by run_engine_options) fit in the memory of this process and of the GPU.  If not, -1
 * with *e, which has all numbers and names the options that help.  With --force, or if memory is
 * only tight, a note is printed instead; a GPU's memory is never overcommitted.  A mixture of
 * experts is not refused: eo->max_weights becomes the size that fits, and a note is printed.
 * This also decides the GPU's part: with --gpu-layers auto the largest number of layers that
 * fits; with --device auto the CPU computes the layers that do not fit.  kv_bytes 0 in *eo is
 * not changed, and means that the keys and values of all sequences must fit. */
int preflight_check(const char *prog, const struct opened_model *o, const struct run_options *r,
                    struct engine_options *eo, struct err *e);
/* Bytes that the KV cache may take on the GPU beside everything else, for an engine with these
 * options; 0: unknown. */
uint64_t preflight_kv_room(const struct opened_model *o, const struct engine_options *eo);
/* After engine_open(): compare the memory that the engine took with the plan.  With --verbose
 * both are printed; without it a warning is printed if the memory exceeds the plan by more than
 * a tenth. */
void preflight_compare(const char *prog, const struct opened_model *o, const struct run_options *r,
                       const struct engine_options *eo, const struct engine *g);
/* --plan: print the memory plan as a table or as JSON, with speeds predicted from measured
 * rates, which takes about a second.  Returns an exit code: 1 if the model does not fit.  The
 * caller flushes standard output (cli_finish), so that several plans can be printed. */
int preflight_plan(const char *prog, const struct opened_model *o, const struct run_options *r,
                   struct engine_options *eo, int json);
/* The same for a model that is not open, on the CPU. */
int preflight_plan_unopened(const char *prog, const struct unopened *u, const struct run_options *r,
                            struct engine_options *eo, int json);

#endif
