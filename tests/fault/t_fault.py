# SPDX-License-Identifier: Apache-2.0
"""Jobs that go wrong across ranks: t_fault.py [CLASS[.test]...]. Each must end by itself, say why on every rank that can
speak, return no 0 anywhere, and leave nothing behind."""
import os
import random
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../launch"))
# pylint: disable=wrong-import-position
import job  # noqa: E402
from job import JobTest, processes_with, wait_for  # noqa: E402

LONG = bool(os.environ.get("TT_LONG"))
RANK = os.path.join(job.BUILD, "tests/t_fault_rank")


def shm_entries():
    """What is in the shared-memory folder, for a comparison of before and after."""
    return set(os.listdir("/dev/shm"))


class Fault(JobTest):
    def setUp(self):
        self.shm = shm_entries()

    def start(self, ranks, *arguments, env=None, **keywords):
        return self.job("-n", str(ranks), RANK, *arguments, env={"TUTTI_LOG": "warn", **(env or {})}, **keywords)

    def failed(self, ran, ranks):
        """The job has failed on every rank, and left nothing. Returns what the ranks said: {rank: text}."""
        status = ran.finish()
        printed = f"\n{ran.out}{ran.err}"
        self.assertNotEqual(status, 0, printed)
        self.assertEqual(ran.left_behind(), [], printed)
        said = {}
        for rank in range(ranks):
            if ran.has(f"end.{rank}"):  # the others were killed
                self.assertEqual(ran.read(f"end.{rank}").split(), ["1"], printed)
            if ran.has(f"said.{rank}"):
                said[rank] = ran.read(f"said.{rank}").partition(" ")[2]
        return said

    def tearDown(self):
        # MPI's own segments of jobs beside this one come and go there, too
        self.assertEqual({n for n in shm_entries() - self.shm if "tutti" in n and not n.startswith("tuttirun.")}, set())


class Absent(Fault):
    """A rank that never comes: to MPI_Init, to tutti_init, to a collective, or to anything any more."""

    def test_after_mpi_init(self):
        jobs = {ranks: self.start(ranks, "absent-mpi", env={"TUTTI_INIT_TIMEOUT": "5"}) for ranks in (2, 4)}
        for ranks, ran in jobs.items():
            said = self.failed(ran, ranks)
            for rank in range(ranks - 1):
                self.assertRegex(said.get(rank, ""), rf"rank {ranks - 1} has not arrived after 5", ran.err)

    def test_others(self):
        before = self.start(2, "absent", env={"TUTTI_INIT_TIMEOUT": "5"})
        late = self.start(4, "late", env={"TUTTI_TIMEOUT": "5"})
        stopped = self.start(2, "busy", env={"TUTTI_TIMEOUT": "5"})
        stopped.wait_files("here.0", "here.1")
        os.kill(int(stopped.read("here.1").split()[0]), signal.SIGSTOP)

        # nobody is through MPI_Init then, so nobody can say who: but that, and after how long
        self.failed(before, 2)
        self.assertIn("MPI_Init has not returned", before.err)
        said = self.failed(late, 4)
        for rank in range(3):
            self.assertRegex(said.get(rank, ""), r"rank 3\b", late.err)
        # a process that is there but does nothing, not even die of SIGTERM
        said = self.failed(stopped, 2)
        self.assertRegex(said.get(0, ""), r"rank 1\b", stopped.err)


class Differ(Fault):
    """Ranks that call with different arguments: each text shows both sides."""

    PATTERNS = {
        "alloc-sizes": r"(4096.*8192|8192.*4096)",
        "count": r"(1000.*1001|1001.*1000)",
        "dtype": r"(i32.*f32|f32.*i32)",
        "op": r"(sum.*max|max.*sum)",
        "order": r"(all_gather.*all_reduce|all_reduce.*all_gather)",
        "root": r"root",
    }

    def test_arguments(self):
        jobs = {(mode, ranks): self.start(ranks, mode, env={"TUTTI_TIMEOUT": "60"})
                for mode in self.PATTERNS for ranks in (2, 4)}
        for (mode, ranks), ran in jobs.items():
            with self.subTest(mode=mode, ranks=ranks):
                said = self.failed(ran, ranks)
                self.assertTrue(said, ran.err)
                for text in said.values():
                    self.assertRegex(text, self.PATTERNS[mode], ran.err)


    def test_order_of_communicators(self):
        jobs = {(mode, ranks): self.start(ranks, mode, env={"TUTTI_CHECK": "1", "TUTTI_TIMEOUT": "60"})
                for mode in ("swapped", "swapped-funneled") for ranks in (2, 4)}
        for (mode, ranks), ran in jobs.items():
            with self.subTest(mode=mode, ranks=ranks):
                said = self.failed(ran, ranks)
                self.assertTrue(said, ran.err)
                for text in said.values():
                    self.assertRegex(text, r"calls in different orders: rank \d .*comm first.*comm second", ran.err)


class Leave(Fault):
    """A rank that is gone without tutti_finalize."""

    def test_exit(self):
        jobs = {ranks: self.start(ranks, "exit") for ranks in (2, 4)}
        for ranks, ran in jobs.items():
            self.failed(ran, ranks)
            self.assertIn("exit() before tutti_finalize", ran.err)

    def test_abort(self):
        ran = self.start(4, "abort")
        self.failed(ran, 4)
        # mpirun returns that of the first that ended, and the others hear of it at once
        self.assertIn(ran.process.returncode, (1, 9))
        self.assertIn("the tokenizer met a word it does not know", ran.err)

    def test_exit_without_handlers(self):
        self.failed(self.start(2, "underscore-exit"), 2)

    def test_a_crash(self):
        ran = self.start(2, "segfault")
        self.failed(ran, 2)
        self.assertEqual(ran.process.returncode, 128 + signal.SIGSEGV)


class SharedMemory(Fault):
    """A /dev/shm that is too small, in a mount namespace of its own."""

    MOUNT = 'mount -t tmpfs -o size="$1" tt-small /dev/shm && shift && exec "$@"'

    def small(self, size):
        return ("unshare", "--mount", "sh", "-c", self.MOUNT, "sh", size)

    def setUp(self):
        super().setUp()
        probe = subprocess.run([*self.small("1m"), "true"], capture_output=True, text=True, check=False)
        if probe.returncode != 0:
            self.skipTest(f"cannot mount a small /dev/shm: {probe.stderr.strip()}")

    def start_small(self, size, ranks, *arguments):
        # mpirun's own segments are kept out of it: it is tutti's messages that are looked at
        return self.start(ranks, *arguments, env={"OMPI_MCA_btl": "self,tcp"}, prefix=self.small(size))

    def refused(self, size, need, *arguments):
        jobs = {ranks: self.start_small(size, ranks, *arguments) for ranks in (2, 4)}
        for ranks, ran in jobs.items():
            said = self.failed(ran, ranks)
            # over TCP a rank that ends takes with it what it has not yet sent: then mpirun ends the others
            self.assertTrue(said, ran.err)
            for text in said.values():
                self.assertRegex(text, need + r".* needed, /dev/shm has .* free", ran.err)

    def test_too_small_for_an_allocation(self):
        self.refused("16m", r"32\.0 MiB", "alloc", str(32 << 20))

    def test_too_small_for_init(self):
        self.refused("64k", r"\d MiB", "fine")

    def test_what_fits_works(self):
        self.ended(self.start_small("16m", 2, "alloc", str(1 << 20)), 0)


class Killed(Fault):
    """SIGKILL of one rank at a random moment, from its first instruction to the middle of collectives."""

    rounds = 24 if LONG else 2

    def one(self, ranks, delay, rng):
        ran = self.start(ranks, "busy")
        name = os.path.basename(RANK)[:15]
        alive = wait_for(lambda: sorted(p for p, comm in processes_with(ran.mark).items() if comm == name), "a rank")
        time.sleep(delay)
        os.kill(rng.choice(alive), signal.SIGKILL)
        self.failed(ran, ranks)
        self.assertEqual(ran.process.returncode, 137, ran.err)

    def test_during_init(self):
        rng = random.Random()
        for _ in range(self.rounds):
            self.one(2, rng.random() * 0.1, rng)

    def test_during_collectives(self):
        rng = random.Random()
        for _ in range(self.rounds):
            ranks = rng.choice((2, 4))
            ran = self.start(ranks, "busy")
            ran.wait_files(*(f"here.{rank}" for rank in range(ranks)))
            time.sleep(rng.random() * 0.2)
            os.kill(int(ran.read(f"here.{rng.randrange(ranks)}").split()[0]), signal.SIGKILL)
            self.failed(ran, ranks)
            self.assertEqual(ran.process.returncode, 137, ran.err)


if __name__ == "__main__":
    job.main()
