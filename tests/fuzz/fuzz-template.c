/* fuzz-template.c - any bytes as a template, rendered with some variables under tight limits; a
 * part of the input serves as variables too.  build: scripts/fuzz template */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "libcommon/base/utf8.h"
#include "libcommon/template/template.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char variables[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", \"content\": \"h\\u00e9llo <b>\\n w\\u00f6rld\"},"
    " {\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1, \"y\": [1.5, null, true]}}}]}],"
    " \"tools\": null, \"l\": [3, 1, 2], \"d\": {\"b\": 1, \"a\": \"2\"}, \"s\": \"a,b c\", \"n\": 7, \"f\": 2.5, \"add_generation_prompt\": true}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct tmpl_limits limits = { .max_output = 1 << 16, .max_steps = 20000, .max_depth = 50 };
    struct err e = { .msg = "" };
    struct tmpl *t = tmpl_parse((const char *)data, size, "fuzz", &e);
    if (!t) {
        if (!e.msg[0])
            abort();                                    /* a refusal without a message */
        return 0;
    }
    json_t *vars = json_loads(variables, 0, NULL), *raw = json_stringn((const char *)data, size);
    if (raw)
        json_object_set_new(vars, "raw", raw);
    char *out = NULL, *again = NULL;
    size_t n = 0, m = 0;
    int r = tmpl_render(t, vars, 1795262400, &limits, &out, &n, &e);
    if (r == 0 && (utf8_valid(out, n) != n || out[n] || n > limits.max_output))
        abort();
    if (r < 0 && !e.msg[0])
        abort();
    if (tmpl_render(t, vars, 1795262400, &limits, &again, &m, &e) != r || (r == 0 && (n != m || memcmp(out, again, n))))
        abort();                                        /* rendering has changed the template or its
                                                         * variables */
    free(out);
    free(again);
    json_decref(vars);
    tmpl_free(t);
    return 0;
}
