/* server.h - zse-serve as a library: models behind the APIs of OpenAI and Anthropic, over HTTP.
 *
 * The modules, in the order in which a request passes through them:
 *
 *   http/loop, http/conn*    sockets, TLS, time limits, bytes in and out
 *   http/places              the number of connections, and which one is evicted
 *   http/http, websocket     parse requests and messages
 *   routes                   find the handler by method and path; check host and origin
 *   guard, admit             keys, limits of rate and tokens, the audit log
 *   access_record            the request's line in that log
 *   fields, reply            parse bodies to parameters; write answers
 *   api/                     endpoints that generate (api/calls.h), and text and tokens
 *   tools/                   tools that the server runs, and their endpoints
 *   chats/                   chat history (libcommon/history)
 *   admin/                   all other endpoints: health, statistics, models, keys, metrics
 *   response_store           responses that can be continued by their ids
 *   web/                     the web interface
 *   rag/                     documents: adding, searching
 *   grammars                 compiled grammars of the answers
 *   worker                   the thread of one engine: commands in, events out
 *   named                    models that have names, loaded when a request names one
 *   models                   loaded models; model_tasks opens and closes them, and evicted
 *                            remembers those that were unloaded automatically
 *   watch, metrics           memory pressure and stalled engines; counters
 *   server                   opening, closing, the callbacks of the loop
 *
 * Threads:
 *   loop        the caller of server_run: connections, handlers, answers, all state in internal.h
 *   engines     one for each model (worker.h): steps of the engine
 *   tasks       one: opens and closes models (model_tasks.h)
 *   preparing   two: parse large bodies, render templates, compile grammars (api/internal.h)
 *   handshakes  one for every four processors, with TLS only (http/handshake.h)
 *   tools       up to four for built-in tools and for each MCP server, started when
 *               needed (tools/toolbox.c)
 *   peers       one for each MCP server (mcp/peer.h)
 *   chats       two: read and write the database of the chat history (chats/chats.h)
 *   reports     one for each question to the audit log or to the keys (admin/access_endpoints.c)
 *   jobs        one: waits for the process that downloads or converts (jobs/jobs.h)
 *   documents   one that writes rag.db and two that read it, from the first request on
 *   reaper      one: frees large buffers (http/reaper.h)
 * A call goes loop -> preparing -> loop -> engine; its tokens come back through the worker's queue.
 * Other threads hand results over under a lock of their own and call loop_wake. */
#ifndef ZSE_SERVE_SERVER_H
#define ZSE_SERVE_SERVER_H

#include <stdatomic.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/engine/engine.h"
#include "libcommon/model/model.h"
#include "libcommon/token/tokenizer.h"

/* A model and its engine, as the program's opener returns them. */
struct served_model {
    const struct model *model;
    struct model *adapts;               /* the same, to which its engine's thread may add adapters */
    const struct tokenizer *tokenizer;
    const json_t *json;                 /* header of the file */
    struct engine *engine;
    int max_len;                        /* tokens of a sequence */
    const char *quantization;           /* type of the weights, as text */
    uint64_t file_bytes;
    int counts_drafts;                  /* each answer tells how many tokens were drafted for it */
    void *handle;                       /* for the opener */
};
/* Options for loading a model; an empty string or 0 stands for the program's own option. */
struct model_choice {
    char quantization[32], device[32];
    double target_gb;
    int adapters;                       /* whether to add the adapters of server_options.adapters; set by the server */
};
struct model_opener {
    /* called from a thread of the server, for one model at a time */
    int (*open)(void *user, const char *path, const struct model_choice *how, struct served_model *m, struct err *e);
    void (*close)(void *user, struct served_model *m);
    /* Bind the LoRA adapter in folder to an open model, from the same thread; most_bytes: the
     * memory that it may take, 0: what the machine has.  NULL with *e.  If the member is NULL,
     * adapters cannot be loaded. */
    struct lora_bound *(*bind)(void *user, const struct served_model *m, const char *name, const char *folder,
                               uint64_t most_bytes, struct err *e);
    void *user;
};

/* Models that could be loaded; called from threads of the server, at any time until the process
 * ends.  New references; NULL with *e.  registry NULL: there is none. */
struct model_catalog {
    json_t *(*registry)(struct err *e);
    json_t *(*search)(const char *words, int limit, struct err *e);
    /* ERR_FORMAT: id is not a valid name */
    json_t *(*check)(const char *id, struct err *e);
};

/* A download or a conversion requested by a client.  Strings are borrowed. */
struct model_order {
    const char *source; int is_path;    /* org/name[@revision][:FILE] on the hub, or a path */
    const char *output;                 /* the .zse; NULL: only download it */
    const char *quantization, *quality; /* NULL: the defaults */
    double target_gb;                   /* size of the weights; 0: given by the type */
};
/* A model that zse-convert pull would make: its local name, its type ("": the default), its source
 * on the hub (malloc'd), and the revision of that source in the cache of downloads ("": the source
 * is not in the cache). */
struct model_pulled { char name[128], type[16], revision[64]; char *source; };
/* Child processes that make models: jobs/jobs.h. */
struct model_maker {
    /* Returns the command line for the order, a list of malloc'd strings that ends with NULL; the
     * command prints progress as lines of JSON on standard error (cmd/cli.h).  NULL with *e;
     * ERR_FORMAT: the order is not valid.  If the member is NULL, the server has no jobs. */
    char **(*command)(const struct model_order *o, struct err *e);
    const char *folder;                 /* where models are written; it need not exist */
    const char *const *env;             /* ends with NULL */
    /* Looks up a name.  Returns 0; -1 with *e if it is unknown.  If the member is NULL, there are
     * no names. */
    int (*resolve)(const char *word, struct model_pulled *p, struct err *e);
};

/* A listening socket that another program has opened (loop_inherit).  name: for messages, borrowed;
 * address: filled in by server_bind. */
struct inherited_socket { int fd; const char *name; char address[128]; };

/* SERVER_STALLED: no step of a model has ended for stall_s. */
enum server_state { SERVER_LOADING, SERVER_READY, SERVER_STALLED, SERVER_STOPPING };

struct audit_signer;
struct server_options {
    struct model_opener opener;
    struct model_catalog catalog;
    struct model_maker maker;
    const char *host; int port;         /* host NULL: no TCP; port 0: any */
    const char *socket_path;            /* NULL: none */
    struct inherited_socket *inherited; int n_inherited;        /* borrowed; the sockets then are the server's */
    const char *tls_cert, *tls_key;     /* NULL: plain */
    const char *home;                   /* folder of keys and counters; NULL: no keys */
    /* URL of the PostgreSQL database that holds the keys and counters instead; NULL: none */
    const char *keys_url;
    int keys_grace_s;                   /* time that keys stay valid while the database is away */
    int no_auth;                        /* require no key, even when listening beyond loopback */
    int query_keys;                     /* accept ?api_key= */
    int strict_api;                     /* refuse fields of bodies that are not known, see fields.h */
    int no_batching;                    /* models begin with one request at a time, until POST /api/batching/enable */
    int anonymous_limit;                /* requests a minute of an address without a key; 0: none */
    const char *audit_folder;           /* NULL: nothing is logged */
    uint64_t audit_bytes;               /* size at which a file is rotated; 0: the default */
    uint64_t audit_anonymous_bytes;     /* the same for requests without a valid key; 0: as audit_bytes */
    int audit_files;                    /* rotated files to keep; 0: the default */
    const char *audit_syslog;           /* syslog server that gets the lines, too; NULL: none */
    const char *audit_url, *audit_token;        /* collector that gets them, and its token; NULL: none */
    const char *audit_ca;               /* certificates that the collector may have; NULL: the system's */
    struct audit_signer *audit_signer;  /* signs the heads of the log; borrowed; NULL: none */
    int audit_prompts;                  /* log prompts, too */
    int log_requests;                   /* call warn with a line for each request that has ended */
    size_t responses_bytes;             /* memory for responses of /v1/responses; 0: none are kept */
    int no_history;                     /* keep no chat history: its endpoints answer 404 */
    int history_days;                   /* delete conversations that have not changed for this long; 0: never */
    uint64_t history_bytes;             /* most bytes of one key's conversations; 0: the default */
    int history_conversations;          /* most conversations of one key; 0: the default */
    /* trust X-Forwarded-For.  The client can then be on any machine, so keys are required even on
     * loopback */
    int trust_proxy;
    const char *const *origins; int n_origins;      /* origins of web pages that may use the API; "*": all */
    /* names accepted in Host besides localhost ("*": any); Host is checked on loopback and with
     * no_auth */
    const char *const *hosts; int n_hosts;
    /* only models below this folder may be loaded over HTTP; NULL: any file, but only for clients
     * on this machine that do not come through a proxy */
    const char *model_dir;
    const char *lora_dir;               /* adapters below this folder may be loaded over HTTP; NULL: none */
    /* folder of models that have names, loaded when a request names one; NULL: there is none */
    const char *store;
    double keep_alive_s;                /* unload such a model after this time without a request; negative: never */
    int max_connections; size_t max_body;
    /* most connections of one address without a key (places.h); 0: no limit; unused with
     * trust_proxy */
    int max_per_address;
    /* most bytes of memory for one request, and for all requests together (account.h); 0: derived
     * from the machine's memory */
    size_t max_request_memory, work_memory;
    int max_queue;                      /* requests that may wait to be prepared; 0: no limit */
    const char *embedding_model;        /* id of the model that computes vectors of documents; NULL: none */
    const char *rerank_model;           /* id of the model that orders found passages; NULL: none */
    /* adapted: id of the model to which the opener adds LoRA adapters; NULL: none.  A request that
     * names an adapter means this model even while it is not loaded, and no model may have the name
     * of an adapter as its id. */
    /* ZeroMQ endpoints for the events of the prefix cache of the model with the id kv_model, as
     * vLLM sends them (kv_events.h); NULL: none.  kv_topic NULL: made of address and id. */
    const char *kv_events, *kv_replay, *kv_topic, *kv_model;
    const char *adapted; const char *const *adapters; int n_adapters;
    int64_t rag_documents; uint64_t rag_bytes;          /* limits of each key's documents and their files; 0: none */
    int prefix_all;                     /* prefixes are reused across keys */
    const char *mcp_config;             /* MCP servers whose tools are offered (mcp/mcp_config.h); NULL: none */
    const char *const *mcp_env;         /* environment of those started as processes; ends with NULL */
    double timeout_s;                   /* of a request; 0: none */
    double stall_s;                     /* /health answers 503 when a step of an engine takes longer; 0: never */
    double drain_s;                     /* time that a shutdown or unload leaves running requests to finish */
    uint64_t max_memory;                /* bytes of weights and private memory of all models; 0: no limit */
    int no_watch;                       /* do not watch the machine's memory; see watch.h */
    const char *sysroot;                /* folder with proc and sys; NULL: / */
    void (*log)(void *user, const char *text);
    void (*warn)(void *user, const char *text);         /* messages that must not be suppressed; NULL: log */
    /* Called by the loop's thread about once a second and soon after a change.  The state is
     * SERVER_LOADING until a model is ready or no model is being loaded; after that, never again.
     * NULL: none. */
    void (*state)(void *user, enum server_state state);
    atomic_int *n_syncing;      /* number of files that server_close() is writing to the disk; NULL: not counted */
    void *user;
};

struct server;
/* Read the certificate and its key and bind the sockets: the steps that may need privileges. */
struct server *server_bind(const struct server_options *o, struct err *e);
/* Open everything else, after the process has changed its user, and listen.  admin_token: borrowed;
 * NULL: no administration over HTTP. */
int server_start(struct server *s, const char *admin_token, struct err *e);
/* Close the server; NULL is fine.  Returns 0; -1 if some lines of the audit log could not be
 * written, which was logged as a warning; SERVER_STUCK if the step of an engine does not end. With
 * SERVER_STUCK the audit log was written and nothing was freed, and the process must end without
 * the exit handlers. */
enum { SERVER_STUCK = 1 };
int server_close(struct server *s);
/* Write as much of the audit log as possible; for another thread, while server_close() hangs. */
int server_finish_audit(struct server *s);
/* Called instead of server_close() when the process must end immediately: drop the clients and
 * write the audit lines of their requests.  0 or -1 as server_close. */
int server_leave(struct server *s);
int server_port(const struct server *s);                /* 0: no TCP */
int server_is_loading(const struct server *s);          /* if so, server_close waits for the opener */
/* The id that a model gets from its path: "tiny" of "models/tiny.zse"; malloc'd. */
char *server_model_id(const char *path);
/* Load a model in the background.  name NULL: the id is made from the path. */
int server_load(struct server *s, const char *path, const char *name, struct err *e);
/* Why a client could not use this name of an adapter, or would mistake it, as "ends in ...".
 * NULL: it can use it. */
const char *adapter_name_fault(const char *name);
/* Block SIGTERM, SIGINT and SIGHUP; to be called before any other thread is started. */
void server_block_signals(void);
/* Run until SIGTERM or SIGINT, and return 0 after draining.  -1 with *e: a model of server_load()
 * could not be opened and there is no other one, or memory ran out. */
int server_run(struct server *s, struct err *e);
/* Whether server_run() ended because memory ran out. */
int server_memory_ran_out(const struct server *s);

#endif
