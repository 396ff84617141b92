/* call_params.c - parse the parameters of a call: its model and every field of its body. */
#include "libcommon/serve/api/internal.h"
#include "libcommon/tools/round.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/json.h"
#include "libcommon/serve/named.h"

/* Parse a string, or a list of at most `most` strings, into out; they are borrowed from v. */
static int parse_texts(const json_t *v, const char *name, int most, size_t most_bytes, const char **out, int *n_out,
                       struct problem *pr)
{
    size_t n = json_is_array(v) ? json_array_size(v) : v != NULL;
    if (v && !json_is_array(v) && !json_is_string(v))
        return problem_set(pr, 400, name, "invalid_type", "%s: found %s, expected a string or a list of strings", name,
                           js_kind(v));
    if (n > (size_t)most)
        return problem_set(pr, 400, name, "out_of_range", "%s: %zu texts, expected at most %d", name, n, most);
    for (size_t i = 0; i < n; i++) {
        const json_t *s = json_is_array(v) ? json_array_get(v, i) : v;
        if (!json_is_string(s) || json_string_length(s) == 0 || strlen(json_string_value(s)) != json_string_length(s))
            return problem_set(pr, 400, name, "invalid_type", "%s: text %zu is %s", name, i + 1,
                               !json_is_string(s) ? js_kind(s) : json_string_length(s) ? "with a zero byte" : "empty");
        if (json_string_length(s) > most_bytes)
            return problem_set(pr, 400, name, "out_of_range", "%s: text %zu has %zu bytes, expected at most %zu", name,
                               i + 1, json_string_length(s), most_bytes);
        out[(*n_out)++] = json_string_value(s);
    }
    return 0;
}

static int parse_stop(struct call *c, struct problem *pr)
{
    const char *name = c->form->body == BODY_MESSAGES ? "stop_sequences" : "stop";
    const json_t *from = c->form->body & OLLAMA_TEXT ? js_get(c->json, "options") : c->json;
    return parse_texts(js_get(from, name), name, MAX_STOP, MAX_STOP_BYTES, c->stop, &c->n_stop, pr);
}

static int parse_stop_ids(struct call *c, struct problem *pr)
{
    static const char name[] = "stop_token_ids";
    const json_t *v = js_get(c->json, name), *x;
    const int vocab = c->lm->m.model->config.vocab_size;
    size_t i;
    if (!v)
        return 0;
    if (!json_is_array(v))
        return problem_set(pr, 400, name, "invalid_type", "%s: found %s, expected a list of token ids", name,
                           js_kind(v));
    if (json_array_size(v) > MAX_STOP_IDS)
        return problem_set(pr, 400, name, "out_of_range", "%s: %zu ids, expected at most %d", name,
                           json_array_size(v), MAX_STOP_IDS);
    if (!(c->stop_ids = calloc(MAX_STOP_IDS, sizeof *c->stop_ids)))
        return problem_nomem(pr);
    json_array_foreach(v, i, x) {
        const json_int_t id = json_integer_value(x);
        if (!json_is_integer(x))
            return problem_set(pr, 400, name, "invalid_type", "%s: id %zu: found %s, expected a token id", name,
                               i + 1, js_kind(x));
        if (id < 0 || id >= vocab)
            return problem_set(pr, 400, name, "out_of_range", "%s: token %" JSON_INTEGER_FORMAT " is not in the range 0 to %d", name, id, vocab - 1);
        c->stop_ids[c->n_stop_ids++] = (int32_t)id;
    }
    return 0;
}

static int parse_breakers(struct call *c, struct problem *pr)
{
    static const char name[] = "dry_sequence_breakers";
    struct sampling *s = &c->params.sampling;
    const json_t *v = js_get(c->json, name);
    if (v)
        s->dry_sequence_breakers = c->breaker;
    return parse_texts(v, name, DRY_MAX_BREAKERS, DRY_BREAKER_BYTES, c->breaker, &s->n_dry_sequence_breakers, pr);
}

static int parse_bias(struct call *c, struct problem *pr)
{
    json_t *v = js_get(c->json, "logit_bias"), *x;
    const char *key;
    int vocab = c->lm->m.model->config.vocab_size, n = 0;
    if (!v)
        return 0;
    if (!json_is_object(v))
        return problem_set(pr, 400, "logit_bias", "invalid_type",
                           "logit_bias: found %s, expected an object of token ids", js_kind(v));
    if (json_object_size(v) > (size_t)vocab) /* "1" and "01" are one token: keys can repeat, so limit their number */
        return problem_set(pr, 400, "logit_bias", "out_of_range", "logit_bias: %zu members, the model has %d tokens",
                           json_object_size(v), vocab);
    if (call_keep(c, (json_object_size(v) + 1) * sizeof *c->bias, pr) != 0)
        return -1;
    if (!(c->bias = calloc(json_object_size(v) + 1, sizeof *c->bias)))
        return problem_nomem(pr);
    json_object_foreach(v, key, x) {
        char *end;
        long id = strtol(key, &end, 10);
        if (*key < '0' || *key > '9' || *end || id < 0 || id >= vocab)
            return problem_set(pr, 400, "logit_bias", "out_of_range",
                               "logit_bias: token '%.40s' is not in the range 0 to %d", key, vocab - 1);
        double bias = json_number_value(x);
        if (!json_is_number(x) || !(bias >= -100 && bias <= 100))
            return problem_set(pr, 400, "logit_bias", "out_of_range",
                               "logit_bias: %g of token %ld is not in the range -100 to 100", bias, id);
        c->bias[n++] = (struct logit_bias){ (int32_t)id, bias <= -100 ? -INFINITY : (float)bias };
    }
    c->params.sampling.bias = c->bias;
    c->params.sampling.n_bias = n;
    return 0;
}

static int parse_stream_options(struct call *c, struct problem *pr)
{
    json_t *v = js_get(c->json, "stream_options"), *x;
    const char *key;
    if (!v)
        return 0;
    if (!json_is_object(v))
        return problem_set(pr, 400, "stream_options", "invalid_type", "stream_options: found %s, expected an object",
                           js_kind(v));
    if (!c->params.stream)
        return problem_set(pr, 400, "stream_options", NULL, "stream_options: only with stream = true");
    json_object_foreach(v, key, x) {
        const int usage = strcmp(key, "include_usage") == 0, running = strcmp(key, "continuous_usage_stats") == 0;
        if (!usage && !running && strcmp(key, "include_obfuscation") != 0) {
            if (fields_unknown(&c->params.ignored, "stream_options", key, pr) != 0)
                return -1;
            continue;
        }
        if (!json_is_boolean(x) && !json_is_null(x))
            return problem_set(pr, 400, "stream_options", "invalid_type",
                               "stream_options: %s: found %s, expected true or false", key, js_kind(x));
        if (usage)
            c->include_usage = json_is_true(x);
        if (running)
            c->running_usage = json_is_true(x);
    }
    c->running_usage &= c->include_usage;
    return 0;
}

static int check_params(struct call *c, struct problem *pr)
{
    struct params *p = &c->params;
    if (p->given & GIVEN_MAX_TOKENS && p->given & GIVEN_MAX_COMPLETION_TOKENS &&
        p->max_tokens != p->max_completion_tokens)
        return problem_set(pr, 400, "max_completion_tokens", NULL,
                           "max_completion_tokens: %d, but max_tokens is %d: one of the two", p->max_completion_tokens,
                           p->max_tokens);
    c->max_tokens = p->given & GIVEN_MAX_COMPLETION_TOKENS ? p->max_completion_tokens : p->max_tokens;
    if (c->max_tokens && p->min_tokens > c->max_tokens)
        return problem_set(pr, 400, "min_tokens", "out_of_range", "min_tokens: %d, but max_tokens is %d", p->min_tokens,
                           c->max_tokens);
    if (c->form->delta && p->given & GIVEN_MAX_TOKENS && p->max_tokens == 0)
        return problem_set(pr, 400, "max_tokens", "out_of_range", "max_tokens: 0 is not in the range 1 to %d",
                           INT32_MAX);
    c->n_logprobs = -1;
    if (c->form->body == BODY_CHAT) {
        if (p->top_logprobs > 0 && !p->logprobs)
            return problem_set(pr, 400, "top_logprobs", NULL, "top_logprobs: %d, but logprobs is not true",
                               p->top_logprobs);
        c->n_logprobs = p->logprobs ? p->top_logprobs : -1;
    } else if (p->given & GIVEN_LOGPROBS) {
        c->n_logprobs = p->logprobs_count;
    }
    if (p->best_of && p->best_of != p->n)
        return problem_set(pr, 400, "best_of", "unsupported_parameter",
                           "best_of: %d, but n is %d: there is no search for the best", p->best_of, p->n);
    if (p->given & GIVEN_SEED)
        p->sampling.seed = (uint64_t)(int64_t)p->seed;
    else
        p->sampling.seed = (uint32_t)rng_u64(&c->s->ids);
    return 0;
}

/* Whether the call may use this named model: its key must allow the model's name, or the alias by
 * which the request asked for it. */
static int may_use(const struct call *c, const char *asked, const char *name, struct problem *pr)
{
    struct problem why, ignored;
    if (guard_model(call_record(c), name, &why) == 0 ||
        (asked && guard_model(call_record(c), asked, &ignored) == 0))
        return 0;
    *pr = why;
    return -1;
}

/* Start loading a named model that is not loaded.  1: c->awaited is loading; 0: no model has this
 * name, or the call may not use it, and *pr has the reason. */
static int await_named(struct call *c, const char *asked, struct problem *pr)
{
    char name[STORE_NAME_BYTES];
    struct problem why;
    if (c->s->draining || named_find(c->s, asked, name, &why) != 0)
        return 0;
    if (!guard_may_load(call_record(c)) || may_use(c, asked, name, pr) != 0)
        return 0;
    if (catalog_removes(c->s, name)) {
        problem_set(pr, 404, "model", "model_not_found", "model '%.80s' is being deleted", asked ? asked : name);
        return 0;
    }
    if (!(c->awaited = named_load(c->s, name, c->tenant, pr)))
        return 0;
    *pr = (struct problem){ 0 };
    return 1;
}

/* Find the model, loading it again if it was evicted, and link the call to it.  Returns the same as
 * call_bind. */
static int find_model(struct call *c, const char *name, struct problem *pr)
{
    struct problem recalled;
    struct loaded_model *lm = models_find(c->s, name, pr);
    if (!lm && await_named(c, name, pr))
        return 1;
    const char *left = lm || pr->status != 404 ? NULL : models_left(c->s, name);
    const char *used = left && models_adapted(c->s, name) ? name : left;
    if (left && guard_model(call_record(c), used, &recalled) == 0 && models_recall(c->s, left, &recalled))
        *pr = recalled;
    const int lora = lm ? models_lora(lm, name) : 0;
    if (!lm || (lm->named ? may_use(c, name, lm->id, pr)
                          : guard_model(call_record(c), lora ? name : lm->id, pr)) != 0)
        return -1;
    c->lm = lm;
    c->lora = lora;
    c->bound_ns = clock_ns();
    lm->shared |= lm->loaded_by != c->tenant;
    lm->keep_given = 0;
    c->next = lm->calls;
    if (c->next)
        c->next->prev = c;
    lm->calls = c;
    lm->n_calls++;
    adapters_use(lm, lora);
    lm->used_ns = clock_ns();
    named_used(c->s, lm, c->tenant);
    return 0;
}

int call_bind(struct call *c, struct problem *pr)
{
    const json_t *name = js_get(c->json, "model");
    if (!json_is_object(c->json))
        return problem_set(pr, 400, NULL, "invalid_type", "the body: found %s, expected an object", js_kind(c->json));
    if (name && !json_is_string(name))
        return problem_set(pr, 400, "model", "invalid_type", "model: found %s, expected a string", js_kind(name));
    if (c->s->watch.state != WATCH_FINE)
        return problem_set(pr, 503, NULL, "memory_pressure", "memory is short: no new requests until there is more");
    if (c->s->sleep.level)
        return problem_set(pr, 503, NULL, "sleeping", "the server sleeps: POST /wake_up loads its models again");
    char plain[STORE_NAME_BYTES];
    const char *asked = json_string_value(name);
    const int found = find_model(c, c->form->latest ? named_plain(c->s, asked, plain) : asked, pr);
    if (found != 0)
        return found;
    c->params = (struct params){ .sampling = c->lm->sampling, .n = 1, .truncates = 1,
                                 .stream = (c->form->body & OLLAMA_TEXT) != 0,
                                 .max_tokens = c->form->body == BODY_COMPLETION ? 16 : 0, .parse_special = 1,
                                 .add_generation_prompt = 1, .parallel_calls = 1, .skip_special_tokens = 1,
                                 /* a chat template writes these tokens itself */
                                 .add_special_tokens = c->form->body & (BODY_COMPLETION | BODY_TOKENIZE) &&
                                                       !js_get(c->json, "messages"),
                                 .max_tool_rounds = ROUNDS_DEFAULT, .store = 1,
                                 .ignored.tolerant = !c->s->o.strict_api && (c->form->body & SHARED_API) != 0 &&
                                                     (!c->form->on_socket || c->form->body == BODY_RESPONSES) };
    c->conversation.ignored = &c->params.ignored;
    if (!c->lm->m.tokenizer)
        return problem_set(pr, 400, "model", NULL, "model: %s has no tokenizer", c->lm->id);
    if (fields_parse(c->json, c->form->body, &c->params, pr) != 0 ||
        (c->form->params && c->form->params(c, pr) != 0))
        return -1;
    c->params.stream |= c->form->on_socket;
    const struct embedding *m = &c->lm->m.model->config.embedding;
    const body_set texts = BODY_TOKENIZE | BODY_DETOKENIZE | BODY_TEMPLATE | BODY_COUNT;
    if (m->pooling && !call_embeds(c) && !(c->form->body & texts))
        return problem_set(pr, 400, "model", "unsupported_model", "model: %s makes no text: use %s", c->lm->id,
                           m->scores ? "/v1/rerank or /v1/score" : "/v1/embeddings");
    if (call_embeds(c) || c->form->body & texts)
        return 0;
    return check_params(c, pr) || parse_stop(c, pr) || parse_stop_ids(c, pr) || parse_bias(c, pr) ||
                   parse_breakers(c, pr) || parse_stream_options(c, pr) || call_speculative(c, pr) ||
                   call_guided(c, pr) ? -1 : 0;
}
