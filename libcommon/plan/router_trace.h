/* router_trace.h - the experts that the routers of a model chose for the tokens of a text: read
 * from a file, or drawn at random.
 *
 * As text: a line "experts N top_k K", then a line for each token and layer with experts: the
 * number of the layer and the K chosen experts.  The layers of a token ascend, and every token has
 * the same layers. */
#ifndef ZSE_PLAN_ROUTER_TRACE_H
#define ZSE_PLAN_ROUTER_TRACE_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"

enum { TRACE_EXPERTS = 4096, TRACE_TOP_K = 64, TRACE_LAYERS = 1024 };

struct router_trace {
    int n_layers, n_experts, top_k, n_tokens;
    int32_t *id;                        /* [n_tokens][n_layers][top_k], owned */
};
/* Parse n bytes of text; name: for messages.  -1 with *e, which has the line. */
int router_trace_parse(struct router_trace *t, const char *text, size_t n, const char *name, struct err *e);
/* Draw a trace: in each layer, the probability of the expert at rank r (1 ..) is in proportion to
 * r^-skew, and the ranks of different layers have nothing to do with each other; tokens are
 * independent.  skew 0: all experts alike. */
int router_trace_draw(struct router_trace *t, int n_layers, int n_experts, int top_k, int n_tokens, double skew,
                      uint64_t seed, struct err *e);
void router_trace_release(struct router_trace *t);

/* The top_k experts of a token in the i-th layer with experts. */
static inline const int32_t *trace_choice(const struct router_trace *t, int token, int i)
{
    return t->id + ((size_t)token * (size_t)t->n_layers + (size_t)i) * (size_t)t->top_k;
}

#endif
