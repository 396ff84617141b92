/* fuzz-tokenizer.c - a tokenizer.json, then a line feed and '\0', then a text: compile, open,
 * encode, decode at once and id by id. */
#include "tests/fuzz/fuzz.h"

#include <assert.h>
#include <string.h>

#include "libcommon/token/tok_text.h"
#include "libcommon/token/tokenizer.h"

static void use(const struct tokenizer *t, const char *text, size_t n)
{
    struct err e;
    int32_t *ids;
    size_t n_ids, n_back;
    char *back;
    if (tokenizer_encode(t, text, n, TOKENIZE_PARSE_SPECIAL | TOKENIZE_ADD_SPECIAL, &ids, &n_ids, &e))
        return;
    if (tokenizer_decode(t, ids, n_ids, 0, &back, &n_back, &e) == 0) {
        struct detok d;
        struct tbuf all = { 0 };
        if (detok_init(&d, t, 0, &e) == 0) {
            const char *p;
            size_t n_p;
            int ok = 1;
            for (size_t i = 0; i <= n_ids && ok; i++) {
                ok = (i < n_ids ? detok_push(&d, ids[i], &p, &n_p, &e) : detok_flush(&d, &p, &n_p, &e)) == 0;
                if (ok)
                    tbuf_add(&all, p, n_p);
            }
            assert(!ok || (all.n == n_back && (n_back == 0 || memcmp(all.p, back, n_back) == 0)));
            detok_release(&d);
        }
        tbuf_release(&all);
        free(back);
    }
    free(ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char some[] = "Hello  w\xC3\xB6rld 123 <s>\n\xF0\x9F\x98\x80\xE2\x96\x81 ab\xFF";
    const uint8_t *end = memmem(data, size, "\n\0", 2);
    struct tokenizer_files f = { .tokenizer_json = (const char *)data,
                                 .tokenizer_json_size = end ? (size_t)(end - data) : size };
    struct err e;
    void *blob;
    size_t n;
    if (tokenizer_compile_files(&f, &blob, &n, &e))
        return 0;
    struct tokenizer *t = tokenizer_open(blob, n, &e);
    assert(t);                          /* our own output must be readable */
    use(t, some, sizeof some - 1);
    if (end)
        use(t, (const char *)end + 2, size - (size_t)(end + 2 - data));
    tokenizer_close(t);
    free(blob);
    return 0;
}
