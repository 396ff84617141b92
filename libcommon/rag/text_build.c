/* text_build.c - a growing text with a limit. */
#include "libcommon/rag/text_build.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"
#include "libcommon/rag/extract.h"

void build_add(struct text_build *t, const char *s, size_t n)
{
    if (t->state != TEXT_GOOD)
        return;
    if (n > RAG_TEXT_MAX - t->size) {
        t->state = TEXT_FULL;
        return;
    }
    if (t->size + n + 1 > t->room) {
        const size_t room = (t->size + n + 1) * 3 / 2 + 256;
        if (budget_take(t->budget, room - t->room)) {
            t->state = TEXT_DENIED;
            return;
        }
        char *more = realloc(t->data, room);
        if (!more) {
            budget_return(t->budget, room - t->room);
            t->state = TEXT_NOMEM;
            return;
        }
        t->data = more;
        t->room = room;
    }
    memcpy(t->data + t->size, s, n);
    t->size += n;
    t->data[t->size] = '\0';
}

void build_char(struct text_build *t, uint32_t c)
{
    char out[4];
    const int control = (c < ' ' && c != '\t' && c != '\n' && c != '\f') || (c >= 0x7f && c < 0xa0);
    const int n = control ? 0 : utf8_encode(c, out);
    build_add(t, n ? out : " ", n ? (size_t)n : 1);
}

void build_break(struct text_build *t, int n)
{
    while (t->size && (t->data[t->size - 1] == ' ' || t->data[t->size - 1] == '\t'))
        t->size--;
    for (int i = 1; i <= n && t->size; i++)
        if (t->size < (size_t)i || t->data[t->size - (size_t)i] != '\n') {
            build_add(t, "\n\n", (size_t)(n - i + 1));
            return;
        }
}

void build_blank(struct text_build *t)
{
    if (t->size && t->data[t->size - 1] != ' ' && t->data[t->size - 1] != '\n')
        build_add(t, " ", 1);
}

void build_release(struct text_build *t)
{
    budget_return(t->budget, t->room);
    free(t->data);
    t->data = NULL;
    t->size = t->room = 0;
}

int budget_take(struct rag_budget *b, size_t more)
{
    if (!b)
        return 0;
    if (b->hold(b->user, b->used + more))
        return -1;
    b->used += more;
    return 0;
}

void budget_return(struct rag_budget *b, size_t less)
{
    if (!b)
        return;
    b->used -= less;
    b->hold(b->user, b->used);              /* lowering it cannot fail */
}

int build_end(struct text_build *t, struct err *e)
{
    if (t->state == TEXT_GOOD && !t->data)
        build_add(t, "", 0);
    if (t->state == TEXT_GOOD)
        return 0;
    const int denied = t->state == TEXT_DENIED, nomem = t->state == TEXT_NOMEM;
    build_release(t);
    if (denied)
        return err_set(e, ERR_CANCELLED, "the text of the document needs more memory than a request may have");
    return nomem ? err_nomem(e, "text")
                                  : err_set(e, ERR_LIMIT, "the document has more than %d bytes of text", RAG_TEXT_MAX);
}
