/* tool_format.c - the forms in which families of models write calls, and which of them a chat
 * template shows. */
#include "libcommon/grammar/tool_format.h"

#include <string.h>

static const char *const channel_noise[] = { "<|channel|>final<|message|>", "<|channel|>commentary<|message|>",
                                             "<|start|>assistant", "<|end|>", "<|return|>", "<|call|>", NULL };
static const char *const solar_noise[] = { "<|content|>", "<|begin|>assistant", "<|end|>", "<|calls|>", "<|flush|>",
                                           NULL };
static const char *const cohere_noise[] = { "<|START_TEXT|>", "<|END_TEXT|>", "<|START_RESPONSE|>",
                                            "<|END_RESPONSE|>", NULL };
static const char *const gigachat_noise[] = { "<|message_sep|>", NULL };
static const char *const minimax_noise[] = { "</mm:think>", NULL };
#define M3 "]<]minimax[>["                      /* precedes every tag */

/* In the order in which they are tried: the most specific marker first. */
const struct tool_format tool_formats[] = {
    { .name = "gpt-oss", .needles = { "<|channel|>", "<|message|>" }, .style = TOOL_NAMED, .section = "",
      .open = "<|channel|>commentary to=functions.",
      .before_arguments = " <|constrain|>json<|message|>", .close = "<|call|>", .between = "<|start|>assistant",
      .section_end = "" , .think = "<|channel|>analysis<|message|>", .think_end = "<|end|>",
      .text_open = "<|channel|>final<|message|>", .next_part = "<|start|>assistant", .noise = channel_noise,
      .single = 1 },
    { .name = "solar", .needles = { "<|tool_call:begin|>", "<|tool_call:args|>" }, .style = TOOL_NAMED,
      .section = "<|tool_calls|>", .open = "<|tool_call:begin|>", .id_close = "<|tool_call:name|>",
      .before_arguments = "<|tool_call:args|>", .close = "<|tool_call:end|>", .between = "", .section_end = "",
      .think = "<|think|>", .think_end = "<|end|>", .text_open = "<|content|>", .next_part = "<|begin|>assistant",
      .noise = solar_noise },
    { .name = "cohere", .needles = { "<|START_ACTION|>" }, .style = TOOL_JSON_LIST, .section = "",
      .open = "<|START_ACTION|>", .close = "<|END_ACTION|>", .between = ",\n    ", .section_end = "",
      .arguments = "parameters", .name_key = "tool_name", .id_key = "tool_call_id", .list_open = "[\n    ",
      .list_close = "\n]", .think = "<|START_THINKING|>", .think_end = "<|END_THINKING|>", .noise = cohere_noise },
    { .name = "apertus", .needles = { "<|tools_prefix|>" }, .style = TOOL_JSON_LIST, .section = "",
      .open = "<|tools_prefix|>", .close = "<|tools_suffix|>", .between = "", .section_end = "",
      .think = "<|inner_prefix|>", .think_end = "<|inner_suffix|>" },
    /* the template puts ":opensource" into every marker */
    { .name = "hunyuan-v3", .needles = { "<tool_sep{}>", "':opensource'" }, .style = TOOL_TAGS,
      .section = "<tool_calls:opensource>\n", .open = "<tool_call:opensource>",
      .before_arguments = "<tool_sep:opensource>\n", .close = "</tool_call:opensource>\n", .between = "",
      .section_end = "</tool_calls:opensource>", .key_open = "<arg_key:opensource>",
      .key_close = "</arg_key:opensource>\n<arg_value:opensource>", .value_close = "</arg_value:opensource>\n",
      .think = "<think:opensource>", .think_end = "</think:opensource>" },
    { .name = "gigachat", .needles = { "<|function_call|>", "<|role_sep|>" }, .style = TOOL_JSON, .section = "",
      .open = "<|function_call|>", .close = "", .between = "", .section_end = "", .arguments = "arguments",
      .noise = gigachat_noise, .single = 1 },
    { .name = "gigachat-3", .needles = { "'function call'", "<|role_sep|>" }, .style = TOOL_JSON, .section = "",
      .open = "function call<|role_sep|>\n", .close = "", .between = "", .section_end = "", .arguments = "arguments",
      .noise = gigachat_noise, .single = 1 },
    { .name = "deepseek-v3.2", .needles = { "DSML", "function_calls" }, .style = TOOL_TAGS,
      .section = "<｜DSML｜function_calls>\n", .open = "<｜DSML｜invoke name=\"", .before_arguments = "\">\n",
      .close = "</｜DSML｜invoke>\n", .between = "", .section_end = "</｜DSML｜function_calls>",
      .key_open = "<｜DSML｜parameter name=\"", .key_close = "\" string=\"true\">",
      .key_close_json = "\" string=\"false\">", .value_close = "</｜DSML｜parameter>\n" },
    { .name = "deepseek-v4", .needles = { "DSML", "tool_calls>" }, .style = TOOL_TAGS,
      .section = "<｜DSML｜tool_calls>\n", .open = "<｜DSML｜invoke name=\"", .before_arguments = "\">\n",
      .close = "</｜DSML｜invoke>\n", .between = "", .section_end = "</｜DSML｜tool_calls>",
      .key_open = "<｜DSML｜parameter name=\"", .key_close = "\" string=\"true\">",
      .key_close_json = "\" string=\"false\">", .value_close = "</｜DSML｜parameter>\n" },
    { .name = "minimax-m2", .needles = { "<minimax:tool_call>", "<parameter name=" }, .style = TOOL_TAGS,
      .section = "<minimax:tool_call>\n", .open = "<invoke name=\"", .before_arguments = "\">\n",
      .close = "</invoke>\n", .between = "", .section_end = "</minimax:tool_call>",
      .key_open = "<parameter name=\"", .key_close = "\">", .value_close = "</parameter>\n" },
    /* Answers without reasoning begin with the end of it. */
    { .name = "minimax-m3", .needles = { "]<]minimax[>[", "<invoke name=" }, .style = TOOL_ELEMENTS,
      .section = M3 "<tool_call>\n", .open = M3 "<invoke name=\"", .before_arguments = "\">",
      .close = M3 "</invoke>\n", .between = "", .section_end = M3 "</tool_call>",
      .key_open = M3 "<", .key_close = ">", .value_close = M3 "</", .think = "<mm:think>",
      .think_end = "</mm:think>", .noise = minimax_noise },
    { .name = "gemma4", .needles = { "<|tool_call>", "<tool_call|>" }, .style = TOOL_QUOTED, .section = "",
      .open = "<|tool_call>call:", .before_arguments = "{", .close = "<tool_call|>", .between = "", .section_end = "",
      .value_close = "<|\"|>", .think = "<|channel>thought", .think_end = "<channel|>" },
    { .name = "lfm2", .needles = { "<|tool_call_start|>" }, .style = TOOL_PYTHON, .section = "",
      .open = "<|tool_call_start|>", .before_arguments = "(", .close = "<|tool_call_end|>", .between = "",
      .section_end = "" },
    { .name = "lfm2", .needles = { "<|tool_list_start|>" }, .style = TOOL_PYTHON, .section = "",
      .open = "<|tool_call_start|>", .before_arguments = "(", .close = "<|tool_call_end|>", .between = "",
      .section_end = "" },
    { .name = "kimi-k2", .needles = { "<|tool_calls_section_begin|>" }, .style = TOOL_NAMED,
      .section = "<|tool_calls_section_begin|>", .open = "<|tool_call_begin|>functions.",
      .before_arguments = "<|tool_call_argument_begin|>", .close = "<|tool_call_end|>", .between = "",
      .section_end = "<|tool_calls_section_end|>" },
    { .name = "deepseek-r1", .needles = { "<｜tool▁calls▁begin｜>", "```json" }, .style = TOOL_NAMED,
      .section = "<｜tool▁calls▁begin｜>", .open = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
      .before_arguments = "\n```json\n", .close = "\n```<｜tool▁call▁end｜>", .between = "\n",
      .section_end = "<｜tool▁calls▁end｜>" },
    { .name = "deepseek-v3.1", .needles = { "<｜tool▁calls▁begin｜>" }, .style = TOOL_NAMED,
      .section = "<｜tool▁calls▁begin｜>", .open = "<｜tool▁call▁begin｜>",
      .before_arguments = "<｜tool▁sep｜>", .close = "<｜tool▁call▁end｜>", .between = "",
      .section_end = "<｜tool▁calls▁end｜>" },
    { .name = "mistral-args", .needles = { "[TOOL_CALLS]", "[ARGS]" }, .style = TOOL_NAMED, .section = "",
      .open = "[TOOL_CALLS]", .before_arguments = "[ARGS]", .close = "", .between = "", .section_end = "",
      .think = "[THINK]", .think_end = "[/THINK]" },
    { .name = "mistral", .needles = { "[TOOL_CALLS]" }, .style = TOOL_JSON_LIST, .section = "", .open = "[TOOL_CALLS]",
      .close = "", .between = "", .section_end = "", .arguments = "arguments" },
    { .name = "functionary-3.2", .needles = { ">>>all" }, .style = TOOL_NAMED, .section = "", .open = ">>>",
      .before_arguments = "\n", .close = "", .between = "", .section_end = "" },
    { .name = "seed-oss", .needles = { "<seed:tool_call>", "<parameter=" }, .style = TOOL_TAGS, .section = "",
      .open = "<seed:tool_call>\n<function=", .before_arguments = ">\n", .close = "</function>\n</seed:tool_call>",
      .between = "\n", .section_end = "", .key_open = "<parameter=", .key_close = ">", .value_close = "</parameter>\n",
      .think = "<seed:think>", .think_end = "</seed:think>" },
    { .name = "qwen3-coder", .needles = { "<function=", "<parameter=" }, .style = TOOL_TAGS, .section = "",
      .open = "<tool_call>\n<function=", .before_arguments = ">\n", .close = "</function>\n</tool_call>",
      .between = "\n", .section_end = "", .key_open = "<parameter=", .key_close = ">\n",
      .value_close = "\n</parameter>\n" },
    { .name = "functionary-3.1", .needles = { "<function=" }, .style = TOOL_NAMED, .section = "", .open = "<function=",
      .before_arguments = ">", .close = "</function>", .between = "", .section_end = "" },
    { .name = "glm-4.7", .needles = { "</arg_key><arg_value>" }, .style = TOOL_TAGS, .section = "",
      .open = "<tool_call>", .before_arguments = "", .close = "</tool_call>", .between = "", .section_end = "",
      .key_open = "<arg_key>", .key_close = "</arg_key><arg_value>", .value_close = "</arg_value>" },
    { .name = "glm", .needles = { "<arg_key>" }, .style = TOOL_TAGS, .section = "", .open = "<tool_call>",
      .before_arguments = "\n", .close = "</tool_call>", .between = "\n", .section_end = "",
      .key_open = "<arg_key>", .key_close = "</arg_key>\n<arg_value>", .value_close = "</arg_value>\n" },
    { .name = "granite-3", .needles = { "<|tool_call|>" }, .style = TOOL_JSON_LIST, .section = "",
      .open = "<|tool_call|>", .close = "", .between = "", .section_end = "", .arguments = "arguments" },
    { .name = "apriel", .needles = { "<tool_calls>[" }, .style = TOOL_JSON_LIST, .section = "",
      .open = "<tool_calls>", .close = "</tool_calls>", .between = "", .section_end = "", .arguments = "arguments" },
    { .name = "nemotron", .needles = { "<TOOLCALL>" }, .style = TOOL_JSON_LIST, .section = "", .open = "<TOOLCALL>",
      .close = "</TOOLCALL>", .between = "", .section_end = "", .arguments = "arguments" },
    { .name = "llama3", .needles = { "\"parameters\": ", "<|start_header_id|>" }, .style = TOOL_JSON, .section = "",
      .open = "<|python_tag|>", .close = "", .between = "; ", .section_end = "", .arguments = "parameters" },
    { .name = "hermes", .needles = { "<tool_call>" }, .style = TOOL_JSON, .section = "", .open = "<tool_call>\n",
      .close = "\n</tool_call>", .between = "\n", .section_end = "", .arguments = "arguments" },
    { .name = "json", .needles = { NULL }, .style = TOOL_JSON, .section = "", .open = "", .close = "", .between = "\n",
      .section_end = "", .arguments = "arguments" },
};
const int n_tool_formats = sizeof tool_formats / sizeof *tool_formats;

const struct tool_format *tool_format_detect(const char *text, size_t size)
{
    for (int i = 0; text && i < n_tool_formats; i++) {
        int all = tool_formats[i].needles[0] != NULL;
        for (int k = 0; k < 3 && tool_formats[i].needles[k]; k++)
            all &= memmem(text, size, tool_formats[i].needles[k], strlen(tool_formats[i].needles[k])) != NULL;
        /* the Hermes template for Llama 3 speaks of "parameters", too */
        if (all && !strcmp(tool_formats[i].name, "llama3") && memmem(text, size, "<tool_call>", 11))
            all = 0;
        if (all)
            return &tool_formats[i];
    }
    return &tool_formats[n_tool_formats - 1];
}

int tool_format_has_channels(const struct tool_format *f) { return f->think != NULL; }

int tool_format_begun(const struct tool_format *f, const char *prompt, size_t size)
{
    const char *open = f->think ? f->think : "<think>";
    const size_t n = strlen(open);
    while (size && strchr(" \t\r\n", prompt[size - 1]) && prompt[size - 1])
        size--;
    return size >= n && memcmp(prompt + size - n, open, n) == 0;
}

int tool_format_has_short_ids(const struct tool_format *f) { return strncmp(f->name, "mistral", 7) == 0; }
const char *tool_format_name(const struct tool_format *f) { return f->name; }
