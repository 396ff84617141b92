/* t-schedule.c - the same answer in every schedule: in hundreds of random schedules of a few
 * sequences the logits of each sequence are those, bit for bit, that it has alone.  The models are
 * a dense one and, from the oracles, some with mixtures of experts, sinks, chunked and latent
 * attention.  With the dense model the long sequences run with every pair of kernel set and type
 * of keys and values; with the others each type meets at most one kernel set.
 *
 * A schedule does what may happen to a request on a busy server: its prompt is cut anywhere, other
 * sequences run beside it, its blocks lie anywhere in the cache, its prefix is in blocks of another
 * sequence or in a copy of them, and drafts are tried and dropped.  Schedules run on 1 to 4
 * threads, with all kernel sets of this machine except the plain one (the kernels' own tests
 * compare it), and with all types of keys and values.  Two sequences are longer than the parts into
 * which attention is divided, and two layers see only a window of tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libcommon/base/rng.h"
#include "libcommon/cpu/cpu.h"
#include "tests/unit/tiny.h"

enum { SEQS = 6, LONGEST = 1100, THREADS = 4, MOST_TOKENS = 256, BLOCKS_EACH = LONGEST / KV_BLOCK + 2,
       BLOCKS = SEQS * BLOCKS_EACH, ROUNDS = 13, FEW_ROUNDS = 3 };

static const int length[SEQS] = { 1100, 690, 120, 64, 33, 17 };
static const int same[SEQS] = { 0, 600, 50, 0, 0, 5 };          /* number of first tokens that equal
                                                                 * those of the previous sequence */

struct sequence {
    int32_t ids[LONGEST];
    float *want;                    /* [length][vocab] */
};

static int below(struct rng *r, int n) { return (int)(rng_u64(r) % (unsigned)n); }

static void forward(void *b, const struct batch_item *items, int n, float *logits)
{
    struct err e;
    if (backend_cpu.forward(b, &(struct batch){ items, n }, logits, &e) != 0)
        fail_msg("%s", e.msg);
}

static void *open_backend(const struct model *m, int n_threads, enum kv_type kv, int max_tokens, const char *kernels)
{
    struct err e;
    const struct backend_options o = { .n_threads = n_threads, .kv = kv_both(kv), .n_blocks = BLOCKS,
                                       .n_states = 2 * SEQS,
                                       .max_tokens = max_tokens, .max_logits = max_tokens, .kernels = kernels };
    void *b = backend_cpu.open(m, &o, &e);
    if (!b)
        fail_msg("%s", e.msg);
    return b;
}

static void make_sequences(struct sequence *s, int vocab)
{
    struct rng r = { 7 };
    for (int i = 0; i < SEQS; i++) {
        for (int t = 0; t < length[i]; t++)
            s[i].ids[t] = t < same[i] ? s[i - 1].ids[t] : below(&r, vocab);
        s[i].want = malloc((size_t)length[i] * (size_t)vocab * sizeof *s[i].want);
        assert_non_null(s[i].want);
    }
}

/* Each alone and whole, on one thread. */
static void run_alone(const struct model *m, enum kv_type kv, struct sequence *s)
{
    int32_t table[BLOCKS_EACH];
    void *b = open_backend(m, 1, kv, LONGEST, NULL);
    for (int i = 0; i < BLOCKS_EACH; i++)
        table[i] = i;
    for (int i = 0; i < SEQS; i++)
        forward(b, &(struct batch_item){ .tokens = s[i].ids, .n_tokens = length[i], .table = table,
                                         .n_logits = length[i] }, 1, s[i].want);
    backend_cpu.close(b);
}

/* One sequence of a schedule. */
struct run { int n, at, drafts, recurrent, state; int32_t table[BLOCKS_EACH], ids[MOST_TOKENS]; };

static void copy_state(void *b, int from, int to)
{
    struct err e;
    if (backend_cpu.copy_state(b, from, to, &e) != 0)
        fail_msg("%s", e.msg);
}

/* Begin a sequence with tokens that sequence `from` has already computed: whole blocks are shared,
 * a last partial block is copied.  A recurrent state is copied only after all tokens of `from`,
 * because earlier states no longer exist.  Returns the number of tokens taken. */
static int reuse(void *b, const struct run *from, struct run *to, int most, struct rng *r)
{
    struct err e;
    if (to->recurrent && (from->at == 0 || from->at > most || from->at > to->n - 1))
        return 0;
    int n = from->at < most ? from->at : most;
    n = n < to->n - 1 ? n : to->n - 1;
    n = to->recurrent ? n : n > 0 ? below(r, n + 1) : 0;
    if (to->recurrent)
        copy_state(b, from->state, to->state);
    for (int i = 0; i < n / KV_BLOCK; i++)
        to->table[i] = from->table[i];
    if (n % KV_BLOCK && backend_cpu.copy_block(b, from->table[n / KV_BLOCK], to->table[n / KV_BLOCK], &e) != 0)
        fail_msg("%s", e.msg);
    return n;
}

static void check(const struct sequence *s, int seq, int pos, const float *got, size_t vocab, const char *what)
{
    const float *want = s[seq].want + (size_t)pos * vocab;
    for (size_t i = 0; i < vocab; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) != 0)
            fail_msg("%s: sequence %d: logit %zu after position %d is %.9g, alone it is %.9g", what, seq, i, pos,
                     (double)got[i], (double)want[i]);
}

/* The batch item of a sequence in this step: its next tokens, or sometimes its next token and a
 * wrong draft. */
static struct batch_item plan(struct run *run, const struct sequence *s, int room, int most, int vocab, struct rng *r)
{
    const int left = run->n - run->at;
    int n = 1 + (below(r, 3) ? below(r, most) : 0);
    n = n < left ? n : left;
    n = n < room ? n : room;
    memcpy(run->ids, s->ids + run->at, (size_t)n * sizeof *run->ids);
    run->drafts = 0;
    if (n > 1 && n <= 8 && below(r, 2)) {
        run->drafts = n - 1;
        for (int i = 1; i < n; i++)
            run->ids[i] = below(r, vocab);
    }
    const int logits = run->drafts ? n : run->at + n == run->n ? 1 + below(r, n) : below(r, n < 4 ? n + 1 : 4);
    return (struct batch_item){ .tokens = run->ids, .n_tokens = n, .pos = run->at, .table = run->table,
                                .state = run->state, .n_logits = logits };
}

static void schedule(void *b, int recurrent, const struct sequence *s, int longest, int vocab, float *logits,
                     struct rng *r, const char *what)
{
    static const int mosts[] = { 1, 7, 33, 130, MOST_TOKENS };
    static struct run run[SEQS];
    int32_t block[BLOCKS];
    /* long sequences are not cut into very small pieces, which would take many steps */
    const int most = mosts[below(r, 3) + (longest == LONGEST ? 2 : 0)];
    for (int i = 0; i < BLOCKS; i++) {
        const int j = below(r, i + 1);
        block[i] = block[j];
        block[j] = i;
    }
    int left = 0;
    for (int i = 0; i < SEQS; i++) {
        run[i].n = length[i] <= longest ? length[i] : 0;
        run[i].at = 0;
        run[i].recurrent = recurrent;
        run[i].state = i;
        memcpy(run[i].table, block + i * BLOCKS_EACH, sizeof run[i].table);
        left += run[i].n;
    }
    while (left) {
        struct batch_item items[SEQS];
        int of[SEQS], n = 0, room = MOST_TOKENS;
        for (int k = 0, first = below(r, SEQS); k < SEQS && room; k++) {
            const int i = (first + k) % SEQS;
            if (run[i].at == run[i].n || below(r, 4) == 0)
                continue;
            if (run[i].at == 0 && same[i] && run[i - 1].n) {
                if (below(r, 8))                        /* usually wait for the previous sequence */
                    continue;
                left -= run[i].at = reuse(b, &run[i - 1], &run[i], same[i], r);
            }
            items[n] = plan(&run[i], &s[i], room, most, vocab, r);
            if (recurrent && run[i].drafts) /* a snapshot to which a rejected draft returns */
                copy_state(b, i, SEQS + i);
            room -= items[n].n_tokens;
            of[n++] = i;
        }
        if (n == 0)
            continue;
        forward(b, items, n, logits);
        const float *got = logits;
        for (int k = 0; k < n; k++) {
            const struct batch_item *it = &items[k];
            struct run *x = &run[of[k]];
            for (int t = it->n_tokens - it->n_logits; t < it->n_tokens; t++, got += vocab)
                if (t < it->n_tokens - x->drafts)
                    check(s, of[k], it->pos + t, got, (size_t)vocab, what);
            if (recurrent && x->drafts) {
                copy_state(b, SEQS + of[k], of[k]);
                continue;
            }
            x->at += it->n_tokens - x->drafts;
            left -= it->n_tokens - x->drafts;
        }
    }
}

static void run_schedules(const char *name, int rounds)
{
    struct model *m = load(name);
    if (!m) {
        print_message("# skipped: %s is not here\n", name);
        skip();
    }
    uint8_t **owned = calloc(quantized_room(m), sizeof *owned);
    int n_owned = quantize_model(m, owned), n_run = 0;
    if (strcmp(name, "tiny") == 0) {
        m->config.window[1] = 100;
        m->config.window[2] = 700;
    }
    const int vocab = m->config.vocab_size;
    static struct sequence s[SEQS];
    float *logits = malloc((size_t)MOST_TOKENS * (size_t)vocab * sizeof *logits);
    struct rng r = { 1 };
    make_sequences(s, vocab);
    for (int kv = KV_F32; kv < KV_TYPES; kv++) {
        if (config_kv_problem(&m->config, kv_both((enum kv_type)kv))) {
            assert_true(kv_packed((enum kv_type)kv));   /* refused where latents or copies of keys need 8 bits */
            continue;
        }
        run_alone(m, (enum kv_type)kv, s);
        for (const struct kernels *const *k = kernels_all; *k; k++) {
            if (!(*k)->supported() || *k == &kernels_ref)
                continue;
            /* the long sequences run with at most one kernel set per type of keys and values (with
             * all if this model has ROUNDS) */
            const int long_ones = rounds == ROUNDS || (kv + (int)(k - kernels_all)) % KV_TYPES == 0;
            void *b[THREADS];
            for (int i = 0; i < THREADS; i++)
                b[i] = open_backend(m, i + 1, (enum kv_type)kv, MOST_TOKENS, (*k)->name);
            for (int i = 0; i < rounds; i++) {
                const int threads = 1 + below(&r, THREADS);
                char what[100];
                snprintf(what, sizeof what, "%s, kernels %s, kv %d, %d threads, schedule %d", name, (*k)->name, kv,
                         threads, i);
                schedule(b[threads - 1], config_state_bytes(&m->config) > 0, s, i == 0 && long_ones ? LONGEST : 150,
                         vocab, logits, &r, what);
                n_run++;
            }
            for (int i = 0; i < THREADS; i++)
                backend_cpu.close(b[i]);
        }
    }
    print_message("# %s: %d schedules of up to %d sequences\n", name, n_run, SEQS);
    if (!n_run)
        print_message("# skipped: this machine has the plain kernels only\n");
    for (int i = 0; i < SEQS; i++)
        free(s[i].want);
    while (n_owned-- > 0)
        free(owned[n_owned]);
    free(owned);
    free(logits);
    model_close(m);
    if (!n_run)
        skip();
}

static void dense_models_ignore_the_schedule(void **state) { (void)state; run_schedules("tiny", ROUNDS); }
static void shared_experts_ignore_the_schedule(void **state) { (void)state; run_schedules("qwen2_moe", FEW_ROUNDS); }
static void sinks_ignore_the_schedule(void **state) { (void)state; run_schedules("gpt_oss", FEW_ROUNDS); }
static void chunked_layers_ignore_the_schedule(void **state) { (void)state; run_schedules("llama4_text", FEW_ROUNDS); }
static void latent_keys_ignore_the_schedule(void **state) { (void)state; run_schedules("deepseek_v3", FEW_ROUNDS); }
static void normed_experts_ignore_the_schedule(void **state) { (void)state; run_schedules("afmoe", 2); }
static void growing_latent_keys_ignore_the_schedule(void **state) { (void)state; run_schedules("mistral4", 2); }
static void wide_keys_ignore_the_schedule(void **state) { (void)state; run_schedules("mimo_v2_flash", 2); }
static void delta_net_ignores_the_schedule(void **state) { (void)state; run_schedules("qwen3_next", 2); }
static void delta_net_rows_ignore_the_schedule(void **state) { (void)state; run_schedules("kimi_linear", 1); }
static void shared_keys_ignore_the_schedule(void **state) { (void)state; run_schedules("gemma4-e", 1); }
static void experts_beside_mlps_ignore_the_schedule(void **state) { (void)state; run_schedules("gemma4-moe", 1); }
static void mamba1_ignores_the_schedule(void **state) { (void)state; run_schedules("jamba", 1); }
static void lightning_attention_ignores_the_schedule(void **state) { (void)state; run_schedules("minimax", 1); }
static void attention_beside_mamba_ignores_the_schedule(void **state) { (void)state; run_schedules("falcon_h1", 1); }
static void streams_ignore_the_schedule(void **state) { (void)state; run_schedules("gemma3n", 1); }
static void indexed_attention_ignores_the_schedule(void **state) { (void)state; run_schedules("glm_moe_dsa-skip", 1); }
static void mamba_ignores_the_schedule(void **state) { (void)state; run_schedules("granitemoehybrid", 2); }
static void mamba_with_windows_ignores_the_schedule(void **state) { (void)state; run_schedules("bamba", 1); }
static void states_with_experts_ignore_the_schedule(void **state) { (void)state; run_schedules("lfm3", 1); }
static void norms_behind_layers_ignore_the_schedule(void **state) { (void)state; run_schedules("olmo_hybrid", 1); }
static void gated_rows_ignore_the_schedule(void **state) { (void)state; run_schedules("bailing_hybrid", 1); }
static void compressed_attention_ignores_the_schedule(void **state) { (void)state; run_schedules("deepseek_v4", 1); }
static void chosen_runs_ignore_the_schedule(void **state) { (void)state; run_schedules("qwen4_exp", 1); }
static void convolutions_ignore_the_schedule(void **state) { (void)state; run_schedules("lfm2", 2); }

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(dense_models_ignore_the_schedule),
                                        cmocka_unit_test(shared_experts_ignore_the_schedule),
                                        cmocka_unit_test(sinks_ignore_the_schedule),
                                        cmocka_unit_test(chunked_layers_ignore_the_schedule),
                                        cmocka_unit_test(latent_keys_ignore_the_schedule),
                                        cmocka_unit_test(normed_experts_ignore_the_schedule),
                                        cmocka_unit_test(growing_latent_keys_ignore_the_schedule),
                                        cmocka_unit_test(wide_keys_ignore_the_schedule),
                                        cmocka_unit_test(delta_net_ignores_the_schedule),
                                        cmocka_unit_test(delta_net_rows_ignore_the_schedule),
                                        cmocka_unit_test(shared_keys_ignore_the_schedule),
                                        cmocka_unit_test(experts_beside_mlps_ignore_the_schedule),
                                        cmocka_unit_test(streams_ignore_the_schedule),
                                        cmocka_unit_test(indexed_attention_ignores_the_schedule),
                                        cmocka_unit_test(mamba1_ignores_the_schedule),
                                        cmocka_unit_test(lightning_attention_ignores_the_schedule),
                                        cmocka_unit_test(attention_beside_mamba_ignores_the_schedule),
                                        cmocka_unit_test(mamba_with_windows_ignores_the_schedule),
                                        cmocka_unit_test(states_with_experts_ignore_the_schedule),
                                        cmocka_unit_test(norms_behind_layers_ignore_the_schedule),
                                        cmocka_unit_test(gated_rows_ignore_the_schedule),
                                        cmocka_unit_test(compressed_attention_ignores_the_schedule),
                                        cmocka_unit_test(chosen_runs_ignore_the_schedule),
                                        cmocka_unit_test(mamba_ignores_the_schedule),
                                        cmocka_unit_test(convolutions_ignore_the_schedule) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
