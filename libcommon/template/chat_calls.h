/* chat_calls.h - render a conversation with function calls as the text that the model reads.  If
 * the template does not support functions, they are described in the system message, and calls and
 * results are written as text. */
#ifndef ZSE_TEMPLATE_CHAT_CALLS_H
#define ZSE_TEMPLATE_CHAT_CALLS_H

#include "libcommon/template/chat.h"

struct chat_style {
    int knows_tools;                    /* the template writes tools itself */
    int short_ids;                      /* it requires ids of calls to be 9 letters or digits */
};

/* As chat_render.  messages: each content is a string, arguments of calls are objects or JSON text.
 * The forms of arguments and system messages that families of templates accept are tried in turn;
 * if all fail, *e is the error of the first one, or ERR_MEMORY. */
int chat_render_tools(const struct tmpl *t, const struct chat_style *style, const json_t *messages, const json_t *tools,
                      int add_generation_prompt, const char *bos, const char *eos, int64_t now,
                      const json_t *extra_vars, const struct tmpl_limits *limits, char **out, size_t *size,
                      struct err *e);

#endif
