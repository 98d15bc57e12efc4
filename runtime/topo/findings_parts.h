/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of the findings only. */
#ifndef TT_TOPO_FINDINGS_PARTS_H
#define TT_TOPO_FINDINGS_PARTS_H

#include "topo/cost.h"
#include "topo/findings.h"

/* One machine being looked at. A check that runs out of memory is told once, at the end. */
typedef struct tt_check {
    const tutti_topo *topo;
    const tt_machine *m;
    int machine;
    const tt_find_also *also;
    char where[96]; /* "", or "host a and 3 others: " */
    double busbw; /* of a 256 MiB all-reduce on all its GPUs, GB/s; 0: fewer than two */
    bool fallback; /* the ring search found nothing */
    int cross_nic; /* of the ring over several hosts */
    tt_findings *out;
    tutti_status status;
} tt_check;

void tt_found(tt_check *c, const char *id, double cost, const char *fmt, ...) TT_PRINTF(4, 5);

/* A set of GPUs or NICs, to be named in a sentence. */
typedef struct tt_some {
    int n;
    short at[TT_TOPO_MAX_NICS];
} tt_some;
static inline void tt_some_add(tt_some *some, int at)
{
    if (some->n < TT_TOPO_MAX_NICS)
        some->at[some->n++] = (short)at;
}
enum { TT_SOME_TEXT = 160 };
/* "GPU 3", "GPUs 0, 1 and 5", "GPUs 0-3", "all 8 GPUs"; returns text. */
const char *tt_some_gpus(const tt_check *c, const tt_some *some, char text[TT_SOME_TEXT]);
/* "NIC mlx5_0", "NICs mlx5_0 and mlx5_3". */
const char *tt_some_nics(const tt_check *c, const tt_some *some, char text[TT_SOME_TEXT]);

/* Active NVLinks of a GPU that lead somewhere. */
int tt_links_of(const tt_machine *m, int gpu);

void tt_check_nvlink(tt_check *c);
void tt_check_pci(tt_check *c);
void tt_check_nic(tt_check *c);
void tt_check_gpu(tt_check *c);
/* Between hosts; once for the topo. */
void tt_check_hosts(tt_check *c);

#endif
