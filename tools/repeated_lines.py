#!/usr/bin/env python3
"""Finds code that stands in two files: six lines in a row that are equal, indentation aside.

WGSL has no include, so kernels tend to be pasted. Ours share parts (src/webgpu/kernels/include).
Lines without a letter or a digit (blank, braces) do not count.

usage: tools/repeated_lines.py [FILE...]  default: src/webgpu/kernels; exit status 1 if it finds any
"""

from __future__ import annotations

import sys
from pathlib import Path

KERNELS = Path(__file__).resolve().parent.parent / "src/webgpu/kernels"
LENGTH = 6

Line = tuple[int, str]


def lines_of(path: Path) -> list[Line]:
    lines = [(n, line.strip()) for n, line in enumerate(path.read_text().splitlines(), 1)]
    return [(n, line) for n, line in lines if any(c.isalnum() for c in line)]


def repeated(first: list[Line], second: list[Line]) -> list[tuple[int, int]]:
    """Lines of both files where a run of LENGTH equal lines or more begins."""

    def run_at(lines: list[Line], at: int) -> tuple[str, ...]:
        return tuple(line for _, line in lines[at : at + LENGTH])

    places = {run_at(second, at): at for at in range(len(second) - LENGTH + 1)}
    found = {
        (at, places[run_at(first, at)])
        for at in range(len(first) - LENGTH + 1)
        if run_at(first, at) in places
    }
    begins = sorted((a, b) for a, b in found if (a - 1, b - 1) not in found)
    return [(first[a][0], second[b][0]) for a, b in begins]


def main() -> int:
    paths = [Path(name) for name in sys.argv[1:]] or sorted(KERNELS.rglob("*.wgsl"))
    texts = [lines_of(path) for path in paths]
    num_runs = 0
    for i, path in enumerate(paths):
        for j in range(i):
            for line, other in repeated(texts[i], texts[j]):
                print(f"{path}:{line}: {LENGTH} lines as at {paths[j]}:{other}")
                num_runs += 1
    return 1 if num_runs else 0


if __name__ == "__main__":
    sys.exit(main())
