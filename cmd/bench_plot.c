/* bench_plot.c - draw a picture of measurements that a script has as JSON. */
#include "cmd/zse-bench.h"

#include <stdio.h>
#include <string.h>

#include "cmd/cli.h"
#include "cmd/plot.h"

static const char prog[] = "zse-bench";

int bench_plot(const struct bench_options *o, const char *data)
{
    FILE *f = strcmp(data, "-") == 0 ? stdin : fopen(data, "r");
    struct err e;
    json_error_t wrong;
    if (!f) {
        err_sys(&e, "%s", data);
        return cli_fail(prog, &e);
    }
    json_t *j = json_loadf(f, JSON_REJECT_DUPLICATES, &wrong);
    const int rc = j ? plot_write(j, o->output, &e)
                     : err_set(&e, ERR_FORMAT, "%s: line %d: %s", data, wrong.line, wrong.text);
    if (j && rc && e.code == ERR_FORMAT)
        err_prefix(&e, "%s", data);
    json_decref(j);
    if (f != stdin)
        fclose(f);
    return rc == 0 ? cli_finish(prog) : cli_fail(prog, &e);
}
