#!/usr/bin/env python3
"""Tests the tests: seeds each bug of mutations.toml into a copy of the tree and checks that the
quick part of the suite fails.

    tests/mutations/run.py [--build DIR] [--only TEXT] [--check | --prepare] [--jobs N]
                           [--until SECONDS]

Each job has a copy of its own and seeds one bug at a time, because the compiler uses one processor
per mutated file. Copies are built incrementally, for one instruction set of this machine; ccache,
if it is installed, builds all copies but the first. Exit code 0: every bug was caught; 1: some
survived; 2: the list does not apply to the sources, or the tree fails without a mutation.
"""

import argparse
import concurrent.futures
import os
import queue
import resource
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ["CMakeLists.txt", "cmake", "include", "src", "harness", "tests", "examples/data"]
TARGETS = ["attn_correctness_test", "attn_properties_test"]
# How a pass is tested: the program, its tests, the number of cases of the list.
PASSES = {
    "forward": ("correctness", "Cases.Forward", "150"),
    "backward": ("correctness", "Cases.Backward", "150"),
    "decode": ("correctness", "Cases.Decode", "150"),
    "properties": ("properties", "*", ""),
}
# Kernels that a pass does not run. A bug in a header is first tested with these as they were. Only
# if that does not catch it, they are compiled too.
KERNELS_NOT_OF = {
    "forward": ("backward", "backward_keys"),
    "decode": ("backward", "backward_keys"),
    "backward": ("forward",),
    "properties": (),
}
LEFT_OUT = "left out"
# The first limit, of processor time, ends endless loops; the second, of the clock, ends deadlocks.
CPU_SECONDS_OF_A_RUN = 480
SECONDS_OF_A_RUN = 1200


class Setup(Exception):
    """The list does not apply to the sources, or the tree fails without a mutation."""


def read_list(only):
    with open(ROOT / "tests/mutations/mutations.toml", "rb") as file:
        mutations = tomllib.load(file)["mutation"]
    for mutation in mutations:
        found = (ROOT / mutation["file"]).read_text().count(mutation["search"])
        if found != 1:
            raise Setup(f"{mutation['name']}: its text occurs {found} times in {mutation['file']}")
    return [m for m in mutations if only.lower() in m["name"].lower()]


def copy_tree(tree):
    """Copies what changed; timestamps show the build what to compile again."""
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
    """Compiles for one instruction set, so that a mutated kernel is compiled once."""
    try:
        cpu = Path("/proc/cpuinfo").read_text()
    except OSError:
        cpu = ""
    # Highway's AVX2 needs all of these; without one of them it would be its scalar target.
    wide = all(f" {name}" in cpu for name in ("avx2", "fma", "bmi2", "f16c", "aes", "pclmulqdq"))
    options = "-march=x86-64-v3 -maes -mpclmul" if wide else ""
    return f"-O1 -DHWY_COMPILE_ONLY_STATIC {options}".rstrip()


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
    if shutil.which("ccache"):
        command += [f"-DCMAKE_{language}_COMPILER_LAUNCHER=ccache" for language in ("C", "CXX")]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise Setup("the copy can't be configured:\n" + done.stdout + done.stderr)


def compile_copy(build, jobs, targets=TARGETS):
    """The compiler's errors, or ""."""
    command = ["ninja", "-C", build, f"-j{jobs}", *targets]
    # Paths below the copy's folder are hashed as relative ones: copies share what ccache holds.
    environment = dict(
        os.environ, CCACHE_BASEDIR=str(build.parent), CCACHE_NOHASHDIR="1", CCACHE_DEPEND="1"
    )
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    return "" if done.returncode == 0 else done.stdout[-3000:]


def passes(build, name, threads, option=""):
    """Whether the tests of this name, or their cases with an option, pass."""
    folder, tests, limit = PASSES[name]
    environment = dict(
        os.environ,
        OMP_WAIT_POLICY="passive",
        OMP_NUM_THREADS=str(threads),
        ATTN_CASE_JOBS=str(threads),
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
            preexec_fn=lambda: resource.setrlimit(
                resource.RLIMIT_CPU, (CPU_SECONDS_OF_A_RUN, CPU_SECONDS_OF_A_RUN)
            ),
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


class Copy:
    """A copy of the tree and its build, which one job at a time seeds and tests."""

    def __init__(self, folder, threads):
        self.tree, self.build, self.threads = folder / "tree", folder / "out", threads
        self.link = ""  # the command that links the library
        self.objects_of = {}  # of a file of the tree: the objects in the library that include it

    def prepare(self, jobs):
        """Copies and builds the tree without a mutation."""
        copy_tree(self.tree)
        configure(self.tree, self.build)
        errors = compile_copy(self.build, jobs)
        if errors:
            raise Setup("the unmutated copy does not build:\n" + errors)
        self.read_build()

    def ask(self, *words):
        command = ["ninja", "-C", self.build, "-t", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def read_build(self):
        commands = self.ask("commands", "src/api/libattn.so").splitlines()
        self.link = next(line for line in commands if " -shared " in line)
        in_library = set(self.link.split())
        for block in self.ask("deps").split("\n\n"):
            heading, *files = block.strip().splitlines() or [""]
            found = heading.split(":")[0]
            if found not in in_library:
                continue
            for file in files:
                self.objects_of.setdefault((self.build / file.strip()).resolve(), []).append(found)

    def passes(self, name, option=""):
        return passes(self.build, name, self.threads, option)

    def seed(self, mutation):
        """Builds the copy with the bug; returns the tests that caught it, or "" if none did."""
        path = self.tree / mutation["file"]
        original = path.read_text()
        path.write_text(original.replace(mutation["search"], mutation["replace"]))
        first = mutation["pass"]
        objects = self.objects_of_pass(path, first)
        built = objects
        try:
            if objects and (caught := self.caught_early(mutation, objects)):
                return caught
            built = TARGETS
            self.rebuild(mutation)
            if mutation.get("option") and not self.passes(first, mutation["option"]):
                return f"{first} {mutation['option']}"
            for name in [first, *(n for n in PASSES if n != first)]:
                if not self.passes(name):
                    return name
            return ""
        finally:
            # The next bug finds no object with this one.
            path.write_text(original)
            if errors := compile_copy(self.build, self.threads, built):
                raise Setup(f"after {mutation['name']} the copy does not build:\n{errors}")

    def objects_of_pass(self, path, name):
        """The library's objects that include a file, without kernels that the pass does not run."""
        kernels = [f"/kernels/{kernel}.cpp.o" for kernel in KERNELS_NOT_OF[name]]
        objects = self.objects_of.get(path.resolve(), [])
        return [one for one in objects if not one.endswith(tuple(kernels))]

    def caught_early(self, mutation, objects):
        """The tests that catch the bug in these objects of the library, or ""."""
        self.rebuild(mutation, objects)
        # They come first, so that the linker takes inline functions of them.
        words = [word for word in self.link.split(" ") if word not in objects]
        first = next(n for n, word in enumerate(words) if word.endswith(".o"))
        link = " ".join(words[:first] + objects + words[first:])
        subprocess.run(link, cwd=self.build, shell=True, check=True, capture_output=True)
        first = mutation["pass"]
        if mutation.get("option") and not self.passes(first, mutation["option"]):
            return f"{first} {mutation['option']}"
        return "" if self.passes(first) else first

    def rebuild(self, mutation, targets=TARGETS):
        if errors := compile_copy(self.build, self.threads, targets):
            raise Setup(f"{mutation['name']}: the mutated tree does not build:\n{errors}")


def seed_all(mutations, copies, until):
    """Seeds every mutation, one in each copy at a time, none after the time `until`; returns the
    names of those that were not seeded and of the survivors."""
    free = queue.SimpleQueue()
    for copy in copies:
        free.put(copy)

    def one(mutation):
        copy = free.get()
        began = time.monotonic()
        try:
            if time.time() > until:
                return LEFT_OUT, 0.0
            return copy.seed(mutation), time.monotonic() - began
        finally:
            free.put(copy)

    left_out, survivors = [], []
    with concurrent.futures.ThreadPoolExecutor(len(copies)) as pool:
        for number, (mutation, (caught, seconds)) in enumerate(
            zip(mutations, pool.map(one, mutations), strict=True), 1
        ):
            if caught == LEFT_OUT:
                left_out.append(mutation["name"])
                continue
            verdict = f"caught by {caught}" if caught else "SURVIVED"
            print(
                f"{number:3}/{len(mutations)} {verdict:34} {seconds:4.0f} s  {mutation['name']}",
                flush=True,
            )
            if not caught:
                survivors.append(mutation["name"])
    return left_out, survivors


def rotated(mutations):
    """The list from a place on that the commit chooses: where time is short, each commit seeds
    others."""
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    first = int(done.stdout.strip() or "0", 16) % max(len(mutations), 1)
    return mutations[first:] + mutations[:first]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--build", type=Path, default=ROOT / "build/mutations")
    parser.add_argument("--only", default="", help="mutations with this text in the name")
    parser.add_argument("--check", action="store_true", help="only check that the list applies")
    parser.add_argument(
        "--until", type=float, default=float("inf"), help="seed none after this time (date +%%s)"
    )
    parser.add_argument("--prepare", action="store_true", help="only build the copies")
    cpus = os.cpu_count() or 1
    parser.add_argument("--jobs", type=int, default=min(cpus, 4), help="mutations at once")
    arguments = parser.parse_args()
    try:
        mutations = read_list(arguments.only)
        if arguments.check:
            print(f"{len(mutations)} mutations apply")
            return 0
        start = time.monotonic()
        threads = max(1, cpus // arguments.jobs)
        folders = [arguments.build.resolve() / str(n) for n in range(arguments.jobs)]
        copies = [Copy(folder, threads) for folder in folders]
        for copy in copies:  # in order: the first fills ccache
            copy.prepare(cpus)
        if arguments.prepare:
            return 0
        with concurrent.futures.ThreadPoolExecutor(len(copies)) as pool:
            for name, good in zip(PASSES, pool.map(copies[0].passes, PASSES), strict=True):
                if not good:
                    raise Setup(f"the unmutated copy fails: {name}")
        print(f"unmutated: passes ({time.monotonic() - start:.0f} s)", flush=True)
        left_out, survivors = seed_all(rotated(mutations), copies, arguments.until)
    except Setup as problem:
        print(f"mutations: {problem}", file=sys.stderr)
        return 2
    seeded = len(mutations) - len(left_out)
    print(f"{seeded - len(survivors)} of {seeded} caught in {time.monotonic() - start:.0f} s")
    if left_out:
        print(f"{len(left_out)} of {len(mutations)} mutations left out: their time was over")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
