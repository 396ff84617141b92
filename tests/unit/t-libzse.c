/* t-libzse.c - the public library on the tiny model: answers, cancelling, several requests at a
 * time, grammars, embeddings, sizes of structs, and arguments that it refuses. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "lib/zse.h"
#include "libcommon/base/file.h"
#include "libcommon/base/json.h"
#include "libcommon/convert/convert.h"

static char folder[] = "/tmp/t-libzse-XXXXXX", path[64];
static struct zse_model *model;
static struct zse_engine *engine;
static struct zse_error e;

#define HELLO "[{\"role\": \"user\", \"content\": \"Hello there\"}]"
static const char greedy[] = "{\"temperature\": 0}";

static int open_all(void **state)
{
    struct convert_options o;
    struct err why;
    (void)state;
    convert_defaults(&o);
    if (!mkdtemp(folder))
        return -1;
    snprintf(path, sizeof path, "%s/tiny.zse", folder);
    o.source = "models/tiny";
    o.output = path;
    o.effort = CONVERT_FAST;
    o.n_threads = 2;
    const struct zse_engine_options eo = { .size = sizeof eo, .n_threads = 2, .max_len = 512 };
    if (convert_run(&o, NULL, &why) != 0 || !(model = zse_model_open(path, NULL, &e)) ||
        !(engine = zse_engine_open(model, &eo, &e)))
        fail_msg("%s %s", why.msg, e.message);
    return 0;
}

static int close_all(void **state)
{
    char command[128];
    (void)state;
    zse_engine_close(engine);
    zse_model_close(model);
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

/* Make the prompt of a conversation with one message; the caller frees it. */
static char *hello(void)
{
    char *text = NULL;
    assert_int_equal(zse_render(model, HELLO, NULL, &text, NULL, &e), 0);
    return text;
}

/* Collects events. */
struct heard {
    char text[4096];
    size_t size;
    int n_tokens, n_ends, most;         /* most: ask for the end after this many tokens; 0: never */
    enum zse_finish finish;
    float logprob;
};

static int hear(void *user, const struct zse_event *ev)
{
    struct heard *h = user;
    assert_int_equal(h->n_ends, 0);
    assert_int_equal(ev->size, sizeof *ev);
    assert_true(h->size + ev->text_size < sizeof h->text);
    memcpy(h->text + h->size, ev->text, ev->text_size);
    h->size += ev->text_size;
    h->n_tokens += ev->id >= 0;
    h->n_ends += ev->finish != ZSE_FINISH_NONE;
    h->finish = ev->finish;
    if (ev->n_top)
        h->logprob = ev->top[0].logprob;
    return h->most && h->n_tokens >= h->most;
}

/* ---- text ---- */

static void text_becomes_tokens_and_text_again(void **state)
{
    static const char text[] = "a<|im_end|>\xff";
    int32_t *ids, *special;
    size_t n, n_special, size;
    char *back;
    (void)state;
    assert_int_equal(zse_tokenize(model, text, sizeof text - 1, 0, &ids, &n, &e), 0);
    assert_int_equal(zse_tokenize(model, text, sizeof text - 1, ZSE_PARSE_SPECIAL, &special, &n_special, &e), 0);
    assert_true(n_special < n);
    assert_int_equal(zse_detokenize(model, ids, n, 0, &back, &size, &e), 0);
    assert_string_equal(back, "a<|im_end|>\xef\xbf\xbd");
    assert_int_equal(size, strlen(back));
    zse_free(back);
    assert_int_equal(zse_detokenize(model, special, n_special, ZSE_SKIP_SPECIAL, &back, NULL, &e), 0);
    assert_string_equal(back, "a\xef\xbf\xbd");
    zse_free(back);
    ids[0] = 1 << 30;
    assert_int_equal(zse_detokenize(model, ids, n, 0, &back, NULL, &e), -1);
    zse_free(ids);
    zse_free(special);
    assert_int_equal(zse_tokenize(model, NULL, 0, 0, &ids, &n, &e), 0);
    assert_int_equal(n, 0);
    zse_free(ids);
    assert_int_equal(zse_tokenize(model, NULL, 1, 0, &ids, &n, &e), -1);
    assert_int_equal(e.code, ZSE_ERROR_USAGE);
    assert_int_equal(zse_tokenize(model, "a", 1, ZSE_SKIP_SPECIAL, &ids, &n, &e), -1);
}

static void bad_input_to_rendering_is_refused(void **state)
{
    static const struct { const char *messages, *tools, *variables, *chat_template, *message; } bad[] = {
        { "[", NULL, NULL, NULL, "messages" }, { "{}", NULL, NULL, NULL, "messages: found an object" },
        { "[{}]", NULL, NULL, NULL, "message 0 has no role" }, { "[1]", NULL, NULL, NULL, "message 0 has no role" },
        { "[{\"role\": \"user\", \"content\": []}]", NULL, NULL, NULL, "content of message 0" },
        { "[]", "{}", NULL, NULL, "tools: found an object" }, { "[]", NULL, "[]", NULL, "variables: found an array" },
        { "[]", NULL, NULL, "{% if %}", "chat template: line 1" },
        { "[{\"role\": \"user\", \"content\": \"\xff\"}]", NULL, NULL, NULL, "messages" },
    };
    char *text;
    (void)state;
    struct zse_render_options o = { .size = sizeof o, .chat_template = "{{ messages[0].content }}{{ x }}",
                                    .variables = "{\"x\": 7}" };
    assert_int_equal(zse_render(model, HELLO, &o, &text, NULL, &e), 0);
    assert_string_equal(text, "Hello there7");
    zse_free(text);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        o.tools = bad[i].tools;
        o.variables = bad[i].variables;
        o.chat_template = bad[i].chat_template;
        assert_int_equal(zse_render(model, bad[i].messages, &o, &text, NULL, &e), -1);
        assert_int_equal(e.code, ZSE_ERROR_FORMAT);
        if (!strstr(e.message, bad[i].message))
            fail_msg("%zu: %s", i, e.message);
    }
}

static void info_describes_the_model_and_the_engine(void **state)
{
    struct err why;
    char *text;
    (void)state;
    json_t *j = js_parse("info", zse_model_info(model), strlen(zse_model_info(model)), &why);
    assert_non_null(j);
    assert_string_equal(json_string_value(json_object_get(j, "makes")), "text");
    assert_string_equal(json_string_value(json_object_get(j, "path")), path);
    assert_true(json_is_true(json_object_get(j, "chat_template")));
    json_decref(j);
    assert_int_equal(zse_engine_info(engine, &text, &e), 0);
    assert_non_null(j = js_parse("info", text, strlen(text), &why));
    assert_int_equal(json_integer_value(json_object_get(j, "max_len")), 512);
    json_decref(j);
    zse_free(text);
    assert_string_equal(zse_version(), ZSE_VERSION);
}

/* ---- answers ---- */

static void streamed_text_equals_the_result(void **state)
{
    struct heard h = { .size = 0 };
    char *prompt = hello(), *text;
    (void)state;
    const struct zse_request_options o = { .size = sizeof o, .prompt = prompt, .sampling = greedy, .logprobs = 1,
                                           .top_logprobs = 3, .on_event = hear, .user = &h };
    struct zse_request *r = zse_submit(engine, &o, &e);
    struct zse_result result = { .size = sizeof result };
    memset(prompt, 0, strlen(prompt));              /* the request has a copy */
    assert_int_equal(zse_wait(r, &result, &e), 0);
    assert_int_equal(result.finish, ZSE_FINISH_STOP);
    assert_int_equal(h.finish, ZSE_FINISH_STOP);
    assert_int_equal(h.n_ends, 1);
    assert_int_equal(result.text_size, h.size);
    assert_memory_equal(result.text, h.text, h.size);
    assert_int_equal(result.n_ids, h.n_tokens);
    assert_true(h.size > 0 && h.logprob < 0 && result.n_prompt > 0 && result.prefill_s > 0);
    assert_int_equal(zse_detokenize(model, result.ids, result.n_ids, ZSE_SKIP_SPECIAL, &text, NULL, &e), 0);
    assert_string_equal(text, result.text);
    zse_free(text);
    zse_cancel(r);                                  /* too late: no effect */
    assert_int_equal(zse_wait(r, NULL, NULL), 0);
    zse_request_free(r);
    free(prompt);
}

static void a_cancelled_answer_ends_exactly_once(void **state)
{
    struct heard h = { .most = 3 };
    const struct zse_request_options o = { .size = sizeof o, .prompt = "Once", .ignore_eos = 1, .on_event = hear,
                                           .user = &h };
    struct zse_result result = { .size = sizeof result };
    (void)state;
    struct zse_request *r = zse_submit(engine, &o, &e);
    assert_int_equal(zse_wait(r, &result, &e), 0);  /* by the callback */
    assert_int_equal(result.finish, ZSE_FINISH_CANCELLED);
    assert_int_equal(h.n_ends, 1);
    assert_true(result.n_ids >= 3 && result.n_ids < 400);
    zse_request_free(r);
    memset(&h, 0, sizeof h);
    r = zse_submit(engine, &o, &e);                 /* cancelled by a call; otherwise it would run
                                                     * until the context is full */
    zse_cancel(r);
    assert_int_equal(zse_wait(r, &result, &e), 0);
    assert_int_equal(result.finish, ZSE_FINISH_CANCELLED);
    assert_int_equal(h.n_ends, 1);
    zse_request_free(r);
    memset(&h, 0, sizeof h);
    zse_request_free(zse_submit(engine, &o, &e));   /* cancelled by freeing the request: h is not
                                                     * used afterwards */
    h.n_ends = 1;
    const struct zse_request_options late = { .size = sizeof late, .prompt = "Once", .ignore_eos = 1,
                                              .timeout_s = 1e-9 };
    r = zse_submit(engine, &late, &e);
    assert_int_equal(zse_wait(r, &result, &e), 0);
    assert_int_equal(result.finish, ZSE_FINISH_TIMEOUT);
    zse_request_free(r);
}

/* Eight answers that are generated at the same time are those that their prompts get alone. */
static void eight_at_a_time(void **state)
{
    enum { N = 8 };
    static const char *const prompts[N] = { "One", "Two", "The cat", "A dog", "Red", "Blue", "I", "What is" };
    struct zse_request *r[N];
    struct zse_result alone[N], result;
    struct zse_request *first[N];
    (void)state;
    for (int i = 0; i < N; i++) {
        char sampling[64];
        snprintf(sampling, sizeof sampling, "{\"seed\": %d, \"temperature\": 1}", i);
        const struct zse_request_options o = { .size = sizeof o, .prompt = prompts[i], .sampling = sampling,
                                               .max_tokens = 24, .ignore_eos = 1 };
        alone[i].size = sizeof *alone;
        assert_non_null(first[i] = zse_submit(engine, &o, &e));
        assert_int_equal(zse_wait(first[i], &alone[i], &e), 0);
    }
    for (int i = 0; i < N; i++) {
        char sampling[64];
        snprintf(sampling, sizeof sampling, "{\"seed\": %d, \"temperature\": 1}", i);
        const struct zse_request_options o = { .size = sizeof o, .prompt = prompts[i], .sampling = sampling,
                                               .max_tokens = 24, .ignore_eos = 1 };
        assert_non_null(r[i] = zse_submit(engine, &o, &e));
    }
    for (int i = N - 1; i >= 0; i--) {
        result.size = sizeof result;
        assert_int_equal(zse_wait(r[i], &result, &e), 0);
        assert_int_equal(result.finish, ZSE_FINISH_LENGTH);
        assert_int_equal(result.n_ids, 24);
        assert_memory_equal(result.ids, alone[i].ids, 24 * sizeof *result.ids);
        zse_request_free(r[i]);
        zse_request_free(first[i]);
    }
}

static void answers_obey_grammars_and_bad_ones_are_refused(void **state)
{
    static const char schema[] = "{\"type\": \"object\", \"properties\": {\"n\": {\"enum\": [1, 2]}}, \"required\": [\"n\"]}";
    static const struct { enum zse_grammar_kind kind; const char *text, *message; } bad[] = {
        { ZSE_JSON_SCHEMA, "{", "line 1" }, { ZSE_JSON_SCHEMA, "{\"type\": \"objekt\"}", "/type" },
        { ZSE_REGEX, "(", "character" }, { ZSE_GBNF, "x ::= \"a\"", "root" },
    };
    struct zse_result result = { .size = sizeof result };
    struct err why;
    (void)state;
    struct zse_grammar *r = zse_grammar_open(model, ZSE_JSON_SCHEMA, schema, strlen(schema), &e),
                       *digits = zse_grammar_open(model, ZSE_REGEX, "[0-9]{5}", 8, &e),
                       *word = zse_grammar_open(model, ZSE_GBNF, "root ::= \"yes\" | \"no\"", 21, &e);
    struct zse_request_options o = { .size = sizeof o, .prompt = "Give me JSON", .grammar = r, .max_tokens = 60 };
    struct zse_request *a = zse_submit(engine, &o, &e);
    o.grammar = digits;
    struct zse_request *b = zse_submit(engine, &o, &e);
    zse_grammar_close(digits);                      /* requests keep it */
    o.grammar = word;
    struct zse_request *c = zse_submit(engine, &o, &e);
    zse_grammar_close(word);
    assert_int_equal(zse_wait(a, &result, &e), 0);
    json_t *j = js_parse("answer", result.text, result.text_size, &why);
    assert_in_range(json_integer_value(json_object_get(j, "n")), 1, 2);
    json_decref(j);
    assert_int_equal(zse_wait(b, &result, &e), 0);
    assert_int_equal(strspn(result.text, "0123456789"), 5);
    assert_int_equal(result.text_size, 5);
    assert_int_equal(zse_wait(c, &result, &e), 0);
    assert_true(strcmp(result.text, "yes") == 0 || strcmp(result.text, "no") == 0);
    zse_request_free(a);
    zse_request_free(b);
    zse_request_free(c);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_null(zse_grammar_open(model, bad[i].kind, bad[i].text, strlen(bad[i].text), &e));
        if (!strstr(e.message, bad[i].message))
            fail_msg("%zu: %s", i, e.message);
    }
    struct zse_model *other = zse_model_open(path, NULL, &e);
    struct zse_engine *g = zse_engine_open(other, NULL, &e);
    o.grammar = r;
    assert_null(zse_submit(g, &o, &e));
    assert_int_equal(e.code, ZSE_ERROR_USAGE);
    zse_engine_close(g);
    zse_model_close(other);
    zse_grammar_close(r);
}

static void equal_texts_have_equal_embeddings(void **state)
{
    static const char *const texts[] = { "The cat", "A dog", "The cat" };
    float *v, *alone;
    int dim;
    (void)state;
    assert_int_equal(zse_embed(engine, texts, 3, ZSE_EMBED_PLAIN, &v, &dim, &e), 0);
    assert_int_equal(zse_embed(engine, texts + 2, 1, ZSE_EMBED_QUERY, &alone, &dim, &e), 0);
    double length = 0;
    for (int i = 0; i < dim; i++)
        length += (double)v[i] * v[i];
    assert_true(fabs(length - 1) < 1e-5);           /* rounding errors of dim <= 4096 floats */
    assert_memory_equal(v, v + 2 * dim, (size_t)dim * sizeof *v);
    assert_memory_equal(v, alone, (size_t)dim * sizeof *v);
    assert_memory_not_equal(v, v + dim, (size_t)dim * sizeof *v);
    zse_free(v);
    zse_free(alone);
    char *huge = malloc(40001);
    memset(huge, 'x', 40000);
    huge[40000] = '\0';
    const char *const mixed[] = { "a", huge, "b" };
    assert_int_equal(zse_embed(engine, mixed, 3, ZSE_EMBED_PLAIN, &v, &dim, &e), -1);
    assert_int_equal(e.code, ZSE_ERROR_LIMIT);
    assert_non_null(strstr(e.message, "text 1: "));
    free(huge);
    const char *const null[] = { "a", NULL };
    assert_int_equal(zse_embed(engine, null, 2, ZSE_EMBED_PLAIN, &v, &dim, &e), -1);
    assert_int_equal(e.code, ZSE_ERROR_USAGE);
    assert_int_equal(zse_embed(engine, NULL, 0, ZSE_EMBED_PLAIN, &v, &dim, &e), 0);
    zse_free(v);
}

/* ---- threads ---- */

/* In a callback: submit another request, cancel it, and try calls that would wait for the callback
 * itself. */
struct nested { struct zse_request *own, *made; int refused; };

static int nest(void *user, const struct zse_event *ev)
{
    struct nested *n = user;
    struct zse_error why;
    const char *const text[] = { "a" };
    float *v;
    int dim;
    if (n->made || ev->id < 0)
        return 0;
    const struct zse_request_options o = { .size = sizeof o, .prompt = "Two", .ignore_eos = 1 };
    n->made = zse_submit(engine, &o, &why);
    n->refused += zse_wait(n->made, NULL, &why) == -1 && why.code == ZSE_ERROR_USAGE;
    n->refused += zse_embed(engine, text, 1, ZSE_EMBED_PLAIN, &v, &dim, &why) == -1 && why.code == ZSE_ERROR_USAGE;
    zse_engine_close(engine);
    zse_cancel(n->made);
    return 0;
}

static void calls_of_a_callback(void **state)
{
    struct nested n = { .made = NULL };
    struct zse_result result = { .size = sizeof result };
    (void)state;
    const struct zse_request_options o = { .size = sizeof o, .prompt = "One", .max_tokens = 4, .on_event = nest,
                                           .user = &n };
    struct zse_request *r = zse_submit(engine, &o, &e);
    assert_int_equal(zse_wait(r, NULL, &e), 0);
    zse_request_free(r);
    assert_int_equal(n.refused, 2);
    assert_int_equal(zse_wait(n.made, &result, &e), 0);
    assert_int_equal(result.finish, ZSE_FINISH_CANCELLED);
    zse_request_free(n.made);
}

static void *ask(void *counter)
{
    const struct zse_request_options o = { .size = sizeof o, .prompt = "One", .max_tokens = 5, .sampling = greedy,
                                           .ignore_eos = 1 };
    for (int i = 0; i < 4; i++) {
        struct zse_result result = { .size = sizeof result };
        struct zse_request *r = zse_submit(engine, &o, NULL);
        if (zse_wait(r, &result, NULL) == 0)
            *(int *)counter += (int)result.n_ids;
        zse_request_free(r);
    }
    return NULL;
}

static void requests_of_several_threads(void **state)
{
    pthread_t t[4];
    int n[4] = { 0 };
    (void)state;
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&t[i], NULL, ask, &n[i]), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(t[i], NULL);
        assert_int_equal(n[i], 20);
    }
}

struct held { struct zse_engine *g; int n_ends; enum zse_finish finish; };

/* In a callback: wait until the engine is being closed, which then accepts no requests. */
static int hold(void *user, const struct zse_event *ev)
{
    struct held *h = user;
    const struct zse_request_options o = { .size = sizeof o, .prompt = "One" };
    struct zse_error why = { .code = ZSE_OK };
    struct zse_request *r;
    for (; (r = zse_submit(h->g, &o, &why)); usleep(1000))
        zse_request_free(r);
    assert_int_equal(why.code, ZSE_ERROR_CANCELLED);
    h->n_ends += ev->finish != ZSE_FINISH_NONE;
    h->finish = ev->finish;
    return 0;
}

static void closing_ends_requests(void **state)
{
    struct held h[6];
    struct zse_request *r[6];
    struct zse_result result = { .size = sizeof result };
    (void)state;
    const struct zse_engine_options eo = { .size = sizeof eo, .max_requests = 2, .n_threads = 1 };
    struct zse_engine *g = zse_engine_open(model, &eo, &e);
    for (int i = 0; i < 6; i++) {
        h[i].g = g;
        h[i].n_ends = 0;
        const struct zse_request_options o = { .size = sizeof o, .prompt = "Once", .ignore_eos = 1, .on_event = hold,
                                               .user = &h[i] };
        assert_non_null(r[i] = zse_submit(g, &o, &e));
    }
    zse_engine_close(g);
    for (int i = 0; i < 6; i++) {
        assert_int_equal(h[i].n_ends, 1);
        assert_int_equal(h[i].finish, ZSE_FINISH_CANCELLED);
        assert_int_equal(zse_wait(r[i], &result, &e), 0);
        assert_int_equal(result.finish, ZSE_FINISH_CANCELLED);
        zse_cancel(r[i]);
        zse_request_free(r[i]);
    }
}

/* ---- what is refused ---- */

static void bad_models_are_refused(void **state)
{
    struct err why;
    size_t size;
    char other[80];
    (void)state;
    assert_null(zse_model_open(NULL, NULL, &e));
    assert_int_equal(e.code, ZSE_ERROR_USAGE);
    assert_null(zse_model_open("/nonexistent/m.zse", NULL, &e));
    assert_int_equal(e.code, ZSE_ERROR_IO);
    assert_non_null(strstr(e.message, "/nonexistent/m.zse"));
    assert_null(zse_model_open("models/tiny/config.json", NULL, &e));
    assert_int_equal(e.code, ZSE_ERROR_FORMAT);
    assert_null(zse_model_open(folder, NULL, NULL));
    /* a file with one bit changed in its last weights: its checksums detect that */
    char *bytes = file_read(path, 1 << 26, &size, &why);
    assert_non_null(bytes);
    snprintf(other, sizeof other, "%s/other.zse", folder);
    for (int cut = 0; cut < 2; cut++) {
        FILE *f = fopen(other, "w");
        bytes[size - 4096] ^= 1;
        assert_int_equal(fwrite(bytes, 1, cut ? size / 2 : size, f), cut ? size / 2 : size);
        fclose(f);
        const struct zse_model_options o = { .size = sizeof o, .verify = 1 };
        assert_null(zse_model_open(other, &o, &e));
        assert_int_equal(e.code, ZSE_ERROR_FORMAT);
    }
    free(bytes);
    zse_model_close(NULL);
    zse_engine_close(NULL);
    zse_grammar_close(NULL);
    zse_request_free(NULL);
    zse_cancel(NULL);
    zse_free(NULL);
}

static void bad_engine_options_are_refused(void **state)
{
    static const struct { struct zse_engine_options o; int code; const char *message; } bad[] = {
        { { .device = "tpu" }, ZSE_ERROR_FORMAT, "device: 'tpu'" }, { { .kv = "i3" }, ZSE_ERROR_FORMAT, "kv: 'i3'" },
        { { .kv = "i8", .exact = 1 }, ZSE_ERROR_UNSUPPORTED, "with exact" },
        { { .n_threads = -1 }, ZSE_ERROR_LIMIT, "n_threads" }, { { .max_len = -1 }, ZSE_ERROR_LIMIT, "max_len" },
        { { .max_len = 1 }, ZSE_ERROR_LIMIT, "max_len" }, { { .max_len = 1 << 20 }, ZSE_ERROR_LIMIT, "was made for" },
        { { .max_requests = 1 << 20 }, ZSE_ERROR_LIMIT, "max_requests" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct zse_engine_options o = bad[i].o;
        o.size = sizeof o;
        assert_null(zse_engine_open(model, &o, &e));
        assert_int_equal(e.code, bad[i].code);
        if (!strstr(e.message, bad[i].message))
            fail_msg("%zu: %s", i, e.message);
    }
    assert_null(zse_engine_open(NULL, NULL, NULL));
}

static void bad_requests_are_refused(void **state)
{
    static const int32_t ids[] = { 1 }, wrong[] = { 1, 1 << 30 };
    static const char *const empty[] = { "" };
    static const struct { struct zse_request_options o; int code; const char *message; } now[] = {
        { { .prompt = NULL }, ZSE_ERROR_USAGE, "neither" }, { { .n_ids = 1 }, ZSE_ERROR_USAGE, "neither" },
        { { .ids = ids, .n_ids = 1, .prompt = "a" }, ZSE_ERROR_USAGE, "ids and prompt" },
        { { .ids = ids, .n_ids = SIZE_MAX }, ZSE_ERROR_LIMIT, "tokens" },
        { { .prompt = "a", .n_stop = 1 }, ZSE_ERROR_USAGE, "n_stop" },
        { { .prompt = "a", .n_stop = -1 }, ZSE_ERROR_USAGE, "n_stop" },
        { { .prompt = "a", .stop = empty, .n_stop = 1 }, ZSE_ERROR_USAGE, "stop string 0" },
        { { .prompt = "a", .sampling = "[]" }, ZSE_ERROR_FORMAT, "sampling: found an array" },
        { { .prompt = "a", .sampling = "{\"top_q\": 1}" }, ZSE_ERROR_FORMAT, "'top_q'" },
        { { .prompt = "a", .sampling = "{\"top_p\": 2}" }, ZSE_ERROR_LIMIT, "top_p" },
        { { .prompt = "a", .sampling = "{\"top_k\": \"x\"}" }, ZSE_ERROR_FORMAT, "top_k" },
        { { .prompt = "a", .sampling = "{\"seed\": -1}" }, ZSE_OK, "seed" },
        { { .prompt = "a", .timeout_s = -1 }, ZSE_ERROR_USAGE, "timeout_s" },
        { { .prompt = "a", .max_tokens = -1 }, ZSE_ERROR_USAGE, "max_tokens" },
        { { .prompt = "a", .min_tokens = -1 }, ZSE_ERROR_USAGE, "min_tokens" },
        { { .prompt = "a", .priority = 2000 }, ZSE_ERROR_USAGE, "priority" },
        { { .prompt = "a", .top_logprobs = 1 }, ZSE_ERROR_USAGE, "top_logprobs" },
        { { .prompt = "a", .logprobs = 1, .top_logprobs = 21 }, ZSE_ERROR_USAGE, "top_logprobs" },
    }, later[] = {
        { { .prompt = "" }, ZSE_ERROR_LIMIT, "the prompt is empty" },
        { { .ids = wrong, .n_ids = 2 }, ZSE_ERROR_LIMIT, "token 1 of the prompt" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof now / sizeof *now; i++) {
        struct zse_request_options o = now[i].o;
        o.size = sizeof o;
        assert_null(zse_submit(engine, &o, &e));
        if (!strstr(e.message, now[i].message) || (now[i].code && e.code != now[i].code))
            fail_msg("%zu: %d %s", i, e.code, e.message);
    }
    for (size_t i = 0; i < sizeof later / sizeof *later; i++) {
        struct heard h = { .size = 0 };
        struct zse_request_options o = later[i].o;
        o.size = sizeof o;
        o.on_event = hear;
        o.user = &h;
        struct zse_request *r = zse_submit(engine, &o, &e);
        struct zse_result result = { .size = sizeof result };
        assert_non_null(r);
        assert_int_equal(zse_wait(r, &result, &e), -1);
        assert_int_equal(h.finish, ZSE_FINISH_ERROR);
        assert_string_equal(result.text, "");
        if (!strstr(e.message, later[i].message) || e.code != later[i].code)
            fail_msg("%zu: %d %s", i, e.code, e.message);
        zse_request_free(r);
    }
    assert_null(zse_submit(engine, NULL, NULL));
    assert_int_equal(zse_wait(NULL, NULL, NULL), -1);
}

/* Structs of programs that were compiled with an earlier or a later header. */
static void structs_of_other_sizes_are_understood_or_refused(void **state)
{
    struct { struct zse_request_options o; char later[64]; } big = { .o = { .prompt = "One", .max_tokens = 3,
                                                                            .ignore_eos = 1 } };
    struct { struct zse_result r; char later[16]; } result;
    struct { size_t size; const int32_t *ids; size_t n_ids; const char *prompt; } small = { sizeof small, NULL, 0, "One" };
    struct zse_request_options none = { .prompt = "One" };
    (void)state;
    big.o.size = sizeof big;
    struct zse_request *r = zse_submit(engine, &big.o, &e), *s = zse_submit(engine, (const void *)&small, &e);
    memset(&result, 0xff, sizeof result);
    result.r.size = sizeof result;
    assert_int_equal(zse_wait(r, &result.r, &e), 0);
    assert_int_equal(result.r.n_ids, 3);
    assert_int_equal(result.later[0], 0);
    result.r.size = offsetof(struct zse_result, text);
    result.r.text = NULL;
    assert_int_equal(zse_wait(r, &result.r, &e), 0);
    assert_null(result.r.text);                     /* beyond the size: untouched */
    zse_request_free(r);
    assert_non_null(s);
    zse_request_free(s);
    big.later[5] = 1;
    assert_null(zse_submit(engine, &big.o, &e));
    assert_int_equal(e.code, ZSE_ERROR_USAGE);
    assert_null(zse_submit(engine, &none, &e));
    assert_int_equal(e.code, ZSE_ERROR_USAGE);
    none.size = SIZE_MAX;
    assert_null(zse_submit(engine, &none, &e));
    assert_int_equal(e.code, ZSE_ERROR_USAGE);
}

/* The padding of a program's struct may have any content, so the library must not use it as an
 * option later. */
static void reserved_members_are_0(void **state)
{
    const struct zse_engine_options eo = { .size = sizeof eo, .reserved = 1 };
    const struct zse_render_options ro = { .size = sizeof ro, .reserved = -1 };
    char *text, number[16];
    (void)state;
    assert_null(zse_engine_open(model, &eo, &e));
    assert_int_equal(e.code, ZSE_ERROR_USAGE);
    assert_int_equal(zse_render(model, "[]", &ro, &text, NULL, &e), -1);
    assert_int_equal(e.code, ZSE_ERROR_USAGE);
    snprintf(number, sizeof number, "%d.%d.%d", ZSE_VERSION_NUMBER / 10000, ZSE_VERSION_NUMBER / 100 % 100,
             ZSE_VERSION_NUMBER % 100);
    assert_string_equal(number, zse_version());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_becomes_tokens_and_text_again),
        cmocka_unit_test(bad_input_to_rendering_is_refused),
        cmocka_unit_test(info_describes_the_model_and_the_engine),
        cmocka_unit_test(streamed_text_equals_the_result),
        cmocka_unit_test(a_cancelled_answer_ends_exactly_once),
        cmocka_unit_test(eight_at_a_time),
        cmocka_unit_test(answers_obey_grammars_and_bad_ones_are_refused),
        cmocka_unit_test(equal_texts_have_equal_embeddings),
        cmocka_unit_test(calls_of_a_callback),
        cmocka_unit_test(requests_of_several_threads),
        cmocka_unit_test(closing_ends_requests),
        cmocka_unit_test(bad_models_are_refused),
        cmocka_unit_test(bad_engine_options_are_refused),
        cmocka_unit_test(bad_requests_are_refused),
        cmocka_unit_test(structs_of_other_sizes_are_understood_or_refused), cmocka_unit_test(reserved_members_are_0),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
