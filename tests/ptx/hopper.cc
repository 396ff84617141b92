/* hopper.cc - compute capability 9.0: mbarriers, copies of tiles by the copy engine, wgmma.
 *
 * A copy arrives only when no warp can run without it.  Products are computed at once.  Until the
 * warp has waited for their group, a copy to the shared memory that these products read is an
 * error.  A product of bytes that no copy has brought, or whose barrier the warp has not waited
 * for, is an error, too. */
#include "tests/ptx/ptx.h"

#include <string.h>

#include "libcommon/quant/half.h"
#include "tests/ptx/tensor_map.h"

enum { TILE_ROW = 128, PATTERN = 1024 };

struct mbarrier { size_t at; bool shown; unsigned owner; int count, pending; long bytes; unsigned n_phases; };
struct tile_copy { tensor_map m; size_t to; int x, y; size_t barrier; };
/* Bytes that a copy has written, and the phase of the barrier that it completed. */
struct brought { size_t at, n, barrier; unsigned phase; };
struct product { size_t from, to; int group; };
struct warp_state { std::vector<unsigned> seen; std::vector<product> products; int n_groups; bool fenced; };

static std::vector<mbarrier> barriers;
static std::vector<tile_copy> copies;
static std::vector<brought> tiles;
static warp_state warps[MAX_THREADS / LANES];

void hopper_begin()
{
    barriers.clear();
    copies.clear();
    tiles.clear();
    for (warp_state &w : warps) {
        w.seen.clear();
        w.products.clear();
        w.n_groups = 0;
        w.fenced = false;
    }
}

static size_t find(size_t at, int lane)
{
    for (size_t i = 0; i < barriers.size(); i++)
        if (barriers[i].at == at)
            return i;
    fail_at(lane, "no mbarrier was initialised at %zu of shared memory", at);
}

static void end_phase_if_over(size_t n)
{
    mbarrier &b = barriers[n];
    if (b.pending || b.bytes)
        return;
    b.pending = b.count;
    b.n_phases++;
    vm.yield = true;                    /* lanes that waited run before this warp continues */
    for (warp &w : vm.warps)
        EACH_LANE(i, w.at_phase)
            if (w.phase_of[i] == n) {
                w.at_phase &= ~(1u << i);
                w.parked &= ~(1u << i);
            }
}

static size_t at_of(warp &w, const op &o, uint32_t reg, int lane)
{
    return (size_t)(address_of(w, o, reg, lane) + (uint64_t)o.imm);
}

static void run_init(warp &w, const op &o, uint32_t on)
{
    EACH_LANE(i, on) {
        const size_t at = at_of(w, o, o.a[0], (int)i);
        const int count = (int)lane_of<uint32_t>(w.file, o.a[1], (int)i);
        check_shared(w, (int)i, at, 8, WRITE);
        if (count < 1)
            fail_at((int)i, "an mbarrier of %d arrivals", count);
        for (const mbarrier &b : barriers)
            if (b.at == at)
                fail_at((int)i, "the mbarrier at %zu of shared memory is initialised again", at);
        barriers.push_back({ at, false, (unsigned)w.index * LANES + i, count, count, 0, 0 });
    }
}
static void run_fence(warp &w, const op &o, uint32_t on)
{
    if (!o.imm)
        return;
    EACH_LANE(i, on)
        for (mbarrier &b : barriers)
            b.shown |= b.owner == (unsigned)w.index * LANES + i;
}
/* a[1]: the number of bytes that are announced; if it is an immediate, it is in more */
static void run_arrive(warp &w, const op &o, uint32_t on)
{
    EACH_LANE(i, on) {
        const size_t at = at_of(w, o, o.a[0], (int)i), n = find(at, (int)i);
        check_shared(w, (int)i, at, 8, READ);
        mbarrier &b = barriers[n];
        if (b.pending == 0)
            fail_at((int)i, "more arrivals than the %d of the mbarrier", b.count);
        if (o.more[0])
            b.bytes += (long)lane_of<uint32_t>(w.file, o.a[1], (int)i);
        b.pending--;
        end_phase_if_over(n);
    }
}
/* a: predicate, address, parity */
static void run_try_wait(warp &w, const op &o, uint32_t on)
{
    uint32_t over = 0;
    warp_state &s = warps[w.index];
    EACH_LANE(i, on) {
        const size_t at = at_of(w, o, o.a[1], (int)i), n = find(at, (int)i);
        check_shared(w, (int)i, at, 8, READ);
        const uint32_t parity = lane_of<uint32_t>(w.file, o.a[2], (int)i);
        if (parity > 1)
            fail_at((int)i, "a parity of %u", parity);
        if ((barriers[n].n_phases & 1) != parity) {
            over |= 1u << i;
            if (s.seen.size() <= n)
                s.seen.resize(n + 1, 0);
            s.seen[n] = barriers[n].n_phases;
        }
        w.phase_of[i] = (uint32_t)n;
    }
    w.predicate[o.a[0]] = (w.predicate[o.a[0]] & ~on) | over;
    const uint32_t wait = on & ~over;
    if (!wait)
        return;
    const int here = w.pc - 1;
    save(w);
    EACH_LANE(i, wait)
        w.lane_pc[i] = here;            /* tried again when the phase has ended */
    w.at_phase |= wait;
    w.parked |= wait;
    regroup(w);
}

/* ---- the copy engine ---- */

/* The 16-byte pieces of a row of 128 bytes are exchanged by bits 7 to 9 of the address. */
static size_t swizzled(size_t at) { return at ^ (at >> 7 & 7) << 4; }

/* a: destination, map, x, y, barrier */
static void run_tensor(warp &w, const op &o, uint32_t on)
{
    EACH_LANE(i, on) {
        tile_copy c;
        const uint64_t map = lane_of<uint64_t>(w.file, o.a[1], (int)i);
        check_waited((int)i, "copy of a tile");         /* wherever it is */
        memcpy(&c.m, global_pointer(o, (int)i, map, 64, READ), sizeof c.m);
        if (map % 64 || c.m.magic != tensor_map::MAGIC)
            fail_at((int)i, "the tensor map is none, or not aligned to 64 bytes");
        c.to = lane_of<uint32_t>(w.file, o.a[0], (int)i);
        c.x = lane_of<int32_t>(w.file, o.a[2], (int)i);
        c.y = lane_of<int32_t>(w.file, o.a[3], (int)i);
        c.barrier = find(lane_of<uint32_t>(w.file, o.a[4], (int)i), (int)i);
        const size_t n = (size_t)c.m.box_rows * TILE_ROW;
        if (!barriers[c.barrier].shown)
            fail_at((int)i, "the mbarrier was not shown to the copy engine by a fence");
        if (c.to % PATTERN || c.to + n > vm.shared_size)
            fail_at((int)i, "a tile of %zu bytes to %zu of %zu bytes of shared memory", n, c.to, vm.shared_size);
        for (const tile_copy &x : copies)
            if (c.to < x.to + (size_t)x.m.box_rows * TILE_ROW && x.to < c.to + n)
                fail_at((int)i, "a tile over one that is under way, at %zu of shared memory", x.to);
        for (const warp_state &s : warps)
            for (const product &p : s.products)
                if (c.to < p.to && p.from < c.to + n)
                    fail_at((int)i, "a tile over bytes that a product of warp %zu may still read", (size_t)(&s - warps));
        for (size_t k = 0; k < tiles.size();)
            if (c.to < tiles[k].at + tiles[k].n && tiles[k].at < c.to + n)
                tiles.erase(tiles.begin() + (long)k);
            else
                k++;
        memset(vm.shared + c.to, 0xff, n);      /* NaN until the copy arrives */
        shared_under_way(c.to, n);
        copies.push_back(c);
    }
}

bool hopper_go_on()
{
    if (copies.empty())
        return false;
    const size_t which = draw(copies.size());
    const tile_copy c = copies[which];
    copies.erase(copies.begin() + (long)which);
    for (int row = 0; row < c.m.box_rows; row++)
        for (int piece = 0; piece < 8; piece++) {
            uint16_t v[8] = {};
            for (int k = 0; k < 8; k++) {
                const int64_t x = (int64_t)c.x + 8 * piece + k, y = (int64_t)c.y + row;
                if (x < 0 || x >= c.m.cols || y < 0 || y >= c.m.rows)
                    continue;
                const uintptr_t p = c.m.base + (uint64_t)y * c.m.stride + 2 * (uint64_t)x;
                region r;
                if (!region_of(p, r) || p + 2 > r.high)
                    fail("kernel %s: the copy engine reads row %lld of a tensor map, outside of its allocation",
                         vm.k->name.c_str(), (long long)y);
                memcpy(&v[k], (const void *)p, 2);
            }
            memcpy(vm.shared + swizzled(c.to + (size_t)(row * TILE_ROW + piece * 16)), v, 16);
        }
    const size_t n = (size_t)c.m.box_rows * TILE_ROW;
    shared_arrived(c.to, n);
    mbarrier &b = barriers[c.barrier];
    tiles.push_back({ c.to, n, c.barrier, b.n_phases + 1 });
    b.bytes -= (long)n;
    if (b.bytes < 0)
        fail("kernel %s: a copy brought %ld bytes more than its mbarrier was told", vm.k->name.c_str(), -b.bytes);
    end_phase_if_over(c.barrier);
    return true;
}

void hopper_end()
{
    if (!copies.empty())
        fail("kernel %s: a copy of the copy engine is under way when the block ends", vm.k->name.c_str());
    for (const warp_state &s : warps)
        if (!s.products.empty())
            fail("kernel %s: a product of warp %zu was not waited for", vm.k->name.c_str(), (size_t)(&s - warps));
}

/* ---- products ---- */

static void run_wgmma_fence(warp &w, const op &, uint32_t on)
{
    if (gather(w, ~0u, on))
        warps[w.index].fenced = true;
}
static void run_wgmma_commit(warp &w, const op &, uint32_t on)
{
    if (!gather(w, ~0u, on))
        return;
    warps[w.index].n_groups++;
    warps[w.index].fenced = false;
}
static void run_wgmma_wait(warp &w, const op &o, uint32_t on)
{
    if (!gather(w, ~0u, on))
        return;
    warp_state &s = warps[w.index];
    for (size_t i = 0; i < s.products.size();)
        if (s.products[i].group < s.n_groups - (int)o.imm)
            s.products.erase(s.products.begin() + (long)i);
        else
            i++;
}

/* Element i of a register or of 16 bytes. */
static float element(const void *p, int i, bool e4m3)
{
    return e4m3 ? f8e4m3_to_f32(static_cast<const uint8_t *>(p)[i]) : f16_to_f32(static_cast<const uint16_t *>(p)[i]);
}

/* more: d[columns / 2], a[4], the descriptor of b, the predicate: add; imm: 1 with E4M3 */
static void run_wgmma(warp &w, const op &o, uint32_t on)
{
    if (!gather(w, ~0u, on))
        return;
    warp_state &s = warps[w.index];
    const size_t registers = o.more.size() - 6;
    const int columns = (int)registers * 2;
    const uint64_t b = lane_of<uint64_t>(w.file, o.more[registers + 4], 0);
    const uint32_t add = w.predicate[o.more[registers + 5]];
    for (int i = 1; i < LANES; i++)
        if (lane_of<uint64_t>(w.file, o.more[registers + 4], i) != b || (add >> i & 1) != (add & 1))
            fail_at(i, "operands of wgmma that differ within the warp");
    if (on != ~0u)
        fail_at(0, "wgmma by less than a warp");
    if (!s.fenced)
        fail_at(0, "a group of wgmma without wgmma.fence before it");
    const size_t start = (size_t)(b & 0x3fff) << 4, stride = (size_t)(b >> 32 & 0x3fff) << 4;
    if (b >> 62 != 1 || stride != PATTERN || (b >> 49 & 7))
        fail_at(0, "the descriptor %#llx: expected the swizzle of 128 bytes, eights of rows 1024 bytes apart",
                (unsigned long long)b);
    const size_t first = start / PATTERN * PATTERN, end = first + (size_t)columns / 8 * PATTERN;
    if (end > vm.shared_size || start % 32 || start - first > 96)
        fail_at(0, "B at %zu of %zu bytes of shared memory", start, vm.shared_size);
    const brought *from = nullptr;
    for (const brought &t : tiles)
        if (t.at <= first && t.at + t.n >= end)
            from = &t;
    if (!from)
        fail_at(0, "B at %zu of shared memory, which no copy has brought", start);
    if (s.seen.size() <= from->barrier || s.seen[from->barrier] < from->phase)
        fail_at(0, "B at %zu of shared memory, whose mbarrier the warp has not waited for", start);
    float a[16][32], column[32];
    const bool e4m3 = o.imm;
    const int each = e4m3 ? 4 : 2, half_k = 4 * each;
    for (int i = 0; i < LANES; i++)
        for (int n = 0; n < 4; n++) {
            const uint32_t u = lane_of<uint32_t>(w.file, o.more[registers + (size_t)n], i);
            for (int k = 0; k < each; k++)
                a[i / 4 + n % 2 * 8][i % 4 * each + n / 2 * half_k + k] = element(&u, k, e4m3);
        }
    for (int n = 0; n < columns; n++) {
        for (int half = 0; half < 2; half++) {
            const size_t at = swizzled(start + (size_t)(n / 8) * stride + (size_t)(n % 8 * TILE_ROW + half * 16));
            uint16_t v[8];
            memcpy(v, vm.shared + at, 16);
            for (int k = 0; k < half_k; k++)
                column[half_k * half + k] = element(v, k, e4m3);
        }
        for (int row = 0; row < 16; row++) {
            float sum = 0;
            for (int k = 0; k < 2 * half_k; k++)
                sum += a[row][k] * column[k];
            const size_t element = (size_t)(n / 8 * 4 + row / 8 * 2 + n % 2);
            float &c = lane_of<float>(w.file, o.more[element], row % 8 * 4 + n % 8 / 2);
            c = add & 1 ? c + sum : sum;
        }
    }
    s.products.push_back({ first, end, s.n_groups });
}

bool decode_hopper(assembler &as, const statement &s, op &o)
{
    const std::string &b = s.word[0];
    const auto shared_address = [&](const operand &x) {
        o.wide_address = x.v[0].kind == operand::REGISTER && x.v[0].wide;
        o.imm = (int64_t)x.value;
        return source(as, x.v[0], o.wide_address);
    };
    if (b == "mbarrier") {
        if (s.full == "mbarrier.init.shared::cta.b64" || s.full == "mbarrier.init.shared.b64") {
            o.a[0] = shared_address(s.o[0]);
            o.a[1] = source(as, s.o[1], false);
            o.run = run_init;
        } else if (s.word[1] == "arrive" && s.o[0].kind == operand::NONE) {
            const bool bytes = s.has("expect_tx");
            if (!bytes && s.o.size() > 2)
                return false;
            o.a[0] = shared_address(s.o[1]);
            if (bytes)
                o.a[1] = source(as, s.o[2], false);
            o.more = { bytes };
            o.run = run_arrive;
        } else if (s.word[1] == "try_wait" && s.has("parity")) {
            o.a[0] = predicate(s.o[0]);
            o.a[1] = shared_address(s.o[1]);
            o.a[2] = source(as, s.o[2], false);
            o.run = run_try_wait;
        }
        return o.run != nullptr;
    }
    if (b == "fence") {                 /* .mbarrier_init, .proxy.async */
        o.imm = s.word[1] == "mbarrier_init";
        o.run = run_fence;
        return true;
    }
    if (s.full == "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes") {
        const operand &map = s.o[1];
        if (map.v.size() != 2 || map.v[1].v.size() != 2 || map.value || s.o[0].value || s.o[2].value)
            return false;
        o.a[0] = source(as, s.o[0].v[0], false);
        o.a[1] = source(as, map.v[0], true);
        o.a[2] = source(as, map.v[1].v[0], false);
        o.a[3] = source(as, map.v[1].v[1], false);
        o.a[4] = source(as, s.o[2].v[0], false);
        o.run = run_tensor;
        return true;
    }
    if (b == "setmaxnreg") {
        o.run = [](warp &, const op &, uint32_t) {};
        return true;
    }
    if (b != "wgmma")
        return false;
    if (s.word[1] == "fence")
        o.run = run_wgmma_fence;
    else if (s.word[1] == "commit_group")
        o.run = run_wgmma_commit;
    else if (s.word[1] == "wait_group") {
        o.imm = (int64_t)s.o[0].value;
        o.run = run_wgmma_wait;
    } else if (s.full == "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16" ||
               s.full == "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16" ||
               s.full == "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16" ||
               s.full == "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3") {
        const bool e4m3 = s.has("e4m3");
        const size_t registers = s.has("m64n128k16") ? 64 : s.has("m64n32k16") ? 16 : 32;
        if (s.o.size() != (e4m3 ? 6 : 7) || s.o[0].v.size() != registers || s.o[1].v.size() != 4 ||
            s.o[4].value != 1 || s.o[5].value != 1 || (!e4m3 && s.o[6].value != 0))
            return false;
        o.imm = e4m3;
        for (const operand &x : s.o[0].v)
            o.more.push_back(target(x, false));
        for (const operand &x : s.o[1].v)
            o.more.push_back(source(as, x, false));
        o.more.push_back(source(as, s.o[2], true));
        o.more.push_back(predicate(s.o[3]));
        o.run = run_wgmma;
    }
    return o.run != nullptr;
}
