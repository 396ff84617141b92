/* multipart.h - a parser of multipart/form-data (RFC 7578) in a complete body: bytes in, parts out.
 *
 * It is strict: every line ends with CR LF, every part has a name, the last delimiter must be
 * present, and nothing except blanks may be outside the parts. */
#ifndef ZSE_HTTP_MULTIPART_H
#define ZSE_HTTP_MULTIPART_H

#include <stddef.h>

#include "libcommon/http/problem.h"

enum { MULTIPART_PARTS = 32, MULTIPART_HEAD = 8 << 10 };        /* parts of a body; bytes of a part's header */

struct multipart_part {
    char *name, *filename;              /* owned; filename NULL: it is no file */
    const char *data; size_t size;      /* borrowed from the body */
};
struct multipart { struct multipart_part part[MULTIPART_PARTS]; int n; };
/* content_type: the Content-Type of the request.  0, or -1 with *pr: 415 if it is another type, 400
 * if the body is malformed. */
int multipart_parse(const char *content_type, const char *body, size_t size, struct multipart *m, struct problem *pr);
void multipart_release(struct multipart *m);

#endif
