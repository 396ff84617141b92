/* grammar.c - compile grammars, walk through them by their masks, and check texts; print the times.
 *     build/tests/bench/grammar VOCAB < requests > answers
 * VOCAB: a GGUF file or anything else with a tokenizer.  A request is a line of JSON:
 * {"schema"|"regex"|"gbnf": ..., "walks": N, "tokens": N, "seed": N, "texts": [...], "flexible":
 * true, "check": true}.  The answer: {"error": ...}, or compile_ms, walks (texts, null where the
 * walk was cut off), accepted (of texts: whole by bytes and by tokens), forced (tokens that were
 * forced), masks, mask_us (mean, p99, worst), and with check: differs, the number of bits in
 * which masks and the definition (a token may come next if its bytes may) differ.  steps: of the
 * costliest mask, and of all walks, as the limits count them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "libcommon/base/clock.h"
#include "libcommon/base/rng.h"
#include "libcommon/convert/tokenizer_source.h"
#include "libcommon/grammar/grammar.h"
#include "libcommon/grammar/matcher.h"

static struct tokenizer *tokenizer;
static struct grammar_vocab *vocab;
static double *times;
static uint64_t most_steps, sum_steps;         /* of one mask; of whole walks */
static size_t n_times, room;

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void took(uint64_t ns)
{
    if (n_times == room)
        times = realloc(times, (room = 2 * room + 1024) * sizeof *times);
    times[n_times++] = (double)ns * 1e-3;
}

static uint64_t below(struct rng *r, uint64_t n) { return rng_u64(r) % n; }

/* Number of bits of the mask that differ from the definition. */
static int differs(const struct matcher *m, const uint32_t *mask)
{
    int n = 0, n_eos;
    const int32_t *eos = tokenizer_eos(tokenizer, &n_eos);
    for (int32_t id = 0; id < vocab->size; id++) {
        struct matcher *f = matcher_fork(m);
        int is_eos = 0;
        for (int i = 0; i < n_eos; i++)
            is_eos |= eos[i] == id;
        int want = is_eos ? matcher_complete(m) : matcher_accept(f, id) == 0;
        n += want != (int)(mask[id >> 5] >> (id & 31) & 1);
        matcher_close(f);
    }
    return n;
}

/* Generate a text by choosing among the allowed tokens; after a third of the walk it prefers tokens
 * that close something, so that texts end. */
static json_t *walk(struct grammar *g, struct rng *r, int max_tokens, int check, int *n_forced, int *n_differs)
{
    struct err e;
    struct matcher *m = matcher_open(g, &e);
    char *text = NULL;
    size_t n = 0, size;
    int n_eos, ended = 0;
    const int32_t *eos = tokenizer_eos(tokenizer, &n_eos);
    for (int k = 0; m && k < max_tokens && !ended; k++) {
        int32_t forced[64], id = -1;
        int n_f = matcher_forced(m, forced, 64);
        const uint64_t before = m->spent;
        uint64_t t = clock_ns();
        const uint32_t *mask = matcher_mask(m);
        took(clock_ns() - t);
        if (m->spent - before > most_steps)
            most_steps = m->spent - before;
        if (check && k % 5 == 0)
            *n_differs += differs(m, mask);
        int words = (vocab->size + 31) / 32, count = 0;
        for (int i = 0; i < words; i++)
            count += __builtin_popcount(mask[i]);
        if (count == 0) {
            struct err e2 = { .msg = "" };
            matcher_error(m, &e2);
            json_t *x = json_pack("{s:s%, s:s}", "dead", text ? text : "", n, "why", e2.msg);
            matcher_close(m);
            free(text);
            return x;
        }
        int can_end = mask[eos[0] >> 5] >> (eos[0] & 31) & 1;
        if (n_f) {
            id = forced[0];
            *n_forced += 1;
        } else if (can_end && (count == n_eos || below(r, 3) == 0)) {
            id = eos[0];
        } else if (k > max_tokens / 3 && can_end) {
            id = eos[0];
        } else {
            static const char *const closers[] = { "\"", "}", "]", "\"}", "0", "1", "\\", "n" };
            for (size_t i = 0; k >= max_tokens / 3 && i < sizeof closers / sizeof *closers && id < 0; i++) {
                int32_t one = tokenizer_find(tokenizer, closers[i], strlen(closers[i]));
                if (one >= 0 && mask[one >> 5] >> (one & 31) & 1)
                    id = one;
            }
            if (id < 0) {
                int at = (int)below(r, (uint64_t)count), w = 0;
                while (at >= __builtin_popcount(mask[w]))
                    at -= __builtin_popcount(mask[w++]);
                uint32_t bits = mask[w];
                while (at--)
                    bits &= bits - 1;
                id = w * 32 + __builtin_ctz(bits);
            }
        }
        if (matcher_accept(m, id) != 0) {
            json_t *x = json_pack("{s:i, s:s%}", "refused", id, "after", text ? text : "", n);
            matcher_close(m);
            free(text);
            return x;
        }
        const char *p = grammar_vocab_bytes(vocab, id, &size);
        if (id == eos[0]) {
            ended = 1;
        } else if (p) {
            text = realloc(text, n + size + 1);
            memcpy(text + n, p, size);
            n += size;
        }
    }
    sum_steps += m ? m->spent : 0;
    matcher_close(m);
    json_t *x = ended ? json_stringn(text ? text : "", n) : json_null();
    if (!x)
        x = json_pack("{s:i}", "not UTF-8", (int)n);
    free(text);
    return x;
}

static int accepts(struct grammar *g, const char *text, size_t n)
{
    struct err e;
    struct matcher *m = matcher_open(g, &e), *k = matcher_open(g, &e);
    int ok = matcher_accept_bytes(m, text, n) == 0 && matcher_complete(m);
    int32_t *ids;
    size_t n_ids, i = 0;
    if (tokenizer_encode(tokenizer, text, n, 0, &ids, &n_ids, &e) == 0) {
        int ok2;
        while (i < n_ids && matcher_accept(k, ids[i]) == 0)
            i++;
        ok2 = i == n_ids && matcher_complete(k);
        if (ok2 != ok)
            ok = -1;
        free(ids);
    }
    matcher_close(m);
    matcher_close(k);
    return ok;
}

static json_t *answer(const json_t *q)
{
    struct grammar_options o = { .whitespace = json_is_true(json_object_get(q, "flexible")) ? GRAMMAR_WS_FLEXIBLE
        : GRAMMAR_WS_SINGLE };
    const json_t *schema = json_object_get(q, "schema"), *regex = json_object_get(q, "regex"),
                 *gbnf = json_object_get(q, "gbnf");
    char *text = schema ? json_dumps(schema, JSON_ENCODE_ANY | JSON_COMPACT)
                        : strdup(json_string_value(regex ? regex : gbnf));
    struct err e = { .msg = "" };
    uint64_t t = clock_ns();
    struct grammar *g = (schema ? grammar_compile_schema : regex
                         ? grammar_compile_regex : grammar_compile_gbnf)(vocab, text, strlen(text), &o, &e);
    double ms = (double)(clock_ns() - t) * 1e-6;
    free(text);
    if (!g)
        return json_pack("{s:s, s:f}", "error", e.msg, "compile_ms", ms);
    struct rng r;
    r.state = (uint64_t)json_integer_value(json_object_get(q, "seed")) + 1;
    json_t *a = json_pack("{s:f}", "compile_ms", ms), *walks = json_array(), *accepted = json_array(), *v;
    int n_walks = (int)json_integer_value(json_object_get(q, "walks")),
        max_tokens = (int)json_integer_value(json_object_get(q, "tokens")), forced = 0, wrong = 0;
    size_t i;
    n_times = 0;
    most_steps = sum_steps = 0;
    for (int k = 0; k < n_walks; k++)
        json_array_append_new(walks, walk(g, &r, max_tokens ? max_tokens : 200,
                                          json_is_true(json_object_get(q, "check")), &forced, &wrong));
    json_array_foreach(json_object_get(q, "texts"), i, v)
        json_array_append_new(accepted, json_integer(accepts(g, json_string_value(v), json_string_length(v))));
    double sum = 0;
    for (size_t k = 0; k < n_times; k++)
        sum += times[k];
    if (n_times)
        qsort(times, n_times, sizeof *times, by_value);
    struct grammar_stats s;
    grammar_stats(g, &s);
    json_object_set_new(a, "walks", walks);
    json_object_set_new(a, "accepted", accepted);
    json_object_set_new(a, "forced", json_integer(forced));
    json_object_set_new(a, "differs", json_integer(wrong));
    json_object_set_new(a, "masks", json_integer((json_int_t)n_times));
    json_object_set_new(a, "steps", json_pack("[I, I]", (json_int_t)most_steps, (json_int_t)sum_steps));
    if (n_times)
        json_object_set_new(a, "mask_us", json_pack("[f, f, f, f]", sum / (double)n_times, times[n_times / 2],
                                                    times[n_times * 99 / 100], times[n_times - 1]));
    json_object_set_new(a, "stats", json_pack("{s:i, s:i, s:i, s:i, s:f}", "exprs", (int)s.n_exprs, "rules",
                                              (int)s.n_rules, "states", (int)s.n_states, "masks", (int)s.n_masks, "MB",
                                              (double)s.bytes * 1e-6));
    grammar_close(g);
    return a;
}

int main(int argc, char **argv)
{
    void *blob;
    size_t size, line_room = 0;
    char *line = NULL;
    struct err e;
    if (argc != 2) {
        fprintf(stderr, "usage: grammar VOCAB\n");
        return 2;
    }
    if (tokenizer_from_path(argv[1], &blob, &size, &e) != 0 || !(tokenizer = tokenizer_open(blob, size, &e))) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    uint64_t t = clock_ns();
    if (!(vocab = grammar_vocab_open(tokenizer, 0, &e))) {
        fprintf(stderr, "%s\n", e.msg);
        return 1;
    }
    fprintf(stderr, "%d tokens, trie made in %.1f ms\n", vocab->size, (double)(clock_ns() - t) * 1e-6);
    while (getline(&line, &line_room, stdin) > 0) {
        json_error_t je;
        json_t *q = json_loads(line, 0, &je), *a = q ? answer(q) : json_pack("{s:s}", "error", "not JSON");
        json_dumpf(a, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
        putchar('\n');
        fflush(stdout);
        json_decref(a);
        json_decref(q);
    }
    free(line);
    free(times);
    grammar_vocab_close(vocab);
    tokenizer_close(tokenizer);
    free(blob);
    return 0;
}
