/* bench_prefix.c - requests that begin alike, with the cache of prefixes and without it. */
#include "cmd/zse-bench.h"

#include <stdio.h>
#include <stdlib.h>

#include "cmd/cli.h"
#include "libcommon/base/json.h"
#include "libcommon/base/rng.h"

static const char prog[] = "zse-bench";

enum prefix_kind { WITHOUT, WITH, N_KINDS };
static const char *const names[N_KINDS] = { "without", "with" };

struct prefix_answer { struct request *r; struct request_stats stats; int32_t id; int failed; struct err error; };

/* Of all requests of a kind: tokens of prompts that were computed, seconds to the first tokens. */
struct prefix_sum { long long computed; double *first_s; int32_t *first; };       /* first: ids, [requests] */

static void on_token(void *user, const struct token_event *ev)
{
    struct prefix_answer *a = user;
    if (ev->id >= 0)
        a->id = ev->id;
    if (ev->finish == FINISH_NONE)
        return;
    request_stats(a->r, &a->stats);
    a->failed = ev->finish == FINISH_ERROR;
    if (a->failed)
        a->error = *ev->error;
}

/* Compute the first token of an answer. */
static int answer(struct engine *g, const int32_t *ids, int n, struct prefix_answer *a, struct err *e)
{
    struct request_params p = { .ids = ids, .n_ids = n, .sampling = sampling_defaults(), .max_tokens = 1,
                                .ignore_eos = 1, .n_logprobs = -1, .on_token = on_token, .user = a };
    int rc;
    p.sampling.temperature = 0;
    *a = (struct prefix_answer){ .id = -1 };
    if (!(a->r = engine_submit(g, &p, e)))
        return -1;
    while ((rc = engine_step(g, e)) > 0)
        ;
    if (rc == 0 && a->failed)
        *e = a->error;
    return rc == 0 && a->failed ? -1 : rc;
}

/* Ask all requests, which are the same for each engine. */
static int ask_all(const struct bench_options *o, struct engine *g, int vocab_size, struct prefix_sum *sum,
                   struct err *e)
{
    const int n = o->prompt;
    struct rng rng = { 1 };
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    int rc = ids ? 0 : err_nomem(e, "prompts");
    for (int i = 0; rc == 0 && i < o->requests; i++) {
        struct prefix_answer a;
        for (int t = i ? o->shared : 0; t < n; t++)
            ids[t] = (int32_t)(rng_u64(&rng) % (uint64_t)vocab_size);
        rc = answer(g, ids, n, &a, e);
        sum->computed += a.stats.n_prompt - a.stats.n_cached;
        sum->first_s[i] = a.stats.first_token_s;
        sum->first[i] = a.id;
    }
    free(ids);
    return rc;
}

/* Only one engine is open at a time: on a GPU each holds the weights. */
static int measure(const struct bench_options *o, struct opened_model *m, enum prefix_kind kind, struct prefix_sum *sum,
                   struct err *e)
{
    struct run_options r = o->run;
    r.no_prefix_cache = kind == WITHOUT;
    sum->first_s = calloc((size_t)o->requests, sizeof *sum->first_s);
    sum->first = calloc((size_t)o->requests, sizeof *sum->first);
    if (!sum->first_s || !sum->first)
        return err_nomem(e, "requests");
    struct engine *g = open_engine(m, &r, 1, o->prompt + 2, 0, e);
    const int rc = g ? ask_all(o, g, m->model->config.vocab_size, sum, e) : -1;
    engine_close(g);
    return rc;
}

static void report(const struct bench_options *o, const struct opened_model *m, const struct prefix_sum *sums, int same)
{
    const int own = o->prompt - o->shared;
    const double saved = 1 - (double)sums[WITH].computed / ((double)o->requests * o->prompt);
    json_t *j = json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:f, s:i}", "model", m->name, "architecture",
                          m->model->config.arch, "quantization", bench_quantization(m), "requests", o->requests,
                          "shared_tokens", o->shared, "own_tokens", own, "saved_share", saved, "same_answers", same);
    if (!o->json)
        printf("%s: %s, %s; %d requests of %d shared and %d own tokens\n%-9s %16s %22s\n", m->name,
               m->model->config.arch, bench_quantization(m), o->requests, o->shared, own, "prefixes",
               "tokens computed", "first token after, ms");
    for (int k = 0; k < N_KINDS; k++) {
        const struct summary s = summarise(sums[k].first_s, o->requests);
        json_object_set_new(j, names[k], json_pack("{s:I, s:o}", "computed_tokens", (json_int_t)sums[k].computed,
                                                   "first_token_s", summary_json(&s)));
        if (!o->json)
            printf("%-9s %16lld %22.2f   (median; %.2f to %.2f)\n", names[k], sums[k].computed, s.median * 1e3,
                   s.min * 1e3, s.max * 1e3);
    }
    if (o->json)
        cli_json(j);
    else
        printf("%.1f %% of the tokens come from the cache; %d of %d first tokens are the same\n", saved * 100, same,
               o->requests);
    json_decref(j);
}

int bench_prefix(const struct bench_options *o, const char *model)
{
    struct prefix_sum sums[N_KINDS] = { 0 };
    struct opened_model m;
    struct err e;
    int rc = 0, same = 0;
    if (open_model(prog, model, &o->run, &m, &e) != 0)
        return cli_fail(prog, &e);
    for (int k = 0; rc == 0 && k < N_KINDS; k++)
        rc = measure(o, &m, k, &sums[k], &e);
    for (int i = 0; rc == 0 && i < o->requests; i++)
        same += sums[WITHOUT].first[i] == sums[WITH].first[i];
    if (rc == 0)
        report(o, &m, sums, same);
    for (int k = 0; k < N_KINDS; k++) {
        free(sums[k].first_s);
        free(sums[k].first);
    }
    close_model(&m);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}
