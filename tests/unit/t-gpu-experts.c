/* t-gpu-experts.c - mixtures of experts on the device: the choice of every kind of router against
 * its definition (libcommon/model/model.h) in double, the sorted pairs, products of experts against
 * sums in double over the weights as stored, and the weighted sum.  Runs emulated in every build
 * (with all accesses checked), on nvcc's code by make check-ptx, natively by make check-gpu. */
#include "tests/lib/gpu.h"

enum { MOST_TOKENS = 300, MOST_CHOSEN = 32 };

/* ---- the choice ---- */

static const struct router_case {
    struct gpu_route r;
    int corrected;
} routers[] = {
    { { .router = GPU_ROUTER_SOFTMAX, .n_experts = 6, .top_k = 2, .scale = 1 }, 0 },
    { { .router = GPU_ROUTER_SOFTMAX, .n_experts = 128, .top_k = 8, .normalize = 1, .scale = 1 }, 0 },
    { { .router = GPU_ROUTER_SOFTMAX, .n_experts = 33, .top_k = 33 - 1, .normalize = 1, .norm_min = 2, .scale = 1 },
      0 },
    { { .router = GPU_ROUTER_SOFTMAX, .n_experts = 16, .top_k = 4, .n_groups = 4, .top_groups = 2, .group_best = 1,
        .scale = 2 }, 0 },
    { { .router = GPU_ROUTER_SIGMOID, .n_experts = 64, .top_k = 6, .n_groups = 8, .top_groups = 3, .group_best = 2,
        .normalize = 1, .norm_add = 1e-20f, .scale = 2.5f }, 1 },
    { { .router = GPU_ROUTER_SIGMOID, .n_experts = 96, .top_k = 1, .scale = 1 }, 1 },
    { { .router = GPU_ROUTER_SIGMOID, .n_experts = 300, .top_k = 9, .normalize = 1, .scale = 1 }, 1 },
    { { .router = GPU_ROUTER_SOFTMAX, .n_experts = 64, .top_k = 17, .scale = 1 }, 1 },
    { { .router = GPU_ROUTER_SQRT_SOFTPLUS, .n_experts = 8, .top_k = 3, .normalize = 1, .scale = 1.5f }, 1 },
    { { .router = GPU_ROUTER_SPARSEMIXER, .n_experts = 8, .top_k = 2, .scale = 1, .mask = 0.02f }, 0 },
    { { .router = GPU_ROUTER_SPARSEMIXER, .n_experts = 40, .top_k = 2, .scale = 1, .mask = 0.8f }, 0 },
    { { .router = GPU_ROUTER_TOP_SOFTMAX, .n_experts = 1, .top_k = 1, .scale = 1 }, 0 },
    { { .router = GPU_ROUTER_TOP_SOFTMAX, .n_experts = 600, .top_k = 10, .scale = 1 }, 0 },
};

static int largest(const double *x, const char *taken, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (!taken[i] && (best < 0 || x[i] > x[best]))
            best = i;
    return best;
}

static void take_groups(const struct gpu_route *r, const double *wanted, char *taken)
{
    const int size = r->n_experts / r->n_groups;
    double good[GPU_MAX_GROUPS] = { 0 };
    char chosen[GPU_MAX_GROUPS] = { 0 };
    for (int g = 0; g < r->n_groups; g++) {
        char seen[GPU_MAX_EXPERTS] = { 0 };
        for (int i = 0; i < r->group_best; i++) {
            const int best = largest(wanted + g * size, seen, size);
            seen[best] = 1;
            good[g] += wanted[g * size + best];
        }
    }
    for (int i = 0; i < r->top_groups; i++)
        chosen[largest(good, chosen, r->n_groups)] = 1;
    for (int i = 0; i < r->n_experts; i++)
        taken[i] = !chosen[i / size];
}

/* Compute the choice of a token with these outputs of the router. */
static void expected(const struct gpu_route *r, const float *output, const float *correction, int *id, double *weight)
{
    double score[GPU_MAX_EXPERTS], wanted[GPU_MAX_EXPERTS], most = -INFINITY, all = 0, sum = 0;
    char taken[GPU_MAX_EXPERTS] = { 0 };
    const int raw = r->router == GPU_ROUTER_SPARSEMIXER || r->router == GPU_ROUTER_TOP_SOFTMAX;
    for (int i = 0; i < r->n_experts; i++)
        most = fmax(most, (double)output[i]);
    for (int i = 0; i < r->n_experts; i++)
        all += exp(output[i] - most);
    for (int i = 0; i < r->n_experts; i++) {
        const double x = output[i];
        score[i] = raw ? x : r->router == GPU_ROUTER_SOFTMAX ? exp(x - most) / all
                   : r->router == GPU_ROUTER_SIGMOID ? 1 / (1 + exp(-x)) : sqrt(log1p(exp(x)));
        wanted[i] = score[i] + (correction ? (double)correction[i] : 0);
    }
    if (!raw && r->n_groups > 1)
        take_groups(r, wanted, taken);
    for (int k = 0; k < r->top_k; k++) {
        const int best = id[k] = largest(wanted, taken, r->n_experts);
        weight[k] = score[best];
        if (r->router == GPU_ROUTER_TOP_SOFTMAX)
            weight[k] = exp(score[best] - most);
        for (int i = 0; i < r->n_experts && r->router == GPU_ROUTER_SPARSEMIXER; i++) {
            const double size = fmax(fabs(score[i]), score[best]);
            weight[k] = i == 0 ? 0 : weight[k];
            if (!taken[i] && !((score[best] - score[i]) / size > (double)r->mask))
                weight[k] += exp(score[i] - score[best]);
        }
        weight[k] = r->router == GPU_ROUTER_SPARSEMIXER ? 1 / weight[k] : weight[k];
        taken[best] = 1;
        sum += weight[k];
    }
    sum = fmax(sum + (double)r->norm_add, (double)r->norm_min);
    for (int k = 0; k < r->top_k; k++)
        weight[k] *= (double)r->scale / (r->normalize || r->router == GPU_ROUTER_TOP_SOFTMAX ? sum : 1);
}

/* Check that pairs are sorted by expert, each once and in ascending order, and divided into
 * tiles. */
static void check_sorted(const struct gpu_route *r, const int32_t *id)
{
    const int n_pairs = r->n * r->top_k, most = gpu_most_tiles(n_pairs, r->n_experts, r->tile);
    int32_t *order = malloc((size_t)n_pairs * sizeof *order), n_tiles;
    struct gpu_expert_tile *tiles = malloc((size_t)most * sizeof *tiles);
    from_device(order, r->choice.order, (size_t)n_pairs * sizeof *order);
    from_device(tiles, r->choice.tiles, (size_t)most * sizeof *tiles);
    from_device(&n_tiles, r->choice.n_tiles, sizeof n_tiles);
    int at = 0, tile = 0;
    for (int x = 0; x < r->n_experts; x++) {
        const int from = at;
        for (int p = 0; p < n_pairs; p++)
            if (id[p] == x && order[at++] != p)
                fail_msg("%d tokens, expert %d: pair %d is at %d, expected %d", r->n, x, order[at - 1], at - 1, p);
        for (int first = from; first < at; first += r->tile, tile++) {
            const int n = at - first < r->tile ? at - first : r->tile;
            if (tile >= most || tiles[tile].expert != x || tiles[tile].first != first || tiles[tile].n != n)
                fail_msg("%d tokens: tile %d of %d is of expert %d: %d from %d on, expected %d: %d from %d on", r->n,
                         tile, most, tiles[tile].expert, tiles[tile].n, tiles[tile].first, x, n, first);
        }
    }
    assert_int_equal(n_tiles, tile);
    free(order), free(tiles);
}

/* Allocate the arrays of a choice for n tokens and n_pairs pairs. */
static struct gpu_choice choice_of(int n, int n_pairs)
{
    return (struct gpu_choice){ .id = on_device((size_t)n_pairs * 4), .weight = on_device((size_t)n_pairs * 4),
                                .shared = on_device((size_t)n * 4), .order = on_device((size_t)n_pairs * 4),
                                .tiles = on_device((size_t)n_pairs * sizeof(struct gpu_expert_tile)),
                                .n_tiles = on_device(4) };
}
static void choice_free(const struct gpu_choice *c)
{
    gpu_free(device, c->id), gpu_free(device, c->weight), gpu_free(device, c->shared);
    gpu_free(device, c->order), gpu_free(device, c->tiles), gpu_free(device, c->n_tiles);
}

/* Check a router whose outputs are sums of n_parts parts.  If there are several tokens, every
 * fourth one chooses no expert. */
static void check_router(const struct router_case *of, int n, int n_parts, int tile)
{
    struct gpu_route r = of->r;
    struct rng g = { (uint64_t)(r.n_experts * 31 + n) };
    const int ld = r.n_experts + 1, n_pairs = n * r.top_k;
    const size_t each = (size_t)n * (size_t)ld;
    float *part = malloc(each * (size_t)n_parts * 4), *sum = calloc(each, 4), correction[GPU_MAX_EXPERTS];
    int32_t pos[MOST_TOKENS], id[MOST_TOKENS * MOST_CHOSEN];
    float weight[MOST_TOKENS * MOST_CHOSEN], shared[MOST_TOKENS];
    for (size_t i = 0; i < each * (size_t)n_parts; i++) {
        part[i] = uniform(&g, -3, 3);
        sum[i % each] += part[i];
    }
    for (int i = 0; i < r.n_experts; i++)
        correction[i] = uniform(&g, -0.5f, 0.5f);
    for (int t = 0; t < n; t++)
        pos[t] = t % 4 == 3 ? -1 : t;
    r.part = to_device(part, each * (size_t)n_parts * 4);
    r.n_parts = n_parts;
    r.part_stride = each;
    r.ld = ld;
    r.correction = of->corrected ? to_device(correction, (size_t)r.n_experts * 4) : NULL;
    r.pos = to_device(pos, (size_t)n * 4);
    r.n = n;
    r.choice = choice_of(n, n_pairs);
    r.tile = tile;
    r.sort = n <= GPU_MATVEC_TOKENS;
    OK(gpu_choose(device, &r, &why));
    if (!r.sort)
        OK(gpu_sort_pairs(device, &r, &why));
    from_device(id, r.choice.id, (size_t)n_pairs * 4);
    from_device(weight, r.choice.weight, (size_t)n_pairs * 4);
    from_device(shared, r.choice.shared, (size_t)n * 4);
    for (int t = 0; t < n; t++) {
        int want[MOST_CHOSEN];
        double w[MOST_CHOSEN];
        expected(&r, sum + (size_t)t * (size_t)ld, of->corrected ? correction : NULL, want, w);
        for (int k = 0; k < r.top_k; k++)
            if (id[t * r.top_k + k] != (pos[t] < 0 ? -1 : want[k]) ||
                !(fabs(weight[t * r.top_k + k] - w[k]) <= 1e-5 * (fabs(w[k]) + 0.1)))
                fail_msg("router %d, %d of %d, token %d of %d, choice %d: expert %d, weight %.7g, expected %d, %.7g",
                         r.router, r.top_k, r.n_experts, t, n, k, id[t * r.top_k + k],
                         (double)weight[t * r.top_k + k], pos[t] < 0 ? -1 : want[k], w[k]);
        assert_true(fabs(shared[t] - 1 / (1 + exp(-(double)sum[(size_t)(t + 1) * (size_t)ld - 1]))) < 1e-6);
    }
    check_sorted(&r, id);
    gpu_free(device, (void *)(uintptr_t)r.part), gpu_free(device, (void *)(uintptr_t)r.pos);
    gpu_free(device, (void *)(uintptr_t)r.correction);
    choice_free(&r.choice);
    free(part), free(sum);
}

static void choices(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof routers / sizeof *routers; i++) {
        check_router(&routers[i], 1, 3, 8);
        check_router(&routers[i], 6, 1, 8);
    }
    check_router(&routers[1], 16, 2, 8);
    check_router(&routers[4], 70, 1, 16);
    check_router(&routers[0], MOST_TOKENS, 1, 64);
}

/* If outputs are equal, the first experts are chosen; if all are NaN, each expert is chosen at most
 * once; if one is NaN, the others are chosen; of two values the larger one is chosen first. */
static void check_ties(int n, int n_groups, int kind)
{
    enum { EXPERTS = 100, CHOSEN = 5, MOST = 2 };
    float output[MOST * (EXPERTS + 1)];
    for (int i = 0; i < n * (EXPERTS + 1); i++) {
        const int expert = i % (EXPERTS + 1);
        output[i] = kind == 1 || (kind == 2 && expert == 0) ? NAN : kind == 3 && expert % 30 == 9 ? 0.75f : 0.5f;
    }
    static const int32_t pos[MOST] = { 0, 1 };
    static const int first[4][CHOSEN] = { { 0, 1, 2, 3, 4 }, { 0, 1, 2, 3, 4 }, { 1, 2, 3, 4, 5 },
                                          { 9, 39, 69, 99, 0 } },
                     in_groups[CHOSEN] = { 9, 39, 0, 1, 2 };
    const struct gpu_route r = { .part = to_device(output, sizeof output), .n_parts = 1, .ld = EXPERTS + 1,
                                 .pos = to_device(pos, sizeof pos), .n = n, .n_experts = EXPERTS, .top_k = CHOSEN,
                                 .router = GPU_ROUTER_SIGMOID, .n_groups = n_groups, .top_groups = 2, .group_best = 2,
                                 .scale = 1, .tile = 8, .sort = 1, .choice = choice_of(n, n * CHOSEN) };
    int32_t id[MOST * CHOSEN];
    OK(gpu_choose(device, &r, &why));
    from_device(id, r.choice.id, (size_t)(n * CHOSEN) * sizeof *id);
    for (int k = 0; k < n * CHOSEN; k++)
        assert_int_equal(id[k], n_groups && kind == 3 ? in_groups[k % CHOSEN] : first[kind][k % CHOSEN]);
    check_sorted(&r, id);
    gpu_free(device, (void *)(uintptr_t)r.part), gpu_free(device, (void *)(uintptr_t)r.pos);
    choice_free(&r.choice);
}
static void ties(void **state)
{
    (void)state;
    for (int n = 1; n <= 2; n++)
        for (int kind = 0; kind < 4; kind++)
            for (int groups = 0; groups <= 4; groups += 4)
                check_ties(n, groups, kind);
}

/* With places, only pairs whose expert has a slot are sorted, under the number of the slot; with a
 * window, only those of the experts in it. */
static void places(void **state)
{
    (void)state;
    enum { N = 40, EXPERTS = 7, CHOSEN = 2 };
    static const int32_t place[EXPERTS] = { 2, -1, 0, -2, -3, 1, -4 };
    static const struct { int first, n, slot[EXPERTS]; } windows[] = {
        { 0, 0, { 2, -1, 0, -1, -1, 1, -1 } }, { 0, 2, { -1, 0, -1, 1, -1, -1, -1 } },
        { 2, 2, { -1, -1, -1, -1, 0, -1, 1 } }, { 3, 1, { -1, -1, -1, -1, -1, -1, 0 } } };
    struct rng g = { 8 };
    int32_t id[N * CHOSEN], order[N * CHOSEN], n_tiles;
    struct gpu_expert_tile tiles[N * CHOSEN];
    for (int p = 0; p < N * CHOSEN; p++)
        id[p] = p % 9 == 8 ? -1 : below(&g, EXPERTS);
    struct gpu_route r = { .n = N, .n_experts = EXPERTS, .top_k = CHOSEN, .tile = 8, .choice = choice_of(N, N * CHOSEN),
                           .place = to_device(place, sizeof place) };
    gpu_free(device, r.choice.id);
    r.choice.id = to_device(id, sizeof id);
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w++) {
        r.stream_first = windows[w].first;
        r.stream_n = windows[w].n;
        OK(gpu_sort_pairs(device, &r, &why));
        from_device(order, r.choice.order, sizeof order);
        from_device(tiles, r.choice.tiles, sizeof tiles);
        from_device(&n_tiles, r.choice.n_tiles, sizeof n_tiles);
        int tile = 0, in_tile = 0;
        for (int x = 0; x < EXPERTS; x++) {
            in_tile = 0;
            for (int p = 0; p < N * CHOSEN && windows[w].slot[x] >= 0; p++) {
                if (id[p] != x)
                    continue;
                assert_int_equal(tiles[tile].expert, windows[w].slot[x]);
                assert_int_equal(order[tiles[tile].first + in_tile++], p);
                tile += in_tile == tiles[tile].n;
                in_tile = in_tile == 8 ? 0 : in_tile;
            }
        }
        assert_int_equal(n_tiles, tile);
    }
    gpu_free(device, (void *)(uintptr_t)r.place);
    choice_free(&r.choice);
}

/* If a product is split along k, the sum of its parts is the product, with the bias added once. */
static void splits(void **state)
{
    (void)state;
    enum { N = 9, OUTPUTS = 40, INPUTS = 600, LD = OUTPUTS + 1, PARTS = GPU_SPLITS((INPUTS + 31) / 32) };
    struct rng g = { 31 };
    struct mat m;
    uint8_t *data = random_mat(&m, QT_F32, 32, OUTPUTS, INPUTS, &g);
    float x[N * INPUTS], bias[OUTPUTS], w[INPUTS], *got = malloc(PARTS * N * LD * sizeof *got);
    for (int i = 0; i < N * INPUTS; i++)
        x[i] = uniform(&g, -1, 1);
    for (int i = 0; i < OUTPUTS; i++)
        bias[i] = uniform(&g, 50, 60);
    const struct gpu_linear l = { .w = { gpu_mat_of(&m, to_device(data, m.size)) }, .n_mats = 1, .n_tokens = N,
                                  .x = to_device(x, sizeof x), .ldx = INPUTS, .n_splits = PARTS,
                                  .split_stride = N * LD,
                                  .to = { { .bias = to_device(bias, sizeof bias), .ldo = LD,
                                            .out = on_device(PARTS * N * LD * sizeof *got) } } };
    assert_int_equal(PARTS, 3);
    OK(gpu_matmul_f32(device, &l, &why));
    from_device(got, l.to[0].out, PARTS * N * LD * sizeof *got);
    for (int row = 0; row < OUTPUTS; row++) {
        mat_decode_row(&m, row, w);
        for (int t = 0; t < N; t++) {
            double want = bias[row], sum = 0;
            for (int k = 0; k < INPUTS; k++)
                want += (double)w[k] * (double)x[t * INPUTS + k];
            for (int p = 0; p < PARTS; p++)
                sum += (double)got[(p * N + t) * LD + row];
            if (!(fabs(sum - want) < 1e-3))
                fail_msg("token %d, row %d: the parts are %g together, expected %g", t, row, sum, want);
        }
    }
    free(got), free(data);
}

/* A norm of n rows of x, with memory for the result. */
static struct gpu_norm norm_of(const float *x, int n, int cols, struct rng *g)
{
    float *w = malloc((size_t)cols * sizeof *w);
    for (int i = 0; i < cols; i++)
        w[i] = uniform(g, 0.5f, 1.5f);
    const struct gpu_norm o = { .present = 1, .w = to_device(w, (size_t)cols * 4), .eps = 1e-5f, .offset = 0.25f,
                                .x = to_device(x, (size_t)(n * cols) * 4), .ldx = cols,
                                .out = on_device((size_t)(n * cols) * 4), .ldo = cols,
                                .act = on_device((size_t)(n * (cols + 31)) * 2), .act_stride = (cols + 31) / 32 * 32,
                                .order = GPU_ACT_LANES, .n = n, .cols = cols };
    free(w);
    return o;
}

static void same_rows(const struct gpu_norm *a, const struct gpu_norm *b)
{
    const size_t out = (size_t)(a->n * a->cols) * 4, act = (size_t)(a->n * a->act_stride) * 2;
    char *x = malloc(out), *y = malloc(out);
    from_device(x, a->out, out), from_device(y, b->out, out);
    assert_memory_equal(x, y, out);
    from_device(x, a->act, act), from_device(y, b->act, act);
    assert_memory_equal(x, y, act);
    free(x), free(y);
}

/* gpu_choose gives the same bits if it computes the outputs itself, and with norms also its inputs;
 * it leaves its counter at 0. */
static void check_at_once(int n, int n_experts, int inputs, int shared, int norms)
{
    enum { CHOICES = 6, MOST_EXPERTS = 70 };
    struct rng g = { (uint64_t)(n + inputs) };
    const int parts = GPU_SPLITS((inputs + 31) / 32), ld = n_experts + 1, n_pairs = n * CHOICES;
    const size_t stride = (size_t)(n * ld);
    struct mat m[2];
    uint8_t *data[2] = { random_mat(&m[0], QT_F32, 32, n_experts, inputs, &g),
                         random_mat(&m[1], QT_F32, 32, 1, inputs, &g) };
    float *x = malloc((size_t)(n * inputs) * sizeof *x), bias[MOST_EXPERTS];
    int32_t pos[GPU_MATVEC_TOKENS];
    for (int i = 0; i < n * inputs; i++)
        x[i] = uniform(&g, -0.1f, 0.1f);
    for (int i = 0; i < n_experts; i++)
        bias[i] = uniform(&g, -1, 1);
    for (int t = 0; t < n; t++)
        pos[t] = t % 4 == 3 ? -1 : t;
    const unsigned none = 0;
    struct gpu_route r = { .part = on_device(stride * (size_t)parts * 4), .n_parts = parts, .part_stride = stride,
                           .ld = ld, .pos = to_device(pos, sizeof pos), .n = n, .n_experts = n_experts,
                           .top_k = CHOICES, .normalize = 1, .scale = 1, .tile = 8, .sort = 1,
                           .choice = choice_of(n, n_pairs), .w = { gpu_mat_of(&m[0], to_device(data[0], m[0].size)),
                                                                   gpu_mat_of(&m[1], to_device(data[1], m[1].size)) },
                           .bias = { to_device(bias, (size_t)n_experts * 4) }, .n_mats = 1 + shared,
                           .x = to_device(x, (size_t)(n * inputs) * 4), .ldx = inputs,
                           .arrived = to_device(&none, sizeof none) };
    struct gpu_linear l = { .w = { r.w[0], r.w[1] }, .n_mats = r.n_mats, .x = r.x, .ldx = inputs, .n_tokens = n,
                            .n_splits = parts, .split_stride = stride, .to = { { r.bias[0], r.part, ld },
                                                                               { NULL, r.part + n_experts, ld } } };
    r.choice.shared = shared ? r.choice.shared : NULL;
    const struct gpu_norm apart = norms ? norm_of(x, n, inputs, &g) : (struct gpu_norm){ .x = NULL };
    if (norms) {
        OK(gpu_norm(device, &apart, &why));
        l.x = apart.out;
        r.x = NULL;                     /* is not read */
        r.norm = apart;
        r.norm.out = on_device((size_t)(n * inputs) * 4);
        r.norm.act = on_device((size_t)(n * (inputs + 31)) * 2);
        assert_true(gpu_norm_in_registers(&r.norm));
    }
    int32_t id[2][GPU_MATVEC_TOKENS * CHOICES];
    float weight[2][GPU_MATVEC_TOKENS * CHOICES], of_shared[2][GPU_MATVEC_TOKENS] = { 0 };
    OK(gpu_matmul_f32(device, &l, &why));
    for (int way = 0; way < 3; way++) {
        struct gpu_route one = r;
        one.n_mats = way ? r.n_mats : 0;
        OK(gpu_choose(device, &one, &why));
        from_device(id[way > 0], r.choice.id, (size_t)n_pairs * 4);
        from_device(weight[way > 0], r.choice.weight, (size_t)n_pairs * 4);
        if (shared)
            from_device(of_shared[way > 0], r.choice.shared, (size_t)n * 4);
        check_sorted(&r, id[way > 0]);
        /* all is computed anew */
        OK(gpu_fill(device, GPU_COMPUTE, way ? r.choice.weight : r.part, 0xff,
                    way ? (size_t)n_pairs * 4 : stride * (size_t)parts * 4, &why));
        OK(gpu_fill(device, GPU_COMPUTE, r.choice.id, 0xff, (size_t)n_pairs * 4, &why));
        OK(gpu_fill(device, GPU_COMPUTE, r.choice.order, 0xff, (size_t)n_pairs * 4, &why));
        OK(gpu_fill(device, GPU_COMPUTE, r.choice.tiles, 0xff, (size_t)n_pairs * sizeof *r.choice.tiles, &why));
        OK(gpu_fill(device, GPU_COMPUTE, r.choice.n_tiles, 0xff, 4, &why));
    }
    assert_memory_equal(id[1], id[0], (size_t)n_pairs * 4);
    assert_memory_equal(weight[1], weight[0], (size_t)n_pairs * 4);
    assert_memory_equal(of_shared[1], of_shared[0], (size_t)n * 4);
    if (norms)
        same_rows(&apart, &r.norm);
    unsigned left;
    from_device(&left, r.arrived, sizeof left);
    assert_int_equal(left, 0);
    choice_free(&r.choice);
    free(x), free(data[0]), free(data[1]);
}
static void at_once(void **state)
{
    (void)state;
    check_at_once(1, 70, 600, 1, 0);
    check_at_once(5, 9, 40, 0, 0);
    check_at_once(16, 33, 256, 1, 0);
    check_at_once(1, 70, 600, 1, 1);
    check_at_once(4, 9, 40, 0, 1);
    check_at_once(4, 33, 8000, 0, 1);
}

/* ---- products ---- */

enum path { MATVEC, MATMUL, EXACT };
static const char *const path_name[] = { "expert_matvec", "expert_matmul", "expert_f32" };
enum { EXPERTS = 5, CHOSEN = 2, ROWS = 70, COLS = 100, WIDE = 128 };

/* The matrices of all experts for one role, and their values. */
struct matrices { struct gpu_expert_mat d; struct mat m[EXPERTS]; uint8_t *data[EXPERTS]; float *value, *bias; };

static struct matrices matrices_of(enum qtype type, int group, int rows, int cols, int biased, struct rng *r)
{
    struct matrices x = { .value = malloc((size_t)(EXPERTS * rows * cols) * 4),
                          .bias = calloc((size_t)(EXPERTS * (rows + 1)), 4) };
    uint8_t *all = NULL;
    for (int i = 0; i < EXPERTS; i++) {
        x.data[i] = random_mat(&x.m[i], type, group, rows, cols, r);
        x.d.stride = x.m[i].size + 256;
        all = realloc(all, EXPERTS * x.d.stride);
        memcpy(all + (size_t)i * x.d.stride, x.data[i], x.m[i].size);
        for (int k = 0; k < rows; k++) {
            mat_decode_row(&x.m[i], k, x.value + (size_t)(i * rows + k) * (size_t)cols);
            x.bias[i * (rows + 1) + k] = biased ? uniform(r, -1, 1) : 0;
        }
    }
    memset(all + x.m[0].size, 0xff, 256);
    x.d.w = gpu_mat_of(&x.m[0], to_device(all, EXPERTS * x.d.stride));
    x.d.bias = biased ? to_device(x.bias, (size_t)(EXPERTS * (rows + 1)) * 4) : NULL;
    x.d.bias_stride = rows + 1;
    free(all);
    return x;
}
static void matrices_free(struct matrices *x)
{
    for (int i = 0; i < EXPERTS; i++)
        free(x->data[i]);
    gpu_free(device, (void *)(uintptr_t)x->d.w.data), gpu_free(device, (void *)(uintptr_t)x->d.bias);
    free(x->value), free(x->bias);
}

/* Element `row` of an expert's product with x.  *size is increased by the sum of the terms'
 * magnitudes. */
static double product(const struct matrices *m, int expert, int rows, int cols, int row, const float *x, double *size)
{
    double sum = m->bias[expert * (rows + 1) + row];
    for (int k = 0; k < cols; k++) {
        const double v = (double)m->value[(size_t)(expert * rows + row) * (size_t)cols + (size_t)k] * (double)x[k];
        sum += v;
        *size += fabs(v);
    }
    return sum;
}

/* A random choice for n tokens, which the device sorts.  No token chooses expert 3, and every fifth
 * token chooses no expert. */
static struct gpu_route random_choice(int n, int tile, int32_t *id, struct rng *g)
{
    for (int t = 0; t < n; t++)
        for (int k = 0; k < CHOSEN; k++) {
            int x = k ? (id[t * CHOSEN] + 1 + below(g, EXPERTS - 2)) % EXPERTS : below(g, 3);
            x = x == 3 ? (id[t * CHOSEN] + 4) % EXPERTS : x;
            id[t * CHOSEN + k] = n > 4 && t % 5 == 4 ? -1 : x == 3 ? 4 : x;
        }
    struct gpu_route r = { .n = n, .n_experts = EXPERTS, .top_k = CHOSEN, .tile = tile,
                           .choice = choice_of(n, n * CHOSEN) };
    gpu_free(device, r.choice.id);
    r.choice.id = to_device(id, (size_t)(n * CHOSEN) * 4);
    OK(gpu_sort_pairs(device, &r, &why));
    check_sorted(&r, id);
    return r;
}

static int run_path(enum path path, const struct gpu_experts *o)
{
    return path == MATVEC ? gpu_expert_matvec(device, o, &why) : path == MATMUL ? gpu_expert_matmul(device, o, &why)
                                                                                : gpu_expert_f32(device, o, &why);
}

/* The results of gate and up as numbers, [pair][ROWS]. */
static float *middle(const struct gpu_experts *o, enum path path, const float *out, const uint16_t *act)
{
    float *h = malloc((size_t)o->n_pairs * ROWS * sizeof *h);
    for (int p = 0; p < o->n_pairs; p++)
        for (int row = 0; row < ROWS; row++)
            h[p * ROWS + row] = path == EXACT ? out[p * ROWS + row]
                : 16 * f16_to_f32(act[p * WIDE + act_at(row, path == MATVEC ? GPU_ACT_LANES : GPU_ACT_TILES)]);
    return h;
}

/* Compute gate and up, then down with their results, for n tokens, and compare with sums in
 * double. */
static void check_products(enum path path, enum qtype type, int group, int n, int biased, float alpha, float limit)
{
    struct rng g = { (uint64_t)((int)type * 100 + n + (int)path) };
    struct matrices gate = matrices_of(type, group, ROWS, COLS, biased, &g),
                    up = matrices_of(type, group, ROWS, COLS, biased, &g),
                    down = matrices_of(type, group, COLS, ROWS, biased, &g);
    const int tile = path == MATMUL ? gpu_expert_pairs(n * CHOSEN, EXPERTS) : GPU_EXPERT_FEW, n_pairs = n * CHOSEN;
    int32_t *id = malloc((size_t)n_pairs * sizeof *id);
    const struct gpu_route r = random_choice(n, tile, id, &g);
    float *x = malloc((size_t)n * COLS * 4), *mid = malloc((size_t)n_pairs * ROWS * 4),
          *out = malloc((size_t)n_pairs * COLS * 4);
    for (int i = 0; i < n * COLS; i++)
        x[i] = uniform(&g, -1, 1);
    uint16_t *act = pack_act(x, n, COLS, WIDE, path == MATVEC ? GPU_ACT_LANES : GPU_ACT_TILES),
             *act_mid = malloc((size_t)n_pairs * WIDE * 2);
    struct gpu_experts o = { .w = { gate.d, up.d }, .n_mats = 2, .n_experts = EXPERTS, .n_pairs = n_pairs,
                             .choice = r.choice, .share = CHOSEN, .act = to_device(act, (size_t)n * WIDE * 2),
                             .act_stride = WIDE, .x = to_device(x, (size_t)n * COLS * 4), .ldx = COLS,
                             .out = on_device((size_t)n_pairs * ROWS * 4), .ldo = ROWS,
                             .act_out_stride = WIDE,
                             .function = ACT_SILU, .alpha = alpha, .limit = limit };
    /* the kernel writes a row up to the end of its last tile; the rest of the row must be 0
     * before */
    for (int i = 0; i < n_pairs * WIDE; i++)
        act_mid[i] = i % WIDE < (ROWS + 31) / 32 * 32 ? 0xffff : 0;
    o.act_out = to_device(act_mid, (size_t)n_pairs * WIDE * 2);
    OK(run_path(path, &o));
    from_device(act_mid, o.act_out, (size_t)n_pairs * WIDE * 2);
    from_device(mid, o.out, (size_t)n_pairs * ROWS * 4);
    float *h = middle(&o, path, mid, act_mid);
    for (int p = 0; p < n_pairs; p++)
        for (int row = 0; row < ROWS && id[p] >= 0; row++) {
            double size = 0, a = product(&gate, id[p], ROWS, COLS, row, x + p / CHOSEN * COLS, &size),
                   b = product(&up, id[p], ROWS, COLS, row, x + p / CHOSEN * COLS, &size);
            if (limit > 0) {
                a = fmin(a, (double)limit);
                b = fmin(fmax(b, -(double)limit), (double)limit);
            }
            const double want = alpha > 0 ? a / (1 + exp(-(double)alpha * a)) * (b + 1) : a / (1 + exp(-a)) * b;
            const double bound = (path == EXACT ? 1e-5 : 6e-3) * (size + fabs(want)) * (1 + fabs(a) + fabs(b)) + 1e-6;
            if (!(fabs(h[p * ROWS + row] - want) <= bound))
                fail_msg("%s %s, %d tokens: gate and up, pair %d (expert %d) row %d: %g, expected %g (bound %.2g)",
                         path_name[path], qtype_info(type)->name, n, p, id[p], row, (double)h[p * ROWS + row], want,
                         bound);
        }
    o = (struct gpu_experts){ .w = { down.d }, .n_mats = 1, .n_experts = EXPERTS, .n_pairs = n_pairs,
                              .choice = r.choice, .share = 1, .act = o.act_out, .act_stride = WIDE, .x = o.out,
                              .ldx = ROWS, .out = on_device((size_t)n_pairs * COLS * 4), .ldo = COLS };
    OK(run_path(path, &o));
    from_device(out, o.out, (size_t)n_pairs * COLS * 4);
    for (int p = 0; p < n_pairs; p++)
        for (int row = 0; row < COLS; row++) {
            double size = 0;
            const double want = id[p] < 0 ? 0 : product(&down, id[p], COLS, ROWS, row, h + p * ROWS, &size);
            if (id[p] < 0 ? !isnan(out[p * COLS + row])         /* untouched */
                          : !(fabs(out[p * COLS + row] - want) <= (path == EXACT ? 1e-5 : 2e-3) * (size + 0.01)))
                fail_msg("%s %s, %d tokens: down, pair %d (expert %d) row %d: %g, expected %g", path_name[path],
                         qtype_info(type)->name, n, p, id[p], row, (double)out[p * COLS + row], want);
        }
    matrices_free(&gate), matrices_free(&up), matrices_free(&down);
    choice_free(&r.choice);
    free(id), free(x), free(mid), free(out), free(act), free(act_mid), free(h);
}

static void products(void **state)
{
    (void)state;
    static const struct { enum qtype type; int group; } types[] = { { QT_NL4, 32 }, { QT_I8R, 32 },
                                                                    { QT_F16, 32 }, { QT_I4Z, 64 } };
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        check_products(MATVEC, types[i].type, types[i].group, i == 0 ? 16 : 3, i == 1, 0, 0);
        check_products(MATMUL, types[i].type, types[i].group, i == 1 ? 90 : 17, i == 1, 0, 0);
        check_products(EXACT, types[i].type, types[i].group, 5, i == 1, 0, 0);
    }
    check_products(MATVEC, QT_NL4, 32, 60, 0, 0, 0);    /* more tiles than blocks */
    check_products(MATVEC, QT_NL4, 32, 1, 1, 1.702f, 0.5f);
    check_products(MATMUL, QT_NL4, 32, 90, 1, 1.702f, 0.5f);
    check_products(EXACT, QT_F32, 32, 20, 1, 1.702f, 0.5f);
}

/* The bits of a pair depend neither on the other tokens nor on the size of tiles. */
static void neighbours(void **state)
{
    (void)state;
    enum { N = 90 };
    struct rng g = { 12 };
    struct matrices down = matrices_of(QT_NL4, 32, COLS, ROWS, 0, &g);
    int32_t id[N * CHOSEN];
    float x[N * ROWS], *first = NULL;
    for (int i = 0; i < N * ROWS; i++)
        x[i] = uniform(&g, -1, 1);
    for (int i = 0; i < N * CHOSEN; i++)
        id[i] = i % 9 ? 1 + i % 2 : 4;
    static const struct { enum path path; int n; } cases[] = { { MATMUL, N }, { MATMUL, 20 }, { MATVEC, 16 },
                                                               { MATVEC, 1 } };
    for (int c = 0; c < 4; c++) {
        const int n = cases[c].n, n_pairs = n * CHOSEN, matmul = cases[c].path == MATMUL;
        struct gpu_route r = { .n = n, .n_experts = EXPERTS, .top_k = CHOSEN, .choice = choice_of(n, n_pairs),
                               .tile = matmul ? gpu_expert_pairs(n_pairs, EXPERTS) : GPU_EXPERT_FEW };
        if (matmul)
            assert_int_equal(r.tile, n == N ? 64 : 16);
        r.choice.id = to_device(id, (size_t)n_pairs * 4);
        OK(gpu_sort_pairs(device, &r, &why));
        uint16_t *act = pack_act(x, n, ROWS, WIDE, matmul ? GPU_ACT_TILES : GPU_ACT_LANES);
        const struct gpu_experts o = { .w = { down.d }, .n_mats = 1, .n_experts = EXPERTS, .n_pairs = n_pairs,
                                       .choice = r.choice, .share = CHOSEN, .act = to_device(act, (size_t)n * WIDE * 2),
                                       .act_stride = WIDE, .out = on_device((size_t)n_pairs * COLS * 4), .ldo = COLS };
        OK(run_path(cases[c].path, &o));
        float *out = malloc((size_t)n_pairs * COLS * 4);
        from_device(out, o.out, (size_t)n_pairs * COLS * 4);
        if (c % 2)
            assert_memory_equal(out, first, (size_t)n_pairs * COLS * 4);
        free(first), free(act);
        first = out;
    }
    free(first);
    matrices_free(&down);
}

/* Down with the sum, and of few tokens with its norm, has the bits of these after each other, also
 * if no token chooses an expert. */
static void down_and_sum(void **state)
{
    (void)state;
    enum { N = 9, WIDTH = 104 };
    struct rng g = { 77 };
    struct matrices down = matrices_of(QT_NL4, 32, WIDTH, ROWS, 1, &g);
    float x[N * CHOSEN * ROWS], shared[N * WIDTH], weight[N * CHOSEN], sum[2][N * WIDTH];
    unsigned arrived[(WIDTH + 31) / 32 + 1] = { 0 };
    float norm_weight[WIDTH], normed[2][N * WIDTH];
    for (int i = 0; i < WIDTH; i++)
        norm_weight[i] = uniform(&g, -1, 1);
    for (int i = 0; i < N * CHOSEN * ROWS; i++)
        x[i] = uniform(&g, -1, 1);
    for (int i = 0; i < N * WIDTH; i++)
        shared[i] = uniform(&g, -1, 1);
    for (int i = 0; i < N * CHOSEN; i++)
        weight[i] = uniform(&g, 0, 1);
    for (int some = 0; some < 2; some++)
        for (int n = 1; n <= N; n += n == 1 ? GPU_NORM_TOKENS - 1 : N - GPU_NORM_TOKENS) {
            const int n_pairs = n * CHOSEN;
            int32_t id[N * CHOSEN];
            for (int i = 0; i < n_pairs; i++)
                id[i] = !some || i / CHOSEN == 4 ? -1 : (i / CHOSEN + i % CHOSEN) % EXPERTS;
            struct gpu_route r = { .n = n, .n_experts = EXPERTS, .top_k = CHOSEN, .choice = choice_of(n, n_pairs),
                                   .tile = GPU_EXPERT_FEW };
            r.choice.id = to_device(id, (size_t)n_pairs * 4);
            r.choice.weight = to_device(weight, (size_t)n_pairs * 4);
            OK(gpu_sort_pairs(device, &r, &why));
            uint16_t *act = pack_act(x, n_pairs, ROWS, WIDE, GPU_ACT_LANES);
            struct gpu_experts o = { .w = { down.d }, .n_mats = 1, .n_experts = EXPERTS, .n_pairs = n_pairs,
                                     .choice = r.choice, .share = 1, .act = to_device(act, (size_t)n_pairs * WIDE * 2),
                                     .act_stride = WIDE, .out = on_device((size_t)n_pairs * WIDTH * 4), .ldo = WIDTH,
                                     .arrived = to_device(arrived, sizeof arrived) };
            const struct gpu_expert_sum s = { .y = o.out, .choice = r.choice, .shared_scale = 0.5f, .n = n,
                                              .shared = to_device(shared, sizeof shared), .top_k = CHOSEN,
                                              .cols = WIDTH, .out = on_device((size_t)(n * WIDTH) * 4) };
            const struct gpu_norm norm = { .present = 1, .w = to_device(norm_weight, sizeof norm_weight), .eps = 1e-5f,
                                           .x = s.out, .ldx = WIDTH, .out = on_device((size_t)(n * WIDTH) * 4),
                                           .ldo = WIDTH, .n = n, .cols = WIDTH };
            assert_true(gpu_norm_in_registers(&norm));
            OK(gpu_expert_matvec(device, &o, &why));
            OK(gpu_expert_sum(device, &s, &why));
            OK(gpu_norm(device, &norm, &why));
            from_device(sum[0], s.out, (size_t)(n * WIDTH) * 4);
            from_device(normed[0], norm.out, (size_t)(n * WIDTH) * 4);
            o.sum = s;
            if (n <= GPU_NORM_TOKENS)
                o.norm = norm;
            for (int again = 0; again < 2; again++) {
                OK(gpu_fill(device, GPU_COMPUTE, s.out, 0xff, (size_t)(n * WIDTH) * 4, &why));
                OK(gpu_fill(device, GPU_COMPUTE, o.out, 0xff, (size_t)(n_pairs * WIDTH) * 4, &why));
                if (o.norm.x)
                    OK(gpu_fill(device, GPU_COMPUTE, norm.out, 0xff, (size_t)(n * WIDTH) * 4, &why));
                OK(gpu_expert_matvec(device, &o, &why));
                from_device(sum[1], s.out, (size_t)(n * WIDTH) * 4);
                assert_memory_equal(sum[1], sum[0], (size_t)(n * WIDTH) * 4);
                from_device(normed[1], norm.out, (size_t)(n * WIDTH) * 4);
                assert_memory_equal(normed[1], normed[0], (size_t)(n * WIDTH) * 4);
            }
            unsigned left[(WIDTH + 31) / 32 + 1];
            from_device(left, o.arrived, sizeof left);
            assert_memory_equal(left, arrived, sizeof left);
            free(act);
        }
    matrices_free(&down);
}

/* ---- the sum ---- */

static void sums(void **state)
{
    (void)state;
    enum { N = 3, K = 4, WIDTH = 300 };
    struct rng g = { 8 };
    float y[N * K * WIDTH], weight[N * K], shared[N * WIDTH], shared_weight[N], x[N * WIDTH], got[N * WIDTH];
    float host[N * K / 2 * WIDTH], *const all = malloc(sizeof y);
    int32_t id[N * K], row[N * K];
    for (int i = 0; i < N * K * WIDTH; i++)
        y[i] = i / WIDTH / K == 1 ? NAN : uniform(&g, -1, 1);           /* token 1 chooses nothing */
    for (int i = 0; i < N * K; i++) {
        weight[i] = uniform(&g, 0, 1);
        id[i] = i / K == 1 ? -1 : i;
    }
    for (int i = 0; i < N * WIDTH; i++)
        x[i] = uniform(&g, -1, 1), shared[i] = uniform(&g, -1, 1);
    for (int i = 0; i < N; i++)
        shared_weight[i] = uniform(&g, 0, 1);
    memcpy(all, y, sizeof y);
    for (int i = 0; i < N * K; i++) {           /* the results of odd pairs are the host's */
        row[i] = i % 2 ? i / 2 : -1;
        for (int k = 0; k < WIDTH && i % 2; k++) {
            host[i / 2 * WIDTH + k] = y[i * WIDTH + k];
            y[i * WIDTH + k] = NAN;
        }
    }
    for (int way = 0; way < 4; way++) {
        struct gpu_expert_sum o = { .y = to_device(way == 2 ? y : all, sizeof y),
                                    .row = way == 2 ? to_device(row, sizeof row) : NULL,
                                    .host = way == 2 ? to_device(host, sizeof host) : NULL,
                                    .shared_scale = 0.5f, .scale = 0.25f, .n = N,
                                    .top_k = K, .cols = WIDTH,
                                    .choice = { .id = to_device(id, sizeof id),
                                                .weight = to_device(weight, sizeof weight) } };
        float *dx = to_device(x, sizeof x), *ds = to_device(shared, sizeof shared);
        o.shared = way & 1 ? ds : NULL;
        o.shared_weight = way == 3 ? to_device(shared_weight, sizeof shared_weight) : NULL;
        o.x = way & 2 ? dx : NULL;
        o.out = ds;
        OK(gpu_expert_sum(device, &o, &why));
        from_device(got, way & 2 ? dx : ds, sizeof got);
        for (int t = 0; t < N; t++)
            for (int k = 0; k < WIDTH; k++) {
                double want = way & 1 ? 0.5 * (way == 3 ? (double)shared_weight[t] : 1) * (double)shared[t * WIDTH + k]
                                      : 0;
                for (int i = 0; i < K && t != 1; i++)
                    want += (double)weight[t * K + i] * (double)all[(t * K + i) * WIDTH + k];
                want = way & 2 ? (double)x[t * WIDTH + k] + 0.25 * want : want;
                if (!(fabs(got[t * WIDTH + k] - want) < 1e-5))
                    fail_msg("sum %d of token %d, element %d: %g, expected %g", way, t, k, (double)got[t * WIDTH + k],
                             want);
            }
    }
    free(all);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(choices), cmocka_unit_test(ties), cmocka_unit_test(places),
                                        cmocka_unit_test(splits), cmocka_unit_test(at_once),
                                        cmocka_unit_test(products),
                                        cmocka_unit_test(neighbours), cmocka_unit_test(down_and_sum),
                                        cmocka_unit_test(sums) };
    return device_open() ? cmocka_run_group_tests(tests, NULL, NULL) : 0;
}
