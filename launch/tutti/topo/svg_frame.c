/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What stands around the drawing: the style sheet, the title, the findings below.
 *
 * Everything is in the one file, so that it can be mailed and shown anywhere: fonts are named with
 * fall-backs, and colours are classes of the style sheet. Text is measured by a mean width, which
 * is why lines are wrapped a little short.
 */
#include <string.h>

#include "svg.h"

static void put_text(FILE *out, const char *text)
{
    for (; *text != '\0'; text++)
        if (*text == '<')
            fputs("&lt;", out);
        else if (*text == '>')
            fputs("&gt;", out);
        else if (*text == '&')
            fputs("&amp;", out);
        else if ((unsigned char)*text >= ' ')
            fputc(*text, out);
}

/* One line of text; class is a style of the header. */
void svg_label(FILE *out, double x, double y, const char *style, const char *text)
{
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, style);
    put_text(out, text);
    fputs("</text>\n", out);
}

static const char style[] =
    "text{font-family:Inter,'Helvetica Neue',Helvetica,Arial,'DejaVu Sans',sans-serif;fill:#1f2937}"
    ".title{font-size:26px;font-weight:700}.sub{font-size:14px;fill:#5b6576}"
    ".host{font-size:15px;font-weight:600;fill:#374151}"
    ".strong{font-size:15px;font-weight:700;text-anchor:middle}"
    ".small{font-size:11.5px;text-anchor:middle;fill:#374151}"
    ".tiny{font-size:10.5px;fill:#2d7d4f}.tinymid{font-size:10.5px;text-anchor:middle;fill:#6b7280}"
    ".panel{fill:#eef1f7;stroke:#d6dce8}.card{fill:#ffffff;stroke:#c8d0de}"
    ".isle0{fill:#2f9e5f}.isle1{fill:#2f7fbf}.isle2{fill:#b2772a}.isle3{fill:#8a5bc0}.isle{fill:#"
    "9aa5b8}"
    ".nvswitch{fill:url(#nv)}.nvswitchtext{font-size:13.5px;font-weight:600;text-anchor:middle;"
    "fill:#ffffff}"
    ".trunk{fill:#8fd3ab}.weak{fill:#f0b95c}.arc{fill:none;stroke:#45ad72;stroke-opacity:.75;"
    "stroke-linecap:round}"
    ".missing{stroke:#d1342f;stroke-dasharray:4 4}.pcie{stroke:#9db2e3}"
    ".pill{fill:#dfe8ff;stroke:#9db2e3}.pilltext{font-size:11.5px;font-weight:600;text-anchor:"
    "middle;"
    "fill:#34508f}"
    ".chip{fill:#ffffff;stroke:#d9cdb8}.down{stroke:#d1342f;stroke-dasharray:4 3}"
    ".chiptext{font-size:11.5px;font-weight:600;text-anchor:middle}"
    ".cpu{fill:#46536b}.cputext{font-size:13px;font-weight:600;text-anchor:middle;fill:#ffffff}"
    ".cpusmall{font-size:10.5px;text-anchor:middle;fill:#cfd6e4}.sys{stroke:#46536b}"
    ".note{font-size:12.5px;fill:#374151}.id{font-size:12.5px;font-weight:700}";

void svg_head(FILE *out, const topo_view *view, double width, double height)
{
    char text[256];
    const tutti_topo *topo = view->topo;
    fprintf(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 "
        "%.0f %.0f\">\n<defs><linearGradient id=\"nv\" x1=\"0\" x2=\"1\"><stop offset=\"0\" "
        "stop-color=\"#23814b\"/><stop offset=\"1\" stop-color=\"#3fb574\"/></linearGradient>"
        "</defs>\n<style>%s</style>\n<rect width=\"100%%\" height=\"100%%\" fill=\"#fafbfd\"/>\n",
        width, height, width, height, style);
    const char *name = strrchr(topo->origin, '/');
    svg_label(out, SVG_MARGIN, 44, "title", name != NULL ? name + 1 : topo->origin);
    snprintf(text, sizeof text, "%d host%s, %d GPU%s, %d NIC%s", topo->n_hosts,
             topo->n_hosts == 1 ? "" : "s", tutti_topo_gpu_count(topo),
             tutti_topo_gpu_count(topo) == 1 ? "" : "s", tutti_topo_nic_count(topo),
             tutti_topo_nic_count(topo) == 1 ? "" : "s");
    if (topo->n_machines > 0 && view->cost[0].local > 1) {
        size_t at = strlen(text);
        snprintf(text + at, sizeof text - at, "; all-reduce in a host %.4g GB/s by the model",
                 tt_cost_busbw(&view->cost[0], TT_COST_ALL_REDUCE, VIEW_BYTES));
    }
    svg_label(out, SVG_MARGIN, 68, "sub", text);
}

/* Text in lines of at most `most` characters; returns the y behind the last. */
static double wrapped(FILE *out, double x, double y, size_t most, const char *text)
{
    char row[256];
    most = most < sizeof row ? most : sizeof row - 1;
    while (*text != '\0') {
        size_t n = strlen(text);
        if (n > most)
            for (n = most; n > 1 && text[n] != ' '; n--)
                ;
        snprintf(row, sizeof row, "%.*s", (int)n, text);
        svg_label(out, x, y, "note", row);
        y += 17;
        text += n;
        while (*text == ' ')
            text++;
    }
    return y;
}

static size_t columns_of(double width)
{
    double columns = (width - 2 * SVG_MARGIN - 24) / 6.6;
    return columns < 40 ? 40 : (size_t)columns;
}

double svg_findings_height(const topo_view *view, double width)
{
    size_t rows = 0, most = columns_of(width);
    for (size_t i = 0; i < view->findings.n; i++)
        rows += 2 + strlen(view->findings.list[i].text) / (most * 9 / 10);
    return 46 + (double)rows * 17 + (double)view->findings.n * 8;
}

void svg_findings(FILE *out, const topo_view *view, double y, double width)
{
    static const char *const colour[] = {"#8a94a6", "#e69a1c", "#d1342f"};
    char text[128];
    svg_label(out, SVG_MARGIN, y + 20, "host", view->findings.n > 0 ? "Findings" : "No findings");
    y += 46;
    for (size_t i = 0; i < view->findings.n; i++) {
        const tt_finding *f = &view->findings.list[i];
        fprintf(out, "<circle cx=\"%d\" cy=\"%.1f\" r=\"5\" fill=\"%s\"/>\n", SVG_MARGIN + 6, y - 4,
                colour[f->severity]);
        if (f->cost > 0)
            snprintf(text, sizeof text, "%s, costs up to %.0f %%", f->id, 100 * f->cost);
        else
            snprintf(text, sizeof text, "%s", f->id);
        svg_label(out, SVG_MARGIN + 20, y, "id", text);
        y = wrapped(out, SVG_MARGIN + 20, y + 17, columns_of(width), f->text) + 8;
    }
}
