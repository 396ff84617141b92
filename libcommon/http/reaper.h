/* reaper.h - free large blocks in a separate thread.
 *
 * Freeing a block returns its pages one by one: 16 MB took 1 ms, and a hundred clients leaving in
 * the middle of their bodies would stop the event loop for 100 ms.  The thread is started by the
 * first block; if that fails, blocks are freed immediately. */
#ifndef ZSE_HTTP_REAPER_H
#define ZSE_HTTP_REAPER_H

#include <stddef.h>

#include "libcommon/http/buf.h"

enum { REAPER_LARGE = 1 << 20 };

struct reaper;
/* NULL: no memory; the functions below accept it, and free at once */
struct reaper *reaper_open(void);
void reaper_close(struct reaper *r);                    /* frees the remaining blocks */
void reaper_take(struct reaper *r, struct buf *b);      /* like buf_release, but a thread frees a large buffer */

#endif
