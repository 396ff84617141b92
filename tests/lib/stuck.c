/* stuck.c - LD_PRELOAD: some calls on files whose names end in .zse do not return, as if the disk
 * had failed.
 *
 * While $ZSE_STUCK/step exists, fstat(), which every step of an engine calls, returns only in the
 * first thread.  While $ZSE_STUCK/close exists, close() does not return.  While
 * $ZSE_STUCK/sync exists, fdatasync() of any file does not return. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int is_model(int fd)
{
    char link[64], name[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, name, sizeof name - 1);
    return n > 4 && memcmp(name + n - 4, ".zse", 4) == 0;
}

static void wait_for(const char *what)
{
    const char *folder = getenv("ZSE_STUCK");
    char name[4096];
    snprintf(name, sizeof name, "%s/%s", folder ? folder : "", what);
    while (folder && access(name, F_OK) == 0)
        usleep(5000);
}

int fstat(int fd, struct stat *st)
{
    int (*real)(int, struct stat *) = (int (*)(int, struct stat *))dlsym(RTLD_NEXT, "fstat");
    if (gettid() != getpid() && is_model(fd))
        wait_for("step");
    return real(fd, st);
}

int close(int fd)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "close");
    if (is_model(fd))
        wait_for("close");
    return real(fd);
}

int fdatasync(int fd)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    wait_for("sync");
    return real(fd);
}
