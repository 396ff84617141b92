/* foreign.h - conversations that other chat programs have exported. */
#ifndef ZSE_HISTORY_FOREIGN_H
#define ZSE_HISTORY_FOREIGN_H

#include <jansson.h>

#include "libcommon/history/history.h"

/* Is the format "chatgpt" (an element of conversations.json), "open-webui" (an element of its
 * export of chats) or "lm-studio" (a .conversation.json file)? */
int foreign_is(const char *format);
/* The conversation as a document of history_import, without an id.  Only texts of user, assistant
 * and system are kept, with their branches; a picture becomes "[image]".  New reference; NULL with
 * *p. */
json_t *foreign_document(const char *format, const json_t *conversation, struct history_problem *p);

#endif
