/* SPDX-License-Identifier: Apache-2.0 */
#include "tt_test.h"

tutti_status tt_add_params(tutti_reducer *red, int n, int floats, float *params)
{
    tutti_status status = TUTTI_OK;

    for (int id = 0; id < n && status == TUTTI_OK; id++) {
        tutti_param p = TUTTI_PARAM_INIT;
        char name[16];
        snprintf(name, sizeof name, "w%d", id);
        p.name = name;
        p.dtype = TUTTI_FLOAT32;
        p.ndim = 1;
        p.shape[0] = floats;
        p.param = params != NULL ? params + (size_t)id * (size_t)floats : NULL;
        status = tutti_reducer_add(red, &p, NULL);
    }
    return status;
}

tutti_reducer *tt_make_reducer(tt_rank *r, tutti_comm *comm, const tutti_reducer_opts *opts, int n,
                               int floats, float *params)
{
    tutti_reducer *red = NULL;
    tutti_status status = tutti_reducer_create(comm, opts, &red);

    if (status == TUTTI_OK)
        status = tt_add_params(red, n, floats, params);
    if (status == TUTTI_OK)
        status = tutti_reducer_commit(red);
    if (status != TUTTI_OK)
        tt_say(r, "no reducer: %s", tutti_last_error());
    return red;
}
