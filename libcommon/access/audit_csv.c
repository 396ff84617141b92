/* audit_csv.c - export the audit log as CSV: collect the columns in a first pass, write the rows in
 * a second. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/access/audit_reader.h"

enum { MAX_COLUMNS = 64 };
struct csv {
    char *column[MAX_COLUMNS]; int n;
    size_t name_size[MAX_COLUMNS];
    struct audit_value cell[MAX_COLUMNS];         /* cells of the current row */
    char *line; size_t room;                /* a copy of the current line, in which cells are terminated */
    int (*write)(void *user, const char *text, size_t size);
    void *user;
    uint64_t rows;
    int failed;
};

/* The index of a column.  Fields mostly come in the order of the columns, so the search begins at
 * `at`. */
static int find_column(const struct csv *c, const struct audit_text *name, int at)
{
    for (int k = 0; k < c->n; k++) {
        const int i = at + k < c->n ? at + k : at + k - c->n;
        if (c->name_size[i] == name->n && memcmp(c->column[i], name->p, name->n) == 0)
            return i;
    }
    return -1;
}

static int add_column(struct csv *c, const char *name, size_t n)
{
    if (!(c->column[c->n] = strndup(name, n))) {
        c->failed = 1;
        return -1;
    }
    c->name_size[c->n++] = n;
    return 0;
}

/* First pass: collect the fields of all lines. */
static int note_columns(void *user, const struct audit_record *r)
{
    struct csv *c = user;
    struct audit_cursor at = { r->line, r->line + r->size };
    struct audit_text key;
    struct audit_value v;
    for (int i = 0; audit_next_field(&at, &key, &v) > 0; i++) {
        /* skip the fields of the chain, and names that our writers never produce */
        if (audit_text_is(&key, "hash") || audit_text_is(&key, "seq") || key.n >= 256 || memchr(key.p, '\0', key.n))
            continue;
        const int found = find_column(c, &key, i < c->n ? i : 0);
        if (found < 0 && c->n < MAX_COLUMNS && add_column(c, key.p, key.n) != 0)
            return 1;
        i = found < 0 ? i : found;
    }
    return 0;
}

/* Can a formula begin at p?  Covers ASCII and the full-width characters that some locales accept
 * (OWASP, "CSV Injection"). */
static int begins_formula(const char *p)
{
    static const char *const signs[] = { "=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20" };
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++)
        if (strncmp(p, signs[i], strlen(signs[i])) == 0)
            return 1;
    return 0;
}

/* Length of the characters at p that a spreadsheet may strip before a text: blanks, no-break space,
 * byte order mark. */
static size_t blank(const char *p)
{
    static const char *const wide[] = { "\u00a0", "\u3000", "\u200b", "\ufeff" };
    for (size_t i = 0; i < sizeof wide / sizeof *wide; i++)
        if (strncmp(p, wide[i], strlen(wide[i])) == 0)
            return strlen(wide[i]);
    return *p == ' ' || (*p >= '\t' && *p <= '\r');
}

/* Does a formula begin at p, after any blanks?  p is the beginning of a cell's text, or follows a
 * character that some spreadsheets take for the separator of cells instead of the comma. */
static int is_formula(const char *p)
{
    for (size_t n; (n = blank(p)); p += n)
        ;
    return begins_formula(p);
}

static int put_cell(struct csv *c, const char *text, int is_string)
{
    static const char separators[] = ";\t\r\n|";
    if (!is_string || (!strpbrk(text, "\",;\t\r\n|") && !blank(text) && !begins_formula(text)))
        return c->write(c->user, text, strlen(text));
    int bad = c->write(c->user, "\"", 1);
    for (const char *p = text, *end; *p && !bad; p = end) {
        const int starts = p == text || strchr(separators, p[-1]) != NULL;
        end = p + strcspn(p, "\";\t\r\n|");
        end += *end != '\0';
        bad = (starts && is_formula(p) && c->write(c->user, "'", 1)) || c->write(c->user, p, (size_t)(end - p)) ||
              (end[-1] == '"' && c->write(c->user, "\"", 1));
    }
    return bad || c->write(c->user, "\"", 1);
}

static int is_plain_number(const struct audit_text *t)
{
    const size_t sign = *t->p == '-', whole = strspn(t->p + sign, "0123456789"), dot = t->p[sign + whole] == '.',
                 part = dot ? strspn(t->p + sign + whole + 1, "0123456789") : 0;
    return whole > 0 && part >= dot && sign + whole + dot + part == t->n;
}

/* Split a line into cells that need no conversion: plain ASCII without escapes, and numbers.  0:
 * the line has others. */
static int plain_cells(struct csv *c, const struct audit_record *r)
{
    if (c->room <= r->size) {
        free(c->line);
        c->room = 2 * r->size + 1;
        if (!(c->line = malloc(c->room))) {
            c->room = 0;
            return 0;
        }
    }
    unsigned char odd = 0;
    for (size_t i = 0; i < r->size; i++) {
        const unsigned char ch = (unsigned char)r->line[i];
        odd |= ch & 0x80;
        odd |= ch == '\\';
        odd |= ch < ' ';
        c->line[i] = (char)ch;
    }
    if (odd)
        return 0;
    struct audit_cursor at = { c->line, c->line + r->size };
    struct audit_text key;
    struct audit_value v;
    memset(c->cell, 0, sizeof c->cell);
    for (int i = 0; audit_next_field(&at, &key, &v) > 0; i++) {
        const int column = find_column(c, &key, i < c->n ? i : 0);
        if (column < 0)
            continue;
        if (audit_text_is(&v.text, "null") && !v.is_string)
            v.text.n = 0;
        else if (!v.is_string && !is_plain_number(&v.text))
            return 0;
        c->cell[column] = v;
        i = column;
    }
    for (int i = 0; i < c->n; i++)
        if (c->cell[i].text.n)
            ((char *)c->cell[i].text.p)[c->cell[i].text.n] = '\0';
    return 1;
}

static int put_plain(struct csv *c)
{
    int bad = 0;
    for (int i = 0; i < c->n && !bad; i++)
        bad = (i && c->write(c->user, ",", 1)) ||
              (c->cell[i].text.n && put_cell(c, c->cell[i].text.p, c->cell[i].is_string));
    return bad;
}

static int put_row(void *user, const struct audit_record *r)
{
    struct csv *c = user;
    int bad = 0;
    if (plain_cells(c, r)) {
        bad = put_plain(c);
    } else {
        json_t *o = json_loadb(r->line, r->size, 0, NULL);
        if (!o)
            return 0;                       /* looked like an entry, but is not JSON: no row */
        for (int i = 0; i < c->n && !bad; i++) {
            json_t *v = json_object_get(o, c->column[i]);
            char *text = json_is_string(v) ? strdup(json_string_value(v)) : v &&
                         !json_is_null(v) ? json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(13)) : strdup("");
            bad = !text || (i && c->write(c->user, ",", 1)) || put_cell(c, text, json_is_string(v));
            free(text);
        }
        json_decref(o);
    }
    c->rows++;
    return c->failed = bad || c->write(c->user, "\r\n", 2);
}

int audit_csv(const char *folder, const struct audit_filter *f, int (*write)(void *user, const char *text, size_t n),
              void *user, uint64_t *rows, struct err *e)
{
    static const char *const usual[] = { "timestamp", "timestamp_unix", "request_id", "method", "path", "status_code",
                                         "latency_ms", "api_key_name", "client_ip", "user_agent", "model_id",
                                         "prompt_tokens", "completion_tokens", "total_tokens", "error_message" };
    struct csv c = { .write = write, .user = user };
    struct audit_filter until = *f;
    struct audit_scan s;
    int rc = -1;
    if (!until.until_ms)
        until.until_ms = audit_now_ms() + 1;    /* leave out lines that are added between the two passes */
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        add_column(&c, usual[i], strlen(usual[i]));
    if (c.failed || audit_scan(folder, &until, note_columns, &c, &s, e) || c.failed) {
        if (c.failed)
            err_nomem(e, "the columns");
        goto done;
    }
    for (int i = 0; i < c.n && !c.failed; i++)
        c.failed = (i && write(user, ",", 1)) || put_cell(&c, c.column[i], 1);
    if (!c.failed && write(user, "\r\n", 2) == 0)
        rc = audit_scan(folder, &until, put_row, &c, &s, e);
    if (rc == 0 && c.failed)
        rc = err_set(e, ERR_IO, "writing the CSV stopped after %" PRIu64 " rows", c.rows);
done:
    for (int i = 0; i < c.n; i++)
        free(c.column[i]);
    free(c.line);
    *rows = c.rows;
    return rc;
}
