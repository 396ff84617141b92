/* fuzz-safetensors.c - any bytes as a safetensors file: its index is refused or lies inside the
 * file; and as a checkpoint quantized in one of seven ways, whose matrices are assembled and
 * read. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "libcommon/import/packed.h"
#include "libcommon/import/safetensors.h"

static const char *const configs[] = {
    "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":4}",
    "{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":2}",
    ("{\"quant_method\":\"compressed-tensors\",\"config_groups\":{\"a\":{\"weights\":{\"num_bits\":4,\"strategy\":\"group\",\"group_size\":32}},"
    "\"b\":{\"weights\":{\"num_bits\":8,\"strategy\":\"channel\",\"symmetric\":false}},\"c\":{\"weights\":{\"type\":\"float\"}}}}"),
    "{\"quant_method\":\"fp8\",\"weight_block_size\":[2,4]}",
    "{\"quant_method\":\"mxfp8\"}",
    "{\"quant_method\":\"mxfp4\"}",
    "{\"quant_method\":\"bitnet\"}",
};
enum { N_CONFIGS = sizeof configs / sizeof *configs };
static char folders[N_CONFIGS][64];

static void path_in(char *out, size_t room, int i, const char *name) { snprintf(out, room, "%s/%s", folders[i], name); }

static void remove_folders(void)
{
    char path[128];
    for (int i = 0; i < N_CONFIGS; i++) {
        path_in(path, sizeof path, i, "config.json");
        unlink(path);
        path_in(path, sizeof path, i, "model.safetensors");
        unlink(path);
        rmdir(folders[i]);
    }
}

/* One folder for each kind of quantization, all with the fuzzer's file as weights. */
static void make_folders(const char *file)
{
    char path[128];
    for (int i = 0; i < N_CONFIGS; i++) {
        snprintf(folders[i], sizeof folders[i], "/tmp/fuzz-safetensors-XXXXXX");
        if (!mkdtemp(folders[i]))
            abort();
        path_in(path, sizeof path, i, "config.json");
        FILE *f = fopen(path, "w");
        if (!f || fprintf(f, "{\"quantization_config\":%s}", configs[i]) < 0 || fclose(f))
            abort();
        path_in(path, sizeof path, i, "model.safetensors");
        if (symlink(file, path))
            abort();
    }
    atexit(remove_folders);
}

static void read_all(const struct source *s)
{
    static float out[1 << 18];
    struct err e;
    int group;
    for (int i = 0; i < s->n_tensors; i++) {
        const struct source_tensor *t = &s->tensors[i];
        int64_t cols = t->dim[t->n_dims - 1], rows = cols ? (int64_t)(sizeof out / sizeof *out) / cols : 0,
                have = t->n_dims > 1 ? t->dim[0] : 1;
        if (t->packed)
            packed_exact(t->packed, &group);
        if (rows > 0)
            source_read(s, t, 0, rows < have ? rows : have, out, 1, &e);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e;
    struct map m;
    struct source_tensor *t = NULL;
    int n = 0;
    volatile uint8_t sum = 0;
    const char *file = fuzz_file(data, size);
    if (!*folders[0])
        make_folders(file);
    if (map_open(&m, file, &e) < 0)
        return 0;
    if (safetensors_index(&m, 0, &t, &n, &e) == 0)
        for (int i = 0; i < n; i++)
            if (t[i].size)
                sum = (uint8_t)(sum + t[i].data[0] + t[i].data[t[i].size - 1]);
    for (int i = 0; i < n; i++)
        free((char *)t[i].name);
    free(t);
    map_close(&m);
    for (int i = 0; i < N_CONFIGS; i++) {
        struct source *s = source_open(folders[i], &e);
        if (s)
            read_all(s);
        source_close(s);
    }
    return 0;
}
