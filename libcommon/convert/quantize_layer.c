/* quantize_layer.c - quantize a layer with error feedback (see gptq.h): good uses the inputs of the
 * float model, described by few directions; best uses the inputs that the quantized layers before
 * it compute.
 *
 * With best the inputs of o, of gate and up, and of down depend on matrices of the same layer that
 * were quantized just before.  So the layer runs four times up to the matrix to quantize, and a
 * fifth time to its end.
 *
 * Experts are quantized one after the other as they are written, each on the tokens routed to it,
 * so that the bytes of only one expert are in memory.
 *
 * Memory of a layer, with T tokens and the widest input N (enum hold in calibrate.h lists the kinds
 * that may be in spill files):
 *   run_layer        x [T, hidden] -> x of the next layer; kept: all inputs of the layer in the
 *                    float model [T, their widths]; the layer's weights; experts are loaded one by
 *                    one
 *   quantize_input   kept, xq, the weights, those quantized so far; H, C, then inv(L) [N, N]; X~ of
 *                    a window, twice plain and twice packed
 *   advance          xq -> input of the experts (h), and the choice of each token
 *   quantize_expert  h; its rows for the expert, and the input of its down; H and inv(L); the
 *                    quantized expert; xq += its output */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/convert/source_weights.h"
#include "libcommon/convert/spill.h"
#include "libcommon/convert/calibrate.h"
#include "libcommon/convert/gptq.h"

static const float alpha_good = 0.5f, alpha_best = 0.25f;

/* ---- tensors without feedback, encoded into memory ---- */

struct sink_buffer { uint8_t *data; size_t at; };

static int remember(void *user, const void *data, size_t n, struct err *e)
{
    struct sink_buffer *m = user;
    (void)e;
    memcpy(m->data + m->at, data, n);
    m->at += n;
    return 0;
}

/* Let the quantized model c->q use p->data. */
static int place(struct conversion *cv, struct calibration *c, struct recipe *p, struct err *e)
{
    struct weight_place to = weight_place(&c->q, p->spec);
    float *v = (float *)(void *)p->data;
    if (!p->spec->is_vector) {
        to.linear->w = p->m;
        to.linear->w.data = p->data;
        return 0;
    }
    *to.plain = v;
    if (to.norm && to.plain == &to.norm->w && cv->config.norm == NORM_LAYER && cv->config.norm_offset != 0 &&
        p->spec->cols == cv->config.hidden_size) {
        float *w = calibrate_alloc(c, HOLD_WEIGHTS, p->m.size, e);
        if (!w)
            return -1;
        for (int64_t i = 0; i < p->spec->cols; i++)
            w[i] = v[i] + cv->config.norm_offset;
        *to.plain = w;
    }
    return 0;
}

static int is_fed_back(const struct recipe *p)
{
    return p->make == MAKE_QUANT && (p->input >= 0 || p->spec->role == ROLE_EXPERT_DOWN);
}

/* Allocate memory for the tensor's bytes in the new file. */
static uint8_t *hold_result(const struct calibration *c, const struct recipe *p, struct err *e)
{
    return calibrate_hold(c, p->spec->expert >= 0 ? HOLD_EXPERT : HOLD_ROUNDED, p->m.size, p->source->name, e);
}

/* Encode the layer's tensors that are made without error feedback, of this expert or (-1) of no
 * expert. */
static int encode_rest(struct conversion *cv, struct calibration *c, int layer, int expert, struct err *e)
{
    for (int i = 0; i < cv->n_recipes; i++) {
        struct recipe *p = &cv->recipes[i];
        if (p->spec->layer != layer || p->spec->expert != expert || is_fed_back(p))
            continue;
        struct sink_buffer m = { .data = hold_result(c, p, e) };
        uint64_t done = cv->done;
        if (!m.data)
            return -1;
        int rc = encode_tensor(cv, p, remember, &m, e);
        cv->done = done;
        p->data = m.data;
        if (rc || place(cv, c, p, e))
            return -1;
    }
    return 0;
}

/* ---- Gram matrices ---- */

struct gram_hook {
    struct conversion *cv;
    struct calibration *c;
    int input, window, seen;
    const struct inputs *kept;          /* inputs in the float model */
    const float *scale;                 /* the float model's channels are divided by it; or NULL */
    float *h, *cross;                   /* [N][N] */
    float *x, *diff, *px, *pd;          /* [window_len][N]; px, pd: the same packed */
    float *mlp;                         /* [window_len][hidden_size] input of a shared MLP beside experts, or NULL */
    void *streams;                      /* a copy of the window's residual streams */
};

static int watch_input(void *user, int layer, int role, const float *x, size_t ldx, int n_tokens, int cols)
{
    struct gram_hook *w = user;
    (void)layer;
    if (w->mlp && calibrate_input(role) == INPUT_MLP) {
        for (int t = 0; t < n_tokens; t++)
            memcpy(w->mlp + (size_t)t * (size_t)cols, x + (size_t)t * ldx, (size_t)cols * sizeof *x);
        return 1;
    }
    if ((int)calibrate_input(role) != w->input)
        return 0;
    size_t N = (size_t)w->kept->ld;
    for (int t = 0; t < n_tokens; t++) {
        const float *f = w->kept->x + ((size_t)w->window * (size_t)w->c->window_len + (size_t)t) * N;
        float *to = w->x + (size_t)t * N, *diff = w->diff + (size_t)t * N;
        memcpy(to, x + (size_t)t * ldx, (size_t)cols * sizeof *x);
        for (int k = 0; k < cols; k++)
            diff[k] = (w->scale ? f[k] / w->scale[k] : f[k]) - to[k];
    }
    linalg_pack(w->cv->pool, w->px, w->x, N, (int)N, n_tokens);
    linalg_pack(w->cv->pool, w->pd, w->diff, N, (int)N, n_tokens);
    linalg_gram(w->c->ops, w->cv->pool, w->h, (int)N, w->px, n_tokens);
    linalg_cross(w->c->ops, w->cv->pool, w->cross, (int)N, w->pd, w->px, n_tokens);
    w->seen = 1;
    return 1;                           /* stop: the rest of the layer is not needed */
}

/* Run a window through the layer up to w->input.  A shared MLP is run for that, but no expert. */
static int run_window(struct conversion *cv, struct calibration *c, int layer, struct gram_hook *w, float *x,
                      struct err *e)
{
    const struct cpu_hook hook = { .input = watch_input, .user = w };
    struct cpu_choice ignored;
    size_t streams;
    calibrate_window(c, c->kept_q, w->window);
    void *at = cpu_layers_streams(c->run, &streams);
    if (streams)
        memcpy(w->streams, at, streams);
    if (cpu_layers_run(c->run, layer, &c->q.layers[layer], 0, x, &hook, e))
        return -1;
    if (streams)
        memcpy(at, w->streams, streams);
    if (w->mlp && cpu_layers_choose(c->run, layer, &c->q.layers[layer], w->mlp, (size_t)cv->config.hidden_size, x,
                                    c->window_len, &ignored, &(struct cpu_hook){ .input = watch_input, .user = w }, e))
        return -1;
    if (w->mlp)
        cpu_choice_release(&ignored);
    return calibrate_progress(cv, c, "Quantizing", layer, c->n_windows, e);
}

/* Allocate a matrix [N][N] of zeros. */
static float *hold_matrix(const struct calibration *c, enum hold kind, size_t N, struct err *e)
{
    return calibrate_hold(c, kind, N * N * sizeof(float), "the covariance of inputs", e);
}

/* Measure H and C of one input of the layer, over all windows. */
static int measure(struct conversion *cv, struct calibration *c, int layer, int input, const struct inputs *kept,
                   float **h, float **cross, struct err *e)
{
    size_t N = (size_t)kept->ld, hidden = (size_t)cv->config.hidden_size, window = (size_t)c->window_len * hidden;
    struct gram_hook w = { .cv = cv, .c = c, .input = input, .kept = kept, .scale = cv->calib[layer].scale[input] };
    const int behind_experts = input == INPUT_DOWN && cv->config.ff[layer] == FF_MOE && !cv->config.moe.beside;
    size_t streams;
    cpu_layers_streams(c->run, &streams);
    float *x = malloc(2 * window * sizeof *x + streams);
    w.streams = x ? x + 2 * window : NULL;
    w.mlp = x && behind_experts ? x + window : NULL;
    size_t floats = linalg_packed((int)N, c->window_len);
    w.x = calloc(4 * floats, sizeof *w.x);
    w.diff = w.x + floats;
    w.px = w.x + 2 * floats;
    w.pd = w.x + 3 * floats;
    int rc = x && w.x ? 0 : err_nomem(e, "the covariance of inputs");
    if (rc == 0 && (!(w.h = hold_matrix(c, HOLD_H, N, e)) || !(w.cross = hold_matrix(c, HOLD_C, N, e))))
        rc = -1;
    for (w.window = 0; w.window < c->n_windows && rc == 0; w.window++) {
        memcpy(x, c->xq + (size_t)w.window * window, window * sizeof *x);
        rc = run_window(cv, c, layer, &w, x, e);
    }
    free(x);
    free(w.x);
    *h = w.h;
    *cross = w.cross;
    if (rc == 0 && !w.seen)
        rc = err_set(e, ERR_UNSUPPORTED, "layer %d: its inputs cannot be watched", layer);
    if (rc) {
        spill_free(w.h);
        spill_free(w.cross);
        *h = *cross = NULL;
    }
    return rc;
}

/* ---- one matrix ---- */

struct tiles {
    struct recipe *p;
    const struct gptq *g;
    const struct linalg_ops *ops;
    struct level_grid grid;
    struct row_reader rows;
    struct channel_scale fold;
    struct tile_worker { float *w, *source; struct qrow q; void *scratch; } *workers;
    struct error_sums *stats;
    struct err *errors;
};

static void quantize_tile(void *arg, int i, int thread)
{
    struct tiles *s = arg;
    struct tile_worker *w = &s->workers[thread];
    const struct mat *m = &s->p->m;
    size_t cols = (size_t)m->cols;
    int row = i * TILE_ROWS, n = m->rows - row < TILE_ROWS ? m->rows - row : TILE_ROWS;
    if (row_reader_read(&s->rows, row, n, w->w, &s->errors[i]))
        return;
    for (int r = 0; r < n; r++)
        channel_scale_row(&s->fold, row + r, w->w + (size_t)r * cols, m->cols);
    memcpy(w->source, w->w, (size_t)n * cols * sizeof *w->w);
    uint8_t *tile = s->p->data + (size_t)i * m->tile_bytes;
    gptq_tile(s->g, s->ops, m, &s->grid, w->w, cols, n, &w->q, tile, w->scratch);
    for (int r = 0; r < n; r++) {
        const float *x = w->source + (size_t)r * cols;
        tile_get(m, tile, r, &w->q);
        qrow_decode(m, &w->q, w->w);
        error_add(&s->stats[i], x, w->w, m->cols);
    }
}

static int open_workers(struct tiles *s, int n, struct err *e)
{
    const struct mat *m = &s->p->m;
    s->workers = calloc((size_t)n, sizeof *s->workers);
    s->stats = calloc((size_t)m->n_tiles, sizeof *s->stats);
    s->errors = calloc((size_t)m->n_tiles, sizeof *s->errors);
    if (!s->workers || !s->stats || !s->errors)
        return err_nomem(e, s->p->source->name);
    for (int i = 0; i < n; i++) {
        struct tile_worker *w = &s->workers[i];
        w->w = malloc(2 * TILE_ROWS * (size_t)m->cols * sizeof *w->w);
        w->source = w->w ? w->w + TILE_ROWS * (size_t)m->cols : NULL;
        w->scratch = aligned_alloc(64, (gptq_scratch(s->g) + 63) / 64 * 64);
        if (!w->w || !w->scratch)
            return err_nomem(e, s->p->source->name);
        if (qrow_init(&w->q, m, e))
            return -1;
    }
    return 0;
}

static int quantize_matrix(struct conversion *cv, struct calibration *c, const struct gptq *g, struct recipe *p,
                           struct err *e)
{
    struct tiles s = { .p = p, .g = g, .ops = c->ops, .fold = channel_scale_of(cv, p) };
    struct error_sums sum = { 0 };
    int n_threads = pool_size(cv->pool);
    level_grid_of(&p->m, &s.grid);
    int rc = row_reader_open(&s.rows, cv->source, p->source, &p->spec->map, p->spec->rows, p->spec->cols, 0, e);
    if (rc == 0 && !(p->data = hold_result(c, p, e)))
        rc = -1;
    if (rc == 0)
        rc = open_workers(&s, n_threads, e);
    if (rc == 0)
        pool_run(cv->pool, p->m.n_tiles, quantize_tile, &s);
    for (int i = 0; rc == 0 && i < p->m.n_tiles; i++) {
        if (s.errors[i].code) {
            *e = s.errors[i];
            rc = -1;
        }
        error_merge(&sum, &s.stats[i]);
    }
    error_report(p->report, &sum);
    for (int i = 0; s.workers && i < n_threads; i++) {
        free(s.workers[i].w);
        free(s.workers[i].scratch);
        qrow_release(&s.workers[i].q);
    }
    free(s.workers);
    free(s.stats);
    free(s.errors);
    row_reader_close(&s.rows);
    return rc;
}

static int wants(const struct recipe *p, int layer, int input)
{
    return p->spec->layer == layer && p->spec->expert < 0 && p->make == MAKE_QUANT && p->input == input;
}

static int quantize_input(struct conversion *cv, struct calibration *c, int layer, int input, const struct inputs *kept,
                          struct err *e)
{
    struct gptq g;
    float *h, *linv, *cross;
    int any = 0, rc = 0;
    for (int i = 0; i < cv->n_recipes; i++)
        any |= wants(&cv->recipes[i], layer, input);
    if (!any)
        return 0;
    if (measure(cv, c, layer, input, kept, &h, &cross, e))
        return -1;
    if (!(linv = hold_matrix(c, HOLD_LINV, (size_t)kept->ld, e))) {
        spill_free(h);
        spill_free(cross);
        return -1;
    }
    if (gptq_init(&g, c->ops, cv->pool, kept->n, h, linv, cross, e))
        return -1;
    if (g.damping > 0.011) {
        cv->report->n_damped++;
        conversion_note(cv, "layer %d: damping raised to %g %% for the inputs of %s", layer, g.damping * 100,
                 (const char *const[N_INPUTS]){ "q, k, v", "q", "o", "o of the state", "gate and up", "down" }[input]);
    }
    for (int i = 0; i < cv->n_recipes && rc == 0; i++)
        if (wants(&cv->recipes[i], layer, input)) {
            rc = quantize_matrix(cv, c, &g, &cv->recipes[i], e);
            if (rc == 0)
                rc = place(cv, c, &cv->recipes[i], e);
        }
    gptq_release(&g);
    return rc;
}

/* ---- a layer ---- */

struct input_copy { struct inputs *to; size_t at; int role; };         /* role 0: any gate or up */

/* A hook that copies the experts' input, and stops the layer there. */
static int collect(void *user, int layer, int role, const float *x, size_t ldx, int n_tokens, int cols)
{
    struct input_copy *w = user;
    (void)layer;
    if (w->role ? role != w->role : calibrate_input(role) != INPUT_MLP)
        return 0;
    for (int t = 0; t < n_tokens; t++, w->at += (size_t)w->to->ld)
        memcpy(w->to->x + w->at, x + (size_t)t * ldx, (size_t)cols * sizeof *x);
    return 1;
}

/* Run xq through the layer, up to its experts if it has some. */
static int advance(struct conversion *cv, struct calibration *c, int layer, struct err *e)
{
    const int hidden = cv->config.hidden_size, n = c->n_windows * c->window_len, moe = cv->config.ff[layer] == FF_MOE;
    struct input_copy w = { &c->h, 0, cv->config.moe.beside ? ROLE_EXPERT_GATE : 0 };
    const struct cpu_hook hook = { .input = collect, .user = &w };
    if (moe) {
        spill_free(c->h.x);
        c->h = (struct inputs){ .n = hidden, .ld = linalg_pad(hidden) };
        if (!(c->h.x = calibrate_hold(c, HOLD_STATES, (size_t)n * (size_t)c->h.ld * sizeof *c->h.x,
                                      "the inputs of experts", e)))
            return -1;
    }
    for (int i = 0; i < c->n_windows; i++) {
        calibrate_window(c, c->kept_q, i);
        if (cpu_layers_run(c->run, layer, &c->q.layers[layer], 0,
                           c->xq + (size_t)i * (size_t)c->window_len * (size_t)hidden, moe ? &hook : NULL, e))
            return -1;
    }
    cpu_choice_release(&c->choice);
    return moe ? calibrate_choose(cv, c, layer, &c->q.layers[layer], &c->h, c->xq, NULL, e) : 0;
}

/* Run the float model's layer, and store its inputs in kept, which must be freed with
 * spill_free() even if this fails.  The layer's weights stay loaded. */
static int run_layer(struct conversion *cv, struct calibration *c, int layer, struct inputs kept[N_INPUTS],
                     struct err *e)
{
    const struct config *f = &cv->config;
    size_t n_tokens = (size_t)c->n_windows * (size_t)c->window_len;
    if (calibrate_load(cv, c, layer, e))
        return -1;
    for (int i = 0; i < N_INPUTS; i++) {
        const int width = calibrate_width(f, layer, i);
        kept[i] = (struct inputs){ .n = width, .ld = linalg_pad(width) };
        if (!width)
            continue;
        kept[i].x = calibrate_hold(c, HOLD_STATES, n_tokens * (size_t)kept[i].ld * sizeof *kept[i].x,
                                   "the inputs of a layer", e);
        if (!kept[i].x)
            return -1;
    }
    return calibrate_layer(cv, c, layer, kept, e);
}

/* Divide each input channel by its scale, because the columns that read it are multiplied by that
 * scale. */
static void scale_inputs(const struct inputs *kept, const float *s, int n_tokens)
{
    for (int t = 0; s && kept->x && t < n_tokens; t++)
        for (int k = 0; k < kept->n; k++)
            kept->x[(size_t)t * (size_t)kept->ld + (size_t)k] /= s[k];
}

/* Quantize all matrices that read one input. */
static int quantize_low(struct conversion *cv, struct calibration *c, int layer, int input, const struct inputs *kept,
                        struct err *e)
{
    int n_tokens = c->n_windows * c->window_len, any = 0, rc = 0;
    struct gptq g;
    for (int i = 0; i < cv->n_recipes; i++)
        any |= wants(&cv->recipes[i], layer, input);
    if (!any)
        return 0;
    if (gptq_init_low(&g, c->ops, cv->pool, kept->n, kept->x, (size_t)kept->ld, n_tokens, GOOD_RANK, e))
        return -1;
    for (int i = 0; i < cv->n_recipes && rc == 0; i++)
        if (wants(&cv->recipes[i], layer, input))
            rc = quantize_matrix(cv, c, &g, &cv->recipes[i], e);
    gptq_release(&g);
    return rc;
}

int quantize_layer_good(struct conversion *cv, struct calibration *c, int layer, struct err *e)
{
    struct inputs kept[N_INPUTS] = { { 0 } };
    calibrate_end_experts(c);
    int rc = run_layer(cv, c, layer, kept, e);
    calibrate_unload(c);
    if (rc == 0)
        rc = channel_scale_layer(cv, layer, alpha_good, e);
    if (rc == 0)
        rc = recipes_activations(cv, e);
    for (int i = 0; i < N_INPUTS; i++) {
        if (rc == 0) {
            scale_inputs(&kept[i], cv->calib[layer].scale[i], c->n_windows * c->window_len);
            rc = quantize_low(cv, c, layer, i, &kept[i], e);
        }
        if (rc == 0 && i == INPUT_MLP && cv->config.ff[layer] == FF_MOE && !cv->config.moe.beside &&
            !cv->config.moe.latent)
            c->h = kept[i];
        else
            spill_free(kept[i].x);
    }
    /* from now on the quantized model uses the loaded expert, which is quantized next */
    c->q.layers[layer].experts = c->m.layers[layer].experts;
    return rc;
}

/* ---- an expert ---- */

/* An expert is quantized on its own tokens and on a sample of all tokens with a small weight, which
 * matters if hardly any tokens were routed to it. */
static const float some_weight = 0.5f;          /* the sample counts as OTHER_TOKENS * 0.5^2 = 16 tokens */

static int rows_of(const struct calibration *c, int expert, int *n_there)
{
    const int all = c->n_windows * c->window_len;
    *n_there = c->choice.first[expert + 1] - c->choice.first[expert];
    return *n_there + (all < OTHER_TOKENS ? all : OTHER_TOKENS);
}

static void gather_rows(const struct conversion *cv, const struct calibration *c, int expert, const struct inputs *to,
                        int n, int n_there)
{
    const int all = c->n_windows * c->window_len, first = c->choice.first[expert];
    for (int r = 0; r < n; r++) {
        const int t = r < n_there ? c->choice.token[first + r] : (int)((int64_t)(r - n_there) * all / (n - n_there));
        const float by = r < n_there && cv->config.moe.weigh_input ? c->choice.share[first + r] : 1;
        for (int k = 0; k < to->n; k++)
            to->x[(size_t)r * (size_t)to->ld + (size_t)k] = by * c->h.x[(size_t)t * (size_t)c->h.ld + (size_t)k];
    }
}

static void weigh_rows(const struct inputs *x, int from, int n, float by)
{
    for (size_t i = (size_t)from * (size_t)x->ld; i < (size_t)n * (size_t)x->ld; i++)
        x->x[i] *= by;
}

/* Compute H of these rows: the whole matrix for effort best, from few directions for effort
 * good. */
static int gptq_of_rows(struct conversion *cv, struct calibration *c, struct gptq *g, const struct inputs *x, int n,
                        struct err *e)
{
    if (cv->effort != CONVERT_BEST)
        return gptq_init_low(g, c->ops, cv->pool, x->n, x->x, (size_t)x->ld, n, GOOD_RANK, e);
    const size_t N = (size_t)x->ld;
    float *h = hold_matrix(c, HOLD_H, N, e), *linv = h ? hold_matrix(c, HOLD_LINV, N, e) : NULL, *packed = NULL;
    if (linv && !(packed = malloc(linalg_packed(x->ld, c->window_len) * sizeof *packed)))
        err_nomem(e, "the covariance of inputs");
    for (int t = 0; packed && t < n; t += c->window_len) {
        const int count = n - t < c->window_len ? n - t : c->window_len;
        linalg_pack(cv->pool, packed, x->x + (size_t)t * N, N, x->ld, count);
        linalg_gram(c->ops, cv->pool, h, x->ld, packed, count);
    }
    if (packed) {
        free(packed);
        return gptq_init(g, c->ops, cv->pool, x->n, h, linv, NULL, e);
    }
    spill_free(h);
    spill_free(linv);
    return -1;
}

/* Quantize the matrices of one expert that read these rows. */
static int quantize_rows(struct conversion *cv, struct calibration *c, int layer, int expert, int down,
                         const struct inputs *x, int n, struct err *e)
{
    struct gptq g;
    int any = 0, rc = 0;
    for (int i = 0; i < cv->n_recipes; i++) {
        const struct recipe *p = &cv->recipes[i];
        any |= p->spec->layer == layer && p->spec->expert == expert && is_fed_back(p) &&
               (p->spec->role == ROLE_EXPERT_DOWN) == down;
    }
    if (!any)
        return 0;
    if (gptq_of_rows(cv, c, &g, x, n, e))
        return -1;
    for (int i = 0; i < cv->n_recipes && rc == 0; i++) {
        struct recipe *p = &cv->recipes[i];
        if (p->spec->layer != layer || p->spec->expert != expert || !is_fed_back(p) ||
            (p->spec->role == ROLE_EXPERT_DOWN) != down)
            continue;
        rc = quantize_matrix(cv, c, &g, p, e);
        if (rc == 0)
            rc = place(cv, c, p, e);
    }
    gptq_release(&g);
    return rc;
}

int quantize_expert(struct conversion *cv, struct calibration *c, int layer, int expert, struct err *e)
{
    const int width = config_expert_width(&cv->config), size = cv->config.moe.intermediate_size;
    const struct layer *l = &c->q.layers[layer];
    int n_there, n = rows_of(c, expert, &n_there);
    struct inputs in = { .n = width, .ld = linalg_pad(width) }, mid = { .n = size, .ld = linalg_pad(size) };
    in.x = calibrate_hold(c, HOLD_STATES, (size_t)n * (size_t)in.ld * sizeof *in.x, "the inputs of an expert", e);
    mid.x = in.x ? calibrate_hold(c, HOLD_STATES, (size_t)n * (size_t)mid.ld * sizeof *mid.x, "the inputs of an expert",
                                  e) : NULL;
    int rc = mid.x ? encode_rest(cv, c, layer, expert, e) : -1;
    if (rc == 0) {
        gather_rows(cv, c, expert, &in, n, n_there);
        weigh_rows(&in, n_there, n, some_weight);
        rc = quantize_rows(cv, c, layer, expert, 0, &in, n, e);
    }
    if (rc == 0) {
        weigh_rows(&in, n_there, n, 1 / some_weight);
        cpu_layers_expert_mid(c->run, &l->experts[expert], in.x, (size_t)in.ld, n, mid.x, (size_t)mid.ld);
        weigh_rows(&mid, n_there, n, some_weight);
        rc = quantize_rows(cv, c, layer, expert, 1, &mid, n, e);
    }
    if (rc == 0 && cv->effort == CONVERT_BEST)
        cpu_layers_expert(c->run, layer, l, expert, c->h.x, (size_t)c->h.ld, c->sum ? c->sum : c->xq, &c->choice, NULL);
    if (rc == 0 && cv->effort == CONVERT_BEST && expert == cv->config.moe.n_experts - 1)
        calibrate_add_experts(cv, c, layer, l, c->xq, c->kept_q);
    spill_free(in.x);
    spill_free(mid.x);
    return rc;
}

/* ---- best ---- */

/* Keep a copy of the norm of the experts' sum: calibrate_unload() frees its tensor before the last
 * expert is quantized. */
static int keep_norm(const struct conversion *cv, struct calibration *c, struct norm *norm, struct err *e)
{
    const size_t bytes = (size_t)cv->config.hidden_size * sizeof *c->norm;
    if (!norm->present)
        return 0;
    if (!(c->norm = malloc(bytes)))
        return err_nomem(e, "calibration of experts");
    memcpy(c->norm, norm->w, bytes);
    norm->w = c->norm;
    return 0;
}

/* Keep a copy of the matrix that maps the experts' sum back, for the same reason. */
static int keep_latent_out(struct calibration *c, const struct linear *l, struct err *e)
{
    const size_t bias = l->bias ? (size_t)l->w.rows * sizeof *l->bias : 0, at = (l->w.size + 63) / 64 * 64,
                 all = at + (bias + 63) / 64 * 64;
    if (!l->w.data)
        return 0;
    if (!(c->latent_copy = aligned_alloc(64, all)))
        return err_nomem(e, "calibration of experts");
    memcpy(c->latent_copy, l->w.data, l->w.size);
    c->latent_out = *l;
    c->latent_out.w.data = c->latent_copy;
    if (bias) {
        memcpy(c->latent_copy + at, l->bias, bias);
        c->latent_out.bias = (const float *)(const void *)(c->latent_copy + at);
    }
    return 0;
}

int quantize_layer_best(struct conversion *cv, struct calibration *c, int layer, struct err *e)
{
    struct inputs kept[N_INPUTS] = { { 0 } };
    calibrate_end_experts(c);
    int rc = run_layer(cv, c, layer, kept, e);
    if (rc == 0)
        rc = channel_scale_layer(cv, layer, alpha_best, e);
    if (rc == 0)
        rc = recipes_activations(cv, e);
    /* the quantized model begins with the float weights */
    c->q.layers[layer] = c->m.layers[layer];
    if (rc == 0)
        rc = encode_rest(cv, c, layer, -1, e);
    for (int i = 0; i < N_INPUTS && rc == 0; i++)
        rc = quantize_input(cv, c, layer, i, &kept[i], e);
    if (rc == 0)
        rc = advance(cv, c, layer, e);
    if (rc == 0)
        rc = keep_norm(cv, c, &c->q.layers[layer].expert_post_norm, e);
    if (rc == 0)
        rc = keep_latent_out(c, &c->q.layers[layer].latent_out, e);
    calibrate_unload(c);
    for (int i = 0; i < N_INPUTS; i++)
        spill_free(kept[i].x);
    return rc;
}
