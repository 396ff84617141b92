/* bench.h - the parts of zse-bench. */
#ifndef ZSE_CMD_BENCH_H
#define ZSE_CMD_BENCH_H

#include "cmd/open_model.h"

struct bench_options {
    struct run_options run;
    int prompt, generate, batch, repeats, warmup, json;
    int window, windows;                /* windows 0: all that the text fills */
    const char *ids, *output;
    int speed_option, score_option;     /* one that only means something to the speed, or to perplexity and quality, was given */
    double load_s;
};

/* Each returns an exit code. */
int bench_speed(const struct bench_options *o, const char *model);                                      /* bench_speed.c */
int bench_logits(const struct bench_options *o, const char *model);                                     /* bench_score.c */
int bench_perplexity(const struct bench_options *o, const char *model, const char *text);
int bench_quality(const struct bench_options *o, const char *reference, const char *model, const char *text);

#endif
