/* info_text.c - print the description of info_model.c as text. */
#include "cmd/zse-info.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cmd/cli.h"
#include "libcommon/base/json.h"

static int64_t int_of(const json_t *o, const char *key) { return json_integer_value(json_object_get(o, key)); }

static const char *string_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));
    return s ? s : "";
}

static void shape_text(const json_t *tensor, char *out, size_t room)
{
    const json_t *shape = json_object_get(tensor, "shape");
    size_t n = 0;
    *out = '\0';
    for (size_t i = 0; i < json_array_size(shape) && n < room; i++)
        n += (size_t)snprintf(out + n, room - n, "%s%" JSON_INTEGER_FORMAT, i ? " x " : "",
                              json_integer_value(json_array_get(shape, i)));
}

static void count_text(double n, char *out, size_t room)
{
    static const char *const words[] = { "", " thousand", " million", " billion", " trillion" };
    int i = 0;
    while (i < 4 && n >= 999.95)
        n /= 1000, i++;
    snprintf(out, room, "%.*f%s", i && n < 9.995 ? 2 : i && n < 99.95 ? 1 : 0, n, words[i]);
}

static void line(const char *label, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void line(const char *label, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    printf("%-15s ", label);
    vprintf(fmt, ap);
    putchar('\n');
    va_end(ap);
}

static void print_numbers(const json_t *d)
{
    line("layers", "%" PRId64, int_of(d, "num_hidden_layers"));
    line("hidden size", "%" PRId64 ", MLP %" PRId64, int_of(d, "hidden_size"), int_of(d, "intermediate_size"));
    line("heads", "%" PRId64 " of %" PRId64 ", %" PRId64 " for keys and values (%s)", int_of(d, "num_attention_heads"),
         int_of(d, "head_dim"), int_of(d, "num_key_value_heads"), string_of(d, "attention_type"));
    if (int_of(d, "sliding_window_layers"))
        line("sliding window", "in %" PRId64 " layer%s", int_of(d, "sliding_window_layers"),
             plural(int_of(d, "sliding_window_layers")));
    const json_t *theta = js_get(d, "rope_theta");
    if (theta)
        line("context", "%" PRId64 " tokens, RoPE theta %g", int_of(d, "max_position_embeddings"),
             json_number_value(theta));
    else
        line("context", "%" PRId64 " tokens", int_of(d, "max_position_embeddings"));
}

/* Print the bytes of each type: "nl4 70.3 MB, i8 16.9 MB". */
static void print_types(const json_t *memory)
{
    const json_t *types = json_object_get(memory, "by_type");
    const char *type, *between = "";
    json_t *row;
    char b[CLI_BYTES];
    printf("%-15s %s", "weights", cli_bytes_both(b, (uint64_t)int_of(memory, "weights_bytes")));
    json_object_foreach((json_t *)types, type, row) {
        printf("%s%s %s", *between ? between : ": ", type, cli_bytes(b, (uint64_t)int_of(row, "bytes")));
        between = ", ";
    }
    putchar('\n');
}

/* Print the strings of a list, separated by "+". */
static void print_list(const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        printf("%s%s", i ? "+" : "", json_string_value(json_array_get(list, i)));
}

/* Print the strings, lists of strings and numbers of an object on one line: "type nl4, effort
 * good". */
static void print_facts(const char *label, const json_t *o)
{
    const char *key, *between = "";
    json_t *v;
    if (!json_is_object(o) || !json_object_size(o))
        return;
    printf("%-15s ", label);
    json_object_foreach((json_t *)o, key, v) {
        if (json_is_string(v))
            printf("%s%s %s", between, key, json_string_value(v));
        else if (json_is_integer(v))
            printf("%s%s %" JSON_INTEGER_FORMAT, between, key, json_integer_value(v));
        else if (json_is_number(v))
            printf("%s%s %g", between, key, json_number_value(v));
        else if (json_is_boolean(v))
            printf("%s%s %s", between, key, json_is_true(v) ? "yes" : "no");
        else if (json_is_string(json_array_get(v, 0))) {
            printf("%s%s ", between, key);
            print_list(v);
        } else
            continue;
        between = ", ";
    }
    putchar('\n');
}

static void print_overview(const json_t *d)
{
    const char *kind = string_of(d, "kind");
    const json_t *m = json_object_get(d, "memory");
    char b[CLI_BYTES], n[64];
    if (strcmp(kind, "zse") == 0)
        line("format", "ZSE %s", string_of(d, "version"));
    else if (strcmp(kind, "gguf") == 0)
        line("format", "GGUF %" PRId64 ", %" PRId64 " key%s", int_of(d, "version"), int_of(d, "metadata_keys"),
             plural(int_of(d, "metadata_keys")));
    else
        line("format", "%s", strcmp(kind, "folder") == 0 ? "Hugging Face folder" : strcmp(kind, "config") == 0
             ? "config.json only" : "tokenizer only");
    if (int_of(m, "file_bytes"))
        line("file size", "%s", cli_bytes_both(b, (uint64_t)int_of(m, "file_bytes")));
    if (*string_of(d, "name"))
        line("name", "%s", string_of(d, "name"));
    if (*string_of(d, "architecture"))
        line("architecture", "%s%s%s%s", string_of(d, "architecture"), *string_of(d, "model_type") ? " (" : "",
             string_of(d, "model_type"), *string_of(d, "model_type") ? ")" : "");
    const json_t *vectors = js_get(d, "embedding");
    if (json_is_true(js_get(vectors, "scores")))
        line("makes", "scores of pairs of texts: a reranker");
    else if (vectors)
        line("makes", "vectors of texts: an embedding model, %" PRId64 " dimensions, pooling %s",
             int_of(vectors, "dimensions"), string_of(vectors, "pooling"));
    if (js_get(d, "unsupported_reason"))
        line("not supported", "%s", string_of(d, "unsupported_reason"));
    if (int_of(d, "parameters")) {
        count_text((double)int_of(d, "parameters"), n, sizeof n);
        line("parameters", "%s (%" PRId64 ")", n, int_of(d, "parameters"));
    }
    if (js_get(d, "hidden_size"))
        print_numbers(d);
    if (js_get(d, "vocab_size"))
        line("vocabulary", "%" PRId64 " token%s", int_of(d, "vocab_size"), plural(int_of(d, "vocab_size")));
    if (int_of(m, "weights_bytes"))
        print_types(m);
    else
        line("weights", "none");
    if (int_of(d, "mtp_bytes"))
        line("predictor", "a layer of %s predicts a further token: --spec mtp",
             cli_bytes_both(b, (uint64_t)int_of(d, "mtp_bytes")));
    const json_t *heads = js_get(d, "medusa"), *eagle = js_get(d, "eagle"), *kv = js_get(m, "kv_bytes_per_token");
    if (js_get(heads, "unsupported_reason"))
        line("Medusa heads", "not supported: %s", string_of(heads, "unsupported_reason"));
    else if (heads)
        line("Medusa heads", "%" PRId64 ", %s of int8: --spec medusa", int_of(heads, "heads"),
             cli_bytes_both(b, (uint64_t)int_of(heads, "bytes")));
    if (js_get(eagle, "unsupported_reason"))
        line("EAGLE heads", "not supported: %s", string_of(eagle, "unsupported_reason"));
    else if (eagle)
        line("EAGLE heads", "EAGLE%s, %s of int8: --spec eagle", int_of(eagle, "version") == 3 ? "-3" : "",
             cli_bytes_both(b, (uint64_t)int_of(eagle, "bytes")));
    if (kv) {
        printf("%-15s %s a token in f16, ", "KV cache", cli_bytes(b, (uint64_t)int_of(kv, "f16")));
        printf("%s for the whole context\n", cli_bytes_both(b, (uint64_t)int_of(m, "kv_bytes_full_context_f16")));
        if (int_of(m, "state_bytes_per_sequence"))
            line("recurrent state", "%s a sequence, in %" PRId64 " of the layers",
                 cli_bytes_both(b, (uint64_t)int_of(m, "state_bytes_per_sequence")),
                 int_of(d, "recurrent_layers"));
    }
    print_facts("quantization", json_object_get(d, "quantization"));
    if (js_get(d, "tokenizer_size"))
        line("tokenizer", "%s, ready to use", cli_bytes(b, (uint64_t)int_of(d, "tokenizer_size")));
    if (js_get(d, "chat_template"))
        line("chat template", "%s", json_is_true(json_object_get(d, "chat_template")) ? "yes" : "no");
    if (json_array_size(json_object_get(d, "originals"))) {
        printf("%-15s", "original files");
        for (size_t i = 0; i < json_array_size(json_object_get(d, "originals")); i++)
            printf("%s%s", i ? ", " : " ", json_string_value(json_array_get(json_object_get(d, "originals"), i)));
        putchar('\n');
    }
    print_facts("provenance", json_object_get(d, "provenance"));
    if (json_is_string(json_object_get(d, "license")))
        line("licence", "%s", string_of(d, "license"));
    print_facts("quality", json_object_get(d, "quality"));
}

static void print_tensors(const json_t *d)
{
    const json_t *t;
    size_t i;
    char shape[96];
    printf("%-40s %-8s %-20s %14s  %s\n", "tensor", "type", "shape", "bytes", "source");
    json_array_foreach(json_object_get(d, "tensors"), i, t) {
        shape_text(t, shape, sizeof shape);
        const char *from = string_of(t, "source_type"), *grid = !*from
            ? "" : json_is_true(json_object_get(t, "grid_kept")) ? ": grid kept" : ": rounded anew";
        printf("%-40s %-8s %-20s %14" PRId64 "%s%s%s%s%s\n", string_of(t, "name"), string_of(t, "type"), shape,
               int_of(t, "size_bytes"), *string_of(t, "source_name") ? "  " : "", string_of(t, "source_name"),
               *from ? "  " : "", from, grid);
    }
}

static void print_layers(const json_t *d)
{
    const json_t *g;
    size_t i;
    char b[CLI_BYTES], name[48];
    printf("%-12s %8s %16s %16s  %s\n", "group", "tensors", "offset", "bytes", "");
    json_array_foreach(json_object_get(d, "layer_groups"), i, g) {
        if (int_of(g, "layer_idx") >= 0)
            snprintf(name, sizeof name, "%s %" PRId64, string_of(g, "kind"), int_of(g, "layer_idx"));
        else
            snprintf(name, sizeof name, "%s", string_of(g, "kind"));
        printf("%-12s %8zu ", name, json_array_size(json_object_get(g, "tensor_names")));
        if (js_get(g, "offset"))
            printf("%16" PRId64, int_of(g, "offset"));
        else
            printf("%16s", "-");
        printf(" %16" PRId64 "  %s\n", int_of(g, "size_bytes"), cli_bytes_both(b, (uint64_t)int_of(g, "size_bytes")));
    }
}

static void print_table(const char *title, const json_t *table)
{
    const char *key;
    json_t *row;
    char b[CLI_BYTES];
    printf("%-12s %8s %16s %16s  %6s\n", title, "tensors", "parameters", "bytes", "bits");
    json_object_foreach((json_t *)table, key, row) {
        int64_t n = int_of(row, "parameters");
        printf("%-12s %8" PRId64 " %16" PRId64 " %16" PRId64 "  %6.2f  %s\n", key, int_of(row, "tensors"), n,
               int_of(row, "bytes"), n ? 8.0 * (double)int_of(row, "bytes") / (double)n : 0.0,
               cli_bytes_both(b, (uint64_t)int_of(row, "bytes")));
    }
}

static void print_memory(const json_t *d)
{
    const json_t *m = json_object_get(d, "memory"), *kv = js_get(m, "kv_bytes_per_token");
    char b[CLI_BYTES];
    print_table("type", json_object_get(m, "by_type"));
    putchar('\n');
    print_table("role", json_object_get(m, "by_role"));
    putchar('\n');
    line("weights", "%16" PRId64 "  %s", int_of(m, "weights_bytes"),
         cli_bytes_both(b, (uint64_t)int_of(m, "weights_bytes")));
    line("everything else", "%16" PRId64 "  %s", int_of(m, "other_bytes"),
         cli_bytes_both(b, (uint64_t)int_of(m, "other_bytes")));
    line("file", "%16" PRId64 "  %s", int_of(m, "file_bytes"), cli_bytes_both(b, (uint64_t)int_of(m, "file_bytes")));
    if (!kv)
        return;
    for (int i = 0; i < KV_TYPES; i++) {
        const char *type = kv_type_name((enum kv_type)i);
        char label[32];
        if (!json_object_get(kv, type))
            continue;
        snprintf(label, sizeof label, "KV %s", type);
        line(label, "%16" PRId64 "  bytes a token", int_of(kv, type));
    }
    if (int_of(m, "state_bytes_per_sequence"))
        line("recurrent state", "%16" PRId64 "  bytes a sequence, and a snapshot",
             int_of(m, "state_bytes_per_sequence"));
    line("KV f16, full", "%16" PRId64 "  %s for %" PRId64 " tokens", int_of(m, "kv_bytes_full_context_f16"),
         cli_bytes_both(b, (uint64_t)int_of(m, "kv_bytes_full_context_f16")), int_of(d, "max_position_embeddings"));
}

static void print_layout(const json_t *d)
{
    const json_t *t;
    size_t i;
    printf("%16s %16s  %s\n", "offset", "bytes", "tensor");
    json_array_foreach(json_object_get(d, "tensors"), i, t) {
        if (js_get(t, "shard"))
            printf("%3" PRId64 ":", int_of(t, "shard"));
        printf("%*" PRId64 " %16" PRId64 "  %s\n", js_get(t, "shard") ? 12 : 16, int_of(t, "offset"),
               int_of(t, "size_bytes"), string_of(t, "name"));
    }
    if (js_get(d, "tokenizer_offset"))
        printf("%16" PRId64 " %16" PRId64 "  [tokenizer]\n", int_of(d, "tokenizer_offset"),
               int_of(d, "tokenizer_size"));
}

void info_print(const json_t *d, unsigned parts)
{
    static const struct { unsigned part; void (*print)(const json_t *); } table[] = {
        { INFO_TENSORS, print_tensors }, { INFO_LAYERS, print_layers }, { INFO_MEMORY, print_memory },
            { INFO_LAYOUT, print_layout },
    };
    const char *between = "";
    if (!parts)
        print_overview(d);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (parts & table[i].part) {
            fputs(between, stdout);
            table[i].print(d);
            between = "\n";
        }
}
