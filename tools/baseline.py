"""Baselines of the checks of ./dev lint: what is known to break a rule and is still to be fixed. A
check fails above its baseline and below it, so that baselines only shrink."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "baselines"


def read(name: str) -> dict[str, int]:
    """Key -> number; the file has a line "number key" each."""
    path = FOLDER / f"{name}.txt"
    entries = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        number, _, key = line.partition(" ")
        if number.isdigit():  # else a comment, or a mark of a merge conflict
            entries[key] = int(number)
    return entries


def update(name: str, what: str, found: dict[str, int]) -> int:
    """Writes a baseline from what was found, unless the total rose. Returns the exit status."""
    before, after = sum(read(name).values()), sum(found.values())
    path = FOLDER / f"{name}.txt"
    if path.exists() and after > before:
        print(
            f"{name}: {after} {what}, above the baseline of {before}; not written", file=sys.stderr
        )
        return 1
    path.parent.mkdir(exist_ok=True)
    head = (
        f"# {what}, still to be fixed. Written by `./dev lint --update`; resolve conflicts with it."
    )
    lines = [head, *(f"{number} {key}" for key, number in sorted(found.items()) if number)]
    path.write_text("\n".join(lines) + "\n")
    print(f"{name}: baseline {before} -> {after}")
    return 0


def compare(name: str, found: dict[str, int]) -> tuple[list[str], list[str]]:
    """Keys above their baseline, and lines that say which are below."""
    known = read(name)
    above = [key for key, number in found.items() if number > known.get(key, 0)]
    below = [
        f"{key}: {found.get(key, 0)}, and {number} in the baseline; run ./dev lint --update"
        for key, number in known.items()
        if found.get(key, 0) < number
    ]
    return sorted(above), below
