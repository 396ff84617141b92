/* t-gpu-forward.c - whole models through the device's backend.  Oracle folders are compared with
 * transformers: in f32 to 1e-4 of the largest |logit| (recurrent ones 2e-4, as on the CPU), with
 * f16 weights to 2e-2, and greedy ids must be equal unless the gap between two logits is below the
 * error.  Where f16 makes a router choose another expert than f32, the same limit holds with the
 * choices of f32, and the two scores must be as near as rounding explains.  Quantized models,
 * windows, ragged batches, graphs and KV formats are compared with the CPU. */
#include "tests/lib/gpu_model.h"

#include <dirent.h>

#include "gpu/backend/internal.h"
#include "gpu/gpu.h"
#include "gpu/rt/emulated.h"
#include "libcommon/base/json.h"
#include "libcommon/engine/backend.h"

#pragma weak emulated_fail              /* a GPU has no injected faults */

enum { MAX_TOKENS = 256, N_BLOCKS = 64, N_STATES = 9 };

static int32_t argmax(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

static int wgmma;               /* backend_options.wgmma */
static int cache_weights;       /* backend_options.cache_weights */
static int device_layers;       /* backend_options.device_layers of the GPU */
static const struct step_watch *cpu_watch;      /* backend_options.watch of the CPU */
/* emulate with every access checked; this takes twice as long, and graphs are not recorded */
static int checked;

static void *backend_open(const struct backend *d, const struct model *m, enum kv_type kv, int exact)
{
    const struct backend_options o = { .debug_sync = checked, .n_threads = 2, .kv = { kv, kv }, .n_blocks = N_BLOCKS,
                                       .n_states = N_STATES, .max_tokens = MAX_TOKENS,
                                       .max_logits = MAX_TOKENS, .exact = exact,
                                       .wgmma = wgmma, .watch = d == &backend_cpu ? cpu_watch : NULL,
                                        .cache_weights = cache_weights,
                                       .device_layers = d == &backend_gpu ? device_layers : 0 };
    void *b = d->open(m, &o, &why);
    if (!b)
        fail_msg("%s", why.msg);
    return b;
}

static void forward(const struct backend *d, void *b, const int32_t *ids, int pos, int n, int n_logits, float *logits)
{
    int32_t table[N_BLOCKS];
    for (int i = 0; i < N_BLOCKS; i++)
        table[i] = (i * 5 + 3) % N_BLOCKS;
    const struct batch_item item = { .tokens = ids, .n_tokens = n, .pos = pos, .table = table, .n_logits = n_logits };
    OK(d->forward(b, &(struct batch){ &item, 1 }, logits, &why));
}

/* ---- forced choices of experts ---- */

enum { MOST_LAYERS = 8, MOST_CHOSEN = 8 };

/* The experts that the CPU chose with f32, and how the device's router differs from them. */
static struct {
    int on, layer, n_layers;            /* layer: of the next choice, of those with experts */
    int first;                          /* position of the step's first token */
    int id[MOST_LAYERS][MAX_TOKENS][MOST_CHOSEN];
    /* the largest error of each token that rounding to f16 explains: f16 has 13 bits fewer than
     * f32, so it is 2^13 times the difference between the CPU's f32 and that of transformers,
     * there or at an earlier token */
    double explained[MAX_TOKENS];
    int flips, beyond;                  /* tokens with other choices than the CPU's; gaps that nothing explains */
    double gap;                         /* the widest of theirs, of the row's largest |score| */
} chosen;

static void note_choice(void *user, int layer, const int *id, const float *weight, int n, int top_k)
{
    (void)user, (void)layer, (void)weight;
    assert_true(chosen.n_layers < MOST_LAYERS && n <= MAX_TOKENS && top_k <= MOST_CHOSEN);
    for (int i = 0; i < n * top_k; i++)
        chosen.id[chosen.n_layers][i / top_k][i % top_k] = id[i];
    chosen.n_layers++;
}
static void ignore_states(void *user, int layer, const float *x, int n, int cols)
{
    (void)user, (void)layer, (void)x, (void)n, (void)cols;
}

/* Note how far the best other expert is above the least of those chosen.  score: those by which the
 * experts of one token are chosen. */
static void note_gap(const float *score, const int *id, int n_experts, int top_k, double explained)
{
    double least = INFINITY, other = -INFINITY, largest = 0;
    for (int i = 0; i < n_experts; i++) {
        int mine = 0;
        for (int k = 0; k < top_k; k++)
            mine |= id[k] == i;
        *(mine ? &least : &other) = mine ? fmin(least, score[i]) : fmax(other, score[i]);
        largest = fmax(largest, fabs(score[i]));
    }
    const double gap = (other - least) / largest;
    chosen.beyond += gap > explained;
    chosen.gap = fmax(chosen.gap, gap);
}

/* Whether two lists have the same experts. */
static int same_experts(const int *a, const int32_t *b, int n)
{
    int found = 0;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++)
            found += a[i] == b[k];
    return found == n;
}

static void *pinned_copy(struct gpu *g, const void *from, size_t n)
{
    void *p = gpu_pinned(g, n, "test", &why);
    assert_non_null(p);
    OK(gpu_download(g, GPU_COMPUTE, p, from, n, &why));
    OK(gpu_sync(g, GPU_COMPUTE, &why));
    return p;
}

int __real_gpu_choose(struct gpu *g, const struct gpu_route *r, struct err *e);
int __wrap_gpu_choose(struct gpu *g, const struct gpu_route *r, struct err *e);

/* Compare the device's choices with the CPU's.  Groups of experts hide the scores of those outside,
 * so gaps are noted without them only. */
static void note_choices(struct gpu *g, const struct gpu_route *r)
{
    struct gpu_route all = *r;
    all.sort = 0;
    OK(__real_gpu_choose(g, &all, &why));
    const size_t n = (size_t)r->n * (size_t)r->ld;
    float *sum = calloc(n, sizeof *sum),
          *more = r->correction ? pinned_copy(g, r->correction, (size_t)r->n_experts * sizeof *more) : NULL;
    int32_t *id = pinned_copy(g, r->choice.id, (size_t)(r->n * r->top_k) * sizeof *id);
    for (int p = 0; p < r->n_parts; p++) {
        float *part = pinned_copy(g, r->part + (size_t)p * r->part_stride, n * sizeof *part);
        for (size_t i = 0; i < n; i++)
            sum[i] += part[i];
        gpu_pinned_free(g, part);
    }
    for (int t = 0; t < r->n; t++) {
        const int *want = chosen.id[chosen.layer][chosen.first + t];
        float *score = sum + t * r->ld;
        for (int i = 0; i < r->n_experts && r->router == GPU_ROUTER_SIGMOID; i++)
            score[i] = 1 / (1 + expf(-score[i])) + (more ? more[i] : 0);
        chosen.flips += !same_experts(want, id + t * r->top_k, r->top_k);
        if (r->n_groups <= 1)
            note_gap(score, want, r->n_experts, r->top_k, chosen.explained[chosen.first + t]);
    }
    free(sum);
    gpu_pinned_free(g, id), gpu_pinned_free(g, more);
}

/* In place of gpu_choose: with chosen.on, lift the scores by which experts are chosen so far that
 * the CPU's choices win; weights are made from the device's own scores. */
int __wrap_gpu_choose(struct gpu *g, const struct gpu_route *r, struct err *e)
{
    if (!chosen.on)
        return __real_gpu_choose(g, r, e);
    assert_true(chosen.layer < chosen.n_layers && chosen.first + r->n <= MAX_TOKENS &&
                (r->router == GPU_ROUTER_SOFTMAX || r->router == GPU_ROUTER_TOP_SOFTMAX ||
                 r->router == GPU_ROUTER_SIGMOID) && (!r->correction || r->router == GPU_ROUTER_SIGMOID));
    note_choices(g, r);
    const size_t row = (size_t)r->n_experts, n = (size_t)r->n * row;
    float *lift = gpu_alloc(g, n * sizeof *lift, "test", e), *host = gpu_pinned(g, n * sizeof *host, "test", e);
    assert_true(lift && host);
    memset(host, 0, n * sizeof *host);
    for (int t = 0; t < r->n; t++)
        for (int k = 0; k < r->top_k; k++)
            host[(size_t)t * row + (size_t)chosen.id[chosen.layer][chosen.first + t][k]] = 4;
    OK(gpu_upload(g, GPU_COMPUTE, lift, host, n * sizeof *lift, e));
    struct gpu_route one = *r;
    if (r->router == GPU_ROUTER_TOP_SOFTMAX) {      /* a softmax over the best is one over all, normalized */
        one.router = GPU_ROUTER_SOFTMAX;
        one.normalize = 1;
    }
    one.n = one.n_groups = 1;
    one.n_mats = 0;                     /* note_choices() has had the outputs computed */
    one.sort = 0;
    for (int t = 0; t < r->n; t++) {
        one.part = r->part + t * r->ld;
        one.correction = lift + (size_t)t * row;
        one.pos = r->pos + t;
        one.choice.id = r->choice.id + t * r->top_k;
        one.choice.weight = r->choice.weight + t * r->top_k;
        one.choice.shared = r->choice.shared ? r->choice.shared + t : NULL;
        OK(__real_gpu_choose(g, &one, e));
    }
    if (r->sort)
        OK(gpu_sort_pairs(g, r, e));
    OK(gpu_sync(g, GPU_COMPUTE, e));
    gpu_free(g, lift), gpu_pinned_free(g, host);
    chosen.layer++;
    return 0;
}

/* Compute the logits of n tokens with f32 on the CPU, and note its choices. */
static void choose_by_cpu(const struct model *m, const int32_t *id, int n, float *logits)
{
    static const struct step_watch watch = { .states = ignore_states, .experts = note_choice };
    chosen.n_layers = 0;
    cpu_watch = &watch;
    void *b = backend_open(&backend_cpu, m, KV_F32, 1);
    cpu_watch = NULL;
    forward(&backend_cpu, b, id, 0, n, n, logits);
    backend_cpu.close(b);
}

/* Compute them on the device with these choices: n as a prompt, the others, up to `all`, one by
 * one. */
static void run_forced(const struct model *m, const int32_t *id, int n, int all, float *logits)
{
    chosen.on = checked = 1;            /* no graphs */
    void *b = backend_open(&backend_gpu, m, KV_F16, 0);
    for (int t = 0; t < all; t += t ? 1 : n) {
        const int now = t ? 1 : n;
        chosen.first = t;
        chosen.layer = 0;
        forward(&backend_gpu, b, id + t, t, now, now, logits + (size_t)t * (size_t)m->config.vocab_size);
        assert_int_equal(chosen.layer, chosen.n_layers);
    }
    backend_gpu.close(b);
    chosen.on = checked = 0;
}

static double row_error(const float *got, const float *want, size_t vocab)
{
    double error = 0;
    for (size_t i = 0; i < vocab; i++)
        error = isfinite(got[i]) ? fmax(error, fabs((double)got[i] - want[i])) : INFINITY;
    return error;
}

/* A prompt of n tokens, then the n_greedy greedy ids that follow; want: logits of the prompt. */
struct oracle { int32_t id[MAX_TOKENS]; int n, n_greedy; const float *want; double largest; const json_t *gap; };

/* A folder of an oracle: its model on the device, and the worst of its prompts so far. */
struct folder {
    const char *name;
    struct model *m;
    void *b;
    FILE *logits;
    int exact, sensitive, greedy_ok;
    double limit, worst;
    float *got, *want;                  /* [MAX_TOKENS][vocab] */
};

/* Compute an oracle's tokens with the choices of f32.  Returns the error of its logits; *greedy_ok
 * becomes 0 if a greedy id differs by more than the error.  In sensitive folders, errors that
 * rounding explains count as 0, up to half of the largest logit: results of 0 are not excused. */
static double forced_error(const struct folder *d, const struct oracle *o, int *greedy_ok)
{
    const size_t vocab = (size_t)d->m->config.vocab_size;
    const int all = o->n + o->n_greedy - 1;
    float *got = malloc((size_t)all * vocab * sizeof *got);
    double worst = 0, explained = d->limit;
    choose_by_cpu(d->m, o->id, all, got);
    for (int t = 0; t < all; t++) {
        const size_t at = (size_t)t * vocab;
        if (t < o->n)
            explained = fmin(0.5, fmax(explained, 8192 * row_error(got + at, o->want + at, vocab) / o->largest));
        chosen.explained[t] = explained;
    }
    run_forced(d->m, o->id, o->n, all, got);
    for (int t = 0; t < o->n; t++) {
        const double error = row_error(got + (size_t)t * vocab, o->want + (size_t)t * vocab, vocab) / o->largest;
        worst = fmax(worst, d->sensitive && error <= chosen.explained[t] ? 0 : error);
    }
    for (int g = 0; g < o->n_greedy; g++)
        if (argmax(got + (size_t)(o->n - 1 + g) * vocab, (int)vocab) != o->id[o->n + g])
            *greedy_ok &= json_number_value(json_array_get(o->gap, (size_t)g)) <=
                          2 * chosen.explained[o->n - 1] * o->largest;
    free(got);
    return worst;
}

/* ---- against transformers ---- */

/* Load what transformers computes: its class of phimoe takes the short factors of LongRoPE in long
 * contexts too (tests/oracle/t-models.py). */
static struct model *load_as_transformers(const char *name, enum qtype type)
{
    struct model *m = load(name, type);
    for (int i = 0; strcmp(m->config.arch, "phimoe") == 0 && i < m->config.n_ropes; i++) {
        struct rope *r = &m->config.ropes[i];
        if (r->inv_freq_long)
            memcpy(r->inv_freq_long, r->inv_freq, (size_t)r->dim / 2 * sizeof *r->inv_freq);
    }
    return m;
}

static struct folder open_folder(const char *name, enum qtype type, int exact, double limit)
{
    char path[400];
    /* sensitive: a norm behind the recurrence divides by a small number, see
     * tests/oracle/t-models.py */
    struct folder d = { .name = name, .exact = exact, .limit = limit, .greedy_ok = 1,
                        .sensitive = strstr(name, "qwen3_5") != NULL };
    snprintf(path, sizeof path, "%s/models/hf/%s/logits.f32", root(), name);
    d.logits = fopen(path, "rb");
    assert_non_null(d.logits);
    d.m = load_as_transformers(name, type);
    d.b = backend_open(&backend_gpu, d.m, exact ? KV_F32 : KV_F16, exact);
    d.got = malloc(MAX_TOKENS * (size_t)d.m->config.vocab_size * sizeof *d.got);
    d.want = malloc(MAX_TOKENS * (size_t)d.m->config.vocab_size * sizeof *d.want);
    chosen.flips = chosen.beyond = 0;
    chosen.gap = 0;
    return d;
}

static void close_folder(struct folder *d)
{
    backend_gpu.close(d->b);
    model_close(d->m);
    fclose(d->logits);
    free(d->got), free(d->want);
}

/* Read a prompt, its greedy ids and its logits.  Returns 0 if it is too long for the emulation,
 * which computes prompts of 1, 7 and, with tiles, 40 tokens, and two greedy ids. */
static int read_prompt(struct folder *d, const json_t *prompt, struct oracle *o)
{
    const json_t *ids = json_object_get(prompt, "ids"), *greedy = json_object_get(prompt, "greedy");
    const size_t vocab = (size_t)d->m->config.vocab_size;
    const int all = (int)json_array_size(greedy), slow = gpu_kind[0] == 'e';
    *o = (struct oracle){ .n = (int)json_array_size(ids), .n_greedy = all > 2 && slow ? 2 : all, .want = d->want,
                          .gap = json_object_get(prompt, "greedy_gap") };
    assert_true(o->n + o->n_greedy <= MAX_TOKENS);
    if (o->n > (d->exact ? 8 : 48) && slow && !getenv("ZSE_TEST_ALL")) {
        fseek(d->logits, (long)((size_t)o->n * vocab * sizeof *d->want), SEEK_CUR);
        return 0;
    }
    for (int t = 0; t < o->n + o->n_greedy; t++)
        o->id[t] = (int32_t)json_integer_value(t < o->n ? json_array_get(ids, (size_t)t)
                                                        : json_array_get(greedy, (size_t)(t - o->n)));
    assert_int_equal(fread(d->want, sizeof *d->want * vocab, (size_t)o->n, d->logits), o->n);
    for (size_t i = 0; i < (size_t)o->n * vocab; i++)
        o->largest = fmax(o->largest, fabs((double)d->want[i]));
    return 1;
}

/* Decode behind a prompt, whose logits are in d->got.  Returns 0 if an id is not the greedy one
 * although the gap between two logits is wider than the error. */
static int decodes_same(const struct folder *d, const struct oracle *o, double error)
{
    const size_t vocab = (size_t)d->m->config.vocab_size;
    const float *last = d->got + (size_t)(o->n - 1) * vocab;
    for (int g = 0; g < o->n_greedy; g++) {
        if (argmax(last, (int)vocab) != o->id[o->n + g])
            return json_number_value(json_array_get(o->gap, (size_t)g)) <= 2 * error * o->largest + 1e-6;
        forward(&backend_gpu, d->b, o->id + o->n + g, o->n + g, 1, 1, d->got);
        last = d->got;
    }
    return 1;
}

static void check_prompt(struct folder *d, const struct oracle *o)
{
    forward(&backend_gpu, d->b, o->id, 0, o->n, o->n, d->got);
    double error = error_of(d->got, d->want, (size_t)o->n * (size_t)d->m->config.vocab_size);
    int same = decodes_same(d, o, error);
    if ((error > d->limit || !same) && (d->m->config.moe.n_experts || d->sensitive) && !d->exact) {
        const int flips = chosen.flips;
        int forced_same = 1;
        const double forced = forced_error(d, o, &forced_same);
        print_message("# %-18s | %.1e with %d tokens%s, of which rounding explains up to %.1e\n", d->name, error, o->n,
                      same ? "" : " and other greedy ids", chosen.explained[o->n - 1]);
        if (chosen.flips > flips || d->sensitive) {     /* no excuse if all choices are those of f32 */
            error = forced;
            same = forced_same;
        }
    }
    d->worst = fmax(d->worst, error);
    d->greedy_ok &= same;
}

static void check_folder(const char *name, enum qtype type, int exact, double limit)
{
    char path[400];
    snprintf(path, sizeof path, "%s/models/hf/%s/expected.json", root(), name);
    json_t *expected = js_load(path, 1 << 24, &why);
    assert_non_null(expected);
    struct folder d = open_folder(name, type, exact, limit);
    struct oracle o;
    size_t i;
    const json_t *prompt;
    json_array_foreach(json_object_get(expected, "prompts"), i, prompt)
        if (read_prompt(&d, prompt, &o))
            check_prompt(&d, &o);
    print_message("# %-18s | %-4s | %.1e | %s\n", name, exact ? "f32" : qtype_info(type)->name, d.worst,
                  d.greedy_ok ? "ok" : "DIFFERENT");
    if (chosen.flips)
        print_message("# %-18s | %d choices differ, by at most %.1e of the scores\n", name, chosen.flips,
                      chosen.gap);
    if (chosen.beyond)
        fail_msg("%s: %d choices of experts differ by more than rounding explains", name, chosen.beyond);
    if (!(d.worst <= limit) || !d.greedy_ok)
        fail_msg("%s: error %.3g of the largest logit, limit %.0e; greedy ids %s", name, d.worst, limit,
                 d.greedy_ok ? "equal" : "DIFFERENT");
    close_folder(&d);
    json_decref(expected);
}

/* One folder for each part of the code that no other folder uses; model/config.c shows what the
 * names stand for. */
static const char *const in_f32[] = { "qwen2_moe", "granitemoe", "glm4_moe", "gpt_oss", "../hf-2026/phimoe",
                                      "../hf-2026/cohere2_moe",
                                      "llama-odd", "gemma2", "bloom", "opt", "gptj", "gpt_neox", "cohere", "olmo2",
                                      "hunyuan", "phi3-longrope", "nemotron", "../hf-2026/olmo3",
                                      "lfm2", "mamba2", "granitemoehybrid", "nemotron_h", "qwen3_next",
                                      "../hf-2026/qwen3_5", "../hf-2026/afmoe",
                                      "deepseek_v2_lite", "deepseek_v3", "../hf-2026/kimi_linear",
                                      "llama4_text", "bitnet", "../hf-2026/mistral4", "../hf-2026/nanochat" };
static const char *const in_f16[] = { "llama-odd", "bloom", "qwen2_moe", "gpt_oss", "lfm2", "granitemoehybrid",
                                      "qwen3_next", "../hf-2026/qwen3_5_moe",
                                      "../hf-2026/qwen3_5", "../hf-2026/minicpm3", "llama4_text",
                                      "bitnet" };

/* Recurrent models have twice the limit of f32, as in tests/oracle/t-models.py. */
static double limit_of(const char *name, double limit)
{
    static const char *const recurrent[] = { "granitemoehybrid", "lfm2", "mamba2", "nemotron_h", "qwen3_next" };
    for (size_t i = 0; i < sizeof recurrent / sizeof *recurrent; i++)
        if (strcmp(name, recurrent[i]) == 0 && limit < 1e-3)
            return 2 * limit;
    return limit;
}

static int visible(const struct dirent *d) { return d->d_name[0] != '.'; }

/* Call `check` for the folders of all families, named as load() takes them. */
static void each_family(void (*check)(const char *name, void *user), void *user)
{
    static const char *const under[] = { "hf", "hf-2026" };
    for (size_t k = 0; k < sizeof under / sizeof *under; k++) {
        char path[400];
        struct dirent **all;
        snprintf(path, sizeof path, "%s/models/%s", root(), under[k]);
        const int n = scandir(path, &all, visible, alphasort);
        for (int i = 0; i < n; i++) {
            snprintf(path, sizeof path, "../%s/%s", under[k], all[i]->d_name);
            check(path, user);
            free(all[i]);
        }
        if (n >= 0)
            free(all);
    }
}

/* Read the configuration of a family.  Returns the part of it that the device lacks; NULL: none. */
static const char *lacks(const char *name, struct config *c)
{
    char path[400];
    snprintf(path, sizeof path, "%s/models/hf/%s", root(), name);
    struct source *s = source_open(path, &why);
    if (!s)
        fail_msg("%s", why.msg);
    OK(config_parse(c, s->config, &why));
    source_close(s);
    return config_beyond(c, DEVICE_FEATURES);
}

struct folder_limits { enum qtype type; int exact; double limit; };

static void check_family(const char *name, void *user)
{
    const struct folder_limits *o = user;
    struct config c;
    const char *part = lacks(name, &c);
    if (part)
        print_message("# %-18s | refused: %s\n", name, part);
    else
        check_folder(name, o->type, o->exact, limit_of(strrchr(name, '/') + 1, o->limit));
    config_release(&c);
}

static void folders(const char *const *names, size_t n, enum qtype type, int exact, double limit)
{
    const char *only = getenv("ZSE_TEST_FOLDER");
    if (!have_oracles()) {
        print_message("# skipped: no oracles (set ZSE_ORACLES)\n");
        skip();
    }
    for (size_t i = 0; i < n && !only; i++)
        check_folder(names[i], type, exact, limit_of(names[i], limit));
    if (only && strcmp(only, "all") == 0)               /* all folders, by hand */
        each_family(check_family, &(struct folder_limits){ type, exact, limit });
    else if (only)                      /* any folder, by hand */
        check_folder(only, type, exact, limit_of(only, limit));
}
static void exact_folders(void **state)
{
    (void)state;
    folders(in_f32, sizeof in_f32 / sizeof *in_f32, QT_F32, 1, 1e-4);
}
static void f16_folders(void **state) { (void)state; folders(in_f16, sizeof in_f16 / sizeof *in_f16, QT_F16, 0, 2e-2); }

/* ---- against the CPU: our own model, in other types ---- */

/* Compare all logits of TEXT, and then those of more tokens one by one, with the CPU, which
 * computes exactly, so that only the device's rounding counts. */
static void against_cpu(struct model *m, enum kv_type kv, int exact, double limit, const char *what)
{
    enum { MOST = 40, FIRST = 18 };
    const int LEN = checked ? FIRST + 1 : MOST - 3, MORE = checked ? 1 : 3;
    const size_t vocab = (size_t)m->config.vocab_size;
    int32_t id[MOST];
    struct rng r = { 11 };
    for (int i = 0; i < LEN + MORE; i++)
        id[i] = below(&r, (int)vocab);
    float *got = malloc(MOST * vocab * sizeof *got), *want = malloc(MOST * vocab * sizeof *want);
    const struct backend *d[2] = { &backend_gpu, &backend_cpu };
    for (int k = 0; k < 2; k++) {
        float *out = k ? want : got;
        void *b = backend_open(d[k], m, kv, k ? 1 : exact);
        forward(d[k], b, id, 0, FIRST, FIRST, out);
        forward(d[k], b, id + FIRST, FIRST, LEN - FIRST, LEN - FIRST, out + FIRST * vocab);
        for (int i = LEN; i < LEN + MORE; i++)
            forward(d[k], b, id + i, i, 1, 1, out + (size_t)i * vocab);
        d[k]->close(b);
    }
    const double error = error_of(got, want, (size_t)(LEN + MORE) * vocab);
    print_message("# %-24s | %.1e\n", what, error);
    if (!(error <= limit))
        fail_msg("%s: error %.3g of the largest logit, limit %.0e", what, error, limit);
    free(got), free(want);
}

/* ---- mixtures of experts ---- */

static void mixtures(void **state)
{
    (void)state;
    static const struct { enum qtype type; int group; } cases[] = { { QT_NL4, 32 }, { QT_F32, 32 }, { QT_I4Z, 128 },
                                                                    { QT_MXFP4, 32 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t *owned[MOST_EXPERT_MATS];
        char what[40];
        struct model *m = load("tiny", QT_F16);
        int n = make_mixture(m, cases[i].type, cases[i].group, owned);
        snprintf(what, sizeof what, "experts in %s", qtype_info(cases[i].type)->name);
        checked = i == 0;
        against_cpu(m, KV_F16, 0, 2e-2, what);
        checked = 0;
        if (i == 0)
            against_cpu(m, KV_F32, 1, 1e-4, "the same, exact");
        while (n)
            free(owned[--n]);
        model_close(m);
    }
}

enum { MOST_OWNED = 7 * 64 + 1 };
/* Quantize the matrices of the layers; the second layer has matrices of different types.  Returns
 * the number of elements of `owned`, which the caller frees. */
static int quantize_layers(struct model *m, enum qtype type, int group, uint8_t *owned[MOST_OWNED])
{
    int n = 0;
    for (int k = 0; k < m->config.n_layers; k++) {
        struct layer *l = &m->layers[k];
        struct linear *all[] = { &l->q, &l->k, &l->v, &l->o, &l->gate, &l->up, &l->down };
        for (int j = 0; j < 7; j++)
            owned[n++] = k == 1 && j % 3 == 1 ? quantize(all[j], QT_I8, 32) : k == 1 &&
                         j == 6 ? quantize(all[j], QT_F32, 32) : quantize(all[j], type, group);
    }
    return n;
}

static void types(void **state)
{
    (void)state;
    static const struct { enum qtype type; int group; } cases[] = { { QT_NL4, 32 }, { QT_I4, 128 }, { QT_I8, 64 },
                                                                    { QT_M6, 32 }, { QT_BF16, 32 }, { QT_FP8, 128 },
                                                                    { QT_T3, 256 } };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct model *m = load("tiny", QT_F32);
        uint8_t *owned[MOST_OWNED];
        int n = quantize_layers(m, cases[i].type, cases[i].group, owned);
        checked = i == 0;
        against_cpu(m, KV_F16, 0, 2e-2, qtype_info(cases[i].type)->name);
        checked = 0;
        if (i == 0)
            against_cpu(m, KV_F32, 1, 1e-4, "the same, exact");
        while (n)
            free(owned[--n]);
        model_close(m);
    }
}

/* With a tail and f32 activations, beside the CPU: a prompt in two steps, the second of which reads
 * tokens 64 to 127 rounded, then single tokens.  Entries of the tail's table that nothing may read
 * are invalid. */
static void tail_against_cpu(struct model *m, enum kv_type kv, double limit)
{
    enum { FIRST = 256, SECOND = 20, ONE = 2, LEN = FIRST + SECOND + ONE, WINDOWS = N_BLOCKS / 2 };
    const size_t vocab = (size_t)m->config.vocab_size, n_out = (SECOND + ONE) * vocab;
    int32_t id[LEN], table[N_BLOCKS], tail[N_BLOCKS];
    float *out[2] = { malloc(n_out * sizeof(float)), malloc(n_out * sizeof(float)) };
    const struct backend *d[2] = { &backend_gpu, &backend_cpu };
    struct rng r = { 12 };
    for (int i = 0; i < LEN; i++)
        id[i] = below(&r, (int)vocab);
    for (int k = 0; k < 2; k++) {
        const struct backend_options o = { .n_threads = 2, .kv = { kv, kv }, .n_blocks = N_BLOCKS,
                                           .n_window_blocks = WINDOWS, .max_tokens = MAX_TOKENS, .exact = 1,
                                           .max_logits = MAX_TOKENS };
        void *b = d[k]->open(m, &o, &why);
        if (!b)
            fail_msg("%s", why.msg);
        int row = 0;
        for (int pos = 0, n = FIRST; pos < LEN; pos += n, n = pos < FIRST + SECOND ? SECOND : 1) {
            for (int i = 0; i < N_BLOCKS; i++) {
                table[i] = (i * 5 + 3) % N_BLOCKS;
                tail[i] = i * KV_BLOCK < KV_SINKS || i * KV_BLOCK >= kv_tail_from(pos) ? (i * 5 + 2) % WINDOWS : -1;
            }
            const struct batch_item item = { .tokens = id + pos, .n_tokens = n, .pos = pos, .table = table,
                                             .window_table = tail, .n_logits = pos ? n : 0 };
            OK(d[k]->forward(b, &(struct batch){ &item, 1 }, out[k] + (size_t)row * vocab, &why));
            row += item.n_logits;
        }
        d[k]->close(b);
    }
    const double error = error_of(out[0], out[1], n_out);
    print_message("# KV %s with a tail | %.1e\n", kv_type_name(kv), error);
    if (!(error <= limit))
        fail_msg("%s with a tail: error %.3g of the largest logit, limit %.0e", kv_type_name(kv), error, limit);
    free(out[0]), free(out[1]);
}

static void kv_formats(void **state)
{
    (void)state;
    struct model *m = load("tiny", QT_F16);
    against_cpu(m, KV_F32, 0, 2e-2, "KV f32");
    against_cpu(m, KV_BF16, 0, 2e-2, "KV bf16");
    against_cpu(m, KV_I8, 0, 3e-2, "KV i8");            /* both sides round to 8 bits, not always the same way */
    against_cpu(m, KV_F8, 0, 4e-2, "KV fp8");           /* 3 bits after the point */
    against_cpu(m, KV_I4, 0, 4e-2, "KV i4");
    against_cpu(m, KV_T2, 0, 4e-2, "KV ternary");
    tail_against_cpu(m, KV_I4, 1e-3);
    tail_against_cpu(m, KV_T2, 1e-3);
    model_close(m);
}

/* Run the same model with both kernels for many tokens.  In the emulation the sums have the same
 * order; a GPU rounds in its own way. */
static void by_wgmma(void **state)
{
    (void)state;
    enum { N = 140, LOGITS = 20 };
    struct model *m = load("tiny", QT_F16);
    const size_t size = LOGITS * (size_t)m->config.vocab_size;
    float *logits[2];
    int32_t ids[N];
    for (int i = 0; i < N; i++)
        ids[i] = (i * 37 + 11) % m->config.vocab_size;
    for (wgmma = 0; wgmma < 2; wgmma++) {
        void *b = backend_open(&backend_gpu, m, KV_F16, 0);
        logits[wgmma] = malloc(size * sizeof **logits);
        forward(&backend_gpu, b, ids, 0, N, LOGITS, logits[wgmma]);
        backend_gpu.close(b);
    }
    if (gpu_kind[0] == 'e')
        assert_memory_equal(logits[1], logits[0], size * sizeof **logits);
    else if (!(error_of(logits[1], logits[0], size) <= 5e-3))
        fail_msg("by wgmma: error %.3g of the largest logit", error_of(logits[1], logits[0], size));
    if (emulated_fail) {                                /* check that the wgmma kernel is used: if
                                                         * its launch fails, the step fails */
        int32_t table[N_BLOCKS] = { 0, 1, 2, 3, 4, 5, 6, 7, 8 };
        const struct batch_item item = { .tokens = ids, .n_tokens = N, .table = table, .n_logits = 1 };
        wgmma = checked = 1;
        void *b = backend_open(&backend_gpu, m, KV_F16, 0);
        emulated_fail("matmul_hopper", 1);
        assert_int_equal(backend_gpu.forward(b, &(struct batch){ &item, 1 }, logits[0], &why), -1);
        assert_non_null(strstr(why.msg, "matmul_hopper"));
        emulated_fail(NULL, 0);
        backend_gpu.close(b);
    }
    wgmma = checked = 0;
    free(logits[0]), free(logits[1]);
    model_close(m);
}

/* With f16 copies of the weights the logits of a prompt have the same bits, with both kernels for
 * many tokens.  Later tokens and short prompts use the packed weights. */
static void copies(void **state)
{
    (void)state;
    enum { N = 140, LOGITS = 3 };
    static const struct { enum qtype type; int group; } cases[] = { { QT_NL4, 32 }, { QT_I4Z, 64 } };
    int32_t ids[N + 1];
    for (int t = 0; t < 2; t++) {
        struct model *m = load("tiny", QT_F32);
        uint8_t *owned[MOST_OWNED];
        const int n_owned = quantize_layers(m, cases[t].type, cases[t].group, owned);
        const size_t vocab = (size_t)m->config.vocab_size;
        float *want = malloc((LOGITS + 1) * vocab * sizeof *want), *got = malloc((LOGITS + 1) * vocab * sizeof *got);
        for (int i = 0; i <= N; i++)
            ids[i] = (i * 37 + 11) % m->config.vocab_size;
        for (wgmma = 0; wgmma < (t == 0 ? 2 : 1); wgmma++)
            for (cache_weights = CACHE_WEIGHTS_OFF; cache_weights <= CACHE_WEIGHTS_ON; cache_weights++) {
                struct backend_device d;
                void *b = backend_open(&backend_gpu, m, KV_F16, 0);
                backend_gpu.device(b, &d);
                assert_int_equal(d.cached > 0, !d.cache_off);
                if (cache_weights != CACHE_WEIGHTS_AUTO)        /* AUTO depends on the device */
                    assert_int_equal(d.cached > 0, cache_weights == CACHE_WEIGHTS_ON);
                float *to = cache_weights == CACHE_WEIGHTS_OFF ? want : got;
                forward(&backend_gpu, b, ids, 0, N, LOGITS, to);
                forward(&backend_gpu, b, ids + N, N, 1, 1, to + LOGITS * vocab);
                if (cache_weights != CACHE_WEIGHTS_OFF)
                    assert_memory_equal(got, want, (LOGITS + 1) * vocab * sizeof *got);
                backend_gpu.close(b);
            }
        wgmma = cache_weights = 0;
        free(want), free(got);
        for (int i = 0; i < n_owned; i++)
            free(owned[i]);
        model_close(m);
    }
}

enum { N_BATCHED = 3 };

/* Draw tokens on the device at position i of a batch: first for all sequences but the last, so that
 * logits are returned, too; then for all, so that none are.  alone [N_BATCHED]: the logits of each
 * sequence alone. */
static void batched_draws(void *b, struct batch_item item[N_BATCHED], int i, float *const *alone, float *got,
                          size_t vocab)
{
    struct draw draw[2][N_BATCHED];
    for (int all = 0; all < 2; all++) {
        for (int s = 0; s < N_BATCHED; s++) {
            draw[all][s] = (struct draw){ .temperature = s == 1 ? 0.8f : 0, .top_p = 1, .seed = 4, .n = (uint64_t)i,
                                          .id = -1 };
            item[s].draw = all || s < N_BATCHED - 1 ? &draw[all][s] : NULL;
        }
        got[0] = 1234;
        OK(backend_gpu.forward(b, &(struct batch){ item, N_BATCHED }, got, &why));
        for (int s = 0; s < N_BATCHED; s += 2)
            assert_int_equal(draw[all][s].id, item[s].draw ? argmax(alone[s] + (size_t)i * vocab, (int)vocab) : -1);
        assert_true(draw[all][1].id >= 0 && draw[all][1].id < (int)vocab && draw[all][1].id == draw[0][1].id);
        assert_true(all ? got[0] == 1234
                        : memcmp(got + 2 * vocab, alone[2] + (size_t)i * vocab, vocab * sizeof *got) == 0);
    }
}

/* Each sequence of a ragged batch gets the logits that it gets alone, a replayed graph gives the
 * same as launches, and blocks can be copied. */
static void check_batches(struct model *m)
{
    enum { N = N_BATCHED, LEN = 22, SINGLE = 4 };     /* the last SINGLE tokens one by one */
    const size_t vocab = (size_t)m->config.vocab_size;
    int32_t id[N][LEN], table[N][4] = { { 1, 5, 9, 0 }, { 2, 6, 10, 0 }, { 3, 7, 11, 0 } };
    struct rng r = { 3 };
    for (int s = 0; s < N; s++)
        for (int i = 0; i < LEN; i++)
            id[s][i] = below(&r, (int)vocab);
    float *alone[N], *got = malloc(64 * vocab * sizeof *got);
    void *b = backend_open(&backend_gpu, m, KV_F16, 0);
    for (int s = 0; s < N; s++) {
        alone[s] = malloc(LEN * vocab * sizeof *got);
        const struct batch_item begin = { .tokens = id[s], .n_tokens = LEN - SINGLE, .table = table[s], .n_logits = 1 };
        OK(backend_gpu.forward(b, &(struct batch){ &begin, 1 }, got, &why));
        for (int i = LEN - SINGLE; i < LEN; i++) {
            const struct batch_item item = { .tokens = &id[s][i], .n_tokens = 1, .pos = i, .table = table[s],
                                             .n_logits = 1 };
            OK(backend_gpu.forward(b, &(struct batch){ &item, 1 }, alone[s] + (size_t)i * vocab, &why));
        }
    }
    /* three sequences decode together and are padded to 4; the second step is recorded, later ones
     * are replayed */
    for (int i = LEN - SINGLE; i < LEN; i++) {
        struct batch_item item[N];
        for (int s = 0; s < N; s++)
            item[s] = (struct batch_item){ .tokens = &id[s][i], .n_tokens = 1, .pos = i, .table = table[s],
                                           .n_logits = 1 };
        OK(backend_gpu.forward(b, &(struct batch){ item, N }, got, &why));
        for (int s = 0; s < N; s++)
            if (memcmp(got + (size_t)s * vocab, alone[s] + (size_t)i * vocab, vocab * sizeof *got) != 0)
                fail_msg("sequence %d, position %d: other bits in a batch than alone", s, i);
        batched_draws(b, item, i, alone, got, vocab);
    }
    /* a prompt in tiles beside sequences that decode, one of which requests no logits */
    const struct batch_item mixed[N] = { { .tokens = &id[0][LEN - 1], .n_tokens = 1, .pos = LEN - 1, .table = table[0],
                                           .n_logits = 1 },
                                         { .tokens = id[1], .n_tokens = LEN, .pos = 0, .table = table[1],
                                           .n_logits = 2 },
                                         { .tokens = &id[2][LEN - 2], .n_tokens = 2, .pos = LEN - 2, .table = table[2],
                                           .n_logits = 0 } };
    OK(backend_gpu.forward(b, &(struct batch){ mixed, N }, got, &why));
    assert_true(error_of(got, alone[0] + (LEN - 1) * vocab, vocab) < 1e-2);
    assert_true(error_of(got + vocab, alone[1] + (LEN - 2) * vocab, 2 * vocab) < 1e-2);
    /* the last token again, on copies of the blocks */
    const int32_t copies[4] = { 20, 21, 22, 0 };
    for (int i = 0; i < 2; i++)
        OK(backend_gpu.copy_block(b, table[0][i], copies[i], &why));
    struct batch_item again = { .tokens = &id[0][LEN - 1], .n_tokens = 1, .pos = LEN - 1, .table = copies,
                                .n_logits = 1 };
    OK(backend_gpu.forward(b, &(struct batch){ &again, 1 }, got, &why));
    assert_true(error_of(got, alone[0] + (LEN - 1) * vocab, vocab) < 1e-2);
    struct draw largest = { .top_p = 1, .id = -1 };
    const int32_t want = argmax(got, (int)vocab);
    /* after a prompt: no graph */
    again = (struct batch_item){ .tokens = id[0], .n_tokens = LEN, .table = copies, .n_logits = 1, .draw = &largest };
    OK(backend_gpu.forward(b, &(struct batch){ &again, 1 }, got, &why));
    assert_int_equal(largest.id, want);
    backend_gpu.close(b);
    for (int s = 0; s < N; s++)
        free(alone[s]);
    free(got);
}

static void batches(void **state)
{
    (void)state;
    struct model *m = load("tiny", QT_F16);
    check_batches(m);
    uint8_t *owned[MOST_EXPERT_MATS];
    int n = make_mixture(m, QT_I4Z, 128, owned);
    check_batches(m);
    while (n)
        free(owned[--n]);
    model_close(m);
}

static void ungated_mixtures(void **state)
{
    (void)state;
    static const enum qtype types[] = { QT_NL4, QT_F32 };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        uint8_t *owned[MOST_EXPERT_MATS];
        struct model *m = load("tiny", QT_F16);
        int n = make_mixture(m, types[i], 32, owned);
        remove_gates(m);
        checked = i == 0;
        against_cpu(m, KV_F16, 0, 2e-2, i ? "f32 experts without gate" : "nl4 experts without gate");
        checked = 0;
        if (i == 0)
            against_cpu(m, KV_F32, 1, 1e-4, "the same, exact");
        check_batches(m);
        while (n)
            free(owned[--n]);
        model_close(m);
    }
}

/* Layers with a state: sequences in a batch, a replayed graph, copied states and several tokens at
 * once (as drafts are checked) give the bits that single tokens of one sequence give. */
static void check_states(const char *name)
{
    enum { N = 3, PROMPT = 18, LEN = 22 };
    struct model *m = load(name, QT_F16);
    const size_t vocab = (size_t)m->config.vocab_size;
    int32_t id[N][LEN], table[N][3] = { { 1, 5, 9 }, { 2, 6, 10 }, { 3, 7, 11 } };
    struct rng r = { 5 };
    for (int s = 0; s < N; s++)
        for (int i = 0; i < LEN; i++)
            id[s][i] = below(&r, (int)vocab);
    float *alone = malloc(N * LEN * vocab * sizeof *alone), *got = malloc(LEN * vocab * sizeof *got);
    void *b = backend_open(&backend_gpu, m, KV_F16, 0);
    for (int s = 0; s < N; s++)
        for (int i = 0; i < LEN; i += i == 0 ? PROMPT : 1) {
            const struct batch_item item = { .tokens = &id[s][i], .n_tokens = i == 0 ? PROMPT : 1, .pos = i,
                                             .table = table[s], .state = s, .n_logits = 1 };
            OK(backend_gpu.forward(b, &(struct batch){ &item, 1 }, alone + (size_t)(s * LEN + i) * vocab, &why));
            for (int to = N; i == 0 && to < 3 * N; to += N)
                OK(backend_gpu.copy_state(b, s, s + to, &why));
        }
    for (int i = PROMPT; i < LEN; i++) {        /* padded to 4 tokens, from the second step on as a graph */
        struct batch_item item[N];
        for (int s = 0; s < N; s++)
            item[s] = (struct batch_item){ .tokens = &id[s][i], .n_tokens = 1, .pos = i, .table = table[s],
                                           .state = N + s, .n_logits = 1 };
        OK(backend_gpu.forward(b, &(struct batch){ item, N }, got, &why));
        for (int s = 0; s < N; s++)
            if (memcmp(got + (size_t)s * vocab, alone + (size_t)(s * LEN + i) * vocab, vocab * sizeof *got) != 0)
                fail_msg("%s: sequence %d, position %d: other bits in a batch than alone", name, s, i);
    }
    struct batch_item item[2];                  /* 4 tokens and 3, padded to 8 */
    for (int s = 0; s < 2; s++)
        item[s] = (struct batch_item){ .tokens = &id[s][PROMPT], .n_tokens = LEN - PROMPT - s, .pos = PROMPT,
                                       .table = table[s], .state = 2 * N + s, .n_logits = LEN - PROMPT - s };
    OK(backend_gpu.forward(b, &(struct batch){ item, 2 }, got, &why));
    assert_memory_equal(got, alone + PROMPT * vocab, (LEN - PROMPT) * vocab * sizeof *got);
    assert_memory_equal(got + (LEN - PROMPT) * vocab, alone + (LEN + PROMPT) * vocab,
                        (LEN - PROMPT - 1) * vocab * sizeof *got);
    assert_int_equal(backend_gpu.copy_state(b, 0, N_STATES, &why), -1);
    item[0].state = N_STATES;
    assert_int_equal(backend_gpu.forward(b, &(struct batch){ item, 1 }, got, &why), -1);
    assert_non_null(strstr(why.msg, "state 9, expected 0 to 8"));
    backend_gpu.close(b);
    model_close(m);
    free(alone), free(got);
}

static void recurrent_batches(void **state)
{
    (void)state;
    if (!have_oracles())
        skip();
    struct model *m = load("lfm2", QT_F32);     /* the CPU has the first layers, and their states */
    device_layers = 2;
    against_cpu(m, KV_F32, 1, 1e-4, "two layers of lfm2");
    device_layers = 0;
    model_close(m);
    check_states("lfm2");
    check_states("granitemoehybrid");
    check_states("../hf-2026/qwen3_5");
}

/* Layers whose experts have different types are refused, and so are models with a part that the
 * device does not support. */
static void refused_mixtures(void **state)
{
    (void)state;
    uint8_t *owned[MOST_EXPERT_MATS + 1];
    struct model *m = load("tiny", QT_F16);
    int n = make_mixture(m, QT_NL4, 32, owned);
    struct backend_options o = { .kv = { KV_F16, KV_F16 }, .n_blocks = 4, .max_tokens = 65536, .max_logits = 8 };
    assert_null(backend_gpu.open(m, &o, &why));
    assert_non_null(strstr(why.msg, "steps of 65536 tokens, expected at most 65535"));
    o.max_tokens = 65535;
    m->config.moe.top_k = 8;
    assert_null(backend_gpu.open(m, &o, &why));
    assert_non_null(strstr(why.msg, "steps of 65535 tokens with 8 experts"));
    m->config.moe.top_k = 2;
    o.max_tokens = 8;
    owned[n++] = quantize(&m->layers[2].experts[3].up, QT_I8, 32);
    assert_null(backend_gpu.open(m, &o, &why));
    assert_non_null(strstr(why.msg, "layer 2: experts of different types"));
    m->config.moe.latent = 1;
    assert_null(backend_gpu.open(m, &o, &why));
    assert_non_null(strstr(why.msg, "experts in a latent space"));
    m->config.moe.latent = 0;
    m->config.moe.beside = 1;
    assert_null(backend_gpu.open(m, &o, &why));
    assert_non_null(strstr(why.msg, "an MLP beside experts"));
    m->config.moe.beside = 0;
    m->config.moe.top_k = 33;
    assert_null(backend_gpu.open(m, &o, &why));
    assert_non_null(strstr(why.msg, "each token chooses 33 of 6 experts"));
    m->config.moe.top_k = 2;
    while (n)
        free(owned[--n]);
    model_close(m);
}

/* README's table of refused families, with rows "| PART | NAME (`TYPE`), ... |".  `unproved` is a
 * copy in which types that a folder confirmed are blank. */
struct refused_table { char text[8192], unproved[8192]; };

static void read_refused(struct refused_table *t)
{
    static char readme[1 << 17];
    FILE *f = fopen("README.md", "r");
    if (!f)                             /* the pack of scripts/gpu-check */
        skip();
    assert_in_range(fread(readme, 1, sizeof readme - 1, f), 1, sizeof readme - 2);
    fclose(f);
    const char *from = strstr(readme, "\n| a GPU lacks |"), *end = from ? strstr(from, "\n\n") : NULL;
    assert_true(end && (size_t)(end - from) < sizeof t->text - 1);
    snprintf(t->text, sizeof t->text, "%.*s\n", (int)(end - from), from);
    memcpy(t->unproved, t->text, sizeof t->text);
}

/* A family is in the row of the part that the device lacks, or in no row. */
static void compare_refusal(const char *name, void *user)
{
    struct refused_table *t = user;
    struct config c;
    const char *part = lacks(name, &c);
    char key[100], type[40];
    snprintf(key, sizeof key, "\n| %s | ", part ? part : "");
    snprintf(type, sizeof type, "`%s`", c.arch);
    const char *row = part ? strstr(t->text, key) : t->text, *found = row ? strstr(row, type) : NULL;
    if (part && (!found || found > strchr(row + 1, '\n')))
        fail_msg("README.md: a GPU refuses %s (%s), but the table has no row \"%s\" with it", c.arch, name, part);
    if (!part && found)
        fail_msg("README.md: a GPU runs %s (%s), but the table of refused families has it", c.arch, name);
    if (part)
        memset(t->unproved + (found - t->text), ' ', strlen(type));
    config_release(&c);
}

static void refused_families(void **state)
{
    (void)state;
    struct refused_table t;
    if (!have_oracles())
        skip();
    read_refused(&t);
    each_family(compare_refusal, &t);
    if (strchr(t.unproved, '`'))
        fail_msg("README.md: no folder is refused for this entry: %.40s", strchr(t.unproved, '`'));
}

static void refusals(void **state)
{
    (void)state;
    struct model *m = load("tiny", QT_F16);
    struct backend_options o = { .kv = { KV_F16, KV_F16 }, .n_blocks = 4, .max_tokens = 8, .max_logits = 8 };
    float *logits = malloc(8 * (size_t)m->config.vocab_size * sizeof *logits);
    void *b = backend_gpu.open(m, &o, &why);
    assert_non_null(b);
    const int32_t ids[2] = { 1, m->config.vocab_size }, table[1] = { 4 }, good[1] = { 0 };
    assert_int_equal(backend_gpu.forward(b, &(struct batch){ &(struct batch_item){ .tokens = ids, .n_tokens = 1,
        .table = table }, 1 }, logits, &why), -1);
    assert_non_null(strstr(why.msg, "KV block 4"));
    assert_int_equal(backend_gpu.forward(b, &(struct batch){ &(struct batch_item){ .tokens = ids, .n_tokens = 2,
        .table = good }, 1 }, logits, &why), -1);
    assert_non_null(strstr(why.msg, "vocabulary"));
    assert_int_equal(backend_gpu.copy_block(b, 0, 4, &why), -1);
    backend_gpu.close(b);
    o.device = 99;
    assert_null(backend_gpu.open(m, &o, &why));
    assert_non_null(strstr(why.msg, "99"));
    o.device = 0;
    o.n_blocks = INT32_MAX / KV_BLOCK;
    /* petabytes: refused before anything is allocated, with numbers */
    assert_null(backend_gpu.open(m, &o, &why));
    assert_non_null(strstr(why.msg, "MB"));
    free(logits);
    model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_wgmma), cmocka_unit_test(copies), cmocka_unit_test(types), cmocka_unit_test(kv_formats),
            cmocka_unit_test(mixtures), cmocka_unit_test(ungated_mixtures), cmocka_unit_test(batches),
            cmocka_unit_test(refusals), cmocka_unit_test(recurrent_batches), cmocka_unit_test(refused_mixtures),
            cmocka_unit_test(refused_families),
        cmocka_unit_test(exact_folders), cmocka_unit_test(f16_folders),
    };
    if (gpu_kind[0] != 'e' && !device_usable())
        return 0;
    if (getenv("ZSE_ONLY"))
        cmocka_set_test_filter(getenv("ZSE_ONLY"));
    if (getenv("ZSE_SANITIZED"))        /* under a sanitizer only the tests of the backend's host
                                         * code run */
        return cmocka_run_group_tests(((const struct CMUnitTest[]){ cmocka_unit_test(batches),
                                                                    cmocka_unit_test(refusals) }), NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
