/* zbytes.h - the fixed parts of a .zse file as C structs, shared by reader and writer: FORMAT.md,
 * sections 1 to 3. */
#ifndef ZSE_FORMAT_ZBYTES_H
#define ZSE_FORMAT_ZBYTES_H

#include <stddef.h>
#include <stdint.h>

enum {
    ZSE_MAJOR = 1, ZSE_MINOR = 4, ZSE_PATCH = 0,
    ZSE_PAGE = 4096,            /* alignment of groups and large matrices */
    ZSE_LINE = 64,              /* alignment of tensors and sections */
    ZSE_LARGE = 1 << 20,        /* a matrix of at least this size begins at a page */
    ZSE_MAX_SECTIONS = 64,
    ZSE_MAX_JSON = 256 << 20,
    ZSE_MAX_ORIGINALS = 1024,
};

struct zse_header {
    char magic[4];              /* "ZSE\0" */
    uint8_t major, minor, patch, zero;
    uint64_t size;              /* size of the whole file */
    uint64_t table_offset;      /* offset of the section table */
    uint32_t n_sections;
    uint32_t table_crc;         /* CRC-32 of the section table */
    uint8_t reserved[28];       /* 0 */
    uint32_t header_crc;        /* CRC-32 of the 60 bytes before */
};
_Static_assert(sizeof(struct zse_header) == 64, "header");

enum { ZSE_REQUIRED = 1,        /* a reader that does not know this section must refuse the file */
       ZSE_GROUP_CRCS = 2 };    /* crc is 0: the groups have their own checksums */

struct zse_section {
    char kind[4];               /* "JSON", "TNSR", "WGTS", "TOKB", "ORIG", "MDSA", "EAGL" */
    uint32_t flags;
    uint64_t offset, size;
    uint32_t crc;               /* CRC-32 of the bytes */
    uint32_t zero;
};
_Static_assert(sizeof(struct zse_section) == 32, "section");

/* Section TNSR: this struct, then the records, the maps and the strings. */
struct zse_tensors {
    uint32_t n_tensors, n_maps;
    /* the first and the last byte are 0, so offset 0 is the empty string and the last string is
     * terminated */
    uint32_t n_string_bytes;
    uint32_t zero;
};
_Static_assert(sizeof(struct zse_tensors) == 16, "list of tensors");

enum { ZSE_TILED = 1, ZSE_GRID_KEPT = 2, ZSE_TRANSPOSED = 4 };

struct zse_tensor {
    uint64_t offset, size;
    uint32_t name, source, source_type;         /* offsets of the texts in the strings; 0: none */
    uint16_t type;              /* enum qtype */
    uint8_t n_dims, flags;      /* ZSE_TILED ... */
    uint32_t dim[2];            /* outermost first; a vector's second is 0 */
    uint32_t group;
    uint16_t group_size, act_group;             /* 0 unless tiled */
    uint32_t source_dim[2];
    uint32_t pairs;
    uint32_t map;               /* 1 + index of its map; 0: identity */
};
_Static_assert(sizeof(struct zse_tensor) == 64, "tensor");

struct zse_map { int64_t offset, run, stride, first, slice, slice_stride; };    /* zfile.h, struct row_map */
_Static_assert(sizeof(struct zse_map) == 48, "map of rows");

static inline uint64_t zse_round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

#endif
