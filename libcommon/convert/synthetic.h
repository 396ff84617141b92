/* synthetic.h - models of random weights in the shapes of known ones, to measure speed and memory
 * without their files.
 *
 * Nothing is read and nothing quantized: codes are random, scales keep the activations of a deep
 * model near 1.  The bytes depend on the name, the types and the quality alone.  With o->config
 * only a plan can be made. */
#ifndef ZSE_CONVERT_SYNTHETIC_H
#define ZSE_CONVERT_SYNTHETIC_H

#include "libcommon/convert/internal.h"

/* Make source (configuration, a byte-level tokenizer of the true size, one tensor without data
 * for each weight), config and weights of o->synthetic in the conversion. Of source.h's
 * functions only source_file may be used on it. */
int synthetic_open(struct conversion *cv, int *n_specs, struct err *e);
void synthetic_close(struct source *s);         /* in place of source_close; NULL is fine */
/* Pass every byte of tensor p, in order, to sink. */
int synthetic_tensor(struct conversion *cv, struct recipe *p,
                     int (*sink)(void *user, const void *data, size_t n, struct err *e),
                     void *user, struct err *e);

#endif
