/* id_map.c - a hash map from numbers to numbers, by open addressing. */
#include "libcommon/grammar/id_map.h"

#include <stdlib.h>
#include <string.h>

struct id_slot *id_map_at(struct id_map *m, uint64_t key, int *failed)
{
    if (2 * m->n >= m->room) {
        uint32_t room = m->room ? m->room * 2 : 64;
        struct id_slot *s = calloc(room, sizeof *s);
        if (!s) {
            *failed = 1;
            return NULL;
        }
        for (uint32_t i = 0; i < m->room; i++)
            if (m->slot[i].key) {
                uint32_t k = (uint32_t)((m->slot[i].key * 0x9E3779B97F4A7C15u) >> 32) & (room - 1);
                while (s[k].key)
                    k = (k + 1) & (room - 1);
                s[k] = m->slot[i];
            }
        free(m->slot);
        m->slot = s;
        m->room = room;
    }
    uint32_t k = (uint32_t)((key * 0x9E3779B97F4A7C15u) >> 32) & (m->room - 1);
    for (; m->slot[k].key; k = (k + 1) & (m->room - 1))
        if (m->slot[k].key == key)
            return &m->slot[k];
    m->slot[k] = (struct id_slot){ .key = key };
    m->n++;
    return &m->slot[k];
}

void id_map_clear(struct id_map *m)
{
    if (m->room > 4096) {               /* a large one would be slow to clear each time */
        free(m->slot);
        memset(m, 0, sizeof *m);
    } else if (m->n) {
        memset(m->slot, 0, m->room * sizeof *m->slot);
        m->n = 0;
    }
}
