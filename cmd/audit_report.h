/* audit_report.h - a report of the audit log: one HTML page with charts. */
#ifndef ZSE_CMD_AUDIT_REPORT_H
#define ZSE_CMD_AUDIT_REPORT_H

#include <stdint.h>

#include "libcommon/access/audit_query.h"
#include "libcommon/base/err.h"

/* Write the page to `output` ("-": standard output): requests, errors, latencies and tokens of the
 * entries that pass the filter, over the `hours` before now_ms, and sums by key, path, status and
 * model.  The page needs no other file.  0; -1 with *e. */
int audit_report(const char *folder, const struct audit_filter *f, double hours, int64_t now_ms, const char *output,
                 struct err *e);

#endif
