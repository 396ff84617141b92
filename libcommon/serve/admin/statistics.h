/* statistics.h - figures that several endpoints of the administration report. */
#ifndef ZSE_SERVE_ADMIN_STATISTICS_H
#define ZSE_SERVE_ADMIN_STATISTICS_H

struct server;

static inline double gigabytes(unsigned long long bytes) { return (double)bytes * 1e-9; }
double round2(double x);                                /* to two decimals */
double server_uptime_s(const struct server *s);
int server_n_calls(const struct server *s);             /* open API calls */
int server_has_gpu(struct server *s);                   /* a model uses one, or NVML finds one */

#endif
