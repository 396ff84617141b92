/* audit_report.c - sums of the audit log over time as a page: charts in SVG, and their numbers as
 * tables. */
#include "cmd/audit_report.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cmd/cli.h"
#include "cmd/plot.h"

/* Latencies are counted in buckets whose limits grow by 2^(1/8), 9 %, from LEAST_MS on. */
enum { BINS = 48, BUCKETS = 256, BUCKETS_PER_DOUBLING = 8, MOST_GROUPS = 200 };
#define LEAST_MS 0.1

struct report_sums { uint64_t requests, errors, prompt, completion; double latency_ms; };
struct bin { struct report_sums sums; uint64_t bucket[BUCKETS]; };
struct report_group { char *name; struct report_sums sums; };         /* name: owned; NULL: all other names */
/* text: the text of an entry by which it is grouped; NULL: its status */
struct table { const char *title; size_t text; int n; struct report_group group[MOST_GROUPS + 1]; };

struct report {
    int64_t begin_ms; double bin_ms;
    struct bin bin[BINS], all;
    struct table table[4];
    int failed;
};

/* ---- sums ---- */

static void add(struct report_sums *s, const struct audit_record *r)
{
    s->requests += r->count;
    s->errors += r->status >= 400 ? r->count : 0;
    s->prompt += r->prompt_tokens > 0 ? (uint64_t)r->prompt_tokens : 0;
    s->completion += r->completion_tokens > 0 ? (uint64_t)r->completion_tokens : 0;
    s->latency_ms += r->latency_ms * (double)r->count;
}

static void add_to_bin(struct bin *b, const struct audit_record *r)
{
    const double i = r->latency_ms > LEAST_MS ? ceil(log2(r->latency_ms / LEAST_MS) * BUCKETS_PER_DOUBLING) : 0;
    add(&b->sums, r);
    b->bucket[i < BUCKETS - 1 ? (int)i : BUCKETS - 1] += r->count;
}

/* The text of an entry without its JSON escapes, malloc'd. */
static char *plain(const struct audit_text *t)
{
    char *quoted = NULL, *out = NULL;
    if (!t->p)
        return strdup("-");
    if (asprintf(&quoted, "\"%.*s\"", (int)(t->n < 4096 ? t->n : 4096), t->p) < 0)
        return NULL;
    json_t *v = json_loads(quoted, JSON_DECODE_ANY, NULL);
    out = strdup(json_is_string(v) ? json_string_value(v) : "?");
    json_decref(v);
    free(quoted);
    return out;
}

/* Add the entry to its group; names beyond MOST_GROUPS share one.  0, or -1 without memory. */
static int add_to_table(struct table *t, const struct audit_record *r)
{
    char status[16], *name = NULL;
    int i = 0;
    snprintf(status, sizeof status, "%d", r->status);
    name = t->text ? plain((const struct audit_text *)(const void *)((const char *)r + t->text)) : strdup(status);
    if (!name)
        return -1;
    while (i < t->n && t->group[i].name && strcmp(t->group[i].name, name) != 0)
        i++;
    if (i == t->n) {
        t->n++;
        if (i < MOST_GROUPS) {
            t->group[i].name = name;
            name = NULL;
        }
    }
    add(&t->group[i].sums, r);
    free(name);
    return 0;
}

static int add_entry(void *user, const struct audit_record *r)
{
    struct report *p = user;
    const double at = ((double)r->time_ms - (double)p->begin_ms) / p->bin_ms;
    if (at < 0 || at >= BINS)
        return 0;                           /* written by a clock that was wrong */
    add_to_bin(&p->bin[(int)at], r);
    add_to_bin(&p->all, r);
    for (size_t i = 0; i < sizeof p->table / sizeof *p->table && !p->failed; i++)
        p->failed = add_to_table(&p->table[i], r) != 0;
    return p->failed;
}

/* The latency that this share of the requests does not exceed, to within a bucket; 0: none. */
static double quantile(const struct bin *b, double share)
{
    uint64_t sum = 0;
    int i = 0;
    if (!b->sums.requests)
        return 0;
    while (i < BUCKETS - 1 && (double)(sum += b->bucket[i]) < share * (double)b->sums.requests)
        i++;
    return LEAST_MS * exp2((double)i / BUCKETS_PER_DOUBLING);
}

/* ---- the page ---- */

static const char style[] = PLOT_COLORS
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;background:var(--bg);"
    "color:var(--text)}svg{width:100%;height:auto}.a{fill:var(--a)}.b{fill:var(--b)}.la,.lb{fill:none;stroke-width:2}"
    ".la{stroke:var(--a)}.lb{stroke:var(--b)}line{stroke:var(--line)}svg text{fill:var(--muted);font-size:12px}"
    "table{border-collapse:collapse}td,th{padding:.1em .8em .1em 0;text-align:right;border-bottom:1px solid var(--line)}"
    "td:first-child,th:first-child{text-align:left;overflow-wrap:anywhere}.ka{color:var(--a)}.kb{color:var(--b)}";

static const char *bin_time(const struct report *p, int i, char out[20])
{
    const time_t s = (time_t)((p->begin_ms + (int64_t)(p->bin_ms * i)) / 1000);
    struct tm t;
    gmtime_r(&s, &t);
    strftime(out, 20, "%Y-%m-%d %H:%M", &t);
    return out;
}

static double requests_of(const struct bin *b) { return (double)b->sums.requests; }
static double errors_of(const struct bin *b) { return (double)b->sums.errors; }
static double prompt_of(const struct bin *b) { return (double)b->sums.prompt; }
static double completion_of(const struct bin *b) { return (double)b->sums.completion; }
static double median_of(const struct bin *b) { return quantile(b, 0.5); }
static double tail_of(const struct bin *b) { return quantile(b, 0.95); }

/* Two series over time: as bars, the second before the first, or as lines. */
struct chart { const char *title, *name[2]; double (*value[2])(const struct bin *b); int lines; };
static const struct chart charts[] = {
    { "Requests", { "all", "with an error" }, { requests_of, errors_of }, 0 },
    { "Latency in ms, to within 9 %", { "half of the requests are faster", "19 of 20 are faster" },
      { median_of, tail_of }, 1 },
    { "Tokens", { "of prompts", "of answers" }, { prompt_of, completion_of }, 1 },
};
enum { N_CHARTS = sizeof charts / sizeof *charts, WIDE = 960, HIGH = 200, LEFT = 60, TOP = 12,
       STEP = (WIDE - LEFT) / BINS };

static void put_series(FILE *out, const struct report *p, const struct chart *c, int i, double most)
{
    static const char *const names[] = { "a", "b" };
    if (c->lines)
        fprintf(out, "<polyline class=\"l%s\" points=\"", names[i]);
    for (int b = 0; b < BINS; b++) {
        const double high = HIGH * c->value[i](&p->bin[b]) / most;
        if (c->lines)
            fprintf(out, "%d,%.1f ", LEFT + b * STEP + STEP / 2, TOP + HIGH - high);
        else if (high > 0)
            fprintf(out, "<rect class=\"%s\" x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%.1f\"/>", names[i],
                    LEFT + b * STEP + 1, TOP + HIGH - high, STEP - 2, high);
    }
    if (c->lines)
        fputs("\"/>", out);
}

static void put_chart(FILE *out, const struct report *p, const struct chart *c)
{
    double most = 0;
    char first[20], last[20];
    for (int b = 0; b < BINS; b++)
        for (int i = 0; i < 2; i++)
            most = fmax(most, c->value[i](&p->bin[b]));
    most = most > 0 ? most : 1;
    fprintf(out, "<h2>%s</h2>\n<p><span class=\"ka\">&#9632;</span> %s <span class=\"kb\">&#9632;</span> %s</p>\n", c->title,
            c->name[0], c->name[1]);
    fprintf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s over time\">", WIDE, TOP + HIGH + 20, c->title);
    for (int i = 0; i <= 2; i++)
        fprintf(out, "<line x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/><text x=\"%d\" y=\"%d\" text-anchor=\"end\">%.4g</text>",
                LEFT, LEFT + BINS * STEP, TOP + HIGH * i / 2, TOP + HIGH * i / 2, LEFT - 6, TOP + HIGH * i / 2 + 4,
                most * (2 - i) / 2);
    put_series(out, p, c, 0, most);
    put_series(out, p, c, 1, most);
    fprintf(out, "<text x=\"%d\" y=\"%d\">%s</text><text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text></svg>\n", LEFT,
            TOP + HIGH + 16, bin_time(p, 0, first), LEFT + BINS * STEP, TOP + HIGH + 16, bin_time(p, BINS, last));
}

static void put_row(FILE *out, const char *name, const struct report_sums *s)
{
    fputs("<tr><td>", out);
    plot_text(out, name);
    fprintf(out, "</td><td>%" PRIu64 "</td><td>%" PRIu64 "</td><td>%.1f</td><td>%" PRIu64 "</td><td>%" PRIu64 "</td></tr>\n",
            s->requests, s->errors, s->requests ? s->latency_ms / (double)s->requests : 0, s->prompt, s->completion);
}

static void begin_table(FILE *out, const char *title)
{
    fprintf(out, "<table><tr><th>%s</th><th>requests</th><th>errors</th><th>mean ms</th><th>prompt tokens</th>"
            "<th>answer tokens</th></tr>\n", title);
}

static int by_requests(const void *a, const void *b)
{
    const struct report_group *x = a, *y = b;
    const int rest = !x->name - !y->name;
    return rest ? rest : x->sums.requests != y->sums.requests ? (x->sums.requests < y->sums.requests ? 1 : -1)
                                                               : strcmp(x->name, y->name);
}

static void put_page(FILE *out, struct report *p, const struct audit_scan *scan)
{
    char first[20], last[20];
    fprintf(out, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>ZSE: requests until %s</title>\n"
            "<meta name=\"viewport\" content=\"width=device-width\"><style>%s</style></head><body>\n"
            "<h1>Requests from %s to %s UTC</h1>\n", bin_time(p, BINS, last), style, bin_time(p, 0, first), last);
    begin_table(out, "all");
    put_row(out, "all", &p->all.sums);
    fprintf(out, "</table>\n<p>Latency: half of the requests took at most %.3g ms, 19 of 20 at most %.3g ms.</p>\n",
            quantile(&p->all, 0.5), quantile(&p->all, 0.95));
    if (scan->bad)
        fprintf(out, "<p>%" PRIu64 " lines of the log are no entries.</p>\n", scan->bad);
    for (int i = 0; i < N_CHARTS; i++)
        put_chart(out, p, &charts[i]);
    for (size_t i = 0; i < sizeof p->table / sizeof *p->table; i++) {
        struct table *t = &p->table[i];
        qsort(t->group, (size_t)t->n, sizeof *t->group, by_requests);
        fprintf(out, "<h2>By %s</h2>\n", t->title);
        begin_table(out, t->title);
        for (int g = 0; g < t->n; g++)
            put_row(out, t->group[g].name ? t->group[g].name : "(others)", &t->group[g].sums);
        fputs("</table>\n", out);
    }
    fputs("<h2>By time</h2>\n", out);
    begin_table(out, "UTC, from");
    for (int b = 0; b < BINS; b++)
        if (p->bin[b].sums.requests)
            put_row(out, bin_time(p, b, first), &p->bin[b].sums);
    fputs("</table>\n</body></html>\n", out);
}

static void release(struct report *p)
{
    for (size_t i = 0; i < sizeof p->table / sizeof *p->table; i++)
        for (int g = 0; g < p->table[i].n; g++)
            free(p->table[i].group[g].name);
    free(p);
}

int audit_report(const char *folder, const struct audit_filter *f, double hours, int64_t now_ms, const char *output,
                 struct err *e)
{
    struct report *p = calloc(1, sizeof *p);
    struct audit_filter own = *f;
    struct audit_scan scan;
    char *text = NULL;
    size_t n = 0;
    if (!p)
        return err_nomem(e, "the report");
    p->bin_ms = hours * 3600e3 / BINS;
    p->begin_ms = own.since_ms = now_ms - (int64_t)(hours * 3600e3);
    p->table[0] = (struct table){ .title = "key", .text = offsetof(struct audit_record, key_name) };
    p->table[1] = (struct table){ .title = "path", .text = offsetof(struct audit_record, path) };
    p->table[2] = (struct table){ .title = "status" };
    p->table[3] = (struct table){ .title = "model", .text = offsetof(struct audit_record, model) };
    int rc = audit_scan(folder, &own, add_entry, p, &scan, e);
    FILE *out = rc == 0 && !p->failed ? open_memstream(&text, &n) : NULL;
    if (out)
        put_page(out, p, &scan);
    if (rc == 0 && (!out || fclose(out) != 0))
        rc = err_nomem(e, "the report");
    if (rc == 0)
        rc = plot_save(output, text, n, e);
    free(text);
    release(p);
    return rc;
}
