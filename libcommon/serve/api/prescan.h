/* prescan.h - a pass over the JSON text of a body before jansson makes a tree of it.
 *
 * A tree takes up to 90 times as much memory as its text ("[{},{},{}]"), so the tree's size is
 * worked out first, and members of the body that change nothing (FIELD_IGNORED) are blanked out:
 * they never become a tree. */
#ifndef ZSE_SERVE_API_PRESCAN_H
#define ZSE_SERVE_API_PRESCAN_H

#include <stddef.h>

#include "libcommon/serve/fields.h"

enum { JSON_DEPTH = 512 };              /* levels of a body */

struct prescan {
    size_t tree_bytes;                  /* upper bound of what jansson allocates for it, on a 64-bit glibc */
    size_t text_bytes;                  /* of its strings */
    /* bytes of members that are ignored; the text keeps its size, lines and columns */
    size_t n_blanked;
};
/* Blanks in text what a body of this kind ignores.  Malformed text is left to jansson, which
 * refuses it; what it builds before that is counted as well.  -1 with *pr: more than JSON_DEPTH
 * levels, or an ignored member is there twice. */
int prescan_body(char *text, size_t size, enum body_kind kind, struct prescan *p, struct problem *pr);

#endif
