/* SPDX-License-Identifier: Apache-2.0 */
/* Header-only bridge from the program's MPI communicator to tutti_init. Nothing in the library
 * includes this. */
#ifndef TUTTI_INTEROP_MPI_H
#define TUTTI_INTEROP_MPI_H

#include <mpi.h>

#include "tutti/context.h"

/*
 * Makes tutti_init use *comm: world rank i of the context is rank i of *comm. The library dups it
 * and never uses the original, and does not finalize MPI. *comm must stay valid until tutti_init
 * returns.
 */
static inline void tutti_init_opts_mpi(tutti_init_opts *opts, const MPI_Comm *comm)
{
    opts->boot = TUTTI_BOOT_MPI;
    opts->mpi_comm = comm;
}

#endif
