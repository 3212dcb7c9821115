#!/usr/bin/env python3
"""Compares what two trees of CUDA kernels compile to: registers, spills, instructions.

Needs NVRTC, no GPU. A refactoring of kernels is done when `compare` prints only "identical".

usage: attn_cuda_configs --list > CONFIGS
       tools/compare_sass.py record CONFIGS FOLDER [--kernels DIR] [--lines 1,5-9]
                             [--match TEXT] [--jobs N]
       tools/compare_sass.py compare OLD NEW [--worst N]

`record` compiles line n of CONFIGS ("90 sm80/forward.cu dim_qk=64 ...") to FOLDER/n.cubin. Lines,
not names, identify a kernel, so that files and constants may be renamed between two records.
`compare` has four verdicts for a kernel entry:
  identical  the same bytes
  same code  the same sequence of opcodes: other registers or constant addresses
  close      neither registers, spills nor shared memory rise, instructions by at most 1 %
  worse      anything else; exit status 1
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import json
import re
import struct
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OPTIONS = ["--std=c++20", "-default-device", "--ptxas-options=-v"]  # as binaries.cpp
CALLS_NVRTC = [
    "libnvrtc.so.13",
    "/usr/local/cuda/lib64/libnvrtc.so.13",
    "libnvrtc.so.12",
    "libnvrtc.so",
]


class Nvrtc:
    """NVIDIA's run-time compiler, by ctypes."""

    def __init__(self) -> None:
        for name in CALLS_NVRTC:
            try:
                self.library = ctypes.CDLL(name)
                return
            except OSError:
                continue
        raise SystemExit("no NVRTC found; tried " + ", ".join(CALLS_NVRTC))

    def text(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(self.library, f"nvrtcGet{what}")(program, buffer)
        return buffer.raw

    def compile(
        self, name: str, source: str, headers: dict[str, str], capability: str
    ) -> tuple[bytes, str]:
        """The cubin and the assembler's log."""
        program = ctypes.c_void_p()
        texts = [text.encode() for text in headers.values()]
        names = [header.encode() for header in headers]
        array = ctypes.c_char_p * len(names)
        self.library.nvrtcCreateProgram(
            ctypes.byref(program),
            source.encode(),
            name.encode(),
            len(names),
            array(*texts),
            array(*names),
        )
        architecture = f"--gpu-architecture=sm_{capability}" + ("a" if capability == "90" else "")
        options = [option.encode() for option in [architecture, *OPTIONS]]
        result = self.library.nvrtcCompileProgram(
            program, len(options), (ctypes.c_char_p * len(options))(*options)
        )
        log = self.text(program, "ProgramLog").decode(errors="replace").rstrip("\0")
        if result != 0:
            raise SystemExit(f"{name} for {capability}:\n{log}")
        cubin = self.text(program, "CUBIN")
        self.library.nvrtcDestroyProgram(ctypes.byref(program))
        return cubin, log


def wanted(ranges: str, number: int) -> bool:
    parts = [part.split("-") for part in ranges.split(",") if part]
    return not parts or any(int(part[0]) <= number <= int(part[-1]) for part in parts)


def record(options: argparse.Namespace) -> int:
    nvrtc = Nvrtc()
    headers = {
        str(path.relative_to(options.kernels)): path.read_text()
        for path in sorted(options.kernels.rglob("*.cuh"))
    }
    lines = options.configs.read_text().splitlines()
    types = lines[0].split()[1:]
    options.folder.mkdir(parents=True, exist_ok=True)

    def one(number: int) -> None:
        capability, source, *constants = lines[number].split()
        text = "#pragma once\nnamespace config {\n"
        for constant in types + constants:
            text += "inline constexpr int {} = {};\n".format(*constant.split("="))
        config = {"config.cuh": text + "}\n"}
        kernel = (options.kernels / source).read_text()
        cubin, log = nvrtc.compile(source, kernel, headers | config, capability)
        (options.folder / f"{number}.cubin").write_bytes(cubin)
        (options.folder / f"{number}.log").write_text(lines[number] + "\n" + log)

    chosen = [
        number
        for number in range(1, len(lines))
        if wanted(options.lines, number) and re.search(options.match, lines[number])
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        for done, _ in enumerate(pool.map(one, chosen), 1):
            if done % 50 == 0:
                print(f"{done} of {len(chosen)}", flush=True)
    print(f"{len(chosen)} compiled to {options.folder}")
    return 0


def sections(cubin: bytes) -> dict[str, bytes]:
    """The code of a cubin (ELF64), by section name."""
    (offset,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    heads = [struct.unpack_from("<IIQQQQ", cubin, offset + size * i) for i in range(count)]
    start = heads[names][4]
    found = {}
    for name, _, _, _, at, length in heads:
        text = cubin[start + name : cubin.index(b"\0", start + name)].decode()
        if text.startswith(".text"):
            # The name of a function in an anonymous namespace contains a hash of the compilation.
            found[re.sub(r"_GLOBAL__N__[0-9a-f_]+", "", text)] = cubin[at : at + length]
    return found


def opcodes(code: bytes) -> list[int]:
    """The lowest 12 bits of each instruction (16 bytes from capability 7.0 on), without padding
    NOPs."""
    nop = 0x918
    found = [struct.unpack_from("<Q", code, at)[0] & 0xFFF for at in range(0, len(code), 16)]
    while found and found[-1] == nop:
        found.pop()
    return found


def resources(log: str) -> dict[str, int]:
    """Sums over the functions of a kernel's log."""
    patterns = {
        "registers": r"Used (\d+) registers",
        "stored": r"(\d+) bytes spill stores",
        "loaded": r"(\d+) bytes spill loads",
        "shared": r"(\d+) bytes smem",
    }
    return {name: sum(map(int, re.findall(pattern, log))) for name, pattern in patterns.items()}


def verdict(
    old: tuple[bytes, str], new: tuple[bytes, str]
) -> tuple[str, dict[str, tuple[int, int]]]:
    before, after = sections(old[0]), sections(new[0])
    was, now = resources(old[1]), resources(new[1])
    codes = [[opcodes(code) for code in which.values()] for which in (before, after)]
    was["instructions"], now["instructions"] = (sum(map(len, which)) for which in codes)
    change = {name: (was[name], now[name]) for name in was if was[name] != now[name]}
    if list(before.values()) == list(after.values()):
        return "identical", change
    if codes[0] == codes[1]:
        return "same code", change
    rises = any(now[name] > was[name] for name in was if name != "instructions")
    if not rises and now["instructions"] <= 1.01 * was["instructions"]:
        return "close", change
    return "worse", change


def compare(options: argparse.Namespace) -> int:
    def read(folder: Path, number: int) -> tuple[bytes, str]:
        return (folder / f"{number}.cubin").read_bytes(), (folder / f"{number}.log").read_text()

    numbers = [
        {int(path.stem) for path in folder.glob("*.cubin")} for folder in (options.old, options.new)
    ]
    both = sorted(numbers[0] & numbers[1])
    counts: collections.Counter[str] = collections.Counter()
    shown: collections.Counter[str] = collections.Counter()
    for number in both:
        new = read(options.new, number)
        what, change = verdict(read(options.old, number), new)
        counts[what] += 1
        shown[what] += 1
        if what != "identical" and (what == "worse" or shown[what] <= options.worst):
            print(f"{what}: {json.dumps(change)} {number}: {new[1].splitlines()[0]}")
    print(
        f"{len(both)} kernels: "
        + (", ".join(f"{n} {what}" for what, n in counts.items()) or "none")
    )
    return 0 if both and counts["worse"] == 0 else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("record")
    one.add_argument("configs", type=Path)
    one.add_argument("folder", type=Path)
    one.add_argument("--kernels", type=Path, default=ROOT / "src/cuda/kernels")
    one.add_argument("--lines", default="", help="compile these lines: 1,5-9")
    one.add_argument(
        "--match", default="", help="compile the lines that match a regular expression"
    )
    one.add_argument("--jobs", type=int, default=2)
    one.set_defaults(run=record)
    two = commands.add_parser("compare")
    two.add_argument("old", type=Path)
    two.add_argument("new", type=Path)
    two.add_argument("--worst", type=int, default=20, help="print at most N kernels of a verdict")
    two.set_defaults(run=compare)
    options = parser.parse_args()
    result: int = options.run(options)
    return result


if __name__ == "__main__":
    sys.exit(main())
