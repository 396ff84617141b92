/* routes.h - the table from method and path to a handler, and the handlers, which are in api/,
 * tools/ and admin/. */
#ifndef ZSE_SERVE_ROUTES_H
#define ZSE_SERVE_ROUTES_H

#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "libcommon/http/conn.h"
#include "libcommon/serve/fields.h"

struct server;

/* The permission that a key must have if keys are required (ACCESS_KEY: any key).  Administration
 * always requires a key or the administrator's token.  A key that is limited to certain models can
 * administer only these: it has ACCESS_ADMIN_MODEL, whose handlers call guard_model() for each
 * model that they change, and never ACCESS_ADMIN, which would allow it to create another key. */
enum access { ACCESS_PUBLIC, ACCESS_KEY, ACCESS_CHAT, ACCESS_EMBED, ACCESS_READ, ACCESS_ADMIN_MODEL, ACCESS_ADMIN };
/* ROUTE_PREFIX: an id follows the path.  ROUTE_PATTERN: the path contains names in braces, each of
 * which stands for characters other than a slash.  ROUTE_OLLAMA: a plain path of Ollama's API, in
 * which errors are {"error": text}. */
enum route_kind { ROUTE_PLAIN, ROUTE_PREFIX, ROUTE_PATTERN, ROUTE_WEBSOCKET, ROUTE_OLLAMA };

struct route {
    const char *method, *path;
    enum route_kind kind;
    enum access access;
    void (*handle)(struct server *s, struct conn *c, const char *rest);
    body_set body;                      /* one kind (fields.h); 0: none */
    const char *about, *answer;         /* for /openapi.json: a line; the answer's media type */
};
extern const struct route routes[];
extern const int n_routes;
int route_administers(const struct route *r);   /* ACCESS_ADMIN or ACCESS_ADMIN_MODEL */
/* Called when only the head of the request has arrived.  Returns 1 if the body is needed, with
 * *owner its tenant; 0 if it is not, because the request will be refused or does not use the
 * body. */
int routes_wants_body(struct server *s, struct conn *c, uint64_t *owner);
void routes_request(struct server *s, struct conn *c);
int conn_route(const struct conn *c);           /* index in routes; -1: none */
int route_is_ollama(int route);                 /* of Ollama's API */
int route_of(void (*handle)(struct server *s, struct conn *c, const char *rest));

/* ---- handlers.  rest: for a ROUTE_PREFIX the text after the path; for a ROUTE_PATTERN the part of
 * the path that begins in place of the first name in braces ---- */
void handle_chat(struct server *s, struct conn *c, const char *rest);
void handle_responses(struct server *s, struct conn *c, const char *rest);
void handle_response(struct server *s, struct conn *c, const char *rest);
void handle_response_delete(struct server *s, struct conn *c, const char *rest);
void handle_ws_responses(struct server *s, struct conn *c, const char *rest);
void handle_messages(struct server *s, struct conn *c, const char *rest);
void handle_count_tokens(struct server *s, struct conn *c, const char *rest);
void handle_completions(struct server *s, struct conn *c, const char *rest);
void handle_embeddings(struct server *s, struct conn *c, const char *rest);
void handle_rerank(struct server *s, struct conn *c, const char *rest);
void handle_score(struct server *s, struct conn *c, const char *rest);
void handle_models(struct server *s, struct conn *c, const char *rest);
void handle_model(struct server *s, struct conn *c, const char *rest);
void handle_tokenize(struct server *s, struct conn *c, const char *rest);
void handle_detokenize(struct server *s, struct conn *c, const char *rest);
void handle_tokenizer_info(struct server *s, struct conn *c, const char *rest);
void handle_render_chat(struct server *s, struct conn *c, const char *rest);
void handle_render_completion(struct server *s, struct conn *c, const char *rest);
void handle_template(struct server *s, struct conn *c, const char *rest);
void handle_tools(struct server *s, struct conn *c, const char *rest);
void handle_tool_functions(struct server *s, struct conn *c, const char *rest);
void handle_tool_execute(struct server *s, struct conn *c, const char *rest);
void handle_tool_parse(struct server *s, struct conn *c, const char *rest);
void handle_mcp(struct server *s, struct conn *c, const char *rest);
void handle_tool_process(struct server *s, struct conn *c, const char *rest);
void handle_health(struct server *s, struct conn *c, const char *rest);
void handle_live(struct server *s, struct conn *c, const char *rest);
void handle_root(struct server *s, struct conn *c, const char *rest);
void handle_page(struct server *s, struct conn *c, const char *rest);
void handle_asset(struct server *s, struct conn *c, const char *rest);
void handle_whoami(struct server *s, struct conn *c, const char *rest);
void handle_registry(struct server *s, struct conn *c, const char *rest);
void handle_registry_model(struct server *s, struct conn *c, const char *rest);
void handle_hub_search(struct server *s, struct conn *c, const char *rest);
void handle_hub_check(struct server *s, struct conn *c, const char *rest);
void handle_model_files(struct server *s, struct conn *c, const char *rest);
void handle_model_remove(struct server *s, struct conn *c, const char *rest);
void handle_jobs(struct server *s, struct conn *c, const char *rest);
void handle_job_create(struct server *s, struct conn *c, const char *rest);
void handle_job_events(struct server *s, struct conn *c, const char *rest);
void handle_job(struct server *s, struct conn *c, const char *rest);
void handle_job_resume(struct server *s, struct conn *c, const char *rest);
void handle_job_delete(struct server *s, struct conn *c, const char *rest);
void handle_load(struct server *s, struct conn *c, const char *rest);
void handle_unload(struct server *s, struct conn *c, const char *rest);
void handle_lora_load(struct server *s, struct conn *c, const char *rest);
void handle_lora_unload(struct server *s, struct conn *c, const char *rest);
void handle_sleep(struct server *s, struct conn *c, const char *rest);
void handle_wake_up(struct server *s, struct conn *c, const char *rest);
void handle_is_sleeping(struct server *s, struct conn *c, const char *rest);
void handle_stats(struct server *s, struct conn *c, const char *rest);
void handle_stats_models(struct server *s, struct conn *c, const char *rest);
void handle_stats_gpu(struct server *s, struct conn *c, const char *rest);
void handle_analytics(struct server *s, struct conn *c, const char *rest);
void handle_timeseries(struct server *s, struct conn *c, const char *rest);
void handle_requests(struct server *s, struct conn *c, const char *rest);
void handle_batching(struct server *s, struct conn *c, const char *rest);
void handle_batching_set(struct server *s, struct conn *c, const char *rest);
void handle_batching_enable(struct server *s, struct conn *c, const char *rest);
void handle_batching_disable(struct server *s, struct conn *c, const char *rest);
void handle_metrics(struct server *s, struct conn *c, const char *rest);
void handle_openapi(struct server *s, struct conn *c, const char *rest);
void handle_ws_chat(struct server *s, struct conn *c, const char *rest);
void handle_ws_completions(struct server *s, struct conn *c, const char *rest);
void handle_ws_stats(struct server *s, struct conn *c, const char *rest);
void handle_keys(struct server *s, struct conn *c, const char *rest);
void handle_key_create(struct server *s, struct conn *c, const char *rest);
void handle_key_enable(struct server *s, struct conn *c, const char *rest);
void handle_key_rotate(struct server *s, struct conn *c, const char *rest);
void handle_key_delete(struct server *s, struct conn *c, const char *rest);
void handle_keys_required(struct server *s, struct conn *c, const char *rest);
void handle_audit_summary(struct server *s, struct conn *c, const char *rest);
void handle_audit_recent(struct server *s, struct conn *c, const char *rest);
void handle_audit_query(struct server *s, struct conn *c, const char *rest);
void handle_audit_stats(struct server *s, struct conn *c, const char *rest);
void handle_audit_clear(struct server *s, struct conn *c, const char *rest);
void handle_rag_add(struct server *s, struct conn *c, const char *rest);
void handle_rag_upload(struct server *s, struct conn *c, const char *rest);
void handle_rag_list(struct server *s, struct conn *c, const char *rest);
void handle_rag_get(struct server *s, struct conn *c, const char *rest);
void handle_rag_delete(struct server *s, struct conn *c, const char *rest);
void handle_rag_collections(struct server *s, struct conn *c, const char *rest);
void handle_rag_drop(struct server *s, struct conn *c, const char *rest);
void handle_rag_search(struct server *s, struct conn *c, const char *rest);
void handle_rag_context(struct server *s, struct conn *c, const char *rest);
void handle_rag_stats(struct server *s, struct conn *c, const char *rest);
void handle_chats_create(struct server *s, struct conn *c, const char *rest);
void handle_chats_list(struct server *s, struct conn *c, const char *rest);
void handle_chats_delete_all(struct server *s, struct conn *c, const char *rest);
void handle_chats_get(struct server *s, struct conn *c, const char *rest);
void handle_chats_update(struct server *s, struct conn *c, const char *rest);
void handle_chats_delete(struct server *s, struct conn *c, const char *rest);
void handle_chats_add(struct server *s, struct conn *c, const char *rest);
void handle_chats_messages(struct server *s, struct conn *c, const char *rest);
void handle_chats_remove_all(struct server *s, struct conn *c, const char *rest);
void handle_chats_message(struct server *s, struct conn *c, const char *rest);
void handle_chats_edit(struct server *s, struct conn *c, const char *rest);
void handle_chats_remove(struct server *s, struct conn *c, const char *rest);
void handle_chats_search(struct server *s, struct conn *c, const char *rest);
void handle_chats_export(struct server *s, struct conn *c, const char *rest);
void handle_chats_import(struct server *s, struct conn *c, const char *rest);
void handle_chats_stats(struct server *s, struct conn *c, const char *rest);
void handle_ollama_version(struct server *s, struct conn *c, const char *rest);
void handle_ollama_tags(struct server *s, struct conn *c, const char *rest);
void handle_ollama_ps(struct server *s, struct conn *c, const char *rest);
void handle_ollama_show(struct server *s, struct conn *c, const char *rest);
void handle_ollama_chat(struct server *s, struct conn *c, const char *rest);
void handle_ollama_generate(struct server *s, struct conn *c, const char *rest);
void handle_ollama_embed(struct server *s, struct conn *c, const char *rest);
void handle_ollama_embeddings(struct server *s, struct conn *c, const char *rest);
void handle_ollama_pull(struct server *s, struct conn *c, const char *rest);
void handle_ollama_delete(struct server *s, struct conn *c, const char *rest);
void handle_ollama_copy(struct server *s, struct conn *c, const char *rest);
json_t *stats_object(struct server *s);
json_t *model_stats_array(const struct server *s);
json_t *analytics_object(struct server *s);
void ws_chat_message(struct server *s, struct conn *c, const char *text, size_t size);
void ws_stats_tick(struct server *s);
enum { WS_TAG_CHAT = 1, WS_TAG_STATS, WS_TAG_COMPLETIONS, WS_TAG_RESPONSES };
void page_reply(struct server *s, struct conn *c);              /* the web interface */

#endif
