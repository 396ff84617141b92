/* medusa.c - the memory of Medusa heads. */
#include "libcommon/model/medusa.h"

#include <stdlib.h>

enum { GROUP = 64 };

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

struct medusa *medusa_open(int n_heads, int n_blocks, int hidden_size, int vocab_size, struct err *e)
{
    const uint64_t bytes = medusa_bytes(n_heads, n_blocks, hidden_size, vocab_size);
    struct medusa *m = calloc(1, sizeof *m);
    if (!bytes || bytes > SIZE_MAX || !m) {
        free(m);
        if (bytes)
            err_nomem(e, "Medusa heads");
        else
            err_set(e, ERR_LIMIT, "%d Medusa heads of %d blocks, expected 1 to %d of at most %d", n_heads, n_blocks,
                    MEDUSA_MOST_HEADS, MEDUSA_MOST_BLOCKS);
        return NULL;
    }
    *m = (struct medusa){ .n_heads = n_heads, .n_blocks = n_blocks, .hidden_size = hidden_size,
                          .vocab_size = vocab_size, .bytes = (size_t)bytes };
    const size_t n_biases = (size_t)n_heads * (size_t)n_blocks * (size_t)hidden_size;
    m->linears = calloc((size_t)n_heads * (size_t)(n_blocks + 1), sizeof *m->linears);
    m->biases = calloc(n_biases + 1, sizeof *m->biases);
    m->data = aligned_alloc(64, (size_t)bytes - n_biases * sizeof *m->biases);
    if (!m->linears || !m->biases || !m->data) {
        medusa_close(m);
        err_nomem(e, "Medusa heads");
        return NULL;
    }
    size_t at = 0;
    for (int h = 0; h < n_heads; h++)
        for (int i = 0; i <= n_blocks; i++) {
            struct linear *l = medusa_linear(m, h, i);
            shape(&l->w, i, n_blocks, hidden_size, vocab_size, e);
            l->w.data = m->data + at;
            l->bias = i < n_blocks ? m->biases + (size_t)(h * n_blocks + i) * (size_t)hidden_size : NULL;
            at += up64(l->w.size);
        }
    return m;
}

void medusa_close(struct medusa *m)
{
    if (!m)
        return;
    free(m->linears);
    free(m->biases);
    free(m->data);
    free(m);
}

struct linear *medusa_linear(const struct medusa *m, int head, int i)
{
    return m->linears + head * (m->n_blocks + 1) + i;
}
