/* preflight_convert.c - check disk and memory before a download or conversion. */
#include "cmd/preflight_convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "cmd/cli.h"
#include "cmd/planning.h"
#include "libcommon/base/file.h"
#include "libcommon/hw/memory.h"

/* Find the free bytes and the device of the file system where path is or would be created.  -1:
 * they are not known. */
static int room_at(const char *path, uint64_t *room, dev_t *device)
{
    struct statvfs v;
    struct stat st;
    char *p = strdup(*path == '/' ? path : "."), *slash;
    if (p && *path != '/' && strchr(path, '/')) {
        free(p);
        p = strdup(path);
    }
    while (p && stat(p, &st) != 0 && (slash = strrchr(p, '/'))) {
        if (slash == p)
            slash++;
        if (!*slash)
            break;
        *slash = '\0';
    }
    const int known = p && stat(p, &st) == 0 && statvfs(p, &v) == 0;
    free(p);
    if (!known)
        return -1;
    *room = (uint64_t)v.f_bavail * v.f_frsize;
    *device = st.st_dev;
    return 0;
}

/* Refuse with *e and -1; with --force print it as a note instead, and return 0. */
static int refuse(const char *prog, int force, const char *help, struct err *e)
{
    char text[sizeof e->msg];
    snprintf(text, sizeof text, "%s", e->msg);
    if (!force)
        return err_set(e, ERR_LIMIT, "%s; %s--force tries it", text, help);
    cli_note(prog, "%s (--force: trying)", text);
    return 0;
}

/* Bytes on disk of an interrupted conversion to path: the next one resumes or removes it. */
static uint64_t parked_bytes(const char *path)
{
    struct stat st;
    char *name = atomic_parked_name(path);
    const uint64_t bytes = name && lstat(name, &st) == 0 ? (uint64_t)st.st_blocks * 512 : 0;
    free(name);
    return bytes;
}

/* Check that there is disk space for the new file (`bytes`) and the temporary files beside it
 * (`scratch`). */
static int check_disk(const struct preflight_convert *p, const char *name, uint64_t bytes, uint64_t scratch,
                      struct err *e)
{
    uint64_t room;
    dev_t device;
    if (room_at(p->output, &room, &device) != 0 || bytes + scratch <= room + parked_bytes(p->output))
        return 0;
    char wanted[CLI_BYTES], there[CLI_BYTES];
    err_set(e, ERR_LIMIT, "%s: %s are to be written to %s%s, where there is room for %s", name,
            cli_bytes(wanted, bytes + scratch), p->output, scratch ? ", the files of the calibration counted" : "",
            cli_bytes(there, room));
    return refuse(p->prog, p->force, "", e);
}

/* Check that there is memory for calibration, and then for the rounded heads. */
static int check_memory(const struct preflight_convert *p, const char *name, uint64_t calibration, uint64_t heads,
                        uint64_t weights, struct err *e)
{
    /* ROWS: memory for rows of the source and of the result and for the tokenizer's tables,
     * which took 80 MB for a model of 1.5 billion parameters */
    enum { ROWS = 96 << 20, LEAST = 16 << 20 };
    struct memory m;
    const uint64_t others = weights + LEAST < ROWS ? weights + LEAST : ROWS, needed = calibration + heads + others;
    if (memory_read(&m, preflight_root(), e) != 0)
        return 0;                                       /* without figures from the system nothing is refused */
    const uint64_t most = memory_most(&m), now = memory_now(&m);
    if ((double)needed <= 0.95 * (double)most && needed <= now)
        return 0;
    char all[CLI_BYTES], some[CLI_BYTES], there[CLI_BYTES], left[CLI_BYTES];
    err_set(e, ERR_LIMIT, "%s: the conversion needs %s of memory (calibration %s), but there are %s, %s of them available", name, cli_bytes(all, needed),
            cli_bytes(some, calibration), cli_bytes(there, most), cli_bytes(left, now));
    return refuse(p->prog, p->force, calibration ? "--quality fast needs no calibration, " : "", e);
}

int preflight_convert(void *user, const struct convert_report *r, struct err *e)
{
    const struct preflight_convert *p = user;
    const uint64_t weights = p->target_bytes ? p->target_bytes : r->weight_bytes, heads = r->heads_bytes;
    return check_disk(p, p->name, weights + heads, r->scratch_bytes, e) == 0
               ? check_memory(p, p->name, r->private_bytes, heads, weights, e) : -1;
}

/* *out: bytes of the weights after the conversion; for keep those of the source. */
static int converted_bytes(const struct preflight_convert *p, const char *name, const json_t *config, uint64_t bytes,
                           uint64_t *out, struct planned *m, struct err *e)
{
    struct plan_weights w;
    struct convert_type type = { CONVERT_KEEP, 0 };
    int exact, rc = planned_open(m, name, config, e);
    *out = p->target_bytes ? p->target_bytes : bytes;
    if (p->type && convert_parse_type(&type, p->type, e) != 0)
        return -1;
    if (rc == 0 && !p->target_bytes && type.kind == CONVERT_TYPE &&
        (rc = planned_weights(m, name, config, p->type, &w, &exact, e)) == 0)
        *out = w.bytes;
    return rc;
}

int preflight_fetch(void *user, const char *name, const json_t *config, uint64_t bytes, const char *to, struct err *e)
{
    const struct preflight_convert *p = user;
    struct planned m;
    struct memory memory;
    uint64_t out = 0, here, there;
    dev_t a, b;
    int tight, rc = converted_bytes(p, name, config, bytes, &out, &m, e);
    const uint64_t workspace = rc == 0 ? planned_workspace(&m) : 0;
    const int experts = rc == 0 && m.shape.n_experts;
    planned_close(&m);
    if (rc != 0)
        return -1;
    if (room_at(p->output, &here, &a) == 0 && room_at(to, &there, &b) == 0 && here < out + (a == b ? bytes : 0)) {
        char come[CLI_BYTES], wanted[CLI_BYTES], left[CLI_BYTES];
        err_set(e, ERR_LIMIT, "%s: %s are to be downloaded to %s and %s written to %s, where there is room for %s",
                name, cli_bytes(come, bytes), to, cli_bytes(wanted, out), p->output, cli_bytes(left, here));
        if (refuse(p->prog, p->force, "", e) != 0)
            return -1;
    }
    if (!p->runs || memory_read(&memory, preflight_root(), e) != 0)
        return 0;
    if (p->max_memory && p->max_memory < out)
        out = p->max_memory;
    const uint64_t most = memory_most(&memory), now = memory_now(&memory),
                   usable = plan_usable(most < now ? most : now);
    if (plan_preflight(name, out, 0, workspace, most, now, &tight, e) == 0 || (experts && usable > workspace))
        /* experts that do not fit are read from the file: preflight.c */
        return 0;
    return refuse(p->prog, p->force, "a smaller type (-q nl4) or --max-memory take less, ", e);
}
