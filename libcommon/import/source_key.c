/* source_key.c - hash a source: the key of an automatic conversion, the stamp of its files. */
#include "libcommon/import/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/import/gguf.h"
#include "libcommon/import/packed.h"

/* Two 64-bit lanes.  Lane a xors each word in, lane b adds it; both then multiply by an odd
 * constant and mix by a shift, and lane b mixes in lane a.  (The constants are those of SplitMix64,
 * Steele et al. 2014.) */
struct hash { uint64_t a, b; };

static void hash_word(struct hash *h, uint64_t w)
{
    h->a = (h->a ^ w) * 0xbf58476d1ce4e5b9u;
    h->a ^= h->a >> 29;
    h->b = (h->b + w) * 0x94d049bb133111ebu;
    h->b ^= h->b >> 32 ^ h->a;
}

static void hash_bytes(struct hash *h, const void *data, size_t n)
{
    const uint8_t *p = data;
    hash_word(h, n);
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        hash_word(h, w);
    }
    uint64_t w = 0;
    memcpy(&w, p, n);
    hash_word(h, w);
}

/* Hash up to 64 KiB completely, larger data by 16 pieces of 256 bytes, spread evenly, including the
 * first and the last bytes. */
static void hash_sampled(struct hash *h, const uint8_t *data, size_t n)
{
    enum { WHOLE = 65536, PIECE = 256, PIECES = 16 };
    if (n <= WHOLE) {
        hash_bytes(h, data, n);
        return;
    }
    hash_word(h, n);
    for (size_t i = 0; i < PIECES; i++)
        hash_bytes(h, data + (n - PIECE) / (PIECES - 1) * i, PIECE);
    hash_bytes(h, data + n - PIECE, PIECE);
}

int source_key(const struct source *s, char hex[33], struct err *e)
{
    struct hash h = { 0x5a5345, 1 };
    if (source_wait(s, NULL, e) != 0)
        return -1;
    hash_word(&h, s->kind);
    for (int i = 0; i < s->n_files; i++) {
        hash_bytes(&h, s->files[i].name, strlen(s->files[i].name));
        hash_bytes(&h, s->files[i].data, s->files[i].size);
    }
    if (s->gguf)
        hash_bytes(&h, s->gguf->map.data, (size_t)s->gguf->data_offset);
    for (int i = 0; i < s->n_tensors; i++) {
        const struct source_tensor *t = &s->tensors[i];
        hash_bytes(&h, t->name, strlen(t->name));
        hash_word(&h, (uint64_t)t->type);
        hash_bytes(&h, t->dim, sizeof t->dim);
        hash_sampled(&h, t->data, t->size);
        const struct packed *p = t->packed;
        const struct source_tensor *const parts[] = { p ? &p->scale : NULL, p ? &p->zeros : NULL,
                                                      p ? &p->order : NULL };
        for (int k = 0; p && k < 3; k++)
            if (parts[k]->data)
                hash_sampled(&h, parts[k]->data, parts[k]->size);
    }
    const struct source_inner *in = s->private_;
    for (int i = 0; in && i < in->n_adapters; i++) {
        hash_bytes(&h, in->adapters[i]->config_map.data, in->adapters[i]->config_map.size);
        hash_bytes(&h, in->adapters[i]->map.data, in->adapters[i]->map.size);
    }
    if (s->config && s->n_files == 0 && !s->gguf) {             /* a bare config.json */
        char *text = json_dumps(s->config, JSON_SORT_KEYS | JSON_COMPACT);
        if (!text)
            return err_nomem(e, "config");
        hash_bytes(&h, text, strlen(text));
        free(text);
    }
    snprintf(hex, 33, "%016" PRIx64 "%016" PRIx64, h.a, h.b);
    return 0;
}

uint64_t source_stamp(const struct source *s)
{
    const struct source_inner *in = s->private_;
    struct hash h = { 0x5a5345, 2 };
    for (int i = 0; in && i < in->n_shards; i++) {
        hash_word(&h, in->shards[i]->map.size);
        hash_word(&h, (uint64_t)in->shards[i]->map.changed_ns);
    }
    for (int i = 0; in && i < in->n_adapters; i++) {
        hash_word(&h, in->adapters[i]->map.size);
        hash_word(&h, (uint64_t)in->adapters[i]->map.changed_ns);
    }
    for (int i = 0; s->gguf && i <= s->gguf->n_parts; i++) {
        const struct map *m = i ? &s->gguf->parts[i - 1]->map : &s->gguf->map;
        hash_word(&h, m->size);
        hash_word(&h, (uint64_t)m->changed_ns);
    }
    return h.a ^ h.b;
}
