/* call_memory.c - account for the memory of a call: every part is reserved in the account
 * (http/account.h) before it is allocated.
 *
 * A call reserves everything whose size its client determines: the body, its JSON tree (prescan.h),
 * the template's values, the tokenizer's working memory, token ids, and for each answer the part
 * that the engine keeps for it.  The text of answers is reserved in steps of ANSWER_STEP. */
#include "libcommon/serve/api/internal.h"

#include <string.h>

#include "libcommon/base/json.h"

enum { CALL_BYTES = 16 << 10, CHOICE_BYTES = 4 << 10, ANSWER_STEP = 64 << 10 };

int call_hold(struct call *c, size_t more, struct problem *pr)
{
    const size_t bytes = CALL_BYTES + c->kept_bytes + ANSWER_COPIES * c->held_answers + more;
    const enum hold_answer why = hold_set(&c->hold, bytes);
    return why == HOLD_OK ? 0 : hold_problem(&c->hold, why, bytes, pr);
}

int call_keep(struct call *c, size_t more, struct problem *pr)
{
    c->kept_bytes += more;
    if (call_hold(c, 0, pr) == 0)
        return 0;
    c->kept_bytes -= more;
    return -1;
}

/* Number of bytes allocated for one answer. */
static size_t choice_bytes(const struct choice *ch)
{
    size_t n = ch->text.room + ch->logprobs.room + ch->values.room + ch->tops.room + ch->offsets.room;
    for (int i = 0; i < ch->n_parts; i++)
        n += sizeof *ch->part + ch->part[i].text.room;
    return n;
}

int call_hold_answer(struct call *c, struct choice *ch)
{
    const size_t n = choice_bytes(ch);
    c->answer_bytes += n - ch->n_bytes;
    ch->n_bytes = n;
    if (c->answer_bytes <= c->held_answers)
        return 0;
    c->held_answers = c->answer_bytes + ANSWER_STEP;
    return call_hold(c, 0, &c->problem);
}

/* An upper bound of the memory of a JSON tree, by the same rules as prescan.c. */
static size_t tree_bytes(const json_t *v)
{
    size_t n = 0, i;
    const char *key;
    json_t *x;
    union { const json_t *in; json_t *out; } u = { .in = v };
    if (json_is_string(v))
        return 160 + json_string_length(v);
    if (!json_is_object(v) && !json_is_array(v))
        return 64;
    json_object_foreach(u.out, key, x)
        n += 160 + strlen(key) + tree_bytes(x);
    json_array_foreach(v, i, x)
        n += tree_bytes(x);
    return n + 280;
}

void call_drop_prompt(struct call *c)
{
    static const char *const names[] = { "messages", "input", "prompt", "system", "chat_template_kwargs", "logit_bias",
                                         "content", "tokens", "grammar", "regex", "query", "prediction" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        json_object_del(c->json, names[i]);
    json_decref(c->unknown);
    c->unknown = NULL;
    json_decref(c->conversation.vars);
    c->conversation.vars = NULL;
    const size_t tree = tree_bytes(c->json);
    if (tree >= c->scan.tree_bytes)
        return;
    c->kept_bytes -= c->scan.tree_bytes - tree;
    c->scan.tree_bytes = tree;
}

static size_t engine_bytes(const struct call *c, int n)
{
    const int embed = call_embeds(c), max_len = c->lm->m.max_len;
    /* 64 bytes per element, for two copies of the vector and its text */
    const size_t embedding = embed ? (size_t)config_embedding_size(&c->lm->m.model->config) * 64 : 0;
    size_t bytes = 0, stops = (size_t)c->n_stop_ids * sizeof *c->stop_ids;
    for (int i = 0; i < c->n_stop; i++)
        stops += strlen(c->stop[i]) + 64;
    for (int i = 0; i < c->n_prompts; i++) {
        const int room = embed ? 0 : max_len - c->prompts[i].n_ids;
        const size_t len = (size_t)c->prompts[i].n_ids +
                           (size_t)(c->max_tokens && c->max_tokens < room ? c->max_tokens : room);
        bytes += (size_t)n * (CHOICE_BYTES + embedding + stops + (size_t)c->params.sampling.n_bias * sizeof *c->bias +
                              2 * len * sizeof(int32_t) + (size_t)max_len + call_draft_bytes(c, len));
    }
    return bytes;
}

int call_keep_answers(struct call *c, int n, struct problem *pr) { return call_keep(c, engine_bytes(c, n), pr); }

void call_drop_answers(struct call *c, int n)
{
    c->kept_bytes -= engine_bytes(c, n);
    c->answer_bytes = c->held_answers = 0;
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

int call_hold_prompts(struct call *c, struct problem *pr)
{
    const body_set templated = BODY_CHAT | BODY_RESPONSES | BODY_MESSAGES | BODY_COUNT | BODY_TEMPLATE | BODY_WS_CHAT |
                               OLLAMA_TEXT;
    static const size_t mib = 1 << 20;
    if (!(c->form->body & templated) && !(c->form->body == BODY_TOKENIZE && js_get(c->json, "messages")))
        return 0;
    const size_t b = c->body_bytes, trees = 2 * (c->scan.tree_bytes + c->scan.text_bytes),
                 all = account_request_limit(c->s->account);
    const size_t others = CALL_BYTES + c->kept_bytes + trees, left = all > others ? all - others : 0;
    const size_t output = smaller(smaller(mib + 8 * b, 16 * mib), left / 4),
                 values = smaller(smaller(16 * mib + 32 * b, 192 * mib), left - output);
    c->conversation.limits = (struct tmpl_limits){ .max_output = output, .max_memory = values };
    return call_hold(c, trees + (left ? output + values : mib), pr);
}
