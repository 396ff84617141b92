/* tok_config.c - read the files beside a tokenizer: names of BOS, EOS and PAD, whether BOS and
 * EOS are added, all ids that end an answer, and added tokens that the tokenizer itself lacks. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/token/tok_spec.h"

static int32_t find_any(const struct tok_spec *s, const char *p, size_t n)
{
    for (uint32_t i = 0; i < s->n_added; i++)
        if (s->added[i].str.size == n && !memcmp(s->text.p + s->added[i].str.at, p, n))
            return s->added[i].id;
    return tok_spec_find(s, p, n);
}

/* "<s>" or {"content": "<s>", ...} */
static int32_t named(const struct tok_spec *s, const json_t *v)
{
    if (json_is_object(v))
        v = json_object_get(v, "content");
    return json_is_string(v) ? find_any(s, json_string_value(v), json_string_length(v)) : -1;
}

/* The id of the special token that the files name under this key; -1: none.  The first file that
 * has the key decides, even if it says null. */
static int32_t special(const struct tok_spec *s, json_t *const file[2], const char *key, int *said)
{
    *said = 0;
    for (int i = 0; i < 2; i++) {
        const json_t *v = json_object_get(file[i], key);
        if (v) {
            *said = 1;
            return named(s, v);
        }
    }
    return -1;
}

static int32_t id_of(const struct tok_spec *s, const json_t *v)
{
    json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
    return id >= 0 && id < s->n_tokens && s->token[id].flags & TOKEN_USED ? (int32_t)id : -1;
}

static int eos_ids(struct tok_spec *s, const json_t *v, struct err *e)
{
    const json_t *item;
    size_t i;
    if (!json_is_array(v))
        return tok_spec_eos(s, id_of(s, v), e);
    json_array_foreach(v, i, item)
        if (tok_spec_eos(s, id_of(s, item), e))
            return -1;
    return 0;
}

static int more_added(struct tok_spec *s, json_t *list, struct err *e)
{
    const char *key;
    json_t *o;
    json_object_foreach(list, key, o) {
        const json_t *content = json_object_get(o, "content");
        char *end;
        long long id = strtoll(key, &end, 10);
        if (*end || id < 0 || id >= TOKB_MAX_IDS || !json_is_string(content))
            return err_set(e, ERR_FORMAT, "tokenizer_config.json: added_tokens_decoder: '%.50s' is no token", key);
        const char *p = json_string_value(content);
        size_t n = json_string_length(content);
        int known = 0;
        for (uint32_t i = 0; i < s->n_added && !known; i++)
            known = s->added[i].str.size == n && !memcmp(s->text.p + s->added[i].str.at, p, n);
        int32_t in_vocab = tok_spec_find(s, p, n);
        if (known || (in_vocab >= 0 && in_vocab != id) ||
            (in_vocab < 0 && id < s->n_tokens && s->token[id].flags & TOKEN_USED))
            continue;
        int is_special = json_is_true(json_object_get(o, "special"));
        uint32_t flags = (uint32_t)((json_is_true(json_object_get(o, "single_word")) ? ADDED_SINGLE_WORD : 0) |
                                    (json_is_true(json_object_get(o, "lstrip")) ? ADDED_LSTRIP : 0) |
                                    (json_is_true(json_object_get(o, "rstrip")) ? ADDED_RSTRIP : 0) |
                                    (is_special ? ADDED_SPECIAL : 0));
        double score = in_vocab >= 0 ? s->token[id].score : 0;
        if (tok_spec_token(s, id, p, n, score, TOKEN_ADDED | (is_special ? TOKEN_SPECIAL : 0), in_vocab >= 0, e) ||
            tok_spec_added(s, p, n, (int32_t)id, flags, json_is_true(json_object_get(o, "normalized")), e))
            return -1;
    }
    return 0;
}

/* Apply "add_bos_token" (first 1: at the beginning of the list) or "add_eos_token" (first 0: at its
 * end).  true adds the id there unless it is there already, false removes it; without the key the
 * post-processor decides. */
static int edge(int32_t **list, uint32_t *n, int32_t id, const json_t *wanted, int first, struct err *e)
{
    if (id < 0 || !json_is_boolean(wanted))
        return 0;
    if (json_is_true(wanted))
        return tok_spec_id(list, n, id, first, e);
    if (*n && (*list)[first ? 0 : *n - 1] == id) {
        --*n;
        if (first)
            memmove(*list, *list + 1, *n * sizeof **list);
    }
    return 0;
}

int tok_config_apply(struct tok_spec *s, const struct tokenizer_files *f, struct err *e)
{
    json_t *config = NULL, *map = NULL, *generation = NULL, *model = NULL;
    int rc = -1, said_bos, said_eos, said_pad;
    if ((f->tokenizer_config && !(config = js_parse_python("tokenizer_config.json", f->tokenizer_config,
                                                           f->tokenizer_config_size, e))) ||
        (f->special_tokens_map && !(map = js_parse_python("special_tokens_map.json", f->special_tokens_map,
                                                          f->special_tokens_map_size, e))) ||
        (f->generation_config && !(generation = js_parse_python("generation_config.json", f->generation_config,
                                                                f->generation_config_size, e))) ||
        (f->config && !(model = js_parse_python("config.json", f->config, f->config_size, e))))
        goto done;
    if (more_added(s, json_object_get(config, "added_tokens_decoder"), e))
        goto done;
    json_t *const names[2] = { config, map };
    int32_t bos = special(s, names, "bos_token", &said_bos), eos = special(s, names, "eos_token", &said_eos);
    int32_t pad = special(s, names, "pad_token", &said_pad);
    const json_t *inner = json_object_get(model, "text_config");
    if (said_bos)
        s->bos = bos;
    else if (s->bos < 0 && (s->bos = id_of(s, json_object_get(generation, "bos_token_id"))) < 0 &&
             (s->bos = id_of(s, json_object_get(model, "bos_token_id"))) < 0)
        s->bos = id_of(s, json_object_get(inner, "bos_token_id"));
    if (said_pad)
        s->pad = pad;
    else if (s->pad < 0)
        s->pad = id_of(s, json_object_get(generation, "pad_token_id"));
    if (said_eos && eos >= 0)
        s->n_eos = 0;                   /* drop the EOS that the tokenizer itself implies */
    if (tok_spec_eos(s, eos, e) || eos_ids(s, json_object_get(generation, "eos_token_id"), e))
        goto done;
    if (!json_object_get(generation, "eos_token_id") &&
        (eos_ids(s, json_object_get(model, "eos_token_id"), e) ||
         eos_ids(s, json_object_get(inner, "eos_token_id"), e)))
        goto done;
    if (edge(&s->prefix, &s->n_prefix, s->bos, json_object_get(config, "add_bos_token"), 1, e) ||
        edge(&s->suffix, &s->n_suffix, s->n_eos ? s->eos[0] : -1, json_object_get(config, "add_eos_token"), 0, e))
        goto done;
    rc = 0;
done:
    json_decref(config);
    json_decref(map);
    json_decref(generation);
    json_decref(model);
    return rc;
}
