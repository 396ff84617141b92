/* planning.h - compute the size and speed of a model from its configuration. */
#ifndef ZSE_CMD_PLANNING_H
#define ZSE_CMD_PLANNING_H

#include "libcommon/convert/convert.h"
#include "libcommon/format/zfile.h"
#include "libcommon/plan/plan.h"
#include "libcommon/plan/registry.h"

/* The number of types that are compared: COMPARED in column `chosen` of qtype.def. */
#define PLANNED_NONE
#define PLANNED_SMALL
#define PLANNED_STEP
#define PLANNED_COMPARED + 1
#define QTYPE(ID, number, name, choice, option, codes, values, zero, low, high, scale, extra, row, sizes, group, acts, \
              stream, ymm, zmm, gpu, chosen) PLANNED_##chosen
enum { PLANNED_TYPES = 0
#include "libcommon/quant/qtype.def"
};
/* Their names as -q spells them, finest first: bf16, int8, nl4; i = 0 .. PLANNED_TYPES - 1. */
const char *planned_type(int i);

struct planned {
    struct plan_shape shape;
    struct plan_params params;
    uint64_t step_bytes;            /* bytes of the activations of a step: cpu_step_memory() */
    int supported;                  /* the engine runs it */
    char why_not[512];
};
/* config: as on the hub.  ERR_FORMAT if it lacks fields that are needed to count.  *p is valid (and
 * to be closed) in any case. */
int planned_open(struct planned *p, const char *name, const json_t *config, struct err *e);
/* The same for a model that is open. */
int planned_of(struct planned *p, const struct config *c, struct err *e);
void planned_close(struct planned *p);

/* Find a config by name: in the registry, a config.json, a folder with one (or a GGUF or .zse
 * file), or org/name on the hub.  New reference; *title: the model's name, caller frees. */
json_t *planned_config(const char *name, char **title, struct err *e);

/* The size of the weights as this type (a name that zse-convert knows, one type for all).  *exact:
 * to the byte as zse-convert writes them from bf16 weights; else parameters times bytes per
 * weight. */
int planned_weights(const struct planned *p, const char *name, const json_t *config, const char *type,
                    struct plan_weights *w, int *exact, struct err *e);
/* The same for a source with weights, a folder or a GGUF file: to the byte as zse-convert writes
 * them. */
int planned_source(const struct planned *p, const char *path, const char *type, struct plan_weights *w, struct err *e);
/* The same for a .zse. */
void planned_file(const struct planned *p, const struct zfile *z, struct plan_weights *w);
/* Activations and other private memory besides keys and values: those of the CPU engine's default
 * steps (the smallest where the architecture does not run). */
uint64_t planned_workspace(const struct planned *p);
/* Weights, keys and values (f16) of one sequence of `context` tokens (at most the model's), its
 * states, and workspace. */
uint64_t planned_bytes(const struct planned *p, const struct plan_weights *w, int context);

/* ---- rates ---- */

/* Measure how fast the kernels multiply these types (those of w; w NULL: those of planned_type() as
 * zse-convert writes them), with matrices like the shape's MLP (NULL: 8192 x 2048) and as many
 * weights as w has, of which small ones stay in caches; and the other parts of a step.  *r is
 * zeroed, or from an earlier call for the same shape: then only the types are measured again.
 * Takes some tenths of a second for each type. */
int planned_rates(struct plan_rates *r, const struct plan_weights *w, const struct plan_shape *s, int n_threads,
                  const char *kernels, struct err *e);

/* ---- modes ---- */

/* --mode: auto, min_memory, balanced, max_speed, for_vram=SIZE. */
struct planned_mode {
    int given;
    enum plan_mode mode;
    uint64_t memory;                /* for_vram; 0: the available memory */
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
    /* a folder or GGUF with weights: types are compared as converted from it, and if it is
     * quantized `keep` is the finest; or NULL */
    const char *path;
    const json_t *config;
    int context, n_seqs;            /* tokens; sequences of them, 0: one */
    uint64_t kv_most;               /* limit of keys and values, unless one sequence takes more; 0: none */
    int measure, n_threads;         /* measure: predict speeds, which takes some tenths of a second a type */
    const char *kernels;
};
/* *s is valid (and to be closed) in any case. */
int planned_compare(struct planned_choices *s, const struct planned_query *a, struct err *e);
void planned_choices_close(struct planned_choices *s);
/* Index of the choice, or -1 with *e if nothing fits.  available: memory available now. */
int planned_choose(const struct planned_choices *s, const char *name, const struct planned_mode *m, uint64_t available,
                   struct err *e);

#endif
