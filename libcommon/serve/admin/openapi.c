/* openapi.c - GET /openapi.json: a description made from the tables of routes and fields. */
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/serve/internal.h"

/* Set a member.  *bad is set to 1 if memory runs out. */
static void put(int *bad, json_t *object, const char *key, json_t *value)
{
    *bad |= json_object_set_new(object, key, value);
}

static json_t *field_schema(const struct field *f, int *bad)
{
    json_t *j = f->schema ? json_loads(f->schema, 0, NULL) : json_object();
    static const char *const types[] = { [FIELD_BOOL] = "boolean", [FIELD_INT] = "integer", [FIELD_REAL] = "number",
                                         [FIELD_DOUBLE] = "integer", [FIELD_STRING] = "string" };
    if (f->type != FIELD_OTHER && !f->schema)
        put(bad, j, "type", json_string(types[f->type]));
    if (f->type == FIELD_INT || f->type == FIELD_REAL || f->type == FIELD_DOUBLE) {
        put(bad, j, "minimum", f->type != FIELD_REAL ? json_integer((json_int_t)f->min) : json_real(f->min));
        if (f->max < INT_MAX || f->type != FIELD_INT)
            put(bad, j, "maximum", f->type != FIELD_REAL ? json_integer((json_int_t)f->max) : json_real(f->max));
    }
    if (f->use == FIELD_USED)
        put(bad, j, "description", json_string(f->about));
    else
        put(bad, j, "description", json_sprintf("%s: %s", f->use == FIELD_IGNORED ? "Ignored" : "Refused", f->about));
    return j;
}

/* strict: a body with fields that are not known is refused */
static json_t *body_schema(body_set kind, int strict, int *bad)
{
    static const char *const needed[] = { "messages", "prompt", "input", "content", "tokens", "model_id", "name",
                                          "enabled", "query", "role", "file" };
    json_t *properties = json_object(), *required = json_array();
    const int all_optional = (kind & (BODY_CHAT_MESSAGE_EDIT | BODY_CHAT_IMPORT | BODY_TOKENIZE | OLLAMA)) != 0;
    for (int i = 0; i < n_fields; i++) {
        if (!(fields[i].bodies & kind))
            continue;
        put(bad, properties, fields[i].name, field_schema(&fields[i], bad));
        for (size_t k = 0; k < sizeof needed / sizeof *needed; k++)
            if (!all_optional && fields[i].use == FIELD_USED && strcmp(needed[k], fields[i].name) == 0 &&
                (kind != BODY_RAG_UPLOAD || strcmp(needed[k], "name") != 0))
                *bad |= json_array_append_new(required, json_string(needed[k]));
    }
    return json_pack("{s:s, s:b, s:o, s:o}", "type", "object", "additionalProperties", (kind & (strict ? OLLAMA : OLLAMA | SHARED_API)) != 0, "properties", properties,
                     "required", required);
}

static json_t *path_parameter(const char *name, size_t size)
{
    return json_pack("{s:s%, s:s, s:b, s:{s:s}}", "name", name, size, "in", "path", "required", 1, "schema", "type",
                     "string");
}

/* List the parameters of a path: those in braces, or the rest of the path. */
static json_t *path_parameters(const struct route *r, int *bad)
{
    json_t *all = json_array();
    if (r->kind == ROUTE_PREFIX)
        *bad |= json_array_append_new(all, path_parameter("id", 2));
    for (const char *at = strchr(r->path, '{'); r->kind == ROUTE_PATTERN && at; at = strchr(at, '{')) {
        const size_t n = strcspn(++at, "}");
        *bad |= json_array_append_new(all, path_parameter(at, n));
    }
    return all;
}

/* "GET" becomes "get" */
static const char *lower(const char *method)
{
    static const char *const names[][2] = { { "GET", "get" }, { "DELETE", "delete" }, { "PATCH", "patch" } };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i][0], method) == 0)
            return names[i][1];
    return "post";
}

static json_t *operation(const struct route *r, int strict, int *bad)
{
    json_t *ok = json_pack("{s:s, s:{s:{}}}", "description", "Success", "content", r->answer);
    json_t *not_ok = json_pack("{s:s, s:{s:{s:{s:s}}}}", "description", "Failure, with the reason", "content",
                               "application/json", "schema", "$ref", "#/components/schemas/Error");
    json_t *j = json_pack("{s:s, s:{s:o, s:o}}", "summary", r->about, "responses",
                          r->kind == ROUTE_WEBSOCKET ? "101" : "200", ok, "default", not_ok);
    if (r->body && r->kind != ROUTE_WEBSOCKET)
        put(bad, j, "requestBody", json_pack("{s:b, s:{s:{s:o}}}", "required", 1, "content",
                                             r->body == BODY_RAG_UPLOAD ? "multipart/form-data" : "application/json",
                                             "schema", body_schema(r->body, strict, bad)));
    if (r->kind == ROUTE_PREFIX || r->kind == ROUTE_PATTERN)
        put(bad, j, "parameters", path_parameters(r, bad));
    if (r->handle == handle_requests)
        put(bad, j, "parameters", json_pack("[{s:s, s:s, s:{s:s, s:i, s:i}}]", "name", "limit", "in", "query", "schema",
                                            "type", "integer", "minimum", 1, "maximum", 1000));
    if (r->access != ACCESS_PUBLIC) /* {}: the key is optional, as a server may require none */
        put(bad, j, "security", json_pack(route_administers(r) ? "[{s:[]}]" : "[{s:[]}, {}]",
                                          route_administers(r) ? "admin" : "key"));
    return j;
}

static json_t *description(int strict, int *bad)
{
    json_t *paths = json_object();
    for (int i = 0; i < n_routes; i++) {
        const struct route *r = &routes[i];
        if (r->handle == handle_asset)          /* files of the web interface are no part of the API */
            continue;
        json_t *key = json_sprintf("%s%s", r->path, r->kind == ROUTE_PREFIX ? "{id}" : "");
        json_t *item = json_object_get(paths, json_string_value(key));
        if (!item) {
            item = json_object();
            put(bad, paths, json_string_value(key), item);
        }
        put(bad, item, lower(r->method), operation(r, strict, bad));
        json_decref(key);
    }
    json_t *error = json_loads("{\"type\":\"object\",\"required\":[\"error\",\"detail\"],\"properties\":{\"error\":{\"type\":\"object\",\"required\":[\"message\",\"type\"],"
                               "\"properties\":{\"message\":{\"type\":\"string\"},\"type\":{\"type\":\"string\"},\"param\":{\"type\":[\"string\",\"null\"]},"
                               "\"code\":{\"type\":[\"string\",\"null\"]}}},\"detail\":{\"type\":\"string\"}}}", 0,
                               NULL);
    return json_pack("{s:s, s:{s:s, s:s}, s:o, s:{s:{s:o}, s:{s:{s:s, s:s}, s:{s:s, s:s}}}}", "openapi", "3.1.0",
                     "info", "title", "zse-serve", "version", ZSE_VERSION, "paths", paths, "components", "schemas",
                     "Error", error, "securitySchemes", "admin", "type", "http", "scheme",
                     "bearer", "key", "type", "http", "scheme", "bearer");
}

/* The description is public and not limited in rate, so it is made only once. */
void handle_openapi(struct server *s, struct conn *c, const char *rest)
{
    (void)rest;
    if (!s->openapi) {
        int bad = 0;
        json_t *json = description(s->o.strict_api, &bad);
        s->openapi = json && !bad ? json_dumps(json, JSON_COMPACT) : NULL;
        json_decref(json);
    }
    const struct buf out = { .data = s->openapi, .size = s->openapi ? strlen(s->openapi) : 0, .failed = !s->openapi };
    reply_json(s, c, 200, &out);
}
