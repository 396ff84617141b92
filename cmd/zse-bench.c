/* zse-bench.c - measure the speed and the memory of a model, how close its outputs are to those of
 * another model, and how close its speed is to the limits of the machine. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd/zse-bench.h"
#include "cmd/cli.h"
#include "cmd/home.h"
#include "cmd/memory_watch.h"

static const char prog[] = "zse-bench";
static const char usage[] =
    "usage: zse-bench [OPTIONS] [MODEL]\n"
    "       zse-bench COMMAND [OPTIONS] [MODEL [CASES|TEXTFILE]]\n"
    "       zse-bench perplexity|quality [REFERENCE] MODEL TEXTFILE [OPTIONS]\n"
    "       zse-bench serve [OPTIONS] URL\n"
    "       zse-bench plot DATA.json -o FILE.svg\n"
    "Measure prefill, decode, time to first token and memory; or run a command.  Speeds come with their share of the machine's limits.\n"
    "MODEL is a .zse, a GGUF file, a Hugging Face folder, the name of a model here, or org/name on the hub\n"
    "(default where it is alone: $ZSE_MODEL, else the default of zse-info models).\n"
    "\n"
    "  limits                     the limits of this machine: reads from memory, int8 and f32 arithmetic, page cache, disk\n"
    "  batch                      a step with 1, 2, 4 ... sequences, up to -b (default: 16), at context -p (default: 128)\n"
    "  kv                         types of keys and values (f16, i8, k=i8,v=i4, i4, ternary; or f16 and --kv) at several contexts: bytes, speed, and with TEXTFILE the distance of the predictions from f16's\n"
    "  moe                        experts that are read: a step with 1, 2, 4 ... sequences, up to -b (default: 8), at context -p (default: 128); with --trace: which experts a GPU should hold, simulated; MODEL TEXTFILE -o FILE: write such a trace\n"
    "  threads                    prefill of -p tokens and decode after it with 1 to --threads threads\n"
    "  spec                       answers with guesses of next tokens (--spec) and without, in turn; steps of several tokens\n"
    "  matmul                     one matrix of random weights against activations of several numbers of tokens\n"
    "  ternary                    the same of nl4 and the ternary layouts t2 and t3, in turn\n"
    "  dequant                    decoding to f32, of each type of a GGUF file and of ours: elements a second on all threads and on one\n"
    "  sparse                     memory of the scores of sparse attention: four patterns at several contexts, beside full attention\n"
    "  simd                       single operations of the CPU on one thread, beside their definitions in plain C\n"
    "  flash                      attention of prompts on one thread, beside plain loops that keep all scores\n"
    "  mmap                       a file that is mapped, beside one that is read into memory\n"
    "  tiers                      how fast a GPU's memory, memory, page cache and disk are read\n"
    "  stream                     layers that pass through a GPU's memory, or with --max-memory through memory: prefetch hits, evictions, bytes, time; without MODEL: simulated\n"
    "  prefill                    prompts of several lengths (--tokens); with --compare in each place where a GPU's layers and experts may be\n"
    "  prefix                     requests whose prompts begin alike, with the cache of prefixes and without: tokens computed, time to the first token\n"
    "  plot                       a picture (SVG) of DATA.json, '-': standard input; the man page has its form\n"
    "  gpu                        each kernel of a GPU by itself: bytes and operations per second, as shares of the GPU's limits; with --model predicted, without a GPU\n"
    "  coldstart                  from exec to the first token in fresh processes, page cache warm and dropped, by phases\n"
    "  serve                      load on an OpenAI server: time to first token and between tokens, tokens a second, failures\n"
    "  logits                     the logits after every token of --ids\n"
    "  layers                     the output of each layer compared with the arrays of --ref; with -o: write such arrays\n"
    "  perplexity                 how well the model predicts a text\n"
    "  quality                    how far its predictions are from REFERENCE's, which runs with --exact, or with the first of two --kv\n"
    "\n"
    "  -p, --prompt N             tokens of a prompt (default: 512; batch, moe, stream: 128; coldstart: 32; prefix: 110; gpu: 4096); 0: decode from an empty context\n"
    "  -n, --generate N           tokens generated after it (default: 128; stream: 16, the steps that are simulated); 0: prefill only\n"
    "  -b, --batch N              sequences, or requests to a server, at once (default: 1)\n"
    "  -r, --repeats N            measured runs (default: 5)\n"
    "  -w, --warmup N             runs before them that do not count (default: 1)\n"
    "      --json                 a JSON object instead of text; logits, perplexity and quality always print one\n"
    "\n"
    "      --file FILE            limits, tiers: the file whose disk and page cache are read; its own pages are dropped first; mmap: the file (default: one of 1 MiB)\n"
    "      --limits FILE          the limits that zse-bench limits --json printed, for all measurements of a run (default: measured by each)\n"
    "      --contexts LIST        kv: tokens in the cache, like 128,4096,8192 (the default, as far as the model goes); sparse: tokens (default: 1024,2048 ... 32768; with --table up to 16384); flash: tokens of a prompt (default: 32,64 ... 1024)\n"
    "      --svg FILE             batch, kv: also write a picture of the table\n"
    "      --shape ROWSxCOLS      matmul, ternary, dequant, gpu: output and input features (default: 8960x1536; gpu: 14336x4096); matmul's\n"
    "                             type is that of -q, else nl4\n"
    "      --tokens LIST          matmul, ternary, gpu, prefill: numbers of tokens (default: 1,2,4,8,16,64,512; gpu: 1,8,16,64,512,4096; prefill: 128,512,1024)\n"
    "      --compare              prefill: all on the CPU, experts on the CPU, experts uploaded, layers through a window, all on the GPU\n"
    "      --table                sparse: the time of attention with a window of 512, beside full attention, on one thread\n"
    "      --autotune             gpu: only products, by each kernel that can compute them; marks the fastest and the engine's choice\n"
    "      --layers N             stream without MODEL: layers (default: 64)\n"
    "      --layer-size SIZE      stream without MODEL: bytes of a layer (default: 500MB)\n"
    "      --layer-time MS        stream without MODEL, moe --trace: milliseconds that a GPU computes in a layer, of moe without experts (default: its bytes at 1000 GB/s; moe: 0.05)\n"
    "      --link SIZE            stream without MODEL, moe --trace: bytes a second of the link (default: 25GB)\n"
    "      --trace FILE|zipf[:S]  moe: simulate policies on the router's choices in FILE, or on random ones for 64 to 512 experts, at rank r with probability r^-S (default of S: 1)\n"
    "      --expert-size SIZE     moe --trace: bytes of an expert (default: 2700kB)\n"
    "      --cpu-rate SIZE        moe --trace: bytes of experts that the CPU reads and computes a second (default: 40GB)\n"
    "      --peer LLAMA-CLI       coldstart: also start this program of llama.cpp, alternately\n"
    "      --peer-model GGUF      coldstart: its model (default: MODEL, if that is a GGUF file)\n"
    "      --requests N           serve, prefix: measured requests (default: 4 for each of -b, at least 16; prefix: 100)\n"
    "      --rate N               serve: N requests a second at random times, with no limit on how many run at once\n"
    "      --shared N             serve, prefix: the first N tokens of the prompts are the same (prefix: all but 10)\n"
    "      --background N         serve: N background streams beside the measured requests\n"
    "      --api NAME             serve: chat, completions, or tokens: completions of token ids (default: chat)\n"
    "      --model NAME           serve: the model to use (default: the server's first); gpu: predict, without measuring, what a GPU would take: h200, h100, 4090, a100; with MODEL (a known shape like Llama-3.1-8B, or a file) kernel by kernel\n"
    "      --key KEY              serve: the server's key (default: $ZSE_API_KEY, else $OPENAI_API_KEY)\n"
    "      --ignore-eos           serve, spec: answers of exactly -n tokens; not every server supports it\n"
    "      --temp T               serve, spec: temperature of the answers (default: 0, always the most likely token)\n"
    "      --seed N               serve: the same prompts in every run (default: new prompts); spec: of the answers (default: 1)\n"
    "      --spec auto|ngram|mtp  spec: the guesses, as zse-chat has them, draft:MODEL, self:LAYERS, medusa and eagle:DIR, too (default: auto)\n"
    "      --spec-exact tokens|distribution  spec: as in zse-chat; with distribution and --temp answers are not compared (default: tokens)\n"
    "      --estimate             spec: no answers; the speed to expect by the share of right guesses\n"
    "      --accept P             spec: guesses that cost nothing and are right with probability P, 0 to 1, with --spec ngram[:N]\n"
    "      --timeout SECONDS      serve: a request that takes longer fails, 0: no limit (default: 600)\n"
    "      --ids IDS              logits, layers -o: token ids, '1 5 9'\n"
    "  -o, --output FILE          logits: float32 little endian [n_tokens, vocab_size], always --exact; '-': standard output\n"
    "                             layers: a folder for the arrays, always --exact\n"
    "                             moe: the experts that the routers choose for the first -p tokens of TEXTFILE (default: the context)\n"
    "                             plot: the picture; '-': standard output\n"
    "      --ref DIR              layers: a folder with ids.npy and any of embed.npy, layer.0.npy ..., logits.npy\n"
    "      --window N             perplexity, quality: tokens of a window; logits: of a step (default: 512); stream without MODEL: layers of the window (four sizes if left out)\n"
    "      --windows N            perplexity, quality: only the first N windows of the text\n"
    "      --whole                perplexity: the windows are one sequence, each token after all before it that --attention allows\n"
    "\n"
#include "cmd/quantize_help.inc"
    RUN_HELP
    MEMORY_HELP
    "\n"
    CLI_DEFAULTS_HELP
    "  -h, --help                 show this help\n"
    "  -V, --version              show the version\n"
    "perplexity scores tokens 1 .. window-1 of each window; quality compares the distributions at positions window/2 .. window-2.\n";

enum { OPT_JSON = 300, OPT_FILE, OPT_CONTEXTS, OPT_SHAPE, OPT_TOKENS, OPT_PEER, OPT_PEER_MODEL, OPT_IDS, OPT_WINDOW,
       OPT_WINDOWS, OPT_REQUESTS, OPT_RATE, OPT_SHARED, OPT_BACKGROUND, OPT_API, OPT_SERVED, OPT_KEY, OPT_IGNORE_EOS,
       OPT_TEMP, OPT_SEED, OPT_TIMEOUT, OPT_REF, OPT_AUTOTUNE, OPT_ESTIMATE, OPT_ACCEPT, OPT_LIMITS,
       OPT_WHOLE, OPT_SVG, OPT_LAYERS, OPT_LAYER_SIZE, OPT_LAYER_TIME, OPT_LINK, OPT_TRACE, OPT_EXPERT_SIZE,
       OPT_CPU_RATE, OPT_COMPARE, OPT_TABLE };
static const struct option options[] = {
    { "prompt", required_argument, NULL, 'p' }, { "generate", required_argument, NULL, 'n' },
        { "batch", required_argument, NULL, 'b' },
    { "repeats", required_argument, NULL, 'r' }, { "warmup", required_argument, NULL, 'w' },
    { "json", no_argument, NULL, OPT_JSON },
    { "svg", required_argument, NULL, OPT_SVG },
    { "file", required_argument, NULL, OPT_FILE }, { "limits", required_argument, NULL, OPT_LIMITS },
    { "contexts", required_argument, NULL, OPT_CONTEXTS },
    { "shape", required_argument, NULL, OPT_SHAPE },
    { "tokens", required_argument, NULL, OPT_TOKENS }, { "autotune", no_argument, NULL, OPT_AUTOTUNE },
    { "table", no_argument, NULL, OPT_TABLE },
    { "layers", required_argument, NULL, OPT_LAYERS }, { "layer-size", required_argument, NULL, OPT_LAYER_SIZE },
    { "layer-time", required_argument, NULL, OPT_LAYER_TIME }, { "link", required_argument, NULL, OPT_LINK },
    { "trace", required_argument, NULL, OPT_TRACE }, { "expert-size", required_argument, NULL, OPT_EXPERT_SIZE },
    { "cpu-rate", required_argument, NULL, OPT_CPU_RATE }, { "compare", no_argument, NULL, OPT_COMPARE },
    { "peer", required_argument, NULL, OPT_PEER }, { "peer-model", required_argument, NULL, OPT_PEER_MODEL },
    { "ids", required_argument, NULL, OPT_IDS }, { "output", required_argument, NULL, 'o' },
    { "window", required_argument, NULL, OPT_WINDOW },
    { "windows", required_argument, NULL, OPT_WINDOWS }, { "whole", no_argument, NULL, OPT_WHOLE },
    { "requests", required_argument, NULL, OPT_REQUESTS }, { "rate", required_argument, NULL, OPT_RATE },
    { "shared", required_argument, NULL, OPT_SHARED },
    { "background", required_argument, NULL, OPT_BACKGROUND }, { "api", required_argument, NULL, OPT_API },
    { "model", required_argument, NULL, OPT_SERVED },
    { "key", required_argument, NULL, OPT_KEY }, { "ignore-eos", no_argument, NULL, OPT_IGNORE_EOS },
    { "temp", required_argument, NULL, OPT_TEMP }, { "seed", required_argument, NULL, OPT_SEED },
    { "timeout", required_argument, NULL, OPT_TIMEOUT }, { "ref", required_argument, NULL, OPT_REF }, RUN_LONG_OPTIONS,
    MEMORY_LONG_OPTION, SPEC_LONG_OPTIONS, { "estimate", no_argument, NULL, OPT_ESTIMATE },
    { "accept", required_argument, NULL, OPT_ACCEPT },
    CLI_DEFAULTS_OPTION, { "help", no_argument, NULL, 'h' }, { "version", no_argument, NULL, 'V' }, { NULL, 0, NULL, 0 },
};

/* The commands, their numbers of arguments, and the options that apply to them. */
enum command { SPEED, LIMITS, BATCH, KV, MOE, THREADS, MATMUL, TERNARY, DEQUANT, SPARSE, SIMD, FLASH, MMAP, TIERS,
               STREAM, PREFILL, PREFIX, PLOT, GPU, COLDSTART, SERVE, LOGITS, LAYERS, PERPLEXITY, QUALITY, SPEC,
               N_COMMANDS };
static const struct { const char *name; int least, most; const char *letters; } commands[N_COMMANDS] = {
    [SPEED] = { NULL, 0, 1, "pnbrwal" }, [LIMITS] = { "limits", 0, 0, "f" }, [BATCH] = { "batch", 0, 1, "pbrlV" },
        [KV] = { "kv", 0, 2, "rclV" }, [MOE] = { "moe", 0, 2, "pbrlKXo" },
    [THREADS] = { "threads", 0, 1, "pr" }, [MATMUL] = { "matmul", 0, 0, "rstl" },
    [TERNARY] = { "ternary", 0, 0, "rstl" },
    [SPARSE] = { "sparse", 0, 0, "crD" }, [SIMD] = { "simd", 0, 0, "r" }, [FLASH] = { "flash", 0, 0, "rc" },
    [MMAP] = { "mmap", 0, 0, "rf" }, [TIERS] = { "tiers", 0, 0, "f" },
    [PREFILL] = { "prefill", 0, 1, "rtC" }, [PREFIX] = { "prefix", 0, 1, "pQ" },
    [STREAM] = { "stream", 0, 1, "pnLKW" }, [PLOT] = { "plot", 1, 1, "o" },
    [DEQUANT] = { "dequant", 0, 0, "rs" }, [GPU] = { "gpu", 0, 1, "prstAO" },
    [COLDSTART] = { "coldstart", 0, 1, "prPMa" },
    [SERVE] = { "serve", 1, 1, "pnbwSTQO" }, [LOGITS] = { "logits", 1, 1, "ioW" }, [LAYERS] = { "layers", 1, 1, "ioR" },
    [PERPLEXITY] = { "perplexity", 2, 2, "WNHa" }, [QUALITY] = { "quality", 3, 3, "WNa" },
    [SPEC] = { "spec", 1, 2, "nrTE" },
};
/* Options that only some commands take; main's `given` has a bit for each. */
enum { GIVEN_BATCH = 2, GIVEN_REPEATS = 3, GIVEN_SHAPE = 7, GIVEN_TOKENS = 8, GIVEN_WINDOW = 13, GIVEN_SHARED = 18 };
static const struct { int c; char letter; const char *name; } special[] = {
    { 'p', 'p', "-p" }, { 'n', 'n', "-n" }, { 'b', 'b', "-b" }, { 'r', 'r', "-r" }, { 'w', 'w', "-w" },
        { OPT_FILE, 'f', "--file" },
    { OPT_CONTEXTS, 'c', "--contexts" }, { OPT_SHAPE, 's', "--shape" }, { OPT_TOKENS, 't', "--tokens" },
    { OPT_PEER, 'P', "--peer" },
    { OPT_PEER_MODEL, 'M', "--peer-model" }, { OPT_IDS, 'i', "--ids" }, { 'o', 'o', "-o" },
    { OPT_WINDOW, 'W', "--window" }, { OPT_WINDOWS, 'N', "--windows" },
    { OPT_WHOLE, 'H', "--whole" },
    { OPT_REQUESTS, 'Q', "--requests" }, { OPT_RATE, 'S', "--rate" }, { OPT_SHARED, 'Q', "--shared" },
    { OPT_BACKGROUND, 'S', "--background" }, { OPT_API, 'S', "--api" },
    { OPT_SERVED, 'O', "--model" }, { OPT_KEY, 'S', "--key" }, { OPT_IGNORE_EOS, 'T', "--ignore-eos" },
    { OPT_TEMP, 'T', "--temp" }, { OPT_SEED, 'T', "--seed" }, { OPT_TIMEOUT, 'S', "--timeout" },
    { OPT_REF, 'R', "--ref" }, { OPT_ACT, 'a', "--act" }, { OPT_LIMITS, 'l', "--limits" }, { OPT_AUTOTUNE, 'A', "--autotune" },
    { OPT_TABLE, 'D', "--table" },
    { OPT_SPEC, 'E', "--spec" }, { OPT_SPEC_EXACT, 'E', "--spec-exact" }, { OPT_ESTIMATE, 'E', "--estimate" },
    { OPT_ACCEPT, 'E', "--accept" }, { OPT_LAYERS, 'L', "--layers" }, { OPT_LAYER_SIZE, 'L', "--layer-size" },
    { OPT_LAYER_TIME, 'K', "--layer-time" }, { OPT_LINK, 'K', "--link" },
    { OPT_COMPARE, 'C', "--compare" },
    { OPT_TRACE, 'X', "--trace" }, { OPT_EXPERT_SIZE, 'X', "--expert-size" }, { OPT_CPU_RATE, 'X', "--cpu-rate" }, { OPT_SVG, 'V', "--svg" },
};
enum { N_SPECIAL = sizeof special / sizeof *special };
_Static_assert(N_SPECIAL <= 64, "`given` has a bit for each");

static int parse_whole(const char *name, const char *arg, long long min, long long max, int *out)
{
    long long v;
    if (cli_parse_int(prog, name, arg, min, max, &v) != 0)
        return CLI_USAGE;
    *out = (int)v;
    return 0;
}

/* Parse a list of numbers such as "1,4,16". */
static int parse_list(const char *name, const char *arg, long long max, struct bench_list *out)
{
    out->n = 0;
    for (const char *p = arg;; p++) {
        char *end;
        errno = 0;
        const long long v = strtoll(p, &end, 10);
        if (end == p || errno || v < 1 || v > max || (*end && *end != ',') || out->n == BENCH_LIST)
            return cli_wrong(prog, "%s: '%s', expected 1 to %d numbers from 1 to %lld, like 1,8,64", name, arg,
                             BENCH_LIST, max);
        out->v[out->n++] = (int)v;
        p = end;
        if (!*p)
            return 0;
    }
}

static int parse_shape(const char *arg, struct bench_options *o)
{
    int used = 0;
    if (sscanf(arg, "%7dx%7d%n", &o->rows, &o->cols, &used) != 2 || arg[used] || o->rows < 1 || o->cols < 1)
        return cli_wrong(prog, "--shape: '%s', expected ROWSxCOLS, like 8960x1536", arg);
    return 0;
}

static int parse_api(const char *arg, enum bench_api *out)
{
    static const char *const names[] = { [BENCH_CHAT] = "chat", [BENCH_COMPLETIONS] = "completions",
                                         [BENCH_TOKENS] = "tokens" };
    for (int i = BENCH_CHAT; i <= BENCH_TOKENS; i++)
        if (strcmp(arg, names[i]) == 0) {
            *out = (enum bench_api)i;
            return 0;
        }
    return cli_wrong(prog, "--api: '%s', expected chat, completions or tokens", arg);
}

static int parse_seed(const char *arg, uint64_t *out)
{
    long long v;
    if (cli_parse_int(prog, "--seed", arg, 1, LLONG_MAX, &v) != 0)
        return CLI_USAGE;
    *out = (uint64_t)v;
    return 0;
}

/* Parse a size that is not 0. */
static int parse_some(const char *name, const char *arg, uint64_t *out)
{
    if (cli_parse_size(prog, name, arg, out) != 0)
        return CLI_USAGE;
    return *out ? 0 : cli_wrong(prog, "%s: '%s', expected at least 1 byte", name, arg);
}

/* A file, or "zipf" or "zipf:S". */
static int parse_trace(const char *arg, struct bench_experts *b)
{
    static const char drawn[] = "zipf";
    const char *skew = arg + sizeof drawn - 1;
    b->trace = arg;
    b->drawn = strncmp(arg, drawn, sizeof drawn - 1) == 0 && (!*skew || *skew == ':');
    b->skew = 1;
    return b->drawn && *skew ? cli_parse_float(prog, "--trace", skew + 1, 0, 8, &b->skew) : 0;
}

static int take(struct bench_options *o, int c, const char *arg)
{
    const struct sampling_option *temp = &sampling_options[SAMPLING_temperature];
    switch (c) {
    case 'p': return parse_whole("--prompt", arg, 0, 1 << 20, &o->prompt);
    case 'n': return parse_whole("--generate", arg, 0, 1 << 20, &o->generate);
    case 'b': return parse_whole("--batch", arg, 1, 4096, &o->batch);
    case 'r': return parse_whole("--repeats", arg, 1, 100000, &o->repeats);
    case 'w': return parse_whole("--warmup", arg, 0, 1000, &o->warmup);
    case OPT_WINDOW: return parse_whole("--window", arg, 1, 1 << 20, &o->window);
    case OPT_WINDOWS: return parse_whole("--windows", arg, 1, INT32_MAX, &o->windows);
    case OPT_WHOLE: o->whole = 1; return 0;
    case OPT_CONTEXTS: return parse_list("--contexts", arg, 1 << 24, &o->contexts);
    case OPT_LAYERS: return parse_whole("--layers", arg, 1, 1 << 16, &o->stream.layers);
    case OPT_LAYER_SIZE: return parse_some("--layer-size", arg, &o->stream.layer_bytes);
    case OPT_LAYER_TIME: return cli_parse_float(prog, "--layer-time", arg, 1e-6, 1e6, &o->stream.layer_s);
    case OPT_COMPARE: o->compare = 1; return 0;
    case OPT_TRACE: return parse_trace(arg, &o->experts);
    case OPT_EXPERT_SIZE: return parse_some("--expert-size", arg, &o->experts.expert_bytes);
    case OPT_CPU_RATE: return parse_some("--cpu-rate", arg, &o->experts.cpu);
    case OPT_LINK: return parse_some("--link", arg, &o->stream.link);
    case OPT_TOKENS: return parse_list("--tokens", arg, 65536, &o->tokens);
    case OPT_SHAPE: return parse_shape(arg, o);
    case OPT_REQUESTS: return parse_whole("--requests", arg, 1, 10000000, &o->requests);
    case OPT_RATE: return cli_parse_float(prog, "--rate", arg, 1e-3, 1e5, &o->rate);
    case OPT_SHARED: return parse_whole("--shared", arg, 0, 1 << 20, &o->shared);
    case OPT_BACKGROUND: return parse_whole("--background", arg, 0, 4096, &o->background);
    case OPT_API: return parse_api(arg, &o->api);
    case OPT_SEED: return parse_seed(arg, &o->seed);
    case OPT_TIMEOUT: return cli_parse_float(prog, "--timeout", arg, 0, 1e6, &o->timeout_s);
    case OPT_TEMP: return cli_parse_float(prog, "--temp", arg, temp->min, temp->max, &o->temperature);
    case OPT_SERVED: o->served = arg; return 0;
    case OPT_KEY: o->key = arg; return 0;
    case OPT_IGNORE_EOS: o->ignore_eos = 1; return 0;
    case OPT_JSON: o->json = 1; return 0;
    case OPT_AUTOTUNE: o->autotune = 1; return 0;
    case OPT_TABLE: o->table = 1; return 0;
    case OPT_ESTIMATE: o->estimate = 1; return 0;
    case OPT_ACCEPT:
        o->accept_given = 1;
        return cli_parse_float(prog, "--accept", arg, 0, 1, &o->accept);
    case OPT_FILE: o->file = arg; return 0;
    case OPT_LIMITS: o->limits = arg; return 0;
    case OPT_SVG: o->svg = arg; return 0;
    case OPT_REF: o->ref = arg; return 0;
    case OPT_PEER: o->peer = arg; return 0;
    case OPT_PEER_MODEL: o->peer_model = arg; return 0;
    case OPT_IDS: o->ids = arg; return 0;
    case 'o': o->output = arg; return 0;
    default: return run_option(prog, c, arg, &o->run);
    }
}

static int is_f32(struct kv_types kv) { return kv.key == KV_F32 && kv.value == KV_F32; }

static int check_logits(const struct bench_options *o)
{
    if (!o->ids || !o->output)
        return cli_wrong(prog, "logits: --ids and -o are needed");
    if (strcmp(o->output, "-") == 0 && isatty(STDOUT_FILENO))
        return cli_wrong(prog, "-o -: logits are not written to a terminal");
    if (o->run.kv_given && !is_f32(o->run.kv))
        return cli_wrong(prog, "logits: always --exact, which stores keys and values as f32");
    return 0;
}

static int check_layers(const struct bench_options *o)
{
    if (o->output ? !o->ids || o->ref : o->ids || !o->ref)
        return cli_wrong(prog, "layers: either --ref DIR, or --ids IDS and -o DIR");
    if (o->run.kv_given && !is_f32(o->run.kv))
        return cli_wrong(prog, "layers: keys and values are always f32");
    return 0;
}

static int check_serve(const struct bench_options *o)
{
    if (o->prompt == 0 || o->generate == 0)
        return cli_wrong(prog, "serve: %s 0 leaves nothing to measure", o->prompt == 0 ? "-p" : "-n");
    if (o->shared > o->prompt)
        return cli_wrong(prog, "serve: --shared %d is more than the prompt of %d tokens", o->shared, o->prompt);
    if (o->rate > 0 && o->batch > 1)
        return cli_wrong(prog, "serve: -b and --rate: requests come at once or at times of their own");
    return 0;
}

static int check_spec(struct bench_options *o)
{
    if (o->generate < 2)
        return cli_wrong(prog, "spec: -n %d leaves nothing to measure", o->generate);
    if (!o->run.spec_given)
        o->run.spec = o->accept_given ? SPEC_NGRAM : SPEC_AUTO;
    if (o->accept_given && (o->run.spec != SPEC_NGRAM || o->estimate))
        return cli_wrong(prog, "spec: --accept goes with --spec ngram[:N], without --estimate");
    return o->run.spec == SPEC_OFF ? cli_wrong(prog, "spec: --spec off leaves nothing to measure") : 0;
}

/* With a model: steps are measured; without one: they are simulated. */
static int check_stream(struct bench_options *o, uint64_t given, const char *model)
{
    struct bench_stream *s = &o->stream;
    const int simulates = s->layers || s->layer_bytes || s->layer_s > 0 || s->link || given >> GIVEN_WINDOW & 1;
    if (model && simulates)
        return cli_wrong(prog, "stream: --layers, --layer-size, --layer-time, --link and --window are of the simulation, without MODEL");
    if (o->prompt + o->generate == 0 || (!model && o->generate == 0))
        return cli_wrong(prog, "stream: -n 0 leaves nothing to %s", model ? "measure" : "simulate");
    if (!model && given & 1)
        return cli_wrong(prog, "stream: -p needs a MODEL");
    s->layers = s->layers ? s->layers : 64;
    s->layer_bytes = s->layer_bytes ? s->layer_bytes : 500000000;
    s->layer_s = s->layer_s > 0 ? s->layer_s * 1e-3 : (double)s->layer_bytes / 1e12;
    s->link = s->link ? s->link : 25000000000;
    s->window = given >> GIVEN_WINDOW & 1 ? o->window : 0;
    if (s->window > s->layers)
        return cli_wrong(prog, "--window %d: expected at most the %d layer%s", s->window, s->layers, plural(s->layers));
    return 0;
}

/* With --trace no model is measured. */
static int check_moe(struct bench_options *o, uint64_t given, int n, const char *model)
{
    struct bench_experts *b = &o->experts;
    if ((n == 2) != (o->output != NULL) || (n == 2 && b->trace))
        return cli_wrong(prog, "moe: a trace is written with MODEL TEXTFILE -o FILE, and read with --trace FILE alone");
    if ((n == 2 || b->trace) && (given >> GIVEN_REPEATS & 1 || o->limits || (n == 2 && given >> GIVEN_BATCH & 1)))
        return cli_wrong(prog, "moe: %s does not apply to %s", o->limits ? "--limits" : given >> GIVEN_REPEATS & 1
                         ? "-r" : "-b", b->trace ? "--trace" : "-o");
    if (n == 2 && !(given & 1))
        o->prompt = 0;
    if (!b->trace)
        return b->expert_bytes || b->cpu || o->stream.link || o->stream.layer_s > 0
               ? cli_wrong(prog, "moe: --expert-size, --cpu-rate, --link and --layer-time need --trace") : 0;
    if (model || given & 1)
        return cli_wrong(prog, "moe --trace: simulates, so %s does not apply", model ? "a model" : "-p");
    b->expert_bytes = b->expert_bytes ? b->expert_bytes : 2700000;
    b->cpu = b->cpu ? b->cpu : 40000000000;
    o->stream.link = o->stream.link ? o->stream.link : 25000000000;
    o->stream.layer_s = o->stream.layer_s > 0 ? o->stream.layer_s * 1e-3 : 5e-5;
    return 0;
}

/* The command that the first argument names; SPEED if it names none. */
static enum command find_command(int n, char **args)
{
    enum command c = LIMITS;
    while (c < N_COMMANDS && (n == 0 || strcmp(args[0], commands[c].name) != 0))
        c++;
    return c == N_COMMANDS ? SPEED : c;
}

/* Check the n arguments and the options of command c.  0, or the exit code of wrong usage. */
static int check_arguments(enum command c, uint64_t given, int n, char **args)
{
    const int named = c == SPEED && n && home_names_model(args[0]);
    if (c == SPEED && n && !named && cli_is_mistyped(args[0], &commands[0].name, sizeof *commands, N_COMMANDS))
        return cli_no_command(prog, args[0], &commands[0].name, sizeof *commands, N_COMMANDS);
    if (c == SPEED && n && !named && !strpbrk(args[0], "/.@:") && access(args[0], F_OK) != 0)
        return cli_wrong(prog, "'%s' is neither a command nor a file or model here (models on the hub are named org/name)",
                         args[0]);
    if (c == SPEED && n > 1)
        return find_command(1, args + 1) == SPEED
               ? cli_wrong(prog, "'%s' is an extra argument: a command comes before MODEL, else MODEL is alone", args[1])
               : cli_wrong(prog, "'%s' comes before MODEL: zse-bench %s %s", args[1], args[1], args[0]);
    if (n < commands[c].least || n > commands[c].most)
        return cli_wrong(prog, "%s: %d argument%s, expected %d%s", commands[c].name, n, plural(n), commands[c].least,
                         commands[c].most == commands[c].least ? "" : commands[c].most == 1 ? " or 1" : " to 2");
    for (int i = 0; i < N_SPECIAL; i++)
        if (given >> i & 1 && !strchr(commands[c].letters, special[i].letter))
            return cli_wrong(prog, "%s does not belong to %s%s", special[i].name, c == SPEED
                             ? "the measurement of speed" : "zse-bench ", c == SPEED ? "" : commands[c].name);
    return 0;
}

/* Check the options of a GPU.  0, or the exit code. */
static int check_device(struct bench_options *o, enum command c, uint64_t given)
{
    if (o->run.gpu && (c == LIMITS || c == BATCH || c == KV || c == MOE || c == THREADS || c == MATMUL ||
                       c == TERNARY || c == DEQUANT || c == SPARSE || c == SIMD || c == FLASH || c == MMAP ||
                       c == PLOT || c == LAYERS)) {
        if (o->run.device || o->run.gpus_text || o->run.tp)
            return cli_wrong(prog, "%s measures the CPU: --%s does not apply", commands[c].name,
                             o->run.device ? "device" : o->run.tp ? "tp" : "gpus");
        o->run.gpu = 0;                 /* ignore a GPU found by auto, or named in $ZSE_DEVICE for other programs */
    }
    if (c == GPU && !o->run.gpu && !o->served) {
        struct err e;
        return gpu_count(&e) < 0 ? cli_fail(prog, &e) : cli_wrong(prog, "gpu: measures a GPU, expected --device cuda");
    }
    if (c == PREFILL && o->compare && (!o->run.gpu || o->run.gpus.n || o->run.gpu_layers_given))
        return cli_wrong(prog, "prefill --compare: expected one GPU (--device), which computes all layers");
    if (c == GPU && o->run.gpus.n)
        return cli_wrong(prog, "gpu: measures one GPU: --tp does not apply, and expected one number in --gpus");
    if (o->run.gpu && o->limits)
        return cli_wrong(prog, "--limits: limits of the CPU, which do not apply to a GPU");
    if (c == GPU && (o->run.exact || o->run.strict || o->run.graphs_given || o->run.cache_given))
        return cli_wrong(prog, "gpu: measures kernels without a model: --exact, --strict, --cuda-graphs and --cache-weights do not apply");
    if (c == GPU && o->autotune && given & 1)
        return cli_wrong(prog, "gpu --autotune: measures products alone: -p does not apply");
    if (c == SPARSE && !o->table && given >> GIVEN_REPEATS & 1)
        return cli_wrong(prog, "sparse: counts pairs, and only --table measures: -r does not apply");
    return 0;
}

/* With --model the kernels of a GPU are predicted, and MODEL may be given. */
static int check_gpu(const struct bench_options *o, uint64_t given, const char *model)
{
    if (model && !o->served)
        return cli_wrong(prog, "gpu: measures kernels without a model: '%s' needs --model", model);
    if (o->served && (o->autotune || (given >> GIVEN_REPEATS | given >> GIVEN_SHAPE | given >> GIVEN_TOKENS) & 1))
        return cli_wrong(prog, "gpu --model: predicts, so %s does not apply", o->autotune ? "--autotune"
                         : given >> GIVEN_REPEATS & 1 ? "-r" : given >> GIVEN_SHAPE & 1 ? "--shape" : "--tokens");
    return 0;
}

/* Set the defaults that depend on the command. */
static void set_defaults(struct bench_options *o, enum command c, uint64_t given)
{
    if (c == GPU && !(given >> GIVEN_SHAPE & 1))
        o->rows = 14336, o->cols = 4096;
    if (c == GPU && !(given >> GIVEN_TOKENS & 1))
        o->tokens = (struct bench_list){ 6, { 1, 8, 16, 64, 512, 4096 } };
    if (c == PREFILL && !(given >> GIVEN_TOKENS & 1))
        o->tokens = (struct bench_list){ 3, { 128, 512, 1024 } };
    if (!(given & 1) && c != SPEED)
        o->prompt = c == GPU && !o->served ? 4096 : c == COLDSTART ? 32 : c == PREFIX ? 110
                    : c == BATCH || c == MOE || c == STREAM ? 128 : 512;
    if (c == PREFIX && !(given >> GIVEN_SHARED & 1))
        o->shared = o->prompt > 10 ? o->prompt - 10 : 0;
    if (c == PREFIX && o->requests == 0)
        o->requests = 100;
    if (!(given >> 1 & 1) && c == STREAM)
        o->generate = 16;
    if (!(given >> 2 & 1) && (c == BATCH || c == MOE))
        o->batch = c == MOE ? 8 : 16;
}

static int run(struct bench_options *o, uint64_t given, int n, char **args)
{
    const enum command c = find_command(n, args);
    if (c != SPEED)
        n--, args++;
    int rc = check_arguments(c, given, n, args);
    if (rc || (rc = check_device(o, c, given)) != 0)
        return rc;
    const char *model = n ? args[0] : NULL;
    if (!o->run.force)
        memory_watch_start(prog);
    set_defaults(o, c, given);
    if ((c == THREADS || c == COLDSTART || c == GPU) && o->prompt == 0)
        return cli_wrong(prog, "%s: -p 0 leaves nothing to measure", commands[c].name);
    if (c == PREFIX && o->shared >= o->prompt)
        return cli_wrong(prog, "prefix: --shared %d, expected less than the prompt of %d tokens", o->shared, o->prompt);
    if (c == GPU && (rc = check_gpu(o, given, model)) != 0)
        return rc;
    if (c == MOE && (rc = check_moe(o, given, n, model)) != 0)
        return rc;
    if (c == SPEED || c == BATCH || c == PREFILL || c == PREFIX || (c == MOE && !o->experts.trace) || c == KV ||
        c == THREADS || c == COLDSTART)
        rc = open_model_unnamed(prog, model);
    if (rc)
        return rc;
    switch (c) {
    case LIMITS: return bench_limits(o);
    case BATCH: return bench_batch(o, model);
    case MOE:
        return o->experts.trace ? bench_experts(o) : n == 2 ? bench_router(o, model, args[1]) : bench_moe(o, model);
    case KV: return bench_kv(o, model, n > 1 ? args[1] : NULL);
    case THREADS: return bench_threads(o, model);
    case MATMUL: return bench_matmul(o);
    case TERNARY: return bench_ternary(o);
    case DEQUANT: return bench_dequant(o);
    case SPARSE: return (rc = bench_sparse_check(o)) ? rc : o->table ? bench_sparse_table(o) : bench_sparse(o);
    case SIMD: return bench_simd(o);
    case FLASH: return (rc = bench_flash_check(o)) ? rc : bench_flash(o);
    case MMAP: return bench_mmap(o);
    case TIERS: return bench_tiers(o);
    case PREFILL: return bench_prefill(o, model);
    case PREFIX: return bench_prefix(o, model);
    case STREAM: return (rc = check_stream(o, given, model)) ? rc : bench_stream(o, model);
    case PLOT: return o->output ? bench_plot(o, args[0]) : cli_wrong(prog, "plot: -o is needed");
    case GPU: return o->served ? bench_time(o, model) : bench_gpu(o);
    case COLDSTART: return bench_coldstart(o, model);
    case SERVE: return (rc = check_serve(o)) ? rc : bench_serve(o, args[0]);
    case LOGITS: return (rc = check_logits(o)) ? rc : bench_logits(o, args[0]);
    case LAYERS: return (rc = check_layers(o)) ? rc : bench_layers(o, args[0]);
    case PERPLEXITY: return bench_perplexity(o, args[0], args[1]);
    case SPEC: return (rc = check_spec(o)) ? rc : bench_spec(o, args[0], n > 1 ? args[1] : NULL);
    case QUALITY: return bench_quality(o, args[0], args[1], args[2]);
    default: break;
    }
    if (o->prompt == 0 && o->generate == 0)
        return cli_wrong(prog, "-p 0 and -n 0 leave nothing to measure");
    return bench_speed(o, model);
}

int main(int argc, char **argv)
{
    struct bench_options o = { .prompt = 512, .generate = 128, .batch = 1, .repeats = 5, .warmup = 1, .window = 512,
                               .rows = 8960, .cols = 1536, .timeout_s = 600, .run = { .verify = VERIFY_FIRST },
                               .tokens = { 7, { 1, 2, 4, 8, 16, 64, 512 } } };
    uint64_t given = 0;                 /* bits: of special[] */
    int c, rc;
    cli_start();
    while ((c = cli_getopt(argc, argv, "p:n:b:r:w:o:q:hV", options)) != -1) {
        if (c == 'h')
            return cli_help(usage);
        if (c == CLI_PRINT_DEFAULTS)
            return cli_defaults(usage);
        if (c == 'V')
            return cli_version(prog);
        if ((rc = take(&o, c, optarg)) != 0)
            return rc < 0 ? cli_usage(usage) : rc;
        for (int i = 0; i < N_SPECIAL; i++)
            given |= (uint64_t)(special[i].c == c) << i;
    }
    rc = run_options_check(prog, &o.run);
    return rc ? rc : run(&o, given, argc - optind, argv + optind);
}
