/* zse-convert.h - what zse-convert prints. */
#ifndef ZSE_CMD_ZSE_CONVERT_H
#define ZSE_CMD_ZSE_CONVERT_H

#include "cmd/planning.h"
#include "libcommon/convert/convert.h"

/* One JSON object on stdout; tensors: with the list of all of them. */
void convert_print_json(const struct convert_options *o, const struct convert_report *r, int tensors);
/* The same for people. */
void convert_print_text(const struct convert_options *o, const struct convert_report *r, int tensors);
/* A line on stderr for every pair of types that could not be converted exactly although that was
 * asked for. */
void convert_warn_inexact(const char *prog, const struct convert_report *r);
/* --plan: sizes and speeds of o->source (a name of the registry, a config.json, a folder, a
 * file) as bf16, int8 and nl4, and which one the mode takes here.  Returns an exit code: 1 if
 * none fits. */
int convert_plan(const struct convert_options *o, const struct planned_mode *mode, int json);
/* "nl4", "int8" ... as -q spells it. */
const char *convert_type_label(struct convert_type t);

#endif
