/* sigbus.h - pages of a mapped file that cannot be read: the file was cut by somebody, or its disk
 * fails, and the system sends SIGBUS.
 *
 * For a file that was named to sigbus_guard() zeros take the place of its rest and map_check() says
 * so from then on: who computes with it asks after each step, and its requests fail, not the
 * process.  For any other file the program ends with a sentence. */
#ifndef ZSE_CMD_SIGBUS_H
#define ZSE_CMD_SIGBUS_H

#include "libcommon/base/file.h"

/* prog is borrowed for ever.  A second call does nothing. */
void sigbus_start(const char *prog);
/* m stays where it is until sigbus_unguard(), which waits for handlers that are at it.  Without
 * memory for it a note says that it is like any other file. */
void sigbus_guard(struct map *m);
void sigbus_unguard(struct map *m);

#endif
