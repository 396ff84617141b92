/* prescan.h - a pass over the JSON text of a body before jansson makes a tree of it.
 *
 * A tree takes up to 90 times as much memory as its text ("[{},{},{}]"), so its size is computed
 * first.  Ignored members of the body (FIELD_IGNORED) are overwritten with blanks, so they never
 * become part of the tree. */
#ifndef ZSE_SERVE_API_PRESCAN_H
#define ZSE_SERVE_API_PRESCAN_H

#include <stddef.h>

#include "libcommon/serve/fields.h"

enum { JSON_DEPTH = 512 };              /* most levels of a body */
enum { JSON_WRITER_BYTES = JSON_DEPTH * 128 };  /* jansson's records of the levels that it writes */

struct prescan {
    size_t tree_bytes;                  /* upper bound of jansson's allocations for the tree, on a 64-bit glibc */
    size_t text_bytes;                  /* bytes of strings */
    size_t n_blanked;                   /* bytes of ignored members; the text keeps its size, lines and columns */
};
/* Scan a body of this kind and blank its ignored members.  Returns 0; -1 with *pr if the text has
 * more than JSON_DEPTH levels, or an ignored member occurs twice.  Malformed text is left to
 * jansson, which refuses it; the allocations of jansson before that are counted, too. */
int prescan_body(char *text, size_t size, body_set kind, struct prescan *p, struct problem *pr);

/* Upper bound of the bytes of the tree of a JSON text that is valid. */
size_t prescan_tree(const char *text, size_t size);

#endif
