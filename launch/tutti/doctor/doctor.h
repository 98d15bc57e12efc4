/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files of `tutti doctor`. */
#ifndef TUTTI_DOCTOR_H
#define TUTTI_DOCTOR_H

#include "boot/context.h"
#include "core/mem.h"

typedef enum said_level { SAID_OK, SAID_NOTE, SAID_WARNING, SAID_FAILED } said_level;

/* What one check says on one rank. */
typedef struct said {
    said_level level;
    char *subject, *text, *action; /* action: "" where there is nothing to do */
} said;

typedef struct report {
    said *list;
    size_t n, cap;
    bool out_of_memory;
} report;

void say(report *r, said_level level, const char *subject, const char *action, const char *fmt, ...)
    TT_PRINTF(5, 6);
void report_free(report *r);
/* Collective: gathers all ranks' reports on rank 0, which prints equal lines once, with the ranks
 * they are of. *worst_out is the same on all ranks. ctx NULL: this process alone. */
tutti_status report_print(tutti_ctx *ctx, const report *r, said_level *worst_out);

/* What the environment was before the library touched it: "NAME=value" lines of the names that
 * matter, sorted. The caller frees it. */
char *environment_text(void);

/* local.c: this process and host. Before any message. */
void check_limits(report *r, int local_ranks);
void check_cpus(report *r, int local_ranks);
void check_interfaces(report *r, bool several_hosts);
/* software.c: MPI, CUDA, NCCL, and what the topology finds. */
void check_software(report *r, const tutti_ctx *ctx);
void check_topology(report *r);
/* hosts.c: between ranks. Collective. */
tutti_status check_environment(report *r, tutti_ctx *ctx, const char *mine);
tutti_status check_split(report *r, tutti_ctx *ctx);
tutti_status check_reach(report *r, tutti_ctx *ctx);
tutti_status check_clocks(report *r, tutti_ctx *ctx);
/* links.c: measures every pair for about `seconds` in all. Collective. */
tutti_status check_links(report *r, tutti_ctx *ctx, double seconds);
/* promise.c: GB/s from this rank's GPU to that of each rank of its host, by the topology; 0: not
 * known. Collective. */
tutti_status promised_gbps(tutti_ctx *ctx, double *gbps);

#endif
