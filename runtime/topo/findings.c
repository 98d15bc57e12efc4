/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the checks on every distinct machine, and keeps what they find.
 *
 * A check looks at one situation and says at most one sentence for a machine, naming all devices
 * that are in it: forty equal lines would hide the one that matters. Costs are shares of the
 * bandwidth that the cost model gives the healthy machine, so that unlike things can be sorted.
 * Severity, action and explanation belong to the kind (findings_kinds.c), not to the occurrence.
 */
#include "topo/findings.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/mem.h"
#include "topo/findings_parts.h"

const char *tt_severity_name(tt_severity severity)
{
    static const char *const name[] = {"note", "warning", "error"};
    return name[severity];
}

static tutti_status add(tt_findings *findings, const char *id, double cost, const char *where,
                        const char *text)
{
    const tt_finding_kind *kind = tt_finding_kind_of(id);
    TT_ASSERT(kind != NULL, "no finding '%s'", id);
    char *copy;
    size_t bytes = strlen(where) + strlen(text) + 1;
    TT_TRY(tt_grow(&findings->list, &findings->cap, findings->n + 1, sizeof *findings->list));
    TT_TRY(tt_calloc(bytes, 1, &copy));
    snprintf(copy, bytes, "%s%s", where, text);
    cost = cost < 0 ? 0 : cost > 1 ? 1 : cost;
    findings->list[findings->n++] =
        (tt_finding){kind->id, kind->severity, cost, copy, kind->action};
    return TUTTI_OK;
}

tutti_status tt_findings_add(tt_findings *findings, const char *id, double cost, const char *fmt,
                             ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    return add(findings, id, cost, "", text);
}

void tt_found(tt_check *c, const char *id, double cost, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    if (c->status != TUTTI_OK)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    c->status = add(c->out, id, cost, c->where, text);
}

void tt_findings_free(tt_findings *findings)
{
    for (size_t i = 0; i < findings->n; i++)
        free(findings->list[i].text);
    free(findings->list);
    *findings = (tt_findings){0};
}

static int by_weight(const void *a, const void *b)
{
    const tt_finding *x = a, *y = b;
    if (x->severity != y->severity)
        return x->severity > y->severity ? -1 : 1;
    if (x->cost != y->cost)
        return x->cost > y->cost ? -1 : 1;
    int d = strcmp(x->id, y->id);
    return d != 0 ? d : strcmp(x->text, y->text);
}

void tt_findings_sort(tt_findings *findings)
{
    if (findings->n > 1)
        qsort(findings->list, findings->n, sizeof *findings->list, by_weight);
}

static size_t append(char *text, size_t cap, size_t at, const char *fmt, ...) TT_PRINTF(4, 5);
static size_t append(char *text, size_t cap, size_t at, const char *fmt, ...)
{
    va_list args;
    if (at >= cap)
        return at;
    va_start(args, fmt);
    int n = vsnprintf(text + at, cap - at, fmt, args);
    va_end(args);
    return n < 0 ? at : at + (size_t)n;
}

/* "0-3" for three and more in a row. */
const char *tt_some_gpus(const tt_check *c, const tt_some *some, char text[TT_SOME_TEXT])
{
    size_t at = 0;
    if (some->n == c->m->n_gpus && some->n > 1) {
        snprintf(text, TT_SOME_TEXT, some->n == 2 ? "both GPUs" : "all %d GPUs", some->n);
        return text;
    }
    at = append(text, TT_SOME_TEXT, at, "%s ", some->n == 1 ? "GPU" : "GPUs");
    for (int i = 0, end; i < some->n; i = end) {
        for (end = i + 1; end < some->n && some->at[end] == some->at[end - 1] + 1; end++)
            ;
        if (end - i == 2)
            end = i + 1;
        const char *between = i == 0 ? "" : end == some->n ? " and " : ", ";
        if (end - i > 1)
            at = append(text, TT_SOME_TEXT, at, "%s%d-%d", between, some->at[i], some->at[end - 1]);
        else
            at = append(text, TT_SOME_TEXT, at, "%s%d", between, some->at[i]);
    }
    return text;
}

const char *tt_some_nics(const tt_check *c, const tt_some *some, char text[TT_SOME_TEXT])
{
    enum { NAMED = 4 };
    size_t at = append(text, TT_SOME_TEXT, 0, "%s ", some->n == 1 ? "NIC" : "NICs");
    for (int i = 0; i < some->n && i < NAMED; i++) {
        const tt_nic *nic = &c->m->nics[some->at[i]];
        const char *between = i == 0 ? "" : i + 1 == some->n ? " and " : ", ";
        if (nic->name[0] != '\0')
            at = append(text, TT_SOME_TEXT, at, "%s%s", between, nic->name);
        else
            at = append(text, TT_SOME_TEXT, at, "%s%d", between, some->at[i]);
    }
    if (some->n > NAMED)
        append(text, TT_SOME_TEXT, at, " and %d more", some->n - NAMED);
    return text;
}

int tt_links_of(const tt_machine *m, int gpu)
{
    int links = 0;
    for (int l = 0; l < m->n_nvlinks; l++)
        if (m->nvlinks[l].gpu == gpu && m->nvlinks[l].peer <= TT_PEER_CPU)
            links += m->nvlinks[l].count;
    return links;
}

static void name_hosts(tt_check *c)
{
    const tutti_topo *topo = c->topo;
    int first = -1, n = 0;
    if (topo->n_machines < 2)
        return;
    for (int h = 0; h < topo->n_hosts; h++)
        if (topo->hosts[h].machine == c->machine && n++ == 0)
            first = h;
    if (first < 0)
        return;
    char name[TT_TOPO_NAME + 16];
    if (topo->hosts[first].name[0] != '\0')
        snprintf(name, sizeof name, "%s", topo->hosts[first].name);
    else
        snprintf(name, sizeof name, "host %d", first);
    if (n > 1)
        snprintf(c->where, sizeof c->where, "%s and %d more: ", name, n - 1);
    else
        snprintf(c->where, sizeof c->where, "%s: ", name);
}

/* What the checks compare with: the all-reduce on all GPUs. */
static void judge(tt_check *c)
{
    int gpus[TT_TOPO_MAX_GPUS];
    tt_cost one, two;
    for (int g = 0; g < c->m->n_gpus; g++)
        gpus[g] = g;
    if (c->m->n_gpus < 2)
        return;
    c->status = tt_cost_model(c->m, gpus, c->m->n_gpus, 1, &one);
    if (c->status != TUTTI_OK)
        return;
    c->busbw = tt_cost_busbw(&one, TT_COST_ALL_REDUCE, 256 << 20);
    c->fallback = one.ring.fallback;
    if (c->m->n_nics < 2)
        return;
    c->status = tt_cost_model(c->m, gpus, c->m->n_gpus, 2, &two);
    c->cross_nic = c->status == TUTTI_OK ? two.ring.cross_nic : 0;
}

static tutti_status check_machine(const tutti_topo *topo, int machine, const tt_find_also *also,
                                  tt_findings *out)
{
    tt_check c = {
        .topo = topo, .m = topo->machines[machine], .machine = machine, .also = also, .out = out};
    name_hosts(&c);
    judge(&c);
    if (c.status == TUTTI_OK) {
        tt_check_nvlink(&c);
        tt_check_pci(&c);
        tt_check_nic(&c);
        tt_check_gpu(&c);
    }
    return c.status;
}

tutti_status tt_findings_make(const tutti_topo *topo, const tt_find_also *also, tt_findings *out)
{
    static const tt_find_also nothing = {0};
    tt_findings findings = {0};
    tutti_status status = TUTTI_OK;
    if (also == NULL)
        also = &nothing;
    for (int m = 0; m < topo->n_machines && status == TUTTI_OK; m++)
        status = check_machine(topo, m, also, &findings);
    if (status == TUTTI_OK) {
        tt_check c = {.topo = topo, .also = also, .out = &findings};
        tt_check_hosts(&c);
        status = c.status;
    }
    if (status != TUTTI_OK) {
        tt_findings_free(&findings);
        return status;
    }
    tt_findings_sort(&findings);
    *out = findings;
    return TUTTI_OK;
}
