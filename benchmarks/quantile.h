/* SPDX-License-Identifier: Apache-2.0 */
/* For all benchmarks, also those that are programs of their own. */
#ifndef TUTTI_BENCH_QUANTILE_H
#define TUTTI_BENCH_QUANTILE_H

#include <stdlib.h>

static inline int bench_ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* p in 0 ... 1 of n > 0 values, which are sorted on return. */
static inline double bench_quantile(double *values, size_t n, double p)
{
    qsort(values, n, sizeof *values, bench_ascending);
    return values[(size_t)((double)(n - 1) * p + 0.5)];
}

#endif
