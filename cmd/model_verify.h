/* model_verify.h - the checksums of a model's file, once after it changed: damage is noticed without
 * making the first token wait.
 *
 * $XDG_CACHE_HOME/zse/verified (or ~/.cache/zse/verified) has a small file for each model: size,
 *   time of change and inode as
 * of its last check.  A model that it does not name (or names with others, or a month ago) is
 * checked by a thread that has the processor and the disk when nothing else wants them, after
 * the weights were brought in.  Damage makes the engine's next step fail; a damaged conversion
 * in the cache is removed, so that the next run makes it again, and any other damaged file is
 * checked before its first answer from then on. */
#ifndef ZSE_CMD_MODEL_VERIFY_H
#define ZSE_CMD_MODEL_VERIFY_H

#include "libcommon/format/zfile.h"

enum verify_mode { VERIFY_AUTO, VERIFY_FIRST, VERIFY_NEVER };
/* "auto", "first", "never"; -1: no such. */
int verify_mode_parse(const char *name, enum verify_mode *mode);

struct model_verify;
/* z was just opened and stays open until model_verify_stop().  in_cache: an automatic conversion.
 * in_background: the weights are being brought into memory.  0 and *v (NULL: nothing to do); -1
 * with *e: damaged, found before the first answer. */
int model_verify_start(struct model_verify **v, struct zfile *z, enum verify_mode mode, int in_cache, int in_background,
                 struct err *e);
/* Do now what is left of the check.  -1 with *e: damaged. */
int model_verify_finish(struct model_verify *v, struct err *e);
void model_verify_stop(struct model_verify *v);             /* NULL is fine */

#endif
