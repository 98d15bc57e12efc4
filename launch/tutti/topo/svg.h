/* SPDX-License-Identifier: Apache-2.0 */
/* Between svg.c and svg_frame.c. */
#ifndef TUTTI_TOPO_SVG_H
#define TUTTI_TOPO_SVG_H

#include "view.h"

enum { SVG_MARGIN = 36 };

/* One line of text; style is a class of the style sheet. */
void svg_label(FILE *out, double x, double y, const char *style, const char *text);
/* The beginning of the file, up to the title. */
void svg_head(FILE *out, const topo_view *view, double width, double height);
double svg_findings_height(const topo_view *view, double width);
void svg_findings(FILE *out, const topo_view *view, double y, double width);

#endif
