/* rag_tool.c - let a model search documents. */
#include "libcommon/serve/tools/rag_tool.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/serve/exchange.h"

enum { PASSAGES = 5, CONTEXT_TOKENS = 2000 };

const struct native_tool rag_tool = {
    "rag_search", "Search the user's documents and return the passages that fit a question, each with its number, document and page. Cite them as [n].",
    "{\"type\":\"object\",\"properties\":{\"query\":{\"type\":\"string\",\"description\":\"what to look for\"},"
    "\"top_k\":{\"type\":\"integer\",\"description\":\"how many passages, from 1 to 20 (default: 5)\"},"
    "\"collections\":{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"description\":\"collections to search (default: all)\"}},"
    "\"required\":[\"query\"],\"additionalProperties\":false}", NULL
};

struct asking { void (*done)(void *user, char *text, const struct err *e); void *user; };

static void on_answer(void *user, json_t *answer, const struct problem *p)
{
    struct asking *a = user;
    const char *context = json_string_value(js_get(answer, "context")), *reason = json_string_value(js_get(answer, "reason"));
    struct err e = { .msg = "" };
    char *text = NULL;
    if (p->status || !answer)
        err_set(&e, p->status == 503 ? ERR_MEMORY : ERR_FORMAT, "%s", p->message);
    else if (!(text = strdup(context && *context ? context : reason ? reason : "No document fits this question.")))
        err_nomem(&e, "result");
    a->done(a->user, text, &e);
    free(a);
}

/* Make the body of a search request; NULL with *e. */
static json_t *body_of(const json_t *arguments, struct err *e)
{
    json_t *schema = js_parse(rag_tool.name, rag_tool.parameters, strlen(rag_tool.parameters), e),
           *body = schema && native_check(schema, arguments, e) == 0 ? json_deep_copy(arguments) : NULL,
           *k = js_get(body, "top_k");
    json_decref(schema);
    if (k && (json_integer_value(k) < 1 || json_integer_value(k) > 20)) {
        err_set(e, ERR_FORMAT, "top_k: expected 1 to 20");
        json_decref(body);
        return NULL;
    }
    if (!body)
        return NULL;
    if ((k || json_object_set_new(body, "top_k", json_integer(PASSAGES)) == 0) &&
        json_object_set_new(body, "max_tokens", json_integer(CONTEXT_TOKENS)) == 0)
        return body;
    err_nomem(e, "search");
    json_decref(body);
    return NULL;
}

void *rag_tool_start(struct server *s, const struct access_record *record, const json_t *arguments,
                   void (*done)(void *user, char *text, const struct err *e), void *user, struct err *e)
{
    struct asking *a = malloc(sizeof *a);
    struct problem pr;
    json_t *body = a ? body_of(arguments, e) : NULL;
    if (!a) {
        err_nomem(e, "search");
        return NULL;
    }
    *a = (struct asking){ done, user };
    if (body && rag_ask(s, record, NULL, body, on_answer, a, &pr) == 0)
        return a;
    if (body)
        err_set(e, ERR_LIMIT, "%s", pr.message);
    free(a);
    return NULL;
}
