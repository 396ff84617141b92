/* t-medusa.c - Medusa heads: files that are read, cut and broken; their guesses, compared with the
 * same computation in simple code. */
#include <math.h>
#include <unistd.h>

#include "libcommon/base/rng.h"
#include "libcommon/convert/medusa_source.h"
#include "libcommon/engine/draft_model.h"
#include "tests/unit/assemble.h"
#include "tests/unit/folder.h"

enum { HIDDEN = 40, VOCAB = 70, ROOM = 1 << 17 };

static const struct config shape = { .hidden_size = HIDDEN, .vocab_size = VOCAB };
static const char whole[] =
    "P0.0.linear.weight:F32:40,40 P0.0.linear.bias:F32:40 P0.1.weight:F32:70,40 "
    "P1.0.linear.weight:F16:40,40 P1.0.linear.bias:F32:40 P1.1.weight:BF16:70,40";

static void put(const char *name, const void *data, size_t n)
{
    FILE *f = fopen(in_folder(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* Make a safetensors file from a list of "NAME:DTYPE:ROWS,COLS", in which `prefix` replaces a
 * leading P of a name.  All bytes of the tensors are below 64, so that every element is finite.
 * Returns the size of the file. */
static size_t make_file(uint8_t *out, const char *list, const char *prefix)
{
    char header[4096] = "{", name[64], dtype[8];
    size_t at = 1, data = 0;
    int rows, cols, used;
    struct rng r = { 5 };
    for (const char *p = list; sscanf(p, " %63[^:]:%7[^:]:%d%n", name, dtype, &rows, &used) == 3; p += used) {
        const char *next = p + used;
        const int two = *next == ',' && sscanf(next, ",%d%n", &cols, &used) == 1;
        const size_t each = dtype[1] == '8' ? 1 : dtype[0] == 'B' || strcmp(dtype, "F16") == 0 ? 2 : 4,
                     n = (size_t)rows * (size_t)(two ? cols : 1) * each;
        at += (size_t)snprintf(header + at, sizeof header - at, "%s\"%s%s\":{\"dtype\":\"%s\",\"shape\":[%d",
                               data ? "," : "", name[0] == 'P' ? prefix : "", name + (name[0] == 'P'), dtype, rows);
        if (two)
            at += (size_t)snprintf(header + at, sizeof header - at, ",%d", cols);
        at += (size_t)snprintf(header + at, sizeof header - at, "],\"data_offsets\":[%zu,%zu]}", data, data + n);
        data += n;
        p = two ? next : p;
    }
    header[at++] = '}';
    const uint64_t size = at;
    assert_true(8 + at + data <= ROOM);
    memcpy(out, &size, 8);
    memcpy(out + 8, header, at);
    for (size_t i = 0; i < data; i++)
        out[8 + at + i] = (uint8_t)(rng_u64(&r) % 64);
    return 8 + at + data;
}

static struct medusa *read_file(const char *name)
{
    const struct medusa_options o = { .n_threads = 2 };
    memset(&e, 0, sizeof e);
    return medusa_read(name ? in_folder(name) : folder, &shape, &o, &e);
}

static void test_files(void **state)
{
    static const char *const prefixes[] = { "", "medusa_head.", "medusa_heads." };
    static uint8_t bytes[ROOM];
    float row[HIDDEN];
    (void)state;
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        put("medusa_lm_head.safetensors", bytes, make_file(bytes, whole, prefixes[i]));
        struct medusa *m = read_file(i ? NULL : "medusa_lm_head.safetensors");
        if (!m)
            fail_msg("%s", e.msg);
        assert_int_equal(m->n_heads, 2);
        assert_int_equal(m->n_blocks, 1);
        assert_int_equal(m->bytes, medusa_bytes(2, 1, HIDDEN, VOCAB));
        /* the f32 elements of block 0, rounded by groups to int8 */
        uint64_t header;
        float x[HIDDEN], most = 0;
        memcpy(&header, bytes, 8);
        for (int r = 0; r < HIDDEN; r++) {
            memcpy(x, bytes + 8 + header + (size_t)r * sizeof x, sizeof x);
            mat_decode_row(&medusa_linear(m, 0, 0)->w, r, row);
            for (int k = 0; k < HIDDEN; k++)
                most = fmaxf(most, fabsf(x[k]));
            for (int k = 0; k < HIDDEN; k++)
                assert_true(fabsf(row[k] - x[k]) <= most / 127 * 0.6f);
        }
        memcpy(x, bytes + 8 + header + HIDDEN * sizeof x, sizeof x);
        assert_memory_equal(medusa_linear(m, 0, 0)->bias, x, sizeof x);
        assert_null(medusa_linear(m, 1, 1)->bias);
        medusa_close(m);
    }
}

static void refused(const char *list, const char *config, const char *says)
{
    static uint8_t bytes[ROOM];
    put("h.safetensors", bytes, make_file(bytes, list, ""));
    if (config)
        put("config.json", config, strlen(config));
    assert_null(read_file("h.safetensors"));
    if (!strstr(e.msg, says))
        fail_msg("%s: %s: %s, expected %s", list, config ? config : "", e.msg, says);
    unlink(in_folder("config.json"));
}

/* Write a file with heads in the section and bind it.  The caller closes *z. */
static struct medusa *bind_section(const void *section, size_t size, struct zfile **z)
{
    struct zwriter *w = zwriter_open(in_folder("h.zse"), &e);
    assert_non_null(w);
    json_t *j = json_object();
    zwriter_heads(w, HEADS_MEDUSA, section, size);
    assert_int_equal(zwriter_commit(w, j, &e), 0);
    json_decref(j);
    assert_non_null(*z = zfile_open(in_folder("h.zse"), &e));
    assert_int_equal(zfile_verify(*z, &e), 0);
    const void *stored = zfile_heads(*z, HEADS_MEDUSA, &size);
    assert_non_null(stored);
    return medusa_bind(stored, size, &shape, &e);
}

static void heads_of_a_section_are_those_that_were_stored(void **state)
{
    static uint8_t bytes[ROOM];
    (void)state;
    put("h.safetensors", bytes, make_file(bytes, whole, ""));
    struct medusa *m = read_file("h.safetensors");
    struct zfile *z;
    struct medusa *stored = bind_section(m->section, m->section_bytes, &z);
    assert_non_null(stored);
    assert_true(stored->n_heads == 2 && stored->n_blocks == 1 && stored->bytes == m->bytes);
    assert_null(stored->owned);
    for (int h = 0; h < 2; h++)
        for (int i = 0; i < 2; i++) {
            const struct linear *a = medusa_linear(m, h, i), *b = medusa_linear(stored, h, i);
            assert_int_equal(a->w.size, b->w.size);
            assert_memory_equal(a->w.data, b->w.data, a->w.size);
            assert_true((a->bias != NULL) == (i == 0) && (b->bias != NULL) == (i == 0));
            if (a->bias)
                assert_memory_equal(a->bias, b->bias, HIDDEN * sizeof *a->bias);
        }
    medusa_close(stored);
    zfile_close(z);
    medusa_close(m);
}

static void broken_sections_are_refused(void **state)
{
    static const struct { int at; uint32_t value; const char *words; } fields[] = {
        { 0, 0, "0 Medusa heads of 1 blocks, expected 1 to 15 of at most 16" },
        { 0, 16, "16 Medusa heads" }, { 0, UINT32_MAX, "-1 Medusa heads" }, { 0, 1, "bytes, expected" },
        { 4, 17, "2 Medusa heads of 17 blocks" }, { 4, 0x80000000, "2 Medusa heads of -1 blocks" },
        { 4, 2, "for 2 heads of 2 blocks" }, { 8, 41, "hidden_size 41 and 70 tokens, this one has 40 and 70" },
        { 12, 7, "hidden_size 40 and 7 tokens" }, { 16, 9, "number format 9 with groups of 64, expected 8 with 64" },
        { 20, 32, "with groups of 32" } };
    static uint8_t bytes[ROOM];
    (void)state;
    put("h.safetensors", bytes, make_file(bytes, whole, ""));
    struct medusa *m = read_file("h.safetensors");
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        memcpy(bytes, m->section, m->section_bytes);
        memcpy(bytes + fields[i].at, &fields[i].value, 4);
        struct zfile *z;
        assert_null(bind_section(bytes, m->section_bytes, &z));
        if (!strstr(e.msg, fields[i].words))
            fail_msg("field at %d: '%s', expected '%s'", fields[i].at, e.msg, fields[i].words);
        zfile_close(z);
    }
    for (size_t n = 0; n < m->section_bytes; n += n < 80 ? 1 : 997)
        assert_null(medusa_bind(m->section, n, &shape, &e));
    assert_null(medusa_bind(m->section, m->section_bytes + 1, &shape, &e));
    medusa_close(m);
}

static void test_refused(void **state)
{
    static const char one[] = "0.0.linear.weight:F32:40,40 0.0.linear.bias:F32:40 0.1.weight:F32:70,40";
    static const struct { const char *list, *config, *says; } wrong[] = {
        { "model.norm.weight:F32:40", NULL, "model.norm.weight, expected names of Medusa heads" },
        { "0.0.linear.weights:F32:40,40", NULL, "expected names" },
        { "0.0.linear.weight:F32:40,40 0.0.linear.bias:F32:40", NULL, "0 blocks" },
        { "0.0.linear.weight:F32:40,40 0.1.weight:F32:70,40", NULL, "2 tensors, expected 3" },
        { "0.0.linear.weight:F32:40,40 0.0.linear.bias:F32:41 0.1.weight:F32:70,40", NULL, "41 rows" },
        { "0.0.linear.weight:F32:40,41 0.0.linear.bias:F32:40 0.1.weight:F32:70,40", NULL, "41 columns" },
        { "0.0.linear.weight:F32:40,40 0.0.linear.bias:F32:40 0.1.weight:F32:71,40", NULL, "40 and 70 tokens" },
        { "0.0.linear.weight:F32:1600 0.0.linear.bias:F32:40 0.1.weight:F32:70,40", NULL, "1 dimensions" },
        { "0.0.linear.weight:I32:40,40 0.0.linear.bias:F32:40 0.1.weight:F32:70,40", NULL, "type I32" },
        { "0.0.linear.weight:F32:40,40 0.0.linear.bias:F32:40 0.1.weight:F32:70,40 1.0.weight:F32:70,40", NULL,
          "a head of 0 blocks, and one of 1" },
        { "0.0.linear.weight:F32:40,40 0.0.linear.bias:F32:40 0.1.weight:F32:70,40 2.1.weight:F32:70,40", NULL,
          "4 tensors, expected 9" },
        { "0.1.weight:F32:70,40 medusa_head.0.1.weight:F32:70,40 0.0.linear.bias:F32:40", NULL, "the same part" },
        { "15.0.weight:F32:70,40", NULL, "16 Medusa heads" },
        { "0.17.weight:F32:70,40", NULL, "17 blocks" },
        { "0.1.linear.weight:F32:40,40 0.0.linear.bias:F32:40 0.1.weight:F32:70,40", NULL, "block 1 of a head" },
        { one, "{\"medusa_num_heads\": 2}", "2 heads of 1 blocks" },
        { one, "{\"medusa_num_heads\": 1, \"medusa_num_layers\": 2}", "1 heads of 2 blocks" },
        { one, "{\"medusa_num_heads\": 1, \"hidden_size\": 41}", "hidden_size 41" },
        { one, "{\"medusa_num_heads\": 1, \"vocab_size\": 7}", "7 tokens" },
        { one, "{\"medusa_num_heads\": -1}", "medusa_num_heads" },
        { one, "{\"medusa_num_heads\": 1", "config.json" },
    };
    static uint8_t bytes[ROOM];
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        refused(wrong[i].list, wrong[i].config, wrong[i].says);
    assert_null(read_file("none.safetensors"));
    assert_non_null(strstr(e.msg, "none.safetensors"));
    /* a config.json without medusa_num_heads is that of a model, and may disagree with the
     * tensors */
    put("config.json", "{\"hidden_size\": 7}", 18);
    const size_t n = make_file(bytes, one, "");
    put("h.safetensors", bytes, n);
    medusa_close(read_file("h.safetensors"));
    assert_int_equal(e.code, ERR_NONE);
    /* fewer heads than in the file */
    put("config.json", "{\"medusa_num_heads\": 0}", 23);
    medusa_close(read_file("h.safetensors"));
    assert_int_equal(e.code, ERR_NONE);
    const struct medusa_options few = { .n_threads = 1, .most_bytes = medusa_bytes(1, 1, HIDDEN, VOCAB) - 1 };
    assert_null(medusa_read(in_folder("h.safetensors"), &shape, &few, &e));
    assert_int_equal(e.code, ERR_MEMORY);
    for (size_t cut = 0; cut < n; cut += cut < 400 ? 1 : 997) {
        put("h.safetensors", bytes, cut);
        assert_null(read_file("h.safetensors"));
    }
    const float nan = NAN;
    memcpy(bytes + n - 4, &nan, 4);
    put("h.safetensors", bytes, n);
    assert_null(read_file("h.safetensors"));
    assert_non_null(strstr(e.msg, "0.1.weight: row 69: NaN or infinity"));
}

/* ---- guesses ---- */

static void plain_logits(const struct medusa *m, int head, const float *state, float *logits)
{
    float x[512], y[512], row[512];
    const int n = m->hidden_size;
    assert_true(n <= 512);
    memcpy(x, state, (size_t)n * sizeof *x);
    for (int i = 0; i <= m->n_blocks; i++) {
        const struct linear *l = medusa_linear(m, head, i);
        float *out = i < m->n_blocks ? y : logits;
        for (int r = 0; r < l->w.rows; r++) {
            double sum = l->bias ? l->bias[r] : 0;
            mat_decode_row(&l->w, r, row);
            for (int k = 0; k < n; k++)
                sum += (double)row[k] * (double)x[k];
            out[r] = (float)sum;
        }
        for (int k = 0; i < m->n_blocks && k < n; k++)
            x[k] += y[k] / (1 + expf(-y[k]));
    }
}

/* A guessed token has the largest logit, or nearly, because activations are rounded. */
static void check_guess(const struct medusa *m, int head, const float *state, int32_t token)
{
    static float logits[4096];
    float most = -INFINITY, least = INFINITY;
    assert_true(m->vocab_size <= 4096);
    plain_logits(m, head, state, logits);
    for (int i = 0; i < m->vocab_size; i++) {
        most = fmaxf(most, logits[i]);
        least = fminf(least, logits[i]);
    }
    assert_true(logits[token] >= most - 0.02f * (most - least));
}

static void heads_guess_from_the_last_states(void **state)
{
    static const struct medusa_options read = { .n_threads = 1 };
    (void)state;
    struct source *source = source_open("models/tiny", &e);
    struct model *m = source ? model_assemble(source, QT_F32, &e) : NULL;
    struct medusa *heads = m ? medusa_read("models/tiny-medusa", &m->config, &read, &e) : NULL;
    if (!heads)
        fail_msg("%s", e.msg);
    const struct engine_options o = { .kv = kv_both(KV_F32), .max_len = 160, .max_seqs = 3, .n_threads = 2, .draft = 2,
                                      .medusa = heads };
    struct engine *g = engine_open(m, NULL, &o, &e);
    if (!g)
        fail_msg("%s", e.msg);
    struct request *r[3];
    int32_t ids[3][9];
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 9; k++)
            ids[i][k] = 5 + (i * 31 + k * 7) % 900;
        struct request_params p = { .ids = ids[i], .n_ids = 5 + i, .sampling = sampling_defaults(), .n_logprobs = -1,
                                    .ignore_eos = 1, .max_tokens = 60 };
        p.sampling.temperature = 0;
        assert_non_null(r[i] = engine_submit(g, &p, &e));
    }
    for (int round = 0; round < 4; round++) {
        float states[3][512];
        for (int k = 0; k < 3 - (round > 0); k++)
            assert_true(engine_step(g, &e) > 0);
        for (int i = 0; i < 3; i++) {
            const struct drafting *x = &r[i]->draft;
            assert_int_equal(x->row_pos + x->n_rows, r[i]->n_ids - 1);
            memcpy(states[i], x->rows + (size_t)(x->n_rows - 1) * 128, 128 * sizeof(float));
        }
        r[2]->draft.most = 1;           /* the second head guesses for two of the three */
        draft_model_guess(g, 3, 1);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(r[i]->draft.next.n, i == 2 ? 1 : 2);
            for (int k = 0; k < r[i]->draft.next.n; k++)
                check_guess(heads, k, states[i], r[i]->draft.next.token[k]);
        }
        /* the states of the last step were used, so the next step has no drafts */
        draft_model_guess(g, 3, 1);
        for (int i = 0; i < 3; i++)
            assert_int_equal(r[i]->draft.next.n, 0);
    }
    struct engine_stats s;
    engine_stats(g, &s);
    assert_true(s.draft_bytes > heads->bytes);
    engine_close(g);
    struct medusa other = *heads;
    other.vocab_size--;
    const struct engine_options wrong = { .max_len = 160, .medusa = &other };
    assert_null(engine_open(m, NULL, &wrong, &e));
    assert_non_null(strstr(e.msg, "Medusa heads of a model with hidden_size 128 and 1023 tokens, this one has 128 and 1024"));
    medusa_close(heads);
    model_close(m);
    source_close(source);
}

int main(void)
{
    const struct CMUnitTest tests[] = { IN_FOLDER(test_files), IN_FOLDER(test_refused),
                                        IN_FOLDER(heads_of_a_section_are_those_that_were_stored),
                                        IN_FOLDER(broken_sections_are_refused),
                                        cmocka_unit_test(heads_guess_from_the_last_states) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
