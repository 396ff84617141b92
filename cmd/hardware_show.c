/* hardware_show.c - print the machine as text and as JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/cli.h"
#include "cmd/zse-hardware.h"
#include "cmd/roofline_show.h"

static const char prog[] = "zse-hardware";

static json_t *number_or_null(double v) { return v > 0 ? json_real(v) : json_null(); }
static json_t *text_or_null(const char *s) { return *s ? json_string(s) : json_null(); }

static json_t *cpu_json(const struct machine *m)
{
    json_t *isa = json_array(), *caches = json_array();
    for (int i = 0; i < m->n_isa; i++)
        json_array_append_new(isa, json_string(m->isa[i]));
    for (int i = 0; i < m->n_caches; i++) {
        const char type[2] = { m->cache[i].type, '\0' };
        json_array_append_new(caches, json_pack("{s:i, s:s, s:I, s:i}", "level", m->cache[i].level, "type",
                                                type[0] == 'D' ? "data" : type[0] == 'I' ? "instruction" : "unified",
                                                "bytes", (json_int_t)m->cache[i].size, "shared_by",
                                                m->cache[i].n_sharing));
    }
    return json_pack("{s:o, s:i, s:i, s:i, s:i, s:i, s:o, s:o, s:o, s:b, s:o, s:o}", "model", text_or_null(m->cpu),
                     "sockets", m->n_sockets, "cores", m->n_cores, "processors", m->n_cpus, "threads_per_core",
                     m->n_cores ? m->n_cpus / m->n_cores : 1, "usable", m->n_usable, "quota",
                     number_or_null(m->cpu_quota), "max_mhz", number_or_null(m->max_mhz), "governor",
                     text_or_null(m->governor), "virtual", m->virtual_machine, "isa", isa, "caches", caches);
}

static json_t *memory_json(const struct machine *m)
{
    const struct memory *y = &m->memory;
    json_t *j = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I}", "total_bytes", (json_int_t)y->total, "available_bytes",
                          (json_int_t)y->available, "free_bytes", (json_int_t)y->free, "cached_bytes",
                          (json_int_t)y->cached, "swap_total_bytes", (json_int_t)y->swap_total, "swap_free_bytes",
                          (json_int_t)y->swap_free);
    json_object_set_new(j, "cgroup", y->limit ? json_pack("{s:i, s:I, s:I}", "version", y->limit_version, "limit_bytes",
                                                          (json_int_t)y->limit, "left_bytes", (json_int_t)y->left)
                                              : json_null());
    json_object_set_new(j, "usable_bytes", json_integer((json_int_t)memory_now(y)));
    json_object_set_new(j, "pressure", json_string(pressure_name(pressure_of(memory_most(y) -
                                                                             (memory_now(y) < memory_most(y)
                                                                              ? memory_now(y) : memory_most(y)),
                                                                              memory_most(y)))));
    json_object_set_new(j, "stalled_percent", y->stalled10 < 0 ? json_null() : json_real(y->stalled10));
    json_object_set_new(j, "modules", m->n_modules
                        ? json_pack("{s:i, s:i}", "number", m->n_modules, "mt_per_s", m->module_mts) : json_null());
    json_object_set_new(j, "page_bytes", m->page ? json_integer((json_int_t)m->page) : json_null());
    json_object_set_new(j, "huge_pages", json_pack("{s:o, s:I, s:I, s:I}", "transparent", text_or_null(m->thp),
                                                   "pages_2m", (json_int_t)m->huge_2m, "free_2m",
                                                   (json_int_t)m->huge_2m_free, "pages_1g", (json_int_t)m->huge_1g));
    return j;
}

static json_t *gpu_json(const struct machine_gpu *g, int i)
{
    char capability[16];
    snprintf(capability, sizeof capability, "%d.%d", g->major, g->minor);
    return json_pack("{s:i, s:s, s:I, s:I, s:s, s:i, s:i, s:i, s:i, s:s}", "id", i, "name", g->name, "total_bytes",
                     (json_int_t)g->total, "free_bytes", (json_int_t)g->free, "compute_capability", capability,
                     "pcie_generation", g->pcie_gen, "pcie_width", g->pcie_width, "pcie_generation_max",
                     g->pcie_gen_most, "pcie_width_max", g->pcie_width_most, "driver", g->driver);
}

static json_t *machine_json(const struct machine *m)
{
    json_t *nodes = json_array(), *disks = json_array(), *gpus = json_array();
    for (int i = 0; i < m->n_nodes; i++)
        json_array_append_new(nodes, json_pack("{s:i, s:i, s:I, s:I}", "id", m->node[i].id, "processors",
                                               m->node[i].n_cpus, "total_bytes", (json_int_t)m->node[i].total,
                                               "free_bytes", (json_int_t)m->node[i].free));
    for (int i = 0; i < m->n_disks; i++)
        json_array_append_new(disks, json_pack("{s:s, s:o, s:s, s:I}", "name", m->disk[i].name, "model",
                                               text_or_null(m->disk[i].model), "kind", m->disk[i].kind, "bytes",
                                               (json_int_t)m->disk[i].size));
    for (int i = 0; i < m->n_gpus; i++)
        json_array_append_new(gpus, gpu_json(&m->gpu[i], i));
    json_t *j = json_pack("{s:o, s:o, s:o, s:o, s:o}", "cpu", cpu_json(m), "memory", memory_json(m), "numa", nodes,
                          "disks", disks, "gpus", gpus);
    if (m->n_gpus == 0)
        json_object_set_new(j, "no_gpu", json_string(m->no_gpu));
    return j;
}

/* ---- text ---- */

static void print_cpu(const struct machine *m)
{
    char size[CLI_BYTES];
    printf("processor     %s%s\n", *m->cpu ? m->cpu : "unknown", m->virtual_machine ? " (virtual machine)" : "");
    printf("cores         %d in %d socket%s, %d processor%s", m->n_cores, m->n_sockets, plural(m->n_sockets), m->n_cpus,
           plural(m->n_cpus));
    if (m->n_usable != m->n_cpus)
        printf(", %d usable by this process", m->n_usable);
    if (m->cpu_quota > 0)
        printf(", control group allows %.2g", m->cpu_quota);
    printf("\ninstructions ");
    for (int i = 0; i < m->n_isa; i++)
        printf(" %s", m->isa[i]);
    printf("%s\ncaches       ", m->n_isa ? "" : " none of those that are used here");
    for (int i = 0; i < m->n_caches; i++)
        if (m->cache[i].type != 'I')
            printf(" L%d %s%s", m->cache[i].level, cli_bytes(size, m->cache[i].size),
                   m->cache[i].n_sharing > 1 ? " shared" : "");
    printf("%s\n", m->n_caches ? "" : " unknown");
    if (*m->governor)
        printf("governor      %s\n", m->governor);
}

static void print_memory(const struct machine *m)
{
    const struct memory *y = &m->memory;
    char a[CLI_BYTES], b[CLI_BYTES];
    printf("memory        %s, %s available", cli_bytes_both(a, y->total), cli_bytes(b, y->available));
    if (m->n_modules)
        printf(", %d modules at %d MT/s", m->n_modules, m->module_mts);
    if (m->page && m->page != 4096)
        printf(", pages of %llu KiB", (unsigned long long)m->page >> 10);
    printf("\n");
    if (y->limit)
        printf("control group %s at most, %s left (version %d)\n", cli_bytes_both(a, y->limit), cli_bytes(b, y->left),
               y->limit_version);
    if (y->swap_total)
        printf("swap          %s, %s free\n", cli_bytes(a, y->swap_total), cli_bytes(b, y->swap_free));
    if (*m->thp || m->huge_2m || m->huge_1g)
        printf("huge pages    transparent: %s; set aside: %llu of 2 MiB, %llu of 1 GiB\n", *m->thp ? m->thp : "unknown",
               (unsigned long long)m->huge_2m, (unsigned long long)m->huge_1g);
    for (int i = 0; m->n_nodes > 1 && i < m->n_nodes; i++)
        printf("NUMA node %-3d %d processor%s, %s, %s free\n", m->node[i].id, m->node[i].n_cpus,
               plural(m->node[i].n_cpus), cli_bytes(a, m->node[i].total), cli_bytes(b, m->node[i].free));
}

static void print_devices(const struct machine *m)
{
    char a[CLI_BYTES], b[CLI_BYTES];
    for (int i = 0; i < m->n_disks; i++)
        printf("disk          %s: %s, %s%s%s\n", m->disk[i].name, m->disk[i].kind, cli_bytes(a, m->disk[i].size),
               *m->disk[i].model ? ", " : "", m->disk[i].model);
    for (int i = 0; i < m->n_gpus; i++)
        printf("GPU %-9d %s, %s, %s free; compute capability %d.%d, PCIe %d x%d (at most %d x%d), driver %s\n", i,
               m->gpu[i].name, cli_bytes_both(a, m->gpu[i].total), cli_bytes(b, m->gpu[i].free), m->gpu[i].major,
               m->gpu[i].minor, m->gpu[i].pcie_gen, m->gpu[i].pcie_width, m->gpu[i].pcie_gen_most,
               m->gpu[i].pcie_width_most, m->gpu[i].driver);
    if (m->n_gpus == 0)
        printf("GPU           none (%s)\n", m->no_gpu);
}

int hardware_show(const struct hardware_options *o)
{
    struct machine m;
    struct roofline l;
    struct err e;
    const char *tmp = getenv("TMPDIR");
    if (machine_probe(&m, o->root, &e) != 0)
        return cli_fail(prog, &e);
    if (o->measure) {
        const struct roofline_options lo = { .n_threads = o->threads, .file = o->file,
                                           .tmp_dir = tmp && *tmp ? tmp : NULL, .root = o->root };
        if (roofline_measure(&l, &lo, &e) != 0)
            return cli_fail(prog, &e);
    }
    if (o->json) {
        json_t *j = machine_json(&m);
        if (o->measure)
            json_object_set_new(j, "limits", roofline_json(&l));
        cli_json(j);
        json_decref(j);
        return cli_finish(prog);
    }
    print_cpu(&m);
    print_memory(&m);
    print_devices(&m);
    if (o->measure) {
        printf("\n");
        roofline_print(&l, o->file);
    }
    return cli_finish(prog);
}
