/* roofline.c - time the loops on one and on all threads, and read files through the page cache and
 * past it. */
#include "libcommon/hw/roofline.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/pool.h"
#include "libcommon/hw/memory.h"

enum {
    MB = 1 << 20,
    /* Least and most bytes to read in a pass; in between, four times the last-level cache, so that
     * caches hold little of it. */
    READ_LEAST = 256 * MB,
    READ_MOST = 1024 * MB,
    READ_PASSES = 2,            /* for each way to read: number of streams, with prefetches or without */
    N_STREAMS = 3,              /* numbers of streams that are tried: 1, 2 and 4 */
    AHEAD = 1024,               /* bytes from a load to the prefetch beside it */
    COMPUTE_NS = 4000000,       /* time of one pass of arithmetic */
    COMPUTE_PASSES = 9,
    FILE_MOST = 256 * MB,       /* bytes of a file that are read through the page cache */
    DISK_MOST = 512 * MB,
    DISK_NS = 1000000000,       /* longest time to read from the disk */
    FILE_STEP = 2 * MB,
};

/* ---- loops without special instructions ---- */

static int always(void) { return 1; }

static uint64_t read_words(const uint8_t *p, size_t n, int streams, size_t ahead)
{
    uint64_t sum[8] = { 0 }, v[8];
    const size_t each = n / (size_t)streams;
    for (size_t i = 0; i < each; i += sizeof v) {
        for (int s = 0; s < streams; s++) {
            const uint8_t *q = p + (size_t)s * each + i;
            if (ahead)
                __builtin_prefetch(q + ahead);  /* harmless beyond the end */
            memcpy(v, q, sizeof v);
            for (int j = 0; j < 8; j++)
                sum[j] ^= v[j];
        }
    }
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3] ^ sum[4] ^ sum[5] ^ sum[6] ^ sum[7];
}

static double int8_words(int rounds)
{
    int8_t a[64], b[64];
    volatile int32_t sink = 0;
    for (int i = 0; i < 64; i++)
        a[i] = (int8_t)(i + rounds), b[i] = (int8_t)(3 * i - rounds);
    for (int r = 0; r < rounds; r++) {
        int32_t sum = 0;
        for (int i = 0; i < 64; i++)
            sum += a[i] * b[i];
        a[r % 64] ^= (int8_t)sum;       /* make every round differ */
        sink = sink + sum;
    }
    return 2.0 * 64 * rounds;
}

static double f32_words(int rounds)
{
    volatile float start = 1;
    float sum[32];
    const float a = start, b = start - 1;
    for (int i = 0; i < 32; i++)
        sum[i] = a;
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < 32; i++)
            sum[i] = sum[i] * a + b;
    volatile float sink = 0;
    for (int i = 0; i < 32; i++)
        sink = sink + sum[i];
    return 2.0 * 32 * rounds;
}

const struct roofline_loops roofline_generic = { "generic", always, read_words, int8_words, f32_words };

/* Fastest first. */
static const struct roofline_loops *const vectors[] = {
#ifdef ZSE_X86
    &roofline_avx512, &roofline_avxvnni, &roofline_avx2,
#endif
#ifdef ZSE_ARM64
    &roofline_i8mm, &roofline_dotprod, &roofline_neon,
#endif
    &roofline_generic,
};

/* The first set that this machine supports and that has the loop at this offset of the struct. */
static const struct roofline_loops *pick(size_t loop)
{
    for (size_t i = 0;; i++) {
        void *fn;
        memcpy(&fn, (const char *)vectors[i] + loop, sizeof fn);
        if (fn && vectors[i]->supported())
            return vectors[i];
    }
}
#define PICK(loop) pick(offsetof(struct roofline_loops, loop))

/* passes: each function does item i of n of a parallel loop, which is timed as a whole */

struct pass {
    const struct roofline_loops *loops;
    const uint8_t *data; size_t size;           /* a buffer for each thread: [n_threads][size] */
    int streams; size_t ahead;                  /* as in roofline_loops */
    double (*compute)(int rounds); int rounds;
    int fd;                                     /* descriptor of the file to map */
    _Atomic int failed;
};

static void touch_part(void *arg, int i, int thread)
{
    struct pass *p = arg;
    (void)thread;
    memset((uint8_t *)p->data + (size_t)i * p->size, i + 1, p->size);
}

static void read_part(void *arg, int i, int thread)
{
    struct pass *p = arg;
    (void)thread;
    volatile uint64_t sink = p->loops->read(p->data + (size_t)i * p->size, p->size, p->streams, p->ahead);
    (void)sink;
}

static void compute_part(void *arg, int i, int thread)
{
    struct pass *p = arg;
    (void)i;
    (void)thread;
    volatile double sink = p->compute(p->rounds);
    (void)sink;
}

static double timed(struct pool *pool, int n, void (*fn)(void *, int, int), struct pass *p)
{
    uint64_t start = clock_ns();
    pool_run(pool, n, fn, p);
    return (double)(clock_ns() - start) * 1e-9;
}

static double best_time(struct pool *pool, int n, int passes, void (*fn)(void *, int, int), struct pass *p)
{
    double best = timed(pool, n, fn, p);
    for (int i = 1; i < passes; i++) {
        double t = timed(pool, n, fn, p);
        best = t < best ? t : best;
    }
    return best > 0 ? best : 1e-9;
}

/* Bytes for each thread to read; 0: not enough memory. */
static size_t read_size(int n_threads, const char *root)
{
    struct memory m;
    struct err ignored;
    size_t size = READ_LEAST, cache = 0;
#ifdef _SC_LEVEL3_CACHE_SIZE
    long l3 = sysconf(_SC_LEVEL3_CACHE_SIZE);
    cache = l3 > 0 ? 4 * (size_t)l3 : 0;
#endif
    size = cache > size ? cache : size;
    size = size < READ_MOST ? size : READ_MOST;
    /* at most half of the memory that this process can have */
    if (memory_read(&m, root, &ignored) == 0 && size > memory_now(&m) / 2)
        size = (size_t)(memory_now(&m) / 2);
    return size / (size_t)n_threads / MB * MB;
}

static int measure_read(struct roofline *l, const struct roofline_options *o, struct pool *pool, struct err *e)
{
    const int n = l->n_threads;
    struct pass p = { .loops = PICK(read), .size = read_size(n, o->root) };
    const size_t total = p.size * (size_t)n;
    if (total == 0)
        return err_set(e, ERR_LIMIT, "memory for reading: expected %d MiB, half of what this process can have is less",
                       n);
    void *data = mmap(NULL, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        return err_set(e, ERR_MEMORY, "out of memory: %zu bytes to read", total);
    madvise(data, total, MADV_HUGEPAGE);        /* best effort, so that page table walks do not slow
                                                 * the loop down */
    p.data = data;
    timed(pool, n, touch_part, &p);
    /* processors differ in the number of streams that a core prefetches well by itself, and on some
     * it reads faster without the loop's prefetches */
    for (int way = 0; way < 2 * N_STREAMS; way++) {
        p.streams = 1 << way / 2;
        p.ahead = way % 2 ? AHEAD : 0;
        for (int all = o->only_all || n == 1; all < 2; all++) {
            p.size = all ? total / (size_t)n : total;
            const double rate = (double)total / best_time(pool, all ? n : 1, READ_PASSES, read_part, &p);
            l->read[all] = rate > l->read[all] ? rate : l->read[all];
        }
    }
    if (n == 1)
        l->read[0] = l->read[1];
    munmap(data, total);
    return 0;
}

/* Rates of a computing loop on [one thread, all]. */
static void measure_compute(double rate[2], double (*compute)(int), const struct roofline *l,
                            const struct roofline_options *o, struct pool *pool)
{
    struct pass p = { .compute = compute, .rounds = 1000 };
    double t;
    while ((t = best_time(pool, 1, 2, compute_part, &p)) < COMPUTE_NS * 1e-9 && p.rounds < 1 << 28)
        p.rounds = t * 8 < COMPUTE_NS * 1e-9 ? p.rounds * 8 : p.rounds * 2;
    const double op = compute(p.rounds);
    rate[1] = op * l->n_threads / best_time(pool, l->n_threads, COMPUTE_PASSES, compute_part, &p);
    if (l->n_threads == 1)
        rate[0] = rate[1];
    else if (!o->only_all)
        rate[0] = op / best_time(pool, 1, COMPUTE_PASSES, compute_part, &p);
}

/* ---- files ---- */

static int file_open(const struct roofline_options *o, size_t *size, struct err *e)
{
    const char *dir = o->tmp_dir ? o->tmp_dir : "/tmp";
    struct stat st;
    char path[4096];
    int fd;
    if (o->file) {
        fd = open(o->file, O_RDONLY | O_CLOEXEC);
        if (fd < 0 || fstat(fd, &st) < 0) {
            err_sys(e, "%s", o->file);
        } else if (!S_ISREG(st.st_mode) || st.st_size < FILE_STEP) {
            err_set(e, ERR_IO, "%s: found %s, expected a regular file of at least 2 MiB", o->file,
                    S_ISREG(st.st_mode) ? "a smaller file" : "something else");
        } else {
            *size = (size_t)st.st_size;
            return fd;
        }
        if (fd >= 0)
            close(fd);
        return -1;
    }
    if ((size_t)snprintf(path, sizeof path, "%s/zse-limits-XXXXXX", dir) >= sizeof path)
        return err_set(e, ERR_IO, "%s: the path is too long", dir);
    fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        return err_sys(e, "%s", path);
    unlink(path);
    *size = FILE_MOST;
    if (ftruncate(fd, FILE_MOST) == 0)          /* a hole: its pages enter the page cache without a write */
        return fd;
    err_sys(e, "%s", path);
    close(fd);
    return -1;
}

static void map_part(void *arg, int i, int thread)
{
    struct pass *p = arg;
    (void)thread;
    volatile uint64_t sink = 0;
    for (size_t at = 0; at < p->size; at += FILE_STEP)
        sink = sink ^ p->loops->read(p->data + (size_t)i * p->size + at, FILE_STEP, 2, AHEAD);
}

/* Seconds to map the file and read it with n threads. */
static double map_and_read(struct pass *p, size_t total, int n, struct pool *pool)
{
    void *data = mmap(NULL, total, PROT_READ, MAP_SHARED, p->fd, 0);
    if (data == MAP_FAILED) {
        p->failed = 1;
        return 1;
    }
    p->data = data;
    p->size = total / (size_t)n / FILE_STEP * FILE_STEP;
    double t = timed(pool, n, map_part, p);
    munmap(data, total);
    return t;
}

static void measure_disk(struct roofline *l, int fd, size_t size)
{
    unsigned char in_core;
    size_t total = 0;
    void *buffer = NULL;
    if (posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0 || posix_memalign(&buffer, FILE_STEP, FILE_STEP) != 0) {
        l->no_disk = "the file's pages cannot be dropped";
        return;
    }
    void *first = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
    if (first != MAP_FAILED && mincore(first, 4096, &in_core) == 0 && in_core & 1)
        l->no_disk = "another program maps the file: its pages stay in memory";
    if (first != MAP_FAILED)
        munmap(first, 4096);
    uint64_t start = clock_ns(), now = start;
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    while (!l->no_disk && total < size && total < DISK_MOST && now - start < DISK_NS) {
        ssize_t got = pread(fd, buffer, FILE_STEP, (off_t)total);
        if (got <= 0)
            l->no_disk = "the file cannot be read";
        total += got > 0 ? (size_t)got : 0;
        now = clock_ns();
    }
    free(buffer);
    if (!l->no_disk)
        l->disk = (double)total / ((double)(now - start) * 1e-9);
}

static int measure_file(struct roofline *l, const struct roofline_options *o, struct pool *pool, struct err *e)
{
    size_t size;
    int fd = file_open(o, &size, e);
    if (fd < 0)
        return -1;
    if (o->file)
        measure_disk(l, fd, size);
    else
        l->no_disk = "no file was named";
    struct pass p = { .loops = PICK(read), .fd = fd };
    const int n = l->n_threads;
    size_t total = (size < FILE_MOST ? size : FILE_MOST) / ((size_t)n * FILE_STEP) * ((size_t)n * FILE_STEP);
    if (total == 0)
        total = size / FILE_STEP * FILE_STEP;
    const int parts = total / FILE_STEP >= (size_t)n ? n : 1;
    map_and_read(&p, total, parts, pool);       /* bring the file into the page cache */
    for (int all = !!o->only_all; all < 2; all++) {
        double best = 1e30;
        for (int i = 0; i < 3; i++) {
            double t = map_and_read(&p, total, all ? parts : 1, pool);
            best = t < best ? t : best;
        }
        l->page_cache[all] = (double)total / best;
    }
    close(fd);
    return p.failed ? err_set(e, ERR_MEMORY, "a file of %zu bytes cannot be mapped", total) : 0;
}

int roofline_measure(struct roofline *out, const struct roofline_options *o, struct err *e)
{
    const unsigned what = o->what ? o->what : ROOFLINE_ALL;
    struct roofline l = { 0 };
    struct pool *pool = pool_open(o->n_threads, e);
    if (!pool)
        return -1;
    l.n_threads = pool_size(pool);
    /* first, so that a wrong name is reported at once */
    int rc = what & ROOFLINE_FILE ? measure_file(&l, o, pool, e) : 0;
    if (rc == 0 && what & ROOFLINE_READ)
        rc = measure_read(&l, o, pool, e);
    if (rc != 0) {
        pool_close(pool);
        return -1;
    }
    if (what & ROOFLINE_INT8) {
        const struct roofline_loops *loops = PICK(int8_dot);
        l.int8_name = loops->name;
        measure_compute(l.int8, loops->int8_dot, &l, o, pool);
#ifdef ZSE_X86
        if (roofline_amx.supported())
            measure_compute(l.amx, roofline_amx.int8_dot, &l, o, pool);
#endif
    }
    if (what & ROOFLINE_F32) {
        const struct roofline_loops *loops = PICK(f32_fma);
        l.f32_name = loops->name;
        measure_compute(l.f32, loops->f32_fma, &l, o, pool);
    }
    pool_close(pool);
    *out = l;
    return 0;
}
