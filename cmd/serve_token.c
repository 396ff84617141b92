/* serve_token.c - read or make the administrator's token. */
#include "cmd/zse-serve.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/file.h"

enum { TOKEN_BYTES = 24, TOKEN_SIZE = 2 * TOKEN_BYTES };

/* The path of the token's file; its folder is made.  Caller frees. */
static char *token_path(const char *home, struct err *e)
{
    char *file;
    if (mkdir(home, 0700) != 0 && errno != EEXIST) {
        err_sys(e, "%s", home);
        return NULL;
    }
    if (asprintf(&file, "%s/admin.token", home) >= 0)
        return file;
    err_nomem(e, "path");
    return NULL;
}

static char *read_token(const char *path, const char *home, struct err *e)
{
    struct stat st;
    size_t size;
    if (stat(path, &st) != 0) {
        err_sys(e, "%s", path);
        return NULL;
    }
    if (!S_ISREG(st.st_mode)) {
        err_set(e, ERR_IO, "%s: is not a regular file", path);
        return NULL;
    }
    if (file_is_ours(path, &st, home, e))
        return NULL;
    char *text = file_read(path, 4096, &size, e);
    if (!text)
        return NULL;
    text[strcspn(text, "\r\n")] = '\0';
    if (strlen(text) >= 16)
        return text;
    err_set(e, ERR_FORMAT, "%s: the token has %zu characters, expected at least 16", path, strlen(text));
    free(text);
    return NULL;
}

static int write_token(const char *path, struct err *e)
{
    unsigned char random[TOKEN_BYTES];
    char text[TOKEN_SIZE + 2];
    struct atomic_file f;
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random)
        return err_sys(e, "random numbers");
    for (int i = 0; i < TOKEN_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", random[i]);
    text[TOKEN_SIZE] = '\n';
    mode_t before = umask(077);
    int rc = atomic_open(&f, path, e);
    umask(before);
    if (rc != 0)
        return -1;
    if (fchmod(f.fd, 0600) != 0 || atomic_write(&f, text, TOKEN_SIZE + 1, e) != 0) {
        atomic_abort(&f);
        return -1;
    }
    return atomic_commit(&f, e);
}

char *admin_token(const char *home, struct err *e)
{
    char *path = token_path(home, e), *token = NULL;
    if (!path)
        return NULL;
    if (access(path, F_OK) == 0 || write_token(path, e) == 0)
        token = read_token(path, home, e);
    free(path);
    return token;
}
