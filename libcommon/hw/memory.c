/* memory.c - read memory sizes, limits of control groups and stalls. */
#include "libcommon/hw/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/hw/sysfile.h"

enum { KIB = 1024, SMALL_FILE = 16384, BIG_FILE = 65536 };

/* ---- control groups ---- */

/* Does a list of words, separated by commas, contain the word? */
static int listed(const char *list, size_t size, const char *word)
{
    const size_t n = strlen(word);
    for (size_t i = 0; i + n <= size; i++)
        if ((i == 0 || list[i - 1] == ',') && memcmp(list + i, word, n) == 0 && (i + n == size || list[i + n] == ','))
            return 1;
    return 0;
}

/* The path of this controller in /proc/self/cgroup: lines are ID:CONTROLLERS:PATH, "0::PATH" for
 * version 2. */
static int group_path(const char *text, const char *controller, char *path, size_t room)
{
    int version = 0;
    for (const char *p = text; p && *p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL) {
        const char *names = strchr(p, ':'), *where = names ? strchr(names + 1, ':') : NULL;
        if (!where)
            continue;
        const size_t n = (size_t)(where - names - 1);
        const int v = n == 0 ? 2 : listed(names + 1, n, controller) ? 1 : 0;
        if (v == 0 || (v == 2 && version == 1))         /* a controller of version 1 is not in version 2 */
            continue;
        version = v;
        snprintf(path, room, "%.*s", (int)strcspn(where + 1, "\n"), where + 1);
    }
    return version;
}

/* Find the mount point of a controller.  Lines of mountinfo are ID PARENT DEVICE ROOT MOUNTPOINT
 * OPTIONS ... - TYPE SOURCE SUPEROPTIONS. */
static int mount_point(const char *text, int version, const char *controller, char *top, size_t top_room, char *at,
                       size_t at_room)
{
    for (const char *p = text; p && *p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL) {
        char line[1024], above[512], point[512], type[32], options[256];
        snprintf(line, sizeof line, "%.*s", (int)strcspn(p, "\n"), p);
        char *dash = strstr(line, " - ");
        if (!dash || sscanf(line, "%*s %*s %*s %511s %511s", above, point) != 2 ||
            sscanf(dash + 3, "%31s %*s %255s", type, options) != 2)
            continue;
        if (version == 2 ? strcmp(type, "cgroup2") != 0
                         : strcmp(type, "cgroup") != 0 || !listed(options, strlen(options), controller))
            continue;
        snprintf(top, top_room, "%s", above);
        snprintf(at, at_room, "%s", point);
        return 1;
    }
    return 0;
}

void cgroup_find(struct cgroup *g, const char *root, const char *controller)
{
    char *text = malloc(BIG_FILE), path[512] = "", top[512], at[512];
    *g = (struct cgroup){ 0 };
    if (!text)
        return;
    int version = sys_read(root, "/proc/self/cgroup", text, BIG_FILE) > 0
                      ? group_path(text, controller, path, sizeof path) : 0;
    if (version && sys_read(root, "/proc/self/mountinfo", text, BIG_FILE) > 0 &&
        mount_point(text, version, controller, top, sizeof top, at, sizeof at)) {
        /* In a container the root of the mount is the container's own group (`top`): the beginning
         * of path that equals it does not appear below the mount point. */
        const size_t n = strlen(top);
        const char *below = strcmp(top, "/") == 0 ? path : strncmp(path, top, n) == 0 &&
                            (path[n] == '/' || !path[n]) ? path + n : "";
        g->mount = strlen(at);
        if ((size_t)snprintf(g->dir, sizeof g->dir, "%s%s", at, strcmp(below, "/") == 0 ? "" : below) < sizeof g->dir)
            g->version = version;
    }
    free(text);
}

int cgroup_up(struct cgroup *g)
{
    char *slash = strrchr(g->dir, '/');
    if (!slash || strlen(g->dir) <= g->mount || (size_t)(slash - g->dir) < g->mount)
        return 0;
    *slash = '\0';
    return 1;
}

/* Read the limits of one group and its memory use without page cache, in bytes.  *hard is the limit
 * without memory.high, UINT64_MAX if there is none.  Returns 1; 0 if the group has no limit. */
static int group_limit(const struct cgroup *g, const char *root, uint64_t *limit, uint64_t *hard, uint64_t *used)
{
    static const long long none = 1ll << 60;            /* version 1 writes "none" as a number near 2^63 */
    const int v2 = g->version == 2;
    char stat[SMALL_FILE], path[600];
    long long max = sys_number(-1, root, v2 ? "%s/memory.max" : "%s/memory.limit_in_bytes", g->dir),
        high = v2 ? sys_number(-1, root, "%s/memory.high", g->dir) : -1;
    *hard = max < 0 || max >= none ? UINT64_MAX : (uint64_t)max;
    if (high > 0 && (max < 0 || high < max))
        max = high;                                     /* above it the kernel throttles the group */
    long long current = sys_number(-1, root, v2 ? "%s/memory.current" : "%s/memory.usage_in_bytes", g->dir);
    if (max < 0 || max >= none || current < 0)
        return 0;
    snprintf(path, sizeof path, "%s/memory.stat", g->dir);
    if (sys_read(root, path, stat, sizeof stat) > 0)
        current -= sys_field(stat, v2 ? "inactive_file" : "total_inactive_file", 0) +
                   sys_field(stat, v2 ? "active_file" : "total_active_file", 0);
    *limit = (uint64_t)max;
    *used = current > 0 ? (uint64_t)current : 0;
    return 1;
}

/* Update *least, the smallest limit so far (0: none), and *least_left, the least memory left below
 * a limit.  Returns 0 if this limit is not below the machine's total, else 1. */
static int count_limit(uint64_t limit, uint64_t used, uint64_t total, uint64_t *least, uint64_t *least_left)
{
    const uint64_t left = limit > used ? limit - used : 0;
    if (limit >= total)
        return 0;
    if (!*least || left < *least_left)
        *least_left = left;
    if (!*least || limit < *least)
        *least = limit;
    return 1;
}

static double stalled(const char *root, const char *path)
{
    char text[512];
    double v;
    if (sys_read(root, path, text, sizeof text) <= 0)
        return -1;
    const char *full = strstr(text, "full avg10=");
    return full && sscanf(full, "full avg10=%lf", &v) == 1 ? v : -1;
}

int memory_read(struct memory *m, const char *root, struct err *e)
{
    char text[SMALL_FILE], path[600];
    struct cgroup g;
    *m = (struct memory){ .stalled10 = -1 };
    if (sys_read(root, "/proc/meminfo", text, sizeof text) < 0)
        return err_sys(e, "%s/proc/meminfo", root ? root : "");
    const long long total = sys_field(text, "MemTotal", -1), free_kib = sys_field(text, "MemFree", 0),
        cached = sys_field(text, "Cached", 0);
    /* kernels before 3.14 do not report it */
    const long long available = sys_field(text, "MemAvailable", free_kib + cached);
    if (total <= 0)
        return err_set(e, ERR_FORMAT, "%s/proc/meminfo: no MemTotal", root ? root : "");
    m->total = (uint64_t)total * KIB;
    m->available = (uint64_t)available * KIB;
    m->free = (uint64_t)free_kib * KIB;
    m->cached = (uint64_t)cached * KIB;
    m->swap_total = (uint64_t)sys_field(text, "SwapTotal", 0) * KIB;
    m->swap_free = (uint64_t)sys_field(text, "SwapFree", 0) * KIB;
    cgroup_find(&g, root, "memory");
    if (g.version == 2) {
        snprintf(path, sizeof path, "%s/memory.pressure", g.dir);
        m->stalled10 = stalled(root, path);
    }
    m->stalled_own = m->stalled10 >= 0;
    if (!m->stalled_own)
        m->stalled10 = stalled(root, "/proc/pressure/memory");
    for (int more = g.version != 0; more; more = cgroup_up(&g)) {
        uint64_t limit, hard, used;
        if (!group_limit(&g, root, &limit, &hard, &used))
            continue;
        if (count_limit(limit, used, m->total, &m->limit, &m->left))
            m->limit_version = g.version;
        count_limit(hard, used, m->total, &m->hard, &m->hard_left);
    }
    return 0;
}

uint64_t memory_most(const struct memory *m) { return m->limit ? m->limit : m->total; }
uint64_t memory_now(const struct memory *m) { return m->limit && m->left < m->available ? m->left : m->available; }

/* ---- pressure ---- */

enum pressure pressure_of(uint64_t used, uint64_t total)
{
    static const int from[] = { 0, 50, 75, 90, 97 };
    int level = PRESSURE_LOW;
    while (level < PRESSURE_OOM && (double)used * 100 >= (double)total * from[level + 1])
        level++;
    return (enum pressure)level;
}

int memory_below(uint64_t left, uint64_t most, double share, uint64_t bytes)
{
    return (double)left < share * (double)most && left < bytes;
}

int memory_runs_out(const struct memory *m)
{
    const uint64_t left = m->hard && m->hard_left < m->available ? m->hard_left : m->available;
    return memory_below(left, m->hard ? m->hard : m->total, 0.02, (uint64_t)256 << 20);
}

const char *pressure_name(enum pressure p)
{
    static const char *const names[] = { "LOW", "NORMAL", "HIGH", "CRITICAL", "OOM" };
    return names[p];
}
