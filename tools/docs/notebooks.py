#!/usr/bin/env python3
"""The notebooks of examples/notebooks: runs them without Jupyter, and makes pages of them.

usage: tools/docs/notebooks.py [NOTEBOOK...]    runs them and writes their outputs

A cell's output is what it prints, its last expression, and the figures of matplotlib that it leaves
open.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import importlib.util
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples" / "notebooks"
Cell = dict[str, Any]  # as in the format of notebooks


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.ipynb"))


def read(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    return found


def source(cell: Cell) -> str:
    return "".join(cell["source"])


def code(notebook: dict[str, Any]) -> list[Cell]:
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def missing(notebook: dict[str, Any]) -> list[str]:
    """Packages that a notebook imports and that are not installed."""
    found = set()
    for cell in code(notebook):
        for node in ast.walk(ast.parse(source(cell))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add((node.module or "").partition(".")[0])
    return sorted(name for name in found if importlib.util.find_spec(name) is None)


def run(name: str, notebook: dict[str, Any]) -> None:
    """Runs the cells in order, in one namespace, and replaces their outputs."""
    os.environ.setdefault("MPLBACKEND", "agg")
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(code(notebook), 1):
        cell["execution_count"] = number
        cell["outputs"] = _outputs(f"{name}.ipynb, cell {number}", source(cell), namespace, number)


def _outputs(where: str, text: str, namespace: dict[str, Any], number: int) -> list[Any]:
    tree = ast.parse(text, where)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value, printed = None, io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, where, "exec"), namespace)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), where, "eval"), namespace)
    made: list[Any] = []
    if printed.getvalue():
        lines = printed.getvalue().splitlines(keepends=True)
        made.append({"name": "stdout", "output_type": "stream", "text": lines})
    pictures = list(_figures())
    if value is not None and not pictures:
        data = {"text/plain": repr(value).splitlines(keepends=True)}
        kind = {"execution_count": number, "output_type": "execute_result"}
        made.append({"data": data, "metadata": {}, **kind})
    for picture in pictures:
        data = {"image/png": base64.b64encode(picture).decode(), "text/plain": ["<Figure>"]}
        made.append({"data": data, "metadata": {}, "output_type": "display_data"})
    return made


def _figures() -> Iterator[bytes]:
    """The open figures as PNG; closes them."""
    if "matplotlib.pyplot" not in sys.modules:
        return
    plt = sys.modules["matplotlib.pyplot"]
    for number in plt.get_fignums():
        buffer = io.BytesIO()
        plt.figure(number).savefig(buffer, format="png", dpi=80, metadata={"Software": None})
        yield buffer.getvalue()
    plt.close("all")


def page(name: str) -> tuple[str, dict[str, bytes]]:
    """A page of the site in Markdown, and its pictures by their names in the page's folder."""
    parts, pictures = [], {}
    for cell in read(name)["cells"]:
        if cell["cell_type"] == "markdown":
            parts.append(source(cell))
            continue
        parts.append(f"```python\n{source(cell)}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                file = f"{name}_{len(pictures)}.png"
                pictures[file] = base64.b64decode(data["image/png"])
                parts.append(f"![output of the cell]({file})")
                continue
            text = "".join(output.get("text") or data["text/plain"])
            parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures


def main() -> int:
    for name in [Path(word).stem for word in sys.argv[1:]] or names():
        notebook = read(name)
        run(name, notebook)
        text = json.dumps(notebook, indent=1, ensure_ascii=False, sort_keys=True) + "\n"
        (FOLDER / f"{name}.ipynb").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
