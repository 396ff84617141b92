/* serve_options.c - parse the command line of zse-serve. */
#include "cmd/zse-serve.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "cmd/secret_url.h"
#include "libcommon/serve/server.h"

static const char prog[] = "zse-serve";
static const char usage[] =
    "usage: zse-serve [OPTIONS] [MODEL]...\n"
    "Serve models on the OpenAI API over HTTP.\n"
    "MODEL is a .zse, a GGUF file, a Hugging Face folder, the name of a model here, or org/name on the hub\n"
    "(default: $ZSE_MODEL; without: the models here, each loaded when a request names it; zse-info models\n"
    "local lists them).\n"
    "\n"
    "      --config FILE          options from a JSON object, {\"port\": 8080, \"models\": [\"m.zse\"]}; those of the command line win\n"
    "      --host NAME            address to listen on (default: $ZSE_HOST, else 127.0.0.1)\n"
    "      --port N               port, 0: any that is free (default: $ZSE_PORT, else 8000)\n"
    "      --socket FILE          listen on this Unix socket; without --host and --port, only there\n"
    "      --tls-cert FILE        certificate chain (PEM): HTTPS\n"
    "      --tls-key FILE         its private key (PEM)\n"
    "      --user NAME[:GROUP]    started as root: become this user after binding the sockets and reading the key\n"
    "      --no-auth              require no key, even from other machines; the Host header is checked (--allow-host)\n"
    "      --keys URL             keys and limits in PostgreSQL, shared by several servers: postgresql://USER@HOST/DATABASE\n"
    "      --keys-grace SECONDS   while it does not answer, known keys stay valid for this time (default: 3600)\n"
    "      --strict-api           refuse fields of requests that are not known (default: ignore and list them)\n"
    "      --allow-query-key      also accept a key in ?api_key= (it ends up in logs and histories)\n"
    "      --anonymous-limit N    requests per minute of an address without a key, 0: no limit (default: 0)\n"
    "      --audit-folder DIR     folder of the audit log (default: audit in $ZSE_HOME, else in ~/.zse)\n"
    "      --audit-size SIZE      rotate its file at this size (default: 50MB)\n"
    "      --audit-anonymous-size SIZE  the same for requests without a valid key, which have their own files (default: as --audit-size)\n"
    "      --audit-files N        number of rotated files to keep, of each kind (default: 10)\n"
    "      --audit-syslog TARGET  also send each line to a syslog server: HOST:PORT (UDP), tcp:HOST:PORT or a socket, /dev/log\n"
    "      --audit-url URL        also post the lines to this collector in batches of JSON lines: https://HOST/PATH\n"
    "      --audit-token FILE     file of its token, sent as Authorization: Bearer\n"
    "      --audit-sign FILE      sign the log with this private Ed25519 key (PEM)\n"
    "      --audit-prompts        also log the requests' bodies (at most 4096 bytes of each)\n"
    "      --no-audit             log nothing\n"
    "      --log-requests         a line on standard error for each request that has ended\n"
    "      --no-history           keep no chat history (default: conversations of pages and clients in chats.db in $ZSE_HOME)\n"
    "      --history-days N       delete conversations without a change for N days, 0: never (default: 0)\n"
    "      --responses-size SIZE  memory for responses that are continued by id (default: 64MiB; 0: none)\n"
    "      --history-size SIZE    size of the conversations of each key (default: 1GiB)\n"
    "      --history-conversations N  number of conversations of each key (default: 100000)\n"
    "      --trust-proxy          take the client's address from X-Forwarded-For; needs keys, or --no-auth\n"
    "      --cors-origin ORIGIN   let pages of this origin use the API, * for all; can be given again\n"
    "      --allow-host NAME      without keys, accept this name in the Host header besides localhost, * for any; can be given again\n"
    "\n"
    "      --name NAME            id of the model (default: the file's name); can be given again, for each MODEL in order\n"
    "      --max-seqs N           requests that are computed together (default: 32)\n"
    "      --max-batch-size N     the same as --max-seqs\n"
    "      --batching on|off      off: one request at a time, until POST /api/batching/enable (default: on)\n"
    "      --max-queue N          requests that may wait, 0: no limit (default: 1000)\n"
    "      --kv-bytes SIZE        memory for keys and values of each model (default: enough, at most a quarter of the machine's)\n"
    "      --model-dir DIR        load models over the API only from this folder (default: from anywhere, for clients of this machine only)\n"
    "      --keep-alive TIME      without MODEL: unload a model after this time without a request,\n"
    "                             as 90s, 5m or 2h; -1: never (default: 5m)\n"
    "      --max-memory SIZE      weights and memory of all models; the least recently used are evicted (default: no limit)\n"
    "      --no-memory-watch      keep running when memory runs short (default: below 3 % and 1 GiB refuse new requests, below 2 % and 256 MiB exit)\n"
    "      --no-prefix-cache      compute every prompt from its beginning\n"
    "      --prefix-cache DIR     also keep keys and values of prompts in this folder, for the time after a restart; DIR:SIZE: at most SIZE (default: 10GB)\n"
    "      --prefix-scope key|all  reuse what was computed for a key only for that key, or for all: then times tell what others asked (default: key)\n"
    "      --kv-events ENDPOINT   publish which prefixes the first MODEL caches, by ZeroMQ as vLLM does, for routers: tcp://*:5557\n"
    "      --kv-replay ENDPOINT   answer requests for events that were missed: tcp://*:5558\n"
    "      --kv-topic TOPIC       topic of the events (default: kv@HOST:PORT@ID)\n"
    "      --timeout SECONDS      end a request after this time, 0: never (default: 600)\n"
    "      --drain SECONDS        time for running requests when the server stops or a model is unloaded (default: 30)\n"
    "      --stall SECONDS        /health answers 503 when a model's step lasts longer, 0: never (default: 60)\n"
    "      --max-connections N    connections at once (default: 4096)\n"
    "      --max-per-address N    connections from one address (IPv6: /64) without a valid key, 0: no limit (default: 512)\n"
    "      --max-body SIZE        largest body of a request (default: 16MB)\n"
    "      --max-request-memory SIZE  memory of a request: body, its JSON, prompt, answers (default: a quarter of --work-memory)\n"
    "      --work-memory SIZE     memory of all requests together, half of it for one key or address (default: 1/8 of the machine's, at most 1GiB)\n"
    "      --embedding-model ID|FILE  a loaded model, default for the first, or a file to load, that computes vectors of documents; without: words only\n"
    "      --rerank-model ID|FILE  a loaded model, or a file to load, that orders the passages found in documents by reading them with the question\n"
    "      --rag-documents N      documents that a key may store for searching, 0: no limit (default: 10000)\n"
    "      --rag-bytes SIZE       size of their files together (default: 1GB)\n"
    "      --mcp-config FILE      offer the tools of these MCP servers: {\"mcpServers\": {NAME: {\"command\", \"args\"} or {\"url\"}}}\n"
    "      --mcp-stdio            instead of listening, offer the tools to the program that started this one: MCP over standard input\n"
    "      --quiet                print only errors\n"
    "\n"
#include "cmd/quantize_help.inc"
    RUN_HELP
    STREAM_HELP
    SPEC_HELP
    "      --lora NAME=DIR        a LoRA adapter for the first MODEL, a folder written by PEFT; requests name it as their model\n"
    "      --lora-dir DIR         let administrators load adapters below DIR over HTTP (default: none can be loaded)\n"
    "      --pp LIST              the same as --pp-split\n"
    "      --plan                 print the memory each MODEL would take and the expected speed, and exit; 1 if one does not fit\n"
    "\n"
    CLI_DEFAULTS_HELP
    "  -h, --help                 show this help\n"
    "  -V, --version              show the version\n"
    "Prints the address on standard output when it listens.  SIGTERM: stop when the running requests have ended; SIGHUP: reload the files.\n";

enum {
    OPT_HOST = 300, OPT_PORT, OPT_SOCKET, OPT_CERT, OPT_KEY, OPT_NO_AUTH, OPT_PROXY, OPT_ORIGIN, OPT_ALLOW_HOST,
        OPT_NAME, OPT_SEQS, OPT_BATCHING, OPT_QUEUE, OPT_KV_BYTES,
    OPT_QUERY_KEY, OPT_STRICT_API, OPT_ANONYMOUS, OPT_AUDIT_FOLDER,
    OPT_AUDIT_SIZE, OPT_AUDIT_ANONYMOUS, OPT_AUDIT_FILES,
    OPT_AUDIT_SYSLOG, OPT_AUDIT_SIGN, OPT_AUDIT_PROMPTS, OPT_NO_AUDIT, OPT_LOG_REQUESTS,
    OPT_MEMORY, OPT_NO_PREFIX, OPT_TIMEOUT,
    OPT_DRAIN, OPT_STALL, OPT_CONNECTIONS, OPT_PER_ADDRESS, OPT_BODY, OPT_QUIET, OPT_PLAN, OPT_CONFIG, OPT_NO_WATCH,
    OPT_MODEL_DIR, OPT_USER, OPT_REQUEST_MEMORY, OPT_WORK_MEMORY, OPT_EMBEDDING, OPT_RERANK, OPT_RAG_DOCUMENTS,
    OPT_RAG_BYTES,
    OPT_NO_HISTORY, OPT_HISTORY_DAYS, OPT_HISTORY_SIZE, OPT_RESPONSES_SIZE, OPT_HISTORY_CONVERSATIONS, OPT_MCP_STDIO,
    OPT_MCP_CONFIG, OPT_KEEP_ALIVE, OPT_PREFIX_CACHE, OPT_PREFIX_SCOPE, OPT_LORA_DIR,
    OPT_KV_EVENTS, OPT_KV_REPLAY, OPT_KV_TOPIC, OPT_KEYS_URL, OPT_KEYS_GRACE, OPT_AUDIT_URL, OPT_AUDIT_TOKEN,
};

static const struct option options[] = {
    { "config", required_argument, NULL, OPT_CONFIG },
    { "host", required_argument, NULL, OPT_HOST }, { "port", required_argument, NULL, OPT_PORT },
    { "socket", required_argument, NULL, OPT_SOCKET },
    { "tls-cert", required_argument, NULL, OPT_CERT }, { "tls-key", required_argument, NULL, OPT_KEY },
    { "no-auth", no_argument, NULL, OPT_NO_AUTH },
    { "keys", required_argument, NULL, OPT_KEYS_URL }, { "keys-grace", required_argument, NULL, OPT_KEYS_GRACE },
    { "allow-query-key", no_argument, NULL, OPT_QUERY_KEY },
    { "strict-api", no_argument, NULL, OPT_STRICT_API },
    { "anonymous-limit", required_argument, NULL, OPT_ANONYMOUS },
    { "audit-folder", required_argument, NULL, OPT_AUDIT_FOLDER },
    { "audit-size", required_argument, NULL, OPT_AUDIT_SIZE },
    { "audit-anonymous-size", required_argument, NULL, OPT_AUDIT_ANONYMOUS },
    { "audit-files", required_argument, NULL, OPT_AUDIT_FILES },
    { "audit-syslog", required_argument, NULL, OPT_AUDIT_SYSLOG },
    { "audit-url", required_argument, NULL, OPT_AUDIT_URL }, { "audit-token", required_argument, NULL, OPT_AUDIT_TOKEN },
    { "audit-sign", required_argument, NULL, OPT_AUDIT_SIGN },
    { "audit-prompts", no_argument, NULL, OPT_AUDIT_PROMPTS }, { "no-audit", no_argument, NULL, OPT_NO_AUDIT },
    { "log-requests", no_argument, NULL, OPT_LOG_REQUESTS },
    { "no-history", no_argument, NULL, OPT_NO_HISTORY }, { "history-days", required_argument, NULL, OPT_HISTORY_DAYS },
    { "responses-size", required_argument, NULL, OPT_RESPONSES_SIZE },
    { "history-size", required_argument, NULL, OPT_HISTORY_SIZE },
    { "history-conversations", required_argument, NULL, OPT_HISTORY_CONVERSATIONS },
    { "trust-proxy", no_argument, NULL, OPT_PROXY }, { "cors-origin", required_argument, NULL, OPT_ORIGIN },
    { "allow-host", required_argument, NULL, OPT_ALLOW_HOST }, { "name", required_argument, NULL, OPT_NAME },
    { "max-seqs", required_argument, NULL, OPT_SEQS }, { "max-batch-size", required_argument, NULL, OPT_SEQS },
    { "batching", required_argument, NULL, OPT_BATCHING }, { "pp", required_argument, NULL, OPT_PP_SPLIT },
    { "max-queue", required_argument, NULL, OPT_QUEUE }, { "kv-bytes", required_argument, NULL, OPT_KV_BYTES },
    { "user", required_argument, NULL, OPT_USER }, { "model-dir", required_argument, NULL, OPT_MODEL_DIR },
    { "lora-dir", required_argument, NULL, OPT_LORA_DIR },
    { "kv-events", required_argument, NULL, OPT_KV_EVENTS }, { "kv-replay", required_argument, NULL, OPT_KV_REPLAY },
    { "kv-topic", required_argument, NULL, OPT_KV_TOPIC },
    { "max-memory", required_argument, NULL, OPT_MEMORY }, { "no-prefix-cache", no_argument, NULL, OPT_NO_PREFIX },
    { "prefix-cache", required_argument, NULL, OPT_PREFIX_CACHE },
    { "prefix-scope", required_argument, NULL, OPT_PREFIX_SCOPE },
    { "timeout", required_argument, NULL, OPT_TIMEOUT }, { "drain", required_argument, NULL, OPT_DRAIN },
    { "stall", required_argument, NULL, OPT_STALL },
    { "max-connections", required_argument, NULL, OPT_CONNECTIONS },
    { "max-per-address", required_argument, NULL, OPT_PER_ADDRESS }, { "max-body", required_argument, NULL, OPT_BODY },
    { "max-request-memory", required_argument, NULL, OPT_REQUEST_MEMORY },
    { "embedding-model", required_argument, NULL, OPT_EMBEDDING }, { "rerank-model", required_argument, NULL, OPT_RERANK },
    { "rag-documents", required_argument, NULL, OPT_RAG_DOCUMENTS },
    { "rag-bytes", required_argument, NULL, OPT_RAG_BYTES },
    { "work-memory", required_argument, NULL, OPT_WORK_MEMORY }, { "quiet", no_argument, NULL, OPT_QUIET },
    { "mcp-config", required_argument, NULL, OPT_MCP_CONFIG }, { "mcp-stdio", no_argument, NULL, OPT_MCP_STDIO },
    { "keep-alive", required_argument, NULL, OPT_KEEP_ALIVE },
    { "plan", no_argument, NULL, OPT_PLAN }, { "no-memory-watch", no_argument, NULL, OPT_NO_WATCH },
    RUN_LONG_OPTIONS, SPEC_LONG_OPTIONS, STREAM_LONG_OPTIONS, LORA_LONG_OPTION,
    CLI_DEFAULTS_OPTION, { "help", no_argument, NULL, 'h' }, { "version", no_argument, NULL, 'V' }, { NULL, 0, NULL, 0 },
};

static int whole(const char *name, const char *arg, long long min, long long max, int *out)
{
    long long v;
    if (cli_parse_int(prog, name, arg, min, max, &v) != 0)
        return CLI_USAGE;
    *out = (int)v;
    return 0;
}

static int work_memory(const char *name, const char *arg, size_t *out)
{
    uint64_t size;
    if (cli_parse_size(prog, name, arg, &size) != 0)
        return CLI_USAGE;
    if (size < 1 << 20)
        return cli_wrong(prog, "%s: %s, expected at least 1MiB", name, arg);
    *out = size;
    return 0;
}

/* Parse a duration in seconds, or with the suffix s, m or h; -1 means forever. */
static int keep_alive(const char *arg, double *out)
{
    const char units[] = "smh";
    const double seconds[] = { 1, 60, 3600 };
    char number[32];
    const size_t n = strlen(arg);
    const char *unit = n ? strchr(units, arg[n - 1]) : NULL;
    if (n == 0 || n >= sizeof number)
        return cli_wrong(prog, "--keep-alive: '%s', expected a time like 90s, 5m, 2h, or -1", arg);
    snprintf(number, sizeof number, "%.*s", (int)(n - (unit != NULL)), arg);
    if (cli_parse_float(prog, "--keep-alive", number, -1, 1e9, out) != 0)
        return CLI_USAGE;
    *out *= unit ? seconds[unit - units] : 1;
    return 0;
}

/* Parse DIR or DIR:SIZE, where SIZE begins with a digit. */
static int prefix_cache(struct serve_options *o, const char *arg)
{
    const char *size = strrchr(arg, ':');
    const int sized = size && size[1] >= '0' && size[1] <= '9';
    free(o->prefix_folder);
    o->prefix_folder = strndup(arg, sized ? (size_t)(size - arg) : strlen(arg));
    o->run.prefix_bytes = 0;
    if (!o->prefix_folder || !*o->prefix_folder)
        return cli_wrong(prog, "--prefix-cache: '%s', expected DIR or DIR:SIZE", arg);
    if (sized && cli_parse_size(prog, "--prefix-cache", size + 1, &o->run.prefix_bytes) != 0)
        return CLI_USAGE;
    if (sized && o->run.prefix_bytes < 1 << 20)
        return cli_wrong(prog, "--prefix-cache: %s, expected at least 1MiB", size + 1);
    o->run.prefix_folder = o->prefix_folder;
    o->run.prefix_prog = prog;
    return 0;
}

static int prefix_scope(struct serve_options *o, const char *arg)
{
    o->prefix_all = strcmp(arg, "all") == 0;
    return o->prefix_all || strcmp(arg, "key") == 0 ? 0 : cli_wrong(prog, "--prefix-scope: '%s', expected key or all",
                                                                    arg);
}

/* Handle one option: 0, or the exit code of wrong usage. */
static int take(struct serve_options *o, int c, char *arg)
{
    uint64_t size;
    switch (c) {
    case OPT_HOST: o->host = arg; return 0;
    case OPT_PORT: o->port_given = 1; return whole("--port", arg, 0, 65535, &o->port);
    case OPT_SOCKET: o->socket_path = arg; return 0;
    case OPT_CERT: o->tls_cert = arg; return 0;
    case OPT_KEY: o->tls_key = arg; return 0;
    case OPT_NO_AUTH: o->no_auth = 1; return 0;
    case OPT_KEYS_URL: return keys_url_take(prog, arg, &o->keys_url);
    case OPT_KEYS_GRACE: o->keys_grace_given = 1; return whole("--keys-grace", arg, 0, 31536000, &o->keys_grace_s);
    case OPT_QUERY_KEY: o->query_keys = 1; return 0;
    case OPT_STRICT_API: o->strict_api = 1; return 0;
    case OPT_ANONYMOUS: return whole("--anonymous-limit", arg, 0, 1000000000, &o->anonymous_limit);
    case OPT_MODEL_DIR: o->model_dir = arg; return 0;
    case OPT_LORA_DIR: o->lora_dir = arg; return 0;
    case OPT_KV_EVENTS: o->kv_events = arg; return 0;
    case OPT_KV_REPLAY: o->kv_replay = arg; return 0;
    case OPT_KV_TOPIC: o->kv_topic = arg; return 0;
    case OPT_USER: o->user = arg; return 0;
    case OPT_AUDIT_FOLDER: o->audit_folder = arg; return 0;
    case OPT_AUDIT_SIZE: return cli_parse_size(prog, "--audit-size", arg, &o->audit_bytes);
    case OPT_AUDIT_ANONYMOUS: return cli_parse_size(prog, "--audit-anonymous-size", arg, &o->audit_anonymous_bytes);
    case OPT_AUDIT_FILES: return whole("--audit-files", arg, 1, 900, &o->audit_files);
    case OPT_AUDIT_SYSLOG: o->audit_syslog = arg; return 0;
    case OPT_AUDIT_URL: return audit_url_take(prog, arg, &o->audit_url);
    case OPT_AUDIT_TOKEN: o->audit_token = arg; return 0;
    case OPT_AUDIT_SIGN: o->audit_sign = arg; return 0;
    case OPT_AUDIT_PROMPTS: o->audit_prompts = 1; return 0;
    case OPT_NO_AUDIT: o->no_audit = 1; return 0;
    case OPT_LOG_REQUESTS: o->log_requests = 1; return 0;
    case OPT_NO_HISTORY: o->no_history = 1; return 0;
    case OPT_HISTORY_DAYS: return whole("--history-days", arg, 0, 36500, &o->history_days);
    case OPT_RESPONSES_SIZE: return cli_parse_size(prog, "--responses-size", arg, &o->responses_bytes);
    case OPT_HISTORY_SIZE: return cli_parse_size(prog, "--history-size", arg, &o->history_bytes);
    case OPT_HISTORY_CONVERSATIONS:
        return whole("--history-conversations", arg, 1, 100000000, &o->history_conversations);
    case OPT_PROXY: o->trust_proxy = 1; return 0;
    case OPT_ORIGIN: o->origins[o->n_origins++] = arg; return 0;
    case OPT_ALLOW_HOST: o->hosts[o->n_hosts++] = arg; return 0;
    case OPT_NAME: o->names[o->n_names++] = arg; return 0;
    case OPT_SEQS: return whole("--max-seqs", arg, 1, 4096, &o->max_seqs);
    case OPT_BATCHING:
        o->no_batching = strcmp(arg, "off") == 0;
        return o->no_batching || strcmp(arg, "on") == 0 ? 0 : cli_wrong(prog, "--batching: '%s', expected on or off", arg);
    case OPT_QUEUE: return whole("--max-queue", arg, 0, INT32_MAX, &o->max_queue);
    case OPT_KV_BYTES: return cli_parse_size(prog, "--kv-bytes", arg, &o->kv_bytes);
    case OPT_MEMORY: return cli_parse_size(prog, "--max-memory", arg, &o->max_memory);
    case OPT_PREFIX_CACHE: return prefix_cache(o, arg);
    case OPT_PREFIX_SCOPE: return prefix_scope(o, arg);
    case OPT_NO_PREFIX: o->no_prefix_cache = 1; return 0;
    case OPT_TIMEOUT: return cli_parse_float(prog, "--timeout", arg, 0, 1e6, &o->timeout_s);
    case OPT_STALL: return cli_parse_float(prog, "--stall", arg, 0, 1e6, &o->stall_s);
    case OPT_DRAIN: return cli_parse_float(prog, "--drain", arg, 0, 1e6, &o->drain_s);
    case OPT_CONNECTIONS: return whole("--max-connections", arg, 1, 1000000, &o->max_connections);
    case OPT_PER_ADDRESS: return whole("--max-per-address", arg, 0, 1000000, &o->max_per_address);
    case OPT_BODY:
        if (cli_parse_size(prog, "--max-body", arg, &size) != 0)
            return CLI_USAGE;
        if (size < 1024 || size > (uint64_t)1 << 32)
            return cli_wrong(prog, "--max-body: %s is not in the range 1KiB to 4GiB", arg);
        o->max_body = size;
        return 0;
    case OPT_REQUEST_MEMORY: return work_memory("--max-request-memory", arg, &o->max_request_memory);
    case OPT_WORK_MEMORY: return work_memory("--work-memory", arg, &o->work_memory);
    case OPT_EMBEDDING: o->embedding_model = arg; return 0;
    case OPT_RERANK: o->rerank_model = arg; return 0;
    case OPT_RAG_DOCUMENTS: return whole("--rag-documents", arg, 0, INT32_MAX, &o->rag_documents);
    case OPT_RAG_BYTES: return cli_parse_size(prog, "--rag-bytes", arg, &o->rag_bytes);
    case OPT_MCP_CONFIG: o->mcp_config = arg; return 0;
    case OPT_MCP_STDIO: o->mcp_stdio = 1; return 0;
    case OPT_QUIET: o->quiet = 1; return 0;
    case OPT_PLAN: o->plan = 1; return 0;
    case OPT_NO_WATCH: o->no_watch = 1; return 0;
    case OPT_KEEP_ALIVE: return keep_alive(arg, &o->keep_alive_s);
    case OPT_CONFIG: return 0;              /* the file was read before the other options */
    default: return run_option(prog, c, arg, &o->run);
    }
}

static int is_lora(const struct serve_options *o, const char *name)
{
    for (int i = 0; name && i < o->run.n_loras; i++) {
        const struct lora_option *l = &o->run.loras[i];
        if (strlen(name) == (size_t)l->name_len && memcmp(name, l->name, strlen(name)) == 0)
            return 1;
    }
    return 0;
}

/* Check that no adapter has a name that stands for a model. */
static int check_lora_names(const struct serve_options *o)
{
    for (int i = 0; i < o->run.n_loras; i++) {
        char *name = strndup(o->run.loras[i].name, (size_t)o->run.loras[i].name_len);
        const char *fault = name ? adapter_name_fault(name) : NULL;
        if (fault)
            cli_wrong(prog, "--lora %s=...: the name %s", name, fault);
        free(name);
        if (fault)
            return CLI_USAGE;
    }
    if (is_lora(o, "default"))
        return cli_wrong(prog, "--lora default=...: this name means the first model");
    for (int i = 0; i < o->n_models; i++) {
        char *id = i < o->n_names ? strdup(o->names[i]) : server_model_id(o->models[i]);
        const int found = is_lora(o, id);
        if (found)
            cli_wrong(prog, "--lora %s=...: %s has this name, too", id, i ? "another model" : "the model");
        free(id);
        if (found)
            return CLI_USAGE;
    }
    const char *const uses[][2] = { { "--embedding-model", o->embedding_model }, { "--rerank-model", o->rerank_model } };
    for (int i = 0; i < 2; i++)
        if (is_lora(o, uses[i][1]))
            return cli_wrong(prog, "%s %s: is a LoRA adapter, expected a model", uses[i][0], uses[i][1]);
    return CLI_OK;
}

static int check(struct serve_options *o)
{
    if (!o->tls_cert != !o->tls_key)
        return cli_wrong(prog, "--tls-cert and --tls-key: both or none");
    if (o->prefix_folder && o->no_prefix_cache)
        return cli_wrong(prog, "--prefix-cache and --no-prefix-cache exclude each other");
    if (o->n_names > o->n_models)
        return cli_wrong(prog, "--name %s: there are %d name%s for %d model%s", o->names[o->n_names - 1], o->n_names,
                         plural(o->n_names), o->n_models, plural(o->n_models));
    if (o->run.n_loras && !o->n_models)
        return cli_wrong(prog, "--lora: adapters need a MODEL on the command line");
    if (!o->kv_events && (o->kv_replay || o->kv_topic))
        return cli_wrong(prog, "--kv-replay and --kv-topic need --kv-events");
    if (o->kv_events && !o->n_models)
        return cli_wrong(prog, "--kv-events needs a MODEL on the command line");
    if (check_lora_names(o) != CLI_OK)
        return CLI_USAGE;
    if (o->mcp_stdio && o->n_models)
        return cli_wrong(prog, "--mcp-stdio: found the model %s, expected none: it offers tools alone", o->models[0]);
    if (o->keys_url && o->no_auth)
        return cli_wrong(prog, "--keys and --no-auth exclude each other");
    if (o->audit_token && !o->audit_url)
        return cli_wrong(prog, "--audit-token needs --audit-url");
    if (o->audit_token && !audit_url_is_private(o->audit_url))
        return cli_wrong(prog, "--audit-token: the URL of --audit-url begins with http://, which would show the token "
                         "to the network: expected https://, or an address of this machine");
    if (o->keys_grace_given && !o->keys_url)
        return cli_wrong(prog, "--keys-grace needs --keys");
    const char *host = getenv("ZSE_HOST"), *port = getenv("ZSE_PORT");
    if (!o->host && (!o->socket_path || o->port_given)) {
        o->host = host && *host ? host : "127.0.0.1";
        o->host_is_default = !o->port_given;
    }
    if (port && strncmp(port, "tcp://", 6) == 0) {      /* Kubernetes and Docker set it for a service named zse */
        cli_note(prog, "ZSE_PORT is '%s', the address of a service: ignored", port);
        port = NULL;
    }
    if (o->host && !o->port_given && port && *port && whole("ZSE_PORT", port, 0, 65535, &o->port) != 0)
        return CLI_USAGE;
    return run_options_check(prog, &o->run);
}

/* Find --config on the command line, and count its models and ids; the arguments themselves are
 * checked later. */
static const char *find_config(int argc, char **argv, int *n_models, int *n_names)
{
    const char *path = NULL;
    const int before = opterr;
    int c;
    opterr = 0;
    *n_names = 0;
    while ((c = cli_getopt(argc, argv, "q:hV", options)) != -1) {
        if (c == OPT_CONFIG)
            path = optarg;
        *n_names += c == OPT_NAME;
    }
    *n_models = argc - optind;
    opterr = before;
    optind = 0;                             /* restart */
    return path;
}

/* The options, then the fields of a request that draw the tokens of its answer. */
static int print_defaults(void)
{
    const int rc = cli_defaults(usage);
    for (int i = 0; i < N_SAMPLING_OPTIONS; i++)
        printf("%-26s %s%g\n", sampling_options[i].name, sampling_options[i].by_model ? "the model's, else " : "",
               sampling_options[i].value);
    return rc ? rc : cli_finish(prog);
}

int serve_options_parse(struct serve_options *o, int argc, char **argv)
{
    int c, rc, n_models, n_names;
    struct err e;
    *o = (struct serve_options){ .port = 8000, .max_seqs = 32, .max_queue = 1000, .timeout_s = 600, .drain_s = 30,
                                 .stall_s = 60, .max_connections = 4096, .max_per_address = 512, .max_body = 16000000,
                                 .keep_alive_s = 300, .keys_grace_s = 3600,
                                 .responses_bytes = 64 << 20,
                                 .rag_documents = 10000, .rag_bytes = 1000000000,
                                 .run.spec = SPEC_AUTO };
    const char *config = find_config(argc, argv, &n_models, &n_names);
    if (serve_config_open(&o->config, config, options, argc, argv, n_models, n_names, &e) != 0)
        return cli_fail(prog, &e);
    argc = o->config.argc;
    argv = o->config.argv;
    o->origins = calloc((size_t)argc + 1, sizeof *o->origins);
    o->hosts = calloc((size_t)argc + 1, sizeof *o->hosts);
    o->names = calloc((size_t)argc + 1, sizeof *o->names);
    if (!o->origins || !o->hosts || !o->names) {
        cli_note(prog, "out of memory");
        return CLI_FAILED;
    }
    while ((c = cli_getopt(argc, argv, "q:hV", options)) != -1) {
        if (c == 'h')
            return cli_help(usage);
        if (c == CLI_PRINT_DEFAULTS)
            return print_defaults();
        if (c == 'V')
            return cli_version(prog);
        if ((rc = take(o, c, optarg)) != 0)
            return rc < 0 ? cli_usage(usage) : rc;
    }
    o->models = (const char *const *)argv + optind;
    o->n_models = argc - optind;
    rc = check(o);
    return rc ? rc : -1;
}

void serve_options_release(struct serve_options *o)
{
    serve_config_close(&o->config);
    free(o->origins);
    free(o->hosts);
    free(o->names);
    free(o->prefix_folder);
    free(o->keys_url);
    free(o->audit_url);
}
