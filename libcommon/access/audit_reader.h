/* audit_reader.h - the lines of one chain of the audit log, and the fields of a line; what
 * queries, exports and verify share. */
#ifndef ZSE_ACCESS_AUDIT_READER_H
#define ZSE_ACCESS_AUDIT_READER_H

#include <zlib.h>

#include "libcommon/access/audit_files.h"
#include "libcommon/access/audit_query.h"

/* The lines of all files, the oldest first.  Files are opened under the lock, so that none is
 * rotated away in between. */
struct audit_reader {
    struct audit_files files;
    gzFile *z;
    int at;                                 /* file */
    char *buffer; size_t room, begin, end;
    int skipping, ended;                    /* inside a line that is too long; at the end of the file */
    uint64_t line_no;                       /* in the file, from 1 */
    struct audit_head head; int has_head;   /* as it was when the files were opened */
};

/* since_ms: files that ended before need not be read; 0: all. */
int audit_reader_open(struct audit_reader *r, const char *folder, enum audit_chain chain, int64_t since_ms,
                      struct err *e);
void audit_reader_close(struct audit_reader *r);
/* 1 and a line ('\n' not included; *whole 0: the file ends in it, or it is longer than any of
 * ours), 0 at the end of all, -1. */
int audit_reader_next(struct audit_reader *r, const char **line, size_t *size, int *whole, struct err *e);
/* 1: an entry; 0: a line about the chain; -1: foreign, or cut. */
int audit_reader_parse(const char *line, size_t size, struct audit_record *r);

struct audit_cursor { const char *p, *end; };
struct audit_value { struct audit_text text; int is_string; };
/* The next "key":value; 1, 0 after the last, -1: this is not how lines are written. */
int audit_next_field(struct audit_cursor *c, struct audit_text *key, struct audit_value *v);
int audit_text_is(const struct audit_text *t, const char *s);
int64_t audit_int_of(const struct audit_value *v);                  /* -1: no number */

#endif
