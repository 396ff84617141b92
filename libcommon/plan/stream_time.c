/* stream_time.c - the timeline of layers that pass through a window. */
#include "libcommon/plan/stream_time.h"

#include "libcommon/plan/timeline.h"

struct simulation {
    struct layer_window window;
    struct timeline link, device;
    const struct stream_rates *rates;
    double arrived[WINDOW_SLOTS], used[WINDOW_SLOTS];   /* times of each slot's last upload, and of its last use */
    uint64_t uploads;
};

/* `after`: the upload is not known before this time. */
static void upload(struct simulation *s, int slot, int used, double after)
{
    const double free_at = used ? s->used[slot] : 0;
    s->arrived[slot] = timeline_add(&s->link, free_at > after ? free_at : after, s->rates->upload_s);
    s->uploads++;
}

static void upload_ahead(struct simulation *s)
{
    int slot, used;
    while (window_ahead(&s->window, &slot, &used) >= 0)
        upload(s, slot, used, 0);
}

/* Layers are launched one after the other as soon as their step begins. */
static void run_layer(struct simulation *s, int layer, double step_begins)
{
    int used, slot = window_need(&s->window, layer);
    if (slot == WINDOW_ABSENT) {
        slot = window_take(&s->window, layer, &used);   /* whole steps never lack a slot */
        upload(s, slot, used, step_begins);
    }
    upload_ahead(s);
    const double end = timeline_add(&s->device, slot >= 0 ? s->arrived[slot] : 0, s->rates->compute_s);
    if (slot >= 0)
        s->used[slot] = end;
    window_done(&s->window, layer);
    upload_ahead(s);
}

int stream_simulate(int n_layers, struct window_shape shape, const struct stream_rates *rates, int n_steps,
                    struct stream_times *out)
{
    struct simulation s = { .rates = rates };
    if (window_open(&s.window, 0, n_layers, shape) < 0)
        return -1;
    upload_ahead(&s);
    for (int i = 0; i < n_steps; i++) {
        const double begins = s.device.end;
        for (int layer = 0; layer < n_layers; layer++)
            run_layer(&s, layer, begins);
    }
    *out = (struct stream_times){ .seconds = s.device.end, .link_s = timeline_until(&s.link, s.device.end),
                                  .device_s = s.device.total,
                                  .both_s = timeline_both(&s.link, &s.device), .uploads = s.uploads,
                                  .counts = s.window.counts };
    out->serial_s = s.device.total + (double)s.window.counts.uses * rates->upload_s;
    const int failed = s.link.failed || s.device.failed;
    timeline_release(&s.link);
    timeline_release(&s.device);
    window_close(&s.window);
    return failed ? -1 : 0;
}
