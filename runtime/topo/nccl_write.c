/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A host as NCCL topology XML, for NCCL_TOPO_FILE in a virtual machine that hides its tree, or to
 * replay a machine elsewhere.
 *
 * Only what is known is written: NCCL fills in missing attributes from the machine and lets those
 * that are there win. GPUs get a rank (their place) where none is known, since NCCL drops a GPU
 * without one. A machine of which the bus ids are not known (a matrix) is refused: they are what
 * NCCL recognises devices by.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "core/output.h"
#include "topo/read.h"

typedef struct writer {
    const tt_machine *m;
    FILE *out;
    int32_t *first, *next; /* PCI children of a PCI index; -1 */
    int32_t *root; /* of each domain */
    int depth;
} writer;

static void line(writer *w, const char *fmt, ...) TT_PRINTF(2, 3);

static void line(writer *w, const char *fmt, ...)
{
    va_list args;

    (void)fprintf(w->out, "%*s", 2 * w->depth, "");
    va_start(args, fmt);
    (void)vfprintf(w->out, fmt, args);
    va_end(args);
}

/* Text in an attribute. */
static void text_attr(writer *w, const char *key, const char *text)
{
    (void)fprintf(w->out, " %s=\"", key);
    for (; *text != 0; text++) {
        unsigned char c = (unsigned char)*text;

        if (c < 32 || c == '<' || c == '>' || c == '&' || c == '"')
            (void)fprintf(w->out, "&#%u;", c < 32 ? ' ' : c);
        else
            (void)fputc(c, w->out);
    }
    (void)fputc('"', w->out);
}

static void tri_attr(writer *w, const char *key, uint8_t tri)
{
    if (tri != TT_TRI_UNKNOWN)
        (void)fprintf(w->out, " %s=\"%d\"", key, tri == TT_YES);
}

static void write_net(writer *w, const tt_nic *nic)
{
    line(w, "<net");
    text_attr(w, "name", nic->name);
    (void)fprintf(w->out, " dev=\"%d\" latency=\"%g\"", nic->dev, (double)nic->latency);
    if (nic->speed_from != TT_UNKNOWN)
        (void)fprintf(w->out, " speed=\"%lld\"", (long long)nic->mbps);
    (void)fprintf(w->out, " port=\"%d\"", nic->port);
    if (nic->has_guid)
        (void)fprintf(w->out, " guid=\"0x%llx\"", (unsigned long long)nic->guid);
    if (nic->maxconn != 0)
        (void)fprintf(w->out, " maxconn=\"%d\"", nic->maxconn);
    tri_attr(w, "gdr", nic->gdr);
    tri_attr(w, "coll", nic->coll);
    if (nic->keep == TT_YES)
        (void)fputs(" keep=\"1\"", w->out);
    (void)fputs("/>\n", w->out);
}

/* The ports at a PCI function (-1: at a domain itself). */
static void write_nic(writer *w, int pci, int numa)
{
    bool open = false;

    for (int i = 0; i < w->m->n_nics; i++) {
        const tt_nic *nic = &w->m->nics[i];

        if (nic->pci != pci || (pci < 0 && nic->numa != numa))
            continue;
        if (!open)
            line(w, "<nic>\n");
        open = true;
        w->depth++;
        write_net(w, nic);
        w->depth--;
    }
    if (open)
        line(w, "</nic>\n");
}

static void write_links(writer *w, int gpu)
{
    const tt_gpu *g = &w->m->gpus[gpu];
    char target[TT_BUSID_TEXT];

    w->depth++;
    for (int i = 0; i < w->m->n_nvlinks; i++) {
        const tt_nvlink *link = &w->m->nvlinks[i];

        if (link->gpu == gpu)
            line(w, "<nvlink target=\"%s\" count=\"%d\" tclass=\"0x%06x\"/>\n",
                 tt_busid_print(link->target, target), link->count, (unsigned)link->tclass);
    }
    if (g->c2c_links != 0)
        line(w, "<c2c bw=\"%u\" count=\"%u\"/>\n", (unsigned)g->c2c_mbps, (unsigned)g->c2c_links);
    w->depth--;
}

static bool has_links(const tt_machine *m, int gpu)
{
    for (int i = 0; i < m->n_nvlinks; i++)
        if (m->nvlinks[i].gpu == gpu)
            return true;
    return m->gpus[gpu].c2c_links != 0;
}

static void write_gpu(writer *w, int gpu)
{
    const tt_gpu *g = &w->m->gpus[gpu];

    line(w, "<gpu dev=\"%d\"", g->dev);
    if (g->sm != 0)
        (void)fprintf(w->out, " sm=\"%d\"", g->sm);
    (void)fprintf(w->out, " rank=\"%d\"", g->rank >= 0 ? g->rank : gpu);
    tri_attr(w, "gdr", g->gdr);
    if (!has_links(w->m, gpu)) {
        (void)fputs("/>\n", w->out);
        return;
    }
    (void)fputs(">\n", w->out);
    write_links(w, gpu);
    line(w, "</gpu>\n");
}

static void pci_attrs(writer *w, const tt_pci *pci)
{
    char busid[TT_BUSID_TEXT];

    line(w, "<pci busid=\"%s\"", tt_busid_print(pci->busid, busid));
    if (pci->class_code != 0)
        (void)fprintf(w->out, " class=\"0x%06x\"", (unsigned)pci->class_code);
    if (pci->vendor != 0 || pci->device != 0)
        (void)fprintf(w->out,
                      " vendor=\"0x%04x\" device=\"0x%04x\" subsystem_vendor=\"0x%04x\" "
                      "subsystem_device=\"0x%04x\"",
                      pci->vendor, pci->device, pci->sub_vendor, pci->sub_device);
    if (pci->gts > 0)
        (void)fprintf(w->out, " link_speed=\"%.1f GT/s PCIe\"", (double)pci->gts);
    else
        (void)fputs(" link_speed=\"\"", w->out);
    (void)fprintf(w->out, " link_width=\"%u\"", pci->lanes);
}

static void write_pcilinks(writer *w, int pci)
{
    char busid[TT_BUSID_TEXT];

    for (int i = 0; i < w->m->n_pcilinks; i++)
        if (w->m->pcilinks[i].a == pci)
            line(w, "<pcilink target=\"%s\"/>\n",
                 tt_busid_print(w->m->pci[w->m->pcilinks[i].b].busid, busid));
}

static bool holds_something(const writer *w, int pci)
{
    const tt_machine *m = w->m;

    for (int i = 0; i < m->n_gpus; i++)
        if (m->gpus[i].pci == pci)
            return true;
    for (int i = 0; i < m->n_nics; i++)
        if (m->nics[i].pci == pci)
            return true;
    for (int i = 0; i < m->n_pcilinks; i++)
        if (m->pcilinks[i].a == pci)
            return true;
    return w->first[pci] >= 0;
}

static void write_pci(writer *w, int pci)
{
    pci_attrs(w, &w->m->pci[pci]);
    if (!holds_something(w, pci)) {
        (void)fputs("/>\n", w->out);
        return;
    }
    (void)fputs(">\n", w->out);
    w->depth++;
    for (int i = 0; i < w->m->n_gpus; i++)
        if (w->m->gpus[i].pci == pci)
            write_gpu(w, i);
    write_nic(w, pci, -1);
    for (int32_t child = w->first[pci]; child >= 0; child = w->next[child])
        write_pci(w, child);
    write_pcilinks(w, pci);
    w->depth--;
    line(w, "</pci>\n");
}

static void cpu_attrs(writer *w, const tt_numa *numa)
{
    static const char *const archs[] = {"", "x86_64", "arm64", "ppc64"};
    static const char *const vendors[] = {"", "GenuineIntel", "AuthenticAMD", "CentaurHauls"};
    char mask[TT_CPUS_MAX / 32 * 9 + 1];

    line(w, "<cpu");
    if (w->m->host_hash != 0)
        (void)fprintf(w->out, " host_hash=\"0x%llx\"", (unsigned long long)w->m->host_hash);
    (void)fprintf(w->out, " numaid=\"%d\"", numa->id);
    if (numa->cpus_from != TT_UNKNOWN) {
        (void)tt_cpuset_print_mask(&numa->cpus, mask, sizeof mask);
        (void)fprintf(w->out, " affinity=\"%s\"", mask);
    }
    if (numa->arch != TT_ARCH_UNKNOWN)
        (void)fprintf(w->out, " arch=\"%s\"", archs[numa->arch]);
    if (numa->vendor != TT_VENDOR_UNKNOWN)
        (void)fprintf(w->out, " vendor=\"%s\"", vendors[numa->vendor]);
    if (numa->family != 0 || numa->model != 0)
        (void)fprintf(w->out, " familyid=\"%d\" modelid=\"%d\"", numa->family, numa->model);
    (void)fputs(">\n", w->out);
}

static void write_cpu(writer *w, int numa)
{
    cpu_attrs(w, &w->m->numa[numa]);
    w->depth++;
    for (int32_t pci = w->root[numa]; pci >= 0; pci = w->next[pci])
        write_pci(w, pci);
    write_nic(w, -1, numa);
    w->depth--;
    line(w, "</cpu>\n");
}

/* Lists of children, each in the order of the model. */
static tutti_status link_children(writer *w)
{
    size_t n = (size_t)w->m->n_pci;

    TT_TRY(tt_calloc(2 * n + (size_t)w->m->n_numa, sizeof *w->first, &w->first));
    memset(w->first, -1, (2 * n + (size_t)w->m->n_numa) * sizeof *w->first);
    w->next = w->first + n;
    w->root = w->next + n;
    for (int i = w->m->n_pci - 1; i >= 0; i--) {
        const tt_pci *pci = &w->m->pci[i];
        int32_t *head = pci->parent >= 0 ? &w->first[pci->parent] : &w->root[pci->numa];

        w->next[i] = *head;
        *head = i;
    }
    return TUTTI_OK;
}

static tutti_status check_writable(const tt_machine *m)
{
    for (int i = 0; i < m->n_gpus; i++)
        if (tt_gpu_busid(m, i) == TT_BUSID_NONE)
            return tt_fail(TUTTI_ERR_UNSUPPORTED,
                           "GPU %d has no known PCI bus id, which NCCL's topology is built on", i);
    return TUTTI_OK;
}

tutti_status tt_topo_write_nccl(const tutti_topo *topo, int host, char **text_out)
{
    writer w = {0};
    char *text = NULL;
    size_t bytes = 0;
    tutti_status status;

    if (host < 0 || host >= topo->n_hosts)
        return tt_fail(TUTTI_ERR_ARG, "host %d is not one of the %d of %s", host, topo->n_hosts,
                       topo->origin);
    w.m = tt_topo_machine_of(topo, host);
    TT_TRY(check_writable(w.m));
    TT_TRY(link_children(&w));
    w.out = open_memstream(&text, &bytes);
    if (w.out == NULL) {
        status = tt_fail_errno(TUTTI_ERR_NO_MEMORY, errno, "topology XML");
        goto free_links;
    }
    line(&w, "<system version=\"1\">\n");
    w.depth = 1;
    for (int i = 0; i < w.m->n_numa; i++)
        write_cpu(&w, i);
    w.depth = 0;
    line(&w, "</system>\n");
    status =
        fclose(w.out) == 0 ? TUTTI_OK : tt_fail_errno(TUTTI_ERR_NO_MEMORY, errno, "topology XML");
    if (status == TUTTI_OK) {
        *text_out = text;
        text = NULL;
    }
    free(text);

free_links:
    free(w.first);
    return status;
}

tutti_status tutti_topo_write_nccl(const tutti_topo *topo, int host, const char *path)
{
    char *text;
    tt_output out;

    if (topo == NULL || path == NULL)
        return tt_fail(TUTTI_ERR_ARG, "tutti_topo_write_nccl: topo or path is NULL");
    TT_TRY(tt_topo_write_nccl(topo, host, &text));
    tutti_status status = tt_output_open(path, true, &out);
    if (status == TUTTI_OK)
        status = tt_output_write(&out, text, strlen(text));
    if (status == TUTTI_OK)
        status = tt_output_commit(&out, false);
    tt_output_drop(&out);
    free(text);
    return status;
}
