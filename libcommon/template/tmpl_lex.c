/* tmpl_lex.c - template source to tokens, with Jinja's white space control set to trim_blocks and
 * lstrip_blocks: this removes the newline after a block or comment, and the blanks between the
 * start of a line and a block or comment. */
#include "libcommon/template/tmpl_ast.h"

#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "libcommon/base/utf8.h"

struct lexer {
    struct vm *vm;
    const char *s;
    size_t size, at;
    /* line_starting: 1 if `at` is just after a newline that was read as part of a tag or as
     * data. */
    int line, line_starting;
    struct token *tokens;
    size_t n, cap;
};

static int starts(const struct lexer *x, size_t at, const char *what)
{
    size_t n = strlen(what);
    return x->size - at >= n && !memcmp(x->s + at, what, n);
}

static struct token *push(struct lexer *x, enum token_kind kind)
{
    if (x->n == x->cap) {
        size_t cap = x->cap ? x->cap * 2 : 256;
        struct token *p = vm_array(x->vm, cap, sizeof *p);
        if (x->n)
            memcpy(p, x->tokens, x->n * sizeof *p);
        x->tokens = p;
        x->cap = cap;
    }
    x->tokens[x->n] = (struct token){ .kind = kind, .line = x->line };
    return &x->tokens[x->n++];
}

static size_t skip_space(const struct lexer *x, size_t at)
{
    int n;
    while (at < x->size && utf8_is_space(utf8_next(x->s + at, x->size - at, &n)))
        at += (size_t)n;
    return at;
}

static void advance(struct lexer *x, size_t to)
{
    for (; x->at < to; x->at++)
        x->line += x->s[x->at] == '\n';
    x->vm->line = x->line;
}

/* Add the text before a tag that begins at `end`; sign is the '-' or '+' after the tag's opening,
 * else 0. */
static void push_data(struct lexer *x, size_t from, size_t end, char sign, int is_print)
{
    size_t keep = end;
    if (sign == '-') {
        int n;
        while (keep > from) {
            size_t prev = utf8_prev(x->s, keep);
            if (prev < from || !utf8_is_space(utf8_next(x->s + prev, keep - prev, &n)))
                break;
            keep = prev;
        }
    } else if (sign != '+' && !is_print) {
        size_t bol = end;
        while (bol > from && x->s[bol - 1] != '\n')
            bol--;
        if ((bol > from || x->line_starting) && skip_space(x, bol) >= end)
            keep = bol;
    }
    if (keep > from) {
        struct token *t = push(x, T_DATA);
        t->value = val_text(x->vm, x->s + from, keep - from);
    }
    advance(x, end);
}

/* After a closing "-%}" all white space is removed, after "%}" one newline, and after "+%}"
 * nothing. */
static void after_close(struct lexer *x, size_t close_at, char sign, int is_print)
{
    size_t to = close_at;
    if (sign == '-')
        to = skip_space(x, to);
    else if (sign != '+' && !is_print && to < x->size && x->s[to] == '\n')
        to++;
    advance(x, to);
    x->line_starting = to > 0 && x->s[to - 1] == '\n';
}

static void lex_comment(struct lexer *x)
{
    const char *close = memmem(x->s + x->at + 2, x->size - x->at - 2, "#}", 2);
    if (!close)
        fail(x->vm, "Missing end of comment tag");
    size_t at = (size_t)(close - x->s), open = x->at + 2 + (starts(x, x->at + 2, "-") || starts(x, x->at + 2, "+"));
    char sign = at > open && (close[-1] == '-' || close[-1] == '+') ? close[-1] : 0;
    after_close(x, at + 2, sign, 0);
}

/* Is there a "{%" [-+] WORD [-+] "%}" at offset `at`?  Then *sign is the first sign, *close_sign
 * the second, *end the offset after it. */
static int bare_tag(const struct lexer *x, size_t at, const char *word, char *sign, char *close_sign, size_t *end)
{
    size_t p = at + 2;
    *sign = p < x->size && (x->s[p] == '-' || x->s[p] == '+') ? x->s[p++] : 0;
    p = skip_space(x, p);
    if (!starts(x, p, word))
        return 0;
    p = skip_space(x, p + strlen(word));
    *close_sign = p < x->size && (x->s[p] == '-' || x->s[p] == '+') ? x->s[p++] : 0;
    *end = p + 2;
    return starts(x, p, "%}");
}

static void lex_raw(struct lexer *x, size_t open_end, char open_sign)
{
    size_t from = open_sign == '-' ? skip_space(x, open_end) : open_end;
    char sign, close_sign;
    size_t end;
    advance(x, from);
    x->line_starting = x->s[from - 1] == '\n';
    for (size_t at = from; at + 2 <= x->size; at++) {
        const char *tag = memmem(x->s + at, x->size - at, "{%", 2);
        if (!tag)
            break;
        at = (size_t)(tag - x->s);
        if (!bare_tag(x, at, "endraw", &sign, &close_sign, &end))
            continue;
        push_data(x, from, at, sign, 0);
        after_close(x, end, close_sign, 0);
        return;
    }
    fail(x->vm, "Missing end of raw directive");
}

/* ---- inside a tag */

static void lex_string(struct lexer *x)
{
    struct vm *vm = x->vm;
    char quote = x->s[x->at];
    struct sb b = { .vm = vm };
    size_t at = x->at + 1;
    struct token *t = push(x, T_STRING);
    for (;; ) {
        if (at >= x->size)
            fail(vm, "unexpected char '%c': the string has no end", quote);
        char c = x->s[at++];
        if (c == quote)
            break;
        if (c != '\\') {
            sb_add(&b, &c, 1);
            continue;
        }
        if (at >= x->size)
            fail(vm, "unexpected char '%c': the string has no end", quote);
        c = x->s[at++];
        static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
        const char *simple = strchr(from, c);
        int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
        if (c == '\n') {
            continue;
        } else if (simple && c) {
            sb_add(&b, &to[simple - from], 1);
        } else if (digits || (c >= '0' && c <= '7')) {
            uint32_t code = digits ? 0 : (uint32_t)(c - '0');
            for (int i = 0; i < (digits ? digits : 2); i++) {
                char h = at < x->size ? x->s[at] : 0;
                int d = h >= '0' && h <= '9' ? h - '0' : (h | 32) >= 'a' && (h | 32) <= 'f' ? (h | 32) - 'a' + 10 : 99;
                if (d >= (digits ? 16 : 8)) {
                    if (digits)
                        fail(vm, "truncated \\%c escape in a string", c);
                    break;
                }
                code = code * (digits ? 16 : 8) + (uint32_t)d;
                at++;
            }
            if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
                fail(vm, "a string has the escape of U+%X, which is no character", code);
            sb_char(&b, code);
        } else if (c == 'N') {
            fail(vm, "\\N{...} in a string is not supported");
        } else {
            sb_add(&b, "\\", 1);
            sb_add(&b, &c, 1);
        }
    }
    t->value = sb_done(&b);
    advance(x, at);
}

static size_t digits_from(const struct lexer *x, size_t at, int base)
{
    size_t from = at;
    for (; at < x->size; at++) {
        char c = x->s[at];
        int d = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : 99;
        if (d < base)
            continue;
        if (c != '_' || at == from || at + 1 >= x->size)
            break;
        char next = x->s[at + 1];
        int e = next >= '0' && next <= '9' ? next - '0' : (next | 32) >= 'a' &&
                (next | 32) <= 'f' ? (next | 32) - 'a' + 10 : 99;
        if (e >= base)
            break;
    }
    return at;
}

static void lex_number(struct lexer *x)
{
    const char *s = x->s;
    size_t from = x->at, at = from;
    int base = 10, is_float = 0;
    if (s[at] == '0' && at + 1 < x->size && strchr("xXoObB", s[at + 1])) {
        int b = strchr("xX", s[at + 1]) ? 16 : strchr("oO", s[at + 1]) ? 8 : 2;
        size_t digits = at + 2 + (at + 2 < x->size && s[at + 2] == '_');
        if (digits_from(x, digits, b) > digits) {
            base = b;
            at = digits_from(x, digits, b);
        }
    }
    if (base == 10) {
        at = digits_from(x, at, 10);
        int after_dot = from > 0 && s[from - 1] == '.';         /* x.1.5 is two attributes */
        size_t whole = at, part = !after_dot && at + 1 < x->size && s[at] == '.' ? digits_from(x, at + 1, 10) : at;
        if (part > at + 1) {
            is_float = 1;
            at = part;
        }
        if (!after_dot && at < x->size && (s[at] | 32) == 'e') {
            size_t e = at + 1 + (at + 1 < x->size && (s[at + 1] == '-' || s[at + 1] == '+'));
            if (digits_from(x, e, 10) > e) {
                is_float = 1;
                at = digits_from(x, e, 10);
            }
        }
        if (!is_float && s[from] == '0')                        /* 007 is 0, 0, 7 */
            for (at = from; at < whole && (s[at] == '0' || s[at] == '_'); )
                at++;
    }
    struct token *t = push(x, is_float ? T_FLOAT : T_INT);
    int64_t i = 0;
    double f = 0;
    if (is_float)
        str_to_float(s + from, at - from, &f);
    else if (str_to_int(s + from, at - from, base, &i) < 0)
        vm_fail(x->vm, ERR_LIMIT, "the integer %.*s does not fit 64 bits", at - from > 40 ? 40 : (int)(at - from),
                s + from);
    t->value = is_float ? val_float(f) : val_int(i);
    advance(x, at);
}

static int name_char(uint32_t c)
{
    return char_word(c) || (c >= 0x80 && utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_MN);
}

static void lex_name(struct lexer *x)
{
    size_t at = x->at;
    int n;
    while (at < x->size && name_char(utf8_next(x->s + at, x->size - at, &n)))
        at += (size_t)n;
    push(x, T_NAME)->value = val_text(x->vm, x->s + x->at, at - x->at);
    advance(x, at);
}

static void lex_operator(struct lexer *x, char *stack, int *depth)
{
    static const char *const ops[] = { "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(",
                                       ")", "{", "}",
        ">", "<", "=", ".", ":", "|", ",", ";" };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        if (!starts(x, x->at, ops[i]))
            continue;
        char c = ops[i][0];
        if (c == '(' || c == '[' || c == '{') {
            if (*depth == 200)
                vm_fail(x->vm, ERR_LIMIT, "brackets nested more than 200 deep");
            stack[(*depth)++] = c == '(' ? ')' : c == '[' ? ']' : '}';
        } else if (c == ')' || c == ']' || c == '}') {
            if (!*depth)
                fail(x->vm, "unexpected '%c'", c);
            if (stack[--*depth] != c)
                fail(x->vm, "unexpected '%c', expected '%c'", c, stack[*depth]);
        }
        strcpy(push(x, T_OP)->op, ops[i]);
        advance(x, x->at + strlen(ops[i]));
        return;
    }
    int n;
    utf8_next(x->s + x->at, x->size - x->at, &n);
    fail(x->vm, "unexpected char '%.*s'", n, x->s + x->at);
}

static void lex_tag(struct lexer *x, int is_print)
{
    const char *close = is_print ? "}}" : "%}";
    char stack[200];
    int depth = 0, n;
    size_t at = x->at + 2;
    push(x, is_print ? T_PRINT_BEGIN : T_BLOCK_BEGIN);
    if (at < x->size && (x->s[at] == '-' || x->s[at] == '+'))
        at++;
    advance(x, at);
    while (x->at < x->size) {
        char c = x->s[x->at], sign = (c == '-' || (c == '+' && !is_print)) && starts(x, x->at + 1, close) ? c : 0;
        if (!depth && (sign || starts(x, x->at, close))) {
            push(x, is_print ? T_PRINT_END : T_BLOCK_END);
            after_close(x, x->at + 2 + (sign != 0), sign, is_print);
            return;
        }
        uint32_t code = utf8_next(x->s + x->at, x->size - x->at, &n);
        if (utf8_is_space(code))
            advance(x, skip_space(x, x->at));
        else if (c >= '0' && c <= '9')
            lex_number(x);
        else if (c == '"' || c == '\'')
            lex_string(x);
        else if (name_char(code))
            lex_name(x);
        else
            lex_operator(x, stack, &depth);
    }
    fail(x->vm, "the template ends inside a tag; expected '%s'", close);
}

struct token *tmpl_lex(struct vm *vm, const char *source, size_t size)
{
    char *text = vm_alloc(vm, size + 1);
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {                 /* \r\n and \r are newlines */
        if (source[i] == '\r' && i + 1 < size && source[i + 1] == '\n')
            continue;
        text[n++] = source[i] == '\r' ? '\n' : source[i];
    }
    if (n && text[n - 1] == '\n')                       /* keep_trailing_newline is off */
        n--;
    struct lexer x = { .vm = vm, .s = text, .size = n, .line = 1, .line_starting = 1 };
    vm->line = 1;
    size_t bad = utf8_valid(text, n);
    if (bad < n) {
        advance(&x, bad);
        fail(vm, "byte 0x%02X is not UTF-8", (unsigned char)text[bad]);
    }
    while (x.at < n) {
        size_t at = x.at;
        while (at < n && !(text[at] == '{' && at + 1 < n &&
                           (text[at + 1] == '{' || text[at + 1] == '%' || text[at + 1] == '#')))
            at++;
        char sign = 0, close_sign = 0;
        size_t end = 0;
        if (at < n && at + 2 < n && (text[at + 2] == '-' || text[at + 2] == '+'))
            sign = text[at + 2];
        if (at >= n)
            push_data(&x, x.at, n, '+', 0);
        else
            push_data(&x, x.at, at, sign, text[at + 1] == '{');
        if (at >= n)
            break;
        if (text[at + 1] == '#')
            lex_comment(&x);
        else if (text[at + 1] == '%' && bare_tag(&x, at, "raw", &sign, &close_sign, &end) && close_sign != '+')
            lex_raw(&x, end, close_sign);
        else
            lex_tag(&x, text[at + 1] == '{');
    }
    push(&x, T_END);
    return x.tokens;
}
