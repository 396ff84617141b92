/* chat_prompt.c - turn messages into token ids, through the chat template. */
#include "cmd/zse-chat.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cmd/cli.h"
#include "libcommon/base/file.h"
#include "libcommon/base/json.h"

json_t *chat_message(const char *role, const char *text, size_t size)
{
    return json_pack("{s:s, s:s%}", "role", role, "content", text, size);
}

/* Read from the source of the template how the model writes reasoning and calls. */
static void learn(struct prompter *p, const char *text, size_t size)
{
    p->style.knows_tools = strstr(text, "tools") != NULL;
    p->format = tool_format_detect(text, size);
    p->style.short_ids = tool_format_has_short_ids(p->format);
    p->thinks = strstr(text, "</think>") != NULL || tool_format_has_channels(p->format);
}

static int parse_file(struct prompter *p, const char *path, struct err *e)
{
    size_t size;
    char *source = file_read(path, 16 << 20, &size, e);
    if (!source)
        return -1;
    p->tmpl = tmpl_parse(source, size, path, e);
    learn(p, source, size);
    free(source);
    return p->tmpl ? 0 : -1;
}

/* Parse the model's own template: "chat_template", or the one named default of several. */
static int parse_own(struct prompter *p, const struct opened_model *m, struct err *e)
{
    const json_t *own = js_get(m->json, "chat_template"), *named = js_get(m->json, "chat_templates");
    if (!own && json_is_object(named))
        own = js_get(named, "default");
    if (!json_is_string(own))
        return 0;
    p->tmpl = tmpl_parse(json_string_value(own), json_string_length(own), "chat template", e);
    learn(p, json_string_value(own), json_string_length(own));
    return p->tmpl ? 0 : err_prefix(e, "%s", m->path);
}

static const char *token_text(const struct tokenizer *t, int32_t id)
{
    size_t size = 0;
    const char *s = id >= 0 ? tokenizer_token(t, id, &size) : NULL;
    return strndup(s ? s : "", s ? size : 0);
}

int prompter_open(struct prompter *p, const struct opened_model *m, const struct chat_options *o, int fallback,
                  struct err *e)
{
    memset(p, 0, sizeof *p);
    if (!m->tokenizer)
        return err_set(e, ERR_FORMAT, "%s: has no tokenizer", m->path);
    int n_eos = 0;
    const int32_t *eos = tokenizer_eos(m->tokenizer, &n_eos);
    p->tokenizer = m->tokenizer;
    p->no_think = o->no_think;
    p->format = tool_format_detect(NULL, 0);
    p->bos = token_text(m->tokenizer, tokenizer_bos(m->tokenizer));
    p->eos = token_text(m->tokenizer, n_eos ? eos[0] : -1);
    if (!p->bos || !p->eos)
        return err_nomem(e, "prompt");
    if (o->raw)
        return 0;
    if (o->template_file ? parse_file(p, o->template_file, e) : parse_own(p, m, e))
        return -1;
    if (p->tmpl)
        return 0;
    if (fallback) {
        cli_note("zse-chat", "%s has no chat template: ChatML is used", m->path);
        p->tmpl = tmpl_parse(chat_fallback_template, strlen(chat_fallback_template), "ChatML", e);
        p->fallback = 1;
        return p->tmpl ? 0 : -1;
    }
    if (o->system)
        return err_set(e, ERR_UNSUPPORTED, "%s has no chat template: --system needs one (--template FILE)", m->path);
    cli_note("zse-chat", "%s has no chat template: the prompt is used unchanged", m->path);
    return 0;
}

void prompter_close(struct prompter *p)
{
    if (p->tmpl)
        tmpl_free(p->tmpl);
    free((char *)p->bos);
    free((char *)p->eos);
    memset(p, 0, sizeof *p);
}

int prompter_render(const struct prompter *p, const json_t *messages, const json_t *tools, char **text, size_t *size,
                    struct err *e)
{
    json_t *vars = p->no_think ? json_pack("{s:b}", "enable_thinking", 0) : NULL;
    int rc = chat_render_tools(p->tmpl, &p->style, messages, tools, 1, p->bos, p->eos, (int64_t)time(NULL), vars, NULL,
                               text, size, e);
    json_decref(vars);
    return rc;
}

int prompter_encode(const struct prompter *p, const char *text, size_t size, int raw, int32_t **ids, int *n,
                    struct err *e)
{
    size_t n_ids;
    if (tokenizer_encode(p->tokenizer, text, size, TOKENIZE_PARSE_SPECIAL | (raw ? TOKENIZE_ADD_SPECIAL : 0), ids,
                         &n_ids, e) != 0)
        return -1;
    if (n_ids > INT32_MAX / 4) {
        free(*ids);
        *ids = NULL;
        return err_set(e, ERR_LIMIT, "the prompt has %zu tokens", n_ids);
    }
    *n = (int)n_ids;
    if (!raw)
        return 0;
    /* Remove the EOS of a tokenizer that ends every text with one: it would end the answer before
     * it begins. */
    int n_eos, closed = size >= strlen(p->eos) && *p->eos &&
                        memcmp(text + size - strlen(p->eos), p->eos, strlen(p->eos)) == 0;
    const int32_t *eos = tokenizer_eos(p->tokenizer, &n_eos);
    for (int i = 0; i < n_eos && !closed && *n > 1; i++)
        if ((*ids)[*n - 1] == eos[i]) {
            --*n;
            break;
        }
    return 0;
}

int prompter_question(const struct prompter *p, const char *system, const char *text, size_t size, int32_t **ids,
                      int *n, struct err *e)
{
    if (!p->tmpl)
        return prompter_encode(p, text, size, 1, ids, n, e);
    char *rendered = NULL;
    size_t rendered_size;
    json_t *messages = json_array();
    if ((system && json_array_append_new(messages, chat_message("system", system, strlen(system))) != 0) ||
        json_array_append_new(messages, chat_message("user", text, size)) != 0) {
        json_decref(messages);
        return err_set(e, ERR_FORMAT, "the prompt is not UTF-8");
    }
    int rc = prompter_render(p, messages, NULL, &rendered, &rendered_size, e);
    json_decref(messages);
    if (rc == 0)
        rc = prompter_encode(p, rendered, rendered_size, 0, ids, n, e);
    free(rendered);
    return rc;
}
