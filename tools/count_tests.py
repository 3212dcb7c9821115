#!/usr/bin/env python3
"""Counts the tests that reports in a folder describe, and prints "PASSED FAILED SKIPPED".

usage: tools/count_tests.py FOLDER
       tools/count_tests.py --failures FOLDER    prints each failed test and what it printed

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

MOST_FAILURES = 5  # of a folder that are printed
MOST_LINES = 40  # of one test's output


def has_failed(case: xml.Element) -> bool:
    """Whether a test case of a JUnit report failed."""
    return any(child.tag in ("failure", "error") for child in case) or case.get("status") == "fail"


def of_junit(path: Path) -> Counter[str]:
    """The outcomes of a JUnit report's test cases."""
    counts: Counter[str] = Counter()
    for case in xml.parse(path).getroot().iter("testcase"):
        parts = {child.tag for child in case}
        status = case.get("status", "run")  # ctest's: run, fail, notrun, disabled
        if has_failed(case):
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


def failed_lines(output: str) -> list[str]:
    """The part of a test's output that says what failed, without googletest's tests that passed."""
    lines = [line for line in output.splitlines() if line.strip()]
    passed = ("[ RUN ", "[       OK ]", "[----------]", "[==========]")
    return [line for line in lines if not line.startswith(passed)][-MOST_LINES:]


def print_failures(folder: Path) -> None:
    """Prints the failed tests of a folder's JUnit reports."""
    printed = 0
    for path in sorted(folder.rglob("*.xml")):
        try:
            cases = [
                case for case in xml.parse(path).getroot().iter("testcase") if has_failed(case)
            ]
        except xml.ParseError:
            continue
        for case in cases:
            printed += 1
            if printed > MOST_FAILURES:
                print("  more tests failed")
                return
            print(f"  {case.get('classname', '')} {case.get('name', '')} failed:")
            texts = [child.text or child.get("message") or "" for child in case]
            for line in failed_lines("\n".join(texts)):
                print(f"    {line}")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--failures":
        print_failures(Path(sys.argv[2]))
        raise SystemExit
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    found = count(Path(sys.argv[1]))
    print(found["passed"], found["failed"], found["skipped"])
