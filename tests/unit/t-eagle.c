/* t-eagle.c - EAGLE heads: their drafts, compared with those that tests/oracle/eagle.py computes;
 * folders that are broken. */
#include <unistd.h>

#include "libcommon/convert/eagle_source.h"
#include "libcommon/engine/draft_model.h"
#include "tests/unit/assemble.h"
#include "tests/unit/folder.h"

enum { HIDDEN = 128, WIDE = 256, Q = 128, KV = 64, MLP = 192, VOCAB = 1024, OWN = 256, ROOM = 1 << 21,
       MOST = 24, ROUNDS = 5, DRAFT = 3 };

/* A tensor to write.  replace: bytes instead of numbers. */
struct tensor { char name[60]; const char *dtype; int rows, cols; };        /* cols 0: a vector */

struct folder_options {
    int version;
    const char *layer;                  /* prefix of the layer; NULL: as the version has it */
    const char *leave_out, *add;        /* a tensor to leave out; the name of a further one */
    const char *resize; int rows, cols; /* a tensor of another shape */
    int bad_map;                        /* d2t goes beyond the vocabulary (1), backwards (2), t2d disagrees (3) */
    int nan;                            /* an element of fc.weight is not a number */
    const char *type;                   /* model_type; NULL: llama */
    const char *config;                 /* keys to add to config.json: ", \"key\": value" */
};

static int own_token(int i) { return 4 * i + i % 3; }

static int list_tensors(struct tensor *t, const struct folder_options *o)
{
    const int is_3 = o->version == 3, wide = is_3 ? WIDE : HIDDEN;
    const struct { const char *name; int rows, cols, in_layer, version; } all[] = {
        { "self_attn.q_proj.weight", Q, wide, 1, 0 }, { "self_attn.k_proj.weight", KV, wide, 1, 0 },
        { "self_attn.v_proj.weight", KV, wide, 1, 0 }, { "self_attn.o_proj.weight", HIDDEN, Q, 1, 0 },
        { "mlp.gate_proj.weight", MLP, HIDDEN, 1, 0 }, { "mlp.up_proj.weight", MLP, HIDDEN, 1, 0 },
        { "mlp.down_proj.weight", HIDDEN, MLP, 1, 0 }, { "post_attention_layernorm.weight", HIDDEN, 0, 1, 0 },
        { "fc.weight", HIDDEN, (is_3 ? 3 : 2) * HIDDEN, 0, 0 }, { "fc.bias", HIDDEN, 0, 0, 1 },
        { "input_layernorm.weight", HIDDEN, 0, 1, 3 }, { "hidden_norm.weight", HIDDEN, 0, 1, 3 },
        { "norm.weight", HIDDEN, 0, 0, 3 }, { "lm_head.weight", OWN, HIDDEN, 0, 3 },
        { "d2t", OWN, 0, 0, 3 }, { "t2d", VOCAB, 0, 0, 3 } };
    const char *layer = o->layer ? o->layer : is_3 ? "midlayer." : "layers.0.";
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].version && all[i].version != o->version)
            continue;
        if (o->leave_out && strcmp(o->leave_out, all[i].name) == 0)
            continue;
        const int resize = o->resize && strcmp(o->resize, all[i].name) == 0;
        t[n].dtype = strcmp(all[i].name, "d2t") == 0 ? "I64" : strcmp(all[i].name, "t2d") == 0 ? "BOOL" : "F32";
        t[n].rows = resize ? o->rows : all[i].rows;
        t[n].cols = resize ? o->cols : all[i].cols;
        snprintf(t[n++].name, sizeof t->name, "%s%s", all[i].in_layer ? layer : "", all[i].name);
    }
    if (o->add) {
        t[n] = (struct tensor){ .dtype = "F32", .rows = 4 };
        snprintf(t[n++].name, sizeof t->name, "%s", o->add);
    }
    return n;
}

/* Append the elements of a tensor.  Returns their bytes. */
static size_t fill(const struct tensor *t, const struct folder_options *o, uint64_t *x, uint8_t *out)
{
    const int all = t->rows * (t->cols ? t->cols : 1), is_fc = strcmp(t->name, "fc.weight") == 0;
    const float by = o->version == 3 && is_fc ? 16384 : 1024, one = strstr(t->name, "norm") != NULL;
    if (strcmp(t->name, "d2t") == 0) {
        for (int i = 0; i < all; i++) {
            const int bad = i == 9 ? o->bad_map : 0;
            const int64_t far = bad == 1 ? VOCAB - 9 : bad == 2 ? 0 : own_token(i) - i;
            memcpy(out + (size_t)i * 8, &far, 8);
        }
        return (size_t)all * 8;
    }
    if (strcmp(t->name, "t2d") == 0) {
        memset(out, 0, (size_t)all);
        for (int i = 0; i < OWN && own_token(i) < all; i++)
            out[own_token(i)] = o->bad_map != 3 || i != 9;
        return (size_t)all;
    }
    for (int i = 0; i < all; i++) {
        *x = *x * 6364136223846793005 + 1442695040888963407;
        const float v = (t->cols && i % 64 == 0 ? 127 : (float)((int)((*x >> 33) % 255) - 127)) / by + one;
        memcpy(out + (size_t)i * 4, &v, 4);
    }
    if (is_fc && o->nan)
        memset(out + 4000, 0xff, 4);
    return (size_t)all * 4;
}

static void put(const char *name, const void *data, size_t n)
{
    FILE *f = fopen(in_folder(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void make_heads(const struct folder_options *o)
{
    static uint8_t bytes[ROOM], file[ROOM];
    char header[8192] = "{", config[600];
    struct tensor t[MOST];
    uint64_t x = 7;
    size_t at = 1, data = 0;
    const int n = list_tensors(t, o);
    for (int i = 0; i < n; i++) {
        const size_t size = fill(&t[i], o, &x, bytes + data);
        at += (size_t)snprintf(header + at, sizeof header - at, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%d", i ? "," : "",
                               t[i].name, t[i].dtype, t[i].rows);
        if (t[i].cols)
            at += (size_t)snprintf(header + at, sizeof header - at, ",%d", t[i].cols);
        at += (size_t)snprintf(header + at, sizeof header - at, "],\"data_offsets\":[%zu,%zu]}", data, data + size);
        data += size;
    }
    header[at++] = '}';
    const uint64_t size = at;
    memcpy(file, &size, 8);
    memcpy(file + 8, header, at);
    memcpy(file + 8 + at, bytes, data);
    put("model.safetensors", file, 8 + at + data);
    const int used = snprintf(config, sizeof config, "{\"model_type\": \"%s\", \"hidden_size\": %d, \"intermediate_size\": %d, "
                              "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 32, "
                              "\"num_hidden_layers\": 1, \"vocab_size\": %d, \"rms_norm_eps\": 1e-6, \"rope_theta\": 10000, "
                              "\"hidden_act\": \"silu\", \"tie_word_embeddings\": false%s%s}", o->type ? o->type : "llama", HIDDEN, MLP, VOCAB,
                              o->version == 3 ? ", \"draft_vocab_size\": 256" : "", o->config ? o->config : "");
    put("config.json", config, (size_t)used);
}

static struct source *tiny_source;
static struct model *tiny;

static int open_tiny(void **state)
{
    (void)state;
    tiny_source = source_open("models/tiny", &e);
    tiny = tiny_source ? model_assemble(tiny_source, QT_F32, &e) : NULL;
    return tiny ? 0 : -1;
}

static int close_tiny(void **state)
{
    (void)state;
    model_close(tiny);
    source_close(tiny_source);
    return 0;
}

static struct eagle *read_heads(void)
{
    const struct medusa_options o = { .n_threads = 2 };
    memset(&e, 0, sizeof e);
    struct eagle *heads = eagle_read(folder, &tiny->config, &o, &e);
    if (heads)
        eagle_attach(heads, tiny);
    return heads;
}

/* A copy of a section of `size` bytes, aligned as in a file.  The caller frees it. */
static uint8_t *copy_section(const struct eagle *heads, size_t size)
{
    uint8_t *copy = aligned_alloc(64, (size + 63) / 64 * 64);
    assert_non_null(copy);
    return memcpy(copy, heads->section, size < heads->section_bytes ? size : heads->section_bytes);
}

static void check_drafts_of(const struct eagle *heads, int version, const int32_t want[ROUNDS][DRAFT]);

/* Compare the drafts of the first rounds after a prompt with those of tests/oracle/eagle.py: heads
 * of a folder, and the same in the section of a file. */
static void check_drafts(int version, const int32_t want[ROUNDS][DRAFT])
{
    make_heads(&(struct folder_options){ .version = version });
    struct eagle *heads = read_heads();
    if (!heads)
        fail_msg("%s", e.msg);
    uint64_t bytes = 0;
    assert_int_equal(eagle_check(folder, &tiny->config, NULL, &bytes, &e), 0);
    assert_int_equal(bytes, heads->bytes);
    uint8_t *section = copy_section(heads, heads->section_bytes);
    struct eagle *stored = eagle_bind(section, heads->section_bytes, &tiny->config, &e);
    if (!stored)
        fail_msg("%s", e.msg);
    eagle_attach(stored, tiny);
    check_drafts_of(heads, version, want);
    eagle_close(heads);
    check_drafts_of(stored, version, want);
    eagle_close(stored);
    free(section);
}

static void check_drafts_of(const struct eagle *heads, int version, const int32_t want[ROUNDS][DRAFT])
{
    const struct engine_options o = { .kv = kv_both(KV_F32), .max_len = 160, .max_seqs = 1, .n_threads = 2,
                                      .draft = DRAFT, .eagle = heads, .exact = 1 };
    struct engine *g = engine_open(tiny, NULL, &o, &e);
    if (!g)
        fail_msg("%s", e.msg);
    int32_t ids[9];
    for (int i = 0; i < 9; i++)
        ids[i] = 5 + 37 * i % 900;
    struct request_params p = { .ids = ids, .n_ids = 9, .sampling = sampling_defaults(), .n_logprobs = -1,
                                .ignore_eos = 1, .max_tokens = 60 };
    p.sampling.temperature = 0;
    struct request *r = engine_submit(g, &p, &e);
    assert_non_null(r);
    for (int round = 0; round < ROUNDS; round++) {
        assert_true(engine_step(g, &e) > 0);
        assert_int_equal(r->n_ids, 10 + round);             /* none of the drafts is right */
        if (round == 0)                 /* there are no drafts before a decoding step was measured */
            continue;
        draft_model_guess(g, 1, 1);
        assert_int_equal(r->draft.next.n, DRAFT);
        for (int i = 0; i < DRAFT; i++)
            if (r->draft.next.token[i] != want[round][i])
                fail_msg("EAGLE-%d, round %d, token %d: %d, expected %d", version, round, i, r->draft.next.token[i],
                         want[round][i]);
    }
    struct engine_stats s;
    engine_stats(g, &s);
    assert_true(s.draft_bytes > 0);
    engine_close(g);
}

static void eagle_1_drafts_are_those_of_the_reference(void **state)
{
    static const int32_t want[ROUNDS][DRAFT] = { { 278, 366, 536 }, { 748, 964, 521 }, { 278, 372, 908 },
                                                 { 325, 837, 270 }, { 278, 913, 925 } };
    (void)state;
    check_drafts(1, want);
}

static void eagle_3_drafts_are_those_of_the_reference(void **state)
{
    static const int32_t want[ROUNDS][DRAFT] = { { 948, 948, 454 }, { 694, 454, 454 }, { 948, 454, 454 },
                                                 { 946, 946, 454 }, { 310, 209, 209 } };
    (void)state;
    check_drafts(3, want);
}

static void broken_heads_are_refused(void **state)
{
    static const struct { struct folder_options o; const char *words; } cases[] = {
        { { .version = 3, .layer = "model.layers.0." }, "neither midlayer.self_attn.q_proj.weight nor layers.0." },
        { { .version = 3, .leave_out = "norm.weight" }, "tensor norm.weight is missing" },
        { { .version = 1, .leave_out = "mlp.up_proj.weight" }, "tensor layers.0.mlp.up_proj.weight is missing" },
        { { .version = 3, .leave_out = "d2t" }, "tensor d2t is missing: lm_head has 256 rows for 1024 tokens" },
        { { .version = 3, .leave_out = "fc.weight" }, "tensor fc.weight: missing" },
        { { .version = 3, .add = "layers.1.self_attn.q_proj.weight" }, "tensor layers.1.self_attn.q_proj.weight is not one of EAGLE's" },
        { { .version = 1, .add = "layers.0.input_layernorm.weight" }, "tensor layers.0.input_layernorm.weight is not one of EAGLE's" },
        { { .version = 3, .resize = "self_attn.k_proj.weight", .rows = 64, .cols = 128 },
          "tensor midlayer.self_attn.k_proj.weight: 2 dimensions, 64 rows, 128 columns, expected 2, 64, 256" },
        { { .version = 3, .resize = "fc.weight", .rows = 128, .cols = 300 }, "fc.weight: another shape" },
        { { .version = 3, .resize = "fc.weight", .rows = 128, .cols = 256 }, "fc.weight reads the states of 2 layers" },
        { { .version = 1, .resize = "fc.weight", .rows = 128, .cols = 384 }, "tensor fc.weight: 2 dimensions, 128 rows, 384" },
        { { .version = 3, .resize = "lm_head.weight", .rows = 255, .cols = 128 }, "lm_head has 255 rows, config.json says 256" },
        { { .version = 3, .resize = "d2t", .rows = 255 }, "tensor d2t: I64 [255], expected I64 [256]" },
        { { .version = 3, .resize = "t2d", .rows = 1023 }, "tensor t2d: BOOL [1023], expected BOOL [1024]" },
        { { .version = 3, .resize = "hidden_norm.weight", .rows = 127 }, "tensor midlayer.hidden_norm.weight" },
        { { .version = 3, .bad_map = 1 }, "tensor d2t: row 9 is 1015" }, { { .version = 3, .bad_map = 2 }, "tensor d2t: row 9 is 0" },
        { { .version = 3, .bad_map = 3 }, "tensor t2d: token 36 is not marked" },
        { { .version = 3, .nan = 1 }, "fc.weight" }, { { .version = 1, .nan = 1 }, "fc.weight" },
        { { .version = 3, .config = ", \"eagle_aux_hidden_state_layer_ids\": [1, 2, 5]" }, "the state before layer 5, expected 0 to 4" },
        { { .version = 3, .config = ", \"eagle_aux_hidden_state_layer_ids\": [1, 2]" }, "states of 3 layers, but config.json names 2" },
        { { .version = 3, .config = ", \"eagle_config\": {\"eagle_aux_hidden_state_layer_ids\": [1, -1, 2]}" }, "before layer -1" },
        { { .version = 3, .config = ", \"norm_before_fc\": true" }, "norm_before_fc is not supported" },
        { { .version = 1, .config = ", \"num_hidden_layers\": 2" }, "num_hidden_layers" },
        { { .version = 3, .type = "qwen3" }, "a layer of qwen3, expected one like llama's" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make_heads(&cases[i].o);
        struct eagle *heads = read_heads();
        if (heads || !strstr(e.msg, cases[i].words))
            fail_msg("case %zu: '%s', expected '%s'", i, e.msg, cases[i].words);
    }
    unlink(in_folder("model.safetensors"));
    assert_null(read_heads());
    assert_true(e.code != ERR_NONE);
}

static void heads_of_another_model_are_refused(void **state)
{
    (void)state;
    make_heads(&(struct folder_options){ .version = 3 });
    struct model other = *tiny;
    other.config.vocab_size = 1023;
    const struct medusa_options o = { .n_threads = 1 }, few = { .n_threads = 1, .most_bytes = 1000 };
    assert_null(eagle_read(folder, &other.config, &o, &e));
    assert_non_null(strstr(e.msg, "heads of a model with hidden_size 128 and 1024 tokens, this one has 128 and 1023"));
    assert_null(eagle_read(folder, &tiny->config, &few, &e));
    assert_non_null(strstr(e.msg, "but only 1000 are free"));
    struct eagle *heads = read_heads();
    assert_non_null(heads);
    heads->vocab_size = 1023;
    const struct engine_options wrong = { .max_len = 160, .eagle = heads };
    assert_null(engine_open(tiny, NULL, &wrong, &e));
    assert_non_null(strstr(e.msg, "EAGLE heads of a model with hidden_size 128 and 1023 tokens, this one has 128 and 1024"));
    eagle_close(heads);
}

/* The head of EAGLE-3 stands for other tokens than the main model's, whose bias would be wrong. */
static void eagle_3_takes_no_bias_of_the_main_head(void **state)
{
    (void)state;
    static const float bias[VOCAB];
    struct model biased = *tiny;
    const struct medusa_options o = { .n_threads = 1 };
    biased.head.bias = bias;
    for (int version = 1; version <= 3; version += 2) {
        make_heads(&(struct folder_options){ .version = version });
        struct eagle *heads = eagle_read(folder, &biased.config, &o, &e);
        assert_non_null(heads);
        eagle_attach(heads, &biased);
        assert_ptr_equal(heads->model.head.bias, version == 1 ? bias : NULL);
        eagle_close(heads);
    }
}

/* Bind a section after 4 bytes at `at` became x; they must be refused with these words. */
static void refuse_section(const struct eagle *heads, size_t at, uint32_t x, const char *words)
{
    uint8_t *section = copy_section(heads, heads->section_bytes);
    memcpy(section + at, &x, 4);
    memset(&e, 0, sizeof e);
    struct eagle *g = eagle_bind(section, heads->section_bytes, &tiny->config, &e);
    if (g || !strstr(e.msg, words))
        fail_msg("%u at %zu: '%s', expected '%s'", x, at, e.msg, words);
    free(section);
}

static void broken_sections_are_refused(void **state)
{
    static const struct { int version; size_t at; uint32_t x; const char *words; } cases[] = {
        { 3, 0, 2, "EAGLE-2, expected 1 or 3" }, { 3, 0, 1, "3 auxiliary states for EAGLE-1" },
        { 1, 0, 3, "0 auxiliary states for EAGLE-3" }, { 3, 4, 0, "0 auxiliary states" }, { 3, 4, 9, "9 auxiliary states" },
        { 3, 4, 2, "bytes, expected" }, { 1, 4, 1, "1 auxiliary states for EAGLE-1" },
        { 3, 8, 0, "a head with 0 rows and a map for 1024 tokens" }, { 3, 8, 1025, "a head with 1025 rows" },
        { 3, 8, 200, "bytes, expected" }, { 1, 8, 1023, "a head with 1023 rows without a map" },
        { 3, 12, 0, "a head with 256 rows without a map" }, { 3, 12, 2, "a head with" }, { 1, 12, 1, "a head with" },
        { 3, 16, 0xffffffff, "4294967295 bytes of config.json" }, { 3, 16, 20, "config.json: line 1" },
        { 1, 16, 0, "config.json: line 1" }, { 3, 20, 1, "bytes, expected" }, { 1, 20, 16, "unknown parts: 16" },
        { 1, 20, 0, "bytes, expected" }, { 3, 24, 3, "number format 3" }, { 3, 28, 32, "with groups of 32" },
        { 3, 32, 5, "the state before layer 5, expected 0 to 4" }, { 3, 36, 0xffffffff, "the state before layer" },
    };
    (void)state;
    for (int version = 1; version <= 3; version += 2) {
        make_heads(&(struct folder_options){ .version = version });
        struct eagle *heads = read_heads();
        assert_non_null(heads);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
            if (cases[i].version == version)
                refuse_section(heads, cases[i].at, cases[i].x, cases[i].words);
        if (heads->target) {
            const size_t map = (size_t)((const uint8_t *)heads->target - heads->section);
            refuse_section(heads, map + 4 * 9, 0, "row 9 is token 0, expected tokens in order");
            refuse_section(heads, map + 4 * 255, VOCAB, "row 255 is token 1024, expected tokens in order and less than 1024");
            refuse_section(heads, map, 0xffffffff, "row 0 is token -1");
        }
        for (size_t n = 0; n < heads->section_bytes; n += n < 700 ? 1 : 997) {
            uint8_t *section = copy_section(heads, n);
            assert_null(eagle_bind(section, n, &tiny->config, &e));
            free(section);
        }
        eagle_close(heads);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = { IN_FOLDER(eagle_1_drafts_are_those_of_the_reference),
                                        IN_FOLDER(eagle_3_drafts_are_those_of_the_reference),
                                        IN_FOLDER(broken_heads_are_refused), IN_FOLDER(broken_sections_are_refused),
                                        IN_FOLDER(eagle_3_takes_no_bias_of_the_main_head),
                                        IN_FOLDER(heads_of_another_model_are_refused) };
    return cmocka_run_group_tests(tests, open_tiny, close_tiny);
}
