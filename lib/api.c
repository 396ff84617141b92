/* api.c - errors, structs that carry their size, and memory of the public library. */
#include "lib/internal.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert((int)ZSE_OK == (int)ERR_NONE && (int)ZSE_ERROR_IO == (int)ERR_IO &&
               (int)ZSE_ERROR_FORMAT == (int)ERR_FORMAT && (int)ZSE_ERROR_SHAPE == (int)ERR_SHAPE &&
               (int)ZSE_ERROR_UNSUPPORTED == (int)ERR_UNSUPPORTED && (int)ZSE_ERROR_MEMORY == (int)ERR_MEMORY &&
               (int)ZSE_ERROR_DEVICE == (int)ERR_DEVICE && (int)ZSE_ERROR_LIMIT == (int)ERR_LIMIT &&
               (int)ZSE_ERROR_CANCELLED == (int)ERR_CANCELLED, "codes of errors");

/* Padding at the end would be taken for a member that a later version appends. */
#define NO_PADDING(type, last) \
    _Static_assert(sizeof(struct type) == offsetof(struct type, last) + sizeof((struct type){ 0 }.last), #type)
NO_PADDING(zse_model_options, no_prefetch);
NO_PADDING(zse_render_options, reserved);
NO_PADDING(zse_engine_options, reserved);
NO_PADDING(zse_request_options, user);
NO_PADDING(zse_result, decode_s);
NO_PADDING(zse_event, error);

const char *zse_version(void) { return ZSE_VERSION; }

void zse_free(void *p) { free(p); }

int api_fail(struct zse_error *e, const struct err *from)
{
    if (!e)
        return -1;
    e->code = (int)from->code;
    snprintf(e->message, sizeof e->message, "%s", from->msg);
    return -1;
}

int api_wrong(struct zse_error *e, const char *fmt, ...)
{
    va_list args;
    if (!e)
        return -1;
    e->code = ZSE_ERROR_USAGE;
    va_start(args, fmt);
    vsnprintf(e->message, sizeof e->message, fmt, args);
    va_end(args);
    return -1;
}

int api_options(void *out, size_t known, const void *given, const char *name, struct zse_error *e)
{
    enum { MOST = 4096 };               /* larger structs are mistakes: size was not set */
    size_t size;
    memset(out, 0, known);
    if (!given)
        return 0;
    memcpy(&size, given, sizeof size);
    if (size <= sizeof size || size > MOST)
        return api_wrong(e, "%s: size is %zu, expected sizeof the struct", name, size);
    for (size_t i = known; i < size; i++)
        if (((const char *)given)[i])
            return api_wrong(e, "%s: has members that libzse %s does not know", name, ZSE_VERSION);
    memcpy(out, given, size < known ? size : known);
    return 0;
}

char *api_json_text(json_t *j)
{
    char *text = j ? json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    json_decref(j);
    return text;
}
