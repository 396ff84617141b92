/* splitter.c - find <think> and </think> in a text that arrives in chunks. */
#include "libcommon/serve/api/splitter.h"

#include <string.h>

static const char open_tag[] = "<think>", close_tag[] = "</think>";

static int is_blank(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

/* Number of bytes at the end of text that could be the first bytes of the tag. */
static size_t tag_begins(const char *text, size_t n, const char *tag)
{
    size_t most = strlen(tag) - 1;
    for (size_t k = n < most ? n : most; k > 0; k--)
        if (memcmp(text + n - k, tag, k) == 0)
            return k;
    return 0;
}

/* Decide whether the text begins with <think>; the text is held back until that is known. */
static void decide(struct reasoning_splitter *s, struct buf *text)
{
    size_t blanks = 0, n = strlen(open_tag);
    while (blanks < text->size && is_blank(text->data[blanks]))
        blanks++;
    size_t rest = text->size - blanks, same = rest < n ? rest : n;
    if (memcmp(text->data + blanks, open_tag, same) != 0) {
        s->state = SPLIT_ANSWER;
    } else if (rest >= n) {
        buf_drop(text, blanks + n);
        s->state = SPLIT_REASONING;
        s->strip = 1;
    }
}

void splitter_push(struct reasoning_splitter *s, const char *text, size_t size, int last, struct buf *reasoning,
                   struct buf *answer)
{
    struct buf all = { 0 };
    buf_add(&all, s->held, s->n_held);
    buf_add(&all, text, size);
    s->n_held = 0;
    if (s->state == SPLIT_UNDECIDED && all.size)
        decide(s, &all);
    if (s->state == SPLIT_REASONING) {
        const char *end = all.size ? memmem(all.data, all.size, close_tag, strlen(close_tag)) : NULL;
        size_t keep = end || last ? 0 : tag_begins(all.data, all.size, close_tag),
               n = end ? (size_t)(end - all.data) : all.size - keep, from = 0;
        while (s->strip && from < n && is_blank(all.data[from]))
            from++;
        s->strip = s->strip && from == n;
        buf_add(reasoning, all.data + from, n - from);
        buf_drop(&all, end ? n + strlen(close_tag) : n);
        if (end) {
            s->state = SPLIT_ANSWER;
            s->strip = 1;
        }
    }
    if (s->state == SPLIT_ANSWER && all.size) {
        size_t from = 0;
        while (s->strip && from < all.size && is_blank(all.data[from]))
            from++;
        s->strip = s->strip && from == all.size;
        buf_add(answer, all.data + from, all.size - from);
    } else if (all.size && !last && all.size <= sizeof s->held) {
        memcpy(s->held, all.data, all.size);
        s->n_held = all.size;
    } else if (all.size) {                      /* there are more blanks than can be held, and no tag */
        s->state = SPLIT_ANSWER;
        buf_add(answer, all.data, all.size);
    }
    answer->failed |= all.failed;
    buf_release(&all);
}
