/* cpu.h - processor time, for tests that bound an effort: unlike the clock on the wall it does
 * not depend on what else the machine does. */
#ifndef ZSE_TESTS_CPU_H
#define ZSE_TESTS_CPU_H

#include <time.h>

/* Seconds that all threads of this process have computed. */
static inline double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
