/* machine.c - read the processor, memory, NUMA nodes and disks from /proc and /sys. */
#include "libcommon/hw/machine.h"

#include <ctype.h>
#include <dirent.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "libcommon/base/pool.h"
#include "libcommon/hw/sysfile.h"

enum { CPUINFO = 1 << 20, DMI_TABLE = 1 << 18, MANY_CPUS = 4096 };

/* ---- the processor ---- */

/* Copy VALUE from the first line "KEY : VALUE" to out.  Returns 1; 0: there is no such line. */
static int value_of(const char *text, const char *key, char *out, size_t room)
{
    const size_t n = strlen(key);
    for (const char *p = text; p && *p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL) {
        const char *colon = strchr(p, ':');
        if (strncmp(p, key, n) != 0 || !colon || strspn(p + n, " \t") != (size_t)(colon - p) - n)
            continue;
        colon += 1 + strspn(colon + 1, " \t");
        snprintf(out, room, "%.*s", (int)strcspn(colon, "\n"), colon);
        return 1;
    }
    out[0] = '\0';
    return 0;
}

static int has_word(const char *words, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = words; (p = strstr(p, word)); p += n)
        if ((p == words || p[-1] == ' ') && (p[n] == ' ' || !p[n]))
            return 1;
    return 0;
}

/* ARM processors have numbers instead of a name: implementer and part of MIDR_EL1.  Append the name
 * of each part that there is: big.LITTLE has several. */
static void name_arm(struct machine *m, const char *cpuinfo)
{
    static const struct { int implementer, part; const char *name; } parts[] = {
        { 0x41, 0xd03, "Cortex-A53" }, { 0x41, 0xd05, "Cortex-A55" }, { 0x41, 0xd07, "Cortex-A57" },
        { 0x41, 0xd08, "Cortex-A72" }, { 0x41, 0xd09, "Cortex-A73" }, { 0x41, 0xd0a, "Cortex-A75" },
        { 0x41, 0xd0b, "Cortex-A76" }, { 0x41, 0xd0c, "Neoverse N1" }, { 0x41, 0xd0d, "Cortex-A77" },
        { 0x41, 0xd40, "Neoverse V1" }, { 0x41, 0xd41, "Cortex-A78" }, { 0x41, 0xd44, "Cortex-X1" },
        { 0x41, 0xd46, "Cortex-A510" }, { 0x41, 0xd47, "Cortex-A710" }, { 0x41, 0xd48, "Cortex-X2" },
        { 0x41, 0xd49, "Neoverse N2" }, { 0x41, 0xd4d, "Cortex-A715" }, { 0x41, 0xd4e, "Cortex-X3" },
        { 0x41, 0xd4f, "Neoverse V2" }, { 0x41, 0xd80, "Cortex-A520" }, { 0x41, 0xd81, "Cortex-A720" },
        { 0x41, 0xd82, "Cortex-X4" }, { 0x41, 0xd84, "Neoverse V3" }, { 0x41, 0xd8e, "Neoverse N3" },
        { 0x46, 0x001, "A64FX" }, { 0x48, 0xd01, "TaiShan V110" }, { 0x4e, 0x004, "Carmel" },
        { 0xc0, 0xac3, "AmpereOne" }, { 0xc0, 0xac4, "AmpereOne A" },
    };
    char implementer[32], part[32], name[96];
    for (const char *p = cpuinfo; (p = strstr(p, "CPU implementer")); p++) {
        if (!value_of(p, "CPU implementer", implementer, sizeof implementer) ||
            !value_of(p, "CPU part", part, sizeof part))
            return;
        snprintf(name, sizeof name, "ARM implementer %s, part %s", implementer, part);
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            if (parts[i].implementer == strtol(implementer, NULL, 0) && parts[i].part == strtol(part, NULL, 0))
                snprintf(name, sizeof name, "%s", parts[i].name);
        const size_t n = strlen(m->cpu);
        if (!strstr(m->cpu, name))
            snprintf(m->cpu + n, sizeof m->cpu - n, "%s%s", n ? " + " : "", name);
    }
}

static void read_cpuinfo(struct machine *m, const char *root)
{
    /* In the kernel's spelling; asimd is NEON of 64-bit ARM. */
    static const char *const sets[] = { "sse4_2", "avx", "fma", "f16c", "avx2", "avx_vnni", "avx_vnni_int8", "avx512f",
                                        "avx512bw", "avx512vl", "avx512_vnni", "avx512vbmi", "avx512_bf16",
                                        "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm",
                                        "bf16", "sve", "sve2" };
    char *text = malloc(CPUINFO), *flags = malloc(8192);
    if (text && flags && sys_read(root, "/proc/cpuinfo", text, CPUINFO) > 0) {
        if (!value_of(text, "model name", m->cpu, sizeof m->cpu) && !value_of(text, "cpu model", m->cpu, sizeof m->cpu))
            name_arm(m, text);
        if (!*m->cpu)
            value_of(text, "Hardware", m->cpu, sizeof m->cpu);
        if (!value_of(text, "flags", flags, 8192))
            value_of(text, "Features", flags, 8192);
        for (size_t i = 0; i < sizeof sets / sizeof *sets && m->n_isa < MACHINE_ISA; i++)
            if (has_word(flags, sets[i]))
                m->isa[m->n_isa++] = sets[i];
        m->virtual_machine = has_word(flags, "hypervisor");
    }
    free(text);
    free(flags);
}

/* Count sockets and cores.  A processor is a core's first if it leads its own list of siblings. */
static void read_topology(struct machine *m, const char *root)
{
    char online[256], siblings[256];
    unsigned char package[MANY_CPUS / 8] = { 0 };
    if (sys_line(online, sizeof online, root, "/sys/devices/system/cpu/online") < 0)
        snprintf(online, sizeof online, "0-%d", root ? 0 : pool_n_cpus() - 1);
    for (const char *p = online; *p;) {
        char *end;
        long a = strtol(p, &end, 10), b = *end == '-' ? strtol(end + 1, &end, 10) : a;
        for (long i = a; i <= b && i < MANY_CPUS; i++) {
            int first = (int)i;
            if (sys_line(siblings, sizeof siblings, root,
                         "/sys/devices/system/cpu/cpu%ld/topology/thread_siblings_list", i) == 0)
                sys_list(siblings, &first);
            m->n_cpus++;
            m->n_cores += first == (int)i;
            long long socket = sys_number(0, root, "/sys/devices/system/cpu/cpu%ld/topology/physical_package_id", i);
            if (socket >= 0 && socket < MANY_CPUS && !(package[socket / 8] >> socket % 8 & 1)) {
                package[socket / 8] |= (unsigned char)(1 << socket % 8);
                m->n_sockets++;
            }
        }
        if (end == p || *end != ',')
            break;
        p = end + 1;
    }
    m->n_usable = root ? m->n_cpus : pool_n_cpus();
    m->max_mhz = (double)sys_number(0, root, "/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq") / 1e3;
    sys_line(m->governor, sizeof m->governor, root, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor");
}

static void read_caches(struct machine *m, const char *root)
{
    for (int i = 0; i < 16 && m->n_caches < MACHINE_CACHES; i++) {
        char type[32], size[32], shared[256], *unit;
        int first, level = (int)sys_number(0, root, "/sys/devices/system/cpu/cpu0/cache/index%d/level", i);
        if (level == 0 || sys_line(size, sizeof size, root, "/sys/devices/system/cpu/cpu0/cache/index%d/size", i) < 0 ||
            sys_line(type, sizeof type, root, "/sys/devices/system/cpu/cpu0/cache/index%d/type", i) < 0)
            continue;
        uint64_t n = strtoull(size, &unit, 10);
        n <<= *unit == 'K' ? 10 : *unit == 'M' ? 20 : 0;
        int sharing = sys_line(shared, sizeof shared, root,
                               "/sys/devices/system/cpu/cpu0/cache/index%d/shared_cpu_list",
                               i) == 0 ? sys_list(shared, &first) : 0;
        m->cache[m->n_caches].level = level;
        m->cache[m->n_caches].type = type[0];
        m->cache[m->n_caches].size = n;
        m->cache[m->n_caches++].n_sharing = sharing ? sharing : 1;
    }
}

static void read_quota(struct machine *m, const char *root)
{
    struct cgroup g;
    cgroup_find(&g, root, "cpu");
    for (int more = g.version != 0; more; more = cgroup_up(&g)) {
        char text[64];
        double quota = 0, period = 0;
        if (g.version == 2) {
            if (sys_line(text, sizeof text, root, "%s/cpu.max", g.dir) < 0 ||
                sscanf(text, "%lf %lf", &quota, &period) != 2)
                continue;
        } else {
            quota = (double)sys_number(-1, root, "%s/cpu.cfs_quota_us", g.dir);
            period = (double)sys_number(0, root, "%s/cpu.cfs_period_us", g.dir);
        }
        if (quota > 0 && period > 0 && (m->cpu_quota == 0 || quota / period < m->cpu_quota))
            m->cpu_quota = quota / period;
    }
}

/* ---- memory modules: SMBIOS, type 17 (DSP0134, section 7.18) ---- */

static void read_modules(struct machine *m, const char *root)
{
    char *table = malloc(DMI_TABLE);
    long n = table ? sys_read(root, "/sys/firmware/dmi/tables/DMI", table, DMI_TABLE) : -1;
    const uint8_t *t = (const uint8_t *)table;
    for (long at = 0; n >= 4 && at + 4 <= n;) {
        const long length = t[at + 1];
        if (length < 4 || at + length > n)
            break;
        /* a size of 0: an empty slot */
        if (t[at] == 17 && length >= 0x17 && (t[at + 0x0c] | t[at + 0x0d])) {
            const int rated = t[at + 0x15] | t[at + 0x16] << 8,
                      now = length >= 0x22 ? t[at + 0x20] | t[at + 0x21] << 8 : 0;
            m->n_modules++;
            m->module_mts = now > 0 && now < 0xffff ? now : rated;
        }
        for (at += length; at + 1 < n && (t[at] || t[at + 1]); at++)     /* two zeros end its strings */
            ;
        at += 2;
    }
    free(table);
}

/* ---- folders with one entry for each device ---- */

static int compare_names(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* List the names in root + path, sorted; returns their number.  Caller frees each and the array. */
static int list_folder(const char *root, const char *path, char ***names)
{
    char full[PATH_MAX];
    int n = 0, room = 0;
    *names = NULL;
    snprintf(full, sizeof full, "%s%s", root ? root : "", path);
    DIR *d = opendir(full);
    for (struct dirent *entry; d && (entry = readdir(d));) {
        if (entry->d_name[0] == '.')
            continue;
        if (n == room) {
            char **grown = realloc(*names, (size_t)(room = room ? 2 * room : 32) * sizeof *grown);
            if (!grown)
                break;
            *names = grown;
        }
        if (!((*names)[n] = strdup(entry->d_name)))
            break;
        n++;
    }
    if (d)
        closedir(d);
    if (n)
        qsort(*names, (size_t)n, sizeof **names, compare_names);
    return n;
}

static void free_names(char **names, int n)
{
    for (int i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

static void read_nodes(struct machine *m, const char *root)
{
    static const char folder[] = "/sys/devices/system/node";
    char **names, text[4096], path[256];
    int n = list_folder(root, folder, &names);
    for (int i = 0; i < n && m->n_nodes < MACHINE_NODES; i++) {
        int id, first;
        if (sscanf(names[i], "node%d", &id) != 1)
            continue;
        snprintf(path, sizeof path, "%s/node%d/meminfo", folder, id);
        if (sys_read(root, path, text, sizeof text) < 0)
            continue;
        /* lines begin with "Node N " */
        const char *total = strstr(text, "MemTotal:"), *left = strstr(text, "MemFree:");
        m->node[m->n_nodes].id = id;
        m->node[m->n_nodes].total = total ? strtoull(total + 9, NULL, 10) << 10 : 0;
        m->node[m->n_nodes].free = left ? strtoull(left + 8, NULL, 10) << 10 : 0;
        m->node[m->n_nodes++].n_cpus = sys_line(text, sizeof text, root, "%s/node%d/cpulist", folder, id) == 0
                                           ? sys_list(text, &first) : 0;
    }
    free_names(names, n);
}

static void read_disks(struct machine *m, const char *root)
{
    static const char *const no_disk[] = { "loop", "ram", "zram", "dm-", "md", "sr", "fd" };
    char **names;
    int n = list_folder(root, "/sys/block", &names);
    for (int i = 0; i < n && m->n_disks < MACHINE_DISKS; i++) {
        int skip = strlen(names[i]) >= sizeof m->disk[0].name;
        for (size_t k = 0; k < sizeof no_disk / sizeof *no_disk; k++)
            skip |= strncmp(names[i], no_disk[k], strlen(no_disk[k])) == 0;
        const long long sectors = sys_number(0, root, "/sys/block/%s/size", names[i]);
        if (skip || sectors <= 0)
            continue;
        m->disk[m->n_disks].size = (uint64_t)sectors * 512;
        snprintf(m->disk[m->n_disks].name, sizeof m->disk[0].name, "%s", names[i]);
        if (sys_line(m->disk[m->n_disks].model, sizeof m->disk[0].model, root, "/sys/block/%s/device/model",
                     names[i]) < 0)
            m->disk[m->n_disks].model[0] = '\0';
        m->disk[m->n_disks++].kind = strncmp(names[i], "nvme", 4) == 0 ? "nvme" : strncmp(names[i], "vd", 2) == 0 ||
                                     strncmp(names[i], "xvd", 3) == 0 ? "virtual" :
                                     sys_number(0, root, "/sys/block/%s/queue/rotational", names[i]) ? "hdd" : "ssd";
    }
    free_names(names, n);
}

static void read_huge_pages(struct machine *m, const char *root)
{
    char text[64];
    if (sys_line(text, sizeof text, root, "/sys/kernel/mm/transparent_hugepage/enabled") == 0) {
        const char *open = strchr(text, '[');
        if (open)
            snprintf(m->thp, sizeof m->thp, "%.*s", (int)strcspn(open + 1, "]"), open + 1);
    }
    m->huge_2m = (uint64_t)sys_number(0, root, "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages");
    m->huge_2m_free = (uint64_t)sys_number(0, root, "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    m->huge_1g = (uint64_t)sys_number(0, root, "/sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages");
}

int machine_probe(struct machine *m, const char *root, struct err *e)
{
    *m = (struct machine){ 0 };
    if (memory_read(&m->memory, root, e) != 0)
        return -1;
    read_cpuinfo(m, root);
    read_topology(m, root);
    read_caches(m, root);
    read_quota(m, root);
    read_modules(m, root);
    read_nodes(m, root);
    read_disks(m, root);
    read_huge_pages(m, root);
    if (root) {
        snprintf(m->no_gpu, sizeof m->no_gpu, "not asked: --root describes another machine");
    } else {
        m->page = (uint64_t)sysconf(_SC_PAGESIZE);
        m->n_gpus = machine_gpus(m->gpu, MACHINE_GPUS, m->no_gpu);
    }
    return 0;
}

int machine_has(const struct machine *m, const char *isa)
{
    for (int i = 0; i < m->n_isa; i++)
        if (strcmp(m->isa[i], isa) == 0)
            return 1;
    return 0;
}

int machine_threads(const struct machine *m)
{
    int twins = m->n_cores > 0 ? m->n_cpus / m->n_cores : 1, n = m->n_usable / (twins > 0 ? twins : 1);
    if (m->cpu_quota > 0 && n > (int)m->cpu_quota)
        n = (int)m->cpu_quota;
    return n > 0 ? n : 1;
}
