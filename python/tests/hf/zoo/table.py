"""The committed rows of the zoo and the table that is generated from them into the documentation.

usage: PYTHONPATH=python:python/tests/hf python -m zoo.table      rewrites docs/huggingface.md
"""

from __future__ import annotations

import json
import pathlib
from typing import Any

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / "results.jsonl"
DOCUMENT = HERE.parents[3] / "docs" / "huggingface.md"
BEGIN, END = "<!-- zoo: begin -->\n", "<!-- zoo: end -->\n"
KINDS = {
    "causal": "causal",
    "masked": "masked",
    "seq2seq": "sequence to sequence",
    "vision": "image classification",
    "audio": "audio",
}


def read() -> tuple[dict[str, str], list[dict[str, Any]]]:
    """The versions of the run, and its rows."""
    lines = [json.loads(line) for line in RESULTS.read_text().splitlines()]
    return lines[0], lines[1:]


def write(rows: list[dict[str, Any]], versions: dict[str, str]) -> None:
    """Writes the rows, in place of earlier ones of the same models, and then the table."""
    kept = {row["model"]: row for row in (read()[1] if RESULTS.exists() else [])}
    kept.update({row["model"]: row for row in rows})
    ordered = sorted(kept.values(), key=lambda row: (row["kind"], row["model"].lower()))
    RESULTS.write_text("".join(json.dumps(line) + "\n" for line in [versions, *ordered]))
    write_document()


def _models(rows: list[dict[str, Any]]) -> str:
    return ", ".join(row["model"] for row in rows)


def _by_reason(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Groups rows by reason. Reasons that differ only in the model's own name are the same."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        reason = row["reason"].replace(row["model"], "the model").removeprefix("libattn.hf: ")
        found.setdefault(reason.replace("|", "\\|"), []).append(row)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def text() -> str:
    """The part of the document between its marks."""
    versions, rows = read()
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row["outcome"], []).append(row)
    equal = groups.get("equal", [])
    parts = [
        f"transformers {versions['transformers']}, torch {versions['torch']}: {len(rows)} model "
        "classes, "
        + ", ".join(f"{len(found)} {outcome}" for outcome, found in sorted(groups.items()))
        + ".\n\n"
    ]
    if equal:
        logits = max(row["logits"] for row in equal)
        gradients = max(row["gradients"] for row in equal)
        parts.append(
            f"Equal: logits within {logits:.0e} of the largest, gradients within {gradients:.0e}. "
            f"{sum(row['generate'] for row in equal)} generate the same tokens; in "
            f"{sum(row['causal'] for row in equal)} a changed last token leaves earlier logits "
            "as they are.\n\n| mapping | equal |\n| --- | --- |\n"
        )
        for kind, title in KINDS.items():
            chosen = [row for row in equal if row["kind"] == kind]
            if chosen:
                parts.append(f"| {title} | {_models(chosen)} |\n")
    for outcome in ("refused", "no attention", "not built", "wrong"):
        if outcome in groups:
            parts.append(f"\n| {outcome} | reason |\n| --- | --- |\n")
            for reason, found in _by_reason(groups[outcome]).items():
                parts.append(f"| {_models(found)} | {reason or 'calls no attention function'} |\n")
    return "".join(parts)


def write_document() -> None:
    """Replaces the text between the marks."""
    before, rest = DOCUMENT.read_text().split(BEGIN)
    after = rest.split(END)[1]
    DOCUMENT.write_text(before + BEGIN + text() + END + after)


if __name__ == "__main__":
    write_document()
