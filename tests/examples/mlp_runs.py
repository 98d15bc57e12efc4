#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mlp_runs.py MLP MPIRUN...: copies, shared matrices and shared optimizer state change nothing in examples/05_mlp."""
import re
import subprocess
import sys

MLP, MPIRUN = sys.argv[1], sys.argv[2:]


def run(ranks, *options, status=0):
    done = subprocess.run([*MPIRUN, "-np", str(ranks), MLP, "--steps", "60", *options], capture_output=True, text=True,
                          timeout=110, check=False)
    assert done.returncode == status, f"{options}: status {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-1000:]}"
    losses = [float(x) for x in re.findall(r"^step \d+ loss (\S+)", done.stdout, re.M)]
    return losses, re.findall(r"^weights (\d+)", done.stdout, re.M), re.findall(r"^state of (\d+)", done.stdout, re.M)


def main():
    one, _, whole = run(1)
    assert len(one) == 60 and one[-1] < one[0] / 5, f"nothing was learnt: {one}"
    runs = {}
    for options in ((2,), (2, "--zero"), (3, "--zero"), (2, "--tp", "2"), (3, "--tp", "3", "--sequence", "--chunks", "2"),
                    (4, "--tp", "2"), (4, "--tp", "2", "--zero"), (4, "--tp", "2", "--zero", "--sequence")):
        losses, weights, state = runs[options] = run(*options)
        assert len(losses) == 60, f"{options}: {len(losses)} losses"
        for step, (a, b) in enumerate(zip(one, losses)):
            assert abs(a - b) <= 1e-4 * a, f"{options}: step {step + 1}: {b} and {a}"
        assert len(weights) == len(state) == 1
    assert runs[(2,)][1] == runs[2, "--zero"][1], "--zero changed the weights of two copies"
    assert runs[4, "--tp", "2"][1] == runs[4, "--tp", "2", "--zero"][1], "--zero changed the weights of shared matrices"
    assert int(runs[3, "--zero"][2][0]) < int(whole[0]) / 2, "--zero shares nothing out"
    run(1, "--tp", status=2)
    run(1, "--chunks", "x", status=2)
    run(1, "more", status=2)
    return 0


if __name__ == "__main__":
    sys.exit(main())
