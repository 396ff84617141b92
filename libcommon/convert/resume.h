/* resume.h - resume an interrupted conversion at the layer where it stopped; the resulting file is
 * the same byte for byte.
 *
 * From time to time, between two groups of the file, a checkpoint is made: the new file is synced
 * and parked (zwriter_park), with these files beside it:
 *     .NAME.zse-state-0, -1    state of calibration between layers: the residual stream of all
 *                              tokens in the float model and, with best, after the quantized
 *                              layers; written alternately, so that one of them is always complete
 *     .NAME.zse-journal        JSON: source, plan and program; the written tensors, with their
 *                              part of the report; the checksums of the groups and of the state.
 *                              Written last, and atomically.
 * So everything that the journal names is on the disk.  A resuming process holds the lock
 * of the parked file, compares source, plan and program, reads the groups once and compares their
 * checksums; if anything differs, the conversion starts over.  Everything else is recomputed from
 * the source, as it does not depend on earlier work.
 *
 * Without a checkpoint (a short conversion) the new file is an ordinary temporary file that the
 * next writer removes. */
#ifndef ZSE_CONVERT_RESUME_H
#define ZSE_CONVERT_RESUME_H

#include "libcommon/convert/calibrate.h"
#include "libcommon/format/zfile.h"

struct resume;
/* Open *w, the writer for the output, and resume an interrupted conversion if possible.  *n_done:
 * number of tensors that are in the file already (0: the conversion starts from the beginning);
 * their recipes, and c (NULL: no calibration), are restored.  Returns NULL with *e. */
struct resume *resume_open(struct conversion *cv, struct calibration *c, struct zwriter **w, int *n_done,
                           struct err *e);
/* Make a checkpoint if it is time for one.  Called between two groups, with n_done tensors written.
 * Returns 0, also if no checkpoint could be made; -1 with *e only if writing the file itself
 * failed. */
int resume_checkpoint(struct resume *r, struct zwriter *w, int n_done, struct err *e);
/* End a conversion that succeeded (rc 0) or failed (rc -1, with *e), and close w (NULL: it is
 * already committed).  A parked file is kept if the same command can resume from it. */
void resume_close(struct resume *r, struct zwriter *w, int rc, const struct err *e);

#endif
