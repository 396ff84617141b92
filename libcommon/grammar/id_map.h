/* id_map.h - a hash map from numbers to numbers. */
#ifndef ZSE_GRAMMAR_ID_MAP_H
#define ZSE_GRAMMAR_ID_MAP_H

#include <stdint.h>

struct id_slot { uint64_t key; uint32_t value, cost; };         /* key 0: free */
struct id_map { struct id_slot *slot; uint32_t n, room; };      /* all zero: empty; slot is owned */

/* The slot of a key (not 0), a new one with value and cost 0 if there is none.  Valid until the
 * next call.  NULL without memory; then *failed is set. */
struct id_slot *id_map_at(struct id_map *m, uint64_t key, int *failed);
void id_map_clear(struct id_map *m);

#endif
