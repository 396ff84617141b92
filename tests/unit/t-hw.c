/* t-hw.c - probe prepared trees of /proc and /sys: processors, control groups of both versions,
 * memory, disks, modules. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libcommon/base/err.h"
#include "libcommon/base/pool.h"
#include "libcommon/hw/machine.h"
#include "libcommon/hw/sysfile.h"

static char root[] = "/tmp/zse-t-hw-XXXXXX";

/* Write a file below the root, with its folders. */
static void put_bytes(const char *path, const void *data, size_t n)
{
    char full[600];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = strchr(full + 1, '/'); p; p = strchr(p + 1, '/')) {
        *p = '\0';
        assert_true(mkdir(full, 0777) == 0 || errno == EEXIST);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void put(const char *path, const char *text) { put_bytes(path, text, strlen(text)); }

static int fresh(void **state)
{
    (void)state;
    strcpy(root, "/tmp/zse-t-hw-XXXXXX");
    if (!mkdtemp(root))
        return -1;
    put("/proc/meminfo", "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:    9000000 kB\nCached:  7000000 kB\nSwapTotal: 100 kB\nSwapFree: 50 kB\n");
    return 0;
}

static int remove_all(void **state)
{
    char command[100];
    (void)state;
    snprintf(command, sizeof command, "rm -r %s", root);
    return system(command);
}

static void small_files_are_read_as_lines_and_numbers(void **state)
{
    char out[32];
    int first;
    (void)state;
    put("/a", "  12 \nx\n");
    assert_int_equal(sys_line(out, sizeof out, root, "/%s", "a"), 0);
    assert_string_equal(out, "12");
    assert_int_equal(sys_number(7, root, "/a"), 12);
    assert_int_equal(sys_number(7, root, "/none"), 7);
    put("/b", "max\n");
    assert_int_equal(sys_number(-1, root, "/b"), -1);
    assert_int_equal(sys_field("MemTotal:  12 kB\nMem: 3\nx 4\n", "Mem", -1), 3);
    assert_int_equal(sys_field("MemTotal:  12 kB\nx 4\n", "x", -1), 4);
    assert_int_equal(sys_field("MemTotal:  12 kB\n", "MemFree", -1), -1);
    assert_int_equal(sys_list("0-3,8,10-11", &first), 7);
    assert_int_equal(first, 0);
    assert_int_equal(sys_list("5\n", &first), 1);
    assert_int_equal(first, 5);
    assert_int_equal(sys_list("", &first), 0);
    assert_int_equal(sys_list("3-x", &first), 0);
}

static void memory_is_read_without_cgroups(void **state)
{
    struct memory m;
    struct err e;
    (void)state;
    assert_int_equal(memory_read(&m, root, &e), 0);
    assert_true(m.total == 16000000ull << 10 && m.available == 9000000ull << 10 && m.limit == 0 && m.stalled10 < 0);
    assert_true(memory_most(&m) == m.total && memory_now(&m) == m.available);
    put("/proc/pressure/memory", "some avg10=1.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=12.50 avg60=0.00 avg300=0.00 total=1\n");
    assert_int_equal(memory_read(&m, root, &e), 0);
    assert_true(m.stalled10 == 12.5 && !m.stalled_own && m.hard == 0);
    put("/proc/meminfo", "MemFree: 5 kB\n");
    assert_int_equal(memory_read(&m, root, &e), -1);
    assert_non_null(strstr(e.msg, "MemTotal"));
}

#define V2_MOUNT "31 30 0:29 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n"

/* A limit of 2 GiB on a control group applies to a process two levels below it.  Page cache does
 * not count as used. */
static void memory_of_a_group(void **state)
{
    struct memory m;
    struct err e;
    (void)state;
    put("/proc/self/cgroup", "0::/a/b/c\n");
    put("/proc/self/mountinfo", "20 19 0:5 / /dev rw - devtmpfs udev rw\n" V2_MOUNT);
    put("/sys/fs/cgroup/a/memory.max", "2147483648\n");
    put("/sys/fs/cgroup/a/memory.current", "1500000000\n");
    put("/sys/fs/cgroup/a/memory.stat", "anon 400000000\nfile 1100000000\ninactive_file 600000000\nactive_file 500000000\n");
    put("/sys/fs/cgroup/a/b/c/memory.max", "max\n");
    put("/sys/fs/cgroup/a/b/c/memory.current", "1\n");
    put("/sys/fs/cgroup/a/b/c/memory.pressure", "some avg10=9.00\nfull avg10=3.00 avg60=0.00 avg300=0.00 total=1\n");
    assert_int_equal(memory_read(&m, root, &e), 0);
    assert_true(m.limit == 2147483648u && m.left == 2147483648u - 400000000u && m.limit_version == 2 &&
                m.stalled10 == 3 && m.stalled_own && m.hard == m.limit && m.hard_left == m.left);
    assert_true(memory_most(&m) == 2147483648u && memory_now(&m) == m.left);
    put("/sys/fs/cgroup/a/b/memory.high", "1073741824\n");      /* beyond memory.high the kernel
                                                                 * throttles, so it counts as a
                                                                 * limit */
    put("/sys/fs/cgroup/a/b/memory.max", "max\n");
    put("/sys/fs/cgroup/a/b/memory.current", "100\n");
    assert_int_equal(memory_read(&m, root, &e), 0);
    assert_true(m.limit == 1073741824 && m.left == 1073741724 && m.hard == 2147483648u && m.hard_left == 2147483648u -
                400000000u);
    put("/sys/fs/cgroup/a/b/memory.high", "99999999999999\n");  /* more than the machine has: no limit */
    assert_int_equal(memory_read(&m, root, &e), 0);
    assert_true(m.limit == 2147483648u);
}

/* In a container the root of the mount is the container's own control group, or the path is that of
 * another namespace. */
static void group_of_a_container(void **state)
{
    struct cgroup g;
    struct memory m;
    struct err e;
    (void)state;
    put("/proc/self/cgroup", "0::/docker/1234/x\n");
    put("/proc/self/mountinfo", "31 30 0:29 /docker/1234 /sys/fs/cgroup rw - cgroup2 cgroup rw\n");
    cgroup_find(&g, root, "memory");
    assert_int_equal(g.version, 2);
    assert_string_equal(g.dir, "/sys/fs/cgroup/x");
    assert_true(cgroup_up(&g));
    assert_string_equal(g.dir, "/sys/fs/cgroup");
    assert_false(cgroup_up(&g));
    put("/proc/self/cgroup", "0::/\n");
    put("/sys/fs/cgroup/memory.max", "2000000000\n");
    put("/sys/fs/cgroup/memory.current", "2000000001\n");
    assert_int_equal(memory_read(&m, root, &e), 0);
    assert_true(m.limit == 2000000000 && m.left == 0);
}

static void group_of_version_1(void **state)
{
    struct cgroup g;
    struct memory m;
    struct err e;
    (void)state;
    put("/proc/self/cgroup", "9:name=systemd:/\n4:memory,hugetlb:/job\n1:cpu,cpuacct:/half\n0::/other\n");
    put("/proc/self/mountinfo", V2_MOUNT "35 31 0:32 / /cg/memory rw,relatime - cgroup cgroup rw,hugetlb,memory\n36 31 0:33 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n");
    cgroup_find(&g, root, "memory");
    assert_int_equal(g.version, 1);
    assert_string_equal(g.dir, "/cg/memory/job");
    put("/cg/memory/job/memory.limit_in_bytes", "2147483648\n");
    put("/cg/memory/job/memory.usage_in_bytes", "147483648\n");
    put("/cg/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 40000000\ntotal_active_file 7483648\n");
    put("/cg/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/cg/memory/memory.usage_in_bytes", "1\n");
    assert_int_equal(memory_read(&m, root, &e), 0);
    assert_true(m.limit == 2147483648u && m.left == 2147483648u - 100000000u && m.limit_version == 1);
    put("/cg/cpu/half/cpu.cfs_quota_us", "150000\n");
    put("/cg/cpu/half/cpu.cfs_period_us", "100000\n");
    put("/cg/cpu/cpu.cfs_quota_us", "-1\n");
    put("/cg/cpu/cpu.cfs_period_us", "100000\n");
    struct machine *p = malloc(sizeof *p);
    assert_non_null(p);
    assert_int_equal(machine_probe(p, root, &e), 0);
    assert_true(p->cpu_quota == 1.5 && machine_threads(p) == 1);
    free(p);
}

static void put_cpu(int i, const char *siblings, int package)
{
    char path[100], text[16];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", i);
    put(path, siblings);
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/physical_package_id", i);
    snprintf(text, sizeof text, "%d\n", package);
    put(path, text);
}

static void a_whole_machine_is_described(void **state)
{
    struct machine *m = malloc(sizeof *m);
    struct err e;
    (void)state;
    assert_non_null(m);
    put("/proc/cpuinfo", "processor\t: 0\nmodel\t\t: 7\nmodel name\t: Some CPU @ 3 GHz\nflags\t\t: fpu sse4_2 avx avx2x fma avx512f\n\nprocessor\t: 1\nmodel name\t: other\n");
    put("/sys/devices/system/cpu/online", "0-7\n");
    for (int i = 0; i < 8; i++) {               /* 4 cores of 2 threads, in 2 packages */
        char siblings[16];
        snprintf(siblings, sizeof siblings, "%d,%d\n", i % 4, i % 4 + 4);
        put_cpu(i, siblings, i % 4 / 2);
    }
    put("/sys/devices/system/cpu/cpu0/cache/index0/level", "1\n");
    put("/sys/devices/system/cpu/cpu0/cache/index0/type", "Data\n");
    put("/sys/devices/system/cpu/cpu0/cache/index0/size", "48K\n");
    put("/sys/devices/system/cpu/cpu0/cache/index0/shared_cpu_list", "0,4\n");
    put("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n");
    put("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "3500000\n");
    put("/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:  1000 kB\nNode 0 MemFree:    10 kB\n");
    put("/sys/devices/system/node/node0/cpulist", "0-1,4-5\n");
    put("/sys/devices/system/node/node1/meminfo", "Node 1 MemTotal:  2000 kB\nNode 1 MemFree:    20 kB\n");
    put("/sys/devices/system/node/node1/cpulist", "2-3,6-7\n");
    put("/sys/block/nvme0n1/size", "2000\n");
    put("/sys/block/nvme0n1/device/model", "A Disk          \n");
    put("/sys/block/sda/size", "4000\n");
    put("/sys/block/sda/queue/rotational", "1\n");
    put("/sys/block/loop0/size", "4000\n");
    put("/sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never\n");
    put("/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", "3\n");
    assert_int_equal(machine_probe(m, root, &e), 0);
    assert_string_equal(m->cpu, "Some CPU @ 3 GHz");
    assert_true(machine_has(m, "avx512f") && machine_has(m, "avx") && !machine_has(m, "avx2") && !m->virtual_machine);
    assert_true(m->n_cpus == 8 && m->n_cores == 4 && m->n_sockets == 2 && machine_threads(m) == 4 &&
                m->max_mhz == 3500);
    assert_true(m->n_caches == 1 && m->cache[0].size == 48 << 10 && m->cache[0].n_sharing == 2 &&
                m->cache[0].type == 'D');
    assert_true(m->n_nodes == 2 && m->node[1].total == 2000 << 10 && m->node[1].free == 20 << 10 &&
                m->node[1].n_cpus == 4);
    assert_true(m->n_disks == 2 && m->disk[0].size == 1024000);
    assert_string_equal(m->disk[0].kind, "nvme");
    assert_string_equal(m->disk[0].model, "A Disk");
    assert_string_equal(m->disk[1].kind, "hdd");
    assert_string_equal(m->thp, "madvise");
    assert_string_equal(m->governor, "powersave");
    assert_true(m->huge_2m == 3 && m->page == 0 && m->n_gpus == 0 && *m->no_gpu);
    free(m);
}

/* ARM processors have numbers instead of names: a known part, an unknown one, and two kinds of
 * cores. */
static void arm_processors_get_names_from_their_numbers(void **state)
{
    struct machine *m = malloc(sizeof *m);
    struct err e;
    (void)state;
    assert_non_null(m);
    put("/proc/cpuinfo", "processor\t: 0\nFeatures\t: fp asimd asimddp\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n");
    assert_int_equal(machine_probe(m, root, &e), 0);
    assert_string_equal(m->cpu, "Neoverse N1");
    assert_true(machine_has(m, "asimddp") && !machine_has(m, "i8mm"));
    put("/proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xfff\n");
    assert_int_equal(machine_probe(m, root, &e), 0);
    assert_string_equal(m->cpu, "ARM implementer 0x41, part 0xfff");
    put("/proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd05\n\n"
                         "processor\t: 1\nCPU implementer\t: 0x41\nCPU part\t: 0xd05\n\n"
                         "processor\t: 2\nCPU implementer\t: 0x41\nCPU part\t: 0xd0b\n");
    assert_int_equal(machine_probe(m, root, &e), 0);
    assert_string_equal(m->cpu, "Cortex-A55 + Cortex-A76");
    free(m);
}

/* Of two small and two large processors only the large ones count, because steps would wait for the
 * small ones. */
static void big_and_little(void **state)
{
    cpu_set_t set;
    (void)state;
    CPU_ZERO(&set);
    for (int i = 0; i < 4; i++)
        CPU_SET(i, &set);
    for (int i = 0; i < 4; i++) {
        char path[80];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpu_capacity", i);
        put(path, i < 2 ? "446\n" : "1024\n");
        assert_int_equal(pool_big_cpus(&set, root), i < 3 ? 4 : 2);     /* all four count until
                                                                         * every processor has a
                                                                         * capacity */
    }
    CPU_CLR(2, &set), CPU_CLR(3, &set);
    assert_int_equal(pool_big_cpus(&set, root), 2);                     /* of the small ones, both */
}

/* SMBIOS: two of three slots hold a module; a truncated table is read as far as it goes. */
static void memory_modules_are_read_from_smbios(void **state)
{
    uint8_t table[256] = { 0 };
    size_t n = 0;
    struct machine *m = malloc(sizeof *m);
    struct err e;
    (void)state;
    assert_non_null(m);
    for (int i = 0; i < 4; i++) {
        table[n] = i == 0 ? 4 : 17;
        table[n + 1] = 0x22;
        table[n + 0x0c] = (uint8_t)(i == 2 ? 0 : 0x10);
        table[n + 0x15] = 0x80, table[n + 0x16] = 0x0c;         /* 3200 */
        table[n + 0x20] = 0x68, table[n + 0x21] = 0x0b;         /* runs at 2920 */
        memcpy(table + n + 0x22, "DIMM\0\0", 6);
        n += 0x22 + 6;
    }
    for (size_t cut = 0; cut <= n; cut++) {
        put_bytes("/sys/firmware/dmi/tables/DMI", table, cut);
        assert_int_equal(machine_probe(m, root, &e), 0);
        assert_true(m->n_modules <= 2 && (m->n_modules == 0 || m->module_mts == 2920));
    }
    assert_int_equal(m->n_modules, 2);
    free(m);
}

static void pressure_levels_follow_the_used_share(void **state)
{
    static const struct { int used; enum pressure level; } all[] = {
        { 49, PRESSURE_LOW }, { 60, PRESSURE_NORMAL }, { 80, PRESSURE_HIGH }, { 95, PRESSURE_CRITICAL },
            { 100, PRESSURE_OOM }, { 120, PRESSURE_OOM },
    };
    (void)state;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_int_equal(pressure_of((uint64_t)all[i].used, 100), all[i].level);
    assert_string_equal(pressure_name(PRESSURE_CRITICAL), "CRITICAL");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(small_files_are_read_as_lines_and_numbers, fresh, remove_all),
        cmocka_unit_test_setup_teardown(memory_is_read_without_cgroups, fresh, remove_all),
        cmocka_unit_test_setup_teardown(memory_of_a_group, fresh, remove_all),
        cmocka_unit_test_setup_teardown(group_of_a_container, fresh, remove_all),
        cmocka_unit_test_setup_teardown(group_of_version_1, fresh, remove_all),
        cmocka_unit_test_setup_teardown(a_whole_machine_is_described, fresh, remove_all),
        cmocka_unit_test_setup_teardown(arm_processors_get_names_from_their_numbers, fresh, remove_all),
        cmocka_unit_test_setup_teardown(big_and_little, fresh, remove_all),
        cmocka_unit_test_setup_teardown(memory_modules_are_read_from_smbios, fresh, remove_all),
        cmocka_unit_test(pressure_levels_follow_the_used_share),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
