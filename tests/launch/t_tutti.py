# SPDX-License-Identifier: Apache-2.0
"""The `tutti` program's own commands."""
import os
import re
import subprocess
import unittest

import job


def tutti(*arguments, **variables):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TUTTI_")}
    return subprocess.run([os.path.join(job.BIN, "tutti"), *arguments], capture_output=True, text=True,
                          env={**clean, **variables}, check=False)


class Env(unittest.TestCase):
    def test_value_and_origin(self):
        ran = tutti("env", TUTTI_TIMEOUT="7", TUTTI_LOG="")
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.assertRegex(ran.stdout, r"(?m)^TUTTI_TIMEOUT=7  \(from the environment, equal on all ranks\)$")
        self.assertRegex(ran.stdout, r"(?m)^TUTTI_LOG=warn  \(default\)$")

    def test_list_and_page_name_the_same_variables(self):
        listed = re.findall(r"(?m)^(TUTTI_\w+)=", tutti("env").stdout)
        on_page = re.findall(r"(?m)^\| `(TUTTI_\w+)`", tutti("env", "--markdown").stdout)
        self.assertEqual(listed, on_page)
        self.assertGreater(len(listed), 10)

    def test_a_malformed_value(self):
        ran = tutti("env", TUTTI_BUCKET_BYTES="many")
        self.assertEqual(ran.returncode, 1)
        self.assertRegex(ran.stdout, r'WRONG: TUTTI_BUCKET_BYTES: "many"')

    def test_a_well_formed_value_that_is_no_choice(self):
        ran = tutti("env", TUTTI_BACKEND="gpu")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("TUTTI_BACKEND", ran.stderr)

    def test_an_unknown_name_is_told_with_the_nearest(self):
        ran = tutti("env", TUTTI_TIMOUT="7")
        self.assertEqual(ran.returncode, 0)
        self.assertIn("TUTTI_TIMEOUT", ran.stderr)

    def test_help_fits_a_terminal(self):
        for line in tutti("env").stdout.splitlines():
            self.assertLessEqual(len(line), 100)


class Commands(unittest.TestCase):
    def test_version(self):
        ran = tutti("version")
        self.assertRegex(ran.stdout, r"^tutti (\d+\.\d+\.\d+) \(library \1\)\n$")
        self.assertEqual(tutti("--version").stdout, ran.stdout)

    def test_help_lists_every_command(self):
        ran = tutti("help")
        self.assertEqual(ran.returncode, 0)
        for name in ("ckpt", "env", "help", "version"):
            self.assertRegex(ran.stdout, rf"(?m)^  {name} ")
        self.assertEqual(tutti("--help").stdout, ran.stdout)

    def test_each_command_has_help(self):
        commands = [["env"], ["version"], ["topo"], ["doctor"], ["bench"], ["ckpt"]]
        commands += [["ckpt", name] for name in ("ls", "show", "verify", "diff", "merge", "export", "import", "prune")]
        for command in commands:
            ran = tutti(*command, "--help")
            self.assertEqual((ran.returncode, ran.stderr), (0, ""), command)
            self.assertIn("usage: tutti " + " ".join(command), ran.stdout)

    def test_what_is_wrong_is_said_with_status_2(self):
        for text, *arguments in (("usage",), ("no command 'frobnicate'", "frobnicate"), ("no command ''", ""),
                                 ("no option '--html'", "env", "--html"), ("no arguments", "version", "x")):
            with self.subTest(arguments=arguments):
                ran = tutti(*arguments)
                self.assertEqual((ran.returncode, ran.stdout), (2, ""))
                self.assertIn(text, ran.stderr)

    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "w") as full:
            ran = subprocess.run([os.path.join(job.BIN, "tutti"), "env"], stdout=full, stderr=subprocess.PIPE,
                                 text=True, check=False)
        self.assertEqual(ran.returncode, 1)
        self.assertIn("No space left", ran.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
