/* multipart.c - parse multipart/form-data. */
#include "libcommon/http/multipart.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { BOUNDARY = 70 };                 /* bytes, RFC 2046 section 5.1.1 */

static int malformed(struct problem *pr, const char *why)
{
    return problem_set(pr, 400, NULL, "invalid_multipart", "the form is malformed: %s", why);
}

/* ---- parameters of a header: ; name=token or ; name="text" ---- */

static int is_token(char c)
{
    return (unsigned char)c > ' ' && (unsigned char)c < 0x7f && !strchr("()<>@,;:\\\"/[]?={}", c);
}

struct parameters { const char *s, *end; };

static void skip_blanks(struct parameters *p)
{
    while (p->s < p->end && (*p->s == ' ' || *p->s == '\t'))
        p->s++;
}

/* Read the next parameter: its name (n bytes) and the bytes of its value, quoted or not.  1: it was
 * read; 0: there are no more; -1: malformed. */
static int next_parameter(struct parameters *p, const char **name, size_t *n, const char **value, size_t *size)
{
    skip_blanks(p);
    if (p->s == p->end)
        return 0;
    if (*p->s++ != ';')
        return -1;
    skip_blanks(p);
    if (p->s == p->end)
        return 0;                           /* a last semicolon */
    *name = p->s;
    while (p->s < p->end && is_token(*p->s))
        p->s++;
    *n = (size_t)(p->s - *name);
    if (*n == 0 || p->s == p->end || *p->s++ != '=')
        return -1;
    *value = p->s;
    if (p->s < p->end && *p->s == '"') {
        *value = ++p->s;
        while (p->s < p->end && *p->s != '"')
            p->s += *p->s == '\\' && p->end - p->s > 1 && (p->s[1] == '"' || p->s[1] == '\\') ? 2 : 1;
        if (p->s >= p->end)
            return -1;
        *size = (size_t)(p->s++ - *value);
        return 1;
    }
    while (p->s < p->end && (is_token(*p->s) || strchr("()<>@:/[]?=", *p->s)))
        p->s++;
    *size = (size_t)(p->s - *value);
    return *size ? 1 : -1;
}

static int is(const char *s, size_t n, const char *word) { return strlen(word) == n && strncasecmp(s, word, n) == 0; }

static int boundary_of(const char *type, char out[BOUNDARY + 1], struct problem *pr)
{
    static const char wanted[] = "multipart/form-data";
    struct parameters p = { type + sizeof wanted - 1, type + (type ? strlen(type) : 0) };
    const char *name, *value;
    size_t n, size;
    int rc;
    if (!type || strncasecmp(type, wanted, sizeof wanted - 1) != 0 || is_token(type[sizeof wanted - 1]))
        return problem_set(pr, 415, NULL, "unsupported_media_type",
                           "Content-Type '%.80s', expected multipart/form-data", type ? type : "");
    *out = '\0';
    while ((rc = next_parameter(&p, &name, &n, &value, &size)) > 0)
        if (is(name, n, "boundary")) {
            if (*out || size < 1 || size > BOUNDARY || memchr(value, '\\', size) || value[size - 1] == ' ')
                return malformed(pr, "the boundary in Content-Type is not one of 1 to 70 characters");
            memcpy(out, value, size);
            out[size] = '\0';
        }
    return rc < 0 || !*out ? malformed(pr, "Content-Type has no boundary") : 0;
}

/* ---- a part ---- */

static int hex(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

/* Decode a quoted value: \" and \\ (RFC 7578), and %22, %0D and %0A, as browsers write them; with
 * `all`, every %XX.  NULL without memory. */
static char *unquote(const char *s, size_t n, int all)
{
    char *out = malloc(n + 1), *to = out;
    for (size_t i = 0; out && i < n; i++) {
        const int byte = s[i] == '%' && n - i > 2 && hex(s[i + 1]) >= 0 && hex(s[i + 2]) >= 0
                             ? hex(s[i + 1]) * 16 + hex(s[i + 2]) : -1;
        if (byte > 0 && (all || byte == '"' || byte == '\r' || byte == '\n')) {
            *to++ = (char)byte;
            i += 2;
        } else {
            i += s[i] == '\\' && n - i > 1 && (s[i + 1] == '"' || s[i + 1] == '\\');
            *to++ = s[i];
        }
    }
    if (out)
        *to = '\0';
    return out;
}

static int set_text(char **at, const char *s, size_t n, int all, struct problem *pr)
{
    if (*at)
        return malformed(pr, "a part has two names");
    return (*at = unquote(s, n, all)) ? 0 : problem_nomem(pr);
}

/* Content-Disposition: form-data; name="..."; filename="...".  filename*, which RFC 7578 forbids
 * and some clients send, wins. */
static int read_disposition(const char *s, const char *end, struct multipart_part *part, struct problem *pr)
{
    static const char kind[] = "form-data", utf8[] = "UTF-8''";
    struct parameters p = { s + sizeof kind - 1, end };
    const char *name, *value;
    size_t n, size;
    int rc;
    if ((size_t)(end - s) < sizeof kind - 1 || strncasecmp(s, kind, sizeof kind - 1) != 0)
        return malformed(pr, "a part's Content-Disposition is not form-data");
    while ((rc = next_parameter(&p, &name, &n, &value, &size)) > 0) {
        if (memchr(value, 0, size))
            return malformed(pr, "a zero byte in a name");
        if (is(name, n, "name") && set_text(&part->name, value, size, 0, pr))
            return -1;
        if (is(name, n, "filename*") && size >= sizeof utf8 - 1 && strncasecmp(value, utf8, sizeof utf8 - 1) == 0) {
            free(part->filename);
            part->filename = NULL;
            if (set_text(&part->filename, value + sizeof utf8 - 1, size - sizeof utf8 + 1, 1, pr))
                return -1;
        } else if (is(name, n, "filename") && !part->filename && set_text(&part->filename, value, size, 0, pr)) {
            return -1;
        }
    }
    return rc < 0 ? malformed(pr, "a part's Content-Disposition") : 0;
}

static int read_line(const char *s, const char *end, struct multipart_part *part, int *disposed, struct problem *pr)
{
    const char *colon = memchr(s, ':', (size_t)(end - s)), *value = colon ? colon + 1 : end;
    for (const char *p = s; p < (colon ? colon : end); p++)
        if (!is_token(*p))
            return malformed(pr, "a header of a part");
    if (!colon || colon == s || memchr(s, '\n', (size_t)(end - s)) || memchr(s, '\r', (size_t)(end - s)))
        return malformed(pr, "a header of a part");
    while (value < end && (*value == ' ' || *value == '\t'))
        value++;
    const size_t n = (size_t)(colon - s), size = (size_t)(end - value);
    if (is(s, n, "Content-Disposition")) {
        if ((*disposed)++)
            return malformed(pr, "a part has two Content-Dispositions");
        return read_disposition(value, end, part, pr);
    }
    if (is(s, n, "Content-Transfer-Encoding") && !is(value, size, "binary") && !is(value, size, "8bit") &&
        !is(value, size, "7bit"))
        return problem_set(pr, 400, NULL, "invalid_multipart", "Content-Transfer-Encoding '%.*s', expected binary",
                           (int)(size < 40 ? size : 40), value);
    return 0;
}

/* Read the header lines from s[at] on; returns the offset of the data, 0 with *pr. */
static size_t read_head(const char *s, size_t size, size_t at, struct multipart_part *part, struct problem *pr)
{
    int disposed = 0;
    for (const size_t from = at; at - from <= MULTIPART_HEAD;) {
        const char *end = memmem(s + at, size - at, "\r\n", 2);
        if (!end)
            return malformed(pr, "it ends within a header"), 0;
        if (end == s + at) {
            if (!part->name)
                return malformed(pr, "a part has no name"), 0;
            return at + 2;
        }
        if (read_line(s + at, end, part, &disposed, pr))
            return 0;
        at = (size_t)(end - s) + 2;
    }
    return malformed(pr, "a part's header is too long"), 0;
}

/* ---- the body ---- */

/* Continue after the delimiter that ends at s[at].  1: a part begins at *next; 0: it was the last
 * delimiter; -1 with *pr. */
static int behind(const char *s, size_t size, size_t at, size_t *next, struct problem *pr)
{
    const int last = size - at >= 2 && memcmp(s + at, "--", 2) == 0;
    at += last ? 2 : 0;
    while (at < size && (s[at] == ' ' || s[at] == '\t'))
        at++;
    if (size - at >= 2 && memcmp(s + at, "\r\n", 2) == 0)
        at += 2;
    else if (!last || at < size)
        return malformed(pr, at == size ? "its end is missing" : "bytes behind a delimiter");
    for (*next = at; last && at < size; at++)
        if (!strchr(" \t\r\n", s[at]) || !s[at])
            return malformed(pr, "bytes behind the last delimiter");
    return !last;
}

static int parse(const char *s, size_t size, const char *delimiter, struct multipart *m, struct problem *pr)
{
    const size_t n = strlen(delimiter); /* the delimiter includes the CR LF before it, which the first one may lack */
    size_t at = size >= 2 && memcmp(s, "\r\n", 2) == 0 ? 2 : 0;
    int more;
    if (size - at < n - 2 || memcmp(s + at, delimiter + 2, n - 2) != 0)
        return malformed(pr, "it does not begin with its boundary");
    at += n - 2;
    while ((more = behind(s, size, at, &at, pr)) > 0) {
        if (m->n == MULTIPART_PARTS)
            return problem_set(pr, 400, NULL, "invalid_multipart", "the form has more than %d parts", MULTIPART_PARTS);
        struct multipart_part *part = &m->part[m->n++];
        if (!(at = read_head(s, size, at, part, pr)))
            return -1;
        const char *end = memmem(s + at, size - at, delimiter, n);
        if (!end)
            return malformed(pr, "its end is missing");
        part->data = s + at;
        part->size = (size_t)(end - s) - at;
        at = (size_t)(end - s) + n;
    }
    return more;
}

int multipart_parse(const char *content_type, const char *body, size_t size, struct multipart *m, struct problem *pr)
{
    char delimiter[BOUNDARY + 8] = "\r\n--";
    *m = (struct multipart){ 0 };
    if (boundary_of(content_type, delimiter + 4, pr) == 0 &&
        (size ? parse(body, size, delimiter, m, pr) : malformed(pr, "it is empty")) == 0)
        return 0;
    multipart_release(m);
    return -1;
}

void multipart_release(struct multipart *m)
{
    for (int i = 0; i < m->n; i++) {
        free(m->part[i].name);
        free(m->part[i].filename);
    }
    m->n = 0;
}
