/* cpu_ends.c - compute the input of the first layer, and the logits from the output of the last
 * layer. */
#include <string.h>

#include "libcommon/cpu/cpu_ops.h"

struct embed_job { struct core *k; const struct model *m; float *x, *wide; };

static void embed_rows(void *arg, int t, int thread)
{
    (void)thread;
    const struct embed_job *j = arg;
    const struct config *c = j->k->c;
    const size_t hidden = (size_t)c->hidden_size;
    float *x = j->wide ? j->wide + (size_t)t * (size_t)c->embed_size : j->x + (size_t)t * hidden;
    if (j->k->residency)
        residency_row(j->k->residency, &j->m->embed.w, j->k->token[t], x);
    else
        mat_decode_row(&j->m->embed.w, j->k->token[t], x);
    if (c->embed_scale != 1)
        for (int i = 0; i < c->embed_size; i++)
            x[i] *= c->embed_scale;
}

static void embed_finish(void *arg, int t, int thread)
{
    (void)thread;
    const struct embed_job *j = arg;
    const struct config *c = j->k->c;
    const size_t hidden = (size_t)c->hidden_size;
    float *x = j->x + (size_t)t * hidden;
    if (j->m->pos_embed)
        j->k->k->add(x, x, j->m->pos_embed + ((size_t)j->k->pos[t] + (size_t)c->pos_offset) * hidden, 1,
                     c->hidden_size);
    if (j->m->type_embed)
        j->k->k->add(x, x, j->m->type_embed + (size_t)j->k->type[t] * hidden, 1, c->hidden_size);
    if (j->m->embed_norm.present)
        core_norm_row(j->k, x, x, &j->m->embed_norm, c->hidden_size);
}

void core_embed(struct core *k, const struct model *m, int n, float *x)
{
    const struct config *c = k->c;
    struct embed_job j = { k, m, x, m->embed_in.w.data ? k->h[0] : NULL };
    if (k->residency)                           /* residency_row() has one buffer */
        for (int t = 0; t < n; t++)
            embed_rows(&j, t, 0);
    else
        pool_run(k->pool, n, embed_rows, &j);
    if (j.wide) {
        const struct linear *l = &m->embed_in;
        /* the input is not quantized, because only one small matrix reads it */
        struct act_input in = { .x = j.wide, .ldx = (size_t)c->embed_size, .cols = c->embed_size };
        core_linear(k, &(struct op){ .l = l, .in = &in, .out = x, .ldo = (size_t)c->hidden_size, .kind = OP_STORE }, 1,
                    n, NULL);
    }
    if (m->pos_embed || m->type_embed || m->embed_norm.present)
        pool_run(k->pool, n, embed_finish, &j);
    residency_looked_up(k->residency);
    if (c->ple_dim)
        ple_embed(k, m, n, x);
    if (c->n_streams)
        altup_begin(k, m, x, n);
    if (c->hyper.n)
        hyper_begin(k, x, n);
}

struct pair_job { struct core *k; const struct layer *l; const struct step *s; float *x; };

/* out = norm of x, one row of hidden_size elements; x itself without a norm. */
static void norm_or_copy(const struct core *k, float *out, const float *x, const struct norm *norm)
{
    if (norm->present)
        core_norm_row(k, out, x, norm, k->c->hidden_size);
    else
        memcpy(out, x, (size_t)k->c->hidden_size * sizeof *out);
}

/* Write the normed embeddings and the normed states of item i side by side.  If attention reads
 * both (PREDICTS_BESIDE), the states become x. */
static void pair_rows(void *arg, int i, int thread)
{
    (void)thread;
    const struct pair_job *j = arg;
    const struct batch_item *it = &j->s->items[i];
    const size_t hidden = (size_t)j->k->c->hidden_size;
    for (int t = 0; t < it->n_tokens; t++) {
        const size_t at = (size_t)j->s->offset[i] + (size_t)t;
        float *out = j->k->pair + at * 2 * hidden;
        norm_or_copy(j->k, out, j->x + at * hidden, &j->l->next_embed_norm);
        norm_or_copy(j->k, out + hidden, it->states + (size_t)t * hidden, &j->l->next_state_norm);
        if (j->k->c->predicts == PREDICTS_BESIDE)
            memcpy(j->x + at * hidden, it->states + (size_t)t * hidden, hidden * sizeof *out);
    }
}

void core_predict(struct core *k, const struct model *m, const struct step *s, float *x)
{
    const struct linear *in_proj = &m->layers->next_in;
    const int hidden = k->c->hidden_size;
    struct pair_job j = { k, m->layers, s, x };
    struct act_input in;
    pool_run(k->pool, s->n_items, pair_rows, &j);
    if (k->c->predicts == PREDICTS_BESIDE)
        return;
    core_input(k, &in, 0, k->pair, 2 * hidden, s->n_tokens, &in_proj, 1);
    core_linear(k, &(struct op){ .l = in_proj, .in = &in, .out = x, .ldo = (size_t)hidden, .kind = OP_STORE }, 1,
                s->n_tokens, NULL);
}

void core_final_norm(struct core *k, const struct model *m, const float *x, float *out)
{
    const struct norm *norm = k->c->predicts ? &m->layers->next_final_norm : &m->final_norm;
    norm_or_copy(k, out, x, norm);
}

void core_add_linear(struct core *k, const struct linear *l, const float *x, int n, float *out)
{
    const size_t hidden = (size_t)k->c->hidden_size;
    struct act_input in;
    core_input(k, &in, 0, x, (int)hidden, n, &l, 1);
    core_linear(k, &(struct op){ .l = l, .in = &in, .out = out, .ldo = hidden, .kind = OP_ADD, .scale = 1 }, 1, n,
                NULL);
}

void core_logits(struct core *k, const struct model *m, const float *const *rows, int n, float *logits)
{
    const struct config *c = k->c;
    const size_t hidden = (size_t)c->hidden_size;
    const struct linear *head = &m->head;
    float *h = k->h[0];
    for (int i = 0; i < n; i++)
        core_final_norm(k, m, rows[i], h + (size_t)i * hidden);
    struct act_input in = { .x = h, .ldx = hidden, .cols = c->hidden_size };
    if (m->embed_out.w.data) {
        core_linear(k, &(struct op){ .l = &m->embed_out, .in = &in, .out = k->mlp, .ldo = (size_t)c->embed_size,
                                     .kind = OP_STORE }, 1, n, NULL);
        h = k->mlp;
    }
    core_input(k, &in, 0, h, c->embed_size, n, &head, 1);
    core_hook(k, -1, ROLE_HEAD, &in, n);
    for (int i = 0; i < residency_head_slices(k->residency); i++) {
        struct linear part = *head;
        int t0, t1;
        residency_head(k->residency, i, &head->w, &t0, &t1);
        part.w.data += (size_t)t0 * head->w.tile_bytes;
        part.w.n_tiles = t1 - t0;
        part.w.rows = (t1 * TILE_ROWS < head->w.rows ? t1 * TILE_ROWS : head->w.rows) - t0 * TILE_ROWS;
        part.bias = head->bias ? head->bias + t0 * TILE_ROWS : NULL;
        core_linear(k, &(struct op){ .l = &part, .in = &in, .out = logits + t0 * TILE_ROWS,
                                     .ldo = (size_t)c->vocab_size, .kind = OP_LOGITS,
                                    .scale = c->logit_scale, .limit = c->final_softcap }, 1, n, NULL);
    }
}
