/* t-config-counts.c - change every count in a model's configuration by one, double it, make it 0
 * and negative, and make every list one element shorter and longer: the model either computes with
 * the change or is refused with a message.
 *
 * Models: the oracle folders of 2026.  Nearly all changes are refused by the configuration or by
 * the shapes of tensors, which is tested for all of them; a few of the accepted ones also run some
 * tokens.  ZSE_TEST_ALL=1 runs all of them. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <dirent.h>
#include <math.h>

#include "libcommon/base/json.h"
#include "libcommon/cpu/cpu.h"
#include "tests/unit/assemble.h"

enum { TOKENS = 20, RUNS = 4, BLOCKS = (TOKENS + KV_BLOCK - 1) / KV_BLOCK, MOST_SLOTS = 4096 };

/* One value of the configuration that is changed. */
struct slot { char path[160]; json_t *v; };

struct walk {
    struct source *s;
    struct slot slots[MOST_SLOTS];
    int n_slots, n_accepted, n_refused, n_run, runs_left;
};

static void collect(struct walk *w, const char *path, json_t *v)
{
    const char *key;
    json_t *inner;
    size_t i;
    char name[160];
    if (w->n_slots < MOST_SLOTS && (json_is_integer(v) || json_is_array(v))) {
        snprintf(w->slots[w->n_slots].path, sizeof name, "%s", path);
        w->slots[w->n_slots++].v = v;
    }
    json_object_foreach(v, key, inner) {
        snprintf(name, sizeof name, "%.100s.%.50s", path, key);
        collect(w, name, inner);
    }
    json_array_foreach(v, i, inner)
        if (i < 2) {                    /* two elements of a list stand for the others */
            snprintf(name, sizeof name, "%.140s[%zu]", path, i);
            collect(w, name, inner);
        }
}

static void check_says(const struct walk *w, const char *change, const struct err *e)
{
    if (e->code == ERR_NONE || strlen(e->msg) < 12 || !strchr(e->msg, ' '))
        fail_msg("%s: %s: refused without a sentence: %s", w->s->path, change, e->msg);
}

static void run(struct walk *w, const char *change)
{
    struct err e = { 0 };
    int32_t ids[TOKENS], table[BLOCKS];
    struct model *m = model_assemble(w->s, QT_F32, &e);
    if (!m) {
        check_says(w, change, &e);
        return;
    }
    const size_t vocab = (size_t)m->config.vocab_size;
    const struct backend_options o = { .n_threads = 1, .kv = kv_both(KV_F32), .n_blocks = BLOCKS,
                                       .n_states = config_state_bytes(&m->config) > 0, .max_tokens = TOKENS,
                                       .max_logits = 1, .exact = 1 };
    void *b = backend_cpu.open(m, &o, &e);
    float *logits = malloc(vocab * sizeof *logits);
    for (int i = 0; i < TOKENS; i++)
        ids[i] = (int32_t)((size_t)(7 * i + 3) % vocab);
    for (int i = 0; i < BLOCKS; i++)
        table[i] = i;
    assert_non_null(logits);
    if (!b) {
        check_says(w, change, &e);
    } else {
        const struct batch_item item = { .tokens = ids, .n_tokens = TOKENS, .table = table, .n_logits = 1 };
        if (backend_cpu.forward(b, &(struct batch){ &item, 1 }, logits, &e) < 0)
            check_says(w, change, &e);
        else
            for (size_t i = 0; i < vocab; i++)
                if (!isfinite(logits[i]))
                    fail_msg("%s: %s: logit %zu is %g", w->s->path, change, i, (double)logits[i]);
        backend_cpu.close(b);
    }
    free(logits);
    model_close(m);
    w->n_run++;
}

static void attempt(struct walk *w, const char *change)
{
    struct err e = { 0 };
    struct config c;
    struct weight_spec *specs;
    int n, rc = config_parse(&c, w->s->config, &e);
    if (rc == 0) {
        rc = source_weights(&c, w->s, 0, &specs, &n, NULL, NULL, &e);
        if (rc == 0)
            free(specs);
        config_release(&c);
    }
    if (rc < 0) {
        check_says(w, change, &e);
        w->n_refused++;
        return;
    }
    w->n_accepted++;
    if (w->runs_left > 0 || getenv("ZSE_TEST_ALL")) {
        w->runs_left--;
        run(w, change);
    }
}

static void change_number(struct walk *w, const struct slot *at)
{
    const json_int_t was = json_integer_value(at->v), to[] = { was - 1, was + 1, 2 * was, 0, -1 };
    char change[200];
    for (size_t i = 0; i < sizeof to / sizeof *to; i++) {
        if (to[i] == was)
            continue;
        snprintf(change, sizeof change, "%s = %lld", at->path, (long long)to[i]);
        json_integer_set(at->v, to[i]);
        attempt(w, change);
    }
    json_integer_set(at->v, was);
}

static void change_list(struct walk *w, const struct slot *at)
{
    const size_t n = json_array_size(at->v);
    char change[200];
    json_t *last = n ? json_incref(json_array_get(at->v, n - 1)) : json_integer(1);
    snprintf(change, sizeof change, "%s one longer", at->path);
    json_array_append(at->v, last);
    attempt(w, change);
    json_array_remove(at->v, n);
    if (n) {
        snprintf(change, sizeof change, "%s one shorter", at->path);
        json_array_remove(at->v, n - 1);
        attempt(w, change);
        json_array_append(at->v, last);
    }
    json_decref(last);
}

static int visible(const struct dirent *d) { return d->d_name[0] != '.'; }

static void changed_counts_compute_or_are_refused(void **state)
{
    (void)state;
    const char *root = getenv("ZSE_ORACLES"), *only = getenv("ZSE_TEST_FOLDER");
    char folder[300], path[600];
    struct dirent **names;
    snprintf(folder, sizeof folder, "%s/models/hf-2026", root ? root : "../shared/oracles");
    const int n = scandir(folder, &names, visible, alphasort);
    if (n < 0) {
        print_message("# skipped: no oracles (set ZSE_ORACLES)\n");
        skip();
    }
    struct walk *w = calloc(1, sizeof *w);
    assert_non_null(w);
    for (int i = 0; i < n; i++) {
        struct err e;
        snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name);
        const int wanted = !only || strcmp(only, names[i]->d_name) == 0;
        free(names[i]);
        if (!wanted)
            continue;
        w->s = source_open(path, &e);
        if (!w->s)
            fail_msg("%s: %s", path, e.msg);
        w->n_slots = 0;
        w->runs_left = RUNS;
        collect(w, "config", w->s->config);
        for (int k = 0; k < w->n_slots; k++)
            if (json_is_integer(w->slots[k].v))
                change_number(w, &w->slots[k]);
            else
                change_list(w, &w->slots[k]);
        source_close(w->s);
    }
    free(names);
    print_message("# %d configurations refused, %d accepted, of which %d ran\n", w->n_refused, w->n_accepted, w->n_run);
    assert_true(only || (w->n_refused > 1000 && w->n_run > 100));
    free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(changed_counts_compute_or_are_refused) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
