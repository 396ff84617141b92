/* t-multipart.c - forms with files: good ones, one cut at every byte, and malformed ones. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "libcommon/http/multipart.h"

#define TYPE "multipart/form-data; boundary=AaB03x"
static const char good[] = "--AaB03x\r\nContent-Disposition: form-data; name=\"name\"\r\n\r\nmy \r\n--AaB file\r\n"
                           "--AaB03x  \r\ncontent-disposition: form-data; name=file; filename=\"..\\a \\\"b%22.txt\"\r\nContent-Type: text/plain\r\n\r\n\0\1\r\n\r\n"
                           "--AaB03x\r\nContent-Disposition: form-data; name=\"empty\"\r\n\r\n\r\n--AaB03x--\r\n";

/* A heap copy of exactly this size, so that a sanitizer sees reads beyond it. */
static int parse(const char *type, const char *body, size_t size, struct multipart *m, struct problem *pr)
{
    char *copy = malloc(size ? size : 1);
    memcpy(copy, body, size);
    const int rc = multipart_parse(type, copy, size, m, pr);
    if (rc == 0)
        for (int i = 0; i < m->n; i++)
            m->part[i].data = body + (m->part[i].data - copy);
    free(copy);
    return rc;
}

static void parts_keep_their_names_and_bytes(void **state)
{
    struct multipart m;
    struct problem pr;
    (void)state;
    assert_int_equal(parse(TYPE, good, sizeof good - 1, &m, &pr), 0);
    assert_int_equal(m.n, 3);
    assert_string_equal(m.part[0].name, "name");
    assert_null(m.part[0].filename);
    assert_int_equal(m.part[0].size, 15);
    assert_memory_equal(m.part[0].data, "my \r\n--AaB file", 15);
    assert_string_equal(m.part[1].name, "file");
    assert_string_equal(m.part[1].filename, "..\\a \"b\".txt");
    assert_memory_equal(m.part[1].data, "\0\1\r\n", m.part[1].size);
    assert_int_equal(m.part[2].size, 0);
    multipart_release(&m);
}

static void test_cut_at_every_byte(void **state)
{
    struct multipart m;
    struct problem pr;
    (void)state;
    for (size_t cut = 0; cut < sizeof good - 1; cut++) {
        const int rc = parse(TYPE, good, cut, &m, &pr);
        /* the form is complete even without the CR LF after its last delimiter */
        assert_int_equal(rc, cut == sizeof good - 3 ? 0 : -1);
        if (rc == 0)
            multipart_release(&m);
        else
            assert_int_equal(pr.status, 400);
    }
}

static void only_multipart_form_data_is_accepted(void **state)
{
    static const struct { const char *type; int status; } types[] = {
        { TYPE, 0 }, { "Multipart/Form-Data;boundary=\"AaB03x\"", 0 },
            { "multipart/form-data ; charset=utf-8; Boundary=AaB03x;", 0 },
        { "multipart/form-data", 400 }, { "multipart/form-data; boundary=", 400 },
        { "multipart/form-data; boundary=\"AaB03x", 400 },
        { "multipart/form-data; boundary=AaB03x; boundary=b", 400 }, { "multipart/form-data, boundary=AaB03x", 400 },
        { "multipart/form-dataset; boundary=AaB03x", 415 }, { "application/json", 415 }, { "", 415 }, { NULL, 415 },
        { "multipart/form-data; boundary=0123456789012345678901234567890123456789012345678901234567890123456789x",
          400 },
    };
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct multipart m;
        struct problem pr = { 0 };
        const int rc = parse(types[i].type, good, sizeof good - 1, &m, &pr);
        if ((rc ? pr.status : 0) != types[i].status)
            fail_msg("%s: %d", types[i].type, pr.status);
        if (rc == 0)
            multipart_release(&m);
    }
}

static void malformed_bodies_are_refused(void **state)
{
#define HEAD "--AaB03x\r\nContent-Disposition: form-data; name=\"a\"\r\n"
#define END "\r\n--AaB03x--"
    static const char *const bad[] = {
        "", "x", "--AaB03x", "--AaB03x--x", "preamble\r\n" HEAD "\r\nx" END, HEAD "\r\nx" END "x",
            HEAD "\r\nx" END "\r\nepilogue",
        HEAD "\r\nx\n--AaB03x--", HEAD "\r\nx\r\n--AaB03x-", HEAD "\r\nx\r\n--AaB03xy--",
        HEAD "bad header\r\n\r\nx" END, HEAD ": x\r\n\r\nx" END, HEAD "A b: x\r\n\r\nx" END,
        HEAD "A: x\rb\r\n\r\nx" END, HEAD "Content-Disposition: form-data; name=\"b\"\r\n\r\nx" END,
        "--AaB03x\r\n\r\nx" END, "--AaB03x\r\nContent-Disposition: form-data\r\n\r\nx" END,
        "--AaB03x\r\nContent-Disposition: attachment; name=\"a\"\r\n\r\nx" END,
        "--AaB03x\r\nContent-Disposition: form-data; name=\"a\r\n\r\nx" END,
        "--AaB03x\r\nContent-Disposition: form-data; name=\"a\"; name=\"b\"\r\n\r\nx" END,
        "--AaB03x\r\nContent-Disposition: form-data; name\r\n\r\nx" END,
        HEAD "Content-Transfer-Encoding: base64\r\n\r\nx" END,
        "--AaB03x\nContent-Disposition: form-data; name=\"a\"\n\nx\n--AaB03x--",
    };
    (void)state;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct multipart m;
        struct problem pr = { 0 };
        if (parse(TYPE, bad[i], strlen(bad[i]), &m, &pr) == 0 || pr.status != 400)
            fail_msg("%zu: %s", i, bad[i]);
    }
    struct multipart m;
    struct problem pr;
    const char both[] = "--AaB03x\r\nContent-Disposition: form-data; name=\"a\"; filename=\"x\"; filename*=utf-8''%e2%82%ac.md\r\n\r\nx" END;
    assert_int_equal(parse(TYPE, both, sizeof both - 1, &m, &pr), 0);
    assert_string_equal(m.part[0].filename, "\u20ac.md");
    multipart_release(&m);
}

static void too_many_or_too_large_parts_are_refused(void **state)
{
    char body[MULTIPART_PARTS * 80 + 200] = "";
    struct multipart m;
    struct problem pr;
    (void)state;
    for (int i = 0; i < MULTIPART_PARTS; i++)
        strcat(body, HEAD "\r\nx\r\n");
    char *end = body + strlen(body);
    strcpy(end, "--AaB03x--");
    assert_int_equal(parse(TYPE, body, strlen(body), &m, &pr), 0);
    assert_int_equal(m.n, MULTIPART_PARTS);
    multipart_release(&m);
    strcpy(end, HEAD "\r\nx" END);
    assert_int_equal(parse(TYPE, body, strlen(body), &m, &pr), -1);
    char *large = malloc(MULTIPART_HEAD + 200), *p = large;
    p += sprintf(p, HEAD "X: ");
    memset(p, 'x', MULTIPART_HEAD);
    strcpy(p + MULTIPART_HEAD, "\r\nY: z\r\n\r\nx" END);
    assert_int_equal(parse(TYPE, large, strlen(large), &m, &pr), -1);
    free(large);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_keep_their_names_and_bytes), cmocka_unit_test(test_cut_at_every_byte),
        cmocka_unit_test(only_multipart_form_data_is_accepted),
        cmocka_unit_test(malformed_bodies_are_refused), cmocka_unit_test(too_many_or_too_large_parts_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
