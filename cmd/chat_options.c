/* chat_options.c - parse the command line of zse-chat. */
#include "cmd/zse-chat.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/random.h>
#include <unistd.h>

#include "cmd/cli.h"
#include "libcommon/base/json.h"

static const char prog[] = "zse-chat";
static const char usage_begin[] =
    "usage: zse-chat [OPTIONS] [MODEL [PROMPT...]]\n"
    "Talk with a model, or answer one prompt: from -p, or from standard input if that is no terminal.\n"
    "MODEL is a .zse, a GGUF file, a Hugging Face folder, the name of a model here, or org/name on the hub\n"
    "(default: $ZSE_MODEL, else the default of zse-info models). With -m, all arguments are the PROMPT;\n"
    "in it, @FILE stands for a text file.\n"
    "\n"
    "      --url URL              talk with a server that has OpenAI's API, like http://127.0.0.1:8000\n"
    "      --key KEY              its API key (default: $ZSE_API_KEY, else $OPENAI_API_KEY, which ps does not show)\n"
    "      --rag COLLECTION       with --url: answer from this collection of the server's documents, * for all; can be given again\n"
    "      --tools NAMES          let the model call these tools, separated by commas: calculator, datetime, parse_json,\n"
    "                             string_ops, SERVER__TOOL of an MCP server (* at the end: any that begin so), or all\n"
    "      --mcp-config FILE      start or connect to the MCP servers of FILE (mcpServers) and offer their tools\n"
    "      --allow-tools NAMES    run these without a question; others that change something are asked about, or refused in a pipe\n"
    "      --yes                  run any tool without a question\n"
    "  -m, --model MODEL          the model to use, with --url its id there (default: the first that the server lists)\n"
    "\n"
    "  -p, --prompt TEXT          answer TEXT, followed by what is piped in, and end; -: standard input alone\n"
    "  -f, --file FILE            put this text file before the prompt, or before the first question; can be given again\n"
    "  -c, --continue[=ID]        continue the last conversation, or the one whose id begins with ID\n"
    "      --history              list recorded conversations; with TEXT in MODEL's place: those with these words\n"
    "      --no-history           do not record the conversation\n"
    "      --session DIR          keep keys and values in this folder, so that the next call with it computes only what is new\n"
    "      --batch FILE           one prompt a line (-: standard input), answered together; one line each in order\n"
    "      --embed[=KIND]         a vector for each line of standard input, as JSON lines; KIND: query or document, for models that distinguish\n"
    "      --parallel N           how many of a batch run together (default: 8)\n"
    "  -s, --system TEXT          system message\n"
    "  -t, --prompt-template TEMPLATE  put the prompt, or each question, into this file of $ZSE_HOME/templates\n"
    "      --param NAME=VALUE     the value of $NAME in the template; can be given again\n"
    "      --list-templates       print the names of the prompt templates\n"
    "      --raw                  use the prompt unchanged, without the chat template\n"
    "      --template FILE        use another chat template (Jinja)\n"
    "      --no-wrap              on a terminal, do not break the lines of answers between words\n"
    "      --on-full drop|stop    a conversation that fills the context: drop the oldest turns, or refuse the next one (default: drop)\n"
    "      --no-think             ask the template for an answer without thinking (enable_thinking = false)\n"
    "      --json-schema FILE     the answer is a JSON document of this schema\n"
    "      --grammar FILE         the answer follows the rules of this grammar (GBNF)\n"
    "      --regex RE             the answer matches this regular expression as a whole\n"
    "      --json                 a JSON object instead of text\n"
    "      --ids                  the ids of the answer's tokens as a JSON array; with --json: as well\n"
    "\n"
    "  -n, --max-tokens N         tokens of an answer (default: 1024); 0: until the context is full\n";
/* between these two texts, usage prints the sampling options */
static const char usage_end[] =
    "      --dry-sequence-breaker TEXT  DRY: TEXT ends repetitions, instead of line ends, ':', '\"' and '*'; can be given again; '': none\n"
    "      --logit-bias ID=X      add X to the logit of token ID (also -inf); can be given again\n"
    "      --seed N               seed of the random numbers (default: random)\n"
    "      --stop TEXT            end the answer before TEXT; can be given again\n"
    "      --ignore-eos           continue after the end of the answer\n"
    "Without these: the model's generation_config, else --temp 0.8 --top-k 40 --top-p 0.95 --min-p 0.05.\n"
    "\n"
#include "cmd/quantize_help.inc"
    RUN_HELP
    STREAM_HELP
    SPEC_HELP
    "      --lora [NAME=]DIR      answer with this LoRA adapter, a folder written by PEFT\n"
    MEMORY_HELP
    "      --plan                 print the memory it would take and the expected speed, and exit; 1 if it does not fit\n"
    "\n"
    CLI_DEFAULTS_HELP
    "  -h, --help                 show this help\n"
    "  -V, --version              show the version\n"
    "In a conversation: /help lists the commands, \\ at the end of a line continues it, Ctrl-C stops an answer.\n";

enum { OPT_URL = 280, OPT_KEY, OPT_HISTORY, OPT_NO_HISTORY, OPT_RAG, OPT_TOOLS, OPT_MCP, OPT_ALLOW, OPT_YES,
       OPT_SESSION,
       OPT_PARAM, OPT_LIST_TEMPLATES,
       OPT_BATCH = 300, OPT_EMBED, OPT_PARALLEL, OPT_RAW,
       OPT_TEMPLATE, OPT_NO_THINK, OPT_JSON, OPT_IDS,
       OPT_BIAS, OPT_SEED, OPT_STOP, OPT_BREAKER, OPT_IGNORE_EOS, OPT_SCHEMA,
       OPT_GRAMMAR, OPT_REGEX, OPT_PLAN,
       OPT_ON_FULL, OPT_NO_WRAP,
       OPT_SAMPLING };

enum { SEED_GIVEN = 1 << N_SAMPLING_OPTIONS };

static const struct option options[] = {
    { "url", required_argument, NULL, OPT_URL }, { "key", required_argument, NULL, OPT_KEY },
        { "model", required_argument, NULL, 'm' }, { "rag", required_argument, NULL, OPT_RAG },
    { "tools", required_argument, NULL, OPT_TOOLS }, { "mcp-config", required_argument, NULL, OPT_MCP },
    { "allow-tools", required_argument, NULL, OPT_ALLOW }, { "yes", no_argument, NULL, OPT_YES },
    { "continue", optional_argument, NULL, 'c' }, { "history", no_argument, NULL, OPT_HISTORY },
    { "no-history", no_argument, NULL, OPT_NO_HISTORY },
    { "session", required_argument, NULL, OPT_SESSION },
    { "prompt", required_argument, NULL, 'p' }, { "file", required_argument, NULL, 'f' },
        { "batch", required_argument, NULL, OPT_BATCH },
    { "embed", optional_argument, NULL, OPT_EMBED }, { "parallel", required_argument, NULL, OPT_PARALLEL },
    { "system", required_argument, NULL, 's' }, { "raw", no_argument, NULL, OPT_RAW },
    { "template", required_argument, NULL, OPT_TEMPLATE }, { "prompt-template", required_argument, NULL, 't' },
    { "param", required_argument, NULL, OPT_PARAM }, { "list-templates", no_argument, NULL, OPT_LIST_TEMPLATES },
    { "on-full", required_argument, NULL, OPT_ON_FULL }, { "no-think", no_argument, NULL, OPT_NO_THINK },
    { "no-wrap", no_argument, NULL, OPT_NO_WRAP },
    { "json-schema", required_argument, NULL, OPT_SCHEMA },
    { "grammar", required_argument, NULL, OPT_GRAMMAR }, { "regex", required_argument, NULL, OPT_REGEX },
    { "json", no_argument, NULL, OPT_JSON }, { "plan", no_argument, NULL, OPT_PLAN },
    { "ids", no_argument, NULL, OPT_IDS },
    { "max-tokens", required_argument, NULL, 'n' },
#define OPTION(KIND, name, flag, ...) { flag, required_argument, NULL, OPT_SAMPLING + SAMPLING_##name },
#include "libcommon/engine/sampling.def"
#undef OPTION
    { "dry-sequence-breaker", required_argument, NULL, OPT_BREAKER },
    { "logit-bias", required_argument, NULL, OPT_BIAS }, { "seed", required_argument, NULL, OPT_SEED },
    { "stop", required_argument, NULL, OPT_STOP },
    { "ignore-eos", no_argument, NULL, OPT_IGNORE_EOS }, RUN_LONG_OPTIONS, SPEC_LONG_OPTIONS,
    LORA_LONG_OPTION,
    STREAM_LONG_OPTIONS, MEMORY_LONG_OPTION,
    CLI_DEFAULTS_OPTION, { "help", no_argument, NULL, 'h' }, { "version", no_argument, NULL, 'V' }, { NULL, 0, NULL, 0 },
};

/* --help: the usage texts with a line for each sampling option between them. */
static const char *usage(void)
{
    static char text[sizeof usage_begin + sizeof usage_end + N_SAMPLING_OPTIONS * 192];
    size_t n = (size_t)snprintf(text, sizeof text, "%s", usage_begin);
    for (int i = 0; i < N_SAMPLING_OPTIONS; i++) {
        const struct sampling_option *o = &sampling_options[i];
        n += (size_t)snprintf(text + n, sizeof text - n, "      --%s %-*s  %s (default: %s%g)\n", o->flag,
                              18 - (int)strlen(o->flag), o->is_whole ? "N" : "X", o->help,
                              o->by_model ? "the model's, else " : "", o->value);
    }
    snprintf(text + n, sizeof text - n, "%s", usage_end);
    return text;
}

static int parse_number(struct chat_options *o, int i, const char *arg)
{
    const struct sampling_option *d = &sampling_options[i];
    char name[40];
    long long whole = 0;
    double v = 0;
    snprintf(name, sizeof name, "--%s", d->flag);
    if (d->is_whole ? cli_parse_int(prog, name, arg, (long long)d->min, (long long)d->max, &whole)
                    : cli_parse_float(prog, name, arg, d->min, d->max, &v))
        return CLI_USAGE;
    sampling_set(&o->sampling, d, d->is_whole ? (double)whole : v);
    o->given |= 1u << i;
    return 0;
}

static int parse_bias(struct chat_options *o, const char *arg)
{
    char *end, *end2;
    errno = 0;
    long id = strtol(arg, &end, 10);
    double bias = *end == '=' ? strtod(end + 1, &end2) : 0;
    if (errno || end == arg || *end != '=' || end2 == end + 1 || *end2 || id < 0 || id > INT32_MAX || isnan(bias) ||
        bias > 1e30)
        return cli_wrong(prog, "--logit-bias: '%s', expected ID=X, like 42=-1.5 or 42=-inf", arg);
    o->bias[o->sampling.n_bias++] = (struct logit_bias){ (int32_t)id, (float)bias };
    return 0;
}

static int parse_breaker(struct chat_options *o, const char *arg)
{
    struct sampling *s = &o->sampling;
    s->dry_sequence_breakers = o->breaker;
    if (!*arg)
        return 0;
    if (strlen(arg) > DRY_BREAKER_BYTES || s->n_dry_sequence_breakers == DRY_MAX_BREAKERS)
        return cli_wrong(prog, "--dry-sequence-breaker: '%s', expected at most %d texts of at most %d bytes", arg,
                         DRY_MAX_BREAKERS, DRY_BREAKER_BYTES);
    o->breaker[s->n_dry_sequence_breakers++] = arg;
    return 0;
}

static int parse_whole(const char *name, const char *arg, long long min, long long max, int *out)
{
    long long v;
    if (cli_parse_int(prog, name, arg, min, max, &v) != 0)
        return CLI_USAGE;
    *out = (int)v;
    return 0;
}

static int parse_seed(struct chat_options *o, const char *arg)
{
    long long v;
    if (cli_parse_int(prog, "--seed", arg, 0, INT64_MAX, &v) != 0)
        return CLI_USAGE;
    o->sampling.seed = (uint64_t)v;
    o->given |= SEED_GIVEN;
    return 0;
}

static int parse_on_full(struct chat_options *o, const char *arg)
{
    o->stop_when_full = strcmp(arg, "stop") == 0;
    return o->stop_when_full || strcmp(arg, "drop") == 0
               ? 0 : cli_wrong(prog, "--on-full: '%s', expected drop or stop", arg);
}

int chat_options_set(struct chat_options *o, const char *name, const char *value)
{
    for (int i = 0; i < N_SAMPLING_OPTIONS; i++)
        if (strcmp(name, sampling_options[i].flag) == 0)
            return parse_number(o, i, value) == 0 ? 0 : -1;
    if (strcmp(name, "seed") == 0)
        return parse_seed(o, value) == 0 ? 0 : -1;
    if (strcmp(name, "max-tokens") == 0)
        return parse_whole("max-tokens", value, 0, INT32_MAX, &o->max_tokens) == 0 ? 0 : -1;
    cli_note(prog, "/set: there is no '%s'; /set alone lists what there is", name);
    return -1;
}

/* Handle one option: 0, or the exit code of wrong usage. */
static int take(struct chat_options *o, int c, const char *arg)
{
    if (c >= OPT_SAMPLING && c < OPT_SAMPLING + N_SAMPLING_OPTIONS)
        return parse_number(o, c - OPT_SAMPLING, arg);
    switch (c) {
    case OPT_URL: o->url = arg; return 0;
    case OPT_KEY: o->key = arg; return 0;
    case OPT_RAG:
        if (o->n_rag == MAX_RAG)
            return cli_wrong(prog, "--rag: expected at most %d collections", MAX_RAG);
        o->rag[o->n_rag++] = arg;
        return 0;
    case OPT_TOOLS: o->tools = arg; return 0;
    case OPT_MCP: o->mcp_config = arg; return 0;
    case OPT_ALLOW: o->allow_tools = arg; return 0;
    case OPT_YES: o->yes = 1; return 0;
    case 'm': o->model = arg; return 0;
    case OPT_SESSION:
        o->run.prefix_folder = arg;
        o->run.prefix_prog = prog;
        return *arg ? 0 : cli_wrong(prog, "--session: expected a folder");
    case 'c': o->reopen = arg ? arg : ""; return 0;
    case OPT_HISTORY: o->list_history = 1; return 0;
    case OPT_NO_HISTORY: o->no_history = 1; return 0;
    case 'p': o->prompt = arg; return 0;
    case 'f': o->file[o->n_files++] = arg; return 0;
    case 's': o->system = arg; return 0;
    case 't': o->template_name = arg; return 0;
    case OPT_PARAM: o->param[o->n_params++] = arg; return 0;
    case 'n':
        o->most_given = 1;
        return parse_whole("--max-tokens", arg, 0, INT32_MAX, &o->max_tokens);
    case OPT_BATCH: o->batch = arg; return 0;
    case OPT_EMBED:
        o->embed = arg ? arg : "";
        o->run.spec = SPEC_OFF;
        o->run.embeds = 1;
        return !arg || strcmp(arg, "query") == 0 || strcmp(arg, "document") == 0
               ? 0 : cli_wrong(prog, "--embed: '%s', expected query or document", arg);
    case OPT_PARALLEL: return parse_whole("--parallel", arg, 1, 4096, &o->parallel);
    case OPT_RAW: o->raw = 1; return 0;
    case OPT_TEMPLATE: o->template_file = arg; return 0;
    case OPT_NO_THINK: o->no_think = 1; return 0;
    case OPT_NO_WRAP: o->no_wrap = 1; return 0;
    case OPT_ON_FULL: return parse_on_full(o, arg);
    case OPT_SCHEMA: o->schema_file = arg; return 0;
    case OPT_GRAMMAR: o->grammar_file = arg; return 0;
    case OPT_REGEX: o->regex = arg; return 0;
    case OPT_JSON: o->json = 1; return 0;
    case OPT_IDS: o->ids = 1; return 0;
    case OPT_PLAN: o->plan = 1; return 0;
    case OPT_BIAS: return parse_bias(o, arg);
    case OPT_BREAKER: return parse_breaker(o, arg);
    case OPT_SEED: return parse_seed(o, arg);
    case OPT_STOP: o->stop[o->n_stop++] = arg; return 0;
    case OPT_IGNORE_EOS: o->ignore_eos = 1; return 0;
    default: return run_option(prog, c, arg, &o->run);
    }
}

/* Refuse options that a request to a server cannot express. */
static int check_url(struct chat_options *o)
{
    const struct run_options *r = &o->run;
    const struct { int given; const char *name; } not_sent[] = {
        { r->type != NULL, "--quantize" }, { r->mode.given, "--mode" }, { r->verbose, "--verbose" },
            { r->threads, "--threads" }, { r->ctx, "--ctx" }, { r->kv_given, "--kv" },
            { r->kernels != NULL, "--kernels" },
        { r->gpus_text != NULL, "--gpus" }, { r->split_text != NULL, "--pp-split" }, { r->tp, "--tp" },
        { r->device != NULL, "--device" }, { r->gpu_layers_given, "--gpu-layers" }, { r->strict, "--strict" },
        { r->stream_given, "--layer-window" }, { r->prefetch_given, "--prefetch" }, { r->max_device != 0, "--max-device" },
        { r->moe_given, "--moe" }, { r->experts_given, "--gpu-experts" },
        { r->threshold_given, "--gpu-prefill-threshold" }, { r->no_gpu_prefill, "--no-gpu-prefill" },
        { r->uploads_given, "--expert-uploads" },
        { r->graphs_given, "--cuda-graphs" }, { r->act_given, "--act" }, { r->cache_given, "--cache-weights" },
        { r->exact, "--exact" }, { r->max_memory != 0, "--max-memory" }, { o->template_file != NULL, "--template" },
        { o->ids, "--ids" }, { o->plan, "--plan" }, { r->force, "--force" },
        { r->spec_given, "--spec" }, { r->exact_given, "--spec-exact" },
    };
    for (size_t i = 0; i < sizeof not_sent / sizeof *not_sent; i++)
        if (not_sent[i].given)
            return cli_wrong(prog, "%s: the server decides that, it cannot be used with --url", not_sent[i].name);
    if (strncasecmp(o->url, "http://", 7) != 0 && strncasecmp(o->url, "https://", 8) != 0)
        return cli_wrong(prog, "--url: '%s', expected http://HOST:PORT or https://HOST", o->url);
    o->key = cli_api_key(o->key);
    o->ca_file = cli_ca_file();
    if (o->key && strpbrk(o->key, "\r\n"))
        return cli_wrong(prog, "--key: it has more than one line");
    if (o->key)
        cli_hide_memory();
    return 0;
}

/* Check the options of --history, which needs no model: an argument in its place is the text to
 * search for. */
static int check_history(struct chat_options *o)
{
    o->query = o->model;
    return o->reopen || o->prompt || o->batch || o->url || o->plan || o->n_files
               ? cli_wrong(prog, "--history lists conversations: it takes only --json and a TEXT") : 0;
}

static int check_tools(const struct chat_options *o)
{
    if (!o->tools && !o->mcp_config)
        return o->allow_tools || o->yes ? cli_wrong(prog, "%s needs --tools or --mcp-config", o->yes ? "--yes" : "--allow-tools")
                                        : 0;
    const char *other = o->batch ? "--batch" : o->raw ? "--raw" : o->ids ? "--ids" : o->schema_file ? "--json-schema" :
                        o->grammar_file ? "--grammar" : o->regex ? "--regex" : o->ignore_eos ? "--ignore-eos" :
                        o->plan ? "--plan" : NULL;
    return other ? cli_wrong(prog, "%s cannot be used with --tools and --mcp-config", other) : 0;
}

/* Whether the model can be chosen from a list, before a conversation. */
static int may_choose(const struct chat_options *o)
{
    return !o->prompt && !o->batch && !o->plan && !o->embed && isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
}

/* -t is for prompts that are rendered, one at a time. */
static int check_template(const struct chat_options *o)
{
    const char *other = o->batch ? "--batch" : o->raw ? "--raw" : o->embed ? "--embed" : o->plan ? "--plan" :
                        o->list_history ? "--history" : NULL;
    return o->template_name && other ? cli_wrong(prog, "-t: not with %s", other) : 0;
}

/* --embed makes no answers: refuse what is for them. */
static int check_embed(const struct chat_options *o)
{
    const struct sampling *s = &o->sampling;
    const struct { int given; const char *name; } other[] = {
        { o->list_history, "--history" }, { o->raw, "--raw" }, { o->template_file != NULL, "--template" },
        { o->no_think, "--no-think" }, { o->run.prefix_folder != NULL, "--session" }, { o->n_rag, "--rag" },
        { o->given || s->n_bias || s->dry_sequence_breakers, "options of sampling" }, { o->n_stop, "--stop" },
        { o->ignore_eos, "--ignore-eos" }, { o->stop_when_full, "--on-full" },
        { o->most_given, "-n" }, { o->no_wrap, "--no-wrap" },
        { o->url != NULL, "--url" }, { o->prompt != NULL, "a prompt" }, { o->batch != NULL, "--batch" },
        { o->n_files, "-f" }, { o->reopen != NULL, "--continue" }, { o->tools || o->mcp_config, "tools" },
        { o->system != NULL, "-s" }, { o->ids, "--ids" }, { o->plan, "--plan" }, { o->run.n_loras, "--lora" },
        { o->schema_file || o->grammar_file || o->regex, "a grammar" }, { o->run.spec_given, "--spec" },
    };
    for (size_t i = 0; o->embed && i < sizeof other / sizeof *other; i++)
        if (other[i].given)
            return cli_wrong(prog, "--embed makes vectors and no answers: not with %s", other[i].name);
    return 0;
}

static int check(struct chat_options *o)
{
    const int wrong = check_embed(o), tools = wrong ? wrong : check_tools(o);
    if (tools)
        return tools;
    if (o->list_history)
        return check_history(o);
    if (o->reopen && (o->no_history || o->batch || o->raw || o->json || o->ids || o->plan))
        return cli_wrong(prog, "--continue goes on with a recorded conversation: --no-history, --batch, --raw, --json, --ids and --plan cannot be used with it");
    if (o->url && o->run.prefix_folder)
        return cli_wrong(prog, "--session keeps keys and values of a model that runs here: it excludes --url");
    if (o->run.n_loras > (o->url ? 0 : 1))
        return o->url ? cli_wrong(prog, "--lora is for a model that runs here: it excludes --url, where MODEL may name an adapter")
                      : cli_wrong(prog, "--lora: found %d adapters, expected one adapter", o->run.n_loras);
    if (!o->url && o->key)
        return cli_wrong(prog, "--key needs --url");
    if (o->n_rag && (!o->url || o->raw))
        return cli_wrong(prog, o->raw ? "--raw uses the prompt unchanged: --rag cannot be used with it" : "--rag needs --url: a server has the documents");
    if (o->n_files && (o->batch || o->plan))
        return cli_wrong(prog, "-f: not with %s", o->batch ? "--batch" : "--plan");
    if (o->prompt && o->batch)
        return cli_wrong(prog, "-p and --batch exclude each other");
    if (o->raw && (o->system || o->template_file || o->no_think))
        return cli_wrong(prog, "--raw uses the prompt unchanged: --system, --template and --no-think need the chat template");
    if ((o->schema_file != NULL) + (o->grammar_file != NULL) + (o->regex != NULL) > 1)
        return cli_wrong(prog, "--json-schema, --grammar and --regex exclude each other");
    if (o->ignore_eos && (o->schema_file || o->grammar_file || o->regex))
        return cli_wrong(prog, "--ignore-eos goes on after the end that --json-schema, --grammar and --regex set");
    if (o->url)
        return check_url(o);
    const int unnamed = may_choose(o) ? 0 : open_model_unnamed(prog, o->model);
    return unnamed ? unnamed : run_options_check(prog, &o->run);
}

/* Take the arguments after MODEL as the prompt; @FILE is a file, @@WORD the word @WORD. */
static int take_words(struct chat_options *o, int n, char **word)
{
    size_t size = 1;
    if (o->prompt || o->batch || o->list_history)
        return cli_wrong(prog, "'%s': %s already %s", word[0], o->prompt ? "-p" : o->batch ? "--batch" : "MODEL",
                         o->list_history ? "is the text to search for" : "gives the prompt");
    for (int i = 0; i < n; i++)
        size += strlen(word[i]) + 1;
    if (!(o->words = malloc(size))) {
        cli_note(prog, "out of memory");
        return CLI_FAILED;
    }
    char *end = o->words;
    for (int i = 0; i < n; i++) {
        const int at = word[i][0] == '@', is_file = at && word[i][1] && word[i][1] != '@';
        if (is_file)
            o->file[o->n_files++] = word[i] + 1;
        else
            end += sprintf(end, "%s%s", end > o->words ? " " : "", word[i] + (at && word[i][1]));
    }
    *end = '\0';
    o->prompt = o->words;
    return 0;
}

int chat_options_parse(struct chat_options *o, int argc, char **argv)
{
    int c, rc;
    memset(o, 0, sizeof *o);
    o->sampling = sampling_defaults();
    o->max_tokens = 1024;
    o->run.spec = SPEC_AUTO;
    o->parallel = 8;
    o->stop = calloc((size_t)argc + 1, sizeof *o->stop);
    o->file = calloc((size_t)argc + 1, sizeof *o->file);
    o->param = calloc((size_t)argc + 1, sizeof *o->param);
    o->bias = calloc((size_t)argc + 1, sizeof *o->bias);
    o->breaker = calloc(DRY_MAX_BREAKERS, sizeof *o->breaker);
    if (!o->stop || !o->file || !o->param || !o->bias || !o->breaker) {
        cli_note(prog, "out of memory");
        return CLI_FAILED;
    }
    o->sampling.bias = o->bias;
    while ((c = cli_getopt(argc, argv, "m:p:f:s:t:n:q:chV", options)) != -1) {
        if (c == 'h')
            return cli_help(usage());
        if (c == CLI_PRINT_DEFAULTS)
            return cli_defaults(usage());
        if (c == 'V')
            return cli_version(prog);
        if (c == OPT_LIST_TEMPLATES)
            return chat_template_list();
        if ((rc = take(o, c, optarg)) != 0)
            return rc < 0 ? cli_usage(usage_begin) : rc;
    }
    if (optind < argc && !o->model)
        o->model = argv[optind++];
    if (optind < argc && (rc = take_words(o, argc - optind, argv + optind)) != 0)
        return rc;
    if ((rc = check_template(o)) == 0 && (rc = chat_template_open(o)) == 0)
        rc = check(o);
    return rc ? rc : -1;
}

void chat_options_release(struct chat_options *o)
{
    free(o->text);
    free(o->stop);
    free(o->file);
    free(o->words);
    free(o->param);
    chat_template_close(o);
    free(o->bias);
    free(o->breaker);
    free(o->chosen);
    chat_grammar_close(o);
}

/* Put a list of texts into body. */
static int put_texts(json_t *body, const char *field, const char *flag, const char *const *text, int n, struct err *e)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        if (json_array_append_new(list, json_string(text[i])) != 0) {
            json_decref(list);
            return err_set(e, ERR_FORMAT, "%s: the text is not UTF-8", flag);
        }
    json_object_set_new(body, field, list);
    return 0;
}

int chat_options_fields(const struct chat_options *o, json_t *body, struct err *e)
{
    char key[40];
    for (int i = 0; i < N_SAMPLING_OPTIONS; i++) {
        const struct sampling_option *d = &sampling_options[i];
        const double v = sampling_get(&o->sampling, d);
        if (!(o->given & 1u << i))
            continue;
        /* print a float as the decimal number that was typed */
        json_object_set_new(body, d->name, d->is_whole ? json_integer((json_int_t)v) : json_real(round(v * 1e6) / 1e6));
    }
    if (o->given & SEED_GIVEN)
        json_object_set_new(body, "seed", json_integer((json_int_t)o->sampling.seed));
    if (o->max_tokens)
        json_object_set_new(body, "max_tokens", json_integer(o->max_tokens));
    if (o->ignore_eos)
        json_object_set_new(body, "ignore_eos", json_true());
    if (o->no_think)
        json_object_set_new(body, "chat_template_kwargs", json_pack("{s:b}", "enable_thinking", 0));
    json_t *bias = o->sampling.n_bias ? json_object() : NULL;
    if ((o->n_stop && put_texts(body, "stop", "--stop", o->stop, o->n_stop, e) != 0) ||
        (o->sampling.dry_sequence_breakers &&
         put_texts(body, "dry_sequence_breakers", "--dry-sequence-breaker", o->breaker,
                   o->sampling.n_dry_sequence_breakers, e) != 0)) {
        json_decref(bias);
        return -1;
    }
    for (int i = 0; i < o->sampling.n_bias; i++) {
        float b = o->bias[i].bias;
        snprintf(key, sizeof key, "%d", (int)o->bias[i].id);
        /* the API's values for never and always */
        json_object_set_new(bias, key, json_real(b < -100 ? -100 : b > 100 ? 100 : b));
    }
    if (bias)
        json_object_set_new(body, "logit_bias", bias);
    return 0;
}

int chat_options_complete(struct chat_options *o, const struct opened_model *m, struct err *e)
{
    struct sampling model = sampling_defaults();
    if (sampling_config(&model, js_get(m->json, "generation_config"), e) != 0 ||
        sampling_check(&model, m->model->config.vocab_size, e) != 0)
        return err_prefix(e, "%s: generation_config", m->path);
    for (int i = 0; i < N_SAMPLING_OPTIONS; i++)
        if (sampling_options[i].by_model && !(o->given & 1u << i))
            sampling_set(&o->sampling, &sampling_options[i], sampling_get(&model, &sampling_options[i]));
    if (!(o->given & SEED_GIVEN)) {
        uint32_t seed = 0;              /* 32 bits: exact as a JSON number, and --seed accepts it */
        if (getrandom(&seed, sizeof seed, 0) != (ssize_t)sizeof seed)
            return err_sys(e, "random numbers");
        o->sampling.seed = seed;
    }
    return sampling_check(&o->sampling, m->model->config.vocab_size, e);
}
