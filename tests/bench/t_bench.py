#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tutti bench from outside: what it prints is right and well formed, and wrong use is told. No speed is asserted."""
import csv
import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as ET

TUTTI = os.path.join(os.environ["TT_BUILD"], "bin", "tutti")
OPS = ["all_gather", "all_reduce", "all_to_all", "broadcast", "gather", "reduce", "reduce_scatter", "scatter", "send_recv"]
QUICK = ["--rounds", "1", "--time", "0.001"]


def bench(ranks, *args, env=None):
    """status, standard output, standard error of `tutti bench` on that many ranks; 0: without mpirun"""
    launcher = []
    if ranks > 0:
        launcher = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)]
        launcher[1:1] = ["--allow-run-as-root"] if os.getuid() == 0 else []
    done = subprocess.run(launcher + [TUTTI, "bench", *args], capture_output=True, text=True, timeout=110, check=False,
                          env={**os.environ, **(env or {})})
    return done.returncode, done.stdout, done.stderr


class Operations(unittest.TestCase):
    def rows(self, ranks, *args):
        status, out, err = bench(ranks, *args, *QUICK, "--json")
        self.assertEqual(status, 0, err)
        return [json.loads(line) for line in out.splitlines()]

    def test_all_of_them_are_right_beside_their_peers(self):
        for op in OPS:
            with self.subTest(op):
                for row in self.rows(2, op, "-b", "24", "-e", "64K", "-f", "52", "--memory", "both", "--peer", "mpi,limit"):
                    self.assertEqual(row["wrong"], 0, row)
                    self.assertEqual([p["wrong"] for p in row["peers"].values()], [0] * len(row["peers"]), row)
                    self.assertGreater(row["us"], 0)
                    self.assertAlmostEqual(row["algbw"], row["bytes"] / row["us"] / 1e3, delta=0.001 + row["algbw"] * 0.01)
                    if not row["in_place"]:
                        self.assertEqual(set(row["peers"]), {"mpi", "limit"})
                        self.assertEqual(row["peer_us"], row["peers"]["mpi"]["us"])

    def test_other_types_ranks_groups_and_streams(self):
        for args in (["-d", "bf16", "-o", "avg"], ["-d", "i8", "-o", "prod", "--stream"], ["-d", "f16", "--group", "3", "--cold"]):
            with self.subTest(args):
                rows = self.rows(3, "all_reduce", "-b", "96", "-e", "5K", "-f", "50", *args)
                self.assertEqual(len(rows), 4)
                self.assertEqual([row["wrong"] for row in rows], [0] * 4)

    def test_alone_as_a_table_with_a_picture(self):
        with tempfile.TemporaryDirectory() as folder:
            picture = os.path.join(folder, "a&b.svg")
            status, out, err = bench(0, "reduce_scatter", "-e", "1K", *QUICK, "--svg", picture)
            self.assertEqual(status, 0, err)
            self.assertIn("# wrong elements: 0", out)
            self.assertEqual(len([line for line in out.splitlines() if not line.startswith("#")]), 1 + 8)
            lines = ET.parse(picture).getroot().findall("{http://www.w3.org/2000/svg}polyline")
            self.assertEqual(len(lines), 2)

    def test_csv(self):
        status, out, err = bench(0, "broadcast", "-e", "16", *QUICK, "--csv")
        self.assertEqual(status, 0, err)
        rows = list(csv.DictReader(out.splitlines()))
        self.assertEqual([row["bytes"] for row in rows], ["8", "8", "16", "16"])


class Steps(unittest.TestCase):
    def test_a_step_against_its_floor(self):
        for args in (["--layers", "4", "--bytes", "64K"], ["--model", "gpt2", "--scale", "0.001", "--zero", "--forward", "0.5"],
                     ["--model", "resnet50", "--scale", "0.01", "--wire", "bf16", "--compute", "device"]):
            with self.subTest(args):
                status, out, err = bench(2, "step", *args, "--ms", "2", "--steps", "3", "--json")
                self.assertEqual(status, 0, err)
                row = json.loads(out)
                self.assertEqual(row["ranks"], 2)
                self.assertGreaterEqual(row["floor_ms"], row["compute_ms"])
                self.assertAlmostEqual(row["over_floor"], row["step_ms"] / row["floor_ms"], delta=0.001)
                beyond = row["step_ms"] - row["compute_ms"] - row["last_bucket_ms"]
                self.assertAlmostEqual(row["beyond_ms"], beyond, delta=0.001)
                if row["compute"] == "device":
                    self.assertGreaterEqual(row["compute_ms"], 2)
        status, _, _ = bench(0, "step", "--layers", "2", "--bytes", "4K", "--ms", "1", "--steps", "1", "--limit", "0.01")
        self.assertEqual(status, 3)

    def test_models_have_the_sizes_they_claim(self):
        for model, parameters in (("gpt2", 124439808), ("resnet50", 25557032)):
            status, out, err = bench(0, "step", "--model", model, "--scale", "0.125", "--ms", "0", "--steps", "1", "--json")
            self.assertEqual(status, 0, err)
            self.assertAlmostEqual(json.loads(out)["bytes"] / 4 / parameters, 0.125, delta=0.001)

    def test_overlap_of_one_operation(self):
        status, out, err = bench(2, "overlap", "--bytes", "64K", "--steps", "3", "--json")
        self.assertEqual(status, 0, err)
        rows = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([row["way"] for row in rows], ["tutti", "mpi", "mpi+test"] * 3)
        self.assertTrue(all(0 <= row["overlap"] <= 1 for row in rows))

    def test_scaling_of_a_step_and_of_a_program(self):
        with tempfile.TemporaryDirectory() as folder:
            picture = os.path.join(folder, "x.svg")
            status, out, err = bench(3, "scaling", "--layers", "2", "--bytes", "16K", "--ms", "1", "--steps", "3", "--json",
                                     "--svg", picture)
            self.assertEqual(status, 0, err)
            rows = [json.loads(line) for line in out.splitlines()]
            self.assertEqual([row["ranks"] for row in rows], [1, 2, 3])
            for row in rows:
                self.assertAlmostEqual(row["efficiency"], row["speedup"] / row["ranks"], delta=0.001)
            self.assertEqual(len(ET.parse(picture).getroot().findall("{http://www.w3.org/2000/svg}polyline")), 2)
            script = os.path.join(folder, "program.sh")
            with open(script, "w", encoding="ascii") as f:
                f.write('[ "$OMPI_COMM_WORLD_RANK" = 0 ] && echo "first 1 tokens/s, then $1.5 tokens/s of $2"\nexit 0\n')
            status, out, err = bench(0, "scaling", "--ranks", "2", "--json", "--", "sh", script, "{8n}", "{n}{")
            self.assertEqual(status, 0, err)
            self.assertEqual([json.loads(line)["throughput"] for line in out.splitlines()], [1, 1])

    def test_checkpoints_beside_the_disk(self):
        with tempfile.TemporaryDirectory() as folder:
            run = os.path.join(folder, "run")
            status, out, err = bench(2, "ckpt", run, "--mib", "1", "--tensors", "3", "--rounds", "2", "--json")
            self.assertEqual(status, 0, err)
            rows = [json.loads(line) for line in out.splitlines()]
            self.assertEqual([row["what"] for row in rows], ["save", "load disk", "load cache", "stall"])
            for row in rows:
                self.assertEqual((row["ranks"], row["tensors"], row["rounds"], row["bytes"] % (2 * 3 * 4096)), (2, 3, 2, 0))
                self.assertGreater(min(row["ours_s"], row["raw_s"], row["ratio"]), 0)
            self.assertEqual(os.listdir(folder), [])
            status, out, err = bench(0, "ckpt", run, "--mib", "1", "--rounds", "1", "--copy", "--json")
            self.assertEqual((status, [json.loads(line)["what"] for line in out.splitlines()]), (0, ["save by copy"]), err)
            status, out, err = bench(0, "ckpt", run, "--mib", "1", "--alone", "--json")
            self.assertEqual(status, 0, err)
            self.assertEqual([json.loads(line)["what"] for line in out.splitlines()], ["save", "load disk", "load cache"])
            status, out, err = bench(0, "ckpt", run, "--mib", "1", "--rounds", "1", "--load")
            self.assertEqual((status, [line.split()[:2] for line in out.splitlines()[2:]]), (0, [["load", "disk"], ["load", "cache"]]), err)
            self.assertEqual(bench(0, "ckpt", folder)[0], 2)
            self.assertTrue(os.path.isdir(folder))

    def test_bad_input(self):
        for args, code, said in ((["step", "--model", "vgg"], 2, "--model: 'vgg'"), (["step", "--ms", "-1"], 2, "--ms: '-1'"),
                                 (["step", "--compute", "gpu"], 2, "--compute: 'gpu'"),
                                 (["step", "more"], 2, "what is 'more'"), (["overlap", "--bytes", "8"], 2, "at least 256"),
                                 (["ckpt"], 2, "a folder"), (["ckpt", "/no/such/folder"], 1, "cannot make"),
                                 (["ckpt", "a", "b"], 2, "what is 'b'"), (["ckpt", "a", "--alone", "--load"], 2, "--alone"),
                                 (["ckpt", "a", "--mib", "0"], 2, "--mib: '0'"),
                                 (["scaling", "--steps", "0"], 2, "--steps: '0'"), (["step", "--ranks", "2"], 2, "1 rank came"),
                                 (["scaling", "--ranks", "1", "--", "sh", "-c", "exit 7"], 1, "failed on 1 ranks"),
                                 (["scaling", "--ranks", "1", "--", "true"], 1, "printed no number")):
            with self.subTest(args):
                status, _, err = bench(0, *args)
                self.assertEqual(status, code, err)
                self.assertIn(said, err)


class BadInput(unittest.TestCase):
    def test_is_told_once_with_status_2(self):
        for args, said in (
            ([], "usage"),
            (["all_to_nobody"], "no operation 'all_to_nobody'"),
            (["all_reduce", "--mni", "8"], "no option '--mni'"),
            (["all_reduce", "--min"], "--min needs a value"),
            (["all_reduce", "--min", "0"], "--min: '0'"),
            (["all_reduce", "--min", "-8"], "--min: '-8'"),
            (["all_reduce", "--max", "1Q"], "--max: '1Q'"),
            (["all_reduce", "--min", "1M", "--max", "8"], "--min is larger"),
            (["all_reduce", "--factor", "1"], "--factor: '1'"),
            (["all_reduce", "--factor", "nan"], "--factor: 'nan'"),
            (["all_reduce", "--dtype", "f31"], "--dtype: 'f31'"),
            (["all_reduce", "--rounds", "1000"], "--rounds: '1000'"),
            (["all_reduce", "--peer", "mpi,nccl"], "--peer: 'mpi,nccl'"),
            (["all_reduce", "8"], "what is '8'"),
            (["all_to_all", "--place", "in"], "no in-place form"),
            (["all_reduce", "-b", "2", "-e", "3"], "no row"),
            (["all_reduce", "--ranks", "2"], "1 rank came, --ranks asks for 2"),
            (["broadcast", "--root", "1"], "--root 1"),
            (["all_reduce", "--baseline", "/nowhere/at/all"], "/nowhere/at/all"),
        ):
            with self.subTest(args):
                status, out, err = bench(0, *args)
                self.assertEqual(status, 2, err)
                self.assertIn(said, err)
                self.assertEqual(err.count(said), 1)
                self.assertEqual([line for line in out.splitlines() if not line.startswith(("#", " "))], [])

    def test_help_is_no_failure(self):
        for args in (["--help"], ["all_reduce", "--help"]):
            status, out, _ = bench(0, *args)
            self.assertEqual(status, 0)
            self.assertIn("OP", out)

    def test_an_output_that_cannot_be_written(self):
        with open("/dev/full", "w", encoding="ascii") as full:
            done = subprocess.run([TUTTI, "bench", "all_reduce", "-e", "8", *QUICK], stdout=full, stderr=subprocess.PIPE,
                                  text=True, timeout=110, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("could not be written", done.stderr)

    def test_a_picture_that_cannot_be_written(self):
        status, _, err = bench(2, "all_reduce", "-e", "8", *QUICK, "--svg", "/no/such/folder/x.svg")
        self.assertEqual(status, 1, err)
        self.assertEqual(err.count("/no/such/folder/x.svg"), 1)

    def test_a_rank_that_is_missing_is_told_by_all(self):
        status, _, err = bench(2, "all_reduce", "--ranks", "3", "-e", "8", *QUICK)
        self.assertNotEqual(status, 0)
        self.assertEqual(err.count("2 ranks came, --ranks asks for 3"), 1)


class Baseline(unittest.TestCase):
    def test_slower_rows_fail_and_others_do_not(self):
        with tempfile.TemporaryDirectory() as folder:
            before = os.path.join(folder, "before.json")
            common = ["all_reduce", "-b", "1K", "-e", "2K", *QUICK]
            status, out, err = bench(2, *common, "--json")
            self.assertEqual(status, 0, err)
            rows = [json.loads(line) for line in out.splitlines()]
            for factor, wanted in ((1e9, 0), (1e-4, 3)):
                with open(before, "w", encoding="ascii") as f:
                    for row in rows:
                        f.write(json.dumps({**row, "us": row["us"] * factor}) + "\n")
                status, out, err = bench(2, *common, "--json", "--baseline", before)
                if wanted == 0:
                    self.assertEqual(status, 0, err)
                else:
                    self.assertNotEqual(status, 0)
                self.assertTrue(all(row["baseline_ratio"] > 0 for row in map(json.loads, out.splitlines())))

    def test_a_file_that_is_none(self):
        for text in ("", "{}\n", "[1]\n", "not json\n", '{"us":"3"}\n', "\x00\x01\n"):
            with self.subTest(text), tempfile.NamedTemporaryFile("w") as f:
                f.write(text)
                f.flush()
                status, _, err = bench(0, "all_reduce", "-e", "8", *QUICK, "--baseline", f.name)
                self.assertEqual(status, 2, err)
                self.assertIn(f.name, err)


if __name__ == "__main__":
    unittest.main()
