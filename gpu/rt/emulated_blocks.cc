/* emulated_blocks.cc - races in global memory between the blocks of a launch_together().
 *
 * Each block has a vector clock (Fidge 1988; FastTrack, PLDI 2009): clocks[b].at[i] is the epoch of
 * block i up to which block b has seen its accesses.  An arrival at a barrier publishes the clock
 * of its block, which then enters its next epoch; a wait for n arrivals learns the clocks of the
 * first n.  An atomic operation does both: it is ordered after those before it on the same word, as
 * in last_block() (prim.cuh), whose fences are not checked.  Two accesses of different blocks to
 * one byte, one of them a write, are a race if the later block has not seen the earlier one's
 * epoch.
 *
 * Threads of a block share its clock: their order among themselves is not checked here.  Of two
 * blocks that write different bytes of a word, only the last is remembered. */
#include "gpu/rt/internal.h"

#include <unordered_map>

namespace {

enum { N = EMULATED_SMS, PAGE = 4096 };

struct vector_clock {
    uint32_t at[N];

    void learn(const vector_clock &from)
    {
        for (int i = 0; i < N; i++)
            at[i] = from.at[i] > at[i] ? from.at[i] : at[i];
    }
};

/* The last accesses to bytes of a word: 16 * epoch + a mask of the bytes; 0: none. */
struct word { uint32_t write, read[N]; int8_t writer; bool atomic; };
struct page { word words[PAGE / 4]; };

/* The arrivals at a counter: after[i] is what a wait for first + i + 1 of them learns. */
struct arrivals { unsigned first; std::vector<vector_clock> after; };

vector_clock clocks[N];
std::unordered_map<uintptr_t, page> pages;
std::unordered_map<const void *, vector_clock> atomics;
std::unordered_map<const void *, arrivals> counters;
struct { uintptr_t number; page *p; } recent[256];      /* by the last 8 bits of a page's number */

word *word_of(uintptr_t address)
{
    const uintptr_t number = address / PAGE;
    auto &r = recent[number % 256];
    if (!r.p || r.number != number)
        r = { number, &pages[number] };
    return &r.p->words[address % PAGE / 4];
}

/* An access of block `other`, as in a word, that the running block has not seen, to bytes of this
 * mask. */
bool races(uint32_t access, uint32_t mask, int me, int other)
{
    return (access & mask) && other != me && access >> 4 > clocks[me].at[other];
}

void add(uint32_t *access, uint32_t epoch, uint32_t mask)
{
    *access = *access >> 4 == epoch ? *access | mask : epoch << 4 | mask;
}

void complain(bool write, size_t at, int other, bool wrote)
{
    emulated_complain("race between blocks: %s of byte %zu of an allocation, which block %d %s without a barrier between", write ? "write" : "read", at, other,
                      wrote ? "wrote" : "read");
}

}

void blocks_begin()
{
    pages.clear();
    atomics.clear();
    counters.clear();
    memset(recent, 0, sizeof recent);
    memset(clocks, 0, sizeof clocks);
    for (int i = 0; i < N; i++)
        clocks[i].at[i] = 1;
}

void blocks_access(int me, const void *p, size_t n, enum blocks_access kind, size_t at)
{
    const uintptr_t begin = (uintptr_t)p, end = begin + n;
    const uint32_t epoch = clocks[me].at[me];
    const bool write = kind == BLOCKS_WRITE || kind == BLOCKS_ATOMIC, atomic = kind >= BLOCKS_ATOMIC;
    for (uintptr_t a = begin / 4 * 4; a < end; a += 4) {
        word *w = word_of(a);
        const uint32_t from = a < begin ? 0xfu << (begin - a) : 0xf, to = end - a < 4 ? 0xfu >> (4 - (end - a)) : 0xf,
                       mask = from & to & 0xf;
        if (!write && w->read[me] >> 4 == epoch && (w->read[me] & mask) == mask)
            continue;                   /* checked before; a write since then would have been a race */
        if (!(atomic && w->atomic) && races(w->write, mask, me, w->writer))
            return complain(write, at + a - begin, w->writer, true);
        if (!write) {
            add(&w->read[me], epoch, mask);
            continue;
        }
        for (int i = 0; i < N && !atomic; i++)
            if (races(w->read[i], mask, me, i))
                return complain(true, at + a - begin, i, false);
        if (w->writer != me)
            w->write = 0;
        add(&w->write, epoch, mask);
        w->writer = (int8_t)me;
        w->atomic = atomic;
    }
}

void blocks_atomic(int me, const void *p)
{
    vector_clock *before = &atomics[p];
    clocks[me].learn(*before);
    before->learn(clocks[me]);
    clocks[me].at[me]++;
}

void blocks_arrive(int me, const unsigned *counter)
{
    arrivals *c = &counters[counter];
    if (*counter != c->first + c->after.size())
        *c = { *counter, {} };          /* the first arrival, or a block has set the counter since */
    vector_clock now = clocks[me];
    if (!c->after.empty())
        now.learn(c->after.back());
    c->after.push_back(now);
    clocks[me].at[me]++;
}

void blocks_wait(int me, const unsigned *counter, unsigned n)
{
    const arrivals &c = counters[counter];
    if (n > c.first && n - c.first <= c.after.size())
        clocks[me].learn(c.after[n - c.first - 1]);
}
