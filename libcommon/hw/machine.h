/* machine.h - describe this machine from /proc, /sys and NVML, without measurements; takes a few
 * milliseconds. */
#ifndef ZSE_HW_MACHINE_H
#define ZSE_HW_MACHINE_H

#include <stddef.h>
#include <stdint.h>

#include "libcommon/base/err.h"
#include "libcommon/hw/memory.h"

enum { MACHINE_CACHES = 8, MACHINE_NODES = 64, MACHINE_DISKS = 32, MACHINE_GPUS = 16, MACHINE_ISA = 24 };

struct machine_gpu {
    char name[96], driver[80];
    uint64_t total, used, free;             /* bytes of its memory */
    int utilization, celsius;               /* recent percentage of busy time, temperature; -1: unknown */
    int major, minor;                       /* compute capability */
    /* now (an idle GPU saves power) and maximum; 0: unknown */
    int pcie_gen, pcie_width, pcie_gen_most, pcie_width_most;
};

struct machine {
    char cpu[128];                          /* "AMD EPYC 9555"; "": unknown */
    int n_cpus, n_cores, n_sockets;         /* online logical processors, cores, packages */
    int n_usable;                           /* pool_n_cpus(): processors this process may run on */
    double cpu_quota;                       /* processors' worth of time that control groups allow; 0: no limit */
    double max_mhz;                         /* 0: unknown */
    int virtual_machine;
    const char *isa[MACHINE_ISA]; int n_isa;        /* relevant instruction sets, "avx2", "avx512_vnni" ...; static */
    /* caches of the first processor; type D, I or U */
    struct { int level; char type; uint64_t size; int n_sharing; } cache[MACHINE_CACHES]; int n_caches;
    struct memory memory;
    /* memory modules present, and millions of transfers a second (SMBIOS, readable by root only);
     * 0: unknown */
    int n_modules, module_mts;
    struct { int id, n_cpus; uint64_t total, free; } node[MACHINE_NODES]; int n_nodes;
    /* kind: "nvme", "ssd", "hdd", "virtual" */
    struct { char name[32], model[64]; const char *kind; uint64_t size; } disk[MACHINE_DISKS]; int n_disks;
    uint64_t page;                          /* bytes of a page; 0: unknown (of another machine) */
    char thp[16];                           /* transparent huge pages: "always", "madvise", "never"; "": unknown */
    uint64_t huge_2m, huge_2m_free, huge_1g;        /* reserved pages */
    char governor[32]; /* governor of the first processor that has one; "": none (virtual machines) */
    struct machine_gpu gpu[MACHINE_GPUS]; int n_gpus;
    char no_gpu[160];                       /* reason why n_gpus is 0 */
};

/* root: the folder that contains proc/ and sys/; NULL: "/".  With a root, NVML is not queried. */
int machine_probe(struct machine *m, const char *root, struct err *e);
int machine_has(const struct machine *m, const char *isa);
/* Physical cores that this process can keep busy: usable processors without SMT siblings, at most
 * the quota, at least 1. */
int machine_threads(const struct machine *m);

/* Fill in out with the GPUs that NVML (libnvidia-ml.so.1, loaded by this call) reports.  Makes no
 * CUDA context.  Returns their number; 0 with the reason in why. */
int machine_gpus(struct machine_gpu *out, int room, char why[160]);
/* For frequent calls: nvml_open() loads the library once (NULL with the reason in why if that
 * fails), and nvml_gpus() is like machine_gpus(). */
struct nvml;
struct nvml *nvml_open(char why[160]);
void nvml_close(struct nvml *n);            /* NULL is fine */
int nvml_gpus(const struct nvml *n, struct machine_gpu *out, int room, char why[160]);

#endif
