/* convert_plan.c - zse-convert --plan: compare the size and speed of a model as each type, and mark
 * those that fit here.  Only its configuration is read. */
#include <stdio.h>
#include <stdlib.h>

#include "cmd/cli.h"
#include "cmd/zse-convert.h"
#include "cmd/planning.h"
#include "cmd/preflight_convert.h"
#include "libcommon/hw/memory.h"

static const char prog[] = "zse-convert";
enum { CONTEXT = 4096 };
static const int cards[] = { 4, 8, 16, 24 };           /* GB of common GPUs */
enum { N_CARDS = sizeof cards / sizeof *cards };

struct sizes {
    struct planned_choices t;
    const struct planned_mode *mode;
    int best;
    uint64_t available;
};

static int sum_up(struct sizes *s, const char *name, const json_t *config, const struct convert_options *o,
                  struct err *e)
{
    struct memory m;
    struct err none;
    if (memory_read(&m, preflight_root(), e) != 0)
        return -1;
    const struct planned_query ask = { .name = name, .config = config, .context = CONTEXT, .measure = 1,
                                     .n_threads = o->n_threads, .kernels = o->kernels };
    if (planned_compare(&s->t, &ask, e) != 0)
        return -1;
    s->available = s->mode->memory ? s->mode->memory : memory_now(&m);
    s->best = planned_choose(&s->t, name, s->mode, s->available, &none);
    return 0;
}

static const char *choice_for(const struct sizes *s, double gb)
{
    const int i = plan_choose(s->t.c, s->t.n, PLAN_FOR_VRAM, (uint64_t)(gb * 1e9));
    return i < 0 ? NULL : s->t.c[i].type;
}

static void print_json(const struct sizes *s, const char *name)
{
    json_t *types = json_array(), *gpus = json_object();
    char key[16];
    for (int i = 0; i < s->t.n; i++)
        json_array_append_new(types, json_pack("{s:s, s:I, s:I, s:b, s:f, s:f}", "type", s->t.c[i].type, "weight_bytes",
                                               (json_int_t)s->t.w[i].bytes, "bytes", (json_int_t)s->t.c[i].bytes,
                                               "fits", s->t.c[i].bytes <= plan_usable(s->available),
                                               "prefill_tokens_per_s", s->t.c[i].prefill, "decode_tokens_per_s",
                                               s->t.c[i].decode));
    for (int i = 0; i < N_CARDS; i++) {
        const char *type = choice_for(s, cards[i]);
        snprintf(key, sizeof key, "%dGB", cards[i]);
        json_object_set_new(gpus, key, type ? json_string(type) : json_null());
    }
    json_t *j = json_pack("{s:s, s:I, s:b, s:b, s:I, s:s, s:s?, s:O, s:O}", "model", name, "parameters",
                          (json_int_t)s->t.p.params.total, "supported", s->t.p.supported, "exact",
                          s->t.exact, "available_bytes", (json_int_t)s->available, "mode",
                          plan_mode_name(s->mode->mode), "choice", s->best < 0 ? NULL : s->t.c[s->best].type, "types",
                          types, "gpus", gpus);
    cli_json(j);
    json_decref(j);
    json_decref(types);
    json_decref(gpus);
}

static void print_text(const struct sizes *s, const char *name)
{
    char size[CLI_BYTES];
    printf("%s: %.2f billion parameters%s%s; %s available here\n%-6s %12s %12s %6s %10s %18s\n", name,
           (double)s->t.p.params.total / 1e9, s->t.p.supported ? "" : ", does not run here: ", s->t.p.why_not,
           cli_bytes(size, s->available), "type", "weights GB", "to run GB", "fits", "prefill", "decode tokens/s");
    for (int i = 0; i < s->t.n; i++)
        printf("%-6s %12.2f %12.2f %6s %10.1f %18.2f%s\n", s->t.c[i].type, (double)s->t.w[i].bytes / 1e9,
               (double)s->t.c[i].bytes / 1e9, s->t.c[i].bytes <= plan_usable(s->available) ? "yes" : "no",
               s->t.c[i].prefill, s->t.c[i].decode, i == s->best ? "  <" : "");
    if (s->best >= 0)
        printf("%s: -q %s\n", plan_mode_name(s->mode->mode), s->t.c[s->best].type);
    else
        printf("none of these fits here\n");
    printf("GPUs of");
    for (int i = 0; i < N_CARDS; i++)
        printf("%s %d GB: %s", i ? ";" : "", cards[i],
               choice_for(s, cards[i]) ? choice_for(s, cards[i]) : "too little");
    printf("\n");
}

int convert_plan(const struct convert_options *o, const struct planned_mode *mode, int json)
{
    struct err e;
    struct sizes *s = calloc(1, sizeof *s);
    char *title = NULL;
    json_t *config = s ? planned_config(o->source, &title, &e) : NULL;
    if (s)
        s->mode = mode;
    int rc = !s ? err_nomem(&e, o->source) : config ? sum_up(s, title, config, o, &e) : -1, best = s ? s->best : -1;
    if (rc == 0)
        (json ? print_json : print_text)(s, title);
    if (s)
        planned_choices_close(&s->t);
    json_decref(config);
    free(title);
    free(s);
    if (rc != 0)
        return cli_fail(prog, &e);
    rc = cli_finish(prog);
    return rc ? rc : best < 0 ? CLI_FAILED : CLI_OK;
}
