/* npy.c - read and write NumPy's .npy files. */
#include "cmd/npy.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char magic[] = "\x93NUMPY";

/* Report a wrong field, or a wrong beginning of the file.  found: the header from the wrong value
 * on (only the value is quoted) or a text of our own; NULL: the key is missing. */
static int bad(const struct npy *a, struct err *e, const char *what, const char *found, const char *expected)
{
    const size_t n = !found ? 0 : *found == '(' ? strcspn(found, ")") + 1 : strcspn(found, ",}");
    return err_set(e, ERR_FORMAT, "%s: %s: found %.*s, expected %s", a->map.path, what,
                   found ? n < 60 ? (int)n : 60 : 7, found ? found : "nothing", expected);
}

/* The text after 'KEY': in the header, which is a Python dictionary; NULL: there is no such key. */
static const char *value_of(const char *header, const char *key)
{
    char quoted[24];
    snprintf(quoted, sizeof quoted, "'%s':", key);
    const char *p = strstr(header, quoted);
    return p ? p + strlen(quoted) + strspn(p + strlen(quoted), " ") : NULL;
}

static int read_shape(struct npy *a, const char *p, struct err *e)
{
    const char *const shape = p;
    a->n = 1;
    if (!p || *p++ != '(')
        return bad(a, e, "shape", shape, "sizes like (3, 64)");
    for (p += strspn(p, " "); *p != ')'; p += strspn(p, " ")) {
        char *end;
        if (!isdigit((unsigned char)*p) || a->n_dims == NPY_DIMS)
            return bad(a, e, "shape", shape, "at most 4 sizes like (3, 64)");
        const int64_t n = strtoll(p, &end, 10);
        if (__builtin_mul_overflow(a->n, n, &a->n) || a->n > INT64_MAX / 8)
            return bad(a, e, "shape", shape, "sizes that fit into memory");
        a->dim[a->n_dims++] = n;
        p = end + strspn(end, " ");
        p += *p == ',';
    }
    return 0;
}

static int read_header(struct npy *a, const char *header, size_t data_at, struct err *e)
{
    static const struct { const char *descr; enum npy_type type; size_t bytes; } types[] = { { "'<f4'", NPY_F32, 4 },
        { "'<i4'", NPY_I32, 4 }, { "'<i8'", NPY_I64, 8 } };
    const char *descr = value_of(header, "descr"), *order = value_of(header, "fortran_order");
    size_t t = 0, bytes;
    while (t < 3 && !(descr && strncmp(descr, types[t].descr, 5) == 0))
        t++;
    if (t == 3)
        return bad(a, e, "descr", descr, "'<f4', '<i4' or '<i8' (in Python: .astype(numpy.float32))");
    if (!order || strncmp(order, "False", 5) != 0)
        return bad(a, e, "fortran_order", order, "False (in Python: numpy.ascontiguousarray)");
    if (read_shape(a, value_of(header, "shape"), e) < 0)
        return -1;
    a->type = types[t].type;
    a->data = a->map.data + data_at;
    bytes = (size_t)a->n * types[t].bytes;
    return a->map.size - data_at == bytes ? 0 : err_set(e, ERR_FORMAT,
                                                        "%s: %zu bytes of data, expected %zu by its shape", a->map.path,
                                                        a->map.size - data_at, bytes);
}

/* Report a file that does not begin with the magic bytes. */
static int bad_begin(const struct npy *a, struct err *e)
{
    const uint8_t *b = a->map.data;
    char found[60];
    if (a->map.size < 12)
        snprintf(found, sizeof found, "%zu bytes", a->map.size);
    else if (memcmp(b, magic, 6) != 0)
        snprintf(found, sizeof found, "bytes %02x %02x %02x %02x %02x %02x", b[0], b[1], b[2], b[3], b[4], b[5]);
    else
        snprintf(found, sizeof found, "version %d", b[6]);
    return bad(a, e, "offset 0", found, "a .npy file of version 1, 2 or 3");
}

static int bad_header(const struct npy *a, size_t n, struct err *e)
{
    char found[80];
    snprintf(found, sizeof found, "%zu bytes in a file of %zu", n, a->map.size);
    return bad(a, e, "offset 8", found, "a header of at most 64 KiB that ends in the file");
}

int npy_open(struct npy *a, const char *path, struct err *e)
{
    memset(a, 0, sizeof *a);
    if (map_open(&a->map, path, e) < 0)
        return -1;
    const uint8_t *b = a->map.data;
    int rc = -1;
    if (a->map.size < 12 || memcmp(b, magic, 6) != 0 || b[6] < 1 || b[6] > 3) {
        bad_begin(a, e);
    } else {
        const size_t at = b[6] == 1 ? 10 : 12, n = b[6] == 1 ? (size_t)b[8] | (size_t)b[9] << 8 : (size_t)b[8] |
                                                   (size_t)b[9] << 8 | (size_t)b[10] << 16 | (size_t)b[11] << 24;
        char *header = n <= 65536 && n <= a->map.size - at ? strndup((const char *)b + at, n) : NULL;
        rc = header ? read_header(a, header, at + n, e) : bad_header(a, n, e);
        free(header);
    }
    if (rc < 0)
        npy_close(a);
    return rc;
}

void npy_close(struct npy *a)
{
    if (a->map.path)
        map_close(&a->map);
    memset(a, 0, sizeof *a);
}

const char *npy_kind(const struct npy *a, char text[NPY_KIND])
{
    static const char *const types[] = { "float32", "int32", "int64" };
    int n = snprintf(text, NPY_KIND, "%s of shape (", types[a->type]);
    for (int i = 0; i < a->n_dims; i++)
        n += snprintf(text + n, (size_t)(NPY_KIND - n), i ? ", %" PRId64 : "%" PRId64, a->dim[i]);
    snprintf(text + n, (size_t)(NPY_KIND - n), a->n_dims == 1 ? ",)" : ")");
    return text;
}

/* The header is padded so that the data begins at a multiple of 64. */
static int write_array(const char *path, const char *descr, const char *shape, const void *data, size_t bytes,
                       struct err *e)
{
    struct atomic_file f;
    char head[128];
    memset(head, ' ', sizeof head);
    memcpy(head, magic, 6);
    head[6] = 1;
    head[7] = 0;
    head[8] = (char)(sizeof head - 10);
    head[9] = 0;
    const int n = snprintf(head + 10, sizeof head - 10, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr,
                           shape);
    head[10 + n] = ' ';
    head[sizeof head - 1] = '\n';
    if (atomic_open(&f, path, e) < 0)
        return -1;
    int rc = atomic_write(&f, head, sizeof head, e);
    rc = rc == 0 ? atomic_write(&f, data, bytes, e) : rc;
    rc = rc == 0 ? atomic_commit(&f, e) : rc;
    atomic_abort(&f);
    return rc;
}

int npy_write(const char *path, const float *x, int64_t rows, int64_t cols, struct err *e)
{
    char shape[64];
    snprintf(shape, sizeof shape, "(%" PRId64 ", %" PRId64 ")", rows, cols);
    return write_array(path, "<f4", shape, x, (size_t)(rows * cols) * sizeof *x, e);
}

int npy_write_ids(const char *path, const int32_t *ids, int64_t n, struct err *e)
{
    char shape[32];
    snprintf(shape, sizeof shape, "(%" PRId64 ",)", n);
    return write_array(path, "<i4", shape, ids, (size_t)n * sizeof *ids, e);
}
