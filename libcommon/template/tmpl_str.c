/* tmpl_str.c - strings the way Python's str has them: find, replace, strip, split, case,
 * padding. */
#include "libcommon/template/tmpl_value.h"

#include <string.h>

#include <utf8proc.h>

#include "libcommon/base/utf8.h"

/* ---- building text */

static void reserve(struct sb *b, size_t more)
{
    if (b->cap - b->size >= more)
        return;
    if (more > b->vm->max_arena)
        vm_fail(b->vm, ERR_LIMIT, "the template needs more than %zu bytes of memory", b->vm->max_arena);
    size_t cap = b->cap * 2 > b->size + more ? b->cap * 2 : b->size + more + 32;
    char *p = vm_alloc(b->vm, cap);
    if (b->size)
        memcpy(p, b->data, b->size);
    vm_step(b->vm, b->size / 64);
    b->data = p;
    b->cap = cap;
}

void sb_add(struct sb *b, const char *data, size_t size)
{
    if (!size)
        return;
    reserve(b, size);
    memcpy(b->data + b->size, data, size);
    b->size += size;
}

void sb_str(struct sb *b, struct val s) { sb_add(b, s.s->data, s.s->size); }

void sb_char(struct sb *b, uint32_t c)
{
    char bytes[4];
    sb_add(b, bytes, (size_t)utf8_encode(c, bytes));
}

void sb_fill(struct sb *b, struct val fill, size_t n)
{
    if (n && fill.s->size > SIZE_MAX / 2 / n)
        vm_fail(b->vm, ERR_LIMIT, "the template needs more than %zu bytes of memory", b->vm->max_arena);
    if (!fill.s->size)
        return;
    reserve(b, n * fill.s->size);
    vm_step(b->vm, n);
    for (size_t i = 0; i < n; i++)
        sb_str(b, fill);
}

struct val sb_done(struct sb *b)
{
    struct str *s = vm_alloc(b->vm, sizeof *s);
    *s = (struct str){ b->size ? b->data : "", b->size, utf8_count(b->data, b->size), NULL };
    vm_step(b->vm, 1 + b->size / 64);
    return VAL(K_STR, s, s);
}

/* ---- searching and cutting */

size_t str_find(struct vm *vm, const struct str *s, size_t from, const struct str *what)
{
    if (from > s->size || what->size > s->size - from)
        return SIZE_MAX;
    if (!what->size)
        return from;
    const char *p = memmem(s->data + from, s->size - from, what->data, what->size);
    vm_step(vm, 1 + (what->size + (p ? (size_t)(p - s->data) - from : s->size - from)) / 16);
    return p ? (size_t)(p - s->data) : SIZE_MAX;
}

size_t str_find_last(struct vm *vm, const struct str *s, size_t from, size_t end, const struct str *what)
{
    vm_step(vm, 1);
    for (size_t i = end; i >= what->size && i - what->size >= from; i--) {
        vm_step(vm, what->size / 64 + (i % 64 == 0));   /* a comparison may be as long as `what` */
        if (!memcmp(s->data + i - what->size, what->data, what->size))
            return i - what->size;
        if (!i)
            break;
    }
    return SIZE_MAX;
}

struct val str_replace(struct vm *vm, struct val s, struct val old, struct val new, int64_t count)
{
    struct sb b = { .vm = vm };
    size_t at = 0, size = s.s->size;
    if (!old.s->size) {                         /* before every character and at the end */
        while (count-- != 0) {
            sb_str(&b, new);
            if (at >= size)
                break;
            int n;
            utf8_next(s.s->data + at, size - at, &n);
            sb_add(&b, s.s->data + at, (size_t)n);
            at += (size_t)n;
            vm_step(vm, 1);
        }
    } else {
        while (count-- != 0) {
            size_t hit = str_find(vm, s.s, at, old.s);
            if (hit == SIZE_MAX)
                break;
            sb_add(&b, s.s->data + at, hit - at);
            sb_str(&b, new);
            at = hit + old.s->size;
        }
        if (at == 0)
            return s;
    }
    if (at < size)
        sb_add(&b, s.s->data + at, size - at);
    return val_safe(sb_done(&b), s.flag);
}

/* Is the character at s one of chars (white space if chars is not a string)? */
static int strippable(const char *s, size_t n, struct val chars)
{
    int len;
    uint32_t c = utf8_next(s, n, &len);
    if (chars.kind != K_STR)
        return utf8_is_space(c);
    return memmem(chars.s->data, chars.s->size, s, n) != NULL;
}

struct val str_strip(struct vm *vm, struct val s, struct val chars, int sides)
{
    const char *p = s.s->data;
    size_t from = 0, to = s.s->size;
    int n;
    while (sides & 1 && from < to) {
        utf8_next(p + from, to - from, &n);
        if (!strippable(p + from, (size_t)n, chars))
            break;
        from += (size_t)n;
    }
    while (sides & 2 && to > from) {
        size_t prev = utf8_prev(p, to);
        if (!strippable(p + prev, to - prev, chars))
            break;
        to = prev;
    }
    vm_step(vm, (s.s->size - (to - from)) / 16);
    return val_slice(vm, s, from, to - from);
}

static struct val split_space(struct vm *vm, struct val s, int64_t max, int from_right)
{
    struct val r = val_list(vm, 0), none = val_none();
    const char *p = s.s->data;
    s = str_strip(vm, s, none, from_right ? 2 : 1);
    while (s.s->size) {
        size_t cut = from_right ? s.s->size : 0, size = s.s->size;
        p = s.s->data;
        if (max-- == 0)
            cut = from_right ? 0 : size;
        else if (from_right)
            while (cut > 0 && !strippable(p + utf8_prev(p, cut), cut - utf8_prev(p, cut), none))
                cut = utf8_prev(p, cut);
        else
            for (int n = 0; cut < size; cut += (size_t)n)
                if (utf8_is_space(utf8_next(p + cut, size - cut, &n)))
                    break;
        vm_step(vm, 1 + (from_right ? size - cut : cut) / 16);
        if (from_right) {
            list_push(vm, r.l, val_slice(vm, s, cut, size - cut));
            s = str_strip(vm, val_slice(vm, s, 0, cut), none, 2);
        } else {
            list_push(vm, r.l, val_slice(vm, s, 0, cut));
            s = str_strip(vm, val_slice(vm, s, cut, size - cut), none, 1);
        }
    }
    return r;
}

struct val str_split(struct vm *vm, struct val s, struct val sep, int64_t max, int from_right)
{
    struct val r;
    if (sep.kind != K_STR) {
        r = split_space(vm, s, max, from_right);
    } else {
        if (!sep.s->size)
            fail(vm, "empty separator");
        r = val_list(vm, 0);
        size_t at = 0, end = s.s->size;
        while (max-- != 0) {
            size_t hit = from_right ? str_find_last(vm, s.s, 0, end, sep.s) : str_find(vm, s.s, at, sep.s);
            if (hit == SIZE_MAX)
                break;
            if (from_right) {
                list_push(vm, r.l, val_slice(vm, s, hit + sep.s->size, end - hit - sep.s->size));
                end = hit;
            } else {
                list_push(vm, r.l, val_slice(vm, s, at, hit - at));
                at = hit + sep.s->size;
            }
        }
        list_push(vm, r.l, val_slice(vm, s, at, end - at));
    }
    for (size_t i = 0; from_right && i < r.l->n / 2; i++) {
        struct val t = r.l->v[i];
        r.l->v[i] = r.l->v[r.l->n - 1 - i];
        r.l->v[r.l->n - 1 - i] = t;
    }
    return r;
}

struct val str_splitlines(struct vm *vm, struct val s, int keep_ends)
{
    struct val r = val_list(vm, 0);
    const char *p = s.s->data;
    size_t from = 0, at = 0, size = s.s->size;
    while (at < size) {
        int n;
        uint32_t c = utf8_next(p + at, size - at, &n);
        size_t end = at;
        at += (size_t)n;
        if (!((c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029))
            continue;
        if (c == '\r' && at < size && p[at] == '\n')
            at++;
        list_push(vm, r.l, val_slice(vm, s, from, (keep_ends ? at : end) - from));
        from = at;
        vm_step(vm, 1);
    }
    vm_step(vm, size / 16);
    if (from < size)
        list_push(vm, r.l, val_slice(vm, s, from, size - from));
    return r;
}

struct val str_pad(struct vm *vm, struct val s, int64_t width, struct val fill, int align)
{
    if (fill.s->n_chars != 1)
        fail(vm, "the fill character must be exactly one character long");
    if (width <= (int64_t)s.s->n_chars)
        return s;
    size_t pad = (size_t)width - s.s->n_chars;
    size_t left = align == '<' ? 0 : align == '>' ? pad : align == '^' ? pad / 2 : pad / 2 + (pad & (size_t)width & 1);
    struct sb b = { .vm = vm };
    sb_fill(&b, fill, left);
    sb_str(&b, s);
    sb_fill(&b, fill, pad - left);
    return val_safe(sb_done(&b), s.flag);
}

/* ---- case */

/* Characters whose upper or title case is longer than one (Unicode's SpecialCasing.txt,
 * unconditional part). */
static const struct { uint16_t c, upper[3], title[3]; } special[] = {
    { 0x00DF, { 0x53, 0x53, 0 }, { 0x53, 0x73, 0 } }, { 0x0149, { 0x2BC, 0x4E, 0 }, { 0x2BC, 0x4E, 0 } },
    { 0x01F0, { 0x4A, 0x30C, 0 }, { 0x4A, 0x30C, 0 } }, { 0x0390, { 0x399, 0x308, 0x301 }, { 0x399, 0x308, 0x301 } },
    { 0x03B0, { 0x3A5, 0x308, 0x301 }, { 0x3A5, 0x308, 0x301 } }, { 0x0587, { 0x535, 0x552, 0 }, { 0x535, 0x582, 0 } },
    { 0x1E96, { 0x48, 0x331, 0 }, { 0x48, 0x331, 0 } }, { 0x1E97, { 0x54, 0x308, 0 }, { 0x54, 0x308, 0 } },
    { 0x1E98, { 0x57, 0x30A, 0 }, { 0x57, 0x30A, 0 } }, { 0x1E99, { 0x59, 0x30A, 0 }, { 0x59, 0x30A, 0 } },
    { 0x1E9A, { 0x41, 0x2BE, 0 }, { 0x41, 0x2BE, 0 } }, { 0x1F50, { 0x3A5, 0x313, 0 }, { 0x3A5, 0x313, 0 } },
    { 0x1F52, { 0x3A5, 0x313, 0x300 }, { 0x3A5, 0x313, 0x300 } },
    { 0x1F54, { 0x3A5, 0x313, 0x301 }, { 0x3A5, 0x313, 0x301 } },
    { 0x1F56, { 0x3A5, 0x313, 0x342 }, { 0x3A5, 0x313, 0x342 } }, { 0x1F80, { 0x1F08, 0x399, 0 }, { 0x1F88, 0, 0 } },
    { 0x1F81, { 0x1F09, 0x399, 0 }, { 0x1F89, 0, 0 } }, { 0x1F82, { 0x1F0A, 0x399, 0 }, { 0x1F8A, 0, 0 } },
    { 0x1F83, { 0x1F0B, 0x399, 0 }, { 0x1F8B, 0, 0 } }, { 0x1F84, { 0x1F0C, 0x399, 0 }, { 0x1F8C, 0, 0 } },
    { 0x1F85, { 0x1F0D, 0x399, 0 }, { 0x1F8D, 0, 0 } }, { 0x1F86, { 0x1F0E, 0x399, 0 }, { 0x1F8E, 0, 0 } },
    { 0x1F87, { 0x1F0F, 0x399, 0 }, { 0x1F8F, 0, 0 } }, { 0x1F88, { 0x1F08, 0x399, 0 }, { 0x1F88, 0, 0 } },
    { 0x1F89, { 0x1F09, 0x399, 0 }, { 0x1F89, 0, 0 } }, { 0x1F8A, { 0x1F0A, 0x399, 0 }, { 0x1F8A, 0, 0 } },
    { 0x1F8B, { 0x1F0B, 0x399, 0 }, { 0x1F8B, 0, 0 } }, { 0x1F8C, { 0x1F0C, 0x399, 0 }, { 0x1F8C, 0, 0 } },
    { 0x1F8D, { 0x1F0D, 0x399, 0 }, { 0x1F8D, 0, 0 } }, { 0x1F8E, { 0x1F0E, 0x399, 0 }, { 0x1F8E, 0, 0 } },
    { 0x1F8F, { 0x1F0F, 0x399, 0 }, { 0x1F8F, 0, 0 } }, { 0x1F90, { 0x1F28, 0x399, 0 }, { 0x1F98, 0, 0 } },
    { 0x1F91, { 0x1F29, 0x399, 0 }, { 0x1F99, 0, 0 } }, { 0x1F92, { 0x1F2A, 0x399, 0 }, { 0x1F9A, 0, 0 } },
    { 0x1F93, { 0x1F2B, 0x399, 0 }, { 0x1F9B, 0, 0 } }, { 0x1F94, { 0x1F2C, 0x399, 0 }, { 0x1F9C, 0, 0 } },
    { 0x1F95, { 0x1F2D, 0x399, 0 }, { 0x1F9D, 0, 0 } }, { 0x1F96, { 0x1F2E, 0x399, 0 }, { 0x1F9E, 0, 0 } },
    { 0x1F97, { 0x1F2F, 0x399, 0 }, { 0x1F9F, 0, 0 } }, { 0x1F98, { 0x1F28, 0x399, 0 }, { 0x1F98, 0, 0 } },
    { 0x1F99, { 0x1F29, 0x399, 0 }, { 0x1F99, 0, 0 } }, { 0x1F9A, { 0x1F2A, 0x399, 0 }, { 0x1F9A, 0, 0 } },
    { 0x1F9B, { 0x1F2B, 0x399, 0 }, { 0x1F9B, 0, 0 } }, { 0x1F9C, { 0x1F2C, 0x399, 0 }, { 0x1F9C, 0, 0 } },
    { 0x1F9D, { 0x1F2D, 0x399, 0 }, { 0x1F9D, 0, 0 } }, { 0x1F9E, { 0x1F2E, 0x399, 0 }, { 0x1F9E, 0, 0 } },
    { 0x1F9F, { 0x1F2F, 0x399, 0 }, { 0x1F9F, 0, 0 } }, { 0x1FA0, { 0x1F68, 0x399, 0 }, { 0x1FA8, 0, 0 } },
    { 0x1FA1, { 0x1F69, 0x399, 0 }, { 0x1FA9, 0, 0 } }, { 0x1FA2, { 0x1F6A, 0x399, 0 }, { 0x1FAA, 0, 0 } },
    { 0x1FA3, { 0x1F6B, 0x399, 0 }, { 0x1FAB, 0, 0 } }, { 0x1FA4, { 0x1F6C, 0x399, 0 }, { 0x1FAC, 0, 0 } },
    { 0x1FA5, { 0x1F6D, 0x399, 0 }, { 0x1FAD, 0, 0 } }, { 0x1FA6, { 0x1F6E, 0x399, 0 }, { 0x1FAE, 0, 0 } },
    { 0x1FA7, { 0x1F6F, 0x399, 0 }, { 0x1FAF, 0, 0 } }, { 0x1FA8, { 0x1F68, 0x399, 0 }, { 0x1FA8, 0, 0 } },
    { 0x1FA9, { 0x1F69, 0x399, 0 }, { 0x1FA9, 0, 0 } }, { 0x1FAA, { 0x1F6A, 0x399, 0 }, { 0x1FAA, 0, 0 } },
    { 0x1FAB, { 0x1F6B, 0x399, 0 }, { 0x1FAB, 0, 0 } }, { 0x1FAC, { 0x1F6C, 0x399, 0 }, { 0x1FAC, 0, 0 } },
    { 0x1FAD, { 0x1F6D, 0x399, 0 }, { 0x1FAD, 0, 0 } }, { 0x1FAE, { 0x1F6E, 0x399, 0 }, { 0x1FAE, 0, 0 } },
    { 0x1FAF, { 0x1F6F, 0x399, 0 }, { 0x1FAF, 0, 0 } }, { 0x1FB2, { 0x1FBA, 0x399, 0 }, { 0x1FBA, 0x345, 0 } },
    { 0x1FB3, { 0x391, 0x399, 0 }, { 0x1FBC, 0, 0 } }, { 0x1FB4, { 0x386, 0x399, 0 }, { 0x386, 0x345, 0 } },
    { 0x1FB6, { 0x391, 0x342, 0 }, { 0x391, 0x342, 0 } }, { 0x1FB7, { 0x391, 0x342, 0x399 }, { 0x391, 0x342, 0x345 } },
    { 0x1FBC, { 0x391, 0x399, 0 }, { 0x1FBC, 0, 0 } }, { 0x1FC2, { 0x1FCA, 0x399, 0 }, { 0x1FCA, 0x345, 0 } },
    { 0x1FC3, { 0x397, 0x399, 0 }, { 0x1FCC, 0, 0 } }, { 0x1FC4, { 0x389, 0x399, 0 }, { 0x389, 0x345, 0 } },
    { 0x1FC6, { 0x397, 0x342, 0 }, { 0x397, 0x342, 0 } }, { 0x1FC7, { 0x397, 0x342, 0x399 }, { 0x397, 0x342, 0x345 } },
    { 0x1FCC, { 0x397, 0x399, 0 }, { 0x1FCC, 0, 0 } }, { 0x1FD2, { 0x399, 0x308, 0x300 }, { 0x399, 0x308, 0x300 } },
    { 0x1FD3, { 0x399, 0x308, 0x301 }, { 0x399, 0x308, 0x301 } }, { 0x1FD6, { 0x399, 0x342, 0 }, { 0x399, 0x342, 0 } },
    { 0x1FD7, { 0x399, 0x308, 0x342 }, { 0x399, 0x308, 0x342 } },
    { 0x1FE2, { 0x3A5, 0x308, 0x300 }, { 0x3A5, 0x308, 0x300 } },
    { 0x1FE3, { 0x3A5, 0x308, 0x301 }, { 0x3A5, 0x308, 0x301 } }, { 0x1FE4, { 0x3A1, 0x313, 0 }, { 0x3A1, 0x313, 0 } },
    { 0x1FE6, { 0x3A5, 0x342, 0 }, { 0x3A5, 0x342, 0 } }, { 0x1FE7, { 0x3A5, 0x308, 0x342 }, { 0x3A5, 0x308, 0x342 } },
    { 0x1FF2, { 0x1FFA, 0x399, 0 }, { 0x1FFA, 0x345, 0 } }, { 0x1FF3, { 0x3A9, 0x399, 0 }, { 0x1FFC, 0, 0 } },
    { 0x1FF4, { 0x38F, 0x399, 0 }, { 0x38F, 0x345, 0 } }, { 0x1FF6, { 0x3A9, 0x342, 0 }, { 0x3A9, 0x342, 0 } },
    { 0x1FF7, { 0x3A9, 0x342, 0x399 }, { 0x3A9, 0x342, 0x345 } }, { 0x1FFC, { 0x3A9, 0x399, 0 }, { 0x1FFC, 0, 0 } },
    { 0xFB00, { 0x46, 0x46, 0 }, { 0x46, 0x66, 0 } }, { 0xFB01, { 0x46, 0x49, 0 }, { 0x46, 0x69, 0 } },
    { 0xFB02, { 0x46, 0x4C, 0 }, { 0x46, 0x6C, 0 } }, { 0xFB03, { 0x46, 0x46, 0x49 }, { 0x46, 0x66, 0x69 } },
    { 0xFB04, { 0x46, 0x46, 0x4C }, { 0x46, 0x66, 0x6C } }, { 0xFB05, { 0x53, 0x54, 0 }, { 0x53, 0x74, 0 } },
    { 0xFB06, { 0x53, 0x54, 0 }, { 0x53, 0x74, 0 } }, { 0xFB13, { 0x544, 0x546, 0 }, { 0x544, 0x576, 0 } },
    { 0xFB14, { 0x544, 0x535, 0 }, { 0x544, 0x565, 0 } }, { 0xFB15, { 0x544, 0x53B, 0 }, { 0x544, 0x56B, 0 } },
    { 0xFB16, { 0x54E, 0x546, 0 }, { 0x54E, 0x576, 0 } }, { 0xFB17, { 0x544, 0x53D, 0 }, { 0x544, 0x56D, 0 } },
};

static int find_special(uint32_t c)
{
    int lo = 0, hi = (int)(sizeof special / sizeof *special) - 1;
    while (lo <= hi) {
        int mid = (lo + hi) / 2;
        if (special[mid].c == c)
            return mid;
        if (special[mid].c < c)
            lo = mid + 1;
        else
            hi = mid - 1;
    }
    return -1;
}

int char_case(uint32_t c)
{
    if (c < 0x80)
        return c >= 'a' && c <= 'z' ? 'l' : c >= 'A' && c <= 'Z' ? 'u' : 0;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU: return 'u';
    case UTF8PROC_CATEGORY_LL: return 'l';
    case UTF8PROC_CATEGORY_LT: return 't';
    default: break;
    }
    if ((c >= 0x2160 && c <= 0x216F) || (c >= 0x24B6 && c <= 0x24CF))   /* Other_Uppercase */
        return 'u';
    if (c == 0xAA || c == 0xBA || (c >= 0x2B0 && c <= 0x2B8) || (c >= 0x2170 && c <= 0x217F) ||
        (c >= 0x24D0 && c <= 0x24E9))
        return 'l';
    return 0;
}

int char_word(uint32_t c)
{
    if (c < 0x80)
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    int cat = utf8proc_category((utf8proc_int32_t)c);
    return (cat >= UTF8PROC_CATEGORY_LU && cat <= UTF8PROC_CATEGORY_LO) ||
           (cat >= UTF8PROC_CATEGORY_ND && cat <= UTF8PROC_CATEGORY_NO);
}

int char_printable(uint32_t c)
{
    if (c < 0x80)
        return c >= 32 && c < 127;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CN: case UTF8PROC_CATEGORY_CC: case UTF8PROC_CATEGORY_CF: case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO: case UTF8PROC_CATEGORY_ZL: case UTF8PROC_CATEGORY_ZP: case UTF8PROC_CATEGORY_ZS:
        return 0;
    default:
        return 1;
    }
}

/* Is the capital sigma at offset `at` the end of a word?  It is if a cased letter precedes it and
 * none follows, ignoring marks on both sides. */
static int final_sigma(const char *p, size_t at, size_t size)
{
    int n, before = 0;
    for (size_t i = at; i > 0 && !before; ) {
        i = utf8_prev(p, i);
        uint32_t c = utf8_next(p + i, size - i, &n);
        int cat = utf8proc_category((utf8proc_int32_t)c);
        before = char_case(c) != 0;
        if (!before && !(cat == UTF8PROC_CATEGORY_MN || cat == UTF8PROC_CATEGORY_ME || cat == UTF8PROC_CATEGORY_CF ||
                         c == '\'' || c == '.'))
            return 0;
    }
    for (size_t i = at + 2; i < size; i += (size_t)n) {
        uint32_t c = utf8_next(p + i, size - i, &n);
        int cat = utf8proc_category((utf8proc_int32_t)c);
        if (char_case(c))
            return 0;
        if (!(cat == UTF8PROC_CATEGORY_MN || cat == UTF8PROC_CATEGORY_ME || cat == UTF8PROC_CATEGORY_CF || c == '\'' ||
              c == '.'))
            break;
    }
    return before;
}

static void add_case(struct sb *b, uint32_t c, enum str_case how, const char *p, size_t at, size_t size)
{
    if (how == CASE_FOLD && c >= 0x80) {
        utf8proc_int32_t out[8];
        int boundary = 0;
        utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)c, out, 8, UTF8PROC_CASEFOLD, &boundary);
        for (utf8proc_ssize_t i = 0; i < n && i < 8; i++)
            sb_char(b, (uint32_t)out[i]);
        return;
    }
    if (c < 0x80) {
        char x = (char)c;
        if (how == CASE_UPPER || how == CASE_TITLE)
            x = x >= 'a' && x <= 'z' ? (char)(x - 32) : x;
        else
            x = x >= 'A' && x <= 'Z' ? (char)(x + 32) : x;
        sb_add(b, &x, 1);
        return;
    }
    if (how == CASE_LOWER) {
        if (c == 0x130)
            sb_add(b, "i\xCC\x87", 3);
        else if (c == 0x3A3 && final_sigma(p, at, size))
            sb_char(b, 0x3C2);
        else
            sb_char(b, (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
        return;
    }
    int i = find_special(c);
    if (i < 0) {
        sb_char(b, (uint32_t)(how == CASE_UPPER ? utf8proc_toupper((utf8proc_int32_t)c)
                                                : utf8proc_totitle((utf8proc_int32_t)c)));
        return;
    }
    const uint16_t *u = how == CASE_UPPER ? special[i].upper : special[i].title;
    for (int k = 0; k < 3 && u[k]; k++)
        sb_char(b, u[k]);
}

struct val str_case(struct vm *vm, struct val s, enum str_case how)
{
    struct sb b = { .vm = vm };
    const char *p = s.s->data;
    size_t size = s.s->size;
    int n, cased = 0;
    vm_step(vm, size / 8);
    for (size_t at = 0; at < size; at += (size_t)n) {
        uint32_t c = utf8_next(p + at, size - at, &n);
        enum str_case now = how;
        if (how == CASE_TITLE)
            now = cased ? CASE_LOWER : CASE_TITLE;
        else if (how == CASE_CAPITALIZE)
            now = at ? CASE_LOWER : CASE_TITLE;
        else if (how == CASE_SWAP)
            now = char_case(c) == 'u' ? CASE_LOWER : CASE_UPPER;
        cased = char_case(c) != 0;
        add_case(&b, c, now, p, at, size);
    }
    return val_safe(sb_done(&b), s.flag);
}
