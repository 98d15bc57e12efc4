# SPDX-License-Identifier: Apache-2.0
"""A job under tuttirun, watched from outside: what it prints, what it returns, and what it leaves behind."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import uuid
from concurrent.futures import ThreadPoolExecutor

BUILD = os.environ.get("TT_BUILD") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../build")
BIN = os.path.join(BUILD, "bin")
# What is started in the background of a script ignores SIGINT, and so would the jobs: their tests send it.
signal.signal(signal.SIGINT, signal.default_int_handler)
PATIENCE = 60.0  # a limit for what should happen soon; nothing asserts that it happened sooner


def processes_with(mark):
    """Live processes (no zombies) that have `mark` in their environment: {pid: name}."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as f:
                if mark.encode() not in f.read():
                    continue
            with open(f"/proc/{entry}/stat") as f:
                stat = f.read()
        except OSError:
            continue
        if stat[stat.rindex(")") + 2] not in "ZX":
            found[int(entry)] = stat[stat.index("(") + 1:stat.rindex(")")]
    return found


def wait_for(condition, what):
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        got = condition()
        if got:
            return got
        time.sleep(0.01)
    raise AssertionError(f"waited {PATIENCE} s for {what}")


class Job:
    """tuttirun with its own TMPDIR and a mark in the environment that finds every process it started."""

    def __init__(self, *arguments, env=None, stdin=subprocess.DEVNULL, prefix=()):
        if not os.access(f"{BIN}/tuttirun", os.X_OK):
            raise unittest.SkipTest(f"there is no {BIN}/tuttirun: build it first, or name the build folder in TT_BUILD")
        self.dir = tempfile.mkdtemp(prefix="tt-launch.")
        self.mark = f"TT_LAUNCH_MARK={uuid.uuid4().hex}"
        os.mkdir(self.path("tmp"))
        name, value = self.mark.split("=")
        environment = {**os.environ, "TMPDIR": self.path("tmp"), "WORK": self.dir, name: value, **(env or {})}
        self.process = subprocess.Popen(
            [*prefix, f"{BIN}/tuttirun", *arguments], env=environment, stdin=stdin, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True)
        self.pid = self.process.pid
        self.early = {self.process.stdout: "", self.process.stderr: ""}  # read before the end
        self.out = self.err = ""

    def path(self, name):
        return os.path.join(self.dir, name)

    def has(self, name):
        return os.path.exists(self.path(name))

    def read(self, name):
        with open(self.path(name)) as f:
            return f.read()

    def wait_files(self, *names):
        wait_for(lambda: all(self.has(n) for n in names) or self.process.poll() is not None, f"files {names}")
        if not all(self.has(n) for n in names):
            self.finish()
            raise AssertionError(f"the job ended before it wrote {names}:\n{self.out}{self.err}")

    def wait_text(self, stream, text):
        """Reads what the job prints there until `text` is in it. (readline would take more, out of communicate's sight.)"""
        got = None
        while got != b"" and text not in self.early[stream]:
            got = os.read(stream.fileno(), 65536)
            self.early[stream] += got.decode()

    def wait_line(self, text):
        self.wait_text(self.process.stdout, text)

    def wait_error(self, text):
        self.wait_text(self.process.stderr, text)

    def signal(self, sig):
        os.kill(self.pid, sig)

    def mpirun(self):
        return next(pid for pid, name in processes_with(self.mark).items() if name.startswith(("mpirun", "orterun")))

    def finish(self):
        """The exit status (negative: killed by that signal)."""
        try:
            self.out, self.err = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.out, self.err = self.process.communicate()
            raise AssertionError(f"the job has not ended after {PATIENCE} s:\n{self.out}{self.err}") from None
        self.out = self.early[self.process.stdout] + self.out
        self.err = self.early[self.process.stderr] + self.err
        return self.process.returncode

    def left_behind(self):
        names = [f"process {pid} {name}" for pid, name in processes_with(self.mark).items()]
        names += os.listdir(self.path("tmp"))
        names += [n for n in os.listdir("/dev/shm") if n.startswith(f"tuttirun.{self.pid}.")]
        return names

    def close(self):
        for pid in processes_with(self.mark):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            stream.close()
        shutil.rmtree(self.dir)


class JobTest(unittest.TestCase):
    """Every job of a test must leave nothing behind, whatever happened to it."""

    def job(self, *arguments, **keywords):
        job = Job(*arguments, **keywords)
        self.addCleanup(job.close)
        return job

    def ended(self, job, status):
        """The job ends with this status, and at that moment nothing of it is left."""
        got = job.finish()
        left = job.left_behind()
        self.assertEqual(got, status, f"\n{job.out}{job.err}")
        self.assertEqual(left, [], f"\n{job.out}{job.err}")

    def all_ended(self, jobs):
        """The same for {job: status}; they have been running side by side."""
        for job, status in jobs.items():
            self.ended(job, status)

    def run_job(self, status, *arguments, **keywords):
        job = self.job(*arguments, **keywords)
        self.ended(job, status)
        return job


def _tests_in(suite):
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from _tests_in(test)
        else:
            yield test


def main(side_by_side=4):
    """Runs this program's tests, or those named (CLASS, CLASS.test). Most of a test's time is mpirun's second between
    SIGTERM and SIGKILL, so several run side by side."""
    loader = unittest.defaultTestLoader
    module = sys.modules["__main__"]
    suite = loader.loadTestsFromNames(sys.argv[1:], module) if sys.argv[1:] else loader.loadTestsFromModule(module)
    tests = list(_tests_in(suite))
    results = [unittest.TestResult() for _ in tests]
    with ThreadPoolExecutor(side_by_side) as pool:
        list(pool.map(lambda pair: pair[0].run(pair[1]), zip(tests, results)))
    bad = 0
    for test, result in zip(tests, results):
        for skipped, reason in result.skipped:
            print(f"skipped: {skipped.id()}: {reason}")
        for failed, text in result.failures + result.errors:
            print(f"FAILED: {failed.id()}\n{text}")
        if result.wasSuccessful() and not result.skipped:
            print(f"passed: {test.id()}")
        bad += not result.wasSuccessful()
    all_skipped = tests and all(result.skipped for result in results)
    sys.exit(1 if bad or not tests else 77 if all_skipped else 0)
