/* fuzz-gguf.c - any bytes as a GGUF file: opened, its config translated and parsed, its tensors
 * looked up as the architecture has them (experts, layers with a state), every tensor decoded. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "libcommon/import/gguf.h"
#include "libcommon/model/model.h"

static int shape(void *user, const char *name, int *n_dims, int64_t dim[4])
{
    const struct source_tensor *t = source_find(user, name);
    if (!t)
        return -1;
    *n_dims = t->n_dims;
    memcpy(dim, t->dim, (size_t)t->n_dims * sizeof *dim);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e;
    char key[33];
    struct source *s = source_open(fuzz_file(data, size), &e);
    if (!s)
        return 0;
    struct config c;
    if (s->config && config_parse(&c, s->config, &e) == 0) {
        const struct weight_source w = { .shape = shape, .user = s };
        struct weight_spec *specs;
        int n;
        if (weight_specs(&c, &w, &specs, &n, &e) == 0)
            free(specs);
        config_release(&c);
    }
    source_key(s, key, &e);
    for (int i = 0; i < s->n_tensors; i++) {
        const struct source_tensor *t = &s->tensors[i];
        int64_t cols = t->dim[t->n_dims - 1];
        float *row = malloc((size_t)(cols ? cols : 1) * sizeof *row);
        if (cols)
            source_read(s, t, 0, t->size != 0, row, 1, &e);
        free(row);
    }
    source_close(s);
    return 0;
}
