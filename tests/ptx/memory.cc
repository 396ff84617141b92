/* memory.cc - loads, stores, atomics, asynchronous copies; and checks of bounds, alignment, races
 * in shared memory, and reads of shared memory that was never written. */
#include "tests/ptx/ptx.h"

#include <string.h>

#include <bitset>
#include <map>
#include <mutex>
#include <unordered_map>

/* ---- dependent launches ---- */

/* A bit for each 4 bytes that kernels have written, by page. */
enum { PAGE = 4096 };
typedef std::bitset<PAGE / 4> written_page;
static std::unordered_map<uint64_t, written_page> written, by_this;    /* by kernels before; by this one */
static uint64_t last_page = ~(uint64_t)0;
static written_page *last_written;

void forget_writes()
{
    written.clear();
    by_this.clear();
    last_page = ~(uint64_t)0;
}
void keep_writes()
{
    if (!vm.launched_early)
        written.clear();
    for (const auto &page : by_this)
        written[page.first] |= page.second;
    by_this.clear();
    last_page = ~(uint64_t)0;
}
static void note_write(uint64_t p, size_t n)
{
    if (p / PAGE != last_page) {
        last_page = p / PAGE;
        last_written = &by_this[last_page];
    }
    for (uint64_t word = p / 4; word <= (p + n - 1) / 4; word++)
        last_written->set(word % (PAGE / 4));
}
static bool was_written(uint64_t p, size_t n)
{
    const auto page = written.find(p / PAGE);
    for (uint64_t word = p / 4; page != written.end() && word <= (p + n - 1) / 4; word++)
        if (page->second[word % (PAGE / 4)])
            return true;
    return false;
}
void check_waited(int lane, const char *what)
{
    if (!(vm.now_warp->waited >> lane & 1))
        fail_at(lane, "%s before griddepcontrol.wait", what);
}

/* ---- allocations ---- */

/* The constructors of the kernels' objects run before those of this file. */
static std::map<uintptr_t, region> &all_regions()
{
    static std::map<uintptr_t, region> all;
    return all;
}
#define regions all_regions()
static std::mutex regions_lock;         /* loaders allocate while kernels run */
unsigned n_changes = 1;

bool region_of(uintptr_t p, region &r)
{
    std::lock_guard<std::mutex> hold(regions_lock);
    auto it = regions.upper_bound(p);
    if (it == regions.begin())
        return false;
    r = std::prev(it)->second;
    return p < r.high;
}
void region_add(void *p, size_t size, bool writable)
{
    std::lock_guard<std::mutex> hold(regions_lock);
    regions[(uintptr_t)p] = { (uintptr_t)p, (uintptr_t)p + size, writable };
    n_changes++;
}
void region_remove(void *p)
{
    std::lock_guard<std::mutex> hold(regions_lock);
    const region r = regions[(uintptr_t)p];
    for (uintptr_t page = r.low / PAGE; page * PAGE < r.high; page++)
        written.erase(page), by_this.erase(page);
    last_page = ~(uint64_t)0;
    regions.erase((uintptr_t)p);
    n_changes++;
}

const char *verb(enum access a)
{
    return a == READ ? "read" : a == WRITE ? "write" : a == ATOMIC ? "atomic" : "poll";
}

uint8_t *global_pointer(const op &o, int lane, uint64_t p, size_t n, enum access a)
{
    const bool writes = a == WRITE || a == ATOMIC;
    if (o.n_changes != n_changes || p < o.low || p + n > o.high) {
        region r;
        if (!region_of(p, r)) {
            fail_at(lane, "%s of %zu bytes at %#llx, which is in no allocation", verb(a), n, (unsigned long long)p);
        }
        if (p + n > r.high)
            fail_at(lane, "%s of %zu bytes at %zu of an allocation of %zu bytes", verb(a), n, (size_t)(p - r.low),
                    (size_t)(r.high - r.low));
        if (writes && !r.writable)
            fail_at(lane, "%s of %zu bytes of constants or parameters", verb(a), n);
        o.low = r.low, o.high = r.high, o.n_changes = n_changes;
    }
    if (p % n)
        fail_at(lane, "%s of %zu bytes at %#llx, which is not aligned", verb(a), n, (unsigned long long)p);
    if (writes) {
        check_waited(lane, verb(a));
        note_write(p, n);
    } else if (!(vm.now_warp->waited >> lane & 1) && was_written(p, n)) {
        fail_at(lane, "read of what a kernel before writes, before griddepcontrol.wait");
    }
    if (vm.together)
        order_access(lane, p, n, a);
    return (uint8_t *)p;
}

/* ---- shared memory ---- */

/* For every 4 bytes of shared memory, the last thread that wrote and the last one that read.  A
 * thread is stored with the time, as epoch * 2048 + thread, and with the number that its warp's
 * last collective operation had at that time.  Special values: MANY: threads of several warps;
 * ANYONE: a copy that has ended, or an access that a barrier has ordered; UNDER_WAY: a copy that
 * has not ended. */
enum { ATOMICS = 2044, UNDER_WAY, ANYONE, MANY };
struct shadow { uint32_t written, read, write_collective, read_collective; };
static std::vector<shadow> shadows;
static uint32_t key(unsigned thread) { return vm.epoch << 11 | thread; }

void block_memory_begin()
{
    if (shadows.size() < vm.shared_size / 4 + 4)
        shadows.resize(vm.shared_size / 4 + 4);
    if (vm.epoch >= 1 << 20) {          /* 20 bits hold the epoch in a key, so it starts over */
        memset(shadows.data(), 0, shadows.size() * sizeof shadows[0]);
        vm.epoch = vm.first_epoch = 1;
    }
}

/* Whether an access with this key happens before all later accesses of the lane. */
static bool ordered(uint32_t k, uint32_t collective, unsigned me, const warp &w)
{
    const uint32_t other = k & 2047;
    return k >> 11 != vm.epoch || other == me || other == ANYONE ||
           (other < ATOMICS && other / LANES == me / LANES && collective != w.n_collectives);
}

static void race(int lane, enum access a, size_t at, uint32_t k, const char *did)
{
    const uint32_t other = k & 2047;
    if (other == UNDER_WAY)
        fail_at(lane, "%s of byte %zu of shared memory, which a copy that is under way fills", verb(a), at);
    if (other == ATOMICS || other == MANY)
        fail_at(lane, "race: %s of byte %zu of shared memory, which several threads %s without a barrier between",
                verb(a), at, did);
    fail_at(lane, "race: %s of byte %zu of shared memory, which thread %u %s without a barrier between", verb(a), at,
            other, did);
}

void check_shared(const warp &w, int lane, size_t at, size_t n, enum access a)
{
    if (at + n > vm.shared_size)
        fail_at(lane, "%s of %zu bytes at %zu of %zu bytes of shared memory", verb(a), n, at, vm.shared_size);
    if (at % n)
        fail_at(lane, "%s of %zu bytes at %zu of shared memory, which is not aligned", verb(a), n, at);
    const unsigned me = (unsigned)(w.index * LANES + lane);
    for (size_t i = at / 4; i <= (at + n - 1) / 4; i++) {
        shadow &s = shadows[i];
        if (a == ATOMIC && s.written == key(ATOMICS))
            continue;
        if (s.written >> 11 < vm.first_epoch) {
            if (a != WRITE)
                fail_at(lane, "%s of byte %zu of shared memory, which no thread has written", verb(a), 4 * i);
        } else if ((s.written & 2047) == UNDER_WAY || !ordered(s.written, s.write_collective, me, w)) {
            race(lane, a, 4 * i, s.written, "wrote");
        }
        if (a == READ) {
            const bool others = s.read >> 11 == vm.epoch && (s.read & 2047) / LANES != me / LANES;
            s.read = others ? key(MANY) : key(me);
            s.read_collective = w.n_collectives;
            continue;
        }
        if (s.read >> 11 >= vm.first_epoch && !ordered(s.read, s.read_collective, me, w))
            race(lane, a, 4 * i, s.read, "read");
        s.written = a == ATOMIC ? key(ATOMICS) : key(me);
        s.write_collective = w.n_collectives;
    }
}
void shared_under_way(size_t at, size_t n)
{
    for (size_t i = at / 4; i < (at + n) / 4; i++)
        shadows[i].written = key(UNDER_WAY);
}
void shared_arrived(size_t at, size_t n)
{
    for (size_t i = at / 4; i < (at + n) / 4; i++)
        shadows[i].written = key(ANYONE), shadows[i].read = 0;
}

static uint8_t *pointer(warp &w, const op &o, uint32_t reg, int lane, size_t n, enum access a)
{
    const uint64_t p = address_of(w, o, reg, lane) + (uint64_t)o.imm;
    enum space s = o.space;
    uint64_t at = s == SHARED && !o.wide_address ? (uint32_t)p : p;
    if (s == GENERIC) {
        if (p - (uint64_t)vm.shared < vm.shared_size) {
            s = SHARED;
            at = p - (uint64_t)vm.shared;
        } else if (p - (uint64_t)w.local < LANES * vm.k->local_bytes) {
            s = LOCAL;
            at = p - (uint64_t)(w.local + (size_t)lane * vm.k->local_bytes);
        }
    }
    if (s == SHARED) {
        check_shared(w, lane, at, n, a == POLL ? READ : a);
        return vm.shared + at;
    }
    if (s == LOCAL) {
        if (at + n > vm.k->local_bytes || at % n)
            fail_at(lane, "%s of %zu bytes at %zu of %zu bytes of local memory", verb(a), n, (size_t)at,
                    vm.k->local_bytes);
        return w.local + (size_t)lane * vm.k->local_bytes + at;
    }
    return global_pointer(o, lane, p, n, a);
}

/* Load N elements of type T to the registers more[0 .. N-1]. */
template <class T, int N> static void load(warp &w, const op &o, uint32_t on)
{
    EACH_LANE(i, on) {
        T v[N];
        memcpy(v, pointer(w, o, o.a[1], (int)i, sizeof v, READ), sizeof v);
        for (int j = 0; j < N; j++)
            if (o.wide)
                lane_of<uint64_t>(w.file, o.more[j], (int)i) = (uint64_t)v[j];
            else
                lane_of<uint32_t>(w.file, o.more[j], (int)i) = (uint32_t)v[j];
    }
}
template <class T, int N> static void store(warp &w, const op &o, uint32_t on)
{
    EACH_LANE(i, on) {
        T v[N];
        for (int j = 0; j < N; j++)
            v[j] = o.wide ? (T)lane_of<uint64_t>(w.file, o.more[j], (int)i)
                          : (T)lane_of<uint32_t>(w.file, o.more[j], (int)i);
        memcpy(pointer(w, o, o.a[1], (int)i, sizeof v, WRITE), v, sizeof v);
    }
}
template <int N> static handler load_of(enum type t)
{
    switch (t) {
    case S8: return load<int8_t, N>;
    case U8: case B8: return load<uint8_t, N>;
    case S16: return load<int16_t, N>;
    case U16: case B16: case F16: return load<uint16_t, N>;
    case S32: return load<int32_t, N>;
    case S64: case U64: case B64: case F64: return load<uint64_t, N>;
    case U32: case B32: case F32: case F16X2: return load<uint32_t, N>;
    default: return nullptr;
    }
}
template <int N> static handler store_of(enum type t)
{
    switch (bits_of(t)) {
    case 8: return store<uint8_t, N>;
    case 16: return store<uint16_t, N>;
    case 32: return store<uint32_t, N>;
    case 64: return store<uint64_t, N>;
    default: return nullptr;
    }
}

static bool is_shared(const uint8_t *p) { return (uint64_t)p - (uint64_t)vm.shared < vm.shared_size; }

/* ld.acquire or ld.relaxed of a scope above the block, of N numbers.  A lane that reads the same
 * words as the last time at this place of the code, and finds the same values, has polled without
 * success: it waits until the other threads have had their turn. */
template <class T, int N, unsigned SEMANTICS> static void load_poll(warp &w, const op &o, uint32_t on)
{
    uint32_t failed = 0;
    EACH_LANE(i, on) {
        T v[N];
        const uint8_t *const p = pointer(w, o, o.a[1], (int)i, sizeof v, POLL);
        memcpy(v, p, sizeof v);
        for (int k = 0; k < N; k++) {
            lane_of<T>(w.file, o.more[(size_t)k], (int)i) = v[k];
            if (vm.together && !is_shared(p))
                order_synchronize((uint64_t)(p + k * sizeof(T)), POLL, SEMANTICS);
        }
        uint64_t value[2] = {};
        static_assert(sizeof v <= sizeof value, "a poll has up to 16 bytes");
        memcpy(value, v, sizeof v);
        int k = 0;
        while (k < N_POLLS && w.polled[i][k].pc != w.pc)
            k++;
        if (k == N_POLLS)
            k = w.oldest_poll[i]++ % N_POLLS;
        auto &last = w.polled[i][k];
        if (last.pc == w.pc && last.address == (uint64_t)p && !memcmp(last.value, value, sizeof value))
            failed |= 1u << i;
        last = { w.pc, (uint64_t)p, { value[0], value[1] } };
    }
    vm.progress |= failed != on;
    if (!failed)
        return;
    save(w);
    w.at_poll |= failed;
    w.parked |= failed;
    regroup(w);
}

/* st.relaxed of a scope above the block. */
template <class T, int N> static void store_relaxed(warp &w, const op &o, uint32_t on)
{
    EACH_LANE(i, on) {
        uint8_t *const p = pointer(w, o, o.a[1], (int)i, N * sizeof(T), ATOMIC);
        for (int k = 0; k < N; k++) {
            const T v = lane_of<T>(w.file, o.more[(size_t)k], (int)i);
            memcpy(p + k * sizeof v, &v, sizeof v);
            if (vm.together && !is_shared(p))
                order_store((uint64_t)(p + k * sizeof v));
        }
    }
}

template <class T> static T bits(T a, T b, bool both)
{
    if constexpr (std::is_integral_v<T>)
        return both ? a & b : a | b;
    return a;
}

/* The operation is o.more[0]: 0 add, 1 min, 2 max, 3 and, 4 or, 5 xor, 6 exch, 7 cas; more[1]: it
 * returns the old value; more[2]: ACQUIRE, RELEASE. */
template <class T> static void atomic(warp &w, const op &o, uint32_t on)
{
    const int what = (int)o.more[0];
    EACH_LANE(i, on) {
        uint8_t *p = pointer(w, o, o.a[1], (int)i, sizeof(T), ATOMIC);
        T old, v = lane_of<T>(w.file, o.a[2], (int)i);
        memcpy(&old, p, sizeof old);
        const T other = what == 7 && old == v ? lane_of<T>(w.file, o.a[3], (int)i) : old;
        const T is = what == 0 ? (T)(old + v) : what == 1 ? (old < v ? old : v) : what == 2 ? (old > v ? old : v)
                     : what == 3 || what == 4 ? bits<T>(old, v, what == 3) : what == 6 ? v : other;
        memcpy(p, &is, sizeof is);
        if (vm.together && !is_shared(p))
            order_synchronize((uint64_t)p, ATOMIC, o.more[2]);
        if (o.more[1])
            lane_of<T>(w.file, o.a[0], (int)i) = old;
    }
}

static enum space space_of(const statement &s)
{
    return s.has("shared") || s.has("shared::cta") ? SHARED : s.has("global") ? GLOBAL : s.has("const") ? CONST
           : s.has("local") ? LOCAL : s.has("param") ? GLOBAL : GENERIC;
}
/* The address in a[k]. */
static void address(assembler &as, const statement &s, op &o, const operand &x, int k)
{
    const operand &base = x.v[0];
    if (x.kind != operand::ADDRESS || (base.kind != operand::REGISTER && base.kind != operand::NUMBER))
        fail("not an address");
    o.wide_address = base.kind == operand::NUMBER || base.wide;
    o.a[k] = source(as, base, o.wide_address);
    o.imm = (int64_t)x.value;
    if (s.has("param") && base.kind == operand::NUMBER && base.wide)
        o.space = LOCAL;                /* a parameter of a called function, which is in local memory */
}

/* ---- cp.async: copies of 16 bytes by a thread, each done as late as allowed ---- */

struct copy_under_way { size_t to; const uint8_t *from; size_t n; int group; };
static std::vector<std::vector<copy_under_way>> copies(MAX_THREADS);
static std::vector<int> n_groups(MAX_THREADS);

static void run_copy_async(warp &w, const op &o, uint32_t on)
{
    const size_t n = (size_t)o.more[0];
    op from = o;
    from.space = GLOBAL;
    EACH_LANE(i, on) {
        const size_t at = (size_t)(address_of(w, o, o.a[0], (int)i) + (uint64_t)o.imm);
        const uint64_t p = lane_of<uint64_t>(w.file, o.a[1], (int)i) + (uint64_t)(int64_t)(int32_t)o.more[1];
        check_shared(w, (int)i, at, n, WRITE);
        const int me = w.index * LANES + (int)i;
        copies[me].push_back({ at, global_pointer(o, (int)i, p, n, READ), n, n_groups[me] });
        shared_under_way(at, n);
    }
}
static void run_commit(warp &w, const op &, uint32_t on)
{
    EACH_LANE(i, on)
        n_groups[w.index * LANES + (int)i]++;
}
static void run_wait(warp &w, const op &o, uint32_t on)         /* wait until at most imm groups are
                                                                 * in flight */
{
    EACH_LANE(i, on) {
        const unsigned me = (unsigned)(w.index * LANES) + i;
        std::vector<copy_under_way> &c = copies[me];
        size_t left = 0;
        for (const copy_under_way &x : c) {
            if (x.group >= n_groups[me] - (int)o.imm) {
                c[left++] = x;
                continue;
            }
            if (vm.together)            /* the copy reads at any time from its start to here */
                order_access((int)i, (uint64_t)x.from, x.n, READ);
            memcpy(vm.shared + x.to, x.from, x.n);
            for (size_t b = x.to / 4; b < (x.to + x.n) / 4; b++)
                shadows[b].written = key(me), shadows[b].write_collective = w.n_collectives;
        }
        c.resize(left, copy_under_way());
    }
}

void copies_begin()
{
    for (unsigned i = 0; i < vm.n_threads; i++) {
        copies[i].clear();
        n_groups[i] = 0;
    }
}

/* ---- blocks of a cooperative launch ---- */

struct block_memory {
    unsigned epoch = 0, first_epoch = 0;
    std::vector<shadow> shadows;
    std::vector<std::vector<copy_under_way>> copies{ MAX_THREADS };
    std::vector<int> n_groups = std::vector<int>(MAX_THREADS);
};
void block_memory_exchange(unsigned block)
{
    static block_memory of[N_SMS];
    block_memory &b = of[block];
    std::swap(vm.epoch, b.epoch);
    std::swap(vm.first_epoch, b.first_epoch);
    shadows.swap(b.shadows);
    copies.swap(b.copies);
    n_groups.swap(b.n_groups);
}

/* ---- ldmatrix: the target registers are in `more` ---- */

template <bool TRANSPOSED> static void load_matrix(warp &w, const op &o, uint32_t on)
{
    if (!gather(w, ~0u, on))
        return;
    const int n = (int)o.more.size();
    uint16_t rows[LANES][8] = {};
    for (int i = 0; i < 8 * n; i++)
        memcpy(rows[i], pointer(w, o, o.a[1], i, 16, READ), 16);
    for (int m = 0; m < n; m++)
        for (int i = 0; i < LANES; i++)
            lane_of<uint32_t>(w.file, o.more[m], i) =
                TRANSPOSED ? (uint32_t)rows[8 * m + i % 4 * 2 + 1][i / 4] << 16 | rows[8 * m + i % 4 * 2][i / 4]
                           : (uint32_t)rows[8 * m + i / 4][i % 4 * 2 + 1] << 16 | rows[8 * m + i / 4][i % 4 * 2];
    w.n_collectives++;
}

/* ---- addresses of one space in another ---- */

static void to_shared(warp &w, const op &o, uint32_t on)
{
    EACH_LANE(i, on) {
        const uint64_t p = lane_of<uint64_t>(w.file, o.a[1], (int)i) - (o.imm ? (uint64_t)vm.shared : 0);
        lane_of<uint64_t>(w.file, o.a[0], (int)i) = p + (o.imm ? 0 : (uint64_t)vm.shared);
    }
}
static void to_local(warp &w, const op &o, uint32_t on)
{
    EACH_LANE(i, on) {
        const uint64_t base = (uint64_t)(w.local + i * vm.k->local_bytes),
                       p = lane_of<uint64_t>(w.file, o.a[1], (int)i);
        lane_of<uint64_t>(w.file, o.a[0], (int)i) = o.imm ? p - base : p + base;
    }
}
static void same_address(warp &w, const op &o, uint32_t on)
{
    EACH_LANE(i, on)
        lane_of<uint64_t>(w.file, o.a[0], (int)i) = lane_of<uint64_t>(w.file, o.a[1], (int)i);
}

static bool decode_access(assembler &as, const statement &s, op &o)
{
    const enum type t = s.type();
    const bool is_load = s.word[0] != "st";
    const operand &memory = s.o[is_load ? 1 : 0], &r = s.o[is_load ? 0 : 1];
    address(as, s, o, memory, 1);
    o.read_only = s.has("nc");
    const std::vector<operand> all = r.kind == operand::VECTOR ? r.v : std::vector<operand>{ r };
    const size_t n = s.has("v4") ? 4 : s.has("v2") ? 2 : 1;
    if (all.size() != n)
        return false;
    o.wide = all[0].kind == operand::REGISTER ? all[0].wide : bits_of(t) == 64;
    for (const operand &x : all)
        o.more.push_back(is_load ? target(x, o.wide) : source(as, x, o.wide));
    if (bits_of(t) == 64 && !o.wide)
        return false;
    const bool relaxed = s.has("relaxed");
    if ((s.has("acquire") || s.has("release") || relaxed) && !s.has("cta")) {
        const bool wide = t == U64 || t == B64;
        if ((n > 1 && (n < 4 || wide || !relaxed)) || o.space == SHARED || (!wide && t != U32 && t != B32) ||
            (!is_load && !relaxed))
            return false;
        o.run = n == 4    ? is_load ? load_poll<uint32_t, 4, 0> : store_relaxed<uint32_t, 4>
                : !is_load ? wide ? store_relaxed<uint64_t, 1> : store_relaxed<uint32_t, 1>
                : relaxed ? wide ? load_poll<uint64_t, 1, 0> : load_poll<uint32_t, 1, 0>
                : wide    ? load_poll<uint64_t, 1, ACQUIRE> : load_poll<uint32_t, 1, ACQUIRE>;
        return true;
    }
    o.run = is_load ? n == 1 ? load_of<1>(t) : n == 2 ? load_of<2>(t) : load_of<4>(t)
                    : n == 1 ? store_of<1>(t) : n == 2 ? store_of<2>(t) : store_of<4>(t);
    return o.run != nullptr;
}

static bool decode_atomic(assembler &as, const statement &s, op &o)
{
    const enum type t = s.type();
    static const char *const names[] = { "add", "min", "max", "and", "or", "xor", "exch", "cas" };
    const bool wide = bits_of(t) == 64, returns = s.word[0] == "atom";
    uint32_t what = 0;
    while (what < 8 && !s.has(names[what]))
        what++;
    if (what == 8 || what == 5)
        return false;
    address(as, s, o, s.o[returns ? 1 : 0], 1);
    const uint32_t semantics = s.has("cta") ? 0 : s.has("acq_rel") ? ACQUIRE | RELEASE : s.has("acquire") ? ACQUIRE
                               : s.has("release") ? RELEASE : 0;
    o.more = { what, returns && s.o[0].kind == operand::REGISTER, semantics };
    if (o.more[1])
        o.a[0] = target(s.o[0], wide);
    o.a[2] = source(as, s.o[returns ? 2 : 1], wide);
    if (what == 7)
        o.a[3] = source(as, s.o[3], wide);
    switch (t) {
    case U32: case B32: o.run = atomic<uint32_t>; break;
    case S32: o.run = atomic<int32_t>; break;
    case U64: case B64: o.run = atomic<uint64_t>; break;
    case F32: o.run = what == 0 ? atomic<float> : nullptr; break;
    default: break;
    }
    return o.run != nullptr;
}

bool decode_memory(assembler &as, const statement &s, op &o)
{
    const std::string &b = s.word[0];
    o.space = space_of(s);
    if (b == "ld" || b == "ldu" || b == "st")
        return decode_access(as, s, o);
    if (b == "atom" || b == "red")
        return decode_atomic(as, s, o);
    if (b == "cvta") {
        const bool to = s.has("to");
        o.a[0] = target(s.o[0], true);
        o.a[1] = source(as, s.o[1], true);
        o.imm = to;
        o.run = o.space == SHARED ? to_shared : o.space == LOCAL ? to_local : same_address;
        return true;
    }
    if (s.full == "cp.async.cg.shared.global" || s.full == "cp.async.ca.shared.global") {
        if (s.o.size() != 3)            /* the form that copies fewer bytes than it writes is not used */
            return false;
        address(as, s, o, s.o[0], 0);
        o.a[1] = source(as, s.o[1].v[0], true);
        o.more = { (uint32_t)s.o[2].value, (uint32_t)s.o[1].value };
        o.run = run_copy_async;
        return true;
    }
    if (s.full == "cp.async.commit_group") {
        o.run = run_commit;
        return true;
    }
    if (s.full == "cp.async.wait_group" || s.full == "cp.async.wait_all") {
        o.imm = s.o.empty() ? -1 : (int64_t)s.o[0].value;       /* all: also those of no group yet */
        o.run = run_wait;
        return true;
    }
    if (b == "ldmatrix" && s.has("m8n8") && s.has("b16")) {
        address(as, s, o, s.o[1], 1);
        for (const operand &x : s.o[0].v)
            o.more.push_back(target(x, false));
        o.run = s.has("trans") ? load_matrix<true> : load_matrix<false>;
        return true;
    }
    return false;
}
