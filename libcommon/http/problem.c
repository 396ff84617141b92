/* problem.c - errors of requests, and their JSON. */
#include "libcommon/http/problem.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "libcommon/base/utf8.h"

const char problem_unsaid[] = "{\"type\":\"error\",\"error\":{\"message\":\"out of memory\",\"type\":\"service_unavailable_error\",\"param\":null,\"code\":null},\"detail\":\"out of memory\"}";

int problem_set(struct problem *p, int status, const char *param, const char *code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->message, sizeof p->message, fmt, ap);
    va_end(ap);
    p->message[strlen(p->message) - utf8_incomplete(p->message, strlen(p->message))] = '\0';
    p->status = status;
    snprintf(p->param, sizeof p->param, "%s", param ? param : "");
    snprintf(p->code, sizeof p->code, "%s", code ? code : "");
    return -1;
}

int problem_err(struct problem *p, const char *param, const char *code, const struct err *e)
{
    if (e->code == ERR_MEMORY)
        return problem_nomem(p);
    return param ? problem_set(p, 400, param, code, "%s: %s", param, e->msg)
                 : problem_set(p, 400, NULL, code, "%s", e->msg);
}

int problem_nomem(struct problem *p) { return problem_set(p, 503, NULL, NULL, "out of memory"); }

static const char *type_of(int status)
{
    switch (status) {
    case 401: return "authentication_error";
    case 403: return "permission_error";
    case 404: return "not_found_error";
    case 429: return "rate_limit_error";
    case 503: return "service_unavailable_error";
    case 504: return "timeout_error";
    default: return status >= 500 ? "server_error" : "invalid_request_error";
    }
}

static void text_or_null(struct buf *out, const char *text)
{
    if (*text)
        buf_json(out, text, strlen(text));
    else
        buf_str(out, "null");
}

void problem_text_json(const struct problem *p, struct buf *out)
{
    buf_str(out, "{\"error\":");
    buf_json(out, p->message, strlen(p->message));
    buf_str(out, "}");
}

void problem_json(const struct problem *p, struct buf *out)
{
    buf_str(out, "{\"type\":\"error\",\"error\":{\"message\":");
    buf_json(out, p->message, strlen(p->message));
    buf_printf(out, ",\"type\":\"%s\",\"param\":", type_of(p->status));
    text_or_null(out, p->param);
    buf_str(out, ",\"code\":");
    text_or_null(out, p->code);
    buf_str(out, "},\"detail\":");
    buf_json(out, p->message, strlen(p->message));
    buf_str(out, "}");
}
