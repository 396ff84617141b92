/* tz_rule.c - the proleptic Gregorian calendar, and POSIX TZ strings (POSIX.1, section 8.3). */
#include <string.h>

#include "libcommon/tools/tzif.h"

/* ---- calendar ---- */

static int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }

/* Years begin in March here, so that the leap day is the last one; 400 years have 146097 days. */
int64_t civil_days(int64_t year, int month, int day)
{
    const int64_t y = year - (month <= 2), era = floor_div(y, 400), of_era = y - era * 400,
                  of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

struct civil civil_of(int64_t s)
{
    const int64_t days = floor_div(s, 86400), rest = s - days * 86400, z = days + 719468, era = floor_div(z, 146097),
                  of_era = z - era * 146097,
                  year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365,
                  of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100),
                  month = (5 * of_year + 2) / 153;
    struct civil c = { .hour = (int)(rest / 3600), .minute = (int)(rest / 60 % 60), .second = (int)(rest % 60) };
    c.day = (int)(of_year - (153 * month + 2) / 5 + 1);
    c.month = (int)(month < 10 ? month + 3 : month - 9);
    c.year = year_of_era + era * 400 + (c.month <= 2);
    c.weekday = (int)((days % 7 + 11) % 7);             /* 1970-01-01 was a Thursday */
    return c;
}

/* ---- parsing ---- */

struct rule_reader { const char *p, *end; };

static int is_letter(char c) { return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z'); }

static int skip(struct rule_reader *r, char c)
{
    if (r->p == r->end || *r->p != c)
        return 0;
    r->p++;
    return 1;
}

static int read_name(struct rule_reader *r, char out[TZ_MAX_ABBREVIATION + 1])
{
    const int quoted = skip(r, '<');
    size_t n = 0;
    while (r->p < r->end && n < TZ_MAX_ABBREVIATION &&
           (is_letter(*r->p) || (quoted && ((*r->p >= '0' && *r->p <= '9') || *r->p == '+' || *r->p == '-'))))
        out[n++] = *r->p++;
    out[n] = '\0';
    return n >= 3 && (!quoted || skip(r, '>')) ? 0 : -1;
}

static int read_number(struct rule_reader *r, int least, int most, int *out)
{
    int v = 0, n = 0;
    while (r->p < r->end && *r->p >= '0' && *r->p <= '9' && n < 4) {
        v = 10 * v + (*r->p++ - '0');
        n++;
    }
    *out = v;
    return n > 0 && v >= least && v <= most ? 0 : -1;
}

/* [+|-]hh[:mm[:ss]] */
static int read_time(struct rule_reader *r, int most_hours, int32_t *out)
{
    const int negative = skip(r, '-');
    int h, m = 0, s = 0;
    if (!negative)
        skip(r, '+');
    if (read_number(r, 0, most_hours, &h) != 0 || (skip(r, ':') && read_number(r, 0, 59, &m) != 0))
        return -1;
    if (r->p < r->end && *r->p == ':' && (r->p++, read_number(r, 0, 59, &s) != 0))
        return -1;
    *out = (negative ? -1 : 1) * (h * 3600 + m * 60 + s);
    return 0;
}

static int read_day(struct rule_reader *r, struct tz_day *d)
{
    d->time_s = 2 * 3600;
    if (skip(r, 'M')) {
        d->form = 'M';
        if (read_number(r, 1, 12, &d->month) != 0 || !skip(r, '.') || read_number(r, 1, 5, &d->week) != 0 ||
            !skip(r, '.') || read_number(r, 0, 6, &d->day) != 0)
            return -1;
    } else {
        d->form = skip(r, 'J') ? 'J' : 'n';
        if (read_number(r, d->form == 'J', 365, &d->day) != 0)
            return -1;
    }
    return skip(r, '/') ? read_time(r, 167, &d->time_s) : 0;
}

int tz_rule_parse(const char *text, size_t size, struct tz_rule *out, struct err *e)
{
    struct rule_reader r = { text, text + size };
    memset(out, 0, sizeof *out);
    if (read_name(&r, out->standard.name) != 0 || read_time(&r, 24, &out->standard.offset_s) != 0)
        goto bad;
    out->standard.offset_s = -out->standard.offset_s;           /* POSIX counts west of Greenwich */
    if (r.p == r.end)
        return 0;
    out->has_daylight = out->daylight.is_dst = 1;
    out->daylight.offset_s = out->standard.offset_s + 3600;
    if (read_name(&r, out->daylight.name) != 0)
        goto bad;
    if (r.p < r.end && *r.p != ',') {
        if (read_time(&r, 24, &out->daylight.offset_s) != 0)
            goto bad;
        out->daylight.offset_s = -out->daylight.offset_s;
    }
    if (skip(&r, ',') && read_day(&r, &out->start) == 0 && skip(&r, ',') && read_day(&r, &out->end) == 0 &&
        r.p == r.end)
        return 0;
bad:
    return err_set(e, ERR_FORMAT, "'%.*s' is not a TZ string: character %zu", (int)(size < 60 ? size : 60), text,
                   (size_t)(r.p - text) + 1);
}

/* ---- using ---- */

static int is_leap(int64_t y) { return (y % 4 == 0 && y % 100 != 0) || y % 400 == 0; }

/* The day and time of d in this year, as seconds of local time since 1970. */
static int64_t day_in(const struct tz_day *d, int64_t year)
{
    static const int length[] = { 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
    int64_t days;
    if (d->form == 'M') {
        const int most = length[d->month - 1] + (d->month == 2 && is_leap(year));
        const int64_t first = civil_days(year, d->month, 1);
        const int weekday = civil_of(first * 86400).weekday;
        int day = 1 + (d->day - weekday + 7) % 7 + 7 * (d->week - 1);
        while (day > most)                              /* week 5 is the last one */
            day -= 7;
        days = first + day - 1;
    } else {
        days = civil_days(year, 1, 1) + d->day - (d->form == 'J' && !(is_leap(year) && d->day >= 60));
    }
    return days * 86400 + d->time_s;
}

struct tz_moment tz_rule_at(const struct tz_rule *r, int64_t s)
{
    if (!r->has_daylight)
        return r->standard;
    const int64_t year = civil_of(s + r->standard.offset_s).year,
                  start = day_in(&r->start, year) - r->standard.offset_s, end = day_in(&r->end, year) -
                                                                                r->daylight.offset_s;
    const int daylight = start < end ? s >= start && s < end : s >= start || s < end;
    return daylight ? r->daylight : r->standard;
}
