#!/usr/bin/env python3
"""Builds the Python package's wheels for other systems, on one Linux machine, with zig's compilers.

usage: tools/wheels.py [TARGET...]        default: all of TARGETS; wheels go to build/wheels/

Then each wheel is tested where this machine can run it: natively, under qemu-user (aarch64), with
musl's loader, or under wine (Windows). The tests are tests/wheels/smoke.c on the library and 20
cases of `attn check`. ATTN_AARCH64_PYTHON="COMMAND ..." (a Python with NumPy, with its emulator)
adds tests/wheels/smoke.py on aarch64. Wheels for macOS are only built.

The build downloads the packages of REQUIREMENTS from the Python package index, and Highway's source
package from the Debian archive (checked by its SHA-256; ATTN_HIGHWAY_SOURCE names a folder to use
instead). The headers of CLI11, fmt, nlohmann-json and xxHash are the installed ones.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "wheels"
REQUIREMENTS = (
    "ziglang==0.17.1",
    "scikit-build-core>=0.10",
    "cmake>=3.25",
    "ninja",
    "wheel",
    "numpy>=1.24",
    "wgpu==0.32.0",  # its headers
)
HIGHWAY = "highway=1.0.3-3+deb12u1", "highway_1.0.3.orig.tar.gz"
HIGHWAY_SHA256 = "566fc77315878473d9a6bd815f7de78c73734acdcb745c3dde8579560ac5440e"
MOST_BYTES = 6 << 20  # of a wheel
INCLUDED = ("CLI", "fmt", "nlohmann", "xxhash.h")  # header-only, so usable for every target
MODULES = {  # CMake package -> target, definition that its users need
    "CLI11": ("CLI11::CLI11", ""),
    "fmt": ("fmt::fmt", "FMT_HEADER_ONLY=1"),
    "nlohmann_json": ("nlohmann_json::nlohmann_json", ""),
}


@dataclass(frozen=True)
class Target:
    """A system: its name in zig, its tag in the name of a wheel, how its programs run here."""

    zig: str
    tag: str
    library: str = "libattn.so"
    runner: tuple[str, ...] = ()
    runs: bool = True
    flags: tuple[str, ...] = ()  # for the compilers
    options: tuple[str, ...] = ()  # for CMake


WINE = ("/usr/lib/wine/wine64",)
MUSL = ("/lib/ld-musl-x86_64.so.1",)
TARGETS = {
    "manylinux-x86_64": Target("x86_64-linux-gnu.2.28", "manylinux_2_28_x86_64"),
    "manylinux-aarch64": Target(
        "aarch64-linux-gnu.2.28", "manylinux_2_28_aarch64", runner=("qemu-aarch64",)
    ),
    # Without CUDA: NVIDIA's driver needs glibc.
    "musllinux-x86_64": Target(
        "x86_64-linux-musl",
        "musllinux_1_2_x86_64",
        runner=MUSL,
        flags=("-dynamic",),
        options=("-DATTN_CUDA=OFF",),
    ),
    "windows-x86_64": Target("x86_64-windows-gnu", "win_amd64", "attn.dll", WINE),
    "macos-arm64": Target("aarch64-macos.11.0", "macosx_11_0_arm64", "libattn.dylib", runs=False),
    "macos-x86_64": Target("x86_64-macos.11.0", "macosx_11_0_x86_64", "libattn.dylib", runs=False),
}


def run(words: list[str | Path], log: Path | None = None, **named: object) -> None:
    """Runs a command. After an error, prints the end of its output and exits."""
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **named
    )
    if log is not None:
        log.write_text(done.stdout)
    if done.returncode != 0:
        print("\n".join(done.stdout.splitlines()[-40:]), file=sys.stderr)
        raise SystemExit(f"wheels: {words[0]} failed" + (f"; see {log}" if log else ""))


def python() -> Path:
    """A Python with the packages of REQUIREMENTS."""
    folder = WORK / "venv"
    stamp = folder / ".contents"
    if not stamp.exists() or stamp.read_text() != repr(REQUIREMENTS):
        run([sys.executable, "-m", "venv", folder])
        pip = [folder / "bin/python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        run([*pip, *REQUIREMENTS])
        stamp.write_text(repr(REQUIREMENTS))
    return folder / "bin" / "python"


@functools.cache
def highway() -> Path:
    """The folder of Highway's sources."""
    if given := os.environ.get("ATTN_HIGHWAY_SOURCE"):
        return Path(given).resolve()
    folder = WORK / "highway"
    if (folder / "hwy/highway.h").exists():
        return folder
    package, file = HIGHWAY
    with tempfile.TemporaryDirectory() as place:
        at = Path(place)
        for name in ("lists/partial", "cache/archives/partial", "parts"):
            (at / name).mkdir(parents=True)
        sources = Path("/etc/apt/sources.list.d/debian.sources")
        listed = sources if sources.exists() else Path("/etc/apt/sources.list")
        text = re.sub(r"^Types: deb$", "Types: deb-src", listed.read_text(), flags=re.M)
        text = re.sub(r"^deb ", "deb-src ", text, flags=re.M)
        (at / "parts" / f"here{sources.suffix if listed == sources else '.list'}").write_text(text)
        apt = ["apt-get", "-q"]
        for option in (
            "Dir::Etc::sourcelist=/dev/null",
            f"Dir::Etc::sourceparts={at}/parts",
            f"Dir::State::lists={at}/lists",
            f"Dir::Cache={at}/cache",
        ):
            apt += ["-o", option]
        run([*apt, "update"], cwd=at)
        run([*apt, "source", "--download-only", package], cwd=at)
        found = hashlib.sha256((at / file).read_bytes()).hexdigest()
        if found != HIGHWAY_SHA256:
            raise SystemExit(f"wheels: {file}: found SHA-256 {found}; accepted {HIGHWAY_SHA256}")
        with tarfile.open(at / file) as archive:
            archive.extractall(at / "source")
        (inner,) = (at / "source").iterdir()
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(inner if (inner / "hwy/highway.h").exists() else at / "source", folder)
    return folder


def write_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def tools_of(target: Target, zig: Path) -> Path:
    """A folder with cc, c++, ar and ranlib for a target."""
    folder = WORK / "tools" / target.zig
    flags = " ".join(["-target", target.zig, *target.flags])
    for tool in ("cc", "c++"):
        write_program(folder / tool, f'#!/bin/sh\nexec {zig} {tool} {flags} "$@"\n')
    for tool in ("ar", "ranlib"):
        write_program(folder / tool, f'#!/bin/sh\nexec {zig} {tool} "$@"\n')
    return folder


def shared_headers() -> Path:
    """A folder with INCLUDED and the CMake modules that find them."""
    folder = WORK / "headers"
    folder.mkdir(parents=True, exist_ok=True)  # another build may be reading it
    for name in INCLUDED:
        source = Path("/usr/include") / name
        if not source.exists():
            raise SystemExit(f"wheels: {source} is missing; ./dev setup installs it")
        if not (folder / name).exists():
            (folder / name).symlink_to(source)
    for name, (target, definition) in MODULES.items():
        lines = [f"add_library({target} INTERFACE IMPORTED)"]
        include = f'"{folder}"'
        lines.append(f"target_include_directories({target} SYSTEM INTERFACE {include})")
        if definition:
            lines.append(f"target_compile_definitions({target} INTERFACE {definition})")
        lines.append(f"set({name}_FOUND TRUE)\n")
        (folder / f"Find{name}.cmake").write_text("\n".join(lines))
    return folder


@functools.cache
def assembler() -> Path:
    """The program that assembles the WebGPU kernels, built for this machine."""
    program = ROOT / "build/release/src/webgpu/attn_assemble_kernels"
    run([ROOT / "dev", "build", "release", "--target", "attn_assemble_kernels"])
    return program


def build(name: str, target: Target) -> Path:
    """Builds one wheel."""
    here = python()
    (packages,) = here.parent.parent.glob("lib/python3*/site-packages")
    zig = packages / "ziglang" / "zig"
    headers = shared_headers()
    raw, made = WORK / "raw" / name, WORK / "cmake" / name
    shutil.rmtree(raw, ignore_errors=True)
    definitions = [
        f"-DCMAKE_TOOLCHAIN_FILE={ROOT}/cmake/toolchain-zig.cmake",
        f"-DATTN_ZIG_TARGET={target.zig}",
        f"-DATTN_ZIG_TOOLS={tools_of(target, zig)}",
        f"-DATTN_HIGHWAY_SOURCE={highway()}",
        f"-DATTN_XXHASH_INCLUDE={headers}",
        f"-DCMAKE_MODULE_PATH={headers}",
        f"-DATTN_ASSEMBLE_KERNELS={assembler()}",
        # Parsing takes most of the time.
        "-DCMAKE_UNITY_BUILD=ON",
        "-DCMAKE_UNITY_BUILD_BATCH_SIZE=16",
        "-DATTN_BUILD_CLI=ON",
        "-DATTN_CUDA=ON",
        "-DATTN_WEBGPU=ON",
        f"-DATTN_WEBGPU_HEADERS={packages}/wgpu/resources",
        *target.options,
    ]
    variables = dict(os.environ)
    variables["PATH"] = f"{here.parent}:{variables['PATH']}"
    variables.setdefault("CMAKE_BUILD_PARALLEL_LEVEL", os.environ.get("ATTN_JOBS", "2"))
    words = [here, "-m", "pip", "wheel", ROOT, "--no-deps", "--no-build-isolation", "-w", raw]
    words += ["-C", f"build-dir={made}", "-C", f"cmake.args={';'.join(definitions)}"]
    run(words, WORK / f"{name}.log", env=variables)
    (wheel,) = raw.glob("*.whl")
    run([here, "-m", "wheel", "tags", "--platform-tag", target.tag, "--remove", wheel])
    (wheel,) = raw.glob("*.whl")
    kept = WORK / wheel.name
    kept.unlink(missing_ok=True)
    return wheel.rename(kept)


def compile_smoke(name: str, target: Target, library: Path) -> Path:
    """tests/wheels/smoke.c, linked with the library of a wheel and placed next to it."""
    windows = library.suffix == ".dll"
    program = library.parent / ("smoke.exe" if windows else "smoke")
    linked = library
    if windows:
        (linked,) = (WORK / "cmake" / name).rglob("libattn.dll.a")
    compiler = WORK / "tools" / target.zig / "cc"
    words = [compiler, "-O1", f"-I{ROOT}/include", ROOT / "tests/wheels/smoke.c", linked, "-lm"]
    run([*words, "-o", program, f"-Wl,-rpath,{library.parent}"])
    return program


def wanted_engine(target: Target) -> str:
    """What computes bf16 on this machine, by Linux's flags of the processor."""
    text = Path("/proc/cpuinfo").read_text()
    flags = set(text.split())
    if not target.zig.startswith("x86_64"):  # qemu has all of ARM's instructions
        return "bf16_mmla" if target.runner or "bf16" in flags else "f32"
    if "amx_bf16" in flags and "linux" in target.zig:
        return "amx_bf16"
    return "bf16_dot" if "avx512_bf16" in flags and "AuthenticAMD" in text else "f32"


def check_engine(target: Target, command: list[str | Path], variables: dict[str, str]) -> str:
    """Whether the wheel finds the processor's bf16 instructions. Returns what to report."""
    words = [*command, "info"]
    done = subprocess.run(words, capture_output=True, text=True, env=variables, check=True)
    found = re.search(r"bf16 by (\w+)", done.stdout)
    if found is None or found[1] != wanted_engine(target):
        raise SystemExit(f"wheels: bf16 by {wanted_engine(target)} was expected:\n{done.stdout}")
    return found[0]


def test(name: str, target: Target, wheel: Path) -> str:
    """Runs the tests of a wheel that can run on this machine. Returns what to report."""
    folder = WORK / "smoke" / name
    shutil.rmtree(folder, ignore_errors=True)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    library = folder / "libattn" / target.library
    if not target.runs:
        return "built only: this machine can't run its programs"
    if target.runner and shutil.which(target.runner[0]) is None:
        return f"built only: {target.runner[0]} is missing"
    command = library.parent / ("attn.exe" if library.suffix == ".dll" else "attn")
    command.chmod(0o755)
    check = [command, "check", "--backend", "cpu", "--limit", "20"]
    tests = [[*target.runner, compile_smoke(name, target, library)], [*target.runner, *check]]
    given = os.environ.get("ATTN_AARCH64_PYTHON") if "aarch64" in name else None
    smoke = ROOT / "tests/wheels/smoke.py"
    if given:
        tests.append([*shlex.split(given), smoke])
    elif not target.runner:
        tests.append([python(), smoke])
    variables = os.environ | {"WINEDEBUG": "-all", "LD_LIBRARY_PATH": str(library.parent)}
    variables["PYTHONPATH"] = f"{folder}:{variables.get('PYTHONPATH', '')}"
    # libc6:arm64, in /lib. With libc6-arm64-cross, qemu 7.2 never returns from pthread_create.
    variables.setdefault("QEMU_LD_PREFIX", "/")
    reports = []
    for words in tests:
        done = subprocess.run(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            env=variables,
            check=False,
        )
        if done.returncode != 0:
            raise SystemExit(f"wheels: {name}: {shlex.join(map(str, words))}\n{done.stdout}")
        reports.append(done.stdout.strip().splitlines()[-1])
    reports.append(check_engine(target, [*target.runner, command], variables))
    return "; ".join(reports)


def main() -> None:
    names = sys.argv[1:] or list(TARGETS)
    for name in names:
        if name not in TARGETS:
            raise SystemExit(f"wheels: target: found {name}; accepted {', '.join(TARGETS)}")
    if platform.machine() != "x86_64":
        raise SystemExit("wheels: accepted on an x86_64 machine only")
    WORK.mkdir(parents=True, exist_ok=True)
    for name in names:
        target = TARGETS[name]
        wheel = build(name, target)
        size = wheel.stat().st_size
        if size > MOST_BYTES:
            raise SystemExit(f"wheels: {wheel.name}: {size} bytes; accepted {MOST_BYTES} at most")
        print(f"{wheel.name}: {size >> 10} KiB; {test(name, target, wheel)}", flush=True)


if __name__ == "__main__":
    main()
