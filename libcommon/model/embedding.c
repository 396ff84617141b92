/* embedding.c - read how a model makes a vector of a text, or a score of two texts. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/model/arch.h"

enum { MOST_WIDTH = 1 << 24 };
static const char *const act_names[] = { [DENSE_PLAIN] = "identity", [DENSE_TANH] = "tanh", [DENSE_RELU] = "relu",
                                         [DENSE_GELU] = "gelu" };

static void add_dense(struct parse *p, struct config *c, const char *stem, int in, int out, int biased,
                      enum dense_act act)
{
    struct embedding *m = &c->embedding;
    if (m->n_dense == MAX_DENSE || strlen(stem) >= sizeof m->dense->stem) {
        parse_fail(p, ERR_UNSUPPORTED, "zse_embedding: more than %d dense layers, or a long name", MAX_DENSE);
        return;
    }
    struct dense *d = &m->dense[m->n_dense];
    *d = (struct dense){ .in = in, .out = out, .biased = biased, .act = act };
    memcpy(d->stem, stem, strlen(stem) + 1);
    if (biased)
        c->biases |= m->n_dense ? BIAS_DENSE_2 : BIAS_DENSE_1;
    m->n_dense++;
}

/* ---- classifiers with one label ---- */

/* Heads by model_type; the first layer, if any, has the width of the states. */
static const struct encoder_head {
    const char *arch, *first, *last;
    enum dense_act act;
    int biased;                             /* the last layer has a bias */
    enum embed pooling;
} heads[] = {
    { "bert", "pooler.dense", "classifier", DENSE_TANH, 1, EMBED_FIRST },
    { "roberta", "classifier.dense", "classifier.out_proj", DENSE_TANH, 1, EMBED_FIRST },
    { "camembert", "classifier.dense", "classifier.out_proj", DENSE_TANH, 1, EMBED_FIRST },
    { "xlm-roberta", "classifier.dense", "classifier.out_proj", DENSE_TANH, 1, EMBED_FIRST },
    { "mpnet", "classifier.dense", "classifier.out_proj", DENSE_TANH, 1, EMBED_FIRST },
    { "distilbert", "pre_classifier", "classifier", DENSE_RELU, 1, EMBED_FIRST },
    { "modernbert", "head.dense", "classifier", DENSE_GELU, 1, EMBED_FIRST },
    { "qwen3", NULL, "score", DENSE_PLAIN, 0, EMBED_LAST },
    { "qwen2", NULL, "score", DENSE_PLAIN, 0, EMBED_LAST },
    { "llama", NULL, "score", DENSE_PLAIN, 0, EMBED_LAST },
    { "mistral", NULL, "score", DENSE_PLAIN, 0, EMBED_LAST },
};

static int is_classifier(const struct parse *p)
{
    static const char end[] = "ForSequenceClassification";
    const char *name = json_string_value(json_array_get(js_get(p->json, "architectures"), 0));
    const size_t n = name ? strlen(name) : 0;
    return n >= sizeof end - 1 && strcmp(name + n - (sizeof end - 1), end) == 0;
}

/* Returns 1 if no activation is applied to scores.  Files name a torch class (Identity or Sigmoid);
 * without a name it is the sigmoid. */
static int is_raw(struct parse *p)
{
    const json_t *own = parse_find(p, "sentence_transformers", NULL);
    const char *act = json_string_value(js_get(own, "activation_fn"));
    if (!act)
        act = parse_string(p, "sbert_ce_default_activation_function", "Sigmoid");
    const char *dot = strrchr(act, '.');
    act = dot ? dot + 1 : act;
    if (strcmp(act, "Identity") != 0 && strcmp(act, "Sigmoid") != 0)
        parse_fail(p, ERR_UNSUPPORTED, "scores through \"%.40s\" are not supported", act);
    return strcmp(act, "Identity") == 0;
}

static void head_parse(struct parse *p, struct config *c)
{
    const json_t *labels = js_get(p->json, "id2label"), *n_labels = js_get(p->json, "num_labels");
    const int64_t n = labels ? (int64_t)json_object_size(labels) : n_labels ? json_integer_value(n_labels) : 2;
    const struct encoder_head *h = NULL;
    for (size_t i = 0; i < sizeof heads / sizeof *heads && !h; i++)
        h = strcmp(heads[i].arch, c->arch) == 0 ? &heads[i] : NULL;
    if (!h) {
        parse_fail(p, ERR_UNSUPPORTED, "classifiers of architecture %s are not supported", c->arch);
        return;
    }
    if (n != 1) {
        parse_fail(p, ERR_UNSUPPORTED, "a classifier with %lld labels, expected one: the score of two texts",
                   (long long)n);
        return;
    }
    struct embedding *m = &c->embedding;
    m->pooling = h->pooling;
    m->scores = 1;
    m->raw_scores = is_raw(p);
    const int modern = strcmp(c->arch, "modernbert") == 0;
    if (modern) {
        const char *act = parse_string(p, "classifier_activation", "gelu"),
                   *pooling = parse_string(p, "classifier_pooling", "cls");
        m->dense_norm = 1;
        if (strcmp(act, "gelu") != 0)
            parse_fail(p, ERR_UNSUPPORTED, "classifier_activation \"%.40s\" is not supported", act);
        m->pooling = strcmp(pooling, "mean") == 0 ? EMBED_MEAN : EMBED_FIRST;
    }
    if (h->first)
        add_dense(p, c, h->first, c->hidden_size, c->hidden_size, modern ? parse_bool(p, "classifier_bias", 0) : 1,
                  h->act);
    add_dense(p, c, h->last, c->hidden_size, 1, h->biased, DENSE_PLAIN);
}

/* ---- sentence-transformers ---- */

/* Read a number from an object of zse_embedding and check its range; `absent` if the key is
 * missing. */
static int int_at(struct parse *p, const json_t *o, const char *key, int least, int absent)
{
    const json_t *v = json_object_get(o, key);
    const json_int_t n = v ? json_integer_value(v) : absent;
    if ((v && !json_is_integer(v)) || n < least || n > MOST_WIDTH)
        parse_fail(p, ERR_FORMAT, "zse_embedding: %s: expected a number from %d to %d", key, least, MOST_WIDTH);
    return (int)n;
}

static void denses_parse(struct parse *p, struct config *c, const json_t *list)
{
    const json_t *d;
    size_t i;
    int width = c->hidden_size;
    json_array_foreach((json_t *)list, i, d) {
        const char *stem = json_string_value(json_object_get(d, "name")),
                   *name = json_string_value(json_object_get(d, "activation"));
        const int in = int_at(p, d, "in", 1, 0), out = int_at(p, d, "out", 1, 0);
        int act = 0;
        while (name && act <= DENSE_GELU && strcmp(name, act_names[act]) != 0)
            act++;
        if (!stem || !name || act > DENSE_GELU)
            parse_fail(p, ERR_UNSUPPORTED, "zse_embedding: dense layer %zu: activation \"%.40s\" is not supported", i,
                       name ? name : "?");
        else if (in != width)
            parse_fail(p, ERR_SHAPE, "zse_embedding: dense layer %zu reads %d elements of %d", i, in, width);
        else
            add_dense(p, c, stem, in, out, json_is_true(json_object_get(d, "bias")), (enum dense_act)act);
        width = out;
        if (p->bad)
            return;
    }
}

static void prompts_parse(struct parse *p, struct config *c, const json_t *given)
{
    struct embedding *m = &c->embedding;
    json_t *prompts = js_get(given, "prompts"), *text;
    const char *name, *preset = json_string_value(js_get(given, "default_prompt_name"));
    json_object_foreach(prompts, name, text)
        if (!json_is_string(text))
            parse_fail(p, ERR_FORMAT, "zse_embedding: prompt \"%.40s\": found %s, expected a text", name, js_kind(text));
    if (prompts && !json_is_object(prompts))
        parse_fail(p, ERR_FORMAT, "zse_embedding: prompts: found %s, expected an object", js_kind(prompts));
    if (preset && !json_object_get(prompts, preset))
        parse_fail(p, ERR_FORMAT, "zse_embedding: default_prompt_name \"%.40s\" is not in prompts", preset);
    if (p->bad)
        return;
    m->prompts = json_incref(prompts);
    if (preset && !(m->default_prompt = strdup(preset))) {
        err_nomem(p->e, "config");
        p->bad = 1;
    }
}

static void modules_parse(struct parse *p, struct config *c, const json_t *given)
{
    static const struct { const char *name; enum embed pooling; } names[] = {
        { "mean", EMBED_MEAN }, { "last", EMBED_LAST }, { "cls", EMBED_FIRST } };
    struct embedding *m = &c->embedding;
    const char *name = json_string_value(json_object_get(given, "pooling"));
    for (size_t i = 0; name && i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i].name, name) == 0)
            m->pooling = names[i].pooling;
    if (!m->pooling)
        parse_fail(p, ERR_UNSUPPORTED, "zse_embedding: pooling \"%.40s\" is not supported; these are: mean last cls",
                   name ? name : "?");
    m->normalize = json_is_true(json_object_get(given, "normalize"));
    m->max_len = int_at(p, given, "max_seq_length", 0, 0);
    denses_parse(p, c, json_object_get(given, "dense"));
    prompts_parse(p, c, given);
}

void embedding_parse(struct parse *p, struct config *c)
{
    const json_t *given = parse_find(p, "zse_embedding", NULL);
    struct embedding *m = &c->embedding;
    if (is_classifier(p))
        head_parse(p, c);
    else if (given)
        modules_parse(p, c, given);
    /* no file says how to pool: use the default of sentence-transformers */
    else if (c->both_ways) {
        m->pooling = EMBED_MEAN;
        m->normalize = 1;
    }
    if (m->pooling)
        c->tied = 1;                        /* the model needs no head, so none is looked for */
    if (m->max_len > c->max_len && c->max_len > 0)
        m->max_len = c->max_len;
}

const char *config_prompt(const struct config *c, int document)
{
    static const char *const names[2][5] = { { "query", "search_query" },
                                             { "document", "passage", "search_document", "corpus" } };
    for (const char *const *name = names[document]; *name; name++)
        if (json_object_get(c->embedding.prompts, *name))
            return json_string_value(json_object_get(c->embedding.prompts, *name));
    return NULL;
}
