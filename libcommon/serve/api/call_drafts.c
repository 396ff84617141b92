/* call_drafts.c - parse the fields "speculative" and "prediction".  Neither can change an answer,
 * unless the server was started with --spec-exact distribution. */
#include "libcommon/serve/api/internal.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/base/utf8.h"

static const char SPECULATIVE[] = "speculative", PREDICTION[] = "prediction";

int call_has_drafts(const struct call *c)
{
    const struct draft_params *d = &c->draft;
    const struct engine *g = c->lm ? c->lm->m.engine : NULL;
    if (!g || call_embeds(c) || d->use == DRAFT_OFF || engine_drafts(g))
        return 0;
    return d->use >= DRAFT_ON || d->n_predicted || engine_has_drafter(g);
}

static int parse_method(struct call *c, const json_t *v, struct problem *pr)
{
    static const struct { const char *name; enum draft_use use; } methods[] = {
        { "auto", DRAFT_ON }, { "off", DRAFT_OFF }, { "ngram", DRAFT_NGRAM }, { "draft", DRAFT_MODEL },
    };
    enum { N = sizeof methods / sizeof *methods };
    const char *why = engine_drafts(c->lm->m.engine);
    int i = 0;
    if (!json_is_string(v))
        return problem_set(pr, 400, SPECULATIVE, "invalid_type", "speculative: method: found %s, expected a string", js_kind(v));
    while (i < N && strcmp(json_string_value(v), methods[i].name) != 0)
        i++;
    if (i == N)
        return problem_set(pr, 400, SPECULATIVE, "unsupported_parameter",
                           "speculative: method '%.40s', expected auto, draft, ngram or off", json_string_value(v));
    if (!why && methods[i].use == DRAFT_MODEL && !engine_has_draft_model(c->lm->m.engine))
        why = "the server has no draft model";
    if (methods[i].use > DRAFT_ON && why)
        return problem_set(pr, 400, SPECULATIVE, "unsupported_parameter", "speculative: %s: %s", methods[i].name, why);
    c->draft.use = methods[i].use == DRAFT_ON && why ? DRAFT_DEFAULT : methods[i].use;
    return 0;
}

static int parse_most(struct call *c, const json_t *v, struct problem *pr)
{
    const json_int_t n = json_integer_value(v);
    if (!json_is_integer(v))
        return problem_set(pr, 400, SPECULATIVE, "invalid_type",
                           "speculative: max_tokens: found %s, expected a whole number", js_kind(v));
    if (n < 1 || n > DRAFT_MOST)
        return problem_set(pr, 400, SPECULATIVE, "out_of_range",
                           "speculative: max_tokens: %lld is not in the range 1 to %d", (long long)n, DRAFT_MOST);
    c->draft.most = (int)n;
    return 0;
}

static int parse_exact(struct call *c, const json_t *v, struct problem *pr)
{
    const char *s = json_string_value(v);
    if (!s)
        return problem_set(pr, 400, SPECULATIVE, "invalid_type", "speculative: exact: found %s, expected a string", js_kind(v));
    c->draft.same_tokens = strcmp(s, "tokens") == 0;
    if (!c->draft.same_tokens && strcmp(s, "distribution") != 0)
        return problem_set(pr, 400, SPECULATIVE, "unsupported_parameter",
                           "speculative: exact '%.40s', expected tokens or distribution", s);
    if (!c->draft.same_tokens && !engine_draws_by_distribution(c->lm->m.engine))
        return problem_set(pr, 400, SPECULATIVE, "unsupported_parameter", "speculative: exact: distribution needs a "
                           "server with --spec-exact distribution, and a model, a layer or heads that guess");
    return 0;
}

int call_speculative(struct call *c, struct problem *pr)
{
    static const struct {
        const char *name;
        int (*parse)(struct call *c, const json_t *v, struct problem *pr);
    } known[] = { { "method", parse_method }, { "max_tokens", parse_most }, { "exact", parse_exact } };
    enum { N = sizeof known / sizeof *known };
    json_t *v = js_get(c->json, SPECULATIVE), *x;
    const char *key;
    c->predicts = js_get(c->json, PREDICTION) != NULL;
    if (!v)
        return 0;
    if (!json_is_object(v))
        return problem_set(pr, 400, SPECULATIVE, "invalid_type", "speculative: found %s, expected an object", js_kind(v));
    json_object_foreach(v, key, x) {
        int i = 0;
        while (i < N && strcmp(key, known[i].name) != 0)
            i++;
        if (i == N && fields_unknown(&c->params.ignored, SPECULATIVE, key, pr) != 0)
            return -1;
        if (i < N && !json_is_null(x) && known[i].parse(c, x, pr) != 0)
            return -1;
    }
    return 0;
}

/* The text of a prediction, {"type": "content", "content": ...}. */
static int prediction_text(const json_t *v, struct buf *text, struct problem *pr)
{
    static const char *const types[] = { "text", NULL };
    const char *type = json_string_value(json_object_get(v, "type")), *key;
    union { const json_t *in; json_t *out; } u = { .in = v };
    json_t *x;
    if (!json_is_object(v))
        return problem_set(pr, 400, PREDICTION, "invalid_type", "prediction: found %s, expected an object", js_kind(v));
    json_object_foreach(u.out, key, x)
        if (strcmp(key, "type") != 0 && strcmp(key, "content") != 0)
            return problem_set(pr, 400, PREDICTION, "unknown_parameter", "prediction: %.40s: no such field", key);
    if (!type || strcmp(type, "content") != 0)
        return problem_set(pr, 400, PREDICTION, "unsupported_parameter", "prediction: type is '%.40s', expected content",
                           type ? type : "missing");
    return conversation_text(json_object_get(v, "content"), types, PREDICTION, text, pr);
}

/* Tokenize the predicted text.  An answer cannot be longer than the context, so text beyond that
 * many tokens is skipped. */
static int tokenize(struct call *c, const struct buf *text, struct problem *pr)
{
    enum { LONG_TOKEN = 16, SLACK = 4096 };
    const size_t max_len = (size_t)c->lm->m.max_len, most = max_len * LONG_TOKEN + SLACK;
    size_t size = text->size, n;
    int32_t *ids;
    struct err e;
    if (size > most)
        size = most - utf8_incomplete(text->data, most);
    if (call_hold(c, TOKENIZE_BYTES * size, pr) != 0)
        return -1;
    if (tokenizer_encode(c->lm->m.tokenizer, text->data, size, 0, &ids, &n, &e) != 0)
        return problem_err(pr, PREDICTION, NULL, &e);
    n = n < max_len ? n : max_len;
    if (call_keep(c, n * sizeof *ids, pr) != 0) {
        free(ids);
        return -1;
    }
    c->predicted = ids;
    c->draft.predicted = ids;
    c->draft.n_predicted = (int)n;
    return 0;
}

int call_prediction(struct call *c, struct problem *pr)
{
    enum { MOST_BYTES = 1 << 20 };
    const json_t *v = js_get(c->json, PREDICTION);
    struct buf text = { 0 };
    int rc = 0;
    if (!v || c->form->body != BODY_CHAT || c->predicted)
        return 0;
    if (call_hold(c, c->body_bytes, pr) != 0 || prediction_text(v, &text, pr) != 0)
        rc = -1;
    else if (text.size > MOST_BYTES)
        rc = problem_set(pr, 400, PREDICTION, "out_of_range", "prediction: %zu bytes, expected at most %d", text.size,
                         MOST_BYTES);
    else if (text.size && c->draft.use != DRAFT_OFF && !engine_drafts(c->lm->m.engine))
        rc = tokenize(c, &text, pr);
    buf_release(&text);
    return rc;
}

size_t call_draft_bytes(const struct call *c, size_t len)
{
    enum { DRAFTER_BYTES = 80 << 10, TOKEN_BYTES = 8 };
    const size_t n = (size_t)c->draft.n_predicted;
    return call_has_drafts(c) ? DRAFTER_BYTES + (len + n) * TOKEN_BYTES + n * sizeof(int32_t) : 0;
}
