/* internal.h - the functions of the built-in tools, and the text that they write. */
#ifndef ZSE_TOOLS_INTERNAL_H
#define ZSE_TOOLS_INTERNAL_H

#include "libcommon/tools/native.h"

/* Growing text of at most NATIVE_MAX_OUTPUT bytes. */
struct tool_text { char *data; size_t size, room; enum err_code error; };
void text_add(struct tool_text *t, const char *s, size_t n);
/* The text, which the caller frees; NULL with *e. */
char *text_finish(struct tool_text *t, struct err *e);

char *run_calculator(const struct native_env *env, const json_t *arguments, struct err *e);
char *run_datetime(const struct native_env *env, const json_t *arguments, struct err *e);
char *run_parse_json(const struct native_env *env, const json_t *arguments, struct err *e);
char *run_string_ops(const struct native_env *env, const json_t *arguments, struct err *e);

#endif
