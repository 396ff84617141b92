/* zse-convert.h - the reports and the plan of zse-convert. */
#ifndef ZSE_CMD_ZSE_CONVERT_H
#define ZSE_CMD_ZSE_CONVERT_H

#include "cmd/planning.h"
#include "libcommon/convert/convert.h"

/* Print the report as one JSON object; with `tensors` it has the list of all tensors. */
void convert_print_json(const struct convert_options *o, const struct convert_report *r, int tensors);
/* The same as text. */
void convert_print_text(const struct convert_options *o, const struct convert_report *r, int tensors);
/* Print a warning on stderr for every pair of types whose conversion was not exact although -q
 * keep was given. */
void convert_warn_inexact(const char *prog, const struct convert_report *r);
/* --plan: print sizes and speeds of o->source (a name of the registry, a config.json, a folder, a
 * file) as bf16, int8 and nl4, and the type that the mode chooses here.  Returns an exit code: 1 if
 * none fits. */
int convert_plan(const struct convert_options *o, const struct planned_mode *mode, int json);
/* The name of a type as -q spells it: "nl4", "int8" ... */
const char *convert_type_label(struct convert_type t);

#endif
