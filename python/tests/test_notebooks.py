"""The notebooks of examples/notebooks run, and their files hold outputs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / "examples" / "notebooks").is_dir():
    pytest.skip("the notebooks are not next to the tests", allow_module_level=True)
sys.path.insert(0, str(ROOT / "tools" / "docs"))
import notebooks  # noqa: E402


@pytest.mark.parametrize("name", notebooks.names())
def test_runs(name):
    notebook = notebooks.read(name)
    missing = notebooks.missing(notebook)
    if missing:
        pytest.skip(f"no {', '.join(missing)}")
    notebooks.run(name, notebook)


@pytest.mark.parametrize("name", notebooks.names())
def test_has_outputs(name):
    notebook = notebooks.read(name)
    cells = notebooks.code(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output["output_type"] for cell in cells for output in cell["outputs"]}
    assert kinds and "error" not in kinds
    text, _ = notebooks.page(name)
    assert text.startswith("# ")
