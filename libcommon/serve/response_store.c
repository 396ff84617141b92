/* response_store.c - keep responses in a list, the newest first. */
#include "libcommon/serve/response_store.h"

#include <stdlib.h>
#include <string.h>

#include "libcommon/base/clock.h"
#include "libcommon/http/conn.h"

enum { MOST = 4096 };                   /* responses of all owners; keeps the scans of the list short */

struct entry {
    struct entry *next;
    char id[48];
    uint64_t owner, made_ns;
    const struct conn *socket;          /* compared, never used; NULL: any connection of the owner */
    int alive;                          /* of a socket: it is still open */
    struct kept_response r;             /* owned */
};

struct response_store {
    size_t most, bytes;
    int n;
    struct entry *first;
};

struct response_store *response_store_open(size_t most)
{
    struct response_store *s = calloc(1, sizeof *s);
    if (s)
        s->most = most;
    return s;
}

static size_t entry_bytes(const struct entry *e)
{
    return sizeof *e + e->r.json_size + e->r.items_size + 2;
}

/* Remove the entry that *at points to. */
static void drop(struct response_store *s, struct entry **at)
{
    struct entry *e = *at;
    *at = e->next;
    s->bytes -= entry_bytes(e);
    s->n--;
    free(e->r.json);
    free(e->r.items);
    free(e);
}

void response_store_close(struct response_store *s)
{
    while (s && s->first)
        drop(s, &s->first);
    free(s);
}

/* Bytes that one owner may have. */
static size_t share(const struct response_store *s) { return s->most / 4; }

int response_store_fits(const struct response_store *s, size_t bytes)
{
    return bytes + sizeof(struct entry) + 2 <= share(s);
}

static void drop_oldest(struct response_store *s)
{
    struct entry **at = &s->first;
    while (*at && (*at)->next)
        at = &(*at)->next;
    if (*at)
        drop(s, at);
}

/* Keep the newest of an owner's entries, a quarter of the bytes and of the entries, so that no
 * owner pushes out what others keep. */
static void drop_beyond_share(struct response_store *s, uint64_t owner)
{
    size_t bytes = 0;
    int n = 0;
    for (struct entry **at = &s->first; *at;) {
        const int owned = (*at)->owner == owner;
        bytes += owned ? entry_bytes(*at) : 0;
        n += owned;
        if (owned && (bytes > share(s) || n > MOST / 4))
            drop(s, at);
        else
            at = &(*at)->next;
    }
}

static char *copy(const char *text, size_t size)
{
    char *out = text ? malloc(size + 1) : NULL;
    if (out) {
        memcpy(out, text, size);
        out[size] = '\0';
    }
    return out;
}

/* Drop what an earlier answer on this WebSocket left. */
static void drop_of_socket(struct response_store *s, const struct conn *socket)
{
    for (struct entry **at = &s->first; *at;) {
        if ((*at)->socket == socket)
            drop(s, at);
        else
            at = &(*at)->next;
    }
}

void response_store_put(struct response_store *s, const char *id, uint64_t owner, const struct conn *socket,
                        const struct kept_response *r)
{
    struct entry *e = response_store_fits(s, r->json_size + r->items_size) ? calloc(1, sizeof *e) : NULL;
    if (socket)
        drop_of_socket(s, socket);
    if (!e)
        return;
    strncpy(e->id, id, sizeof e->id - 1);
    e->owner = owner;
    e->made_ns = clock_ns();
    e->socket = socket;
    e->r.items = copy(r->items, r->items_size);
    e->r.items_size = r->items_size;
    if (!socket) {
        e->r.json = copy(r->json, r->json_size);
        e->r.json_size = r->json_size;
    }
    if (!e->r.items || (!socket && !e->r.json)) {
        free(e->r.items);
        free(e->r.json);
        free(e);
        return;
    }
    e->next = s->first;
    s->first = e;
    s->bytes += entry_bytes(e);
    s->n++;
    drop_beyond_share(s, owner);
    while (s->bytes > s->most || s->n > MOST)
        drop_oldest(s);
}

/* The link to the owner's entry; NULL: there is none. */
static struct entry **find(struct response_store *s, const char *id, uint64_t owner, const struct conn *socket)
{
    for (struct entry **at = &s->first; *at; at = &(*at)->next)
        if (strcmp((*at)->id, id) == 0 && (*at)->owner == owner && (!(*at)->socket || (*at)->socket == socket))
            return at;
    return NULL;
}

const struct kept_response *response_store_find(struct response_store *s, const char *id, uint64_t owner,
                                                const struct conn *socket)
{
    struct entry **at = find(s, id, owner, socket);
    return at ? &(*at)->r : NULL;
}

int response_store_delete(struct response_store *s, const char *id, uint64_t owner)
{
    struct entry **at = find(s, id, owner, NULL);
    if (at)
        drop(s, at);
    return at != NULL;
}

static void mark_alive(void *user, struct conn *c)
{
    const struct response_store *s = user;
    for (struct entry *e = s->first; e; e = e->next)
        e->alive |= e->socket == c;
}

void response_store_tick(struct response_store *s, struct loop *loop)
{
    static const uint64_t day_ns = UINT64_C(86400) * 1000000000;
    const uint64_t now = clock_ns();
    int sockets = 0;
    for (struct entry *e = s->first; e; e = e->next) {
        e->alive = 0;
        sockets |= e->socket != NULL;
    }
    if (sockets)
        loop_each_websocket(loop, mark_alive, s);
    for (struct entry **at = &s->first; *at;) {
        if (((*at)->socket && !(*at)->alive) || now - (*at)->made_ns > day_ns)
            drop(s, at);
        else
            at = &(*at)->next;
    }
}
