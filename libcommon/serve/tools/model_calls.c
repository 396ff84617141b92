/* model_calls.c - find calls in a text: first JSON in any place, then the markers of families of
 * models. */
#include "libcommon/serve/tools/model_calls.h"

#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/grammar/tools.h"
#include "libcommon/http/buf.h"
#include "libcommon/tools/call_scan.h"

struct reading { json_t *calls; struct buf name, arguments; int open; };

/* Store the call that is being read, which is complete. */
static void finish_call(struct reading *r)
{
    struct err ignored;
    if (!r->open || r->name.failed || r->arguments.failed || json_array_size(r->calls) == SCAN_MAX_CALLS)
        return;
    json_t *arguments = js_parse("arguments", r->arguments.data ? r->arguments.data : "{}",
                                 r->arguments.data ? r->arguments.size : 2, &ignored);
    if (json_is_object(arguments))
        json_array_append_new(r->calls, json_pack("{s:s%, s:O}", "name", r->name.data, r->name.size, "arguments",
                                                  arguments));
    json_decref(arguments);
    r->open = 0;
}

static void on_event(void *user, const struct tool_event *ev)
{
    struct reading *r = user;
    if (ev->kind == TOOL_CALL) {
        finish_call(r);
        r->open = 1;
        r->name.size = r->arguments.size = 0;
        buf_add(&r->name, ev->text, ev->size);
    } else if (ev->kind == TOOL_ARGUMENTS) {
        buf_add(&r->arguments, ev->text, ev->size);
    }
}

/* Read calls in the format of the family whose markers occur in the text. */
static int family_calls(const struct tool_format *f, const char *text, size_t size, json_t *calls, struct err *e)
{
    struct reading r = { .calls = calls };
    const struct tool_parser_options o = { .on_event = on_event, .user = &r };
    struct tool_parser *p = tool_parser_open(f, &o, e);
    const int rc = p && tool_parser_push(p, text, size, e) == 0 && tool_parser_finish(p, e) == 0 ? 0 : -1;
    if (rc == 0)
        finish_call(&r);
    tool_parser_close(p);
    buf_release(&r.name);
    buf_release(&r.arguments);
    return rc;
}

json_t *model_calls(const char *text, size_t size, struct err *e)
{
    json_t *calls = call_scan(text, size, e);
    const struct tool_format *f = tool_format_detect(text, size);
    if (!calls || json_array_size(calls) || strcmp(tool_format_name(f), "json") == 0)
        return calls;
    if (family_calls(f, text, size, calls, e) == 0)
        return calls;
    json_decref(calls);
    return NULL;
}
