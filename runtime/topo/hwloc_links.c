/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVLinks in hwloc's XML are a matrix of bandwidths over objects that are named by their gp_index:
 * GPUs (by their NVML or CUDA OS device), NVSwitches (PCI devices), packages (POWER). Older files
 * (distances2) have one type for all and bare numbers, newer ones (distances2hetero) TYPE:NUMBER.
 * Text comes in several elements; words are taken across them in order.
 */
#include "topo/hwloc_links.h"

#include <stdlib.h>
#include <string.h>

#include "core/mem.h"

enum { OBJECTS_MAX = 512, OTHER = -1, SWITCH = -2, PROCESSOR = -3 };

typedef struct words {
    const tt_xml *xml;
    const char *element; /* name of the elements with the text */
    int32_t node; /* current one; -1 at the end */
    const char *at;
} words;

static words begin(const tt_xml *xml, int32_t distances, const char *element)
{
    words w = {xml, element, tt_xml_child(xml, distances, element), ""};

    if (w.node >= 0)
        w.at = tt_xml_text(xml, w.node);
    return w;
}

/* The next word, not terminated; NULL. */
static const char *take(words *w)
{
    const char *word;

    while (w->node >= 0) {
        w->at += strspn(w->at, " \t\r\n");
        if (*w->at != 0) {
            word = w->at;
            w->at += strcspn(w->at, " \t\r\n");
            return word;
        }
        w->node = tt_xml_next(w->xml, w->node, w->element);
        if (w->node >= 0)
            w->at = tt_xml_text(w->xml, w->node);
    }
    return NULL;
}

typedef struct object {
    unsigned long long gp_index;
    int32_t node;
} object;

static int by_index(const void *one, const void *two)
{
    const object *a = one, *b = two;

    return a->gp_index != b->gp_index ? (a->gp_index > b->gp_index ? 1 : -1)
                                      : (a->node > b->node) - (a->node < b->node);
}

/* All objects that have a gp_index, sorted by it. */
static tutti_status index_objects(const tt_xml *xml, object **list_out, size_t *n_out)
{
    object *list = NULL;
    size_t n = 0, cap = 0;

    for (int32_t node = 0; node < tt_xml_count(xml); node++) {
        const char *text = tt_xml_attr(xml, node, "gp_index");
        tutti_status status;

        if (text == NULL)
            continue;
        status = tt_grow(&list, &cap, n + 1, sizeof *list);
        if (status != TUTTI_OK) {
            free(list);
            return status;
        }
        list[n++] = (object){strtoull(text, NULL, 10), node};
    }
    if (n != 0)
        qsort(list, n, sizeof *list, by_index);
    *list_out = list;
    *n_out = n;
    return TUTTI_OK;
}

static int32_t find_object(const object *list, size_t n, unsigned long long gp_index)
{
    size_t low = 0, high = n;

    while (low < high) {
        size_t middle = low + (high - low) / 2;

        if (list[middle].gp_index < gp_index)
            low = middle + 1;
        else
            high = middle;
    }
    return low < n && list[low].gp_index == gp_index ? list[low].node : -1;
}

/* What an object is to NVLink: a GPU's index, or one of the above. */
static int32_t meaning(const tt_xml *xml, const tt_machine *m, int32_t node)
{
    const char *type;
    tt_busid busid;

    if (node < 0)
        return OTHER;
    type = tt_xml_attr(xml, node, "type");
    if (type != NULL && strcmp(type, "Package") == 0)
        return PROCESSOR;
    while (node >= 0 && tt_xml_attr(xml, node, "pci_busid") == NULL)
        node = tt_xml_at(xml, node)->parent;
    if (node < 0 || tt_busid_parse(tt_xml_attr(xml, node, "pci_busid"), &busid) != TUTTI_OK)
        return OTHER;
    for (int i = 0; i < m->n_gpus; i++)
        if (m->pci[m->gpus[i].pci].busid == busid)
            return i;
    type = tt_xml_attr(xml, node, "pci_type");
    return type != NULL && strncmp(type, "0680", 4) == 0 ? SWITCH : OTHER;
}

static tutti_status add_link(tt_machine *m, int gpu, int32_t peer, int count)
{
    tt_nvlink *link;
    int at;

    TT_TRY(tt_machine_add_nvlink(m, &at));
    link = &m->nvlinks[at];
    link->gpu = gpu;
    link->count = (uint16_t)count;
    if (peer >= 0) {
        link->peer_gpu = peer;
        link->target = m->pci[m->gpus[peer].pci].busid;
        link->tclass = 0x030200;
    } else {
        link->target = TT_BUSID_HIDDEN;
        link->tclass = peer == SWITCH ? 0x068000 : 0x068001;
    }
    return TUTTI_OK;
}

/* MB/s of one link, which hwloc knows from NVLink's version. */
static unsigned long long link_speed(const tt_machine *m, int gpu)
{
    int sm = tt_sm_of_device(m->pci[m->gpus[gpu].pci].device);

    return sm >= 70 || sm == 0 ? 25000 : 20000;
}

/* A GPU's row. Links to the same kind of peer (several switches) are one entry. */
static tutti_status read_row(tt_machine *m, int gpu, const int32_t *objects, int n, words *values)
{
    unsigned long long speed = link_speed(m, gpu), total[2] = {0, 0};

    for (int i = 0; i < n; i++) {
        const char *word = take(values);
        unsigned long long value = word == NULL ? 0 : strtoull(word, NULL, 10);

        if (value == 0 || value > 64 * speed || objects[i] == gpu)
            continue;
        if (objects[i] >= 0)
            TT_TRY(add_link(m, gpu, objects[i], (int)((value + speed / 2) / speed)));
        else if (objects[i] == SWITCH || objects[i] == PROCESSOR)
            total[objects[i] == PROCESSOR] += value;
    }
    m->gpus[gpu].nvlink_from = TT_FROM_FILE;
    for (int k = 0; k < 2; k++)
        if (total[k] > 0 && total[k] <= 64 * speed)
            TT_TRY(add_link(m, gpu, k == 0 ? SWITCH : PROCESSOR,
                            (int)((total[k] + speed / 2) / speed)));
    return TUTTI_OK;
}

/* What each of the matrix's n objects is. A GPU may be there twice, as CUDA and as NVML device. */
static tutti_status read_names(const tt_xml *xml, const tt_machine *m, int32_t distances, int n,
                               int32_t *objects)
{
    words names = begin(xml, distances, "indexes");
    object *list;
    size_t n_list;
    tutti_status status = TUTTI_OK;

    TT_TRY(index_objects(xml, &list, &n_list));
    for (int i = 0; i < n; i++) {
        const char *word = take(&names), *colon;

        if (word == NULL) {
            status = tt_xml_fail(xml, distances, "%d names for %d objects", i, n);
            break;
        }
        colon = strpbrk(word, ": \n");
        if (colon != NULL && *colon == ':')
            word = colon + 1;
        objects[i] = meaning(xml, m, find_object(list, n_list, strtoull(word, NULL, 10)));
        for (int j = 0; j < i; j++)
            if (objects[i] >= 0 && objects[j] == objects[i])
                objects[i] = OTHER;
    }
    free(list);
    return status;
}

static tutti_status read_matrix(const tt_xml *xml, tt_machine *m, int32_t distances)
{
    words values = begin(xml, distances, "u64values");
    int32_t objects[OBJECTS_MAX];
    long long n;

    TT_TRY(tt_xml_int(xml, distances, "nbobjs", (tt_xml_range){0, OBJECTS_MAX, 0}, &n));
    TT_TRY(read_names(xml, m, distances, (int)n, objects));
    for (int i = 0; i < n; i++) {
        if (objects[i] >= 0) {
            TT_TRY(read_row(m, objects[i], objects, (int)n, &values));
            continue;
        }
        for (int j = 0; j < n; j++)
            (void)take(&values);
    }
    return TUTTI_OK;
}

tutti_status tt_hwloc_read_nvlinks(const tt_xml *xml, tt_machine *machine)
{
    static const char *const elements[] = {"distances2", "distances2hetero"};

    for (size_t i = 0; i < 2; i++)
        for (int32_t d = tt_xml_child(xml, 0, elements[i]); d >= 0;
             d = tt_xml_next(xml, d, elements[i])) {
            const char *name = tt_xml_attr(xml, d, "name");

            if (name != NULL && strcmp(name, "NVLinkBandwidth") == 0)
                return read_matrix(xml, machine, d); /* one is enough */
        }
    return TUTTI_OK;
}
