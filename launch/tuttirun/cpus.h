/* SPDX-License-Identifier: Apache-2.0 */
/* The CPUs that this process may use. */
#ifndef TUTTIRUN_CPUS_H
#define TUTTIRUN_CPUS_H

/* Cores with at least one allowed CPU; at least 1. */
int cpus_cores(void);

/*
 * Binds this process to share `index` of `count` of its allowed CPUs, cut along packages, NUMA
 * nodes and cores. With more shares than CPUs nothing changes. Returns how many CPUs are allowed, 0
 * where that cannot be found out (nothing changes then either).
 */
int cpus_bind_share(int index, int count);

#endif
