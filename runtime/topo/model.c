/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Building and freeing the machine model. Lists grow by doubling (tt_grow); a reader gets an index,
 * never a pointer it could keep, since the next object may move the list. Caps are checked here, so
 * no reader can be made to build something large. What the facts mean is seal.c's.
 */
#include "topo/model.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "topo/cost.h"
#include "topo/paths.h"

const char *tt_topo_format_name(tt_topo_format format)
{
    static const char *const names[] = {"this machine", "synthetic description",
                                        "NCCL topology XML", "hwloc XML", "nvidia-smi topo matrix"};

    return (size_t)format < sizeof names / sizeof *names ? names[format] : "?";
}

/* Up to `most` hexadecimal digits; 0 of them fails. */
static bool take_hex(const char **text, int most, uint64_t *value_out)
{
    uint64_t value = 0;
    int n = 0;

    for (; n < most; n++) {
        char c = (*text)[n];

        if (c >= '0' && c <= '9')
            value = value << 4 | (uint64_t)(c - '0');
        else if ((c | 32) >= 'a' && (c | 32) <= 'f')
            value = value << 4 | (uint64_t)((c | 32) - 'a' + 10);
        else
            break;
    }
    *text += n;
    *value_out = value;
    return n > 0;
}

static bool take_char(const char **text, char c)
{
    if (**text != c)
        return false;
    (*text)++;
    return true;
}

tutti_status tt_busid_parse(const char *text, tt_busid *busid_out)
{
    uint64_t part[4];
    const char *at = text;
    bool good = take_hex(&at, 8, &part[0]) && take_char(&at, ':') && take_hex(&at, 2, &part[1]);

    if (good && *at == '.') { /* no domain: 3b:00.0 has its bus first */
        part[2] = part[1];
        part[1] = part[0];
        part[0] = 0;
        good = part[1] <= 0xff;
    } else {
        good = good && take_char(&at, ':') && take_hex(&at, 2, &part[2]);
    }
    /* Not above 0x1f, save for the made-up ids of hidden and invented switches. */
    good = good && take_char(&at, '.') && take_hex(&at, 1, &part[3]) && *at == 0;
    if (!good)
        return tt_fail(TUTTI_ERR_CORRUPT, "\"%.40s\" is no PCI bus id", text);
    *busid_out = part[0] << 20 | part[1] << 12 | part[2] << 4 | part[3];
    return TUTTI_OK;
}

const char *tt_busid_print(tt_busid busid, char text[TT_BUSID_TEXT])
{
    if (busid == TT_BUSID_NONE)
        text[0] = 0;
    else
        (void)snprintf(text, TT_BUSID_TEXT, "%04x:%02x:%02x.%x", (unsigned)(busid >> 20),
                       (unsigned)(busid >> 12 & 0xff), (unsigned)(busid >> 4 & 0xff),
                       (unsigned)(busid & 0xf));
    return text;
}

tutti_status tt_topo_new(tt_topo_format format, const char *origin, tutti_topo **topo_out)
{
    tutti_topo *topo;
    tutti_status status;

    TT_TRY(tt_calloc(1, sizeof *topo, &topo));
    topo->format = format;
    status = tt_strdup(origin, &topo->origin);
    if (status != TUTTI_OK)
        goto free_topo;
    tt_text_clean(topo->origin);
    *topo_out = topo;
    return TUTTI_OK;

free_topo:
    free(topo);
    return status;
}

void tt_machine_free(tt_machine *machine)
{
    if (machine == NULL)
        return;
    for (int i = 0; i < machine->n_numa; i++)
        tt_cpuset_free(&machine->numa[i].cpus);
    for (int i = 0; i < machine->n_gpus; i++)
        tt_cpuset_free(&machine->gpus[i].cpus);
    tt_cpuset_free(&machine->allowed);
    tt_paths_free(machine->paths);
    tt_cost_cache_free(machine->costs);
    free(machine->numa);
    free(machine->pci);
    free(machine->gpus);
    free(machine->nvlinks);
    free(machine->nics);
    free(machine->p2p);
    free(machine->smi);
    free(machine->pcilinks);
    free(machine);
}

void tutti_topo_close(tutti_topo *topo)
{
    if (topo == NULL)
        return;
    for (int i = 0; i < topo->n_machines; i++)
        tt_machine_free(topo->machines[i]);
    for (int i = 0; i < topo->n_notes; i++)
        free(topo->notes[i].text);
    free(topo->machines);
    free(topo->hosts);
    free(topo->notes);
    free(topo->gpu_first);
    free(topo->nic_first);
    free(topo->island);
    free(topo->origin);
    free(topo);
}

/* Room for one more in a list of *n, which doubles; the cap is checked and the element zeroed. */
static tutti_status grow(void *list_inout, int n, int most, size_t size, const char *what)
{
    size_t cap = n == 0 ? 0 : 8; /* as tt_grow begins */
    void *list;

    if (n >= most)
        return tt_fail(TUTTI_ERR_CORRUPT, "more than %d %s", most, what);
    while (cap < (size_t)n)
        cap *= 2;
    TT_TRY(tt_grow(list_inout, &cap, (size_t)n + 1, size));
    memcpy(&list, list_inout, sizeof list);
    memset((char *)list + (size_t)n * size, 0, size);
    return TUTTI_OK;
}

tutti_status tt_topo_add_machine(tutti_topo *topo, tt_machine **machine_out)
{
    tt_machine *machine;
    tutti_status status;

    TT_TRY(tt_calloc(1, sizeof *machine, &machine));
    status = grow(&topo->machines, topo->n_machines, TT_TOPO_MAX_HOSTS, sizeof *topo->machines,
                  "machines");
    if (status != TUTTI_OK)
        goto free_machine;
    topo->machines[topo->n_machines++] = machine;
    *machine_out = machine;
    return TUTTI_OK;

free_machine:
    free(machine);
    return status;
}

tutti_status tt_topo_add_host(tutti_topo *topo, int machine, const char *name)
{
    tt_host *host;

    TT_TRY(grow(&topo->hosts, topo->n_hosts, TT_TOPO_MAX_HOSTS, sizeof *topo->hosts, "hosts"));
    host = &topo->hosts[topo->n_hosts++];
    host->machine = machine;
    (void)snprintf(host->name, sizeof host->name, "%s", name);
    return TUTTI_OK;
}

tutti_status tt_machine_add_numa(tt_machine *machine, int *at_out)
{
    tt_numa *numa;

    TT_TRY(grow(&machine->numa, machine->n_numa, TT_TOPO_MAX_NUMA, sizeof *numa, "NUMA domains"));
    numa = &machine->numa[machine->n_numa];
    numa->id = -1;
    *at_out = machine->n_numa++;
    return TUTTI_OK;
}

tutti_status tt_machine_add_pci(tt_machine *machine, int *at_out)
{
    tt_pci *pci;

    TT_TRY(grow(&machine->pci, machine->n_pci, TT_TOPO_MAX_PCI, sizeof *pci, "PCI devices"));
    pci = &machine->pci[machine->n_pci];
    pci->busid = TT_BUSID_NONE;
    pci->parent = -1;
    pci->iommu_group = -1;
    *at_out = machine->n_pci++;
    return TUTTI_OK;
}

tutti_status tt_machine_add_gpu(tt_machine *machine, int *at_out)
{
    tt_gpu *gpu;

    TT_TRY(grow(&machine->gpus, machine->n_gpus, TT_TOPO_MAX_GPUS, sizeof *gpu, "GPUs of a host"));
    gpu = &machine->gpus[machine->n_gpus];
    gpu->pci = gpu->cuda = gpu->rank = gpu->memory_node = gpu->affinity_node = -1;
    gpu->health.processes = gpu->health.remapped_rows = -1;
    gpu->dev = machine->n_gpus;
    *at_out = machine->n_gpus++;
    return TUTTI_OK;
}

tutti_status tt_machine_add_nic(tt_machine *machine, int *at_out)
{
    tt_nic *nic;

    TT_TRY(grow(&machine->nics, machine->n_nics, TT_TOPO_MAX_NICS, sizeof *nic, "NICs of a host"));
    nic = &machine->nics[machine->n_nics];
    nic->pci = nic->affinity_node = -1;
    nic->dev = nic->card = machine->n_nics;
    *at_out = machine->n_nics++;
    return TUTTI_OK;
}

tutti_status tt_machine_add_nvlink(tt_machine *machine, int *at_out)
{
    tt_nvlink *link;

    TT_TRY(grow(&machine->nvlinks, machine->n_nvlinks, TT_TOPO_MAX_NVLINKS, sizeof *link,
                "NVLink entries of a host"));
    link = &machine->nvlinks[machine->n_nvlinks];
    link->peer_gpu = -1;
    link->target = TT_BUSID_NONE;
    *at_out = machine->n_nvlinks++;
    return TUTTI_OK;
}

tutti_status tt_topo_note_add(tutti_topo *topo, int machine, const char *fmt, ...)
{
    char text[512];
    va_list args;

    if (topo->n_notes == TT_TOPO_MAX_NOTES)
        return TUTTI_OK;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    tt_text_clean(text);
    TT_TRY(grow(&topo->notes, topo->n_notes, TT_TOPO_MAX_NOTES, sizeof *topo->notes, "notes"));
    TT_TRY(tt_strdup(text, &topo->notes[topo->n_notes].text));
    topo->notes[topo->n_notes++].machine = machine;
    return TUTTI_OK;
}

bool tt_topo_same_fabric(const tutti_topo *topo, int a, int b)
{
    static const uint8_t none[16];
    const tt_host *one = &topo->hosts[a], *two = &topo->hosts[b];

    if (a == b)
        return true;
    return memcmp(one->cluster, none, sizeof none) != 0 &&
           memcmp(one->cluster, two->cluster, sizeof none) == 0 && one->clique == two->clique;
}
