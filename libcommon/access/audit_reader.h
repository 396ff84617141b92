/* audit_reader.h - read the lines of one chain of the audit log, and the fields of a line.  Shared
 * by queries, exports and verification. */
#ifndef ZSE_ACCESS_AUDIT_READER_H
#define ZSE_ACCESS_AUDIT_READER_H

#include <zlib.h>

#include "libcommon/access/audit_files.h"
#include "libcommon/access/audit_query.h"

/* Reads the lines of all files, oldest first.  The files are opened under the lock, so none is
 * rotated away meanwhile. */
struct audit_reader {
    struct audit_files files;
    gzFile *z;
    int at;                                 /* index of the file */
    char *buffer; size_t room, begin, end;
    int skipping, ended;                    /* inside a line that is too long; at the end of the file */
    uint64_t line_no;                       /* number of the line in the file, from 1 */
    struct audit_head head; int has_head;   /* as it was when the files were opened */
};

/* since_ms: files that end earlier are skipped; 0: all are read. */
int audit_reader_open(struct audit_reader *r, const char *folder, enum audit_chain chain, int64_t since_ms,
                      struct err *e);
void audit_reader_close(struct audit_reader *r);
/* 1 and a line without its '\n'; 0 at the end; -1 on errors.  *whole 0: the file ends inside the
 * line, or the line is too long to be one of ours. */
int audit_reader_next(struct audit_reader *r, const char **line, size_t *size, int *whole, struct err *e);
/* Read the fields of a line into *r.  1: it is an entry; 0: it is about the chain itself; -1: it is
 * incomplete or foreign. */
int audit_reader_parse(const char *line, size_t size, struct audit_record *r);

struct audit_cursor { const char *p, *end; };
struct audit_value { struct audit_text text; int is_string; };
/* Read the next "key":value of a line.  1; 0 after the last; -1: the line is not in the form that
 * our writer uses. */
int audit_next_field(struct audit_cursor *c, struct audit_text *key, struct audit_value *v);
int audit_text_is(const struct audit_text *t, const char *s);
int64_t audit_int_of(const struct audit_value *v);                  /* -1: not a number */

#endif
