/* answer_grammar.c - compile the grammar of an answer, from response_format, tools, grammar or
 * regex. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/api/calls.h"

/* The source from which a grammar is compiled. */
struct answer_grammar {
    const char *param;
    const char *text; size_t size;      /* the text of a schema, grammar or regular expression */
    struct grammar_options options;
    const struct tool_format *format;
    struct tool_grammar_options tools;
};

static struct grammar *make(const struct grammar_vocab *v, const void *what, struct err *e)
{
    const struct answer_grammar *s = what;
    if (s->tools.tools)
        return tool_grammar_compile(v, s->format, &s->tools, e);
    if (strcmp(s->param, "grammar") == 0)
        return grammar_compile_gbnf(v, s->text, s->size, &s->options, e);
    if (strcmp(s->param, "regex") == 0)
        return grammar_compile_regex(v, s->text, s->size, &s->options, e);
    return grammar_compile_schema(v, s->text, s->size, &s->options, e);
}

/* Read the field "grammar" or "regex"; the body may have one of them. */
static int read_text(const struct call *c, struct answer_grammar *s, struct problem *pr)
{
    static const char *const params[] = { "grammar", "regex" };
    for (size_t i = 0; i < sizeof params / sizeof *params; i++) {
        const json_t *v = js_get(c->json, params[i]);
        if (!v || (json_is_string(v) && json_string_length(v) == 0))
            continue;
        if (!json_is_string(v))
            return problem_set(pr, 400, params[i], "invalid_type", "%s: found %s, expected a string", params[i],
                               js_kind(v));
        if (s->param)
            return problem_set(pr, 400, params[i], NULL, "%s: found %s, too, expected one of the two", params[i],
                               s->param);
        s->param = params[i];
        s->text = json_string_value(v);
        s->size = json_string_length(v);
    }
    return 0;
}

static void use_tools(struct call *c, json_t *schema, struct answer_grammar *s)
{
    const struct conversation *t = &c->conversation;
    s->param = "tools";
    s->format = c->lm->calls_form;
    s->tools = (struct tool_grammar_options){ .tools = t->allowed ? t->allowed : t->tools, .strict = t->strict,
                                              .lenient = t->lenient,
                                              .only = t->only,
                                              .choice = t->choice == CALLS_REQUIRED ? TOOL_REQUIRED : TOOL_AUTO,
                                              .parallel = !t->serial,
                                              .reasoning = c->starts_thinking, .no_reasoning = !s->options.thinker,
                                              .grammar.cancel = &c->cancelled,
                                              .content = t->choice == CALLS_REQUIRED ? NULL : schema,
                                              .content_open = s->options.open_objects };
}

/* Write the key of the grammar in the cache: everything on which the grammar depends. */
static int key_of(const struct answer_grammar *s, struct buf *key)
{
    char *tools = s->tools.tools ? json_dumps(s->tools.tools, JSON_COMPACT) : NULL;
    buf_printf(key, "%s %d %d %d %d %d %s\n", s->param, s->options.thinker != NULL, s->options.thinking,
               s->options.open_objects, s->tools.choice, s->tools.parallel, s->tools.only ? s->tools.only : "");
    char *strict = s->tools.strict ? json_dumps(s->tools.strict, JSON_COMPACT) : NULL;
    if (tools)
        buf_str(key, tools);
    buf_str(key, "\n");
    if (strict)
        buf_str(key, strict);
    buf_str(key, "\n");
    if (s->text && !(s->tools.tools && !s->tools.content))
        buf_add(key, s->text, s->size);
    key->failed |= s->tools.strict && !strict;
    char *lenient = s->tools.lenient ? json_dumps(s->tools.lenient, JSON_COMPACT) : NULL;
    buf_str(key, "\n");
    if (lenient)
        buf_str(key, lenient);
    key->failed |= s->tools.lenient && !lenient;
    free(lenient);
    free(strict);
    free(tools);
    return key->failed || (s->tools.tools && !tools) ? -1 : 0;
}

/* Compile the grammar, or take it from the cache, and give every prompt a matcher of it. */
static int call_grammar(struct call *c, const char *param, const struct buf *key, const struct answer_grammar *what,
                        struct problem *pr)
{
    struct err e = { 0 };
    if (c->params.ignore_eos)
        return problem_set(pr, 400, "ignore_eos", NULL,
                           "ignore_eos: it continues after the end, but %s defines the end", param);
    c->grammar = grammars_get(c->lm->grammars, key->data, key->size, make, what, &e);
    const size_t n = strlen(param);
    /* messages about grammars and regular expressions begin with the parameter's name */
    const int says_where = strncmp(e.msg, param, n) == 0 && e.msg[n] == ':';
    if (!c->grammar)
        return e.code == ERR_MEMORY ? problem_set(pr, 503, NULL, "overloaded", "%s: %s", param, e.msg)
               : problem_set(pr, 400, param, e.code == ERR_LIMIT ? "schema_too_large" : e.code == ERR_UNSUPPORTED
                             ? "unsupported_schema" : "invalid_schema", says_where ? "%.0s%s" : "%s: %s", param, e.msg);
    for (int i = 0; i < c->n_prompts; i++)
        if (constrain(&c->prompts[i].constraint, shared_grammar(c->grammar), &e) != 0)
            return problem_set(pr, 503, NULL, NULL, "%s: %s", param, e.msg);
    return 0;
}

int call_answer_grammar(struct call *c, struct problem *pr)
{
    const struct conversation *t = &c->conversation;
    const int is_conversation = c->form->delta != NULL, thinks = is_conversation &&
                                                         (c->lm->thinks || tool_format_has_channels(c->lm->calls_form));
    struct answer_grammar s = { .options = { .thinker = thinks ? c->lm->calls_form : NULL,
                                             .thinking = c->starts_thinking,
                                    .cancel = &c->cancelled } };
    json_t *schema = t->format ? format_schema(t->format, t->format_param, t->ignored, pr) : NULL;
    char *dump = schema ? json_dumps(schema, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    struct buf key = { 0 };
    int rc = t->format && !schema && pr->status ? -1 : 0;
    if (schema) {
        s.param = t->format_param;
        s.text = dump;
        s.size = dump ? strlen(dump) : 0;
        s.options.open_objects = format_is_loose(t->format);
    }
    if (rc == 0)
        rc = schema && !dump ? problem_nomem(pr) : read_text(c, &s, pr);
    if (rc == 0 && t->tools && t->choice != CALLS_NONE) {
        if (s.param && !schema)
            rc = problem_set(pr, 400, s.param, NULL, "%s: found tools, too, expected one of the two", s.param);
        else
            use_tools(c, schema, &s);
    }
    if (rc == 0 && s.param) {
        rc = key_of(&s, &key) != 0 ? problem_nomem(pr) : call_grammar(c, s.param, &key, &s, pr);
        buf_release(&key);
    }
    json_decref(schema);
    free(dump);
    return rc;
}
