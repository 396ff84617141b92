/* routes.c - find the handler of a request in a table, from which /openapi.json is also made, and
 * check host, origin and key before calling it. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "libcommon/serve/exchange.h"
#include "libcommon/serve/internal.h"

#define JSON "application/json"
#define SSE "text/event-stream"
#define NDJSON "application/x-ndjson"

const struct route routes[] = {
    { "POST", "/v1/chat/completions", ROUTE_PLAIN, ACCESS_CHAT, handle_chat, BODY_CHAT,
      "Answer a conversation; with stream, as server-sent events", JSON },
    { "POST", "/v1/responses", ROUTE_PLAIN, ACCESS_CHAT, handle_responses, BODY_RESPONSES,
      "Answer a conversation, in OpenAI's Responses format", JSON },
    { "GET", "/v1/responses/", ROUTE_PREFIX, ACCESS_CHAT, handle_response, 0, "Show a response that is kept", JSON },
    { "DELETE", "/v1/responses/", ROUTE_PREFIX, ACCESS_CHAT, handle_response_delete, 0, "Forget a response", JSON },
    { "POST", "/v1/messages", ROUTE_PLAIN, ACCESS_CHAT, handle_messages, BODY_MESSAGES,
      "Answer a conversation, in Anthropic's Messages format", JSON },
    { "POST", "/v1/messages/count_tokens", ROUTE_PLAIN, ACCESS_KEY, handle_count_tokens, BODY_COUNT,
      "Count the prompt tokens of a Messages request", JSON },
    { "POST", "/v1/completions", ROUTE_PLAIN, ACCESS_CHAT, handle_completions, BODY_COMPLETION, "Continue a text",
      JSON },
    { "POST", "/v1/embeddings", ROUTE_PLAIN, ACCESS_EMBED, handle_embeddings, BODY_EMBEDDING,
      "Embed texts as vectors of length 1", JSON },
    { "POST", "/v1/rerank", ROUTE_PLAIN, ACCESS_EMBED, handle_rerank, BODY_RERANK,
      "Order documents by how well they answer a query", JSON },
    { "POST", "/v1/score", ROUTE_PLAIN, ACCESS_EMBED, handle_score, BODY_SCORE, "Score pairs of texts", JSON },
    { "GET", "/v1/models", ROUTE_PLAIN, ACCESS_KEY, handle_models, 0, "List the loaded models", JSON },
    { "GET", "/v1/models/", ROUTE_PREFIX, ACCESS_KEY, handle_model, 0, "Show one of them", JSON },
    { "POST", "/tokenize", ROUTE_PLAIN, ACCESS_KEY, handle_tokenize, BODY_TOKENIZE, "Convert text to token ids", JSON },
    { "POST", "/detokenize", ROUTE_PLAIN, ACCESS_KEY, handle_detokenize, BODY_DETOKENIZE, "Convert token ids to text",
      JSON },
    { "GET", "/tokenizer_info", ROUTE_PLAIN, ACCESS_KEY, handle_tokenizer_info, 0,
      "Describe the tokenizer, in vLLM's format; ?model: an id (default: the first model)", JSON },
    { "POST", "/v1/chat/completions/render", ROUTE_PLAIN, ACCESS_CHAT, handle_render_chat, BODY_CHAT,
      "Show the prompt of a request to /v1/chat/completions, as text and token ids, and answer nothing", JSON },
    { "POST", "/v1/completions/render", ROUTE_PLAIN, ACCESS_KEY, handle_render_completion, BODY_COMPLETION,
      "Show the prompts of a request to /v1/completions, as texts and token ids, and answer nothing", JSON },
    { "POST", "/apply-template", ROUTE_PLAIN, ACCESS_KEY, handle_template, BODY_TEMPLATE,
      "Render a conversation as the prompt that the model sees", JSON },
    { "GET", "/health", ROUTE_PLAIN, ACCESS_PUBLIC, handle_health, 0, "200 when a model is ready or none was requested, 503 while loading or stopping, when an engine stalls, when memory is short, or when the model cannot be loaded again", JSON },
    { "GET", "/livez", ROUTE_PLAIN, ACCESS_PUBLIC, handle_live, 0, "200, also while loading or stopping; 503 when an engine stalls",
      JSON },
    { "POST", "/sleep", ROUTE_PLAIN, ACCESS_ADMIN, handle_sleep, 0,
      "Close all models and give their memory back; ?level=2: also the page cache of their files", JSON },
    { "POST", "/wake_up", ROUTE_PLAIN, ACCESS_ADMIN, handle_wake_up, 0, "Load the models again after /sleep; ?tags=weights, ?tags=kv_cache: when both have come",
      JSON },
    { "GET", "/is_sleeping", ROUTE_PLAIN, ACCESS_READ, handle_is_sleeping, 0, "Whether the server sleeps", JSON },
    { "GET", "/metrics", ROUTE_PLAIN, ACCESS_READ, handle_metrics, 0, "Metrics for Prometheus", "text/plain" },
    { "GET", "/openapi.json", ROUTE_PLAIN, ACCESS_PUBLIC, handle_openapi, 0, "This description", JSON },
    { "GET", "/", ROUTE_PLAIN, ACCESS_PUBLIC, handle_root, 0, "Name, version and totals; a web page for browsers",
      JSON },
#define PAGE(path, about) { "GET", path, ROUTE_PLAIN, ACCESS_PUBLIC, handle_page, 0, about, "text/html" }
    PAGE("/chat", "Web interface: conversations"),
    PAGE("/dashboard", "Web interface: state and charts"),
    PAGE("/models", "Web interface: models"),
    PAGE("/keys", "Web interface: API keys"),
    PAGE("/audit", "Web interface: the audit log"),
    PAGE("/docs", "Web interface: documentation"),
    { "GET", "/web/", ROUTE_PREFIX, ACCESS_PUBLIC, handle_asset, 0, "Files of the web interface", "text/javascript" },
    { "GET", "/api/whoami", ROUTE_PLAIN, ACCESS_PUBLIC, handle_whoami, 0,
      "Scopes of the caller's key, and what the server offers", JSON },
    { "GET", "/api/models/registry", ROUTE_PLAIN, ACCESS_READ, handle_registry, 0,
      "Well-known models and the memory they take; ?category, size, max_vram (GB), recommended=true", JSON },
    { "GET", "/api/models/registry/", ROUTE_PREFIX, ACCESS_READ, handle_registry_model, 0, "One of them", JSON },
    { "GET", "/api/models/search", ROUTE_PLAIN, ACCESS_ADMIN, handle_hub_search, 0,
      "Models on the hub whose name contains ?q; ?limit=1..50", JSON },
    { "GET", "/api/models/check/", ROUTE_PREFIX, ACCESS_ADMIN, handle_hub_check, 0,
      "Whether a model on the hub can be converted and runs here", JSON },
    { "GET", "/api/models/files", ROUTE_PLAIN, ACCESS_ADMIN, handle_model_files, 0,
      "Models on the disk of the server that can be loaded", JSON },
    { "DELETE", "/api/models/files/", ROUTE_PREFIX, ACCESS_ADMIN_MODEL, handle_model_remove, 0,
      "Delete one of these files, unless it is loaded", JSON },
    { "GET", "/api/models/jobs", ROUTE_PLAIN, ACCESS_ADMIN, handle_jobs, 0,
      "List downloads and conversions, oldest first", JSON },
    { "POST", "/api/models/jobs", ROUTE_PLAIN, ACCESS_ADMIN, handle_job_create, BODY_JOB,
      "Download or convert a model; one at a time runs, the others wait", JSON },
    { "GET", "/api/models/jobs/events", ROUTE_PLAIN, ACCESS_ADMIN, handle_job_events, 0,
      "The list of jobs as server-sent events, whenever it changes; a stream ends after ten minutes", SSE },
    { "GET", "/api/models/jobs/{id}", ROUTE_PATTERN, ACCESS_ADMIN, handle_job, 0, "Show a job", JSON },
    { "POST", "/api/models/jobs/{id}/resume", ROUTE_PATTERN, ACCESS_ADMIN, handle_job_resume, 0,
      "Queue a failed or cancelled job again; it continues where it was", JSON },
    { "DELETE", "/api/models/jobs/{id}", ROUTE_PATTERN, ACCESS_ADMIN, handle_job_delete, 0,
      "Cancel a job, or remove one that has ended from the list", JSON },
    { "POST", "/api/models/load", ROUTE_PLAIN, ACCESS_ADMIN_MODEL, handle_load, BODY_LOAD,
      "Load a model; the answer comes when it is ready", JSON },
    { "POST", "/api/models/unload", ROUTE_PLAIN, ACCESS_ADMIN_MODEL, handle_unload, BODY_UNLOAD,
      "Unload a model; running requests end first", JSON },
    { "POST", "/v1/load_lora_adapter", ROUTE_PLAIN, ACCESS_ADMIN_MODEL, handle_lora_load, BODY_LORA_LOAD,
      "Load a LoRA adapter beside a loaded model; the answer comes when requests can name it", "text/plain" },
    { "POST", "/v1/unload_lora_adapter", ROUTE_PLAIN, ACCESS_ADMIN_MODEL, handle_lora_unload, BODY_LORA_UNLOAD,
      "Unload a LoRA adapter; requests that use it end first", "text/plain" },
    { "GET", "/api/stats", ROUTE_PLAIN, ACCESS_READ, handle_stats, 0, "State of the machine and of the models", JSON },
    { "GET", "/api/stats/gpu", ROUTE_PLAIN, ACCESS_READ, handle_stats_gpu, 0,
      "GPUs, and the memory that models take on them", JSON },
    { "GET", "/api/stats/models", ROUTE_PLAIN, ACCESS_READ, handle_stats_models, 0,
      "Memory, KV blocks, requests and tokens of each model", JSON },
    { "GET", "/api/analytics", ROUTE_PLAIN, ACCESS_READ, handle_analytics, 0, "Totals of the requests since the start",
      JSON },
    { "GET", "/api/analytics/timeseries", ROUTE_PLAIN, ACCESS_READ, handle_timeseries, 0, "The last hour by the minute",
      JSON },
    { "GET", "/api/analytics/requests", ROUTE_PLAIN, ACCESS_READ, handle_requests, 0,
      "The last requests, newest first; ?limit=1..1000", JSON },
    { "GET", "/api/batching", ROUTE_PLAIN, ACCESS_READ, handle_batching, 0, "Settings and statistics of batching",
      JSON },
    { "POST", "/api/batching", ROUTE_PLAIN, ACCESS_ADMIN, handle_batching_set, BODY_BATCHING,
      "Change the settings of batching", JSON },
    { "POST", "/api/batching/enable", ROUTE_PLAIN, ACCESS_ADMIN, handle_batching_enable, 0, "Let requests run together",
      JSON },
    { "POST", "/api/batching/disable", ROUTE_PLAIN, ACCESS_ADMIN, handle_batching_disable, 0,
      "Run one request at a time", JSON },
    { "GET", "/api/keys", ROUTE_PLAIN, ACCESS_ADMIN, handle_keys, 0, "List the API keys, without their secrets", JSON },
    { "POST", "/api/keys", ROUTE_PLAIN, ACCESS_ADMIN, handle_key_create, BODY_KEY,
      "Create a key; only this answer contains its secret", JSON },
    { "POST", "/api/keys/auth", ROUTE_PLAIN, ACCESS_ADMIN, handle_keys_required, BODY_ENABLE,
      "Set whether requests need a key", JSON },
    { "PATCH", "/api/keys/{id}", ROUTE_PATTERN, ACCESS_ADMIN, handle_key_enable, BODY_ENABLE,
      "Enable or disable a key", JSON },
    { "POST", "/api/keys/{id}/rotate", ROUTE_PATTERN, ACCESS_ADMIN, handle_key_rotate, 0,
      "Give a key a new secret, which only this answer contains; the old one is invalid at once", JSON },
    { "DELETE", "/api/keys/", ROUTE_PREFIX, ACCESS_ADMIN, handle_key_delete, 0, "Delete a key", JSON },
    { "GET", "/api/chat/conversations", ROUTE_PLAIN, ACCESS_CHAT, handle_chats_list, 0,
      "List conversations, pinned and then newest first; ?limit=1..200, offset, folder, tag", JSON },
    { "POST", "/api/chat/conversations", ROUTE_PLAIN, ACCESS_CHAT, handle_chats_create, BODY_CONVERSATION,
      "Create a conversation", JSON },
    { "DELETE", "/api/chat/conversations", ROUTE_PLAIN, ACCESS_CHAT, handle_chats_delete_all, 0,
      "Delete all conversations; ?all=true", JSON },
    { "GET", "/api/chat/conversations/search", ROUTE_PLAIN, ACCESS_CHAT, handle_chats_search, 0,
      "Same as /api/chat/search", JSON },
    { "POST", "/api/chat/conversations/import", ROUTE_PLAIN, ACCESS_CHAT, handle_chats_import, BODY_CHAT_IMPORT,
      "Create a conversation from an exported one; ?copy=true: under a new id", JSON },
    { "GET", "/api/chat/conversations/{id}", ROUTE_PATTERN, ACCESS_CHAT, handle_chats_get, 0,
      "Show a conversation", JSON },
    { "PATCH", "/api/chat/conversations/{id}", ROUTE_PATTERN, ACCESS_CHAT, handle_chats_update, BODY_CONVERSATION_EDIT,
      "Change a conversation: an absent field stays, null resets it", JSON },
    { "DELETE", "/api/chat/conversations/{id}", ROUTE_PATTERN, ACCESS_CHAT, handle_chats_delete, 0,
      "Delete a conversation and its messages", JSON },
    { "GET", "/api/chat/conversations/{id}/messages", ROUTE_PATTERN, ACCESS_CHAT, handle_chats_messages, 0,
      "List messages; ?limit=1..10000, after (an id), branch=all or active", JSON },
    { "POST", "/api/chat/conversations/{id}/messages", ROUTE_PATTERN, ACCESS_CHAT, handle_chats_add, BODY_CHAT_MESSAGE,
      "Add a message, which becomes the active leaf", JSON },
    { "DELETE", "/api/chat/conversations/{id}/messages", ROUTE_PATTERN, ACCESS_CHAT, handle_chats_remove_all, 0,
      "Delete all messages of a conversation", JSON },
    { "GET", "/api/chat/conversations/{id}/messages/{message_id}", ROUTE_PATTERN, ACCESS_CHAT, handle_chats_message, 0,
      "Show a message", JSON },
    { "PATCH", "/api/chat/conversations/{id}/messages/{message_id}", ROUTE_PATTERN, ACCESS_CHAT, handle_chats_edit,
      BODY_CHAT_MESSAGE_EDIT, "Change a message", JSON },
    { "DELETE", "/api/chat/conversations/{id}/messages/{message_id}", ROUTE_PATTERN, ACCESS_CHAT, handle_chats_remove,
      0, "Delete a message and all below it", JSON },
    { "GET", "/api/chat/conversations/{id}/export", ROUTE_PATTERN, ACCESS_CHAT, handle_chats_export, 0,
      "Export a conversation; ?format=json or markdown, ?download=true: the file itself", JSON },
    { "GET", "/api/chat/search", ROUTE_PLAIN, ACCESS_CHAT, handle_chats_search, 0,
      "Search titles and messages; ?q= words (all of them, the last one may be a beginning) and \"phrases\", limit=1..100", JSON },
    { "GET", "/api/chat/search/", ROUTE_PREFIX, ACCESS_CHAT, handle_chats_search, 0,
      "Same as /api/chat/search, with the words in the path", JSON },
    { "GET", "/api/chat/stats", ROUTE_PLAIN, ACCESS_CHAT, handle_chats_stats, 0,
      "Size of the chat history, and its limits", JSON },
    { "GET", "/api/audit/summary", ROUTE_PLAIN, ACCESS_ADMIN, handle_audit_summary, 0,
      "Summarize the audit log; ?hours=1..720", JSON },
    { "GET", "/api/audit/recent", ROUTE_PLAIN, ACCESS_ADMIN, handle_audit_recent, 0,
      "Newest lines of the audit log, from memory; ?limit=1..500", JSON },
    { "GET", "/api/audit/query", ROUTE_PLAIN, ACCESS_ADMIN, handle_audit_query, 0,
      "Search the audit log by ?hours, key (its name), path, method, status, min_latency, limit", JSON },
    { "GET", "/api/audit/stats", ROUTE_PLAIN, ACCESS_ADMIN, handle_audit_stats, 0,
      "Files, lines and lost lines of the audit log", JSON },
    { "DELETE", "/api/audit/clear", ROUTE_PLAIN, ACCESS_ADMIN, handle_audit_clear, 0,
      "Empty the audit log; ?all_logs=true: rotated files, too", JSON },
    { "GET", "/api/tools", ROUTE_PLAIN, ACCESS_KEY, handle_tools, 0, "List the tools that the server runs", JSON },
    { "GET", "/api/tools/", ROUTE_PLAIN, ACCESS_KEY, handle_tools, 0, "The same as /api/tools", JSON },
    { "GET", "/api/tools/openai/functions", ROUTE_PLAIN, ACCESS_KEY, handle_tool_functions, 0,
      "The same tools, as a chat request lists them", JSON },
    { "POST", "/api/tools/execute", ROUTE_PLAIN, ACCESS_CHAT, handle_tool_execute, BODY_TOOL, "Run a tool", JSON },
    { "POST", "/api/tools/parse", ROUTE_PLAIN, ACCESS_CHAT, handle_tool_parse, BODY_TOOL_PARSE,
      "Find the calls of tools in a text", JSON },
    { "POST", "/api/tools/process", ROUTE_PLAIN, ACCESS_CHAT, handle_tool_process, BODY_TOOL_PROCESS,
      "Find the calls of tools in a text, and run them", JSON },
    { "POST", "/api/rag/documents", ROUTE_PLAIN, ACCESS_CHAT, handle_rag_add, BODY_RAG_DOCUMENT,
      "Store a document for searching; a document of the same content is refused with 409", JSON },
    { "POST", "/api/rag/documents/upload", ROUTE_PLAIN, ACCESS_CHAT, handle_rag_upload, BODY_RAG_UPLOAD,
      "Store a file for searching: text, Markdown, HTML, JSON, PDF, docx, odt, epub", JSON },
    { "GET", "/api/rag/documents", ROUTE_PLAIN, ACCESS_CHAT, handle_rag_list, 0,
      "List the key's documents, newest first; ?collection, limit=1..1000, offset", JSON },
    { "GET", "/api/rag/documents/", ROUTE_PREFIX, ACCESS_CHAT, handle_rag_get, 0,
      "Show a document; ?chunks=true: with its text", JSON },
    { "DELETE", "/api/rag/documents/", ROUTE_PREFIX, ACCESS_CHAT, handle_rag_delete, 0,
      "Delete a document with its chunks and vectors", JSON },
    { "GET", "/api/rag/collections", ROUTE_PLAIN, ACCESS_CHAT, handle_rag_collections, 0,
      "List the key's collections of documents", JSON },
    { "DELETE", "/api/rag/collections/", ROUTE_PREFIX, ACCESS_CHAT, handle_rag_drop, 0,
      "Delete a collection with its documents", JSON },
    { "POST", "/api/rag/search", ROUTE_PLAIN, ACCESS_CHAT, handle_rag_search, BODY_RAG_SEARCH,
      "Find passages of documents; if nothing is relevant, reason says why", JSON },
    { "POST", "/api/rag/context", ROUTE_PLAIN, ACCESS_CHAT, handle_rag_context, BODY_RAG_CONTEXT,
      "Find passages and number them for a prompt, within max_tokens", JSON },
    { "GET", "/api/rag/stats", ROUTE_PLAIN, ACCESS_CHAT, handle_rag_stats, 0,
      "Count the key's documents, and list the formats that can be read", JSON },
    { "GET", "/api/version", ROUTE_OLLAMA, ACCESS_PUBLIC, handle_ollama_version, 0,
      "The version of Ollama whose API the following paths are", JSON },
    { "GET", "/api/tags", ROUTE_OLLAMA, ACCESS_KEY, handle_ollama_tags, 0, "List the models, in Ollama's format", JSON },
    { "GET", "/api/ps", ROUTE_OLLAMA, ACCESS_KEY, handle_ollama_ps, 0, "List the loaded models, in Ollama's format",
      JSON },
    { "POST", "/api/show", ROUTE_OLLAMA, ACCESS_KEY, handle_ollama_show, BODY_OLLAMA_MODEL,
      "Show a model, in Ollama's format", JSON },
    { "POST", "/api/chat", ROUTE_OLLAMA, ACCESS_CHAT, handle_ollama_chat, BODY_OLLAMA_CHAT,
      "Answer a conversation, in Ollama's format", NDJSON },
    { "POST", "/api/generate", ROUTE_OLLAMA, ACCESS_CHAT, handle_ollama_generate, BODY_OLLAMA_GENERATE,
      "Answer a prompt, in Ollama's format", NDJSON },
    { "POST", "/api/embed", ROUTE_OLLAMA, ACCESS_EMBED, handle_ollama_embed, BODY_OLLAMA_EMBED,
      "Embed texts, in Ollama's format", JSON },
    { "POST", "/api/embeddings", ROUTE_OLLAMA, ACCESS_EMBED, handle_ollama_embeddings, BODY_OLLAMA_EMBEDDINGS,
      "Embed a text, in Ollama's older format", JSON },
    { "POST", "/api/pull", ROUTE_OLLAMA, ACCESS_ADMIN_MODEL, handle_ollama_pull, BODY_OLLAMA_PULL,
      "Download and convert a model, as zse-convert pull; Ollama's format", NDJSON },
    { "POST", "/api/copy", ROUTE_OLLAMA, ACCESS_ADMIN_MODEL, handle_ollama_copy, BODY_OLLAMA_COPY,
      "Give a model an alias, in Ollama's format", JSON },
    { "DELETE", "/api/delete", ROUTE_OLLAMA, ACCESS_ADMIN_MODEL, handle_ollama_delete, BODY_OLLAMA_MODEL,
      "Delete a model with its aliases, or an alias, in Ollama's format", JSON },
    { "POST", "/mcp", ROUTE_PLAIN, ACCESS_CHAT, handle_mcp, BODY_MCP,
      "The Model Context Protocol, streamable HTTP: tools, models and documents as resources, prompts", JSON },
    { "GET", "/ws/chat", ROUTE_WEBSOCKET, ACCESS_CHAT, handle_ws_chat, BODY_WS_CHAT,
      "WebSocket: conversations in, {type: token | done | error} out", JSON },
    { "GET", "/ws/completions", ROUTE_WEBSOCKET, ACCESS_CHAT, handle_ws_completions, BODY_CHAT,
      "WebSocket: bodies of /v1/chat/completions in, the events of its stream out", JSON },
    { "GET", "/v1/responses", ROUTE_WEBSOCKET, ACCESS_CHAT, handle_ws_responses, BODY_RESPONSES,
      "WebSocket: bodies of POST /v1/responses with type response.create in, the events of its stream out", JSON },
    { "GET", "/ws/stats", ROUTE_WEBSOCKET, ACCESS_READ, handle_ws_stats, 0, "WebSocket: stats and analytics every 2 s",
      JSON },
};
const int n_routes = sizeof routes / sizeof *routes;

static int matches_pattern(const char *pattern, const char *path, const char **rest)
{
    const char *first = NULL;
    for (; *pattern; pattern++) {
        if (*pattern == '{') {
            const size_t n = strcspn(path, "/");
            if (!n)
                return 0;
            first = first ? first : path;
            path += n;
            pattern = strchr(pattern, '}');
        } else if (*pattern != *path++) {
            return 0;
        }
    }
    *rest = first;
    return !*path;
}

static int matches(const struct route *r, const char *path, const char **rest)
{
    size_t n = strlen(r->path);
    *rest = "";
    if (r->kind == ROUTE_PATTERN)
        return matches_pattern(r->path, path, rest);
    if (r->kind != ROUTE_PREFIX)
        return strcmp(r->path, path) == 0;
    *rest = path + n;
    return strncmp(r->path, path, n) == 0 && path[n];
}

static int method_fits(const struct route *r, const char *method)
{
    return strcmp(r->method, method) == 0 || (strcmp(r->method, "GET") == 0 && r->kind != ROUTE_WEBSOCKET &&
                                              strcmp(method, "HEAD") == 0);
}

int conn_route(const struct conn *c)
{
    const struct http_request *r = conn_request(c);
    const char *rest;
    for (int i = 0; r && r->path && i < n_routes; i++)      /* a request whose head was refused may have no path */
        if (matches(&routes[i], r->path, &rest) && method_fits(&routes[i], r->method))
            return i;
    return -1;
}

int route_administers(const struct route *r) { return r->access == ACCESS_ADMIN || r->access == ACCESS_ADMIN_MODEL; }

int route_is_ollama(int route) { return route >= 0 && routes[route].kind == ROUTE_OLLAMA; }

int route_of(void (*handle)(struct server *s, struct conn *c, const char *rest))
{
    int i = 0;
    while (routes[i].handle != handle)
        i++;
    return i;
}

/* The methods of a path: "GET, HEAD, POST"; "" if there is no such path. */
static void allowed(const char *path, char *out, size_t room)
{
    const char *rest;
    size_t n = 0;
    *out = '\0';
    for (int i = 0; i < n_routes; i++)
        if (matches(&routes[i], path, &rest) && n < room)
            n += (size_t)snprintf(out + n, room - n, "%s%s%s", n ? ", " : "", routes[i].method,
                                  strcmp(routes[i].method, "GET") == 0 &&
                                  routes[i].kind != ROUTE_WEBSOCKET ? ", HEAD" : "");
}

/* ---- host and origin ---- */

/* The name in a Host header, without the port. */
static void host_name(const char *host, char *out, size_t room)
{
    size_t n = *host == '[' ? strcspn(host, "]") + 1 : strcspn(host, ":");
    snprintf(out, room, "%.*s", (int)(n < room ? n : room - 1), host);
}

/* Check the Host header, as a defence against DNS rebinding: if no key is required (on loopback and
 * with --no-auth), a web page whose own name resolves to this server must not reach it.  A numeric
 * host cannot be rebound, and a browser cannot reach a Unix socket. */
static int host_is_ours(const struct server *s, const struct conn *c)
{
    const char *host = http_field(conn_request(c), "Host");
    char name[256];
    size_t n;
    if (!host || !*host || (!conn_is_local(c) && !s->o.no_auth) || strcmp(conn_peer(c), "unix") == 0)
        return 1;
    host_name(host, name, sizeof name);
    n = strlen(name);
    if (*name == '[' || strspn(name, "0123456789.") == n || strcasecmp(name, "localhost") == 0 ||
        (n > 10 && strcasecmp(name + n - 10, ".localhost") == 0))
        return 1;
    if (s->o.host && strcasecmp(name, s->o.host) == 0)
        return 1;
    for (int i = 0; i < s->o.n_hosts; i++)
        if (strcasecmp(name, s->o.hosts[i]) == 0 || strcmp(s->o.hosts[i], "*") == 0)
            return 1;
    return 0;
}

static int origin_is_listed(const struct server *s, const char *origin)
{
    for (int i = 0; i < s->o.n_origins; i++)
        if (strcmp(s->o.origins[i], "*") == 0 || strcasecmp(s->o.origins[i], origin) == 0)
            return 1;
    return 0;
}

enum origin { ORIGIN_OWN, ORIGIN_LISTED, ORIGIN_FOREIGN };

/* Classify the Origin header, which names the web page that sent the request: missing or our own,
 * one of --cors-origin, or another. */
static enum origin origin_of(const struct server *s, const struct conn *c)
{
    const struct http_request *r = conn_request(c);
    const char *origin = http_field(r, "Origin"), *host = http_field(r, "Host"),
               *scheme = origin ? strstr(origin, "://") : NULL;
    if (!origin || (scheme && host && strcasecmp(scheme + 3, host) == 0))
        return ORIGIN_OWN;
    return origin_is_listed(s, origin) ? ORIGIN_LISTED : ORIGIN_FOREIGN;
}

static int origin_may(const struct server *s, struct conn *c)
{
    const enum origin from = origin_of(s, c);
    if (from == ORIGIN_LISTED) {
        conn_add_header(c, "Access-Control-Allow-Origin", http_field(conn_request(c), "Origin"));
        conn_add_header(c, "Vary", "Origin");
        conn_add_header(c, "Access-Control-Expose-Headers", "X-Request-Id, X-Ignored-Fields, X-Not-Enforced");
    }
    return from != ORIGIN_FOREIGN;
}

static void preflight(struct server *s, struct conn *c, const char *methods)
{
    const struct http_request *r = conn_request(c);
    conn_add_header(c, "Allow", methods);
    if (http_field(r, "Origin") && http_field(r, "Access-Control-Request-Method")) {
        const char *headers = http_field(r, "Access-Control-Request-Headers");
        conn_add_header(c, "Access-Control-Allow-Methods", methods);
        if (headers)
            conn_add_header(c, "Access-Control-Allow-Headers", headers);
        conn_add_header(c, "Access-Control-Max-Age", "600");
    }
    metrics_count(&s->metrics, -1, 204);
    conn_reply(c, 204, NULL, "", 0);
}

int routes_wants_body(struct server *s, struct conn *c, uint64_t *owner)
{
    const int at = conn_route(c);
    if (at < 0 || routes[at].kind == ROUTE_WEBSOCKET || !routes[at].body || !host_is_ours(s, c) ||
        origin_of(s, c) == ORIGIN_FOREIGN || !guard_knows(s, c, &routes[at], owner))
        return 0;
    if (routes[at].access != ACCESS_PUBLIC)
        conn_own(c, *owner);
    return 1;
}

void routes_request(struct server *s, struct conn *c)
{
    const struct http_request *r = conn_request(c);
    const char *rest;
    char methods[80];
    int at = conn_route(c);
    record_begin(s, c);
    conn_add_header(c, "X-Content-Type-Options", "nosniff");
    allowed(r->path, methods, sizeof methods);
    if (!host_is_ours(s, c)) {
        reply_refusal(s, c, 421, "unknown_host",
                      "Host '%.80s' is not a name of this server: --allow-host NAME adds one, * any",
                      http_field(r, "Host"));
    } else if (!origin_may(s, c)) {
        reply_refusal(s, c, 403, "origin_not_allowed", "pages of %.80s may not use this server (--cors-origin)",
                      http_field(r, "Origin"));
    } else if (strcmp(r->method, "OPTIONS") == 0 && (*methods || strcmp(r->path, "*") == 0)) {
        preflight(s, c, *methods ? methods : "GET, HEAD, POST, OPTIONS");
    } else if (!*methods) {
        reply_refusal(s, c, 404, "not_found", "%.200s: no such path; /openapi.json lists them", r->path);
    } else if (at < 0) {
        conn_add_header(c, "Allow", methods);
        reply_refusal(s, c, 405, "method_not_allowed", "%.32s %.200s: expected %s", r->method, r->path, methods);
    } else if (!guard_admits(s, c, &routes[at])) {
        return;
    } else if (routes[at].body && routes[at].kind != ROUTE_WEBSOCKET && !conn_has_body(c)) {
        /* the body was discarded, because the key was not valid when the body began; it is valid
         * now */
        struct problem pr;
        conn_set_header(c, "Retry-After", "1");
        if (conn_hold_problem(c, &pr) != 0)
            reply_problem(s, c, &pr);
        else if (s->watch.state != WATCH_FINE)
            reply_refusal(s, c, 503, "memory_pressure", "memory is short: no large bodies until there is more");
        else
            reply_refusal(s, c, 503, "body_not_kept", "the body arrived before the key was valid: send it again");
    } else {
        matches(&routes[at], r->path, &rest);
        if (routes[at].access != ACCESS_PUBLIC)
            conn_own(c, guard_tenant(conn_record(c)));
        routes[at].handle(s, c, rest);
    }
}
