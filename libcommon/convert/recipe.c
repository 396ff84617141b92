/* recipe.c - choose the form of each tensor. */
#include <fnmatch.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "libcommon/convert/internal.h"
#include "libcommon/import/packed.h"
#include "libcommon/quant/ggml.h"

/* Arguments of -q that are not in qtype.def, and other spellings of some that are. */
static const struct { const char *name; struct convert_type type; } names[] = {
    { "mixed", { CONVERT_MIXED, 0 } },    { "keep", { CONVERT_KEEP, 0 } },      { "fit", { CONVERT_FIT, 0 } },
    { "fp16", { CONVERT_TYPE, QT_F16 } }, { "fp32", { CONVERT_TYPE, QT_F32 } }, { "t3", { CONVERT_TYPE, QT_T3 } },
};

static const char often[] =
#include "libcommon/quant/qtype_options.inc"
    "mixed, keep";
static const char fine[] = "t3"
#define FINER_OFTEN(option)
#define FINER_FINE(option) ", " option
#define FINER_NEVER(option)
#define QTYPE(ID, number, name, choice, option, ...) FINER_##choice(option)
#include "libcommon/quant/qtype.def"
    ;

int convert_parse_type(struct convert_type *t, const char *name, struct err *e)
{
    const struct qtype_info *info;
    for (int i = 0; (info = qtype_at(i)); i++)
        if (info->choice != OPTION_NEVER && strcmp(info->option, name) == 0) {
            *t = (struct convert_type){ CONVERT_TYPE, info->type };
            return 0;
        }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i].name, name) == 0 && names[i].type.kind != CONVERT_FIT) {
            *t = names[i].type;
            return 0;
        }
    return err_set(e, ERR_UNSUPPORTED, "'%s' is no type to convert to: %s (or, to choose more finely, %s)",
                   name, often, fine);
}

const char *convert_type_name(struct convert_type t)
{
    if (t.kind == CONVERT_TYPE && qtype_info(t.qtype))
        return qtype_info(t.qtype)->option;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (names[i].type.kind == t.kind)
            return names[i].name;
    return "?";
}

static const char *const part_names[N_PARTS] = { "attention", "mlp", "embeddings", "lm_head", "experts" };

int convert_part_find(const char *name, size_t size)
{
    for (int i = 0; i < N_PARTS; i++)
        if (strlen(part_names[i]) == size && memcmp(part_names[i], name, size) == 0)
            return i;
    return size == 9 && memcmp(name, "dense_mlp", 9) == 0 ? PART_MLP : -1;
}

const char *convert_part_name(enum convert_part part) { return part_names[part]; }

static const struct { const char *name; uint64_t roles; } projections[] = {
    { "q_proj", 1ull << ROLE_Q }, { "k_proj", 1ull << ROLE_K }, { "v_proj", 1ull << ROLE_V }, { "o_proj", 1ull << ROLE_O },
    { "gate_proj", 1ull << ROLE_GATE | 1ull << ROLE_EXPERT_GATE }, { "up_proj", 1ull << ROLE_UP | 1ull << ROLE_EXPERT_UP },
    { "down_proj", 1ull << ROLE_DOWN | 1ull << ROLE_EXPERT_DOWN },
};

int convert_parse_rule(struct convert_rule *r, const char *text, struct err *e)
{
    const size_t n = strcspn(text, "@=");
    const char *equals = strchr(text, '=');
    const int part = convert_part_find(text, n);
    *r = (struct convert_rule){ .part = part < 0 ? N_PARTS : (enum convert_part)part, .first_layer = -1,
                                .last_layer = INT_MAX, .text = text };
    for (size_t i = 0; i < sizeof projections / sizeof *projections; i++)
        if (strlen(projections[i].name) == n && memcmp(projections[i].name, text, n) == 0)
            r->roles = projections[i].roles;
    if (!equals || (part < 0 && !r->roles))
        return err_set(e, ERR_UNSUPPORTED, "'%s' is not NAME=TYPE with NAME one of attention, mlp, experts, embeddings, lm_head, "
                                           "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj", text);
    r->text_len = (int)(equals - text);
    if (text[n] == '@') {
        int end = 0;
        if (part == PART_EMBEDDINGS || part == PART_LM_HEAD)
            return err_set(e, ERR_UNSUPPORTED, "'%s': %s lie in no layer", text, part_names[part]);
        if (sscanf(text + n, "@%9d%n", &r->first_layer, &end) == 1 && text[n + (size_t)end] == '-')
            r->last_layer = sscanf(text + n, "@%*d-%9d%n", &r->last_layer, &end) == 1 ? r->last_layer : -1;
        else
            r->last_layer = r->first_layer;
        if (end == 0 || text + n + (size_t)end != equals || r->first_layer < 0 || r->last_layer < r->first_layer)
            return err_set(e, ERR_UNSUPPORTED, "'%s': expected layers like @3 or @0-3 before the =", text);
    }
    return convert_parse_type(&r->type, equals + 1, e);
}

/* The last rule that applies to this matrix, or NULL. */
static const struct convert_rule *rule_of(const struct convert_options *o, const struct weight_spec *s,
                                          enum convert_part part)
{
    const struct convert_rule *found = NULL;
    for (int i = 0; i < o->n_rules; i++) {
        const struct convert_rule *r = &o->rules[i];
        if ((r->roles ? r->roles >> s->role & 1 : r->part == part) && s->layer >= r->first_layer &&
            s->layer <= r->last_layer)
            found = r;
    }
    return found;
}

enum convert_part recipe_part(const struct weight_spec *s)
{
    if (s->role == ROLE_HEAD)
        return PART_LM_HEAD;
    if (s->layer < 0 || s->is_vector || s->role == ROLE_ROUTER || s->role == ROLE_SHARED_ROUTER)
        return PART_EMBEDDINGS;
    const struct part_info *p = &part_infos[s->part];
    return p->kind == PART_EXPERT ? PART_EXPERTS : p->is_mixer ? PART_ATTENTION : PART_MLP;
}

/* Returns the input of the layer that this tensor reads and whose channels may be scaled, or
 * INPUT_NONE.  It is INPUT_NONE also for the rates of the delta net, which are not changed. */
static int input_of(const struct config *c, const struct weight_spec *s)
{
    /* each group of rows of o_a reads an input of its own, which is not measured */
    if (s->layer < 0 || s->is_vector || s->role == ROLE_IN_BA || s->role == ROLE_O_A)
        return INPUT_NONE;
    return layer_part_fact(c, s->layer, (enum layer_part)s->part).reads;
}

enum qtype convert_keep_type(int source_type, int *group_size, int *exact)
{
    int type = ggml_exact_type(source_type, group_size);
    *exact = type >= 0;
    if (type >= 0)
        return (enum qtype)type;
    *group_size = 32;
    switch (source_type) {
    case GGML_F64:  return QT_F32;
    /* Q4_K has 16 steps above a minimum like QT_I4M, but its scale is a product, which must be
     * rounded to f16 */
    case GGML_Q4_K: return QT_I4M;
    default:        return QT_I8;
    }
}

int is_float_source(int source_type)
{
    return source_type == GGML_F32 || source_type == GGML_F16 || source_type == GGML_BF16 || source_type == GGML_F64;
}

/* Find the type that represents the source's values exactly.  The rows of the source's codes must
 * be our rows; if packed.h reports the codes as transposed, their columns must be our rows. */
static void find_exact(struct recipe *p)
{
    const struct source_tensor *t = p->source;
    if (t->packed) {
        p->exact = p->spec->map.transposed == (t->n_dims == 3) &&
                   !p->spec->map.slice ? packed_exact(t->packed, &p->exact_group) : -1;
        return;
    }
    p->exact = ggml_exact_type(t->type, &p->exact_group);
    if (!is_float_source(t->type) && (p->spec->map.transposed || p->spec->cols % ggml_type_info(t->type)->block))
        p->exact = -1;
}

static int is_ternary(enum qtype type) { return qtype_is_ternary(qtype_info(type)); }

/* Choose t3 or t2.  t3 pads columns to whole groups of 256; if t2 takes no more bytes, it is
 * used. */
static int set_ternary(struct recipe *p, enum qtype type, int group_size, struct err *e)
{
    const struct weight_spec *s = p->spec;
    struct mat t2;
    if (mat_init(&t2, QT_T2, group_size ? group_size : 128, 128, s->rows, s->cols, e))
        return -1;
    if (type == QT_T3 && !group_size && mat_init(&p->m, QT_T3, 256, 128, s->rows, s->cols, e))
        return -1;
    if (type != QT_T3 || group_size || p->m.size >= t2.size)
        p->m = t2;
    return 0;
}

/* Copy codes and scales in the exact type, or in another type that can represent them.  Activations
 * get groups of 128 if the weights have groups of at least 128 and come from a GGUF, otherwise
 * groups of 32: channels of quantized checkpoints can differ too much for larger ones. */
static int set_copy(struct recipe *p, enum qtype type, int group_size, struct err *e)
{
    p->make = MAKE_COPY;
    if (is_ternary(type) && p->source->packed)
        return set_ternary(p, type, 0, e);
    const int act_group = qtype_takes_floats(qtype_info(type)) ? 0 : group_size < 128 || p->source->packed ? 32 : 128;
    return mat_init(&p->m, type, group_size, act_group, p->spec->rows, p->spec->cols, e);
}

/* Returns 1 if the source's codes can be copied when `type` with groups of group_size (0: any) is
 * requested.  *copy, *copy_group: the type and the group size of the copy. */
static int copies_as(const struct recipe *p, enum qtype type, int group_size, enum qtype *copy, int *copy_group)
{
    const struct source_tensor *t = p->source;
    *copy = (enum qtype)p->exact;
    *copy_group = p->exact_group;
    if (p->exact < 0 || is_float_source(t->type))
        return 0;
    if (is_ternary(*copy) && !t->packed && (is_ternary(type) || type == QT_I4)) {
        *copy = type == QT_T3 && !ggml_fits_t3(t->type, t->data, t->size) ? QT_T2 : type;
        *copy_group = type == QT_T3 ? 256 : group_size ? group_size : type == QT_I4 ? 128 : 256;
        return *copy_group > 0 && *copy_group <= 256;
    }
    if (group_size && group_size != p->exact_group)
        return 0;
    if (is_ternary(*copy) && is_ternary(type))
        *copy = type;
    return *copy == type || (type == QT_I4 && (*copy == QT_I4M || *copy == QT_I4Z));
}

/* Choose a number format for one tensor; may be called again.  rule: how to make it ternary. */
static int set_quant(struct recipe *p, enum qtype type, int group_size, enum ternary_fit rule, struct err *e)
{
    const struct weight_spec *s = p->spec;
    const struct qtype_info *t = qtype_info(type);
    const int user = group_size != 0;
    if (t->is_float) {
        p->make = MAKE_FLOAT;
        return mat_init(&p->m, type, 32, 0, s->rows, s->cols, e);
    }
    if (type == QT_I8 && group_size == -1)
        type = QT_I8R;
    enum qtype copy;
    int copy_group;
    if (copies_as(p, type, group_size, &copy, &copy_group))
        return set_copy(p, copy, copy_group, e);
    p->make = is_ternary(type) && rule != TERNARY_FIT ? MAKE_TERNARY : MAKE_QUANT;
    if (is_ternary(type))
        return set_ternary(p, type, user && group_size > 0 ? group_size : 0, e);
    if (!user || (t->group_sizes & (t->group_sizes - 1)) == 0 || type == QT_I8R)
        group_size = qtype_info(type)->group_size;
    return mat_init(&p->m, type, group_size, qtype_takes_floats(qtype_info(type)) ? 0 : 32, s->rows, s->cols, e);
}

int recipe_set(struct recipe *p, enum qtype type, int group_size, struct err *e)
{
    return set_quant(p, type, group_size, TERNARY_FIT, e);
}

static int set_keep(struct recipe *p, struct err *e)
{
    const struct weight_spec *s = p->spec;
    int group, exact, source = p->source->type;
    if (p->exact >= 0 && !is_float_source(source))
        return set_copy(p, p->source->packed && is_ternary((enum qtype)p->exact) ? QT_T3 : (enum qtype)p->exact,
                        p->exact_group, e);
    enum qtype type = convert_keep_type(source, &group, &exact);
    const struct qtype_info *t = qtype_info(type);
    if (t->is_float) {
        p->make = MAKE_FLOAT;
        return mat_init(&p->m, type, 32, 0, s->rows, s->cols, e);
    }
    p->make = MAKE_NEAR;
    /* rows are not whole blocks, so they cannot be copied; but their values, or twice their values,
     * are whole numbers, which int8 represents */
    if (t->codes == CODES_E2M1 || is_ternary(type)) {
        type = QT_I8;
        group = 32;
    }
    return mat_init(&p->m, type, group, group < 128 ? 32 : 128, s->rows, s->cols, e);
}

/* A matrix that was trained as ternary: use the codes of the packed checkpoint, or round the
 * trained floats as in training. */
static int set_bitnet(struct recipe *p, enum qtype type, struct err *e)
{
    p->make = !p->source->packed ? MAKE_ABSMEAN : p->exact >= 0 ? MAKE_COPY : MAKE_NEAR;
    /* the whole matrix has one scale: large groups store fewer copies of it, but must not need
     * padding */
    return set_ternary(p, type, type == QT_T2 && p->spec->cols % 256 == 0 ? 256 : 0, e);
}

static int matches(const struct convert_options *o, const struct recipe *p)
{
    for (int i = 0; i < o->n_skip; i++)
        if (fnmatch(o->skip[i], p->spec->name, 0) == 0 || fnmatch(o->skip[i], p->source->name, 0) == 0)
            return 1;
    return 0;
}

/* Returns the type for a router: f32 if weights are quantized, because its input channels may be
 * scaled. */
static enum qtype router_type(struct convert_type type, int source_type)
{
    const int as_is = type.kind == CONVERT_KEEP || (type.kind == CONVERT_TYPE && qtype_info(type.qtype)->is_float);
    return as_is && source_type == GGML_BF16 ? QT_BF16 : as_is && source_type == GGML_F16 ? QT_F16 : QT_F32;
}

static int set_type(struct conversion *cv, struct recipe *p, struct convert_type type, struct err *e)
{
    if (type.kind == CONVERT_KEEP)
        return set_keep(p, e);
    /* mixed starts with 8 bits everywhere; mixed_assign changes that */
    return set_quant(p, type.kind == CONVERT_MIXED ? QT_I8 : type.qtype, cv->o->group_size, cv->o->ternary, e);
}

/* Roles that get 8 bits if other matrices get fewer, because they are small and the whole layer
 * depends on them: latents and their expansion, which every head reads; the indexer, because an
 * error there selects other tokens; the low-rank matrices of gates and of a state's rates. */
static const uint64_t narrow_roles = 1ull << ROLE_K_B | 1ull << ROLE_V_B | 1ull << ROLE_Q_A | 1ull << ROLE_KV_A |
                                     1ull << ROLE_INDEX_Q | 1ull << ROLE_INDEX_K | 1ull << ROLE_GATE_A |
                                     1ull << ROLE_X_PROJ;

/* Choose the form of one tensor if the whole model gets `type`. */
static int recipe_tensor(struct conversion *cv, struct recipe *p, struct convert_type type, struct err *e)
{
    const struct convert_options *o = cv->o;
    enum convert_part part = recipe_part(p->spec);
    p->input = input_of(&cv->config, p->spec);
    p->fixed = 0;
    if (p->spec->is_vector) {
        p->make = MAKE_VECTOR;
        p->m = (struct mat){ .type = QT_F32, .rows = (int)p->spec->rows, .cols = (int)p->spec->cols };
        if (__builtin_mul_overflow((uint64_t)p->spec->rows * 4, (uint64_t)p->spec->cols, &p->m.size))
            return err_set(e, ERR_SHAPE, "tensor %s: %" PRId64 " x %" PRId64 " does not fit into memory",
                           p->source->name, p->spec->rows, p->spec->cols);
        return 0;
    }
    if (part == PART_EMBEDDINGS && cv->config.tied && p->spec->role == ROLE_EMBED && o->part[PART_LM_HEAD].set &&
        !o->part[PART_EMBEDDINGS].set)
        part = PART_LM_HEAD;                /* tied: one matrix is both embedding and head */
    /* these are small, and an error in a router would send tokens to other experts */
    if (p->spec->role == ROLE_ROUTER || p->spec->role == ROLE_SHARED_ROUTER || p->spec->role == ROLE_IN_BA ||
        p->spec->role == ROLE_INDEX_W || p->spec->role == ROLE_COMP_VALUE || p->spec->role == ROLE_COMP_SCORE ||
        p->spec->role == ROLE_INDEX_VALUE || p->spec->role == ROLE_INDEX_SCORE ||
        p->spec->role == ROLE_DENSE || (p->spec->role >= ROLE_HYPER_ATTN_DOWN && p->spec->role <= ROLE_NGRAM_EMBED)) {
        p->fixed = 1;
        p->make = MAKE_FLOAT;
        return mat_init(&p->m, router_type(type, p->source->type), 32, 0, p->spec->rows, p->spec->cols, e);
    }
    if (matches(o, p)) {
        p->fixed = 1;
        return set_keep(p, e);
    }
    const struct convert_rule *rule = rule_of(o, p->spec, part);
    if (rule) {
        p->fixed = rule->type.kind != CONVERT_MIXED;
        return set_type(cv, p, rule->type, e);
    }
    const int bitnet = strcmp(cv->config.arch, "bitnet") == 0 && p->spec->layer >= 0;
    if (o->part[part].set) {
        p->fixed = o->part[part].type.kind != CONVERT_MIXED;
        return set_type(cv, p, o->part[part].type, e);
    }
    if (bitnet && (o->keep_grid || (type.kind == CONVERT_KEEP && cv->source->quantization) ||
                   (type.kind == CONVERT_TYPE && is_ternary(type.qtype))))
        return set_bitnet(p, type.kind == CONVERT_TYPE && type.qtype == QT_T2 ? QT_T2 : QT_T3, e);
    if (o->keep_grid && p->source->packed && p->exact >= 0 &&
        qtype_info((enum qtype)p->exact)->bits <= p->source->packed->bits + 2)
        return set_keep(p, e);
    const int compressed = narrow_roles >> p->spec->role & 1;
    int ends = part == PART_EMBEDDINGS || part == PART_LM_HEAD || compressed;
    /* embedding and head get 8 or 6 bits instead of fewer, unless the source's values can be
     * copied */
    if (ends && type.kind == CONVERT_TYPE && qtype_info(type.qtype)->bits < 8) {
        if (!is_float_source(p->source->type) && p->exact >= 0)
            return set_keep(p, e);
        /* with ternary layers the head is a third of the bytes read per token, so it gets 6 bits */
        return recipe_set(p, is_ternary(type.qtype) && !compressed ? QT_M6 : QT_I8, 0, e);
    }
    return set_type(cv, p, type, e);
}

uint64_t recipes_bytes(const struct conversion *cv)
{
    uint64_t sum = 0;
    for (int i = 0; i < cv->n_recipes; i++)
        sum += (uint64_t)cv->recipes[i].spec->copies * cv->recipes[i].m.size;
    return sum;
}

/* -q nl4 promises a size: layers and head (the bytes read per token) take at most 4 % more than
 * with 4 bits in the layers and 8 bits in the head.  Within that size head and embedding get 6
 * bits, and the bytes saved are spent where they reduced the error of a model's output most, in
 * this order: k and v, which are small if heads share them, and which affect every later token; the
 * first two layers, on which all others build; then down, up and gate, from the first layer on.
 * Not in models with experts: there the other matrices are a small part of the file but a large
 * part of the bytes read per token, and 5 and 6 bits take 1.6 times as long per byte as 4 bits
 * (from a profile of DeepSeek-V2-Lite during decoding). */
static const struct { uint64_t roles; int first_layers; enum qtype type; } finer[] = {
    { 1ull << ROLE_K | 1ull << ROLE_V, 0, QT_M6 }, { ~0ull, 2, QT_M5 }, { 1ull << ROLE_DOWN, 0, QT_M5 },
    { 1ull << ROLE_UP, 0, QT_M5 }, { 1ull << ROLE_GATE, 0, QT_M5 },
};

static int is_head(const struct conversion *cv, const struct recipe *p)
{
    return p->spec->role == ROLE_HEAD || (p->spec->role == ROLE_EMBED && cv->config.tied);
}

int recipe_is_next(const struct conversion *cv, const struct recipe *p)
{
    return p->spec->layer == cv->config.n_layers;
}

static int is_end(const struct recipe *p)
{
    return recipe_part(p->spec) == PART_EMBEDDINGS || recipe_part(p->spec) == PART_LM_HEAD;
}

static int plan_finer(struct conversion *cv, struct err *e)
{
    if (config_has_ff(&cv->config, FF_MOE))
        return 0;
    uint64_t limit = 0, used = 0;
    for (int i = 0; i < cv->n_recipes; i++) {
        struct recipe *p = &cv->recipes[i];
        if (p->make != MAKE_QUANT || p->fixed || recipe_is_next(cv, p))
            continue;
        limit += !is_end(p) || is_head(cv, p) ? p->m.size : 0;
        if (is_end(p) && recipe_set(p, QT_M6, 0, e))
            return -1;
        used += !is_end(p) || is_head(cv, p) ? p->m.size : 0;
    }
    limit += limit / 25;
    for (size_t k = 0; k < sizeof finer / sizeof *finer; k++)
        for (int i = 0; i < cv->n_recipes; i++) {
            struct recipe *p = &cv->recipes[i];
            struct mat m;
            if (p->make != MAKE_QUANT || p->fixed || recipe_is_next(cv, p) || is_end(p) || p->m.type != QT_NL4 ||
                !(finer[k].roles >> p->spec->role & 1) ||
                (finer[k].first_layers && p->spec->layer >= finer[k].first_layers))
                continue;
            if (mat_init(&m, finer[k].type, 32, p->m.act_group, p->spec->rows, p->spec->cols, e))
                return -1;
            if (used + (m.size - p->m.size) > limit)
                continue;
            used += m.size - p->m.size;
            p->m = m;
        }
    return 0;
}

static int recipes_of_type(struct conversion *cv, struct convert_type type, struct err *e)
{
    for (int i = 0; i < cv->n_recipes; i++)
        if (recipe_tensor(cv, &cv->recipes[i], type, e))
            return err_prefix(e, "tensor %s", cv->recipes[i].source->name);
    return type.kind == CONVERT_TYPE && type.qtype == QT_NL4 ? plan_finer(cv, e) : 0;
}

/* The float type in which most of the source's weights are stored. */
static enum qtype stored_float(const struct conversion *cv)
{
    uint64_t bytes[3] = { 0 };
    for (int i = 0; i < cv->n_recipes; i++) {
        int t = cv->recipes[i].source->type;
        bytes[t == GGML_F32 ? 0 : t == GGML_BF16 ? 1 : 2] += cv->recipes[i].source->size;
    }
    return bytes[0] > bytes[1] + bytes[2] ? QT_F32 : bytes[1] > bytes[2] ? QT_BF16 : QT_F16;
}

/* Make a layer that predicts further tokens nl4 if the weights are larger than the target,
 * because that layer changes no answer. */
static int shrink_next(struct conversion *cv, struct err *e)
{
    if (recipes_bytes(cv) <= cv->o->target_bytes)
        return 0;
    for (int i = 0; i < cv->n_recipes; i++) {
        struct recipe *p = &cv->recipes[i];
        const struct recipe was = *p;
        if (!recipe_is_next(cv, p) || p->fixed)
            continue;
        if (recipe_tensor(cv, p, (struct convert_type){ CONVERT_TYPE, QT_NL4 }, e))
            return err_prefix(e, "tensor %s", p->source->name);
        if (p->m.size > was.m.size)
            *p = was;
    }
    return 0;
}

static int try_to_fit(struct conversion *cv, enum qtype type, int *fits, struct err *e)
{
    cv->report->type = (struct convert_type){ CONVERT_TYPE, type };
    if (recipes_of_type(cv, cv->report->type, e) || shrink_next(cv, e))
        return -1;
    *fits = recipes_bytes(cv) <= cv->o->target_bytes;
    return 0;
}

static int fit(struct conversion *cv, struct err *e)
{
    const enum qtype stored = stored_float(cv);
    const struct qtype_info *info;
    int fits = 0;
    if (try_to_fit(cv, stored, &fits, e) || (!fits && stored == QT_F32 && try_to_fit(cv, QT_F16, &fits, e)))
        return -1;
    for (int i = 0; !fits && (info = qtype_chosen(i)); i++)
        if (!info->is_float && info->chosen != CHOSEN_SMALL && try_to_fit(cv, info->type, &fits, e))
            return -1;
    if (fits)
        return 0;
    if (cv->o->synthetic)
        return err_set(e, ERR_LIMIT, "%s: the smallest single type, nl4, takes %" PRIu64
                       " bytes, more than the target of %" PRIu64, cv->source->path, recipes_bytes(cv),
                       cv->o->target_bytes);
    cv->report->type = (struct convert_type){ CONVERT_MIXED, 0 };
    return recipes_of_type(cv, cv->report->type, e);
}

/* Refuse globs without a match: a typo would leave tensors quantized that should be kept. */
static void note_idle_globs(const struct conversion *cv)
{
    const struct convert_options *o = cv->o;
    for (int i = 0; i < o->n_skip; i++) {
        struct convert_options one = { .skip = &o->skip[i], .n_skip = 1 };
        int used = 0;
        for (int k = 0; k < cv->n_recipes && !used; k++)
            used = matches(&one, &cv->recipes[k]);
        if (!used)
            conversion_note(cv, "warning: --skip '%s': no tensor has such a name", o->skip[i]);
    }
}

static void note_idle_rules(const struct conversion *cv)
{
    const struct convert_options *o = cv->o;
    for (int i = 0; i < o->n_rules; i++) {
        const struct convert_options one = { .rules = &o->rules[i], .n_rules = 1 };
        int used = 0;
        for (int k = 0; k < cv->n_recipes && !used; k++)
            used = !cv->recipes[k].spec->is_vector &&
                   rule_of(&one, cv->recipes[k].spec, recipe_part(cv->recipes[k].spec));
        if (!used)
            conversion_note(cv, "warning: --quant %.*s: this model has no such matrix", o->rules[i].text_len,
                            o->rules[i].text);
    }
}

int recipes_make(struct conversion *cv, struct err *e)
{
    const struct convert_options *o = cv->o;
    if (o->part[PART_LM_HEAD].set && o->part[PART_EMBEDDINGS].set && cv->config.tied &&
        memcmp(&o->part[PART_LM_HEAD].type, &o->part[PART_EMBEDDINGS].type, sizeof o->part[0].type))
        return err_set(e, ERR_UNSUPPORTED, "%s: the head is the embedding, one type for both is needed",
                       cv->source->path);
    note_idle_globs(cv);
    note_idle_rules(cv);
    for (int i = 0; i < cv->n_recipes; i++)
        find_exact(&cv->recipes[i]);
    cv->report->type = o->type;
    if (o->type.kind == CONVERT_FIT) {
        if (!o->target_bytes)
            return err_set(e, ERR_UNSUPPORTED, "a target size is needed to choose a type that fits it");
        if (fit(cv, e))
            return -1;
    } else if (recipes_of_type(cv, o->type, e)) {
        return -1;
    }
    if (cv->report->type.kind == CONVERT_MIXED && !o->target_bytes)
        return err_set(e, ERR_UNSUPPORTED, "mixed needs a target size: it spends the bytes where they count most");
    if (cv->report->type.kind != CONVERT_MIXED && o->target_bytes && shrink_next(cv, e))
        return -1;
    if (cv->report->type.kind != CONVERT_MIXED && o->target_bytes && recipes_bytes(cv) > o->target_bytes)
        return err_set(e, ERR_LIMIT, "%s: as %s the weights take %" PRIu64 " bytes, more than the target of %" PRIu64,
                       cv->source->path, convert_type_name(cv->report->type), recipes_bytes(cv), o->target_bytes);
    return 0;
}

int recipes_activations(struct conversion *cv, struct err *e)
{
    for (int i = 0; i < cv->n_recipes; i++) {
        struct recipe *p = &cv->recipes[i];
        const int down = p->spec->role == ROLE_EXPERT_DOWN;
        const struct layer_calib *l = cv->calib && p->spec->layer >= 0 ? &cv->calib[p->spec->layer] : NULL;
        int scaled = cv->o->synthetic ? cv->o->effort != CONVERT_FAST : !l ? 0 : down ? l->experts &&
                     l->experts[p->spec->expert].scale : channel_scale_input(cv, p) != NULL;
        /* ternary types have an act_group of 128 anyway */
        if (p->make != MAKE_QUANT || is_ternary(p->m.type) || qtype_takes_floats(qtype_info(p->m.type)) ||
            (p->input < 0 && !down) || !scaled)
            continue;
        int act = p->m.cols % 128 == 0 ? 128 : p->m.cols % 64 == 0 ? 64 : 32;
        if (mat_init(&p->m, p->m.type, p->m.group_size, act, p->spec->rows, p->spec->cols, e))
            return err_prefix(e, "tensor %s", p->source->name);
    }
    return 0;
}
