/* zse-serve.h - the parts of zse-serve: its options, the administrator's token, and the program. */
#ifndef ZSE_CMD_ZSE_SERVE_H
#define ZSE_CMD_ZSE_SERVE_H

#include <stddef.h>
#include <stdint.h>

#include "cmd/open_model.h"
#include "cmd/serve_config.h"
#include "cmd/serve_systemd.h"
#include "cmd/serve_user.h"

struct serve_options {
    const char *host, *socket_path, *tls_cert, *tls_key;        /* NULL: not given */
    int host_is_default;                                        /* host is not the user's choice, nor is the port */
    struct systemd *systemd;                                    /* borrowed; NULL: not asked yet */
    int port, port_given, no_auth, trust_proxy, max_seqs, max_queue, no_prefix_cache, max_connections, max_per_address,
        no_batching, quiet, plan, no_watch, mcp_stdio;
    char *keys_url;                                             /* --keys; NULL: not given; owned */
    int keys_grace_s, keys_grace_given;
    int query_keys, strict_api, anonymous_limit, no_audit, audit_prompts, log_requests;
    int no_history, history_days, history_conversations;        /* 0: not given */
    uint64_t responses_bytes;                                   /* --responses-size */
    uint64_t history_bytes;                                     /* --history-bytes */
    char *prefix_folder;                                        /* NULL: not given; owned */
    int prefix_all;                                             /* --prefix-scope all */
    const char *mcp_config;                                     /* NULL: not given */
    const char *audit_syslog, *audit_sign, *audit_token;        /* NULL: not given */
    char *audit_url;                                            /* NULL: not given; owned */
    const char *audit_folder;                                   /* NULL: audit in the home folder */
    double keep_alive_s;                                        /* keep-alive time of named models; negative: forever */
    const char *kv_events, *kv_replay, *kv_topic;
    const char *model_dir, *lora_dir;                           /* NULL: not given */
    const char *user;                                           /* NULL: keep the identity */
    uint64_t audit_bytes, audit_anonymous_bytes;                /* 0: not given */
    int audit_files;                                            /* 0: not given */
    size_t max_request_memory, work_memory;                     /* 0: not given */
    const char *embedding_model, *rerank_model;
    int rag_documents; uint64_t rag_bytes;
    uint64_t kv_bytes, max_memory, max_body;                    /* 0: not given */
    double timeout_s, drain_s, stall_s;
    const char **origins, **hosts, **names;                     /* owned */
    int n_origins, n_hosts, n_names;
    const char *const *models; int n_models;                    /* borrowed from argv or config */
    struct serve_config config;                                 /* --config: the strings that options point to; owned */
    struct run_options run;
};
/* Parse the options.  -1: continue; otherwise the exit code. */
int serve_options_parse(struct serve_options *o, int argc, char **argv);
void serve_options_release(struct serve_options *o);

/* Answer the MCP messages on standard input until it ends.  Returns the exit code. */
int serve_mcp_stdio(void);

/* Apply a client's choice of type, memory and device to *run, which has the program's options.  The
 * strings are borrowed from how. */
struct model_choice;
int serve_choose(const struct model_choice *how, struct run_options *run, struct err *e);
/* The model_maker.command: a command line of zse-convert or zse-info, from the folder of this
 * program. */
struct model_order;
char **serve_job_command(const struct model_order *o, struct err *e);
/* The model_maker.resolve: resolve names that zse-convert pull knows, but no files. */
struct model_pulled;
int serve_pull_resolve(const char *word, struct model_pulled *out, struct err *e);

/* Read the token of HOME/admin.token; the file is made, mode 0600, if it is missing.  Caller frees;
 * NULL with *e. */
char *admin_token(const char *home, struct err *e);

#endif
