/* t-places.c - places for connections: limits, the places reserved for keys, and the connection
 * that is evicted, compared with a plain definition over random histories. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

#include "libcommon/base/rng.h"
#include "libcommon/http/places.h"

static const uint64_t second = 1000000000u;

static struct places *open_places(int max, int per_address)
{
    struct err e;
    struct places *p = places_open(max, per_address, &e);
    assert_non_null(p);
    return p;
}

static void one_address_has_a_limit_of_connections(void **state)
{
    struct places *p = open_places(100, 3);
    struct place x[4], other, *evict;
    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(places_room(p, 7, 1, 1, &evict), 1);
        assert_null(evict);
        assert_int_equal(places_enter(p, &x[i], 7, (uint64_t)i + 1), 0);
    }
    assert_int_equal(places_room(p, 7, 1, second, &evict), 0);              /* no connection has
                                                                             * been idle for a
                                                                             * second */
    assert_int_equal(places_room(p, 7, 0, second, &evict), 1);              /* a Unix socket, a proxy */
    assert_null(evict);
    assert_int_equal(places_room(p, 8, 1, second, &evict), 1);
    places_update(p, &x[0], 1, 1, second);
    assert_int_equal(places_room(p, 7, 1, second + 2, &evict), 1);
    assert_ptr_equal(evict, &x[1]);                                         /* quiet longest */
    places_own(p, &x[0], 1001);                                             /* it has a key now, so
                                                                             * it no longer counts
                                                                             * for its address */
    assert_int_equal(places_room(p, 7, 1, second, &evict), 1);
    assert_null(evict);
    assert_int_equal(places_n(p), 3);
    assert_int_equal(places_n_unknown(p), 2);
    assert_int_equal(places_enter(p, &other, 8, 5), 0);
    for (int i = 0; i < 3; i++)
        places_leave(p, &x[i]);
    places_leave(p, &other);
    places_leave(p, &other);
    assert_int_equal(places_n(p), 0);
    places_close(p);
}

static void idle_connections_of_the_largest_owner_go_first(void **state)
{
    struct places *p = open_places(16, 0);
    struct place x[16], *evict;
    (void)state;
    for (int i = 0; i < 14; i++)
        assert_int_equal(places_enter(p, &x[i], i < 4 ? 100 + (uint64_t)i : 7, (uint64_t)i), 0);
    assert_int_equal(places_room(p, 9, 1, 20, &evict), 1);                  /* two places are
                                                                             * reserved for keys */
    /* a connection of the owner with the most connections is evicted, although others have been
     * idle longer */
    assert_ptr_equal(evict, &x[4]);
    places_own(p, &x[0], 1001);
    places_own(p, &x[1], 1001);
    for (int i = 14; i < 16; i++) {
        assert_int_equal(places_room(p, 9, 1, 20, &evict), 1);
        assert_null(evict);
        assert_int_equal(places_enter(p, &x[i], 9, 20), 0);
    }
    for (int i = 2; i < 16; i++)
        places_own(p, &x[i], i < 5 ? 1001 : 1000 + (uint64_t)i);
    assert_int_equal(places_room(p, 9, 1, 20, &evict), 1);                  /* all have keys: a
                                                                             * connection of the key
                                                                             * with the most
                                                                             * connections is
                                                                             * evicted */
    assert_ptr_equal(evict->owner, x[0].owner);
    for (int i = 0; i < 16; i++)
        places_update(p, &x[i], 0, 1, 30);                                  /* all have work */
    assert_int_equal(places_room(p, 9, 1, 40, &evict), 0);
    places_update(p, &x[9], 1, 0, 40);
    assert_int_equal(places_room(p, 9, 1, 40, &evict), 1);
    assert_ptr_equal(evict, &x[9]);
    for (int i = 0; i < 16; i++)
        places_leave(p, &x[i]);
    places_close(p);
}

enum { N = 200, OWNERS = 9 };
struct naive { int in, known, spare; uint64_t owner, seen; };

/* Of the PLACES_LOOK evictable connections that have been idle longest, the first one of the owner
 * with the most connections; -1: none. */
static int naive_victim(const struct naive *m, int known)
{
    int best = -1, best_n = 0;
    uint64_t after = 0;
    for (int look = 0; look < PLACES_LOOK; look++) {
        int x = -1, n = 0;
        for (int i = 0; i < N; i++)
            if (m[i].in && m[i].spare && m[i].known == known && m[i].seen > after && (x < 0 || m[i].seen < m[x].seen))
                x = i;
        if (x < 0)
            break;
        after = m[x].seen;
        for (int i = 0; i < N; i++)
            n += m[i].in && m[i].owner == m[x].owner;
        if (n > best_n) {
            best = x;
            best_n = n;
        }
    }
    return best;
}

static void places_agree_with_a_naive_model(void **state)
{
    struct places *p = open_places(120, 0);
    static struct place x[N];
    static struct naive m[N];
    struct rng r = { .state = 5 };
    uint64_t now = 0;
    (void)state;
    for (int step = 0; step < 30000; step++) {
        const int i = (int)(rng_u64(&r) % N);
        const uint64_t owner = rng_u64(&r) % OWNERS;
        int n = 0, unknown = 0;
        struct place *evict;
        now++;
        for (int k = 0; k < N; k++) {
            n += m[k].in;
            unknown += m[k].in && !m[k].known;
        }
        assert_int_equal(places_n(p), n);
        assert_int_equal(places_n_unknown(p), unknown);
        if (!m[i].in) {
            const int room = n < 120 && unknown < 105;
            const int victim = room ? -1 : naive_victim(m, 0) >= 0 ? naive_victim(m, 0) : unknown < 105
                                   ? naive_victim(m, 1) : -1;
            assert_int_equal(places_room(p, owner, 1, now, &evict), room || victim >= 0);
            assert_ptr_equal(evict, victim < 0 ? NULL : &x[victim]);
            if (evict) {
                places_leave(p, evict);
                m[victim].in = 0;
            }
            if (room || evict) {
                assert_int_equal(places_enter(p, &x[i], owner, now), 0);
                m[i] = (struct naive){ .in = 1, .spare = 1, .owner = owner, .seen = now };
            }
        } else if (rng_u64(&r) % 3 == 0) {
            const int spare = rng_u64(&r) % 4 != 0, active = (int)(rng_u64(&r) % 2);
            places_update(p, &x[i], spare, active, now);
            if (spare && (active || !m[i].spare))
                m[i].seen = now;
            m[i].spare = spare;
        } else if (rng_u64(&r) % 3 == 0) {
            places_own(p, &x[i], 1000 + owner);
            if (!m[i].known || m[i].owner != 1000 + owner)
                m[i].seen = now;
            m[i].known = 1;
            m[i].owner = 1000 + owner;
        } else if (rng_u64(&r) % 8 == 0) {
            places_leave(p, &x[i]);
            m[i].in = 0;
        }
    }
    for (int i = 0; i < N; i++)
        places_leave(p, &x[i]);
    places_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = { cmocka_unit_test(one_address_has_a_limit_of_connections),
                                        cmocka_unit_test(idle_connections_of_the_largest_owner_go_first),
                                        cmocka_unit_test(places_agree_with_a_naive_model) };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
