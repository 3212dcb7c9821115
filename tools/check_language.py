#!/usr/bin/env python3
"""Checks the English of comments, docs and messages, and names that a closed list replaces.

usage: tools/check_language.py [FILE...]      default: every tracked file

Prints each finding. Exit status 1 where there is one.
"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass

from source_text import ROOT, kind, line_of, split, tracked


@dataclass(frozen=True)
class Rule:
    """A banned pattern: where it holds, and what to write instead."""

    pattern: str  # words may be separated by line breaks: a space matches any white space
    instead: str
    scope: str = "prose"  # "prose", "code" or "path"
    folder: str = ""  # only below this folder
    allowed: str = ""  # uses that are fine: a pattern searched around the match


RULES = (
    # The style of sentences.
    Rule(r"(?-i:\bOf)\b", 'no sentence starts with "Of"'),
    Rule(r"\bof which\b", 'two sentences, or "where"'),
    Rule(r"\bwhose\b[^.;:\0]*\bwhose\b", "two sentences"),
    Rule(r"\bone behind the other\b", '"in order", "in sequence"'),
    # Words in a private sense.
    Rule(
        r"\b(?:is|are|was|were|be|been|being|not) had\b|\bhad (?:by|from|in|of|at|where|without)\b",
        '"computed", "obtained", "found"',
    ),
    Rule(r"\banew\b", '"again"'),
    Rule(r"\btold\b", '"described", "reported"', allowed=r"told apart"),
    Rule(r"\basked for\b", '"requested", "required"'),
    Rule(r"\btaken back\b", '"reverted", "undone"'),
    Rule(r"\bbeside\b", '"next to", "in addition to"'),
    Rule(r"\bso many\b", "the number itself, or its name"),
    Rule(r"\b(?:is|are|was|were|be|been) given back\b", '"is returned"'),
    Rule(r"\bmade of\b", '"computed from", "consists of"'),
    # Names of the closed list.
    Rule(r"\bby_elements\b", "Access::element", "code"),
    Rule(r"\bdq_sums?\b", "dq_accum", "code"),
    Rule(r"\b(?-i:kModified)\b", "kHasScoreMod", "code"),
    Rule(r"\bfew_rows\b", "decode, gemv", "code"),
    Rule(r"\b(?-i:TakeQuickly|kSlack)\b", "lazy rescaling, kRescaleThreshold", "code"),
    Rule(r"(?<!std::)(?<!::)\bk?exchange\b(?!_)(?!\()", "p_ds_in_smem, ...", "code", "src/cuda/"),
    Rule(r"\b(?-i:Rows)\b(?!\()", "StridedTensor", "code", "src/"),
    Rule(r"\b(?-i:Pairs)\b(?!\()", "ScoreTensor", "code", "src/"),
    Rule(r"\b(?-i:Integers)\b(?!\()", "LengthArray", "code", "src/"),
    Rule(r"\b(?-i:Exponentiate)\b", "OnlineSoftmax::update", "code", "src/cuda/"),
    Rule(r"\b(?-i:Draw)\b", "DropoutBits", "code", "src/cuda/"),
    Rule(r"\b(?-i:Entry)\b", "Sequence", "code", "src/cuda/kernels/"),
    Rule(r"\b(?-i:Step)\b", "Dispatch", "code", "src/webgpu/"),
    Rule(r"/host/table\.", "heuristics", "path", "src/cuda/"),
    Rule(r"/host/resources\.", "ptxas_log", "path", "src/cuda/"),
    Rule(r"/host/candidates\.", "search_space", "path", "src/cuda/"),
    Rule(r"/host/room\.", "occupancy", "path", "src/cuda/"),
    Rule(r"/host/ahead\.", "aot", "path", "src/cuda/"),
    Rule(r"/portable/", "sm80", "path", "src/cuda/kernels/"),
)
COMPILED = [(rule, re.compile(rule.pattern.replace(" ", r"\s+"), re.I)) for rule in RULES]
# The rules themselves.
NOT_CHECKED = ("tools/check_language.py",)


@dataclass(frozen=True)
class Finding:
    """A banned pattern at a line of a file."""

    line: int
    text: str
    instead: str


def findings(name: str) -> list[Finding]:
    """What a file breaks, in the order of its lines."""
    text = (ROOT / name).read_text()
    prose, code = split(name, text)
    found = []
    for rule, pattern in COMPILED:
        if not name.startswith(rule.folder):
            continue
        searched = {"prose": prose, "code": code, "path": name}[rule.scope]
        for match in pattern.finditer(searched):
            around = searched[max(0, match.start() - 30) : match.end() + 30]
            if rule.allowed and re.search(rule.allowed, re.sub(r"\s+", " ", around)):
                continue
            line = 1 if rule.scope == "path" else line_of(searched, match.start())
            words = re.sub(r"\s+", " ", match[0])
            found.append(Finding(line, words, rule.instead))
    return sorted(found, key=lambda one: one.line)


def show(name: str, found: list[Finding]) -> None:
    """Prints the findings of a file."""
    for one in found:
        print(f'{name}:{one.line}: "{one.text}": write {one.instead}')


def main() -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n", maxsplit=1)[0])
    parser.add_argument("files", nargs="*", help="only these files and folders")
    options = parser.parse_args()
    names = [name for name in tracked() if kind(name) and name not in NOT_CHECKED]
    if options.files:
        wanted = tuple(file.removeprefix("./") for file in options.files)
        names = [
            one
            for one in names
            if one in wanted or one.startswith(tuple(w.rstrip("/") + "/" for w in wanted))
        ]
    by_file = {name: findings(name) for name in names}
    for name, found in by_file.items():
        show(name, found)
    total = sum(map(len, by_file.values()))
    print(f"language: {total} findings")
    return 1 if total else 0


if __name__ == "__main__":
    sys.exit(main())
