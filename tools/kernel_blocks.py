#!/usr/bin/env python3
"""Blocks that several WGSL kernels spell alike: lines from `// begin: NAME` to `// end: NAME`.

WGSL has no include, and every kernel is valid as it stands, so that any compiler can be asked about
it. Blocks of one name are the same in all files.

usage: tools/kernel_blocks.py             names the blocks that differ; exit status 1 where any does
       tools/kernel_blocks.py --from FILE copies FILE's blocks over those of the other kernels
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

KERNELS = Path(__file__).resolve().parent.parent / "src/webgpu/kernels"
BLOCK = re.compile(r"^// begin: (?P<name>\w+)\n.*?^// end: (?P=name)\n", re.MULTILINE | re.DOTALL)


def blocks_of(path: Path) -> dict[str, str]:
    return {match["name"]: match[0] for match in BLOCK.finditer(path.read_text())}


def copy_from(source: Path) -> None:
    blocks = blocks_of(source)
    for path in KERNELS.glob("*.wgsl"):
        text = path.read_text()
        changed = BLOCK.sub(lambda match: blocks.get(match["name"], match[0]), text)
        if changed != text:
            path.write_text(changed)
            print(f"{path.name}: blocks of {source.name}")


def check() -> int:
    seen: dict[str, tuple[str, str]] = {}
    wrong = 0
    for path in sorted(KERNELS.glob("*.wgsl")):
        text = path.read_text()
        if len(re.findall(r"^// begin: ", text, re.MULTILINE)) != len(blocks_of(path)):
            print(f"{path.name}: a block without its end, or twice", file=sys.stderr)
            wrong += 1
        for name, block in blocks_of(path).items():
            first, other = seen.setdefault(name, (path.name, block))
            if block != other:
                print(f"block {name} differs in {first} and {path.name}", file=sys.stderr)
                wrong += 1
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--from", dest="source", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.source:
        copy_from(arguments.source)
    return check()


if __name__ == "__main__":
    sys.exit(main())
