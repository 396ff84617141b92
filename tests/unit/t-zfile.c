/* t-zfile.c - a small .zse file: written, read back, cut at every byte, with every byte and every
 * field broken in turn. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>

#include "tests/lib/cpu.h"
#include "libcommon/base/file.h"
#include "libcommon/base/rng.h"
#include "libcommon/base/siphash.h"
#include "libcommon/format/zbytes.h"
#include "libcommon/format/zfile.h"

static char dir[] = "/tmp/t-zfile-XXXXXX";
static char path[64], other[64];
/* the file that make_file() writes, as written now and as version 1.0, which lists its tensors in
 * JSON */
static uint8_t *golden, *older;
static size_t golden_size, older_size;
static const char tokenizer_blob[] = "TOKB stands here";
static const char heads_blob[] = "MDSA stands here";
static const char original_text[] = "{\"version\": \"1.0\"}\n";

static void fill(uint8_t *p, size_t n, uint64_t seed)
{
    struct rng r = { seed };
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)rng_u64(&r);
}

static void add_tensor(struct zwriter *w, const char *name, const char *source, enum qtype type, int64_t rows,
                       int64_t cols, int tiled, struct row_map map, int64_t source_rows, int64_t source_cols)
{
    struct err e;
    struct zfile_tensor t = { .name = name, .source_name = source, .map = map, .n_dims = rows == 1 ? 1 : 2,
                              .tiled = tiled,
                              .source_rows = source_rows, .source_cols = source_cols };
    t.dim[0] = rows == 1 ? cols : rows;
    t.dim[1] = rows == 1 ? 0 : cols;
    if (tiled) {
        assert_int_equal(mat_init(&t.m, type, 32, type <= QT_BF16 ? 0 : 32, rows, cols, &e), 0);
    } else {
        t.m.type = type;
        t.m.size = (size_t)(rows * cols) * (type == QT_F32 ? 4 : 2);
    }
    uint8_t *data = malloc(t.m.size);
    fill(data, t.m.size, t.m.size);
    assert_int_equal(zwriter_tensor(w, &t, &e), 0);
    assert_int_equal(zwriter_data(w, data, t.m.size / 2, &e), 0);           /* in two pieces */
    assert_int_equal(zwriter_data(w, data + t.m.size / 2, t.m.size - t.m.size / 2, &e), 0);
    free(data);
}

static void make_file(const char *name)
{
    struct err e;
    struct zwriter *w = zwriter_open(name, &e);
    assert_non_null(w);
    static const struct row_map same;
    assert_int_equal(zwriter_group(w, "embed", -1, &e), 0);
    add_tensor(w, "embed.weight", "model.embed_tokens.weight", QT_I8, 40, 64, 1, same, 40, 64);
    assert_int_equal(zwriter_group(w, "layer", 0, &e), 0);
    add_tensor(w, "layers.0.attn_norm.weight", "n", QT_F32, 1, 64, 0, same, 1, 64);
    add_tensor(w, "layers.0.q_proj.weight", "qkv", QT_NL4, 32, 64, 1,
               (struct row_map){ .run = 32, .stride = 32, .pairs = 16 }, 96, 64);
    add_tensor(w, "layers.0.k_proj.weight", "c", QT_BF16, 32, 64, 0,
               (struct row_map){ .offset = 32, .run = 32, .stride = 32, .transposed = 1 }, 64, 96);
    assert_int_equal(zwriter_group(w, "head", -1, &e), 0);
    add_tensor(w, "norm.weight", NULL, QT_F32, 1, 64, 0, same, 0, 0);
    assert_int_equal(zwriter_tokenizer(w, tokenizer_blob, sizeof tokenizer_blob, &e), 0);
    zwriter_heads(w, HEADS_MEDUSA, heads_blob, sizeof heads_blob);
    assert_int_equal(zwriter_original(w, "tokenizer.json", original_text, sizeof original_text - 1, &e), 0);
    assert_int_equal(zwriter_original(w, "additional_chat_templates/rag.jinja", "", 0, &e), 0);
    json_t *j = json_pack("{s:s, s:{s:s}}", "architecture", "llama", "config", "model_type", "llama");
    assert_int_equal(zwriter_commit(w, j, &e), 0);
    json_decref(j);
}

static int n_added, n_removed;
static void heed(struct map *m) { assert_false(m->lost); n_added++; }
static void heed_lost(struct map *m) { m->lost = 1; n_added++; }
static void forget(struct map *m) { assert_non_null(m->data); n_removed++; }

/* The guard is called with the map, and a file with lost pages is refused. */
static void lost_pages_are_refused(void **state)
{
    (void)state;
    const struct map_guard fine = { heed, forget }, lost = { heed_lost, forget };
    struct err e;
    struct zfile *z = zfile_open_guarded(path, 0, &fine, &e);
    assert_non_null(z);
    assert_true(n_added == 1 && n_removed == 0);
    zfile_close(z);
    assert_true(n_added == 1 && n_removed == 1);
    assert_null(zfile_open_guarded(path, 0, &lost, &e));
    assert_true(n_added == 2 && n_removed == 2);
    assert_non_null(strstr(e.msg, MAP_LOST));
    assert_null(zfile_open_guarded("/no/such.zse", 0, &fine, &e));
    assert_true(n_added == 2 && n_removed == 2);
}

static void put_file(const char *name, const void *data, size_t n)
{
    FILE *f = fopen(name, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* ---- the form of version 1.0 ---- */

static json_t *describe(const struct zfile_tensor *t)
{
    const struct row_map *m = &t->map;
    json_t *j = json_pack("{s:s, s:s, s:I, s:I}", "name", t->name, "type", qtype_info(t->m.type)->name, "offset",
                          (json_int_t)t->offset, "size", (json_int_t)t->m.size);
    json_object_set_new(j, "shape", t->n_dims == 1 ? json_pack("[I]", (json_int_t)t->dim[0])
                                                   : json_pack("[I,I]", (json_int_t)t->dim[0], (json_int_t)t->dim[1]));
    json_object_set_new(j, "group", json_integer(t->group));
    if (t->tiled) {
        json_object_set_new(j, "tiled", json_true());
        json_object_set_new(j, "group_size", json_integer(t->m.group_size));
        json_object_set_new(j, "act_group", json_integer(t->m.act_group));
    }
    if (t->source_name) {
        json_object_set_new(j, "source", json_string(t->source_name));
        json_object_set_new(j, "source_shape", json_pack("[I,I]", (json_int_t)t->source_rows,
                                                         (json_int_t)t->source_cols));
    }
    if (m->run)
        json_object_set_new(j, "rows", json_pack("[I,I,I]", (json_int_t)m->offset, (json_int_t)m->run,
                                                 (json_int_t)m->stride));
    if (m->pairs)
        json_object_set_new(j, "pairs", json_integer(m->pairs));
    if (m->transposed)
        json_object_set_new(j, "transposed", json_true());
    return j;
}

/* Build a file of these sections, with the JSON `text` as the last one and all checksums right.
 * The caller frees it. */
static uint8_t *assemble(const uint8_t *from, struct zse_section *s, uint32_t n, const char *text, size_t *size)
{
    struct zse_header h;
    struct zse_section *j = &s[n - 1];
    uint64_t end = 0;
    memcpy(&h, golden, sizeof h);
    for (uint32_t i = 0; i + 1 < n; i++)
        end = s[i].offset + s[i].size > end ? s[i].offset + s[i].size : end;
    memcpy(j->kind, "JSON", 4);
    j->flags = ZSE_REQUIRED;
    j->offset = zse_round_up(end, ZSE_LINE);
    j->size = strlen(text);
    j->crc = (uint32_t)crc32(0, (const uint8_t *)text, (uInt)j->size);
    h.table_offset = zse_round_up(j->offset + j->size, ZSE_LINE);
    h.n_sections = n;
    h.size = h.table_offset + n * sizeof *s;
    uint8_t *b = calloc(1, h.size);
    memcpy(b, from, end);
    memcpy(b + j->offset, text, j->size);
    memcpy(b + h.table_offset, s, n * sizeof *s);
    h.table_crc = (uint32_t)crc32(0, (uint8_t *)s, (uInt)(n * sizeof *s));
    h.header_crc = (uint32_t)crc32(0, (uint8_t *)&h, 60);
    memcpy(b, &h, sizeof h);
    *size = h.size;
    return b;
}

/* Get the sections of a file, and its JSON, which the caller frees.  Returns the number of
 * sections. */
static uint32_t sections_of(const uint8_t *file, struct zse_section s[8], char **text)
{
    struct zse_header h;
    memcpy(&h, file, sizeof h);
    assert_true(h.n_sections <= 8);
    memcpy(s, file + h.table_offset, h.n_sections * sizeof *s);
    const struct zse_section *j = &s[h.n_sections - 1];
    assert_memory_equal(j->kind, "JSON", 4);
    *text = calloc(1, j->size + 1);
    memcpy(*text, file + j->offset, j->size);
    return h.n_sections;
}

static void make_old(void)
{
    struct zse_section s[8];
    struct err e;
    char *text;
    uint32_t n = sections_of(golden, s, &text), kept = 0;
    struct zfile *z = zfile_open(path, &e);
    assert_non_null(z);
    json_t *j = json_loads(text, 0, NULL), *tensors = json_array();
    for (int i = 0; i < zfile_n_tensors(z); i++)
        json_array_append_new(tensors, describe(zfile_tensor(z, i)));
    json_object_set_new(j, "tensors", tensors);
    free(text);
    text = json_dumps(j, JSON_COMPACT);
    for (uint32_t i = 0; i < n; i++)
        if (memcmp(s[i].kind, "TNSR", 4) != 0)
            s[kept++] = s[i];
    assert_int_equal(kept, n - 1);
    older = assemble(golden, s, kept, text, &older_size);
    older[5] = 0;                             /* version 1.0.0 */
    struct zse_header h;
    memcpy(&h, older, sizeof h);
    h.header_crc = (uint32_t)crc32(0, (uint8_t *)&h, 60);
    memcpy(older, &h, sizeof h);
    json_decref(j);
    free(text);
    zfile_close(z);
}

static int setup(void **state)
{
    (void)state;
    struct err e;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/golden.zse", dir);
    snprintf(other, sizeof other, "%s/broken.zse", dir);
    make_file(path);
    golden = (uint8_t *)file_read(path, 1 << 20, &golden_size, &e);
    assert_non_null(golden);
    make_old();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    unlink(other);
    free(golden);
    free(older);
    return rmdir(dir);              /* fails if the writer left a temporary behind */
}

static void a_written_file_reads_back(void **state)
{
    (void)state;
    struct err e = { 0 };
    struct zfile *z = zfile_open(path, &e);
    assert_string_equal(e.msg, "");
    assert_non_null(z);
    int major, minor, patch;
    zfile_version(z, &major, &minor, &patch);
    assert_int_equal(major, 1);
    assert_int_equal(zfile_size(z), golden_size);
    assert_int_equal(zfile_n_groups(z), 3);
    assert_int_equal(zfile_n_tensors(z), 5);
    assert_string_equal(zfile_group(z, 1)->kind, "layer");
    assert_int_equal(zfile_group(z, 1)->layer, 0);
    assert_int_equal(zfile_group(z, 2)->layer, -1);
    const struct zfile_tensor *t = zfile_find(z, "layers.0.q_proj.weight");
    assert_non_null(t);
    assert_int_equal(t->m.type, QT_NL4);
    assert_int_equal(t->m.rows, 32);
    assert_int_equal(t->map.pairs, 16);
    assert_int_equal(t->group, 1);
    assert_string_equal(t->source_name, "qkv");
    uint8_t *want = malloc(t->m.size);
    fill(want, t->m.size, t->m.size);
    assert_memory_equal(t->m.data, want, t->m.size);
    free(want);
    assert_null(zfile_find(z, "layers.0.v_proj.weight"));
    for (int i = 0; i < zfile_n_tensors(z); i++)
        assert_int_equal((uintptr_t)zfile_tensor(z, i)->m.data % ZSE_LINE, 0);
    size_t n;
    assert_memory_equal(zfile_tokenizer(z, &n), tokenizer_blob, sizeof tokenizer_blob);
    assert_int_equal(n, sizeof tokenizer_blob);
    assert_memory_equal(zfile_heads(z, HEADS_MEDUSA, &n), heads_blob, sizeof heads_blob);
    assert_int_equal(n, sizeof heads_blob);
    char text[64];
    assert_string_equal(zfile_original_name(z, 0, &n), "tokenizer.json");
    assert_int_equal(n, sizeof original_text - 1);
    assert_int_equal(zfile_original_read(z, 0, text, &e), 0);
    assert_memory_equal(text, original_text, n);
    assert_int_equal(zfile_n_originals(z), 2);
    assert_int_equal(zfile_verify(z, &e), 0);
    zfile_close(z);
}

/* The rows of a source that a row map selects: with `pairs` the halves of each head interleaved;
 * else runs of rows at a distance, from an offset on. */
static void row_maps_select_the_rows_of_the_source(void **state)
{
    (void)state;
    const struct row_map pairs = { .pairs = 8 }, piece = { .offset = 32, .run = 16, .stride = 48 };
    static const int64_t want[8] = { 0, 2, 4, 6, 1, 3, 5, 7 };
    for (int64_t i = 0; i < 16; i++)
        assert_int_equal(row_map_source(&pairs, i), i / 8 * 8 + want[i % 8]);
    assert_int_equal(row_map_source(&piece, 0), 32);
    assert_int_equal(row_map_source(&piece, 15), 47);
    assert_int_equal(row_map_source(&piece, 16), 80);
}

static void the_same_model_gives_the_same_bytes(void **state)
{
    (void)state;
    struct err e;
    size_t n;
    make_file(other);
    char *again = file_read(other, 1 << 20, &n, &e);
    assert_int_equal(n, golden_size);
    assert_memory_equal(again, golden, n);
    free(again);
}

static int opens(const char *name, struct err *e)
{
    struct zfile *z = zfile_open(name, e);
    zfile_close(z);
    return z != NULL;
}

static void cut_at_every_byte(void **state)
{
    (void)state;
    put_file(other, golden, golden_size);
    for (size_t n = golden_size; n-- > 0;) {
        struct err e = { 0 };
        assert_int_equal(truncate(other, (off_t)n), 0);
        if (opens(other, &e) || !strstr(e.msg, other) || !strstr(e.msg, "offset"))
            fail_msg("cut at %zu of %zu: %s", n, golden_size, e.msg);
    }
}

/* Every bit of the file is under some checksum: opening or verifying must notice one that is
 * flipped. */
static void every_flipped_bit_is_noticed(void **state)
{
    (void)state;
    put_file(other, golden, golden_size);
    FILE *f = fopen(other, "r+b");
    for (size_t i = 0; i < golden_size; i++) {
        struct err e = { 0 };
        uint8_t flipped = golden[i] ^ (uint8_t)(1 << i % 8);
        fseek(f, (long)i, SEEK_SET);
        fputc(flipped, f);
        fflush(f);
        struct zfile *z = zfile_open(other, &e);
        if (z && zfile_verify(z, &e) == 0)
            fail_msg("byte %zu flipped: nobody noticed", i);
        if (!strstr(e.msg, "offset"))
            fail_msg("byte %zu flipped: %s", i, e.msg);
        zfile_close(z);
        fseek(f, (long)i, SEEK_SET);
        fputc(golden[i], f);
    }
    fclose(f);
}

/* Write the golden file with n bytes at `at` replaced.  The checksum of the header is right again,
 * that of the section table only with fix_table. */
static void patch_fixed(uint64_t at, const void *bytes, size_t n, int fix_table)
{
    uint8_t *b = malloc(golden_size);
    struct zse_header h;
    memcpy(b, golden, golden_size);
    memcpy(b + at, bytes, n);
    memcpy(&h, b, sizeof h);
    if (fix_table)
        h.table_crc = (uint32_t)crc32(0, b + h.table_offset, (uInt)(h.n_sections * sizeof(struct zse_section)));
    h.header_crc = (uint32_t)crc32(0, (const uint8_t *)&h, 60);
    memcpy(b, &h, sizeof h);
    put_file(other, b, golden_size);
    free(b);
}

static void refuses(const char *words)
{
    struct err e = { 0 };
    if (opens(other, &e) || !strstr(e.msg, words) || !strstr(e.msg, "offset"))
        fail_msg("expected '%s', got '%s'", words, e.msg);
}

static void bad_header_fields_are_refused(void **state)
{
    (void)state;
    uint64_t huge = UINT64_MAX - 31;
    uint32_t many = UINT32_MAX, none = 0;
    patch_fixed(0, "GGUF", 4, 0), refuses("magic");
    patch_fixed(4, "\2", 1, 0), refuses("version: 2.4.0, this program reads version 1");
    patch_fixed(8, &huge, 8, 0), refuses("size");
    patch_fixed(16, &huge, 8, 0), refuses("section table offset");
    patch_fixed(24, &many, 4, 0), refuses("n_sections");
    patch_fixed(24, &none, 4, 0), refuses("n_sections");
    patch_fixed(28, &none, 4, 0), refuses("section table checksum");
    struct err e = { 0 };
    patch_fixed(5, "\7", 1, 0);                         /* a later minor version is accepted */
    if (!opens(other, &e))
        fail_msg("version 1.7: %s", e.msg);
}

static void bad_section_fields_are_refused(void **state)
{
    (void)state;
    struct zse_header h;
    memcpy(&h, golden, sizeof h);
    for (uint32_t i = 0; i < h.n_sections; i++) {
        uint64_t at = h.table_offset + i * sizeof(struct zse_section), huge = UINT64_MAX - 63, zero = 0;
        struct zse_section s;
        memcpy(&s, golden + at, sizeof s);
        if (s.flags & ZSE_REQUIRED)
            patch_fixed(at, "WHAT", 4, 1), refuses("section 'WHAT' is required and unknown");
        patch_fixed(at, i ? (const void *)(golden + h.table_offset) : "TOKB", 4, 1), refuses("twice");
        patch_fixed(at + 8, &huge, 8, 1), refuses("not between the header and the section table");
        patch_fixed(at + 8, &zero, 8, 1), refuses("not between the header and the section table");
        patch_fixed(at + 16, &huge, 8, 1), refuses("not between the header and the section table");
        uint64_t one_more = s.size + 4096;
        if (i + 1 < h.n_sections)
            patch_fixed(at + 16, &one_more, 8, 1), refuses("section");
    }
}

/* A section that is neither known nor required is ignored.  The tensor section must have the right
 * checksum. */
static void sections_not_required_may_be_unknown(void **state)
{
    (void)state;
    struct err e = { 0 };
    struct zse_header h;
    size_t size = 7;
    memcpy(&h, golden, sizeof h);
    for (uint32_t i = 0; i < h.n_sections; i++) {
        const uint64_t at = h.table_offset + i * sizeof(struct zse_section);
        struct zse_section s;
        memcpy(&s, golden + at, sizeof s);
        if (memcmp(s.kind, "TNSR", 4) == 0) {
            s.crc ^= 1;
            patch_fixed(at, &s, sizeof s, 1), refuses("section TNSR: checksum");
        } else if (memcmp(s.kind, "TOKB", 4) == 0) {
            memcpy(s.kind, "WHAT", 4);
            s.flags &= ~(uint32_t)ZSE_REQUIRED;
            patch_fixed(at, &s, sizeof s, 1);
            struct zfile *z = zfile_open(other, &e);
            if (!z)
                fail_msg("%s", e.msg);
            assert_null(zfile_tokenizer(z, &size));
            zfile_close(z);
            size = 0;
        }
    }
    assert_int_equal(size, 0);
}

/* Write `file` (golden or older) with the text `from` replaced by `to` in its JSON section, and all
 * sizes and checksums right. */
static void edit_json(const uint8_t *file, const char *from, const char *to)
{
    struct zse_section s[8];
    char *text, *hit;
    const uint32_t n = sections_of(file, s, &text);
    hit = strstr(text, from);
    if (!hit)
        fail_msg("'%s' is not in %s", from, text);
    const size_t head = (size_t)(hit - text), room = strlen(text) + strlen(to) + 1;
    char *edited = malloc(room);
    snprintf(edited, room, "%.*s%s%s", (int)head, text, to, hit + strlen(from));
    size_t size;
    uint8_t *b = assemble(file, s, n, edited, &size);
    put_file(other, b, size);
    free(b);
    free(edited);
    free(text);
}

/* Write the golden file with n bytes of section TNSR replaced, `at` counted from the section's
 * start, and all checksums right. */
static void edit_list(size_t at, const void *bytes, size_t n)
{
    struct zse_section s[8];
    char *text;
    const uint32_t n_sections = sections_of(golden, s, &text);
    uint8_t *copy = malloc(golden_size);
    memcpy(copy, golden, golden_size);
    for (uint32_t i = 0; i < n_sections; i++)
        if (memcmp(s[i].kind, "TNSR", 4) == 0) {
            assert_true(at + n <= s[i].size);
            memcpy(copy + s[i].offset + at, bytes, n);
            s[i].crc = (uint32_t)crc32(0, copy + s[i].offset, (uInt)s[i].size);
        }
    size_t size;
    uint8_t *b = assemble(copy, s, n_sections, text, &size);
    put_file(other, b, size);
    free(b);
    free(copy);
    free(text);
}

/* Field of record i of section TNSR. */
#define RECORD(i, field) \
    (sizeof(struct zse_tensors) + (i) * sizeof(struct zse_tensor) + offsetof(struct zse_tensor, field))

static void bad_tensor_records_are_refused(void **state)
{
    (void)state;
    enum { N = 5, MAPS = 16 + N * 64 };
    static const struct { size_t at, n; uint64_t value; const char *words; } cases[] = {
        { 0, 4, 4, "section TNSR: " }, { 0, 4, UINT32_MAX, "tensors" }, { 4, 4, 3, "3 maps" },
            { 8, 4, 1, "1 bytes of names" },
        { RECORD(0, offset), 8, 4097, "tensor embed.weight: offset: found 4097, expected a multiple of 64 from 4096 on" },
        { RECORD(0, offset), 8, UINT64_MAX - 63, "beyond its group" },
        { RECORD(2, offset), 8, 12288, "tensor 2: tensor layers.0.q_proj.weight: offset" },
        { RECORD(2, size), 8, 0, "size: found 0, type and shape need" },
        { RECORD(0, name), 4, 0, "tensor 0: name: it has none" },
        { RECORD(0, name), 4, 1 << 30, "tensor 0: name: at 1073741824 of" },
        { RECORD(4, source), 4, UINT32_MAX, "source: at" },
        { RECORD(4, source_type), 4, UINT32_MAX, "source_type: at" },
        { RECORD(2, type), 2, 22, "number format 22 is unknown to this program" },
        { RECORD(2, type), 2, 65535, "number format 65535 is unknown" },
        { RECORD(2, type), 2, QT_T3, "t3" }, { RECORD(2, type), 2, QT_I8, "size" },
        { RECORD(4, type), 2, QT_NL4, "nl4 is not possible in plain rows" },
        { RECORD(2, n_dims), 1, 3, "3 dimensions" }, { RECORD(2, n_dims), 1, 0, "0 dimensions" },
        { RECORD(2, flags), 1, 8, "flags: 8" },
        { RECORD(0, dim), 4, 0, "shape: size 0 is not" }, { RECORD(0, dim), 4, UINT32_MAX, "shape: size 0 is not" },
        { RECORD(0, dim), 4, 41, "tensor embed.weight: source_shape" },
        { RECORD(0, dim), 8, 0x7fffffff7fffffff, "tensor embed.weight" },
        { RECORD(1, group), 4, 3, "group: 3, expected less than 3" }, { RECORD(1, group), 4, 2, "offset" },
        { RECORD(2, group_size), 2, 31, "group size" }, { RECORD(2, act_group), 2, 33, "activation group" },
        { RECORD(2, source_dim), 4, 31, "has no row" },
        { RECORD(2, source_dim), 4, 0, "source_shape: size 0" }, { RECORD(2, pairs), 4, 7, "pairs" },
        { RECORD(2, pairs), 4, UINT32_MAX, "pairs" }, { RECORD(2, map), 4, 3, "map: 3 of 2" },
        { MAPS + 8, 8, 0, "no map of rows" }, { MAPS, 8, 65, "has no row 96" },
        { MAPS, 8, UINT64_MAX, "no map of rows" }, { MAPS + 24, 8, 1, "block" },
        { MAPS + 96, 1, 'x', "strings: the first and the last byte are not 0" },
        { MAPS + 97, 1, 0xff, "strings: byte 1 is not UTF-8" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        edit_list(cases[i].at, &cases[i].value, cases[i].n);
        refuses(cases[i].words);
    }
    uint32_t name;
    struct zse_section s[8];
    char *text;
    const uint32_t n = sections_of(golden, s, &text);
    free(text);
    for (uint32_t i = 0; i < n; i++)
        if (memcmp(s[i].kind, "TNSR", 4) == 0) {
            memcpy(&name, golden + s[i].offset + RECORD(0, name), sizeof name);
            edit_list(s[i].size - 1, "x", 1), refuses("strings: the first and the last byte are not 0");
        }
    edit_list(RECORD(3, name), &name, sizeof name), refuses("tensor embed.weight occurs twice");
    edit_json(golden, "\"architecture\":\"llama\"", "\"tensors\":[]"), refuses("tensors: the file has a section TNSR");
}

/* A file of version 1.0 is read as before.  A reader of version 1.0 refuses a newer file, because
 * section TNSR, which it does not know, is marked as required. */
static void reads_version_1_0(void **state)
{
    (void)state;
    struct err e = { 0 };
    put_file(other, older, older_size);
    struct zfile *z = zfile_open(path, &e), *y = zfile_open(other, &e);
    assert_string_equal(e.msg, "");
    int major, minor, patch;
    zfile_version(y, &major, &minor, &patch);
    assert_true(major == 1 && minor == 0);
    assert_int_equal(zfile_n_tensors(y), zfile_n_tensors(z));
    for (int i = 0; i < zfile_n_tensors(z); i++) {
        const struct zfile_tensor *a = zfile_tensor(z, i), *b = zfile_find(y, a->name);
        assert_ptr_equal(b, zfile_tensor(y, i));
        assert_true(a->m.type == b->m.type && a->m.rows == b->m.rows && a->m.cols == b->m.cols &&
                    a->m.group_size == b->m.group_size && a->m.size == b->m.size);
        assert_memory_equal(a->m.data, b->m.data, a->m.size);
        assert_memory_equal(&a->map, &b->map, sizeof a->map);
        assert_true(a->tiled == b->tiled && a->group == b->group && a->offset == b->offset &&
                    !a->source_name == !b->source_name);
        if (a->source_name)
            assert_string_equal(a->source_name, b->source_name);
    }
    assert_int_equal(zfile_verify(y, &e), 0);
    zfile_close(y);
    zfile_close(z);
    struct zse_section s[8];
    char *text;
    const uint32_t n = sections_of(golden, s, &text);
    free(text);
    for (uint32_t i = 0; i < n; i++)
        assert_true((s[i].flags & ZSE_REQUIRED) != 0 || memcmp(s[i].kind, "MDSA", 4) == 0);
}

static void bad_json_fields_are_refused(void **state)
{
    (void)state;
    static const struct { const char *from, *to, *words; } cases[] = {
        { "{\"architecture\"", "[\"architecture\"", "section JSON: line 1" },
        { "\"architecture\":\"llama\"", "\"architecture\":\"\xff\"", "section JSON" },
        { "\"kind\":\"layer\"", "\"kind\":7", "group 1: kind: found a whole number" },
        { "\"kind\":\"layer\",\"offset\":12288", "\"kind\":\"layer\",\"offset\":4096", "group 1: offset" },
        { "\"kind\":\"layer\",\"offset\":12288", "\"kind\":\"layer\",\"offset\":12352", "no multiple of 4096" },
        { "\"kind\":\"layer\",\"offset\":12288", "\"kind\":\"layer\",\"offset\":9223372036854771712",
          "beyond section WGTS" },
        { "\"layer\":0", "\"layer\":-1", "group 1: layer" },
        { "\"type\":\"nl4\"", "\"type\":\"nl5\"", "number format 'nl5' is unknown" },
        { "\"type\":\"nl4\"", "\"type\":\"t3\"", "t3" },
        { "\"type\":\"nl4\"", "\"type\":\"i8\"", "size" },
        { "\"type\":\"f32\"", "\"type\":\"nl4\"", "nl4 is not possible in plain rows" },
        { "\"group_size\":32,\"act_group\":32,\"source\":\"qkv\"",
          "\"group_size\":31,\"act_group\":32,\"source\":\"qkv\"", "group size" },
        { "\"name\":\"layers.0.q_proj.weight\"", "\"name\":\"norm.weight\"", "norm.weight occurs twice" },
        { "\"name\":\"norm.weight\"", "\"name\":5", "tensor 4: name" },
        { "\"shape\":[40,64]", "\"shape\":[41,64]", "tensor embed.weight: source_shape" },
        { "\"shape\":[40,64]", "\"shape\":[65,64]", "tensor embed.weight" },
        { "\"shape\":[40,64]", "\"shape\":[40,64,1]", "shape" },
        { "\"shape\":[40,64]", "\"shape\":[0,64]", "shape" },
        { "\"shape\":[40,64]", "\"shape\":[2147483647,2147483647]", "tensor embed.weight" },
        { "\"group\":1", "\"group\":3", "group" },
        { "\"group\":1", "\"group\":2", "offset" },
        { "\"source_shape\":[96,64]", "\"source_shape\":[31,64]", "has no row" },
        { "\"rows\":[0,32,32]", "\"rows\":[0,32]", "rows" },
        { "\"rows\":[0,32,32]", "\"rows\":[65,32,32]", "has no row 96" },
        { "\"rows\":[0,32,32]", "\"rows\":[0,1,9223372036854775807]", "no map of rows" },
        { "\"rows\":[0,32,32]", "\"rows\":[0,32,32],\"block\":[0,1]", "block: expected" },
        { "\"rows\":[0,32,32]", "\"rows\":[0,32,32],\"block\":[null,1,1]", "block: expected" },
        { "\"rows\":[0,32,32]", "\"rows\":[0,32,32],\"block\":[0,1.5,1]", "block: expected" },
        { "\"rows\":[0,32,32]", "\"rows\":[0,32,32],\"block\":[0,1,\"1\"]", "block: expected" },
        { "\"pairs\":16", "\"pairs\":7", "pairs" },
        { "\"transposed\":true", "\"transposed\":1", "transposed" },
        { "\"name\":\"tokenizer.json\"", "\"name\":\"../tokenizer.json\"", "not the name of a file" },
        { "\"name\":\"tokenizer.json\"", "\"name\":\"/etc/passwd\"", "not the name of a file" },
        { "\"name\":\"tokenizer.json\",\"at\":0", "\"name\":\"tokenizer.json\",\"at\":10000", "beyond section ORIG" },
        { "\"size\":19", "\"size\":1000000000", "cannot come out of" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        edit_json(older, cases[i].from, cases[i].to);
        refuses(cases[i].words);
    }
    struct err e = { 0 };
    edit_json(golden, "\"architecture\":\"llama\"", "\"architecture\":\"llama\",\"later\":[1,2]");      /* an unknown key is for a later reader */
    if (!opens(other, &e))
        fail_msg("unknown key: %s", e.msg);
}

static void a_damaged_original_is_refused(void **state)
{
    (void)state;
    struct err e = { 0 };
    char text[64];
    edit_json(golden, "\"size\":19", "\"size\":18");
    struct zfile *z = zfile_open(other, &e);
    assert_non_null(z);
    assert_int_equal(zfile_original_read(z, 0, text, &e), -1);
    assert_non_null(strstr(e.msg, "original tokenizer.json"));
    zfile_close(z);
}

/* A writer that is aborted or given wrong sizes leaves no new file; the old file is kept. */
static void writer_leaves_nothing(void **state)
{
    (void)state;
    struct err e = { 0 };
    struct zfile_tensor t = { .name = "w", .n_dims = 1, .dim = { 4 }, .m = { .type = QT_F32, .size = 16 } };
    uint8_t data[32] = { 0 };
    put_file(other, "old", 3);
    struct zwriter *w = zwriter_open(other, &e);
    zwriter_group(w, "embed", -1, &e);
    assert_int_equal(zwriter_tensor(w, &t, &e), 0);
    assert_int_equal(zwriter_data(w, data, 17, &e), -1);
    assert_non_null(strstr(e.msg, "tensor w"));
    assert_int_equal(zwriter_data(w, data, 15, &e), 0);
    json_t *j = json_object();
    assert_int_equal(zwriter_commit(w, j, &e), -1);
    assert_non_null(strstr(e.msg, "1 bytes were not written"));
    json_decref(j);
    char *old = file_read(other, 100, NULL, &e);
    assert_string_equal(old, "old");
    free(old);
    assert_null(zwriter_open(dir, &e));
    assert_int_equal(unlink(other), 0);
    assert_int_equal(mkfifo(other, 0600), 0);
    assert_null(zwriter_open(other, &e));
    assert_non_null(strstr(e.msg, "regular file"));
    assert_int_equal(unlink(other), 0);
    assert_null(zwriter_open("/nonexistent/x.zse", &e));
    assert_non_null(strstr(e.msg, "/nonexistent/x.zse"));
}

/* Write the same file with every amount of free space: it is written whole, or the old file is kept
 * and an error returned. */
static void a_disk_that_is_full(void **state)
{
    (void)state;
    put_file(other, "old", 3);
    for (rlim_t room = 0, size = 1 << 20; room <= size; room += 64) {
        int status;
        const pid_t child = fork();
        if (child == 0) {
            struct err e;
            struct zfile_tensor t = { .name = "w", .n_dims = 1, .dim = { 4 }, .m = { .type = QT_F32, .size = 16 } };
            const char zeros[16] = { 0 };
            signal(SIGXFSZ, SIG_IGN);
            setrlimit(RLIMIT_FSIZE, &(struct rlimit){ room, room });
            struct zwriter *w = zwriter_open(other, &e);
            _exit(w && zwriter_group(w, "embed", -1, &e) == 0 && zwriter_tensor(w, &t, &e) == 0 &&
                  zwriter_data(w, zeros, sizeof zeros, &e) == 0 &&
                  zwriter_tokenizer(w, tokenizer_blob, sizeof tokenizer_blob, &e) == 0 &&
                  zwriter_commit(w, json_object(), &e) == 0);
        }
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        struct stat st;
        assert_int_equal(stat(other, &st), 0);
        if (WEXITSTATUS(status))                        /* written */
            size = (rlim_t)st.st_size;
        else
            assert_int_equal(st.st_size, 3);
        assert_true(room < size || WEXITSTATUS(status));
    }
    struct stat st;
    assert_int_equal(stat(other, &st), 0);
    assert_true(st.st_size > 3);
}

enum { MANY_ROWS = 2048, MANY_COLS = 256 };     /* 1 MB of bf16 */

/* How many of the n bytes at p are in the page cache. */
static size_t cached_pages(const uint8_t *p, size_t n)
{
    unsigned char there[256];
    size_t count = 0;
    assert_true(n / 4096 <= sizeof there);
    assert_int_equal(mincore((void *)(uintptr_t)p, n, there), 0);
    for (size_t i = 0; i < n / 4096; i++)
        count += there[i] & 1;
    return count;
}

/* Read the bytes in a child process that, if possible, runs as a user who does not own the file.
 * Returns 0 if they are right. */
static int read_past(const struct zfile *z, int direct, const uint8_t *from, size_t n, const uint8_t *want)
{
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        uint8_t *out = aligned_alloc(4096, n);
        if (!out || (getuid() == 0 && setuid(65534) != 0))
            _exit(2);
        _exit(zfile_pread_direct(z, direct, from, n, out) != 0 || memcmp(out, want, n) != 0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Reading pages that are not in the page cache does not bring them into it, even for users who do
 * not own the file. */
static void past_the_page_cache(void **state)
{
    (void)state;
    enum { FROM = 1 << 18, N = 1 << 19 };
    struct err e;
    struct zwriter *w = zwriter_open(other, &e);
    zwriter_group(w, "layer", 0, &e);
    add_tensor(w, "m.weight", "m.weight", QT_BF16, MANY_ROWS, MANY_COLS, 1, (struct row_map){ 0 }, MANY_ROWS,
               MANY_COLS);
    json_t *j = json_object();
    assert_int_equal(zwriter_commit(w, j, &e), 0);
    json_decref(j);
    struct zfile *z = zfile_open(other, &e);
    assert_non_null(z);
    const int direct = zfile_direct(z), fd = open(other, O_RDONLY);
    const size_t at = (size_t)(zfile_find(z, "m.weight")->m.data - (const uint8_t *)zfile_data(z)) + FROM;
    const uint8_t *from = (const uint8_t *)zfile_data(z) + at;
    static uint8_t want[N];
    assert_int_equal(zfile_pread(z, from, N, want), 0);
    assert_int_equal(read_past(z, -1, from, N, want), 0);
    assert_int_equal(read_past(z, direct, from, N, want), 0);           /* all are there */
    fsync(fd);
    madvise((void *)(uintptr_t)zfile_data(z), zfile_size(z), MADV_DONTNEED);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    if (direct < 0)
        print_message("skipped: the file system of /tmp has no O_DIRECT\n");
    else if (cached_pages(from, N))
        print_message("skipped: the page cache keeps what it has of /tmp\n");
    else {
        assert_int_equal(read_past(z, direct, from, N, want), 0);       /* no page is in the page
                                                                         * cache before the read,
                                                                         * and none after it */
        assert_int_equal(cached_pages(from, N), 0);
    }
    if (direct >= 0)
        close(direct);
    close(fd);
    zfile_close(z);
}

/* The hash of the test vector in appendix A of the paper: key 00 to 0f, message 00 to 0e. */
static void hashes_are_those_of_the_paper(void **state)
{
    (void)state;
    const uint64_t key[2] = { 0x0706050403020100, 0x0f0e0d0c0b0a0908 };
    uint8_t message[15];
    for (int i = 0; i < 15; i++)
        message[i] = (uint8_t)i;
    assert_int_equal(siphash(key, message, sizeof message), 0xa129ca6149be45e5);
}

/* A file with as many tensors as a model of 48 layers with 128 experts each: opening it takes 5 ms
 * on the development machine.  The limit of 100 ms allows for an instrumented build, but not for
 * parsing text. */
static void many_tensors_open_quickly(void **state)
{
    (void)state;
    enum { LAYERS = 48, EXPERTS = 128 };
    static const char *const parts[] = { "gate_proj", "up_proj", "down_proj" };
    struct err e;
    struct zwriter *w = zwriter_open(other, &e);
    struct zfile_tensor t = { .source_rows = 32, .source_cols = 32, .n_dims = 2, .dim = { 32, 32 }, .tiled = 1 };
    assert_int_equal(mat_init(&t.m, QT_NL4, 32, 32, 32, 32, &e), 0);
    uint8_t *data = calloc(1, t.m.size);
    char name[64], source[96];
    t.name = name;
    t.source_name = source;
    for (int layer = 0; layer < LAYERS; layer++) {
        zwriter_group(w, "layer", layer, &e);
        for (int i = 0; i < EXPERTS * 3; i++) {
            snprintf(name, sizeof name, "layers.%d.experts.%d.%s.weight", layer, i / 3, parts[i % 3]);
            snprintf(source, sizeof source, "model.layers.%d.mlp.experts.%d.%s.weight", layer, i / 3, parts[i % 3]);
            assert_int_equal(zwriter_tensor(w, &t, &e), 0);
            assert_int_equal(zwriter_data(w, data, t.m.size, &e), 0);
        }
    }
    free(data);
    json_t *j = json_object();
    assert_int_equal(zwriter_commit(w, j, &e), 0);
    json_decref(j);
    double best = 1e9;
    for (int i = 0; i < 10; i++) {
        double s = cpu_s();
        assert_true(opens(other, &e));
        s = cpu_s() - s;
        best = s < best ? s : best;
    }
    print_message("# %d tensors: opened in %.2f ms\n", LAYERS * EXPERTS * 3, best * 1e3);
    assert_true(best < 0.100);
    struct zfile *z = zfile_open(other, &e);
    for (int layer = 0; layer < LAYERS; layer++)
        for (int i = 0; i < EXPERTS * 3; i++) {
            snprintf(name, sizeof name, "layers.%d.experts.%d.%s.weight", layer, i / 3, parts[i % 3]);
            assert_ptr_equal(zfile_find(z, name), zfile_tensor(z, layer * EXPERTS * 3 + i));
        }
    assert_null(zfile_find(z, "layers.0.experts.0.gate_proj.bias"));
    zfile_close(z);
}

/* A file whose time has changed but not its contents counts as the same; with one byte changed it
 * does not.  Tensors are aligned, whatever the size of the one before. */
static void contents_are_compared(void **state)
{
    (void)state;
    struct err e;
    static const struct row_map same;
    struct zwriter *w = zwriter_open(other, &e);
    assert_int_equal(zwriter_group(w, "embed", -1, &e), 0);
    for (int i = 1; i < 6; i++)
        add_tensor(w, (const char *[]){ "a", "b", "c", "d", "e" }[i - 1], NULL, QT_F32, 1, 3 * i, 0, same, 0, 0);
    json_t *j = json_pack("{s:s, s:{s:s}}", "architecture", "llama", "config", "model_type", "llama");
    assert_int_equal(zwriter_commit(w, j, &e), 0);
    json_decref(j);
    struct zfile *z = zfile_open(other, &e);
    assert_non_null(z);
    for (int i = 0; i < 5; i++)
        assert_int_equal(zfile_tensor(z, i)->offset % ZSE_LINE, 0);
    assert_int_equal(zfile_check(z, &e), 0);
    assert_int_equal(zfile_compare(z, &e), 0);
    for (int damaged = 0; damaged < 2; damaged++) {
        const int fd = open(other, O_RDWR);
        const char byte = ((const char *)zfile_data(z))[zfile_tensor(z, 4)->offset] ^ (char)damaged;
        assert_int_equal(pwrite(fd, &byte, 1, (off_t)zfile_tensor(z, 4)->offset), 1);
        assert_int_equal(futimens(fd, (struct timespec[]){ { 1000 + damaged, 0 }, { 1000 + damaged, 0 } }), 0);
        close(fd);
        assert_int_equal(zfile_check(z, &e), 1);
        assert_int_equal(zfile_compare(z, &e), -damaged);
        assert_int_equal(zfile_check(z, &e), damaged);
    }
    zfile_close(z);
    assert_int_equal(unlink(other), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_written_file_reads_back), cmocka_unit_test(row_maps_select_the_rows_of_the_source),
        cmocka_unit_test(the_same_model_gives_the_same_bytes), cmocka_unit_test(cut_at_every_byte),
        cmocka_unit_test(every_flipped_bit_is_noticed), cmocka_unit_test(bad_header_fields_are_refused),
        cmocka_unit_test(bad_section_fields_are_refused),
        cmocka_unit_test(sections_not_required_may_be_unknown), cmocka_unit_test(a_disk_that_is_full),
        cmocka_unit_test(bad_json_fields_are_refused),
        cmocka_unit_test(bad_tensor_records_are_refused), cmocka_unit_test(reads_version_1_0),
        cmocka_unit_test(a_damaged_original_is_refused),
        cmocka_unit_test(writer_leaves_nothing), cmocka_unit_test(past_the_page_cache),
        cmocka_unit_test(hashes_are_those_of_the_paper), cmocka_unit_test(many_tensors_open_quickly),
        cmocka_unit_test(lost_pages_are_refused), cmocka_unit_test(contents_are_compared),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
