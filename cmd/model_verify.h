/* model_verify.h - compare the checksums of a model file once after it changed, so that damage is
 * detected without delaying the first token.
 *
 * $XDG_CACHE_HOME/zse/verified (or ~/.cache/zse/verified) has a small record for each model file:
 * its size, time of change and inode at the last check.  If the record is missing, older than a
 * month, or does not match the file, the file is checked by a thread that runs when the CPU and
 * the disk are otherwise idle, after the weights were read into memory.  If the file is damaged,
 * the engine's next step fails.  A damaged conversion in the cache is removed, so that the next
 * run converts again; any other damaged file is checked before its first answer from then on. */
#ifndef ZSE_CMD_MODEL_VERIFY_H
#define ZSE_CMD_MODEL_VERIFY_H

#include "libcommon/format/zfile.h"

enum verify_mode { VERIFY_AUTO, VERIFY_FIRST, VERIFY_NEVER };
/* Parse "auto", "first" or "never"; -1: another word. */
int verify_mode_parse(const char *name, enum verify_mode *mode);

struct model_verify;
/* Start to check z, which was just opened and must stay open until model_verify_stop().
 * in_cache: z is an automatic conversion; in_background: the weights are being read into
 * memory.  0, with *v the running check (NULL: there is nothing to check); -1 with *e: the file
 * was checked at once and is damaged. */
int model_verify_start(struct model_verify **v, struct zfile *z, enum verify_mode mode, int in_cache, int in_background,
                 struct err *e);
/* Finish the check now.  -1 with *e: the file is damaged. */
int model_verify_finish(struct model_verify *v, struct err *e);
void model_verify_stop(struct model_verify *v);             /* NULL is fine */

#endif
