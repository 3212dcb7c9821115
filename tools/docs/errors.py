"""The refusals in the sources, which docs/errors.md must list, each once.

A refusal is a call `refuse(function, rule, found, accepted)` in src/core. NAME stands for the parts
of a rule that come from variables. If a backend has no kernel, its reason is on the generated page
of support instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "errors.md"
RULES = ("src/core/*.cpp",)
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')


def arguments(text: str, start: int) -> list[str]:
    """The arguments of the call whose parenthesis opens before `start`."""
    found, depth, at, begun = [], 1, start, start
    while depth:
        character = text[at]
        if character == '"':
            at = LITERAL.match(text, at).end()  # type: ignore[union-attr]
            continue
        depth += (character in "({[") - (character in ")}]")
        if depth == 0 or (depth == 1 and character == ","):
            found.append(text[begun:at].strip())
            begun = at + 1
        at += 1
    return found


def in_words(expression: str) -> str:
    """The text of a C++ expression, with NAME in place of everything but literals."""
    of = re.fullmatch(r'rule\("([^"]*)", \w+\)', expression)
    if of:
        return f"{of[1]} of NAME"
    expression = re.sub(r'std::string\(("[^"]*")\)', r"\1", expression)
    parts = re.findall(r'"((?:[^"\\]|\\.)*)"|([^"+\s][^"+]*)', expression)
    return "".join(literal if literal or not other else "NAME" for literal, other in parts).strip()


def rules() -> Iterator[str]:
    for pattern in RULES:
        for file in sorted(ROOT.glob(pattern)):
            text = re.sub(r"//.*", "", file.read_text(encoding="utf-8"))
            for call in re.finditer(r"\brefuse\(", text):
                given = arguments(text, call.end())
                if len(given) == 4:
                    yield in_words(given[1])


def documented() -> list[str]:
    """The first column of the tables of the page."""
    text = PAGE.read_text(encoding="utf-8")
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


def differences() -> list[str]:
    """Refusals that the page lacks, and those of the page that are not in the sources."""
    sources = {text.replace("|", "\\|") for text in rules()}
    page = documented()
    wrong = [f"docs/errors.md lacks: {text}" for text in sorted(sources - set(page))]
    codes = {"invalid_argument", "unsupported", "out_of_memory", "device_error", "internal"}
    extra = set(page) - sources - codes - {"interrupted", "ok"}
    wrong += [f"docs/errors.md has what no source says: {text}" for text in sorted(extra)]
    twice = sorted(name for name in set(page) if page.count(name) > 1)
    return wrong + [f"docs/errors.md has twice: {name}" for name in twice]


if __name__ == "__main__":
    print("\n".join(differences()) or "docs/errors.md lists every refusal")
