/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mesh: the ranks of the job in a grid with named axes, such as "pp=2,dp,tp=4".
 *
 * Names mean nothing to the library. The last axis varies fastest and is placed innermost: ranks
 * that differ along it alone are as near to each other as the machine allows. A set of axes is
 * written "dp+pp"; the order within it means nothing. For every set there is a communicator of the
 * ranks that differ along these axes alone; its ranks are ordered by their coordinates, the last
 * axis of the mesh fastest. So the rank in the communicator of one axis is the coordinate along it.
 *
 * Communicators are made when first asked for. Sets with the same members share one, a set of all
 * ranks in world order is the world communicator, and all sets of size 1 share one that connects to
 * nobody.
 */
#ifndef TUTTI_MESH_H
#define TUTTI_MESH_H

#include "tutti/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tutti_mesh tutti_mesh;

/*
 * Axes from the outermost to the innermost, "name=size" with commas between; one may leave its size
 * out, which follows from the number of ranks. Names are letters, digits and underscores, not
 * beginning with a digit, at most 31; up to 16 axes. Errors: ARG (text malformed, a name twice,
 * sizes that do not make the number of ranks), MISMATCH (ranks gave different texts), NO_MEMORY,
 * TIMEOUT, REMOTE.
 * Collective: yes, over the world. Blocks: host. Stream: none. Threads: one. Graph-capture:
 * refused. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_mesh_create(tutti_ctx *ctx, const char *axes,
                                                         tutti_mesh **mesh_out);

/*
 * Destroys the mesh and its communicators, after this rank's pending work on them. NULL is ignored.
 * tutti_finalize destroys what is left.
 * Collective: yes, over the world, logically (does not wait for the others). Blocks: host. Stream:
 * none. Threads: one. Graph-capture: refused. After a failure: allowed.
 */
TUTTI_API void tutti_mesh_destroy(tutti_mesh *mesh);

/*
 * The communicator of a set of axes ("tp", "dp+pp"; "" is this rank alone), borrowed from the mesh.
 * The first call for a set makes it, later ones communicate nothing. Errors: ARG (no such axis),
 * MISMATCH (ranks ask for different sets), NO_MEMORY, TIMEOUT, REMOTE.
 * Collective: yes, over the world. Blocks: host. Stream: none. Threads: one. Graph-capture:
 * refused. After a failure: refused.
 */
TUTTI_API TUTTI_NODISCARD tutti_status tutti_mesh_comm(tutti_mesh *mesh, const char *axes,
                                                       tutti_comm **comm_out);

/*
 * Of a set of axes: the number of ranks that differ along these alone (1 for ""), and this rank's
 * number among them, which for one axis is its coordinate. 0 and -1 if there is no such axis.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API int tutti_mesh_size(const tutti_mesh *mesh, const char *axes);
TUTTI_API int tutti_mesh_coord(const tutti_mesh *mesh, const char *axes);

/*
 * The same number of any rank of the world; -1 if there is no such axis or rank.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API int tutti_mesh_coord_of(const tutti_mesh *mesh, int world_rank, const char *axes);

/*
 * The world rank `shift` places along an axis, with all other coordinates this rank's own; with
 * `wrap` the axis is a ring, else -1 stands beyond its ends (and for no such axis).
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API int tutti_mesh_neighbour(const tutti_mesh *mesh, const char *axis, int shift, bool wrap);

/*
 * The number of axes, and the name of axis i (borrowed; NULL if there is none).
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API int tutti_mesh_axis_count(const tutti_mesh *mesh);
TUTTI_API const char *tutti_mesh_axis_name(const tutti_mesh *mesh, int i);

/*
 * Writes the mesh for a reader: a line with the sizes, one per axis saying whether its groups lie
 * within nodes, and one per rank (of the first 64) with its node and coordinates. At most cap bytes
 * with the terminating zero; returns the length of the whole text, as snprintf.
 * Collective: no. Blocks: no. Stream: none. Threads: any. Graph-capture: allowed. After a failure:
 * allowed.
 */
TUTTI_API size_t tutti_mesh_text(const tutti_mesh *mesh, char *buf, size_t cap);

#ifdef __cplusplus
}
#endif
#endif
