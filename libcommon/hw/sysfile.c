/* sysfile.c - read small files of /proc and /sys. */
#include "libcommon/hw/sysfile.h"

#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

long sys_read(const char *root, const char *path, char *out, size_t room)
{
    char full[PATH_MAX];
    size_t n = 0;
    out[0] = '\0';
    if ((size_t)snprintf(full, sizeof full, "%s%s", root ? root : "", path) >= sizeof full)
        return -1;
    int fd = open(full, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return -1;
    for (ssize_t got; n + 1 < room && (got = read(fd, out + n, room - 1 - n)) > 0;)
        n += (size_t)got;
    close(fd);
    out[n] = '\0';
    return (long)n;
}

static int line(char *out, size_t room, const char *root, const char *fmt, va_list ap)
{
    char path[PATH_MAX];
    if ((size_t)vsnprintf(path, sizeof path, fmt, ap) >= sizeof path || sys_read(root, path, out, room) < 0)
        return -1;
    size_t skip = strspn(out, " \t\n");
    memmove(out, out + skip, strlen(out + skip) + 1);
    out[strcspn(out, "\n")] = '\0';
    for (size_t n = strlen(out); n > 0 && (out[n - 1] == ' ' || out[n - 1] == '\t'); n--)
        out[n - 1] = '\0';
    return 0;
}

int sys_line(char *out, size_t room, const char *root, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int rc = line(out, room, root, fmt, ap);
    va_end(ap);
    return rc;
}

long long sys_number(long long otherwise, const char *root, const char *fmt, ...)
{
    char text[64], *end;
    va_list ap;
    va_start(ap, fmt);
    int rc = line(text, sizeof text, root, fmt, ap);
    va_end(ap);
    if (rc < 0)
        return otherwise;
    long long n = strtoll(text, &end, 10);
    return end == text ? otherwise : n;
}

long long sys_field(const char *text, const char *key, long long otherwise)
{
    const size_t n = strlen(key);
    for (const char *p = text; p && *p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL) {
        if (strncmp(p, key, n) != 0 || (p[n] != ':' && p[n] != ' ' && p[n] != '\t'))
            continue;
        char *end;
        const char *number = p + n + strspn(p + n, ": \t");
        long long v = strtoll(number, &end, 10);
        return end == number ? otherwise : v;
    }
    return otherwise;
}

int sys_list(const char *list, int *first)
{
    int n = 0;
    *first = -1;
    for (const char *p = list; *p;) {
        char *end;
        long a = strtol(p, &end, 10), b = a;
        if (end == p)
            break;
        if (*end == '-')
            b = strtol(end + 1, &end, 10);
        if (*first < 0)
            *first = (int)a;
        if (b >= a && b - a < 1 << 20)
            n += (int)(b - a) + 1;
        p = *end == ',' ? end + 1 : end;
        if (*p && *end != ',')
            break;
    }
    return n;
}
