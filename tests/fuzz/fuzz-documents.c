/* fuzz-documents.c - any bytes as a document of each type that no other program reads: the
 * extracted text must be valid, and its chunks must lie inside it. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "libcommon/base/utf8.h"
#include "libcommon/rag/chunks.h"
#include "libcommon/rag/extract.h"
#include "libcommon/rag/words.h"

static int hold(void *user, size_t bytes)
{
    (void)user;
    return bytes > 96 << 20 ? -1 : 0;
}

static void check(const struct rag_text *t, size_t tokens)
{
    const struct chunk_options o = { .tokens = tokens, .overlap = tokens / 8, .markdown = t->markdown };
    struct query_words w;
    struct chunk_list l;
    struct err e;
    if (utf8_valid(t->text, t->size) != t->size || memchr(t->text, 0, t->size))
        abort();
    if (chunks_cut(t->text, t->size, &o, &l, &e))
        return;
    for (int i = 0; i < l.n; i++) {
        const struct chunk *c = &l.chunk[i];
        if (c->offset + c->size > t->size || utf8_valid(t->text + c->offset, c->size) != c->size)
            abort();
    }
    chunks_release(&l);
    free(words_spaced(t->text, t->size, NULL));
    if (words_of_query(t->text, t->size, &w, &e) == 0)
        query_words_release(&w);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct rag_budget budget = { hold, NULL, 0 };
    const struct rag_extract_options o = { .budget = &budget };
    struct rag_text t;
    struct err e;
    if (size < 2)
        return 0;
    for (int type = 0; type < RAG_TYPES; type++) {
        budget.used = 0;
        if (type == RAG_PDF || rag_extract((enum rag_type)type, data + 1, size - 1, &o, &t, &e))
            continue;
        check(&t, 1 + data[0]);
        rag_text_release(&t);
    }
    return 0;
}
