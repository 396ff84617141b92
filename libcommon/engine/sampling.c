/* sampling.c - defaults, ranges and generation_config of the options in sampling.def. */
#include "libcommon/engine/sampling.h"

#include <float.h>

#include "libcommon/base/json.h"

enum { REAL, WHOLE };
const struct sampling_option sampling_options[N_SAMPLING_OPTIONS] = {
#define OPTION(KIND, name, flag, min, max, value, by_model, help) \
    { #name, flag, KIND, offsetof(struct sampling, name), min, max, value, by_model, help },
#include "libcommon/engine/sampling.def"
#undef OPTION
};

double sampling_get(const struct sampling *s, const struct sampling_option *o)
{
    const char *at = (const char *)s + o->at;
    return o->is_whole ? (double)*(const int *)at : (double)*(const float *)at;
}

void sampling_set(struct sampling *s, const struct sampling_option *o, double value)
{
    char *at = (char *)s + o->at;
    if (o->is_whole)
        *(int *)at = (int)value;
    else
        *(float *)at = (float)value;
}

struct sampling sampling_defaults(void)
{
    struct sampling s = { .seed = 0 };
    for (int i = 0; i < N_SAMPLING_OPTIONS; i++)
        sampling_set(&s, &sampling_options[i], sampling_options[i].value);
    return s;
}

int sampling_config(struct sampling *s, const json_t *config, struct err *e)
{
    int sample = 1;
    if (!json_is_object(config))
        return 0;
    for (int i = 0; i < N_SAMPLING_OPTIONS; i++) {
        const struct sampling_option *o = &sampling_options[i];
        int64_t whole = 0;
        double real = 0;
        if (!o->by_model)
            continue;
        if (o->is_whole ? js_int_or(config, o->name, (int64_t)o->min, (int64_t)o->max, (int64_t)sampling_get(s, o),
                                    &whole, e)
                        : js_real_or(config, o->name, sampling_get(s, o), &real, e))
            return -1;
        sampling_set(s, o, o->is_whole ? (double)whole : real);
    }
    if (js_bool_or(config, "do_sample", 1, &sample, e) != 0)
        return -1;
    if (s->top_k < 0)
        s->top_k = 0;
    if (!sample)
        s->temperature = 0;
    return 0;
}

int sampling_check(const struct sampling *s, int vocab_size, struct err *e)
{
    for (int i = 0; i < N_SAMPLING_OPTIONS; i++) {
        const struct sampling_option *o = &sampling_options[i];
        /* the limits as floats: 0.01 has no exact one */
        const double v = sampling_get(s, o), min = o->is_whole ? o->min : (double)(float)o->min,
                     max = o->is_whole ? o->max : (double)(float)o->max;
        if (!(v >= min && v <= max))
            return err_set(e, ERR_LIMIT, "%s: %g is not in the range %g to %g", o->name, v, o->min, o->max);
    }
    for (int i = 0; i < s->n_bias; i++) {
        if (s->bias[i].id < 0 || s->bias[i].id >= vocab_size)
            return err_set(e, ERR_LIMIT, "logit_bias: token %d is not in the vocabulary of %d", (int)s->bias[i].id,
                           vocab_size);
        if (!(s->bias[i].bias <= FLT_MAX))
            return err_set(e, ERR_LIMIT, "logit_bias: token %d: %g is neither a number nor -inf", (int)s->bias[i].id,
                           s->bias[i].bias);
    }
    return 0;
}
