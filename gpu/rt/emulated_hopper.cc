/* emulated_hopper.cc - hopper.cuh without a GPU: barriers in shared memory, the copy engine,
 * products of a warpgroup, as the PTX ISA describes them.
 *
 * Asynchronous operations happen as late as possible.  A copy arrives when no thread can continue
 * without it.  A product is computed when it is waited for, from the contents of shared memory and
 * operands at that time; until then its accumulators are NaN.  Errors are:
 *   barriers   one that is not 8-byte aligned, not initialized, or not made visible to the copy
 *              engine; more arrivals or bytes than announced; a wait that never ends
 *   copies     to an address that is not 1024-byte aligned or outside shared memory; over bytes
 *              that another copy or a product in flight uses, that were not read since the last
 *              copy, or that products have read of which no barrier has told the copying thread;
 *              in flight when the block ends
 *   products   by less than 4 whole warps; descriptors that differ within them, or that are not
 *              those of wgmma_tile (offsets, alignment, bounds); of bytes that no copy brought, or
 *              whose barrier one of the threads has not waited for; without a fence after accesses
 *              to its registers; operands written or accumulators accessed while in flight; not
 *              waited for when the block ends */
#include "gpu/rt/internal.h"
#include "gpu/rt/emulate.h"

#include <math.h>
#include <string.h>

#include <vector>

namespace {

enum { WARPGROUP = 128, COLUMNS = 128 /* most */, MAX_BARRIERS = 64, MAX_REGISTERS = 16, PIECE = 16, PATTERN = 1024 };

enum { WARP = 32, WARPS = EMULATED_THREADS / WARP, WARPGROUPS = EMULATED_THREADS / WARPGROUP };

/* The number of products that each warp has waited for, as far as a thread knows. */
struct knowledge {
    size_t waited[WARPS];

    void learn(const knowledge &from)
    {
        for (int w = 0; w < WARPS; w++)
            waited[w] = from.waited[w] > waited[w] ? from.waited[w] : waited[w];
    }
};

/* n_phases: number of phases that have ended; shown: it is visible to the copy engine; told, known:
 * by the arrivals of this phase, and by those of the phases that have ended */
struct barrier {
    uint32_t at; bool shown; int count, pending; long bytes; unsigned n_phases, generation;
    knowledge told, known;
};

/* A tensor map of the emulation. */
struct hopper_map { uint64_t base, stride; int cols, rows, box_rows; uint32_t magic; };
enum : uint32_t { MAGIC = 0x746d6170 };

struct copy { hopper_map m; uint32_t to; int x, y, barrier; };

/* State of 16 bytes of shared memory: the barrier and the phase of the copy that brings or has
 * brought them, whether they were read since, and by which product of each warpgroup last (its
 * index + 1). */
struct shared_piece {
    enum { NOTHING, UNDER_WAY, THERE } state; int barrier; unsigned phase; bool was_read; uint32_t reader[WARPGROUPS];
};

struct product { int accumulator; const uint32_t *a[WARPGROUP]; uint64_t b; int add, n_columns, e4m3; };
/* The registers of an accumulator in every lane, and their values while they are poisoned. */
struct accumulator { float *c[WARPGROUP]; float held[WARPGROUP][COLUMNS / 2]; int n_under_way; };

struct warpgroup {
    int arrived;
    unsigned generation;
    /* operands of the product that is being started */
    float *c[WARPGROUP]; const uint32_t *a[WARPGROUP]; uint64_t b; int add, n_columns, e4m3;
    std::vector<product> products;
    size_t n_done;                      /* index of the first that is not done */
    std::vector<accumulator *> accumulators;
};

/* Registers that products in flight use.  last: 1 + the index of the last such product. */
struct registers { const uint8_t *p; size_t size; bool accumulator; size_t last; };
struct thread {
    unsigned seen[MAX_BARRIERS];        /* number of phases that it has waited for */
    registers used[MAX_REGISTERS]; int n_used;
    bool fenced;
    size_t n_begun, n_waited;           /* numbers of products */
    std::vector<size_t> groups;         /* products started before each commit */
    knowledge known;
};

std::vector<barrier> barriers;
std::vector<copy> copies;
shared_piece pieces[EMULATED_SHARED / PIECE];
thread threads[EMULATED_THREADS];
warpgroup warpgroups[EMULATED_THREADS / WARPGROUP];

barrier *find(uint64_t *b, const char *what)
{
    const uint32_t at = emulated_shared_address(b);
    for (barrier &x : barriers)
        if (x.at == at)
            return &x;
    emulated_complain("%s of a barrier at %u of shared memory, where none was initialised", what, at);
    return nullptr;
}

void end_phase_if_over(barrier *b)
{
    if (b->pending || b->bytes)
        return;
    b->pending = b->count;
    b->known.learn(b->told);
    b->n_phases++;
    b->generation++;
}

/* Swizzled address of a 16-byte piece: bits 4 to 6 are XORed with bits 7 to 9. */
uint32_t swizzled(uint32_t at) { return at ^ (at >> 7 & 7) << 4; }

uint8_t *shared_at(uint32_t at) { return static_cast<uint8_t *>(emulated_shared()) + at; }

void land(const copy &c)
{
    const uint8_t *base = reinterpret_cast<const uint8_t *>(c.m.base);
    for (int row = 0; row < c.m.box_rows; row++)
        for (int i = 0; i < 8; i++) {
            uint16_t v[8] = {};
            for (int k = 0; k < 8; k++) {
                const int x = c.x + 8 * i + k, y = c.y + row;
                if (x >= 0 && x < c.m.cols && y >= 0 && y < c.m.rows)
                    memcpy(&v[k], base + (uint64_t)y * c.m.stride + 2 * (uint64_t)x, 2);
            }
            const uint32_t to = swizzled(c.to + 128u * (uint32_t)row + 16u * (uint32_t)i);
            memcpy(shared_at(to), v, 16);
            pieces[to / PIECE] = { shared_piece::THERE, c.barrier, barriers[(size_t)c.barrier].n_phases + 1, false,
                                   {} };
        }
    barrier *b = &barriers[(size_t)c.barrier];
    b->bytes -= c.m.box_rows * 128;
    if (b->bytes < 0)
        emulated_complain("a copy brought %ld bytes more than its barrier was told", -b->bytes);
    end_phase_if_over(b);
}

/* Address of the first or second 16 bytes of column n of B, the second operand of a product. */
uint32_t b_address(uint64_t b, int n, int half)
{
    const uint32_t start = (uint32_t)(b & 0x3fff) << 4, stride = (uint32_t)(b >> 32 & 0x3fff) << 4;
    return swizzled(start + (uint32_t)(n / 8) * stride + (uint32_t)(n % 8) * 128 + (uint32_t)half * 16);
}

bool uses(const product &p, uint32_t from, uint32_t to)
{
    for (int i = 0; i < 2 * p.n_columns; i++) {
        const uint32_t at = b_address(p.b, i / 2, i % 2);
        if (at >= from && at < to)
            return true;
    }
    return false;
}

/* Check that B is at the address and in the layout that the product will use, for every thread of
 * the warpgroup. */
void check_b(uint64_t b, int n_columns, int first_thread)
{
    const uint32_t start = (uint32_t)(b & 0x3fff) << 4;
    if (b >> 62 != 1 || (b >> 32 & 0x3fff) != PATTERN >> 4 ||
        (b & ((uint64_t)3 << 14 | (uint64_t)3 << 30 | (uint64_t)7 << 46 | (uint64_t)0x3ff << 52)))
        return emulated_complain("wgmma: descriptor %016llx, expected swizzle 1, eights of rows 1024 bytes apart and zeros where nothing is", (unsigned long long)b);
    if ((start >> 7 & 7) != (b >> 49 & 7))
        return emulated_complain("wgmma: the matrix at %u does not begin where the pattern of its swizzle does", start);
    for (int n = 0; n < n_columns; n++)
        for (int half = 0; half < 2; half++) {
            const uint32_t at = b_address(b, n, half);
            if (at + PIECE > emulated_shared_size())
                return emulated_complain("wgmma: column %d lies at %u of %zu bytes of shared memory", n, at,
                                         emulated_shared_size());
            const shared_piece &p = pieces[at / PIECE];
            if (p.state != shared_piece::THERE)
                return emulated_complain("wgmma: column %d at %u of shared memory, which %s", n, at, p.state ==
                                         shared_piece::UNDER_WAY ? "a copy is still writing" : "no copy has written");
            for (int i = first_thread; i < first_thread + WARPGROUP; i++)
                if ((int)(threads[i].seen[p.barrier] - p.phase) < 0)
                    return emulated_complain("wgmma: column %d at %u of shared memory, for whose copy thread %d has not waited", n, at, i);
        }
}

/* Element i of a register or of 16 bytes. */
float element(const void *p, int i, int e4m3)
{
    return e4m3 ? f8e4m3_to_f32(static_cast<const uint8_t *>(p)[i]) : f16_to_f32(static_cast<const uint16_t *>(p)[i]);
}

/* Compute a product of 64 x K and K x n_columns, where K is 16, or 32 with E4M3: the products of an
 * element are summed up before they are added to the accumulator, as in mma_f16. */
void compute(warpgroup *g, const product &p)
{
    static float a[64][32], b[32][COLUMNS];
    accumulator *acc = g->accumulators[(size_t)p.accumulator];
    const int each = p.e4m3 ? 4 : 2, half_k = 4 * each;
    for (int i = 0; i < WARPGROUP; i++)
        for (int r = 0; r < 4; r++)
            for (int k = 0; k < each; k++)
                a[i / 32 * 16 + i % 32 / 4 + r % 2 * 8][i % 4 * each + r / 2 * half_k + k] =
                    element(&p.a[i][r], k, p.e4m3);
    for (int n = 0; n < p.n_columns; n++)
        for (int half = 0; half < 2; half++) {
            const uint32_t at = b_address(p.b, n, half);
            uint16_t v[8];
            memcpy(v, shared_at(at), 16);
            pieces[at / PIECE].was_read = true;
            pieces[at / PIECE].reader[g - warpgroups] = (uint32_t)g->n_done + 1;
            for (int k = 0; k < half_k; k++)
                b[half_k * half + k][n] = element(v, k, p.e4m3);
        }
    for (int row = 0; row < 64; row++) {
        float sum[COLUMNS] = {};
        for (int k = 0; k < 2 * half_k; k++)
            for (int n = 0; n < p.n_columns; n++)
                sum[n] += a[row][k] * b[k][n];
        for (int n = 0; n < p.n_columns; n++) {
            float *to = &acc->held[row / 16 * 32 + row % 8 * 4 + n % 8 / 2][n / 8 * 4 + row / 8 % 2 * 2 + n % 2];
            *to = p.add ? *to + sum[n] : sum[n];
        }
    }
    if (--acc->n_under_way == 0)
        for (int i = 0; i < WARPGROUP; i++)
            memcpy(acc->c[i], acc->held[i], sizeof(float) * (size_t)p.n_columns / 2);
}

void use(thread *t, const void *p, size_t size, bool is_accumulator)
{
    for (int i = 0; i < t->n_used; i++)
        if (t->used[i].p == p) {
            t->used[i].last = t->n_begun + 1;
            return;
        }
    if (t->n_used == MAX_REGISTERS)
        return emulated_complain("wgmma: more than %d different operands and accumulators", MAX_REGISTERS);
    t->used[t->n_used++] = { static_cast<const uint8_t *>(p), size, is_accumulator, t->n_begun + 1 };
}

/* Start a product, after all threads of the warpgroup have arrived. */
void begin(warpgroup *g, int first_thread)
{
    size_t i = 0;
    while (i < g->accumulators.size() && g->accumulators[i]->c[0] != g->c[0])
        i++;
    if (i == g->accumulators.size()) {
        g->accumulators.push_back(new accumulator());
        memcpy(g->accumulators[i]->c, g->c, sizeof g->c);
    }
    accumulator *acc = g->accumulators[i];
    if (memcmp(acc->c, g->c, sizeof g->c) != 0)
        emulated_complain("wgmma: accumulators of the lanes are mixed up");
    if (acc->n_under_way++ == 0)
        for (int j = 0; j < WARPGROUP; j++) {
            memcpy(acc->held[j], acc->c[j], sizeof(float) * (size_t)g->n_columns / 2);
            memset(acc->c[j], 0xff, sizeof(float) * (size_t)g->n_columns / 2);
        }
    product p = { (int)i, {}, g->b, g->add, g->n_columns, g->e4m3 };
    memcpy(p.a, g->a, sizeof p.a);
    g->products.push_back(p);
    if (emulated_checks())
        check_b(g->b, g->n_columns, first_thread);
}

}

bool hopper_has_products;

/* ---- functions that kernels call ---- */

uint32_t emulated_shared_address(const void *p)
{
    return (uint32_t)(static_cast<const uint8_t *>(p) - static_cast<const uint8_t *>(emulated_shared()));
}

void emulated_barrier_init(uint64_t *b, int count)
{
    const uint32_t at = emulated_shared_address(b);
    if (emulated_together())
        return emulated_complain("a barrier of the copy engine: not emulated in a launch_together");
    if (at % 8 || at + 8 > emulated_shared_size() || count < 1)
        return emulated_complain("a barrier for %d at %u of %zu bytes of shared memory", count, at,
                                 emulated_shared_size());
    if (barriers.size() == MAX_BARRIERS)
        return emulated_complain("more than %d barriers", MAX_BARRIERS);
    barriers.push_back({ at, false, count, count, 0, 0, 0, {}, {} });
}

void emulated_barrier_fence()
{
    for (barrier &b : barriers)
        b.shown = true;
}

void emulated_barrier_arrive(uint64_t *at, int bytes)
{
    barrier *b = find(at, "an arrival");
    if (!b)
        return;
    b->bytes += bytes;
    b->told.learn(threads[emulated_me()].known);
    if (--b->pending < 0)
        emulated_complain("more than %d arrivals in a phase of the barrier at %u of shared memory", b->count, b->at);
    end_phase_if_over(b);
}

void emulated_barrier_wait(uint64_t *at, int parity)
{
    const barrier *b = find(at, "a wait");
    if (!b)
        return;
    const size_t i = (size_t)(b - barriers.data());
    while ((int)(barriers[i].n_phases & 1) == parity)
        emulated_wait_for(&barriers[i].generation, "barrier_wait");
    threads[emulated_me()].seen[i] = barriers[i].n_phases;
    threads[emulated_me()].known.learn(barriers[i].known);
}

const char *emulated_tensor_map(uint64_t to[16], const void *base, int cols, int rows, uint64_t stride, int box_rows)
{
    const hopper_map m = { (uint64_t)(uintptr_t)base, stride, cols, rows, box_rows, MAGIC };
    if ((uintptr_t)base % 16 || stride % 16)
        return "the matrix and its rows must lie on 16 bytes";
    if (cols < 1 || rows < 1 || stride < (uint64_t)cols * 2 || stride >= (uint64_t)1 << 40)
        return "that is no matrix";
    if (box_rows < 1 || box_rows > 256)
        return "a tile has 1 to 256 rows";
    memset(to, 0, 16 * sizeof *to);
    memcpy(to, &m, sizeof m);
    return nullptr;
}

void emulated_tensor_load(void *to, const uint64_t from[16], int x, int y, uint64_t *at)
{
    copy c;
    const barrier *b = find(at, "a copy");
    memcpy(&c.m, from, sizeof c.m);
    if (!b || !b->shown || c.m.magic != MAGIC)
        return emulated_complain("a copy by what is no tensor map, or for a barrier without barrier_fence");
    c.to = emulated_shared_address(to);
    c.x = x;
    c.y = y;
    c.barrier = (int)(b - barriers.data());
    const uint32_t size = (uint32_t)c.m.box_rows * 128;
    if (c.to % PATTERN || c.to + size > emulated_shared_size())
        return emulated_complain("a copy of %u bytes to %u of %zu bytes of shared memory", size, c.to,
                                 emulated_shared_size());
    for (int row = y; row < y + c.m.box_rows && row < c.m.rows; row++)
        for (int k = x; k < x + 64 && k < c.m.cols; k += 8)
            emulated_access(reinterpret_cast<const uint8_t *>(c.m.base) + (uint64_t)row * c.m.stride + 2 * (uint64_t)k,
                            16, false);
    for (uint32_t i = c.to / PIECE; i < (c.to + size) / PIECE; i++) {
        const shared_piece &p = pieces[i];
        if (p.state == shared_piece::UNDER_WAY || (p.state == shared_piece::THERE && !p.was_read))
            return emulated_complain("a copy over byte %u of shared memory, which %s", i * PIECE, p.state ==
                                     shared_piece::UNDER_WAY ? "another is still writing" : "was not read since the last");
        for (int w = 0; w < WARPS; w++)
            if (threads[emulated_me()].known.waited[w] < p.reader[w * WARP / WARPGROUP])
                return emulated_complain("a copy over byte %u of shared memory, which a product of warp %d has read without telling this thread", i * PIECE, w);
        pieces[i] = { shared_piece::UNDER_WAY, c.barrier, 0, false, {} };
    }
    for (warpgroup &g : warpgroups)
        for (size_t i = g.n_done; i < g.products.size(); i++)
            if (uses(g.products[i], c.to, c.to + size))
                return emulated_complain("a copy over byte %u of shared memory, which a product under way reads", c.to);
    copies.push_back(c);
}

void emulated_wgmma_fence() { threads[emulated_me()].fenced = true; }

void emulated_wgmma(float *c, const uint32_t *a, uint64_t b, int add, int n_columns, int e4m3)
{
    const int me = emulated_me(), first = me / WARPGROUP * WARPGROUP, lane = me - first;
    thread *t = &threads[me];
    warpgroup *g = &warpgroups[me / WARPGROUP];
    if (emulated_together())
        return emulated_complain("wgmma: not emulated in a launch_together");
    if (first + WARPGROUP > emulated_n_threads())
        return emulated_complain("wgmma by a warpgroup of %d threads", emulated_n_threads() - first);
    if (!t->fenced)
        emulated_complain("wgmma without wgmma_fence, though its registers were touched");
    if (g->arrived == 0) {
        g->b = b;
        g->add = add != 0;
        g->n_columns = n_columns;
        g->e4m3 = e4m3;
    } else if (g->b != b || g->add != (add != 0) || g->n_columns != n_columns || g->e4m3 != e4m3) {
        emulated_complain("wgmma: descriptor %016llx and add %d, where another thread of the warpgroup has %016llx and %d", (unsigned long long)b, add != 0,
                          (unsigned long long)g->b, g->add);
    }
    g->c[lane] = c;
    g->a[lane] = a;
    hopper_has_products = true;
    use(t, c, sizeof(float) * (size_t)n_columns / 2, true);
    use(t, a, 4 * sizeof *a, false);
    t->n_begun++;
    if (++g->arrived < WARPGROUP) {
        emulated_wait_for(&g->generation, "wgmma");
        return;
    }
    g->arrived = 0;
    g->generation++;
    begin(g, first);
}

void emulated_wgmma_commit() { threads[emulated_me()].groups.push_back(threads[emulated_me()].n_begun); }

void emulated_wgmma_wait(int n)
{
    thread *t = &threads[emulated_me()];
    warpgroup *g = &warpgroups[emulated_me() / WARPGROUP];
    if (t->groups.size() <= (size_t)n)
        return;
    t->n_waited = t->groups[t->groups.size() - 1 - (size_t)n];
    t->known.waited[emulated_me() / WARP] = t->n_waited;
    for (; g->n_done < t->n_waited; g->n_done++)
        compute(g, g->products[g->n_done]);
}

/* ---- functions that emulated.cc calls ---- */

void hopper_begin()
{
    copies.clear();
    if (barriers.empty())               /* no kernel has used barriers since the last reset */
        return;
    barriers.clear();
    hopper_has_products = false;
    memset(pieces, 0, sizeof pieces);
    for (warpgroup &g : warpgroups) {
        for (accumulator *a : g.accumulators)
            delete a;
        g = warpgroup();
    }
    for (thread &t : threads)
        t = thread();
}

bool hopper_go_on()
{
    if (copies.empty())
        return false;
    /* the last one first, because the order of copies is not guaranteed */
    const copy c = copies.back();
    copies.pop_back();
    land(c);
    return true;
}

void hopper_end()
{
    if (!copies.empty())
        emulated_complain("the block ended while %zu copies were under way", copies.size());
    for (const warpgroup &g : warpgroups)
        if (g.n_done < g.products.size())
            emulated_complain("the block ended while %zu products were under way", g.products.size() - g.n_done);
}

void hopper_registers(const void *p, size_t n, bool write)
{
    thread *t = &threads[emulated_me()];
    const uint8_t *from = static_cast<const uint8_t *>(p);
    for (int i = 0; i < t->n_used; i++) {
        const registers &r = t->used[i];
        if (from + n <= r.p || from >= r.p + r.size || !(r.accumulator || write))
            continue;
        t->fenced = false;
        if (r.last > t->n_waited)
            emulated_complain(r.accumulator ? "an accumulator of a wgmma is touched before wgmma_wait"
                                            : "an operand of a wgmma is written before wgmma_wait");
    }
}
