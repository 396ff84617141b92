/* preflight.h - before a model takes its memory: does it fit, and how fast will it be? */
#ifndef ZSE_CMD_PREFLIGHT_H
#define ZSE_CMD_PREFLIGHT_H

#include "cmd/open_model.h"
#include "cmd/preflight_convert.h"
#include "cmd/unopened.h"

/* Refused (with all the numbers, and what helps) where weights, keys and values and workspace of
 * an engine with these options (of r, see run_engine_options) do not fit in what this process,
 * or the GPU, may have.  With --force, and where memory is only tight, a note; a GPU's memory is
 * never tried.  A mixture of experts is not refused: eo->max_weights becomes what there is room
 * for, with a note.  Settles what is the GPU's: with --gpu-layers auto as many layers as fit;
 * with --device auto the processor takes what the GPU cannot have.  Where *eo does not say how
 * large the keys and values are (kv_bytes 0), nothing is changed about that: there must be room
 * for all sequences. */
int preflight_check(const char *prog, const struct opened_model *o, const struct run_options *r,
                    struct engine_options *eo, struct err *e);
/* Bytes of keys and values for which there is room on the GPU beside the rest, for an engine
 * with these options; 0: that cannot be told. */
uint64_t preflight_kv_room(const struct opened_model *o, const struct engine_options *eo);
/* After engine_open: what the engine took on this machine beside what was planned for it.  With
 * --verbose both are said; more than a tenth above the plan is a warning in any case. */
void preflight_compare(const char *prog, const struct opened_model *o, const struct run_options *r,
                       const struct engine_options *eo, const struct engine *g);
/* --plan: the same as a table or JSON, with predicted speeds (measured rates, about a second).
 * Returns an exit code: 1 if it does not fit.  Standard output stays open for the next one:
 * cli_finish() is the caller's. */
int preflight_plan(const char *prog, const struct opened_model *o, const struct run_options *r,
                   struct engine_options *eo, int json);
/* The same of a model that is not open, on the processor. */
int preflight_plan_unopened(const char *prog, const struct unopened *u, const struct run_options *r,
                            struct engine_options *eo, int json);

#endif
