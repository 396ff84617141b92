/* plan.c - estimate sizes, choose a type that fits, predict speeds. */
#include "libcommon/plan/plan.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* ---- sizes ---- */

void plan_add_tensor(struct plan_weights *w, const char *name, int copies, enum qtype type, uint64_t n, uint64_t bytes,
                     double active, int tied, int n_layers)
{
    const uint64_t all = (uint64_t)copies, used = all * (uint64_t)((double)bytes * active);
    const int in_layer = strncmp(name, "layers.", 7) == 0, is_head = strncmp(name, "head.", 5) == 0 ||
        (tied && strncmp(name, "embed.", 6) == 0);
    /* norms and biases are f32 and small */
    const int matrix = (int)type < PLAN_QTYPES && (in_layer || is_head) && type != QT_F32;
    w->bytes += all * bytes;
    if (in_layer)
        w->layer_bytes += all * (bytes / (uint64_t)n_layers);
    if (!in_layer && !is_head)
        return;
    w->step_bytes += used;
    if (!matrix)
        return;
    w->by_type[type] += used;
    if (in_layer)
        w->ops[type] += (double)copies * 2.0 * (double)n * active;
}

/* Bytes that a KV block of a layer holds besides keys and values: keys of an indexer, and
 * compressed entries. */
static uint64_t beside_keys(const struct plan_layer *l, enum kv_type type)
{
    if (l->entries)
        return (l->kv_rows == 1 ? kv_entries_bytes(type, l->kv_width, l->entries) : 0) +
               (l->index_width ? kv_entries_bytes(type, l->index_width, l->entries) : 0);
    return l->index_width ? kv_block_bytes(type, l->index_width) : 0;
}

/* Most prompt tokens of a step, as BACKEND_STEP_TOKENS. */
enum { STEP = 512 };

/* The scales that heads share stand once for the keys and once for the values; latents, in one row,
 * have none. */
static uint64_t layer_block_bytes(const struct plan_layer *l, enum kv_type type)
{
    if (l->kv_rows == 0)
        return 0;
    return beside_keys(l, type) + (l->kv_rows == 1 ? kv_block_bytes(type, l->kv_width)
                                                   : kv_heads_bytes(type, l->kv_width, l->kv_rows) +
                                                     kv_shared_bytes(type));
}

static int64_t blocks_for(int64_t n_tokens) { return (n_tokens + KV_BLOCK - 1) / KV_BLOCK; }

/* Number of window blocks for n_seqs sequences; -1: storing windows alone saves nothing. */
static int64_t window_blocks(int64_t n_tokens, int window, int n_seqs)
{
    const int64_t each = blocks_for(window) + 2, step = blocks_for(STEP), saved = blocks_for(n_tokens) - each - step;
    return saved <= 0 ? -1 : (each + (saved / 2 < each ? saved / 2 : each)) * n_seqs + step;
}

/* windows: the number of blocks of layers with a window; -1: as many as the others have */
static uint64_t kv_bytes(const struct plan_shape *s, enum kv_type type, int64_t blocks, int64_t windows)
{
    uint64_t n = 0;
    for (int i = 0; i < s->n_layers; i++)
        n += layer_block_bytes(&s->layer[i], type) * (uint64_t)(s->layer[i].stored && windows >= 0 ? windows : blocks);
    return n;
}

uint64_t plan_kv_bytes(const struct plan_shape *s, enum kv_type type, int64_t n_tokens, int n_seqs)
{
    int window = 0;
    for (int i = 0; i < s->n_layers; i++)
        window = s->layer[i].stored > window ? s->layer[i].stored : window;
    return kv_bytes(s, type, blocks_for(n_tokens) * n_seqs, window_blocks(n_tokens, window, n_seqs));
}

uint64_t plan_kv_whole_bytes(const struct plan_shape *s, enum kv_type type, int64_t n_tokens, int n_seqs)
{
    return kv_bytes(s, type, blocks_for(n_tokens) * n_seqs, -1);
}

uint64_t plan_kv_token(const struct plan_shape *s, enum kv_type type)
{
    return plan_kv_bytes(s, type, KV_BLOCK, 1) / KV_BLOCK;
}

/* ---- fitting ---- */

static const struct { const char *name; enum plan_mode mode; } modes[] = {
    { "auto", PLAN_AUTO }, { "min_memory", PLAN_MIN_MEMORY }, { "balanced", PLAN_BALANCED },
    { "max_speed", PLAN_MAX_SPEED }, { "for_vram", PLAN_FOR_VRAM },
    { "memory", PLAN_MIN_MEMORY }, { "speed", PLAN_MAX_SPEED },
};

int plan_mode_find(const char *name)
{
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        if (strcmp(modes[i].name, name) == 0 && modes[i].mode != PLAN_FOR_VRAM)
            return (int)modes[i].mode;
    return -1;
}

const char *plan_mode_name(enum plan_mode m) { return modes[m].name; }

double plan_exchange(const struct plan_choice *c)
{
    enum { PROMPT = 512, ANSWER = 128 };
    return c->decode > 0 ? (c->prefill > 0 ? PROMPT / c->prefill : 0) + ANSWER / c->decode : 0;
}

static int is_faster(const struct plan_choice *a, const struct plan_choice *b)
{
    const double s = plan_exchange(a), t = plan_exchange(b);
    return s > 0 && t > 0 ? s < t : a->bytes < b->bytes;            /* fewer bytes are read sooner */
}

/* 1 if choice a is better than b, which is the best of the finer choices before a. */
static int is_better(const struct plan_choice *a, const struct plan_choice *b, const struct plan_choice *fastest,
                     enum plan_mode mode)
{
    switch (mode) {
    case PLAN_MIN_MEMORY: return a->bytes < b->bytes;
    case PLAN_BALANCED:   return strcmp(a->type, "int8") == 0;
    case PLAN_MAX_SPEED:  return is_faster(a, b);
    case PLAN_AUTO:       return plan_exchange(b) > 2 * plan_exchange(fastest);
    default:              return 0;                 /* keep the first choice, which is the finest */
    }
}

int plan_choose(const struct plan_choice *c, int n, enum plan_mode mode, uint64_t memory)
{
    const struct plan_choice *fastest = NULL;
    int best = -1;
    for (int i = 0; i < n; i++)
        if (c[i].bytes <= plan_usable(memory) && plan_exchange(&c[i]) > 0 && (!fastest || is_faster(&c[i], fastest)))
            fastest = &c[i];
    for (int i = 0; i < n; i++)
        if (c[i].bytes <= plan_usable(memory) &&
            (best < 0 || is_better(&c[i], &c[best], fastest ? fastest : &c[best], mode)))
            best = i;
    return best;
}

int plan_preflight(const char *what, uint64_t weights, uint64_t kv, uint64_t workspace, uint64_t most, uint64_t now,
                   int *tight, struct err *e)
{
    const uint64_t needed = weights + kv + workspace;
    const double gb = 1e-9;
    *tight = (double)needed > 0.9 * (double)most;
    if ((double)needed <= 0.95 * (double)most && needed <= now)
        return 0;
    const enum err_code code = (double)needed <= 0.95 * (double)most ? ERR_MEMORY : ERR_LIMIT;
    return err_set(e, code, "%s: needs %.2f GB (weights %.2f, keys and values %.2f, workspace %.2f), but there are %.2f GB, %.2f of them available", what,
                   (double)needed * gb, (double)weights * gb, (double)kv * gb, (double)workspace * gb,
                   (double)most * gb, (double)now * gb);
}

int plan_times(double memory, double bytes)
{
    const double n = memory > 0 && bytes > 0 ? memory / bytes : 0;
    return n < INT_MAX ? (int)n : INT_MAX;
}

/* ---- speed ---- */

/* parallel loops of a layer: q with k and v, attention, o, gate with up, down */
enum { LOOPS = 5 };

/* The fraction of the peak rate of FMAs that recurrences reach.  Each float of the state takes two
 * FMAs, which are counted, but also a multiplication by the decay, a load and a store; a core does
 * only one store in the time of two FMAs. */
static const double STATE_SHARE = 0.5;

/* The number of tokens of `context` that a layer attends to. */
static double seen_by(const struct plan_layer *l, double context)
{
    return l->window && context > l->window ? l->window : context;
}

/* The intermediate size of the MLPs and experts that a token uses, added up. */
static double inner_width(const struct plan_shape *s, const struct plan_layer *l)
{
    const double parameters = (double)(l->dense_mlp + l->shared_mlp) +
                              (l->has_experts ? (double)s->top_k * (double)s->expert : 0);
    return parameters / (3.0 * s->hidden_size);
}

/* Bytes of a layer's keys and values in a KV block. */
static size_t pair_bytes(const struct plan_layer *l, struct kv_types kv)
{
    return l->kv_rows == 1 ? kv_block_bytes(kv.key, l->kv_width)
        : kv_heads_bytes(kv.key, l->kv_width, l->kv_rows / 2) + kv_heads_bytes(kv.value, l->kv_width, l->kv_rows / 2);
}

/* Whether a model of this shape has a tail, as config_tail() decides for a model. */
static int has_tail(const struct plan_shape *s, struct kv_types kv)
{
    int widest = 0;
    for (int i = 0; i < s->n_layers; i++)
        widest = s->layer[i].stored > widest ? s->layer[i].stored : widest;
    return kv_has_tail(kv) && widest <= KV_WIDEST_TAIL;
}

/* Bytes of keys and values that the last of `context` tokens reads in a layer.  tail: the layers
 * have a tail (kvtype.h). */
static double kv_read(const struct plan_layer *l, struct kv_types kv, int tail, double context)
{
    const double seen = seen_by(l, context), newest = KV_SINKS + KV_TAIL + KV_TAIL_STEP / 2,
                 as_f16 = !tail ? 0 : l->stored || seen < newest ? seen : newest;
    const struct kv_types f16 = kv_both(KV_F16);
    return ((seen - as_f16) * (double)pair_bytes(l, kv) + as_f16 * (double)pair_bytes(l, f16)) / KV_BLOCK;
}

double plan_decode(const struct plan_shape *s, const struct plan_weights *w, const struct plan_rates *r,
                   struct kv_types kv, int context)
{
    double t = s->vocab_size * r->pick_s;
    for (int i = 0; i < PLAN_QTYPES; i++) {
        if (w->by_type[i] && !(r->read[i] > 0))
            return 0;
        t += w->by_type[i] ? (double)w->by_type[i] / r->read[i] : 0;
    }
    if (!(r->memory > 0) || !(r->attend[0] > 0) || t <= 0)
        return 0;
    const int tail = has_tail(s, kv);
    for (int i = 0; i < s->n_layers; i++) {
        const struct plan_layer *l = &s->layer[i];
        const double seen = seen_by(l, context), inner = inner_width(s, l), h = s->hidden_size;
        const double read = l->kv_rows ? kv_read(l, kv, tail, context) / r->memory : 0;
        const double attend = (double)l->attended * seen / r->attend[0];
        t += read > attend ? read : attend;                     /* attention computes while the next keys are read */
        t += 2 * (double)l->state_bytes / r->memory;            /* read and written */
        /* one thread computes two norms, and quantizes the inputs of q, k and v, of o, of gate and
         * up, and of down */
        t += 2 * h * r->norm_s + (3 * h + inner) * r->round_s + inner * r->act_s / r->n_threads + LOOPS * r->sync_s;
    }
    return 1 / t;
}

double plan_prefill(const struct plan_shape *s, const struct plan_weights *w, const struct plan_rates *r, int n_tokens)
{
    double t = 0;
    for (int i = 0; i < PLAN_QTYPES; i++) {
        if (w->ops[i] > 0 && !(r->multiply[i] > 0))
            return 0;
        t += w->ops[i] > 0 ? w->ops[i] / r->multiply[i] : 0;
    }
    if (!(r->f32 > 0) || !(r->attend[1] > 0) || t <= 0)
        return 0;
    for (int i = 0; i < s->n_layers; i++) {
        const struct plan_layer *l = &s->layer[i];
        t += (double)l->attended * seen_by(l, n_tokens / 2.0) / r->attend[1];
        t += (double)l->state_bytes / sizeof(float) * 4 / (r->f32 * STATE_SHARE);
        t += (2 * s->hidden_size * r->norm_s + inner_width(s, l) * r->act_s) / r->n_threads + LOOPS * r->sync_s /
             (n_tokens < STEP ? n_tokens : STEP);
    }
    return 1 / t;
}
