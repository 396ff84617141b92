/* chat_complete.c - complete words in a conversation: commands, settings, names of models. */
#include "cmd/chat_session.h"

#include <stdlib.h>
#include <string.h>

#include "cmd/home.h"
#include "libcommon/store/store.h"

/* Append a copy of a word that begins with the n bytes at `begin`. */
static void add(struct completions *c, const char *word, const char *begin, size_t n)
{
    if (strncmp(word, begin, n) != 0 || c->n == MAX_COMPLETIONS)
        return;
    if ((c->word[c->n] = strdup(word)))
        c->n++;
}

static void add_models(struct completions *c, const char *begin, size_t n)
{
    struct store_model *list = NULL;
    struct err e;
    char *folder = home_models(&e);
    const int n_models = folder ? store_list(folder, &list, &e) : -1;
    for (int i = 0; i < n_models; i++)
        add(c, list[i].name, begin, n);
    free(list);
    free(folder);
}

void chat_complete(struct completions *c, const char *line, size_t size)
{
    const char *space = memchr(line, ' ', size);
    const size_t first = space ? (size_t)(space - line) : size;
    const char *word = line + first + (space != NULL), *name;
    const size_t n = size - (size_t)(word - line);
    memset(c, 0, sizeof *c);
    if (!size || line[0] != '/' || (space && memchr(word, ' ', n)))
        return;
    if (!space) {
        for (int i = 0; (name = session_command_name(i)); i++)
            add(c, name, line, size);
        c->begun = size;
    } else if (first == strlen("/set") && strncmp(line, "/set", first) == 0) {
        for (int i = 0; i < N_SAMPLING_OPTIONS; i++)
            add(c, sampling_options[i].flag, word, n);
        add(c, "seed", word, n);
        add(c, "max-tokens", word, n);
        c->begun = n;
    } else if (first == strlen("/model") && strncmp(line, "/model", first) == 0) {
        add_models(c, word, n);
        c->begun = n;
    }
}

size_t completions_common(const struct completions *c)
{
    size_t common = c->n ? strlen(c->word[0]) : 0;
    for (int i = 1; i < c->n; i++)
        for (size_t k = 0; k < common; k++)
            if (c->word[i][k] != c->word[0][k])
                common = k;
    return common;
}

void completions_release(struct completions *c)
{
    while (c->n)
        free(c->word[--c->n]);
}
