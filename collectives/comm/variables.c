/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plan's NCCL_* variables, put into the environment before NCCL is first called.
 *
 * NCCL reads them once in a process, so they are set when the plan is made and stay: a later
 * context of the process finds them as if the user had set them, to the same values. What the user
 * has set is never changed, and a variable that any rank has set itself is left alone on all, for
 * ranks of one job must not differ in it; a value other than the plan's is reported once, by the
 * lowest rank that has it.
 *
 * setenv must not meet another thread's getenv. Here the ranks of a process are in this exchange,
 * one of them sets, and the others go on only when it has; threads of the program itself are asked
 * to wait for tutti_init (docs/topology.md), or TUTTI_NCCL_ENV=0 keeps the environment as it is.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/planning.h"
#include "core/env.h"
#include "core/log.h"
#include "core/mem.h"
#include "topo/findings.h"
#include "topo/plan.h"

/* Bit i of each: the i-th variable of the plan. */
typedef struct set_by_user {
    uint32_t any, other; /* other: not to the plan's value */
} set_by_user;

static const char *from_environment(void *arg, const char *name)
{
    (void)arg;
    return getenv(name);
}

static set_by_user user_has(const tt_plan_variable *list, int n)
{
    set_by_user mine = {0, 0};
    for (int i = 0; i < n; i++) {
        if (list[i].user[0] == '\0')
            continue;
        mine.any |= 1u << i;
        if (strcmp(list[i].user, list[i].value) != 0)
            mine.other |= 1u << i;
    }
    return mine;
}

static tutti_status apply(const tt_plan_variable *v, bool sets, bool tells)
{
    if (tells)
        tt_log_info(TT_TOPO, "%s=%s: %s", v->name, v->value, v->why);
    if (sets && setenv(v->name, v->value, 0) != 0)
        return tt_fail(TUTTI_ERR_NO_MEMORY, "out of memory for %s", v->name);
    return TUTTI_OK;
}

/* Whether this rank is the first that has set variable i to something else. */
static bool speaks(const tutti_ctx *ctx, const set_by_user *all, int i)
{
    int r = 0;
    while (r < ctx->world.size && (all[r].other >> i & 1) == 0)
        r++;
    return r == ctx->world.rank;
}

static tutti_status apply_all(const tutti_ctx *ctx, const tt_plan_variable *list, int n,
                              const set_by_user *all)
{
    bool sets = ctx->world.rank == 0 || !ctx->boot->one_process;
    uint32_t taken = 0;
    tutti_status status = TUTTI_OK;
    for (int r = 0; r < ctx->world.size; r++)
        taken |= all[r].any;
    for (int i = 0; i < n && status == TUTTI_OK; i++) {
        if ((taken >> i & 1) == 0)
            status = apply(&list[i], sets, ctx->world.rank == 0);
        else if (speaks(ctx, all, i))
            tt_log_warn(TT_TOPO, "%s=%s is set and stays; the plan has %s, which %s", list[i].name,
                        list[i].user, list[i].value, list[i].why);
    }
    return status;
}

static void tell_conflicts(const tutti_ctx *ctx, const tt_findings *found)
{
    for (size_t i = 0; i < found->n && ctx->world.rank == 0; i++)
        if (found->list[i].cost > 0)
            tt_log_warn(TT_TOPO, "%s", found->list[i].text);
        else
            tt_log_info(TT_TOPO, "%s", found->list[i].text);
}

static tutti_status agree_and_apply(tutti_ctx *ctx, const tt_plan_variable *list, int n,
                                    set_by_user *all)
{
    set_by_user mine = user_has(list, n);
    TT_TRY(
        tt_all_gather_fixed(&ctx->world, "tutti_init, NCCL's variables", &mine, sizeof mine, all));
    return tt_agree(&ctx->world, "tutti_init, NCCL's variables", apply_all(ctx, list, n, all));
}

tutti_status tt_planning_variables(tutti_ctx *ctx)
{
    tt_plan_variable list[TT_PLAN_VARIABLES];
    tt_findings found = {0};
    set_by_user *all = NULL;
    bool wanted;
    int n = 0;
    if (ctx->dev_ops->kind != TUTTI_BACKEND_CUDA)
        return TUTTI_OK;
    tutti_status status = tt_env_get_bool(TT_ENV_NCCL_ENV, &wanted);
    if (status == TUTTI_OK)
        status = tt_plan_environment(ctx->plan, from_environment, NULL, list, &n, &found);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)ctx->world.size, sizeof *all, &all);
    status = tt_agree(&ctx->world, "tutti_init, NCCL's variables", status);
    if (status == TUTTI_OK)
        tell_conflicts(ctx, &found);
    if (status == TUTTI_OK && wanted && n > 0)
        status = agree_and_apply(ctx, list, n, all);
    tt_findings_free(&found);
    free(all);
    return status;
}
