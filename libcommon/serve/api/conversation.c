/* conversation.c - render a conversation as a prompt. */
#include "libcommon/serve/api/conversation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/api/calls.h"
#include "libcommon/template/chat_calls.h"

/* Text that marks in a rendered prompt the end of the message to continue.  Transformers has such a
 * mark for the same purpose.  The blank shows whether the template keeps blanks at the end of a
 * message. */
#define MARK "zse-continues-here"
#define MARK_BLANK MARK " "

/* Append the mark to the content of the last message. */
static int mark_last(json_t *messages, struct problem *pr)
{
    json_t *last = json_array_get(messages, json_array_size(messages) - 1);
    const json_t *content = json_object_get(last, "content");
    struct buf text = { 0 };
    buf_add(&text, json_string_value(content), json_string_length(content));
    buf_str(&text, MARK_BLANK);
    const int rc = json_object_set_new(last, "content", conversation_string(&text));
    buf_release(&text);
    return rc == 0 ? 0 : problem_nomem(pr);
}

/* Cut the prompt at the last mark in it. */
static int cut_at_mark(const struct conversation *t, char *text, size_t *size, struct problem *pr)
{
    const size_t n = strlen(MARK);
    size_t at = *size;
    while (at > 0 && !(*size - at >= n && memcmp(text + at, MARK, n) == 0))
        at--;
    if (*size - at < n || memcmp(text + at, MARK, n) != 0)
        return problem_set(pr, 400, t->param, "template_error",
                           "%s: the last one cannot be continued: the chat template does not show its text", t->param);
    const int kept = *size - at > n && text[at + n] == ' ';
    while (!kept && at > 0 && text[at - 1] && strchr(" \t\r\n", text[at - 1]))
        at--;
    text[at] = '\0';
    *size = at;
    return 0;
}

static int render(const struct loaded_model *lm, const struct conversation *t, int generation_prompt, char **text,
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

int conversation_render(const struct loaded_model *lm, const struct conversation *t, int generation_prompt, char **text,
                        size_t *size, struct problem *pr)
{
    if (!t->continues)
        return render(lm, t, generation_prompt, text, size, pr);
    if (mark_last(t->messages, pr) != 0 || render(lm, t, 0, text, size, pr) != 0)
        return -1;
    if (cut_at_mark(t, *text, size, pr) == 0)
        return 0;
    free(*text);
    return -1;
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
    if (c->rounds && c->conversation.continues)
        return problem_set(pr, 400, c->conversation.param, "unsupported_parameter",
                           "%s: the last one is the assistant's, which is not continued with tools of the server",
                           c->conversation.param);
    /* the messages are read: what the form kept of them took the place of this reservation */
    if (call_prompts(c, 1, pr) != 0 || call_hold_prompts(c, pr) != 0 ||
        conversation_check_tools(&c->conversation, pr) != 0 ||
        conversation_render(c->lm, &c->conversation, c->params.add_generation_prompt, &text, &size, pr) != 0)
        return -1;
    c->starts_thinking = (c->lm->thinks || tool_format_has_channels(c->lm->calls_form)) &&
                         tool_format_begun(c->lm->calls_form, text, size);
    c->raw_text = reads_calls(c);
    if (!c->rounds) {
        json_decref(c->conversation.messages);          /* the rendered text contains them */
        c->conversation.messages = NULL;
    }
    int rc = call_tokenize(c, 0, text, size, 1, c->params.add_special_tokens, pr, c->conversation.param);
    free(text);
    return rc == 0 ? call_answer_grammar(c, pr) : -1;
}
