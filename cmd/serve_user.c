/* serve_user.c - become another user (zse-serve --user). */
#include "cmd/serve_user.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <pwd.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <linux/capability.h>

/* Parse a numeric id; -1: it is not a number. */
static long number(const char *text)
{
    char *end;
    const long n = isdigit((unsigned char)*text) ? strtol(text, &end, 10) : -1;
    return n >= 0 && n < UINT32_MAX && !*end ? n : -1;
}

static const struct passwd *find_user(const char *text)
{
    const struct passwd *p = getpwnam(text);
    return p || number(text) < 0 ? p : getpwuid((uid_t)number(text));
}

static const struct group *find_group(const char *text)
{
    const struct group *g = getgrnam(text);
    return g || number(text) < 0 ? g : getgrgid((gid_t)number(text));
}

int serve_user_find(struct serve_user *u, const char *text, struct err *e)
{
    const char *colon = strchr(text, ':');
    char *name = strndup(text, colon ? (size_t)(colon - text) : strlen(text));
    int rc = -1;
    *u = (struct serve_user){ 0 };
    if (!name)
        return err_nomem(e, "the name of a user");
    const struct passwd *p = find_user(name);
    const struct group *g = colon ? find_group(colon + 1) : NULL;
    if (geteuid() != 0)
        err_set(e, ERR_IO, "--user %s: only root can become another user, and this is user %u", text,
                (unsigned)geteuid());
    else if (!p)
        err_set(e, ERR_IO, "--user %s: there is no user '%s'", text, name);
    else if (colon && !g)
        err_set(e, ERR_IO, "--user %s: there is no group '%s'", text, colon + 1);
    else if (p->pw_uid == 0 || (g ? g->gr_gid : p->pw_gid) == 0)
        err_set(e, ERR_IO, "--user %s: is root, or in its group; expected an unprivileged user", text);
    else {
        u->uid = p->pw_uid;
        u->gid = g ? g->gr_gid : p->pw_gid;
        u->name = strdup(p->pw_name);
        u->home = strdup(p->pw_dir);
        rc = u->name && u->home ? 0 : err_nomem(e, "the name of a user");
    }
    free(name);
    return rc;
}

void serve_user_release(struct serve_user *u)
{
    free(u->name);
    free(u->home);
}

int serve_user_environment(const struct serve_user *u, struct err *e)
{
    unsetenv("XDG_CACHE_HOME");                 /* this folder is root's */
    unsetenv("XDG_RUNTIME_DIR");
    return setenv("HOME", u->home, 1) || setenv("USER", u->name, 1) ||
           setenv("LOGNAME", u->name, 1) ? err_nomem(e, "the environment") : 0;
}

/* Whether the folder is still as mkdir made it: root's, mode 0700, and empty. */
static int is_fresh_folder(int fd)
{
    struct stat st;
    const int again = fstat(fd, &st) == 0 && st.st_uid == 0 &&
                      (st.st_mode & 0777) == 0700 ? openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    DIR *d = again < 0 ? NULL : fdopendir(again);
    int n = 0;
    if (!d) {
        if (again >= 0)
            close(again);
        return 0;
    }
    for (const struct dirent *x; (x = readdir(d));)
        n += strcmp(x->d_name, ".") != 0 && strcmp(x->d_name, "..") != 0;
    closedir(d);
    return n == 0;
}

/* Make the user the owner of the folder path.  The name could be replaced between the check and the
 * change, so only the folder that was opened changes its owner, and only if it is still as it was
 * made. */
int serve_user_folder(const struct serve_user *u, const char *path, struct err *e)
{
    if (mkdir(path, 0700) != 0)
        return errno == EEXIST ? 0 : err_sys(e, "%s", path);
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    int rc = fd < 0 ? err_sys(e, "%s: cannot be given to %s", path, u->name) : 0;
    if (rc == 0 && !is_fresh_folder(fd))
        rc = err_set(e, ERR_IO, "%s: was replaced by another folder while it was made", path);
    if (rc == 0 && fchown(fd, u->uid, u->gid) != 0)
        rc = err_sys(e, "%s: cannot be given to %s", path, u->name);
    if (fd >= 0)
        close(fd);
    return rc;
}

int serve_user_socket(const struct serve_user *u, const char *path, struct err *e)
{
    struct stat st;
    const int fd = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    int rc = fd < 0 || fstat(fd, &st) != 0 ? err_sys(e, "--socket %s: cannot be given to %s", path, u->name) : 0;
    if (rc == 0 && (!S_ISSOCK(st.st_mode) || st.st_uid != 0 || st.st_nlink != 1))
        rc = err_set(e, ERR_IO, "--socket %s: was replaced by another file", path);
    if (rc == 0 && fchownat(fd, "", u->uid, u->gid, AT_EMPTY_PATH) != 0)
        rc = err_sys(e, "--socket %s: cannot be given to %s", path, u->name);
    if (fd >= 0)
        close(fd);
    return rc;
}

/* Whether the process is in group 0, or cannot read its groups.  initgroups() adds group 0 if the
 * system's group file lists our user there. */
static int has_root_group(void)
{
    const int n = getgroups(0, NULL);
    gid_t *list = n > 0 ? calloc((size_t)n, sizeof *list) : NULL;
    int found = n < 0 || (n > 0 && (!list || getgroups(n, list) != n));
    for (int i = 0; !found && i < n; i++)
        found = list[i] == 0;
    free(list);
    return found;
}

static int drop_capabilities(void)
{
    struct __user_cap_header_struct head = { .version = _LINUX_CAPABILITY_VERSION_3 };
    struct __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3] = { 0 };
    return (int)syscall(SYS_capset, &head, none);
}

/* Whether all privileges are gone permanently. */
static int is_gone(const struct serve_user *u)
{
    uid_t uid[3];
    gid_t gid[3];
    if (getresuid(&uid[0], &uid[1], &uid[2]) != 0 || getresgid(&gid[0], &gid[1], &gid[2]) != 0)
        return 0;
    for (int i = 0; i < 3; i++)
        if (uid[i] != u->uid || gid[i] != u->gid)
            return 0;
    return setresuid(0, 0, 0) != 0 && seteuid(0) != 0 && setresgid(0, 0, 0) != 0 && setegid(0) != 0 &&
           setgroups(0, NULL) != 0;
}

int serve_user_become(const struct serve_user *u, struct err *e)
{
    if (initgroups(u->name, u->gid) != 0)
        return err_sys(e, "--user %s: its groups", u->name);
    if (has_root_group())
        return err_set(e, ERR_IO, "--user %s: is in root's group; expected an unprivileged user", u->name);
    if (setresgid(u->gid, u->gid, u->gid) != 0 || setresuid(u->uid, u->uid, u->uid) != 0)
        return err_sys(e, "--user %s", u->name);
    if (drop_capabilities() != 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        return err_sys(e, "--user %s: privileges", u->name);
    return is_gone(u) ? 0 : err_set(e, ERR_IO, "--user %s: root's privileges could be regained, so nothing is served",
                                    u->name);
}
