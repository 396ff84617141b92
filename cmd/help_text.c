/* help_text.c - wrap the lines of usage texts, and find the defaults in them. */
#include "cmd/help_text.h"

#include <string.h>

enum { MOST_COLUMN = 40 };              /* descriptions begin at most here */

struct line { const char *at; size_t n, indent; };

static size_t spaces(const char *at, size_t n)
{
    size_t i = 0;
    while (i < n && at[i] == ' ')
        i++;
    return i;
}

static struct line line_at(const char *text, const char *end)
{
    const char *stop = text < end ? memchr(text, '\n', (size_t)(end - text)) : NULL;
    const size_t n = (size_t)((stop ? stop : end) - text);
    return (struct line){ text, n, spaces(text, n) };
}

static int is_synopsis(const struct line *l) { return l->n > 7 && memcmp(l->at, "usage: ", 7) == 0; }

/* The column of the line's description, after two or more spaces; 0: it has none. */
static size_t description(const struct line *l)
{
    if (l->indent == 0 && !is_synopsis(l))
        return 0;
    for (size_t i = l->indent; i + 2 < l->n; i++)
        if (l->at[i] == ' ' && l->at[i + 1] == ' ')
            return i + spaces(l->at + i, l->n - i);
    return 0;
}

/* The column at which most descriptions begin. */
static size_t usual_column(const char *text, const char *end)
{
    int count[MOST_COLUMN + 1] = { 0 };
    size_t most = 0;
    for (struct line l = line_at(text, end); l.at < end; l = line_at(l.at + l.n + 1, end)) {
        const size_t column = description(&l);
        if (column <= MOST_COLUMN)
            count[column] += column > 0;
    }
    for (size_t i = 1; i <= MOST_COLUMN; i++)
        if (count[i] > count[most])
            most = i;
    return most;
}

static void begin_line(FILE *out, size_t *column, size_t indent)
{
    fprintf(out, "\n%*s", (int)indent, "");
    *column = indent;
}

/* Print the words of a text, the first one after `gap` spaces more, and begin further lines at
 * indent. */
static void fill(FILE *out, size_t gap, const char *at, size_t n, size_t *column, size_t indent)
{
    while (n > 0) {
        const size_t before = spaces(at, n);
        size_t word = before;
        while (word < n && at[word] != ' ')
            word++;
        if (*column + gap + word > HELP_COLUMNS && *column > indent)
            begin_line(out, column, indent);
        else
            *column += (size_t)fprintf(out, "%*s", (int)(gap + before), "");
        *column += fwrite(at + before, 1, word - before, out);
        at += word;
        n -= word;
        gap = 0;
    }
}

/* A line and those that continue it.  text: column of the description, 0: none; indent: column of
 * further lines; wide: a line is too long, so that the block is filled anew. */
struct block { struct line first; const char *end; size_t text, usual, indent; int continued, wide; };

/* The next line if it continues the block, else a line of no bytes. */
static int next_line(const struct block *b, struct line *l)
{
    *l = line_at(l->at + l->n + 1, b->end);
    return b->continued && l->at < b->end && l->n > l->indent && !is_synopsis(l) && description(l) == 0 &&
           (l->indent == b->text || (b->text && l->indent == b->usual));
}

static struct block block_at(struct line l, const char *end, size_t usual)
{
    const int synopsis = is_synopsis(&l);
    struct block b = { .first = l, .end = end, .text = description(&l), .usual = usual };
    b.continued = b.text || (l.indent == 0 && !synopsis);
    const size_t most = usual ? usual : MOST_COLUMN;
    b.indent = b.text && b.text <= most ? b.text : b.text && usual ? usual : l.indent || synopsis ? l.indent + 11 : 0;
    do
        b.wide |= l.n > HELP_COLUMNS;
    while (next_line(&b, &l));
    return b;
}

/* Print the block, and return the line after it. */
static struct line print_block(FILE *out, const struct block *b)
{
    struct line l = b->first;
    size_t column = 0, head = b->text ? b->text : l.n;
    while (b->text && head > 0 && l.at[head - 1] == ' ')
        head--;
    fill(out, 0, l.at, head, &column, b->indent);
    const int apart = b->wide && b->text > b->indent;           /* the description has lines of its own */
    if (apart)
        begin_line(out, &column, b->indent);
    if (b->text)
        fill(out, apart ? 0 : b->text - head, l.at + b->text, l.n - b->text, &column, b->indent);
    while (next_line(b, &l)) {
        if (!b->wide)
            begin_line(out, &column, l.indent);
        fill(out, (size_t)b->wide, l.at + l.indent, l.n - l.indent, &column, b->indent);
    }
    fputc('\n', out);
    return l;
}

void help_print(FILE *out, const char *text, size_t n)
{
    const char *end = text + n;
    const size_t usual = usual_column(text, end);
    for (struct line l = line_at(text, end); l.at < end; ) {
        const struct block b = block_at(l, end, usual);
        l = print_block(out, &b);
    }
}

/* The long option of a line like "  -o, --output FILE  where": its length, with *at at its dashes;
 * 0: the line has none. */
static size_t long_option(const struct line *l, const char **at)
{
    const size_t skip = l->indent + (l->n > l->indent + 4 && memcmp(l->at + l->indent + 2, ", --", 4) == 0 ? 4 : 0);
    size_t n = 2;
    if (l->n < skip + 3 || memcmp(l->at + skip, "--", 2) != 0)
        return 0;
    while (skip + n < l->n && !strchr(" [=", l->at[skip + n]))
        n++;
    *at = l->at + skip;
    return n;
}

/* Copy the lines of a block, joined by spaces, and return the line after it. */
static struct line join_block(char *out, size_t room, const struct block *b)
{
    struct line l = b->first;
    size_t used = 0;
    do
        used += (size_t)snprintf(out + used, room - used, "%s%.*s", used ? " " : "", (int)(l.n - l.indent), l.at + l.indent);
    while (next_line(b, &l) && used + l.n + 2 < room);
    return l;
}

void help_print_defaults(FILE *out, const char *text, size_t n)
{
    static const char mark[] = "(default: ";
    const char *end = text + n, *option;
    const size_t usual = usual_column(text, end);
    char joined[1024];
    for (struct line l = line_at(text, end); l.at < end; ) {
        const struct block b = block_at(l, end, usual);
        const size_t name = long_option(&l, &option);
        l = join_block(joined, sizeof joined, &b);
        const char *value = name ? strstr(joined, mark) : NULL;
        int depth = 1;
        if (!value)
            continue;
        value += sizeof mark - 1;
        size_t size = 0;
        while (value[size] && (depth += (value[size] == '(') - (value[size] == ')')) > 0)
            size++;
        fprintf(out, "%-26.*s %.*s\n", (int)name, option, (int)size, value);
    }
}
