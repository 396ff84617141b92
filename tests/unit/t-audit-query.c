/* t-audit-query.c - reading the audit log: filters, sums, merged lines, export as CSV. */
#include "tests/unit/audit_folder.h"

#include <inttypes.h>

#include "libcommon/access/audit_files.h"
#include "libcommon/access/audit_log.h"
#include "libcommon/access/audit_merge.h"
#include "libcommon/access/audit_query.h"
#include "libcommon/access/audit_verify.h"

static void queries(void **state)
{
    (void)state;
    char **lines;
    int n;
    struct audit_scan s;
    struct audit *a = open_log(4000, 100);
    for (int i = 0; i < 100; i++)
        add_entry(a, i, i % 10 ? 200 : 429, i % 2 ? "/v1/chat/completions" : "/health");
    audit_close(a);
    FILE *f = fopen(in_folder(AUDIT_FILE), "ab");       /* text of an attacker */
    fputs("\n{}\n{\"timestamp_unix\":9,\"status_code\":\nnull\n[1,2]\n{\"a\":{\"timestamp_unix\":1}}\n\xff\xfe\n{\"timestamp_unix\":5,\"path\":\"/\\", f);
    fclose(f);
    struct audit_filter q = { .key_name = "app" };
    assert_int_equal(audit_newest(folder, &q, 7, &lines, &n, &s, &e), 0);
    assert_int_equal(n, 7);
    assert_int_equal(s.bad, 7);
    assert_non_null(strstr(lines[0], "\"id-99\""));
    assert_non_null(strstr(lines[6], "\"id-87\""));
    for (int i = 0; i < n; i++)
        free(lines[i]);
    free(lines);
    static const struct { struct audit_filter f; int n; } cases[] = {
        { { .status = 429 }, 10 }, { { .status = 4 }, 10 }, { { .path = "/v1/" }, 50 },
            { { .path = "/v1/chat/completions/" }, 0 }, { { .method = "GET" }, 0 },
        { { .min_latency_ms = 1.5 * 90 }, 10 }, { { .since_ms = 1795273726003 + 60 }, 40 },
        { { .until_ms = 1795273726003 + 60 }, 60 },
        { { .key_name = "app", .status = 200, .path = "/v1" }, 50 }, { { .key_name = "" }, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(audit_newest(folder, &cases[i].f, 1000, &lines, &n, &s, &e), 0);
        assert_int_equal(n, cases[i].n);
        for (int k = 0; k < n; k++)
            free(lines[k]);
        free(lines);
    }
    json_t *sum = audit_summary(folder, 1, 1795273726003 + 99 + 1, &e);
    assert_int_equal(json_integer_value(json_object_get(sum, "total_requests")), 100);
    assert_int_equal(json_integer_value(json_object_get(sum, "errors")), 10);
    assert_int_equal(json_integer_value(json_object_get(sum, "unique_keys")), 1);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(sum, "endpoints"), "/health")), 50);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(sum, "status_codes"), "429")), 10);
    assert_int_equal(json_integer_value(json_object_get(sum, "total_tokens")), 300 + 99 * 100 / 2);
    json_decref(sum);
}

struct wanted { const char *text; int64_t time_ms, prompt; int status, seen; double latency_ms; };

static int check_record(void *user, const struct audit_record *r)
{
    struct wanted *w = user;
    w->seen++;
    if (r->time_ms != w->time_ms || r->status != w->status || r->latency_ms != w->latency_ms ||
        r->prompt_tokens != w->prompt)
        fail_msg("%s: %" PRId64 " %d %.17g %" PRId64, w->text, r->time_ms, r->status, r->latency_ms, r->prompt_tokens);
    return 0;
}

/* Lines with our fields in our order are parsed by a fast path.  Lines with another order, further
 * fields, or numbers in another form must give the same values. */
static void fields_in_any_order(void **state)
{
    (void)state;
    static const struct wanted cases[] = {
        { "{\"timestamp\":\"x\",\"timestamp_unix\":1795273726.003,\"request_id\":\"a\\\"b\",\"method\":\"POST\",\"path\":\"/\",\"status_code\":200,\"latency_ms\":12.345,\"prompt_tokens\":7}", 1795273726003, 7, 200, 1, 12.345 },
        { "{\"status_code\":200,\"timestamp_unix\":1795273726.003,\"latency_ms\":12.345,\"prompt_tokens\":7,\"timestamp\":\"x\"}", 1795273726003, 7, 200, 1, 12.345 },
        { "{\"timestamp\":\"x\",\"status_code\":500,\"timestamp_unix\":9,\"status_code\":404,\"prompt_tokens\":null}",
          9000, -1, 404, 1, 0 },
        { "{\"timestamp\":\"x\",\"timestamp_unix\":9.5,\"mine\":true,\"status_code\":-3,\"latency_ms\":1e3,\"prompt_tokens\":123456789012345678}", 9500, 123456789012345678, -3, 1, 1000 },
        { "{\"timestamp_unix\":9.0625,\"status_code\":200,\"latency_ms\":0.1,\"prompt_tokens\":12345678901234567890}",
          9062, INT64_MAX, 200, 1, 0.1 },
        { "{\"timestamp_unix\":9.0625,\"status_code\":200,\"latency_ms\":1234567.1234567,\"prompt_tokens\":-1}", 9062,
          -1, 200, 1, 1234567.1234567 },
        { "{\"timestamp_unix\":9.0625,\"status_code\":200,\"latency_ms\":99999999.999999,\"prompt_tokens\":0}", 9062, 0,
          200, 1, 99999999.999999 },
        { "{\"timestamp_unix\":9,\"event\":\"begin\",\"status_code\":200}", 0, 0, 0, 0, 0 },
        { "{\"timestamp_unix\":9,\"status_code\": 200}", 0, 0, 0, 0, 0 },
        { "{\"timestamp_unix\":9,\"status_code\":200}}", 0, 0, 0, 0, 0 },
        { "{\"timestamp_unix\":9,\"status_code\":", 0, 0, 0, 0, 0 },
        { "{\"timestamp\":", 0, 0, 0, 0, 0 },
        { "{\"timestamp\":\"x\",\"timestamp_unix\":9,\"status_code\":200", 0, 0, 0, 0, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct audit_filter all = { 0 };
        struct audit_scan s;
        struct wanted w = cases[i];
        write_all(in_folder(AUDIT_FILE), w.text, strlen(w.text));
        FILE *f = fopen(in_folder(AUDIT_FILE), "ab");
        fputc('\n', f);
        fclose(f);
        w.seen = 0;
        assert_int_equal(audit_scan(folder, &all, check_record, &w, &s, &e), 0);
        assert_int_equal(w.seen, cases[i].seen);
        assert_int_equal(s.bad, !cases[i].seen && !strstr(w.text, "event"));
    }
}

/* ---- merging ---- */

static struct audit_entry request_of(const char *ip, const char *path, int status)
{
    return (struct audit_entry){ .time_ms = 1795273726003, .request_id = "id", .method = "GET", .path = path,
                                 .status = status, .latency_ms = 2, .client_ip = ip,
                                 .prompt_tokens = -1, .completion_tokens = -1, .error = "not_found" };
}

struct merged { int n; uint64_t requests; struct audit_entry last; char path[600], client[80], id[40], last_id[40]; };

static void take_merged(void *user, const struct audit_entry *x)
{
    struct merged *m = user;
    size_t n;
    char *line = audit_line(x, &n);
    assert_non_null(line);
    assert_true(n < 3000);
    free(line);
    m->n++;
    m->requests += x->count;
    m->last = *x;
    snprintf(m->path, sizeof m->path, "%s", x->path ? x->path : "(none)");
    snprintf(m->client, sizeof m->client, "%s", x->client_ip);
    snprintf(m->id, sizeof m->id, "%s", x->request_id);
    snprintf(m->last_id, sizeof m->last_id, "%s", x->last_id);
}

static void repeated_requests_become_one_line(void **state)
{
    (void)state;
    struct audit_merge *m = audit_merge_open(&e);
    struct merged got = { 0 };
    char path[64], id[20];
    for (int i = 0; i < 100; i++) {
        snprintf(path, sizeof path, "/v1/models/x%d", i);
        snprintf(id, sizeof id, "id-%d", i);
        struct audit_entry x = request_of(i % 2 ? "2001:db8::1" : "2001:db8::ffff:2", path, 404);
        x.request_id = id;
        x.time_ms += i;
        x.prompt_tokens = 3;
        assert_int_equal(audit_merge_add(m, &x, AUDIT_REFUSED, 10), i < 10);
    }
    struct audit_entry other = request_of("2001:db8::1", "/v1/models/x", 401);
    assert_int_equal(audit_merge_add(m, &other, AUDIT_ADMITTED, 1), 1);         /* a request of
                                                                                 * another kind is
                                                                                 * not merged with
                                                                                 * these */
    audit_merge_flush(m, take_merged, &got);
    assert_int_equal(got.n, 1);
    assert_int_equal(got.requests, 90);
    assert_string_equal(got.path, "/v1/models/x*");
    assert_string_equal(got.client, "2001:db8::/64");
    assert_string_equal(got.id, "id-10");
    assert_string_equal(got.last_id, "id-99");
    assert_int_equal(got.last.time_ms, 1795273726003 + 10);
    assert_int_equal(got.last.last_ms, 1795273726003 + 99);
    assert_int_equal(got.last.prompt_tokens, 270);
    assert_true(got.last.latency_ms == 2);
    assert_string_equal(got.last.error, "not_found");
    audit_merge_flush(m, take_merged, &got);            /* nothing is left */
    assert_int_equal(got.n, 1);
    assert_int_equal(audit_merge_add(m, &other, AUDIT_REFUSED, 10), 1);         /* lines of its own again */
    audit_merge_close(m);
}

/* Requests with any path, address and status become a bounded number of lines, and every request is
 * counted. */
static void a_flood_makes_few_lines(void **state)
{
    (void)state;
    enum { N = 20000 };
    struct audit_merge *m = audit_merge_open(&e);
    char path[3000], ip[40];
    for (int addresses = 0; addresses < 2; addresses++) {
        struct merged got = { 0 };
        for (int i = 0; i < N; i++) {
            memset(path, '\1', sizeof path - 1);
            path[sizeof path - 1] = '\0';
            snprintf(path, 20, "/%d/%d", i, i * 7);
            path[strlen(path)] = '\1';
            snprintf(ip, sizeof ip, "10.%d.%d.%d", addresses * i / 65536, addresses * i / 256 % 256,
                     addresses * i % 256);
            struct audit_entry x = request_of(ip, path, 400 + i % 20);
            x.user_agent = path;
            x.error = path;
            audit_merge_add(m, &x, AUDIT_REFUSED, 0);
        }
        audit_merge_flush(m, take_merged, &got);
        assert_int_equal(got.requests, N);
        assert_true(got.n <= (addresses ? MERGE_GROUPS : MERGE_PATHS + 20));
    }
    audit_merge_close(m);
}

/* A path that is cut in the middle of a key leaves no part of the key in the log. */
static void merging_keeps_no_part_of_a_key(void **state)
{
    (void)state;
    char path[400];
    struct merged got = { 0 };
    struct audit_merge *m = audit_merge_open(&e);
    for (int n = 1; n < 300; n++) {
        memset(path, 'a', sizeof path);
        path[0] = '/';
        memcpy(path + n, "zse-ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghij-_01234", 48);
        struct audit_entry x = request_of("10.0.0.1", path, 404);
        audit_merge_add(m, &x, AUDIT_REFUSED, 0);
        audit_merge_flush(m, take_merged, &got);
        assert_null(strstr(got.path, "ABCD"));
    }
    audit_merge_close(m);
}

static int ignore(void *user, const struct audit_record *r) { return (void)user, (void)r, 0; }

/* All sums include the requests of merged lines. */
static void merged_lines_count_all_their_requests(void **state)
{
    (void)state;
    struct audit_scan s;
    const struct audit_filter all = { 0 };
    const int64_t now = audit_now_ms();
    const struct audit_log_options o = { .folder = folder, .waiting_bytes = 1 << 20 };
    struct audit_log *l = audit_log_open(&o, &e);
    assert_non_null(l);
    for (int i = 0; i < 1000; i++) {
        struct audit_entry x = request_of("10.0.0.1", "/none", 404);
        x.time_ms = now + i % 7;
        audit_log_add(l, &x, 0, 0);
    }
    for (int i = 0; i < 100; i++) {
        struct audit_entry x = request_of("10.0.0.1", "/v1/models", i % 2 ? 200 : 429);
        x.time_ms = now;
        x.key_name = "app";
        audit_log_add(l, &x, 1, i % 2);
    }
    char *lines[5];
    while (audit_log_waiting(l))
        ;
    assert_int_equal(audit_log_recent(l, 5, lines), 5);
    for (int i = 0; i < 5; i++)
        free(lines[i]);
    assert_int_equal(audit_log_finish(l, 60), 0);
    audit_log_close(l);
    json_t *sum = audit_summary(folder, 1, now + 1000, &e), *files = audit_files_json(folder, &e);
    assert_int_equal(json_integer_value(json_object_get(sum, "total_requests")), 1100);
    assert_int_equal(json_integer_value(json_object_get(sum, "errors")), 1050);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(sum, "status_codes"), "404")), 1000);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(sum, "endpoints"), "/none")), 1000);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(sum, "keys"), "app")), 100);
    assert_true(json_real_value(json_object_get(sum, "avg_latency_ms")) == 2);
    assert_int_equal(json_integer_value(json_object_get(files, "total_entries")), 1100);
    assert_int_equal(json_integer_value(json_object_get(files, "lines")), MERGE_OWN_LINES + 1 + 100);
    json_decref(sum);
    json_decref(files);
    assert_int_equal(audit_scan(folder, &all, ignore, NULL, &s, &e), 0);
    assert_int_equal(s.requests, 1100);
    nothing_is_missing(NULL, 0);
    struct audit_check c;
    assert_int_equal(audit_verify(folder, AUDIT_ANONYMOUS, NULL, &c, &e), 0);
    assert_false(c.broken || c.missing);
    assert_int_equal(c.lines, 1 + MERGE_OWN_LINES + 1);
}

/* Requests without a key never displace a line of a request with a key. */
static void the_anonymous_displace_no_keys(void **state)
{
    (void)state;
    struct audit_check c;
    const struct audit_log_options o = { .folder = folder, .bytes = { 3000, 3000 }, .keep = 2,
                                         .waiting_bytes = 8 << 20 };
    struct audit_log *l = audit_log_open(&o, &e);
    struct audit_entry x = request_of("10.0.0.1", "/v1/models", 200);
    audit_log_add(l, &x, 1, 1);
    for (int i = 0; i < 2000; i++) {                    /* requests of a server without keys have lines, too */
        x = request_of("10.0.0.1", "/v1/models", 200);
        audit_log_add(l, &x, 0, i % 2);
    }
    assert_int_equal(audit_log_finish(l, 60), 0);
    audit_log_close(l);
    nothing_is_missing(NULL, 0);
    assert_int_equal(verify(NULL, &c), 0);
    assert_int_equal(c.lines, 2);
    assert_int_equal(audit_verify(folder, AUDIT_ANONYMOUS, NULL, &c, &e), 0);
    assert_false(c.broken || c.missing);
    assert_true(c.older_gone && c.files <= 3);
}

static int to_memory(void *user, const char *text, size_t n) { return fwrite(text, 1, n, user) != n; }

static void csv_is_safe(void **state)
{
    (void)state;
    char *text;
    size_t size;
    uint64_t rows;
    const struct audit_filter all = { 0 };
    struct audit *a = open_log(0, 0);
    audit_add(a, &(struct audit_entry){ .time_ms = 1, .path = "=cmd|' /C calc'!A0", .method = "a,b",
                                        .user_agent = "say \"hi\"\n", .prompt_tokens = -1, .completion_tokens = -1 });
    audit_close(a);
    FILE *f = open_memstream(&text, &size);
    assert_int_equal(audit_csv(folder, &all, to_memory, f, &rows, &e), 0);
    fclose(f);
    assert_int_equal(rows, 1);
    assert_memory_equal(text, "timestamp,timestamp_unix,request_id,method,path,", 48);
    assert_non_null(strstr(text, ",\"a,b\",\"'=cmd|' /C calc'!A0\","));
    assert_non_null(strstr(text, ",\"say \"\"hi\"\"\n\","));
    assert_null(strstr(text, "hash"));
    free(text);
}

/* Check the cell that the export writes for this user agent. */
static void cell_is(const char *given, const char *want)
{
    char *text, expected[256];
    size_t size;
    uint64_t rows, dropped;
    const struct audit_filter all = { 0 };
    assert_int_equal(audit_clear(folder, 1, &dropped, &e), 0);
    struct audit *a = open_log(0, 0);
    audit_add(a, &(struct audit_entry){ .time_ms = 1, .user_agent = given, .prompt_tokens = -1,
                                        .completion_tokens = -1 });
    audit_close(a);
    FILE *f = open_memstream(&text, &size);
    assert_int_equal(audit_csv(folder, &all, to_memory, f, &rows, &e), 0);
    fclose(f);
    snprintf(expected, sizeof expected, ",,,%s,,,,,\r\n", want);
    if (!strstr(text, expected))
        fail_msg("%s: expected %s in %s", given, expected, text);
    free(text);
}

static void formulas_begin_nowhere(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        { "plain", "plain" }, { "Mozilla/5.0 (X11; Linux)", "\"Mozilla/5.0 (X11; Linux)\"" }, { "a-b+c", "a-b+c" },
            { "=1", "\"'=1\"" }, { "+1", "\"'+1\"" }, { "-1", "\"'-1\"" },
        { "@SUM(A1)", "\"'@SUM(A1)\"" }, { "\t=1", "\"'\t'=1\"" }, { "\r=1", "\"'\r'=1\"" }, { "\n=1", "\"'\n'=1\"" },
        { "  =1", "\"'  =1\"" }, { " a", "\" a\"" },
        { "\ufeff=1", "\"'\ufeff=1\"" }, { "\u00a0\u3000-1", "\"'\u00a0\u3000-1\"" }, { "\uff1d1", "\"'\uff1d1\"" },
        { "\uff20x", "\"'\uff20x\"" },
        { "\"=1", "\"\"\"=1\"" }, { "a\";=1", "\"a\"\";'=1\"" }, { "a;=1", "\"a;'=1\"" }, { "a; @b", "\"a;' @b\"" },
        { "a|=1", "\"a|'=1\"" }, { "a\t+1", "\"a\t'+1\"" }, { "'=1", "'=1" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cell_is(cases[i][0], cases[i][1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(queries), IN_FOLDER(csv_is_safe), IN_FOLDER(formulas_begin_nowhere),
        IN_FOLDER(fields_in_any_order), cmocka_unit_test(repeated_requests_become_one_line),
        cmocka_unit_test(a_flood_makes_few_lines), cmocka_unit_test(merging_keeps_no_part_of_a_key),
        IN_FOLDER(merged_lines_count_all_their_requests), IN_FOLDER(the_anonymous_displace_no_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
