# SPDX-License-Identifier: Apache-2.0
"""Reading C well enough for the lints: comments and strings blanked, functions found by their braces."""
import os
import re
from dataclasses import dataclass

FOLDERS = ("runtime", "collectives", "launch", "examples", "benchmarks", "tests")
LIBRARY = ("runtime/", "collectives/")


def read_tree(root, endings=(".c", ".h", ".cu")):
    """path relative to root -> text, for the folders above."""
    tree = {}
    for folder in FOLDERS:
        for where, dirs, names in os.walk(os.path.join(root, folder)):
            dirs.sort()
            for name in sorted(names):
                if name.endswith(endings):
                    path = os.path.join(where, name)
                    with open(path, encoding="utf-8") as f:
                        tree[os.path.relpath(path, root)] = f.read()
    return tree


def in_library(path):
    return path.startswith(LIBRARY)


def is_public_header(path):
    return "/include/tutti/" in path and path.endswith(".h")


_TOKENS = re.compile(r"""//(?:\\\n|[^\n])*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", re.S)


def _blank(match):
    text = match.group(0)
    if text[0] == "/":
        return re.sub(r"[^\n]", " ", text)
    return text[0] + " " * (len(text) - 2) + text[0]


def blank(text):
    """The text with the same lines and columns, but blanks for what comments and strings say."""
    return _TOKENS.sub(_blank, text)


def blank_directives(text):
    """Preprocessor lines (with their continuations) blanked too. Takes blanked text."""
    return re.sub(r"^[ \t]*#(?:\\\n|[^\n])*", lambda m: re.sub(r"[^\n]", " ", m.group(0)), text, flags=re.M)


@dataclass
class Function:
    name: str
    first: int  # line of the declarator
    last: int  # line of the closing brace
    head: str  # from return type to ')'
    parameters: list
    body: str  # between the braces, blanked
    body_line: int

    @property
    def lines(self):
        return self.last - self.first + 1


def _split_parameters(text):
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c in "([":
            depth += 1
        elif c in ")]":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    parts = [" ".join(p.split()) for p in parts]
    return [] if parts in ([""], ["void"]) else parts


def _declarator(head):
    """(name, parameters) of the text before a function's body, or None."""
    head = head.rstrip()
    if not head.endswith(")"):
        return None
    depth = 0
    for i in range(len(head) - 1, -1, -1):
        depth += (head[i] == ")") - (head[i] == "(")
        if depth == 0:
            break
    name = re.search(r"([A-Za-z_]\w*)\s*$", head[:i])
    return (name.group(1), _split_parameters(head[i + 1:-1])) if name else None


def functions(text):
    """The functions defined in a file."""
    code = blank_directives(blank(text))
    # A C linkage block is no scope: its braces are taken away.
    code = re.sub(r'extern\s*"[ ]*"\s*\{', lambda m: re.sub(r"[^\n]", " ", m.group(0)), code)
    found, depth, start, head, opened = [], 0, 0, None, 0
    for i, c in enumerate(code):
        if c == "{":
            if depth == 0:
                head, opened = code[start:i], i
            depth += 1
        elif c == "}":
            depth = max(0, depth - 1)
            if depth == 0:
                declarator = _declarator(head) if head is not None else None
                if declarator is not None and "=" not in head.split("(")[0]:
                    lead = len(head) - len(head.lstrip())
                    found.append(Function(
                        name=declarator[0], first=code.count("\n", 0, start + lead) + 1,
                        last=code.count("\n", 0, i) + 1, head=" ".join(head.split()),
                        parameters=declarator[1], body=code[opened + 1:i],
                        body_line=code.count("\n", 0, opened) + 1))
                head, start = None, i + 1
        elif c == ";" and depth == 0:
            start = i + 1
    return found


@dataclass
class Declaration:
    name: str
    line: int
    text: str  # the whole declaration, spaces folded
    parameters: list
    comment: str  # the comment right above it, or that of the group it stands in


def api_declarations(text):
    """The TUTTI_API functions of a public header, each with the comment that covers it."""
    found, comment = [], ""
    code = blank(text)
    pattern = re.compile(r"/\*.*?\*/|^TUTTI_API\b[^;]*;|\n[ \t]*\n", re.S | re.M)
    for match in pattern.finditer(text):
        piece = match.group(0)
        if piece.startswith("/*"):
            # A comment at the end of a line of code describes that line.
            line_start = text.rfind("\n", 0, match.start()) + 1
            if text[line_start:match.start()].strip() == "":
                comment = piece
        elif piece.startswith("TUTTI_API"):
            flat = " ".join(code[match.start():match.end()].split())
            head = re.sub(r"__attribute__\s*\(\(.*?\)\)", "", flat.rstrip(" ;"))
            declarator = _declarator(head)
            if declarator:
                found.append(Declaration(declarator[0], text.count("\n", 0, match.start()) + 1, flat,
                                         declarator[1], comment))
        else:
            comment = ""
    return found
