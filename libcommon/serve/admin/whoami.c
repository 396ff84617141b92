/* whoami.c - GET /api/whoami: the permissions of the caller's key and the features of this server,
 * so that pages can hide the rest. */
#include <string.h>

#include "libcommon/serve/internal.h"

static int has_route(const char *path)
{
    int i = 0;
    while (i < n_routes && strcmp(routes[i].path, path) != 0)
        i++;
    return i < n_routes;
}

/* List the scopes of a caller. */
static json_t *scope_list(unsigned scopes)
{
    static const struct { unsigned bit; const char *name; } names[] = {
        { SCOPE_CHAT, "chat" }, { SCOPE_EMBEDDINGS, "embeddings" }, { SCOPE_MODELS, "models" }, { SCOPE_ADMIN, "admin" },
    };
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (scopes & names[i].bit)
            json_array_append_new(list, json_string(names[i].name));
    return list;
}

/* List the features of this server; tools and documents count if a chat request can name them. */
static json_t *features(const struct server *s)
{
    return json_pack("{s:b, s:b, s:b, s:b, s:b, s:b}", "history", has_route("/api/chat/conversations") && !s->o.no_history, "documents",
                     fields_find("rag", 3, BODY_CHAT) != NULL, "tools",
                     fields_find("server_tools", 12, BODY_CHAT) != NULL, "keys", s->guard.keys != NULL, "audit", s->guard.audit != NULL,
                     "jobs", s->jobs != NULL);
}

static json_t *who(const struct server *s, const struct access_record *record, int needed)
{
    const struct key_info *k = record && record->by_key ? &record->key : NULL;
    const int admin = record && record->is_admin;
    const unsigned scopes = admin ? SCOPE_ALL : k ? k->scopes : needed ? 0 : SCOPE_ALL & ~(unsigned)SCOPE_ADMIN;
    return json_pack("{s:s, s:b, s:s?, s:s?, s:o, s:s, s:o, s:o}", "version", ZSE_VERSION, "keys_required", needed,
                     "by", admin ? "token" : k ? "key" : NULL, "name", k ? k->name : NULL, "scopes",
                     scope_list(scopes), "models", k ? k->models : "", "expires_at",
                     k && k->expires_s ? json_integer((json_int_t)k->expires_s) : json_null(), "features", features(s));
}

/* Without a key the answer reveals no more than a refusal would.  A key that is given is checked
 * and counted as for any other request. */
void handle_whoami(struct server *s, struct conn *c, const char *rest)
{
    const struct http_request *r = conn_request(c);
    const struct route with_key = { .method = r->method, .path = r->path, .access = ACCESS_KEY };
    (void)rest;
    if (!http_field(r, "Authorization") && !http_field(r, "X-API-Key")) {
        guard_refresh(s);
        reply_object(s, c, 200, who(s, NULL, guard_needs_key(s, c)));
    } else if (guard_admits(s, c, &with_key)) {
        conn_own(c, guard_tenant(conn_record(c)));
        reply_object(s, c, 200, who(s, conn_record(c), guard_needs_key(s, c)));
    }
}
