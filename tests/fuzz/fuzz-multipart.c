/* fuzz-multipart.c - any bytes as a form: the first line is its Content-Type. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

#include "libcommon/http/multipart.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *line = memchr(data, '\n', size);
    const size_t n = line ? (size_t)(line - data) : 0;
    char type[256];
    struct multipart m;
    struct problem pr = { 0 };
    snprintf(type, sizeof type, "%.*s", (int)(n < 200 ? n : 200), (const char *)data);
    const char *body = line ? (const char *)line + 1 : (const char *)data;
    const size_t left = size - (size_t)((const uint8_t *)body - data);
    if (multipart_parse(n ? type : "multipart/form-data; boundary=b", body, left, &m, &pr)) {
        if (pr.status != 400 && pr.status != 415)
            abort();
        return 0;
    }
    for (int i = 0; i < m.n; i++)           /* every part lies in the body */
        if (m.part[i].data < body || m.part[i].data + m.part[i].size > body + left || !m.part[i].name)
            abort();
    multipart_release(&m);
    return 0;
}
