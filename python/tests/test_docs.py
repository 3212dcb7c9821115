"""The Python blocks of documentation pages run, in order, in one namespace per page."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/tutorial.md")


def blocks(page: str) -> list[tuple[int, str]]:
    """The Python blocks of a page, each with the number of its first line."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, block.start()) + 2, block.group(1)) for block in found]


@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_of_a_page_run(page):
    found = blocks(page)
    assert len(found) >= 2
    namespace: dict[str, object] = {}
    for line, source in found:
        if "torch" in source and importlib.util.find_spec("torch") is None:
            continue
        # Blank lines in front make a traceback show the line of the page.
        exec(compile("\n" * (line - 1) + source, str(ROOT / page), "exec"), namespace)
