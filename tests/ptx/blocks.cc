/* blocks.cc - races between blocks of a cooperative launch: two blocks access the same bytes of
 * global memory, one of them writes, and no atomics and fences order the accesses.
 *
 * Each block has a vector clock (Fidge 1988; Mattern 1989): of each block, the time up to which its
 * accesses happen before the next ones of this block.  A release publishes the clock at an address,
 * an acquire there takes it over.  A relaxed atomic publishes the clock of the last fence before
 * it, and takes clocks over at the next fence.  Barriers order the threads of a block, so blocks
 * have clocks and threads have not. */
#include "tests/ptx/ptx.h"

#include <string.h>

#include <algorithm>
#include <memory>
#include <unordered_map>

/* GRAIN: bytes with common times.  Blocks may write neighbouring f16, not neighbouring bytes. */
enum { PAGE = 4096, GRAIN = 2, GRAINS = PAGE / GRAIN };

struct times {
    uint32_t of[N_SMS] = {};
    void join(const times &t)
    {
        for (int i = 0; i < N_SMS; i++)
            of[i] = std::max(of[i], t.of[i]);
    }
};
/* now: the clock; fenced: the same at the last fence; taken: by relaxed atomics since then */
struct block_clock { times now, fenced, taken; };

struct page {
    uint32_t written[GRAINS];           /* the last write: time * N_SMS + block; 0: none */
    uint32_t read[N_SMS][GRAINS];       /* time of each block's last read; 0: none */
    bool synchronizes[GRAINS];          /* it is in a word of `words` */
    bool constant[GRAINS];              /* a thread has loaded it by way of the read-only cache */
};
/* A word that atomics or polls access, and the times of each block's last one.  known[b]: the
 * times of the atomics before the last one of block b: atomics of one word have an order. */
struct synchronization { times published, atomics, polls, known[N_SMS]; };

static block_clock clocks[N_SMS];
static std::unordered_map<uint64_t, std::unique_ptr<page>> pages;
static std::unordered_map<uint64_t, synchronization> words;     /* by address / 4 */
static uint64_t last_page;
static page *last;

void order_begin()
{
    pages.clear();
    words.clear();
    last = nullptr;
    for (unsigned i = 0; i < N_SMS; i++) {
        clocks[i] = block_clock();
        clocks[i].now.of[i] = 1;
    }
}

static page &page_of(uint64_t p)
{
    if (!last || p / PAGE != last_page) {
        std::unique_ptr<page> &found = pages[p / PAGE];
        if (!found)
            found = std::make_unique<page>();
        last = found.get();
        last_page = p / PAGE;
    }
    return *last;
}

[[noreturn]] static void race(int lane, enum access a, unsigned block, const char *did)
{
    fail_at(lane, "race between blocks: %s of what block (%u, %u, %u) %s, and no release and acquire order them",
            verb(a), block % vm.grid[0], block / vm.grid[0] % vm.grid[1], block / vm.grid[0] / vm.grid[1], did);
}

/* Whether the atomics and polls of other blocks happen before this access. */
static void check_word(int lane, uint64_t word, enum access a, const times &now)
{
    synchronization &s = words[word];
    const unsigned me = vm.block_index;
    for (unsigned b = 0; b < N_SMS; b++) {
        if ((a == READ || a == WRITE) && s.atomics.of[b] > std::max(now.of[b], s.known[me].of[b]))
            race(lane, a, b, "has changed by an atomic");
        if (a == WRITE && s.polls.of[b] > now.of[b])
            race(lane, a, b, "polls");
    }
    if (a == WRITE)
        s.published = times();
}

/* The read-only cache holds bytes that no block writes while the kernel runs. */
static void check_constant(int lane, page &m, size_t i, enum access a)
{
    if (a == READ && vm.now->read_only) {
        m.constant[i] = true;
        if (m.written[i] || m.synchronizes[i])
            fail_at(lane, "a read-only load (.nc) of what a block of the launch has written");
    } else if (m.constant[i] && a != READ) {
        fail_at(lane, "%s of what a block of the launch has read by a read-only load (.nc)", verb(a));
    }
}

void order_access(int lane, uint64_t p, size_t n, enum access a)
{
    const unsigned me = vm.block_index;
    const times &now = clocks[me].now;
    page &m = page_of(p);
    const size_t from = p % PAGE / GRAIN, to = (p % PAGE + n + GRAIN - 1) / GRAIN;
    for (size_t i = from; i < to; i++) {
        const unsigned writer = m.written[i] % N_SMS;
        if (m.written[i] / N_SMS > now.of[writer])
            race(lane, a, writer, "wrote");
        if (a == WRITE || a == ATOMIC)
            for (unsigned b = 0; b < N_SMS; b++)
                if (m.read[b][i] > now.of[b])
                    race(lane, a, b, "read");
        check_constant(lane, m, i, a);
        if (m.synchronizes[i])
            check_word(lane, (p / PAGE * PAGE + i * GRAIN) / 4, a, now);
        if (a == READ)
            m.read[me][i] = now.of[me];
        else if (a == WRITE)
            m.written[i] = now.of[me] * N_SMS + me;
        else
            m.synchronizes[i] = true;
    }
    for (uint64_t word = p / 4; a != READ && a != WRITE && word < (p + n) / 4; word++) {
        synchronization &s = words[word];
        (a == ATOMIC ? s.atomics : s.polls).of[me] = now.of[me];
        if (a == ATOMIC)
            s.known[me] = s.atomics;
    }
}

void order_synchronize(uint64_t p, enum access a, unsigned semantics)
{
    const unsigned me = vm.block_index;
    block_clock &c = clocks[me];
    synchronization &s = words[p / 4];
    (semantics & ACQUIRE ? c.now : c.taken).join(s.published);
    if (a != ATOMIC)
        return;
    s.published.join(semantics & RELEASE ? c.now : c.fenced);
    if (semantics & RELEASE)
        c.now.of[me]++;
}

void order_store(uint64_t p) { words[p / 4].published = clocks[vm.block_index].fenced; }

void order_fence()
{
    block_clock &c = clocks[vm.block_index];
    c.now.join(c.taken);
    c.fenced = c.now;
    c.now.of[vm.block_index]++;
}
