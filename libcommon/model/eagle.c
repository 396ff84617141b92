/* eagle.c - lay out EAGLE heads in memory, in the form of their section in a file. */
#include "libcommon/model/eagle.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"

enum { GROUP = 64 };

/* The head of the section; config.json, the map of the vocabulary and the parts follow it. */
struct eagle_section {
    uint32_t version;                   /* 1, 3 */
    uint32_t n_aux, n_own, has_map;
    uint32_t config_bytes;
    uint32_t optional;                  /* a bit for each optional part that is present, in order */
    uint32_t type, group_size;          /* QT_I8, GROUP */
    uint32_t aux_layer[EAGLE_MOST_AUX];
};
_Static_assert(sizeof(struct eagle_section) == 64, "section EAGL");

static size_t up64(size_t n) { return (n + 63) / 64 * 64; }

/* ---- the configuration ---- */

/* Keys of config.json that do not change how the layer is computed, or are read elsewhere. */
static const char *const other_keys[] = { "draft_vocab_size", "eagle_config", "eagle_aux_hidden_state_layer_ids",
                                          "target_hidden_size", "target_model_type", "architectures", "norm_before_fc",
                                          "fc_norm", "bias", "parallel_drafting", "mask_token_id" };

/* Whether a layer of this architecture has no other parts than those of eagle_parts(). */
static int is_plain(const char *arch)
{
    static const char *const plain[] = { "llama", "mistral", "qwen2" };
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (strcmp(arch, plain[i]) == 0)
            return 1;
    return 0;
}

static int parse_layer(struct eagle *g, const json_t *own, struct err *e)
{
    static const char *const norms[] = { "norm_before_fc", "fc_norm" };
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        if (json_is_true(js_get(own, norms[i])))
            return err_set(e, ERR_UNSUPPORTED, "%s is not supported", norms[i]);
    json_t *j = json_deep_copy(own);
    for (size_t i = 0; i < sizeof other_keys / sizeof *other_keys; i++)
        json_object_del(j, other_keys[i]);
    const int rc = j ? config_parse(&g->config, j, e) : err_nomem(e, "EAGLE heads");
    json_decref(j);
    return rc;
}

static int check_layer(struct eagle *g, struct err *e)
{
    const struct config *c = &g->config;
    if (c->n_layers != 1)
        return err_set(e, ERR_UNSUPPORTED, "%d layers, expected 1", c->n_layers);
    if (!is_plain(c->arch) || config_predictor(c, &g->model.config) != 0)
        return err_set(e, ERR_UNSUPPORTED, "a layer of %s, expected one like llama's", c->arch);
    if (c->hidden_size != g->hidden_size || c->vocab_size != g->vocab_size)
        return err_set(e, ERR_UNSUPPORTED, "heads of a model with hidden_size %d and %d tokens, this one has %d and %d",
                       c->hidden_size, c->vocab_size, g->hidden_size, g->vocab_size);
    return 0;
}

struct eagle *eagle_open(const json_t *own, int is_3, const struct config *main, struct err *e)
{
    struct eagle *g = calloc(1, sizeof *g);
    if (!g || !(g->model.layers = calloc(1, sizeof *g->model.layers))) {
        eagle_close(g);
        err_nomem(e, "EAGLE heads");
        return NULL;
    }
    g->is_3 = is_3;
    g->hidden_size = main->hidden_size;
    g->vocab_size = g->n_own = main->vocab_size;
    if (parse_layer(g, own, e) != 0 || check_layer(g, e) != 0) {
        eagle_close(g);
        return NULL;
    }
    g->model.config.predicts = is_3 ? PREDICTS_BESIDE : PREDICTS_SUM;
    return g;
}

/* ---- parts ---- */

struct part_list { struct eagle_part *parts; int n; };

static void add_part(struct part_list *l, struct eagle_part p)
{
    p.width = p.width ? p.width : p.cols;
    p.present = !p.optional;
    l->parts[l->n++] = p;
}

static void add_matrix(struct part_list *l, const char *name, const char *bias, struct linear *to, int64_t rows,
                       int64_t cols)
{
    add_part(l, (struct eagle_part){ name, 1, .linear = to, .rows = rows, .cols = cols });
    if (bias)
        add_part(l, (struct eagle_part){ bias, 1, .vector = &to->bias, .rows = 1, .cols = rows, .optional = 1 });
}

static void add_norm(struct part_list *l, const char *name, int in_layer, struct norm *norm, int64_t hidden)
{
    norm->present = 1;
    add_part(l, (struct eagle_part){ name, in_layer, .vector = &norm->w, .rows = 1, .cols = hidden });
}

/* The parts of EAGLE-3 outside of the layer, and its further norms. */
static void add_parts_of_3(struct part_list *list, struct eagle *g, struct layer *l, int64_t hidden)
{
    add_norm(list, "input_layernorm.weight", 1, &l->next_embed_norm, hidden);
    add_norm(list, "hidden_norm.weight", 1, &l->next_state_norm, hidden);
    add_norm(list, "norm.weight", 0, &l->next_final_norm, hidden);
    for (int i = 0; i < g->n_aux; i++)
        add_part(list, (struct eagle_part){ "fc.weight", 0, .linear = &g->aux[i], .rows = hidden, .cols = hidden,
                                            .first = i * hidden, .width = g->n_aux * hidden });
    add_part(list, (struct eagle_part){ "lm_head.weight", 0, .linear = &g->model.head, .rows = g->n_own,
                                        .cols = hidden });
}

int eagle_parts(struct eagle *g, struct eagle_part parts[EAGLE_MOST_PARTS])
{
    struct part_list list = { parts, 0 };
    struct layer *l = g->model.layers;
    const struct config *c = &g->model.config;
    const int64_t hidden = c->hidden_size, wide = g->is_3 ? 2 * hidden : hidden, mlp = config_mlp_size(c, 0),
                  q = (int64_t)c->n_heads * c->head_dim, kv = (int64_t)c->n_kv_heads * c->head_dim;
    add_matrix(&list, "self_attn.q_proj.weight", "self_attn.q_proj.bias", &l->q, q, wide);
    add_matrix(&list, "self_attn.k_proj.weight", "self_attn.k_proj.bias", &l->k, kv, wide);
    add_matrix(&list, "self_attn.v_proj.weight", "self_attn.v_proj.bias", &l->v, kv, wide);
    add_matrix(&list, "self_attn.o_proj.weight", NULL, &l->o, hidden, q);
    add_matrix(&list, "mlp.gate_proj.weight", NULL, &l->gate, mlp, hidden);
    add_matrix(&list, "mlp.up_proj.weight", NULL, &l->up, mlp, hidden);
    add_matrix(&list, "mlp.down_proj.weight", NULL, &l->down, hidden, mlp);
    add_norm(&list, "post_attention_layernorm.weight", 1, &l->mlp_norm, hidden);
    if (g->is_3) {
        add_parts_of_3(&list, g, l, hidden);
        return list.n;
    }
    add_part(&list, (struct eagle_part){ "fc.weight", 0, .linear = &l->next_in, .rows = hidden, .cols = 2 * hidden });
    add_part(&list, (struct eagle_part){ "fc.bias", 0, .vector = &l->next_in.bias, .rows = 1, .cols = hidden,
                                         .optional = 1 });
    return list.n;
}

/* Offset of the map of the vocabulary, and of the parts. */
static size_t map_at(size_t config_bytes) { return sizeof(struct eagle_section) + up64(config_bytes); }
static size_t parts_at(const struct eagle *g, size_t config_bytes, int has_map)
{
    return map_at(config_bytes) + (has_map ? up64((size_t)g->n_own * sizeof *g->target) : 0);
}

int eagle_lay_out(struct eagle *g, struct eagle_part *parts, int n, size_t config_bytes, int has_map, struct err *e)
{
    const size_t first = parts_at(g, config_bytes, has_map);
    size_t at = first;
    for (int i = 0; i < n; i++) {
        struct eagle_part *p = &parts[i];
        size_t size = (size_t)p->cols * sizeof(float);
        if (!p->present)
            continue;
        if (p->linear && mat_init(&p->linear->w, QT_I8, GROUP, GROUP, p->rows, p->cols, e) != 0)
            return err_prefix(e, "tensor %s", p->name);
        size = p->linear ? p->linear->w.size : size;
        if (size > SIZE_MAX / 2 - at)
            return err_set(e, ERR_LIMIT, "tensor %s: %" PRId64 " x %" PRId64 " is too large", p->name, p->rows, p->cols);
        p->at = at;
        at += up64(size);
    }
    g->bytes = at - first;
    g->section_bytes = at;
    return 0;
}

/* Let the weights point into the section. */
static void point(struct eagle *g, const uint8_t *section, const struct eagle_part *parts, int n)
{
    g->section = section;
    for (int i = 0; i < n; i++) {
        const uint8_t *to = section + parts[i].at;
        if (parts[i].present && parts[i].linear)
            parts[i].linear->w.data = to;
        else if (parts[i].present)
            *parts[i].vector = (const float *)(const void *)to;
    }
}

/* ---- the section ---- */

int eagle_begin_section(struct eagle *g, const struct eagle_part *parts, int n, const char *config,
                        const int32_t *target, struct err *e)
{
    struct eagle_section h = { .version = g->is_3 ? 3 : 1, .n_aux = (uint32_t)g->n_aux, .n_own = (uint32_t)g->n_own,
                              .has_map = target != NULL, .config_bytes = (uint32_t)strlen(config), .type = QT_I8,
                              .group_size = GROUP };
    for (int i = 0; i < g->n_aux; i++)
        h.aux_layer[i] = (uint32_t)g->aux_layer[i];
    for (int i = 0, bit = 0; i < n; i++)
        if (parts[i].optional)
            h.optional |= (uint32_t)parts[i].present << bit++;
    if (!(g->owned = aligned_alloc(64, g->section_bytes)))
        return err_nomem(e, "EAGLE heads");
    memset(g->owned, 0, g->section_bytes);
    memcpy(g->owned, &h, sizeof h);
    memcpy(g->owned + sizeof h, config, h.config_bytes);
    if (target) {
        memcpy(g->owned + map_at(h.config_bytes), target, (size_t)g->n_own * sizeof *target);
        g->target = (const int32_t *)(const void *)(g->owned + map_at(h.config_bytes));
    }
    point(g, g->owned, parts, n);
    return 0;
}

static int check_head(const struct eagle_section *h, size_t size, const struct config *main, struct err *e)
{
    const uint32_t vocab = (uint32_t)main->vocab_size;
    if (h->type != QT_I8 || h->group_size != GROUP)
        return err_set(e, ERR_UNSUPPORTED, "number format %" PRIu32 " with groups of %" PRIu32 ", expected %d with %d",
                       h->type, h->group_size, QT_I8, GROUP);
    if (h->version != 1 && h->version != 3)
        return err_set(e, ERR_UNSUPPORTED, "EAGLE-%" PRIu32 ", expected 1 or 3", h->version);
    if (h->version == 3 ? h->n_aux < 1 || h->n_aux > EAGLE_MOST_AUX : h->n_aux != 0)
        return err_set(e, ERR_FORMAT, "%" PRIu32 " auxiliary states for EAGLE-%" PRIu32, h->n_aux, h->version);
    for (uint32_t i = 0; i < h->n_aux; i++)
        if (h->aux_layer[i] > (uint32_t)main->n_layers)
            return err_set(e, ERR_FORMAT, "the state before layer %" PRIu32 ", expected 0 to %d", h->aux_layer[i],
                           main->n_layers);
    if (h->has_map > 1 || (h->has_map ? h->version != 3 || h->n_own < 1 || h->n_own > vocab : h->n_own != vocab))
        return err_set(e, ERR_FORMAT, "a head with %" PRIu32 " rows %s a map for %d tokens", h->n_own,
                       h->has_map ? "and" : "without", main->vocab_size);
    if (h->config_bytes > size - sizeof *h)
        return err_set(e, ERR_FORMAT, "%" PRIu32 " bytes of config.json in %zu bytes", h->config_bytes, size);
    return 0;
}

static int check_map(const int32_t *target, int n, int vocab_size, struct err *e)
{
    int32_t last = -1;
    for (int i = 0; i < n; last = target[i++])
        if (target[i] <= last || target[i] >= vocab_size)
            return err_set(e, ERR_FORMAT, "row %d is token %" PRId32 ", expected tokens in order and less than %d", i,
                           target[i], vocab_size);
    return 0;
}

/* Bind the heads of a section whose head is h. */
static int bind_parts(struct eagle *g, const struct eagle_section *h, const uint8_t *section, size_t size,
                      struct err *e)
{
    struct eagle_part parts[EAGLE_MOST_PARTS];
    uint32_t optional = h->optional;
    g->n_aux = (int)h->n_aux;
    g->n_own = (int)h->n_own;
    for (int i = 0; i < g->n_aux; i++)
        g->aux_layer[i] = (int)h->aux_layer[i];
    const int n = eagle_parts(g, parts);
    for (int i = 0; i < n; i++)
        if (parts[i].optional) {
            parts[i].present = optional & 1;
            optional >>= 1;
        }
    if (optional)
        return err_set(e, ERR_FORMAT, "unknown parts: %" PRIu32, h->optional);
    if (eagle_lay_out(g, parts, n, h->config_bytes, (int)h->has_map, e) != 0)
        return -1;
    if (g->section_bytes != size)
        return err_set(e, ERR_FORMAT, "%zu bytes, expected %zu", size, g->section_bytes);
    if (h->has_map) {
        g->target = (const int32_t *)(const void *)(section + map_at(h->config_bytes));
        if (check_map(g->target, g->n_own, g->vocab_size, e) != 0)
            return -1;
    }
    point(g, section, parts, n);
    return 0;
}

struct eagle *eagle_bind(const void *section, size_t size, const struct config *main, struct err *e)
{
    struct eagle_section h;
    const char *text = (const char *)section + sizeof h;
    if (size < sizeof h) {
        err_set(e, ERR_FORMAT, "%zu bytes, expected at least %zu", size, sizeof h);
        return NULL;
    }
    memcpy(&h, section, sizeof h);
    if (check_head(&h, size, main, e) != 0)
        return NULL;
    json_t *own = js_parse("config.json", text, h.config_bytes, e);
    struct eagle *g = own ? eagle_open(own, h.version == 3, main, e) : NULL;
    json_decref(own);
    if (g && bind_parts(g, &h, section, size, e) != 0) {
        eagle_close(g);
        return NULL;
    }
    return g;
}

void eagle_attach(struct eagle *g, const struct model *main)
{
    g->model.embed = main->embed;
    if (!g->is_3)
        g->model.head = main->head;
}

void eagle_close(struct eagle *g)
{
    if (!g)
        return;
    config_release(&g->config);
    free(g->model.layers);
    free(g->owned);
    free(g);
}
