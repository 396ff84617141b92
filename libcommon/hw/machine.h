/* machine.h - what this machine is made of, read from /proc, /sys and NVML, nothing measured: a
 * few milliseconds. */
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
    int utilization, celsius;               /* percent of the time that it was busy lately; -1: not told */
    int major, minor;                       /* compute capability */
    int pcie_gen, pcie_width, pcie_gen_most, pcie_width_most;       /* now (an idle GPU saves power) and at most; 0: unknown */
};

struct machine {
    char cpu[128];                          /* "AMD EPYC 9555"; "" where unknown */
    int n_cpus, n_cores, n_sockets;         /* logical processors that are online, cores, packages */
    int n_usable;                           /* processors this process may run on (affinity) */
    double cpu_quota;                       /* processors' worth of time that control groups allow; 0: no limit */
    double max_mhz;                         /* 0: unknown */
    int virtual_machine;
    const char *isa[MACHINE_ISA]; int n_isa;        /* instruction sets that matter here, "avx2", "avx512_vnni" ...; static */
    struct { int level; char type; uint64_t size; int n_sharing; } cache[MACHINE_CACHES]; int n_caches;     /* of the first processor; type D, I or U */
    struct memory memory;
    int n_modules, module_mts;              /* memory modules that are plugged in and their transfers a second in millions (SMBIOS; readable by root); 0: unknown */
    struct { int id, n_cpus; uint64_t total, free; } node[MACHINE_NODES]; int n_nodes;
    struct { char name[32], model[64]; const char *kind; uint64_t size; } disk[MACHINE_DISKS]; int n_disks;   /* kind "nvme", "ssd", "hdd", "virtual" */
    char thp[16];                           /* transparent huge pages: "always", "madvise", "never"; "" where unknown */
    uint64_t huge_2m, huge_2m_free, huge_1g;        /* pages that are set aside */
    char governor[32];                      /* of the first processor with one; "" where there is none (virtual machines) */
    struct machine_gpu gpu[MACHINE_GPUS]; int n_gpus;
    char no_gpu[160];                       /* why n_gpus is 0 */
};

/* root: the folder under which proc/ and sys/ lie; NULL: "/".  With a root of one's own NVML is
 * left alone. */
int machine_probe(struct machine *m, const char *root, struct err *e);
int machine_has(const struct machine *m, const char *isa);
/* Physical cores that this process can keep busy: usable processors less SMT twins, and no more
 * than the quota. At least 1. */
int machine_threads(const struct machine *m);

/* GPUs that NVML (libnvidia-ml.so.1, loaded now) knows; no context is created on them.  0 and
 * why where there are none. */
int machine_gpus(struct machine_gpu *out, int room, char why[160]);
/* The same for those who ask often: loaded once. NULL and why where there is no NVML. */
struct nvml;
struct nvml *nvml_open(char why[160]);
void nvml_close(struct nvml *n);            /* NULL is fine */
int nvml_gpus(const struct nvml *n, struct machine_gpu *out, int room, char why[160]);

#endif
