/* hardware_check.c - zse-hardware check: suggest settings that make this machine faster.  It
 * changes nothing. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cmd/cli.h"
#include "cmd/zse-hardware.h"

static const char prog[] = "zse-hardware";

/* Add a result.  status: "ok", "info" or "warning"; command: to be typed by the user, or NULL. */
static void add(json_t *all, const char *name, const char *status, const char *command, const char *fmt,
                ...) __attribute__((format(printf, 5, 6)));

static void add(json_t *all, const char *name, const char *status, const char *command, const char *fmt, ...)
{
    char text[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    json_array_append_new(all, json_pack("{s:s, s:s, s:s, s:s?}", "name", name, "status", status, "message", text,
                                         "command", command));
}

static void check_cpu(json_t *all, const struct machine *m)
{
    if (!*m->governor)
        add(all, "governor", "ok", NULL, "the clock is not controlled by this system%s",
            m->virtual_machine ? " (virtual machine)" : "");
    else if (strcmp(m->governor, "performance") == 0)
        add(all, "governor", "ok", NULL, "performance");
    else
        add(all, "governor", "warning", "echo performance | sudo tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
            "the governor is %s: after a pause the clock rises slowly", m->governor);
    const char *best = machine_has(m, "amx_int8") ? "amx_int8" : machine_has(m, "avx512_vnni") ? "avx512_vnni"
        : machine_has(m, "avx_vnni") ? "avx_vnni" :
        machine_has(m, "avx2") ? "avx2" : machine_has(m, "i8mm") ? "i8mm" : machine_has(m, "asimddp") ? "asimddp"
        : machine_has(m, "asimd") ? "asimd" : NULL;
    if (best)
        add(all, "simd", "ok", NULL, "%s", best);
    else
        add(all, "simd", "warning", NULL, "no AVX2: the kernels in plain C are used%s",
            m->virtual_machine ? "; let the virtual machine use the host's CPU model" : "");
    if (m->cpu_quota > 0 && m->cpu_quota < m->n_usable) {
        char command[80];
        snprintf(command, sizeof command, "zse-serve --threads %d MODEL", machine_threads(m));
        add(all, "quota", "warning", command, "the control group allows %.4g of %d processors: more threads than that are throttled in the middle of a step", m->cpu_quota, m->n_usable);
    } else {
        add(all, "quota", "ok", NULL, "no limit on processors");
    }
    if (m->n_cores > 0 && m->n_cpus > m->n_cores && m->n_usable > m->n_cores)
        add(all, "smt", "info", "zse-bench threads MODEL",
            "%d processors on %d core%s: decoding is bound by memory, so one thread a core may do as well; measure it",
            m->n_cpus, m->n_cores, plural(m->n_cores));
    else
        add(all, "smt", "ok", NULL, "every processor is a core");
}

/* Bytes of a transparent huge page: what one page of page table entries, of 8 bytes, describes. */
static uint64_t huge_page(const struct machine *m)
{
    const uint64_t page = m->page ? m->page : 4096;
    return page / 8 * page;
}

static void check_memory(json_t *all, const struct machine *m)
{
    const struct memory *y = &m->memory;
    const uint64_t most = memory_most(y), now = memory_now(y) < most ? memory_now(y) : most;
    const enum pressure p = pressure_of(most - now, most);
    char a[CLI_BYTES], b[CLI_BYTES];
    if (p >= PRESSURE_HIGH)
        add(all, "memory", "warning", "ps -eo rss,pid,comm --sort=-rss | head", "pressure %s: %s of %s left",
            pressure_name(p), cli_bytes(a, now), cli_bytes(b, most));
    else
        add(all, "memory", "ok", NULL, "pressure %s: %s of %s left", pressure_name(p), cli_bytes(a, now),
            cli_bytes(b, most));
    if (y->limit)
        add(all, "cgroup", "info", NULL, "the control group allows %s of the machine's %s", cli_bytes(a, y->limit),
            cli_bytes(b, y->total));
    if (y->stalled10 >= 1)
        add(all, "stalls", "warning", "cat /proc/pressure/memory",
            "in the last 10 s all tasks waited for memory %.0f %% of the time", y->stalled10);
    if (y->swap_total && y->swap_free < y->swap_total / 2)
        add(all, "swap", "warning", "sudo swapoff -a && sudo swapon -a",
            "%s of swap are in use: reading it back is slow", cli_bytes(a, y->swap_total - y->swap_free));
    if (strcmp(m->thp, "always") == 0)
        add(all, "huge_pages", "ok", NULL, "transparent huge pages: always");
    else if (*m->thp)
        add(all, "huge_pages", "info", "echo always | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
            "transparent huge pages: %s; with always the kernel puts keys, values and activations on pages of %llu MiB",
            m->thp, (unsigned long long)huge_page(m) >> 20);
    if (m->huge_2m + m->huge_1g > 0) {
        const uint64_t bytes = (m->huge_2m << 21) + (m->huge_1g << 30);
        add(all, "huge_pages_set_aside", bytes > most / 20 ? "warning" : "info",
            m->huge_1g == 0 ? "sudo sysctl vm.nr_hugepages=0"
                            : "echo 0 | sudo tee /sys/kernel/mm/hugepages/hugepages-*/nr_hugepages",
                            "%s are set aside as huge pages, which no program of ZSE uses",
            cli_bytes(a, bytes));
    }
    if (m->n_nodes > 1)
        add(all, "numa", "info", "vmtouch -e MODEL", "%d NUMA nodes: threads stay on their nodes, and a model's pages lie on the node that first reads them, which may be another program's",
            m->n_nodes);
    else
        add(all, "numa", "ok", NULL, "one node");
    if (m->n_modules == 1)
        add(all, "channels", "warning", NULL, "one memory module: a second one doubles the memory bandwidth");
}

static void check_devices(json_t *all, const struct machine *m)
{
    for (int i = 0; i < m->n_gpus; i++)
        if (m->gpu[i].pcie_width && m->gpu[i].pcie_width < m->gpu[i].pcie_width_most)
            add(all, "pcie", "warning", NULL, "GPU %d (%s) runs on %d PCIe lanes of %d: another slot loads models faster", i, m->gpu[i].name, m->gpu[i].pcie_width,
                m->gpu[i].pcie_width_most);
    int only_hdd = m->n_disks > 0;
    for (int i = 0; i < m->n_disks; i++)
        only_hdd &= strcmp(m->disk[i].kind, "hdd") == 0;
    if (only_hdd)
        add(all, "disk", "warning", NULL, "all disks are hard disks: the first start reads a model at about 0.2 GB/s");
}

int hardware_check(const struct hardware_options *o)
{
    struct machine m;
    struct err e;
    if (machine_probe(&m, o->root, &e) != 0)
        return cli_fail(prog, &e);
    json_t *all = json_array(), *one;
    size_t i;
    int warnings = 0;
    check_cpu(all, &m);
    check_memory(all, &m);
    check_devices(all, &m);
    json_array_foreach(all, i, one)
        warnings += strcmp(json_string_value(json_object_get(one, "status")), "warning") == 0;
    if (o->json) {
        json_t *j = json_pack("{s:i, s:o}", "warnings", warnings, "checks", all);
        cli_json(j);
        json_decref(j);
        return cli_finish(prog);
    }
    json_array_foreach(all, i, one) {
        const char *command = json_string_value(json_object_get(one, "command"));
        printf("%-8s %-14s %s\n", json_string_value(json_object_get(one, "status")),
               json_string_value(json_object_get(one, "name")), json_string_value(json_object_get(one, "message")));
        if (command)
            printf("%-24s$ %s\n", "", command);
    }
    json_decref(all);
    return cli_finish(prog);
}
