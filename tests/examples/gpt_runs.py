#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""gpt_runs.py CASE GPT MPIRUN...: runs of examples/gpt as a user starts them, compared by what they print.

Cases: ranks (the number of ranks changes nothing), mesh (so does no split of the model), cuda (nor do GPUs), zero (nor does sharing the optimizer's state), reproducible (not one bit),
twice (two runs are equal bit for bit), kill (SIGKILL at random moments,
then --resume), stop (a signal to one rank), bad (wrong input), full (no space for checkpoints). Each works in a folder of its own; the seed of the random
moments is printed.
"""
import contextlib
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

CASE, GPT, MPIRUN = sys.argv[1], sys.argv[2], sys.argv[3:]
TINY = "--layers 2 --width 32 --heads 2 --context 32 --batch 8 --sample 0".split()
LIMIT = 120
STEP = re.compile(r"^step (\d+) loss (\S+)", re.M)
HELD_OUT = re.compile(r"^step (\d+) held-out loss (\S+)", re.M)
WEIGHTS = re.compile(r"^weights (\w+)", re.M)


def check(good, why):
    if not good:
        raise AssertionError(why)


def command(ranks, *options):
    return [*MPIRUN, "-np", str(ranks), GPT, *TINY, *map(str, options)]


def run(ranks, *options, status=0, env=None):
    done = subprocess.run(command(ranks, *options), capture_output=True, text=True, timeout=LIMIT, check=False,
                          env={**os.environ, **(env or {})})
    check(done.returncode == status,
          f"{' '.join(done.args)}: status {done.returncode}, not {status}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def losses(text):
    return {int(step): loss for step, loss in STEP.findall(text)}


def close(a, b, bound):
    check(a.keys() == b.keys(), f"steps differ: {sorted(a)} and {sorted(b)}")
    for step in a:
        x, y = float(a[step]), float(b[step])
        check(abs(x - y) <= bound * abs(x), f"step {step}: {x} and {y} differ by more than {bound} relative")


def ranks_case(_):
    one = run(1, "--steps", 50)
    check(len(losses(one)) == 50, "50 losses were expected")
    check(float(losses(one)[50]) < 0.8 * float(losses(one)[1]), "the model has not learnt")
    for ranks, *options in ([2], [4], [2, "--accum", 2], [1, "--accum", 8]):
        other = run(ranks, "--steps", 50, *options)
        close(losses(one), losses(other), 1e-4)
        close(dict(HELD_OUT.findall(one)), dict(HELD_OUT.findall(other)), 1e-4)


def zero_case(folder):
    one = run(1, "--steps", 50)
    for ranks, *options in ([1, "--zero", 1], [2, "--zero", 1], [2, "--zero", 1, "--accum", 2]):
        other = run(ranks, "--steps", 50, *options)
        close(losses(one), losses(other), 1e-4)
        close(dict(HELD_OUT.findall(one)), dict(HELD_OUT.findall(other)), 1e-4)
    plain = run(2, "--steps", 20, "--ckpt", folder / "ck", "--every", 10)
    shared = run(2, "--steps", 20, "--zero", 1)
    check(losses(plain) == losses(shared), "--zero 1 printed other losses")
    check(WEIGHTS.findall(plain) == WEIGHTS.findall(shared) != [], "--zero 1 ended with other weights")
    check(re.search(r"1/2 of \d+ and \d+ of padding", shared), "the optimizer's memory is not printed")
    narrow = run(2, "--steps", 20, "--zero", 1, "--wire", "bf16")
    close(losses(plain), losses(narrow), 5e-3)
    check(losses(plain) != losses(narrow), "--wire bf16 changed nothing")


def mesh_case(folder):
    """Stages, copies and shares of matrices change nothing but rounding; checkpoints load into any of them."""
    one = run(1, "--steps", 50)
    sizes = [(pp, dp, tp, zero) for pp in (1, 2) for dp in (1, 2) for tp in (1, 2) for zero in (0, 1)]
    if "TT_LONG" not in os.environ:
        sizes = [(1, 1, 2, 0), (2, 1, 1, 0), (2, 1, 2, 1), (1, 2, 2, 1), (2, 2, 2, 1)]
    for pp, dp, tp, zero in sizes:
        for accum in ((2, 4) if "TT_LONG" in os.environ else (2,)):
            other = run(pp * dp * tp, "--steps", 50, "--mesh", f"pp={pp},dp={dp},tp={tp}", "--zero", zero, "--accum", accum)
            close(losses(one), losses(other), 1e-4)
            close(dict(HELD_OUT.findall(one)), dict(HELD_OUT.findall(other)), 1e-4)
    first = ["--steps", 20, "--ckpt", folder / "ck", "--every", 10]
    run(4, *first, "--mesh", "pp=2,tp=2", "--accum", 2)
    for ranks, *options in ([2, "--zero", 1], [2, "--mesh", "tp=2"], [4, "--mesh", "pp=2", "--zero", 1, "--accum", 2], [1]):
        out = run(ranks, "--steps", 24, "--ckpt", folder / "ck", "--resume", *options)
        check("resumed from step 20" in out, f"not resumed:\n{out}")
        shutil.rmtree(max((folder / "ck").glob("*"), key=lambda p: p.name))
        again = losses(out) if options == ["--zero", 1] else again
        close(again, losses(out), 1e-4)
    out = run(2, "--steps", 2, "--mesh", "pp=2", "--sample", 40)
    alone = run(1, "--steps", 2, "--sample", 40)
    check(out.splitlines()[-3:] == alone.splitlines()[-3:], "another sample from two stages")


def cuda_case(folder):
    """On GPUs: the losses of the host. SIMGPU is the folder with the libraries of simulated ones, whose findings are failures;
    TT_GPUS says how many there are."""
    text = folder / "text"
    text.write_text("".join(f"The {i} of {i * i % 97} goes on, and so it goes. " for i in range(60)))
    small = ["--text", text, "--layers", 2, "--width", 16, "--context", 16, "--batch", 4, "--steps", int(os.environ.get("TT_STEPS", 12))]
    gpu = {"LD_LIBRARY_PATH": os.environ["SIMGPU"]} if "SIMGPU" in os.environ else {}
    gpus = int(os.environ.get("TT_GPUS", 8))

    def on_gpu(ranks, *options):
        out = run(ranks, *small, "--device", "cuda", *options, env=gpu)
        check("products by cuBLAS" in out, f"not on the GPU:\n{out}")
        return out

    host = run(1, *small, "--device", "host")
    meshes = [(1, ), (2, "--zero", 1, "--accum", 2), (2, "--mesh", "tp=2"), (2, "--mesh", "pp=2", "--accum", 2)]
    if "TT_LONG" in os.environ:
        meshes = [(pp * dp * tp, "--mesh", f"pp={pp},dp={dp},tp={tp}", "--zero", zero, "--accum", 2)
                  for pp in (1, 2) for dp in (1, 2) for tp in (1, 2) for zero in (0, 1)] + [(4, "--zero", 1)]
    for ranks, *options in [mesh for mesh in meshes if mesh[0] <= gpus]:
        other = on_gpu(ranks, *options)
        close(losses(host), losses(other), 1e-4)
        close(dict(HELD_OUT.findall(host)), dict(HELD_OUT.findall(other)), 1e-4)
    if "TT_LONG" in os.environ:
        for base, split in ((1, ""), (2, "tp=2,"), (2, "pp=2,")):
            same = [on_gpu(base * dp, "--reproducible", "--mesh", f"{split}dp={dp}", "--accum", 4 // dp, "--zero", int(dp > 1))
                    for dp in (1, 2, 4) if base * dp <= gpus and 4 // dp >= base // 2 + (split == "pp=2,")]
            check(len(same) > 1 or gpus < 2 * base, "nothing to compare")
            for other in same:
                check(losses(same[0]) == losses(other), f"--reproducible --mesh {split}dp: other losses")
                check(WEIGHTS.findall(same[0]) == WEIGHTS.findall(other) != [] or split, "other weights")
    for precision, bound in (("bf16", 2e-2), ("f16", 2e-2)):
        other = on_gpu(1, "--precision", precision)
        check(losses(host) != losses(other), f"--precision {precision} changed nothing")
        close(losses(host), losses(other), bound)
    run(2, *small, "--device", "host", "--steps", 6, "--ckpt", folder / "ck", "--zero", 1)
    out = run(1, *small, "--steps", 8, "--device", "cuda", "--ckpt", folder / "ck", "--resume", env=gpu)
    check("resumed from step 6" in out, f"not resumed:\n{out}")
    out = run(1, *small, "--steps", 10, "--device", "host", "--ckpt", folder / "ck", "--resume")
    check("resumed from step 8" in out, f"not resumed:\n{out}")


def reproducible_case(folder):
    """The same micro-steps on any number of ranks, sharded or not, and through a checkpoint: the same bits."""
    every = ["--steps", 12, "--reproducible"]
    one = run(1, *every, "--accum", 4)
    check(len(losses(one)) == 12, "12 losses were expected")
    for ranks, *options in ([2, "--accum", 2, "--zero", 1], [4, "--zero", 1], [4]):
        other = run(ranks, *every, *options)
        check(losses(one) == losses(other), f"other losses with {ranks} ranks")
        check(WEIGHTS.findall(one) == WEIGHTS.findall(other) != [], f"other weights with {ranks} ranks")
    stages = [run(2 * dp, *every, "--mesh", f"pp=2,dp={dp}", "--accum", 4 // dp, "--zero", dp - 1) for dp in (1, 2)]
    check(losses(stages[0]) == losses(stages[1]), "other losses with two copies of two stages")
    run(2, *every, "--accum", 2, "--zero", 1, "--ckpt", folder / "ck", "--every", 5, "--keep", 0)
    shutil.rmtree(max((folder / "ck").glob("*"), key=lambda p: p.name))
    for ranks, *options in ([4, "--zero", 1], [1, "--accum", 4]):
        shutil.copytree(folder / "ck", folder / str(ranks))
        rest = run(ranks, *every, *options, "--ckpt", folder / str(ranks), "--every", 100, "--resume")
        check("resumed from step 10" in rest, f"not resumed:\n{rest}")
        check(losses(rest) == {step: loss for step, loss in losses(one).items() if step > 10}, "other losses after a resume")
        check(WEIGHTS.findall(one) == WEIGHTS.findall(rest), "other weights after a resume")


def twice_case(_):
    for ranks in (1, 3):
        first, second = (run(ranks, "--steps", 20, "--batch", 6, "--eval-every", 7) for _ in range(2))
        check(len(losses(first)) == 20, "20 losses were expected")
        check(losses(first) == losses(second), "two equal runs printed different losses")
        check(HELD_OUT.findall(first) == HELD_OUT.findall(second), "two equal runs differ in held-out losses")
        check(WEIGHTS.findall(first) == WEIGHTS.findall(second) != [], "two equal runs ended with different weights")
    check(WEIGHTS.findall(first) != WEIGHTS.findall(run(3, "--steps", 20, "--batch", 6, "--seed", 2)),
          "another seed gave the same weights")


def children(pid):
    try:
        return [int(p) for p in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def name_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # it has ended
        return ""


def ranks_of(job, want):
    """The process ids of mpirun's ranks."""
    end = time.monotonic() + 60
    while job.poll() is None and time.monotonic() < end:
        found = [p for p in children(job.pid) if name_of(p) == "gpt"]
        if len(found) == want:
            return found
        time.sleep(0.005)
    return []


def in_shm():
    return {p.name for p in pathlib.Path("/dev/shm").glob("tutti*") if not p.name.startswith("tuttirun.")}


def check_shm(before):
    """Other jobs of this machine come and go; what stays was left."""
    left, end = in_shm() - before, time.monotonic() + 5
    while left and time.monotonic() < end:
        time.sleep(0.2)
        left &= in_shm()
    check(not left, f"left in /dev/shm: {left}")


def finish(job):
    """The rest of a job's output. Open MPI 4.1.4's mpirun at times waits for a lock of its own forever after a killed rank
    (in PMIx_server_finalize) when all ranks are gone: it is ended then."""
    end, alone = time.monotonic() + LIMIT, 0
    while True:
        try:
            return job.communicate(timeout=2)[0]
        except subprocess.TimeoutExpired:
            alone = alone + 1 if not children(job.pid) else 0
            if alone == 5 or time.monotonic() > end:
                job.kill()
            check(time.monotonic() < end + 10, "a job did not end")


def killed_run(dice, folder, steps, patience, latest):
    """Starts or resumes, kills one rank within `latest` seconds. Its output, and whether it was killed."""
    # After a rank's death mpirun sends SIGTERM to the others and SIGKILL `patience` seconds later.
    with subprocess.Popen(command(2, "--steps", steps, "--ckpt", folder, "--every", 5, "--keep", 2, "--resume"),
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          env={**os.environ, "OMPI_MCA_odls_base_sigkill_timeout": str(patience)}) as job:
        victims = ranks_of(job, 2)
        try:
            out, _ = job.communicate(timeout=dice.uniform(0, latest))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.kill(dice.choice(victims), signal.SIGKILL)
            out = finish(job)
    return out, job.returncode != 0


def kill_case(folder):
    seed = int(os.environ.get("TUTTI_TEST_SEED", time.time_ns() % 100000))
    kills = int(os.environ.get("TUTTI_TEST_KILLS", 20))
    print(f"seed {seed} (TUTTI_TEST_SEED)")
    dice = random.Random(seed)
    steps, before, latest = 300, in_shm(), 1.5
    whole = run(2, "--steps", steps)
    expected, done, resumed, job = losses(whole), 0, 0, 0
    while done < kills:
        out, killed = killed_run(dice, folder / f"job{job}", steps, 1 if done % 7 == 3 else 0, latest)
        done += killed
        resumed += "resumed from step" in out
        latest *= 1 if resumed else 1.2  # on a busy machine a job takes longer to its first checkpoint
        got = losses(out)
        check(all(expected[s] == got[s] for s in got), f"losses differ after a kill:\n{out[-3000:]}")
        if not killed:
            check(WEIGHTS.findall(out) == WEIGHTS.findall(whole) != [], f"the weights differ after resuming\n{out[-3000:]}")
            job += 1
    out = run(2, "--steps", steps, "--ckpt", folder / f"job{job}", "--every", 50, "--resume")
    check(WEIGHTS.findall(out) == WEIGHTS.findall(whole), "the weights differ after resuming")
    check(resumed > 0, "no run was resumed: the moments were all too early")
    check_shm(before)
    print(f"{done} kills, {resumed} resumed runs, {job} finished in between")


def stop_case(folder):
    steps = 400
    whole = run(2, "--steps", steps)
    for sig in (signal.SIGUSR1, signal.SIGTERM):
        copies = folder / f"{sig.name}.copies"
        options = ["--steps", steps, "--ckpt", folder / sig.name, "--ckpt-copy", copies, "--every", 1000]
        with subprocess.Popen(command(2, *options), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as job:
            victims, out = ranks_of(job, 2), ""
            while not STEP.search(out):
                line = job.stdout.readline()
                check(line != "", f"the run ended before its first step:\n{out}")
                out += line
            os.kill(victims[1], sig)
            out += job.stdout.read()
        check(job.returncode == 143, f"status {job.returncode}, not 143\n{out[-2000:]}")
        stopped = re.search(r"stopped after step (\d+)", out)
        check(stopped and int(stopped[1]) < steps, f"it did not stop early:\n{out[-2000:]}")
        check(f"checkpoint of step {stopped[1]} " in out, f"nothing was saved:\n{out[-2000:]}")
        check(f"checkpoint of step {stopped[1]} is copied to {copies}" in out, f"not copied:\n{out[-2000:]}")
        verify = subprocess.run([pathlib.Path(GPT).parent / "tutti", "ckpt", "verify", "--all", copies], check=False, capture_output=True)
        check(verify.returncode == 0, f"copies are not whole: {verify}")
        if sig == signal.SIGTERM:  # the first tier is lost
            shutil.rmtree(folder / sig.name)
        rest = run(2, *options, "--resume")
        check(f"resumed from step {stopped[1]} in {copies if sig == signal.SIGTERM else folder / sig.name}," in rest,
              f"not resumed from there:\n{rest[:2000]}")
        check({**losses(out), **losses(rest)} == losses(whole), "losses differ from the whole run's")
        check(WEIGHTS.findall(rest) == WEIGHTS.findall(whole) != [], "weights differ from the whole run's")
    out = run(4, *options, "--resume", "--steps", steps + 5)  # another number of ranks, and a longer run
    check(len(losses(out)) == 5 and "note: losses will differ" in out, f"no five steps more:\n{out[-2000:]}")


def refused(says, *options, other=None, status=1, env=None):
    """Every rank ends with `status`; exactly one says why. other: what rank 1 gets instead of options."""
    script = 'if [ "$OMPI_COMM_WORLD_RANK" = 1 ] && [ -n "$OTHER" ]; then eval "set -- $OTHER"; fi; ' \
             '"$GPT" "$@"; echo "status $?" >&2'
    words = [*TINY, *map(str, options)]
    done = subprocess.run([*MPIRUN, "-np", "2", "sh", "-c", script, "gpt", *words], text=True, capture_output=True,
                          timeout=LIMIT, check=False,
                          env={**os.environ, "GPT": GPT, "OTHER": " ".join([*TINY, *other]) if other else "", **(env or {})})
    where = f"{' '.join(map(str, options))}:\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
    check(re.findall(r"^status (\d+)$", done.stderr, re.M) == [str(status)] * 2, f"not status {status} on both ranks, {where}")
    said = [line for line in done.stderr.splitlines() if line.startswith("gpt: ")]
    check(any(says in line for line in said), f"no message with '{says}', {where}")
    check(len(said) == 1, f"{len(said)} messages, {where}")


def bad_case(folder):
    text, empty, short = folder / "text", folder / "empty", folder / "short"
    text.write_text("So it goes. " * 200)
    empty.write_text("")
    short.write_text("x")
    before = in_shm()
    refused("unknown option", "--bogus", status=2)
    refused("not a multiple of 2 ranks", "--batch", 7, status=2)
    refused("not f32, bf16 or f16", "--wire", "fp8", status=2)
    refused("a power of two for --accum", "--reproducible", "--accum", 3, "--batch", 12, status=2)
    refused("no axis 'xp'", "--mesh", "xp=2", status=2)
    refused("--mesh: ", "--mesh", "tp=3", status=2)
    refused("--heads 3 cannot be shared by tp=2", "--mesh", "tp=2", "--width", 33, "--heads", 3, status=2)
    refused("fewer than the stages", "--mesh", "pp=2", "--layers", 1, status=2)
    refused("'tpu' is not auto, host or cuda", "--device", "tpu", status=2)
    refused("bf16 and f16 are for a GPU", "--device", "host", "--precision", "bf16")
    refused("No such file", "--text", folder / "none")
    refused("is empty", "--text", text, empty)
    refused("too few", "--text", short)
    refused("not a regular file", "--text", "/dev/zero")
    refused("rank 1: text", "--text", text, other=["--text", str(folder / "none")])
    refused("differs between ranks", "--text", text, other=["--text", str(text), "/usr/share/common-licenses/BSD"])
    refused("Not a directory", "--text", text, "--ckpt", text / "folder")
    check(not (folder / "ck").exists(), "a refused run left a checkpoint folder")

    run(2, "--text", text, "--steps", 4, "--ckpt", folder / "ck", "--every", 2)
    refused("has checkpoints already", "--text", text, "--ckpt", folder / "ck")
    refused("--width 32 there, 64 here", "--text", text, "--resume", "--ckpt", folder / "ck", "--width", 64)
    for file in (folder / "ck").rglob("*"):
        if file.is_file() and file.stat().st_size > 4096:
            os.truncate(file, file.stat().st_size // 2)
    refused("are damaged", "--text", text, "--resume", "--ckpt", folder / "ck")
    out = run(2, "--text", text, "--steps", 1, "--resume", "--ckpt", folder / "new")
    check("starting afresh" in out, f"a missing folder is a fresh start:\n{out}")
    check_shm(before)


def full_case(folder):
    """A checkpoint folder that fills up: an error on every rank, and the checkpoints before it are whole."""
    mount = ["mount", "-t", "tmpfs", "-o", "size=1400k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        print("skipped: mounting a small tmpfs needs rights that this test does not have")
        sys.exit(77)
    try:
        refused("TUTTI_ERR_NO_SPACE", "--steps", 12, "--ckpt", folder / "ck", "--every", 3, "--keep", 0)
        names = sorted(p.name for p in (folder / "ck").iterdir())
        out = run(2, "--steps", 3, "--ckpt", folder / "ck", "--every", 100, "--resume")
        check("resumed from step" in out, f"the checkpoint before is not whole ({names}):\n{out}")
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def main():
    cases = {"ranks": ranks_case, "zero": zero_case, "mesh": mesh_case, "cuda": cuda_case, "reproducible": reproducible_case, "twice": twice_case, "kill": kill_case, "stop": stop_case, "bad": bad_case, "full": full_case}
    with tempfile.TemporaryDirectory(prefix="gpt-runs-") as folder:
        try:
            cases[CASE](pathlib.Path(folder))
        except AssertionError as error:
            print(f"{CASE}: {error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
