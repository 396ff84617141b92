/* conversation.c - render a conversation as a prompt. */
#include "libcommon/serve/api/conversation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/api/calls.h"
#include "libcommon/template/chat_calls.h"

int conversation_render(const struct loaded_model *lm, const struct conversation *t, int generation_prompt, char **text,
                        size_t *size, struct problem *pr)
{
    struct err e;
    const struct chat_style style = { .knows_tools = lm->knows_tools,
                                      .short_ids = tool_format_has_short_ids(lm->calls_form) };
    if (!lm->tmpl)
        return problem_set(pr, 400, "model", NULL,
                           "model: %s has no chat template; /v1/completions takes text as it is", lm->id);
    if (chat_render_tools(lm->tmpl, &style, t->messages, t->choice == CALLS_NONE ? NULL : t->tools, generation_prompt,
                          lm->bos, lm->eos, (int64_t)time(NULL), t->vars, &t->limits, text, size, &e) == 0)
        return 0;
    return e.code == ERR_MEMORY ? problem_nomem(pr) :
           problem_set(pr, 400, t->param, "template_error", "%s: %s", t->param, e.msg);
}

/* Whether answers need a parser of calls, besides the split at </think>. */
static int reads_calls(const struct call *c)
{
    return (c->conversation.tools && c->conversation.choice != CALLS_NONE) ||
           tool_format_has_channels(c->lm->calls_form);
}

int conversation_prepare(struct call *c, struct problem *pr)
{
    char *text;
    size_t size;
    if (call_prompts(c, 1, pr) != 0 || conversation_check_tools(&c->conversation, pr) != 0 ||
        conversation_render(c->lm, &c->conversation, 1, &text, &size, pr) != 0)
        return -1;
    c->starts_thinking = (c->lm->thinks || tool_format_has_channels(c->lm->calls_form)) &&
                         tool_format_begun(c->lm->calls_form, text, size);
    c->raw_text = reads_calls(c);
    if (!c->rounds) {
        json_decref(c->conversation.messages);          /* the rendered text contains them */
        c->conversation.messages = NULL;
    }
    int rc = call_tokenize(c, 0, text, size, 1, 0, pr, c->conversation.param);
    free(text);
    return rc == 0 ? call_answer_grammar(c, pr) : -1;
}
