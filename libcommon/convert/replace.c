/* replace.c - check that an output file may be replaced.  An empty file and a .zse made from the
 * same source may be replaced, any other file only if the caller allows it. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/json.h"
#include "libcommon/convert/internal.h"
#include "libcommon/format/zfile.h"

static const char *text_of(const json_t *o, const char *key)
{
    const char *s = json_string_value(js_get(o, key));
    return s ? s : "";
}

/* Whether a .zse with this provenance was made from the conversion's source; -1 with *e. */
static int is_same_source(const struct conversion *cv, const json_t *provenance, struct err *e)
{
    char key[33];
    if (cv->o->synthetic)
        return strcmp(text_of(provenance, "source_format"), "random") == 0 &&
               strcmp(text_of(provenance, "source"), cv->source->path) == 0;
    if (source_key(cv->source, key, e))
        return -1;
    return strcmp(text_of(provenance, "source_key"), key) == 0;
}

int conversion_check_replaced(const struct conversion *cv, struct err *e)
{
    const char *path = cv->o->output;
    struct stat s;
    struct err ignored;
    char what[200] = "not a .zse that this version reads";
    if (cv->o->overwrite || stat(path, &s) != 0 || s.st_size == 0)
        return 0;
    struct zfile *z = zfile_open(path, &ignored);
    const json_t *json = z ? zfile_json(z) : NULL, *provenance = js_get(json, "provenance");
    const int same = z ? is_same_source(cv, provenance, e) : 0;
    if (same == 0 && z)
        snprintf(what, sizeof what, "%.60s, made of another source%s, %.80s",
                 text_of(js_get(json, "quantization"), "type"),
                 cv->o->n_lora || js_get(provenance, "merged_lora") ? " or with other adapters" : "",
                 text_of(provenance, "source"));
    zfile_close(z);
    if (same != 0)
        return same < 0 ? -1 : 0;
    if (cv->o->replace && cv->o->replace(cv->o->replace_user, path, what))
        return 0;
    return err_set(e, ERR_IO, "%s: exists (%s); it is only replaced with --force", path, what);
}
