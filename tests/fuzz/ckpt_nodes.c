/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A checkpoint in parts on two nodes, opened by both. The knobs say what each node's folder has and
 * what it is called there; a part may be there twice, nowhere, or in two versions.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/open.h"

#include "ckpt_targets.h"
#include "tt_test.h"

typedef struct nodes_input {
    tt_arc made;
    tutti_status status[2];
    char text[2][256];
} nodes_input;

static void read_all(tt_rank *r, tutti_ckpt_reader *rd, const tt_arc *made)
{
    size_t at = 0;
    tutti_tensor info;

    for (int i = 0; i < 32 && tutti_ckpt_next(rd, "*", &at, &info) == TUTTI_OK; i++) {
        const tt_ctensor *t = &rd->src.m.cat.tensor[at - 1];
        int64_t dim[2 * TUTTI_CKPT_MAX_DIMS] = {0};
        uint8_t *data = malloc(tt_tensor_bytes(t) + 1);

        if (data == NULL)
            abort();
        info.data = data;
        info.name = t->name;
        info.flags = 0;
        memset(info.extent, 0, sizeof info.extent);
        tutti_status status = tutti_ckpt_read(rd, &info, 1, (tutti_stream){0});
        memcpy(dim + t->ndim, t->shape, (size_t)t->ndim * sizeof *dim);
        if (status == TUTTI_OK)
            tt_fuzz_compare(&rd->src.m, made, t, dim, data);
        free(data);
        TT_EXPECT(r, status == TUTTI_OK);
    }
}

static void body(tt_rank *r)
{
    nodes_input *in = r->arg;
    tutti_ckpt_open_opts opts = TUTTI_CKPT_OPEN_OPTS_INIT;
    char path[128];
    tutti_ckpt_reader *rd;

    (void)snprintf(path, sizeof path, "%s/%s", tt_fuzz_root(), r->rank == 0 ? "a" : "b");
    opts.flags = TUTTI_CKPT_OPEN_NODE_LOCAL;
    in->status[r->rank] =
        tutti_ckpt_open_with(r->ctx, path, (in->made.knob[3] & 1) != 0 ? 7 : -1, &opts, &rd);
    if (in->status[r->rank] != TUTTI_OK) {
        (void)snprintf(in->text[r->rank], sizeof in->text[0], "%s", tutti_last_error());
        return;
    }
    read_all(r, rd, &in->made);
    tutti_ckpt_close(rd);
}

static void touch(const char *folder, const char *name)
{
    char path[256];

    (void)snprintf(path, sizeof path, "%s/%s/%s", tt_fuzz_root(), folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0)
        (void)close(fd);
}

/* knob: bits 0 to 3 which files it has, 4 and 5 which parts it is, 6 an older name, 7 none. */
static void make_folder(const tt_arc *arc, const char *folder, unsigned knob, tt_arc *made)
{
    static const char *const names[2] = {
        "step-000000000007", ".old-step-000000000007-h-0123456789ab-1-1-0123456789abcdef"};
    char path[256];

    (void)snprintf(path, sizeof path, "%s/%s", tt_fuzz_root(), folder);
    (void)mkdir(path, 0700);
    for (int i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        if ((knob & 0x80) == 0 && (knob >> 6 & 1) == (unsigned)i) {
            (void)tt_arc_make(arc, path, knob & 15, made);
            if ((knob & 16) != 0)
                touch(path, "part-00000");
            if ((knob & 32) != 0)
                touch(path, "part-00001");
        } else {
            (void)tt_arc_make(arc, path, 0, made);
            (void)snprintf(path, sizeof path, "%s/%s/%s", tt_fuzz_root(), folder, names[i]);
            (void)rmdir(path);
        }
    }
}

int tt_fuzz_nodes(const tt_arc *arc)
{
    nodes_input in = {.status = {TUTTI_OK, TUTTI_OK}};

    make_folder(arc, "a", arc->knob[1], &in.made);
    make_folder(arc, "b", arc->knob[2], &in.made);
    const char *report = tt_ranks_run(2, "2x1", body, &in);
    tt_must_be(*report == 0, report);
    must(in.status[0] == in.status[1]);
    must(in.status[0] == TUTTI_OK || (*in.text[0] != 0 && *in.text[1] != 0));
    return in.status[0] == TUTTI_OK;
}
