/* engine_predictor_disk.c - store the predictor's keys and values in the folder of prefixes.
 *
 * If the main model reads a prefix from the folder, its states are not computed, so the predictor
 * (the layer that predicts further tokens) could not compute its own entries for that prefix.
 * Therefore its entries are written, too, when a request ends, and read before the first entry of a
 * request is computed.  They are stored in the same form (cache/disk.h) under the name of another
 * model; the id of entry i is that of token i + 1. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/engine/draft_model.h"
#include "libcommon/model/eagle.h"

int predictor_disk_open(struct engine *g, const struct disk_options *o, struct err *e)
{
    struct draft_model *d = g->draft_model;
    struct disk_options own = *o;
    static const char suffix[] = " predictor";
    /* files are found by the model's name, which does not identify EAGLE heads */
    if (!d || !d->own || d->eagle)
        return 0;
    own.n_model = o->n_model + sizeof suffix - 1;
    char *model = malloc(own.n_model);
    if (!model)
        return err_nomem(e, "prefixes on disk");
    memcpy(model, o->model, o->n_model);
    memcpy(model + o->n_model, suffix, sizeof suffix - 1);
    own.model = model;
    own.block_bytes = config_kv_bytes(&d->m->config, g->kv);
    own.window_bytes = own.state_bytes = 0;
    own.note = NULL;                    /* the main model's writing fails for the same reasons */
    d->disk = disk_open(&own, e);
    free(model);
    return d->disk ? 0 : -1;
}

/* Queue n_tokens entries from `at` on.  0: the queue is full. */
static int save(struct engine *g, const struct drafting *x, enum disk_kind kind, const struct disk_key *key,
                const int32_t *ids, int at, int n_tokens)
{
    struct draft_model *d = g->draft_model;
    struct disk_write *w = disk_begin(d->disk, kind, key, ids, n_tokens);
    if (!w)
        return 0;
    for (int i = 0; i * KV_BLOCK < n_tokens; i++)
        g->backend->save_block(d->b, x->kv.block[at / KV_BLOCK + i], disk_block(w, i));
    disk_commit(d->disk, w);
    return 1;
}

void predictor_save(struct engine *g, const struct request *r)
{
    struct draft_model *d = g->draft_model;
    const struct drafting *x = &r->draft;
    struct disk_key key;
    int at = 0;
    if (!d->disk || x->kv.n_tokens == 0)
        return;
    disk_first(d->disk, r->scope, 0, &key);
    for (; at + DISK_RUN <= x->kv.n_tokens; at += DISK_RUN) {
        const int32_t *ids = r->ids + 1 + at;
        if (!disk_has(d->disk, DISK_IS_RUN, &key, ids) && !save(g, x, DISK_IS_RUN, &key, ids, at, DISK_RUN))
            return;
        disk_next(d->disk, &key, ids);
    }
    if (at < x->kv.n_tokens)
        save(g, x, DISK_IS_TAIL, &key, r->ids + 1 + at, at, x->kv.n_tokens - at);
}

/* Read n entries from data to the end of t. */
static int load_blocks(struct engine *g, struct kv_table *t, const struct disk_data *data, int at, int n)
{
    struct draft_model *d = g->draft_model;
    const size_t bytes = config_kv_bytes(&d->m->config, g->kv);
    if (at + n > d->max_len || kv_table_reserve(t, d->pool, at + n) != 0)
        return 0;
    for (int i = t->n_nodes; i < t->n_blocks; i++)
        g->backend->load_block(d->b, t->block[i], data->blocks + (size_t)(i - at / KV_BLOCK) * bytes);
    t->n_tokens = at + n;
    return 1;
}

/* Read the partial run after `at`, if it continues ids further than t does. */
static void load_tail(struct engine *g, struct kv_table *t, const struct disk_key *key, const int32_t *ids, int at,
                      int known)
{
    struct draft_model *d = g->draft_model;
    struct disk_data data;
    int same = 0;
    if (!disk_read(d->disk, DISK_IS_TAIL, key, NULL, &data))
        return;
    while (same < data.n_tokens && at + same < known && data.ids[same] == ids[at + same])
        same++;
    int32_t *all = same > t->n_tokens - at ? malloc((size_t)(at + data.n_tokens) * sizeof *all) : NULL;
    if (!all)
        return;
    memcpy(all, ids, (size_t)at * sizeof *all);
    memcpy(all + at, data.ids, (size_t)data.n_tokens * sizeof *all);
    if (load_blocks(g, t, &data, at, data.n_tokens))
        prefix_enter(t, d->pool, all, 1);
    free(all);
}

void predictor_load(struct engine *g, struct request *r, int known)
{
    struct draft_model *d = g->draft_model;
    const int32_t *ids = r->ids + 1;
    struct kv_table t;
    struct disk_key key;
    struct disk_data data;
    struct err ignored;
    int at = 0;
    if (!d->disk || r->draft.searched || kv_table_init(&t, d->max_len, &ignored) != 0)
        return;
    r->draft.searched = 1;
    if (kv_table_scope(&t, d->pool, r->scope, &ignored) != 0)
        goto done;
    disk_first(d->disk, r->scope, 0, &key);
    prefix_take(&t, d->pool, ids, known);
    for (; at + DISK_RUN <= t.n_tokens; at += DISK_RUN)
        disk_next(d->disk, &key, ids + at);
    for (; at + DISK_RUN <= known; at += DISK_RUN) {
        if (!disk_read(d->disk, DISK_IS_RUN, &key, ids + at, &data) || !load_blocks(g, &t, &data, at, DISK_RUN))
            goto done;
        prefix_enter(&t, d->pool, ids, 0);
        disk_next(d->disk, &key, ids + at);
    }
    load_tail(g, &t, &key, ids, at, known);
done:
    kv_table_release(&t, d->pool);
}
