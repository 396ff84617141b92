/* rate_limits.c - counters and limits of requests and tokens, for keys in a shared file, for
 * addresses in memory. */
#include "libcommon/access/rate_limits.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "libcommon/access/usage_table.h"
#include "libcommon/base/address.h"
#include "libcommon/base/clock.h"
#include "libcommon/base/file.h"

enum { N_SLOTS = USAGE_SLOTS, BOOT_ID = 37, RUNNING_RETRY_S = 2 };
#define MAGIC "zse-usage 1\n"

/* ---- the file ---- */

static void boot_id(char out[48])
{
    memset(out, 0, 48);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t n = read(fd, out, BOOT_ID - 1);
    (void)n;
    close(fd);
}

/* Under the lock: clear a table with another magic number, and clear the windows if the machine was
 * booted since the last use. */
static void prepare(struct usage_table *t)
{
    char boot[48];
    boot_id(boot);
    if (memcmp(t->magic, MAGIC, sizeof MAGIC) != 0) {
        memset(t, 0, sizeof *t);
        memcpy(t->magic, MAGIC, sizeof MAGIC);
    } else if (memcmp(t->boot, boot, sizeof boot) == 0) {
        return;
    }
    memcpy(t->boot, boot, sizeof boot);
    memset((char *)t + offsetof(struct usage_table, server), 0, sizeof *t - offsetof(struct usage_table, server));
    for (int i = 0; i < N_SLOTS; i++)
        if (t->slot[i].key) {
            struct usage_slot *s = &t->slot[i];
            memset(s->second, 0, sizeof s->second + sizeof s->token_second + sizeof s->token_quarter);
        }
}

/* Open the shared file and extend it to a whole table: 0 or -1. */
static int open_shared(struct usage *u, const char *path, struct err *e)
{
    struct stat st;
    u->fd = file_open_made(path, O_RDWR);
    if (u->fd < 0 || flock(u->fd, LOCK_EX) || fstat(u->fd, &st))
        return err_sys(e, "%s", path);
    /* posix_fallocate reports a full disk now, instead of SIGBUS during a request. */
    if ((size_t)st.st_size < sizeof *u->t && posix_fallocate(u->fd, 0, sizeof *u->t))
        return err_set(e, ERR_IO, "%s: no room for %zu bytes of counters", path, sizeof *u->t);
    return 0;
}

/* Open the file for reading; fd stays -1 if there is none or it is too short. */
static int open_private(struct usage *u, const char *path, struct err *e)
{
    struct stat st;
    u->fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (u->fd < 0)
        return errno == ENOENT ? 0 : err_sys(e, "%s", path);
    if (fstat(u->fd, &st))
        return err_sys(e, "%s", path);
    if ((size_t)st.st_size < sizeof *u->t) {
        close(u->fd);
        u->fd = -1;
    }
    return 0;
}

static struct usage *open_usage(const char *folder, int shared, struct err *e)
{
    char path[4096];
    struct usage *u = calloc(1, sizeof *u);
    if (!u)
        return err_nomem(e, "usage counters"), NULL;
    u->fd = -1;
    u->server = -1;
    pthread_mutex_init(&u->lock, NULL);
    if (snprintf(path, sizeof path, "%s/usage", folder) >= (int)sizeof path) {
        err_set(e, ERR_IO, "%s: the path is too long", folder);
        goto fail;
    }
    if (shared ? open_shared(u, path, e) : open_private(u, path, e))
        goto fail;
    void *p = mmap(NULL, sizeof *u->t, PROT_READ | PROT_WRITE,
                   shared ? MAP_SHARED : MAP_PRIVATE | (u->fd < 0 ? MAP_ANONYMOUS : 0), u->fd, 0);
    if (p == MAP_FAILED) {
        err_sys(e, "%s: mmap", path);
        goto fail;
    }
    u->t = p;
    prepare(u->t);
    if (shared)
        flock(u->fd, LOCK_UN);
    return u;
fail:
    usage_close(u);
    return NULL;
}

struct usage *usage_open_shared(struct err *e)
{
    struct usage *u = calloc(1, sizeof *u);
    if (!u)
        return err_nomem(e, "usage counters"), NULL;
    u->fd = -1;
    pthread_mutex_init(&u->lock, NULL);
    pthread_mutex_init(&u->merging, NULL);
    u->t = mmap(NULL, sizeof *u->t, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    void *unsent = mmap(NULL, USAGE_SLOTS * sizeof *u->unsent, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                        0);
    u->t = u->t == MAP_FAILED ? NULL : u->t;
    u->unsent = unsent == MAP_FAILED ? NULL : unsent;
    if (u->t && u->unsent) {
        u->server = PLACE_OWN;
        u->mark = 1;
        usage_renew(u);
        return u;
    }
    usage_close(u);
    err_nomem(e, "usage counters");
    return NULL;
}

struct usage *usage_open(const char *folder, struct err *e) { return open_usage(folder, 1, e); }
struct usage *usage_open_here(const char *folder, struct err *e) { return open_usage(folder, 0, e); }

void usage_close(struct usage *u)
{
    if (!u)
        return;
    if (u->t && u->server >= 0 && u->server < USAGE_SERVERS - 1 &&
        atomic_load(&u->t->server[u->server]) >> 32 == u->mark)
        atomic_store(&u->t->server[u->server], 0);
    if (u->t)
        munmap(u->t, sizeof *u->t);
    if (u->unsent)
        munmap(u->unsent, USAGE_SLOTS * sizeof *u->unsent);
    if (u->fd >= 0)
        close(u->fd);
    pthread_mutex_destroy(&u->lock);
    free(u);
}

static void lock(struct usage *u)
{
    pthread_mutex_lock(&u->lock);
    flock(u->fd, LOCK_EX);
}

static void unlock(struct usage *u)
{
    flock(u->fd, LOCK_UN);
    pthread_mutex_unlock(&u->lock);
}

/* ---- slots: open addressing by key ---- */

static struct usage_slot *find(struct usage *u, int64_t key)
{
    for (uint64_t i = 0; i < N_SLOTS; i++) {
        struct usage_slot *s = &u->t->slot[((uint64_t)key + i) % N_SLOTS];
        const uint64_t k = atomic_load(&s->key);
        if (k == (uint64_t)key)
            return s;
        if (k == 0)
            return NULL;
    }
    return NULL;
}

/* The first free slot for this key, else the least recently used. */
static struct usage_slot *place_for(struct usage *u, int64_t key)
{
    struct usage_slot *oldest = NULL;
    for (uint64_t i = 0; i < N_SLOTS; i++) {
        struct usage_slot *f = &u->t->slot[((uint64_t)key + i) % N_SLOTS];
        const uint64_t k = atomic_load(&f->key);
        if (k == 0 || k == USAGE_TAKEN_AWAY)
            return f;
        if (!oldest || atomic_load(&f->last_used_ms) < atomic_load(&oldest->last_used_ms))
            oldest = f;
    }
    return oldest;
}

static struct usage_slot *make_slot(struct usage *u, int64_t key)
{
    struct usage_slot *s;
    lock(u);
    if (!(s = find(u, key))) {
        s = place_for(u, key);
        memset(s, 0, sizeof *s);
        memset(u->t->reserved[s - u->t->slot], 0, sizeof *u->t->reserved);
        if (u->unsent)
            memset(&u->unsent[s - u->t->slot], 0, sizeof *u->unsent);
        atomic_store(&s->key, (uint64_t)key);
    }
    unlock(u);
    return s;
}

static void look(struct usage *u, const struct usage_slot *s)
{
    if (u->unsent)
        u->unsent[s - u->t->slot].looked_s = usage_now_s();
}

static struct usage_slot *find_or_take(struct usage *u, int64_t key)
{
    struct usage_slot *s = find(u, key);
    if (!s)
        s = make_slot(u, key);
    look(u, s);
    return s;
}

/* ---- verdicts ---- */

static int64_t wall_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* The verdict of one limit on `used` in a window; one bucket lasts `unit` seconds. */
static struct verdict judge(const char *unit_name, int64_t limit, uint64_t used, uint32_t now, uint32_t oldest,
                            uint32_t span, int unit)
{
    struct verdict v = { .allowed = !limit || used < (uint64_t)limit, .unit = unit_name, .limit = limit,
                         .current = (int64_t)used };
    v.remaining = limit && used < (uint64_t)limit ? limit - (int64_t)used : 0;
    v.reset_s = used ? (int)(oldest + span + 1 - now) * unit : 0;
    v.retry_s = v.allowed ? 0 : v.reset_s;
    return v;
}

/* Tokens that running requests of this key may still use. */
static uint64_t reserved_of(const struct usage *u, const struct usage_slot *s, uint32_t now)
{
    uint64_t sum = 0;
    for (int i = 0; i < USAGE_SERVERS; i++) {
        const uint64_t server = atomic_load(&u->t->server[i]);
        if (server && now - (uint32_t)server <= USAGE_LEASE_S)
            sum += atomic_load(&u->t->reserved[s - u->t->slot][i]);
    }
    return sum;
}

/* The verdict of one token limit: v has the tokens used in its window; `reserved` are promised to
 * running requests, `wanted` more are requested. */
static struct verdict judge_tokens(struct verdict v, uint64_t reserved, int64_t wanted)
{
    const int64_t left = v.limit - v.current - (int64_t)reserved;
    const int window_alone = v.limit - v.current >= wanted && v.allowed;
    if (!v.limit)
        return v;
    v.current += (int64_t)reserved;
    v.reserved = (int64_t)reserved;
    v.remaining = left > 0 ? left : 0;
    v.wanted = wanted > 1 ? wanted : 0;
    v.allowed = left >= wanted;
    v.never = wanted > v.limit;
    v.retry_s = v.allowed ? 0 : window_alone || v.reset_s < 1 ? RUNNING_RETRY_S : v.reset_s;
    return v;
}

/* The verdict of the token limit that refuses `wanted` more tokens, or else of the limit that
 * leaves the fewest (limit 0: there is none). */
static struct verdict judge_both(const struct usage *u, const struct usage_slot *s, const struct limit *l, uint32_t now,
                                 int64_t wanted)
{
    uint32_t first;
    const uint64_t reserved = reserved_of(u, s, now);
    const uint64_t minute = window_sum(s->token_second, WINDOW_MINUTE, now, MINUTE_SPAN, &first);
    const struct verdict a = judge_tokens(judge(" tokens/min", l->tokens_minute, minute, now, first, MINUTE_SPAN, 1),
                                          reserved, wanted);
    const uint64_t day = window_sum(s->token_quarter, WINDOW_DAY, now / QUARTER_S, DAY_SPAN, &first);
    const struct verdict b = judge_tokens(judge(" tokens/day", l->tokens_day, day, now / QUARTER_S, first, DAY_SPAN,
                                                QUARTER_S), reserved, wanted);
    if (b.never || !a.limit || (b.limit && a.allowed && (!b.allowed || b.remaining < a.remaining)))
        return b;
    return a;
}

/* used: the number of requests in the window, which count against the next one. */
static struct verdict judge_all(const struct usage *u, const struct usage_slot *s, const struct limit *l, uint64_t used,
                                uint32_t oldest, uint32_t now)
{
    const struct verdict requests = judge("/min", l->requests_minute, used, now, oldest, MINUTE_SPAN, 1);
    if (!requests.allowed)
        return requests;
    const struct verdict tokens = judge_both(u, s, l, now, 1);
    return tokens.allowed ? requests : tokens;
}

void verdict_text(const struct verdict *v, char *out, size_t size)
{
    char reserved[64] = "", wanted[48] = "";
    if (v->never) {
        snprintf(out, size, "The request needs up to %" PRId64
                 " tokens (prompt and max_tokens of every answer). Limit: %" PRId64 "%s.", v->wanted, v->limit,
                 v->unit);
        return;
    }
    if (v->reserved)
        snprintf(reserved, sizeof reserved, " (%" PRId64 " reserved by running requests)", v->reserved);
    if (v->wanted)
        snprintf(wanted, sizeof wanted, ", Requested: %" PRId64, v->wanted);
    snprintf(out, size, "Rate limit exceeded. Limit: %" PRId64 "%s, Current: %" PRId64 "%s%s. Try again in %ds.",
             v->limit, v->unit, v->current, reserved, wanted, v->retry_s);
}

static const struct verdict unlimited = { .allowed = 1, .unit = "/min" };

/* Count in a slot, or in what the database does not know yet. */
static void count_request(struct usage_slot *s)
{
    atomic_fetch_add(&s->requests, 1);
    atomic_store(&s->last_used_ms, (uint64_t)wall_ms());
}

static void count_tokens(struct usage_slot *s, uint32_t now, int64_t tokens)
{
    window_add(s->token_second, WINDOW_MINUTE, now, tokens);
    window_add(s->token_quarter, WINDOW_DAY, now / QUARTER_S, tokens);
    atomic_fetch_add(&s->tokens, (uint64_t)tokens);
}

static struct usage_slot *unsent_of(struct usage *u, const struct usage_slot *s)
{
    return u->unsent ? &u->unsent[s - u->t->slot].counts : NULL;
}

static struct verdict admit(struct usage *u, int64_t key, const struct limit *l)
{
    struct usage_slot *s = find_or_take(u, key), *unsent = unsent_of(u, s);
    const uint32_t now = usage_now_s();
    uint32_t oldest;
    /* counted before judging, so that two servers never both admit the last request */
    window_add(s->second, WINDOW_MINUTE, now, 1);
    const uint64_t used = window_sum(s->second, WINDOW_MINUTE, now, MINUTE_SPAN, &oldest);
    struct verdict v = judge_all(u, s, l, used ? used - 1 : 0, oldest, now);
    if (!v.allowed) {
        window_add(s->second, WINDOW_MINUTE, now, -1);
        return v;
    }
    if (v.limit) {
        v.current++;
        v.remaining--;
        v.reset_s = (int)(oldest + MINUTE_SPAN + 1 - now);
    }
    count_request(s);
    if (unsent) {
        count_request(unsent);
        window_add(unsent->second, WINDOW_MINUTE, now, 1);
    }
    return v;
}

struct verdict usage_admit(struct usage *u, int64_t key, const struct limit *l)
{
    usage_enter(u);
    const struct verdict v = admit(u, key, l);
    usage_leave(u);
    return v;
}

static void charge(struct usage *u, int64_t key, int64_t tokens)
{
    struct usage_slot *s = tokens > 0 ? find(u, key) : NULL;
    if (!s)
        return;
    const uint32_t now = usage_now_s();
    count_tokens(s, now, tokens);
    if (u->unsent)
        count_tokens(unsent_of(u, s), now, tokens);
}

/* ---- reservations ---- */

static uint64_t renewed(const struct usage *u) { return (uint64_t)u->mark << 32 | usage_now_s(); }

/* Take a place among the servers.  A place that was not renewed in time is free, and its
 * reservations are void. */
static void take_place(struct usage *u)
{
    const int before = u->server;
    const uint32_t now = usage_now_s();
    int at = 0;
    lock(u);
    for (; at < USAGE_SERVERS - 1; at++) {
        const uint64_t server = atomic_load(&u->t->server[at]);
        if (!server || now - (uint32_t)server > USAGE_LEASE_S)
            break;
    }
    const uint64_t last = atomic_load(&u->t->server[at]);
    if (u->server == before) {              /* no other thread was faster */
        if (!last || now - (uint32_t)last > USAGE_LEASE_S)
            for (int i = 0; i < N_SLOTS; i++)
                atomic_store(&u->t->reserved[i][at], 0);
        u->mark = (uint32_t)(clock_ns() ^ (uint64_t)getpid() << 16) | 1;
        atomic_store(&u->t->server[at], renewed(u));
        u->server = at;
    }
    unlock(u);
}

void usage_renew(struct usage *u)
{
    if (u->server < 0)
        return;
    _Atomic uint64_t *at = &u->t->server[u->server];
    uint64_t old = atomic_load(at);
    if (u->server == USAGE_SERVERS - 1)
        atomic_store(at, renewed(u));
    else if (old >> 32 != u->mark || !atomic_compare_exchange_strong(at, &old, renewed(u)))
        take_place(u);                      /* the process slept too long, and another one took its place */
}

static struct verdict reserve(struct usage *u, int64_t key, const struct limit *l, int64_t least, int64_t most,
                              int64_t *reserved)
{
    *reserved = 0;
    if (!l->tokens_minute && !l->tokens_day)
        return unlimited;
    struct usage_slot *s = find_or_take(u, key);
    if (u->server < 0)
        take_place(u);
    _Atomic uint64_t *mine = &u->t->reserved[s - u->t->slot][u->server];
    const uint32_t now = usage_now_s();
    /* reserved before judging, so that two servers never both use the last tokens */
    atomic_fetch_add(mine, (uint64_t)least);
    struct verdict v = judge_both(u, s, l, now, 0);
    if (!v.allowed) {
        atomic_fetch_sub(mine, (uint64_t)least);
        v = judge_both(u, s, l, now, least);
        v.allowed = 0;                      /* refuse it even if the second check passes because a
                                             * request has just ended */
        v.retry_s = v.retry_s ? v.retry_s : RUNNING_RETRY_S;
        return v;
    }
    int64_t more = most - least < v.remaining ? most - least : v.remaining;
    atomic_fetch_add(mine, (uint64_t)more);
    if (!judge_both(u, s, l, now, 0).allowed) {     /* another server reserved them as well */
        atomic_fetch_sub(mine, (uint64_t)more);
        more = 0;
    }
    *reserved = least + more;
    v.remaining -= more;
    v.current += more;
    return v;
}

struct verdict usage_reserve(struct usage *u, int64_t key, const struct limit *l, int64_t least, int64_t most,
                             int64_t *reserved)
{
    usage_enter(u);
    const struct verdict v = reserve(u, key, l, least, most, reserved);
    usage_leave(u);
    return v;
}

static void settle(struct usage *u, int64_t key, int64_t reserved, int64_t used)
{
    charge(u, key, used);   /* before releasing, so that no other request takes the tokens in between */
    const struct usage_slot *s = reserved > 0 && u->server >= 0 ? find(u, key) : NULL;
    if (!s)
        return;
    _Atomic uint64_t *mine = &u->t->reserved[s - u->t->slot][u->server];
    uint64_t old = atomic_load(mine);
    while (!atomic_compare_exchange_weak(mine, &old, old > (uint64_t)reserved ? old - (uint64_t)reserved : 0))
        ;
}

void usage_settle(struct usage *u, int64_t key, int64_t reserved, int64_t used)
{
    usage_enter(u);
    settle(u, key, reserved, used);
    usage_leave(u);
}

static void read_slot(struct usage *u, int64_t key, const struct limit *l, struct usage_stats *stats)
{
    const struct usage_slot *s = find(u, key);
    *stats = (struct usage_stats){ .verdict = unlimited };
    stats->verdict.limit = stats->verdict.remaining = l->requests_minute;
    if (!s)
        return;
    const uint32_t now = usage_now_s();
    uint32_t oldest, unused;
    const uint64_t used = window_sum(s->second, WINDOW_MINUTE, now, MINUTE_SPAN, &oldest);
    stats->requests = atomic_load(&((struct usage_slot *)s)->requests);
    stats->tokens = atomic_load(&((struct usage_slot *)s)->tokens);
    stats->last_used_ms = (int64_t)atomic_load(&((struct usage_slot *)s)->last_used_ms);
    stats->requests_minute = (int64_t)used;
    stats->tokens_minute = (int64_t)window_sum(s->token_second, WINDOW_MINUTE, now, MINUTE_SPAN, &unused);
    stats->reserved = (int64_t)reserved_of(u, s, now);
    stats->tokens_day = (int64_t)window_sum(s->token_quarter, WINDOW_DAY, now / QUARTER_S, DAY_SPAN, &unused);
    stats->verdict = judge_all(u, s, l, used, oldest, now);
    look(u, s);
}

void usage_read(struct usage *u, int64_t key, const struct limit *l, struct usage_stats *stats)
{
    usage_enter(u);
    read_slot(u, key, l, stats);
    usage_leave(u);
}

void usage_reset(struct usage *u, int64_t key)
{
    struct usage_slot *s = find(u, key);
    if (!s)
        return;
    for (int i = 0; i < WINDOW_MINUTE; i++) {
        atomic_store(&s->second[i], 0);
        atomic_store(&s->token_second[i], 0);
    }
    for (int i = 0; i < WINDOW_DAY; i++)
        atomic_store(&s->token_quarter[i], 0);
}

void usage_drop(struct usage *u, int64_t key)
{
    usage_enter(u);
    struct usage_slot *s = find(u, key);
    if (s)
        atomic_store(&s->key, USAGE_TAKEN_AWAY);
    usage_leave(u);
}

int usage_keys(const struct usage *u, int64_t ids[USAGE_SLOTS])
{
    int n = 0;
    for (int i = 0; i < N_SLOTS; i++) {
        const uint64_t k = atomic_load(&u->t->slot[i].key);
        if (k != 0 && k != USAGE_TAKEN_AWAY)
            ids[n++] = (int64_t)k;
    }
    return n;
}

/* ---- addresses ---- */

struct address { char name[48]; uint32_t used_s; window_bucket second[WINDOW_MINUTE]; };
struct address_limits { int n, limit; struct address a[]; };

struct address_limits *address_limits_open(int n, int requests_minute, struct err *e)
{
    struct address_limits *a = calloc(1, sizeof *a + (size_t)n * sizeof *a->a);
    if (!a)
        return err_nomem(e, "limits by address"), NULL;
    a->n = n;
    a->limit = requests_minute;
    return a;
}

void address_limits_close(struct address_limits *a) { free(a); }

/* Find an address.  It can be in only eight places, so that a flood of addresses displaces few
 * others.  With `take`, an address without a place gets the least recently used one.  NULL: it has
 * no place. */
static struct address *place_of(struct address_limits *a, const char *given, int take)
{
    char text[48];
    const char *address = address_counted_as(given, text);
    const uint64_t h = address_number(address);
    struct address *oldest = NULL;
    for (int i = 0; i < 8; i++) {
        struct address *x = &a->a[(h + (uint64_t)i) % (uint64_t)a->n];
        if (strncmp(x->name, address, sizeof x->name - 1) == 0)
            return x;
        if (!oldest || x->used_s < oldest->used_s)
            oldest = x;
    }
    if (!take)
        return NULL;
    memset(oldest, 0, sizeof *oldest);
    snprintf(oldest->name, sizeof oldest->name, "%s", address);
    return oldest;
}

static struct verdict judge_address(struct address_limits *a, const char *address, int counts)
{
    if (!a->limit)
        return unlimited;
    struct address *x = place_of(a, address, counts);
    if (!x)
        return unlimited;
    const uint32_t now = usage_now_s();
    uint32_t oldest;
    x->used_s = now;
    const uint64_t used = window_sum(x->second, WINDOW_MINUTE, now, MINUTE_SPAN, &oldest);
    struct verdict v = judge("/min", a->limit, used, now, oldest, MINUTE_SPAN, 1);
    if (v.allowed && counts) {
        window_add(x->second, WINDOW_MINUTE, now, 1);
        v.current++;
        v.remaining--;
        v.reset_s = (int)(oldest + MINUTE_SPAN + 1 - now);
    }
    return v;
}

struct verdict address_admit(struct address_limits *a, const char *address) { return judge_address(a, address, 1); }
struct verdict address_peek(struct address_limits *a, const char *address) { return judge_address(a, address, 0); }
