/* bench_layers.c - compare the output of each layer with another implementation's, to find the
 * layer where they diverge. */
#include "cmd/zse-bench.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cmd/cli.h"
#include "cmd/npy.h"
#include "libcommon/cpu/cpu.h"

static const char prog[] = "zse-bench";

/* A model run on some tokens, layer by layer. */
struct layers {
    struct opened_model m;
    struct cpu_layers *run;
    int32_t *ids;
    int n, hidden, vocab, n_layers, exact;
    size_t size;                        /* n * hidden */
    float *x;                           /* output of the layers so far */
    float *alone;                       /* output of a layer that got the reference's input */
    float *before, *after;              /* the reference's input and output of a layer */
    int has_before;
    float *logits, *want_logits;
};

/* Distance of one array of rows from another. */
struct distance { double cosine, least_cosine, difference, largest; int least_row, same_top; };

static int path_in(char *out, size_t room, const char *dir, const char *name, int layer)
{
    const int n = layer < 0 ? snprintf(out, room, "%s/%s.npy", dir, name)
                            : snprintf(out, room, "%s/%s.%d.npy", dir, name, layer);
    return n > 0 && (size_t)n < room ? 0 : -1;
}

/* ---- the reference ---- */

/* Read rows x cols floats from DIR/NAME.npy; 1: there is no such file.  A leading dimension of 1, a
 * batch of one, is accepted. */
static int load(const char *dir, const char *name, int layer, int rows, int cols, float *out, struct err *e)
{
    char path[4096], found[NPY_KIND];
    struct npy a;
    struct stat st;
    if (path_in(path, sizeof path, dir, name, layer) < 0)
        return err_set(e, ERR_LIMIT, "%s: the name is too long", dir);
    if (stat(path, &st) != 0 && errno == ENOENT)
        return 1;
    if (npy_open(&a, path, e) < 0)
        return -1;
    const int batch = a.n_dims == 3 && a.dim[0] == 1;
    int rc = 0;
    if (a.type != NPY_F32 || a.n_dims != 2 + batch || a.dim[batch] != rows || a.dim[batch + 1] != cols)
        rc = err_set(e, ERR_SHAPE, "%s: found %s, expected float32 of shape (%d, %d)", path, npy_kind(&a, found), rows,
                     cols);
    else
        memcpy(out, a.data, (size_t)a.n * sizeof *out);
    npy_close(&a);
    for (size_t i = 0; rc == 0 && i < (size_t)rows * (size_t)cols; i++)
        if (!isfinite(out[i]))
            rc = err_set(e, ERR_FORMAT, "%s: token %zu, value %zu: is not finite", path, i / (size_t)cols,
                         i % (size_t)cols);
    return rc;
}

static int32_t *load_ids(const char *dir, int *n, struct err *e)
{
    char path[4096], found[NPY_KIND];
    struct npy a;
    if (path_in(path, sizeof path, dir, "ids", -1) < 0) {
        err_set(e, ERR_LIMIT, "%s: the name is too long", dir);
        return NULL;
    }
    if (npy_open(&a, path, e) < 0)
        return NULL;
    int32_t *ids = NULL;
    if (a.type == NPY_F32 || a.n < 1 || a.n > 1 << 24 || !(a.n_dims == 1 || (a.n_dims == 2 && a.dim[0] == 1)))
        err_set(e, ERR_SHAPE, "%s: found %s, expected whole numbers of shape (tokens,)", path, npy_kind(&a, found));
    else if (!(ids = malloc((size_t)a.n * sizeof *ids)))
        err_nomem(e, "token ids");
    *n = (int)a.n;
    for (int i = 0; ids && i < *n; i++) {
        int64_t v = -1;
        int32_t narrow;
        if (a.type == NPY_I64)
            memcpy(&v, a.data + 8 * (size_t)i, 8);
        else
            memcpy(&narrow, a.data + 4 * (size_t)i, 4), v = narrow;
        if (v < 0 || v > INT32_MAX) {
            err_set(e, ERR_FORMAT, "%s: token %d: %lld is no token id", path, i, (long long)v);
            free(ids);
            ids = NULL;
        } else {
            ids[i] = (int32_t)v;
        }
    }
    npy_close(&a);
    return ids;
}

/* Fail if DIR has a file that is not compared, such as that of a layer that the model lacks. */
static int check_names(const char *dir, int n_layers, struct err *e)
{
    DIR *d = opendir(dir);
    const struct dirent *f;
    int compared = 0, rc = 0;
    if (!d)
        return err_sys(e, "%s", dir);
    while (rc == 0 && (f = readdir(d))) {
        const size_t n = strlen(f->d_name);
        int layer = -1, used = 0;
        if (n < 4 || strcmp(f->d_name + n - 4, ".npy") != 0 || strcmp(f->d_name, "ids.npy") == 0)
            continue;
        const int is_layer = sscanf(f->d_name, "layer.%6d.npy%n", &layer, &used) == 1 && (size_t)used == n &&
                             layer >= 0 && layer < n_layers;
        if (!is_layer && strcmp(f->d_name, "embed.npy") != 0 && strcmp(f->d_name, "logits.npy") != 0)
            rc = err_set(e, ERR_FORMAT, "%s/%s: expected ids, embed, logits, or layer.0 to layer.%d", dir, f->d_name,
                         n_layers - 1);
        compared++;
    }
    closedir(d);
    return rc == 0 && !compared ? err_set(e, ERR_FORMAT,
                                          "%s: has no embed.npy, layer.N.npy or logits.npy to compare with", dir) : rc;
}

/* ---- distances ---- */

static int best_of(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return best;
}

static int measure(const float *x, const float *want, int rows, int cols, struct distance *d, struct err *e)
{
    *d = (struct distance){ .least_cosine = INFINITY };
    for (int r = 0; r < rows; r++) {
        const float *a = x + (size_t)r * (size_t)cols, *b = want + (size_t)r * (size_t)cols;
        double ab = 0, aa = 0, bb = 0;
        for (int i = 0; i < cols; i++) {
            const double difference = fabs((double)a[i] - b[i]);
            if (!isfinite(a[i]))
                return err_set(e, ERR_FORMAT, "token %d: value %d that the model computed is not finite", r, i);
            ab += (double)a[i] * b[i];
            aa += (double)a[i] * a[i];
            bb += (double)b[i] * b[i];
            d->difference = difference > d->difference ? difference : d->difference;
            d->largest = fabs((double)b[i]) > d->largest ? fabs((double)b[i]) : d->largest;
        }
        const double cosine = aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : aa == bb;
        d->cosine += cosine / rows;
        if (cosine < d->least_cosine) {
            d->least_cosine = cosine;
            d->least_row = r;
        }
        d->same_top += best_of(a, cols) == best_of(b, cols);
    }
    return 0;
}

static json_t *distance_json(const struct distance *d)
{
    return json_pack("{s:f, s:f, s:i, s:f, s:f}", "cosine", d->cosine, "least_cosine", d->least_cosine, "least_token",
                     d->least_row, "largest_difference", d->difference, "largest", d->largest);
}

static double real_of(const json_t *o, const char *key) { return json_number_value(json_object_get(o, key)); }

static void print_row(const char *name, const json_t *d)
{
    const json_t *alone = json_object_get(d, "alone");
    printf("%-10s  %9.6f  %9.6f  %11.4g  %11.4g", name, real_of(d, "cosine"), real_of(d, "least_cosine"),
           real_of(d, "largest_difference"), real_of(d, "largest"));
    if (alone)
        printf("  %9.6f  %11.4g", real_of(alone, "cosine"), real_of(alone, "largest_difference"));
    putchar('\n');
}

static void print_text(const json_t *j)
{
    const json_t *embed = json_object_get(j, "embed"), *logits = json_object_get(j, "logits"), *row;
    size_t i;
    char name[32];
    printf("%-10s  %9s  %9s  %11s  %11s  %9s  %11s\n", "", "cosine", "least", "difference", "largest", "alone",
           "difference");
    if (embed)
        print_row("embed", embed);
    json_array_foreach(json_object_get(j, "layers"), i, row) {
        snprintf(name, sizeof name, "layer %d", (int)json_integer_value(json_object_get(row, "layer")));
        print_row(name, row);
    }
    if (logits) {
        print_row("logits", logits);
        printf("most likely token the same after %.1f %% of %d token%s\n", 100 * real_of(logits, "top1_agreement"),
               (int)json_integer_value(json_object_get(j, "tokens")),
               plural(json_integer_value(json_object_get(j, "tokens"))));
    }
}

/* ---- the run ---- */

static int open_layers(struct layers *l, const struct bench_options *o, const char *model, struct err *e)
{
    if (open_model(prog, model, &o->run, &l->m, e) != 0)
        return -1;
    const struct config *c = &l->m.model->config;
    if (l->n > context_len(&l->m, &o->run))
        return err_set(e, ERR_LIMIT, "%d token%s, expected at most the context of %d", l->n, plural(l->n),
                       context_len(&l->m, &o->run));
    l->hidden = c->hidden_size;
    l->vocab = c->vocab_size;
    l->n_layers = c->n_layers;
    l->size = (size_t)l->n * (size_t)l->hidden;
    float **const rows[] = { &l->x, &l->alone, &l->before, &l->after };
    for (int i = 0; i < 4; i++)
        if (!(*rows[i] = malloc(l->size * sizeof(float))))
            return err_nomem(e, "activations");
    l->logits = malloc((size_t)l->n * (size_t)l->vocab * sizeof(float));
    l->want_logits = malloc((size_t)l->n * (size_t)l->vocab * sizeof(float));
    if (!l->logits || !l->want_logits)
        return err_nomem(e, "logits");
    l->run = cpu_layers_open(c, 1, l->n, o->run.threads, o->run.kernels, e);
    return l->run ? cpu_layers_embed(l->run, l->m.model, l->ids, l->x, e) : -1;
}

static void close_layers(struct layers *l)
{
    cpu_layers_close(l->run);
    free(l->ids);
    free(l->x);
    free(l->alone);
    free(l->before);
    free(l->after);
    free(l->logits);
    free(l->want_logits);
    close_model(&l->m);
}

static int run_layer(struct layers *l, int i, float *x, struct err *e)
{
    return cpu_layers_run(l->run, i, &l->m.model->layers[i], l->exact, x, NULL, e);
}

/* Run one layer on our own activations and, where the reference has the layer's input, on that as
 * well. */
static int compare_layer(struct layers *l, int i, const char *dir, json_t *rows, struct err *e)
{
    struct distance d, alone;
    const int there = load(dir, "layer", i, l->n, l->hidden, l->after, e), both = there == 0 && l->has_before;
    if (there < 0 || run_layer(l, i, l->x, e) < 0)
        return -1;
    if (both) {
        memcpy(l->alone, l->before, l->size * sizeof *l->alone);
        if (run_layer(l, i, l->alone, e) < 0)
            return -1;
    }
    l->has_before = there == 0;
    if (there)
        return 0;
    if (measure(l->x, l->after, l->n, l->hidden, &d, e) < 0 ||
        (both && measure(l->alone, l->after, l->n, l->hidden, &alone, e) < 0))
        return err_prefix(e, "layer %d", i);
    json_t *row = distance_json(&d);
    json_object_set_new(row, "layer", json_integer(i));
    if (both)
        json_object_set_new(row, "alone", distance_json(&alone));
    json_array_append_new(rows, row);
    float *t = l->before;
    l->before = l->after;
    l->after = t;
    return 0;
}

static int compare(struct layers *l, const char *dir, json_t *j, struct err *e)
{
    struct distance d;
    json_t *rows = json_array();
    json_object_set_new(j, "layers", rows);
    int there = load(dir, "embed", -1, l->n, l->hidden, l->before, e);
    if (there < 0 || (there == 0 && measure(l->x, l->before, l->n, l->hidden, &d, e) < 0))
        return -1;
    l->has_before = there == 0;
    if (there == 0)
        json_object_set_new(j, "embed", distance_json(&d));
    for (int i = 0; i < l->n_layers; i++)
        if (compare_layer(l, i, dir, rows, e) < 0)
            return -1;
    there = load(dir, "logits", -1, l->n, l->vocab, l->want_logits, e);
    if (there)
        return there < 0 ? -1 : 0;
    if (cpu_layers_logits(l->run, l->m.model, l->exact, l->x, l->n, l->logits, e) < 0 ||
        measure(l->logits, l->want_logits, l->n, l->vocab, &d, e) < 0)
        return err_prefix(e, "logits");
    json_t *row = distance_json(&d);
    json_object_set_new(row, "top1_agreement", json_real((double)d.same_top / l->n));
    json_object_set_new(j, "logits", row);
    return 0;
}

/* Write the arrays of this model, as a reference for others. */
static int write_reference(struct layers *l, const char *dir, struct err *e)
{
    char path[4096];
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return err_sys(e, "%s", dir);
    if (path_in(path, sizeof path, dir, "layer", l->n_layers) < 0)
        return err_set(e, ERR_LIMIT, "%s: the name is too long", dir);
    path_in(path, sizeof path, dir, "ids", -1);
    if (npy_write_ids(path, l->ids, l->n, e) < 0)
        return -1;
    path_in(path, sizeof path, dir, "embed", -1);
    if (npy_write(path, l->x, l->n, l->hidden, e) < 0)
        return -1;
    for (int i = 0; i < l->n_layers; i++) {
        path_in(path, sizeof path, dir, "layer", i);
        if (run_layer(l, i, l->x, e) < 0 || npy_write(path, l->x, l->n, l->hidden, e) < 0)
            return -1;
    }
    path_in(path, sizeof path, dir, "logits", -1);
    return cpu_layers_logits(l->run, l->m.model, l->exact, l->x, l->n, l->logits, e) < 0
               ? -1 : npy_write(path, l->logits, l->n, l->vocab, e);
}

int bench_layers(const struct bench_options *o, const char *model)
{
    struct layers l = { .exact = o->run.exact || o->output };
    struct err e;
    json_t *j = json_object();
    int rc = -1;
    l.ids = o->output ? bench_ids(o->ids, &l.n, &e) : load_ids(o->ref, &l.n, &e);
    if (!l.ids)
        goto done;
    if (l.n < 1) {
        err_set(&e, ERR_LIMIT, "--ids: expected at least 1 token");
        goto done;
    }
    if (open_layers(&l, o, model, &e) < 0)
        goto done;
    if (o->output) {
        rc = write_reference(&l, o->output, &e);
    } else {
        json_object_set_new(j, "tokens", json_integer(l.n));
        json_object_set_new(j, "exact", json_boolean(l.exact));
        rc = check_names(o->ref, l.n_layers, &e) < 0 || compare(&l, o->ref, j, &e) < 0 ? -1 : 0;
        if (rc == 0 && o->json)
            cli_json(j);
        else if (rc == 0)
            print_text(j);
    }
done:
    json_decref(j);
    close_layers(&l);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}
