/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lines over a logarithmic (base 2) x axis as one self-contained SVG file: no script, no font, no
 * style from elsewhere. Text is escaped. The y axis is logarithmic (base 10) or begins at 0.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "core/output.h"

enum { WIDTH = 860, HEIGHT = 480, LEFT = 76, RIGHT = 30, TOP = 48, BOTTOM = 58 };

static const char *const colors[] = {"#1b6ca8", "#d1495b", "#3f8f5f", "#edae49",
                                     "#6c4f91", "#00798c", "#8d5524", "#555555"};

typedef struct frame {
    double x0, x1, y0, y1; /* what the axes span; logarithms where an axis is logarithmic */
    bool y_log;
} frame;

static void text(FILE *f, const char *s)
{
    for (; *s != '\0'; s++) {
        if (*s == '&')
            fputs("&amp;", f);
        else if (*s == '<')
            fputs("&lt;", f);
        else
            fputc(*s, f);
    }
}

static double x_of(const frame *fr, double x)
{
    return LEFT + (log2(x) - fr->x0) / (fr->x1 - fr->x0) * (WIDTH - LEFT - RIGHT);
}

static double y_of(const frame *fr, double y)
{
    double v = fr->y_log ? log10(y) : y;

    return HEIGHT - BOTTOM - (v - fr->y0) / (fr->y1 - fr->y0) * (HEIGHT - TOP - BOTTOM);
}

static frame frame_of(const bench_chart *chart)
{
    frame fr = {INFINITY, -INFINITY, INFINITY, -INFINITY, chart->y_log};

    for (size_t s = 0; s < chart->n; s++)
        for (size_t i = 0; i < chart->series[s].n; i++) {
            double x = log2(chart->series[s].x[i]), y = chart->series[s].y[i];

            fr.x0 = fmin(fr.x0, x);
            fr.x1 = fmax(fr.x1, x);
            fr.y0 = fmin(fr.y0, fr.y_log ? log10(y) : 0);
            fr.y1 = fmax(fr.y1, fr.y_log ? log10(y) : y * 1.05);
        }
    if (fr.y_log) {
        fr.y0 = floor(fr.y0);
        fr.y1 = ceil(fr.y1);
    }
    if (!(fr.x1 > fr.x0))
        fr.x1 = fr.x0 + 1;
    if (!(fr.y1 > fr.y0))
        fr.y1 = fr.y0 + 1;
    return fr;
}

static void bytes_label(FILE *f, double bytes)
{
    static const char *const units[] = {"", "K", "M", "G", "T"};
    int unit = 0;

    while (bytes >= 1024 && unit < 4) {
        bytes /= 1024;
        unit++;
    }
    fprintf(f, "%g%s", bytes, units[unit]);
}

static void x_axis(FILE *f, const bench_chart *chart, const frame *fr)
{
    int step = fr->x1 - fr->x0 > 14 ? 3 : 1;

    for (int e = (int)ceil(fr->x0 - 1e-9); e <= (int)floor(fr->x1 + 1e-9); e += step) {
        double x = x_of(fr, exp2(e));

        fprintf(f, "<line x1='%.1f' x2='%.1f' y1='%d' y2='%d' stroke='#e4e7eb'/>", x, x, TOP,
                HEIGHT - BOTTOM);
        fprintf(f, "<text x='%.1f' y='%d' text-anchor='middle'>", x, HEIGHT - BOTTOM + 18);
        if (chart->x_bytes)
            bytes_label(f, exp2(e));
        else
            fprintf(f, "%g", exp2(e));
        fputs("</text>\n", f);
    }
    fprintf(f, "<text x='%d' y='%d' text-anchor='middle'>", (LEFT + WIDTH - RIGHT) / 2,
            HEIGHT - 16);
    text(f, chart->x_label);
    fputs("</text>\n", f);
}

static void y_axis(FILE *f, const bench_chart *chart, const frame *fr)
{
    double step = fr->y_log ? 1 : pow(10, floor(log10(fr->y1 / 2))), v;

    if (!fr->y_log && fr->y1 / step > 10)
        step *= fr->y1 / step > 25 ? 5 : 2;
    for (v = fr->y0; v <= fr->y1 + step * 1e-6; v += step) {
        double y = y_of(fr, fr->y_log ? pow(10, v) : v);

        fprintf(f, "<line x1='%d' x2='%d' y1='%.1f' y2='%.1f' stroke='#e4e7eb'/>", LEFT,
                WIDTH - RIGHT, y, y);
        fprintf(f, "<text x='%d' y='%.1f' text-anchor='end'>%g</text>\n", LEFT - 8, y + 4,
                fr->y_log ? pow(10, v) : v);
    }
    fprintf(f, "<text transform='translate(20 %d) rotate(-90)' text-anchor='middle'>",
            (TOP + HEIGHT - BOTTOM) / 2);
    text(f, chart->y_label);
    fputs("</text>\n", f);
}

static void draw_series(FILE *f, const bench_chart *chart, const frame *fr, size_t s)
{
    const bench_series *series = &chart->series[s];
    const char *color = colors[s % (sizeof colors / sizeof colors[0])];
    size_t i;

    fprintf(f, "<polyline fill='none' stroke='%s' stroke-width='2' points='", color);
    for (i = 0; i < series->n; i++)
        fprintf(f, "%.1f,%.1f ", x_of(fr, series->x[i]), y_of(fr, series->y[i]));
    fputs("'/>\n", f);
    for (i = 0; i < series->n; i++)
        fprintf(f, "<circle cx='%.1f' cy='%.1f' r='2.6' fill='%s'/>", x_of(fr, series->x[i]),
                y_of(fr, series->y[i]), color);
    fprintf(f, "<rect x='%d' y='%zu' width='14' height='3' fill='%s'/><text x='%d' y='%zu'>",
            LEFT + 14, TOP + 12 + 18 * s, color, LEFT + 36, TOP + 17 + 18 * s);
    text(f, series->name);
    fputs("</text>\n", f);
}

static void draw(FILE *f, const bench_chart *chart)
{
    frame fr = frame_of(chart);

    fprintf(f,
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %d %d' font-family='sans-serif' "
            "font-size='12' fill='#333'>\n<rect width='100%%' height='100%%' fill='#fff'/>\n"
            "<text x='%d' y='28' font-size='16'>",
            WIDTH, HEIGHT, LEFT);
    text(f, chart->title);
    fputs("</text>\n", f);
    x_axis(f, chart, &fr);
    y_axis(f, chart, &fr);
    for (size_t s = 0; s < chart->n; s++)
        draw_series(f, chart, &fr, s);
    fputs("</svg>\n", f);
}

tutti_status bench_chart_write(const char *path, const bench_chart *chart)
{
    char *drawn = NULL;
    size_t bytes;
    FILE *f = open_memstream(&drawn, &bytes);
    tutti_status status;
    tt_output out;

    if (f == NULL)
        return tt_fail_errno(TUTTI_ERR_NO_MEMORY, errno, "--svg %s", path);
    draw(f, chart);
    if (fclose(f) != 0) {
        free(drawn);
        return tt_fail_errno(TUTTI_ERR_NO_MEMORY, errno, "--svg %s", path);
    }
    status = tt_output_open(path, true, &out);
    if (status == TUTTI_OK)
        status = tt_output_write(&out, drawn, bytes);
    if (status == TUTTI_OK)
        status = tt_output_commit(&out, false);
    tt_output_drop(&out);
    free(drawn);
    return status;
}
