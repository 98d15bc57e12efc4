/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is wrong, or about to go wrong, with a machine: plain sentences with the fact, what it costs
 * and what to do. From the model alone; nothing that the model does not know is claimed.
 */
#ifndef TT_TOPO_FINDINGS_H
#define TT_TOPO_FINDINGS_H

#include "topo/model.h"

typedef enum tt_severity {
    TT_SEVERITY_NOTE, /* good to know; costs nothing by itself */
    TT_SEVERITY_WARNING, /* slower than the machine could be, or not what it seems */
    TT_SEVERITY_ERROR /* a job will not start, hang, crawl, or compute wrong numbers */
} tt_severity;
const char *tt_severity_name(tt_severity severity); /* "warning" */

typedef struct tt_finding {
    const char *id; /* "nvlink-missing" */
    tt_severity severity;
    double cost; /* share of the all-reduce bandwidth that is lost by the model, 0 ... 1; 0 also
                    where it is no matter of speed */
    char *text; /* what was found where */
    const char *action;
} tt_finding;

typedef struct tt_findings {
    tt_finding *list; /* errors first, then by cost; each id once per machine */
    size_t n, cap;
} tt_findings;

/* What the caller knows besides the model; zeros: nothing. */
typedef struct tt_find_also {
    tt_tri net_plugin; /* a NCCL network plugin can be loaded */
} tt_find_also;

tutti_status tt_findings_make(const tutti_topo *topo, const tt_find_also *also, tt_findings *out);
void tt_findings_free(tt_findings *findings);

/* The catalogue: every finding there is. */
typedef struct tt_finding_kind {
    const char *id;
    tt_severity severity;
    const char *what; /* half a line */
    const char *why; /* a paragraph for --explain: how it comes about and what it does */
    const char *action; /* what to do, a sentence */
} tt_finding_kind;
const tt_finding_kind *tt_finding_kind_at(int i); /* NULL past the end */
const tt_finding_kind *tt_finding_kind_of(const char *id); /* NULL: none */

/* For those who find things elsewhere (the plan, the doctor): adds one, text by printf. */
tutti_status tt_findings_add(tt_findings *findings, const char *id, double cost, const char *fmt,
                             ...) TT_PRINTF(4, 5);
void tt_findings_sort(tt_findings *findings);

#endif
