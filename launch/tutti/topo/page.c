/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page for people: tree, matrix, NICs, islands, estimates, findings, plan. One section per
 * machine; hosts that are alike are told once.
 */
#include <math.h>
#include <string.h>

#include "view.h"

enum { WIDTH = 100, WIDE = 16 }; /* more GPUs than WIDE make no readable matrix */

/* Wraps text at WIDTH, further lines behind `indent` blanks. */
static void paragraph(FILE *out, const char *first, int indent, const char *text)
{
    int at = fprintf(out, "%s", first);
    for (const char *word = text; *word != '\0';) {
        int n = (int)strcspn(word, " ");
        if (at + n > WIDTH - 2) {
            at = fprintf(out, "\n%*s", indent, "") - 1;
        }
        at += fprintf(out, "%.*s", n, word);
        word += n;
        while (*word == ' ')
            word++;
        if (*word != '\0')
            at += fprintf(out, " ");
    }
    fputc('\n', out);
}

static const char *nic_kind(int kind)
{
    static const char *const name[] = {"port", "Ethernet", "InfiniBand", "RoCE", "EFA"};
    return name[kind];
}

static int links_of(const tt_machine *m, int gpu, double *gbps_out)
{
    int links = 0;
    *gbps_out = 0;
    for (int l = 0; l < m->n_nvlinks; l++)
        if (m->nvlinks[l].gpu == gpu && m->nvlinks[l].peer <= TT_PEER_CPU) {
            links += m->nvlinks[l].count;
            *gbps_out += m->nvlinks[l].gbps;
        }
    return links;
}

static void gpu_line(FILE *out, const tt_machine *m, int g)
{
    const tt_gpu *gpu = &m->gpus[g];
    char busid[TT_BUSID_TEXT];
    double gbps;
    int links = links_of(m, g, &gbps);
    fprintf(out, "GPU %d", g);
    if (gpu->name[0] != '\0')
        fprintf(out, "  %s", gpu->name);
    if (gpu->memory > 0)
        fprintf(out, " %.0f GB", (double)gpu->memory / 1e9);
    if (gpu->sm > 0)
        fprintf(out, "  sm_%d", gpu->sm);
    if (gpu->pci >= 0 && m->pci[gpu->pci].busid != TT_BUSID_NONE)
        fprintf(out, "  %s", tt_busid_print(m->pci[gpu->pci].busid, busid));
    if (gpu->pci >= 0)
        fprintf(out, "  PCIe %.4g GB/s", (double)m->pci[gpu->pci].gbps);
    if (links > 0)
        fprintf(out, "  %d NVLinks %.4g GB/s", links, gbps);
    if (gpu->c2c_links > 0)
        fprintf(out, "  C2C %.4g GB/s", gpu->c2c_links * gpu->c2c_mbps / 1000.0);
    fputc('\n', out);
}

static void nic_line(FILE *out, const tt_machine *m, int k)
{
    const tt_nic *nic = &m->nics[k];
    fprintf(out, "NIC %d  %s  %s %.4g Gb/s%s\n", k, nic->name[0] != '\0' ? nic->name : "(no name)",
            nic_kind(nic->kind), (double)nic->gbps * 8, nic->up == TT_NO ? ", down" : "");
}

/* A node of the tree that leads to something worth showing. */
static bool leads(const tt_machine *m, int pci)
{
    for (int g = 0; g < m->n_gpus; g++)
        for (int p = m->gpus[g].pci; p >= 0; p = m->pci[p].parent)
            if (p == pci)
                return true;
    for (int k = 0; k < m->n_nics; k++)
        for (int p = m->nics[k].pci; p >= 0; p = m->pci[p].parent)
            if (p == pci)
                return true;
    return false;
}

/* What hangs on a PCI object or, with pci -1, on a NUMA domain: its line, without its children. */
static void node_line(FILE *out, const tt_machine *m, int pci)
{
    char busid[TT_BUSID_TEXT];
    bool device = false;
    for (int g = 0; g < m->n_gpus; g++)
        if (m->gpus[g].pci == pci) {
            gpu_line(out, m, g);
            device = true;
        }
    for (int k = 0; k < m->n_nics; k++)
        if (m->nics[k].pci == pci) {
            nic_line(out, m, k);
            device = true;
        }
    if (device)
        return;
    fprintf(out, "PCIe %s", m->pci[pci].kind == TT_PCI_BRIDGE ? "switch or port" : "device");
    if (m->pci[pci].busid != TT_BUSID_NONE)
        fprintf(out, "  %s", tt_busid_print(m->pci[pci].busid, busid));
    fprintf(out, "  %.4g GB/s\n", (double)m->pci[pci].gbps);
}

static bool is_child(const tt_machine *m, int pci, int parent, int numa)
{
    if (m->pci[pci].parent != parent || !leads(m, pci))
        return false;
    return parent >= 0 || m->pci[pci].numa == numa;
}

static void subtree(FILE *out, const tt_machine *m, int parent, int numa, const char *prefix)
{
    char deeper[128];
    int last = -1;
    for (int p = 0; p < m->n_pci; p++)
        if (is_child(m, p, parent, numa))
            last = p;
    for (int p = 0; p <= last; p++) {
        if (!is_child(m, p, parent, numa))
            continue;
        fprintf(out, "%s%s", prefix, p == last ? "└─ " : "├─ ");
        node_line(out, m, p);
        snprintf(deeper, sizeof deeper, "%s%s", prefix, p == last ? "   " : "│  ");
        subtree(out, m, p, numa, deeper);
    }
}

static const char *cpu_name(const tt_numa *numa)
{
    static const char *const vendor[] = {"", "Intel", "AMD", "Zhaoxin"};
    static const char *const arch[] = {"", "x86", "Arm", "POWER"};
    return numa->vendor != TT_VENDOR_UNKNOWN ? vendor[numa->vendor] : arch[numa->arch];
}

static void tree(FILE *out, const tt_machine *m)
{
    for (int d = 0; d < m->n_numa; d++) {
        const tt_numa *numa = &m->numa[d];
        char cpus[64];
        fprintf(out, "NUMA domain %d", numa->id >= 0 ? numa->id : d);
        if (numa->id < 0)
            fprintf(out, " (number not known)");
        if (cpu_name(numa)[0] != '\0')
            fprintf(out, "  %s", cpu_name(numa));
        if (tt_cpuset_count(&numa->cpus) > 0) {
            tt_cpuset_print_list(&numa->cpus, cpus, sizeof cpus);
            fprintf(out, "  processors %s", cpus);
        }
        fputc('\n', out);
        subtree(out, m, -1, d, "");
        for (int g = 0; g < m->n_gpus; g++)
            if (m->gpus[g].pci < 0 && m->gpus[g].numa == d) {
                fprintf(out, "   ");
                gpu_line(out, m, g);
            }
        for (int k = 0; k < m->n_nics; k++)
            if (m->nics[k].pci < 0 && m->nics[k].numa == d) {
                fprintf(out, "   ");
                nic_line(out, m, k);
            }
    }
}

static void cell(FILE *out, const tt_path *path)
{
    if (path->type == TUTTI_PATH_LOC)
        fprintf(out, "         -");
    else if (path->type == TUTTI_PATH_DIS)
        fprintf(out, "      none");
    else
        fprintf(out, " %s %5.4g", tt_path_name((tutti_path_type)path->type), (double)path->gbps);
}

/* Rows are GPUs; a wide matrix is told in blocks of columns. */
static void matrix(FILE *out, const char *title, const char *column, int rows, int columns,
                   const tt_path *paths)
{
    enum { BLOCK = 9 };
    if (rows == 0 || columns == 0)
        return;
    for (int first = 0; first < columns; first += BLOCK) {
        int end = first + BLOCK < columns ? first + BLOCK : columns;
        fprintf(out, "\n%-6.6s", first == 0 ? title : "");
        for (int k = first; k < end; k++)
            fprintf(out, "     %s%-2d", column, k);
        fputc('\n', out);
        for (int g = 0; g < rows; g++) {
            fprintf(out, "GPU%-3d", g);
            for (int k = first; k < end; k++)
                cell(out, &paths[g * columns + k]);
            fputc('\n', out);
        }
    }
}

static void matrices(FILE *out, const tt_machine *m)
{
    if (m->n_gpus > WIDE || m->n_nics > 2 * WIDE) {
        fprintf(out, "\n(too many devices for a matrix: --json has the paths)\n");
        return;
    }
    if (m->n_gpus > 1)
        matrix(out, "GB/s", "GPU", m->n_gpus, m->n_gpus, m->paths->gpu_gpu);
    matrix(out, "GB/s", "NIC", m->n_gpus, m->n_nics, m->paths->gpu_nic);
}

static void nic_table(FILE *out, const tt_machine *m)
{
    if (m->n_nics == 0)
        return;
    fprintf(out, "\n%-5s %-14s %-11s %8s %5s %5s  %s\n", "NIC", "name", "kind", "GB/s", "NUMA",
            "GDR", "first NIC of");
    for (int k = 0; k < m->n_nics; k++) {
        const tt_nic *nic = &m->nics[k];
        int gdr = 0, users = 0;
        for (int g = 0; g < m->n_gpus; g++)
            gdr += m->paths->gdr[g * m->n_nics + k];
        fprintf(out, "%-5d %-14s %-11s %8.4g %5d %5s  ", k, nic->name, nic_kind(nic->kind),
                (double)nic->gbps, nic->numa >= 0 ? m->numa[nic->numa].id : -1,
                gdr > 0 ? "yes" : "no");
        for (int g = 0; g < m->n_gpus; g++)
            if (tt_paths_nic(m, g, 0) == k)
                fprintf(out, "%sGPU %d", users++ > 0 ? ", " : "", g);
        fprintf(out, "%s\n", users == 0 ? "none" : "");
    }
}

static void islands(FILE *out, const tt_machine *m)
{
    if (m->n_gpus == 0)
        return;
    if (m->paths->n_islands == m->n_gpus) {
        fprintf(out, "\nNVLink islands: none\n");
        return;
    }
    fprintf(out, "\nNVLink islands: ");
    for (int i = 0; i < m->paths->n_islands; i++) {
        int n = 0;
        fprintf(out, "%s{", i > 0 ? " " : "");
        for (int g = 0; g < m->n_gpus; g++)
            if (m->paths->island[g] == i)
                fprintf(out, "%s%d", n++ > 0 ? " " : "", g);
        fprintf(out, "}");
    }
    fputc('\n', out);
}

static void estimates(FILE *out, const tt_cost *cost)
{
    if (cost->local < 2)
        return;
    tt_cost_time time = tt_cost_of(cost, TT_COST_ALL_REDUCE, VIEW_BYTES);
    fprintf(out, "Estimates: ring of %d channels x %.4g GB/s (%s)", cost->ring.channels,
            (double)cost->ring.gbps_intra, tt_path_name((tutti_path_type)cost->ring.type_intra));
    if (cost->nvls.channels > 0)
        fprintf(out, ", NVLS %d x %.4g", cost->nvls.channels, (double)cost->nvls.gbps_intra);
    fprintf(out, "\n           all-reduce of 256 MiB %.2f ms by %s, %.4g GB/s bus bandwidth\n",
            time.us / 1000, tt_algo_name(time.algo),
            tt_cost_busbw(cost, TT_COST_ALL_REDUCE, VIEW_BYTES));
}

static void findings(FILE *out, const tt_findings *list)
{
    fprintf(out, "\nFindings: %s\n", list->n == 0 ? "none" : "");
    for (size_t i = 0; i < list->n; i++) {
        const tt_finding *f = &list->list[i];
        char first[96];
        if (f->cost > 0)
            snprintf(first, sizeof first,
                     "  %-7s %s, costs up to %.0f %%: ", tt_severity_name(f->severity), f->id,
                     100 * f->cost);
        else
            snprintf(first, sizeof first, "  %-7s %s: ", tt_severity_name(f->severity), f->id);
        paragraph(out, first, 10, f->text);
        if (strcmp(f->action, "Nothing.") != 0)
            paragraph(out, "          > ", 12, f->action);
    }
}

static const char *host_text(const topo_view *view, int h, char text[TT_TOPO_NAME])
{
    if (view->topo->hosts[h].name[0] != '\0')
        snprintf(text, TT_TOPO_NAME, "%s", view->topo->hosts[h].name);
    else
        snprintf(text, TT_TOPO_NAME, "%d", h);
    return text;
}

static void rank_table(FILE *out, const topo_view *view)
{
    enum { SHOWN = 32 };
    char host[TT_TOPO_NAME];
    int shown = view->ranks < SHOWN ? view->ranks : SHOWN;
    fprintf(out, "  %-6s %-6s %-10s %-5s %-8s %-14s %s\n", "place", "rank", "host", "GPU", "island",
            "NIC", "processors");
    for (int i = 0; i < shown; i++) {
        const view_rank *rank = &view->rank[view->order[i]];
        const tt_machine *m = tt_topo_machine_of(view->topo, rank->seat.host);
        fprintf(out, "  %-6d %-6d %-10.10s %-5d %-8d %-14s %s\n", i, view->order[i],
                host_text(view, rank->seat.host, host), rank->seat.gpu, rank->seat.island,
                rank->seat.nic >= 0 ? m->nics[rank->seat.nic].name : "-", rank->cpus);
    }
    if (shown < view->ranks)
        fprintf(out, "  ... %d more (--json has all)\n", view->ranks - shown);
}

static void comm_lines(FILE *out, const topo_view *view)
{
    for (int i = 0; i < view->n_comms; i++) {
        const view_comm *c = &view->comm[i];
        fprintf(out, "  %s: %d ranks on %d host%s", c->axis->name, c->size, c->hosts,
                c->hosts == 1 ? "" : "s");
        if (c->flat_us > 0)
            fprintf(out, ", all-reduce of 256 MiB %.2f ms at once", c->flat_us / 1000);
        if (c->three_us > 0)
            fprintf(out, ", %.2f ms in three steps", c->three_us / 1000);
        fputc('\n', out);
        if (c->config.why[0] != '\0')
            paragraph(out, "      ", 6, c->config.why);
    }
}

static void plan(FILE *out, const topo_view *view)
{
    if (view->plan == NULL)
        return;
    fprintf(out, "\nPlan for ");
    for (int a = 0; a < view->axes.n; a++)
        fprintf(out, "%s%s=%d", a > 0 ? "," : "", view->axes.axis[a].name, view->axes.axis[a].size);
    fprintf(out, ", one rank per GPU: %.2f ms of communication per step in the model",
            view->order_us / 1000);
    if (view->order_us < view->launcher_us * (1 - 1e-9))
        fprintf(out, " (%.2f in order of rank)", view->launcher_us / 1000);
    fputc('\n', out);
    rank_table(out, view);
    comm_lines(out, view);
    for (int i = 0; i < view->n_variables; i++) {
        const tt_plan_variable *v = &view->variable[i];
        fprintf(out, "  %s=%s  (%s)%s%s\n", v->name, v->value, v->why,
                v->user[0] != '\0' ? ", kept as you set it: " : "", v->user);
    }
}

void page_print(const topo_view *view, FILE *out)
{
    const tutti_topo *topo = view->topo;
    int gpus = tutti_topo_gpu_count(topo), nics = tutti_topo_nic_count(topo);
    fprintf(out, "%s (%s): %d host%s, %d GPU%s, %d NIC%s\n", topo->origin,
            tt_topo_format_name(topo->format), topo->n_hosts, topo->n_hosts == 1 ? "" : "s", gpus,
            gpus == 1 ? "" : "s", nics, nics == 1 ? "" : "s");
    for (int m = 0; m < topo->n_machines; m++) {
        int alike = 0;
        char host[TT_TOPO_NAME];
        for (int h = topo->n_hosts - 1; h >= 0; h--)
            if (topo->hosts[h].machine == m) {
                alike++;
                host_text(view, h, host);
            }
        if (topo->n_hosts > 1)
            fprintf(out, "\nHost %s%s\n", host, alike > 1 ? " and those like it" : "");
        else
            fputc('\n', out);
        tree(out, topo->machines[m]);
        matrices(out, topo->machines[m]);
        nic_table(out, topo->machines[m]);
        islands(out, topo->machines[m]);
        estimates(out, &view->cost[m]);
    }
    findings(out, &view->findings);
    plan(out, view);
    for (int i = 0; i < topo->n_notes; i++) {
        if (i == 0)
            fprintf(out, "\nNotes of the reader\n");
        paragraph(out, "  ", 4, topo->notes[i].text);
    }
}
