/* rates_record.c - read and write rates.json in the cache folder. */
#include "cmd/rates_record.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "cmd/conv_cache.h"
#include "libcommon/base/file.h"
#include "libcommon/hw/machine.h"

enum {
    MONTH = 30 * 24 * 3600,
    MOST_BYTES = 1 << 18,           /* a larger file is not ours */
    MOST_KEYS = 200,                /* of a machine: with more, its object starts anew */
    MOST_MACHINES = 16
};

struct rates_record {
    json_t *all, *machine;          /* machine: borrowed from all */
    char name[256];                 /* of the machine */
    int changed;
};

static json_t *read_file(void)
{
    struct err ignored;
    struct stat st;
    size_t n;
    char *path = conv_cache_rates(0, &ignored);
    const int is_file = path && stat(path, &st) == 0 && S_ISREG(st.st_mode);    /* a pipe could wait for ever */
    char *text = is_file ? file_read(path, MOST_BYTES, &n, &ignored) : NULL;
    json_t *all = text ? json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL) : NULL;
    free(path);
    free(text);
    return all;
}

struct rates_record *rates_record_open(int n_threads, const char *kernels)
{
    struct rates_record *r = calloc(1, sizeof *r);
    struct machine m;
    struct err ignored;
    if (!r || machine_probe(&m, "/" /* NULL would load NVML */, &ignored) != 0) {
        free(r);
        return NULL;
    }
    snprintf(r->name, sizeof r->name, "%s, %d threads, %s, %s", m.cpu, n_threads, kernels, ZSE_VERSION);
    r->all = read_file();
    if (!json_is_object(r->all)) {
        json_decref(r->all);
        r->all = json_object();
    }
    r->machine = json_object_get(r->all, r->name);
    return r;
}

int64_t rates_record_get(const struct rates_record *r, const char *key, double *v, int n)
{
    const json_t *entry = r ? json_object_get(r->machine, key) : NULL, *numbers = json_object_get(entry, "rates");
    const int64_t at = (int64_t)json_integer_value(json_object_get(entry, "measured")), now = time(NULL);
    if (at <= 0 || at > now || now - at >= MONTH || json_array_size(numbers) != (size_t)n)
        return 0;
    for (size_t i = 0; i < (size_t)n; i++) {
        const double x = json_number_value(json_array_get(numbers, i));
        if (!(x > 0) || isinf(x))
            return 0;
    }
    for (size_t i = 0; i < (size_t)n; i++)
        v[i] = json_number_value(json_array_get(numbers, i));
    return at;
}

void rates_record_put(struct rates_record *r, const char *key, const double *v, int n)
{
    json_t *numbers = json_array();
    if (r && json_object_size(r->machine) >= MOST_KEYS)
        json_object_clear(r->machine);
    if (r && !json_is_object(r->machine)) {
        if (json_object_size(r->all) >= MOST_MACHINES)
            json_object_clear(r->all);
        json_object_set_new(r->all, r->name, json_object());
        r->machine = json_object_get(r->all, r->name);
    }
    for (int i = 0; i < n; i++)
        json_array_append_new(numbers, json_real(v[i]));
    if (r && json_object_set_new(r->machine, key, json_pack("{s:I, s:O}", "measured", (json_int_t)time(NULL), "rates",
                                                            numbers)) == 0)
        r->changed = 1;
    json_decref(numbers);
}

/* Failures are ignored: the rates are measured again next time. */
static void write_file(const struct rates_record *r)
{
    struct err ignored;
    struct atomic_file f;
    char *path = conv_cache_rates(1, &ignored), *text = path ? json_dumps(r->all, JSON_INDENT(1)) : NULL;
    if (text && atomic_open(&f, path, &ignored) == 0) {
        if (atomic_write(&f, text, strlen(text), &ignored) == 0)
            atomic_commit(&f, &ignored);
        atomic_abort(&f);
    }
    free(text);
    free(path);
}

void rates_record_close(struct rates_record *r)
{
    if (!r)
        return;
    if (r->changed)
        write_file(r);
    json_decref(r->all);
    free(r);
}
