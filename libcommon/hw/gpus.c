/* gpus.c - query GPUs through NVML, the management library of NVIDIA's driver.  Source: the NVML
 * API reference. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/hw/machine.h"

typedef struct nvml_device *nvml_device;
struct nvml_memory { unsigned long long total, free, used; };           /* nvmlMemory_t */

struct nvml_use { unsigned gpu, memory; };                               /* nvmlUtilization_t: percent */

struct nvml {
    void *library;
    int (*use)(nvml_device, struct nvml_use *), (*temperature)(nvml_device, int, unsigned *);
    int (*init)(void), (*shutdown)(void), (*count)(unsigned *), (*handle)(unsigned, nvml_device *),
        (*name)(nvml_device, char *, unsigned), (*memory)(nvml_device, struct nvml_memory *),
        (*capability)(nvml_device, int *, int *), (*driver)(char *, unsigned);
    int (*gen)(nvml_device, unsigned *), (*gen_most)(nvml_device, unsigned *), (*width)(nvml_device, unsigned *),
        (*width_most)(nvml_device, unsigned *);
};

static int find_all(void *library, struct nvml *n)
{
    const struct { void *to; const char *symbol; } all[] = {
        { &n->init, "nvmlInit_v2" }, { &n->shutdown, "nvmlShutdown" }, { &n->count, "nvmlDeviceGetCount_v2" },
            { &n->handle, "nvmlDeviceGetHandleByIndex_v2" },
        { &n->name, "nvmlDeviceGetName" }, { &n->memory, "nvmlDeviceGetMemoryInfo" },
        { &n->capability, "nvmlDeviceGetCudaComputeCapability" },
        { &n->driver, "nvmlSystemGetDriverVersion" }, { &n->gen, "nvmlDeviceGetCurrPcieLinkGeneration" },
        { &n->gen_most, "nvmlDeviceGetMaxPcieLinkGeneration" },
        { &n->width, "nvmlDeviceGetCurrPcieLinkWidth" }, { &n->width_most, "nvmlDeviceGetMaxPcieLinkWidth" },
        { &n->use, "nvmlDeviceGetUtilizationRates" }, { &n->temperature, "nvmlDeviceGetTemperature" },
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
        enum { CHIP = 0 };              /* NVML_TEMPERATURE_GPU */
        struct nvml_use use;
        unsigned celsius;
        g.utilization = n->use(d, &use) == 0 ? (int)use.gpu : -1;
        g.celsius = n->temperature(d, CHIP, &celsius) == 0 ? (int)celsius : -1;
        g.total = memory.total;
        g.used = memory.used;
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

struct nvml *nvml_open(char why[160])
{
    struct nvml *n = calloc(1, sizeof *n);
    int rc;
    why[0] = '\0';
    if (!n || !(n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL))) {
        snprintf(why, 160, n ? "no NVIDIA driver: libnvidia-ml.so.1 is not there" : "out of memory");
        free(n);
        return NULL;
    }
    if (find_all(n->library, n) != 0)
        snprintf(why, 160, "libnvidia-ml.so.1 is too old");
    else if ((rc = n->init()) != 0)
        snprintf(why, 160, "NVML does not start: error %d", rc);
    else
        return n;
    dlclose(n->library);
    free(n);
    return NULL;
}

void nvml_close(struct nvml *n)
{
    if (!n)
        return;
    n->shutdown();
    dlclose(n->library);
    free(n);
}

int nvml_gpus(const struct nvml *n, struct machine_gpu *out, int room, char why[160])
{
    why[0] = '\0';
    return ask(n, out, room, why);
}

int machine_gpus(struct machine_gpu *out, int room, char why[160])
{
    struct nvml *n = nvml_open(why);
    const int found = n ? nvml_gpus(n, out, room, why) : 0;
    nvml_close(n);
    return found;
}
