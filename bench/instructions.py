#!/usr/bin/env python3
"""Counts the instructions of fixed calls on the CPU and compares them with recorded counts.

usage: bench/instructions.py --attn build/release/cli/attn [--compiler "GNU 12.2.0"] [--write]

Unlike times, the counts are the same in every run and on every x86-64 machine. They are those of
one thread with AVX2 in valgrind's callgrind, for the last of several calls of the same problem.
They depend on the compiler, so they are compared only if --compiler is the recorded one. --write
records them.

Exit status 0: no count is more than 5 % above the recorded one. 1: some are, or a call failed.
77: not measured (no valgrind, another compiler or instruction set).
"""

import argparse
import concurrent.futures
import contextlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

RECORDED = Path(__file__).resolve().parent / "results" / "instructions.json"
TARGET = "AVX2"
MOST_GROWTH = 1.05
NOT_MEASURED = 77
SECONDS = 300  # timeout of a command

# name: (pass, function of the library, problem)
CELLS = {
    "f32 forward": ("fwd", "forward", "dtype=f32 heads_q=2 heads_kv=2 len_q=256 len_kv=256"),
    "bf16 forward, causal, bias": (
        "fwd",
        "forward",
        "dtype=bf16 dtype_bias=bf16 heads_q=2 heads_kv=2 len_q=256 len_kv=256 causal bias=hqk",
    ),
    "f32 backward, causal": (
        "bwd",
        "backward",
        "dtype=f32 heads_q=2 heads_kv=2 len_q=192 len_kv=192 causal",
    ),
    "bf16 decode": (
        "decode",
        "decode",
        "dtype=bf16 heads_q=8 heads_kv=2 len_q=1 len_kv=1024 causal",
    ),
}
DIMS = "dim_qk=64 dim_vo=64"


class NotMeasured(Exception):
    """The reason why nothing is measured."""


def count(attn, cell):
    """Instructions of one call, with the kernel and tiles that ran."""
    name_of_pass, function, problem = CELLS[cell]
    symbol = f"attn::{function}(attn::Context&, attn::Problem const&, attn::Arguments const&)"
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["valgrind", "--quiet", "--tool=callgrind", f"--callgrind-out-file={folder}/counts"]
            # Counts are reset when the function is entered and written to a file when it returns.
            + [f"--zero-before={symbol}", f"--dump-after={symbol}"]
            + [attn, "bench", "--backend", "cpu", "--threads", "1", "--pass", name_of_pass]
            + ["--problem", f"{problem} {DIMS}", "--seconds", "0", "--no-verify", "--json"],
            # Blocks of keys are the same on every processor.
            env=os.environ | {"ATTN_CPU_TARGET": TARGET, "ATTN_CPU_KEY_BLOCKS": "short"},
            capture_output=True,
            text=True,
            timeout=SECONDS,
        )
        rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode != 0 or not rows:
            raise RuntimeError(f"{cell}: exit status {done.returncode}\n{done.stderr}")
        # counts.1 is the first call, which also plans. `counts` is what follows the last call.
        files = sorted(Path(folder).glob("counts.*"), key=lambda f: int(f.suffix[1:]))
        if len(files) < 2:
            raise RuntimeError(f"{cell}: no calls of {symbol} were seen")
        total = re.search(r"^summary: (\d+)", files[-1].read_text(), re.MULTILINE)
        return {
            "instructions": int(total[1]),
            "problem": f"{problem} {DIMS}",
            "kernel": rows[0]["kernel"],
            "config": rows[0]["config"],
        }


def check_machine(attn):
    if shutil.which("valgrind") is None:
        raise NotMeasured("valgrind is not installed")
    # Valgrind has no AVX-512, so inside of it AVX2 is the best set of every processor that has it.
    info = subprocess.run([attn, "info"], capture_output=True, text=True, timeout=SECONDS).stdout
    if not re.search(rf"^ *cpu .*\b{TARGET}\b", info, re.MULTILINE):
        raise NotMeasured(f"this processor has no {TARGET}")


def compare(recorded, counts):
    """Prints the ratios; returns a message for each cell that grew."""
    grown = []
    for cell, now in counts.items():
        before = recorded["cells"].get(cell)
        if before is None or before["problem"] != now["problem"]:
            grown.append(f"{cell}: not recorded; record it with --write")
            continue
        ratio = now["instructions"] / before["instructions"]
        print(f"{cell:28s} {now['instructions']:12,d} instructions, {ratio:.3f} of the recorded")
        if ratio > MOST_GROWTH:
            grown.append(
                f"{cell}: {ratio:.3f} of the recorded {before['instructions']:,d} instructions\n"
                f"    recorded: {before['kernel']} {before['config']}\n"
                f"    now:      {now['kernel']} {now['config']}"
            )
        elif ratio < 1 / MOST_GROWTH:
            print("    fewer: record it with --write, so that later growth is seen")
    return grown


def check_comparison(counts):
    """Checks that compare() finds a growth of 6 % in every cell."""
    less = {
        cell: one | {"instructions": int(one["instructions"] / 1.06)}
        for cell, one in counts.items()
    }
    with contextlib.redirect_stdout(io.StringIO()):
        found = compare({"cells": less}, counts)
    if len(found) != len(counts):
        raise RuntimeError(f"growth of 6 % was seen in {len(found)} of {len(counts)} cells")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--attn", required=True, help="the command")
    parser.add_argument("--compiler", default="", help="that built it, with its version")
    parser.add_argument("--write", action="store_true", help="record the counts")
    args = parser.parse_args()

    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {"cells": {}}
    try:
        check_machine(args.attn)
        compiler = recorded.get("compiler", args.compiler)
        if not args.write and args.compiler and args.compiler != compiler:
            raise NotMeasured(f"the recorded counts are of {compiler}, this is {args.compiler}")
    except NotMeasured as reason:
        print(f"not measured: {reason}")
        return NOT_MEASURED
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = dict(zip(CELLS, pool.map(lambda cell: count(args.attn, cell), CELLS), strict=True))
    if args.write:
        result = {"compiler": args.compiler, "target": TARGET, "cells": counts}
        RECORDED.write_text(json.dumps(result, indent=2) + "\n")
        return 0
    check_comparison(counts)
    grown = compare(recorded, counts)
    for line in grown:
        print(line, file=sys.stderr)
    return 1 if grown else 0


if __name__ == "__main__":
    sys.exit(main())
