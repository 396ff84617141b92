/* roofline_show.c - print a machine's measured limits as text and as JSON, and read that JSON. */
#include "cmd/roofline_show.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "libcommon/base/file.h"
#include "libcommon/base/plural.h"
#include "libcommon/base/pool.h"

enum { MOST_BYTES = 1 << 16 };

static json_t *pair_json(const double v[2], const char *by)
{
    if (v[1] == 0)
        return json_null();
    json_t *j = json_pack("{s:f, s:f}", "one", v[0], "all", v[1]);
    if (by)
        json_object_set_new(j, "instructions", json_string(by));
    return j;
}

static void print_pair(const char *what, const double v[2], double unit, const char *unit_name, const char *by)
{
    if (v[1] > 0)
        printf("%-24s %9.1f %9.1f %-7s %s\n", what, v[0] / unit, v[1] / unit, unit_name, by ? by : "");
}

json_t *roofline_json(const struct roofline *l)
{
    return json_pack("{s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:s?}", "threads", l->n_threads, "read",
                     pair_json(l->read, NULL), "int8", pair_json(l->int8, l->int8_name),
                     "amx", pair_json(l->amx, NULL), "f32", pair_json(l->f32, l->f32_name), "page_cache",
                     pair_json(l->page_cache, NULL), "disk", l->no_disk ? json_null() : json_real(l->disk), "no_disk",
                     l->no_disk);
}

void roofline_print(const struct roofline *l, const char *file)
{
    char all[32];
    snprintf(all, sizeof all, "%d thread%s", l->n_threads, plural(l->n_threads));
    printf("%-24s %9s %9s\n", "", "1 thread", all);
    print_pair("reading memory", l->read, 1e9, "GB/s", NULL);
    print_pair("int8 dot products", l->int8, 1e9, "Gop/s", l->int8_name);
    print_pair("int8 tiles", l->amx, 1e9, "Gop/s", "amx");
    print_pair("f32 multiply-add", l->f32, 1e9, "Gflop/s", l->f32_name);
    print_pair("page cache, mapped", l->page_cache, 1e9, "GB/s", NULL);
    if (l->no_disk)
        printf("%-24s %9s           (%s)\n", "disk", "-", l->no_disk);
    else
        printf("%-24s %9.2f           GB/s    %s\n", "disk", l->disk / 1e9, file ? file : "");
}

/* rate[1] = the member "all" of j[key], and *name its instructions. */
static int read_pair(const json_t *j, const char *key, const char *path, double rate[2], struct err *e)
{
    const json_t *all = json_object_get(json_object_get(j, key), "all");
    rate[1] = json_number_value(all);
    if (!(rate[1] > 0) || isinf(rate[1]))
        return err_set(e, ERR_FORMAT, "%s: %s.all: %s, expected the rate that zse-bench limits --json prints", path, key,
                       all ? "not a number above 0" : "missing");
    return 0;
}

static int read_limits(struct roofline *l, const json_t *j, const char *path, unsigned what, int n_threads,
                       struct err *e)
{
    const int measured = (int)json_integer_value(json_object_get(j, "threads"));
    if (measured != n_threads)
        return err_set(e, ERR_FORMAT, "%s: limits of %d threads, expected those of %d, as this measurement has", path,
                       measured, n_threads);
    *l = (struct roofline){ .n_threads = n_threads,
                            .amx[1] = json_number_value(json_object_get(json_object_get(j, "amx"), "all")) };
    if ((what & ROOFLINE_READ && read_pair(j, "read", path, l->read, e) != 0) ||
        (what & ROOFLINE_INT8 && read_pair(j, "int8", path, l->int8, e) != 0) ||
        (what & ROOFLINE_F32 && read_pair(j, "f32", path, l->f32, e) != 0))
        return -1;
    return 0;
}

int roofline_read(struct roofline *l, const char *path, unsigned what, int n_threads, struct err *e)
{
    size_t n;
    char *text = file_read(path, MOST_BYTES, &n, e);
    if (!text)
        return -1;
    json_error_t wrong;
    json_t *j = json_loadb(text, n, JSON_REJECT_DUPLICATES, &wrong);
    const int rc = j ? read_limits(l, j, path, what, n_threads ? n_threads : pool_n_cpus(), e)
                     : err_set(e, ERR_FORMAT, "%s: line %d: %s", path, wrong.line, wrong.text);
    json_decref(j);
    free(text);
    return rc;
}
