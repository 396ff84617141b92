/* step.c - the step on a device: the host fills one pinned buffer per step (tokens, positions,
 * KV tables) and waits once, for the drawn tokens or for the logits.  A step that is begun while
 * the previous one runs reads its tokens on the device, so the host need not wait between them.
 *
 * Steps that only decode are padded to 1, 2, 4 .. 64 tokens, and from the second of each kind on
 * replayed as graphs, unless memory for graphs runs out.  If the CPU backend or another device runs
 * the layers before its own, it gets their hidden states once per step.  If it has only a window of
 * its layers (device_weights.h), no step is recorded. */
#include "gpu/backend/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/cpu/cpu.h"

/* ---- open and close ---- */

static void close_graphs(struct gpu_backend *b)
{
    for (int i = 0; i < N_BUCKETS; i++)
        for (int j = 0; j < MAX_SPLIT_BITS; j++) {
            if (b->graph[i][j])
                gpu_graph_close(b->g, b->graph[i][j]);
            b->graph[i][j] = NULL;
            b->seen[i][j] = 0;
        }
}

void rank_close(struct gpu_backend *b)
{
    if (!b)
        return;
    if (b->g) {
        close_graphs(b);
        memory_close(b);
        gpu_close(b->g);
    }
    tp_model_close(b->tp);
    free(b);
}

struct gpu_backend *rank_open(const struct model *m, const struct backend_options *o, struct err *e)
{
    struct gpu_backend *b = calloc(1, sizeof *b);
    char layers[48] = "", experts[48] = "";
    if (!b) {
        err_nomem(e, "gpu backend");
        return NULL;
    }
    b->m = m;
    b->o = *o;
    b->begun_ns = clock_ns();
    if (memory_part(b, e) < 0) {
        rank_close(b);
        return NULL;
    }
    b->g = gpu_open(o->device, o->debug_sync, e);
    b->context_ns = clock_ns();
    if (b->g && o->no_dependent_launches)
        gpu_dependent_launches(b->g, 0);
    if (!b->g || memory_open(b, e) < 0) {
        rank_close(b);
        return NULL;
    }
    if (b->host_layers)
        snprintf(layers, sizeof layers, ", %d of %d layers", b->plan.n_layers, m->config.n_layers);
    if (has_host_experts(b))
        snprintf(experts, sizeof experts, ", %d of %d experts", b->n_experts, m->config.moe.n_experts);
    snprintf(b->name, sizeof b->name, "%s %.100s%s%s%s%s%s%s%s", gpu_kind, b->plan.name, layers, experts, b->exact ? ", exact" : "",
             o->strict ? ", strict" : "", o->act_codes ? ", " : "",
             o->act_codes ? act_codes_name(o->act_codes) : "", o->act_codes ? " activations" : "");
    return b;
}

/* ---- a step ---- */

int rank_check(const struct gpu_backend *b, const struct batch *batch, int n_follow, size_t *n_tables, struct err *e)
{
    const struct config *c = &b->m->config;
    int64_t n_tokens = 0, n_logits = 0;
    *n_tables = 0;
    for (int i = 0; i < batch->n_items; i++) {
        const struct batch_item *it = &batch->items[i];
        if (it->n_tokens < 1 || it->pos < 0 || it->n_logits < 0 || it->n_logits > it->n_tokens || it->n_hidden < 0 ||
            it->n_hidden > it->n_tokens || it->n_tokens > b->o.max_tokens)
            return err_set(e, ERR_SHAPE, "batch item %d: %d tokens at %d, %d logits, %d hidden states", i, it->n_tokens,
                           it->pos, it->n_logits, it->n_hidden);
        if (config_state_bytes(c) && (it->state < 0 || it->state >= b->o.n_states))
            return err_set(e, ERR_SHAPE, "batch item %d: state %d, expected 0 to %d", i, it->state, b->o.n_states - 1);
        if ((int64_t)it->pos + it->n_tokens > (int64_t)b->max_splits * GPU_SPLIT ||
            (c->max_len > 0 && (int64_t)it->pos + it->n_tokens > c->max_len))
            return err_set(e, ERR_LIMIT, "%lld tokens, but there is memory and a model for %lld",
                           (long long)it->pos + it->n_tokens,
                           c->max_len > 0 ? (long long)c->max_len : (long long)b->max_splits * GPU_SPLIT);
        if (!it->tokens && (it->n_tokens != 1 || it->follows < 0 || it->follows >= n_follow))
            return err_set(e, ERR_SHAPE, "batch item %d: %d tokens of row %d of the step before, which has %d", i,
                           it->n_tokens, it->follows, n_follow);
        for (int t = 0; it->tokens && t < it->n_tokens; t++)
            if (it->tokens[t] < 0 || it->tokens[t] >= c->vocab_size)
                return err_set(e, ERR_SHAPE, "token %d is outside the vocabulary of %d", it->tokens[t], c->vocab_size);
        const int blocks = (it->pos + it->n_tokens - 1) / KV_BLOCK + 1;
        for (int p = 0; p < blocks; p++)
            if (it->table[p] < 0 || it->table[p] >= b->o.n_blocks)
                return err_set(e, ERR_SHAPE, "batch item %d: KV block %d, expected 0 to %d", i, it->table[p],
                               b->o.n_blocks - 1);
        const int in_window = it->pos - config_window(c, 0) + 1, in_tail = kv_tail_from(it->pos),
                  seen = in_tail < in_window ? in_tail : in_window;
        for (int p = 0; has_tail(b) && p < blocks; p++)
            if ((p * KV_BLOCK < KV_SINKS || (p + 1) * KV_BLOCK > seen) &&
                (!it->window_table || it->window_table[p] < 0 || it->window_table[p] >= b->o.n_window_blocks))
                return err_set(e, ERR_SHAPE, "batch item %d: no window block for token %d", i, p * KV_BLOCK);
        *n_tables += (size_t)blocks * (has_tail(b) ? 2 : 1);
        n_tokens += it->n_tokens;
        n_logits += it->n_logits;
    }
    if (n_tokens > b->o.max_tokens || n_logits > b->o.max_logits)
        return err_set(e, ERR_SHAPE, "a batch of %lld tokens and %lld logits, expected at most %d and %d",
                       (long long)n_tokens, (long long)n_logits, b->o.max_tokens, b->o.max_logits);
    return 0;
}

/* Grow the buffers of a step.  They are the only memory that grows: sequences share blocks, so
 * their tables together can have more entries than the cache has blocks. */
static int grow_step(struct gpu_backend *b, size_t n_tables, struct err *e)
{
    const size_t need = tables_at(b) + n_tables;
    if (need <= b->step_room)
        return 0;
    close_graphs(b);
    return memory_grow_step(b, 2 * need, e);
}

/* A slot that no begun step uses. */
static int next_slot(const struct gpu_backend *b) { return (b->first_begun + b->n_begun) % N_SLOTS; }

static void use_slot(struct gpu_backend *b, int i)
{
    b->hstep = b->slot[i].words;
    b->hids = b->slot[i].ids;
}

/* Write the options for drawing the token after this row of logits: d, or NULL for none. */
static void put_draw(struct gpu_backend *b, int row, const struct draw *d)
{
    struct gpu_draw *to = (struct gpu_draw *)(b->hstep + draws_at(b)) + row;
    if (row >= MAX_DRAWS)
        return;
    b->hids[row] = -1;
    *to = (struct gpu_draw){ .top_k = -1 };
    if (d)
        *to = (struct gpu_draw){ .temperature = d->temperature, .top_p = d->top_p, .min_p = d->min_p, .top_k = d->top_k,
                                 .seed = { (uint32_t)d->seed, (uint32_t)(d->seed >> 32) },
                                 .n = { (uint32_t)d->n, (uint32_t)(d->n >> 32) } };
}

/* Fill the arrays of a step in pinned memory.  Returns the number of words to upload; *n_logits:
 * rows of logits that are wanted. */
static size_t fill_step(struct gpu_backend *b, const struct batch *batch, int *n_logits)
{
    const struct config *c = &b->m->config;
    const int long_from = config_long_from(c), by_tiles = !b->exact && !b->o.strict &&
        (config_has_mixer(c, MIXER_MLA) ? GPU_ATTN_LATENT_TAKES(c->head_dim, c->mla.kv_rank) : c->head_dim % 16 == 0);
    const int tile = GPU_ATTN_TILE(c->head_dim);
    int32_t *token = host_array(b, A_TOKEN), *pos = host_array(b, A_POS), *is_long = host_array(b, A_LONG),
            *table_of = host_array(b, A_TABLE), *tail_of = host_array(b, A_TAIL);
    int32_t *decode = host_array(b, A_DECODE), *logit = host_array(b, A_LOGIT), *tiles = b->hstep + tiles_at(b),
            *tables = b->hstep + tables_at(b);
    int n = 0, at = 0, longest = 1;
    b->n_decode = b->n_tiles = b->longest = *n_logits = 0;
    for (int i = 0; i < batch->n_items; i++) {
        const struct batch_item *it = &batch->items[i];
        const int len = it->pos + it->n_tokens, blocks = (len - 1) / KV_BLOCK + 1, tiled = by_tiles &&
            it->n_tokens >= TILE_TOKENS;
        host_array(b, A_FIRST)[i] = n;
        host_array(b, A_STATE)[i] = it->state;
        b->longest = it->n_tokens > b->longest ? it->n_tokens : b->longest;
        for (int t = 0; tiled && t < it->n_tokens; t += tile) {
            tiles[2 * b->n_tiles] = n + t;
            tiles[2 * b->n_tiles++ + 1] = it->n_tokens - t < tile ? it->n_tokens - t : tile;
        }
        for (int t = 0; t < it->n_tokens; t++, n++) {
            token[n] = it->tokens ? it->tokens[t] : -1 - it->follows;
            pos[n] = it->pos + t;
            is_long[n] = long_from && (it->seq_len ? it->seq_len : len) >= long_from;
            table_of[n] = at;
            tail_of[n] = at + blocks;
            if (!tiled)
                decode[b->n_decode++] = n;
            if (t >= it->n_tokens - it->n_logits) {
                put_draw(b, *n_logits, it->n_logits == 1 ? it->draw : NULL);
                logit[(*n_logits)++] = n;
            }
        }
        if (!tiled && len > longest)
            longest = len;
        memcpy(tables + at, it->table, (size_t)blocks * sizeof *tables);
        if (has_tail(b))
            memcpy(tables + at + blocks, it->window_table, (size_t)blocks * sizeof *tables);
        at += has_tail(b) ? 2 * blocks : blocks;
    }
    b->n = n;
    b->n_items = batch->n_items;
    host_array(b, A_FIRST)[b->n_items] = n;
    b->splits = (longest + GPU_SPLIT - 1) / GPU_SPLIT;
    return tables_at(b) + (size_t)at;
}

/* Returns the bucket of the number of tokens of a step that only decodes; -1 if the step does not
 * only decode, or if graphs are off.  *splits_bit: the bucket of the number of splits. */
static int bucket_of(const struct gpu_backend *b, int n_logits, int *splits_bit)
{
    if (b->n > MAX_GRAPH_TOKENS || b->n != b->n_decode || n_logits != b->n || b->o.debug_sync)
        return -1;
    int bucket = 0;
    while (1 << bucket < b->n)
        bucket++;
    for (*splits_bit = 0; 1 << *splits_bit < b->splits; )
        ++*splits_bit;
    return graph_fits(b, bucket, *splits_bit) ? bucket : -1;
}

/* Pad the number of tokens and the number of splits each to a power of two, so that few graphs
 * serve all steps. */
static void pad_decode(struct gpu_backend *b, int bucket, int splits_bit)
{
    /* A graph is launched for as many items as tokens, whatever their lengths; the items that only
     * pad the step have no tokens. */
    const int n_items = b->n_items, n_tokens = b->n;
    for (; b->n < 1 << bucket; b->n++) {
        host_array(b, A_TOKEN)[b->n] = 0;
        host_array(b, A_POS)[b->n] = -1;
        host_array(b, A_LONG)[b->n] = 0;
        host_array(b, A_TABLE)[b->n] = host_array(b, A_TAIL)[b->n] = 0;
        host_array(b, A_DECODE)[b->n] = b->n;
        host_array(b, A_LOGIT)[b->n] = b->n;
        put_draw(b, b->n, NULL);
    }
    for (int i = n_items; i < b->n; i++) {
        host_array(b, A_FIRST)[i + 1] = n_tokens;
        host_array(b, A_STATE)[i] = 0;
    }
    b->n_decode = b->n_items = b->longest = b->n;
    b->splits = splits_of(b, splits_bit);
}

/* Compute rows [first, first + n) of logits, and draw tokens from them. */
static int run_logits(struct gpu_backend *b, int first, int n, struct err *e)
{
    if (layers_logits(b, first, n, e) < 0)
        return -1;
    if (first + n > MAX_DRAWS)
        return 0;
    const struct gpu_sample o = { .logits = b->logits, .n = n, .vocab = b->m->config.vocab_size, .id = b->ids + first,
                                  .draws = (const struct gpu_draw *)(b->step + draws_at(b)) + first,
                                  .part = b->sample_part, .arrived = b->tickets };
    return gpu_sample(b->g, &o, e);
}

/* Download the drawn tokens, and the logits unless every row has had its token drawn. */
static int download_logits(struct gpu_backend *b, int first, int n, float *logits, struct err *e)
{
    const struct gpu_draw *draw = (const struct gpu_draw *)(b->hstep + draws_at(b)) + first;
    int32_t *id = b->hids + first;
    int n_wanted = 0, n_drawn = 0;
    for (int i = 0; first + n <= MAX_DRAWS && i < n; i++)
        n_wanted += draw[i].top_k >= 0;
    if (n_wanted && (gpu_download(b->g, GPU_COMPUTE, id, b->ids + first, (size_t)n * sizeof *id, e) < 0 ||
                     gpu_sync(b->g, GPU_COMPUTE, e) < 0))
        return -1;
    for (int i = 0; n_wanted && i < n; i++)
        n_drawn += id[i] >= 0;
    if (n_wanted && n_drawn == n)
        return 0;
    const size_t bytes = (size_t)n * (size_t)b->m->config.vocab_size * sizeof *logits;
    if (gpu_download(b->g, GPU_COMPUTE, b->hlogits, b->logits, bytes, e) < 0 || gpu_sync(b->g, GPU_COMPUTE, e) < 0)
        return -1;
    memcpy(logits, b->hlogits, bytes);
    return 0;
}

static int run_launches(struct gpu_backend *b, struct err *e)
{
    return layers_run(b, e) < 0 ? -1 : has_head(b) ? run_logits(b, 0, b->n, e) : 0;
}

/* Record the kernels of a decoding step as a graph. */
static struct gpu_graph *record(struct gpu_backend *b, struct err *e)
{
    if (gpu_graph_begin(b->g, e) < 0)
        return NULL;
    struct err ignored;
    const int rc = (b->group && group_release(b->group, e) < 0) || run_launches(b, e) < 0 ||
                   (b->group && group_gather(b->group, e) < 0) ? -1 : 0;
    if (rc < 0)                         /* the device of another rank may be selected */
        gpu_use(b->g, &ignored);
    struct gpu_graph *graph = gpu_graph_end(b->g, rc < 0 ? &ignored : e);
    if (rc < 0 && graph) {              /* the graph has only a part of the step */
        gpu_graph_close(b->g, graph);
        return NULL;
    }
    return graph;
}

static int launch(struct gpu_backend *b, struct gpu_graph *graph, struct err *e)
{
    if (!b->group)
        return gpu_graph_launch(b->g, graph, e);
    return group_gather(b->group, e) < 0 || gpu_graph_launch(b->g, graph, e) < 0 ? -1 : group_release(b->group, e);
}

/* 1 once the weights of all members are loaded; -1 with *e. */
static int weights_complete(struct gpu_backend *b, struct err *e)
{
    int all = 1;
    for (int i = 0; i < n_members(b); i++) {
        const int one = gpu_use(member(b, i)->g, e) < 0 ? -1 : dweights_complete(member(b, i)->w, e);
        if (one < 0)
            return -1;
        all &= one;
    }
    return gpu_use(b->g, e) < 0 ? -1 : all;
}

/* Run a whole decoding step; the second one of a kind is recorded.  If a graph cannot be made, most
 * likely for lack of memory, its kernels are launched one by one; a lost device refuses these,
 * too. */
static int run_decode(struct gpu_backend *b, int bucket, int splits_bit, struct err *e)
{
    struct gpu_graph **graph = &b->graph[bucket][splits_bit];
    int *seen = &b->seen[bucket][splits_bit];
    struct err ignored;
    const int complete = weights_complete(b, e);
    if (complete < 0)
        return -1;
    if (!*graph && complete && !b->plan.graphs_off && *seen != NEVER && (*seen)++ > 0) {
        *graph = record(b, &ignored);
        *(*graph ? &b->graphs.captured[bucket] : &b->graphs.refused) += 1;
        *seen = *graph ? *seen : NEVER;
    }
    if (*graph && launch(b, *graph, &ignored) == 0) {
        b->graphs.replays[bucket]++;
        return 0;
    }
    if (*graph) {
        gpu_graph_close(b->g, *graph);
        *graph = NULL;
        *seen = NEVER;
        b->graphs.refused++;
    }
    /* a refusal may have left the device of another rank selected */
    return gpu_use(b->g, e) < 0 ? -1 : run_launches(b, e);
}

/* Download the states after the final norm that the batch requests.  1: some were requested; 0:
 * none; -1: failure. */
static int download_hidden(struct gpu_backend *b, const struct batch *batch, struct err *e)
{
    const size_t hidden = (size_t)b->m->config.hidden_size, most = b->hlogits_room / hidden;
    int at = 0, any = 0;
    for (int i = 0; i < batch->n_items; i++) {
        const struct batch_item *it = &batch->items[i];
        at += it->n_tokens;
        for (int t = 0, n; t < it->n_hidden; t += n, any = 1) {
            n = (size_t)(it->n_hidden - t) < most ? it->n_hidden - t : (int)most;
            if (layers_hidden(b, at - it->n_hidden + t, n, e) < 0 ||
                gpu_download(b->g, GPU_COMPUTE, b->hlogits, b->y, (size_t)n * hidden * sizeof(float), e) < 0 ||
                gpu_sync(b->g, GPU_COMPUTE, e) < 0)
                return -1;
            memcpy(it->hidden + (size_t)t * hidden, b->hlogits, (size_t)n * hidden * sizeof(float));
        }
    }
    return any;
}

/* Run the layers before the device's, and upload their output. */
static int run_host(struct gpu_backend *b, const struct batch *batch, struct err *e)
{
    const float *x = cpu_first_forward(b->host, batch, e);
    size_t n = 0;
    if (!x)
        return -1;
    for (int i = 0; i < batch->n_items; i++)
        n += (size_t)batch->items[i].n_tokens;
    n *= (size_t)b->m->config.hidden_size * sizeof *x;
    memcpy(b->hx, x, n);
    return gpu_upload(b->g, GPU_COMPUTE, b->x, b->hx, n, e);
}

/* Let the hidden states of the stage before arrive on all members. */
static int receive(struct gpu_backend *b, struct err *e)
{
    const size_t n = (size_t)b->n * (size_t)b->m->config.hidden_size * sizeof *b->x;
    for (int i = 0; b->link && i < n_members(b); i++) {
        struct gpu_backend *m = member(b, i);
        if (gpu_link_send(m->link, m->x, m->before->x, n, e) < 0)
            return -1;
    }
    return b->link ? gpu_use(b->g, e) : 0;
}

/* Copy the drawn tokens to the items that requested them. */
static void take_tokens(const struct gpu_backend *b, const struct batch *batch)
{
    for (int i = 0, row = 0; i < batch->n_items; row += batch->items[i++].n_logits)
        if (batch->items[i].draw && batch->items[i].n_logits == 1 && row < MAX_DRAWS)
            batch->items[i].draw->id = b->hids[row];
}

/* Upload the step's arrays to the current slot, and let its input from the stage before arrive.
 * Returns the bucket of its graph, -1 if it has none, -2 on failure; *n_logits: rows of logits that
 * are wanted. */
static int upload_step(struct gpu_backend *b, const struct batch *batch, int may_graph, int *n_logits, int *splits_bit,
                       struct err *e)
{
    size_t words[BACKEND_MOST_GPUS];
    int bucket = may_graph ? 0 : -1;
    for (int i = 0; i < n_members(b); i++) {
        struct gpu_backend *m = member(b, i);
        words[i] = fill_step(m, batch, n_logits);
        const int own = may_graph ? bucket_of(m, *n_logits, splits_bit) : -1;
        bucket = i == 0 || own == bucket ? own : -1;
    }
    for (int i = n_members(b) - 1; i >= 0; i--) {       /* b is the last, and stays selected */
        struct gpu_backend *m = member(b, i);
        if (bucket >= 0)
            pad_decode(m, bucket, *splits_bit);
        if (gpu_use(m->g, e) < 0 || gpu_upload(m->g, GPU_COMPUTE, m->step, m->hstep, words[i] * 4, e) < 0)
            return -2;
    }
    return receive(b, e) < 0 ? -2 : bucket;
}

static int run_forward(struct gpu_backend *b, const struct batch *batch, float *logits, struct err *e)
{
    int n_logits, splits_bit = 0, n_hidden = 0, any;
    if (has_host_experts(b) && slots_begin(b, e) < 0)
        return -1;
    if (b->host_layers && run_host(b, batch, e) < 0)
        return -1;
    for (int i = 0; i < batch->n_items; i++)
        n_hidden += batch->items[i].n_hidden;
    const int bucket = upload_step(b, batch, n_hidden == 0, &n_logits, &splits_bit, e);
    if (bucket == -2 || (has_host_experts(b) && slots_choose(b, e) < 0))
        return -1;
    if (!has_head(b))
        return bucket >= 0 ? run_decode(b, bucket, splits_bit, e) : layers_run(b, e);
    if (bucket >= 0)
        return run_decode(b, bucket, splits_bit, e) < 0 ? -1 : download_logits(b, 0, n_logits, logits, e);
    if (layers_run(b, e) < 0 || (any = download_hidden(b, batch, e)) < 0)
        return -1;
    for (int i = 0, n; i < n_logits; i += n) {
        n = n_logits - i < b->logit_rows ? n_logits - i : b->logit_rows;
        if (run_logits(b, i, n, e) < 0 || download_logits(b, i, n, logits + (size_t)i * (size_t)b->m->config.vocab_size,
                                                          e) < 0)
            return -1;
    }
    /* wait, because the next step overwrites the pinned buffer */
    return n_logits || any ? 0 : gpu_sync(b->g, GPU_COMPUTE, e);
}

int rank_prepare(struct gpu_backend *b, size_t n_tables, struct err *e)
{
    if (gpu_use(b->g, e) < 0 || memory_relieve(b, e) < 0 || grow_step(b, n_tables, e) < 0)
        return -1;
    use_slot(b, next_slot(b));
    b->n_follow = 0;
    return 0;
}

int rank_forward(struct gpu_backend *b, const struct batch *batch, float *logits, struct err *e)
{
    if (!leads(b))
        return 0;
    if (gpu_use(b->g, e) < 0 || run_forward(b, batch, logits, e) < 0)
        return -1;
    if (has_head(b))
        take_tokens(b, batch);
    return 0;
}

/* ---- steps that are not waited for ---- */

int rank_can_begin(const struct gpu_backend *b, const struct batch *batch)
{
    if (b->host || has_host_experts(b) || b->n_begun == MAX_BEGUN || batch->n_items == 0 ||
        batch->n_items > b->logit_rows || batch->n_items > MAX_DRAWS)
        return 0;
    for (int i = 0; i < batch->n_items; i++) {
        const struct batch_item *it = &batch->items[i];
        if (it->n_logits != 1 || !it->draw || it->n_hidden || (!it->tokens && b->n_follow == 0))
            return 0;
    }
    return 1;
}

static int queue_step(struct gpu_backend *b, const struct batch *batch, struct gpu_event *done, struct err *e)
{
    int n_logits, splits_bit = 0;
    const int bucket = upload_step(b, batch, 1, &n_logits, &splits_bit, e);
    if (bucket == -2 || (bucket >= 0 ? run_decode(b, bucket, splits_bit, e) : layers_run(b, e) < 0 ? -1
        : has_head(b) ? run_logits(b, 0, n_logits, e) : 0) < 0)
        return -1;
    if (has_head(b) && gpu_download(b->g, GPU_COMPUTE, b->hids, b->ids, (size_t)n_logits * sizeof *b->ids, e) < 0)
        return -1;
    return gpu_event_record(b->g, GPU_COMPUTE, done, e);
}

int rank_begin(struct gpu_backend *b, const struct batch *batch, struct err *e)
{
    struct gpu_event *done = b->slot[next_slot(b)].done;
    if (gpu_use(b->g, e) < 0)
        return -1;
    return leads(b) ? queue_step(b, batch, done, e) : gpu_event_record(b->g, GPU_COMPUTE, done, e);
}

int rank_end(struct gpu_backend *b, const int32_t **ids, struct err *e)
{
    const struct step_slot *s = &b->slot[b->first_begun];
    b->first_begun = (b->first_begun + 1) % N_SLOTS;
    b->n_begun--;
    *ids = has_head(b) ? s->ids : *ids;
    return gpu_use(b->g, e) < 0 ? -1 : gpu_event_sync(b->g, s->done, e);
}

/* ---- blocks and states ---- */

int rank_copy_block(struct gpu_backend *b, int32_t from, int32_t to, struct err *e)
{
    if (gpu_use(b->g, e) < 0 || (b->host_layers && backend_cpu.copy_block(b->host, from, to, e) < 0))
        return -1;
    const size_t first = (size_t)b->o.n_blocks, in_tail = from >= b->o.n_blocks,
                 size = in_tail ? b->tail_stride : b->kv_stride;
    uint8_t *base = b->kv + (in_tail ? first * b->kv_stride : 0);
    return gpu_copy(b->g, GPU_COMPUTE, base + ((size_t)to - in_tail * first) * size,
                    base + ((size_t)from - in_tail * first) * size, size, e);
}

int rank_copy_state(struct gpu_backend *b, int from, int to, struct err *e)
{
    if (!b->state_size)
        return 0;
    if (gpu_use(b->g, e) < 0 || (b->host_layers && backend_cpu.copy_state(b->host, from, to, e) < 0))
        return -1;
    return gpu_copy(b->g, GPU_COMPUTE, b->states + (size_t)to * b->state_stride,
                    b->states + (size_t)from * b->state_stride, b->state_stride * sizeof *b->states, e);
}

void rank_device(const struct gpu_backend *b, struct backend_device *d)
{
    const struct gpu_plan_rank *r = &b->plan.ranks[0];
    *d = (struct backend_device){ .name = b->plan.name, .index = b->o.device, .n_layers = b->plan.n_layers,
                                  .n_experts = b->n_experts, .experts = b->hybrid.counts,
                                  .weights = b->plan.weights, .cached = b->plan.cached, .cache_off = b->plan.cache_off,
                                  .kv = b->plan.kv, .work = b->plan.work,
                                  .reserve = b->plan.reserve, .taken = b->taken, .total = b->plan.total,
                                  .lost = gpu_is_lost(b->g),
                                  .graphs = b->graphs, .begun_ns = b->begun_ns, .context_ns = b->context_ns,
                                  .copied_ns = dweights_copied_ns(b->w), .n_ranks = 1 };
    d->ranks[0] = (struct backend_rank){ .index = r->index, .first_layer = r->first_layer, .n_layers = r->n_layers,
                                         .weights = r->weights, .kv = r->kv, .work = r->work, .total = r->total,
                                         .direct = b->link && gpu_link_is_direct(b->link),
                                         .n_heads = b->m->config.n_heads, .n_experts = b->n_experts };
    d->tp = b->tp ? b->tp->n_ranks : 0;
    d->prefill_threshold = slots_threshold(b, &d->threshold_from);
    snprintf(d->ranks[0].name, sizeof d->ranks[0].name, "%.63s", b->plan.name);
    d->graphs.off = b->plan.graphs_off;
    dweights_stream(b->w, &d->stream);
    d->stream.strategy = window_strategy_name(b->o.stream_sequential ? WINDOW_SEQUENTIAL : WINDOW_ADAPTIVE);
}
