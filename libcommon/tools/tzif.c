/* tzif.c - parse the files of the tz database and look up a moment. */
#include "libcommon/tools/tzif.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER = 44, MAX_TYPES = 256, TYPE_BYTES = 6 };

struct tz {
    int64_t *at;                        /* transitions, ascending */
    uint8_t *type; int n;               /* the type that applies from each transition on */
    struct tz_moment *types; int n_types;               /* the first: before all transitions */
    int has_rule;                       /* after the last transition */
    struct tz_rule rule;
};

void tz_close(struct tz *z)
{
    if (!z)
        return;
    free(z->at);
    free(z->type);
    free(z->types);
    free(z);
}

/* ---- parsing ---- */

struct tzif_block {                          /* a header and its data; counts as RFC 9636 calls them */
    const uint8_t *p;
    uint32_t isutcnt, isstdcnt, leapcnt, timecnt, typecnt, charcnt;
    int width;                          /* bytes of a time: 4 or 8 */
};

static uint32_t u32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static int64_t time_at(const uint8_t *p, int width)
{
    return width == 4 ? (int32_t)u32(p) : (int64_t)((uint64_t)u32(p) << 32 | u32(p + 4));
}

static size_t block_bytes(const struct tzif_block *b)
{
    const size_t w = (size_t)b->width;
    return b->timecnt * (w + 1) + b->typecnt * (size_t)TYPE_BYTES + b->charcnt + b->leapcnt * (w + 4) + b->isstdcnt +
           b->isutcnt;
}

/* Read the block whose header is at offset `at`. */
static int read_block(const char *name, const uint8_t *data, size_t size, size_t at, int width, struct tzif_block *b,
                      struct err *e)
{
    if (size - at < HEADER || memcmp(data + at, "TZif", 4) != 0)
        return err_set(e, ERR_FORMAT, "%s: offset %zu: not a time zone file", name, at);
    const uint8_t *p = data + at + 20;
    *b = (struct tzif_block){ .p = data + at + HEADER, .isutcnt = u32(p), .isstdcnt = u32(p + 4), .leapcnt = u32(p + 8),
                         .timecnt = u32(p + 12), .typecnt = u32(p + 16), .charcnt = u32(p + 20), .width = width };
    if (b->typecnt == 0 || b->typecnt > MAX_TYPES || b->charcnt == 0 || block_bytes(b) > size - at - HEADER)
        return err_set(e, ERR_FORMAT, "%s: offset %zu: %u transitions, %u types and %u characters do not fit in the file",
                       name, at, b->timecnt, b->typecnt, b->charcnt);
    return 0;
}

static int read_types(struct tz *z, const char *name, const struct tzif_block *b, struct err *e)
{
    const uint8_t *types = b->p + b->timecnt * (size_t)(b->width + 1);
    const char *chars = (const char *)types + b->typecnt * (size_t)TYPE_BYTES;
    if (!(z->types = calloc(b->typecnt, sizeof *z->types)))
        return err_nomem(e, name);
    z->n_types = (int)b->typecnt;
    for (int i = 0; i < z->n_types; i++) {
        const uint8_t *p = types + i * TYPE_BYTES;
        const int32_t offset = (int32_t)u32(p);
        if (offset < -90000 || offset > 93600 || p[4] > 1 || p[5] >= b->charcnt ||
            !memchr(chars + p[5], 0, b->charcnt - p[5]))
            return err_set(e, ERR_FORMAT, "%s: type %d is malformed", name, i);
        z->types[i] = (struct tz_moment){ .offset_s = offset, .is_dst = p[4] };
        snprintf(z->types[i].name, sizeof z->types[i].name, "%s", chars + p[5]);
    }
    return 0;
}

static int read_transitions(struct tz *z, const char *name, const struct tzif_block *b, struct err *e)
{
    const uint8_t *index = b->p + b->timecnt * (size_t)b->width;
    z->at = calloc(b->timecnt + 1, sizeof *z->at);
    z->type = calloc(b->timecnt + 1, 1);
    if (!z->at || !z->type)
        return err_nomem(e, name);
    z->n = (int)b->timecnt;
    for (int i = 0; i < z->n; i++) {
        z->at[i] = time_at(b->p + i * b->width, b->width);
        z->type[i] = index[i];
        if (index[i] >= b->typecnt || (i && z->at[i] <= z->at[i - 1]))
            return err_set(e, ERR_FORMAT, "%s: transition %d is malformed", name, i);
    }
    return 0;
}

/* Read the footer: a line break, a TZ string, a line break. */
static int read_footer(struct tz *z, const char *name, const uint8_t *data, size_t size, size_t at, struct err *e)
{
    const uint8_t *end = size > at + 1 && data[at] == '\n' ? memchr(data + at + 1, '\n', size - at - 1) : NULL;
    if (!end)
        return err_set(e, ERR_FORMAT, "%s: offset %zu: no footer", name, at);
    const size_t n = (size_t)(end - data) - at - 1;
    if (n == 0)
        return 0;
    z->has_rule = 1;
    return tz_rule_parse((const char *)data + at + 1, n, &z->rule, e) == 0 ? 0 : err_prefix(e, "%s", name);
}

static int parse(struct tz *z, const char *name, const uint8_t *data, size_t size, struct err *e)
{
    struct tzif_block b;
    size_t at = 0;
    if (read_block(name, data, size, 0, 4, &b, e) != 0)
        return -1;
    const int version = data[4] == 0 ? 1 : data[4] - '0';
    if (version < 1 || version > 9)
        return err_set(e, ERR_FORMAT, "%s: offset 4: version is byte %d", name, data[4]);
    if (version > 1) {                          /* the same data again, with 64-bit times */
        at = HEADER + block_bytes(&b);
        if (read_block(name, data, size, at, 8, &b, e) != 0)
            return -1;
    }
    if (b.leapcnt)
        return err_set(e, ERR_UNSUPPORTED, "%s: the file counts leap seconds", name);
    if (read_types(z, name, &b, e) != 0 || read_transitions(z, name, &b, e) != 0)
        return -1;
    return version > 1 ? read_footer(z, name, data, size, at + HEADER + block_bytes(&b), e) : 0;
}

struct tz *tz_parse(const char *name, const void *data, size_t size, struct err *e)
{
    struct tz *z = calloc(1, sizeof *z);
    if (!z) {
        err_nomem(e, name);
        return NULL;
    }
    if (parse(z, name, data, size, e) == 0)
        return z;
    tz_close(z);
    return NULL;
}

/* ---- opening ---- */

/* "+02:00", "-0330", "UTC+2": a zone with this offset alone; NULL: the name is none of these. */
static struct tz *fixed_zone(const char *name)
{
    const char *p = strncmp(name, "UTC", 3) == 0 || strncmp(name, "GMT", 3) == 0 ? name + 3 : name;
    int hours = 0, minutes = 0, used = 0;
    const int sign = *p == '-' ? -1 : 1;
    if (strcmp(name, "Z") == 0)
        p = "";
    if (*p == '+' || *p == '-') {
        if (strspn(p + 1, "0123456789:") != strlen(p + 1) ||
            (sscanf(p + 1, "%2d:%2d%n", &hours, &minutes, &used) != 2 &&
             sscanf(p + 1, "%2d%2d%n", &hours, &minutes, &used) != 2 && sscanf(p + 1, "%2d%n", &hours, &used) != 1) ||
            p[1 + used] || hours > 15 || minutes > 59)
            return NULL;
    } else if (*p || p == name) {
        return NULL;
    }
    struct tz *z = calloc(1, sizeof *z);
    if (!z)
        return NULL;
    z->has_rule = 1;
    z->rule.standard.offset_s = sign * (hours * 3600 + minutes * 60);
    snprintf(z->rule.standard.name, sizeof z->rule.standard.name, "%.*s", TZ_MAX_ABBREVIATION, *name == 'Z' ? "UTC" : name);
    return z;
}

/* Components of letters, digits, '_', '+' and '-' only: no "..", no absolute path. */
static int is_safe(const char *name)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_+-/";
    const size_t n = strlen(name);
    return n > 0 && n <= TZ_MAX_NAME && strspn(name, letters) == n && *name != '/' && name[n - 1] != '/' &&
           !strstr(name, "//");
}

static struct tz *read_zone(int fd, const char *name, struct err *e)
{
    struct stat st;
    struct tz *z = NULL;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > TZ_MAX_BYTES) {
        err_set(e, ERR_FORMAT, "%s is not a time zone", name);
        return NULL;
    }
    char *data = malloc((size_t)st.st_size + 1);
    const ssize_t n = data ? pread(fd, data, (size_t)st.st_size, 0) : -1;
    if (!data)
        err_nomem(e, name);
    else if (n < 0)
        err_sys(e, "%s", name);
    else
        z = tz_parse(name, data, (size_t)n, e);
    free(data);
    return z;
}

struct tz *tz_open(const char *folder, const char *name, struct err *e)
{
    char path[4096];
    struct tz *z = fixed_zone(name);
    if (z)
        return z;
    if (!is_safe(name)) {
        err_set(e, ERR_FORMAT, "'%.80s' is not the name of a time zone, expected one such as America/New_York", name);
        return NULL;
    }
    snprintf(path, sizeof path, "%s/%s", folder, name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && access(folder, F_OK) != 0)
        err_set(e, ERR_IO, "this machine has no time zones: %s does not exist (package tzdata); UTC and offsets such as +02:00 need none", folder);
    else if (fd < 0 && errno == ENOENT)
        err_set(e, ERR_FORMAT, "there is no time zone '%s', expected a name such as America/New_York", name);
    else if (fd < 0)
        err_sys(e, "time zone %s", name);
    if (fd < 0)
        return NULL;
    z = read_zone(fd, name, e);
    close(fd);
    return z;
}

/* ---- looking up ---- */

struct tz_moment tz_at(const struct tz *z, int64_t s)
{
    int low = 0, high = z->n;                   /* the number of transitions up to s */
    while (low < high) {
        const int middle = (low + high) / 2;
        if (z->at[middle] <= s)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == z->n && z->has_rule)
        return tz_rule_at(&z->rule, s);
    return low ? z->types[z->type[low - 1]] : z->types[0];
}
