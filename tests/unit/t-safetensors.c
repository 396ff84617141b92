/* t-safetensors.c - model folders: one file, shards with and without an index, each cut and broken;
 * and the source opened from them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/import/source.h"
#include "libcommon/quant/ggml.h"

static char dir[] = "/tmp/t-safetensors-XXXXXX";

static const char *in_dir(const char *name)
{
    static char path[2][256];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", dir, name);
    return path[turn];
}

static void put(const char *name, const void *data, size_t n)
{
    FILE *f = fopen(in_dir(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void put_text(const char *name, const char *text) { put(name, text, strlen(text)); }

/* header and n bytes of data counting up */
static size_t make(uint8_t *out, const char *header, size_t n)
{
    uint64_t size = strlen(header);
    memcpy(out, &size, 8);
    memcpy(out + 8, header, size);
    for (size_t i = 0; i < n; i++)
        out[8 + size + i] = (uint8_t)i;
    return 8 + size + n;
}

static void put_tensors(const char *name, const char *header, size_t n)
{
    static uint8_t b[1 << 16];
    put(name, b, make(b, header, n));
}

static struct source *open_dir(struct err *e)
{
    memset(e, 0, sizeof *e);
    return source_open(dir, e);
}

static void refuses(const char *words)
{
    struct err e;
    struct source *s = open_dir(&e);
    if (s || !strstr(e.msg, words) || !strstr(e.msg, dir))
        fail_msg("expected '%s', got '%s'", words, e.msg);
    source_close(s);
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *w)
{
    (void)st, (void)flag;
    return w->level ? remove(path) : 0;
}

static int clean(void **state)
{
    (void)state;
    return nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static int setup(void **state) { (void)state; return mkdtemp(dir) ? 0 : -1; }
static int teardown(void **state) { clean(state); return rmdir(dir); }

static const char two[] = "{\"__metadata__\":{\"format\":\"pt\"},\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},"
                          "\"a\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[0,8]}}";

/* A name with braces means several tensors, whose rows are joined even if they lie apart in the
 * file. */
static void names_in_braces_join_tensors(void **state)
{
    (void)state;
    struct err e;
    float rows[9], all[9];
    put_text("config.json", "{\"model_type\": \"llama\"}");
    put_text("tokenizer.json", "{}");
    put_tensors("model.safetensors", "{\"x.q\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                "\"x.k\":{\"dtype\":\"F32\",\"shape\":[1,3],\"data_offsets\":[24,36]},"
                "\"x.w\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[36,44]}}", 44);
    struct source *s = open_dir(&e);
    if (!s)
        fail_msg("%s", e.msg);
    const struct source_tensor *t = source_find(s, "x.{q,k}");
    assert_non_null(t);
    assert_ptr_equal(source_find(s, "x.{q,k}"), t);
    assert_int_equal(t->dim[0], 3);
    assert_int_equal(source_bytes(t), 36);
    memcpy(all, source_find(s, "x.q")->data, sizeof all);
    assert_int_equal(source_wait(s, t, &e), 0);
    for (int row = 0; row < 3; row++)
        for (int n = 1; n <= 3 - row; n++) {
            assert_int_equal(source_read(s, t, row, n, rows, 0, &e), 0);
            assert_memory_equal(rows, all + 3 * row, (size_t)n * 12);
        }
    assert_int_equal(source_read(s, t, 2, 2, rows, 0, &e), -1);
    assert_null(source_find(s, "x.{q,w}"));                 /* other widths */
    assert_null(source_find(s, "x.{q,none}"));
    assert_null(source_find(s, "x.{q"));
    assert_int_equal(source_check(s, t, &e), 0);
    source_drop(s, t);
    source_close(s);
}

static void rows_are_read_as_stored(void **state)
{
    (void)state;
    struct err e;
    float row[6];
    put_text("config.json", "{\"model_type\": \"llama\", \"torch_dtype\": \"bfloat16\"}");
    put_text("tokenizer.json", "{}");
    put_tensors("model.safetensors", two, 32);
    struct source *s = open_dir(&e);
    if (!s)
        fail_msg("%s", e.msg);
    assert_int_equal(s->kind, SOURCE_FOLDER);
    assert_int_equal(s->n_tensors, 2);
    assert_string_equal(s->tensors[0].name, "a");           /* in the order of the data */
    const struct source_tensor *b = source_find(s, "b");
    assert_int_equal(b->type, GGML_F32);
    assert_int_equal(b->dim[0], 2);
    assert_int_equal(b->dim[1], 3);
    assert_int_equal(b->data[0], 8);
    assert_null(source_find(s, "c"));
    assert_int_equal(source_read(s, b, 1, 1, row, 0, &e), 0);
    float want;
    memcpy(&want, b->data + 12, 4);
    assert_memory_equal(&row[0], &want, 4);
    assert_int_equal(source_read(s, b, 1, 2, row, 0, &e), -1);
    assert_non_null(source_file(s, "tokenizer.json"));
    assert_string_equal(json_string_value(json_object_get(s->config, "dtype")), "bfloat16");
    char key[33], again[33];
    assert_int_equal(source_key(s, key, &e), 0);
    assert_int_equal(strlen(key), 32);
    source_drop(s, b);
    source_close(s);
    uint8_t byte = 99;
    FILE *f = fopen(in_dir("model.safetensors"), "r+b");
    fseek(f, -3, SEEK_END);
    fwrite(&byte, 1, 1, f);
    fclose(f);
    s = open_dir(&e);
    assert_int_equal(source_key(s, again, &e), 0);
    assert_string_not_equal(key, again);
    source_close(s);
}

static void a_nan_is_refused_with_its_place(void **state)
{
    (void)state;
    struct err e = { 0 };
    float v[6] = { 1, 2, 3, 4, NAN, 6 };
    put_text("config.json", "{}");
    put_tensors("model.safetensors", "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]}}", 24);
    FILE *f = fopen(in_dir("model.safetensors"), "r+b");
    fseek(f, -24, SEEK_END);
    fwrite(v, 4, 6, f);
    fclose(f);
    struct source *s = open_dir(&e);
    assert_int_equal(source_read(s, source_find(s, "w"), 0, 2, v, 1, &e), -1);
    assert_non_null(strstr(e.msg, "tensor w: row 1, column 1: is not a number"));
    source_close(s);
}

static void cut_at_every_byte(void **state)
{
    (void)state;
    static uint8_t b[1024];
    put_text("config.json", "{}");
    size_t n = make(b, two, 32);
    put("model.safetensors", b, n);
    while (n-- > 0) {
        assert_int_equal(truncate(in_dir("model.safetensors"), (off_t)n), 0);
        refuses("model.safetensors: ");
    }
}

/* With any byte changed a folder is either accepted or refused; nothing crashes (this test also
 * runs under ASan and UBSan). */
static void a_changed_byte_never_crashes_the_reader(void **state)
{
    (void)state;
    static const uint8_t values[] = { 0, 1, '9', '"', '}', 0xff };
    static uint8_t b[1024];
    struct err e;
    size_t n = make(b, two, 32), refused = 0;
    put_text("config.json", "{}");
    for (size_t i = 0; i < n - 32; i++)
        for (size_t v = 0; v < sizeof values; v++) {
            uint8_t old = b[i];
            b[i] = values[v];
            put("model.safetensors", b, n);
            struct source *s = open_dir(&e);
            refused += s == NULL;
            source_close(s);
            b[i] = old;
        }
    assert_true(refused > n);
}

static void bad_headers_are_refused(void **state)
{
    (void)state;
    static const struct { const char *header, *words; size_t n; } cases[] = {
        { "[1]", "header: found an array", 0 },
        { "{\"w\":1}", "tensor w: found a whole number, expected an object", 0 },
        { "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "duplicate", 8 },
        { "{\"w\":{\"dtype\":\"F31\",\"shape\":[1],\"data_offsets\":[0,4]}}", "tensor w: dtype: unknown type 'F31'",
          4 },
        { "{\"w\":{\"shape\":[1],\"data_offsets\":[0,4]}}", "tensor w: dtype: the field is missing", 4 },
        { "{\"w\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", "tensor w: shape: dimension 0", 4 },
        { "{\"w\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", "tensor w: shape: dimension 0", 4 },
        { "{\"w\":{\"dtype\":\"F32\",\"shape\":[9223372036854775807,8],\"data_offsets\":[0,4]}}", "overflows", 4 },
        { "{\"w\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1],\"data_offsets\":[0,4]}}", "6 dimensions", 4 },
        { "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", "4 bytes, but dtype and shape need 8",
          4 },
        { "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", "expected [begin, end]", 4 },
        { "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", "reach beyond", 4 },
        { "{\"w\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", "reach beyond the end of the file", 4 },
        { "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "leaves a hole", 8 },
        { "{\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", "4 bytes at the end belong to no tensor",
          8 },
        { "{\"v\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"w\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", "tensor w: offset", 8 },
        { "{\"\xff\":{}}", "model.safetensors: line 1", 0 },
    };
    put_text("config.json", "{}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_tensors("model.safetensors", cases[i].header, cases[i].n);
        refuses(cases[i].words);
    }
    uint64_t huge = UINT64_MAX;
    put("model.safetensors", &huge, 8);
    refuses("offset 0: header size");
    uint64_t size = 100000001;                      /* a sparse file whose header has the largest
                                                     * size plus one */
    put("model.safetensors", &size, 8);
    assert_int_equal(truncate(in_dir("model.safetensors"), 100000100), 0);
    refuses("expected at most 100000000");
}

static const char one[] = "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";

static void put_shard(const char *file, const char *tensor)
{
    char header[256];
    snprintf(header, sizeof header, one, tensor);
    put_tensors(file, header, 4);
}

static void shards_are_opened_as_their_index_says(void **state)
{
    (void)state;
    struct err e;
    put_text("config.json", "{}");
    put_shard("model-00001-of-00002.safetensors", "a");
    put_shard("model-00002-of-00002.safetensors", "b");
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"model-00002-of-00002.safetensors\"}}");
    struct source *s = open_dir(&e);
    if (!s)
        fail_msg("%s", e.msg);
    assert_int_equal(s->n_tensors, 2);
    assert_int_equal(source_find(s, "b")->shard, 1);
    source_close(s);
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\"}}");
    s = open_dir(&e);                               /* a shard that the index does not name is not read */
    assert_non_null(s);
    assert_int_equal(s->n_tensors, 1);
    source_close(s);
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"c\":\"model-00002-of-00002.safetensors\"}}");
    refuses("tensor b: model-00002-of-00002.safetensors has it, weight_map says nothing");
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"c\":\"model-00001-of-00002.safetensors\"}}");
    refuses("tensor c: model-00001-of-00002.safetensors does not have it");
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"../model-00001-of-00002.safetensors\"}}");
    refuses("expected the name of a file in the same folder");
    put_text("model.safetensors.index.json", "{\"weight_map\":7}");
    refuses("weight_map: found a whole number");
    put_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":\"model-00001-of-00002.safetensors\",\"b\":\"model-00002-of-00002.safetensors\"}}");
    unlink(in_dir("model-00002-of-00002.safetensors"));
    refuses("model-00002-of-00002.safetensors is missing (shard 2 of 2)");
    put_shard("model-00002-of-00002.safetensors", "a");
    refuses("tensor a");
}

static void shards_without_index_must_be_complete(void **state)
{
    (void)state;
    struct err e;
    put_text("config.json", "{}");
    put_shard("model-00001-of-00003.safetensors", "a");
    put_shard("model-00003-of-00003.safetensors", "c");
    refuses("model-00002-of-00003.safetensors is missing (shard 2 of 3)");
    put_shard("model-00002-of-00003.safetensors", "b");
    struct source *s = open_dir(&e);
    if (!s)
        fail_msg("%s", e.msg);
    assert_int_equal(s->n_tensors, 3);
    source_close(s);
    put_shard("model-00002-of-00003.safetensors", "c");
    refuses("tensor c is also in");
    put_shard("model-00002-of-00003.safetensors", "b");
    put_shard("other.safetensors", "d");
    refuses("4 safetensors files");
}

static void one_file_of_another_name(void **state)
{
    (void)state;
    struct err e;
    put_text("config.json", "{}");
    put_shard("weights.safetensors", "a");
    struct source *s = open_dir(&e);
    assert_non_null(s);
    source_close(s);
    put_shard("more.safetensors", "b");
    refuses("neither model.safetensors nor model.safetensors.index.json");
}

static void kinds_of_sources_are_told_apart(void **state)
{
    (void)state;
    struct err e;
    assert_int_equal(source_detect(dir, &e), SOURCE_NONE);
    put_text("tokenizer.json", "{}");
    assert_int_equal(source_detect(dir, &e), SOURCE_TOKENIZER);
    put_text("config.json", " {\"model_type\": \"x\"}");
    assert_int_equal(source_detect(dir, &e), SOURCE_CONFIG);
    assert_int_equal(source_detect(in_dir("config.json"), &e), SOURCE_CONFIG);
    put_shard("model.safetensors", "a");
    assert_int_equal(source_detect(dir, &e), SOURCE_FOLDER);
    assert_int_equal(source_detect(in_dir("model.safetensors"), &e), SOURCE_NONE);
    assert_non_null(strstr(e.msg, "name its folder"));
    unlink(in_dir("config.json"));
    assert_int_equal(source_detect(dir, &e), SOURCE_NONE);
    assert_non_null(strstr(e.msg, "without config.json"));
    put_text("x", "GGUF");
    assert_int_equal(source_detect(in_dir("x"), &e), SOURCE_GGUF);
    put("x", "ZSE", 4);
    assert_int_equal(source_detect(in_dir("x"), &e), SOURCE_ZSE);
    put_text("x", "");
    assert_int_equal(source_detect(in_dir("x"), &e), SOURCE_NONE);
    assert_int_equal(source_detect(in_dir("none"), &e), SOURCE_NONE);
    assert_non_null(strstr(e.msg, "No such file"));
}

static void bad_small_files_are_refused(void **state)
{
    (void)state;
    put_shard("model.safetensors", "a");
    put_text("config.json", "{\"a\": 1,,}");
    refuses("config.json: line 1, column 9");
    put_text("config.json", "[]");
    refuses("config.json: found an array, expected an object");
    put_text("config.json", "{\"rope_scaling\": 3}");
    refuses("config.json: rope_scaling: found a whole number");
    put_text("config.json", "{}");
    put_text("generation_config.json", "7");
    refuses("generation_config.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(names_in_braces_join_tensors, clean),
        cmocka_unit_test_teardown(rows_are_read_as_stored, clean),
        cmocka_unit_test_teardown(a_nan_is_refused_with_its_place, clean),
        cmocka_unit_test_teardown(cut_at_every_byte, clean),
        cmocka_unit_test_teardown(a_changed_byte_never_crashes_the_reader, clean),
        cmocka_unit_test_teardown(bad_headers_are_refused, clean),
        cmocka_unit_test_teardown(shards_are_opened_as_their_index_says, clean),
        cmocka_unit_test_teardown(shards_without_index_must_be_complete, clean),
        cmocka_unit_test_teardown(one_file_of_another_name, clean),
        cmocka_unit_test_teardown(kinds_of_sources_are_told_apart, clean),
        cmocka_unit_test_teardown(bad_small_files_are_refused, clean),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
