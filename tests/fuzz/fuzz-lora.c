/* fuzz-lora.c - a LoRA adapter: the bytes up to the first line feed are its configuration, the rest
 * its tensors.  It is refused, or merged into a small base and read. */
#include "tests/fuzz/fuzz.h"

#include <string.h>
#include <sys/stat.h>

#include "libcommon/import/lora_merge.h"

static char folder[64];

static void path_in(char *out, size_t room, const char *name) { snprintf(out, room, "%s/%s", folder, name); }

static void remove_folder(void)
{
    static const char *const names[] = { "adapter_config.json", "adapter_model.safetensors", "config.json",
                                         "model.safetensors" };
    char path[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        path_in(path, sizeof path, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static void put(const char *name, const void *data, size_t size)
{
    char path[128];
    path_in(path, sizeof path, name);
    FILE *f = fopen(path, "w");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f))
        abort();
}

/* One folder for both: a base with q [4, 4] and a table e [5, 4], and the fuzzer's adapter. */
static void make_folder(const char *tensors)
{
    static const char config[] = "{\"model_type\":\"llama\"}",
                      header[] = "{\"q.weight\":{\"dtype\":\"F32\",\"shape\":[4,4],\"data_offsets\":[0,64]},"
                                 "\"e.weight\":{\"dtype\":\"F32\",\"shape\":[5,4],\"data_offsets\":[64,144]}}";
    char base[sizeof header + 8 + 144] = { 0 }, path[128];
    const uint64_t size = sizeof header - 1;
    snprintf(folder, sizeof folder, "/tmp/fuzz-lora-XXXXXX");
    if (!mkdtemp(folder))
        abort();
    memcpy(base, &size, sizeof size);
    memcpy(base + sizeof size, header, size);
    put("config.json", config, sizeof config - 1);
    put("model.safetensors", base, sizeof size + size + 144);
    path_in(path, sizeof path, "adapter_model.safetensors");
    if (symlink(tensors, path))
        abort();
    atexit(remove_folder);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err e;
    float out[20];
    const uint8_t *end = memchr(data, '\n', size);
    if (!end)
        return 0;
    const char *tensors = fuzz_file(end + 1, size - (size_t)(end + 1 - data));
    if (!*folder)
        make_folder(tensors);
    put("adapter_config.json", data, (size_t)(end - data));
    struct source *s = source_open(folder, &e);
    if (!s)
        abort();
    if (source_merge_lora(s, folder, &e) == 0)
        for (int i = 0; i < source_n_merged(s); i++) {
            const struct source_tensor *t = source_merged(s, i);
            source_read(s, t, 0, t->dim[0], out, 1, &e);
        }
    source_close(s);
    return 0;
}
