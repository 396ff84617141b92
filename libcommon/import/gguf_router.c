/* gguf_router.c - read and check the keys of routers in GGUF files. */
#include "libcommon/import/gguf_arch.h"

#include <inttypes.h>
#include <string.h>

enum { SOFTMAX = 1 << GATE_SOFTMAX, SIGMOID = 1 << GATE_SIGMOID, CHOSEN = 1 << GATE_CHOSEN,
       SQRT_SOFTPLUS = 1 << GATE_SQRT_SOFTPLUS };

/* The scoring functions that an architecture's routers can have, and the one that a file without
 * the key has.  All other architectures have GATE_SOFTMAX. */
static const struct { const char *gguf; unsigned can; enum gguf_gate otherwise; } routers[] = {
    { "deepseek2",      SOFTMAX | SIGMOID, GATE_SOFTMAX },
    { "deepseek4",      SQRT_SOFTPLUS, GATE_SQRT_SOFTPLUS },
    { "deepseek32",     SIGMOID, GATE_SIGMOID },
    { "glm-dsa",        SIGMOID, GATE_SIGMOID },
    { "glm4moe",        SIGMOID, GATE_SIGMOID },
    { "dots1",          SIGMOID, GATE_SIGMOID },
    { "minimax-m2",     SIGMOID, GATE_SIGMOID },
    { "llama4",         SIGMOID, GATE_SIGMOID },
    { "cohere2moe",     SIGMOID, GATE_SIGMOID },
    { "exaone-moe",     SIGMOID, GATE_SIGMOID },
    { "afmoe",          SIGMOID, GATE_SIGMOID },
    { "hy_v3",          SIGMOID, GATE_SIGMOID },
    { "mimo2",          SIGMOID, GATE_SIGMOID },
    { "kimi-linear",    SIGMOID, GATE_SIGMOID },
    { "bailingmoe3",    SIGMOID, GATE_SIGMOID },
    { "lfm2moe",        SIGMOID, GATE_SIGMOID },
    { "nemotron_h_moe", SIGMOID, GATE_SIGMOID },
    { "gpt-oss",        CHOSEN,  GATE_CHOSEN },
};

static const char *const names[] = {
    [GATE_SOFTMAX] = "softmax", [GATE_SIGMOID] = "sigmoid", [GATE_CHOSEN] = "softmax of the chosen outputs",
    [GATE_SQRT_SOFTPLUS] = "square root of softplus",
};

enum gguf_gate gguf_gate(const struct gguf_translator *t)
{
    unsigned can = SOFTMAX;
    int64_t n = 0, otherwise = GATE_SOFTMAX;
    for (size_t i = 0; i < sizeof routers / sizeof *routers; i++)
        if (strcmp(routers[i].gguf, t->arch) == 0) {
            can = routers[i].can;
            otherwise = routers[i].otherwise;
        }
    gguf_key_int(t, "expert_gating_func", 0, &n, NULL);
    /* The first files of GLM 4.7 Flash (deepseek2) lack the key, but have the bias for choosing
     * experts, which DeepSeek's models have only with sigmoids. */
    if (n == 0)
        return can & SIGMOID && gguf_any_layer_has(t, ".exp_probs_b.bias") ? GATE_SIGMOID : (enum gguf_gate)otherwise;
    if (n < N_GATES && (can >> n & 1))
        return (enum gguf_gate)n;
    gguf_fail(t, ERR_UNSUPPORTED, "key %s.expert_gating_func: %" PRId64 "%s%s%s is not supported, expected %d (%s)",
              t->arch, n, n < N_GATES ? " (" : "", n < N_GATES ? names[n] : "", n < N_GATES ? ")" : "", (int)otherwise,
              names[otherwise]);
    return (enum gguf_gate)otherwise;
}

void gguf_check_factor(const struct gguf_translator *t)
{
    static const char *const factors[] = { "routed_scaling_factor", "route_scale", "router_scaling_factor" };
    const double factor = gguf_key_float(t, "expert_weights_scale", 1);
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++)
        if (json_object_get(t->out, factors[i]))
            return;
    if (factor != 0 && factor != 1)                     /* 0: no factor */
        gguf_fail(t, ERR_UNSUPPORTED, "key %s.expert_weights_scale: %g is not supported by this architecture", t->arch,
                  factor);
}
