/* machine.cc - run a grid: blocks one after the other, or in turns if the launch is cooperative,
 * each warp until it waits, lanes at the lowest address first. */
#include "tests/ptx/ptx.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

machine vm;

static std::string formatted(const char *fmt, va_list ap)
{
    char text[700];
    vsnprintf(text, sizeof text, fmt, ap);
    return text;
}
void fail(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const std::string s = formatted(fmt, ap);
    va_end(ap);
    throw fault(s);
}
void fail_at(int lane, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const std::string s = formatted(fmt, ap);
    va_end(ap);
    const op &o = *vm.now;
    const std::string file = (size_t)o.file < vm.k->files.size() ? vm.k->files[(size_t)o.file] : "?";
    fail("kernel %s, block (%u, %u, %u), thread %d: %s:%d: `%.100s`: %s", vm.k->name.c_str(), vm.cta[0], vm.cta[1],
         vm.cta[2], vm.now_warp->index * LANES + lane, file.c_str(), o.line, o.text.c_str(), s.c_str());
}

/* The seed of xorshift, from ZSE_PTX_SEED; 0: warps run in their order. */
static uint64_t seed()
{
    const char *s = getenv("ZSE_PTX_SEED");
    return s ? strtoull(s, nullptr, 10) : 0;
}
static uint64_t state_of(uint64_t seed) { return seed * 0x9e3779b97f4a7c15u; }
static uint64_t state = state_of(seed());
void draw_from(uint64_t seed) { state = state_of(seed); }
uint64_t draw(uint64_t n)
{
    if (!state)
        return 0;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % n;
}

void save(warp &w)
{
    EACH_LANE(i, w.active)
        w.lane_pc[i] = w.pc;
}
void regroup(warp &w)
{
    const uint32_t able = w.live & ~w.parked;
    w.active = 0;
    w.pc = w.next = NEVER;
    EACH_LANE(i, able) {
        if (w.lane_pc[i] < w.pc) {
            w.next = w.pc;
            w.pc = w.lane_pc[i];
            w.active = 1u << i;
        } else if (w.lane_pc[i] == w.pc) {
            w.active |= 1u << i;
        } else if (w.lane_pc[i] < w.next) {
            w.next = w.lane_pc[i];
        }
    }
}

static void release(int barrier)
{
    for (warp &w : vm.warps) {
        w.parked &= ~w.at_barrier[barrier];
        w.at_barrier[barrier] = 0;
    }
    vm.epoch++;
}

void arrive(warp &w, uint32_t on, int barrier, unsigned n_threads)
{
    if (barrier < 0 || barrier >= N_BARRIERS)
        fail_at(__builtin_ctz(on), "barrier %d", barrier);
    save(w);
    w.parked |= on;
    w.at_barrier[barrier] |= on;
    unsigned n = 0;
    for (const warp &x : vm.warps)
        n += (unsigned)__builtin_popcount(x.at_barrier[barrier]);
    if (n == (n_threads ? n_threads : vm.n_threads))
        release(barrier);
    regroup(w);
}

bool gather(warp &w, uint32_t mask, uint32_t &on)
{
    const int here = w.pc - 1;
    uint32_t waiting = 0;
    EACH_LANE(i, w.parked & w.live)
        if (w.lane_pc[i] == here)
            waiting |= 1u << i;
    for (const uint32_t b : w.at_barrier)
        waiting &= ~b;
    waiting &= ~w.at_poll;
    const uint32_t all = (on | waiting) & mask;
    save(w);
    if (all != (mask & w.live)) {       /* other lanes of the mask have not arrived yet */
        EACH_LANE(i, on)
            w.lane_pc[i] = here;
        w.parked |= on;
        regroup(w);
        return false;
    }
    w.parked &= ~all;
    EACH_LANE(i, all)
        w.lane_pc[i] = here + 1;
    on = all;
    if (waiting)
        regroup(w);
    return true;
}

/* Run a warp until it waits, but for at most n operations. */
static void run_warp(warp &w, unsigned n)
{
    const op *const ops = vm.k->ops.data();
    save(w);
    regroup(w);
    vm.now_warp = &w;
    vm.yield = false;
    while (w.active && n-- && !vm.yield) {
        const op &o = ops[w.pc++];
        uint32_t on = w.active;
        if (o.guard >= 0)
            on &= o.guard_not ? ~w.predicate[o.guard] : w.predicate[o.guard];
        if (on) {
            vm.now = &o;
            o.run(w, o, on);
        }
        if (w.pc >= w.next && w.active) {
            save(w);
            regroup(w);
        }
    }
}

static uint64_t waiting_since_start(const warp &w) { return w.live && !(w.live & ~w.parked); }

static bool block_polls()
{
    for (const warp &w : vm.warps)
        if (w.at_poll)
            return true;
    return false;
}
/* Names a thread that polls, if there is one. */
static void stuck()
{
    const bool polls = block_polls();
    for (const warp &w : vm.warps)
        if (polls ? w.at_poll : w.live) {
            const int lane = __builtin_ctz(polls ? w.at_poll : w.live);
            vm.now_warp = &w;
            vm.now = &vm.k->ops[(size_t)(w.lane_pc[lane] ? w.lane_pc[lane] - 1 : 0)];
            fail_at(lane, "the %s wait for what cannot come", polls ? "blocks" : "threads of the block");
        }
}
/* Let lanes whose poll has failed poll again. */
static void wake_polls()
{
    for (warp &w : vm.warps) {
        w.parked &= ~w.at_poll;
        w.woken |= w.at_poll;
        w.at_poll = 0;
    }
}

void copies_begin();

static void fill_specials(warp &w)
{
    const unsigned *const sizes[] = { vm.block, vm.cta, vm.grid };
    for (const special_register &s : vm.k->specials)
        for (int i = 0; i < LANES; i++) {
            const unsigned t = (unsigned)(w.index * LANES + i);
            const unsigned tid[3] = { t % vm.block[0], t / vm.block[0] % vm.block[1], t / vm.block[0] / vm.block[1] };
            uint32_t v = 0;
            if (s.which <= TID_Z)
                v = tid[s.which];
            else if (s.which <= NCTAID_Z)
                v = sizes[(s.which - NTID_X) / 3][(s.which - NTID_X) % 3];
            else
                v = s.which == LANEID ? (uint32_t)i : (uint32_t)w.index;
            lane_of<uint32_t>(w.file, s.at, i) = v;
        }
}

static size_t file_size(const kernel *k) { return (k->register_bytes + 127) / 64 * 64; }

/* Make the warps of a block, with their registers and memory. */
static void place_warps(std::vector<warp> &warps, size_t n_warps, std::vector<uint8_t> &files,
                        std::vector<uint8_t> &locals, std::vector<uint32_t> &predicates,
                        std::vector<uint8_t> &shared, uint8_t *&shared_start)
{
    const kernel *const k = vm.k;
    const size_t file = file_size(k);
    files.resize(n_warps * file + 64);
    locals.resize(n_warps * LANES * k->local_bytes + 64);
    predicates.assign(n_warps * (k->n_predicates + 1), 0);
    shared.resize((256 << 10) + 1024);
    shared_start = shared.data() + (1024 - (uintptr_t)shared.data() % 1024);
    warps.assign(n_warps, warp());
    for (size_t i = 0; i < n_warps; i++) {
        warp &w = warps[i];
        w.index = (int)i;
        w.file = files.data() + (64 - (uintptr_t)files.data() % 64) + i * file;
        w.local = locals.data() + (16 - (uintptr_t)locals.data() % 16) + i * LANES * k->local_bytes;
        w.predicate = predicates.data() + i * (k->n_predicates + 1);
        for (const constant &c : k->constants)
            for (int j = 0; j < LANES; j++)
                if (c.wide)
                    lane_of<uint64_t>(w.file, c.at, j) = c.value;
                else
                    lane_of<uint32_t>(w.file, c.at, j) = (uint32_t)c.value;
    }
}

static void begin_block()
{
    vm.first_epoch = ++vm.epoch;
    block_memory_begin();
    copies_begin();
    hopper_begin();
    for (warp &w : vm.warps) {
        const unsigned first = (unsigned)w.index * LANES, n = vm.n_threads - first;
        w.live = n >= LANES ? ~0u : (1u << n) - 1;
        w.active = w.parked = w.carry = w.at_phase = w.at_poll = w.woken = 0;
        w.n_collectives = 0;
        w.waited = vm.dependence == PLAIN ? ~0u : 0;
        memset(w.lane_pc, 0, sizeof w.lane_pc);
        memset(w.at_barrier, 0, sizeof w.at_barrier);
        memset(w.polled, 0, sizeof w.polled);
        w.pc = 0;
        fill_specials(w);
    }
}

/* Operations that a warp may execute before others have to run. */
static unsigned n_operations(const warp &w)
{
    enum { POLL_LOOP = 512 };           /* more than a loop has that polls */
    if (!state)
        return vm.together ? 1 << 18 : ~0u;
    return 1 + (unsigned)draw(vm.together ? 1 << draw(13) : 4000) + (w.woken ? POLL_LOOP : 0);
}

/* Let each warp that can run do so once, in an order that the seed determines.  ran: one of them
 * could run.  Returns false if all threads have ended. */
static bool run_warps(std::vector<warp *> &order, bool &ran)
{
    bool alive = false;
    ran = false;
    for (size_t i = order.size(); i > 1; i--)
        std::swap(order[i - 1], order[i - 1 - draw(i)]);
    for (warp *w : order) {
        alive |= w->live != 0;
        if (!w->live || waiting_since_start(*w))
            continue;
        const unsigned n = n_operations(*w);
        vm.progress |= (w->live & ~w->parked & ~w->woken) != 0;
        w->woken = 0;
        run_warp(*w, n);
        vm.progress |= (w->live & ~w->parked) != 0;
        ran = true;
    }
    return alive;
}

static std::vector<warp *> warps_in_order()
{
    std::vector<warp *> order;
    for (warp &w : vm.warps)
        order.push_back(&w);
    return order;
}

/* Failed polls of all threads that do not wait, after which no poll can succeed any more. */
enum { MOST_FAILED_POLLS = 4 * N_POLLS };

static void run_block()
{
    begin_block();
    std::vector<warp *> order = warps_in_order();
    bool ran;
    for (int n_failed = 0; run_warps(order, ran);) {
        if (ran || hopper_go_on())
            continue;
        n_failed = vm.progress ? 0 : n_failed + 1;
        if (!block_polls() || n_failed == MOST_FAILED_POLLS)
            stuck();
        vm.progress = false;
        wake_polls();
    }
    hopper_end();
}

/* ---- cooperative launches ---- */

/* A block while others run; block_memory_exchange() stores the rest of it. */
struct resident {
    std::vector<warp> warps;
    std::vector<uint8_t> files, locals, shared;
    std::vector<uint32_t> predicates;
    uint8_t *shared_start;
    unsigned index, cta[3];
    bool polls;
};
static void exchange(resident &b)
{
    vm.warps.swap(b.warps);
    std::swap(vm.shared, b.shared_start);
    std::swap(vm.cta, b.cta);
    vm.block_index = b.index;
    block_memory_exchange(b.index);
}

/* A turn of a block: until its threads wait or their polls fail, or one executes a fence, or for a
 * while, which the seed determines.  A fence ends a turn so that others run between the accesses
 * before an arrival and those after it.  Returns false if all threads have ended. */
static bool take_turn(resident &b)
{
    exchange(b);
    wake_polls();
    std::vector<warp *> order = warps_in_order();
    bool alive, ran;
    unsigned left = state ? 1 + (unsigned)draw(8) : 16;
    vm.turn_over = false;
    do
        alive = run_warps(order, ran);
    while (alive && ran && !vm.turn_over && --left);
    b.polls = block_polls();
    exchange(b);
    return alive;
}

static void run_together(size_t n_warps)
{
    for (const op &o : vm.k->ops)
        if (o.copy_engine)
            fail("kernel %s: `%.100s` is not interpreted in a cooperative launch", vm.k->name.c_str(), o.text.c_str());
    std::vector<resident> all(vm.grid[0] * vm.grid[1] * vm.grid[2]);
    std::vector<resident *> left;
    order_begin();
    for (resident &b : all) {
        place_warps(b.warps, n_warps, b.files, b.locals, b.predicates, b.shared, b.shared_start);
        b.index = (unsigned)(&b - all.data());
        b.cta[0] = b.index % vm.grid[0];
        b.cta[1] = b.index / vm.grid[0] % vm.grid[1];
        b.cta[2] = b.index / vm.grid[0] / vm.grid[1];
        exchange(b);
        begin_block();
        exchange(b);
        left.push_back(&b);
    }
    for (int n_failed = 0; !left.empty();) {
        vm.progress = false;
        for (size_t i = left.size(); i > 1; i--)
            std::swap(left[i - 1], left[i - 1 - draw(i)]);
        for (size_t i = 0; i < left.size();)
            if (take_turn(*left[i]))
                i++;
            else
                left.erase(left.begin() + (long)i);
        n_failed = vm.progress ? 0 : n_failed + 1;
        if (n_failed < MOST_FAILED_POLLS)
            continue;
        /* Others may poll for a block that waits for its own threads. */
        resident *which = left[0];
        for (resident *b : left)
            if (!b->polls || (which->polls && b < which))
                which = b;
        exchange(*which);
        stuck();
    }
}

void run_grid(kernel *k, const unsigned grid[3], const unsigned block[3], size_t dynamic_shared,
              enum dependence dependence, bool together)
{
    static std::vector<uint8_t> files, locals, shared;
    static std::vector<uint32_t> predicates;
    static kernel *last;
    vm.k = k;
    vm.dependence = dependence;
    dependence == DEPENDENT ? keep_writes() : forget_writes();
    vm.launched_early = false;
    vm.together = together;
    memcpy(vm.grid, grid, sizeof vm.grid);
    memcpy(vm.block, block, sizeof vm.block);
    vm.n_threads = block[0] * block[1] * block[2];
    const size_t n_warps = (vm.n_threads + LANES - 1) / LANES, statics = (k->shared_bytes + 15) / 16 * 16;
    vm.shared_size = statics + dynamic_shared;
    if (together) {
        last = nullptr;                 /* a fault leaves the warps of a block in vm */
        return run_together(n_warps);
    }
    if (last != k || files.size() < n_warps * file_size(k) + 64 || vm.warps.size() != n_warps) {
        place_warps(vm.warps, n_warps, files, locals, predicates, shared, vm.shared);
        last = k;
    }
    for (vm.cta[2] = 0; vm.cta[2] < grid[2]; vm.cta[2]++)
        for (vm.cta[1] = 0; vm.cta[1] < grid[1]; vm.cta[1]++)
            for (vm.cta[0] = 0; vm.cta[0] < grid[0]; vm.cta[0]++)
                run_block();
}
