/* history.c - the time of searches in the chat history, by how frequent the words are.
 *   make build/tests/bench/history && build/tests/bench/history FOLDER [CONVERSATIONS [MESSAGES]]
 * Fills FOLDER/chats.db with conversations (default: 10000) of 100 messages each (default), of
 * words with frequencies by Zipf's law, unless the file is there; a second owner has one
 * conversation.
 * Prints for each search the median and the largest time of 15, and the median and the largest
 * processor time, in milliseconds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/base/clock.h"
#include "libcommon/history/history.h"

enum { VOCABULARY = 50000, TRIES = 15 };

static uint64_t state = 88172645463325252u;

static uint64_t next(void)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

/* The number of a word: k with a probability of about 1 / (k log VOCABULARY). */
static unsigned zipf(void)
{
    unsigned k = 1;
    double u = (double)(next() >> 11) * 0x1p-53, sum = 1;
    while (u * 11.4 > sum && k < VOCABULARY) {  /* blocks whose lengths double have equal probabilities */
        sum += 0.69;
        k *= 2;
    }
    return (k + (unsigned)(next() % k)) % VOCABULARY;
}

static int word(char *out, unsigned k)
{
    static const char *const parts[] = { "ba", "ce", "di", "fo", "gu", "ka", "le", "mi", "no", "pu", "ra", "se", "ti", "vo",
                                         "zu", "sha" };
    int n = 0;
    do {
        n += sprintf(out + n, "%s", parts[k % 16]);
        k /= 16;
    } while (k);
    return n;
}

static json_t *message(int id)
{
    char text[4096];
    int n = 0;
    for (int i = 0, words = id % 2 ? 15 : 65; i < words; i++) {
        n += word(text + n, zipf());
        text[n++] = i % 12 == 11 ? '.' : ' ';
    }
    text[n] = '\0';
    json_t *m = json_pack("{s:i, s:s, s:s%, s:i}", "id", id, "role", id % 2 ? "user" : "assistant", "content", text, (size_t)n,
                          "tokens", n / 4);
    if (id > 1)
        json_object_set_new(m, "parent_id", json_integer(id - 1));
    return m;
}

static int add_conversation(struct history *h, const char *owner, int messages, struct history_problem *p)
{
    char title[200];
    int n = 0;
    for (int i = 0; i < 5; i++) {
        n += word(title + n, zipf());
        title[n++] = ' ';
    }
    title[n] = '\0';
    json_t *list = json_array();
    for (int i = 1; i <= messages; i++)
        json_array_append_new(list, message(i));
    json_t *doc = json_pack("{s:s, s:i, s:{s:s}, s:o}", "format", "zse-chat", "version", 1, "conversation", "title", title,
                            "messages", list);
    json_t *made = history_import(h, owner, doc, 1, p);
    json_decref(doc);
    json_decref(made);
    return made ? 0 : -1;
}

static int fill(const char *folder, int conversations, int messages)
{
    struct history_problem p;
    const struct history_limits limits = { .bytes = (int64_t)1 << 40 };
    struct history *h = history_open(folder, &limits, &p);
    const double start = clock_s();
    int rc = h ? 0 : -1;
    for (int i = 0; i < conversations && rc == 0; i++)
        rc = add_conversation(h, "", messages, &p);
    if (rc == 0)
        rc = add_conversation(h, "key 1", messages, &p);
    if (rc)
        fprintf(stderr, "history: %s\n", p.e.msg);
    else
        printf("filled in %.0f s\n", clock_s() - start);
    history_close(h);
    return rc;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int measure(struct history *h, const char *owner, const char *name, const char *query)
{
    struct history_problem p;
    double ms[TRIES], cpu[TRIES];
    size_t found = 0;
    for (int i = 0; i < TRIES; i++) {
        const double start = clock_s(), used = cpu_s();
        json_t *j = history_search(h, owner, query, 20, &p);
        ms[i] = (clock_s() - start) * 1e3;
        cpu[i] = (cpu_s() - used) * 1e3;
        if (!j) {
            fprintf(stderr, "history: %s\n", p.e.msg);
            return -1;
        }
        found = json_array_size(json_object_get(j, "results"));
        json_decref(j);
    }
    qsort(ms, TRIES, sizeof *ms, compare);
    qsort(cpu, TRIES, sizeof *cpu, compare);
    printf("%-44s %-28s %3zu %8.2f %8.2f %8.2f %8.2f\n", name, query, found, ms[TRIES / 2], ms[TRIES - 1], cpu[TRIES / 2],
           cpu[TRIES - 1]);
    return 0;
}

int main(int argc, char **argv)
{
    struct history_problem p;
    char path[4096], q[3][80], text[300];
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: history FOLDER [CONVERSATIONS [MESSAGES]]\n");
        return 2;
    }
    snprintf(path, sizeof path, "%s/chats.db", argv[1]);
    if (access(path, F_OK) && fill(argv[1], argc > 2 ? atoi(argv[2]) : 10000, argc > 3 ? atoi(argv[3]) : 100))
        return 1;
    struct history *h = history_open(argv[1], NULL, &p);
    if (!h) {
        fprintf(stderr, "history: %s\n", p.e.msg);
        return 1;
    }
    static const struct { const char *name; unsigned word[3]; int n; const char *form; } all[] = {
        { "the most frequent word", { 1 }, 1, "%s " }, { "a frequent word", { 40 }, 1, "%s " },
        { "a word in 1 of 300 messages", { 2000 }, 1, "%s " }, { "a rare word", { 49000 }, 1, "%s " },
        { "no such word", { 0 }, 0, "xyzzy " }, { "two frequent words", { 1, 2 }, 2, "%s %s " },
        { "a frequent and a rare word", { 1, 49000 }, 2, "%s %s " }, { "two rare words, never together", { 48001, 49003 }, 2, "%s %s " },
        { "three words", { 3, 17, 300 }, 3, "%s %s %s " }, { "a phrase of frequent words", { 1, 2 }, 2, "\"%s %s\"" },
        { "a phrase that hardly occurs", { 17, 300, 1 }, 3, "\"%s %s %s\"" },
        { "a rare word, then a letter", { 49000 }, 1, "%s b" }, { "a rare word, then six letters", { 49000 }, 1, "%s bacedi" },
        { "one letter, as it is typed", { 0 }, 0, "b" }, { "two letters", { 0 }, 0, "ba" }, { "three letters", { 0 }, 0, "bac" },
        { "four letters", { 0 }, 0, "bace" }, { "six letters", { 0 }, 0, "bacedi" }, { "a word and a letter", { 17 }, 1, "%s b" },
    };
    printf("%-44s %-28s %3s %8s %8s %8s %8s\n", "search", "query", "n", "median", "max ms", "cpu", "max cpu");
    int rc = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all && !rc; i++) {
        for (int k = 0; k < 3; k++)
            word(q[k], all[i].word[k]);
        snprintf(text, sizeof text, all[i].n ? all[i].form : "%s", all[i].n ? q[0] : all[i].form, q[1], q[2]);
        rc = measure(h, "", all[i].name, text);
        if (!rc && i == 0)
            rc = measure(h, "key 1", "the same for an owner of one conversation", text);
    }
    history_close(h);
    return rc ? 1 : 0;
}
