/* spill.c - map an unnamed file as memory. */
#include "libcommon/convert/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Create a file and unlink it.  Its name is one that atomic_open() (file.h) removes, in case the
 * process dies before the unlink. */
static int open_unnamed(const char *beside, struct err *e)
{
    const char *slash = strrchr(beside, '/');
    const int folder = slash ? (int)(slash - beside + 1) : 0;
    char *path;
    if (asprintf(&path, "%.*s.%s.zse-XXXXXX", folder, beside, beside + folder) < 0)
        return err_nomem(e, beside);
    const int fd = mkostemp(path, O_CLOEXEC);
    if (fd < 0)
        err_sys(e, "%s", path);
    else
        unlink(path);
    free(path);
    return fd;
}

void *spill_file(const char *beside, size_t size, struct err *e)
{
    const size_t all = size + SPILL_HEAD;
    int fd, rc = EFBIG;
    void *p = MAP_FAILED;
    if ((fd = open_unnamed(beside, e)) < 0)
        return NULL;
    if (all > size && (off_t)all > 0)
        /* allocate now, so that a full disk is an error here instead of a SIGBUS later */
        while ((rc = posix_fallocate(fd, 0, (off_t)all)) == EINTR)
            ;
    if (rc == 0 && (p = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
        rc = errno;
    close(fd);
    if (rc) {
        errno = rc;
        err_sys(e, "%s: a temporary file of %zu bytes beside it", beside, all);
        return NULL;
    }
    *(size_t *)p = all;
    return (char *)p + SPILL_HEAD;
}
