/* one_token_stages.c - the stages of the launch of all layers of a step of one token
 * (gpu/kernels/one_token.cu), with their counts, for the models to which gpu/backend/one_token.c
 * gives this launch. */
#include <math.h>
#include <stdio.h>

#include "gpu/time/walk.h"
#include "libcommon/model/arch.h"

enum {
    THREADS = 32 * GPU_TOKEN_WARPS,
    /* of nvcc's code for sm_90, along the path of a warp: cycles of the first warp after the last
     * product of a unit (sums, a barrier, sums of 16 warps, a store), and the same of gate and up,
     * with the activation; instructions of a warp for 256 activations that it collects, and cycles
     * of a shuffle and a barrier after it; instructions of a warp in a stage outside of its turns
     * (gate and up: twice as many) */
    REDUCE = 210,
    REDUCE_UP = 390,
    COLLECT = 83,
    COLLECT_WAITS = 85,
    OUTSIDE = 110,
    /* instructions of a warp for the norm of 256 columns: to check that they have arrived; up to
     * the squares; and from there on.  Cycles of shuffles, barriers and a root that nothing hides,
     * before and after that */
    NORM_COLLECTS = 34,
    NORM_SQUARES = 75,
    NORM = 105,
    SQUARES_WAITS = 145,
    NORM_WAITS = 75,
    CHOSEN = 100,                       /* addresses of the chosen experts, and a barrier */
    JOIN = 60,                          /* instructions of a warp to divide gate and up, and to join them */
    WEIGH = 16,                         /* and to multiply the sums of a turn of down, with its own scales */
    /* instructions of a warp: to start the copies of the router's columns and the norm's factors;
     * for eight outputs of the router.  Cycles from a sum to an output, and to weigh the experts */
    START_ROUTER = 75,
    OUTPUTS = 75,
    AS_OUTPUT = 40,
    WEIGH_EXPERTS = 400,
    /* cycles of an instruction of a warp that is alone */
    LONE = 2,
};

/* ---- the models ---- */

static int is_plain(const struct walk *w, int index)
{
    const struct config *c = &w->m->config;
    const struct layer *l = &w->m->layers[index];
    return c->mixer[index] == MIXER_ATTENTION && c->ff[index] == c->ff[0] &&
           (c->ff[index] == FF_MOE ||
            (c->ff[index] == FF_DENSE && config_mlp_size(c, index) == c->intermediate_size)) &&
           !l->attn_post_norm.present && !l->mlp_post_norm.present && !l->attn_sub_norm.present &&
           !l->mlp_sub_norm.present && l->attn_norm.present && !l->attn_norm.b && l->mlp_norm.present &&
           !l->mlp_norm.b;
}

/* The matrices of gate, up and down: of the first expert, or of a dense layer. */
static void mlp_of(const struct walk *w, int index, const struct mat *out[3])
{
    const struct layer *l = &w->m->layers[index];
    const int moe = w->m->config.ff[index] == FF_MOE;
    out[0] = moe ? &l->experts->gate.w : &l->gate.w;
    out[1] = moe ? &l->experts->up.w : &l->up.w;
    out[2] = moe ? &l->experts->down.w : &l->down.w;
}

static int matrices_take(const struct walk *w, int index)
{
    const struct layer *l = &w->m->layers[index], *first = &w->m->layers[0];
    const struct mat *mats[7] = { &l->q.w, &l->k.w, &l->v.w, &l->o.w },
                     *same[7] = { &first->q.w, &first->k.w, &first->v.w, &first->o.w };
    mlp_of(w, index, mats + 4);
    mlp_of(w, 0, same + 4);
    for (int i = 0; i < 7; i++) {
        const struct mat *m = mats[i];
        if (!gpu_turns_alike((int)m->type, (int)first->o.w.type) || m->group_size != first->o.w.group_size ||
            !gpu_whole_turns((int)m->type, m->cols, n_steps(m), m->n_groups) || m->n_tiles != same[i]->n_tiles ||
            m->cols_padded != same[i]->cols_padded)
            return 0;
    }
    return w->m->config.ff[index] == FF_MOE ? l->router.w.type == QT_F32 && !l->experts->down.bias : !l->down.bias;
}

/* Is the kernel the one of several formats? */
static int is_mixed(const struct walk *w)
{
    int mixed = 0;
    for (int i = 0; i < w->m->config.n_layers; i++) {
        const struct layer *l = &w->m->layers[i];
        const struct mat *mats[7] = { &l->q.w, &l->k.w, &l->v.w, &l->o.w };
        mlp_of(w, i, mats + 4);
        for (int k = 0; k < 7; k++)
            mixed |= gpu_turns_need_mixed((int)mats[k]->type);
    }
    return mixed;
}

static int chooses(const struct moe *m)
{
    const float some = 0;
    return gpu_chooses_only(&(struct gpu_route){ .n = 1, .n_experts = m->n_experts, .top_k = m->top_k,
                                                 .router = (int)m->router, .n_groups = m->n_groups,
                                                 .correction = m->correction ? &some : NULL });
}

static int takes(const struct walk *w)
{
    const struct config *c = &w->m->config;
    const int moe = c->n_layers > 0 && c->ff[0] == FF_MOE;
    if (w->s->one_launch == ONE_LAUNCH_OFF ||
        (w->s->one_launch == ONE_LAUNCH_AUTO && !moe && w->g->dependent_s > 0))
        return 0;
    if (w->n != 1 || c->block != BLOCK_SEQUENTIAL || !c->gated || c->attn_gate || c->clip_qkv > 0 ||
        c->qk_norm == QK_NORM_FULL || c->norm == NORM_LAYER || c->hidden_size % 32 || !GPU_NORM_TAKES(c->hidden_size) ||
        c->n_heads / c->n_kv_heads > GPU_ATTN_GROUP || c->head_dim % 32 || c->head_dim > GPU_TOKEN_DIM ||
        c->n_layers < 1)
        return 0;
    if (moe && (c->moe.shared_size || c->moe.shared_gate || c->moe.weigh_input || !chooses(&c->moe)))
        return 0;
    for (int i = 0; i < c->n_layers; i++)
        if (!is_plain(w, i) || !matrices_take(w, i))
            return 0;
    return 1;
}

/* ---- stages ---- */

struct token_walk {
    struct walk *w;
    struct timed_launch same;           /* blocks, threads and memory of all stages */
    /* instructions of 16 bytes of a lane: all, and without the loads of the next turn; of several
     * formats the second is m6, and m5 takes as many */
    double each[2], products[2];
    int mixed;
    struct gpu_turns qkv, o, up, down;
    int at;                             /* stages so far */
};

static void stage(struct token_walk *t, struct timed_launch l)
{
    l.kernel = t->same.kernel;
    l.together = 1;
    l.stage = t->at++;
    l.blocks = t->same.blocks;
    l.threads = t->same.threads;
    l.shared = t->same.shared;
    l.registers = t->same.registers;
    if (l.stage == 0) {
        /* the launch: arguments and the first layer, whose address they have, from memory; the
         * codebook */
        l.setup_memory += 2;
        l.setup_cycles += 600;
    }
    walk_add(t->w, l);
}

/* Cycles in which n warps issue these instructions, while others do nothing. */
static double issue_cycles(const struct token_walk *t, double instructions, int n)
{
    return instructions * ceil(n / 4.0) / t->w->g->issue_share;
}

/* Instructions of a turn of a matrix.  Loads have been counted for two matrices, but with several
 * formats for one. */
struct turn_cost { double all, products, loads; };
static struct turn_cost turn_of(const struct token_walk *t, const struct mat *m)
{
    const int k = t->mixed && m->type != QT_NL4, n = GPU_TURN_STEPS(m->type) * loads_of(m);
    return (struct turn_cost){ t->each[k] * n, t->products[k] * n,
                               (t->mixed ? 1 : 2) * (t->each[k] - t->products[k]) * n };
}

/* Cycles until all warps have issued the loads of their first turns: those of a scheduler one after
 * the other. */
static double place_cycles(const struct token_walk *t, struct turn_cost c)
{
    return issue_cycles(t, c.loads, GPU_TOKEN_WARPS);
}

/* Turns of blocks that have equally many: the first of each warp are loaded ahead.  Of matrices of
 * several formats some blocks have the turns that take longest. */
static void count_turns(const struct token_walk *t, struct timed_launch *l, const struct gpu_turns *d,
                        const struct mat *const *m, int n)
{
    const int first = d->share < GPU_TOKEN_WARPS ? d->share : GPU_TOKEN_WARPS;
    struct turn_cost most = { 0 };
    double bytes = 0;
    int n_tiles = 0;
    for (int i = 0; i < n; i++)
        n_tiles += m[i]->n_tiles;
    for (int i = 0; i < n; i++) {
        const struct turn_cost c = turn_of(t, m[i]);
        if (c.all > most.all)
            most = c;
        bytes += GPU_TURN_STEPS(m[i]->type) * (double)m[i]->tile_bytes / n_steps(m[i]) * m[i]->n_tiles / n_tiles;
    }
    l->active = ceil_of(d->n_tiles * d->per_tile, d->share);
    /* the first turns are loaded before the words come */
    l->issue = l->active * (most.products * d->share + most.loads * (d->share - first)) +
               (double)l->active * OUTSIDE * GPU_TOKEN_WARPS;
    l->turns = ceil((double)d->share / GPU_TOKEN_WARPS);
    l->turn_memory = 1;
    l->turn_cycles = most.all;
    l->setup_memory = 1;                /* first weights, or if they are there, activations */
    l->early = first * bytes;
    l->early_cycles = place_cycles(t, most);
    l->frees = REDUCE;
}

/* A block collects the activations of n turns of a tile, of 32 * steps each. */
static void count_collected(const struct token_walk *t, struct timed_launch *l, const struct gpu_turns *d, int steps)
{
    const int n = d->per_tile % d->share == 0 ? d->share : d->per_tile, act = 32 * steps * n;
    const double cycles = issue_cycles(t, COLLECT, (int)ceil_of(act, 256)) + COLLECT_WAITS;
    l->setup_cycles += cycles;
    l->arriving = cycles;
    l->words = (double)l->active * sizeof(float) * act;
    l->l2_bytes += l->words;
}

/* Cycles to issue the instructions of a row; instructions: of a warp for 256 columns. */
static double columns_cycles(const struct token_walk *t, int instructions)
{
    enum { A_WARP = 256, MOST = A_WARP * GPU_TOKEN_WARPS };
    double cycles = 0;
    for (int rest = t->w->m->config.hidden_size; rest > 0; rest -= MOST)
        cycles += issue_cycles(t, instructions, (int)ceil_of(rest < MOST ? rest : MOST, A_WARP));
    return cycles;
}

/* Every block adds the parts that a stage has left to the residual, and norms it. */
static void count_norm(const struct token_walk *t, struct timed_launch *l, const struct gpu_turns *left)
{
    const double cycles = columns_cycles(t, (left ? NORM_COLLECTS : 0) + NORM_SQUARES + NORM) + SQUARES_WAITS +
                          NORM_WAITS;
    l->setup_cycles += cycles;
    /* a word comes first, then all of them: 4096 columns at a time, and half with more parts */
    l->setup_l2 += left ? (double)ceil_of(t->w->m->config.hidden_size, 4096) * (left->parts > 2 ? 2 : 1) : 0;
    l->arriving = (left ? t->w->g->l2_cycles : 0) + cycles;
    l->l2_bytes += left ? 4.0 * t->same.blocks * left->parts * t->w->m->config.hidden_size : 0;
    l->bytes += 4.0 * t->w->m->config.hidden_size;
}

static void add_qkv(struct token_walk *t, const struct layer *l, int first)
{
    const struct mat *const m[3] = { &l->q.w, &l->k.w, &l->v.w };
    struct timed_launch s = { .what = "qkv", .part = TIMED_LINEAR, .setup_cycles = REDUCE };
    for (int i = 0; i < 3; i++) {
        s.bytes += (double)m[i]->size;
        s.flop += product(m[i], 1);
    }
    s.done = 8 * s.flop;
    s.l2_bytes = s.bytes;
    count_turns(t, &s, &t->qkv, m, 3);
    count_norm(t, &s, first ? NULL : &t->down);
    stage(t, s);
}

/* Attention of the splits of a KV head.  Instructions of a warp, in nvcc's code for sm_90 with
 * heads of 128: to begin the copies, and those of four more KV blocks; to load a head's factors; to
 * prepare a head; for the scores and the weights of a KV block; for 16 elements of the values, and
 * of each four KV blocks of them; to merge up to 4 splits of 32 elements, for each 4 more of them,
 * and for what each warp has merged. */
static void add_attention(struct token_walk *t, int index)
{
    enum { BEGIN = 119, BEGIN_4 = 29, FACTORS = 120, PREPARE = 198, SCORES = 230, VALUES = 41, VALUES_OF_4 = 46,
           MERGE = 115, MERGE_MORE = 35, MERGE_WARPS = 40, MERGED = 8 /* splits of a warp at a time */,
           /* cycles that nothing hides, of 4 barriers, of shuffles of a norm and a maximum, and of
            * products that follow each other; and of shuffles and powers in the merge */
           WAITS = 400, MERGE_WAITS = 160,
           /* of a row of queries or weights: two f16 for each; a warp reads all of them */
           PAIR_BYTES = 4 };
    const struct walk *w = t->w;
    const struct config *c = &w->m->config;
    const int share = c->n_heads / c->n_kv_heads, dim = c->head_dim, n = walk_seen(w, index),
              max_splits = (int)ceil_of(n, GPU_SPLIT),
              size = 1 << gpu_token_log_split(max_splits, c->n_kv_heads, (int)t->same.blocks),
              n_splits = (int)ceil_of(n, size), kv_warps = size / 16, value_warps = dim / 16;
    const unsigned jobs = (unsigned)(n_splits * c->n_kv_heads);
    const double kv = 4.0 * n * dim * c->n_kv_heads,
                 sums = 4.0 * c->n_heads * n_splits * (dim / 32 * GPU_TOKEN_SUM),
                 raw = 4.0 * t->qkv.parts * dim * (c->n_heads * n_splits + 2.0 * c->n_kv_heads);
    /* warps merge groups of splits, each some of them one after the other, and then one warp what
     * each has merged */
    const int groups = (int)ceil_of(n_splits, MERGED), warps = groups < GPU_TOKEN_WARPS ? groups : GPU_TOKEN_WARPS,
              turns = (int)ceil_of(groups, GPU_TOKEN_WARPS), more = n_splits <= 4 ? 0 : 2 * turns - 1;
    const int merges = (int)ceil_of(c->n_heads * dim / 32, t->same.blocks);     /* of a block */
    const double merge = LONE * (MERGE + MERGE_MORE * more + (warps > 1 ? MERGE_WARPS * warps : 0)) + MERGE_WAITS;
    stage(t, (struct timed_launch){
        .what = "attention", .part = TIMED_ATTENTION, .active = jobs, .bytes = kv, .words = raw,
        .l2_bytes = kv + 3 * sums + raw,        /* a store, a load, and a store that empties it */
        .issue = (double)jobs * (SCORES * kv_warps + (VALUES + VALUES_OF_4 * kv_warps / 4) * value_warps),
        .shared_bytes = kv + (double)jobs * PAIR_BYTES * GPU_ATTN_GROUP * (kv_warps * dim + value_warps * size),
        .setup_memory = 1,              /* the copies */
        .setup_cycles = issue_cycles(t, PREPARE, share + 2) + WAITS, .early = kv / jobs,
        .early_cycles = issue_cycles(t, BEGIN + (kv_warps > 4 ? BEGIN_4 : 0), GPU_TOKEN_WARPS) +
                        issue_cycles(t, FACTORS, share + 2),
        .alone_l2 = 2 + turns * merges - 1,     /* the sums, as words */
        .alone_cycles = merges * merge });
}

/* The most tiles of which a block has turns. */
static int most_units(const struct gpu_turns *d)
{
    const int all = d->n_tiles * d->per_tile;
    int most = 1;
    for (int first = 0; first < all; first += d->share) {
        const int end = first + d->share < all ? first + d->share : all,
                  n = (end - 1) / d->per_tile - first / d->per_tile + 1;
        most = n > most ? n : most;
    }
    return most;
}

/* The router's outputs, which blocks add up after the product of o. */
static void count_outputs(const struct token_walk *t, struct timed_launch *l, const struct mat *router,
                          const struct gpu_turns *o)
{
    /* assumed: L2 adds to 32 bytes of a line in a cycle; blocks with turns add to the copies */
    enum { LINE_ADDS = 128 / 32 };
    const int warps = 4 * router->n_tiles < GPU_TOKEN_WARPS ? 4 * router->n_tiles : GPU_TOKEN_WARPS;
    const double units = most_units(o), columns = (double)TILE_ROWS * router->n_tiles * 128;
    l->bytes += (double)router->size;
    l->l2_bytes += (double)router->size + 4.0 * t->same.blocks * t->w->m->config.hidden_size;
    l->early += fmin(columns, (double)router->size);
    l->early_cycles += issue_cycles(t, START_ROUTER, GPU_TOKEN_WARPS);
    l->setup_cycles += issue_cycles(t, OUTPUTS * units, warps) * ceil(4.0 * router->n_tiles / warps) +
                       (double)l->active / GPU_TOKEN_COPIES * LINE_ADDS;
    l->setup_l2 += units - 1;           /* columns of further tiles */
    l->frees = 0;                       /* all warps add before the block arrives */
}

static void add_o(struct token_walk *t, const struct layer *l, int moe)
{
    struct timed_launch s = { .what = "o", .part = TIMED_LINEAR, .bytes = (double)l->o.w.size,
                              .flop = product(&l->o.w, 1), .done = 8 * product(&l->o.w, 1),
                              .l2_bytes = (double)l->o.w.size, .setup_cycles = REDUCE };
    count_turns(t, &s, &t->o, (const struct mat *const[]){ &l->o.w }, 1);
    count_collected(t, &s, &t->o, GPU_TURN_STEPS(l->o.w.type));
    if (moe)
        count_outputs(t, &s, &l->router.w, &t->o);
    stage(t, s);
}

/* A block waits for the sums of others, if it has tiles that others have parts of: for the latency
 * of L2, unless warps with a turn less than others do; and longer, if the others do not compute
 * these sums a turn of their warps earlier than its own.  split: turns in place of one. */
static void count_join(const struct token_walk *t, struct timed_launch *l, int split)
{
    const struct gpu_turns *d = &t->up;
    const int last = d->share * split % GPU_TOKEN_WARPS, most = d->per_tile - 1 < d->share ? d->per_tile - 1 : d->share;
    if (d->parts == 1)
        return;
    if (ceil_of(most * split, GPU_TOKEN_WARPS) >= l->turns) {
        l->setup_cycles += REDUCE_UP;
        l->setup_l2 += 2;
    } else if (last == 0 || last + 2 * (d->parts - 1) > GPU_TOKEN_WARPS) {
        l->setup_l2++;
    }
    /* a store, two reads, one of them emptied */
    l->l2_bytes += 4.0 * l->active * 2 * TILE_ROWS * sizeof(float);
}

/* Gate and up of the chosen experts, or of a dense layer. */
static void add_up(struct token_walk *t, const struct mat *const mats[3], const struct moe *m)
{
    const struct gpu_turns *d = &t->up;
    const struct turn_cost gate = turn_of(t, mats[0]), up = turn_of(t, mats[1]);
    /* of several formats a turn has one of the matrices */
    const int n = m ? m->top_k : 1, split = t->mixed ? 2 : 1, share = d->share * split,
              first = share < GPU_TOKEN_WARPS ? share : GPU_TOKEN_WARPS;
    struct timed_launch s = { .what = m ? "experts up" : "gate up", .part = TIMED_LINEAR,
                              .bytes = n * ((double)mats[0]->size + (double)mats[1]->size),
                              .flop = n * (product(mats[0], 1) + product(mats[1], 1)), .setup_memory = 1,
                              .setup_cycles = REDUCE_UP, .frees = REDUCE_UP };
    s.done = 8 * s.flop;
    s.l2_bytes = s.bytes;
    s.active = ceil_of(d->n_tiles * d->per_tile, d->share);
    s.issue = s.active * ((gate.all + up.all) * d->share + (2 * OUTSIDE + JOIN) * GPU_TOKEN_WARPS);
    if (!m)                             /* the first ones are loaded before the words come */
        s.issue -= (gate.all + up.all - gate.products - up.products) / split * s.active * first;
    s.turns = ceil((double)share / GPU_TOKEN_WARPS);
    s.turn_memory = 1;
    s.turn_cycles = (gate.all + up.all) / split;
    count_join(t, &s, split);
    if (m) {
        /* the router's outputs as words; the choice, while other warps collect the parts of o and
         * add up squares, unless it depends on these; the first loads.  The weights of experts and
         * the norm have time until these are there.  The barrier, with a fence and a count, is over
         * before the choice */
        const double parts = 4.0 * t->same.blocks * t->o.parts * t->w->m->config.hidden_size,
                     squares = columns_cycles(t, NORM_COLLECTS + NORM_SQUARES) + SQUARES_WAITS,
                     ids = AS_OUTPUT + walk_ids_cycles(m, 4), norm = columns_cycles(t, NORM) + NORM_WAITS;
        const int raw = !m->correction && !(t->w->m->config.biases & BIAS_ROUTER);
        s.words = 8.0 * t->same.blocks * GPU_TOKEN_COPIES * TILE_ROWS * ceil_of(m->n_experts, TILE_ROWS);
        s.setup_l2 += raw ? 0 : 1;
        s.setup_cycles += (raw ? fmax(ids, t->w->g->l2_cycles + squares) : squares + NORM_WAITS + ids) + CHOSEN +
                          fmin(place_cycles(t, gate), place_cycles(t, up)) * 4 / GPU_TOKEN_WARPS +
                          fmax(0, fmax(norm, WEIGH_EXPERTS) - t->w->g->memory_cycles);
        s.l2_bytes += s.words + parts;
    } else {
        s.early = first * ((double)mats[0]->tile_bytes + (double)mats[1]->tile_bytes) / d->per_tile / split;
        s.early_cycles = fmax(place_cycles(t, gate), place_cycles(t, up));
        count_norm(t, &s, &t->o);
    }
    stage(t, s);
}

static void add_down(struct token_walk *t, const struct mat *m, int n)
{
    struct timed_launch s = { .what = n > 1 ? "experts down" : "down", .part = TIMED_LINEAR,
                              .bytes = n * (double)m->size, .flop = n * product(m, 1), .done = 8 * n * product(m, 1),
                              .l2_bytes = n * (double)m->size, .setup_cycles = REDUCE };
    count_turns(t, &s, &t->down, &m, 1);
    count_collected(t, &s, &t->down, GPU_TURN_STEPS(m->type));
    if (!t->mixed) {                    /* there all turns do so */
        s.issue += (double)s.active * t->down.share * WEIGH;
        s.turn_cycles += WEIGH;
    }
    stage(t, s);
}

/* Shared memory of a block. */
static size_t shared_of(const struct walk *w, int table)
{
    const struct config *c = &w->m->config;
    struct gpu_token_room room;
    const int moe = c->ff[0] == FF_MOE, size = moe ? c->moe.intermediate_size : c->intermediate_size;
    const size_t dim = (size_t)c->head_dim, hidden = (size_t)c->hidden_size, att = (size_t)c->n_heads * dim,
                 stride = ((size_t)size + 63) / 64 * 64, mlp = (size_t)(moe ? c->moe.top_k : 1) * stride,
                 widest = hidden > att ? hidden : att,
                 split = gpu_token_split_bytes(dim, 2 * 16 * dim, c->n_heads / c->n_kv_heads);
    return gpu_token_shared(&room, table ? 2 * TABLE_SIZE : 0, hidden, widest > mlp ? widest : mlp, split,
                            moe ? gpu_choose_only_bytes(c->moe.n_experts, c->moe.top_k) : 0, moe ? c->moe.top_k : 1,
                            moe ? (c->moe.n_experts + 31) / 32 : 0);
}

int walk_one_token(struct walk *w)
{
    enum { OWN = 1024 };                /* shared memory that a block takes besides */
    const struct config *c = &w->m->config;
    if (!takes(w))
        return 0;
    const struct layer *l = &w->m->layers[0];
    const int moe = c->ff[0] == FF_MOE, n = moe ? c->moe.top_k : 1,
              blocks = w->g->n_sms < GPU_TOKEN_BLOCKS ? w->g->n_sms : GPU_TOKEN_BLOCKS;
    const struct mat *mats[3];
    mlp_of(w, 0, mats);
    const int steps = GPU_TURN_STEPS(l->o.w.type), mixed = is_mixed(w);
    struct token_walk t = { .w = w, .mixed = mixed,
                            .same = { .kernel = "one_token", .blocks = (unsigned)blocks, .threads = THREADS,
                                      .shared = shared_of(w, mixed || has_table(&l->o.w)) } };
    if (t.same.shared + OWN > (size_t)w->g->shared_bytes)
        return 0;
    for (int i = 0; i <= mixed; i++) {
        const char *kernel = mixed ? "one-token-mixed" : "one-token";
        const enum qtype type = !mixed ? l->o.w.type : i ? QT_M6 : QT_NL4;
        t.each[i] = walk_instructions(w, kernel, type, "", w->g->sm, &t.same.registers);
        t.products[i] = walk_instructions(w, kernel, type, "-products", w->g->sm, &t.same.registers);
    }
    t.qkv = gpu_turns_divide(l->q.w.n_tiles + l->k.w.n_tiles + l->v.w.n_tiles, n_steps(&l->q.w) / steps, blocks);
    t.o = gpu_turns_divide(l->o.w.n_tiles, n_steps(&l->o.w) / steps, blocks);
    t.up = gpu_turns_divide(n * mats[0]->n_tiles, n_steps(mats[0]) / steps, blocks);
    t.down = gpu_turns_divide(mats[2]->n_tiles, n * n_steps(mats[2]) / steps, blocks);
    for (int i = 0; i < c->n_layers; i++) {
        l = &w->m->layers[i];
        mlp_of(w, i, mats);
        add_qkv(&t, l, i == 0);
        add_attention(&t, i);
        add_o(&t, l, moe);
        add_up(&t, mats, moe ? &c->moe : NULL);
        add_down(&t, mats[2], n);
    }
    /* the sums, and the barrier after which the counters are reset */
    struct timed_launch last = { .what = "residual", .active = 1, .words = 1, .setup_l2 = 2,
                                 .setup_cycles = COLLECT_WAITS };
    stage(&t, last);
    w->normed = w->parts = 0;
    return 1;
}
