/* template.h - chat templates: the Jinja language as transformers sets it up (trim_blocks,
 * lstrip_blocks, loop controls, tojson with ensure_ascii=False, raise_exception, strftime_now,
 * {% generation %}).  https://jinja.palletsprojects.com/en/3.1.x/templates/ */
#ifndef ZSE_TEMPLATE_TEMPLATE_H
#define ZSE_TEMPLATE_TEMPLATE_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"

struct tmpl;

/* Parse.  Errors give the line: "template: line 12: expected ...".  name: for messages. */
struct tmpl *tmpl_parse(const char *source, size_t size, const char *name, struct err *e);
void tmpl_free(struct tmpl *t);

/* Limits of one render, which also takes 1 MiB of stack. */
struct tmpl_limits {
    size_t max_output;          /* bytes; 0: 16 MiB */
    size_t max_memory;          /* bytes, of values and output; 0: 64 MiB and 8 times max_output */
    /* Evaluation steps; 0: 50 million.  Deterministic, unlike wall-clock time. */
    uint64_t max_steps;
    int max_depth;              /* nested calls and blocks; 0: 200 */
};

/* Render with the variables of the JSON object vars (messages, tools, bos_token,
 * add_generation_prompt, ...; order of keys is kept; integers and floats stay what they are).
 * now: seconds since 1970 in UTC for strftime_now.  *out is malloc'd, '\0'-terminated.
 * Templates may change lists and dicts (append, pop ...): they are the render's own copies.  A
 * template is read-only: any number of threads may render it.  A raise_exception("text") gives
 * ERR_FORMAT with that text at the end of the message. */
int tmpl_render(const struct tmpl *t, const json_t *vars, int64_t now, const struct tmpl_limits *limits,
                char **out, size_t *size, struct err *e);

#endif
