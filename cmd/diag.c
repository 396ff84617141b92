/* diag.c - root mean squares, the largest number, NaNs and chosen experts of every layer. */
#include "cmd/diag.h"

#include <math.h>
#include <stdio.h>

enum { DIAG_LINE = 2048 };

struct figures { double rms; float largest; size_t nan, inf; };

/* rms and largest are those of the finite numbers. */
static struct figures figures_of(const float *x, size_t n)
{
    struct figures f = { 0 };
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        f.nan += isnan(x[i]) != 0;
        f.inf += isinf(x[i]) != 0;
        if (isfinite(x[i])) {
            sum += (double)x[i] * x[i];
            f.largest = fabsf(x[i]) > f.largest ? fabsf(x[i]) : f.largest;
        }
    }
    const size_t finite = n - f.nan - f.inf;
    f.rms = finite ? sqrt(sum / (double)finite) : 0;
    return f;
}

static void print_figures(const char *name, int n_rows, const float *x, int cols)
{
    const struct figures f = figures_of(x, (size_t)n_rows * (size_t)cols);
    fprintf(stderr, "diag %s tokens=%d rms=%.6g largest=%.6g nan=%zu inf=%zu\n", name, n_rows, f.rms,
            (double)f.largest, f.nan, f.inf);
}

static void print_states(void *user, int layer, const float *x, int n_tokens, int cols)
{
    char name[32] = "embed";
    (void)user;
    if (layer >= 0)
        snprintf(name, sizeof name, "layer=%d", layer);
    print_figures(name, n_tokens, x, cols);
}

static void print_logits(void *user, const float *logits, int n_rows, int cols)
{
    (void)user;
    print_figures("logits", n_rows, logits, cols);
}

static void print_experts(void *user, int layer, const int *id, const float *weight, int n_tokens, int top_k)
{
    char line[DIAG_LINE];
    const size_t last = (size_t)(n_tokens - 1) * (size_t)top_k;
    size_t at = 0;
    (void)user;
    for (int i = 0; n_tokens > 0 && i < top_k && at < sizeof line; i++)
        at += (size_t)snprintf(line + at, sizeof line - at, "%s%d", i ? "," : "experts=", id[last + (size_t)i]);
    for (int i = 0; n_tokens > 0 && i < top_k && at < sizeof line; i++)
        at += (size_t)snprintf(line + at, sizeof line - at, "%s%.4g", i ? "," : " weights=",
                               (double)weight[last + (size_t)i]);
    const struct figures f = figures_of(weight, (size_t)n_tokens * (size_t)top_k);
    if (n_tokens > 0)
        fprintf(stderr, "diag layer=%d %s nan=%zu\n", layer, line, f.nan);
}

const struct step_watch diag_watch = { NULL, print_states, print_experts, print_logits };
