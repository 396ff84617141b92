/* t-lora.c - LoRA adapters merged into a source: W + scale * B A for every form that PEFT writes,
 * against sums in double; configurations and tensors that are refused; files cut at every byte. */
#include "tests/unit/folder.h"

#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/import/lora_merge.h"
#include "libcommon/import/peft.h"

/* A tensor of a safetensors file under construction. */
struct piece { const char *name; int rows, cols; float first; };

/* The value of element i of a tensor whose first value is given. */
static float value(float first, int i) { return first + 0.25f * (float)(i % 7) - 0.5f * (float)(i % 3); }

static void put(const char *name, const void *data, size_t n)
{
    FILE *f = fopen(in_folder(name), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

/* Write a safetensors file of F32 tensors; cols 0: a vector of `rows` elements.  Its size. */
static size_t put_tensors(const char *name, const struct piece *p, int n)
{
    static char file[65536];
    char *header = file + 8;
    size_t at = 0, data = 0;
    header[at++] = '{';
    for (int i = 0; i < n; i++) {
        const size_t size = (size_t)p[i].rows * (size_t)(p[i].cols ? p[i].cols : 1) * sizeof(float);
        at += (size_t)sprintf(header + at, "%s\"%s\":{\"dtype\":\"F32\",\"shape\":[%d", i ? "," : "", p[i].name, p[i].rows);
        if (p[i].cols)
            at += (size_t)sprintf(header + at, ",%d", p[i].cols);
        at += (size_t)sprintf(header + at, "],\"data_offsets\":[%zu,%zu]}", data, data + size);
        data += size;
    }
    header[at++] = '}';
    const uint64_t length = at;
    memcpy(file, &length, sizeof length);
    float *to = (float *)(void *)(header + at);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < p[i].rows * (p[i].cols ? p[i].cols : 1); k++) {
            const float x = value(p[i].first, k);
            memcpy(to++, &x, sizeof x);
        }
    put(name, file, 8 + at + data);
    return 8 + at + data;
}

static void put_text(const char *name, const char *text) { put(name, text, strlen(text)); }

/* The base: three matrices and a table of embeddings; q and k are square, o is not. */
static void put_base(void)
{
    static const struct piece base[] = {
        { "model.embed_tokens.weight", 5, 4, 1 }, { "model.layers.0.q.weight", 4, 4, 2 },
        { "model.layers.0.k.weight", 4, 4, 3 }, { "model.layers.1.o.weight", 3, 4, 4 },
        { "lm_head.weight", 5, 4, 5 }, { "model.norm.weight", 4, 0, 6 },
    };
    mkdir(in_folder("base"), 0700);
    mkdir(in_folder("lora"), 0700);
    put_text("base/config.json", "{\"model_type\":\"llama\"}");
    put_tensors("base/model.safetensors", base, 6);
}

#define LAYER "base_model.model.model.layers."
/* q of layer 0 with rank 2, o of layer 1 with rank 1. */
static const struct piece plain[] = {
    { LAYER "0.q.lora_A.weight", 2, 4, 0.5f }, { LAYER "0.q.lora_B.weight", 4, 2, -1 },
    { LAYER "1.o.lora_A.weight", 1, 4, 2 }, { LAYER "1.o.lora_B.weight", 3, 1, 1 },
};
static const char patterns[] = "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":3,\"target_modules\":[\"q\",\"o\"],"
                               "\"rank_pattern\":{\"layers.1.o\":1},\"alpha_pattern\":{\"[op]\":5},\"use_dora\":false}";

static struct source *open_merged(int times)
{
    char lora[256];
    struct source *s = source_open(in_folder("base"), &e);
    strcpy(lora, in_folder("lora"));
    assert_non_null(s);
    for (int i = 0; i < times; i++)
        if (source_merge_lora(s, lora, &e)) {
            source_close(s);
            return NULL;
        }
    return s;
}

/* Expect the tensor to be W + scale * B A, whose sums are over B[row, k] * A[k, col]; with
 * swapped 1 over A[k, row] * B[col, k], as for tables of embeddings.  w, a and b are the arguments
 * of value() for W, A and B. */
static void expect(const struct source *s, const char *name, int rows, int cols, float w, float a, float b, int rank,
                   double scale, int swapped)
{
    const struct source_tensor *t = source_find(s, name);
    float out[64];
    assert_non_null(t);
    assert_int_equal(source_read(s, t, 0, rows, out, 1, &e), 0);
    for (int i = 0; i < rows; i++)
        for (int c = 0; c < cols; c++) {
            double sum = 0;
            for (int k = 0; k < rank; k++)
                sum += swapped ? (double)value(a, k * rows + i) * (double)value(b, c * rank + k)
                               : (double)value(b, i * rank + k) * (double)value(a, k * cols + c);
            const double want = (double)value(w, i * cols + c) + scale * sum;
            assert_true(fabs((double)out[i * cols + c] - want) <= 1e-5 * (1 + fabs(want)));
        }
}

static void merges(void **state)
{
    (void)state;
    put_base();
    put_tensors("lora/adapter_model.safetensors", plain, 4);
    put_text("lora/adapter_config.json", patterns);
    struct source *s = open_merged(1);
    assert_non_null(s);
    assert_int_equal(source_n_merged(s), 2);
    expect(s, "model.layers.0.q.weight", 4, 4, 2, 0.5f, -1, 2, 1.5, 0);
    expect(s, "model.layers.1.o.weight", 3, 4, 4, 2, 1, 1, 5, 0);
    expect(s, "model.layers.0.k.weight", 4, 4, 3, 0, 0, 0, 0, 0);
    /* rows of a joined tensor contain the change, too */
    const struct source_tensor *both = source_find(s, "model.layers.0.{k,q}.weight"), *q = source_find(s, "model.layers.0.q.weight");
    float joined[32], alone[16];
    assert_non_null(both);
    assert_int_equal(source_read(s, both, 0, 8, joined, 1, &e), 0);
    assert_int_equal(source_read(s, q, 0, 4, alone, 1, &e), 0);
    assert_memory_equal(joined + 16, alone, sizeof alone);
    source_close(s);
    /* changes add up */
    s = open_merged(2);
    expect(s, "model.layers.0.q.weight", 4, 4, 2, 0.5f, -1, 2, 3, 0);
    source_close(s);
    put_text("lora/adapter_config.json", "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":3,\"use_rslora\":true,"
             "\"target_modules\":\".*\\\\.(q|o)\",\"rank_pattern\":{\"o\":1},\"layers_to_transform\":[0,1]}");
    s = open_merged(1);
    expect(s, "model.layers.0.q.weight", 4, 4, 2, 0.5f, -1, 2, 3 / sqrt(2), 0);
    source_close(s);
}

#define SQUARE "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":2,\"target_modules\":\"all-linear\",\"fan_in_fan_out\":"
static const char in_out[] = SQUARE "true}", out_in[] = SQUARE "false}";
static void refuses(const char *message);

static void merges_tables_and_transposed(void **state)
{
    static const struct piece table[] = {
        { "base_model.model.model.embed_tokens.lora_embedding_A", 2, 5, 1 },
        { "base_model.model.model.embed_tokens.lora_embedding_B", 4, 2, 0.5f },
        { "base_model.model.lm_head.weight", 5, 4, 9 },
    }, square[] = { { LAYER "0.q.lora_A.weight", 2, 4, 2 }, { LAYER "0.q.lora_B.weight", 4, 2, 1 } },
       conv[] = { { "base_model.model.h.0.c_proj.lora_A.weight", 2, 4, 2 }, { "base_model.model.h.0.c_proj.lora_B.weight", 4, 2, 1 } },
       conv_base[] = { { "h.0.c_proj.weight", 4, 4, 3 } };
    (void)state;
    put_base();
    put_tensors("lora/adapter_model.safetensors", table, 3);
    put_text("lora/adapter_config.json", "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":2,\"target_modules\":"
             "[\"embed_tokens\"],\"modules_to_save\":[\"lm_head\"]}");
    struct source *s = open_merged(1);
    assert_non_null(s);
    expect(s, "model.embed_tokens.weight", 5, 4, 1, 1, 0.5f, 2, 1, 1);
    expect(s, "lm_head.weight", 5, 4, 9, 0, 0, 0, 0, 0);
    source_close(s);
    assert_null(open_merged(2));                /* lm_head would be replaced twice */
    /* the base decides which matrices are stored transposed, whatever fan_in_fan_out says */
    for (int wrong = 0; wrong < 2; wrong++) {
        put_base();
        put_tensors("lora/adapter_model.safetensors", square, 2);
        put_text("lora/adapter_config.json", wrong ? in_out : out_in);
        s = open_merged(1);
        assert_non_null(s);
        expect(s, "model.layers.0.q.weight", 4, 4, 2, 2, 1, 2, 1, 0);
        source_close(s);
        put_text("base/config.json", "{\"model_type\":\"gpt2\"}");
        put_tensors("base/model.safetensors", conv_base, 1);
        put_tensors("lora/adapter_model.safetensors", conv, 2);
        put_text("lora/adapter_config.json", wrong ? out_in : in_out);
        s = open_merged(1);
        assert_non_null(s);
        expect(s, "h.0.c_proj.weight", 4, 4, 3, 2, 1, 2, 1, 1);
        source_close(s);
    }
}

/* PEFT keeps copies of the embedding and the head, which must equal the base's weights. */
static void compares_copies(void **state)
{
    struct piece copy[] = {
        { "base_model.model.lm_head.lora_A.weight", 2, 4, 2 }, { "base_model.model.lm_head.lora_B.weight", 5, 2, 1 },
        { "base_model.model.lm_head.base_layer.weight", 5, 4, 5 }, { "base_model.model.model.embed_tokens.weight", 5, 4, 1 },
    };
    (void)state;
    put_base();
    put_text("lora/adapter_config.json", "{\"peft_type\":\"LORA\",\"r\":2,\"lora_alpha\":2,\"target_modules\":[\"lm_head\"]}");
    put_tensors("lora/adapter_model.safetensors", copy, 4);
    struct source *s = open_merged(2);
    assert_non_null(s);
    expect(s, "lm_head.weight", 5, 4, 5, 2, 1, 2, 2, 0);
    expect(s, "model.embed_tokens.weight", 5, 4, 1, 0, 0, 0, 0, 0);
    source_close(s);
    copy[2].first = 6;
    put_tensors("lora/adapter_model.safetensors", copy, 4);
    refuses("lm_head.base_layer.weight': differs from");
}

/* The key of a conversion (by which it is resumed) depends on the adapters. */
static void key_depends_on_adapter(void **state)
{
    char keys[3][33];
    (void)state;
    put_base();
    put_tensors("lora/adapter_model.safetensors", plain, 4);
    put_text("lora/adapter_config.json", patterns);
    for (int i = 0; i < 3; i++) {
        struct source *s = open_merged(i);
        assert_int_equal(source_key(s, keys[i], &e), 0);
        source_close(s);
    }
    assert_string_not_equal(keys[0], keys[1]);
    assert_string_not_equal(keys[1], keys[2]);
}

static void refuses(const char *message)
{
    struct source *s = open_merged(1);
    assert_null(s);
    if (!strstr(e.msg, message))
        fail_msg("'%s' does not have '%s'", e.msg, message);
}

static void refuses_configurations(void **state)
{
    static const struct { const char *more, *message; } cases[] = {
        { "\"use_dora\":true", "use_dora: adapters with it are not supported" },
        { "\"layer_replication\":[[0,1]]", "layer_replication:" }, { "\"target_parameters\":[\"x\"]", "target_parameters:" },
        { "\"some_new_key\":1", "some_new_key:" }, { "\"bias\":\"all\"", "bias:" }, { "\"r\":0", "r: 0" },
        { "\"r\":3", "rank 2, expected 3" }, { "\"lora_alpha\":\"x\"", "lora_alpha" },
        { "\"init_lora_weights\":\"pissa\"", "init_lora_weights:" }, { "\"peft_type\":\"LOHA\"", "peft_type: 'LOHA'" },
        { "\"rank_pattern\":{\"(\":1}", "rank_pattern: '(' is no regular expression" },
        { "\"rank_pattern\":{\"q\":-1}", "rank_pattern: expected numbers above 0" },
        { "\"alpha_pattern\":[1]", "alpha_pattern: expected an object" },
        { "\"target_modules\":[\"o\"]", "0.q.lora_A.weight': target_modules does not select" },
        { "\"target_modules\":[1]", "target_modules: expected" },
        { "\"target_modules\":\"((.+)+)+[^q]\"", "takes too long" },
        { "\"layers_to_transform\":1", "0.q.lora_A.weight': target_modules does not select" },
        { "\"exclude_modules\":[\"q\"]", "0.q.lora_A.weight': exclude_modules has its module" },
        { "\"exclude_modules\":\".*q\"", "exclude_modules has its module" },
        { "\"modules_to_save\":[\"lm_head\"]", "has no tensor of 'lm_head'" },
        { "\"init_lora_weights\":7", "expected a string or a boolean" },
        { "\"modules_to_save\":\"x\"", "modules_to_save: expected an array" },
    };
    char text[512];
    (void)state;
    put_base();
    put_tensors("lora/adapter_model.safetensors", plain, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char key[64];
        sscanf(cases[i].more, "%63[^:]", key);
        const char *const rest[] = { "\"peft_type\":\"LORA\"", "\"r\":2", "\"target_modules\":[\"q\"]" };
        int n = sprintf(text, "{%s", cases[i].more);
        for (int k = 0; k < 3; k++)
            if (strncmp(rest[k], key, strlen(key)) != 0)
                n += sprintf(text + n, ",%s", rest[k]);
        strcpy(text + n, "}");
        put_text("lora/adapter_config.json", text);
        refuses(cases[i].message);
    }
}

static void refuses_tensors(void **state)
{
    static const struct { struct piece p[2]; const char *message; } cases[] = {
        { { { LAYER "0.q.lora_A.weight", 2, 5, 0 }, { LAYER "0.q.lora_B.weight", 4, 2, 0 } }, "5 columns, expected 4" },
        { { { LAYER "0.q.lora_A.weight", 2, 4, 0 }, { LAYER "0.q.lora_B.weight", 3, 2, 0 } }, "3 rows, expected 4" },
        { { { LAYER "0.q.lora_A.weight", 2, 4, 0 }, { LAYER "0.q.lora_B.weight", 4, 1, 0 } }, "rank 1, expected 2" },
        { { { LAYER "7.q.lora_A.weight", 2, 4, 0 }, { LAYER "7.q.lora_B.weight", 4, 2, 0 } }, "another model" },
        { { { LAYER "0.q.lora_A.weight", 2, 4, 0 }, { LAYER "0.k.lora_B.weight", 4, 2, 0 } }, "is missing" },
        { { { LAYER "0.q.lora_A.weight", 8, 0, 0 }, { LAYER "0.q.lora_B.weight", 4, 2, 0 } }, "expected a matrix" },
        { { { LAYER "0.q.lora_magnitude_vector", 4, 0, 0 }, { LAYER "0.q.x", 4, 2, 0 } }, "is no part of" },
        { { { LAYER "0.q.weight", 4, 4, 0 }, { LAYER "0.k.weight", 4, 4, 0 } }, "is no part of" },
        { { { LAYER "0.q.lora_A.weight", 2, 4, NAN }, { LAYER "0.q.lora_B.weight", 4, 2, 0 } }, "0.q.lora_A.weight': has values" },
        { { { LAYER "0.q.lora_A.weight", 2, 4, 0 }, { LAYER "0.q.lora_B.weight", 4, 2, INFINITY } }, "0.q.lora_B.weight': has values" },
        { { { LAYER "0.q.lora_A.weight", 2, 4, 1e38f }, { LAYER "0.q.lora_B.weight", 4, 2, 9 } }, "0.q.lora_B.weight': its product" },
        { { { "q.lora_A.weight", 2, 4, 0 }, { "q.lora_B.weight", 4, 2, 0 } }, "begins with base_model.model." },
    };
    (void)state;
    put_base();
    put_text("lora/adapter_config.json", "{\"peft_type\":\"LORA\",\"r\":2,\"target_modules\":[\"q\",\"k\"]}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        put_tensors("lora/adapter_model.safetensors", cases[i].p, 2);
        refuses(cases[i].message);
    }
    unlink(in_folder("lora/adapter_model.safetensors"));
    refuses("adapter_model.safetensors");
    put_text("lora/adapter_model.bin", "");
    refuses("adapter_model.bin");
    unlink(in_folder("lora/adapter_config.json"));
    refuses("no folder of a LoRA adapter");
}

/* Names and expressions that an attacker may choose: they end soon, in little memory. */
static void bounds_names_and_patterns(void **state)
{
    static char text[200000];
    static const char head[] = "{\"peft_type\":\"LORA\",\"r\":2,\"target_modules\":[\"q\"],\"rank_pattern\":{";
    (void)state;
    put_base();
    char *longest = malloc(9000001), *header = malloc(9001000);
    assert_true(longest && header);
    memset(longest, 'x', 9000000);
    longest[9000000] = '\0';
    const int n = sprintf(header + 8, "{\"base_model.model.%s.lora_A.weight\":{\"dtype\":\"F32\",\"shape\":[0],"
                          "\"data_offsets\":[0,0]}}", longest);
    const uint64_t length = (uint64_t)n;
    memcpy(header, &length, sizeof length);
    put("lora/adapter_model.safetensors", header, 8 + (size_t)n);
    put_text("lora/adapter_config.json", "{\"peft_type\":\"LORA\",\"r\":2,\"target_modules\":[\"q\"]}");
    refuses("expected at most 1024");
    free(header);
    free(longest);
    static const struct piece braces[] = { { LAYER "0.{k,q}.lora_A.weight", 2, 4, 0 }, { LAYER "0.{k,q}.lora_B.weight", 8, 2, 0 } };
    put_tensors("lora/adapter_model.safetensors", braces, 2);
    refuses("braces");
    put_tensors("lora/adapter_model.safetensors", plain, 2);
    int at = sprintf(text, "%s\"", head);
    for (int i = 0; i < 5000; i++)
        at += sprintf(text + at, "()");
    strcpy(text + at, "\":2}}");
    put_text("lora/adapter_config.json", text);
    refuses("has too many groups");
    at = sprintf(text, "%s", head);
    for (int i = 0; i < 2500; i++)      /* each expression alone stays within the limit for one match */
        at += sprintf(text + at, "%s\"(?:[a-z_.0-9]+){8}[A-Z](?#%d)\":2", i ? "," : "", i);
    strcpy(text + at, "}}");
    put_text("lora/adapter_config.json", text);
    refuses("take too long");
    at = sprintf(text, "%s", head);
    for (int i = 0; i < 2000; i++)
        at += sprintf(text + at, "%s\"(?:ab){4000}%d\":2", i ? "," : "", i);
    strcpy(text + at, "}}");
    put_text("lora/adapter_config.json", text);
    refuses("all patterns together are too large");
}

/* Modules are in the order of their own names, each once. */
static void orders_modules(void **state)
{
    static const struct piece names[] = {
        { LAYER "0.q-b.lora_A.weight", 2, 4, 0 }, { LAYER "0.q-b.lora_B.weight", 4, 2, 0 },
        { LAYER "0.q.lora_A.weight", 2, 4, 0 }, { LAYER "0.q.lora_B.weight", 4, 2, 0 },
    }, both[] = {
        { LAYER "0.q.lora_A.weight", 2, 4, 0 }, { LAYER "0.q.lora_B.weight", 4, 2, 0 },
        { LAYER "0.q.lora_embedding_A", 2, 4, 0 }, { LAYER "0.q.lora_embedding_B", 4, 2, 0 },
    };
    (void)state;
    put_base();
    put_tensors("lora/adapter_model.safetensors", names, 4);
    put_text("lora/adapter_config.json", out_in);
    struct peft *p = peft_open(in_folder("lora"), NULL, &e);
    assert_non_null(p);
    assert_int_equal(p->n_modules, 2);
    assert_string_equal(p->modules[0].name, "model.layers.0.q");
    assert_string_equal(p->modules[1].name, "model.layers.0.q-b");
    peft_close(p, NULL);
    put_tensors("lora/adapter_model.safetensors", both, 4);
    refuses("changes 'model.layers.0.q' in two ways");
}

static void refuses_cut_files(void **state)
{
    (void)state;
    put_base();
    const size_t n = put_tensors("lora/adapter_model.safetensors", plain, 4);
    put_text("lora/adapter_config.json", patterns);
    for (size_t cut = n; cut-- > 0;) {
        assert_int_equal(truncate(in_folder("lora/adapter_model.safetensors"), (off_t)cut), 0);
        refuses("adapter_model.safetensors");
    }
    put_tensors("lora/adapter_model.safetensors", plain, 4);
    for (size_t cut = sizeof patterns - 1; cut-- > 0;) {
        assert_int_equal(truncate(in_folder("lora/adapter_config.json"), (off_t)cut), 0);
        refuses("adapter_config.json");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(merges), IN_FOLDER(merges_tables_and_transposed), IN_FOLDER(key_depends_on_adapter),
        IN_FOLDER(refuses_configurations), IN_FOLDER(refuses_tensors), IN_FOLDER(refuses_cut_files),
        IN_FOLDER(bounds_names_and_patterns), IN_FOLDER(compares_copies), IN_FOLDER(orders_modules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
