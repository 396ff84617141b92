/* chat_save.c - save a conversation as a JSON file (/save) and load it (/load). */
#include "cmd/zse-chat.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/file.h"
#include "libcommon/base/json.h"

enum { MOST_BYTES = 64 << 20 };

/* The messages of a saved conversation, or of a file that is only an array of messages.  New
 * reference; NULL: the file is neither. */
static json_t *read_messages(const char *path, struct err *e)
{
    json_t *j = js_load(path, MOST_BYTES, e), *messages = json_is_array(j) ? j : json_object_get(j, "messages"), *m;
    int bad = !json_is_array(messages);
    size_t i;
    json_array_foreach(messages, i, m)
        bad |= !json_is_string(json_object_get(m, "role")) || !json_is_string(json_object_get(m, "content"));
    if (j && bad)
        err_set(e, ERR_FORMAT, "%s: expected an array of messages with role and content", path);
    json_t *copy = j && !bad ? json_deep_copy(messages) : NULL;
    json_decref(j);
    return copy;
}

/* Remember this file, in its present state, as the one that holds the conversation. */
static void take_as_own(struct chat_file *f, const char *path)
{
    struct stat s;
    f->known = stat(path, &s) == 0;
    if (f->known) {
        f->dev = s.st_dev;
        f->ino = s.st_ino;
        f->changed = s.st_mtim;
    }
}

enum chat_file_kind chat_file_kind(const struct chat_file *f, const char *path, size_t *n_messages)
{
    struct stat s;
    struct err ignored;
    *n_messages = 0;
    /* a folder or pipe is reported when it is written */
    if (stat(path, &s) != 0 || !S_ISREG(s.st_mode) || s.st_size == 0)
        return CHAT_FILE_FREE;
    if (f->known && s.st_dev == f->dev && s.st_ino == f->ino && s.st_mtim.tv_sec == f->changed.tv_sec &&
        s.st_mtim.tv_nsec == f->changed.tv_nsec)
        return CHAT_FILE_OWN;
    json_t *messages = read_messages(path, &ignored);
    *n_messages = json_array_size(messages);
    json_decref(messages);
    return messages ? CHAT_FILE_CONVERSATION : CHAT_FILE_OTHER;
}

int chat_file_save(struct chat_file *own, const char *path, json_t *messages, struct err *e)
{
    struct atomic_file f;
    json_t *j = json_pack("{s:O}", "messages", messages);
    char *text = json_dumps(j, JSON_INDENT(1));
    json_decref(j);
    if (!text)
        return err_nomem(e, "conversation");
    int rc = atomic_open(&f, path, e);
    if (rc == 0 && (atomic_write(&f, text, strlen(text), e) != 0 || atomic_write(&f, "\n", 1, e) != 0 ||
                    atomic_commit(&f, e) != 0)) {
        atomic_abort(&f);
        rc = -1;
    }
    if (rc == 0)
        take_as_own(own, path);
    free(text);
    return rc;
}

json_t *chat_file_load(struct chat_file *own, const char *path, struct err *e)
{
    json_t *messages = read_messages(path, e);
    if (messages)
        take_as_own(own, path);
    return messages;
}
