/* hadamard.c - rotate vectors by a Hadamard matrix. */
#include "libcommon/cpu/hadamard.h"

#include <math.h>

void hadamard_rotate(float *x, int n)
{
    const int run = n & -n;
    const float scale = 1 / sqrtf((float)run);
    for (int half = 1; half < run; half *= 2)
        for (int i = 0; i < n; i += 2 * half)
            for (int j = i; j < i + half; j++) {
                const float a = x[j], b = x[j + half];
                x[j] = a + b;
                x[j + half] = a - b;
            }
    for (int i = 0; i < n; i++)
        x[i] *= scale;
}
