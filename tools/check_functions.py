#!/usr/bin/env python3
"""Checks lengths: a file has fewer than 500 lines, a function at most 80.

usage: tools/check_functions.py

Exit status 1 when something is longer. The lines of a function are those from its
name to its last brace.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator

from source_text import ROOT, kind, line_of, split, tracked

LINES_OF_A_FILE = 499
LINES_OF_A_FUNCTION = 80

_BRACES = re.compile(r"[{};]")
_PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
_NOT_A_BODY = re.compile(r"\b(?:namespace|class|struct|union|enum|extern)\b(?![^{]*\))|=\s*$")
_NAME = re.compile(r"([~\w:]+|operator\s*\S+?)\s*\(")
_ATTRIBUTE = re.compile(r"(?:__launch_bounds__|__attribute__|@\w+)\s*\((?:[^()]|\([^()]*\))*\)")
_SHELL_FUNCTION = re.compile(r"^(\w+)\(\) *[({]\n.*?^[)}]", re.S | re.M)
# `name(A, B)` before the body: a test's name is in its arguments.
_TEST = re.compile(r"\b(?:TEST|TEST_F|TEST_P)\s*\(\s*(\w+)\s*,\s*(\w+)")


def c_functions(code: str) -> Iterator[tuple[str, int, int]]:
    """(name, first line, lines) of a C-like source's functions; a lambda counts in its function."""
    code = _PREPROCESSOR.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), code)
    depth = 0
    body: tuple[str, int, int] | None = None  # name, offset, depth outside of it
    begin = 0  # of the declaration that a brace may belong to
    for brace in _BRACES.finditer(code):
        at, found = brace.start(), brace[0]
        if found == "{":
            head = code[begin:at]
            name = _TEST.search(head) or _NAME.search(_ATTRIBUTE.sub("", head))
            if body is None and ")" in head and name and not _NOT_A_BODY.search(head):
                where = begin + len(head) - len(head.lstrip())
                body = ("::".join(name.groups()), where, depth)
            depth += 1
        elif found == "}":
            depth -= 1
            if body is not None and depth == body[2]:
                first = line_of(code, body[1])
                yield body[0], first, line_of(code, at) - first + 1
                body = None
        begin = at + 1


def python_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """(name, first line, lines) of a Python source's functions."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno, (node.end_lineno or node.lineno) - node.lineno + 1


def shell_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """(name, first line, lines) of a shell script's functions."""
    for found in _SHELL_FUNCTION.finditer(text):
        yield found[1], line_of(text, found.start()), found[0].count("\n") + 1


def lengths(name: str) -> dict[str, int]:
    """The violations in a file: "path" or "path function" -> its number of lines."""
    text = (ROOT / name).read_text()
    of_kind = kind(name)
    found: dict[str, int] = {}
    if of_kind != "markdown" and text.count("\n") > LINES_OF_A_FILE:
        found[name] = text.count("\n")
    functions: Iterator[tuple[str, int, int]] = iter(())
    if of_kind == "c":
        functions = c_functions(split(name, text)[1])
    elif of_kind == "python":
        functions = python_functions(text)
    elif of_kind == "script":
        functions = shell_functions(text)
    for function, _, lines in functions:
        if lines > LINES_OF_A_FUNCTION:
            key = f"{name} {function}"
            found[key] = max(lines, found.get(key, 0))
    return found


def main() -> int:
    """Prints what is too long; returns the exit status."""
    found: dict[str, int] = {}
    for name in tracked():
        if kind(name):
            found.update(lengths(name))
    for key, lines in sorted(found.items()):
        limit = LINES_OF_A_FUNCTION if " " in key else LINES_OF_A_FILE
        print(f"{key}: {lines} lines; the limit is {limit}")
    print(f"lengths: {len(found)} too long")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
