#!/usr/bin/env python3
"""Checks that each folder includes only from the folders below it, and that every source file opens
with a comment that says what it is.

usage: tools/check_layers.py        exit status 1 when a rule is broken
"""

import pathlib
import re
import subprocess
import sys

# Folder -> folders that it may include from. Public headers (attn/...) and headers of the same
# folder are always allowed.
PLATFORM = {"src/platform"}
CORE = {"src/core"}
TUNED = {"src/tuned"}
REFERENCE = CORE | {"src/reference"}
BACKENDS = {"src/reference", "src/cpu", "src/cuda", "src/webgpu"}
HARNESS = CORE | REFERENCE | {"harness", "src/cuda", "src/cuda/host", "src/webgpu", "src/files"}
# CUDA: device code, then the host side, then the families of kernels, which know only their own,
# then the backend.
KERNELS = "src/cuda/kernels"
KERNEL_PARTS = {f"{KERNELS}/ptx", f"{KERNELS}/shared"}
CUDA_HOST = CORE | PLATFORM | TUNED | {"src/cuda/host", f"{KERNELS}/shared"}
CUDA_FAMILIES = CUDA_HOST | {"src/cuda/families", f"{KERNELS}/passes"}
SM80 = {"src/cuda/families/sm80", f"{KERNELS}/sm80"}
SM90 = {"src/cuda/families/sm90", f"{KERNELS}/sm90"}
ALLOWED = {
    "src/platform": set(),
    "src/core": set(),
    "src/tuned": CORE | PLATFORM,
    "src/reference": CORE,
    "src/cpu": CORE | PLATFORM | TUNED,
    f"{KERNELS}/ptx": set(),
    f"{KERNELS}/shared": KERNEL_PARTS,
    f"{KERNELS}/passes": KERNEL_PARTS,
    f"{KERNELS}/sm80": KERNEL_PARTS,
    f"{KERNELS}/sm90": KERNEL_PARTS,
    "src/cuda/host": CUDA_HOST,
    # make_plan.cpp lists the families.
    "src/cuda/families": CUDA_FAMILIES | {"src/cuda/families/sm80", "src/cuda/families/sm90"},
    "src/cuda/families/sm80": CUDA_FAMILIES | SM80,
    "src/cuda/families/sm90": CUDA_FAMILIES | SM90,
    "src/cuda": CUDA_FAMILIES | {"src/cuda/families/sm80"},
    "src/webgpu": CORE | PLATFORM,
    "src/api": CORE | PLATFORM | BACKENDS,
    "src/files": set(),
    "harness": HARNESS,
    "bench": HARNESS | PLATFORM,
    "cli": HARNESS | PLATFORM | {"bench"},
    "examples": set(),
    # Test programs include from every folder; no other folder includes from them.
    "tests": None,
}
# The reference shares no code with what it judges: of core only these, and none of the rules.
REFERENCE_MAY_SEE = {
    "core/backend.hpp",
    "core/interrupt.hpp",
    "core/plan.hpp",
    "core/status.hpp",
}
SOURCES = (".cpp", ".hpp", ".c", ".h", ".cu", ".cuh", ".py", ".sh")
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def folder_of(path):
    for folder in sorted(ALLOWED, key=len, reverse=True):
        if path.startswith(folder + "/"):
            return folder
    return None


def resolve(source, name):
    """The repository path of an include, or None for a header from elsewhere."""
    roots = ("src", "include", ".", KERNELS)
    for base in (source.parent, *map(pathlib.Path, roots)):
        if (base / name).exists():
            return (base / name).as_posix()
    return None


def main():
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout
    problems = []
    for name in listed.splitlines():
        source = pathlib.Path(name)
        if source.suffix not in SOURCES or not source.exists():
            continue
        text = source.read_text()
        if not re.match(r'(#!.*\n)?(//|/\*|#|""")', text):
            problems.append(f"{name}: does not open with a comment that says what it is")
        folder = folder_of(name)
        if folder is None:
            continue
        for include in INCLUDE.findall(text):
            path = resolve(source, include)
            other = folder_of(path) if path else None
            allowed = ALLOWED[folder]
            if allowed is None or other is None:
                continue
            if other != folder and other not in allowed:
                problems.append(f"{name}: {folder} may not include {include} ({other})")
            if (
                folder == "src/reference"
                and other == "src/core"
                and include not in REFERENCE_MAY_SEE
            ):
                problems.append(f"{name}: the reference may not share {include}")
    for problem in problems:
        print(problem)
    print(f"layers: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
