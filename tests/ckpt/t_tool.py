# SPDX-License-Identifier: Apache-2.0
"""`tutti ckpt`, from outside. TT_BUILD is the build folder; one test: python3 t_tool.py Class.test_..."""
import json
import os
import random
import resource
import struct
import subprocess
import tempfile
import unittest

BIN = os.path.join(os.environ["TT_BUILD"], "bin")
SIZE = {"F32": 4, "BF16": 2, "I64": 8, "U8": 1, "F64": 8, "F16": 2, "F8_E4M3": 1, "F8_E5M2": 1}


def tool(*arguments, **variables):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TUTTI_")}
    return subprocess.run([os.path.join(BIN, "tutti"), "ckpt", *map(str, arguments)], capture_output=True, text=True,
                          env={**clean, **variables}, check=False)


def safetensors(tensors):
    """{name: (dtype, shape, bytes)} as a file's bytes."""
    header, data = {}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def read_safetensors(raw):
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    return {name: (e["dtype"], e["shape"], raw[8 + size + e["data_offsets"][0]:8 + size + e["data_offsets"][1]])
            for name, e in header.items() if name != "__metadata__"}


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


class Scratch(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="tt-ckpt-tool-")
        self.addCleanup(self.folder.cleanup)
        self.run_dir = self.path("run")

    def path(self, name):
        return os.path.join(self.folder.name, name)

    def put(self, name, raw):
        with open(self.path(name), "wb") as file:
            file.write(raw)
        return self.path(name)

    def get(self, name):
        with open(self.path(name), "rb") as file:
            return file.read()

    def good(self, *arguments):
        ran = tool(*arguments)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        return ran.stdout

    def bad(self, status, says, *arguments):
        ran = tool(*arguments)
        self.assertEqual(ran.returncode, status, ran.stdout + ran.stderr)
        self.assertIn(says, ran.stderr)
        return ran

    def save(self, tensors, step):
        self.good("import", self.put("in.safetensors", safetensors(tensors)), self.run_dir, "--step", step)

    def example(self):
        self.save({"w": ("F32", [2, 3], floats(1, -2, 3, float("nan"), 5, float("inf"))),
                   "layer/b": ("BF16", [], b"\x80\x3f"), "empty": ("I64", [0, 4], b"")}, 7)

    def stored(self, step, name):
        return os.path.join(self.run_dir, f"step-{step:012d}", name)

    def flip(self, path, at):
        with open(path, "r+b") as file:
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1]))


class Look(Scratch):
    def test_ls(self):
        self.example()
        self.save({"w": ("F32", [1], floats(0))}, 8)
        os.unlink(self.stored(8, "index.h5"))
        os.mkdir(os.path.join(self.run_dir, ".tmp-step-000000000009-h-0123456789ab-1-1-0123456789abcdef"))
        listed = json.loads(self.good("ls", self.run_dir, "--json"))
        self.assertEqual([(e["step"], e["whole"]) for e in listed], [(7, True), (8, False), (9, False)])
        self.assertEqual((listed[0]["world"], listed[0]["tensors"]), (1, 3))
        self.assertIn("index.h5 is missing", listed[1]["reason"])
        self.assertTrue(listed[2]["incomplete"])
        text = self.good("ls", self.run_dir)
        self.assertRegex(text, r"(?m)^ +7 .* 1 rank, +3 tensors")
        self.assertRegex(text, r"(?m)^ +8  damaged: ")
        self.assertRegex(text, r"(?m)^ +9  incomplete")

    def test_show(self):
        self.example()
        shown = {t["name"]: t for t in json.loads(self.good("show", self.run_dir, "--json"))["tensors"]}
        self.assertEqual(shown["w"]["shape"], [2, 3])
        self.assertEqual((shown["w"]["min"], shown["w"]["max"], shown["w"]["nan"], shown["w"]["inf"]), (-2, "inf", 1, 1))
        self.assertEqual((shown["layer/b"]["dtype"], shown["layer/b"]["max"]), ("bf16", 1))
        self.assertNotIn("min", shown["empty"])
        only = json.loads(self.good("show", self.stored(7, ""), "layer/*", "--json", "--brief"))["tensors"]
        self.assertEqual([t["name"] for t in only], ["layer/b"])
        self.bad(4, "no tensor matches", "show", self.run_dir, "nothing*")

    def test_nothing_there(self):
        os.mkdir(self.run_dir)
        for command in ("ls", "show", "verify"):
            self.bad(4, "there is no checkpoint", command, self.run_dir)
            self.bad(4, "cannot open", command, self.path("nowhere"))
        self.example()
        self.bad(4, "step-000000000003", "show", self.run_dir, "--step", 3)

    def test_wrong_calls(self):
        self.bad(2, "no option", "ls", self.run_dir, "--fast")
        self.bad(2, "needs a value", "ls", self.run_dir, "--step", "x")
        self.bad(2, "usage", "diff", self.run_dir)
        self.bad(2, "no command", "list")
        self.bad(2, "--keep-last", "prune", self.run_dir)
        self.bad(2, "name the --format", "export", self.run_dir, self.path("x.pt"))
        self.assertEqual(tool().returncode, 2)
        self.assertEqual(tool("help").returncode, 0)


    def test_eight_bits(self):
        self.save({"a": ("F8_E4M3", [4], b"\x7e\xff\x01\xfe"), "b": ("F8_E5M2", [3], b"\x7b\xfc\x7d"),
                   "c": ("F8_E4M3", [], b"\x38")}, 1)
        shown = {t["name"]: t for t in json.loads(self.good("show", self.run_dir, "--json"))["tensors"]}
        self.assertEqual([shown["a"][k] for k in ("dtype", "min", "max", "nan", "inf")], ["f8_e4m3", -448, 448, 1, 0])
        self.assertEqual([shown["b"][k] for k in ("dtype", "min", "max", "nan", "inf")], ["f8_e5m2", "-inf", 57344, 1, 1])
        self.assertEqual(shown["c"]["max"], 1)
        self.good("verify", self.run_dir)
        self.save({"a": ("F8_E4M3", [4], b"\x7e\xff\x01\x7e"), "b": ("F8_E4M3", [3], b"\x7b\xfc\x7d")}, 2)
        told = json.loads(self.bad(3, "", "diff", self.stored(1, ""), self.stored(2, ""), "[ab]", "--json").stdout)
        self.assertEqual([(e["name"], e["what"]) for e in told], [("a", "differs"), ("b", "of another type or shape")])
        self.assertEqual((told[0]["elements"], told[0]["max_abs"]), (1, 896))
        self.good("merge", self.stored(1, ""), self.path("one.h5"))
        dump = subprocess.run(["h5dump", self.path("one.h5")], capture_output=True, text=True, check=True).stdout
        self.assertIn("126, 255, 1, 254", dump)
        self.assertEqual((dump.count("H5T_STD_U8LE"), dump.count("float8_e4m3fn"), dump.count("float8_e5m2")), (3, 2, 1))


class Verify(Scratch):
    def test_good_and_damaged(self):
        self.example()
        self.save({"w": ("F32", [3], floats(1, 2, 3))}, 8)
        self.assertIn("step 8: good", self.good("verify", self.run_dir))
        self.good("verify", self.run_dir, "--all")
        self.flip(self.stored(7, "shard-00000.h5"), 5000)
        self.bad(3, "checksum", "verify", self.run_dir, "--step", 7)
        self.bad(3, "checksum", "verify", self.stored(7, ""))
        told = json.loads(self.bad(3, "checksum", "verify", self.run_dir, "--all", "--json").stdout)
        self.assertEqual({e["step"]: e["good"] for e in told}, {7: False, 8: True})

    def test_newest_whole_is_taken(self):
        self.example()
        self.save({"w": ("F32", [3], floats(1, 2, 3))}, 8)
        self.flip(self.stored(8, "manifest.json"), 100)
        self.assertIn("step 7: good", self.good("verify", self.run_dir))

    def test_every_file(self):
        self.example()
        for name in ("shard-00000.h5", "index.h5", "manifest.json"):
            path = self.stored(7, name)
            for at in (0, os.path.getsize(path) // 2, os.path.getsize(path) - 1):
                self.flip(path, at)
                self.bad(3, "", "verify", self.stored(7, ""))
                self.flip(path, at)
        self.good("verify", self.run_dir)


class Diff(Scratch):
    def test_equal_and_different(self):
        nan = floats(1, float("nan"), 3)
        self.save({"a": ("F32", [3], nan), "b": ("F32", [2], floats(1, 2)), "c": ("I64", [1], b"\0" * 8)}, 1)
        self.save({"a": ("F32", [3], nan), "b": ("F32", [2], floats(1, 2.5)), "d": ("I64", [1], b"\0" * 8)}, 2)
        self.assertIn("3 tensors, all equal", self.good("diff", self.stored(1, ""), self.stored(1, "")))
        told = json.loads(self.bad(3, "", "diff", self.stored(1, ""), self.stored(2, ""), "--json").stdout)
        self.assertEqual([(e["name"], e["what"]) for e in told],
                         [("b", "differs"), ("c", "only in the first"), ("d", "only in the second")])
        self.assertEqual((told[0]["elements"], told[0]["of"], told[0]["max_abs"]), (1, 2, 0.5))
        self.good("diff", self.stored(1, ""), self.stored(2, ""), "a")
        self.save({"b": ("F32", [3], nan)}, 3)
        self.assertIn("another type or shape", self.bad(3, "", "diff", self.stored(2, ""), self.stored(3, ""), "b").stdout)


class Move(Scratch):
    def test_safetensors_there_and_back(self):
        rng = random.Random(1)
        for turn in range(4):
            tensors = {}
            for i in range(rng.randrange(1, 40)):
                shape = [rng.randrange(0, 7) for _ in range(rng.randrange(0, 4))]
                dtype = rng.choice(list(SIZE))
                count = SIZE[dtype]
                for extent in shape:
                    count *= extent
                tensors[f"g{i % 3}/t.{i}"] = (dtype, shape, rng.randbytes(count))
            self.save(tensors, turn)
            self.good("export", self.stored(turn, ""), self.path("out.safetensors"))
            self.assertEqual(read_safetensors(self.get("out.safetensors")), tensors)
            self.good("import", self.path("out.safetensors"), self.path(f"again{turn}"))
            self.good("diff", self.stored(turn, ""), self.path(f"again{turn}"))

    def test_the_reference_reads_it(self):
        try:
            from safetensors import safe_open
        except ImportError:
            self.skipTest("the package safetensors is not installed")
        self.example()
        self.good("export", self.run_dir, self.path("out.safetensors"))
        with safe_open(self.path("out.safetensors"), framework="numpy") as file:
            self.assertEqual(set(file.keys()), {"w", "layer/b", "empty"})
            self.assertEqual(file.get_tensor("w")[1].tobytes(), floats(float("nan"), 5, float("inf")))

    def test_bad_safetensors(self):
        one = safetensors({"w": ("F32", [2], floats(1, 2))})
        cases = {"short": b"abc", "long header": struct.pack("<Q", 1 << 40) + one[8:], "no json": struct.pack("<Q", 3) + b"{ab",
                 "trailing": one + b"x", "cut": one[:-1],
                 "size": one.replace(b'"shape": [2]', b'"shape": [3]'), "negative": one.replace(b"[0, 8]", b"[8, 0]"),
                 "bomb": one.replace(b"[2]", b"[999999999999]") + b"", "type": one.replace(b"F32", b"F8X"),
                 "name": one.replace(b'"w"', b'"?"'), "up": one.replace(b'"w"', b'"../w"'), "of a rank": one.replace(b'"w"', b'"rank/0"'),
                 "in another": safetensors({"a/b": ("F32", [1], floats(1)), "a": ("F32", [1], floats(1))})}
        for name, raw in cases.items():
            with self.subTest(name):
                if name in ("bomb", "up", "of a rank"):
                    size = raw.index(b"}}") + 2 - 8
                    raw = struct.pack("<Q", size) + raw[8:]
                ran = tool("import", self.put("bad.safetensors", raw), self.run_dir)
                self.assertIn(ran.returncode, (1, 3), ran.stderr)
                self.assertIn("bad.safetensors", ran.stderr)
                self.assertFalse(os.path.exists(self.run_dir), name)

    def llmc(self, version):
        rng = random.Random(version)
        layers, width, vocabulary, padded, context = 2, 24, 50, 64, 16
        header = [20240326, version, context, vocabulary, layers, 3, width, padded] + [0] * 248
        header[200] = 4711
        count = padded * width + context * width + layers * (12 * width * width + 13 * width) + 2 * width
        return struct.pack("<256i", *header) + rng.randbytes(count * (4 if version == 3 else 2))

    def test_llmc_there_and_back(self):
        for version in (3, 5):
            self.put("model.bin", self.llmc(version))
            self.good("import", self.path("model.bin"), self.run_dir, "--step", version)
            self.good("export", self.stored(version, ""), self.path("back.bin"))
            self.assertEqual(self.get("model.bin"), self.get("back.bin"))
        self.bad(1, "there already", "import", self.path("model.bin"), self.run_dir, "--step", 5)

    def test_bad_llmc(self):
        good = self.llmc(3)
        for raw in (good[:100], b"\0" * 2000, good[:-1], good + b"x", good[:16] + b"\xff" * 4 + good[20:]):
            self.bad(3, "bad.bin", "import", self.put("bad.bin", raw), self.run_dir)
        self.example()
        self.bad(4, "llmc.header", "export", self.run_dir, self.path("x.bin"))
        self.assertFalse(os.path.exists(self.path("x.bin")))

    def test_merge(self):
        self.example()
        told = json.loads(self.good("merge", self.run_dir, self.path("one.h5"), "--json"))
        self.assertEqual(told["tensors"], 3)
        dump = subprocess.run(["h5dump", "-d", "/w", self.path("one.h5")], capture_output=True, text=True, check=True).stdout
        self.assertIn("(0,0): 1, -2, 3,", dump)
        self.assertIn("(1,0): nan, 5, inf", dump)
        self.bad(1, "cannot write", "merge", self.run_dir, self.path("no/such/one.h5"))
        self.flip(self.stored(7, "shard-00000.h5"), 4096)
        os.unlink(self.path("one.h5"))
        self.bad(3, "", "merge", self.stored(7, ""), self.path("one.h5"))
        self.assertEqual([n for n in os.listdir(self.folder.name) if "one.h5" in n], [])


    def test_a_limit_on_files(self):
        self.save({"w": ("F32", [50000], b"\0" * 200000)}, 1)
        for command in ("export", "merge"):
            ran = subprocess.run([os.path.join(BIN, "tutti"), "ckpt", command, self.run_dir, self.path("out.safetensors")],
                                 capture_output=True, text=True, check=False,
                                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536)))
            self.assertEqual(ran.returncode, 1, ran.stderr)
            self.assertIn("File too large", ran.stderr)
            self.assertEqual([n for n in os.listdir(self.folder.name) if "out." in n], [])


class Prune(Scratch):
    def test_prune(self):
        for step in range(6):
            self.save({"w": ("F32", [1], floats(step))}, step)
        keep = ("--keep-last", 2, "--keep-every", 3)
        self.assertEqual(json.loads(self.good("prune", self.run_dir, *keep, "--dry-run", "--json")), [2, 1])
        self.assertEqual(len(json.loads(self.good("ls", self.run_dir, "--json"))), 6)
        self.assertEqual(json.loads(self.good("prune", self.run_dir, *keep, "--json")), [2, 1])
        self.assertEqual([e["step"] for e in json.loads(self.good("ls", self.run_dir, "--json"))], [0, 3, 4, 5])

    def test_damaged_ones_do_not_push_out_the_good_one(self):
        for step in range(5):
            self.save({"w": ("F32", [4], floats(1, 2, 3, step))}, step)
        for step in (3, 4):
            path = self.stored(step, "shard-00000.h5")
            self.flip(path, os.path.getsize(path) - 8)
        self.bad(3, "", "verify", self.run_dir)
        for dry in (["--dry-run"], []):
            self.assertEqual(json.loads(self.good("prune", self.run_dir, "--keep-last", 1, "--json", *dry)), [1, 0])
        self.assertEqual([e["step"] for e in json.loads(self.good("ls", self.run_dir, "--json"))], [2, 3, 4])
        self.good("verify", self.run_dir, "--step", 2)

    def test_a_folder_in_use(self):
        self.example()
        with open(os.path.join(self.run_dir, ".lease"), "w", encoding="ascii") as file:
            file.write(".tmp-step-000000000000-elsewhere-0123456789ab-7-7-0123456789abcdef")
        ran = tool("prune", self.run_dir, "--keep-last", 1, TUTTI_CKPT_LOCK="lease", TUTTI_CKPT_WAIT_LOCK="0")
        self.assertEqual(ran.returncode, 1)
        self.assertIn("process 7 on elsewhere", ran.stderr)


@unittest.skipUnless(os.path.exists(os.path.join(BIN, "gpt")), "the examples are not built")
class Parts(Scratch):
    """Two ranks with folders of their own, as nodes with disks of their own have them."""

    def setUp(self):
        super().setUp()
        self.part = [self.path("a"), self.path("b")]
        run = ["mpirun", "--oversubscribe", "--bind-to", "none"] + (["--allow-run-as-root"] if os.getuid() == 0 else [])
        for i, folder in enumerate(self.part):
            os.mkdir(folder)
            run += ([":"] if i > 0 else []) + ["-np", "1", "-wdir", folder, "env", f"TUTTI_HOST_ID=node-{i}", os.path.join(BIN, "gpt"), "--steps", "2", "--every", "1",
                    "--keep", "0", "--layers", "1", "--width", "16", "--heads", "1", "--context", "8", "--batch", "2", "--sample", "0",
                    "--zero", "1", "--device", "host", "--text", __file__, "--ckpt", "run", "--ckpt-node-local"]
        ran = subprocess.run(run, capture_output=True, text=True, timeout=110, check=False)
        self.assertEqual(ran.returncode, 0, ran.stderr)
        self.runs = [os.path.join(folder, "run") for folder in self.part]
        self.steps = sorted(int(name[5:]) for name in os.listdir(self.runs[0]) if name.startswith("step-"))
        self.assertEqual(len(self.steps), 3)

    def test_a_part(self):
        for run in self.runs:
            self.assertEqual([e["step"] for e in json.loads(self.good("ls", run, "--json"))], self.steps)
            self.good("verify", run, "--all")
            keep = ("prune", run, "--keep-last", "1", "--json")
            ran = tool(*keep)
            self.assertEqual((ran.returncode, json.loads(ran.stdout)), (0, []), ran.stderr)
            self.assertIn("one node's part", ran.stderr)
            self.bad(2, "is no step", *keep, "x")
            # the newest is not whole elsewhere: the one before it is the last
            self.assertEqual(json.loads(self.good(*keep, self.steps[0], self.steps[1])), [self.steps[0]])
            self.assertEqual([e["step"] for e in json.loads(self.good("ls", run, "--json"))], self.steps[1:])
        whole = self.path("whole")  # the parts, copied together, are an ordinary checkpoint
        for run in self.runs:
            subprocess.run(["cp", "-r", run + "/.", whole], check=True)
        self.good("verify", whole, "--all")
        self.good("merge", whole, self.path("one.h5"))


if __name__ == "__main__":
    unittest.main()
