#!/usr/bin/env python3
"""Counts the tests that reports in a folder describe, and prints "PASSED FAILED SKIPPED".

usage: tools/count_tests.py FOLDER

Reads what test programs write for machines: JUnit XML (*.xml: ctest --output-junit, pytest
--junitxml) and the rows of `attn check --json` (*.jsonl). A report that can't be read counts as one
failed test: a program that died while it wrote must not look like one without failures.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as xml
from collections import Counter
from pathlib import Path


def of_junit(path: Path) -> Counter[str]:
    """The outcomes of a JUnit report's test cases."""
    counts: Counter[str] = Counter()
    for case in xml.parse(path).getroot().iter("testcase"):
        parts = {child.tag for child in case}
        status = case.get("status", "run")  # ctest's: run, fail, notrun, disabled
        if parts & {"failure", "error"} or status == "fail":
            counts["failed"] += 1
        elif "skipped" in parts or status in ("notrun", "disabled"):
            counts["skipped"] += 1
        else:
            counts["passed"] += 1
    return counts


def of_rows(path: Path) -> Counter[str]:
    """The outcomes of the rows that `attn check --json` printed."""
    rows = (json.loads(line) for line in path.read_text().splitlines() if line)
    counts = Counter(str(row["result"]) for row in rows)
    if not counts or set(counts) - {"passed", "failed", "skipped"}:
        raise ValueError(f"results {sorted(counts)}; accepted: passed, failed, skipped")
    return counts


def count(folder: Path) -> Counter[str]:
    """The sum over a folder's reports."""
    total: Counter[str] = Counter()
    for path in sorted(folder.rglob("*.xml")) + sorted(folder.rglob("*.jsonl")):
        try:
            total += of_junit(path) if path.suffix == ".xml" else of_rows(path)
        except (xml.ParseError, ValueError, KeyError) as problem:
            print(f"count_tests: {path}: {problem}", file=sys.stderr)
            total["failed"] += 1
    return total


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    found = count(Path(sys.argv[1]))
    print(found["passed"], found["failed"], found["skipped"])
