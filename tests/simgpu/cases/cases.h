/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small CUDA programs that are right, or wrong in one way, each with the finding it must end in.
 * They use the CUDA headers and cudart only, as a user's program does; run.c runs each in a process
 * of its own in several schedules.
 */
#ifndef SIMGPU_CASES_H
#define SIMGPU_CASES_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

/* In a case: the call must succeed, or the case ends with status 3. */
#define OK(call) must((call), cudaSuccess, #call, __LINE__)
#define FAILS(error, call) must((call), (error), #call, __LINE__)
#define CHECK(condition) hold((condition), #condition, __LINE__)

void must(cudaError_t got, cudaError_t wanted, const char *call, int line);
void hold(bool condition, const char *text, int line);

typedef struct case_entry {
    const char *name;
    void (*run)(void);
    const char *finding; /* id of the one finding; NULL: none */
    const char *both; /* the finding's sentence has this too; NULL: anything */
    const char *env; /* "A=x B=y" */
    bool late; /* shows only in schedule late */
} case_entry;

typedef struct case_list {
    const char *group;
    const case_entry *cases;
    size_t n;
} case_list;

extern const case_list legal_cases, order_cases, memory_cases, object_cases, capture_cases,
    fault_cases, engine_cases, random_cases, kernel_cases;

enum { N = 1024 };
static const size_t BYTES = N * sizeof(float);

/* Two streams that do not wait for each other by themselves. */
typedef struct pair {
    cudaStream_t a, b;
    cudaEvent_t event;
    float *x, *y;
    float *host; /* pinned */
} pair;
pair pair_make(void);
void pair_free(pair *p);

#endif
