/* rates_record.h - keep measured rates, so that a plan and --mode find the same ones at each start,
 * and without the second that measuring takes.
 *
 * $XDG_CACHE_HOME/zse/rates.json (or ~/.cache/zse/rates.json) has an object for each combination of
 * processor, number of threads, kernel set and version.  A rate is measured again after a month.
 * Without a cache folder, or if the file is damaged, rates are measured each time. */
#ifndef ZSE_CMD_RATES_RECORD_H
#define ZSE_CMD_RATES_RECORD_H

#include <stdint.h>

struct rates_record;

/* NULL: there is no cache folder, or memory is short; the functions below accept NULL. */
struct rates_record *rates_record_open(int n_threads, const char *kernels);
/* Read the n numbers of `key` into v.  Returns the time when they were measured (Unix seconds);
 * 0: not found, too old, or not n positive numbers; v is unchanged then. */
int64_t rates_record_get(const struct rates_record *r, const char *key, double *v, int n);
void rates_record_put(struct rates_record *r, const char *key, const double *v, int n);
/* Write the file if something was put, whole or not at all. */
void rates_record_close(struct rates_record *r);

#endif
