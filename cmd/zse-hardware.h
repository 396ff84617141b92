/* zse-hardware.h - the commands of zse-hardware. */
#ifndef ZSE_CMD_ZSE_HARDWARE_H
#define ZSE_CMD_ZSE_HARDWARE_H

#include "libcommon/hw/machine.h"

struct hardware_options {
    int json, measure, threads;
    const char *file, *root;            /* NULL: not given */
    /* recommend, capacity */
    const char *model; int mode;        /* enum plan_mode */
    uint64_t vram;                      /* 0: the memory available now */
    int context, no_speed, all;
    /* budget */
    const char *pp, *quant, *kv, *experts;
    double vram_mb, headroom_mb, fraction, max_tokens;
    int divisor, quiet;
    const char *const *names; int n_names;      /* arguments after the command; borrowed from argv */
};

int hardware_show(const struct hardware_options *o);
int hardware_check(const struct hardware_options *o);
int hardware_recommend(const struct hardware_options *o);       /* hardware_models.c */
int hardware_capacity(const struct hardware_options *o);
int hardware_budget(const struct hardware_options *o);          /* hardware_budget.c */

#endif
