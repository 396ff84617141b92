/* t-rag.c - documents: chunks of random texts, queries that FTS5 must not take for its own syntax,
 * the store with owners, quotas, two connections and a damaged file, the context for a prompt. */
#include <math.h>
#include <sqlite3.h>
#include <sys/stat.h>

#include "tests/unit/folder.h"

#include "libcommon/base/rng.h"
#include "libcommon/base/utf8.h"
#include "libcommon/kernels/kernels.h"
#include "libcommon/rag/chunks.h"
#include "libcommon/rag/extract.h"
#include "libcommon/rag/search.h"
#include "libcommon/rag/rag_store.h"
#include "libcommon/rag/vectors.h"
#include "libcommon/rag/word_tokens.h"
#include "libcommon/rag/words.h"

/* ---- chunks ---- */

/* blanks, and the marks of headings */
static int is_blank(char c) { return strchr(" \t\n\f#=", c) != NULL; }

/* Every byte that is not blank lies in a chunk.  Chunks are in order, valid UTF-8, and not larger
 * than requested. */
static void check_chunks(const char *text, size_t size, const struct chunk_options *o)
{
    struct chunk_list l;
    assert_int_equal(chunks_cut(text, size, o, &l, &e), 0);
    size_t covered = 0;
    for (int i = 0; i < l.n; i++) {
        const struct chunk *c = &l.chunk[i];
        assert_true(c->size > 0 && c->offset + c->size <= size);
        assert_true(i == 0 || c->offset > l.chunk[i - 1].offset);
        assert_int_equal(utf8_valid(text + c->offset, c->size), c->size);
        /* units that each fit may be joined by one or two blanks that count as tokens */
        assert_true(token_count(&o->counter, text + c->offset, c->size) <= o->tokens + o->tokens / 2 + 2);
        for (; covered < c->offset; covered++)
            assert_true(is_blank(text[covered]));
        if (covered < c->offset + c->size)
            covered = c->offset + c->size;
    }
    for (; covered < size; covered++)
        assert_true(is_blank(text[covered]));
    chunks_release(&l);
}

static void test_chunks_of_random_texts(void **state)
{
    static const char *const pieces[] = { "word ", "a", "longerwordwithoutend", ". ", "? ", "\n", "\n\n", "# Heading\n",
                                          "Title\n=====\n", "\f", "\u00e9", "e\u0301", "\u4e2d\u6587\u3002",
                                          "\U0001F468\u200D\U0001F469\u200D\U0001F467", "- item\n", "```\n",
                                          "1. Numbered\n\n", " " };
    struct rng r = { 7 };
    char text[4096];
    (void)state;
    for (int round = 0; round < 3000; round++) {
        size_t size = 0;
        for (int n = (int)(rng_u64(&r) % 200); n > 0 && size < sizeof text - 64; n--) {
            const char *p = pieces[rng_u64(&r) % (sizeof pieces / sizeof *pieces)];
            memcpy(text + size, p, strlen(p));
            size += strlen(p);
        }
        const struct chunk_options o = { .tokens = 1 + rng_u64(&r) % 40, .overlap = rng_u64(&r) % 8,
                                         .markdown = (int)(rng_u64(&r) & 1) };
        check_chunks(text, size, &o);
    }
}

static void test_chunks_never_cut_characters(void **state)
{
    struct chunk_list l;
    char text[9000];
    size_t size = 0;
    (void)state;
    while (size + 30 < sizeof text) {           /* one word of family emoji: 25 bytes each */
        memcpy(text + size, "\U0001F468\u200D\U0001F469\u200D\U0001F467\u200D\U0001F466", 25);
        size += 25;
    }
    const struct chunk_options o = { .tokens = 5 };
    assert_int_equal(chunks_cut(text, size, &o, &l, &e), 0);
    assert_true(l.n > 20);
    for (int i = 0; i < l.n; i++) {
        assert_int_equal(l.chunk[i].offset % 25, 0);
        assert_int_equal(l.chunk[i].size % 25, 0);
    }
    chunks_release(&l);
}

static void test_chunks_headings_and_pages(void **state)
{
    static const char markdown[] = "# Guide\n\nIntro text here.\n\n## Install\n\nRun make. Then run it again and wait until it is done with all of it.\n\n```\n# no heading\n```\n\n"
                                   "## Use\n\nCall it with care, as the long manual page of the program explains in its second part.\n";
    static const char plain[] = "NAME\n       tool - does things\n\nDESCRIPTION\n       It does things of many kinds, and it does them one after the other.\n\f2. Grant of Rights\n\nYou may use it.\n";
    struct chunk_options o = { .tokens = 24, .overlap = 4, .markdown = 1 };
    struct chunk_list l;
    (void)state;
    assert_int_equal(chunks_cut(markdown, sizeof markdown - 1, &o, &l, &e), 0);
    assert_string_equal(l.chunk[0].heading, "Guide");
    assert_string_equal(l.chunk[l.n - 1].heading, "Guide > Use");
    int install = 0;
    for (int i = 0; i < l.n; i++)
        install += strcmp(l.chunk[i].heading, "Guide > Install") == 0;
    assert_true(install > 0);
    assert_int_equal(l.pages, 1);
    chunks_release(&l);
    o.markdown = 0;
    assert_int_equal(chunks_cut(plain, sizeof plain - 1, &o, &l, &e), 0);
    assert_string_equal(l.chunk[0].heading, "NAME");
    assert_int_equal(l.chunk[0].page, 1);
    assert_string_equal(l.chunk[l.n - 1].heading, "2. Grant of Rights");
    assert_int_equal(l.chunk[l.n - 1].page, 2);
    assert_int_equal(l.pages, 2);
    chunks_release(&l);
    /* words in capitals in a line of their own that are not headings */
    static const char names[] = "OPTIONS \n\n--out\nFILE\nwrites to a file, and\n\nNAME ,\nelse\n\nHTTP_PROXY\n\nSIZE .\nThe limit.\n";
    assert_int_equal(chunks_cut(names, sizeof names - 1, &o, &l, &e), 0);
    for (int i = 0; i < l.n; i++)
        assert_string_equal(l.chunk[i].heading, "OPTIONS");
    chunks_release(&l);
}

static void test_chunks_begin_at_sentences_of_indented_lines(void **state)
{
    static const char text[] = "    The first sentence is long enough to\n    fill two lines of this text. The next one\n    fills two lines as well, and it should\n"
                               "    not be cut. A third one follows in the\n    last two lines, and then it ends here.\n";
    static const char list[] = "- an item that continues in a second\n  line of this list of items\n- another item that is as long as the\n  first one of the two items\n";
    struct chunk_options o = { .tokens = 24 };
    struct chunk_list l;
    (void)state;
    assert_int_equal(chunks_cut(text, sizeof text - 1, &o, &l, &e), 0);
    assert_int_equal(l.n, 3);
    assert_memory_equal(text + l.chunk[1].offset, "The next", 8);
    assert_memory_equal(text + l.chunk[2].offset, "A third", 7);
    chunks_release(&l);
    assert_int_equal(chunks_cut(list, sizeof list - 1, &o, &l, &e), 0);
    assert_int_equal(l.n, 2);
    assert_memory_equal(list + l.chunk[1].offset, "- another", 9);
    chunks_release(&l);
}

/* FEATURES Q3: 2000 characters, chunks of at most 512, overlaps of at most 50. */
static size_t count_bytes(void *user, const char *text, size_t size)
{
    (void)user;
    (void)text;
    return size;
}

static void test_chunks_overlap(void **state)
{
    char text[2001] = "";
    const struct chunk_options o = { .tokens = 512, .overlap = 50, .counter = { count_bytes, NULL } };
    struct chunk_list l;
    int overlaps = 0;
    (void)state;
    for (int i = 0; strlen(text) < 1970; i++)
        sprintf(text + strlen(text), "Sentence number %d is here. ", i);
    assert_int_equal(chunks_cut(text, strlen(text), &o, &l, &e), 0);
    for (int i = 1; i < l.n; i++) {
        const size_t end = l.chunk[i - 1].offset + l.chunk[i - 1].size;
        overlaps += l.chunk[i].offset < end && end - l.chunk[i].offset <= 52;
    }
    assert_true(l.n >= 4 && overlaps == l.n - 1);
    chunks_release(&l);
}

static size_t count_and_note(void *most, const char *text, size_t size)
{
    (void)text;
    if (size > *(size_t *)most)
        *(size_t *)most = size;
    return size;
}

/* A tokenizer needs many times the memory of its text, so it must never be called with a line of
 * several megabytes: at most 64 KiB. */
static void test_chunks_of_a_line(void **state)
{
    enum { SIZE = 4 << 20 };
    size_t most = 0;
    char *text = malloc(SIZE + 1);
    const struct chunk_options o = { .counter = { count_and_note, &most } };
    struct chunk_list l;
    (void)state;
    assert_non_null(text);
    for (int i = 0; i < SIZE; i++)
        text[i] = i % 100000 ? 'a' : ' ';
    text[SIZE] = '\0';
    assert_int_equal(chunks_cut(text, SIZE, &o, &l, &e), 0);
    assert_true(l.n > SIZE / 1024 && most <= 64 << 10);
    chunks_release(&l);
    free(text);
}

/* A fake tokenizer: one token per four bytes of a word and, like some real ones, with `prefix` one
 * more for a blank before the text. */
struct words_counter { int prefix, calls; };
static size_t count_words(void *user, const char *text, size_t size)
{
    struct words_counter *c = user;
    size_t n = 0, in_word = 0;
    c->calls++;
    for (size_t i = 0; i < size; i++) {
        in_word = strchr(" \n", text[i]) ? 0 : in_word + 1;
        n += in_word % 4 == 1;
    }
    return n + (size_t)c->prefix;
}

/* word_tokens_count() gives the same count as the tokenizer on the whole text, but calls the
 * tokenizer only once per different word. */
static void words_are_counted_as_the_tokenizer_does(void **state)
{
    enum { WORDS = 20000 };
    char *text = malloc(WORDS * 16), *p = text;
    struct words_counter plain = { 0, 0 }, prefixed = { 1, 0 };
    const struct token_counter counters[] = { { count_words, &plain }, { count_words, &prefixed } };
    struct word_tokens w;
    (void)state;
    assert_non_null(text);
    for (int i = 0; i < WORDS; i++)
        p += sprintf(p, "%s%s%d", i ? i % 11 ? " " : ".\n\n" : "", i % 3 ? "word" : "another", i * 7 % 300);
    const size_t size = (size_t)(p - text), tokens = count_words(&plain, text, size);
    for (int k = 0; k < 2; k++) {
        struct words_counter *c = counters[k].user;
        c->calls = 0;
        word_tokens_init(&w, &counters[k]);
        assert_int_equal(word_tokens_count(&w, text, size), tokens + (size_t)c->prefix);
        word_tokens_release(&w);
        assert_true(c->calls < WORDS / 10);
    }
    free(text);
}

/* ---- words ---- */

static void check_query(const char *query, const char *expected)
{
    struct query_words w;
    char all[1024] = "";
    assert_int_equal(words_of_query(query, strlen(query), &w, &e), 0);
    for (int i = 0; i < w.n; i++)
        strcat(strcat(all, i ? " OR " : ""), w.phrase[i]);
    assert_string_equal(all, expected);
    query_words_release(&w);
}

static void queries_become_quoted_words(void **state)
{
    (void)state;
    check_query("foo-bar NEAR(a b) *", "\"foo-bar\" OR \"NEAR(a\" OR \"b)\"");
    check_query("say \"hello\" OR x", "\"say\" OR \"\"\"hello\"\"\" OR \"x\"");
    check_query("what is the C++ licence?", "\"C++\" OR \"licence?\"");
    check_query("the", "\"the\"");
    check_query("", "");
    check_query("-- ** \"\"", "");
    check_query("caf\u00e9 caf\u00e9", "\"caf\u00e9\"");
    check_query("\u4e2d\u56fd\u4eba", "\"\u4e2d \u56fd \" OR \"\u56fd \u4eba \"");
    check_query("a-a-a-a-a-a-a-a-a-a-a-a-a-a-a-a-a-a-a-a-a-a", "\"a-a-a-a-a-a-a-a-a-a-a-a-a-a-a-a-\"");
    check_query("use\u4e2d", "\"use\" OR \"\u4e2d \"");
}

static void ideographs_become_words_of_their_own(void **state)
{
    int n;
    char *s = words_spaced("ab\u4e2d\u6587, c-d", strlen("ab\u4e2d\u6587, c-d"), &n);
    (void)state;
    assert_string_equal(s, "ab \u4e2d \u6587 , c-d");
    assert_int_equal(n, 5);
    free(s);
}

/* ---- texts of files ---- */

static char *extracted(enum rag_type t, const char *data, size_t size)
{
    const struct rag_extract_options o = { 0 };
    struct rag_text text;
    if (rag_extract(t, data, size, &o, &text, &e))
        return NULL;
    assert_int_equal(utf8_valid(text.text, text.size), text.size);
    assert_int_equal(strlen(text.text), text.size);
    return text.text;
}

static void check_extract(enum rag_type t, const char *data, size_t size, const char *expected)
{
    char *text = extracted(t, data, size);
    assert_non_null(text);
    assert_string_equal(text, expected);
    free(text);
}
#define EXTRACT(type, literal, expected) check_extract(type, literal, sizeof(literal) - 1, expected)

static void each_format_gives_the_expected_text(void **state)
{
    (void)state;
    EXTRACT(RAG_TXT, "\xef\xbb\xbf" "a\r\nb\rc\x01", "a\nb\nc ");
    EXTRACT(RAG_TXT, "\xff\xfe" "a\0\xe9\0", "a\u00e9");
    EXTRACT(RAG_TXT, "caf\xe9 \x80", "caf\u00e9 \u20ac");
    EXTRACT(RAG_TXT, "caf\u00e9 \xff", "caf\u00e9 \ufffd");
    assert_null(extracted(RAG_TXT, "a\0b", 3));
    EXTRACT(RAG_HTML, "<html><head><title>T &amp; U</title><style>p{}</style></head><body><h2 id=\"a>b\">Two</h2><p>a  b<br>c &lt;d&gt;</p>"
            "<script>var x = '<p>';</script><ul><li>one<li>two</ul><pre>x\n  y</pre><!-- no --></body>",
            "# T & U\n\n## Two\n\na b\nc <d>\n\n- one\n- two\n\nx\n  y\n\n");
    EXTRACT(RAG_HTML, "a < b &unknown; &#x263a; &#0;", "a < b &unknown; \u263a &#0;\n");
    EXTRACT(RAG_HTML, "<script>never ends", "");
    EXTRACT(RAG_JSON, "{\"a\": [1, \"x\\n\\u00e9\"], \"b\": {\"c\": null}}", "a:\n1\nx\n\u00e9\nb:\nc: null\n\n");
}

/* ---- office documents ---- */

/* A ZIP archive of stored members; returns its size. */
static size_t make_zip(const char *const *names, const char *const *texts, int n, int flags, uint8_t *out)
{
    size_t at = 0, entry[8], directory;
    for (int i = 0; i < n; i++) {
        const size_t size = strlen(texts[i]), name = strlen(names[i]);
        entry[i] = at;
        memset(out + at, 0, 30);
        memcpy(out + at, "PK\3\4", 4);
        out[at + 26] = (uint8_t)name;
        memcpy(out + at + 30, names[i], name);
        memcpy(out + at + 30 + name, texts[i], size);
        at += 30 + name + size;
    }
    directory = at;
    for (int i = 0; i < n; i++) {
        const size_t size = strlen(texts[i]), name = strlen(names[i]);
        memset(out + at, 0, 46);
        memcpy(out + at, "PK\1\2", 4);
        out[at + 8] = (uint8_t)flags;
        out[at + 20] = out[at + 24] = (uint8_t)size;
        out[at + 21] = out[at + 25] = (uint8_t)(size >> 8);
        out[at + 28] = (uint8_t)name;
        out[at + 42] = (uint8_t)entry[i];
        out[at + 43] = (uint8_t)(entry[i] >> 8);
        memcpy(out + at + 46, names[i], name);
        at += 46 + name;
    }
    memset(out + at, 0, 22);
    memcpy(out + at, "PK\5\6", 4);
    out[at + 8] = out[at + 10] = (uint8_t)n;
    out[at + 16] = (uint8_t)directory;
    out[at + 17] = (uint8_t)(directory >> 8);
    return at + 22;
}

static void office_files_give_text_and_never_crash(void **state)
{
    static const char *const docx[] = { "word/document.xml" }, *const odt[] = { "content.xml" };
    static const char *const word[] = { "<w:p><w:pPr><w:pStyle w:val=\"Heading2\"/></w:pPr><w:r><w:t>Costs</w:t></w:r></w:p>"
                                        "<w:p><w:r><w:t>a &amp;</w:t><w:instrText>HIDDEN</w:instrText><w:tab/><w:t> b</w:t></w:r></w:p>" };
    static const char *const open[] = { "<x>no</x><text:h text:outline-level=\"3\">Top</text:h><text:p>one<text:s/>two<text:line-break/>three</text:p>" };
    uint8_t zip[4096];
    (void)state;
    size_t size = make_zip(docx, word, 1, 0, zip);
    check_extract(RAG_DOCX, (char *)zip, size, "## Costs\n\na &  b\n\n");
    for (size_t cut = 0; cut < size; cut++) {
        uint8_t *copy = malloc(cut + 1);            /* of exactly this size, for the sanitizer */
        memcpy(copy, zip, cut);
        copy = realloc(copy, cut ? cut : 1);
        assert_null(extracted(RAG_DOCX, (char *)copy, cut));
        free(copy);
    }
    for (size_t i = 0; i < size; i++) {             /* any result, but no crash */
        zip[i] ^= 0xff;
        free(extracted(RAG_DOCX, (char *)zip, size));
        zip[i] ^= 0xff;
    }
    assert_null(extracted(RAG_ODT, (char *)zip, size));
    assert_string_equal(e.msg, "the document has no part content.xml");
    size = make_zip(docx, word, 1, 1, zip);
    assert_null(extracted(RAG_DOCX, (char *)zip, size));
    assert_string_equal(e.msg, "the document is encrypted");
    size = make_zip(odt, open, 1, 0, zip);
    check_extract(RAG_ODT, (char *)zip, size, "### Top\n\none two\nthree\n\n");
}

/* A small PDF that draws a text 10^9 times, because its forms draw other forms repeatedly. */
static void a_pdf_bomb_ends_at_a_limit(void **state)
{
    char pdf[8192], *p = pdf;
    const struct rag_extract_options o = { .timeout_s = 1, .memory_bytes = 1 << 28 };
    struct rag_text text;
    (void)state;
    if (!rag_type_works(RAG_PDF)) {
        print_message("SKIP: pdftotext is not installed\n");
        skip();
    }
    p += sprintf(p, "%%PDF-1.4\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n2 0 obj\n<< /Type /Pages /Count 1 /Kids [3 0 R] >>\nendobj\n"
                 "3 0 obj\n<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R /Resources << /XObject << /A 5 0 R >> >> >>\nendobj\n"
                 "4 0 obj\n<< /Length 5 >>\nstream\n/A Do\nendstream\nendobj\n");
    for (int i = 5; i < 14; i++)
        p += sprintf(p, "%d 0 obj\n<< /Type /XObject /Subtype /Form /BBox [0 0 9 9] /Length 60 /Resources << /XObject << /A %d 0 R >> >> >>\nstream\n"
                     "/A Do /A Do /A Do /A Do /A Do /A Do /A Do /A Do /A Do /A Do \nendstream\nendobj\n", i, i + 1);
    p += sprintf(p, "14 0 obj\n<< /Type /XObject /Subtype /Form /BBox [0 0 9 9] /Length 40 /Resources << /Font << /F << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>\n"
                 "stream\nBT /F 1 Tf 1 1 Td (bomb) Tj ET          \nendstream\nendobj\ntrailer << /Root 1 0 R >>\n%%%%EOF\n");
    assert_int_equal(rag_extract(RAG_PDF, pdf, (size_t)(p - pdf), &o, &text, &e), -1);
    assert_int_equal(e.code, ERR_LIMIT);
    atomic_int cancel = 1;
    const struct rag_extract_options gone = { .cancel = &cancel };
    assert_int_equal(rag_extract(RAG_PDF, pdf, (size_t)(p - pdf), &gone, &text, &e), -1);
    assert_int_equal(e.code, ERR_CANCELLED);
}

/* This PDF is large enough for two processes of pdftotext, each of which reads some pages. */
static void large_pdfs_keep_all_pages_in_order(void **state)
{
    enum { PAGES = 41, BYTES = 4000 };
    static char pdf[PAGES * (BYTES + 300) + 1000], expected[PAGES * 16];
    char *p = pdf, *want = expected;
    struct rag_text text;
    (void)state;
    if (!rag_type_works(RAG_PDF)) {
        print_message("SKIP: pdftotext is not installed\n");
        skip();
    }
    p += sprintf(p, "%%PDF-1.4\n1 0 obj\n<< /Type /Catalog /Pages 2 0 R >>\nendobj\n2 0 obj\n<< /Type /Pages /Count %d /Kids [", PAGES);
    for (int i = 0; i < PAGES; i++)
        p += sprintf(p, "%d 0 R ", 10 + 2 * i);
    p += sprintf(p, "] >>\nendobj\n3 0 obj\n<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>\nendobj\n");
    for (int i = 0; i < PAGES; i++) {
        p += sprintf(p, "%d 0 obj\n<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents %d 0 R /Resources << /Font << /F 3 0 R >> >> >>\nendobj\n",
                     10 + 2 * i, 11 + 2 * i);
        /* blanks fill the stream */
        p += sprintf(p, "%d 0 obj\n<< /Length %d >>\nstream\n%-*s\nendstream\nendobj\n", 11 + 2 * i, BYTES, BYTES, "");
        char *stream = p - BYTES - (int)strlen("\nendstream\nendobj\n");
        /* the last two pages are empty */
        char line[64];
        const int n = i < PAGES - 2 ? sprintf(line, "BT /F 12 Tf 50 700 Td (page %d) Tj ET", i + 1) : 0;
        memcpy(stream, line, (size_t)n);
        if (n)
            want += sprintf(want, "%spage %d", i ? "\n\n\f" : "", i + 1);
    }
    p += sprintf(p, "trailer << /Root 1 0 R >>\n%%%%EOF\n");
    const struct rag_extract_options o = { 0 };
    assert_int_equal(rag_extract(RAG_PDF, pdf, (size_t)(p - pdf), &o, &text, &e), 0);
    assert_string_equal(text.text, expected);
    rag_text_release(&text);
    const struct rag_extract_options small = { .memory_bytes = 1 << 20 };
    assert_int_equal(rag_extract(RAG_PDF, pdf, (size_t)(p - pdf), &small, &text, &e), -1);
}

/* ---- the store ---- */

static const struct rag_quota none = { 0 };

static int add(struct rag_store *r, const char *owner, const char *collection, const char *name, const char *text,
               const struct rag_quota *q, char id[RAG_ID])
{
    struct rag_document d = { .name = strdup(name), .type = strdup("md"), .metadata = strdup("{}"),
                              .file_size = strlen(text), .text_size = strlen(text) }, there = { 0 };
    const struct chunk_options o = { .tokens = 64, .markdown = 1 };
    struct chunk_list l;
    strcpy(d.owner, owner);
    strcpy(d.collection, collection);
    sha256_of(text, strlen(text), d.sha256);
    assert_int_equal(chunks_cut(text, strlen(text), &o, &l, &e), 0);
    const int rc = rag_add(r, &d, text, &l, q, &there, &e);
    if (id)
        strcpy(id, d.id);
    chunks_release(&l);
    rag_document_release(&d);
    rag_document_release(&there);
    return rc;
}

static int search_in(struct rag_store *r, const char *owner, const char *collection, const char *query,
                     struct rag_hits *h)
{
    const struct rag_query q = { .owner = owner, .text = query, .size = strlen(query), .top_k = 5,
                                 .collections = &collection, .n_collections = collection != NULL };
    return rag_search(r, &q, h, &e);
}

/* The name of the document of the first hit, or the reason why there is none. */
static const char *first(struct rag_store *r, const char *owner, const char *query)
{
    static char text[200];
    struct rag_hits h;
    assert_int_equal(search_in(r, owner, NULL, query, &h), 0);
    for (int i = 1; i < h.n; i++)
        assert_true(h.hit[i].score <= h.hit[i - 1].score);
    snprintf(text, sizeof text, "%s", h.n ? h.hit[0].name : h.reason);
    rag_hits_release(&h);
    return text;
}
#define NO_WORD "no document contains any word of the query"

static void test_store(void **state)
{
    char apple[RAG_ID];
    struct rag_totals t;
    struct rag_document d;
    struct rag_hits h;
    (void)state;
    struct rag_store *r = rag_open(folder, 1, &e);
    assert_non_null(r);
    assert_string_equal(first(r, "", "apple"), "there are no documents to search");
    assert_int_equal(add(r, "", "default", "apple.md", "# Fruit\n\nApples grow on trees. The foo-bar of C++ is 3.5 kg.",
                         &none, apple), 0);
    assert_int_equal(add(r, "", "default", "pear.md",
                         "# Fruit\n\nPears grow on trees, too. \u6211\u662f\u4e2d\u56fd\u4eba", &none, NULL), 0);
    assert_int_equal(add(r, "", "other", "car.md", "Cars do not grow.", &none, NULL), 0);
    assert_int_equal(add(r, "", "default", "again.md", "Cars do not grow.", &none, NULL), 0);   /* another collection */
    assert_int_equal(add(r, "", "other", "again.md", "Cars do not grow.", &none, NULL), 1);
    /* words with punctuation, stems, scripts without blanks, diacritics */
    assert_string_equal(first(r, "", "apple"), "apple.md");
    assert_string_equal(first(r, "", "foo-bar?"), "apple.md");
    assert_string_equal(first(r, "", "\"3.5\""), "apple.md");
    assert_string_equal(first(r, "", "\u4e2d\u56fd"), "pear.md");
    assert_string_equal(first(r, "", "\u56fd\u4e2d"), NO_WORD);
    assert_string_equal(first(r, "", "zebra AND (NOT"), NO_WORD);
    assert_string_equal(first(r, "", "scope"), NO_WORD);
    assert_string_equal(first(r, "", "c1 d1"), NO_WORD);        /* the words of the scope are not found */
    /* other owners see nothing, and their documents do not change the scores of ours */
    assert_string_equal(first(r, "key 1", "apple"), "there are no documents to search");
    assert_int_equal(search_in(r, "", NULL, "apple trees", &h), 0);
    const double before = h.hit[0].bm25;
    rag_hits_release(&h);
    for (int i = 0; i < 20; i++) {
        char text[40];
        sprintf(text, "apple trees number %d", i);
        assert_int_equal(add(r, "key 1", "default", "x", text, &none, NULL), 0);
    }
    assert_int_equal(search_in(r, "", NULL, "apple trees", &h), 0);
    assert_true(before == h.hit[0].bm25);
    rag_hits_release(&h);
    assert_int_equal(rag_find(r, "key 1", apple, NULL, &d, &e), -1);
    assert_int_equal(rag_delete(r, "key 1", apple, &e), -1);
    assert_int_equal(search_in(r, "", "nowhere", "apple", &h), -1);
    assert_string_equal(e.msg, "there is no collection 'nowhere'");
    assert_int_equal(search_in(r, "", "other", "apple", &h), 0);
    assert_int_equal(h.n, 0);
    rag_hits_release(&h);
    /* a second connection sees the same; deleting removes everything */
    struct rag_store *r2 = rag_open(folder, 0, &e);
    assert_non_null(r2);
    assert_string_equal(first(r2, "", "apple"), "apple.md");
    assert_int_equal(rag_delete(r2, "", apple, &e), 0);
    assert_int_equal(rag_delete(r2, "", apple, &e), -1);
    assert_string_equal(first(r, "", "apple"), NO_WORD);
    assert_int_equal(rag_totals(r, "", NULL, &t, &e), 0);
    assert_int_equal(t.documents, 3);
    assert_int_equal(t.collections, 2);
    int64_t n;
    assert_int_equal(rag_delete_collection(r, "", "default", &n, &e), 0);
    assert_int_equal(n, 2);
    rag_close(r);
    /* after a restart */
    r = rag_open(folder, 0, &e);
    assert_string_equal(first(r, "", "cars"), "car.md");
    assert_string_equal(first(r, "", "pears"), NO_WORD);
    rag_close(r2);
    rag_close(r);
}

static void test_store_filters(void **state)
{
    char a[RAG_ID], b[RAG_ID];
    struct rag_hits h;
    (void)state;
    struct rag_store *r = rag_open(folder, 1, &e);
    assert_int_equal(add(r, "", "one", "a", "red green", &none, a), 0);
    assert_int_equal(add(r, "", "two", "b", "red blue", &none, b), 0);
    const char *ids[] = { b }, *one = "one";
    struct rag_query q = { .owner = "", .text = "red green", .size = 9, .top_k = 5, .documents = ids,
                           .n_documents = 1 };
    assert_int_equal(rag_search(r, &q, &h, &e), 0);
    assert_int_equal(h.n, 1);
    assert_string_equal(h.hit[0].document, b);
    rag_hits_release(&h);
    q.collections = &one;                       /* does not contain document b */
    q.n_collections = 1;
    assert_int_equal(rag_search(r, &q, &h, &e), 0);
    assert_string_equal(h.reason, "there are no documents to search");
    rag_hits_release(&h);
    q = (struct rag_query){ .owner = "", .text = "red green", .size = 9, .top_k = 1 };
    assert_int_equal(rag_search(r, &q, &h, &e), 0);
    assert_int_equal(h.n, 1);
    assert_string_equal(h.hit[0].document, a);
    assert_true(h.hit[0].score == 1);
    rag_hits_release(&h);
    q.top_k = 5;
    q.min_score = 0.9;
    assert_int_equal(rag_search(r, &q, &h, &e), 0);
    assert_int_equal(h.n, 1);
    rag_hits_release(&h);
    rag_close(r);
}

static void test_store_quota(void **state)
{
    const struct rag_quota q = { 2, 100 }, small = { 0, 10 };
    (void)state;
    struct rag_store *r = rag_open(folder, 1, &e);
    assert_int_equal(add(r, "k", "c", "1", "first", &small, NULL), 0);
    assert_int_equal(add(r, "k", "c", "2", "second", &small, NULL), -1);
    assert_int_equal(e.code, ERR_LIMIT);
    assert_int_equal(add(r, "k", "c", "2", "second", &q, NULL), 0);
    assert_int_equal(add(r, "k", "c", "3", "third", &q, NULL), -1);
    assert_string_equal(e.msg, "2 documents are stored, expected at most 2: delete some first");
    assert_int_equal(add(r, "other", "c", "3", "third", &q, NULL), 0);          /* each owner has its own */
    rag_close(r);
}

static void write_file(const char *name, const char *text)
{
    FILE *f = fopen(in_folder(name), "w");
    fputs(text, f);
    fclose(f);
}

static void test_store_damaged(void **state)
{
    (void)state;
    assert_null(rag_open(folder, 0, &e));
    assert_int_equal(e.code, ERR_FORMAT);
    write_file("rag.db", "this is no database, but a text that is longer than the header of one would be, which has a hundred bytes");
    chmod(in_folder("rag.db"), 0600);
    assert_null(rag_open(folder, 1, &e));
    assert_int_equal(e.code, ERR_IO);
    assert_non_null(strstr(e.msg, "rag.db: is damaged"));
    remove(in_folder("rag.db"));
    mkdir(in_folder("rag.db"), 0700);
    assert_null(rag_open(folder, 1, &e));
    assert_non_null(strstr(e.msg, "is no regular file"));
}

/* A search of many passages ends at its deadline, or when its client has left. */
static void test_search_stops(void **state)
{
    enum { WORDS = 70000, BYTES = 14 };
    char *text = malloc(WORDS * BYTES + 1);
    const atomic_int gone = 1;
    struct rag_hits h;
    (void)state;
    assert_non_null(text);
    for (int i = 0; i < WORDS; i++)
        memcpy(text + i * BYTES, "common words\n\n", BYTES + 1);
    struct rag_store *r = rag_open(folder, 1, &e);
    assert_int_equal(add(r, "", "c", "large", text, &none, NULL), 0);
    rag_set_time(r, 1e-9);
    assert_int_equal(search_in(r, "", "c", "common", &h), -1);
    assert_int_equal(e.code, ERR_CANCELLED);
    assert_non_null(strstr(e.msg, "took too long"));
    rag_set_time(r, 0);
    rag_set_cancel(r, &gone);
    assert_int_equal(search_in(r, "", "c", "common", &h), -1);
    assert_non_null(strstr(e.msg, "was cancelled"));
    rag_set_cancel(r, NULL);
    assert_int_equal(search_in(r, "", "c", "common", &h), 0);
    assert_int_equal(h.n, 5);
    rag_hits_release(&h);
    rag_close(r);
    free(text);
}

/* ---- vectors ---- */

enum { DIM = 70 };
static float vector_of(int chunk, int i) { return (float)((chunk * 131 + i * 71 + chunk * i * 29) % 97) - 48; }

static void make_vector(int chunk, float *v)
{
    double sum = 0;
    for (int i = 0; i < DIM; i++) {
        v[i] = vector_of(chunk, i);
        sum += (double)v[i] * (double)v[i];
    }
    for (int i = 0; i < DIM; i++)
        v[i] = (float)(v[i] / sqrt(sum));
}

static double product(const float *a, const float *b)
{
    double sum = 0;
    for (int i = 0; i < DIM; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

/* Store vectors for every chunk without any: one vector, the same for the chunk and for each of its
 * parts.  Returns the number of chunks. */
enum { TEXTS = 2 * RAG_CHUNK_TEXTS };
static int put_all(struct rag_store *r, const char *model)
{
    struct rag_pending list[TEXTS];
    float vectors[TEXTS * DIM];
    int64_t after = 0;
    int n, all = 0;
    do {
        assert_int_equal(rag_pending(r, model, DIM, &after, list, TEXTS, &n, &e), 0);
        for (int k = 0; k < n; k++) {
            make_vector((int)list[k].chunk, vectors + k * DIM);
            all += list[k].part == 0;
        }
        if (n)
            assert_int_equal(rag_put_vectors(r, model, list, n, vectors, DIM, &e), 0);
        rag_pending_release(list, n);
    } while (n);
    return all;
}

static const int64_t both[] = { 1, 2 };

/* With the vector of a chunk as the query, this chunk is the nearest.  Similarities are cosines, up
 * to the rounding of vectors to 8 bits. */
static void check_nearest(struct rag_vectors *v, struct rag_store *r, int target)
{
    const int64_t range[] = { 5, 9 };
    struct near out[50];
    float q[DIM], x[DIM];
    double mean, deviation;
    make_vector(target, q);
    assert_int_equal(rag_nearest(v, r, "m", q, DIM, both, 2, NULL, 0, out, 50, &mean, &deviation, &e), 40);
    assert_int_equal(out[0].chunk, target);
    for (int i = 0; i < 40; i++) {
        make_vector((int)out[i].chunk, x);
        assert_true(fabs(product(x, q) - (double)out[i].similarity) < 0.02);
        assert_true(i == 0 || out[i].similarity <= out[i - 1].similarity);
    }
    assert_int_equal(rag_nearest(v, r, "m", q, DIM, both, 2, range, 1, out, 3, &mean, &deviation, &e), 3);
    for (int i = 0; i < 3; i++)
        assert_true(out[i].chunk >= 5 && out[i].chunk <= 9);
}

/* The copies hold all vectors, or those of whole chunks, or none from one search to the next. */
static void test_vectors(void **state)
{
    enum { FEW = 40 * (128 + 12) * 2 };
    struct rag_vectors *v = rag_vectors_open(kernels_pick(NULL, &e), 1 << 20, &e),
                       *small[] = { rag_vectors_open(kernels_pick(NULL, &e), FEW, &e),
                                    rag_vectors_open(kernels_pick(NULL, &e), 0, &e) };
    struct rag_totals t;
    struct near out[50];
    struct rag_hits h;
    char ids[40][RAG_ID];
    float q[DIM];
    double mean, deviation;
    (void)state;
    struct rag_store *r = rag_open(folder, 1, &e), *r2 = rag_open(folder, 1, &e);
    for (int i = 0; i < 40; i++) {
        char text[40];
        sprintf(text, i == 17 ? "common special" : "common text %d", i);
        assert_int_equal(add(r, "", i % 2 ? "odd" : "even", "n", text, &none, ids[i]), 0);
    }
    assert_int_equal(put_all(r, "m"), 40);
    assert_int_equal(put_all(r, "m"), 0);
    assert_int_equal(rag_totals(r, "", "m", &t, &e), 0);
    assert_int_equal(t.vectors, 40);
    for (int target = 1; target <= 40; target++)
        check_nearest(v, target & 1 ? r : r2, target);
    for (int i = 0; i < 2; i++)
        for (int target = 1; target <= 40; target++)
            check_nearest(small[i], target & 1 ? r : r2, target);
    /* a hybrid search: the word and the vector both point to the same passage */
    make_vector(18, q);
    struct rag_query query = { .owner = "", .text = "special", .size = 7, .top_k = 5, .model = "m", .vector = q,
                               .n_vector = DIM, .vectors = v };
    assert_int_equal(rag_search(r, &query, &h, &e), 0);
    assert_int_equal(h.mode, RAG_HYBRID);
    assert_string_equal(h.hit[0].document, ids[17]);
    assert_true(!isnan(h.hit[0].bm25) && h.hit[0].similarity > 0.97 && h.hit[0].score > 0.9);
    rag_hits_release(&h);
    /* some vector is always the nearest, but if it is not near the search must not return it */
    query.text = "zebra";
    query.size = 5;
    for (int i = 0; i < DIM; i++)
        q[i] = i % 2 ? 0.1f : -0.1f;
    assert_int_equal(rag_search(r, &query, &h, &e), 0);
    for (int i = 0; i < h.n; i++)
        assert_true(h.hit[i].similarity > 0.2);
    rag_hits_release(&h);
    /* deleting a document also removes its vectors from the copies in memory; vectors of another
     * size count as missing */
    assert_int_equal(rag_delete(r2, "", ids[17], &e), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(rag_nearest(i ? small[i - 1] : v, r, "m", q, DIM, both, 2, NULL, 0, out, 50, &mean, &deviation,
                                     &e), 39);
    assert_int_equal(rag_totals(r, "", "m", &t, &e), 0);
    assert_int_equal(t.vectors, 39);
    assert_int_equal(rag_nearest(v, r, "other", q, DIM, both, 2, NULL, 0, out, 50, &mean, &deviation, &e), 0);
    struct rag_pending list[TEXTS];
    int64_t after = 0;
    int n;
    assert_int_equal(rag_pending(r, "m", DIM + 1, &after, list, TEXTS, &n, &e), 0);
    assert_int_equal(n, 10);                    /* five chunks of one part each; a sixth might need
                                                 * eight texts more */
    rag_pending_release(list, n);
    rag_vectors_close(small[0]);
    rag_vectors_close(small[1]);
    rag_vectors_close(v);
    rag_close(r2);
    rag_close(r);
}

static const char three[] = "The first paragraph is about apples, which grow on trees in gardens.\n\n"
                            "The second paragraph is about boats, which float on rivers and lakes.\n\n"
                            "The third paragraph is about clocks, which hang on walls and in towers.";

/* A chunk has a vector of its own and one per paragraph.  Its similarity is the mean of that of its
 * own vector and that of the nearest paragraph. */
static void test_parts_of_a_chunk(void **state)
{
    struct rag_vectors *v = rag_vectors_open(kernels_pick(NULL, &e), 1 << 20, &e);
    struct rag_pending list[TEXTS];
    float vectors[TEXTS * DIM], q[DIM];
    struct near out[4];
    double mean, deviation;
    int64_t after = 0;
    int n;
    (void)state;
    struct rag_store *r = rag_open(folder, 1, &e);
    assert_int_equal(add(r, "", "c", "fruit.txt", three, &none, NULL), 0);
    assert_int_equal(add(r, "", "c", "b", "other", &none, NULL), 0);
    assert_int_equal(rag_pending(r, "m", DIM, &after, list, TEXTS, &n, &e), 0);
    assert_int_equal(n, 6);
    assert_memory_equal(list[0].text, "fruit\nThe first", 15);
    for (int i = 0; i < 4; i++)
        assert_true(list[i].part == i && list[i].chunk == 1 && (i == 0 || strncmp(list[i].text, "The ", 4) == 0));
    assert_non_null(strstr(list[2].text, "boats"));
    assert_null(strstr(list[2].text, "clocks"));
    for (int i = 0; i < n; i++)
        make_vector(10 + i, vectors + i * DIM);
    assert_int_equal(rag_put_vectors(r, "m", list, n, vectors, DIM, &e), 0);
    rag_pending_release(list, n);
    for (int part = 1; part < 4; part++) {
        make_vector(10 + part, q);
        assert_int_equal(rag_nearest(v, r, "m", q, DIM, (int64_t[]){ 1 }, 1, NULL, 0, out, 4, &mean, &deviation, &e), 2);
        assert_int_equal(out[0].chunk, 1);
        assert_true(fabs(0.3 * product(q, vectors) + 0.7 - (double)out[0].similarity) < 0.02);
        assert_true(fabs(mean - ((double)out[0].similarity + (double)out[1].similarity) / 2) < 1e-6);
    }
    rag_vectors_close(v);
    rag_close(r);
}

/* With copies of only the vectors of whole chunks a search finds the same as with copies of all
 * vectors.  It computes the mean and the deviation from a sample. */
static void test_few_copies(void **state)
{
    enum { CHUNKS = 700, MOST = 60, PENDING = 4 * RAG_CHUNK_TEXTS };
    struct rag_vectors *all = rag_vectors_open(kernels_pick(NULL, &e), 1 << 24, &e),
                       *wholes = rag_vectors_open(kernels_pick(NULL, &e), CHUNKS * (128 + 12) * 2, &e);
    struct near a[MOST], b[MOST];
    float vectors[PENDING * DIM], q[DIM], x[DIM];
    double mean[2], deviation[2];
    int64_t after = 0;
    int n;
    (void)state;
    struct rag_store *r = rag_open(folder, 1, &e);
    for (int i = 0; i < CHUNKS; i++) {
        char text[400];
        snprintf(text, sizeof text, "%s %d", three, i);
        assert_int_equal(add(r, "", "c", "n", text, &none, NULL), 0);
    }
    do {
        struct rag_pending list[PENDING];
        assert_int_equal(rag_pending(r, "m", DIM, &after, list, PENDING, &n, &e), 0);
        for (int k = 0; k < n; k++) {               /* parts are near their chunk, not the same */
            make_vector((int)list[k].chunk, vectors + k * DIM);
            make_vector((int)list[k].chunk * 7 + list[k].part, x);
            for (int i = 0; i < DIM && list[k].part; i++)
                vectors[k * DIM + i] = 0.9f * vectors[k * DIM + i] + 0.1f * x[i];
        }
        if (n)
            assert_int_equal(rag_put_vectors(r, "m", list, n, vectors, DIM, &e), 0);
        rag_pending_release(list, n);
    } while (n);
    for (int target = 1; target <= CHUNKS; target += 23) {
        make_vector(target * 3 + 1, q);
        assert_int_equal(rag_nearest(all, r, "m", q, DIM, (int64_t[]){ 1 }, 1, NULL, 0, a, MOST, &mean[0],
                                     &deviation[0], &e), MOST);
        assert_int_equal(rag_nearest(wholes, r, "m", q, DIM, (int64_t[]){ 1 }, 1, NULL, 0, b, MOST, &mean[1],
                                     &deviation[1], &e), MOST);
        for (int i = 0; i < 10; i++)
            assert_true(a[i].chunk == b[i].chunk && fabsf(a[i].similarity - b[i].similarity) < 1e-6f);
        assert_true(fabs(mean[0] - mean[1]) < 0.3 * deviation[0] && fabs(deviation[1] / deviation[0] - 1) < 0.3);
    }
    rag_vectors_close(wholes);
    rag_vectors_close(all);
    rag_close(r);
}

/* The parts of a passage follow each other, neither begin nor end with a blank, and contain
 * everything but blanks. */
static void passage_parts_leave_out_only_blanks(void **state)
{
    char text[3001];
    struct passage_part part[PASSAGE_PARTS];
    (void)state;
    for (int round = 0; round < 2000; round++) {
        const size_t size = (size_t)(rand() % 3000), rare = 2 + (size_t)rand() % 200;
        size_t at = 0;
        for (size_t i = 0; i < size; i++)
            text[i] = (size_t)rand() % rare == 0 ? "\n \n."[rand() % 4] : (char)('a' + rand() % 26);
        const int n = passage_parts(text, size, part);
        assert_true(n <= PASSAGE_PARTS);
        for (int i = 0; i < n; i++) {
            for (; text + at < part[i].text; at++)
                assert_true(strchr(" \n", text[at]) != NULL);
            assert_true(part[i].text == text + at && part[i].size > 0);
            at += part[i].size;
            assert_true(!strchr(" \n", part[i].text[0]) && !strchr(" \n", text[at - 1]));
        }
        for (; at < size; at++)
            assert_true(strchr(" \n", text[at]) != NULL);
    }
    assert_int_equal(passage_parts(three, sizeof three - 1, part), 3);
}

static void run_sql(const char *sql)
{
    sqlite3 *db;
    assert_int_equal(sqlite3_open(in_folder("rag.db"), &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

/* The store opens a file of version 2, whose vectors have no parts: the documents are kept, the
 * vectors must be computed again. */
static void test_version_2(void **state)
{
    struct rag_totals t;
    (void)state;
    struct rag_store *r = rag_open(folder, 1, &e);
    assert_int_equal(add(r, "", "c", "a", three, &none, NULL), 0);
    rag_close(r);
    run_sql("DROP TABLE vectors; CREATE TABLE vectors (model INTEGER NOT NULL, collection INTEGER NOT NULL, number INTEGER NOT NULL,"
            " chunk INTEGER NOT NULL, scale REAL NOT NULL, data BLOB NOT NULL, PRIMARY KEY (model, collection, number)) WITHOUT ROWID;"
            "CREATE UNIQUE INDEX vectors_of ON vectors (chunk, model); INSERT INTO models (name, size) VALUES ('m', 70);"
            "INSERT INTO vectors VALUES (1, 1, 1, 1, 1.0, zeroblob(70)); PRAGMA user_version = 2;");
    r = rag_open(folder, 1, &e);
    assert_non_null(r);
    assert_int_equal(rag_totals(r, "", "m", &t, &e), 0);
    assert_true(t.documents == 1 && t.vectors == 0);
    assert_int_equal(put_all(r, "m"), 1);
    assert_int_equal(rag_totals(r, "", "m", &t, &e), 0);
    assert_int_equal(t.vectors, 1);
    rag_close(r);
}

/* ---- the context ---- */

static void test_context(void **state)
{
    const struct token_counter counter = { 0 };
    struct rag_hits h;
    struct rag_context c;
    (void)state;
    struct rag_store *r = rag_open(folder, 1, &e);
    assert_int_equal(add(r, "", "c", "a\nb", "# H\n\nred words that go on for a while, so that they must be cut.",
                         &none, NULL), 0);
    assert_int_equal(add(r, "", "c", "second", "red", &none, NULL), 0);
    assert_int_equal(search_in(r, "", NULL, "red words", &h), 0);
    assert_int_equal(h.n, 2);
    for (size_t max = 1; max < 60; max++) {
        assert_int_equal(rag_context(&h, max, &counter, &c, &e), 0);
        assert_true(c.tokens <= max);
        assert_int_equal(c.tokens, token_count(&counter, c.text, c.size));
        assert_true(max < 20 || c.n > 0);
        rag_context_release(&c);
    }
    assert_int_equal(rag_context(&h, 1000, &counter, &c, &e), 0);
    assert_int_equal(c.n, 2);
    assert_string_equal(c.text, "[1] a b, H: H\n\nred words that go on for a while, so that they must be cut.\n\n[2] second: red");
    rag_context_release(&c);
    rag_hits_release(&h);
    rag_close(r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chunks_of_random_texts), cmocka_unit_test(test_chunks_never_cut_characters),
        cmocka_unit_test(test_chunks_headings_and_pages),
        cmocka_unit_test(test_chunks_begin_at_sentences_of_indented_lines), cmocka_unit_test(test_chunks_overlap),
        cmocka_unit_test(test_chunks_of_a_line), cmocka_unit_test(words_are_counted_as_the_tokenizer_does),
        cmocka_unit_test(queries_become_quoted_words),
        cmocka_unit_test(ideographs_become_words_of_their_own), cmocka_unit_test(each_format_gives_the_expected_text),
        cmocka_unit_test(office_files_give_text_and_never_crash), cmocka_unit_test(a_pdf_bomb_ends_at_a_limit),
        cmocka_unit_test(large_pdfs_keep_all_pages_in_order),
        IN_FOLDER(test_store),
        IN_FOLDER(test_store_filters), IN_FOLDER(test_store_quota), IN_FOLDER(test_store_damaged),
        IN_FOLDER(test_search_stops), IN_FOLDER(test_vectors), IN_FOLDER(test_parts_of_a_chunk),
        IN_FOLDER(test_few_copies),
        IN_FOLDER(test_version_2),
        cmocka_unit_test(passage_parts_leave_out_only_blanks),
        IN_FOLDER(test_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
