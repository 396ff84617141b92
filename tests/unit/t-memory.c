/* t-memory.c - the private memory of a model is keys, values and at most 32 MB, for all shapes of
 * models and numbers of threads.  The models have no weights, because opening uses only shapes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libcommon/engine/engine.h"

enum { LIMIT = 32 << 20 };

static const struct shape { const char *name; int layers, hidden, mlp, heads, kv_heads, head_dim, vocab; } shapes[] = {
    { "SmolLM2-135M", 30, 576, 1536, 9, 3, 64, 49152 },      { "Qwen2.5-0.5B", 24, 896, 4864, 14, 2, 64, 151936 },
    { "Qwen2.5-1.5B", 28, 1536, 8960, 12, 2, 128, 151936 },  { "Llama-3.2-3B", 28, 3072, 8192, 24, 8, 128, 128256 },
    { "Qwen2.5-7B", 28, 3584, 18944, 28, 4, 128, 152064 },   { "Qwen2.5-32B", 64, 5120, 27648, 40, 8, 128, 152064 },
    { "Llama-3.1-70B", 80, 8192, 28672, 64, 8, 128, 128256 }, { "many heads", 32, 4096, 16384, 32, 32, 256, 256000 },
};

static void make_linear(struct linear *l, int rows, int cols)
{
    struct err e;
    assert_int_equal(mat_init(&l->w, QT_NL4, 32, 64, rows, cols, &e), 0);
    l->w.data = (const uint8_t *)(uintptr_t)4096;       /* never read */
}

static unsigned char kinds[128];        /* attention, dense */
static int no_windows[128];

static struct model *make_model(const struct shape *s)
{
    struct model *m = calloc(1, sizeof *m);
    assert_non_null(m);
    struct config *c = &m->config;
    *c = (struct config){ .mixer = kinds, .ff = kinds, .window = no_windows, .chunk = no_windows,
                          .n_layers = s->layers, .hidden_size = s->hidden,
                          .intermediate_size = s->mlp, .n_heads = s->heads, .n_kv_heads = s->kv_heads,
                          .head_dim = s->head_dim,
                          .vocab_size = s->vocab, .max_len = 131072, .gated = 1, .embed_size = s->hidden, .n_ropes = 1,
                          .ropes = { { .dim = s->head_dim } } };
    m->layers = calloc((size_t)s->layers, sizeof *m->layers);
    assert_non_null(m->layers);
    for (int i = 0; i < s->layers; i++) {
        struct layer *l = &m->layers[i];
        make_linear(&l->q, s->heads * s->head_dim, s->hidden);
        make_linear(&l->k, s->kv_heads * s->head_dim, s->hidden);
        make_linear(&l->v, s->kv_heads * s->head_dim, s->hidden);
        make_linear(&l->o, s->hidden, s->heads * s->head_dim);
        make_linear(&l->gate, s->mlp, s->hidden);
        make_linear(&l->up, s->mlp, s->hidden);
        make_linear(&l->down, s->hidden, s->mlp);
    }
    make_linear(&m->head, s->vocab, s->hidden);
    m->embed = m->head;
    return m;
}

static void private_memory_stays_within_the_limit(void **state)
{
    (void)state;
    static const int threads[] = { 1, 2, 16, 64 };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
            struct model *m = make_model(&shapes[i]);
            struct err e;
            struct engine_stats s;
            struct engine *g = engine_open(m, NULL,
                                           &(struct engine_options){ .n_threads = threads[t], .max_len = t % 2 ? 131072
                                               : 0, .kv = { KV_F16, KV_F16 } }, &e);
            if (!g)
                fail_msg("%s: %s", shapes[i].name, e.msg);
            engine_stats(g, &s);
            print_message("# %s, %d threads: %.1f MB\n", shapes[i].name, threads[t],
                          (double)(s.private_bytes - s.kv_bytes) / 1e6);
            if (s.private_bytes - s.kv_bytes > LIMIT)
                fail_msg("%s, %d threads: %zu bytes of private memory besides keys and values, expected at most %d",
                         shapes[i].name, threads[t], s.private_bytes - s.kv_bytes, LIMIT);
            engine_close(g);
            free(m->layers);
            free(m);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(private_memory_stays_within_the_limit) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
