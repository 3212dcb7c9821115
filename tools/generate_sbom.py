#!/usr/bin/env python3
"""Writes the bill of materials (CycloneDX 1.5, JSON) of the Python package's compiled files.

usage: tools/generate_sbom.py VERSION OUTPUT PART=FOLDER...

VERSION is the version of libattn. PART is one of PARTS, FOLDER holds its headers, which define the
version of the part. The output is a pure function of the input: it has no date.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import NamedTuple


class Part(NamedTuple):
    """A library that is compiled in: which headers define its version, and its license."""

    headers: tuple[str, ...]  # the first one that defines a version counts
    pattern: str  # matches the macros with the numbers of the version, in order
    license: str
    purl: str


PARTS = {
    "highway": Part(
        ("hwy/highway.h", "hwy/base.h"),  # newer releases: the second
        r"define HWY_(?:MAJOR|MINOR|PATCH) (\d+)",
        "Apache-2.0 OR BSD-3-Clause",
        "pkg:github/google/highway",
    ),
    "xxhash": Part(
        ("xxhash.h",),
        r"define XXH_VERSION_(?:MAJOR|MINOR|RELEASE)\s+(\d+)",
        "BSD-2-Clause",
        "pkg:github/Cyan4973/xxHash",
    ),
    "cli11": Part(
        ("CLI/Version.hpp",),
        r"define CLI11_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)",
        "BSD-3-Clause",
        "pkg:github/CLIUtils/CLI11",
    ),
    "fmt": Part(
        ("fmt/base.h", "fmt/core.h"), r"define FMT_VERSION (\d+)", "MIT", "pkg:github/fmtlib/fmt"
    ),
    "nlohmann-json": Part(
        ("nlohmann/detail/abi_macros.hpp",),
        r"define NLOHMANN_JSON_VERSION_(?:MAJOR|MINOR|PATCH) (\d+)",
        "MIT",
        "pkg:github/nlohmann/json",
    ),
}


def version_of(part: Part, folder: Path) -> str:
    """The version that a part's headers define; empty if they define none."""
    numbers: list[str] = []
    for header in (folder / name for name in part.headers):
        if not numbers and header.exists():
            numbers = re.findall(part.pattern, header.read_text(errors="replace"))[:3]
    if not numbers:
        return ""
    if len(numbers) == 1:  # 90100 is 9.1.0
        number = int(numbers[0])
        numbers = [str(number // 10000), str(number // 100 % 100), str(number % 100)]
    return ".".join(numbers)


def component(name: str, version: str, licensed: str, purl: str) -> dict[str, object]:
    reference = f"{purl}@{version}" if version else purl
    made: dict[str, object] = {"type": "library", "bom-ref": reference, "name": name}
    if version:
        made["version"] = version
    return made | {"licenses": [{"expression": licensed}], "purl": reference}


def main() -> None:
    version, output, *found = sys.argv[1:]
    own = component("libattn", version, "Apache-2.0", "pkg:pypi/libattn")
    parts = []
    for word in sorted(found):
        name, _, folder = word.partition("=")
        if name not in PARTS:
            raise SystemExit(f"generate_sbom: found '{name}'; accepted {', '.join(PARTS)}")
        part = PARTS[name]
        parts.append(component(name, version_of(part, Path(folder)), part.license, part.purl))
    references = [part["bom-ref"] for part in parts]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own},
        "components": parts,
        "dependencies": [{"ref": own["bom-ref"], "dependsOn": references}],
    }
    Path(output).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
