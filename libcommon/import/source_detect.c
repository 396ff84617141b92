/* source_detect.c - tell folders, GGUF files, .zse files and config.json apart. */
#include "libcommon/import/internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "libcommon/base/suffix.h"

/* ---- detection ---- */

int source_is_shard(const struct dirent *d) { return ends_with(d->d_name, ".safetensors"); }

static int count_files(const char *dir, int (*want)(const struct dirent *), struct err *e)
{
    struct dirent **list;
    int n = scandir(dir, &list, want, NULL);
    if (n < 0)
        return err_sys(e, "%s", dir);
    for (int i = 0; i < n; i++)
        free(list[i]);
    free(list);
    return n;
}

static int has_tokenizer(const char *dir)
{
    return source_has(dir, "tokenizer.json") || source_has(dir, "tokenizer.model") ||
           (source_has(dir, "vocab.json") && source_has(dir, "merges.txt"));
}

static enum source_kind detect_folder(const char *path, struct err *e)
{
    const int config = source_has(path, "config.json"), n = count_files(path, source_is_shard, e);
    if (n < 0)
        return SOURCE_NONE;
    if (config)
        return n ? SOURCE_FOLDER : SOURCE_CONFIG;
    if (n)
        err_set(e, ERR_FORMAT, "%s: a folder with safetensors but without config.json", path);
    else if (has_tokenizer(path))
        return SOURCE_TOKENIZER;
    else
        err_set(e, ERR_FORMAT, "%s: a folder without config.json, safetensors or tokenizer files", path);
    return SOURCE_NONE;
}

static enum source_kind detect_file(const struct map *m, struct err *e)
{
    uint64_t header = 0;
    if (m->size >= 4 && memcmp(m->data, "GGUF", 4) == 0)
        return SOURCE_GGUF;
    if (m->size >= 4 && memcmp(m->data, "ZSE", 4) == 0)
        return SOURCE_ZSE;
    size_t i = 0;
    while (i < m->size && i < 64 && strchr(" \t\r\n", m->data[i]) && m->data[i])
        i++;
    if (i < m->size && m->data[i] == '{')
        return SOURCE_CONFIG;
    if (m->size > 9)
        memcpy(&header, m->data, 8);
    if (header && header <= m->size - 8 && m->data[8] == '{')
        err_set(e, ERR_FORMAT, "%s: a safetensors file alone does not say which model it is; name its folder, with config.json", m->path);
    else if (m->size == 0)
        err_set(e, ERR_FORMAT, "%s: the file is empty", m->path);
    else
        err_set(e, ERR_FORMAT, "%s: neither a .zse file, a GGUF file, a config.json nor a model folder", m->path);
    return SOURCE_NONE;
}

enum source_kind source_detect(const char *path, struct err *e)
{
    struct stat st;
    if (stat(path, &st) < 0) {
        err_sys(e, "%s", path);
        return SOURCE_NONE;
    }
    if (S_ISDIR(st.st_mode))
        return detect_folder(path, e);
    struct map m;
    if (map_open(&m, path, e) < 0)
        return SOURCE_NONE;
    enum source_kind kind = detect_file(&m, e);
    map_close(&m);
    return kind;
}
