/* t-nomem.c - run each work below and let one allocation fail: the first, then the second, and so
 * on to the last (for long works fewer and fewer of them), either that one alone or it and all
 * later ones.  The result must be right, or an error with a reason, and nothing may leak (which a
 * sanitizer checks).
 *
 * Linked with -Wl,--wrap: the library's allocations come here, those of other libraries do not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "libcommon/base/file.h"
#include "libcommon/convert/convert.h"
#include "libcommon/convert/template_source.h"
#include "libcommon/convert/tokenizer_source.h"
#include "libcommon/engine/engine.h"
#include "libcommon/format/zfile.h"
#include "libcommon/grammar/constrain.h"
#include "libcommon/grammar/grammar.h"
#include "libcommon/grammar/tools.h"
#include "libcommon/grammar/vocab.h"
#include "libcommon/template/chat.h"
#include "tests/unit/tool_formats.h"

/* ---- allocations ---- */

static atomic_long asked;
static atomic_long first, last;         /* allocations number first to last fail; first 0: none does */

static int fails(void)
{
    const long n = atomic_fetch_add(&asked, 1) + 1;
    if (n < atomic_load(&first) || n > atomic_load(&last))
        return 0;
    errno = ENOMEM;
    return 1;
}

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__real_aligned_alloc(size_t alignment, size_t n);
char *__real_strdup(const char *s);
char *__real_strndup(const char *s, size_t n);
int __real_vasprintf(char **s, const char *fmt, va_list ap);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);
void *__wrap_aligned_alloc(size_t alignment, size_t n);
char *__wrap_strdup(const char *s);
char *__wrap_strndup(const char *s, size_t n);
int __wrap_vasprintf(char **s, const char *fmt, va_list ap) __attribute__((format(printf, 2, 0)));
int __wrap_asprintf(char **s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

void *__wrap_malloc(size_t n) { return fails() ? NULL : __real_malloc(n); }
void *__wrap_calloc(size_t n, size_t size) { return fails() ? NULL : __real_calloc(n, size); }
void *__wrap_realloc(void *p, size_t n) { return fails() ? NULL : __real_realloc(p, n); }
void *__wrap_aligned_alloc(size_t alignment, size_t n) { return fails() ? NULL : __real_aligned_alloc(alignment, n); }
char *__wrap_strdup(const char *s) { return fails() ? NULL : __real_strdup(s); }
char *__wrap_strndup(const char *s, size_t n) { return fails() ? NULL : __real_strndup(s, n); }
int __wrap_vasprintf(char **s, const char *fmt, va_list ap) { return fails() ? -1 : __real_vasprintf(s, fmt, ap); }

int __wrap_asprintf(char **s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = __wrap_vasprintf(s, fmt, ap);
    va_end(ap);
    return n;
}

/* A function to test: returns 0 after checking that its result is right, or -1 with *e filled. */
typedef int work(const void *what, struct err *e);

/* Run the work repeatedly, and let another allocation fail each time: each of the first `all` ones
 * (fewer under a sanitizer), then at growing distances. */
static void without_memory(const char *name, work *w, const void *what, long all)
{
    struct err e = { .msg = "" };
    atomic_store(&first, LONG_MAX);
    if (w(what, &e) != 0)
        fail_msg("%s, with all memory: %s", name, e.msg);
    if (getenv("ZSE_SANITIZED"))
        all /= 8;
    for (int alone = 0; alone < 2; alone++)
        for (long at = 1, reached = 1; reached; at += 1 + at / all) {
            memset(&e, 0, sizeof e);
            atomic_store(&asked, 0);
            atomic_store(&last, alone ? at : LONG_MAX);
            atomic_store(&first, at);
            const int rc = w(what, &e);
            atomic_store(&first, LONG_MAX);
            reached = atomic_load(&asked) >= at;
            if (rc != 0 && (e.code != ERR_MEMORY || !*e.msg))
                fail_msg("%s, allocation %ld%s: error %d: %s", name, at, alone ? "" : " and all after it", (int)e.code,
                         e.msg);
            if (rc != 0 && !reached)
                fail_msg("%s: fails without a reason", name);
        }
}

/* ---- helpers ---- */

static struct tokenizer *tokenizer;
static struct grammar_vocab *vocab;
static void *blob;
static char dir[] = "/tmp/t-nomem-XXXXXX", model_path[64], *template_text;
static size_t model_size;
static char *model_bytes;
static json_t *tools, *messages;

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}},"
    "\"required\":[\"city\"]}}},{\"type\":\"function\",\"function\":{\"name\":\"now\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]";
static const char messages_text[] = "[{\"role\":\"system\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":\"What is 2+2?\"}]";

static int convert(const char *source, const char *output, struct err *e)
{
    struct convert_options o;
    convert_defaults(&o);
    o.source = source;
    o.output = output;
    o.effort = CONVERT_FAST;
    o.n_threads = 1;
    return convert_run(&o, NULL, e);
}

static int setup(void **state)
{
    struct err e = { .msg = "" };
    size_t size;
    char *bos, *eos;
    (void)state;
    atomic_store(&first, LONG_MAX);
    tools = json_loads(tools_text, 0, NULL);
    messages = json_loads(messages_text, 0, NULL);
    if (!mkdtemp(dir) || tokenizer_from_path("models/tiny", &blob, &size, &e) != 0 ||
        !(tokenizer = tokenizer_open(blob, size, &e)) || !(vocab = grammar_vocab_open(tokenizer, 0, &e)) ||
        template_from_path("models/tiny", NULL, &template_text, &bos, &eos, &e) != 0)
        return fprintf(stderr, "%s\n", e.msg), -1;
    free(bos);
    free(eos);
    snprintf(model_path, sizeof model_path, "%s/tiny.zse", dir);
    if (convert("models/tiny", model_path, &e) != 0 || !(model_bytes = file_read(model_path, 1 << 26, &model_size, &e)))
        return fprintf(stderr, "%s\n", e.msg), -1;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    unlink(model_path);
    free(model_bytes);
    free(template_text);
    json_decref(tools);
    json_decref(messages);
    grammar_vocab_close(vocab);
    tokenizer_close(tokenizer);
    free(blob);
    return rmdir(dir);                  /* fails if a failed conversion left a file there */
}

/* ---- texts and tokens ---- */

static int tokenize(const void *what, struct err *e)
{
    static const char text[] = "What is 2+2? Z\xC3\xBCrich \xE2\x82\xAC <|im_end|> {\"name\": [1, 2.5]}\n\tx";
    void *own = NULL;
    size_t size, n, n_out, n_piece, n_all = 0;
    int32_t *ids = NULL;
    char *out = NULL, all[sizeof text + 8];
    const char *piece;
    struct detok d = { 0 };
    int rc = -1;
    (void)what;
    struct tokenizer *t = NULL;
    if (tokenizer_from_path("models/tiny", &own, &size, e) != 0 || !(t = tokenizer_open(own, size, e)) ||
        tokenizer_encode(t, text, sizeof text - 1, 0, &ids, &n, e) != 0 ||
        tokenizer_decode(t, ids, n, 0, &out, &n_out, e) != 0 || detok_init(&d, t, 0, e) != 0)
        goto done;
    assert_int_equal(n_out, sizeof text - 1);
    assert_memory_equal(out, text, n_out);
    for (size_t i = 0; i <= n; i++) {
        if ((i < n ? detok_push(&d, ids[i], &piece, &n_piece, e) : detok_flush(&d, &piece, &n_piece, e)) != 0)
            goto done;
        assert_true(n_all + n_piece < sizeof text);
        memcpy(all + n_all, piece, n_piece);
        n_all += n_piece;
    }
    assert_int_equal(n_all, sizeof text - 1);
    assert_memory_equal(all, text, n_all);
    rc = 0;
done:
    detok_release(&d);
    free(out);
    free(ids);
    tokenizer_close(t);
    free(own);
    return rc;
}

static int template_of(const void *path, struct err *e)
{
    char *text, *bos, *eos;
    if (template_from_path(path, NULL, &text, &bos, &eos, e) != 0)
        return -1;
    assert_string_equal(text, template_text);
    assert_true(bos == NULL || *bos);
    assert_string_equal(eos, "<|im_end|>");
    free(text);
    free(bos);
    free(eos);
    return 0;
}

static int render(const void *what, struct err *e)
{
    static char *expected;
    char *text;
    size_t size;
    const char *source = what;
    struct tmpl *t = tmpl_parse(source, strlen(source), NULL, e);
    if (!t)
        return -1;
    int rc = chat_render(t, messages, tools, 1, "<s>", "</s>", 1795262400, NULL, NULL, &text, &size, e);
    tmpl_free(t);
    if (rc != 0)
        return -1;
    if (strncmp(source, "{#", 2) == 0) {        /* a template of this file, whose output is always
                                                 * the same text */
        if (!expected)
            expected = __real_strdup(text);
        assert_string_equal(text, expected);
    }
    free(text);
    return 0;
}

static void tokenizers_and_templates_survive_failed_allocations(void **state)
{
    static const char language[] =
        "{# every kind of part #}{% macro line(m, end='\\n') %}{{ m.role | upper }}: {{ m['content'][:3] ~ m.content | trim }}{{ end }}{% endmacro %}"
        "{% set ns = namespace(n=0, all=[]) %}{% for m in messages if m.content is string %}{% set ns.n = ns.n + loop.index %}{{ line(m) }}{% else %}none{% endfor %}"
        "{%- if tools is defined and tools | length > 1 %}{{ tools | tojson(indent=2) }}{{ tools | map(attribute='function') | map(attribute='name') | join(', ') }}{% endif %}"
        "{{ '%s has %d' % ('x', ns.n) }}{{ range(7) | list | batch(2) | list }}{{ {'b': 1, 'a': [1.5, none]} | dictsort }}{{ 'a-b-c'.split('-') | reverse | list }}"
        "{{ strftime_now('%Y-%m-%d') }}{{ 'Abc' | replace('b', 'xx') | indent(3) }}{% filter lower %}ABC{% endfilter %}{% set x %}block{% endset %}{{ x | title }}";
    (void)state;
    without_memory("tokenizer", tokenize, NULL, 400);
    without_memory("template of a folder", template_of, "models/tiny", 400);
    without_memory("template of a file", template_of, model_path, 400);
    without_memory("template", render, template_text, 2000);
    without_memory("template language", render, language, 2000);
}

/* ---- grammars ---- */

enum { MOST = 64 };

/* Generate an answer with the grammar g, choosing another allowed token each time and accepting
 * forced tokens at once.  Masks, copies and statistics are used on the way. */
static int answer(struct grammar *g, int32_t *ids, int *n, struct err *e)
{
    struct matcher *m = matcher_open(g, e);
    if (!m)
        return -1;
    const int n_ids = vocab->size;
    for (*n = 0; *n < MOST && !matcher_ended(m);) {
        int32_t forced[8];
        const int n_forced = matcher_forced(m, forced, 8);
        for (int i = 0; i < n_forced && *n < MOST; i++)
            if (matcher_accept(m, ids[(*n)++] = forced[i]) != 0)
                goto failed;
        const uint32_t *mask = matcher_mask(m);
        struct matcher *fork = matcher_fork(m);
        int32_t id = -1;
        for (int i = 0; i < n_ids && id < 0; i++) {
            const int32_t k = (int32_t)((i + 37 * *n) % n_ids);
            if (mask[k >> 5] >> (k & 31) & 1)
                id = k;
        }
        if (id < 0 || *n >= MOST) {
            matcher_close(fork);
            if (id < 0)
                goto failed;
            break;
        }
        const int taken = matcher_accept(m, ids[(*n)++] = id);
        if (fork && taken == 0 && matcher_accept(fork, id) != 0 && matcher_error(fork, NULL) == 0) {
            matcher_close(fork);
            goto failed;
        }
        matcher_close(fork);
        if (taken != 0)
            goto failed;
    }
    if (matcher_error(m, e) != 0) {
        matcher_close(m);
        return -1;
    }
    matcher_close(m);
    return 0;
failed:
    if (matcher_error(m, e) == 0)
        err_set(e, ERR_FORMAT, "a matcher stopped without an error");
    matcher_close(m);
    return -1;
}

struct form {
    const char *kind, *text;
    int32_t ids[MOST]; int n;           /* the answer, once known */
};

static struct grammar *compile(const struct form *f, struct err *e)
{
    const struct grammar_options o = { .whitespace = GRAMMAR_WS_FLEXIBLE };
    const size_t n = strlen(f->text);
    switch (*f->kind) {
    case 's': return grammar_compile_schema(vocab, f->text, n, &o, e);
    case 'r': return grammar_compile_regex(vocab, f->text, n, &o, e);
    case 'g': return grammar_compile_gbnf(vocab, f->text, n, &o, e);
    case 'j': return grammar_compile_schema(vocab, "{\"type\": \"object\"}", 18, &o, e);
    default: return tool_grammar_compile(vocab, tool_format_find(f->text),
                                         &(struct tool_grammar_options){ .tools = tools, .choice = TOOL_REQUIRED,
                                             .parallel = 1 }, e);
    }
}

static int form(const void *what, struct err *e)
{
    struct form *f = (struct form *)what;
    int32_t ids[MOST];
    int n, rc = -1;
    struct grammar *g = compile(f, e);
    if (!g)
        return -1;
    for (int turn = 0; turn < 2; turn++) {      /* the second round uses what the first one has cached */
        if ((rc = answer(g, ids, &n, e)) != 0)
            break;
        if (!f->n)
            memcpy(f->ids, ids, sizeof *ids * (size_t)(f->n = n));
        assert_int_equal(n, f->n);
        assert_memory_equal(ids, f->ids, sizeof *ids * (size_t)n);
    }
    struct grammar_stats s;
    grammar_stats(g, &s);
    assert_true(s.n_exprs > 0);
    grammar_close(g);
    return rc;
}

static int vocabulary(const void *what, struct err *e)
{
    (void)what;
    struct grammar_vocab *v = grammar_vocab_open(tokenizer, 0, e);
    grammar_vocab_close(v);
    return v ? 0 : -1;
}

static struct form forms[] = {
    { "schema", "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":5},\"tags\":{\"type\":\"array\",\"items\":{\"enum\":[\"a\",\"b\",3]},\"minItems\":1,\"maxItems\":2},"
                "\"next\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]},\"n\":{\"type\":\"integer\",\"minimum\":-7,\"maximum\":1200}},\"required\":[\"name\",\"n\"],\"additionalProperties\":false}", { 0 }, 0 },
    { "schema", "{\"type\":\"string\",\"format\":\"date-time\"}", { 0 }, 0 },
    { "schema", "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"^[a-c]{2,4}x$\"},\"minItems\":3,\"maxItems\":4}", { 0 }, 0 },
    { "regex", "(?=.*\\d)(?!x)[\\w.-]{2,9}@(a|bc|d{2,5})+\\p{Lu}?", { 0 }, 0 },
    { "gbnf", "root ::= \"(\" root \")\" | word{2,3} \"\\u00e9\"?\nword ::= [a-f]+ \" \" | [^\"\\\\\\n] \"x\"", { 0 },
      0 },
    { "json", "", { 0 }, 0 }, { "tools", "hermes", { 0 }, 0 }, { "tools", "mistral", { 0 }, 0 },
    { "tools", "qwen3-coder", { 0 }, 0 },
};

static void grammars_survive_failed_allocations(void **state)
{
    (void)state;
    without_memory("vocabulary", vocabulary, NULL, 2000);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++)
        without_memory(*forms[i].text ? forms[i].text : forms[i].kind, form, &forms[i], 100);
}

struct said_size { size_t size; int n_calls; };
static void hear_size(void *user, const struct tool_event *ev)
{
    struct said_size *s = user;
    s->size += ev->size;
    s->n_calls += ev->kind == TOOL_CALL;
}

/* Two calls of get_weather, one with city and days and one without arguments, in the format of each
 * family. */
struct said { const char *format, *text; int stream; size_t heard; };

static int calls(const void *what, struct err *e)
{
    struct said *s = (struct said *)what;
    struct said_size heard = { 0 };
    const size_t n = strlen(s->text);
    const struct tool_parser_options o = { .tools = tools, .stream_arguments = s->stream, .on_event = hear_size,
                                           .user = &heard };
    struct tool_parser *p = tool_parser_open(tool_format_find(s->format), &o, e);
    int rc = p ? 0 : -1;
    for (size_t i = 0; i < n && rc == 0; i += 7)
        rc = tool_parser_push(p, s->text + i, n - i < 7 ? n - i : 7, e);
    if (rc == 0 && (rc = tool_parser_finish(p, e)) == 0) {
        assert_int_equal(heard.n_calls, 2);
        if (!s->heard)
            s->heard = heard.size;
        assert_int_equal(heard.size, s->heard);
    }
    tool_parser_close(p);
    return rc;
}

static void tool_calls_survive_failed_allocations(void **state)
{
    static struct said all[] = {
        { "hermes", "So.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\", \"days\": 2}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", 0, 0 },
        { "mistral", "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}, {\"name\": \"now\", \"arguments\": {}, \"id\": \"abcdefghi\"}]", 0, 0 },
        { "mistral-args", "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"a}b\"}[TOOL_CALLS]now[CALL_ID]123456789[ARGS]{}",
          0, 0 },
        { "kimi-k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Rome\"}<|tool_call_end|>"
                     "<|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>", 0, 0 },
        { "functionary-3.2", "get_weather\n{\"city\": \"Rome\"}>>>now\n{}", 0, 0 },
        { "qwen3-coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nRome\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n"
                         "<tool_call>\n<function=now>\n</function>\n</tool_call>", 0, 0 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        for (all[i].stream = 0; all[i].stream < 2; all[i].stream++)
            without_memory(all[i].format, calls, &all[i], 2000);
}

/* ---- models ---- */

static int same_file(const void *what, struct err *e)
{
    char path[64];
    size_t n;
    (void)what;
    snprintf(path, sizeof path, "%s/again.zse", dir);
    if (convert("models/tiny", path, e) != 0) {
        assert_int_equal(access(path, F_OK), -1);
        return -1;
    }
    long keep = atomic_exchange(&first, LONG_MAX);
    char *bytes = file_read(path, 1 << 26, &n, e);
    atomic_store(&first, keep);
    assert_non_null(bytes);
    assert_int_equal(n, model_size);
    assert_memory_equal(bytes, model_bytes, n);
    free(bytes);
    assert_int_equal(unlink(path), 0);
    return 0;
}

static void conversion_survives_failed_allocations(void **state)
{
    (void)state;
    without_memory("convert", same_file, NULL, 20);
}

struct heard { char text[256]; size_t n; enum finish finish; struct err why; };

static void hear(void *user, const struct token_event *ev)
{
    struct heard *h = user;
    assert_int_equal(h->finish, FINISH_NONE);
    assert_true(h->n + ev->size < sizeof h->text);
    memcpy(h->text + h->n, ev->text ? ev->text : "", ev->size);
    h->n += ev->size;
    h->finish = ev->finish;
    if (ev->error)
        h->why = *ev->error;
}

/* Open the file and make three answers: one with a grammar, and two to one prompt, with a stop
 * string. */
static int answers(const void *what, struct err *e)
{
    static char expected[3][256];
    static const char *const stop[] = { "zebra" };
    static const uint64_t seeds[] = { 3, 4 };
    struct heard h[3];
    void *const users[] = { &h[1], &h[2] };
    const struct form f = { "schema", "{\"type\":\"array\",\"items\":{\"type\":\"integer\",\"maximum\":9999},\"maxItems\":3}", { 0 }, 0 };
    struct zfile *z = zfile_open(model_path, e);
    struct model *m = z ? model_bind(z, e) : NULL;
    struct grammar *g = NULL;
    struct engine *en = NULL;
    struct constraint c = { 0 };
    int32_t *ids = NULL;
    size_t n;
    int rc = -1, left;
    memset(h, 0, sizeof h);
    (void)what;
    if (!m || tokenizer_encode(tokenizer, "The capital of France", 21, TOKENIZE_ADD_SPECIAL, &ids, &n, e) != 0 ||
        !(g = compile(&f, e)) || !(en = engine_open(m, tokenizer,
                                                    &(struct engine_options){ .n_threads = 1, .max_len = 128,
                                                        .max_seqs = 3, .max_tokens = 32 }, e)) ||
                                                        constrain(&c, g, e) != 0)
        goto done;
    struct request_params p = { .ids = ids, .n_ids = (int)n, .sampling = sampling_defaults(), .n_logprobs = 2,
                                .max_tokens = 12, .on_token = hear, .user = &h[0], .constraint = &c };
    p.sampling.temperature = 0;
    if (!engine_submit(en, &p, e)) {
        c.close(c.state);
        goto done;
    }
    p.constraint = NULL;
    p.sampling.temperature = 1;
    p.n = 2;
    p.users = users;
    p.seeds = seeds;
    p.stop = stop;
    p.n_stop = 1;
    if (!engine_submit(en, &p, e))
        goto done;
    while ((left = engine_step(en, e)) > 0)
        ;
    if (left < 0)
        goto done;
    for (int i = 0; i < 3; i++) {
        assert_int_not_equal(h[i].finish, FINISH_NONE);
        if (h[i].finish == FINISH_ERROR) {
            *e = h[i].why;
            goto done;
        }
        if (!*expected[i])
            memcpy(expected[i], h[i].text, sizeof h[i].text);
        assert_string_equal(h[i].text, expected[i]);
    }
    rc = 0;
done:
    engine_close(en);
    grammar_close(g);
    free(ids);
    model_close(m);
    return rc;
}

struct kind { const char *name; char path[96]; int32_t ids[2][16]; int n[2]; };

struct told { int32_t ids[16]; int n; enum finish finish; struct err why; };

static void hear_id(void *user, const struct token_event *ev)
{
    struct told *t = user;
    if (ev->id >= 0)
        t->ids[t->n++] = ev->id;
    t->finish = ev->finish;
    if (ev->error)
        t->why = *ev->error;
}

/* Make two answers with a model of kinds[], which have layers that the other tests' model lacks. */
static int steps(const void *what, struct err *e)
{
    struct kind *k = (struct kind *)what;
    int32_t ids[40];
    struct told told[2];
    void *const users[] = { &told[0], &told[1] };
    struct zfile *z = zfile_open(k->path, e);
    struct model *m = z ? model_bind(z, e) : NULL;
    struct engine *g = NULL;
    int rc = -1, left;
    memset(told, 0, sizeof told);
    for (int i = 0; i < 40; i++)
        ids[i] = 3 + i * 7 % 50;
    const struct request_params p = { .ids = ids, .n_ids = 40, .sampling = sampling_defaults(), .n_logprobs = -1,
                                      .max_tokens = 12, .ignore_eos = 1, .on_token = hear_id, .n = 2, .users = users };
    if (!m || !(g = engine_open(m, NULL, &(struct engine_options){ .n_threads = 1, .max_len = 64, .max_seqs = 2,
                                                                   .max_tokens = 16, .snapshot_every = 16 }, e)) ||
                                                                   !engine_submit(g, &p, e))
        goto done;
    while ((left = engine_step(g, e)) > 0)
        ;
    if (left < 0)
        goto done;
    for (int i = 0; i < 2; i++) {
        if (told[i].finish == FINISH_ERROR) {
            *e = told[i].why;
            goto done;
        }
        if (!k->n[i])
            memcpy(k->ids[i], told[i].ids, sizeof *ids * (size_t)(k->n[i] = told[i].n));
        assert_int_equal(told[i].n, k->n[i]);
        assert_memory_equal(told[i].ids, k->ids[i], sizeof *ids * (size_t)told[i].n);
    }
    rc = 0;
done:
    engine_close(g);
    model_close(m);
    return rc;
}

static void answers_survive_failed_allocations(void **state)
{
    (void)state;
    without_memory("answers", answers, NULL, 150);
}

static void kinds_of_models_survive_failed_allocations(void **state)
{
    static struct kind kinds[] = { { .name = "qwen3_moe" }, { .name = "deepseek_v2" }, { .name = "qwen3_next" },
                                   { .name = "granitemoehybrid" }, { .name = "gpt_oss" } };
    const char *root = getenv("ZSE_ORACLES");
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        struct err e;
        char source[512];
        snprintf(source, sizeof source, "%s/models/hf/%s", root ? root : "../shared/oracles", kinds[i].name);
        if (access(source, R_OK) != 0) {
            print_message("# SKIP no %s\n", source);
            skip();
        }
        snprintf(kinds[i].path, sizeof kinds[i].path, "%s/%s.zse", dir, kinds[i].name);
        if (access(kinds[i].path, F_OK) != 0 && convert(source, kinds[i].path, &e) != 0)
            fail_msg("%s: %s", source, e.msg);
        without_memory(kinds[i].name, steps, &kinds[i], 60);
    }
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        unlink(kinds[i].path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenizers_and_templates_survive_failed_allocations),
        cmocka_unit_test(grammars_survive_failed_allocations),
        cmocka_unit_test(tool_calls_survive_failed_allocations),
        cmocka_unit_test(conversion_survives_failed_allocations),
        cmocka_unit_test(answers_survive_failed_allocations),
        cmocka_unit_test(kinds_of_models_survive_failed_allocations),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
