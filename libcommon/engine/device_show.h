/* device_show.h - describe the device and the memory of a model, for programs and the server. */
#ifndef ZSE_ENGINE_DEVICE_SHOW_H
#define ZSE_ENGINE_DEVICE_SHOW_H

#include <jansson.h>

#include "libcommon/engine/engine.h"

enum { DEVICE_LINE = 768 };
/* Write a line such as
 * "on cuda NVIDIA H200, 12 of 28 layers; attention: 12 of 28 layers on the device, the others on
 * the processor; keys and values: 512 blocks of 16 tokens, 8.2 K tokens, 1073.7 MB; f16 weight
 * cache: 14000.0 MB; graphs on" */
void device_line(char out[DEVICE_LINE], const struct engine_stats *s, int n_layers);
/* Write "cpu", "cuda:0", or for several GPUs "cuda:0,1". */
enum { DEVICE_NAMES = 48 };
void device_names(char out[DEVICE_NAMES], const struct engine_stats *s);
/* Returns a list of {"index", "name", "first_layer", "layers", "heads", "experts", "weight_bytes",
 * "kv_bytes", "workspace_bytes", "total_memory_bytes", "direct"}, one for each GPU; see struct
 * backend_rank. */
json_t *device_ranks_json(const struct backend_device *d);
/* Returns {"on", "off_reason", "refused", "buckets": [{"sequences", "captured", "replays"}]}; only
 * buckets that have a graph are listed. */
json_t *device_graphs_json(const struct backend_graphs *g);
/* Returns {"prefill_threshold", "threshold_from"}, as in struct backend_device, and the counts of
 * struct backend_experts: {"hits", "misses", "moved", "moved_bytes", "streamed", "streamed_bytes",
 * "uploaded", "uploaded_bytes"}. */
json_t *device_experts_json(const struct backend_device *d);

/* Returns null if all layers fit, else {"window", "kept", "slots", "prefetch", "strategy",
 * "given_back", "uses", "prefetch_hits", "evictions", "uploaded_bytes", "step_wait_s",
 * "link_wait_s"}; see struct backend_stream. */
json_t *device_stream_json(const struct backend_stream *s);

#endif
