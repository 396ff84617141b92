/* sampling.h - the sampling options, from the table in sampling.def. */
#ifndef ZSE_ENGINE_SAMPLING_H
#define ZSE_ENGINE_SAMPLING_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"

struct logit_bias { int32_t id; float bias; };
enum { DRY_MAX_BREAKERS = 16, DRY_BREAKER_BYTES = 40 };

struct sampling {
#define SAMPLING_REAL  float
#define SAMPLING_WHOLE int
#define OPTION(KIND, name, ...) SAMPLING_##KIND name;
#include "libcommon/engine/sampling.def"
#undef OPTION
#undef SAMPLING_REAL
#undef SAMPLING_WHOLE
    uint64_t seed;
    const struct logit_bias *bias; int n_bias;      /* added to logits; borrowed by sampler_open, which copies them */
    /* texts that end repetitions, also borrowed; NULL: "\\n", ":", "\"" and "*" */
    const char *const *dry_sequence_breakers; int n_dry_sequence_breakers;
};

/* Indexes into sampling_options. */
enum {
#define OPTION(KIND, name, ...) SAMPLING_##name,
#include "libcommon/engine/sampling.def"
#undef OPTION
    N_SAMPLING_OPTIONS
};

struct sampling_option {
    const char *name, *flag;            /* "top_k" in a request, "top-k" on a command line */
    int is_whole;                       /* an int; else a float */
    size_t at;                          /* in struct sampling */
    double min, max, value;             /* value: the default */
    int by_model;                       /* a model's generation_config may set it */
    const char *help;
};
extern const struct sampling_option sampling_options[N_SAMPLING_OPTIONS];

double sampling_get(const struct sampling *s, const struct sampling_option *o);
void sampling_set(struct sampling *s, const struct sampling_option *o, double value);

struct sampling sampling_defaults(void);
/* Apply a model's generation_config to *s (NULL or not an object: nothing to apply).  Returns 0; -1
 * with *e, which names the field.  It does not check ranges: sampling_check() does. */
int sampling_config(struct sampling *s, const json_t *config, struct err *e);
/* Checks ranges; the error names the field, its value and the range. */
int sampling_check(const struct sampling *s, int vocab_size, struct err *e);

#endif
