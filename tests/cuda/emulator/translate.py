#!/usr/bin/env python3
"""Compiles a kernel for the host: inline PTX becomes calls of ptx.hpp.

usage: translate.py FOLDER FILE LIBRARY ARCH

FOLDER has the sources (with config.cuh), FILE is the kernel below it, ARCH is __CUDA_ARCH__. The
library has, for each entry, attn_emulator_launch_ENTRY and attn_emulator_bytes_ENTRY. For a new
instruction, "unknown PTX" is the error: add it to instructions.py. A new CUDA intrinsic belongs to
device.hpp.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

from instructions import TYPES, UnknownInstructionError, instruction, value
from text import closing, split

HERE = Path(__file__).resolve().parent
LIBRARIES = HERE.parents[2] / "build" / "emulator"
COMPILER = "clang++-19"

# The letter of an asm constraint.
OPERAND_TYPES = {
    "r": "unsigned",
    "h": "unsigned short",
    "l": "unsigned long long",
    "f": "float",
    "n": "unsigned",
    "q": "__int128",
}


def operands(part: str) -> list[tuple[str, str]]:
    """Constraint and expression of each operand of an asm statement."""
    found = []
    for text in split(part, ","):
        if match := re.match(r'"([^"]*)"\s*\((.*)\)$', text.strip(), re.DOTALL):
            found.append((match[1], match[2]))
    return found


def declare_registers(kind: str, names: str) -> str:
    """.reg of PTX."""
    declared = ", ".join(f"reg_{name.strip()}{{}}" for name in names.split(","))
    return f"{TYPES[kind]} {declared};"


def statement(text: str, site: int) -> str:
    """One PTX statement, perhaps with a predicate, in C++."""
    if match := re.match(r"\.reg\s+\.(\w+)\s+(.*)$", text):
        return declare_registers(match[1], match[2])
    condition = ""
    if match := re.match(r"@(!?)(\w+|%\d+)\s+(.*)$", text, re.DOTALL):
        condition = f"if ({match[1]}{value(match[2])}) "
        text = match[3]
    op, _, rest = text.partition(" ")
    if op == "bra":
        return f"{condition}goto label_{rest.strip()}_{site};"
    arguments = [part.strip() for part in split(rest, ",")] if rest.strip() else []
    return f"{condition}{{ {instruction(op, arguments)} }}"


def statements(text: str, site: int) -> str:
    """The PTX of an asm statement in C++. Labels get the site's number: functions are inlined."""
    text = text.strip().replace("\n", " ").replace("\t", " ")
    if text.startswith("{"):
        text = text[1 : text.rindex("}")]
    code = []
    for part in text.split(";"):
        part = part.strip()
        while match := re.match(r"(\w+):\s*(?!:)", part):
            code.append(f"label_{match[1]}_{site}: ;")
            part = part[match.end() :]
        if part:
            code.append(statement(part, site))
    return " ".join(code)


def asm_block(body: str, site: int) -> str:
    """An asm statement in C++: operands are variables, results are assigned at the end."""
    parts = [*split(body, ":"), "", ""]
    strings = re.findall(r'"(?:[^"\\]|\\.)*"', parts[0])
    ptx = "".join(ast.literal_eval(string) for string in strings)
    before, after = [], []
    outputs = operands(parts[1])
    for i, (constraint, expression) in enumerate(outputs):
        kind = OPERAND_TYPES[constraint[-1]]
        if constraint[-1] == "f":
            # By reference: the registers of an accumulator are written when wgmma ends.
            before.append(f"auto& operand_{i} = ({expression});")
            continue
        initial = f"({kind})({expression})" if "+" in constraint else "{}"
        before.append(f"{kind} operand_{i} = {initial};")
        result = f"std::remove_reference_t<decltype(({expression}))>"
        after.append(f"({expression}) = ({result})operand_{i};")
    for i, (constraint, expression) in enumerate(operands(parts[2]), len(outputs)):
        kind = OPERAND_TYPES[constraint[-1]]
        before.append(f"const {kind} operand_{i} = ({kind})({expression});")
    return f"{{ {' '.join(before)} {statements(ptx, site)} {' '.join(after)} }}"


def translate_asm(text: str) -> str:
    """Replaces every asm statement. Line numbers do not change."""
    pattern = re.compile(r"\basm\b(?:\s+volatile)?\s*\(")
    result, begin, site = "", 0, 0
    while match := pattern.search(text, begin):
        end = closing(text, match.end() - 1)
        body = text[match.end() : end]
        try:
            code = asm_block(body, site)
        except UnknownInstructionError as error:
            sys.exit(f"translate.py: unknown PTX: {error}\n  in: {body[:300]}")
        result += text[begin : match.start()] + code
        begin = end + 1
        if semicolon := re.match(r"\s*;", text[begin:]):
            begin += semicolon.end()
        result += "\n" * text.count("\n", match.start(), begin)
        site += 1
    return result + text[begin:]


def static_variable(match: re.Match[str]) -> str:
    """A __shared__ variable: a reference to a place in the block's memory."""
    alignment, kind, name, dims = match[1] or "16", match[2], match[3], match[4]
    place = f"emulator::shared_static(&{name}_key, sizeof({name}_t), {alignment})"
    return (
        f"using {name}_t = {kind}{dims}; static const char {name}_key = 0; "
        f"{name}_t& {name} = *reinterpret_cast<{name}_t*>({place});"
    )


def translate_shared(text: str) -> str:
    """Replaces the declarations of shared memory."""
    text = re.sub(
        r"extern __shared__ (?:__align__\(\d+\) )?unsigned char (\w+)\[\];",
        r"unsigned char* const \1 = emulator::shared_dynamic();",
        text,
    )
    pattern = r"__shared__ (?:__align__\((\d+)\) )?([\w ]+?) (\w+)((?:\[[^\]]+\])*);"
    return re.sub(pattern, static_variable, text)


def translate(text: str) -> str:
    """Preprocessed source of a kernel as C++ for the host."""
    text = re.sub(r"^[ \t]*#pragma unroll.*$", "", text, flags=re.MULTILINE)
    entries = re.findall(
        r'extern "C" __global__ void\s+' r"__launch_bounds__\((?:[^()]|\([^()]*\))*\)\s*(\w+)\(",
        text,
    )
    code = '#include "device.hpp"\n' + translate_asm(translate_shared(text)) + "\n"
    for entry in entries:
        launch, size = f"attn_emulator_launch_{entry}", f"attn_emulator_bytes_{entry}"
        code += f'extern "C" void {launch}(void* p) {{ emulator::call_kernel({entry}, p); }}\n'
        code += f'extern "C" {{ extern const unsigned {size}; }}\n'
        code += f"const unsigned {size} = emulator::parameter_bytes({entry});\n"
    return code


def preprocess(folder: Path, name: str, arch: str) -> str:
    """The kernel with its headers."""
    command = [COMPILER, "-E", "-x", "c++", "-std=c++20", f"-I{folder}"]
    command += [f"-D__CUDA_ARCH__={arch}", "-D__CUDACC__", "-D__CUDACC_RTC__", str(folder / name)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def compile_library(source: Path, library: Path) -> None:
    """Compiles what translate() returned."""
    command = [COMPILER, "-std=c++20", os.environ.get("ATTN_EMULATOR_OPTIMIZE", "-O1")]
    command += ["-gline-tables-only", "-fno-omit-frame-pointer", "-mavx2", "-mfma", "-mf16c"]
    command += ["-ffp-contract=fast", "-fno-strict-aliasing", "-fwrapv", "-fno-exceptions"]
    command += ["-fPIC", "-shared", "-w", f"-I{HERE}", str(source), "-o", str(library)]
    command += [f"-L{LIBRARIES}", "-lattn_emulator_runtime", f"-Wl,-rpath,{LIBRARIES}"]
    command += ["-Wl,-z,now", "-Wl,-Bsymbolic"]
    subprocess.run(command, check=True)


def main() -> None:
    """Translates and compiles one kernel."""
    folder, name, library, arch = sys.argv[1:]
    source = Path(library).with_suffix(".cpp")
    source.write_text(translate(preprocess(Path(folder), name, arch)), encoding="utf-8")
    compile_library(source, Path(library))


if __name__ == "__main__":
    main()
