/* find.c - find words in titles and messages: FTS5 with the words of index_words.c.
 *
 * Row ids of an owner are neighbours, so a query visits only its owner's rows, the newest first,
 * and stops as soon as enough conversations are found: a frequent word costs no more than a rare
 * one. */
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/base/utf8.h"
#include "libcommon/history/internal.h"

enum {
    MAX_TERMS = 16, MAX_WORDS = 32, MAX_HITS = 100, MATCHES = 3,
    ROWS_VISITED = 20000,               /* most messages that a search visits */
    FIRST_ROWS = 1 << 18,               /* rows of the first statement: see search_pieces */
    BEFORE = 60, SNIPPET = 200,         /* bytes of a snippet, and of its part before the first hit */
    SCANNED = 1 << 20,                  /* bytes of a message in which a place for its snippet is searched */
};

/* A word, or words that follow each other. */
struct term { int first, n, is_prefix; };
struct query {
    struct term term[MAX_TERMS];
    struct word word[MAX_WORDS];
    int n_terms, n_words;
    /* FTS5 expressions: for titles; for messages; and another one for messages if the first finds
     * none ("": there is no other) */
    char titles[MAX_WORDS * 72 + MAX_TERMS * 16], messages[MAX_WORDS * 72 + MAX_TERMS * 16];
    char else_messages[MAX_WORDS * 72 + MAX_TERMS * 16];
};

/* ---- the query ---- */

/* Add the words of text[0..size) as a term; without words it has no effect. */
static int add_term(struct query *q, const char *text, size_t size, struct history_problem *p)
{
    size_t at = 0;
    struct word w;
    struct term t = { .first = q->n_words };
    while (word_next(text, size, &at, &w)) {
        if (q->n_words == MAX_WORDS)
            return fault_set(p, HISTORY_BAD_VALUE, "q", "q: more than %d words", MAX_WORDS);
        q->word[q->n_words++] = w;
        t.n++;
    }
    if (t.n && q->n_terms == MAX_TERMS)
        return fault_set(p, HISTORY_BAD_VALUE, "q", "q: more than %d words and phrases", MAX_TERMS);
    if (t.n)
        q->term[q->n_terms++] = t;
    return 0;
}

static void write_match(const struct query *q, int n_terms, char *out)
{
    for (int i = 0; i < n_terms; i++) {
        const struct term *t = &q->term[i];
        out = stpcpy(out, i ? " AND \"" : "\"");
        for (int k = 0; k < t->n; k++) {
            if (k)
                *out++ = ' ';
            memcpy(out, q->word[t->first + k].text, (size_t)q->word[t->first + k].n);
            out += q->word[t->first + k].n;
        }
        out = stpcpy(out, t->is_prefix ? "\" *" : "\"");
    }
    *out = '\0';
}

/* Whether the last term is one letter or digit after other terms.  It may be a whole word ("chapter
 * 7") or the beginning of a word that is being typed.  As a prefix it would match nearly every
 * message, and FTS5 would collect all those rows. */
static int ends_in_letter(const struct query *q)
{
    const struct term *t = &q->term[q->n_terms - 1];
    return q->n_terms > 1 && t->is_prefix && t->n == 1 && q->word[t->first].n == 1;
}

static int parse(struct query *q, const char *text, struct history_problem *p)
{
    const size_t size = strlen(text);
    int open = 0;                       /* the text ended inside a word */
    memset(q, 0, sizeof *q);
    if (size > HISTORY_QUERY)
        return fault_set(p, HISTORY_BAD_VALUE, "q", "q: %zu bytes, expected at most %d", size, HISTORY_QUERY);
    if (utf8_valid(text, size) != size)
        return fault_set(p, HISTORY_BAD_VALUE, "q", "q: is not UTF-8");
    for (size_t i = 0; i < size;) {
        const int quoted = text[i] == '"';
        const size_t from = i + (size_t)quoted, n = strcspn(text + from, quoted ? "\"" : " \t\r\n\"");
        if (add_term(q, text + from, n, p))
            return -1;
        i = from + n + (from + n < size && (quoted || text[from + n] != '"'));
        open = !quoted && from + n == size;
    }
    if (!q->n_terms)
        return fault_set(p, HISTORY_BAD_VALUE, "q", "q: has no word to search for");
    struct term *last = &q->term[q->n_terms - 1];
    last->is_prefix = open;
    write_match(q, q->n_terms, q->titles);
    if (ends_in_letter(q)) {
        write_match(q, q->n_terms - 1, q->else_messages);
        last->is_prefix = 0;
        write_match(q, q->n_terms, q->messages);
        last->is_prefix = 1;
    } else {
        write_match(q, q->n_terms, q->messages);
    }
    return 0;
}

/* ---- where a text matches ---- */

struct hit { size_t at, end; };

static int same(const struct word *text, const struct word *want, int is_prefix)
{
    return (is_prefix ? text->n >= want->n : text->n == want->n) &&
           memcmp(text->text, want->text, (size_t)want->n) == 0;
}

/* Does term t end with the last of the n words in `last` (a ring of MAX_WORDS)? */
static int term_ends(const struct query *q, const struct term *t, const struct word *last, int64_t n)
{
    if (n < t->n)
        return 0;
    for (int k = 0; k < t->n; k++)
        if (!same(&last[(n - t->n + k) % MAX_WORDS], &q->word[t->first + k], t->is_prefix && k == t->n - 1))
            return 0;
    return 1;
}

/* Find hits in the text, from the first one to the end of its snippet.  Returns their number. */
static int find_hits(const struct query *q, const char *text, size_t size, struct hit hit[MAX_HITS])
{
    struct word last[MAX_WORDS];
    int n_hits = 0;
    size_t at = 0;
    for (int64_t n = 0; n_hits < MAX_HITS && at < SCANNED && word_next(text, size, &at, &last[n % MAX_WORDS]);) {
        n++;
        if (n_hits && last[(n - 1) % MAX_WORDS].end > hit[0].at + SNIPPET)
            break;
        for (int i = 0; i < q->n_terms; i++) {
            const struct term *t = &q->term[i];
            if (!term_ends(q, t, last, n))
                continue;
            const size_t from = last[(n - t->n) % MAX_WORDS].at;
            if (n_hits && from < hit[n_hits - 1].end)
                hit[n_hits - 1].end = last[(n - 1) % MAX_WORDS].end;
            else
                hit[n_hits++] = (struct hit){ from, last[(n - 1) % MAX_WORDS].end };
            break;
        }
    }
    return n_hits;
}

/* Characters of text as JavaScript counts them: UTF-16 units. */
static int64_t units(const char *text, size_t size)
{
    int64_t n = 0;
    int bytes;
    for (size_t i = 0; i < size; i += (size_t)bytes)
        n += utf8_next(text + i, size - i, &bytes) > 0xFFFF ? 2 : 1;
    return n;
}

/* {"snippet", "ranges"} of a text. */
static json_t *snippet(const struct query *q, const char *text)
{
    struct hit hit[MAX_HITS];
    const size_t size = strlen(text);
    const int n_hits = find_hits(q, text, size, hit);
    size_t from = n_hits && hit[0].at > BEFORE ? hit[0].at - BEFORE : 0,
           to = from + SNIPPET < size ? from + SNIPPET : size;
    while (from && from < size && ((unsigned char)text[from] & 0xC0) == 0x80)
        from++;
    while (to < size && to > from && ((unsigned char)text[to] & 0xC0) == 0x80)
        to--;
    json_t *ranges = json_array();
    for (int i = 0; i < n_hits && hit[i].at < to; i++) {
        const size_t end = hit[i].end < to ? hit[i].end : to;
        const int64_t start = units(text + from, hit[i].at - from);
        json_array_append_new(ranges, json_pack("[I, I]", (json_int_t)start, (json_int_t)(start +
                                                units(text + hit[i].at, end - hit[i].at))));
    }
    return json_pack("{s:s%, s:o}", "snippet", text + from, to - from, "ranges", ranges);
}

/* ---- results ---- */

struct found { int64_t row; json_t *matches; int in_title; };
struct results { struct found *list; int n, limit, more; };

/* The result for this conversation, which is added if it is new; NULL: the list is full. */
static struct found *result_of(struct results *r, int64_t row)
{
    for (int i = 0; i < r->n; i++)
        if (r->list[i].row == row)
            return &r->list[i];
    if (r->n == r->limit) {
        r->more = 1;
        return NULL;
    }
    r->list[r->n] = (struct found){ .row = row, .matches = json_array() };
    return &r->list[r->n++];
}

static int64_t first_row(const struct owner *o) { return o->id << OWNER_SHIFT; }
static int64_t last_row(const struct owner *o) { return (o->id + 1) << OWNER_SHIFT; }

static int search_titles(struct history *h, const struct owner *o, const struct query *q, struct results *r,
                         struct history_problem *p)
{
    int rc;
    sqlite3_stmt *s = sql_bind(h, SQL_TITLE_SEARCH, p, "tiii", q->titles, first_row(o), last_row(o),
                               (int64_t)r->limit + 1);
    while ((rc = s ? sql_step(h, s, p) : -1) == 1) {
        struct found *f = result_of(r, sqlite3_column_int64(s, 0));
        if (f)
            f->in_title = 1;
    }
    return rc;
}

/* Add a matching message to its result. */
static int add_match(struct history *h, const struct query *q, struct found *f, int64_t row, struct history_problem *p)
{
    sqlite3_stmt *s = sql_bind(h, SQL_MESSAGE_BY_ID, p, "i", row);
    const int rc = s ? sql_step(h, s, p) : -1;
    const char *content = rc == 1 ? (const char *)sqlite3_column_text(s, 4) : NULL;
    json_t *match = content ? snippet(q, content) : NULL;
    if (match)
        json_object_update_new(match, json_pack("{s:I, s:s, s:o}", "message_id", (json_int_t)sqlite3_column_int64(s, 1),
                                                "role", message_role_name(sqlite3_column_int(s, 2)), "created_at",
                                                js_time(sqlite3_column_int64(s, 3))));
    if (rc == 1 && (!match || json_array_append_new(f->matches, match) != 0))
        return fault_nomem(p);
    return rc < 0 ? -1 : 0;
}

/* Add the matches among rows from low to high, the newest first; *n: rows visited. */
static int search_rows(struct history *h, const struct query *q, const char *match, int64_t low, int64_t high, int *n,
                       struct results *r, struct history_problem *p)
{
    int rc = 0;
    sqlite3_stmt *s = sql_bind(h, SQL_TEXT_SEARCH, p, "tii", match, low, high);
    while (!r->more && (rc = s ? sql_step(h, s, p) : -1) == 1) {
        const int64_t row = sqlite3_column_int64(s, 0);
        sqlite3_stmt *m = sql_bind(h, SQL_MESSAGE_CONVERSATION, p, "i", row);
        const int known = m ? sql_step(h, m, p) : -1;
        struct found *f = known == 1 ? result_of(r, sqlite3_column_int64(m, 0)) : NULL;
        if (known < 0 || (f && json_array_size(f->matches) < MATCHES && add_match(h, q, f, row, p)))
            return -1;
        if (++*n == ROWS_VISITED)
            r->more = 1;
    }
    return rc < 0 ? -1 : 0;
}

/* Add the matches among the messages.  Returns the number of rows visited, or -1.  FTS5 sees no
 * deadline until it finds a row, so the rows are searched in pieces.  Each is twice as large as the
 * one before, because FTS5 collects all rows of a prefix again for each piece. */
static int search_pieces(struct history *h, const struct owner *o, const struct query *q, const char *match,
                         struct results *r, struct history_problem *p)
{
    const int64_t first = first_row(o);
    int n = 0;
    for (int64_t high = first + o->next, low, rows = FIRST_ROWS; !r->more && high >= first; high = low - 1, rows *= 2) {
        low = high - rows >= first ? high - rows + 1 : first;
        if (sql_go_on(h, p) || search_rows(h, q, match, low, high, &n, r, p))
            return -1;
    }
    return n;
}

static int search_messages(struct history *h, const struct owner *o, const struct query *q, struct results *r,
                           struct history_problem *p)
{
    int n = search_pieces(h, o, q, q->messages, r, p);
    if (n == 0 && q->else_messages[0])
        n = search_pieces(h, o, q, q->else_messages, r, p);
    return n < 0 ? -1 : 0;
}

/* Make the JSON answer of a search from its results. */
static json_t *answer(struct history *h, const char *text, struct results *r, struct history_problem *p)
{
    json_t *list = json_array();
    size_t bytes = 0;
    for (int i = 0; i < r->n; i++) {
        struct conversation_row c;
        struct found *f = &r->list[i];
        if (conversation_by_row(h, f->row, &c, p) ||
            ask_memory(h, bytes += (size_t)conversation_bytes(&c) * 8 + 16384, p) ||
            json_array_append_new(list, json_pack("{s:o, s:b, s:O}", "conversation", conversation_json(&c),
                                                  "title_match", f->in_title, "matches", f->matches)) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    json_t *out = json_pack("{s:s, s:o, s:b}", "query", text, "results", list, "more", r->more);
    if (!out)
        fault_nomem(p);
    return out;
}

static json_t *search(struct history *h, const char *owner, const char *text, int limit, struct history_problem *p)
{
    struct query q;
    struct owner o;
    struct results r = { .limit = limit };
    json_t *out = NULL;
    const int known = parse(&q, text, p) ? -1 : owner_find(h, owner, 0, &o, p);
    if (known < 0)
        return NULL;
    if (!(r.list = calloc((size_t)limit + 1, sizeof *r.list)))
        fault_nomem(p);
    else if (!known || (search_titles(h, &o, &q, &r, p) == 0 && (r.more || search_messages(h, &o, &q, &r, p) == 0)))
        out = answer(h, text, &r, p);
    for (int i = 0; r.list && i < r.n; i++)
        json_decref(r.list[i].matches);
    free(r.list);
    return out;
}

json_t *history_search(struct history *h, const char *owner, const char *query, int limit, struct history_problem *p)
{
    if (sql_begin(h, 0, p))
        return NULL;
    return sql_end_json(h, search(h, owner, query, limit, p), p);
}
