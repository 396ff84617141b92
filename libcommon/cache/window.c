/* window.c - window blocks: keys and values of layers with a sliding window, for as long as the
 * window covers them. */
#include <assert.h>
#include <stdlib.h>

#include "libcommon/cache/kv_pool.h"

int kv_pool_windows(struct kv_pool *p, int n, int window_tokens, int sink_tokens, struct err *e)
{
    p->window = calloc((size_t)p->n_blocks, sizeof *p->window);
    p->free_window = calloc((size_t)n, sizeof *p->free_window);
    if (!p->window || !p->free_window)
        return err_nomem(e, "KV pool");
    p->n_windows = p->n_free_windows = n;
    p->window_tokens = window_tokens;
    p->n_sinks = (sink_tokens + KV_BLOCK - 1) / KV_BLOCK;
    for (int i = 0; i < p->n_blocks; i++)
        p->window[i].number = -1;
    for (int i = 0; i < n; i++)
        p->free_window[i] = n - 1 - i;
    for (int i = 0; i < WINDOW_LISTS; i++)
        p->oldest_window[i] = p->newest_window[i] = -1;
    return 0;
}

void windows_close(struct kv_pool *p)
{
    free(p->window);
    free(p->free_window);
}

int kv_pool_n_windows(const struct kv_pool *p) { return p->n_windows; }
int kv_pool_free_windows(const struct kv_pool *p) { return p->n_free_windows; }
int kv_pool_idle_windows(const struct kv_pool *p) { return p->n_idle_windows; }
int32_t kv_pool_window(const struct kv_pool *p, int32_t block) { return p->window ? p->window[block].number : -1; }

int window_seen(const struct kv_pool *p, int n_tokens)
{
    const int first = n_tokens - p->window_tokens + 1;
    return p->window && first > 0 ? first / KV_BLOCK : 0;
}

/* ---- window blocks that no table holds ---- */

static void leave_list(struct kv_pool *p, int32_t block)
{
    const struct window *w = &p->window[block];
    *(w->older < 0 ? &p->oldest_window[w->list] : &p->window[w->older].newer) = w->newer;
    *(w->newer < 0 ? &p->newest_window[w->list] : &p->window[w->newer].older) = w->older;
    p->n_idle_windows--;
}

static void enter_list(struct kv_pool *p, int32_t block)
{
    struct window *w = &p->window[block];
    w->older = p->newest_window[w->list];
    w->newer = -1;
    *(w->older < 0 ? &p->oldest_window[w->list] : &p->window[w->older].newer) = block;
    p->newest_window[w->list] = block;
    p->n_idle_windows++;
}

static void set_free(struct kv_pool *p, int32_t block)
{
    p->free_window[p->n_free_windows++] = p->window[block].number;
    p->window[block].number = -1;
}

void window_lose(struct kv_pool *p, int32_t block)
{
    if (kv_pool_window(p, block) < 0)
        return;
    assert(p->window[block].refs == 0);
    leave_list(p, block);
    set_free(p, block);
}

/* Take a window block for this block; one must be free or idle. */
static void give(struct kv_pool *p, int32_t block)
{
    if (!p->n_free_windows)
        window_lose(p, p->oldest_window[TRAIL] >= 0 ? p->oldest_window[TRAIL] : p->oldest_window[KEPT]);
    p->window[block] = (struct window){ .number = p->free_window[--p->n_free_windows], .refs = 1, .list = TRAIL };
}

void window_hold(struct kv_pool *p, int32_t block)
{
    if (p->window && p->window[block].refs++ == 0)
        leave_list(p, block);
}

void window_release(struct kv_pool *p, int32_t block, int list)
{
    if (!p->window)
        return;
    struct window *w = &p->window[block];
    assert(w->refs > 0);
    w->list = list == KEPT ? KEPT : w->list;
    if (--w->refs > 0)
        return;
    if (p->node[block].n_tokens)
        enter_list(p, block);
    else
        set_free(p, block);
}

/* ---- window blocks that a table holds ---- */

void window_add(struct kv_table *t, struct kv_pool *p, int i)
{
    const int32_t block = t->block[i];
    assert(i == t->end_window);
    if (p->window[block].number < 0)
        give(p, block);
    else
        window_hold(p, block);
    t->window[i] = p->window[block].number;
    t->end_window++;
}

int window_is_held(const struct kv_table *t, const struct kv_pool *p, int i)
{
    return p->window && i < t->end_window && (i >= t->first_window || i < p->n_sinks);
}

/* Release the window blocks before block `first` except sinks. */
static void leave_until(struct kv_table *t, struct kv_pool *p, int first)
{
    for (; t->first_window < first && t->first_window < t->end_window; t->first_window++)
        if (t->first_window >= p->n_sinks)
            window_release(p, t->block[t->first_window], TRAIL);
}

void window_jump(struct kv_table *t, struct kv_pool *p, int first)
{
    if (!p->window || first <= t->end_window || t->end_window < p->n_sinks)
        return;
    leave_until(t, p, t->end_window);
    t->first_window = t->end_window = first;
}

void window_reuse(struct kv_table *t, struct kv_pool *p, int first)
{
    if (!p->window || t->n_nodes <= t->end_window)
        return;
    window_add(t, p, t->end_window);
    p->window[t->block[t->end_window - 1]].list = KEPT;
    if (t->end_window == p->n_sinks)            /* past the sinks */
        window_jump(t, p, first);
}

int prefix_window(struct kv_table *t, struct kv_pool *p, int known, int32_t *window)
{
    const int i = t->end_window, is_new = p->window[t->block[i]].number < 0;
    assert(i < t->n_blocks);
    if (is_new && (!known || p->n_free_windows + p->n_idle_windows == 0)) {
        window_jump(t, p, i + 1);
        return t->end_window > i ? 0 : -1;
    }
    window_add(t, p, i);
    *window = t->window[i];
    return is_new;
}

void window_cut(struct kv_table *t, struct kv_pool *p, int n_blocks)
{
    while (t->end_window > n_blocks) {
        if (window_is_held(t, p, t->end_window - 1))
            window_release(p, t->block[t->end_window - 1], KEPT);
        t->end_window--;
    }
    if (t->first_window > t->end_window)
        t->first_window = t->end_window;
}

void kv_table_slide(struct kv_table *t, struct kv_pool *p)
{
    leave_until(t, p, window_seen(p, t->n_tokens));
}

void kv_table_keep(const struct kv_table *t, struct kv_pool *p)
{
    for (int i = 0; p->window && i < t->end_window; i++)
        if (window_is_held(t, p, i))
            p->window[t->block[i]].list = KEPT;
}

int kv_table_windows(struct kv_table *t, struct kv_pool *p, int n_tokens)
{
    const int end = n_tokens / KV_BLOCK + (n_tokens % KV_BLOCK != 0);
    if (!p->window)
        return 0;
    kv_table_slide(t, p);
    assert(end <= t->n_blocks && t->end_window * KV_BLOCK >= t->n_tokens);
    if (end - t->end_window > p->n_free_windows + p->n_idle_windows)
        return -1;
    while (t->end_window < end)
        window_add(t, p, t->end_window);
    return 0;
}

void window_move(struct kv_table *t, struct kv_pool *p, int i, int32_t known)
{
    const int32_t mine = t->block[i];
    if (!window_is_held(t, p, i))
        return;
    if (p->window[known].number < 0) {
        assert(p->window[mine].refs == 1);
        p->window[known] = p->window[mine];
        p->window[mine] = (struct window){ .number = -1 };
    } else {
        window_hold(p, known);
        window_release(p, mine, TRAIL);
    }
    /* two sequences share the block, so a third may start in the same way */
    p->window[known].list = KEPT;
    t->window[i] = p->window[known].number;
}

void window_copy(struct kv_table *t, struct kv_pool *p, int i, int32_t to)
{
    if (!p->window)
        return;
    assert(window_is_held(t, p, i));
    give(p, to);
    window_release(p, t->block[i], TRAIL);
    t->window[i] = p->window[to].number;
}
