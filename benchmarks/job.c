/* SPDX-License-Identifier: Apache-2.0 */
/* A benchmark's beginning and end: the job joined, failures told once, one exit status. */
#include <stdlib.h>

#include "bench.h"

tutti_status bench_job_open(bench_job *job, int ranks)
{
    TT_TRY(tutti_init(NULL, &job->ctx));
    job->world = tutti_world(job->ctx);
    job->rank = tutti_rank(job->world);
    job->size = tutti_size(job->world);
    if (ranks > 0 && job->size != ranks)
        return tt_fail(TUTTI_ERR_ARG,
                       "tutti bench: %d rank%s came, --ranks asks for %d (started under mpirun?)",
                       job->size, job->size == 1 ? "" : "s", ranks);
    return TUTTI_OK;
}

int bench_job_close(bench_job *job, tutti_status status, int rc)
{
    if (status != TUTTI_OK) {
        if (job->ctx == NULL ? bench_speaks() : job->rank == 0)
            fprintf(stderr, "%s\n", tutti_last_error());
        rc = status == TUTTI_ERR_ARG ? BENCH_EXIT_USAGE : BENCH_EXIT_FAILED;
        if (status == TUTTI_ERR_NO_MEMORY && tutti_ctx_error(job->ctx, NULL, 0) == TUTTI_OK)
            tutti_abort(job->ctx, rc, tutti_last_error()); /* perhaps on this rank alone */
    }
    if (tutti_finalize(job->ctx) != TUTTI_OK && rc == 0)
        rc = BENCH_EXIT_FAILED;
    if (rc == 0 && (fflush(stdout) != 0 || ferror(stdout))) {
        fprintf(stderr, "tutti bench: standard output could not be written\n");
        rc = BENCH_EXIT_FAILED;
    }
    return rc;
}
