/* audit_line.h - a line of the audit log as JSON, without the last fields, those of the hash chain.
 *
 * Lines are bounded.  A string that is longer than its field allows, counted with its JSON escapes,
 * is cut and ends in "...[N bytes]", where N is its whole length. */
#ifndef ZSE_ACCESS_AUDIT_LINE_H
#define ZSE_ACCESS_AUDIT_LINE_H

#include "libcommon/access/audit.h"

enum { AUDIT_LINE_ROOM = 16384 };           /* longest line that is written; older logs have longer ones */

struct audit_text_line { char *p; size_t n, room; };

void line_put(struct audit_text_line *l, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* {"timestamp":"2026-11-21T15:08:46.003Z","timestamp_unix":1795273726.003 */
void line_time(struct audit_text_line *l, int64_t ms);
/* Copy text to out [size], with API keys removed, cut to fit. */
void audit_copy(char *out, size_t size, const char *text);

#endif
