#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""docs.py ROOT: what the pages name is there. Relative links lead to a file (and a heading), tutti_* names are in the public
headers, TUTTI_* names are in the headers, the environment table or the build options, and paths in `code` exist."""
import os
import re
import sys

from source import blank, in_library, is_public_header, read_tree

FENCE = re.compile(r"^```.*?^```", re.S | re.M)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
TOP = r"(?:runtime|collectives|launch|examples|benchmarks|tests|docs)"
# Made, not kept: build trees, and files that users make.
MADE = re.compile(r"^build/|[<>*{}$]|\.\.\.")


def anchors(text):
    """The names that GitHub gives to a page's headings."""
    names = set()
    for heading in re.findall(r"^#+\s+(.*)$", FENCE.sub("", text), re.M):
        heading = re.sub(r"[`*]", "", heading).strip().lower()
        names.add(re.sub(r"[^\w\- ]", "", heading).replace(" ", "-"))
    return names


def known_names(tree, cmake):
    """(tutti_* names, TUTTI_* names) that a page may use."""
    functions, macros = set(), set()
    for path, text in tree.items():
        code = blank(text)
        if is_public_header(path):
            functions |= set(re.findall(r"\btutti_\w+", code))
            macros |= set(re.findall(r"\bTUTTI_\w+", code))
        if path == "runtime/core/env.h":
            macros |= {"TUTTI_" + name for name in re.findall(r"^\s*X\((\w+),", code, re.M)}
    macros |= set(re.findall(r"\bTUTTI_\w+", cmake))
    functions |= set(re.findall(r"\bfunction\((tutti_\w+)", cmake))
    return functions | {"tutti_static"}, macros | {"TUTTI_HAVE_CUDA"}


def check(pages, tree, cmake, exists):
    functions, macros = known_names(tree, cmake)
    for page, text in pages.items():
        here = os.path.dirname(page)
        for match in LINK.finditer(FENCE.sub("", text)):
            target, _, anchor = (match.group(1) or match.group(2)).partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            path = os.path.normpath(os.path.join(here, target)) if target else page
            if not exists(path):
                yield f"{page}: the link to {target} leads nowhere"
            elif anchor and path in pages and anchor not in anchors(pages[path]):
                yield f"{page}: {path} has no heading #{anchor}"
        for name in sorted(set(re.findall(r"\btutti_\w+", text))):
            if name.endswith("_") or name in functions or any(f.startswith(name + "_") for f in functions if name + "*" in text):
                continue
            yield f"{page}: {name} is in no public header"
        for name in sorted(set(re.findall(r"\bTUTTI_\w+", text))):
            if name not in macros and not name.endswith("_"):
                yield f"{page}: {name} is no macro, variable or option"
        for name in sorted(set(re.findall(r"`(" + TOP + r"/[\w./-]*)`", text))):
            if not exists(name.rstrip("/")) and not MADE.search(name):
                yield f"{page}: there is no {name}"
    for folder in sorted({os.path.dirname(path) for path in tree if in_library(path) and "/include/" not in path}):
        if folder + "/README.md" not in pages:
            yield f"{folder} has no README.md"


def samples():
    tree = {"runtime/include/tutti/a.h": "/* tutti_old() */\nTUTTI_API int tutti_a(void);\n#define TUTTI_A 1\n",
            "runtime/core/env.h": "#define T(X) \\\n    X(LOG, S, \"warn\", \"\")\n"}
    good = {"README.md": "# Two words\n[a](docs/a.md#part-one) `tutti_a()` TUTTI_A TUTTI_LOG TUTTI_OPTION `runtime/core` TUTTI_*\n",
            "runtime/core/README.md": "core",
            "docs/a.md": "## Part `one`\n[b](../README.md) [c](https://x.org/y)\n"}
    there = {"README.md", "docs/a.md", "runtime/core"}.__contains__
    assert not list(check(good, tree, "option(TUTTI_OPTION", there)), list(check(good, tree, "option(TUTTI_OPTION", there))
    for bad in ("[x](docs/b.md)", "[x](docs/a.md#part-two)", "`tutti_old`", "TUTTI_LOGS", "`runtime/kore/a.c`", "![x](x.png)"):
        assert list(check({**good, "README.md": bad}, tree, "TUTTI_OPTION", there)), bad
    assert list(check({"README.md": good["README.md"], "docs/a.md": good["docs/a.md"]}, tree, "TUTTI_OPTION", there))


def main():
    if sys.argv[1:] == ["--samples"]:
        samples()
        return 0
    root = sys.argv[1]
    pages = read_tree(root, (".md",))
    for name in ["README.md"] + [os.path.join("docs", n) for n in sorted(os.listdir(os.path.join(root, "docs")))]:
        if name.endswith(".md"):
            with open(os.path.join(root, name), encoding="utf-8") as f:
                pages[name] = f.read()
    cmake = ""
    for name in ("CMakeLists.txt", "CMakePresets.json", "tests/tt_test.cmake"):
        with open(os.path.join(root, name), encoding="utf-8") as f:
            cmake += f.read()
    findings = list(check(pages, read_tree(root), cmake, lambda path: os.path.exists(os.path.join(root, path))))
    print("\n".join(findings))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
