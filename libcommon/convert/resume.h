/* resume.h - a conversion that was interrupted goes on at the layer where it stopped, and its file
 * is the same byte for byte.
 *
 * From time to time, between two groups of the file, a checkpoint is made: what is written is put
 * on the disk and parked (zwriter_park), and beside it come
 *     .NAME.zse-state-0, -1    what calibration carries from layer to layer: the tokens' states in
 *                              the float model and, with
 *                              best, behind the quantized layers; written in turn, so that one of
 *                              them is always whole
 *     .NAME.zse-journal        JSON: which source, plan and program; which tensors are written,
 *                              with what the report says of
 *                              them; the checksums of the groups and of the state.  Written last,
 *                              and atomically.
 * The journal thus never names anything that is not on the disk.  Whoever takes the file up again
 * has the lock of the parked file, compares source, plan and program, reads the groups once and
 * compares their checksums; where anything differs, the conversion starts anew.  Everything else is
 * computed again from the source: it depends on nothing that came before.
 *
 * Without a checkpoint (a short conversion) the new file is an ordinary temporary that the next
 * writer removes. */
#ifndef ZSE_CONVERT_RESUME_H
#define ZSE_CONVERT_RESUME_H

#include "libcommon/convert/calibrate.h"
#include "libcommon/format/zfile.h"

struct resume;
/* The writer for j's output (*w, also when the conversion starts anew), and *n_done: tensors
 * that are in it already; the plans of those and c (NULL: no calibration) are as they were.
 * NULL with *e. */
struct resume *resume_open(struct conversion *cv, struct calibration *c, struct zwriter **w, int *n_done,
                           struct err *e);
/* Between two groups, with n_done tensors written: a checkpoint if it is time for one.  -1 with
 * *e only where writing itself failed. */
int resume_checkpoint(struct resume *r, struct zwriter *w, int n_done, struct err *e);
/* The conversion ended: rc 0 or -1 with *e.  Closes w (NULL: committed already).  What was
 * parked stays if the same command can go on with it. */
void resume_close(struct resume *r, struct zwriter *w, int rc, const struct err *e);

#endif
