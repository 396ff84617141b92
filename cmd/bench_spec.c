/* bench_spec.c - measure the gain of speculative decoding (--spec): the time of steps with several
 * tokens of one sequence, and of answers with and without guessed tokens, in turn.
 *
 * Answers are compared, too: a difference is an error, unless --spec-exact distribution permits
 * it. */
#include "cmd/zse-bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "cmd/zse-chat.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/file.h"
#include "libcommon/base/json.h"
#include "libcommon/base/rng.h"

static const char prog[] = "zse-bench";

/* ---- guesses of a given quality ---- */

/* A drafter that knows the answer: predicted[0] is the probability that a guess is right, in units
 * of 2^-30, the rest is the whole sequence.  Whether a guess is right depends on its position
 * only. */
struct known_answer { const int32_t *ids; int n; uint32_t accept; };
enum { ACCEPT_ALL = 1 << 30 };

static void *known_open(const int32_t *predicted, int n)
{
    struct known_answer *k = malloc(sizeof *k);
    if (k)
        *k = n > 0 ? (struct known_answer){ predicted + 1, n - 1, (uint32_t)predicted[0] } : (struct known_answer){ 0 };
    return k;
}

static void known_guess(void *state, const int32_t *ids, int n_ids, int most, struct draft *d)
{
    const struct known_answer *k = state;
    (void)ids;
    d->grade = GRADE_PREDICTED;
    for (d->n = 0; d->n < most && n_ids + d->n < k->n; d->n++) {
        struct rng r = { (uint64_t)(n_ids + d->n) };
        const int32_t right = k->ids[n_ids + d->n];
        d->token[d->n] = rng_u64(&r) >> 34 < k->accept ? right : right ^ 1;
    }
}
static const struct drafter known = { "known", known_open, known_guess, free };

/* ---- one answer ---- */

struct spec_run { struct request *r; struct request_stats stats; int32_t *ids; int n, room, failed; struct err error; };

static void on_token(void *user, const struct token_event *ev)
{
    struct spec_run *run = user;
    if (ev->id >= 0 && run->n < run->room)
        run->ids[run->n++] = ev->id;
    if (ev->finish == FINISH_NONE)
        return;
    request_stats(run->r, &run->stats);
    run->failed = ev->finish == FINISH_ERROR;
    if (run->failed)
        run->error = *ev->error;
}

/* Answer a prompt; run->ids has room for `room` tokens.  plain: the answer without guesses, which
 * --accept needs. */
static int answer(struct engine *g, const struct bench_options *o, const int32_t *ids, int n_ids, enum draft_use use,
                  const struct spec_run *plain, struct spec_run *run, struct err *e)
{
    int32_t *predicted = NULL;
    struct request_params p = { .ids = ids, .n_ids = n_ids, .sampling = sampling_defaults(), .max_tokens = run->room,
                                .n_logprobs = -1, .on_token = on_token, .user = run, .ignore_eos = o->ignore_eos,
                                .draft.use = use };
    int rc;
    run->n = 0;
    p.sampling.temperature = (float)o->temperature;
    p.sampling.seed = o->seed ? o->seed : 1;
    if (o->accept_given && use == DRAFT_ON) {
        if (!(predicted = malloc((size_t)(1 + n_ids + plain->n) * sizeof *predicted)))
            return err_nomem(e, "benchmark");
        predicted[0] = (int32_t)(o->accept * ACCEPT_ALL);
        memcpy(predicted + 1, ids, (size_t)n_ids * sizeof *ids);
        memcpy(predicted + 1 + n_ids, plain->ids, (size_t)plain->n * sizeof *ids);
        p.draft.predicted = predicted;
        p.draft.n_predicted = 1 + n_ids + plain->n;
    }
    run->r = engine_submit(g, &p, e);
    free(predicted);
    if (!run->r)
        return -1;
    while ((rc = engine_step(g, e)) > 0)
        ;
    if (rc == 0 && run->failed)
        *e = run->error;
    return rc == 0 && run->failed ? -1 : rc;
}

/* ---- steps of several tokens ---- */

/* ROOM: the most tokens of an answer.  No answer reaches it while its steps are measured. */
enum { N_SIZES = 7, STEPS = 4, ROOM = 16 * (STEPS + 1) };
static const int sizes[N_SIZES] = { 1, 2, 3, 4, 6, 8, 16 };
struct steps { double seconds[N_SIZES], ratio[N_SIZES]; };

static void *fixed_open(const int32_t *predicted, int n)
{
    (void)predicted, (void)n;
    return malloc(1);
}
/* Guess as many tokens as allowed.  Most guesses are wrong, but only their cost is measured. */
static void fixed_guess(void *state, const int32_t *ids, int n_ids, int most, struct draft *d)
{
    (void)state;
    for (d->n = 0; d->n < most; d->n++)
        d->token[d->n] = ids[(n_ids - 1 + d->n) % n_ids];
    d->grade = 0;
}
static const struct drafter fixed = { "fixed", fixed_open, fixed_guess, free };

/* Seconds of a step with drafts of `most` tokens. */
static int time_step(struct engine *g, const int32_t *ids, int n_ids, int most, double *seconds, struct err *e)
{
    int32_t out[ROOM];
    struct spec_run run = { .ids = out, .room = ROOM };
    const struct request_params p = { .ids = ids, .n_ids = n_ids, .sampling = sampling_defaults(), .max_tokens = ROOM,
                                      .n_logprobs = -1, .on_token = on_token, .user = &run, .ignore_eos = 1,
                                      .draft.use = most ? DRAFT_ON : DRAFT_OFF };
    const struct engine_limits l = { .max_running = 1, .draft = most };
    if (engine_set_limits(g, &l, e) != 0 || !(run.r = engine_submit(g, &p, e)))
        return -1;
    while (run.n == 0)
        if (engine_step(g, e) < 0)
            return -1;
    const uint64_t start = clock_ns();
    for (int i = 0; i < STEPS; i++)
        if (engine_step(g, e) < 0)
            return -1;
    *seconds = (double)(clock_ns() - start) * 1e-9 / STEPS;
    engine_cancel(g, run.r);
    return engine_step(g, e);
}

/* Measure a step of every size: once without counting it, then `repeats` times in turn. */
static int time_steps(const struct bench_options *o, const struct opened_model *m, const int32_t *ids, int n_ids,
                      struct steps *s, struct err *e)
{
    struct engine_options eo = run_engine_options(&o->run, 1, n_ids + ROOM);
    double *t = calloc((size_t)o->repeats * N_SIZES, sizeof *t), ignored;
    eo.drafter = &fixed;
    struct engine *g = t ? engine_open(m->model, m->tokenizer, &eo, e) : NULL;
    int rc = g ? 0 : t ? -1 : err_nomem(e, "benchmark");
    for (int k = -1; rc == 0 && k < o->repeats; k++)
        for (int i = 0; rc == 0 && i < N_SIZES; i++)
            rc = time_step(g, ids, n_ids, sizes[i] - 1, k < 0 ? &ignored : &t[i * o->repeats + k], e);
    for (int i = 0; rc == 0 && i < N_SIZES; i++) {
        s->seconds[i] = summarise(t + i * o->repeats, o->repeats).median;
        s->ratio[i] = s->seconds[i] / s->seconds[0];
    }
    engine_close(g);
    free(t);
    return rc;
}

/* The time of a step with n tokens as a multiple of that with one token, interpolated between the
 * measured sizes. */
static double ratio_at(const struct steps *s, double n)
{
    int i = 1;
    while (i < N_SIZES - 1 && sizes[i] < n)
        i++;
    const double part = (n - sizes[i - 1]) / (sizes[i] - sizes[i - 1]);
    return s->ratio[i - 1] + part * (s->ratio[i] - s->ratio[i - 1]);
}

static json_t *show_steps(const struct bench_options *o, const struct steps *s)
{
    json_t *list = json_array();
    if (!o->json)
        printf("%10s %12s %10s %12s\n", "tokens", "ms a step", "ratio", "break-even");
    for (int i = 0; i < N_SIZES; i++) {
        /* the fraction of drafted tokens that must be right so that the step is worth its time */
        const double even = sizes[i] > 1 ? (s->ratio[i] - 1) / (sizes[i] - 1) : 0;
        if (!o->json)
            printf("%10d %12.3f %10.2f %12.2f\n", sizes[i], s->seconds[i] * 1e3, s->ratio[i], even);
        json_array_append_new(list, json_pack("{s:i, s:f, s:f, s:f}", "tokens", sizes[i], "step_s", s->seconds[i],
                                              "ratio", s->ratio[i], "break_even", even));
    }
    return list;
}

/* The best number k of guessed tokens, if a guess after right guesses is right with probability
 * `a`.  *speed: the tokens that a step then yields in the time of a step with one token: (1 -
 * a^(k+1)) / (1 - a) / (time of k + 1 tokens). */
static int best_length(const struct steps *s, double a, double *speed)
{
    int best = 0;
    *speed = 1;
    for (int k = 1; k <= DRAFT_MOST; k++) {
        const double rate = (1 - pow(a, k + 1)) / (1 - a) / ratio_at(s, k + 1);
        if (rate > *speed) {
            *speed = rate;
            best = k;
        }
    }
    return best;
}

static json_t *show_estimate(const struct bench_options *o, const struct steps *s)
{
    static const double right[] = { 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99 };
    json_t *list = json_array();
    if (!o->json)
        printf("\nspeed = (1 - a^(k+1)) / (1 - a) / ratio(k + 1)\n%10s %12s %10s\n", "a", "best k", "speed");
    for (size_t i = 0; i < sizeof right / sizeof *right; i++) {
        double speed;
        const int k = best_length(s, right[i], &speed);
        if (!o->json)
            printf("%10.2f %12d %9.2fx\n", right[i], k, speed);
        json_array_append_new(list, json_pack("{s:f, s:i, s:f}", "acceptance", right[i], "best_tokens", k, "speed",
                                              speed));
    }
    return list;
}

/* ---- cases ---- */

struct spec_case { char *name, *prompt; };

#define CODE \
    "int count(const char *text, char wanted)\n{\n    int total = 0;\n    for (int i = 0; text[i]; i++)\n" \
    "        if (text[i] == wanted)\n            total++;\n    return total;\n}\n"
static const char *const builtin[][2] = {
    { "copy", "Repeat this code exactly:\n" CODE },
    { "edit", "Repeat this code with total renamed to found, nothing else:\n" CODE },
    { "prose", "Write a story about a lighthouse keeper." },
};

static void free_cases(struct spec_case *c, int n)
{
    for (int i = 0; i < n; i++) {
        free(c[i].name);
        free(c[i].prompt);
    }
    free(c);
}

static int add_case(struct spec_case *c, int *n, const char *name, const char *prompt, struct err *e)
{
    c[*n] = (struct spec_case){ strdup(name), strdup(prompt) };
    (*n)++;
    return c[*n - 1].name && c[*n - 1].prompt ? 0 : err_nomem(e, "cases");
}

/* Read lines of {"name", "prompt"} from path; NULL: use the built-in ones. */
static struct spec_case *read_cases(const char *path, int *n, struct err *e)
{
    enum { MOST_BYTES = 16 << 20, BUILTIN = sizeof builtin / sizeof *builtin };
    size_t size = 0, n_lines = BUILTIN;
    char *text = path ? file_read(path, MOST_BYTES, &size, e) : NULL;
    int rc = path && !text ? -1 : 0;
    *n = 0;
    for (size_t i = 0; i < size; i++)
        n_lines += text[i] == '\n';
    struct spec_case *c = calloc(n_lines + 1, sizeof *c);
    if (!c)
        rc = err_nomem(e, "cases");
    for (int i = 0; rc == 0 && !path && i < BUILTIN; i++)
        rc = add_case(c, n, builtin[i][0], builtin[i][1], e);
    int line = 0;
    for (size_t at = 0, end; rc == 0 && at < size; at = end + 1) {
        const char *stop = memchr(text + at, '\n', size - at);
        end = stop ? (size_t)(stop - text) : size;
        line++;
        if (end == at)
            continue;
        json_t *j = js_parse(path, text + at, end - at, e);
        const char *name = j ? json_string_value(js_get(j, "name")) : NULL,
                   *prompt = j ? json_string_value(js_get(j, "prompt")) : NULL;
        if (!name || !prompt)
            rc = err_set(e, ERR_FORMAT, "%s: line %d: expected {\"name\": TEXT, \"prompt\": TEXT}", path, line);
        else
            rc = add_case(c, n, name, prompt, e);
        json_decref(j);
    }
    if (rc == 0 && *n == 0)
        rc = err_set(e, ERR_FORMAT, "%s: no cases", path);
    free(text);
    if (rc == 0)
        return c;
    free_cases(c, *n);
    return NULL;
}

/* ---- answers with and without ---- */

struct totals { double plain_s, spec_s; int tokens, steps, drafted, accepted; };

/* Measure the answers to a prompt with and without guesses, `repeats` times in turn. */
static int run_case(struct engine *g, const struct bench_options *o, const struct spec_case *c, const int32_t *ids,
                    int n_ids, const struct steps *s, struct totals *all, json_t *list, struct err *e)
{
    struct spec_run run[2] = { { .room = o->generate }, { .room = o->generate } };
    const int same = !o->run.draft_distribution || o->temperature == 0;
    double *t = calloc(3 * (size_t)o->repeats, sizeof *t);
    int rc = t ? 0 : err_nomem(e, "benchmark");
    for (int i = 0; rc == 0 && i < 2; i++)
        if (!(run[i].ids = malloc((size_t)o->generate * sizeof *run[i].ids)))
            rc = err_nomem(e, "benchmark");
    for (int k = -1; rc == 0 && k < o->repeats; k++) {
        for (int i = 0; rc == 0 && i < 2; i++) {
            const int spec = k < 0 ? i : (k + i) & 1;           /* first without guesses */
            rc = answer(g, o, ids, n_ids, spec ? DRAFT_ON : DRAFT_OFF, &run[0], &run[spec], e);
            if (k >= 0)
                t[spec * o->repeats + k] = run[spec].stats.decode_s;
        }
        if (rc == 0 && same &&
            (run[0].n != run[1].n || memcmp(run[0].ids, run[1].ids, (size_t)run[0].n * sizeof *run[0].ids)))
            rc = err_set(e, ERR_FORMAT, "%s: the answer with guesses is another one", c->name);
        if (rc == 0 && k >= 0)
            t[2 * o->repeats + k] = run[1].stats.decode_s > 0 ? run[0].stats.decode_s / run[1].stats.decode_s : 1;
    }
    if (rc == 0) {
        const struct request_stats *r = &run[1].stats;
        const int n_steps = r->n_generated - 1 - r->n_accepted;
        const double plain = summarise(t, o->repeats).median, spec = summarise(t + o->repeats, o->repeats).median,
                     ratio = summarise(t + 2 * o->repeats, o->repeats).median,
                     each = n_steps > 0 ? (double)(r->n_generated - 1) / n_steps : 1,
                     expected = n_steps > 0 ? each / ratio_at(s, 1 + (double)r->n_drafted / n_steps) : 1;
        all->plain_s += plain;
        all->spec_s += spec;
        all->tokens += r->n_generated - 1;
        all->steps += n_steps;
        all->drafted += r->n_drafted;
        all->accepted += r->n_accepted;
        if (!o->json)
            printf("%-24.24s %7d %9d %9d %12.2f %11.1f %9.2fx %9.2fx\n", c->name, r->n_generated, r->n_drafted,
                   r->n_accepted, each, plain > 0 ? (r->n_generated - 1) / plain : 0, ratio, expected);
        json_array_append_new(list, json_pack("{s:s, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f}", "name", c->name,
                                              "prompt_tokens", n_ids, "tokens", r->n_generated, "drafted_tokens",
                                              r->n_drafted, "accepted_tokens", r->n_accepted, "tokens_per_step", each,
                                              "plain_s", plain, "seconds", spec, "ratio", ratio, "expected", expected));
    }
    free(run[0].ids);
    free(run[1].ids);
    free(t);
    return rc;
}

static int run_cases(const struct bench_options *o, const struct opened_model *m, const struct prompter *p,
                     const struct spec_case *c, int n, const struct steps *s, json_t *j, struct err *e)
{
    struct totals all = { 0 };
    json_t *list = json_array();
    const int max_len = m->model->config.max_len, most_len = max_len > 0 && max_len < 8192 ? max_len : 8192;
    struct engine_options eo = run_engine_options(&o->run, 1, o->run.ctx ? o->run.ctx : most_len);
    if (o->accept_given)
        eo.drafter = &known;
    struct engine *g = run_spec(&o->run, m, &eo, e) == 0 ? engine_open(m->model, m->tokenizer, &eo, e) : NULL;
    int rc = g ? 0 : -1;
    json_object_set_new(j, "cases", list);
    if (!o->json)
        printf("\n%-24s %7s %9s %9s %12s %11s %10s %10s\n", "case", "tokens", "drafted", "right", "tokens/step", "plain/s",
               "speed", "expected");
    for (int i = 0; rc == 0 && i < n; i++) {
        int32_t *ids = NULL;
        int n_ids;
        rc = prompter_question(p, NULL, c[i].prompt, strlen(c[i].prompt), &ids, &n_ids, e);
        rc = rc == 0 ? run_case(g, o, &c[i], ids, n_ids, s, &all, list, e) : rc;
        free(ids);
    }
    engine_close(g);
    if (rc != 0)
        return rc;
    const double ratio = all.spec_s > 0 ? all.plain_s / all.spec_s : 1,
                 each = all.steps > 0 ? (double)all.tokens / all.steps : 1;
    if (!o->json)
        printf("%-24s %7d %9d %9d %12.2f %11.1f %9.2fx\n", "all", all.tokens + n, all.drafted, all.accepted, each,
               all.plain_s > 0 ? all.tokens / all.plain_s : 0, ratio);
    json_object_update_new(j, json_pack("{s:f, s:f}", "tokens_per_step", each, "ratio", ratio));
    return 0;
}

static int measure(const struct bench_options *o, const struct opened_model *m, const char *path, json_t *j,
                   struct err *e)
{
    enum { CONTEXT = 64 };
    struct chat_options co = { .raw = !js_get(m->json, "chat_template") && !js_get(m->json, "chat_templates") };
    struct prompter p;
    struct steps s;
    int32_t ids[CONTEXT];
    int n = 0;
    struct spec_case *c = read_cases(path, &n, e);
    if (!c)
        return -1;
    for (int i = 0; i < CONTEXT; i++)
        ids[i] = (int32_t)((uint32_t)i * 2654435761u % (uint32_t)m->model->config.vocab_size);
    int rc = prompter_open(&p, m, &co, 1, e);
    if (rc == 0 && (rc = time_steps(o, m, ids, CONTEXT, &s, e)) == 0) {
        if (!o->json)
            printf("%s: %s, %s; median of %d\n", m->name, m->model->config.arch, bench_quantization(m), o->repeats);
        json_object_set_new(j, "steps", show_steps(o, &s));
        if (o->estimate)
            json_object_set_new(j, "estimate", show_estimate(o, &s));
        else
            rc = run_cases(o, m, &p, c, n, &s, j, e);
    }
    prompter_close(&p);
    free_cases(c, n);
    return rc;
}

int bench_spec(const struct bench_options *o, const char *model, const char *cases)
{
    struct opened_model m;
    struct err e;
    if (open_model(prog, model, &o->run, &m, &e) != 0)
        return cli_fail(prog, &e);
    const struct engine_options eo = run_engine_options(&o->run, 1, 0);
    const char *why = engine_no_drafts(m.model, &eo);
    json_t *j = json_pack("{s:s, s:s, s:s, s:i}", "model", m.name, "architecture", m.model->config.arch, "quantization",
                          bench_quantization(&m), "repeats", o->repeats);
    int rc = why ? err_set(&e, ERR_UNSUPPORTED, "spec: %s", why) : measure(o, &m, cases, j, &e);
    if (rc == 0 && o->json)
        cli_json(j);
    json_decref(j);
    close_model(&m);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}
