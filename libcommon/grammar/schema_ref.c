/* schema_ref.c - $id, $anchor and $ref: base URIs and the schemas that references name.
 *
 * One walk over the document records the base URI of each schema and the target of every URI in the
 * document (JSON Schema core, sections 8.2 and 9.2).  It visits only keywords that hold schemas, so
 * an $id inside an enum or an unknown keyword has no effect. */
#include "libcommon/grammar/schema.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_URI = 1024, MAX_WALK = 2000 };

/* ---- URIs ---- */

/* Length of the scheme with its colon, 0: none. */
static size_t scheme(const char *uri)
{
    size_t n = strspn(uri, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+.-");
    return n && uri[n] == ':' ? n + 1 : 0;
}

/* Resolve "." and ".." of a path in place (RFC 3986, section 5.2.4). */
static void remove_dots(char *path)
{
    char *from = path, *to = path;
    while (*from) {
        size_t n = strcspn(from + 1, "/") + 1;          /* a segment with its slash */
        if (n == 3 && !memcmp(from, "/..", 3)) {
            while (to > path && *--to != '/')
                ;
            if (!from[n])
                *to++ = '/';
        } else if (n == 2 && !memcmp(from, "/.", 2)) {
            if (!from[n])
                *to++ = '/';
        } else {
            memmove(to, from, n);
            to += n;
        }
        from += n;
    }
    *to = '\0';
}

/* Resolve the reference ref (n bytes, without a fragment) against base, as in RFC 3986, section
 * 5.2.  Returns 0; -1 if the result is too long. */
static int join(const char *base, const char *ref, size_t n, char out[MAX_URI])
{
    size_t keep = strlen(base), start = scheme(base), path;
    char text[MAX_URI];
    if (n >= sizeof text)
        return -1;
    memcpy(text, ref, n);
    text[n] = '\0';
    path = start;
    if (!strncmp(base + start, "//", 2))
        path = start + 2 + strcspn(base + start + 2, "/?");
    if (scheme(text)) {
        keep = path = 0;
        path = scheme(text);
        if (!strncmp(text + path, "//", 2))
            path += 2 + strcspn(text + path + 2, "/?");
    } else if (!strncmp(text, "//", 2)) {
        keep = start;
        path = start + 2 + strcspn(text + 2, "/?");
    } else if (*text == '/') {
        keep = path;
    } else if (*text == '?') {
        keep = strcspn(base, "?");
    } else if (n) {
        keep = path + strcspn(base + path, "?");
        while (keep > path && base[keep - 1] != '/')
            keep--;
    }
    if (keep + n >= MAX_URI)
        return -1;
    memcpy(out, base, keep);
    memcpy(out + keep, text, n + 1);
    if (out[path] == '/' && !strchr(out + path, '?'))
        remove_dots(out + path);
    return 0;
}

/* ---- the index ---- */

static uint32_t slot_of(const struct schema_refs *r, const json_t *schema)
{
    uint32_t k = (uint32_t)(((uint64_t)(uintptr_t)schema * 0x9E3779B97F4A7C15u) >> 32) & (r->room - 1);
    while (r->slot[k].schema && r->slot[k].schema != schema)
        k = (k + 1) & (r->room - 1);
    return k;
}

/* Record the base of a schema.  1: it is new; 0: the schema had one already; -1: out of memory. */
static int set_base(struct schema *s, const json_t *schema, const char *base)
{
    struct schema_refs *r = &s->refs, old = *r;
    if (2 * (r->n + 1) > r->room) {
        uint32_t room = r->room ? 2 * r->room : 256;
        if (!(r->slot = calloc(room, sizeof *r->slot))) {
            r->slot = old.slot;
            schema_nomem(s);
            return -1;
        }
        r->room = room;
        for (uint32_t i = 0; i < old.room; i++)
            if (old.slot[i].schema)
                r->slot[slot_of(r, old.slot[i].schema)] = old.slot[i];
        free(old.slot);
    }
    uint32_t k = slot_of(r, schema);
    if (r->slot[k].schema)
        return 0;
    r->slot[k].schema = schema;
    r->slot[k].base = base;
    r->n++;
    return 1;
}

static const char *base_of(const struct schema *s, const json_t *schema)
{
    for (size_t i = s->n_made; ; ) {
        uint32_t k = slot_of(&s->refs, schema);
        if (s->refs.slot[k].schema)
            return s->refs.slot[k].base;
        while (i && s->made_from[2 * (i - 1)] != schema)
            i--;
        if (!i)
            return s->refs.root_base;
        schema = s->made_from[2 * --i + 1];             /* a copy has the base of its original */
    }
}

/* Record the name of a schema; the first of several equal names is used. */
static int add_name(struct schema *s, const char *base, const char *fragment, json_t *schema)
{
    char uri[2 * MAX_URI];
    size_t n = strlen(base), k = strlen(fragment);
    if (n + k + 2 > sizeof uri) {
        schema_refuse(s, schema, "$id", "a URI of more than 1023 bytes");
        return -1;
    }
    memcpy(uri, base, n);
    uri[n] = '#';
    memcpy(uri + n + 1, fragment, k + 1);
    if (!json_object_get(s->refs.names, uri) && json_object_set(s->refs.names, uri, schema) != 0) {
        schema_nomem(s);
        return -1;
    }
    return 0;
}

static int walk(struct schema *s, json_t *schema, const char *base, int depth);

static int walk_each(struct schema *s, json_t *in, const char *base, int depth)
{
    const char *key;
    json_t *v;
    size_t i;
    json_object_foreach(in, key, v)
        if (walk(s, v, base, depth) != 0)
            return -1;
    json_array_foreach(in, i, v)
        if (walk(s, v, base, depth) != 0)
            return -1;
    return 0;
}

/* Returns the base URI of a schema: the one that its $id sets (`id` before draft 6), or else the
 * given one; NULL if the schema has failed. */
static const char *own_base(struct schema *s, json_t *schema, const char *base)
{
    const char *id = json_string_value(json_object_get(schema, s->refs.draft4 ? "id" : "$id"));
    char uri[MAX_URI];
    if (!id || schema_ref_alone(s, schema))
        return base;
    size_t n = strcspn(id, "#");
    /* An anchor before draft 2019-09. */
    if (id[n] && id[n + 1] && id[n + 1] != '/' && s->refs.old && add_name(s, base, id + n + 1, schema) != 0)
        return NULL;
    if (!n)
        return base;
    json_t *kept = join(base, id, n, uri) == 0 ? json_string(uri) : NULL;
    if (!kept || json_array_append_new(s->owned, kept) != 0) {
        schema_refuse(s, schema, "$id", "a URI of more than 1023 bytes");
        return NULL;
    }
    return add_name(s, json_string_value(kept), "", schema) == 0 ? json_string_value(kept) : NULL;
}

/* Record the bases and names of a schema and those inside of it. */
static int walk(struct schema *s, json_t *schema, const char *base, int depth)
{
    static const char *const one[] = { "additionalProperties", "propertyNames", "items", "additionalItems", "contains",
                                       "not", "if", "then", "else", "unevaluatedProperties", "unevaluatedItems",
                                       "contentSchema", NULL };
    static const char *const many[] = { "allOf", "anyOf", "oneOf", "prefixItems", "items", "properties",
                                        "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions",
                                        NULL };
    static const char *const anchors[] = { "$anchor", "$dynamicAnchor" };
    if (!json_is_object(schema))
        return 0;
    if (depth > MAX_WALK) {
        schema_limit(s, schema, "nested too deep");
        return -1;
    }
    const char *mine = own_base(s, schema, base);
    int rc = mine ? set_base(s, schema, mine) : -1;
    if (rc != 1)
        return rc;
    for (int i = 0; i < 2; i++) {
        const char *name = json_string_value(json_object_get(schema, anchors[i]));
        if (name && i && json_array_append_new(s->refs.dynamic, json_string(name)) != 0)
            return schema_nomem(s), -1;
        if (name && add_name(s, mine, name, schema) != 0)
            return -1;
    }
    for (int i = 0; one[i]; i++)
        if (json_is_object(json_object_get(schema, one[i])) &&
            walk(s, json_object_get(schema, one[i]), mine, depth + 1) != 0)
            return -1;
    for (int i = 0; many[i]; i++) {
        json_t *v = json_object_get(schema, many[i]);
        if ((json_is_array(v) || strcmp(many[i], "items") != 0) && walk_each(s, v, mine, depth + 1) != 0)
            return -1;
    }
    return 0;
}

int schema_ref_alone(const struct schema *s, const json_t *schema)
{
    return s->refs.old && json_is_string(json_object_get(schema, "$ref"));
}

int schema_refs_open(struct schema *s)
{
    struct schema_refs *r = &s->refs;
    const char *dialect = json_string_value(json_object_get(s->root, "$schema"));
    r->draft4 = dialect && (strstr(dialect, "draft-04") || strstr(dialect, "draft-03"));
    r->old = r->draft4 || (dialect && (strstr(dialect, "draft-06") || strstr(dialect, "draft-07")));
    r->names = json_object();
    r->dynamic = json_array();
    r->root_base = "";
    if (!r->names || !r->dynamic) {
        schema_nomem(s);
        return -1;
    }
    if (add_name(s, "", "", s->root) != 0 || walk(s, s->root, "", 0) != 0)
        return -1;
    if (json_is_object(s->root))
        r->root_base = base_of(s, s->root);
    return 0;
}

void schema_refs_close(struct schema_refs *r)
{
    json_decref(r->names);
    json_decref(r->dynamic);
    free(r->slot);
}

/* ---- references ---- */

static int hex(int c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* Returns the value at a JSON pointer (RFC 6901) that is a URI fragment; *base becomes the base URI
 * of the last schema on the way to it. */
static json_t *follow_pointer(const struct schema *s, json_t *v, const char *p, const char **base)
{
    char key[MAX_URI];
    while (v && *p == '/') {
        size_t n = 0;
        for (p++; *p && *p != '/'; p++) {
            int c = (unsigned char)*p;
            if (c == '%' && hex(p[1]) >= 0 && hex(p[2]) >= 0) {
                c = hex(p[1]) << 4 | hex(p[2]);
                p += 2;
            }
            if (c == '~' && (p[1] == '0' || p[1] == '1'))
                c = *++p == '0' ? '~' : '/';
            if (n + 1 >= sizeof key)
                return NULL;
            key[n++] = (char)c;
        }
        key[n] = '\0';
        if (json_is_array(v))
            v = n && strspn(key, "0123456789") == n ? json_array_get(v, (size_t)strtoul(key, NULL, 10)) : NULL;
        else
            v = json_object_get(v, key);
        if (json_is_object(v) && s->refs.slot[slot_of(&s->refs, v)].schema)
            *base = base_of(s, v);
    }
    return *p ? NULL : v;
}

static json_t *resolve(struct schema *s, const json_t *at, const char *keyword, const char *ref)
{
    const char *fragment = strchr(ref, '#'), *base = base_of(s, at);
    char uri[MAX_URI], name[2 * MAX_URI];
    size_t n = fragment ? (size_t)(fragment - ref) : strlen(ref);
    json_t *v = NULL;
    fragment = fragment ? fragment + 1 : "";
    if (join(base, ref, n, uri) != 0 || strlen(fragment) >= MAX_URI) {
        schema_refuse(s, at, keyword, "a URI of more than 1023 bytes");
        return NULL;
    }
    size_t k = strlen(uri);
    memcpy(name, uri, k);
    name[k] = '#';
    name[k + 1] = '\0';
    json_t *resource = json_object_get(s->refs.names, name);
    if (!resource && !strcmp(uri, s->refs.root_base))
        resource = s->root;
    if (!resource) {
        schema_refuse(s, at, keyword, "it leads out of the schema");
        return NULL;
    }
    base = resource == s->root ? s->refs.root_base : base_of(s, resource);
    if (!*fragment)
        v = resource;
    else if (*fragment == '/')
        v = follow_pointer(s, resource, fragment, &base);
    else {
        memcpy(name + k + 1, fragment, strlen(fragment) + 1);
        v = json_object_get(s->refs.names, name);
    }
    if (!v)
        schema_refuse(s, at, keyword, "there is nothing of that name in the schema");
    else if (!json_is_object(v) && !json_is_boolean(v)) {
        schema_refuse(s, at, keyword, "it names a value that is no schema");
        v = NULL;
    } else if (walk(s, v, base, 0) != 0) {              /* it may be inside an unknown keyword */
        v = NULL;
    }
    return v;
}

json_t *schema_resolve(struct schema *s, const json_t *at, const char *ref) { return resolve(s, at, "$ref", ref); }

json_t *schema_resolve_dynamic(struct schema *s, const json_t *at, const char *ref)
{
    const char *fragment = strchr(ref, '#');
    json_t *name;
    size_t i, count = 0;
    json_array_foreach(s->refs.dynamic, i, name)
        count += fragment && !strcmp(fragment + 1, json_string_value(name));
    if (count > 1) {
        schema_refuse(s, at, "$dynamicRef", "it can be enforced where one $dynamicAnchor of the document has that name; use $ref");
        return NULL;
    }
    return resolve(s, at, "$dynamicRef", ref);
}
