/* zip.c - the central directory of a ZIP archive (APPNOTE 6.3), and inflating with a limit. */
#include "libcommon/rag/zip.h"

#include <stdlib.h>
#include <string.h>

#include <zlib.h>

enum { END_SIZE = 22, ENTRY_SIZE = 46, LOCAL_SIZE = 30, COMMENT_MAX = 65535 };

static uint32_t u16(const uint8_t *p) { return (uint32_t)(p[0] | p[1] << 8); }
static uint32_t u32(const uint8_t *p) { return u16(p) | u16(p + 2) << 16; }

static int damaged(struct err *e, const char *why)
{
    return err_set(e, ERR_FORMAT, "the document is no office document or damaged: %s", why);
}

/* The end of the central directory: the last record of its kind. */
static const uint8_t *find_end(const uint8_t *s, size_t size)
{
    const size_t from = size > END_SIZE + COMMENT_MAX ? size - END_SIZE - COMMENT_MAX : 0;
    for (size_t at = size < END_SIZE ? 0 : size - END_SIZE + 1; at-- > from;)
        if (memcmp(s + at, "PK\5\6", 4) == 0)
            return s + at;
    return NULL;
}

/* One entry at s[at]; returns the offset after it, 0 with *e. */
static size_t read_entry(const uint8_t *s, size_t size, size_t at, struct zip_member *m, struct err *e)
{
    if (at > size || size - at < ENTRY_SIZE || memcmp(s + at, "PK\1\2", 4) != 0)
        return damaged(e, "its directory ends early"), 0;
    const uint8_t *p = s + at;
    const size_t name = u16(p + 28), behind = at + ENTRY_SIZE + name + u16(p + 30) + u16(p + 32);
    const size_t local = u32(p + 42), stored = u32(p + 20);
    if (behind > size || local > size || size - local < LOCAL_SIZE || memcmp(s + local, "PK\3\4", 4) != 0)
        return damaged(e, "a member lies outside of it"), 0;
    const size_t begin = local + LOCAL_SIZE + u16(s + local + 26) + u16(s + local + 28);
    if (begin > size || stored > size - begin)
        return damaged(e, "a member is cut"), 0;
    if (u16(p + 8) & 1)
        return err_set(e, ERR_FORMAT, "the document is encrypted"), 0;
    *m = (struct zip_member){ (const char *)p + ENTRY_SIZE, name, s + begin, stored, (int)u16(p + 10) };
    return behind;
}

int zip_open(struct zip *z, const void *data, size_t size, struct err *e)
{
    const uint8_t *s = data, *end = size >= END_SIZE ? find_end(s, size) : NULL;
    *z = (struct zip){ 0 };
    if (size >= 8 && memcmp(s, "\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", 8) == 0)
        return err_set(e, ERR_FORMAT, "the document is encrypted, or of an office program before 2007");
    if (!end)
        return damaged(e, "it has no directory");
    const int n = (int)u16(end + 10);
    size_t at = u32(end + 16);
    if (!(z->member = calloc((size_t)n + 1, sizeof *z->member)))
        return err_nomem(e, "archive");
    for (; z->n < n; z->n++)
        if (!(at = read_entry(s, size, at, &z->member[z->n], e))) {
            zip_release(z);
            return -1;
        }
    return 0;
}

void zip_release(struct zip *z)
{
    free(z->member);
    *z = (struct zip){ 0 };
}

const struct zip_member *zip_find(const struct zip *z, const char *name, size_t size)
{
    for (int i = 0; i < z->n; i++)
        if (z->member[i].name_size == size && memcmp(z->member[i].name, name, size) == 0)
            return &z->member[i];
    return NULL;
}

static int too_large(struct err *e, size_t most)
{
    return err_set(e, ERR_LIMIT, "a part of the document has more than %zu bytes", most);
}

int zip_inflate(const struct zip_member *m, size_t most, struct text_build *out, struct err *e)
{
    union { const uint8_t *in; Bytef *out; } source = { .in = m->data };
    z_stream z = { .next_in = source.out, .avail_in = (uInt)m->size };
    uint8_t bytes[16384];
    size_t done = 0;
    int rc = Z_OK;
    if (m->method == 0) {
        build_add(out, (const char *)m->data, m->size < most ? m->size : most);
        return m->size > most ? too_large(e, most) : out->state == TEXT_GOOD ? 0 : build_end(out, e);
    }
    if (m->method != 8)
        return damaged(e, "a member is packed in an unknown way");
    if (inflateInit2(&z, -MAX_WBITS) != Z_OK)
        return err_nomem(e, "archive");
    while (rc == Z_OK && out->state == TEXT_GOOD && done <= most) {
        z.next_out = bytes;
        z.avail_out = sizeof bytes;
        rc = inflate(&z, Z_NO_FLUSH);
        const size_t n = sizeof bytes - z.avail_out;
        build_add(out, (const char *)bytes, n);
        done += n;
        if (rc == Z_OK && n == 0)
            break;
    }
    inflateEnd(&z);
    if (out->state != TEXT_GOOD)
        return build_end(out, e);
    if (done > most)
        return too_large(e, most);
    return rc == Z_STREAM_END ? 0 : damaged(e, "a member cannot be unpacked");
}
