/* fuzz-zfile.c - .zse files with right checksums and any other faults.
 *
 * The first byte modulo 3 chooses: 0, the rest is the JSON of a small file of version 1.0 whose
 * other sections are good; 1, the rest is a whole file, whose header and table get right checksums
 * and a matching size; 2, the rest is section TNSR of a small file. */
#include "tests/fuzz/fuzz.h"

#include <string.h>
#include <zlib.h>

#include "libcommon/format/zbytes.h"
#include "libcommon/format/zfile.h"

enum { WEIGHTS = 2 * ZSE_PAGE, ROOM = 1 << 20 };

static size_t wrap(uint8_t *b, const char *kind, const uint8_t *data, size_t size)
{
    static const char json[] = "{\"groups\":[{\"kind\":\"layer\",\"layer\":0,\"offset\":4096,\"size\":4096,\"crc\":0},"
                               "{\"kind\":\"head\",\"offset\":8192,\"size\":4096,\"crc\":0}]}";
    struct zse_section s[5] = { { "WGTS", 3, ZSE_PAGE, WEIGHTS, 0, 0 }, { "TOKB", 1, ZSE_PAGE + WEIGHTS, 64, 0, 0 },
                                { "ORIG", 1, ZSE_PAGE + WEIGHTS + 64, 64, 0, 0 },
                                { "JSON", 1, ZSE_PAGE + WEIGHTS + 128, 0, 0, 0 }, { "TNSR", 1, 0, 0, 0, 0 } };
    const int list = strcmp(kind, "TNSR") == 0;
    struct zse_header h = { .magic = "ZSE", .major = ZSE_MAJOR, .n_sections = list ? 5 : 4 };
    struct zse_section *last = &s[h.n_sections - 1];
    for (size_t i = 0; i < WEIGHTS + 128; i++)
        b[ZSE_PAGE + i] = (uint8_t)(i * 7);
    uLongf packed = 64;
    compress2(b + s[2].offset, &packed, (const Bytef *)"{}", 2, 9);
    if (list) {
        memcpy(b + s[3].offset, json, sizeof json - 1);
        s[3].size = sizeof json - 1;
        s[3].crc = (uint32_t)crc32_z(0, (const uint8_t *)json, sizeof json - 1);
        last->offset = zse_round_up(s[3].offset + s[3].size, ZSE_LINE);
    }
    memcpy(b + last->offset, data, size);
    last->size = size;
    last->crc = (uint32_t)crc32_z(0, data, size);
    h.table_offset = zse_round_up(last->offset + size, ZSE_LINE);
    const size_t table = h.n_sections * sizeof *s;
    memcpy(b + h.table_offset, s, table);
    h.table_crc = (uint32_t)crc32_z(0, (uint8_t *)s, table);
    h.size = h.table_offset + table;
    memcpy(b, &h, sizeof h);
    return h.size;
}

static size_t repair(uint8_t *b, const uint8_t *data, size_t size)
{
    struct zse_header h;
    memcpy(b, data, size);
    if (size < sizeof h)
        return size;
    memcpy(&h, b, sizeof h);
    h.size = size;
    if (h.table_offset <= size && h.n_sections <= ZSE_MAX_SECTIONS && h.n_sections *
        sizeof(struct zse_section) <= size - h.table_offset) {
        for (uint32_t i = 0; i < h.n_sections; i++) {
            struct zse_section s;
            memcpy(&s, b + h.table_offset + i * sizeof s, sizeof s);
            if (s.offset <= size && s.size <= size - s.offset) {
                s.crc = (uint32_t)crc32_z(0, b + s.offset, s.size);
                memcpy(b + h.table_offset + i * sizeof s, &s, sizeof s);
            }
        }
        h.table_crc = (uint32_t)crc32_z(0, b + h.table_offset, h.n_sections * sizeof(struct zse_section));
    }
    memcpy(b, &h, sizeof h);
    return size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t b[ROOM];
    struct zse_header h;
    struct err e;
    if (size < 1 || size > ROOM / 2)
        return 0;
    size_t n = data[0] % 3 == 1 ? repair(b, data + 1, size - 1)
                                : wrap(b, data[0] % 3 ? "TNSR" : "JSON", data + 1, size - 1);
    if (n >= sizeof h) {
        memcpy(&h, b, sizeof h);
        h.header_crc = (uint32_t)crc32_z(0, (uint8_t *)&h, offsetof(struct zse_header, header_crc));
        memcpy(b, &h, sizeof h);
    }
    struct zfile *z = zfile_open(fuzz_file(b, n), &e);
    if (!z)
        return 0;
    float *row = NULL;
    for (int i = 0; i < zfile_n_tensors(z); i++) {          /* everything handed out must be readable */
        const struct zfile_tensor *t = zfile_tensor(z, i);
        zfile_find(z, t->name);
        if (t->tiled && t->m.cols < 1 << 16 && (row = malloc((size_t)t->m.cols * sizeof *row))) {
            mat_decode_row(&t->m, t->m.rows - 1, row);
            free(row);
        }
        if (t->source_name && row_map_source(&t->map, (t->n_dims == 1 ? t->dim[0] : t->m.rows) - 1) < 0)
            abort();
    }
    for (int i = 0; i < zfile_n_originals(z); i++) {
        size_t size_unpacked;
        zfile_original_name(z, i, &size_unpacked);
        void *out = malloc(size_unpacked + 1);
        if (out)
            zfile_original_read(z, i, out, &e);
        free(out);
    }
    zfile_verify(z, &e);
    zfile_close(z);
    return 0;
}
