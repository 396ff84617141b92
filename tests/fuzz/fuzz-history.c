/* fuzz-history.c - the chat history with any bytes as a text, as a search, and as an imported
 * conversation, in our format, as Markdown and in those of other programs.  Checks that words lie
 * inside their text, that a search gives a result or a clean error, and that a successful import
 * can be exported and imported again with the same result. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "libcommon/base/utf8.h"
#include "libcommon/history/foreign.h"
#include "libcommon/history/internal.h"

static char folder[64];
static struct history *h;

static void close_all(void)
{
    static const char *const names[] = { "chats.db", "chats.db-wal", "chats.db-shm" };
    char path[128];
    history_close(h);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static void open_all(void)
{
    struct history_problem p;
    strcpy(folder, "/dev/shm/fuzz-history-XXXXXX");
    if (!mkdtemp(folder) || !(h = history_open(folder, NULL, &p)))
        abort();
    atexit(close_all);
}

static void read_words(const char *text, size_t size)
{
    struct word w;
    size_t at = 0, before = 0;
    while (word_next(text, size, &at, &w)) {
        if (at <= before || w.at < before || w.end <= w.at || w.end > size || w.n < 1 || w.n > 64 ||
            memchr(w.text, ' ', (size_t)w.n))
            abort();
        before = at;
    }
    free(words_of(text, size));
}

/* The file of a conversation without its id. */
static char *export_of(const char *id)
{
    struct history_problem p;
    char *name = NULL, *text = history_export_json(h, "", id, &name, &p), *at = text ? strstr(text, id) : NULL;
    if (!at)
        abort();
    memset(at, '0', HISTORY_ID);
    free(name);
    return text;
}

static void import_twice(const json_t *doc)
{
    struct history_problem p;
    json_t *one = history_import(h, "", doc, 1, &p);
    if (!one)
        return;
    const char *id = json_string_value(json_object_get(one, "id"));
    char *first = export_of(id);
    json_t *again = json_loads(first, 0, NULL), *two = history_import(h, "", again, 1, &p);
    if (!two)
        abort();
    char *second = export_of(json_string_value(json_object_get(two, "id")));
    if (strcmp(first, second) != 0 || history_delete(h, "", id, &p) ||
        history_delete(h, "", json_string_value(json_object_get(two, "id")), &p))
        abort();
    json_t *stats = history_stats(h, "", &p);
    if (json_integer_value(json_object_get(stats, "bytes")) || json_integer_value(json_object_get(stats, "messages")))
        abort();
    json_decref(stats);
    json_decref(one);
    json_decref(two);
    json_decref(again);
    free(first);
    free(second);
}

static void import_markdown(const char *text)
{
    struct history_problem p;
    json_t *doc = markdown_read(h, text, &p), *again;
    const json_t *conversation = json_object_get(doc, "conversation"), *messages = json_object_get(doc, "messages");
    if (!doc)
        return;
    import_twice(doc);
    char *written = markdown_write(conversation, messages, &p);
    if (!(again = markdown_read(h, written, &p)) || !json_equal(messages, json_object_get(again, "messages")))
        abort();
    json_decref(again);
    json_decref(doc);
    free(written);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct history_problem p = { 0 };
    if (!h)
        open_all();
    char *text = malloc(size + 1);
    memcpy(text, data, size);
    text[size] = '\0';
    read_words(text, size);
    json_t *found = history_search(h, "", text, 5, &p), *doc = json_loadb(text, size, 0, NULL);
    if (!found && p.fault != HISTORY_BAD_VALUE)
        abort();
    json_decref(found);
    if (json_is_object(doc)) {
        static const char *const formats[] = { "chatgpt", "open-webui", "lm-studio" };
        import_twice(doc);
        for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
            json_t *foreign = foreign_document(formats[i], doc, &p);
            if (foreign)
                import_twice(foreign);
            json_decref(foreign);
        }
    }
    if (utf8_valid(text, strlen(text)) == strlen(text))
        import_markdown(text);
    json_decref(doc);
    free(text);
    return 0;
}
