/* fields.c - the table of all fields of request bodies, and the parser that it drives. */
#include "libcommon/serve/fields.h"
#include "libcommon/tools/round.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"

/* ---- harmless values of refused fields ---- */

static int is_empty(const json_t *v)
{
    return (json_is_array(v) && json_array_size(v) == 0) || (json_is_object(v) && json_object_size(v) == 0);
}
static int is_false(const json_t *v) { return json_is_false(v); }
static int is_empty_text(const json_t *v) { return json_is_string(v) && json_string_length(v) == 0; }

static int is_word(const json_t *v, const char *word)
{
    return json_is_string(v) && strcmp(json_string_value(v), word) == 0;
}
static int no_tool(const json_t *v) { return is_word(v, "none") || is_word(v, "auto"); }
static int only_text(const json_t *v)
{
    return json_is_array(v) && json_array_size(v) == 1 && is_word(json_array_get(v, 0), "text");
}

static int is_true(const json_t *v) { return json_is_true(v); }
static int is_one(const json_t *v) { return json_is_number(v) && json_number_value(v) == 1; }
static int is_zero(const json_t *v) { return json_is_integer(v) && json_integer_value(v) == 0; }
/* "auto" allows to cut the prompt, but does not require it */
static int not_truncated(const json_t *v) { return is_word(v, "disabled") || is_word(v, "auto"); }
static int only_encrypted(const json_t *v)
{
    size_t n = json_array_size(v), i = 0;
    while (i < n && is_word(json_array_get(v, i), "reasoning.encrypted_content"))
        i++;
    return json_is_array(v) && i == n;          /* without effect: not every response has such content */
}
/* ---- the table ---- */

#define GENERATE (BODY_CHAT | BODY_COMPLETION | BODY_WS_CHAT | BODY_RESPONSES | BODY_MESSAGES)
#define API (BODY_CHAT | BODY_COMPLETION)
#define STREAMED (API | BODY_RESPONSES | BODY_MESSAGES)
#define ANTHROPIC (BODY_MESSAGES | BODY_COUNT)
#define BODY_RAG (BODY_RAG_SEARCH | BODY_RAG_CONTEXT)
#define CONVERSATION (BODY_CONVERSATION | BODY_CONVERSATION_EDIT)
/* bodies that may name tools of the server */
#define TOOLED (BODY_CHAT | BODY_WS_CHAT | BODY_RESPONSES | BODY_MESSAGES)
#define ALL_TOOLS "\"server\": all tools of /api/tools, which the server runs; or "
#define AT(field) offsetof(struct params, field)
#define SAMPLING(field) (offsetof(struct params, sampling) + offsetof(struct sampling, field))
#define FIELD_OF_REAL FIELD_REAL
#define FIELD_OF_WHOLE FIELD_INT
#define WHOLE(name, where, min, max, at, given, about) \
    { name, where, FIELD_USED, FIELD_INT, min, max, at, given, NULL, about, NULL }
#define TRUTH(name, where, at, about) { name, where, FIELD_USED, FIELD_BOOL, 0, 0, at, 0, NULL, about, NULL }
#define TEXT(name, where, at, about) { name, where, FIELD_USED, FIELD_STRING, 0, 0, at, 0, NULL, about, NULL }
#define OTHER(name, where, schema, about) { name, where, FIELD_USED, FIELD_OTHER, 0, 0, 0, 0, schema, about, NULL }
#define IGNORED(name, where, about) { name, where, FIELD_IGNORED, FIELD_OTHER, 0, 0, 0, 0, NULL, about, NULL }
#define REFUSED(name, where, harmless, about) \
    { name, where, FIELD_REFUSED, FIELD_OTHER, 0, 0, 0, 0, NULL, about, harmless }

#define STRINGS "{\"type\":\"array\",\"items\":{\"type\":\"string\"}}"
#define NO_AUDIO "text in, text out"

const struct field fields[] = {
    TEXT("model", STREAMED | BODY_COUNT | EMBEDS | BODY_TOKENIZE | BODY_DETOKENIZE | BODY_TEMPLATE |
         BODY_WS_CHAT | BODY_BATCHING | BODY_LORA_LOAD | OLLAMA_TEXT, AT(model), "id of a loaded model, \"default\", or left out: the first"),
    OTHER("messages", BODY_CHAT | BODY_TEMPLATE | BODY_WS_CHAT | BODY_TOKENIZE,
          "{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"object\",\"required\":[\"role\"]}}",
          "the conversation; content is text or a list of text parts"),
    OTHER("messages", ANTHROPIC, "{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"object\",\"required\":[\"role\",\"content\"]}}",
          "the conversation; content is text or a list of blocks: text, thinking, tool_use, tool_result"),
    OTHER("system", ANTHROPIC, "{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"array\",\"items\":{\"type\":\"object\"}}]}", "the system prompt: text or text blocks"),
    OTHER("input", BODY_RESPONSES, "{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"object\"}}]}",
          "text, or the whole conversation as items: message, function_call, function_call_output, reasoning"),
    TEXT("instructions", BODY_RESPONSES, AT(instructions), "the system prompt"),
    OTHER("prompt", BODY_COMPLETION, "{\"oneOf\":[{\"type\":\"string\"}," STRINGS
          ",{\"type\":\"array\",\"items\":{\"type\":\"integer\"}},"
          "{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}}]}",
          "text, token ids, or a list of either"),
    OTHER("input", BODY_EMBEDDING, "{\"oneOf\":[{\"type\":\"string\"}," STRINGS
          ",{\"type\":\"array\",\"items\":{\"type\":\"integer\"}},"
          "{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}}]}",
          "text, token ids, or a list of either"),
    OTHER("content", BODY_TOKENIZE, "{\"type\":\"string\"}", "the text; the answer is {tokens, count}"),
    OTHER("prompt", BODY_TOKENIZE, "{\"type\":\"string\"}",
          "the text, in vLLM's form, as are messages: the answer is {count, max_model_len, tokens, token_strs}"),
    TRUTH("return_token_strs", BODY_TOKENIZE, AT(token_strs),
          "of prompt and messages: return the tokens as the vocabulary has them, too (default: false)"),
    OTHER("tokens", BODY_DETOKENIZE, "{\"type\":\"array\",\"items\":{\"type\":\"integer\"}}", "token ids"),
    TRUTH("add_special", BODY_TOKENIZE, AT(add_special), "of content: add BOS, EOS and all other tokens that the tokenizer adds"),
    TRUTH("parse_special", BODY_TOKENIZE, AT(parse_special),
          "of content: the texts of special tokens become those tokens (default: true)"),
    TRUTH("with_pieces", BODY_TOKENIZE, AT(with_pieces), "of content: return objects {id, piece} instead of ids"),
    TRUTH("add_generation_prompt", BODY_CHAT | BODY_TEMPLATE | BODY_TOKENIZE, AT(add_generation_prompt),
          "end the prompt of messages with the beginning of the answer (default: true)"),
    TRUTH("continue_final_message", BODY_CHAT | BODY_TEMPLATE | BODY_TOKENIZE, AT(continues),
          "the answer continues the last message, which is the assistant's (default: false)"),
    TRUTH("add_special_tokens", API | BODY_TOKENIZE, AT(add_special_tokens),
          "add BOS and all other tokens that the tokenizer adds to a text (default: true, of messages false: the template has them)"),
    TRUTH("skip_special_tokens", API, AT(skip_special_tokens), "leave special tokens out of the answer's text (default: true)"),
    OTHER("chat_template_kwargs", BODY_CHAT | BODY_TEMPLATE | BODY_TOKENIZE | BODY_WS_CHAT | BODY_RESPONSES | ANTHROPIC,
          "{\"type\":\"object\"}", "variables for the chat template, such as enable_thinking"),
    OTHER("reasoning_effort", BODY_CHAT | BODY_TEMPLATE | BODY_WS_CHAT,
          "{\"type\":\"string\",\"enum\":[\"none\",\"minimal\",\"low\",\"medium\",\"high\",\"xhigh\",\"max\"]}",
          "goes to the chat template under this name; none also sets enable_thinking to false"),
    OTHER("reasoning", BODY_CHAT | BODY_RESPONSES, "{\"type\":\"object\",\"properties\":{\"effort\":{\"type\":[\"string\",\"null\"]}}}",
          "effort: same as reasoning_effort; other members are ignored"),
    OTHER("verbosity", BODY_CHAT, "{\"type\":\"string\"}", "low, medium or high: goes to the chat template under this name"),

#define OPTION(KIND, name, flag, min, max, value, by_model, help) \
    { #name, GENERATE | BODY_OLLAMA_OPTIONS, FIELD_USED, FIELD_OF_##KIND, min, max, SAMPLING(name), 0, NULL, help, \
      NULL },
#include "libcommon/engine/sampling.def"
#undef OPTION
    OTHER("dry_sequence_breakers", GENERATE, STRINGS,
          "at most 16 texts of at most 40 bytes that end repetitions for DRY (default: a line's end, \":\", \"\\\"\", \"*\")"),
    OTHER("logit_bias", GENERATE, "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"number\",\"minimum\":-100,\"maximum\":100}}",
          "token id to the number added to its logit; -100 bans it"),
    { "seed", GENERATE | BODY_OLLAMA_OPTIONS, FIELD_USED, FIELD_DOUBLE, -0x1p53, 0x1p53, AT(seed), GIVEN_SEED, NULL,
      "the same seed gives the same answer; choice i takes seed + i (default: random)", NULL },
    WHOLE("max_output_tokens", BODY_RESPONSES, 1, INT_MAX, AT(max_tokens), GIVEN_MAX_TOKENS,
          "most tokens of an answer"),
    WHOLE("max_tokens", GENERATE & ~BODY_RESPONSES, 0, INT_MAX, AT(max_tokens), GIVEN_MAX_TOKENS,
          "most tokens of an answer"),
    WHOLE("max_completion_tokens", BODY_CHAT, 1, INT_MAX, AT(max_completion_tokens), GIVEN_MAX_COMPLETION_TOKENS,
          "another name of max_tokens; expected one of the two"),
    WHOLE("n", API, 1, 128, AT(n), GIVEN_N, "number of answers to each prompt"),
    OTHER("stop_sequences", BODY_MESSAGES, STRINGS,
          "at most 16 texts of at most 1024 bytes; the answer ends before them, and stop_sequence is the text"),
    OTHER("stop", GENERATE & ~BODY_MESSAGES, "{\"oneOf\":[{\"type\":\"string\"}," STRINGS "]}",
          "at most 16 texts of at most 1024 bytes; the answer ends before them"),
    TRUTH("stream", STREAMED | BODY_WS_CHAT, AT(stream), "send server-sent events as tokens are generated"),
    OTHER("stream_options", API, "{\"type\":\"object\",\"properties\":{\"include_usage\":{\"type\":\"boolean\"},\"continuous_usage_stats\":{\"type\":\"boolean\"}}}",
          "include_usage: send a last event with the counts; continuous_usage_stats: with it, also in every event those so far"),
    { "logprobs", BODY_CHAT, FIELD_USED, FIELD_BOOL, 0, 0, AT(logprobs), 0, NULL,
      "log probabilities of the tokens", NULL },
    WHOLE("logprobs", BODY_COMPLETION, 0, MAX_TOP_LOGPROBS, AT(logprobs_count), GIVEN_LOGPROBS,
          "log probabilities of the tokens, and of this many most likely ones"),
    WHOLE("top_logprobs", BODY_CHAT, 0, MAX_TOP_LOGPROBS, AT(top_logprobs), GIVEN_TOP_LOGPROBS,
          "log probabilities of this many most likely tokens; needs logprobs"),
    TRUTH("echo", BODY_COMPLETION, AT(echo), "return the prompt before the answer"),
    TRUTH("ignore_eos", GENERATE, AT(ignore_eos), "continue after the end of the answer"),
    OTHER("stop_token_ids", GENERATE, "{\"type\":\"array\",\"maxItems\":128,\"items\":{\"type\":\"integer\",\"minimum\":0}}",
          "at most 128 ids of tokens; the answer ends before them, with ignore_eos, too"),
    WHOLE("min_tokens", GENERATE, 0, INT_MAX, AT(min_tokens), 0,
          "the answer does not end before it has so many tokens, unless its grammar is complete"),
    WHOLE("priority", GENERATE, -1000, 1000, AT(priority), 0, "requests with a higher number go first"),
    WHOLE("best_of", BODY_COMPLETION, 1, 128, AT(best_of), 0, "the same as n: there is no search for the best"),
    TEXT("encoding_format", BODY_EMBEDDING, AT(encoding_format), "float or base64"),
    WHOLE("dimensions", BODY_EMBEDDING, 1, INT_MAX, AT(dimensions), 0,
          "cut vectors to this many numbers, scaled to length 1 again"),
    TEXT("input_type", BODY_EMBEDDING, AT(input_type),
         "query or document: the model's prompt for it, if it has one, is put before each text"),
    TEXT("prompt_name", BODY_EMBEDDING, AT(prompt_name),
         "name of a prompt of the model (zse-info lists them) that is put before each text; \"\": none"),
    WHOLE("truncate_prompt_tokens", EMBEDS, -1, INT_MAX, AT(truncate), 0,
          "cut longer texts to this many tokens; -1: to as many as the model takes (default: refuse them)"),

#define ONE_OR_MORE "{\"oneOf\":[{\"type\":\"string\"}," STRINGS "]}"
    OTHER("query", BODY_RERANK, "{\"type\":\"string\"}", "the query"),
    OTHER("documents", BODY_RERANK, "{\"type\":\"array\",\"items\":{\"oneOf\":[{\"type\":\"string\"},{\"type\":\"object\",\"required\":[\"text\"]}]}}",
          "texts, or objects with a text"),
    WHOLE("top_n", BODY_RERANK, 1, INT_MAX, AT(top_n), 0,
          "number of documents returned, the best first (default: all)"),
    TRUTH("return_documents", BODY_RERANK, AT(return_documents), "the texts come back with their scores (default: false)"),
    OTHER("text_1", BODY_SCORE, ONE_OR_MORE, "a text, or as many as text_2"),
    OTHER("text_2", BODY_SCORE, ONE_OR_MORE, "a text or several"),
    TEXT("instruction", BODY_RERANK | BODY_SCORE, AT(instructions),
         "of a language model that is asked for yes or no: the task (default: web search)"),

    TEXT("user", API | BODY_RESPONSES | EMBEDS | BODY_WS_CHAT, AT(user), "kept in /api/analytics/requests"),
    OTHER("metadata", BODY_RESPONSES, "{\"type\":\"object\",\"additionalProperties\":{\"type\":\"string\"}}",
          "returned in the answer"),
    IGNORED("metadata", (STREAMED & ~BODY_RESPONSES) | BODY_WS_CHAT, "cannot change the answer"),
    IGNORED("store", BODY_CHAT, "cannot change the answer; nothing is stored"),
    TRUTH("store", BODY_RESPONSES, AT(store), "keep the response for a day, for previous_response_id and GET /v1/responses/ID (default: true)"),
    TEXT("previous_response_id", BODY_RESPONSES, AT(previous_response_id),
         "a response that is kept: input follows its input and output; instructions and tools are not taken from it"),
    TEXT("safety_identifier", BODY_RESPONSES, AT(safety_identifier), "returned in the answer"),
    TEXT("prompt_cache_key", BODY_RESPONSES, AT(prompt_cache_key), "returned in the answer"),
    TEXT("type", BODY_RESPONSES, AT(event), "of a message over a WebSocket: response.create"),
    IGNORED("service_tier", BODY_CHAT | BODY_RESPONSES | BODY_MESSAGES, "cannot change the answer"),
    IGNORED("prompt_cache_key", API, "cannot change the answer"),
    IGNORED("prompt_cache_retention", API | BODY_RESPONSES, "cannot change the answer"),
    IGNORED("safety_identifier", API, "cannot change the answer"),
    OTHER("prediction", BODY_CHAT, "{\"type\":\"object\",\"required\":[\"type\",\"content\"]}",
          "{type: content, content: text or text parts}: a text that much of the answer is expected to repeat, at most 1 MiB; the same answer comes sooner if it does"),
    OTHER("speculative", GENERATE, "{\"type\":\"object\",\"properties\":{\"method\":{\"enum\":[\"auto\",\"draft\",\"ngram\",\"off\"]},\"max_tokens\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":15},"
          "\"exact\":{\"enum\":[\"tokens\",\"distribution\"]}}}",
          "how next tokens are guessed, for the same answer sooner: method (default: that of --spec); max_tokens: most of a guess (default: 15); exact: tokens or distribution (default: that of --spec-exact)"),
    IGNORED("cache_prompt", API | BODY_WS_CHAT, "prefixes are always kept; cannot change the answer"),

    OTHER("stream_options", BODY_RESPONSES, "{\"type\":\"object\"}", "include_obfuscation: ignored"),
    OTHER("tools", BODY_RESPONSES, "{\"oneOf\":[{\"const\":\"server\"},{\"type\":\"array\",\"items\":{\"type\":\"object\",\"required\":[\"type\",\"name\"]}}]}",
          ALL_TOOLS "functions that the model may call: {type: function, name, description, parameters}; parameters is a JSON Schema, which calls obey"),
    OTHER("tools", ANTHROPIC, "{\"oneOf\":[{\"const\":\"server\"},{\"type\":\"array\",\"items\":{\"type\":\"object\",\"required\":[\"name\",\"input_schema\"]}}]}",
          ALL_TOOLS "functions that the model may call: {name, description, input_schema}; input_schema is a JSON Schema, which calls obey"),
    OTHER("tool_choice", BODY_RESPONSES, "{\"oneOf\":[{\"enum\":[\"none\",\"auto\",\"required\"]},{\"type\":\"object\"}]}", "none, auto, required, {type: function, name}: this one, or {type: allowed_tools, mode: auto or required, tools: [{type: function, name}]}: of these"),
    OTHER("tool_choice", ANTHROPIC, "{\"type\":\"object\",\"required\":[\"type\"]}",
          "{type: auto, any, none, or tool with a name; disable_parallel_tool_use: one call in an answer}"),
    OTHER("text", BODY_RESPONSES, "{\"type\":\"object\"}", "format: {type: text}, {type: json_object}, or {type: json_schema, name, schema}: the answer satisfies the schema, strict or not"),
    OTHER("output_config", ANTHROPIC, "{\"type\":\"object\"}",
          "format: {type: json_schema, schema}: the answer satisfies the schema"),
    OTHER("thinking", ANTHROPIC, "{\"type\":\"object\",\"required\":[\"type\"]}",
          "{type: enabled, adaptive or disabled} goes to the template as enable_thinking; budget_tokens is no limit of its own: max_tokens counts all (default: disabled)"),
    OTHER("tools", BODY_CHAT | BODY_TEMPLATE | BODY_WS_CHAT | BODY_TOKENIZE, "{\"oneOf\":[{\"const\":\"server\"},{\"type\":\"array\",\"items\":{\"type\":\"object\",\"required\":[\"type\",\"function\"]}}]}",
          ALL_TOOLS "functions that the model may call: {type: function, function: {name, description, parameters}}; parameters is a JSON Schema, which calls obey"),
    OTHER("rag", BODY_CHAT, "{\"oneOf\":[{\"type\":\"boolean\"},{\"type\":\"object\",\"properties\":{\"collections\":{},\"document_ids\":{},\"top_k\":{\"type\":\"integer\"},\"max_tokens\":{\"type\":\"integer\"},\"min_score\":{\"type\":\"number\"},\"mode\":{\"type\":\"string\"},\"rerank\":{\"type\":\"boolean\"}}}]}",
          "search the key's documents (/api/rag) for the last message, put passages before it, and return citations; true: all documents"),
    OTHER("server_tools", TOOLED | BODY_TEMPLATE | BODY_COUNT, STRINGS,
          "tools of /api/tools that the server runs: names, with * at the end for all that begin so"),
    OTHER("confirmed_tools", TOOLED, STRINGS,
          "tools that need a confirmation and may run without; names as in server_tools"),
    WHOLE("max_tool_rounds", TOOLED, 1, ROUNDS_MAX, AT(max_tool_rounds), 0,
          "answers in a row whose calls the server runs (default: 8)"),
    OTHER("tool_choice", BODY_CHAT | BODY_WS_CHAT | BODY_OLLAMA_CHAT, "{\"oneOf\":[{\"enum\":[\"none\",\"auto\",\"required\"]},{\"type\":\"object\"}]}",
          "none, auto, required, {type: function, function: {name}}: this one, or {type: allowed_tools, allowed_tools: {mode: auto or required, tools}}: of these"),
    TRUTH("parallel_tool_calls", BODY_CHAT | BODY_RESPONSES | BODY_WS_CHAT, AT(parallel_calls),
          "more than one call in an answer (default: true)"),
    OTHER("response_format", API, "{\"type\":\"object\",\"required\":[\"type\"]}",
          "{type: text}, {type: json_object}, or {type: json_schema, json_schema: {name, schema}}: the answer satisfies the schema, strict or not"),
    OTHER("structured_outputs", API, "{\"type\":\"object\",\"properties\":{\"json\":{},\"regex\":{\"type\":\"string\"},\"choice\":" STRINGS ",\"grammar\":{\"type\":\"string\"},\"json_object\":{\"type\":\"boolean\"}}}",
          "vLLM's form of response_format, regex and grammar: {json: a schema}, {regex}, {choice: texts}, {grammar} or {json_object: true}"),
    OTHER("guided_json", API, "{\"oneOf\":[{\"type\":\"object\"},{\"type\":\"string\"}]}", "vLLM's older name of structured_outputs.json"),
    OTHER("guided_regex", API, "{\"type\":\"string\"}", "vLLM's older name of regex"),
    OTHER("guided_choice", API, STRINGS, "vLLM's older name of structured_outputs.choice: the answer is one of these texts"),
    OTHER("guided_grammar", API, "{\"type\":\"string\"}", "vLLM's older name of grammar"),
    IGNORED("guided_decoding_backend", API, "there is one decoder"),
    OTHER("grammar", STREAMED, "{\"type\":\"string\"}", "the answer follows these rules (GBNF)"),
    OTHER("regex", STREAMED, "{\"type\":\"string\"}", "the whole answer matches this regular expression"),

    WHOLE("max_tool_calls", BODY_RESPONSES, 1, INT_MAX, AT(max_tool_calls), 0,
          "calls that the server runs for an answer (default: as many as its rounds have)"),
    IGNORED("cache_control", ANTHROPIC, "prefixes are always kept; cannot change the answer"),
    REFUSED("conversation", BODY_RESPONSES, NULL, "there are no stored conversations: use previous_response_id"),
    REFUSED("prompt", BODY_RESPONSES, NULL, "no prompts are stored"),
    REFUSED("background", BODY_RESPONSES, is_false, "wait for the answer, or stream it"),
    REFUSED("include", BODY_RESPONSES, only_encrypted, "not available"),
    REFUSED("truncation", BODY_RESPONSES, not_truncated, "a prompt that does not fit is refused"),
    REFUSED("top_logprobs", BODY_RESPONSES, is_zero, "use /v1/chat/completions"),
    REFUSED("container", BODY_MESSAGES, NULL, "there are no containers"),
    REFUSED("mcp_servers", BODY_MESSAGES, is_empty, "the server calls no other servers"),
    REFUSED("context_management", BODY_MESSAGES | BODY_RESPONSES, is_empty, "a prompt that does not fit is refused"),
    REFUSED("functions", BODY_CHAT, is_empty, "the old name of tools"),
    REFUSED("function_call", BODY_CHAT, no_tool, "the old name of tool_choice"),
    REFUSED("json_schema", API, is_empty, "use response_format"),
    REFUSED("modalities", BODY_CHAT, only_text, NO_AUDIO),
    REFUSED("audio", BODY_CHAT, NULL, NO_AUDIO),
    REFUSED("web_search_options", BODY_CHAT, NULL, "there is no search"),
    REFUSED("suffix", BODY_COMPLETION, is_empty_text,
            "filling in before a suffix is not available"),
    REFUSED("use_beam_search", API, is_false, "there is no beam search"),
    REFUSED("length_penalty", API, is_one, "there is no beam search"),
    REFUSED("early_stopping", API, is_false, "there is no beam search"),
    REFUSED("bad_words", API, is_empty, "not available: logit_bias bans tokens"),
    REFUSED("allowed_token_ids", API, is_empty, "not available: regex and grammar limit answers"),
    REFUSED("include_stop_str_in_output", API, is_false, "an answer ends before the stop text"),
    REFUSED("spaces_between_special_tokens", API, is_true, "special tokens are written without blanks"),
    REFUSED("prompt_logprobs", API, NULL, "use echo and logprobs of /v1/completions"),
    REFUSED("return_tokens_as_token_ids", API, is_false, "tokens are returned as texts"),
    REFUSED("return_token_ids", API, is_false, "use /tokenize"),
    REFUSED("truncate_prompt_tokens", API, NULL, "a prompt that does not fit is refused"),
    REFUSED("echo", BODY_CHAT, is_false, "the answer is the new text alone"),
    REFUSED("chat_template", BODY_CHAT | BODY_TOKENIZE, is_empty_text, "the model's own template is used"),
    REFUSED("documents", BODY_CHAT, is_empty, "use rag"),
    REFUSED("mm_processor_kwargs", API | BODY_TOKENIZE, is_empty, NO_AUDIO),
    REFUSED("prompt_embeds", BODY_COMPLETION, NULL, NO_AUDIO),
    IGNORED("request_id", API, "cannot change the answer; the header X-Request-Id names a request"),

#define KEEP_ALIVE "{\"oneOf\":[{\"type\":\"number\"},{\"type\":\"string\"}]}"
#define THINK "{\"oneOf\":[{\"type\":\"boolean\"},{\"enum\":[\"high\",\"medium\",\"low\"]}]}"
#define FORMAT "{\"oneOf\":[{\"enum\":[\"\",\"json\"]},{\"type\":\"object\"}]}"
    OTHER("messages", BODY_OLLAMA_CHAT, "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"required\":[\"role\"]}}",
          "the conversation: {role, content, thinking, tool_calls, tool_name}; none: only load the model"),
    OTHER("tools", BODY_OLLAMA_CHAT, "{\"type\":\"array\",\"items\":{\"type\":\"object\",\"required\":[\"type\",\"function\"]}}",
          "functions that the model may call: {type: function, function: {name, description, parameters}}"),
    OTHER("prompt", BODY_OLLAMA_GENERATE, "{\"type\":\"string\"}",
          "the user's message, or with raw the whole prompt; none: only load the model"),
    OTHER("system", BODY_OLLAMA_GENERATE, "{\"type\":\"string\"}", "the system prompt"),
    TRUTH("raw", BODY_OLLAMA_GENERATE, AT(raw), "prompt goes to the model as it is, without the chat template"),
    TRUTH("stream", OLLAMA_TEXT, AT(stream), "send lines of JSON as tokens are generated (default: true)"),
    OTHER("format", OLLAMA_TEXT, FORMAT, "\"json\", or a JSON Schema that the answer satisfies"),
    OTHER("think", OLLAMA_TEXT, THINK,
          "whether the model reasons first; goes to the template as enable_thinking, a level also as reasoning_effort"),
    OTHER("options", OLLAMA_CALLS, "{\"type\":\"object\"}",
          "temperature, top_k, top_p, min_p, typical_p, repeat_penalty, repeat_last_n, presence_penalty, frequency_penalty, seed, num_predict (0 or less: no limit), stop; others are ignored"),
    OTHER("keep_alive", OLLAMA_CALLS, KEEP_ALIVE,
          "how long a named model stays loaded after this request: seconds, or \"5m\"; negative: forever; if no other client uses it (default: --keep-alive)"),
    REFUSED("images", BODY_OLLAMA_GENERATE, is_empty, "no model here sees images"),
    REFUSED("context", BODY_OLLAMA_GENERATE, is_empty, "conversations are those of /api/chat"),
    REFUSED("template", BODY_OLLAMA_GENERATE, is_empty_text, "the model's own template is used; raw takes a whole prompt"),
    REFUSED("suffix", BODY_OLLAMA_GENERATE, is_empty_text, "filling in before a suffix is not available"),
    OTHER("input", BODY_OLLAMA_EMBED, "{\"oneOf\":[{\"type\":\"string\"}," STRINGS "]}", "a text or several"),
    OTHER("prompt", BODY_OLLAMA_EMBEDDINGS, "{\"type\":\"string\"}", "the text"),
    TRUTH("truncate", BODY_OLLAMA_EMBED, AT(truncates), "cut texts that do not fit (default: true); false: refuse them"),
    WHOLE("dimensions", BODY_OLLAMA_EMBED, 1, INT_MAX, AT(dimensions), 0,
          "cut vectors to this many numbers, scaled to length 1 again"),
    { "repeat_penalty", BODY_OLLAMA_OPTIONS, FIELD_USED, FIELD_REAL, 0.01, 100, SAMPLING(repetition_penalty), 0, NULL,
      "repetition penalty", NULL },
    WHOLE("num_predict", BODY_OLLAMA_OPTIONS, INT_MIN, INT_MAX, AT(max_tokens), GIVEN_MAX_TOKENS,
          "most tokens of an answer; 0 or less: no limit"),
    OTHER("stop", BODY_OLLAMA_OPTIONS, STRINGS, "texts that end the answer"),
    TEXT("model", BODY_OLLAMA_MODEL | BODY_OLLAMA_PULL, AT(model), "the model's name"),
    TEXT("name", BODY_OLLAMA_MODEL | BODY_OLLAMA_PULL, AT(name), "the old name of model"),
    TRUTH("verbose", BODY_OLLAMA_MODEL, AT(verbose), "of show: also the model's configuration"),
    TRUTH("stream", BODY_OLLAMA_PULL, AT(stream), "send lines of JSON with the progress (default: true)"),
    IGNORED("insecure", BODY_OLLAMA_PULL, "cannot change the answer"),
    TEXT("source", BODY_OLLAMA_COPY, AT(source), "the model's name"),
    TEXT("destination", BODY_OLLAMA_COPY, AT(destination), "the new name, an alias"),

    TEXT("model_name", BODY_LOAD, AT(model_name),
         "id of the model (default: from the file's name); without model_path, its path"),
    TEXT("model_path", BODY_LOAD, AT(model_path), "a .zse, a GGUF file or a Hugging Face folder on the server"),
    TEXT("quantization", BODY_LOAD, AT(quantization),
         "the type to convert a GGUF file or a folder to: nl4, int4, int8, fp16 ...; auto: as stored"),
    { "target_vram_gb", BODY_LOAD, FIELD_USED, FIELD_REAL, 0, 1e6, AT(target_gb), 0, NULL,
      "memory that the weights may take, in GB: a folder or GGUF file becomes the finest type that fits; 0: no limit",
      NULL },
    TEXT("device", BODY_LOAD, AT(device), "auto, cpu, cuda or cuda:N (default: --device)"),
    TEXT("kind", BODY_JOB, AT(kind),
         "convert (default): download if it is on the hub, and make a .zse of it; download: only fetch it"),
    TEXT("source", BODY_JOB, AT(source),
         "org/name, org/name@revision or org/name:FILE on the hub; or a path on the server, which begins with / or ."),
    TEXT("name", BODY_JOB, AT(name), "of the new model (default: from the source and the type)"),
    TEXT("quantization", BODY_JOB, AT(quantization), "its type, as for zse-convert -q (default: nl4)"),
    TEXT("quality", BODY_JOB, AT(quality), "fast, good (default) or best: the effort of rounding"),
    { "target_gb", BODY_JOB, FIELD_USED, FIELD_REAL, 0, 1e6, AT(target_gb), 0, NULL,
      "size of the weights in GB: alone, the finest type that fits; with quantization mixed, 2 to 8 bits a tensor", NULL },
    TRUTH("load", BODY_JOB, AT(load), "load the model when it is made (default: false)"),
    TEXT("model_id", BODY_UNLOAD, AT(model_id), "id of a loaded model"),
    TEXT("lora_name", BODY_LORA_LOAD | BODY_LORA_UNLOAD, AT(lora_name), "the name by which requests choose the adapter"),
    TEXT("lora_path", BODY_LORA_LOAD, AT(lora_path), "a folder written by PEFT, below the one of --lora-dir"),
    TRUTH("load_inplace", BODY_LORA_LOAD, AT(load_inplace), "replace an adapter of this name (default: false)"),
    IGNORED("lora_int_id", BODY_LORA_UNLOAD, "adapters are found by their names"),
    WHOLE("max_batch_size", BODY_BATCHING, 1, 4096, AT(max_running), 0, "requests that run together"),
    TEXT("name", BODY_KEY, AT(name), "name of the new key: 1 to 64 letters, digits, and . _ - @"),
    WHOLE("rate_limit", BODY_KEY, 0, INT_MAX, AT(rate_limit), 0, "requests a minute; 0: any number"),
    WHOLE("token_limit_minute", BODY_KEY, 0, INT_MAX, AT(token_limit_minute), 0,
          "tokens of prompts and answers a minute; 0: any number"),
    WHOLE("token_limit_day", BODY_KEY, 0, INT_MAX, AT(token_limit_day), 0, "the same in 24 hours"),
    { "expires_at", BODY_KEY, FIELD_USED, FIELD_DOUBLE, 0, 0x1p52, AT(expires_at), 0, NULL,
      "whole seconds since 1970; 0: never", NULL },
    TEXT("scopes", BODY_KEY, AT(scopes), "chat, embeddings, models, admin, with commas between (default: chat,embeddings)"),
    TEXT("models", BODY_KEY, AT(models), "globs of the models it may use, with commas between; \"\": all"),
    { "enabled", BODY_ENABLE, FIELD_USED, FIELD_BOOL, 0, 0, AT(enabled), 0, NULL,
      "of a key: whether requests may use it; of /api/keys/auth: whether requests need a key", NULL },
    OTHER("file", BODY_RAG_UPLOAD, "{\"type\":\"string\",\"format\":\"binary\"}", "the file, with its name"),
    TEXT("name", BODY_RAG_UPLOAD, AT(name), "name of the document (default: that of the file); never a path of the server"),
    TEXT("file_type", BODY_RAG_UPLOAD, AT(file_type),
         "txt, md, html, json, pdf, docx, odt or epub (default: by the ending of the name)"),
    OTHER("metadata", BODY_RAG_UPLOAD, "{\"type\":\"string\"}",
          "a JSON object that is returned with the document; at most 16 KB"),
    TEXT("name", BODY_RAG_DOCUMENT, AT(name), "name of the document, as citations show it; never a path of the server"),
    TEXT("content", BODY_RAG_DOCUMENT, AT(content), "the text"),
    TEXT("file_type", BODY_RAG_DOCUMENT, AT(file_type),
         "txt, md, html or json (default: by the ending of the name, else txt)"),
    TEXT("collection", BODY_RAG_DOCUMENT | BODY_RAG_UPLOAD, AT(collection), "1 to 64 bytes (default: \"default\")"),
    OTHER("metadata", BODY_RAG_DOCUMENT, "{\"type\":\"object\"}", "returned with the document; at most 16 KB"),
    TEXT("query", BODY_RAG, AT(query), "a question or words"),
    WHOLE("top_k", BODY_RAG, 1, 100, AT(rag_top_k), 0, "number of passages, at most (default: 5; of a context 3)"),
    { "min_score", BODY_RAG, FIELD_USED, FIELD_REAL, 0, 1, AT(min_score), 0, NULL,
      "leave out passages whose score by their own relevance is lower (default: 0)", NULL },
    OTHER("document_ids", BODY_RAG, STRINGS, "search these documents only"),
    OTHER("collections", BODY_RAG, "{\"oneOf\":[{\"type\":\"string\"}," STRINGS "]}",
          "search these collections only (default: all of the key)"),
    TEXT("mode", BODY_RAG, AT(mode), "hybrid, bm25 or vector (default: hybrid)"),
    TRUTH("rerank", BODY_RAG, AT(rerank), "let the reranker of the server order the passages (default: true)"),
    WHOLE("max_tokens", BODY_RAG_CONTEXT, 1, 1000000, AT(rag_max_tokens), 0,
          "most tokens of the context (default: 1000)"),
    OTHER("title", CONVERSATION, "{\"type\":[\"string\",\"null\"]}",
          "at most 512 bytes (default: the beginning of the first question)"),
    OTHER("model", CONVERSATION, "{\"type\":[\"string\",\"null\"]}", "id of its model"),
    OTHER("system_prompt", CONVERSATION, "{\"type\":[\"string\",\"null\"]}", "at most 1 MiB"),
    OTHER("settings", CONVERSATION, "{\"type\":[\"object\",\"null\"]}", "anything of the client's, at most 64 KiB"),
    OTHER("folder", CONVERSATION, "{\"type\":[\"string\",\"null\"]}", "at most 256 bytes"),
    OTHER("tags", CONVERSATION, "{\"type\":[\"array\",\"null\"],\"items\":{\"type\":\"string\"}}",
          "at most 32 texts of at most 64 bytes"),
    OTHER("pinned", CONVERSATION, "{\"type\":[\"boolean\",\"null\"]}", "listed first"),
    OTHER("active_leaf", BODY_CONVERSATION_EDIT, "{\"type\":\"integer\"}",
          "id of the message at the end of the branch that is shown"),
    OTHER("role", BODY_CHAT_MESSAGE, "{\"enum\":[\"user\",\"assistant\",\"system\",\"tool\"]}", "the author"),
    OTHER("content", BODY_CHAT_MESSAGE | BODY_CHAT_MESSAGE_EDIT, "{\"type\":\"string\"}", "at most 4 MiB"),
    OTHER("parent_id", BODY_CHAT_MESSAGE, "{\"type\":[\"integer\",\"null\"]}",
          "the message before it (default: the active leaf); null: none"),
    OTHER("tokens", BODY_CHAT_MESSAGE | BODY_CHAT_MESSAGE_EDIT, "{\"type\":[\"integer\",\"null\"]}",
          "number of its tokens"),
    OTHER("latency_ms", BODY_CHAT_MESSAGE | BODY_CHAT_MESSAGE_EDIT, "{\"type\":[\"number\",\"null\"]}",
          "time that it took to generate"),
    OTHER("metadata", BODY_CHAT_MESSAGE | BODY_CHAT_MESSAGE_EDIT, "{\"type\":[\"object\",\"null\"]}",
          "anything of the client's, at most 256 KiB"),
    OTHER("format", BODY_CHAT_IMPORT, "{\"enum\":[\"zse-chat\",\"json\",\"markdown\",\"chatgpt\",\"open-webui\",\"lm-studio\"]}",
          "zse-chat: the body is an exported file; json, markdown: content has one; chatgpt, open-webui, lm-studio: conversation is one of their export"),
    OTHER("version", BODY_CHAT_IMPORT, "{\"type\":\"integer\"}", "of the format"),
    OTHER("conversation", BODY_CHAT_IMPORT, "{\"type\":\"object\"}", "the conversation"),
    OTHER("messages", BODY_CHAT_IMPORT, "{\"type\":\"array\",\"items\":{\"type\":\"object\"}}", "its messages, by id"),
    OTHER("content", BODY_CHAT_IMPORT, "{\"type\":\"string\"}", "an exported file"),
    OTHER("filename", BODY_CHAT_IMPORT, "{\"type\":\"string\"}", "as in an exported conversation; ignored"),
    WHOLE("chunk", BODY_BATCHING, 0, INT_MAX, AT(chunk), 0,
          "tokens of prompts in a step with running answers; 0: as many as keep their pace"),
    TEXT("name", BODY_TOOL, AT(name), "a tool of /api/tools"),
    OTHER("arguments", BODY_TOOL, "{\"type\":\"object\"}", "its arguments, as its parameters describe them"),
    TEXT("tool_call_id", BODY_TOOL, AT(tool_call_id), "returned in the answer (default: a new one)"),
    TRUTH("confirm", BODY_TOOL, AT(confirm), "run a tool that needs a confirmation"),
    OTHER("content", BODY_TOOL_PARSE | BODY_TOOL_PROCESS, "{\"type\":\"string\"}", "the text of a model"),
    TRUTH("auto_execute", BODY_TOOL_PROCESS, AT(auto_execute), "run the calls (default: true)"),
    OTHER("jsonrpc", BODY_MCP, "{\"const\":\"2.0\"}", "the version of JSON-RPC"),
    OTHER("id", BODY_MCP, "{\"type\":[\"string\",\"integer\"]}", "of a request; returned in the answer"),
    OTHER("method", BODY_MCP, "{\"type\":\"string\"}", "initialize, server/discover, tools/list, tools/call, ..."),
    OTHER("params", BODY_MCP, "{\"type\":\"object\"}", "parameters of the method"),
    WHOLE("max_tokens_per_batch", BODY_BATCHING, 0, INT_MAX, AT(step_tokens), 0,
          "most tokens of a step, of prompts and answers; 0: as many as memory was allocated for"),
    WHOLE("max_queue", BODY_BATCHING, 0, INT_MAX, AT(max_waiting), 0, "requests that may wait; 0: any number"),
};
const int n_fields = sizeof fields / sizeof *fields;

/* ---- parsing ---- */

const struct field *fields_find(const char *name, size_t n, body_set kind)
{
    for (int i = 0; i < n_fields; i++)
        if (fields[i].bodies & kind && strncmp(fields[i].name, name, n) == 0 && !fields[i].name[n])
            return &fields[i];
    return NULL;
}

/* Write v with the fewest digits that read back as v. */
static const char *plain(char out[32], double v)
{
    if (fabs(v) < 1e15 && v == floor(v)) {
        snprintf(out, 32, "%.0f", v);
        return out;
    }
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, 32, "%.*g", digits, v);
        if (strtod(out, NULL) == v)
            break;
    }
    return out;
}

static int out_of_range(const struct field *f, double v, struct problem *pr)
{
    char a[32], b[32], c[32];
    return problem_set(pr, 400, f->name, "out_of_range", "%s: %s is not in the range %s to %s", f->name, plain(a, v),
                       plain(b, f->min), plain(c, f->max));
}

static int parse_number(const struct field *f, const json_t *v, struct params *p, struct problem *pr)
{
    char *to = (char *)p + f->at;
    char text[32];
    double x = json_number_value(v);
    if (!json_is_number(v))
        return problem_set(pr, 400, f->name, "invalid_type", "%s: found %s, expected a number", f->name, js_kind(v));
    if (!(x >= f->min && x <= f->max))
        return out_of_range(f, x, pr);
    if (f->type != FIELD_REAL && x != floor(x))
        return problem_set(pr, 400, f->name, "invalid_type", "%s: %s is not a whole number", f->name, plain(text, x));
    if (f->type == FIELD_INT)
        *(int *)to = (int)x;
    else if (f->type == FIELD_DOUBLE)
        *(double *)to = x;
    else
        *(float *)to = (float)x;
    return 0;
}

static int parse_field(const struct field *f, const json_t *v, struct params *p, struct problem *pr)
{
    if (f->use == FIELD_IGNORED || f->type == FIELD_OTHER) {
        if (f->use == FIELD_REFUSED && !(f->harmless && f->harmless(v)))
            return problem_set(pr, 400, f->name, "unsupported_parameter", "%s: %s", f->name, f->about);
        return 0;
    }
    p->given |= f->given;
    switch (f->type) {
    case FIELD_BOOL:
        if (!json_is_boolean(v))
            return problem_set(pr, 400, f->name, "invalid_type", "%s: found %s, expected true or false", f->name,
                               js_kind(v));
        *(int *)((char *)p + f->at) = json_is_true(v);
        return 0;
    case FIELD_STRING:
        if (!json_is_string(v) || strlen(json_string_value(v)) != json_string_length(v))
            return problem_set(pr, 400, f->name, "invalid_type", "%s: found %s, expected a string", f->name,
                               json_is_string(v) ? "a zero byte" : js_kind(v));
        *(const char **)((char *)p + f->at) = json_string_value(v);
        return 0;
    default:
        return parse_number(f, v, p, pr);
    }
}

static int too_many(struct problem *pr)
{
    return problem_set(pr, 400, NULL, "unknown_parameter", "the body: more than %d unknown fields", MAX_UNKNOWN);
}

/* Append a name to the list, with '?' in place of the characters that a header or the list cannot
 * have. */
static void add_ignored(struct ignored_names *ig, const char *parent, const char *name)
{
    static const char others[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.$";
    enum { LONGEST = 80 };
    char text[2 * LONGEST];
    snprintf(text, sizeof text, "%.*s%s%.*s", LONGEST / 2, parent ? parent : "", parent ? "." : "", LONGEST, name);
    for (size_t i = strspn(text, others); text[i]; i += strspn(text + i, others))
        text[i++] = '?';
    const size_t size = strlen(ig->list);
    if (size + strlen(text) + 3 < sizeof ig->list)
        snprintf(ig->list + size, sizeof ig->list - size, "%s%s", size ? ", " : "", text);
}

int fields_unknown(struct ignored_names *ig, const char *parent, const char *name, struct problem *pr)
{
    if (!ig || !ig->tolerant)
        return problem_set(pr, 400, parent ? parent : name, "unknown_parameter", "%s%s%.80s: no such field",
                           parent ? parent : "", parent ? ": " : "", name);
    if (++ig->n > MAX_UNKNOWN)
        return too_many(pr);
    add_ignored(ig, parent, name);
    return 0;
}

int fields_parse(const json_t *body, body_set kind, struct params *p, struct problem *pr)
{
    const char *name;
    json_t *v;
    int n_unknown = 0;
    if (!json_is_object(body))
        return problem_set(pr, 400, NULL, "invalid_type", "the body: found %s, expected an object", js_kind(body));
    union { const json_t *in; json_t *out; } u = { .in = body }; /* jansson's iterators take no pointers to const */
    json_object_foreach(u.out, name, v) {
        const struct field *f = fields_find(name, strlen(name), kind);
        if (!f && kind & OLLAMA && ++n_unknown > MAX_UNKNOWN)
            return too_many(pr);
        if (!f && !(kind & OLLAMA) && fields_unknown(&p->ignored, NULL, name, pr) != 0)
            return -1;
        if (f && !json_is_null(v) && parse_field(f, v, p, pr) != 0)
            return -1;
    }
    return 0;
}
