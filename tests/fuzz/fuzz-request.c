/* fuzz-request.c - whole requests to every route of a server in this process, with limits on their
 * costs.  Findings are memory that the account does not count, too much processor time, and missing
 * answers.
 *
 * The input is a request: "METHOD PATH", header lines, an empty line, the body; lines end with
 * LF.  Host, Content-Length and Connection are added.  The model computes nothing: its logits
 * follow from the last token, so only the server is measured. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

#include "libcommon/base/json.h"
#include "libcommon/base/rng.h"
#include "libcommon/convert/tokenizer_source.h"
#include "libcommon/cpu/cpu.h"
#include "libcommon/kernels/kernels.h"
#include "libcommon/http/buf.h"
#include "libcommon/http/internal.h"
#include "libcommon/serve/internal.h"
#include "tests/fuzz/fuzz.h"

/* Limits of the processor time of one request in a build with sanitizers, which take two to ten
 * times as long. */
enum { CPU_MS = 300, CPU_US_A_BYTE = 20 };
/* Allowances for memory that the account does not count: the connection, the audit record, the
 * events, and grammars, which the model owns (they have a limit of their own, in states instead of
 * bytes). */
enum { FREE_BYTES = 2 << 20, GRAMMAR_BYTES = 96 << 20 };

extern int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                                     void (*on_free)(const volatile void *));
extern size_t __sanitizer_get_allocated_size(const volatile void *p);

static _Atomic size_t live, most;

static void on_malloc(const volatile void *p, size_t size)
{
    (void)p;
    const size_t now = atomic_fetch_add(&live, size) + size;
    size_t before = atomic_load(&most);
    while (now > before && !atomic_compare_exchange_weak(&most, &before, now))
        ;
}

static void on_free(const volatile void *p) { atomic_fetch_sub(&live, p ? __sanitizer_get_allocated_size(p) : 0); }

/* ---- a model that computes nothing ---- */

enum { MAX_LEN = 16384, HIDDEN = 8 };
static struct model model;
static unsigned char kinds[1];

static void *fake_open(const struct model *m, const struct backend_options *o, struct err *e)
{
    (void)m;
    (void)o;
    (void)e;
    return &model;
}

static int fake_forward(void *b, const struct batch *batch, float *logits, struct err *e)
{
    const int vocab = model.config.vocab_size;
    (void)b;
    (void)e;
    for (int i = 0; i < batch->n_items; i++) {
        const struct batch_item *it = &batch->items[i];
        for (int t = it->n_tokens - it->n_logits; t < it->n_tokens; t++, logits += vocab)
            for (int k = 0; k < vocab; k++)
                logits[k] = (float)((uint32_t)(it->tokens[t] * 31 + k + it->pos) * 2654435761u >> 24) / 32;
        for (int k = 0; k < it->n_hidden * HIDDEN; k++)
            it->hidden[k] = 1;
    }
    return 0;
}

static int fake_copy(void *b, int32_t from, int32_t to, struct err *e)
{
    (void)b;
    (void)from;
    (void)to;
    (void)e;
    return 0;
}

static size_t fake_memory(const void *b) { return b ? 4096 : 0; }
static const char *fake_describe(const void *b) { return b ? "fake" : ""; }
static void fake_close(void *b) { (void)b; }

/* This function and the next ones replace those of the CPU backend, which is not linked. */
const struct kernels *kernels_pick(const char *want, struct err *e)
{
    (void)want;
    (void)e;
    return &kernels_ref;
}

static int fake_step_tokens(const struct config *c, int n_threads, int64_t max_len, const char *kernels)
{
    (void)c;
    (void)n_threads;
    (void)max_len;
    (void)kernels;
    return 64;
}

const struct backend backend_cpu = { .name = "fake", .step_tokens = fake_step_tokens, .open = fake_open,
                                     .forward = fake_forward, .copy_block = fake_copy, .memory = fake_memory,
                                     .kv_bytes = fake_memory,
                                     .describe = fake_describe, .close = fake_close };

static struct tokenizer *tokenizer;
static json_t *described;

static int open_served(void *user, const char *path, const struct model_choice *how, struct served_model *m,
                       struct err *e)
{
    const struct engine_options o = { .max_len = MAX_LEN, .max_seqs = 8, .max_tokens = 64, .kv = { KV_F32, KV_F32 } };
    (void)user;
    (void)path;
    (void)how;
    *m = (struct served_model){ .model = &model, .tokenizer = tokenizer, .json = described, .max_len = MAX_LEN,
                                .quantization = "f32" };
    return (m->engine = engine_open(&model, tokenizer, &o, e)) ? 0 : -1;
}

static void close_served(void *user, struct served_model *m)
{
    (void)user;
    engine_close(m->engine);
}

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "fuzz-request: %s: %s\n", what, why);
    abort();
}

static void make_model(void)
{
    struct err e;
    size_t size;
    void *blob;                             /* borrowed by the tokenizer to the end */
    if (tokenizer_from_path("models/tiny", &blob, &size, &e) != 0 || !(tokenizer = tokenizer_open(blob, size, &e)))
        fail("models/tiny", e.msg);
    json_t *config = js_load("models/tiny/tokenizer_config.json", 1 << 20, &e);
    described = json_pack("{s:O?}", "chat_template", js_get(config, "chat_template"));
    model.config = (struct config){ .recurrent.conv_kernel = 2, .mixer = kinds, .ff = kinds, .n_layers = 1,
                                    .n_heads = 1, .n_kv_heads = 1, .head_dim = 8, .hidden_size = HIDDEN,
                                    .vocab_size = tokenizer_vocab_size(tokenizer), .max_len = MAX_LEN };
    json_decref(config);
}

/* ---- the server ---- */

static struct server *server;
static char path[64];

static void say(void *user, const char *text)
{
    (void)user;
    if (getenv("FUZZ_VERBOSE"))
        fprintf(stderr, "%s\n", text);
}

static void *run(void *user)
{
    struct err e;
    if (server_run(user, &e) != 0)
        fail("server_run", e.msg);
    return NULL;
}

/* Send a request and read the whole answer, which ends with the connection.  0; -1: it takes too
 * long. */
static int ask(const char *text, size_t size, struct buf *answer)
{
    struct sockaddr_un a = { .sun_family = AF_UNIX };
    const struct timeval patience = { .tv_sec = 9 };
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(a.sun_path, path, sizeof path);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a) != 0)
        fail("connect", strerror(errno));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    size_t sent = 0;
    ssize_t n = 0;
    while (sent < size && (n = send(fd, text + sent, size - sent, MSG_NOSIGNAL)) > 0)
        sent += (size_t)n;
    for (;;) {                              /* the writing side stays open: its end would cancel the request */
        char *to = buf_reserve(answer, 1 << 16);
        n = to ? recv(fd, to, 1 << 16, 0) : -1;
        if (n <= 0)
            break;
        answer->size += (size_t)n;
    }
    const int late = n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
    close(fd);
    return late ? -1 : 0;
}

static void open_server(void)
{
    /* A first request to the model, because the first answer allocates memory once, which must not
     * count for a tested request. */
    static const char ready[] = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 41\r\n\r\n"
                                "{\"prompt\":\"a\",\"max_tokens\":2,\"regex\":\"a\"}";
    struct err e;
    pthread_t thread;
    snprintf(path, sizeof path, "/tmp/fuzz-request-%d", (int)getpid());
    const struct server_options o = { .opener = { open_served, close_served, NULL, NULL }, .socket_path = path,
                                      .no_auth = 1, .max_connections = 64, .max_body = 16000000, .max_queue = 100,
                                      .max_request_memory = 256 << 20, .work_memory = 1 << 30, .timeout_s = 8,
                                      .no_watch = 1, .log = say };
    server_block_signals();
    if (!(server = server_bind(&o, &e)) || server_start(server, NULL, &e) != 0 ||
        server_load(server, "tiny", NULL, &e) != 0)
        fail("server", e.msg);
    if (pthread_create(&thread, NULL, run, server) != 0)
        fail("server", "no thread");
    for (int i = 0; i < 1000; i++) {
        struct buf answer = { 0 };
        ask(ready, sizeof ready - 1, &answer);
        const int ok = answer.size > 12 && memcmp(answer.data + 9, "200", 3) == 0;
        buf_release(&answer);
        if (ok)
            return;
        nanosleep(&(struct timespec){ .tv_nsec = 10000000 }, NULL);
    }
    fail("server", "the model is not ready");
}

/* ---- one request ---- */

static double cpu_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* The request in HTTP; 0: the input has no such form, or would unload the model. */
static int write_request(const char *in, size_t size, struct buf *out)
{
    const char *end = memmem(in, size, "\n\n", 2), *line = memchr(in, '\n', size);
    if (!end || memmem(in, (size_t)(line - in), "unload", 6) || memmem(in, (size_t)(line - in), "models/load", 11))
        return 0;
    const char *body = end + 2;
    const size_t n = size - (size_t)(body - in);
    buf_add(out, in, (size_t)(line - in));
    buf_str(out, " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    for (const char *at = line + 1; at < end; at++)
        if (*at == '\n')
            buf_str(out, "\r\n");
        else
            buf_add(out, at, 1);
    buf_printf(out, "%sContent-Length: %zu\r\n\r\n", end > line ? "\r\n" : "", n);
    buf_add(out, body, n);
    return !out->failed;
}

static void finding(const char *what, double found, double bound, const struct buf *answer)
{
    fprintf(stderr, "fuzz-request: %s: %.0f, at most %.0f expected; answer: %.300s\n", what, found, bound,
            answer->data ? answer->data : "");
    abort();
}

/* Wait until the account holds nothing: threads free some memory only after the answer. */
static void wait_for_quiet(void)
{
    struct account_stats s;
    for (int i = 0; i < 2000; i++) {
        account_stats(server->account, &s);
        if (s.n_holds == 0)
            return;
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
    }
    fail("account", "memory is still held 2 s after the answer");
}

/* ---- mutations ---- */

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max_size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed);

/* Offset of the first of the bytes ",[{(|" or blank from offset `at` on; size: there is none. */
static size_t boundary(const uint8_t *data, size_t size, size_t at)
{
    while (at < size && !memchr(",[{(| ", data[at], 6))
        at++;
    return at;
}

/* Half of the mutations repeat a part of the body between two boundaries, such as ", {}", up to
 * thousands of times, because high costs come from large numbers of small elements. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned seed)
{
    struct rng r = { seed };
    const uint8_t *body = size ? memmem(data, size, "\n\n", 2) : NULL;
    const size_t begin = body ? (size_t)(body - data) + 2 : size;
    if (begin >= size || rng_u64(&r) % 2)
        return LLVMFuzzerMutate(data, size, max_size);
    const size_t from = boundary(data, size, begin + rng_u64(&r) % (size - begin));
    size_t to = from;
    for (uint64_t n = 1 + rng_u64(&r) % 3; n > 0 && to < size; n--)
        to = boundary(data, size, to + 1);
    const size_t part = to - from, room = max_size - size;
    if (to >= size || part > room)
        return LLVMFuzzerMutate(data, size, max_size);
    size_t times = 1 + rng_u64(&r) % ((size_t)1 << rng_u64(&r) % 15);
    times = times < room / part ? times : room / part;
    memmove(data + to + times * part, data + to, size - to);
    for (size_t i = 0; i < times; i++)
        memcpy(data + to + i * part, data + from, part);
    return size + times * part;
}

/* Measure the peak of held memory from now on. */
static void restart_peak(struct account *a)
{
    pthread_mutex_lock(&a->lock);
    a->peak = a->used;
    pthread_mutex_unlock(&a->lock);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct buf request = { 0 }, answer = { 0 };
    struct account_stats held;
    if (!server) {
        __sanitizer_install_malloc_and_free_hooks(on_malloc, on_free);
        make_model();
        open_server();
    }
    if (!write_request((const char *)data, size, &request)) {
        buf_release(&request);
        return -1;
    }
    restart_peak(server->account);
    const size_t before = live;
    most = before;
    const double began = cpu_ms();
    if (ask(request.data, request.size, &answer) != 0)
        finding("no answer after so many seconds", 9, 8, &answer);
    wait_for_quiet();
    const double ms = cpu_ms() - began, ms_bound = CPU_MS + (double)size * CPU_US_A_BYTE * 1e-3;
    account_stats(server->account, &held);
    const size_t took = most - before, own = answer.room + (1 << 16);
    static const char *const compiled[] = { "schema", "grammar", "regex", "tools", "format" };
    size_t bound = held.peak + own + FREE_BYTES;
    for (size_t i = 0; i < sizeof compiled / sizeof *compiled; i++)
        if (memmem(data, size, compiled[i], strlen(compiled[i]))) {
            bound += GRAMMAR_BYTES;
            break;
        }
    if (getenv("FUZZ_VERBOSE"))
        fprintf(stderr, "%zu bytes: %.6s, %.1f ms of %.0f, %zu bytes of %zu (held %zu)\n", size,
                answer.size > 9 ? answer.data + 9 : "", ms, ms_bound, took, bound, held.peak);
    if (answer.size && ms > ms_bound)
        finding("milliseconds", ms, ms_bound, &answer);
    if (took > bound)
        finding("bytes", (double)took, (double)bound, &answer);
    buf_release(&request);
    buf_release(&answer);
    return 0;
}
