/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "doctor.h"

static void free_said(said *s)
{
    free(s->subject);
    free(s->text);
    free(s->action);
}

void report_free(report *r)
{
    for (size_t i = 0; i < r->n; i++)
        free_said(&r->list[i]);
    free(r->list);
    *r = (report){0};
}

static void add(report *r, said_level level, const char *subject, const char *action,
                const char *text)
{
    said s = {.level = level};
    if (tt_grow(&r->list, &r->cap, r->n + 1, sizeof *r->list) == TUTTI_OK &&
        tt_strdup(subject, &s.subject) == TUTTI_OK && tt_strdup(text, &s.text) == TUTTI_OK &&
        tt_strdup(action, &s.action) == TUTTI_OK) {
        r->list[r->n++] = s;
        return;
    }
    free_said(&s);
    r->out_of_memory = true;
}

void say(report *r, said_level level, const char *subject, const char *action, const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    add(r, level, subject, action, text);
}

static void pack(const report *r, tt_buf *buf)
{
    tt_buf_put_u32(buf, (uint32_t)r->n);
    for (size_t i = 0; i < r->n; i++) {
        tt_buf_put_u32(buf, (uint32_t)r->list[i].level);
        tt_buf_put_str(buf, r->list[i].subject);
        tt_buf_put_str(buf, r->list[i].text);
        tt_buf_put_str(buf, r->list[i].action);
    }
}

static tutti_status unpack(const void *data, size_t bytes, report *r)
{
    tt_buf view = tt_buf_view(data, bytes);
    uint32_t n = tt_buf_get_u32(&view);
    for (uint32_t i = 0; i < n && !view.failed; i++) {
        uint32_t level = tt_buf_get_u32(&view);
        /* the strings are borrowed until the next get, and copied by add */
        char *subject = NULL, *text = NULL;
        tutti_status status = tt_strdup(tt_buf_get_str(&view), &subject);
        if (status == TUTTI_OK)
            status = tt_strdup(tt_buf_get_str(&view), &text);
        if (status == TUTTI_OK && level <= SAID_FAILED)
            add(r, (said_level)level, subject, tt_buf_get_str(&view), text);
        free(subject);
        free(text);
        TT_TRY(status);
    }
    return view.failed ? tt_fail(TUTTI_ERR_INTERNAL, "doctor: a report was cut") : TUTTI_OK;
}

/* The ranks whose reports have this line, as "0-3,7". */
static void who(const report *all, int n, const said *s, char *text, size_t cap, int *count_out)
{
    size_t at = 0;
    int first = -1, last = -2, count = 0;
    text[0] = '\0';
    for (int r = 0; r <= n; r++) {
        bool has = false;
        for (size_t i = 0; r < n && i < all[r].n; i++)
            has |= all[r].list[i].level == s->level && strcmp(all[r].list[i].text, s->text) == 0 &&
                   strcmp(all[r].list[i].subject, s->subject) == 0;
        count += has;
        if (has && r == last + 1) {
            last = r;
        } else {
            if (first >= 0 && at < cap)
                at += (size_t)(first == last
                                   ? snprintf(text + at, cap - at, "%s%d", at > 0 ? "," : "", first)
                                   : snprintf(text + at, cap - at, "%s%d-%d", at > 0 ? "," : "",
                                              first, last));
            first = has ? r : -1;
            last = has ? r : -2;
        }
    }
    *count_out = count;
}

static bool said_before(const report *all, int rank, size_t at)
{
    const said *s = &all[rank].list[at];
    for (int r = 0; r <= rank; r++)
        for (size_t i = 0; i < (r < rank ? all[r].n : at); i++)
            if (all[r].list[i].level == s->level && strcmp(all[r].list[i].text, s->text) == 0 &&
                strcmp(all[r].list[i].subject, s->subject) == 0)
                return true;
    return false;
}

static void print_line(const report *all, int n, const said *s)
{
    static const char *const word[] = {"ok", "note", "warn", "FAIL"};
    char ranks[128];
    int count;
    who(all, n, s, ranks, sizeof ranks, &count);
    printf("%-5s %-13s %s", word[s->level], s->subject, s->text);
    if (n > 1 && count < n)
        printf(" [rank%s %s]", count == 1 ? "" : "s", ranks);
    putchar('\n');
    if (s->action[0] != '\0')
        printf("%-5s %-13s > %s\n", "", "", s->action);
}

static bool subject_before(const report *all, int rank, size_t at)
{
    for (int r = 0; r <= rank; r++)
        for (size_t i = 0; i < (r < rank ? all[r].n : at); i++)
            if (strcmp(all[r].list[i].subject, all[rank].list[at].subject) == 0)
                return true;
    return false;
}

/* What any rank says of a subject, each line once; counted by level. */
static void print_subject(const report *all, int n, const char *subject, size_t count[4])
{
    for (int r = 0; r < n; r++)
        for (size_t i = 0; i < all[r].n; i++)
            if (strcmp(all[r].list[i].subject, subject) == 0 && !said_before(all, r, i)) {
                print_line(all, n, &all[r].list[i]);
                count[all[r].list[i].level]++;
            }
}

static void print_all(const report *all, int n)
{
    size_t count[4] = {0};
    for (int r = 0; r < n; r++)
        for (size_t i = 0; i < all[r].n; i++)
            if (!subject_before(all, r, i))
                print_subject(all, n, all[r].list[i].subject, count);
    printf("\n%zu failed, %zu warnings, %zu notes, %zu ok\n", count[SAID_FAILED],
           count[SAID_WARNING], count[SAID_NOTE], count[SAID_OK]);
}

static said_level worst_of(const report *all, int n)
{
    said_level worst = SAID_OK;
    for (int r = 0; r < n; r++)
        for (size_t i = 0; i < all[r].n; i++)
            worst = all[r].list[i].level > worst ? all[r].list[i].level : worst;
    return worst;
}

tutti_status report_print(tutti_ctx *ctx, const report *r, said_level *worst_out)
{
    tt_buf mine = {0};
    tt_blobs blobs = {0};
    report *all = NULL;
    if (r->out_of_memory)
        return tt_fail(TUTTI_ERR_NO_MEMORY, "doctor: no memory for the report");
    if (ctx == NULL) {
        print_all(r, 1);
        *worst_out = worst_of(r, 1);
        return TUTTI_OK;
    }
    int n = ctx->world.size;
    pack(r, &mine);
    tutti_status status =
        tt_all_gather_blobs(&ctx->world, "doctor, reports", mine.data, mine.size, &blobs);
    tt_buf_free(&mine);
    if (status == TUTTI_OK)
        status = tt_calloc((size_t)n, sizeof *all, &all);
    for (int i = 0; i < n && status == TUTTI_OK; i++)
        status = unpack(tt_blob(&blobs, i), tt_blob_bytes(&blobs, i), &all[i]);
    if (status == TUTTI_OK) {
        *worst_out = worst_of(all, n);
        if (ctx->world.rank == 0)
            print_all(all, n);
    }
    for (int i = 0; i < n && all != NULL; i++)
        report_free(&all[i]);
    free(all);
    tt_blobs_free(&blobs);
    return status;
}
