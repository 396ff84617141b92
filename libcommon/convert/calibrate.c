/* calibrate.c - run the float model over text, layer by layer, and measure the inputs of its
 * matrices. */
#include "libcommon/convert/calibrate.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/file.h"
#include "libcommon/convert/source_weights.h"
#include "libcommon/convert/spill.h"
#include "libcommon/convert/gptq.h"
#include "libcommon/convert/tokenizer_source.h"
#include "libcommon/quant/ggml.h"
#include "libcommon/quant/quantize.h"
#include "libcommon/token/tokenizer.h"

enum { WINDOW = 512, GOOD_WINDOWS = 6, BEST_WINDOWS = 32, LEAST_TOKENS = 64, MAX_TEXT = 64 << 20 };

/* ---- text ---- */

static int read_tokens(struct conversion *cv, int32_t **ids, size_t *n, struct err *e)
{
    void *blob = NULL;
    char *own = NULL;
    const char *text = calibration_text;
    size_t blob_size, size = calibration_text_size;
    struct tokenizer *t = NULL;
    int rc = -1;
    int found = tokenizer_from_source(cv->source, &blob, &blob_size, e);
    if (found <= 0)
        return found ? -1 : err_set(e, ERR_FORMAT,
                                    "%s: has no tokenizer; calibration needs one, --quality fast does without",
                                    cv->source->path);
    if (cv->o->calibration && !(text = own = file_read(cv->o->calibration, MAX_TEXT, &size, e)))
        goto done;
    t = tokenizer_open(blob, blob_size, e);
    if (t)
        rc = tokenizer_encode(t, text, size, 0, ids, n, e);
done:
    tokenizer_close(t);
    free(own);
    free(blob);
    return rc;
}

static int by_id(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* Choose windows spread evenly over the text. */
static int choose_windows(struct conversion *cv, struct calibration *c, struct err *e)
{
    int32_t *all = NULL;
    size_t n;
    if (read_tokens(cv, &all, &n, e))
        return -1;
    int want = cv->effort == CONVERT_BEST ? BEST_WINDOWS : GOOD_WINDOWS, len = cv->config.max_len > 0 &&
        cv->config.max_len < WINDOW ? cv->config.max_len : WINDOW;
    if (n < (size_t)len)
        len = (int)n;
    size_t have = len ? n / (size_t)len : 0;
    c->n_windows = have < (size_t)want ? (int)have : want;
    c->window_len = len;
    int rc = -1;
    if (n < LEAST_TOKENS || len < 1) {
        err_set(e, ERR_FORMAT, "%s: has %zu tokens, calibration needs at least %d",
                cv->o->calibration ? cv->o->calibration : "calibration text", n, LEAST_TOKENS);
        goto done;
    }
    c->ids = malloc((size_t)c->n_windows * (size_t)len * sizeof *c->ids);
    if (!c->ids) {
        err_nomem(e, "calibration text");
        goto done;
    }
    for (int i = 0; i < c->n_windows; i++) {
        size_t from = c->n_windows > 1 ? (have - 1) * (size_t)i / (size_t)(c->n_windows - 1) : 0;
        memcpy(c->ids + (size_t)i * (size_t)len, all + from * (size_t)len, (size_t)len * sizeof *all);
    }
    cv->report->n_calibration_tokens = c->n_windows * len;
    rc = 0;
done:
    free(all);
    return rc;
}

/* ---- weights ---- */

enum { FILE_LEAST = 16 << 10 };         /* buffers smaller than this (a few pages) stay in memory */

void *calibrate_hold(const struct calibration *c, enum hold kind, size_t size, const char *what, struct err *e)
{
    if (size >= FILE_LEAST && c->in_file & 1u << kind)
        return spill_file(c->output, size, e);
    void *p = spill_alloc(size);
    if (!p)
        err_nomem(e, what);
    return p;
}

void *calibrate_alloc(struct calibration *c, enum hold kind, size_t size, struct err *e)
{
    if (c->n_blocks == c->room) {
        int room = c->room ? 2 * c->room : 64;
        void **blocks = realloc(c->blocks, (size_t)room * sizeof *blocks);
        if (!blocks) {
            err_nomem(e, "weights for calibration");
            return NULL;
        }
        c->blocks = blocks;
        c->room = room;
    }
    void *p = calibrate_hold(c, kind, size, "weights for calibration", e);
    if (p)
        c->blocks[c->n_blocks++] = p;
    return p;
}

void calibrate_unload(struct calibration *c)
{
    while (c->n_blocks > 0)
        spill_free(c->blocks[--c->n_blocks]);
}

static enum hold kind_of(const struct recipe *p) { return p->spec->expert >= 0 ? HOLD_EXPERT : HOLD_WEIGHTS; }

struct loader { const struct row_reader *rows; struct mat m; uint8_t *to; float *x; struct err *errors; };

static void load_tile(void *arg, int i, int thread)
{
    const struct loader *l = arg;
    float *x = l->x + (size_t)thread * (size_t)l->m.cols;
    uint8_t *tile = l->to + (size_t)i * l->m.tile_bytes;
    tile_clear(&l->m, tile);
    for (int r = 0; r < TILE_ROWS && i * TILE_ROWS + r < l->m.rows && !l->errors[thread].code; r++)
        if (row_reader_read(l->rows, i * TILE_ROWS + r, 1, x, &l->errors[thread]) == 0)
            tile_put_float(&l->m, tile, r, x);
}

static int loaded_form(const struct recipe *p, struct mat *m, struct err *e)
{
    const int source = p->source->type;
    return mat_init(m, source == GGML_BF16 ? QT_BF16 : source == GGML_F16 ? QT_F16 : QT_F32, 32, 0, p->spec->rows,
                    p->spec->cols, e);
}

static int load_matrix(struct conversion *cv, struct calibration *c, const struct row_reader *rows,
                       const struct recipe *p, struct linear *to, struct err *e)
{
    int n_threads = pool_size(cv->pool), rc = 0;
    struct loader l = { .rows = rows };
    if (loaded_form(p, &l.m, e))
        return -1;
    l.to = calibrate_alloc(c, kind_of(p), l.m.size, e);
    l.x = malloc((size_t)n_threads * (size_t)l.m.cols * sizeof *l.x);
    l.errors = calloc((size_t)n_threads, sizeof *l.errors);
    if (!l.to || !l.x || !l.errors)
        rc = l.to ? err_nomem(e, "weights for calibration") : -1;
    else
        pool_run(cv->pool, l.m.n_tiles, load_tile, &l);
    for (int i = 0; rc == 0 && i < n_threads; i++)
        if (l.errors[i].code) {
            *e = l.errors[i];
            rc = -1;
        }
    to->w = l.m;
    to->w.data = l.to;
    free(l.x);
    free(l.errors);
    return rc;
}

static int load_weight(struct conversion *cv, struct calibration *c, const struct recipe *p, struct err *e)
{
    const struct weight_spec *s = p->spec;
    struct weight_place place = weight_place(&c->m, s);
    struct row_reader rows;
    if (row_reader_open(&rows, cv->source, p->source, &s->map, s->rows, s->cols, s->is_vector && s->rows == 1, e))
        return -1;
    int rc = -1;
    if (!s->is_vector) {
        rc = load_matrix(cv, c, &rows, p, place.linear, e);
    } else {
        float *x = calibrate_alloc(c, kind_of(p), (size_t)s->rows * (size_t)s->cols * sizeof *x, e);
        rc = x ? row_reader_read(&rows, 0, s->rows, x, e) : -1;
        if (rc == 0 && place.norm && place.plain == &place.norm->w && cv->config.norm == NORM_LAYER &&
            s->cols == cv->config.hidden_size)
            for (int64_t i = 0; i < s->cols; i++)
                x[i] += cv->config.norm_offset;
        *place.plain = x;
    }
    row_reader_close(&rows);
    return rc;
}

int calibrate_load(struct conversion *cv, struct calibration *c, int index, struct err *e)
{
    for (int i = 0; i < cv->n_recipes; i++) {
        const struct weight_spec *s = cv->recipes[i].spec;
        if (s->layer != index || s->expert >= 0)
            continue;
        /* Tables of embeddings are not loaded as a whole: embed_rows() loads the rows of the tokens
         * that occur. */
        const int whole = index >= 0 || (end_infos[s->part].is_first && s->part != EP_EMBED &&
                                         s->part != EP_PLE_EMBED);
        if (whole && load_weight(cv, c, &cv->recipes[i], e))
            return -1;
    }
    return 0;
}

/* ---- the embeddings of the tokens that occur, renumbered ---- */

static const struct recipe *end_recipe(const struct conversion *cv, enum end_part part)
{
    for (int i = 0; i < cv->n_recipes; i++)
        if (cv->recipes[i].spec->layer < 0 && cv->recipes[i].spec->part == (int)part)
            return &cv->recipes[i];
    return NULL;
}

/* Make an f32 matrix of the rows ids[0..n) of a table of embeddings; with `rounded` their values
 * are those of the new file. */
static int embed_rows(struct conversion *cv, struct calibration *c, enum end_part part, const int32_t *ids, int n,
                      int rounded, struct mat *m, struct err *e)
{
    const struct recipe *p = end_recipe(cv, part);
    const struct weight_spec *s = p->spec;
    struct row_reader rows;
    struct qrow q = { 0 };
    float *x = NULL;
    int rc = -1;
    if (mat_init(m, QT_F32, 32, 0, n, s->cols, e) ||
        row_reader_open(&rows, cv->source, p->source, &s->map, s->rows, s->cols, 0, e))
        return -1;
    uint8_t *to = calibrate_alloc(c, HOLD_STATES, m->size, e);
    x = malloc((size_t)s->cols * sizeof *x);
    if (!to || !x || (p->make == MAKE_QUANT && qrow_init(&q, &p->m, e))) {
        if (to && !x)
            err_nomem(e, "embeddings");
        goto done;
    }
    for (int i = 0; i < n; i++) {
        uint8_t *tile = to + (size_t)(i / TILE_ROWS) * m->tile_bytes;
        if (i % TILE_ROWS == 0)
            tile_clear(m, tile);
        /* the layers' embeddings may have fewer rows than the vocabulary: other tokens use row 0 */
        const int32_t row = part == EP_PLE_EMBED && ids[i] >= s->rows ? 0 : ids[i];
        if (row < 0 || row >= s->rows) {
            err_set(e, ERR_FORMAT, "%s: the tokenizer gives token %" PRId32 ", the embedding has %" PRId64 " rows",
                    cv->source->path, ids[i], s->rows);
            goto done;
        }
        if (row_reader_read(&rows, row, 1, x, e))
            goto done;
        if (rounded && p->make == MAKE_QUANT) {
            quantize_row(&p->m, x, NULL, QUANT_SEARCH, &q);
            qrow_decode(&p->m, &q, x);
        }
        tile_put_float(m, tile, i % TILE_ROWS, x);
    }
    m->data = to;
    rc = 0;
done:
    qrow_release(&q);
    free(x);
    row_reader_close(&rows);
    return rc;
}

void calibrate_window(struct calibration *c, uint8_t *kept, int window)
{
    cpu_layers_tokens(c->run, c->tokens + (size_t)window * (size_t)c->window_len);
    if (kept)
        cpu_layers_keep(c->run, kept + (size_t)window * c->kept_bytes);
}

static int embed_all(struct conversion *cv, struct calibration *c, const int32_t *unique, int n_unique, int rounded,
                     float *x, uint8_t *kept, struct err *e)
{
    size_t stride = (size_t)c->window_len * (size_t)cv->config.hidden_size;
    if (embed_rows(cv, c, EP_EMBED, unique, n_unique, rounded, &c->m.embed.w, e) ||
        (cv->config.ple_dim && embed_rows(cv, c, EP_PLE_EMBED, unique, n_unique, rounded, &c->m.ple_embed.w, e)))
        return -1;
    for (int i = 0; i < c->n_windows; i++) {
        calibrate_window(c, kept, i);
        if (cpu_layers_embed(c->run, &c->m, c->ids + (size_t)i * (size_t)c->window_len, x + (size_t)i * stride, e))
            return -1;
    }
    return 0;
}

static int begin(struct conversion *cv, struct calibration *c, struct err *e)
{
    int n = c->n_windows * c->window_len, n_unique = 0, rc = -1;
    size_t floats = (size_t)n * (size_t)cv->config.hidden_size;
    int32_t *unique = malloc((size_t)n * sizeof *unique);
    c->tokens = malloc((size_t)n * sizeof *c->tokens);
    if (!unique || !c->tokens) {
        err_nomem(e, "calibration");
        goto done;
    }
    const size_t kept = (size_t)c->n_windows * c->kept_bytes;
    const int best = cv->effort == CONVERT_BEST;
    if (!(c->x = calibrate_hold(c, HOLD_STATES, floats * sizeof *c->x, "calibration", e)) ||
        (best && !(c->xq = calibrate_hold(c, HOLD_STATES, floats * sizeof *c->xq, "calibration", e))) ||
        (kept && !(c->kept = calibrate_hold(c, HOLD_STATES, kept, "calibration", e))) ||
        (kept && best && !(c->kept_q = calibrate_hold(c, HOLD_STATES, kept, "calibration", e))))
        goto done;
    memcpy(unique, c->ids, (size_t)n * sizeof *unique);
    memcpy(c->tokens, c->ids, (size_t)n * sizeof *c->tokens);
    qsort(unique, (size_t)n, sizeof *unique, by_id);
    for (int i = 0; i < n; i++)
        if (n_unique == 0 || unique[n_unique - 1] != unique[i])
            unique[n_unique++] = unique[i];
    for (int i = 0; i < n; i++)
        c->ids[i] = (int32_t)((int32_t *)bsearch(&c->ids[i], unique, (size_t)n_unique, sizeof *unique, by_id) - unique);
    c->m.config.vocab_size = n_unique;
    if (calibrate_load(cv, c, -1, e) || embed_all(cv, c, unique, n_unique, 0, c->x, c->kept, e))
        goto done;
    if (c->xq && embed_all(cv, c, unique, n_unique, 1, c->xq, c->kept_q, e))
        goto done;
    rc = 0;
done:
    calibrate_unload(c);
    free(unique);
    return rc;
}

/* ---- running ---- */

enum layer_input calibrate_input(int role)
{
    return role == ROLE_Q || role == ROLE_IN ? INPUT_QKV : role == ROLE_Q_A ? INPUT_Q_A : role == ROLE_O ? INPUT_O
        : role == ROLE_STATE_O ? INPUT_STATE_O
        : role == ROLE_DOWN ? INPUT_DOWN : INPUT_MLP;
}

int calibrate_progress(const struct conversion *cv, const struct calibration *c, const char *what, int layer,
                       int window, struct err *e)
{
    uint64_t n = (uint64_t)c->n_windows, done = (uint64_t)layer * n + (uint64_t)window;
    if (progress_report(cv->o->progress, what, done, (uint64_t)cv->config.n_layers * n, "windows"))
        return err_set(e, ERR_CANCELLED, "cancelled");
    return 0;
}

struct strength_hook {
    const struct calibration *c;
    double *sum[N_INPUTS];              /* [cols] */
    struct inputs *keep;
    int window;
    int moe;                            /* stop the layer before its experts, which run later */
    struct inputs *apart;               /* the experts' input, if it differs from that of the MLP beside them */
    struct layer_calib *calib;
};

static int watch_input(void *user, int layer, int role, const float *x, size_t ldx, int n_tokens, int cols)
{
    struct strength_hook *w = user;
    enum layer_input input = calibrate_input(role);
    (void)layer;
    if (role == ROLE_EXPERT_GATE) {
        for (int t = 0; t < n_tokens; t++)
            memcpy(w->apart->x + ((size_t)w->window * (size_t)w->c->window_len + (size_t)t) * (size_t)w->apart->ld,
                   x + (size_t)t * ldx, (size_t)cols * sizeof *x);
        return 1;
    }
    for (int t = 0; t < n_tokens && w->sum[input]; t++)
        for (int k = 0; k < cols; k++)
            w->sum[input][k] += (double)x[(size_t)t * ldx + (size_t)k] * (double)x[(size_t)t * ldx + (size_t)k];
    if (w->keep && w->keep[input].x) {
        struct inputs *in = &w->keep[input];
        for (int t = 0; t < n_tokens; t++)
            memcpy(in->x + ((size_t)w->window * (size_t)w->c->window_len + (size_t)t) * (size_t)in->ld,
                   x + (size_t)t * ldx, (size_t)cols * sizeof *x);
    }
    /* With experts, down belongs to the shared MLP, which runs once per window. */
    w->window += w->moe && input == INPUT_DOWN;
    return w->moe && input == INPUT_MLP;
}

static void watch_expert(void *user, int layer, int expert, int role, const float *x, size_t ldx, int n_tokens,
                         int cols)
{
    const struct strength_hook *w = user;
    struct expert_calib *c = &w->calib->experts[expert];
    float *sum = role == ROLE_EXPERT_DOWN ? c->down : c->up;
    (void)layer;
    for (int t = 0; t < n_tokens; t++)
        for (int k = 0; k < cols; k++)
            sum[k] += x[(size_t)t * ldx + (size_t)k] * x[(size_t)t * ldx + (size_t)k];
    c->n_tokens += role == ROLE_EXPERT_DOWN ? 0 : n_tokens;
}

int calibrate_width(const struct config *c, int layer, int input)
{
    const int mixer = c->mixer[layer], mla = mixer == MIXER_MLA, compressed = mixer == MIXER_COMPRESSED;
    switch (input) {
    case INPUT_QKV:  return mixer == MIXER_NONE ? 0 : c->hidden_size;
    case INPUT_Q_A:  return mla || compressed ? c->mla.q_rank : 0;
    case INPUT_STATE_O: return mixer == MIXER_BOTH ? recurrent_width(c, layer) : 0;
    case INPUT_O:
        return mixer == MIXER_NONE ? 0 : mixer_has_state(mixer) && mixer != MIXER_BOTH ? recurrent_width(c, layer)
               : compressed ? c->compressed.o_groups * c->compressed.o_rank
               : c->n_heads * (mla ? c->mla.v_dim : config_value_dim(c, layer));
    case INPUT_MLP:  return c->ff[layer] == FF_NONE ? 0 : c->hidden_size;
    default:         return config_mlp_size(c, layer);
    }
}

void calibrate_forget_experts(struct conversion *cv, int layer)
{
    struct layer_calib *l = cv->calib ? &cv->calib[layer] : NULL;
    for (int i = 0; l && l->experts && i < cv->config.moe.n_experts; i++) {
        free(l->experts[i].up);
        free(l->experts[i].down);
        free(l->experts[i].scale);
    }
    if (l) {
        free(l->experts);
        free(l->down_strength);
        free(l->experts_strength);
        l->experts = NULL;
        l->down_strength = l->experts_strength = NULL;
    }
}

void calibrate_end_experts(struct calibration *c)
{
    cpu_choice_release(&c->choice);
    spill_free(c->h.x);
    free(c->sum);
    free(c->norm);
    free(c->latent_copy);
    c->h = (struct inputs){ 0 };
    c->sum = c->norm = NULL;
    c->latent_copy = NULL;
    c->latent_out = (struct linear){ 0 };
}

/* Columns of the sum of a layer's experts, if it is not added to the states at once: it is of
 * latents, or a norm follows it.  Else 0. */
static size_t sum_width(const struct config *c, const struct layer *w)
{
    return c->moe.latent ? (size_t)c->moe.latent : w->mlp_post_norm.present ? (size_t)c->hidden_size : 0;
}

static float *begin_sum(const struct conversion *cv, const struct calibration *c, const struct layer *w)
{
    return calloc((size_t)c->n_windows * (size_t)c->window_len * sum_width(&cv->config, w), sizeof *c->sum);
}

/* Replace the experts' input c->h by the latents of h, and begin the sum of their outputs. */
static int make_latents(const struct conversion *cv, struct calibration *c, const struct layer *w,
                        const struct inputs *h, struct err *e)
{
    const int n = c->n_windows * c->window_len, width = cv->config.moe.latent;
    struct inputs to = { .n = width, .ld = linalg_pad(width) };
    to.x = calibrate_hold(c, HOLD_STATES, (size_t)n * (size_t)to.ld * sizeof *to.x, "the inputs of experts", e);
    c->sum = to.x ? begin_sum(cv, c, w) : NULL;
    if (to.x)
        cpu_layers_latents(c->run, w, h->x, (size_t)h->ld, n, to.x, (size_t)to.ld);
    spill_free(c->h.x);                         /* h itself, or the latents of another layer */
    c->h = to;
    return !to.x ? -1 : c->sum ? 0 : err_nomem(e, "calibration of experts");
}

int calibrate_choose(const struct conversion *cv, struct calibration *c, int layer, const struct layer *w,
                     const struct inputs *h, float *x, const struct cpu_hook *hook, struct err *e)
{
    const int n = c->n_windows * c->window_len, beside = cv->config.moe.beside;
    const size_t hidden = (size_t)cv->config.hidden_size;
    float *router = beside ? malloc((size_t)n * hidden * sizeof *router) : NULL;
    const int sums = !cv->config.moe.latent && sum_width(&cv->config, w) > 0;
    if (sums)
        c->sum = begin_sum(cv, c, w);
    int rc = (beside && !router) || (sums && !c->sum) ? err_nomem(e, "calibration of experts") : 0;
    if (rc == 0 && beside)
        cpu_layers_router(c->run, w, x, router, n);
    cpu_layers_tokens(c->run, c->tokens);
    if (rc == 0)
        rc = cpu_layers_choose(c->run, layer, w, beside ? router : h->x, beside ? hidden : (size_t)h->ld,
                               c->sum ? c->sum : x, n, &c->choice, hook, e);
    free(router);
    return rc == 0 && cv->config.moe.latent ? make_latents(cv, c, w, h, e) : rc;
}

void calibrate_add_experts(const struct conversion *cv, struct calibration *c, int layer, const struct layer *w,
                           float *x, uint8_t *kept)
{
    const size_t window = (size_t)c->window_len * (size_t)cv->config.hidden_size;
    if (cv->config.moe.beside || cv->config.hyper.n) {
        for (int i = 0; i < c->n_windows; i++) {
            calibrate_window(c, kept, i);
            cpu_layers_finish(c->run, layer, w, c->sum ? c->sum + (size_t)i * window : NULL, x + (size_t)i * window);
        }
    } else if (cv->config.moe.latent) {
        cpu_layers_add_latents(c->run, c->latent_out.w.data ? &c->latent_out : &w->latent_out, c->sum, x,
                               c->n_windows * c->window_len);
    } else if (c->sum) {
        cpu_layers_add(c->run, w, c->sum, x, c->n_windows * c->window_len);
    }
    free(c->sum);
    c->sum = NULL;
}

/* ---- experts, one in memory at a time ---- */

/* Load one expert in place of the previous one.  kept: number of memory blocks of the layer's other
 * weights. */
static int load_expert(struct conversion *cv, struct calibration *c, int layer, int expert, int kept, struct err *e)
{
    while (c->n_blocks > kept)
        spill_free(c->blocks[--c->n_blocks]);
    for (int i = 0; i < cv->n_recipes; i++) {
        const struct recipe *p = &cv->recipes[i];
        if (p->spec->layer == layer && p->spec->expert == expert && load_weight(cv, c, p, e))
            return -1;
    }
    return 0;
}

static int remember_experts(struct conversion *cv, int index, struct err *e)
{
    const struct config *f = &cv->config;
    struct layer_calib *l = &cv->calib[index];
    calibrate_forget_experts(cv, index);
    l->experts = calloc((size_t)f->moe.n_experts, sizeof *l->experts);
    l->down_strength = calloc((size_t)f->moe.intermediate_size, sizeof *l->down_strength);
    for (int i = 0; l->experts && i < f->moe.n_experts; i++) {
        l->experts[i].up = calloc((size_t)config_expert_width(f), sizeof(float));
        l->experts[i].down = calloc((size_t)f->moe.intermediate_size, sizeof(float));
        if (!l->experts[i].up || !l->experts[i].down)
            return err_nomem(e, "calibration of experts");
    }
    return l->experts && l->down_strength ? 0 : err_nomem(e, "calibration of experts");
}

/* Measure the strengths of the input of all experts, where it is not that of the MLP. */
static int apart_strength(const struct calibration *c, struct layer_calib *l, struct err *e)
{
    const int n = c->n_windows * c->window_len;
    l->experts_strength = calloc((size_t)c->h.n, sizeof *l->experts_strength);
    for (int t = 0; t < n && l->experts_strength; t++)
        for (int k = 0; k < c->h.n; k++) {
            const float x = c->h.x[(size_t)t * (size_t)c->h.ld + (size_t)k];
            l->experts_strength[k] += x * x / (float)n;
        }
    return l->experts_strength ? 0 : err_nomem(e, "calibration of experts");
}

/* Run the experts of a layer, after its attention has run for all windows.  h: the experts'
 * input; the choice of experts stays in c->choice. */
static int run_experts(struct conversion *cv, struct calibration *c, int index, struct strength_hook *w,
                       const struct inputs *h, struct err *e)
{
    struct layer_calib *l = &cv->calib[index];
    const struct layer *weights = &c->m.layers[index];
    const struct cpu_hook hook = { .input = watch_input, .user = w, .expert = watch_expert };
    const int n = c->n_windows * c->window_len, size = cv->config.moe.intermediate_size, kept = c->n_blocks;
    w->window = 0;
    cpu_choice_release(&c->choice);
    int rc = calibrate_choose(cv, c, index, weights, h, c->x, &hook, e);
    if (cv->config.moe.latent)
        h = &c->h;
    if (rc == 0 && cv->config.moe.latent)
        rc = apart_strength(c, l, e);
    for (int i = 0; i < cv->config.moe.n_experts && rc == 0; i++) {
        if (c->choice.first[i] == c->choice.first[i + 1])
            continue;
        rc = load_expert(cv, c, index, i, kept, e) ? -1 : 0;
        if (rc == 0)
            cpu_layers_expert(c->run, index, weights, i, h->x, (size_t)h->ld, c->sum ? c->sum : c->x, &c->choice,
                              &hook);
        for (int k = 0; k < size && rc == 0; k++)
            l->down_strength[k] += l->experts[i].down[k] / ((float)n * (float)cv->config.moe.top_k);
    }
    if (rc == 0)
        calibrate_add_experts(cv, c, index, weights, c->x, c->kept);
    return rc;
}

/* Allocate memory for the input of experts, if it differs from that of the MLP beside them. */
static int hold_apart(const struct conversion *cv, struct calibration *c, struct err *e)
{
    const int hidden = cv->config.hidden_size;
    const size_t n_tokens = (size_t)c->n_windows * (size_t)c->window_len;
    calibrate_end_experts(c);
    c->h = (struct inputs){ .n = hidden, .ld = linalg_pad(hidden) };
    c->h.x = calibrate_hold(c, HOLD_STATES, n_tokens * (size_t)c->h.ld * sizeof *c->h.x, "the inputs of experts", e);
    return c->h.x ? 0 : -1;
}

int calibrate_layer(struct conversion *cv, struct calibration *c, int index, struct inputs keep[N_INPUTS],
                    struct err *e)
{
    const struct config *config = &cv->config;
    struct layer_calib *l = &cv->calib[index];
    const int experts = config->ff[index] == FF_MOE, apart = experts && config->moe.beside;
    struct strength_hook w = { .c = c, .keep = keep, .moe = experts && !apart, .apart = &c->h, .calib = l };
    struct cpu_hook hook = { .input = watch_input, .user = &w };
    struct inputs own[N_INPUTS] = { { 0 } };
    size_t n_tokens = (size_t)c->n_windows * (size_t)c->window_len;
    int rc = experts ? remember_experts(cv, index, e) : 0;
    if (rc == 0 && apart)
        rc = hold_apart(cv, c, e);
    if (rc == 0 && w.moe && !keep) {
        own[INPUT_MLP] = (struct inputs){ .n = config->hidden_size, .ld = config->hidden_size };
        own[INPUT_MLP].x = calibrate_hold(c, HOLD_STATES, n_tokens * (size_t)config->hidden_size * sizeof(float),
                                          "calibration of experts", e);
        w.keep = own;
        rc = own[INPUT_MLP].x ? 0 : -1;
    }
    for (int i = 0; i < N_INPUTS && rc == 0; i++) {
        if (i == INPUT_MLP && config->block == BLOCK_PARALLEL && !keep)
            continue;                   /* the MLP reads the same input as q, k and v */
        free(l->strength[i]);
        l->strength[i] = NULL;
        if (!calibrate_width(config, index, i))
            continue;
        w.sum[i] = calloc((size_t)calibrate_width(config, index, i), sizeof *w.sum[i]);
        l->strength[i] = calloc((size_t)calibrate_width(config, index, i), sizeof *l->strength[i]);
        if (!w.sum[i] || !l->strength[i])
            rc = err_nomem(e, "calibration");
    }
    for (int i = 0; i < c->n_windows && rc == 0; i++) {
        w.window = i;
        calibrate_window(c, c->kept, i);
        rc = cpu_layers_run(c->run, index, &c->m.layers[index], 1,
                            c->x + (size_t)i * (size_t)c->window_len * (size_t)config->hidden_size, &hook, e);
        if (rc == 0)
            rc = calibrate_progress(cv, c, keep ? "Quantizing" : "Calibrating", index, i + 1, e);
    }
    if (rc == 0 && apart)
        rc = apart_strength(c, l, e);
    if (rc == 0 && experts)
        rc = run_experts(cv, c, index, &w, apart ? &c->h : &w.keep[INPUT_MLP], e);
    spill_free(own[INPUT_MLP].x);
    for (int i = 0; i < N_INPUTS; i++) {
        for (int k = 0; k < calibrate_width(config, index, i) && l->strength[i] && w.sum[i]; k++)
            l->strength[i][k] = (float)(w.sum[i][k] / (double)n_tokens);
        free(w.sum[i]);
    }
    if (rc == 0 && config->block == BLOCK_PARALLEL && !l->strength[INPUT_MLP]) {
        size_t bytes = (size_t)config->hidden_size * sizeof(float);
        l->strength[INPUT_MLP] = malloc(bytes);
        if (!l->strength[INPUT_MLP])
            return err_nomem(e, "calibration");
        memcpy(l->strength[INPUT_MLP], l->strength[INPUT_QKV], bytes);
    }
    return rc;
}

/* Measure the strengths of the head's inputs: the final norm over the residual stream. */
int calibrate_head(struct conversion *cv, struct calibration *c, struct err *e)
{
    const struct config *f = &cv->config;
    const struct kernels *k = cpu_layers_kernels(c->run);
    int n = c->n_windows * c->window_len, hidden = f->hidden_size, rc = 0;
    float *y = malloc((size_t)hidden * sizeof *y);
    double *sum = calloc((size_t)hidden, sizeof *sum);
    free(cv->head_strength);
    cv->head_strength = calloc((size_t)hidden, sizeof *cv->head_strength);
    if (!y || !sum || !cv->head_strength)
        rc = err_nomem(e, "calibration");
    for (int i = 0; i < cv->n_recipes && rc == 0; i++) {
        const struct weight_spec *s = cv->recipes[i].spec;
        if (s->layer < 0 && !end_infos[s->part].is_first && s->part <= EP_FINAL_NORM)
            rc = load_weight(cv, c, &cv->recipes[i], e);
    }
    for (int i = 0; i < c->n_windows && c->kept && rc == 0; i++) {
        calibrate_window(c, c->kept, i);
        cpu_layers_merge(c->run, &c->m, c->x + (size_t)i * (size_t)c->window_len * (size_t)hidden);
    }
    const struct norm *norm = &c->m.final_norm;
    for (int t = 0; t < n && rc == 0; t++) {
        const float *x = c->x + (size_t)t * (size_t)hidden;
        if (!norm->present)
            memcpy(y, x, (size_t)hidden * sizeof *y);
        else if (f->norm == NORM_RMS)
            k->rms_norm(y, x, norm->w, hidden, f->norm_eps, f->norm_offset);
        else
            k->layer_norm(y, x, norm->w, norm->b, hidden, f->norm_eps);
        for (int i = 0; i < hidden; i++)
            sum[i] += (double)y[i] * (double)y[i];
    }
    for (int i = 0; i < hidden && rc == 0; i++)
        cv->head_strength[i] = (float)(sum[i] / n);
    calibrate_unload(c);
    free(y);
    free(sum);
    return rc;
}

int calibrate_run(struct conversion *cv, struct calibration *c, struct err *e)
{
    size_t bytes = (size_t)c->n_windows * (size_t)c->window_len * (size_t)cv->config.hidden_size * sizeof *c->x;
    /* keep the first layer's input for quantize_layer_*(), which runs the layers again */
    const size_t kept = (size_t)c->n_windows * c->kept_bytes;
    uint8_t *first = calibrate_hold(c, HOLD_STATES, bytes + kept, "calibration", e);
    if (!first)
        return -1;
    memcpy(first, c->x, bytes);
    if (kept)
        memcpy(first + bytes, c->kept, kept);
    int rc = 0;
    for (int i = 0; i < cv->config.n_layers && rc == 0; i++) {
        rc = calibrate_load(cv, c, i, e);
        if (rc == 0)
            rc = calibrate_layer(cv, c, i, NULL, e);
        calibrate_end_experts(c);
        calibrate_unload(c);
        if (rc == 0)
            rc = channel_scale_layer(cv, i, 0.5f, e);
        calibrate_forget_experts(cv, i);
    }
    if (rc == 0)
        rc = calibrate_head(cv, c, e);
    memcpy(c->x, first, bytes);
    if (kept)
        memcpy(c->kept, first + bytes, kept);
    spill_free(first);
    return rc;
}

/* ---- opening ---- */

static int widest(const struct config *c, int input)
{
    int most = 0;
    for (int i = 0; i < c->n_layers; i++)
        most = calibrate_width(c, i, input) > most ? calibrate_width(c, i, input) : most;
    return most;
}

/* Compute the sizes of a layer's matrices without its experts, and of one expert, both as loaded
 * and as in the new file. */
static void count_weights(const struct conversion *cv, uint64_t held[N_HOLDS])
{
    uint64_t loaded = 0, rounded = 0, expert = 0;
    for (int i = 0; i < cv->n_recipes; i++) {
        const struct recipe *p = &cv->recipes[i];
        const struct weight_spec *s = p->spec, *before = i ? cv->recipes[i - 1].spec : s;
        /* CONVERT_MIXED chooses at most 8 bits */
        const uint64_t n = (uint64_t)s->rows * (uint64_t)s->cols,
                       most = cv->report->type.kind == CONVERT_MIXED ? n * 5 / 4 : 0;
        const uint64_t result = most > p->m.size ? most : p->m.size;
        struct mat m = { .size = n * sizeof(float) };
        if (s->layer < 0)
            continue;
        if (!s->is_vector && loaded_form(p, &m, NULL))
            continue;                           /* loading the tensor will report the error */
        if (s->layer != before->layer)
            loaded = rounded = 0;
        if (s->layer != before->layer || s->expert != before->expert)
            expert = 0;
        if (s->expert >= 0) {
            expert += m.size + result;
        } else {
            loaded += m.size;
            rounded += result;
        }
        held[HOLD_EXPERT] = expert > held[HOLD_EXPERT] ? expert : held[HOLD_EXPERT];
        held[HOLD_WEIGHTS] = loaded > held[HOLD_WEIGHTS] ? loaded : held[HOLD_WEIGHTS];
        held[HOLD_ROUNDED] = rounded > held[HOLD_ROUNDED] ? rounded : held[HOLD_ROUNDED];
    }
}

static int has_experts(const struct config *f)
{
    for (int i = 0; i < f->n_layers; i++)
        if (f->ff[i] == FF_MOE)
            return 1;
    return 0;
}

/* Compute the most bytes that calibration will hold.  held [N_HOLDS] receives those of the kinds
 * that may be in spill files.  Returns the rest: buffers of a window of text and of each thread. */
static uint64_t count(const struct conversion *cv, const struct calibration *c, uint64_t held[N_HOLDS])
{
    const struct config *f = &cv->config;
    const int best = cv->effort == CONVERT_BEST, moe = has_experts(f);
    const uint64_t tokens = (uint64_t)c->n_windows * (uint64_t)c->window_len, hidden = (uint64_t)f->hidden_size,
                   window = (uint64_t)c->window_len;
    /* latents, or the input of experts beside the MLP, are held besides all inputs of the layer */
    const uint64_t padded = moe ? (uint64_t)linalg_pad(f->moe.latent) : 0,
                   entry = moe ? (uint64_t)linalg_pad(f->hidden_size) + padded : 0,
                   apart = moe && f->moe.beside ? entry : padded,
                   expert = moe ? entry + (uint64_t)linalg_pad(f->moe.intermediate_size) : 0;
    uint64_t most = 0, width = 0, sum = 0;
    for (int i = 0; i < f->n_layers; i++) {
        const uint64_t n = f->ff[i] == FF_MOE ? sum_width(f, &c->m.layers[i]) : 0;
        sum = n > sum ? n : sum;
    }
    for (int i = 0; i < N_INPUTS; i++) {
        const uint64_t n = (uint64_t)linalg_pad(widest(f, i));
        most = n > most ? n : most;
        width += n;
    }
    most = moe && (uint64_t)linalg_pad(f->moe.intermediate_size) > most
               ? (uint64_t)linalg_pad(f->moe.intermediate_size) : most;
    count_weights(cv, held);
    held[HOLD_H] = held[HOLD_LINV] = held[HOLD_C] = best ? most * most * sizeof(float) : 0;
    /* One residual stream (best has another one, after the quantized layers; mixed also keeps
     * the first layer's input).  Besides that, the largest of: the embeddings; all inputs of a
     * layer and (if they differ, and always with best) that of its experts; the input of all
     * experts and the inputs of one expert. */
    const uint64_t copies = (uint64_t)(1 + best + (cv->report->type.kind == CONVERT_MIXED)),
                   stream = copies * (tokens * hidden + (uint64_t)c->n_windows * c->kept_bytes / sizeof(float)),
                   inputs = tokens * (width + (best ? entry : apart));
    const uint64_t one = tokens * entry + (tokens + OTHER_TOKENS) * expert,
                   embeddings = tokens * (2 * hidden + (uint64_t)f->n_layers * (uint64_t)f->ple_dim);
    const uint64_t beside = inputs > one ? inputs : one;
    held[HOLD_STATES] = (stream + (beside > embeddings ? beside : embeddings)) * sizeof(float);

    const uint64_t rounded_inputs = window * (2 * most + 4 * hidden) * 2,
                   choice = moe ? tokens * (uint64_t)f->moe.top_k * 16 : 0,
                   /* the sum, and the router's own input if it has one */
                   sums = tokens * (sum + (moe && f->moe.beside ? hidden : 0)) * sizeof(float);
    const uint64_t thread = gptq_scratch(&(struct gptq){ .N = (int)most }) + 2 * TILE_ROWS * most * sizeof(float) + 8 *
                            most;
    const uint64_t feedback = best ? window * (4 * most + 2 * hidden) * sizeof(float)
                                   : most * GOOD_RANK * 24 + tokens * GOOD_RANK * sizeof(float);
    const uint64_t found = (uint64_t)f->n_layers * width * 2 * sizeof(float) +
                           (moe ? (uint64_t)f->moe.n_experts * (expert + hidden) * sizeof(float) : 0);
    return cpu_layers_memory(c->run) + rounded_inputs + choice + sums + found + feedback + thread *
           (uint64_t)pool_size(cv->pool);
}

/* Decide which kinds go to spill files, and report the sizes. */
static void place_kinds(struct conversion *cv, struct calibration *c)
{
    uint64_t held[N_HOLDS] = { 0 }, in_memory = count(cv, c, held), in_files = 0;
    const uint64_t limit = cv->o->calibration_memory ? cv->o->calibration_memory : has_experts(&cv->config)
                               ? CONVERT_MOE_MEMORY : UINT64_MAX;
    for (int i = HOLD_EXPERT + 1; i < N_HOLDS; i++) {
        if (held[i] <= limit && in_memory <= limit - held[i]) {
            in_memory += held[i];
        } else {
            in_files += held[i];
            c->in_file |= 1u << i;
        }
    }
    cv->report->private_bytes = in_memory + held[HOLD_EXPERT];
    cv->report->scratch_bytes = in_files;
}

int calibrate_open(struct conversion *cv, struct calibration **out, struct err *e)
{
    struct calibration *c = calloc(1, sizeof *c);
    *out = c;
    if (!c)
        return err_nomem(e, "calibration");
    c->ops = linalg_pick();
    c->output = cv->o->output;
    c->m.config = c->q.config = cv->config;
    c->m.layers = calloc((size_t)cv->config.n_layers, sizeof *c->m.layers);
    c->q.layers = calloc((size_t)cv->config.n_layers, sizeof *c->q.layers);
    if (!c->m.layers || !c->q.layers)
        return err_nomem(e, "calibration");
    model_norms(&c->m);
    model_norms(&c->q);
    if (model_experts(&c->m, e) < 0)
        return -1;
    if (choose_windows(cv, c, e))
        return -1;
    struct config renumbered = cv->config;
    renumbered.ple_vocab = INT32_MAX;           /* see embed_rows() */
    c->run = cpu_layers_open(&renumbered, 1, c->window_len, cv->o->n_threads, cv->o->kernels, e);
    if (!c->run)
        return -1;
    c->kept_bytes = cpu_layers_kept(c->run);
    place_kinds(cv, c);
    if (cv->o->before && cv->o->before(cv->o->before_user, cv->report, e))
        return -1;
    if (cv->report->scratch_bytes)
        conversion_note(cv, "calibration will take up to %" PRIu64 " MB of memory, and %" PRIu64
                        " MB of the disk beside %s",
                 cv->report->private_bytes / 1000000, cv->report->scratch_bytes / 1000000, cv->o->output);
    else if (cv->report->private_bytes > 256u << 20)
        conversion_note(cv, "calibration will take up to %" PRIu64 " MB of memory",
                        cv->report->private_bytes / 1000000);
    return begin(cv, c, e);
}

void calibrate_close(struct calibration *c)
{
    if (!c)
        return;
    calibrate_unload(c);
    calibrate_end_experts(c);
    cpu_layers_close(c->run);
    free(c->blocks);
    for (int i = 0; c->m.layers && i < c->m.config.n_layers; i++)
        free(c->m.layers[i].experts);
    free(c->m.layers);
    free(c->q.layers);
    free(c->ids);
    free(c->tokens);
    spill_free(c->x);
    spill_free(c->xq);
    spill_free(c->kept);
    spill_free(c->kept_q);
    free(c);
}
