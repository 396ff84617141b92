/* t-grammar-tools.c - formats of function calls: detected from templates, read in pieces of any
 * size, read as text if malformed, and made well-formed by grammars. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "libcommon/base/file.h"
#include "libcommon/base/rng.h"
#include "libcommon/convert/tokenizer_source.h"
#include "libcommon/grammar/tool_call.h"
#include "libcommon/grammar/tools.h"
#include "tests/unit/tool_formats.h"

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"}},\"required\":[\"city\"]}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"now\",\"parameters\":{\"type\":\"object\",\"properties\":{}}}}]";
static json_t *tools;

#define M3(tag) "]<]minimax[>[" tag
#define M3_TEXT(key, value) M3("<" key ">") value M3("</" key ">")
#define M3_CALL(name, arguments) M3("<invoke name=\"" name "\">") arguments M3("</invoke>") "\n"

static const struct sample { const char *format, *text, *want; int reasoning; } samples[] = {
    { "hermes", "Let me see.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Z\xC3\xBCrich\", \"days\": 2}}\n</tool_call>\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>",
      "text(Let me see.\n) call(get_weather){\"city\": \"Z\xC3\xBCrich\", \"days\": 2} call(now){}", 0 },
    { "hermes", "<think>\nthe user </tool wants\n</think>\n\n<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", "reasoning(\nthe user </tool wants\n) call(now){}", 0 },
    { "hermes", "so it is</think>Yes.", "reasoning(so it is) text(Yes.)", 1 },
    { "hermes", "<tool_call>{\"name\":\"now\",\"arguments\":\"{}\"}</tool_call>", "call(now){}", 0 },
    { "hermes", "no <call> at <tool all", "text(no <call> at <tool all)", 0 },
    { "hermes", "<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>",
      "text(<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>)", 0 },
    { "hermes", "<tool_call>\n{\"name\": \"now\", \"argum", "text(<tool_call>\n{\"name\": \"now\", \"argum)", 0 },
    { "hermes", "<tool_call>\n{\"name\": \"now\" \"arguments\": {}}\n</tool_call> and",
      "text(<tool_call>\n{\"name\": \"now\" \"arguments\": {}}\n</tool_call> and)", 0 },
    { "llama3", "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Rome\"}}",
      "call(get_weather){\"city\": \"Rome\"}", 0 },
    { "llama3", "<|python_tag|>{\"name\": \"now\", \"parameters\": {}}", "call(now){}", 0 },
    { "llama3", "The set {1, 2}", "text(The set {1, 2})", 0 },
    { "llama3", "{\"temperature\": 3}", "text({\"temperature\": 3})", 0 },
    { "mistral", "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}, {\"name\": \"now\", \"arguments\": {}, \"id\": \"abcdefghi\"}]", "call(get_weather){\"city\": \"Rome\"} call(now){}", 0 },
    { "mistral-args", "Well.[TOOL_CALLS]get_weather[ARGS]{\"city\": \"a}b\\\"\"}[TOOL_CALLS]now[CALL_ID]123456789[ARGS]{}", "text(Well.) call(get_weather){\"city\": \"a}b\\\"\"} call(now){}", 0 },
    { "deepseek-r1", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{\"city\": \"Rome\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
      "call(get_weather){\"city\": \"Rome\"} call(now){}", 0 },
    { "deepseek-v3.1", "I look.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>", "text(I look.) call(now){} call(now){}", 0 },
    { "kimi-k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Rome\"}<|tool_call_end|><|tool_calls_section_end|>", "call(get_weather){\"city\": \"Rome\"}", 0 },
    { "functionary-3.1", "<function=get_weather>{\"city\": \"Rome\"}</function>",
      "call(get_weather){\"city\": \"Rome\"}", 0 },
    { "functionary-3.2", "get_weather\n{\"city\": \"Rome\"}>>>now\n{}",
      "call(get_weather){\"city\": \"Rome\"} call(now){}", 0 },
    { "functionary-3.2", "all\nHello there.", "text(Hello there.)", 0 },
    { "granite-3", "<|tool_call|>[{\"name\": \"now\", \"arguments\": {\"a\": 1, \"a\": 2}}]",
      "call(now){\"a\": 1, \"a\": 2}", 0 },
    { "granite-3", "<|tool_call|>[{\"name\": \"now\", \"arguments\": {}}]", "call(now){}", 0 },
    { "granite-3", "<|tool_call|>[ {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}} , {\"name\": \"now\", \"arguments\": {}} ] so",
      "call(get_weather){\"city\": \"Rome\"} call(now){} text(so)", 0 },
    { "nemotron", "<TOOLCALL>[{\"name\": \"now\", \"arguments\": {}}]</TOOLCALL>", "call(now){}", 0 },
    { "nemotron", "<TOOLCALL>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}]</TOOLCALL>Done.",
      "call(get_weather){\"city\": \"Rome\"} text(Done.)", 0 },
    { "mistral", "[TOOL_CALLS][{\"name\": \"unknown\", \"arguments\": {}}]",
      "text([TOOL_CALLS][{\"name\": \"unknown\", \"arguments\": {}}])", 0 },
    { "qwen3-coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\n</para \"\\\n\n</parameter>\n</function>\n</tool_call>",
      "call(get_weather){\"city\":\"</para \\\"\\\\\\n\"}", 0 },
    { "glm", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>a</arg_value>\n<arg_key>city</arg_key>\n<arg_value>b</arg_value>\n</tool_call>", "call(get_weather){\"city\":\"a\"}", 0 },
    { "qwen3-coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\nNew\nYork\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
      "call(get_weather){\"city\":\"New\\nYork\",\"days\":3} call(now){}", 0 },
    { "seed-oss", "<seed:think>hm</seed:think><seed:tool_call>\n<function=get_weather>\n<parameter=city>Rome</parameter>\n</function>\n</seed:tool_call>", "reasoning(hm) call(get_weather){\"city\":\"Rome\"}", 0 },
    { "glm", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>12</arg_value>\n<arg_key>days</arg_key>\n<arg_value>12</arg_value>\n</tool_call>", "call(get_weather){\"city\":\"12\",\"days\":12}", 0 },
    { "gpt-oss", "<|channel|>analysis<|message|>I must look<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Rome\"}<|call|>",
      "reasoning(I must look) call(get_weather){\"city\": \"Rome\"}", 0 },
    { "gpt-oss", "<|channel|>analysis<|message|>easy<|end|><|start|>assistant<|channel|>final<|message|>Hello<|return|>", "reasoning(easy) text(Hello)", 0 },
    { "json", "{\"name\": \"now\", \"arguments\": {}}", "call(now){}", 0 },
    { "json", " {\"function\": {\"name\": \"now\", \"arguments\": {\"x\" : [1.50, \"}\\\"\"] } }, \"arguments\": 1}",
      "call(now){\"x\" : [1.50, \"}\\\"\"] }", 0 },
    { "hermes", "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": 1, \"a\": 2}}\n</tool_call>",
      "call(now){\"a\": 1, \"a\": 2}", 0 },
    { "json", "{\"answer\": 42}", "text({\"answer\": 42})", 0 },
    { "glm-4.7", "I look.<tool_call>get_weather<arg_key>city</arg_key><arg_value>a</arg_value\n</arg_value><arg_key>days</arg_key><arg_value>2</arg_value></tool_call><tool_call>now</tool_call>",
      "text(I look.) call(get_weather){\"city\":\"a</arg_value\\n\",\"days\":2} call(now){}", 0 },
    { "gemma4", "<|channel>thought\nso <channel|><|tool_call>call:get_weather{city:<|\"|>Z\xC3\xBCrich, {\"a\": 'b'}\n<|\"|>,days:2}<tool_call|><|tool_call>call:now{}<tool_call|>",
      "reasoning(\nso ) call(get_weather){\"city\":\"Z\xC3\xBCrich, {\\\"a\\\": 'b'}\\n\",\"days\":2} call(now){}", 0 },
    { "gemma4", "<|tool_call>call:now{a:[1,{b:<|\"|>}<|\"|>,<|\"|>c d<|\"|>:[]}, true ,null,-1.50e3],a:1,e:{}}<tool_call|>",
      "call(now){\"a\":[1,{\"b\":\"}\",\"c d\":[]},true,null,-1.50e3],\"e\":{}}", 0 },
    { "gemma4", "<|tool_call>call:now{\"a\": \"x\", \"b\": {\"c\": [\"d\"]}}<tool_call|>so",
      "call(now){\"a\":\"x\",\"b\":{\"c\":[\"d\"]}} text(so)", 0 },
    { "gemma4", "<|tool_call>call:unknown{}<tool_call|>", "text(<|tool_call>call:unknown{}<tool_call|>)", 0 },
    { "lfm2", "<|tool_call_start|>[get_weather(city=\"Rome, \\\"it's\\\" \\u00e9\", days=2), now()]<|tool_call_end|>Done.",
      "call(get_weather){\"city\":\"Rome, \\\"it's\\\" \xC3\xA9\",\"days\":2} call(now){} text(Done.)", 0 },
    { "lfm2", "<|tool_call_start|>[now(a='it's so', b=[True, None, 'x'], c={'k': {\"l\": 1.50}}, d=\"\")]<|tool_call_end|>",
      "call(now){\"a\":\"it's so\",\"b\":[true,null,\"x\"],\"c\":{\"k\":{\"l\":1.50}},\"d\":\"\"}", 0 },
    { "lfm2", "<|tool_call_start|>[now(\n  a=1,\n)]<|tool_call_end|>", "call(now){\"a\":1}", 0 },
    { "lfm2", "<|tool_call_start|>[unknown()]<|tool_call_end|>", "text(<|tool_call_start|>[unknown()]<|tool_call_end|>)", 0 },
    { "deepseek-v3.2", "I look.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">12</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
      "text(I look.\n\n) call(get_weather){\"city\":\"12\",\"days\":2} call(now){}", 0 },
    { "deepseek-v4", "so</think><｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"now\">\n<｜DSML｜parameter name=\"a\" string=\"false\">{\"x\": [1, \"</｜DSML｜\"]}</｜DSML｜parameter>\n<｜DSML｜parameter name=\"b\" string=\"true\">{\"x\": 1}</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
      "reasoning(so) call(now){\"a\":{\"x\":[1,\"</｜DSML｜\"]},\"b\":\"{\\\"x\\\": 1}\"}", 1 },
    { "minimax-m2", "<minimax:tool_call>\n<invoke name=\"get_weather\">\n<parameter name=\"city\">Rome</parameter>\n<parameter name=\"days\">2</parameter>\n</invoke>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>",
      "call(get_weather){\"city\":\"Rome\",\"days\":2} call(now){}", 0 },
    { "minimax-m3", "so</mm:think>I look." M3("<tool_call>") "\n" M3_CALL("get_weather", M3_TEXT("city", "12") M3_TEXT("days", "2"))
      M3_CALL("now", "") M3("</tool_call>"),
      "reasoning(so) text(I look.) call(get_weather){\"city\":\"12\",\"days\":2} call(now){}", 1 },
    { "minimax-m3", M3("<tool_call>") "\n"
      M3_CALL("now", M3_TEXT("a", M3_TEXT("item", "x</a>") M3_TEXT("item", "\n" M3_TEXT("k", "true") "\n"))
              M3_TEXT("b", M3_TEXT("c", M3_TEXT("d", "1") M3_TEXT("d", "2"))) M3_TEXT("e", "")) M3("</tool_call>"),
      "call(now){\"a\":[\"x</a>\",{\"k\":true}],\"b\":{\"c\":{\"d\":1}},\"e\":\"\"}", 0 },
    { "minimax-m3", "</mm:think>Hello.", "text(Hello.)", 0 },
    { "apriel", "<tool_calls>[{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"now\", \"arguments\": {}}]</tool_calls>", "call(now){} call(now){}", 0 },
    { "cohere", "so</s <|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"Rome\"}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"now\", \"parameters\": {}}\n]<|END_ACTION|>",
      "reasoning(so</s ) call(get_weather){\"city\": \"Rome\"} call(now){}", 1 },
    { "cohere", "<|START_THINKING|>x<|END_THINKING|><|START_TEXT|>Hello<|END_TEXT|>", "reasoning(x) text(Hello)", 0 },
    { "apertus", "<|inner_prefix|>hm<|inner_suffix|>I look.<|tools_prefix|>[{\"get_weather\": {\"city\": \"Rome\", \"days\": 2}}, {\"now\": {}}]<|tools_suffix|>",
      "reasoning(hm) text(I look.) call(get_weather){\"city\": \"Rome\", \"days\": 2} call(now){}", 0 },
    { "apertus", "<|tools_prefix|>[{\"unknown\": {}}]<|tools_suffix|>",
      "text(<|tools_prefix|>[{\"unknown\": {}}]<|tools_suffix|>)", 0 },
    { "apertus", "<|tools_prefix|>[{}]", "text(<|tools_prefix|>[{}])", 0 },
    { "solar", "<|think|>hm<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>get_weather<|tool_call:args|>{\"city\": \"Rome\"}<|tool_call:end|><|tool_call:begin|>abcdefghij<|tool_call:name|>now<|tool_call:args|>{}<|tool_call:end|><|calls|>",
      "reasoning(hm) call(get_weather){\"city\": \"Rome\"} call(now){}", 0 },
    { "solar", "<|content|>Hello there.<|end|>", "text(Hello there.)", 0 },
    { "hunyuan-v3", "so</think:opensource>I look.<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Rome</arg_value:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>2</arg_value:opensource>\n</tool_call:opensource>\n<tool_call:opensource>now<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
      "reasoning(so) text(I look.) call(get_weather){\"city\":\"Rome\",\"days\":2} call(now){}", 1 },
    { "gigachat", "I look.<|function_call|>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}<|message_sep|>",
      "text(I look.) call(get_weather){\"city\": \"Rome\"}", 0 },
    { "gigachat-3", "I look.<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"now\", \"arguments\": {}}<|message_sep|>\n\n",
      "text(I look.) call(now){}", 0 },
};

struct heard { char text[4096]; size_t n; int last, n_calls; char id[2][64]; };

static void hear(void *user, const struct tool_event *ev)
{
    static const char *const names[] = { "text(", "reasoning(", "call(", "" };
    struct heard *h = user;
    if (ev->kind == TOOL_CALL || (int)ev->kind != h->last) {
        if (h->last == TOOL_CONTENT || h->last == TOOL_REASONING)
            h->n += (size_t)sprintf(h->text + h->n, ")");
        if (h->n && ev->kind != TOOL_ARGUMENTS)
            h->n += (size_t)sprintf(h->text + h->n, " ");
        h->n += (size_t)sprintf(h->text + h->n, "%s", names[ev->kind]);
    }
    memcpy(h->text + h->n, ev->text, ev->size);
    h->n += ev->size;
    h->text[h->n] = '\0';
    if (ev->kind == TOOL_CALL) {
        assert_int_equal(ev->index, h->n_calls);
        if (h->n_calls < 2)
            snprintf(h->id[h->n_calls], sizeof h->id[0], "%s", ev->id);
        h->n_calls++;
        h->n += (size_t)sprintf(h->text + h->n, ")");
    }
    h->last = (int)ev->kind;
}

static void read_in_pieces(const struct sample *s, size_t piece, int stream, struct heard *h)
{
    memset(h, 0, sizeof *h);
    h->last = -1;
    struct tool_parser_options o = { .tools = tools, .reasoning = s->reasoning, .stream_arguments = stream, .seed = 5,
                                     .on_event = hear, .user = h };
    struct tool_parser *p = tool_parser_open(tool_format_find(s->format), &o, NULL);
    size_t n = strlen(s->text);
    for (size_t i = 0; i < n; i += piece) {
        char *exact = malloc(piece);    /* a buffer of the exact size, so that a sanitizer notices
                                         * reads beyond it */
        size_t k = n - i < piece ? n - i : piece;
        memcpy(exact, s->text + i, k);
        assert_int_equal(tool_parser_push(p, exact, k, NULL), 0);
        free(exact);
    }
    assert_int_equal(tool_parser_finish(p, NULL), 0);
    tool_parser_close(p);
    if (h->last == TOOL_CONTENT || h->last == TOOL_REASONING)
        strcat(h->text, ")");
}

static void calls_are_read_in_pieces_of_any_size(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
        for (size_t piece = 1; piece < 400; piece += piece < 12 ? 1 : 97)
            for (int stream = 0; stream < 2; stream++) {
                struct heard h;
                read_in_pieces(&samples[i], piece, stream, &h);
                if (strcmp(h.text, samples[i].want) != 0)
                    fail_msg("%s in pieces of %zu%s:\n  %s\n  gives %s\n  not   %s", samples[i].format, piece,
                             stream ? ", streamed" : "", samples[i].text, h.text, samples[i].want);
            }
    struct heard h;
    read_in_pieces(&samples[12], 7, 0, &h);
    assert_true(strlen(h.id[0]) == 29 && !strncmp(h.id[0], "call_", 5));
    assert_string_equal(h.id[1], "abcdefghi");
}

/* If a value is malformed, the call is reported as text. */
static void malformed_values_are_text(void **state)
{
    static const struct sample cases[] = {
        { "gemma4", "<|tool_call>call:now{a:b c}<tool_call|>", "text(<|tool_call>call:now{a:b c}<tool_call|>)", 0 },
        { "lfm2", "<|tool_call_start|>[now(f(x))]<|tool_call_end|>", "text(<|tool_call_start|>[now(f(x))]<|tool_call_end|>)", 0 },
        { "gemma4", "<|tool_call>call:now{a:1 b:2}<tool_call|>", "text(<|tool_call>call:now{a:1 b:2}<tool_call|>)", 0 },
        { "lfm2", "<|tool_call_start|>[now(1)]<|tool_call_end|>", "text(<|tool_call_start|>[now(1)]<|tool_call_end|>)", 0 },
        { "lfm2", "<|tool_call_start|>[now(a=[1, 2)]<|tool_call_end|>", "text(<|tool_call_start|>[now(a=[1, 2)]<|tool_call_end|>)", 0 },
        { "minimax-m3", M3("<invoke name=\"now\">") M3("<a>") "1" M3("</b>") M3("</invoke>"),
          "text(" M3("<invoke name=\"now\">") M3("<a>") "1" M3("</b>") M3("</invoke>") ")", 0 },
        { "minimax-m3", M3("<invoke name=\"now\">") M3("<a>") M3_TEXT("item", "1") M3_TEXT("b", "2") M3("</a>") M3("</invoke>"),
          "text(" M3("<invoke name=\"now\">") M3("<a>") M3_TEXT("item", "1") M3_TEXT("b", "2") M3("</a>") M3("</invoke>") ")", 0 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t piece = 1; piece < 30; piece++) {
            struct heard h;
            read_in_pieces(&cases[i], piece, 0, &h);
            assert_string_equal(h.text, cases[i].want);
        }
}

/* If the beginning of a call was reported and its end is malformed, the arguments read so far are
 * reported all the same. */
static void a_malformed_call_keeps_its_arguments(void **state)
{
    static const char first[] = "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": ", second[] = "[1, 2]}} and";
    struct heard h = { .last = -1 };
    struct tool_parser_options o = { .tools = tools, .stream_arguments = 1, .on_event = hear, .user = &h };
    struct tool_parser *p = tool_parser_open(tool_format_find("hermes"), &o, NULL);
    (void)state;
    assert_int_equal(tool_parser_push(p, first, sizeof first - 1, NULL), 0);
    assert_string_equal(h.text, "call(now){\"a\": ");
    assert_int_equal(tool_parser_push(p, second, sizeof second - 1, NULL), 0);
    assert_int_equal(tool_parser_finish(p, NULL), 0);
    tool_parser_close(p);
    assert_string_equal(h.text, "call(now){\"a\": [1, 2]}");
}

/* If an answer is cut, the calls before the cut are reported, in every format; of the incomplete
 * call the part before the cut is reported. */
static void a_cut_answer_keeps_its_calls(void **state)
{
    static const struct sample cases[] = {
        { "hermes", "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"ci", "call(now){} call(get_weather){\"ci", 0 },
        { "mistral", "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"get_weather\", \"arguments\": {\"ci", "call(now){} call(get_weather){\"ci", 0 },
        { "mistral", "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}},", "call(now){}", 0 },
        { "granite-3", "<|tool_call|>[{\"name\": \"now\", \"arguments\": {}}", "call(now){}", 0 },
        { "nemotron", "<TOOLCALL>[{\"name\": \"now\", \"arguments\": {}}]</TOOL", "call(now){}", 0 },
        { "hermes", "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool", "call(now){}", 0 },
        { "kimi-k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_call_begin|>functions.get_weather:1<|tool_call_argument_begin|>{\"c",
          "call(now){} call(get_weather){\"c", 0 },
        { "qwen3-coder", "<tool_call>\n<function=now>\n</function>\n</tool_call>\n<tool_call>\n<function=get_weather>\n<parameter=city>\nRo", "call(now){} call(get_weather){\"city\":\"Ro", 0 },
        { "glm", "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n<arg_key>days</arg_key>\n<arg_value>1", "call(get_weather){\"city\":\"Rome\"", 0 },
        { "gemma4", "<|tool_call>call:now{}<tool_call|><|tool_call>call:get_weather{days:1,city:<|\"|>Ro\xC3", "call(now){} call(get_weather){\"days\":1,\"city\":\"Ro", 0 },
        { "gemma4", "<|tool_call>call:now{a:1,b:[1,2", "call(now){\"a\":1", 0 },
        { "lfm2", "<|tool_call_start|>[now(), get_weather(days=1, city=\"Ro", "call(now){} call(get_weather){\"days\":1,\"city\":\"Ro", 0 },
        { "lfm2", "<|tool_call_start|>[get_weather(city='a\\'\\u00e9\\u00e", "call(get_weather){\"city\":\"a'\xC3\xA9", 0 },
        { "lfm2", "<|tool_call_start|>[now(), ", "call(now){}", 0 },
        { "lfm2", "<|tool_call_start|>[now()]<|tool_ca", "call(now){}", 0 },
        { "cohere", "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"now\", \"parameters\": {}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"get_weather\", \"parameters\": {\"ci", "call(now){} call(get_weather){\"ci", 0 },
        { "apertus", "<|tools_prefix|>[{\"now\": {}}, {\"get_weather\": {\"city\": \"Ro", "call(now){} call(get_weather){\"city\": \"Ro", 0 },
        { "solar", "<|tool_calls|><|tool_call:begin|>abcdefghij<|tool_call:name|>get_weather<|tool_call:args|>{\"c", "call(get_weather){\"c", 0 },
        { "hunyuan-v3", "<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>Ro</arg_value:op", "call(get_weather){\"city\":\"Ro", 0 },
        { "deepseek-v3.2", "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"now\">\n</｜DSML｜invoke>\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">Ro</｜DSML", "call(now){} call(get_weather){\"city\":\"Ro", 0 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (size_t piece = 1; piece < 30; piece++) {
            struct heard h;
            read_in_pieces(&cases[i], piece, 1, &h);
            if (strcmp(h.text, cases[i].want) != 0)
                fail_msg("%s in pieces of %zu: %s gives %s, not %s", cases[i].format, piece, cases[i].text, h.text,
                         cases[i].want);
        }
    static const struct sample whole = { "mistral", "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}}, {\"na",
                                         "call(now){} text({\"na)", 0 };
    struct heard h;
    read_in_pieces(&whole, 4, 0, &h);
    assert_string_equal(h.text, whole.want);
}

/* ---- every format, from its row in the table ---- */

/* Append a call of get_weather for the city, in the form f; *open: the bytes up to the city. */
static size_t write_call(char *to, const struct tool_format *f, int first, const char *city, size_t *open)
{
    const char *named = strcmp(f->name, "functionary-3.2") == 0 && first ? "" : f->open;   /* in the prompt */
    const int list = f->style == TOOL_JSON_LIST, python = f->style == TOOL_PYTHON, begins = first || (!list && !python);
    size_t n = (size_t)sprintf(to, "%s%s", first ? f->section : "", begins ? named : "");
    if (list || python)
        n += (size_t)sprintf(to + n, "%s", !first ? ", " : f->list_open ? f->list_open : "[");
    if ((f->style == TOOL_JSON || list) && f->arguments)
        n += (size_t)sprintf(to + n, "{%s%s%s\"%s\": \"get_weather\", \"%s\": {\"city\": \"", f->id_key ? "\"" : "",
                             f->id_key ? f->id_key : "", f->id_key ? "\": \"0\", " : "",
                             f->name_key ? f->name_key : "name", f->arguments);
    else if (list)
        n += (size_t)sprintf(to + n, "{\"get_weather\": {\"city\": \"");
    else
        n += (size_t)sprintf(to + n, "%s%sget_weather%s%s", f->id_close ? "abcdefghij" : "", f->id_close ? f->id_close : "",
                             f->before_arguments,
                             f->style == TOOL_NAMED ? "{\"city\": \"" : python ? "city=\"" : f->style == TOOL_QUOTED ? "city:" : "");
    if (f->style == TOOL_TAGS)
        n += (size_t)sprintf(to + n, "%scity%s", f->key_open, f->key_close);
    if (f->style == TOOL_QUOTED)
        n += (size_t)sprintf(to + n, "%s", f->value_close);
    if (f->style == TOOL_ELEMENTS)
        n += (size_t)sprintf(to + n, "%scity%s", f->key_open, f->key_close);
    *open = n;
    n += (size_t)sprintf(to + n, "%s%s", city, f->style == TOOL_TAGS || f->style == TOOL_QUOTED ? f->value_close
                                             : f->style == TOOL_ELEMENTS ? ""
                                             : python ? "\")" : f->style == TOOL_NAMED ? "\"}" : "\"}}");
    if (f->style == TOOL_QUOTED)
        n += (size_t)sprintf(to + n, "}");
    if (f->style == TOOL_ELEMENTS)
        n += (size_t)sprintf(to + n, "%scity%s", f->value_close, f->key_close);
    return n + (size_t)sprintf(to + n, "%s", list || python ? "" : f->close);
}

static size_t count(const char *text, char c)
{
    size_t n = 0;
    for (; *text; text++)
        n += *text == c;
    return n;
}

/* After 100 bytes of a string have arrived, most of them have been reported. */
static void strings_come_while_they_are_written(void **state)
{
    (void)state;
    for (int i = 0; i < n_tool_formats; i++) {
        char city[101], text[2048];
        size_t open;
        memset(city, 'X', 100);
        city[100] = '\0';
        write_call(text, &tool_formats[i], 1, city, &open);
        struct heard h = { .last = -1 };
        struct tool_parser_options o = { .tools = tools, .stream_arguments = 1, .on_event = hear, .user = &h };
        struct tool_parser *p = tool_parser_open(&tool_formats[i], &o, NULL);
        for (size_t k = 0; k < open + 100; k++)
            assert_int_equal(tool_parser_push(p, text + k, 1, NULL), 0);
        tool_parser_close(p);
        if (count(h.text, 'X') < 70)
            fail_msg("%s: of %s only %s is heard", tool_formats[i].name, text, h.text);
    }
}

/* Wherever the second call is cut, the first one is reported completely. */
static void a_cut_in_the_second_call_keeps_the_first(void **state)
{
    (void)state;
    for (int i = 0; i < n_tool_formats; i++) {
        const struct tool_format *f = &tool_formats[i];
        char text[2048];
        size_t open, first = write_call(text, f, 1, "Rome", &open), n = first;
        if (f->single)
            continue;
        n += (size_t)sprintf(text + n, "%s", f->style == TOOL_JSON_LIST || f->style == TOOL_PYTHON ? "" : f->between);
        n += write_call(text + n, f, 0, "Oslo", &open);
        for (size_t cut = first; cut <= n; cut++)
            for (int stream = 0; stream < 2; stream++) {
                char part[2048];
                struct sample s = { f->name, part, NULL, 0 };
                struct heard h;
                memcpy(part, text, cut);
                part[cut] = '\0';
                read_in_pieces(&s, 7, stream, &h);
                const char *rome = strstr(h.text, "Rome\"}");
                if (strncmp(h.text, "call(get_weather){\"city\":", 25) != 0 || !rome || rome - h.text > 30)
                    fail_msg("%s: %s is read as %s", f->name, part, h.text);
                if (cut == n && h.n_calls != 2)
                    fail_msg("%s: %s is read as %d calls: %s", f->name, part, h.n_calls, h.text);
            }
    }
}

/* An answer that is cut anywhere, or has any byte changed, is read without a failure, and no text
 * is lost. */
static void a_damaged_answer_is_read_as_something(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
        size_t n = strlen(samples[i].text);
        char *text = strdup(samples[i].text);
        for (size_t k = 0; k < n; k++) {
            struct sample s = samples[i];
            struct heard h;
            s.text = text;
            text[k] = (char)(text[k] ^ 4);
            read_in_pieces(&s, 5, 0, &h);
            text[k] = (char)(text[k] ^ 4);
            char c = text[k];
            text[k] = '\0';
            read_in_pieces(&s, 3, 0, &h);
            text[k] = c;
        }
        free(text);
    }
}

static void templates_tell_their_format(void **state)
{
    static const char *const table[][2] = {
        { "Qwen-Qwen2.5-7B-Instruct", "hermes" }, { "Qwen-Qwen3-0.6B", "hermes" }, { "Qwen-QwQ-32B", "hermes" },
            { "NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", "hermes" }, { "ibm-granite-granite-4.0", "hermes" },
        { "Qwen3-Coder", "qwen3-coder" }, { "Qwen3.5-4B", "qwen3-coder" }, { "ByteDance-Seed-OSS", "seed-oss" },
        { "GLM-4.6", "glm" }, { "GLM-4.7-Flash", "glm-4.7" }, { "Spark2.5", "glm-4.7" },
        { "LFM2-8B-A1B", "lfm2" }, { "LFM2.5-8B-A1B", "lfm2" }, { "google-gemma-4-31B-it-interleaved", "gemma4" },
        { "deepseek-ai-DeepSeek-V4", "deepseek-v4" }, { "deepseek-ai-DeepSeek-V4-Flash-0731", "deepseek-v4" },
        { "Apriel-1.6-15b-Thinker-fixed", "apriel" }, { "StepFun3.5-Flash", "qwen3-coder" }, { "meta-llama-Llama-3.1-8B-Instruct", "llama3" },
        { "meta-llama-Llama-3.2-3B-Instruct", "llama3" }, { "meta-llama-Llama-3.3-70B-Instruct", "llama3" },
        { "mistralai-Mistral-Nemo-Instruct-2407", "mistral" },
        { "Mistral-Small-3.2-24B-Instruct-2506", "mistral-args" },
        { "mistralai-Ministral-3-14B-Reasoning-2512", "mistral-args" },
        { "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek-r1" }, { "llama-cpp-deepseek-r1", "deepseek-r1" },
        { "deepseek-ai-DeepSeek-V3.1", "deepseek-v3.1" },
        { "Kimi-K2-Instruct", "kimi-k2" }, { "Kimi-K2-Thinking", "kimi-k2" },
        { "meetkai-functionary-medium-v3.1", "functionary-3.1" },
        { "meetkai-functionary-medium-v3.2", "functionary-3.2" },
        { "ibm-granite-granite-3.3-2B-Instruct", "granite-3" }, { "NVIDIA-Nemotron-Nano-v2", "nemotron" },
        { "MiniMax-M3", "minimax-m3" }, { "Cohere2MoE", "cohere" }, { "CohereForAI-c4ai-command-r7b-12-2024-tool_use", "cohere" },
        { "upstage-Solar-Open-100B", "solar" }, { "Apertus-8B-Instruct", "apertus" }, { "tencent-Hy3", "hunyuan-v3" },
        { "GigaChat3.1-10B-A1.8B", "gigachat" }, { "GigaChat3-10B-A1.8B", "gigachat-3" },
        { "openai-gpt-oss-120b", "gpt-oss" }, { "google-gemma-2-2b-it", "json" },
    };
    const char *oracles = getenv("ZSE_ORACLES");
    char path[4096];
    (void)state;
    assert_string_equal(tool_format_name(tool_format_detect(NULL, 0)), "json");
    snprintf(path, sizeof path, "%s/chat-templates", oracles ? oracles : "../shared/oracles");
    if (access(path, R_OK) != 0) {
        print_message("# SKIP no %s\n", path);
        skip();
    }
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        struct err e;
        size_t n;
        snprintf(path, sizeof path, "%s/chat-templates/%s.jinja", oracles ? oracles : "../shared/oracles", table[i][0]);
        char *text = file_read(path, 1 << 20, &n, &e);
        if (!text)
            fail_msg("%s", e.msg);
        if (strcmp(tool_format_name(tool_format_detect(text, n)), table[i][1]) != 0)
            fail_msg("%s is called %s", table[i][0], tool_format_name(tool_format_detect(text, n)));
        free(text);
    }
}

/* ---- grammars, over the vocabulary of the tiny model ---- */

static struct tokenizer *tokenizer;
static struct grammar_vocab *vocab;
static void *blob;

static int setup(void **state)
{
    struct err e;
    size_t size;
    (void)state;
    tools = json_loads(tools_text, 0, NULL);
    if (!tools || tokenizer_from_path("models/tiny", &blob, &size, &e) != 0)
        return -1;
    tokenizer = tokenizer_open(blob, size, &e);
    vocab = tokenizer ? grammar_vocab_open(tokenizer, 0, &e) : NULL;
    return vocab ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    json_decref(tools);
    grammar_vocab_close(vocab);
    tokenizer_close(tokenizer);
    free(blob);
    return 0;
}

static int takes(struct grammar *g, const char *text)
{
    struct matcher *m = matcher_open(g, NULL);
    int ok = matcher_accept_bytes(m, text, strlen(text)) == 0 && matcher_complete(m);
    matcher_close(m);
    return ok;
}

static const char *const formats[] = { "hermes", "llama3", "mistral", "mistral-args", "deepseek-r1", "deepseek-v3.1",
                                       "kimi-k2", "functionary-3.1", "functionary-3.2", "granite-3", "nemotron",
                                       "qwen3-coder", "seed-oss", "glm", "gpt-oss", "json", "glm-4.7", "gemma4", "lfm2",
                                       "deepseek-v3.2", "deepseek-v4", "minimax-m2", "apriel", "cohere", "apertus",
                                       "solar", "hunyuan-v3", "gigachat", "gigachat-3", "minimax-m3" };
enum { N_FORMATS = sizeof formats / sizeof *formats };

static struct grammar *compile_tools(const char *format, const struct tool_grammar_options *o)
{
    struct err e = { .msg = "" };
    struct grammar *g = tool_grammar_compile(vocab, tool_format_find(format), o, &e);
    if (!g)
        fail_msg("%s: %s", format, e.msg);
    return g;
}

static int is_allowed(const uint32_t *mask, int32_t id) { return id >= 0 && mask[id >> 5] >> (id & 31) & 1; }

/* A random token that the mask allows.  Now and then `first` or `second` is chosen if it is
 * allowed, so that strings and calls end.  -1: no token was found. */
static int32_t random_token(struct rng *r, const uint32_t *mask, int32_t first, int32_t second)
{
    size_t size;
    if (rng_u64(r) % 4 == 0 && is_allowed(mask, first))
        return first;
    if (rng_u64(r) % 4 == 0 && is_allowed(mask, second))
        return second;
    for (int tries = 0; tries < 100000; tries++) {
        int32_t id = (int32_t)(rng_u64(r) % (uint64_t)tokenizer_vocab_size(tokenizer));
        if (is_allowed(mask, id) && grammar_vocab_bytes(vocab, id, &size))
            return id;
    }
    return -1;
}

/* Write a random answer that the grammar allows to text [8192].  Returns its length, or -1 if it
 * did not end within 400 tokens. */
static int random_answer(struct grammar *g, struct rng *r, char *text)
{
    struct matcher *m = matcher_open(g, NULL);
    const int32_t less = tokenizer_find(tokenizer, "<", 1);
    size_t n = 0, size;
    int ended = 0;
    for (int step = 0; step < 400 && n < 8000 && !ended; step++) {
        const uint32_t *mask = matcher_mask(m);
        if (matcher_complete(m) && rng_u64(r) % 2) {
            ended = 1;
            break;
        }
        const int32_t id = random_token(r, mask, tokenizer_find(tokenizer, step % 2 ? "\"" : "}", 1), less);
        if (id < 0)
            break;
        const char *p = grammar_vocab_bytes(vocab, id, &size);
        assert_int_equal(matcher_accept(m, id), 0);
        memcpy(text + n, p, size);
        n += size;
    }
    text[n] = '\0';
    matcher_close(m);
    return ended ? (int)n : -1;
}

/* Every answer that the grammar of a required call allows is read as calls, without text. */
static void required_answers_are_read_as_calls(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FORMATS; i++) {
        struct tool_grammar_options o = { .tools = tools, .choice = TOOL_REQUIRED, .parallel = 1 };
        struct grammar *g = compile_tools(formats[i], &o);
        struct rng r = { i };
        int complete = 0;
        for (int k = 0; k < 30; k++) {
            char text[8192];
            struct sample s = { formats[i], text, NULL, 0 };
            struct heard h;
            const int n = random_answer(g, &r, text);
            complete += n >= 0;
            for (int stream = 0; stream < 2 && n >= 0 && n < 2000; stream++) {
                read_in_pieces(&s, 9, stream, &h);
                if (h.n_calls == 0 || strstr(h.text, "text("))
                    fail_msg("%s: %s is read as %s", formats[i], text, h.text);
            }
        }
        assert_true(complete > 0);
        grammar_close(g);
    }
}

static void every_format_compiles_for_every_choice(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_FORMATS; i++) {
        struct err e;
        struct tool_grammar_options o = { .tools = tools, .choice = TOOL_REQUIRED, .parallel = 1 };
        struct grammar *g = compile_tools(formats[i], &o);
        assert_false(takes(g, "Hello."));
        grammar_close(g);
        o.choice = TOOL_AUTO;
        g = compile_tools(formats[i], &o);
        /* these formats mark text as well */
        if (strcmp(formats[i], "gpt-oss") && strcmp(formats[i], "functionary-3.2") && strcmp(formats[i], "solar"))
            assert_true(takes(g, "Hello, \xC3\xA9 < [ 3."));
        grammar_close(g);
        o.only = "nothing";             /* no such function */
        assert_null(tool_grammar_compile(vocab, tool_format_find(formats[i]), &o, &e));
        o.only = "now";
        o.choice = TOOL_REQUIRED;
        grammar_close(compile_tools(formats[i], &o));
    }
}

/* A function whose pattern cannot be enforced. */
static const char unenforceable[] = "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}}}}}}]";

#define CALL(json) "<tool_call>\n" json "\n</tool_call>"
#define NOW CALL("{\"name\": \"now\", \"arguments\": {}}")
#define SEED_CALL(value) "<seed:tool_call>\n<function=f>\n<parameter=a>" value "</parameter>\n</function>\n</seed:tool_call>"
#define QWEN_CALL(value) CALL("<function=f>\n<parameter=a>\n" value "\n</parameter>\n</function>")
#define GLM_CALL(value) "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>" value "</arg_value>\n</tool_call>"
#define DSML(section, calls) "<｜DSML｜" section ">\n" calls "</｜DSML｜" section ">"
#define DSML_CITY(string) "<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"" string "\">a</｜DSML｜parameter>\n</｜DSML｜invoke>\n"

static const struct answer {
    const char *format; enum tool_choice choice; int parallel; const char *only;
    /* The function is `unenforceable`, and its pattern is ignored. */
    int relaxed;
    const char *text; int ok;
} answers[] = {
    { "hermes", TOOL_REQUIRED, 1, "now", 0, NOW, 1 },
    /* A named function: one call. */
    { "hermes", TOOL_REQUIRED, 1, "now", 0, NOW "\n" NOW, 0 },
    { "hermes", TOOL_AUTO, 1, NULL, 0, "I look.\n"
      CALL("{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}"), 1 },
    { "hermes", TOOL_AUTO, 1, NULL, 0, CALL("{\"name\": \"get_weathers\", \"arguments\": {\"city\": \"Rome\"}}"), 0 },
    { "hermes", TOOL_AUTO, 1, NULL, 0, CALL("{\"name\": \"get_weather\", \"arguments\": {\"days\": 1}}"), 0 },
    { "hermes", TOOL_AUTO, 1, NULL, 0, "<tool_call>", 0 },
    { "hermes", TOOL_AUTO, 0, NULL, 0, NOW "\n" NOW, 0 },
    { "hermes", TOOL_AUTO, 0, NULL, 1, CALL("{\"name\": \"f\", \"arguments\": {\"a\": [\"x\", \"x\"]}}"), 1 },
    { "hermes", TOOL_AUTO, 0, NULL, 1, CALL("{\"name\": \"f\", \"arguments\": {\"a\": [1]}}"), 0 },
    { "hermes", TOOL_AUTO, 0, NULL, 1, CALL("{\"name\": \"f\", \"arguments\": [1]}"), 0 },
    { "qwen3-coder", TOOL_AUTO, 0, NULL, 1, QWEN_CALL("[\"x\", \"x\"]"), 1 },
    { "qwen3-coder", TOOL_AUTO, 0, NULL, 1, QWEN_CALL("x"), 0 },
    { "glm", TOOL_AUTO, 0, NULL, 1, GLM_CALL("[\"x\"]"), 1 },
    { "glm", TOOL_AUTO, 0, NULL, 1, GLM_CALL("x"), 0 },
    { "seed-oss", TOOL_AUTO, 0, NULL, 1, SEED_CALL("[\"x\"]"), 1 },
    { "seed-oss", TOOL_AUTO, 0, NULL, 1, SEED_CALL("x"), 0 },
    { "gemma4", TOOL_AUTO, 1, NULL, 0, "So.<|tool_call>call:get_weather{city:<|\"|>a<|b}<|\"|>,days:-1}<tool_call|><|tool_call>call:now{}<tool_call|>", 1 },
    { "gemma4", TOOL_REQUIRED, 0, NULL, 0, "<|tool_call>call:get_weather{days:1}<tool_call|>", 0 },
    { "gemma4", TOOL_REQUIRED, 0, NULL, 0, "<|tool_call>call:get_weather{city:1}<tool_call|>", 0 },
    { "gemma4", TOOL_REQUIRED, 0, NULL, 0, "<|tool_call>call:get_weather{city:<|\"|>a<|\"|>,}<tool_call|>", 0 },
    { "gemma4", TOOL_AUTO, 0, NULL, 1, "<|tool_call>call:f{a:[<|\"|>x<|\"|>,<|\"|>y<|\"|>]}<tool_call|>", 1 },
    { "gemma4", TOOL_AUTO, 0, NULL, 1, "<|tool_call>call:f{a:[1]}<tool_call|>", 0 },
    { "lfm2", TOOL_AUTO, 1, NULL, 0, "So.<|tool_call_start|>[get_weather(city=\"a\", days=1), now()]<|tool_call_end|>", 1 },
    { "lfm2", TOOL_REQUIRED, 0, NULL, 0, "<|tool_call_start|>[now(), now()]<|tool_call_end|>", 0 },
    { "lfm2", TOOL_REQUIRED, 0, NULL, 0, "<|tool_call_start|>[get_weather(city=1)]<|tool_call_end|>", 0 },
    { "lfm2", TOOL_AUTO, 0, NULL, 1, "<|tool_call_start|>[f(a=[\"x\"])]<|tool_call_end|>", 1 },
    { "glm-4.7", TOOL_AUTO, 1, NULL, 0, "<tool_call>now</tool_call><tool_call>now</tool_call>", 1 },
    { "glm-4.7", TOOL_AUTO, 1, NULL, 0, "<tool_call>now\n</tool_call>", 0 },
    { "deepseek-v3.2", TOOL_REQUIRED, 1, NULL, 0, DSML("function_calls", DSML_CITY("true")), 1 },
    { "deepseek-v3.2", TOOL_REQUIRED, 1, NULL, 0, DSML("function_calls", DSML_CITY("false")), 0 },
    { "deepseek-v3.2", TOOL_REQUIRED, 1, NULL, 0, DSML("tool_calls", DSML_CITY("true")), 0 },
    { "deepseek-v4", TOOL_REQUIRED, 1, NULL, 0, DSML("tool_calls", DSML_CITY("true") DSML_CITY("true")), 1 },
    { "cohere", TOOL_AUTO, 1, NULL, 0, "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"now\", \"parameters\": {}},\n    {\"tool_call_id\": \"12\", \"tool_name\": \"get_weather\", \"parameters\": {\"city\": \"a\"}}\n]<|END_ACTION|>", 1 },
    { "cohere", TOOL_REQUIRED, 1, NULL, 0, "<|START_ACTION|>[\n    {\"tool_name\": \"now\", \"parameters\": {}}\n]<|END_ACTION|>", 0 },
    { "apertus", TOOL_AUTO, 1, NULL, 0, "Hi.<|tools_prefix|>[{\"now\": {}}, {\"get_weather\": {\"city\": \"a\"}}]<|tools_suffix|>", 1 },
    { "apertus", TOOL_REQUIRED, 0, NULL, 0, "<|tools_prefix|>[{\"now\": {}}, {\"now\": {}}]<|tools_suffix|>", 0 },
    { "apertus", TOOL_REQUIRED, 0, NULL, 0, "<|tools_prefix|>[{\"get_weather\": {}}]<|tools_suffix|>", 0 },
    { "solar", TOOL_AUTO, 1, NULL, 0, "<|think|>x<|end|><|begin|>assistant<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>now<|tool_call:args|>{}<|tool_call:end|>", 1 },
    { "solar", TOOL_AUTO, 1, NULL, 0, "<|content|>No.", 1 },
    { "solar", TOOL_REQUIRED, 1, NULL, 0, "<|tool_calls|><|tool_call:begin|>a1b2<|tool_call:name|>now<|tool_call:args|>{}<|tool_call:end|>", 0 },
    { "hunyuan-v3", TOOL_REQUIRED, 1, NULL, 0, "<tool_calls:opensource>\n<tool_call:opensource>get_weather<tool_sep:opensource>\n<arg_key:opensource>city</arg_key:opensource>\n<arg_value:opensource>a</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>", 1 },
    { "gigachat", TOOL_AUTO, 1, NULL, 0, "Hi.<|function_call|>{\"name\": \"now\", \"arguments\": {}}", 1 },
    { "gigachat", TOOL_REQUIRED, 1, NULL, 0, "<|function_call|>{\"name\": \"now\", \"arguments\": {}}<|function_call|>{\"name\": \"now\", \"arguments\": {}}", 0 },
    { "gigachat-3", TOOL_REQUIRED, 1, NULL, 0, "function call<|role_sep|>\n{\"name\": \"now\", \"arguments\": {}}", 1 },
    { "minimax-m3", TOOL_REQUIRED, 1, NULL, 0, "<mm:think>x</mm:think>" M3("<tool_call>") "\n" M3_CALL("get_weather", M3_TEXT("city", "a<b>") M3_TEXT("days", "-1"))
      M3_CALL("now", "") M3("</tool_call>"), 1 },
    { "minimax-m3", TOOL_REQUIRED, 1, NULL, 0, M3("<tool_call>") "\n" M3_CALL("get_weather", M3_TEXT("days", "1")) M3("</tool_call>"), 0 },
    { "minimax-m3", TOOL_REQUIRED, 1, NULL, 0, M3("<tool_call>") "\n" M3_CALL("get_weather", M3_TEXT("city", "a") M3_TEXT("days", "x")) M3("</tool_call>"), 0 },
    { "minimax-m3", TOOL_REQUIRED, 1, NULL, 0, M3("<tool_call>") "\n" M3_CALL("get_weather", M3("<city>") "a" M3("</town>")) M3("</tool_call>"), 0 },
    { "minimax-m3", TOOL_AUTO, 0, NULL, 1, M3("<tool_call>") "\n" M3_CALL("f", M3_TEXT("a", M3_TEXT("item", "x") M3_TEXT("item", "y"))) M3("</tool_call>"), 1 },
    { "minimax-m3", TOOL_AUTO, 0, NULL, 1, M3("<tool_call>") "\n" M3_CALL("f", M3_TEXT("a", "x")) M3("</tool_call>"), 0 },
    { "minimax-m2", TOOL_REQUIRED, 1, NULL, 0, "<minimax:tool_call>\n<invoke name=\"now\">\n</invoke>\n</minimax:tool_call>", 1 },
};

static void only_well_formed_calls_are_accepted(void **state)
{
    json_t *list = json_loads(unenforceable, 0, NULL);
    (void)state;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        const struct answer *a = &answers[i];
        const struct tool_grammar_options o = { .tools = a->relaxed ? list : tools, .choice = a->choice,
                                                .parallel = a->parallel, .only = a->only };
        struct grammar *g = compile_tools(a->format, &o);
        if (takes(g, a->text) != a->ok)
            fail_msg("%s: %s is %s", a->format, a->text, a->ok ? "refused" : "accepted");
        if (a->relaxed)
            assert_string_equal(grammar_relaxed(g), "function 'f': /properties/a/items/pattern");
        grammar_close(g);
    }
    json_decref(list);
}

static void strict_functions_are_enforced_or_refused(void **state)
{
    json_t *list = json_loads(unenforceable, 0, NULL), *strict = json_pack("{s:b}", "f", 1);
    const struct tool_grammar_options o = { .tools = list, .choice = TOOL_AUTO, .strict = strict };
    struct err e;
    (void)state;
    assert_null(tool_grammar_compile(vocab, tool_format_find("hermes"), &o, &e));
    assert_int_equal(e.code, ERR_UNSUPPORTED);
    assert_non_null(strstr(e.msg, "function 'f': parameters: schema: /properties/a/items/pattern: "));
    json_decref(strict);
    json_decref(list);
}

/* A schema that cannot be compiled is an error, unless its function is lenient. */
static void lenient_functions_allow_any_object(void **state)
{
    static const char *const bad[] = { "{\"pattern\":\"([\"}", "{\"enum\":[]}", "false" };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct err e;
        json_t *schema = json_loads(bad[i], JSON_DECODE_ANY, NULL), *lenient = json_pack("{s:b}", "f", 1),
               *list = json_pack("[{s:s, s:{s:s, s:{s:{s:s}}}}, {s:s, s:{s:s, s:{s:s, s:{s:o}, s:[s]}}}]", "type", "function",
                                 "function", "name", "g", "parameters", "a", "type", "integer", "type", "function",
                                 "function", "name", "f", "parameters", "type", "object", "properties", "a", schema,
                                 "required", "a");
        if (json_is_object(schema) && i == 0)
            json_object_set_new(schema, "type", json_string("string"));
        struct tool_grammar_options o = { .tools = list, .choice = TOOL_AUTO };
        assert_null(tool_grammar_compile(vocab, tool_format_find("hermes"), &o, &e));
        o.lenient = lenient;
        struct grammar *g = tool_grammar_compile(vocab, tool_format_find("hermes"), &o, &e);
        if (!g)
            fail_msg("%s: %s", bad[i], e.msg);
        assert_non_null(strstr(grammar_relaxed(g), "function 'f': /"));
        assert_null(strstr(grammar_relaxed(g), "function 'g': /,"));
        grammar_close(g);
        json_decref(lenient);
        json_decref(list);
    }
}

static void prompts_may_begin_reasoning(void **state)
{
    static const struct { const char *format, *prompt; int begun; } cases[] = {
        { "hermes", "<|im_start|>assistant\n<think>\n", 1 }, { "hermes", "think>", 0 }, { "hermes", "", 0 },
        { "cohere", "<|CHATBOT_TOKEN|><|START_THINKING|>", 1 },
        { "cohere", "<|START_THINKING|><|END_THINKING|>", 0 }, { "cohere", "<think>", 0 },
        { "hunyuan-v3", "<think:opensource>", 1 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const size_t n = strlen(cases[i].prompt);
        char *exact = malloc(n + !n);   /* has no terminating zero */
        memcpy(exact, cases[i].prompt, n);
        assert_int_equal(tool_format_begun(tool_format_find(cases[i].format), exact, n), cases[i].begun);
        free(exact);
    }
}

/* Reasoning may come before the answer that the schema describes, or may have begun in the
 * prompt. */
static void reasoning_may_come_before_the_answer(void **state)
{
    static const char schema[] = "{\"type\":\"object\",\"properties\":{\"a\":{\"const\":1}},\"required\":[\"a\"]}",
                      regex[] = "[0-9]+", rules[] = "root ::= \"yes\"";
    static const struct { const char *format, *text; int begun, ok; } cases[] = {
        { "hermes", "{\"a\": 1}", 0, 1 }, { "hermes", "<think>\nso { \"a\n</think>\n\n{\"a\": 1}", 0, 1 },
            { "hermes", "well {\"a\": 1}", 0, 0 }, { "hermes", "<think>x</think> y", 0, 0 },
        { "hermes", "hm </think>{\"a\": 1}", 1, 1 }, { "hermes", "{\"a\": 1}", 1, 0 },
        { "seed-oss", "<seed:think>x</seed:think>{\"a\": 1}", 0, 1 },
        { "gemma4", "<|channel>thought\nx<channel|>{\"a\": 1}", 0, 1 }, { "gemma4", "x<channel|>{\"a\": 1}", 1, 1 },
        { "gpt-oss", "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>final<|message|>{\"a\": 1}", 0,
          1 }, { "gpt-oss", "{\"a\": 1}", 0, 0 },
        { "solar", "<|think|>x<|end|><|begin|>assistant<|content|>{\"a\": 1}", 0, 1 }, { "solar", "{\"a\": 1}", 0, 0 },
        { "cohere", "x<|END_THINKING|>{\"a\": 1}", 1, 1 },
    };
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct grammar_options o = { .thinker = tool_format_find(cases[i].format), .thinking = cases[i].begun };
        struct grammar *g = grammar_compile_schema(vocab, schema, sizeof schema - 1, &o, &e);
        assert_non_null(g);
        struct matcher *m = matcher_open(g, &e);
        int ok = matcher_accept_bytes(m, cases[i].text, strlen(cases[i].text)) == 0 && matcher_complete(m);
        if (ok != cases[i].ok)
            fail_msg("%s: %s is %s", cases[i].format, cases[i].text, ok ? "accepted" : "refused");
        matcher_close(m);
        grammar_close(g);
    }
    const struct grammar_options o = { .thinker = tool_format_find("hermes"), .thinking = 1 };
    struct grammar *both[] = { grammar_compile_regex(vocab, regex, sizeof regex - 1, &o, &e),
                               grammar_compile_gbnf(vocab, rules, sizeof rules - 1, &o, &e) };
    static const char *const ends[] = { "a</think>42", "a</think>\nyes" };
    for (int i = 0; i < 2; i++) {
        struct matcher *m = matcher_open(both[i], &e);
        assert_int_equal(matcher_accept_bytes(m, ends[i], strlen(ends[i])), 0);
        assert_true(matcher_complete(m));
        matcher_close(m);
        grammar_close(both[i]);
    }
}

/* Answers with or without calls, whose text must satisfy a schema. */
static void text_satisfies_the_content_schema(void **state)
{
    static const struct { const char *format, *text; int ok; } cases[] = {
        { "hermes", "[1]", 1 }, { "hermes", "words", 0 },
            { "hermes", "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>", 1 }, { "json", "[1]", 1 },
        { "json", "{\"name\": \"now\", \"arguments\": {}}", 1 },
        { "json", "{\"name\": \"other\", \"arguments\": {}}", 0 }, { "functionary-3.2", "all\n[1]", 1 },
    };
    json_t *schema = json_pack("{s:s, s:{s:s}}", "type", "array", "items", "type", "integer");
    struct err e;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct tool_grammar_options o = { .tools = tools, .choice = TOOL_AUTO, .content = schema };
        struct grammar *g = tool_grammar_compile(vocab, tool_format_find(cases[i].format), &o, &e);
        assert_non_null(g);
        struct matcher *m = matcher_open(g, &e);
        int ok = matcher_accept_bytes(m, cases[i].text, strlen(cases[i].text)) == 0 && matcher_complete(m);
        if (ok != cases[i].ok)
            fail_msg("%s: %s is %s", cases[i].format, cases[i].text, ok ? "accepted" : "refused");
        matcher_close(m);
        grammar_close(g);
    }
    json_decref(schema);
}

/* A list that may have no items is empty in the forms that write lists themselves, too. */
static void a_list_of_no_items_is_empty(void **state)
{
    static const char *const calls[][3] = {
        { "gemma4", "<|tool_call>call:f{a:[]}<tool_call|>", "<|tool_call>call:f{a:[1]}<tool_call|>" },
        { "minimax-m3", M3("<tool_call>") "\n" M3_CALL("f", M3_TEXT("a", "")) M3("</tool_call>"),
          M3("<tool_call>") "\n" M3_CALL("f", M3_TEXT("a", M3_TEXT("item", "1"))) M3("</tool_call>") },
    };
    json_t *list = json_loads("[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
                              "\"required\":[\"a\"],\"properties\":{\"a\":{\"type\":\"array\",\"maxItems\":0,"
                              "\"items\":{\"type\":\"integer\"}}}}}}]", 0, NULL);
    (void)state;
    assert_non_null(list);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        const struct tool_grammar_options o = { .tools = list, .choice = TOOL_REQUIRED };
        struct grammar *g = compile_tools(calls[i][0], &o);
        assert_true(takes(g, calls[i][1]));
        assert_false(takes(g, calls[i][2]));
        grammar_close(g);
    }
    json_decref(list);
}

static void count_arguments(void *user, const struct tool_event *ev) { *(int *)user += ev->kind == TOOL_ARGUMENTS; }

/* Arguments are reported byte for byte as they were written. */
static void arguments_are_streamed_as_written(void **state)
{
    static const char *const streamed[] = { "hermes", "llama3", "json", "mistral-args", "deepseek-v3.1", "kimi-k2",
                                           "functionary-3.1", "functionary-3.2", "gpt-oss", "mistral", "granite-3",
                                           "nemotron", "qwen3-coder", "glm", "seed-oss" };
    (void)state;
    for (size_t f = 0; f < sizeof streamed / sizeof *streamed; f++)
        for (size_t i = 0; i < sizeof samples / sizeof *samples; i++) {
            if (strcmp(samples[i].format, streamed[f]) != 0 || !strstr(samples[i].want, "call(get_weather)"))
                continue;
            int pieces = 0;
            struct tool_parser_options o = { .tools = tools, .stream_arguments = 1, .on_event = count_arguments,
                                             .user = &pieces };
            struct tool_parser *p = tool_parser_open(tool_format_find(streamed[f]), &o, NULL);
            for (const char *s = samples[i].text; *s; s++)
                assert_int_equal(tool_parser_push(p, s, 1, NULL), 0);
            assert_int_equal(tool_parser_finish(p, NULL), 0);
            tool_parser_close(p);
            if (pieces < 4 || (size_t)pieces + 6 < strlen(strchr(samples[i].want, '{')) / 3)
                fail_msg("%s: %d pieces of %s", streamed[f], pieces, samples[i].text);
        }
}

static void add_up(void *user, const struct tool_event *ev)
{
    *(size_t *)user += ev->kind == TOOL_ARGUMENTS ? ev->size : 0;
}

/* The bytes of the arguments of a call that arrives in pieces.  All text is read only a few times,
 * however many pieces it has. */
static size_t bytes_of_arguments(const char *format, const char *text, size_t n, size_t piece, int stream)
{
    size_t sum = 0;
    struct tool_parser_options o = { .tools = tools, .stream_arguments = stream, .on_event = add_up, .user = &sum };
    struct tool_parser *p = tool_parser_open(tool_format_find(format), &o, NULL);
    for (size_t at = 0; at < n; at += piece)
        assert_int_equal(tool_parser_push(p, text + at, n - at < piece ? n - at : piece, NULL), 0);
    assert_int_equal(tool_parser_finish(p, NULL), 0);
    if (p->n_read > 12 * n)
        fail_msg("%s, streamed %d: %zu bytes, %ju read", format, stream, n, (uintmax_t)p->n_read);
    tool_parser_close(p);
    return sum;
}

/* A long argument is not read again from its beginning for each of its 75,000 pieces. */
static void long_arguments_are_read_once(void **state)
{
    static const struct { const char *format, *begin, *piece, *end; } cases[] = {
        { "hermes", "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"", "f(\\\"a\\\")[}]>;\\n", "\"}}\n</tool_call>" },
        { "kimi-k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"",
          "f(\\\"a\\\")[}]>;\\n", "\"}<|tool_call_end|>" },
        { "qwen3-coder", "<tool_call>\n<function=get_weather>\n<parameter=city>\n", "f(\"a\")</p>[}]>;\n", "z\n</parameter>\n</function>\n</tool_call>" },
        { "glm-4.7", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>", "f(\"a\")</p>[}]>;\n", "</arg_value></tool_call>" },
        { "glm-4.7", "<tool_call>get_weather<arg_key>days</arg_key><arg_value>[0", ",[1],{\"a\":\"</a\"}", "]</arg_value></tool_call>" },
        { "gemma4", "<|tool_call>call:get_weather{city:<|\"|>", "f(\"a\")</p>[}]>;\n", "<|\"|>}<tool_call|>" },
        { "gemma4", "<|tool_call>call:get_weather{a:[{b:<|\"|>", "f(\"a\")</p>[}]>;\n", "<|\"|>}]}<tool_call|>" },
        { "lfm2", "<|tool_call_start|>[get_weather(city=\"", "f('a') \"b\" \\\"c\\\"[}]>;\\n", "\")]<|tool_call_end|>" },
        { "lfm2", "<|tool_call_start|>[get_weather(days=[1", ",1234, -5.5e+3", "])]<|tool_call_end|>" },
        { "lfm2", "<|tool_call_start|>[get_weather(a=[\"a\"", ", 'b)\\'\\\\', \"c\" [{\"", "])]<|tool_call_end|>" },
        { "lfm2", "<|tool_call_start|>[get_weather(a={\"a\": [0", ", None], \"b\": [{c: True}", "]})]<|tool_call_end|>" },
        { "gemma4", "<|tool_call>call:get_weather{days:[1", ",1234", "]}<tool_call|>" },
        { "gemma4", "<|tool_call>call:get_weather{a:[<|\"|>a<|\"|>", ",<|\"|>a]}<\"<|\"|>,{b:\"c\"}", "]}<tool_call|>" },
    };
    const int times = getenv("ZSE_SANITIZED") ? 4000 : 20000;
    char *text = malloc((size_t)times * 30 + 200);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *end = stpcpy(text, cases[i].begin);
        for (int k = 0; k < times; k++)
            end = stpcpy(end, cases[i].piece);
        end = stpcpy(end, cases[i].end);
        const size_t n = (size_t)(end - text), whole = bytes_of_arguments(cases[i].format, text, n, n, 0);
        assert_true(whole > (size_t)times * strlen(cases[i].piece) * 3 / 4);
        for (int stream = 0; stream < 2; stream++)
            if (bytes_of_arguments(cases[i].format, text, n, 4, stream) != whole)
                fail_msg("%s, case %zu%s", cases[i].format, i, stream ? ", streamed" : "");
    }
    free(text);
}

/* A call of many short arguments is not read again from its beginning for each of them. */
static void many_short_arguments_are_read_a_few_times(void **state)
{
    static const struct { const char *format, *begin, *piece, *end; } cases[] = {
        { "qwen3-coder", "<tool_call>\n<function=get_weather>\n", "<parameter=a%d>\n%d\n</parameter>\n", "</function>\n</tool_call>" },
        { "glm-4.7", "<tool_call>get_weather", "<arg_key>a%d</arg_key><arg_value>%d</arg_value>", "</tool_call>" },
        { "minimax-m2", "<minimax:tool_call>\n<invoke name=\"get_weather\">\n", "<parameter name=\"a%d\">%d</parameter>\n",
          "</invoke>\n</minimax:tool_call>" },
        { "minimax-m3", M3("<tool_call>") "\n" M3("<invoke name=\"get_weather\">"), M3("<a%1$d>") "%2$d" M3("</a%1$d>"),
          M3("</invoke>") "\n" M3("</tool_call>") },
        { "gemma4", "<|tool_call>call:get_weather{", "a%d:%d,", "city:<|\"|>x<|\"|>}<tool_call|>" },
        { "gemma4", "<|tool_call>call:get_weather{", "a%d:<|\"|>%d<|\"|>,", "city:[{b:1}]}<tool_call|>" },
        { "lfm2", "<|tool_call_start|>[get_weather(", "a%d=%d, ", "city=[1])]<|tool_call_end|>" },
        { "lfm2", "<|tool_call_start|>[get_weather(", "a%d='%d', ", "city='x')]<|tool_call_end|>" },
    };
    const int times = getenv("ZSE_SANITIZED") ? 1000 : 4000;
    char *text = malloc((size_t)times * 80 + 400);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *end = stpcpy(text, cases[i].begin);
        for (int k = 0; k < times; k++)
            end += sprintf(end, cases[i].piece, k, k);
        end = stpcpy(end, cases[i].end);
        const size_t n = (size_t)(end - text), whole = bytes_of_arguments(cases[i].format, text, n, n, 0);
        assert_true(whole > (size_t)times * strlen("\"a\":0"));
        for (int stream = 0; stream < 2; stream++)
            for (size_t piece = 4; piece < 8; piece += 3)
                if (bytes_of_arguments(cases[i].format, text, n, piece, stream) != whole)
                    fail_msg("%s, pieces of %zu%s", cases[i].format, piece, stream ? ", streamed" : "");
    }
    free(text);
}

/* The same of lists in elements, also if a text looks like the start of an element. */
static void long_lists_of_elements_are_read_a_few_times(void **state)
{
    static const char *const values[] = { "", M3("<item>") "a" M3("<item>") M3("</item>") };
    enum { TIMES = 4000 };
    char *text = malloc(TIMES * 80 + 400);
    (void)state;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        char *end = stpcpy(stpcpy(text, M3("<tool_call>") "\n" M3("<invoke name=\"get_weather\">") M3("<days>")), values[i]);
        for (int k = 0; k < TIMES; k++)
            end = stpcpy(end, k % 2 ? M3("<item>") "12" M3("</item>") : M3("<item>") M3_TEXT("item", "1") M3("</item>"));
        end = stpcpy(end, M3("</days>") M3("</invoke>") "\n" M3("</tool_call>"));
        const size_t n = (size_t)(end - text), whole = bytes_of_arguments("minimax-m3", text, n, n, 0);
        assert_true(whole > TIMES * 3);
        for (int stream = 0; stream < 2; stream++)
            assert_int_equal(bytes_of_arguments("minimax-m3", text, n, 7, stream), whole);
    }
    free(text);
}

/* If a function is not strict, its keywords that cannot be enforced are ignored one by one. */
static void keywords_that_are_not_enforced_are_listed(void **state)
{
    static const struct { const char *format, *parameters, *relaxed; } cases[] = {
        { "hermes", "{\"properties\":{\"a\":{\"type\":\"string\"}}}", NULL },
        { "hermes", "{\"properties\":{\"a\":{\"$ref\":\"http://elsewhere/x\"},\"b\":{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}}}",
          "function 'f': /properties/a/$ref, function 'f': /properties/b/pattern" },
        { "qwen3-coder", "{\"minProperties\":1,\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"x\"}}}",
          "function 'f': /minProperties, function 'f': /properties/a/pattern" },
        { "glm", "{\"properties\":{\"\\u00fc\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}}}}", "function 'f': /properties/?\?/items/pattern" },
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct err e;
        json_t *parameters = json_loads(cases[i].parameters, 0, NULL), *before = json_deep_copy(parameters);
        json_t *list = json_pack("[{s:s, s:{s:s, s:o}}]", "type", "function", "function", "name", "f", "parameters",
                                 parameters);
        const struct tool_grammar_options o = { .tools = list, .choice = TOOL_REQUIRED };
        struct grammar *g = tool_grammar_compile(vocab, tool_format_find(cases[i].format), &o, &e);
        if (!g)
            fail_msg("case %zu: %s", i, e.msg);
        const char *relaxed = grammar_relaxed(g);
        if (!relaxed != !cases[i].relaxed || (relaxed && strcmp(relaxed, cases[i].relaxed) != 0))
            fail_msg("case %zu: %s", i, relaxed ? relaxed : "nothing");
        assert_true(json_equal(parameters, before));    /* the request's tools are read-only */
        grammar_close(g);
        json_decref(list);
        json_decref(before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_may_begin_reasoning),
        cmocka_unit_test(reasoning_may_come_before_the_answer),
        cmocka_unit_test(text_satisfies_the_content_schema),
        cmocka_unit_test(arguments_are_streamed_as_written),
        cmocka_unit_test(a_list_of_no_items_is_empty), cmocka_unit_test(long_arguments_are_read_once),
        cmocka_unit_test(many_short_arguments_are_read_a_few_times),
        cmocka_unit_test(long_lists_of_elements_are_read_a_few_times),
        cmocka_unit_test(calls_are_read_in_pieces_of_any_size),
        cmocka_unit_test(a_malformed_call_keeps_its_arguments), cmocka_unit_test(malformed_values_are_text),
        cmocka_unit_test(a_cut_answer_keeps_its_calls),
        cmocka_unit_test(strings_come_while_they_are_written),
        cmocka_unit_test(a_cut_in_the_second_call_keeps_the_first),
        cmocka_unit_test(keywords_that_are_not_enforced_are_listed),
        cmocka_unit_test(a_damaged_answer_is_read_as_something),
        cmocka_unit_test(templates_tell_their_format),
        cmocka_unit_test(every_format_compiles_for_every_choice),
        cmocka_unit_test(required_answers_are_read_as_calls),
        cmocka_unit_test(only_well_formed_calls_are_accepted),
        cmocka_unit_test(strict_functions_are_enforced_or_refused),
        cmocka_unit_test(lenient_functions_allow_any_object),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
