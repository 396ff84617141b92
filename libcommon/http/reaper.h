/* reaper.h - frees large blocks in a thread of its own.
 *
 * To free a block is to give its pages back, one by one: 16 MB take 1 ms here, and a hundred
 * clients that leave in the middle of their bodies would stop the event loop for 100 ms.  The
 * thread begins with the first block; where none can be made, blocks are freed at once. */
#ifndef ZSE_HTTP_REAPER_H
#define ZSE_HTTP_REAPER_H

#include <stddef.h>

#include "libcommon/http/buf.h"

enum { REAPER_LARGE = 1 << 20 };

struct reaper;
struct reaper *reaper_open(void);                       /* NULL: no memory; the functions below take it, and free at once */
void reaper_close(struct reaper *r);                    /* frees what is left */
void reaper_take(struct reaper *r, struct buf *b);      /* as buf_release; in a thread if it is large */

#endif
