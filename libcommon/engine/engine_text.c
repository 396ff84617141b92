/* engine_text.c - turn the ids of an answer into text, up to a stop string. */
#include "libcommon/engine/engine_text.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/utf8.h"

static int reserve(struct answer_text *a, size_t room, struct err *e)
{
    if (room <= a->room)
        return 0;
    char *p = realloc(a->held, room);
    if (!p)
        return err_nomem(e, "text of an answer");
    a->held = p;
    a->room = room;
    return 0;
}

int answer_text_init(struct answer_text *a, const struct tokenizer *t, int keep_special, const char *const *stop,
                     int n_stop, struct err *e)
{
    memset(a, 0, sizeof *a);
    if (!t)
        return n_stop ? err_set(e, ERR_UNSUPPORTED, "stop strings need a tokenizer") : 0;
    if (detok_init(&a->detok, t, !keep_special, e) != 0)
        return -1;
    a->t = t;
    if (n_stop == 0)
        return 0;
    size_t longest = 0;
    a->stop = calloc((size_t)n_stop, sizeof *a->stop);
    a->stop_size = calloc((size_t)n_stop, sizeof *a->stop_size);
    if (!a->stop || !a->stop_size)
        return err_nomem(e, "stop strings");
    for (a->n_stop = 0; a->n_stop < n_stop; a->n_stop++) {
        const char *s = stop[a->n_stop];
        size_t size = strlen(s);
        if (size == 0 || utf8_valid(s, size) != size)
            return err_set(e, ERR_FORMAT, "stop string %d: %s", a->n_stop + 1, size ? "is not UTF-8" : "is empty");
        if (!(a->stop[a->n_stop] = strdup(s)))
            return err_nomem(e, "stop strings");
        a->stop_size[a->n_stop] = size;
        longest = size > longest ? size : longest;
    }
    return reserve(a, longest + 1024, e);
}

void answer_text_release(struct answer_text *a)
{
    if (a->t)
        detok_release(&a->detok);
    for (int i = 0; i < a->n_stop; i++)
        free(a->stop[i]);
    free(a->stop);
    free(a->stop_size);
    free(a->held);
    memset(a, 0, sizeof *a);
}

static int hold(struct answer_text *a, const char *text, size_t size, struct err *e)
{
    if (reserve(a, a->n_held + size, e) != 0)
        return -1;
    if (size)
        memcpy(a->held + a->n_held, text, size);
    a->n_held += size;
    return 0;
}

/* Offset of the first complete stop string in the held text (n_held if there is none), and its
 * number in *number. */
static size_t find_stop(const struct answer_text *a, int *number)
{
    for (size_t at = 0; at < a->n_held; at++)
        for (int i = 0; i < a->n_stop; i++)
            if (a->stop_size[i] <= a->n_held - at && memcmp(a->held + at, a->stop[i], a->stop_size[i]) == 0) {
                *number = i + 1;
                return at;
            }
    return a->n_held;
}

/* Offset in the held text from which on it could be the start of a stop string. */
static size_t find_beginning(const struct answer_text *a)
{
    for (size_t at = 0; at < a->n_held; at++)
        for (int i = 0; i < a->n_stop; i++)
            if (a->stop_size[i] > a->n_held - at && memcmp(a->held + at, a->stop[i], a->n_held - at) == 0)
                return at;
    return a->n_held;
}

int answer_text_push(struct answer_text *a, int32_t id, int last, const char **text, size_t *size, int *stopped,
                     struct err *e)
{
    const char *piece = "";
    size_t n = 0;
    *text = "";
    *size = 0;
    *stopped = 0;
    if (!a->t)
        return 0;
    if (a->given) {
        a->n_held -= a->given;
        memmove(a->held, a->held + a->given, a->n_held);
        a->given = 0;
    }
    /* an id without a token, as in a padded vocabulary, has no text */
    if (id >= 0 && tokenizer_token(a->t, id, &n)) {
        if (detok_push(&a->detok, id, &piece, &n, e) != 0)
            return -1;
    } else {
        n = 0;
    }
    if (hold(a, piece, n, e) != 0)
        return -1;
    if (last && (detok_flush(&a->detok, &piece, &n, e) != 0 || hold(a, piece, n, e) != 0))
        return -1;
    size_t end = a->no_stops ? a->n_held : find_stop(a, stopped);
    if (!*stopped && !last && !a->no_stops)
        end = find_beginning(a);
    if (end)
        *text = a->held;
    *size = a->given = end;
    return 0;
}
