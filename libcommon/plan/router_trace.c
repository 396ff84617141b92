/* router_trace.c - parse and draw traces of routers. */
#include "libcommon/plan/router_trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/rng.h"

/* ---- text ---- */

struct trace_reader {
    const char *at, *end, *name;
    size_t line;
    int layer[TRACE_LAYERS];            /* numbers of the layers of the first token */
    size_t n, room;                     /* lines of choices read, and for which there is room */
};

/* Read a number that the line has next; -1: there is none. */
static long next_number(struct trace_reader *r)
{
    long v = 0;
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t'))
        r->at++;
    if (r->at == r->end || *r->at < '0' || *r->at > '9')
        return -1;
    for (; r->at < r->end && *r->at >= '0' && *r->at <= '9'; r->at++)
        v = v > 1 << 24 ? v : 10 * v + (*r->at - '0');
    return v;
}

/* 0: the line has ended. */
static int end_line(struct trace_reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\r'))
        r->at++;
    if (r->at < r->end && *r->at != '\n')
        return -1;
    r->at += r->at < r->end;
    return 0;
}

static int next_word(struct trace_reader *r, const char *word)
{
    const size_t n = strlen(word);
    while (r->at < r->end && *r->at == ' ')
        r->at++;
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, word, n) != 0)
        return -1;
    r->at += n;
    return 0;
}

static int parse_head(struct trace_reader *r, struct router_trace *t, struct err *e)
{
    long experts = -1, top_k = -1;
    r->line = 1;
    if (next_word(r, "experts") == 0)
        experts = next_number(r);
    if (experts > 0 && next_word(r, "top_k") == 0)
        top_k = next_number(r);
    if (experts < 1 || experts > TRACE_EXPERTS || top_k < 1 || top_k > TRACE_TOP_K || top_k > experts ||
        end_line(r) != 0)
        return err_set(e, ERR_FORMAT, "%s: line 1: expected 'experts N top_k K', N at most %d and K at most %d", r->name,
                       TRACE_EXPERTS, TRACE_TOP_K);
    t->n_experts = (int)experts;
    t->top_k = (int)top_k;
    return 0;
}

/* Check the number of a line's layer against those of the first token. */
static int check_layer(struct trace_reader *r, struct router_trace *t, long layer, struct err *e)
{
    const int place = t->n_layers && r->n >= (size_t)t->n_layers ? (int)(r->n % (size_t)t->n_layers) : -1;
    if (layer < 0 || layer > 1 << 20)
        return err_set(e, ERR_FORMAT, "%s: line %zu: expected the number of a layer", r->name, r->line);
    if (place >= 0 && layer != r->layer[place])
        return err_set(e, ERR_FORMAT, "%s: line %zu: layer %ld, expected %d, as for the first token", r->name, r->line,
                       layer, r->layer[place]);
    return 0;
}

/* Count the layers of the first token: it ends at a line whose layer does not ascend. */
static int take_layer(struct trace_reader *r, struct router_trace *t, int *counting, long layer, struct err *e)
{
    if (*counting && t->n_layers && layer <= r->layer[t->n_layers - 1])
        *counting = 0;
    if (!*counting)
        return check_layer(r, t, layer, e);
    if (t->n_layers == TRACE_LAYERS)
        return err_set(e, ERR_FORMAT, "%s: line %zu: more than %d layers", r->name, r->line, TRACE_LAYERS);
    if (layer < 0 || layer > 1 << 20)
        return err_set(e, ERR_FORMAT, "%s: line %zu: expected the number of a layer", r->name, r->line);
    r->layer[t->n_layers++] = (int)layer;
    return 0;
}

static int take_choice(struct trace_reader *r, struct router_trace *t, struct err *e)
{
    if (r->n == r->room) {
        const size_t room = r->room ? 2 * r->room : 1024;
        int32_t *more = realloc(t->id, room * (size_t)t->top_k * sizeof *more);
        if (!more)
            return err_nomem(e, "trace");
        t->id = more;
        r->room = room;
    }
    int32_t *id = t->id + r->n++ * (size_t)t->top_k;
    for (int i = 0; i < t->top_k; i++) {
        const long v = next_number(r);
        if (v < 0)
            return err_set(e, ERR_FORMAT, "%s: line %zu: found %d of %d experts", r->name, r->line, i, t->top_k);
        if (v >= t->n_experts)
            return err_set(e, ERR_FORMAT, "%s: line %zu: expert %ld, expected 0 to %d", r->name, r->line, v,
                           t->n_experts - 1);
        for (int k = 0; k < i; k++)
            if (id[k] == v)
                return err_set(e, ERR_FORMAT, "%s: line %zu: expert %ld is there twice", r->name, r->line, v);
        id[i] = (int32_t)v;
    }
    return end_line(r) == 0 ? 0 : err_set(e, ERR_FORMAT, "%s: line %zu: more than %d experts", r->name, r->line,
                                          t->top_k);
}

int router_trace_parse(struct router_trace *t, const char *text, size_t n, const char *name, struct err *e)
{
    struct trace_reader r = { .at = text, .end = text + n, .name = name };
    int counting = 1, rc = 0;
    *t = (struct router_trace){ 0 };
    rc = parse_head(&r, t, e);
    for (r.line = 2; rc == 0 && r.at < r.end; r.line++)
        rc = take_layer(&r, t, &counting, next_number(&r), e) != 0 || take_choice(&r, t, e) != 0 ? -1 : 0;
    if (rc == 0 && (!t->n_layers || r.n % (size_t)t->n_layers))
        rc = err_set(e, ERR_FORMAT, "%s: ends in the middle of a token: expected %d lines for each", name, t->n_layers);
    if (rc == 0 && r.n / (size_t)t->n_layers > 1 << 24)
        rc = err_set(e, ERR_LIMIT, "%s: %zu tokens, expected at most %d", name, r.n / (size_t)t->n_layers, 1 << 24);
    if (rc == 0)
        t->n_tokens = (int)(r.n / (size_t)t->n_layers);
    else
        router_trace_release(t);
    return rc;
}

/* ---- random ---- */

/* Choose top_k different experts.  Of exponential times with these rates the first top_k count,
 * which is the same as drawing one after the other without replacement. */
static void draw_token(struct rng *r, const double *rate, int n, int top_k, double *time, int32_t *id)
{
    for (int i = 0; i < n; i++)
        time[i] = -log(1 - rng_double(r)) / rate[i];
    for (int k = 0; k < top_k; k++) {
        int best = 0;
        for (int i = 1; i < n; i++)
            best = time[i] < time[best] ? i : best;
        id[k] = best;
        time[best] = INFINITY;
    }
}

/* A random order of the experts, and the rate of each by its rank. */
static void rank_experts(struct rng *r, double skew, int n, double *rate)
{
    for (int i = 0; i < n; i++)
        rate[i] = pow(i + 1, -skew);
    for (int i = n - 1; i > 0; i--) {
        const int k = (int)(rng_u64(r) % (uint64_t)(i + 1));
        const double swap = rate[i];
        rate[i] = rate[k];
        rate[k] = swap;
    }
}

int router_trace_draw(struct router_trace *t, int n_layers, int n_experts, int top_k, int n_tokens, double skew,
                      uint64_t seed, struct err *e)
{
    struct rng r = { seed };
    const size_t all = (size_t)n_layers * (size_t)n_experts;
    double *rate = malloc((all + (size_t)n_experts) * sizeof *rate);
    *t = (struct router_trace){ n_layers, n_experts, top_k, n_tokens, NULL };
    t->id = malloc((size_t)n_tokens * (size_t)n_layers * (size_t)top_k * sizeof *t->id);
    if (!rate || !t->id) {
        free(rate);
        router_trace_release(t);
        return err_nomem(e, "trace");
    }
    for (int l = 0; l < n_layers; l++)
        rank_experts(&r, skew, n_experts, rate + (size_t)l * (size_t)n_experts);
    for (int i = 0; i < n_tokens; i++)
        for (int l = 0; l < n_layers; l++)
            draw_token(&r, rate + (size_t)l * (size_t)n_experts, n_experts, top_k, rate + all,
                       t->id + ((size_t)i * (size_t)n_layers + (size_t)l) * (size_t)top_k);
    free(rate);
    return 0;
}

void router_trace_release(struct router_trace *t)
{
    free(t->id);
    *t = (struct router_trace){ 0 };
}
