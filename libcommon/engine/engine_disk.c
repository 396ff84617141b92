/* engine_disk.c - prefixes in a folder (cache/disk.h), as a second level below those in memory.
 *
 * While a request runs, each complete run of its tokens is copied into the queue of the folder's
 * thread; when it ends or is preempted, its partial last run follows, with the recurrent state.
 * Before a request starts, the runs of its prefix that the prefix tree lacks are read and entered
 * there as idle nodes; after that only the tree is used.  So results do not depend on whether a
 * prefix was computed, kept in memory or read from disk.  The blocks of a preempted request are
 * read from disk instead of being recomputed if that is faster (prefixes_pay()). */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/engine/internal.h"
#include "libcommon/format/zfile.h"

/* ---- opening ---- */

/* Incremented when the bytes of a block, or the results that are stored in them, change but the
 * names of its types do not. */
enum { BLOCK_FORMAT = 9 };

/* Bytes of a window block. */
static size_t window_bytes(const struct engine *g)
{
    return kv_pool_n_windows(g->pool) ? config_window_bytes(&g->m->config, g->kv, g->window) : 0;
}

static size_t block_bytes(const struct engine *g)
{
    return (kv_pool_n_windows(g->pool) ? config_block_bytes(&g->m->config, g->kv, g->window)
                                       : config_kv_bytes(&g->m->config, g->kv)) +
           (g->pages ? config_page_bytes(&g->m->config) : 0);
}

/* Everything except token ids that the bytes of a block depend on, as JSON.  Caller frees. */
static char *describe_model(const struct engine *g, const struct backend_options *bo, struct err *e)
{
    const struct zfile *z = g->m->file;
    const struct sparse_pattern *p = &bo->pattern;
    /* "cpu avx2, 2 threads": the number of threads does not matter */
    const char *device = g->backend->describe(g->b);
    json_t *groups = json_array();
    for (int i = 0; i < zfile_n_groups(z); i++) {
        const struct zfile_group *group = zfile_group(z, i);
        json_array_append_new(groups, json_pack("[I, I, I]", (json_int_t)group->offset, (json_int_t)group->size,
                                                (json_int_t)group->crc));
    }
    json_t *all = json_pack("[s, i, s%, s, s, b, i, i, i, [i, i, i, i], I, I, I, I, o, O]", ZSE_VERSION, BLOCK_FORMAT, device, strcspn(device, ","),
                            kv_type_name(bo->kv.key), kv_type_name(bo->kv.value), bo->exact, bo->window, bo->sinks,
                            bo->pages, p->window, p->globals, p->random, p->stride,
                            (json_int_t)config_kv_bytes(&g->m->config, bo->kv), (json_int_t)window_bytes(g),
                            (json_int_t)config_state_bytes(&g->m->config), (json_int_t)zfile_size(z), groups,
                            zfile_json(z));
    char *text = all ? json_dumps(all, JSON_SORT_KEYS | JSON_COMPACT) : NULL;
    json_decref(all);
    if (!text)
        err_nomem(e, "prefixes on disk");
    return text;
}

int prefixes_open(struct engine *g, const struct engine_options *o, const struct backend_options *bo, struct err *e)
{
    static const uint64_t BYTES = 10000000000;
    if (!o->prefix_folder || !g->prefixes || g->m->config.embedding.pooling)
        return 0;
    if (!g->backend->save_block)
        return err_set(e, ERR_UNSUPPORTED, "prefixes are kept on disk only where the CPU computes");
    if (!g->m->file)
        return err_set(e, ERR_UNSUPPORTED, "prefixes are kept on disk only of a model that was read from a file");
    char *model = describe_model(g, bo, e);
    if (!model)
        return -1;
    struct disk_options d = { .folder = o->prefix_folder, .max_bytes = o->prefix_bytes ? o->prefix_bytes : BYTES,
                              .model = model, .n_model = strlen(model),
                              .block_bytes = block_bytes(g), .window_bytes = window_bytes(g),
                              .state_bytes = config_state_bytes(&g->m->config), .note = o->prefix_note,
                              .user = o->prefix_user };
    g->disk = disk_open(&d, e);
    const int rc = g->disk ? predictor_disk_open(g, &d, e) : -1;
    free(model);
    return rc;
}

/* ---- writing ---- */

/* Queue a file with the next n_tokens tokens of r, after those that are already saved.  Returns 1;
 * 0 if the queue cannot take the file now. */
static int save(struct engine *g, struct request *r, enum disk_kind kind, int n_tokens)
{
    struct disk_write *w = disk_begin(g->disk, kind, &r->saved, r->ids + r->n_saved, n_tokens);
    if (!w)
        return 0;
    int windows = 1;
    for (int i = 0; i * KV_BLOCK < n_tokens; i++) {
        const int32_t block = r->kv.block[r->n_saved / KV_BLOCK + i], window = kv_pool_window(g->pool, block);
        g->backend->save_block(g->b, block, disk_block(w, i));
        if (window >= 0)
            g->backend->save_block(g->b, kv_pool_size(g->pool) + window, disk_window(w, i));
        else if (kv_pool_n_windows(g->pool) && kind == DISK_IS_RUN)
            disk_no_window(w, i);
        windows &= window >= 0;
    }
    if (kv_pool_n_windows(g->pool) && kind == DISK_IS_TAIL && !windows) {
        disk_drop(w);
        return 0;
    }
    if (kind != DISK_IS_RUN && g->states)
        g->backend->save_state(g->b, r->slot, disk_state(w));
    disk_commit(g->disk, w);
    return 1;
}

void prefixes_save(struct engine *g, struct request *r)
{
    if (!g->disk)
        return;
    if (r->n_saved == 0)
        disk_first(g->disk, r->scope, r->kv.root % KV_ROOTS, &r->saved);
    const int limit = prefix_limit(g, r), most = r->kv.n_tokens < limit ? r->kv.n_tokens : limit;
    for (; r->n_saved + DISK_RUN <= most; r->n_saved += DISK_RUN) {
        const int32_t *ids = r->ids + r->n_saved;
        if (!disk_has(g->disk, DISK_IS_RUN, &r->saved, ids) && !save(g, r, DISK_IS_RUN, DISK_RUN))
            return;                             /* the queue is full: retry in a later step */
        disk_next(g->disk, &r->saved, ids);
    }
}

void prefixes_save_state(struct engine *g, struct request *r)
{
    if (g->disk && r->slot >= 0 && r->n_saved > 0 && r->n_saved == r->kv.n_tokens &&
        !disk_has(g->disk, DISK_IS_STATE, &r->saved, NULL))
        save(g, r, DISK_IS_STATE, 0);
}

void prefixes_save_end(struct engine *g, struct request *r)
{
    if (!g->disk || r->kv.n_tokens == 0 || (g->states && r->slot < 0))
        return;
    prefixes_save(g, r);
    const int rest = r->kv.n_tokens - r->n_saved;
    if (rest == 0 && g->states)
        prefixes_save_state(g, r);
    else if (rest > 0 && rest < DISK_RUN)
        save(g, r, DISK_IS_TAIL, rest);
}

/* ---- reading ---- */

/* The state of a search for a prefix in the folder.  t: the nodes found so far; at: number of
 * tokens in the files read so far; key: the key of the next file. */
struct disk_search { struct kv_table t; struct disk_key key; int at; };

/* Read the blocks of a file that holds n_tokens tokens from x->at on.  0: no block is free. */
static int load_blocks(struct engine *g, struct disk_search *x, const struct disk_data *data, int n_tokens)
{
    kv_table_slide(&x->t, g->pool);
    if (kv_table_reserve(&x->t, g->pool, x->at + n_tokens) != 0)
        return 0;
    for (int i = x->t.n_nodes; i < x->t.n_blocks; i++)
        g->backend->load_block(g->b, x->t.block[i], data->blocks + (size_t)(i - x->at / KV_BLOCK) * block_bytes(g));
    x->t.n_tokens = x->at + n_tokens;
    return 1;
}

/* Let x->t hold the window blocks of the file's nodes, and read missing ones from the file. Returns
 * 1; 0 if a block of a sink is missing. */
static int load_windows(struct engine *g, struct disk_search *x, const struct disk_data *data)
{
    while (kv_pool_n_windows(g->pool) && x->t.end_window < x->t.n_blocks) {
        const int i = x->t.end_window - x->at / KV_BLOCK;
        int32_t window;
        const int rc = prefix_window(&x->t, g->pool, data->windows && !(data->lacks >> i & 1), &window);
        if (rc < 0)
            return 0;
        if (rc > 0)
            g->backend->load_block(g->b, kv_pool_size(g->pool) + window, data->windows + (size_t)i * window_bytes(g));
    }
    return 1;
}

static void load_state(struct engine *g, const struct disk_search *x, const uint8_t *from)
{
    const int32_t end = prefix_end(&x->t, g->pool);
    const int state = end < 0 || state_find(g->states, g->pool, end) >= 0 ? -1 : state_take(g->states, g->pool);
    if (state < 0)
        return;
    g->backend->load_state(g->b, state, from);
    state_keep(g->states, g->pool, end, state);
}

/* Returns the number of tokens of r up to which runs are worth reading: all of them or, with
 * recurrent layers, those before the last saved state. */
static int find_end(struct engine *g, const struct request *r, struct disk_key key)
{
    int end = 0, at = 0;
    if (!g->states)
        return prefix_most(g, r);
    for (; at + DISK_RUN <= prefix_most(g, r) && disk_has(g->disk, DISK_IS_RUN, &key, r->ids + at); at += DISK_RUN) {
        if (disk_has(g->disk, DISK_IS_TAIL, &key, NULL))
            end = at;
        disk_next(g->disk, &key, r->ids + at);
        if (disk_has(g->disk, DISK_IS_STATE, &key, NULL))
            end = at + DISK_RUN;
    }
    return disk_has(g->disk, DISK_IS_TAIL, &key, NULL) ? at : end;
}

/* If an earlier sequence ended within the next run and its partial run was saved, read as much of
 * it as r has in common with it. */
static void load_tail(struct engine *g, struct disk_search *x, const struct request *r)
{
    struct disk_data data;
    int same = 0;
    const int known = x->t.n_tokens - x->at;
    if (!disk_read(g->disk, DISK_IS_TAIL, &x->key, NULL, &data))
        return;
    while (same < data.n_tokens && x->at + same < prefix_most(g, r) && data.ids[same] == r->ids[x->at + same])
        same++;
    if (same <= known || (g->states && same < data.n_tokens) || x->at + data.n_tokens > g->max_len)
        return;
    int32_t *ids = malloc((size_t)(x->at + data.n_tokens) * sizeof *ids);
    if (!ids)
        return;
    memcpy(ids, r->ids, (size_t)x->at * sizeof *ids);
    memcpy(ids + x->at, data.ids, (size_t)data.n_tokens * sizeof *ids);
    if (load_blocks(g, x, &data, data.n_tokens)) {
        prefix_enter(&x->t, g->pool, ids, 1);
        load_windows(g, x, &data);
        if (g->states && data.state)
            load_state(g, x, data.state);
    }
    free(ids);
}

int prefixes_pay(struct engine *g, const struct request *r)
{
    if (!r->preempted || g->read_ns <= g->pace.token_ns || g->pace.token_ns == 0)
        return 1;
    /* decays while nothing is read, so that reading is tried and measured again */
    g->read_ns -= g->read_ns / 16;
    return 0;
}

/* Update the measured time per token: n tokens were read in `ns`. */
static void note_read(struct engine *g, const struct request *r, int n, uint64_t ns)
{
    const float each = n > 0 ? (float)ns / (float)n : g->read_ns;
    g->read_ns += g->read_ns > 0 ? (each - g->read_ns) / 4 : each;
    g->count.resumed_read += r->preempted ? (uint64_t)n : 0;
}

void prefixes_load(struct engine *g, struct request *r)
{
    struct disk_search x = { .at = 0 };
    struct disk_data data;
    struct err ignored;
    if (!g->disk || r->searched)
        return;
    r->searched = 1;
    if (!prefixes_pay(g, r))
        return;
    const uint64_t begin = clock_ns();
    int known = 0;
    g->entering = r->lora;
    if (kv_table_init(&x.t, g->max_len, &ignored) != 0)
        return;
    if (kv_table_scope(&x.t, g->pool, r->scope, &ignored) != 0)
        goto done;
    x.t.root += r->kv.root % KV_ROOTS;
    disk_first(g->disk, r->scope, r->kv.root % KV_ROOTS, &x.key);
    const int end = find_end(g, r, x.key);
    prefix_take(&x.t, g->pool, r->ids, prefix_most(g, r));
    known = x.t.n_tokens;
    for (; x.at + DISK_RUN <= x.t.n_tokens; x.at += DISK_RUN)
        disk_next(g->disk, &x.key, r->ids + x.at);
    for (; x.at + DISK_RUN <= end; x.at += DISK_RUN) {
        if (!disk_read(g->disk, DISK_IS_RUN, &x.key, r->ids + x.at, &data) || !load_blocks(g, &x, &data, DISK_RUN))
            goto done;
        prefix_enter(&x.t, g->pool, r->ids, 0);
        if (!load_windows(g, &x, &data))
            goto done;
        disk_next(g->disk, &x.key, r->ids + x.at);
    }
    if (g->states && x.at == x.t.n_tokens && x.at > 0 && disk_read(g->disk, DISK_IS_STATE, &x.key, NULL, &data))
        load_state(g, &x, data.state);
    load_tail(g, &x, r);
done:
    note_read(g, r, x.t.n_tokens - known, clock_ns() - begin);
    kv_table_release(&x.t, g->pool);
}
