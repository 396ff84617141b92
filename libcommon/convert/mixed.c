/* mixed.c - choose 2 to 8 bits for each tensor: start with the fewest everywhere, then spend the
 * target's bytes where they reduce the error most.
 *
 * The error of a tensor is a product of three factors: its relative output error, that is the sum
 * of strength * (w - w')^2 divided by the sum of strength * w^2, over a sample of 64 rows; its
 * number of weights; and the measured effect of such an error in that kind of matrix on the logits
 * of a real model (v has the largest, q the least, the first two layers more than the others).
 *
 * A layer that predicts further tokens changes no answer, so it gets only the bytes that no other
 * layer needs. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/convert/spill.h"
#include "libcommon/convert/internal.h"
#include "libcommon/quant/quantize.h"

/* The steps of a tensor, numbered from 0: the quantized types of qtype.def's column `chosen`,
 * the type with the fewest bits first. */
#define STEPS_NONE
#define STEPS_SMALL + 1
#define STEPS_STEP + 1
#define STEPS_COMPARED + 1
#define QTYPE(ID, number, name, choice, option, codes, values, zero, low, high, scale, extra, row, sizes, group, acts, \
              stream, ymm, zmm, gpu, chosen) + ((low) + (high) <= 8 && 0 STEPS_##chosen)
enum { N_STEPS = 0
#include "libcommon/quant/qtype.def"
       , SAMPLE = 64 };

struct type_choice {
    struct recipe *p;
    int step;
    double error[N_STEPS];
    uint64_t bytes[N_STEPS];
    struct err e;
};

struct measure { struct conversion *cv; struct type_choice *choices; };

/* The weight of a tensor's error in the choice.  An expert's error affects only the tokens routed
 * to it. */
static double sensitivity(const struct config *c, const struct weight_spec *s)
{
    static const double by_role[N_ROLES] = { [ROLE_Q] = 1, [ROLE_K] = 7, [ROLE_V] = 10, [ROLE_O] = 2, [ROLE_GATE] = 3,
                                             [ROLE_UP] = 5, [ROLE_DOWN] = 5,
                                      [ROLE_EMBED] = 5, [ROLE_HEAD] = 5, [ROLE_Q_A] = 1, [ROLE_KV_A] = 10,
                                      [ROLE_K_B] = 7, [ROLE_V_B] = 10,
                                              [ROLE_EXPERT_GATE] = 3, [ROLE_EXPERT_UP] = 5, [ROLE_EXPERT_DOWN] = 5,
                                              /* not measured, guessed from similar matrices */
                                              [ROLE_Q_GATE] = 1, [ROLE_IN] = 5, [ROLE_IN_Z] = 3,
                                              [ROLE_NEXT_IN] = 1, [ROLE_LATENT_IN] = 5, [ROLE_LATENT_OUT] = 5 };
    const double share = s->expert >= 0 ? (double)c->moe.top_k / c->moe.n_experts : 1;
    return share * by_role[s->role] * (s->layer == 0 || s->layer == 1 ? 2 : 1) * (double)s->rows * (double)s->cols;
}

static const struct qtype_info *type_of_step(int step)
{
    const struct qtype_info *info;
    for (int i = 0, n = N_STEPS; (info = qtype_chosen(i)); i++)
        if (info->bits <= 8 && --n == step)
            return info;
    return NULL;
}

static int try_type(const struct config *config, struct type_choice *c, int step, const float *x,
                    const float *importance, int n, float *decoded, struct err *e)
{
    struct mat m;
    struct qrow q;
    size_t cols = (size_t)c->p->spec->cols;
    double err = 0, sum = 0;
    const struct qtype_info *type = type_of_step(step);
    if (mat_init(&m, type->type, type->group_size, 32, c->p->spec->rows, c->p->spec->cols, e) ||
        qrow_init(&q, &m, e))
        return -1;
    for (int r = 0; r < n; r++) {
        const float *row = x + (size_t)r * cols;
        quantize_row(&m, row, importance, QUANT_SEARCH, &q);
        qrow_decode(&m, &q, decoded);
        for (size_t k = 0; k < cols; k++) {
            double w = importance ? (double)importance[k] : 1, d = (double)row[k] - (double)decoded[k];
            err += w * d * d;
            sum += w * (double)row[k] * (double)row[k];
        }
    }
    qrow_release(&q);
    c->bytes[step] = m.size;
    c->error[step] = sum > 0 ? err / sum * sensitivity(config, c->p->spec) : 0;
    return 0;
}

static void measure_tensor(void *arg, int i, int thread)
{
    struct measure *s = arg;
    struct type_choice *c = &s->choices[i];
    const struct weight_spec *spec = c->p->spec;
    struct channel_scale fold = channel_scale_of(s->cv, c->p);
    struct row_reader rows;
    int n = spec->rows < SAMPLE ? (int)spec->rows : SAMPLE, rc = 0;
    size_t cols = (size_t)spec->cols;
    float *x = malloc(((size_t)n + 2) * cols * sizeof *x), *importance = x + (size_t)n * cols,
          *decoded = importance + cols;
    (void)thread;
    if (!x) {
        err_nomem(&c->e, c->p->source->name);
        return;
    }
    rc = row_reader_open(&rows, s->cv->source, c->p->source, &spec->map, spec->rows, spec->cols, 0, &c->e);
    for (int r = 0; r < n && rc == 0; r++) {
        int64_t row = spec->rows * r / n;
        rc = row_reader_read(&rows, row, 1, x + (size_t)r * cols, &c->e);
        if (rc == 0)
            channel_scale_row(&fold, row, x + (size_t)r * cols, spec->cols);
    }
    int known = encode_importance(s->cv, c->p, importance);
    for (int k = 0; k < N_STEPS && rc == 0; k++)
        rc = try_type(&s->cv->config, c, k, x, known ? importance : NULL, n, decoded, &c->e);
    spill_free(rows.whole);
    free(x);
}

/* Find the step that removes the most error per byte among those that fit into `room`.  Returns the
 * index of its tensor, with the step in *to; -1: there is none.  Steps that remove no error are
 * skipped.  next: 1: search only layers that predict further tokens; 0: only the others. */
static int best_step(const struct conversion *cv, const struct type_choice *c, int n, uint64_t room, int next, int *to)
{
    int best = -1;
    double most = 0;
    for (int i = 0; i < n; i++)
        for (int k = c[i].step + 1; k < N_STEPS && recipe_is_next(cv, c[i].p) == next; k++) {
            uint64_t more = c[i].bytes[k] - c[i].bytes[c[i].step];
            double gain = c[i].error[c[i].step] - c[i].error[k];
            if (c[i].bytes[k] <= c[i].bytes[c[i].step] || more > room || gain / (double)more <= most)
                continue;
            most = gain / (double)more;
            best = i;
            *to = k;
        }
    return best;
}

int mixed_assign(struct conversion *cv, struct err *e)
{
    struct type_choice *c = calloc((size_t)cv->n_recipes + 1, sizeof *c);
    int n = 0, rc = 0, to = 0;
    uint64_t fixed = 0, used = 0;
    if (!c)
        return err_nomem(e, "the choice of types");
    for (int i = 0; i < cv->n_recipes; i++) {
        struct recipe *p = &cv->recipes[i];
        if (p->make == MAKE_QUANT && !p->fixed)
            c[n++].p = p;
        else
            fixed += p->m.size;
    }
    pool_run(cv->pool, n, measure_tensor, &(struct measure){ cv, c });
    for (int i = 0; i < n && rc == 0; i++) {
        used += c[i].bytes[0];
        if (c[i].e.code) {
            *e = c[i].e;
            rc = -1;
        }
    }
    if (rc == 0 && fixed + used > cv->o->target_bytes)
        rc = err_set(e, ERR_LIMIT, "%s: with 2 bits everywhere the weights take %" PRIu64
                     " bytes, more than the target of %" PRIu64, cv->source->path, fixed + used, cv->o->target_bytes);
    for (int next = 0; next < 2; next++)
        for (int i; rc == 0 && (i = best_step(cv, c, n, cv->o->target_bytes - fixed - used, next, &to)) >= 0;) {
            used += c[i].bytes[to] - c[i].bytes[c[i].step];
            c[i].step = to;
        }
    for (int i = 0; i < n && rc == 0; i++)
        rc = recipe_set(c[i].p, type_of_step(c[i].step)->type, 0, e);
    free(c);
    return rc;
}
