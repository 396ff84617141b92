/* measure.c - measure the speed of the device and its link: copies between two buffers
 * that no cache holds, timed by events. */
#include "gpu/gpu.h"

#include <string.h>

#include "gpu/rt/rt.h"

enum { REPEATS = 8 };

struct buffers { uint8_t *a, *b, *host; struct gpu_event *from, *to; size_t bytes; };

/* Measure the bytes a second of the fastest of REPEATS copies: with `up` from the host, else
 * within the device, where reading and writing both count. */
static int time_copies(struct gpu *g, const struct buffers *v, int up, double *rate, struct err *e)
{
    double s;
    *rate = 0;
    for (int i = 0; i < REPEATS; i++) {
        if (gpu_event_record(g, GPU_COMPUTE, v->from, e) < 0 ||
            (up ? gpu_upload(g, GPU_COMPUTE, v->a, v->host, v->bytes, e)
                : gpu_copy(g, GPU_COMPUTE, v->a, v->b, v->bytes, e)) < 0 ||
            gpu_event_record(g, GPU_COMPUTE, v->to, e) < 0 || gpu_event_elapsed(g, v->from, v->to, &s, e) < 0)
            return -1;
        const double now = s > 0 ? (up ? 1.0 : 2.0) * (double)v->bytes / s : 0;
        *rate = now > *rate ? now : *rate;
    }
    return 0;
}

int gpu_measure(int device, struct gpu_speeds *out, struct err *e)
{
    struct gpu *g = gpu_open(device, 0, e);
    struct gpu_info info;
    struct buffers v = { 0 };
    int rc = g && gpu_info(g, &info, e) == 0 ? 0 : -1;
    memset(out, 0, sizeof *out);
    if (rc == 0) {
        v.bytes = 8 * info.l2 < info.free / 8 ? 8 * info.l2 : info.free / 8;
        if (!(v.a = gpu_alloc(g, v.bytes, "measurement", e)) || !(v.b = gpu_alloc(g, v.bytes, "measurement", e)) ||
            !(v.host = gpu_pinned(g, v.bytes, "measurement", e)) || !(v.from = gpu_event_open(g, e)) ||
            !(v.to = gpu_event_open(g, e)))
            rc = -1;
    }
    if (rc == 0) {
        memset(v.host, 0x5a, v.bytes);
        rc = gpu_fill(g, GPU_COMPUTE, v.b, 0x33, v.bytes, e);
    }
    if (rc == 0 && (rc = time_copies(g, &v, 0, &out->copy, e)) == 0)
        rc = time_copies(g, &v, 1, &out->upload, e);
    out->mma = rc == 0 ? info.mma : 0;
    if (v.from)
        gpu_event_close(g, v.from);
    if (v.to)
        gpu_event_close(g, v.to);
    if (g) {
        gpu_free(g, v.a);
        gpu_free(g, v.b);
        gpu_pinned_free(g, v.host);
    }
    gpu_close(g);
    return rc;
}
