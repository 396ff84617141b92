/* engine.c - measure the cost of the scheduler, and the gaps in answers while new prompts arrive.
 *     build/tests/bench/engine
 *         microseconds of a step whose backend does nothing
 *     build/tests/bench/engine MODEL.zse [STREAMS [PROMPT [CHUNK [SECONDS]]]]
 *         gaps between tokens of running answers, while a new prompt of PROMPT tokens arrives each
 *         time that the previous one has its first token and 16 more (CHUNK 0: by measured time,
 *         -1: all)
 *     build/tests/bench/engine MODEL.zse closed CLIENTS PROMPT ANSWER CHUNK SECONDS
 *         throughput when every client sends its next request at once */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/rng.h"
#include "libcommon/engine/engine.h"
#include "libcommon/format/zfile.h"

/* ---- a backend that does nothing ---- */

static int dummy;
static void *nothing_open(const struct model *m, const struct backend_options *o, struct err *e)
{
    (void)m, (void)o, (void)e;
    return &dummy;
}
static int nothing_forward(void *b, const struct batch *batch, float *logits, struct err *e)
{
    (void)b, (void)batch, (void)logits, (void)e;
    return 0;
}
static int nothing_copy(void *b, int32_t from, int32_t to, struct err *e)
{
    (void)b, (void)from, (void)to, (void)e;
    return 0;
}
static size_t nothing_size(const void *b) { (void)b; return 0; }
static const char *nothing_describe(const void *b) { (void)b; return "nothing"; }
static void nothing_close(void *b) { (void)b; }
static const struct backend nothing = { .name = "nothing", .open = nothing_open, .forward = nothing_forward,
                                        .copy_block = nothing_copy, .memory = nothing_size,
                                        .kv_bytes = nothing_size, .describe = nothing_describe,
                                        .close = nothing_close };

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void die(const struct err *e)
{
    fprintf(stderr, "%s\n", e->msg);
    exit(1);
}

static void steps(int running, int waiting)
{
    enum { VOCAB = 64, STEPS = 2000 };
    static const struct model m = { .config = { .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 8,
                                                .hidden_size = 8, .vocab_size = VOCAB, .max_len = 8192 } };
    const struct engine_options o = { .backend = &nothing, .max_seqs = running, .max_len = 4096, .max_tokens = 512 };
    struct err e;
    struct engine *g = engine_open(&m, NULL, &o, &e);
    if (!g)
        die(&e);
    int32_t ids[100];
    double us[STEPS], submit = 0;
    for (int i = 0; i < running + waiting; i++) {
        for (int j = 0; j < 100; j++)
            ids[j] = (i * 7 + j * (1 + i / 60)) % VOCAB;
        struct request_params p = { .ids = ids, .n_ids = 100, .n_logprobs = -1, .sampling = sampling_defaults(),
                                    .ignore_eos = 1 };
        p.sampling.temperature = 0;
        const uint64_t t = clock_ns();
        if (!engine_submit(g, &p, &e))
            die(&e);
        submit += (double)(clock_ns() - t) * 1e-3;
    }
    struct engine_stats s;
    for (int i = 0; i < 600; i++)       /* all prompts are done */
        if (engine_step(g, &e) < 0)
            die(&e);
    for (int i = 0; i < STEPS; i++) {
        const uint64_t t = clock_ns();
        engine_step(g, &e);
        us[i] = (double)(clock_ns() - t) * 1e-3;
    }
    engine_stats(g, &s);
    qsort(us, STEPS, sizeof *us, by_size);
    printf("%4d running, %6d waiting: a step %.2f us (median), %.2f (99%%); submit %.2f us\n", s.n_running, s.n_waiting,
           us[STEPS / 2], us[STEPS * 99 / 100], submit / (running + waiting));
    engine_close(g);
}

/* ---- a model under load ---- */

/* Under a real-time policy (chrt -f) Linux stops a thread for 50 ms of every second.  So we pause
 * ourselves, and stop the clock meanwhile. */
static uint64_t rested_ns, worked_since;
static uint64_t now_ns(void) { return clock_ns() - rested_ns; }

static void rest(void)
{
    const uint64_t begin = clock_ns();
    if (begin - worked_since < 700000000)
        return;
    nanosleep(&(struct timespec){ .tv_nsec = 300000000 }, NULL);
    worked_since = clock_ns();
    rested_ns += worked_since - begin;
}

static int step(struct engine *g)
{
    struct err e;
    rest();
    const int left = engine_step(g, &e);
    if (left < 0)
        die(&e);
    return left;
}

enum { MOST_GAPS = 1 << 20 };
struct load { double *gap; int n_gaps; };
struct stream { struct load *load; uint64_t last; int n; };

static void hear(void *user, const struct token_event *ev)
{
    struct stream *s = user;
    const uint64_t now = now_ns();
    if (ev->id < 0)
        return;
    if (s->n++ && s->load && s->load->n_gaps < MOST_GAPS)
        s->load->gap[s->load->n_gaps++] = (double)(now - s->last) * 1e-6;
    s->last = now;
}

static struct request *submit(struct engine *g, struct rng *r, int vocab, int n, int max_tokens, struct stream *s)
{
    struct err e;
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    for (int i = 0; i < n; i++)
        ids[i] = (int32_t)(rng_u64(r) % (uint64_t)vocab);
    struct request_params p = { .ids = ids, .n_ids = n, .n_logprobs = -1, .sampling = sampling_defaults(),
                                .ignore_eos = 1, .on_token = hear, .user = s, .max_tokens = max_tokens };
    p.sampling.temperature = 0;
    struct request *q = engine_submit(g, &p, &e);
    if (!q)
        die(&e);
    free(ids);
    return q;
}

static void load(const char *path, int streams, int prompt, int chunk, double seconds)
{
    struct err e;
    struct zfile *z = zfile_open(path, &e);
    struct model *m = z ? model_bind(z, &e) : NULL;
    if (!m)
        die(&e);
    const int vocab = m->config.vocab_size;
    const struct engine_options o = { .max_seqs = streams + 1, .max_len = 2048, .kv = { KV_F16, KV_F16 } };
    struct engine *g = engine_open(m, NULL, &o, &e);
    struct engine_limits l = { .max_running = streams + 1, .chunk = chunk };
    if (!g || engine_set_limits(g, &l, &e) != 0)
        die(&e);
    struct rng r = { 1 };
    struct load alone = { .gap = malloc(MOST_GAPS * sizeof(double)) },
                loaded = { .gap = malloc(MOST_GAPS * sizeof(double)) };
    struct stream *s = calloc((size_t)streams, sizeof *s), guest = { 0 };
    for (int i = 0; i < streams; i++)
        submit(g, &r, vocab, 32, 0, &s[i]);
    for (int i = 0; i < 20; i++)
        step(g);
    for (int i = 0; i < streams; i++)
        s[i].load = &alone;
    for (int i = 0; i < 40; i++)
        step(g);
    for (int i = 0; i < streams; i++)
        s[i].load = &loaded;
    double first[1000];
    int n_guests = 0, pause = 0;
    const uint64_t begin = now_ns();
    uint64_t since = 0;
    while ((double)(now_ns() - begin) * 1e-9 < seconds && n_guests < 1000) {
        if (pause == 0) {
            guest = (struct stream){ 0 };
            since = now_ns();
            submit(g, &r, vocab, prompt, 1, &guest);
            pause = -1;
        }
        step(g);
        if (pause < 0 && guest.n) {
            first[n_guests++] = (double)(now_ns() - since) * 1e-6;
            pause = 16;
        } else if (pause > 0) {
            pause--;
        }
    }
    struct load *both[] = { &alone, &loaded };
    for (int i = 0; i < 2; i++) {
        double *x = both[i]->gap;
        const int n = both[i]->n_gaps;
        qsort(x, (size_t)n, sizeof *x, by_size);
        printf("%s: %d gaps, median %.2f ms, 90%% %.2f, 99%% %.2f (%.2f x the median), longest %.2f\n",
               i ? "with new prompts" : "alone           ", n, x[n / 2], x[n * 9 / 10],
               x[n * 99 / 100], x[n * 99 / 100] / x[n / 2], x[n - 1]);
    }
    qsort(first, (size_t)n_guests, sizeof *first, by_size);
    printf("%d new prompts of %d tokens: first token after %.1f ms (median)\n", n_guests, prompt,
           n_guests ? first[n_guests / 2] : 0);
    engine_close(g);
    model_close(m);
    free(alone.gap);
    free(loaded.gap);
    free(s);
}

/* Run CLIENTS clients, each with a new prompt as soon as its answer is complete. */
static void closed(const char *path, int clients, int prompt, int answer, int chunk, double seconds)
{
    struct err e;
    struct zfile *z = zfile_open(path, &e);
    struct model *m = z ? model_bind(z, &e) : NULL;
    const struct engine_options o = { .max_seqs = clients, .max_len = 2048, .kv = { KV_F16, KV_F16 } };
    struct engine *g = m ? engine_open(m, NULL, &o, &e) : NULL;
    const struct engine_limits l = { .max_running = clients, .chunk = chunk };
    if (!g || engine_set_limits(g, &l, &e) != 0)
        die(&e);
    struct rng r = { 1 };
    struct load all = { .gap = malloc(MOST_GAPS * sizeof(double)) };
    struct stream *s = calloc((size_t)clients, sizeof *s);
    int done = 0;
    for (int i = 0; i < clients; i++)
        s[i].n = answer;
    const uint64_t begin = now_ns();
    while ((double)(now_ns() - begin) * 1e-9 < seconds) {
        for (int i = 0; i < clients; i++) {
            if (s[i].n == answer) {
                s[i] = (struct stream){ .load = &all };
                submit(g, &r, m->config.vocab_size, prompt, answer, &s[i]);
                done++;
            }
        }
        step(g);
    }
    const double t = (double)(now_ns() - begin) * 1e-9;
    struct engine_stats st;
    engine_stats(g, &st);
    qsort(all.gap, (size_t)all.n_gaps, sizeof *all.gap, by_size);
    printf("%d clients, %d + %d tokens: %.1f answer tokens/s, %.1f prompt tokens/s; gaps: median %.2f ms, 99%% %.2f (%.2f x)\n", clients, prompt, answer,
           (double)st.generated_tokens / t, (double)(st.tokens - st.generated_tokens) / t, all.gap[all.n_gaps / 2],
           all.gap[all.n_gaps * 99 / 100], all.gap[all.n_gaps * 99 / 100] / all.gap[all.n_gaps / 2]);
    engine_close(g);
    model_close(m);
    free(all.gap);
    free(s);
}

int main(int argc, char **argv)
{
    if (argc == 8 && strcmp(argv[2], "closed") == 0) {
        closed(argv[1], atoi(argv[3]), atoi(argv[4]), atoi(argv[5]), atoi(argv[6]) < 0 ? INT_MAX : atoi(argv[6]),
               atof(argv[7]));
        return 0;
    }
    if (argc > 1) {
        load(argv[1], argc > 2 ? atoi(argv[2]) : 8, argc > 3 ? atoi(argv[3]) : 512,
             argc > 4 ? (atoi(argv[4]) < 0 ? INT_MAX : atoi(argv[4])) : 0, argc > 5 ? atof(argv[5]) : 10);
        return 0;
    }
    steps(1, 0);
    steps(16, 0);
    steps(64, 0);
    steps(64, 10000);
    return 0;
}
