/* hardware_models.c - zse-hardware recommend and capacity: compare the models of the registry with
 * the memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "cmd/zse-hardware.h"
#include "cmd/planning.h"

static const char prog[] = "zse-hardware";
enum { CONTEXT = 4096, PROMPT = 512 };
/* memory: bytes to plan for; beside: bytes of another memory, for the layers that do not fit into
 * the first (0: none). */
struct budget_room { uint64_t memory, beside; };

/* The memory to plan for: given with --vram, or available to this process. */
static int find_memory(const struct hardware_options *o, struct machine *m, uint64_t *memory, const char **what,
                       struct err *e)
{
    if (machine_probe(m, o->root, e) != 0)
        return -1;
    *memory = o->vram ? o->vram : memory_now(&m->memory);
    *what = o->vram ? "given" : m->memory.limit && m->memory.left < m->memory.available ? "control group" : "memory";
    return 0;
}

/* The number of layers that fit on a device, with their keys and values and its workspace, if the
 * machine's memory has the other layers; 0: the model does not fit. */
static int device_layers(const struct planned *p, const struct plan_weights *w, int context,
                         const struct budget_room *r)
{
    const int n = p->shape.n_layers;
    const uint64_t all = planned_bytes(p, w, context, 1), workspace = planned_workspace(p),
                   outside = w->bytes - w->layer_bytes * (uint64_t)n;
    const uint64_t each = (all - workspace - outside) / (uint64_t)n, usable = plan_usable(r->memory);
    int layers = usable > workspace ? plan_times((double)(usable - workspace), (double)each) : 0;
    layers = layers < n ? layers : n - 1;
    return all + workspace - (uint64_t)layers * each <= plan_usable(r->beside) ? layers : 0;
}

/* The choice for one model; NULL if nothing fits, if it does not run here, or (*failed) with a
 * message in *e.  With r->beside, a model that does not fit in one memory may be divided between
 * both. */
static json_t *choose(const json_t *m, const struct hardware_options *o, const struct budget_room *r,
                      const struct plan_rates *rates, int *failed, struct err *e)
{
    const json_t *config = json_object_get(m, "config");
    const char *id = json_string_value(json_object_get(m, "id"));
    const int context = o->context ? o->context : CONTEXT;
    struct planned p;
    struct plan_weights w[PLANNED_TYPES];
    struct plan_choice c[PLANNED_TYPES] = { { 0 } };
    int exact = 0;
    *failed = planned_open(&p, id, config, e) != 0;
    for (int i = 0; i < PLANNED_TYPES && !*failed; i++) {
        *failed = planned_weights(&p, id, config, planned_type(i), &w[i], &exact, e) != 0;
        c[i] = (struct plan_choice){ .type = planned_type(i), 
                                      .bytes = planned_bytes(&p, &w[i], context, r->beside > 0) };
        c[i].decode = rates ? plan_decode(&p.shape, &w[i], rates, kv_both(KV_F16), PROMPT) : 0;
    }
    int best = *failed || (!p.supported && !o->all)
                   ? -1 : plan_choose(c, PLANNED_TYPES, (enum plan_mode)o->mode, r->memory), layers = 0;
    const int whole = best >= 0;
    for (int i = 0; i < PLANNED_TYPES && !whole && !*failed && r->beside; i++)
        c[i].decode = 0;                /* speed with a GPU is not predicted */
    if (!*failed && !whole && r->beside && (p.supported || o->all)) {
        best = plan_choose(c, PLANNED_TYPES, (enum plan_mode)o->mode, r->memory + r->beside);
        if (best >= 0 && !(layers = device_layers(&p, &w[best], context, r)))
            best = -1;
    }
    if (best < 0) {
        planned_close(&p);
        return NULL;
    }
    const double prefill = rates && whole ? plan_prefill(&p.shape, &w[best], rates, PROMPT) : 0;
    json_t *j = json_pack("{s:s, s:O, s:I, s:s, s:I, s:I, s:o, s:o, s:O, s:b}", "model_id", id, "name",
                          json_object_get(m, "name"), "parameters", (json_int_t)p.params.total, "type",
                          c[best].type, "weight_bytes", (json_int_t)w[best].bytes, "bytes", (json_int_t)c[best].bytes,
                          "prefill_tokens_per_s", prefill > 0 ? json_real(prefill) : json_null(), "decode_tokens_per_s",
                          c[best].decode > 0 ? json_real(c[best].decode) : json_null(), "recommended",
                          json_object_get(m, "recommended"), "supported", p.supported);
    if (!whole)
        json_object_update_new(j, json_pack("{s:i, s:i}", "gpu_layers", layers, "layers", p.shape.n_layers));
    planned_close(&p);
    return j;
}

static void print_choice(const json_t *c)
{
    printf("%-30s %7.2f  %-5s %9.2f", json_string_value(json_object_get(c, "name")),
           json_number_value(json_object_get(c, "parameters")) / 1e9, json_string_value(json_object_get(c, "type")),
           json_number_value(json_object_get(c, "bytes")) / 1e9);
    if (json_is_real(json_object_get(c, "decode_tokens_per_s")))
        printf(" %9.0f %9.1f", json_real_value(json_object_get(c, "prefill_tokens_per_s")),
               json_real_value(json_object_get(c, "decode_tokens_per_s")));
    if (json_object_get(c, "gpu_layers"))
        printf("  %lld of %lld layers on the GPU", (long long)json_integer_value(json_object_get(c, "gpu_layers")),
               (long long)json_integer_value(json_object_get(c, "layers")));
    printf("%s%s\n", json_is_true(json_object_get(c, "recommended")) ? "  recommended" : "",
           json_is_true(json_object_get(c, "supported")) ? "" : "  (does not run here)");
}

static void print_choices(const struct hardware_options *o, const json_t *all, const json_t *hybrid,
                          const struct budget_room *r, const char *what, int speed, int one_only)
{
    char size[CLI_BYTES];
    size_t i;
    const json_t *one;
    printf("%s (%s), a tenth of it left free; mode %s, context %d\n", cli_bytes_both(size, r->memory), what,
           plan_mode_name((enum plan_mode)o->mode), o->context ? o->context : CONTEXT);
    printf("%-30s %7s  %-5s %9s%s\n", "name", "params", "type", "GB", speed ? "  prefill    decode tokens/s" : "");
    json_array_foreach(all, i, one)
        print_choice(one);
    if (json_array_size(all) == 0)
        printf("%s\n", one_only ? "does not fit" : "nothing fits");
    if (json_array_size(hybrid) == 0)
        return;
    printf("hybrid, with %s of this machine's memory beside it:\n", cli_bytes_both(size, r->beside));
    json_array_foreach(hybrid, i, one)
        print_choice(one);
}

static int recommend(const struct hardware_options *o, json_t *registry, struct err *e)
{
    struct machine m;
    struct plan_rates rates = { 0 };
    struct budget_room r = { 0 };
    const char *what;
    json_t *all = json_array(), *hybrid = json_array(), *one;
    const json_t *only = NULL;
    size_t i;
    const int speed = !o->no_speed && !o->root;
    if (!registry || find_memory(o, &m, &r.memory, &what, e) != 0 ||
        (o->model && !(only = registry_find(registry, o->model, e))) ||
        (speed && planned_rates(&rates, NULL, NULL, o->threads, NULL, e) != 0)) {
        json_decref(all);
        json_decref(hybrid);
        return -1;
    }
    r.beside = o->vram ? memory_now(&m.memory) : 0;
    int failed = 0;
    json_array_foreach(registry, i, one) {
        json_t *c = failed || (only && only != one) ? NULL : choose(one, o, &r, speed ? &rates : NULL, &failed, e);
        if (c)
            json_array_append_new(json_object_get(c, "gpu_layers") ? hybrid : all, c);
    }
    if (!failed && o->json) {
        json_t *j = json_pack("{s:I, s:s, s:s, s:i, s:O, s:O}", "memory_bytes", (json_int_t)r.memory, "memory_is", what,
                              "mode", plan_mode_name((enum plan_mode)o->mode), "context",
                              o->context ? o->context : CONTEXT, "models", all, "hybrid", hybrid);
        cli_json(j);
        json_decref(j);
    } else if (!failed) {
        print_choices(o, all, hybrid, &r, what, speed, only != NULL);
    }
    json_decref(all);
    json_decref(hybrid);
    return failed ? -1 : 0;
}

int hardware_recommend(const struct hardware_options *o)
{
    struct err e;
    json_t *registry = registry_load(&e);
    const int rc = recommend(o, registry, &e);
    json_decref(registry);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}

/* ---- capacity ---- */

struct candidate { char *model, *title; const char *type; double bytes; };

/* "7B:int4" */
static int parse_item(struct candidate *t, const char *text, int context, int on_gpu, struct err *e)
{
    const char *colon = strrchr(text, ':');
    struct planned p = { 0 };
    struct plan_weights w;
    int exact;
    if (!(t->model = colon ? strndup(text, (size_t)(colon - text)) : strdup(text)))
        return err_nomem(e, text);
    t->type = colon ? colon + 1 : "nl4";
    json_t *config = planned_config(t->model, &t->title, e);
    int rc = config ? planned_open(&p, t->title, config, e) : -1;
    if (rc == 0 && (rc = planned_weights(&p, t->title, config, t->type, &w, &exact, e)) == 0)
        t->bytes = (double)planned_bytes(&p, &w, context, on_gpu);
    planned_close(&p);
    json_decref(config);
    return rc;
}

static void report(const struct hardware_options *o, uint64_t memory, const struct candidate *items, int n)
{
    json_t *rows = json_array();
    double together = 0;
    int smallest = 0;
    for (int i = 0; i < n; i++) {
        together += items[i].bytes;
        smallest = items[i].bytes < items[smallest].bytes ? i : smallest;
        json_array_append_new(rows, json_pack("{s:s, s:s, s:f, s:i}", "model", items[i].title, "type", items[i].type,
                                              "bytes", items[i].bytes, "alone",
                                              plan_times((double)memory, items[i].bytes)));
    }
    const int fits = together <= (double)memory,
              more = fits ? plan_times((double)memory - together, items[smallest].bytes) : 0;
    const double used = together + more * items[smallest].bytes;
    if (o->json) {
        json_t *j = json_pack("{s:I, s:O, s:{s:b, s:f, s:i, s:s}}", "memory_bytes", (json_int_t)memory, "models", rows,
                              "together", "fits", fits, "bytes", fits ? used : together, "more", more, "of",
                              items[smallest].title);
        cli_json(j);
        json_decref(j);
    } else {
        char size[CLI_BYTES];
        printf("in %s:\n", cli_bytes_both(size, memory));
        for (int i = 0; i < n; i++)
            printf("%4d x %s as %s, %.2f GB each, %.1f GB\n", plan_times((double)memory, items[i].bytes),
                   items[i].title, items[i].type, items[i].bytes / 1e9,
                   plan_times((double)memory, items[i].bytes) * items[i].bytes / 1e9);
        if (n > 1 && fits)
            printf("or one of each and %d more of %s, %.1f GB\n", more, items[smallest].title, used / 1e9);
        else if (n > 1)
            printf("one of each take %.1f GB: too much\n", together / 1e9);
    }
    json_decref(rows);
}

int hardware_capacity(const struct hardware_options *o)
{
    struct machine m;
    struct err e;
    uint64_t memory;
    const char *what;
    struct candidate *items = calloc((size_t)o->n_names, sizeof *items);
    int rc = items ? find_memory(o, &m, &memory, &what, &e) : err_nomem(&e, "models");
    for (int i = 0; i < o->n_names && rc == 0; i++)
        rc = parse_item(&items[i], o->names[i], o->context ? o->context : CONTEXT, o->vram > 0, &e);
    if (rc == 0)
        report(o, memory, items, o->n_names);
    for (int i = 0; items && i < o->n_names; i++) {
        free(items[i].model);
        free(items[i].title);
    }
    free(items);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}
