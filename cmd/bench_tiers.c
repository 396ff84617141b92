/* bench_tiers.c - measure where weights may be: how fast a GPU's memory, memory and the disk are
 * read, and how much sooner a mapped file is usable than one that is read into memory. */
#include "cmd/zse-bench.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "cmd/preflight_convert.h"
#include "gpu/gpu.h"
#include "libcommon/base/clock.h"
#include "libcommon/hw/roofline.h"

static const char prog[] = "zse-bench";

/* ---- zse-bench tiers ---- */

static void add_tier(const struct bench_options *o, json_t *rows, const char *name, const char *what, double rate,
                     const char *why_not)
{
    json_array_append_new(rows, json_pack("{s:s, s:s, s:o, s:s?}", "tier", name, "what", what, "bytes_per_s",
                                          why_not ? json_null() : json_real(rate), "why_not", why_not));
    if (o->json)
        return;
    if (why_not)
        printf("%-5s %-30s %10s        %s\n", name, what, "-", why_not);
    else
        printf("%-5s %-30s %10.2f GB/s\n", name, what, rate / 1e9);
}

int bench_tiers(const struct bench_options *o)
{
    const char *tmp = getenv("TMPDIR");
    const struct roofline_options ro = { .n_threads = o->run.threads, .what = ROOFLINE_READ | ROOFLINE_FILE,
                                         .only_all = 1, .file = o->file, .tmp_dir = tmp && *tmp ? tmp : NULL,
                                         .root = preflight_root() };
    struct gpu_speeds gpu = { 0 };
    struct roofline l;
    struct err e, none = { 0 };
    const int n = gpu_count(&none), has_gpu = n > 0;
    if (roofline_measure(&l, &ro, &e) != 0 || (has_gpu && gpu_measure(0, &gpu, &e) != 0))
        return cli_fail(prog, &e);
    json_t *rows = json_array();
    add_tier(o, rows, "hot", "memory of the GPU, copies", gpu.copy, has_gpu ? NULL : "no GPU");
    add_tier(o, rows, "", "from memory to the GPU", gpu.upload, has_gpu ? NULL : "no GPU");
    add_tier(o, rows, "warm", "memory", l.read[1], NULL);
    add_tier(o, rows, "", "a mapped file in the page cache", l.page_cache[1], NULL);
    add_tier(o, rows, "cold", "the disk", l.disk, l.no_disk);
    json_t *j = json_pack("{s:i, s:o}", "threads", l.n_threads, "rows", rows);
    if (o->json)
        cli_json(j);
    json_decref(j);
    return cli_finish(prog);
}

/* ---- zse-bench mmap ---- */

enum { FILE_BYTES = 1 << 20, PAGE_BYTES = 4096 };

struct mapped_file { int fd; size_t bytes; unsigned sum; };

/* Read the whole file into new memory. */
static int read_whole(struct mapped_file *f)
{
    uint8_t *p = malloc(f->bytes);
    size_t got = 0;
    for (ssize_t n = 1; p && got < f->bytes && n > 0; got += n > 0 ? (size_t)n : 0)
        n = pread(f->fd, p + got, f->bytes - got, (off_t)got);
    f->sum += p && got == f->bytes ? p[f->bytes - 1] : 0;
    free(p);
    return p && got == f->bytes ? 0 : -1;
}

/* Map the file, and read a byte every `step` bytes. */
static int map_and_read(struct mapped_file *f, size_t step)
{
    const uint8_t *p = mmap(NULL, f->bytes, PROT_READ, MAP_PRIVATE, f->fd, 0);
    if (p == MAP_FAILED)
        return -1;
    for (size_t i = 0; i < f->bytes; i += step)
        f->sum += p[i];
    return munmap((void *)(uintptr_t)p, f->bytes);
}

static int map_first(struct mapped_file *f) { return map_and_read(f, f->bytes); }
static int map_pages(struct mapped_file *f) { return map_and_read(f, PAGE_BYTES); }

static const struct { const char *name, *what; int (*run)(struct mapped_file *f); } ways[] = {
    { "read", "read into new memory", read_whole },
    { "map", "mapped, the first byte is read", map_first },
    { "map_pages", "mapped, a byte of each page is read", map_pages },
};
enum { N_WAYS = sizeof ways / sizeof *ways };

static int open_file(const struct bench_options *o, struct mapped_file *f, struct err *e)
{
    const char *tmp = getenv("TMPDIR");
    static const uint8_t page[PAGE_BYTES] = { 1 };
    f->fd = o->file ? open(o->file, O_RDONLY | O_CLOEXEC)
                    : open(tmp && *tmp ? tmp : "/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (f->fd < 0)
        return err_sys(e, "%s", o->file ? o->file : "a temporary file");
    for (int i = 0; !o->file && i < FILE_BYTES / PAGE_BYTES; i++)
        if (write(f->fd, page, sizeof page) != (ssize_t)sizeof page)
            return err_sys(e, "a temporary file");
    const off_t end = lseek(f->fd, 0, SEEK_END);
    f->bytes = end > 0 ? (size_t)end : 0;
    return f->bytes ? 0 : err_set(e, ERR_FORMAT, "%s: an empty file", o->file);
}

static int measure_ways(const struct bench_options *o, struct mapped_file *f, double *s, struct err *e)
{
    for (int i = -1; i < o->repeats; i++)                /* the first round fills the page cache */
        for (int w = 0; w < N_WAYS; w++) {
            const uint64_t start = clock_ns();
            if (ways[w].run(f) != 0)
                return err_sys(e, "%s", o->file ? o->file : "a temporary file");
            if (i >= 0)
                s[w * o->repeats + i] = (double)(clock_ns() - start) * 1e-9;
        }
    return 0;
}

int bench_mmap(const struct bench_options *o)
{
    struct mapped_file f = { .fd = -1 };
    struct err e;
    double *s = calloc((size_t)o->repeats * N_WAYS, sizeof *s), first = 0;
    json_t *rows = json_array();
    int rc = !s ? err_nomem(&e, "benchmark") : open_file(o, &f, &e) == 0 ? measure_ways(o, &f, s, &e) : -1;
    if (rc == 0 && !o->json)
        printf("a file of %zu bytes in the page cache; median of %d\n%12s %8s\n", f.bytes, o->repeats, "us", "ratio");
    for (int w = 0; rc == 0 && w < N_WAYS; w++) {
        const double t = summarise(s + w * o->repeats, o->repeats).median;
        first = w ? first : t;
        json_array_append_new(rows, json_pack("{s:s, s:f, s:f}", "way", ways[w].name, "seconds", t, "speedup", first / t));
        if (!o->json)
            printf("%12.1f %8.2f   %s\n", t * 1e6, first / t, ways[w].what);
    }
    json_t *j = json_pack("{s:I, s:i, s:o}", "bytes", (json_int_t)f.bytes, "repeats", o->repeats, "rows", rows);
    if (rc == 0 && o->json)
        cli_json(j);
    json_decref(j);
    if (f.fd >= 0)
        close(f.fd);
    free(s);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}
