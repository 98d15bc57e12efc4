#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""symbols.py LIBRARY ROOT: libtutti.so exports exactly the TUTTI_API functions of the public headers, and these are the
ones listed in symbols.txt: adding to or taking from the API shows in a review. --write updates the list."""
import os
import subprocess
import sys

from source import api_declarations, is_public_header, read_tree

LIST = os.path.join(os.path.dirname(os.path.abspath(__file__)), "symbols.txt")


def parse_nm(text):
    """The names that `nm -D --defined-only` prints."""
    rows = [line.split() for line in text.splitlines()]
    return {row[-1].split("@")[0] for row in rows if len(row) >= 2 and row[-2] in "TDBRVWGSi"}


def compare(exported, declared, listed):
    for name in sorted(exported - declared):
        yield f"{name} is exported, but no public header declares it with TUTTI_API"
    for name in sorted(declared - exported):
        yield f"{name} is declared with TUTTI_API, but not exported"
    for name in sorted(declared ^ listed):
        yield f"{name} is {'not ' if name in declared else 'still '}in tests/lint/symbols.txt"


def declared_in(tree):
    return {d.name for path, text in tree.items() if is_public_header(path) for d in api_declarations(text)}


def samples():
    header = {"runtime/include/tutti/a.h": "/* x */\nTUTTI_API int tutti_a(void);\nTUTTI_API void *tutti_b(int (*f)(void));\n"}
    declared = declared_in(header)
    exported = parse_nm("0000 T tutti_a\n0000 D tt_leak\n     U malloc\n0000 T tutti_b@@V1\n")
    assert declared == {"tutti_a", "tutti_b"}, declared
    assert exported == {"tutti_a", "tutti_b", "tt_leak"}, exported
    assert [f for f in compare(exported, declared, declared) if f.startswith("tt_leak is exported")]
    assert [f for f in compare({"tutti_a"}, declared, declared) if f.startswith("tutti_b is declared")]
    assert [f for f in compare(declared, declared, {"tutti_a"}) if "tutti_b is not in" in f]
    assert [f for f in compare(declared, declared, declared | {"tutti_c"}) if "tutti_c is still in" in f]
    assert not list(compare(declared, declared, declared))


def main():
    if sys.argv[1:] == ["--samples"]:
        samples()
        return 0
    library, root = sys.argv[1:3]
    declared = declared_in(read_tree(root))
    if "--write" in sys.argv:
        with open(LIST, "w", encoding="utf-8") as f:
            f.writelines(name + "\n" for name in sorted(declared))
    nm = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True)
    with open(LIST, encoding="utf-8") as f:
        listed = set(f.read().split())
    findings = list(compare(parse_nm(nm.stdout), declared, listed))
    print("\n".join(findings) or f"{len(declared)} functions")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
