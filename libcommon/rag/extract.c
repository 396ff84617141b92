/* extract.c - the text of a file by its type. */
#include "libcommon/rag/extract.h"

#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "libcommon/base/utf8.h"
#include "libcommon/rag/program.h"
#include "libcommon/rag/office.h"
#include "libcommon/rag/text_build.h"

static const struct { const char *name, *endings; int is_text; } types[RAG_TYPES] = {
    [RAG_TXT] = { "txt", " txt text log rst adoc csv tsv ", 1 }, [RAG_MD] = { "md", " md markdown mdown ", 1 },
    [RAG_HTML] = { "html", " html htm xhtml ", 1 }, [RAG_JSON] = { "json", " json jsonl ", 1 },
    [RAG_PDF] = { "pdf", " pdf ", 0 }, [RAG_DOCX] = { "docx", " docx ", 0 }, [RAG_ODT] = { "odt", " odt ", 0 },
    [RAG_EPUB] = { "epub", " epub ", 0 },
};

const char *rag_type_name(enum rag_type t) { return types[t].name; }

static int find_type(const char *word, size_t n)
{
    char padded[16] = " ";
    if (n < 1 || n > 12)
        return -1;
    for (size_t i = 0; i < n; i++)
        padded[i + 1] = (char)(word[i] >= 'A' && word[i] <= 'Z' ? word[i] + 32 : word[i]);
    padded[n + 1] = ' ';
    padded[n + 2] = '\0';
    for (int i = 0; i < RAG_TYPES; i++)
        if (strstr(types[i].endings, padded))
            return i;
    return -1;
}

static int type_of_name(const char *name)
{
    const char *dot = strrchr(name, '.');
    return dot ? find_type(dot + 1, strlen(dot + 1)) : -1;
}

int rag_type_known(const char *name) { return type_of_name(name) >= 0; }

int rag_type_is_text(const char *name)
{
    const int t = type_of_name(name);
    return t >= 0 && types[t].is_text;
}

int rag_type_of(const char *type, const char *name, enum rag_type *out, struct err *e)
{
    const int t = *type ? find_type(type, strlen(type)) : type_of_name(name);
    if (t >= 0) {
        *out = (enum rag_type)t;
        return 0;
    }
    if (*type)
        return err_set(e, ERR_UNSUPPORTED, "file_type '%.40s', expected txt, md, html, json, pdf, docx, odt or epub",
                       type);
    return err_set(e, ERR_UNSUPPORTED, "'%.200s': its ending says no type: expected .txt, .md, .html, .json, .pdf, .docx, .odt or .epub, or a file_type", name);
}

/* ---- characters ---- */

/* Windows-1252 from 0x80 on; from 0xA0 it is Latin-1. */
static const uint16_t windows[32] = {
    0x20AC, 0xFFFD, 0x201A, 0x0192, 0x201E, 0x2026, 0x2020, 0x2021, 0x02C6, 0x2030, 0x0160,
    0x2039, 0x0152, 0xFFFD, 0x017D, 0xFFFD, 0xFFFD, 0x2018, 0x2019, 0x201C, 0x201D, 0x2022,
    0x2013, 0x2014, 0x02DC, 0x2122, 0x0161, 0x203A, 0x0153, 0xFFFD, 0x017E, 0x0178,
};

static void from_utf16(const uint8_t *s, size_t size, int big, struct text_build *out)
{
    for (size_t at = 2; at + 1 < size; at += 2) {
        uint32_t c = (uint32_t)(s[at + !big] << 8 | s[at + big]);
        if (c >= 0xD800 && c < 0xDC00 && at + 3 < size) {
            c = 0x10000 + ((c - 0xD800) << 10) + ((uint32_t)(s[at + 2 + !big] << 8 | s[at + 2 + big]) & 0x3FF);
            at += 2;
        }
        if (c != '\r')
            build_char(out, c);
    }
}

/* Are the bytes that are not ASCII more likely those of an old 8-bit text than of UTF-8? */
static int is_windows(const char *s, size_t size)
{
    size_t good = 0, bad = 0;
    int n;
    for (size_t at = 0; at < size; at += (size_t)n) {
        n = 1;
        if ((unsigned char)s[at] < 0x80)
            continue;
        *(utf8_decode(s + at, size - at, &n) < 0 ? &bad : &good) += 1;
    }
    return bad > good;
}

/* Convert any text to clean UTF-8.  -1: the bytes are no text. */
static int clean(const char *s, size_t size, struct text_build *out, struct err *e)
{
    int n;
    if (size >= 2 && (memcmp(s, "\xff\xfe", 2) == 0 || memcmp(s, "\xfe\xff", 2) == 0)) {
        from_utf16((const uint8_t *)s, size, (unsigned char)s[0] == 0xfe, out);
        return build_end(out, e);
    }
    if (memchr(s, 0, size))
        return err_set(e, ERR_FORMAT, "the document is no text: it contains zero bytes");
    if (size >= 3 && memcmp(s, "\xef\xbb\xbf", 3) == 0)
        s += 3, size -= 3;
    const int old = is_windows(s, size);
    for (size_t at = 0; at < size && out->state == TEXT_GOOD; at += (size_t)n) {
        const unsigned char c = (unsigned char)s[at];
        n = 1;
        if (c >= 0x80 && old)
            build_char(out, c < 0xA0 ? windows[c - 0x80] : c);
        else if (c == '\r' && at + 1 < size && s[at + 1] == '\n')
            continue;
        else
            build_char(out, c == '\r' ? '\n' : utf8_next(s + at, size - at, &n));
    }
    return build_end(out, e);
}

/* ---- types ---- */

int rag_type_works(enum rag_type t)
{
    char path[256];
    return t != RAG_PDF || program_find("pdftotext", path);
}

/* The exit status of pdftotext as an error: 0 is success. */
static int pdf_failed(int status, const char *said, struct err *e)
{
    if (strstr(said, "password"))
        return err_set(e, ERR_FORMAT, "the PDF is encrypted: store it without a password");
    if (status == 3)
        return err_set(e, ERR_FORMAT, "the PDF does not permit copying its text");
    if (strstr(said, "memory") || status == 128 + SIGABRT)
        return err_set(e, ERR_LIMIT, "the PDF needs more memory than pdftotext may have");
    return err_set(e, ERR_FORMAT, "the PDF cannot be read: %.*s", (int)strcspn(said, "\n"), said);
}

/* Number of pages as pdfinfo tells it; 0: unknown. */
static long count_pages(const void *data, size_t size, const struct program_limits *l, struct rag_budget *budget)
{
    char path[256];
    struct err e;
    struct text_build said = { .budget = budget };
    struct program_limits soon = *l;
    soon.timeout_s = l->timeout_s < 5 ? l->timeout_s : 5;
    if (!program_find("pdfinfo", path))
        return 0;
    const char *const argv[] = { path, "/dev/stdin", NULL };
    struct program info = { .argv = argv, .out = &said };
    const int rc = program_run(&info, 1, data, size, &soon, &e);
    const char *pages = rc == 0 && info.status == 0 && said.size ? strstr(said.data, "\nPages:") : NULL;
    const long n = pages ? strtol(pages + strlen("\nPages:"), NULL, 10) : 0;
    build_release(&said);
    return n;
}

/* Returns the number of programs that read a PDF in parallel, each a part of its pages.  first [n]:
 * the first page of each part. */
static int split_pages(const void *data, size_t size, const struct program_limits *l, struct rag_budget *budget,
                       long first[PROGRAMS_MAX])
{
    enum { SPLIT_BYTES = 64 << 10, SPLIT_PAGES = 32 };     /* for a smaller file one program is as fast */
    const long n_pages = size >= SPLIT_BYTES ? count_pages(data, size, l, budget) : 0;
    const int n = n_pages >= SPLIT_PAGES ? PROGRAMS_MAX : 1;
    for (int i = 0; i < n; i++)
        first[i] = n_pages * i / n + 1;
    return n;
}

static void trim_end(struct text_build *t)
{
    while (t->size && strchr("\f\n ", t->data[t->size - 1]))          /* a form feed ends each page */
        t->size--;
}

/* Run n times pdftotext; number i reads the pages from first[i] on into raw[i]. */
static int read_pages(const void *data, size_t size, const struct program_limits *l, int n, const long *first,
                      struct text_build *raw, struct err *e)
{
    char path[256], page[PROGRAMS_MAX][2][24];
    const char *argv[PROGRAMS_MAX][10];
    struct program p[PROGRAMS_MAX] = { { 0 } };
    if (!program_find("pdftotext", path))
        return err_set(e, ERR_UNSUPPORTED, "PDF documents need the program pdftotext (Debian: poppler-utils)");
    for (int i = 0; i < n; i++) {
        int k = 0;
        argv[i][k++] = path;
        if (i > 0) {
            snprintf(page[i][0], sizeof page[i][0], "%ld", first[i]);
            argv[i][k++] = "-f";
            argv[i][k++] = page[i][0];
        }
        if (i < n - 1) {
            snprintf(page[i][1], sizeof page[i][1], "%ld", first[i + 1] - 1);
            argv[i][k++] = "-l";
            argv[i][k++] = page[i][1];
        }
        const char *const rest[] = { "-enc", "UTF-8", "/dev/stdin", "-", NULL };
        memcpy(&argv[i][k], rest, sizeof rest);
        p[i] = (struct program){ .argv = argv[i], .out = &raw[i] };
    }
    if (program_run(p, n, data, size, l, e))
        return -1;
    for (int i = 0; i < n; i++)
        if (p[i].status || (raw[i].size == 0 && strstr(p[i].said, "Error")))
            return pdf_failed(p[i].status, p[i].said, e);
    return 0;
}

static int pdf_text(const void *data, size_t size, const struct rag_extract_options *o, struct text_build *out,
                    struct err *e)
{
    const struct program_limits l = { .timeout_s = o->timeout_s > 0 ? o->timeout_s : 60,
                                      .memory_bytes = o->memory_bytes ? o->memory_bytes : (size_t)1 << 30,
                                      .cancel = o->cancel };
    struct text_build raw[PROGRAMS_MAX] = { { .budget = out->budget }, { .budget = out->budget } };
    long first[PROGRAMS_MAX];
    if (size < 5 || !memmem(data, size < 1024 ? size : 1024, "%PDF-", 5))
        return err_set(e, ERR_FORMAT, "the document is no PDF");
    const int n = split_pages(data, size, &l, out->budget, first);
    int rc = read_pages(data, size, &l, n, first, raw, e);
    for (int i = n - 1; i >= 0 && (i == n - 1 || raw[i + 1].size == 0); i--)
        trim_end(&raw[i]);
    if (rc == 0 && raw[0].size == 0 && raw[n - 1].size == 0)
        rc = err_set(e, ERR_FORMAT, "the PDF has no text: its pages may be scanned images, which need OCR first");
    for (int i = 0; i < n; i++) {
        if (rc == 0 && raw[i].size)
            rc = clean(raw[i].data, raw[i].size, out, e);
        build_release(&raw[i]);
    }
    return rc;
}

static int text_file(enum rag_type t, const void *data, size_t size, struct text_build *out, struct err *e)
{
    struct text_build marked = { .budget = out->budget };
    if (t == RAG_TXT || t == RAG_MD)
        return clean(data, size, out, e);
    if (clean(data, size, &marked, e))
        return -1;
    if (t == RAG_HTML)
        html_text(marked.data, marked.size, 1, out);
    else
        json_text(marked.data, marked.size, out);
    build_release(&marked);
    return 0;
}

int rag_extract(enum rag_type t, const void *data, size_t size, const struct rag_extract_options *o,
                struct rag_text *out, struct err *e)
{
    struct text_build text = { .budget = o->budget };
    *out = (struct rag_text){ 0 };
    const int rc = types[t].is_text ? text_file(t, data, size, &text, e) : t == RAG_PDF
                       ? pdf_text(data, size, o, &text, e) : office_text(t, data, size, &text, e);
    if (rc || build_end(&text, e)) {
        build_release(&text);
        return -1;
    }
    *out = (struct rag_text){ text.data, text.size, t != RAG_TXT && t != RAG_JSON && t != RAG_PDF };
    return 0;
}

void rag_text_release(struct rag_text *t)
{
    free(t->text);
    *t = (struct rag_text){ 0 };
}
