/* stub.c - gpu.h in a build without a device engine. */
#include "gpu/gpu.h"

const char gpu_kind[] = "none";

int gpu_count(struct err *e)
{
    return err_set(e, ERR_DEVICE, "this build has no CUDA engine; make GPU=cuda, where nvcc is, makes one that has");
}

void gpu_warm_up(int device) { (void)device; }

int gpu_plan(const struct model *m, const struct backend_options *o, struct gpu_plan *p, struct err *e)
{
    (void)m, (void)o, (void)p;
    return gpu_count(e);
}

int gpu_plan_fits(const struct gpu_plan *p, const struct backend_options *o, struct err *e)
{
    (void)p, (void)o;
    return gpu_count(e);
}

int gpu_measure(int device, struct gpu_speeds *out, struct err *e)
{
    (void)device, (void)out;
    return gpu_count(e);
}

int gpu_bench(int device, const struct gpu_bench_options *o, struct err *e)
{
    (void)device, (void)o;
    return gpu_count(e);
}

static void *open_none(const struct model *m, const struct backend_options *o, struct err *e)
{
    (void)m, (void)o;
    gpu_count(e);
    return NULL;
}

const struct backend backend_gpu = { .name = "none", .step_tokens = NULL, .open = open_none };
