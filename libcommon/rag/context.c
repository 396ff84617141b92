/* context.c - numbered passages for a prompt, within a number of tokens. */
#include "libcommon/rag/search.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"

enum { LABEL = RAG_NAME + 400 };

/* "[2] name, page 3, heading: ", on one line. */
static int label(const struct rag_hit *h, int number, char out[LABEL])
{
    int n = snprintf(out, LABEL, "[%d] %.*s", number, 400, h->name);
    if (h->has_pages)
        n += snprintf(out + n, (size_t)(LABEL - n), ", page %d", h->chunk.page);
    if (*h->chunk.heading)
        n += snprintf(out + n, (size_t)(LABEL - n), ", %.200s", h->chunk.heading);
    n -= (int)utf8_incomplete(out, (size_t)n);
    for (int i = 0; i < n; i++)
        if ((unsigned char)out[i] < ' ')
            out[i] = ' ';
    memcpy(out + n, ": ", 3);
    return n + 2;
}

/* The longest beginning of text that ends at a blank and that, appended to the first `before` bytes
 * of *all, has at most max tokens.  Found by bisection. */
static size_t fitting(char *all, size_t before, const char *text, size_t size, size_t max,
                      const struct token_counter *counter)
{
    size_t low = 0, high = size;            /* low fits */
    memcpy(all + before, text, size);
    if (token_count(counter, all, before + size) <= max)
        return size;
    for (int i = 0; i < 24 && high - low > 8; i++) {
        const size_t middle = low + (high - low) / 2;
        *(token_count(counter, all, before + middle) <= max ? &low : &high) = middle;
    }
    while (low > 0 && text[low] != ' ' && text[low] != '\n')
        low--;
    return low;
}

int rag_context(const struct rag_hits *h, size_t max_tokens, const struct token_counter *counter,
                struct rag_context *out, struct err *e)
{
    size_t room = 1;
    *out = (struct rag_context){ 0 };
    for (int i = 0; i < h->n; i++)
        room += LABEL + strlen(h->hit[i].chunk.text) + 4;
    out->text = malloc(room);
    out->passage = calloc((size_t)h->n + 1, sizeof *out->passage);
    if (!out->text || !out->passage) {
        rag_context_release(out);
        return err_nomem(e, "context");
    }
    for (int i = 0; i < h->n; i++) {
        const char *text = h->hit[i].chunk.text;
        const size_t size = strlen(text);
        size_t at = out->size;
        if (at) {
            memcpy(out->text + at, "\n\n", 2);
            at += 2;
        }
        at += (size_t)label(&h->hit[i], out->n + 1, out->text + at);
        const size_t fits = fitting(out->text, at, text, size, max_tokens, counter);
        if (fits == 0)
            break;
        out->passage[out->n++] = (struct rag_passage){ i, fits };
        out->size = at + fits;
        if (fits < size)
            break;
    }
    out->text[out->size] = '\0';
    out->tokens = token_count(counter, out->text, out->size);
    return 0;
}

void rag_context_release(struct rag_context *c)
{
    free(c->text);
    free(c->passage);
    *c = (struct rag_context){ 0 };
}
