"""The generated ctypes structures against the C compiler: sizes, offsets and constants."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from libattn import _abi

HEADERS = Path(__file__).parents[2] / "include"
COMPILER = shutil.which(os.environ.get("CC", "cc"))
STRUCTS: dict[str, type[ctypes.Structure]] = {
    name: value
    for name, value in vars(_abi).items()
    if isinstance(value, type) and issubclass(value, ctypes.Structure) and name != "Structure"
}
CONSTANTS = {name: value for name, value in vars(_abi).items() if name.startswith("ATTN_")}


def said_by_the_compiler(folder: Path) -> dict[str, int]:
    """sizeof each struct, offsetof and sizeof each field, and each constant."""
    rows = []
    for name, struct in STRUCTS.items():
        rows.append(f'print("{name}", sizeof({name}));')
        for row in struct._fields_:
            there = f"{name}.{row[0]}"
            rows.append(f'print("{there}", offsetof({name}, {row[0]}));')
            rows.append(f'print("{there}:size", sizeof((({name}*)0)->{row[0]}));')
    rows += [f'print("{name}", {name});' for name in CONSTANTS]
    source = folder / "layout.c"
    source.write_text(
        "#include <attn/attn.h>\n#include <stdio.h>\n"
        "static void print(const char* name, long value) {\n"
        '  printf("%s %ld\\n", name, value);\n}\n'
        "int main(void) {\n" + "\n".join(rows) + "\nreturn 0;\n}\n"
    )
    program = folder / "layout"
    subprocess.run(
        [str(COMPILER), "-std=c11", f"-I{HEADERS}", str(source), "-o", str(program)], check=True
    )
    text = subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in map(str.split, text.splitlines())}


@pytest.mark.skipif(COMPILER is None, reason="no C compiler to ask")
@pytest.mark.skipif(not HEADERS.exists(), reason="the headers are not in this tree")
def test_layout(tmp_path: Path) -> None:
    """Every struct, field and constant is where, and what, C says it is."""
    expected = said_by_the_compiler(tmp_path)
    found: dict[str, int] = dict(CONSTANTS)
    for name, struct in STRUCTS.items():
        found[name] = ctypes.sizeof(struct)
        for row in struct._fields_:
            place = getattr(struct, row[0])
            found[f"{name}.{row[0]}"] = place.offset
            found[f"{name}.{row[0]}:size"] = place.size
    assert len(STRUCTS) >= 10
    assert found == expected


def test_the_library_has_every_function() -> None:
    """Each function of the header is exported by the library that is loaded."""
    from libattn import _library

    missing = [name for name in _abi.PROTOTYPES if not hasattr(_library.LIBRARY, name)]
    assert not missing
