/* words.c - prepare texts and queries for the full-text index. */
#include "libcommon/rag/words.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <utf8proc.h>

#include "libcommon/base/utf8.h"

/* Is c a character of a script that has no blanks between words, or that attaches particles to
 * words? */
static int stands_alone(uint32_t c)
{
    static const struct { uint32_t from, to; } ranges[] = {
        /* Thai, Lao, Myanmar, Jamo, Khmer */
        { 0x0E00, 0x0EFF }, { 0x1000, 0x109F }, { 0x1100, 0x11FF }, { 0x1780, 0x17FF },
        /* kana, bopomofo, Han */
        { 0x3040, 0x30FF }, { 0x3105, 0x318F }, { 0x31F0, 0x31FF }, { 0x3400, 0x4DBF },
        { 0x4E00, 0x9FFF }, { 0xAC00, 0xD7FF }, { 0xF900, 0xFAFF }, { 0xFF66, 0xFFDC }, { 0x20000, 0x3FFFF },
    };
    if (c < 0x0E00)
        return 0;
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        if (c >= ranges[i].from && c <= ranges[i].to)
            return 1;
    return 0;
}

/* A letter, a digit, or a mark of one, as the tokenizer unicode61 of FTS5 sees it. */
static int is_word(uint32_t c)
{
    if (c < 0x80)
        return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU: case UTF8PROC_CATEGORY_LL: case UTF8PROC_CATEGORY_LT: case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO: case UTF8PROC_CATEGORY_ND: case UTF8PROC_CATEGORY_NL: case UTF8PROC_CATEGORY_NO:
    case UTF8PROC_CATEGORY_CO: case UTF8PROC_CATEGORY_MN: case UTF8PROC_CATEGORY_MC:
        return 1;
    default:
        return 0;
    }
}

char *words_spaced(const char *text, size_t size, int *n_words)
{
    /* a character that stands alone has at least 3 bytes and gets at most two blanks */
    char *out = malloc(size * 5 / 3 + 8), *p = out;
    int n, in_word = 0, words = 0;
    if (!out)
        return NULL;
    for (size_t at = 0; at < size; at += (size_t)n) {
        const uint32_t c = utf8_next(text + at, size - at, &n);
        const int alone = stands_alone(c);
        if (alone && p > out && p[-1] != ' ')
            *p++ = ' ';
        memcpy(p, text + at, (size_t)n);
        if (c == 0)
            *p = ' ';
        p += n;
        if (alone)
            *p++ = ' ';
        const int word = !alone && is_word(c);
        words += alone || (word && !in_word);
        in_word = word;
    }
    *p = '\0';
    if (n_words)
        *n_words = words;
    return out;
}

/* ---- queries ---- */

/* Articles, prepositions, pronouns, question words, auxiliaries and the verbs of wishes ("how do I
 * make ...", "let me ..."): they do not tell the topic. */
static const char function_words[] =
    " a able about all also am an and any are as at be because been but by can could did do does doing for from get gets give given gives had has have how i if in into is it its"
    " let lets made make makes me might my need needs no not of on or our over put shall she should so some such take than that the their them then"
    " there these they this those to too under want wants was we were what when where which while who whom whose why will with would you your"
    " der die das den dem des ein eine einen einem einer eines und oder aber ist sind war wird werden wie was wer wo wann warum welche welcher welches"
    " mit von zu zum zur auf im ich wir sie er es nicht auch"
    " le la les un une du et ou est sont que qui quoi quel quelle pour dans sur avec pas par au aux ce cette"
    " el los las uno una y o es son por para con del al como cual donde cuando ";

static int is_function_word(const char *word, size_t n)
{
    char padded[16] = " ";
    if (n > 10)
        return 0;
    for (size_t i = 0; i < n; i++)
        padded[1 + i] = (char)(word[i] >= 'A' && word[i] <= 'Z' ? word[i] + 32 : word[i]);
    padded[n + 1] = ' ';
    padded[n + 2] = '\0';
    return strstr(function_words, padded) != NULL;
}

/* The number of bytes of a phrase's first words; the rest is dropped, because the time of a search
 * grows with each word. */
static size_t phrase_size(const char *text, size_t size)
{
    int n, words = 0, in_word = 0;
    for (size_t at = 0; at < size; at += (size_t)n) {
        const int word = is_word(utf8_next(text + at, size - at, &n));
        words += word && !in_word;
        in_word = word;
        if (words > QUERY_PHRASE_WORDS || at + (size_t)n > QUERY_PHRASE_BYTES)
            return at;
    }
    return size;
}

/* Add the quoted phrase of text, unless it is there. */
static int add_phrase(struct query_words *w, const char *text, size_t n, struct err *e)
{
    if (w->n == QUERY_PHRASES)
        return 0;
    n = phrase_size(text, n);
    char *spaced = words_spaced(text, n, NULL), *p = spaced ? malloc(2 * strlen(spaced) + 3) : NULL, *to = p;
    if (!p) {
        free(spaced);
        return err_nomem(e, "query");
    }
    *to++ = '"';
    for (const char *s = spaced; *s; s++) {
        if (*s == '"')
            *to++ = '"';
        *to++ = *s;
    }
    *to++ = '"';
    *to = '\0';
    free(spaced);
    int there = 0;
    for (int i = 0; i < w->n && !there; i++)
        there = strcasecmp(w->phrase[i], p) == 0;
    if (there)
        free(p);
    else
        w->phrase[w->n++] = p;
    return 0;
}

/* Add the words of a part of the query that has no blanks: runs of characters of other scripts, and
 * pairs of characters that stand alone. */
static int add_part(struct query_words *w, const char *s, size_t size, int functions, struct err *e)
{
    size_t at = 0, begin = 0, last = 0; /* last: offset of the latest character that stands alone */
    int n, words = 0, run = 0, pairs = 0;
    for (; at < size; at += (size_t)n) {
        const uint32_t c = utf8_next(s + at, size - at, &n);
        if (!stands_alone(c)) {
            if (run && !pairs && add_phrase(w, s + last, at - last, e))
                return -1;
            begin = run ? at : begin;
            run = pairs = 0;
            words |= is_word(c);
            continue;
        }
        if (!run && words && (functions || !is_function_word(s + begin, at - begin)) &&
            add_phrase(w, s + begin, at - begin, e))
            return -1;
        if (run && add_phrase(w, s + last, at + (size_t)n - last, e))
            return -1;
        pairs |= run;
        run = 1;
        words = 0;
        last = at;
        begin = at + (size_t)n;
    }
    if (run)
        return pairs ? 0 : add_phrase(w, s + last, size - last, e);
    if (!words)
        return 0;
    /* the word without the punctuation around it decides whether it is a function word */
    size_t from = begin, to = size;
    while (from < to && strchr("\"'([{<,.;:!?", s[from]))
        from++;
    while (to > from && strchr("\"')]}>,.;:!?", s[to - 1]))
        to--;
    return !functions && is_function_word(s + from, to - from) ? 0 : add_phrase(w, s + begin, size - begin, e);
}

int words_of_query(const char *query, size_t size, struct query_words *w, struct err *e)
{
    w->n = 0;
    for (int functions = 0; functions < 2 && w->n == 0; functions++) {
        for (size_t at = 0, end; at < size; at = end + 1) {
            for (end = at; end < size && !strchr(" \t\r\n\f\v", query[end]);)
                end++;
            if (add_part(w, query + at, end - at, functions, e)) {
                query_words_release(w);
                return -1;
            }
        }
    }
    return 0;
}

void query_words_release(struct query_words *w)
{
    for (int i = 0; i < w->n; i++)
        free(w->phrase[i]);
    w->n = 0;
}
