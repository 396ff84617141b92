/* call_prompts.c - make the prompts of a call: text or token ids of the body become checked token
 * ids. */
#include "libcommon/serve/api/internal.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/base/utf8.h"

int call_embeds(const struct call *c) { return (c->form->body & EMBEDS) != 0; }

int call_prompts(struct call *c, int n, struct problem *pr)
{
    const int most = call_embeds(c) ? MAX_TEXTS : MAX_CHOICES;
    if (n < 1 || n > most)
        return problem_set(pr, 400, call_embeds(c) ? "input" : "prompt", "out_of_range",
                           "%d prompts, expected 1 to %d", n, most);
    if (!(c->prompts = calloc((size_t)n, sizeof *c->prompts)))
        return problem_nomem(pr);
    c->n_prompts = n;
    return 0;
}

static int check_length(const struct call *c, const struct prompt *p, const char *field, struct problem *pr)
{
    int room = call_embeds(c) ? 0 : 1, max_len = c->lm->m.max_len;
    if (p->n_ids < 1)
        return problem_set(pr, 400, field, "empty", "%s: the prompt is empty, expected at least 1 token", field);
    if (p->n_ids + room > max_len && c->form->body != BODY_COUNT)
        return problem_set(pr, 400, field, "context_length_exceeded",
                           "%s: the prompt has %d tokens, the context of %s is %d tokens%s", field, p->n_ids, c->lm->id,
                           max_len, room ? ", and an answer needs at least 1" : "");
    return 0;
}

/* Tokenize the beginning of a long text, and refuse the text if the beginning alone is longer than
 * the context: tokenizing all of it would take time, and TOKENIZE_BYTES of memory for each byte.
 * SLACK: number of tokens at the cut that could have merged with the text after it. */
static int check_beginning(struct call *c, const char *text, size_t size, unsigned flags, const char *field,
                           struct problem *pr)
{
    enum { LONG_TOKEN = 16, SLACK = 64 };
    const int max_len = c->lm->m.max_len;
    size_t part = (size_t)max_len * LONG_TOKEN + 4096, n;
    int32_t *ids;
    struct err e;
    if (c->form->body == BODY_COUNT || size / 4 < part)
        return 0;
    part -= utf8_incomplete(text, part);
    if (call_hold(c, TOKENIZE_BYTES * part, pr) != 0)
        return -1;
    if (tokenizer_encode(c->lm->m.tokenizer, text, part, flags, &ids, &n, &e) != 0)
        return problem_err(pr, field, NULL, &e);
    free(ids);
    if (n <= (size_t)max_len + SLACK)
        return 0;
    return problem_set(pr, 400, field, "context_length_exceeded",
                       "%s: the prompt has more than %zu tokens, the context of %s is %d tokens", field, n - SLACK,
                       c->lm->id, max_len);
}

/* The length in tokens to which the body's option truncates texts; 0: no truncation. */
static int cut_length(const struct call *c)
{
    const int max_len = c->lm->m.max_len, most = c->params.truncate;
    return most == -1 || most > max_len ? max_len : most;
}

/* Truncate a prompt to cut_length(), but keep at its end the tokens that the tokenizer appends to
 * every text. */
static void truncate(const struct call *c, struct prompt *p)
{
    int n;
    const int32_t *suffix = tokenizer_suffix(c->lm->m.tokenizer, &n);
    const int most = cut_length(c);
    if (most == 0 || p->n_ids <= most)
        return;
    n = n < most ? n : most;
    memcpy(p->ids + most - n, suffix, (size_t)n * sizeof *p->ids);
    p->n_ids = most;
}

/* The number of bytes of the text to tokenize.  If the prompt will be truncated, this is a prefix
 * that surely has more tokens than are kept; otherwise it is the whole text. */
static size_t cut_bytes(const struct call *c, const char *text, size_t size)
{
    enum { LONGEST_TOKEN = 64 };
    const size_t part = (size_t)cut_length(c) * LONGEST_TOKEN + 4096;
    return part >= size || cut_length(c) == 0 ? size : part - utf8_incomplete(text, part);
}

int call_tokenize(struct call *c, int i, const char *text, size_t size, int special, int bos, struct problem *pr,
                  const char *field)
{
    const struct tokenizer *t = c->lm->m.tokenizer;
    struct prompt *p = &c->prompts[i];
    struct err e;
    size_t n;
    const unsigned flags = (special ? TOKENIZE_PARSE_SPECIAL : 0) | (bos ? TOKENIZE_ADD_SPECIAL : 0);
    if (call_embeds(c))
        size = cut_bytes(c, text, size);
    if ((!cut_length(c) && check_beginning(c, text, size, flags, field, pr) != 0) ||
        call_hold(c, (TOKENIZE_BYTES + 1) * size, pr) != 0)
        return -1;
    if (tokenizer_encode(t, text, size, flags, &p->ids, &n, &e) != 0)
        return problem_err(pr, field, NULL, &e);
    if (call_keep(c, n * sizeof *p->ids, pr) != 0)
        return -1;
    p->n_ids = n > INT32_MAX ? INT32_MAX : (int)n;
    if (call_embeds(c) && bos)
        truncate(c, p);
    /* some tokenizers append EOS to every text, which would end the answer at once */
    if (bos && !call_embeds(c)) {
        int n_eos;
        const int32_t *eos = tokenizer_eos(t, &n_eos);
        for (int k = 0; k < n_eos && p->n_ids > 1; k++)
            if (p->ids[p->n_ids - 1] == eos[k]) {
                p->n_ids--;
                break;
            }
    }
    return check_length(c, p, field, pr);
}

static int ids_prompt(struct call *c, int i, const json_t *list, const char *field, struct problem *pr)
{
    struct prompt *p = &c->prompts[i];
    size_t n = json_array_size(list);
    int vocab = c->lm->m.model->config.vocab_size;
    if (call_keep(c, (n + 1) * sizeof *p->ids, pr) != 0)
        return -1;
    if (!(p->ids = malloc((n + 1) * sizeof *p->ids)))
        return problem_nomem(pr);
    for (size_t k = 0; k < n; k++) {
        const json_t *v = json_array_get(list, k);
        if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) >= vocab)
            return problem_set(pr, 400, field, "out_of_range",
                               "%s: token %zu is %s, expected a whole number from 0 to %d", field, k,
                               json_is_integer(v) ? "out of range" : js_kind(v), vocab - 1);
        p->ids[k] = (int32_t)json_integer_value(v);
    }
    p->n_ids = (int)n;
    return check_length(c, p, field, pr);
}

/* Keep the prompt's text for the option echo.  -1: no memory. */
static int keep_text(struct prompt *p, const char *text, size_t size)
{
    if ((p->text = malloc(size + 1)))
        memcpy(p->text, text, size);
    p->text_size = size;
    return p->text ? 0 : -1;
}

/* Tokenize a text after the model's prefix for it. */
static int with_prefix(struct call *c, int i, const char *text, size_t size, const char *field, struct problem *pr)
{
    const size_t n = strlen(c->prefix);
    char *both = call_keep(c, n + size, pr) == 0 ? malloc(n + size + 1) : NULL;
    if (!both)
        return pr->status ? -1 : problem_nomem(pr);
    memcpy(both, c->prefix, n);
    memcpy(both + n, text, size);
    const int rc = call_tokenize(c, i, both, n + size, 0, 1, pr, field);
    free(both);
    c->kept_bytes -= n + size;
    return rc;
}

static int one_prompt(struct call *c, int i, const json_t *v, const char *field, int special, struct problem *pr)
{
    struct prompt *p = &c->prompts[i];
    struct err e;
    if (json_is_array(v)) {
        if (ids_prompt(c, i, v, field, pr) != 0)
            return -1;
        if (c->params.echo && tokenizer_decode(c->lm->m.tokenizer, p->ids, (size_t)p->n_ids, 0, &p->text, &p->text_size,
                                               &e) != 0)
            return problem_err(pr, field, NULL, &e);
        return 0;
    }
    if (!json_is_string(v))
        return problem_set(pr, 400, field, "invalid_type", "%s: found %s in the list, expected text or token ids",
                           field, js_kind(v));
    if (c->params.echo && call_keep(c, ANSWER_COPIES * json_string_length(v), pr) != 0)
        return -1;
    if (c->params.echo && keep_text(p, json_string_value(v), json_string_length(v)) != 0)
        return problem_nomem(pr);
    if (c->prefix && *c->prefix)
        return with_prefix(c, i, json_string_value(v), json_string_length(v), field, pr);
    return call_tokenize(c, i, json_string_value(v), json_string_length(v), special,
                         call_embeds(c) || c->params.add_special_tokens, pr, field);
}

int call_any_prompts(struct call *c, const char *field, int special, struct problem *pr)
{
    const json_t *v = js_get(c->json, field);
    if (!v)
        return problem_set(pr, 400, field, "missing", "%s: missing", field);
    if (!json_is_array(v) && !json_is_string(v))
        return problem_set(pr, 400, field, "invalid_type",
                           "%s: found %s, expected text, token ids, or a list of either", field, js_kind(v));
    int list = json_is_array(v) && !json_is_integer(json_array_get(v, 0)),
        n = list ? (int)(json_array_size(v) < MAX_TEXTS + 1 ? json_array_size(v) : MAX_TEXTS + 1) : 1;
    if (call_prompts(c, n, pr) != 0)
        return -1;
    for (int i = 0; i < n; i++)
        if (one_prompt(c, i, list ? json_array_get(v, (size_t)i) : v, field, special, pr) != 0)
            return -1;
    return 0;
}
