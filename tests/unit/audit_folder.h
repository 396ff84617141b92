/* audit_folder.h - an audit log in the folder of a test: entries, files, checks. */
#ifndef ZSE_TESTS_AUDIT_FOLDER_H
#define ZSE_TESTS_AUDIT_FOLDER_H

#include "tests/unit/folder.h"

#include "libcommon/access/audit.h"
#include "libcommon/access/audit_query.h"
#include "libcommon/access/audit_verify.h"

static inline struct audit *open_log(uint64_t max_bytes, int keep)
{
    const struct audit_options o = { .folder = folder, .max_bytes = max_bytes, .keep = keep };
    struct audit *a = audit_open(&o, &e);
    assert_non_null(a);
    return a;
}

static inline int verify(const char *expect, struct audit_check *c)
{
    const struct audit_want want = { .expect = expect };
    return audit_verify(folder, AUDIT_KEYS, &want, c, &e);
}

static inline void audit_add(struct audit *a, const struct audit_entry *x)
{
    size_t n;
    char *line = audit_line(x, &n);
    assert_non_null(line);
    audit_write(a, line, n);
}

static inline void add_entry(struct audit *a, int i, int status, const char *path)
{
    char id[40];
    snprintf(id, sizeof id, "id-%d", i);
    audit_add(a, &(struct audit_entry){ .time_ms = 1795273726003 + i, .request_id = id, .method = "POST", .path = path,
                                        .status = status, .latency_ms = 1.5 * i,
                                        .key_name = i % 2 ? "app" : NULL, .client_ip = "127.0.0.1",
                                        .user_agent = "t \"q\" \x01\xff", .model = "m", .prompt_tokens = 3,
                                        .completion_tokens = i, .error = status >= 400 ? "no" : NULL });
}

/* A log with n lines. */
static inline struct audit *open_with(uint64_t max_bytes, int keep, int n)
{
    struct audit *a = open_log(max_bytes, keep);
    for (int i = 0; i < n; i++)
        add_entry(a, i, 200, "/v1/x");
    return a;
}

static inline void read_all(const char *path, char **text, size_t *size)
{
    FILE *f = fopen(path, "rb");
    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *size = (size_t)ftell(f);
    rewind(f);
    *text = malloc(*size + 1);
    assert_int_equal(fread(*text, 1, *size, f), *size);
    (*text)[*size] = '\0';
    fclose(f);
}

static inline void write_all(const char *path, const char *text, size_t size)
{
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, size, f), size);
    fclose(f);
}

static inline int count_ids(void *user, const struct audit_record *r)
{
    unsigned char *seen = user;
    const char *id = strstr(r->line, "\"id-");
    seen[atoi(id + 4)]++;
    return 0;
}

static inline int n_names(const char *part)
{
    char command[256];
    snprintf(command, sizeof command, "ls %s | grep -c -- '%s'", folder, part);
    FILE *f = popen(command, "r");
    int n = -1;
    assert_int_equal(fscanf(f, "%d", &n), 1);
    pclose(f);
    return n;
}

static inline void make(const char *name)
{
    FILE *f = fopen(in_folder(name), "w");
    assert_non_null(f);
    fputs("rest\n", f);
    fclose(f);
}

/* Verify since a hash, or since a time, or everything (NULL and 0). */
static inline struct audit_check check_since(const char *hash, int64_t ms)
{
    struct audit_check c;
    const struct audit_want want = { .since_hash = hash, .since_ms = ms };
    assert_int_equal(audit_verify(folder, AUDIT_KEYS, &want, &c, &e), 0);
    assert_false(c.broken);
    return c;
}

static inline void nothing_is_missing(const char *hash, int64_t ms)
{
    const struct audit_check c = check_since(hash, ms);
    if (c.missing)
        fail_msg("%s", c.what);
}

#endif
