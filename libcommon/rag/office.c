/* office.c - the text of docx (ISO/IEC 29500), odt (ISO/IEC 26300) and epub (EPUB 3.3). */
#include "libcommon/rag/office.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"
#include "libcommon/rag/zip.h"

/* ---- XML: a stream of tags and texts ---- */

struct xml { const char *s; size_t size, at; };
struct xml_tag { const char *name; size_t name_size; const char *attributes; size_t attributes_size; int closing,
                 empty; };

/* The next tag; the text before it goes to out, if that is not NULL.  0: the end. */
static int next_tag(struct xml *x, struct text_build *out, struct xml_tag *t)
{
    int n;
    while (x->at < x->size) {
        const char *s = x->s + x->at;
        const size_t left = x->size - x->at;
        size_t length;
        if (*s != '<') {
            const uint32_t entity = *s == '&' ? html_entity(s, left, &length) : 0;
            const uint32_t c = entity ? entity : utf8_next(s, left, &n);
            x->at += entity ? length : (size_t)n;
            if (out)
                build_char(out, c == '\n' || c == '\r' || c == '\t' ? ' ' : c);
            continue;
        }
        if (left >= 4 && memcmp(s, "<!--", 4) == 0) {
            const char *end = memmem(s, left, "-->", 3);
            x->at = end ? (size_t)(end - x->s) + 3 : x->size;
            continue;
        }
        const char *end = memchr(s, '>', left);
        if (!end)
            return 0;
        x->at = (size_t)(end - x->s) + 1;
        *t = (struct xml_tag){ .closing = s[1] == '/', .empty = end[-1] == '/' };
        t->name = s + 1 + t->closing;
        while (t->name + t->name_size < end && !strchr(" \t\r\n/", t->name[t->name_size]))
            t->name_size++;
        t->attributes = t->name + t->name_size;
        t->attributes_size = (size_t)(end - t->attributes);
        return 1;
    }
    return 0;
}

static int is(const struct xml_tag *t, const char *name)
{
    return strlen(name) == t->name_size && memcmp(t->name, name, t->name_size) == 0;
}

/* The value of an attribute, borrowed; NULL: there is none. */
static const char *attribute(const struct xml_tag *t, const char *name, size_t *size)
{
    const size_t n = strlen(name);
    const char *end = t->attributes + t->attributes_size, *p = t->attributes;
    while ((p = memmem(p, (size_t)(end - p), name, n))) {
        const char *value = p + n;
        if (p > t->attributes && strchr(" \t\r\n", p[-1]) && end - value > 2 && value[0] == '=' &&
            (value[1] == '"' || value[1] == '\'')) {
            const char *close = memchr(value + 2, value[1], (size_t)(end - value - 2));
            *size = close ? (size_t)(close - value - 2) : 0;
            return close ? value + 2 : NULL;
        }
        p = value;
    }
    return NULL;
}

static void heading(struct text_build *out, int level)
{
    build_break(out, 2);
    for (int i = 0; i < level && i < 6; i++)
        build_add(out, "#", 1);
    build_add(out, " ", 1);
}

/* ---- docx ---- */

/* The level of a paragraph's style "Heading2" or "Title"; 0: it is no heading. */
static int style_level(const struct xml_tag *t)
{
    size_t n;
    const char *style = attribute(t, "w:val", &n);
    if (style && n >= 8 && memcmp(style, "Heading", 7) == 0 && style[7] >= '1' && style[7] <= '6')
        return style[7] - '0';
    return style && n == 5 && memcmp(style, "Title", 5) == 0;
}

static void docx_text(const char *s, size_t size, struct text_build *out)
{
    struct xml x = { s, size, 0 };
    struct xml_tag t;
    int in_text = 0;
    while (out->state == TEXT_GOOD && next_tag(&x, in_text ? out : NULL, &t)) {
        if (is(&t, "w:t"))
            in_text = !t.closing && !t.empty;
        else if (is(&t, "w:p") && (t.closing || t.empty))
            build_break(out, 2);
        else if (is(&t, "w:pStyle") && style_level(&t))
            heading(out, style_level(&t));
        else if (is(&t, "w:numPr") && !t.closing)
            build_add(out, "- ", 2);
        else if (is(&t, "w:br") || is(&t, "w:cr"))
            build_break(out, 1);
        else if (is(&t, "w:tab"))
            build_blank(out);
        else if (is(&t, "w:tc") && t.closing)
            build_add(out, " | ", 3);
    }
    build_break(out, 1);
}

/* ---- odt ---- */

static void odt_text(const char *s, size_t size, struct text_build *out)
{
    struct xml x = { s, size, 0 };
    struct xml_tag t;
    int depth = 0; /* depth within paragraphs and headings; text outside of them is left out */
    size_t n;
    while (out->state == TEXT_GOOD && next_tag(&x, depth > 0 ? out : NULL, &t)) {
        if (is(&t, "text:h") && !t.closing) {
            const char *level = attribute(&t, "text:outline-level", &n);
            heading(out, level && n == 1 && *level >= '1' && *level <= '6' ? *level - '0' : 1);
            depth += !t.empty;
        } else if ((is(&t, "text:p") || is(&t, "text:h")) && (t.closing || t.empty)) {
            depth -= depth > 0 && t.closing;
            build_break(out, 2);
        } else if (is(&t, "text:p")) {
            depth++;
        } else if (is(&t, "text:list-item") && !t.closing) {
            build_add(out, "- ", 2);
        } else if (is(&t, "text:line-break")) {
            build_break(out, 1);
        } else if (is(&t, "text:tab") || is(&t, "text:s")) {
            build_blank(out);
        } else if (is(&t, "table:table-cell") && t.closing) {
            build_add(out, " | ", 3);
        }
    }
    build_break(out, 1);
}

/* ---- epub ---- */

/* EPUB_WORK: most bytes that are searched and unpacked; the limit is needed because a file may name
 * the same part many times. */
enum { EPUB_PATH = 1024, EPUB_WORK = 512 << 20 };

/* Make the name of a ZIP member from a link in the package file.  base: the folder of the package
 * file.  0: the name is too long. */
static size_t member_name(const char *base, size_t base_size, const char *link, size_t n, char out[EPUB_PATH])
{
    size_t size = base_size;
    if (base_size + n >= EPUB_PATH)
        return 0;
    memcpy(out, base, base_size);
    for (size_t i = 0; i < n && link[i] != '#'; i++) {
        unsigned v = 0;
        if (link[i] == '%' && n - i > 2) {
            for (int k = 1; k <= 2; k++)
                v = v * 16 + (unsigned)(link[i + (size_t)k] <= '9' ? link[i + (size_t)k] - '0'
                                                                   : (link[i + (size_t)k] | 32) - 'a' + 10) % 16;
            i += 2;
        }
        out[size++] = v ? (char)v : link[i];
    }
    return size;
}

/* The link of the manifest's item with this id; NULL: none. */
static const char *item_link(const char *s, size_t size, const char *id, size_t id_size, size_t *n)
{
    struct xml x = { s, size, 0 };
    struct xml_tag t;
    size_t m;
    while (next_tag(&x, NULL, &t)) {
        const char *own = is(&t, "item") || is(&t, "opf:item") ? attribute(&t, "id", &m) : NULL;
        if (own && m == id_size && memcmp(own, id, m) == 0)
            return attribute(&t, "href", n);
    }
    return NULL;
}

/* The chapters in reading order, as the package file names them. */
static int chapters(const struct zip *z, const struct text_build *package, const char *base, size_t base_size,
                    struct text_build *out, struct err *e)
{
    struct xml x = { package->data, package->size, 0 };
    struct xml_tag t;
    char name[EPUB_PATH];
    size_t n, m, work = 0;
    while (next_tag(&x, NULL, &t)) {
        const char *id = is(&t, "itemref") || is(&t, "opf:itemref") ? attribute(&t, "idref", &n) : NULL;
        const char *link = id ? item_link(package->data, package->size, id, n, &m) : NULL;
        const size_t size = link ? member_name(base, base_size, link, m, name) : 0;
        const struct zip_member *chapter = size ? zip_find(z, name, size) : NULL;
        struct text_build html = { .budget = out->budget };
        work += id ? package->size : 0;
        if (work > EPUB_WORK)
            return err_set(e, ERR_LIMIT, "the document names too many chapters for its size");
        if (!chapter)
            continue;
        if (zip_inflate(chapter, OFFICE_PART_MAX, &html, e)) {
            build_release(&html);
            return -1;
        }
        work += html.size;
        html_text(html.data ? html.data : "", html.size, 0, out);
        build_break(out, 2);
        build_release(&html);
        if (out->state != TEXT_GOOD)
            return build_end(out, e);
    }
    return 0;
}

static int inflate_named(const struct zip *z, const char *name, size_t size, struct text_build *out, struct err *e)
{
    const struct zip_member *m = zip_find(z, name, size);
    return m ? zip_inflate(m, OFFICE_PART_MAX, out, e)
             : err_set(e, ERR_FORMAT, "the document has no part %.*s", (int)(size < 200 ? size : 200), name);
}

static int epub_text(const struct zip *z, struct text_build *out, struct err *e)
{
    static const char container[] = "META-INF/container.xml";
    struct text_build first = { .budget = out->budget }, package = { .budget = out->budget };
    struct xml_tag t;
    const char *path = NULL;
    size_t n = 0;
    int rc = inflate_named(z, container, sizeof container - 1, &first, e);
    struct xml x = { first.data, first.size, 0 };
    while (rc == 0 && !path && next_tag(&x, NULL, &t))
        path = is(&t, "rootfile") ? attribute(&t, "full-path", &n) : NULL;
    if (rc == 0 && (!path || n >= EPUB_PATH))
        rc = err_set(e, ERR_FORMAT, "the document names no package file");
    if (rc == 0 && (rc = inflate_named(z, path, n, &package, e)) == 0) {
        while (n > 0 && path[n - 1] != '/')
            n--;
        rc = chapters(z, &package, path, n, out, e);
    }
    build_release(&first);
    build_release(&package);
    return rc;
}

/* ---- all ---- */

int office_text(enum rag_type type, const void *data, size_t size, struct text_build *out, struct err *e)
{
    const char *part = type == RAG_DOCX ? "word/document.xml" : "content.xml";
    struct text_build xml = { .budget = out->budget };
    struct zip z;
    if (zip_open(&z, data, size, e))
        return -1;
    int rc = type == RAG_EPUB ? epub_text(&z, out, e) : inflate_named(&z, part, strlen(part), &xml, e);
    if (rc == 0 && type == RAG_DOCX)
        docx_text(xml.data ? xml.data : "", xml.size, out);
    else if (rc == 0 && type == RAG_ODT)
        odt_text(xml.data ? xml.data : "", xml.size, out);
    build_release(&xml);
    zip_release(&z);
    return rc;
}
