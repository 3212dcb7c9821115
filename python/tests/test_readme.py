"""The README's Python examples run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)


@pytest.mark.parametrize("at", range(len(EXAMPLES)))
def test_example(at):
    if "torch" in EXAMPLES[at]:
        pytest.importorskip("torch")
    exec(compile(EXAMPLES[at], str(README), "exec"), {})


def test_there_are_examples():
    assert len(EXAMPLES) >= 2
