/* chat.h - render a conversation as the text that the model reads. */
#ifndef ZSE_TEMPLATE_CHAT_H
#define ZSE_TEMPLATE_CHAT_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/template/template.h"

/* For models without a template: ChatML, <|im_start|>role, newline, text, <|im_end|>, newline. */
extern const char chat_fallback_template[];

/* Render as transformers' apply_chat_template() does: messages, tools and documents (null if not
 * given), add_generation_prompt, bos_token and eos_token ("" for NULL) are set, then the keys of
 * extra_vars, which take precedence.  If a message has reasoning_content, thinking or reasoning, it
 * gets the text under both of the first two names, because templates use either.  enable_thinking
 * sets thinking_mode as well, to "enabled" or "disabled".
 *   messages    an array of objects;  tools, extra_vars, limits  may be NULL
 *   now         seconds since 1970, in UTC, for strftime_now
 * *out is malloc'd and '\0'-terminated. */
int chat_render(const struct tmpl *t, const json_t *messages, const json_t *tools, int add_generation_prompt,
                const char *bos, const char *eos, int64_t now, const json_t *extra_vars,
                const struct tmpl_limits *limits, char **out, size_t *size, struct err *e);

#endif
