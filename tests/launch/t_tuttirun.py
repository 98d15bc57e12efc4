# SPDX-License-Identifier: Apache-2.0
"""tuttirun: t_tuttirun.py [CLASS[.test]...]. Ranks are small shell programs; t_rank_mpi where MPI itself matters."""
import fcntl
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import job
from job import JobTest, processes_with, wait_for

RANK = "$OMPI_COMM_WORLD_RANK"
FOREVER = "while :; do sleep 0.05; done"
LONG = bool(os.environ.get("TT_LONG"))
MPI_RANK = os.path.join(job.BUILD, "tests/t_rank_mpi")


def up(script):
    """A rank that says that it is up by a file named after it, then runs the script."""
    return f': >"$WORK/up{RANK}"; {script}'


class Start(JobTest):
    def test_environment_reaches_the_ranks(self):
        ran = self.run_job(0, "-n", "2", "sh", "-c", 'echo "$TUTTI_LOG|$NCCL_DEBUG|$TUTTIRUN_RESTART|$TERM|$OMP_X"',
                           env={"TUTTI_LOG": "warn", "NCCL_DEBUG": "a b", "OMP_X": ""})
        self.assertEqual(ran.out.splitlines(), ["warn|a b|0|dumb|"] * 2)

    def test_variables_are_named_for_other_machines(self):
        """mpirun hands its whole environment to local ranks, but to remote ones only what -x names."""
        ran = self.run_job(0, "--dry-run", "-n", "2", "true", env={
            "TUTTI_CHECK": "1", "NCCL_A": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OTHER_A": "1"})
        words = ran.out.split()
        named = {words[i + 1] for i, word in enumerate(words) if word == "-x"}
        self.assertLessEqual({"TUTTI_CHECK", "NCCL_A", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"}, named)
        self.assertLessEqual({"TUTTIRUN_JOB", "TUTTIRUN_RESTART"}, named)
        self.assertNotIn("OTHER_A", named)

    def test_dry_run_prints_a_command_that_works(self):
        ran = self.run_job(0, "--dry-run", "-n", "1", "printf", "<%s>", "a b", "it's", "", "$HOME")
        self.assertNotIn("/tuttirun.", ran.out)  # no folders of the job, which nobody would remove
        again = subprocess.run(["sh", "-c", ran.out], capture_output=True, text=True, check=True,
                               env={**os.environ, "TMPDIR": ran.path("tmp")})
        self.assertEqual(again.stdout, "<a b><it's><><$HOME>")
        self.assertEqual(os.listdir(ran.path("tmp")), [])

    def test_arguments_arrive_as_they_are(self):
        for words in (["-n", "--restarts"], ["a b", "'", '"', "", "*", "\n", "--"]):
            ran = self.run_job(0, "-n", "1", "--", "printf", "<%s>", *words)
            self.assertEqual(ran.out, "".join(f"<{w}>" for w in words))

    def test_standard_input_reaches_rank_0(self):
        with open("/proc/self/comm") as stdin:
            ran = self.run_job(0, "-n", "2", "sh", "-c", "cat", stdin=stdin)
        with open("/proc/self/comm") as f:
            self.assertEqual(ran.out, f.read())

    def test_standard_descriptors_that_are_closed(self):
        jobs = {self.job("-n", "2", "sh", "-c", up("echo out; echo err >&2; exit 5"),
                         prefix=("sh", "-c", f'exec "$@" {closed}', "sh")): 5
                for closed in ("<&-", ">&-", "2>&-", "<&- >&- 2>&-")}
        self.all_ended(jobs)
        for ran in jobs:
            self.assertTrue(ran.has("up0") or ran.has("up1"), ran.err)

    def test_status_is_that_of_the_rank(self):
        self.all_ended({self.job("-n", "2", "sh", "-c", f"[ {RANK} = 0 ] || exit {status}"): status
                        for status in (1, 7, 77, 255)})

    def test_a_signal_is_128_and_its_number(self):
        self.all_ended({self.job("-n", "2", "sh", "-c", f"[ {RANK} = 0 ] || kill -{int(sig)} $$"): 128 + sig
                        for sig in (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM)})

    def test_more_ranks_than_cores(self):
        count = 2 * os.cpu_count() + 1
        ran = self.run_job(0, "-n", str(count), "sh", "-c", "echo $OMPI_MCA_mpi_yield_when_idle")
        self.assertEqual(ran.out.split(), ["1"] * count)

    def test_a_job_cannot_outlive_its_ranks(self):
        """A background process of a rank, in a session and an environment of its own, ends with the job."""
        ran = self.run_job(0, "-n", "1", "sh", "-c",
                           'setsid env -i sh -c "echo \\$\\$ >$WORK/pid; exec sleep 1000" >/dev/null 2>&1 & '
                           'while ! [ -s "$WORK/pid" ]; do sleep 0.01; done')
        self.assertFalse(os.path.exists(f"/proc/{int(ran.read('pid'))}"))


@unittest.skipIf(len(os.sched_getaffinity(0)) < 2, "binding needs 2 CPUs")
class Binding(JobTest):
    SHOW = ("sed", "-n", "s/^Cpus_allowed_list:[[:space:]]*//p", "/proc/self/status")

    def sets(self, *arguments, **keywords):
        ran = self.run_job(0, *arguments, *self.SHOW, **keywords)
        out = []
        for line in ran.out.splitlines():
            ends = [[int(x) for x in part.split("-")] for part in line.split(",")]
            out.append({cpu for e in ends for cpu in range(e[0], e[-1] + 1)})
        return out

    def test_ranks_share_the_cpus_without_overlap(self):
        allowed = os.sched_getaffinity(0)
        for count in {2, len(allowed)}:
            sets = self.sets("-n", str(count))
            self.assertEqual(len(sets), count)
            self.assertEqual(set().union(*sets), allowed)
            self.assertEqual(sum(len(s) for s in sets), len(allowed))

    def test_the_mask_of_the_caller_is_kept(self):
        one = min(os.sched_getaffinity(0))
        sets = self.sets("-n", "2", prefix=("taskset", "-c", str(one)))
        self.assertEqual(sets, [{one}, {one}])

    def test_more_ranks_than_cpus_are_left_alone(self):
        allowed = os.sched_getaffinity(0)
        self.assertEqual(self.sets("-n", str(len(allowed) + 1)), [allowed] * (len(allowed) + 1))

    def test_no_bind(self):
        allowed = os.sched_getaffinity(0)
        self.assertEqual(self.sets("--no-bind", "-n", "2"), [allowed] * 2)


# A rank of a restarted run fails if one of the first run is still there.
GENERATION = """
echo $$ >"$WORK/pid.$TUTTIRUN_RESTART.$OMPI_COMM_WORLD_RANK"
if [ "$TUTTIRUN_RESTART" = 1 ]; then
    for file in "$WORK"/pid.0.*; do
        kill -0 "$(cat "$file")" 2>/dev/null && echo "$file is alive" && exit 9
    done
    exit 0
fi
"""


class Restart(JobTest):
    kills = 20 if LONG else 2

    def test_sigkill_of_a_rank_at_a_random_moment(self):
        rng = random.Random(20)
        for _ in range(self.kills):
            jobs = {self.job("-n", "2", "--restarts", "2", "sh", "-c", GENERATION + up(FOREVER)): 0 for _ in range(2)}
            for ran in jobs:
                self.kill_rank(ran, rng.randrange(2), rng.random() * 0.2)
            self.all_ended(jobs)
            for ran in jobs:
                said = [line for line in ran.err.splitlines() if line.startswith("tuttirun:")]
                self.assertEqual(said, ["tuttirun: a rank was killed by SIGKILL; starting again (restart 1 of 2)"])

    def kill_rank(self, ran, rank, delay):
        ran.wait_files(f"up{rank}")
        time.sleep(delay)
        os.kill(int(ran.read(f"pid.0.{rank}")), signal.SIGKILL)

    def test_restarts_run_out(self):
        ran = self.run_job(3, "-n", "2", "--restarts", "1", "sh", "-c", 'echo "k$TUTTIRUN_RESTART"; exit 3')
        self.assertEqual(set(ran.out.split()), {"k0", "k1"})
        self.assertIn("tuttirun: the job ended with status 3; no restart is left of 1", ran.err)

    def test_mpirun_killed(self):
        ran = self.job("-n", "2", "--restarts", "1", "sh", "-c",
                       GENERATION + up(FOREVER))
        ran.wait_files("up0", "up1")
        os.kill(ran.mpirun(), signal.SIGKILL)
        self.ended(ran, 0)
        self.assertIn("tuttirun: mpirun was killed by SIGKILL; starting again (restart 1 of 1)", ran.err)

    def test_what_is_not_restarted(self):
        """143 is a stop that the ranks agreed on; 126 and 127 will not get better."""
        jobs = {self.job("-n", "2", "--restarts", "5", "sh", "-c", f"echo $TUTTIRUN_RESTART; exit {status}"): status
                for status in (143, 126, 127, 0)}
        self.all_ended(jobs)
        for ran in jobs:
            self.assertEqual(set(ran.out.split()), {"0"})

    def test_an_escaped_child_of_the_old_run_is_gone_first(self):
        ran = self.run_job(0, "-n", "1", "--restarts", "1", "sh", "-c", """
            if [ "$TUTTIRUN_RESTART" = 0 ]; then
                setsid env -i sh -c "echo \\$\\$ >$WORK/pid; exec sleep 1000" &
                while ! [ -s "$WORK/pid" ]; do sleep 0.01; done
                kill -9 $$
            fi
            ! kill -0 "$(cat "$WORK/pid")" 2>/dev/null""")
        self.assertIn("restart 1 of 1", ran.err)


class Stop(JobTest):
    def stop(self, script, sig=signal.SIGTERM, arguments=(), **keywords):
        ran = self.job("-n", "2", *arguments, "sh", "-c", script, **keywords)
        ran.wait_files("up0", "up1")
        ran.signal(sig)
        return ran

    def test_a_save_of_5_seconds_is_let_finish(self):
        """Rank 1 takes 5 s to save, rank 0 waits for it, both leave together with 143; no restart."""
        save = f"""
            trap 'echo x >>"$WORK/signals{RANK}"; stop=1' USR1
            stop=0
            {up("while [ $stop = 0 ]; do sleep 0.05; done")}
            if [ {RANK} = 1 ]; then sleep 5; : >"$WORK/saved"; fi
            while ! [ -e "$WORK/saved" ]; do sleep 0.02; done
            exit 143"""
        ran = self.stop(save, arguments=("--restarts", "3"))
        self.ended(ran, 143)
        self.assertTrue(ran.has("saved"))
        self.assertEqual([ran.read("signals0"), ran.read("signals1")], ["x\n", "x\n"])
        self.assertNotIn("restart", ran.err)
        self.assertIn("SIGTERM: asking the ranks to save and stop; they have 110 s", ran.err)

    def test_every_stop_signal_becomes_sigusr1(self):
        quick = f"trap 'exit 143' USR1; {up(FOREVER)}"
        self.all_ended({self.stop(quick, sig, ("--restarts", "1")): 143
                        for sig in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)})

    def test_signals_ignored_by_nohup_stay_ignored(self):
        ran = self.job("-n", "1", "sh", "-c", up("while ! [ -e \"$WORK/go\" ]; do sleep 0.02; done"),
                       prefix=("nohup",))
        ran.wait_files("up0")
        ran.signal(signal.SIGHUP)
        with open(ran.path("go"), "w"):
            pass
        self.ended(ran, 0)

    def test_a_second_signal_kills(self):
        ran = self.stop(f"trap '' USR1; {up(FOREVER)}", arguments=("--restarts", "1"))
        ran.wait_error("asking the ranks to save and stop")
        time.sleep(0.7)  # two within half a second are one
        ran.signal(signal.SIGTERM)
        self.ended(ran, 137)

    def test_two_signals_at_once_are_one(self):
        """`timeout` signals the process and then its group."""
        ran = self.stop(f"trap 'sleep 1; : >\"$WORK/saved\"; exit 143' USR1; {up(FOREVER)}")
        begun = time.monotonic()
        ran.wait_error("asking the ranks to save and stop")
        ran.signal(signal.SIGTERM)
        if ran.finish() == 137 and time.monotonic() - begun > 0.5:
            self.skipTest("this machine is so busy that the two were not at once")
        self.ended(ran, 143)
        self.assertTrue(ran.has("saved"))

    def test_the_grace_ends(self):
        for grace in ("0", "1.5"):
            ran = self.stop(f"trap '' USR1; {up(FOREVER)}", arguments=("--grace", grace, "--restarts", "1"))
            self.ended(ran, 137)
            self.assertIn("the grace is over", ran.err)

    def test_a_notice_is_a_stop(self):
        """The command is asked until it ends with 0; its own output goes nowhere; restarts start it anew."""
        save = f"trap ': >\"$WORK/saved\"; exit 143' USR1; {up(FOREVER)}"
        ran = self.job("-n", "2", "--notice-cmd", "echo noise; test -e \"$WORK/notice\"", "sh", "-c", save)
        ran.wait_files("up0", "up1")
        with open(ran.path("notice"), "w"):
            pass
        self.ended(ran, 143)
        self.assertTrue(ran.has("saved"))
        self.assertIn("--notice-cmd gave notice", ran.err)
        self.assertNotIn("noise", ran.out + ran.err)

    def test_a_notice_command_that_fails_is_no_notice(self):
        for command in ("false", "tt-nonexistent", "kill -9 $$", "sleep 100"):
            ran = self.job("-n", "1", "--notice-cmd", command, "true")
            self.ended(ran, 0)

    def test_wait_lock_reaches_the_ranks(self):
        ran = self.job("-n", "1", "--wait-lock", "7", "sh", "-c", "echo $TUTTI_CKPT_WAIT_LOCK")
        self.ended(ran, 0)
        self.assertEqual(ran.out, "7\n")

    def test_a_program_that_does_not_listen_is_stopped(self):
        self.ended(self.stop(up(FOREVER)), 143)

    def test_a_program_that_ends_well_after_a_stop(self):
        self.ended(self.stop(f"trap 'exit 0' USR1; {up(FOREVER)}"), 0)

    def test_a_rank_that_dies_while_stopping_is_not_restarted(self):
        ran = self.stop(f"trap 'kill -9 $$' USR1; {up(FOREVER)}", arguments=("--restarts", "3"))
        self.ended(ran, 137)
        self.assertNotIn("restart", ran.err)


class Killed(JobTest):
    """Nothing is left after SIGKILL of any part of a job that uses MPI's shared memory."""
    stops = 60 if LONG else 4

    def up(self, *arguments):
        ran = self.job("-n", "2", *arguments, MPI_RANK)
        ran.wait_files("up0", "up1")
        return ran

    def test_mpirun(self):
        ran = self.up()
        shm = [n for n in os.listdir("/dev/shm") if n.startswith(f"tuttirun.{ran.pid}.")]
        self.assertTrue(shm and os.listdir(f"/dev/shm/{shm[0]}"), "MPI's segments are not where they are swept")
        os.kill(ran.mpirun(), signal.SIGKILL)
        self.ended(ran, 137)

    def test_a_rank(self):
        ran = self.up()
        os.kill(int(ran.read("up1")), signal.SIGKILL)
        self.ended(ran, 137)

    def test_tuttirun(self):
        ran = self.up()
        ran.signal(signal.SIGKILL)
        self.assertEqual(ran.finish(), -signal.SIGKILL)
        wait_for(lambda: ran.left_behind() == [], "the janitor")

    def test_tuttirun_with_its_whole_group(self):
        ran = self.up()
        os.killpg(ran.pid, signal.SIGKILL)
        self.assertEqual(ran.finish(), -signal.SIGKILL)
        wait_for(lambda: ran.left_behind() == [], "the janitor")

    def test_tuttirun_and_its_janitor(self):
        """Then nobody cleans up but the next job."""
        ran = self.up()
        janitor = [pid for pid, name in processes_with(ran.mark).items() if name == "tuttirun" and pid != ran.pid]
        os.kill(janitor[0], signal.SIGKILL)
        ran.signal(signal.SIGKILL)
        ran.finish()
        wait_for(lambda: not any(p.startswith("process") for p in ran.left_behind()), "the end of mpirun and its ranks")
        self.assertNotEqual(ran.left_behind(), [])
        self.ended(self.job("-n", "1", "true", env={"TMPDIR": ran.path("tmp")}), 0)
        self.assertEqual(ran.left_behind(), [])

    def test_what_a_job_elsewhere_holds_stays(self):
        """Of a name that says nothing here (another machine's, another container's) the lock decides."""
        with tempfile.TemporaryDirectory() as tmp:
            held, left, other = (f"{tmp}/tuttirun.{name}" for name in ("2147483647.a", "2147483647.b", "txt"))
            for path in (held, left, other):
                os.mkdir(path)
                with open(f"{path}/file", "w"):
                    pass
            lock = os.open(held, os.O_RDONLY)
            fcntl.flock(lock, fcntl.LOCK_SH)
            self.ended(self.job("-n", "1", "true", env={"TMPDIR": tmp}), 0)
            os.close(lock)
            self.assertEqual(sorted(os.listdir(tmp)), sorted(map(os.path.basename, (held, other))))

    def test_at_any_moment_of_the_start(self):
        rng = random.Random()
        for _ in range(self.stops):
            ran = self.job("-n", "2", MPI_RANK)
            time.sleep(rng.random() * 0.15)
            ran.signal(signal.SIGKILL)
            ran.finish()
            wait_for(lambda r=ran: r.left_behind() == [], "the janitor")

    def test_a_stop_at_any_moment_of_the_start(self):
        rng = random.Random()
        for _ in range(self.stops):
            ran = self.job("-n", "2", MPI_RANK)
            time.sleep(rng.random() * 0.2)
            ran.signal(signal.SIGTERM)
            self.assertIn(ran.finish(), (143, -signal.SIGTERM))  # the latter: before it had begun
            wait_for(lambda r=ran: r.left_behind() == [], "the end")


    def test_a_rank_at_any_moment_of_the_start(self):
        """mpirun 4.1 hangs now and then when a rank dies in MPI_Init; tuttirun does not."""
        rng = random.Random()
        for _ in range(self.stops):
            ran = self.job("-n", "2", MPI_RANK)
            victim = wait_for(lambda r=ran: [p for p, name in processes_with(r.mark).items() if name == "t_rank_mpi"],
                              "a rank")[0]
            time.sleep(rng.random() * 0.05)
            os.kill(victim, signal.SIGKILL)
            self.ended(ran, 137)


GPT = os.path.join(job.BIN, "gpt")


@unittest.skipUnless(os.path.exists(GPT), "the examples are not built")
class Training(JobTest):
    """The whole way: tuttirun, the library's agreement on a step, a checkpoint, the next run."""

    def gpt(self, folder, steps, *arguments):
        return self.job("-n", "2", *arguments, GPT, *"--layers 1 --width 32 --context 32 --batch 8 --sample 0".split(),
                        "--steps", str(steps), "--every", "1000000", "--ckpt", folder, "--resume")

    def stopped(self, folder, sig, *arguments):
        ran = self.gpt(folder, 1000000, *arguments)
        ran.wait_line(" loss ")
        time.sleep(0.2)
        ran.signal(sig)
        self.ended(ran, 143)
        stopped = re.search(r"^stopped after step (\d+) as asked$", ran.out, re.M)
        self.assertTrue(stopped, ran.out[-1000:] + ran.err)
        return ran, int(stopped.group(1))

    def test_a_stop_saves_and_the_next_run_goes_on(self):
        with tempfile.TemporaryDirectory() as folder:
            _, step = self.stopped(folder, signal.SIGTERM, "--restarts", "3")
            self.assertEqual(max(os.listdir(folder)), f"step-{step:012}")
            ran, later = self.stopped(folder, signal.SIGINT)
            self.assertIn(f"resumed from step {step} in {folder}", ran.out.splitlines()[3])
            self.assertGreater(later, step)


@unittest.skipIf(os.geteuid() != 0, "other host names need root")
class Hosts(JobTest):
    """A job on two machines, which here are two host names: the remote shell runs the command under the other name."""

    AGENT = """#!/bin/sh
host=$1
shift
exec unshare --uts --mount sh -c 'hostname "$1" && if [ -n "${HOSTS:-}" ]; then
    mount --bind "$HOSTS/$1/shm" /dev/shm && mount --bind "$HOSTS/$1/tmp" "$HOSTS/tmp"; fi && eval "$2"' sh "$host" "$*"
"""

    def job(self, *arguments, env=None, **keywords):
        agent = tempfile.NamedTemporaryFile("w", prefix="tt-agent.", delete=False)
        self.addCleanup(os.unlink, agent.name)
        with agent:
            agent.write(self.AGENT)
        os.chmod(agent.name, 0o700)
        if subprocess.run([agent.name, "tt-host-a", "true"], check=False, capture_output=True).returncode != 0:
            self.skipTest("no rights to give a process a host name of its own")
        return super().job(*arguments, env={"OMPI_MCA_plm_rsh_agent": agent.name, **(env or {})}, **keywords)

    def test_ranks_are_dealt_out(self):
        ran = self.run_job(0, "-n", "4", "--hosts", "tt-host-a:2,tt-host-b:2", "sh", "-c", "hostname")
        self.assertEqual(sorted(ran.out.split()), ["tt-host-a"] * 2 + ["tt-host-b"] * 2)

    def test_a_host_file(self):
        with tempfile.NamedTemporaryFile("w") as hosts:
            hosts.write("tt-host-a slots=1\ntt-host-b slots=1\n")
            hosts.flush()
            ran = self.run_job(0, "-n", "2", "--hostfile", hosts.name, "sh", "-c", "hostname")
        self.assertEqual(sorted(ran.out.split()), ["tt-host-a", "tt-host-b"])

    def test_restart_after_a_rank_died(self):
        ran = self.run_job(0, "-n", "2", "--hosts", "tt-host-a:1,tt-host-b:1", "--restarts", "1", "sh", "-c",
                           f'[ "$TUTTIRUN_RESTART" = 1 ] || [ {RANK} = 0 ] || kill -9 $$; sleep 0.1')
        self.assertIn("restart 1 of 1", ran.err)

    def test_stop(self):
        ran = self.job("-n", "2", "--hosts", "tt-host-a:1,tt-host-b:1", "sh", "-c",
                       f"trap 'exit 143' USR1; {up(FOREVER)}")
        ran.wait_files("up0", "up1")
        ran.signal(signal.SIGTERM)
        self.ended(ran, 143)

    def test_mpirun_killed(self):
        ran = self.job("-n", "2", "--hosts", "tt-host-a:1,tt-host-b:1", "sh", "-c", up(FOREVER))
        ran.wait_files("up0", "up1")
        os.kill(ran.mpirun(), signal.SIGKILL)
        self.ended(ran, 137)
        self.assertNotIn("cannot make sure", ran.err)

    def test_nothing_is_left_there_either(self):
        """Each machine has a TMPDIR and a /dev/shm of its own here."""
        with tempfile.TemporaryDirectory(prefix="tt-hosts.") as hosts:
            os.mkdir(f"{hosts}/tmp")
            for host in ("tt-host-a", "tt-host-b"):
                os.makedirs(f"{hosts}/{host}/tmp")
                os.makedirs(f"{hosts}/{host}/shm")
            for status in (0, 3):
                ran = self.job("-n", "2", "--hosts", "tt-host-a:1,tt-host-b:1", "sh", "-c",
                               f'cat /proc/self/mountinfo >"$WORK/mounts{RANK}"; '
                               'setsid sleep 1000 >/dev/null 2>&1 & '
                               f'[ -d "$OMPI_MCA_btl_vader_backing_directory" ] || exit 9; exit {status}',
                               env={"TMPDIR": f"{hosts}/tmp", "HOSTS": hosts})
                self.ended(ran, status)
                self.assertIn("/dev/shm", ran.read("mounts1"))
                found = [os.path.join(top, name) for top, dirs, files in os.walk(hosts) for name in dirs + files]
                self.assertEqual([f for f in found if "tuttirun" in f], [])

    def test_a_host_that_is_not_there(self):
        ran = self.job("-n", "1", "--hosts", "tt-host-a:1", "true", env={"OMPI_MCA_plm_rsh_agent": "/bin/false"})
        self.assertNotEqual(ran.finish(), 0)
        self.assertEqual(ran.left_behind(), [])


class BadInput(JobTest):
    def refused(self, status, text, *arguments, **keywords):
        ran = self.run_job(status, *arguments, **keywords)
        self.assertEqual(ran.out, "")
        self.assertEqual(len(ran.err.splitlines()), 1, ran.err)
        self.assertIn(text, ran.err)

    def test_options(self):
        for text, *arguments in (
            ("how many ranks",),
            ("how many ranks", "true"),
            ("which program", "-n", "2"),
            ("-n needs a number of ranks from 1 to 65536, not '0'", "-n", "0", "true"),
            ("not '-3'", "-n", "-3", "true"),
            ("not 'text'", "-n", "text", "true"),
            ("not '2x'", "-n", "2x", "true"),
            ("not ''", "-n", "", "true"),
            ("not '99999999999999999999'", "-n", "99999999999999999999", "true"),
            ("-n needs a value", "-n"),
            ("--notice-cmd needs a command, not", "-n", "1", "--notice-cmd", " ", "true"),
            ("no option '--frobnicate'", "-n", "2", "--frobnicate", "true"),
            ("no option '-z'", "-z", "-n", "2", "true"),
            ("--restarts needs", "-n", "2", "--restarts", "-1", "true"),
            ("--grace needs", "-n", "2", "--grace", "soon", "true"),
            ("--grace needs", "-n", "2", "--grace", "nan", "true"),
            ("--wait-lock needs", "-n", "2", "--wait-lock", "long", "true"),
            ("--hosts needs", "-n", "2", "--hosts", "a:0", "true"),
            ("--hosts needs", "-n", "2", "--hosts", "a,,b", "true"),
            ("--hosts needs", "-n", "2", "--hosts", "", "true"),
            ("more than the 2 ranks", "-n", "3", "--hosts", "a:1,b:1", "true"),
            ("exclude each other", "-n", "2", "--hosts", "a", "--hostfile", "/dev/null", "true"),
            ("cannot read the host file '/nonexistent'", "-n", "2", "--hostfile", "/nonexistent", "true"),
        ):
            with self.subTest(arguments=arguments):
                self.refused(2, text, *arguments)

    def test_programs(self):
        self.refused(127, "no program './nonexistent'", "-n", "2", "./nonexistent")
        self.refused(127, "no program 'tt-nonexistent'", "-n", "2", "tt-nonexistent")
        self.refused(126, "'/etc/passwd' is not a program", "-n", "2", "/etc/passwd")
        self.refused(126, "'/tmp' is not a program", "-n", "2", "/tmp")

    def test_mpirun(self):
        self.refused(127, "no mpirun in PATH", "-n", "2", "/bin/true", env={"PATH": "/nonexistent"})
        self.refused(127, "--mpirun: /nonexistent", "-n", "2", "--mpirun", "/nonexistent", "true")
        self.refused(126, "/bin/true is not Open MPI's mpirun", "-n", "2", "--mpirun", "/bin/true", "true")

    def test_a_session_directory_that_cannot_be_made(self):
        self.refused(126, "cannot make mpirun's session directory", "-n", "2", "sh", "-c", ":",
                     prefix=("env", "TMPDIR=/dev/null/none"))

    def test_help_and_version(self):
        self.assertIn("usage: tuttirun", self.run_job(0, "--help").out)
        self.assertRegex(self.run_job(0, "--version").out, r"^tuttirun \d+\.\d+\.\d+\n$")
        for option in ("--help", "--version"):
            with open("/dev/full", "w", encoding="ascii") as full:
                ran = subprocess.run([os.path.join(job.BIN, "tuttirun"), option], stdout=full, stderr=subprocess.PIPE,
                                     check=False)
            self.assertEqual(ran.returncode, 1)
            self.assertIn(b"standard output", ran.stderr)


if __name__ == "__main__":
    job.main()
