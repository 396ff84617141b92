/* datetime.c - the tool datetime: dates and times in any time zone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/base/json.h"
#include "libcommon/tools/internal.h"
#include "libcommon/tools/tzif.h"

enum { LAST_YEAR = 9999 };

static void describe(const char *operation, int64_t s, struct tz_moment m, char *out, size_t room)
{
    static const char *const days[] = { "Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday" };
    const struct civil c = civil_of(s + m.offset_s);
    const int away = abs(m.offset_s);
    if (strcmp(operation, "date") == 0)
        snprintf(out, room, "%04lld-%02d-%02d", (long long)c.year, c.month, c.day);
    else if (strcmp(operation, "time") == 0)
        snprintf(out, room, "%02d:%02d:%02d", c.hour, c.minute, c.second);
    else if (strcmp(operation, "timestamp") == 0)
        snprintf(out, room, "%lld", (long long)s);
    else if (strcmp(operation, "weekday") == 0)
        snprintf(out, room, "%s", days[c.weekday]);
    else
        snprintf(out, room, "%04lld-%02d-%02dT%02d:%02d:%02d%c%02d:%02d %s (%s)", (long long)c.year, c.month, c.day, c.hour,
                 c.minute, c.second, m.offset_s < 0 ? '-' : '+', away / 3600, away / 60 % 60, m.name, days[c.weekday]);
}

char *run_datetime(const struct native_env *env, const json_t *arguments, struct err *e)
{
    const char *operation = json_string_value(js_get(arguments, "operation")),
               *zone = json_string_value(js_get(arguments, "timezone"));
    const json_t *given = js_get(arguments, "timestamp");
    const int64_t s = given ? json_integer_value(given) : env->now_s;
    char out[120];
    if (s < civil_days(0, 1, 2) * 86400 || s > civil_days(LAST_YEAR, 12, 30) * 86400) {
        err_set(e, ERR_FORMAT, "timestamp: %lld is not between the years 0 and %d", (long long)s, LAST_YEAR);
        return NULL;
    }
    struct tz *z = tz_open(env->zoneinfo, zone ? zone : "UTC", e);
    if (!z)
        return NULL;
    describe(operation ? operation : "now", s, tz_at(z, s), out, sizeof out);
    tz_close(z);
    struct tool_text t = { 0 };
    text_add(&t, out, strlen(out));
    return text_finish(&t, e);
}
