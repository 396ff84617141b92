/* fuzz-jsonpath.c - the first line as a path, the rest as a JSON text; the whole as the arguments
 * of each built-in tool.  build: scripts/fuzz jsonpath */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/tools/native.h"
#include "libcommon/tools/json_path.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void get(const char *text, size_t size)
{
    const char *end = memchr(text, '\n', size);
    struct err e = { .msg = "" };
    char path[400];
    if (!end || (size_t)(end - text) >= sizeof path)
        return;
    memcpy(path, text, (size_t)(end - text));
    path[end - text] = '\0';
    json_t *v = js_parse("json", end + 1, size - (size_t)(end - text) - 1, &e), *found;
    if (v && !(found = json_path_get(v, path, &e)) && !e.msg[0])
        abort();
    if (v)
        json_decref(found);
    json_decref(v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct native_env env = { "/usr/share/zoneinfo", 1795456331 };
    struct err e;
    get((const char *)data, size);
    json_t *v = js_parse("arguments", data, size, &e);
    for (int i = 0; v && i < n_native_tools; i++) {
        struct err why = { .msg = "" };
        char *out = native_run(&native_tools[i], &env, v, &why);
        if (!out && !why.msg[0])
            abort();
        free(out);
    }
    json_decref(v);
    return 0;
}
