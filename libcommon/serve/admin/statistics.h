/* statistics.h - figures that several administration endpoints report. */
#ifndef ZSE_SERVE_ADMIN_STATISTICS_H
#define ZSE_SERVE_ADMIN_STATISTICS_H

struct server;

static inline double gigabytes(unsigned long long bytes) { return (double)bytes * 1e-9; }
double round2(double x);                                /* x rounded to two decimals */
double server_uptime_s(const struct server *s);
int server_n_calls(const struct server *s);             /* number of API calls in progress */
int server_has_gpu(struct server *s);                   /* whether a model uses a GPU or NVML finds one */

#endif
