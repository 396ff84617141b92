/* unopened.c - plan for a model that is not converted or not downloaded yet. */
#include "cmd/unopened.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "cmd/cli.h"
#include "cmd/home.h"
#include "cmd/hub_cli.h"
#include "libcommon/base/json.h"
#include "libcommon/import/hf_config.h"
#include "libcommon/import/packed.h"
#include "libcommon/import/source.h"

/* The type to which -q keep converts a source that is not quantized; NULL with *e. */
static const char *kept_type(const char *name, const json_t *config, int quantized, struct err *e)
{
    const char *dtype = json_string_value(js_get(config, "dtype"));
    if (quantized) {
        err_set(e, ERR_UNSUPPORTED, "%s: is quantized: its size is only known after a download (zse-info models fetch), or with -q TYPE", name);
        return NULL;
    }
    return !dtype || strcmp(dtype, "bfloat16") == 0 ? "bf16" : strcmp(dtype, "float16") == 0 ? "f16"
        : strcmp(dtype, "float32") == 0 ? "f32" : "bf16";
}

/* Plan from the tensors of a folder or file. */
static int find_here(struct unopened *u, const char *prog, const char *path, const struct run_options *r, struct err *e)
{
    struct source *s;
    if (!(u->type = open_model_type(prog, path, r, u->name, e)) || !(s = source_open(path, e)))
        return -1;
    int rc = !s->config || !s->n_tensors ? err_set(e, ERR_UNSUPPORTED, "%s has no weights, expected a .zse, a GGUF file or a Hugging Face folder", path)
                                         : config_parse(&u->config, s->config, e);
    source_close(s);
    if (rc != 0)
        return -1;
    return planned_of(&u->planned, &u->config, e) == 0 &&
           planned_source(&u->planned, path, u->type, &u->w, e) == 0 ? 1 : -1;
}

/* Refuse a model that is one file: only its bytes tell its size, and a config.json beside it may
 * belong to another model. */
static int check_kind(const struct hub_name *name, const char *arg, int type_given, struct err *e)
{
    const size_t n = strlen(name->pick);
    const int is_zse = n > 4 && strcasecmp(name->pick + n - 4, ".zse") == 0;
    const int rc = type_given && !is_zse ? 1 : *name->pick ? 0 : hub_has_safetensors(name, e);
    return rc ? rc : err_set(e, ERR_UNSUPPORTED, "%s: is a GGUF or .zse file: its size is only known after a download (zse-info models fetch)%s", arg, is_zse ? "" : ", or with -q TYPE");
}

/* Plan from the configuration on the hub, and for -q keep from the list of its files. */
static int find_there(struct unopened *u, const struct hub_name *name, const struct run_options *r, struct err *e)
{
    int exact;
    json_t *raw = hub_config(name, e), *config = raw ? hf_config_normalize(raw, e) : NULL;
    const int quantized = packed_config_take(config);
    int rc = config ? config_parse(&u->config, config, e) : -1;
    if (rc == 0 && r->mode.given)
        rc = err_set(e, ERR_UNSUPPORTED, "%s: --mode with --plan needs the model here; zse-convert %s --plan compares types from its configuration", u->name, u->name);
    if (rc == 0 && (u->type = open_model_given_type(r)) && strcmp(u->type, "keep") == 0)
        u->type = NULL;
    if (rc == 0 && check_kind(name, u->name, u->type != NULL, e) < 0)
        rc = -1;
    if (rc == 0 && !u->type && !(u->type = kept_type(u->name, config, quantized, e)))
        rc = -1;
    if (rc == 0)
        rc = planned_of(&u->planned, &u->config, e);
    if (rc == 0)
        rc = planned_weights(&u->planned, u->name, config, u->type, &u->w, &exact, e);
    json_decref(config);
    json_decref(raw);
    return rc == 0 ? 1 : -1;
}

int unopened_find(struct unopened *u, const char *prog, const char *path, const struct run_options *r, struct err *e)
{
    struct hub_name name;
    char *found;
    *u = (struct unopened){ 0 };
    u->name = home_model_named(path);
    if (r->gpu || !u->name)
        return 0;
    int rc = hub_is_name(u->name, &name, &found, e);
    if (rc == 1 && !(found = hub_cached(&name)))
        rc = find_there(u, &name, r, e);
    else if (rc >= 0) {
        const enum source_kind kind = source_detect(found, e);
        rc = kind == SOURCE_NONE ? -1 : kind == SOURCE_ZSE ? 0 : find_here(u, prog, found, r, e);
    }
    free(found);
    if (rc == 1 && r->ctx && !r->window && u->config.max_len > 0 && r->ctx > u->config.max_len)
        rc = err_set(e, ERR_LIMIT, "--ctx %d: %s was made for at most %d tokens", r->ctx, u->name, u->config.max_len);
    if (rc != 1)
        unopened_release(u);
    return rc;
}

void unopened_release(struct unopened *u)
{
    planned_close(&u->planned);
    config_release(&u->config);
}
