/* planning.h - compute the size and speed of a model from its configuration. */
#ifndef ZSE_CMD_PLANNING_H
#define ZSE_CMD_PLANNING_H

#include "libcommon/convert/convert.h"
#include "libcommon/format/zfile.h"
#include "libcommon/plan/plan.h"
#include "libcommon/plan/registry.h"

/* PLANNED_TYPES: the number of types that are compared, COMPARED in column `chosen` of
 * qtype.def. */
#define PLANNED_NONE
#define PLANNED_SMALL
#define PLANNED_STEP
#define PLANNED_COMPARED + 1
#define QTYPE(ID, number, name, choice, option, codes, values, zero, low, high, scale, extra, row, sizes, group, acts, \
              stream, ymm, zmm, gpu, chosen) PLANNED_##chosen
enum { PLANNED_TYPES = 0
#include "libcommon/quant/qtype.def"
};
/* The name of compared type i (0 .. PLANNED_TYPES - 1) as -q spells it, finest first: bf16, int8,
 * nl4. */
const char *planned_type(int i);

struct planned {
    struct plan_shape shape;
    struct plan_params params;
    uint64_t step_bytes;            /* bytes of the activations of a step: cpu_step_memory() */
    int supported;                  /* the engine runs it */
    char why_not[512];
};
/* Start to plan for a model with this config.json.  ERR_FORMAT: it lacks fields that are needed for
 * counting parameters.  *p must be closed in any case. */
int planned_open(struct planned *p, const char *name, const json_t *config, struct err *e);
/* The same for a model that is open. */
int planned_of(struct planned *p, const struct config *c, struct err *e);
void planned_close(struct planned *p);

/* Find a config by name: in the registry, a config.json, a folder with one (or a GGUF or .zse
 * file), or org/name on the hub.  New reference; *title: the model's name, caller frees. */
json_t *planned_config(const char *name, char **title, struct err *e);

/* Compute the size of the weights converted to this type (a name that zse-convert knows, one type
 * for all).  *exact 1: the size is, to the byte, that of the file which zse-convert writes from
 * bf16 weights; 0: the size is estimated as parameters times bytes per weight. */
int planned_weights(const struct planned *p, const char *name, const json_t *config, const char *type,
                    struct plan_weights *w, int *exact, struct err *e);
/* The same for a source with weights, a folder or a GGUF file; the size is exact to the byte. */
int planned_source(const struct planned *p, const char *path, const char *type, struct plan_weights *w, struct err *e);
/* The size of the weights in a .zse. */
void planned_file(const struct planned *p, const struct zfile *z, struct plan_weights *w);
/* Bytes of activations and other private memory besides keys and values, for the CPU engine's
 * default steps (the smallest steps if the architecture is not supported). */
uint64_t planned_workspace(const struct planned *p);
/* Bytes of the weights, of keys and values (f16) and states of one sequence of `context` tokens (at
 * most the model's), and of the workspace.  on_gpu: layers with a window store all tokens. */
uint64_t planned_bytes(const struct planned *p, const struct plan_weights *w, int context, int on_gpu);

/* ---- rates ---- */

/* Measure how fast the kernels multiply the types of w (w NULL: those that zse-convert writes for
 * planned_type()).  The matrices have the size of the shape's MLP (s NULL: 8192 x 2048), and
 * together as many weights as w, so that the weights of a small model stay in the caches.  Also
 * measure the other parts of a step.  *r is zeroed by the caller, or has the results of an earlier
 * call for the same shape: then only the types are measured again.  Takes some tenths of a second
 * for each type. */
int planned_rates(struct plan_rates *r, const struct plan_weights *w, const struct plan_shape *s, int n_threads,
                  const char *kernels, struct err *e);

/* ---- modes ---- */

/* --mode: auto, min_memory, balanced, max_speed, for_vram=SIZE. */
struct planned_mode {
    int given;
    enum plan_mode mode;
    uint64_t memory;                /* bytes of for_vram; 0: use the available memory */
};
/* Returns 0, or 2 after a message on stderr. */
int planned_mode_parse(const char *prog, const char *arg, struct planned_mode *m);
#define PLANNED_MODES "auto, min_memory, balanced, max_speed or for_vram=SIZE"

/* Ways to run a model, finest first. */
enum { PLANNED_CHOICES = PLANNED_TYPES + 1 };
struct planned_choices {
    struct planned p;
    int n, exact;
    struct plan_weights w[PLANNED_CHOICES];
    struct plan_choice c[PLANNED_CHOICES];
};
struct planned_query {
    const char *name;               /* for messages */
    /* a folder or GGUF file with weights, or NULL.  Sizes are those of conversions of it, and if
     * it is quantized, `keep` is the finest choice. */
    const char *path;
    const json_t *config;
    int context, n_seqs;            /* tokens of a sequence; number of sequences, 0: one */
    int on_gpu;                     /* as for planned_bytes() */
    uint64_t kv_most;               /* limit of keys and values, unless one sequence takes more; 0: none */
    int measure, n_threads;         /* measure: predict speeds, in some tenths of a second per type */
    const char *kernels;
};
/* Compare the choices.  *s must be closed in any case. */
int planned_compare(struct planned_choices *s, const struct planned_query *a, struct err *e);
void planned_choices_close(struct planned_choices *s);
/* The index of the choice that the mode selects; -1 with *e if nothing fits.  available: bytes of
 * memory available now. */
int planned_choose(const struct planned_choices *s, const char *name, const struct planned_mode *m, uint64_t available,
                   struct err *e);

#endif
