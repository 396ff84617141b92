/* html_text.c - the text of HTML and of JSON: no validation, one pass, every input has a result. */
#include "libcommon/rag/text_build.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "libcommon/base/utf8.h"

/* ---- entities ---- */

static const struct { char name[8]; uint32_t c; } entities[] = {
    { "amp", '&' }, { "lt", '<' }, { "gt", '>' }, { "quot", '"' }, { "apos", '\'' }, { "nbsp", ' ' }, { "shy", 0xAD },
    { "copy", 0xA9 }, { "reg", 0xAE }, { "deg", 0xB0 }, { "sect", 0xA7 }, { "para", 0xB6 }, { "middot", 0xB7 },
    { "laquo", 0xAB }, { "raquo", 0xBB }, { "ndash", 0x2013 }, { "mdash", 0x2014 }, { "lsquo", 0x2018 },
    { "rsquo", 0x2019 }, { "ldquo", 0x201C }, { "rdquo", 0x201D }, { "bdquo", 0x201E }, { "hellip", 0x2026 },
    { "bull", 0x2022 }, { "euro", 0x20AC }, { "pound", 0xA3 }, { "yen", 0xA5 }, { "cent", 0xA2 }, { "trade", 0x2122 },
    { "times", 0xD7 }, { "divide", 0xF7 }, { "plusmn", 0xB1 }, { "frac12", 0xBD }, { "frac14", 0xBC }, { "micro", 0xB5 },
    { "larr", 0x2190 }, { "rarr", 0x2192 }, { "le", 0x2264 }, { "ge", 0x2265 }, { "ne", 0x2260 }, { "infin", 0x221E },
    { "Auml", 0xC4 }, { "Ouml", 0xD6 }, { "Uuml", 0xDC }, { "auml", 0xE4 }, { "ouml", 0xF6 }, { "uuml", 0xFC },
    { "szlig", 0xDF }, { "agrave", 0xE0 }, { "aacute", 0xE1 }, { "acirc", 0xE2 }, { "atilde", 0xE3 }, { "aring", 0xE5 },
    { "aelig", 0xE6 }, { "ccedil", 0xE7 }, { "egrave", 0xE8 }, { "eacute", 0xE9 }, { "ecirc", 0xEA }, { "euml", 0xEB },
    { "igrave", 0xEC }, { "iacute", 0xED }, { "icirc", 0xEE }, { "iuml", 0xEF }, { "ntilde", 0xF1 }, { "ograve", 0xF2 },
    { "oacute", 0xF3 }, { "ocirc", 0xF4 }, { "otilde", 0xF5 }, { "oslash", 0xF8 }, { "ugrave", 0xF9 }, { "uacute", 0xFA },
    { "ucirc", 0xFB }, { "Eacute", 0xC9 }, { "Aring", 0xC5 }, { "Oslash", 0xD8 },
};

uint32_t html_entity(const char *s, size_t size, size_t *n)
{
    const char *semi = memchr(s, ';', size < 12 ? size : 12);
    if (!semi || semi - s < 3)
        return 0;
    *n = (size_t)(semi - s) + 1;
    if (s[1] == '#') {
        uint32_t c = 0;
        const int hex = s[2] == 'x' || s[2] == 'X';
        for (const char *p = s + 2 + hex; p < semi; p++) {
            const char *digits = "0123456789abcdef", *at = memchr(digits, *p | (*p >= 'A' ? 32 : 0), hex ? 16 : 10);
            if (!at || c > 0x110000)
                return 0;
            c = c * (hex ? 16 : 10) + (uint32_t)(at - digits);
        }
        return c && c < 0x110000 && (c < 0xD800 || c > 0xDFFF) ? c : 0;
    }
    for (size_t i = 0; i < sizeof entities / sizeof *entities; i++)
        if (strncmp(entities[i].name, s + 1, *n - 2) == 0 && strlen(entities[i].name) == *n - 2)
            return entities[i].c;
    return 0;
}

/* ---- HTML ---- */

enum tag_kind { TAG_INLINE, TAG_BLOCK, TAG_PARAGRAPH, TAG_HEADING, TAG_ITEM, TAG_CELL, TAG_PRE, TAG_SKIP, TAG_TITLE };
static const struct { const char *name; enum tag_kind kind; } tags[] = {
    { "p", TAG_PARAGRAPH }, { "div", TAG_BLOCK }, { "br", TAG_BLOCK }, { "hr", TAG_PARAGRAPH }, { "li", TAG_ITEM },
    { "ul", TAG_BLOCK }, { "ol", TAG_BLOCK }, { "dl", TAG_PARAGRAPH }, { "dt", TAG_BLOCK }, { "dd", TAG_BLOCK },
    { "table", TAG_PARAGRAPH }, { "tr", TAG_BLOCK }, { "td", TAG_CELL }, { "th", TAG_CELL }, { "caption", TAG_BLOCK },
    { "blockquote", TAG_PARAGRAPH }, { "section", TAG_PARAGRAPH }, { "article", TAG_PARAGRAPH }, { "header", TAG_PARAGRAPH },
    { "footer", TAG_PARAGRAPH }, { "nav", TAG_PARAGRAPH }, { "main", TAG_PARAGRAPH }, { "aside", TAG_PARAGRAPH },
    { "figure", TAG_PARAGRAPH }, { "figcaption", TAG_BLOCK }, { "details", TAG_PARAGRAPH }, { "summary", TAG_BLOCK },
    { "form", TAG_BLOCK }, { "option", TAG_BLOCK }, { "pre", TAG_PRE }, { "textarea", TAG_PRE }, { "title", TAG_TITLE },
    { "h1", TAG_HEADING }, { "h2", TAG_HEADING }, { "h3", TAG_HEADING }, { "h4", TAG_HEADING }, { "h5", TAG_HEADING },
    { "h6", TAG_HEADING }, { "script", TAG_SKIP }, { "style", TAG_SKIP }, { "template", TAG_SKIP }, { "svg", TAG_SKIP },
    { "math", TAG_SKIP },
};

static enum tag_kind kind_of(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof tags / sizeof *tags; i++)
        if (strlen(tags[i].name) == n && strncasecmp(tags[i].name, name, n) == 0)
            return tags[i].kind;
    return TAG_INLINE;
}

/* The offset after the tag that begins at `at`: quotes of attributes may contain '>'. */
static size_t tag_end(const char *s, size_t size, size_t at)
{
    char quote = 0;
    for (size_t i = at + 1; i < size; i++) {
        if (quote)
            quote = s[i] == quote ? 0 : quote;
        else if ((s[i] == '"' || s[i] == '\'') && s[i - 1] == '=')
            quote = s[i];
        else if (s[i] == '>')
            return i + 1;
    }
    return size;
}

/* The offset after </NAME>; size if there is none. */
static size_t element_end(const char *s, size_t size, size_t at, const char *name, size_t n)
{
    for (const char *p = s + at; (p = memchr(p, '<', (size_t)(s + size - p))); p++)
        if ((size_t)(s + size - p) > n + 2 && p[1] == '/' && strncasecmp(p + 2, name, n) == 0)
            return tag_end(s, size, (size_t)(p - s));
    return size;
}

struct html { struct text_build *out; int title, pre; };

static void on_tag(struct html *h, enum tag_kind kind, int closing, char level)
{
    switch (kind) {
    case TAG_BLOCK:
        build_break(h->out, 1);
        break;
    case TAG_PARAGRAPH:
        build_break(h->out, 2);
        break;
    case TAG_TITLE: case TAG_HEADING:
        build_break(h->out, 2);
        for (char c = '1'; !closing && c <= level; c++)
            build_add(h->out, "#", 1);
        if (!closing)
            build_add(h->out, " ", 1);
        break;
    case TAG_ITEM:
        build_break(h->out, 1);
        if (!closing)
            build_add(h->out, "- ", 2);
        break;
    case TAG_CELL:
        if (closing)
            build_add(h->out, " | ", 3);
        break;
    case TAG_PRE:
        build_break(h->out, 2);
        h->pre = !closing;
        break;
    case TAG_INLINE: case TAG_SKIP:
        break;
    }
}

/* Handle the markup that begins at '<'; returns the offset after it. */
static size_t markup(struct html *h, const char *s, size_t size, size_t at)
{
    if (size - at >= 4 && memcmp(s + at, "<!--", 4) == 0) {
        const char *end = memmem(s + at + 4, size - at - 4, "-->", 3);
        return end ? (size_t)(end - s) + 3 : size;
    }
    const int closing = at + 1 < size && s[at + 1] == '/';
    const size_t name = at + 1 + (size_t)closing;
    size_t n = 0;
    while (name + n < size && ((s[name + n] | 32) >= 'a' && (s[name + n] | 32) <= 'z' ? 1 : n && s[name + n] >= '0' &&
                               s[name + n] <= '9'))
        n++;
    if (n == 0 && at + 1 < size && s[at + 1] != '!' && s[at + 1] != '?' && !closing) {
        build_add(h->out, "<", 1);               /* "a < b" */
        return at + 1;
    }
    const size_t end = tag_end(s, size, at);
    const enum tag_kind kind = kind_of(s + name, n);
    const int empty = end >= 2 && s[end - 2] == '/';
    if (((kind == TAG_SKIP && !empty) || (kind == TAG_TITLE && !h->title)) && !closing)
        return element_end(s, size, end, s + name, n);
    on_tag(h, kind, closing, kind == TAG_HEADING ? s[name + 1] : '1');
    return end;
}

void html_text(const char *s, size_t size, int title, struct text_build *out)
{
    struct html h = { out, title, 0 };
    int n;
    for (size_t at = 0; at < size && out->state == TEXT_GOOD;) {
        size_t length = 0;
        const uint32_t entity = s[at] == '&' ? html_entity(s + at, size - at, &length) : 0;
        if (s[at] == '<') {
            at = markup(&h, s, size, at);
        } else if (entity) {
            if (entity != 0xAD)
                build_char(out, entity);
            at += length;
        } else if (!h.pre && strchr(" \t\r\n\f", s[at])) {
            build_blank(out);
            at++;
        } else {
            build_char(out, utf8_next(s + at, size - at, &n));
            at += (size_t)n;
        }
    }
    build_break(out, 1);
}

/* ---- JSON ---- */

/* The string that begins after a quote at s[at]; returns the offset after its end. */
static size_t json_string_text(const char *s, size_t size, size_t at, struct text_build *out)
{
    static const char from[] = "nrtbf", to[] = "\n\n\t  ";
    int n;
    while (at < size && s[at] != '"') {
        if (s[at] != '\\' || at + 1 == size) {
            build_char(out, utf8_next(s + at, size - at, &n));
            at += (size_t)n;
            continue;
        }
        const char *known = s[at + 1] ? strchr(from, s[at + 1]) : NULL;
        if (s[at + 1] == 'u' && size - at >= 6) {
            char hex[5] = { s[at + 2], s[at + 3], s[at + 4], s[at + 5], 0 };
            uint32_t c = (uint32_t)strtoul(hex, NULL, 16);
            at += 6;
            if (c >= 0xD800 && c < 0xDC00 && size - at >= 6 && s[at] == '\\' && s[at + 1] == 'u') {
                char low[5] = { s[at + 2], s[at + 3], s[at + 4], s[at + 5], 0 };
                c = 0x10000 + ((c - 0xD800) << 10) + ((uint32_t)strtoul(low, NULL, 16) & 0x3FF);
                at += 6;
            }
            build_char(out, c);
            continue;
        }
        build_char(out, known ? (uint32_t)to[known - from] : (unsigned char)s[at + 1] < 0x80 ? (uint32_t)s[at + 1]
                                                                                            : ' ');
        at += 2;
    }
    return at < size ? at + 1 : size;
}

void json_text(const char *s, size_t size, struct text_build *out)
{
    int n;
    for (size_t at = 0; at < size && out->state == TEXT_GOOD;) {
        switch (s[at]) {
        case '"':
            at = json_string_text(s, size, at + 1, out);
            break;
        case ':':
            build_add(out, ": ", 2);
            at++;
            break;
        case ',':
            build_break(out, 1);
            at++;
            break;
        case '{': case '}': case '[': case ']':
            build_break(out, s[at] == '}' ? 2 : 1);
            at++;
            break;
        case ' ': case '\t': case '\r': case '\n':
            at++;
            break;
        default:
            build_char(out, utf8_next(s + at, size - at, &n));
            at += (size_t)n;
        }
    }
    build_break(out, 1);
}
