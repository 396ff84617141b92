/* id_map.h - a hash map from numbers to numbers. */
#ifndef ZSE_GRAMMAR_ID_MAP_H
#define ZSE_GRAMMAR_ID_MAP_H

#include <stdint.h>

struct id_slot { uint64_t key; uint32_t value, cost; };         /* key 0: free */
struct id_map { struct id_slot *slot; uint32_t n, room; };      /* all zero: empty; slot is owned */

/* Returns the slot of a key (not 0).  If there is none, a new slot is made, with value and cost 0.
 * Valid until the next call.  NULL with *failed set if memory ran out. */
struct id_slot *id_map_at(struct id_map *m, uint64_t key, int *failed);
void id_map_clear(struct id_map *m);

#endif
