/* convert_report.c - print the result of a conversion: tensors, types, exactness, time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "cmd/zse-convert.h"
#include "libcommon/quant/ggml.h"

static const char *const efforts[] = { "fast", "good", "best" };

const char *convert_type_label(struct convert_type t)
{
    switch (t.kind) {
    case CONVERT_KEEP:  return "keep";
    case CONVERT_MIXED: return "mixed";
    case CONVERT_FIT:   return "fit";
    default:            return qtype_info(t.qtype)->option;
    }
}

static const char *source_name(int type)
{
    const struct ggml_type_info *t = ggml_type_info(type);
    if (type < 0)
        return "random";
    return t ? t->name : "?";
}

/* ---- pairs of source type and our type ---- */

struct pair {
    int source, exact, tensors;
    enum qtype type;
    double max_error, worst_rel;
    uint64_t bytes, source_bytes;
};

/* Count the matrices by pair of types; vectors (norms and biases) are always f32 and left out.  The
 * caller frees *out; without memory there are no pairs. */
static int pairs_of(const struct convert_report *r, struct pair **out)
{
    struct pair *pairs = *out = calloc((size_t)r->n_tensors + 1, sizeof *pairs);
    int n = 0;
    for (int i = 0; pairs && i < r->n_tensors; i++) {
        const struct convert_tensor *t = &r->tensors[i];
        int k = 0;
        if (t->vector)
            continue;
        while (k < n && (pairs[k].source != t->source_type || pairs[k].type != t->type))
            k++;
        if (k == n)
            pairs[n++] = (struct pair){ .source = t->source_type, .type = t->type, .exact = 1 };
        struct pair *p = &pairs[k];
        p->tensors++;
        p->exact &= t->exact;
        p->max_error = t->max_error > p->max_error ? t->max_error : p->max_error;
        p->worst_rel = t->rel_error > p->worst_rel ? t->rel_error : p->worst_rel;
        p->bytes += t->bytes;
        p->source_bytes += t->source_bytes;
    }
    return n;
}

void convert_warn_inexact(const char *prog, const struct convert_report *r)
{
    struct pair *pairs;
    if (r->type.kind != CONVERT_KEEP)
        return;             /* the user chose a type */
    int n = pairs_of(r, &pairs);
    for (int i = 0; i < n; i++) {
        const struct qtype_info *t = qtype_info(pairs[i].type);
        int to_float = t->is_float && pairs[i].source != GGML_F32;
        int rounded_floats = pairs[i].source == GGML_F32 || pairs[i].source == GGML_F16 ||
                             pairs[i].source == GGML_BF16 || pairs[i].source == GGML_F64;
        if (pairs[i].exact || to_float || rounded_floats)
            continue;           /* rounding floats is expected */
        cli_note(prog, "warning: %s to %s is not exact: %d tensor%s, largest error %.3g (%.2g of the weights' size)",
                 source_name(pairs[i].source), t->name, pairs[i].tensors, plural(pairs[i].tensors), pairs[i].max_error,
                 pairs[i].worst_rel);
    }
    free(pairs);
}

/* ---- JSON ---- */

static json_t *tensor_json(const struct convert_tensor *t)
{
    json_t *j = json_pack("{s:s,s:s,s:s,s:s,s:[I,I],s:I,s:I,s:b,s:f,s:f}", "name", t->name, "source", t->source_name,
                          "source_type", source_name(t->source_type), "type", qtype_info(t->type)->name, "shape",
                          (json_int_t)t->rows, (json_int_t)t->cols, "bytes", (json_int_t)t->bytes, "source_bytes",
                          (json_int_t)t->source_bytes, "exact", t->exact, "max_error", t->max_error, "relative_error",
                          t->rel_error);
    if (j && t->group_size) {
        json_object_set_new(j, "group_size", json_integer(t->group_size));
        json_object_set_new(j, "activation_group", json_integer(t->act_group));
    }
    return j;
}

void convert_print_json(const struct convert_options *o, const struct convert_report *r, int tensors)
{
    struct pair *pairs;
    int n = pairs_of(r, &pairs);
    json_t *list = json_array();
    json_t *j = json_pack("{s:s,s:s,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:f,s:f,s:i,s:i,s:i,s:i}", "source", o->source,
                          "output", o->output ? o->output : "", "architecture", r->arch, "type",
                          convert_type_label(r->type), "quality", efforts[r->effort], "parameters",
                          (json_int_t)r->n_params, "source_bytes", (json_int_t)r->bytes_in, "weight_bytes",
                          (json_int_t)r->weight_bytes, "heads_bytes", (json_int_t)r->heads_bytes, "file_bytes", (json_int_t)r->file_bytes,
                          "calibration_memory_bytes", (json_int_t)r->private_bytes, "calibration_file_bytes",
                          (json_int_t)r->scratch_bytes, "seconds", r->seconds, "calibration_seconds",
                          r->calibration_seconds, "calibration_tokens", r->n_calibration_tokens,
                          "inexact_tensors", r->n_inexact, "requantized_tensors", r->n_requantized, "damped_matrices",
                          r->n_damped);
    for (int i = 0; i < n; i++)
        json_array_append_new(list, json_pack("{s:s,s:s,s:i,s:b,s:f,s:I,s:I}", "source_type",
                                              source_name(pairs[i].source), "type", qtype_info(pairs[i].type)->name,
                                              "tensors", pairs[i].tensors, "exact", pairs[i].exact, "max_error",
                                              pairs[i].max_error, "bytes", (json_int_t)pairs[i].bytes, "source_bytes",
                                              (json_int_t)pairs[i].source_bytes));
    json_object_set_new(j, "types", list);
    free(pairs);
    if (tensors) {
        json_t *all = json_array();
        for (int i = 0; i < r->n_tensors; i++)
            json_array_append_new(all, tensor_json(&r->tensors[i]));
        json_object_set_new(j, "tensors", all);
    }
    cli_json(j);
    json_decref(j);
}

/* ---- text ---- */

void convert_print_text(const struct convert_options *o, const struct convert_report *r, int tensors)
{
    char in[CLI_BYTES], out[CLI_BYTES], time[CLI_BYTES], heads[CLI_BYTES];
    struct pair *pairs;
    int n = pairs_of(r, &pairs);
    for (int i = 0; tensors && i < r->n_tensors; i++) {
        const struct convert_tensor *t = &r->tensors[i];
        printf("%-36s %-7s %-6s %8lld x %-7lld %s\n", t->name, source_name(t->source_type), qtype_info(t->type)->name,
               (long long)t->rows, (long long)t->cols, t->exact ? "exact" : "");
    }
    printf("%s: %s, %.1f M parameters, %s of weights", o->output ? o->output : o->source, r->arch,
           (double)r->n_params / 1e6, cli_bytes(out, r->weight_bytes));
    printf(" from %s (%s%s%s), %s%s%s%s%s\n", o->synthetic ? "nothing" : cli_bytes(in, r->bytes_in),
           convert_type_label(r->type), r->n_calibration_tokens ? ", " : "",
           r->n_calibration_tokens ? efforts[r->effort] : "", cli_duration(time, r->seconds), r->heads_bytes ? "; " : "",
           r->heads_bytes ? r->heads_kind : "", r->heads_bytes ? " heads: " : "",
           r->heads_bytes ? cli_bytes(heads, r->heads_bytes) : "");
    for (int i = 0; i < n; i++)
        printf("  %-8s to %-6s %4d %-8s  %9s%s\n", source_name(pairs[i].source), qtype_info(pairs[i].type)->name,
               pairs[i].tensors, pairs[i].tensors == 1 ? "matrix" : "matrices", cli_bytes(out, pairs[i].bytes),
               pairs[i].source < 0 ? "" : pairs[i].exact ? "  exact" : o->output ? "  rounded" : "");
    free(pairs);
}
