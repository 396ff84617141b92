/* t-gguf.c - GGUF files built in memory: read, cut at every byte, broken in every field; their keys
 * as config.json. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/convert/row_reader.h"
#include "libcommon/import/gguf.h"
#include "libcommon/model/model.h"
#include "libcommon/quant/ggml.h"

static char dir[] = "/tmp/t-gguf-XXXXXX", path[64];

/* ---- a GGUF in memory ---- */

struct file { uint8_t b[1 << 16]; size_t n; };

static void bytes(struct file *f, const void *p, size_t n) { memcpy(f->b + f->n, p, n); f->n += n; }
static void u32(struct file *f, uint32_t v) { bytes(f, &v, 4); }
static void u64(struct file *f, uint64_t v) { bytes(f, &v, 8); }
static void str(struct file *f, const char *s) { u64(f, strlen(s)); bytes(f, s, strlen(s)); }
static void key(struct file *f, const char *name, uint32_t type) { str(f, name); u32(f, type); }
static void kv_u32(struct file *f, const char *name, uint32_t v) { key(f, name, GGUF_U32); u32(f, v); }
static void kv_f32(struct file *f, const char *name, float v) { key(f, name, GGUF_F32); bytes(f, &v, 4); }
static void kv_str(struct file *f, const char *name, const char *v) { key(f, name, GGUF_STR); str(f, v); }

static void tensor(struct file *f, const char *name, int n_dims, const uint64_t *dim, uint32_t type, uint64_t offset)
{
    str(f, name);
    u32(f, (uint32_t)n_dims);
    bytes(f, dim, (size_t)n_dims * 8);
    u32(f, type);
    u64(f, offset);
}

static void pad(struct file *f, size_t to)
{
    while (f->n % to)
        f->b[f->n++] = 0;
}

static void header(struct file *f, uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    f->n = 0;
    bytes(f, "GGUF", 4);
    u32(f, version);
    u64(f, n_tensors);
    u64(f, n_kv);
}

static void put_file(const void *data, size_t n)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* Offsets of parts of the small file, for the tests that damage them. */
struct places { size_t key, type, array_type, array_n, tensor, n_dims, dim, tensor_type, offset, second, alignment; };

static struct file *small_file(struct places *at)
{
    static struct file f;
    struct places ignored;
    at = at ? at : &ignored;
    header(&f, 3, 3, 6);
    at->key = f.n;
    kv_str(&f, "general.architecture", "llama");
    at->type = f.n + 8 + 4;
    kv_u32(&f, "some", 7);
    at->alignment = f.n + 8 + 17 + 4;
    kv_u32(&f, "general.alignment", 64);
    kv_f32(&f, "other", 0.5f);
    key(&f, "strings", GGUF_ARR);
    at->array_type = f.n;
    u32(&f, GGUF_STR);
    at->array_n = f.n;
    u64(&f, 2);
    str(&f, "one");
    str(&f, "");
    key(&f, "numbers", GGUF_ARR);
    u32(&f, GGUF_I16);
    u64(&f, 3);
    bytes(&f, (int16_t[]){ -1, 2, 300 }, 6);
    at->tensor = f.n;
    at->n_dims = f.n + 8 + 1;
    at->dim = at->n_dims + 4;
    at->tensor_type = at->dim + 16;
    at->offset = at->tensor_type + 4;
    tensor(&f, "a", 2, (uint64_t[]){ 32, 2 }, GGML_Q4_0, 0);
    at->second = f.n;
    tensor(&f, "b", 1, (uint64_t[]){ 5 }, GGML_F32, 64);
    tensor(&f, "c", 3, (uint64_t[]){ 2, 3, 1 }, GGML_F16, 128);
    pad(&f, 64);
    for (int i = 0; i < 140; i++)
        f.b[f.n++] = (uint8_t)i;
    return &f;
}

static int opens(struct err *e)
{
    struct gguf *g = gguf_open(path, e);
    gguf_close(g);
    return g != NULL;
}

static void versions_2_and_3_are_read(void **state)
{
    (void)state;
    struct err e = { 0 };
    struct file *f = small_file(NULL);
    for (uint32_t version = 2; version <= 3; version++) {
        memcpy(f->b + 4, &version, 4);
        put_file(f->b, f->n);
        struct gguf *g = gguf_open(path, &e);
        if (!g)
            fail_msg("%s", e.msg);
        assert_int_equal(g->version, version);
        assert_int_equal(g->n_tensors, 3);
        assert_int_equal(gguf_int(g, "some", 0), 7);
        assert_int_equal(gguf_int(g, "none", 9), 9);
        assert_true(gguf_array_float(gguf_find(g, "other"), 0) == 0.5);
        assert_true(gguf_array_float(gguf_find(g, "some"), 0) == 7);
        assert_int_equal(gguf_str(g, "general.architecture")->n, 5);
        assert_null(gguf_str(g, "some"));
        const struct gguf_kv *n = gguf_find(g, "numbers"), *s = gguf_find(g, "strings");
        assert_int_equal(n->n, 3);
        assert_int_equal(gguf_array_int(n, 0), -1);
        assert_int_equal(gguf_array_int(n, 2), 300);
        assert_true(gguf_array_float(n, 1) == 2);
        assert_int_equal(s->str[0].n, 3);
        assert_memory_equal(s->str[0].s, "one", 3);
        assert_int_equal(s->str[1].n, 0);
        const struct source_tensor *t = &g->tensors[2];
        assert_string_equal(t->name, "c");
        assert_int_equal(t->n_dims, 3);
        assert_int_equal(t->dim[0], 1);         /* outermost first */
        assert_int_equal(t->dim[2], 2);
        assert_int_equal(t->size, 12);
        assert_int_equal(t->data[0], 128);
        assert_int_equal(g->tensors[0].size, 36);
        gguf_close(g);
    }
}

static void cut_at_every_byte(void **state)
{
    (void)state;
    struct file *f = small_file(NULL);
    put_file(f->b, f->n);
    for (size_t n = f->n; n-- > 0;) {
        struct err e = { 0 };
        assert_int_equal(truncate(path, (off_t)n), 0);
        if (opens(&e) || !strstr(e.msg, path))
            fail_msg("cut at %zu of %zu: %s", n, f->n, e.msg);
    }
}

/* Set any byte to any of these values: the file may be accepted or refused, without a crash (run
 * under ASan and UBSan). */
static void every_byte_changed(void **state)
{
    (void)state;
    static const uint8_t values[] = { 0, 1, 0x7f, 0x80, 0xff };
    struct file *f = small_file(NULL);
    size_t refused = 0;
    for (size_t i = 0; i < f->n; i++)
        for (size_t v = 0; v < sizeof values; v++) {
            struct err e = { 0 };
            uint8_t old = f->b[i];
            f->b[i] = values[v];
            put_file(f->b, f->n);
            if (!opens(&e)) {
                refused++;
                assert_non_null(strstr(e.msg, path));
            }
            f->b[i] = old;
        }
    assert_true(refused > f->n);
}

static void refuses(const struct file *f, const char *words)
{
    struct err e = { 0 };
    put_file(f->b, f->n);
    if (opens(&e) || !strstr(e.msg, words) || !strstr(e.msg, path))
        fail_msg("expected '%s', got '%s'", words, e.msg);
}

static void breaks(size_t at, uint64_t value, size_t n, const char *words)
{
    struct file *f = small_file(NULL);
    memcpy(f->b + at, &value, n);
    refuses(f, words);
}

static void bad_fields_are_refused_by_name(void **state)
{
    (void)state;
    struct places p;
    small_file(&p);
    breaks(0, 'X', 1, "offset 0: magic");
    breaks(4, 1, 4, "offset 4: version: GGUF version 1");
    breaks(4, 4, 4, "GGUF version 4, expected 2 or 3");
    breaks(4, 0x03000000, 4, "big-endian");
    breaks(8, UINT64_MAX, 8, "offset 8: n_tensors");
    breaks(8, 4, 8, "");
    breaks(16, UINT64_MAX / 2, 8, "offset 16: n_kv");
    breaks(p.key, UINT64_MAX, 8, "offset 32: key: reaches beyond the end");
    breaks(p.key, 0, 8, "offset 24: key: is empty");
    breaks(p.key + 9, 0, 1, "zero byte");
    breaks(p.key + 9, 0xff, 1, "not UTF-8");
    breaks(p.type, 13, 4, "key some: unknown value type 13");
    breaks(p.array_type, GGUF_ARR, 4, "an array of arrays");
    breaks(p.array_n, UINT64_MAX, 8, "strings do not fit");
    breaks(p.array_n, 50, 8, "key strings");
    breaks(p.alignment, 0, 4, "general.alignment: 0");
    breaks(p.alignment, 48, 4, "general.alignment: 48");
    breaks(p.n_dims, 0, 4, "tensor a: n_dims is 0, expected 1 to 4");
    breaks(p.n_dims, 5, 4, "tensor a: n_dims is 5");
    breaks(p.dim, 0, 8, "tensor a: a dimension is 0 or their product overflows");
    breaks(p.dim, UINT64_MAX, 8, "overflows");
    breaks(p.dim + 8, (uint64_t)1 << 61, 8, "overflows");
    breaks(p.dim, 33, 8, "no multiple of Q4_0's block of 32");
    breaks(p.dim, 3200000, 8, "larger than the file");
    breaks(p.tensor_type, 4, 4, "unknown tensor type 4");
    breaks(p.tensor_type, SRC_F8_E4M3, 4, "unknown tensor type 1000");
    breaks(p.tensor_type, UINT32_MAX, 4, "unknown tensor type");
    breaks(p.offset, 32, 8, "no multiple of the alignment 64");
    breaks(p.offset, 1 << 20, 8, "beyond the end of the file");
    breaks(p.offset, UINT64_MAX - 63, 8, "beyond the end of the file");
    breaks(p.offset, 64, 8, "overlaps tensor");
    breaks(p.second + 8, 'a', 1, "tensor a occurs twice");
    struct file f;
    header(&f, 3, 0, 2);
    kv_u32(&f, "k", 1);
    kv_u32(&f, "k", 2);
    refuses(&f, "key k occurs twice");
    header(&f, 3, 0, 1);
    kv_u32(&f, "split.count", 3);
    refuses(&f, "one of 3 parts, so its name should end in -00001-of-00003.gguf");
}

/* ---- a model in several files ---- */

static char parts[3][96];

/* Part k of 3, with one tensor of 8 floats: `value` eight times. */
static void put_part(int k, uint32_t no, uint32_t count, const char *name, float value)
{
    struct file f;
    header(&f, 3, 1, k == 0 ? 4 : 2);
    if (k == 0)
        kv_str(&f, "general.architecture", "llama");
    kv_u32(&f, "split.no", no);
    kv_u32(&f, "split.count", count);
    if (k == 0)
        kv_u32(&f, "split.tensors.count", 3);
    tensor(&f, name, 1, (uint64_t[]){ 8 }, GGML_F32, 0);
    pad(&f, 32);
    for (int i = 0; i < 8; i++)
        bytes(&f, &value, 4);
    snprintf(parts[k], sizeof parts[k], "%s/m-%05d-of-00003.gguf", dir, k + 1);
    FILE *out = fopen(parts[k], "wb");
    assert_non_null(out);
    assert_int_equal(fwrite(f.b, 1, f.n, out), f.n);
    assert_int_equal(fclose(out), 0);
}

static void parts_refused(const char *name, const char *why)
{
    struct err e = { 0 };
    struct gguf *g = gguf_open(name, &e);
    gguf_close(g);
    if (g || !strstr(e.msg, why))
        fail_msg("'%s' does not say '%s'", g ? "it opened" : e.msg, why);
}

static void files_in_parts_are_read_as_one(void **state)
{
    static const char *const names[] = { "a", "b", "c" };
    struct err e;
    (void)state;
    for (int k = 0; k < 3; k++)
        put_part(k, (uint32_t)k, 3, names[k], (float)k + 0.5f);
    struct gguf *g = gguf_open(parts[0], &e);
    if (!g)
        fail_msg("%s", e.msg);
    assert_int_equal(g->n_tensors, 3);
    for (int k = 0; k < 3; k++) {
        float v;
        memcpy(&v, g->tensors[k].data + 28, 4);
        assert_string_equal(g->tensors[k].name, names[k]);
        assert_true(v == (float)k + 0.5f && g->tensors[k].shard == k);
    }
    assert_non_null(gguf_str(g, "general.architecture"));
    gguf_close(g);
    parts_refused(parts[1], "this is part 2 of 3; name the first, ");
    put_part(2, 1, 3, "c", 0);
    parts_refused(parts[0], "split.no 1 of split.count 3, expected 2 of 3");
    put_part(2, 2, 2, "c", 0);
    parts_refused(parts[0], "split.no 2 of split.count 2, expected 2 of 3");
    put_part(2, 2, 3, "c", 0);
    assert_int_equal(truncate(parts[2], 100), 0);
    parts_refused(parts[0], "part 3 of 3: ");
    unlink(parts[2]);
    parts_refused(parts[0], "No such file");
    put_part(2, 2, 3, "a", 0);  /* a duplicate name is refused by source_open, which sees all shards */
    struct source *s = source_open(parts[0], &e);
    assert_null(s);
    assert_non_null(strstr(e.msg, "tensor a is also in"));
    for (int k = 0; k < 3; k++)
        unlink(parts[k]);
}

/* ---- config ---- */

enum { HIDDEN = 64, HEADS = 4, KV = 2, LAYERS = 6, VOCAB = 40 };

/* Keys that model_file() adds after those that every file has, in the format of the file. */
static struct { struct file f; uint64_t n; } more;

/* Make a file of this architecture with every key and tensor that gguf_config() reads.  Its tensors
 * have little data. */
static struct file *model_file(const char *arch, int kv_heads, const char *const *more_tensors)
{
    static struct file f;
    char k[128];
    uint64_t n = 1;
    for (int i = 0; more_tensors[i]; i++)
        n++;
    header(&f, 3, n, 13 + more.n);
    kv_str(&f, "general.architecture", arch);
    bytes(&f, more.f.b, more.f.n);
#define KEY(name) (snprintf(k, sizeof k, "%s." name, arch), k)
    kv_u32(&f, KEY("block_count"), LAYERS);
    kv_u32(&f, KEY("embedding_length"), HIDDEN);
    kv_u32(&f, KEY("feed_forward_length"), 128);
    kv_u32(&f, KEY("context_length"), 512);
    kv_u32(&f, KEY("attention.head_count"), HEADS);
    kv_u32(&f, KEY("attention.head_count_kv"), (uint32_t)kv_heads);
    kv_f32(&f, KEY("attention.layer_norm_rms_epsilon"), 1e-6f);
    kv_f32(&f, KEY("attention.layer_norm_epsilon"), 1e-5f);
    kv_f32(&f, KEY("rope.freq_base"), 20000);
    kv_u32(&f, KEY("rope.dimension_count"), 12);
    kv_u32(&f, KEY("attention.sliding_window"), 24);
    kv_f32(&f, KEY("attention.max_alibi_bias"), 8);
    tensor(&f, "token_embd.weight", 2, (uint64_t[]){ HIDDEN, VOCAB }, GGML_F32, 0);
    uint64_t at = HIDDEN * VOCAB * 4;
    for (int i = 0; more_tensors[i]; i++, at += 32)
        tensor(&f, more_tensors[i], 1, (uint64_t[]){ 6 }, GGML_F32, at);
    pad(&f, 32);
    for (size_t i = 0; i < at / 4; i++)
        bytes(&f, &(float){ 1.5f }, 4);
    return &f;
}

static json_t *config_of(const struct file *f)
{
    struct err e = { 0 };
    put_file(f->b, f->n);
    struct gguf *g = gguf_open(path, &e);
    if (!g)
        fail_msg("%s", e.msg);
    json_t *c = gguf_config(g, &e);
    if (!c)
        fail_msg("%s", e.msg);
    gguf_close(g);
    return c;
}

/* Every architecture is translated so that config_parse understands all of it, with the sizes of
 * the file. */
static void every_architecture_becomes_a_valid_config(void **state)
{
    (void)state;
    static const struct { const char *gguf, *hf; int kv_heads; } cases[] = {
        { "llama", "llama", KV }, { "qwen2", "qwen2", KV }, { "qwen3", "qwen3", KV }, { "smollm3", "smollm3", KV },
            { "phi2", "phi", HEADS },
        { "phi3", "phi3", KV }, { "gemma", "gemma", KV }, { "gemma2", "gemma2", KV }, { "gemma3", "gemma3_text", KV },
        { "stablelm", "stablelm", KV },
        { "starcoder2", "starcoder2", KV }, { "olmo", "olmo", KV }, { "olmo2", "olmo3", KV },
        { "granite", "granite", KV }, { "command-r", "cohere", KV },
        { "cohere2", "cohere2", KV }, { "gpt2", "gpt2", HEADS }, { "gptneox", "gpt_neox", HEADS },
        { "gptj", "gptj", HEADS }, { "starcoder", "gpt_bigcode", 1 },
        { "falcon", "falcon", 1 }, { "mpt", "mpt", HEADS }, { "bloom", "bloom", HEADS }, { "nemotron", "nemotron", KV },
        { "exaone4", "exaone4", KV },
        { "ernie4_5", "ernie4_5", KV }, { "seed_oss", "seed_oss", KV }, { "arcee", "arcee", KV },
        { "hunyuan-dense", "hunyuan_v1_dense", KV }, { "glm4", "glm4", KV },
        { "qwen2vl", "qwen2_vl_text", KV }, { "qwen3vl", "qwen3_vl_text", KV }, { "mistral3", "ministral3", KV },
        { "jais2", "jais2", KV },
        { "qwen2vl", "qwen2_vl_text", KV }, { "qwen3vl", "qwen3_vl_text", KV }, { "mistral3", "ministral3", KV },
        { "jais2", "jais2", KV },
    };
    static const char *const none[] = { NULL };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e = { 0 };
        struct config c;
        json_t *j = config_of(model_file(cases[i].gguf, cases[i].kv_heads, none));
        assert_string_equal(json_string_value(json_object_get(j, "model_type")), cases[i].hf);
        if (config_parse(&c, j, &e) < 0)
            fail_msg("%s: %s", cases[i].gguf, e.msg);
        /* GGUF has no key for bloom's MLP size */
        int mlp = strcmp(cases[i].gguf, "bloom") == 0 ? 4 * HIDDEN : 128;
        if (c.n_layers != LAYERS || c.hidden_size != HIDDEN || c.intermediate_size != mlp || c.n_heads != HEADS ||
            c.n_kv_heads != cases[i].kv_heads || c.head_dim != 16 || c.vocab_size != VOCAB || !c.tied || !c.gguf)
            fail_msg("%s: %d layers, %d wide, MLP %d, heads %d and %d of %d, %d tokens, tied %d", cases[i].gguf,
                     c.n_layers, c.hidden_size, c.intermediate_size, c.n_heads, c.n_kv_heads, c.head_dim, c.vocab_size,
                     c.tied);
        if (c.pos == POS_ROPE)
            for (int r = 0; r < c.n_ropes; r++)
                if (c.ropes[r].dim != 12)
                    fail_msg("%s: rotates %d of 16", cases[i].gguf, c.ropes[r].dim);
        config_release(&c);
        json_decref(j);
    }
}

/* Files of an architecture without a row: the vocabulary is read, whatever the other keys say, and
 * the model is refused by name, also if Hugging Face's files of that name are known. */
static void unknown_architectures_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const names[] = { "foreign", "nanochat" }, *const none[] = { NULL };
    for (size_t i = 0; i < 2; i++) {
        struct err e = { 0 };
        struct config c;
        struct file f;
        header(&f, 3, 1, 1);
        kv_str(&f, "general.architecture", names[i]);
        tensor(&f, "token_embd.weight", 2, (uint64_t[]){ 8, 4 }, GGML_F32, 0);
        pad(&f, 32);
        for (int n = 0; n < 32; n++)
            bytes(&f, &(float){ 1.5f }, 4);
        json_t *bare = config_of(&f), *sized = config_of(model_file(names[i], KV, none));
        assert_int_equal(json_integer_value(json_object_get(bare, "vocab_size")), 4);
        assert_int_equal(json_integer_value(json_object_get(sized, "num_hidden_layers")), LAYERS);
        assert_int_equal(config_parse(&c, sized, &e), -1);
        if (!strstr(e.msg, names[i]) || e.code != ERR_UNSUPPORTED)
            fail_msg("%s: %s", names[i], e.msg);
        json_decref(bare);
        json_decref(sized);
    }
}

static void tensors_say_what_keys_do_not(void **state)
{
    (void)state;
    static const char *const with_head[] = { "output.weight", "blk.0.attn_q.bias", NULL };
    static const char *const with_factors[] = { "rope_freqs.weight", NULL };
    json_t *j = config_of(model_file("llama", KV, with_head));
    assert_true(json_is_false(json_object_get(j, "tie_word_embeddings")));
    assert_true(json_is_true(json_object_get(j, "attention_bias")));
    assert_true(json_is_false(json_object_get(j, "mlp_bias")));
    json_decref(j);
    j = config_of(model_file("llama", KV, with_factors));
    const json_t *rope = json_object_get(j, "rope_parameters"), *f = json_object_get(rope, "short_factor");
    assert_string_equal(json_string_value(json_object_get(rope, "rope_type")), "longrope");
    assert_int_equal(json_array_size(f), 6);
    assert_true(json_number_value(json_array_get(f, 5)) == 1.5);
    assert_true(json_number_value(json_object_get(rope, "attention_factor")) == 1);
    assert_true(json_number_value(json_object_get(rope, "rope_theta")) == 20000);
    json_decref(j);
}

/* Open the reader of rows on an NVFP4 matrix in a file that also has a tensor `name` with six
 * scales, all equal to `value`.  Returns 1 if it opens, 0 if it is refused. */
static int takes_scale(const char *name, float value, struct err *e)
{
    struct file *f = model_file("llama", KV, (const char *const[]){ name, NULL });
    uint8_t *embedding = memmem(f->b, f->n, "token_embd.weight", 17);
    struct row_reader rows;
    assert_non_null(embedding);
    /* the type field: it follows the name, the number of dimensions and two sizes */
    memcpy(embedding + 17 + 4 + 16, &(uint32_t){ GGML_NVFP4 }, 4);
    for (int i = 0; i < 6; i++)
        memcpy(f->b + f->n - 32 + 4 * i, &value, 4);
    put_file(f->b, f->n);
    struct source *s = source_open(path, e);
    if (!s)
        fail_msg("%s", e->msg);
    const int rc = row_reader_open(&rows, s, source_find(s, "token_embd.weight"), &(struct row_map){ 0 }, VOCAB, HIDDEN,
                                   0, e);
    if (rc == 0)
        row_reader_close(&rows);
    source_close(s);
    return rc == 0;
}

static void scales_beside_nvfp4(void **state)
{
    (void)state;
    static const char *const names[] = { "token_embd.scale", "token_embd.weight.scale" };
    struct err e = { 0 };
    for (int i = 0; i < 2; i++) {
        assert_false(takes_scale(names[i], 0.5f, &e));
        if (!strstr(e.msg, names[i]) || !strstr(e.msg, "expected NVFP4 without one"))
            fail_msg("%s", e.msg);
        assert_true(takes_scale(names[i], 1, &e));
    }
    assert_true(takes_scale("token_embd.input_scale", 0.5f, &e));
}

static void missing_and_bad_keys_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const none[] = { NULL };
    static const struct { const char *from, *to, *words; } cases[] = {
        { "llama.block_count", "llama.block_counX", "key llama.block_count is missing" },
        { "llama.attention.layer_norm_rms_epsilon", "llama.attention.layer_norm_rms_epsiloX",
          "key llama.attention.layer_norm_rms_epsilon is missing" },
        { "llama.rope.freq_base", "llama.rope.freq_base", "is not a finite number" },
    };
    for (size_t i = 0; i < 3; i++) {
        struct err e = { 0 };
        struct file *f = model_file("llama", KV, none);
        uint8_t *hit = memmem(f->b, f->n, cases[i].from, strlen(cases[i].from));
        assert_non_null(hit);
        memcpy(hit, cases[i].to, strlen(cases[i].to));
        if (i == 2)
            memset(hit + strlen(cases[i].to) + 4, 0xff, 4);
        put_file(f->b, f->n);
        struct gguf *g = gguf_open(path, &e);
        assert_non_null(g);
        assert_null(gguf_config(g, &e));
        if (!strstr(e.msg, cases[i].words))
            fail_msg("expected '%s', got '%s'", cases[i].words, e.msg);
        gguf_close(g);
    }
}

/* A value of a key that model_file() adds.  An array has `number` elements: 1 (u32) if text is
 * NULL, otherwise the f32 that text spells. */
struct value { const char *key; uint32_t type; double number; const char *text; };

static void add_value(const struct value *v)
{
    key(&more.f, v->key, v->type);
    if (v->type == GGUF_STR)
        str(&more.f, v->text);
    else if (v->type == GGUF_ARR) {             /* see struct value */
        u32(&more.f, v->text ? GGUF_F32 : GGUF_U32);
        u64(&more.f, (uint64_t)v->number);
        for (int i = 0; i < (int)v->number; i++)
            if (v->text)
                bytes(&more.f, &(float){ strtof(v->text, NULL) }, 4);
            else
                u32(&more.f, 1);
    } else if (v->type == GGUF_U64)
        u64(&more.f, (uint64_t)v->number);
    else if (v->type == GGUF_I32)
        u32(&more.f, (uint32_t)(int32_t)v->number);
    else if (v->type == GGUF_BOOL)
        bytes(&more.f, &(uint8_t){ v->number != 0 }, 1);
    else if (v->type == GGUF_F32)
        bytes(&more.f, &(float){ (float)v->number }, 4);
    else
        u32(&more.f, (uint32_t)v->number);
    more.n++;
}

/* Check that the configuration of a file with the keys of `more` is refused with a message that
 * contains `words`.  Empties `more`. */
static void config_refused(const char *arch, const char *const *tensors, const char *words, enum err_code code)
{
    struct err e = { 0 };
    struct file *f = model_file(arch, KV, tensors);
    put_file(f->b, f->n);
    struct gguf *g = gguf_open(path, &e);
    if (!g)
        fail_msg("%s", e.msg);
    json_t *c = gguf_config(g, &e);
    if (c || !strstr(e.msg, words) || e.code != code)
        fail_msg("%s: expected '%s' (%d), got '%s' (%d)", arch, words, code, c ? "a config" : e.msg, e.code);
    gguf_close(g);
    more.f.n = more.n = 0;
}

/* A key with an invalid value is an error, and is not replaced by a default. */
static void values_out_of_range(void **state)
{
    (void)state;
    static const struct { const char *arch; struct value v; const char *words; } cases[] = {
        { "kimi-linear", { "kimi-linear.attention.key_length_mla", GGUF_U64, 0x1p63 + 4096, NULL }, "out of range" },
        { "gemma3n", { "gemma3n.altup.active_idx", GGUF_I32, -1, NULL }, "-1 is out of range" },
        { "glm4moe", { "glm4moe.expert_shared_count", GGUF_STR, 0, "7" }, "expected a number" },
        { "qwen3moe", { "qwen3moe.expert_used_count", GGUF_U64, 0x1p40, NULL }, "1099511627776 is out of range" },
        { "nemotron_h_moe", { "nemotron_h_moe.moe_latent_size", GGUF_STR, 0, "64" }, "expected a number" },
        { "qwen3moe", { "qwen3moe.expert_count", GGUF_F32, 1e30, NULL }, "qwen3moe.expert_count: " },
        { "granite", { "granite.logit_scale", GGUF_STR, 0, "8" }, "granite.logit_scale: expected a finite number" },
        { "glm4moe", { "glm4moe.nextn_predict_layers", GGUF_U32, LAYERS, NULL }, "6 of 6 layers" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        add_value(&cases[i].v);
        config_refused(cases[i].arch, (const char *const[]){ "output.weight", NULL }, cases[i].words, ERR_FORMAT);
    }
}

/* Rerankers, vectors of single tokens, and decoders with attention in both directions are refused
 * by name. */
static void pooling_and_direction(void **state)
{
    (void)state;
    static const struct { const char *arch; struct value v; const char *words; enum err_code code; } cases[] = {
        { "bert", { "bert.pooling_type", GGUF_U32, 4, NULL }, "pooling_type: 4 (rank: a reranker)", ERR_UNSUPPORTED },
        { "qwen3", { "qwen3.pooling_type", GGUF_U32, 0, NULL }, "pooling_type: 0 (none", ERR_UNSUPPORTED },
        { "qwen3", { "qwen3.pooling_type", GGUF_U32, 7, NULL }, "pooling_type: 7 is not supported", ERR_UNSUPPORTED },
        { "bert", { "bert.pooling_type", GGUF_STR, 0, "mean" }, "expected a number", ERR_FORMAT },
        { "qwen3", { "qwen3.attention.causal", GGUF_BOOL, 0, NULL }, "causal: false is not", ERR_UNSUPPORTED },
        { "bert", { "bert.attention.causal", GGUF_BOOL, 1, NULL }, "causal: true is not supported", ERR_UNSUPPORTED },
    };
    static const char *const none[] = { NULL };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        add_value(&cases[i].v);
        config_refused(cases[i].arch, none, cases[i].words, cases[i].code);
    }
    add_value(&(struct value){ "qwen3.attention.causal", GGUF_BOOL, 1, NULL });
    json_decref(config_of(model_file("qwen3", KV, none)));
    more.f.n = more.n = 0;
    struct config c = { .both_ways = 1, .gguf = 1 };
    assert_int_equal(weight_skip(&c, "cls.weight"), WEIGHT_UNKNOWN);
    assert_int_equal(weight_skip(&c, "cls.output.weight"), WEIGHT_UNKNOWN);
    c.gguf = 0;
    assert_int_equal(weight_skip(&c, "cls.predictions.bias"), WEIGHT_TRAINING);
}

/* Files are refused if their lists of layers with windows have the wrong length, or if a fact in
 * them cannot be represented. */
static void facts_that_do_not_fit(void **state)
{
    (void)state;
    static const struct { const char *arch; struct value v; const char *words, *tensor; enum err_code code; }
    cases[] = {
        { "gemma3n", { "gemma3n.attention.sliding_window_pattern", GGUF_ARR, LAYERS - 1, NULL }, "or 6 of them", NULL,
          ERR_FORMAT },
        { "gemma3n", { "gemma3n.attention.sliding_window_pattern", GGUF_ARR, LAYERS + 1, NULL }, "or 6 of them", NULL,
          ERR_FORMAT },
        { "gemma3n", { "gemma3n.attention.sliding_window_pattern", GGUF_ARR, 0, NULL }, "or 6 of them", NULL,
          ERR_FORMAT },
        { "gemma3n", { "gemma3n.attention.sliding_window_pattern", GGUF_STR, 0, "5" }, "expected a number", NULL,
          ERR_FORMAT },
        { "modern-bert", { "modern-bert.attention.sliding_window_pattern", GGUF_ARR, LAYERS, NULL },
          "a list of layers is not supported", NULL, ERR_UNSUPPORTED },
        { "modern-bert", { "modern-bert.hidden_act", GGUF_STR, 0, "relu" }, "only \"gelu\" and \"silu\"", NULL,
          ERR_UNSUPPORTED },
        { "gemma4", { "gemma4.unread", GGUF_U32, 0, NULL }, "rope_freqs.weight is missing", NULL, ERR_FORMAT },
        { "gemma4", { "gemma4.rope.scaling.factor", GGUF_F32, 8, NULL }, "without a factor", "rope_freqs.weight",
          ERR_UNSUPPORTED },
        { "kimi-linear", { "kimi-linear.unread", GGUF_U32, 0, NULL }, "output.weight is missing", NULL, ERR_FORMAT },
        { "bailingmoe3", { "bailingmoe3.swiglu_clamp_exp", GGUF_F32, 7, NULL }, "swiglu_clamp_exp: a limit of 7 is not",
          "output.weight", ERR_UNSUPPORTED },
        { "bailingmoe3", { "bailingmoe3.swiglu_clamp_shexp", GGUF_F32, 7, NULL }, "swiglu_clamp_shexp: a limit of 7",
          "output.weight", ERR_UNSUPPORTED },
        { "bailingmoe3", { "bailingmoe3.expert_shared_feed_forward_length", GGUF_U32, 64, NULL },
          "feed_forward_length: 64 is not supported, expected 0", "output.weight", ERR_UNSUPPORTED },
        { "gemma3n", { "gemma3n.activation_sparsity_scale", GGUF_ARR, LAYERS - 1, "1.6" }, "or 6 of them", NULL,
          ERR_FORMAT },
        { "gemma3n", { "gemma3n.activation_sparsity_scale", GGUF_ARR, LAYERS + 1, "1.6" }, "or 6 of them", NULL,
          ERR_FORMAT },
        { "gemma3n", { "gemma3n.activation_sparsity_scale", GGUF_ARR, LAYERS, NULL }, "expected a real number", NULL,
          ERR_FORMAT },
        { "gemma3n", { "gemma3n.activation_sparsity_scale", GGUF_ARR, LAYERS, "nan" }, "layer 0: ", NULL, ERR_FORMAT },
        { "gemma3n", { "gemma3n.activation_sparsity_scale", GGUF_ARR, LAYERS, "inf" }, "inf is out of range", NULL,
          ERR_FORMAT },
        { "apertus", { "xielu.alpha_p", GGUF_ARR, LAYERS, "inf" }, "key xielu.alpha_p: layer 0: inf", NULL, ERR_FORMAT },
        { "apertus", { "xielu.alpha_p", GGUF_ARR, LAYERS - 1, "1" }, "key xielu.alpha_p: expected", NULL, ERR_FORMAT },
        { "deepseek4", { "deepseek4.attention.compress_ratios", GGUF_ARR, LAYERS - 1, NULL },
          "compress_ratios: expected 6 numbers", NULL, ERR_FORMAT },
        { "deepseek4", { "deepseek4.attention.compress_ratios", GGUF_ARR, LAYERS, NULL },
          "swiglu_clamp_exp is missing", NULL, ERR_FORMAT },
        { "deepseek4", { "deepseek4.expert_gating_func", GGUF_U32, 2, NULL }, "expected 4 (square root of softplus)",
          NULL, ERR_UNSUPPORTED },
        { "apertus", { "xielu.alpha_p", GGUF_ARR, LAYERS, "0.8" }, "key xielu.alpha_n is missing", NULL, ERR_FORMAT },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        add_value(&cases[i].v);
        config_refused(cases[i].arch, (const char *const[]){ cases[i].tensor, NULL }, cases[i].words, cases[i].code);
    }
}

/* Fraction of gates that layer i cuts off. */
static double share_of(const json_t *config, size_t i)
{
    return json_number_value(json_array_get(json_object_get(config, "activation_sparsity_pattern"), i));
}

/* Activation sparsity may be one number for all layers; minus infinity cuts off no gates. */
static void sparsity_of_layers(void **state)
{
    (void)state;
    static const char *const none[] = { NULL };
    static const struct { struct value v; double share; } cases[] = {
        { { "gemma3n.activation_sparsity_scale", GGUF_F32, 1.6448536, NULL }, 0.95 },
        { { "gemma3n.activation_sparsity_scale", GGUF_ARR, LAYERS, "1.6448536" }, 0.95 },
        { { "gemma3n.activation_sparsity_scale", GGUF_ARR, LAYERS, "-inf" }, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        add_value(&cases[i].v);
        json_t *c = config_of(model_file("gemma3n", KV, none));
        for (size_t l = 0; l < LAYERS; l++)
            assert_float_equal(share_of(c, l), cases[i].share, 1e-6);
        assert_int_equal(json_array_size(json_object_get(c, "activation_sparsity_pattern")), LAYERS);
        json_decref(c);
        more.f.n = more.n = 0;
    }
}

/* The gating function of a router is read for architectures that support two of them, and checked
 * for the others. */
static void functions_of_routers(void **state)
{
    (void)state;
    static const char *const sigmoid[] = { "deepseek32", "glm-dsa", "glm4moe", "dots1", "minimax-m2", "llama4",
                                           "cohere2moe", "exaone-moe", "afmoe", "mimo2", "kimi-linear", "lfm2moe",
                                           "nemotron_h_moe", "hy_v3", "bailingmoe3" },
                      *const softmax[] = { "mistral4", "llama", "qwen2moe", "qwen3moe", "olmoe", "granitemoe",
                                           "ernie4_5-moe", "hunyuan-moe", "phimoe", "granitehybrid", "jamba",
                                           "qwen3next", "qwen35moe", "gemma4", "qwen3vlmoe", "minimax-01",
                                           "qwen4exp" };
    static const char *const tensors[] = { "output.weight", "rope_freqs.weight", NULL };
    char k[64];
    for (size_t i = 0; i < sizeof sigmoid / sizeof *sigmoid; i++)
        for (int gate = 1; gate <= 5; gate++)
            if (gate != 2) {
                snprintf(k, sizeof k, "%s.expert_gating_func", sigmoid[i]);
                add_value(&(struct value){ k, GGUF_U32, gate, NULL });
                config_refused(sigmoid[i], tensors, "expected 2 (sigmoid)", ERR_UNSUPPORTED);
            }
    for (size_t i = 0; i < sizeof softmax / sizeof *softmax; i++)
        for (int gate = 2; gate <= 5; gate++) {
            snprintf(k, sizeof k, "%s.expert_gating_func", softmax[i]);
            add_value(&(struct value){ k, GGUF_U32, gate, NULL });
            config_refused(softmax[i], tensors, "expected 1 (softmax)", ERR_UNSUPPORTED);
        }
    add_value(&(struct value){ "gpt-oss.expert_gating_func", GGUF_U32, 1, NULL });
    config_refused("gpt-oss", tensors, "1 (softmax) is not supported, expected 3", ERR_UNSUPPORTED);
    static const struct { int gate; const char *hf; } deepseek[] = { { 0, "deepseek_v2" }, { 1, "deepseek_v2" },
                                                                     { 2, "deepseek_v3" } };
    for (size_t i = 0; i < sizeof deepseek / sizeof *deepseek; i++) {
        add_value(&(struct value){ "deepseek2.expert_gating_func", GGUF_U32, deepseek[i].gate, NULL });
        json_t *c = config_of(model_file("deepseek2", KV, tensors));
        assert_string_equal(json_string_value(json_object_get(c, "model_type")), deepseek[i].hf);
        json_decref(c);
        more.f.n = more.n = 0;
    }
    json_t *flash = config_of(model_file("deepseek2", KV, (const char *const[]){ "blk.1.exp_probs_b.bias", NULL }));
    assert_string_equal(json_string_value(json_object_get(flash, "model_type")), "deepseek_v3");
    json_decref(flash);
    add_value(&(struct value){ "deepseek2.expert_gating_func", GGUF_U32, 4, NULL });
    config_refused("deepseek2", tensors, "4 (square root of softplus) is not supported", ERR_UNSUPPORTED);
    add_value(&(struct value){ "qwen3moe.expert_weights_scale", GGUF_F32, 2.5, NULL });
    config_refused("qwen3moe", tensors, "expert_weights_scale: 2.5 is not supported", ERR_UNSUPPORTED);
    add_value(&(struct value){ "glm4moe.expert_weights_scale", GGUF_F32, 2.5, NULL });
    json_decref(config_of(model_file("glm4moe", KV, tensors)));
    more.f.n = more.n = 0;
}

/* A key of qwen4exp with n numbers; n 0: one, not in an array. */
struct numbers { const char *key; uint32_t elem; uint64_t n, v[6]; };

static void add_numbers(const struct numbers *l)
{
    key(&more.f, l->key, l->n ? GGUF_ARR : l->elem);
    if (l->n) {
        u32(&more.f, l->elem);
        u64(&more.f, l->n);
    }
    for (uint64_t i = 0; i < (l->n ? l->n : 1); i++)
        if (l->elem == GGUF_U64)
            u64(&more.f, l->v[i]);
        else
            u32(&more.f, (uint32_t)l->v[i]);
    more.n++;
}

/* Add the keys of qwen4exp, `instead` in place of the key `name` (NULL: all as they are). */
static void add_qwen4(const char *name, const struct numbers *instead)
{
    static const struct numbers all[] = {
        { "qwen4exp.full_attention_interval", GGUF_U32, 0, { 3 } },
        { "qwen4exp.attention.indexer.head_count", GGUF_U32, 0, { 4 } },
        { "qwen4exp.attention.indexer.key_length", GGUF_U32, 0, { 16 } },
        { "qwen4exp.attention.indexer.top_k", GGUF_U32, 0, { 24 } },
        { "qwen4exp.attention.compress_ratios", GGUF_I32, LAYERS, { 0, 0, 4, 0, 0, 4 } },
        { "qwen4exp.hyper_connection.count", GGUF_U32, 0, { 4 } },
        { "qwen4exp.hyper_connection.low_rank", GGUF_U32, 0, { 24 } },
        { "qwen4exp.embedding_length_per_layer_input", GGUF_U32, 0, { 16 } },
        { "qwen4exp.ple.layers", GGUF_I32, 1, { 1 } },
        { "qwen4exp.ple.ngram_size", GGUF_U32, 0, { 3 } },
        { "qwen4exp.ple.heads_per_ngram", GGUF_U32, 0, { 2 } },
        { "qwen4exp.ple.conv_kernel", GGUF_U32, 0, { 4 } },
        { "qwen4exp.ple.eos_token_id", GGUF_U32, 0, { 9 } },
        { "qwen4exp.ple.layer_multipliers", GGUF_U64, 3, { 4611686018427387905, 5, 7 } },
        { "qwen4exp.ple.head_vocab_sizes", GGUF_U64, 4, { 11, 13, 17, 19 } },
        { "qwen4exp.ple.head_offsets", GGUF_U64, 4, { 0, 11, 24, 41 } },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        add_numbers(name && strstr(all[i].key, name) ? instead : &all[i]);
}

static json_int_t number_of(const json_t *config, const char *name, size_t i)
{
    const json_t *v = json_object_get(config, name);
    return json_integer_value(json_is_array(v) ? json_array_get(v, i) : v);
}

/* The parameters of hashes are 64-bit numbers, which an f64 does not hold.  Keys that config.json
 * cannot express are refused. */
static void hashes_of_qwen4exp(void **state)
{
    (void)state;
    static const char *const none[] = { NULL };
    add_qwen4(NULL, NULL);
    json_t *c = config_of(model_file("qwen4exp", KV, none));
    assert_true(number_of(c, "zse_ngram_factors", 0) == 4611686018427387905 &&
                number_of(c, "zse_ngram_factors", 2) == 7 && number_of(c, "zse_ngram_rows", 3) == 19);
    assert_true(number_of(c, "zse_ngram_end", 0) == 9 && number_of(c, "ple_layer_ids", 0) == 2);
    assert_true(number_of(c, "ple_embed_dim", 0) == 64 && number_of(c, "indexer_compress_ratio", 0) == 4);
    json_decref(c);
    more.f.n = more.n = 0;
    static const struct { const char *name; struct numbers v; const char *words; enum err_code code; } cases[] = {
        { "ple.layers", { "qwen4exp.ple.layers", GGUF_I32, 2, { 1, 1 } }, "2 layers, expected 1", ERR_UNSUPPORTED },
        { "ngram_size", { "qwen4exp.unread", GGUF_U32, 0, { 3 } }, "ple.ngram_size is missing", ERR_FORMAT },
        { "multipliers", { "qwen4exp.ple.layer_multipliers", GGUF_U64, 2, { 1, 5 } }, "multipliers: expected 3 numbers",
          ERR_FORMAT },
        { "vocab_sizes", { "qwen4exp.unread", GGUF_U32, 0, { 3 } }, "vocab_sizes: expected 4 numbers", ERR_FORMAT },
        { "offsets", { "qwen4exp.ple.head_offsets", GGUF_U64, 3, { 0, 11, 24 } }, "offsets: expected 4 numbers",
          ERR_FORMAT },
        { "offsets", { "qwen4exp.ple.head_offsets", GGUF_U64, 4, { 0, 12, 24, 41 } },
          "head 1 starts at row 12, expected 11", ERR_UNSUPPORTED },
        { "ratios", { "qwen4exp.attention.compress_ratios", GGUF_I32, LAYERS, { 0, 0, 4, 0, 0, 8 } },
          "8 in layer 5, expected one number from 1 on", ERR_UNSUPPORTED },
        { "ratios", { "qwen4exp.attention.compress_ratios", GGUF_I32, LAYERS, { 0, 4, 4, 0, 0, 4 } },
          "4 in layer 1, expected 0", ERR_UNSUPPORTED },
        { "ratios", { "qwen4exp.attention.compress_ratios", GGUF_I32, LAYERS, { 0 } }, "0 in layer 2, expected one",
          ERR_UNSUPPORTED },
        { "ratios", { "qwen4exp.attention.compress_ratios", GGUF_I32, LAYERS - 1, { 0 } }, "or 6 of them", ERR_FORMAT },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        add_qwen4(cases[i].name, &cases[i].v);
        config_refused("qwen4exp", none, cases[i].words, cases[i].code);
    }
}

static int setup(void **state)
{
    (void)state;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/small.gguf", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(path);
    return rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_in_parts_are_read_as_one), cmocka_unit_test(versions_2_and_3_are_read),
        cmocka_unit_test(cut_at_every_byte), cmocka_unit_test(every_byte_changed),
        cmocka_unit_test(bad_fields_are_refused_by_name),
        cmocka_unit_test(every_architecture_becomes_a_valid_config),
        cmocka_unit_test(unknown_architectures_are_refused_by_name),
        cmocka_unit_test(tensors_say_what_keys_do_not), cmocka_unit_test(scales_beside_nvfp4),
        cmocka_unit_test(missing_and_bad_keys_are_refused_by_name), cmocka_unit_test(values_out_of_range),
        cmocka_unit_test(pooling_and_direction), cmocka_unit_test(facts_that_do_not_fit),
        cmocka_unit_test(sparsity_of_layers), cmocka_unit_test(functions_of_routers),
        cmocka_unit_test(hashes_of_qwen4exp),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
