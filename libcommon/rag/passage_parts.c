/* passage_parts.c - find the boundaries of parts: blank lines, and ends of sentences in long
 * paragraphs. */
#include "libcommon/rag/passage_parts.h"

#include <string.h>

static int is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r' || c == '\f'; }

/* Whether a blank line begins at the newline at `at`. */
static int ends_paragraph(const char *s, size_t at, size_t size)
{
    for (at++; at < size && s[at] != '\n'; at++)
        if (!is_blank(s[at]))
            return 0;
    return at < size;
}

/* Whether a part of `bytes` bytes may end before the byte at `at`. */
static int may_end(const char *s, size_t at, size_t size, size_t bytes, size_t least)
{
    if (bytes < least || !is_blank(s[at]))
        return 0;
    if (s[at] == '\n' && ends_paragraph(s, at, size))
        return 1;
    return bytes >= PART_MOST / 2 && bytes >= least && at && strchr(".!?:;", s[at - 1]) != NULL;
}

static void add(struct passage_part out[PASSAGE_PARTS], int *n, const char *s, size_t size)
{
    while (size && is_blank(*s)) {
        s++;
        size--;
    }
    while (size && is_blank(s[size - 1]))
        size--;
    if (!size)
        return;
    /* the rest after the last boundary may be too short for a part: join it to the last part */
    if (*n && (*n == PASSAGE_PARTS || size < PART_LEAST))
        out[*n - 1].size = (size_t)(s + size - out[*n - 1].text);
    else
        out[(*n)++] = (struct passage_part){ s, size };
}

int passage_parts(const char *text, size_t size, struct passage_part out[PASSAGE_PARTS])
{
    const size_t share = size / PASSAGE_PARTS, least = share > PART_LEAST ? share : PART_LEAST;
    size_t from = 0;
    int n = 0;
    for (size_t at = 0; at < size; at++)
        if (may_end(text, at, size, at - from, least)) {
            add(out, &n, text + from, at - from);
            from = at;
        }
    add(out, &n, text + from, size - from);
    return n;
}
