/* response_store.h - the responses of /v1/responses, in memory, for previous_response_id and for
 * GET and DELETE /v1/responses/ID.
 *
 * The size and the number are bounded: if an owner has more than a quarter of either, its oldest
 * responses are dropped, and if all have more than all of it, the oldest of all.  A response is
 * used only by its owner, and for at most a day.  Belongs to the loop's thread. */
#ifndef ZSE_SERVE_RESPONSE_STORE_H
#define ZSE_SERVE_RESPONSE_STORE_H

#include <stddef.h>
#include <stdint.h>

struct conn;
struct loop;
struct response_store;

/* A response.  The texts are '\0'-terminated. */
struct kept_response {
    char *json; size_t json_size;       /* the object of the API; NULL: GET does not find it */
    /* the items of its input and output, and of the responses before it: the elements of a JSON
     * list without the brackets */
    char *items; size_t items_size;
};

/* most: bytes; 0: nothing is kept.  NULL without memory. */
struct response_store *response_store_open(size_t most);
void response_store_close(struct response_store *s);    /* NULL is fine */
/* 1 if a response whose texts have `bytes` bytes together can be kept. */
int response_store_fits(const struct response_store *s, size_t bytes);
/* Keep a response; the texts are copied.  socket not NULL: only later requests on this WebSocket
 * may use it, and only until they keep another one; json is not kept.  Without memory nothing is
 * kept. */
void response_store_put(struct response_store *s, const char *id, uint64_t owner, const struct conn *socket,
                        const struct kept_response *r);
/* The owner's response; socket: the WebSocket that asks, else NULL.  NULL: there is none.  Borrowed
 * until the next put, delete or tick. */
const struct kept_response *response_store_find(struct response_store *s, const char *id, uint64_t owner,
                                                const struct conn *socket);
int response_store_delete(struct response_store *s, const char *id, uint64_t owner);    /* 1; 0: there is none */
/* Drop the responses that are a day old, and those of WebSockets that are closed. */
void response_store_tick(struct response_store *s, struct loop *loop);

#endif
