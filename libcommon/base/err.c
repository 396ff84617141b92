/* err.c - fill a struct err. */
#include "libcommon/base/err.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "libcommon/base/utf8.h"

/* Cut a UTF-8 character off the end of the message if it did not fit completely. */
static void end_whole(struct err *e)
{
    size_t n = strlen(e->msg);
    if (n == sizeof e->msg - 1)
        e->msg[n - utf8_incomplete(e->msg, n)] = '\0';
}

int err_set(struct err *e, enum err_code code, const char *fmt, ...)
{
    if (!e)
        return -1;
    va_list ap;
    va_start(ap, fmt);
    e->code = code;
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    end_whole(e);
    return -1;
}

int err_sys(struct err *e, const char *fmt, ...)
{
    int number = errno;
    if (!e)
        return -1;
    va_list ap;
    va_start(ap, fmt);
    e->code = ERR_IO;
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    size_t n = strlen(e->msg);
    char text[128];
    snprintf(e->msg + n, sizeof e->msg - n, ": %s", strerror_r(number, text, sizeof text));
    end_whole(e);
    return -1;
}

int err_prefix(struct err *e, const char *fmt, ...)
{
    if (!e)
        return -1;
    char old[sizeof e->msg];
    memcpy(old, e->msg, sizeof old);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->msg, sizeof e->msg, fmt, ap);
    va_end(ap);
    size_t n = strlen(e->msg);
    snprintf(e->msg + n, sizeof e->msg - n, ": %s", old);
    end_whole(e);
    return -1;
}

int err_nomem(struct err *e, const char *what)
{
    return err_set(e, ERR_MEMORY, "out of memory: %s", what);
}
