/* gpus.c - ask NVML, the management library that comes with NVIDIA's driver, about GPUs.  Facts: the NVML API reference. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "libcommon/hw/machine.h"

typedef struct nvml_device *nvml_device;
struct nvml_memory { unsigned long long total, free, used; };           /* nvmlMemory_t */

struct nvml {
    int (*init)(void), (*shutdown)(void), (*count)(unsigned *), (*handle)(unsigned, nvml_device *), (*name)(nvml_device, char *, unsigned),
        (*memory)(nvml_device, struct nvml_memory *), (*capability)(nvml_device, int *, int *), (*driver)(char *, unsigned);
    int (*gen)(nvml_device, unsigned *), (*gen_most)(nvml_device, unsigned *), (*width)(nvml_device, unsigned *), (*width_most)(nvml_device, unsigned *);
};

static int find_all(void *library, struct nvml *n)
{
    const struct { void *to; const char *symbol; } all[] = {
        { &n->init, "nvmlInit_v2" }, { &n->shutdown, "nvmlShutdown" }, { &n->count, "nvmlDeviceGetCount_v2" }, { &n->handle, "nvmlDeviceGetHandleByIndex_v2" },
        { &n->name, "nvmlDeviceGetName" }, { &n->memory, "nvmlDeviceGetMemoryInfo" }, { &n->capability, "nvmlDeviceGetCudaComputeCapability" },
        { &n->driver, "nvmlSystemGetDriverVersion" }, { &n->gen, "nvmlDeviceGetCurrPcieLinkGeneration" }, { &n->gen_most, "nvmlDeviceGetMaxPcieLinkGeneration" },
        { &n->width, "nvmlDeviceGetCurrPcieLinkWidth" }, { &n->width_most, "nvmlDeviceGetMaxPcieLinkWidth" },
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        void *symbol = dlsym(library, all[i].symbol);
        if (!symbol)
            return -1;
        memcpy(all[i].to, &symbol, sizeof symbol);
    }
    return 0;
}

static int pcie(int (*ask)(nvml_device, unsigned *), nvml_device d)
{
    unsigned v;
    return ask(d, &v) == 0 && v < 1024 ? (int)v : 0;
}

static int ask(const struct nvml *n, struct machine_gpu *out, int room, char why[160])
{
    unsigned count = 0;
    int found = 0, rc = n->count(&count);
    if (rc != 0 || count == 0) {
        snprintf(why, 160, rc ? "NVML counts no GPUs: error %d" : "NVML knows of no GPU", rc);
        return 0;
    }
    for (unsigned i = 0; i < count && found < room; i++) {
        struct machine_gpu g = { .total = 0 };
        struct nvml_memory memory;
        nvml_device d;
        if ((rc = n->handle(i, &d)) != 0 || (rc = n->memory(d, &memory)) != 0)
            continue;
        if (n->name(d, g.name, sizeof g.name) != 0)
            snprintf(g.name, sizeof g.name, "unknown");
        if (n->driver(g.driver, sizeof g.driver) != 0)
            g.driver[0] = '\0';
        if (n->capability(d, &g.major, &g.minor) != 0)
            g.major = g.minor = 0;
        g.total = memory.total;
        g.free = memory.free;
        g.pcie_gen = pcie(n->gen, d);
        g.pcie_gen_most = pcie(n->gen_most, d);
        g.pcie_width = pcie(n->width, d);
        g.pcie_width_most = pcie(n->width_most, d);
        out[found++] = g;
    }
    if (found == 0)
        snprintf(why, 160, "NVML does not tell about its %u GPUs: error %d", count, rc);
    return found;
}

int machine_gpus(struct machine_gpu *out, int room, char why[160])
{
    struct nvml n;
    int found = 0, rc;
    why[0] = '\0';
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(why, 160, "no NVIDIA driver: libnvidia-ml.so.1 is not there");
        return 0;
    }
    if (find_all(library, &n) != 0)
        snprintf(why, 160, "libnvidia-ml.so.1 is too old");
    else if ((rc = n.init()) != 0)
        snprintf(why, 160, "NVML does not start: error %d", rc);
    else {
        found = ask(&n, out, room, why);
        n.shutdown();
    }
    dlclose(library);
    return found;
}
