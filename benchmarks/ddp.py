# SPDX-License-Identifier: Apache-2.0
"""The made-up step of `tutti bench step --model uniform`, with torch's DistributedDataParallel on gloo.

Run by ddp.sh, on every rank under mpirun; or alone: mpirun -np 2 python3 ddp.py --layers 12 --bytes 2097152 --ms 280.
A layer's backward pass is an amount of arithmetic within the first-level cache (--compute cpu) or a time in which the
core is free, as with a GPU (--compute device), and then a gradient of --bytes bytes. Kinds of step are interleaved,
each begins with a barrier outside of the time, and counts are medians of the slowest rank's. Prints one line of JSON:
compute_ms (no communication), comm_ms (no computation), step_ms (both), last_bucket_ms (an all-reduce of the last
bucket's size by itself, between barriers), exposed_ms = step - compute, beyond_ms = step - compute - last bucket.
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def parse():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--layers", type=int, default=12)
    p.add_argument("--bytes", type=int, default=4 << 20, help="of a layer's gradient")
    p.add_argument("--ms", type=float, default=100, help="computation of the backward pass when undisturbed")
    p.add_argument("--compute", choices=("cpu", "device"), default="cpu")
    p.add_argument("--steps", type=int, default=9, help="of each kind")
    p.add_argument("--bucket", type=int, default=25 << 20, help="cap of a bucket in bytes, rounded down to MiB")
    p.add_argument("--address", default="127.0.0.1", help="of rank 0")
    p.add_argument("--port", default="29517")
    p.add_argument("--interface", help="network that gloo uses")
    return p.parse_args()


BLOCK = torch.zeros(1024)


def work(rounds):
    for _ in range(rounds):
        BLOCK.mul_(0.999).add_(0.001)


class Core:
    def __init__(self, seconds):
        self.rounds = int(calibrate() * seconds)

    def rest(self):
        pass

    def compute(self):
        work(self.rounds)


class Device:
    """Takes the time it takes, one piece after the other; the core sleeps meanwhile."""

    def __init__(self, seconds):
        self.seconds, self.busy_until = seconds, 0.0

    def rest(self):
        self.busy_until = time.perf_counter()

    def compute(self):
        self.busy_until += self.seconds
        time.sleep(max(0.0, self.busy_until - time.perf_counter()))


def calibrate():
    """Rounds a second on a core of its own; the same on all ranks."""
    rounds, best = 1000, 0.0
    for _ in range(8):
        start = time.thread_time()
        work(rounds)
        took = time.thread_time() - start
        if took < 0.02:
            rounds = int(rounds * 0.025 / max(took, 1e-6)) + 1
        else:
            best = max(best, rounds / took)
    least = torch.tensor([best])
    dist.all_reduce(least, dist.ReduceOp.MIN)
    return float(least)


class Layer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, engine):
        ctx.engine, ctx.count = engine, weight.numel()
        return x.clone()

    @staticmethod
    def backward(ctx, d_out):
        if ctx.engine is not None:
            ctx.engine.compute()
        return d_out, torch.zeros(ctx.count), None


class Model(torch.nn.Module):
    def __init__(self, layers, count):
        super().__init__()
        self.engine = None
        self.weights = torch.nn.ParameterList(torch.nn.Parameter(torch.zeros(count)) for _ in range(layers))

    def forward(self, x):
        for weight in self.weights:
            x = Layer.apply(x, weight, self.engine)
        return x.sum()


def one_step(ddp, x, engine, communicate):
    ddp.module.engine = engine
    dist.barrier()
    if engine is not None:
        engine.rest()
    start = time.perf_counter()
    if communicate:
        ddp(x).backward()
    else:
        with ddp.no_sync():
            ddp(x).backward()
    took = time.perf_counter() - start
    ddp.zero_grad(set_to_none=False)
    return took


def slowest(seconds):
    t = torch.tensor(seconds, dtype=torch.float64)
    dist.all_reduce(t, dist.ReduceOp.MAX)
    return statistics.median(t.tolist())


def buckets_of(ddp):
    data = ddp._get_ddp_logging_data()  # torch's only way to tell
    text = data.get("rebuilt_bucket_sizes") or data.get("bucket_sizes")
    return [int(size) for size in str(text).split(",")]


def last_bucket(count, steps):
    t, times = torch.zeros(count), []
    for _ in range(steps):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(t)
        times.append(time.perf_counter() - start)
    return slowest(times)


def main():
    o = parse()
    rank, size = (int(os.environ["OMPI_COMM_WORLD_" + name]) for name in ("RANK", "SIZE"))
    os.environ.update(MASTER_ADDR=o.address, MASTER_PORT=o.port)
    if o.interface:
        os.environ["GLOO_SOCKET_IFNAME"] = o.interface
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=size)
    model = Model(o.layers, o.bytes // 4)
    ddp = DistributedDataParallel(model, bucket_cap_mb=max(1, o.bucket >> 20), gradient_as_bucket_view=True)
    x = torch.ones(1, requires_grad=True)
    engine = (Core if o.compute == "cpu" else Device)(o.ms / 1e3 / o.layers)
    for _ in range(3):  # buckets are made anew after the first
        one_step(ddp, x, engine, True)
    times = {"compute": [], "comm": [], "step": []}
    for _ in range(o.steps):
        times["compute"].append(one_step(ddp, x, engine, False))
        times["comm"].append(one_step(ddp, x, None, True))
        times["step"].append(one_step(ddp, x, engine, True))
    ms = {kind: 1e3 * slowest(seconds) for kind, seconds in times.items()}
    sizes = buckets_of(ddp)
    last = 1e3 * last_bucket(sizes[-1] // 4, o.steps)
    if rank == 0:
        row = {"bench": "ddp", "torch": torch.__version__, "ranks": size, "compute": o.compute, "bytes": o.layers * o.bytes,
               "bucket_bytes": sizes, "last_bucket_ms": round(last, 3)}
        row.update({kind + "_ms": round(value, 3) for kind, value in ms.items()})
        row["exposed_ms"] = round(ms["step"] - ms["compute"], 3)
        row["beyond_ms"] = round(ms["step"] - ms["compute"] - last, 3)
        print(json.dumps(row), flush=True)
    dist.barrier()
    os._exit(0)  # threads of torch may wait for each other for a minute at the usual end


if __name__ == "__main__":
    main()
