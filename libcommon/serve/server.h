/* server.h - zse-serve as a library: models on the OpenAI API, over HTTP.
 *
 * Threads: one event loop (the caller of server_run; connections, answers, figures), one for each
 * engine (worker.h), one that opens and closes models, two that parse large bodies, one or more for
 * TLS handshakes.  A request goes loop -> (preparing) -> loop -> engine, its tokens come back
 * through a queue.
 *
 *   conn, loop    sockets, time limits                http, websocket, buf   bytes to requests
 *   places        room for connections, eviction      handshake              TLS handshakes in
 *       threads
 *   routes        method and path to a handler        fields, problem        bodies to parameters,
 *       errors
 *   calls         one API request that generates      chat, responses, messages, completions, embeddings, wschat   its
 *       forms
 *   conversation, answer_parts   conversations in, parts of answers out    answer_grammar, grammars   what
 *       an answer
 *       must look like
 *   models        what is loaded                      native, metrics, openapi, page, text    everything
 *       else */
#ifndef ZSE_SERVE_SERVER_H
#define ZSE_SERVE_SERVER_H

#include <stdint.h>

#include <jansson.h>

#include "libcommon/base/err.h"
#include "libcommon/engine/engine.h"
#include "libcommon/model/model.h"
#include "libcommon/token/tokenizer.h"

/* A model with its engine, as the program opens it. */
struct served_model {
    const struct model *model;
    const struct tokenizer *tokenizer;
    const json_t *json;                 /* of the file */
    struct engine *engine;
    int max_len;                        /* tokens of a sequence */
    const char *quantization;           /* what the weights are stored as, for people */
    uint64_t file_bytes;
    void *handle;                       /* the opener's */
};
struct model_opener {
    int (*open)(void *user, const char *path, struct served_model *m, struct err *e);       /* from a thread of the server, one at a time */
    void (*close)(void *user, struct served_model *m);
    void *user;
};

struct audit_signer;
struct server_options {
    struct model_opener opener;
    const char *host; int port;         /* host NULL: no TCP; port 0: any */
    const char *socket_path;            /* NULL: none */
    const char *tls_cert, *tls_key;     /* NULL: plain */
    const char *home;                   /* folder of keys and counters; NULL: no keys */
    int no_auth;                        /* ask for no key, and listen beyond loopback all the same */
    int query_keys;                     /* ?api_key= is taken */
    int anonymous_limit;                /* requests a minute of an address without a key; 0: none */
    const char *audit_folder;           /* NULL: nothing is logged */
    uint64_t audit_bytes;               /* of a file before it is rotated; 0: the usual */
    uint64_t audit_anonymous_bytes;     /* the same of requests without a valid key; 0: as audit_bytes */
    int audit_files;                    /* rotated files that are kept; 0: the usual */
    const char *audit_syslog;           /* where lines are sent, too (audit_syslog.h); NULL: nowhere */
    struct audit_signer *audit_signer;  /* signs heads of the log; borrowed; NULL: none */
    int audit_prompts;                  /* prompts are logged, too */
    int trust_proxy;                    /* X-Forwarded-For names the client, who may be anywhere: keys are needed on loopback too */
    const char *const *origins; int n_origins;      /* browsers' pages that may use the API; "*": all */
    const char *const *hosts; int n_hosts;          /* names besides localhost where Host is checked: on loopback, and with no_auth; "*": any */
    const char *model_dir;              /* models loaded over HTTP lie below it; NULL: anywhere, if the request comes from this machine and through no proxy */
    int max_connections; size_t max_body;
    int max_per_address;                /* connections of one address without a key, see places.h; 0: any number; not with trust_proxy */
    size_t max_request_memory, work_memory;         /* bytes of a request, and of all of them together (account.h); 0: by what the machine has */
    int max_queue;                      /* requests that wait to be prepared; 0: any number */
    double timeout_s;                   /* of a request; 0: none */
    double stall_s;                     /* /health answers 503 when the step of an engine lasts longer; 0: never */
    double drain_s;                     /* of a shutdown or unload: what runs may go on for so long */
    uint64_t max_memory;                /* bytes of weights and private memory of all models; 0: no limit */
    int no_watch;                       /* memory is not watched; else see watch.h */
    const char *sysroot;                /* where proc and sys lie; NULL: / */
    void (*log)(void *user, const char *text);
    void (*warn)(void *user, const char *text);         /* what must be heard in any case; NULL: log */
    void *user;
};

struct server;
/* Reads the certificate and its key and binds the sockets, for which it may take privileges that
 * nothing else needs. */
struct server *server_bind(const struct server_options *o, struct err *e);
/* Opens all else, as who the process is by then, and listens on return.  admin_token: borrowed;
 * NULL: no administration over HTTP. */
int server_start(struct server *s, const char *admin_token, struct err *e);
/* -1: lines of the audit log were not written, as warn was told.  SERVER_STUCK: the step of an
 * engine does not end; the audit log is written, nothing is freed, and the process is to end by
 * _exit. NULL is fine. */
enum { SERVER_STUCK = 1 };
int server_close(struct server *s);
int server_finish_audit(struct server *s);              /* any thread, while server_close does not return: as much of the log as can be written */
/* Instead, before the process ends at once: clients are let go, and their requests have their
 * lines in the audit log. */
int server_leave(struct server *s);
int server_port(const struct server *s);                /* 0: no TCP */
int server_is_loading(const struct server *s);          /* then server_close waits for the opener */
/* Open in the background. name NULL: from the path. */
int server_load(struct server *s, const char *path, const char *name, struct err *e);
/* Blocks SIGTERM, SIGINT and SIGHUP; before any other thread is made. */
void server_block_signals(void);
/* Until SIGTERM or SIGINT: 0 after draining. -1 if a model that server_load was told of could
 * not be opened at all and none other is there; *e says why. */
int server_run(struct server *s, struct err *e);

#endif
