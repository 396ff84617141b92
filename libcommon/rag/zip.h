/* zip.h - read the members of a ZIP archive in memory; office documents are such archives.
 *
 * Names, offsets and sizes come from the file and are checked; an inflated member may be as large
 * as the limit, whatever the archive says. */
#ifndef ZSE_RAG_ZIP_H
#define ZSE_RAG_ZIP_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/rag/text_build.h"

struct zip_member { const char *name; size_t name_size; const uint8_t *data; size_t size; int method; };
struct zip { struct zip_member *member; int n; };           /* owned; the rest is borrowed from the archive */
enum { ZIP_MEMBERS = 65535 };
/* ERR_FORMAT: no archive, damaged, or encrypted. */
int zip_open(struct zip *z, const void *data, size_t size, struct err *e);
void zip_release(struct zip *z);
const struct zip_member *zip_find(const struct zip *z, const char *name, size_t size);      /* NULL: none */
/* Append the member's bytes to out; ERR_LIMIT if there are more than most. */
int zip_inflate(const struct zip_member *m, size_t most, struct text_build *out, struct err *e);

#endif
