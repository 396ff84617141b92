/* sigbus.h - survive pages of mapped files that cannot be read: the file was truncated, or its disk
 * fails, and the system sends SIGBUS.
 *
 * If the file was passed to sigbus_guard(), zeros replace the rest of the mapping, and map_check()
 * fails from then on.  The engine calls it after each step, so its requests fail instead of the
 * process.  For any other file the program ends with a message. */
#ifndef ZSE_CMD_SIGBUS_H
#define ZSE_CMD_SIGBUS_H

#include "libcommon/base/file.h"

/* Install the handler; prog, for messages, must stay valid.  A second call does nothing. */
void sigbus_start(const char *prog);
/* Guard a mapped file.  m must not move until sigbus_unguard(), which waits for handlers that
 * use it.  Without memory a note is printed, and m is treated like any other file. */
void sigbus_guard(struct map *m);
void sigbus_unguard(struct map *m);

#endif
