/* plot.h - pictures of measurements as SVG: bars with their values, or points on two axes.
 *
 * The description is a JSON object:
 *     {"title", "note", "reference", "bars": [{"group", "label", "value", "text"}]}
 *         a bar for each row, with its text (default: its value) at its end, under the name of its
 *         group; a dashed line at the reference; note, reference and group may be absent
 *     {"title", "note", "x", "y", "points": [{"series", "label", "x", "y"}]}
 *         named axes, that of y logarithmic; a colour for each series, a label at each point, and
 *         all numbers in a table below
 * Colours follow the reader's preference for dark or light. */
#ifndef ZSE_CMD_PLOT_H
#define ZSE_CMD_PLOT_H

#include <jansson.h>
#include <stdio.h>

#include "libcommon/base/err.h"

/* CSS variables of a page or picture, for light and for dark: two series, lines, text, weaker text
 * and the background. */
#define PLOT_COLORS \
    ":root{color-scheme:light dark;--a:#1756a9;--b:#c0272d;--line:#d0d0d0;--text:#171717;--muted:#575757;--bg:#fff}" \
    "@media(prefers-color-scheme:dark){:root{--a:#8ebcf0;--b:#f2777a;--line:#333;--text:#ededed;--muted:#a3a3a3;" \
    "--bg:#0a0a0a}}"

/* Write text into XML or HTML; characters that steer terminals become '?'. */
void plot_text(FILE *out, const char *text);

/* Write a file that appears complete or not at all; "-": standard output. */
int plot_save(const char *path, const char *text, size_t n, struct err *e);

/* Write the picture to `path`, as plot_save() does.  -1 with *e, also if the description is
 * wrong. */
int plot_write(const json_t *description, const char *path, struct err *e);

#endif
