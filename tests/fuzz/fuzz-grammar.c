/* fuzz-grammar.c - any bytes as a schema, a regular expression or a grammar, under tight limits.
 * Compiled grammars are walked by the same bytes, and no call may take more counted steps than its
 * limit.  The same bytes are then an answer in each form of calls.  build: scripts/fuzz grammar */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/grammar/internal.h"
#include "libcommon/grammar/tools.h"
#include "tests/unit/tool_formats.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void on_event(void *user, const struct tool_event *ev) { *(size_t *)user += ev->size; }

/* SLACK: steps that a call may take beyond its limit, which is not checked at each step */
enum { MOST_STEPS = 100000, SLACK = 20000 };

static void walk(struct grammar *g)
{
    struct matcher *m = matcher_open(g, NULL);
    if (!m)
        return;
    uint32_t seed = 1;
    for (int k = 0; k < 200 && !matcher_ended(m); k++) {
        int from = (int)((seed = seed * 1664525 + 1013904223) >> 24), found = 0;
        for (int i = 0; i < 256 && !found; i++) {
            unsigned char b = (unsigned char)(from + i);
            const uint64_t before = g->x.meter.work;
            found = matcher_accept_bytes(m, &b, 1) == 0;
            if (g->x.meter.work - before > MOST_STEPS + SLACK)
                abort();                                /* uncounted work */
        }
        struct err e;
        if (!found && !matcher_complete(m) && matcher_error(m, &e) == 0)
            abort();                                    /* a dead end */
        if (!found)
            break;
    }
    matcher_close(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const forms[] = { "hermes", "llama3", "mistral", "mistral-args", "deepseek-r1", "kimi-k2",
                                         "functionary-3.2", "qwen3-coder", "glm", "gpt-oss", "json", "gemma4", "lfm2",
                                         "deepseek-v3.2", "minimax-m3" };
    enum { N_FORMS = sizeof forms / sizeof *forms };
    const struct grammar_options o = { .max_exprs = 100000, .max_work = 1000000, .max_steps = MOST_STEPS,
                                       .whitespace = size & 1 ? GRAMMAR_WS_FLEXIBLE : GRAMMAR_WS_SINGLE };
    if (size == 0)
        return 0;
    struct err e = { .msg = "" };
    const char *text = (const char *)data + 1;
    struct grammar *g = (data[0] % 4 == 0 ? grammar_compile_regex : data[0] % 4 == 1
                         ? grammar_compile_gbnf : grammar_compile_schema)(NULL, text, size - 1, &o, &e);
    if (g)
        walk(g);
    else if (!e.msg[0])
        abort();                                        /* a refusal without a message */
    grammar_close(g);
    size_t heard = 0;
    struct tool_parser_options p = { .stream_arguments = size & 2, .reasoning = size & 4, .on_event = on_event,
                                     .user = &heard };
    struct tool_parser *t = tool_parser_open(tool_format_find(forms[data[0] / 4 % N_FORMS]), &p, &e);
    for (size_t i = 0; t && i + 1 < size; i += 7)
        if (tool_parser_push(t, text + i, size - 1 - i < 7 ? size - 1 - i : 7, &e) != 0)
            abort();
    if (t && tool_parser_finish(t, &e) != 0)
        abort();
    tool_parser_close(t);
    return 0;
}
