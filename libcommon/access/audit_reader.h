/* audit_reader.h - the lines of one chain of the audit log, and the fields of a line; what
 * queries, exports and verify share. */
#ifndef ZSE_ACCESS_AUDIT_READER_H
#define ZSE_ACCESS_AUDIT_READER_H

#include <zlib.h>

#include "libcommon/access/audit_files.h"
#include "libcommon/access/audit_query.h"

/* The lines of all files, the oldest first.  Files are opened under the lock, so that none is
 * rotated away in between. */
struct reader {
    struct audit_files files;
    gzFile *z;
    int at;                                 /* file */
    char *buffer; size_t room, begin, end;
    int skipping, ended;                    /* inside a line that is too long; at the end of the file */
    uint64_t line_no;                       /* in the file, from 1 */
    struct audit_head head; int has_head;   /* as it was when the files were opened */
};

/* since_ms: files that ended before need not be read; 0: all. */
int reader_open(struct reader *r, const char *folder, enum audit_chain chain, int64_t since_ms, struct err *e);
void reader_close(struct reader *r);
/* 1 and a line ('\n' not included; *whole 0: the file ends in it, or it is longer than any of
 * ours), 0 at the end of all, -1. */
int reader_next(struct reader *r, const char **line, size_t *size, int *whole, struct err *e);
/* 1: an entry; 0: a line about the chain; -1: foreign, or cut. */
int reader_parse(const char *line, size_t size, struct audit_record *r);

struct cursor { const char *p, *end; };
struct value { struct audit_text text; int is_string; };
/* The next "key":value; 1, 0 after the last, -1: this is not how lines are written. */
int next_field(struct cursor *c, struct audit_text *key, struct value *v);
int text_is(const struct audit_text *t, const char *s);
int64_t int_of(const struct value *v);                  /* -1: no number */

#endif
