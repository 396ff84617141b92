/* chat_wrap.c - break the lines of a text between words, so that they fit a terminal. */
#include "cmd/chat_wrap.h"

#include <string.h>

#include <utf8proc.h>

#include "libcommon/base/utf8.h"

/* A line of the text is new until its first word ends, then it is broken or left as it is. */
enum wrap_line { LINE_NEW, LINE_BROKEN, LINE_LEFT };

static int is_blank(uint32_t c) { return c == ' ' || c == '\t'; }

/* Columns of a character.  A control character is shown as one question mark. */
static int columns_of(uint32_t c)
{
    const int is_control = c < ' ' || (c >= 0x7f && c < 0xa0);
    return is_control ? 1 : utf8proc_charwidth((utf8proc_int32_t)c);
}

static int gap_columns(const struct line_wrap *w)
{
    int n = 0;
    for (size_t i = 0; i < w->n_gap; i++)
        n += w->held[i] == '\t' ? 8 - (w->at + n) % 8 : 1;
    return n;
}

static void drop_gap(struct line_wrap *w)
{
    memmove(w->held, w->held + w->n_gap, w->n_held - w->n_gap);
    w->n_held -= w->n_gap;
    w->n_gap = 0;
}

static void put_gap(struct line_wrap *w)
{
    w->write(w->held, w->n_gap);
    w->at += gap_columns(w);
    drop_gap(w);
}

static void end_line(struct line_wrap *w)
{
    w->write("\n", 1);
    w->at = w->is_asked = w->is_passing = 0;
}

/* Decide by the first word of a line whether it is broken: fences, what stands between them, and
 * rows of tables are not. */
static void begin_line(struct line_wrap *w)
{
    const char *word = w->held + w->n_gap;
    const size_t n = w->n_held - w->n_gap;
    size_t run = 0;
    while (run < n && word[run] == word[0])
        run++;
    const int is_fence = run >= 3 && (word[0] == '~' || (word[0] == '`' && !memchr(word + run, '`', n - run)));
    w->line = w->fence || is_fence || word[0] == '|' ? LINE_LEFT : LINE_BROKEN;
    if (w->fence && is_fence && word[0] == w->fence && run >= w->n_fence && run == n) {
        w->fence = 0;
    } else if (!w->fence && is_fence) {
        w->fence = word[0];
        w->n_fence = run;
    }
}

/* Write the word that is held back, on a new line if it does not fit on this one. */
static void put_word(struct line_wrap *w)
{
    if (w->n_held == w->n_gap)
        return;
    if (w->line == LINE_NEW)
        begin_line(w);
    const int is_full = w->at + gap_columns(w) + w->word_columns > w->columns;
    if (w->line == LINE_BROKEN && w->at > 0 && is_full) {
        end_line(w);
        drop_gap(w);
    }
    put_gap(w);
    w->write(w->held, w->n_held);
    w->at += w->word_columns;
    w->n_held = 0;
    w->word_columns = 0;
}

/* Whether a line may end before c, inside of what blanks do not divide: beside wide characters, but
 * not before punctuation or after an opening bracket. */
static int may_break(struct line_wrap *w, uint32_t c)
{
    const utf8proc_int32_t a = (utf8proc_int32_t)w->before, b = (utf8proc_int32_t)c;
    if (!utf8proc_grapheme_break_stateful(a, b, &w->state) || (columns_of(w->before) < 2 && columns_of(c) < 2))
        return 0;
    const utf8proc_category_t left = utf8proc_category(a), right = utf8proc_category(b);
    return left != UTF8PROC_CATEGORY_PS && left != UTF8PROC_CATEGORY_PI && right != UTF8PROC_CATEGORY_PE &&
           right != UTF8PROC_CATEGORY_PF && right != UTF8PROC_CATEGORY_PO;
}

static void hold(struct line_wrap *w, const char *s, size_t n)
{
    memcpy(w->held + w->n_held, s, n);
    w->n_held += n;
}

static void end_word(struct line_wrap *w)
{
    put_word(w);
    if (w->is_passing && w->at > w->columns)            /* the terminal has broken it */
        w->at = (w->at - 1) % w->columns + 1;
    w->is_passing = 0;
    w->before = 0;
    w->state = 0;
}

/* Write the blanks at the end of a line if they fit on it. */
static void put_last_gap(struct line_wrap *w)
{
    if (w->at + gap_columns(w) <= w->columns)
        put_gap(w);
    w->n_held = w->n_gap = 0;
}

static void take_newline(struct line_wrap *w)
{
    end_word(w);
    put_last_gap(w);
    end_line(w);
    w->line = LINE_NEW;
}

static void take_blank(struct line_wrap *w, const char *s)
{
    if (w->n_gap == sizeof w->held / 2)
        put_gap(w);
    hold(w, s, 1);
    w->n_gap++;
}

static void take_letter(struct line_wrap *w, const char *s, size_t n, uint32_t c)
{
    w->before = c;
    if (w->is_passing) {
        w->write(s, n);
        w->at += columns_of(c);
        return;
    }
    hold(w, s, n);
    w->word_columns += columns_of(c);
    if (w->word_columns > w->columns || w->n_held + 4 > sizeof w->held) {
        put_word(w);
        w->is_passing = 1;
    }
}

/* Take a character of n bytes. */
static void take(struct line_wrap *w, const char *s, size_t n, uint32_t c)
{
    if (!w->is_asked) {
        w->columns = w->width();
        w->is_asked = 1;
    }
    const int is_free = w->columns > 0 && w->line != LINE_LEFT;
    if (is_free && (is_blank(c) || (w->before && may_break(w, c))))
        end_word(w);                    /* the first word of a line may turn out to be a fence */
    if (c == '\n')
        take_newline(w);
    else if (w->columns <= 0 || w->line == LINE_LEFT)
        w->write(s, n);
    else if (is_blank(c))
        take_blank(w, s);
    else
        take_letter(w, s, n, c);
}

/* Take the bytes of w->part, which are one character or invalid. */
static void take_part(struct line_wrap *w)
{
    for (size_t i = 0; i < w->n_part;) {
        int n;
        const uint32_t c = utf8_next(w->part + i, w->n_part - i, &n);
        take(w, w->part + i, (size_t)n, c);
        i += (size_t)n;
    }
    w->n_part = 0;
}

void wrap_begin(struct line_wrap *w, int at)
{
    w->at = at;
    w->line = LINE_NEW;
    w->fence = 0;
    w->is_asked = w->is_passing = 0;
    w->before = 0;
    w->state = 0;
}

void wrap_write(struct line_wrap *w, const char *text, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        w->part[w->n_part++] = text[i];
        if (utf8_incomplete(w->part, w->n_part) == 0)
            take_part(w);
    }
}

void wrap_end(struct line_wrap *w)
{
    take_part(w);
    end_word(w);
    put_last_gap(w);
}
