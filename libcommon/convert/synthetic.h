/* synthetic.h - make models with random weights in the shapes of known models, to measure speed and
 * memory without the models' files.
 *
 * Nothing is read and nothing is quantized: codes are random, and scales are such that the
 * activations of a deep model stay near 1.  The bytes depend only on the name, the types and the
 * quality.  If o->config is set, a plan can be made but no file. */
#ifndef ZSE_CONVERT_SYNTHETIC_H
#define ZSE_CONVERT_SYNTHETIC_H

#include "libcommon/convert/internal.h"

/* The config.json of the model of this name, in one spelling; of NAME:LAYERS the first LAYERS
 * layers.  Returns a new reference; NULL with *e, which lists the names. */
json_t *synthetic_config(const char *name, struct err *e);

/* Set source, config and weights of the conversion for the model o->synthetic.  The source has
 * the configuration, a byte-level tokenizer of the true size, and a tensor without data for each
 * weight; of the functions in source.h only source_file() may be used on it. */
int synthetic_open(struct conversion *cv, int *n_specs, struct err *e);
void synthetic_close(struct source *s);         /* in place of source_close; NULL is fine */
/* Pass every byte of tensor p, in order, to sink. */
int synthetic_tensor(struct conversion *cv, struct recipe *p,
                     int (*sink)(void *user, const void *data, size_t n, struct err *e),
                     void *user, struct err *e);

#endif
