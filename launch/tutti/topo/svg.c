/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine drawn. From top to bottom: what NVLink joins, the GPUs, the PCIe switches they hang
 * on, the NICs, the NUMA domains; below that the findings.
 *
 * Devices stand in columns, NUMA domain by domain and in it one group per branch of the PCIe tree;
 * a group is as wide as its GPUs or its NICs need. Hosts that are alike are drawn once, except that
 * two are both shown: then equal colours of NICs, which are rails, say something. Positions are
 * computed first (place_...), then everything is drawn back to front.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "core/output.h"
#include "svg.h"

enum {
    CARD_W = 112,
    CARD_H = 86,
    GAP = 14,
    PAD = 18,
    PILL_H = 28,
    CHIP_H = 36,
    CPU_H = 40,
    HEAD = 86,
    HOSTS_MAX = 2,
    GROUPS_MAX = TT_TOPO_MAX_GPUS + TT_TOPO_MAX_NICS
};

/* A branch of the PCIe tree with its devices. */
typedef struct group {
    int root, numa; /* topmost PCI object of the branch; -1: devices that share none */
    int gpus, nics, columns;
    double x, width;
} group;

typedef struct drawing {
    FILE *out;
    const topo_view *view;
    const tt_machine *m;
    group groups[GROUPS_MAX];
    int n_groups;
    double gpu_x[TT_TOPO_MAX_GPUS]; /* centres */
    double nic_x[TT_TOPO_MAX_NICS], nic_w[TT_TOPO_MAX_NICS];
    int nic_row[TT_TOPO_MAX_NICS];
    int nic_rows;
    double numa_x[TT_TOPO_MAX_NUMA], numa_w[TT_TOPO_MAX_NUMA];
    double width, top; /* of the host being drawn; y of its top */
    double link_h; /* height of the NVLink zone */
    double y_gpu, y_pill, y_nic, y_cpu, bottom;
} drawing;

static const char *const rail_colour[] = {"#e8833a", "#d9a514", "#8db63c", "#3fae8c",
                                          "#3c9fc9", "#5b7fdb", "#8f6bd0", "#c7609f"};
enum { RAILS = sizeof rail_colour / sizeof rail_colour[0] };

static void box(FILE *out, double x, double y, double w, double h, double r, const char *style)
{
    fprintf(out,
            "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"%.1f\" "
            "class=\"%s\"/>\n",
            x, y, w, h, r, style);
}

static void line(FILE *out, double x1, double y1, double x2, double y2, const char *style,
                 double width)
{
    fprintf(out,
            "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" class=\"%s\" "
            "stroke-width=\"%.1f\"/>\n",
            x1, y1, x2, y2, style, width);
}

static int root_of(const tt_machine *m, int pci)
{
    while (pci >= 0 && m->pci[pci].parent >= 0)
        pci = m->pci[pci].parent;
    return pci;
}

/* The branch that a device shares with others, -1 where it has its own or none. */
static int branch_of(const tt_machine *m, int pci)
{
    int root = root_of(m, pci), devices = 0;
    if (root < 0)
        return -1;
    for (int g = 0; g < m->n_gpus; g++)
        devices += root_of(m, m->gpus[g].pci) == root;
    for (int k = 0; k < m->n_nics; k++)
        devices += root_of(m, m->nics[k].pci) == root;
    return devices > 1 ? root : -1;
}

static group *group_of(drawing *d, int pci, int numa)
{
    int root = branch_of(d->m, pci);
    for (int i = 0; i < d->n_groups; i++)
        if (d->groups[i].root == root && d->groups[i].numa == numa)
            return &d->groups[i];
    d->groups[d->n_groups] = (group){.root = root, .numa = numa};
    return &d->groups[d->n_groups++];
}

static int by_numa(const void *a, const void *b)
{
    const group *x = a, *y = b;
    if (x->numa != y->numa)
        return x->numa - y->numa;
    if ((x->gpus == 0) != (y->gpus == 0))
        return x->gpus == 0 ? 1 : -1;
    return x->root - y->root;
}

static void make_groups(drawing *d)
{
    d->n_groups = 0;
    for (int g = 0; g < d->m->n_gpus; g++)
        group_of(d, d->m->gpus[g].pci, d->m->gpus[g].numa)->gpus++;
    for (int k = 0; k < d->m->n_nics; k++)
        group_of(d, d->m->nics[k].pci, d->m->nics[k].numa)->nics++;
    qsort(d->groups, (size_t)d->n_groups, sizeof d->groups[0], by_numa);
    for (int i = 0; i < d->n_groups; i++) {
        group *g = &d->groups[i];
        g->columns = g->gpus > (g->nics + 1) / 2 ? g->gpus : (g->nics + 1) / 2;
        g->width = g->columns * (CARD_W + GAP) - GAP;
    }
}

static bool in_group(const group *g, const tt_machine *m, int pci, int numa)
{
    return numa == g->numa && branch_of(m, pci) == g->root;
}

/* Does the group have a switch worth drawing? */
static bool is_switch(const group *g)
{
    return g->root >= 0;
}

static void place_devices(drawing *d, const group *g, bool *gpu_done, bool *nic_done)
{
    const tt_machine *m = d->m;
    int at = 0, rows = g->columns > 0 ? (g->nics + g->columns - 1) / g->columns : 0;
    double gpu_step = g->gpus > 0 ? (g->width + GAP) / g->gpus : 0;
    for (int i = 0; i < m->n_gpus && at < g->gpus; i++)
        if (!gpu_done[i] && in_group(g, m, m->gpus[i].pci, m->gpus[i].numa)) {
            d->gpu_x[i] = g->x + (at + 0.5) * gpu_step - GAP / 2.0;
            gpu_done[i] = true;
            at++;
        }
    int per_row = rows > 0 ? (g->nics + rows - 1) / rows : 1;
    double nic_step = (g->width + GAP) / per_row;
    at = 0;
    for (int k = 0; k < m->n_nics && at < g->nics; k++)
        if (!nic_done[k] && in_group(g, m, m->nics[k].pci, m->nics[k].numa)) {
            d->nic_x[k] = g->x + (at % per_row + 0.5) * nic_step - GAP / 2.0;
            d->nic_w[k] = fmin(CARD_W - 26, nic_step - 26); /* the switch's way up passes beside */
            d->nic_row[k] = at / per_row;
            nic_done[k] = true;
            at++;
        }
    d->nic_rows = rows > d->nic_rows ? rows : d->nic_rows;
}

static void place_columns(drawing *d)
{
    bool gpu_done[TT_TOPO_MAX_GPUS] = {false}, nic_done[TT_TOPO_MAX_NICS] = {false};
    double x = SVG_MARGIN + PAD;
    d->nic_rows = 0;
    for (int n = 0; n < d->m->n_numa; n++)
        d->numa_w[n] = 0;
    for (int i = 0; i < d->n_groups; i++) {
        group *g = &d->groups[i];
        if (i > 0 && g->numa != d->groups[i - 1].numa)
            x += 2 * PAD;
        if (d->numa_w[g->numa] == 0)
            d->numa_x[g->numa] = x;
        g->x = x;
        place_devices(d, g, gpu_done, nic_done);
        d->numa_w[g->numa] = x + g->width - d->numa_x[g->numa];
        x += g->width + GAP + 6;
    }
    d->width = x - GAP - 6 + PAD + SVG_MARGIN;
    if (d->n_groups == 0)
        d->width = 480;
}

static bool has_switch(const tt_machine *m)
{
    for (int l = 0; l < m->n_nvlinks; l++)
        if (m->nvlinks[l].peer == TT_PEER_SWITCH)
            return true;
    return false;
}

static void place_rows(drawing *d)
{
    double widest = 0;
    bool by_switch = has_switch(d->m);
    for (int l = 0; l < d->m->n_nvlinks; l++) {
        const tt_nvlink *k = &d->m->nvlinks[l];
        if (k->peer == TT_PEER_GPU)
            widest = fmax(widest, fabs(d->gpu_x[k->gpu] - d->gpu_x[k->peer_gpu]));
    }
    d->link_h = by_switch ? 84 : widest > 0 ? 40 + fmin(130, widest * 0.16) : 14;
    d->y_gpu = d->top + 30 + d->link_h;
    bool switches = false;
    for (int i = 0; i < d->n_groups; i++)
        switches |= is_switch(&d->groups[i]);
    d->y_pill = d->y_gpu + CARD_H + 34;
    d->y_nic = switches ? d->y_pill + PILL_H + 30 : d->y_gpu + CARD_H + 26;
    d->y_cpu = d->y_nic + d->nic_rows * (CHIP_H + 8) + 22;
    d->bottom = d->y_cpu + CPU_H + PAD;
}

static void draw_panels(drawing *d)
{
    for (int n = 0; n < d->m->n_numa; n++)
        if (d->numa_w[n] > 0)
            box(d->out, d->numa_x[n] - PAD, d->y_gpu - 16, d->numa_w[n] + 2 * PAD,
                d->bottom - d->y_gpu + 16, 14, "panel");
}

static void draw_switch(drawing *d)
{
    double left = d->width, right = 0, y = d->top + 34, up[TT_TOPO_MAX_GPUS] = {0}, most = 0;
    int links[TT_TOPO_MAX_GPUS] = {0};
    char text[96];
    for (int l = 0; l < d->m->n_nvlinks; l++) {
        const tt_nvlink *k = &d->m->nvlinks[l];
        if (k->peer != TT_PEER_SWITCH)
            continue;
        up[k->gpu] += (double)k->gbps;
        links[k->gpu] += k->count;
    }
    for (int g = 0; g < d->m->n_gpus; g++) {
        left = fmin(left, d->gpu_x[g] - CARD_W / 2.0);
        right = fmax(right, d->gpu_x[g] + CARD_W / 2.0);
        most = fmax(most, up[g]);
    }
    for (int g = 0; g < d->m->n_gpus; g++) {
        if (links[g] == 0) {
            line(d->out, d->gpu_x[g], d->y_gpu, d->gpu_x[g], y + 34, "missing", 2);
            continue;
        }
        double half = 3 + 9 * up[g] / most;
        fprintf(d->out,
                "<path d=\"M%.1f %.1f L%.1f %.1f L%.1f %.1f L%.1f %.1f Z\" class=\"trunk%s\"/>\n",
                d->gpu_x[g] - half, d->y_gpu, d->gpu_x[g] - half, y + 30, d->gpu_x[g] + half,
                y + 30, d->gpu_x[g] + half, d->y_gpu, up[g] < most ? " weak" : "");
        snprintf(text, sizeof text, "%d", links[g]);
        svg_label(d->out, d->gpu_x[g] + half + 5, d->y_gpu - 14, "tiny", text);
    }
    box(d->out, left, y, right - left, 34, 10, "nvswitch");
    snprintf(text, sizeof text, "NVSwitch \u00b7 %.4g GB/s each way from every GPU", most);
    svg_label(d->out, (left + right) / 2, y + 22, "nvswitchtext", text);
}

/* Arcs, the wider apart the higher; as thick as the links are many. */
static void draw_arcs(drawing *d)
{
    char text[32];
    for (int l = 0; l < d->m->n_nvlinks; l++) {
        const tt_nvlink *k = &d->m->nvlinks[l];
        if (k->peer != TT_PEER_GPU || k->gpu > k->peer_gpu)
            continue;
        double x1 = d->gpu_x[k->gpu], x2 = d->gpu_x[k->peer_gpu], y = d->y_gpu;
        double rise = fmin(d->link_h - 4, 22 + fabs(x2 - x1) * 0.16) * 1.25;
        fprintf(d->out,
                "<path d=\"M%.1f %.1f C%.1f %.1f %.1f %.1f %.1f %.1f\" class=\"arc\" "
                "stroke-width=\"%.1f\"/>\n",
                x1 + 16 * (x2 > x1 ? 1 : -1), y, x1 + 16, y - rise, x2 - 16, y - rise,
                x2 - 16 * (x2 > x1 ? 1 : -1), y, 1.5 + 1.1 * sqrt((double)k->count));
        if (d->m->n_gpus <= 4) {
            snprintf(text, sizeof text, "NV%d \u00b7 %.4g GB/s", k->count, (double)k->gbps);
            svg_label(d->out, (x1 + x2) / 2, y - rise * 0.75 - 8, "small", text);
        }
    }
}

static double group_middle(const group *g)
{
    return g->x + g->width / 2;
}

static const group *group_at(const drawing *d, double x)
{
    for (int i = 0; i < d->n_groups; i++)
        if (x >= d->groups[i].x - GAP && x <= d->groups[i].x + d->groups[i].width + GAP)
            return &d->groups[i];
    return NULL;
}

static double pcie_width(double gbps)
{
    return 1.2 + sqrt(fmax(gbps, 0)) * 0.45;
}

static void draw_pcie(drawing *d)
{
    char text[64];
    const tt_machine *m = d->m;
    for (int g = 0; g < m->n_gpus; g++) {
        const group *in = group_at(d, d->gpu_x[g]);
        double gbps = m->gpus[g].pci >= 0 ? (double)m->pci[m->gpus[g].pci].gbps : 12;
        bool by_switch = in != NULL && is_switch(in);
        /* straight to the processor it passes beside the NICs below */
        double x = d->gpu_x[g] - (by_switch || in == NULL || in->nics == 0 ? 0 : CARD_W / 2.0 - 7);
        line(d->out, x, d->y_gpu + CARD_H - 3, x, by_switch ? d->y_pill + 4 : d->y_cpu + 4, "pcie",
             pcie_width(gbps));
    }
    for (int k = 0; k < m->n_nics; k++) {
        const group *in = group_at(d, d->nic_x[k]);
        double y = d->y_nic + d->nic_row[k] * (CHIP_H + 8);
        double gbps = m->nics[k].pci >= 0 ? (double)m->pci[m->nics[k].pci].gbps : 12;
        if (in != NULL && is_switch(in))
            line(d->out, d->nic_x[k], d->y_pill + PILL_H, d->nic_x[k], y + 4, "pcie",
                 pcie_width(gbps));
        else
            line(d->out, d->nic_x[k], y + CHIP_H, d->nic_x[k], d->y_cpu + 4, "pcie",
                 pcie_width(gbps));
    }
    for (int i = 0; i < d->n_groups; i++) {
        const group *g = &d->groups[i];
        if (!is_switch(g))
            continue;
        double gbps = (double)m->pci[g->root].gbps, x = g->x + 5;
        line(d->out, x, d->y_pill + PILL_H / 2.0, x, d->y_cpu + 4, "pcie", pcie_width(gbps));
        box(d->out, g->x - 2, d->y_pill, g->width + 4, PILL_H, 14, "pill");
        snprintf(text, sizeof text,
                 g->columns > 1 ? "PCIe switch \u00b7 %.4g GB/s" : "PCIe \u00b7 %.4g GB/s", gbps);
        svg_label(d->out, group_middle(g), d->y_pill + 19, "pilltext", text);
    }
}

static void draw_gpus(drawing *d)
{
    const tt_machine *m = d->m;
    static const char *const island[] = {"isle0", "isle1", "isle2", "isle3"};
    char text[96], busid[TT_BUSID_TEXT];
    for (int g = 0; g < m->n_gpus; g++) {
        const tt_gpu *gpu = &m->gpus[g];
        double x = d->gpu_x[g] - CARD_W / 2.0, y = d->y_gpu;
        box(d->out, x, y, CARD_W, CARD_H, 10, "card");
        fprintf(d->out,
                "<path d=\"M%.1f %.1f h%d a10 10 0 0 1 10 10 v-4 h-%d v4 a10 10 0 0 1 10 -10 "
                "Z\" class=\"%s\"/>\n",
                x + 10, y, CARD_W - 20, CARD_W,
                m->paths->n_islands < m->n_gpus ? island[m->paths->island[g] % 4] : "isle");
        snprintf(text, sizeof text, "GPU %d", g);
        svg_label(d->out, d->gpu_x[g], y + 28, "strong", text);
        svg_label(d->out, d->gpu_x[g], y + 46, "small", gpu->name[0] != '\0' ? gpu->name : "GPU");
        if (gpu->memory > 0)
            snprintf(text, sizeof text, "%.0f GB \u00b7 sm_%d", (double)gpu->memory / 1e9, gpu->sm);
        else
            snprintf(text, sizeof text, gpu->sm > 0 ? "sm_%d" : "sm not known", gpu->sm);
        svg_label(d->out, d->gpu_x[g], y + 61, "tinymid", text);
        if (gpu->pci >= 0 && m->pci[gpu->pci].busid != TT_BUSID_NONE)
            svg_label(d->out, d->gpu_x[g], y + 76, "tinymid",
                      tt_busid_print(m->pci[gpu->pci].busid, busid));
    }
}

static void draw_nics(drawing *d)
{
    const tt_machine *m = d->m;
    char text[64];
    for (int k = 0; k < m->n_nics; k++) {
        const tt_nic *nic = &m->nics[k];
        double x = d->nic_x[k] - d->nic_w[k] / 2, y = d->y_nic + d->nic_row[k] * (CHIP_H + 8);
        int rail = nic->dev >= 0 ? nic->dev : k;
        box(d->out, x, y, d->nic_w[k], CHIP_H, 8, nic->up == TT_NO ? "chip down" : "chip");
        fprintf(d->out,
                "<rect x=\"%.1f\" y=\"%.1f\" width=\"5\" height=\"%d\" rx=\"2.5\" fill=\"%s\"/>\n",
                x + 5, y + 7, CHIP_H - 14, rail_colour[rail % RAILS]);
        snprintf(text, sizeof text, "NIC %d", k);
        svg_label(d->out, d->nic_x[k] + 4, y + 16, "chiptext",
                  nic->name[0] != '\0' ? nic->name : text);
        snprintf(text, sizeof text, "%.4g Gb/s", (double)nic->gbps * 8);
        svg_label(d->out, d->nic_x[k] + 4, y + 29, "tinymid", text);
    }
}

static void draw_cpus(drawing *d)
{
    static const char *const vendor[] = {"CPU", "Intel", "AMD", "Zhaoxin"};
    const tt_machine *m = d->m;
    char text[96];
    int before = -1;
    for (int n = 0; n < m->n_numa; n++) {
        if (d->numa_w[n] <= 0)
            continue;
        if (before >= 0)
            line(d->out, d->numa_x[before] + d->numa_w[before], d->y_cpu + CPU_H / 2.0,
                 d->numa_x[n], d->y_cpu + CPU_H / 2.0, "sys", 4);
        before = n;
    }
    for (int n = 0; n < m->n_numa; n++) {
        const tt_numa *numa = &m->numa[n];
        const char *cpu = numa->arch == TT_ARCH_ARM ? "Arm" : vendor[numa->vendor];
        int cpus = tt_cpuset_count(&numa->cpus);
        if (d->numa_w[n] <= 0)
            continue;
        box(d->out, d->numa_x[n], d->y_cpu, d->numa_w[n], CPU_H, 10, "cpu");
        if (numa->id >= 0)
            snprintf(text, sizeof text, "NUMA %d \u00b7 %s", numa->id, cpu);
        else
            snprintf(text, sizeof text, "NUMA not known \u00b7 %s", cpu);
        svg_label(d->out, d->numa_x[n] + d->numa_w[n] / 2, d->y_cpu + (cpus > 0 ? 17 : 24),
                  "cputext", text);
        if (cpus > 0) {
            snprintf(text, sizeof text, "%d processors", cpus);
            svg_label(d->out, d->numa_x[n] + d->numa_w[n] / 2, d->y_cpu + 32, "cpusmall", text);
        }
    }
}

static void draw_host(drawing *d, int host, int alike)
{
    char text[128], name[TT_TOPO_NAME];
    if (d->view->topo->hosts[host].name[0] != '\0')
        snprintf(name, sizeof name, "%s", d->view->topo->hosts[host].name);
    else
        snprintf(name, sizeof name, "host %d", host);
    if (alike > 1)
        snprintf(text, sizeof text, "%s, one of %d alike", name, alike);
    else
        snprintf(text, sizeof text, "%s", name);
    if (d->view->topo->n_hosts > 1)
        svg_label(d->out, SVG_MARGIN, d->top + 16, "host", text);
    draw_panels(d);
    if (has_switch(d->m))
        draw_switch(d);
    draw_arcs(d);
    draw_pcie(d);
    draw_gpus(d);
    draw_nics(d);
    draw_cpus(d);
}

static int hosts_of(const tutti_topo *topo, int machine)
{
    int n = 0;
    for (int h = 0; h < topo->n_hosts; h++)
        n += topo->hosts[h].machine == machine;
    return n;
}

/* Which hosts are drawn: both of two, else one of each kind, HOSTS_MAX at most. */
static int chosen(const tutti_topo *topo, int host[HOSTS_MAX], int alike[HOSTS_MAX])
{
    int n = 0;
    for (int h = 0; h < topo->n_hosts && n < HOSTS_MAX; h++) {
        bool seen = false;
        for (int i = 0; i < n; i++)
            seen |= topo->hosts[host[i]].machine == topo->hosts[h].machine;
        if (seen && topo->n_hosts > HOSTS_MAX)
            continue;
        alike[n] = topo->n_hosts > HOSTS_MAX ? hosts_of(topo, topo->hosts[h].machine) : 1;
        host[n++] = h;
    }
    return n;
}

static void draw(FILE *out, const topo_view *view, drawing *parts)
{
    int host[HOSTS_MAX], alike[HOSTS_MAX], n = chosen(view->topo, host, alike);
    double width = 560, y = HEAD;
    for (int i = 0; i < n; i++) {
        drawing *d = &parts[i];
        d->out = out;
        d->view = view;
        d->m = tt_topo_machine_of(view->topo, host[i]);
        d->top = y;
        make_groups(d);
        place_columns(d);
        place_rows(d);
        width = fmax(width, d->width);
        y = d->bottom + 34;
    }
    svg_head(out, view, width, y + svg_findings_height(view, width));
    for (int i = 0; i < n; i++)
        draw_host(&parts[i], host[i], alike[i]);
    svg_findings(out, view, y - 12, width);
    fputs("</svg>\n", out);
}

/* The drawing as text. */
static tutti_status drawn(const topo_view *view, char **text_out, size_t *bytes_out)
{
    drawing *parts;
    char *text = NULL;
    TT_TRY(tt_calloc(HOSTS_MAX, sizeof *parts, &parts));
    FILE *memory = open_memstream(&text, bytes_out);
    if (memory == NULL) {
        free(parts);
        return tt_fail_errno(TUTTI_ERR_NO_MEMORY, errno, "drawing");
    }
    draw(memory, view, parts);
    free(parts);
    bool failed = ferror(memory) != 0;
    if (fclose(memory) != 0 || failed) {
        free(text);
        return tt_fail_errno(TUTTI_ERR_NO_MEMORY, errno, "drawing");
    }
    *text_out = text;
    return TUTTI_OK;
}

tutti_status svg_write(const topo_view *view, const char *path)
{
    char *text = NULL;
    size_t bytes = 0;
    tt_output out;
    TT_TRY(drawn(view, &text, &bytes));
    tutti_status status = tt_output_open(path, true, &out);
    if (status == TUTTI_OK)
        status = tt_output_write(&out, text, bytes);
    if (status == TUTTI_OK)
        status = tt_output_commit(&out, false);
    tt_output_drop(&out);
    free(text);
    return status;
}
