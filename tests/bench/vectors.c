/* vectors.c - the time of exact vector searches, with copies in memory of all vectors, and of only
 * those of whole passages.
 *   make build/tests/bench/vectors && build/tests/bench/vectors FOLDER [PASSAGES [SIZE]]
 * Fills FOLDER/rag.db with passages (default: 100000), each with a random vector of SIZE (default:
 * 384) and those of its parts, unless the file is there.
 * Prints the median and the largest processor time of 15 searches, in milliseconds, after one that
 * reads the copies. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/rng.h"
#include "libcommon/kernels/kernels.h"
#include "libcommon/rag/rag_store.h"
#include "libcommon/rag/vectors.h"

enum { TRIES = 15, AT_ONCE = 512, FOUND = 200, PASSAGES_OF_DOCUMENT = 1000 };

static struct rng rng = { .state = 1 };

static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static void fill_vector(float *v, int size)
{
    for (int i = 0; i < size; i++)
        v[i] = (float)(rng_u64(&rng) >> 40) / (1 << 23) - 1;
}

/* Add a document of n passages with four parts each. */
static int add_document(struct rag_store *r, int number, int n, struct err *e)
{
    static const char part[] = "A sentence about the number %d, long enough to be a part: it has many words, and an end, too.\n\n";
    const struct chunk_options o = { .tokens = 100 };
    const struct rag_quota none = { 0 };
    struct rag_document d = { .name = strdup("n"), .type = strdup("txt"), .metadata = strdup("{}") }, there = { 0 };
    struct chunk_list list;
    char *text = malloc((size_t)n * 4 * (sizeof part + 10) + 1), *end = text;
    for (int i = 0; i < 4 * n; i++)
        end += sprintf(end, part, number * n + i);
    d.file_size = d.text_size = (size_t)(end - text);
    strcpy(d.collection, "c");
    sha256_of(text, d.text_size, d.sha256);
    int rc = chunks_cut(text, d.text_size, &o, &list, e);
    if (rc == 0) {
        rc = rag_add(r, &d, text, &list, &none, &there, e);
        chunks_release(&list);
    }
    rag_document_release(&d);
    rag_document_release(&there);
    free(text);
    return rc;
}

static int fill(struct rag_store *r, int passages, int size, struct err *e)
{
    struct rag_pending list[AT_ONCE];
    float *vectors = malloc((size_t)AT_ONCE * (size_t)size * sizeof *vectors);
    int64_t after = 0;
    int n = 1, rc = vectors ? 0 : -1;
    for (int i = 0; i * PASSAGES_OF_DOCUMENT < passages && rc == 0; i++)
        rc = add_document(r, i, PASSAGES_OF_DOCUMENT, e);
    while (n && rc == 0 && (rc = rag_pending(r, "m", size, &after, list, AT_ONCE, &n, e)) == 0) {
        fill_vector(vectors, n * size);
        if (n)
            rc = rag_put_vectors(r, "m", list, n, vectors, size, e);
        rag_pending_release(list, n);
    }
    free(vectors);
    return rc;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int measure(struct rag_store *r, const char *name, size_t most_bytes, int size, struct err *e)
{
    struct rag_vectors *v = rag_vectors_open(kernels_pick(NULL, e), most_bytes, e);
    struct near out[FOUND];
    double ms[TRIES + 1], mean, deviation;
    float *q = malloc((size_t)size * sizeof *q);
    int n = v && q ? 0 : -1;
    for (int i = 0; i <= TRIES && n >= 0; i++) {
        fill_vector(q, size);
        const double start = cpu_ms();
        n = rag_nearest(v, r, "m", q, size, (int64_t[]){ 1 }, 1, NULL, 0, out, FOUND, &mean, &deviation, e);
        ms[i] = cpu_ms() - start;
    }
    if (n >= 0) {
        qsort(ms + 1, TRIES, sizeof *ms, compare);
        printf("%-24s %4d found, the first search %8.1f, median %7.2f, largest %7.2f ms\n", name, n, ms[0], ms[1 + TRIES / 2],
               ms[TRIES]);
    }
    rag_vectors_close(v);
    free(q);
    return n < 0 ? -1 : 0;
}

int main(int argc, char **argv)
{
    struct err e;
    char path[4096];
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: vectors FOLDER [PASSAGES [SIZE]]\n");
        return 2;
    }
    const int passages = argc > 2 ? atoi(argv[2]) : 100000, size = argc > 3 ? atoi(argv[3]) : 384;
    snprintf(path, sizeof path, "%s/rag.db", argv[1]);
    const int there = access(path, F_OK) == 0;
    struct rag_store *r = rag_open(argv[1], 1, &e);
    if (!r || (!there && fill(r, passages, size, &e)) || measure(r, "all vectors", (size_t)1 << 33, size, &e) ||
        measure(r, "whole passages, 256 MiB", (size_t)256 << 20, size, &e)) {
        fprintf(stderr, "vectors: %s\n", e.msg);
        return 1;
    }
    rag_close(r);
    return 0;
}
