/* hardware_budget.c - zse-hardware budget: print the memory of each GPU of a pipeline. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "cmd/zse-hardware.h"
#include "cmd/planning.h"
#include "libcommon/plan/budget.h"

static const char prog[] = "zse-hardware";
enum { EXPERT_GROUP = 128 };            /* number of weights that share a bf16 scale */
static const double MIB = 1048576;

/* Parse the number of layers of each GPU, such as "20,21,20", or only the number of GPUs.  0, or
 * the exit code after a message. */
static int parse_ranks(const char *text, int n_layers, struct budget_options *b)
{
    char *end;
    for (const char *p = text;; p = end + 1) {
        const long n = strtol(p, &end, 10);
        if (end == p || n < 1 || n > 65536 || (*end && *end != ',') || b->n_ranks == BUDGET_RANKS)
            return cli_wrong(prog, "--pp: '%s', expected layers of each GPU, like 20,21,20, or a number of GPUs", text);
        b->layers[b->n_ranks++] = (int)n;
        if (!*end)
            break;
    }
    if (strchr(text, ','))
        return 0;
    b->n_ranks = b->layers[0];
    if (b->n_ranks > n_layers || b->n_ranks > BUDGET_RANKS)
        return cli_wrong(prog, "--pp: %d GPU%s for %d layer%s", b->n_ranks, plural(b->n_ranks), n_layers,
                         plural(n_layers));
    budget_partition(n_layers, b->n_ranks, b->layers);
    return 0;
}

/* Parse the options of budget.  0, or the exit code after a message. */
static int parse(const struct hardware_options *o, const struct plan_shape *s, struct budget_options *b)
{
    const char *quant = o->quant ? o->quant : "int8", *kv = o->kv ? o->kv : "fp8";
    *b = (struct budget_options){ .headroom_bytes = o->headroom_mb * MIB, .context = o->context,
                                  .divisor = o->divisor };
    b->linear_bytes = strcmp(quant, "bf16") == 0 ? 2 : strcmp(quant, "int8") == 0 ? 1 : strcmp(quant, "int4") == 0
                          ? 0.5 : 0;
    if (b->linear_bytes == 0)
        return cli_wrong(prog, "--quant: '%s', expected bf16, int8 or int4", quant);
    b->kv_element_bytes = strcmp(kv, "bf16") == 0 ? 2 : strcmp(kv, "fp8") == 0;
    if (b->kv_element_bytes == 0)
        return cli_wrong(prog, "--kv: '%s', expected fp8 or bf16", kv);
    if (o->experts) {
        const int bits = strcmp(o->experts, "int4") == 0 ? 4 : strcmp(o->experts, "int8") == 0 ? 8 : 0;
        if (bits == 0 || s->n_experts == 0)
            return cli_wrong(prog, "--experts: %s", bits ? "this model has none" : "expected int4 or int8");
        b->expert_bytes = budget_expert_bytes(s, bits, EXPERT_GROUP);
    }
    b->rank_bytes = o->vram_mb * MIB;
    if (b->rank_bytes == 0) {
        struct machine_gpu gpu[MACHINE_GPUS];
        char why[160];
        const int n = machine_gpus(gpu, MACHINE_GPUS, why);
        for (int i = 0; i < n; i++)
            b->rank_bytes = b->rank_bytes == 0 ||
                            (double)gpu[i].free < b->rank_bytes ? (double)gpu[i].free : b->rank_bytes;
        if (n == 0)
            return cli_wrong(prog, "budget: the size of a GPU is not known: give --vram-mb (%s)", why);
    }
    b->rank_bytes *= o->fraction;
    return o->pp ? parse_ranks(o->pp, s->n_layers, b) : 0;
}

static json_t *rank_json(const struct budget_rank *r)
{
    return json_pack("{s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "first_layer",
                     r->first_layer, "layers", r->n_layers, "attention_mb", r->attention / MIB,
                     "dense_mlp_mb", r->dense_mlp / MIB, "shared_mlp_mb", r->shared_mlp / MIB, "router_norms_mb",
                     r->router_norms / MIB, "embedding_mb", r->embedding / MIB, "lm_head_mb", r->head / MIB,
                     "weights_mb", r->weights / MIB, "experts_mb", r->experts / MIB, "states_mb", r->states / MIB,
                     "free_mb", r->free / MIB, "kv_bytes_per_token", r->kv_token, "tokens", r->tokens);
}

static void print_summary(const char *name, const struct budget *b, const struct budget_options *o)
{
    fprintf(stderr, "%s: %d GPU%s of %.0f MiB, %.0f MiB left free\n%5s %7s %10s %10s %10s %12s\n", name, b->n_ranks,
            b->n_ranks == 1 ? "" : "s", o->rank_bytes / MIB, o->headroom_bytes / MIB, "rank", "layers", "weights",
            "experts", "free MiB", "tokens");
    for (int i = 0; i < b->n_ranks; i++)
        fprintf(stderr, "%5d %7d %10.0f %10.0f %10.0f %12.0f%s\n", i, b->rank[i].n_layers, b->rank[i].weights / MIB,
                b->rank[i].experts / MIB, b->rank[i].free / MIB, b->rank[i].tokens, i == b->bottleneck &&
                b->n_ranks > 1 ? "  least" : "");
    fprintf(stderr, "context %.0f tokens\n", b->context);
}

int hardware_budget(const struct hardware_options *o)
{
    struct planned p = { 0 };
    struct budget_options bo;
    struct budget b;
    struct err e;
    char *title;
    json_t *config = planned_config(o->names[0], &title, &e), *ranks = json_array();
    int rc = config ? planned_open(&p, title, config, &e) : -1, code = rc == 0 ? parse(o, &p.shape, &bo) : 0;
    json_decref(config);
    if (rc == 0 && code == 0 && (rc = budget_make(&b, &p.shape, &bo, &e)) == 0) {
        if (o->max_tokens > 0 && o->max_tokens < b.tokens)
            b.tokens = o->max_tokens;
        if (b.context > b.tokens)
            b.context = b.tokens;
        if (!o->quiet)
            print_summary(title, &b, &bo);
        for (int i = 0; i < b.n_ranks; i++)
            json_array_append_new(ranks, rank_json(&b.rank[i]));
        json_t *j = json_pack("{s:s, s:f, s:f, s:f, s:I, s:I, s:i, s:b, s:O}", "model", title, "vram_mb",
                              bo.rank_bytes / MIB, "headroom_mb", o->headroom_mb, "mem_fraction_static",
                              b.fraction * o->fraction, "max_total_tokens", (json_int_t)b.tokens, "context_length",
                              (json_int_t)b.context, "bottleneck", b.bottleneck, "fits", b.tokens >= 1, "ranks", ranks);
        cli_json(j);
        json_decref(j);
    }
    planned_close(&p);
    json_decref(ranks);
    free(title);
    if (code)
        return code;
    if (rc != 0)
        return cli_fail(prog, &e);
    const int finished = cli_finish(prog);
    return b.tokens >= 1 ? finished : CLI_FAILED;
}
