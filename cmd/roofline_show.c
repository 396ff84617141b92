/* roofline_show.c - print the measured limits of a machine as text and as JSON. */
#include "cmd/roofline_show.h"

#include <stdio.h>

#include "libcommon/base/plural.h"

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
