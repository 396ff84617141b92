/* fuzz-config.c - any text as config.json: normalized, and parsed by the model layer. */
#include "tests/fuzz/fuzz.h"

#include "libcommon/base/json.h"
#include "libcommon/import/hf_config.h"
#include "libcommon/model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e;
    struct config c;
    json_t *j = js_parse("config.json", data, size, &e), *n = j ? hf_config_normalize(j, &e) : NULL;
    if (n && config_parse(&c, n, &e) == 0)
        config_release(&c);
    json_decref(n);
    json_decref(j);
    return 0;
}
