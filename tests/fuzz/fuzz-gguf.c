/* fuzz-gguf.c - any bytes as a GGUF file: opened, its config translated and parsed, every tensor decoded. */
#include "tests/fuzz/fuzz.h"

#include "libcommon/import/gguf.h"
#include "libcommon/model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e;
    char key[33];
    struct source *s = source_open(fuzz_file(data, size), &e);
    if (!s)
        return 0;
    struct config c;
    if (s->config && config_parse(&c, s->config, &e) == 0)
        config_release(&c);
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
