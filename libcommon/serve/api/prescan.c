/* prescan.c - validate, count and blank members of JSON text without building a tree. */
#include "libcommon/serve/api/prescan.h"

#include <ctype.h>
#include <string.h>

#include "libcommon/base/utf8.h"

static int is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
static int is_digit(char c) { return c >= '0' && c <= '9'; }

/* ---- one valid value ---- */

/* Each of these functions reads one element at offset `at` and returns the offset after it, or 0 if
 * an element of another kind stands there. */

static size_t skip_blanks(const char *s, size_t size, size_t at)
{
    while (at < size && is_blank(s[at]))
        at++;
    return at;
}

static size_t skip_string(const char *s, size_t size, size_t at)
{
    const size_t from = at + 1;
    if (at >= size || s[at] != '"')
        return 0;
    for (at++; at < size && s[at] != '"'; at++) {
        if ((unsigned char)s[at] < ' ')
            return 0;
        if (s[at] != '\\')
            continue;
        if (++at >= size || !strchr("\"\\/bfnrtu", s[at]) || !s[at])
            return 0;
        for (int i = 0, n = s[at] == 'u' ? 4 : 0; i < n; i++)
            if (++at >= size || !isxdigit((unsigned char)s[at]))
                return 0;
    }
    return at < size && utf8_valid(s + from, at - from) == at - from ? at + 1 : 0;
}

static size_t skip_digits(const char *s, size_t size, size_t at)
{
    const size_t from = at;
    while (at < size && is_digit(s[at]))
        at++;
    return at > from ? at : 0;
}

static size_t skip_number(const char *s, size_t size, size_t at)
{
    if (at < size && s[at] == '-')
        at++;
    if (at < size && s[at] == '0')
        at++;
    else if (!(at = skip_digits(s, size, at)))
        return 0;
    if (at < size && s[at] == '.' && !(at = skip_digits(s, size, at + 1)))
        return 0;
    if (at < size && (s[at] == 'e' || s[at] == 'E')) {
        at++;
        at += at < size && (s[at] == '+' || s[at] == '-');
        at = skip_digits(s, size, at);
    }
    return at;
}

static size_t skip_scalar(const char *s, size_t size, size_t at)
{
    static const char *const words[] = { "true", "false", "null" };
    if (at < size && s[at] == '"')
        return skip_string(s, size, at);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        const size_t n = strlen(words[i]);
        if (size - at >= n && memcmp(s + at, words[i], n) == 0)
            return at + n;
    }
    return skip_number(s, size, at);
}

/* Skip a key and its colon. */
static size_t skip_key(const char *s, size_t size, size_t at)
{
    at = skip_string(s, size, skip_blanks(s, size, at));
    at = at ? skip_blanks(s, size, at) : size;
    return at < size && s[at] == ':' ? at + 1 : 0;
}

/* Skip a value of at most JSON_DEPTH levels. */
static size_t skip_value(const char *s, size_t size, size_t at)
{
    unsigned char is_object[JSON_DEPTH];
    int depth = 0;
    for (;;) {
        at = skip_blanks(s, size, at);
        if (at >= size)
            return 0;
        if ((s[at] == '{' || s[at] == '[') && depth == JSON_DEPTH)
            return 0;
        if (s[at] == '{' || s[at] == '[') {
            const size_t inside = skip_blanks(s, size, at + 1);
            is_object[depth++] = s[at] == '{';
            if (inside >= size || s[inside] != (s[at] == '{' ? '}' : ']')) {
                at = is_object[depth - 1] ? skip_key(s, size, inside) : inside;
                if (!at)
                    return 0;
                continue;
            }
            at = inside + 1;
            depth--;
        } else if (!(at = skip_scalar(s, size, at))) {
            return 0;
        }
        /* after a value: close the levels that end here, or continue with the next value */
        for (;; depth--) {
            if (depth == 0)
                return at;
            at = skip_blanks(s, size, at);
            if (at >= size)
                return 0;
            if (s[at] != (is_object[depth - 1] ? '}' : ']'))
                break;
            at++;
        }
        if (s[at] != ',')
            return 0;
        at = is_object[depth - 1] ? skip_key(s, size, at + 1) : at + 1;
        if (!at)
            return 0;
    }
}

/* ---- members that are ignored ---- */

static size_t blank(char *s, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        if (s[i] != '\n')
            s[i] = ' ';
    return to - from;
}

/* Ignored fields seen so far; a body has few of them. */
struct ignored_fields { const struct field *f[32]; int n; };

static int is_twice(struct ignored_fields *seen, const struct field *f)
{
    for (int i = 0; i < seen->n; i++)
        if (seen->f[i] == f)
            return 1;
    if (seen->n < (int)(sizeof seen->f / sizeof *seen->f))
        seen->f[seen->n++] = f;
    return 0;
}

/* Blank ignored members of the object that the text begins with; malformed text ends the scan. */
static int blank_ignored(char *s, size_t size, body_set kind, struct prescan *p, struct problem *pr)
{
    struct ignored_fields seen = { .n = 0 };
    /* comma: offset of the comma after the last member that was kept; 0: none was kept so far */
    size_t at = skip_blanks(s, size, 0), comma = 0;
    if (at >= size || s[at] != '{')
        return 0;
    for (at++;;) {
        const size_t key = skip_blanks(s, size, at), behind = skip_string(s, size, key),
                     value = behind ? skip_key(s, size, key) : 0;
        const struct field *f = value ? fields_find(s + key + 1, behind - key - 2, kind) : NULL;
        size_t end = value ? skip_value(s, size, value) : 0;
        if (!end)
            return 0;
        end = skip_blanks(s, size, end);
        if (end >= size || (s[end] != ',' && s[end] != '}'))
            return 0;
        const int last = s[end] == '}';
        if (f && f->use == FIELD_IGNORED) {
            if (is_twice(&seen, f))
                return problem_set(pr, 400, f->name, "invalid_json", "body: duplicate object key near \"%s\"", f->name);
            p->n_blanked += blank(s, key, last ? end : end + 1);
            if (last && comma)
                blank(s, comma, comma + 1);
        } else {
            comma = end;
        }
        if (last)
            return 0;
        at = end + 1;
    }
}

/* ---- the size of the tree ---- */

/* Bytes that jansson 2.13 and 2.14 allocate on a 64-bit machine, including malloc's 16 bytes for
 * each block.  While a hash table doubles, the old and the new one exist together.  An object takes
 * 72 bytes and 8 buckets of 16; a member 56 bytes, its key and its part of the buckets; an array 40
 * bytes and 8 pointers; an element 3 pointers; a string 32 bytes and its text; a number 24
 * bytes. */
enum { OBJECT_BYTES = 280, ARRAY_BYTES = 184, STRING_BYTES = 160, NUMBER_BYTES = 64, WORD_BYTES = 24 };

/* Count every token, valid or not: the count must cover all tokens that jansson reads before it
 * finds an error. */
static int count(const char *s, size_t size, struct prescan *p, struct problem *pr)
{
    size_t longest = 0;
    int depth = 0, huge = 0;
    for (size_t i = 0; i < size;) {
        const size_t from = i;
        const char c = s[i++];
        if (c == '"') {
            while (i < size && s[i] != '"')
                i += s[i] == '\\' && i + 1 < size ? 2 : 1;
            const size_t n = i - from;
            i += i < size;
            longest = n > longest ? n : longest;
            p->text_bytes += n;
            p->tree_bytes += STRING_BYTES + n;
        } else if (c == '{' || c == '[') {
            if (++depth > JSON_DEPTH)
                return problem_set(pr, 400, NULL, "invalid_json", "body: more than %d levels of objects and lists",
                                   JSON_DEPTH);
            p->tree_bytes += c == '{' ? OBJECT_BYTES : ARRAY_BYTES;
        } else if (c == '}' || c == ']') {
            depth -= depth > 0;
        } else if (!is_blank(c) && c != ',' && c != ':') {
            const int number = c == '-' || is_digit(c);
            while (i < size && !is_blank(s[i]) && !strchr("\",:{}[]", s[i]))
                i++;
            longest = i - from > longest ? i - from : longest;
            huge |= number && i - from >= 19;
            p->tree_bytes += number ? NUMBER_BYTES : WORD_BYTES;
        }
    }
    p->tree_bytes += 4 * longest + 1024;        /* the parser's copy of a token, whose buffer doubles as it grows */
    p->tree_bytes += huge ? size + size / 8 : 0;        /* js_parse() copies the text */
    return 0;
}

int prescan_body(char *text, size_t size, body_set kind, struct prescan *p, struct problem *pr)
{
    *p = (struct prescan){ .tree_bytes = 0 };
    return blank_ignored(text, size, kind, p, pr) || count(text, size, p, pr) ? -1 : 0;
}

size_t prescan_tree(const char *text, size_t size)
{
    struct prescan p = { .tree_bytes = 0 };
    struct problem ignored;
    count(text, size, &p, &ignored);
    return p.tree_bytes;
}
