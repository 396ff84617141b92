/* convert_plan.c - zse-convert --plan: what a model would take as each type, which of them fits here, and how fast it would be.  Nothing is read but its configuration. */
#include <stdio.h>
#include <stdlib.h>

#include "cmd/cli.h"
#include "cmd/convert.h"
#include "cmd/planning.h"
#include "cmd/preflight.h"
#include "libcommon/hw/memory.h"

static const char prog[] = "zse-convert";
enum { CONTEXT = 4096, PROMPT = 512 };
static const int cards[] = { 4, 8, 16, 24 };           /* GB of usual GPUs */
enum { N_CARDS = sizeof cards / sizeof *cards };

struct sizes {
    struct planned p;
    struct plan_weights w[PLANNED_TYPES];
    struct plan_choice c[PLANNED_TYPES];
    double prefill[PLANNED_TYPES];
    int exact, best;
    struct memory memory;
};

/* Rates are measured for each type's own number formats, at the model's own width. */
static int predict(struct sizes *s, int n_threads, const char *kernels, struct err *e)
{
    struct plan_weights all = { 0 };
    struct plan_rates rates;
    for (int i = 0; i < PLANNED_TYPES; i++)
        for (int t = 0; t < PLAN_QTYPES; t++)
            all.by_type[t] += s->w[i].by_type[t];
    if (planned_rates(&rates, &all, &s->p.shape, n_threads, kernels, e) != 0)
        return -1;
    for (int i = 0; i < PLANNED_TYPES; i++) {
        s->prefill[i] = plan_prefill(&s->p.shape, &s->w[i], &rates, PROMPT);
        s->c[i].decode = plan_decode(&s->p.shape, &s->w[i], &rates, KV_F16, PROMPT);
    }
    return 0;
}

static int sum_up(struct sizes *s, const char *name, const json_t *config, enum plan_mode mode, int n_threads, const char *kernels, struct err *e)
{
    if (planned_open(&s->p, name, config, e) != 0 || memory_read(&s->memory, preflight_root(), e) != 0)
        return -1;
    for (int i = 0; i < PLANNED_TYPES; i++) {
        if (planned_weights(&s->p, name, config, planned_types[i], &s->w[i], &s->exact, e) != 0)
            return -1;
        s->c[i] = (struct plan_choice){ .type = planned_types[i], .bytes = planned_bytes(&s->p, &s->w[i], CONTEXT) };
    }
    if (predict(s, n_threads, kernels, e) != 0)
        return -1;
    s->best = plan_choose(s->c, PLANNED_TYPES, mode, memory_now(&s->memory));
    return 0;
}

static const char *choice_for(const struct sizes *s, double gb)
{
    const int i = plan_choose(s->c, PLANNED_TYPES, PLAN_AUTO, (uint64_t)(gb * 1e9));
    return i < 0 ? NULL : s->c[i].type;
}

static void print_json(const struct sizes *s, const char *name, enum plan_mode mode)
{
    json_t *types = json_array(), *gpus = json_object();
    char key[16];
    for (int i = 0; i < PLANNED_TYPES; i++)
        json_array_append_new(types, json_pack("{s:s, s:I, s:I, s:b, s:f, s:f}", "type", s->c[i].type, "weight_bytes", (json_int_t)s->w[i].bytes, "bytes",
                                               (json_int_t)s->c[i].bytes, "fits", s->c[i].bytes <= plan_usable(memory_now(&s->memory)), "prefill_tokens_per_s", s->prefill[i],
                                               "decode_tokens_per_s", s->c[i].decode));
    for (int i = 0; i < N_CARDS; i++) {
        const char *type = choice_for(s, cards[i]);
        snprintf(key, sizeof key, "%dGB", cards[i]);
        json_object_set_new(gpus, key, type ? json_string(type) : json_null());
    }
    json_t *j = json_pack("{s:s, s:I, s:b, s:b, s:I, s:s, s:s?, s:O, s:O}", "model", name, "parameters", (json_int_t)s->p.params.total, "supported", s->p.supported, "exact",
                          s->exact, "available_bytes", (json_int_t)memory_now(&s->memory), "mode", plan_mode_name(mode), "choice", s->best < 0 ? NULL : s->c[s->best].type, "types",
                          types, "gpus", gpus);
    cli_json(j);
    json_decref(j);
    json_decref(types);
    json_decref(gpus);
}

static void print_text(const struct sizes *s, const char *name, enum plan_mode mode)
{
    char size[CLI_BYTES];
    printf("%s: %.2f billion parameters%s%s; %s available here\n%-6s %12s %12s %6s %10s %18s\n", name, (double)s->p.params.total / 1e9,
           s->p.supported ? "" : ", does not run here: ", s->p.why_not, cli_bytes(size, memory_now(&s->memory)), "type", "weights GB", "to run GB", "fits", "prefill", "decode tokens/s");
    for (int i = 0; i < PLANNED_TYPES; i++)
        printf("%-6s %12.2f %12.2f %6s %10.1f %18.2f%s\n", s->c[i].type, (double)s->w[i].bytes / 1e9, (double)s->c[i].bytes / 1e9,
               s->c[i].bytes <= plan_usable(memory_now(&s->memory)) ? "yes" : "no", s->prefill[i], s->c[i].decode, i == s->best ? "  <" : "");
    if (s->best >= 0)
        printf("%s: -q %s\n", plan_mode_name(mode), s->c[s->best].type);
    else
        printf("nothing of this fits here\n");
    printf("memories of");
    for (int i = 0; i < N_CARDS; i++)
        printf("%s %d GB: %s", i ? ";" : "", cards[i], choice_for(s, cards[i]) ? choice_for(s, cards[i]) : "too little");
    printf("\n");
}

int convert_plan(const char *source, int mode, int n_threads, const char *kernels, int json)
{
    struct err e;
    struct sizes *s = calloc(1, sizeof *s);
    char *title = NULL;
    json_t *config = s ? planned_config(source, &title, &e) : NULL;
    int rc = !s ? err_nomem(&e, source) : config ? sum_up(s, title, config, (enum plan_mode)mode, n_threads, kernels, &e) : -1, best = s ? s->best : -1;
    if (rc == 0)
        (json ? print_json : print_text)(s, title, (enum plan_mode)mode);
    if (s)
        planned_close(&s->p);
    json_decref(config);
    free(title);
    free(s);
    if (rc != 0)
        return cli_fail(prog, &e);
    rc = cli_finish(prog);
    return rc ? rc : best < 0 ? CLI_FAILED : CLI_OK;
}
