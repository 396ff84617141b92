/* stream_time.h - simulate steps of a model whose layers pass through a window (layer_window.h): a
 * link uploads one layer at a time, a device computes one layer at a time.
 *
 * The order of uploads is that of the engine.  An upload into a slot starts when the link is free
 * and the step has used the slot's last layer; a layer is computed when it has arrived. */
#ifndef ZSE_PLAN_STREAM_TIME_H
#define ZSE_PLAN_STREAM_TIME_H

#include "libcommon/plan/layer_window.h"

/* Seconds of one layer: on the link, and on the device in a step. */
struct stream_rates { double upload_s, compute_s; };
struct stream_times {
    double seconds;             /* of all steps */
    double serial_s;            /* of all steps if uploads and computation took turns */
    double link_s, device_s;    /* in which the link, and the device, is busy */
    double both_s;              /* in which both are */
    uint64_t uploads;           /* layers, those that no step has used yet included */
    struct window_counts counts;
};
/* Simulate n_steps steps of n_layers layers from the moment at which the window is open and the
 * layers that stay have arrived.  0; -1: no memory. */
int stream_simulate(int n_layers, struct window_shape shape, const struct stream_rates *rates, int n_steps,
                    struct stream_times *out);

#endif
