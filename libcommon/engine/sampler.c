/* sampler.c - choose a token from logits.  The steps, all on the same copy of the logits:
 *   1.  Tokens that the constraint forbids get -inf; the logit bias is added.
 *   2.  Penalties: repetition (Keskar et al. 2019, section 4.1: a positive logit is divided, a
 *      negative one multiplied), then presence and frequency (subtracted, as in OpenAI's API),
 *      then DRY (dry.h).
 *   3. top_n_sigma (arXiv:2411.07641) cuts the logits.
 *   4.  With temperature 0, top_p 0 or top_k 1 the largest logit is the choice, ties to the lower
 *      id.  Otherwise the logits are divided by the temperature, and their distances from the
 *      largest are smoothed (smoothing_factor, as in text-generation-webui and koboldcpp): short
 *      ones become shorter, long ones longer.
 *   5. top_k, top_a (as in koboldcpp), typical_p (arXiv:2202.00666), top_p (arXiv:1904.09751) and
 *      min_p (arXiv:2407.01082) cut the distribution, each renormalising the tokens that the filter
 *      before it kept; top_p and typical_p keep the token with which the sum reaches the limit.
 *   6. XTC (exclude top choices, as in llama.cpp and koboldcpp) is applied with a probability, for
 *      which one random number is drawn: of the tokens with a probability of at least xtc_threshold
 *      only the least likely is kept.
 *   7.  With dynatemp_range (as in llama.cpp and koboldcpp) temperature and smoothing act only
 *      here: steps 5 and 6 took a temperature of 1, and the entropy of the tokens that they kept
 *      decides about the temperature.
 *   8.  One random number draws from the rest.
 * The order is that of llama.cpp, except that llama.cpp always applies the temperature last.
 *
 * Nothing is sorted: top_k keeps a heap of k, and the sums are found by selection, which is linear
 * in the vocabulary on average. */
#include "libcommon/engine/sampler.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/rng.h"
#include "libcommon/engine/dry.h"
#include "libcommon/kernels/kernels.h"

struct cand {
    float key;                  /* small ones are kept first; among equals the lower id */
    int32_t id;
    float x, w;                 /* logit; exp((x - max) / temperature) */
};

struct sampler_scratch {
    /* cached: CPUID traps in a virtual machine */
    const struct kernels *kernels;
    const struct tokenizer *t;          /* borrowed, may be NULL */
    struct cand *cand; int n_cand;
    int *repeat; int n_repeat;          /* lengths of repetitions for DRY, by position */
    /* for each id: the last pass over the history that met it, and its count in that pass */
    uint64_t *seen, epoch; uint32_t *count; int n_seen;
    struct logit_bias *saved; size_t n_saved;   /* logits before they were changed */
};

struct sampler {
    struct sampling s;
    int vocab_size, max_len;
    struct rng rng, drafts;     /* drafts: for proposals and their verification */
    struct logit_bias *bias;
    struct sampler_scratch *c;
    int n_cand;                 /* 0: no filter needs candidates */
    int32_t *history; int n_history, n_prompt;          /* NULL: no penalties */
    struct dry *dry;            /* NULL: off */
    int n_saved;
};

struct sampler_scratch *sampler_scratch_open(const struct tokenizer *t, struct err *e)
{
    const struct kernels *kernels = kernels_pick(NULL, e);
    struct sampler_scratch *c = kernels ? calloc(1, sizeof *c) : NULL;
    if (c)
        *c = (struct sampler_scratch){ .kernels = kernels, .t = t };
    else if (kernels)
        err_nomem(e, "sampler");
    return c;
}

void sampler_scratch_close(struct sampler_scratch *c)
{
    if (!c)
        return;
    free(c->cand);
    free(c->repeat);
    free(c->seen);
    free(c->count);
    free(c->saved);
    free(c);
}

/* Allocate space for this many candidates, positions, ids and changes. */
static int grow(struct sampler_scratch *c, int n_cand, int n_repeat, int n_seen, size_t n_saved)
{
    if (n_repeat > c->n_repeat) {
        free(c->repeat);
        c->repeat = malloc((size_t)n_repeat * sizeof *c->repeat);
        c->n_repeat = c->repeat ? n_repeat : 0;
    }
    if (n_cand > c->n_cand) {
        free(c->cand);
        c->cand = malloc((size_t)n_cand * sizeof *c->cand);
        c->n_cand = c->cand ? n_cand : 0;
    }
    if (n_seen > c->n_seen) {
        free(c->seen);
        free(c->count);
        c->seen = calloc((size_t)n_seen, sizeof *c->seen);
        c->count = calloc((size_t)n_seen, sizeof *c->count);
        c->n_seen = c->seen && c->count ? n_seen : 0;
    }
    if (n_saved > c->n_saved) {
        free(c->saved);
        c->saved = malloc(n_saved * sizeof *c->saved);
        c->n_saved = c->saved ? n_saved : 0;
    }
    return n_cand > c->n_cand || n_repeat > c->n_repeat || n_seen > c->n_seen || n_saved > c->n_saved ? -1 : 0;
}

static int greedy(const struct sampling *s)
{
    return s->temperature == 0 || s->top_p == 0 || s->typical_p == 0 || s->top_k == 1;
}
/* Whether XTC can have an effect.  It has none with a threshold above 0.5, which no two tokens can
 * reach. */
static int excludes_top(const struct sampling *s)
{
    return s->xtc_probability > 0 && s->xtc_threshold <= 0.5f && !greedy(s);
}
static int cuts_sigma(const struct sampling *s) { return s->top_n_sigma > 0 && !greedy(s); }
/* Whether a filter needs the list of candidates; min_p alone does not. */
static int needs_candidates(const struct sampling *s)
{
    return !greedy(s) && (s->top_k || s->top_a > 0 || s->top_p < 1 || s->typical_p < 1 || excludes_top(s) ||
                           s->dynatemp_range > 0);
}
/* Whether an option acts that no device applies (draw.h); biases and penalties apart. */
static int needs_host(const struct sampling *s)
{
    return !greedy(s) && (s->smoothing_factor > 0 || cuts_sigma(s) || s->top_a > 0 || s->typical_p < 1 ||
                          excludes_top(s) || s->dynatemp_range > 0);
}
static int penalises_answer(const struct sampling *s) { return s->presence_penalty != 0 || s->frequency_penalty != 0; }
static int has_dry(const struct sampling *s) { return s->dry_multiplier > 0 && s->dry_penalty_last_n != 0; }
static int penalises(const struct sampling *s)
{
    return penalises_answer(s) || s->repetition_penalty != 1 || has_dry(s);
}

struct sampler *sampler_open(const struct sampling *sampling, int vocab_size, int max_len,
                             struct sampler_scratch *scratch, struct err *e)
{
    if (sampling_check(sampling, vocab_size, e) != 0)
        return NULL;
    struct sampler *s = calloc(1, sizeof *s);
    if (!s)
        goto nomem;
    s->s = *sampling;
    s->s.top_k = sampling->top_k > 0 ? sampling->top_k : 0;
    s->vocab_size = vocab_size;
    s->max_len = max_len;
    s->c = scratch;
    s->rng.state = sampling->seed;
    s->drafts.state = rng_u64(&(struct rng){ sampling->seed ^ 0xd1b54a32d192ed03u });
    s->bias = calloc((size_t)sampling->n_bias + 1, sizeof *s->bias);
    if (!s->bias)
        goto nomem;
    if (sampling->n_bias)
        memcpy(s->bias, sampling->bias, (size_t)sampling->n_bias * sizeof *s->bias);
    s->s.bias = s->bias;
    if (needs_candidates(&s->s))
        s->n_cand = s->s.top_k && s->s.top_k < vocab_size ? s->s.top_k : vocab_size;
    if (penalises(sampling) && !(s->history = calloc((size_t)max_len + 1, sizeof *s->history)))
        goto nomem;
    if (grow(scratch, s->n_cand, has_dry(sampling) ? max_len : 0, s->history ? vocab_size : 0,
             (size_t)sampling->n_bias + (s->history ? 3 * (size_t)max_len : 0)) != 0)
        goto nomem;
    if (!has_dry(sampling) || (s->dry = dry_open(sampling, scratch->t, vocab_size, e)))
        return s;
    sampler_close(s);
    return NULL;
nomem:
    sampler_close(s);
    err_nomem(e, "sampler");
    return NULL;
}

void sampler_close(struct sampler *s)
{
    if (!s)
        return;
    dry_close(s->dry);
    free(s->bias);
    free(s->history);
    free(s);
}

void sampler_accept(struct sampler *s, int32_t id, int generated)
{
    assert(id >= 0 && id < s->vocab_size);
    if (!s->history)
        return;
    assert(s->n_history < s->max_len);
    s->history[s->n_history++] = id;
    if (!generated)
        s->n_prompt = s->n_history;
}

/* Whether the current pass sees id for the first time. */
static int first_time(struct sampler *s, int32_t id)
{
    int first = s->c->seen[id] != s->c->epoch;
    s->c->seen[id] = s->c->epoch;
    return first;
}

static float *change(struct sampler *s, float *logits, int32_t id)
{
    s->c->saved[s->n_saved++] = (struct logit_bias){ id, logits[id] };
    return &logits[id];
}

static float raw_logit(const struct sampler *s, const float *logits, int32_t id)
{
    for (int i = 0; i < s->n_saved; i++)
        if (s->c->saved[i].id == id)
            return s->c->saved[i].bias;
    return logits[id];
}

/* Penalise each token by the longest repetition that it would continue. */
static void penalise_repeats(struct sampler *s, float *logits)
{
    uint32_t *longest = s->c->count;
    int *repeat = s->c->repeat;
    const int from = dry_repeats(s->dry, s->history, s->n_history, repeat);
    s->c->epoch++;
    for (int i = from; i < s->n_history; i++) {
        const int32_t id = s->history[i];
        if (first_time(s, id) || (uint32_t)repeat[i] > longest[id])
            longest[id] = (uint32_t)repeat[i];
    }
    s->c->epoch++;
    for (int i = from; i < s->n_history; i++) {
        const int32_t id = s->history[i];
        const float penalty = first_time(s, id) ? dry_penalty(s->dry, id, (int)longest[id]) : 0;
        if (penalty > 0)
            *change(s, logits, id) -= penalty;
    }
}

static void penalise(struct sampler *s, float *logits)
{
    for (int i = 0; i < s->s.n_bias; i++)
        *change(s, logits, s->bias[i].id) += s->bias[i].bias;
    if (s->s.repetition_penalty != 1) {
        int last_n = s->s.repeat_last_n, from = last_n >= 0 && last_n < s->n_history ? s->n_history - last_n : 0;
        s->c->epoch++;
        for (int i = from; i < s->n_history; i++) {
            if (!first_time(s, s->history[i]))
                continue;
            float *x = change(s, logits, s->history[i]);
            *x = *x > 0 ? *x / s->s.repetition_penalty : *x * s->s.repetition_penalty;
        }
    }
    if (penalises_answer(&s->s)) {
        uint32_t *count = s->c->count;
        for (int i = s->n_prompt; i < s->n_history; i++)
            count[s->history[i]] = 0;
        for (int i = s->n_prompt; i < s->n_history; i++)
            count[s->history[i]]++;
        s->c->epoch++;
        for (int i = s->n_prompt; i < s->n_history; i++)
            if (first_time(s, s->history[i]))
                *change(s, logits, s->history[i]) -= s->s.presence_penalty + s->s.frequency_penalty *
                                                     (float)count[s->history[i]];
    }
    if (s->dry)
        penalise_repeats(s, logits);
}

/* Find the lowest id with the largest logit.  The largest value of each block is found first, so
 * that only one block has to be searched for the id. */
static int find_max(const struct sampler_scratch *c, const float *x, int n, int32_t *best, struct err *e)
{
    enum { PIECE = 1024 };
    float max = -INFINITY;
    int at = 0;
    for (int i = 0; i < n; i += PIECE) {
        const int count = i + PIECE < n ? PIECE : n - i;
        const float m = c->kernels->largest(x + i, count);
        if (isnan(m))
            for (int j = i; j < i + count; j++)
                if (!(x[j] <= FLT_MAX))
                    return err_set(e, ERR_FORMAT, "logits: token %d: %s, expected a number", j,
                                   isnan(x[j]) ? "NaN" : "+inf");
        if (m > max) {
            max = m;
            at = i;
        }
    }
    if (max == -INFINITY)
        return err_set(e, ERR_FORMAT, "logits: all %d are -inf, expected at least one number", n);
    while (x[at] != max)
        at++;
    *best = at;
    return 0;
}

static int before(const struct cand *a, const struct cand *b)
{
    return a->key < b->key || (a->key == b->key && a->id < b->id);
}

static void swap(struct cand *a, struct cand *b)
{
    struct cand t = *a;
    *a = *b;
    *b = t;
}

/* Restore the heap c [n], whose root is the candidate that is last in order, by moving c[i] down to
 * its place. */
static void sink(struct cand *c, int n, int i)
{
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(&c[child], &c[child + 1]))
            child++;
        if (!before(&c[i], &c[child]))
            return;
        swap(&c[i], &c[child]);
    }
}

/* Store the k largest of x[n] in c, unordered.  Ids are visited in ascending order, so among equal
 * values the lower ids stay. */
static int keep_top(struct cand *c, int k, const float *x, int n)
{
    int held = 0;
    for (int i = 0; i < n && held < k; i++)
        c[held++] = (struct cand){ .key = -x[i], .id = i, .x = x[i] };
    if (held == n)
        return n;
    for (int i = held / 2 - 1; i >= 0; i--)
        sink(c, held, i);
    for (int i = held; i < n; i++) {
        if (x[i] > c[0].x) {
            c[0] = (struct cand){ .key = -x[i], .id = i, .x = x[i] };
            sink(c, held, 0);
        }
    }
    return held;
}

/* Reorder c so that its first `result` candidates, in order of key, are the fewest whose weights
 * add up to target > 0. */
static int keep_mass(struct cand *c, int n, double target)
{
    int lo = 0, hi = n;                 /* [0, lo) is kept and weighs less than target; [hi, n) is not kept */
    double sum = 0;
    while (hi - lo > 16) {
        int mid = lo + (hi - lo) / 2;   /* pivot: the median of three is moved to the end */
        if (before(&c[mid], &c[lo]))
            swap(&c[mid], &c[lo]);
        if (before(&c[hi - 1], &c[lo]))
            swap(&c[hi - 1], &c[lo]);
        if (before(&c[mid], &c[hi - 1]))
            swap(&c[mid], &c[hi - 1]);
        int q = lo;
        double left = 0;
        for (int i = lo; i < hi - 1; i++) {
            if (before(&c[i], &c[hi - 1])) {
                left += c[i].w;
                swap(&c[q++], &c[i]);
            }
        }
        swap(&c[q], &c[hi - 1]);
        if (sum + left >= target) {
            hi = q;
        } else {
            sum += left + c[q].w;
            lo = q + 1;
            if (sum >= target)
                return lo;
        }
    }
    for (int i = lo; i < hi; i++) {     /* few are left: select them one by one */
        int least = i;
        for (int j = i + 1; j < hi; j++)
            if (before(&c[j], &c[least]))
                least = j;
        swap(&c[i], &c[least]);
        sum += c[i].w;
        if (sum >= target)
            return i + 1;
    }
    return hi;                          /* rounding made the sum in this order a few ulp smaller */
}

static double sum_of(const struct cand *c, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += c[i].w;
    return sum;
}

/* Keep the candidates whose weight is at least `least`; at least one has it. */
static int keep_weight(struct cand *c, int n, double least)
{
    int kept = 0;
    for (int i = 0; i < n; i++)
        if (c[i].w >= least)
            c[kept++] = c[i];
    return kept;
}

static double entropy_of(const struct cand *c, int n, double sum)
{
    double entropy = 0;
    for (int i = 0; i < n; i++)
        if (c[i].w > 0)
            entropy -= c[i].w / sum * log(c[i].w / sum);
    return entropy;
}

/* Keep the tokens whose surprise (-log of the probability) is nearest to its expected value, with a
 * total probability of p. */
static int keep_typical(struct cand *c, int n, float p)
{
    const double sum = sum_of(c, n), entropy = entropy_of(c, n, sum);
    for (int i = 0; i < n; i++)
        c[i].key = c[i].w > 0 ? (float)fabs(-log(c[i].w / sum) - entropy) : INFINITY;
    n = keep_mass(c, n, p * sum);
    for (int i = 0; i < n; i++)
        c[i].key = -c[i].x;
    return n;
}

/* Set logits that are more than n_sigma standard deviations below the largest to -inf. */
static void cut_sigma(float *x, int n, float largest, float n_sigma)
{
    double sum = 0, squares = 0;
    int n_finite = 0;
    for (int i = 0; i < n; i++)
        if (x[i] != -INFINITY) {
            sum += x[i];
            n_finite++;
        }
    const double mean = sum / n_finite;
    for (int i = 0; i < n; i++)
        squares += x[i] != -INFINITY ? (x[i] - mean) * (x[i] - mean) : 0;
    const double least = largest - n_sigma * sqrt(squares / n_finite);
    for (int i = 0; i < n; i++)
        x[i] = x[i] < least ? -INFINITY : x[i];
}

/* The weight of a logit, given its distance d <= 0 from the largest in units of the temperature; 1
 * for the largest.  It never falls when the logit grows. */
static float weight_at(const struct sampling *o, float d)
{
    if (o->smoothing_factor > 0 && d > -INFINITY) {
        const float cube = (o->smoothing_curve - 1) / 2;
        d = o->smoothing_factor * d * d * (cube * d - (1 - cube));
    }
    return expf(d);
}

static float weight(const struct sampler *s, float x, float max)
{
    return weight_at(&s->s, (x - max) / s->s.temperature);
}

/* Apply XTC to n candidates whose weights add up to *sum: move those that stay to the front, and
 * set *sum to their sum.  Returns their number.  A single candidate takes no random number. */
static int exclude_top(const struct sampler *s, struct rng *rng, struct cand *c, int n, double *sum)
{
    if (n < 2 || rng_double(rng) > s->s.xtc_probability)
        return n;
    const double least = s->s.xtc_threshold * *sum;
    /* least likely of the top choices; among equals the higher id */
    const struct cand *last = NULL;
    int n_top = 0, kept = 0;
    for (int i = 0; i < n; i++)
        if (c[i].w >= least) {
            n_top++;
            if (!last || c[i].w < last->w || (c[i].w == last->w && c[i].id > last->id))
                last = &c[i];
        }
    if (n_top < 2)
        return n;
    const int32_t stays = last->id;
    *sum = 0;
    for (int i = 0; i < n; i++)
        if (c[i].w < least || c[i].id == stays) {
            *sum += c[i].w;
            c[kept++] = c[i];
        }
    return kept;
}

/* The distribution that a token is drawn from: the weights of the first n candidates, which all
 * filters kept, or with n -1 those of all tokens (spread_weight).  sum: the sum of the weights. */
struct spread { int n; double sum; float largest; };

/* Weigh the candidates again, with a temperature that grows from temperature - dynatemp_range to
 * temperature + dynatemp_range, as their entropy grows from 0 to that of n equal weights. */
static void weigh_by_entropy(const struct sampling *o, struct cand *c, struct spread *all)
{
    const double share = all->n > 1 ? entropy_of(c, all->n, all->sum) / log(all->n) : 0;
    const float low = fmaxf(o->temperature - o->dynatemp_range, 0), high = o->temperature + o->dynatemp_range;
    const float temperature = fmaxf(low + (high - low) * (float)pow(share, o->dynatemp_exponent), FLT_MIN);
    const int n = all->n;
    float max = -INFINITY;
    for (int i = 0; i < n; i++)
        max = c[i].x > max ? c[i].x : max;
    *all = (struct spread){ .largest = max };
    for (int i = 0; i < n; i++) {
        c[i].w = weight_at(o, (c[i].x - max) / temperature);
        if (c[i].w > 0) {
            all->sum += c[i].w;
            c[all->n++] = c[i];
        }
    }
}

/* Apply top_k, top_a, typical_p, top_p, min_p and XTC, whose random number is taken from rng, and
 * dynatemp_range. */
static struct spread filter(struct sampler *s, struct rng *rng, const float *logits, float max)
{
    struct cand *c = s->c->cand;
    int n = keep_top(c, s->n_cand, logits, s->vocab_size);
    for (int i = 0; i < n; i++)
        c[i].w = s->s.dynatemp_range > 0 ? expf(c[i].x - max) : weight(s, c[i].x, max);
    if (s->s.top_a > 0)                 /* p >= top_a * 1 / sum^2, as the largest weight is 1 */
        n = keep_weight(c, n, s->s.top_a / sum_of(c, n));
    if (s->s.typical_p < 1)
        n = keep_typical(c, n, s->s.typical_p);
    if (s->s.top_p < 1)
        n = keep_mass(c, n, s->s.top_p * sum_of(c, n));
    float top = 0;
    for (int i = 0; i < n; i++)
        top = c[i].w > top ? c[i].w : top;
    struct spread all = { .largest = max };
    for (int i = 0; i < n; i++) {
        if (c[i].w >= s->s.min_p * top && c[i].w > 0) {
            all.sum += c[i].w;
            c[all.n++] = c[i];
        }
    }
    if (excludes_top(&s->s))
        all.n = exclude_top(s, rng, c, all.n, &all.sum);
    if (s->s.dynatemp_range > 0)
        weigh_by_entropy(&s->s, c, &all);
    return all;
}

/* Returns the weight of entry i, and stores its token in *id. */
static float spread_weight(const struct sampler *s, const struct spread *all, const float *x, int i, int32_t *id)
{
    if (all->n >= 0) {
        *id = s->c->cand[i].id;
        return s->c->cand[i].w;
    }
    const float w = weight(s, x[i], all->largest);
    *id = i;
    return w >= s->s.min_p ? w : 0;
}

static struct spread spread_of(struct sampler *s, struct rng *rng, const float *logits, int32_t best)
{
    struct spread all = { .n = -1, .largest = logits[best] };
    int32_t id;
    if (s->n_cand)
        return filter(s, rng, logits, logits[best]);
    for (int i = 0; i < s->vocab_size; i++)
        all.sum += spread_weight(s, &all, logits, i, &id);
    return all;
}

static int spread_size(const struct sampler *s, const struct spread *all)
{
    return all->n < 0 ? s->vocab_size : all->n;
}

/* Draw a token.  If only temperature and min_p are set, computing the weights twice is cheaper than
 * storing them. */
static int32_t draw_token(struct sampler *s, const float *logits, int32_t best)
{
    const struct spread all = spread_of(s, &s->rng, logits, best);
    const struct cand *c = s->c->cand;
    double r = rng_double(&s->rng) * all.sum;
    if (all.n < 0) {
        for (int i = 0; i < s->vocab_size; i++) {
            const float w = weight(s, logits[i], logits[best]);
            if (w >= s->s.min_p && (r -= w) < 0)
                return i;
        }
        return best;                    /* rounding errors left r >= 0 */
    }
    for (int i = 0; i < all.n - 1; i++)
        if ((r -= c[i].w) < 0)
            return c[i].id;
    return c[all.n - 1].id;
}

/* Accept the proposed token or replace it.  Random numbers come from s->drafts, not from s->rng: a
 * token takes a number of them that depends on its candidates, so a proposal that is made several
 * tokens early could not foresee which numbers of s->rng its position will take. */
static int32_t verify_token(struct sampler *s, const float *logits, int32_t best, const struct proposed *proposed)
{
    struct rng coin = { proposed->coin };
    const struct spread all = spread_of(s, &coin, logits, best);
    const double u = rng_double(&s->drafts), random = rng_double(&s->drafts);
    const int n = spread_size(s, &all);
    double p = 0, rest = 0;
    int32_t id, last = proposed->id;
    for (int i = 0; i < n; i++) {
        const double w = spread_weight(s, &all, logits, i, &id) / all.sum, more = w - proposed->proposal[id];
        p = id == proposed->id ? w : p;
        rest += more > 0 ? more : 0;
    }
    if (u * proposed->proposal[proposed->id] < p)
        return proposed->id;
    double r = random * rest;
    for (int i = 0; i < n; i++) {
        const double w = spread_weight(s, &all, logits, i, &id) / all.sum, more = w - proposed->proposal[id];
        if (more > 0 && id != proposed->id) {
            last = id;
            if ((r -= more) < 0)
                return id;
        }
    }
    return last == proposed->id ? best : last;          /* rounding errors left r >= 0 */
}

/* Find the n_top largest by insertion: few values enter the list. */
static void find_top(const float *x, int n, struct logprobs *lp, double log_sum)
{
    int held = 0, room = lp->n_top < n ? lp->n_top : n;
    for (int i = 0; i < n && room; i++) {
        if (held == room && x[i] <= lp->top[held - 1].logprob)
            continue;
        int at = held < room ? held++ : held - 1;
        for (; at > 0 && lp->top[at - 1].logprob < x[i]; at--)
            lp->top[at] = lp->top[at - 1];
        lp->top[at] = (struct top_logprob){ i, x[i] };
    }
    lp->n_top = held;
    for (int i = 0; i < held; i++)
        lp->top[i].logprob = (float)(lp->top[i].logprob - log_sum);
}

/* Logarithm of the sum of exp(x); x[best] is the largest. */
static double log_sum_exp(const float *x, int n, int32_t best)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += expf(x[i] - x[best]);
    return x[best] + log(sum);
}

int logprobs_of(const struct sampler_scratch *c, const float *logits, int vocab_size, int32_t id, struct logprobs *lp,
                struct err *e)
{
    int32_t best;
    if (find_max(c, logits, vocab_size, &best, e) != 0)
        return -1;
    double log_sum = log_sum_exp(logits, vocab_size, best);
    find_top(logits, vocab_size, lp, log_sum);
    lp->logprob = (float)(logits[id] - log_sum);
    return 0;
}

/* Set logits that are not allowed to -inf, and in the same pass find the largest as find_max()
 * does.  For a word without bits all 32 logits are filled; otherwise each is selected without a
 * branch, which compilers vectorize. */
static int forbid(float *logits, int n, const struct allowed *a, int32_t *best, struct err *e)
{
    static const uint32_t lane[32] = { 1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,
                                       1u << 8,  1u << 9,  1u << 10, 1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15,
                                       1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21, 1u << 22, 1u << 23,
                                       1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31 };
    float max = -INFINITY;
    int at = 0;
    for (int w = 0; w < n; w += 32) {
        float *x = logits + w, m = -INFINITY;
        int count = n - w < 32 ? n - w : 32, bad = 0;
        uint32_t bits = w < a->n ? a->bits[w / 32] : 0;
        if (a->n - w < 32 && w < a->n)
            bits &= (1u << (a->n - w)) - 1;
        if (count < 32) {
            for (int i = 0; i < count; i++) {
                bad |= !(x[i] <= FLT_MAX);
                x[i] = bits >> i & 1 ? x[i] : -INFINITY;
                m = x[i] > m ? x[i] : m;
            }
        } else if (bits == 0) {
            for (int i = 0; i < 32; i++)
                bad |= !(x[i] <= FLT_MAX);
            for (int i = 0; i < 32 && !bad; i++)
                x[i] = -INFINITY;
        } else {
            uint32_t u[32];             /* as integers, logits can be selected without a branch */
            for (int i = 0; i < 32; i++)
                bad |= !(x[i] <= FLT_MAX);
            memcpy(u, x, sizeof u);
            for (int i = 0; i < 32; i++) {
                uint32_t keep = 0u - (uint32_t)((bits & lane[i]) != 0);
                u[i] = (u[i] & keep) | (0xFF800000u & ~keep);       /* -inf */
            }
            memcpy(x, u, sizeof u);
            for (int i = 0; i < 32; i++)
                m = x[i] > m ? x[i] : m;
        }
        if (bad)
            return err_set(e, ERR_FORMAT, "logits: tokens %d to %d: NaN or +inf, expected numbers", w, w + count - 1);
        if (m > max) {
            max = m;
            at = w;
        }
    }
    if (max == -INFINITY)
        return err_set(e, ERR_FORMAT, "constraint: logits: all %d are -inf, expected at least one number", n);
    while (logits[at] != max)
        at++;
    *best = at;
    return 0;
}

int sampler_draw(const struct sampler *s, int n, struct draw *d)
{
    if (s->s.n_bias || s->history || needs_host(&s->s))
        return 0;
    *d = (struct draw){ .temperature = greedy(&s->s) ? 0 : s->s.temperature, .top_k = s->s.top_k, .top_p = s->s.top_p,
                        .min_p = s->s.min_p, .seed = s->s.seed, .n = (uint64_t)n,
                        .id = -1 };
    return 1;
}

int sampler_is_greedy(const struct sampler *s) { return greedy(&s->s); }

/* Change the logits as the options tell; *best: the largest; lp: as in sampler_pick(), with
 * *log_sum. */
static int prepare(struct sampler *s, float *logits, const struct allowed *allowed, int32_t *best,
                   struct logprobs *lp, double *log_sum, struct err *e)
{
    if ((lp || !allowed) && find_max(s->c, logits, s->vocab_size, best, e) != 0)
        return -1;
    if (lp) {
        *log_sum = log_sum_exp(logits, s->vocab_size, *best);
        find_top(logits, s->vocab_size, lp, *log_sum);
    }
    s->n_saved = 0;
    if (allowed && forbid(logits, s->vocab_size, allowed, best, e) != 0)
        return -1;
    if (s->s.n_bias || s->history)
        penalise(s, logits);
    if ((s->s.n_bias || s->history) && find_max(s->c, logits, s->vocab_size, best, e) != 0)
        return allowed ? err_prefix(e, "constraint") : -1;
    if (cuts_sigma(&s->s))
        cut_sigma(logits, s->vocab_size, logits[*best], s->s.top_n_sigma);
    return 0;
}

int sampler_verify(struct sampler *s, float *logits, const struct allowed *allowed, const struct proposed *proposed,
                   int32_t *id, struct logprobs *lp, struct err *e)
{
    int32_t best;
    double log_sum = 0;
    if (prepare(s, logits, allowed, &best, lp, &log_sum, e) != 0)
        return -1;
    *id = greedy(&s->s) ? best : proposed ? verify_token(s, logits, best, proposed) : draw_token(s, logits, best);
    if (lp)
        lp->logprob = (float)(raw_logit(s, logits, *id) - log_sum);
    return 0;
}

int sampler_pick(struct sampler *s, float *logits, const struct allowed *allowed, int32_t *id, struct logprobs *lp,
                 struct err *e)
{
    return sampler_verify(s, logits, allowed, NULL, id, lp, e);
}

/* Skip the random numbers of `ahead` tokens.  A token for which XTC finds a single candidate takes
 * one fewer; later guesses are then right less often. */
static void skip_random(struct sampler *s, int ahead)
{
    const int each = greedy(&s->s) ? 0 : 1 + excludes_top(&s->s);
    for (int i = 0; i < ahead * each; i++)
        rng_u64(&s->rng);
}

int sampler_guess(struct sampler *s, float *logits, int ahead, int32_t *id, struct err *e)
{
    const struct rng before = s->rng;
    skip_random(s, ahead);
    const int rc = sampler_pick(s, logits, NULL, id, NULL, e);
    s->rng = before;
    return rc;
}

/* Draw a token from the proposal, whose sum is 1 but for rounding. */
static int32_t draw_proposal(const float *proposal, int n, double r)
{
    int32_t last = 0;
    for (int i = 0; i < n; i++)
        if (proposal[i] > 0) {
            last = i;
            if ((r -= proposal[i]) < 0)
                break;
        }
    return last;
}

int sampler_propose(struct sampler *s, float *logits, float *proposal, struct proposed *proposed, struct err *e)
{
    int32_t best, token;
    assert(!greedy(&s->s));
    const double random = rng_double(&s->drafts);
    struct rng coin = { rng_u64(&s->drafts) };
    *proposed = (struct proposed){ .proposal = proposal, .coin = coin.state };
    const int rc = prepare(s, logits, NULL, &best, NULL, NULL, e);
    if (rc == 0) {
        const struct spread all = spread_of(s, &coin, logits, best);
        memset(proposal, 0, (size_t)s->vocab_size * sizeof *proposal);
        for (int i = 0; i < spread_size(s, &all); i++) {
            const float w = spread_weight(s, &all, logits, i, &token);
            proposal[token] = (float)(w / all.sum);
        }
        proposed->id = draw_proposal(proposal, s->vocab_size, random);
    }
    return rc;
}
