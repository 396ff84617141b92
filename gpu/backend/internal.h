/* internal.h - the structures of the device backend: backend.c (the devices of a model), step.c
 * (the batch and graphs of one device), device_memory.c (its memory, counted before it is taken),
 * device_plan.c (the parts that fit), layers.c (the kernels of a step in order), hybrid.c (layers
 * with experts on the host), expert_slots.c (experts that move to the device), upload_crew.c
 * (threads that upload them), tp_model.c (the part of a model that one of several devices computes
 * in every layer), tp_group.c (the order of their work for graphs). */
#ifndef ZSE_GPU_BACKEND_INTERNAL_H
#define ZSE_GPU_BACKEND_INTERNAL_H

#include "gpu/backend/all_reduce.h"
#include "gpu/backend/device_weights.h"
#include "gpu/backend/tp_model.h"
#include "gpu/backend/upload_crew.h"
#include "gpu/gpu.h"
#include "gpu/rt/link.h"
#include "gpu/rt/ring.h"
#include "libcommon/plan/expert_moves.h"
#include "libcommon/plan/expert_share.h"

enum {
    LOGIT_ROWS = 64,            /* rows of logits at a time */
    TILE_TOKENS = 16,           /* attention works by tiles from this many tokens of a sequence on */
    MAX_GRAPH_TOKENS = 64, N_BUCKETS = BACKEND_BUCKETS, MAX_SPLIT_BITS = 16,
    STEP_ARRAYS = 9,
    /* tokens are drawn on the device for the first MAX_DRAWS rows of logits of a step only */
    MAX_DRAWS = 4 * LOGIT_ROWS, DRAW_WORDS = sizeof(struct gpu_draw) / 4,
    MAX_BEGUN = 2, N_SLOTS = MAX_BEGUN + 1, NEVER = -1,
};

/* Features of models that the kernels support. */
enum { DEVICE_FEATURES = FEATURE_EXPERTS | FEATURE_SINKS | FEATURE_STATES | FEATURE_GATES | FEATURE_LATENTS |
                         FEATURE_VARIANTS };

/* Pinned memory of a step: one slot for each step in flight, and one more for forward(). */
struct step_slot { int32_t *words, *ids; struct gpu_event *done; };

/* Layers with experts on the host. */
struct hybrid {
    /* device: for each layer, place of each expert (gpu_route.place); results of the host */
    int32_t *place; uint8_t *host_result;
    /* pinned: the places; choices and weights [n * top_k] of a layer; for a part of its tokens the
     * input [n][hidden_size], the row of each pair in the results, and the results */
    int32_t *host_place, *id; float *input, *weight; uint8_t *result;
    const float *from;                  /* device: the input of all tokens */
    struct gpu_event *asked;            /* choices and input are on the host */
    size_t result_bytes;                /* bytes of `result` that hybrid_compute() has written */
    /* device memory of two groups of stream_slots slots, which are filled in turn or together */
    uint8_t *stream; int stream_slots, turn;
    /* the experts that pass through the slots in this layer: the i-th of n_passing has -1 - i in
     * `passing` (gpu_route.place).  up: device memory for `passing` of chosen experts, and host_up
     * the same, pinned: [n_experts], 0 if an expert stays where it is.  missing: [n_experts] the
     * experts that were chosen and are not on the device, those that pass first */
    const int32_t *passing; int n_passing;
    int32_t *up, *host_up; int *missing, n_missing;
    /* the crew uploads the passing experts to both groups; both groups are being read */
    int posted, both;
    struct upload_crew *crew;
    struct expert_shares shares;
    uint64_t timed_bytes;               /* uploaded between the events `begun` and filled[0]; 0: none */
    uint64_t sent_bytes;                /* the same of `begun` and `sent`, in a step that uploads all */
    int threshold;                      /* tokens from which the device computes all experts of this step */
    int n_against;                      /* steps since the last one that did not follow the speeds */
    struct gpu_ring *ring;
    struct gpu_event *filled[2], *used[2], *begun, *sent, *swapped;
    struct expert_moves moves;
    int swapped_at;                     /* the first layer that waits for `swapped` */
    struct backend_experts counts;
};

/* The input of matrices, as the kernels of its type read it. */
struct input { const uint16_t *act; int stride; const float *x; int ldx; };

/* Devices that share every layer of a stage.  The first one leads: it has the embedding or the head
 * if the stage has them, and its step queues the work of all. */
struct tp_group {
    int n;
    struct gpu_backend *rank[BACKEND_MOST_GPUS];
    struct all_reduce *sums;
    struct gpu_event *order[BACKEND_MOST_GPUS];         /* each of its device */
};

/* A device with consecutive layers of a model, all of them or those of a stage of a pipeline; with
 * tp it has a part of each. */
struct gpu_backend {
    const struct model *m;          /* with tp the part */
    struct tp_model *tp;            /* tensor parallelism: what this rank computes; NULL: whole layers */
    struct tp_group *group;         /* with tp, of the first rank of a stage; NULL: of the others */
    struct backend_options o;
    struct gpu *g;
    struct dweights *w;
    struct layer_range layers;      /* on the device */
    int host_layers;                /* the first layers of the model, on the host; only of rank 0 */
    /* The hidden states of the stage before arrive through this link, with tp from the rank with
     * the same place there; NULL: this is the first stage. */
    struct gpu_link *link; const struct gpu_backend *before;
    int n_experts;                  /* experts of each layer on the device; later ones are on the host */
    /* the CPU backend of host_layers and of experts (cpu_first_open); NULL: there are none */
    void *host;
    int exact, floats;              /* floats: some matrix is f32, so inputs are kept as f32 too */
    int floats_att;                 /* some matrix o is f32, so its input is kept as f32 too */
    int stride_hidden, stride_att, stride_mlp, stride_expert;
    int att_size, stride_low;       /* width of the widest input of o; of the rows in act_low */
    int mlp_size;                   /* width of the widest dense or shared MLP */
    /* 1: the shared MLPs differ in width from the dense ones, so they have activation rows of their
     * own.  In common rows, values of the wider MLP would stay in the padding of the narrower
     * one. */
    int shared_apart;
    /* device */
    /* kv: blocks of kv_stride bytes, then those of the tail, of tail_stride bytes; kv_part,
     * tail_part: bytes of the keys of a head */
    uint8_t *kv; size_t kv_size, kv_stride, tail_stride; uint32_t kv_part, tail_part;
    float *states; size_t state_size, state_stride;     /* state_size: bytes of all states */
    uint8_t *arena; size_t arena_size;
    float *x, *y, *hf, *hf2, *q, *k, *v, *attf, *gate, *up, *cosine[MAX_ROPES], *sine[MAX_ROPES], *alibi,
          *freq[MAX_ROPES], *freq_long[MAX_ROPES], *partial, *logits;
    uint16_t *act, *act2, *act_att, *act_mlp, *act_shared;
    /* latent attention: queries, later the values of heads; outputs of q_a, also f16; sums of
     * latents */
    float *latent_heads, *latent_low, *latent_sums; uint16_t *act_low;
    /* layers with a state: their projections, the outputs of in_ba, of gate_a, of the convolution,
     * and of the recurrence; and the gates of attention.  state_in_size: floats of a token's
     * projections */
    float *state_in, *state_ba, *state_low, *state_conv, *state_out, *att_gate; int state_in_size;
    /* mixtures of experts.  route: outputs of the router; choice: the chosen experts.  For each
     * pair (gpu_choice): the activations before down, in mid_expert where an expert is f32, else in
     * act_expert; without a gate, the outputs of up in mid_expert; and the result. */
    float *route; struct gpu_choice choice; unsigned *arrived;
    int32_t *tp_place;              /* with tp: [n_experts] place of each expert, -1: on another device */
    struct input mixed;             /* of the current layer: the output of its mixer */
    struct hybrid hybrid;
    uint16_t *act_expert; float *mid_expert, *out_expert;
    /* with act_codes: the rounded input of the current matrices */
    int8_t *act_code; float *act_scale;
    /* steps of one token (one_token.c); open: this model has them; mixed: with several types;
     * shape: one of the layers */
    struct {
        int open, mixed;
        struct gpu_token_layer shape, *layers;
        /* as in struct gpu_token_step; `exchanged` is qkv_parts, down_parts, att, h and o_parts */
        float *exchanged, *sums, *gate_parts;
        unsigned long long *outputs;
        unsigned *arrived;              /* and layers_before */
    } one;
    unsigned *tickets;              /* gpu_linear.tickets, gpu_attention.arrived, gpu_sample.arrived */
    /* the norm whose result the launch before it has left in act and hf; NULL: none */
    const struct dnorm *normed;
    /* the norm that adds sums to x before it, which the launch before it has left in partial; NULL:
     * none */
    const struct dnorm *adds; struct gpu_part_sums sums;
    struct gpu_part_sums qkv[3];    /* the same of q, k and v, for gpu_prepare; n_parts 0: none */
    int32_t *step; size_t step_room;        /* in words of 4 bytes */
    int32_t *ids;                           /* [MAX_DRAWS] the tokens that the last step drew */
    struct gpu_sample_part *sample_part;    /* gpu_sample.part */
    /* host, pinned */
    struct step_slot slot[N_SLOTS];
    int32_t *hstep, *hids;                  /* host buffers of the slot in use */
    /* hx: hidden states of the host's layers; hlogits: space for at least one row of logits and one
     * of hidden states */
    float *hx, *hlogits;
    size_t hlogits_room, pinned;            /* hlogits_room: floats in hlogits; pinned: bytes of all
                                             * pinned memory */
    size_t partial_room;                    /* floats */
    int max_splits, logit_rows;
    /* n_begun: number of steps launched and not ended; first_begun: slot of the first of them;
     * n_follow: number of rows of the last step whose drawn tokens the next step may read on the
     * device (0: none) */
    int n_begun, first_begun, n_follow;
    /* sizes of the current step */
    int n, n_decode, n_tiles, splits, n_items, longest;
    struct gpu_graph *graph[N_BUCKETS][MAX_SPLIT_BITS];
    /* number of steps of each kind so far; NEVER: there was no memory for a graph */
    int seen[N_BUCKETS][MAX_SPLIT_BITS];
    struct backend_graphs graphs;           /* counted */
    struct gpu_plan plan;
    /* with o.watch: pinned, the states of a step, [n * top_k] choices and their weights */
    float *watched;
    int calm_steps;                 /* steps since the device's memory was short, see memory_relieve() */
    uint64_t begun_ns, context_ns;
    size_t taken;                   /* see backend_device */
    char name[256];
};

/* The devices of a model, stage after stage: the handle of backend_gpu. */
struct gpu_ranks {
    int n, a_stage;                 /* a_stage: ranks of a stage */
    struct gpu_backend *rank[BACKEND_MOST_GPUS];
    struct gpu_link *drawn;         /* tokens from the last stage to the first; NULL: there is one */
    struct tp_group group[BACKEND_MOST_GPUS / 2];       /* with tp, of each stage */
    char name[256];
};

/* Arrays of a step, one after the other, followed by tiles, options for drawing, and tables.  A
 * token -1 - r below 0 stands for the token that the device has drawn into ids[r].  A_FIRST: the
 * first token of each item, and the number of tokens after the last one; A_STATE: its state;
 * A_TAIL: like A_TABLE, for blocks of the tail. */
enum { A_TOKEN, A_POS, A_LONG, A_TABLE, A_DECODE, A_LOGIT, A_FIRST, A_STATE, A_TAIL };
static inline size_t array_size(const struct gpu_backend *b) { return (size_t)(b->o.max_tokens + MAX_GRAPH_TOKENS); }
static inline int32_t *host_array(struct gpu_backend *b, int i) { return b->hstep + (size_t)i * array_size(b); }
static inline int32_t *array(const struct gpu_backend *b, int i) { return b->step + (size_t)i * array_size(b); }
static inline size_t tiles_at(const struct gpu_backend *b) { return STEP_ARRAYS * array_size(b); }
static inline size_t draws_at(const struct gpu_backend *b)
{
    return tiles_at(b) + 2 * (size_t)(b->o.max_tokens / TILE_TOKENS + 1);
}
static inline size_t tables_at(const struct gpu_backend *b) { return draws_at(b) + MAX_DRAWS * DRAW_WORDS; }

/* Returns the number of rows whose partial results of split attention fit, with this many splits
 * per row.  At least 1 if splits is at most max_splits. */
static inline int partial_rows(const struct gpu_backend *b, int splits)
{
    const struct config *c = &b->m->config;
    const size_t n_heads = c->n_heads > 0 ? (size_t)c->n_heads : 1;
    const size_t rows = b->partial_room / (n_heads * (size_t)splits * (size_t)(c->head_dim + 2));
    return rows < array_size(b) ? (int)rows : (int)array_size(b);
}

/* A graph serves all steps of up to 2^bucket tokens and this number of splits of attention. */
static inline int splits_of(const struct gpu_backend *b, int splits_bit)
{
    return splits_bit < MAX_SPLIT_BITS && 1 << splits_bit < b->max_splits ? 1 << splits_bit : b->max_splits;
}
/* Are there such graphs? */
static inline int graph_fits(const struct gpu_backend *b, int bucket, int splits_bit)
{
    return splits_bit < MAX_SPLIT_BITS && 1 << bucket <= partial_rows(b, splits_of(b, splits_bit)) &&
           1 << bucket <= b->logit_rows;
}

/* Whether types of fewer than 8 bits have a tail.  Layers with a window then are in its blocks
 * only, as f16. */
static inline int has_tail(const struct gpu_backend *b) { return b->o.n_window_blocks > 0; }
static inline int in_tail_only(const struct gpu_backend *b, int layer)
{
    return has_tail(b) && config_layer_window(&b->m->config, layer, 0) > 0;
}

/* Bytes of a layer's keys and values in a KV block.  Latent attention has one row per token, which
 * is key and value. */
static inline size_t layer_kv_bytes(const struct gpu_backend *b, int layer)
{
    const int kind = b->m->config.mixer[layer];
    return kind == MIXER_MLA ? b->kv_part
           : mixer_has_kv(kind) && !in_tail_only(b, layer)
                 ? (size_t)b->m->config.n_kv_heads * 2 * b->kv_part + 2 * kv_shared_bytes(b->o.kv.key) : 0;
}
/* The same in a block of the tail. */
static inline size_t layer_tail_bytes(const struct gpu_backend *b, int layer)
{
    return has_tail(b) && mixer_has_kv(b->m->config.mixer[layer])
               ? (size_t)b->m->config.n_kv_heads * 2 * b->tail_part : 0;
}

/* Returns 1 if these experts are computed with f32 activations.  The kernels for f16 activations
 * need gate and up to have the same type and group size. */
static inline int experts_in_floats(const struct gpu_backend *b, const struct expert *x)
{
    const struct mat *up = &x->up.w, *gate = b->m->config.gated ? &x->gate.w : up;
    return b->exact || gate->type == QT_F32 || x->down.w.type == QT_F32 || gate->type != up->type ||
           gate->tile_bytes != up->tile_bytes;
}

static inline int32_t *places_of(const struct gpu_backend *b, int32_t *all, int layer)
{
    return all + (size_t)layer * (size_t)b->m->config.moe.n_experts;
}
static inline int has_host_experts(const struct gpu_backend *b)
{
    return !b->tp && b->n_experts < b->m->config.moe.n_experts;
}
/* With strict, experts that the device lacks are uploaded before it computes them, so that an
 * answer does not depend on their number; --moe cpu leaves them to the host in any case. */
static inline int uploads_all(const struct gpu_backend *b)
{
    return has_host_experts(b) && b->o.strict && b->o.moe != MOE_CPU;
}
static inline int host_computes(const struct gpu_backend *b) { return has_host_experts(b) && !uploads_all(b); }
/* The devices whose work a device queues: those of its group, or itself. */
static inline int n_members(const struct gpu_backend *b) { return b->group ? b->group->n : 1; }
static inline struct gpu_backend *member(struct gpu_backend *b, int i) { return b->group ? b->group->rank[i] : b; }
static inline int leads(const struct gpu_backend *b) { return !b->tp || b->tp->rank == 0; }
/* Number of devices that share a layer, and of stages. */
static inline int stage_ranks(const struct backend_gpus *g) { return g->tp > 1 ? g->tp : 1; }
static inline int n_stages(const struct backend_gpus *g) { return g->n > 1 ? g->n / stage_ranks(g) : 1; }
/* Does the device compute the logits? */
static inline int has_head(const struct gpu_backend *b)
{
    return b->layers.end == b->m->config.n_layers && leads(b);
}

/* ---- step.c: one device ---- */
struct gpu_backend *rank_open(const struct model *m, const struct backend_options *o, struct err *e);
/* Before: all steps have ended, and b->link is closed; NULL is fine. */
void rank_close(struct gpu_backend *b);
/* Check the caller's batch, whose items may follow n_follow rows of the step before.  *n_tables:
 * the number of entries of its block tables. */
int rank_check(const struct gpu_backend *b, const struct batch *batch, int n_follow, size_t *n_tables, struct err *e);
/* Select the device and the memory of the next step. */
int rank_prepare(struct gpu_backend *b, size_t n_tables, struct err *e);
/* Run a step; a rank with the head waits for its results.  With tp the first rank of a stage queues
 * the work of all, and the others do nothing. */
int rank_forward(struct gpu_backend *b, const struct batch *batch, float *logits, struct err *e);
/* See struct backend.  The caller counts the step in n_begun and n_follow. */
int rank_can_begin(const struct gpu_backend *b, const struct batch *batch);
int rank_begin(struct gpu_backend *b, const struct batch *batch, struct err *e);
/* Wait for the oldest step.  *ids: the tokens that it drew, for a rank with the head. */
int rank_end(struct gpu_backend *b, const int32_t **ids, struct err *e);
int rank_copy_block(struct gpu_backend *b, int32_t from, int32_t to, struct err *e);
int rank_copy_state(struct gpu_backend *b, int from, int to, struct err *e);
void rank_device(const struct gpu_backend *b, struct backend_device *d);

/* ---- tp_group.c ---- */
/* Let the first device wait for what the others have queued; let the others wait for the first. */
int group_gather(struct tp_group *t, struct err *e);
int group_release(struct tp_group *t, struct err *e);

/* ---- hybrid.c: only if has_host_experts() ---- */
int hybrid_tokens(const struct gpu_backend *b);         /* most tokens that the host computes at a time */
size_t hybrid_results(const struct gpu_backend *b);     /* bytes of host_result and result */
size_t hybrid_places(const struct gpu_backend *b);      /* bytes of place */
int hybrid_open(struct gpu_backend *b, struct err *e);
void hybrid_close(struct gpu_backend *b);               /* in any case */
/* The places of a layer's experts on the device; NULL if all are there. */
const int32_t *hybrid_place(const struct gpu_backend *b, int layer);
/* After the router: queue copies of x [b->n][hidden_size], the input of the experts, and of
 * b->choice to the host. */
int hybrid_ask(struct gpu_backend *b, const float *x, struct err *e);
/* Wait for these copies, divide the chosen experts that the device lacks, and begin to upload some:
 * b->hybrid.n_passing.  If there are any, *r sorts their pairs from now on. */
int hybrid_divide(struct gpu_backend *b, int layer, struct gpu_route *r, struct err *e);
/* Compute the host's experts for the first tokens. */
void hybrid_compute(struct gpu_backend *b, int layer);
/* Compute them for the other tokens, and queue the sum. */
int hybrid_sum(struct gpu_backend *b, int layer, const struct gpu_expert_sum *all, struct err *e);

/* ---- expert_slots.c: only if has_host_experts() ---- */
/* Plan the memory for experts that are uploaded to be computed once.  Returns its bytes on the
 * device; 0: none. */
size_t slots_plan(struct gpu_backend *b);
size_t slots_bytes(const struct gpu_backend *b, int layer);     /* bytes of an expert of a layer */
int slots_open(struct gpu_backend *b, struct err *e);
void slots_close(struct gpu_backend *b);                /* in any case */
/* Before a step: move experts that are chosen often to the device. */
int slots_begin(struct gpu_backend *b, struct err *e);
/* Let the compute stream wait for the experts that were moved to this layer. */
int slots_need(struct gpu_backend *b, int layer, struct err *e);
/* Count that n tokens chose from a layer's experts: id [n * top_k]. */
void slots_count(struct gpu_backend *b, int layer, const int32_t *id, int n);
/* The number of tokens of a step from which the device computes all experts, and uploads those that
 * it lacks; 0: never.  *from: its source, static; NULL if 0. */
int slots_threshold(const struct gpu_backend *b, const char **from);
/* Before the layers of a step: decide whether the device computes all experts. */
int slots_choose(struct gpu_backend *b, struct err *e);
/* 1 if the device computes all experts of this step, because its prompts are long. */
int slots_stream(const struct gpu_backend *b);
/* Let all experts that the layer lacks pass through the slots. */
void slots_pass_all(struct gpu_backend *b, int layer);
/* Let the crew upload the n_passing experts, at most those of both groups. */
int slots_post(struct gpu_backend *b, int layer, struct err *e);
/* Queue the upload of passing experts first, first + 1 .., as many as a group has, or wait for the
 * crew; *slots: where they are, for kernels queued from now on.  Returns their number; 0: there are
 * no more.  Call slots_used() after the kernels that read them. */
int slots_fill(struct gpu_backend *b, int layer, int first, struct dexperts *slots, struct err *e);
int slots_used(struct gpu_backend *b, struct err *e);

/* ---- device_plan.c ---- */
/* Plan the memory of the rank of these options on its device. */
int plan_rank(struct gpu *g, const struct model *m, const struct backend_options *o, struct gpu_plan *p, struct err *e);
/* Let the options ask for the experts of a plan. */
void plan_fix_experts(struct backend_options *o, const struct gpu_plan *p);
/* The kernels and copies of this device, at most, in the graph of a bucket. */
size_t graph_nodes(const struct gpu_backend *b, int bucket);
/* The options of one rank of several GPUs. */
struct backend_options rank_options(const struct backend_options *o, int rank);

/* ---- device_memory.c ---- */
/* With tp, let b->m be the part of its rank. */
int memory_part(struct gpu_backend *b, struct err *e);
/* Compute all sizes from b->m and b->o.  Returns 0; -1 with *e if the device cannot compute the
 * model. */
int memory_sizes(struct gpu_backend *b, struct err *e);
/* Count and allocate all memory of a backend whose m, o and g are set.  Returns 0; -1 with *e,
 * which names the sizes, if it does not fit: nothing is allocated then. */
int memory_open(struct gpu_backend *b, struct err *e);
void memory_close(struct gpu_backend *b);
/* Allocate pinned and device memory for steps of `room` words.  The previous memory is freed once
 * the device no longer uses it. */
int memory_grow_step(struct gpu_backend *b, size_t room, struct err *e);
/* Before a step: if more than 97 % of the device's memory are taken, by whatever program, give a
 * layer of the window back.  If less than 90 % would be taken with that layer for CALM_STEPS steps,
 * take it again. */
enum { CALM_STEPS = 8 };
int memory_relieve(struct gpu_backend *b, struct err *e);

/* ---- watch_step.c ---- */
/* Pinned memory for o.watch; 0: none. */
size_t watch_bytes(const struct gpu_backend *b);
/* If there is o.watch: wait, and give it the results of a layer, -1: of the embedding. */
int watch_layer(struct gpu_backend *b, int layer, struct err *e);

/* ---- one_token.c ---- */
/* Bytes of the descriptions of layers, and floats of sums of parts. */
size_t one_token_layers_bytes(const struct gpu_backend *b);
size_t one_token_exchanged(const struct gpu_backend *b);
size_t one_token_sums(const struct gpu_backend *b);
size_t one_token_outputs(const struct gpu_backend *b);
/* Find out whether the layers of this model can be one launch, and describe them on the device: the
 * last part of opening. */
int one_token_open(struct gpu_backend *b, struct err *e);
/* Are the layers of the current step one launch? */
int one_token_takes(const struct gpu_backend *b);
int one_token_run(struct gpu_backend *b, struct err *e);

/* ---- layers.c: operands of a layer ---- */
struct gpu_norm layers_norm(const struct gpu_backend *b, const struct dnorm *norm, float *x, uint16_t *act, float *out);
struct gpu_attention layers_attention(const struct gpu_backend *b, const struct dlayer *l, int index);
struct gpu_route layers_route(const struct gpu_backend *b, const struct dlayer *l, int index);
struct gpu_experts layers_experts(const struct gpu_backend *b, const struct dexperts *x);
struct gpu_step layers_step(const struct gpu_backend *b, int index);

/* ---- layers.c: these functions queue work and do not wait for it ---- */
/* Run the device's layers on the b->n tokens of the step.  Their input is the embedding, which is
 * looked up here, or is already in b->x if the host or another device has earlier layers. */
int layers_run(struct gpu_backend *b, struct err *e);
/* Compute the logits of rows [first, first + n) of A_LOGIT into b->logits. */
int layers_logits(struct gpu_backend *b, int first, int n, struct err *e);
/* Apply the final norm to rows [first, first + n) of the step; the result is written to b->y. */
int layers_hidden(struct gpu_backend *b, int first, int n, struct err *e);

#endif
