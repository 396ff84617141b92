/* regex.c - regular expressions in ECMAScript's syntax (ECMA-262, section 22.2.1, with the u flag's
 * escapes).
 *
 * Supported is all syntax that denotes a regular set of texts: alternatives, groups, quantifiers
 * (lazy ones match the same texts), classes, escapes, Unicode general categories, anchors at the
 * ends, lookahead outside of groups.  Back references, lookbehind and \b are refused.
 *
 * \d, \w and \s are those of ECMAScript.  Their negations (\W, [^\w]) also exclude characters that
 * only other engines count as digits, word characters or blanks, so that generated text satisfies
 * all engines. */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "libcommon/base/utf8.h"
#include "libcommon/grammar/grow.h"
#include "libcommon/grammar/internal.h"

enum { MAX_DEPTH = 200, MAX_COUNT = 1000000, END = 0x110000 };

struct set { struct char_range *r; int n, room, failed; };       /* r owned */
struct regex_part { uint32_t e; int32_t min, max; };             /* max EXPR_MANY */

struct regex_parser {
    struct grammar *g;
    struct exprs *x;
    const char *text; size_t n, at;
    int json, search, depth;
    uint32_t any;                       /* one character */
    struct err *e;
    int failed;
};

static int bad(struct regex_parser *p, size_t at, enum err_code code, const char *what)
{
    if (!p->failed)
        err_set(p->e, code, "regular expression, character %zu: %s", utf8_count(p->text, at) + 1, what);
    p->failed = 1;
    return -1;
}

/* ---- sets of characters ---- */

static void set_add(struct set *s, uint32_t lo, uint32_t hi)
{
    if (s->n == s->room) {
        int room = 2 * s->room + 16;
        struct char_range *r = realloc(s->r, (size_t)room * sizeof *r);
        if (!r) {
            s->failed = 1;
            return;
        }
        s->r = r;
        s->room = room;
    }
    s->r[s->n++] = (struct char_range){ lo, hi };
}

static int by_lo(const void *a, const void *b)
{
    const struct char_range *x = a, *y = b;
    return x->lo < y->lo ? -1 : x->lo > y->lo;
}

static void set_tidy(struct set *s)
{
    int n = 0;
    if (s->n)
        qsort(s->r, (size_t)s->n, sizeof *s->r, by_lo);
    for (int i = 0; i < s->n; i++) {
        if (n && s->r[i].lo <= s->r[n - 1].hi + 1)
            s->r[n - 1].hi = s->r[i].hi > s->r[n - 1].hi ? s->r[i].hi : s->r[n - 1].hi;
        else
            s->r[n++] = s->r[i];
    }
    s->n = n;
}

static void set_negate(struct set *s)
{
    struct set to = { 0 };
    uint32_t from = 0;
    set_tidy(s);
    for (int i = 0; i < s->n; i++) {
        if (s->r[i].lo > from)
            set_add(&to, from, s->r[i].lo - 1);
        from = s->r[i].hi + 1;
    }
    if (from < END)
        set_add(&to, from, END - 1);
    to.failed |= s->failed;
    free(s->r);
    *s = to;
}

static void set_join(struct set *to, const struct set *from)
{
    for (int i = 0; i < from->n; i++)
        set_add(to, from->r[i].lo, from->r[i].hi);
    to->failed |= from->failed;
}

/* Find the runs of characters of one category, once: a look-up for each of a million characters
 * takes longer than compiling most schemas.  Planes 4 to 13 have no characters, 15 and 16 are for
 * private use. */
static int find_categories(struct grammar *g)
{
    uint32_t n = 0;
    for (uint32_t c = 0, end; c < END; c = end) {
        const uint8_t category = (uint8_t)utf8proc_category((utf8proc_int32_t)c);
        end = c == 0x40000 ? 0xE0000 : c == 0xF0000 || c == 0x100000 ? c + 0xFFFE : c + 1;
        if (n && g->categories[n - 1].category == category) {
            g->categories[n - 1].hi = end - 1;
            continue;
        }
        if (n == g->category_room) {
            const uint32_t room = 2 * n + 4096;
            struct category_run *v = realloc(g->categories, room * sizeof *v);
            if (!v)
                return -1;
            g->categories = v;
            g->category_room = room;
        }
        g->categories[n++] = (struct category_run){ c, end - 1, category };
    }
    g->n_categories = n;
    return 0;
}

/* Add to s all characters whose category has a bit in the mask. */
static void set_categories(struct grammar *g, struct set *s, uint32_t mask)
{
    if (!g->n_categories && find_categories(g) != 0)
        s->failed = 1;
    for (uint32_t i = 0; i < g->n_categories; i++)
        if (mask >> g->categories[i].category & 1)
            set_add(s, g->categories[i].lo, g->categories[i].hi);
}

#define BIT(c) (1u << UTF8PROC_CATEGORY_##c)
static const uint32_t letters = BIT(LU) | BIT(LL) | BIT(LT) | BIT(LM) | BIT(LO), marks = BIT(MN) | BIT(MC) | BIT(ME),
                      numbers = BIT(ND) | BIT(NL) | BIT(NO);

/* The characters of \d, \w or \s; wide: also those that only other engines count as such. */
static void set_class(struct grammar *g, struct set *s, int c, int wide)
{
    static const struct char_range blank[] = { { 9, 13 }, { ' ', ' ' }, { 0xA0, 0xA0 }, { 0x1680, 0x1680 },
                                          { 0x2000, 0x200A }, { 0x2028, 0x2029 }, { 0x202F, 0x202F },
                                          { 0x205F, 0x205F }, { 0x3000, 0x3000 } };
    if (c == 's') {
        for (size_t i = 0; i < sizeof blank / sizeof *blank; i++)
            set_add(s, blank[i].lo, blank[i].hi);
        if (wide) {
            set_add(s, 0x1C, 0x1F);
            set_add(s, 0x85, 0x85);
            set_add(s, 0xFEFF, 0xFEFF);
        }
        return;
    }
    set_add(s, '0', '9');
    if (c == 'w') {
        set_add(s, 'A', 'Z');
        set_add(s, 'a', 'z');
        set_add(s, '_', '_');
    }
    if (wide)
        set_categories(g, s, c == 'd' ? BIT(ND) : letters | marks | numbers | BIT(PC));
}

static uint32_t category_mask(const char *name, size_t n)
{
    static const struct { const char *name, *long_name; uint32_t mask; } table[] = {
        { "L", "Letter", BIT(LU) | BIT(LL) | BIT(LT) | BIT(LM) | BIT(LO) }, { "Lu", "Uppercase_Letter", BIT(LU) },
            { "Ll", "Lowercase_Letter", BIT(LL) }, { "Lt", "Titlecase_Letter", BIT(LT) },
        { "LC", "Cased_Letter", BIT(LU) | BIT(LL) | BIT(LT) }, { "Lm", "Modifier_Letter", BIT(LM) },
        { "Lo", "Other_Letter", BIT(LO) },
        { "M", "Mark", BIT(MN) | BIT(MC) | BIT(ME) }, { "Mn", "Nonspacing_Mark", BIT(MN) },
        { "Mc", "Spacing_Mark", BIT(MC) }, { "Me", "Enclosing_Mark", BIT(ME) },
        { "N", "Number", BIT(ND) | BIT(NL) | BIT(NO) }, { "Nd", "Decimal_Number", BIT(ND) },
        { "Nl", "Letter_Number", BIT(NL) }, { "No", "Other_Number", BIT(NO) },
        { "P", "Punctuation", BIT(PC) | BIT(PD) | BIT(PS) | BIT(PE) | BIT(PI) | BIT(PF) | BIT(PO) },
        { "Pc", "Connector_Punctuation", BIT(PC) }, { "Pd", "Dash_Punctuation", BIT(PD) },
        { "Ps", "Open_Punctuation", BIT(PS) }, { "Pe", "Close_Punctuation", BIT(PE) },
        { "Pi", "Initial_Punctuation", BIT(PI) }, { "Pf", "Final_Punctuation", BIT(PF) },
        { "Po", "Other_Punctuation", BIT(PO) }, { "S", "Symbol", BIT(SM) | BIT(SC) | BIT(SK) | BIT(SO) },
        { "Sm", "Math_Symbol", BIT(SM) }, { "Sc", "Currency_Symbol", BIT(SC) },
        { "Sk", "Modifier_Symbol", BIT(SK) }, { "So", "Other_Symbol", BIT(SO) },
        { "Z", "Separator", BIT(ZS) | BIT(ZL) | BIT(ZP) }, { "Zs", "Space_Separator", BIT(ZS) },
        { "Zl", "Line_Separator", BIT(ZL) }, { "Zp", "Paragraph_Separator", BIT(ZP) },
        { "C", "Other", BIT(CC) | BIT(CF) | BIT(CS) | BIT(CO) | BIT(CN) }, { "Cc", "Control", BIT(CC) },
        { "Cf", "Format", BIT(CF) }, { "Co", "Private_Use", BIT(CO) }, { "Cn", "Unassigned", BIT(CN) },
    };
    const char *eq = memchr(name, '=', n);
    if (eq && ((eq - name == 2 && !memcmp(name, "gc", 2)) ||
               (eq - name == 16 && !memcmp(name, "General_Category", 16)))) {
        n -= (size_t)(eq + 1 - name);
        name = eq + 1;
    }
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if ((strlen(table[i].name) == n && !memcmp(table[i].name, name, n)) ||
            (strlen(table[i].long_name) == n && !memcmp(table[i].long_name, name, n)))
            return table[i].mask;
    return 0;
}

/* ---- syntax ---- */

static int peek(const struct regex_parser *p) { return p->at < p->n ? (unsigned char)p->text[p->at] : -1; }
static int starts(const struct regex_parser *p, const char *what)
{
    return p->n - p->at >= strlen(what) && !memcmp(p->text + p->at, what, strlen(what));
}

static int hex_digits(struct regex_parser *p, int count, uint32_t *c)
{
    uint32_t v = 0;
    for (int i = 0; i < count; i++) {
        int d = p->at + (size_t)i < p->n ? p->text[p->at + (size_t)i] : 0;
        int h = d >= '0' && d <= '9' ? d - '0' : d >= 'a' && d <= 'f' ? d - 'a' + 10 : d >= 'A' &&
                d <= 'F' ? d - 'A' + 10 : -1;
        if (h < 0)
            return -1;
        v = v << 4 | (uint32_t)h;
    }
    p->at += (size_t)count;
    *c = v;
    return 0;
}

/* After \u: a character, or -1. */
static int unicode_escape(struct regex_parser *p, uint32_t *c)
{
    const size_t start = p->at - 2;
    if (peek(p) == '{') {
        uint32_t v = 0;
        size_t at = ++p->at;
        for (uint32_t d; p->at < p->n && peek(p) != '}' && v < END && hex_digits(p, 1, &d) == 0;)
            v = v << 4 | d;
        if (peek(p) != '}' || p->at == at || v >= END)
            return bad(p, start, ERR_FORMAT, "\\u{...} needs a hexadecimal number up to 10FFFF");
        p->at++;
        *c = v;
        return 0;
    }
    if (hex_digits(p, 4, c) != 0)
        return bad(p, start, ERR_FORMAT, "\\u needs four hexadecimal digits");
    if (*c >= 0xD800 && *c < 0xDC00 && starts(p, "\\u")) {
        uint32_t low;
        const size_t at = p->at;
        p->at += 2;
        if (hex_digits(p, 4, &low) == 0 && low >= 0xDC00 && low <= 0xDFFF)
            *c = 0x10000 + ((*c - 0xD800) << 10) + (low - 0xDC00);
        else
            /* a lone surrogate is a character that occurs in no text */
            p->at = at;
    }
    return 0;
}

/* After \p or \P: a set (1), or -1. */
static int property_escape(struct regex_parser *p, struct set *s, int negated)
{
    const size_t start = p->at - 2;
    const char *end = peek(p) == '{' ? memchr(p->text + p->at, '}', p->n - p->at) : NULL;
    uint32_t mask = end ? category_mask(p->text + p->at + 1, (size_t)(end - p->text) - p->at - 1) : 0;
    if (!mask)
        return bad(p, start, ERR_UNSUPPORTED, "of \\p{...} the general categories are enforced (L, Lu, Nd, ...), not scripts or other properties");
    set_categories(p->g, s, mask);
    if (negated)
        set_negate(s);
    p->at = (size_t)(end + 1 - p->text);
    return 1;
}

/* After a backslash: a character in *c (returns 0), a set in s (returns 1), or -1. */
static int escape(struct regex_parser *p, struct set *s, uint32_t *c, int negated, int in_class)
{
    size_t start = p->at - 1;
    int k = peek(p), len;
    if (k < 0)
        return bad(p, start, ERR_FORMAT, "a backslash ends it");
    p->at++;
    switch (k) {
    case 'd': case 'w': case 's': case 'D': case 'W': case 'S': {
        int upper = k < 'a';
        set_class(p->g, s, upper ? k + 32 : k, upper != negated);
        if (upper)
            set_negate(s);
        return 1;
    }
    case 'p': case 'P': return property_escape(p, s, k == 'P');
    case 't': *c = '\t'; return 0;
    case 'n': *c = '\n'; return 0;
    case 'r': *c = '\r'; return 0;
    case 'f': *c = '\f'; return 0;
    case 'v': *c = '\v'; return 0;
    case '0':
        if (peek(p) >= '0' && peek(p) <= '9')
            return bad(p, start, ERR_FORMAT, "an octal escape");
        *c = 0;
        return 0;
    case 'b':
        if (in_class) {
            *c = '\b';
            return 0;
        }
        return bad(p, start, ERR_UNSUPPORTED, "\\b is not enforced");
    case 'B': return bad(p, start, ERR_UNSUPPORTED, "\\B is not enforced");
    case 'k': return bad(p, start, ERR_UNSUPPORTED, "back references are not enforced");
    case 'A': case 'Z': case 'z': return bad(p, start, ERR_UNSUPPORTED,
                                             "\\A, \\Z and \\z are no anchors of ECMAScript: use ^ and $");
    case 'c':
        if (p->at < p->n && ((p->text[p->at] | 32) >= 'a' && (p->text[p->at] | 32) <= 'z')) {
            *c = (uint32_t)p->text[p->at++] & 31;
            return 0;
        }
        return bad(p, start, ERR_FORMAT, "\\c needs a letter");
    case 'x':
        return hex_digits(p, 2, c) == 0 ? 0 : bad(p, start, ERR_FORMAT, "\\x needs two hexadecimal digits");
    case 'u': return unicode_escape(p, c);
    default:
        if (k >= '1' && k <= '9')
            return bad(p, start, ERR_UNSUPPORTED, "back references are not enforced");
        if ((k >= 'a' && k <= 'z') || (k >= 'A' && k <= 'Z'))
            return bad(p, start, ERR_UNSUPPORTED, "an unknown escape");
        p->at--;
        *c = utf8_next(p->text + p->at, p->n - p->at, &len);
        p->at += (size_t)len;
        return 0;
    }
}

static int class_of(struct regex_parser *p, struct set *s)
{
    size_t start = p->at++;
    int negated = peek(p) == '^';
    p->at += (size_t)negated;
    while (peek(p) != ']') {
        uint32_t c[2] = { 0, 0 };
        int is_set[2] = { 0, 0 }, len, n = 1;
        struct set part[2] = { { 0 }, { 0 } };
        size_t at = p->at;
        for (int i = 0; i < n && !p->failed; i++) {
            if (peek(p) < 0) {
                bad(p, start, ERR_FORMAT, "a class without ]");
            } else if (peek(p) == '\\') {
                p->at++;
                is_set[i] = escape(p, &part[i], &c[i], negated, 1);
            } else {
                c[i] = utf8_next(p->text + p->at, p->n - p->at, &len);
                p->at += (size_t)len;
            }
            if (i == 0 && peek(p) == '-' && p->at + 1 < p->n && p->text[p->at + 1] != ']') {
                p->at++;
                n = 2;
            }
        }
        if (!p->failed && n == 2 && !is_set[0] && !is_set[1] && c[0] > c[1])
            bad(p, at, ERR_FORMAT, "a range whose end comes before its beginning");
        if (n == 2 && !is_set[0] && !is_set[1]) {
            set_add(s, c[0], c[1]);
        } else {
            for (int i = 0; i < n; i++)
                if (is_set[i] == 1)
                    set_join(s, &part[i]);
                else
                    set_add(s, c[i], c[i]);
            if (n == 2)
                set_add(s, '-', '-');
        }
        free(part[0].r);
        free(part[1].r);
        if (p->failed)
            return -1;
    }
    p->at++;
    if (negated)
        set_negate(s);
    else
        set_tidy(s);
    return 0;
}

static uint32_t set_expr(struct regex_parser *p, struct set *s)
{
    set_tidy(s);
    p->x->failed = s->failed && !p->x->failed ? EXPR_NO_MEMORY : p->x->failed;
    return p->json ? expr_json_chars(p->x, s->r, s->n) : expr_chars(p->x, s->r, s->n);
}

/* The place of a sequence in the expression.  BEGINS, ENDS: it starts or ends the expression, so
 * that other text may come before or after a match.  ANCHORED_BEGIN, ANCHORED_END: an anchor
 * excludes such text. */
enum { BEGINS = 1, ANCHORED_BEGIN = 2, ENDS = 4, ANCHORED_END = 8 };
static struct regex_part alternatives(struct regex_parser *p, int top);

static int32_t plus(int32_t a, int32_t b)
{
    return a == EXPR_MANY || b == EXPR_MANY ? EXPR_MANY : a > MAX_COUNT * 100 ||
           b > MAX_COUNT * 100 ? MAX_COUNT * 200 : a + b;
}

static int32_t times(int32_t a, int32_t b)
{
    if (a == 0 || b == 0)
        return 0;
    if (a == EXPR_MANY || b == EXPR_MANY)
        return EXPR_MANY;
    return (int64_t)a * b > MAX_COUNT * 100 ? MAX_COUNT * 100 : a * b;
}

static int number(struct regex_parser *p, int32_t *v)
{
    size_t at = p->at;
    *v = 0;
    while (peek(p) >= '0' && peek(p) <= '9') {
        *v = *v > MAX_COUNT ? *v : *v * 10 + (peek(p) - '0');
        p->at++;
    }
    return p->at > at;
}

/* Read the quantifier at the cursor, if there is one. */
static int quantifier(struct regex_parser *p, int32_t *lo, int32_t *hi)
{
    size_t start = p->at;
    switch (peek(p)) {
    case '*': *lo = 0, *hi = EXPR_MANY; break;
    case '+': *lo = 1, *hi = EXPR_MANY; break;
    case '?': *lo = 0, *hi = 1; break;
    case '{':
        p->at++;
        if (!number(p, lo)) {
            p->at = start;
            return 0;
        }
        *hi = *lo;
        if (peek(p) == ',') {
            p->at++;
            if (!number(p, hi))
                *hi = EXPR_MANY;
        }
        if (peek(p) != '}') {
            p->at = start;
            return 0;
        }
        if (*lo > MAX_COUNT || *hi > MAX_COUNT)
            return bad(p, start, ERR_LIMIT, "a repetition of more than 1000000");
        if (*hi != EXPR_MANY && *hi < *lo)
            return bad(p, start, ERR_FORMAT, "a repetition whose end is below its beginning");
        break;
    default:
        return 0;
    }
    p->at++;
    if (peek(p) == '?')
        p->at++;                        /* lazy: the same texts */
    else if (peek(p) == '+')
        return bad(p, p->at, ERR_UNSUPPORTED, "possessive quantifiers are not of ECMAScript");
    return 1;
}

/* Returns the offset after the group at the cursor, or the end of the text if the group is not
 * closed. *looks becomes 1 if an anchor or a lookahead is inside. */
static size_t group_end(const struct regex_parser *p, int *looks)
{
    int depth = 0, in_class = 0;
    size_t i = p->at;
    *looks = 0;
    for (; i < p->n; i++) {
        const char c = p->text[i];
        if (c == '\\') {
            i++;
        } else if (in_class) {
            in_class = c != ']';
        } else if (c == '[') {
            in_class = 1;
        } else if (c == '(') {
            depth++;
            *looks |= p->n - i > 2 && p->text[i + 1] == '?' && (p->text[i + 2] == '=' || p->text[i + 2] == '!');
        } else if (c == '^' || c == '$') {
            *looks = 1;
        } else if (c == ')' && --depth == 0) {
            return i + 1;
        }
    }
    return p->n;
}

static int ends_sequence(const struct regex_parser *p, size_t at)
{
    return at >= p->n || p->text[at] == '|' || p->text[at] == ')';
}

/* Returns the place (BEGINS ...) of the group at the cursor, as far as the group shares it with
 * `top`, the place of the sequence that contains the group.  Returns 0 if the group is repeated, or
 * has no anchor or lookahead, which alone depend on the place. */
static int group_place(const struct regex_parser *p, int top, int is_first)
{
    int looks, place = 0;
    const size_t end = group_end(p, &looks);
    if (!looks || (end < p->n && strchr("*+?{", p->text[end])))
        return 0;
    if (is_first)
        place = top & (BEGINS | ANCHORED_BEGIN);
    if (ends_sequence(p, end))
        place |= top & (ENDS | ANCHORED_END);
    else if (p->text[end] == '$' && ends_sequence(p, end + 1) && top & (ENDS | ANCHORED_END))
        place |= ANCHORED_END;
    return place;
}

/* Read one atom.  place: of a group, as group_place() returns it. */
static struct regex_part atom(struct regex_parser *p, int place)
{
    struct regex_part r = { EXPR_NONE, 1, 1 };
    struct set s = { 0 };
    size_t start = p->at;
    uint32_t c = 0;
    int k = peek(p), len, is_set = 0;
    switch (k) {
    case '(':
        p->at++;
        if (starts(p, "?:")) {
            p->at += 2;
        } else if (starts(p, "?<") && !starts(p, "?<=") && !starts(p, "?<!")) {
            const char *end = memchr(p->text + p->at, '>', p->n - p->at);
            if (!end) {
                bad(p, start, ERR_FORMAT, "a group name without >");
                return r;
            }
            p->at = (size_t)(end + 1 - p->text);
        } else if (peek(p) == '?') {
            bad(p, start, ERR_UNSUPPORTED, starts(p, "?<") ? "lookbehind is not enforced" : starts(p, "?=") ||
                starts(p, "?!") ? "lookahead is enforced outside of groups and in a last one only"
                                : "flags inside of the expression are not enforced");
            return r;
        }
        if (++p->depth > MAX_DEPTH) {
            bad(p, start, ERR_LIMIT, "groups nested more than 200 deep");
            return r;
        }
        r = alternatives(p, place);
        p->depth--;
        if (!p->failed && peek(p) != ')')
            bad(p, start, ERR_FORMAT, "a group without )");
        p->at++;
        return r;
    case '[':
        if (class_of(p, &s) == 0)
            r.e = set_expr(p, &s);
        free(s.r);
        return r;
    case '.':
        p->at++;
        set_add(&s, '\n', '\n');
        set_add(&s, '\r', '\r');
        set_add(&s, 0x2028, 0x2029);
        set_negate(&s);
        r.e = set_expr(p, &s);
        free(s.r);
        return r;
    case '*': case '+': case '?':
        bad(p, start, ERR_FORMAT, "nothing to repeat");
        return r;
    case '^': case '$':
        bad(p, start, ERR_UNSUPPORTED, "anchors are enforced at the beginning and the end only");
        return r;
    case '\\':
        p->at++;
        is_set = escape(p, &s, &c, 0, 0);
        break;
    default:
        c = utf8_next(p->text + p->at, p->n - p->at, &len);
        p->at += (size_t)len;
    }
    if (!is_set)
        set_add(&s, c, c);
    if (!p->failed)
        r.e = set_expr(p, &s);
    free(s.r);
    return r;
}

/* look: 1 lookahead, -1 a negative one. */
struct regex_item { struct regex_part p; int look; };

/* Read (?=...) or (?!...), at the start of which the parser is. */
static struct regex_item lookahead(struct regex_parser *p)
{
    struct regex_item it = { .look = starts(p, "(?=") ? 1 : -1 };
    const size_t start = p->at;
    const int search = p->search;
    p->at += 3;
    p->depth++;
    p->search = 2;                      /* a match of the lookahead starts here and may end anywhere */
    it.p = alternatives(p, BEGINS | ENDS);
    p->search = search;
    p->depth--;
    if (!p->failed && peek(p) != ')')
        bad(p, start, ERR_FORMAT, "a group without )");
    p->at++;
    return it;
}

/* Read an atom with its quantifier. */
static struct regex_item quantified(struct regex_parser *p, int place)
{
    struct regex_item it = { .p = atom(p, place) };
    int32_t lo, hi;
    if (!p->failed && quantifier(p, &lo, &hi) == 1) {
        it.p.e = expr_repeat(p->x, it.p.e, lo, hi);
        it.p.min = times(it.p.min, lo);
        it.p.max = times(it.p.max, hi);
    }
    return it;
}

/* Concatenate the items of a sequence, and r after them. */
static struct regex_part join_items(struct regex_parser *p, const struct regex_item *v, uint32_t n,
                                    struct regex_part r)
{
    while (n--) {
        if (v[n].look) {
            uint32_t look = v[n].look > 0 ? v[n].p.e : expr_not(p->x, v[n].p.e);
            r.e = expr_both(p->x, look, r.e);
        } else {
            r.e = expr_concat(p->x, v[n].p.e, r.e);
            r.min = plus(r.min, v[n].p.min);
            r.max = plus(r.max, v[n].p.max);
        }
    }
    return r;
}

static struct regex_part sequence(struct regex_parser *p, int top)
{
    struct regex_item *v = NULL;
    uint32_t n = 0, room = 0, n_atoms = 0;
    int anchored_begin = !(top & BEGINS), anchored_end = !(top & ENDS);
    struct regex_part r = { EXPR_EPSILON, 0, 0 };
    const uint32_t all = top ? expr_repeat(p->x, p->any, 0, EXPR_MANY) : (uint32_t)EXPR_EPSILON;
    while (!p->failed && p->at < p->n && peek(p) != '|' && peek(p) != ')') {
        struct regex_item it;
        if (top & (BEGINS | ANCHORED_BEGIN) && peek(p) == '^' && n_atoms == 0) {
            anchored_begin = 1;
            p->at++;
            continue;
        }
        if (top & (ENDS | ANCHORED_END) && peek(p) == '$' && ends_sequence(p, p->at + 1)) {
            anchored_end = 1;
            p->at++;
            break;
        }
        if (top & (ENDS | ANCHORED_END) && (starts(p, "(?=") || starts(p, "(?!"))) {
            it = lookahead(p);
        } else {
            const int begins = top & (BEGINS | ANCHORED_BEGIN), ends = top & (ENDS | ANCHORED_END);
            const int first = n_atoms ? 0 : anchored_begin && begins ? ANCHORED_BEGIN : begins;
            const int place = peek(p) == '(' ? group_place(p, first | ends, n_atoms == 0) : 0;
            n_atoms++;
            anchored_begin |= place & BEGINS;
            anchored_end |= place & ENDS;
            it = quantified(p, place);
        }
        if (grow((void **)&v, &room, n + 1, sizeof *v) != 0) {
            p->x->failed = EXPR_NO_MEMORY;
            p->failed = 1;
            break;
        }
        v[n++] = it;
    }
    if (p->search && !anchored_end) {
        r.e = all;
        r.max = EXPR_MANY;
    }
    if (!p->failed)
        r = join_items(p, v, n, r);
    if (p->search == 1 && !anchored_begin) {
        r.e = expr_concat(p->x, all, r.e);
        r.max = EXPR_MANY;
    }
    free(v);
    return r;
}

static struct regex_part alternatives(struct regex_parser *p, int top)
{
    struct regex_part r = sequence(p, top);
    uint32_t *v = NULL, n = 0, room = 0;
    while (!p->failed && peek(p) == '|') {
        if (n + 2 > room) {
            uint32_t *w = realloc(v, (room = 2 * room + 16) * sizeof *v);
            if (!w) {
                p->x->failed = EXPR_NO_MEMORY;
                p->failed = 1;
                break;
            }
            v = w;
        }
        if (n == 0)
            v[n++] = r.e;
        p->at++;
        struct regex_part next = sequence(p, top);
        v[n++] = next.e;
        r.min = next.min < r.min ? next.min : r.min;
        r.max = r.max == EXPR_MANY || next.max == EXPR_MANY ? EXPR_MANY : next.max > r.max ? next.max : r.max;
    }
    if (n)
        r.e = expr_union(p->x, v, n);
    free(v);
    return r;
}

uint32_t regex_compile(struct grammar *g, const char *text, size_t size, int json, int search, int32_t *min,
                       int32_t *max, struct err *e)
{
    static const struct char_range every = { 0, END - 1 };
    struct regex_parser p = { .g = g, .x = &g->x, .text = text, .n = size, .json = json, .search = search, .e = e };
    if (size > GRAMMAR_REGEX_BYTES) {
        err_set(e, ERR_LIMIT, "regular expression: %zu bytes, more than %d", size, GRAMMAR_REGEX_BYTES);
        return EXPR_NONE;
    }
    if (utf8_valid(text, size) != size) {
        err_set(e, ERR_FORMAT, "regular expression: not UTF-8");
        return EXPR_NONE;
    }
    p.any = json ? expr_json_chars(p.x, &every, 1) : expr_chars(p.x, &every, 1);
    struct regex_part r = alternatives(&p, BEGINS | ENDS);
    if (!p.failed && p.at < p.n)
        bad(&p, p.at, ERR_FORMAT, "a ) without (");
    if (p.failed) {
        if (p.x->failed)
            exprs_check(p.x, e);
        return EXPR_NONE;
    }
    if (grammar_check_work(g, e) != 0)
        return EXPR_NONE;
    if (r.e == EXPR_NONE) {
        err_set(e, ERR_FORMAT, "regular expression: it matches nothing");
        return EXPR_NONE;
    }
    if (min)
        *min = r.min;
    if (max)
        *max = r.max;
    return r.e;
}

struct grammar *grammar_compile_regex(const struct grammar_vocab *v, const char *text, size_t size,
                                      const struct grammar_options *o, struct err *e)
{
    struct grammar *g = grammar_new(v, o, e);
    if (!g)
        return NULL;
    uint32_t r = regex_compile(g, text, size, 0, 0, NULL, NULL, e);
    int rc = r == EXPR_NONE || grammar_probe(g, r, e) != 0 ? -1 : 0;
    if (rc == 0) {
        r = grammar_term(g, r);
        rc = grammar_after_thought(g, &r, e) != 0 ? -1 : grammar_finish(g, r, e);
    }
    if (rc != 0) {
        grammar_close(g);
        return NULL;
    }
    return g;
}
