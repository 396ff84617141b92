/* api_text.c - tokens of text, text of tokens, and prompts made by the chat template. */
#include "lib/internal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/json.h"
#include "libcommon/grammar/tools.h"
#include "libcommon/template/chat_calls.h"

static int no_tokenizer(struct zse_error *e)
{
    struct err why;
    err_set(&why, ERR_UNSUPPORTED, "the model has no tokenizer");
    return api_fail(e, &why);
}

int zse_tokenize(const struct zse_model *m, const char *text, size_t size, unsigned flags, int32_t **ids, size_t *n_ids,
                 struct zse_error *e)
{
    struct err why;
    if (!m || (!text && size) || !ids || !n_ids)
        return api_wrong(e, "zse_tokenize: an argument is NULL");
    if (flags & ~(unsigned)(ZSE_ADD_SPECIAL | ZSE_PARSE_SPECIAL))
        return api_wrong(e, "zse_tokenize: flags are %#x, expected ZSE_ADD_SPECIAL and ZSE_PARSE_SPECIAL", flags);
    if (!m->tokenizer)
        return no_tokenizer(e);
    const unsigned own = (flags & ZSE_ADD_SPECIAL ? TOKENIZE_ADD_SPECIAL : 0u) |
                         (flags & ZSE_PARSE_SPECIAL ? TOKENIZE_PARSE_SPECIAL : 0u);
    return tokenizer_encode(m->tokenizer, text ? text : "", size, own, ids, n_ids, &why) == 0 ? 0 : api_fail(e, &why);
}

int zse_detokenize(const struct zse_model *m, const int32_t *ids, size_t n_ids, unsigned flags, char **text,
                   size_t *size, struct zse_error *e)
{
    struct err why;
    size_t n;
    if (!m || (!ids && n_ids) || !text)
        return api_wrong(e, "zse_detokenize: an argument is NULL");
    if (flags & ~(unsigned)ZSE_SKIP_SPECIAL)
        return api_wrong(e, "zse_detokenize: flags are %#x, expected ZSE_SKIP_SPECIAL", flags);
    if (!m->tokenizer)
        return no_tokenizer(e);
    if (tokenizer_decode(m->tokenizer, ids, n_ids, (flags & ZSE_SKIP_SPECIAL) != 0, text, &n, &why) != 0)
        return api_fail(e, &why);
    if (size)
        *size = n;
    return 0;
}

int api_prompt(const struct zse_model *m, const char *text, size_t size, unsigned flags, int32_t **ids, int *n,
               struct err *e)
{
    size_t n_ids;
    if (!m->tokenizer)
        return err_set(e, ERR_UNSUPPORTED, "the model has no tokenizer: expected ids");
    if (tokenizer_encode(m->tokenizer, text, size, flags, ids, &n_ids, e) != 0)
        return -1;
    if (n_ids > INT32_MAX / 4) {
        free(*ids);
        *ids = NULL;
        return err_set(e, ERR_LIMIT, "the prompt has %zu tokens", n_ids);
    }
    *n = (int)n_ids;
    return 0;
}

/* ---- templates ---- */

/* A template with the facts that rendering needs. */
struct renderer { struct tmpl *tmpl; struct chat_style style; char *bos, *eos; };

static char *token_text(const struct tokenizer *t, int32_t id)
{
    size_t size = 0;
    const char *s = id >= 0 ? tokenizer_token(t, id, &size) : NULL;
    return strndup(s ? s : "", s ? size : 0);
}

/* Fill in a zeroed renderer.  given: a template instead of the model's; may be NULL. */
static int renderer_init(struct renderer *r, const struct zse_model *m, const char *given, struct err *e)
{
    const json_t *own = js_get(m->json, "chat_template"), *named = js_get(m->json, "chat_templates");
    if (!own && json_is_object(named))
        own = js_get(named, "default");
    if (!given && !json_is_string(own))
        return err_set(e, ERR_UNSUPPORTED, "the model has no chat template");
    const char *text = given ? given : json_string_value(own);
    const size_t size = given ? strlen(given) : json_string_length(own);
    int n_eos = 0;
    const int32_t *eos = m->tokenizer ? tokenizer_eos(m->tokenizer, &n_eos) : NULL;
    r->bos = m->tokenizer ? token_text(m->tokenizer, tokenizer_bos(m->tokenizer)) : strdup("");
    r->eos = m->tokenizer ? token_text(m->tokenizer, n_eos ? eos[0] : -1) : strdup("");
    if (!r->bos || !r->eos)
        return err_nomem(e, "prompt");
    r->style.knows_tools = strstr(text, "tools") != NULL;
    r->style.short_ids = tool_format_has_short_ids(tool_format_detect(text, size));
    return (r->tmpl = tmpl_parse(text, size, "chat template", e)) ? 0 : -1;
}

static void renderer_release(struct renderer *r)
{
    if (r->tmpl)
        tmpl_free(r->tmpl);
    free(r->bos);
    free(r->eos);
}

/* Parse JSON of one kind; NULL text: *out is NULL. */
static int parse(const char *name, const char *text, json_type kind, const char *what, json_t **out, struct err *e)
{
    *out = NULL;
    if (!text)
        return 0;
    if (!(*out = js_parse(name, text, strlen(text), e)))
        return -1;
    return json_typeof(*out) == kind ? 0 : err_set(e, ERR_FORMAT, "%s: found %s, expected %s", name, js_kind(*out), what);
}

/* Templates read messages as objects with a role and a text. */
static int check_messages(const json_t *messages, struct err *e)
{
    size_t i;
    json_t *m;
    json_array_foreach(messages, i, m) {
        const json_t *content = js_get(m, "content");
        if (!json_is_object(m) || !json_is_string(js_get(m, "role")))
            return err_set(e, ERR_FORMAT, "messages: message %zu has no role, expected a string", i);
        if (content && !json_is_string(content))
            return err_set(e, ERR_FORMAT, "messages: the content of message %zu is %s, expected a string", i,
                           js_kind(content));
    }
    return 0;
}

int zse_render(const struct zse_model *m, const char *messages, const struct zse_render_options *o, char **text,
               size_t *size, struct zse_error *e)
{
    struct zse_render_options options;
    struct renderer r = { 0 };
    struct err why;
    json_t *list = NULL, *tools = NULL, *vars = NULL;
    size_t n;
    if (!m || !messages || !text)
        return api_wrong(e, "zse_render: an argument is NULL");
    if (api_options(&options, sizeof options, o, "zse_render_options", e) != 0)
        return -1;
    if (options.reserved)
        return api_wrong(e, "zse_render_options: reserved is %d, expected 0", options.reserved);
    int rc = parse("messages", messages, JSON_ARRAY, "an array", &list, &why);
    if (rc == 0)
        rc = check_messages(list, &why);
    if (rc == 0)
        rc = parse("tools", options.tools, JSON_ARRAY, "an array", &tools, &why);
    if (rc == 0)
        rc = parse("variables", options.variables, JSON_OBJECT, "an object", &vars, &why);
    if (rc == 0)
        rc = renderer_init(&r, m, options.chat_template, &why);
    if (rc == 0)
        rc = chat_render_tools(r.tmpl, &r.style, list, tools, !options.no_generation_prompt, r.bos, r.eos,
                               (int64_t)time(NULL), vars, NULL, text, &n, &why);
    if (rc == 0 && size)
        *size = n;
    renderer_release(&r);
    json_decref(list);
    json_decref(tools);
    json_decref(vars);
    return rc == 0 ? 0 : api_fail(e, &why);
}
