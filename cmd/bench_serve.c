/* bench_serve.c - put load on an OpenAI server: a number of requests at once (closed loop) or per
 * second (open loop).
 *
 * Prompts are random, so that no server has them cached, except for the part that is shared on
 * purpose.  Text prompts are short common words; two requests before the load show how many tokens
 * a word makes.  Times are taken when text arrives here. */
#include "cmd/zse-bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cmd/bench_client.h"
#include "cmd/cli.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/json.h"
#include "libcommon/base/rng.h"
#include "libcommon/http/buf.h"

static const char prog[] = "zse-bench";

enum { N_WORDS = 32, FIRST_ID = 256, N_IDS = 512, BACKGROUND_PROMPT = 32, BACKGROUND_ANSWER = 512, SETTLED = 8,
       N_FAILURES = 8, WAIT_S = 60 };
static const char words[N_WORDS][8] = { "time", "year", "people", "way", "day", "man", "thing", "woman", "life",
                                        "child", "world", "school", "state", "family", "group", "hand", "part", "place",
                                        "case", "week", "company", "system", "program", "number", "night", "point",
                                        "home", "water", "room", "mother", "area", "money" };

struct series { double *v; int n, room, failed; };
struct failure { char what[256]; int n; };

/* Kinds of streams: before the measurement, in it, and beside it.  While all streams of kind COUNTS
 * answer at the same time, their texts are counted, too. */
enum load_kind { WARM, COUNTS, BACKGROUND };

struct load {
    const struct bench_options *o;
    struct client *client;
    char *model;
    double words_base, words_slope;     /* tokens of an empty prompt, and of one word */
    struct rng rng;
    struct err error;
    int failed;                         /* error has the reason; the run stops */
    /* the present state */
    /* running: requests that count and have not ended; answering: those of them that had text;
     * settled: background streams with a steady rate */
    int running, answering, settled, measuring;
    /* start_s, end_s: when the measurement began and ended; changed_s: when `answering` last
     * changed or text last arrived */
    double start_s, end_s, changed_s;
    /* the results */
    int started, done, n_failures;
    struct failure failures[N_FAILURES];
    struct series first, gap, whole, background_gap;
    double full_s, full_tokens, completion_tokens, prompt_tokens, cached_tokens;
    int background_texts;
};

static void add(struct series *s, double v)
{
    if (s->n == s->room) {
        const int room = s->room * 2 + 1024;
        double *more = realloc(s->v, (size_t)room * sizeof *more);
        s->failed |= !more;
        if (!more)
            return;
        s->v = more;
        s->room = room;
    }
    s->v[s->n++] = v;
}

/* ---- prompts ---- */

static void add_words(struct buf *b, struct rng *r, int n)
{
    for (int i = 0; i < n; i++)
        buf_printf(b, "%s%s", b->size ? " " : "", words[rng_u64(r) % N_WORDS]);
}

static void add_ids(struct buf *b, struct rng *r, int n)
{
    for (int i = 0; i < n; i++)
        buf_printf(b, "%s%d", b->size ? "," : "", FIRST_ID + (int)(rng_u64(r) % N_IDS));
}

/* The body of a request with a prompt of n units (words or tokens), the first n_shared the same in
 * all requests.  Caller releases. */
static struct buf make_body(struct load *l, int n, int n_shared, int answer, int stream)
{
    const struct bench_options *o = l->o;
    const int ids = o->api == BENCH_TOKENS;
    struct rng same = { o->seed };
    struct buf b = { 0 }, text = { 0 };
    (ids ? add_ids : add_words)(&text, &same, n_shared < n ? n_shared : n);
    (ids ? add_ids : add_words)(&text, &l->rng, n_shared < n ? n - n_shared : 0);
    buf_str(&b, "{\"model\":");
    buf_json(&b, l->model, strlen(l->model));
    buf_str(&b, o->api == BENCH_CHAT ? ",\"messages\":[{\"role\":\"user\",\"content\":" : ids ? ",\"prompt\":["
        : ",\"prompt\":");
    if (ids)
        buf_add(&b, text.data, text.size);
    else
        buf_json(&b, text.data, text.size);
    buf_printf(&b, "%s,\"temperature\":%g,\"max_tokens\":%d%s%s}", o->api == BENCH_CHAT ? "}]" : ids ? "]" : "",
               o->temperature, answer, o->ignore_eos ? ",\"ignore_eos\":true" : "",
               stream ? ",\"stream\":true,\"stream_options\":{\"include_usage\":true}" : "");
    b.failed |= text.failed;
    buf_release(&text);
    return b;
}

static const char *path_of(const struct load *l)
{
    return l->o->api == BENCH_CHAT ? "/chat/completions" : "/completions";
}

/* The number of words or ids that make n tokens. */
static int units(const struct load *l, int n)
{
    const double w = l->o->api == BENCH_TOKENS ? n : (n - l->words_base) / l->words_slope;
    return w < 1 ? 1 : (int)(w + 0.5);
}

/* Ask the server for the number of tokens of a prompt of n words. */
static int count_words(struct load *l, int n, int *tokens, struct err *e)
{
    struct buf body = make_body(l, n, 0, 1, 0);
    int64_t count = 0;
    json_t *j = body.failed ? NULL : client_ask(l->client, path_of(l), body.data, WAIT_S, e);
    int rc = j ? 0 : -1;
    if (body.failed)
        err_nomem(e, "prompt");
    else if (j && (!json_is_object(js_get(j, "usage")) ||
                   js_int(js_get(j, "usage"), "prompt_tokens", 1, INT32_MAX, &count, e) != 0))
        rc = err_set(e, ERR_FORMAT, "%s: the server does not say how many tokens a prompt has", path_of(l));
    *tokens = (int)count;
    json_decref(j);
    buf_release(&body);
    return rc;
}

static int learn_words(struct load *l, struct err *e)
{
    enum { FEW = 16, MANY = 144 };
    int few, many;
    if (l->o->api == BENCH_TOKENS)
        return 0;
    if (count_words(l, FEW, &few, e) != 0 || count_words(l, MANY, &many, e) != 0)
        return -1;
    if (many <= few)
        return err_set(e, ERR_FORMAT, "%s: %d words are %d tokens, and %d words %d", path_of(l), FEW, few, MANY, many);
    l->words_slope = (double)(many - few) / (MANY - FEW);
    l->words_base = few - l->words_slope * FEW;
    return 0;
}

/* Choose the first model of the server, unless one is named.  A server that is loading its only
 * model may list none yet. */
static int choose_model(struct load *l, struct err *e)
{
    const double until = clock_s() + WAIT_S;
    const char *id = l->o->served;
    json_t *list = NULL;
    while (!id) {
        if (!(list = client_ask(l->client, "/models", NULL, WAIT_S, e)))
            return -1;
        const json_t *first = json_array_get(js_get(list, "data"), 0);
        if (first && js_string(first, "id", &id, e) == 0)
            break;
        json_decref(list);
        list = NULL;
        if (first || clock_s() >= until)
            return first ? -1 : err_set(e, ERR_FORMAT, "/models: the server has no model");
        nanosleep(&(struct timespec){ .tv_nsec = 20000000 }, NULL);
    }
    l->model = strdup(id);
    json_decref(list);
    return l->model ? 0 : err_nomem(e, "model");
}

/* ---- the load ---- */

static void start(struct load *l, enum load_kind kind);

/* Account for the time until now, in which `answering` streams answered. */
static void pass(struct load *l, double now)
{
    if (l->answering == l->o->batch && l->o->rate == 0)
        l->full_s += now - l->changed_s;
    l->changed_s = now;
}

static void on_text(struct client_stream *s, double now)
{
    struct load *l = s->user;
    if (s->kind == BACKGROUND) {
        l->settled += s->n_events == SETTLED;
        if (l->measuring && s->last_s > 0)
            add(&l->background_gap, now - s->last_s);
        l->background_texts += l->measuring;
    } else if (s->kind == COUNTS) {
        pass(l, now);
        if (s->n_events == 1) {
            l->answering++;
            add(&l->first, now - s->start_s);
        } else {
            add(&l->gap, now - s->last_s);
            s->n_own += l->answering == l->o->batch;
        }
    }
}

static void note_failure(struct load *l, const char *what)
{
    int i = 0;
    while (i < l->n_failures && strcmp(l->failures[i].what, what) != 0)
        i++;
    if (i == N_FAILURES)
        strcpy(l->failures[--i].what, "others");
    else if (i == l->n_failures)
        snprintf(l->failures[l->n_failures++].what, sizeof l->failures[i].what, "%s", what);
    l->failures[i].n++;
}

static void count_tokens(struct load *l, const struct client_stream *s)
{
    const int answer = s->completion_tokens >= 0 ? s->completion_tokens : s->n_events;
    l->completion_tokens += answer;
    l->full_tokens += s->n_events ? (double)s->n_own * answer / s->n_events : 0;
    l->prompt_tokens += s->prompt_tokens > 0 ? s->prompt_tokens : 0;
    l->cached_tokens += s->cached_tokens > 0 ? s->cached_tokens : 0;
}

static void fail(struct load *l, const char *what, const char *why)
{
    if (!l->failed)
        err_set(&l->error, ERR_IO, "%s: %s", what, why);
    l->failed = 1;
}

static void on_end(struct client_stream *s)
{
    struct load *l = s->user;
    if (s->kind == BACKGROUND) {
        l->settled -= s->n_events >= SETTLED;
        if (*s->error)
            fail(l, "a background request", s->error);
        else
            start(l, BACKGROUND);
        return;
    }
    l->running--;
    if (s->kind == WARM) {
        if (*s->error)
            fail(l, "a warm-up request", s->error);
        return;
    }
    pass(l, s->end_s);
    l->answering -= s->n_events > 0;
    l->end_s = s->end_s;
    if (*s->error) {
        note_failure(l, s->error);
    } else {
        l->done++;
        add(&l->whole, s->end_s - s->start_s);
        count_tokens(l, s);
    }
}

static void start(struct load *l, enum load_kind kind)
{
    static const struct client_events events = { on_text, on_end };
    const struct bench_options *o = l->o;
    const int n = units(l, kind == BACKGROUND ? BACKGROUND_PROMPT : o->prompt), n_shared = kind != BACKGROUND &&
        o->shared ? units(l, o->shared) : 0;
    struct buf body = make_body(l, n, n_shared, kind == BACKGROUND ? BACKGROUND_ANSWER : o->generate, 1);
    struct err e;
    if (body.failed)
        fail(l, "request", "out of memory");
    else if (!client_start(l->client, path_of(l), body.data, &events, l, (int)kind, &e))
        fail(l, "request", e.msg);
    l->running += kind != BACKGROUND;
    l->started += kind == COUNTS;
    buf_release(&body);
}

static int wait_for(struct load *l, int ms)
{
    if (!l->failed && client_wait(l->client, ms, &l->error) < 0)
        l->failed = 1;
    return l->failed ? -1 : 0;
}

/* Send all requests: o->batch at once, or at random times (o->rate). */
static int measure(struct load *l)
{
    const struct bench_options *o = l->o;
    double next = clock_s();
    l->start_s = l->changed_s = next;
    l->measuring = 1;
    while (!l->failed && (l->started < o->requests || l->running > 0)) {
        double ms = 1000;
        if (o->rate > 0)
            for (; l->started < o->requests && clock_s() >= next && !l->failed; next += -log(1 - rng_double(&l->rng)) /
                 o->rate)
                start(l, COUNTS);
        else
            while (l->started < o->requests && l->running < o->batch && !l->failed)
                start(l, COUNTS);
        if (o->rate > 0 && l->started < o->requests)
            ms = fmax(0, (next - clock_s()) * 1e3);
        wait_for(l, ms < 1000 ? (int)ceil(ms) : 1000);
    }
    l->measuring = 0;
    return l->failed ? -1 : 0;
}

static int run_load(struct load *l)
{
    const struct bench_options *o = l->o;
    for (int i = 0; i < o->warmup && !l->failed; i++) {
        start(l, WARM);
        while (l->running > 0 && wait_for(l, 1000) == 0)
            ;
    }
    for (int i = 0; i < o->background && !l->failed; i++)
        start(l, BACKGROUND);
    while (!l->failed && l->settled < o->background)
        wait_for(l, 1000);
    return measure(l);
}

/* ---- the result ---- */

static int rising(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The quantile q of the sorted values, by nearest rank, in ms. */
static double at(const struct series *s, double q)
{
    const int i = (int)ceil(q * s->n) - 1;
    return s->n ? s->v[i < 0 ? 0 : i] * 1e3 : 0;
}

static double mean(const struct series *s)
{
    double sum = 0;
    for (int i = 0; i < s->n; i++)
        sum += s->v[i];
    return s->n ? sum / s->n * 1e3 : 0;
}

static json_t *series_json(const struct series *s)
{
    return json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f}", "n", s->n, "p50", at(s, .5), "p90", at(s, .9), "p95",
                     at(s, .95), "p99", at(s, .99), "max", at(s, 1), "mean", mean(s));
}

static void print_series(const char *name, const struct series *s)
{
    if (s->n)
        printf("%-26s %9.2f %9.2f %9.2f %9.2f %9.2f\n", name, at(s, .5), at(s, .9), at(s, .99), at(s, 1), mean(s));
}

static const char *const api_names[] = { [BENCH_CHAT] = "chat", [BENCH_COMPLETIONS] = "completions",
                                         [BENCH_TOKENS] = "tokens" };

static void print_json(struct load *l, const char *url, double seconds)
{
    const struct bench_options *o = l->o;
    const double n = l->done ? l->done : 1;
    json_t *failures = json_array();
    for (int i = 0; i < l->n_failures; i++)
        json_array_append_new(failures, json_pack("{s:s, s:i}", "what", l->failures[i].what, "n", l->failures[i].n));
    json_t *j = json_pack("{s:s, s:s, s:s, s:i, s:f, s:i, s:i, s:i, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o, s:o, s:o}", "url", url, "model", l->model, "api", api_names[o->api],
                          "concurrency", o->rate > 0 ? 0 : o->batch, "rate", o->rate, "requests", l->started, "done",
                          l->done, "failed", l->started - l->done, "failures", failures, "seconds", seconds,
                          "prompt_tokens", l->prompt_tokens / n, "cached_tokens", l->cached_tokens / n,
                          "completion_tokens", l->completion_tokens / n, "tokens_per_s", l->completion_tokens / seconds,
                          "requests_per_s", l->done / seconds, "full_tokens_per_s",
                          l->full_s > 0 ? json_real(l->full_tokens / l->full_s) : json_null(),
                          "first_token_ms", series_json(&l->first), "gap_ms", series_json(&l->gap), "request_ms",
                          series_json(&l->whole));
    if (o->background)
        json_object_set_new(j, "background", json_pack("{s:i, s:f, s:o}", "streams", o->background, "texts_per_s",
                                                       l->background_texts / seconds, "gap_ms",
                                                       series_json(&l->background_gap)));
    cli_json(j);
    json_decref(j);
}

static void print_text(struct load *l, const char *url, double seconds)
{
    const struct bench_options *o = l->o;
    const double n = l->done ? l->done : 1;
    char load[64];
    if (o->rate > 0)
        snprintf(load, sizeof load, "%.3g a second", o->rate);
    else
        snprintf(load, sizeof load, "%d at once", o->batch);
    printf("%s, model %s: %d request%s, %s, %d failed, %.1f s\n", url, l->model, l->started, plural(l->started), load,
           l->started - l->done, seconds);
    printf("tokens of a request        %.0f prompt (%.0f from the cache), %.0f answer\n", l->prompt_tokens / n,
           l->cached_tokens / n, l->completion_tokens / n);
    printf("tokens a second            %.1f", l->completion_tokens / seconds);
    if (l->full_s > 0)
        printf("; while all %d answer: %.1f", o->batch, l->full_tokens / l->full_s);
    printf("\n%-26s %9s %9s %9s %9s %9s\n", "milliseconds", "p50", "p90", "p99", "max", "mean");
    print_series("first token", &l->first);
    print_series("between tokens", &l->gap);
    print_series("request", &l->whole);
    print_series("background: between tokens", &l->background_gap);
    for (int i = 0; i < l->n_failures; i++)
        printf("failed %d time%s: %s\n", l->failures[i].n, plural(l->failures[i].n), l->failures[i].what);
}

static int report(struct load *l, const char *url)
{
    struct series *all[] = { &l->first, &l->gap, &l->whole, &l->background_gap };
    const double seconds = fmax(l->end_s - l->start_s, 1e-9);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i]->failed) {
            cli_note(prog, "out of memory");
            return CLI_FAILED;
        }
        if (all[i]->n)
            qsort(all[i]->v, (size_t)all[i]->n, sizeof *all[i]->v, rising);
    }
    (l->o->json ? print_json : print_text)(l, url, seconds);
    const int rc = cli_finish(prog);
    return rc ? rc : l->done < l->started ? CLI_FAILED : CLI_OK;
}

int bench_serve(const struct bench_options *given, const char *url)
{
    struct bench_options o = *given;
    struct load l = { .o = &o };
    struct err e;
    int rc = CLI_FAILED;
    if (!o.requests)
        o.requests = 4 * o.batch > 16 ? 4 * o.batch : 16;
    if (!o.seed)
        o.seed = clock_ns();                    /* prompts that no earlier run sent */
    l.rng.state = ~o.seed;
    const char *key = cli_api_key(o.key);
    if (key && *key)
        cli_hide_memory();
    if (!(l.client = client_open(url, key && *key ? key : NULL, o.timeout_s, &e)) || choose_model(&l, &e) != 0 ||
        learn_words(&l, &e) != 0)
        cli_fail(prog, &e);
    else if (run_load(&l) != 0)
        cli_fail(prog, &l.error);
    else
        rc = report(&l, url);
    client_close(l.client);
    free(l.model);
    free(l.first.v);
    free(l.gap.v);
    free(l.whole.v);
    free(l.background_gap.v);
    return rc;
}
