/* device_show.c - write a line and JSON about the device of a model. */
#include "libcommon/engine/device_show.h"

#include <stdio.h>
#include <string.h>

#include "libcommon/quant/kvtype.h"

void device_line(char out[DEVICE_LINE], const struct engine_stats *s, int n_layers)
{
    const struct backend_device *d = &s->device;
    char where[96] = "all on the processor", graphs[96] = "", cached[96] = "", window[96] = "", experts[112] = "";
    int direct = 1;
    for (int i = 1; i < d->n_ranks; i++)
        direct &= d->ranks[i].direct;
    if (d->n_ranks > 1)
        snprintf(window, sizeof window, "; hidden states go from GPU to GPU %s", direct ? "directly"
                                                                                       : "through the host's memory");
    if (d->name && d->n_layers < n_layers)
        snprintf(where, sizeof where, "%d of %d layers on the device, the others on the processor", d->n_layers,
                 n_layers);
    else if (d->name)
        snprintf(where, sizeof where, "all on the device%s", d->n_ranks > 1 ? "s" : "");
    if (d->cached)
        snprintf(cached, sizeof cached, "; f16 weight cache: %.1f MB", (double)d->cached * 1e-6);
    if (d->name)
        snprintf(graphs, sizeof graphs, "; graphs %s%s", d->graphs.off ? "off: " : "on",
                 d->graphs.off ? d->graphs.off : "");
    if (d->prefill_threshold)
        snprintf(experts, sizeof experts, "; all experts on the device in steps of %d tokens or more (%s)",
                 d->prefill_threshold, d->threshold_from);
    snprintf(out, DEVICE_LINE, "on %.150s; attention: %s; keys and values: %d block%s of %d tokens, %.1f K tokens, %.1f MB%s%s%s%s", s->backend, where, s->n_blocks,
             s->n_blocks == 1 ? "" : "s", KV_BLOCK, (double)s->n_blocks * KV_BLOCK * 1e-3, (double)s->kv_bytes * 1e-6,
             window, experts, cached, graphs);
}

void device_names(char out[DEVICE_NAMES], const struct engine_stats *s)
{
    const struct backend_device *d = &s->device;
    if (!d->name) {
        snprintf(out, DEVICE_NAMES, "cpu");
        return;
    }
    snprintf(out, DEVICE_NAMES, "%.*s:%d", (int)strcspn(s->backend, " "), s->backend, d->index);
    for (int i = 1; i < d->n_ranks; i++) {
        const size_t n = strlen(out);
        snprintf(out + n, DEVICE_NAMES - n, ",%d", d->ranks[i].index);
    }
}

json_t *device_ranks_json(const struct backend_device *d)
{
    json_t *all = json_array();
    for (int i = 0; i < d->n_ranks; i++) {
        const struct backend_rank *r = &d->ranks[i];
        json_array_append_new(all, json_pack("{s:i, s:s, s:i, s:i, s:i, s:i, s:I, s:I, s:I, s:I, s:b}", "index", r->index,
                                             "name", r->name, "first_layer", r->first_layer, "layers", r->n_layers,
                                             "heads", r->n_heads, "experts", r->n_experts,
                                             "weight_bytes", (json_int_t)r->weights, "kv_bytes", (json_int_t)r->kv,
                                             "workspace_bytes", (json_int_t)r->work, "total_memory_bytes",
                                             (json_int_t)r->total, "direct", r->direct));
    }
    return all;
}

json_t *device_stream_json(const struct backend_stream *s)
{
    if (!s->window)
        return json_null();
    return json_pack("{s:i, s:i, s:i, s:i, s:s, s:i, s:I, s:I, s:I, s:I, s:f, s:f}", "window", s->window, "kept",
                     s->kept, "slots", s->slots, "prefetch", s->prefetch, "strategy", s->strategy, "given_back",
                     s->given_back, "uses", (json_int_t)s->uses, "prefetch_hits", (json_int_t)s->hits, "evictions",
                     (json_int_t)s->evictions, "uploaded_bytes", (json_int_t)s->bytes, "step_wait_s",
                     (double)s->step_wait_ns * 1e-9, "link_wait_s", (double)s->link_wait_ns * 1e-9);
}

json_t *device_graphs_json(const struct backend_graphs *g)
{
    json_t *buckets = json_array();
    for (int i = 0; i < BACKEND_BUCKETS; i++)
        if (g->captured[i])
            json_array_append_new(buckets, json_pack("{s:i, s:i, s:I}", "sequences", 1 << i, "captured", g->captured[i],
                                                     "replays", (json_int_t)g->replays[i]));
    return json_pack("{s:b, s:s?, s:i, s:o}", "on", !g->off, "off_reason", g->off, "refused", g->refused, "buckets",
                     buckets);
}

json_t *device_experts_json(const struct backend_device *d)
{
    const struct backend_experts *x = &d->experts;
    return json_pack("{s:i, s:s?, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "prefill_threshold", d->prefill_threshold,
                     "threshold_from", d->threshold_from, "hits", (json_int_t)x->hits, "misses", (json_int_t)x->misses,
                     "moved", (json_int_t)x->moved, "moved_bytes", (json_int_t)x->moved_bytes, "streamed",
                     (json_int_t)x->streamed, "streamed_bytes", (json_int_t)x->streamed_bytes, "uploaded",
                     (json_int_t)x->uploaded, "uploaded_bytes", (json_int_t)x->uploaded_bytes);
}
