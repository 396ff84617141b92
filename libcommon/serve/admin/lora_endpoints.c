/* lora_endpoints.c - POST /v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM has them. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/serve/internal.h"
#include "libcommon/serve/model_paths.h"
#include "libcommon/serve/named.h"

/* Check the name of an adapter: a word without spaces. */
static int check_name(const char *name, struct problem *pr)
{
    const size_t n = name ? strlen(name) : 0;
    size_t i = 0;
    while (i < n && (unsigned char)name[i] > ' ' && name[i] != 0x7f)
        i++;
    if (!name)
        return problem_set(pr, 400, "lora_name", "missing", "lora_name: missing");
    if (adapter_name_fault(name))
        return problem_set(pr, 400, "lora_name", "invalid_value", "lora_name: %s", adapter_name_fault(name));
    return n > 0 && i == n && n < STORE_NAME_BYTES ? 0
        : problem_set(pr, 400, "lora_name", "invalid_value",
                      "lora_name: expected 1 to %d bytes without spaces and control characters", STORE_NAME_BYTES - 1);
}

/* Check that no model, and no adapter of another model, has the name. */
static int check_unused(struct server *s, const struct loaded_model *lm, const char *name, struct problem *pr)
{
    char found[STORE_NAME_BYTES];
    struct problem ignored;
    const char *base = models_adapted(s, name);
    const char *evicted = models_left(s, name);
    int used = strcmp(name, "default") == 0 || named_find(s, name, found, &ignored) == 0 ||
               (evicted && strcmp(evicted, name) == 0) ||
               (base && strcmp(base, lm->id) != 0);
    for (const struct loaded_model *o = s->models; o; o = o->next)
        used |= strcmp(o->id, name) == 0;
    return used ? problem_set(pr, 400, "lora_name", "adapter_exists", "lora_name: '%.80s' names another model", name) : 0;
}

/* Find the model that gets the adapter: the one of this id, else that of --lora, else the first. */
static struct loaded_model *find_base(struct server *s, const struct conn *c, const struct params *p,
                                      struct problem *pr)
{
    struct loaded_model *lm = models_find(s, p->model ? p->model : s->o.adapted, pr);
    if (!lm)
        return NULL;
    if (guard_model(conn_record(c), lm->id, pr) != 0 || guard_model(conn_record(c), p->lora_name, pr) != 0)
        return NULL;
    if (!s->o.opener.bind) {
        problem_set(pr, 400, "model", "unsupported", "this server takes no adapters");
        return NULL;
    }
    return lm;
}

void handle_lora_load(struct server *s, struct conn *c, const char *rest)
{
    struct params p = { 0 };
    struct problem pr;
    json_t *body = read_body(s, c, BODY_LORA_LOAD, &p);
    (void)rest;
    if (!body)
        return;
    char *folder = check_name(p.lora_name, &pr) == 0 ? lora_path_allowed(s, p.lora_path, &pr) : NULL;
    struct loaded_model *lm = folder ? find_base(s, c, &p, &pr) : NULL;
    if (!lm || check_unused(s, lm, p.lora_name, &pr) != 0 ||
        adapters_load(lm, c, p.lora_name, folder, p.load_inplace, &pr) != 0)
        reply_problem(s, c, &pr);
    free(folder);
    json_decref(body);
}

/* Find the model that has an adapter of this name, which the key may use.  NULL with *pr. */
static struct loaded_model *find_owner(struct server *s, const struct conn *c, const char *name, int *number,
                                       struct problem *pr)
{
    for (struct loaded_model *lm = s->models; lm; lm = lm->next)
        if ((*number = models_lora(lm, name)) != 0)
            return guard_model(conn_record(c), lm->id, pr) == 0 && guard_model(conn_record(c), name, pr) == 0 ? lm
                                                                                                              : NULL;
    problem_set(pr, 404, "lora_name", "adapter_not_found", "lora_name: no adapter '%.80s' is loaded", name);
    return NULL;
}

void handle_lora_unload(struct server *s, struct conn *c, const char *rest)
{
    struct params p = { 0 };
    struct problem pr;
    struct buf text = { 0 };
    int number;
    json_t *body = read_body(s, c, BODY_LORA_UNLOAD, &p);
    (void)rest;
    if (!body)
        return;
    struct loaded_model *lm = check_name(p.lora_name, &pr) == 0 ? find_owner(s, c, p.lora_name, &number, &pr) : NULL;
    if (lm) {
        adapters_unload(lm, number);
        buf_printf(&text, "Success: LoRA adapter '%s' removed successfully.", p.lora_name);
        reply_text(s, c, &text);
    } else {
        reply_problem(s, c, &pr);
    }
    buf_release(&text);
    json_decref(body);
}
