# SPDX-License-Identifier: Apache-2.0
"""`tutti topo` and `tutti doctor` from outside."""
import json
import os
import subprocess
import tempfile
import unittest
import xml.etree.ElementTree

import job

MPIRUN = ["mpirun", "--oversubscribe", "--bind-to", "none"]
if os.geteuid() == 0:
    MPIRUN.append("--allow-run-as-root")


def tutti(*arguments, ranks=0, **variables):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TUTTI_")}
    start = [*MPIRUN, "-np", str(ranks)] if ranks else []
    return subprocess.run([*start, os.path.join(job.BIN, "tutti"), *arguments], capture_output=True, text=True,
                          env={**clean, "TUTTI_BACKEND": "host", **variables}, check=False, timeout=110)


def topo_json(*arguments, **variables):
    ran = tutti("topo", "--json", *arguments, **variables)
    if ran.returncode != 0:
        raise AssertionError(ran.stderr)
    return json.loads(ran.stdout)


class Topo(unittest.TestCase):
    def test_page(self):
        ran = tutti("topo", "--machine", "hgx-h100 -nvlink:5:3")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        for text in ("8 GPUs, 8 NICs", "NVL 370.8", "NVLink islands: {0 1 2 3 4 5 6 7}", "Estimates: ring of ",
                     "warning nvlink-degraded, costs up to 17 %", "Plan for all=8"):
            self.assertIn(text, ran.stdout)
        for line in ran.stdout.splitlines():
            self.assertLessEqual(len(line), 100, line)

    def test_only_a_file_is_replaced(self):
        """A device or a pipe is written into, a link keeps pointing, what is read or read-only stays."""
        options = ("--svg", "--export-nccl")
        with tempfile.TemporaryDirectory() as folder:
            def at(name):
                return os.path.join(folder, name)
            tutti("topo", "--machine", "dgx-a100", "--export-nccl", at("real"))
            os.symlink("real", at("link"))
            for option in options:
                pipe = tutti("topo", "--machine", "dgx-a100", option, "/proc/self/fd/1")
                self.assertEqual((pipe.returncode, pipe.stderr), (0, ""))
                xml.etree.ElementTree.fromstring(pipe.stdout)
                self.assertEqual(tutti("topo", "--machine", "dgx-a100", option, at("link")).returncode, 0)
                self.assertTrue(os.path.islink(at("link")) and not os.path.islink(at("real")))
                with open(at("real"), "rb") as file:
                    before = file.read()
                os.mkfifo(at("pipe" + option))
                reader = os.open(at("pipe" + option), os.O_RDONLY | os.O_NONBLOCK)
                self.assertEqual(tutti("topo", "--machine", "dgx-a100", option, at("pipe" + option)).returncode, 0)
                self.assertGreater(len(os.read(reader, 4096)), 100)
                os.close(reader)
                os.chmod(at("real"), 0o444)
                for refused in (at("real"), folder, "", at("no/such")):
                    ran = tutti("topo", "--machine", "dgx-a100", option, refused)
                    self.assertEqual(ran.returncode, 1, refused)
                    self.assertIn("cannot write", ran.stderr)
                os.chmod(at("real"), 0o644)
                if option == "--export-nccl":
                    ran = tutti("topo", "--file", at("real"), option, at("link"))
                    self.assertEqual(ran.returncode, 2, ran.stderr)
                with open(at("real"), "rb") as file:
                    self.assertEqual(file.read(), before)
            self.assertEqual(sorted(os.listdir(folder)), ["link", "pipe--export-nccl", "pipe--svg", "real"])

    def test_json_has_what_the_schema_names(self):
        page = topo_json("--machine", "dgx-a100", "--plan", "dp=2,tp=4")
        self.assertEqual(page["schema"], 1)
        self.assertEqual([g["index"] for g in page["gpus"]], list(range(8)))
        self.assertEqual({"index", "busid", "dev", "cuda", "sm", "numa", "name", "uuid", "memory", "pcie_gbps", "nvlinks", "nics"},
                         set(page["gpus"][0]))
        self.assertEqual(page["paths"]["gpu_gpu"][0][1], {"type": "NVL", "gbps": 240.0, "hops": 2})
        self.assertEqual((len(page["paths"]["gpu_nic"]), len(page["paths"]["gpu_nic"][0])), (8, 8))
        self.assertEqual(page["islands"], [list(range(8))])
        self.assertEqual(page["estimate"]["ring"], {"channels": 12, "gbps": 20.0, "type": "NVL"})
        self.assertEqual([a["name"] for a in page["plan"]["mesh"]], ["dp", "tp"])
        self.assertEqual(sorted(page["plan"]["order"]), list(range(8)))
        self.assertEqual([c["axis"] for c in page["plan"]["communicators"]], ["dp", "tp"])

    def test_plan_over_hosts_keeps_the_inner_axis_inside(self):
        page = topo_json("--machine", "hgx-h100", "--hosts", "4", "--plan", "dp=4,tp=8")
        rank = {r["rank"]: r for r in page["plan"]["ranks"]}
        order = page["plan"]["order"]
        for i in range(4):
            self.assertEqual(len({rank[r]["host"] for r in order[8 * i:8 * i + 8]}), 1)
        for i in range(8):
            self.assertEqual(len({rank[order[8 * h + i]]["rail"] for h in range(4)}), 1)
        self.assertLessEqual(page["plan"]["step_us"], page["plan"]["step_us_by_rank"])

    def test_exported_xml_reads_back(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "machine.xml")
            self.assertEqual(tutti("topo", "--machine", "pcie-8", "--export-nccl", path).returncode, 0)
            again, first = topo_json("--file", path), topo_json("--machine", "pcie-8")
            for part in ("paths", "islands", "estimate"):
                self.assertEqual(again[part], first[part])

    def test_drawing_is_xml(self):
        for machine in ("dgx-1v", "vm-flat-8", "p5", "grace-hopper", "gb200-nvl72", "workstation-2 nics=0", "pcie-4 gpus=0"):
            with self.subTest(machine=machine), tempfile.TemporaryDirectory() as folder:
                path = os.path.join(folder, "a.svg")
                ran = tutti("topo", "--machine", machine, "--svg", path)
                self.assertEqual((ran.returncode, ran.stdout), (0, ""), ran.stderr)
                self.assertTrue(xml.etree.ElementTree.parse(path).getroot().tag.endswith("svg"))
                self.assertEqual(os.listdir(folder), ["a.svg"])

    def test_every_finding_is_explained(self):
        listed = [line.split()[1] for line in tutti("topo", "--explain", "list").stdout.splitlines()]
        self.assertGreater(len(listed), 30)
        for name in (listed[0], listed[-1], "vm-flat"):
            ran = tutti("topo", "--explain", name)
            self.assertEqual(ran.returncode, 0)
            self.assertIn("What to do:", ran.stdout)

    def test_the_catalogue_is_listed(self):
        names = [line.split()[0] for line in tutti("topo", "--machine", "list").stdout.splitlines()]
        self.assertIn("gb200-nvl72", names)
        self.assertGreaterEqual(len(names), 16)

    def test_what_the_user_set_is_kept_and_told(self):
        page = topo_json("--machine", "hgx-h100", NCCL_P2P_DISABLE="1")
        self.assertIn("env-overrides", [f["id"] for f in page["findings"]])

    def test_what_is_wrong_is_said(self):
        for status, text, *arguments in ((2, "no option '--html'", "--html"), (2, "--file and --machine", "--file", "a", "--machine", "b"),
                                         (2, "value is missing", "--file"), (2, "number of hosts", "--hosts", "many"),
                                         (2, "no argument", "x"), (2, "no finding", "--explain", "nothing"),
                                         (1, "no-such", "--file", "no-such.xml"), (1, "no-such", "--machine", "no-such"),
                                         (1, "tp", "--machine", "pcie-4", "--plan", "tp=3"),
                                         (1, "cannot", "--machine", "pcie-4", "--svg", "/proc/a.svg")):
            with self.subTest(arguments=arguments):
                ran = tutti("topo", *arguments)
                self.assertEqual((ran.returncode, ran.stdout), (status, ""))
                if text != "cannot":
                    self.assertIn(text.replace("no option '--html'", "no option --html").replace("no finding", "no finding 'nothing'"),
                                  ran.stderr)
                self.assertEqual(len(ran.stderr.splitlines()), 1)

    def test_this_machine(self):
        page = topo_json()
        self.assertEqual(page["origin"], "this machine")
        self.assertGreaterEqual(len(page["numa"]), 1)


class Doctor(unittest.TestCase):
    SUBJECTS = ("shared memory", "memlock", "open files", "processors", "MPI", "NCCL", "topology")

    def test_alone(self):
        ran = tutti("doctor")
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        for subject in self.SUBJECTS:
            self.assertRegex(ran.stdout, rf"(?m)^(ok|note|warn) +{subject} ")

    def test_two_ranks_and_their_link(self):
        ran = tutti("doctor", "--links", "--seconds", "0.2", ranks=2)
        self.assertEqual(ran.returncode, 0, ran.stdout + ran.stderr)
        for subject in (*self.SUBJECTS, "environment", "links"):
            self.assertRegex(ran.stdout, rf"(?m)^(ok|note|warn) +{subject} ")
        self.assertRegex(ran.stdout, r"1 pairs? in a host: \d+\.\d+ GB/s")

    def test_several_hosts_reach_each_other_and_compare_clocks(self):
        with tempfile.TemporaryDirectory() as folder:
            wrap = os.path.join(folder, "as-host")
            with open(wrap, "w", encoding="utf-8") as script:
                script.write('#!/bin/sh\nTUTTI_HOST_ID=host$OMPI_COMM_WORLD_RANK exec "$@"\n')
            os.chmod(wrap, 0o755)
            clean = {k: v for k, v in os.environ.items() if not k.startswith("TUTTI_")}
            ran = subprocess.run([*MPIRUN, "-np", "2", wrap, os.path.join(job.BIN, "tutti"), "doctor"], text=True,
                                 capture_output=True, env={**clean, "TUTTI_BACKEND": "host"}, check=False, timeout=110)
        self.assertRegex(ran.stdout, r"(?m)^(ok|FAIL) +reachability ")
        self.assertRegex(ran.stdout, r"(?m)^ok +clock ")

    def test_too_small_shared_memory_fails(self):
        ran = tutti("doctor", TUTTI_SHM_DIR="/proc/self")
        self.assertEqual(ran.returncode, 1)
        self.assertRegex(ran.stdout, r"(?m)^FAIL +shared memory ")

    def test_what_differs_between_ranks(self):
        with tempfile.TemporaryDirectory() as folder:
            wrap = os.path.join(folder, "differ")
            with open(wrap, "w", encoding="utf-8") as script:
                script.write('#!/bin/sh\nOMP_NUM_THREADS=$((1 + OMPI_COMM_WORLD_RANK)) '
                             'NCCL_HOSTID=box$OMPI_COMM_WORLD_RANK exec "$@"\n')
            os.chmod(wrap, 0o755)
            clean = {k: v for k, v in os.environ.items() if not k.startswith("TUTTI_")}
            ran = subprocess.run([*MPIRUN, "-np", "2", wrap, os.path.join(job.BIN, "tutti"), "doctor"], text=True,
                                 capture_output=True, env={**clean, "TUTTI_BACKEND": "host"}, check=False, timeout=110)
        self.assertIn("OMP_NUM_THREADS=2 differs from rank 0's (1) [rank 1]", ran.stdout)
        self.assertIn("split-containers: on one machine with rank 0", ran.stdout)

    def test_usage(self):
        for arguments in (("--link",), ("--seconds", "-1"), ("--seconds",)):
            with self.subTest(arguments=arguments):
                ran = tutti("doctor", *arguments)
                self.assertEqual((ran.returncode, ran.stdout), (2, ""))


class Planning(unittest.TestCase):
    """tutti_init on a described machine: what the ranks are bound to."""
    MACHINE = "gpus=0 numa=2 cpu=intel:143 cores=1 nics=0"

    def bound(self, **variables):
        ran = tutti("doctor", ranks=2, TUTTI_TOPO=self.MACHINE, TUTTI_LOG="topo:info", **variables)
        return ran.stderr

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2 or not {0, 1} <= os.sched_getaffinity(0), "wants processors 0 and 1")
    def test_ranks_share_out_the_domains(self):
        text = self.bound()
        self.assertIn("bound to processors 0, its share of the NUMA domains", text)
        self.assertIn("bound to processors 1, its share of the NUMA domains", text)

    def test_not_when_told_not_to(self):
        self.assertNotIn("bound to", self.bound(TUTTI_BIND="0"))

    def test_a_description_that_is_wrong_is_an_error(self):
        ran = tutti("doctor", ranks=2, TUTTI_TOPO="no-such-machine")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("TUTTI_TOPO", ran.stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)
