/* warp.cc - barriers, shuffles, votes, and products of matrices by the lanes of a warp. */
#include "tests/ptx/ptx.h"

#include <string.h>

#include "libcommon/quant/half.h"

static void run_nothing(warp &, const op &, uint32_t) {}
static void run_wait_for_grids(warp &w, const op &, uint32_t on) { w.waited |= on; }
static void run_fence(warp &, const op &, uint32_t)
{
    if (!vm.together)
        return;
    order_fence();
    vm.yield = vm.turn_over = draw(2) == 0;
}
static void run_launch_dependents(warp &w, const op &, uint32_t on) { vm.launched_early |= (on & ~w.waited) != 0; }

static void run_barrier(warp &w, const op &o, uint32_t on)
{
    const unsigned n = o.a[1] ? lane_of<uint32_t>(w.file, o.a[1], __builtin_ctz(on)) : 0;
    arrive(w, on, (int)lane_of<uint32_t>(w.file, o.a[0], __builtin_ctz(on)), n);
}

static uint32_t mask_of(warp &w, const op &o, uint32_t at, uint32_t on)
{
    const uint32_t mask = lane_of<uint32_t>(w.file, at, __builtin_ctz(on));
    if (on & ~mask)
        fail_at(__builtin_ctz(on & ~mask), "a lane that is not in the mask %#x of %s", mask, o.text.c_str());
    return mask;
}

static void run_warp_barrier(warp &w, const op &o, uint32_t on)
{
    if (gather(w, mask_of(w, o, o.a[0], on), on))
        w.n_collectives++;
}

/* a: target, value, lane or distance, clamp, mask; imm: how; more: the predicate of the target */
static void run_shuffle(warp &w, const op &o, uint32_t on)
{
    if (!gather(w, mask_of(w, o, o.a[4], on), on))
        return;
    uint32_t out[LANES], good = 0;
    EACH_LANE(i, on) {
        const uint32_t b = lane_of<uint32_t>(w.file, o.a[2], (int)i) & 31,
                       c = lane_of<uint32_t>(w.file, o.a[3], (int)i), segment = c >> 8 & 31,
                       most = (i & segment) | ((c & 31) & ~segment), least = i & segment;
        const int from = o.imm == 'u' ? (int)i - (int)b : o.imm == 'd' ? (int)(i + b)
                         : o.imm == 'b' ? (int)(i ^ b) : (int)(least | (b & ~segment));
        const bool in = o.imm == 'u' ? from >= (int)most : from <= (int)most;
        const int lane = in ? from : (int)i;
        if (!(on >> lane & 1))
            fail_at((int)i, "a shuffle from lane %d, which does not take part", lane);
        out[i] = lane_of<uint32_t>(w.file, o.a[1], lane);
        good |= (uint32_t)in << i;
    }
    EACH_LANE(i, on)
        lane_of<uint32_t>(w.file, o.a[0], (int)i) = out[i];
    if (!o.more.empty())
        w.predicate[o.more[0]] = (w.predicate[o.more[0]] & ~on) | good;
    w.n_collectives++;
}

/* imm: 0 ballot, 1 all, 2 any; more[0]: the predicate is negated */
static void run_vote(warp &w, const op &o, uint32_t on)
{
    if (!gather(w, mask_of(w, o, o.a[2], on), on))
        return;
    const uint32_t p = (w.predicate[o.a[1]] ^ (o.more[0] ? ~0u : 0)) & on;
    if (o.imm == 0)
        EACH_LANE(i, on)
            lane_of<uint32_t>(w.file, o.a[0], (int)i) = p;
    else
        w.predicate[o.a[0]] = (w.predicate[o.a[0]] & ~on) | ((o.imm == 1 ? p == on : p != 0) ? on : 0);
    w.n_collectives++;
}

/* redux.sync of u32; imm: 1 the largest, 0 the smallest. */
static void run_reduce(warp &w, const op &o, uint32_t on)
{
    if (!gather(w, mask_of(w, o, o.a[2], on), on))
        return;
    uint32_t all = o.imm ? 0 : ~0u;
    EACH_LANE(i, on) {
        const uint32_t x = lane_of<uint32_t>(w.file, o.a[1], (int)i);
        all = (o.imm ? x > all : x < all) ? x : all;
    }
    EACH_LANE(i, on)
        lane_of<uint32_t>(w.file, o.a[0], (int)i) = all;
    w.n_collectives++;
}

/* more: d[4], a[4], b[2], c[4] */
static void run_mma_f16(warp &w, const op &o, uint32_t on)
{
    if (!gather(w, ~0u, on))
        return;
    float a[16][16], b[16][8], sums[16][8];
    const auto reg = [&](int n, int lane) { return lane_of<uint32_t>(w.file, o.more[(size_t)n], lane); };
    for (int i = 0; i < LANES; i++) {
        const int g = i / 4, t = i % 4 * 2;
        for (int n = 0; n < 4; n++) {
            const uint32_t u = reg(4 + n, i);
            a[g + n % 2 * 8][t + n / 2 * 8] = f16_to_f32((f16)u);
            a[g + n % 2 * 8][t + n / 2 * 8 + 1] = f16_to_f32((f16)(u >> 16));
        }
        for (int n = 0; n < 2; n++) {
            const uint32_t u = reg(8 + n, i);
            b[t + 8 * n][g] = f16_to_f32((f16)u);
            b[t + 8 * n + 1][g] = f16_to_f32((f16)(u >> 16));
        }
    }
    for (int row = 0; row < 16; row++) {
        float s[8] = {};
        for (int k = 0; k < 16; k++)
            for (int column = 0; column < 8; column++)
                s[column] += a[row][k] * b[k][column];
        memcpy(sums[row], s, sizeof s);
    }
    for (int i = 0; i < LANES; i++)
        for (int n = 0; n < 4; n++)
            lane_of<float>(w.file, o.more[(size_t)n], i) =
                lane_of<float>(w.file, o.more[(size_t)(10 + n)], i) + sums[i / 4 + n / 2 * 8][i % 4 * 2 + n % 2];
    w.n_collectives++;
}

static void run_mma_s8(warp &w, const op &o, uint32_t on)
{
    if (!gather(w, ~0u, on))
        return;
    int8_t a[16][32], b[8][32];
    uint32_t out[4][LANES];
    const auto reg = [&](int n, int lane) -> uint32_t & { return lane_of<uint32_t>(w.file, o.more[(size_t)n], lane); };
    for (int i = 0; i < LANES; i++) {
        for (int n = 0; n < 4; n++)
            memcpy(a[i / 4 + n % 2 * 8] + i % 4 * 4 + n / 2 * 16, &reg(4 + n, i), 4);
        for (int n = 0; n < 2; n++)
            memcpy(b[i / 4] + i % 4 * 4 + n * 16, &reg(8 + n, i), 4);
    }
    for (int i = 0; i < LANES; i++)
        for (int n = 0; n < 4; n++) {
            int sum = 0;
            for (int k = 0; k < 32; k++)
                sum += a[i / 4 + n / 2 * 8][k] * b[i % 4 * 2 + n % 2][k];
            out[n][i] = reg(10 + n, i) + (uint32_t)sum;
        }
    for (int n = 0; n < 4; n++)
        for (int i = 0; i < LANES; i++)
            reg(n, i) = out[n][i];
    w.n_collectives++;
}

static void run_mma_e4m3(warp &w, const op &o, uint32_t on)
{
    if (!gather(w, ~0u, on))
        return;
    float a[16][32], b[8][32], out[4][LANES];
    const auto reg = [&](int n, int lane) { return lane_of<uint32_t>(w.file, o.more[(size_t)n], lane); };
    for (int i = 0; i < LANES; i++)
        for (int k = 0; k < 4; k++) {
            for (int n = 0; n < 4; n++)
                a[i / 4 + n % 2 * 8][i % 4 * 4 + n / 2 * 16 + k] = f8e4m3_to_f32((f8e4m3)(reg(4 + n, i) >> 8 * k));
            for (int n = 0; n < 2; n++)
                b[i / 4][i % 4 * 4 + n * 16 + k] = f8e4m3_to_f32((f8e4m3)(reg(8 + n, i) >> 8 * k));
        }
    for (int i = 0; i < LANES; i++)
        for (int n = 0; n < 4; n++) {
            float sum = 0;
            for (int k = 0; k < 32; k++)
                sum += a[i / 4 + n / 2 * 8][k] * b[i % 4 * 2 + n % 2][k];
            out[n][i] = lane_of<float>(w.file, o.more[(size_t)(10 + n)], i) + sum;
        }
    for (int n = 0; n < 4; n++)
        for (int i = 0; i < LANES; i++)
            lane_of<float>(w.file, o.more[(size_t)n], i) = out[n][i];
    w.n_collectives++;
}

bool decode_warp(assembler &as, const statement &s, op &o)
{
    const std::string &b = s.word[0];
    if (s.full == "bar.warp.sync") {
        o.a[0] = source(as, s.o[0], false);
        o.run = run_warp_barrier;
        return true;
    }
    if (s.full == "bar.sync" || s.full == "barrier.sync" || s.full == "barrier.sync.aligned") {
        o.a[0] = source(as, s.o[0], false);
        o.a[1] = s.o.size() > 1 ? source(as, s.o[1], false) : 0;
        o.run = run_barrier;
        return true;
    }
    if (s.full == "griddepcontrol.wait" || s.full == "griddepcontrol.launch_dependents") {
        o.run = s.has("wait") ? run_wait_for_grids : run_launch_dependents;
        return true;
    }
    if (b == "prefetch") {              /* of any address, even of data that is not written yet */
        o.run = run_nothing;
        return true;
    }
    if (b == "membar" || (b == "fence" && s.word.size() > 1 && s.word[1] != "proxy" && s.word[1] != "mbarrier_init")) {
        /* The interpreter performs memory accesses in order, so a fence has nothing to do, except
         * that accesses of other blocks may need it. */
        o.run = s.has("cta") ? run_nothing : run_fence;
        return true;
    }
    if (b == "shfl" && s.word[1] == "sync" && s.type() == B32) {
        const operand &d = s.o[0].kind == operand::VECTOR ? s.o[0].v[0] : s.o[0];
        o.a[0] = target(d, false);
        if (s.o[0].kind == operand::VECTOR)
            o.more = { predicate(s.o[0].v[1]) };
        for (int i = 1; i < 5; i++)
            o.a[i] = source(as, s.o[(size_t)i], false);
        o.imm = s.word[2][0];           /* up, down, bfly, idx */
        o.run = run_shuffle;
        return true;
    }
    if (s.full == "redux.sync.max.u32" || s.full == "redux.sync.min.u32") {
        o.imm = s.word[2] == "max";
        o.a[0] = target(s.o[0], false);
        o.a[1] = source(as, s.o[1], false);
        o.a[2] = source(as, s.o[2], false);
        o.run = run_reduce;
        return true;
    }
    if (b == "vote" && s.word[1] == "sync") {
        o.imm = s.word[2] == "ballot" ? 0 : s.word[2] == "all" ? 1 : 2;
        o.a[0] = o.imm ? predicate(s.o[0]) : target(s.o[0], false);
        if (s.o[1].kind != operand::PREDICATE || s.word[2] == "uni")
            return false;
        o.a[1] = s.o[1].at;
        o.more = { s.o[1].negated };
        o.a[2] = source(as, s.o[2], false);
        o.run = run_vote;
        return true;
    }
    if (b == "mma") {
        o.run = s.full == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32" ? run_mma_f16
                : s.full == "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32" ? run_mma_s8
                : s.full == "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32" ? run_mma_e4m3 : nullptr;
        if (!o.run)
            return false;
        for (const operand &x : s.o[0].v)
            o.more.push_back(target(x, false));
        for (size_t i = 1; i < 4; i++)
            for (const operand &x : s.o[i].v)
                o.more.push_back(source(as, x, false));
        return o.more.size() == 14;
    }
    return false;
}
