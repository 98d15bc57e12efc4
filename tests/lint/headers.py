#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""headers.py CC CXX ROOT: each public header compiles alone as pedantic C11 and C++17, and so does a variable made with
each of its TUTTI_*_INIT macros."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

FOLDERS = ("runtime/include", "collectives/include")
WARN = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Werror", "-fsyntax-only"]


def mpi_flags():
    out = subprocess.run(["mpicc", "--showme:incdirs"], check=True, capture_output=True, text=True).stdout
    return [flag for folder in out.split() for flag in ("-isystem", folder)]


FOREIGN = {"interop_cuda.h": "cuda_runtime_api.h", "interop_nccl.h": "nccl.h"}


def cuda_flags():
    """Where the CUDA headers lie, if they do."""
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    folder = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(nvcc))), "include")
    return ["-isystem", folder] if os.path.exists(os.path.join(folder, "cuda_runtime_api.h")) else []


def has(header, compiler, extra):
    return subprocess.run(compiler + ["-fsyntax-only"] + extra + ["-"], input=f"#include <{header}>\n", text=True,
                          capture_output=True).returncode == 0


def program(header, text):
    """A file that includes the header twice, alone, and uses its initialisers."""
    lines = [f'#include "tutti/{header}"', f'#include "tutti/{header}"', "int main(void);", "int main(void)", "{"]
    for number, macro in enumerate(sorted(set(re.findall(r"#define TUTTI_(\w+)_INIT\b", text)))):
        lines += [f"    tutti_{macro.lower()} v{number} = TUTTI_{macro}_INIT;",
                  f"    if (v{number}.size != sizeof v{number})", "        return 1;"]
    return "\n".join(lines + ["    return 0;", "}", ""])


def check(root, compilers, extra):
    headers = [(folder, name) for folder in FOLDERS
               for name in sorted(os.listdir(os.path.join(root, folder, "tutti"))) if name.endswith(".h")]
    paths = [f"-I{os.path.join(root, folder)}" for folder in FOLDERS]
    for folder, name in headers:
        with open(os.path.join(root, folder, "tutti", name), encoding="utf-8") as f:
            source = program(name, f.read())
        for compiler in compilers:
            if name in FOREIGN and not has(FOREIGN[name], compiler, extra):
                print(f"{name} was not compiled: there is no {FOREIGN[name]}")
                continue
            run = subprocess.run(compiler + WARN + paths + extra + ["-"], input=source, capture_output=True, text=True)
            if run.returncode != 0:
                yield f"{name} with {' '.join(compiler)}:\n{run.stderr}"
    if not headers:
        yield "no headers"


def samples(compilers):
    bad = ["size_t f(void);\n",  # needs an include
           "#include <stddef.h>\nint f(int class);\n",  # no C++
           "#include <stddef.h>\nstruct s { int a; };;\n",  # not pedantic
           "#include <stddef.h>\ntypedef struct tutti_o { size_t size; int x; } tutti_o;\n#define TUTTI_O_INIT {1, 0}}\n"]
    for text in bad + ["#pragma once\n#include <stddef.h>\nsize_t f(void);\n"]:
        root = tempfile.mkdtemp()
        for folder in FOLDERS:
            os.makedirs(os.path.join(root, folder, "tutti"))
        with open(os.path.join(root, FOLDERS[0], "tutti", "a.h"), "w", encoding="utf-8") as f:
            f.write(text if text.startswith("#pragma") else "#ifndef A_H\n#define A_H\n" + text + "#endif\n")
        found = list(check(root, compilers, []))
        shutil.rmtree(root)
        assert bool(found) == (text in bad), (text, found)


def main():
    cc, cxx = sys.argv[1:3]
    compilers = [[cc, "-std=c11", "-x", "c"], [cxx, "-std=c++17", "-x", "c++"]]
    if sys.argv[3] == "--samples":
        samples(compilers)
        return 0
    findings = list(check(sys.argv[3], compilers, mpi_flags() + cuda_flags()))
    print("\n".join(findings))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
