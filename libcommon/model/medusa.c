/* medusa.c - lay out Medusa heads in memory, in the form of their section in a file. */
#include "libcommon/model/medusa.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { GROUP = 64 };

/* The head of the section; matrices follow it, then biases. */
struct section_head {
    uint32_t n_heads, n_blocks, hidden_size, vocab_size;
    uint32_t type, group_size;          /* QT_I8, GROUP */
    uint32_t zero[10];
};
_Static_assert(sizeof(struct section_head) == 64, "section MDSA");

/* Set the shape of linear layer i of a head. */
static int shape(struct mat *m, int i, int n_blocks, int hidden_size, int vocab_size, struct err *e)
{
    return mat_init(m, QT_I8, GROUP, GROUP, i < n_blocks ? hidden_size : vocab_size, hidden_size, e);
}

static size_t up64(size_t n) { return (n + 63) / 64 * 64; }

uint64_t medusa_bytes(int n_heads, int n_blocks, int hidden_size, int vocab_size)
{
    struct mat block, logits;
    struct err ignored;
    if (n_heads < 1 || n_heads > MEDUSA_MOST_HEADS || n_blocks < 0 || n_blocks > MEDUSA_MOST_BLOCKS ||
        shape(&block, 0, 1, hidden_size, vocab_size, &ignored) < 0 ||
        shape(&logits, 0, 0, hidden_size, vocab_size, &ignored) < 0 || logits.size > UINT64_MAX / 1024 ||
        block.size > UINT64_MAX / 1024)
        return 0;
    return (uint64_t)n_heads * ((uint64_t)n_blocks * (up64(block.size) + (uint64_t)hidden_size * sizeof(float)) +
                                up64(logits.size));
}

/* Allocate the struct, without a section.  NULL with *e. */
static struct medusa *make(int n_heads, int n_blocks, int hidden_size, int vocab_size, struct err *e)
{
    const uint64_t bytes = medusa_bytes(n_heads, n_blocks, hidden_size, vocab_size);
    if (!bytes || bytes > SIZE_MAX / 2) {
        err_set(e, ERR_LIMIT, "%d Medusa heads of %d blocks, expected 1 to %d of at most %d", n_heads, n_blocks,
                MEDUSA_MOST_HEADS, MEDUSA_MOST_BLOCKS);
        return NULL;
    }
    struct medusa *m = calloc(1, sizeof *m);
    struct linear *linears = calloc((size_t)n_heads * (size_t)(n_blocks + 1), sizeof *linears);
    if (!m || !linears) {
        free(m);
        free(linears);
        err_nomem(e, "Medusa heads");
        return NULL;
    }
    *m = (struct medusa){ .n_heads = n_heads, .n_blocks = n_blocks, .hidden_size = hidden_size,
                          .vocab_size = vocab_size, .linears = linears, .bytes = (size_t)bytes,
                          .section_bytes = sizeof(struct section_head) + (size_t)bytes };
    return m;
}

/* Set the linear layers of a section. */
static void bind(struct medusa *m, const uint8_t *section)
{
    const size_t n_biases = (size_t)m->n_heads * (size_t)m->n_blocks * (size_t)m->hidden_size;
    const float *biases = (const void *)(section + m->section_bytes - n_biases * sizeof *biases);
    const uint8_t *at = section + sizeof(struct section_head);
    struct err never;
    m->section = section;
    for (int h = 0; h < m->n_heads; h++)
        for (int i = 0; i <= m->n_blocks; i++) {
            struct linear *l = medusa_linear(m, h, i);
            shape(&l->w, i, m->n_blocks, m->hidden_size, m->vocab_size, &never);
            l->w.data = at;
            l->bias = i < m->n_blocks ? biases + (size_t)(h * m->n_blocks + i) * (size_t)m->hidden_size : NULL;
            at += up64(l->w.size);
        }
}

struct medusa *medusa_open(int n_heads, int n_blocks, int hidden_size, int vocab_size, struct err *e)
{
    struct medusa *m = make(n_heads, n_blocks, hidden_size, vocab_size, e);
    if (!m)
        return NULL;
    const struct section_head head = { .n_heads = (uint32_t)n_heads, .n_blocks = (uint32_t)n_blocks,
                                       .hidden_size = (uint32_t)hidden_size, .vocab_size = (uint32_t)vocab_size,
                                       .type = QT_I8, .group_size = GROUP };
    if (!(m->owned = aligned_alloc(64, up64(m->section_bytes)))) {
        medusa_close(m);
        err_nomem(e, "Medusa heads");
        return NULL;
    }
    memset(m->owned, 0, up64(m->section_bytes));
    memcpy(m->owned, &head, sizeof head);
    bind(m, m->owned);
    return m;
}

struct medusa *medusa_bind(const void *section, size_t size, const struct config *c, struct err *e)
{
    struct section_head h;
    if (size < sizeof h) {
        err_set(e, ERR_FORMAT, "%zu bytes, expected at least %zu", size, sizeof h);
        return NULL;
    }
    memcpy(&h, section, sizeof h);
    if (h.type != QT_I8 || h.group_size != GROUP) {
        err_set(e, ERR_UNSUPPORTED, "number format %" PRIu32 " with groups of %" PRIu32 ", expected %d with %d", h.type,
                h.group_size, QT_I8, GROUP);
        return NULL;
    }
    if (h.hidden_size != (uint32_t)c->hidden_size || h.vocab_size != (uint32_t)c->vocab_size) {
        err_set(e, ERR_FORMAT, "heads of a model with hidden_size %" PRIu32 " and %" PRIu32 " tokens, this one has %d and %d",
                h.hidden_size, h.vocab_size, c->hidden_size, c->vocab_size);
        return NULL;
    }
    struct medusa *m = make(h.n_heads > INT32_MAX ? -1 : (int)h.n_heads, h.n_blocks > INT32_MAX ? -1 : (int)h.n_blocks,
                            c->hidden_size, c->vocab_size, e);
    if (m && m->section_bytes != size) {
        err_set(e, ERR_FORMAT, "%zu bytes, expected %zu for %d heads of %d blocks", size, m->section_bytes, m->n_heads,
                m->n_blocks);
        medusa_close(m);
        return NULL;
    }
    if (m)
        bind(m, section);
    return m;
}

void medusa_close(struct medusa *m)
{
    if (!m)
        return;
    free(m->linears);
    free(m->owned);
    free(m);
}

struct linear *medusa_linear(const struct medusa *m, int head, int i)
{
    return m->linears + head * (m->n_blocks + 1) + i;
}
