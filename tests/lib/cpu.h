/* cpu.h - processor time, for tests that bound the cost of an operation: unlike wall-clock time it
 * does not depend on other programs. */
#ifndef ZSE_TESTS_CPU_H
#define ZSE_TESTS_CPU_H

#include <time.h>

/* Processor time of all threads of this process, in seconds. */
static inline double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#endif
