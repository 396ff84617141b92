/* chat_files.c - files that become part of a prompt: -f FILE, @FILE among the arguments, /file. */
#include "cmd/zse-chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "libcommon/base/utf8.h"

/* A fence of Markdown for a text: three backticks, or one more than the text has in a row.
 * Malloc'd. */
static char *fence_for(const char *text)
{
    size_t longest = 2, n = 0;
    for (; *text; text++) {
        n = *text == '`' ? n + 1 : 0;
        longest = n > longest ? n : longest;
    }
    char *fence = malloc(longest + 2);
    if (fence) {
        memset(fence, '`', longest + 1);
        fence[longest + 1] = '\0';
    }
    return fence;
}

char *chat_read_text(const char *name, struct err *e)
{
    size_t size;
    char *path = cli_expand_home(name), *text = NULL;
    FILE *f = path ? fopen(path, "r") : NULL;
    if (!f)
        path ? err_sys(e, "%s", name) : err_nomem(e, "file");
    else
        text = chat_read_all(f, name, &size, e);
    if (text && (strlen(text) != size || utf8_valid(text, size) != size)) {
        err_set(e, ERR_FORMAT, "%s: it is not text in UTF-8", name);
        free(text);
        text = NULL;
    }
    if (f)
        fclose(f);
    free(path);
    return text;
}

int chat_attach(char **to, const char *name, int raw, struct err *e)
{
    char *text = chat_read_text(name, e), *fence = text ? fence_for(text) : NULL, *all = NULL;
    const char *before = *to ? *to : "";
    if (!text)
        return -1;
    const char *end = *text && text[strlen(text) - 1] != '\n' ? "\n" : "";
    if (!fence || (raw ? asprintf(&all, "%s%s", before, text)
                       : asprintf(&all, "%s%s:\n%s\n%s%s%s\n\n", before, name, fence, text, end, fence)) < 0)
        all = NULL;
    free(text);
    free(fence);
    if (!all)
        return err_nomem(e, "file");
    free(*to);
    *to = all;
    return 0;
}

int chat_attach_all(char **to, const struct chat_options *o, struct err *e)
{
    int rc = 0;
    for (int i = 0; rc == 0 && i < o->n_files; i++)
        rc = chat_attach(to, o->file[i], o->raw, e);
    return rc;
}
