/* fuzz-audit.c - any bytes as an audit log: readers must neither fail nor miscount, and must print
 * valid JSON and CSV.  The first byte chooses a filter; the log is read plain and compressed. */
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include <zlib.h>

#include "libcommon/access/audit.h"
#include "libcommon/access/audit_query.h"
#include "libcommon/access/audit_verify.h"

static char folder[64];

static void remove_folder(void)
{
    static const char *const names[] = { "requests_20261121_150846.jsonl.gz", AUDIT_FILE, "audit.lock" };
    char path[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

static void make_folder(void)
{
    atexit(remove_folder);
    strcpy(folder, "/dev/shm/fuzz-audit-XXXXXX");
    if (!mkdtemp(folder))
        abort();
}

static void write_log(const char *name, const uint8_t *data, size_t size, int packed)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    gzFile z = gzopen(path, packed ? "wb1" : "wbT");
    if (!z || (size && gzwrite(z, data, (unsigned)size) != (int)size) || gzclose(z) != Z_OK)
        abort();
}

static int count_record(void *user, const struct audit_record *r)
{
    const char *p[] = { r->method.p, r->path.p, r->key_name.p, r->model.p };
    const size_t n[] = { r->method.n, r->path.n, r->key_name.n, r->model.n };
    for (int i = 0; i < 4; i++)
        if (p[i] && (p[i] < r->line || p[i] + n[i] > r->line + r->size))
            abort();                    /* the text is not inside its line */
    ++*(uint64_t *)user;
    return 0;
}

static int count_quotes(void *user, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        *(uint64_t *)user += text[i] == '"';
    return 0;
}

static void read_all(const struct audit_filter *f)
{
    struct err e;
    struct audit_scan s;
    struct audit_check c;
    uint64_t n = 0, quotes = 0, rows = 0;
    char **lines;
    int found;
    if (audit_scan(folder, f, count_record, &n, &s, &e) != 0 || n > s.lines)
        abort();
    if (audit_newest(folder, f, 5, &lines, &found, &s, &e) != 0 || (uint64_t)found != (n < 5 ? n : 5))
        abort();
    for (int i = 0; i < found; i++)
        free(lines[i]);
    free(lines);
    json_t *j = audit_summary(folder, 24, 1795273726003, &e);
    char *text = j ? json_dumps(j, 0) : NULL;
    if (!text)
        abort();
    free(text);
    json_decref(j);
    if (audit_csv(folder, f, count_quotes, &quotes, &rows, &e) != 0 || quotes % 2 || rows > n)
        abort();
    for (int chain = 0; chain < AUDIT_CHAINS; chain++)
        if (audit_verify(folder, (enum audit_chain)chain, &(struct audit_want){ .since_ms = 1795273726003 }, &c, &e) !=
            0)
            abort();
    json_decref(audit_files_json(folder, &e));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct audit_filter filters[] = { { 0 }, { .key_name = "app" }, { .path = "/v1/" },
                                                   { .method = "POST" }, { .status = 4 }, { .status = 200 },
                                                   { .min_latency_ms = 5 },
                                                   { .since_ms = 1795273726000, .until_ms = 1795273727000 } };
    if (size == 0)
        return 0;
    if (!*folder)
        make_folder();
    const struct audit_filter *f = &filters[data[0] % (sizeof filters / sizeof *filters)];
    write_log("requests_20261121_150846.jsonl.gz", data + 1, (size - 1) / 2, 1);
    write_log(AUDIT_FILE, data + 1 + (size - 1) / 2, size - 1 - (size - 1) / 2, 0);
    read_all(f);
    return 0;
}
