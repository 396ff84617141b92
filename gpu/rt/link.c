/* link.c - messages from one device to another, and the probe of direct copies. */
#include "gpu/rt/link.h"

#include <stdlib.h>
#include <string.h>

enum { PROBE = 64 << 10 };              /* bytes of the pattern */

struct gpu_link {
    struct gpu *from, *to;
    size_t size;
    uint8_t *bounce;                    /* pinned; NULL: copies are direct */
    /* computed: the sender has computed the message, or copied it to the host; taken: the receiver
     * has it */
    struct gpu_event *computed, *taken;
};

static uint8_t pattern(size_t i) { return (uint8_t)(i * 167 + (i >> 8) * 13 + 91); }

/* Copy the pattern in `host` to the sender, directly to the receiver, and back to `host`. */
static int send_pattern(struct gpu_link *l, uint8_t *sent, uint8_t *received, uint8_t *host, struct err *e)
{
    for (size_t i = 0; i < PROBE; i++)
        host[i] = pattern(i);
    if (gpu_use(l->from, e) < 0 || gpu_upload(l->from, GPU_COMPUTE, sent, host, PROBE, e) < 0 ||
        gpu_sync(l->from, GPU_COMPUTE, e) < 0)
        return -1;
    memset(host, 0, PROBE);
    return gpu_use(l->to, e) < 0 || gpu_fill(l->to, GPU_COMPUTE, received, 0, PROBE, e) < 0 ||
           gpu_copy_from(l->to, GPU_COMPUTE, received, l->from, sent, PROBE, e) < 0 ||
           gpu_download(l->to, GPU_COMPUTE, host, received, PROBE, e) < 0 ? -1 : gpu_sync(l->to, GPU_COMPUTE, e);
}

/* 1: a pattern arrives by a direct copy; 0: it does not; -1: a device is lost, or has no memory. */
static int probe(struct gpu_link *l, struct err *e)
{
    uint8_t *sent = gpu_alloc(l->from, PROBE, "a probe", e), *received = sent ? gpu_alloc(l->to, PROBE, "a probe", e) : NULL,
            *host = received ? gpu_pinned(l->to, PROBE, "a probe", e) : NULL;
    int rc = host ? send_pattern(l, sent, received, host, e) : -1;
    if (rc == 0) {
        rc = 1;
        for (size_t i = 0; i < PROBE; i++)
            rc &= host[i] == pattern(i);
    }
    gpu_pinned_free(l->to, host);
    gpu_free(l->to, received);
    gpu_free(l->from, sent);
    return rc;
}

struct gpu_link *gpu_link_open(struct gpu *from, struct gpu *to, size_t size, struct err *e)
{
    struct gpu_link *l = calloc(1, sizeof *l);
    if (!l) {
        err_nomem(e, "a link between devices");
        return NULL;
    }
    l->from = from;
    l->to = to;
    l->size = size;
    int direct = gpu_peer(to, from, e);
    if (direct == 1)
        direct = probe(l, e);
    if (direct < 0 || !(l->computed = gpu_event_open(from, e)) || !(l->taken = gpu_event_open(to, e)) ||
        (!direct && !(l->bounce = gpu_pinned(to, size, "messages between devices", e)))) {
        gpu_link_close(l);
        return NULL;
    }
    return l;
}

void gpu_link_close(struct gpu_link *l)
{
    if (!l)
        return;
    if (l->computed)
        gpu_event_close(l->from, l->computed);
    if (l->taken)
        gpu_event_close(l->to, l->taken);
    gpu_pinned_free(l->to, l->bounce);
    free(l);
}

int gpu_link_offer(struct gpu_link *l, const void *from, size_t n, struct err *e)
{
    if (n > l->size)
        return err_set(e, ERR_DEVICE, "a message of %zu bytes between devices, expected at most %zu", n, l->size);
    if (gpu_use(l->from, e) < 0 || (l->bounce && gpu_download(l->from, GPU_COMPUTE, l->bounce, from, n, e) < 0))
        return -1;
    return gpu_event_record(l->from, GPU_COMPUTE, l->computed, e);
}

int gpu_link_take(struct gpu_link *l, void *to, const void *from, size_t n, struct err *e)
{
    if (gpu_use(l->to, e) < 0 || gpu_event_wait(l->to, GPU_COMPUTE, l->computed, e) < 0 ||
        (l->bounce ? gpu_upload(l->to, GPU_COMPUTE, to, l->bounce, n, e)
                   : gpu_copy_from(l->to, GPU_COMPUTE, to, l->from, from, n, e)) < 0)
        return -1;
    return gpu_event_record(l->to, GPU_COMPUTE, l->taken, e);
}

int gpu_link_release(struct gpu_link *l, struct err *e)
{
    return gpu_use(l->from, e) < 0 ? -1 : gpu_event_wait(l->from, GPU_COMPUTE, l->taken, e);
}

int gpu_link_send(struct gpu_link *l, void *to, const void *from, size_t n, struct err *e)
{
    return gpu_link_offer(l, from, n, e) < 0 || gpu_link_take(l, to, from, n, e) < 0 ? -1 : gpu_link_release(l, e);
}

int gpu_link_is_direct(const struct gpu_link *l) { return !l->bounce; }
size_t gpu_link_pinned(const struct gpu_link *l) { return l->bounce ? l->size : 0; }
