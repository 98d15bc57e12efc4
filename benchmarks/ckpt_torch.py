# SPDX-License-Identifier: Apache-2.0
"""A peer of `tutti bench ckpt`: torch's distributed checkpoint, the same tensors, synced. Under mpirun, or alone.

usage: ckpt_torch.py DIR MIB TENSORS   prints seconds: save, load from disk, load from page cache

Every rank holds one row of every tensor, as a ShardedTensor where there are several, and writes one file. torch syncs
the files, we the folders. Nothing is checksummed."""
import dataclasses
import os
import sys
import time

import torch
import torch.distributed as dist

try:
    import torch.distributed.checkpoint as dcp

    def save_to(writer, state, alone):
        dcp.save(state, storage_writer=writer, no_dist=alone)

    def load_from(reader, state, alone):
        dcp.load(state, storage_reader=reader, no_dist=alone)
except ImportError:  # torch 1.13; Python 3.11 wants a class to be hashable that is a default in another
    plain = dataclasses.dataclass

    def hashable(cls=None, **options):
        if cls is None:
            return lambda later: hashable(later, **options)
        return plain(cls, **{**options, **({"unsafe_hash": True} if cls.__name__ == "TensorProperties" else {})})

    dataclasses.dataclass = hashable
    import torch.distributed._shard.checkpoint as dcp
    dataclasses.dataclass = plain

    def save_to(writer, state, alone):
        dcp.save_state_dict(state, writer, no_dist=alone)

    def load_from(reader, state, alone):
        dcp.load_state_dict(state, reader, no_dist=alone)


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def slowest(seconds, alone):
    if alone:
        return seconds
    most = torch.tensor([seconds], dtype=torch.float64)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return most.item()


def meet(alone):
    if not alone:
        dist.barrier()


def whole(rows, rank, size):
    if size == 1:
        return dict(rows)
    from torch.distributed._shard.sharded_tensor import Shard, init_from_local_shards
    return {name: init_from_local_shards([Shard.from_tensor_and_offsets(row, [rank, 0], rank)], size, row.shape[1])
            for name, row in rows.items()}


def save(folder, state, rank, alone):
    meet(alone)
    start = time.perf_counter()
    save_to(dcp.FileSystemWriter(folder, single_file_per_rank=True), state, alone)
    if rank == 0:
        sync(folder)
        sync(os.path.dirname(folder))
    meet(alone)
    return slowest(time.perf_counter() - start, alone)


def load(folder, state, cold, alone):
    if cold:
        for name in os.listdir(folder):
            fd = os.open(os.path.join(folder, name), os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(fd)
    meet(alone)
    start = time.perf_counter()
    load_from(dcp.FileSystemReader(folder), state, alone)
    return slowest(time.perf_counter() - start, alone)


def main():
    folder, mib, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    rank, size = (int(os.environ.get("OMPI_COMM_WORLD_" + name, default)) for name, default in (("RANK", 0), ("SIZE", 1)))
    alone = size == 1
    if not alone:
        dist.init_process_group("gloo", init_method="file://" + folder + "/meet", rank=rank, world_size=size)
    elems = (mib << 20) // size // count // 4096 * 4096 // 4
    rows = {"t%06d" % i: torch.arange(elems, dtype=torch.float32).view(1, elems) + i + rank for i in range(count)}
    copies = {name: torch.ones(1, elems) for name in rows}
    state, copy = whole(rows, rank, size), whole(copies, rank, size)
    save(folder + "/warm", state, rank, alone)
    saved = save(folder + "/peer", state, rank, alone)
    cold, cached = load(folder + "/peer", copy, True, alone), load(folder + "/peer", copy, False, alone)
    for name, row in rows.items():
        assert torch.equal(row, copies[name]), name
    if rank == 0:
        print("%.6f %.6f %.6f" % (saved, cold, cached))


main()
