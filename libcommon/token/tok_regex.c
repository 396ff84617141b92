/* tok_regex.c - translate regular expressions from Oniguruma to PCRE2 and match them. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "libcommon/token/tok_regex.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include <pcre2.h>

/* ---- translation ---- */

#define WORD_SET "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
/* Outside of sets Oniguruma looks Latin-1 up in another table, which has the superscript digits
 * and fractions, too. */
#define WORD_ALONE WORD_SET "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"
enum { MAX_NESTING = 200 };

struct tr {
    const char *s;
    size_t n, i;
    int depth;
    struct err *e;
};

static int bad(struct tr *t, const char *why)
{
    return err_set(t->e, ERR_UNSUPPORTED, "regular expression '%.*s': offset %zu: %s", t->n > 200 ? 200 : (int)t->n,
                   t->s, t->i, why);
}

static void put(struct tbuf *o, const char *s) { tbuf_add(o, s, strlen(s)); }

static int peek(const struct tr *t, size_t k) { return t->i + k < t->n ? (unsigned char)t->s[t->i + k] : -1; }

static const char *const property_names[][2] = {
    { "letter", "L" }, { "uppercaseletter", "Lu" }, { "lowercaseletter", "Ll" }, { "titlecaseletter", "Lt" },
        { "modifierletter", "Lm" },
    { "otherletter", "Lo" }, { "mark", "M" }, { "nonspacingmark", "Mn" }, { "spacingmark", "Mc" },
    { "enclosingmark", "Me" },
    { "number", "N" }, { "decimalnumber", "Nd" }, { "digit", "Nd" }, { "letternumber", "Nl" }, { "othernumber", "No" },
    { "punctuation", "P" }, { "punct", "P" }, { "connectorpunctuation", "Pc" }, { "dashpunctuation", "Pd" },
    { "openpunctuation", "Ps" },
    { "closepunctuation", "Pe" }, { "initialpunctuation", "Pi" }, { "finalpunctuation", "Pf" },
    { "otherpunctuation", "Po" },
    { "symbol", "S" }, { "mathsymbol", "Sm" }, { "currencysymbol", "Sc" }, { "modifiersymbol", "Sk" },
    { "othersymbol", "So" },
    { "separator", "Z" }, { "spaceseparator", "Zs" }, { "lineseparator", "Zl" }, { "paragraphseparator", "Zp" },
    { "other", "C" },
    { "control", "Cc" }, { "cntrl", "Cc" }, { "format", "Cf" }, { "privateuse", "Co" }, { "surrogate", "Cs" },
    { "unassigned", "Cn" },
    { "any", "Any" }, { "alphabetic", "Alphabetic" }, { "alpha", "Alphabetic" }, { "uppercase", "Uppercase" },
    { "upper", "Uppercase" },
    { "lowercase", "Lowercase" }, { "lower", "Lowercase" }, { "whitespace", "White_Space" }, { "space", "White_Space" },
    { "emoji", "Emoji" }, { "emojipresentation", "Emoji_Presentation" }, { "emojimodifier", "Emoji_Modifier" },
    { "extendedpictographic", "Extended_Pictographic" }, { "ideographic", "Ideographic" }, { "dash", "Dash" },
    { "hexdigit", "Hex_Digit" },
    { "xdigit", "ASCII_Hex_Digit" }, { "ascii", "ASCII" }, { "math", "Math" }, { "diacritic", "Diacritic" },
};

/* Translate \p{...} or \P{...}, from its brace on.  General categories and properties get PCRE2's
 * names; every other name is taken for that of a script. */
static int property(struct tr *t, struct tbuf *o, int negated)
{
    char name[64];
    size_t k = 0;
    if (peek(t, 0) != '{')
        return bad(t, "\\p without {name}");
    t->i++;
    if (peek(t, 0) == '^') {
        negated = !negated;
        t->i++;
    }
    for (; peek(t, 0) >= 0 && peek(t, 0) != '}'; t->i++) {
        int c = peek(t, 0);
        if (c == ' ' || c == '_' || c == '-')
            continue;
        if (!isalnum(c) || k + 1 >= sizeof name)
            return bad(t, "not a property name");
        name[k++] = (char)tolower(c);
    }
    if (peek(t, 0) != '}' || !k)
        return bad(t, "\\p{ without a name or without }");
    t->i++;
    name[k] = '\0';
    put(o, negated ? "\\P{" : "\\p{");
    const char *known = NULL;
    for (size_t i = 0; i < sizeof property_names / sizeof *property_names && !known; i++)
        if (!strcmp(name, property_names[i][0]))
            known = property_names[i][1];
    if (known) {
        put(o, known);
    } else if (k <= 2) {
        name[0] = (char)toupper(name[0]);
        put(o, name);
    } else {
        put(o, "sc:");
        put(o, name);
    }
    put(o, "}");
    return 0;
}

/* Translate an escape, from after its backslash on, if it means the same inside and outside a set.
 * 1: it is another escape. */
static int escape_common(struct tr *t, struct tbuf *o)
{
    char buf[16];
    int c = peek(t, 0);
    switch (c) {
    case 's': put(o, "\\p{White_Space}"); break;
    case 'S': put(o, "\\P{White_Space}"); break;
    case 'd': put(o, "\\p{Nd}"); break;
    case 'D': put(o, "\\P{Nd}"); break;
    case 'v': put(o, "\\x0B"); break;
    case 'p': case 'P':
        t->i++;
        return property(t, o, c == 'P');
    case 'u':
        memcpy(buf, "\\x{", 3);
        for (size_t k = 0; k < 4; k++) {
            int h = peek(t, 1 + k);
            if (h < 0 || !isxdigit(h))
                return bad(t, "\\u without four hexadecimal digits");
            buf[3 + k] = (char)h;
        }
        tbuf_add(o, buf, 7);
        put(o, "}");
        t->i += 4;
        break;
    default:
        return 1;
    }
    t->i++;
    return 0;
}

/* Append a complete operand of a set (a part between &&) to `all`.  The last operand becomes a
 * matcher of one character.  Each operand before it becomes a lookahead, which restricts that
 * character.  negated: for a set without operators or nested sets the ^ goes into its brackets, and
 * *negated becomes 0; NULL: the set has operators. */
static void operand(struct tbuf *all, struct tbuf *flat, struct tbuf *nested, int last, int *negated)
{
    int usual = negated && flat->n;
    put(all, last ? "" : "(?=");
    put(all, nested->n ? "(?:" : "");
    if (flat->n) {
        put(all, usual && *negated ? "[^" : "[");
        tbuf_add(all, flat->p, flat->n);
        put(all, nested->n ? "]|" : "]");
    }
    tbuf_add(all, nested->p, nested->n);
    put(all, nested->n ? ")" : flat->n ? "" : "(?!)");
    put(all, last ? "" : ")");
    if (usual)
        *negated = 0;
    all->failed |= flat->failed | nested->failed;
    flat->n = nested->n = 0;
}

/* [:name:], or a bracket that is a member. */
static void posix_class(struct tr *t, struct tbuf *flat)
{
    size_t k = 2;
    while (peek(t, k) >= 0 && (isalpha(peek(t, k)) || peek(t, k) == '^'))
        k++;
    if (peek(t, k) == ':' && peek(t, k + 1) == ']') {
        tbuf_add(flat, t->s + t->i, k + 2);
        t->i += k + 2;
    } else {
        put(flat, "\\[");
        t->i++;
    }
}

/* Translate an escape inside of a set.  0, or -1: it is refused. */
static int set_escape(struct tr *t, struct tbuf *flat, struct tbuf *nested)
{
    t->i++;
    int k = escape_common(t, flat);
    if (k <= 0)
        return k;
    int c = peek(t, 0);
    if (c == 'W' || c == 'H') {
        put(nested, nested->n ? "|" : "");
        put(nested, c == 'W' ? "[^" WORD_SET "]" : "[^0-9A-Fa-f]");
        t->i++;
    } else if (c == 'w' || c == 'h') {
        put(flat, c == 'w' ? WORD_SET : "0-9A-Fa-f");
        t->i++;
    } else if (c < 0) {
        return bad(t, "backslash at the end");
    } else {
        put(flat, "\\");
        do                              /* the whole character */
            tbuf_add(flat, t->s + t->i++, 1);
        while (peek(t, 0) >= 0 && (peek(t, 0) & 0xC0) == 0x80);
    }
    return 0;
}

/* Translate a set to one matcher of a single character.  Operands of && are unions of plain members
 * (flat) and nested sets (nested, "a|b"). */
static int set(struct tr *t, struct tbuf *o)
{
    struct tbuf flat = { 0 }, nested = { 0 }, all = { 0 };
    int negated = 0, n_operands = 0, rc = -1, closed = 0;
    if (++t->depth > MAX_NESTING) {
        t->depth--;
        return bad(t, "nested too deeply");
    }
    if (peek(t, 0) == '^') {
        negated = 1;
        t->i++;
    }
    if (peek(t, 0) == ']') {            /* a ] that comes first in a set belongs to the set */
        put(&flat, "\\]");
        t->i++;
    }
    while (!closed) {
        int c = peek(t, 0);
        if (c < 0) {
            bad(t, "set without ]");
            goto done;
        }
        if (c == ']' || (c == '&' && peek(t, 1) == '&')) {
            closed = c == ']';
            operand(&all, &flat, &nested, closed, closed && n_operands == 0 && !nested.n ? &negated : NULL);
            n_operands++;
            t->i += closed ? 1 : 2;
        } else if (c == '[' && peek(t, 1) == ':') {
            posix_class(t, &flat);
        } else if (c == '[') {
            t->i++;
            put(&nested, nested.n ? "|" : "");
            if (set(t, &nested))
                goto done;
        } else if (c == '\\') {
            if (set_escape(t, &flat, &nested) != 0)
                goto done;
        } else {
            tbuf_add(&flat, t->s + t->i++, 1);
        }
    }
    put(o, n_operands > 1 || negated ? "(?:" : "");
    if (negated) {
        put(o, "(?!");
        tbuf_add(o, all.p, all.n);
        put(o, ")(?s:.)");
    } else {
        tbuf_add(o, all.p, all.n);
    }
    put(o, n_operands > 1 || negated ? ")" : "");
    o->failed |= flat.failed | nested.failed | all.failed;
    rc = 0;
done:
    t->depth--;
    tbuf_release(&flat);
    tbuf_release(&nested);
    tbuf_release(&all);
    return rc;
}

static int escape(struct tr *t, struct tbuf *o)
{
    int k = escape_common(t, o);
    if (k <= 0)
        return k;
    int c = peek(t, 0);
    switch (c) {
    case 'w': put(o, "[" WORD_ALONE "]"); break;
    case 'W': put(o, "[^" WORD_ALONE "]"); break;
    case 'h': put(o, "[0-9A-Fa-f]"); break;
    case 'H': put(o, "[^0-9A-Fa-f]"); break;
    case 'b': put(o, "(?:(?<=[" WORD_ALONE "])(?![" WORD_ALONE "])|(?<![" WORD_ALONE "])(?=[" WORD_ALONE "]))"); break;
    case 'B': put(o, "(?:(?<=[" WORD_ALONE "])(?=[" WORD_ALONE "])|(?<![" WORD_ALONE "])(?![" WORD_ALONE "]))"); break;
    case 'O': put(o, "(?s:.)"); break;
    case 'y': case 'Y': case 'g': case 'M': case 'C': case 'c':
        return bad(t, "an escape that is not supported");
    case -1:
        return bad(t, "backslash at the end");
    default: {
        char two[2] = { '\\', (char)c };
        tbuf_add(o, two, 2);
    }
    }
    t->i++;
    return 0;
}

/* Translate what follows "(": options have Ruby's letters (m: dot matches newline).  *isolated is
 * set for "(?i)", whose options apply up to the end of the enclosing group. */
static int group_start(struct tr *t, struct tbuf *o, int *isolated)
{
    put(o, "(");
    *isolated = 0;
    if (peek(t, 0) != '?')
        return 0;
    size_t k = 1;
    while (peek(t, k) >= 0 && strchr("imx-", peek(t, k)))
        k++;
    if (k > 1 && (peek(t, k) == ':' || peek(t, k) == ')')) {
        *isolated = peek(t, k) == ')';
        put(o, "?");
        for (size_t j = 1; j < k; j++) {
            char c = (char)peek(t, j);
            tbuf_add(o, c == 'm' ? "s" : &c, 1);
        }
        put(o, ":");
        t->i += k + 1;
        return 0;
    }
    int c = peek(t, 1);
    if (c < 0 || !strchr(":=!><", c))
        return bad(t, "a kind of group that is not supported");
    return 0;
}

int regex_translate(struct tbuf *out, const char *pattern, size_t n, struct err *e)
{
    struct tr t = { .s = pattern, .n = n, .e = e };
    int open[MAX_NESTING] = { 0 }, depth = 0;       /* isolated options to close with each group */
    while (t.i < n) {
        int c = peek(&t, 0), rc = 0, isolated;
        switch (c) {
        case '\\':
            t.i++;
            rc = escape(&t, out);
            break;
        case '[':
            t.i++;
            rc = set(&t, out);
            break;
        case '(':
            t.i++;
            rc = group_start(&t, out, &isolated);
            if (!rc && isolated)
                open[depth]++;
            else if (!rc && depth + 1 == MAX_NESTING)
                rc = bad(&t, "nested too deeply");
            else if (!rc)
                open[++depth] = 0;
            break;
        case ')':
            if (depth == 0)
                return bad(&t, ") without (");
            for (; open[depth] > 0; open[depth]--)
                put(out, ")");
            depth--;
            put(out, ")");
            t.i++;
            break;
        case '{':
            put(out, peek(&t, 1) == ',' && peek(&t, 2) >= '0' && peek(&t, 2) <= '9' ? "{0" : "{");
            t.i++;
            break;
        default:
            tbuf_add(out, t.s + t.i++, 1);
        }
        if (rc)
            return -1;
    }
    if (depth)
        return bad(&t, "( without )");
    for (; open[0] > 0; open[0]--)
        put(out, ")");
    return out->failed ? err_nomem(e, "a regular expression") : 0;
}

/* ---- matching ---- */

struct regex { pcre2_code *code; };

struct regex_scratch {
    pcre2_match_data *md;
    pcre2_match_context *ctx;
    pcre2_jit_stack *stack;         /* NULL: the 32 KB of the thread's stack have been enough */
};

struct regex *regex_open(const char *pattern, size_t n, struct err *e)
{
    struct regex *r = malloc(sizeof *r);
    pcre2_compile_context *ctx = pcre2_compile_context_create(NULL);
    int code = 0;
    PCRE2_SIZE at = 0;
    if (!r || !ctx) {
        free(r);
        pcre2_compile_context_free(ctx);
        err_nomem(e, "a regular expression");
        return NULL;
    }
    pcre2_set_newline(ctx, PCRE2_NEWLINE_LF);
    r->code = pcre2_compile((PCRE2_SPTR)pattern, n, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C,
                            &code, &at, ctx);
    pcre2_compile_context_free(ctx);
    if (!r->code) {
        char why[120];
        if (pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why) < 0)
            why[0] = '\0';
        err_set(e, ERR_FORMAT, "regular expression '%.*s': offset %zu: %s", n > 200 ? 200 : (int)n, pattern, (size_t)at,
                why);
        free(r);
        return NULL;
    }
    /* Without JIT the interpreter matches, slower. */
    pcre2_jit_compile(r->code, PCRE2_JIT_COMPLETE);
    return r;
}

void regex_close(struct regex *r)
{
    if (r)
        pcre2_code_free(r->code);
    free(r);
}

struct regex_scratch *regex_scratch_open(void)
{
    struct regex_scratch *w = calloc(1, sizeof *w);
    if (!w)
        return NULL;
    w->md = pcre2_match_data_create(1, NULL);
    w->ctx = pcre2_match_context_create(NULL);
    if (!w->md || !w->ctx) {
        regex_scratch_close(w);
        return NULL;
    }
    return w;
}

/* Give matches a stack of up to 16 MB instead of PCRE2's 32 KB.  It is made only when a text needs
 * it, because making the mapping takes time.  0: there is none, or it was not enough. */
static int more_stack(struct regex_scratch *w)
{
    if (w->stack || !(w->stack = pcre2_jit_stack_create(32 << 10, 16 << 20, NULL)))
        return 0;
    pcre2_jit_stack_assign(w->ctx, NULL, w->stack);
    return 1;
}

void regex_scratch_close(struct regex_scratch *w)
{
    if (!w)
        return;
    pcre2_match_data_free(w->md);
    pcre2_match_context_free(w->ctx);
    if (w->stack)
        pcre2_jit_stack_free(w->stack);
    free(w);
}

int regex_find(const struct regex *r, struct regex_scratch *w, const char *s, size_t n, size_t from, size_t *begin,
               size_t *end, struct err *e)
{
    /* Limit the steps of a match: the longest useful ones take about one step per character.
     * Beyond the limit the pattern backtracks catastrophically. */
    size_t steps = n / 64 < UINT32_MAX / 1024 - 20000 ? 4000000 + 16 * n : UINT32_MAX;
    pcre2_set_match_limit(w->ctx, (uint32_t)steps);
    int rc = pcre2_match(r->code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK, w->md, w->ctx);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && more_stack(w))
        rc = pcre2_match(r->code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK, w->md, w->ctx);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(r->code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, w->md, w->ctx);
    if (rc == PCRE2_ERROR_NOMATCH)
        return 0;
    if (rc < 0) {
        char why[120];
        if (pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why) < 0)
            why[0] = '\0';
        return err_set(e, ERR_LIMIT, "a regular expression of the tokenizer failed on this text at byte %zu: %s", from,
                       why);
    }
    const PCRE2_SIZE *o = pcre2_get_ovector_pointer(w->md);
    *begin = o[0];
    *end = o[1] < o[0] ? o[0] : o[1];       /* \K in a lookahead may put the end before the beginning */
    if (*begin < from)
        *begin = *end = from;
    return 1;
}
