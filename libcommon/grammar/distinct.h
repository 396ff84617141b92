/* distinct.h - uniqueItems while an answer is generated: the items of open arrays.
 *
 * A context-free grammar cannot express that an item is new.  The grammar marks the arrays whose
 * items must differ (grammar.distinct); this module follows the text of such an array and stores
 * its items.  The grammar allows only one way to write each string and number in these arrays, so
 * equal values are equal texts except for the order of properties. */
#ifndef ZSE_GRAMMAR_DISTINCT_H
#define ZSE_GRAMMAR_DISTINCT_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/grammar/expr.h"

struct distinct_item { uint32_t start, size; };
struct distinct_level {
    uint8_t is_array, is_distinct;
    /* in_item: an item has started; ended: it has ended, and a comma or the bracket comes next */
    uint8_t in_item, ended;
    uint32_t start;                     /* offset of that item in the text */
    uint32_t first;                     /* index in `item` of the first of its earlier items */
};

/* All zero: no such array is open. */
struct distinct {
    /* the text since the beginning of the outermost open array with uniqueItems, without the blanks
     * between its parts */
    char *text; uint32_t n, room;
    struct distinct_level *level; uint32_t n_levels, room_levels;
    struct distinct_item *item; uint32_t n_items, room_items;
    uint32_t marks;                     /* number of open arrays whose items must differ */
    uint8_t in_string, escaped;
};

void distinct_release(struct distinct *d);
/* 0, or -1 without memory; then *to is all zero. */
int distinct_copy(struct distinct *to, const struct distinct *from);
/* Process the next byte of a text that the grammar allows.  marks: number of open arrays with
 * uniqueItems after this byte.  Returns 0; 1 if an item repeats an earlier one, or an object has a
 * name twice; -1 if memory runs out. */
int distinct_byte(struct distinct *d, int byte, uint32_t marks);
/* The texts that would complete a repetition of an earlier item, sorted by bytes: the remainders of
 * those earlier items that start with the text of the current one. */
struct distinct_rests {
    struct byte_span *v; uint32_t n;         /* v: owned by the caller */
    int comma;                          /* the comma after the previous item is still to come */
    int in_string, escaped;             /* state at the end of the text */
};
/* 0, or -1 without memory. */
int distinct_rests(const struct distinct *d, const struct distinct_level *l, struct distinct_rests *r);
/* The state of a place in a JSON text: whether it is inside a string, and whether it follows a
 * backslash there.  distinct_follow() moves the place over the next byte. */
struct distinct_place { uint8_t in_string, escaped; };
void distinct_follow(struct distinct_place *p, int byte);

#endif
