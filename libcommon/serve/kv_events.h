/* kv_events.h - events of the prefix cache over ZeroMQ, in vLLM's form, so that a router sends a
 * prompt to the server that has its beginning.
 *
 * A PUB socket sends messages of three frames: the topic; the number of the batch, 8 bytes big
 * endian; msgpack of [time, events].  The events are
 *   ["BlockStored", [hash], parent or nil, tokens, tokens in a block, nil, nil, adapter or nil]
 *   ["BlockRemoved", [hash], nil]
 *   ["AllBlocksCleared"], sent when a model has been loaded
 * A ROUTER socket takes the number of a batch, 8 bytes, and sends it and all later ones, each as
 * number and payload, and at the end -1 and an empty payload.  The newest KV_EVENTS_KEPT batches
 * are kept, and at most KV_EVENTS_BYTES of them.  libzmq is loaded when it is needed. */
#ifndef ZSE_SERVE_KV_EVENTS_H
#define ZSE_SERVE_KV_EVENTS_H

#include "libcommon/base/err.h"
#include "libcommon/engine/engine.h"

enum { KV_EVENTS_KEPT = 10000, KV_EVENTS_BYTES = 64 << 20 };

struct kv_events;
/* Bind the sockets and start the thread that serves them.  replay NULL: no ROUTER socket.  NULL
 * with *e. */
struct kv_events *kv_events_open(const char *endpoint, const char *replay, const char *topic, struct err *e);
void kv_events_close(struct kv_events *k);              /* NULL is fine */

/* The events of one engine, which is to be closed before its source. */
struct kv_source;
/* Sends AllBlocksCleared; NULL without memory. */
struct kv_source *kv_source_open(struct kv_events *k);
const struct engine_watch *kv_source_watch(const struct kv_source *s);
void kv_source_mute(struct kv_source *s);               /* send no more events of it; any thread */
void kv_source_close(struct kv_source *s);              /* NULL is fine */

#endif
