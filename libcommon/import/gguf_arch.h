/* gguf_arch.h - the parts of gguf_config.c: GGUF keys, config.json fields, architectures. */
#ifndef ZSE_IMPORT_GGUF_ARCH_H
#define ZSE_IMPORT_GGUF_ARCH_H

#include "libcommon/import/gguf.h"

/* One translation of the keys of g into the fields of out. */
struct gguf_translator {
    const struct gguf *g;
    char arch[64];              /* general.architecture, the prefix of the keys */
    json_t *out;
    int64_t n_layers, hidden, heads, kv_heads, head_dim, n_rot, ff, context;
    int hybrid;                 /* some keys have one number for each layer, 0 for layers without the part */
};

/* ---- gguf_keys.c: keys, given without "ARCH.", and fields ---- */

/* "ARCH.KEY" in buf. */
const char *gguf_full_key(const struct gguf_translator *t, const char *key, char *buf, size_t room);
int gguf_has_key(const struct gguf_translator *t, const char *key);
const struct source_tensor *gguf_find_tensor(const struct gguf_translator *t, const char *name);        /* NULL: none */
double gguf_key_float(const struct gguf_translator *t, const char *key, double otherwise);
/* A whole number, or an array of equal ones for the layers.  otherwise < 0: the key must exist. */
int gguf_key_int(const struct gguf_translator *t, const char *key, int64_t otherwise, int64_t *out, struct err *e);
/* The number of layer i, for keys that may have one for each layer. */
int64_t gguf_key_at(const struct gguf_translator *t, const char *key, int64_t i, int64_t otherwise);
/* The largest number of any layer in a hybrid model; gguf_key_int for all others. */
int gguf_key_most(const struct gguf_translator *t, const char *key, int64_t otherwise, int64_t *out, struct err *e);

void gguf_set_int(struct gguf_translator *t, const char *name, int64_t v);
void gguf_set_bool(struct gguf_translator *t, const char *name, int v);
void gguf_set_string(struct gguf_translator *t, const char *name, const char *v);
/* A number that was an f32, with the fewest digits that give the same f32 again: 1e-05, not
 * 9.999999747378752e-06.  NULL: it is not finite. */
json_t *gguf_real(double v);
void gguf_set_real(struct gguf_translator *t, const char *name, double v);
/* "layer_types": windows in all layers but every `period`-th, unless a key lists them. */
void gguf_set_layer_types(struct gguf_translator *t, int64_t period);

/* ---- gguf_arch.c: the architectures ---- */

/* The names of the fields that hold an architecture's sizes. */
enum gguf_spelling {
    SPELLING_CURRENT,           /* hidden_size, num_hidden_layers ... */
    SPELLING_HYBRID,            /* the same, with keys that may have one number for each layer */
    SPELLING_GPT2,              /* n_embd, n_layer ... */
    SPELLING_OWN,               /* written by add() */
};

struct gguf_arch {
    const char *gguf, *model_type, *class_name;         /* general.architecture; "model_type" and "architectures" */
    const char *eps, *act_key, *act;            /* fields of the norm's epsilon and of the activation; its value */
    enum gguf_spelling spelling;
    int rope;                                           /* write rope_parameters */
    void (*add)(struct gguf_translator *t);             /* fields of this architecture; NULL: none */
};
/* NULL: unknown. */
const struct gguf_arch *gguf_arch_find(const char *name);

#endif
