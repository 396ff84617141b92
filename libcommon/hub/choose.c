/* choose.c - choose the files of a repository that a conversion needs. */
#include "libcommon/hub/choose.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "libcommon/base/json.h"
#include "libcommon/base/suffix.h"

const char *const choose_optional[CHOOSE_N_OPTIONAL] = {
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "tokenizer.model",
    "vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json", "LICENSE", "LICENSE.txt", "LICENSE.md",
    "NOTICE", "README.md", "hf_quant_config.json", "modules.json", "sentence_bert_config.json",
    "config_sentence_transformers.json", CHOOSE_INDEX,
};

/* The number of a part: "a-00002-of-00003.gguf" gives 2, *n = 3; 0: the name has none. */
static int gguf_part(const char *name, int *n)
{
    enum { ENDING = 20 };
    const size_t length = strlen(name);
    int k, used = 0;
    return length > ENDING && sscanf(name + length - ENDING, "-%5d-of-%5d.gguf%n", &k, n, &used) == 2 &&
           used == ENDING && k > 0 && k <= *n && *n > 1 ? k : 0;
}

/* 1 if the file stands for a model: a .zse, a GGUF in one file, or the first part of a GGUF in
 * several. */
static int is_file_of_a_model(const char *name)
{
    int n;
    return (ends_with_any_case(name, ".gguf") && gguf_part(name, &n) < 2) || ends_with_any_case(name, ".zse");
}

static int has(const struct file_choice *c, const char *name)
{
    for (int i = 0; i < c->n_names; i++)
        if (strcmp(c->names[i], name) == 0)
            return 1;
    return 0;
}

static int is_small(const char *name)
{
    for (int i = 0; i < CHOOSE_N_OPTIONAL; i++)
        if (strcmp(name, choose_optional[i]) == 0)
            return 1;
    /* files of sentence-transformers: pooling, and dense layers with their few weights */
    static const char *const patterns[] = { "additional_chat_templates/*.jinja", "[0-9]_*/config.json",
                                            "[0-9]_Dense/model.safetensors" };
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++)
        if (fnmatch(patterns[i], name, FNM_PATHNAME) == 0)
            return 1;
    return 0;
}

/* Is `pick` a whole word of the file's name, as Q4_K_M in Model-Q4_K_M.gguf? */
static int names_quantization(const char *file, const char *pick)
{
    const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file;
    size_t n = strlen(pick);
    for (const char *p = name; *p; p++)
        if (strncasecmp(p, pick, n) == 0 && (p == name || !isalnum((unsigned char)p[-1])) &&
            !isalnum((unsigned char)p[n]) && p[n] != '_')
            return 1;
    return 0;
}

/* "a.gguf, b.gguf, ..." */
static void list_files(const struct file_choice *c, char *out, size_t room)
{
    size_t at = 0;
    out[0] = '\0';
    for (int i = 0; i < c->n_names; i++)
        if (is_file_of_a_model(c->names[i]) && at + strlen(c->names[i]) + 8 < room)
            at += (size_t)snprintf(out + at, room - at, "%s%s", at ? ", " : "", c->names[i]);
        else if (is_file_of_a_model(c->names[i]) && at + 6 < room && strcmp(out + at - (at > 3 ? 3 : 0), "...") != 0)
            at += (size_t)snprintf(out + at, room - at, ", ...");
}

static int take_file(struct file_choice *c, const char *repo, const char *pick, struct err *e)
{
    char list[300];
    int n = 0;
    for (int i = 0; i < c->n_names; i++) {
        const char *name = c->names[i];
        if (!is_file_of_a_model(name) || (strcmp(name, pick) != 0 && !names_quantization(name, pick)))
            continue;
        if (strcmp(name, pick) == 0) {
            c->file = name;
            n = 1;
            break;
        }
        c->file = name;
        n++;
    }
    if (n == 1)
        return 0;
    list_files(c, list, sizeof list);
    return err_set(e, ERR_FORMAT, "%s: '%.80s' names %s; it has %s", repo, pick,
                   n ? "more than one of its files" : "no GGUF or .zse file of it", *list ? list : "none");
}

/* If there is no pick and the repository has no safetensors: choose its only file, or else the GGUF
 * of the most usual quantization. */
static int take_usual(struct file_choice *c, const char *repo, struct err *e)
{
    static const char *const usual[] = { "Q4_K_M", "Q4_0", "Q8_0", "BF16", "F16" };
    char list[300];
    int n = 0;
    for (int i = 0; i < c->n_names; i++)
        if (is_file_of_a_model(c->names[i])) {
            c->file = c->names[i];
            n++;
        }
    if (n == 1)
        return 0;
    for (size_t i = 0; n && i < sizeof usual / sizeof *usual; i++)
        if (take_file(c, repo, usual[i], e) == 0)
            return 0;
    c->file = NULL;
    list_files(c, list, sizeof list);
    if (n)
        return err_set(e, ERR_FORMAT, "%s: which of %s? Say %s:FILE", repo, list, repo);
    return err_set(e, ERR_UNSUPPORTED, "%s: has no safetensors and no GGUF file, so nothing that can be converted",
                   repo);
}

/* Put c->file into c->weights, with all other parts if it is the first of several. */
static int take_parts(struct file_choice *c, const char *repo, struct err *e)
{
    int n = 1;
    const int length = (int)strlen(c->file) - 20;
    if (!gguf_part(c->file, &n))
        n = 1;
    c->n_weights = 0;
    c->weights[c->n_weights++] = c->file;
    for (int k = 2; k <= n; k++) {
        char part[512];
        int i = 0;
        snprintf(part, sizeof part, "%.*s-%05d-of-%05d.gguf", length, c->file, k, n);
        while (i < c->n_names && strcmp(c->names[i], part) != 0)
            i++;
        if (i == c->n_names)
            return err_set(e, ERR_FORMAT, "%s: %s is missing (part %d of %d)", repo, part, k, n);
        c->weights[c->n_weights++] = c->names[i];
    }
    return 0;
}

/* Take all safetensors at the top level, except files with only an adapter and files that repeat
 * the weights of others. */
static int take_safetensors(struct file_choice *c)
{
    int one = has(c, "model.safetensors");
    c->indexed = !one && has(c, CHOOSE_INDEX);
    for (int i = 0; i < c->n_names; i++) {
        const char *name = c->names[i];
        if (!ends_with_any_case(name, ".safetensors") || strchr(name, '/'))
            continue;
        if (one ? strcmp(name, "model.safetensors") == 0
                : strncmp(name, "consolidated", 12) != 0 && strncmp(name, "adapter_", 8) != 0)
            c->weights[c->n_weights++] = name;
    }
    return c->n_weights > 0;
}

int choose(struct file_choice *c, const char *repo, const char *pick, const char *const *names, int n, struct err *e)
{
    *c = (struct file_choice){ .names = names, .n_names = n };
    c->small = calloc((size_t)n + 1, sizeof *c->small);
    c->weights = calloc((size_t)n + 1, sizeof *c->weights);
    if (!c->small || !c->weights)
        return err_nomem(e, "names of files");
    if (*pick || !take_safetensors(c)) {
        if ((*pick ? take_file(c, repo, pick, e) : take_usual(c, repo, e)) != 0)
            return -1;
        c->indexed = 0;
        return take_parts(c, repo, e);
    }
    for (int i = 0; i < n; i++)
        if (is_small(names[i]) && (c->indexed || strcmp(names[i], CHOOSE_INDEX) != 0))
            c->small[c->n_small++] = names[i];
    if (!has(c, "config.json"))
        return err_set(e, ERR_UNSUPPORTED, "%s: has safetensors but no config.json: not a model of the transformers kind", repo);
    if (c->indexed)
        c->n_weights = 0;
    return 0;
}

int choose_indexed(struct file_choice *c, const char *repo, const char *index, size_t size, struct err *e)
{
    json_t *j = js_parse(CHOOSE_INDEX, index, size, e), *map = json_object_get(j, "weight_map"), *v;
    const char *tensor;
    int rc = j ? 0 : -1;
    if (j && !json_is_object(map))
        rc = err_set(e, ERR_FORMAT, "%s: %s: weight_map: found %s, expected an object", repo, CHOOSE_INDEX,
                     js_kind(map));
    json_object_foreach(map, tensor, v) {
        const char *shard = json_string_value(v);
        int known = 0;
        for (int i = 0; shard && i < c->n_weights && !known; i++)
            known = strcmp(c->weights[i], shard) == 0;
        for (int i = 0; shard && i < c->n_names && !known; i++)
            if (strcmp(c->names[i], shard) == 0) {
                c->weights[c->n_weights++] = c->names[i];
                known = 1;
            }
        if (!known) {
            rc = err_set(e, ERR_FORMAT, "%s: %s: tensor %.100s is in %.100s, which the repository does not have", repo,
                         CHOOSE_INDEX, tensor, shard ? shard : "no file");
            break;
        }
    }
    json_decref(j);
    return rc;
}

void choose_release(struct file_choice *c)
{
    free(c->small);
    free(c->weights);
    *c = (struct file_choice){ .file = NULL };
}
