#!/usr/bin/env python3
"""Tests the tests: seeds the bugs of mutations.toml into a copy of the tree, one at a time, and
asks that the quick part of the suite fails for each.

    tests/mutations/run.py [--build DIR] [--only TEXT] [--check]

The copy is built incrementally, for the one instruction set of this machine. Exit code 0: every bug
was caught; 1: some survived; 2: the list does not fit the sources, or the unmutated tree fails.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ["CMakeLists.txt", "cmake", "include", "src", "harness", "tests", "examples/data"]
TARGETS = ["attn_correctness_test", "attn_properties_test"]
# What a mutation is looked for with: the program, its tests, how many cases of the list.
PASSES = {
    "forward": ("correctness", "Cases.Forward", "150"),
    "backward": ("correctness", "Cases.Backward", "150"),
    "decode": ("correctness", "Cases.Decode", "150"),
    "properties": ("properties", "*", ""),
}
SECONDS_OF_A_RUN = 240


class Setup(Exception):
    """The list or the tree is not fit to be tested."""


def read_list(only):
    with open(ROOT / "tests/mutations/mutations.toml", "rb") as file:
        mutations = tomllib.load(file)["mutation"]
    for mutation in mutations:
        found = (ROOT / mutation["file"]).read_text().count(mutation["search"])
        if found != 1:
            raise Setup(f"{mutation['name']}: its text occurs {found} times in {mutation['file']}")
    return [m for m in mutations if only.lower() in m["name"].lower()]


def copy_tree(tree):
    """Copies what changed; timestamps tell the build what to do again."""
    names = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "--", *COPIED],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    wanted = {name for name in names if (ROOT / name).is_file()}
    for name in sorted(wanted):
        source, target = ROOT / name, tree / name
        if not target.exists() or target.read_bytes() != source.read_bytes():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    for path in [p for p in tree.rglob("*") if p.is_file()]:
        if str(path.relative_to(tree)) not in wanted:
            path.unlink()


def flags():
    """One instruction set instead of all: a mutated kernel is compiled once."""
    try:
        cpu = Path("/proc/cpuinfo").read_text()
    except OSError:
        cpu = ""
    wide = all(f" {name}" in cpu for name in ("avx2", "fma", "bmi2", "f16c"))
    return "-O1 -DHWY_COMPILE_ONLY_STATIC" + (" -march=x86-64-v3" if wide else "")


def configure(tree, build):
    command = [
        "cmake",
        "-S",
        tree,
        "-B",
        build,
        "-G",
        "Ninja",
        "-DCMAKE_BUILD_TYPE=None",
        f"-DCMAKE_CXX_FLAGS={flags()}",
    ]
    command += [f"-DATTN_BUILD_{part}=OFF" for part in ("CLI", "BENCH", "EXAMPLES", "FUZZERS")]
    command += ["-DATTN_CUDA=OFF", "-DATTN_WEBGPU=OFF"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise Setup("the copy can't be configured:\n" + done.stdout + done.stderr)


def compile_copy(build):
    done = subprocess.run(["ninja", "-C", build, *TARGETS], capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout[-3000:]


def passes(build, name, option=""):
    """Whether the tests of this name, or their cases with an option, stay green."""
    folder, tests, limit = PASSES[name]
    environment = dict(
        os.environ,
        OMP_WAIT_POLICY="passive",
        ATTN_CASE_STOP="1",
        ATTN_CASE_LIMIT=limit,
        ATTN_CASE_OPTION=option,
    )
    command = [
        build / f"tests/{folder}/attn_{folder}_test",
        f"--gtest_filter={tests}",
        "--gtest_fail_fast",
    ]
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=SECONDS_OF_A_RUN,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def seed(tree, build, mutation):
    """Builds the copy with the bug; returns the tests that caught it, or "" when none did."""
    path = tree / mutation["file"]
    original = path.read_text()
    path.write_text(original.replace(mutation["search"], mutation["replace"]))
    try:
        errors = compile_copy(build)
        if errors:
            raise Setup(f"{mutation['name']}: the mutated tree does not build:\n{errors}")
        first = mutation["pass"]
        if mutation.get("option") and not passes(build, first, mutation["option"]):
            return f"{first} {mutation['option']}"
        for name in [first, *(n for n in PASSES if n != first)]:
            if not passes(build, name):
                return name
        return ""
    finally:
        path.write_text(original)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build/mutations")
    parser.add_argument("--only", default="", help="mutations whose name holds this text")
    parser.add_argument("--check", action="store_true", help="only check that the list applies")
    arguments = parser.parse_args()
    try:
        mutations = read_list(arguments.only)
        if arguments.check:
            print(f"{len(mutations)} mutations apply")
            return 0
        tree, build = arguments.build / "tree", arguments.build / "out"
        start = time.monotonic()
        copy_tree(tree)
        configure(tree, build)
        errors = compile_copy(build)
        if errors:
            raise Setup("the unmutated copy does not build:\n" + errors)
        for name in PASSES:
            if not passes(build, name):
                raise Setup(f"the unmutated copy fails: {name}")
        print(f"unmutated: green ({time.monotonic() - start:.0f} s)", flush=True)
        survivors = []
        for number, mutation in enumerate(mutations, 1):
            began = time.monotonic()
            caught = seed(tree, build, mutation)
            verdict = f"caught by {caught}" if caught else "SURVIVED"
            seconds = time.monotonic() - began
            print(
                f"{number:3}/{len(mutations)} {verdict:34} {seconds:4.0f} s  "
                f"{mutation['name']}",
                flush=True,
            )
            if not caught:
                survivors.append(mutation["name"])
    except Setup as problem:
        print(f"mutations: {problem}", file=sys.stderr)
        return 2
    print(
        f"{len(mutations) - len(survivors)} of {len(mutations)} caught in "
        f"{time.monotonic() - start:.0f} s"
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
