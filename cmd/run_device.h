/* run_device.h - the options of devices, for run_options.c. */
#ifndef ZSE_CMD_RUN_DEVICE_H
#define ZSE_CMD_RUN_DEVICE_H

#include "cmd/open_model.h"

/* run_option() and run_options_check() for these options. */
int run_device_option(const char *prog, int c, const char *arg, struct run_options *r);
int run_device_check(const char *prog, struct run_options *r);

#endif
