/* joined.c - make one tensor of several that lie apart in the source. */
#include "libcommon/import/joined.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "libcommon/quant/ggml.h"

enum { MOST_PARTS = 512 };

struct joined {
    struct joined *next;
    struct source_tensor tensor;
    const struct source_tensor *parts[MOST_PARTS];
};

int source_part_name(const char *name, int i, char *out, size_t room)
{
    const char *open = strchr(name, '{'), *close = open ? strchr(open, '}') : NULL;
    if (!close)
        return 0;
    const char *at = open + 1, *dots = strstr(at, "..");
    if (dots && dots < close) {                 /* {0..3} */
        const long part = strtol(at, NULL, 10) + i;
        const int n = part > strtol(dots + 2, NULL, 10) ? 0 : snprintf(out, room, "%.*s%ld%s", (int)(open - name), name,
                                                                    part, close + 1);
        return n > 0 && (size_t)n < room;
    }
    for (; i > 0; i--) {
        at += strcspn(at, ",}");
        if (at++ >= close)
            return 0;
    }
    const int n = snprintf(out, room, "%.*s%.*s%s", (int)(open - name), name, (int)strcspn(at, ",}"), at, close + 1);
    return n > 0 && (size_t)n < room;
}

/* 1 if two parts agree in all dimensions but the first. */
static int fits(const struct source_tensor *a, const struct source_tensor *b)
{
    return a->n_dims == b->n_dims && a->n_dims > 0 &&
           memcmp(a->dim + 1, b->dim + 1, (size_t)(a->n_dims - 1) * sizeof *a->dim) == 0;
}

static int is_plain_float(const struct source_tensor *t)
{
    return !t->packed && (t->type == GGML_F32 || t->type == GGML_F16 || t->type == GGML_BF16);
}

/* Fill j with the parts that its name lists; -1: one is missing or has another shape. */
static int join_parts(const struct source *s, struct joined *j, const char *name)
{
    struct source_tensor *t = &j->tensor;
    char part[256];
    int n = 0, alike = 1;
    for (; source_part_name(name, n, part, sizeof part); n++) {
        const struct source_tensor *p = n < MOST_PARTS ? source_find(s, part) : NULL;
        if (!p || (n > 0 && !fits(j->parts[0], p)))
            return -1;
        alike = alike && is_plain_float(p) && p->type == (n ? j->parts[0]->type : p->type);
        if (n == 0) {
            *t = (struct source_tensor){ .n_dims = p->n_dims, .shard = p->shard };
            memcpy(t->dim, p->dim, sizeof t->dim);
        } else {
            t->dim[0] += p->dim[0];
        }
        t->size += source_bytes(p);
        j->parts[n] = p;
    }
    /* parts of different types, or quantized ones, are seen as the floats that they decode to */
    t->type = n && alike ? j->parts[0]->type : GGML_F32;
    t->parts = j->parts;
    t->n_parts = n;
    return n ? 0 : -1;
}

const struct source_tensor *joined_find(const struct source *s, struct joined **list, const char *name)
{
    for (struct joined *j = *list; j; j = j->next)
        if (strcmp(j->tensor.name, name) == 0)
            return &j->tensor;
    struct joined *j = calloc(1, sizeof *j);
    char *own = j && join_parts(s, j, name) == 0 ? strdup(name) : NULL;
    if (!own) {
        free(j);
        return NULL;
    }
    j->tensor.name = own;
    j->next = *list;
    *list = j;
    return &j->tensor;
}

void joined_free(struct joined *list)
{
    for (struct joined *next; list; list = next) {
        next = list->next;
        free((char *)list->tensor.name);
        free(list);
    }
}
