/* chunks.c - cut a text into passages: units (sentences and lines) first, then runs of units. */
#include "libcommon/rag/chunks.h"

#include <ctype.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "libcommon/base/utf8.h"
#include "libcommon/rag/word_tokens.h"

/* The boundary before a unit, the weakest kind first: a chunk begins at a stronger one if
 * possible. */
enum boundary { AT_WORD, AT_SENTENCE, AT_PARAGRAPH, AT_HEADING };

struct unit { size_t at, size, tokens; enum boundary before; int page, heading; };

/* SMALL_UNIT: neighbouring units of fewer bytes are joined, so that their number stays small for
 * the size of the text.  MAX_HEADINGS: after this number of headings, further lines that look like
 * headings are treated as text. */
enum { LEVELS = 3, HEADING_BYTES = 120, LINE_MAX_BYTES = 90, SMALL_UNIT = 32, MAX_HEADINGS = 5000,
       SAMPLE = 64 << 10 };

struct cutter {
    const char *text; size_t size;
    size_t tokens, overlap;
    int markdown;
    struct word_tokens words;           /* counts tokens */
    struct unit *unit; int n_units, room;
    char level[6][HEADING_BYTES + 1];   /* the current headings of Markdown */
    int heading, page;                  /* heading and page at the current position; heading -1: none */
    enum boundary before;               /* strongest boundary since the last unit */
    struct chunk_list *list;
    struct err *e;
};

size_t token_count(const struct token_counter *c, const char *text, size_t size)
{
    return c && c->count ? c->count(c->user, text, size) : (utf8_count(text, size) + 3) / 4;
}

static int grow(void **p, int n, int *room, size_t size, struct err *e)
{
    if (n < *room)
        return 0;
    const int more = *room ? 2 * *room : 256;
    void *q = realloc(*p, (size_t)more * size);
    if (!q)
        return err_nomem(e, "chunks");
    *p = q;
    *room = more;
    return 0;
}

/* ---- units ---- */

static int is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f'; }

static int push_unit(struct cutter *k, size_t from, size_t to, size_t tokens)
{
    struct unit *last = k->n_units ? &k->unit[k->n_units - 1] : NULL;
    if (last && k->before < AT_HEADING && last->page == k->page && last->heading == k->heading &&
        to - last->at <= SMALL_UNIT && (last->tokens + tokens) * 4 <= k->tokens) {
        last->size = to - last->at;
        last->tokens += tokens;
        k->before = AT_WORD;
        return 0;
    }
    if (grow((void **)&k->unit, k->n_units, &k->room, sizeof *k->unit, k->e))
        return -1;
    k->unit[k->n_units++] = (struct unit){ from, to - from, tokens, k->before, k->page, k->heading };
    k->before = AT_WORD;
    return 0;
}

/* The end of a piece of at most `most` code points of [at, to): after a blank in the last third of
 * the piece, or else at the end of a grapheme cluster. */
static size_t piece_end(const char *s, size_t at, size_t to, size_t most)
{
    size_t p = at, good = at, blank = 0;
    utf8proc_int32_t last = 0, state = 0;
    int n;
    for (size_t i = 0; p < to; i++) {
        const uint32_t c = utf8_next(s + p, to - p, &n);
        if (p > at && utf8proc_grapheme_break_stateful(last, (utf8proc_int32_t)c, &state)) {
            good = p;
            if (i >= most)
                break;
        }
        if (i >= 4 * most + 64)         /* a cluster without end */
            return p;
        last = (utf8proc_int32_t)c;
        p += (size_t)n;
        if (is_blank(s[p - 1]) && i >= most - most / 3)
            blank = p;
    }
    return p >= to ? to : blank > at && blank <= good ? blank : good;
}

/* How many bytes of a unit are tokenized at once, because a tokenizer needs 20 times the memory of
 * its text. */
static size_t sample_size(const char *s, size_t size)
{
    if (size <= SAMPLE)
        return size;
    size = SAMPLE;
    while (size > SAMPLE - 4 && ((unsigned char)s[size] & 0xC0) == 0x80)
        size--;
    return size;
}

/* Add [from, to) as a unit, or in pieces if it is larger than a chunk. */
static int add_unit(struct cutter *k, size_t from, size_t to)
{
    while (from < to && is_blank(k->text[from]))
        from++;
    while (to > from && is_blank(k->text[to - 1]))
        to--;
    if (from == to)
        return 0;
    const size_t sample = sample_size(k->text + from, to - from),
                 all = word_tokens_count(&k->words, k->text + from, sample),
                 points = utf8_count(k->text + from, sample);
    if (all <= k->tokens && sample == to - from)
        return push_unit(k, from, to, all);
    /* Code points of a piece: half of what fits at this text's average number of code points per
     * token, because parts of it may have more tokens. */
    size_t most = all ? points * k->tokens / all / 2 : points;
    most = most > points ? points : most ? most : 1;
    while (from < to) {
        size_t end = piece_end(k->text, from, to, most);
        size_t n = word_tokens_count(&k->words, k->text + from, end - from);
        for (size_t less = most / 2; n > k->tokens && less; less /= 2) {
            end = piece_end(k->text, from, end, less);
            n = word_tokens_count(&k->words, k->text + from, end - from);
        }
        if (push_unit(k, from, end, n))
            return -1;
        from = end;
    }
    return 0;
}

static int ends_sentence(const char *s, size_t at, size_t to, size_t *next)
{
    static const char *const wide[] = { "\u3002", "\uff01", "\uff1f" };         /* 。！？ */
    if ((s[at] >= 'a' && s[at] <= 'z') || s[at] == ' ')         /* most bytes */
        return 0;
    for (int i = 0; i < 3; i++)
        if (to - at >= 3 && memcmp(s + at, wide[i], 3) == 0) {
            *next = at + 3;
            return 1;
        }
    if (s[at] != '.' && s[at] != '!' && s[at] != '?')
        return 0;
    for (at++; at < to && (s[at] == '"' || s[at] == '\'' || s[at] == ')' || s[at] == ']');)
        at++;
    *next = at;
    return at < to && is_blank(s[at]);
}

/* The beginning of a line.  marked: it has a bullet, or the bar of a table.  column: bytes before
 * its text. */
struct line_start { int marked; size_t column; };

static struct line_start line_start(const char *s, size_t at, size_t to)
{
    struct line_start l = { 0, 0 };
    for (; at + l.column < to && l.column < LINE_MAX_BYTES; l.column++) {
        const char c = s[at + l.column];
        if (c != ' ' && c != '\t' && (l.marked || !memchr("-*+|", c, 4)))
            break;
        l.marked |= c != ' ' && c != '\t';
    }
    return l;
}

/* Add the sentences of a paragraph.  Lines that begin with a blank or a bullet are units, too; a
 * sentence may continue in a line whose text begins in the same column. */
static int add_paragraph(struct cutter *k, size_t from, size_t to)
{
    size_t begin = from, next;
    struct line_start line = line_start(k->text, from, to);
    for (size_t at = from; at < to;) {
        enum boundary boundary = AT_SENTENCE;
        int cut = 0;
        if (k->text[at] == '\n') {
            const size_t column = line.column;
            next = at + 1;
            line = line_start(k->text, next, to);
            cut = line.marked || line.column > 0;
            if (!line.marked && line.column == column)
                boundary = AT_WORD;
        } else {
            cut = ends_sentence(k->text, at, to, &next);
        }
        if (!cut) {
            at++;
            continue;
        }
        if (add_unit(k, begin, next))
            return -1;
        if (k->before < boundary)
            k->before = boundary;
        begin = at = next;
    }
    return add_unit(k, begin, to);
}

/* ---- headings ---- */

static size_t line_end(const char *s, size_t at, size_t size)
{
    const char *end = memchr(s + at, '\n', size - at);
    return end ? (size_t)(end - s) : size;
}

/* Find a Markdown heading: "## Words", or a line with a line of = or - below it.  Returns 0 if
 * there is none; *level counts from 0. */
static int markdown_heading(const char *s, size_t at, size_t end, size_t size, int *level, size_t *text, size_t *behind)
{
    size_t n = 0;
    while (at + n < end && s[at + n] == '#')
        n++;
    *behind = end;
    if (n >= 1 && n <= 6 && (at + n == end || s[at + n] == ' ')) {
        *level = (int)n - 1;
        *text = at + n;
        return 1;
    }
    if (end >= size || end == at || end - at > LINE_MAX_BYTES || is_blank(s[at]))
        return 0;
    const size_t under = end + 1, under_end = line_end(s, under, size);
    size_t same = 0;
    while (under + same < under_end && (s[under + same] == '=' || s[under + same] == '-') &&
           s[under + same] == s[under])
        same++;
    if (same < 3 || under + same != under_end)
        return 0;
    *level = s[under] == '-';
    *text = at;
    *behind = under_end;
    return 1;
}

/* Is this line a heading of plain text: a short line after a blank one, in capitals, or with a
 * number or "Section" at its beginning?  An unfinished line (NAME ,) is not, nor is an identifier
 * (HTTP_PROXY). */
static int plain_heading(const char *s, size_t at, size_t end, int after_blank)
{
    int lower = 0, upper = 0, other = 0;
    while (end > at && is_blank(s[end - 1]))
        end--;
    if (!after_blank || end - at < 2 || end - at > LINE_MAX_BYTES || is_blank(s[at]))
        return 0;
    for (size_t i = at; i < end; i++) {
        lower += islower((unsigned char)s[i]) != 0;
        upper += isupper((unsigned char)s[i]) != 0;
        other += strchr("=<>{}$\\|_", s[i]) != NULL;
    }
    if (other || strchr(",;:", s[end - 1]) || (s[end - 1] == '.' && is_blank(s[end - 2])))
        return 0;
    if (lower == 0 && upper >= 3)
        return 1;
    const int numbered = isdigit((unsigned char)s[at]) || strncmp(s + at, "Section ", 8) == 0 ||
                         strncmp(s + at, "Chapter ", 8) == 0 || strncmp(s + at, "Article ", 8) == 0;
    return numbered && end - at <= 60 && upper > 0;
}

/* Make the words of [at, end) the current heading of this level. */
static int set_heading(struct cutter *k, int level, size_t at, size_t end)
{
    char path[LEVELS * (HEADING_BYTES + 4)] = "";
    while (at < end && is_blank(k->text[at]))
        at++;
    while (end > at && (is_blank(k->text[end - 1]) || k->text[end - 1] == '#'))
        end--;
    size_t n = end - at > HEADING_BYTES ? HEADING_BYTES : end - at;
    n -= n < end - at ? utf8_incomplete(k->text + at, n) : 0;
    for (int i = level; i < 6; i++)
        k->level[i][0] = '\0';
    memcpy(k->level[level], k->text + at, n);
    k->level[level][n] = '\0';
    int shown = 0;
    for (int i = 0; i <= level; i++)
        shown += k->level[i][0] != '\0';
    for (int i = 0; i <= level; i++)
        if (k->level[i][0] && shown-- <= LEVELS)
            strcat(strcat(path, *path ? " > " : ""), k->level[i]);
    struct chunk_list *l = k->list;
    char **more = realloc(l->headings, ((size_t)l->n_headings + 1) * sizeof *more);
    if (!more)
        return err_nomem(k->e, "chunks");
    l->headings = more;
    if (!(more[l->n_headings] = strdup(path)))
        return err_nomem(k->e, "chunks");
    k->heading = l->n_headings++;
    k->before = AT_HEADING;
    return 0;
}

static int is_blank_line(const char *s, size_t at, size_t end)
{
    while (at < end && is_blank(s[at]))
        at++;
    return at == end;
}

/* Walk over the lines: headings, paragraphs between blank lines, pages. */
static int find_units(struct cutter *k)
{
    const char *s = k->text;
    size_t at = 0, paragraph = 0;
    int after_blank = 1, fenced = 0;
    while (at < k->size) {
        const size_t end = line_end(s, at, k->size);
        size_t words, behind = end;
        int level = 0;
        const int blank = is_blank_line(s, at, end);
        for (const char *f = s + at; (f = memchr(f, '\f', (size_t)(s + end - f))); f++) {
            if (add_paragraph(k, paragraph, (size_t)(f - s)))
                return -1;
            paragraph = (size_t)(f - s) + 1;
            k->page++;
            after_blank = 1;
        }
        if (paragraph > at)
            at = paragraph;
        if (k->markdown && end - at >= 3 && (strncmp(s + at, "```", 3) == 0 || strncmp(s + at, "~~~", 3) == 0))
            fenced = !fenced;
        words = at;
        const int heading = !blank && at < end && !fenced && k->list->n_headings < MAX_HEADINGS &&
                            (k->markdown ? markdown_heading(s, at, end, k->size, &level, &words, &behind)
                                         : plain_heading(s, at, end, after_blank));
        if (blank || heading) {
            if (add_paragraph(k, paragraph, at))
                return -1;
            if (k->before < AT_PARAGRAPH)
                k->before = AT_PARAGRAPH;
            paragraph = at;
        }
        if (heading && (set_heading(k, level, words, end) || add_unit(k, words, end)))
            return -1;
        if (heading)
            paragraph = behind;
        after_blank = blank;
        at = behind < k->size ? behind + 1 : k->size;
    }
    return add_paragraph(k, paragraph, k->size);
}

/* ---- chunks ---- */

/* The end of the chunk that begins with unit `from`.  The chunk takes as many units as fit, but
 * ends at the strongest boundary in its second half.  A heading ends the chunk earlier if it has
 * reached a quarter of its size. */
static int chunk_end(const struct cutter *k, int from)
{
    size_t sum = 0;
    int to = from, best = -1;
    enum boundary strongest = AT_WORD;
    while (to < k->n_units) {
        const struct unit *u = &k->unit[to];
        if (to > from && u->before == AT_HEADING && sum * 4 >= k->tokens)
            return to;
        if (to > from && sum + u->tokens > k->tokens)
            break;
        sum += u->tokens;
        to++;
        if (to < k->n_units && sum * 2 >= k->tokens && k->unit[to].before >= strongest) {
            strongest = k->unit[to].before;
            best = to;
        }
    }
    return to == k->n_units || best < 0 ? to : best;
}

/* The first unit of the next chunk: `to`, or an earlier one, so that chunks overlap by some units.
 * An overlap never contains a heading. */
static int overlap_start(const struct cutter *k, int from, int to)
{
    size_t sum = 0;
    int at = to;
    while (at > from + 1 && k->unit[at].before != AT_HEADING && sum + k->unit[at - 1].tokens <= k->overlap)
        sum += k->unit[--at].tokens;
    return k->unit[at].before == AT_HEADING && at < to ? to : at;
}

static int make_chunks(struct cutter *k)
{
    struct chunk_list *l = k->list;
    int room = 0;
    for (int from = 0; from < k->n_units;) {
        const int to = chunk_end(k, from);
        const struct unit *a = &k->unit[from], *b = &k->unit[to - 1];
        if (l->n == MAX_CHUNKS)
            return err_set(k->e, ERR_LIMIT, "the text makes more than %d chunks", MAX_CHUNKS);
        if (grow((void **)&l->chunk, l->n, &room, sizeof *l->chunk, k->e))
            return -1;
        /* a chunk has the heading of its first unit, even if another heading follows soon */
        l->chunk[l->n++] = (struct chunk){ a->at, b->at + b->size - a->at, a->page,
                                           a->heading >= 0 ? l->headings[a->heading] : "" };
        from = to == k->n_units ? to : overlap_start(k, from, to);
    }
    return 0;
}

/* An upper bound of the memory.  Two units in a row have more than SMALL_UNIT bytes together,
 * because smaller ones are joined; lists double their room when they are full; a heading takes at
 * most LEVELS times HEADING_BYTES. */
size_t chunks_bytes(size_t size)
{
    const size_t lists = size / SMALL_UNIT * 2 * 2 * (sizeof(struct unit) + sizeof(struct chunk));
    const size_t most = (size_t)MAX_HEADINGS * (LEVELS * (HEADING_BYTES + 4) + 48), headings = size * 64;
    return lists + (headings < most ? headings : most) + WORD_TOKENS_SLOTS * sizeof(struct word_count) + 64 * 1024;
}

int chunks_cut(const char *text, size_t size, const struct chunk_options *o, struct chunk_list *list, struct err *e)
{
    struct cutter k = { .text = text, .size = size, .tokens = o->tokens ? o->tokens : CHUNK_TOKENS,
                        .overlap = o->tokens ? o->overlap : CHUNK_OVERLAP, .markdown = o->markdown,
                        .heading = -1, .page = 1, .before = AT_HEADING, .list = list, .e = e };
    *list = (struct chunk_list){ 0 };
    word_tokens_init(&k.words, &o->counter);
    int rc = find_units(&k);
    word_tokens_release(&k.words);
    list->pages = k.page;
    if (rc == 0)
        rc = make_chunks(&k);
    free(k.unit);
    if (rc)
        chunks_release(list);
    return rc;
}

void chunks_release(struct chunk_list *list)
{
    for (int i = 0; i < list->n_headings; i++)
        free(list->headings[i]);
    free(list->headings);
    free(list->chunk);
    *list = (struct chunk_list){ 0 };
}
