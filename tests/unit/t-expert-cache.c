/* t-expert-cache.c - experts of a file in the cache: the contents of a slot, and files in which the
 * experts of a layer are not ranges of their own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/rng.h"
#include "libcommon/cpu/expert_cache.h"
#include "libcommon/format/zfile.h"

enum { LAYERS = 2, EXPERTS = 3, ROWS = 32, COLS = 64 };

static char path[] = "/tmp/t-expert-cache-XXXXXX";
static struct expert experts[LAYERS][EXPERTS];
static struct layer layers[LAYERS];

static void add(struct zwriter *w, const char *name, int is_matrix, int page, struct rng *r)
{
    struct err e;
    uint8_t data[ROWS * COLS * 2];
    struct zfile_tensor t = { .name = name, .source_name = name, .n_dims = is_matrix ? 2 : 1,
                              .dim = { ROWS, is_matrix ? COLS : 0 }, .tiled = is_matrix, .page = page,
                              .source_rows = is_matrix ? ROWS : 1, .source_cols = is_matrix ? COLS : ROWS };
    t.m.type = QT_F32;
    t.m.size = ROWS * sizeof(float);
    if (is_matrix)
        assert_int_equal(mat_init(&t.m, QT_BF16, 32, 0, ROWS, COLS, &e), 0);
    assert_true(t.m.size <= sizeof data);
    for (size_t i = 0; i < t.m.size; i++)
        data[i] = (uint8_t)rng_u64(r);
    assert_int_equal(zwriter_tensor(w, &t, &e), 0);
    assert_int_equal(zwriter_data(w, data, t.m.size, &e), 0);
}

/* A group of tensors, written in the order of the text "LAYER: ...".  A digit starts an expert on a
 * new page; g, u and d are its matrices, G, U and D their biases; x is a matrix of no expert. */
struct group { int layer; const char *text; };

static void write_group(struct zwriter *w, const struct group *g, struct rng *r)
{
    static int n_others;
    struct err e;
    char name[64];
    int expert = 0, page = 0;
    const int layer = g->text[0] - '0';
    assert_int_equal(zwriter_group(w, g->layer < 0 ? "head" : "layer", g->layer, &e), 0);
    for (const char *c = g->text + 2; *c; c++) {
        if (*c >= '0' && *c <= '9') {
            expert = *c - '0', page = 1;
            continue;
        }
        snprintf(name, sizeof name, "%d.%d.%c", layer, *c == 'x' ? 100 + n_others++ : expert, *c);
        add(w, name, *c >= 'a', page, r);
        page = 0;
    }
}

static void bind(struct zfile *z, int layer, int expert, char matrix, struct linear *l)
{
    char name[64];
    snprintf(name, sizeof name, "%d.%d.%c", layer, expert, matrix);
    const struct zfile_tensor *w = zfile_find(z, name);
    snprintf(name, sizeof name, "%d.%d.%c", layer, expert, matrix - 'a' + 'A');
    const struct zfile_tensor *bias = zfile_find(z, name);
    *l = (struct linear){ .bias = bias ? (const float *)(const void *)bias->m.data : NULL };
    if (w)
        l->w = w->m;
}

/* Open a model that consists of the file's experts only. */
static struct model open_model(const struct group *g)
{
    struct err e;
    struct rng r = { 3 };
    struct zwriter *w = zwriter_open(path, &e);
    assert_non_null(w);
    for (; g->text; g++)
        write_group(w, g, &r);
    json_t *j = json_object();
    assert_int_equal(zwriter_commit(w, j, &e), 0);
    json_decref(j);
    struct model m = { .layers = layers, .config = { .n_layers = LAYERS, .moe = { .n_experts = EXPERTS, .top_k = 1 } },
                       .file = zfile_open(path, &e) };
    if (!m.file)
        fail_msg("%s", e.msg);
    for (int l = 0; l < LAYERS; l++) {
        layers[l].experts = experts[l];
        for (int i = 0; i < EXPERTS; i++) {
            bind(m.file, l, i, 'g', &experts[l][i].gate);
            bind(m.file, l, i, 'u', &experts[l][i].up);
            bind(m.file, l, i, 'd', &experts[l][i].down);
            assert_non_null(experts[l][i].down.w.data);
        }
    }
    return m;
}

static void same_linear(const struct linear *got, const struct linear *want)
{
    assert_int_equal(got->w.data == NULL, want->w.data == NULL);
    assert_int_equal(got->bias == NULL, want->bias == NULL);
    if (want->w.data) {
        assert_ptr_not_equal(got->w.data, want->w.data);
        assert_memory_equal(got->w.data, want->w.data, want->w.size);
    }
    if (want->bias)
        assert_memory_equal(got->bias, want->bias, ROWS * sizeof(float));
}

static const struct group whole[] = { { -1, "9:x" }, { 0, "0:x0gGuUdD1gGuUdD2gGuUdD" }, { 1, "1:xx0uUdD1uUdD2uUdD" },
                                      { -1, "9:x" }, { 0, NULL } };

/* The cache has two slots, and all experts are used in turn: each must have the matrices and biases
 * of the file. */
static void cached_experts_have_the_data_of_the_file(void **state)
{
    (void)state;
    struct err e;
    struct model m = open_model(whole);
    struct expert_cache *c = expert_cache_open(&m, &e);
    assert_non_null(c);
    assert_int_equal(expert_cache_start(c, expert_cache_least(c), &e), 0);
    for (int round = 0; round < 2; round++)
        for (int l = 0; l < LAYERS; l++) {
            expert_cache_want(c, l, (const int[]){ 0, 1, 2 }, (const int[]){ 1, 1, 1 }, EXPERTS);
            for (int done = 0; done < EXPERTS;) {
                const int n = expert_cache_use(c, 1);
                assert_true(n >= 1 && n <= 2);
                for (int i = done; i < done + n; i++) {
                    const struct expert x = expert_cache_at(c, l, i);
                    same_linear(&x.gate, &experts[l][i].gate);
                    same_linear(&x.up, &experts[l][i].up);
                    same_linear(&x.down, &experts[l][i].down);
                }
                expert_cache_release(c, n);
                done += n;
            }
        }
    expert_cache_close(c);
    zfile_close(m.file);
}

/* Valid files in which the experts are not separate ranges: the cache is not used for them. */
static void files_without_separate_experts_are_not_cached(void **state)
{
    (void)state;
    static const struct group good = { 1, "1:x0gud1gud2gud" };
    static const struct { const char *what; struct group first[4]; } files[] = {
        { "up in a later place", { { 0, "0:x0gd1gd2gd0u1u2u" } } },
        { "gate of another in front", { { 0, "0:1g0gud1ud2gud" } } },
        { "biases before the experts", { { 0, "0:x0GUD0gud1gud2gud" } } },
        { "a bias in another group", { { -1, "0:0D" }, { 0, "0:0gud1gud2gud" } } },
        { "a bias behind the last", { { 0, "0:x0gud1gud2gud" }, { -1, "0:2D" } } },
        { "not on pages of their own", { { 0, "0:0gud1gud" }, { 0, "0:2gud" } } },
        { "two groups of a layer", { { 0, "0:x0gud1gud2gud" }, { 0, "9:x" } } },
        { "experts in no layer's group", { { -1, "0:x0gud1gud2gud" } } },
        { "experts before their layer's group", { { -1, "0:x0gud1gud2gud" }, { 0, "9:x" } } },
        { "experts behind their layer's group", { { 0, "9:x" }, { -1, "0:x0gud1gud2gud" } } },
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        struct err e;
        struct group g[6] = { 0 };
        int n = 0;
        for (; files[i].first[n].text; n++)
            g[n] = files[i].first[n];
        g[n] = good;
        struct model m = open_model(g);
        struct expert_cache *c = expert_cache_open(&m, &e);
        if (c || e.code != ERR_NONE)
            fail_msg("%s: taken for ranges", files[i].what);
        zfile_close(m.file);
    }
}

static int setup(void **state)
{
    (void)state;
    const int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int teardown(void **state) { (void)state; return unlink(path); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cached_experts_have_the_data_of_the_file),
        cmocka_unit_test(files_without_separate_experts_are_not_cached),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
