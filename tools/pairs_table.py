#!/usr/bin/env python3
"""Writes docs/versions.md from the JUnit reports of the tested pairs of PyTorch and transformers.

usage: tools/pairs_table.py REPORTS

REPORTS is the folder ATTN_REPORTS of the runs. A pair without a report is listed as not run.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import python_envs  # noqa: E402

DOCUMENT = Path(__file__).resolve().parent.parent / "docs" / "versions.md"
HEAD = """# Tested pairs of PyTorch and transformers

Written by `tools/pairs_table.py`; the pairs and the reason for each are in `tools/python_envs.py`.
To run the pairs and regenerate this file:

```
ATTN_REPORTS=$PWD/build/reports tools/python_tests.sh $(tools/python_envs.py pairs)
tools/pairs_table.py build/reports
```

For each pair, libattn is registered in transformers, and the tests of masks, routing and
`torch.compile` run with GPT-2 and Llama, with and without padding. The last pair of each PyTorch
version also runs them with the compiler's default backend, and runs the tests of `libattn.torch`.

| PyTorch | transformers | passed | failed | skipped |
| --- | --- | --- | --- | --- |
"""


def row(name: str, report: Path) -> tuple[str, list[str]]:
    """A pair's row of the table, and the reasons of its skipped tests."""
    if not report.exists():
        under, over = name.split("-")
        return f"| {under} | {over} | not run | | |", []
    suite = ElementTree.parse(report).getroot().find("testsuite")
    assert suite is not None, report
    kept = {one.get("name"): one.get("value") for one in suite.iter("property")}
    total, skipped = int(suite.get("tests", 0)), int(suite.get("skipped", 0))
    failed = int(suite.get("failures", 0)) + int(suite.get("errors", 0))
    versions = f"{str(kept.get('torch')).split('+')[0]} | {kept.get('transformers')}"
    reasons = [str(one.get("message")) for one in suite.iter("skipped")]
    return f"| {versions} | {total - failed - skipped} | {failed} | {skipped} |", reasons


def main() -> None:
    """The command."""
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        raise SystemExit(__doc__)
    rows, reasons = [], set()
    for name in python_envs.PAIRS:
        line, skipped = row(name, Path(sys.argv[1]) / f"{name}.xml")
        rows.append(line)
        reasons.update(skipped)
    text = HEAD + "\n".join(rows) + "\n"
    if reasons:
        text += "\nReasons for skipping:\n\n" + "".join(f"- {one}\n" for one in sorted(reasons))
    DOCUMENT.write_text(text)


if __name__ == "__main__":
    main()
