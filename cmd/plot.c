/* plot.c - pictures of measurements as SVG: bars with their values, or points on two axes. */
#include "cmd/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "libcommon/base/file.h"
#include "libcommon/base/json.h"
#include "libcommon/base/utf8.h"

/* Pixels.  A bar begins at BAR_X and ends at BAR_END at most; the frame of points is
 * FRAME_WIDE x FRAME_HIGH with its corner at (FRAME_X, FRAME_Y). */
enum { WIDE = 760, MARGIN = 16, LINE_HIGH = 20, BAR_X = 210, BAR_END = 580, HEAD = 64,
       FRAME_X = 76, FRAME_Y = HEAD + 24, FRAME_WIDE = 560, FRAME_HIGH = 320, MOST_SERIES = 6, MOST_ROWS = 1000 };

static const char style[] = "<style>" PLOT_COLORS
    "svg{background:var(--bg);--c:#1f7a3d;--d:#8a5a00;--e:#7b3fa0;--f:#00767a}"
    "@media(prefers-color-scheme:dark){svg{--c:#7cc792;--d:#e0b060;--e:#c9a0e8;--f:#6fcdd0}}"
    "rect.bg{fill:var(--bg)}text{font:13px system-ui,sans-serif;fill:var(--text)}text.m{fill:var(--muted)}"
    "text.t{font-size:16px;font-weight:600}text.g{font-weight:600}text.r{text-anchor:end}text.c{text-anchor:middle}"
    "line{stroke:var(--line)}line.ref{stroke:var(--text);stroke-dasharray:4 3}"
    ".s0{fill:var(--a)}.s1{fill:var(--b)}.s2{fill:var(--c)}.s3{fill:var(--d)}.s4{fill:var(--e)}.s5{fill:var(--f)}"
    "</style>\n";

void plot_text(FILE *out, const char *text)
{
    size_t left = strlen(text);
    for (int n; left > 0; text += n, left -= (size_t)n) {
        const uint32_t c = utf8_next(text, left, &n);
        switch (c) {
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '&': fputs("&amp;", out); break;
        case '"': fputs("&quot;", out); break;
        case 0xFFFD: fputc('?', out); break;
        default: utf8_is_steering(c) ? (void)fputc('?', out) : (void)fwrite(text, 1, (size_t)n, out);
        }
    }
}

static void put_words(FILE *out, double x, double y, const char *kind, const char *text)
{
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\"%s%s%s>", x, y, *kind ? " class=\"" : "", kind, *kind ? "\"" : "");
    plot_text(out, text);
    fputs("</text>\n", out);
}

static void put_number(FILE *out, double x, double y, const char *kind, double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.4g", value);
    put_words(out, x, y, kind, text);
}

static const char *text_of(const json_t *row, const char *key)
{
    const char *s = json_string_value(json_object_get(row, key));
    return s ? s : "";
}

static double number_of(const json_t *row, const char *key) { return json_number_value(json_object_get(row, key)); }

static void begin(FILE *out, const json_t *j, double high)
{
    fprintf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %.0f\" width=\"%d\" height=\"%.0f\" "
            "role=\"img\">\n<title>", WIDE, high, WIDE, high);
    plot_text(out, text_of(j, "title"));
    fprintf(out, "</title>\n%s<rect class=\"bg\" width=\"%d\" height=\"%.0f\"/>\n", style, WIDE, high);
    put_words(out, MARGIN, 28, "t", text_of(j, "title"));
    put_words(out, MARGIN, 48, "m", text_of(j, "note"));
}

/* ---- bars ---- */

static int begins_group(const json_t *bars, size_t i)
{
    const char *group = text_of(json_array_get(bars, i), "group");
    return *group && (i == 0 || strcmp(group, text_of(json_array_get(bars, i - 1), "group")) != 0);
}

static void put_bar(FILE *out, const json_t *bar, double y, double pixels)
{
    const double value = number_of(bar, "value"), wide = pixels * value;
    const char *text = text_of(bar, "text");
    put_words(out, BAR_X - 8, y + 14, "r", text_of(bar, "label"));
    fprintf(out, "<rect class=\"s0\" x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"%d\"/>\n", BAR_X, y + 3, wide,
            LINE_HIGH - 6);
    if (*text)
        put_words(out, BAR_X + wide + 6, y + 14, "", text);
    else
        put_number(out, BAR_X + wide + 6, y + 14, "", value);
}

static void put_bars(FILE *out, const json_t *j, const json_t *bars)
{
    const double reference = number_of(j, "reference");
    double most = reference, high = HEAD + MARGIN, y = HEAD;
    for (size_t i = 0; i < json_array_size(bars); i++) {
        most = fmax(most, number_of(json_array_get(bars, i), "value"));
        high += begins_group(bars, i) ? 2.5 * LINE_HIGH : LINE_HIGH;
    }
    const double pixels = (BAR_END - BAR_X) / (most > 0 ? most : 1);
    begin(out, j, high);
    for (size_t i = 0; i < json_array_size(bars); i++, y += LINE_HIGH) {
        const json_t *bar = json_array_get(bars, i);
        if (begins_group(bars, i)) {
            put_words(out, MARGIN, y + 1.1 * LINE_HIGH, "g", text_of(bar, "group"));
            y += 1.5 * LINE_HIGH;
        }
        put_bar(out, bar, y, pixels);
    }
    if (reference > 0)
        fprintf(out, "<line class=\"ref\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%.0f\"/>\n",
                BAR_X + pixels * reference, BAR_X + pixels * reference, HEAD, high - MARGIN);
    fputs("</svg>\n", out);
}

/* ---- points ---- */

/* The frame shows x from 0 to x_most and y from y_least to y_most, whole powers of 10. */
struct frame { double x_most, y_least, y_most; };

static struct frame frame_of(const json_t *points)
{
    double x = 0, least = INFINITY, most = 0;
    for (size_t i = 0; i < json_array_size(points); i++) {
        const double y = number_of(json_array_get(points, i), "y");
        x = fmax(x, number_of(json_array_get(points, i), "x"));
        least = fmin(least, y);
        most = fmax(most, y);
    }
    struct frame f = { x * 1.05, pow(10, floor(log10(least))), pow(10, ceil(log10(most))) };
    if (f.y_most <= f.y_least)
        f.y_most = 10 * f.y_least;
    return f;
}

static double x_at(const struct frame *f, double x) { return FRAME_X + FRAME_WIDE * x / f->x_most; }

static double y_at(const struct frame *f, double y)
{
    return FRAME_Y + FRAME_HIGH * log(f->y_most / y) / log(f->y_most / f->y_least);
}

static void put_axes(FILE *out, const struct frame *f, const json_t *j)
{
    double step = pow(10, floor(log10(f->x_most)));
    step /= f->x_most / step < 2 ? 5 : f->x_most / step < 5 ? 2 : 1;
    for (double x = 0; x <= f->x_most; x += step) {
        fprintf(out, "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>\n", x_at(f, x), x_at(f, x), FRAME_Y,
                FRAME_Y + FRAME_HIGH);
        put_number(out, x_at(f, x), FRAME_Y + FRAME_HIGH + 16, "m c", x);
    }
    for (double y = f->y_least; y < f->y_most * 1.001; y *= 10) {
        fprintf(out, "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>\n", FRAME_X, FRAME_X + FRAME_WIDE, y_at(f, y),
                y_at(f, y));
        put_number(out, FRAME_X - 6, y_at(f, y) + 4, "m r", y);
    }
    put_words(out, FRAME_X + FRAME_WIDE / 2, FRAME_Y + FRAME_HIGH + 34, "m c", text_of(j, "x"));
    put_words(out, MARGIN, FRAME_Y - 12, "m", text_of(j, "y"));
}

/* The number of a series: that of its first point among all first points; further series share the
 * last colour. */
static int series_at(const json_t *points, size_t at)
{
    const char *name = text_of(json_array_get(points, at), "series");
    int n = 0;
    for (size_t i = 0; i < at; i++) {
        const char *other = text_of(json_array_get(points, i), "series");
        int first = 1;
        if (strcmp(other, name) == 0)
            return series_at(points, i);
        for (size_t k = 0; k < i; k++)
            first &= strcmp(other, text_of(json_array_get(points, k), "series")) != 0;
        n += first;
    }
    return n < MOST_SERIES ? n : MOST_SERIES - 1;
}

static void put_point(FILE *out, const struct frame *f, const json_t *points, size_t i, double table)
{
    const json_t *p = json_array_get(points, i);
    const double x = x_at(f, number_of(p, "x")), y = y_at(f, number_of(p, "y"));
    const double line = table + LINE_HIGH * (double)(i + 1);
    const int series = series_at(points, i);
    fprintf(out, "<circle class=\"s%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"/>\n", series, x, y);
    put_words(out, x + 7, y + 4, "", text_of(p, "label"));
    fprintf(out, "<circle class=\"s%d\" cx=\"%d\" cy=\"%.1f\" r=\"4\"/>\n", series, MARGIN + 4, line - 4);
    put_words(out, MARGIN + 16, line, "", text_of(p, "series"));
    put_words(out, 240, line, "", text_of(p, "label"));
    put_number(out, 520, line, "r", number_of(p, "x"));
    put_number(out, 640, line, "r", number_of(p, "y"));
}

static void put_points(FILE *out, const json_t *j, const json_t *points)
{
    const struct frame f = frame_of(points);
    const double table = FRAME_Y + FRAME_HIGH + 64;
    begin(out, j, table + LINE_HIGH * (double)json_array_size(points) + MARGIN);
    put_axes(out, &f, j);
    put_words(out, 520, table, "m r", text_of(j, "x"));
    put_words(out, 640, table, "m r", text_of(j, "y"));
    for (size_t i = 0; i < json_array_size(points); i++)
        put_point(out, &f, points, i, table);
    fputs("</svg>\n", out);
}

/* ---- the description ---- */

static int check_rows(const json_t *rows, const char *name, const char *const keys[2], int positive, struct err *e)
{
    if (json_array_size(rows) == 0 || json_array_size(rows) > MOST_ROWS)
        return err_set(e, ERR_FORMAT, "%s: %s, expected a list of 1 to %d", name,
                       json_is_array(rows) ? "no or too many rows" : js_kind(rows), MOST_ROWS);
    for (size_t i = 0; i < json_array_size(rows); i++)
        for (int k = 0; k < 2 && keys[k]; k++) {
            const json_t *v = json_object_get(json_array_get(rows, i), keys[k]);
            const double x = json_number_value(v);
            if (!json_is_number(v) || !isfinite(x) || x < 0 || (positive && x <= 0))
                return err_set(e, ERR_FORMAT, "%s[%zu].%s: expected a number %s 0", name, i, keys[k],
                               positive ? "above" : "of at least");
        }
    return 0;
}

int plot_save(const char *path, const char *text, size_t n, struct err *e)
{
    struct atomic_file file;
    if (cli_output_open(&file, path, e))
        return -1;
    const int rc = atomic_write(&file, text, n, e) == 0 ? cli_output_commit(&file, e) : -1;
    if (rc)
        atomic_abort(&file);
    return rc;
}

int plot_write(const json_t *j, const char *path, struct err *e)
{
    static const char *const of_bars[2] = { "value", NULL }, *const of_points[2] = { "x", "y" };
    const json_t *bars = json_object_get(j, "bars"), *points = json_object_get(j, "points");
    char *text = NULL;
    size_t n = 0;
    if (!bars == !points)
        return err_set(e, ERR_FORMAT, "expected either bars or points");
    if (bars ? check_rows(bars, "bars", of_bars, 0, e) : check_rows(points, "points", of_points, 1, e))
        return -1;
    FILE *out = open_memstream(&text, &n);
    if (!out)
        return err_nomem(e, "the picture");
    if (bars)
        put_bars(out, j, bars);
    else
        put_points(out, j, points);
    const int rc = fclose(out) == 0 ? plot_save(path, text, n, e) : err_nomem(e, "the picture");
    free(text);
    return rc;
}
