/* hardware.h - the commands of zse-hardware. */
#ifndef ZSE_CMD_HARDWARE_H
#define ZSE_CMD_HARDWARE_H

#include "libcommon/hw/machine.h"

struct hardware_options {
    int json, measure, threads;
    const char *file, *root;            /* NULL: not given */
};

int hardware_show(const struct hardware_options *o);
int hardware_check(const struct hardware_options *o);

#endif
