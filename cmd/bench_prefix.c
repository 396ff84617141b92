/* bench_prefix.c - requests that begin alike, with the cache of prefixes and without, in turn. */
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
struct prefix_sum { struct engine *engine; long long computed; double *first_s; };

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

/* Ask all requests, each in both engines; *same: answers that agree. */
static int ask_all(const struct bench_options *o, int vocab_size, struct prefix_sum sums[N_KINDS], int *same,
                   struct err *e)
{
    const int n = o->prompt;
    struct rng rng = { 1 };
    int32_t *ids = malloc((size_t)n * sizeof *ids);
    int rc = ids ? 0 : err_nomem(e, "prompts");
    *same = 0;
    for (int i = 0; rc == 0 && i < o->requests; i++) {
        struct prefix_answer a[N_KINDS];
        for (int t = i ? o->shared : 0; t < n; t++)
            ids[t] = (int32_t)(rng_u64(&rng) % (uint64_t)vocab_size);
        for (int k = 0; rc == 0 && k < N_KINDS; k++) {
            rc = answer(sums[k].engine, ids, n, &a[k], e);
            sums[k].computed += a[k].stats.n_prompt - a[k].stats.n_cached;
            sums[k].first_s[i] = a[k].stats.first_token_s;
        }
        *same += rc == 0 && a[WITHOUT].id == a[WITH].id;
    }
    free(ids);
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
    for (int k = 0; rc == 0 && k < N_KINDS; k++) {
        struct run_options r = o->run;
        r.no_prefix_cache = k == WITHOUT;
        if (!(sums[k].first_s = calloc((size_t)o->requests, sizeof *sums[k].first_s)))
            rc = err_nomem(&e, "requests");
        else if (!(sums[k].engine = open_engine(&m, &r, 1, o->prompt + 2, 0, &e)))
            rc = -1;
    }
    if (rc == 0 && (rc = ask_all(o, m.model->config.vocab_size, sums, &same, &e)) == 0)
        report(o, &m, sums, same);
    for (int k = 0; k < N_KINDS; k++) {
        engine_close(sums[k].engine);
        free(sums[k].first_s);
    }
    close_model(&m);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}
