/* step_launches.c - list the launches of a step as gpu/backend/layers.c and step.c make them, with
 * the counts of gpu/kernels: grids, bytes, instructions and dependent loads.  Counts that have no
 * row in tests/gpu/code-budgets come from the comments at the heads of the kernels. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/time/walk.h"
#include "libcommon/model/arch.h"

void walk_add(struct walk *w, struct timed_launch l)
{
    struct timed_launches *out = w->out;
    if (out->n == out->room) {
        const int room = out->room ? 2 * out->room : 512;
        struct timed_launch *p = realloc(out->launch, (size_t)room * sizeof *p);
        if (!p) {
            out->failed = 1;
            return;
        }
        out->launch = p;
        out->room = room;
    }
    l.active = l.active && l.active < l.blocks ? l.active : l.blocks;
    l.follows = out->n > 0;
    out->bytes += l.bytes;
    out->launch[out->n++] = l;
}

double walk_instructions(struct walk *w, const char *kernel, enum qtype type, const char *end, const char *sm,
                         int *registers)
{
    char name[64];
    struct code_cost c = { 0 };
    snprintf(name, sizeof name, "%s-%s%s", kernel, qtype_info(type)->name, end);
    if (!code_cost_find(name, sm, &c))
        w->out->uncounted = qtype_info(type)->name;
    *registers = c.registers;
    return c.instructions;
}

/* ---- linear layers ---- */

/* Steps of a warp whose weights are loaded together, of n matrices (few_tokens.cuh). */
static int steps_at_once(const struct mat *m, int n)
{
    const int loads = loads_of(m) * n;
    return loads >= 8 ? 1 : loads >= 4 || m->type == QT_I8 ? 2 : 4;
}

static void add_matvec(struct walk *w, const char *what, const struct mat *const *m, int n_mats, int pair)
{
    const int by8 = w->n <= 8 ? 1 : 2, n = pair ? 2 : 1, loads = loads_of(m[0]) * n, steps = steps_at_once(m[0], n),
              warps = pair ? 8 : 16, sums = 4 * warps * n * 8 * by8 * PAD + (by_codes(m[0]) ? 16 : 0),
              table = has_table(m[0]) ? 2 * TABLE_SIZE : 0;
    struct timed_launch l = { .kernel = "matvec", .what = what, .part = TIMED_LINEAR, .threads = warps * 32,
                              .shared = (size_t)(sums > table ? sums : table) };
    char row[32];
    snprintf(row, sizeof row, "%s%s", !by_codes(m[0]) ? "" : m[0]->group_size == 32 ? "-32" : m[0]->group_size == 64
             ? "-64" : "-128", pair ? "-gate-up" : "");
    double each = walk_instructions(w, "matvec", m[0]->type, row, w->g->sm, &l.registers);
    each += each > 0 ? (by8 - 1) * 5 : 0;       /* 8 more tokens: 4 products and a load */
    for (int i = 0; i < n_mats; i++) {
        l.blocks += i < (pair ? 1 : n_mats) ? (unsigned)m[i]->n_tiles : 0;
        l.bytes += (double)m[i]->size;
        l.flop += product(m[i], w->n);
        l.done += 2.0 * m[i]->n_tiles * TILE_ROWS * m[i]->cols_padded * 8 * by8;
        l.issue += each * m[i]->n_tiles * n_steps(m[i]) * loads_of(m[i]);
    }
    const int tiles = (int)l.blocks, turn = warps * steps;
    const struct gpu_matvec_blocks d = pair ? (struct gpu_matvec_blocks){ tiles, 1 }
                                            : gpu_matvec_divide(tiles, n_steps(m[0]), w->g->n_sms);
    const double step_bytes = n * (double)m[0]->tile_bytes / n_steps(m[0]), divided = (tiles - d.whole) * d.parts,
                 part = (double)n_steps(m[0]) / d.parts;
    l.l2_bytes = l.bytes + (double)l.blocks * w->n * 2 * m[0]->cols_padded;
    l.blocks = (unsigned)(d.whole + divided);
    /* the first weights, while the codebook is written (256 cycles of stores); the fence after a
     * part, the count of parts, and the parts */
    l.setup_memory = 1;
    l.setup_l2 = divided > 0 ? 3 : 0;
    l.early = step_bytes * (d.whole * fmin(n_steps(m[0]), turn) + divided * fmin(part, turn)) / l.blocks;
    l.turns = ceil((d.whole ? (double)n_steps(m[0]) : part) / turn);
    l.turn_memory = 1;
    l.turn_l2 = 1;                      /* activations are loaded where they are multiplied */
    l.turn_cycles = each * steps * loads;
    walk_add(w, l);
}

/* pair: gate and up with their activation. */
static void add_hopper(struct walk *w, const char *what, const struct mat *const *all, int n_mats, int pair)
{
    enum { TOKENS = GPU_HOPPER_TOKENS,
           /* of a warpgroup: to store 128 rows; to exchange sums, at 128 bytes a cycle, and to
            * compute activations of 64 rows, with 44 instructions of a lane for each and a warp
            * that issues every other cycle */
           STORE_CYCLES = 3000, EXCHANGE_CYCLES = 2 * GPU_HOPPER_EXCHANGED / 128,
           ACTIVATION_ISSUE = 64 * TOKENS / 128 * 44 /* of a scheduler */, ACTIVATION_CYCLES = ACTIVATION_ISSUE * 2 };
    const struct mat *m = all[0];
    const int by_tokens = (int)ceil_of(w->n, TOKENS);
    const double end = pair ? EXCHANGE_CYCLES + ACTIVATION_CYCLES : STORE_CYCLES;
    int narrow = 0, wide = 0;
    for (int i = 0; i < n_mats; i++) {
        narrow += (int)ceil_of(all[i]->n_tiles, 4) * by_tokens;
        wide += (int)ceil_of(all[i]->n_tiles, 8) * by_tokens;
    }
    if (pair) {                         /* a tile has as many rows of both */
        narrow = (int)ceil_of(m->n_tiles, 2) * by_tokens;
        wide = (int)ceil_of(m->n_tiles, 4) * by_tokens;
    }
    const int groups = gpu_hopper_groups((int)m->type, narrow, wide, w->g->n_sms), tiles = groups == 1 ? narrow : wide;
    struct timed_launch l = { .kernel = "matmul_hopper", .what = what, .part = TIMED_LINEAR, .wgmma = 1,
                              .blocks = (unsigned)(tiles < w->g->n_sms ? tiles : w->g->n_sms),
                              .threads = GPU_HOPPER_THREADS(groups),
                              .shared = (size_t)(GPU_HOPPER_SHARED + (pair ? groups * GPU_HOPPER_EXCHANGED : 0)) };
    int registers;
    const double each = walk_instructions(w, "matmul-hopper", m->type, "", "90a", &registers),
                 turns = ceil((double)tiles / l.blocks), padded = turns * l.blocks;
    l.registers = registers;
    for (int i = 0; i < n_mats; i++) {
        l.bytes += (double)all[i]->size;
        l.flop += product(all[i], w->n);
    }
    l.done = padded * groups * 128 * TOKENS * 2.0 * m->cols_padded;
    l.issue = padded * groups * 4 * (each * n_steps(m) / 2 + (pair ? ACTIVATION_ISSUE : 0));
    l.l2_bytes = padded * (groups * 4 * (double)m->tile_bytes + 2.0 * TOKENS * m->cols_padded);
    l.setup_memory = 1;
    /* while the first warpgroup ends a tile, the second one multiplies the stages of its lead */
    const double stage = 64.0 * 128 * TOKENS * 2 * w->g->n_sms * w->g->clock / (w->g->tensor * w->g->wgmma_share),
                 hidden = groups == 2 ? stage * fmin(GPU_HOPPER_LEAD, n_steps(m) / 2.0) : 0;
    /* meanwhile the schedulers issue the instructions of both */
    const double both = groups == 2 && pair ? (ACTIVATION_ISSUE + each * fmin(GPU_HOPPER_LEAD, n_steps(m) / 2.0)) /
                                              w->g->issue_share : 0;
    l.setup_cycles = end + (turns - 1) * fmax(fmax(end, both) - hidden, 0);
    /* first weights of all warps: two steps */
    l.early = 2.0 * groups * 4 * (double)m->tile_bytes / n_steps(m);
    walk_add(w, l);
}

static void add_matmul(struct walk *w, const char *what, const struct mat *m)
{
    enum { WARPS = 4 };
    const int tokens = w->n <= 128 ? 64 : 128;
    struct timed_launch l = { .kernel = "matmul", .what = what, .part = TIMED_LINEAR,
                              .blocks = ceil_of(m->n_tiles, WARPS) * ceil_of(w->n, tokens), .threads = WARPS * 32,
                              .shared = (size_t)((has_table(m) ? TABLE_SIZE : 0) + 3 * 2 * tokens * 64) };
    double each = walk_instructions(w, "matmul", m->type, "-64", w->g->sm, &l.registers);
    each += each > 0 && tokens == 128 ? 40 : 0;         /* 64 more tokens: 32 products and 8 loads */
    l.bytes = (double)m->size;
    l.flop = product(m, w->n);
    l.done = (double)l.blocks * WARPS * TILE_ROWS * tokens * 2.0 * m->cols_padded;
    l.issue = (double)l.blocks * WARPS * each * n_steps(m) * loads_of(m);
    l.l2_bytes = (double)l.blocks * (WARPS * (double)m->tile_bytes + 2.0 * tokens * m->cols_padded);
    l.setup_memory = 1;
    l.setup_cycles = has_table(m) ? TABLE_TURN * TABLE_SIZE / 4 / l.threads : 0;
    l.turns = n_steps(m);
    l.ahead = 1;
    /* the first tile of tokens gets the weights from memory, the others from L2 */
    l.turn_memory = 1.0 / ceil_of(w->n, tokens);
    l.turn_l2 = 1 - l.turn_memory;
    l.turn_cycles = each * loads_of(m);
    walk_add(w, l);
}

/* Do blocks of split_hopper multiply these matrices? */
static int by_split_hopper(const struct walk *w, const struct mat *m)
{
    return w->wgmma && w->n > GPU_MATVEC_TOKENS && w->n <= GPU_SPLIT_TOKENS && (m->type == QT_NL4 || m->type == QT_I8);
}

/* L2_CYCLE: bytes that a multiprocessor loads from L2 in a cycle (assumed). */
enum split_end { SPLIT_STORE, SPLIT_MLP /* gate and up */, SPLIT_PARTS /* for the norm that follows */, L2_CYCLE = 64 };
static void add_split(struct walk *w, const char *what, const struct mat *const *m, int n_mats, enum split_end ends)
{
    enum { ACTIVATION = 30 /* instructions of an activation of a lane */, SHARED_CYCLE = 128 };
    const int tokens = w->n <= 32 ? 32 : 64, by_tokens = (int)ceil_of(w->n, tokens), table = has_table(m[0]),
              hopper = by_split_hopper(w, m[0]), wide = tokens == 32 && !hopper, pair = ends == SPLIT_MLP,
              /* activations of split_hopper with their barriers */
              ring = 2 * 1024 + 8 * tokens * 256,
              tiles = hopper ? GPU_SPLIT_HOPPER_TILES : GPU_SPLIT_TILES, warps = 2 * tiles, loads = loads_of(m[0]);
    int units = pair ? gpu_split_hopper_units(2 * m[0]->n_tiles) : 0;
    for (int i = 0; !pair && i < n_mats; i++)
        units += hopper ? gpu_split_hopper_units(m[i]->n_tiles) : gpu_split_units(m[i]->n_tiles);
    const int parts = hopper ? gpu_split_hopper_parts(units, n_steps(m[0])) : gpu_split_parts(units, n_steps(m[0])),
              stages = (int)ceil_of(n_steps(m[0]), GPU_SPLIT_STAGE), longest = (int)ceil_of(stages, parts);
    struct timed_launch l = { .kernel = hopper ? "split_hopper" : "matmul_split", .what = what, .part = TIMED_LINEAR,
                              .wgmma = hopper, .blocks = (unsigned)(units * parts * by_tokens), .threads = warps * 32,
                              .shared = (size_t)((table ? wide ? 2 * TABLE_SIZE : TABLE_SIZE : 0) +
                                                 (hopper ? ring : 2 * GPU_SPLIT_STAGE * tokens * 64)) };
    const double each = hopper ? walk_instructions(w, "split-hopper", m[0]->type, tokens == 32 ? "-32" : "-64", "90a",
                                              &l.registers)
                               : walk_instructions(w, "matmul-split", m[0]->type, tokens == 32 ? "-32" : "-64", w->g->sm,
                                              &l.registers),
                 sums = (double)l.blocks * tiles * TILE_ROWS * tokens * sizeof(float),
                 /* steps of a warp in all blocks: all parts take as long as the longest */
                 steps = (double)l.blocks * longest * GPU_SPLIT_STAGE * tiles;
    for (int i = 0; i < n_mats; i++) {
        l.bytes += (double)m[i]->size;
        l.flop += product(m[i], w->n);
    }
    l.done = (double)units * by_tokens * tiles * TILE_ROWS * tokens * 2.0 * m[0]->cols_padded;
    l.issue = steps * each * loads;
    l.l2_bytes = by_tokens * (l.bytes + 2.0 * units * tokens * m[0]->cols_padded) +
                 (ends == SPLIT_PARTS ? sums : parts > 1 ? 2 * sums : 0);
    /* of a step of a warp: look-ups of the codes, weights on their way through L1, a write of the
     * activations for all tiles, and reads of them: by the warp, or by two wgmma of four warps */
    l.shared_bytes = steps * ((table ? 16 * 128.0 : 0) + STEP_UNIT * loads + tokens * 64.0 / tiles +
                              tokens * 64.0 / (hopper ? 2 : 1));
    l.setup_memory = 1;
    /* the residual; the sums' fence and counter, and the first loads of sums.  The codebook is
     * written while the first weights are on their way */
    l.setup_l2 = ends != SPLIT_PARTS;
    l.alone_l2 = parts > 1 && ends != SPLIT_PARTS ? 3 : 0;
    /* half of the sums pass shared memory: warps of up give theirs to those of gate, lanes of
     * split_hopper exchange them, halves of a block of matmul_split exchange both halves' */
    l.setup_cycles = sums / l.blocks / SHARED_CYCLE *
                     (!hopper ? 2 : ends == SPLIT_MLP ? 1 : ends == SPLIT_PARTS ? 0 : 0.5);
    /* first weights of all warps: a stage, or half of one of i8 */
    if (hopper)
        l.early = fmin(longest, 1) * GPU_SPLIT_STAGE / loads * tiles * (double)m[0]->tile_bytes / n_steps(m[0]);
    /* the block that stores last loads the sums of all parts, two at a time */
    if (parts > 1 && ends != SPLIT_PARTS)
        l.alone_cycles = fmax(sums / l.blocks * parts / L2_CYCLE, (ceil(parts / 2.0) - 1) * w->g->l2_cycles);
    if (pair)
        l.setup_cycles += tiles / 2.0 * tokens * ACTIVATION / (4 * w->g->issue_share);
    l.turns = longest * (hopper ? loads : 1);
    l.ahead = 1;
    l.turn_memory = 1.0 / by_tokens;
    l.turn_l2 = 1 - l.turn_memory;
    l.turn_cycles = each * loads * GPU_SPLIT_STAGE / 2 / (hopper ? loads : 1);
    walk_add(w, l);
}

static void add_f32(struct walk *w, const char *what, const struct mat *const *m, int n_mats, int n, int n_splits)
{
    enum { WARPS = 8, TOKENS = 8, ROW = 33 };
    struct timed_launch l = { .kernel = "matmul_f32", .what = what, .part = TIMED_LINEAR, .threads = WARPS * 32,
                              .shared = 4 * WARPS * TOKENS * ROW, .registers = 128 };
    const int splits = n_splits ? n_splits : 1;
    for (int i = 0; i < n_mats; i++) {
        l.blocks += (unsigned)m[i]->n_tiles * ceil_of(n, TOKENS) * (unsigned)splits;
        l.bytes += (double)m[i]->size;
        l.l2_bytes += (double)m[i]->size * ceil_of(n, TOKENS);
        /* a step of a warp: for each of 32 columns a load and a product with each token */
        l.issue += (double)m[i]->n_tiles * n_steps(m[i]) * 32 * (n + 2.0 * ceil_of(n, TOKENS));
    }
    l.setup_l2 = 2;
    l.turns = ceil((double)n_steps(m[0]) / splits / WARPS);
    l.turn_memory = 1;
    l.turn_cycles = 32 * (TOKENS + 2);
    walk_add(w, l);
}

static int in_floats(const struct linear *l) { return l->w.type == QT_F32; }
static int by_matvec(const struct walk *w) { return w->n <= GPU_MATVEC_TOKENS; }
static int by_hopper(const struct walk *w) { return w->wgmma && w->n > GPU_HOPPER_TOKENS; }
static int by_split(const struct walk *w) { return !by_matvec(w) && w->n <= GPU_SPLIT_TOKENS; }
static int alike(const struct mat *a, const struct mat *b)
{
    return a->type == b->type && a->group_size == b->group_size && a->cols_padded == b->cols_padded;
}

/* Follows run_linear(). */
static void linear(struct walk *w, const char *what, const struct linear *const *to, int n)
{
    for (int i = 0; i < n; ) {
        const struct mat *m[GPU_MAX_MATS];
        const struct linear *first = to[i];
        const int exact = in_floats(first);
        int n_mats = 0;
        do
            m[n_mats++] = &to[i++]->w;
        while (i < n && (exact ? in_floats(to[i]) : alike(&to[i]->w, &first->w)));
        if (exact)
            add_f32(w, what, m, n_mats, w->n, 0);
        else if (by_split(w))
            add_split(w, what, m, n_mats, SPLIT_STORE);
        else if (by_matvec(w))
            add_matvec(w, what, m, n_mats, 0);
        else if (by_hopper(w))
            add_hopper(w, what, m, n_mats, 0);
        else
            for (int k = 0; k < n_mats; k++)
                add_matmul(w, what, m[k]);
    }
}

/* ---- rows ---- */

enum { ROWS_BLOCK = 256, SUM_CYCLES = 250 /* two barriers, shuffles and 16 loads */ };

/* plain: an RMS norm without a residual. */
static void norm(struct walk *w, const char *what, int n, int cols, int plain)
{
    enum { WIDE = 512 };
    const int fits = plain && GPU_NORM_TAKES(cols), threads = fits ? WIDE : ROWS_BLOCK;
    const double turns = ceil((double)cols / ROWS_BLOCK);
    struct timed_launch l = { .kernel = "norm", .what = what, .blocks = (unsigned)n, .threads = threads,
                              .shared = 32 * sizeof(float), .bytes = 4.0 * cols, .l2_bytes = 10.0 * n * cols,
                              .issue = (double)n * turns * ROWS_BLOCK / 32 * 20 };
    if (fits) {                         /* the weights come from memory while the row comes from L2 */
        l.setup_memory = 1;
        l.setup_cycles = SUM_CYCLES;
    } else {
        /* the loop over the weights waits for memory in each turn; the sum's loads overlap by
         * fours */
        l.setup_l2 = 1 + ceil(turns / 4);
        l.turns = turns;
        l.turn_memory = 1;
    }
    walk_add(w, l);
}

/* A norm of the kind that the model's layers have. */
static void model_norm(struct walk *w, const char *what, const struct norm *norm_of, int n, int cols)
{
    norm(w, what, n, cols, norm_of->present && w->m->config.norm != NORM_LAYER);
}

static void add_rows(struct walk *w, const char *kernel, const char *what, int n, int cols, double bytes, double l2)
{
    walk_add(w, (struct timed_launch){ .kernel = kernel, .what = what,
                                       .blocks = ceil_of(cols, ROWS_BLOCK) * (unsigned)n,
                                  .threads = ROWS_BLOCK, .bytes = bytes, .l2_bytes = bytes + l2, .setup_l2 = 2,
                                  .issue = (double)n * cols / 32 * 30 });
}

/* Let the norm that was added last add sums of parts to its rows: it loads those of four parts at
 * once. */
static void add_parts(struct walk *w)
{
    if (w->out->failed)
        return;
    struct timed_launch *t = &w->out->launch[w->out->n - 1];
    const double row = sizeof(float) * (double)w->m->config.hidden_size;
    t->kernel = "norm_parts";
    t->l2_bytes += row * w->n;
    /* the weights and the scales of rows are loaded before the launch before has ended */
    t->early = 2 * row;
    t->setup_l2 += ceil(w->parts / 4.0) - 1;
    t->setup_cycles += w->parts * row * fmax(1.0 / L2_CYCLE, w->n * w->g->clock / w->g->l2);
}

/* The norm of a layer's input, unless the launch before has computed it. */
static void input_norm(struct walk *w, const struct norm *norm_of)
{
    if (!w->normed)
        model_norm(w, "norm", norm_of, w->n, w->m->config.hidden_size);
    if (w->parts)
        add_parts(w);
    w->normed = 0;
    w->parts = 0;
}

/* Follows norm_after(), of a model that is on the device.  mixed: after the mixer. */
static const struct norm *norm_after(const struct walk *w, int index, int mixed)
{
    const struct config *c = &w->m->config;
    if (c->block != BLOCK_SEQUENTIAL)
        return NULL;
    if (mixed && c->ff[index] != FF_NONE)
        return &w->m->layers[index].mlp_norm;
    return index + 1 < c->n_layers && c->mixer[index + 1] != MIXER_NONE ? &w->m->layers[index + 1].attn_norm : NULL;
}

/* Does a norm that keeps its rows in registers follow? */
static int norm_follows(const struct walk *w, int index, int mixed)
{
    const struct config *c = &w->m->config;
    const struct norm *next = norm_after(w, index, mixed);
    return next && next->present && !next->b && c->norm != NORM_LAYER && GPU_NORM_TAKES(c->hidden_size);
}
/* Follows chooses_at_once(). */
static int chooses_at_once(const struct walk *w, const struct layer *l)
{
    return w->n <= GPU_MATVEC_TOKENS && l->router.w.type == QT_F32 &&
           (!w->m->config.moe.shared_gate || l->shared_router.w.type == QT_F32);
}
/* Follows router_norms(). */
static int router_norms(const struct walk *w, int index)
{
    const struct layer *l = &w->m->layers[index];
    return w->m->config.ff[index] == FF_MOE && w->n <= GPU_NORM_TOKENS && chooses_at_once(w, l) &&
           norm_follows(w, index, 1);
}
/* Follows norm_at_end(). */
static int norm_at_end(const struct walk *w, int index, int mixed)
{
    return w->n <= GPU_NORM_TOKENS && norm_follows(w, index, mixed) && !(mixed && router_norms(w, index));
}

/* Let the last block of the last launch norm the residual. */
static void norm_in_last(struct walk *w)
{
    const struct config *c = &w->m->config;
    if (w->out->failed)
        return;
    struct timed_launch *t = &w->out->launch[w->out->n - 1];
    /* a fence, the count of blocks, and rows one after the other.  With the first row come the
     * weights of the norm: from L2, where matvec's blocks have called for them, or from memory */
    const int called = strcmp(t->kernel, "matvec") == 0;
    t->alone_l2 += 2 + w->n - !called;
    t->alone_memory += !called;
    t->alone_cycles += w->n * SUM_CYCLES;
    t->bytes += 4.0 * c->hidden_size;
    t->l2_bytes += 10.0 * w->n * c->hidden_size;
    w->out->bytes += 4.0 * c->hidden_size;
    w->normed = 1;
}

/* The values that blocks of the last launch, by matvec, load to finish their sums: a residual from
 * L2, a bias from memory. */
static void wait_at_end(struct walk *w, const struct linear *l, int adds, int biased)
{
    if (w->out->failed || in_floats(l) || !by_matvec(w))
        return;
    struct timed_launch *t = &w->out->launch[w->out->n - 1];
    if (biased)                         /* the residual arrives before */
        t->setup_memory++;
    else if (adds)
        t->setup_l2++;
}

/* Follows add_residual() and leave_parts(). */
static void residual(struct walk *w, const char *what, const struct linear *l, const struct norm *post, int index,
                     int mixed)
{
    const struct mat *const m = &l->w;
    if (!post->present && by_split_hopper(w, m) && m->type == QT_NL4 && norm_follows(w, index, mixed)) {
        w->parts = gpu_split_hopper_parts(gpu_split_hopper_units(m->n_tiles), n_steps(m));
        add_split(w, what, &m, 1, SPLIT_PARTS);
        return;
    }
    linear(w, what, &l, 1);
    wait_at_end(w, l, !post->present, w->m->config.biases & (mixed ? BIAS_O : BIAS_DOWN));
    if (!post->present && !in_floats(l) && norm_at_end(w, index, mixed))
        norm_in_last(w);
    if (post->present)
        norm(w, "post norm", w->n, w->m->config.hidden_size, 0);
}

/* Follows run_mlp_up(). */
static void mlp_up(struct walk *w, const struct layer *l, int size)
{
    const int gated = w->m->config.gated;
    const struct linear *to[2] = { gated ? &l->gate : &l->up, gated ? &l->up : NULL };
    const int n = gated ? 2 : 1;
    const struct mat *const both[2] = { &to[0]->w, n == 2 ? &to[1]->w : NULL };
    const int split = n == 2 && by_split_hopper(w, both[0]) && both[0]->type == QT_NL4;
    const int hopper = n == 2 && by_hopper(w) && w->m->config.act == CONFIG_ACT_SILU;
    if (!in_floats(to[0]) && (by_matvec(w) || split || hopper) && !in_floats(&l->down) && !l->mlp_sub_norm.present &&
        (n == 1 || alike(both[0], both[1]))) {
        if (split)
            add_split(w, "gate up", both, n, SPLIT_MLP);
        else if (hopper)
            add_hopper(w, "gate up", both, n, 1);
        else
            add_matvec(w, "gate up", both, n, n == 2);
        return;
    }
    linear(w, "gate up", to, n);
    add_rows(w, "act_mul", "activation", w->n, size, 0, 10.0 * w->n * size);
    if (l->mlp_sub_norm.present)
        model_norm(w, "mlp norm", &l->mlp_sub_norm, w->n, size);
}

/* ---- mixtures of experts ---- */

/* The number of experts that n tokens choose, if all are equally likely. */
static double chosen(const struct moe *m, int n)
{
    return m->n_experts * (1 - pow(1 - (double)m->top_k / m->n_experts, n));
}

static int chooses_only(const struct walk *w)
{
    const struct moe *m = &w->m->config.moe;
    const float some = 0;
    return gpu_chooses_only(&(struct gpu_route){ .n = w->n, .n_experts = m->n_experts, .top_k = m->top_k,
                                                 .router = (int)m->router, .n_groups = m->n_groups,
                                                 .correction = m->correction ? &some : NULL });
}

/* Cycles of a block that chooses the experts of the only token by their ranks (calculated from 29
 * cycles for a load from shared memory, 4 for each 16 bytes of a lane, 25 for a shuffle, 30 for a
 * barrier, and issue slots). */
double walk_ids_cycles(const struct moe *m, int warps)
{
    enum { KEYS = 60, LISTS = 60 /* stores, and a barrier */, ROUND = 130 /* 32 keys against 32 */, BEST = 60 };
    const int lists = (int)ceil_of(m->n_experts, 32), more = (int)ceil_of(lists, warps) - 1;
    /* warps of a list load 8 times; the scores are computed meanwhile */
    const double ranks = fmax(170, 70 + 32.0 * lists),
                 scores = m->router == ROUTER_SOFTMAX ? 95 + 20.0 * lists : 0;
    return KEYS + fmax(ranks, scores) + LISTS + more * (KEYS + ROUND) +
           ROUND * GPU_CHOICE_COMPARISONS(m->n_experts, m->top_k) + BEST;
}

/* The same with the weights of the experts. */
static double choose_only_cycles(const struct moe *m)
{
    enum { BARRIER = 30, WEIGHT = 140, SHUFFLE = 25 };
    return walk_ids_cycles(m, GPU_CHOICE_WARPS) + BARRIER + WEIGHT + SHUFFLE * (m->top_k > 8 ? 5 : 3);
}

/* Cycles of a warp that chooses the experts of a token, one after the other: a reduction and a
 * vote, while lanes have the keys of up to 128 experts in registers, else two reductions, and the
 * winner's next best key from shared memory (calculated); before that scores and their sum, and
 * after it the weights.  Then the block counts the pairs. */
static double choose_cycles(const struct walk *w, int sort)
{
    const struct moe *m = &w->m->config.moe;
    const int n = m->top_k, few = m->n_experts <= 128;
    if (chooses_only(w))
        return choose_only_cycles(m);
    return 300 + (few ? 100 + 60.0 * n : 130.0 * n) + 200 + (!sort ? 0 : w->n == 1 ? 100 + 10.0 * n : 1000);
}

/* Router, choice and sort in one launch (route.cu). */
static void add_route(struct walk *w, const struct layer *l, int norms)
{
    enum { WARPS = 8 };
    const struct moe *m = &w->m->config.moe;
    const struct mat *const mats[2] = { &l->router.w, &l->shared_router.w };
    const int n_mats = m->shared_gate ? 2 : 1;
    const size_t choose = gpu_choice_bytes(w->n, m->n_experts, m->top_k, 1) + 16,
                 multiply = sizeof(float) * WARPS * (32 + 33) * (size_t)w->n;
    struct timed_launch t = { .kernel = "route", .what = "router", .threads = WARPS * 32,
                              .shared = multiply > choose ? multiply : choose };
    for (int i = 0; i < n_mats; i++) {
        t.blocks += (unsigned)mats[i]->n_tiles * (unsigned)GPU_SPLITS(n_steps(mats[i]));
        t.bytes += (double)mats[i]->size;
        t.issue += (double)mats[i]->n_tiles * n_steps(mats[i]) * (64 + 50.0 * w->n);
    }
    const double parts = 4.0 * w->n * (m->n_experts + 1) * GPU_SPLITS(n_steps(mats[0]));
    t.l2_bytes = t.bytes + 4.0 * w->n * mats[0]->cols * mats[0]->n_tiles + 2 * parts;
    /* weights and inputs; the fence after the parts; the count of blocks; the parts */
    t.setup_memory = 1;
    t.early = WARPS * STEP_WORDS * sizeof(float);
    t.setup_l2 = 3;
    t.setup_cycles = 64 + 150.0 * w->n + choose_cycles(w, 1) * ceil(w->n / 8.0);
    if (norms) {                        /* all rows, of which each block needs all columns */
        const double row = 4.0 * w->m->config.hidden_size;
        t.bytes += row;
        t.l2_bytes += (t.blocks + 2.0) * w->n * row;
        t.setup_l2 += w->n - 1;
        t.setup_cycles += w->n * SUM_CYCLES;
    }
    walk_add(w, t);
}

static void route(struct walk *w, const struct layer *l, int index)
{
    const struct moe *m = &w->m->config.moe;
    const int few = w->n <= MAX_GRAPH_TOKENS, sort = w->n <= GPU_MATVEC_TOKENS;
    enum { WARPS = 8 };
    const struct mat *mats[2] = { &l->router.w, &l->shared_router.w };
    if (chooses_at_once(w, l)) {
        add_route(w, l, router_norms(w, index));
        return;
    }
    add_f32(w, "router", mats, m->shared_gate ? 2 : 1, w->n, few ? (int)GPU_SPLITS(n_steps(&l->router.w)) : 0);
    walk_add(w, (struct timed_launch){ .kernel = "choose", .what = "router", .blocks = sort ? 1 : ceil_of(w->n, WARPS),
                                  .threads = WARPS * 32,
                                  .shared = gpu_choice_bytes(w->n, m->n_experts, m->top_k, sort),
                                  .l2_bytes = 4.0 * w->n * m->n_experts, .setup_l2 = 3,
                                  .setup_cycles = choose_cycles(w, sort) });
    if (!sort)
        walk_add(w, (struct timed_launch){ .kernel = "sort", .what = "router", .blocks = ceil_of(m->n_experts, WARPS),
                                      .threads = WARPS * 32, .shared = gpu_sort_bytes(m->n_experts),
                                      .l2_bytes = 4.0 * w->n * m->top_k * ceil_of(m->n_experts, WARPS), .setup_l2 = 3,
                                      .setup_cycles = 1000.0 + 4.0 * w->n * m->top_k });
}

/* Experts of few tokens: gate and up, or down. */
static void expert_matvec(struct walk *w, const char *what, const struct mat *const *m, int n)
{
    enum { WARPS = 8, PER_SM = 2 };
    const struct moe *moe = &w->m->config.moe;
    const int most = gpu_most_tiles(w->n * moe->top_k, moe->n_experts, GPU_EXPERT_FEW),
              teams = n == 2 ? 1 : 2, wanted = (int)ceil_of(PER_SM * w->g->n_sms, m[0]->n_tiles),
              longest = (int)ceil_of(most, teams), rows = wanted < longest ? wanted : longest,
              loads = loads_of(m[0]) * n, steps = steps_at_once(m[0], n), adds = w->n <= GPU_MATVEC_TOKENS;
    const double tiles = chosen(moe, w->n), groups = ceil(tiles / teams), passes = ceil(groups / rows);
    struct timed_launch l = { .kernel = "expert_matvec", .what = what, .part = TIMED_LINEAR,
                              .blocks = (unsigned)(m[0]->n_tiles * rows), .threads = teams * WARPS * 32,
                              .active = (unsigned)(m[0]->n_tiles * (groups < rows ? groups : rows)),
                              .shared = (size_t)((has_table(m[0]) ? 2 * TABLE_SIZE : 0) +
                                                 4 * teams * WARPS * n * GPU_EXPERT_FEW * PAD) };
    const double each = walk_instructions(w, "expert-matvec", m[0]->type, n == 2 ? "-gate-up" : "", w->g->sm, &l.registers);
    const double results = n == 1 && adds ? 4.0 * w->n * moe->top_k * m[0]->rows : 0;
    for (int i = 0; i < n; i++) {
        l.bytes += tiles * (double)m[i]->size;
        l.flop += product(m[i], w->n * moe->top_k);
        l.done += tiles * 2.0 * m[i]->n_tiles * TILE_ROWS * m[i]->cols_padded * GPU_EXPERT_FEW;
        l.issue += each * tiles * m[i]->n_tiles * n_steps(m[i]) * loads_of(m[i]);
    }
    l.l2_bytes = l.bytes + tiles * m[0]->n_tiles * 2.0 * m[0]->cols_padded + 2 * results;
    /* the first tile, of down before its turn; the first weights, while the codebook is written and
     * pairs are read */
    if (n == 2 || !w->m->config.gated)
        l.setup_l2 = 1;
    else
        l.early_l2 = 1;
    l.setup_memory = 1;
    if (n == 1 && w->m->config.gated)
        l.early = fmin(n_steps(m[0]), WARPS * steps) * teams * (double)m[0]->tile_bytes / n_steps(m[0]);
    if (results > 0)    /* the fence after the results; the count of blocks; choices and results */
        l.setup_l2 += 2 + ceil((double)w->n / WARPS) * ceil(moe->top_k / 8.0);
    l.turns = passes * ceil((double)n_steps(m[0]) / (WARPS * steps));
    l.turn_memory = l.turn_l2 = 1;
    l.turn_cycles = each * steps * loads;
    walk_add(w, l);
}

/* Experts of many tokens. */
static void expert_matmul(struct walk *w, const char *what, const struct mat *const *m, int n)
{
    enum { WARPS = 4 };
    const struct moe *moe = &w->m->config.moe;
    const int pairs = w->n * moe->top_k, per_tile = pairs / 32 < moe->n_experts ? 16 : 64;
    const double experts = chosen(moe, w->n), tiles = experts * ceil(pairs / experts / per_tile);
    const unsigned by_rows = ceil_of(m[0]->n_tiles, WARPS / n);
    struct timed_launch l = { .kernel = "expert_matmul", .what = what, .part = TIMED_LINEAR,
                              .blocks = by_rows * (unsigned)gpu_most_tiles(pairs, moe->n_experts, per_tile),
                              .threads = WARPS * 32, .active = by_rows * (unsigned)ceil(tiles),
                              .shared = (size_t)((has_table(m[0]) ? TABLE_SIZE : 0) + 3 * 2 * per_tile * 64) +
                                        (size_t)per_tile * sizeof(int) };
    const double each = walk_instructions(w, "expert-matmul", m[0]->type, per_tile == 16 ? "-16" : "-64", w->g->sm,
                                     &l.registers);
    for (int i = 0; i < n; i++) {
        l.bytes += experts * (double)m[i]->size;
        l.flop += product(m[i], pairs);
    }
    l.done = tiles * by_rows * WARPS * TILE_ROWS * per_tile * 2.0 * m[0]->cols_padded;
    l.issue = tiles * by_rows * WARPS * each * n_steps(m[0]) * loads_of(m[0]);
    l.l2_bytes = tiles * by_rows * (WARPS * (double)m[0]->tile_bytes + 2.0 * per_tile * m[0]->cols_padded);
    l.setup_memory = 1;
    l.setup_l2 = 3;
    l.setup_cycles = has_table(m[0]) ? TABLE_TURN * TABLE_SIZE / 4 / l.threads : 0;
    l.turns = n_steps(m[0]);
    l.ahead = 1;
    l.turn_memory = 1;
    l.turn_cycles = each * loads_of(m[0]);
    walk_add(w, l);
}

static void expert_floats(struct walk *w, const char *what, const struct mat *const *m, int n)
{
    enum { WARPS = 8, ROW = 33 };
    const struct moe *moe = &w->m->config.moe;
    const int most = gpu_most_tiles(w->n * moe->top_k, moe->n_experts, GPU_EXPERT_FEW);
    const double tiles = chosen(moe, w->n);
    struct timed_launch l = { .kernel = "expert_f32", .what = what, .part = TIMED_LINEAR,
                              .blocks = (unsigned)(m[0]->n_tiles * most), .threads = WARPS * 32,
                              .active = (unsigned)ceil(m[0]->n_tiles * (tiles < most ? tiles : most)),
                              .shared = (size_t)n * 4 * WARPS * GPU_EXPERT_FEW * ROW, .registers = 128 };
    for (int i = 0; i < n; i++) {
        l.bytes += tiles * (double)m[i]->size;
        l.issue += tiles * m[i]->n_tiles * n_steps(m[i]) * 32 * (GPU_EXPERT_FEW + 2.0);
    }
    l.l2_bytes = l.bytes;
    l.setup_l2 = 3;
    l.turns = n * ceil((double)n_steps(m[0]) / WARPS);
    l.turn_memory = 1;
    l.turn_cycles = 32 * (GPU_EXPERT_FEW + 2);
    walk_add(w, l);
}

/* Follows run_mixture(), with all experts on the device. */
static void mixture(struct walk *w, const struct layer *l, int index)
{
    const struct config *c = &w->m->config;
    const struct expert *x = l->experts;
    const struct mat *up[2] = { &x->gate.w, &x->up.w }, *down = &x->down.w;
    const int floats = up[0]->type == QT_F32 || down->type == QT_F32 || up[0]->type != up[1]->type ||
                       up[0]->tile_bytes != up[1]->tile_bytes;
    void (*const run)(struct walk *, const char *, const struct mat *const *, int) =
        floats ? expert_floats : by_matvec(w) ? expert_matvec : expert_matmul;
    route(w, l, index);
    if (c->moe.shared_size) {
        mlp_up(w, l, c->moe.shared_size);
        linear(w, "down", (const struct linear *const[]){ &l->down }, 1);
    }
    run(w, "experts up", up, 2);
    run(w, "experts down", &down, 1);
    if (floats || w->n > GPU_MATVEC_TOKENS)
        add_rows(w, "expert_sum", "experts", w->n, c->hidden_size, 0,
                 4.0 * w->n * c->hidden_size * (c->moe.top_k + 2));
    else if (!l->mlp_post_norm.present && norm_at_end(w, index, 0))
        norm_in_last(w);
    if (l->mlp_post_norm.present)
        norm(w, "post norm", w->n, c->hidden_size, 0);
}

static void feed_forward(struct walk *w, const struct layer *l, int index)
{
    if (w->m->config.ff[index] == FF_MOE) {
        mixture(w, l, index);
        return;
    }
    mlp_up(w, l, config_mlp_size(&w->m->config, index));
    residual(w, "down", &l->down, &l->mlp_post_norm, index, 0);
}

/* ---- attention ---- */

/* Follows gpu_attn_prepares(). */
static int prepares_at_once(const struct walk *w)
{
    const struct config *c = &w->m->config;
    return w->n == 1 && !w->n_tiles && c->n_heads / c->n_kv_heads <= GPU_ATTN_GROUP;
}

/* Follows attn_split_bytes(); copied: with the keys and values of a split. */
enum { SPLIT_THREADS = 256 };
static size_t split_room(int group, int dim, int copied)
{
    const size_t sums = sizeof(float) * (size_t)(SPLIT_THREADS / (dim / 8) * group * dim),
                 copy = 4 * (size_t)dim * GPU_SPLIT;
    return sizeof(float) * (size_t)(group * (dim + GPU_SPLIT) + (copied ? 2 * dim : 0)) +
           (copied && copy > sums ? copy : sums);
}

static void attend_decode(struct walk *w, int index)
{
    enum { AT_ONCE = 8, WARPS = SPLIT_THREADS / 32, PREPARE_CYCLES = 200 };
    const struct config *c = &w->m->config;
    const int share = c->n_heads / c->n_kv_heads, dim = c->head_dim, prepares = prepares_at_once(w),
              most = gpu_attn_group(share, 1, 0),
              divides = !prepares || split_room(most / 2, dim, 1) <= GPU_ATTN_COPIED,
              group = gpu_attn_group(share, c->n_kv_heads * w->splits * w->n, divides ? w->g->n_sms : 0),
              copied = prepares && split_room(group, dim, 1) <= GPU_ATTN_COPIED,
              rows = SPLIT_THREADS / (dim / 8), n = walk_seen(w, index), in_split = n < GPU_SPLIT ? n : GPU_SPLIT,
              n_splits = (int)ceil_of(n, GPU_SPLIT);
    const unsigned passes = ceil_of(share, group), heads = (unsigned)c->n_kv_heads * passes;
    const double kv = 4.0 * n * dim * c->n_kv_heads * w->n_seqs;
    /* each block stores its sums, and the last one of its heads reads those of all splits */
    const double sums = 4.0 * w->n * c->n_heads * n_splits * (dim + 2);
    /* the only token: each block prepares the queries, and the newest one the key and value */
    const double raw = prepares ? 4.0 * dim * (c->n_heads * n_splits + 4.0 * c->n_kv_heads * passes) : 0;
    char name[32];
    struct code_cost code = { 128, 0 };
    snprintf(name, sizeof name, "attn-split-f16-4%s", copied ? "-copied" : "");
    code_cost_find(name, w->g->sm, &code);      /* with fewer heads it has about as many registers */
    code.registers = group > 4 ? 232 : code.registers;
    struct timed_launch l = {
        .kernel = "attn_split", .what = "attention", .part = TIMED_ATTENTION,
        .blocks = (unsigned)w->splits * heads * (unsigned)w->n, .threads = SPLIT_THREADS,
        .active = (unsigned)n_splits * heads * (unsigned)w->n_seqs, .registers = code.registers,
        .shared = split_room(group, dim, copied), .bytes = kv, .l2_bytes = kv * passes + 2 * sums + raw,
        /* for an element of a key or value a product with each head, and half an instruction to
         * convert it */
        .issue = kv / 2 * passes * (group + 0.5) / 32,
        .setup_cycles = prepares ? PREPARE_CYCLES : 0,
        /* before the wait for the launch before: the row, its position and table, the block */
        .early_l2 = 3,
        /* the fence after the sums and the count of blocks; the ends and sums of the first splits,
         * and of others */
        .alone_l2 = (n_splits > 1 ? 2 : 0) + ceil((double)n_splits / AT_ONCE) };
    if (copied) {                       /* the copies, of which the raw queries are no part */
        l.early = kv * passes / l.active;
        l.setup_memory = 1;
        l.issue += kv * passes / STEP_UNIT * 8;
        l.shared_bytes = kv * passes + 8.0 * l.active * rows * group * dim;
    } else {                            /* the queries; keys, and then values */
        l.setup_l2 = 1;
        l.turns = ceil(in_split / 16.0 / WARPS) * ceil(dim / 16.0 / AT_ONCE) +
                  ceil((double)in_split / rows / AT_ONCE);
        l.turn_memory = 1;
    }
    walk_add(w, l);
}

static void attend_prompt(struct walk *w, int index)
{
    enum { WARPS = 4, MATRICES = 512 /* bytes of an ldmatrix */ };
    /* instructions that masks add to a tile, of those without masks: heads of 128, sm_90, with the
     * code for caps and slopes */
    const double MASKS = 1.6;
    const struct config *c = &w->m->config;
    const struct timed_gpu *g = w->g;
    const int dim = c->head_dim <= 64 ? 64 : c->head_dim <= 128 ? 128 : 256, strips = dim <= 128 ? 2 : 1,
              tile = WARPS * 16 * strips, keys = dim <= 64 ? 64 : 32, n = w->n, before = w->s->context - n,
              window = w->m->config.window[index];
    double pairs = 0, key_tiles = 0, edges = 0;
    for (int t = 0; t < n; t += tile) {
        const int q = n - t < tile ? n - t : tile, last = before + t + q;
        const int first = window && before + t + 1 > window ? (before + t + 1 - window) / keys * keys : 0;
        key_tiles += ceil((double)(last - first) / keys);
        /* tiles with masks: at the diagonal, and where the windows of the queries begin */
        edges += (1 + (first > 0)) * ceil((double)q / keys);
        for (int i = 0; i < q; i++)
            pairs += window && before + t + i + 1 > window ? window : before + t + i + 1;
    }
    char name[32];
    struct code_cost code = { 255, 0 };
    snprintf(name, sizeof name, "attn-prefill-%d", dim);
    if (!code_cost_find(name, g->sm, &code))
        w->out->uncounted = "attention";
    /* of a turn, which is a tile of positions; products: of a warp */
    const double products = 2.0 * strips * (dim / 16) * (keys / 8), product_flop = 4096,
                 product_cycles = product_flop / (g->tensor * g->mma_share / (4 * g->n_sms * g->clock)),
                 matrices = (double)strips * (dim / 16) + 2.0 * (dim / 16) * (keys / 16), kv = 4.0 * keys * dim,
                 turns = key_tiles * c->n_heads;
    walk_add(w, (struct timed_launch){
        .kernel = "attn_prefill", .what = "attention", .part = TIMED_ATTENTION,
        .blocks = (unsigned)(w->n_tiles * c->n_heads), .threads = WARPS * 32, .registers = code.registers,
        .shared = (size_t)(tile * dim * 2 + dim * keys * 2 + keys * dim * 2),
        .bytes = 4.0 * walk_seen(w, index) * c->head_dim * c->n_kv_heads,
        .flop = 4.0 * pairs * c->head_dim * c->n_heads,
        .done = turns * WARPS * products * product_flop, .l2_bytes = key_tiles * keys * 4.0 * c->head_dim * c->n_heads,
        .issue = (key_tiles + MASKS * edges) * c->n_heads * WARPS * code.instructions,
        .shared_bytes = turns * (WARPS * matrices * MATRICES + kv), .exps = turns * keys * tile,
        .setup_l2 = 4, .turns = key_tiles / w->n_tiles, .turn_l2 = 1, .ahead = 1,
        /* a warp multiplies, and then computes weights */
        .turn_cycles = products * product_cycles + (code.instructions - products) / g->issue_share });
}

static void attention(struct walk *w, const struct layer *l, int index)
{
    enum { WARPS = 4 };
    const struct config *c = &w->m->config;
    const int nq = c->n_heads * c->head_dim, nk = c->n_kv_heads * c->head_dim, heads = c->n_heads + 2 * c->n_kv_heads;
    if (c->qk_norm == QK_NORM_FULL) {
        norm(w, "q norm", w->n, nq, 1);
        norm(w, "k norm", w->n, nk, 1);
    }
    if (!prepares_at_once(w)) {
        const int parts = w->qkv_parts ? w->qkv_parts : 1;
        walk_add(w, (struct timed_launch){ .kernel = w->qkv_parts ? "prepare_parts" : "prepare", .what = "attention",
                                      .blocks = ceil_of(heads, WARPS) * (unsigned)w->n, .threads = WARPS * 32,
                                      .shared = sizeof(float) * WARPS * (size_t)c->head_dim, .bytes = 4.0 * nk * w->n,
                                      .l2_bytes = 4.0 * w->n * ((1.0 + parts) * nq + 2.0 * (1 + parts) * nk),
                                      .issue = (double)w->n * (nq + 2.0 * nk) / 32 * (37 + 3 * parts),
                                      .setup_l2 = 4 + ceil(parts / 4.0) });
        w->qkv_parts = 0;
    }
    if (w->n_tiles)
        attend_prompt(w, index);
    else
        attend_decode(w, index);
    if (l->attn_sub_norm.present)
        model_norm(w, "attention norm", &l->attn_sub_norm, w->n, nq);
}

/* ---- a step ---- */

/* Follows leave_qkv(). */
static int leaves_qkv(const struct walk *w, const struct mat *const *m)
{
    const struct config *c = &w->m->config;
    return by_split_hopper(w, m[0]) && m[0]->type == QT_NL4 && alike(m[1], m[0]) && alike(m[2], m[0]) &&
           !c->attn_gate && c->clip_qkv <= 0 && c->qk_norm != QK_NORM_FULL;
}

static void mixer(struct walk *w, const struct layer *l, int index)
{
    const struct linear *const qkv[3] = { &l->q, &l->k, &l->v }, *const gate = &l->q_gate;
    const struct mat *const m[3] = { &l->q.w, &l->k.w, &l->v.w };
    if (leaves_qkv(w, m)) {
        const int units = gpu_split_hopper_units(m[0]->n_tiles) + gpu_split_hopper_units(m[1]->n_tiles) +
                          gpu_split_hopper_units(m[2]->n_tiles);
        w->qkv_parts = gpu_split_hopper_parts(units, n_steps(m[0]));
        add_split(w, "qkv", m, 3, SPLIT_PARTS);
    } else {
        linear(w, "qkv", qkv, 3);
    }
    wait_at_end(w, &l->v, 0, w->m->config.biases & BIAS_QKV);
    if (w->m->config.attn_gate)
        linear(w, "gate", &gate, 1);
    attention(w, l, index);
}

/* Follows run_first() and run_second(). */
static void layer(struct walk *w, int index)
{
    const struct config *c = &w->m->config;
    const struct layer *l = &w->m->layers[index];
    input_norm(w, &l->attn_norm);
    if (c->block == BLOCK_PARALLEL2)
        model_norm(w, "norm", &l->mlp_norm, w->n, c->hidden_size);
    mixer(w, l, index);
    if (c->block == BLOCK_SEQUENTIAL)
        residual(w, "o", &l->o, &l->attn_post_norm, index, 1);
    else
        feed_forward(w, l, index);
    if (c->block != BLOCK_SEQUENTIAL) {
        residual(w, "o", &l->o, &l->attn_post_norm, index, 1);
    } else if (c->ff[index] != FF_NONE) {
        w->normed |= router_norms(w, index);
        input_norm(w, &l->mlp_norm);
        feed_forward(w, l, index);
    }
}

static void begin(struct walk *w)
{
    const struct config *c = &w->m->config;
    const struct mat *m = &w->m->embed.w;
    struct timed_launch embed = { .kernel = "embed", .what = "embedding",
                                  .blocks = (unsigned)w->n * (unsigned)(1 + c->n_ropes), .threads = 256,
                                  .bytes = (double)w->n * (double)m->tile_bytes / TILE_ROWS, .setup_l2 = 1,
                                  .l2_bytes = 4.0 * w->n * c->hidden_size, .setup_memory = 2 };
    if (c->n_ropes) {                   /* sines in double take longer than the rows */
        embed.setup_memory = 0;
        embed.setup_l2 = 2;
        embed.setup_cycles = 1000;
    }
    walk_add(w, embed);
    if (w->m->embed_norm.present)
        model_norm(w, "embedding norm", &w->m->embed_norm, w->n, c->hidden_size);
}

/* The logits of n tokens, and a token drawn from each as the most likely one. */
static void end(struct walk *w, int n)
{
    enum { AT_ONCE = 8 /* loads of a thread */, REDUCE = 250 };
    const struct config *c = &w->m->config;
    const struct linear *head = &w->m->head;
    model_norm(w, "final norm", &w->m->final_norm, n, c->hidden_size);
    w->n = n;
    linear(w, "head", &head, 1);
    const int parts = gpu_sample_parts(n, c->vocab_size), threads = GPU_SAMPLE_THREADS(c->vocab_size);
    const double bytes = 4.0 * c->vocab_size / parts, turns = ceil(bytes / (4.0 * AT_ONCE * threads));
    /* the draw comes with the first logits; the fence after a part, the count, the parts */
    walk_add(w, (struct timed_launch){ .kernel = "sample", .what = "sample", .blocks = (unsigned)(n * parts),
                                  .threads = threads, .shared = GPU_SAMPLE_ROOM, .l2_bytes = 4.0 * n * c->vocab_size,
                                  .setup_cycles = REDUCE, .turns = turns, .turn_l2 = 1,
                                  .turn_cycles = bytes / turns / L2_CYCLE, .alone_l2 = parts > 1 ? 3 : 0,
                                  .alone_cycles = parts > 1 ? 60 : 0 });
}

/* The reason why the list of launches would be wrong; NULL: none. */
static const char *beyond(const struct model *m)
{
    const struct config *c = &m->config;
    for (int i = 0; i < c->n_layers; i++)
        if (c->mixer[i] != MIXER_ATTENTION)
            return "layers without plain attention";
    return c->embed_size != c->hidden_size ? "an embedding of another width than the layers" : config_beyond(
        c, FEATURE_EXPERTS | FEATURE_SINKS | FEATURE_GATES | FEATURE_VARIANTS);
}

static void step_of(struct walk *w)
{
    const struct timed_step *s = w->s;
    const int dim = w->m->config.head_dim, prompt = s->n_tokens > 0;
    int splits = (s->context + GPU_SPLIT - 1) / GPU_SPLIT, padded = 1;
    w->n_seqs = prompt ? s->n_tokens : s->n_seqs;
    w->n = w->n_seqs;
    w->wgmma = s->wgmma && w->g->wgmma_share > 0;
    if (!prompt && w->n <= MAX_GRAPH_TOKENS) {          /* pad_decode() */
        while (padded < w->n)
            padded *= 2;
        w->n = padded;
        for (padded = 1; padded < splits; )
            padded *= 2;
        splits = padded;
    }
    w->splits = splits;
    w->n_tiles = prompt && s->n_tokens >= TILE_TOKENS && dim % 16 == 0
                     ? (int)ceil_of(s->n_tokens, GPU_ATTN_TILE(dim)) : 0;
}

int timed_launches(const struct model *m, const struct timed_gpu *g, const struct timed_step *s,
                   struct timed_launches *out, struct err *e)
{
    struct walk w = { .m = m, .g = g, .s = s, .out = out };
    const char *why = beyond(m);
    *out = (struct timed_launches){ 0 };
    if (why)
        return err_set(e, ERR_UNSUPPORTED, "%s: the model of time has no counts for %s", m->config.arch, why);
    step_of(&w);
    out->n_tokens = w.n;
    begin(&w);
    const int one = walk_one_token(&w);
    for (int i = 0; !one && i < m->config.n_layers; i++)
        layer(&w, i);
    end(&w, s->n_tokens ? 1 : w.n);
    return out->failed ? err_nomem(e, "the list of launches") : 0;
}

void timed_launches_release(struct timed_launches *l)
{
    free(l->launch);
    *l = (struct timed_launches){ 0 };
}
