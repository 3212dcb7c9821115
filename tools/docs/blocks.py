"""Fenced code blocks, links and anchors of Markdown pages. Used by the build of the site and by
python/tests/test_docs.py.

The first word after the fence is the language. The words after it are what a block needs to run:

    cuda            a CUDA device
    transformers    Hugging Face transformers and a model
    gpu             a GPU and the pip package wgpu
    slow            minutes
    sketch          part of a program: shown, not run
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<source>.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?P<text>!?\[(?:[^\[\]]|\[[^\[\]]*\])*\])\((?P<target>[^()\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(?P<title>.+?)(?: +\{#(?P<id>[\w-]+)\})?$", re.MULTILINE)
NEEDS = {"cuda", "transformers", "gpu", "slow", "sketch"}


@dataclass(frozen=True)
class Block:
    """A fenced code block and the number of its first line in the page."""

    language: str
    needs: frozenset[str]
    source: str
    line: int


def line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for fence in FENCE.finditer(text):
        language, *needs = fence["info"].split() or [""]
        if not set(needs) <= NEEDS:
            unknown = " ".join(sorted(set(needs) - NEEDS))
            raise ValueError(f"{page}:{line_of(text, fence.start())}: unknown word {unknown}")
        found.append(
            Block(language, frozenset(needs), fence["source"], line_of(text, fence.start()) + 1)
        )
    return found


def without_code(text: str) -> str:
    """The text with blanks in place of code, so that offsets and line numbers stay."""

    def blank(found: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", found[0])

    return re.sub(r"`[^`\n]+`", blank, FENCE.sub(blank, text))


def links(text: str) -> Iterator[tuple[int, str]]:
    """(line, target) of each link and picture."""
    for link in LINK.finditer(without_code(text)):
        yield line_of(text, link.start()), link["target"]


def anchor_of(title: str) -> str:
    """The anchor that GitHub and the site give a heading."""
    title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).replace("`", "")
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


def anchors(text: str) -> set[str]:
    found: set[str] = set()
    for heading in HEADING.finditer(FENCE.sub(lambda code: "\n" * code[0].count("\n"), text)):
        anchor = heading["id"] or anchor_of(heading["title"])
        repeated, count = anchor, 0
        while repeated in found:
            count += 1
            repeated = f"{anchor}-{count}"
        found.add(repeated)
    return found
