/* cpu_ngram.c - n-gram embeddings (qwen4_exp): add values that depend on the last tokens to the
 * residual streams.
 *
 * A hash of the run of tokens that ends here selects rows of a table.  They give a value, which
 * each stream weighs by how well its key matches, and a convolution runs over the values of earlier
 * tokens.
 *
 * State of the layer, after that of its mixer: the last tokens, oldest first, then inputs of the
 * convolution, oldest first. */
#include <math.h>
#include <string.h>

#include "libcommon/cpu/cpu_ops.h"

enum { CHANNELS = 64, MOST_SIZE = 8 };

struct ngram_job {
    struct core *k;
    const struct step *s;
    const struct layer *l;
    int which, jobs;                        /* jobs: per item, in the convolution */
    size_t state_at;
};

static size_t width(const struct config *c) { return (size_t)c->hyper.n * (size_t)c->hidden_size; }

static float *state_of(const struct ngram_job *j, int item)
{
    return j->k->states + (size_t)j->s->items[item].state * j->k->state_stride + j->state_at;
}

/* ---- rows of the table ---- */

/* Look up the table's rows for all runs of tokens that end with the newest one.  run [size]: the
 * last tokens, newest first. */
static void look_up(const struct ngram_job *j, const int32_t *run, float *out)
{
    const struct ngram *g = &j->k->c->ngram;
    const uint64_t *factor = g->factor + (size_t)j->which * (size_t)g->size;
    const int *rows = g->rows + (size_t)j->which * (size_t)((g->size - 1) * g->heads);
    uint64_t mixed = (uint64_t)run[0] * factor[0];
    int first = 0;
    for (int i = 1; i < g->size; i++) {
        mixed ^= (uint64_t)run[i] * factor[i];
        for (int h = 0; h < g->heads; h++, out += g->dim) {
            const int n = rows[(i - 1) * g->heads + h];
            mat_decode_row(&j->l->ngram_embed.w, first + (int)(mixed % (uint64_t)n), out);
            first += n;
        }
    }
}

/* Look up the rows of an item's tokens; its last tokens go to the state. */
static void look_up_item(void *arg, int item, int thread)
{
    (void)thread;
    const struct ngram_job *j = arg;
    const struct ngram *g = &j->k->c->ngram;
    const struct batch_item *it = &j->s->items[item];
    const size_t row = (size_t)((g->size - 1) * g->heads) * (size_t)g->dim;
    float *past = state_of(j, item);
    int32_t run[MOST_SIZE];
    for (int i = 0; i < g->size - 1 && it->pos == 0; i++)
        past[i] = (float)g->end;
    for (int t = 0; t < it->n_tokens; t++) {
        run[0] = it->tokens[t];
        int ended = 0;
        /* all tokens before an end of text count as ends of text */
        for (int i = 1; i < g->size; i++) {
            const int32_t before = (int32_t)past[g->size - 1 - i];
            ended |= before == g->end;
            run[i] = ended ? g->end : before;
        }
        look_up(j, run, j->k->low + (size_t)(j->s->offset[item] + t) * row);
        memmove(past, past + 1, (size_t)(g->size - 2) * sizeof *past);
        past[g->size - 2] = (float)it->tokens[t];
    }
}

/* ---- values ---- */

/* Norm each stream's part of a row. */
static void norm_parts(const struct core *k, float *out, const float *x, const float *w)
{
    const int hidden = k->c->hidden_size;
    for (int s = 0; s < k->c->hyper.n; s++)
        k->k->rms_norm(out + s * hidden, x + s * hidden, w + s * hidden, hidden, k->c->norm_eps, k->c->norm_offset);
}

/* Compute the gated values of one token.  wide[0] holds keys, afterwards the gated values; wide[1]
 * holds queries, afterwards the inputs of the convolution. */
static void gate_token(void *arg, int t, int thread)
{
    (void)thread;
    const struct ngram_job *j = arg;
    const struct core *k = j->k;
    const int hidden = k->c->hidden_size;
    const size_t at = (size_t)t * width(k->c);
    float *key = k->wide[0] + at, *query = k->wide[1] + at;
    const float *value = k->h[0] + (size_t)t * (size_t)hidden;
    norm_parts(k, key, key, j->l->ngram_key_norm);
    norm_parts(k, query, k->streams + at, j->l->ngram_query_norm);
    for (int s = 0; s < k->c->hyper.n; s++) {
        double sum = 0;
        for (int i = 0; i < hidden; i++)
            sum += (double)key[s * hidden + i] * (double)query[s * hidden + i];
        const float fit = (float)sum / sqrtf((float)hidden), size = sqrtf(fmaxf(fabsf(fit), 1e-6f)),
                    gate = 1 / (1 + expf(fit > 0 ? -size : fit < 0 ? size : 0));
        for (int i = 0; i < hidden; i++)
            key[s * hidden + i] = gate * value[i];
    }
    norm_parts(k, query, key, j->l->ngram_conv_norm);
}

/* streams += value + silu(convolution), for some channels of an item. */
static void conv_part(void *arg, int i, int thread)
{
    (void)thread;
    const struct ngram_job *j = arg;
    const struct core *k = j->k;
    const struct ngram *g = &k->c->ngram;
    const int item = i / j->jobs, n = j->s->items[item].n_tokens, hooks = g->kernel, back = (hooks - 1) * g->size;
    const size_t all = width(k->c), from = (size_t)(i % j->jobs) * CHANNELS,
                 to = from + CHANNELS < all ? from + CHANNELS : all, first = (size_t)j->s->offset[item] * all;
    float *past = state_of(j, item) + g->size - 1;
    for (int r = 0; r < back && j->s->items[item].pos == 0; r++)
        memset(past + (size_t)r * all + from, 0, (to - from) * sizeof *past);
    for (int t = 0; t < n; t++)
        for (size_t c = from; c < to; c++) {
            float sum = 0;
            for (int hook = 0; hook < hooks; hook++) {
                const int row = t - (hooks - 1 - hook) * g->size;
                const float x = row < 0 ? past[(size_t)(back + row) * all + c]
                                        : k->wide[1][first + (size_t)row * all + c];
                sum += x * j->l->ngram_conv[(size_t)hook * all + c];
            }
            k->streams[first + (size_t)t * all + c] += k->wide[0][first + (size_t)t * all + c] + sum / (1 + expf(-sum));
        }
    for (int r = 0; r < back; r++) {
        const int row = n - back + r;
        memcpy(past + (size_t)r * all + from, row < 0 ? past + (size_t)(back + row) * all + from
                                                      : k->wide[1] + first + (size_t)row * all + from,
               (to - from) * sizeof *past);
    }
}

void ngram_run(struct core *k, const struct step *s, const struct layer *l, int index)
{
    const struct config *c = k->c;
    const struct ngram *g = &c->ngram;
    const int n = s->n_tokens, cols = (g->size - 1) * g->heads * g->dim;
    struct ngram_job j = { .k = k, .s = s, .l = l, .which = config_ngram(c, index),
                           .jobs = (int)((width(c) + CHANNELS - 1) / CHANNELS),
                           .state_at = s->state_at + config_state_floats(c, index) - config_ngram_floats(c, index) };
    const struct act_input in = { .x = k->low, .ldx = (size_t)cols, .cols = cols };
    pool_run(k->pool, s->n_items, look_up_item, &j);
    core_linear(k, (struct op[]){ { .l = &l->ngram_key, .in = &in, .out = k->wide[0], .ldo = width(c),
                                    .kind = OP_STORE },
                                  { .l = &l->ngram_value, .in = &in, .out = k->h[0], .ldo = (size_t)c->hidden_size,
                                    .kind = OP_STORE } }, 2, n, NULL);
    pool_run(k->pool, n, gate_token, &j);
    pool_run(k->pool, s->n_items * j.jobs, conv_part, &j);
}
