"""`attn bench --plot FOLDER` of the package: the compiled benchmark, then plots of its rows."""

from __future__ import annotations

import argparse
import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile


def folder() -> pathlib.Path:
    """Where the benchmark's Python programs lie: ATTN_BENCH_FOLDER, the package, or the tree."""
    named = os.environ.get("ATTN_BENCH_FOLDER")
    if named:
        return pathlib.Path(named)
    package = pathlib.Path(__file__).parent
    inside = package / "bench"
    return inside if inside.is_dir() else package.parents[1] / "bench"


def wants_plot(words: list[str]) -> bool:
    """Whether these words of `attn bench` ask for plots."""
    return any(word == "--plot" or word.startswith("--plot=") for word in words)


def main(command: str, words: list[str]) -> int:
    """Runs `attn bench` with these words but --plot, and draws its rows; returns the exit code."""
    parser = argparse.ArgumentParser(prog="attn bench", add_help=False, allow_abbrev=False)
    parser.add_argument("--plot", type=pathlib.Path, required=True, metavar="FOLDER")
    parser.add_argument("--out", metavar="FILE")
    known, others = parser.parse_known_args(words)
    program = folder() / "plot.py"
    problem = ""
    if known.out == "auto":
        problem = "--out auto does not name the file; accepted with --plot: a file, or no --out"
    elif importlib.util.find_spec("matplotlib") is None:
        problem = "--plot needs matplotlib: pip install 'libattn[plot]'"
    elif not program.is_file():
        problem = f"--plot: {program} is missing; it is in the wheel and in the tree"
    if problem:
        print(f"attn bench: {problem}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as place:
        rows = known.out or str(pathlib.Path(place) / "rows.jsonl")
        environment = {**os.environ, "ATTN_BENCH_FOLDER": str(folder())}
        done = subprocess.run([command, "bench", *others, "--out", rows], env=environment)
        if not pathlib.Path(rows).is_file():  # nothing was measured
            return done.returncode
        drawn = subprocess.run([sys.executable, program, rows, "--out", known.plot])
    return done.returncode or drawn.returncode
