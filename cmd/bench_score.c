/* bench_score.c - write logits to a file, measure the perplexity of a text and the distance of a
 * model from a reference. */
#include "cmd/zse-bench.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "cmd/cli.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/file.h"
#include "libcommon/base/pool.h"
#include "libcommon/base/progress.h"
#include "libcommon/hw/sysfile.h"

static const char prog[] = "zse-bench";

/* ---- logits ---- */

int32_t *bench_ids(const char *text, int *n, struct err *e)
{
    int32_t *ids = malloc((strlen(text) / 2 + 1) * sizeof *ids);
    const char *p = text;
    *n = 0;
    if (!ids) {
        err_nomem(e, "ids");
        return NULL;
    }
    for (p += strspn(p, " ,\t\n[]"); *p; p += strspn(p, " ,\t\n[]")) {
        char *end;
        errno = 0;
        long v = strtol(p, &end, 10);
        if (end == p || errno || v < 0 || v > INT32_MAX) {
            err_set(e, ERR_FORMAT, "--ids: '%.20s', expected token ids like '1 5 9'", p);
            free(ids);
            return NULL;
        }
        ids[(*n)++] = (int32_t)v;
        p = end;
    }
    return ids;
}

int bench_logits(const struct bench_options *options, const char *model)
{
    struct bench_options o = *options;
    struct opened_model m = { 0 };
    struct engine *g = NULL;
    struct err e;
    int n, rc = -1;
    float *logits = NULL;
    int32_t *ids = bench_ids(o.ids, &n, &e);
    o.run.exact = 1;
    o.run.kv = kv_both(KV_F32);
    if (!ids || open_model(prog, model, &o.run, &m, &e) != 0)
        goto done;
    size_t vocab = (size_t)m.model->config.vocab_size, size = (size_t)n * vocab * sizeof *logits;
    if (n == 0) {
        err_set(&e, ERR_LIMIT, "--ids: expected at least 1 token");
        goto done;
    }
    if (n > context_len(&m, &o.run)) {
        err_set(&e, ERR_LIMIT, "--ids: %d token%s, expected at most the context of %d", n, plural(n),
                context_len(&m, &o.run));
        goto done;
    }
    struct atomic_file f;
    if (!(logits = malloc(size)))
        err_nomem(&e, "logits");
    else if ((g = open_engine(&m, &o.run, 1, n, o.window, &e)) && engine_logits(g, ids, n, 0, logits, &e) == 0 &&
             cli_output_open(&f, o.output, &e) == 0) {
        rc = atomic_write(&f, logits, size, &e);
        if (rc == 0)
            rc = cli_output_commit(&f, &e);
        atomic_abort(&f);
    }
    if (rc == 0 && strcmp(o.output, "-") != 0) {
        json_t *j = json_pack("{s:[i,i], s:s, s:s, s:s}", "shape", n, (int)vocab, "dtype", "float32", "byte_order",
                              "little", "file", o.output);
        cli_json(j);
        json_decref(j);
    }
done:
    engine_close(g);
    free(logits);
    free(ids);
    close_model(&m);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}

/* ---- texts in windows ---- */

struct windowed_text { int32_t *ids; size_t n_ids; int n_windows; };

static int read_text(struct windowed_text *t, const struct bench_options *o, const struct opened_model *m,
                     const char *path, struct err *e)
{
    size_t size;
    memset(t, 0, sizeof *t);
    if (!m->tokenizer)
        return err_set(e, ERR_FORMAT, "%s: has no tokenizer", m->path);
    if (o->window < 4)
        return err_set(e, ERR_LIMIT, "--window %d: expected at least 4", o->window);
    if (o->window > context_len(m, &o->run))
        return err_set(e, ERR_LIMIT, "--window %d: expected at most the context of %d", o->window,
                       context_len(m, &o->run));
    char *text = file_read(path, (size_t)1 << 30, &size, e);
    if (!text)
        return -1;
    int rc = tokenizer_encode(m->tokenizer, text, size, 0, &t->ids, &t->n_ids, e);
    free(text);
    if (rc != 0)
        return err_prefix(e, "%s", path);
    size_t n = t->n_ids / (size_t)o->window;
    if (n == 0)
        return err_set(e, ERR_FORMAT, "%s: %zu token%s, expected at least one window of %d", path, t->n_ids,
                       plural((int64_t)t->n_ids), o->window);
    if (n > INT32_MAX)
        return err_set(e, ERR_LIMIT, "%s: %zu windows", path, n);
    t->n_windows = o->windows && (size_t)o->windows < n ? o->windows : (int)n;
    return 0;
}

/* log(sum(exp(x))), and the index of the largest x */
static double log_sum_exp(const float *x, int n, int *best)
{
    int at = 0;
    double sum = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[at])
            at = i;
    for (int i = 0; i < n; i++)
        sum += exp((double)x[i] - x[at]);
    *best = at;
    return x[at] + log(sum);
}

/* Rows of logits to score against the next tokens and against a reference's rows (NULL: none). */
struct score_rows {
    const float *logits, *reference;
    const int32_t *next;                /* [n] */
    int vocab;
    double *nll, *reference_nll, *kl;   /* [n] */
    /* [n] fraction of the five most likely tokens that both rows have in common; cosine of the
     * logit vectors */
    double *top5, *cosine;
    unsigned char *same;                /* [n] */
};

enum { TOP = 5 };

/* Find the indices of the k largest of x [n], largest first; among equals the lowest index comes
 * first. */
static void find_top(const float *x, int n, int k, int *top)
{
    for (int i = 0, have = 0; i < n; i++) {
        if (have == k && !(x[i] > x[top[k - 1]]))
            continue;
        int at = have < k ? have++ : k - 1;
        for (; at > 0 && x[i] > x[top[at - 1]]; at--)
            top[at] = top[at - 1];
        top[at] = i;
    }
}

/* The fraction of the five largest of x that are among the five largest of y. */
static double top_overlap(const float *x, const float *y, int n)
{
    int a[TOP], b[TOP], common = 0;
    const int k = n < TOP ? n : TOP;
    find_top(x, n, k, a);
    find_top(y, n, k, b);
    for (int i = 0; i < k * k; i++)
        common += a[i / k] == b[i % k];
    return (double)common / k;
}

static double cosine_of(const float *x, const float *y, int n)
{
    double xy = 0, xx = 0, yy = 0;
    for (int i = 0; i < n; i++) {
        xy += (double)x[i] * y[i];
        xx += (double)x[i] * x[i];
        yy += (double)y[i] * y[i];
    }
    return xx == 0 && yy == 0 ? 1 : xy / sqrt(xx * yy);
}

static void score_row(void *arg, int i, int thread)
{
    struct score_rows *r = arg;
    (void)thread;
    const float *x = r->logits + (size_t)i * (size_t)r->vocab;
    int best, reference_best;
    double sum = log_sum_exp(x, r->vocab, &best);
    r->nll[i] = sum - x[r->next[i]];
    if (!r->reference)
        return;
    const float *y = r->reference + (size_t)i * (size_t)r->vocab;
    double reference_sum = log_sum_exp(y, r->vocab, &reference_best), kl = 0;
    for (int j = 0; j < r->vocab; j++) {
        double log_p = y[j] - reference_sum;
        kl += exp(log_p) * (log_p - (x[j] - sum));
    }
    r->reference_nll[i] = reference_sum - y[r->next[i]];
    r->kl[i] = kl;
    r->same[i] = best == reference_best;
    r->top5[i] = top_overlap(x, y, r->vocab);
    r->cosine[i] = cosine_of(x, y, r->vocab);
}

static int check_finite(const char *what, const double *v, size_t n, struct err *e)
{
    for (size_t i = 0; i < n; i++)
        if (!isfinite(v[i]))
            return err_set(e, ERR_FORMAT, "%s: the logits of position %zu of the scored ones are not finite", what, i);
    return 0;
}

static double mean(const double *v, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += v[i];
    return sum / (double)n;
}

/* The perplexity of a text, and its parts for each window. */
struct perplexity {
    const struct bench_options *o;
    struct opened_model m;
    struct windowed_text t;
    struct engine *g;
    struct pool *pool;
    struct cli_progress progress;
    double sum;                         /* of the windows' means */
    json_t *windows;                    /* their means */
    struct err *e;
    /* of --whole: the tokens of the window so far, and its beginning */
    double *nll;
    int at;
    uint64_t since_ns;
    json_t *speeds, *memory;
};

/* Add a window whose n tokens have the values in nll. */
static int add_window(struct perplexity *p, const double *nll, int n)
{
    if (check_finite(p->m.path, nll, (size_t)n, p->e) != 0)
        return -1;
    p->sum += mean(nll, (size_t)n);
    return json_array_append_new(p->windows, json_real(mean(nll, (size_t)n)));
}

/* Score each window as a sequence of its own. */
static int score_windows(struct perplexity *p)
{
    const int n = p->o->window - 1, vocab = p->m.model->config.vocab_size;
    double *nll = calloc((size_t)n, sizeof *nll);
    float *logits = malloc((size_t)n * (size_t)vocab * sizeof *logits);
    int rc = logits && nll ? 0 : err_nomem(p->e, "logits");
    for (int w = 0; w < p->t.n_windows && rc == 0; w++) {
        const int32_t *ids = p->t.ids + (size_t)w * (size_t)p->o->window;
        struct score_rows rows = { .logits = logits, .next = ids + 1, .vocab = vocab, .nll = nll };
        progress_report(&p->progress.progress, "perplexity", (uint64_t)w, (uint64_t)p->t.n_windows, "windows");
        if ((rc = engine_logits(p->g, ids, n, 0, logits, p->e)) == 0) {
            pool_run(p->pool, n, score_row, &rows);
            rc = add_window(p, nll, n);
        }
    }
    free(logits);
    free(nll);
    return rc;
}

/* Add the window that is complete, with its speed and the memory after it. */
static int end_window(struct perplexity *p)
{
    char status[8192];
    const uint64_t now = clock_ns(), private_kb = sys_read(NULL, "/proc/self/status", status, sizeof status) < 0
                             ? 0 : (uint64_t)sys_field(status, "RssAnon", 0);
    const int n = p->at;
    json_array_append_new(p->speeds, json_real(n / ((double)(now - p->since_ns) / 1e9)));
    json_array_append_new(p->memory, json_integer((json_int_t)private_kb * 1024));
    p->since_ns = now;
    p->at = 0;
    progress_report(&p->progress.progress, "perplexity", json_array_size(p->windows), (uint64_t)p->t.n_windows,
                    "windows");
    return add_window(p, p->nll, n);
}

/* Score the n tokens after those from pos on. */
static int score_part(void *user, int pos, int n, const float *logits)
{
    struct perplexity *p = user;
    const int vocab = p->m.model->config.vocab_size;
    for (int i = 0; i < n;) {
        const int room = p->o->window - p->at, part = n - i < room ? n - i : room;
        struct score_rows rows = { .logits = logits + (size_t)i * (size_t)vocab, .next = p->t.ids + pos + i + 1,
                                   .vocab = vocab, .nll = p->nll + p->at };
        pool_run(p->pool, part, score_row, &rows);
        i += part;
        p->at += part;
        if (p->at == p->o->window && end_window(p) != 0)
            return -1;
    }
    return 0;
}

/* Score all windows as one sequence.  The last token has no next one. */
static int score_whole(struct perplexity *p)
{
    if (!(p->nll = calloc((size_t)p->o->window, sizeof *p->nll)))
        return err_nomem(p->e, "perplexity");
    p->since_ns = clock_ns();
    int rc = engine_scan(p->g, p->t.ids, p->t.n_windows * p->o->window - 1, score_part, p, p->e);
    if (rc == 0 && p->at)
        rc = end_window(p);
    free(p->nll);
    return rc;
}

static void print_perplexity(const struct perplexity *p)
{
    const struct bench_options *o = p->o;
    const int n = p->t.n_windows;
    char attention[ATTENTION_TEXT];
    json_t *j = json_pack("{s:O, s:f, s:I, s:i, s:i, s:I, s:b}", "mean_nll", p->windows, "perplexity", exp(p->sum / n),
                          "n_tokens", (json_int_t)p->t.n_ids, "windows", n, "window", o->window, "scored_tokens",
                          (json_int_t)n * (o->whole ? o->window : o->window - 1) - o->whole, "exact", o->run.exact);
    json_object_set_new(j, "whole", json_boolean(o->whole));
    json_object_set_new(j, "attention", json_string(run_attention_text(&o->run, attention)));
    if (o->whole) {
        json_object_set(j, "tokens_per_s", p->speeds);
        json_object_set(j, "private_bytes", p->memory);
    }
    cli_json(j);
    json_decref(j);
}

int bench_perplexity(const struct bench_options *o, const char *model, const char *path)
{
    struct err e;
    struct perplexity p = { .o = o, .windows = json_array(), .speeds = json_array(), .memory = json_array(), .e = &e };
    int rc = -1, n = o->window;
    if (open_model(prog, model, &o->run, &p.m, &e) != 0 || read_text(&p.t, o, &p.m, path, &e) != 0)
        goto done;
    if (o->whole && (int64_t)p.t.n_windows * o->window > context_len(&p.m, &o->run)) {
        err_set(&e, ERR_LIMIT, "%s: %lld tokens in windows of %d, expected at most the context of %d (--ctx)", path,
                (long long)p.t.n_windows * o->window, o->window, context_len(&p.m, &o->run));
        goto done;
    }
    if (o->whole)
        n = p.t.n_windows * o->window;
    if (!(p.g = open_engine(&p.m, &o->run, 1, n, 0, &e)) || !(p.pool = pool_open(o->run.threads, &e)))
        goto done;
    cli_progress_init(&p.progress);
    rc = o->whole ? score_whole(&p) : score_windows(&p);
    cli_progress_clear();
    if (rc == 0)
        print_perplexity(&p);
done:
    json_decref(p.windows);
    json_decref(p.speeds);
    json_decref(p.memory);
    pool_close(p.pool);
    engine_close(p.g);
    free(p.t.ids);
    close_model(&p.m);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}

/* ---- quality ---- */

struct side { struct opened_model m; struct engine *g; struct run_options run; float *logits; };

static int open_side(struct side *s, const char *path, int window, struct err *e)
{
    if (open_model(prog, path, &s->run, &s->m, e) != 0)
        return -1;
    /* positions window/2 to window-2 */
    s->logits = malloc((size_t)(window - 1 - window / 2) * (size_t)s->m.model->config.vocab_size * sizeof *s->logits);
    if (!s->logits)
        return err_nomem(e, "logits");
    return (s->g = open_engine(&s->m, &s->run, 1, window, 0, e)) ? 0 : -1;
}

static void close_side(struct side *s)
{
    engine_close(s->g);
    free(s->logits);
    close_model(&s->m);
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* v is sorted. */
static double median(const double *v, size_t n) { return (v[(n - 1) / 2] + v[n / 2]) / 2; }

/* Identify the weights of a file: the CRC-32 of the checksums of its groups, in order. */
static void weights_crc(const struct opened_model *m, char out[9])
{
    uLong crc = 0;
    for (int i = 0; i < zfile_n_groups(m->model->file); i++) {
        const uint32_t group = zfile_group(m->model->file, i)->crc;
        const Bytef bytes[4] = { (Bytef)group, (Bytef)(group >> 8), (Bytef)(group >> 16), (Bytef)(group >> 24) };
        crc = crc32(crc, bytes, sizeof bytes);
    }
    snprintf(out, 9, "%08lx", (unsigned long)crc);
}

/* Add everything that is needed to reproduce the figures. */
static void add_identities(json_t *j, const struct side *reference, const struct side *model)
{
    char crc[9];
    weights_crc(&reference->m, crc);
    json_object_set_new(j, "reference_weights_crc", json_string(crc));
    weights_crc(&model->m, crc);
    json_object_set_new(j, "weights_crc", json_string(crc));
    json_object_set_new(j, "exact", json_boolean(model->run.exact));
    json_object_set_new(j, "version", json_string(ZSE_VERSION));
}

static json_t *quality_json(const struct bench_options *o, const struct windowed_text *t, struct score_rows *all,
                            size_t n)
{
    double perplexity = exp(mean(all->nll, n)), reference_perplexity = exp(mean(all->reference_nll, n)),
           kl_mean = mean(all->kl, n);
    size_t same = 0;
    for (size_t i = 0; i < n; i++)
        same += all->same[i];
    qsort(all->kl, n, sizeof *all->kl, ascending);
    qsort(all->cosine, n, sizeof *all->cosine, ascending);
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i, s:i, s:I}", "kl_mean", kl_mean, "kl_median",
                     median(all->kl, n), "kl_p99", all->kl[(size_t)(0.99 * (double)(n - 1))], "top1_agreement",
                     (double)same / (double)n, "top5_overlap", mean(all->top5, n), "cosine_median",
                     median(all->cosine, n), "cosine_min", all->cosine[0], "perplexity", perplexity,
                     "reference_perplexity", reference_perplexity, "windows", t->n_windows, "window", o->window,
                     "positions", (json_int_t)n);
}

/* all: arrays with an element for every position of every window. */
static int compare(const struct bench_options *o, struct side *reference, struct side *model,
                   const struct windowed_text *t, struct pool *pool, const struct score_rows *all, struct err *e)
{
    int from = o->window / 2, n = o->window - 1 - from, rc = 0;
    struct cli_progress progress;
    cli_progress_init(&progress);
    for (int w = 0; w < t->n_windows && rc == 0; w++) {
        const int32_t *ids = t->ids + (size_t)w * (size_t)o->window;
        size_t at = (size_t)w * (size_t)n;
        progress_report(&progress.progress, "quality", (uint64_t)w, (uint64_t)t->n_windows, "windows");
        struct score_rows rows = { .logits = model->logits, .reference = reference->logits, .next = ids + from + 1,
                             .vocab = model->m.model->config.vocab_size, .nll = all->nll + at,
                             .reference_nll = all->reference_nll + at, .kl = all->kl + at, .top5 = all->top5 + at,
                             .cosine = all->cosine + at, .same = all->same + at };
        if ((rc = engine_logits(reference->g, ids, o->window - 1, from, reference->logits, e)) == 0 &&
            (rc = engine_logits(model->g, ids, o->window - 1, from, model->logits, e)) == 0)
            pool_run(pool, n, score_row, &rows);
    }
    cli_progress_clear();
    return rc;
}

int bench_quality(const struct bench_options *o, const char *reference_path, const char *path, const char *text_path)
{
    struct side reference = { .run = o->run }, model = { .run = o->run };
    struct windowed_text t = { 0 };
    struct err e;
    struct pool *pool = NULL;
    struct score_rows all = { 0 };
    double *scores = NULL;
    int rc = -1;
    if (o->run.kv_given > 1) {
        reference.run.kv = o->run.kv_before;
    } else {
        reference.run.exact = 1;
        reference.run.kv = kv_both(KV_F32);
        reference.run.type = NULL;      /* -q applies to MODEL */
        reference.run.act_codes = ACT_CODES_NONE;
    }
    if (open_side(&reference, reference_path, o->window, &e) != 0 || open_side(&model, path, o->window, &e) != 0 ||
        read_text(&t, o, &reference.m, text_path, &e) != 0 || !(pool = pool_open(o->run.threads, &e)))
        goto done;
    int vocab = model.m.model->config.vocab_size, reference_vocab = reference.m.model->config.vocab_size;
    if (vocab != reference_vocab) {
        err_set(&e, ERR_SHAPE, "%s: vocabulary of %d, expected %d as in %s", model.m.path, vocab, reference_vocab,
                reference.m.path);
        goto done;
    }
    size_t n = (size_t)t.n_windows * (size_t)(o->window - 1 - o->window / 2);
    if (!(scores = calloc(n, 5 * sizeof *scores)) || !(all.same = calloc(n, 1))) {
        err_nomem(&e, "scores");
        goto done;
    }
    all = (struct score_rows){ .nll = scores, .reference_nll = scores + n, .kl = scores + 2 * n, .top5 = scores + 3 * n,
                         .cosine = scores + 4 * n, .same = all.same };
    if (compare(o, &reference, &model, &t, pool, &all, &e) != 0 ||
        check_finite(reference.m.path, all.reference_nll, n, &e) != 0 ||
        check_finite(model.m.path, all.nll, n, &e) != 0 || check_finite(model.m.path, all.kl, n, &e) != 0)
        goto done;
    json_t *j = quality_json(o, &t, &all, n);
    add_identities(j, &reference, &model);
    cli_json(j);
    json_decref(j);
    rc = 0;
done:
    free(scores);
    free(all.same);
    pool_close(pool);
    free(t.ids);
    close_side(&model);
    close_side(&reference);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}

/* ---- types of keys and values ---- */

/* Compute the logits of one variant.  paged: also receives those with attention to pages, the next
 * variant, which has the same types; NULL: there is none. */
static int logits_of(const struct opened_model *m, const struct run_options *run, const struct windowed_text *t,
                     int window, int from, float *logits, float *paged, struct err *e)
{
    struct engine *g = open_engine(m, run, 1, window, 0, e);
    const int rc = !g ? -1 : paged ? engine_logits_twice(g, t->ids, window - 1, from, logits, paged, e)
                                   : engine_logits(g, t->ids, window - 1, from, logits, e);
    engine_close(g);
    return rc;
}

int bench_kv_distance(const struct bench_options *options, const struct opened_model *m, const char *text, int window,
                      const struct kv_variant *kv, int n, double *kl, struct err *e)
{
    enum { MOST = 512 };
    struct bench_options o = *options;
    struct windowed_text t = { 0 };
    struct pool *pool = NULL;
    const int half = window / 2, from = window - 1 - MOST > half ? window - 1 - MOST : half, rows = window - 1 - from;
    const size_t vocab = (size_t)m->model->config.vocab_size;
    float *logits = NULL;
    double *scores = NULL;
    unsigned char *same = NULL;
    int rc = -1;
    if (window < 4)
        return err_set(e, ERR_LIMIT, "a context of %d: a text needs at least 4 tokens", window);
    o.window = o.run.ctx = window;
    if (read_text(&t, &o, m, text, e) != 0 || !(pool = pool_open(o.run.threads, e)))
        goto done;
    logits = malloc(2 * (size_t)rows * vocab * sizeof *logits);
    scores = calloc((size_t)rows, 5 * sizeof *scores);
    same = calloc((size_t)rows, 1);
    if (!logits || !scores || !same) {
        err_nomem(e, "logits");
        goto done;
    }
    float *others = logits + (size_t)rows * vocab;
    for (int i = 0; i < n; i++) {
        o.run.kv = kv[i].kv;
        const int next_has_pages = i + 1 < n && kv[i + 1].pages;
        o.run.pages = next_has_pages ? kv[i + 1].pages : 0;
        o.run.pattern = kv[i].pattern;
        if (!kv[i].pages && logits_of(m, &o.run, &t, window, from, i ? others : logits, next_has_pages ? others : NULL,
                                      e) != 0)
            goto done;
        struct score_rows r = { .logits = i ? others : logits, .reference = logits, .next = t.ids + from + 1,
                                .vocab = (int)vocab, .nll = scores, .reference_nll = scores + rows,
                                .kl = scores + 2 * rows, .top5 = scores + 3 * rows, .cosine = scores + 4 * rows,
                                .same = same };
        pool_run(pool, rows, score_row, &r);
        if (check_finite(m->path, r.kl, (size_t)rows, e) != 0)
            goto done;
        kl[i] = mean(r.kl, (size_t)rows);
    }
    rc = 0;
done:
    free(logits);
    free(scores);
    free(same);
    pool_close(pool);
    free(t.ids);
    return rc;
}
