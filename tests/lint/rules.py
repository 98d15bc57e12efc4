# SPDX-License-Identifier: Apache-2.0
"""The lints that read sources only. Each takes a tree (path -> text) and yields findings.

Beside each rule stand samples that must be found (BAD) and one that must pass (GOOD): `lint.py NAME --samples` runs them,
so a lint that finds nothing cannot stay unnoticed.
"""
import re
import statistics

from source import (api_declarations, blank, functions, in_library, is_public_header)

# layers

# What a folder may include besides itself. Public headers are named by their noun; a seam is a header below which the
# folder lives although the rest of that other folder lies above it.
_CORE = {"core"}
_DEVICE = _CORE | {"device"}
_BOOT = _DEVICE | {"boot"}
_BELOW = _BOOT | {"topo", "trace"}
_RUNTIME_API = {"status", "version", "context", "stream"}
_COLL_API = _RUNTIME_API | {"comm", "coll"}
_SEAM = {"comm/comm.h", "comm/key.h", "comm/math.h"}
_SEAMS = {"collectives/host": _SEAM, "collectives/nccl": _SEAM,
          "collectives/cuda": {"comm/math.h", "comm/exact.h", "comm/exact_body.h"}, "collectives/comm": {"host/kernels.h"}}
LAYERS = {
    # folder: (internal folders, public headers)
    "runtime/core": (_CORE, {"status", "version"}),
    "runtime/device": (_DEVICE, _RUNTIME_API),
    "runtime/boot": (_BOOT, _RUNTIME_API),
    "runtime/topo": (_DEVICE | {"topo"}, _RUNTIME_API | {"topo"}),
    "runtime/trace": (_CORE | {"trace"}, {"status", "version"}),
    "runtime/ckpt": (_BOOT | {"ckpt"}, _RUNTIME_API | {"ckpt"}),
    "runtime/include/tutti": (set(), _RUNTIME_API | {"ckpt", "topo"}),
    "collectives/host": (_BELOW | {"host"}, _COLL_API),
    "collectives/nccl": (_BELOW | {"nccl", "cuda"}, _COLL_API),
    "collectives/cuda": (_DEVICE | {"cuda"}, {"status"}),
    "collectives/comm": (_BELOW | {"comm", "host"}, _COLL_API),
    "collectives/reducer": (_BELOW | {"comm", "reducer"}, _COLL_API | {"reducer", "ckpt"}),
    "collectives/parallel": (_BELOW | {"comm", "parallel"}, _COLL_API | {"pipeline", "tensor_parallel"}),
    "collectives/mesh": (_BELOW | {"comm", "mesh"}, _COLL_API | {"mesh"}),
    "collectives": (_BELOW | {"comm", "host", "mesh", "nccl", "reducer"}, _COLL_API | {"mesh", "reducer", "ckpt"}),
    "collectives/include/tutti": (set(), _COLL_API | {"mesh", "pipeline", "reducer", "tensor_parallel", "ckpt", "version", "topo", "tutti"}),
}
# Who may include a foreign header. Patterns of paths.
FOREIGN = {
    "mpi.h": r"runtime/boot/mpi\.c|runtime/include/tutti/interop_mpi\.h",
    "hdf5.h": r"runtime/ckpt/h5\w*\.[ch]",
    "hwloc.h": r"runtime/(boot|topo)/\w+\.c",
    "jansson.h": r"runtime/(ckpt|topo)/\w+\.[ch]",
    "xxhash.h": r"runtime/core/hash\.[ch]",
    "expat.h": r"runtime/topo/\w+\.c",
    "cuda_runtime_api.h": r"runtime/device/cuda\w*\.[ch]|collectives/cuda/\w+\.(cu|h)|runtime/include/tutti/interop_cuda\.h",
    "nccl.h": r"collectives/nccl/\w+\.[ch]|collectives/include/tutti/interop_nccl\.h",
    "nvml.h": r"runtime/topo/\w+\.c",
}
ONCE = {"hwloc.h", "xxhash.h"}  # these have one includer at most
PUBLIC_STD = {"stddef.h", "stdint.h", "stdbool.h"}
CUDA_SWITCH = {"runtime/device/backends.c", "collectives/backends.c"}
_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*(?:<([^>]+)>|"([^"]+)")', re.M)


def _quoted_include(path, folder, name):
    internal, public = LAYERS[folder]
    if name in _SEAMS.get(folder, ()):
        return None
    top, _, rest = name.rpartition("/")
    if top == "tutti":
        noun = rest[:-2]
        if noun.startswith("interop"):
            return f"the library does not include {name}"
        return None if noun in public else f"{folder} lies below the public header {name}"
    if not top:
        return f'"{name}" says no folder: include it relative to runtime/ or collectives/'
    if is_public_header(path):
        return f"a public header includes the internal {name}"
    return None if top in internal else f"{folder} may not include {name}"


def layers(tree):
    """Nothing includes upwards; each foreign header has its includers; CUDA is chosen in two files."""
    includers = {}
    for path, text in tree.items():
        if not in_library(path):
            continue
        folder = path.rpartition("/")[0]
        if folder not in LAYERS:
            yield f"{path}: the folder {folder} stands in no layer (tests/lint/rules.py)"
            continue
        for match in _INCLUDE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            angle, quoted = match.groups()
            if quoted:
                why = _quoted_include(path, folder, quoted)
                if why:
                    yield f"{path}:{line}: {why}"
            elif angle in FOREIGN:
                includers.setdefault(angle, []).append(path)
                if not re.fullmatch(FOREIGN[angle], path):
                    yield f"{path}:{line}: only {FOREIGN[angle]} may include {angle}"
            elif is_public_header(path) and angle not in PUBLIC_STD:
                yield f"{path}:{line}: a public header includes <{angle}>; only {', '.join(sorted(PUBLIC_STD))}"
        for match in re.finditer(r"^[ \t]*#[ \t]*(?:el)?if.*TUTTI_HAVE_CUDA", text, re.M):
            if path not in CUDA_SWITCH:
                line = text.count("\n", 0, match.start()) + 1
                yield f"{path}:{line}: TUTTI_HAVE_CUDA is asked only in {' and '.join(sorted(CUDA_SWITCH))}"
    for header in ONCE:
        if len(includers.get(header, [])) > 1:
            yield f"{', '.join(includers[header])}: {header} has more than one includer"
    yield from _programs(tree)


def _programs(tree):
    """Examples are what a user could have written; benchmarks too, but for helpers of the programs and device copies."""
    for path, text in tree.items():
        if not path.startswith(("examples/", "benchmarks/")):
            continue
        for match in _INCLUDE.finditer(text):
            name = match.group(2)
            if name is None or name.startswith("tutti/") or "/" not in name:
                continue
            if path.startswith("benchmarks/") and (name.startswith("core/") or name == "boot/context.h"):
                continue
            if name.startswith(("core/", "device/", "boot/", "topo/", "trace/", "ckpt/", "comm/", "host/", "mesh/", "nccl/", "reducer/")):
                line = text.count("\n", 0, match.start()) + 1
                yield f"{path}:{line}: examples and benchmarks use public headers only, not {name}"


layers.BAD = [
    ({"runtime/core/a.c": '#include "boot/boot.h"\n'}, "may not include boot/boot.h"),
    ({"runtime/ckpt/a.c": '#include "comm/comm.h"\n'}, "may not include comm/comm.h"),
    ({"runtime/boot/a.h": '#include "tutti/reducer.h"\n'}, "lies below the public header"),
    ({"collectives/host/a.c": '#include "comm/group.h"\n'}, "may not include comm/group.h"),
    ({"collectives/comm/a.c": '#include "reducer/plan.h"\n'}, "may not include reducer/plan.h"),
    ({"runtime/core/a.c": '#include "log.h"\n'}, "says no folder"),
    ({"runtime/boot/threads.c": "#include <mpi.h>\n"}, "may include mpi.h"),
    ({"runtime/ckpt/save.c": "#  include <hdf5.h>\n"}, "may include hdf5.h"),
    ({"runtime/boot/a.c": "#include <hwloc.h>\n", "runtime/topo/b.c": "#include <hwloc.h>\n"}, "more than one includer"),
    ({"runtime/include/tutti/a.h": "#include <stdio.h>\n"}, "public header includes <stdio.h>"),
    ({"runtime/include/tutti/a.h": '#include "core/log.h"\n'}, "includes the internal"),
    ({"runtime/boot/a.c": '#include "tutti/interop_mpi.h"\n'}, "does not include tutti/interop_mpi.h"),
    ({"runtime/device/host.c": "#if TUTTI_HAVE_CUDA\n#endif\n"}, "asked only in"),
    ({"runtime/device/host.c": "#if defined(X) && defined(TUTTI_HAVE_CUDA)\n#endif\n"}, "asked only in"),
    ({"runtime/new/a.c": "int x;\n"}, "stands in no layer"),
    ({"examples/hello.c": '#include "core/log.h"\n'}, "public headers only"),
    ({"benchmarks/a.c": '#include "core/mem.h"\n#include "host/host.h"\n'}, "public headers only, not host/host.h"),
]
layers.GOOD = {
    "runtime/boot/mpi.c": '#include <mpi.h>\n#include "boot/boot.h"\n#include "core/log.h"\n',
    "collectives/host/a.c": '#include "comm/comm.h"\n#include "host/kernels.h"\n',
    "collectives/backends.c": "#if TUTTI_HAVE_CUDA\n#endif\n",
    "examples/hello.c": '#include <tutti/tutti.h>\n',
}

# size

MAX_FILE, MAX_FUNCTION, MAX_PARAMETERS, MAX_COLLECTIVE_PARAMETERS, MAX_COMPLEXITY = 600, 100, 6, 7, 15


# Calls that move data name the other side too: comm or bootstrap, in, out, count, type, root or peer, stream or request.
_MOVES_DATA = re.compile(r"\btutti_stream\b|\btt_channel\b")


def _parameter_limit(head):
    return MAX_COLLECTIVE_PARAMETERS if _MOVES_DATA.search(head) else MAX_PARAMETERS


def _complexity(body):
    """Cyclomatic, a switch counted once whatever its cases: a table of names is not hard to read."""
    branches = re.findall(r"\b(?:if|for|while|switch)\b|&&|\|\||\?", body)
    return 1 + len(branches)


def size(tree):
    """Files, functions, parameters and branches within their limits (the distribution: sizes)."""
    for path, text in tree.items():
        lines = text.count("\n")
        if lines > MAX_FILE:
            yield f"{path}: {lines} lines, more than {MAX_FILE}"
        for f in functions(text):
            if f.lines > MAX_FUNCTION:
                yield f"{path}:{f.first}: {f.name} has {f.lines} lines, more than {MAX_FUNCTION}"
            if not in_library(path):
                continue
            limit = _parameter_limit(f.head)
            if len(f.parameters) > limit:
                yield f"{path}:{f.first}: {f.name} has {len(f.parameters)} parameters, more than {limit}"
            if _complexity(f.body) > MAX_COMPLEXITY:
                yield f"{path}:{f.first}: {f.name} has {_complexity(f.body)} branches, more than {MAX_COMPLEXITY}"
        if is_public_header(path):
            for d in api_declarations(text):
                limit = _parameter_limit(d.text)
                if len(d.parameters) > limit:
                    yield f"{path}:{d.line}: {d.name} has {len(d.parameters)} parameters, more than {limit}"


def size_report(tree):
    lengths = sorted(f.lines for path, text in tree.items() if in_library(path) for f in functions(text))
    files = sorted(text.count("\n") for path, text in tree.items() if in_library(path) and path.endswith(".c"))
    if not lengths or not files:
        return "no functions"
    return (f"library: {len(files)} files, median {statistics.median(files):.0f} and at most {files[-1]} lines; "
            f"{len(lengths)} functions, median {statistics.median(lengths):.0f}, "
            f"p90 {lengths[int(0.9 * (len(lengths) - 1))]}, longest {lengths[-1]} lines")


_LONG = "static int f(int a)\n{\n" + "    a++;\n" * 99 + "}\n"
size.BAD = [
    ({"runtime/core/a.c": "int x;\n" * 601}, "601 lines"),
    ({"tests/unit/a.c": _LONG}, "f has 102 lines"),
    ({"collectives/comm/a.c": "void f(int a, int b, int c, int d, int e, int (*g)(int, int), int h)\n{\n}\n"},
     "7 parameters"),
    ({"collectives/include/tutti/a.h": "TUTTI_API int f(int a, int b, int c, int d, int e, int f, int g);\n"},
     "7 parameters"),
    ({"runtime/core/a.c": "int f(int a)\n{\n" + "    if (a)\n        a++;\n" * 15 + "}\n"}, "16 branches"),
    ({"runtime/core/a.h": 'extern "C" {\n' + _LONG + "}\n"}, "f has 102 lines"),
]
size.GOOD = {
    "runtime/core/a.c": "int f(int a)\n{\n    return a ? 1 : 2; /* if if { { */\n}\nstatic int table[] = {1, 2};\n",
    "collectives/comm/a.c": "int f(int a, int b, int c, int d, int e, int g, tutti_stream s)\n{\n}\n",
}

# labels


def labels(tree):
    """A label block may not end in `return TUTTI_OK`: it would turn the failure that led there into success."""
    for path, text in tree.items():
        for f in functions(text):
            block = None
            for number, line in enumerate(f.body.split("\n"), f.body_line):
                label = re.match(r"\s*(\w+):(?!:)\s*(.*)$", line)
                if label and label.group(1) != "default":
                    block = label.group(1)
                    line = label.group(2)
                if block and re.search(r"\breturn\s+(TUTTI_OK|0)\s*;", line) and "tutti_status" in f.head:
                    yield f"{path}:{number}: {f.name}: the block of label '{block}' ends in success"


labels.BAD = [
    ({"runtime/core/a.c": "tutti_status f(void)\n{\n    goto free_x;\nfree_x:\n    free(x);\n    return TUTTI_OK;\n}\n"},
     "'free_x' ends in success"),
    ({"runtime/core/a.c": "tutti_status f(void)\n{\nout: return TUTTI_OK;\n}\n"}, "'out' ends in success"),
]
labels.GOOD = {"runtime/core/a.c": "tutti_status f(int a)\n{\n    switch (a) {\n    default:\n        return TUTTI_OK;\n    }\n"
                                   "    return TUTTI_OK;\nfree_x:\n    return status;\n}\n"}

# banned

# function: the files that may call it (a pattern) and what to do instead.
BANNED = {
    "exit": (r"runtime/boot/abort\.c", "return a status"),
    "_exit": (r"runtime/boot/abort\.c", "return a status"),
    "_Exit": (r"runtime/boot/abort\.c", "return a status"),
    "quick_exit": ("", "return a status"),
    "abort": (r"runtime/boot/abort\.c|runtime/core/\w+\.c", "TT_ASSERT, or return a status"),
    "assert": ("", "TT_ASSERT"),
    "printf": ("", "tt_log_*"),
    "puts": ("", "tt_log_*"),
    "putchar": ("", "tt_log_*"),
    "perror": ("", "tt_fail"),
    "sprintf": ("", "snprintf"),
    "vsprintf": ("", "vsnprintf"),
    "strcpy": ("", "memcpy of a known length, or snprintf"),
    "strcat": ("", "snprintf"),
    "strncpy": ("", "snprintf"),
    "gets": ("", "fgets"),
    "alloca": ("", "the heap"),
    "strtok": ("", "strtok_r"),
    "rand": ("", "a generator with its own state"),
    "system": ("", "nothing: a library starts no shell"),
    "tmpnam": ("", "O_TMPFILE or mkdtemp"),
    "mktemp": ("", "O_TMPFILE or mkdtemp"),
    "getenv": (r"runtime/core/env\.c|runtime/boot/(mpi|launcher|parity|environment)\.c|"
               r"runtime/device/cuda_choose\.c|collectives/comm/variables\.c|collectives/nccl/feature\.c",
               "a row of the table in core/env.h"),
    "usleep": ("", "tt_wait, which has a deadline"),
}


def banned(tree):
    """Calls that library code may not make."""
    pattern = re.compile(r"(?<![\w.>])(" + "|".join(BANNED) + r")\s*\(")
    for path, text in tree.items():
        if not in_library(path):
            continue
        code = blank(text)
        for match in pattern.finditer(code):
            where, instead = BANNED[match.group(1)]
            if where and re.fullmatch(where, path):
                continue
            line = code.count("\n", 0, match.start()) + 1
            yield f"{path}:{line}: {match.group(1)}() in library code; use {instead}"
        for match in re.finditer(r"\bf(?:printf|puts|putc)\s*\(\s*stdout|,\s*stdout\s*\)", code):
            line = code.count("\n", 0, match.start()) + 1
            yield f"{path}:{line}: the library writes nothing to stdout"


banned.BAD = [({"runtime/core/a.c": f"void f(void)\n{{\n    {name}(x);\n}}\n"}, f"a.c:3: {name}()")
              for name in BANNED if name != "abort"]
banned.BAD += [
    ({"runtime/ckpt/a.c": "void f(void)\n{\n    abort();\n}\n"}, "abort()"),
    ({"runtime/core/a.c": 'void f(void)\n{\n    fprintf(stdout, "x");\n}\n'}, "writes nothing to stdout"),
    ({"runtime/core/a.c": 'void f(void)\n{\n    fputs("x", stdout);\n}\n'}, "writes nothing to stdout"),
]
banned.GOOD = {
    "runtime/core/env.c": "/* printf(x) */\nvoid f(void)\n{\n    getenv(\"exit(\");\n    boot->ops->abort(boot, 1);\n}\n",
    "runtime/boot/abort.c": "void f(void)\n{\n    _exit(1);\n}\n",
    "examples/hello.c": "int main(void)\n{\n    printf(\"x\");\n}\n",
}

# docs

FACTS = ("Collective:", "Blocks:", "Stream:", "Threads:", "Graph-capture:", "After a failure:")


def _words(comment):
    return " ".join(re.sub(r"^\s*\*", " ", comment.replace("/*", "  ").replace("*/", "  "), flags=re.M).split())


def header_docs(tree):
    """Every public function states the six facts: itself, through its group's comment, or "as NAME"."""
    for path, text in tree.items():
        if not is_public_header(path):
            continue
        first = re.search(r"/\*(?!\s*SPDX).*?\*/", text, re.S)
        general = _words(first.group(0)) if first else ""
        covers_all = "All of them" in general and all(fact in general for fact in FACTS)
        declared = api_declarations(text)
        stated = {d.name for d in declared if all(fact in _words(d.comment) for fact in FACTS)}
        for d in declared:
            words = _words(d.comment)
            if not words:
                yield f"{path}:{d.line}: {d.name} has no comment"
                continue
            rules_as = re.search(r"rules as (\w+)", words)
            if covers_all or (rules_as and ("tutti_reducer_" + rules_as.group(1) in stated or rules_as.group(1) in stated)):
                continue
            missing = [fact.rstrip(":") for fact in FACTS if fact not in words]
            if missing:
                yield f"{path}:{d.line}: the comment of {d.name} does not say: {', '.join(missing)}"


_FACTS_TEXT = "Collective: no. Blocks: no. Stream: none. Threads: any.\n * Graph-capture: allowed. After a failure:\n * allowed."
header_docs.BAD = [
    ({"runtime/include/tutti/a.h": "TUTTI_API int f(void);\n"}, "has no comment"),
    ({"runtime/include/tutti/a.h": "/* Does. */\nTUTTI_API int f(void);\n"}, "does not say: Collective"),
    ({"runtime/include/tutti/a.h": "/* " + _FACTS_TEXT.replace("Threads: any.", "") + " */\nTUTTI_API int f(void);\n"},
     "does not say: Threads"),
    ({"runtime/include/tutti/a.h": "/* " + _FACTS_TEXT + " */\nTUTTI_API int f(void);\n\nTUTTI_API int g(void);\n"},
     "g has no comment"),
    ({"runtime/include/tutti/a.h": "/* Errors and rules as h. */\nTUTTI_API int f(void);\n"}, "does not say"),
]
header_docs.GOOD = {
    "runtime/include/tutti/a.h": "/* One. " + _FACTS_TEXT + " */\nTUTTI_API int f(void);\nTUTTI_API int g(void);\n\n"
                                 "/* Errors and rules as f. */\nTUTTI_API int h(void);\n",
    "runtime/include/tutti/b.h": "/* SPDX x */\n/* All of them: " + _FACTS_TEXT + " */\n#define X\n\n/* Does. */\nTUTTI_API int f(void);\n",
}

# form


def form(tree):
    """SPDX first; a .c file of over 150 lines opens with its design note; no dead code; no banners."""
    for path, text in tree.items():
        lines = text.split("\n")
        if "SPDX-License-Identifier: Apache-2.0" not in lines[0]:
            yield f"{path}:1: the first line is no SPDX line"
        if in_library(path) and path.endswith(".c") and text.count("\n") > 150:
            note = re.match(r"\s*/\*(.*?)\*/", "\n".join(lines[1:]), re.S)
            if not note or note.group(1).count("\n") < 4:
                yield f"{path}: over 150 lines without a design note of 5 lines after the SPDX line"
        for number, line in enumerate(lines, 1):
            if re.match(r"\s*#\s*if\s+0\b", line):
                yield f"{path}:{number}: #if 0"
            if re.search(r"/\*\s*[-=*]{8,}", line) or re.match(r"\s*/[/*]+\s*[-=*/]{8,}", line):
                yield f"{path}:{number}: a banner"
            if re.search(r"\b(?:TODO|FIXME|XXX)\b", line) and not path.startswith("tests/lint/"):
                yield f"{path}:{number}: unfinished business"


form.BAD = [
    ({"runtime/core/a.c": "int x;\n"}, "no SPDX"),
    ({"runtime/core/a.c": "/* SPDX-License-Identifier: Apache-2.0 */\n" + "int x;\n" * 151}, "design note"),
    ({"runtime/core/a.c": "/* SPDX-License-Identifier: Apache-2.0 */\n#if 0\n#endif\n"}, "#if 0"),
    ({"runtime/core/a.c": "/* SPDX-License-Identifier: Apache-2.0 */\n/* ---------- helpers ------- */\n"}, "a banner"),
    ({"tests/unit/a.c": "/* SPDX-License-Identifier: Apache-2.0 */\n/* TODO: rest */\n"}, "unfinished"),
]
form.GOOD = {"runtime/core/a.c": "/* SPDX-License-Identifier: Apache-2.0 */\n/*\n * 1\n * 2\n * 3\n * 4\n * 5\n */\n" + "int x;\n" * 151}

RULES = {"layers": layers, "size": size, "labels": labels, "banned": banned, "header_docs": header_docs, "form": form}
