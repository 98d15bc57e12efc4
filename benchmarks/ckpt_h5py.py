# SPDX-License-Identifier: Apache-2.0
"""The peer of `tutti bench ckpt` in one process: h5py, one dataset for each tensor, synced and renamed.

usage: ckpt_h5py.py DIR MIB TENSORS   prints seconds: save, load from disk, load from page cache"""
import os
import sys
import time

import h5py
import numpy


def sync(path):
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def save(folder, tensors):
    start = time.perf_counter()
    temp, final = folder + "/peer.tmp", folder + "/peer.h5"
    with h5py.File(temp, "w", libver=("v110", "latest")) as f:
        for name, tensor in tensors:
            f.create_dataset(name, data=tensor)
    sync(temp)
    os.rename(temp, final)
    sync(folder)
    return time.perf_counter() - start


def load(folder, copies, cold):
    path = folder + "/peer.h5"
    if cold:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    start = time.perf_counter()
    with h5py.File(path, "r") as f:
        for name, copy in copies:
            f[name].read_direct(copy)
    return time.perf_counter() - start


def main():
    folder, mib, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    elems = (mib << 20) // count // 4096 * 4096 // 4
    tensors = [("t%06d" % i, numpy.arange(elems, dtype=numpy.float32) + i) for i in range(count)]
    copies = [(name, numpy.ones(elems, dtype=numpy.float32)) for name, _ in tensors]
    save(folder, tensors)
    saved = save(folder, tensors)
    cold, cached = load(folder, copies, True), load(folder, copies, False)
    for (_, tensor), (_, copy) in zip(tensors, copies):
        assert (tensor == copy).all()
    print("%.6f %.6f %.6f" % (saved, cold, cached))


main()
