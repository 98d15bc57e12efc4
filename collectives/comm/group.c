/* SPDX-License-Identifier: Apache-2.0 */
/* Groups: the calls of one thread between begin and end. */
#include "comm/issue.h"

#include <stdio.h>

#include "core/mem.h"
#include "core/spare.h"

typedef struct call_group {
    tt_call *calls; /* room for twice cap: issuing needs as much again */
    size_t n, cap;
    tutti_status status; /* of the first call that was refused */
    char text[TT_ERROR_TEXT_MAX];
} call_group;

static _Thread_local call_group group;
_Thread_local int tt_group_depth; /* apart, where every call can look at it cheaply */

static tutti_status make_room(const tutti_comm *comm)
{
    enum { FIRST = 16 };
    const tt_upper *upper = comm->ctx->upper;
    const size_t cap = group.cap == 0 ? FIRST : 2 * group.cap;
    tt_call *calls;
    if (group.n < group.cap)
        return TUTTI_OK;
    TT_TRY(tt_spare_take(upper->spare, 2 * cap * sizeof *calls, &calls));
    for (size_t i = 0; i < group.n; i++)
        calls[i] = group.calls[i];
    tt_spare_give(group.calls);
    group.calls = calls;
    group.cap = cap;
    return TUTTI_OK;
}

tutti_status tt_group_add(const tt_call *call)
{
    tutti_status status = make_room(call->comm);
    if (status != TUTTI_OK) {
        tt_call owned = *call;
        tt_call_free(&owned);
        status = tt_ctx_fail(owned.comm->ctx, status);
        tt_group_refuse(status);
        return status;
    }
    group.calls[group.n++] = *call;
    return TUTTI_OK;
}

void tt_group_refuse(tutti_status status)
{
    if (tt_group_depth == 0 || group.status != TUTTI_OK)
        return;
    group.status = status;
    snprintf(group.text, sizeof group.text, "%s", tutti_last_error());
}

tutti_status tt_group_forbid(const char *what)
{
    if (tt_group_depth == 0)
        return TUTTI_OK;
    tutti_status status =
        tt_fail(TUTTI_ERR_STATE, "%s: not allowed between group_begin and group_end", what);
    tt_group_refuse(status);
    for (size_t i = 0; i < group.n; i++) /* other ranks may wait for what is dropped */
        if (group.calls[i].comm->group.size > 1)
            tt_ctx_fail(group.calls[i].comm->ctx, status);
    return status;
}

void tt_group_forget(tutti_comm *comm)
{
    size_t kept = 0;
    for (size_t i = 0; i < group.n; i++) {
        if (group.calls[i].comm != comm) {
            group.calls[kept++] = group.calls[i];
            continue;
        }
        tutti_status status =
            tt_fail(TUTTI_ERR_STATE, "comm %s was destroyed between %s on it and group_end",
                    comm->name, tt_kind_name(group.calls[i].kind));
        tt_group_refuse(status);
        if (comm->group.size > 1) /* other ranks may wait for it */
            tt_ctx_fail(comm->ctx, status);
        tt_call_free(&group.calls[i]);
    }
    group.n = kept;
    if (kept == 0) {
        tt_spare_give(group.calls);
        group.calls = NULL;
        group.cap = 0;
    }
}

tutti_status tutti_group_begin(void)
{
    tt_group_depth++;
    return TUTTI_OK;
}

/* The group is over before its calls are carried out: a failed one leaves no trace. */
static void reset(void)
{
    group.calls = NULL;
    group.n = group.cap = 0;
    group.status = TUTTI_OK;
}

tutti_status tutti_group_end(void)
{
    if (tt_group_depth == 0)
        return tt_fail(TUTTI_ERR_STATE, "group_end without group_begin");
    if (--tt_group_depth > 0)
        return TUTTI_OK;
    tt_call *calls = group.calls;
    size_t n = group.n, cap = group.cap;
    tutti_status status = group.status;
    reset();
    if (status != TUTTI_OK) {
        for (size_t i = 0; i < n; i++)
            tt_call_free(&calls[i]);
        tt_fail_text(status, group.text);
    } else if (n > 0) {
        status = tt_issue(calls, n, calls + cap);
    }
    tt_spare_give(calls);
    return status;
}
